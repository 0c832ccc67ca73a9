-- A page ends when its rows have 64 MB, whatever max_rows: the JSON of more
-- could not be returned.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
SELECT feed_stop_worker() IS NOT NULL AS stopped;
SET feedpub.read_wait = 0;
SELECT feed_create('outbox');
INSERT INTO outbox (message_type, data) SELECT i, to_jsonb(repeat('x', 1048576)) FROM generate_series(1, 70) i;
CALL feed_publish();
CREATE TABLE page AS
	SELECT 1 AS n, json_array_length(p -> 'entries') AS rows, p ->> 'cursor' AS cursor, p ->> 'more' AS more
	FROM (SELECT feed_page('outbox', '', 10000) AS p OFFSET 0) p;
INSERT INTO page
	SELECT 2, json_array_length(p -> 'entries'), p ->> 'cursor', p ->> 'more'
	FROM (SELECT feed_page('outbox', (SELECT cursor FROM page WHERE n = 1), 10000) AS p OFFSET 0) p;
-- The row that fills it is in it.
SELECT n, rows, more FROM page ORDER BY n;
SELECT count(*), count(*) FILTER (WHERE op <> 'upsert') AS others, max((entry).message_type::int) AS last FROM feed_read(NULL::outbox, '', 10000);
SELECT count(*), count(*) FILTER (WHERE op <> 'upsert') AS others, min((entry).message_type::int) AS first FROM feed_read(NULL::outbox, (SELECT cursor FROM page WHERE n = 1), 10000);
-- One row that is larger is a page.
INSERT INTO outbox (message_type, data) VALUES ('large', to_jsonb(repeat('x', 68 * 1048576))), ('small', '1');
CALL feed_publish();
SELECT length(p::text) > 68 * 1048576 AS large, json_array_length(p -> 'entries') AS rows, p ->> 'more' AS more
	FROM (SELECT feed_page('outbox', (SELECT cursor FROM page WHERE n = 2), 10000) AS p OFFSET 0) p;
SELECT op, left((entry).message_type, 9) AS type FROM feed_read(NULL::outbox, (SELECT cursor FROM page WHERE n = 2), 10000);
DROP TABLE page;

--
-- The same under row security, where rows that are hidden count: they are
-- read, too.
--
CREATE ROLE regress_feedpub_reader;
ALTER TABLE outbox ENABLE ROW LEVEL SECURITY;
CREATE POLICY some_rows ON outbox FOR SELECT USING (message_type <> '2');
GRANT SELECT ON outbox TO regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
SELECT json_array_length(p -> 'entries') AS rows, p ->> 'more' AS more
	FROM (SELECT feed_page('outbox', '', 10000) AS p OFFSET 0) p;
SELECT count(*), count(*) FILTER (WHERE op <> 'upsert') AS others FROM feed_read(NULL::outbox, '', 10000);
-- A page of which nothing may be seen says how far it got, so it goes on.
RESET ROLE;
ALTER POLICY some_rows ON outbox USING (message_type = 'small');
SET ROLE regress_feedpub_reader;
SELECT json_array_length(p -> 'entries') AS rows, p ->> 'more' AS more
	FROM (SELECT feed_page('outbox', '', 10000) AS p OFFSET 0) p;
SELECT string_agg(op, ' ') FROM feed_read(NULL::outbox, '', 10000);
WITH RECURSIVE page (n, p) AS (
	SELECT 1, feed_page('outbox', '', 10000)
	UNION ALL
	SELECT n + 1, feed_page('outbox', p ->> 'cursor', 10000) FROM page WHERE p ->> 'more' = 'true'
)
SELECT n, json_array_length(p -> 'entries') AS rows FROM page;
RESET ROLE;
SELECT feed_drop('outbox');

-- Values that are longer as JSON: a page of lines ends with the entry that fills
-- its text, which has 8 MB.
SELECT feed_create('escaped', 'text');
INSERT INTO escaped (message_type, data) SELECT i, repeat(E'\x01', 1048576) FROM generate_series(1, 12) i;
CALL feed_publish();
WITH RECURSIVE page (n, p) AS (
	SELECT 1, feedpub._page_lines('escaped', '', 100)
	UNION ALL
	SELECT n + 1, feedpub._page_lines('escaped', split_part(split_part(p, E'\n', -1), ' ', 1), 100)
	  FROM page WHERE split_part(split_part(p, E'\n', -1), ' ', 2) = 'more'
)
SELECT n, length(p) - length(replace(p, E'\n', '')) AS rows, split_part(split_part(p, E'\n', -1), ' ', 2) AS more FROM page;
SELECT feed_drop('escaped');
DROP ROLE regress_feedpub_reader;
