-- A TRUNCATE in a group with shards: each shard has an entry of it, which
-- concerns the rows of that shard.  The shards do not come to it at the same
-- time, so a copy that is emptied for each of them loses rows.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
SELECT feed_stop_worker() IS NOT NULL AS stopped;
SET feedpub.read_wait = 0;
\set odd '"Odd ""Name"""'
CREATE TABLE :odd (k int PRIMARY KEY, v text);
SELECT feed_attach(:'odd');
INSERT INTO :odd SELECT i, 'before' FROM generate_series(1, 40) i;
CALL feed_publish();
SELECT feed_subscribe(s, :'odd', 'earliest', 4) <> '' AS placed FROM unnest('{group,rows,naive}'::text[]) s;
SELECT feed_subscribe('whole', :'odd', 'earliest') <> '' AS placed;

-- The shard of each entry is told, and the copy keeps it with the row.
CREATE TABLE copy (k int PRIMARY KEY, v text, shard int NOT NULL);
CREATE TABLE applied (op text, shard int);
CREATE PROCEDURE follow(sub text) LANGUAGE plpgsql AS $$
DECLARE
	e record;
	n int;
BEGIN
	LOOP
		n := 0;
		FOR e IN SELECT * FROM feed_poll(sub, 3, 'w') LOOP
			n := n + 1;
			INSERT INTO applied VALUES (e.op, e.shard);
			CASE e.op
				WHEN 'upsert' THEN
					INSERT INTO copy SELECT r.k, r.v, e.shard FROM json_populate_record(NULL::"Odd ""Name""", e."row") r
						ON CONFLICT (k) DO UPDATE SET v = excluded.v, shard = excluded.shard;
				WHEN 'delete' THEN DELETE FROM copy WHERE k = (e.key ->> 'k')::int;
				WHEN 'truncate_shard' THEN DELETE FROM copy WHERE shard = e.shard;
				WHEN 'truncate' THEN DELETE FROM copy;
			END CASE;
		END LOOP;
		EXIT WHEN n = 0;
		PERFORM feed_ack(sub, e.receipt);
	END LOOP;
END $$;
CALL follow('group');
SELECT count(*) FROM copy;
-- The shards come to it one after the other, with what came after it between.
INSERT INTO :odd SELECT i, 'before' FROM generate_series(41, 60) i;
CALL feed_publish();
TRUNCATE :odd;
INSERT INTO :odd SELECT i, 'after' FROM generate_series(1, 8) i;
CALL feed_publish();
CALL follow('group');
SELECT op, shard, count(*) FROM applied WHERE op <> 'upsert' GROUP BY op, shard ORDER BY shard;
SELECT count(*), count(*) FILTER (WHERE v = 'after') AS "after" FROM copy;
-- The shards are those of pages.
SELECT count(*) AS wrong FROM generate_series(0, 3) s, feed_read(NULL::"Odd ""Name""", '', 100, s, 4) r JOIN copy c ON c.k = (r.entry).k WHERE r.op = 'upsert' AND c.shard <> s;
-- Rows of the table have it too.
DO $$
DECLARE
	e record;
	n int;
BEGIN
	LOOP
		n := 0;
		FOR e IN SELECT * FROM feed_poll_rows('rows', NULL::"Odd ""Name""", 100, 'w') LOOP
			n := n + 1;
			INSERT INTO applied VALUES ('rows: ' || e.op, e.shard);
			IF e.op = 'upsert' AND e.shard <> (SELECT c.shard FROM copy c WHERE c.k = (e.entry).k) THEN
				RAISE EXCEPTION 'wrong shard';
			END IF;
		END LOOP;
		EXIT WHEN n = 0;
		PERFORM feed_ack('rows', e.receipt);
	END LOOP;
END $$;
SELECT op, shard, count(*) FROM applied WHERE op LIKE 'rows: t%' GROUP BY op, shard ORDER BY shard;
-- A consumer that does not know of shards does not take it for a TRUNCATE of
-- all, which it is without shards.
DO $$
DECLARE
	e record;
BEGIN
	LOOP
		FOR e IN SELECT * FROM feed_poll('naive', 100, 'w') LOOP
			CASE e.op
				WHEN 'upsert', 'delete' THEN NULL;
				WHEN 'truncate' THEN RAISE EXCEPTION 'would empty its copy';
			END CASE;
		END LOOP;
		PERFORM feed_ack('naive', e.receipt);
	END LOOP;
END $$;
SELECT op, count(*), min(shard), max(shard) FROM feed_poll('whole') GROUP BY op ORDER BY op;
-- It cannot be parked.
DO $$
DECLARE
	e record;
BEGIN
	LOOP
		FOR e IN SELECT * FROM feed_poll('naive', 100, 'w') LOOP
			IF e.op = 'truncate_shard' THEN
				PERFORM feed_park('naive', e.receipt);
			END IF;
		END LOOP;
		PERFORM feed_ack('naive', e.receipt);
	END LOOP;
END $$;
-- As JSON, and as an event
SELECT DISTINCT e ->> 'op' AS op, (e -> 'key')::text AS key, e -> 'row' IS NULL AS no_row FROM generate_series(0, 1) s, json_array_elements(feed_page(:'odd', '', 100, s, 2) -> 'entries') e WHERE e ->> 'op' <> 'upsert';
SELECT DISTINCT e ->> 'type' AS type, e ->> 'method' AS method, e -> 'subject' IS NULL AS no_subject FROM generate_series(0, 1) s, string_to_table(feedpub._page_events(:'odd', '', 100, s, 2), E'\n') line, LATERAL (SELECT CASE WHEN line LIKE '{%' THEN line::json END) x (e) WHERE e ->> 'type' NOT LIKE '%upsert';
SELECT feed_detach(:'odd', cascade => true);
DROP TABLE :odd, copy, applied;
DROP PROCEDURE follow;
SELECT feed_start_worker() IS NOT NULL AS started;
