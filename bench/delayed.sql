-- Delayed messages: what those that wait cost polls, how fast they are parked, and how
-- late they are.  For an empty database of a server with feedpub, without another load:
--     createdb bench; psql -X -q -d bench -f bench/delayed.sql
\set ON_ERROR_STOP on
\set waiting 1000000
CREATE EXTENSION feedpub;
SET feedpub.read_wait = 0;
SET client_min_messages = warning;
SELECT feed_start_worker(), feed_create('outbox') \g /dev/null
SELECT feed_subscribe('delayed', 'outbox', delayed => true), feed_subscribe('other', 'outbox') \g /dev/null

-- The fastest of 20 series of polls, and the buffers of a poll
CREATE FUNCTION measure(OUT subscription text, OUT us_a_poll numeric, OUT buffers int) RETURNS SETOF record LANGUAGE plpgsql AS $$
DECLARE
	began timestamptz;
	plan json;
BEGIN
	FOREACH subscription IN ARRAY '{delayed,other}'::text[] LOOP
		us_a_poll := NULL;
		FOR i IN 1..20 LOOP
			began := clock_timestamp();
			FOR j IN 1..200 LOOP
				PERFORM FROM feed_poll(subscription);
			END LOOP;
			us_a_poll := least(us_a_poll, round(extract(epoch FROM clock_timestamp() - began) * 1e6 / 200, 1));
		END LOOP;
		EXECUTE format('EXPLAIN (ANALYZE, BUFFERS, FORMAT json) SELECT FROM feed_poll(%L)', subscription) INTO plan;
		buffers := (plan #>> '{0,Plan,Shared Hit Blocks}')::int + (plan #>> '{0,Plan,Shared Read Blocks}')::int;
		RETURN NEXT;
	END LOOP;
END $$;
\echo none waits
SELECT * FROM measure();
INSERT INTO outbox (message_type, data, scheduled) SELECT 'a', '{"total": 10}', now() + '1 hour' + n * interval '1 s' FROM generate_series(1, :waiting) n;
SELECT feed_flush('outbox') \g /dev/null
\echo polls that park :waiting
CREATE PROCEDURE park(waiting bigint) LANGUAGE plpgsql AS $$
DECLARE
	began timestamptz;
	longest interval := '0';
	polls int := 0;
BEGIN
	WHILE (SELECT parked < waiting FROM feedpub.shards WHERE subscription = 'delayed') LOOP
		began := clock_timestamp();
		PERFORM FROM feed_poll('delayed');
		longest := greatest(longest, clock_timestamp() - began);
		polls := polls + 1;
		COMMIT;
	END LOOP;
	RAISE WARNING '% polls, the longest took %', polls, longest;
END $$;
\timing on
CALL park(:waiting);
\timing off
SELECT feed_seek('other', 'latest') \g /dev/null
\echo :waiting wait, before ANALYZE and after
SELECT * FROM measure();
ANALYZE feedpub._parked_entry;
\c
SET feedpub.read_wait = 0;
SELECT * FROM measure();

-- A consumer that waits, beside those that wait already
CREATE TABLE late (ms numeric);
INSERT INTO outbox (message_type, data, scheduled) SELECT 'a', '1', clock_timestamp() + '2 s' + n * interval '150 ms' FROM generate_series(1, 100) n;
SELECT feed_flush('outbox') \g /dev/null
CREATE PROCEDURE consume() LANGUAGE plpgsql AS $$
DECLARE
	page record;
	n int := 0;
BEGIN
	WHILE n < 100 LOOP
		SELECT receipt, p.row ->> 'scheduled' AS scheduled INTO page FROM feed_poll('delayed', 1, timeout => '10 s') p;
		IF FOUND THEN
			INSERT INTO late VALUES (extract(epoch FROM clock_timestamp() - page.scheduled::timestamptz) * 1000);
			PERFORM feed_ack('delayed', page.receipt);
			n := n + 1;
		END IF;
		COMMIT;
	END LOOP;
END $$;
CALL consume();
\echo ms after they were due
SELECT round(percentile_cont(0.5) WITHIN GROUP (ORDER BY ms)::numeric, 1) AS p50, round(percentile_cont(0.99) WITHIN GROUP (ORDER BY ms)::numeric, 1) AS p99, round(max(ms), 1) AS max FROM late;
