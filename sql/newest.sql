-- feedpub._newest(): a cursor about so many entries before the end of a feed.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
SELECT feed_stop_worker() IS NOT NULL AS stopped;
SET feedpub.read_wait = 0;
CREATE FUNCTION newest(feed regclass, n int, max_rows int DEFAULT 100) RETURNS text LANGUAGE sql AS $$
	SELECT concat_ws(' ', coalesce(string_agg(coalesce(e -> 'row' ->> 'data', e -> 'key' ->> 'k'), ' ' ORDER BY i), '-'),
		CASE WHEN p ->> 'more' = 'true' THEN 'more' END)
	FROM feed_page(feed, feedpub._newest(feed, n), max_rows) p
	LEFT JOIN LATERAL json_array_elements(p -> 'entries') WITH ORDINALITY x (e, i) ON true GROUP BY p ->> 'more'
$$;

-- Nothing yet; batches of one row, of several, of many
SELECT feed_create('numbers', 'json');
SELECT newest('numbers', 5);
SELECT feedpub._newest('numbers', 5) = feed_head('numbers') AS is_head;
INSERT INTO numbers (message_type, data) VALUES ('n', '1');
CALL feed_publish('numbers');
INSERT INTO numbers (message_type, data) VALUES ('n', '2'), ('n', '3');
CALL feed_publish('numbers');
INSERT INTO numbers (message_type, data) SELECT 'n', to_json(i) FROM generate_series(4, 40) i;
CALL feed_publish('numbers');
INSERT INTO numbers (message_type, data) VALUES ('n', '41');
CALL feed_publish('numbers');
SELECT n, newest('numbers', n) FROM unnest('{1,2,5,37}'::int[]) n;
SELECT n, left(newest('numbers', n), 8) FROM unnest('{38,39,40,41,42,2147483647}'::int[]) n;
SELECT newest('numbers', 10, 3);

-- What waits is not there.  Positions that were lost count.
INSERT INTO numbers (message_type, data) VALUES ('n', '42');
SELECT newest('numbers', 3);
BEGIN;
INSERT INTO numbers (message_type, data) VALUES ('n', '-1'), ('n', '-2');
ROLLBACK;
CALL feed_publish('numbers');
INSERT INTO numbers (message_type, data) VALUES ('n', '43');
CALL feed_publish('numbers');
SELECT n, newest('numbers', n) FROM unnest('{1,2,3,4,5}'::int[]) n;

-- Not before the floor
SELECT e ->> 'cursor' AS cursor FROM feed_page('numbers') p, json_array_elements(p -> 'entries') e WHERE e -> 'row' ->> 'data' = '41' \gset
CALL feed_purge('numbers', :'cursor');
SELECT newest('numbers', 100);
SELECT n, newest('numbers', n) FROM unnest('{1,2,10}'::int[]) n;

-- A table feed: what was there before has no position
CREATE TABLE kv (k text PRIMARY KEY, v text);
INSERT INTO kv VALUES ('before', 1);
SELECT feed_attach('kv') IS NULL AS attached;
SELECT newest('kv', 3);
INSERT INTO kv VALUES ('a', 1), ('b', 1), ('c', 1), ('d', 1);
CALL feed_publish('kv');
DELETE FROM kv WHERE k = 'a';
UPDATE kv SET v = 2 WHERE k = 'c';
CALL feed_publish('kv');
SELECT n, newest('kv', n) FROM unnest('{1,2,3,4,100}'::int[]) n;

-- Refused
SELECT feedpub._newest('numbers', 0);
SELECT feedpub._newest('numbers', NULL);
SELECT feedpub._newest('pg_class', 1);
CREATE ROLE regress_feedpub_newest;
SET ROLE regress_feedpub_newest;
SELECT feedpub._newest('numbers', 1);
RESET ROLE;

DROP ROLE regress_feedpub_newest;
DROP FUNCTION newest;
DROP TABLE kv;
SELECT feed_drop('numbers');
