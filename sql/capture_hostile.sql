-- What could make a writer of a captured table fail, or its entries wrong
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
SELECT feed_stop_worker() IS NOT NULL AS stopped;
CREATE SCHEMA hostile;
SET search_path = hostile, public;
SELECT feed_create_changes('changes');
CREATE FUNCTION news() RETURNS TABLE (op text, relation text, key text, "row" text, old text, error text) LANGUAGE sql AS $$
	WITH gone AS (DELETE FROM changes RETURNING *)
	SELECT g.op, g.relation, g.key::text, left(g."row"::text, 60), left(g.old::text, 40), g.error FROM gone g ORDER BY g.feed_xid, g.feed_pos
$$;

-- Numbers of few bytes that have many digits
CREATE TABLE numbers (id int PRIMARY KEY, j jsonb);
SELECT feed_capture('numbers', 'changes');
INSERT INTO numbers SELECT 1, jsonb_agg('1e131071'::numeric) FROM generate_series(1, 2000);
UPDATE numbers SET j = '[1]';
SELECT * FROM news();
DROP TABLE numbers;

-- COPY FREEZE hides that its rows are this transaction's
CREATE TABLE frozen (id int PRIMARY KEY, v int);
CREATE FUNCTION add_one() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	UPDATE frozen SET v = v + 1 WHERE id = NEW.id;
	RETURN NULL;
END $$;
CREATE TRIGGER "A first" AFTER INSERT ON frozen FOR EACH ROW EXECUTE FUNCTION add_one();
SELECT feed_capture('frozen', 'changes');
BEGIN;
TRUNCATE frozen;
COPY frozen FROM stdin WITH (FREEZE);
1	1
2	2
\.
COMMIT;
SELECT op, key, "row", old FROM news();
DROP TABLE frozen;

-- Another row gets the key of one that a trigger deletes after its update
CREATE TABLE replaced (id int PRIMARY KEY, v text);
CREATE FUNCTION replace() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	DELETE FROM replaced WHERE id = NEW.id;
	INSERT INTO replaced VALUES (NEW.id, 'new');
	RETURN NULL;
END $$;
CREATE TRIGGER "A first" AFTER UPDATE ON replaced FOR EACH ROW EXECUTE FUNCTION replace();
SELECT feed_capture('replaced', 'changes');
INSERT INTO replaced VALUES (4, 'a');
UPDATE replaced SET v = 'c';
SELECT op, key, "row" FROM news();
DROP TABLE replaced;

-- A feed whose columns cannot be stored out of line
CREATE TABLE wide (id int PRIMARY KEY, t text);
SELECT feed_capture('wide', 'changes');
ALTER TABLE changes ALTER COLUMN "row" SET STORAGE PLAIN;
INSERT INTO wide VALUES (1, repeat('x', 10000));
SELECT count(*) FROM changes;
SELECT guard, problem, cure FROM feed_check('changes');
SELECT feed_repair('changes');
SELECT feed_begin_history('changes') IS NOT NULL AS begun;
INSERT INTO wide VALUES (2, repeat('x', 10000));
SELECT op, key, length("row") FROM (SELECT op, key, "row"::text FROM changes) c;
DROP TABLE wide;

DELETE FROM changes;

-- A partition that was captured by itself, into a feed of the same name
CREATE SCHEMA elsewhere;
SELECT feed_create_changes('elsewhere.changes');
CREATE TABLE whole (id int PRIMARY KEY, v text) PARTITION BY LIST (id);
CREATE TABLE part (id int PRIMARY KEY, v text);
SELECT feed_capture('part', 'changes', old => false);
ALTER TRIGGER "RI_feedpub_changes" ON part RENAME TO "A renamed";
SELECT feed_capture('whole', 'elsewhere.changes');
ALTER TABLE whole ATTACH PARTITION part FOR VALUES IN (1, 2);
CREATE TABLE rest PARTITION OF whole DEFAULT;
INSERT INTO whole VALUES (1, 'a'), (3, 'b');
UPDATE whole SET v = v || 'c', id = id + 1;
UPDATE whole SET id = id + 10 WHERE id = 2;
UPDATE whole SET id = 1 WHERE id = 12;


SELECT relation, op, key, old_key, "row", old FROM changes ORDER BY feed_pos;
SELECT relation, op, key, old_key, "row", old FROM elsewhere.changes ORDER BY feed_pos;
TRUNCATE part;
SELECT op, relation, key FROM changes WHERE op IN ('truncate', 'delete') ORDER BY feed_pos;
SELECT op, relation, key FROM elsewhere.changes WHERE op IN ('truncate', 'delete') ORDER BY feed_pos;
SELECT guard, problem FROM feed_check('changes') UNION ALL SELECT guard, problem FROM feed_check('elsewhere.changes');
ALTER TABLE part DISABLE TRIGGER "RI_feedpub_changes";
SELECT guard, problem FROM feed_check('changes') UNION ALL SELECT guard, problem FROM feed_check('elsewhere.changes');
DROP TABLE whole;
DELETE FROM changes;
DROP SCHEMA elsewhere CASCADE;


-- Of what cannot all be JSON, the rest is written
CREATE TYPE mood AS ENUM ('good', 'lost');
CREATE TABLE moods (id int PRIMARY KEY, m mood);
SELECT feed_capture('moods', 'changes');
INSERT INTO moods VALUES (1, 'lost'), (2, 'good');
DELETE FROM pg_enum WHERE enumtypid = 'mood'::regtype AND enumlabel = 'lost';
SELECT count(*) FROM news();
UPDATE moods SET m = 'good', id = 3 WHERE id = 1;
SELECT op, key, "row", old, regexp_replace(error, 'enum: \d+', 'enum: N') AS error FROM news();
DROP TABLE moods;
-- A trigger that was disabled and enabled by hand: what came between is missing
CREATE TABLE off (id int PRIMARY KEY);
CREATE TABLE on_off (id int PRIMARY KEY) PARTITION BY LIST (id);
CREATE TABLE on_off_1 PARTITION OF on_off DEFAULT;
SELECT feed_capture('off', 'changes'), feed_capture('on_off', 'changes');
CALL feed_publish('changes');
INSERT INTO off VALUES (1);
SELECT count(*) FROM news();
CREATE FUNCTION after(ddl text, statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	result text;
BEGIN
	EXECUTE ddl;
	EXECUTE statement;
	SELECT concat_ws(', ', CASE count(*) WHEN 0 THEN 'no entry' ELSE 'an entry' END,
		CASE WHEN EXISTS (SELECT FROM feedpub._lost_change WHERE feed = 'changes'::regclass) THEN 'noted' END,
		(SELECT string_agg(substring(problem, '^.*?(?: is disabled| does not fire| is unlogged)'), ', ') FROM feed_check('changes') WHERE guard IN ('trigger', 'persistence'))) INTO result FROM changes;
	RAISE '%', result;
EXCEPTION WHEN raise_exception THEN
	RETURN SQLERRM;
END $$;
SELECT ddl, statement, after(ddl, statement) FROM (VALUES
	('SELECT'), ('ALTER TABLE off DISABLE TRIGGER ALL'), ('ALTER TABLE off DISABLE TRIGGER ALL; ALTER TABLE off ENABLE TRIGGER ALL'),
	('ALTER TABLE off DISABLE TRIGGER ALL; ALTER TABLE off ENABLE ALWAYS TRIGGER "RI_feedpub_changes"')) d (ddl),
	(VALUES ('INSERT INTO off VALUES (2)'), ('TRUNCATE off')) s (statement);
SELECT ddl, after(ddl, 'INSERT INTO on_off VALUES (2)') FROM (VALUES ('SELECT'), ('ALTER TABLE on_off_1 DISABLE TRIGGER ALL; ALTER TABLE on_off_1 ENABLE TRIGGER ALL')) d (ddl);
SELECT ddl, after(ddl, 'INSERT INTO off VALUES (2)') FROM (VALUES
	('ALTER TABLE changes SET UNLOGGED; ALTER SEQUENCE changes_feed_pos_seq SET LOGGED'), ('ALTER SEQUENCE changes_feed_pos_seq SET UNLOGGED')) d (ddl);
ALTER TABLE changes SET UNLOGGED;
\set VERBOSITY terse
SELECT count(*) FROM feed_read(NULL::changes, '', 10);
\set VERBOSITY default
SELECT feed_repair('changes');
SELECT guard, problem FROM feed_check('changes');
SELECT op FROM feed_read(NULL::changes, '', 10);

-- a dump has the names of columns, so a rename before it is a loss after the restore
CREATE TABLE listed (id int PRIMARY KEY, v text);
SELECT feed_capture('listed', 'changes', columns => '{v}');
ALTER TABLE listed RENAME v TO w;
INSERT INTO listed VALUES (1, 'numbers');
CALL feed_publish('changes');
SELECT (entry).row FROM feed_read(NULL::changes, '', 10) WHERE (entry).relation = 'hostile.listed';
UPDATE feedpub._capture SET numbers_of = 0 WHERE relation = 'listed'::regclass;
ALTER TABLE listed ALTER w SET STATISTICS 10;
INSERT INTO listed VALUES (2, 'names');
\set VERBOSITY terse
SELECT count(*) FROM feed_read(NULL::changes, '', 10);
\set VERBOSITY default

RESET search_path;
DROP SCHEMA hostile CASCADE;
