-- Reading in xid order: feed_fetch().
--
-- A page holds the rows after a cursor (after_xid, after_pos), at most
-- "limit" of them, ordered by (feed_xid, feed_pos), of transactions that are
-- older than every running one.  The stamp of its last row is the next cursor.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
-- No worker, here and in the tests that follow: its transactions would hold
-- back pages in xid order.
SELECT feed_stop_worker() IS NOT NULL AS stopped;
DO $$
BEGIN
	WHILE EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'feedpub worker' AND datname = current_database()) LOOP
		PERFORM pg_stat_clear_snapshot();
	END LOOP;
END $$;
SET timezone = 'UTC';
SELECT feed_create('outbox'), feed_create('"Odd ""Name"", with a comma"', 'text');

--
-- Empty
--
SELECT * FROM feed_fetch('0', 0, 100);
SELECT * FROM feed_fetch(NULL::"Odd ""Name"", with a comma", '0', 0, 100);

--
-- The default feed, and any other by a NULL of its row type
--
INSERT INTO outbox (message_type, message_key, data) VALUES ('a', 'k1', '{"n": 1}'), ('b', NULL, '{"n": 2}');
INSERT INTO outbox (message_type, data, scheduled, publication_id, message_id) VALUES ('c', '{"n": 3}', '2022-02-22 22:22:22Z', 'app', 'm 3');
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('odd', 'some text');
SELECT feed_pos, message_type, message_key, data FROM feed_fetch('0', 0, 100);
SELECT publication_id, message_id, scheduled FROM feed_fetch('0', 2, 100) WHERE message_type = 'c';
SELECT feed_pos, message_type, data FROM feed_fetch(NULL::"Odd ""Name"", with a comma", '0', 0, 100);
-- Arguments by name
SELECT message_type FROM feed_fetch(after_xid => '0', after_pos => 0, "limit" => 2);
SELECT message_type FROM feed_fetch(feed => NULL::outbox, after_xid => '0', after_pos => 0, "limit" => 2);
-- The row that names the feed need not be NULL; its values are not used.
SELECT p.message_type FROM outbox o, feed_fetch(o, o.feed_xid, o.feed_pos, 1) p WHERE o.message_type = 'a';
-- In a select list, whole rows
SELECT (feed_fetch(NULL::outbox, '0', 0, 2)).message_type;
SELECT (f).message_type, (f).data FROM (SELECT feed_fetch('0', 0, 100) f) s;
-- The rows are the table's own, in every column.
SELECT count(*) FROM (TABLE outbox EXCEPT SELECT * FROM feed_fetch('0', 0, 100)) d;
SELECT count(*) FROM (SELECT * FROM feed_fetch(NULL::outbox, '0', 0, 100) EXCEPT TABLE outbox) d;

--
-- Following: the next page begins after the last row of this one.
--
SELECT feed_xid, feed_pos, message_type FROM feed_fetch('0', 0, 2) ORDER BY feed_xid DESC, feed_pos DESC LIMIT 1 \gset
\echo :message_type
SELECT feed_xid, feed_pos, message_type FROM feed_fetch(:'feed_xid', :feed_pos, 2) \gset
\echo :message_type
-- At the end: nothing, again and again.
SELECT count(*) FROM feed_fetch(:'feed_xid', :feed_pos, 2);
SELECT count(*) FROM feed_fetch(:'feed_xid', :feed_pos, 2);
-- Until something is committed.
INSERT INTO outbox (message_type, data) VALUES ('d', '{"n": 4}');
SELECT message_type FROM feed_fetch(:'feed_xid', :feed_pos, 2);
-- A cursor need not be that of a row: positions of a transaction that are not
-- there, transactions that wrote nothing here.
SELECT message_type FROM feed_fetch(:'feed_xid', 9223372036854775807, 100);
SELECT message_type FROM feed_fetch('3', 17, 1);
DELETE FROM outbox WHERE feed_pos = :feed_pos;
SELECT message_type FROM feed_fetch(:'feed_xid', :feed_pos, 100);
-- Deleted rows are not delivered.
SELECT message_type FROM feed_fetch('0', 0, 100);

--
-- Every page size gives the same sequence of rows, wherever the boundaries
-- between pages fall: here amid transactions of 1 to 7 rows.
--
TRUNCATE outbox;
DO $$
BEGIN
	FOR i IN 1..40 LOOP
		INSERT INTO outbox (message_type, data) SELECT 'page', to_jsonb(array[i, j]) FROM generate_series(1, 1 + i % 7) j;
		COMMIT;
	END LOOP;
END $$;
CREATE FUNCTION pages(page_size int) RETURNS TABLE (pages int, entries jsonb[]) LANGUAGE plpgsql AS $$
DECLARE
	cursor_xid xid8 := '0';
	cursor_pos bigint := 0;
	r record;
	n int;
BEGIN
	pages := 0;
	entries := '{}';
	LOOP
		ASSERT pages < 1000, 'the end must be reached';
		n := 0;
		FOR r IN SELECT * FROM feed_fetch(cursor_xid, cursor_pos, page_size) LOOP
			ASSERT (r.feed_xid, r.feed_pos) > (cursor_xid, cursor_pos), 'rows must ascend';
			cursor_xid := r.feed_xid;
			cursor_pos := r.feed_pos;
			entries := entries || r.data;
			n := n + 1;
		END LOOP;
		EXIT WHEN n = 0;
		pages := pages + 1;
		ASSERT n <= page_size, 'a page must not be larger than its limit';
	END LOOP;
	RETURN NEXT;
END $$;
SELECT count(*) AS rows, count(DISTINCT feed_xid) AS transactions FROM outbox;
SELECT count(*) AS sizes, count(DISTINCT entries) AS sequences,
       bool_and(pages = ceil((SELECT count(*) FROM outbox) / size::numeric)) AS full_pages,
       bool_and(entries = (SELECT array_agg(data ORDER BY feed_xid, feed_pos) FROM outbox)) AS in_order
  FROM generate_series(1, 165) size, pages(size);
-- From every row as cursor: what comes after it
SELECT count(*), bool_and(array(SELECT data FROM feed_fetch(o.feed_xid, o.feed_pos, 1000)) = o.after_it) AS right
  FROM (SELECT feed_xid, feed_pos,
               coalesce(array_agg(data) OVER (ORDER BY feed_xid, feed_pos ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING), '{}') AS after_it
          FROM outbox) o;
DROP FUNCTION pages;

-- The limit at its edges
SELECT count(*) FROM feed_fetch('0', 0, 1);
SELECT count(*) FROM feed_fetch('0', 0, 2147483647);
-- feedpub.max_page_rows caps it, silently, and only a superuser sets that.
SHOW feedpub.max_page_rows;
SET feedpub.max_page_rows = 10;
SELECT count(*) FROM feed_fetch('0', 0, 9);
SELECT count(*) FROM feed_fetch('0', 0, 10);
SELECT count(*) FROM feed_fetch('0', 0, 11);
SELECT count(*) FROM feed_fetch(NULL::outbox, '0', 0, 2147483647);
SET feedpub.max_page_rows = 1;
SELECT count(*) FROM feed_fetch('0', 0, 100);
SET feedpub.max_page_rows = 0;
SET feedpub.max_page_rows = 1000001;
SET feedpub.max_page_rows = 1000000;
SELECT count(*) FROM feed_fetch('0', 0, 1000000);
RESET feedpub.max_page_rows;
SET feedpub.no_such_setting = 1;
CREATE ROLE regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
SET feedpub.max_page_rows = 1000000;
\echo :SQLSTATE
RESET ROLE;
DROP ROLE regress_feedpub_reader;
TRUNCATE outbox;

--
-- One's own uncommitted rows are not fetched; others are.
--
INSERT INTO outbox (message_type, data) VALUES ('before', '1');
BEGIN;
SELECT message_type FROM feed_fetch('0', 0, 100);
INSERT INTO outbox (message_type, data) VALUES ('own', '2');
SELECT message_type FROM feed_fetch('0', 0, 100);
SAVEPOINT s;
INSERT INTO outbox (message_type, data) VALUES ('own, rolled back', '3');
ROLLBACK TO s;
DELETE FROM outbox WHERE message_type = 'before';
SELECT message_type FROM feed_fetch('0', 0, 100);
ROLLBACK TO s;
SELECT message_type FROM feed_fetch('0', 0, 100);
COMMIT;
SELECT message_type FROM feed_fetch('0', 0, 100);
-- So it is in all isolation levels.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT message_type FROM feed_fetch('0', 0, 100);
INSERT INTO outbox (message_type, data) VALUES ('own, repeatable read', '4');
SELECT message_type FROM feed_fetch('0', 0, 100);
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
INSERT INTO outbox (message_type, data) VALUES ('own, serializable', '5');
SELECT message_type FROM feed_fetch('0', 0, 100);
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE;
SELECT message_type FROM feed_fetch('0', 0, 100);
COMMIT;
-- A transaction that only reads needs no xid.
BEGIN READ ONLY;
SELECT message_type FROM feed_fetch('0', 0, 100);
SELECT message_type FROM feed_fetch(NULL::"Odd ""Name"", with a comma", '0', 0, 100);
SELECT pg_current_xact_id_if_assigned() IS NULL AS read_only;
COMMIT;
-- A prepared transaction is one that runs: it holds back its own rows and
-- those of every younger one, whatever their positions are.
BEGIN;
INSERT INTO outbox (message_type, data) VALUES ('prepared', '6');
PREPARE TRANSACTION 'regress_feedpub';
INSERT INTO outbox (message_type, data) VALUES ('committed meanwhile', '7');
SELECT message_type FROM outbox ORDER BY feed_pos DESC LIMIT 1;
SELECT message_type, data FROM feed_fetch('0', 0, 100) ORDER BY data DESC LIMIT 1;
COMMIT PREPARED 'regress_feedpub';
SELECT message_type, data FROM feed_fetch('0', 0, 100) WHERE data >= '5';

--
-- In queries of all kinds
--
-- LIMIT, ORDER BY and WHERE outside
SELECT data FROM feed_fetch('0', 0, 100) LIMIT 2;
SELECT data FROM feed_fetch('0', 0, 100) LIMIT 0;
SELECT data FROM feed_fetch('0', 0, 3) ORDER BY feed_pos DESC;
SELECT data FROM feed_fetch('0', 0, 100) WHERE data > '6';
SELECT data, row_number FROM feed_fetch('0', 0, 3) WITH ORDINALITY AS f(feed_xid, feed_pos, publication_id, message_id, message_type, message_key, data, scheduled, headers, row_number);
SELECT EXISTS (SELECT FROM feed_fetch('0', 0, 1));
SELECT count(*) FROM feed_fetch('0', 0, 2) a, feed_fetch('0', 0, 3) b;
SELECT a.data, b.data FROM ROWS FROM (feed_fetch(NULL::outbox, '0', 0, 1), feed_fetch(NULL::outbox, '0', 0, 2)) AS ab(ax, ap, apu, aid, aty, ak, adata, asch, ah, bx, bp, bpu, bid, bty, bk, bdata, bsch, bh), LATERAL (SELECT adata AS data) a, LATERAL (SELECT bdata AS data) b;
-- Joins, LATERAL: a page for each consumer
CREATE TABLE consumer (name text, after_xid xid8 DEFAULT '0', after_pos bigint DEFAULT 0);
INSERT INTO consumer (name) VALUES ('new');
INSERT INTO consumer SELECT 'half way', feed_xid, feed_pos FROM outbox WHERE data = '4';
INSERT INTO consumer SELECT 'at the end', feed_xid, feed_pos FROM outbox ORDER BY feed_xid DESC, feed_pos DESC LIMIT 1;
SELECT name, count(data), array_agg(data ORDER BY p.feed_xid, p.feed_pos) AS page
  FROM consumer c LEFT JOIN LATERAL feed_fetch(c.after_xid, c.after_pos, 2) p ON true
 GROUP BY name ORDER BY name;
-- A page and the new cursor in one statement
WITH page AS (SELECT p.* FROM consumer c, feed_fetch(c.after_xid, c.after_pos, 2) p WHERE name = 'half way'),
moved AS (UPDATE consumer SET (after_xid, after_pos) = (SELECT feed_xid, feed_pos FROM page ORDER BY feed_xid DESC, feed_pos DESC LIMIT 1)
	WHERE name = 'half way' AND EXISTS (SELECT FROM page) RETURNING 1)
SELECT data FROM page;
SELECT data FROM consumer c, feed_fetch(c.after_xid, c.after_pos, 2) p WHERE name = 'half way';
DROP TABLE consumer;
-- Cursors: a page is read when the cursor is first used, with its snapshot.
BEGIN;
DECLARE c SCROLL CURSOR FOR SELECT data FROM feed_fetch('0', 0, 100);
FETCH 2 FROM c;
FETCH ABSOLUTE 1 FROM c;
FETCH LAST FROM c;
FETCH BACKWARD 1 FROM c;
MOVE ABSOLUTE 0 IN c;
FETCH 1 FROM c;
CLOSE c;
-- One that is declared before the caller's rows were written, and read after
DECLARE d CURSOR FOR SELECT data FROM feed_fetch('0', 0, 100);
INSERT INTO outbox (message_type, data) VALUES ('own', '8');
FETCH ALL FROM d;
ROLLBACK;
BEGIN;
DECLARE h CURSOR WITH HOLD FOR SELECT data FROM feed_fetch(NULL::outbox, '0', 0, 3);
COMMIT;
FETCH ALL FROM h;
CLOSE h;
-- Prepared statements
PREPARE page (xid8, bigint, int) AS SELECT data FROM feed_fetch($1, $2, $3);
EXECUTE page ('0', 0, 2);
SET plan_cache_mode = force_generic_plan;
EXECUTE page ('0', 0, 3);
INSERT INTO outbox (message_type, data) VALUES ('next', '9');
SELECT feed_xid, feed_pos FROM outbox WHERE data = '7' \gset
EXECUTE page (:'feed_xid', :feed_pos, 3);
RESET plan_cache_mode;
DEALLOCATE page;
-- A loop in PL/pgSQL that commits page by page
CREATE TABLE done (n int, data jsonb);
DO $$
DECLARE
	x xid8 := '0';
	p bigint := 0;
	r record;
	n int := 0;
BEGIN
	LOOP
		n := n + 1;
		ASSERT n < 100, 'the end must be reached';
		FOR r IN SELECT * FROM feed_fetch(x, p, 3) LOOP
			INSERT INTO done VALUES (n, r.data);
			x := r.feed_xid;
			p := r.feed_pos;
		END LOOP;
		EXIT WHEN NOT FOUND;
		COMMIT;
	END LOOP;
END $$;
SELECT n, array_agg(data ORDER BY data) FROM done GROUP BY n ORDER BY n;
DROP TABLE done;
-- By the feed's name, when that is known only at run time
DO $$
DECLARE
	feed regclass := '"Odd ""Name"", with a comma"';
	n int;
BEGIN
	EXECUTE format('SELECT count(*) FROM feed_fetch(NULL::%s, $1, $2, $3)', feed) INTO n USING '0'::xid8, 0, 100;
	RAISE NOTICE '% has % row', feed, n;
END $$;
-- In a function, a view, CREATE TABLE AS, COPY
CREATE FUNCTION newest() RETURNS jsonb LANGUAGE sql AS 'SELECT data FROM feed_fetch(''0'', 0, 100) ORDER BY feed_xid DESC, feed_pos DESC LIMIT 1';
SELECT newest();
DROP FUNCTION newest;
CREATE VIEW first_two AS SELECT message_type, data FROM feed_fetch('0', 0, 2);
SELECT * FROM first_two;
DROP VIEW first_two;
CREATE TABLE kept AS SELECT * FROM feed_fetch(NULL::outbox, '0', 0, 100);
SELECT count(*) FROM kept;
DROP TABLE kept;
COPY (SELECT data FROM feed_fetch('0', 0, 2)) TO stdout;

-- A page that does not fit into work_mem goes to disk, and can be walked both
-- ways all the same.
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) SELECT 'many', repeat(i::text, 50) FROM generate_series(1, 5000) i;
SET work_mem = '64kB';
BEGIN;
DECLARE c SCROLL CURSOR FOR SELECT feed_pos, left(data, 8) AS data FROM feed_fetch(NULL::"Odd ""Name"", with a comma", '0', 0, 10000);
FETCH LAST FROM c;
FETCH ABSOLUTE 4 FROM c;
FETCH RELATIVE 3000 FROM c;
FETCH PRIOR FROM c;
COMMIT;
SELECT count(*), min(feed_pos), max(feed_pos) FROM feed_fetch(NULL::"Odd ""Name"", with a comma", '0', 0, 10000);
RESET work_mem;
DELETE FROM "Odd ""Name"", with a comma" WHERE message_type = 'many';

-- Rows are on disk before they are delivered, whatever their writer asked for.
SET synchronous_commit = off;
INSERT INTO outbox (message_type, data) VALUES ('asynchronous', '10') RETURNING pg_current_wal_insert_lsn() AS lsn \gset
SELECT message_type FROM feed_fetch('0', 0, 100) WHERE data = '10';
SELECT pg_current_wal_flush_lsn() >= :'lsn' AS flushed;
INSERT INTO outbox (message_type, data) VALUES ('asynchronous', '11') RETURNING pg_current_wal_insert_lsn() AS lsn \gset
SELECT after_pos FROM feed_xid_head('outbox');
SELECT pg_current_wal_flush_lsn() >= :'lsn' AS flushed;
RESET synchronous_commit;
DELETE FROM outbox WHERE message_type = 'asynchronous';

--
-- Columns that were added, generated, dropped
--
TRUNCATE outbox;
INSERT INTO outbox (message_type, data) VALUES ('old', '1');
PREPARE whole AS SELECT to_jsonb(f) - 'feed_xid' - 'message_id' - 'scheduled' AS entry FROM feed_fetch(NULL::outbox, '0', 0, 100) f;
EXECUTE whole;
ALTER TABLE outbox ADD COLUMN plain int;
ALTER TABLE outbox ADD COLUMN filled text NOT NULL DEFAULT 'of old rows too';
ALTER TABLE outbox ADD COLUMN "Odd ""Column""" numeric DEFAULT 1.50;
INSERT INTO outbox (message_type, data, plain, filled) VALUES ('new', '2', 7, 'given');
-- Rows that were there have the default, without having been rewritten.
SELECT message_type, plain, filled, "Odd ""Column""" FROM feed_fetch(NULL::outbox, '0', 0, 100);
SELECT count(*) FROM (SELECT * FROM feed_fetch(NULL::outbox, '0', 0, 100) EXCEPT TABLE outbox) d;
-- A statement that was prepared before goes on.
EXECUTE whole;
DEALLOCATE whole;
-- The default feed's row type stays what it is.
SELECT to_jsonb(f) - 'feed_xid' - 'message_id' - 'scheduled' AS entry FROM feed_fetch('0', 0, 100) f;
-- Generated columns: stored ones, and (18 has them) those computed when read
ALTER TABLE outbox ADD COLUMN doubled int GENERATED ALWAYS AS ((data::int) * 2) STORED;
DO $$
BEGIN
	EXECUTE 'ALTER TABLE outbox ADD COLUMN tripled int GENERATED ALWAYS AS ((data::int) * 3) '
		|| CASE WHEN current_setting('server_version_num')::int >= 180000 THEN 'VIRTUAL' ELSE 'STORED' END;
END $$;
INSERT INTO outbox (message_type, data) VALUES ('newest', '3');
SELECT message_type, doubled, tripled FROM feed_fetch(NULL::outbox, '0', 0, 100);
SELECT message_type, data FROM feed_fetch('0', 0, 100);
SELECT count(*) FROM (SELECT * FROM feed_fetch(NULL::outbox, '0', 0, 100) EXCEPT TABLE outbox) d;
SELECT message_type, tripled FROM feed_fetch(NULL::outbox, '0', 0, 2);
ALTER TABLE outbox DROP COLUMN tripled;
ALTER TABLE outbox DROP COLUMN filled;
ALTER TABLE outbox DROP COLUMN doubled;
INSERT INTO outbox (message_type, data, plain) VALUES ('after the drop', '4', 8);
SELECT message_type, plain, "Odd ""Column""", data FROM feed_fetch(NULL::outbox, '0', 0, 100);
SELECT message_type, data FROM feed_fetch('0', 0, 100);
SELECT (f).message_type, (f).plain FROM (SELECT feed_fetch(NULL::outbox, '0', 0, 100) f) s;
SELECT count(*) FROM (SELECT * FROM feed_fetch(NULL::outbox, '0', 0, 100) EXCEPT TABLE outbox) d;
-- One column of the message dropped or renamed: no default feed any more, but
-- a feed.
ALTER TABLE outbox RENAME COLUMN message_key TO key;
SELECT message_type FROM feed_fetch('0', 0, 100);
\echo :SQLSTATE
SELECT message_type, key FROM feed_fetch(NULL::outbox, '0', 0, 1);
ALTER TABLE outbox RENAME COLUMN key TO message_key;
SELECT message_type FROM feed_fetch('0', 0, 1);
ALTER TABLE outbox DROP COLUMN scheduled;
SELECT message_type FROM feed_fetch('0', 0, 100);
\echo :SQLSTATE
SELECT message_type, plain FROM feed_fetch(NULL::outbox, '0', 0, 1);
-- A rewrite keeps the stamps.
VACUUM FULL outbox;
SELECT feed_pos, message_type, plain FROM feed_fetch(NULL::outbox, '0', 0, 100);
CLUSTER outbox USING outbox_pkey;
SELECT feed_pos, message_type, plain FROM feed_fetch(NULL::outbox, '0', 0, 100);
-- A second index on the stamp, a rebuilt one, a new primary key
CREATE INDEX ON outbox (feed_xid, feed_pos);
REINDEX TABLE outbox;
SELECT count(*) FROM feed_fetch(NULL::outbox, '0', 0, 100);
ALTER TABLE outbox DROP CONSTRAINT outbox_pkey;
SELECT count(*) FROM feed_fetch(NULL::outbox, '0', 0, 100);
CREATE UNIQUE INDEX CONCURRENTLY "Odd ""Index""" ON outbox (feed_xid, feed_pos);
ALTER TABLE outbox ADD PRIMARY KEY USING INDEX "Odd ""Index""";
DROP INDEX outbox_feed_xid_feed_pos_idx;
SELECT count(*) FROM feed_fetch(NULL::outbox, '0', 0, 100);
REINDEX INDEX CONCURRENTLY "Odd ""Index""";
SELECT count(*) FROM feed_fetch(NULL::outbox, '0', 0, 100);
REINDEX TABLE CONCURRENTLY outbox;
SELECT count(*) FROM feed_fetch(NULL::outbox, '0', 0, 100);
SELECT * FROM feed_check('outbox');
SELECT feed_drop('outbox');

--
-- Large payloads, compressed or out of line, come back whole.
--
TRUNCATE "Odd ""Name"", with a comma";
CREATE TABLE payload AS
	SELECT i, CASE WHEN i % 2 = 0 THEN repeat('compressible ', 100000)
	               ELSE (SELECT string_agg(md5(i::text || j::text), '') FROM generate_series(1, 40000) j) END AS t
	  FROM generate_series(1, 4) i;
INSERT INTO "Odd ""Name"", with a comma" (message_type, message_key, data) SELECT 'large', i, t FROM payload ORDER BY i;
SELECT message_key, length(data), data = t AS same FROM feed_fetch(NULL::"Odd ""Name"", with a comma", '0', 0, 100)
  JOIN payload ON message_key = i::text ORDER BY i;
SELECT (f).message_key, md5((f).data) = md5(t) AS same
  FROM (SELECT feed_fetch(NULL::"Odd ""Name"", with a comma", '0', 0, 100) f) s JOIN payload ON (f).message_key = i::text ORDER BY i;
-- Kept by a consumer in a table, after the feed's own rows are gone
CREATE TABLE kept AS SELECT f FROM feed_fetch(NULL::"Odd ""Name"", with a comma", '0', 0, 100) f;
DELETE FROM "Odd ""Name"", with a comma";
VACUUM "Odd ""Name"", with a comma";
SELECT (f).message_key, md5((f).data) = md5(t) AS same FROM kept LEFT JOIN payload ON (f).message_key = i::text ORDER BY 1;
DROP TABLE kept, payload;

SELECT feed_drop('"Odd ""Name"", with a comma"');
