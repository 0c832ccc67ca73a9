-- Deletes whose keys are no values of their columns any more: the type was
-- changed, or lost a value.  No reader is stopped by them.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
-- Entries, less what differs from run to run
CREATE FUNCTION steady(j json) RETURNS json LANGUAGE sql AS $$
	SELECT regexp_replace(j::text, '"cursor": "\w*", |, "xid": [^,]*, "published_at": ("[^"]*"|null)', '', 'g')::json
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
-- It is named; feed_repair() leaves to the owner whether consumers begin again.
SELECT * FROM feed_check(:'odd');
SELECT feed_repair(:'odd');
SELECT count(*) FROM feed_check(:'odd');
SELECT feed_head(:'odd') AS head \gset
SELECT cure FROM feed_check(:'odd') \gexec
SELECT * FROM feed_check(:'odd');
CALL feed_publish();
SELECT entries(:'odd');
SELECT feed_page(:'odd', :'head', 100);
\echo :SQLSTATE
-- The name comes back: all is well again.
DELETE FROM :odd WHERE n = 5;
CALL feed_publish();
ALTER TYPE colour RENAME VALUE 'plain' TO 'other';
SELECT count(*) FROM feed_check(:'odd');
ALTER TYPE colour RENAME VALUE 'other' TO 'plain';
SELECT count(*) FROM feed_check(:'odd');
SELECT op, (entry)."the ""key""", (entry).n, (entry).v FROM feed_read(NULL::public.:odd, '', 100);

--
-- Columns are retyped: a text that is no number, one that is, one too long.
--
CREATE TABLE retyped (a text, b text, v text, PRIMARY KEY (a, b));
CALL attach('retyped');
INSERT INTO retyped VALUES ('1', 'x', 'a'), ('abc', 'y', 'a'), ('2', 'much longer', 'a'), ('def', 'longer as well', 'a');
DELETE FROM retyped;
INSERT INTO retyped VALUES ('2', 'lives', 'a');
CALL feed_publish();
ALTER TABLE retyped ALTER a TYPE int USING a::int, ALTER b TYPE varchar(5);
SELECT op, (entry).a, (entry).b, (entry).v FROM feed_read(NULL::retyped, '', 100);
SELECT entries('retyped');
SELECT guard, cure FROM feed_check('retyped');
-- Each delete is in the shard that it was in.
SELECT shard, count(e) FROM generate_series(0, 6) shard, entries('retyped', shard, 7) e WHERE e ->> 'op' = 'delete' GROUP BY 1 ORDER BY 1;
ALTER TABLE retyped ALTER a TYPE text;
SELECT shard, count(e) FROM generate_series(0, 6) shard, entries('retyped', shard, 7) e WHERE e ->> 'op' = 'delete' GROUP BY 1 ORDER BY 1;

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
-- What the type itself refuses comes as nulls: here its length, and in a domain.
ALTER TABLE coded ALTER k TYPE text;
DROP DOMAIN code;
CREATE DOMAIN code AS varchar(4);
ALTER TABLE coded ALTER k TYPE code;
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
UPDATE feedpub._feed SET key_table = 1, key_attnums = '{3}' WHERE feed = 'renumbered'::regclass;
ALTER TABLE renumbered ADD COLUMN v text;
SELECT entries('renumbered');

SELECT feed_detach('renumbered'), feed_detach('swapped'), feed_detach('rekeyed'), feed_detach('coded'), feed_detach('retyped'), feed_detach(:'odd');
DROP TABLE renumbered, swapped, rekeyed, coded, retyped, :odd;
DROP DOMAIN code;
DROP TYPE colour;
DROP FUNCTION check_code, entries;
DROP PROCEDURE attach;
DROP FUNCTION steady;
