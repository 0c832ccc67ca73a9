-- Deletes expire in batches that have been merged, and of feeds that are read
-- in pages of any size: a consumer that has passed them goes on.
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
CREATE TABLE tab (id int PRIMARY KEY);
SELECT feed_attach('tab');
-- What a consumer gets after a cursor, page by page, or the error
CREATE FUNCTION consume(after text, page_size int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	r record;
	arrived bool := true;
	entries text[] := '{}';
BEGIN
	WHILE arrived LOOP
		arrived := false;
		FOR r IN SELECT * FROM feed_read(NULL::tab, after, page_size) LOOP
			arrived := true;
			after := r.cursor;
			IF r.op <> 'end' THEN
				entries := entries || (CASE r.op WHEN 'delete' THEN '-' ELSE '' END || (r.entry).id);
			END IF;
		END LOOP;
	END LOOP;
	RETURN array_to_string(entries, ' ');
EXCEPTION WHEN SQLSTATE 'PF002' THEN
	RETURN SQLSTATE;
END $$;
-- All batches but the last are old enough.
CREATE PROCEDURE let_old() LANGUAGE sql AS $$
	UPDATE feedpub._batch SET published_at = '2000-01-01' WHERE sync_id < (SELECT max(sync_id) FROM feedpub._batch)
$$;
-- And become one
CREATE FUNCTION merge() RETURNS int LANGUAGE sql AS $$
	SELECT set_config('feedpub.max_batch_transactions', sum(transactions)::text, true)
	FROM feedpub._batch WHERE merged_pos IS NULL AND sync_id < (SELECT max(sync_id) FROM feedpub._batch);
	SELECT feedpub._merge_batches('tab');
$$;

--
-- Rows 1 to 6 in batches of one, deletes among them
--
DO $$
BEGIN
	FOR n IN 1..6 LOOP
		INSERT INTO tab VALUES (n), (10 + n);
		COMMIT;
		DELETE FROM tab WHERE id > 10;
		COMMIT;
		CALL feed_publish('tab');
	END LOOP;
END $$;
CALL let_old();
SELECT feedpub._move_floor('tab');
-- A consumer that begins gets all, in large pages and in small ones.
SELECT consume('', 100), consume('', 2), consume('', 1);

--
-- Batches {-2, -22} and {1}, of which the younger one has the smaller positions:
-- the end of the merged one is after the end of each that is in it.
--
DELETE FROM tab;
SELECT feed_begin_history('tab');
CREATE TABLE cursors (n serial PRIMARY KEY, point text, cursor text);
BEGIN;
INSERT INTO tab VALUES (1);
PREPARE TRANSACTION 'regress_feedpub long';
INSERT INTO tab VALUES (2), (22);
DELETE FROM tab WHERE id IN (2, 22);
CALL feed_publish('tab');
INSERT INTO cursors (point, cursor) SELECT 'between the deletes', p ->> 'cursor' FROM feed_page('tab', '', 1) p;
INSERT INTO cursors (point, cursor) SELECT 'after the deletes', feed_head('tab');
COMMIT PREPARED 'regress_feedpub long';
CALL feed_publish('tab');
INSERT INTO cursors (point, cursor) SELECT 'at the end', feed_head('tab');
-- of a consumer that began before that batch was made
INSERT INTO cursors (point, cursor)
	SELECT 'at the end, from the first', r.cursor FROM cursors c, feed_read(NULL::tab, c.cursor, 100) r
	WHERE c.n = 1 AND r.op = 'upsert' AND (entry).id = 1;
INSERT INTO tab VALUES (3);
CALL feed_publish('tab');
SELECT point, consume(cursor, 100) FROM cursors ORDER BY n;
CALL let_old();
-- Merged before they expire, or after that, or not at all
BEGIN;
SELECT merge();
SELECT point, consume(cursor, 100) FROM cursors ORDER BY n;
INSERT INTO cursors (point, cursor) SELECT 'between the deletes, merged', p ->> 'cursor' FROM feed_page('tab', '', 1) p;
INSERT INTO cursors (point, cursor) SELECT 'after the deletes, merged', r.cursor FROM feed_read(NULL::tab, '', 3) r WHERE (entry).id = 22;
SELECT feedpub._move_floor('tab');
SELECT point, consume(cursor, 100), consume(cursor, 1) FROM cursors ORDER BY n;
SELECT consume('', 100);
ROLLBACK;
BEGIN;
SELECT feedpub._move_floor('tab');
SELECT point, consume(cursor, 100) FROM cursors ORDER BY n;
SELECT merge();
SELECT point, consume(cursor, 100), consume(cursor, 1) FROM cursors ORDER BY n;
SELECT consume('', 100);
ROLLBACK;

--
-- The floor's batch tells which deletes are before it: it is not merged into a
-- later one while they are still to be removed.
--
SELECT feedpub._move_floor('tab');
SELECT sync_id FROM feedpub._floor WHERE feed = 'tab'::regclass;
DELETE FROM feedpub._job WHERE feed = 'tab'::regclass;
DELETE FROM tab WHERE id = 1;
CALL feed_publish('tab');
INSERT INTO tab VALUES (4);
CALL feed_publish('tab');
INSERT INTO tab VALUES (5);
CALL feed_publish('tab');
CALL let_old();
SELECT merge();
SELECT sync_id, merged_from FROM feedpub._batch WHERE feed = 'tab'::regclass ORDER BY sync_id;
SELECT feedpub._run_job('tab', 100);
SELECT kind, state FROM feedpub.jobs WHERE feed = 'tab'::regclass;
SELECT consume('', 100);

DROP FUNCTION consume, merge;
DROP PROCEDURE let_old;
SELECT feed_detach('tab');
DROP TABLE tab, cursors;
