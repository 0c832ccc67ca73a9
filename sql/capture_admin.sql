-- Capturing tables into change feeds: what is made, what is refused, who may
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;

-- The triggers of captures, with partitions.
CREATE VIEW captures_triggers AS
	SELECT t.tgrelid::regclass AS "table", t.tgname, p.proname AS function, d.refobjid::regclass AS feed,
		t.tgenabled AS enabled, t.tgparentid <> 0 AS clone
	FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
	LEFT JOIN pg_depend d ON d.classid = 'pg_trigger'::regclass AND d.objid = t.oid
		AND d.refclassid = 'pg_class'::regclass AND d.refobjid <> t.tgrelid
	WHERE p.proname LIKE '\_capture%' ORDER BY t.tgrelid::regclass::text, t.tgname;

SELECT feed_create_changes('changes');
CREATE TABLE orders (a int, id int PRIMARY KEY, b text, "c ""d" text, other int NOT NULL UNIQUE);
SELECT feed_capture('orders', 'changes');
SELECT relation, feed, key, key_attnums, columns, column_attnums, old, numbers_of = 'orders'::regclass AS of_it FROM feedpub._capture;
SELECT * FROM captures_triggers;
SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgname LIKE 'RI\_feedpub%' ORDER BY tgname;
-- it fires after foreign keys' and before others
CREATE TABLE lines (id int REFERENCES orders);
CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER "S" AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION nothing();
SELECT regexp_replace(tgname, '[0-9]+', 'N') AS name FROM pg_trigger WHERE tgrelid = 'orders'::regclass ORDER BY tgname COLLATE "C";
INSERT INTO orders SELECT n, n, 'b', 'c', n FROM generate_series(1, 10) n;
DROP TABLE lines;

-- a second feed, another key, some columns, no old values
CREATE SCHEMA "Odd, Schema";
SELECT feed_create_changes('"Odd, Schema"."the ""changes"" of a feed whose name is as long as a name can be"');
SELECT feed_capture('orders', '"Odd, Schema"."the ""changes"" of a feed whose name is as long as a name can be"',
	columns => '{"c \"d", a}', key => 'orders_other_key', old => false);
SELECT relation, feed, key, key_attnums, columns, column_attnums, old FROM feedpub._capture ORDER BY feed;
SELECT * FROM captures_triggers;
SELECT feed_create_changes('"Odd, Schema".changes');
SELECT feed_capture('orders', '"Odd, Schema".changes');
SELECT tgname FROM captures_triggers WHERE feed = '"Odd, Schema".changes'::regclass;
-- a feed whose trigger would have the name of the other
SELECT feed_create_changes('truncate');
SELECT feed_capture('orders', 'truncate');
SELECT tgname, function FROM captures_triggers WHERE tgname LIKE '%truncate%';

-- the other trigger stays for the other captures, and goes with the last
SELECT feed_uncapture('orders', 'truncate');
SELECT feed_uncapture('orders', 'changes');
SELECT feed_uncapture('orders', 'changes');
SELECT count(*) FROM captures_triggers;
SELECT feed_drop('"Odd, Schema"."the ""changes"" of a feed whose name is as long as a name can be"');
SELECT feed_drop('truncate');
SELECT "table", tgname, feed FROM captures_triggers;
SELECT relation, feed FROM feedpub._capture;
SELECT feed_drop('"Odd, Schema".changes');
SELECT * FROM captures_triggers;
SELECT count(*) FROM feedpub._capture;

-- partitions: the triggers of rows are clones, those of TRUNCATE are not
CREATE TABLE parted (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (100);
CREATE TABLE parted_2 PARTITION OF parted FOR VALUES FROM (100) TO (200) PARTITION BY RANGE (id);
CREATE TABLE parted_2_1 PARTITION OF parted_2 FOR VALUES FROM (100) TO (150);
SELECT feed_create_changes('others');
SELECT feed_capture('parted_1', 'others');
SELECT feed_capture('parted', 'changes');
CREATE TABLE parted_2_2 PARTITION OF parted_2 FOR VALUES FROM (150) TO (200);
SELECT "table", tgname, feed, enabled, clone FROM captures_triggers;
-- each change once
SELECT feed_capture('parted_2_1', 'changes');
SELECT feed_capture('parted_1', 'changes');
SELECT feed_capture('parted', 'others');
SELECT feed_capture('parted_2', 'others');
-- a partition that is captured by itself keeps its trigger
SELECT feed_uncapture('parted', 'changes');
SELECT "table", tgname, feed, enabled, clone FROM captures_triggers;
-- a table that is captured cannot become a partition of one that is, in the same feed
CREATE TABLE parted_3 (LIKE parted INCLUDING ALL);
SELECT feed_capture('parted_3', 'changes');
SELECT feed_capture('parted', 'changes');
SELECT feed_capture('parted_3', 'others');
ALTER TABLE parted ATTACH PARTITION parted_3 FOR VALUES FROM (300) TO (400);
SELECT feed_uncapture('parted_3', 'changes');
ALTER TABLE parted ATTACH PARTITION parted_3 FOR VALUES FROM (300) TO (400);
SELECT feed_uncapture('parted_3', 'others');
SELECT "table", tgname, feed, enabled, clone FROM captures_triggers WHERE "table" = 'parted_3'::regclass;
-- one that is detached is not captured any more, and can come back
ALTER TABLE parted DETACH PARTITION parted_3;
SELECT "table", tgname FROM captures_triggers WHERE "table" = 'parted_3'::regclass;
INSERT INTO parted_3 VALUES (300);
TRUNCATE parted_3;
ALTER TABLE parted ATTACH PARTITION parted_3 FOR VALUES FROM (300) TO (400);
INSERT INTO parted VALUES (301, 'a');
ALTER TABLE parted DETACH PARTITION parted_3;
TRUNCATE parted_3;
SELECT op, relation, key FROM changes ORDER BY feed_pos;
SELECT * FROM feed_check('changes');
DROP TABLE parted, parted_3;
SELECT feed_drop('others');
SELECT count(*) FROM captures_triggers;

-- what cannot be captured
CREATE FUNCTION try(sql text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	detail text;
	hint text;
BEGIN
	EXECUTE sql;
	RETURN 'done';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
	RETURN concat_ws(E'\n', SQLSTATE || ' ' || regexp_replace(SQLERRM, 'OID [0-9]+', 'OID N'), NULLIF(detail, ''), NULLIF(hint, ''));
END
$$;
CREATE TABLE no_key (id int);
CREATE TABLE keys (id int NOT NULL, n int, g int GENERATED ALWAYS AS (id) STORED NOT NULL, d int NOT NULL UNIQUE DEFERRABLE);
CREATE UNIQUE INDEX keys_partial ON keys (id) WHERE id > 0;
CREATE UNIQUE INDEX keys_null ON keys (n);
CREATE UNIQUE INDEX keys_expression ON keys (abs(id));
CREATE UNIQUE INDEX keys_generated ON keys (g);
CREATE INDEX keys_plain ON keys (id);
CREATE TABLE deferred (id int PRIMARY KEY DEFERRABLE);
CREATE VIEW a_view AS SELECT 1 AS id;
CREATE MATERIALIZED VIEW a_matview AS SELECT 1 AS id;
CREATE FOREIGN DATA WRAPPER nothing;
CREATE SERVER nothing FOREIGN DATA WRAPPER nothing;
CREATE FOREIGN TABLE a_foreign (id int) SERVER nothing;
CREATE TEMP TABLE a_temp (id int PRIMARY KEY);
CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY);
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent);
CREATE TABLE roots (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE UNLOGGED TABLE leaf PARTITION OF roots FOR VALUES FROM (0) TO (100);
CREATE ACCESS METHOD heap_too TYPE TABLE HANDLER heap_tableam_handler;
CREATE TABLE not_heap (id int PRIMARY KEY) USING heap_too;
SELECT feed_create_changes('others');
SELECT feed_create('box');
CREATE TABLE fed (id int PRIMARY KEY);
SELECT feed_attach('fed');
SELECT c.sql, try(c.sql) FROM (VALUES
	($$SELECT feed_capture('no_key', 'changes')$$),
	($$SELECT feed_capture('deferred', 'changes')$$),
	($$SELECT feed_capture('keys', 'changes', key => 'keys_partial')$$),
	($$SELECT feed_capture('keys', 'changes', key => 'keys_null')$$),
	($$SELECT feed_capture('keys', 'changes', key => 'keys_expression')$$),
	($$SELECT feed_capture('keys', 'changes', key => 'keys_generated')$$),
	($$SELECT feed_capture('keys', 'changes', key => 'keys_plain')$$),
	($$SELECT feed_capture('keys', 'changes', key => 'keys_d_key')$$),
	($$SELECT feed_capture('keys', 'changes', key => 'orders_pkey')$$),
	($$SELECT feed_capture('keys', 'changes', key => 'keys')$$),
	($$SELECT feed_capture('keys', 'changes', key => 1::regclass)$$),
	($$SELECT feed_capture('a_view', 'changes')$$),
	($$SELECT feed_capture('a_matview', 'changes')$$),
	($$SELECT feed_capture('a_foreign', 'changes')$$),
	($$SELECT feed_capture('a_temp', 'changes')$$),
	($$SELECT feed_capture('unlogged', 'changes')$$),
	($$SELECT feed_capture('parent', 'changes')$$),
	($$SELECT feed_capture('child', 'changes')$$),
	($$SELECT feed_capture('roots', 'changes')$$),
	($$SELECT feed_capture('not_heap', 'changes')$$),
	($$SELECT feed_capture('orders_pkey', 'changes')$$),
	($$SELECT feed_capture('pg_class', 'changes')$$),
	($$SELECT feed_capture('feedpub._feed', 'changes')$$),
	($$SELECT feed_capture('changes', 'changes')$$),
	($$SELECT feed_capture('others', 'changes')$$),
	($$SELECT feed_capture('box', 'changes')$$),
	($$SELECT feed_capture('orders', 'orders')$$),
	($$SELECT feed_capture('orders', 'box')$$),
	($$SELECT feed_capture('orders', 'fed')$$),
	($$SELECT feed_capture('orders', 'feedpub.feeds')$$),
	($$SELECT feed_capture(1::regclass, 'changes')$$),
	($$SELECT feed_capture('orders', 1::regclass)$$),
	($$SELECT feed_capture('orders', 'changes', columns => '{nothing}')$$),
	($$SELECT feed_capture('orders', 'changes', columns => '{xmin}')$$),
	($$SELECT feed_capture('orders', 'changes', columns => '{b,NULL}')$$),
	($$SELECT feed_capture('orders', 'changes', columns => '{b,a,b}')$$),
	($$SELECT feed_capture('orders', 'changes', columns => '{}')$$),
	($$SELECT feed_capture('orders', 'changes')$$),
	($$SELECT feed_capture('orders', 'changes', old => false)$$),
	($$SELECT feed_capture('fed', 'changes')$$),
	($$SELECT feed_uncapture('keys', 'changes')$$),
	($$SELECT feed_uncapture('changes', 'orders')$$),
	($$SELECT feed_uncapture(1::regclass, 'changes')$$),
	($$SELECT feed_attach('changes')$$)) c (sql);
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT try($$SELECT feed_capture('orders', 'changes')$$);
COMMIT;

-- rights: of feed_capture() ownership of both, of feed_uncapture() of one
CREATE ROLE regress_feedpub_table_owner;
CREATE ROLE regress_feedpub_feed_owner;
GRANT CREATE ON SCHEMA public TO regress_feedpub_table_owner, regress_feedpub_feed_owner;
SET ROLE regress_feedpub_table_owner;
CREATE TABLE theirs (id int PRIMARY KEY);
CREATE TABLE theirs_parted (id int PRIMARY KEY) PARTITION BY RANGE (id);
SET ROLE regress_feedpub_feed_owner;
SELECT feed_create_changes('of_others');
SELECT try($$SELECT feed_capture('theirs', 'of_others')$$);
SET ROLE regress_feedpub_table_owner;
SELECT try($$SELECT feed_capture('theirs', 'of_others')$$);
RESET ROLE;
SELECT feed_capture('theirs', 'of_others');
SET ROLE regress_feedpub_feed_owner;
SELECT feed_uncapture('theirs', 'of_others');
RESET ROLE;
SELECT feed_capture('theirs', 'of_others');
SET ROLE regress_feedpub_table_owner;
SELECT feed_uncapture('theirs', 'of_others');
RESET ROLE;
SELECT count(*) FROM captures_triggers WHERE "table" = 'theirs'::regclass;
-- who creates a partition needs no right on the feed
SELECT feed_capture('theirs_parted', 'of_others');
SET ROLE regress_feedpub_table_owner;
CREATE TABLE theirs_1 PARTITION OF theirs_parted FOR VALUES FROM (0) TO (10);
RESET ROLE;
SELECT "table", tgname, enabled, clone FROM captures_triggers WHERE "table"::text LIKE 'theirs%';
-- the feed's owner drops it, with the triggers of tables of others
SELECT feed_capture('theirs', 'of_others');
SET ROLE regress_feedpub_feed_owner;
SELECT feed_drop('of_others');
RESET ROLE;
SELECT count(*) FROM captures_triggers WHERE "table"::text LIKE 'theirs%';

-- dropping either side by hand
DROP TABLE orders;
SELECT feed_capture('fed', 'others');
DROP TABLE others;
SELECT "table", tgname FROM captures_triggers WHERE tgname <> 'zz_feedpub_capture_truncate';
-- rows of what was dropped are forgotten by the next
CREATE TABLE again (id int PRIMARY KEY);
SELECT feed_uncapture('fed', 'changes');
SELECT feed_create_changes('others');
SELECT feed_capture('again', 'others');
SELECT relation, feed FROM feedpub._capture;
SELECT feed_detach('others');
SELECT count(*) FROM captures_triggers;

-- what feed_check() says, and feed_repair() mends
CREATE TABLE checked (id int PRIMARY KEY, a int, b int) PARTITION BY RANGE (id);
CREATE TABLE checked_1 PARTITION OF checked FOR VALUES FROM (0) TO (100);
SELECT feed_create_changes('checked_feed');
SELECT feed_capture('checked', 'checked_feed', columns => '{a,b}');
SELECT feed_capture('again', 'checked_feed');
SELECT * FROM feedpub.captures WHERE feed = 'checked_feed'::regclass ORDER BY relation::text;
SELECT * FROM feed_check('checked_feed');
-- a partition that comes later has no trigger for TRUNCATE before feed_repair()
CREATE TABLE checked_2 PARTITION OF checked FOR VALUES FROM (100) TO (200);
SELECT state FROM feedpub.captures WHERE relation = 'checked'::regclass;
SELECT * FROM feed_check('checked_feed');
SELECT feed_repair('checked_feed');
SELECT * FROM feed_check('checked_feed');
-- columns that were renamed
ALTER TABLE checked RENAME COLUMN a TO renamed;
ALTER TABLE checked RENAME COLUMN id TO number;
SELECT key, columns, state FROM feedpub.captures WHERE relation = 'checked'::regclass;
SELECT * FROM feed_check('checked_feed');
SELECT feed_repair('checked_feed');
SELECT key, key_attnums, columns, column_attnums FROM feedpub._capture WHERE relation = 'checked'::regclass;
-- as after a restore: other numbers, and no dependency
UPDATE feedpub._capture SET numbers_of = 0, key_attnums = '{7}', column_attnums = '{8,9}' WHERE relation = 'checked'::regclass;
DELETE FROM pg_depend WHERE classid = 'pg_trigger'::regclass AND refobjid = 'checked_feed'::regclass
	AND objid IN (SELECT oid FROM pg_trigger WHERE tgname = 'RI_feedpub_checked_feed');
SELECT * FROM feed_check('checked_feed');
SELECT feed_repair('checked_feed');
SELECT * FROM feed_check('checked_feed');
SELECT key, key_attnums, columns, column_attnums, numbers_of = relation AS holds FROM feedpub._capture WHERE relation = 'checked'::regclass;
SELECT "table", feed FROM captures_triggers WHERE feed = 'checked_feed'::regclass;
-- all listed columns are gone: the key is written still
ALTER TABLE checked DROP COLUMN renamed, DROP COLUMN b;
SELECT columns, state FROM feedpub.captures WHERE relation = 'checked'::regclass;
SELECT feed_repair('checked_feed');
SELECT columns, column_attnums FROM feedpub._capture WHERE relation = 'checked'::regclass;
-- triggers that are off or gone: changes may be lost
ALTER TABLE again DISABLE TRIGGER ALL;
ALTER TABLE checked_1 ENABLE TRIGGER "RI_feedpub_checked_feed";
DROP TRIGGER zz_feedpub_capture_truncate ON checked;
SELECT relation, state FROM feedpub.captures WHERE feed = 'checked_feed'::regclass ORDER BY relation::text;
SELECT guard, problem, cure FROM feed_check('checked_feed');
SELECT feed_repair('checked_feed');
DROP TRIGGER "RI_feedpub_checked_feed" ON checked;
SELECT guard, problem FROM feed_check('checked_feed');
SELECT feed_repair('checked_feed');
SELECT guard, problem, cure FROM feed_check('checked_feed');
SELECT feed_begin_history('checked_feed');
SELECT * FROM feed_check('checked_feed');
SELECT "table", tgname, enabled FROM captures_triggers WHERE "table"::text ~ 'checked|again';
-- a table that a crash empties, and a partition
ALTER TABLE again SET UNLOGGED;
ALTER TABLE checked_1 SET UNLOGGED;
SELECT * FROM feed_check('checked_feed');
SELECT feed_repair('checked_feed');
ALTER TABLE again SET LOGGED;
ALTER TABLE checked_1 SET LOGGED;
SELECT * FROM feed_check('checked_feed');
-- nothing makes the key unique
CREATE TABLE widened (id int PRIMARY KEY, tenant int NOT NULL, n int, UNIQUE (tenant, id));
SELECT feed_capture('widened', 'checked_feed');
ALTER TABLE widened DROP CONSTRAINT widened_pkey;
SELECT state FROM feedpub.captures WHERE relation = 'widened'::regclass;
SELECT guard, problem, cure FROM feed_check('checked_feed');
SELECT feed_repair('checked_feed');
ALTER TABLE widened ADD PRIMARY KEY (id, tenant);
CREATE UNIQUE INDEX widened_part ON widened (id) WHERE id > 0;
CREATE UNIQUE INDEX widened_expression ON widened ((id + 1));
ALTER TABLE widened ADD CONSTRAINT widened_late UNIQUE (id) DEFERRABLE;
SELECT state FROM feedpub.captures WHERE relation = 'widened'::regclass;
CREATE UNIQUE INDEX widened_id ON widened (id) INCLUDE (n);
SELECT state FROM feedpub.captures WHERE relation = 'widened'::regclass;
ALTER TABLE widened DROP CONSTRAINT widened_pkey, DROP CONSTRAINT widened_tenant_id_key, ALTER COLUMN id DROP NOT NULL;
SELECT state FROM feedpub.captures WHERE relation = 'widened'::regclass;
ALTER TABLE widened ALTER COLUMN id SET NOT NULL;
SELECT state FROM feedpub.captures WHERE relation = 'widened'::regclass;
SELECT * FROM feed_check('checked_feed');
SELECT feed_uncapture('widened', 'checked_feed');
DROP TABLE widened;
-- the key is gone
ALTER TABLE again DROP COLUMN id;
SELECT relation, state FROM feedpub.captures WHERE feed = 'checked_feed'::regclass ORDER BY relation::text;
SELECT guard, problem, cure FROM feed_check('checked_feed');
SELECT feed_uncapture('again', 'checked_feed');
-- the owner of the feed does not mend tables of others
SET ROLE regress_feedpub_feed_owner;
SELECT feed_create_changes('of_others');
RESET ROLE;
SELECT feed_capture('theirs', 'of_others');
ALTER TABLE theirs DISABLE TRIGGER USER;
SET ROLE regress_feedpub_feed_owner;
SELECT relation, state FROM feedpub.captures WHERE feed = 'of_others'::regclass;
SELECT feed_repair('of_others');
RESET ROLE;
SELECT feed_repair('of_others');
-- what writing into the feed needs
CREATE FUNCTION never() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
ALTER TABLE checked_feed DROP COLUMN statement, ALTER COLUMN key SET NOT NULL, ALTER COLUMN "row" TYPE jsonb, ADD CHECK (op <> ''),
	ADD COLUMN more int NOT NULL, ADD UNIQUE (more);
CREATE INDEX checked_expression ON checked_feed (lower(op));
CREATE INDEX checked_partial ON checked_feed (op) WHERE op = 'a';
CREATE INDEX checked_plain ON checked_feed (relation);
CREATE TRIGGER another BEFORE INSERT ON checked_feed FOR EACH ROW EXECUTE FUNCTION never();
SELECT * FROM feed_check('checked_feed');
SELECT feed_repair('checked_feed');
SELECT guard, problem FROM feed_check('checked_feed');
-- leaving: nothing of captures stays
CREATE TABLE left_over (id int PRIMARY KEY);
SELECT feed_create_changes('dropped');
SELECT feed_capture('left_over', 'dropped');
DROP TABLE dropped;
SELECT tgname FROM captures_triggers WHERE "table" = 'left_over'::regclass;
BEGIN;
SELECT count(*) FROM feed_detach_all() WHERE problem IS NOT NULL;
SELECT * FROM captures_triggers;
SELECT count(*) FROM feedpub._capture c JOIN pg_class f ON f.oid = c.feed;
DROP EXTENSION feedpub;
ROLLBACK;
SELECT feed_drop('checked_feed');
SELECT feed_drop('of_others');
DROP TABLE checked, left_over;
DROP FUNCTION never;

DROP VIEW captures_triggers;
SELECT feed_detach('fed');
SELECT feed_drop('box');
SELECT feed_drop('changes');
DROP OWNED BY regress_feedpub_table_owner, regress_feedpub_feed_owner;
DROP ROLE regress_feedpub_table_owner, regress_feedpub_feed_owner;
DROP TABLE again, fed, not_heap, roots, parent, child, unlogged, deferred, keys, no_key, others;
DROP ACCESS METHOD heap_too;
DROP FOREIGN DATA WRAPPER nothing CASCADE;
DROP VIEW a_view;
DROP MATERIALIZED VIEW a_matview;
DROP FUNCTION try, nothing;
DROP SCHEMA "Odd, Schema";
