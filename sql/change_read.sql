-- Reading a change feed in published order: its wire format, and where moments
-- end.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
SELECT feed_stop_worker() IS NOT NULL AS stopped;
SET feedpub.read_wait = 0;
CREATE ROLE regress_feedpub_changes;
SELECT feed_create_changes('changes');
-- Entries, less what differs from run to run
CREATE FUNCTION steady(j json) RETURNS text LANGUAGE sql AS $$
	SELECT regexp_replace(j::text, '"cursor": "[^"]*"|"xid": "[0-9]*"|"published_at": "[^"]*"', '_', 'g')
$$;

--
-- The wire format: each op, and what it has
--
INSERT INTO changes (op, relation, key, old_key, "row", old, error, statement) VALUES
	('insert', 'public.a', '{"id": 1}', NULL, '{"id": 1, "v": "x"}', NULL, NULL, NULL),
	('update', 'public.a', '{"id":  1}', NULL, '{"id": 1, "v": "y"}', '{"v": "x"}', NULL, NULL),
	('update', 'public.a', '{"id": 2}', '{"id": 1}', '{"id": 2, "v": "y"}', '{"id": 1}', NULL, NULL),
	('delete', 'public."Odd ""Name"""', '{"id": 2}', NULL, NULL, '{"id": 2, "v": "y"}', NULL, NULL),
	('insert', 'public.a', '{"id": 3}', NULL, NULL, NULL, '22P02: it "fails"', NULL),
	('truncate', 'public.a', NULL, NULL, NULL, NULL, NULL, 7),
	('truncate', 'public.b', NULL, NULL, NULL, NULL, NULL, 7),
	('message', NULL, '"k"', NULL, '[1, "two"]', NULL, NULL, NULL);
INSERT INTO changes ("row") VALUES ('null'), ('{"lines":
	2}');
INSERT INTO changes (op) VALUES ('an op of its own');
CALL feed_publish('changes');
SELECT steady(e) AS entry FROM json_array_elements(feed_page('changes') -> 'entries') e;
SELECT p ->> 'more' AS more, p ->> 'moment' AS moment, (p ->> 'cursor') = feed_head('changes') AS at_head FROM feed_page('changes') p;
SELECT r.op, (r.entry).op AS entry_op, (r.entry).relation, (r.entry).key, (r.entry)."row", (r.entry).statement, r.moment FROM feed_read(NULL::changes) r;
-- as lines, without a line break in an entry
SELECT count(*) AS lines, count(*) FILTER (WHERE line LIKE '{"cursor": "%') AS entries FROM string_to_table(feedpub._page_lines('changes'), E'\n') line;

SELECT split_part(line, ' ', 2) AS more, split_part(line, ' ', 4) AS kind, split_part(line, ' ', 5) AS seconds FROM string_to_table(feedpub._page_lines('changes'), E'\n') line WHERE line NOT LIKE '{%';
SELECT split_part(line, ' ', 2) AS more, split_part(line, ' ', 4) AS kind FROM string_to_table(feedpub._page_lines('changes', '', 2), E'\n') line WHERE line NOT LIKE '{%';
-- as CloudEvents, whose data is the entry
SELECT line::json ->> 'type' AS type, line::json ->> 'subject' AS subject, line::json ->> 'method' AS method, line::json ->> 'error' AS error, (line::json -> 'data')::text = e.entry::text AS same
FROM string_to_table(feedpub._page_events('changes'), E'\n') WITH ORDINALITY l (line, n) JOIN json_array_elements(feed_page('changes') -> 'entries') WITH ORDINALITY e (entry, n) USING (n) ORDER BY n;

--
-- A subscription
--
SELECT feed_subscribe('copy', 'changes', start => 'earliest') IS NOT NULL AS copy;
SELECT op, relation, key, old_key, "row", old, error, statement, moment, attempt FROM feed_poll('copy', 20);
SELECT op, (entry).relation, (entry).key, moment FROM feed_poll_rows('copy', NULL::changes, 3);
-- What is parked comes alone, and while it is parked nothing ends a moment.
SELECT receipt FROM feed_poll('copy', 3) OFFSET 2 \gset
SELECT feed_park('copy', :'receipt', 'no');
SELECT op, relation, key, "row" IS NOT NULL AS "row", moment FROM feed_poll('copy', 20) WHERE relation IS NULL OR statement IS NULL;
SELECT op, relation, key, message FROM feedpub.parked;
SELECT feed_ack('copy', receipt) FROM (SELECT last_value(receipt) OVER () AS receipt FROM feed_poll('copy', 20) LIMIT 1) p;
SELECT feed_retry('copy');
SELECT op, relation, key, old_key, "row", old, moment FROM feed_poll('copy', 20);
-- It comes as it was if its row is gone.
DELETE FROM changes WHERE key::text = '{"id": 2}';
SELECT op, relation, key, old_key, "row", old, moment FROM feed_poll('copy', 20);
SELECT op, (entry).op AS entry_op, moment FROM feed_poll_rows('copy', NULL::changes);
-- A truncate cannot be parked.
SELECT feed_seek('copy', 'earliest') IS NOT NULL AS back;
SELECT receipt FROM feed_poll('copy', 20) WHERE relation = 'public.b' \gset
SELECT feed_park('copy', :'receipt', 'no');
-- a delete can, and comes again
SELECT receipt FROM feed_poll('copy', 20) WHERE op = 'insert' LIMIT 1 \gset
SELECT feed_park('copy', :'receipt', 'no'), feed_retry('copy');
SELECT feed_ack('copy', receipt) FROM (SELECT last_value(receipt) OVER () AS receipt FROM feed_poll('copy', 20) LIMIT 1) p;
SELECT op, relation, key FROM feed_poll('copy', 20);
SELECT feed_unsubscribe('copy');

--
-- Shards: the key as text; a TRUNCATE is in all; a key that changes concerns two
--
SELECT feed_head('changes') AS head \gset
INSERT INTO changes (op, relation, key, old_key, "row", old) SELECT 'update', 'public.a', json_build_object('id', i), json_build_object('id', i + 1), json_build_object('id', i, 'v', 'v'), json_build_object('id', i + 1) FROM generate_series(1, 20) i;
INSERT INTO changes (op, relation, statement) VALUES ('truncate', 'public.a', 8);
INSERT INTO changes (relation, "row") VALUES (NULL, '1'), ('r', '2');
INSERT INTO changes (op, error) VALUES ('insert', 'no key');
CALL feed_publish('changes');
CREATE TABLE by_shard AS SELECT s AS shard, r.op AS delivered, (r.entry).*, r.moment FROM generate_series(0, 2) s, feed_read(NULL::changes, :'head', 100, s, 3) r WHERE r.op <> 'end';
SELECT delivered, count(*), count(DISTINCT shard) AS shards FROM by_shard WHERE delivered NOT IN ('delete', 'update') GROUP BY delivered ORDER BY delivered;
CREATE FUNCTION shard_of(key json) RETURNS int LANGUAGE sql AS $$
	SELECT (('x' || left(encode(sha256(convert_to('public.a' || E'\x1f' || key, current_setting('server_encoding'))), 'hex'), 8))::bit(32)::bigint & x'ffffffff'::bigint)::bigint % 3
$$;
-- the new key's has the row, the old key's a delete, one that has both the whole
SELECT count(*) AS updates, bool_and(shard = shard_of(key)) AS in_shard, bool_and((old_key IS NOT NULL) = (shard_of(old) = shard)) AS whole, bool_and("row" IS NOT NULL) AS with_row
	FROM by_shard WHERE delivered = 'update';
SELECT count(*) > 0 AS deletes, bool_and(op = 'delete') AS op, bool_and(shard = shard_of(key)) AS in_shard, bool_and(key::text = old::text) AS old, bool_or(old_key IS NOT NULL OR "row" IS NOT NULL) AS more
	FROM by_shard WHERE delivered = 'delete';
SELECT count(*) FILTER (WHERE delivered = 'update' AND old_key IS NOT NULL) * 2 + count(*) FILTER (WHERE delivered = 'update' AND old_key IS NULL) + count(*) FILTER (WHERE delivered = 'delete') AS sides FROM by_shard;
-- and so as JSON, and in a subscription, where it may be parked
SELECT count(*) AS same FROM by_shard b JOIN (SELECT s AS shard, e FROM generate_series(0, 2) s, json_array_elements(feed_page('changes', :'head', 100, s, 3) -> 'entries') e) j
	ON j.shard = b.shard AND j.e ->> 'op' = delivered AND (j.e -> 'key')::text IS NOT DISTINCT FROM coalesce(b.key::text, 'null') AND (j.e -> 'old_key')::text IS NOT DISTINCT FROM b.old_key::text AND j.e ->> 'relation' IS NOT DISTINCT FROM b.relation
	AND (j.e -> 'row')::text IS NOT DISTINCT FROM b."row"::text WHERE delivered IN ('update', 'delete');
SELECT feed_subscribe('shards', 'changes', shards => 3, start => :'head') IS NOT NULL AS shards;
CREATE TABLE polled (receipt text, op text, old_key json, moment bool);
DO $$
DECLARE
	r record;
	parked int := 0;
BEGIN
	FOR i IN 1..8 LOOP
		FOR r IN SELECT * FROM feed_poll('shards', 100, 'one') LOOP
			IF r.op = 'delete' AND parked = 0 THEN
				parked := feed_park('shards', r.receipt)::int;
			END IF;
			INSERT INTO polled VALUES (r.receipt, r.op, r.old_key, r.moment);
		END LOOP;
		IF FOUND THEN
			PERFORM feed_ack('shards', r.receipt), feed_retry('shards');
		END IF;
	END LOOP;
END $$;
SELECT count(*) FILTER (WHERE op = 'delete') - (SELECT count(*) FROM by_shard WHERE delivered = 'delete') AS again, count(*) FILTER (WHERE op = 'update') AS updates, count(*) FILTER (WHERE op = 'delete' AND old_key IS NOT NULL) AS whole FROM polled;
SELECT feed_unsubscribe('shards');
DROP TABLE by_shard, polled;

-- If the poll itself acknowledges the last parked entry, what it delivers ends a moment.
SELECT feed_head('changes') AS head \gset
INSERT INTO changes (relation, key, "row") VALUES ('public.a', '{"id": 1}', '1'), ('public.a', '{"id": 2}', '2');
CALL feed_publish('changes');
SELECT feed_subscribe('again', 'changes', start => :'head') IS NOT NULL AS again;
SELECT receipt FROM feed_poll('again', 1) \gset
SELECT feed_park('again', :'receipt', 'no'), feed_ack('again', :'receipt'), feed_retry('again');
SELECT "row", moment, receipt FROM feed_poll('again') \gset
SELECT :'row' AS "row", :'moment' AS moment;
SELECT "row", moment FROM feed_poll('again', ack => :'receipt');
SELECT feed_unsubscribe('again');

--
-- A client's encoding that cannot have it
--
SELECT feed_head('changes') AS head \gset
INSERT INTO changes (op, relation, key, "row", old) VALUES
	('insert', 'public.a', '{"id": 1}', '{"v": "☃"}', NULL), ('update', 'public.a', '{"id": 1}', '{"v": "x"}', '{"v": "☃"}'),
	('insert', 'public.a', '{"id": "☃"}', '{"v": "x"}', NULL), ('insert', 'public.☃', '{"id": 1}', NULL, NULL), ('insert', 'public.a', '{"id": 2}', NULL, NULL);
CALL feed_publish('changes');
SET client_encoding = latin1;
SELECT steady(e) AS entry FROM json_array_elements(feed_page('changes', :'head') -> 'entries') e;
SELECT feed_subscribe('latin', 'changes', start => :'head') IS NOT NULL AS latin;
SELECT op, relation, key, "row", old, left(error, 30) AS error FROM feed_poll('latin');
SELECT feed_unsubscribe('latin');
RESET client_encoding;

--
-- Moments: the same rows have the mark, whatever the size of the page
--
-- the rows from a cursor on, in pages of a size; a mark at the end of a page counts for the row before
CREATE FUNCTION marks(after text, size int, s int DEFAULT NULL, n int DEFAULT NULL, t text[] DEFAULT NULL) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	result text := '';
	r record;
	n_rows int;
BEGIN
	LOOP
		n_rows := 0;
		FOR r IN SELECT x.cursor, x.op, x.moment, (x.entry)."row" #>> '{}' AS v FROM feed_read(NULL::changes, after, size, s, n, t) x LOOP
			n_rows := n_rows + 1;
			after := r.cursor;
			result := result || CASE r.op WHEN 'end' THEN '' ELSE ' ' || r.v END;
			result := result || CASE WHEN r.moment AND result NOT LIKE '%.' THEN '.' ELSE '' END;
		END LOOP;
		EXIT WHEN n_rows = 0;
	END LOOP;
	RETURN result;
END $$;
-- and as pages of JSON
CREATE FUNCTION json_marks(after text, size int, s int DEFAULT NULL, n int DEFAULT NULL) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	result text := '';
	p json;
BEGIN
	LOOP
		p := feed_page('changes', after, size, s, n);
		result := result || coalesce((SELECT string_agg(' ' || (e ->> 'row') || CASE WHEN e ->> 'moment' = 'true' THEN '.' ELSE '' END, '' ORDER BY i) FROM json_array_elements(p -> 'entries') WITH ORDINALITY x (e, i)), '');
		IF p ->> 'moment' = 'true' AND result NOT LIKE '%.' THEN
			result := result || '.';
		END IF;
		EXIT WHEN after = p ->> 'cursor';
		after := p ->> 'cursor';
	END LOOP;
	RETURN result;
END $$;
CREATE PROCEDURE entries(VARIADIC v int[]) LANGUAGE plpgsql AS $$
DECLARE
	i int;
BEGIN
	FOREACH i IN ARRAY v LOOP
		INSERT INTO changes (relation, key, "row") VALUES (CASE WHEN i % 2 = 0 THEN 'even' ELSE 'odd' END, to_json(i), to_json(i));
		COMMIT;
	END LOOP;
	CALL feed_publish('changes');
END $$;
SELECT feed_head('changes') AS head \gset
CALL entries(1, 2, 3);
CALL entries(4);
CALL entries(5, 7);
CALL entries(6, 8);
SELECT DISTINCT marks(:'head', size) FROM generate_series(1, 9) size;
SELECT DISTINCT json_marks(:'head', size) FROM generate_series(1, 9) size;
-- what is filtered out after it
SELECT DISTINCT marks(:'head', size, t => '{odd}') FROM generate_series(1, 9) size;
SELECT DISTINCT marks(:'head', size, t => '{even}') FROM generate_series(1, 9) size;
SELECT s, count(DISTINCT marks(:'head', size, s, 3)), bool_and(marks(:'head', size, s, 3) = json_marks(:'head', size, s, 3)) AS same, bool_and(marks(:'head', size, s, 3) LIKE '%.') AS ends FROM generate_series(1, 9) size, generate_series(0, 2) s GROUP BY s ORDER BY s;
-- a removed row; a mark that no row has, at the end of a page
DELETE FROM changes WHERE "row"::text IN ('3', '8');
SELECT DISTINCT marks(:'head', size) FROM generate_series(1, 9) size;
SELECT r.op, r.moment FROM feed_read(NULL::changes, (SELECT cursor FROM feed_read(NULL::changes, :'head') WHERE (entry)."row"::text = '2')) r LIMIT 1;
DELETE FROM changes WHERE "row"::text = '4';
SELECT r.op, (r.entry)."row", r.moment FROM feed_read(NULL::changes, (SELECT cursor FROM feed_read(NULL::changes, :'head') WHERE (entry)."row"::text = '2'), 1) r;
DELETE FROM changes WHERE "row"::text IN ('5', '6', '7');
SELECT r.op, (r.entry)."row", r.moment FROM feed_read(NULL::changes, (SELECT cursor FROM feed_read(NULL::changes, :'head') WHERE (entry)."row"::text = '2'), 1) r;
SELECT steady(feed_page('changes', (SELECT cursor FROM feed_read(NULL::changes, :'head') WHERE (entry)."row"::text = '2')));
SELECT steady(feed_page('changes', feed_head('changes')));

--
-- A backlog that is cut: only the last part ends one
--
SELECT feed_head('changes') AS head \gset
SET feedpub.max_batch_transactions = 2;
CALL entries(1, 2, 3, 4, 5);
SELECT part FROM feedpub._batch WHERE feed = 'changes'::regclass ORDER BY sync_id DESC LIMIT 3;
CALL entries(6, 7);
CALL entries(8);
SELECT DISTINCT marks(:'head', size) FROM generate_series(1, 9) size;
SELECT DISTINCT json_marks(:'head', size) FROM generate_series(1, 9) size;
SELECT DISTINCT marks(:'head', size, t => '{odd}') FROM generate_series(1, 9) size;
-- a last part of which nothing is to be seen is written all the same, once
CREATE PROCEDURE rolled_back() LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO changes (relation, "row") VALUES ('odd', '99');
	ROLLBACK;
	CALL feed_publish('changes');
END $$;
INSERT INTO changes (relation, key, "row") VALUES ('odd', '9', '9');
INSERT INTO changes (relation, key, "row") VALUES ('even', '10', '10');
CALL rolled_back();
SELECT DISTINCT marks(:'head', size) FROM generate_series(1, 9) size;
SELECT count(*) AS batches FROM feedpub._batch WHERE feed = 'changes'::regclass \gset
CALL rolled_back();
SELECT count(*) - :batches AS more FROM feedpub._batch WHERE feed = 'changes'::regclass;
RESET feedpub.max_batch_transactions;

--
-- Merged batches: those that are parts stay, the others end at moments
--
SELECT cursor AS inside FROM feed_read(NULL::changes, :'head') WHERE (entry)."row"::text = '6' \gset
SELECT cursor AS inside_part FROM feed_read(NULL::changes, :'head') WHERE (entry)."row"::text = '3' \gset
CALL entries(11, 12, 13);
CALL entries(14);
UPDATE feedpub._batch SET published_at = '2000-01-01';
SELECT feedpub._merge_batches('changes') > 0 AS merged;
SELECT part, merged_from IS NOT NULL AS merged, transactions FROM feedpub._batch WHERE feed = 'changes'::regclass ORDER BY sync_id DESC LIMIT 8;
SELECT DISTINCT marks(:'head', size) FROM generate_series(1, 9) size;
SELECT DISTINCT marks(:'inside', size) FROM generate_series(1, 9) size;
SELECT DISTINCT marks(:'inside_part', size) FROM generate_series(1, 9) size;

--
-- Row security: what is hidden has no mark
--
SELECT feed_head('changes') AS head \gset
CALL entries(1, 2);
CALL entries(4);
CALL entries(3);
GRANT SELECT ON changes TO regress_feedpub_changes;
ALTER TABLE changes ENABLE ROW LEVEL SECURITY;
CREATE POLICY odd ON changes USING (relation = 'odd');
SET ROLE regress_feedpub_changes;
SELECT r.op, (r.entry)."row", r.moment FROM feed_read(NULL::changes, :'head') r;
SELECT DISTINCT marks(:'head', size) FROM generate_series(1, 9) size;
RESET ROLE;

--
-- A column that is not there, or is of another type
--
ALTER TABLE changes RENAME statement TO number;
SELECT feed_page('changes');
ALTER TABLE changes RENAME number TO statement;
ALTER TABLE changes ALTER old TYPE jsonb;
SELECT count(*) FROM feed_read(NULL::changes);
ALTER TABLE changes ALTER old TYPE json, ADD more text DEFAULT 'x';
SELECT steady(feed_page('changes', :'head', 1));

-- other kinds of feeds have no moments
SELECT feed_create('letters');
INSERT INTO letters (message_type, data) VALUES ('t', '1');
CALL feed_publish('letters');
SELECT op, moment FROM feed_read(NULL::letters);
SELECT p -> 'moment' IS NULL AND p -> 'entries' -> 0 -> 'moment' IS NULL AS none FROM feed_page('letters') p;
SELECT feed_drop('letters');
SELECT feed_drop('changes');
DROP FUNCTION steady, shard_of, marks, json_marks;
DROP PROCEDURE entries, rolled_back;
DROP ROLE regress_feedpub_changes;
