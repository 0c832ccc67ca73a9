-- The initial snapshot: the rows that were in a table before it became a feed,
-- read from the table itself, page by page, while they change.
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

--
-- An empty table: nothing, and a cursor after the initial snapshot
--
CREATE TABLE :odd (id int PRIMARY KEY, v text, pad text);
ALTER TABLE :odd ALTER pad SET STORAGE plain;
SELECT feed_attach(:'odd');
SELECT feed_wait(:'odd', '', '0') AS from_the_beginning, feed_wait(:'odd', feed_head(:'odd'), '0') AS from_the_head;
SELECT op, entry, feedpub._cursor_compare(cursor, feed_head(:'odd')) = 0 AS head FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 10);
SELECT page -> 'entries' AS entries, feedpub._cursor_compare(page ->> 'cursor', feed_head(:'odd')) = 0 AS head, page -> 'more' AS more FROM feed_page(:'odd', '', 10) page;
SELECT count(*) FROM feed_read(NULL::"Odd ""Name"", with a comma", feed_head(:'odd'), 10);
SELECT feed_detach(:'odd');

--
-- Ten rows, two a page of the table; read in pages of each size
--
INSERT INTO :odd SELECT i, 'old', repeat('x', 3500) FROM generate_series(1, 10) i;
SELECT feed_attach(:'odd');
-- The ids that a reader gets, page by page, from a cursor on: "*" when stamped, "." for an end.  Cursors grow, but where the initial snapshot begins again.
CREATE FUNCTION pages(max_rows int, after text DEFAULT '') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	pages text[];
	page text;
	next text;
BEGIN
	FOR i IN 1..100 LOOP
		EXECUTE $q$ SELECT string_agg(CASE op WHEN 'end' THEN '.' WHEN 'upsert' THEN (entry).id || CASE WHEN (entry).feed_pos IS NULL THEN '' ELSE '*' END
				WHEN 'truncate' THEN op ELSE op || ' ' || (entry).id END, ' ' ORDER BY n), (array_agg(cursor ORDER BY n DESC))[1]
			FROM feed_read(NULL::"Odd ""Name"", with a comma", $1, $2) WITH ORDINALITY r (cursor, op, entry, moment, n) $q$ INTO page, next USING after, max_rows;
		EXIT WHEN page IS NULL;
		IF next <= after COLLATE "C" AND substr(next, 26, 6) = substr(after, 26, 6) OR feed_page('"Odd ""Name"", with a comma"', after, max_rows) ->> 'cursor' < next COLLATE "C" THEN
			RAISE 'cursor % after %', next, after;
		END IF;
		pages := pages || page;
		after := next;
	END LOOP;
	RETURN array_to_string(pages, ' | ');
END $$;
SELECT max_rows, pages(max_rows) FROM unnest('{1,2,3,9,10,11,1000}'::int[]) max_rows;
-- Each row's cursor is one to go on from, and they sort.
CREATE TABLE point AS SELECT row_number() OVER () AS n, cursor, (entry).id FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 1000) WHERE op = 'upsert';
SELECT array_agg(n ORDER BY cursor COLLATE "C") AS order FROM point;
SELECT n, pages(4, cursor) FROM point WHERE n IN (1, 2, 9, 10);
SELECT bool_and(feed_wait(:'odd', cursor, '0')) AS something_after, bool_and(length(cursor) = 64) AS length FROM point;
SELECT page -> 'entries' -> 0 -> 'op' AS op, page -> 'entries' -> 0 -> 'key' AS key, json_object_keys(page -> 'entries' -> 0 -> 'row') AS columns, page -> 'more' AS more FROM feed_page(:'odd', '', 10) page;
-- xid order has stamped rows only.
SELECT count(*) FROM feed_fetch(NULL::"Odd ""Name"", with a comma", '0', 0, 100);

--
-- Rows that change between two pages: before the reader, and after it.  Each comes again, stamped, with its last version.
--
SELECT cursor AS middle FROM point WHERE n = 5 \gset
BEGIN;
UPDATE :odd SET v = 'new' WHERE id IN (1, 8);
DELETE FROM :odd WHERE id IN (2, 9);
INSERT INTO :odd VALUES (11, 'new');
-- (not before it is committed and published, of course)
SELECT pages(3, :'middle');
ROLLBACK;
SELECT pages(3, :'middle');
UPDATE :odd SET v = 'new' WHERE id IN (1, 8);
DELETE FROM :odd WHERE id IN (2, 9);
INSERT INTO :odd VALUES (11, 'new');
SELECT pages(3, :'middle');
CALL feed_publish(:'odd');
SELECT pages(3, :'middle');
SELECT pages(1);
SELECT id, v FROM feed_fetch(NULL::"Odd ""Name"", with a comma", '0', 0, 100);
-- From the cursor after the initial snapshot on, there are batches only.
SELECT cursor AS after_it FROM feed_read(NULL::"Odd ""Name"", with a comma", :'middle', 4) WHERE (entry).feed_pos IS NULL ORDER BY cursor DESC LIMIT 1 \gset
SELECT pages(1000, :'after_it');
SELECT pages(1000, feed_head(:'odd')) AS nothing;
-- A cursor in the reader's past stays one.
SELECT pages(1000, cursor) FROM point WHERE n = 9;

--
-- If the table is rewritten, the initial snapshot begins again; if it is only
-- vacuumed, it does not.
--
VACUUM :odd;
SELECT pages(1000, :'middle');
VACUUM FULL :odd;
SELECT pages(3, :'middle');
SELECT cursor AS middle FROM feed_read(NULL::"Odd ""Name"", with a comma", :'middle', 3) OFFSET 2 \gset
SELECT pages(1000, :'middle');
CLUSTER :odd USING "Odd ""Name"", with a comma_pkey";
SELECT pages(1000, :'middle');
SELECT cursor AS middle FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 1) \gset
ALTER TABLE :odd ALTER v TYPE varchar(99) USING v || '';
SELECT pages(1000, :'middle');
-- A consumer that is in a batch is left alone by that.
SELECT cursor AS stamped FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 7) OFFSET 6 \gset
SELECT pages(1000, :'stamped');
ALTER TABLE :odd ALTER v TYPE text USING v || '';
SELECT pages(1000, :'stamped');
SELECT cursor AS middle FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 1) \gset
TRUNCATE :odd;
SELECT pages(1000, :'middle');
CALL feed_publish(:'odd');
SELECT pages(1000, :'middle');

--
-- All rows stamped, of many pages: passed in bounded steps, each with a cursor
--
SELECT feed_detach(:'odd');
INSERT INTO :odd SELECT i, 'old' FROM generate_series(1, 25000) i;
SELECT feed_attach(:'odd');
UPDATE :odd SET v = 'new';
CALL feed_publish(:'odd');
VACUUM :odd;
CREATE FUNCTION walk(OUT ends int, OUT first_row int) LANGUAGE plpgsql AS $$
DECLARE
	r record;
	next text := '';
BEGIN
	ends := 0;
	LOOP
		SELECT * INTO STRICT r FROM feed_read(NULL::"Odd ""Name"", with a comma", next, 1);
		next := r.cursor;
		first_row := (r.entry).id;
		EXIT WHEN r.op = 'upsert';
		ends := ends + 1;
	END LOOP;
END $$;
SELECT ends BETWEEN 1 AND 5 AS in_steps, first_row FROM walk();
-- One row of the initial snapshot at the end of many pages is found
INSERT INTO :odd VALUES (25001, 'last');
SELECT feed_detach(:'odd');
DELETE FROM :odd WHERE id < 25001;
SELECT feed_attach(:'odd');
SELECT pages(1);
SELECT feed_detach(:'odd');

-- All rows of a table of more pages than are looked at in two turns
TRUNCATE :odd;
INSERT INTO :odd SELECT i, 'old', repeat('x', 7000) FROM generate_series(1, 130) i;
SELECT feed_attach(:'odd');
SELECT count(*), count(DISTINCT (entry).id) AS ids FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 1000) WHERE op = 'upsert';
SELECT feed_detach(:'odd');

--
-- Readers under row security, and with rights on columns
--
TRUNCATE :odd;
INSERT INTO :odd SELECT i, 'old', repeat('x', 3500) FROM generate_series(1, 10) i;
SELECT feed_attach(:'odd');
UPDATE :odd SET v = 'new' WHERE id = 4;
UPDATE :odd SET v = 'new' WHERE id = 3;
CALL feed_publish(:'odd');
CREATE ROLE regress_feedpub_reader;
GRANT SELECT ON :odd TO regress_feedpub_reader;
ALTER TABLE :odd ENABLE ROW LEVEL SECURITY;
CREATE POLICY even ON :odd USING (id % 2 = 0);
SET ROLE regress_feedpub_reader;
-- (The last position of the batch is that of a delete in the feed that this table
-- was before, so the way to the batch's end is one page more.)
SELECT max_rows, pages(max_rows) FROM unnest('{1,3,1000}'::int[]) max_rows;
SELECT e -> 'key' AS key, e -> 'row' -> 'v' AS v FROM json_array_elements(feed_page(:'odd', '', 100) -> 'entries') e;
SELECT op, left(cursor, 25) = left(feed_head(:'odd'), 25) AS head FROM feed_read(NULL::"Odd ""Name"", with a comma", (feed_page(:'odd', '', 100) ->> 'cursor'), 100) WHERE op = 'end';
RESET ROLE;
DROP POLICY even ON :odd;
CREATE POLICY none ON :odd USING (false);
SET ROLE regress_feedpub_reader;
SELECT pages(3);
RESET ROLE;
DROP POLICY none ON :odd;
ALTER TABLE :odd DISABLE ROW LEVEL SECURITY;
REVOKE SELECT ON :odd FROM regress_feedpub_reader;
GRANT SELECT (id, v) ON :odd TO regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
\set VERBOSITY terse
SELECT feed_page(:'odd', '', 1);
RESET ROLE;
REVOKE SELECT (id, v) ON :odd FROM regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
SELECT feed_head(:'odd');
\echo :SQLSTATE
\set VERBOSITY default
RESET ROLE;
DROP FUNCTION pages, walk;
DROP TABLE :odd, point;
DROP ROLE regress_feedpub_reader;
