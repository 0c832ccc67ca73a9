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

RESET search_path;
DROP SCHEMA hostile CASCADE;
