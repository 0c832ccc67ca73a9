-- What feed_fetch() and feed_xid_head() refuse, each with its SQLSTATE.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;

--
-- No default feed
--
SELECT * FROM feed_fetch('0', 0, 100);
\echo :SQLSTATE
SELECT feed_create('outbox'), feed_create('"Odd ""Name"", with a comma"', 'text');
INSERT INTO outbox (message_type, data) VALUES ('x', '1');
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('x', '1');
-- Bad arguments are refused even if there is no such feed.
ALTER TABLE outbox RENAME COLUMN data TO payload;
SELECT * FROM feed_fetch('0', 0, 100);
\echo :SQLSTATE
SELECT * FROM feed_fetch('0', 0, 0);
\echo :SQLSTATE
ALTER TABLE outbox RENAME COLUMN payload TO data;
ALTER TABLE outbox ALTER COLUMN data TYPE text;
SELECT * FROM feed_fetch('0', 0, 100);
\echo :SQLSTATE
ALTER TABLE outbox ALTER COLUMN data TYPE jsonb USING data::jsonb;
SELECT message_type FROM feed_fetch('0', 0, 100);

--
-- limit
--
SELECT * FROM feed_fetch('0', 0, NULL);
\echo :SQLSTATE
SELECT * FROM feed_fetch('0', 0, 0);
\echo :SQLSTATE
SELECT * FROM feed_fetch('0', 0, -1);
\echo :SQLSTATE
SELECT * FROM feed_fetch('0', 0, -2147483648);
\echo :SQLSTATE
SELECT * FROM feed_fetch(NULL::"Odd ""Name"", with a comma", '0', 0, NULL);
\echo :SQLSTATE
SELECT * FROM feed_fetch(NULL::"Odd ""Name"", with a comma", '0', 0, 0);
\echo :SQLSTATE
\set VERBOSITY sqlstate
SELECT * FROM feed_fetch('0', 0, 2147483648);
\set VERBOSITY default
\echo :SQLSTATE

--
-- The cursor
--
SELECT * FROM feed_fetch(NULL, 0, 100);
\echo :SQLSTATE
SELECT * FROM feed_fetch('0', NULL, 100);
\echo :SQLSTATE
SELECT * FROM feed_fetch(NULL, NULL, 100);
\echo :SQLSTATE
SELECT * FROM feed_fetch(NULL::"Odd ""Name"", with a comma", NULL, 0, 100);
\echo :SQLSTATE
SELECT * FROM feed_fetch('0', -1, 100);
\echo :SQLSTATE
SELECT * FROM feed_fetch('0', -9223372036854775808, 100);
\echo :SQLSTATE
SELECT * FROM feed_fetch(NULL::"Odd ""Name"", with a comma", '0', -1, 100);
\echo :SQLSTATE

--
-- A cursor at or beyond the next transaction id is from another history.
-- (Its details name ids, which differ from run to run.)
--
\set VERBOSITY terse
SELECT pg_snapshot_xmax(pg_current_snapshot()) AS next, (pg_snapshot_xmax(pg_current_snapshot())::text::bigint - 1) AS last \gset
SELECT count(*) FROM feed_fetch(:'next', 0, 100);
\echo :SQLSTATE
SELECT count(*) FROM feed_fetch('18446744073709551615', 0, 100);
\echo :SQLSTATE
SELECT count(*) FROM feed_fetch(NULL::"Odd ""Name"", with a comma", :'next', 0, 100);
\echo :SQLSTATE
-- The last one that was assigned is not; and neither is the next once it is.
SELECT count(*) FROM feed_fetch(:'last', 9223372036854775807, 100);
INSERT INTO outbox (message_type, data) VALUES ('y', '2');
SELECT count(*) FROM feed_fetch(:'next', 9223372036854775807, 100);
-- So is one's own transaction id.
BEGIN;
SELECT count(*) FROM feed_fetch(pg_current_xact_id(), 0, 100);
ROLLBACK;
\set VERBOSITY default

--
-- Not a feed
--
CREATE TABLE plain (feed_xid xid8, feed_pos bigint);
CREATE VIEW a_view AS SELECT * FROM outbox;
CREATE MATERIALIZED VIEW a_matview AS SELECT * FROM outbox;
CREATE TYPE a_type AS (feed_xid xid8, feed_pos bigint);
CREATE DOMAIN a_domain AS outbox;
CREATE TABLE parted (feed_xid xid8, feed_pos bigint) PARTITION BY RANGE (feed_pos);
SELECT * FROM feed_fetch(NULL::plain, '0', 0, 100);
\echo :SQLSTATE
SELECT * FROM feed_fetch(NULL::a_view, '0', 0, 100);
\echo :SQLSTATE
SELECT * FROM feed_fetch(NULL::a_matview, '0', 0, 100);
\echo :SQLSTATE
SELECT * FROM feed_fetch(NULL::a_type, '0', 0, 100);
\echo :SQLSTATE
SELECT * FROM feed_fetch(NULL::a_domain, '0', 0, 100);
\echo :SQLSTATE
SELECT * FROM feed_fetch(NULL::parted, '0', 0, 100);
\echo :SQLSTATE
SELECT * FROM feed_fetch(NULL::feedpub._feed, '0', 0, 100);
\echo :SQLSTATE
SELECT * FROM feed_fetch(NULL::pg_class, '0', 0, 100);
\echo :SQLSTATE
SELECT * FROM feed_fetch(NULL::int, '0', 0, 100);
\echo :SQLSTATE
SELECT * FROM feed_fetch(NULL::outbox[], '0', 0, 100);
\echo :SQLSTATE
SELECT * FROM feed_fetch(NULL::text, '0', 0, 100);
\echo :SQLSTATE
SELECT * FROM feed_fetch(ROW(1, 2), '0', 0, 100) AS t (a int, b int);
\echo :SQLSTATE
SELECT feed_fetch(ROW(1, 2), '0', 0, 100);
\echo :SQLSTATE
-- An untyped NULL has no row type.
SELECT * FROM feed_fetch(NULL, '0', 0, 100);
\echo :SQLSTATE
SELECT feed_xid_head('plain');
\echo :SQLSTATE
SELECT feed_xid_head('a_view');
\echo :SQLSTATE
SELECT feed_xid_head('outbox_pkey');
\echo :SQLSTATE
SELECT feed_xid_head('outbox_feed_pos_seq');
\echo :SQLSTATE
SELECT feed_xid_head('parted');
\echo :SQLSTATE
SELECT feed_xid_head('pg_class');
\echo :SQLSTATE
SELECT feed_xid_head('no_such_table');
\echo :SQLSTATE
SELECT feed_xid_head(0);
\echo :SQLSTATE
SELECT feed_xid_head(4294967295::oid);
\echo :SQLSTATE
SELECT feed_xid_head(NULL);
\echo :SQLSTATE
SELECT feed_check('a_view');
\echo :SQLSTATE
SELECT feed_check('outbox_pkey');
\echo :SQLSTATE
SELECT feed_check('pg_class');
\echo :SQLSTATE
SELECT feed_check(0);
\echo :SQLSTATE
SELECT feed_check(4294967295::oid);
\echo :SQLSTATE
SELECT feed_repair('a_view');
\echo :SQLSTATE
SELECT feed_repair(4294967295::oid);
\echo :SQLSTATE
DROP DOMAIN a_domain;
DROP TYPE a_type;
DROP VIEW a_view;
DROP MATERIALIZED VIEW a_matview;
DROP TABLE plain, parted;

--
-- No index to read by
--
ALTER TABLE outbox DROP CONSTRAINT outbox_pkey;
SELECT * FROM feed_fetch('0', 0, 100);
\echo :SQLSTATE
SELECT * FROM feed_fetch(NULL::outbox, '0', 0, 100);
\echo :SQLSTATE
SELECT feed_xid_head('outbox');
\echo :SQLSTATE
-- Not these either: descending, partial, of other columns, not a btree.
CREATE INDEX ON outbox (feed_xid DESC, feed_pos DESC);
CREATE INDEX ON outbox (feed_xid, feed_pos) WHERE message_type <> 'x';
CREATE INDEX ON outbox (feed_pos, feed_xid);
CREATE INDEX ON outbox (feed_xid, message_type);
CREATE INDEX ON outbox USING brin (feed_pos);
SELECT * FROM feed_fetch('0', 0, 100);
\echo :SQLSTATE
CREATE INDEX ON outbox (feed_xid, feed_pos) INCLUDE (message_type);
SELECT message_type FROM feed_fetch('0', 0, 100);

--
-- Errors that are caught leave nothing.
--
DO $$
DECLARE
	states text[];
BEGIN
	FOR i IN 1..200 LOOP
		DECLARE
			call text := (array[
				$c$feed_fetch('0', 0, 0)$c$,
				$c$feed_fetch('18446744073709551615', 0, 1)$c$,
				$c$feed_fetch(NULL::pg_class, '0', 0, 1)$c$,
				$c$feed_xid_head('pg_class')$c$,
				$c$feed_check('pg_class')$c$,
				$c$feed_create('outbox')$c$,
				$c$feed_drop('pg_class')$c$])[1 + i % 7];
		BEGIN
			EXECUTE 'SELECT ' || call;
			RAISE 'not refused: %', call;
		EXCEPTION WHEN SQLSTATE '22023' OR SQLSTATE 'PF001' OR SQLSTATE '42809' OR SQLSTATE '42P07' THEN
			IF NOT SQLSTATE = ANY (coalesce(states, '{}')) THEN states := states || SQLSTATE; END IF;
		END;
	END LOOP;
	SELECT array_agg(s ORDER BY s COLLATE "C") INTO states FROM unnest(states) s;
	RAISE NOTICE '%', states;
END $$;
SELECT message_type FROM feed_fetch('0', 0, 100);

--
-- Calls where a set is not allowed
--
SELECT 1 WHERE feed_fetch('0', 0, 1) IS NULL;
\echo :SQLSTATE
SELECT message_type FROM outbox LIMIT feed_fetch('0', 0, 1);
\echo :SQLSTATE

-- In an expression of PL/pgSQL more than one row is one too many.
DO $$ DECLARE r outbox; BEGIN r := feed_fetch(NULL::outbox, '0', 0, 2); END $$;
\echo :SQLSTATE

-- Another version's tables: ALTER EXTENSION has not been run yet.
BEGIN;
ALTER TABLE feedpub._feed ADD COLUMN more int;
SELECT feed_xid_head('outbox');
\echo :SQLSTATE
ROLLBACK;
-- A default feed whose table was dropped is none.
BEGIN;
DROP TABLE outbox;
SELECT * FROM feed_fetch('0', 0, 1);
\echo :SQLSTATE
ROLLBACK;

SELECT feed_drop('outbox'), feed_drop('"Odd ""Name"", with a comma"');
