-- A partitioned table as a feed: one feed with all its partitions, those that
-- come later too.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
-- Entries, less what differs from run to run
CREATE FUNCTION steady(j json) RETURNS json LANGUAGE sql AS $$
	SELECT regexp_replace(j::text, '"cursor": "[^"]*", |, "xid": [^,]*, "published_at": ("[^"]*"|null)', '', 'g')::json
$$;
-- Here batches are made by hand: no worker, and reads do not wait for one.
SELECT feed_stop_worker() IS NOT NULL AS stopped;
DO $$
BEGIN
	WHILE EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'feedpub worker' AND datname = current_database()) LOOP
		PERFORM pg_stat_clear_snapshot();
	END LOOP;
END $$;
SET feedpub.read_wait = 0;

--
-- By region, and one of them by number.  The partitions have the columns in
-- another order, and dropped ones between them.
--
CREATE TABLE ev (region text, gone int, n int, v text, note text, PRIMARY KEY (region, n)) PARTITION BY LIST (region);
CREATE TABLE "ev ""eu"", with a comma" (gone2 int, note text, v text, gone int, n int NOT NULL, region text NOT NULL);
ALTER TABLE "ev ""eu"", with a comma" DROP gone2;
ALTER TABLE ev ATTACH PARTITION "ev ""eu"", with a comma" FOR VALUES IN ('eu');
CREATE TABLE ev_us PARTITION OF ev FOR VALUES IN ('us');
ALTER TABLE ev DROP gone;
CREATE TABLE ev_rest PARTITION OF ev DEFAULT PARTITION BY RANGE (n);
CREATE TABLE ev_low PARTITION OF ev_rest FOR VALUES FROM (0) TO (100);
CREATE TABLE ev_high (v text, n int NOT NULL, region text NOT NULL, note text);
ALTER TABLE ev_rest ATTACH PARTITION ev_high DEFAULT;
INSERT INTO ev SELECT r, n, 'old' FROM unnest('{eu,us,asia}'::text[]) r, unnest('{1,2,200}'::int[]) n;
SELECT feed_attach('ev');
SELECT feed, kind, key, deletes, state FROM feedpub.feeds WHERE feed = 'ev'::regclass;
SELECT * FROM feed_check('ev');
SELECT feed_attach('ev') IS NULL AS ready;
-- Each partition's triggers are there, and always fire.
SELECT tgrelid::regclass AS tab, string_agg(tgname || ' ' || tgenabled::text || CASE WHEN tgparentid <> 0 THEN ' clone' ELSE '' END, ', ' ORDER BY tgname) AS triggers
	FROM pg_trigger WHERE NOT tgisinternal GROUP BY 1 ORDER BY tgrelid::regclass::text COLLATE "C";

-- What a reader gets from a cursor on, page by page: "*" when stamped, "." for
-- an end.  Cursors grow, and feed_page says the same.
CREATE FUNCTION pages(max_rows int, after text DEFAULT '') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	pages text[];
	page text;
	next text;
	json json;
BEGIN
	FOR i IN 1..100 LOOP
		SELECT string_agg(CASE op WHEN 'end' THEN '.' WHEN 'truncate' THEN op
				ELSE CASE op WHEN 'delete' THEN '-' ELSE '' END || (entry).region || (entry).n || coalesce('=' || (entry).v, '') || CASE WHEN (entry).feed_pos IS NULL THEN '' ELSE '*' END END, ' ' ORDER BY r.ordinality),
			(array_agg(cursor ORDER BY r.ordinality DESC))[1] INTO page, next
			FROM feed_read(NULL::ev, after, max_rows) WITH ORDINALITY r (cursor, op, entry);
		EXIT WHEN page IS NULL;
		IF next <= after COLLATE "C" THEN
			RAISE 'cursor % after %', next, after;
		END IF;
		json := feed_page('ev', after, max_rows);
		IF json ->> 'cursor' < next COLLATE "C" OR json_array_length(json -> 'entries') <> (SELECT count(*) FROM feed_read(NULL::ev, after, max_rows) WHERE op <> 'end') THEN
			RAISE 'page % after % is %', page, after, json;
		END IF;
		pages := pages || page;
		after := next;
	END LOOP;
	RETURN array_to_string(pages, ' | ');
END $$;
CREATE TABLE head (cursor text);
INSERT INTO head SELECT feed_head('ev');
-- Publishes, with the rows that partitions came with, some at a time, and shows
-- what came since it was called last.
CREATE PROCEDURE came(INOUT came text) LANGUAGE plpgsql AS $$
BEGIN
	COMMIT;
	CALL feed_publish('ev');
	WHILE feedpub._run_job('ev', 2) IS NOT NULL LOOP
		COMMIT;
		CALL feed_publish('ev');
	END LOOP;
	COMMIT;
	CALL feed_publish('ev');
	came := pages(100, (SELECT cursor FROM head));
	UPDATE head SET cursor = feed_head('ev');
END $$;

--
-- The rows that were there come first, partition by partition.
--
SELECT max_rows, pages(max_rows) FROM unnest('{1,2,3,4,100}'::int[]) max_rows;
SELECT page ->> 'more' AS more, steady(page -> 'entries' -> 0) AS entry FROM feed_page('ev', '', 1) page;
SELECT feed_wait('ev', '', '0') AS from_the_beginning, feed_wait('ev', feed_page('ev', '', 3) ->> 'cursor', '0') AS from_their_middle, feed_wait('ev', feed_head('ev'), '0') AS from_the_head;
-- Each is in one shard.
SELECT shard, string_agg((entry).region || (entry).n, ' ') FROM generate_series(0, 2) shard, feed_read(NULL::ev, '', 100, shard, 3) WHERE op = 'upsert' GROUP BY shard ORDER BY shard;
-- In xid order they are not: they have no stamp.
SELECT count(*) FROM feed_fetch(NULL::ev, '0', 0, 100);

--
-- Whatever writes, through the table or into a partition, is published in one
-- order.
--
INSERT INTO ev VALUES ('us', 3, 'insert'), ('eu', 3, 'insert'), ('asia', 3, 'insert'), ('asia', 300, 'insert');
INSERT INTO ev_us VALUES ('us', 4, 'direct');
CALL came('');
UPDATE ev SET v = 'update' WHERE n = 1;
UPDATE ev_high SET v = 'direct' WHERE n = 200;
CALL came('');
INSERT INTO ev VALUES ('us', 1, 'x'), ('eu', 5, 'upsert') ON CONFLICT (region, n) DO UPDATE SET v = 'conflict';
MERGE INTO ev USING (VALUES ('us', 2), ('eu', 2), ('eu', 6)) AS s (region, n) ON ev.region = s.region AND ev.n = s.n
	WHEN MATCHED AND s.region = 'us' THEN DELETE WHEN MATCHED THEN UPDATE SET v = 'merge' WHEN NOT MATCHED THEN INSERT VALUES (s.region, s.n, 'merge');
CALL came('');
COPY ev (region, n, v) FROM stdin;
asia	7	copy
us	7	copy
\.
COPY ev_low (region, n, v) FROM stdin;
asia	8	copy
\.
DELETE FROM ev WHERE n = 3;
CALL came('');
SET session_replication_role = replica;
UPDATE ev SET v = 'replica' WHERE n = 7;
RESET session_replication_role;
CALL came('');
-- feed_xid = NULL publishes again; what does not change does not.
UPDATE ev SET feed_xid = NULL WHERE n = 8;
UPDATE ev SET v = v WHERE n = 7;
CALL came('');
-- A stamp cannot be written.
UPDATE ev SET feed_pos = 1 WHERE n = 7;
INSERT INTO ev_us (region, n, feed_xid, feed_pos) VALUES ('us', 9, '1', 1) RETURNING feed_pos > 1 AS stamped;
CALL came('');
-- A row that moves to another partition has another key: an upsert, and deletes.
UPDATE ev SET region = 'eu', v = 'moved' WHERE region = 'us' AND n = 9;
CALL came('');
-- There and back: its key exists.
BEGIN;
UPDATE ev SET region = 'us', v = 'moved' WHERE region = 'eu' AND n = 9;
UPDATE ev SET region = 'eu', v = 'back' WHERE region = 'us' AND n = 9;
COMMIT;
CALL came('');
-- Deletes of rows that had no stamp, and a key that is written again elsewhere
DELETE FROM ev WHERE region = 'asia' AND n IN (2, 200);
INSERT INTO ev VALUES ('asia', 2, 'again');
CALL came('');

--
-- All of it again, in pages of each size: the state, in the order of the stamps
--
SELECT max_rows, pages(max_rows) FROM unnest('{1,2,5,100}'::int[]) max_rows;
SELECT count(*) = (SELECT count(*) FROM ev) AS all, bool_and((r.entry).v = ev.v) AS right FROM feed_read(NULL::ev, '', 100) r JOIN ev ON ev.region = (r.entry).region AND ev.n = (r.entry).n WHERE op = 'upsert';
-- xid order, from each cursor
SELECT region, n, v FROM feed_fetch(NULL::ev, '0', 0, 100);
SELECT bool_and((SELECT array_agg(f.feed_pos) FROM feed_fetch(NULL::ev, a.feed_xid, a.feed_pos, 3) f)
	IS NOT DISTINCT FROM (SELECT array_agg(p) FROM (SELECT b.feed_pos AS p FROM ev b WHERE (b.feed_xid, b.feed_pos) > (a.feed_xid, a.feed_pos) ORDER BY b.feed_xid, b.feed_pos LIMIT 3) s)) AS same
	FROM ev a WHERE feed_xid IS NOT NULL;
SELECT (feed_xid_head('ev')).after_pos, (SELECT waiting FROM feedpub.waiting WHERE feed = 'ev'::regclass) AS waiting;

--
-- Row security is that of the table.  Those readers get no deletes.
--
CREATE ROLE regress_feedpub_reader;
GRANT SELECT ON ev, head TO regress_feedpub_reader;
ALTER TABLE ev ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON ev FOR SELECT USING (region <> 'us');
SET ROLE regress_feedpub_reader;
SELECT pages(3);
SELECT pages(100);
SELECT region, n, v FROM feed_fetch(NULL::ev, '0', 0, 4);
RESET ROLE;
ALTER TABLE ev DISABLE ROW LEVEL SECURITY;
DROP POLICY p ON ev;
-- A role that may read only a partition may not read the feed.
REVOKE SELECT ON ev FROM regress_feedpub_reader;
GRANT SELECT ON ev_us TO regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
SELECT feed_page('ev', '', 1);
RESET ROLE;
REVOKE ALL ON ev_us, head FROM regress_feedpub_reader;
DROP ROLE regress_feedpub_reader;

--
-- TRUNCATE of one partition: a delete for each of its rows.  Of the table, or of
-- all its partitions through it: one entry.
--
TRUNCATE ev_us, ev_high;
CALL came('');
INSERT INTO ev VALUES ('us', 1, 'new');
TRUNCATE ev_rest;
CALL came('');
TRUNCATE ev RESTART IDENTITY;
INSERT INTO ev VALUES ('us', 1, 'after');
CALL came('');
-- One that fails leaves no trace.
BEGIN;
SAVEPOINT a;
TRUNCATE ev;
ROLLBACK TO a;
TRUNCATE ev_us;
COMMIT;
CALL came('');

--
-- A partition that is made later
--
CREATE TABLE ev_later PARTITION OF ev FOR VALUES IN ('later');
INSERT INTO ev VALUES ('later', 1, 'first');
CALL came('');
-- One that is attached with rows, which have no stamp: none is lost to
-- consumers that have passed the others.
CREATE TABLE ev_loaded (LIKE ev INCLUDING ALL);
INSERT INTO ev_loaded SELECT 'loaded', n, 'loaded' FROM generate_series(1, 5) n;
ALTER TABLE ev ATTACH PARTITION ev_loaded FOR VALUES IN ('loaded');
UPDATE ev SET v = 'changed' WHERE region = 'loaded' AND n = 3;
DELETE FROM ev WHERE region = 'loaded' AND n = 5;
SELECT pages(100, cursor) AS not_yet FROM head;
SELECT feed_head('ev') AS before \gset
CALL came('');
SELECT max_rows, pages(max_rows, :'before') FROM unnest('{1,2,3}'::int[]) max_rows;
SELECT max_rows, pages(max_rows) FROM unnest('{1,100}'::int[]) max_rows;
-- One that was taken out, changed and put back comes again as it is; rows that
-- were deleted meanwhile are gone without a trace.
ALTER TABLE ev DETACH PARTITION ev_loaded;
UPDATE ev_loaded SET v = 'unseen' WHERE n IN (1, 3);
DELETE FROM ev_loaded WHERE n = 2;
INSERT INTO ev VALUES ('us', 2, 'meanwhile');
CALL came('');
ALTER TABLE ev ATTACH PARTITION ev_loaded FOR VALUES IN ('loaded');
CALL came('');
SELECT max_rows, pages(max_rows) FROM unnest('{1,100}'::int[]) max_rows;
-- The same between two looks of the publisher
INSERT INTO ev VALUES ('later', 2, 'second');
CALL came('');
BEGIN;
ALTER TABLE ev DETACH PARTITION ev_later;
UPDATE ev_later SET v = 'unseen';
ALTER TABLE ev ATTACH PARTITION ev_later FOR VALUES IN ('later');
COMMIT;
CALL came('');
-- A table that is itself a feed is detached from that first.
CREATE TABLE ev_feed (region text, n int, v text, note text, PRIMARY KEY (region, n));
SELECT feed_attach('ev_feed');
ALTER TABLE ev ATTACH PARTITION ev_feed FOR VALUES IN ('feed');
DROP TABLE ev_feed;
-- Partitions below partitions
CREATE TABLE ev_sub (LIKE ev INCLUDING ALL) PARTITION BY RANGE (n);
CREATE TABLE ev_sub_1 PARTITION OF ev_sub DEFAULT;
INSERT INTO ev_sub VALUES ('sub', 1, 'loaded');
ALTER TABLE ev ATTACH PARTITION ev_sub FOR VALUES IN ('sub');
CALL came('');
SELECT feed_wait('ev', cursor, '0') FROM head;
-- Old stamps, even if their positions are larger than any that was given out
CREATE TABLE ev_foreign (LIKE ev INCLUDING ALL);
INSERT INTO ev_foreign VALUES ('foreign', 1, 'x', NULL, '10', 1000000000001), ('foreign', 2, 'x', NULL, '10', 1000000000000), ('foreign', 3, 'x', NULL, '11', 5);
ALTER TABLE ev ATTACH PARTITION ev_foreign FOR VALUES IN ('foreign');
CALL came('');
DROP TABLE ev_foreign;
CALL came('');
SELECT partition, since > '0' AS came_later FROM feedpub._partition WHERE feed = 'ev'::regclass ORDER BY partition::text COLLATE "C";
SELECT relation, state, rows, failed, last_error FROM feedpub.jobs WHERE feed = 'ev'::regclass ORDER BY relation::text COLLATE "C";
-- Dropped: its rows are gone without a trace, from the feed too.
DROP TABLE ev_sub;
CALL came('');
SELECT pages(100);

--
-- Old batches are merged.
--
UPDATE feedpub._batch SET published_at = published_at - interval '1 year' WHERE feed = 'ev'::regclass;
SELECT cursor, pages(100, cursor) AS rest INTO TEMP point FROM feed_read(NULL::ev, '', 100);
SELECT pages(100) AS before \gset
SET feedpub.max_batch_transactions = 5;
SELECT feedpub._merge_batches('ev') > 0 AS merged;
RESET feedpub.max_batch_transactions;
SELECT pages(100) = :'before' AS same;
SELECT bool_and(position(rest IN pages(100, cursor)) > 0 OR rest = '.') AS nothing_lost FROM point WHERE rest IS NOT NULL;

--
-- What may be undone in a partition
--
SELECT problem FROM feed_check('ev');
ALTER TABLE ev_us DISABLE TRIGGER zz_feedpub_stamp;
ALTER TABLE ev_low ENABLE REPLICA TRIGGER zz_feedpub_delete;
ALTER TABLE ev_us SET UNLOGGED;
CREATE FUNCTION later() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER zzz_later BEFORE UPDATE ON ev_us FOR EACH ROW EXECUTE FUNCTION later();
SELECT guard, problem, cure FROM feed_check('ev');
DROP TRIGGER zzz_later ON ev_us;
SELECT feed_repair('ev');
SELECT * FROM feed_check('ev');
-- All triggers gone, and the registration
DROP TRIGGER zz_feedpub_delete ON ev;
DROP TRIGGER zz_feedpub_truncate ON ev;
SELECT guard, problem FROM feed_check('ev');
SELECT feed_repair('ev');
SELECT * FROM feed_check('ev');
DELETE FROM feedpub._feed WHERE feed = 'ev'::regclass;
SELECT guard, problem FROM feed_check('ev');
SELECT feed_repair('ev');
SELECT * FROM feed_check('ev');
SELECT key, deletes, state FROM feedpub.feeds WHERE feed = 'ev'::regclass;
-- It begins anew: all rows are stamped anew.
UPDATE head SET cursor = '';
CALL came('');

--
-- Columns that come, go and get other names
--
UPDATE head SET cursor = feed_head('ev');
ALTER TABLE ev ADD added int DEFAULT 7;
ALTER TABLE ev RENAME n TO number;
ALTER TABLE ev RENAME number TO n;
ALTER TABLE ev DROP note;
UPDATE ev SET v = 'altered' WHERE region = 'us' AND n = 2;
CALL came('');
SELECT steady(feed_page('ev', '', 1) -> 'entries' -> 0) AS entry;
SELECT feed_fetch(NULL::ev, '0', 0, 1) IS NOT NULL AS row;
SELECT feed_detach('ev');
SELECT count(*) FROM feedpub._partition;
SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal AND tgname LIKE 'zz_feedpub%';
SELECT string_agg(attname, ', ' ORDER BY attnum) FROM pg_attribute WHERE attrelid = 'ev_us'::regclass AND attnum > 0 AND NOT attisdropped;
DROP TABLE ev, head;
DROP FUNCTION pages, later;
DROP PROCEDURE came;

--
-- Deletes need not be published; some columns only; a named key
--
CREATE TABLE ev (region text NOT NULL, n int NOT NULL, v text, note text) PARTITION BY HASH (n);
CREATE UNIQUE INDEX ev_key ON ev (n);
CREATE TABLE ev_0 PARTITION OF ev FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE ev_1 (note text, v text, n int NOT NULL, region text NOT NULL);
ALTER TABLE ev ATTACH PARTITION ev_1 FOR VALUES WITH (MODULUS 2, REMAINDER 1);
SELECT feed_attach('ev', key => 'ev_key', columns => '{v}', deletes => false);
SELECT tgrelid::regclass AS tab, tgname FROM pg_trigger WHERE NOT tgisinternal ORDER BY tgrelid::regclass::text COLLATE "C", tgname;
INSERT INTO ev SELECT 'x', n, 'v' FROM generate_series(1, 4) n;
CALL feed_publish('ev');
SELECT feed_head('ev') AS head \gset
UPDATE ev SET note = 'not published';
UPDATE ev SET v = 'w' WHERE n IN (1, 3);
DELETE FROM ev WHERE n = 2;
TRUNCATE ev_1;
INSERT INTO ev VALUES ('x', 5, 'v');
CALL feed_publish('ev');
SELECT op, (entry).n, (entry).v FROM feed_read(NULL::ev, :'head', 10);
SELECT feed_detach('ev');
DROP TABLE ev;

--
-- A larger table: each partition's index is a statement of its own.
--
CREATE TABLE ev (region text, n int, pad text, PRIMARY KEY (region, n)) PARTITION BY LIST (region);
ALTER TABLE ev ALTER pad SET STORAGE plain;
CREATE TABLE ev_a PARTITION OF ev FOR VALUES IN ('a');
CREATE TABLE ev_b PARTITION OF ev FOR VALUES IN ('b') PARTITION BY RANGE (n);
CREATE TABLE ev_b_1 PARTITION OF ev_b DEFAULT;
CREATE TABLE ev_c PARTITION OF ev FOR VALUES IN ('c');
INSERT INTO ev SELECT 'b', n, repeat('x', 3500) FROM generate_series(1, 2200) n;
INSERT INTO ev VALUES ('a', 1), ('c', 1);
SELECT feed_attach('ev') AS statement \gset
\echo :statement
SELECT state FROM feedpub.feeds WHERE feed = 'ev'::regclass;
SELECT guard, problem, cure FROM feed_check('ev');
SELECT feed_page('ev', '', 1);
-- Writers are stamped meanwhile; the next call says the same.
INSERT INTO ev VALUES ('b', 0), ('a', 2);
SELECT feed_attach('ev') = :'statement' AS same;
-- An attempt that failed left an index that is not valid: it is built again.
CREATE INDEX ev_b_1_feed_idx ON ev_b_1 (feed_xid, feed_pos) WHERE feed_xid IS NOT NULL;
UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'ev_b_1_feed_idx'::regclass;
SELECT feed_attach('ev') AS statement \gset
\echo :statement
:statement;
SELECT feed_attach('ev') IS NULL AS ready;
SELECT state FROM feedpub.feeds WHERE feed = 'ev'::regclass;
SELECT * FROM feed_check('ev');
CALL feed_publish('ev');
SELECT (entry).region, (entry).n FROM feed_read(NULL::ev, '', 10000) WHERE op = 'upsert' AND ((entry).region <> 'b' OR (entry).n NOT BETWEEN 1 AND 2199);
-- A new partition has its index from the beginning.
CREATE TABLE ev_d PARTITION OF ev FOR VALUES IN ('d');
SELECT feed_attach('ev') IS NULL AS ready;
SELECT feed_detach('ev');
DROP TABLE ev;

--
-- Not without partitions: a feed without rows
--
CREATE TABLE ev (n int PRIMARY KEY) PARTITION BY RANGE (n);
SELECT feed_attach('ev');
SELECT count(*) FROM feed_read(NULL::ev, '', 10);
CALL feed_publish('ev');
CREATE TABLE ev_1 PARTITION OF ev DEFAULT;
INSERT INTO ev VALUES (1);
CALL feed_publish('ev');
SELECT feedpub._run_job('ev', 100) AS stamped;
CALL feed_publish('ev');
SELECT op, (entry).n FROM feed_read(NULL::ev, '', 10);
-- What it cannot be
CREATE TABLE ev_parent (n int NOT NULL) PARTITION BY RANGE (n);
SELECT feed_attach('ev_1');
DROP TABLE ev;
SELECT feed_attach('ev_parent');
DROP TABLE ev_parent;
CREATE TEMP TABLE ev_temp (n int PRIMARY KEY) PARTITION BY RANGE (n);
SELECT feed_attach('ev_temp');
DROP TABLE ev_temp;

--
-- A delete is delivered unless its key exists, however the key's partition is
-- found.
--
CREATE PROCEDURE deleted(keys text, OUT deletes text) LANGUAGE plpgsql AS $$
DECLARE
	before text;
BEGIN
	EXECUTE 'SELECT feed_attach(''ev'')';
	EXECUTE 'SELECT feed_head(''ev'')' INTO before;
	COMMIT;
	-- the tombstones of keys that live come first
	EXECUTE format('WITH gone AS (DELETE FROM ev RETURNING %1$s) INSERT INTO keys SELECT %1$s FROM gone', keys);
	EXECUTE format('INSERT INTO ev (%1$s) SELECT %1$s FROM keys WHERE n %% 2 = 0', keys);
	COMMIT;
	CALL feed_publish('ev');
	EXECUTE $q$ SELECT string_agg(op || ' ' || (entry).n, ', ' ORDER BY (entry).n) FROM feed_read(NULL::ev, $1, 100) WHERE op <> 'upsert' $q$ INTO deletes USING before;
	TRUNCATE keys;
END $$;
CREATE TABLE keys (n int, r text);
CREATE TABLE ev (n int, r text, PRIMARY KEY (r, n)) PARTITION BY HASH (n, r);
CREATE TABLE ev_0 PARTITION OF ev FOR VALUES WITH (MODULUS 3, REMAINDER 0);
CREATE TABLE ev_1 PARTITION OF ev FOR VALUES WITH (MODULUS 3, REMAINDER 1);
CREATE TABLE ev_2 PARTITION OF ev FOR VALUES WITH (MODULUS 6, REMAINDER 2);
CREATE TABLE ev_3 PARTITION OF ev FOR VALUES WITH (MODULUS 6, REMAINDER 5);
INSERT INTO ev SELECT n, 'r' || n FROM generate_series(1, 12) n;
CALL deleted('n, r', NULL);
DROP TABLE ev;
CREATE TABLE ev (n int, r text, PRIMARY KEY (n, r)) PARTITION BY RANGE (r, n);
CREATE TABLE ev_1 PARTITION OF ev FOR VALUES FROM (MINVALUE, MINVALUE) TO ('b', 4);
CREATE TABLE ev_2 (r text NOT NULL, n int NOT NULL) PARTITION BY LIST (n);
CREATE TABLE ev_2_5 PARTITION OF ev_2 FOR VALUES IN (5, 6);
CREATE TABLE ev_2_x PARTITION OF ev_2 DEFAULT;
ALTER TABLE ev ATTACH PARTITION ev_2 FOR VALUES FROM ('b', 4) TO ('d', MAXVALUE);
CREATE TABLE ev_x PARTITION OF ev DEFAULT;
INSERT INTO ev VALUES (1, 'a'), (2, 'a'), (3, 'b'), (4, 'b'), (5, 'b'), (6, 'b'), (7, 'd'), (8, 'd'), (9, 'e'), (10, 'e');
CALL deleted('n, r', NULL);
DROP TABLE ev, keys;
DROP PROCEDURE deleted;

--
-- Subscriptions: a cursor among the rows that were there, one of them parked
--
CREATE TABLE ev (n int PRIMARY KEY, v text) PARTITION BY RANGE (n);
CREATE TABLE ev_1 PARTITION OF ev FOR VALUES FROM (1) TO (10);
CREATE TABLE ev_2 PARTITION OF ev FOR VALUES FROM (10) TO (20);
INSERT INTO ev SELECT n, 'old' FROM unnest('{1,2,3,11,12,13}'::int[]) n;
SELECT feed_attach('ev');
SELECT feed_subscribe('sub', 'ev', 'earliest') <> '' AS placed, feed_subscribe('latest', 'ev', 'latest') = feed_head('ev') AS head;
SELECT op, row ->> 'n' AS n FROM feed_poll('sub', 2);
SELECT receipt FROM feed_poll('sub', 2) OFFSET 1 \gset
SELECT feed_ack('sub', :'receipt');
SELECT receipt FROM feed_poll('sub', 4) LIMIT 1 \gset
SELECT feed_park('sub', :'receipt', 'poison');
-- Another partition has one with the same identifier: it is not hidden.
CREATE TABLE ev_3 (LIKE ev INCLUDING ALL);
INSERT INTO ev_3 SELECT n, 'loaded' FROM generate_series(21, 23) n;
ALTER TABLE ev ATTACH PARTITION ev_3 FOR VALUES FROM (20) TO (30);
UPDATE ev SET v = 'new' WHERE n = 11;
CALL feed_publish('ev');
SELECT feedpub._run_job('ev', 100) AS stamped;
CALL feed_publish('ev');
SELECT op, row ->> 'n' AS n FROM feed_poll('sub', 100);
SELECT op, row ->> 'n' AS n FROM feed_poll('latest', 100);
SELECT name, lag_rows FROM feedpub.subscriptions ORDER BY name;
SELECT receipt AS "end" FROM feed_poll('sub', 100) ORDER BY cursor COLLATE "C" DESC LIMIT 1 \gset
SELECT feed_ack('sub', :'end');
SELECT feed_retry('sub');
SELECT op, row ->> 'n' AS n FROM feed_poll('sub', 100);
SELECT receipt FROM feed_poll('sub', 100) LIMIT 1 \gset
SELECT feed_ack('sub', :'receipt');
SELECT count(*) FROM feed_poll('sub', 100);
SELECT name, lag_rows FROM feedpub.subscriptions ORDER BY name;
SELECT feed_unsubscribe('sub'), feed_unsubscribe('latest');

--
-- Republished: rows without a stamp get one, for xid order
--
SELECT count(*) FROM feed_fetch(NULL::ev, '0', 0, 100);
CALL feed_republish('ev', unstamped_only => true);
CALL feed_publish('ev');
SELECT string_agg((f).n::text, ' ' ORDER BY (f).feed_pos) FROM feed_fetch(NULL::ev, '0', 0, 100) f;
SELECT string_agg((entry).n::text, ' ' ORDER BY cursor COLLATE "C") FROM feed_read(NULL::ev, '', 100) WHERE op = 'upsert';
SELECT state, "size" > 0 AS has_size, "position" FROM feedpub.feeds WHERE feed = 'ev'::regclass;
DROP TABLE ev;

--
-- A reader of the rows that were there, when they move to another file, and when
-- a partition goes
--
CREATE TABLE ev (n int PRIMARY KEY, v text) PARTITION BY RANGE (n);
CREATE TABLE ev_1 PARTITION OF ev FOR VALUES FROM (1) TO (10);
CREATE TABLE ev_2 PARTITION OF ev FOR VALUES FROM (10) TO (20);
CREATE TABLE ev_3 PARTITION OF ev FOR VALUES FROM (20) TO (30);
INSERT INTO ev SELECT n, 'old' FROM unnest('{1,2,3,4,11,12,13,14,21,22}'::int[]) n;
DELETE FROM ev WHERE n IN (1, 11);
SELECT feed_attach('ev');
CREATE FUNCTION rest(after text, max_rows int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	page json;
	rows text := '';
BEGIN
	LOOP
		page := feed_page('ev', after, max_rows);
		EXIT WHEN json_array_length(page -> 'entries') = 0 AND page ->> 'cursor' = after;
		SELECT rows || coalesce(string_agg(' ' || (e -> 'row' ->> 'n'), ''), '') INTO rows
			FROM json_array_elements(page -> 'entries') e;
		after := page ->> 'cursor';
	END LOOP;
	RETURN rows;
END $$;
SELECT max_rows, rest('', max_rows) FROM unnest('{1,2,3,100}'::int[]) max_rows;
SELECT cursor AS middle FROM feed_read(NULL::ev, '', 5) OFFSET 4 \gset
SELECT rest(:'middle', 2) AS goes_on;
VACUUM FULL ev_1;
SELECT rest(:'middle', 2) AS goes_on;
VACUUM FULL ev_2;
SELECT rest(:'middle', 2) AS begins_it_again;
ALTER TABLE ev DETACH PARTITION ev_2;
SELECT rest(:'middle', 2) AS the_rest;
ALTER TABLE ev ATTACH PARTITION ev_2 FOR VALUES FROM (10) TO (20);
SELECT rest(:'middle', 2) AS the_rest;
CALL feed_publish('ev');
SELECT feedpub._run_job('ev', 100) AS stamped;
CALL feed_publish('ev');
SELECT rest(:'middle', 2) AS and_it_comes_again;
DROP TABLE ev;
DROP FUNCTION rest;

--
-- A column of the key is dropped: no row of a partition has it any more.
--
CREATE TABLE ev (gone int, region text, n int, v text, PRIMARY KEY (region, n)) PARTITION BY LIST (region);
CREATE TABLE ev_a (v text, n int NOT NULL, region text NOT NULL);
ALTER TABLE ev DROP COLUMN gone;
ALTER TABLE ev ATTACH PARTITION ev_a FOR VALUES IN ('a');
SELECT feed_attach('ev');
INSERT INTO ev VALUES ('a', 1, 'old'), ('a', 2, 'old');
DELETE FROM ev WHERE n = 1;
ALTER TABLE ev DROP COLUMN n;
INSERT INTO ev VALUES ('a', 'new');
UPDATE ev SET v = 'newer' WHERE v = 'new';
DELETE FROM ev WHERE v = 'old';
DELETE FROM ev_a WHERE v = 'old';
SELECT guard, problem FROM feed_check('ev');
SELECT feed_page('ev');
\echo :SQLSTATE
DROP TABLE ev;
DROP FUNCTION steady;
