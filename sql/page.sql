-- feed_page(): the same pages as JSON, the body of an HTTP response.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
-- Here batches are made by hand: no worker, and reads do not wait for one.
SELECT feed_stop_worker() IS NOT NULL AS stopped;
DO $$
BEGIN
	WHILE EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'feedpub worker' AND datname = current_database()) LOOP
		PERFORM pg_stat_clear_snapshot();
	END LOOP;
END $$;
SET feedpub.read_wait = 0;
SET timezone = 'UTC';
SELECT feed_create('"Odd ""Name"", with a comma"');
ALTER TABLE "Odd ""Name"", with a comma" ALTER data DROP NOT NULL;
-- Cursors differ from run to run; they are shown as the number in the list of
-- those that were delivered.
CREATE TABLE cursors (n int GENERATED ALWAYS AS IDENTITY, cursor text);
CREATE FUNCTION number(c text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	IF c = '' THEN
		RETURN '';
	END IF;
	IF NOT EXISTS (SELECT FROM cursors WHERE cursor = c) THEN
		INSERT INTO cursors (cursor) VALUES (c);
	END IF;
	RETURN (SELECT 'cursor ' || n FROM cursors WHERE cursor = c);
END $$;
-- A page with its cursors, xids and times replaced
CREATE FUNCTION page(feed regclass, after text, max_rows int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	p text := feed_page(feed, after, max_rows);
	c text;
BEGIN
	FOR c IN SELECT m[1] FROM regexp_matches(p, '"cursor": "([^"]+)"', 'g') m LOOP
		p := replace(p, '"' || c || '"', '"' || number(c) || '"');
	END LOOP;
	p := regexp_replace(p, '"xid": "\d+"', '"xid": "N"', 'g');
	RETURN regexp_replace(p, '"published_at": "\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00"', '"published_at": "T"', 'g');
END $$;

--
-- The shape, exactly
--
SELECT p -> 'entries' AS entries, p ->> 'cursor' = feed_head('"Odd ""Name"", with a comma"') AS head, p -> 'more' AS more
	FROM feed_page('"Odd ""Name"", with a comma"', '', 10) p;
INSERT INTO "Odd ""Name"", with a comma" (publication_id, message_id, message_type, message_key, data, scheduled) VALUES
	('p', 'm1', 'first', 'k', '{"a": 1, "b": [true, null, "x"]}', '2026-01-02 03:04:05.678901+00'),
	('', 'm2', 'second', NULL, NULL, '2026-01-02 03:04:05Z');
-- Committed and not published: nothing yet
SELECT p -> 'entries' AS entries, p ->> 'cursor' = feed_head('"Odd ""Name"", with a comma"') AS head, p -> 'more' AS more
	FROM feed_page('"Odd ""Name"", with a comma"', '', 10) p;
CALL feed_publish('"Odd ""Name"", with a comma"');
\pset format unaligned
SELECT page('"Odd ""Name"", with a comma"', '', 10);
SELECT page('"Odd ""Name"", with a comma"', '', 1);
SELECT page('"Odd ""Name"", with a comma"', cursor, 1) FROM cursors WHERE n = 1;
SELECT page('"Odd ""Name"", with a comma"', cursor, 1) FROM cursors WHERE n = 2;
\pset format aligned
-- Its keys in order, its types
SELECT json_object_keys(feed_page('"Odd ""Name"", with a comma"', '', 1));
SELECT json_typeof(p -> 'entries'), json_typeof(p -> 'cursor'), json_typeof(p -> 'more'), length(p ->> 'cursor')
	FROM feed_page('"Odd ""Name"", with a comma"', '', 1) p;
SELECT json_object_keys(feed_page('"Odd ""Name"", with a comma"', '', 1) -> 'entries' -> 0);
SELECT json_object_keys(feed_page('"Odd ""Name"", with a comma"', '', 1) -> 'entries' -> 0 -> 'row');
-- xid and published_at are those of the row and its batch, whatever the time zone.
SET timezone = 'Asia/Kolkata';
SELECT e ->> 'xid' = o.feed_xid::text AS xid, (e ->> 'published_at')::timestamptz = b.published_at AS published_at,
		e ->> 'cursor' = r.cursor AS cursor, right(e ->> 'published_at', 6) AS zone
	FROM json_array_elements(feed_page('"Odd ""Name"", with a comma"', '', 10) -> 'entries') e
		JOIN "Odd ""Name"", with a comma" o ON o.message_id = e -> 'row' ->> 'message_id'
		JOIN feed_read(NULL::"Odd ""Name"", with a comma", '', 10) r ON (r.entry).message_id = o.message_id
		JOIN feedpub._batch b ON b.feed = '"Odd ""Name"", with a comma"'::regclass;
SET timezone = 'UTC';
-- row is the row, less the stamp.
SELECT count(*) AS differences FROM
	(SELECT n, to_jsonb(o) - 'feed_xid' - 'feed_pos' AS entry FROM (SELECT row_number() OVER (ORDER BY feed_pos) AS n, o FROM "Odd ""Name"", with a comma" o) o) o
	FULL JOIN ROWS FROM (json_array_elements(feed_page('"Odd ""Name"", with a comma"', '', 10) -> 'entries')) WITH ORDINALITY e (entry, n) USING (n)
	WHERE to_jsonb(o) -> 'entry' IS DISTINCT FROM e.entry::jsonb -> 'row';

--
-- cursor and more, at the edges: 5 rows in 2 batches
--
INSERT INTO "Odd ""Name"", with a comma" (message_id, message_type) VALUES ('m3', 'third'), ('m4', 'fourth'), ('m5', 'fifth');
CALL feed_publish('"Odd ""Name"", with a comma"');
CREATE FUNCTION walk(size int) RETURNS TABLE (entries text, more boolean, at_head boolean) LANGUAGE plpgsql AS $$
DECLARE
	c text := '';
	p json;
BEGIN
	FOR i IN 1..10 LOOP
		p := feed_page('"Odd ""Name"", with a comma"', c, size);
		EXIT WHEN i > 1 AND p ->> 'cursor' = c;
		c := p ->> 'cursor';
		entries := (SELECT string_agg(e -> 'row' ->> 'message_id', ' ') FROM json_array_elements(p -> 'entries') e);
		more := p ->> 'more';
		at_head := c = feed_head('"Odd ""Name"", with a comma"');
		RETURN NEXT;
	END LOOP;
END $$;
SELECT size, w.* FROM generate_series(1, 6) size, walk(size) w;
-- At the end the cursor is the one that was given.
SELECT p ->> 'cursor' = feed_head('"Odd ""Name"", with a comma"') AS same, p -> 'entries' AS entries, p ->> 'more' AS more
	FROM feed_page('"Odd ""Name"", with a comma"', feed_head('"Odd ""Name"", with a comma"'), 10) p;
-- The page is that of feed_read().
SELECT count(*) AS pages, count(*) FILTER (WHERE
		coalesce((SELECT array_agg(e -> 'row' ->> 'message_id') FROM json_array_elements(p -> 'entries') e), '{}') IS DISTINCT FROM
		coalesce((SELECT array_agg((entry).message_id) FROM feed_read(NULL::"Odd ""Name"", with a comma", c, size)), '{}')
		OR p ->> 'cursor' IS DISTINCT FROM
		coalesce((SELECT max(cursor COLLATE "C") FROM feed_read(NULL::"Odd ""Name"", with a comma", c, size)), c)) AS different
	FROM generate_series(1, 6) size, (SELECT '' AS c UNION SELECT cursor FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 10)) c,
		feed_page('"Odd ""Name"", with a comma"', c, size) p;
-- Each batch has its own time.
SELECT count(*) AS entries, count(DISTINCT e ->> 'published_at') AS times,
		bool_and((e ->> 'published_at')::timestamptz = b.published_at) AS same
	FROM json_array_elements(feed_page('"Odd ""Name"", with a comma"', '', 10) -> 'entries') WITH ORDINALITY e (e, n)
		JOIN (SELECT row_number() OVER (ORDER BY sync_id) AS batch, published_at FROM feedpub._batch
			WHERE feed = '"Odd ""Name"", with a comma"'::regclass) b ON b.batch = CASE WHEN n <= 2 THEN 1 ELSE 2 END;
-- What is deleted is passed; the cursor goes beyond it, once.
DELETE FROM "Odd ""Name"", with a comma" WHERE message_id IN ('m2', 'm4', 'm5');
SELECT size, w.* FROM generate_series(1, 3) size, walk(size) w;
DELETE FROM "Odd ""Name"", with a comma";
SELECT size, w.* FROM generate_series(1, 3) size, walk(size) w;
-- feedpub.max_page_rows caps it.
INSERT INTO "Odd ""Name"", with a comma" (message_id, message_type) SELECT 'n' || i, 'n' FROM generate_series(1, 5) i;
CALL feed_publish('"Odd ""Name"", with a comma"');
SET feedpub.max_page_rows = 2;
SELECT size, w.* FROM unnest('{2,3,2147483647}'::int[]) size, walk(size) w;
RESET feedpub.max_page_rows;
DROP FUNCTION walk;

--
-- Payload types, and what JSON must escape
--
SELECT feed_create('payload_text', 'text');
SELECT feed_create('payload_json', 'json');
SELECT feed_create('payload_bytea', 'bytea');
ALTER TABLE payload_text ALTER data DROP NOT NULL;
ALTER TABLE payload_json ALTER data DROP NOT NULL;
ALTER TABLE payload_bytea ALTER data DROP NOT NULL;
INSERT INTO payload_text (message_type, message_key, data) VALUES
	('quote "', 'backslash \', E'line\nfeed, tab\t, bell\007, \u00e9 \u20ac \U0001F600'),
	('', '', ''), ('json as text', NULL, '{"a": 1}'), ('slashes', '</script>', 'null');
INSERT INTO payload_json (message_type, data) VALUES
	('object', '{"b" : 1,  "a":2, "b":3}'), ('string', '"s"'), ('null', 'null'), ('no value', NULL),
	('number', '1.50e3'), ('lines', E'[1,\n 2]'), ('escapes', '"\u0041\n\ud83d\ude00"');
INSERT INTO payload_bytea (message_type, data) VALUES ('bytes', '\x00ff5c22'), ('none', ''), ('null', NULL);
CALL feed_publish();
\pset format unaligned
\pset tuples_only on
SELECT json_array_elements(feed_page(feed, '', 10) -> 'entries') -> 'row' -> 'message_type', json_array_elements(feed_page(feed, '', 10) -> 'entries') -> 'row' -> 'message_key', json_array_elements(feed_page(feed, '', 10) -> 'entries') -> 'row' -> 'data'
	FROM unnest('{payload_text,payload_json,payload_bytea}'::regclass[]) WITH ORDINALITY AS f (feed, n) ORDER BY n;
SELECT count(*) FROM payload_text o JOIN json_array_elements(feed_page('payload_text', '', 10) -> 'entries') e ON e -> 'row' ->> 'message_id' = o.message_id
	WHERE (o.message_type, o.message_key, o.data) IS NOT DISTINCT FROM (e -> 'row' ->> 'message_type', e -> 'key' ->> 'message_key', e -> 'row' ->> 'data');
-- bytea_output is the reader's.
SET bytea_output = escape;
SELECT json_array_elements(feed_page('payload_bytea', '', 10) -> 'entries') -> 'row' -> 'data';
RESET bytea_output;
-- timestamptz is ISO 8601 with the reader's offset, whatever DateStyle says.
SET datestyle = 'German';
SET timezone = 'Asia/Kolkata';
INSERT INTO payload_text (message_type, scheduled) VALUES ('time', '2026-01-02 03:04:05Z'), ('infinity', 'infinity');
CALL feed_publish();
SELECT json_array_elements(feed_page('payload_text', '', 10) -> 'entries') -> 'row' ->> 'scheduled' OFFSET 4;
RESET datestyle;
SET timezone = 'UTC';
-- Large payloads, compressed and stored elsewhere
INSERT INTO payload_text (message_type, data) VALUES ('compressed', repeat('abc"', 100000));
INSERT INTO payload_text (message_type, data) SELECT 'elsewhere', string_agg(md5(i::text), '') FROM generate_series(1, 20000) i;
CALL feed_publish();
SELECT r ->> 'message_type', length(r ->> 'data'), md5(r ->> 'data') = (SELECT md5(data) FROM payload_text WHERE message_type = r ->> 'message_type') AS same
	FROM json_array_elements(feed_page('payload_text', '', 100) -> 'entries') e, CAST(e -> 'row' AS json) r OFFSET 6;
DELETE FROM payload_text;

--
-- Columns that were added, dropped, renamed: an entry has those of now.
--
ALTER TABLE payload_text ADD COLUMN "Odd ""Column"", too" int DEFAULT 7, ADD COLUMN dropped text DEFAULT 'x';
INSERT INTO payload_text (message_id, message_type, data, scheduled) VALUES ('m1', 'added', 'a', '2026-01-02 03:04:05Z');
ALTER TABLE payload_text ADD COLUMN later int[] DEFAULT '{1,NULL}', ADD COLUMN nothing point, DROP COLUMN dropped;
INSERT INTO payload_text (message_id, message_type, data, scheduled, later, nothing) VALUES ('m2', 'and dropped', 'b', '2026-01-02 03:04:05Z', '{{1},{2}}', '(1,2)');
ALTER TABLE payload_text RENAME COLUMN data TO content;
CALL feed_publish();
SELECT e -> 'key', e -> 'row' FROM json_array_elements(feed_page('payload_text', '', 10) -> 'entries') e;
ALTER TABLE payload_text DROP COLUMN publication_id, DROP COLUMN message_type, DROP COLUMN scheduled, DROP COLUMN message_key;
SELECT e -> 'key', e -> 'row' FROM json_array_elements(feed_page('payload_text', '', 10) -> 'entries') e;
\pset tuples_only off
\pset format aligned

--
-- What it refuses
--
SELECT feed_page(NULL, '', 1);
\echo :SQLSTATE
SELECT feed_page('payload_json', NULL, 1);
\echo :SQLSTATE
SELECT feed_page('payload_json', '', NULL);
\echo :SQLSTATE
SELECT feed_page('payload_json', '', 0);
\echo :SQLSTATE
SELECT feed_page('payload_json', '', -1);
\echo :SQLSTATE
SELECT feed_page('payload_json', 'x', 1);
\echo :SQLSTATE
SELECT feed_page('cursors', '', 1);
\echo :SQLSTATE
SELECT feed_page('feedpub.feeds', '', 1);
\echo :SQLSTATE
\set VERBOSITY sqlstate
SELECT feed_page(0, '', 1);
\set VERBOSITY default
-- Rights and row security are the caller's.
CREATE ROLE regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
SELECT feed_page('payload_json', '', 1);
\echo :SQLSTATE
RESET ROLE;
GRANT SELECT ON payload_json TO regress_feedpub_reader;
ALTER TABLE payload_json ENABLE ROW LEVEL SECURITY;
CREATE POLICY few ON payload_json FOR SELECT USING (message_type IN ('string', 'number'));
CREATE FUNCTION walk(size int) RETURNS TABLE (entries text, more boolean) LANGUAGE plpgsql AS $$
DECLARE
	c text := '';
	p json;
BEGIN
	FOR i IN 1..10 LOOP
		p := feed_page('payload_json', c, size);
		EXIT WHEN p ->> 'cursor' = c;
		c := p ->> 'cursor';
		entries := (SELECT string_agg(e -> 'row' ->> 'message_type', ' ') FROM json_array_elements(p -> 'entries') e);
		more := p ->> 'more';
		RETURN NEXT;
	END LOOP;
END $$;
SET ROLE regress_feedpub_reader;
SELECT size, w.* FROM unnest('{1,3,10}'::int[]) size, walk(size) w;
RESET ROLE;
SELECT size, w.* FROM unnest('{3}'::int[]) size, walk(size) w;

DROP FUNCTION walk, page, number;
DROP TABLE cursors;
SELECT count(feed_drop(feed::text)) FROM feedpub.feeds;
DROP ROLE regress_feedpub_reader;
