-- feed_read(): pages in published order, against their specification in plain
-- SQL: batch k holds the rows whose stamp its snapshot sees and that of batch
-- k-1 does not, by position.
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
CREATE EXTENSION dblink;
SET jit = off;
SELECT feed_create('"Odd ""Name"", with a comma"');
ALTER TABLE "Odd ""Name"", with a comma" RENAME TO model_feed;

--
-- The specification.  Only here a cursor is taken apart.
--
CREATE FUNCTION number(digits text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
	SELECT bit_or((strpos('-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz', substr(digits, i, 1)) - 1)::bigint << (6 * (length(digits) - i))) FROM generate_series(1, length(digits)) i
$$;
CREATE FUNCTION batch_of(cursor text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$ SELECT number(substr(cursor, 8, 7)) & (1::bigint << 41) - 1 $$;
CREATE FUNCTION position_of(cursor text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$ SELECT number(substr(cursor, 15, 11)) $$;
-- (removed: what the transaction itself has deleted, which its reads show as
-- before.)
CREATE TABLE removed (entry model_feed);
CREATE FUNCTION model_read(after_sync bigint, after_pos bigint, lim int)
RETURNS TABLE (sync_id bigint, pos bigint, entry model_feed)
LANGUAGE sql STABLE AS $$
	SELECT b.sync_id, t.feed_pos, t.entry
	FROM (SELECT sync_id, snapshot, lag(snapshot, 1, '1:1:') OVER (ORDER BY sync_id) AS before
		FROM feedpub._batch WHERE feed = 'model_feed'::regclass) b
	JOIN (SELECT feed_xid, feed_pos, m AS entry FROM model_feed m UNION ALL SELECT (entry).feed_xid, (entry).feed_pos, entry FROM removed) t
		ON pg_visible_in_snapshot(t.feed_xid, b.snapshot) AND NOT pg_visible_in_snapshot(t.feed_xid, b.before)
	WHERE (b.sync_id, t.feed_pos) > (after_sync, after_pos)
	ORDER BY b.sync_id, t.feed_pos
	LIMIT lim
$$;
-- The differences, for every cursor that a row has or ever had, the ends
-- before and after each batch, and several limits
CREATE TABLE known (cursor text PRIMARY KEY);
CREATE PROCEDURE note_cursors() LANGUAGE sql AS $$
	INSERT INTO known SELECT cursor FROM feed_read(NULL::model_feed, '', 10000) ON CONFLICT DO NOTHING;
	INSERT INTO known SELECT overlay(cursor PLACING p FROM 15) FROM feed_read(NULL::model_feed, '', 10000), unnest('{-----------,6zzzzzzzzzz}'::text[]) p ON CONFLICT DO NOTHING
$$;
CREATE FUNCTION compare(OUT many_cursors bool, OUT many_rows bool, OUT differences bigint) LANGUAGE sql AS $$
	WITH m AS MATERIALIZED (SELECT row_number() OVER () AS n, m.* FROM model_read(0, 0, NULL) m),
	k AS MATERIALIZED (SELECT '' AS cursor, 0 AS sync_id, 0 AS pos UNION ALL SELECT cursor, batch_of(cursor), position_of(cursor) FROM known),
	p AS MATERIALIZED (SELECT k.*, (SELECT count(*) FROM m WHERE (m.sync_id, m.pos) <= (k.sync_id, k.pos)) AS passed FROM k),
	c AS MATERIALIZED (SELECT p.cursor, lim, p.passed FROM p, unnest(array[1, 7, 10000]) lim WHERE lim < 10000 OR p.pos % 20 = 0),
	r AS MATERIALIZED (SELECT c.cursor AS after, c.lim, c.passed + row_number() OVER (PARTITION BY c.cursor, c.lim ORDER BY r.n) AS n,
			batch_of(r.cursor) AS sync_id, position_of(r.cursor) AS pos, r.entry
		FROM c, feed_read(NULL::model_feed, c.cursor, c.lim) WITH ORDINALITY r (cursor, op, entry, moment, n) WHERE r.op <> 'end')
	SELECT (SELECT count(*) > 300 FROM known), (SELECT count(*) > 1000 FROM r),
		(SELECT count(*) FROM r LEFT JOIN m USING (n) WHERE (r.sync_id, r.pos, r.entry) IS DISTINCT FROM (m.sync_id, m.pos, m.entry))
		+ (SELECT count(*) FROM (SELECT cursor, lim, least(lim, (SELECT count(*) FROM m) - passed) AS n FROM c) c
			LEFT JOIN (SELECT after, lim, count(*) AS n FROM r GROUP BY after, lim) r ON r.after = c.cursor AND r.lim = c.lim
			WHERE c.n <> coalesce(r.n, 0))
$$;
-- The same by pages of all sizes, each from the end of the one before: one
-- sequence.  A page that stops early may be empty, but its cursor goes on.
CREATE FUNCTION walk(size int) RETURNS SETOF model_feed LANGUAGE plpgsql AS $$
DECLARE
	c text := '';
	r record;
	stood boolean;
BEGIN
	LOOP
		stood := true;
		FOR r IN SELECT * FROM feed_read(NULL::model_feed, c, size) LOOP
			IF c <> '' AND r.cursor <= c COLLATE "C" THEN
				RAISE 'the cursor went back';
			END IF;
			c := r.cursor;
			stood := false;
			IF r.op = 'upsert' THEN
				RETURN NEXT r.entry;
			END IF;
		END LOOP;
		EXIT WHEN stood;
	END LOOP;
END $$;
CREATE FUNCTION walk_all(sizes int[]) RETURNS TABLE (size int, many_rows bool, differences bigint) LANGUAGE sql AS $$
	SELECT size, (SELECT count(*) > 100 FROM walk(size)),
		(SELECT count(*) FROM (SELECT row_number() OVER () AS n, feed_pos FROM walk(size)) w
			FULL JOIN (SELECT row_number() OVER () AS n, pos FROM model_read(0, 0, NULL)) m USING (n) WHERE w.feed_pos IS DISTINCT FROM m.pos)
	FROM unnest(sizes) WITH ORDINALITY AS s (size, o) ORDER BY o
$$;

--
-- Nothing yet but the head.  A page never ends with an empty cursor.
--
SELECT op, cursor = feed_head('model_feed') AS head, entry FROM feed_read(NULL::model_feed, '', 100);
SELECT count(*) FROM feed_read(NULL::model_feed, feed_head('model_feed'), 100);
INSERT INTO model_feed (message_type, data) VALUES ('a', '1');
SELECT op FROM feed_read(NULL::model_feed, '', 100);
-- A session's first read after its first write need not know that it must be
-- published first: it waits a moment for that, and goes on if that does not
-- happen.
SET feedpub.read_wait = '10 ms';
SELECT op FROM feed_read(NULL::model_feed, '', 100);
SET feedpub.read_wait = 0;
CALL feed_publish('model_feed');
SELECT op, (entry).message_type, (entry).data FROM feed_read(NULL::model_feed, '', 100);
-- Its columns
SELECT r.op, (r.entry).*, r.entry = m AS same FROM feed_read(feed => NULL::model_feed, after => '', max_rows => 1, shard => NULL, shards => NULL) r, model_feed m WHERE false;
SELECT pg_typeof(cursor), pg_typeof(op), pg_typeof(entry) FROM feed_read(NULL::model_feed, '', 1);

--
-- A random feed: transactions of several connections, in turns, some prepared;
-- savepoints and transactions rolled back; rows deleted before and after they
-- are published
--
SELECT count(dblink_connect('w' || i, format('dbname=%L user=%L host=%L port=%L', current_database(), current_user,
	split_part(current_setting('unix_socket_directories'), ',', 1), current_setting('port')))) FROM generate_series(1, 6) i;
CREATE PROCEDURE write_in_turns(events int) LANGUAGE plpgsql AS $$
DECLARE
	open boolean[] := array_fill(false, array[6]);
	prepared text[] := '{}';
	event int := 0;
	w int;
	r float8;
	c text;
	insert text;
BEGIN
	WHILE event < events OR true = ANY (open) OR prepared <> '{}' LOOP
		event := event + 1;
		w := 1 + floor(random() * 6)::int;
		c := 'w' || w;
		r := random();
		insert := format('INSERT INTO model_feed (message_type, message_key, data) SELECT ''random'', floor(random() * 5)::text, to_jsonb(random()) FROM generate_series(1, %s)', 1 + floor(random() * 4)::int);
		IF random() < 0.06 THEN
			PERFORM dblink_exec('w0', 'CALL feed_publish(''model_feed'')');
		END IF;
		IF random() < 0.2 AND prepared <> '{}' THEN
			PERFORM dblink_exec('w0', CASE WHEN random() < 0.8 THEN 'COMMIT' ELSE 'ROLLBACK' END || ' PREPARED ' || quote_literal(prepared[1]));
			prepared := prepared[2:];
		END IF;
		IF NOT open[w] THEN
			CONTINUE WHEN event > events;
			PERFORM dblink_exec(c, 'BEGIN');
			IF r < 0.3 THEN
				PERFORM dblink_exec(c, 'DO $x$BEGIN PERFORM pg_current_xact_id(); END$x$');
			END IF;
			open[w] := true;
		ELSIF r < 0.5 AND event <= events THEN
			PERFORM dblink_exec(c, insert);
		ELSIF r < 0.6 AND event <= events THEN
			PERFORM dblink_exec(c, 'SAVEPOINT s');
			PERFORM dblink_exec(c, insert);
			PERFORM dblink_exec(c, CASE WHEN random() < 0.5 THEN 'ROLLBACK TO s' ELSE 'RELEASE s' END);
		ELSIF r < 0.67 AND event <= events THEN
			PERFORM dblink_exec(c, 'DELETE FROM model_feed WHERE ctid = ANY (ARRAY(SELECT ctid FROM model_feed ORDER BY random() LIMIT 2 FOR UPDATE SKIP LOCKED))');
		ELSIF r < 0.77 AND cardinality(prepared) < 4 THEN
			PERFORM dblink_exec(c, format('PREPARE TRANSACTION %L', 'regress_feedpub ' || event));
			prepared := prepared || ('regress_feedpub ' || event);
			open[w] := false;
		ELSIF r < 0.95 THEN
			PERFORM dblink_exec(c, 'COMMIT');
			open[w] := false;
		ELSE
			PERFORM dblink_exec(c, 'ROLLBACK');
			open[w] := false;
		END IF;
	END LOOP;
END $$;
SELECT dblink_connect('w0', format('dbname=%L user=%L host=%L port=%L', current_database(), current_user,
	split_part(current_setting('unix_socket_directories'), ',', 1), current_setting('port')));
-- A consumer in xid order that goes on in published order, from each row: what
-- of the rest it is not delivered, and whether the batch could be a later one.
CREATE FUNCTION compare_bridges(OUT many_bridges bool, OUT lost bigint, OUT too_early bigint) LANGUAGE sql AS $$
	WITH s AS MATERIALIZED (SELECT DISTINCT feed_xid, feed_pos FROM model_feed UNION SELECT '0', 0),
	b AS MATERIALIZED (SELECT sync_id, snapshot, lead(snapshot) OVER (ORDER BY sync_id) AS next
		FROM (SELECT sync_id, snapshot FROM feedpub._batch WHERE feed = 'model_feed'::regclass UNION ALL SELECT 0, '1:1:') b),
	m AS MATERIALIZED (SELECT * FROM model_read(0, 0, NULL)),
	c AS MATERIALIZED (SELECT s.*, batch_of(feed_cursor('model_feed', feed_xid, feed_pos)) AS sync_id,
			position_of(feed_cursor('model_feed', feed_xid, feed_pos)) AS pos
		FROM s WHERE pg_visible_in_snapshot(feed_xid, (SELECT snapshot FROM b ORDER BY sync_id DESC LIMIT 1)))
	SELECT count(*) > 50,
		(SELECT count(*) FROM c JOIN m ON ((m.entry).feed_xid, (m.entry).feed_pos) > (c.feed_xid, c.feed_pos)
			AND (m.sync_id, m.pos) <= (c.sync_id, c.pos)),
		(SELECT count(*) FROM c JOIN b USING (sync_id) WHERE NOT EXISTS (SELECT FROM generate_series(c.feed_xid::text::bigint, pg_snapshot_xmax(b.next)::text::bigint) x
			WHERE pg_visible_in_snapshot(x::text::xid8, b.next)))
	FROM c
$$;
SELECT setseed(0.75);
CALL write_in_turns(700);
CALL note_cursors();
SELECT count(*) > 300 AS rows, count(DISTINCT feed_xid) > 60 AS transactions FROM model_feed;
SELECT count(*) > 20 AS batches, max(transactions) > 3 AS of_several FROM feedpub._batch WHERE feed = 'model_feed'::regclass;
SELECT * FROM compare();
SELECT * FROM compare_bridges();
SELECT * FROM walk_all('{1,2,3,5,10,31,32,33,100,10000}');
-- What is published late, and what is left
CALL write_in_turns(100);
SELECT * FROM compare();
CALL feed_publish('model_feed');
SELECT * FROM compare();
-- Backlogs cut into small batches
CALL write_in_turns(200);
SET feedpub.max_batch_transactions = 2;
CALL feed_publish('model_feed');
RESET feedpub.max_batch_transactions;
SELECT * FROM compare();
SELECT * FROM compare_bridges();
SELECT * FROM walk_all('{1,7,100}');
-- Rows go, then their index entries; the cursors that they had stay good.
CALL note_cursors();
DELETE FROM model_feed WHERE feed_pos % 5 < 2 OR feed_pos BETWEEN 300 AND 420;
SELECT * FROM compare();
VACUUM model_feed;
SELECT * FROM compare();
SELECT * FROM walk_all('{1,7,100}');
-- Inside transactions that have written, deleted and rolled back themselves,
-- with a snapshot of their own or one that is older
BEGIN;
INSERT INTO model_feed (message_type, data) VALUES ('own', '1');
WITH d AS (DELETE FROM model_feed m WHERE feed_pos % 5 = 2 RETURNING m) INSERT INTO removed SELECT m FROM d;
SAVEPOINT s;
WITH d AS (DELETE FROM model_feed m WHERE feed_pos % 5 = 3 RETURNING m) INSERT INTO removed SELECT m FROM d;
ROLLBACK TO s;
SELECT * FROM compare();
ROLLBACK;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) > 0 AS snapshot_taken FROM model_feed;
SELECT dblink_exec('w1', 'DELETE FROM model_feed WHERE feed_pos % 10 = 4') ~ 'DELETE [1-9]' AS deleted;
SELECT dblink_exec('w1', $$INSERT INTO model_feed (message_type, data) VALUES ('later', '1')$$);
SELECT dblink_exec('w1', 'CALL feed_publish(''model_feed'')');
SELECT * FROM compare();
COMMIT;
SELECT * FROM compare();
BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY;
SELECT * FROM compare();
COMMIT;
-- With row security the specification is the same query, by the same role.
CREATE ROLE regress_feedpub_reader;
-- (The model reads the batches, which feed_read() needs no right for.)
GRANT SELECT ON model_feed, known, removed, feedpub._batch TO regress_feedpub_reader;
ALTER TABLE model_feed ENABLE ROW LEVEL SECURITY;
CREATE POLICY some_rows ON model_feed FOR SELECT TO regress_feedpub_reader USING (message_key IN ('1', '3', '4') AND data > '0.1');
SET ROLE regress_feedpub_reader;
SELECT count(*) BETWEEN 20 AND (SELECT count(*) - 20 FROM known) AS some_rows FROM model_feed;
-- (A page of rows that are all hidden ends early: compared is what comes
-- after it as well, page by page.)
SELECT * FROM walk_all('{1,7,100}');
RESET ROLE;
SELECT * FROM walk_all('{100}');
REVOKE SELECT ON feedpub._batch FROM regress_feedpub_reader;
ALTER TABLE model_feed DISABLE ROW LEVEL SECURITY;

--
-- Long runs: more rows of one transaction than are read at once
--
TRUNCATE model_feed;
CALL feed_publish('model_feed');
TRUNCATE known;
-- 1, 31, 32, 33, 255, 256, 257, 288, 289 rows, each a transaction, one batch
DO $$
DECLARE
	n int;
BEGIN
	FOREACH n IN ARRAY '{1,31,32,33,255,256,257,288,289,1000}'::int[] LOOP
		INSERT INTO model_feed (message_type, message_key, data) SELECT n, n, '1' FROM generate_series(1, n);
		COMMIT;
	END LOOP;
END $$;
CALL feed_publish('model_feed');
SELECT * FROM walk_all('{1,31,32,33,34,255,256,257,1000,10000}');
CALL note_cursors();
SELECT many_cursors, many_rows, differences FROM compare();
-- Two long ones and many short ones, in turns, in one batch
TRUNCATE known;
SELECT dblink_exec('w1', 'BEGIN'), dblink_exec('w2', 'BEGIN');
DO $$
BEGIN
	FOR i IN 1..120 LOOP
		PERFORM dblink_exec('w1', $q$INSERT INTO model_feed (message_type, data) SELECT 'w1', '1' FROM generate_series(1, 7)$q$);
		PERFORM dblink_exec('w2', $q$INSERT INTO model_feed (message_type, data) SELECT 'w2', '1' FROM generate_series(1, 3)$q$);
		INSERT INTO model_feed (message_type, data) VALUES ('short', '1');
		COMMIT;
	END LOOP;
END $$;
SELECT dblink_exec('w1', 'COMMIT'), dblink_exec('w2', 'COMMIT');
CALL feed_publish('model_feed');
SELECT * FROM walk_all('{1,10,31,32,33,256,10000}');
INSERT INTO known SELECT cursor FROM feed_read(NULL::model_feed, (SELECT max(cursor COLLATE "C") FROM (SELECT cursor FROM feed_read(NULL::model_feed, '', 2400)) c), 10000);
SELECT * FROM compare();
-- The long ones were open over many batches, and one of them ends.
SELECT dblink_exec('w1', 'BEGIN'), dblink_exec('w2', 'BEGIN');
DO $$
BEGIN
	FOR i IN 1..40 LOOP
		PERFORM dblink_exec('w1', $q$INSERT INTO model_feed (message_type, data) SELECT 'w1', '1' FROM generate_series(1, 8)$q$);
		PERFORM dblink_exec('w2', $q$INSERT INTO model_feed (message_type, data) SELECT 'w2', '1' FROM generate_series(1, 8)$q$);
		INSERT INTO model_feed (message_type, data) VALUES ('short', '1');
		COMMIT;
		CALL feed_publish('model_feed');
		IF i = 20 THEN
			PERFORM dblink_exec('w2', 'COMMIT');
		ELSIF i = 21 THEN
			PERFORM dblink_exec('w2', 'BEGIN');
		END IF;
	END LOOP;
END $$;
SELECT dblink_exec('w1', 'COMMIT'), dblink_exec('w2', 'COMMIT');
CALL feed_publish('model_feed');
SELECT * FROM walk_all('{1,33,257,10000}');

--
-- End rows
--
TRUNCATE model_feed;
SELECT op, entry IS NULL AS nothing FROM feed_read(NULL::model_feed, '', 10);
DROP FUNCTION walk_all, walk, compare, compare_bridges, model_read;
DROP TABLE removed;
DROP PROCEDURE write_in_turns, note_cursors;
SELECT count(dblink_disconnect(name)) FROM unnest(dblink_get_connections()) name;
DROP EXTENSION dblink;
SELECT feed_drop('model_feed');
SELECT feed_create('outbox');
INSERT INTO outbox (message_type, data) SELECT chr(96 + i), '1' FROM generate_series(1, 6) i;
CALL feed_publish();
INSERT INTO outbox (message_type, data) SELECT chr(102 + i), '1' FROM generate_series(1, 6) i;
CALL feed_publish();
CREATE FUNCTION ops(size int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	c text := '';
	r record;
	ops text := '';
	stood boolean;
BEGIN
	LOOP
		stood := true;
		FOR r IN SELECT * FROM feed_read(NULL::outbox, c, size) LOOP
			IF (r.op = 'end') <> (r.entry IS NULL) THEN
				RAISE 'an entry in an end row, or none in another';
			END IF;
			c := r.cursor;
			stood := false;
			ops := ops || coalesce((r.entry).message_type, '.');
		END LOOP;
		EXIT WHEN stood;
		ops := ops || '|';
	END LOOP;
	RETURN ops;
END $$;
-- Each page ends in "|", an end row is a dot: none where nothing was passed
SELECT size, ops(size) FROM unnest('{1,3,6,7,12,13}'::int[]) size;
-- The last of a batch, the last of all, a whole batch: passed once
DELETE FROM outbox WHERE message_type IN ('f', 'l');
SELECT size, ops(size) FROM unnest('{1,3,5,6,10,11,12}'::int[]) size;
DELETE FROM outbox WHERE message_type > 'f';
SELECT size, ops(size) FROM unnest('{1,4,5,6,10}'::int[]) size;
INSERT INTO outbox (message_type, data) VALUES ('m', '1');
CALL feed_publish();
SELECT size, ops(size) FROM unnest('{1,4,5,6,10}'::int[]) size;
-- More than a page may pass: it ends early, and the next goes on.
INSERT INTO outbox (message_type, data) SELECT 'x', '1' FROM generate_series(1, 25000);
CALL feed_publish();
INSERT INTO outbox (message_type, data) VALUES ('n', '1');
CALL feed_publish();
DELETE FROM outbox WHERE message_type = 'x';
SELECT size, ops(size) FROM unnest('{1,7,100}'::int[]) size;

--
-- What is refused
--
SELECT * FROM feed_read(NULL::outbox, '', 0);
\echo :SQLSTATE
SELECT * FROM feed_read(NULL::outbox, '', -1);
\echo :SQLSTATE
SELECT * FROM feed_read(NULL::outbox, '', NULL);
\echo :SQLSTATE
SELECT * FROM feed_read(NULL::outbox, NULL, 1);
\echo :SQLSTATE
SELECT * FROM feed_read(NULL::outbox, '', 1, 2, 2);
\echo :SQLSTATE
SELECT * FROM feed_read(NULL::outbox, '', 1, shards => 1);
\echo :SQLSTATE
SELECT * FROM feed_read(NULL::known, '', 1);
\echo :SQLSTATE
SELECT * FROM feed_read(NULL::int, '', 1);
\echo :SQLSTATE
SELECT * FROM feed_read(NULL, '', 1);
\echo :SQLSTATE
SELECT feed_head('known');
\echo :SQLSTATE
SELECT feed_head(NULL);
\echo :SQLSTATE
-- A page is capped.
SET feedpub.max_page_rows = 2;
SELECT op, (entry).message_type FROM feed_read(NULL::outbox, '', 2147483647);
RESET feedpub.max_page_rows;

--
-- Calls where a query is allowed
--
TRUNCATE outbox;
INSERT INTO outbox (message_type, data) SELECT chr(96 + i), to_jsonb(i) FROM generate_series(1, 5) i;
CALL feed_publish();
SELECT feed_head('outbox') AS head \gset
-- Outside limits, joins, views, lateral, in the list of what is selected
SELECT (entry).message_type FROM feed_read(NULL::outbox, '', 5) LIMIT 2;
SELECT o.message_type, r.op FROM outbox o JOIN feed_read(NULL::outbox, '', 100) r ON (r.entry).message_id = o.message_id ORDER BY o.feed_pos LIMIT 2;
SELECT n, (SELECT string_agg((entry).message_type, '') FROM feed_read(NULL::outbox, '', n)) FROM generate_series(1, 3) n;
SELECT ((feed_read(NULL::outbox, '', 2)).entry).message_type;
CREATE VIEW recent AS SELECT op, (entry).message_type, (entry).data FROM feed_read(NULL::outbox, '', 100);
SELECT message_type FROM recent WHERE data > '3';
DROP VIEW recent;
-- A declared cursor, forwards and back
BEGIN;
DECLARE page SCROLL CURSOR FOR SELECT (entry).message_type FROM feed_read(NULL::outbox, '', 100) WHERE op = 'upsert';
FETCH 2 FROM page;
FETCH BACKWARD 1 FROM page;
FETCH ALL FROM page;
COMMIT;
DECLARE kept CURSOR WITH HOLD FOR SELECT op, (entry).message_type FROM feed_read(NULL::outbox, '', 100);
FETCH 1 FROM kept;
CLOSE kept;
-- Read only, of any level; a prepared statement, whose plan is kept
BEGIN READ ONLY;
SELECT count(*) FROM feed_read(NULL::outbox, '', 100) WHERE op = 'upsert';
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE;
SELECT count(*) FROM feed_read(NULL::outbox, '', 100) WHERE op = 'upsert';
SELECT feed_head('outbox') = :'head' AS same;
COMMIT;
SET plan_cache_mode = force_generic_plan;
PREPARE page (text, int) AS SELECT (entry).message_type FROM feed_read(NULL::outbox, $1, $2);
EXECUTE page ('', 1);
EXECUTE page (:'head', 100);
-- A new snapshot for each query of a procedure
DO $$
DECLARE
	n bigint;
BEGIN
	INSERT INTO outbox (message_type, data) VALUES ('f', '1');
	COMMIT;
	CALL feed_publish();
	SELECT count(*) INTO n FROM feed_read(NULL::outbox, '', 100) WHERE op = 'upsert';
	RAISE NOTICE '% rows', n;
END $$;
EXECUTE page (:'head', 100);
DEALLOCATE page;
RESET plan_cache_mode;

--
-- Columns that were added and dropped; large values
--
ALTER TABLE outbox ADD COLUMN added int DEFAULT 7, ADD COLUMN dropped text DEFAULT repeat('x', 3000);
INSERT INTO outbox (message_type, data, added) SELECT 'g', to_jsonb(string_agg(md5(i::text), '')), 8 FROM generate_series(1, 10000) i;
ALTER TABLE outbox DROP COLUMN dropped, ADD COLUMN later numeric DEFAULT 1.50;
INSERT INTO outbox (message_type, data, later) VALUES ('h', to_jsonb(repeat('y', 100000)), NULL);
CALL feed_publish();
SELECT (entry).message_type, (entry).added, (entry).later, length((entry).data #>> '{}') FROM feed_read(NULL::outbox, '', 100) WHERE op = 'upsert';
SELECT count(*), count(*) FILTER (WHERE r.entry IS DISTINCT FROM o) AS different FROM outbox o
	FULL JOIN (SELECT * FROM feed_read(NULL::outbox, '', 100) WHERE op = 'upsert') r ON (r.entry).message_id = o.message_id;
-- Kept, they are values of their own, with nothing left elsewhere.
CREATE TABLE copy AS SELECT entry FROM feed_read(NULL::outbox, '', 100) WHERE op = 'upsert';
CREATE TABLE inserted (LIKE outbox);
INSERT INTO inserted SELECT (entry).* FROM copy;
SELECT count(*), count(*) FILTER (WHERE (SELECT to_jsonb(i) FROM inserted i WHERE i.feed_pos = o.feed_pos) IS DISTINCT FROM to_jsonb(o)) AS different FROM outbox o;
DROP TABLE copy, inserted;

--
-- Rights and row security
--
SET ROLE regress_feedpub_reader;
SELECT count(*) FROM feed_read(NULL::outbox, '', 100);
\echo :SQLSTATE
SELECT feed_head('outbox');
\echo :SQLSTATE
RESET ROLE;
\set VERBOSITY terse
-- A right on some columns is not enough for a whole row, but for its head.
GRANT SELECT (message_type, data) ON outbox TO regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
SELECT count(*) FROM feed_read(NULL::outbox, '', 100);
\echo :SQLSTATE
SELECT feed_head('outbox') > :'head' AS further;
RESET ROLE;
REVOKE SELECT (message_type, data) ON outbox FROM regress_feedpub_reader;
GRANT SELECT ON outbox TO regress_feedpub_reader;
-- Policies: by role, with a subquery, restrictive
ALTER TABLE outbox ENABLE ROW LEVEL SECURITY;
SET ROLE regress_feedpub_reader;
SELECT size, ops(size) FROM unnest('{1,3,8,100}'::int[]) size;
RESET ROLE;
CREATE TABLE allowed (type text);
INSERT INTO allowed VALUES ('b'), ('c'), ('g'), ('h');
GRANT SELECT ON allowed TO regress_feedpub_reader;
CREATE POLICY listed ON outbox FOR SELECT TO regress_feedpub_reader USING (EXISTS (SELECT FROM allowed WHERE type = message_type));
SET ROLE regress_feedpub_reader;
SELECT size, ops(size) FROM unnest('{1,3,8,100}'::int[]) size;
SELECT (entry).message_type, (entry).added, (entry).later, length((entry).data #>> '{}') FROM feed_read(NULL::outbox, '', 100) WHERE op = 'upsert';
RESET ROLE;
CREATE POLICY not_h ON outbox AS RESTRICTIVE FOR SELECT USING (message_type <> 'h' AND feed_pos > 0);
SET ROLE regress_feedpub_reader;
SELECT size, ops(size) FROM unnest('{1,3,8,100}'::int[]) size;
-- All rows or none
SET row_security = off;
SELECT count(*) FROM feed_read(NULL::outbox, '', 100);
\echo :SQLSTATE
RESET row_security;
-- A SECURITY DEFINER function reads with its owner's rights.  A view does not:
-- the role that reads a view calls its functions.
RESET ROLE;
CREATE FUNCTION as_owner() RETURNS text LANGUAGE sql SECURITY DEFINER AS $$ SELECT string_agg((entry).message_type, '') FROM feed_read(NULL::outbox, '', 100) $$;
CREATE VIEW recent AS SELECT op, (entry).message_type FROM feed_read(NULL::outbox, '', 100);
GRANT SELECT ON recent TO regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
SELECT as_owner();
SELECT string_agg(message_type, '') FROM recent;
RESET ROLE;
SELECT string_agg(message_type, '') FROM recent;
-- The owner is exempt until it is forced; BYPASSRLS is exempt.
CREATE ROLE regress_feedpub_owner;
CREATE ROLE regress_feedpub_bypass BYPASSRLS;
ALTER TABLE outbox OWNER TO regress_feedpub_owner;
GRANT SELECT ON outbox TO regress_feedpub_bypass;
SET ROLE regress_feedpub_owner;
SELECT ops(100);
ALTER TABLE outbox FORCE ROW LEVEL SECURITY;
SELECT ops(100);
SET ROLE regress_feedpub_bypass;
SELECT ops(100);
RESET ROLE;
SELECT ops(100);
-- A policy that raises an error
CREATE POLICY broken ON outbox AS RESTRICTIVE FOR SELECT TO regress_feedpub_reader USING (1 / (length(message_type) - 1) > 0);
SET ROLE regress_feedpub_reader;
SELECT ops(100);
\echo :SQLSTATE
RESET ROLE;
-- What is ahead of pg_catalog in the reader's search_path is not called.
DROP POLICY broken ON outbox;
CREATE SCHEMA evil;
GRANT USAGE ON SCHEMA evil TO PUBLIC;
CREATE FUNCTION evil.cmp(tid, tid) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
CREATE OPERATOR evil.= (LEFTARG = tid, RIGHTARG = tid, FUNCTION = evil.cmp);
CREATE TABLE evil.batch (feed regclass, sync_id bigint);
SET search_path = evil, pg_catalog, public;
SET ROLE regress_feedpub_reader;
SELECT string_agg((entry).message_type, '') FROM feed_read(NULL::outbox, '', 100);
RESET ROLE;
RESET search_path;

-- 'earliest' and 'latest' in place of a cursor
SELECT array_agg(cursor) = (SELECT array_agg(cursor) FROM feed_read(NULL::outbox)) AS same FROM feed_read(NULL::outbox, 'earliest');
SELECT op, cursor = feed_head('outbox') AS at_end FROM feed_read(NULL::outbox, 'latest');
SELECT feed_page('outbox', 'earliest')::text = feed_page('outbox')::text AS same;
SELECT feed_page('outbox', 'latest')::text = feed_page('outbox', feed_head('outbox'))::text AS same;
SELECT * FROM feed_read(NULL::outbox, 'later');
SELECT * FROM feed_read(NULL::pg_class, 'latest');

-- A name is no row type.
\set VERBOSITY default
SELECT * FROM feed_read('outbox');
SELECT * FROM feed_read('outbox', feed_head('outbox'), 10);
SELECT * FROM feed_read(NULL);
SELECT * FROM feed_read('outbox'::regclass);
\set VERBOSITY terse

DROP SCHEMA evil CASCADE;
DROP VIEW recent;
DROP FUNCTION ops, as_owner, batch_of, position_of, number;
\set VERBOSITY default
SELECT feed_drop('outbox');
DROP TABLE known, allowed;
DROP ROLE regress_feedpub_reader, regress_feedpub_owner, regress_feedpub_bypass;
