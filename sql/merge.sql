-- Batches older than feedpub.batch_retention, or too many, are merged; a cursor
-- into a merged one goes on at its beginning, never after it.
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
-- The setting is the server's: it has been read when a new connection has it.
CREATE EXTENSION dblink;
CREATE PROCEDURE wait_for_retention(value text) LANGUAGE plpgsql AS $$
BEGIN
	WHILE value <> (SELECT v FROM dblink(format('dbname=%L user=%L host=%L port=%L', current_database(), current_user,
			split_part(current_setting('unix_socket_directories'), ',', 1), current_setting('port')),
			'LOAD ''feedpub''; SHOW feedpub.batch_retention') AS t (v text))
	LOOP
	END LOOP;
END $$;
SELECT feed_create('"Odd ""Name"", with a comma"');
SELECT feed_create('other');
CREATE VIEW batches AS
	SELECT feed, sync_id, transactions, last_pos, merged_pos FROM feedpub._batch ORDER BY feed::text COLLATE "C", sync_id;
-- Ten batches of three rows, of another feed as well
DO $$
BEGIN
	FOR i IN 1..10 LOOP
		INSERT INTO "Odd ""Name"", with a comma" (message_type, data) SELECT format('%s-%s', i, j), '1' FROM generate_series(1, 3) j;
		INSERT INTO other (message_type, data) VALUES (i, '1');
		COMMIT;
		CALL feed_publish();
	END LOOP;
END $$;
CREATE TABLE before_merge AS
	SELECT row_number() OVER () AS n, cursor, (entry).message_type, entry FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 1000);
-- What comes after a cursor now, against what came after it before: nothing
-- that did is missing.
CREATE FUNCTION compare(OUT cursors bigint, OUT refused bigint, OUT skipped bigint, OUT again bigint, OUT worst bigint) LANGUAGE plpgsql AS $$
DECLARE
	c record;
	r text[];
BEGIN
	cursors := 0; refused := 0; skipped := 0; again := 0; worst := 0;
	FOR c IN SELECT n, cursor FROM before_merge UNION ALL SELECT 0, '' LOOP
		cursors := cursors + 1;
		BEGIN
			r := (SELECT coalesce(array_agg((entry).message_type), '{}') FROM feed_read(NULL::"Odd ""Name"", with a comma", c.cursor, 1000) WHERE op = 'upsert');
		EXCEPTION WHEN OTHERS THEN
			refused := refused + 1;
			CONTINUE;
		END;
		skipped := skipped + (SELECT count(*) FROM before_merge b WHERE b.n > c.n AND b.message_type <> ALL (r));
		again := again + (SELECT count(*) FROM before_merge b WHERE b.n <= c.n AND b.message_type = ANY (r));
		worst := greatest(worst, cardinality(r) - (SELECT count(*) FROM before_merge b WHERE b.n > c.n));
	END LOOP;
END $$;
SELECT * FROM compare();

--
-- Young ones stay, however many.
--
SHOW feedpub.batch_retention;
SELECT feedpub._merge_batches('"Odd ""Name"", with a comma"');
SELECT count(*) FROM batches;
-- Old ones are merged, up to feedpub.max_batch_transactions in one, when no
-- other would fit; the last batch stays as it is.
ALTER SYSTEM SET feedpub.batch_retention = 0;
SELECT pg_reload_conf();
CALL wait_for_retention('0');
\c
SET feedpub.read_wait = 0;
SHOW feedpub.batch_retention;
SELECT feedpub._merge_batches('"Odd ""Name"", with a comma"');
SET feedpub.max_batch_transactions = 4;
SELECT feedpub._merge_batches('"Odd ""Name"", with a comma"');
TABLE batches;
SELECT * FROM compare();
-- A cursor into one that has gone gets all of the one that it is in now; one at
-- the end of that gets nothing of it.
SELECT n, message_type, (SELECT string_agg((entry).message_type, ' ') FROM feed_read(NULL::"Odd ""Name"", with a comma", b.cursor, 9)) AS next
	FROM before_merge b WHERE message_type IN ('2-2', '4-3', '5-3', '8-1', '9-2', '9-3', '10-1') ORDER BY n;
-- The order is by position in the larger batch: the rows and their order are
-- the same here, as nothing was open meanwhile; cursors are new, and each is a
-- cursor to go on from.
SELECT count(*), count(*) FILTER (WHERE b.message_type IS DISTINCT FROM r.message_type) AS different
	FROM before_merge b FULL JOIN (SELECT row_number() OVER () AS n, (entry).message_type FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 1000)) r USING (n);
-- Nothing more to merge
SELECT feedpub._merge_batches('"Odd ""Name"", with a comma"');
-- Those that have been merged stay as they are, whatever room there is.
SET feedpub.max_batch_transactions = 9;
SELECT feedpub._merge_batches('"Odd ""Name"", with a comma"');
RESET feedpub.max_batch_transactions;
SELECT feedpub._merge_batches('"Odd ""Name"", with a comma"');
-- The other feed's are its own.
SET feedpub.max_batch_transactions = 3;
SELECT feedpub._merge_batches('other');
RESET feedpub.max_batch_transactions;
TABLE batches;
-- It goes on where it was.
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('11-1', '1');
CALL feed_publish();
TABLE batches;
SELECT count(*), (array_agg((entry).message_type ORDER BY cursor COLLATE "C" DESC))[1] AS last FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 1000);
-- The newest ones may begin in the middle of a merged batch.
SELECT n, (SELECT string_agg((entry).message_type, ' ') FROM feed_read(NULL::"Odd ""Name"", with a comma", feedpub._newest('"Odd ""Name"", with a comma"', n), 99)) AS newest FROM unnest('{1,2,5,8,12}'::int[]) n;
SELECT string_agg((entry).message_type, ' ') AS after_the_head_of_then FROM feed_read(NULL::"Odd ""Name"", with a comma", (SELECT cursor FROM before_merge WHERE n = 30), 1000);

--
-- Transactions that were open over several batches: if these are merged, their
-- rows are among the others by position, and still none is skipped.
--
TRUNCATE "Odd ""Name"", with a comma";
DELETE FROM feedpub._batch;
DROP TABLE before_merge;
CREATE PROCEDURE write_row(type text) LANGUAGE sql AS $$ INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES (type, '1') $$;
BEGIN;
CALL write_row('early 1');
PREPARE TRANSACTION 'regress_feedpub early';
CALL write_row('a');
CALL feed_publish();
BEGIN;
CALL write_row('late 1');
CALL write_row('late 2');
PREPARE TRANSACTION 'regress_feedpub late';
CALL write_row('b');
CALL feed_publish();
COMMIT PREPARED 'regress_feedpub early';
CALL write_row('c');
CALL feed_publish();
CALL write_row('d');
CALL feed_publish();
COMMIT PREPARED 'regress_feedpub late';
CALL feed_publish();
CALL write_row('e');
CALL feed_publish();
CREATE TABLE before_merge AS
	SELECT row_number() OVER () AS n, cursor, (entry).message_type, entry FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 1000);
SELECT string_agg(message_type, ', ' ORDER BY n) FROM before_merge;
BEGIN;
SET LOCAL feedpub.max_batch_transactions = 2;
SELECT feedpub._merge_batches('"Odd ""Name"", with a comma"');
TABLE batches;
SELECT string_agg((entry).message_type, ', ') FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 1000);
SELECT * FROM compare();
ROLLBACK;
SET feedpub.max_batch_transactions = 6;
SELECT feedpub._merge_batches('"Odd ""Name"", with a comma"');
TABLE batches;
SELECT string_agg((entry).message_type, ', ') FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 1000);
SELECT * FROM compare();
SELECT n, message_type, (SELECT string_agg((entry).message_type, ', ') FROM feed_read(NULL::"Odd ""Name"", with a comma", b.cursor, 9)) AS next
	FROM before_merge b ORDER BY n;

--
-- In a transaction that keeps its snapshot: all of it or nothing
--
CALL write_row('f');
CALL feed_publish();
CALL write_row('g');
CALL feed_publish();
SET feedpub.max_batch_transactions = 2;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT feedpub._merge_batches('"Odd ""Name"", with a comma"') > 0 AS merged;
SELECT string_agg((entry).message_type, ', ') FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 1000);
ROLLBACK;
SELECT string_agg((entry).message_type, ', ') FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 1000);
RESET feedpub.max_batch_transactions;

--
-- No merged batch has more transactions than one is published with, whatever
-- sizes its neighbours have: no page costs more than before.
--
TRUNCATE "Odd ""Name"", with a comma";
DELETE FROM feedpub._batch;
DO $$
BEGIN
	FOR i IN 1..40 LOOP
		FOR j IN 1..i * i % 8 + 1 LOOP
			CALL write_row(format('%s-%s', i, j));
			COMMIT;
		END LOOP;
		CALL feed_publish('"Odd ""Name"", with a comma"');
	END LOOP;
END $$;
SELECT count(*), sum(transactions), max(transactions) FROM batches;
BEGIN;
SET LOCAL feedpub.max_batch_transactions = 10;
SELECT feedpub._merge_batches('"Odd ""Name"", with a comma"');
SELECT count(*), sum(transactions), max(transactions) FROM batches;
-- Nor could two neighbours have been one.
SELECT count(*) AS neighbours FROM (SELECT sync_id, transactions + lead(transactions) OVER (ORDER BY sync_id) AS sum FROM batches) b
	WHERE sum <= 10 AND sync_id < (SELECT max(sync_id) - 4 FROM batches);
SELECT count(*) FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 1000) WHERE op = 'upsert';
ROLLBACK;
-- Batches larger than that, from before, stay alone.
BEGIN;
SET LOCAL feedpub.max_batch_transactions = 1;
SELECT feedpub._merge_batches('"Odd ""Name"", with a comma"');
ROLLBACK;
-- Those without transactions count too: a thousand at a time.
BEGIN;
UPDATE feedpub._batch SET transactions = 0;
INSERT INTO feedpub._batch (feed, sync_id, snapshot, last_pos, transactions, publication, published_at, seed)
	SELECT b.feed, b.sync_id + i, b.snapshot, b.last_pos, 0, 1, b.published_at, b.seed
	FROM generate_series(1, 25000) i, (SELECT * FROM feedpub._batch ORDER BY sync_id DESC LIMIT 1) b;
SELECT feedpub._merge_batches('"Odd ""Name"", with a comma"');
SELECT count(*), min(sync_id), max(sync_id), max(sync_id - merged_from) FROM feedpub._batch;
ROLLBACK;
-- Those of two server starts, which have other seeds, stay apart.
BEGIN;
DELETE FROM feedpub._batch WHERE merged_pos IS NOT NULL;
INSERT INTO feedpub._batch (feed, sync_id, snapshot, last_pos, transactions, publication, published_at, seed)
	SELECT b.feed, b.sync_id + i, b.snapshot, b.last_pos, 0, 1, '2000-01-01', b.seed + i / 10
	FROM generate_series(1, 29) i, (SELECT * FROM feedpub._batch ORDER BY sync_id DESC LIMIT 1) b;
SELECT feedpub._merge_batches('"Odd ""Name"", with a comma"') > 0 AS merged;
SELECT sync_id - merged_from AS others, count(*) FROM feedpub._batch WHERE transactions = 0 GROUP BY seed, 1 ORDER BY seed, 1;
ROLLBACK;
-- Young ones are merged as well, when there are many.
ALTER SYSTEM RESET feedpub.batch_retention;
ALTER SYSTEM SET feedpub.max_unmerged_batches = 12;
SELECT pg_reload_conf();
CALL wait_for_retention('7d');
\c
SET feedpub.max_batch_transactions = 10;
SELECT feedpub._merge_batches('"Odd ""Name"", with a comma"') > 0 AS merged;
SELECT count(*) FILTER (WHERE merged_pos IS NULL) AS unmerged, max(sync_id) FILTER (WHERE merged_pos IS NOT NULL) AS up_to FROM batches;
SET feedpub.read_wait = 0;
SELECT count(*) FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 1000) WHERE op = 'upsert';
ALTER SYSTEM RESET feedpub.max_unmerged_batches;
-- Not for everybody
CREATE ROLE regress_feedpub_reader;
GRANT ALL ON other TO regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
SELECT feedpub._merge_batches('other');
\echo :SQLSTATE
RESET ROLE;
-- A table that is no feed has none.
SELECT feedpub._merge_batches('before_merge');
SELECT feedpub._merge_batches(NULL) IS NULL AS nothing;

SELECT pg_reload_conf();
DROP FUNCTION compare;
DROP PROCEDURE write_row, wait_for_retention;
DROP VIEW batches;
DROP EXTENSION dblink;
DROP TABLE before_merge;
SELECT count(feed_drop(feed::text)) FROM feedpub.feeds;
DROP ROLE regress_feedpub_reader;
