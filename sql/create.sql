-- Making and dropping outbox feeds, and choosing the default one.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
-- Pages in xid order are read here: no worker, whose transactions hold them
-- back.
SELECT feed_stop_worker() IS NOT NULL AS stopped;
DO $$
BEGIN
	WHILE EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'feedpub worker' AND datname = current_database()) LOOP
		PERFORM pg_stat_clear_snapshot();
	END LOOP;
END $$;
SET timezone = 'UTC';

--
-- An outbox is an ordinary table with the columns of a message, stamped by
-- a trigger, which protects it too.
--
SELECT feed_create('outbox');
\d outbox
-- The sequence belongs to the column: cache 1, no cycle, dropped with it.
SELECT seqtypid::regtype, seqstart, seqincrement, seqmax = 9223372036854775807 AS whole_bigint,
       seqcache, seqcycle, pg_get_serial_sequence('outbox', 'feed_pos') AS owned_by_feed_pos
  FROM pg_sequence WHERE seqrelid = 'outbox_feed_pos_seq'::regclass;
-- A heap table, logged, the caller's, and no member of the extension.
SELECT relkind, amname, relpersistence, relowner = current_user::regrole AS mine,
       EXISTS (SELECT FROM pg_depend d
                WHERE d.classid = 'pg_class'::regclass AND d.deptype = 'e'
                  AND d.objid IN (c.oid, 'outbox_feed_pos_seq'::regclass)) AS member
  FROM pg_class c JOIN pg_am a ON a.oid = relam
 WHERE c.oid = 'outbox'::regclass;
-- Its storage parameters are for retention.  Its owner may set others.
SELECT c.reloptions, t.reloptions AS toast FROM pg_class c JOIN pg_class t ON t.oid = c.reltoastrelid
 WHERE c.oid = 'outbox'::regclass;
ALTER TABLE outbox SET (vacuum_truncate = on, fillfactor = 90);
SELECT feed_repair('outbox'), reloptions FROM pg_class WHERE oid = 'outbox'::regclass;
-- feedpub.feeds lists the feeds of the database.
SELECT feed, kind, owner = current_user AS mine, payload_type, is_default, created_at <= now() AS created
  FROM feedpub.feeds;
-- Nothing is wrong with a feed that was just made.
SELECT * FROM feed_check('outbox');

--
-- data is jsonb, or json, text or bytea.
--
SELECT feed_create('outbox_json', 'json'), feed_create('outbox_text', payload_type => 'text'),
       feed_create('outbox_bytea', 'bytea'::regtype);
SELECT feed, payload_type, is_default FROM feedpub.feeds ORDER BY feed::text;
INSERT INTO outbox (message_type, data) VALUES ('j', '{"b": 1,  "a": 2, "a": 3}');
INSERT INTO outbox_json (message_type, data) VALUES ('j', '{"b": 1,  "a": 2, "a": 3}');
INSERT INTO outbox_text (message_type, data) VALUES ('t', 'any text');
INSERT INTO outbox_bytea (message_type, data) VALUES ('b', '\x00ff');
SELECT data FROM feed_fetch(NULL::outbox, '0', 0, 10);
SELECT data FROM feed_fetch(NULL::outbox_json, '0', 0, 10);
SELECT data FROM feed_fetch(NULL::outbox_text, '0', 0, 10);
SELECT data FROM feed_fetch(NULL::outbox_bytea, '0', 0, 10);
SELECT feed_create('outbox_int', 'int');
\echo :SQLSTATE
SELECT feed_create('outbox_array', 'jsonb[]');
\echo :SQLSTATE
CREATE DOMAIN payload AS jsonb;
SELECT feed_create('outbox_domain', 'payload');
\echo :SQLSTATE
DROP DOMAIN payload;
SELECT feed_drop('outbox_json'), feed_drop('outbox_text'), feed_drop('outbox_bytea');

--
-- The name is an SQL name: folded, quoted and qualified as in SQL.
--
SELECT feed_create('MixedCase');
SELECT feed_create('"MixedCase"');
CREATE SCHEMA "Odd ""Schema"", with a comma";
SELECT feed_create('"Odd ""Schema"", with a comma"."Odd ""Name"", with a comma"');
\d "Odd ""Schema"", with a comma"."Odd ""Name"", with a comma"
INSERT INTO "Odd ""Schema"", with a comma"."Odd ""Name"", with a comma" (message_type, data) VALUES ('odd', '1');
SELECT message_type, feed_pos FROM feed_fetch(NULL::"Odd ""Schema"", with a comma"."Odd ""Name"", with a comma", '0', 0, 10);
SELECT * FROM feed_check('"Odd ""Schema"", with a comma"."Odd ""Name"", with a comma"');
SELECT feed_create(' public . spaced ');
-- Keywords, a quotation mark, a backslash, and a name of 63 bytes
SELECT feed_create('"select"'), feed_create('"it''s"'), feed_create('"back\slash"');
SELECT feed_create(repeat('x', 63)) = repeat('x', 63)::regclass AS made;
SELECT relname FROM pg_class WHERE relkind = 'S' AND relname LIKE 'xxx%';
-- One that is longer is cut, as everywhere.
SELECT feed_create(repeat('y', 70)) = repeat('y', 63)::regclass AS made;
SELECT * FROM feed_check(repeat('y', 63)::regclass);
-- Cut between characters
SELECT feed_create(repeat('ü', 40)) = repeat('ü', 31)::regclass AS made;
SELECT * FROM feed_check(repeat('ü', 31)::regclass);
SELECT feed_drop(repeat('ü', 31));
-- If a sequence of the usual name exists already, another name is chosen.
CREATE SEQUENCE taken_feed_pos_seq;
SELECT feed_create('taken');
SELECT pg_get_serial_sequence('taken', 'feed_pos');
SELECT feed, is_default FROM feedpub.feeds ORDER BY feed::text COLLATE "C";
-- The database may be named too, as in SQL.
SELECT feed_create(format('%I.public.in_this_database', current_database()));
SELECT feed_drop('mixedcase'), feed_drop('"MixedCase"'), feed_drop('spaced'), feed_drop('"select"'),
       feed_drop('"it''s"'), feed_drop('"back\slash"'), feed_drop('taken'), feed_drop('in_this_database'),
       feed_drop(repeat('x', 63)), feed_drop(repeat('y', 63)),
       feed_drop('"Odd ""Schema"", with a comma"."Odd ""Name"", with a comma"');
DROP SEQUENCE taken_feed_pos_seq;

--
-- Unqualified, it is made where CREATE TABLE would make it.
--
SET search_path = "Odd ""Schema"", with a comma", public;
SELECT feed_create('by_path');
RESET search_path;
SELECT feed FROM feedpub.feeds WHERE NOT is_default;
SELECT feed_drop('"Odd ""Schema"", with a comma".by_path');
DROP SCHEMA "Odd ""Schema"", with a comma";
SET search_path = '';
SELECT public.feed_create('nowhere');
\echo :SQLSTATE
RESET search_path;

--
-- A temporary table cannot be a feed, nor can one in the extension's schema.
--
SELECT feed_create('pg_temp.gone_tomorrow');
\echo :SQLSTATE
SET search_path = pg_temp, public;
SELECT feed_create('gone_tomorrow');
\echo :SQLSTATE
SET search_path = feedpub, public;
SELECT feed_create('inside');
\echo :SQLSTATE
RESET search_path;
SELECT feed_create('feedpub.inside');
\echo :SQLSTATE
\set VERBOSITY terse
SELECT feed_create('pg_catalog.inside');
\echo :SQLSTATE

--
-- Bad names
--
SELECT feed_create('');
\echo :SQLSTATE
SELECT feed_create('two words');
\echo :SQLSTATE
SELECT feed_create('"unfinished');
\echo :SQLSTATE
SELECT feed_create('a.b.');
\echo :SQLSTATE
SELECT feed_create('other_database.public.t');
\echo :SQLSTATE
SELECT feed_create('a.b.c.d');
\echo :SQLSTATE
SELECT feed_create('no_such_schema.t');
\echo :SQLSTATE
-- Taken: by a feed, another relation, a type
SELECT feed_create('outbox');
\echo :SQLSTATE
CREATE VIEW a_view AS SELECT 1;
SELECT feed_create('a_view');
\echo :SQLSTATE
CREATE TYPE a_type AS ENUM ('x');
SELECT feed_create('a_type');
\echo :SQLSTATE
DROP VIEW a_view;
DROP TYPE a_type;
-- NULL names nothing.
SELECT feed_create(NULL);
\echo :SQLSTATE
SELECT feed_create('nothing', NULL);
\echo :SQLSTATE
SELECT feed_create('nothing', if_not_exists => NULL);
\echo :SQLSTATE
-- Nor can a read-only transaction.
BEGIN READ ONLY;
SELECT feed_create('read_only');
\echo :SQLSTATE
ROLLBACK;
-- Nothing of all that is left.
SELECT count(*) FROM feedpub.feeds;
SELECT count(*) FROM feedpub._feed;
\set VERBOSITY default

--
-- Making and dropping are part of the transaction.
--
BEGIN;
SELECT feed_create('for_a_moment');
INSERT INTO for_a_moment (message_type, data) VALUES ('x', '1');
SAVEPOINT s;
SELECT feed_drop('for_a_moment');
SELECT count(*) FROM feedpub.feeds;
ROLLBACK TO s;
SELECT count(*) FROM feedpub.feeds;
SELECT message_type FROM for_a_moment;
ROLLBACK;
SELECT count(*) FROM feedpub.feeds;

--
-- feed_drop() drops the table with its rows and sequence: a feed, of its
-- owner's, that nothing depends on.
--
CREATE TABLE plain (id int);
SELECT feed_drop('plain');
\echo :SQLSTATE
SELECT feed_drop('no_such_table');
\echo :SQLSTATE
SELECT feed_drop('no_such_schema.no_such_table');
\echo :SQLSTATE
SELECT feed_drop(NULL);
\echo :SQLSTATE
SELECT feed_drop('outbox', cascade => NULL);
\echo :SQLSTATE
-- That there is none is no error, if that is said; anything else is.
SELECT feed_drop('no_such_table', if_exists => true);
SELECT feed_drop('no_such_schema."no such table"', if_exists => true);
SELECT feed_drop('plain', if_exists => true);
\echo :SQLSTATE
SELECT feed_drop('two words', if_exists => true);
\echo :SQLSTATE
-- Nor that there is one already, if it is an outbox, whatever its payload is.
SELECT feed_create('outbox', if_not_exists => true);
SELECT feed_create('public.outbox', 'text', true);
SELECT feed_create('plain', if_not_exists => true);
\echo :SQLSTATE
SELECT feed_create('new_one', 'text', if_not_exists => true);
SELECT feed_drop('new_one', if_exists => true);
-- Subscriptions keep it, but with cascade, which removes them.
SELECT feed_create('subscribed');
SELECT feed_subscribe('first reader', 'subscribed', 'earliest') IS NOT NULL AS begun,
       feed_subscribe('second reader', 'subscribed', 'earliest', shards => 2) IS NOT NULL AS begun_too;
SELECT feed_drop('subscribed', if_exists => true);
\echo :SQLSTATE
SELECT feed_unsubscribe('second reader');
SELECT feed_drop('subscribed');
\echo :SQLSTATE
SELECT feed_drop('subscribed', cascade => true);
SELECT count(*) FROM feedpub._subscription;
SELECT count(*) FROM feedpub._shard;
CREATE VIEW on_outbox AS SELECT message_type FROM outbox;
SELECT feed_drop('outbox', cascade => true);
\echo :SQLSTATE
SELECT message_type FROM feed_fetch('0', 0, 10);
DROP VIEW on_outbox;
SELECT feed_drop('outbox');
SELECT to_regclass('outbox'), to_regclass('outbox_feed_pos_seq');
SELECT * FROM feedpub._feed;

--
-- Rights: CREATE on the schema to make a feed, which is then one's own; only
-- its owner drops it.
--
CREATE ROLE regress_feedpub_ann;
CREATE ROLE regress_feedpub_bob;
CREATE ROLE "regress_feedpub_Odd ""Role"", with a comma";
CREATE SCHEMA shop AUTHORIZATION regress_feedpub_ann;
GRANT USAGE ON SCHEMA shop TO regress_feedpub_bob;
SET ROLE regress_feedpub_bob;
\set VERBOSITY terse
SELECT feed_create('shop.orders');
\set VERBOSITY default
\echo :SQLSTATE
SET ROLE regress_feedpub_ann;
SELECT feed_create('shop.orders');
SELECT feed, owner FROM feedpub.feeds;
SELECT * FROM feed_check('shop.orders');
SET ROLE regress_feedpub_bob;
SELECT feed_drop('shop.orders');
\echo :SQLSTATE
SELECT feed_create('shop.orders', if_not_exists => true);
\echo :SQLSTATE
RESET ROLE;
GRANT CREATE ON SCHEMA shop TO "regress_feedpub_Odd ""Role"", with a comma";
GRANT USAGE ON SCHEMA shop TO "regress_feedpub_Odd ""Role"", with a comma";
SET ROLE "regress_feedpub_Odd ""Role"", with a comma";
SELECT feed_create('shop.odd_owner');
RESET ROLE;
-- The first one is the default feed, whichever role made it.
SELECT feed, owner, is_default FROM feedpub.feeds ORDER BY feed::text;
-- All roles may read the registry, and none may write it.
SET ROLE regress_feedpub_ann;
INSERT INTO feedpub._feed (feed, kind) VALUES ('plain', 'outbox');
\echo :SQLSTATE
UPDATE feedpub._feed SET is_default = false;
\echo :SQLSTATE
DELETE FROM feedpub._feed;
\echo :SQLSTATE
RESET ROLE;
-- In a SECURITY DEFINER function the feed is its definer's.
CREATE FUNCTION shop.make(name text) RETURNS regclass LANGUAGE sql SECURITY DEFINER
	SET search_path = shop, pg_temp AS 'SELECT public.feed_create(name)';
ALTER FUNCTION shop.make OWNER TO regress_feedpub_ann;
SET ROLE regress_feedpub_bob;
SELECT shop.make('by_wrapper');
RESET ROLE;
SELECT feed, owner FROM feedpub.feeds WHERE feed = 'shop.by_wrapper'::regclass;
DROP FUNCTION shop.make;
SET client_min_messages = warning;
DROP SCHEMA shop CASCADE;
RESET client_min_messages;
DROP ROLE "regress_feedpub_Odd ""Role"", with a comma";
-- Feeds that went with their schema are not listed.
SELECT * FROM feedpub.feeds;

--
-- What is ahead of pg_catalog in the caller's search_path is not called.
--
CREATE SCHEMA evil;
CREATE FUNCTION evil.trap() RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
CREATE FUNCTION evil.now() RETURNS timestamptz LANGUAGE sql AS $$ SELECT evil.trap(); SELECT pg_catalog.now() $$;
CREATE FUNCTION evil.pg_current_xact_id() RETURNS xid8 LANGUAGE sql AS $$ SELECT evil.trap(); SELECT '1'::xid8 $$;
CREATE FUNCTION evil.setval(regclass, bigint) RETURNS bigint LANGUAGE sql AS 'SELECT evil.trap()';
CREATE FUNCTION evil.greater(xid8, xid8) RETURNS bool LANGUAGE sql AS 'SELECT evil.trap() > 0';
CREATE FUNCTION evil.greater(bigint, bigint) RETURNS bool LANGUAGE sql AS 'SELECT evil.trap() IS NULL';
CREATE FUNCTION evil.same(oid, oid) RETURNS bool LANGUAGE sql AS 'SELECT evil.trap() IS NULL';
CREATE OPERATOR evil.> (LEFTARG = xid8, RIGHTARG = xid8, FUNCTION = evil.greater);
CREATE OPERATOR evil.< (LEFTARG = xid8, RIGHTARG = xid8, FUNCTION = evil.greater);
CREATE OPERATOR evil.> (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = evil.greater);
CREATE OPERATOR evil.= (LEFTARG = oid, RIGHTARG = oid, FUNCTION = evil.same);
CREATE DOMAIN evil.xid8 AS text;
CREATE DOMAIN evil.int8 AS text;
CREATE DOMAIN evil.text AS pg_catalog.int4;
CREATE DOMAIN evil.timestamptz AS pg_catalog.int4;
CREATE TABLE evil.pg_class (oid oid);
CREATE TABLE evil.feed (feed regclass);
SET search_path = evil, pg_catalog, public;
SELECT feed_create('evil.hijacked');
SELECT * FROM feed_check('hijacked');
INSERT INTO hijacked (message_type, data) VALUES ('safe', '1');
SELECT message_type FROM feed_fetch('0', 0, 10);
SELECT message_type FROM feed_fetch(NULL::hijacked, '0', 0, 10);
SELECT feed FROM feedpub.feeds;
SELECT feed, waiting FROM feedpub.waiting;
SELECT feed_set_default('hijacked');
SELECT feed_drop('hijacked');
RESET search_path;
SET client_min_messages = warning;
DROP SCHEMA evil CASCADE;
RESET client_min_messages;

--
-- The default feed: the first jsonb outbox that was made.  feed_fetch()
-- without a feed reads it.
--
SELECT feed_create('texts', 'text');
SELECT message_type FROM feed_fetch('0', 0, 10);
\echo :SQLSTATE
SELECT feed_create('first'), feed_create('second');
SELECT feed, is_default FROM feedpub.feeds ORDER BY feed::text;
INSERT INTO first (message_type, data) VALUES ('to the first', '1');
INSERT INTO second (message_type, data) VALUES ('to the second', '2');
SELECT message_type, data FROM feed_fetch('0', 0, 10);
SELECT feed_set_default('second');
SELECT message_type, data FROM feed_fetch('0', 0, 10);
-- Again changes nothing.
SELECT feed_set_default('second');
SELECT feed, is_default FROM feedpub.feeds ORDER BY feed::text;
-- It is part of the transaction.
BEGIN;
SELECT feed_set_default('first');
SELECT message_type FROM feed_fetch('0', 0, 10);
ROLLBACK;
SELECT message_type FROM feed_fetch('0', 0, 10);
-- Only a feed with the columns that feed_create() makes will do.
SELECT feed_set_default('texts');
\echo :SQLSTATE
SELECT feed_set_default('plain');
\echo :SQLSTATE
SELECT feed_set_default(4294967295::oid);
\echo :SQLSTATE
SELECT feed_set_default(NULL);
\echo :SQLSTATE
SELECT feed_create('narrow');
ALTER TABLE narrow DROP COLUMN scheduled;
SELECT feed_set_default('narrow');
\echo :SQLSTATE
-- A table of one's own that feed_repair() has made a feed of
CREATE TABLE small (feed_xid xid8, feed_pos bigint, note text);
SELECT feed_repair('small') > 0 AS repaired;
SELECT * FROM feed_check('small');
INSERT INTO small (note) VALUES ('stamped');
SELECT feed_pos > 0 AS stamped, note FROM feed_fetch(NULL::small, '0', 0, 10);
SELECT feed_set_default('small');
\echo :SQLSTATE
SELECT feed_drop('small');
-- More columns, after those, are left out of what it returns.
ALTER TABLE first ADD COLUMN extra int DEFAULT 7;
SELECT feed_set_default('first');
SELECT to_jsonb(f) - 'feed_xid' - 'message_id' - 'scheduled' AS first_row FROM feed_fetch('0', 0, 10) f;

-- Without the default feed there is none, until one is chosen or the next
-- one made.
SELECT feed_drop('first');
SELECT message_type FROM feed_fetch('0', 0, 10);
\echo :SQLSTATE
SELECT feed_set_default('second');
SELECT message_type FROM feed_fetch('0', 0, 10);
SELECT feed_drop('second');
SELECT feed_create('third');
INSERT INTO third (message_type, data) VALUES ('to the third', '3');
SELECT message_type FROM feed_fetch('0', 0, 10);

--
-- DROP TABLE serves as well: the feed is gone.
--
DROP TABLE third;
SELECT feed, is_default FROM feedpub.feeds ORDER BY feed::text;
SELECT message_type FROM feed_fetch('0', 0, 10);
\echo :SQLSTATE
SELECT feed_create('fourth');
INSERT INTO fourth (message_type, data) VALUES ('to the fourth', '4');
SELECT message_type FROM feed_fetch('0', 0, 10);
-- The registry has forgotten the dropped one.
SELECT feed, is_default FROM feedpub._feed ORDER BY feed::text;
-- Rolled back, nothing was dropped.
BEGIN;
DROP TABLE fourth;
SELECT feed, is_default FROM feedpub.feeds ORDER BY feed::text;
ROLLBACK;
SELECT message_type FROM feed_fetch('0', 0, 10);
-- One that is chosen takes the place as well.
SELECT feed_create('fifth');
DROP TABLE fourth;
SELECT feed_set_default('fifth');
SELECT feed, is_default FROM feedpub.feeds ORDER BY feed::text;
DROP TABLE fifth;
-- The owner of nothing but its own feed may take the place of a dropped one.
GRANT CREATE ON SCHEMA public TO regress_feedpub_ann, regress_feedpub_bob;
SET ROLE regress_feedpub_ann;
SELECT feed_create('anns');
-- One that this transaction has dropped is nobody's, and no default.
BEGIN;
SELECT feed_create('more');
DROP TABLE anns;
SELECT feed_set_default('more');
DROP TABLE more;
SELECT feed_start_worker();
ROLLBACK;
RESET ROLE;
SELECT feed, is_default FROM feedpub.feeds ORDER BY feed::text;
-- But not of one that is there, unless it owns that too, or the database.
SET ROLE regress_feedpub_bob;
SELECT feed_create('bobs');
SELECT feed_set_default('bobs');
\echo :SQLSTATE
SELECT feed_set_default('anns');
\echo :SQLSTATE
RESET ROLE;
-- Of another role's table nothing else is said, and it is not locked.
CREATE TABLE not_bobs (i int);
SET ROLE regress_feedpub_bob;
SELECT feed_create('not_bobs', if_not_exists => true);
\echo :SQLSTATE
RESET ROLE;
DROP TABLE not_bobs;
GRANT regress_feedpub_ann TO regress_feedpub_bob;
SET ROLE regress_feedpub_bob;
SELECT feed_set_default('bobs');
RESET ROLE;
SELECT feed, is_default FROM feedpub.feeds WHERE payload_type = 'jsonb' ORDER BY feed::text;
REVOKE regress_feedpub_ann FROM regress_feedpub_bob;
SELECT current_user AS me, current_database() AS db \gset
ALTER DATABASE :"db" OWNER TO regress_feedpub_ann;
SET ROLE regress_feedpub_ann;
SELECT feed_set_default('anns');
RESET ROLE;
ALTER DATABASE :"db" OWNER TO :"me";
SELECT feed, is_default FROM feedpub.feeds WHERE payload_type = 'jsonb' ORDER BY feed::text;

--
-- Renamed or moved, a feed goes on: it is the table, not its name.
--
INSERT INTO anns (message_type, data) VALUES ('before', '1');
SELECT message_type FROM feed_fetch(NULL::anns, '0', 0, 10);
ALTER TABLE anns RENAME TO "Odd ""Name"", with a comma";
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('renamed', '2');
SELECT message_type FROM feed_fetch('0', 0, 10);
SELECT message_type FROM feed_fetch(NULL::"Odd ""Name"", with a comma", '0', 0, 10);
CREATE SCHEMA elsewhere;
ALTER TABLE "Odd ""Name"", with a comma" SET SCHEMA elsewhere;
INSERT INTO elsewhere."Odd ""Name"", with a comma" (message_type, data) VALUES ('moved', '3');
SELECT feed_pos, message_type FROM feed_fetch('0', 0, 10);
SELECT feed_pos, message_type FROM feed_fetch(NULL::elsewhere."Odd ""Name"", with a comma", '0', 0, 10);
ALTER SCHEMA elsewhere RENAME TO nowhere;
ALTER SEQUENCE nowhere.anns_feed_pos_seq RENAME TO "Odd ""Sequence""";
INSERT INTO nowhere."Odd ""Name"", with a comma" (message_type, data) VALUES ('schema and sequence renamed', '4');
SELECT feed_pos, message_type FROM feed_fetch('0', 0, 10);
ALTER TABLE nowhere."Odd ""Name"", with a comma" OWNER TO regress_feedpub_bob;
SELECT * FROM feed_check('nowhere."Odd ""Name"", with a comma"');
SELECT feed, owner, is_default FROM feedpub.feeds WHERE is_default;
SELECT feed_drop('nowhere."Odd ""Name"", with a comma"');
-- With its owner's other things it goes, too; default rights are as for any table.
ALTER DEFAULT PRIVILEGES FOR ROLE regress_feedpub_ann GRANT SELECT ON TABLES TO regress_feedpub_bob;
SET ROLE regress_feedpub_ann;
SELECT feed_create('of_ann');
RESET ROLE;
SELECT has_table_privilege('regress_feedpub_bob', 'of_ann', 'SELECT') AS may_read, has_table_privilege('regress_feedpub_bob', 'of_ann', 'INSERT') AS may_write;
DROP OWNED BY regress_feedpub_ann;
SELECT feed FROM feedpub.feeds ORDER BY feed::text;

--
-- A copy of an outbox is no feed: it was not made as one.
--
CREATE TABLE copy (LIKE bobs INCLUDING ALL);
SELECT feed_drop('copy');
\echo :SQLSTATE
SELECT message_type FROM feed_fetch(NULL::copy, '0', 0, 10);
\echo :SQLSTATE
DROP TABLE copy;

SELECT feed_drop('bobs'), feed_drop('texts'), feed_drop('narrow');
DROP TABLE plain;
DROP SCHEMA nowhere;
REVOKE CREATE ON SCHEMA public FROM regress_feedpub_bob;
DROP ROLE regress_feedpub_ann, regress_feedpub_bob;
SELECT * FROM feedpub.feeds;
