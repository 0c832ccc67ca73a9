-- What a policy removes and what it keeps: clocks, sizes, huge and old
-- transactions, and the deletes of a table feed.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
SELECT feed_stop_worker() IS NOT NULL AS stopped;
DO $$
BEGIN
	WHILE EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'feedpub worker' AND datname = current_database()) LOOP
		PERFORM pg_stat_clear_snapshot();
	END LOOP;
END $$;
\set VERBOSITY terse
SET feedpub.read_wait = 0;
SELECT feed_create('limited');
CREATE PROCEDURE messages(VARIADIC names text[]) LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO limited (message_type, data) SELECT n, to_jsonb(repeat(n, 1000)) FROM unnest(names) n;
	COMMIT;
	CALL feed_publish('limited');
END $$;
-- The batches are that old, from the oldest on.
CREATE PROCEDURE ages(of regclass, VARIADIC ages interval[]) LANGUAGE sql AS $$
	UPDATE feedpub._batch b SET published_at = now() - ages[n.n]
	FROM (SELECT sync_id, row_number() OVER (ORDER BY sync_id) AS n FROM feedpub._batch
		WHERE feed = of AND sync_id > (SELECT sync_id FROM feedpub._floor WHERE feed = of)) n
	WHERE b.feed = of AND b.sync_id = n.sync_id
$$;
-- What is read from the floor on, and what holds it there.
CREATE VIEW state AS
	SELECT (SELECT string_agg((entry).message_type, '' ORDER BY cursor COLLATE "C") FROM feed_read(NULL::limited) WHERE op = 'upsert') AS rows, held_by
	FROM feedpub.feeds WHERE feed = 'limited'::regclass;
-- A feed without rows.
SELECT feed_retain('limited', '0', '1 day', 1);
SELECT feedpub._move_floor('limited');
CALL feed_purge('limited', feed_head('limited'));
TABLE state;
-- Without subscriptions keep alone decides.
CALL messages('a');
CALL messages('b');
CALL messages('c');
SELECT feed_retain('limited', '1 hour');
CALL ages('limited', '61 min', '59 min', '0');
SELECT feedpub._move_floor('limited');
TABLE state;
-- Without keep a subscription holds back nothing.
SELECT feed_subscribe('absent', 'limited', 'earliest') = feed_floor('limited') AS at_floor;
SELECT feed_retain('limited', max_age => '1 hour');
CALL ages('limited', '59 min', '0');
SELECT feedpub._move_floor('limited');
TABLE state;
CALL ages('limited', '61 min', '0');
SELECT feedpub._move_floor('limited');
TABLE state;
SELECT name, expired FROM feedpub.subscriptions;
-- It is refused until it seeks.
SELECT feed_poll('absent');
-- Until then it holds back nothing.
SELECT feed_retain('limited', '0');
SELECT feedpub._move_floor('limited');
TABLE state;
CALL messages('c');
SELECT feed_seek('absent', 'earliest') = feed_floor('limited') AS at_floor;
SELECT (entry).message_type FROM feed_poll_rows('absent', NULL::limited);
SELECT feed_unsubscribe('absent');
-- The clock was a day ahead for a while: what was published then goes a day
-- later, and what was published after it waits for that.
CALL messages('d');
CALL messages('e');
SELECT feed_retain('limited', '1 hour');
CALL ages('limited', '2 hours', '-1 day', '2 hours');
SELECT feedpub._move_floor('limited');
TABLE state;
CALL ages('limited', '1 day', '1 day');
SELECT feedpub._move_floor('limited');
-- The clock was a day slow when g was published: it goes with f, which came
-- before.
CALL messages('f');
CALL messages('g');
CALL ages('limited', '0', '1 day');
SELECT feedpub._move_floor('limited');
TABLE state;
CALL feed_purge('limited', feed_head('limited'));
-- Sizes: ten rows of about 1000 bytes.
CALL messages('a', 'b');
CALL messages('c', 'd', 'e');
CALL messages('f', 'g', 'h', 'i');
CALL messages('j');
SELECT pg_stat_force_next_flush();
SELECT feed_retain('limited', max_size => 20000);
SELECT feedpub._move_floor('limited');
TABLE state;
-- Rows that were rolled back do not count.
DO $$
BEGIN
	FOR i IN 1..100 LOOP
		BEGIN
			INSERT INTO limited (message_type, data) VALUES ('no', '{}');
			RAISE 'no';
		EXCEPTION WHEN raise_exception THEN
		END;
	END LOOP;
END $$;
CALL messages('k');
SELECT pg_stat_force_next_flush();
SELECT feedpub._move_floor('limited');
TABLE state;
SELECT feed_retain('limited', max_size => 1);
SELECT feedpub._move_floor('limited') > 0 AS moved;
TABLE state;
SELECT pg_stat_force_next_flush();
-- One huge transaction is one batch: it goes as a whole.
SELECT feed_retain('limited');
INSERT INTO limited (message_type, data) SELECT 'h', '{}' FROM generate_series(1, 20000);
CALL feed_publish('limited');
SELECT cursor AS middle FROM feed_read(NULL::limited, '', 10000) ORDER BY cursor COLLATE "C" DESC LIMIT 1 \gset
CALL feed_purge('limited', :'middle');
SELECT count(*) FROM limited;
SELECT feed_page('limited', :'middle', 1) IS NOT NULL AS read;
CALL feed_purge('limited', feed_head('limited'));
SELECT feed_page('limited', :'middle', 1);
SELECT count(*) FROM limited;
-- A dump of the feed is restored where fewer transactions were made: the rows
-- that are written then are not before the floor, though its batch has seen them.
SELECT feed_head('limited') AS head \gset
BEGIN;
UPDATE feedpub._batch SET snapshot = '1000000000:1000000000:' WHERE feed = 'limited'::regclass;
DELETE FROM feedpub._job WHERE feed = 'limited'::regclass;
INSERT INTO limited (message_type, data) VALUES ('new', '{}');
COMMIT;
CALL feed_purge('limited', :'head');
SELECT message_type FROM limited;
SELECT feed_begin_history('limited');
CALL feed_publish('limited');
CALL feed_purge('limited', feed_head('limited'));
SELECT count(*) FROM limited;
-- An error may tell of rows: only the owner sees its text.
CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'secret %', OLD.message_type; END $$;
CREATE TRIGGER tell AFTER DELETE ON limited FOR EACH ROW EXECUTE FUNCTION tell();
CALL messages('a');
CALL feed_purge('limited', feed_head('limited'));
CREATE ROLE regress_feedpub_monitor;
GRANT pg_read_all_stats TO regress_feedpub_monitor;
SELECT held_by FROM feedpub.feeds WHERE feed = 'limited'::regclass;
SET ROLE regress_feedpub_monitor;
SELECT held_by FROM feedpub.feeds WHERE feed = 'limited'::regclass;
RESET ROLE;
DROP ROLE regress_feedpub_monitor;
DROP TRIGGER tell ON limited;
DROP FUNCTION tell();
CALL feed_purge('limited', feed_head('limited'));
-- A cursor at the end of the youngest batch of some that were merged has passed
-- all of them, though its position is before those of a reader in the middle.
SELECT feed_create('other');
BEGIN;
INSERT INTO other (message_type, data) VALUES ('open', '{}');
PREPARE TRANSACTION 'regress_feedpub open';
BEGIN;
INSERT INTO limited (message_type, data) VALUES ('a', '{}');
PREPARE TRANSACTION 'regress_feedpub late';
CALL messages('b');
CALL messages('c');
COMMIT PREPARED 'regress_feedpub late';
CALL feed_publish('limited');
SELECT feed_head('limited') AS youngest \gset
CALL messages('d');
UPDATE feedpub._batch SET published_at = '2000-01-01' WHERE feed = 'limited'::regclass;
SET feedpub.max_batch_transactions = 3;
SELECT feedpub._merge_batches('limited');
SELECT feed_subscribe('reader', 'limited', 'earliest') = feed_floor('limited') AS at_floor;
SELECT feed_ack('reader', max(receipt COLLATE "C")) FROM feed_poll('reader', 2);
CALL feed_purge('limited', :'youngest');
SELECT string_agg((entry).message_type, '' ORDER BY cursor COLLATE "C") FROM feed_poll_rows('reader', NULL::limited, 1);
SELECT feed_ack('reader', receipt) FROM feed_poll('reader', 1);
CALL feed_purge('limited', :'youngest');
SELECT (entry).message_type FROM feed_poll_rows('reader', NULL::limited);
SELECT feed_unsubscribe('reader');
-- The batch at whose end the floor is stays as it is, and those after it are
-- merged.
CALL messages('e');
SELECT feed_head('limited') AS floor \gset
CALL messages('f');
CALL messages('g');
CALL messages('h');
CALL feed_purge('limited', :'floor');
UPDATE feedpub._batch SET published_at = '2000-01-01' WHERE feed = 'limited'::regclass;
SET feedpub.max_batch_transactions = 2;
SELECT feedpub._merge_batches('limited');
SELECT b.sync_id - f.sync_id AS after_floor, b.merged_from IS NOT NULL AS is_merged FROM feedpub._batch b JOIN feedpub._floor f USING (feed) WHERE feed = 'limited'::regclass ORDER BY 1;
ROLLBACK PREPARED 'regress_feedpub open';
RESET feedpub.max_batch_transactions;
SELECT feed_drop('other');
DROP VIEW state;
SELECT feed_drop('limited');
DROP PROCEDURE messages;

-- The deletes of a table feed: kept for keep, and until subscriptions have
-- them; max_age expires these.
CREATE TABLE kv (k int PRIMARY KEY, v text);
INSERT INTO kv SELECT i, 'v' FROM generate_series(1, 9) i;
SELECT feed_attach('kv') IS NULL AS ready;
CREATE PROCEDURE deletes(id int) LANGUAGE plpgsql AS $$
BEGIN
	DELETE FROM kv WHERE k = id;
	COMMIT;
	CALL feed_publish('kv');
END $$;
CALL feed_publish('kv');
SELECT feed_subscribe('copy', 'kv', 'latest') AS newest \gset
CALL deletes(1);
SELECT feed_head('kv') AS one \gset
CALL deletes(2);
SELECT feed_head('kv') AS two \gset
CALL deletes(3);
SELECT feed_retain('kv', '1 hour', max_size => 1);
SELECT feed_retain('kv', '1 hour');
CALL ages('kv', '5 hours', '4 hours', '3 hours', '0');
SELECT feedpub._move_floor('kv');
SELECT count(*) AS deletes FROM feedpub._tombstone WHERE feed = 'kv'::regclass;
SELECT held_by FROM feedpub.feeds WHERE feed = 'kv'::regclass;
SELECT feed_page('kv', :'newest', 1) IS NOT NULL AS accepted;
SELECT feed_ack('copy', receipt) FROM feed_poll('copy', 1);
SELECT feedpub._move_floor('kv');
SELECT feed_page('kv', :'newest', 1);
SELECT feed_page('kv', :'one', 1) IS NOT NULL AS accepted;
SELECT expired FROM feedpub.subscriptions WHERE name = 'copy';
CALL feed_purge('kv', :'two');
SELECT feed_retain('kv', '1 hour', '2 hours');
SELECT feedpub._move_floor('kv');
SELECT expired FROM feedpub.subscriptions WHERE name = 'copy';
SELECT feed_poll('copy');
SELECT feed_seek('copy', 'earliest') IS NOT NULL AS sought;
SELECT count(*) FROM feed_poll('copy');
-- By hand.  The last batch stays, since the next newcomer's cursors point to it.
SELECT feed_unsubscribe('copy');
CALL feed_purge('kv', feed_head('kv'));
CALL deletes(4);
CALL feed_purge('kv', feed_head('kv'));
SELECT count(*) AS deletes FROM feedpub._tombstone WHERE feed = 'kv'::regclass;
SELECT feed_page('kv', :'two', 1);
SELECT count(*) FROM feed_read(NULL::kv);
-- Without a policy the setting counts.
SELECT feed_retain('kv');
SELECT keep, max_age, held_by FROM feedpub.feeds WHERE feed = 'kv'::regclass;
SELECT feed_detach('kv');
DROP TABLE kv;
DROP PROCEDURE ages;
