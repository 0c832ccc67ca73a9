-- feedpub._page_lines(): the same pages as feed_page(), a line for each entry.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
CREATE ROLE regress_feedpub_reader;
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
CREATE TABLE "Odd ""Name" (k text PRIMARY KEY, v text);
SELECT feed_attach('"Odd ""Name"');

-- The page that the lines make, put together as feed_page() does
CREATE FUNCTION joined(feed regclass, after text, max_rows int, shard int DEFAULT NULL, shards int DEFAULT NULL) RETURNS text LANGUAGE sql AS $$
	WITH r AS MATERIALIZED (SELECT row, n, count(*) OVER () AS rows FROM string_to_table(feedpub._page_lines(feed, after, max_rows, shard, shards), E'\n') WITH ORDINALITY AS p (row, n))
	SELECT '{"entries": [' || coalesce(string_agg(row, ', ' ORDER BY n) FILTER (WHERE n < rows), '') || '], "cursor": "' || split_part(max(row) FILTER (WHERE n = rows), ' ', 1) || '", "more": ' || (split_part(max(row) FILTER (WHERE n = rows), ' ', 2) = 'more') || '}' FROM r
$$;
-- Pages from the beginning to the end; returns how many there were.
CREATE FUNCTION follow(feed regclass, max_rows int, shard int DEFAULT NULL, shards int DEFAULT NULL, OUT pages int, OUT entries int, OUT cursors int, OUT differences int) LANGUAGE plpgsql AS $$
DECLARE
	page text;
	after text := '';
BEGIN
	pages := 0; entries := 0; cursors := 0; differences := 0;
	LOOP
		page := feed_page(feed, after, max_rows, shard, shards);
		IF page IS DISTINCT FROM joined(feed, after, max_rows, shard, shards) THEN
			differences := differences + 1;
		END IF;
		-- each entry begins with its cursor, which begins at the 13th character
		SELECT cursors + count(*) FILTER (WHERE substr(row, 13, length(c)) = c)
		  INTO cursors
		  FROM string_to_table(feedpub._page_lines(feed, after, max_rows, shard, shards), E'\n') row, LATERAL (SELECT row::json ->> 'cursor' AS c WHERE row LIKE '{%') e;
		pages := pages + 1;
		entries := entries + json_array_length(page::json -> 'entries');
		after := page::json ->> 'cursor';
		EXIT WHEN NOT (page::json ->> 'more')::bool;
	END LOOP;
END $$;
SELECT * FROM follow('"Odd ""Name"', 3);
INSERT INTO "Odd ""Name" SELECT 'key ' || i, CASE WHEN i % 3 > 0 THEN E'Odd "\\\n' || i END FROM generate_series(1, 10) i;
CALL feed_publish();
DELETE FROM "Odd ""Name" WHERE k = 'key 4';
CALL feed_publish();
SELECT * FROM follow('"Odd ""Name"', 3);
SELECT * FROM follow('"Odd ""Name"', 100);
SELECT * FROM follow('"Odd ""Name"', 1);
SELECT sum(entries) AS entries, sum(differences) AS differences FROM generate_series(0, 2) s, follow('"Odd ""Name"', 2, s, 3);
-- A value of type json with line breaks stays one line.
CREATE TABLE j (k int PRIMARY KEY, v json);
SELECT feed_attach('j');
INSERT INTO j VALUES (1, E'{"a":\r\n\n"b\\nc"}'), (2, E'[\n]');
CALL feed_publish();
SELECT n, row LIKE '{%' AS entry, CASE WHEN row LIKE '{%' THEN row::json -> 'row' ->> 'v' END AS v
  FROM string_to_table(feedpub._page_lines('j'), E'\n') WITH ORDINALITY AS p (row, n);
DROP TABLE j;
-- TRUNCATE, and rows that are gone
TRUNCATE "Odd ""Name";
INSERT INTO "Odd ""Name" VALUES ('key 1', 'x');
CALL feed_publish();
SELECT * FROM follow('"Odd ""Name"', 100);
-- By the function that runs the statements of a server
SELECT count(*) AS rows, max(regexp_replace(r, '^(\S+) (more|end) (\d+) (outbox|table) (-?\d+)$', '\2 \4 \5')) FILTER (WHERE r NOT LIKE '{%') AS end
  FROM feedpub._restricted('SELECT pg_catalog.string_to_table(feedpub._page_lines($1::pg_catalog.regclass, $2, $3::pg_catalog.int4), E''\n'')', '"Odd ""Name"', '', '100') r;
-- Errors and rights are those of feed_page().
\set VERBOSITY terse
SELECT feedpub._page_lines(NULL);
SELECT feedpub._page_lines('"Odd ""Name"', NULL);
SELECT feedpub._page_lines('"Odd ""Name"', 'x');
SELECT feedpub._page_lines('"Odd ""Name"', '', 0);
SELECT feedpub._page_lines('feedpub._feed');
SET ROLE regress_feedpub_reader;
SELECT feedpub._page_lines('"Odd ""Name"');
RESET ROLE;
GRANT SELECT ON "Odd ""Name" TO regress_feedpub_reader;
ALTER TABLE "Odd ""Name" ENABLE ROW LEVEL SECURITY;
CREATE POLICY none ON "Odd ""Name" USING (false);
SET ROLE regress_feedpub_reader;
SELECT * FROM follow('"Odd ""Name"', 100);
RESET ROLE;

SET client_min_messages = warning;
DROP FUNCTION joined, follow;
DROP TABLE "Odd ""Name";
DROP ROLE regress_feedpub_reader;
