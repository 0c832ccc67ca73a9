-- Subscriptions that get messages when they are due.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
SELECT feed_stop_worker() IS NOT NULL AS stopped;
SET feedpub.read_wait = 0;
SET timezone = 'UTC';
CREATE ROLE regress_feedpub_delayed;
\set odd '"Odd ""Name"", with a comma"'
SELECT feed_create(:'odd') AS feed \gset
ALTER TABLE :odd ALTER COLUMN scheduled DROP NOT NULL;
CREATE PROCEDURE add(first int, VARIADIC due timestamptz[]) LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO "Odd ""Name"", with a comma" (message_type, message_key, data, scheduled)
		SELECT CASE n % 2 WHEN 1 THEN 'odd' ELSE 'even' END, 'key ' || n % 5, to_jsonb(first + n - 1), t FROM unnest(due) WITH ORDINALITY u (t, n);
END $$;
CREATE FUNCTION list(sub text, max_rows int DEFAULT 100, consumer text DEFAULT NULL) RETURNS text LANGUAGE sql AS $$
	SELECT string_agg("row" ->> 'data' || CASE WHEN attempt > 1 THEN ' again' ELSE '' END, ' ') FROM feed_poll(sub, max_rows, consumer)
$$;
CREATE FUNCTION attempt(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	result text;
	detail text;
	hint text;
BEGIN
	EXECUTE statement INTO result;
	RETURN result;
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
	RETURN concat_ws('; ', SQLSTATE || ': ' || SQLERRM, nullif(detail, ''), nullif(hint, ''));
END $$;
CREATE FUNCTION ack(sub text, receipt text) RETURNS text LANGUAGE sql AS $$
	SELECT left(attempt(format('SELECT feed_ack(%L, %L)', sub, receipt)), 5)
$$;
-- Acknowledge all that is there; the pages that came.
CREATE FUNCTION drain(sub text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	page record;
	pages text[];
	empty int := 0;
BEGIN
	WHILE empty < 2 LOOP
		SELECT max(receipt) AS receipt, string_agg("row" ->> 'data' || CASE WHEN attempt > 1 THEN ' again' ELSE '' END, ' ') AS data INTO page FROM feed_poll(sub);
		empty := CASE WHEN page.data IS NULL THEN empty + 1 ELSE 0 END;
		CONTINUE WHEN page.data IS NULL;
		pages := pages || page.data;
		PERFORM feed_ack(sub, page.receipt);
	END LOOP;
	RETURN array_to_string(pages, ', ');
END $$;
-- As if so much time had passed.
CREATE PROCEDURE pass(years int) LANGUAGE sql AS $$
	UPDATE feedpub._parked_entry SET retry_at = retry_at - make_interval(years => years)
$$;
CREATE VIEW waiting AS
	SELECT subscription AS sub, message ->> 'data' AS data, state, attempts, reason, retry_at = (message ->> 'scheduled')::timestamptz AS as_scheduled
	FROM feedpub.parked ORDER BY subscription, (message ->> 'data')::int;
-- What is not passed by a committed cursor yet.
CREATE VIEW left_over AS
	SELECT s.name, s.delayed, (SELECT count(*) FROM feed_read(NULL::"Odd ""Name"", with a comma", s.cursor) WHERE op = 'upsert') AS n, s.parked
	FROM feedpub.subscriptions s ORDER BY s.name;

SELECT feed_subscribe('later', :'odd', 'earliest', delayed => true) <> '' AS placed;
SELECT feed_subscribe('at once', :'odd', 'earliest') <> '' AS placed;
CALL add(1, now(), '3026-01-01', NULL, 'infinity', '-infinity', '2026-01-01', '3025-01-01', now());
CALL feed_publish(:'odd');

--
-- A page ends before a message that is due later.  If one comes first, all in
-- the page are parked, and the others are delivered.  Readers by cursor, and
-- other subscriptions, get all at once.
--
SELECT list('at once');
SELECT string_agg((entry).data::text, ' ') FROM feed_read(NULL::"Odd ""Name"", with a comma") WHERE op = 'upsert';
SELECT receipt AS first FROM feed_poll('later') \gset
SELECT list('later');
TABLE waiting;
SELECT feed_ack('later', :'first');
SELECT max(receipt) AS second FROM feed_poll('later') \gset
SELECT list('later');
TABLE waiting;
-- polled again, the page is the same one
SELECT feed_ack('later', :'second');
SELECT list('later');
TABLE left_over;

--
-- They are parked by the poll's transaction, and its receipts count if that
-- does.
--
CALL add(9, '3024-01-01', now(), '3023-01-01');
CALL feed_publish(:'odd');
BEGIN;
SELECT max(receipt) AS lost FROM feed_poll('later') \gset
SELECT count(*) FROM waiting;
ROLLBACK;
SELECT count(*) FROM waiting;
SELECT ack('later', :'lost');
SELECT count(*) FROM waiting;
BEGIN;
SELECT feed_ack('later', max(receipt)) FROM feed_poll('later');
ROLLBACK;
SELECT max(receipt) AS kept, max("row" ->> 'data') AS data FROM feed_poll('later') \gset
SELECT ack('later', :'kept'), :'data' AS data;
TABLE left_over;
BEGIN READ ONLY;
SELECT attempt($$SELECT feed_poll('later')$$);
COMMIT;
-- Nothing but messages that are due later: the poll passes them.
CALL add(12, '3022-01-01');
CALL feed_publish(:'odd');
SELECT list('later');
TABLE left_over;
TABLE waiting;

--
-- What is due comes in the order of its times, alone, before new messages, and
-- until it is acknowledged.
--
CALL pass(1000);
TABLE waiting;
CALL add(13, now());
CALL feed_publish(:'odd');
SELECT list('later'), list('later') AS again;
SELECT ack('later', receipt) FROM feed_poll('later');
BEGIN;
SELECT ack('later', receipt), list('later') AS next FROM feed_poll('later');
ROLLBACK;
SELECT drain('later');
TABLE waiting;

--
-- One that is never due can be delivered, or cancelled.
--
SELECT feed_retry('later');
SELECT feed_retry('later', cursor) FROM feedpub.parked WHERE subscription = 'later';
TABLE waiting;
SELECT list('later');
SELECT ack('later', receipt) FROM feed_poll('later');
CALL add(14, 'infinity', '3025-01-01', '3026-01-01');
CALL feed_publish(:'odd');
SELECT list('later');
SELECT sum(feed_discard('later', cursor)) FROM feedpub.parked WHERE message ->> 'data' IN ('14', '16');
TABLE waiting;
CALL pass(1000);
SELECT list('later');

--
-- Attempts count from the first delivery.
--
SELECT feed_nack('later', receipt, 'busy') FROM feed_poll('later');
TABLE waiting;
SELECT feed_retry('later');
SELECT ack('later', receipt), "row" ->> 'data' AS data, attempt FROM feed_poll('later');
SELECT feed_subscribe('tries', :'odd', 'latest', max_attempts => 2, backoff => '{1 h}', delayed => true) <> '' AS placed;
CALL add(17, '3025-01-01', '3026-01-01');
CALL feed_publish(:'odd');
SELECT list('tries'), list('later');
CALL pass(1000);
SELECT list('tries'), list('tries') AS again, list('tries') AS parked;
SELECT feed_nack('tries', receipt, 'busy') FROM feed_poll('tries');
TABLE waiting;
CALL add(19, '3025-01-01');
CALL feed_publish(:'odd');
SELECT list('tries'), list('later');
-- those that have failed come again
SELECT feed_retry('tries');
SELECT ack('tries', receipt), "row" ->> 'data' AS data FROM feed_poll('tries');
SELECT feed_nack('tries', receipt, 'busy again') FROM feed_poll('tries');
TABLE waiting;
SELECT feed_unsubscribe('tries');
SELECT drain('later');
CALL pass(1000);
SELECT drain('later');

--
-- What waits is kept, also if its row is gone.
--
-- Acknowledged in steps, a page leaves the rest.
CALL add(20, '3025-01-01', now(), '3026-01-01', now(), '3024-01-01');
CALL feed_publish(:'odd');
SELECT feed_ack('later', min(receipt)) FROM feed_poll('later', 2);
TABLE waiting;
SELECT ack('later', receipt), "row" ->> 'data' AS data FROM feed_poll('later');
SELECT list('later');
TABLE left_over;
SELECT feed_ack('at once', max(receipt)) FROM feed_poll('at once');
CALL feed_purge(:'odd', feed_head(:'odd'));
SELECT count(*) FROM :odd;
TABLE waiting;
CALL pass(1000);
SELECT entry IS NULL AS without_row FROM feed_poll_rows('later', NULL::"Odd ""Name"", with a comma");
SELECT ack('later', receipt), "row" ->> 'data' AS data, key::text FROM feed_poll('later');
SELECT drain('later');

--
-- A subscription that is moved back, that begins to delay, and that ends to.
--
CALL add(30, '3025-01-01', now(), '3026-01-01', '2026-01-01');
CALL feed_publish(:'odd');
SELECT drain('later');
SELECT feed_seek('later', 'earliest') <> '' AS moved;
SELECT list('later');
TABLE waiting;
SELECT max(receipt) AS before FROM feed_poll('at once') \gset
SELECT list('at once');
SELECT feed_alter_subscription('at once', delayed => true), feed_alter_subscription('later', delayed => false);
SELECT name, delayed FROM feedpub.subscriptions ORDER BY name;
SELECT ack('at once', :'before');
SELECT drain('at once');
SELECT feed_alter_subscription('at once', lease => '1 min');
CALL add(34, '3027-01-01');
CALL feed_publish(:'odd');
SELECT drain('at once'), drain('later');
TABLE waiting;
CALL pass(1001);
SELECT drain('later');
SELECT feed_unsubscribe('at once');
TABLE waiting;

--
-- Types, and shards
--
SELECT feed_subscribe('even', :'odd', 'latest', types => '{even}', delayed => true) <> '' AS placed;
SELECT feed_subscribe('group', :'odd', 'latest', shards => 3, delayed => true) <> '' AS placed;
CALL add(40, '3025-01-01', '3025-01-01', now(), now(), '3025-01-01', '3024-01-01', now(), now());
CALL feed_publish(:'odd');
SELECT list('even');
SELECT feed_ack('even', max(receipt)) FROM feed_poll('even');
CREATE TEMP TABLE delivered (data text);
CREATE PROCEDURE work(sub text) LANGUAGE plpgsql AS $$
DECLARE
	page record;
BEGIN
	FOR i IN 1..100 LOOP
		SELECT max(receipt) AS receipt, min(shard) AS shard, string_agg("row" ->> 'data', ' ') AS data, count(*) INTO page FROM feed_poll(sub, 100, 'w');
		IF page.count > 0 THEN
			INSERT INTO delivered (data) VALUES (page.data);
			PERFORM feed_ack(sub, page.receipt);
		END IF;
		COMMIT;
	END LOOP;
END $$;
CALL work('group');
TABLE waiting;
SELECT string_agg(d, ' ' ORDER BY d) FROM delivered, string_to_table(data, ' ') d;
SELECT shard, parked = (SELECT count(*) FROM feedpub.parked p WHERE p.subscription = s.subscription AND p.shard = s.shard) AS counted FROM feedpub.shards s WHERE subscription = 'group' ORDER BY shard;
CALL pass(1000);
TRUNCATE delivered;
CALL work('group');
SELECT string_agg(d, ' ' ORDER BY d) FROM delivered, string_to_table(data, ' ') d;
SELECT list('even');
SELECT drain('even');
SELECT feed_unsubscribe('even'), feed_unsubscribe('group');
SELECT drain('later');

--
-- Very many that are due later come first: each poll parks some, and passes
-- them, until the others are delivered.
--
SET feedpub.max_page_rows = 500;
INSERT INTO :odd (message_type, data, scheduled) SELECT 'many', '0', timestamptz '3025-01-01' + n % 100 * interval '1 s' FROM generate_series(1, 3000) n;
CALL add(50, now());
CALL feed_publish(:'odd');
SELECT feed_alter_subscription('later', delayed => true);
SELECT drain('later');
RESET feedpub.max_page_rows;
TABLE left_over;
SELECT state, count(*), count(DISTINCT retry_at) AS times, count(DISTINCT cursor) AS cursors FROM feedpub.parked GROUP BY state;

SELECT feed_unsubscribe('later');

--
-- Row security: what a role must not see waits for nobody.
--
SELECT feed_create('private') AS feed \gset
ALTER TABLE private ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON private USING (publication_id = current_setting('app.tenant', true));
GRANT SELECT ON private TO regress_feedpub_delayed;
SET ROLE regress_feedpub_delayed;
SET app.tenant = 'one';
SELECT feed_subscribe('tenant', 'private', 'earliest', delayed => true) <> '' AS placed;
RESET ROLE;
INSERT INTO private (publication_id, message_type, data, scheduled) VALUES
	('one', 'a', '1', '3025-01-01'), ('two', 'a', '2', '3025-01-01'), ('one', 'a', '3', now()), ('one', 'a', '4', '3025-01-01');
CALL feed_publish('private');
SET ROLE regress_feedpub_delayed;
SELECT list('tenant');
SELECT state, message IS NULL AS hidden FROM feedpub.parked;
SELECT drain('tenant');
RESET ROLE;
SELECT message ->> 'data' AS data FROM feedpub.parked ORDER BY 1;
CALL pass(1000);
SET ROLE regress_feedpub_delayed;
SELECT drain('tenant');
SELECT feed_unsubscribe('tenant');
RESET ROLE;

--
-- A poll that waits has a message when it is due, not before.
--
CREATE FUNCTION on_time(consumer text) RETURNS bool LANGUAGE plpgsql AS $$
DECLARE
	due timestamptz;
BEGIN
	FOR i IN 1..10 LOOP
		SELECT ("row" ->> 'scheduled')::timestamptz INTO due FROM feed_poll('soon', 10, consumer, timeout => '30 s');
		EXIT WHEN due IS NOT NULL;
	END LOOP;
	RETURN clock_timestamp() BETWEEN due AND due + interval '1 min';
END $$;
SELECT feed_subscribe('soon', 'private', 'latest', delayed => true, lease => '1 h') <> '' AS placed;
-- without a worker, and so with a warning
SET client_min_messages = error;
CREATE PROCEDURE soon() LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO private (message_type, data, scheduled) VALUES ('a', '5', clock_timestamp() + interval '1 s'), ('a', '6', 'infinity');
	COMMIT;
	CALL feed_publish('private');
	PERFORM FROM feed_poll('soon');
END $$;
CALL soon();
SELECT on_time(NULL);
SELECT drain('soon');
CALL soon();
SELECT on_time('worker');
RESET client_min_messages;
SELECT feed_leave('soon', 'worker');
SELECT drain('soon');

--
-- Feeds without such messages
--
CREATE TABLE kv (k int PRIMARY KEY, scheduled timestamptz);
SELECT feed_attach('kv');
SELECT feed_create_changes('changes') IS NOT NULL AS made;
SELECT attempt(format('SELECT feed_subscribe(%L, %L, delayed => true)', feed, feed)) FROM unnest('{kv,changes}'::text[]) feed;
SELECT feed_subscribe('kv', 'kv') <> '' AS placed;
SELECT attempt($$SELECT feed_alter_subscription('kv', delayed => true)$$);
SELECT attempt($$SELECT feed_subscribe('null', 'private', delayed => NULL)$$);
ALTER TABLE private DROP COLUMN scheduled;
INSERT INTO private (message_type, data) VALUES ('a', '7');
CALL feed_publish('private');
SELECT attempt($$SELECT feed_poll('soon')$$);
ALTER TABLE private ADD COLUMN scheduled timestamp;
SELECT attempt($$SELECT feed_subscribe('no', 'private', delayed => true)$$);
SELECT feed_alter_subscription('soon', delayed => false);
SELECT drain('soon');
CREATE DOMAIN due AS timestamptz CHECK (VALUE < 'infinity');
ALTER TABLE private DROP COLUMN scheduled, ADD COLUMN scheduled due;
SELECT feed_alter_subscription('soon', delayed => true);
INSERT INTO private (message_type, data, scheduled) VALUES ('a', '8', '3025-01-01'), ('a', '9', NULL);
CALL feed_publish('private');
SELECT (entry).data FROM feed_poll_rows('soon', NULL::private);
SELECT state, message ->> 'data' AS data FROM feedpub.parked ORDER BY data;

SELECT feed_unsubscribe(name) FROM feedpub.subscriptions;
SELECT count(*) FROM feedpub._parked_entry;
SELECT feed_detach('kv');
DROP TABLE kv;
DROP VIEW waiting, left_over;
SELECT feed_drop('changes'), feed_drop('private'), feed_drop(:'odd');
DROP FUNCTION list, attempt, ack, drain, on_time;
DROP PROCEDURE add, pass, work, soon;
DROP DOMAIN due;
DROP ROLE regress_feedpub_delayed;
SELECT feed_start_worker() IS NOT NULL AS started;
