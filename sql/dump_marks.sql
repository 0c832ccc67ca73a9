-- What a dump holds of feedpub, and what becomes of feeds without the
-- extension.  (Dumping and restoring themselves are TAP tests.)
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
SELECT feed_create('"Odd ""Name"", with a comma"'), feed_create('texts', 'text');
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('a', '1'), ('b', '2');
INSERT INTO texts (message_type, data) VALUES ('t', 'text');

-- The registry is a member of the extension whose rows are dumped, but for
-- those of tables that are gone.
SELECT t.config::regclass, t.condition
  FROM pg_extension e, unnest(extconfig, extcondition) AS t (config, condition) WHERE extname = 'feedpub';
-- There is nothing else with state, but which consumers have polled, and how far
-- jobs are: no other table, no sequence.
SELECT count(*) FROM pg_depend d JOIN pg_class c ON c.oid = d.objid
 WHERE d.classid = 'pg_class'::regclass AND d.deptype = 'e' AND c.relkind IN ('r', 'p', 'S', 'm', 'f')
   AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'feedpub')
   AND c.oid <> 'feedpub._feed'::regclass;
-- So the rows that a dump would hold are those of feeds whose tables exist.
CREATE FUNCTION dumped() RETURNS SETOF feedpub._feed LANGUAGE plpgsql AS $$
BEGIN
	RETURN QUERY EXECUTE (SELECT 'SELECT * FROM feedpub._feed ' || extcondition[1] || ' ORDER BY created_at, feed::text'
		FROM pg_extension WHERE extname = 'feedpub');
END $$;
SELECT feed, kind, is_default FROM dumped();
SELECT feed_create('gone');
DROP TABLE gone;
SELECT count(*) FROM feedpub._feed;
SELECT feed, kind, is_default FROM dumped();
DROP FUNCTION dumped;
-- The feeds are no members of the extension: a dump holds them as tables.
SELECT count(*) FROM pg_depend WHERE deptype = 'e' AND classid = 'pg_class'::regclass
   AND objid IN ('"Odd ""Name"", with a comma"'::regclass, 'texts'::regclass);

--
-- DROP EXTENSION refuses while there are feeds.
--
SELECT feed_xid, feed_pos FROM feed_fetch('0', 0, 1) \gset
\set VERBOSITY terse
DROP EXTENSION feedpub;
\echo :SQLSTATE
DROP SCHEMA feedpub;
\echo :SQLSTATE
DROP SCHEMA feedpub CASCADE;
\echo :SQLSTATE
\set VERBOSITY default
SELECT message_type FROM feed_fetch('0', 0, 100);

--
-- CASCADE keeps tables, rows and sequences, without defaults and guards.
--
SET client_min_messages = warning;
DROP EXTENSION feedpub CASCADE;
RESET client_min_messages;
SELECT to_regnamespace('feedpub') IS NULL AS schema_gone;
SELECT feed_pos, message_type, data FROM "Odd ""Name"", with a comma" ORDER BY feed_pos;
SELECT column_name, column_default IS NOT NULL AS has_default FROM information_schema.columns
 WHERE table_name = 'Odd "Name", with a comma' ORDER BY ordinal_position;
SELECT count(*) FROM pg_constraint WHERE conrelid = '"Odd ""Name"", with a comma"'::regclass AND contype = 'c';
SELECT count(*) FROM pg_trigger WHERE tgrelid = '"Odd ""Name"", with a comma"'::regclass;
SELECT pg_get_serial_sequence('"Odd ""Name"", with a comma"', 'feed_pos') IS NOT NULL AS has_sequence;
-- They can be written with plain SQL.
UPDATE "Odd ""Name"", with a comma" SET data = '3' WHERE message_type = 'b';

--
-- With the extension again, feed_repair() makes them feeds again.
--
CREATE EXTENSION feedpub;
SELECT * FROM feedpub.feeds;
SELECT message_type FROM feed_fetch(NULL::"Odd ""Name"", with a comma", '0', 0, 100);
\echo :SQLSTATE
SELECT DISTINCT guard FROM feed_check('"Odd ""Name"", with a comma"') ORDER BY guard;
SELECT cure FROM feed_check('"Odd ""Name"", with a comma"') WHERE guard = 'registration';
SELECT feed_repair('"Odd ""Name"", with a comma"') > 0 AS repaired, feed_repair('texts') > 0 AS repaired_texts;
SELECT * FROM feed_check('"Odd ""Name"", with a comma"');
SELECT * FROM feed_check('texts');
SELECT feed_repair('"Odd ""Name"", with a comma"');
INSERT INTO "Odd ""Name"", with a comma" (message_id, message_type, data) VALUES ('id', 'c', '4');
INSERT INTO texts (message_id, message_type, data) VALUES ('id', 'u', 'more text');
-- Cursors go on where they were, positions too.
SELECT feed_pos, message_type, data FROM feed_fetch(NULL::"Odd ""Name"", with a comma", :'feed_xid', :feed_pos, 100);
SELECT feed_pos, message_type, data FROM feed_fetch(NULL::texts, '0', 0, 100);
UPDATE "Odd ""Name"", with a comma" SET data = '5';
\echo :SQLSTATE
-- Which one is the default feed has to be said again.
SELECT feed, payload_type, is_default FROM feedpub.feeds ORDER BY feed::text COLLATE "C";
SELECT feed_set_default('"Odd ""Name"", with a comma"');
SELECT message_type FROM feed_fetch('0', 0, 100);
-- Only their owner may do that.
SET client_min_messages = warning;
DROP EXTENSION feedpub CASCADE;
RESET client_min_messages;
CREATE EXTENSION feedpub;
CREATE ROLE regress_feedpub_other;
GRANT SELECT ON texts TO regress_feedpub_other;
SET ROLE regress_feedpub_other;
SELECT feed_repair('texts');
\echo :SQLSTATE
SELECT guard FROM feed_check('texts') WHERE guard = 'registration';
RESET ROLE;
REVOKE SELECT ON texts FROM regress_feedpub_other;
DROP ROLE regress_feedpub_other;
DROP TABLE texts, "Odd ""Name"", with a comma";

--
-- Without feeds the extension can be dropped, and installed in a schema of
-- one's choice; but schema feedpub it makes itself.
--
DROP EXTENSION feedpub;
CREATE SCHEMA feedpub;
\set VERBOSITY terse
CREATE EXTENSION feedpub;
\set VERBOSITY default
\echo :SQLSTATE
DROP SCHEMA feedpub;
CREATE SCHEMA "Odd ""Schema"", with a comma";
CREATE EXTENSION feedpub SCHEMA "Odd ""Schema"", with a comma";
SELECT "Odd ""Schema"", with a comma".feed_create('public.outbox');
INSERT INTO outbox (message_type, data) VALUES ('x', '1');
SELECT message_type FROM "Odd ""Schema"", with a comma".feed_fetch('0', 0, 100);
SELECT message_type FROM "Odd ""Schema"", with a comma".feed_fetch(NULL::outbox, '0', 0, 100);
SELECT * FROM "Odd ""Schema"", with a comma".feed_check('outbox');
-- It stays where it is, though the schema may be renamed.
ALTER EXTENSION feedpub SET SCHEMA public;
\echo :SQLSTATE
ALTER SCHEMA "Odd ""Schema"", with a comma" RENAME TO "odd";
SELECT message_type FROM odd.feed_fetch('0', 0, 100);
CREATE TABLE unregistered (LIKE outbox);
SELECT cure FROM odd.feed_check('unregistered') WHERE guard = 'registration';
DROP TABLE unregistered;
SELECT odd.feed_drop('outbox');
DROP EXTENSION feedpub;
DROP SCHEMA odd;
CREATE EXTENSION feedpub;
-- Only a superuser may install it.
DROP EXTENSION feedpub;
CREATE ROLE regress_feedpub_other;
SELECT current_database() AS db \gset
GRANT CREATE ON DATABASE :"db" TO regress_feedpub_other;
SET ROLE regress_feedpub_other;
CREATE EXTENSION feedpub;
\echo :SQLSTATE
RESET ROLE;
REVOKE CREATE ON DATABASE :"db" FROM regress_feedpub_other;
DROP ROLE regress_feedpub_other;
CREATE EXTENSION feedpub;
