-- feed_check() names every guard of a table feed that its owner has undone, and
-- feed_repair() puts back those that it can.
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
CREATE SCHEMA "Odd ""Schema"", with a comma";
SET search_path = "Odd ""Schema"", with a comma", public;
\set odd '"Odd ""Name"", with a comma"'
\set seq '"Odd ""Name"", with a comma_feed_pos_seq"'
CREATE TABLE :odd (id int PRIMARY KEY, v text);
INSERT INTO :odd VALUES (1, 'one');
SELECT feed_attach(:'odd', columns => '{v}');
-- Does the feed stamp what is inserted and changed, with growing positions, refuse a forged stamp, and keep what is deleted?
CREATE FUNCTION works() RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	a bigint;
	b bigint;
	tombstones bigint := count(*) FROM feedpub._tombstone;
	refused boolean := false;
BEGIN
	INSERT INTO "Odd ""Name"", with a comma" VALUES (100, 'x') RETURNING feed_pos INTO a;
	UPDATE "Odd ""Name"", with a comma" SET v = 'y' WHERE id = 100 RETURNING feed_pos INTO b;
	BEGIN
		UPDATE "Odd ""Name"", with a comma" SET feed_pos = 0;
	EXCEPTION WHEN SQLSTATE 'PF004' THEN
		refused := true;
	END;
	DELETE FROM "Odd ""Name"", with a comma" WHERE id = 100;
	RETURN coalesce(refused AND a > (SELECT max(feed_pos) FROM "Odd ""Name"", with a comma") AND b > a
		AND (SELECT count(*) FROM feedpub._tombstone) > tombstones, false);
END $$;
-- Undo a guard, see what feed_check() says, repair, and see whether all is well then.
CREATE FUNCTION undo(statement text, OUT problem text, OUT cure text, OUT repaired int, OUT still_wrong text, OUT works boolean) LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE statement;
	SELECT string_agg(c.guard || ': ' || c.problem, '; '), string_agg(c.cure, '; ') INTO problem, cure FROM feed_check('"Odd ""Name"", with a comma"') c;
	repaired := feed_repair('"Odd ""Name"", with a comma"');
	SELECT string_agg(c.guard || ': ' || c.problem, '; ') INTO still_wrong FROM feed_check('"Odd ""Name"", with a comma"') c;
	IF still_wrong LIKE 'history:%' THEN
		PERFORM feed_begin_history('"Odd ""Name"", with a comma"');
	END IF;
	works := works();
END $$;
INSERT INTO :odd VALUES (2, 'two');
\x on
SELECT * FROM undo('SELECT 1');

--
-- The triggers
--
SELECT s AS undone, u.* FROM unnest(ARRAY[
	'ALTER TABLE "Odd ""Name"", with a comma" DISABLE TRIGGER zz_feedpub_stamp',
	'ALTER TABLE "Odd ""Name"", with a comma" ENABLE REPLICA TRIGGER zz_feedpub_stamp',
	'ALTER TABLE "Odd ""Name"", with a comma" ENABLE TRIGGER zz_feedpub_delete',
	'ALTER TABLE "Odd ""Name"", with a comma" DISABLE TRIGGER zz_feedpub_truncate',
	'ALTER TABLE "Odd ""Name"", with a comma" DISABLE TRIGGER ALL',
	'DROP TRIGGER zz_feedpub_delete ON "Odd ""Name"", with a comma"',
	'DROP TRIGGER zz_feedpub_truncate ON "Odd ""Name"", with a comma"']) s, undo(s) u;
-- Which columns count was said in the trigger; a new one takes all.
SELECT encode(tgargs, 'escape') FROM pg_trigger WHERE tgrelid = :'odd'::regclass AND tgname = 'zz_feedpub_stamp';
SELECT * FROM undo('DROP TRIGGER zz_feedpub_stamp ON "Odd ""Name"", with a comma"');
SELECT encode(tgargs, 'escape') FROM pg_trigger WHERE tgrelid = :'odd'::regclass AND tgname = 'zz_feedpub_stamp';
-- Others of their names
SELECT s AS undone, u.* FROM unnest(ARRAY[
	'CREATE OR REPLACE TRIGGER zz_feedpub_stamp BEFORE INSERT ON "Odd ""Name"", with a comma" FOR EACH ROW EXECUTE FUNCTION feedpub._stamp_row()',
	'CREATE OR REPLACE TRIGGER zz_feedpub_stamp BEFORE INSERT OR UPDATE OF v ON "Odd ""Name"", with a comma" FOR EACH ROW EXECUTE FUNCTION feedpub._stamp_row()',
	'CREATE OR REPLACE TRIGGER zz_feedpub_delete AFTER DELETE ON "Odd ""Name"", with a comma" FOR EACH ROW WHEN (OLD.id > 0) EXECUTE FUNCTION feedpub._note_delete()']) s, undo(s) u;

--
-- The sequence
--
SELECT * FROM undo('ALTER SEQUENCE "Odd ""Name"", with a comma_feed_pos_seq" SET UNLOGGED');
\x off
INSERT INTO :odd VALUES (3, 'three');
SELECT problem, repaired, still_wrong, works
	FROM undo('DROP SEQUENCE "Odd ""Name"", with a comma_feed_pos_seq"');
SELECT problem, repaired, still_wrong, works
	FROM undo('ALTER SEQUENCE "Odd ""Name"", with a comma_feed_pos_seq" OWNED BY NONE');
-- (that one is still there, and the new one has another name)
DROP SEQUENCE :seq;
-- Without one nothing can be stamped: writers go on (lost_changes).
BEGIN;
SELECT pg_get_serial_sequence(:'odd', 'feed_pos') AS seq \gset
DROP SEQUENCE :seq;
INSERT INTO :odd VALUES (4, 'four');
\echo :SQLSTATE
ROLLBACK;

--
-- Persistence; and what has no cure is named only.
--
\x on
SELECT * FROM undo('ALTER TABLE "Odd ""Name"", with a comma" SET UNLOGGED');
\x off
BEGIN;
CREATE TABLE child () INHERITS (:odd);
SELECT * FROM feed_check(:'odd');
SELECT feed_repair(:'odd');
ROLLBACK;
BEGIN;
CREATE TABLE parent (v text);
ALTER TABLE :odd INHERIT parent;
SELECT * FROM feed_check(:'odd');
ROLLBACK;
BEGIN;
CREATE TABLE partitioned (LIKE :odd) PARTITION BY LIST (id);
ALTER TABLE partitioned ATTACH PARTITION :odd DEFAULT;
SELECT * FROM feed_check(:'odd');
ROLLBACK;
BEGIN;
ALTER TABLE :odd DROP CONSTRAINT "Odd ""Name"", with a comma_pkey";
SELECT * FROM feed_check(:'odd');
SELECT feed_repair(:'odd');
INSERT INTO :odd VALUES (5, 'five'), (5, 'also') RETURNING feed_pos IS NOT NULL AS stamped;
ROLLBACK;
BEGIN;
ALTER TABLE :odd ALTER feed_pos TYPE numeric;
SELECT guard, problem, cure FROM feed_check(:'odd') WHERE guard = 'columns';
ROLLBACK;

--
-- The index, which only its owner makes again; what feed_repair() tells it can be run.
--
DROP INDEX "Odd ""Name"", with a comma_feed_idx";
SELECT * FROM feed_check(:'odd');
SELECT feed_repair(:'odd');
SELECT cure FROM feed_check(:'odd') \gexec
SELECT * FROM feed_check(:'odd');
-- One that leaves out more, or less, or is ordered otherwise
DROP INDEX "Odd ""Name"", with a comma_feed_idx";
CREATE INDEX other ON :odd (feed_xid, feed_pos) WHERE id > 1;
CREATE INDEX backwards ON :odd (feed_xid, feed_pos DESC) WHERE feed_xid IS NOT NULL;
CREATE INDEX nulls ON :odd (feed_xid, feed_pos) WHERE feed_xid IS NULL;
SELECT guard FROM feed_check(:'odd');
CREATE INDEX whole ON :odd (feed_xid, feed_pos);
SELECT guard FROM feed_check(:'odd');
DROP INDEX other, backwards, nulls, whole;
SELECT cure FROM feed_check(:'odd') \gexec

--
-- The columns: with them all stamps are gone, so they do not come back.
--
BEGIN;
ALTER TABLE :odd DROP COLUMN feed_xid, DROP COLUMN feed_pos;
SELECT guard, problem, cure FROM feed_check(:'odd');
SELECT feed_repair(:'odd');
SELECT feed_detach(:'odd'), feed_attach(:'odd');
SELECT guard FROM feed_check(:'odd');
ROLLBACK;
-- Everything at once
BEGIN;
ALTER TABLE :odd SET UNLOGGED;
SELECT pg_get_serial_sequence(:'odd', 'feed_pos') AS seq \gset
ALTER SEQUENCE :seq OWNED BY NONE;
DROP TRIGGER zz_feedpub_stamp ON :odd;
DROP TRIGGER zz_feedpub_delete ON :odd;
DROP TRIGGER zz_feedpub_truncate ON :odd;
SELECT feed_repair(:'odd') AS repaired;
SELECT guard, cure ~ 'feed_begin_history' AS begin_history FROM feed_check(:'odd');
ROLLBACK;

--
-- A registration that was lost, as by a restore of the table alone
--
DELETE FROM feedpub._feed WHERE feed = :'odd'::regclass;
SELECT guard, problem, cure FROM feed_check(:'odd') WHERE guard = 'registration';
INSERT INTO :odd VALUES (6, 'six') RETURNING feed_pos IS NOT NULL AS stamped;
SELECT feed_repair(:'odd');
SELECT kind, key, deletes, state FROM feedpub.feeds WHERE feed = :'odd'::regclass;
SELECT * FROM feed_check(:'odd');
SELECT (entry).id, op FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 100) WHERE op <> 'end' ORDER BY 1;
CALL feed_publish(:'odd');
SELECT (entry).id, op FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 100) ORDER BY 1;

-- A role that does not own it may look, if it may read it, and not repair.
CREATE ROLE regress_feedpub_reader;
GRANT USAGE ON SCHEMA "Odd ""Schema"", with a comma" TO regress_feedpub_reader;
ALTER TABLE :odd DISABLE TRIGGER zz_feedpub_stamp;
SET ROLE regress_feedpub_reader;
SELECT guard, problem FROM feed_check(:'odd');
\echo :SQLSTATE
RESET ROLE;
GRANT SELECT ON :odd TO regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
SELECT guard, problem FROM feed_check(:'odd');
SELECT feed_repair(:'odd');
\echo :SQLSTATE
RESET ROLE;
SELECT feed_repair(:'odd');

-- Detaching a table leaves alone a feed that inherits from it.
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child (id int PRIMARY KEY);
SELECT feed_attach('parent'), feed_attach('child');
ALTER TABLE child INHERIT parent;
SELECT feed_detach('parent');
SELECT tgname FROM pg_trigger WHERE tgrelid = 'child'::regclass AND NOT tgisinternal ORDER BY tgname COLLATE "C";
ALTER TABLE child NO INHERIT parent;
SELECT feed_detach('child');
DROP TABLE child, parent;

DROP FUNCTION undo, works;
SELECT feed_detach(:'odd');
DROP TABLE :odd;
RESET search_path;
DROP OWNED BY regress_feedpub_reader;
DROP ROLE regress_feedpub_reader;
DROP SCHEMA "Odd ""Schema"", with a comma";
