-- feed_flush(): what had committed before the call is published when it returns.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
SELECT feed_create('outbox');
CREATE TABLE kv (k int PRIMARY KEY) PARTITION BY LIST (k);
CREATE TABLE kv_1 PARTITION OF kv FOR VALUES IN (1, 2);
SELECT feed_attach('kv') IS NULL AS attached;
SELECT feed_start_worker();
SELECT feed_flush('outbox', '1 min') = feed_head('outbox') AS empty, feed_flush('kv') = feed_head('kv') AS empty;
-- Each row is there when the call after its commit has returned.
CREATE PROCEDURE write_and_flush(n int, INOUT missing int DEFAULT 0) LANGUAGE plpgsql AS $$
DECLARE
	head text := '';
	next text;
BEGIN
	FOR i IN 1..n LOOP
		INSERT INTO outbox (message_type, data) VALUES (i, '1');
		COMMIT;
		next := feed_flush('outbox', '1 min');
		IF NOT EXISTS (SELECT FROM feed_read(NULL::outbox, head, 100) r
				WHERE (r.entry).message_type = i::text AND r.cursor <= next COLLATE "C") THEN
			missing := missing + 1;
		END IF;
		head := next;
		COMMIT;
	END LOOP;
END $$;
SET feedpub.read_wait = 0;
CALL write_and_flush(50);
INSERT INTO kv VALUES (1), (2);
DELETE FROM kv WHERE k = 1;
SELECT feed_flush('kv', '1 min') AS flushed \gset
SELECT :'flushed' = feed_head('kv') AS head;
\set flushed_kv :flushed
SELECT op, (entry).k FROM feed_read(NULL::kv) WHERE op <> 'end';
-- Also in a transaction whose own snapshot is older
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) > 0 AS some FROM outbox;
SELECT feed_flush('outbox', '1 min') AS flushed \gset
COMMIT;
SELECT :'flushed' = feed_head('outbox') AS head;
-- What was rolled back is not waited for.  A transaction that is rolled back leaves
-- entries of rows and of deletes.
CREATE PROCEDURE write_and_roll_back(n int) LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1..n LOOP
		INSERT INTO outbox (message_type, data) VALUES (i, '1');
		DELETE FROM kv;
		INSERT INTO kv VALUES (1);
		ROLLBACK;
	END LOOP;
END $$;
SHOW feedpub.max_batch_transactions;
CALL write_and_roll_back(60);
SELECT feed_flush('outbox', '20 s') = feed_head('outbox') AS none, feed_flush('kv', '20 s') = :'flushed_kv' AS none;
CALL write_and_roll_back(240);
SELECT feed_flush('outbox', '20 s') > :'flushed' COLLATE "C" AS made, feed_flush('kv', '20 s') > :'flushed_kv' COLLATE "C" AS made;
DROP PROCEDURE write_and_roll_back;

--
-- What it refuses
--
\set VERBOSITY terse
SELECT feed_flush(NULL);
\echo :SQLSTATE
SELECT feed_flush('outbox', NULL);
\echo :SQLSTATE
SELECT feed_flush('outbox', '-1 s');
\echo :SQLSTATE
SELECT feed_flush('feedpub.feeds');
\echo :SQLSTATE
CREATE ROLE regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
SELECT feed_flush('outbox');
\echo :SQLSTATE
RESET ROLE;
DROP ROLE regress_feedpub_reader;
BEGIN;
INSERT INTO outbox (message_type, data) VALUES ('own', '1');
SELECT feed_flush('outbox');
\echo :SQLSTATE
ROLLBACK;
-- The publishing lock, and strong locks, would keep the worker from it.
BEGIN;
SELECT feedpub._merge_batches('outbox') IS NOT NULL AS locked;
SELECT feed_flush('outbox', '1 s');
\echo :SQLSTATE
ROLLBACK;
\set VERBOSITY sqlstate
BEGIN;
LOCK TABLE kv_1 IN ACCESS EXCLUSIVE MODE;
SELECT feed_flush('kv');
ROLLBACK;
\set VERBOSITY default
-- Without a worker nothing could come: it fails at once, and feedpub.feeds says
-- so.
SELECT feed_stop_worker();
DO $$
BEGIN
	WHILE EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'feedpub worker' AND datname = current_database()) LOOP
		PERFORM pg_stat_clear_snapshot();
	END LOOP;
END $$;
SELECT feed_flush('outbox', '1 s');
SELECT feed, worker FROM feedpub.feeds ORDER BY feed::text COLLATE "C";
-- A reader that finds nothing for that reason is warned, once a session.
INSERT INTO outbox (message_type, data) VALUES ('not published', '1');
SELECT count(*) FROM feed_read(NULL::outbox, feed_head('outbox'));
SET feedpub.read_wait = '1 ms';
SELECT count(*) FROM feed_read(NULL::outbox, feed_head('outbox'));
SELECT count(*) FROM feed_read(NULL::outbox, feed_head('outbox'));
\c -
SELECT feed_wait('outbox', feed_head('outbox'), '0');
SELECT feed_wait('outbox', feed_head('outbox'), '1 ms');
SELECT feed_wait('outbox', feed_head('outbox'), '1 ms');
SELECT feed_start_worker();
SELECT feed_flush('outbox', '1 min') AS flushed \gset
SELECT :'flushed' = feed_head('outbox') AS head;
SELECT feed, worker FROM feedpub.feeds ORDER BY feed::text COLLATE "C";
DROP PROCEDURE write_and_flush;
SELECT feed_drop('outbox'), feed_detach('kv');
DROP TABLE kv;
