-- Which statements publish a row of a table feed: any INSERT, and any UPDATE
-- that changes a published column, whatever other triggers, rules of foreign
-- keys, roles and rights take part.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
-- Entries, less what differs from run to run
CREATE FUNCTION steady(j json) RETURNS json LANGUAGE sql AS $$
	SELECT regexp_replace(j::text, '"cursor": "[^"]*", |, "xid": [^,]*, "published_at": ("[^"]*"|null)', '', 'g')::json
$$;
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

--
-- The case of the posts: the last record is changed after it was consumed, and
-- with "the largest number + 1" it would get the number that the consumer has.
--
CREATE TABLE kv (ns text NOT NULL DEFAULT '', k text NOT NULL, v text NOT NULL, UNIQUE (ns, k));
SELECT feed_attach('kv', key => 'kv_ns_k_key');
INSERT INTO kv (k, v) VALUES ('fred', 'bob');
CALL feed_publish('kv');
SELECT feed_page('kv', '', 100) AS page \gset
SELECT steady(e) AS e FROM json_array_elements(:'page'::json -> 'entries') e;
UPDATE kv SET v = 'jim' WHERE k = 'fred';
CALL feed_publish('kv');
SELECT feed_page('kv', :'page'::json ->> 'cursor', 100) AS page \gset
SELECT steady(e) AS e FROM json_array_elements(:'page'::json -> 'entries') e;
-- The statement of the posts, which needs no other change
UPDATE kv SET feed_xid = NULL WHERE k = 'fred' RETURNING feed_xid = pg_current_xact_id() AS stamped;
CALL feed_publish('kv');
SELECT feed_page('kv', :'page'::json ->> 'cursor', 100) AS page \gset
SELECT steady(e) AS e FROM json_array_elements(:'page'::json -> 'entries') e;
SELECT feed_page('kv', :'page'::json ->> 'cursor', 100) -> 'entries' AS nothing_more;
SELECT feed_detach('kv');
DROP TABLE kv;

--
-- Each way to write, and what it publishes
--
CREATE TABLE :odd (id int PRIMARY KEY, v text, note text, big text);
ALTER TABLE :odd ALTER big SET STORAGE external;
INSERT INTO :odd SELECT i, 'old', NULL, repeat('x', 5000) FROM generate_series(1, 3) i;
SELECT feed_attach(:'odd', columns => '{v,big}');
CREATE TABLE head (cursor text);
INSERT INTO head SELECT feed_head(:'odd');
-- Publishes, and shows what came since it was called last: id and v of each row
CREATE PROCEDURE came(INOUT entries text) LANGUAGE plpgsql AS $$
BEGIN
	COMMIT;
	CALL feed_publish('"Odd ""Name"", with a comma"');
	SELECT string_agg(op || ' ' || (entry).id || coalesce(' ' || (entry).v, ''), ', ' ORDER BY cursor COLLATE "C") INTO entries
		FROM feed_read(NULL::"Odd ""Name"", with a comma", (SELECT cursor FROM head), 100) WHERE op <> 'end';
	UPDATE head SET cursor = feed_head('"Odd ""Name"", with a comma"');
END $$;
INSERT INTO :odd VALUES (10, 'insert'), (11, 'insert');
CALL came('');
UPDATE :odd SET v = 'update' WHERE id = 10;
CALL came('');
-- Nothing changes; only what is not published changes; a value stored apart is left, is written again
UPDATE :odd SET v = v, big = big WHERE id >= 10;
UPDATE :odd SET note = 'a note' WHERE id = 10;
CALL came('');
UPDATE :odd SET big = repeat('y', 5000) WHERE id = 10;
CALL came('');
UPDATE :odd SET note = 'another' WHERE id = 10;
CALL came('');
UPDATE :odd SET v = NULL WHERE id = 11;
CALL came('');
UPDATE :odd SET v = NULL WHERE id = 11;
CALL came('');
-- A row that was there before: any UPDATE, since it moves before or after a reader of the initial snapshot
UPDATE :odd SET note = 'moved' WHERE id = 1;
CALL came('');
UPDATE :odd SET note = 'again' WHERE id = 1;
CALL came('');
INSERT INTO :odd VALUES (10, 'conflict') ON CONFLICT DO NOTHING;
CALL came('');
INSERT INTO :odd VALUES (10, 'conflict'), (12, 'no conflict') ON CONFLICT (id) DO UPDATE SET v = excluded.v;
CALL came('');
INSERT INTO :odd VALUES (10, 'conflict') ON CONFLICT (id) DO UPDATE SET note = 'noted';
CALL came('');
MERGE INTO :odd t USING (VALUES (10), (12), (13)) s (id) ON t.id = s.id
	WHEN MATCHED AND s.id = 10 THEN UPDATE SET v = 'merged' WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, 'merged');
CALL came('');
COPY :odd (id, v) FROM stdin;
14	copied
15	copied
\.
CALL came('');
WITH moved AS (UPDATE :odd SET v = 'cte' WHERE id = 14 RETURNING id) INSERT INTO :odd SELECT 16, 'cte' FROM moved;
CALL came('');
-- Rolled back; in a savepoint; in one that is rolled back
BEGIN;
UPDATE :odd SET v = 'never';
ROLLBACK;
BEGIN;
UPDATE :odd SET v = 'before' WHERE id = 14;
SAVEPOINT s;
UPDATE :odd SET v = 'never' WHERE id IN (14, 15);
ROLLBACK TO s;
SAVEPOINT s;
UPDATE :odd SET v = 'in savepoint' WHERE id = 16;
RELEASE s;
SELECT DISTINCT feed_xid = pg_current_xact_id() AS top_level FROM :odd WHERE id IN (14, 16);
COMMIT;
CALL came('');
-- As logical replication writes: stamped all the same
SET session_replication_role = replica;
INSERT INTO :odd VALUES (17, 'replica', NULL, NULL, '5', 5);
UPDATE :odd SET v = 'replica', feed_xid = '7', feed_pos = 7 WHERE id = 14;
UPDATE :odd SET note = 'replica', feed_xid = '7', feed_pos = 7 WHERE id = 15;
DELETE FROM :odd WHERE id = 13;
RESET session_replication_role;
SELECT count(*) AS forged FROM :odd WHERE feed_xid <= '7' OR feed_pos IN (5, 7) AND id IN (14, 15, 17);
CALL came('');

--
-- The stamp cannot be written.
--
INSERT INTO :odd (id, v, feed_xid, feed_pos) VALUES (18, 'forged', '5', 1) RETURNING feed_xid = pg_current_xact_id() AS own, feed_pos > 1 AS next;
\set VERBOSITY terse
UPDATE :odd SET feed_xid = '5' WHERE id = 18;
\echo :SQLSTATE
UPDATE :odd SET feed_pos = feed_pos + 1 WHERE id = 18;
UPDATE :odd SET feed_pos = NULL WHERE id = 18;
UPDATE :odd SET v = 'x', feed_pos = 0 WHERE id = 18;
UPDATE :odd SET feed_xid = pg_current_xact_id() WHERE id = 18;
INSERT INTO :odd VALUES (18) ON CONFLICT (id) DO UPDATE SET feed_pos = 1;
\set VERBOSITY default
UPDATE :odd SET feed_xid = feed_xid, feed_pos = feed_pos WHERE id = 18;
CALL came('');
UPDATE :odd SET feed_xid = NULL WHERE id IN (2, 18);
UPDATE :odd SET feed_xid = NULL, feed_pos = NULL WHERE id = 17;
CALL came('');

--
-- Columns of names that change: rather one row too many
--
ALTER TABLE :odd RENAME v TO "v, renamed";
UPDATE :odd SET note = 'all count' WHERE id = 18;
ALTER TABLE :odd RENAME "v, renamed" TO v;
CALL came('');
UPDATE :odd SET note = 'not any more' WHERE id = 18;
CALL came('');
ALTER TABLE :odd ADD extra int DEFAULT 5;
UPDATE :odd SET extra = 6 WHERE id = 18;
CALL came('');
ALTER TABLE :odd DROP big;
UPDATE :odd SET extra = 7 WHERE id = 18;
CALL came('');

--
-- Triggers before ours and after it; those that drop the row
--
SELECT feed_detach(:'odd');
TRUNCATE :odd;
INSERT INTO :odd VALUES (1, 'old');
SELECT feed_attach(:'odd', columns => '{v}');
UPDATE head SET cursor = feed_head(:'odd');
UPDATE :odd SET feed_xid = NULL;
CALL came('');
CREATE FUNCTION change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF NEW.note = TG_NAME THEN
		NEW.v := 'by ' || TG_NAME;
	ELSIF NEW.note = 'drop by ' || TG_NAME THEN
		RETURN NULL;
	END IF;
	RETURN NEW;
END $$;
CREATE TRIGGER aa BEFORE INSERT OR UPDATE ON :odd FOR EACH ROW EXECUTE FUNCTION change();
UPDATE :odd SET note = 'nothing';
CALL came('');
UPDATE :odd SET note = 'aa';
CALL came('');
UPDATE :odd SET note = 'drop by aa', v = 'never';
INSERT INTO :odd VALUES (2, 'never', 'drop by aa');
CALL came('');
-- One that comes after ours may change anything: each UPDATE publishes.
CREATE TRIGGER zzz BEFORE INSERT OR UPDATE ON :odd FOR EACH ROW EXECUTE FUNCTION change();
UPDATE :odd SET note = 'zzz';
CALL came('');
UPDATE :odd SET note = 'nothing';
CALL came('');
INSERT INTO :odd VALUES (2, 'x', 'zzz');
CALL came('');
UPDATE :odd SET id = 3, note = 'drop by zzz' WHERE id = 2;
CALL came('');
DROP TRIGGER zzz ON :odd;
UPDATE :odd SET note = 'nothing';
CALL came('');
-- A value stored apart that other triggers leave alone is not a change.
ALTER TABLE :odd ALTER v SET STORAGE external;
UPDATE :odd SET v = repeat('x', 5000) WHERE id = 1;
SELECT feed_pos AS pos FROM :odd WHERE id = 1 \gset
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.note := 'set'; RETURN NEW; END $$;
CREATE TRIGGER bb BEFORE UPDATE ON :odd FOR EACH ROW EXECUTE FUNCTION note();
UPDATE :odd SET note = 'x' WHERE id = 1 RETURNING feed_pos = :pos AS same, note;
SELECT feed_detach(:'odd');
TRUNCATE :odd;
DROP TRIGGER aa ON :odd;
DROP TRIGGER bb ON :odd;
DROP FUNCTION change, note;

--
-- Computed columns: what they are computed from counts.
--
ALTER TABLE :odd ADD twice text GENERATED ALWAYS AS (v || v) STORED;
SELECT feed_attach(:'odd');
UPDATE head SET cursor = feed_head(:'odd');
INSERT INTO :odd VALUES (1, 'a');
UPDATE :odd SET v = 'b';
CALL came('');
SELECT feed_page(:'odd', '', 1) -> 'entries' -> 0 -> 'row';
UPDATE :odd SET v = 'b';
CALL came('');
SELECT feed_detach(:'odd');
SELECT feed_attach(:'odd', columns => '{twice}');
UPDATE head SET cursor = feed_head(:'odd');
UPDATE :odd SET v = 'c';
CALL came('');
UPDATE :odd SET v = 'd';
CALL came('');

--
-- Foreign keys that write; the columns of the key always count
--
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child (id int PRIMARY KEY, a int REFERENCES parent ON UPDATE CASCADE ON DELETE CASCADE, b int REFERENCES parent ON UPDATE CASCADE ON DELETE SET NULL);
SELECT feed_attach('child', columns => '{a,b}');
INSERT INTO parent SELECT generate_series(1, 4);
INSERT INTO child VALUES (1, 1, 3), (2, 2, 4);
CALL feed_publish('child');
SELECT feed_head('child') AS cursor \gset
UPDATE parent SET id = 10 WHERE id = 1;
DELETE FROM parent WHERE id IN (2, 3);
UPDATE child SET id = 5 WHERE id = 1;
CALL feed_publish('child');
SELECT op, (entry).id, (entry).a, (entry).b FROM feed_read(NULL::child, :'cursor', 100);
SELECT feed_detach('child');
DROP TABLE child, parent;

--
-- A writer has rights on the table and on nothing else; row security is the table's.
--
CREATE ROLE regress_feedpub_writer;
GRANT INSERT, DELETE, UPDATE (v, note), SELECT (id, v) ON :odd TO regress_feedpub_writer;
ALTER TABLE :odd ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON :odd USING (id < 100) WITH CHECK (v <> 'forbidden');
UPDATE head SET cursor = feed_head(:'odd');
SET ROLE regress_feedpub_writer;
INSERT INTO :odd VALUES (2, 'writer');
UPDATE :odd SET v = 'by writer' WHERE id = 1;
INSERT INTO :odd VALUES (3, 'writer');
DELETE FROM :odd WHERE id = 3;
\set VERBOSITY terse
UPDATE :odd SET feed_xid = NULL WHERE id = 1;
UPDATE :odd SET v = 'forbidden' WHERE id = 1;
SELECT nextval(pg_get_serial_sequence('"Odd ""Name"", with a comma"', 'feed_pos'));
SELECT count(*) FROM feedpub._tombstone;
\set VERBOSITY default
RESET ROLE;
CALL came('');
SELECT feed_detach(:'odd');
DROP TABLE :odd, head;
DROP PROCEDURE came;
DROP ROLE regress_feedpub_writer;
DROP FUNCTION steady;
