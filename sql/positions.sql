-- Positions: an application does not notice that they are taken, and none comes
-- twice, whatever is done to their sequence.
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

--
-- What drivers ask for after a statement, of a plain table and of a feed
--
CREATE ROLE regress_feedpub_writer;
CREATE TABLE plain (id bigserial PRIMARY KEY, k int UNIQUE, v text);
CREATE TABLE fed (LIKE plain INCLUDING ALL);
CREATE SEQUENCE fed_id OWNED BY fed.id;
ALTER TABLE fed ALTER id SET DEFAULT nextval('fed_id');
CREATE TABLE parts (id bigserial, k int, v text, PRIMARY KEY (k)) PARTITION BY LIST (k);
CREATE TABLE parts_low PARTITION OF parts FOR VALUES IN (1, 2, 3);
CREATE TABLE parts_rest PARTITION OF parts DEFAULT;
CREATE TABLE parts_plain (LIKE parts INCLUDING ALL) PARTITION BY LIST (k);
CREATE TABLE parts_plain_low PARTITION OF parts_plain FOR VALUES IN (1, 2, 3);
CREATE TABLE parts_plain_rest PARTITION OF parts_plain DEFAULT;
CREATE SEQUENCE parts_plain_id OWNED BY parts_plain.id;
ALTER TABLE parts_plain ALTER id SET DEFAULT nextval('parts_plain_id');
SELECT feed_attach('fed'), feed_attach('parts'), feed_create('box');
GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON plain, fed, parts, parts_plain TO regress_feedpub_writer;
GRANT INSERT ON box TO regress_feedpub_writer;
GRANT USAGE ON SEQUENCE plain_id_seq, fed_id, parts_id_seq, parts_plain_id TO regress_feedpub_writer;
-- A trigger of the application that asks, before ours has run and after it
CREATE FUNCTION ask() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	NEW.v := concat(NEW.v, ' ', TG_NAME, ' ', lastval() = currval(TG_ARGV[0]), lastval() = NEW.id);
	RETURN NEW;
END $$;
CREATE TRIGGER aa BEFORE INSERT ON plain FOR EACH ROW EXECUTE FUNCTION ask('plain_id_seq');
CREATE TRIGGER zzz BEFORE INSERT ON plain FOR EACH ROW EXECUTE FUNCTION ask('plain_id_seq');
CREATE TRIGGER aa BEFORE INSERT ON fed FOR EACH ROW EXECUTE FUNCTION ask('fed_id');
CREATE TRIGGER zzz BEFORE INSERT ON fed FOR EACH ROW EXECUTE FUNCTION ask('fed_id');
-- What the server says after each of the statements
CREATE FUNCTION told(relation text, seq text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	statement text;
	n bigint;
	told text := '';
	returned text;
BEGIN
	FOREACH statement IN ARRAY ARRAY[
		'INSERT INTO %s (k, v) VALUES (1, ''a''), (2, ''b''), (7, ''c'')',
		'INSERT INTO %s (k, v) SELECT n, ''d'' FROM generate_series(11, 50) n',
		'INSERT INTO %s (k, v) VALUES (1, ''e'') ON CONFLICT (k) DO NOTHING',
		'INSERT INTO %s (k, v) VALUES (1, ''f''), (3, ''g'') ON CONFLICT (k) DO UPDATE SET v = ''f''',
		'UPDATE %s SET v = ''h'' WHERE k IN (1, 11)',
		'UPDATE %s SET v = ''i'' WHERE k = -1',
		'UPDATE %s SET k = 100 WHERE k = 1',
		'DELETE FROM %s WHERE k > 40',
		'MERGE INTO %s t USING (VALUES (2), (200)) s (k) ON t.k = s.k WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (k) VALUES (200)',
		'TRUNCATE %s',
		'INSERT INTO %s (k, v) VALUES (1, ''a'')']
	LOOP
		EXECUTE format(statement, relation);
		GET DIAGNOSTICS n = ROW_COUNT;
		told := concat(told, split_part(statement, ' ', 1), ' ', n, ' ', lastval() = currval(seq), ' ', lastval() - currval(seq), ' ', lastval(), '; ');
	END LOOP;
	EXECUTE format('INSERT INTO %s (k) VALUES (300) RETURNING (id - lastval())::text', relation) INTO returned;
	EXECUTE format('WITH i AS (INSERT INTO %s (k) VALUES (301), (302) RETURNING id) SELECT count(*) + sum(id) - sum(id) FROM i', relation) INTO n;
	RETURN concat(told, returned, ' ', n);
END $$;
CREATE FUNCTION counted(relation regclass) RETURNS text LANGUAGE sql AS $$
	SELECT concat_ws(' ', pg_stat_get_xact_tuples_inserted(relation), pg_stat_get_xact_tuples_updated(relation),
		pg_stat_get_xact_tuples_deleted(relation))
$$;
CREATE PROCEDURE compare() LANGUAGE plpgsql AS $$
DECLARE
	of_plain text;
	of_fed text;
BEGIN
	of_plain := told('plain', 'plain_id_seq');
	of_fed := told('fed', 'fed_id');
	RAISE NOTICE '%', of_fed;
	RAISE NOTICE 'the same: %, %', of_plain = of_fed, counted('plain') = counted('fed');
	of_plain := told('parts_plain', 'parts_plain_id');
	of_fed := told('parts', 'parts_id_seq');
	RAISE NOTICE 'partitions: %, %', of_plain = of_fed,
		counted('parts_low') = counted('parts_plain_low') AND counted('parts_rest') = counted('parts_plain_rest');
	ROLLBACK;
END $$;
CALL compare();
ALTER SEQUENCE plain_id_seq RESTART;
ALTER SEQUENCE fed_id RESTART;
ALTER SEQUENCE parts_plain_id RESTART;
ALTER SEQUENCE parts_id_seq RESTART;
-- The same for a role that has no right on the feed's sequence
SET ROLE regress_feedpub_writer;
CALL compare();
COPY fed (k, v) FROM stdin;
1	a
2	b
\.
SELECT lastval() = currval('fed_id') AS ours;
SELECT k, v FROM fed ORDER BY k;
INSERT INTO plain (k) VALUES (1);
SELECT lastval() AS last \gset
INSERT INTO box (message_type, data) VALUES ('a', '1');
SELECT lastval() = :last AS untouched;
DISCARD SEQUENCES;
INSERT INTO box (message_type, data) VALUES ('a', '1');
SELECT lastval();
\echo :SQLSTATE
RESET ROLE;
SELECT currval('box_feed_pos_seq');
\echo :SQLSTATE
DELETE FROM fed;
SELECT lastval();
\echo :SQLSTATE
DROP TRIGGER aa ON fed;
DROP TRIGGER zzz ON fed;

--
-- The sequence is set in each of the ways, with nothing published in between.
--
CREATE TABLE given (how text, pos bigint);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF NEW.feed_pos <= (SELECT max(pos) FROM given) THEN
		RAISE NOTICE 'position % after %', NEW.feed_pos, (SELECT max(pos) FROM given);
	END IF;
	INSERT INTO given VALUES (current_setting('positions.how'), NEW.feed_pos);
	RETURN NULL;
END $$;
CREATE TRIGGER note AFTER INSERT OR UPDATE ON fed FOR EACH ROW EXECUTE FUNCTION note();
SET positions.how = 'at first';
INSERT INTO fed (k) VALUES (1), (2), (3);
CREATE TABLE ways (n int, how text);
INSERT INTO ways SELECT n, how FROM unnest(ARRAY[
		$$SELECT setval('fed_feed_pos_seq', 1)$$,
		$$SELECT setval('fed_feed_pos_seq', 1, false)$$,
		$$SELECT setval('fed_feed_pos_seq', 2), nextval('fed_feed_pos_seq')$$,
		$$SELECT setval('fed_feed_pos_seq', 2), nextval('fed_feed_pos_seq') FROM generate_series(1, 40)$$,
		$$SELECT nextval('fed_feed_pos_seq')$$,
		$$ALTER SEQUENCE fed_feed_pos_seq RESTART$$,
		$$ALTER SEQUENCE fed_feed_pos_seq RESTART WITH 7$$,
		$$TRUNCATE fed RESTART IDENTITY$$,
		$$TRUNCATE fed$$,
		$$ALTER SEQUENCE fed_feed_pos_seq INCREMENT BY -5 MINVALUE -1000 CACHE 10 CYCLE$$,
		$$SELECT nextval('fed_feed_pos_seq') FROM generate_series(1, 7)$$,
		$$ALTER SEQUENCE fed_feed_pos_seq RESTART WITH -1000$$,
		$$ALTER SEQUENCE fed_feed_pos_seq INCREMENT BY 5 NO MINVALUE RESTART$$,
		$$ALTER TABLE fed SET UNLOGGED$$,
		$$SELECT feed_repair('fed')$$,
		$$SELECT setval('fed_feed_pos_seq', 1000000000000000)$$,
		$$SELECT setval('fed_feed_pos_seq', 5)$$,
		$$BEGIN; TRUNCATE fed RESTART IDENTITY; INSERT INTO fed (k) VALUES (1000); ROLLBACK$$,
		$$BEGIN; ALTER SEQUENCE fed_feed_pos_seq RESTART; INSERT INTO fed (k) VALUES (1000); ROLLBACK$$,
		$$BEGIN; SAVEPOINT s; TRUNCATE fed RESTART IDENTITY; INSERT INTO fed (k) VALUES (1000); ROLLBACK TO s; INSERT INTO fed (k) VALUES (1001); COMMIT$$,
		$$CALL feed_publish('fed')$$,
		$$ALTER SEQUENCE fed_feed_pos_seq OWNED BY NONE; DROP SEQUENCE fed_feed_pos_seq; SELECT feed_repair('fed')$$,
		$$SELECT setval('fed_feed_pos_seq', 1)$$]) WITH ORDINALITY w (how, n);
-- Each in a transaction of its own, then some changes; \o hides positions.
\o /dev/null
SELECT format('SET positions.how = %L', how), how,
	format('INSERT INTO fed (k) VALUES (%s), (%s)', n * 10 + 100, n * 10 + 101),
	format('UPDATE fed SET v = %L WHERE k = %s', n, n * 10 + 100),
	format('DELETE FROM fed WHERE k = %s', n * 10 + 101)
	FROM ways ORDER BY n
\gexec
\o
-- Each position was larger than those before, or a notice tells; and deletes
-- have positions of their own.
SELECT count(*) AS several, count(DISTINCT pos) = count(*) AS distinct FROM (
	SELECT pos FROM given
	UNION ALL SELECT feed_pos FROM feedpub._tombstone WHERE feed = 'fed'::regclass) p;
CALL feed_publish('fed');
SELECT guard FROM feed_check('fed');
-- A consumer's copy is the table.
WITH last AS (
	SELECT DISTINCT ON (op = 'truncate', (entry).id) op, (entry).id, (entry).v
	FROM feed_read(NULL::fed, '', 1000) WITH ORDINALITY r (cursor, op, entry, moment, n)
	WHERE op IN ('upsert', 'delete') ORDER BY op = 'truncate', (entry).id, n DESC)
SELECT count(*) FROM last JOIN fed USING (id) WHERE op = 'upsert' AND last.v IS NOT DISTINCT FROM fed.v;
SELECT count(*) FROM fed;

--
-- The same in another session, which remembers nothing.  What was published is
-- beyond the LSN by now: see setval() to 10^15.
--
\c -
SET feedpub.read_wait = 0;
SET positions.how = 'another session';
SELECT setval('fed_feed_pos_seq', 3);
INSERT INTO fed (k) VALUES (2001), (2002);
\c -
SET positions.how = 'again';
SELECT setval('fed_feed_pos_seq', 3);
INSERT INTO fed (k) VALUES (2003), (2004);
SELECT count(*) AS several, count(DISTINCT pos) = count(*) AS distinct FROM given;
-- The largest number is not passed.
SELECT setval('fed_feed_pos_seq', 9223372036854775807 - 31);
INSERT INTO fed (k) VALUES (2005);
\echo :SQLSTATE
SELECT setval('fed_feed_pos_seq', 9223372036854775807 - 33);
SET positions.how = 'the last one';
INSERT INTO fed (k) VALUES (2005) RETURNING feed_pos;
INSERT INTO fed (k) VALUES (2006) RETURNING feed_pos;
INSERT INTO fed (k) VALUES (2007);
\echo :SQLSTATE

--
-- Options of the sequence do not count: positions go on beyond its type.  Only a
-- dump's setval() would fail, until it has a larger one again.
--
CREATE TABLE small (id int PRIMARY KEY);
SELECT feed_attach('small');
ALTER SEQUENCE small_feed_pos_seq AS smallint;
SELECT setval('small_feed_pos_seq', 32767);
INSERT INTO small VALUES (1), (2);
SELECT count(DISTINCT feed_pos), min(feed_pos) > 32767 AS beyond FROM small;
SELECT * FROM feed_check('small');
\set VERBOSITY sqlstate
SELECT setval('small_feed_pos_seq', last_value) IS NOT NULL AS loaded FROM small_feed_pos_seq;
\set VERBOSITY default
ALTER SEQUENCE small_feed_pos_seq AS bigint;
SELECT setval('small_feed_pos_seq', last_value) IS NOT NULL AS loaded FROM small_feed_pos_seq;

DROP TABLE given, ways, fed, plain, parts, parts_plain, box, small;
DROP FUNCTION ask, told, counted, note;
DROP PROCEDURE compare;
DROP ROLE regress_feedpub_writer;
