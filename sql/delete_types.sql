-- Deletes and the types of their keys: if a type has changed, another history
-- begins; if it has lost a value, no reader is stopped by that.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
-- Entries, less what differs from run to run
CREATE FUNCTION steady(j json) RETURNS json LANGUAGE sql AS $$
	SELECT regexp_replace(j::text, '"cursor": "[^"]*", |, "xid": [^,]*, "published_at": ("[^"]*"|null)', '', 'g')::json
$$;
-- Here batches are made by hand: no worker, and reads do not wait for one.
SELECT feed_stop_worker() IS NOT NULL AS stopped;
DO $$
BEGIN
	WHILE EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'feedpub worker' AND datname = current_database()) LOOP
		PERFORM pg_stat_clear_snapshot();
	END LOOP;
END $$;
SET feedpub.read_wait = 0;
\set odd '"Odd ""Name"", with a comma"'
CREATE PROCEDURE attach(tab regclass) LANGUAGE plpgsql AS $$
DECLARE
	rest text := feed_attach(tab);
BEGIN
	IF rest <> '' THEN
		EXECUTE replace(rest, ' CONCURRENTLY', '');
	END IF;
END $$;
CREATE FUNCTION entries(feed regclass, shard int DEFAULT NULL, shards int DEFAULT NULL) RETURNS SETOF json LANGUAGE sql AS $$
	SELECT steady(json_array_elements(feed_page(feed, '', 100, shard, shards) -> 'entries'))
$$;

--
-- An enum's value is renamed, under a hostile name.
--
CREATE TYPE colour AS ENUM ('red', 'green', 'a "quoted", {one}');
CREATE TABLE :odd ("the ""key""" colour, n int, v text, PRIMARY KEY ("the ""key""", n));
CALL attach(:'odd');
INSERT INTO :odd VALUES ('red', 1, 'a'), ('green', 2, 'a'), ('a "quoted", {one}', 3, 'a'), ('red', 4, 'a');
DELETE FROM :odd WHERE n < 4;
CALL feed_publish();
SELECT op, (entry)."the ""key""", (entry).n, (entry).v FROM feed_read(NULL::public.:odd, '', 100);
SELECT entries(:'odd');
SELECT * FROM feed_check(:'odd');
ALTER TYPE colour RENAME VALUE 'red' TO 'crimson';
ALTER TYPE colour RENAME VALUE 'a "quoted", {one}' TO 'plain';
SELECT op, (entry)."the ""key""", (entry).n, (entry).v FROM feed_read(NULL::public.:odd, '', 100);
SELECT entries(:'odd');
-- A row of the feed after such a delete, and one page for each entry
INSERT INTO :odd VALUES ('plain', 5, 'after');
CALL feed_publish();
WITH RECURSIVE page (n, p) AS (
	SELECT 1, feed_page(:'odd', '', 1)
	UNION ALL
	SELECT n + 1, feed_page(:'odd', p ->> 'cursor', 1) FROM page WHERE p ->> 'more' = 'true'
)
SELECT n, steady(p -> 'entries') AS entries FROM page;
-- A subscription gets the error, and what it parks comes again as it was kept:
-- with the key, if that could be read then.
SELECT feed_subscribe('enum', :'odd', 'earliest') <> '' AS made;
ALTER TYPE colour RENAME VALUE 'crimson' TO 'red';
SELECT feed_park('enum', receipt, 'readable') FROM (SELECT receipt FROM feed_poll('enum') WHERE key ->> 'n' = '1') p;
ALTER TYPE colour RENAME VALUE 'red' TO 'crimson';
SELECT op, key, row IS NULL AS no_row, error FROM feed_poll('enum');
SELECT op, (entry).n FROM feed_poll_rows('enum', NULL::public.:odd);
SELECT feed_park('enum', receipt, 'unreadable') FROM (SELECT receipt FROM feed_poll('enum') WHERE error IS NOT NULL) p;
SELECT op, key, reason FROM feedpub.parked ORDER BY reason;
SELECT feed_park('enum', receipt, 'a row') FROM (SELECT receipt FROM feed_poll('enum') WHERE key ->> 'n' = '5') p;
SELECT feed_seek('enum', 'latest') <> '' AS moved;
SELECT feed_retry('enum');
SELECT op, entry FROM feed_poll_rows('enum', NULL::public.:odd, 1);
SELECT op, key, row, error, feed_ack('enum', receipt) FROM feed_poll('enum', 1);
SELECT op, key, row, error, feed_ack('enum', receipt) FROM feed_poll('enum', 1);
-- A row that cannot be found by its key stays parked.
UPDATE :odd SET v = 'changed' WHERE n = 5;
ALTER TYPE colour RENAME VALUE 'plain' TO 'other';
SELECT op, key, row, error FROM feed_poll('enum', 1);
SELECT reason FROM feedpub.parked;
ALTER TYPE colour RENAME VALUE 'other' TO 'plain';
SELECT op, key, row, error, feed_ack('enum', receipt) FROM feed_poll('enum', 1);
SELECT count(*) FROM feedpub.parked;
-- The name comes back: all is well again.
DELETE FROM :odd WHERE n = 5;
CALL feed_publish();
ALTER TYPE colour RENAME VALUE 'plain' TO 'other';
SELECT entries(:'odd');
ALTER TYPE colour RENAME VALUE 'other' TO 'plain';
SELECT op, (entry)."the ""key""", (entry).n, (entry).v FROM feed_read(NULL::public.:odd, '', 100);

--
-- Columns are retyped: until another history begins, nothing is read.
--
CREATE TABLE retyped (a text, b varchar(20), v text, PRIMARY KEY (a, b));
CALL attach('retyped');
INSERT INTO retyped VALUES ('1', 'x', 'a'), ('abc', 'y', 'a'), ('2', 'much longer', 'a'), ('def', 'longer as well', 'a');
DELETE FROM retyped;
INSERT INTO retyped VALUES ('2', 'lives', 'a');
CALL feed_publish();
SELECT feed_subscribe('retyped', 'retyped', 'earliest') <> '' AS made;
SELECT feed_nack('retyped', receipt, delay => '0') FROM (SELECT receipt FROM feed_poll('retyped', 1)) p;
SELECT feed_ack('retyped', receipt) FROM feed_poll('retyped', 1) WHERE attempt = 1;
SELECT feed_head('retyped') AS head \gset
ALTER TABLE retyped ALTER a TYPE int USING a::int;
SELECT entries('retyped');
\echo :SQLSTATE
\set VERBOSITY terse
SELECT op, (entry).a, (entry).b, (entry).v FROM feed_read(NULL::retyped, '', 100);
SELECT feed_page('retyped', :'head');
SELECT feed_wait('retyped', :'head', '0');
CALL feed_await('retyped', :'head', '0');
SELECT * FROM feed_poll('retyped');
SELECT feed_seek('retyped', :'head');
SELECT op, (entry).a FROM feed_poll_rows('retyped', NULL::retyped);
\echo :SQLSTATE
\set VERBOSITY default
SELECT state FROM feedpub.feeds WHERE feed = 'retyped'::regclass;
SELECT * FROM feed_check('retyped');
-- Writers and the publisher go on; xid order is refused as well.
INSERT INTO retyped VALUES (3, 'z', 'new');
DELETE FROM retyped WHERE a = 2;
CALL feed_publish('retyped');
SELECT a, b FROM feed_fetch(NULL::retyped, '0', 0, 10);
-- The type comes back, but the values may be others: it is refused as before.
ALTER TABLE retyped ALTER a TYPE text;
\set VERBOSITY terse
SELECT entries('retyped');
SELECT feed_wait('retyped', :'head', '0');
\set VERBOSITY default
SELECT feed_begin_history('retyped');
CALL feed_publish('retyped');
SELECT entries('retyped');
INSERT INTO retyped VALUES ('1', 'x', 'a'), ('abc', 'y', 'a'), ('2', 'much longer', 'a'), ('def', 'longer as well', 'a');
DELETE FROM retyped WHERE v = 'a';
CALL feed_publish('retyped');
SELECT feed_head('retyped') AS head \gset
-- A longer length is no other type, nor is a domain or varchar, nor another name.
CREATE DOMAIN short AS varchar(30);
ALTER DOMAIN short RENAME TO shorter;
ALTER TABLE retyped ALTER a TYPE varchar, ALTER b TYPE varchar(30);
ALTER TABLE retyped ALTER b TYPE shorter;
SELECT entries('retyped');
SELECT op, (entry).a, (entry).b FROM feed_read(NULL::retyped, '', 3);
SELECT * FROM feed_check('retyped');
-- Each delete is in the shard that it was in.
SELECT shard, count(e) FROM generate_series(0, 6) shard, entries('retyped', shard, 7) e WHERE e ->> 'op' = 'delete' GROUP BY 1 ORDER BY 1;
-- feed_attach(), called again, begins another history.
ALTER TABLE retyped ALTER a TYPE int USING a::int;
SELECT feed_attach('retyped');
SELECT feed_attach('retyped');
CALL feed_publish('retyped');
SELECT entries('retyped');
SELECT feed_page('retyped', :'head');
\echo :SQLSTATE
SELECT * FROM feed_poll('retyped');
\echo :SQLSTATE
SELECT feed_seek('retyped', 'earliest') <> '' AS moved;
SELECT op, key, attempt FROM feed_poll('retyped');
SELECT state FROM feedpub.feeds WHERE feed = 'retyped'::regclass;
SELECT * FROM feed_check('retyped');
-- So does feed_repair(), once there is the index; and feed_begin_history().
ALTER TABLE retyped ALTER a TYPE bigint, DISABLE TRIGGER zz_feedpub_delete;
DROP INDEX retyped_feed_idx;
SELECT feed_repair('retyped');
SELECT guard, cure FROM feed_check('retyped') ORDER BY guard;
CALL attach('retyped');
SELECT feed_repair('retyped');
SELECT * FROM feed_check('retyped');
ALTER TABLE retyped ALTER a TYPE int;
SELECT feed_begin_history('retyped');
SELECT * FROM feed_check('retyped');
-- In the transaction that alters, a reader is told of that.
BEGIN;
ALTER TABLE retyped ALTER a TYPE text;
SAVEPOINT s;
SELECT feed_wait('retyped', '', '0');
\echo :SQLSTATE
ROLLBACK TO s;
SELECT feed_page('retyped');
\echo :SQLSTATE
ROLLBACK;
-- Without deletes, and of a partitioned table
SELECT feed_detach('retyped', cascade => true);
SELECT feed_attach('retyped', deletes => false);
ALTER TABLE retyped ALTER a TYPE text;
SELECT feed_page('retyped');
SELECT feed_attach('retyped');
SELECT entries('retyped');
CREATE TABLE parted (k text, id text, PRIMARY KEY (k, id)) PARTITION BY LIST (k);
CREATE TABLE parted_a (id text NOT NULL, k text NOT NULL);
ALTER TABLE parted ATTACH PARTITION parted_a FOR VALUES IN ('a');
SELECT feed_attach('parted');
INSERT INTO parted VALUES ('a', '1'), ('a', '2');
DELETE FROM parted WHERE id = '1';
CALL feed_publish('parted');
SELECT entries('parted');
ALTER TABLE parted ALTER id TYPE int USING id::int;
SELECT entries('parted');
SELECT feed_attach('parted');
CALL feed_publish('parted');
CALL feed_republish('parted', unstamped_only => true);
DELETE FROM parted;
INSERT INTO parted VALUES ('a', 3);
CALL feed_publish('parted');
SELECT entries('parted');
DROP TABLE parted;

--
-- A domain's check is its owner's code, which a reader does not run: keys that
-- it would refuse by now are what they were.
--
CREATE FUNCTION check_code(code text) RETURNS bool LANGUAGE plpgsql AS $$
BEGIN
	IF code LIKE 'bad%' THEN
		PERFORM 1 / 0;
	END IF;
	RETURN code <> 'refused';
END $$;
CREATE DOMAIN code AS text;
CREATE TABLE coded (k code PRIMARY KEY);
CALL attach('coded');
INSERT INTO coded VALUES ('bad'), ('refused'), ('good'), ('bad again');
DELETE FROM coded;
CALL feed_publish();
ALTER DOMAIN code ADD CHECK (check_code(value));
SELECT op, (entry).k FROM feed_read(NULL::coded, '', 100);
SELECT entries('coded');
-- In a transaction that goes on, that is read-only, in a cursor
BEGIN READ ONLY;
SELECT count(*) FROM feed_read(NULL::coded, '', 100);
SAVEPOINT a;
SELECT count(entries) FROM entries('coded');
ROLLBACK TO a;
DECLARE c CURSOR FOR SELECT op, (entry).k FROM feed_read(NULL::coded, '', 100);
FETCH 2 FROM c;
FETCH 2 FROM c;
COMMIT;
-- The domain goes: the file stays, and so do the keys.
ALTER TABLE coded ALTER k TYPE text;
DROP DOMAIN code;
SELECT op, (entry).k FROM feed_read(NULL::coded, '', 100);

--
-- Another key: deletes by the old key cannot be delivered by the new one, so
-- consumers begin again.
--
CREATE TABLE rekeyed (a int PRIMARY KEY, b text NOT NULL, c text NOT NULL);
CALL attach('rekeyed');
INSERT INTO rekeyed VALUES (1, 'x', 'y'), (2, 'x', 'z');
DELETE FROM rekeyed WHERE a = 1;
CALL feed_publish();
SELECT feed_head('rekeyed') AS head \gset
ALTER TABLE rekeyed DROP CONSTRAINT rekeyed_pkey, ADD CONSTRAINT other_key UNIQUE (b, c);
SELECT entries('rekeyed');
SELECT * FROM feed_check('rekeyed');
SELECT feed_attach('rekeyed', key => 'other_key');
CALL feed_publish();
SELECT entries('rekeyed');
SELECT feed_page('rekeyed', :'head', 10);
\echo :SQLSTATE
DELETE FROM rekeyed;
CALL feed_publish();
SELECT entries('rekeyed');
SELECT * FROM feed_check('rekeyed');

--
-- Two columns swap their names: the key is what it was, under its new name.
--
CREATE TABLE swapped (a int PRIMARY KEY, b int NOT NULL UNIQUE, v text);
CALL attach('swapped');
INSERT INTO swapped VALUES (1, 10, 'x'), (2, 20, 'x');
DELETE FROM swapped WHERE a = 1;
CALL feed_publish();
SELECT entries('swapped');
ALTER TABLE swapped RENAME a TO c;
ALTER TABLE swapped RENAME b TO a;
ALTER TABLE swapped RENAME c TO b;
SELECT entries('swapped');
DELETE FROM swapped;
CALL feed_publish();
SELECT entries('swapped');
SELECT * FROM feed_check('swapped');
-- In a dump they are known by name, for their numbers may be others there.
CREATE TABLE renumbered (gone int, k int PRIMARY KEY, other int NOT NULL UNIQUE);
ALTER TABLE renumbered DROP COLUMN gone;
CALL attach('renumbered');
INSERT INTO renumbered VALUES (1, 10);
DELETE FROM renumbered;
CALL feed_publish();
UPDATE feedpub._feed SET key_table = 1, key_mark = NULL, key_attnums = '{3}' WHERE feed = 'renumbered'::regclass;
ALTER TABLE renumbered ADD COLUMN v text;
SELECT entries('renumbered');

SELECT feed_detach('renumbered'), feed_detach('swapped'), feed_detach('rekeyed'), feed_detach('coded'), feed_detach('retyped'), feed_detach(:'odd', cascade => true);
DROP TABLE renumbered, swapped, rekeyed, coded, retyped, :odd;
DROP DOMAIN shorter;
DROP TYPE colour;
DROP FUNCTION check_code, entries;
DROP PROCEDURE attach;
DROP FUNCTION steady;
