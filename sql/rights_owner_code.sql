-- The owner of a table puts code into it.  Whatever others call, that code does
-- not run with their rights (test/attacks.md has the list).
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
CREATE ROLE regress_feedpub_owner;
CREATE ROLE regress_feedpub_reader;
CREATE ROLE regress_feedpub_monitor IN ROLE pg_monitor;
CREATE ROLE regress_feedpub_stranger;
RESET client_min_messages;
-- Here batches are made by hand: no worker, and reads do not wait for one.
SELECT feed_stop_worker() IS NOT NULL AS stopped;
DO $$
BEGIN
	WHILE EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'feedpub worker' AND datname = current_database()) LOOP
		PERFORM pg_stat_clear_snapshot();
	END LOOP;
END $$;
CREATE SCHEMA code AUTHORIZATION regress_feedpub_owner;
GRANT USAGE ON SCHEMA code TO PUBLIC;

-- The code: it says that it is immutable, so the server may run it wherever
-- it looks at an expression, and writes down as which role it runs.
SET ROLE regress_feedpub_owner;
CREATE TABLE code.seen (place text, who text);
GRANT SELECT, INSERT, TRUNCATE ON code.seen TO PUBLIC;
CREATE FUNCTION code.note(place text) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
BEGIN
	INSERT INTO code.seen VALUES (place, current_user);
	RETURN place;
END $$;
CREATE FUNCTION code.f(place text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	RETURN code.note(place);
END $$;

CREATE TABLE code.plain (k int PRIMARY KEY, v text);
CREATE INDEX ON code.plain ((code.f('index expression')), k);
SELECT feed_attach('code.plain');
CREATE TABLE code.parted (k int PRIMARY KEY, v text) PARTITION BY RANGE (k);
CREATE TABLE code.parted1 PARTITION OF code.parted FOR VALUES FROM (0) TO (10);
SELECT feed_attach('code.parted');
CREATE TABLE code.parted2 (k int PRIMARY KEY, v text, feed_xid xid8, feed_pos int8);
CREATE INDEX ON code.parted2 (feed_xid, feed_pos) WHERE feed_xid IS NOT NULL AND code.f('index predicate') IS NOT NULL;
ALTER TABLE code.parted ATTACH PARTITION code.parted2 FOR VALUES FROM (10) TO (20);
CREATE TABLE code.divided (k int PRIMARY KEY, v text) PARTITION BY RANGE (k);
SELECT feed_attach('code.divided', deletes => false);
-- A key that is left out of a partition's expression can be none any more.
ALTER TABLE code.divided DROP CONSTRAINT divided_pkey;
CREATE TABLE code.divided1 PARTITION OF code.divided FOR VALUES FROM (0) TO (10) PARTITION BY LIST ((code.f('partition key') || k));
CREATE TABLE code.divided11 PARTITION OF code.divided1 DEFAULT;
GRANT SELECT ON code.plain, code.parted, code.divided TO regress_feedpub_reader;
INSERT INTO code.plain VALUES (1, 'a'), (2, 'b');
INSERT INTO code.parted VALUES (1, 'a'), (2, 'b'), (11, 'a');
INSERT INTO code.divided VALUES (1, 'a'), (2, 'b');
DELETE FROM code.plain WHERE k = 2;
DELETE FROM code.parted WHERE k = 2;
RESET ROLE;
-- It works: a superuser's own SELECT runs it.
\c -
TRUNCATE code.seen;
SELECT count(*) FROM code.plain;
SELECT DISTINCT who = session_user AS as_me FROM code.seen;
TRUNCATE code.seen;

-- What a superuser calls, each in a session of its own: what has been computed
-- of an expression is kept until the session ends.
\c -
CALL feed_publish('code.plain');
CALL feed_publish('code.parted');
\echo :SQLSTATE
CALL feed_publish('code.divided');
SELECT * FROM code.seen;
\c -
SELECT feed, state FROM feedpub.feeds WHERE feed::text LIKE 'code.%' ORDER BY feed::text;
\c -
SELECT feed, waiting FROM feedpub.waiting WHERE feed::text LIKE 'code.%' ORDER BY feed::text;
\c -
SELECT count(*) FROM feed_check('code.plain');
SELECT count(*) FROM feed_check('code.parted');
SELECT count(*) FROM feed_check('code.divided');
\c -
SELECT feed_repair('code.plain'), feed_repair('code.parted'), feed_repair('code.divided');
\c -
SELECT op, (entry).k FROM feed_read(NULL::code.plain, '', 10);
SELECT op, (entry).k FROM feed_read(NULL::code.parted, '', 10);
SELECT op, (entry).k FROM feed_read(NULL::code.divided, '', 10);
SELECT * FROM code.seen;
\c -
CALL feed_republish('code.plain');
CALL feed_republish('code.parted');
CALL feed_republish('code.divided');
SELECT DISTINCT * FROM code.seen;

SET client_min_messages = warning;
DROP SCHEMA code CASCADE;
DROP OWNED BY regress_feedpub_owner, regress_feedpub_reader, regress_feedpub_monitor, regress_feedpub_stranger;
DROP ROLE regress_feedpub_owner, regress_feedpub_reader, regress_feedpub_monitor, regress_feedpub_stranger;
