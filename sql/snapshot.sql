-- feed_snapshot(): cursors, and an exported snapshot of the same moment.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
SET feedpub.read_wait = 0;
SELECT feed_create('outbox'), feed_create('"Odd ""Name"", 2"'), feed_create_changes('changes');
CREATE TABLE kv (k int PRIMARY KEY, v text);
INSERT INTO kv VALUES (1, 'before feed_attach()'), (2, 'before feed_attach()');
SELECT feed_attach('kv') IS NULL AS attached;
CREATE VIEW helpers AS SELECT pid FROM pg_stat_activity
	WHERE backend_type = 'feedpub snapshot' AND datname = current_database();
CREATE PROCEDURE no_helper() LANGUAGE plpgsql AS $$
BEGIN
	WHILE EXISTS (SELECT FROM helpers) LOOP
		PERFORM pg_stat_clear_snapshot();
	END LOOP;
END $$;

-- Of empty feeds the cursor is the head; it works as any cursor.
SELECT s.feed, s.cursor = feed_head(s.feed) AS head, s.cursor > '' COLLATE "C" AS some,
	count(*) OVER (PARTITION BY snapshot) AS same
FROM feed_snapshot(ARRAY['outbox', 'kv', '"Odd ""Name"", 2"', 'changes']::regclass[], '1 ms') s ORDER BY s.feed::text COLLATE "C";
CALL no_helper();
SELECT cursor AS empty FROM feed_snapshot(ARRAY['outbox']::regclass[], '1 ms') \gset
CALL no_helper();
INSERT INTO outbox (message_type, data) VALUES ('first', '1');
SELECT cursor AS one, snapshot AS one_snapshot FROM feed_snapshot(ARRAY['outbox']::regclass[], '1 hour') \gset
SELECT op, (entry).message_type FROM feed_read(NULL::outbox, :'empty');
SELECT op, (entry).message_type FROM feed_read(NULL::outbox, :'one');
SELECT feed_page('outbox', :'one', 10) ->> 'entries' AS entries;

-- What is committed by then is before the cursors, and in the snapshot; what
-- comes later is after them.
INSERT INTO kv VALUES (3, 'before the snapshot');
UPDATE kv SET v = 'before the snapshot' WHERE k = 2;
SELECT max(cursor) FILTER (WHERE feed = 'outbox'::regclass) AS outbox, max(cursor) FILTER (WHERE feed = 'kv'::regclass) AS kv,
	min(snapshot) AS snapshot, count(*)
FROM feed_snapshot('{kv,outbox}', '1 hour') \gset
\echo :count
INSERT INTO outbox (message_type, data) VALUES ('second', '1');
INSERT INTO kv VALUES (4, 'after the snapshot');
UPDATE kv SET v = 'after the snapshot' WHERE k = 1;
DELETE FROM kv WHERE k = 3;
CALL feed_publish('kv');
CALL feed_publish('outbox');
BEGIN ISOLATION LEVEL REPEATABLE READ;
SET TRANSACTION SNAPSHOT :'snapshot';
SELECT k, v FROM kv ORDER BY k;
SELECT message_type FROM outbox;
-- The cursor is later than this transaction's snapshot: no page yet, no error.
SELECT op FROM feed_read(NULL::kv, :'kv');
COMMIT;
SELECT op, (entry).k, (entry).v FROM feed_read(NULL::kv, :'kv');
SELECT op, (entry).message_type FROM feed_read(NULL::outbox, :'outbox');
-- An older one is still held, also after a transaction that was rolled back.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SET TRANSACTION SNAPSHOT :'one_snapshot';
SELECT message_type FROM outbox;
SELECT count(*) FROM kv WHERE k > 2;
ROLLBACK;
BEGIN;
SELECT snapshot AS snapshot FROM feed_snapshot('{kv}', '1 hour') \gset
ROLLBACK;
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SET TRANSACTION SNAPSHOT :'snapshot';
SELECT count(*) FROM kv;
COMMIT;

-- A subscription from there
SELECT feed_subscribe('regress_feedpub copy', 'kv', start => :'kv') = :'kv' AS subscribed;
SELECT op, key FROM feed_poll('regress_feedpub copy', 10);
SELECT feed_unsubscribe('regress_feedpub copy');

-- A snapshot that is older than the history of a cursor: no page yet
SELECT feed_create('anew') AS anew;
INSERT INTO anew (message_type, data) VALUES ('old', '1');
SELECT cursor AS old, snapshot FROM feed_snapshot('{anew}', '1 hour') \gset
SELECT feed_begin_history('anew') IS NOT NULL AS begun;
INSERT INTO anew (message_type, data) VALUES ('new', '1');
CALL feed_publish('anew');
SELECT cursor AS new FROM feed_read(NULL::anew, '', 1) \gset
BEGIN ISOLATION LEVEL REPEATABLE READ;
SET TRANSACTION SNAPSHOT :'snapshot';
SELECT op FROM feed_read(NULL::anew, :'new');
SELECT feed_page('anew', :'new') ->> 'entries' AS entries;
ROLLBACK;
SELECT op, (entry).message_type FROM feed_read(NULL::anew, :'new');
\set VERBOSITY sqlstate
SELECT op FROM feed_read(NULL::anew, :'old');
\set VERBOSITY default
SELECT feed_drop('anew');

-- The caller's snapshot is older: it is of no consequence.
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SELECT count(*) FROM outbox;
SELECT cursor > :'outbox' COLLATE "C" AS later FROM feed_snapshot('{outbox}', '1 ms');
COMMIT;

-- No worker is needed.  If a backlog is cut, the last part has seen all that
-- the snapshot sees.
\c -
CALL no_helper();
SET feedpub.read_wait = 0;
SELECT feed_stop_worker() IS NOT NULL AS stopped;
DO $$
BEGIN
	WHILE EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'feedpub worker' AND datname = current_database()) LOOP
		PERFORM pg_stat_clear_snapshot();
	END LOOP;
END $$;
SHOW feedpub.max_batch_transactions;
SELECT cursor AS cursor FROM feed_snapshot('{outbox}', '1 ms') \gset
DO $$
BEGIN
	FOR i IN 1..250 LOOP
		INSERT INTO outbox (message_type, data) VALUES (i, '1');
		COMMIT;
	END LOOP;
END $$;
SELECT count(*) AS batches FROM feedpub._batch WHERE feed = 'outbox'::regclass \gset
SELECT cursor AS later FROM feed_snapshot('{outbox}', '1 ms') \gset
SELECT count(*) - :batches AS parts FROM feedpub._batch WHERE feed = 'outbox'::regclass;
SELECT count(*) FILTER (WHERE op = 'upsert') AS rows, max(cursor COLLATE "C") FILTER (WHERE op = 'upsert') = :'later' AS last FROM feed_read(NULL::outbox, :'cursor', 1000);
SELECT op FROM feed_read(NULL::outbox, :'later');

-- Nothing new that lives: no batch, the same cursor
SELECT count(*) AS batches FROM feedpub._batch WHERE feed = 'outbox'::regclass \gset
BEGIN;
INSERT INTO outbox (message_type, data) VALUES ('rolled back', '1');
ROLLBACK;
SELECT cursor = :'later' AS same FROM feed_snapshot('{outbox}', '1 ms');
SELECT count(*) - :batches AS parts FROM feedpub._batch WHERE feed = 'outbox'::regclass;

-- The rows of a partition that are not stamped yet are in the copy, and come
-- again; what happens to them before that is after the cursor.
CREATE TABLE parts (k int PRIMARY KEY, v text) PARTITION BY RANGE (k);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10);
INSERT INTO parts VALUES (1, 'there');
SELECT feed_attach('parts') IS NULL AS attached;
CREATE TABLE parts_2 (LIKE parts);
INSERT INTO parts_2 SELECT k, 'there' FROM generate_series(10, 19) k;
ALTER TABLE parts ATTACH PARTITION parts_2 FOR VALUES FROM (10) TO (20);
CREATE TABLE parts_copy (k int PRIMARY KEY, v text);
SELECT cursor, snapshot FROM feed_snapshot('{parts}', '1 hour') \gset
SELECT count(set_config('regress.cursor', :'cursor', false)) AS set;
DELETE FROM parts WHERE k = 11;
UPDATE parts SET v = 'changed' WHERE k IN (1, 12);
BEGIN ISOLATION LEVEL REPEATABLE READ;
SET TRANSACTION SNAPSHOT :'snapshot';
INSERT INTO parts_copy SELECT k, v FROM parts;
COMMIT;
SELECT count(*) FROM parts_copy;
DELETE FROM parts WHERE k = 13;
SELECT feedpub._run_job('parts', 100) AS stamped;
UPDATE parts SET v = 'changed later' WHERE k = 14;
DELETE FROM parts WHERE k = 15;
CALL feed_publish('parts');
DO $$
DECLARE
	r record;
BEGIN
	FOR r IN SELECT op, (entry).k, (entry).v FROM feed_read(NULL::parts, current_setting('regress.cursor'), 1000) LOOP
		DELETE FROM parts_copy c WHERE c.k = r.k;
		INSERT INTO parts_copy SELECT r.k, r.v WHERE r.op = 'upsert';
	END LOOP;
END $$;
(SELECT k, v FROM parts EXCEPT TABLE parts_copy) UNION ALL (TABLE parts_copy EXCEPT SELECT k, v FROM parts);
SELECT feed_detach('parts');
DROP TABLE parts, parts_copy;
SELECT feed_start_worker() IS NOT NULL AS started;

-- The hold ends with its time, and with the session.
\c -
CALL no_helper();
SELECT min(snapshot) AS snapshot FROM feed_snapshot('{kv,outbox}', '1 ms') \gset
CALL no_helper();
\set VERBOSITY sqlstate
SELECT count(*) FROM pg_ls_dir('pg_snapshots') f WHERE f = :'snapshot';
SELECT min(snapshot) AS snapshot FROM feed_snapshot('{kv,outbox}', '1 day') \gset
SELECT count(*) FROM helpers;
\c -
CALL no_helper();
SELECT count(*) FROM pg_ls_dir('pg_snapshots') f WHERE f = :'snapshot';
\set VERBOSITY default

--
-- What it refuses
--
SELECT * FROM feed_snapshot(NULL);
SELECT * FROM feed_snapshot('{kv}', NULL);
SELECT * FROM feed_snapshot('{}');
SELECT * FROM feed_snapshot('{kv,NULL}');
SELECT * FROM feed_snapshot('{kv,outbox,kv}');
SELECT * FROM feed_snapshot('{kv,feedpub._feed}');
\set VERBOSITY sqlstate
SELECT * FROM feed_snapshot('{0}');
\set VERBOSITY default
SELECT * FROM feed_snapshot('{kv}', '0');
SELECT * FROM feed_snapshot('{kv}', '0.9 ms');
SELECT * FROM feed_snapshot('{kv}', '-1 day');
SELECT * FROM feed_snapshot('{kv}', '24:00:00.001');
BEGIN;
SELECT count(*) FROM pg_current_xact_id();
SELECT * FROM feed_snapshot('{kv}');
ROLLBACK;
CREATE ROLE regress_feedpub_reader;
GRANT SELECT ON outbox TO regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
SELECT count(*) FROM feed_snapshot('{outbox}', '1 ms');
SELECT * FROM feed_snapshot('{outbox,kv}');
RESET ROLE;
DROP OWNED BY regress_feedpub_reader;
DROP ROLE regress_feedpub_reader;
-- A feed that cannot be published
UPDATE feedpub._batch SET snapshot = '1000000000:1000000000:' WHERE feed = 'outbox'::regclass
	AND sync_id = (SELECT max(sync_id) FROM feedpub._batch WHERE feed = 'outbox'::regclass);
\set VERBOSITY terse
SELECT * FROM feed_snapshot('{kv,outbox}');
\set VERBOSITY default
\c -
CALL no_helper();
DROP VIEW helpers CASCADE;
DROP PROCEDURE no_helper;
SELECT feed_drop('outbox'), feed_drop('"Odd ""Name"", 2"'), feed_drop('changes'), feed_detach('kv');
DROP TABLE kv;
