-- Captured tables: what a change feed gets, and in which order
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
SELECT feed_stop_worker() IS NOT NULL AS stopped;
CREATE SCHEMA captured;
SET search_path = captured, public;
SELECT feed_create_changes('changes');
-- What the triggers have written since the last look, oldest first; a json is
-- shown as it is
CREATE FUNCTION news() RETURNS TABLE (op text, relation text, key text, old_key text, "row" text, old text, error text) LANGUAGE sql AS $$
	WITH gone AS (DELETE FROM changes RETURNING *)
	SELECT g.op, g.relation, g.key::text, g.old_key::text, left(g."row"::text, 60), left(g.old::text, 40), g.error FROM gone g ORDER BY g.feed_xid, g.feed_pos
$$;

-- Each statement
CREATE TABLE orders (id int PRIMARY KEY, note text, n int, twice int GENERATED ALWAYS AS (n * 2) STORED);
SELECT feed_capture('orders', 'changes');
INSERT INTO orders VALUES (1, 'a', 1), (2, NULL, 2);
UPDATE orders SET note = 'b' WHERE id = 1;
UPDATE orders SET n = 5 WHERE id = 2;
UPDATE orders SET id = 20 WHERE id = 2;
UPDATE orders SET note = note;
INSERT INTO orders VALUES (1, 'c', 1), (3, 'c', 3) ON CONFLICT (id) DO UPDATE SET note = 'd';
INSERT INTO orders VALUES (1, 'e', 1) ON CONFLICT DO NOTHING;
MERGE INTO orders o USING (VALUES (3, 'm'), (4, 'm')) s (id, note) ON o.id = s.id
	WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id, note) VALUES (s.id, s.note);
COPY orders (id, note) FROM stdin;
5	copied
\.
WITH d AS (DELETE FROM orders WHERE id = 5 RETURNING id) INSERT INTO orders SELECT id + 1 FROM d;
INSERT INTO changes (key, "row") VALUES ('"mine"', '[1]');
SELECT * FROM news();
BEGIN;
SAVEPOINT a;
UPDATE orders SET note = 'rolled back' WHERE id = 1;
ROLLBACK TO a;
UPDATE orders SET note = 'kept' WHERE id = 1;
SAVEPOINT b;
UPDATE orders SET note = 'kept too' WHERE id = 1;
RELEASE b;
COMMIT;
SELECT * FROM news();

-- Columns that come, go and are renamed
ALTER TABLE orders DROP COLUMN twice;
ALTER TABLE orders RENAME id TO number;
ALTER TABLE orders RENAME note TO "the ""note""";
ALTER TABLE orders ADD COLUMN more timestamptz DEFAULT '2026-01-02 03:04:05+06';
ALTER TABLE orders ALTER n TYPE numeric USING n + 0.5;
ALTER TABLE orders RENAME TO "My orders";
UPDATE "My orders" SET "the ""note""" = 'f' WHERE number = 1;
SELECT * FROM news();
DROP TABLE "My orders";

-- Only some columns, without old values
CREATE TABLE picked (id int, a int, b int, secret text, UNIQUE (b), PRIMARY KEY (id));
ALTER TABLE picked ALTER b SET NOT NULL;
SELECT feed_capture('picked', 'changes', columns => '{a,b}', key => 'picked_b_key', old => false);
INSERT INTO picked VALUES (1, 1, 1, 's');
UPDATE picked SET secret = 't';
UPDATE picked SET a = 2;
UPDATE picked SET b = 2;
DELETE FROM picked;
SELECT * FROM news();
DROP TABLE picked;

-- Values do not depend on the writer's settings
CREATE TABLE settings (id bytea PRIMARY KEY, f float8, t timestamptz, i interval, r tstzrange);
SELECT feed_capture('settings', 'changes');
SET extra_float_digits = -10;
SET bytea_output = 'escape';
SET intervalstyle = 'iso_8601';
SET timezone = 'America/New_York';
SET datestyle = 'German';
INSERT INTO settings VALUES ('\x01ff', 0.1::float8 + 0.2, '2026-01-01 00:00+00', '1 day 2 hours', '[2026-01-01 00:00+00,)');
SHOW intervalstyle;
-- (pg_regress sets intervalstyle)
RESET extra_float_digits; RESET bytea_output; SET intervalstyle = 'postgres';
CREATE TABLE times (t timestamptz PRIMARY KEY, d date);
SELECT feed_capture('times', 'changes');
INSERT INTO times VALUES ('2026-01-01 00:00+00', '2026-12-31');
RESET extra_float_digits; RESET bytea_output; RESET intervalstyle; RESET timezone; RESET datestyle;
SELECT key, "row" FROM changes ORDER BY feed_xid, feed_pos;
SELECT count(*) FROM news();
DROP TABLE settings, times;
-- each setting by itself
CREATE TABLE by_float (id int PRIMARY KEY, f float4);
CREATE TABLE by_interval (id int PRIMARY KEY, i interval);
CREATE TABLE by_time (id int PRIMARY KEY, t timestamptz);
SELECT feed_capture('by_float', 'changes'), feed_capture('by_interval', 'changes'), feed_capture('by_time', 'changes');
-- (pg_regress has set intervalstyle)
SET intervalstyle = 'postgres';
SET extra_float_digits = 0;
INSERT INTO by_float VALUES (1, 0.3333333333);
RESET extra_float_digits;
SET intervalstyle = 'iso_8601';
INSERT INTO by_interval VALUES (1, '1 day 2 hours');
RESET intervalstyle;
SET timezone = 'America/New_York';
SET datestyle = 'German';
INSERT INTO by_time VALUES (1, '2026-01-01 00:00+00');
RESET timezone; RESET datestyle;
SELECT "row" FROM news();
DROP TABLE by_float, by_interval, by_time;

-- The order of a row's versions: triggers that change rows again, whatever they
-- are called, functions in the statement, CTEs, savepoints inside
CREATE TABLE list (id int PRIMARY KEY, v int, note text);
SELECT feed_capture('list', 'changes');
CREATE FUNCTION broken_chains() RETURNS TABLE (id text, versions bigint, breaks bigint, ends_right boolean) LANGUAGE sql AS $$
	SELECT c.id, count(*), count(*) FILTER (WHERE c.o IS DISTINCT FROM c.p),
		(array_agg(c.n ORDER BY c.i DESC))[1] IS NOT DISTINCT FROM (SELECT l.v::text FROM list l WHERE l.id::text = c.id)
	FROM (SELECT key->>'id' AS id, old->>'v' AS o, "row"->>'v' AS n, row_number() OVER w AS i,
			lag("row"->>'v') OVER w AS p
		FROM changes WINDOW w AS (PARTITION BY key->>'id' ORDER BY feed_xid, feed_pos)) c
	GROUP BY c.id ORDER BY c.id
$$;
CREATE FUNCTION again() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF NEW.v < 3 THEN
		UPDATE list SET v = v + 1 WHERE list.id IN (1, 2);
		BEGIN
			UPDATE list SET v = v + 1000 WHERE list.id IN (1, 2);
			RAISE 'undone';
		EXCEPTION WHEN raise_exception THEN NULL;
		END;
	END IF;
	RETURN NULL;
END $$;
CREATE TRIGGER "A first" AFTER INSERT OR UPDATE ON list FOR EACH ROW EXECUTE FUNCTION again();
INSERT INTO list VALUES (1, 0, repeat('x', 5000)), (2, 0, 'y'), (3, 7, 'z');
SELECT * FROM broken_chains();
SELECT count(*) FROM news();
UPDATE list SET v = 0;
SELECT id, versions, breaks FROM broken_chains();  -- the first version was before
SELECT count(*) FROM news();
DROP TRIGGER "A first" ON list;
DELETE FROM list;
CREATE TRIGGER "z last" AFTER INSERT OR UPDATE ON list FOR EACH ROW EXECUTE FUNCTION again();
SELECT count(*) FROM news();
INSERT INTO list VALUES (1, 0, repeat('x', 5000)), (2, 0, 'y'), (3, 7, 'z');
SELECT * FROM broken_chains();
SELECT count(*) FROM changes WHERE "row"->>'note' = repeat('x', 5000);
DROP TRIGGER "z last" ON list;
TRUNCATE list;
SELECT count(*), max(op) FILTER (WHERE key IS NULL) FROM news();
CREATE FUNCTION change_before(i int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
	UPDATE list SET v = v + 100 WHERE id = i - 1;
	IF i = 4 THEN DELETE FROM list WHERE id = 2; END IF;
	RETURN i;
END $$;
INSERT INTO list SELECT change_before(g), 0 FROM generate_series(1, 5) g;
SELECT op, key, "row"->>'v' AS v, old->>'v' AS old FROM changes ORDER BY feed_xid, feed_pos;
SELECT count(*) FROM news();
-- an UPDATE that changes nothing that is captured is a version, too
CREATE FUNCTION twice() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	UPDATE list SET note = note || '.' WHERE id = NEW.id;
	UPDATE list SET v = v WHERE id = NEW.id;
	UPDATE list SET note = note || '.' WHERE id = NEW.id;
	RETURN NULL;
END $$;
CREATE TRIGGER "A first again" AFTER INSERT ON list FOR EACH ROW EXECUTE FUNCTION twice();
INSERT INTO list VALUES (7, 1, 'note');
SELECT op, "row"->>'note' AS note, old->>'note' AS old FROM changes ORDER BY feed_xid, feed_pos;
SELECT count(*) FROM news();
DROP TABLE list;

-- a key that another row of the statement gets, before our trigger is called for
-- the row that had it: that is told again, so the last entry of each key is right
CREATE TABLE again (id int, part int, v text, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
CREATE TABLE again_1 PARTITION OF again FOR VALUES IN (1);
CREATE TABLE again_2 (v text, part int NOT NULL, id int NOT NULL);
ALTER TABLE again ATTACH PARTITION again_2 FOR VALUES IN (2);
SELECT feed_capture('again', 'changes');
CREATE FUNCTION insert_again() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF OLD.v <> 'again' THEN
		INSERT INTO again VALUES (OLD.id, OLD.part, 'again');
		UPDATE again SET v = v || '!' WHERE id = OLD.id AND part = OLD.part;
	END IF;
	RETURN NULL;
END $$;
CREATE TRIGGER "A first" AFTER DELETE ON again FOR EACH ROW EXECUTE FUNCTION insert_again();
CREATE FUNCTION insert_before() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF NEW.v = 'last' THEN
		UPDATE again SET id = id + 10 WHERE v = 'moved';
		INSERT INTO again VALUES (5, 1, 'instead'), (6, 2, 'instead');
	END IF;
	RETURN NEW;
END $$;
CREATE TRIGGER before BEFORE INSERT OR UPDATE ON again FOR EACH ROW EXECUTE FUNCTION insert_before();
CREATE FUNCTION wrong_keys() RETURNS TABLE (key text, told text, "row" text) LANGUAGE sql AS $$
	WITH mention AS (
		SELECT key::text, "row"::jsonb AS r, feed_xid, feed_pos, 1 AS n FROM changes
		UNION ALL SELECT old_key::text, NULL, feed_xid, feed_pos, 0 FROM changes WHERE old_key IS NOT NULL)
	SELECT key, r::text, to_jsonb(a)::text
	FROM (SELECT DISTINCT ON (key) key, r FROM mention ORDER BY key, feed_xid DESC, feed_pos DESC, n DESC) last
		FULL JOIN again a ON json_build_object('id', a.id, 'part', a.part)::jsonb = key::jsonb
	WHERE r IS DISTINCT FROM to_jsonb(a)
$$;
INSERT INTO again VALUES (1, 1, 'x'), (2, 2, 'x'), (3, 2, 'again');
DELETE FROM again;
INSERT INTO again VALUES (5, 1, 'moved'), (6, 2, 'moved'), (7, 1, 'last');
SELECT op, key, old_key, "row", old FROM changes ORDER BY feed_xid, feed_pos;
SELECT * FROM wrong_keys();
DELETE FROM again WHERE v = 'instead';
UPDATE again SET id = id + 100, part = 3 - part, v = CASE v WHEN 'instead' THEN 'moved' WHEN 'last' THEN 'x' ELSE v END;
SELECT v, count(*) FROM again GROUP BY v ORDER BY v;
SELECT * FROM wrong_keys();
SELECT count(*) > 0 FROM news();
DROP TABLE again;

-- one that is changed, and then moved twice, to leave both keys to others
CREATE TABLE leaves (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE leaves_0 PARTITION OF leaves FOR VALUES FROM (0) TO (10);
CREATE TABLE leaves_1 PARTITION OF leaves FOR VALUES FROM (10) TO (20);
CREATE TABLE leaves_2 PARTITION OF leaves DEFAULT;
SELECT feed_capture('leaves', 'changes');
CREATE FUNCTION leave() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF NEW.v = 'leaves' THEN
		UPDATE leaves SET id = id + 10, v = 'left' WHERE id = 1;
		INSERT INTO leaves VALUES (1, 'other');
		UPDATE leaves SET id = id + 10 WHERE id = 11;
		INSERT INTO leaves VALUES (11, 'another');
	END IF;
	RETURN NULL;
END $$;
CREATE TRIGGER "A first" AFTER UPDATE ON leaves FOR EACH ROW EXECUTE FUNCTION leave();
INSERT INTO leaves VALUES (1, 'is there');
UPDATE leaves SET v = 'leaves';
SELECT op, key, old_key, "row" FROM news();
DROP TABLE leaves;

-- Rows that refer to each other: a parent's delete, cascades, numbers that follow
CREATE TABLE tree (id int PRIMARY KEY, parent int REFERENCES tree ON UPDATE CASCADE ON DELETE CASCADE);
SELECT feed_capture('tree', 'changes');
INSERT INTO tree VALUES (1, NULL), (2, 1), (3, 2);
SELECT count(*) FROM news();
UPDATE tree SET id = id + 10;
SELECT op, key, old_key, "row", old FROM news();
DELETE FROM tree WHERE id = 11;
SELECT op, key FROM news();
DROP TABLE tree;

-- Partitions: rows that move are updates
CREATE TABLE parts (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);
CREATE TABLE parts_0 PARTITION OF parts FOR VALUES FROM (0) TO (10);
CREATE TABLE parts_1 (v int, gone int, id int NOT NULL);
ALTER TABLE parts_1 DROP COLUMN gone;
ALTER TABLE parts ATTACH PARTITION parts_1 FOR VALUES FROM (10) TO (20);
SELECT feed_capture('parts', 'changes');
CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (20) TO (30);
INSERT INTO parts VALUES (1, 1), (11, 1), (21, 1);
INSERT INTO parts_0 VALUES (2, 1);
UPDATE parts SET id = id + 11 WHERE id = 1;
UPDATE parts SET id = id - 12, v = 5 WHERE id = 21;
MERGE INTO parts p USING (VALUES (9, 19)) s (id, new) ON p.id = s.id WHEN MATCHED THEN UPDATE SET id = s.new;
SELECT op, relation, key, old_key, "row", old FROM news();
-- several at once, and beside other changes of the statement
WITH u AS (UPDATE parts SET id = id + 5 WHERE id BETWEEN 11 AND 19 RETURNING id),
	i AS (INSERT INTO parts VALUES (3, 3) RETURNING id)
SELECT count(*) FROM u, i;
SELECT op, key, old_key FROM news();
-- a trigger prevents the insert: it is a delete
CREATE FUNCTION prevent() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER prevent BEFORE INSERT ON parts_0 FOR EACH ROW EXECUTE FUNCTION prevent();
UPDATE parts SET id = 5 WHERE id = 17;
SELECT op, key, old_key FROM news();
-- what another statement of the same call inserts is an insert
DO $$
BEGIN
	INSERT INTO parts_1 VALUES (1, 17), (1, 18);
	UPDATE parts SET id = 5 WHERE id = 17;
	INSERT INTO parts VALUES (17, 2);
END $$;
SELECT op, key, old_key FROM news();
DROP TRIGGER prevent ON parts_0;
-- also if the savepoint of the move was rolled back before its insert was told of
CREATE FUNCTION fail_moves() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;
CREATE TRIGGER zz_fails AFTER DELETE ON parts_1 FOR EACH ROW EXECUTE FUNCTION fail_moves();
DO $$
BEGIN
	BEGIN
		UPDATE parts SET id = 6 WHERE id = 18;
	EXCEPTION WHEN raise_exception THEN
		INSERT INTO parts VALUES (6, 6);
	END;
	INSERT INTO parts VALUES (7, 7);
	DROP TRIGGER zz_fails ON parts_1;
	UPDATE parts SET id = 8 WHERE id = 18;
END $$;
SELECT op, key, old_key FROM news();
-- or if another move has failed in between
CREATE FUNCTION moves_another() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN UPDATE parts SET id = 9 WHERE id = 16; RETURN NULL; END';
CREATE TRIGGER moves AFTER DELETE ON parts_1 FOR EACH ROW WHEN (OLD.id = 17) EXECUTE FUNCTION moves_another();
CREATE TRIGGER prevent BEFORE INSERT ON parts_0 FOR EACH ROW WHEN (NEW.id = 9) EXECUTE FUNCTION prevent();
UPDATE parts SET id = 4 WHERE id = 17;
SELECT op, key, old_key, "row" FROM news();
INSERT INTO parts VALUES (16, 1), (17, 2);
SELECT count(*) FROM news();
TRUNCATE parts_1;
SELECT op, key, old_key, old FROM news() ORDER BY key;
TRUNCATE parts;
SELECT op, relation, key FROM news();
DROP TABLE parts;

-- TRUNCATE of several tables
CREATE TABLE a (id int PRIMARY KEY);
CREATE TABLE b (id int PRIMARY KEY REFERENCES a);
SELECT feed_capture('a', 'changes');
SELECT feed_capture('b', 'changes');
INSERT INTO a VALUES (1);
TRUNCATE a CASCADE;
TRUNCATE b;
SELECT op, relation, dense_rank() OVER (ORDER BY statement) FROM changes WHERE op = 'truncate' ORDER BY feed_xid, feed_pos;
SELECT count(*) FROM news();
-- of tables whose values are made JSON in a subtransaction; a trigger between
-- ours writes, and truncates another table; partitions that the statement brings
CREATE TYPE mood AS ENUM ('good', 'lost');
CREATE TABLE c (id int PRIMARY KEY, m mood) PARTITION BY LIST (id);
CREATE TABLE c_1 PARTITION OF c FOR VALUES IN (1);
CREATE TABLE d (id int PRIMARY KEY, m mood) PARTITION BY LIST (id);
CREATE TABLE d_1 PARTITION OF d FOR VALUES IN (1);
CREATE TABLE d_2 PARTITION OF d FOR VALUES IN (2);
CREATE TABLE e (id int PRIMARY KEY);
CREATE TABLE f (id int PRIMARY KEY);
SELECT count(feed_capture(t, 'changes')) FROM unnest('{c,d,e,f}'::regclass[]) t;
CREATE FUNCTION between_ours() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO f VALUES (0);
	TRUNCATE e, f;
	RETURN NULL;
END $$;
CREATE TRIGGER a_first BEFORE TRUNCATE ON d FOR EACH STATEMENT EXECUTE FUNCTION between_ours();
CREATE TRIGGER zzz_last BEFORE TRUNCATE ON d FOR EACH STATEMENT EXECUTE FUNCTION between_ours();
INSERT INTO c VALUES (1, 'good');
INSERT INTO d VALUES (1, 'good'), (2, 'lost');
TRUNCATE c, a, d, b;
CREATE VIEW truncates AS
	SELECT op, relation, dense_rank() OVER (ORDER BY statement) AS number, key FROM changes WHERE op IN ('truncate', 'delete') ORDER BY feed_xid, feed_pos;
SELECT * FROM truncates;
SELECT count(*) FROM news();
-- two in a transaction, in a function, and one that fails before another
CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;
CREATE TRIGGER fail BEFORE TRUNCATE ON e WHEN (current_setting('captured.fails', true) = 'now') EXECUTE FUNCTION fail();
\set VERBOSITY terse
BEGIN;
TRUNCATE c;
TRUNCATE e, f;
INSERT INTO c VALUES (1, 'good');
SAVEPOINT a;
SET captured.fails = 'now';
TRUNCATE c, e;
ROLLBACK TO a;
TRUNCATE c_1;
COMMIT;
DO $$ BEGIN FOR i IN 1..2 LOOP TRUNCATE e, c; END LOOP; END $$;
INSERT INTO c VALUES (1, 'good');
DO $$
BEGIN
	BEGIN
		TRUNCATE c, e;
		RAISE 'undone';
	EXCEPTION WHEN raise_exception THEN TRUNCATE c_1;
	END;
END $$;
SELECT * FROM truncates;
SELECT count(*) FROM news();
\set VERBOSITY default
-- what a trigger writes into the table before it is empty goes with it
CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO f VALUES (7); RETURN NULL; END $$;
CREATE TRIGGER fill BEFORE TRUNCATE ON f FOR EACH STATEMENT EXECUTE FUNCTION fill();
TRUNCATE f;
SELECT count(*) FROM f;
SELECT op, key FROM news();
DROP VIEW truncates;
DROP TABLE c, d, e, f;

-- Two feeds
SELECT feed_create_changes('others');
SELECT feed_capture('b', 'others', old => false);
INSERT INTO a VALUES (1);
INSERT INTO b VALUES (1);
DELETE FROM b;
SELECT op, relation, key, old FROM changes ORDER BY feed_xid, feed_pos;
SELECT op, relation, key, old FROM others ORDER BY feed_xid, feed_pos;
-- statements have numbers of their own in each feed
CREATE TABLE g (id int PRIMARY KEY);
SELECT feed_capture('g', 'others');
INSERT INTO g SELECT generate_series(2, c.last_value - o.last_value) FROM changes_feed_pos_seq c, others_feed_pos_seq o;
DELETE FROM changes;
DELETE FROM others;
SELECT c.last_value - o.last_value AS ahead FROM changes_feed_pos_seq c, others_feed_pos_seq o;
BEGIN;
TRUNCATE b;
TRUNCATE g;
COMMIT;
SELECT relation, dense_rank() OVER (ORDER BY statement) FROM others ORDER BY feed_xid, feed_pos;
DROP TABLE g;

-- What cannot be JSON becomes an entry with the error; other rows are as ever
CREATE TABLE moods (id int PRIMARY KEY, m mood, n int);
SELECT feed_capture('moods', 'changes');
INSERT INTO moods VALUES (1, 'lost', 1), (2, 'good', 1);
DELETE FROM pg_enum WHERE enumtypid = 'mood'::regtype AND enumlabel = 'lost';
SELECT count(*) FROM news();
UPDATE moods SET n = 2;
DELETE FROM moods WHERE id = 1;
SELECT op, key, "row", old, regexp_replace(error, 'enum: \d+', 'enum: N') AS error FROM changes ORDER BY feed_xid, feed_pos;
SELECT count(*) FROM news();
DROP TABLE moods;

-- A column that stands for the key and cannot be JSON: the entry has no key
CREATE TYPE key_mood AS ENUM ('good', 'lost');
CREATE TABLE moods (m key_mood PRIMARY KEY, n int);
SELECT feed_capture('moods', 'changes');
INSERT INTO moods VALUES ('lost', 1);
DELETE FROM pg_enum WHERE enumtypid = 'key_mood'::regtype AND enumlabel = 'lost';
SET enable_indexscan = off;
SET enable_bitmapscan = off;
UPDATE moods SET n = 2;
RESET enable_indexscan;
RESET enable_bitmapscan;
SELECT op, key, "row", old, regexp_replace(error, 'enum: \d+', 'enum: N') AS error FROM news();
DROP TABLE moods;

-- A row that is too large as JSON, though no value of it may fail
CREATE TABLE large (id int PRIMARY KEY, v text);
SELECT feed_capture('large', 'changes');
INSERT INTO large VALUES (1, repeat(E'\x01', 45000000));
SELECT * FROM news();
DROP TABLE large;

-- A table that is rewritten between two versions of a row
CREATE TABLE rewritten (id int PRIMARY KEY, v int);
SELECT feed_capture('rewritten', 'changes');
DO $$
BEGIN
	INSERT INTO rewritten VALUES (1, 1);
	UPDATE rewritten SET v = 2;
	UPDATE rewritten SET v = 3;
	ALTER TABLE rewritten ALTER v TYPE numeric;
	UPDATE rewritten SET v = 4.5;
END $$;
SELECT op, "row" FROM news();
DROP TABLE rewritten;

-- A table feed's own columns are not captured
CREATE TABLE fed (id int PRIMARY KEY, v int);
SELECT feed_attach('fed') IS NULL AS attached;
SELECT feed_capture('fed', 'changes');
INSERT INTO fed VALUES (1, 1);
UPDATE fed SET v = 2;
SELECT op, "row", old FROM news();
SELECT feed_detach('fed');
DROP TABLE fed;

-- A partition that another feed captures by itself: a row that moves is an update
-- in one, and comes or goes in the other.  Two feeds that have the whole
CREATE TABLE parts (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);
CREATE TABLE parts_0 PARTITION OF parts FOR VALUES FROM (0) TO (10);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (10) TO (20);
SELECT feed_create_changes('more');
SELECT feed_capture('parts', 'changes');
SELECT feed_capture('parts', 'more');
SELECT feed_capture('parts_1', 'others');
INSERT INTO parts VALUES (1, 1), (2, 1);
DELETE FROM changes;
DELETE FROM more;
DELETE FROM others;
UPDATE parts SET id = id + 10;
UPDATE parts SET id = id - 10, v = 2 WHERE id = 11;
SELECT op, key, old_key FROM news();
SELECT op, key, old_key FROM more ORDER BY feed_pos;
SELECT op, key, old_key FROM others ORDER BY feed_pos;
DROP TABLE parts;

-- What cannot be written is noted, and readers are refused
CREATE INDEX code ON others ((op || relation));
INSERT INTO b VALUES (1);
SELECT count(*) FROM others;
CALL feed_publish('others');
\set VERBOSITY terse
SELECT count(*) FROM feed_read(NULL::others, '', 10);
SELECT guard FROM feed_check('others') WHERE guard = 'history';
DROP INDEX code;
SELECT feed_begin_history('others') IS NOT NULL AS begun;
-- each thing that an entry could fail by, or that its INSERT would run: the writer goes on
CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE FUNCTION writes(ddl text, statement text DEFAULT 'INSERT INTO b VALUES (2)') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	result text;
BEGIN
	EXECUTE ddl;
	INSERT INTO a VALUES (2);
	EXECUTE statement;
	EXECUTE 'SELECT count(*) FROM others' INTO result;
	RAISE '%, %', CASE result WHEN '0' THEN 'no entry' ELSE 'an entry' END,
		CASE WHEN EXISTS (SELECT FROM feedpub._lost_change WHERE feed = 'others'::regclass) THEN 'which is noted' ELSE 'nothing is noted' END;
EXCEPTION WHEN raise_exception THEN
	RETURN SQLERRM;
END $$;
DELETE FROM others;
SELECT ddl, writes(ddl) FROM (VALUES
	('SELECT'),
	('CREATE INDEX ON others (relation, op)'),
	('CREATE TRIGGER nothing BEFORE INSERT ON others FOR EACH ROW EXECUTE FUNCTION nothing()'),
	($d$ALTER TABLE others ADD CHECK (op <> 'insert')$d$),
	('ALTER TABLE others ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY'),
	('CREATE INDEX ON others ((op || relation))'),
	($d$CREATE INDEX ON others (op) WHERE op = 'insert'$d$),
	('CREATE UNIQUE INDEX ON others (op)'),
	('CREATE UNIQUE INDEX ON others (op, feed_pos)'),
	('ALTER TABLE others ADD EXCLUDE (op WITH =)'),
	('ALTER TABLE others ADD more int NOT NULL'),
	('ALTER TABLE others ALTER key SET NOT NULL'),
	('ALTER TABLE others ALTER "row" TYPE jsonb'),
	('ALTER TABLE others RENAME op TO renamed'),
	('ALTER TABLE others DROP statement'),
	('ALTER TABLE others DROP feed_xid'),
	('ALTER TABLE others DROP CONSTRAINT others_pkey'),
	('DROP SEQUENCE others_feed_pos_seq CASCADE')) d (ddl);
SELECT writes(ddl, 'TRUNCATE b') FROM (VALUES ('SELECT'), ('CREATE UNIQUE INDEX ON others (op)')) d (ddl);
INSERT INTO a VALUES (2);
INSERT INTO b VALUES (2);
CALL feed_publish('others');
SELECT key FROM changes WHERE relation = 'captured.b' AND op = 'insert' ORDER BY feed_pos DESC LIMIT 1;

-- names are as others write them, also if they are looked up now
SET quote_all_identifiers = on;
CREATE INDEX ON a (id);
INSERT INTO a VALUES (3);
RESET quote_all_identifiers;
INSERT INTO a VALUES (4);
SELECT relation, key FROM changes WHERE op = 'insert' AND key::text IN ('{"id":3}', '{"id":4}') ORDER BY feed_pos;

RESET search_path;
DROP SCHEMA captured CASCADE;
SELECT feed, relation FROM feedpub._capture WHERE EXISTS (SELECT FROM pg_class c WHERE c.oid = relation);
