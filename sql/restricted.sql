-- feedpub._restricted(): code that runs in a statement cannot leave the role of
-- the one who called it.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
CREATE ROLE regress_feedpub_login NOINHERIT;
CREATE ROLE regress_feedpub_reader;
CREATE ROLE regress_feedpub_victim;
CREATE ROLE regress_feedpub_owner;
RESET client_min_messages;
GRANT regress_feedpub_reader, regress_feedpub_victim TO regress_feedpub_login;
CREATE SCHEMA restricted AUTHORIZATION regress_feedpub_owner;
GRANT USAGE ON SCHEMA restricted TO PUBLIC;

-- What it runs and returns
SELECT feedpub._restricted('SELECT 1');
SELECT * FROM feedpub._restricted('VALUES ($1, $2), ($2, $1), (NULL, NULL)', 'a', 'Odd "Name", ''x''');
SELECT r, r IS NULL AS isnull FROM feedpub._restricted('SELECT $1 UNION ALL SELECT $2', NULL, '') r;
SELECT r, pg_typeof(r) FROM feedpub._restricted($$ SELECT v FROM (VALUES ('{"a": [1,  2]}'::json)) AS j (v) $$) r;
SELECT * FROM feedpub._restricted('SELECT i * 1.50 FROM generate_series(1, $1::int) i ORDER BY i DESC', VARIADIC array['3']);
SELECT count(*) AS rows, count(r) AS not_null FROM feedpub._restricted('SELECT FROM generate_series(1, 2)') r;
CREATE TABLE restricted.written (a int, b text);
SELECT * FROM feedpub._restricted('INSERT INTO restricted.written VALUES ($1::int, $2)', '1', NULL);
SELECT * FROM feedpub._restricted('INSERT INTO restricted.written VALUES ($1::int, $2) RETURNING a, b', '2', 'x');
SELECT * FROM feedpub._restricted('WITH u AS (UPDATE restricted.written SET b = $1 RETURNING a) SELECT a FROM u ORDER BY a', 'y');
SELECT * FROM feedpub._restricted('DELETE FROM restricted.written RETURNING b');
SELECT length(r) FROM feedpub._restricted('SELECT repeat($1, 1000000)', 'x') r;

-- What it refuses
\set VERBOSITY sqlstate
SELECT feedpub._restricted(NULL);
SELECT feedpub._restricted('SELECT 1', VARIADIC NULL);
\set VERBOSITY terse
SELECT feedpub._restricted('');
SELECT feedpub._restricted('SELECT 1; SELECT 2');
SELECT feedpub._restricted('COMMIT');
SELECT feedpub._restricted('SAVEPOINT s');
SELECT feedpub._restricted('SET search_path = public');
SELECT feedpub._restricted('DO $$ BEGIN END $$');
SELECT feedpub._restricted('CALL feed_publish()');
SELECT feedpub._restricted('CREATE TABLE restricted.t ()');
SELECT feedpub._restricted('SELECT 1 AS a INTO restricted.t');
SELECT feedpub._restricted('EXPLAIN SELECT 1');
SELECT feedpub._restricted('COPY restricted.written TO STDOUT');
SELECT feedpub._restricted('SELECT $2', 'a');
SELECT feedpub._restricted('SELECT 1 FROM restricted.none');
DROP TABLE restricted.written;

-- The owner of a table has code run by those who read and write it.
SET ROLE regress_feedpub_owner;
CREATE TABLE restricted.seen (spot text, who text);
GRANT SELECT, INSERT ON restricted.seen TO PUBLIC;
CREATE FUNCTION restricted.attack() RETURNS bool LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO restricted.seen VALUES (current_setting('attack.sql'), current_user);
	EXECUTE current_setting('attack.sql');
	RETURN true;
END $$;
CREATE FUNCTION restricted.attack_in_trigger() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM restricted.attack();
	RETURN NEW;
END $$;
CREATE FUNCTION restricted.definer() RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
	PERFORM set_config('role', 'regress_feedpub_victim', false);
	RETURN current_user;
END $$;
CREATE FUNCTION restricted.who_defines() RETURNS text LANGUAGE sql SECURITY DEFINER AS 'SELECT current_user::text';
CREATE FUNCTION restricted.with_role() RETURNS text LANGUAGE sql SET role = 'regress_feedpub_victim' AS 'SELECT current_user::text';
CREATE TABLE restricted.read (a int);
INSERT INTO restricted.read VALUES (1);
ALTER TABLE restricted.read ENABLE ROW LEVEL SECURITY;
CREATE POLICY attack ON restricted.read USING (restricted.attack());
CREATE TABLE restricted.written (a int);
CREATE TRIGGER attack BEFORE INSERT ON restricted.written FOR EACH ROW EXECUTE FUNCTION restricted.attack_in_trigger();
CREATE TABLE restricted.deferred (a int);
CREATE CONSTRAINT TRIGGER attack AFTER INSERT ON restricted.deferred DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION restricted.attack_in_trigger();
GRANT SELECT, INSERT ON restricted.read, restricted.written, restricted.deferred TO regress_feedpub_reader;
RESET ROLE;
CREATE TABLE restricted.secret AS SELECT 'secret' AS a;
GRANT SELECT ON restricted.secret TO regress_feedpub_victim;

-- A request: the server's transaction.  Without the function the attacks work.
SET SESSION AUTHORIZATION regress_feedpub_login;
SET attack.sql = $$ SELECT set_config('role', 'regress_feedpub_victim', false) $$;
BEGIN;
SET LOCAL ROLE regress_feedpub_reader;
SELECT a FROM restricted.read;
SELECT current_user, (SELECT a FROM restricted.secret);
ROLLBACK;

-- With it, an attack is an error of the request.
CREATE PROCEDURE pg_temp.request(attack text, statement text, at_once bool DEFAULT true) LANGUAGE plpgsql AS $$
DECLARE
	result text;
BEGIN
	PERFORM set_config('attack.sql', attack, true);
	SET LOCAL ROLE regress_feedpub_reader;
	IF at_once THEN
		SET CONSTRAINTS ALL IMMEDIATE;
	END IF;
	BEGIN
		SELECT string_agg(r, ', ') INTO result FROM feedpub._restricted(statement) r;
	EXCEPTION WHEN OTHERS THEN
		result := SQLSTATE || ' ' || SQLERRM;
	END;
	RAISE INFO '% as %: %', attack, current_user, result;
	SET CONSTRAINTS ALL IMMEDIATE;
	IF current_user <> 'regress_feedpub_reader' OR current_setting('search_path') <> '"$user", public' THEN
		RAISE 'role % and search_path % are left', current_user, current_setting('search_path');
	END IF;
	RESET ROLE;
END $$;
CREATE FUNCTION pg_temp.attacks() RETURNS SETOF text LANGUAGE sql AS $$
	VALUES ($q$ SELECT set_config('role', 'regress_feedpub_victim', false) $q$),
	       ($q$ SELECT set_config('role', 'regress_feedpub_victim', true) $q$),
	       ($q$ SELECT set_config('role', 'none', false) $q$),
	       ('SET ROLE regress_feedpub_victim'),
	       ('SET LOCAL ROLE regress_feedpub_victim'),
	       ('RESET ROLE'),
	       ('RESET ALL; RESET ROLE'),
	       ('SET SESSION AUTHORIZATION DEFAULT'),
	       ('SET SESSION AUTHORIZATION regress_feedpub_victim'),
	       ('SELECT restricted.definer()'),
	       ('SELECT restricted.with_role()'),
	       ('CREATE TEMP TABLE t ()'),
	       ('CREATE TEMP VIEW t AS SELECT 1'),
	       ('LISTEN feedpub'),
	       ('UNLISTEN *'),
	       ('PREPARE later AS SELECT 1'),
	       ('DECLARE later CURSOR WITH HOLD FOR SELECT restricted.who_defines()'),
	       ('DISCARD ALL'),
	       ('SET CONSTRAINTS ALL DEFERRED; INSERT INTO restricted.deferred VALUES (1)')
$$;
DO $$
DECLARE
	attack text;
BEGIN
	FOR attack IN SELECT a FROM pg_temp.attacks() a LOOP
		CALL pg_temp.request(attack, 'SELECT a FROM restricted.read');
		CALL pg_temp.request(attack, 'INSERT INTO restricted.written VALUES (1)');
	END LOOP;
END $$;

-- Settings are set back, also those of the session; so the next statement of
-- the request has those that the server set.
SET request.claims = 'mine';
CALL pg_temp.request('SET search_path = restricted; SET LOCAL request.claims = ''other''', 'SELECT a FROM restricted.read');
CALL pg_temp.request('SET request.claims = ''other''', 'SELECT a FROM restricted.read');
SELECT current_setting('request.claims');
-- What an owner offers as SECURITY DEFINER works.
CALL pg_temp.request('SELECT 1', 'SELECT restricted.who_defines() || current_user FROM restricted.read');
-- A cursor ends with the transaction.
CALL pg_temp.request('DECLARE later CURSOR FOR SELECT restricted.who_defines()', 'SELECT a FROM restricted.read');
FETCH later;
-- A trigger that the owner has deferred runs inside, or not at all.
CALL pg_temp.request('SELECT 1', 'INSERT INTO restricted.deferred VALUES (1) RETURNING a');
CALL pg_temp.request('SET ROLE regress_feedpub_victim', 'INSERT INTO restricted.deferred VALUES (1) RETURNING a');
CALL pg_temp.request('SELECT 1', 'INSERT INTO restricted.deferred VALUES (1) RETURNING a', false);
-- Code that catches its error is as restricted afterwards.
CALL pg_temp.request($q$ DO $d$ BEGIN BEGIN SET ROLE regress_feedpub_victim; EXCEPTION WHEN OTHERS THEN END; SET ROLE regress_feedpub_victim; END $d$ $q$,
	'SELECT a FROM restricted.read');
-- A call within a call
CALL pg_temp.request($q$ SELECT feedpub._restricted('SELECT 1'); SELECT set_config('role', 'regress_feedpub_victim', false) $q$, 'SELECT a FROM restricted.read');
-- Nothing is left in pg_temp, where the session's next statements look first.
CALL pg_temp.request('CREATE DOMAIN pg_temp.text AS pg_catalog.text', 'SELECT a FROM restricted.read');
CALL pg_temp.request($q$ CREATE OR REPLACE FUNCTION pg_temp.later() RETURNS int LANGUAGE sql AS 'SELECT 1' $q$, 'SELECT a FROM restricted.read');
CALL pg_temp.request('CREATE OPERATOR pg_temp.+ (FUNCTION = int4pl, LEFTARG = int4, RIGHTARG = int4)', 'SELECT a FROM restricted.read');
CALL pg_temp.request('CREATE COLLATION pg_temp.later FROM pg_catalog."C"', 'SELECT a FROM restricted.read');
CALL pg_temp.request('CREATE TEXT SEARCH CONFIGURATION pg_temp.later (COPY = pg_catalog.simple)', 'SELECT a FROM restricted.read');
SELECT pg_temp.later();
RESET SESSION AUTHORIZATION;
DISCARD TEMP;
SELECT to_regproc('pg_temp.later');
SELECT DISTINCT who FROM restricted.seen ORDER BY who;

-- A request in one statement: role, claims, read only, constraints.
SET SESSION AUTHORIZATION regress_feedpub_login;
SET attack.sql = 'SELECT 1';
SELECT * FROM feedpub._request('regress_feedpub_reader', '{"sub": "Odd ''Name"}', true,
	$$ SELECT current_user || current_setting('request.jwt.claims') || current_setting('transaction_read_only') $$);
SELECT current_user, current_setting('request.jwt.claims') AS claims, current_setting('transaction_read_only') AS read_only;
SELECT * FROM feedpub._request(NULL, NULL, false, 'SELECT current_user || current_setting(''transaction_read_only'') || $1', 'x');
SELECT * FROM feedpub._request('regress_feedpub_reader', NULL, false, 'INSERT INTO restricted.deferred VALUES (1) RETURNING a');
SELECT feedpub._request('regress_feedpub_reader', NULL, true, 'INSERT INTO restricted.deferred VALUES (1) RETURNING a');
SELECT feedpub._request('regress_feedpub_owner', NULL, true, 'SELECT 1');
SELECT feedpub._request('none such', NULL, true, 'SELECT 1');
SELECT feedpub._request(NULL, NULL, NULL, 'SELECT 1');
-- A role that cannot be taken has an SQLSTATE of its own; the statement's
-- errors keep theirs.
\set VERBOSITY sqlstate
SELECT feedpub._request('regress_feedpub_owner', NULL, true, 'SELECT 1');
SELECT feedpub._request('none such', NULL, true, 'SELECT 1');
SELECT feedpub._request('', NULL, true, 'SELECT 1');
SELECT feedpub._request('regress_feedpub_reader', NULL, true, 'SELECT a FROM restricted.secret');
SELECT feedpub._request('regress_feedpub_reader', NULL, true, 'SELECT 1; SELECT 2');
SELECT feedpub._request('regress_feedpub_reader', NULL, true, 'SELECT set_config(''role'', ''none such'', true)');
SELECT feedpub._request('regress_feedpub_reader', NULL, true, $$ SELECT feedpub._request('none such', NULL, true, 'SELECT 1') $$);
\set VERBOSITY terse
SET attack.sql = 'SET ROLE regress_feedpub_victim';
SELECT feedpub._request('regress_feedpub_reader', NULL, true, 'SELECT a FROM restricted.read');
SELECT feedpub._request('regress_feedpub_reader', NULL, false, 'INSERT INTO restricted.deferred VALUES (1) RETURNING a');
-- Within such a statement there is no other role.
SELECT feedpub._request('regress_feedpub_reader', NULL, false, $$ SELECT feedpub._request('regress_feedpub_victim', NULL, false, 'SELECT 1') $$);
SELECT current_user;
RESET SESSION AUTHORIZATION;
CREATE FUNCTION restricted.request_as_definer() RETURNS SETOF text LANGUAGE sql SECURITY DEFINER AS
	$$ SELECT feedpub._request('regress_feedpub_victim', NULL, false, 'SELECT 1') $$;
SET SESSION AUTHORIZATION regress_feedpub_login;
SELECT restricted.request_as_definer();
RESET SESSION AUTHORIZATION;

-- Nothing of a request is left for the next one, which may be another role's:
-- neither locks of the session nor what a sequence has given, also if it fails.
CREATE SEQUENCE restricted.numbers;
GRANT USAGE ON SEQUENCE restricted.numbers TO PUBLIC;
SET SESSION AUTHORIZATION regress_feedpub_login;
SET attack.sql = 'SELECT pg_advisory_lock(n), nextval(''restricted.numbers'') FROM generate_series(1, 3) n';
SELECT feedpub._request('regress_feedpub_reader', NULL, false, 'SELECT a FROM restricted.read');
SELECT lastval();
SELECT count(*) AS locks FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
SET attack.sql = 'SELECT pg_advisory_lock(1), nextval(''restricted.numbers''); SELECT 1 / 0';
SELECT feedpub._request('regress_feedpub_reader', NULL, false, 'SELECT a FROM restricted.read');
SELECT lastval();
SELECT count(*) AS locks FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
SET attack.sql = 'SELECT 1';

-- The plans that a session keeps are of the role, of the tables and of the
-- search_path as they are.
RESET SESSION AUTHORIZATION;
CREATE FUNCTION restricted.constant() RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT current_user::text';
CREATE TABLE restricted.old AS SELECT 'old' AS a;
CREATE TABLE restricted.later AS SELECT 'later' AS a;
GRANT SELECT ON restricted.old, restricted.later TO regress_feedpub_reader, regress_feedpub_victim;
SET SESSION AUTHORIZATION regress_feedpub_login;
SELECT r, feedpub._request(r, NULL, true, 'SELECT restricted.constant()')
  FROM unnest(array['regress_feedpub_reader', 'regress_feedpub_victim', 'regress_feedpub_reader']) r;
SELECT feedpub._request('regress_feedpub_reader', NULL, true, 'SELECT a FROM restricted.old');
SELECT feedpub._request('regress_feedpub_reader', NULL, true, 'SELECT a FROM restricted.old WHERE a = $1', 'old');
RESET SESSION AUTHORIZATION;
REVOKE SELECT ON restricted.old FROM regress_feedpub_victim;
ALTER TABLE restricted.old RENAME TO oldest;
ALTER TABLE restricted.later RENAME TO old;
SET SESSION AUTHORIZATION regress_feedpub_login;
SELECT feedpub._request('regress_feedpub_reader', NULL, true, 'SELECT a FROM restricted.old');
SELECT feedpub._request('regress_feedpub_reader', NULL, true, 'SELECT a FROM restricted.old WHERE a = $1', 'later');
SELECT feedpub._request('regress_feedpub_victim', NULL, true, 'SELECT a FROM restricted.oldest');
-- More statements than are kept; and those that code of a request makes while
-- its own plan runs.
SELECT sum(feedpub::int) FROM generate_series(1, 100) n, feedpub._request('regress_feedpub_reader', NULL, true, 'SELECT ' || n % 70) feedpub;
SET attack.sql = $$ SELECT count(*) FROM generate_series(1, 100) n, feedpub._request(NULL, NULL, true, 'SELECT ' || n) $$;
SELECT feedpub._request('regress_feedpub_reader', NULL, false, 'SELECT a FROM restricted.read');
SET attack.sql = 'SELECT 1';
SELECT feedpub._request('regress_feedpub_reader', NULL, false, 'SELECT a FROM restricted.read');
RESET SESSION AUTHORIZATION;

-- Feeds are read and written by it; their names are looked up in the caller's
-- path.
SELECT feed_stop_worker() IS NOT NULL AS stopped;
SET search_path = restricted, public;
SELECT feed_create('restricted."Odd ""Name"');
GRANT SELECT, INSERT ON "Odd ""Name" TO regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
SELECT * FROM feedpub._restricted('INSERT INTO restricted."Odd ""Name" (message_id, message_type, data) SELECT $1, $2, $3::pg_catalog.jsonb RETURNING message_id', 'm1', 'made', '{"a": 1}');
RESET ROLE;
CALL feed_publish();
SET ROLE regress_feedpub_reader;
SELECT r::json -> 'entries' -> 0 -> 'row' ->> 'data' AS data, r::json ->> 'more' AS more
  FROM feedpub._restricted('SELECT public.feed_page($1::pg_catalog.regclass, $2, $3::pg_catalog.int4)', '"Odd ""Name"', '', '10') r;
SELECT feedpub._restricted('SELECT public.feed_page($1::pg_catalog.regclass)', 'feedpub._batch');
RESET ROLE;
RESET search_path;

SET client_min_messages = warning;
SELECT feed_drop('restricted."Odd ""Name"');
DROP SCHEMA restricted CASCADE;
DROP ROLE regress_feedpub_login, regress_feedpub_reader, regress_feedpub_victim, regress_feedpub_owner;
