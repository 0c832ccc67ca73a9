-- feed_publish(): what has been committed becomes a batch, of whatever
-- transactions it is; a backlog becomes several.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
CREATE EXTENSION dblink;
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
SELECT feed_create('"Odd ""Name"", with a comma"');
-- The batches of a feed
CREATE FUNCTION batches(feed regclass) RETURNS TABLE (sync_id bigint, transactions int, last_pos bigint)
LANGUAGE sql AS $$ SELECT b.sync_id, b.transactions, b.last_pos FROM feedpub._batch b WHERE b.feed = $1 ORDER BY sync_id $$;
-- What is in them, according to their snapshots
CREATE VIEW content AS
	SELECT b.feed, b.sync_id, t.message_type
	FROM (SELECT feed, sync_id, snapshot, lag(snapshot, 1, '1:1:') OVER (PARTITION BY feed ORDER BY sync_id) AS before FROM feedpub._batch) b
	JOIN "Odd ""Name"", with a comma" t
		ON pg_visible_in_snapshot(t.feed_xid, b.snapshot) AND NOT pg_visible_in_snapshot(t.feed_xid, b.before)
	WHERE b.feed = '"Odd ""Name"", with a comma"'::regclass
	ORDER BY b.sync_id, t.feed_pos;

--
-- A batch for news, and none without
--
CALL feed_publish('"Odd ""Name"", with a comma"');
SELECT * FROM batches('"Odd ""Name"", with a comma"');
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('a', '1');
CALL feed_publish('"Odd ""Name"", with a comma"');
SELECT * FROM batches('"Odd ""Name"", with a comma"');
CALL feed_publish('"Odd ""Name"", with a comma"');
CALL feed_publish();
SELECT * FROM batches('"Odd ""Name"", with a comma"');
-- Many commits between two steps become one batch.
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('b', '1');
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('c', '1'), ('d', '1');
BEGIN;
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('e', '1');
SAVEPOINT s;
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('f', '1');
ROLLBACK TO s;
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('g', '1');
COMMIT;
CALL feed_publish('"Odd ""Name"", with a comma"');
SELECT * FROM batches('"Odd ""Name"", with a comma"');
TABLE content;
-- No news: what was rolled back, what was deleted again, what others wrote
BEGIN;
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('x', '1');
ROLLBACK;
BEGIN;
SAVEPOINT s;
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('x', '1');
ROLLBACK TO s;
COMMIT;
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('x', '1');
DELETE FROM "Odd ""Name"", with a comma" WHERE message_type = 'x';
CREATE TABLE other AS SELECT 1 AS i;
DROP TABLE other;
CALL feed_publish('"Odd ""Name"", with a comma"');
SELECT count(*) FROM batches('"Odd ""Name"", with a comma"');
VACUUM "Odd ""Name"", with a comma";
CALL feed_publish('"Odd ""Name"", with a comma"');
SELECT count(*) FROM batches('"Odd ""Name"", with a comma"');
-- A prepared transaction is in the first batch after its end, whatever was
-- published while it was there; its row comes once.
BEGIN;
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('h', '1');
PREPARE TRANSACTION 'regress_feedpub';
CALL feed_publish('"Odd ""Name"", with a comma"');
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('i', '1');
CALL feed_publish('"Odd ""Name"", with a comma"');
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('j', '1');
CALL feed_publish('"Odd ""Name"", with a comma"');
COMMIT PREPARED 'regress_feedpub';
CALL feed_publish('"Odd ""Name"", with a comma"');
CALL feed_publish('"Odd ""Name"", with a comma"');
TABLE content;
-- Rows that go after they were published leave the batch as it is.
DELETE FROM "Odd ""Name"", with a comma" WHERE message_type IN ('h', 'i');
CALL feed_publish('"Odd ""Name"", with a comma"');
SELECT count(*) FROM batches('"Odd ""Name"", with a comma"');
-- When each was published, as far as a test may know
SELECT bool_and(published_at BETWEEN now() - interval '1 hour' AND clock_timestamp()) AS recent,
	count(DISTINCT (feed, publication)) = count(*) AS publications_differ,
	bool_and(transactions > 0) AS none_empty
	FROM feedpub._batch;
-- Nobody else writes them.
CREATE ROLE regress_feedpub_owner;
CREATE ROLE regress_feedpub_reader;
\set VERBOSITY sqlstate
SET ROLE regress_feedpub_reader;
DELETE FROM feedpub._batch;
UPDATE feedpub._batch SET last_pos = 0;
INSERT INTO feedpub._batch SELECT * FROM feedpub._batch;
TRUNCATE feedpub._batch;
RESET ROLE;
\set VERBOSITY default

--
-- One feed or all; rights
--
CREATE SCHEMA shop AUTHORIZATION regress_feedpub_owner;
GRANT USAGE ON SCHEMA shop TO regress_feedpub_reader;
SET ROLE regress_feedpub_owner;
SELECT feed_create('shop.first', 'text');
SELECT feed_create('shop.second', 'json');
RESET ROLE;
SELECT feed_create('closed');
CREATE VIEW counted AS
	SELECT f.feed, (SELECT count(*) FROM feedpub._batch b WHERE b.feed = f.feed) AS batches
	FROM feedpub._feed f WHERE f.feed <> '"Odd ""Name"", with a comma"'::regclass ORDER BY f.feed::text COLLATE "C";
GRANT SELECT ON counted TO PUBLIC;
INSERT INTO shop.first (message_type, data) VALUES ('a', '1');
INSERT INTO shop.second (message_type, data) VALUES ('a', '1');
INSERT INTO closed (message_type, data) VALUES ('a', '1');
-- By name: only that feed, and only by a role that may read it
SET ROLE regress_feedpub_reader;
CALL feed_publish('shop.first');
\echo :SQLSTATE
CALL feed_publish('closed');
\echo :SQLSTATE
-- All: those that one may read, which is none so far
CALL feed_publish();
TABLE counted;
RESET ROLE;
GRANT SELECT ON shop.second TO regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
CALL feed_publish(NULL);
TABLE counted;
INSERT INTO shop.second (message_type, data) VALUES ('a', '1');
\echo :SQLSTATE
SET ROLE regress_feedpub_owner;
CALL feed_publish('shop.first');
INSERT INTO shop.first (message_type, data) VALUES ('b', '1');
INSERT INTO shop.second (message_type, data) VALUES ('b', '1');
CALL feed_publish(feed => NULL);
TABLE counted;
RESET ROLE;
CALL feed_publish();
TABLE counted;
-- A right on a column is a right to read; row security does not matter, for
-- a batch says nothing of what is in it.
INSERT INTO shop.first (message_type, data) VALUES ('c', '1');
GRANT SELECT (message_type) ON shop.first TO regress_feedpub_reader;
ALTER TABLE shop.first ENABLE ROW LEVEL SECURITY;
CREATE POLICY nothing ON shop.first USING (false);
SET ROLE regress_feedpub_reader;
CALL feed_publish('shop.first');
TABLE counted;
RESET ROLE;

--
-- What it refuses
--
-- No feed
CREATE TABLE plain (feed_xid xid8, feed_pos bigint);
CALL feed_publish('plain');
\echo :SQLSTATE
CALL feed_publish('counted');
\echo :SQLSTATE
CALL feed_publish('feedpub._batch');
\echo :SQLSTATE
CALL feed_publish('nothing');
\echo :SQLSTATE
\set VERBOSITY sqlstate
CALL feed_publish(0);
CALL feed_publish(4294967295);
\set VERBOSITY default
DROP TABLE plain;
-- A transaction block, of any kind
BEGIN;
CALL feed_publish('closed');
\echo :SQLSTATE
ROLLBACK;
BEGIN;
CALL feed_publish();
\echo :SQLSTATE
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY;
CALL feed_publish();
\echo :SQLSTATE
ROLLBACK;
SELECT 1 AS one \; CALL feed_publish('closed');
\echo :SQLSTATE
\set VERBOSITY sqlstate
CREATE FUNCTION publish() RETURNS void LANGUAGE plpgsql AS $$ BEGIN CALL feed_publish('closed'); END $$;
SELECT publish();
DO $$ BEGIN PERFORM publish(); END $$;
BEGIN;
DO $$ BEGIN CALL feed_publish('closed'); END $$;
ROLLBACK;
-- A procedure with settings of its own is one.
CREATE PROCEDURE publish_set() LANGUAGE plpgsql SET search_path = pg_catalog, public AS $$ BEGIN CALL feed_publish('closed'); END $$;
CALL publish_set();
-- So is a block that catches errors.
DO $$ BEGIN CALL feed_publish('closed'); EXCEPTION WHEN division_by_zero THEN NULL; END $$;
\set VERBOSITY default
-- None of it has published anything.
INSERT INTO closed (message_type, data) VALUES ('b', '1');
TABLE counted;
-- Where a procedure may end its transaction it may publish; each feed in a
-- transaction of its own, after what the block has done so far.
DO $$
BEGIN
	INSERT INTO closed (message_type, data) VALUES ('c', '1');
	CALL feed_publish('closed');
	INSERT INTO closed (message_type, data) VALUES ('d', '1');
	CALL feed_publish('closed');
	CALL feed_publish();
	RAISE NOTICE '% batches', (SELECT count(*) FROM feedpub._batch WHERE feed = 'closed'::regclass);
END $$;
SELECT * FROM batches('closed');
CREATE PROCEDURE publish_twice() LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO closed (message_type, data) VALUES ('e', '1');
	COMMIT;
	CALL feed_publish('closed');
	INSERT INTO closed (message_type, data) VALUES ('f', '1');
	CALL feed_publish('closed');
END $$;
CALL publish_twice();
SELECT count(*) FROM batches('closed');
DROP FUNCTION publish;
DROP PROCEDURE publish_set, publish_twice;

--
-- The defaults of database and role are not those of the step.
--
ALTER DATABASE :"DBNAME" SET default_transaction_isolation = 'serializable';
ALTER DATABASE :"DBNAME" SET default_transaction_deferrable = on;
ALTER DATABASE :"DBNAME" SET default_transaction_read_only = on;
ALTER DATABASE :"DBNAME" SET synchronous_commit = off;
ALTER DATABASE :"DBNAME" SET search_path = nowhere;
ALTER DATABASE :"DBNAME" SET statement_timeout = '1min';
ALTER DATABASE :"DBNAME" SET row_security = off;
\c
BEGIN READ WRITE;
INSERT INTO public.closed (message_type, data) VALUES ('g', '1');
COMMIT;
CALL public.feed_publish('public.closed');
CALL public.feed_publish();
SHOW transaction_isolation;
SHOW transaction_read_only;
SHOW synchronous_commit;
SELECT count(*) FROM public.batches('public.closed');
SET default_transaction_read_only = off;
ALTER DATABASE :"DBNAME" RESET ALL;
\c
SET feedpub.read_wait = 0;
SELECT op, (entry).message_type FROM feed_read(NULL::closed, '', 100);
-- A batch is on disk when it is published, whatever synchronous_commit says
-- here; where feedpub.publish_synchronous_commit is off, when it is read.
SET synchronous_commit = off;
CREATE PROCEDURE publish_and_read(INOUT published boolean, INOUT read boolean) LANGUAGE plpgsql AS $$
DECLARE
	head text;
	written pg_lsn;
BEGIN
	FOR i IN 1..20 LOOP
		INSERT INTO closed (message_type, data) VALUES ('durable', '1');
		COMMIT;
		head := feed_head('closed');
		written := pg_current_wal_insert_lsn();
		CALL feed_publish('closed');
		published := published AND pg_current_wal_flush_lsn() > written;
		PERFORM FROM feed_read(NULL::closed, head, 10);
		read := read AND pg_current_wal_flush_lsn() > written;
		COMMIT;
	END LOOP;
END $$;
CALL publish_and_read(true, true);
SET feedpub.publish_synchronous_commit = off;
CALL publish_and_read(false, true);
RESET feedpub.publish_synchronous_commit;
RESET synchronous_commit;
DROP PROCEDURE publish_and_read;

--
-- A backlog: cut into batches of few transactions, by the last position of
-- each.
--
-- Transactions of several connections, written in turns.  A message's type is
-- the number of its event, its key that of its transaction.
CREATE TABLE committed (transaction int, event int);
CREATE PROCEDURE connect(names text[]) LANGUAGE plpgsql AS $$
DECLARE
	name text;
BEGIN
	FOREACH name IN ARRAY names LOOP
		PERFORM dblink_connect(name, format('dbname=%L user=%L host=%L port=%L', current_database(), current_user,
			split_part(current_setting('unix_socket_directories'), ',', 1), current_setting('port')));
	END LOOP;
END $$;
CREATE PROCEDURE write_in_turns(writers int, events int) LANGUAGE plpgsql AS $$
DECLARE
	transactions int[] := array_fill(NULL::int, array[writers]);
	first int := (SELECT coalesce(max(transaction), 0) FROM committed);
	event int := (SELECT coalesce(max(c.event), 0) FROM committed c);
	latest int := first + 1;
	last_event int := event + events;
	w int;
	r float8;
	c text;
BEGIN
	WHILE event < last_event OR transactions <> array_fill(NULL::int, array[writers]) LOOP
		event := event + 1;
		w := 1 + floor(random() * writers)::int;
		c := 'w' || w;
		r := random();
		IF transactions[w] IS NULL THEN
			CONTINUE WHEN event > last_event;
			transactions[w] := latest;
			latest := latest + 1;
			PERFORM dblink_exec(c, 'BEGIN');
			IF r < 0.3 THEN
				PERFORM dblink_exec(c, 'DO $x$BEGIN PERFORM pg_current_xact_id(); END$x$');
			END IF;
		ELSIF r < 0.6 AND event <= last_event THEN
			PERFORM dblink_exec(c, format('INSERT INTO closed (message_type, message_key, data) SELECT %L, %L, ''1'' FROM generate_series(1, %s)',
				event, transactions[w], 1 + floor(random() * 3)::int));
		ELSIF r < 0.7 AND event <= last_event THEN
			PERFORM dblink_exec(c, 'SAVEPOINT s');
			PERFORM dblink_exec(c, format('INSERT INTO closed (message_type, message_key, data) VALUES (%L, %L, ''1'')', event, transactions[w]));
			PERFORM dblink_exec(c, CASE WHEN random() < 0.5 THEN 'ROLLBACK TO s' ELSE 'RELEASE s' END);
		ELSIF r < 0.95 THEN
			PERFORM dblink_exec(c, 'COMMIT');
			INSERT INTO committed VALUES (transactions[w], event);
			transactions[w] := NULL;
		ELSE
			PERFORM dblink_exec(c, 'ROLLBACK');
			transactions[w] := NULL;
		END IF;
	END LOOP;
	INSERT INTO committed VALUES (latest, event);
END $$;
-- The published order of all rows, according to the snapshots of the batches
CREATE VIEW published AS
	SELECT row_number() OVER (ORDER BY b.sync_id, t.feed_pos) AS n, b.sync_id, t.feed_pos, t.message_type, t.message_key::int AS transaction, t.message_type::int AS event
	FROM (SELECT sync_id, snapshot, lag(snapshot, 1, '1:1:') OVER (ORDER BY sync_id) AS before
		FROM feedpub._batch WHERE feed = 'closed'::regclass) b
	JOIN closed t ON pg_visible_in_snapshot(t.feed_xid, b.snapshot) AND NOT pg_visible_in_snapshot(t.feed_xid, b.before);
-- What must hold: each row is in one batch; none has more transactions than
-- it may; and a row that was written after another's transaction had committed
-- comes after it.
CREATE FUNCTION check_batches(per_batch int, OUT batches_are_many bool, OUT missing bigint, OUT repeated bigint, OUT too_large bigint, OUT miscounted bigint, OUT inverted bigint, OUT read_otherwise bigint)
LANGUAGE sql AS $$
	SELECT (SELECT count(*) > 10 FROM feedpub._batch WHERE feed = 'closed'::regclass),
		(SELECT count(*) FROM closed WHERE feed_pos NOT IN (SELECT feed_pos FROM published)),
		(SELECT count(*) - count(DISTINCT feed_pos) FROM published),
		(SELECT count(*) FROM feedpub._batch WHERE feed = 'closed'::regclass AND transactions > per_batch),
		(SELECT count(*) FROM feedpub._batch b WHERE feed = 'closed'::regclass
			AND (transactions < (SELECT count(DISTINCT transaction) FROM published p WHERE p.sync_id = b.sync_id)
				OR last_pos < (SELECT max(feed_pos) FROM published p WHERE p.sync_id = b.sync_id))),
		(SELECT count(*) FROM published a JOIN committed c USING (transaction)
			JOIN published b ON b.event > c.event AND b.transaction <> a.transaction
			WHERE a.n > b.n),
		(SELECT count(*) FROM published p FULL JOIN
			(SELECT row_number() OVER () AS n, (entry).feed_pos FROM feed_read(NULL::closed, '', 10000)) r USING (n)
			WHERE p.feed_pos IS DISTINCT FROM r.feed_pos)
$$;
-- The same for the order in which transactions began, which inverts some:
-- what is compared is worth comparing.
CREATE FUNCTION inverted_in_xid_order() RETURNS bigint LANGUAGE sql AS $$
	WITH o AS (SELECT row_number() OVER (ORDER BY feed_xid, feed_pos) AS n, message_key::int AS transaction, message_type::int AS event FROM closed)
	SELECT count(*) FROM o a JOIN committed c USING (transaction)
		JOIN o b ON b.event > c.event AND b.transaction <> a.transaction
		WHERE a.n > b.n
$$;
TRUNCATE closed;
DELETE FROM feedpub._batch WHERE feed = 'closed'::regclass;
CALL connect('{w1,w2,w3,w4,w5,w6,w7,w8}');
SET jit = off;
SELECT setseed(0.25);
-- Nobody publishes for a while; then one transaction a batch.
CALL write_in_turns(8, 600);
SELECT count(*) > 200 AS rows, count(DISTINCT feed_xid) > 50 AS transactions FROM closed;
SELECT inverted_in_xid_order() > 0 AS inverted_in_xid_order;
SET feedpub.max_batch_transactions = 1;
CALL feed_publish('closed');
SELECT * FROM check_batches(1);
-- (Those that were rolled back take part, and are not counted in the batch.)
SELECT count(*) AS parts, sum(transactions) AS transactions FROM batches('closed') \gset
SELECT :parts >= :transactions AND :transactions >= (SELECT count(DISTINCT feed_xid) FROM closed) AS all_of_them, max(transactions) AS most FROM batches('closed');
CALL feed_publish('closed');
SELECT count(*) - :parts AS more FROM batches('closed');
-- Three
DELETE FROM feedpub._batch WHERE feed = 'closed'::regclass;
SET feedpub.max_batch_transactions = 3;
CALL feed_publish('closed');
SELECT * FROM check_batches(3);
SELECT max(transactions) AS most, count(*) = ceil(:parts / 3.0) AS no_more_than_needed, sum(transactions) = :transactions AS same FROM batches('closed');
-- As many as there are, and one less
SET feedpub.max_batch_transactions = :parts;
DELETE FROM feedpub._batch WHERE feed = 'closed'::regclass;
CALL feed_publish('closed');
SELECT count(*) AS batches FROM batches('closed');
SELECT :parts - 1 AS fewer \gset
SET feedpub.max_batch_transactions = :fewer;
DELETE FROM feedpub._batch WHERE feed = 'closed'::regclass;
CALL feed_publish('closed');
SELECT count(*) AS batches, min(transactions) <= 1 AS one_is_left FROM batches('closed');
-- The backlog grows around a prepared transaction and an open one, and is cut
-- while they are there, twice.
DELETE FROM feedpub._batch WHERE feed = 'closed'::regclass;
SET feedpub.max_batch_transactions = 5;
CALL connect('{open}');
SELECT dblink_exec('open', 'BEGIN');
SELECT dblink_exec('open', $$INSERT INTO closed (message_type, message_key, data) VALUES ('0', '100001', '1')$$);
BEGIN;
INSERT INTO closed (message_type, message_key, data) VALUES ('0', '100002', '1'), ('0', '100002', '2');
PREPARE TRANSACTION 'regress_feedpub';
CALL write_in_turns(8, 200);
CALL feed_publish('closed');
SELECT batches_are_many, missing, repeated, too_large, miscounted, inverted, read_otherwise FROM check_batches(5);
CALL write_in_turns(8, 200);
SELECT dblink_exec('open', format('INSERT INTO closed (message_type, message_key, data) VALUES (%L, ''100001'', ''1'')', max(event) + 1)) FROM committed;
SELECT dblink_exec('open', 'COMMIT');
INSERT INTO committed SELECT 100001, max(event) + 2 FROM committed;
CALL write_in_turns(8, 100);
COMMIT PREPARED 'regress_feedpub';
INSERT INTO committed SELECT 100002, max(event) + 1 FROM committed;
CALL write_in_turns(8, 100);
CALL feed_publish('closed');
SELECT * FROM check_batches(5);
-- Each of them is a snapshot that sees all that the one before it does.
SELECT count(*) AS not_growing
	FROM (SELECT snapshot, lag(snapshot) OVER (ORDER BY sync_id) AS before FROM feedpub._batch WHERE feed = 'closed'::regclass) b
	JOIN closed t ON pg_visible_in_snapshot(t.feed_xid, before) AND NOT pg_visible_in_snapshot(t.feed_xid, snapshot);
-- Lists of those in progress stay short: there were ten connections.
SELECT max((SELECT count(*) FROM pg_snapshot_xip(snapshot))) <= 20 AS short FROM feedpub._batch WHERE feed = 'closed'::regclass;
-- Published at once, the order is as good.
DELETE FROM feedpub._batch WHERE feed = 'closed'::regclass;
RESET feedpub.max_batch_transactions;
CALL feed_publish('closed');
SELECT missing, repeated, too_large, miscounted, inverted, read_otherwise FROM check_batches(1000);
-- Batches that have seen what this server has not done yet are another's.
BEGIN;
UPDATE feedpub._batch SET snapshot = '1000000000:1000000000:' WHERE feed = 'closed'::regclass;
COMMIT;
INSERT INTO closed (message_type, message_key, data) VALUES ('0', '0', '1');
CALL feed_publish('closed');
\echo :SQLSTATE
-- So are those that have seen what has not ended.
BEGIN;
INSERT INTO closed (message_type, message_key, data) VALUES ('0', '0', '1');
PREPARE TRANSACTION 'regress_feedpub';
UPDATE feedpub._batch SET snapshot = format('%1$s:%1$s:', pg_snapshot_xmax(pg_current_snapshot())::text::bigint + 1)::pg_snapshot WHERE feed = 'closed'::regclass;
CALL feed_publish('closed');
\echo :SQLSTATE
ROLLBACK PREPARED 'regress_feedpub';
CALL feed_publish('closed');

-- Many transactions get their ids in one order and their positions in the
-- opposite one: the snapshot of each batch lists all those that come later.
SELECT feed_create('inverse');
DO $$
BEGIN
	FOR i IN 1..24 LOOP
		PERFORM dblink_connect('inverse_' || i, format('dbname=%L user=%L host=%L port=%L', current_database(), current_user,
			split_part(current_setting('unix_socket_directories'), ',', 1), current_setting('port')));
		PERFORM dblink_exec('inverse_' || i, 'BEGIN');
		PERFORM dblink_exec('inverse_' || i, 'DO $x$BEGIN PERFORM pg_current_xact_id(); END$x$');
	END LOOP;
	FOR i IN REVERSE 24..1 LOOP
		PERFORM dblink_exec('inverse_' || i, format('INSERT INTO inverse (message_type, data) VALUES (%L, ''1'')', i));
	END LOOP;
	FOR i IN 1..24 LOOP
		PERFORM dblink_exec('inverse_' || i, 'COMMIT');
		PERFORM dblink_disconnect('inverse_' || i);
	END LOOP;
END $$;
SET feedpub.max_batch_transactions = 1;
CALL feed_publish('inverse');
RESET feedpub.max_batch_transactions;
SELECT count(*) AS batches, max((SELECT count(*) FROM pg_snapshot_xip(snapshot))) AS longest FROM feedpub._batch WHERE feed = 'inverse'::regclass;
SELECT string_agg((entry).message_type, ' ' ORDER BY cursor COLLATE "C") FROM feed_read(NULL::inverse, '', 100) WHERE op = 'upsert';
SELECT feed_drop('inverse');

-- A last part in which nothing is visible is left to the next step.
SELECT feed_create('rest');
INSERT INTO rest (message_type, data) VALUES ('A', '1');
INSERT INTO rest (message_type, data) VALUES ('A', '2');
BEGIN;
INSERT INTO rest (message_type, data) VALUES ('A', '3');
ROLLBACK;
SET feedpub.max_batch_transactions = 2;
CALL feed_publish('rest');
SELECT array_agg(transactions) FROM feedpub._batch WHERE feed = 'rest'::regclass;
INSERT INTO rest (message_type, data) VALUES ('A', '4');
CALL feed_publish('rest');
SELECT array_agg(transactions ORDER BY sync_id) FROM feedpub._batch WHERE feed = 'rest'::regclass;
RESET feedpub.max_batch_transactions;
SELECT feed_drop('rest');

-- A transaction that writes rows and deletes some counts once.
CREATE TABLE twice (k int PRIMARY KEY);
SELECT feed_attach('twice');
INSERT INTO twice VALUES (1);
BEGIN;
INSERT INTO twice VALUES (2);
DELETE FROM twice WHERE k = 1;
COMMIT;
CALL feed_publish('twice');
SELECT sum(transactions) FROM feedpub._batch WHERE feed = 'twice'::regclass;
DROP TABLE twice;

DROP FUNCTION check_batches, inverted_in_xid_order;
DROP VIEW published, counted, content;
DROP PROCEDURE write_in_turns, connect;
DROP FUNCTION batches;
DROP TABLE committed;
SELECT feed_drop('closed');
SELECT feed_drop('"Odd ""Name"", with a comma"');
SET client_min_messages = warning;
DROP SCHEMA shop CASCADE;
DROP EXTENSION dblink;
RESET client_min_messages;
-- Nothing is left of the batches of feeds that were dropped; those whose
-- tables went with their schema are swept when the next feed is made.
SELECT feed_create('next');
SELECT feed_drop('next');
SELECT count(*) FROM feedpub._batch;
DROP ROLE regress_feedpub_owner, regress_feedpub_reader;
