-- feedpub.blockers: the transactions that hold xid order back, in whichever
-- database they run, the oldest first.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
-- No worker, here and in the tests that follow: its transactions would hold
-- back pages in xid order.
SELECT feed_stop_worker() IS NOT NULL AS stopped;
DO $$
BEGIN
	WHILE EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'feedpub worker' AND datname = current_database()) LOOP
		PERFORM pg_stat_clear_snapshot();
	END LOOP;
END $$;
SELECT feed_create('outbox');
SELECT * FROM feedpub.blockers;
-- A prepared transaction that wrote elsewhere
CREATE TABLE elsewhere (i int);
BEGIN;
INSERT INTO elsewhere VALUES (1);
PREPARE TRANSACTION 'regress_feedpub odd ''gid''';
INSERT INTO outbox (message_type, data) VALUES ('a', '1');
SELECT message_type FROM feed_fetch('0', 0, 100);
SELECT kind, pid, gid, database = current_database() AS here, "user" = current_user AS mine,
       application_name, state, query_start, xact_start, prepared_at <= now() AS prepared
  FROM feedpub.blockers;
SELECT b.xid = w.horizon AS holds_the_horizon FROM feedpub.blockers b, feedpub.waiting w;
-- Also one's own, which comes after it
BEGIN;
SET LOCAL application_name = 'Odd "Name"';
SELECT pg_current_xact_id() IS NOT NULL AS assigned;
SELECT kind, pid = pg_backend_pid() AS own, gid, database = current_database() AS here, "user" = current_user AS mine,
       application_name, state, query_start <= clock_timestamp() AS started, xact_start = now() AS begun,
       prepared_at <= now() AS prepared, xid = pg_current_xact_id() AS own_xid
  FROM feedpub.blockers;
COMMIT;
-- One that has no xid holds nothing back.
BEGIN;
SELECT kind FROM feedpub.blockers;
COMMIT;
-- A savepoint's own xid is not shown, the transaction's is.
BEGIN;
SAVEPOINT s;
INSERT INTO elsewhere VALUES (2);
RELEASE s;
SELECT kind, pid = pg_backend_pid() AS own, xid = pg_current_xact_id() AS top FROM feedpub.blockers;
ROLLBACK;
-- Ordinary users see what pg_stat_activity and pg_prepared_xacts let them see.
CREATE ROLE regress_feedpub_reader;
BEGIN;
SELECT pg_current_xact_id() IS NOT NULL AS assigned;
SET LOCAL ROLE regress_feedpub_reader;
SELECT kind, pid IS NOT NULL AS has_pid, gid, database = current_database() AS here, application_name IS NOT NULL AS has_application, state, query_start, xact_start
  FROM feedpub.blockers;
COMMIT;
-- After the end of the prepared transaction everything flows.
COMMIT PREPARED 'regress_feedpub odd ''gid''';
SELECT * FROM feedpub.blockers;
SELECT message_type FROM feed_fetch('0', 0, 100);
DROP TABLE elsewhere;
DROP ROLE regress_feedpub_reader;
SELECT feed_drop('outbox');
