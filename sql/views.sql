-- feedpub.feeds and feedpub.waiting: the feeds of the database, and the rows
-- that xid order holds back.  (feedpub.blockers, what holds them back, has a
-- file of its own.)
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
SET timezone = 'UTC';
-- No worker, whose transactions would hold the horizon.
SELECT feed_stop_worker() IS NOT NULL AS stopped;

-- Without feeds and without writers there is nothing to show.
SELECT * FROM feedpub.feeds;
SELECT * FROM feedpub.waiting;

--
-- feedpub.feeds
--
BEGIN;
SELECT feed_create('"Odd ""Name"", with a comma"'), feed_create('texts', 'text');
SELECT feed, kind, owner = current_user AS mine, payload_type, is_default, created_at = now() AS created_now
  FROM feedpub.feeds ORDER BY feed::text COLLATE "C";
COMMIT;
-- It shows a feed whatever was done to it, and none that is gone.
ALTER TABLE texts DROP COLUMN data;
ALTER TABLE texts RENAME TO renamed;
SELECT feed, payload_type FROM feedpub.feeds ORDER BY feed::text COLLATE "C";
SELECT * FROM feed_check('renamed');
DROP TABLE renamed;
SELECT feed, payload_type FROM feedpub.feeds;
SELECT feed, waiting FROM feedpub.waiting;

--
-- feedpub.waiting: rows that are held back, estimated; 0 is exact.
--
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) SELECT 'a', to_jsonb(i) FROM generate_series(1, 100) i;
SELECT feed, horizon = pg_snapshot_xmin(pg_current_snapshot()) AS of_now, waiting FROM feedpub.waiting;
-- Held back by nothing but one's own transaction
BEGIN;
SELECT feed, horizon = pg_snapshot_xmin(pg_current_snapshot()) AS of_now, waiting FROM feedpub.waiting;
SELECT pg_current_xact_id() IS NOT NULL AS assigned;
SELECT waiting FROM feedpub.waiting;
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) SELECT 'b', to_jsonb(i) FROM generate_series(1, 10) i;
SELECT waiting, horizon = pg_current_xact_id() AS by_us FROM feedpub.waiting;
SELECT count(*) FROM feed_fetch('0', 0, 1000);
ROLLBACK;
-- Rolled back, they wait for nothing.
SELECT waiting FROM feedpub.waiting;
-- By a prepared transaction: first one that wrote elsewhere
CREATE TABLE elsewhere (i int);
BEGIN;
INSERT INTO elsewhere VALUES (1);
PREPARE TRANSACTION 'regress_feedpub odd ''gid''';
SELECT waiting FROM feedpub.waiting;
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) SELECT 'c', to_jsonb(i) FROM generate_series(1, 7) i;
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) SELECT 'd', to_jsonb(i) FROM generate_series(1, 5) i;
SELECT waiting >= 12 AND waiting < 100 AS about_twelve FROM feedpub.waiting;
SELECT count(*) FROM feed_fetch('0', 0, 1000);
SELECT count(*) FROM "Odd ""Name"", with a comma";
-- All roles see the horizon, only readers of the feed see the estimate.
CREATE ROLE regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
SELECT feed, is_default FROM feedpub.feeds;
SELECT feed, horizon IS NOT NULL AS horizon, waiting FROM feedpub.waiting;
RESET ROLE;
GRANT SELECT ON "Odd ""Name"", with a comma" TO regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
SELECT feed, waiting >= 12 AS waiting FROM feedpub.waiting;
RESET ROLE;
-- Of what is no feed there is no estimate.
SELECT waiting FROM feedpub._feed_stats('pg_class'::regclass);
SELECT waiting FROM feedpub._feed_stats('elsewhere'::regclass);
SELECT waiting FROM feedpub._feed_stats(4294967295::oid);
SELECT waiting FROM feedpub._feed_stats(NULL::regclass);
-- After the end of the prepared transaction everything flows.
COMMIT PREPARED 'regress_feedpub odd ''gid''';
SELECT waiting FROM feedpub.waiting;
SELECT count(*) FROM feed_fetch('0', 0, 1000);

-- A feed without its index or sequence has no estimate, and the others do.
SELECT feed_create('whole');
ALTER TABLE "Odd ""Name"", with a comma" DROP CONSTRAINT "Odd ""Name"", with a comma_pkey";
SELECT feed, waiting FROM feedpub.waiting ORDER BY feed::text COLLATE "C";
SELECT feed_repair('"Odd ""Name"", with a comma"');
ALTER SEQUENCE "Odd ""Name"", with a comma_feed_pos_seq" OWNED BY NONE;
SELECT feed, waiting FROM feedpub.waiting ORDER BY feed::text COLLATE "C";
SELECT feed_repair('"Odd ""Name"", with a comma"') > 0 AS repaired;

-- Whether a view is asked before its tables were analysed or after, it is not
-- worth to be compiled.
CREATE FUNCTION plan_cost(query text) RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE
	plan json;
BEGIN
	EXECUTE 'EXPLAIN (FORMAT JSON) ' || query INTO plan;
	RETURN plan -> 0 -> 'Plan' ->> 'Total Cost';
END $$;
SELECT relname FROM pg_class WHERE relnamespace = 'feedpub'::regnamespace AND relkind = 'v'
	AND plan_cost('SELECT * FROM feedpub.' || quote_ident(relname)) > 100000;
DROP FUNCTION plan_cost;
DROP TABLE elsewhere;
DROP OWNED BY regress_feedpub_reader;
DROP ROLE regress_feedpub_reader;
SELECT feed_drop('"Odd ""Name"", with a comma"'), feed_drop('whole');
DROP SEQUENCE "Odd ""Name"", with a comma_feed_pos_seq";
SELECT feed_start_worker() IS NOT NULL AS started;
