-- Readers that want only some message types.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
SELECT feed_stop_worker() IS NOT NULL AS stopped;
SET feedpub.read_wait = 0;
CREATE ROLE regress_feedpub_types;
\set odd '"Odd ""Name"", with a comma"'
SELECT feed_create(:'odd') AS feed \gset
CREATE FUNCTION wanted(types text[], max_rows int DEFAULT 100, after text DEFAULT '') RETURNS TABLE (op text, n text) LANGUAGE sql AS $$
	SELECT op, (entry).data #>> '{}' FROM feed_read(NULL::"Odd ""Name"", with a comma", after, max_rows, types => wanted.types)
$$;
CREATE FUNCTION list(types text[], max_rows int DEFAULT 100, after text DEFAULT '') RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(coalesce(n, op), ' ') FROM wanted(types, max_rows, after)
$$;
INSERT INTO :odd (message_type, message_key, data)
  SELECT t, 'key ' || n % 3, to_jsonb(n) FROM unnest('{OrderPlaced,OrderPaid,Order,StockCounted,Order*,*,"",or*er,orXer,"a, \"b\" {c}",Zoë,order*x}'::text[]) WITH ORDINALITY t (t, n);
CALL feed_publish(:'odd');

--
-- A type, several, all that begin alike
--
SELECT * FROM wanted('{OrderPaid,StockCounted}');
SELECT list('{StockCounted,OrderPaid,StockCounted,nothing}') AS twice, list('{Order*}') AS order, list('{Order}') AS one, list('{Zo*,"a, \"b\" {c}"}') AS odd, list('{orderpaid}') AS lower;
-- A star is one only at the end; two are one.
SELECT list('{*}') AS "all", list('{or*er}') AS star, list('{Order**}') AS begin, list('{**}') AS stars, list('{""}') AS empty, list('{*r}') AS first;
-- A type that is not there is the empty one.
ALTER TABLE :odd ALTER message_type DROP NOT NULL;
INSERT INTO :odd (message_type, data) VALUES (NULL, '13');
CALL feed_publish(:'odd');
SELECT list('{""}') AS empty, list('{*}') AS "all", list('{**}') AS stars;

--
-- The cursors are those of a reader of everything
--
CREATE TABLE whole AS SELECT cursor, (entry).data #>> '{}' AS n FROM feed_read(NULL::"Odd ""Name"", with a comma");
SELECT r.op, (r.entry).message_type, w.n FROM feed_read(NULL::"Odd ""Name"", with a comma", types => '{StockCounted,Order}') r LEFT JOIN whole w USING (cursor);
-- A full page ends with its last entry.
SELECT op, n FROM wanted('{Order*}', 2);
SELECT list('{Order*}', 2, (SELECT max(cursor COLLATE "C") FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 2, types => '{Order*}'))) AS next;
SELECT jsonb_path_query_array(p::jsonb, '$.entries[*].row.data') AS entries, p ->> 'more' AS more, w.n FROM feed_page(:'odd', types => '{OrderPaid,*r}') p LEFT JOIN whole w ON w.cursor = p ->> 'cursor';
SELECT jsonb_path_query_array(p::jsonb, '$.entries[*].row.data') AS entries, p ->> 'more' AS more, w.n FROM feed_page(:'odd', '', 1, types => '{OrderPaid,*r}') p LEFT JOIN whole w ON w.cursor = p ->> 'cursor';
-- Nothing after it
SELECT json_array_length(p -> 'entries') AS entries, p ->> 'cursor' = feed_head(:'odd') AS at_head FROM feed_page(:'odd', feed_head(:'odd'), types => '{nothing}') p;
SELECT op, cursor = feed_head(:'odd') AS at_head FROM feed_read(NULL::"Odd ""Name"", with a comma", 'latest', types => '{nothing}');
-- The lines of the HTTP server
SELECT CASE WHEN line LIKE '{%' THEN line::json -> 'row' ->> 'data' ELSE split_part(line, ' ', 2) END AS line FROM string_to_table(feedpub._page_lines(:'odd', types => '{OrderP*}'), E'\n') l (line);
SELECT (line::json) ->> 'type' AS type FROM string_to_table(feedpub._page_events(:'odd', types => '{OrderP*}'), E'\n') l (line) WHERE line LIKE '{%';

--
-- With shards
--
SELECT count(*), count(DISTINCT n) FROM generate_series(0, 2) shard, LATERAL (SELECT (entry).data #>> '{}' AS n FROM feed_read(NULL::"Odd ""Name"", with a comma", shard => shard, shards => 3, types => '{Order*,or*}') WHERE op <> 'end') r;

--
-- Long types, out of line and compressed
--
INSERT INTO :odd (message_type, data) VALUES ('z' || repeat('long', 100000), '14'), ('z' || repeat('long', 100000) || 'er', '15');
ALTER TABLE :odd ALTER message_type SET STORAGE EXTERNAL;
INSERT INTO :odd (message_type, data) VALUES ('z' || repeat('long', 100000), '16'), ('zz', '17');
CALL feed_publish(:'odd');
SELECT list('{z*}') AS z, list('{zlong*}') AS zlong, list('{zlong}') AS short, list(ARRAY['z' || repeat('long', 100000)]) AS exact, list(ARRAY['z' || repeat('long', 100000) || '*']) AS longer;

--
-- A page passes 10000 rows and says how far it got.
--
INSERT INTO :odd (message_type, data) SELECT 'unwanted', to_jsonb(i) FROM generate_series(100, 10199) i;
INSERT INTO :odd (message_type, data) VALUES ('wanted', '18');
CALL feed_publish(:'odd');
SELECT cursor AS seventeen FROM feed_read(NULL::"Odd ""Name"", with a comma", types => '{zz}') WHERE op = 'upsert' \gset
SELECT json_array_length(p -> 'entries') AS entries, p ->> 'more' AS more, p ->> 'cursor' AS next FROM feed_page(:'odd', :'seventeen', types => '{wanted}') p \gset page_
SELECT :page_entries AS entries, :'page_more' AS more, (SELECT op FROM feed_read(NULL::"Odd ""Name"", with a comma", :'seventeen', types => '{wanted}')) AS op, list('{wanted}', 100, :'page_next') AS next;
SELECT list('{*}', 1, :'page_next') AS passed;

--
-- Under row security the executor comes first: how far a page gets does not
-- tell whether a row that is hidden would have been wanted.
--
GRANT SELECT ON :odd TO regress_feedpub_types;
ALTER TABLE :odd ENABLE ROW LEVEL SECURITY;
CREATE POLICY few ON :odd FOR SELECT TO regress_feedpub_types USING (message_type IN ('Order', 'OrderPaid', 'StockCounted'));
SET ROLE regress_feedpub_types;
SELECT * FROM wanted('{Order,StockCounted}', 4);
SELECT count(*) AS ends, count(DISTINCT cursor) AS cursors FROM unnest('{OrderPlaced,OrderPaid,*,nothing}'::text[]) type, feed_read(NULL::"Odd ""Name"", with a comma", '', 3, types => ARRAY[type]) WHERE op = 'end';
RESET ROLE;
ALTER TABLE :odd DISABLE ROW LEVEL SECURITY;
DROP POLICY few ON :odd;

--
-- The types of a change feed are the relations.
--
SELECT feed_create_changes('changes');
INSERT INTO changes (op, relation, row) SELECT op, relation, to_json(n) FROM unnest('{insert,insert,truncate,truncate,update,insert}'::text[], '{public.orders,shop.orders,public.orders,shop.orders,public.order_lines,public.t}'::text[]) WITH ORDINALITY t (op, relation, n);
INSERT INTO changes (op, row) VALUES ('message', '7');
CALL feed_publish('changes');
SELECT types, string_agg((entry).row #>> '{}', ' ') FROM unnest(ARRAY['{public.orders}', '{public.o*}', '{shop.*,public.t}', '{""}', '{*}', '{orders}']) types, feed_read(NULL::changes, types => types::text[]) GROUP BY types ORDER BY types COLLATE "C";

--
-- What is refused
--
CREATE FUNCTION failure(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	state text; message text; detail text; hint text;
BEGIN
	EXECUTE statement;
	RETURN 'none';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
	RETURN concat_ws(' / ', state, message, nullif(detail, ''), nullif(hint, ''));
END $$;
SELECT failure('SELECT list(''{}'')');
SELECT failure('SELECT list(''{OrderPaid,NULL}'')');
SELECT failure('SELECT list(''{{OrderPaid},{Order}}'')');
SELECT failure('SELECT list(array_fill(''Order''::text, ''{1001}''))');
SELECT list(array_fill('Order'::text, '{1000}'));
CREATE TABLE t (id int PRIMARY KEY, message_type text);
SELECT feed_attach('t');
SELECT failure('SELECT feed_page(''t'', types => ''{a}'')');
SELECT failure('SELECT * FROM feed_read(NULL::t, types => ''{a}'')');
SELECT count(*) AS "all" FROM feed_read(NULL::t, types => '{a,*}');
-- Other columns of that name; the type may be limited, or a domain.
ALTER TABLE :odd ALTER message_type TYPE varchar(1000000);
SELECT list('{OrderPaid}');
CREATE DOMAIN kind AS text;
ALTER TABLE :odd ALTER message_type TYPE kind;
SELECT list('{OrderPaid}');
ALTER TABLE :odd ALTER message_type TYPE bytea USING message_type::text::bytea;
SELECT failure('SELECT list(''{OrderPaid}'')');
ALTER TABLE :odd DROP message_type;
SELECT failure('SELECT list(''{OrderPaid}'')');
SELECT length(list(NULL)) > 0 AS "all";

DROP FUNCTION list, wanted, failure;
SELECT feed_drop(:'odd'), feed_drop('changes');
DROP TABLE t, whole;
DROP DOMAIN kind;
DROP ROLE regress_feedpub_types;
