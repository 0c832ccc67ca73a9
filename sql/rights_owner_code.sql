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
CREATE TABLE code.seen (spot text, who text);
GRANT SELECT, INSERT, TRUNCATE ON code.seen TO PUBLIC;
CREATE FUNCTION code.note(spot text) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
BEGIN
	INSERT INTO code.seen VALUES (spot, current_user);
	RETURN spot;
END $$;
CREATE FUNCTION code.f(spot text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	RETURN code.note(spot);
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
-- A partition with another index stops its feed, until it is detached.
\c -
SET ROLE regress_feedpub_owner;
ALTER TABLE code.parted DETACH PARTITION code.parted2;
RESET ROLE;
TRUNCATE code.seen;
\c -
CALL feed_publish('code.parted');
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

--
-- A key's values are made of texts by the base type's input function.  A domain
-- over such a type will do, one inside the type will not.
--
\c -
SET ROLE regress_feedpub_owner;
CREATE FUNCTION code.checked(value text) RETURNS bool LANGUAGE plpgsql VOLATILE AS $$
BEGIN
	INSERT INTO code.seen VALUES ('domain', current_user);
	PERFORM set_config('search_path', 'nowhere', false);
	RETURN lower(value) = value;
END $$;
CREATE DOMAIN code.word AS text CHECK (code.checked(value));
CREATE TYPE code.pair AS (a int, b code.word);
CREATE TYPE code.word_range AS RANGE (subtype = code.word);
CREATE DOMAIN code.pair_domain AS code.pair;
CREATE TYPE code.outer_pair AS (a int, p code.pair[]);
CREATE TYPE code.plain_pair AS (a int);
CREATE TABLE code.keyed (k code.word PRIMARY KEY);
SELECT feed_attach('code.keyed');
CREATE TABLE code.refused (pair code.pair, words code.word[], word_range code.word_range, pair_domain code.pair_domain, outer_pair code.outer_pair, multirange code.word_multirange, plain_pair code.plain_pair, n int, spans int4range[]);
DO $$
DECLARE
	col name;
BEGIN
	FOR col IN SELECT attname FROM pg_attribute WHERE attrelid = 'code.refused'::regclass AND attnum > 0 ORDER BY attnum LOOP
		EXECUTE format('ALTER TABLE code.refused ALTER %I SET NOT NULL, ADD CONSTRAINT refused_key UNIQUE (%I)', col, col);
		BEGIN
			PERFORM feed_attach('code.refused', key => 'code.refused_key');
			RAISE NOTICE '%: attached', col;
			PERFORM feed_detach('code.refused');
		EXCEPTION WHEN feature_not_supported THEN
			RAISE NOTICE '%: %', col, SQLERRM;
		END;
		ALTER TABLE code.refused DROP CONSTRAINT refused_key;
	END LOOP;
END $$;
ALTER TABLE code.refused ADD PRIMARY KEY (pair);
SELECT feed_attach('code.refused');
SELECT feed_attach('code.refused', deletes => false);
GRANT SELECT ON code.keyed TO regress_feedpub_reader;
INSERT INTO code.keyed VALUES ('a'), ('b');
DELETE FROM code.keyed WHERE k = 'a';
\c -
CALL feed_publish('code.keyed');
TRUNCATE code.seen;
-- If another role puts something into its path, only that role finds it.
CREATE SCHEMA theirs AUTHORIZATION regress_feedpub_stranger;
GRANT USAGE ON SCHEMA theirs TO PUBLIC;
SET ROLE regress_feedpub_stranger;
CREATE FUNCTION theirs.lower(text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO code.seen VALUES ('lower', current_user);
	RETURN pg_catalog.lower($1);
END $$;
\c -
SET search_path = theirs, pg_catalog, public;
SELECT count(*) FROM feedpub.feeds WHERE feed = 'code.keyed'::regclass;
SELECT count(*) FROM feed_check('code.keyed');
SELECT feed_repair('code.keyed');
SELECT op, (entry).k FROM feed_read(NULL::code.keyed, '', 10);
SHOW search_path;
SET ROLE regress_feedpub_monitor;
SELECT state FROM feedpub.feeds WHERE feed = 'code.keyed'::regclass;
SET ROLE regress_feedpub_reader;
SELECT op, (entry).k FROM feed_read(NULL::code.keyed, '', 10);
SELECT json_array_length(feed_page('code.keyed', '', 10) -> 'entries');
SELECT count(*) FROM feed_check('code.keyed');
SET ROLE regress_feedpub_stranger;
SELECT state FROM feedpub.feeds WHERE feed = 'code.keyed'::regclass;
SHOW search_path;
\c -
SELECT * FROM code.seen;
-- The column gets such a type later: writers go on, deletes are not passed.
SET ROLE regress_feedpub_owner;
CREATE TYPE code.late AS (a int, b code.word);
CREATE TABLE code.later (k int PRIMARY KEY);
SELECT feed_attach('code.later');
INSERT INTO code.later VALUES (1), (2);
ALTER TABLE code.later ALTER k TYPE code.late USING ROW(k, NULL)::code.late;
RESET search_path;
SELECT feed_begin_history('code.later');
DELETE FROM code.later WHERE (k).a = 2;
TRUNCATE code.seen;
\c -
CALL feed_publish('code.later');
SELECT state FROM feedpub.feeds WHERE feed = 'code.later'::regclass;
SELECT guard, problem FROM feed_check('code.later');
SELECT op, (entry).k FROM feed_read(NULL::code.later, '', 10);
\echo :SQLSTATE
SELECT feed_page('code.later', '', 10);
\echo :SQLSTATE
SELECT * FROM code.seen;

--
-- What a superuser has put back or taken away is done as the owner: the server
-- runs what is constant in checks and partition keys.
--
SET ROLE regress_feedpub_owner;
CREATE TABLE code.split (k int PRIMARY KEY, v text) PARTITION BY RANGE (k);
CREATE TABLE code.split1 PARTITION OF code.split FOR VALUES FROM (0) TO (10);
SELECT feed_attach('code.split', deletes => false);
ALTER TABLE code.split DROP CONSTRAINT split_pkey;
CREATE TABLE code.split2 PARTITION OF code.split FOR VALUES FROM (10) TO (20) PARTITION BY LIST ((code.f('partition key') || k));
CREATE TABLE code.split21 PARTITION OF code.split2 DEFAULT;
DROP TRIGGER zz_feedpub_stamp ON code.split;
SELECT feed_create('code.box');
ALTER TABLE code.box DROP CONSTRAINT box_pkey, ALTER feed_xid DROP NOT NULL, ALTER feed_pos DROP NOT NULL,
	ADD CHECK (code.f('check') IS NOT NULL AND feed_xid IS NOT NULL);
TRUNCATE code.seen;
\c -
SELECT feed_repair('code.split');
\c -
SELECT feed_repair('code.box');
\c -
SELECT feed_detach('code.split');
SELECT spot, who FROM code.seen GROUP BY 1, 2 ORDER BY 1, 2;
SELECT * FROM feed_check('code.box');

--
-- What an owner's code leaves in the session of a superuser: nothing.
--
SET ROLE regress_feedpub_owner;
CREATE TABLE code.attacks (attack text);
CREATE FUNCTION code.attack() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	a text;
BEGIN
	FOR a IN SELECT attack FROM code.attacks LOOP
		EXECUTE a;
	END LOOP;
	RETURN OLD;
END $$;
SELECT feed_create('code.left', 'text');
CREATE TRIGGER attack BEFORE DELETE ON code.left FOR EACH ROW EXECUTE FUNCTION code.attack();
\c -
SET feedpub.read_wait = 0;
\set VERBOSITY terse
SELECT pg_advisory_lock(1), pg_advisory_lock(2), pg_advisory_lock_shared(2);
CREATE TEMP TABLE mine (a int);
CREATE VIEW code.locks AS SELECT classid, objid, mode FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
INSERT INTO code.left (message_type, data) VALUES ('a', 'a');
CALL feed_publish('code.left');
SELECT feed_head('code.left') AS head \gset
INSERT INTO code.attacks VALUES ('CREATE DOMAIN pg_temp.text AS pg_catalog.text CHECK (code.note(value) IS NOT NULL)');
CALL feed_purge('code.left', :'head');
\set VERBOSITY default
CALL feed_purge('code.left', :'head');
UPDATE code.attacks SET attack = 'CREATE TYPE pg_temp.text AS ENUM ()';
CALL feed_purge('code.left', :'head');
UPDATE code.attacks SET attack = 'CREATE TYPE pg_temp.text';
CALL feed_purge('code.left', :'head');
UPDATE code.attacks SET attack = 'CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql AS ''SELECT 1''';
CALL feed_purge('code.left', :'head');
SELECT typname FROM pg_type WHERE typnamespace = pg_my_temp_schema() ORDER BY typname;
-- Locks of the session are neither taken nor released.
UPDATE code.attacks SET attack = 'SELECT pg_advisory_lock(2)';
CALL feed_purge('code.left', :'head');
SET ROLE regress_feedpub_owner;
CREATE OR REPLACE FUNCTION code.attack() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	a text;
BEGIN
	FOR a IN SELECT attack FROM code.attacks ORDER BY attack COLLATE "C" LOOP
		BEGIN
			EXECUTE a;
			RAISE INFO '%: done', a;
		EXCEPTION WHEN insufficient_privilege THEN
			RAISE INFO '%: %', a, SQLERRM;
		END;
	END LOOP;
	RETURN OLD;
END $$;
CREATE FUNCTION code.lock(bool, int) RETURNS bool LANGUAGE sql AS 'SELECT pg_try_advisory_lock(1)';
CREATE AGGREGATE code.lock(int) (sfunc = code.lock, stype = bool);
CREATE OPERATOR code.~~~ (function = pg_try_advisory_lock, leftarg = int, rightarg = int);
RESET ROLE;
DELETE FROM code.attacks;
INSERT INTO code.attacks VALUES
	('DO ''BEGIN PERFORM pg_advisory_lock(1); END'''),
	('SELECT * FROM pg_try_advisory_lock(1)'),
	('SELECT 1 OPERATOR(code.~~~) 1'),
	('SELECT 1 OPERATOR(code.~~~) ANY (ARRAY[1, 2])'),
	('SELECT code.lock(1)'),
	('SELECT pg_advisory_xact_lock(5)');
INSERT INTO code.attacks SELECT format('SELECT %s(%s)', proname, array_to_string((ARRAY[1, 2])[:pronargs], ', '))
	FROM pg_proc WHERE proname ~ 'advisory' AND proname !~ 'xact' AND pronamespace = 'pg_catalog'::regnamespace;
CALL feed_purge('code.left', :'head');
SELECT * FROM code.locks ORDER BY 1, 2, 3;
-- In its own session an owner may lock what it likes.
\c -
SET SESSION AUTHORIZATION regress_feedpub_owner;
DELETE FROM code.attacks;
INSERT INTO code.attacks VALUES ('SELECT pg_advisory_lock(8)');
INSERT INTO code.left (message_type, data) VALUES ('c', 'c');
CALL feed_publish('code.left');
SELECT feed_head('code.left') AS head \gset
CALL feed_purge('code.left', :'head');
SELECT classid, objid, mode FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() ORDER BY 1, 2, 3;

--
-- A cure names one function whatever others there are, and a channel is shown
-- to readers of the feed.
--
\c -
SET ROLE regress_feedpub_owner;
SELECT feed_set_channel('code.plain', 'news');
\c -
SET ROLE regress_feedpub_reader;
SELECT channel FROM feedpub.feeds WHERE feed = 'code.plain'::regclass;
SELECT channel FROM feedpub._feed WHERE feed = 'code.plain'::regclass;
SET ROLE regress_feedpub_stranger;
SELECT feed, channel FROM feedpub.feeds WHERE feed = 'code.plain'::regclass;
SELECT channel FROM feedpub._feed WHERE feed = 'code.plain'::regclass;
SELECT feed, kind FROM feedpub._feed WHERE feed = 'code.plain'::regclass;
RESET ROLE;

SET client_min_messages = warning;
DROP SCHEMA code, theirs CASCADE;
DROP OWNED BY regress_feedpub_owner, regress_feedpub_reader, regress_feedpub_monitor, regress_feedpub_stranger;
DROP ROLE regress_feedpub_owner, regress_feedpub_reader, regress_feedpub_monitor, regress_feedpub_stranger;
