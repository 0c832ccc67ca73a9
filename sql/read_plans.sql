-- What a page in published order costs: buffers bounded by its rows and by the
-- transactions of its batch, wherever in the batch it is and however many
-- rows that has.
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
SELECT feed_create('"Odd ""Name"", with a comma"');
ALTER TABLE "Odd ""Name"", with a comma" RENAME TO big;
-- The buffers that a query touches in a session that has run it before
CREATE FUNCTION buffers(query text, OUT buffers int, OUT rows int) LANGUAGE plpgsql AS $$
DECLARE
	plan json;
BEGIN
	-- the least of three: autovacuum makes a session read the catalog again
	FOR i IN 1..3 LOOP
		EXECUTE 'EXPLAIN (ANALYZE, BUFFERS, TIMING off, FORMAT json) ' || query INTO plan;
		plan := plan -> 0 -> 'Plan';
		buffers := least(buffers, (plan ->> 'Shared Hit Blocks')::int + (plan ->> 'Shared Read Blocks')::int
			+ (plan ->> 'Temp Read Blocks')::int + (plan ->> 'Temp Written Blocks')::int);
	END LOOP;
	rows := round((plan ->> 'Actual Rows')::numeric);
END $$;
CREATE FUNCTION page(after text, max_rows int, OUT buffers int, OUT rows int) LANGUAGE sql AS $$
	SELECT b.buffers, b.rows FROM buffers(format('SELECT * FROM feed_read(NULL::big, %L, %s)', after, max_rows)) b
$$;
-- The cursor after a row of a batch, by its position
CREATE FUNCTION digits(value bigint, n int) RETURNS text LANGUAGE sql IMMUTABLE AS $$
	SELECT string_agg(substr('-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz', 1 + (value >> (6 * i) & 63)::int, 1), '' ORDER BY i DESC) FROM generate_series(0, n - 1) i
$$;
CREATE FUNCTION cursor_at(k bigint, pos bigint) RETURNS text LANGUAGE sql AS $$
	SELECT overlay(CASE WHEN k < last THEN feed_cursor('big', pg_snapshot_xmax(snapshot), 0) ELSE feed_head('big') END PLACING digits(cursor_at.pos, 11) FROM 15)
	FROM feedpub._batch b, (SELECT max(sync_id) AS last FROM feedpub._batch WHERE feed = 'big'::regclass) l WHERE feed = 'big'::regclass AND b.sync_id = cursor_at.k
$$;
-- An empty feed
SELECT rows, buffers <= 10 AS bounded FROM page('', 100);

--
-- Batch 1: 100,000 rows of one transaction
--
INSERT INTO big (message_type, data) SELECT 'message', jsonb_build_object('n', i, 'text', repeat(md5(i::text), 5)) FROM generate_series(1, 100000) i;
CALL feed_publish();
-- (The test's own idea of a cursor is right.)
SELECT (entry).feed_pos FROM feed_read(NULL::big, cursor_at(1, 50000), 1);
SELECT pos, (page(cursor_at(1, pos), 100)).rows, (page(cursor_at(1, pos), 100)).buffers <= 40 AS bounded
	FROM unnest('{0,1,31,32,100,50000,99800,99900}'::bigint[]) pos;
SELECT rows, buffers <= 40 AS bounded FROM page('', 100);
SELECT rows, buffers <= 15 AS bounded FROM page(cursor_at(1, 50000), 1);
SELECT rows, buffers <= 10 AS bounded FROM page(feed_head('big'), 100);

--
-- 100,000 rows of a thousand transactions, in turns: each takes every
-- thousandth position.  They are cut into batches of 100 transactions.  The ids
-- of the last five hundred have gaps.
--
SHOW feedpub.max_batch_transactions;
ALTER TABLE big DISABLE TRIGGER zz_feedpub_stamp;
DO $$
BEGIN
	FOR i IN 1..1000 LOOP
		INSERT INTO big (feed_xid, feed_pos, message_type, data) SELECT pg_current_xact_id(), 99000 + i + n * 1000, 'message', jsonb_build_object('n', n, 'text', repeat(md5(n::text), 5)) FROM generate_series(1, 100) n;
		COMMIT;
		IF i > 500 THEN
			PERFORM pg_current_xact_id();
			COMMIT;
		END IF;
	END LOOP;
END $$;
ALTER TABLE big ENABLE ALWAYS TRIGGER zz_feedpub_stamp;
CALL feed_publish();
SELECT sync_id, transactions, last_pos FROM feedpub._batch WHERE feed = 'big'::regclass ORDER BY sync_id;
SELECT min((entry).feed_pos), max((entry).feed_pos), count(*), count(DISTINCT (entry).feed_xid) AS transactions FROM feed_read(NULL::big, cursor_at(4, 150000), 100);
-- A page that begins in the middle of a batch finds the next row of each of its
-- transactions anew: a descent of the index, and another one if the ids have
-- gaps and the transaction has more than a few rows.
SELECT pos, p.rows, p.buffers <= 600 AS bounded
	FROM unnest('{0,101230,103200,132230,150230,197230}'::bigint[]) pos, page(cursor_at(4, pos), 100) p;
SELECT pos, p.rows, p.buffers <= 800 AS bounded
	FROM unnest('{0,101730,103700,132730,150730,197730}'::bigint[]) pos, page(cursor_at(9, pos), 100) p;
SELECT rows, buffers <= 1500 AS bounded FROM page(cursor_at(4, 150230), 1000);
-- The same for each page of a reader that goes from page to page, in this
-- session or another
CREATE FUNCTION next_pages(after text, pages int, OUT most int, OUT rows int) LANGUAGE plpgsql AS $$
DECLARE
	plan json;
BEGIN
	rows := 0;
	FOR i IN 1 .. pages LOOP
		EXECUTE 'EXPLAIN (ANALYZE, BUFFERS, TIMING off, FORMAT json) SELECT * FROM feed_read(NULL::big, $1, 100)' USING after INTO plan;
		plan := plan -> 0 -> 'Plan';
		most := greatest(most, (plan ->> 'Shared Hit Blocks')::int + (plan ->> 'Shared Read Blocks')::int);
		rows := rows + round((plan ->> 'Actual Rows')::numeric);
		SELECT max(cursor COLLATE "C") INTO after FROM feed_read(NULL::big, after, 100);
	END LOOP;
END $$;
SELECT rows, most <= 600 AS bounded FROM next_pages(cursor_at(2, 0), 200);
DROP FUNCTION next_pages;
-- Nothing is lost: two readers in turns, one of which goes back now and then,
-- while rows are deleted that both, one of them or neither has had.
CREATE TEMP TABLE got (reader text, pos bigint);
CREATE PROCEDURE read_in_turns(INOUT readers text[]) LANGUAGE plpgsql AS $$
DECLARE
	at text[] := array_fill(cursor_at(1, 100000), ARRAY[2]);
	n int := 0;
	page bigint[];
	cursors text[];
BEGIN
	WHILE at[1] < cursor_at(11, 200000) OR at[2] < cursor_at(11, 200000) LOOP
		n := n + 1;
		FOR r IN 1..2 LOOP
			SELECT array_agg((entry).feed_pos) FILTER (WHERE op <> 'end'), array_agg(cursor) INTO page, cursors FROM feed_read(NULL::big, at[r], 700 * r);
			IF r = 2 AND n % 10 = 0 AND page[301] IS NOT NULL THEN
				page := page[:300];
				cursors := cursors[:300];
			END IF;
			INSERT INTO got SELECT readers[r], unnest(page);
			at[r] := coalesce(cursors[cardinality(cursors)], at[r]);
		END LOOP;
		IF n % 20 = 0 THEN
			DELETE FROM big WHERE feed_pos IN (100000 + n, 100000 + n * 700 + 500, 100000 + n * 1400 + 2000, 199000 + n);
			COMMIT;
		END IF;
	END LOOP;
END $$;
CREATE TEMP TABLE had AS SELECT feed_pos AS pos FROM big WHERE feed_pos BETWEEN 100001 AND 200000;
CALL read_in_turns('{a,b}');
SELECT reader, count(*) - count(DISTINCT pos) AS twice FROM got GROUP BY reader ORDER BY reader;
SELECT reader, count(*) AS lost FROM (VALUES ('a'), ('b')) r (reader), big
	WHERE feed_pos BETWEEN 100001 AND 200000 AND NOT EXISTS (SELECT FROM got g WHERE g.reader = r.reader AND g.pos = feed_pos) GROUP BY reader;
SELECT count(*) AS made_up FROM got WHERE pos NOT IN (SELECT pos FROM had);
DROP PROCEDURE read_in_turns;
DROP TABLE got, had;
-- After it nothing, at no cost
SELECT rows, buffers <= 10 AS bounded FROM page(feed_head('big'), 100);

--
-- An empty page while transactions are open: three buffers more for each of
-- them that was running when the last batch was made
--
CREATE EXTENSION dblink;
SELECT count(dblink_connect('w' || i, format('dbname=%L user=%L host=%L port=%L', current_database(), current_user,
	split_part(current_setting('unix_socket_directories'), ',', 1), current_setting('port')))) FROM generate_series(1, 20) i;
SELECT count(dblink_exec('w' || i, 'BEGIN')), count(dblink_exec('w' || i, $$INSERT INTO big (message_type, data) VALUES ('open', '1')$$)) FROM generate_series(1, 20) i;
INSERT INTO big (message_type, data) VALUES ('last', '1');
CALL feed_publish();
SELECT (SELECT count(*) FROM pg_snapshot_xip(snapshot)) AS open FROM feedpub._batch WHERE feed = 'big'::regclass ORDER BY sync_id DESC LIMIT 1;
SELECT rows, buffers <= 10 + 3 * 20 AS bounded FROM page(feed_head('big'), 100);
-- With something to publish, and with the wait for it turned on (four buffers for
-- the feed's floor, whose index has two levels after many feeds): the look for
-- news is part of the page.
SELECT count(dblink_exec('w' || i, 'COMMIT')) FROM generate_series(1, 5) i;
SELECT rows, buffers <= 10 + 3 * 20 AS bounded FROM page(feed_head('big'), 100);
SELECT count(dblink_exec('w' || i, 'ROLLBACK')) FROM generate_series(6, 20) i;
SET feedpub.read_wait = '1 ms';
SELECT rows, buffers <= 14 + 3 * 20 AS bounded FROM page(feed_head('big'), 100);
SET feedpub.read_wait = 0;
CALL feed_publish();
SELECT rows, buffers <= 10 AS bounded FROM page(feed_head('big'), 100);
SET feedpub.read_wait = '1 ms';
SELECT rows, buffers <= 20 AS bounded FROM page(feed_head('big'), 100);
SET feedpub.read_wait = 0;

--
-- A thousand batches of one row: a page of 100 is 100 batches.  (The rows are as
-- long as the others, or they would fill what these have left in their pages.)
--
DO $$
BEGIN
	FOR i IN 1..1000 LOOP
		INSERT INTO big (message_type, data) VALUES ('small', to_jsonb(repeat(md5(i::text), 6)));
		COMMIT;
		CALL feed_publish();
	END LOOP;
END $$;
SELECT feed_head('big') AS head \gset
CREATE TABLE small AS SELECT row_number() OVER () AS n, cursor FROM feed_read(NULL::big, (SELECT cursor_at(max(sync_id) - 1000, 9223372036854775807) FROM feedpub._batch WHERE feed = 'big'::regclass), 1000);
SELECT n, (page(cursor, 100)).rows, (page(cursor, 100)).buffers <= 40 AS bounded FROM small WHERE n IN (1, 500, 899) ORDER BY n;
-- What is published costs no more after all that.
SELECT rows, buffers <= 10 AS bounded FROM page(:'head', 100);
-- feed_page() and feed_head(), feed_wait()
SELECT buffers <= 10 AS bounded FROM buffers(format('SELECT feed_head(%L)', 'big'));
SELECT buffers <= 10 AS bounded FROM buffers(format('SELECT feed_page(%L, %L, 100)', 'big', :'head'));
SELECT buffers <= 40 AS bounded FROM buffers(format('SELECT feed_page(%L, %L, 100)', 'big', cursor_at(1, 50000)));
SELECT buffers <= 10 AS bounded FROM buffers(format('SELECT feed_wait(%L, %L, %L)', 'big', :'head', '0'));

SELECT count(dblink_disconnect('w' || i)) FROM generate_series(1, 20) i;
DROP EXTENSION dblink;
DROP FUNCTION page, cursor_at, buffers, digits;
DROP TABLE small;
SELECT feed_drop('big');
