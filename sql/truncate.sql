-- A TRUNCATE comes after all that it removed and before everything else,
-- whatever triggers there are, and positions never go back.
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
\set odd '"Odd ""Name"", with a comma"'
CREATE TABLE :odd (id int PRIMARY KEY, v text NOT NULL DEFAULT 'x');
CREATE TABLE parts (id int PRIMARY KEY, v text NOT NULL DEFAULT 'x') PARTITION BY RANGE (id);
CREATE TABLE parts_low PARTITION OF parts FOR VALUES FROM (MINVALUE) TO (100);
CREATE TABLE parts_high PARTITION OF parts FOR VALUES FROM (100) TO (MAXVALUE);
CREATE TABLE aa_child (id int REFERENCES :odd);
CREATE TABLE zz_child (id int REFERENCES :odd, part int REFERENCES parts);
SELECT feed_attach(:'odd');
SELECT feed_attach('parts');
CREATE TABLE head (feed regclass, cursor text);
INSERT INTO head SELECT f, feed_head(f) FROM unnest(ARRAY[:'odd', 'parts']::regclass[]) f;
-- Publishes, and shows what came since it was called last; a copy that follows
-- must be the table.
CREATE TABLE copy (feed regclass, id int, v text, PRIMARY KEY (feed, id));
CREATE PROCEDURE came(INOUT entries text) LANGUAGE plpgsql AS $$
DECLARE
	f regclass;
	e record;
	n int := 0;
	same bool;
BEGIN
	COMMIT;
	entries := '';
	FOR f IN SELECT feed FROM head ORDER BY feed::text LOOP
		CALL feed_publish(f);
		FOR e IN EXECUTE format('SELECT r.cursor, op, (entry).id, (entry).v FROM feed_read(NULL::%s, (SELECT cursor FROM head WHERE feed = %L::regclass), 1000) r', f, f) LOOP
			IF e.op <> 'end' THEN
				entries := entries || ', ' || e.op || coalesce(' ' || e.id, '') || coalesce(' ' || e.v, '');
			END IF;
			CASE e.op
				WHEN 'truncate' THEN DELETE FROM copy WHERE feed = f;
				WHEN 'delete' THEN DELETE FROM copy c WHERE c.feed = f AND c.id = e.id;
				WHEN 'upsert' THEN INSERT INTO copy VALUES (f, e.id, e.v) ON CONFLICT (feed, id) DO UPDATE SET v = e.v;
				ELSE NULL;
			END CASE;
		END LOOP;
		EXECUTE format('SELECT NOT EXISTS ((SELECT id, v FROM copy WHERE feed = %L::regclass) EXCEPT ALL (SELECT id, v FROM %s))'
			' AND NOT EXISTS ((SELECT id, v FROM %s) EXCEPT ALL (SELECT id, v FROM copy WHERE feed = %L::regclass))', f, f, f, f) INTO same;
		IF NOT same THEN
			entries := entries || ', THE COPY OF ' || f || ' DIFFERS';
		END IF;
		UPDATE head SET cursor = feed_head(f) WHERE feed = f;
	END LOOP;
	entries := ltrim(entries, ', ');
END $$;
-- The last position of each feed must never be smaller than before.
CREATE TABLE last (feed regclass PRIMARY KEY, pos bigint NOT NULL);
CREATE FUNCTION goes_on() RETURNS bool LANGUAGE plpgsql AS $$
DECLARE
	largest bigint[];
	goes_on bool;
BEGIN
	SELECT array_agg(pos ORDER BY feed) INTO largest FROM last;
	DELETE FROM last;
	INSERT INTO last VALUES
		('"Odd ""Name"", with a comma"', (SELECT last_value FROM "Odd ""Name"", with a comma_feed_pos_seq")),
		('parts', (SELECT last_value FROM parts_feed_pos_seq));
	SELECT bool_and(pos >= coalesce(largest[n], 0)) INTO goes_on
		FROM (SELECT pos, row_number() OVER (ORDER BY feed) AS n FROM last) l;
	RETURN goes_on;
END $$;
-- Triggers that write: one row each, with an id of its own, and whose name says
-- when it was written.
CREATE SEQUENCE ids START 10;
CREATE FUNCTION write() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('INSERT INTO %s VALUES (nextval(''ids''), %L)', TG_ARGV[0], TG_NAME);
	RETURN NULL;
END $$;
INSERT INTO :odd VALUES (1), (2);
INSERT INTO parts VALUES (1), (101);
CALL came('');
SELECT goes_on();

--
-- AFTER TRUNCATE triggers of the feed, of the tables that the statement reaches
-- before and after it, and of partitions
--
CREATE TRIGGER after_own AFTER TRUNCATE ON :odd EXECUTE FUNCTION write('"Odd ""Name"", with a comma"');
CREATE TRIGGER zzz_after_own AFTER TRUNCATE ON :odd EXECUTE FUNCTION write('"Odd ""Name"", with a comma"');
CREATE TRIGGER after_aa AFTER TRUNCATE ON aa_child EXECUTE FUNCTION write('"Odd ""Name"", with a comma"');
CREATE TRIGGER after_zz AFTER TRUNCATE ON zz_child EXECUTE FUNCTION write('"Odd ""Name"", with a comma"');
CREATE TRIGGER after_zz_part AFTER TRUNCATE ON zz_child EXECUTE FUNCTION write('parts');
CREATE TRIGGER after_parts AFTER TRUNCATE ON parts EXECUTE FUNCTION write('parts');
CREATE TRIGGER after_low AFTER TRUNCATE ON parts_low EXECUTE FUNCTION write('parts');
CREATE TRIGGER zzz_after_high AFTER TRUNCATE ON parts_high EXECUTE FUNCTION write('parts');
TRUNCATE :odd CASCADE;
CALL came('');
SELECT goes_on();
TRUNCATE aa_child, zz_child, :odd;
CALL came('');
SELECT goes_on();
TRUNCATE :odd, aa_child, zz_child RESTART IDENTITY;
CALL came('');
SELECT goes_on();
TRUNCATE aa_child, zz_child, :odd RESTART IDENTITY;
CALL came('');
SELECT goes_on();
TRUNCATE parts CASCADE;
CALL came('');
SELECT goes_on();
TRUNCATE parts RESTART IDENTITY CASCADE;
CALL came('');
SELECT goes_on();
-- Partitions named with their table, and alone: then deletes, before the rows
-- that are new
TRUNCATE zz_child, parts_low, parts RESTART IDENTITY;
CALL came('');
SELECT goes_on();
TRUNCATE zz_child, parts_low RESTART IDENTITY;
CALL came('');
SELECT goes_on();
-- In one transaction
BEGIN;
TRUNCATE zz_child, parts RESTART IDENTITY;
TRUNCATE zz_child, parts_low RESTART IDENTITY;
UPDATE parts SET v = v || ' twice';
TRUNCATE zz_child, parts RESTART IDENTITY;
COMMIT;
CALL came('');
SELECT goes_on();
-- In the wire format it has neither key nor row.
SELECT DISTINCT e -> 'key' IS NOT NULL AND json_typeof(e -> 'key') = 'null' AS no_key, e -> 'row' IS NULL AS no_row
	FROM json_array_elements(feed_page(:'odd', '', 1000) -> 'entries') e WHERE e ->> 'op' = 'truncate';

--
-- BEFORE TRUNCATE triggers that write: their rows go, but not the deletes.
--
CREATE FUNCTION remove() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('DELETE FROM %s', TG_ARGV[0]);
	RETURN NULL;
END $$;
CREATE TRIGGER before_own BEFORE TRUNCATE ON :odd EXECUTE FUNCTION write('"Odd ""Name"", with a comma"');
CREATE TRIGGER zzz_before_own BEFORE TRUNCATE ON :odd EXECUTE FUNCTION remove('"Odd ""Name"", with a comma"');
CREATE TRIGGER zzzz_before_own BEFORE TRUNCATE ON :odd EXECUTE FUNCTION write('"Odd ""Name"", with a comma"');
CREATE TRIGGER before_high BEFORE TRUNCATE ON parts_high EXECUTE FUNCTION write('parts');
CREATE TRIGGER zzz_before_high BEFORE TRUNCATE ON parts_high EXECUTE FUNCTION remove('parts');
INSERT INTO :odd VALUES (1), (2), (3);
TRUNCATE :odd, aa_child, zz_child RESTART IDENTITY;
CALL came('');
SELECT goes_on();
TRUNCATE aa_child, zz_child, :odd, parts RESTART IDENTITY;
CALL came('');
SELECT goes_on();
-- Rows, deletes and TRUNCATEs of a transaction have each a position of their own.
INSERT INTO :odd VALUES (1), (2), (3);
BEGIN;
TRUNCATE :odd, aa_child, zz_child RESTART IDENTITY;
UPDATE :odd SET id = -id;
SELECT count(*) AS several, count(DISTINCT feed_pos) = count(*) AS distinct FROM (
	SELECT feed_pos FROM :odd
	UNION ALL SELECT feed_pos FROM feedpub._tombstone WHERE feed = :'odd'::regclass AND feed_xid = pg_current_xact_id()) p;
COMMIT;
CALL came('');

-- So have the deletes of a partition, whose positions are taken many at once.
CREATE TABLE many (k text PRIMARY KEY) PARTITION BY LIST (k);
CREATE TABLE many_1 PARTITION OF many DEFAULT;
SELECT feed_attach('many');
INSERT INTO many SELECT CASE WHEN i = 700 THEN repeat('x', 1200) ELSE i::text END FROM generate_series(1, 1234) i;
SELECT max(feed_pos) AS before FROM many \gset
BEGIN;
TRUNCATE many_1;
INSERT INTO many VALUES ('after') RETURNING feed_pos - :before AS pos;
SELECT count(*), count(DISTINCT feed_pos), count(DISTINCT key), min(feed_pos) - :before AS first, max(feed_pos) - :before AS last
	FROM feedpub._tombstone WHERE feed = 'many'::regclass AND feed_xid = pg_current_xact_id();
ROLLBACK;
SELECT feed_detach('many');
DROP TABLE many;

--
-- Rolled back, in whole or in part
--
INSERT INTO :odd VALUES (1);
CALL came('');
BEGIN;
TRUNCATE :odd, aa_child, zz_child RESTART IDENTITY;
ROLLBACK;
INSERT INTO :odd VALUES (2);
CALL came('');
BEGIN;
SAVEPOINT s;
TRUNCATE :odd, aa_child, zz_child RESTART IDENTITY;
INSERT INTO :odd VALUES (3, 'gone'), (4, 'gone');
ROLLBACK TO s;
INSERT INTO :odd VALUES (3, 'kept');
SAVEPOINT s;
TRUNCATE :odd, aa_child, zz_child RESTART IDENTITY;
RELEASE s;
INSERT INTO :odd VALUES (5, 'kept');
SAVEPOINT s;
TRUNCATE :odd, aa_child, zz_child;
ROLLBACK TO s;
INSERT INTO :odd VALUES (6, 'kept');
COMMIT;
CALL came('');
SELECT goes_on();
-- A TRUNCATE of the whole that fails, then one of a partition
TRUNCATE zz_child, parts;
INSERT INTO parts VALUES (1), (101);
DROP TRIGGER after_parts ON parts;
CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;
CREATE TRIGGER after_parts AFTER TRUNCATE ON parts EXECUTE FUNCTION fail();
CALL came('');
BEGIN;
SAVEPOINT s;
\set VERBOSITY terse
TRUNCATE zz_child, parts RESTART IDENTITY;
\set VERBOSITY default
ROLLBACK TO s;
TRUNCATE zz_child, parts_low;
COMMIT;
CALL came('');
DROP TRIGGER after_parts ON parts;
SELECT goes_on();

--
-- Who writes after a TRUNCATE needs no right on the sequence: the owner
-- truncates, another role's function writes first.
--
CREATE ROLE regress_feedpub_owner;
CREATE ROLE regress_feedpub_writer;
GRANT INSERT ON :odd TO regress_feedpub_writer;
GRANT USAGE ON SEQUENCE ids TO regress_feedpub_writer;
ALTER TABLE :odd OWNER TO regress_feedpub_owner;
GRANT TRUNCATE ON aa_child, zz_child TO regress_feedpub_owner;
ALTER FUNCTION write() SECURITY DEFINER;
ALTER FUNCTION write() OWNER TO regress_feedpub_writer;
ALTER TABLE zz_child DISABLE TRIGGER after_zz_part;
SET ROLE regress_feedpub_owner;
TRUNCATE aa_child, zz_child, :odd RESTART IDENTITY;
RESET ROLE;
CALL came('');
SELECT goes_on();

--
-- Without deletes no TRUNCATE is published, but positions do not go back
-- either.
--
DROP TABLE aa_child, zz_child;
SELECT feed_detach(:'odd');
SELECT feed_attach(:'odd', deletes => false);
UPDATE head SET cursor = feed_head(:'odd') WHERE feed = :'odd'::regclass;
INSERT INTO :odd VALUES (1, 'old'), (2, 'old');
SELECT max(feed_pos) AS before FROM :odd \gset
TRUNCATE :odd RESTART IDENTITY;
SELECT v, feed_pos > :before AS goes_on FROM :odd ORDER BY feed_pos;
SELECT * FROM feed_check(:'odd');

--
-- What keeps that up is looked after.
--
ALTER TABLE parts DISABLE TRIGGER zz_feedpub_truncate;
SELECT guard, problem, cure FROM feed_check('parts');
SELECT feed_repair('parts');
SELECT guard FROM feed_check('parts');

--
-- The functions elsewhere: on a table that is no feed, on another event, by hand
--
CREATE TABLE plain (id int PRIMARY KEY);
CREATE TRIGGER truncated BEFORE TRUNCATE ON plain EXECUTE FUNCTION feedpub._note_truncate('an argument');
TRUNCATE plain;
CREATE TRIGGER after_truncated AFTER TRUNCATE ON plain EXECUTE FUNCTION feedpub._note_truncate();
TRUNCATE plain;
\echo :SQLSTATE
DROP TRIGGER after_truncated ON plain;
CREATE TRIGGER inserted BEFORE INSERT ON plain EXECUTE FUNCTION feedpub._note_truncate();
INSERT INTO plain VALUES (1);
\echo :SQLSTATE
DROP TRIGGER inserted ON plain;
CREATE TRIGGER deleted AFTER DELETE ON plain FOR EACH ROW EXECUTE FUNCTION feedpub._note_delete();
INSERT INTO plain VALUES (1);
DELETE FROM plain;
\echo :SQLSTATE
CREATE TRIGGER truncated_too AFTER TRUNCATE ON plain EXECUTE FUNCTION feedpub._note_delete();
TRUNCATE plain;
\echo :SQLSTATE
SELECT feedpub._note_truncate();
\echo :SQLSTATE

DROP TABLE plain, copy, last;
SELECT feed_detach(:'odd'), feed_detach('parts');
DROP TABLE :odd, parts, head;
DROP FUNCTION write, remove, fail, goes_on;
DROP PROCEDURE came;
DROP SEQUENCE ids;
DROP ROLE regress_feedpub_owner, regress_feedpub_writer;
