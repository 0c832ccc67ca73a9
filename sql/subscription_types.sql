-- Subscriptions that want only some types.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
SELECT feed_stop_worker() IS NOT NULL AS stopped;
SET feedpub.read_wait = 0;
CREATE ROLE regress_feedpub_typed;
CREATE ROLE regress_feedpub_watch;
GRANT pg_read_all_stats TO regress_feedpub_watch;
\set odd '"Odd ""Name"", with a comma"'
SELECT feed_create(:'odd') AS feed \gset
CREATE PROCEDURE add(first int, VARIADIC types text[]) LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO "Odd ""Name"", with a comma" (message_type, message_key, data) SELECT t, 'key ' || n % 5, to_jsonb(first + n - 1) FROM unnest(types) WITH ORDINALITY u (t, n);
END $$;
CREATE FUNCTION list(sub text, max_rows int DEFAULT 100, consumer text DEFAULT NULL) RETURNS text LANGUAGE sql AS $$
	SELECT string_agg("row" ->> 'data', ' ') FROM feed_poll(sub, max_rows, consumer)
$$;
CREATE FUNCTION attempt(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	result text;
BEGIN
	EXECUTE statement INTO result;
	RETURN result;
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE || ': ' || SQLERRM;
END $$;
-- the last entry that the committed cursor has passed, and what is after it
CREATE VIEW state AS
	SELECT s.name, s.types, (SELECT count(*) FROM feed_read(NULL::"Odd ""Name"", with a comma", s.cursor) WHERE op = 'upsert') AS left_over,
		s.lag_rows, s.lag_more, s.lag IS NOT NULL AS lags
	FROM feedpub.subscriptions s ORDER BY s.name;
CALL add(1, 'OrderPlaced', 'Stock', 'Stock', 'OrderPaid', 'Stock', 'Invoice');
CALL feed_publish(:'odd');
SELECT feed_subscribe('orders', :'odd', 'earliest', types => '{Order*}') <> '' AS placed;
SELECT feed_subscribe('invoices', :'odd', 'earliest', types => '{Invoice,Reminder}') <> '' AS placed;
SELECT feed_subscribe('nothing', :'odd', 'earliest', types => '{Nothing}') <> '' AS placed;
SELECT feed_subscribe('all', :'odd', 'earliest', types => '{Order*,*}') <> '' AS placed;
TABLE state;

--
-- What is not wanted is neither delivered nor counted, and passed.
--
SELECT list('orders', 1), list('orders', 2) AS both, list('invoices'), list('nothing'), list('all');
TABLE state;
SELECT (entry).message_type, attempt FROM feed_poll_rows('orders', NULL::"Odd ""Name"", with a comma", 2);
SELECT feed_ack('orders', max(receipt)) FROM feed_poll('orders', 1);
TABLE state;
SELECT feed_ack('orders', max(receipt)) FROM feed_poll('orders');
SELECT list('orders') IS NULL AS none;
TABLE state;
SELECT feed_subscribe('orders', :'odd', types => '{Other}', if_not_exists => true) <> '' AS kept;
TABLE state;

--
-- Failures: parking, retry, attempts
--
SELECT feed_nack('invoices', receipt, 'no address', '0'), feed_ack('invoices', receipt) FROM feed_poll('invoices');
SELECT "row" ->> 'data' AS data, attempt FROM feed_poll('invoices');
CALL add(7, 'Stock', 'Invoice', 'Stock');
CALL feed_publish(:'odd');
SELECT feed_ack('invoices', max(receipt)) FROM feed_poll('invoices');
SELECT list('invoices');
SELECT feed_park('invoices', receipt), feed_ack('invoices', receipt) FROM feed_poll('invoices');
SELECT feed_retry('invoices');
SELECT "row" ->> 'data' AS data, attempt FROM feed_poll('invoices');

--
-- Other types: what was passed stays so, what was delivered and is not
-- acknowledged comes again, and parked entries stay.
--
CALL add(10, 'OrderSent', 'Stock', 'Invoice', 'OrderSent', 'Stock');
CALL feed_publish(:'odd');
SELECT receipt AS first FROM feed_poll('orders', 1) \gset
SELECT feed_alter_subscription('orders', types => '{Stock,OrderSent}');
SELECT attempt(format('SELECT feed_ack(%L, %L)', 'orders', :'first')) AS ack;
SELECT list('orders');
SELECT feed_alter_subscription('orders', lease => '1 min', max_attempts => 3);
SELECT feed_ack('orders', max(receipt)) FROM feed_poll('orders', 2);
SELECT max(receipt) AS acked FROM feed_poll('orders', 1) \gset
SELECT feed_ack('orders', :'acked');
SELECT feed_alter_subscription('orders', types => '{Invoice}');
-- of the page that was acknowledged last, too
SELECT attempt(format('SELECT feed_ack(%L, %L)', 'orders', :'acked')) AS ack;
SELECT list('orders');
SELECT feed_ack('orders', max(receipt)) FROM feed_poll('orders');
SELECT list('orders') IS NULL AS none;
SELECT feed_alter_subscription('orders', types => '{*}');
SELECT list('orders') IS NULL AS passed;
TABLE state;
SELECT feed_alter_subscription('invoices', types => '{OrderSent}');
SELECT list('invoices', 1) AS parked;
SELECT feed_ack('invoices', receipt) FROM feed_poll('invoices', 1);
SELECT list('invoices');
-- A lease stays.
SELECT feed_seek('orders', 'earliest') <> '' AS moved;
SELECT list('orders', 1, 'worker');
SELECT feed_alter_subscription('orders', types => '{OrderP*}');
SELECT list('orders', 10, 'worker'), list('orders', 10, 'other') IS NULL AS held;

--
-- With shards
--
SELECT feed_subscribe('group', :'odd', 'earliest', shards => 4, types => '{Order*}') <> '' AS placed;
CREATE TABLE got (n int);
DO $$
BEGIN
	FOR i IN 1 .. 200 LOOP
		WITH page AS MATERIALIZED (SELECT * FROM feed_poll('group', 1, 'worker')), acked AS MATERIALIZED (SELECT *, feed_ack('group', receipt) FROM page)
		INSERT INTO got SELECT ("row" ->> 'data')::int FROM acked WHERE feed_ack;
	END LOOP;
END $$;
SELECT array_agg(n ORDER BY n) FROM got;
SELECT lag_rows, lag_more FROM feedpub.subscriptions WHERE name = 'group';
SELECT feed_unsubscribe('group');

--
-- The lag: wanted messages are counted up to a thousand, and looked for in the
-- first ten thousand rows.
--
SELECT feed_seek(name, 'latest') <> '' AS moved FROM feedpub.subscriptions WHERE name <> 'all';
SELECT feed_alter_subscription('orders', types => '{many}');
SELECT feed_alter_subscription('invoices', types => '{rare}');
INSERT INTO :odd (message_type, data) SELECT 'many', '0' FROM generate_series(1, 1000);
CALL feed_publish(:'odd');
SELECT * FROM state WHERE name IN ('orders', 'invoices', 'nothing');
INSERT INTO :odd (message_type, data) SELECT 'many', '0' FROM generate_series(1, 9500);
INSERT INTO :odd (message_type, data) VALUES ('rare', '1');
CALL feed_publish(:'odd');
SELECT * FROM state WHERE name IN ('orders', 'invoices', 'nothing');
SELECT list('invoices'), list('nothing') IS NULL AS passed;
SELECT * FROM state WHERE name IN ('orders', 'invoices', 'nothing');

--
-- Who may not know what is in the feed is told an estimate of all types: a
-- monitor without SELECT, and a role under row security.
--
SET ROLE regress_feedpub_watch;
SELECT name, lag_rows, lag_more, lag IS NOT NULL AS lags FROM feedpub.subscriptions WHERE name IN ('orders', 'nothing') ORDER BY name;
RESET ROLE;
ALTER TABLE :odd ENABLE ROW LEVEL SECURITY;
CREATE POLICY few ON :odd FOR SELECT TO regress_feedpub_typed USING (message_type <> 'secret');
GRANT SELECT ON :odd TO regress_feedpub_typed;
SET ROLE regress_feedpub_typed;
SELECT feed_subscribe('typed', :'odd', types => '{secret,open,other}') <> '' AS placed;
RESET ROLE;
CALL add(20, 'Stock', 'open', 'secret', 'Stock', 'other', 'Stock', 'secret');
CALL feed_publish(:'odd');
SET ROLE regress_feedpub_typed;
SELECT lag_rows, lag_more FROM feedpub.subscriptions;
-- The cursor stops before what is hidden.
SELECT feed_ack('typed', max(receipt)) FROM feed_poll('typed');
SELECT list('typed') IS NULL AS none;
RESET ROLE;
SELECT (entry).data FROM feedpub.subscriptions s, feed_read(NULL::"Odd ""Name"", with a comma", s.cursor) WHERE s.name = 'typed' AND op = 'upsert';
ALTER TABLE :odd DISABLE ROW LEVEL SECURITY;

--
-- What is refused
--
CREATE TABLE t (id int PRIMARY KEY);
SELECT feed_attach('t');
SELECT attempt('SELECT feed_subscribe(''t'', ''t'', types => ''{a}'')');
SELECT attempt('SELECT feed_subscribe(''t'', ''t'', types => ''{a,*}'')') <> '' AS all;
SELECT attempt('SELECT feed_alter_subscription(''t'', types => ''{a}'')');
SELECT attempt('SELECT feed_alter_subscription(''orders'', types => ''{}'')');
SELECT attempt('SELECT feed_alter_subscription(''orders'', types => ''{a,NULL}'')');
SELECT attempt('SELECT feed_subscribe(''new'', ''t'', types => ''{}'')');
SELECT attempt('SELECT feedpub._lag(NULL, '''', NULL)');
SELECT name, types FROM feedpub.subscriptions ORDER BY name;
-- Without its column the feed is refused, until all is wanted.
DROP POLICY few ON :odd;
ALTER TABLE :odd RENAME message_type TO kind;
SELECT attempt('SELECT list(''orders'')');
SELECT lag_more FROM feedpub.subscriptions WHERE name = 'orders';
SELECT feed_alter_subscription('orders', types => '{*}');
SELECT list('orders', 1);

DROP VIEW state;
DROP FUNCTION list, attempt;
DROP PROCEDURE add;
SELECT feed_drop(:'odd', cascade => true);
SELECT feed_unsubscribe('t');
DROP TABLE t, got;
DROP ROLE regress_feedpub_typed, regress_feedpub_watch;
