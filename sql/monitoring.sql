-- What an operator sees: feedpub.feeds, feedpub.workers and feedpub.blockers,
-- and how much of it each role sees.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
-- No worker: this file publishes by hand.
SELECT feed_stop_worker() IS NOT NULL AS stopped;

SELECT feed_create('"Odd ""Name"", with a comma"') AS feed \gset
CREATE TABLE kv (k text PRIMARY KEY, v text);
SELECT feed_attach('kv');

--
-- How a feed is.  New ones are empty and published.
--
SELECT feed, state, size > 0 AS has_size, position, rows_per_second, head, last_published, unpublished
  FROM feedpub.feeds ORDER BY feed::text COLLATE "C";
-- Rows that are not published yet, and a transaction's own, which cannot be
-- published yet
INSERT INTO :feed (message_type, data) SELECT 'a', '1' FROM generate_series(1, 600);
BEGIN;
INSERT INTO kv VALUES ('a', '1'), ('b', '2');
SELECT feed, position, rows_per_second, head, last_published, unpublished
  FROM feedpub.feeds ORDER BY feed::text COLLATE "C";
COMMIT;
SELECT unpublished FROM feedpub.feeds WHERE feed = 'kv'::regclass;
SELECT clock_timestamp() AS began \gset
CALL feed_publish();
SELECT feed, position, round(rows_per_second::numeric, 3) AS rows_per_second, head,
       last_published BETWEEN :'began' AND clock_timestamp() AS just_now, unpublished
  FROM feedpub.feeds ORDER BY feed::text COLLATE "C";
-- Deletes have positions too; what is rolled back has them and is nothing.
DELETE FROM kv;
BEGIN;
INSERT INTO kv SELECT i::text, '' FROM generate_series(1, 58) i;
ROLLBACK;
CALL feed_publish('kv');
SELECT position, round(rows_per_second::numeric, 3) AS rows_per_second, head, unpublished FROM feedpub.feeds WHERE feed = 'kv'::regclass;

--
-- Rows per second against the same in plain SQL, over batches made up: those
-- before the last minute and those in it, with gaps, and with transactions
-- that took their positions long before.
--
CREATE FUNCTION check_rate(seed float8) RETURNS bool LANGUAGE plpgsql AS $$
DECLARE
	expected float8;
	shown float8;
BEGIN
	PERFORM setseed(seed);
	DELETE FROM feedpub._batch WHERE feed = 'kv'::regclass;
	WITH shape AS MATERIALIZED (SELECT floor(random() * 300)::int AS old, floor(random() * 300)::int AS new, random() * 0.5 AS gaps, random() * 0.5 AS late)
	INSERT INTO feedpub._batch (feed, sync_id, snapshot, last_pos, transactions, publication, seed, published_at)
	SELECT 'kv', i, '1:1:', CASE WHEN random() < late AND i % 20 > 0 THEN i ELSE 1000 * i END, 1, 1, 0,
	       CASE WHEN i <= old THEN now() - interval '1 hour' ELSE now() + interval '1 hour' END
	  FROM shape, generate_series(1, old + new) i WHERE random() > gaps OR i % 20 = 0;
	SELECT COALESCE((SELECT max(last_pos) FROM (SELECT last_pos FROM feedpub._batch WHERE feed = 'kv'::regclass ORDER BY sync_id DESC LIMIT 32) b), 0)
		- COALESCE((SELECT max(last_pos) FROM (SELECT last_pos FROM feedpub._batch WHERE feed = 'kv'::regclass AND published_at < now() ORDER BY sync_id DESC LIMIT 32) b), 0)
	  INTO expected;
	SELECT rows_per_second * 60 INTO shown FROM feedpub.feeds WHERE feed = 'kv'::regclass;
	RETURN abs(shown - expected) < 0.001;
END $$;
BEGIN;
SELECT count(*) AS tried, count(*) FILTER (WHERE check_rate(i / 1000.0)) AS as_expected FROM generate_series(1, 200) i;
ROLLBACK;
DROP FUNCTION check_rate;
-- Of 1500 batches, 50 a second, the last 1000 count.
BEGIN;
DELETE FROM feedpub._batch WHERE feed = 'kv'::regclass;
INSERT INTO feedpub._batch (feed, sync_id, snapshot, last_pos, transactions, publication, seed, published_at)
SELECT 'kv', i, '1:1:', 10 * i, 1, 1, 0, clock_timestamp() - (1500 - i) * interval '20 ms' FROM generate_series(1, 1500) i;
SELECT rows_per_second BETWEEN 400 AND 510 AS about_500 FROM feedpub.feeds WHERE feed = 'kv'::regclass;
ROLLBACK;

--
-- States
--
CREATE VIEW kv_state AS SELECT state, position IS NOT NULL AS position, unpublished IS NOT NULL AS unpublished FROM feedpub.feeds WHERE feed = 'kv'::regclass;
SELECT * FROM kv_state;
ALTER TABLE kv DISABLE TRIGGER zz_feedpub_stamp;
SELECT * FROM kv_state;
ALTER TABLE kv ENABLE TRIGGER zz_feedpub_stamp;
SELECT * FROM kv_state;
ALTER TABLE kv ENABLE ALWAYS TRIGGER zz_feedpub_stamp;
SELECT * FROM kv_state;
UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'kv_feed_idx'::regclass;
SELECT * FROM kv_state;
DROP INDEX kv_feed_idx;
SELECT * FROM kv_state;
CREATE INDEX ON kv (feed_xid, feed_pos);
SELECT * FROM kv_state;
BEGIN;
ALTER TABLE kv DROP CONSTRAINT kv_pkey;
SELECT * FROM kv_state;
ROLLBACK;
BEGIN;
ALTER TABLE kv ALTER feed_pos DROP DEFAULT, DROP COLUMN feed_pos;
SELECT * FROM kv_state;
ROLLBACK;
BEGIN;
ALTER SEQUENCE kv_feed_pos_seq SET UNLOGGED;
SELECT * FROM kv_state;
ROLLBACK;
-- The rest is feed_check()'s: nothing is read here to find it.
INSERT INTO kv VALUES ('new', 'row');
-- A sequence that was set back does no harm (positions.sql).
SELECT setval('kv_feed_pos_seq', 1) AS set_back;
SELECT * FROM kv_state;
SELECT guard FROM feed_check('kv');
-- Nor does a row that was loaded, whose position the sequence has not reached,
-- or options of the sequence
BEGIN;
INSERT INTO kv VALUES ('d', 'stamped');
ALTER TABLE kv DISABLE TRIGGER zz_feedpub_stamp;
INSERT INTO kv (k, feed_xid, feed_pos) VALUES ('e', pg_current_xact_id(), 1000000000000000000);
ALTER TABLE kv ENABLE ALWAYS TRIGGER zz_feedpub_stamp;
ALTER SEQUENCE kv_feed_pos_seq CYCLE CACHE 2;
SELECT * FROM kv_state;
SELECT guard FROM feed_check('kv');
ROLLBACK;
-- Nor do rows that may have been written without a stamp
BEGIN;
UPDATE feedpub._feed SET unstamped = true WHERE feed = 'kv'::regclass;
SELECT * FROM kv_state;
SELECT guard FROM feed_check('kv');
ROLLBACK;
-- Rows of another server
BEGIN;
ALTER TABLE kv DISABLE TRIGGER zz_feedpub_stamp;
INSERT INTO kv (k, feed_xid, feed_pos) VALUES ('c', '1000000000000', 1000);
ALTER TABLE kv ENABLE ALWAYS TRIGGER zz_feedpub_stamp;
SELECT * FROM kv_state;
ROLLBACK;
-- Batches of another server: by xids that this one has not reached, and by
-- their seed
BEGIN;
UPDATE feedpub._batch SET snapshot = '1:1000000000000:' WHERE feed = 'kv'::regclass AND sync_id = 2;
SELECT * FROM kv_state;
UPDATE feedpub._batch SET seed = -1 WHERE feed = 'kv'::regclass AND sync_id = 2;
SELECT * FROM kv_state;
ROLLBACK;
-- Somebody has it locked, or its index, or its sequence: the view does not wait.
SET lock_timeout = '4s';
BEGIN;
LOCK TABLE kv IN ACCESS EXCLUSIVE MODE;
PREPARE TRANSACTION 'regress_feedpub';
SELECT clock_timestamp() AS began \gset
SELECT * FROM kv_state;
SELECT feed, waiting FROM feedpub.waiting ORDER BY feed::text COLLATE "C";
SELECT clock_timestamp() - :'began' < '2 s' AS at_once;
COMMIT PREPARED 'regress_feedpub';
BEGIN;
REINDEX INDEX kv_feed_xid_feed_pos_idx;
PREPARE TRANSACTION 'regress_feedpub';
SELECT * FROM kv_state;
COMMIT PREPARED 'regress_feedpub';
BEGIN;
ALTER SEQUENCE kv_feed_pos_seq OWNED BY NONE;
DROP SEQUENCE kv_feed_pos_seq;
PREPARE TRANSACTION 'regress_feedpub';
SELECT * FROM kv_state;
ROLLBACK PREPARED 'regress_feedpub';
RESET lock_timeout;
-- and leaves no lock.
BEGIN;
SELECT * FROM kv_state;
SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND (locktype = 'object' OR relation IN (SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind <> 'v'));
COMMIT;
-- An old snapshot sees the batches of its time.
INSERT INTO kv VALUES ('old', 'snapshot');
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT head, unpublished FROM feedpub.feeds WHERE feed = 'kv'::regclass;
COMMIT;
-- What is no feed is nothing.
CREATE TABLE elsewhere (i int);
SELECT * FROM feedpub._feed_stats('elsewhere');
SELECT * FROM feedpub._feed_stats('pg_class');
SELECT * FROM feedpub._feed_stats(4294967295::oid);
SELECT * FROM feedpub._feed_stats(NULL);

--
-- What each role sees
--
CREATE ROLE regress_feedpub_nobody;
CREATE ROLE regress_feedpub_reader;
CREATE ROLE regress_feedpub_column;
CREATE ROLE regress_feedpub_monitor IN ROLE pg_monitor;
GRANT SELECT ON kv TO regress_feedpub_reader;
GRANT SELECT (k) ON kv TO regress_feedpub_column;
CREATE VIEW seen AS
	SELECT feed, state, num_nonnulls(size, position, rows_per_second, head, last_published, unpublished) AS figures
	  FROM feedpub.feeds ORDER BY feed::text COLLATE "C";
GRANT SELECT ON seen TO PUBLIC;
SET ROLE regress_feedpub_nobody;
SELECT * FROM seen;
SET ROLE regress_feedpub_reader;
SELECT * FROM seen;
SET ROLE regress_feedpub_column;
SELECT * FROM seen;
-- pg_monitor sees all feeds, and nothing of what is in them.
SET ROLE regress_feedpub_monitor;
SELECT * FROM seen;
SELECT feed, waiting FROM feedpub.waiting ORDER BY feed::text COLLATE "C";
SELECT count(*) FROM kv;
SELECT count(*) FROM :feed;
SELECT count(*) FROM feedpub._tombstone;
SELECT feed_page('kv', '', 100);
SELECT feed_head('kv');
SELECT * FROM feed_check('kv');
CALL feed_publish('kv');
RESET ROLE;

--
-- Workers: this database's was stopped.  What a worker that runs shows, a TAP
-- test tells.
--
SELECT database = current_database() AS here, pid, state, started_at FROM feedpub.workers WHERE database = current_database();
SET ROLE regress_feedpub_nobody;
SELECT database = current_database() AS here, pid, state, last_error FROM feedpub.workers;
RESET ROLE;

--
-- Blockers: who, and since when
--
BEGIN;
INSERT INTO elsewhere VALUES (1);
PREPARE TRANSACTION 'regress_feedpub';
BEGIN;
INSERT INTO elsewhere VALUES (2);
SET LOCAL ROLE regress_feedpub_monitor;
SELECT kind, gid, "user" IS NOT NULL AS who, since = COALESCE(prepared_at, xact_start) AS since, since <= clock_timestamp() AS begun FROM feedpub.blockers;
SET LOCAL ROLE regress_feedpub_nobody;
SELECT kind, gid, since IS NOT NULL AS since, client_addr FROM feedpub.blockers;
COMMIT;
COMMIT PREPARED 'regress_feedpub';

DROP VIEW kv_state, seen;
DROP OWNED BY regress_feedpub_reader, regress_feedpub_column;
DROP ROLE regress_feedpub_nobody, regress_feedpub_reader, regress_feedpub_column, regress_feedpub_monitor;
SELECT feed_drop(:'feed', cascade => true);
DROP TABLE kv, elsewhere;
SELECT feed_start_worker();
