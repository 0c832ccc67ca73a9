-- Deletes of table feeds expire: a consumer that has not passed them gets
-- PF002, and no other consumer does.
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
-- Details tell times.
\set VERBOSITY terse
SET feedpub.read_wait = 0;
CREATE TABLE "Odd ""Name"", with a comma" (id int PRIMARY KEY, v text);
CREATE VIEW tab AS SELECT id, v FROM "Odd ""Name"", with a comma";
INSERT INTO tab SELECT i, 'initial' FROM generate_series(1, 9) i;
CREATE TABLE other (id int PRIMARY KEY);
DO $$
DECLARE
	rest text;
BEGIN
	FOR rest IN SELECT feed_attach(t) FROM unnest('{"\"Odd \"\"Name\"\", with a comma\"",other}'::regclass[]) t LOOP
		IF rest <> '' THEN
			EXECUTE replace(rest, ' CONCURRENTLY', '');
		END IF;
	END LOOP;
END $$;
SELECT * FROM feed_check('"Odd ""Name"", with a comma"');
-- A consumer keeps a copy, and a cursor.
CREATE TABLE consumer (name text PRIMARY KEY, cursor text NOT NULL, copy jsonb NOT NULL DEFAULT '{}');
CREATE FUNCTION consume(who text, page_size int DEFAULT 2, pages int DEFAULT 1000) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	c consumer;
	r record;
	arrived bool;
BEGIN
	SELECT * INTO STRICT c FROM consumer WHERE name = who;
	FOR i IN 1..pages LOOP
		arrived := false;
		FOR r IN SELECT * FROM feed_read(NULL::"Odd ""Name"", with a comma", c.cursor, page_size) LOOP
			arrived := true;
			c.cursor := r.cursor;
			IF r.op = 'upsert' THEN
				c.copy := c.copy || jsonb_build_object((r.entry).id, (r.entry).v);
			ELSIF r.op = 'delete' THEN
				c.copy := c.copy - (r.entry).id::text;
			ELSIF r.op = 'truncate' THEN
				c.copy := '{}';
			END IF;
		END LOOP;
		EXIT WHEN NOT arrived;
	END LOOP;
	UPDATE consumer SET cursor = c.cursor, copy = c.copy WHERE name = who;
	RETURN CASE WHEN c.copy = (SELECT coalesce(jsonb_object_agg(id, v), '{}') FROM tab) THEN 'equal' ELSE c.copy::text END;
EXCEPTION WHEN SQLSTATE 'PF002' THEN
	RETURN SQLSTATE || ': ' || SQLERRM;
END $$;
CREATE VIEW state AS
	SELECT sync_id AS floor_sync_id, pos AS floor_pos, (SELECT string_agg(key[1], ' ' ORDER BY feed_pos) FROM feedpub._tombstone t WHERE t.feed = f.feed) AS tombstones
	FROM feedpub._floor f WHERE f.feed = '"Odd ""Name"", with a comma"'::regclass;
-- Batches get older.
CREATE PROCEDURE grow_old(by interval, up_to bigint DEFAULT NULL) LANGUAGE sql AS $$
	UPDATE feedpub._batch SET published_at = published_at - by
	WHERE feed = '"Odd ""Name"", with a comma"'::regclass AND (up_to IS NULL OR sync_id <= up_to)
$$;
SELECT feedpub._move_floor('"Odd ""Name"", with a comma"');
TABLE state;
-- A subscription that has read nothing yet
SELECT feed_subscribe('early', '"Odd ""Name"", with a comma"', 'earliest') <> '' AS subscribed;

--
-- Each consumer stops at another cursor.
--
INSERT INTO consumer VALUES ('in initial', '');
SELECT consume('in initial', 2, 1);
INSERT INTO consumer VALUES ('after initial', '');
SELECT consume('after initial');
INSERT INTO consumer SELECT 'head of then', feed_head('"Odd ""Name"", with a comma"'), (SELECT copy FROM consumer WHERE name = 'after initial');
SELECT left(cursor, 25) = (SELECT left(cursor, 25) FROM consumer WHERE name = 'after initial') AS same FROM consumer WHERE name = 'head of then';
DELETE FROM tab WHERE id = 1;
CALL feed_publish();
INSERT INTO consumer VALUES ('in batch 1, all of it', '');
SELECT consume('in batch 1, all of it');
DELETE FROM tab WHERE id IN (2, 3, 4);
UPDATE tab SET v = 'second' WHERE id = 5;
CALL feed_publish();
INSERT INTO consumer SELECT 'inside batch 2', cursor, copy FROM consumer WHERE name LIKE 'in batch 1%';
SELECT consume('inside batch 2', 1, 2);
INSERT INTO consumer SELECT 'at the end of batch 2', cursor, copy FROM consumer WHERE name = 'inside batch 2';
SELECT consume('at the end of batch 2');
INSERT INTO tab VALUES (1, 'third');
DELETE FROM tab WHERE id = 6;
CALL feed_publish();
INSERT INTO consumer SELECT 'in batch 3', cursor, copy FROM consumer WHERE name = 'at the end of batch 2';
SELECT consume('in batch 3', 1, 1);
SELECT sync_id, last_pos FROM feedpub._batch ORDER BY sync_id;
TABLE state;
-- They can all go on.
CREATE TABLE start AS TABLE consumer;
SELECT name, consume(name) FROM start ORDER BY name;
CREATE PROCEDURE go_back() LANGUAGE sql AS $$ TRUNCATE consumer; INSERT INTO consumer TABLE start $$;
CALL go_back();

--
-- Not before they are a quarter older than they need be
--
SHOW feedpub.tombstone_retention;
SELECT feedpub._move_floor('"Odd ""Name"", with a comma"');
CALL grow_old('8 days 17 hours');
SELECT feedpub._move_floor('"Odd ""Name"", with a comma"');
TABLE state;
-- The last batch never expires: a consumer that is at its beginning gets it.
CALL grow_old('2 hours', 1);
SELECT feedpub._move_floor('"Odd ""Name"", with a comma"');
TABLE state;
-- All that are old enough go at once, with those that are a quarter older.
SELECT name, consume(name) FROM start ORDER BY name;
-- What is refused does not say so by an empty page.
DO $$
DECLARE
	detail text;
	hint text;
BEGIN
	PERFORM feed_page('"Odd ""Name"", with a comma"', (SELECT cursor FROM start WHERE name = 'in initial'), 10);
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
	RAISE NOTICE '%: % % %', SQLSTATE, SQLERRM, regexp_replace(detail, 'since [-0-9]+ .*', 'since ...'), hint;
END $$;
SELECT feed_page('"Odd ""Name"", with a comma"', (SELECT cursor FROM start WHERE name = 'inside batch 2'), 10);
\echo :SQLSTATE
SELECT feed_page('"Odd ""Name"", with a comma"', (SELECT cursor FROM start WHERE name = 'after initial'), 10, 0, 4);
\echo :SQLSTATE
SELECT feed_cursor('"Odd ""Name"", with a comma"', '0', 0);
\echo :SQLSTATE
-- No subscription begins there, and one that has got there has expired.  One that
-- has read nothing has missed nothing.
SELECT feed_subscribe('late', '"Odd ""Name"", with a comma"', published_at::text)
	FROM feedpub._batch WHERE feed = '"Odd ""Name"", with a comma"'::regclass ORDER BY sync_id LIMIT 1;
\echo :SQLSTATE
SELECT name, expired FROM feedpub.subscriptions;
SELECT count(*) AS entries FROM feed_poll('early', 1);
UPDATE feedpub._shard SET cursor = (SELECT cursor FROM start WHERE name = 'inside batch 2') WHERE subscription = 'early';
SELECT name, expired FROM feedpub.subscriptions;
SELECT feed_unsubscribe('early');
-- New ones begin with what there is.
INSERT INTO consumer VALUES ('new', '');
SELECT consume('new');
-- One that is in the initial snapshot now goes on, whatever is deleted before it expires.
INSERT INTO consumer VALUES ('new, in initial', '');
SELECT consume('new, in initial', 2, 1);
DELETE FROM tab WHERE id IN (5, 7, 8);
CALL feed_publish();
SELECT consume('new, in initial');
SELECT consume('new');

--
-- Nothing old, nothing to do
--
SELECT feedpub._move_floor('"Odd ""Name"", with a comma"');
TABLE state;
-- -1 keeps all.
CREATE EXTENSION dblink;
CREATE PROCEDURE wait_for_retention(value text) LANGUAGE plpgsql AS $$
BEGIN
	WHILE value <> (SELECT v FROM dblink(format('dbname=%L user=%L host=%L port=%L', current_database(), current_user,
			split_part(current_setting('unix_socket_directories'), ',', 1), current_setting('port')),
			'LOAD ''feedpub''; SHOW feedpub.tombstone_retention') AS t (v text))
	LOOP
	END LOOP;
END $$;
ALTER SYSTEM SET feedpub.tombstone_retention = -1;
SELECT pg_reload_conf();
CALL wait_for_retention('-1');
\c
LOAD 'feedpub';
SET feedpub.read_wait = 0;
SHOW feedpub.tombstone_retention;
CALL grow_old('100 years');
SELECT feedpub._move_floor('"Odd ""Name"", with a comma"');
TABLE state;
-- At once, but for the last batch
ALTER SYSTEM SET feedpub.tombstone_retention = 0;
SELECT pg_reload_conf();
CALL wait_for_retention('0');
\c
LOAD 'feedpub';
SET feedpub.read_wait = 0;
SELECT consume('new, in initial');
INSERT INTO tab VALUES (2, 'last');
CALL feed_publish();
SELECT feedpub._move_floor('"Odd ""Name"", with a comma"');
TABLE state;
SELECT consume('new, in initial');
SELECT consume('new');
-- When there is no tombstone, nothing moves, however old the batches are.
INSERT INTO tab VALUES (3, 'last');
CALL feed_publish();
INSERT INTO tab VALUES (4, 'last');
CALL feed_publish();
SELECT feedpub._move_floor('"Odd ""Name"", with a comma"');
TABLE state;
SELECT consume('new');
-- A TRUNCATE is a tombstone too.
INSERT INTO consumer VALUES ('before TRUNCATE', '');
SELECT consume('before TRUNCATE', 1000);
INSERT INTO consumer SELECT 'stays there', cursor, copy FROM consumer WHERE name = 'before TRUNCATE';
TRUNCATE "Odd ""Name"", with a comma";
CALL feed_publish();
INSERT INTO tab VALUES (9, 'after TRUNCATE');
CALL feed_publish();
SELECT consume('before TRUNCATE');
SELECT feedpub._move_floor('"Odd ""Name"", with a comma"');
SELECT name, consume(name) FROM consumer WHERE name IN ('before TRUNCATE', 'stays there', 'new') ORDER BY name;

--
-- In one transaction with what it removes: a session with a snapshot from
-- before still has the deletes.
--
DELETE FROM tab WHERE id = 9;
CALL feed_publish();
INSERT INTO tab VALUES (10, 'after that');
CALL feed_publish();
SELECT dblink_connect('other', format('dbname=%L user=%L host=%L port=%L', current_database(), current_user,
	split_part(current_setting('unix_socket_directories'), ',', 1), current_setting('port')));
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT 1 AS snapshot;
SELECT n FROM dblink('other', $$SELECT feedpub._move_floor('"Odd ""Name"", with a comma"')$$) AS t (n bigint);
SELECT op, (entry).id, (entry).v FROM consumer, feed_read(NULL::"Odd ""Name"", with a comma", cursor, 10) WHERE name = 'before TRUNCATE';
COMMIT;
SELECT consume('before TRUNCATE');
-- A consumer that began when a delete had been published, and was then read to
-- with a snapshot from before it: it has the row, so the delete must not expire
-- for it.
INSERT INTO tab VALUES (12, 'deleted'), (13, 'stays');
CALL feed_publish();
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT 1 AS snapshot;
SELECT dblink_exec('other', 'DELETE FROM tab WHERE id = 12'), dblink_exec('other', 'CALL feed_publish()');
SELECT dblink_exec('other', $$INSERT INTO tab VALUES (14, 'last')$$), dblink_exec('other', 'CALL feed_publish()');
SELECT new, old.cursor AS between, (old.entry).id
	FROM dblink('other', $$SELECT cursor FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 1)$$) AS t (new text),
	feed_read(NULL::"Odd ""Name"", with a comma", new, 10) old WHERE (old.entry).id = 12 \gset
COMMIT;
SELECT :id AS id, feedpub._move_floor('"Odd ""Name"", with a comma"');
SELECT substr(:'between', 38, 7) < substr(:'new', 38, 7) COLLATE "C" AS older_base;
SELECT count(*) > 0 AS goes_on FROM feed_read(NULL::"Odd ""Name"", with a comma", :'new', 10);
SELECT feed_page('"Odd ""Name"", with a comma"', :'between', 10);
\echo :SQLSTATE
DELETE FROM tab WHERE id > 11;
CALL feed_publish();
INSERT INTO tab VALUES (12, 'last');
CALL feed_publish();
SELECT feedpub._move_floor('"Odd ""Name"", with a comma"') AS gone;
-- Not while another session publishes, and not for a rolled-back transaction
DELETE FROM tab WHERE id = 10;
CALL feed_publish();
INSERT INTO tab VALUES (11, 'last');
CALL feed_publish();
BEGIN;
SELECT feedpub._move_floor('"Odd ""Name"", with a comma"');
SELECT n FROM dblink('other', $$SELECT feedpub._move_floor('"Odd ""Name"", with a comma"')$$) AS t (n bigint);
ROLLBACK;
TABLE state;

--
-- Others
--
SELECT sync_id AS untouched FROM feedpub._floor WHERE feed = 'other'::regclass;
SELECT feed_create('outbox');
SELECT feedpub._move_floor('outbox');
SELECT feedpub._move_floor('consumer');
SELECT feedpub._move_floor(NULL) IS NULL AS nothing;
CREATE ROLE regress_feedpub_reader;
GRANT ALL ON "Odd ""Name"", with a comma" TO regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
SELECT feedpub._move_floor('"Odd ""Name"", with a comma"');
\echo :SQLSTATE
RESET ROLE;

SELECT dblink_disconnect('other');
ALTER SYSTEM RESET feedpub.tombstone_retention;
SELECT pg_reload_conf();
CALL wait_for_retention('7d');
DROP FUNCTION consume;
DROP PROCEDURE grow_old, go_back, wait_for_retention;
DROP VIEW state, tab;
DROP EXTENSION dblink;
DROP TABLE consumer, start;
SELECT feed_drop('outbox');
SELECT feed_detach('"Odd ""Name"", with a comma"'), feed_detach('other');
DROP TABLE "Odd ""Name"", with a comma", other;
DROP ROLE regress_feedpub_reader;
