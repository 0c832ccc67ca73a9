-- feed_check() names every guard of a feed that its owner has undone, and
-- feed_repair() puts back those that it can.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
SET timezone = 'UTC';
CREATE SCHEMA "Odd ""Schema"", with a comma";
SET search_path = "Odd ""Schema"", with a comma", public;
SELECT feed_create('"Odd ""Name"", with a comma"');
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('a', '1'), ('b', '2');
-- What is wrong, how many things feed_repair() put right, and whether the feed
-- is as good as new then: nothing to name, guarded, written and read.
CREATE FUNCTION repair(OUT repaired int, OUT still_wrong text, OUT guarded boolean) LANGUAGE plpgsql AS $$
DECLARE
	n int := 0;
	p bigint;
BEGIN
	repaired := feed_repair('"Odd ""Name"", with a comma"');
	SELECT string_agg(guard || ': ' || problem, '; ') INTO still_wrong FROM feed_check('"Odd ""Name"", with a comma"');
	BEGIN
		UPDATE "Odd ""Name"", with a comma" SET data = '0';
	EXCEPTION WHEN SQLSTATE 'PF004' THEN
		n := n + 1;
	END;
	SELECT max(feed_pos) INTO p FROM "Odd ""Name"", with a comma";
	INSERT INTO "Odd ""Name"", with a comma" (feed_xid, feed_pos, message_type, data) VALUES ('3', p, 'probe', '0') RETURNING feed_pos > p AND feed_xid > '3' INTO guarded;
	guarded := guarded AND n = 1;
	DELETE FROM "Odd ""Name"", with a comma" WHERE message_type = 'probe';
END $$;
-- Read by the next transaction, for it may have been altered.
CREATE FUNCTION reads() RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(message_type, ',') FROM feed_fetch(NULL::"Odd ""Name"", with a comma", '0', 0, 100)
$$;
-- All is well to begin with, and nothing is done.
SELECT * FROM feed_check('"Odd ""Name"", with a comma"');
SELECT * FROM repair();
SELECT reads();

--
-- Persistence
--
ALTER TABLE "Odd ""Name"", with a comma" SET UNLOGGED;
SELECT guard, problem FROM feed_check('"Odd ""Name"", with a comma"') ORDER BY guard;
SELECT * FROM repair();
SELECT reads();

--
-- The sequence
--
\set seq '"Odd ""Name"", with a comma_feed_pos_seq"'
ALTER SEQUENCE :seq SET UNLOGGED;
SELECT * FROM feed_check('"Odd ""Name"", with a comma"');
SELECT * FROM repair();
SELECT reads();
-- Its options do not count, nor does its value (positions.sql).
ALTER SEQUENCE :seq INCREMENT BY -1 MINVALUE -100 CYCLE CACHE 2 RESTART;
SELECT guard, problem FROM feed_check('"Odd ""Name"", with a comma"');
SELECT reads();
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('c', '3');
-- Rows that are loaded without the trigger bring larger positions: when it is
-- back, positions go on after them.
ALTER TABLE "Odd ""Name"", with a comma" DISABLE TRIGGER zz_feedpub_stamp;
INSERT INTO "Odd ""Name"", with a comma" (message_type, data, feed_xid, feed_pos) VALUES ('loaded', '4', '3', 3000000000);
SELECT * FROM repair();
BEGIN;
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('d', '4') RETURNING feed_pos;
SELECT * FROM feed_check('"Odd ""Name"", with a comma"');
ROLLBACK;
DELETE FROM "Odd ""Name"", with a comma" WHERE message_type = 'loaded';
-- No longer owned by the column; the name is taken then
ALTER SEQUENCE :seq OWNED BY NONE;
SELECT guard, problem FROM feed_check('"Odd ""Name"", with a comma"') WHERE guard = 'sequence';
SELECT * FROM repair();
SELECT reads();
SELECT pg_get_serial_sequence('"Odd ""Name"", with a comma"', 'feed_pos');
DROP SEQUENCE :seq;
-- Gone
SET client_min_messages = warning;
DROP SEQUENCE "Odd ""Name"", with a comma_feed_pos_seq1";
RESET client_min_messages;
SELECT guard, problem FROM feed_check('"Odd ""Name"", with a comma"') WHERE guard = 'sequence';
SELECT * FROM repair();
SELECT reads();
-- Positions go on after those that are there.
SELECT max(feed_pos) AS largest FROM "Odd ""Name"", with a comma" \gset
BEGIN;
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('beyond', '1') RETURNING feed_pos > :largest AS beyond;
ROLLBACK;

--
-- The defaults of the stamp, for a time without the trigger.
--
ALTER TABLE "Odd ""Name"", with a comma" ALTER COLUMN feed_xid DROP DEFAULT, ALTER COLUMN feed_pos DROP DEFAULT;
SELECT * FROM feed_check('"Odd ""Name"", with a comma"');
SELECT * FROM repair();
SELECT reads();

--
-- The owner may give message_id a default, and make it NOT NULL.
--
ALTER TABLE "Odd ""Name"", with a comma" ALTER COLUMN message_id SET NOT NULL, ALTER COLUMN message_id SET DEFAULT gen_random_uuid()::text;
SELECT * FROM feed_check('"Odd ""Name"", with a comma"');
ALTER TABLE "Odd ""Name"", with a comma" ALTER COLUMN message_id DROP DEFAULT;
SELECT * FROM feed_check('"Odd ""Name"", with a comma"');
SELECT * FROM repair();
SELECT reads();
ALTER TABLE "Odd ""Name"", with a comma" ALTER COLUMN message_id DROP NOT NULL, ALTER COLUMN message_id DROP DEFAULT;
-- So are checks, and other defaults.
ALTER TABLE "Odd ""Name"", with a comma" ADD CHECK (message_type <> ''), ALTER COLUMN feed_pos SET DEFAULT 1;
SELECT * FROM feed_check('"Odd ""Name"", with a comma"');

--
-- The triggers
--
ALTER TABLE "Odd ""Name"", with a comma" DISABLE TRIGGER zz_feedpub_stamp;
SELECT * FROM feed_check('"Odd ""Name"", with a comma"');
-- Without it there is no row without a stamp.
\set VERBOSITY terse
INSERT INTO "Odd ""Name"", with a comma" (feed_xid, message_type, data) VALUES (NULL, 'a', '1');
\set VERBOSITY default
\echo :SQLSTATE
SELECT * FROM repair();
SELECT reads();
-- What is written meanwhile has the defaults: no message, until it is stamped.
BEGIN;
ALTER TABLE "Odd ""Name"", with a comma" DISABLE TRIGGER zz_feedpub_stamp, ALTER COLUMN feed_pos SET DEFAULT -1;
SELECT * FROM repair();
ALTER TABLE "Odd ""Name"", with a comma" ALTER COLUMN feed_pos DROP DEFAULT;
SELECT * FROM repair();
ALTER TABLE "Odd ""Name"", with a comma" DISABLE TRIGGER zz_feedpub_stamp;
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) SELECT 'without', to_jsonb(i) FROM generate_series(1, 100) i;
ALTER TABLE "Odd ""Name"", with a comma" ENABLE ALWAYS TRIGGER zz_feedpub_stamp;
SELECT count(DISTINCT feed_pos), max(feed_pos) < 0 AS negative, bool_and(feed_xid = '0' AND message_id IS NULL) AS unstamped
	FROM "Odd ""Name"", with a comma" WHERE message_type = 'without';
SELECT * FROM feed_check('"Odd ""Name"", with a comma"');
SELECT * FROM repair();
SELECT count(DISTINCT message_id), bool_and(message_id ~ '^[0-9a-f-]{36}$') AS uuids, bool_and(feed_xid = pg_current_xact_id()) AS stamped,
	array_agg(data::int ORDER BY feed_pos) = array_agg(data::int ORDER BY data::int) AS in_order, min(feed_pos) > :largest AS last
	FROM "Odd ""Name"", with a comma" WHERE message_type = 'without';
ROLLBACK;
DROP TRIGGER zz_feedpub_stamp ON "Odd ""Name"", with a comma";
SELECT * FROM feed_check('"Odd ""Name"", with a comma"');
SELECT * FROM repair();
SELECT reads();
CREATE OR REPLACE TRIGGER zz_feedpub_stamp BEFORE INSERT ON "Odd ""Name"", with a comma" FOR EACH ROW EXECUTE FUNCTION feedpub._stamp_message();
ALTER TABLE "Odd ""Name"", with a comma" ENABLE ALWAYS TRIGGER zz_feedpub_stamp;
SELECT guard, problem FROM feed_check('"Odd ""Name"", with a comma"');
SELECT * FROM repair();
SELECT reads();
CREATE OR REPLACE TRIGGER zz_feedpub_stamp BEFORE INSERT OR UPDATE ON "Odd ""Name"", with a comma" FOR EACH ROW WHEN (NEW.message_type <> 'x') EXECUTE FUNCTION feedpub._stamp_message();
ALTER TABLE "Odd ""Name"", with a comma" ENABLE ALWAYS TRIGGER zz_feedpub_stamp;
SELECT guard, problem FROM feed_check('"Odd ""Name"", with a comma"');
SELECT * FROM repair();
SELECT reads();
ALTER TABLE "Odd ""Name"", with a comma" DISABLE TRIGGER zz_feedpub_guard;
SELECT * FROM feed_check('"Odd ""Name"", with a comma"');
SELECT * FROM repair();
SELECT reads();
ALTER TABLE "Odd ""Name"", with a comma" DISABLE TRIGGER ALL;
SELECT guard, problem FROM feed_check('"Odd ""Name"", with a comma"');
SELECT * FROM repair();
SELECT reads();
ALTER TABLE "Odd ""Name"", with a comma" ENABLE TRIGGER zz_feedpub_guard;
SELECT * FROM feed_check('"Odd ""Name"", with a comma"');
SELECT * FROM repair();
SELECT reads();
ALTER TABLE "Odd ""Name"", with a comma" ENABLE REPLICA TRIGGER zz_feedpub_guard;
SELECT guard, problem FROM feed_check('"Odd ""Name"", with a comma"');
SELECT * FROM repair();
SELECT reads();
DROP TRIGGER zz_feedpub_guard ON "Odd ""Name"", with a comma";
SELECT * FROM feed_check('"Odd ""Name"", with a comma"');
SELECT * FROM repair();
SELECT reads();
-- Altered: another function, another event, a condition, some columns only
CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE OR REPLACE TRIGGER zz_feedpub_guard BEFORE UPDATE ON "Odd ""Name"", with a comma" FOR EACH STATEMENT EXECUTE FUNCTION nothing();
ALTER TABLE "Odd ""Name"", with a comma" ENABLE ALWAYS TRIGGER zz_feedpub_guard;
SELECT guard, problem FROM feed_check('"Odd ""Name"", with a comma"');
SELECT * FROM repair();
SELECT reads();
CREATE OR REPLACE TRIGGER zz_feedpub_guard BEFORE DELETE ON "Odd ""Name"", with a comma" FOR EACH STATEMENT EXECUTE FUNCTION feedpub._stamp_message();
SELECT guard, problem FROM feed_check('"Odd ""Name"", with a comma"');
SELECT * FROM repair();
SELECT reads();
CREATE OR REPLACE TRIGGER zz_feedpub_guard BEFORE UPDATE ON "Odd ""Name"", with a comma" FOR EACH STATEMENT WHEN (current_user = 'nobody') EXECUTE FUNCTION feedpub._stamp_message();
ALTER TABLE "Odd ""Name"", with a comma" ENABLE ALWAYS TRIGGER zz_feedpub_guard;
SELECT guard, problem FROM feed_check('"Odd ""Name"", with a comma"');
SELECT * FROM repair();
SELECT reads();
CREATE OR REPLACE TRIGGER zz_feedpub_guard BEFORE UPDATE OF data ON "Odd ""Name"", with a comma" FOR EACH STATEMENT EXECUTE FUNCTION feedpub._stamp_message();
ALTER TABLE "Odd ""Name"", with a comma" ENABLE ALWAYS TRIGGER zz_feedpub_guard;
SELECT guard, problem FROM feed_check('"Odd ""Name"", with a comma"');
SELECT * FROM repair();
SELECT reads();
DROP FUNCTION nothing;

--
-- The index
--
ALTER TABLE "Odd ""Name"", with a comma" DROP CONSTRAINT "Odd ""Name"", with a comma_pkey";
SELECT * FROM feed_check('"Odd ""Name"", with a comma"');
SELECT * FROM repair();
SELECT reads();
-- With another primary key it becomes a unique one.
ALTER TABLE "Odd ""Name"", with a comma" DROP CONSTRAINT "Odd ""Name"", with a comma_pkey", ADD PRIMARY KEY (message_id);
SELECT * FROM feed_check('"Odd ""Name"", with a comma"');
SELECT * FROM repair();
SELECT reads();
SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = '"Odd ""Name"", with a comma"'::regclass AND contype IN ('p', 'u') ORDER BY 1;

--
-- The columns
--
ALTER TABLE "Odd ""Name"", with a comma" DROP CONSTRAINT "Odd ""Name"", with a comma_pkey";
ALTER TABLE "Odd ""Name"", with a comma" ALTER COLUMN feed_xid DROP NOT NULL;
ALTER TABLE "Odd ""Name"", with a comma" ALTER COLUMN feed_pos DROP NOT NULL;
SELECT * FROM feed_check('"Odd ""Name"", with a comma"');
SELECT * FROM repair();
SELECT reads();

--
-- Several things at once
--
ALTER TABLE "Odd ""Name"", with a comma"
	SET UNLOGGED,
	DISABLE TRIGGER ALL;
DROP SEQUENCE :seq;
SELECT DISTINCT guard FROM feed_check('"Odd ""Name"", with a comma"') ORDER BY guard;
SELECT still_wrong, guarded FROM repair();
SELECT reads();

--
-- What has no cure is named only.
--
BEGIN;
CREATE TABLE child () INHERITS ("Odd ""Name"", with a comma");
SELECT * FROM feed_check('"Odd ""Name"", with a comma"');
SELECT feed_repair('"Odd ""Name"", with a comma"');
ROLLBACK;
BEGIN;
CREATE TABLE parent (message_type text);
ALTER TABLE "Odd ""Name"", with a comma" INHERIT parent;
SELECT * FROM feed_check('"Odd ""Name"", with a comma"');
SELECT feed_repair('"Odd ""Name"", with a comma"');
ROLLBACK;
-- A column of another type: the feed cannot be read, which is said at once.
BEGIN;
ALTER TABLE "Odd ""Name"", with a comma" ALTER COLUMN feed_pos TYPE numeric;
SELECT problem, cure FROM feed_check('"Odd ""Name"", with a comma"') WHERE guard = 'columns';
SELECT * FROM feed_fetch(NULL::"Odd ""Name"", with a comma", '0', 0, 100);
\echo :SQLSTATE
ROLLBACK;
BEGIN;
ALTER TABLE "Odd ""Name"", with a comma" ALTER COLUMN feed_xid TYPE text;
SELECT problem, cure FROM feed_check('"Odd ""Name"", with a comma"') WHERE guard = 'columns';
SELECT * FROM feed_fetch(NULL::"Odd ""Name"", with a comma", '0', 0, 100);
ROLLBACK;
BEGIN;
ALTER TABLE "Odd ""Name"", with a comma" RENAME COLUMN feed_pos TO pos;
SELECT guard, problem, cure FROM feed_check('"Odd ""Name"", with a comma"');
SELECT feed_repair('"Odd ""Name"", with a comma"');
ROLLBACK;
BEGIN;
ALTER TABLE "Odd ""Name"", with a comma" DROP COLUMN feed_pos, DROP COLUMN feed_xid;
SELECT guard, problem, cure FROM feed_check('"Odd ""Name"", with a comma"');
SELECT feed_repair('"Odd ""Name"", with a comma"');
ROLLBACK;
SELECT * FROM repair();
SELECT reads();

--
-- Rows of another history, loaded while the trigger was off: named, and the feed
-- is not read before they are gone.
--
ALTER TABLE "Odd ""Name"", with a comma" DISABLE TRIGGER zz_feedpub_stamp;
INSERT INTO "Odd ""Name"", with a comma" (feed_xid, feed_pos, message_type, data) VALUES ('18446744073709551000', 5, 'foreign', '1');
SELECT feed_repair('"Odd ""Name"", with a comma"');
SELECT guard, problem, cure FROM feed_check('"Odd ""Name"", with a comma"');
\set VERBOSITY terse
SELECT message_type FROM feed_fetch(NULL::"Odd ""Name"", with a comma", '0', 0, 100);
\echo :SQLSTATE
SELECT message_type FROM feed_fetch('0', 0, 100);
\echo :SQLSTATE
SELECT feed_xid_head('"Odd ""Name"", with a comma"');
\echo :SQLSTATE
-- Also if row security hides them from the caller
CREATE ROLE regress_feedpub_owner;
GRANT USAGE ON SCHEMA "Odd ""Schema"", with a comma" TO regress_feedpub_owner;
GRANT SELECT ON "Odd ""Name"", with a comma" TO regress_feedpub_owner;
ALTER TABLE "Odd ""Name"", with a comma" ENABLE ROW LEVEL SECURITY;
CREATE POLICY native ON "Odd ""Name"", with a comma" USING (message_type <> 'foreign');
SET ROLE regress_feedpub_owner;
SELECT message_type FROM feed_fetch('0', 0, 100);
\echo :SQLSTATE
RESET ROLE;
\set VERBOSITY default
ALTER TABLE "Odd ""Name"", with a comma" DISABLE ROW LEVEL SECURITY;
DROP POLICY native ON "Odd ""Name"", with a comma";
-- It can be written, and read with plain SQL.
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('native', '2');
SELECT message_type FROM "Odd ""Name"", with a comma" ORDER BY feed_xid, feed_pos;
DELETE FROM "Odd ""Name"", with a comma" WHERE message_type IN ('native', 'foreign');
SELECT message_type FROM feed_fetch('0', 0, 100);
SELECT * FROM repair();
SELECT reads();

--
-- A cure that cannot be done raises its own error, and nothing is changed.
--
ALTER TABLE "Odd ""Name"", with a comma" DISABLE TRIGGER ALL,
	DROP CONSTRAINT "Odd ""Name"", with a comma_feed_xid_feed_pos_key";
INSERT INTO "Odd ""Name"", with a comma" (feed_xid, feed_pos, message_type, data)
	SELECT feed_xid, feed_pos, 'double', data FROM "Odd ""Name"", with a comma" WHERE message_type = 'a';
\set VERBOSITY terse
SELECT feed_repair('"Odd ""Name"", with a comma"');
\echo :SQLSTATE
\set VERBOSITY default
SELECT guard, problem FROM feed_check('"Odd ""Name"", with a comma"');
DELETE FROM "Odd ""Name"", with a comma" WHERE message_type = 'double';
SELECT * FROM repair();
SELECT reads();

--
-- An ordinary owner can do all that; another role cannot.
--
SELECT feed_repair('"Odd ""Name"", with a comma"');
SET ROLE regress_feedpub_owner;
SELECT feed_repair('"Odd ""Name"", with a comma"');
\echo :SQLSTATE
RESET ROLE;
GRANT CREATE ON SCHEMA "Odd ""Schema"", with a comma" TO regress_feedpub_owner;
ALTER TABLE "Odd ""Name"", with a comma" OWNER TO regress_feedpub_owner;
SET ROLE regress_feedpub_owner;
ALTER TABLE "Odd ""Name"", with a comma" SET UNLOGGED, ALTER COLUMN message_id SET NOT NULL;
DROP TRIGGER zz_feedpub_stamp ON "Odd ""Name"", with a comma";
DROP TRIGGER zz_feedpub_guard ON "Odd ""Name"", with a comma";
ALTER SEQUENCE :seq RESTART;
SELECT still_wrong, guarded FROM repair();
SELECT reads();
SET client_min_messages = warning;
DROP SEQUENCE :seq CASCADE;
RESET client_min_messages;
SELECT still_wrong, guarded FROM repair();
SELECT reads();
RESET ROLE;
-- what runs as the owner needs USAGE
REVOKE USAGE ON SCHEMA "Odd ""Schema"", with a comma" FROM regress_feedpub_owner;
SELECT * FROM feed_check('"Odd ""Name"", with a comma"');
SELECT cure FROM feed_check('"Odd ""Name"", with a comma"') \gexec
SELECT * FROM feed_check('"Odd ""Name"", with a comma"');
ALTER TABLE "Odd ""Name"", with a comma" OWNER TO CURRENT_USER;
REVOKE ALL ON SCHEMA "Odd ""Schema"", with a comma" FROM regress_feedpub_owner;
REVOKE ALL ON "Odd ""Name"", with a comma" FROM regress_feedpub_owner;
DROP ROLE regress_feedpub_owner;

-- The cures can be run by hand as well.
ALTER TABLE "Odd ""Name"", with a comma" DISABLE TRIGGER ALL;
ALTER SEQUENCE :seq CACHE 7;
SELECT cure FROM feed_check('"Odd ""Name"", with a comma"') \gexec
SELECT * FROM feed_check('"Odd ""Name"", with a comma"');

DROP FUNCTION repair, reads;
RESET search_path;
SELECT feed_drop('"Odd ""Schema"", with a comma"."Odd ""Name"", with a comma"');
DROP SCHEMA "Odd ""Schema"", with a comma";
