-- If the JSON of a row cannot be made, its entry has an error instead, and the
-- others are delivered.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
-- Entries, less what differs from run to run
CREATE FUNCTION steady(j json) RETURNS json LANGUAGE sql AS $$
	SELECT regexp_replace(j::text, '"cursor": "[^"]*", |, "xid": [^,]*, "published_at": ("[^"]*"|null)', '', 'g')::json
$$;
SELECT feed_stop_worker() IS NOT NULL AS stopped;
SET feedpub.read_wait = 0;
-- All pages of a feed, one after the other, of so many rows.
CREATE FUNCTION walk(feed regclass, max_rows int) RETURNS TABLE (page int, entry text) LANGUAGE plpgsql AS $$
DECLARE
	p json := feed_page(feed, '', max_rows);
BEGIN
	page := 1;
	LOOP
		RETURN QUERY SELECT walk.page, CASE WHEN length(s) > 250 THEN length(s)::text ELSE s END
			FROM json_array_elements(p -> 'entries') e, CAST(steady(e) AS text) s;
		EXIT WHEN p ->> 'more' = 'false' OR page = 10;
		p := feed_page(feed, p ->> 'cursor', max_rows);
		page := page + 1;
	END LOOP;
END $$;

--
-- Control characters are six times as long in JSON.
--
SELECT feed_create('outbox', 'text');
INSERT INTO outbox (message_id, message_type, data, scheduled)
	VALUES ('00000000-0000-0000-0000-000000000001', 'small', '1', '2024-01-01 00:00+00');
INSERT INTO outbox (message_id, message_type, data, scheduled)
	VALUES ('00000000-0000-0000-0000-000000000002', 'controls', repeat(E'\x01', 190 * 1024 * 1024), '2024-01-01 00:00+00');
INSERT INTO outbox (message_id, message_type, data, scheduled)
	VALUES ('00000000-0000-0000-0000-000000000003', 'small', '2', '2024-01-01 00:00+00');
CALL feed_publish();
SET timezone = 'UTC';
SELECT * FROM walk('outbox', 1);
SELECT * FROM walk('outbox', 10);
SELECT feed_subscribe('all', 'outbox', 'earliest') <> '' AS placed;
SELECT op, key, row ->> 'message_type' AS type, error FROM feed_poll('all', 10);
SELECT feed_unsubscribe('all');
SELECT feed_drop('outbox');
-- A row is bounded, also where none of its columns is too large; and in jsonb.
SELECT feed_create('outbox');
ALTER TABLE outbox ADD COLUMN more text;
INSERT INTO outbox (message_id, message_type, data, more)
	SELECT '00000000-0000-0000-0000-000000000001', 'both', to_jsonb(t), t FROM repeat(E'\x02', 22 * 1024 * 1024) t;
INSERT INTO outbox (message_id, message_type, data)
	VALUES ('00000000-0000-0000-0000-000000000002', 'jsonb', to_jsonb(repeat(E'\x01', 44 * 1024 * 1024)));
CALL feed_publish();
SELECT page, left(entry, 120) AS entry FROM walk('outbox', 10);
-- A message_key that is too large with its row, and one that is by itself
DELETE FROM outbox;
INSERT INTO outbox (message_key, message_type, data)
	SELECT t, 'both', '1' FROM repeat(E'\x02', 22 * 1024 * 1024) t;
INSERT INTO outbox (message_key, message_type, data)
	SELECT t, 'key', '1' FROM repeat(E'\x02', 44 * 1024 * 1024) t;
CALL feed_publish();
SELECT page, length(e -> 'key' ->> 'message_key') / 1024 / 1024 AS key, e ->> 'error' AS error
	FROM LATERAL (SELECT feed_page('outbox', '', 10) AS first OFFSET 0) f,
		LATERAL (SELECT 1 AS page, first AS p UNION ALL SELECT 2, feed_page('outbox', first ->> 'cursor', 10)) p,
		json_array_elements(p -> 'entries') e;
SELECT feed_drop('outbox');

--
-- A value that its type does not know: a row without it, a key without its row.
--
CREATE TYPE mood AS ENUM ('sad', 'happy', 'gone');
CREATE TABLE kv (id int PRIMARY KEY, m mood, ms mood[]);
CREATE TABLE moods (m mood PRIMARY KEY, n int);
INSERT INTO kv VALUES (1, 'sad', '{happy}'), (2, 'gone', NULL), (3, 'happy', '{sad,gone}'), (4, 'happy', '{sad,happy}');
INSERT INTO moods VALUES ('sad', 1), ('gone', 2), ('happy', 3);
SELECT feed_attach('kv') IS NULL AS attached, feed_attach('moods') IS NULL AS attached;
UPDATE kv SET id = id + 10 WHERE id = 3;
DELETE FROM pg_enum WHERE enumtypid = 'mood'::regtype AND enumlabel = 'gone';
CALL feed_publish();
SELECT page, regexp_replace(entry, 'enum: \d+', 'enum: N') AS entry FROM walk('kv', 2);
SELECT page, regexp_replace(entry, 'enum: \d+', 'enum: N') AS entry FROM walk('moods', 10);
SELECT feed_subscribe('all', 'kv', 'earliest') <> '' AS placed;
SELECT op, key, row, regexp_replace(error, 'enum: \d+', 'enum: N') AS error FROM feed_poll('all', 10);
-- Parked, it comes again with its error.
SELECT count(*) FROM (SELECT feed_ack('all', receipt) FROM feed_poll('all', 1)) a;
SELECT receipt AS broken FROM feed_poll('all', 1) \gset
SELECT feed_nack('all', :'broken', 'broken', delay => '0') IS NOT NULL AS parked;
SELECT op, key, row FROM feed_poll('all', 1);
SELECT feed_ack('all', receipt) FROM feed_poll('all', 1);
SELECT op, key, row, regexp_replace(error, 'enum: \d+', 'enum: N') AS error FROM feed_poll('all', 1);
-- In a transaction that goes on
BEGIN;
INSERT INTO kv VALUES (5);
SELECT count(*) FROM feed_poll('all', 10);
SAVEPOINT s;
SELECT count(*) FROM feed_poll('all', 10);
COMMIT;
SELECT count(*) FROM kv WHERE id = 5;
-- A page that is cancelled is no page.
ALTER TABLE kv ADD COLUMN a int[];
INSERT INTO kv (id, a) VALUES (6, array_fill(0, ARRAY[10000000]));
CALL feed_publish();
SET statement_timeout = '20ms';
SELECT length(feed_page('kv', '', 10)::text);
RESET statement_timeout;
SELECT feed_unsubscribe('all');

--
-- A value that is nested too deeply for the stack is the row's error, but not
-- where the caller has used up the stack: then there is no page.
--
CREATE TABLE nested (id int PRIMARY KEY, path jsonpath);
SELECT feed_attach('nested') IS NULL AS attached;
INSERT INTO nested SELECT i, ('$ ? ' || repeat('(!', n) || '(@ == 1)' || repeat(')', n))::jsonpath
	FROM (VALUES (1, 1), (2, 3000), (3, 2)) v (i, n);
CALL feed_publish();
SET max_stack_depth = '300kB';
SELECT * FROM walk('nested', 10);
SELECT feed_subscribe('all', 'nested', 'earliest') <> '' AS placed;
SELECT op, row ->> 'id' AS id, error FROM feed_poll('all', 10);
UPDATE nested SET path = (SELECT ('$ ? ' || repeat('(!', 200) || '(@ == 1)' || repeat(')', 200))::jsonpath) WHERE id = 2;
CALL feed_publish();
-- From so many calls of itself: how many entries have an error, or NULL if there
-- is no page.
CREATE FUNCTION errors_below(calls int) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
	RETURN CASE WHEN calls > 0 THEN errors_below(calls - 1)
		ELSE (SELECT count(e ->> 'error') FROM json_array_elements(feed_page('nested', '', 10) -> 'entries') e) END;
END $$;
CREATE FUNCTION errors_or_none(calls int) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
	RETURN errors_below(calls);
EXCEPTION WHEN statement_too_complex THEN
	RETURN NULL;
END $$;
SELECT DISTINCT errors_or_none(calls) AS errors FROM generate_series(0, 300, 3) calls ORDER BY errors;
RESET max_stack_depth;
SELECT feed_unsubscribe('all');
--
-- Corrupt storage is the server's, and hides a value that may be elsewhere.
--
ALTER TABLE nested ADD COLUMN long text;
ALTER TABLE nested ALTER COLUMN long SET STORAGE EXTERNAL;
UPDATE nested SET long = repeat('x', 10000) WHERE id = 1;
CALL feed_publish();
SELECT reltoastrelid::regclass AS toast FROM pg_class WHERE oid = 'nested'::regclass \gset
UPDATE pg_class SET relkind = 'r' WHERE oid = :'toast'::regclass;
DELETE FROM :toast;
UPDATE pg_class SET relkind = 't' WHERE oid = :'toast'::regclass;
\set VERBOSITY sqlstate
SELECT feed_page('nested', '', 10);
\set VERBOSITY default
SELECT feed_detach('kv'), feed_detach('moods'), feed_detach('nested');
DROP TABLE nested;
DROP FUNCTION errors_below, errors_or_none;
DROP TABLE kv, moods;
DROP TYPE mood;
DROP FUNCTION walk;
DROP FUNCTION steady;
