-- What a page costs: buffers bounded by the limit, wherever the cursor is and
-- however large the backlog.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
SELECT feed_create('"Odd ""Name"", with a comma"');
CREATE ROLE regress_feedpub_reader;
GRANT SELECT ON "Odd ""Name"", with a comma" TO regress_feedpub_reader;
CREATE POLICY own ON "Odd ""Name"", with a comma" USING (message_key = current_user);
ANALYZE "Odd ""Name"", with a comma";
ALTER TABLE "Odd ""Name"", with a comma" ENABLE ROW LEVEL SECURITY;
SET ROLE regress_feedpub_reader;
SELECT message_type FROM feed_fetch('0', 0, 100);
SELECT message_type FROM feed_fetch(NULL::"Odd ""Name"", with a comma", '0', 0, 100);
RESET ROLE;
ALTER TABLE "Odd ""Name"", with a comma" DISABLE ROW LEVEL SECURITY;

-- 100,000 messages of about 300 bytes, in transactions of 1 to 500
DO $$
DECLARE
	n int := 0;
	size int;
BEGIN
	FOR i IN 1..1000000 LOOP
		size := least((array[1, 10, 100, 500])[1 + i % 4], 100000 - n);
		INSERT INTO "Odd ""Name"", with a comma" (message_type, message_key, data)
			SELECT 'message', 'regress_feedpub_reader', jsonb_build_object('n', n + j, 'text', repeat(md5(i::text), 5))
			  FROM generate_series(1, size) j;
		n := n + size;
		COMMIT;
		EXIT WHEN n >= 100000;
	END LOOP;
END $$;
SELECT count(*), avg(pg_column_size(o)) BETWEEN 280 AND 340 AS about_300_bytes FROM "Odd ""Name"", with a comma" o;
-- Cursors at the beginning, in the middle, near the tail, and at the end
CREATE TABLE point AS
	SELECT 'beginning' AS point, '0'::xid8 AS x, 0::bigint AS p
	UNION ALL SELECT 'second page', feed_xid, feed_pos FROM "Odd ""Name"", with a comma" WHERE data ->> 'n' = '100'
	UNION ALL SELECT 'middle', feed_xid, feed_pos FROM "Odd ""Name"", with a comma" WHERE data ->> 'n' = '50000'
	UNION ALL SELECT 'tail', feed_xid, feed_pos FROM "Odd ""Name"", with a comma" WHERE data ->> 'n' = '99900'
	UNION ALL SELECT 'end', feed_xid, feed_pos FROM "Odd ""Name"", with a comma" WHERE data ->> 'n' = '100000';
GRANT SELECT ON point TO regress_feedpub_reader;

-- The buffers that a query touches in a session that has run it before.
CREATE FUNCTION buffers(query text, OUT buffers int, OUT rows int) LANGUAGE plpgsql AS $$
DECLARE
	plan json;
BEGIN
	FOR i IN 1..2 LOOP
		EXECUTE 'EXPLAIN (ANALYZE, BUFFERS, TIMING off, FORMAT json) ' || query INTO plan;
	END LOOP;
	plan := plan -> 0 -> 'Plan';
	buffers := (plan ->> 'Shared Hit Blocks')::int + (plan ->> 'Shared Read Blocks')::int
		+ (plan ->> 'Temp Read Blocks')::int + (plan ->> 'Temp Written Blocks')::int;
	rows := round((plan ->> 'Actual Rows')::numeric);
END $$;
-- Pages by name, and of the default feed, at each point
CREATE VIEW page AS
	SELECT point, lim, named.rows, named.buffers, by_default.buffers AS by_default, by_default.rows AS default_rows
	  FROM point, unnest(array[1, 100]) lim,
	       buffers(format('SELECT * FROM feed_fetch(NULL::%s, %L, %s, %s)', '"Odd ""Name"", with a comma"', x, p, lim)) named,
	       buffers(format('SELECT * FROM feed_fetch(%L, %s, %s)', x, p, lim)) by_default;
GRANT SELECT ON page TO regress_feedpub_reader;
-- (What is counted: a scan of the whole table takes many.)
SELECT buffers > 1000 AS whole_table FROM buffers('SELECT count(*) FROM "Odd ""Name"", with a comma"');

-- At most 30 buffers for 100 rows, and 6 for an empty page (two of them for the
-- floor), before the table
-- was ever analyzed and after
SELECT point, lim, rows, default_rows, buffers BETWEEN 1 AND CASE WHEN rows = 0 THEN 6 ELSE 30 END AS bounded,
       by_default BETWEEN 1 AND CASE WHEN rows = 0 THEN 6 ELSE 30 END AS default_bounded
  FROM page ORDER BY lim, point;
VACUUM ANALYZE "Odd ""Name"", with a comma";
SELECT point, lim, rows, default_rows, buffers BETWEEN 1 AND CASE WHEN rows = 0 THEN 6 ELSE 30 END AS bounded,
       by_default BETWEEN 1 AND CASE WHEN rows = 0 THEN 6 ELSE 30 END AS default_bounded
  FROM page ORDER BY lim, point;
-- The head, which reads nothing, and the figures of a feed that is published
-- (the sequence is found in pg_depend, whose rows lie anywhere)
CLUSTER pg_depend USING pg_depend_reference_index;
SELECT buffers <= 4 AS bounded FROM buffers('SELECT * FROM feed_xid_head(''"Odd ""Name"", with a comma"'')');
CALL feed_publish();
SELECT buffers <= 200 AS bounded FROM buffers('SELECT * FROM feedpub._feed_stats(''"Odd ""Name"", with a comma"''::regclass)');

--
-- Through row security: the same, and each row is looked up once more; of a
-- small page 32 of them.
--
ALTER TABLE "Odd ""Name"", with a comma" ENABLE ROW LEVEL SECURITY;
SET ROLE regress_feedpub_reader;
SELECT point, lim, rows, default_rows, buffers BETWEEN 1 AND CASE WHEN rows = 0 THEN 6 ELSE 40 + greatest(lim, 32) END AS bounded,
       by_default BETWEEN 1 AND CASE WHEN rows = 0 THEN 6 ELSE 40 + greatest(lim, 32) END AS default_bounded
  FROM page ORDER BY lim, point;
RESET ROLE;
-- In a session of its own, which finds the statistics there
\c
SET ROLE regress_feedpub_reader;
SELECT point, lim, rows, default_rows, buffers BETWEEN 1 AND CASE WHEN rows = 0 THEN 6 ELSE 40 + greatest(lim, 32) END AS bounded,
       by_default BETWEEN 1 AND CASE WHEN rows = 0 THEN 6 ELSE 40 + greatest(lim, 32) END AS default_bounded
  FROM page ORDER BY lim, point;
-- And in one to which an index seems dear: nothing is known of the order of
-- the rows, and random access costs much.
\c
DELETE FROM pg_statistic WHERE starelid = '"Odd ""Name"", with a comma"'::regclass;
SET ROLE regress_feedpub_reader;
SET random_page_cost = 1000;
SELECT point, lim, rows, default_rows, buffers BETWEEN 1 AND CASE WHEN rows = 0 THEN 6 ELSE 40 + greatest(lim, 32) END AS bounded,
       by_default BETWEEN 1 AND CASE WHEN rows = 0 THEN 6 ELSE 40 + greatest(lim, 32) END AS default_bounded
  FROM page ORDER BY lim, point;
RESET ROLE;
RESET random_page_cost;
ANALYZE "Odd ""Name"", with a comma";
-- The table is read by its index only, also if the planner estimates that as
-- the worse choice: a limit as large as the table.
SET SESSION AUTHORIZATION DEFAULT;
SET feedpub.max_page_rows = 1000000;
SET ROLE regress_feedpub_reader;
BEGIN;
SELECT count(*) FROM feed_fetch('0', 0, 100000);
SELECT count(*) FROM feed_fetch(NULL::"Odd ""Name"", with a comma", '0', 0, 100000);
SELECT seq_scan = 0 AS no_seq_scan, idx_scan >= 2 AS idx_scans FROM pg_stat_xact_user_tables WHERE relid = '"Odd ""Name"", with a comma"'::regclass;
COMMIT;
RESET ROLE;
RESET feedpub.max_page_rows;
-- Other indexes are no temptation, nor a policy that they would serve.
CREATE INDEX ON "Odd ""Name"", with a comma" (message_key);
CREATE INDEX ON "Odd ""Name"", with a comma" (feed_pos);
CREATE INDEX ON "Odd ""Name"", with a comma" (message_key, feed_xid);
ANALYZE "Odd ""Name"", with a comma";
SET ROLE regress_feedpub_reader;
SELECT point, lim, rows, default_rows, buffers BETWEEN 1 AND CASE WHEN rows = 0 THEN 6 ELSE 40 + greatest(lim, 32) END AS bounded,
       by_default BETWEEN 1 AND CASE WHEN rows = 0 THEN 6 ELSE 40 + greatest(lim, 32) END AS default_bounded
  FROM page ORDER BY lim, point;
RESET ROLE;

--
-- With every row but a few deleted, once vacuumed
--
DELETE FROM "Odd ""Name"", with a comma" WHERE (data ->> 'n')::int % 1000 <> 0;
VACUUM "Odd ""Name"", with a comma";
ALTER TABLE "Odd ""Name"", with a comma" DISABLE ROW LEVEL SECURITY;
SELECT point, lim, rows, buffers <= 2 * rows + 30 AS bounded, by_default <= 2 * rows + 30 AS default_bounded
  FROM page WHERE point IN ('beginning', 'end') ORDER BY lim, point;

DROP VIEW page;
DROP FUNCTION buffers;
DROP TABLE point;
SELECT feed_drop('"Odd ""Name"", with a comma"');
DROP ROLE regress_feedpub_reader;
