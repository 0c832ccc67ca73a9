-- A table that changes while it is a feed: its columns, its key, its name, its
-- schema, its owner; and how it ends.
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
CREATE TABLE :odd (a int, id int PRIMARY KEY, v text);
INSERT INTO :odd VALUES (0, 1, 'initial'), (0, 2, 'initial');
SELECT feed_attach(:'odd');
INSERT INTO :odd VALUES (0, 3, 'stamped'), (0, 4, 'stamped');
DELETE FROM :odd WHERE id = 4;
CALL feed_publish(:'odd');
CREATE TABLE head AS SELECT feed_head(:'odd') AS cursor, '' AS beginning;
-- What all readers get from the beginning, as JSON and as rows
CREATE FUNCTION entries() RETURNS TABLE (entry json) LANGUAGE sql AS $$
	SELECT steady(e) FROM json_array_elements(feed_page('"Odd ""Name"", with a comma"', '', 100) -> 'entries') e
$$;

--
-- Columns
--
SELECT * FROM entries();
ALTER TABLE :odd DROP a;
SELECT * FROM entries();
SELECT op, (entry).id, (entry).v FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 100);
ALTER TABLE :odd ADD "new, column" int DEFAULT 7, ADD later text;
SELECT * FROM entries();
SELECT op, (entry).id, (entry)."new, column", (entry).later FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 100);
SELECT id, "new, column", later FROM feed_fetch(NULL::"Odd ""Name"", with a comma", '0', 0, 100);
ALTER TABLE :odd RENAME v TO "renamed ""v""";
ALTER TABLE :odd RENAME id TO key;
SELECT * FROM entries();
-- The values change, but the application has changed no row: nothing is published.
ALTER TABLE :odd ALTER "renamed ""v""" TYPE varchar(3) USING left("renamed ""v""", 3);
SELECT * FROM entries();
SELECT count(*) FROM feed_read(NULL::"Odd ""Name"", with a comma", (SELECT cursor FROM head), 100);
-- The key's type: with another one, another history begins.
ALTER TABLE :odd ALTER key TYPE text;
SELECT count(*) FROM feed_read(NULL::"Odd ""Name"", with a comma", (SELECT cursor FROM head), 100);
SELECT feed_attach(:'odd');
SELECT count(*) FROM feed_read(NULL::"Odd ""Name"", with a comma", (SELECT cursor FROM head), 100);
CALL feed_publish(:'odd');
UPDATE head SET cursor = feed_head(:'odd');
UPDATE :odd SET later = 'later' WHERE key = '1';
DELETE FROM :odd WHERE key = '2';
CALL feed_publish(:'odd');
SELECT * FROM entries();
-- varchar is no other type.
ALTER TABLE :odd ALTER key TYPE varchar;
SELECT steady(e) AS e FROM json_array_elements(feed_page(:'odd', (SELECT cursor FROM head), 100) -> 'entries') e;
ALTER TABLE :odd ALTER key TYPE text;
SELECT steady(e) AS e FROM json_array_elements(feed_page(:'odd', (SELECT cursor FROM head), 100) -> 'entries') e;
SELECT * FROM feed_check(:'odd');
CALL feed_publish(:'odd');
-- A column that is computed, and constraints
ALTER TABLE :odd ADD twice text GENERATED ALWAYS AS (key || key) STORED, ADD CHECK (key <> '');
INSERT INTO :odd (key) VALUES ('5');
CALL feed_publish(:'odd');
SELECT op, (entry).key, (entry).twice FROM feed_read(NULL::"Odd ""Name"", with a comma", (SELECT cursor FROM head), 100);

--
-- The key: another index of the same columns may take its place.
--
BEGIN;
ALTER TABLE :odd DROP CONSTRAINT "Odd ""Name"", with a comma_pkey", ADD CONSTRAINT another PRIMARY KEY (key);
DELETE FROM :odd WHERE key = '5';
SELECT key FROM feedpub._tombstone ORDER BY feed_pos DESC LIMIT 1;
SELECT * FROM feed_check(:'odd');
ROLLBACK;
REINDEX TABLE CONCURRENTLY :odd;
SELECT * FROM feed_check(:'odd');
-- Without one, nothing is written that its readers would never hear of, and nothing read.
BEGIN;
ALTER TABLE :odd DROP CONSTRAINT "Odd ""Name"", with a comma_pkey";
INSERT INTO :odd (key) VALUES ('6');
SAVEPOINT s;
\set VERBOSITY terse
SELECT count(*) FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 100);
\echo :SQLSTATE
ROLLBACK TO s;
SELECT problem FROM feed_check(:'odd');
ALTER TABLE :odd ADD PRIMARY KEY (key);
SELECT problem FROM feed_check(:'odd');
ROLLBACK;

--
-- Name, schema, owner
--
CREATE SCHEMA "Odd ""Schema"", with a comma";
CREATE ROLE regress_feedpub_owner;
GRANT USAGE, CREATE ON SCHEMA "Odd ""Schema"", with a comma" TO regress_feedpub_owner;
ALTER TABLE :odd RENAME TO "other, name";
ALTER TABLE "other, name" SET SCHEMA "Odd ""Schema"", with a comma";
ALTER TABLE "Odd ""Schema"", with a comma"."other, name" OWNER TO regress_feedpub_owner;
DROP FUNCTION entries;
SELECT feed, owner, key, state FROM feedpub.feeds;
SET search_path = "Odd ""Schema"", with a comma", public;
SELECT * FROM feed_check('"other, name"');
INSERT INTO "other, name" (key) VALUES ('7');
DELETE FROM "other, name" WHERE key = '5';
CALL feed_publish('"other, name"');
SELECT op, (entry).key FROM feed_read(NULL::"other, name", (SELECT cursor FROM head), 100);
-- What the old owner made is repaired by the new one.
SET ROLE regress_feedpub_owner;
ALTER TABLE "other, name" DISABLE TRIGGER zz_feedpub_delete;
DROP INDEX "Odd ""Name"", with a comma_feed_idx";
SELECT feed_repair('"other, name"');
SELECT cure FROM feed_check('"other, name"') \gexec
SELECT * FROM feed_check('"other, name"');
RESET ROLE;
-- it is another history, since deletes may have been lost
CALL feed_publish('"other, name"');
UPDATE head SET cursor = (SELECT r.cursor FROM feed_read(NULL::"other, name", '', 1) r);
SELECT op, (entry).key FROM feed_read(NULL::"other, name", (SELECT cursor FROM head), 100);
-- A table that takes the old name is no feed, and may become one.
CREATE TABLE public.:odd (id int PRIMARY KEY);
SELECT feed_attach(:'odd');
INSERT INTO :odd VALUES (1);
CALL feed_publish(:'odd');
SELECT feed, owner = current_user AS own, state FROM feedpub.feeds ORDER BY feed::text;
SELECT op, (entry).id FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 100);
-- A cursor of one means nothing to the other.
SELECT * FROM feed_read(NULL::"Odd ""Name"", with a comma", (SELECT cursor FROM head), 100);
\echo :SQLSTATE
SELECT * FROM feed_read(NULL::"Odd ""Name"", with a comma", feed_head('"other, name"'), 100);

--
-- Persistence: an unlogged table loses its rows in a crash, so it cannot be a feed.
--
ALTER TABLE "other, name" SET UNLOGGED;
SELECT guard, problem FROM feed_check('"other, name"');
SELECT feed_attach('"other, name"');
\echo :SQLSTATE
SELECT feed_repair('"other, name"') > 0 AS repaired;
SELECT * FROM feed_check('"other, name"');
SELECT op, (entry).key FROM feed_read(NULL::"other, name", (SELECT cursor FROM head), 100);

--
-- The end: detached by its new owner; dropped; dropped with its schema
--
SET ROLE regress_feedpub_owner;
SELECT feed_detach('"other, name"');
SELECT feed_attach('"other, name"');
RESET ROLE;
INSERT INTO "other, name" (key) VALUES ('8');
DELETE FROM "other, name" WHERE key = '8';
CALL feed_publish();
DROP TABLE public.:odd;
SET client_min_messages = warning;
DROP SCHEMA "Odd ""Schema"", with a comma" CASCADE;
RESET client_min_messages;
RESET search_path;
SELECT feed FROM feedpub.feeds;
CALL feed_publish();
-- What they left goes when the next feed is made.
CREATE TABLE next (id int PRIMARY KEY);
SELECT feed_attach('next');
SELECT (SELECT count(*) FROM feedpub._feed) AS feeds, (SELECT count(*) FROM feedpub._batch) AS batches, (SELECT count(*) FROM feedpub._tombstone) AS tombstones;
-- DROP EXTENSION sees what hangs on it; with CASCADE table and rows stay, and can be written.
INSERT INTO next VALUES (1);
BEGIN;
SAVEPOINT s;
DROP EXTENSION feedpub;
\echo :SQLSTATE
ROLLBACK TO s;
SET LOCAL client_min_messages = warning;
DROP EXTENSION feedpub CASCADE;
INSERT INTO next VALUES (2);
DELETE FROM next WHERE id = 1;
SELECT id, feed_pos FROM next;
-- Without its triggers it can be repaired to no feed.
CREATE EXTENSION feedpub;
SELECT feed_repair('next');
\echo :SQLSTATE
ROLLBACK;
SELECT feed_detach('next');
DROP TABLE next, head;
DROP OWNED BY regress_feedpub_owner;
DROP ROLE regress_feedpub_owner;
DROP FUNCTION steady;
