-- Deletes in table feeds: the key of each row that is gone, at its position in the
-- order, unless a row of that key is alive.
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
CREATE TABLE :odd (id int PRIMARY KEY, v text NOT NULL DEFAULT 'x');
INSERT INTO :odd SELECT generate_series(1, 5);
SELECT feed_attach(:'odd');
CREATE TABLE head (cursor text);
INSERT INTO head SELECT feed_head(:'odd');
-- Publishes, and shows what came since it was called last
CREATE PROCEDURE came(INOUT entries text) LANGUAGE plpgsql AS $$
BEGIN
	COMMIT;
	CALL feed_publish('"Odd ""Name"", with a comma"');
	SELECT string_agg(op || coalesce(' ' || (entry).id, '') || coalesce(' ' || (entry).v, ''), ', ' ORDER BY cursor COLLATE "C") INTO entries
		FROM feed_read(NULL::"Odd ""Name"", with a comma", (SELECT cursor FROM head), 100) WHERE op <> 'end';
	UPDATE head SET cursor = feed_head('"Odd ""Name"", with a comma"');
END $$;

--
-- One row: one of the initial snapshot; a stamped one; one that came and went
--
DELETE FROM :odd WHERE id = 1;
CALL came('');
INSERT INTO :odd VALUES (6);
CALL came('');
DELETE FROM :odd WHERE id = 6;
CALL came('');
BEGIN;
INSERT INTO :odd VALUES (6);
DELETE FROM :odd WHERE id = 6;
COMMIT;
CALL came('');
-- Rolled back, or of no row: nothing
BEGIN;
DELETE FROM :odd;
ROLLBACK;
BEGIN;
SAVEPOINT s;
DELETE FROM :odd;
ROLLBACK TO s;
COMMIT;
DELETE FROM :odd WHERE id > 100;
CALL came('');
-- The entry has the key and nothing else, in both formats.
DELETE FROM :odd WHERE id = 2;
CALL feed_publish(:'odd');
SELECT op, entry FROM feed_read(NULL::"Odd ""Name"", with a comma", (SELECT cursor FROM head), 10);
SELECT steady(feed_page(:'odd', (SELECT cursor FROM head), 10) -> 'entries') AS entries;
CALL came('');

--
-- The key exists again: what a reader sees is the row, not its delete.
--
BEGIN;
DELETE FROM :odd WHERE id = 3;
INSERT INTO :odd VALUES (3, 'again');
COMMIT;
CALL came('');
DELETE FROM :odd WHERE id = 3;
INSERT INTO :odd VALUES (3, 'and again');
CALL came('');
-- In two batches: a reader that comes between them gets the delete.
SELECT cursor FROM head \gset
DELETE FROM :odd WHERE id = 3;
CALL came('');
INSERT INTO :odd VALUES (3, 'third');
CALL came('');
-- A reader that comes later gets the row only, and an end after what was passed.
SELECT op, (entry).id, (entry).v FROM feed_read(NULL::"Odd ""Name"", with a comma", :'cursor', 10);
SELECT op, feedpub._cursor_compare(cursor, feed_head(:'odd')) = 0 AS head FROM feed_read(NULL::"Odd ""Name"", with a comma", :'cursor', 1);
DELETE FROM :odd WHERE id = 3;
CALL feed_publish(:'odd');
-- And deleted once more: both tombstones, which does no harm.
SELECT op, (entry).id, (entry).v FROM feed_read(NULL::"Odd ""Name"", with a comma", :'cursor', 10);
CALL came('');

--
-- A key that is changed
--
INSERT INTO :odd VALUES (7, 'seven'), (8, 'eight');
CALL came('');
UPDATE :odd SET id = 9 WHERE id = 7;
CALL came('');
UPDATE :odd SET id = id, v = 'nine' WHERE id = 9;
CALL came('');
-- Two rows swap their keys: both keys exist
BEGIN;
UPDATE :odd SET id = -8 WHERE id = 8;
UPDATE :odd SET id = 8 WHERE id = 9;
UPDATE :odd SET id = 9 WHERE id = -8;
COMMIT;
CALL came('');

--
-- TRUNCATE
--
TRUNCATE :odd;
CALL came('');
BEGIN;
INSERT INTO :odd VALUES (1, 'before');
TRUNCATE :odd;
INSERT INTO :odd VALUES (2, 'after');
COMMIT;
CALL came('');
TRUNCATE :odd;
TRUNCATE :odd;
INSERT INTO :odd VALUES (3, 'after both');
CALL feed_publish(:'odd');
SELECT steady(feed_page(:'odd', (SELECT cursor FROM head), 10) -> 'entries') AS entries;
CALL came('');
BEGIN;
TRUNCATE :odd;
ROLLBACK;
CREATE TABLE child (id int REFERENCES :odd);
TRUNCATE :odd CASCADE;
DROP TABLE child;
CALL came('');

--
-- Page by page: rows, deletes and truncates, each with a cursor to go on from
--
SELECT cursor FROM head \gset
INSERT INTO :odd SELECT i, 'new' FROM generate_series(1, 5) i;
DELETE FROM :odd WHERE id IN (1, 3);
CALL feed_publish(:'odd');
TRUNCATE :odd;
INSERT INTO :odd SELECT i, 'newer' FROM generate_series(4, 6) i;
DELETE FROM :odd WHERE id = 4;
CALL feed_publish(:'odd');
CREATE TEMP VIEW whole AS SELECT row_number() OVER () AS n, r.* FROM feed_read(NULL::"Odd ""Name"", with a comma", (SELECT cursor FROM head), 100) r;
SELECT op, (entry).id, (entry).v FROM whole;
WITH RECURSIVE pages AS (
	SELECT cursor, op, entry, 1 AS page FROM feed_read(NULL::"Odd ""Name"", with a comma", (SELECT cursor FROM head), 1)
	UNION ALL SELECT r.cursor, r.op, r.entry, page + 1 FROM pages p, feed_read(NULL::"Odd ""Name"", with a comma", p.cursor, 1) r WHERE page < 100)
SELECT count(*), count(*) FILTER (WHERE left(w.cursor, 25) = left(p.cursor, 25) AND w.op = p.op AND w.entry IS NOT DISTINCT FROM p.entry) AS the_same FROM pages p JOIN whole w ON w.n = p.page;
DROP VIEW whole;

--
-- Readers under row security get no deletes, and their pages end after them.
--
UPDATE head SET cursor = feed_head(:'odd');
CREATE ROLE regress_feedpub_reader;
GRANT SELECT ON :odd, head TO regress_feedpub_reader;
DELETE FROM :odd WHERE id = 5;
CALL feed_publish(:'odd');
SET ROLE regress_feedpub_reader;
SELECT op, (entry).id FROM feed_read(NULL::"Odd ""Name"", with a comma", (SELECT cursor FROM head), 10);
RESET ROLE;
ALTER TABLE :odd ENABLE ROW LEVEL SECURITY;
CREATE POLICY even ON :odd USING (id % 2 = 0);
TRUNCATE :odd;
INSERT INTO :odd VALUES (21, 'hidden'), (22, 'shown');
CALL feed_publish(:'odd');
SET ROLE regress_feedpub_reader;
SELECT op, (entry).id FROM feed_read(NULL::"Odd ""Name"", with a comma", (SELECT cursor FROM head), 10);
SELECT steady(feed_page(:'odd', (SELECT cursor FROM head), 10) -> 'entries') AS entries;
SELECT * FROM feedpub._tombstone;
RESET ROLE;
CALL came('');
DELETE FROM :odd WHERE id = 22;
CALL feed_publish(:'odd');
SET ROLE regress_feedpub_reader;
SELECT op, left(cursor, 25) = left(feed_head(:'odd'), 25) AS head FROM feed_read(NULL::"Odd ""Name"", with a comma", (SELECT cursor FROM head), 10);
RESET ROLE;
CALL came('');
DROP POLICY even ON :odd;
ALTER TABLE :odd DISABLE ROW LEVEL SECURITY;

--
-- Detached, they are gone; with deletes => false there are none.
--
-- Positions are not assigned twice, though their sequence is the table's and
-- restarts with it: tombstones have some of them.
--
TRUNCATE :odd;
TRUNCATE :odd RESTART IDENTITY;
INSERT INTO :odd VALUES (20, 'new'), (21, 'new');
CALL came('');
SELECT * FROM feed_check(:'odd');
--
-- A cursor of one life of the feed is not of another.
--
SELECT count(*) > 0 AS some FROM feedpub._tombstone;
SELECT feed_detach(:'odd');
SELECT count(*) FROM feedpub._tombstone;
SELECT feed_attach(:'odd') AS attached;
SELECT feed_head(:'odd') AS head, (SELECT cursor FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 1)) AS row \gset
SELECT feed_detach(:'odd');
UPDATE :odd SET v = 'between';
SELECT feed_attach(:'odd') AS attached;
\set VERBOSITY terse
SELECT feed_page(:'odd', :'head', 1);
SELECT feed_page(:'odd', :'row', 1);
\set VERBOSITY default
SET client_min_messages = warning;
SELECT feed_detach(:'odd');
RESET client_min_messages;
SELECT feed_attach(:'odd', deletes => false);
SELECT tgname FROM pg_trigger WHERE tgrelid = :'odd'::regclass AND NOT tgisinternal ORDER BY tgname;
UPDATE head SET cursor = feed_head(:'odd');
INSERT INTO :odd VALUES (30, 'kept'), (31, 'deleted');
CALL came('');
DELETE FROM :odd WHERE id = 31;
UPDATE :odd SET id = 32 WHERE id = 30;
CALL came('');
TRUNCATE :odd;
CALL came('');
SELECT count(*) FROM feedpub._tombstone;
SELECT * FROM feed_check(:'odd');
-- Dropped, what it left goes with the next feed that is made.
SET client_min_messages = warning;
SELECT feed_detach(:'odd');
RESET client_min_messages;
INSERT INTO :odd VALUES (1);
SELECT feed_attach(:'odd');
DELETE FROM :odd;
SELECT count(*) FROM feedpub._tombstone;
-- Without the columns of its key a delete cannot be published: readers are
-- refused (lost_changes).
ALTER TABLE :odd DROP COLUMN id;
INSERT INTO :odd VALUES ('keyless');
DELETE FROM :odd;
\echo :SQLSTATE
DROP PROCEDURE came;
DROP TABLE :odd, head;
SELECT feed_create('outbox');
SELECT count(*) FROM feedpub._tombstone;
SELECT feed_drop('outbox');
DROP ROLE regress_feedpub_reader;
DROP FUNCTION steady;
