-- Rights are the table's: SELECT to read a feed, INSERT to write it, and row
-- security for both.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
CREATE ROLE regress_feedpub_owner;
CREATE ROLE regress_feedpub_reader;
CREATE ROLE regress_feedpub_writer;
CREATE ROLE regress_feedpub_bypass BYPASSRLS;
CREATE ROLE "regress_feedpub_Odd ""Role"", with a comma";
RESET client_min_messages;
CREATE SCHEMA shop AUTHORIZATION regress_feedpub_owner;
GRANT USAGE ON SCHEMA shop TO regress_feedpub_reader, regress_feedpub_writer, regress_feedpub_bypass, "regress_feedpub_Odd ""Role"", with a comma";
SET ROLE regress_feedpub_owner;
SELECT feed_create('shop."Odd ""Name"", with a comma"');
INSERT INTO shop."Odd ""Name"", with a comma" (message_type, message_key, data) VALUES
	('a', 'regress_feedpub_reader', '1'), ('b', 'regress_feedpub_writer', '2'), ('c', 'regress_feedpub_reader', '3'), ('d', NULL, '4');
RESET ROLE;

--
-- No right, no page; the owner has every right.
--
SET ROLE regress_feedpub_owner;
SELECT message_type FROM feed_fetch('0', 0, 100);
SET ROLE regress_feedpub_reader;
SELECT message_type FROM feed_fetch('0', 0, 100);
\echo :SQLSTATE
SELECT message_type FROM feed_fetch(NULL::shop."Odd ""Name"", with a comma", '0', 0, 100);
\echo :SQLSTATE
SELECT * FROM feed_check('shop."Odd ""Name"", with a comma"');
\echo :SQLSTATE
-- What every feed shows to everybody: its name
SELECT feed, owner, is_default FROM feedpub.feeds;
SELECT feed, waiting FROM feedpub.waiting;

--
-- A reader needs SELECT and nothing else.
--
SET ROLE regress_feedpub_owner;
GRANT SELECT ON shop."Odd ""Name"", with a comma" TO regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
SELECT message_type FROM feed_fetch('0', 0, 100);
SELECT message_type FROM feed_fetch(NULL::shop."Odd ""Name"", with a comma", '0', 0, 2);
SELECT after_pos FROM feed_xid_head('shop."Odd ""Name"", with a comma"');
SELECT * FROM feed_check('shop."Odd ""Name"", with a comma"');
SELECT feed, waiting FROM feedpub.waiting;
INSERT INTO shop."Odd ""Name"", with a comma" (message_type, data) VALUES ('e', '5');
\echo :SQLSTATE
SELECT feed_repair('shop."Odd ""Name"", with a comma"');
\echo :SQLSTATE
SELECT feed_begin_history('shop."Odd ""Name"", with a comma"');
\echo :SQLSTATE
SELECT feed_set_channel('shop."Odd ""Name"", with a comma"', 'news');
\echo :SQLSTATE
SELECT feed_drop('shop."Odd ""Name"", with a comma"');
\echo :SQLSTATE
SELECT feed_set_default('shop."Odd ""Name"", with a comma"');
\echo :SQLSTATE
-- The feed is found by its type, and a type in a schema that may not be used
-- cannot be named; the default feed need not be named.
RESET ROLE;
REVOKE USAGE ON SCHEMA shop FROM regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
\set VERBOSITY terse
SELECT message_type FROM feed_fetch(NULL::shop."Odd ""Name"", with a comma", '0', 0, 2);
\set VERBOSITY default
\echo :SQLSTATE
SELECT message_type FROM feed_fetch('0', 0, 2);
RESET ROLE;
GRANT USAGE ON SCHEMA shop TO regress_feedpub_reader;
-- Rights that are taken away are gone at once, also from a prepared statement.
SET ROLE regress_feedpub_reader;
PREPARE page AS SELECT message_type FROM feed_fetch('0', 0, 1);
EXECUTE page;
RESET ROLE;
REVOKE SELECT ON shop."Odd ""Name"", with a comma" FROM regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
EXECUTE page;
\echo :SQLSTATE
RESET ROLE;
EXECUTE page;
DEALLOCATE page;
-- A right through PUBLIC or membership is a right.
GRANT SELECT ON shop."Odd ""Name"", with a comma" TO PUBLIC;
SET ROLE regress_feedpub_reader;
SELECT count(*) FROM feed_fetch('0', 0, 100);
RESET ROLE;
REVOKE SELECT ON shop."Odd ""Name"", with a comma" FROM PUBLIC;
GRANT regress_feedpub_owner TO regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
SELECT count(*) FROM feed_fetch('0', 0, 100);
RESET ROLE;
REVOKE regress_feedpub_owner FROM regress_feedpub_reader;

--
-- A writer needs INSERT and nothing else: it cannot read, not even its own rows.
--
GRANT INSERT ON shop."Odd ""Name"", with a comma" TO regress_feedpub_writer;
SET ROLE regress_feedpub_writer;
INSERT INTO shop."Odd ""Name"", with a comma" (message_type, message_key, data) VALUES ('e', 'regress_feedpub_writer', '5');
SELECT message_type FROM feed_fetch('0', 0, 100);
\echo :SQLSTATE
SELECT message_type FROM feed_fetch(NULL::shop."Odd ""Name"", with a comma", '0', 0, 100);
\echo :SQLSTATE
SELECT feed_xid_head('shop."Odd ""Name"", with a comma"');
\echo :SQLSTATE
-- INSERT on some columns is enough as well.
RESET ROLE;
REVOKE INSERT ON shop."Odd ""Name"", with a comma" FROM regress_feedpub_writer;
GRANT INSERT (message_type, message_key, data) ON shop."Odd ""Name"", with a comma" TO regress_feedpub_writer;
SET ROLE regress_feedpub_writer;
INSERT INTO shop."Odd ""Name"", with a comma" (message_type, message_key, data) VALUES ('f', 'regress_feedpub_writer', '6');
COPY shop."Odd ""Name"", with a comma" (message_type, data) FROM stdin;
g	7
\.
INSERT INTO shop."Odd ""Name"", with a comma" (feed_pos, message_type, data) VALUES (1, 'forged', '6');
\echo :SQLSTATE
RESET ROLE;
SELECT feed_pos, message_type FROM feed_fetch('0', 4, 100) WHERE data >= '5';

--
-- Rights on columns: a page is the whole row, so all of them are needed, by
-- default too.
--
GRANT SELECT (feed_xid, feed_pos, publication_id, message_id, message_type, message_key, data)
	ON shop."Odd ""Name"", with a comma" TO regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
\set VERBOSITY terse
SELECT message_type FROM feed_fetch('0', 0, 100);
\echo :SQLSTATE
SELECT message_type FROM feed_fetch(NULL::shop."Odd ""Name"", with a comma", '0', 0, 100);
\echo :SQLSTATE
\set VERBOSITY default
RESET ROLE;
GRANT SELECT (scheduled, headers) ON shop."Odd ""Name"", with a comma" TO regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
SELECT message_type FROM feed_fetch('0', 0, 2);
SELECT message_type FROM feed_fetch(NULL::shop."Odd ""Name"", with a comma", '0', 0, 2);
SELECT feed_pos, message_type, message_key, data FROM feed_fetch('0', 4, 100) WHERE message_type = 'f';
RESET ROLE;
ALTER TABLE shop."Odd ""Name"", with a comma" ADD COLUMN secret text DEFAULT 'secret';
SET ROLE regress_feedpub_reader;
\set VERBOSITY terse
SELECT message_type FROM feed_fetch('0', 0, 2);
SELECT secret FROM feed_fetch(NULL::shop."Odd ""Name"", with a comma", '0', 0, 2);
\set VERBOSITY default
\echo :SQLSTATE
RESET ROLE;
ALTER TABLE shop."Odd ""Name"", with a comma" DROP COLUMN secret;
SET ROLE regress_feedpub_reader;
SELECT message_type FROM feed_fetch(NULL::shop."Odd ""Name"", with a comma", '0', 0, 2);
RESET ROLE;
REVOKE SELECT (feed_xid, feed_pos, publication_id, message_id, message_type, message_key, data, scheduled, headers)
	ON shop."Odd ""Name"", with a comma" FROM regress_feedpub_reader;

--
-- Functions and views
--
-- A SECURITY DEFINER function gives its owner's pages to roles that may call it.
CREATE FUNCTION shop.next_page(after_xid xid8, after_pos bigint) RETURNS TABLE (xid xid8, pos bigint, type text)
	LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
	AS 'SELECT feed_xid, feed_pos, message_type FROM public.feed_fetch($1, $2, 2)';
ALTER FUNCTION shop.next_page OWNER TO regress_feedpub_owner;
SET ROLE regress_feedpub_reader;
SELECT type FROM shop.next_page('0', 0);
SELECT message_type FROM feed_fetch('0', 0, 100);
\echo :SQLSTATE
-- A view does not: the role that queries a view calls its functions.
RESET ROLE;
CREATE VIEW shop.first_page AS SELECT message_type FROM feed_fetch('0', 0, 2);
ALTER VIEW shop.first_page OWNER TO regress_feedpub_owner;
GRANT SELECT ON shop.first_page TO regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
SELECT * FROM shop.first_page;
\echo :SQLSTATE
RESET ROLE;
GRANT SELECT ON shop."Odd ""Name"", with a comma" TO regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
SELECT * FROM shop.first_page;
RESET ROLE;
DROP VIEW shop.first_page;

--
-- Row security: a page is made of the rows that the caller may see.
--
GRANT SELECT, INSERT ON shop."Odd ""Name"", with a comma" TO regress_feedpub_writer, "regress_feedpub_Odd ""Role"", with a comma";
GRANT SELECT ON shop."Odd ""Name"", with a comma" TO regress_feedpub_bypass;
DELETE FROM shop."Odd ""Name"", with a comma" WHERE data >= '6';
-- Here is what one sees, by name and by default, and page by page.
CREATE FUNCTION shop.seen() RETURNS TABLE (who name, named text, by_default text, paged text) LANGUAGE plpgsql AS $$
DECLARE
	x xid8 := '0';
	p bigint := 0;
	r record;
BEGIN
	who := current_user;
	SELECT string_agg(message_type, ',' ORDER BY f.feed_xid, f.feed_pos) INTO named
	  FROM public.feed_fetch(NULL::shop."Odd ""Name"", with a comma", '0', 0, 100) f;
	SELECT string_agg(message_type, ',' ORDER BY f.feed_xid, f.feed_pos) INTO by_default FROM public.feed_fetch('0', 0, 100) f;
	LOOP
		SELECT * INTO r FROM public.feed_fetch(x, p, 1);
		EXIT WHEN NOT FOUND;
		ASSERT (r.feed_xid, r.feed_pos) > (x, p), 'pages must go forward';
		paged := concat_ws(',', paged, r.message_type);
		x := r.feed_xid;
		p := r.feed_pos;
	END LOOP;
	RETURN NEXT;
END $$;
GRANT EXECUTE ON FUNCTION shop.seen TO PUBLIC;
SET ROLE regress_feedpub_reader;
SELECT * FROM shop.seen();
RESET ROLE;
-- Without a policy nobody but the owner sees anything.
ALTER TABLE shop."Odd ""Name"", with a comma" ENABLE ROW LEVEL SECURITY;
SET ROLE regress_feedpub_reader;
SELECT * FROM shop.seen();
SET ROLE regress_feedpub_owner;
SELECT * FROM shop.seen();
SET ROLE regress_feedpub_bypass;
SELECT * FROM shop.seen();
RESET ROLE;
SELECT named, by_default, paged FROM shop.seen();
-- A policy that depends on the calling role
CREATE POLICY own ON shop."Odd ""Name"", with a comma" USING (message_key = current_user);
SET ROLE regress_feedpub_reader;
SELECT * FROM shop.seen();
SET ROLE regress_feedpub_writer;
SELECT * FROM shop.seen();
SET ROLE "regress_feedpub_Odd ""Role"", with a comma";
SELECT * FROM shop.seen();
INSERT INTO shop."Odd ""Name"", with a comma" (message_type, message_key, data) VALUES ('odd', current_user, '7');
INSERT INTO shop."Odd ""Name"", with a comma" (message_type, message_key, data) VALUES ('odd', 'somebody else', '7');
\echo :SQLSTATE
SELECT * FROM shop.seen();
RESET ROLE;
-- One with a subquery
CREATE TABLE shop.allowed (who name, key text);
GRANT SELECT ON shop.allowed TO PUBLIC;
INSERT INTO shop.allowed VALUES ('regress_feedpub_reader', 'regress_feedpub_reader'), ('regress_feedpub_reader', 'regress_feedpub_writer');
DROP POLICY own ON shop."Odd ""Name"", with a comma";
CREATE POLICY listed ON shop."Odd ""Name"", with a comma" FOR SELECT
	USING (EXISTS (SELECT FROM shop.allowed a WHERE a.who = current_user AND a.key = message_key));
SET ROLE regress_feedpub_reader;
SELECT * FROM shop.seen();
SET ROLE regress_feedpub_writer;
SELECT * FROM shop.seen();
RESET ROLE;
INSERT INTO shop.allowed VALUES ('regress_feedpub_writer', 'regress_feedpub_reader');
SET ROLE regress_feedpub_writer;
SELECT * FROM shop.seen();
RESET ROLE;
-- Two, and one that restricts; one on the stamp itself
CREATE POLICY open_ones ON shop."Odd ""Name"", with a comma" FOR SELECT USING (message_key IS NULL);
CREATE POLICY not_the_first ON shop."Odd ""Name"", with a comma" AS RESTRICTIVE FOR SELECT USING (feed_pos > 1);
SET ROLE regress_feedpub_reader;
SELECT * FROM shop.seen();
-- Rights of a kind that policies do not give: row_security = off asks for all
-- rows or none.
SET row_security = off;
\set VERBOSITY terse
SELECT message_type FROM feed_fetch('0', 0, 100);
\echo :SQLSTATE
SELECT message_type FROM feed_fetch(NULL::shop."Odd ""Name"", with a comma", '0', 0, 100);
\echo :SQLSTATE
\set VERBOSITY default
SET ROLE regress_feedpub_bypass;
SELECT * FROM shop.seen();
RESET ROLE;
RESET row_security;
-- The owner is exempt, until it is forced.
SET ROLE regress_feedpub_owner;
SELECT * FROM shop.seen();
ALTER TABLE shop."Odd ""Name"", with a comma" FORCE ROW LEVEL SECURITY;
SELECT * FROM shop.seen();
SELECT type FROM shop.next_page('0', 0);
-- A SECURITY DEFINER function sees the rows that its owner may see.
SET ROLE regress_feedpub_reader;
SELECT type FROM shop.next_page('0', 0);
RESET ROLE;
-- Policies and columns together: the right must be one on the table.
REVOKE SELECT ON shop."Odd ""Name"", with a comma" FROM regress_feedpub_reader;
GRANT SELECT (feed_xid, feed_pos, publication_id, message_id, message_type, message_key, data)
	ON shop."Odd ""Name"", with a comma" TO regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
\set VERBOSITY terse
SELECT * FROM shop.seen();
\set VERBOSITY default
\echo :SQLSTATE
RESET ROLE;
GRANT SELECT (scheduled, headers) ON shop."Odd ""Name"", with a comma" TO regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
\set VERBOSITY terse
SELECT * FROM shop.seen();
\set VERBOSITY default
RESET ROLE;
GRANT SELECT ON shop."Odd ""Name"", with a comma" TO regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
SELECT * FROM shop.seen();
RESET ROLE;
-- Row security with columns that were added and dropped, large values, and a
-- table that is renamed meanwhile
ALTER TABLE shop."Odd ""Name"", with a comma" ADD COLUMN extra text DEFAULT repeat('x', 3), ADD COLUMN t int DEFAULT 7;
ALTER TABLE shop."Odd ""Name"", with a comma" DROP COLUMN extra;
GRANT SELECT ON shop."Odd ""Name"", with a comma" TO regress_feedpub_reader;
INSERT INTO shop."Odd ""Name"", with a comma" (message_type, data) SELECT 'large', to_jsonb(string_agg(md5(i::text), '')) FROM generate_series(1, 10000) i;
SET ROLE regress_feedpub_reader;
SELECT message_type, t, length(data #>> '{}') FROM feed_fetch(NULL::shop."Odd ""Name"", with a comma", '0', 0, 100);
SELECT message_type, length(data #>> '{}') FROM feed_fetch('0', 0, 100);
SELECT count(*) FROM (SELECT * FROM feed_fetch(NULL::shop."Odd ""Name"", with a comma", '0', 0, 100) EXCEPT TABLE shop."Odd ""Name"", with a comma") d;
SELECT count(*) FROM (TABLE shop."Odd ""Name"", with a comma" EXCEPT SELECT * FROM feed_fetch(NULL::shop."Odd ""Name"", with a comma", '0', 0, 100)) d;
RESET ROLE;
ALTER TABLE shop."Odd ""Name"", with a comma" RENAME TO "Odd ""Name"", 2";
ALTER TABLE shop."Odd ""Name"", 2" ADD COLUMN u int;
SET ROLE regress_feedpub_reader;
SELECT message_type, u FROM feed_fetch(NULL::shop."Odd ""Name"", 2", '0', 0, 1);
SELECT message_type FROM feed_fetch('0', 0, 1);
-- Another table takes the old name: the kept plan is not for it.
RESET ROLE;
CREATE TABLE shop."Odd ""Name"", with a comma" (LIKE shop."Odd ""Name"", 2" INCLUDING DEFAULTS);
SET ROLE regress_feedpub_reader;
SELECT message_type, u FROM feed_fetch(NULL::shop."Odd ""Name"", 2", '0', 0, 1);
RESET ROLE;
DROP TABLE shop."Odd ""Name"", with a comma";
ALTER TABLE shop."Odd ""Name"", 2" RENAME TO "Odd ""Name"", with a comma";
-- In a transaction that wrote, and in a read-only one, and in parallel
BEGIN ISOLATION LEVEL REPEATABLE READ;
INSERT INTO shop."Odd ""Name"", with a comma" (message_type, data) VALUES ('own', '8');
SET LOCAL ROLE regress_feedpub_reader;
SELECT message_type FROM feed_fetch('0', 0, 100);
ROLLBACK;
BEGIN READ ONLY;
SET LOCAL ROLE regress_feedpub_reader;
SELECT message_type FROM feed_fetch('0', 0, 100);
ROLLBACK;
CREATE TABLE shop.big AS SELECT i, '0'::xid8 AS x, 0::bigint AS p FROM generate_series(1, 200) i;
GRANT SELECT ON shop.big TO PUBLIC;
ANALYZE shop.big;
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
SET parallel_leader_participation = off;
SET ROLE regress_feedpub_reader;
SELECT count(*), min(message_type), max(message_type) FROM shop.big, feed_fetch(x, p, 2);
SELECT count(*), min(message_type), max(message_type) FROM shop.big, feed_fetch(NULL::shop."Odd ""Name"", with a comma", x, p, 2);
RESET ROLE;
RESET parallel_setup_cost;
RESET parallel_tuple_cost;
RESET min_parallel_table_scan_size;
RESET parallel_leader_participation;
-- The settings that it is planned with are put back at once.
SET ROLE regress_feedpub_reader;
BEGIN;
SELECT count(*) FROM feed_fetch('0', 0, 100);
SELECT name, setting FROM pg_settings WHERE name IN ('enable_seqscan', 'enable_bitmapscan', 'enable_sort') ORDER BY name;
COMMIT;
RESET ROLE;
-- So they are when the policy raises an error that is caught.
CREATE POLICY broken ON shop."Odd ""Name"", with a comma" AS RESTRICTIVE FOR SELECT USING (1 / (feed_pos - 3) < 10);
SET ROLE regress_feedpub_reader;
DO $$
BEGIN
	PERFORM feed_fetch('0', 0, 100);
EXCEPTION WHEN division_by_zero THEN
	RAISE NOTICE 'caught %: seqscan %, bitmapscan %, sort %', SQLSTATE, current_setting('enable_seqscan'),
		current_setting('enable_bitmapscan'), current_setting('enable_sort');
END $$;
RESET ROLE;
DROP POLICY broken ON shop."Odd ""Name"", with a comma";

--
-- What is ahead of pg_catalog in the reader's search_path is not called.
--
CREATE SCHEMA evil;
GRANT USAGE ON SCHEMA evil TO PUBLIC;
CREATE FUNCTION evil.trap() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
CREATE FUNCTION evil.cmp(xid8, xid8) RETURNS bool LANGUAGE sql AS 'SELECT evil.trap()';
CREATE FUNCTION evil.cmp(bigint, bigint) RETURNS bool LANGUAGE sql AS 'SELECT evil.trap()';
CREATE FUNCTION evil.cmp(text, text) RETURNS bool LANGUAGE sql AS 'SELECT evil.trap()';
CREATE OPERATOR evil.> (LEFTARG = xid8, RIGHTARG = xid8, FUNCTION = evil.cmp);
CREATE OPERATOR evil.< (LEFTARG = xid8, RIGHTARG = xid8, FUNCTION = evil.cmp);
CREATE OPERATOR evil.= (LEFTARG = xid8, RIGHTARG = xid8, FUNCTION = evil.cmp);
CREATE OPERATOR evil.> (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = evil.cmp);
CREATE OPERATOR evil.= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = evil.cmp);
CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.cmp);
CREATE FUNCTION evil.pg_current_snapshot() RETURNS pg_snapshot LANGUAGE sql AS 'SELECT evil.trap(); SELECT ''1:1:''::pg_snapshot';
CREATE FUNCTION evil.pg_snapshot_xmin(pg_snapshot) RETURNS xid8 LANGUAGE sql AS 'SELECT evil.trap(); SELECT ''1''::xid8';
CREATE TABLE evil.feed (feed regclass);
CREATE TABLE evil.t (t int);
SET ROLE regress_feedpub_reader;
SET search_path = evil, pg_catalog, public;
SELECT message_type FROM feed_fetch('0', 0, 2);
SELECT message_type FROM feed_fetch(NULL::shop."Odd ""Name"", with a comma", '0', 0, 2);
SELECT after_pos FROM feed_xid_head('shop."Odd ""Name"", with a comma"');
SELECT feed, is_default FROM feedpub.feeds;
SELECT feed, waiting FROM feedpub.waiting;
SELECT xid FROM feedpub.blockers;
SELECT guard FROM feed_check('shop."Odd ""Name"", with a comma"');
RESET ROLE;
SELECT message_type FROM feed_fetch('0', 0, 2);
SELECT message_type FROM feed_fetch(NULL::shop."Odd ""Name"", with a comma", '0', 0, 2);
RESET search_path;
-- Settings: how long a read waits is the reader's affair, what the server bears
-- is not; and a name that is misspelt is none.
SET ROLE regress_feedpub_reader;
SET feedpub.read_wait = '1 ms';
SHOW feedpub.read_wait;
RESET feedpub.read_wait;
SET feedpub.max_page_rows = 1;
SET feedpub.max_batch_transactions = 1;
SET feedpub.max_subscription_shards = 1;
SET feedpub.publish_synchronous_commit = off;
SET feedpub.naptime = 10;
SET feedpub.naptimes = 10;
RESET ROLE;
-- Columns of the outbox that are named like what the query is made of
ALTER TABLE shop."Odd ""Name"", with a comma" ADD COLUMN "shop" int, ADD COLUMN "$1" int, ADD COLUMN ctid_ int;
SET ROLE regress_feedpub_reader;
SELECT message_type, t, shop, "$1" FROM feed_fetch(NULL::shop."Odd ""Name"", with a comma", '0', 0, 1);
RESET ROLE;
SET client_min_messages = warning;
DROP SCHEMA evil CASCADE;
DROP SCHEMA shop CASCADE;
RESET client_min_messages;

DROP ROLE regress_feedpub_owner, regress_feedpub_reader, regress_feedpub_writer, regress_feedpub_bypass, "regress_feedpub_Odd ""Role"", with a comma";
