-- Rows of a table feed are published again: one by an UPDATE, all of them, or
-- those that are not in the feed, by feed_republish().
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
-- Entries, less what differs from run to run
CREATE FUNCTION steady(j json) RETURNS json LANGUAGE sql AS $$
	SELECT regexp_replace(j::text, '"cursor": "[^"]*", |, "xid": [^,]*, "published_at": ("[^"]*"|null)', '', 'g')::json
$$;
-- Here batches are made by hand: no worker.
SELECT feed_stop_worker() IS NOT NULL AS stopped;
DO $$
BEGIN
	WHILE EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'feedpub worker' AND datname = current_database()) LOOP
		PERFORM pg_stat_clear_snapshot();
	END LOOP;
END $$;
SET feedpub.read_wait = 0;

-- What a consumer gets after the cursor that it keeps
CREATE TABLE consumer (feed regclass PRIMARY KEY, cursor text NOT NULL);
CREATE FUNCTION follow(of regclass, OUT entry json) RETURNS SETOF json LANGUAGE plpgsql AS $$
DECLARE
	after text := '';
	page json;
BEGIN
	SELECT c.cursor INTO after FROM consumer c WHERE c.feed = of;
	page := feed_page(of, coalesce(after, ''), 10000);
	INSERT INTO consumer VALUES (of, page ->> 'cursor')
	ON CONFLICT (feed) DO UPDATE SET cursor = EXCLUDED.cursor;
	RETURN QUERY SELECT steady(e) FROM json_array_elements(page -> 'entries') e;
END $$;
-- Steps until nothing is to be done
CREATE PROCEDURE finish(of regclass, max_rows int, INOUT steps text) LANGUAGE plpgsql AS $$
DECLARE
	n int;
BEGIN
	LOOP
		COMMIT;
		n := feedpub._run_job(of, max_rows);
		EXIT WHEN n IS NULL;
		steps := concat_ws(' ', steps, n);
	END LOOP;
	COMMIT;
	CALL feed_publish(of);
END $$;
-- Writes stamps as they are given
CREATE PROCEDURE forge(tab regclass, stamps text) LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('ALTER TABLE %s DISABLE TRIGGER zz_feedpub_stamp', tab);
	EXECUTE format('UPDATE %s SET %s', tab, stamps);
	EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER zz_feedpub_stamp', tab);
END $$;

--
-- The last record, already consumed, is changed and republished.
--
CREATE TABLE kv (k text PRIMARY KEY, v text, hits int NOT NULL DEFAULT 0);
SELECT feed_attach('kv', columns => '{v}');
INSERT INTO kv VALUES ('fred', 'bob');
CALL feed_publish('kv');
SELECT * FROM follow('kv');
UPDATE kv SET v = 'jim', feed_xid = NULL WHERE k = 'fred';
CALL feed_publish('kv');
SELECT * FROM follow('kv');
-- And unchanged
UPDATE kv SET feed_xid = NULL WHERE k = 'fred';
CALL feed_publish('kv');
SELECT * FROM follow('kv');

--
-- All, in the order in which they were; again, and again none but all
--
INSERT INTO kv VALUES ('a', '1'), ('c', '2'), ('b', '3');
-- Steps wait for locks for less than this time.
SET deadlock_timeout = '1 ms';
CALL feed_republish('kv');
CALL feed_publish('kv');
SELECT entry -> 'key' ->> 'k' AS k FROM follow('kv');
SET deadlock_timeout = '10 s';
CALL feed_republish('kv', unstamped_only => true);
RESET deadlock_timeout;
CALL feed_publish('kv');
SELECT count(*) FROM follow('kv');
-- More than a step takes, with and without stamps
CREATE TABLE big (k int PRIMARY KEY, v text);
INSERT INTO big SELECT i, 'old' FROM generate_series(1, 2500) i;
SELECT feed_attach('big');
UPDATE big SET v = 'new' WHERE k > 1400;
CALL feed_republish('big', unstamped_only => true);
SELECT count(*) FROM big WHERE feed_xid IS NULL;
SELECT count(DISTINCT feed_pos), count(DISTINCT feed_xid) > 2 AS in_steps FROM big;
CALL feed_republish('big');
SELECT count(DISTINCT feed_pos), min(feed_pos), max(feed_pos) FROM big;
CALL feed_publish('big');
SELECT count(*), count(DISTINCT entry -> 'key' ->> 'k') FROM follow('big');
-- Half of a stamp, the same one in many rows, and one from another server
CALL forge('big', 'feed_xid = CASE WHEN k % 2 = 0 THEN feed_xid END, feed_pos = CASE WHEN k % 2 = 1 THEN feed_pos END WHERE k <= 10');
CALL feed_republish('big', unstamped_only => true);
SELECT count(*) FROM big WHERE feed_xid IS NULL OR feed_pos IS NULL;
CALL forge('big', $$feed_xid = '10', feed_pos = 7 WHERE k <= 2300$$);
CALL feed_republish('big');
SELECT count(*) FROM big WHERE feed_xid = '10';
SELECT count(DISTINCT feed_pos) FROM big;
CALL forge('big', $$feed_xid = '1000000000', feed_pos = k WHERE k > 100$$);
SELECT problem, cure FROM feed_check('big') WHERE guard = 'history';
CALL feed_republish('big');
SELECT problem FROM feed_check('big');
SELECT count(DISTINCT feed_pos) FROM big;
CALL feed_publish('big');
SELECT count(DISTINCT entry -> 'key' ->> 'k') FROM follow('big');
-- A row with half of a stamp is stamped by any UPDATE.
CALL forge('kv', $$feed_pos = NULL WHERE k = 'a'$$);
UPDATE kv SET hits = hits + 1;
SELECT k, feed_pos IS NULL AS unstamped FROM kv ORDER BY k;
DROP TABLE big;

--
-- What is refused
--
CALL feed_republish(NULL);
CALL feed_republish('kv', NULL);
CREATE TABLE plain (k int PRIMARY KEY);
CALL feed_republish('plain');
CALL feed_republish('pg_class');
SELECT feed_create('messages');
CALL feed_republish('messages');
DROP TABLE plain, messages;
BEGIN;
CALL feed_republish('kv');
ROLLBACK;
CREATE ROLE regress_feedpub_owner;
CREATE ROLE regress_feedpub_reader;
GRANT CREATE ON SCHEMA public TO regress_feedpub_owner;
GRANT SELECT, UPDATE ON kv TO regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
CALL feed_republish('kv');
SELECT feedpub._run_job('kv', 1);
SELECT * FROM feedpub._job;
RESET ROLE;
REVOKE ALL ON kv FROM regress_feedpub_reader;

--
-- As the owner, whose code can become no other role, and leaves nothing in the
-- session
--
SET ROLE regress_feedpub_owner;
CREATE TABLE mine (id int PRIMARY KEY, v text);
CREATE TABLE stage (who name, path text, result text);
INSERT INTO mine VALUES (1, 'a'), (2, 'b');
SELECT feed_attach('mine');
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	result text := 'done';
BEGIN
	BEGIN
		EXECUTE 'SET ROLE NONE';
	EXCEPTION WHEN OTHERS THEN
		result := SQLERRM;
	END;
	INSERT INTO public.stage VALUES (current_user, current_setting('search_path'), result);
	PERFORM set_config('search_path', 'nowhere', false);
	PERFORM set_config('application_name', 'hijacked', false);
	RETURN NEW;
END $$;
CREATE TRIGGER a_note BEFORE UPDATE ON mine FOR EACH ROW EXECUTE FUNCTION note();
CREATE CONSTRAINT TRIGGER z_note AFTER UPDATE ON mine DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION note();
RESET ROLE;
CALL feed_republish('mine');
SELECT who, path, result, count(*) FROM stage GROUP BY 1, 2, 3;
SHOW search_path;
SHOW application_name;
SELECT current_user = session_user AS back;
-- A row of which the UPDATE fails, or is suppressed, stops nothing.
SET ROLE regress_feedpub_owner;
DROP TRIGGER a_note ON mine;
DROP TRIGGER z_note ON mine;
INSERT INTO mine SELECT i, 'v' || i FROM generate_series(3, 20) i;
ALTER TABLE mine ADD CHECK (v <> 'v7') NOT VALID;
CREATE FUNCTION reject() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF NEW.id = 9 THEN
		RETURN NULL;
	END IF;
	IF NEW.id = 11 THEN
		RAISE 'not this one';
	END IF;
	RETURN NEW;
END $$;
CREATE TRIGGER reject BEFORE UPDATE ON mine FOR EACH ROW EXECUTE FUNCTION reject();
CREATE TABLE before AS SELECT id, feed_pos FROM mine;
CALL feed_republish('mine');
SELECT array_agg(id ORDER BY id) FROM mine JOIN before USING (id, feed_pos);
-- An error that is not of the row ends it, and no row is given up for that.
CREATE OR REPLACE FUNCTION reject() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF NEW.id = 11 THEN
		RAISE 'the disk is full' USING ERRCODE = 'disk_full';
	END IF;
	RETURN NEW;
END $$;
CALL feed_republish('mine');
-- Those of a connection or a file that a trigger uses are of the row, and so is a
-- conflict, if it comes each time.
CREATE OR REPLACE FUNCTION reject() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF NEW.id IN (11, 12, 13) THEN
		RAISE 'not this one' USING ERRCODE = CASE NEW.id WHEN 11 THEN '08006' WHEN 12 THEN '58P01' ELSE '40001' END;
	END IF;
	RETURN NEW;
END $$;
SET statement_timeout = '60s';
CALL feed_republish('mine');
RESET statement_timeout;
ALTER TABLE mine DROP CONSTRAINT mine_v_check;
-- It ends after twenty passes that stamp no row; of a message whole characters
-- are kept.
CREATE SEQUENCE tries;
CREATE OR REPLACE FUNCTION reject() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF NEW.id = 13 THEN
		PERFORM nextval('public.tries');
		RAISE '%', repeat(chr(233), 200) USING ERRCODE = '40001';
	END IF;
	RETURN NEW;
END $$;
CALL feed_republish('mine');
-- in the first pass it may be tried with others, too
SELECT last_value BETWEEN 21 AND 22 AS tries FROM tries;
DROP TRIGGER reject ON mine;
-- Nor does one to which a trigger gives back its old stamp, each time again.
CREATE FUNCTION give_back() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	-- a pass that finds the row again and again ends
	IF nextval('public.tries') > 1000 THEN
		RAISE 'there is no end' USING ERRCODE = 'disk_full';
	ELSIF NEW.id = 13 THEN
		NEW.feed_xid = OLD.feed_xid;
	ELSIF NEW.id = 15 THEN
		NEW.feed_pos = NULL;
	END IF;
	RETURN NEW;
END $$;
CREATE TRIGGER zzz_give_back BEFORE UPDATE ON mine FOR EACH ROW EXECUTE FUNCTION give_back();
SET statement_timeout = '20s';
CALL feed_republish('mine');
RESET statement_timeout;
DROP TRIGGER zzz_give_back ON mine;
DROP FUNCTION give_back;
DROP SEQUENCE tries;
-- What would leave out rows without an error is refused.
ALTER TABLE mine ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY half ON mine USING (id % 2 = 0);
CALL feed_republish('mine');
ALTER TABLE mine NO FORCE ROW LEVEL SECURITY;
CREATE RULE instead AS ON UPDATE TO mine DO INSTEAD NOTHING;
CALL feed_republish('mine');
ALTER TABLE mine DISABLE RULE instead;
CALL feed_republish('mine');
DROP RULE instead ON mine;
-- So is what its owner may not update, with a way out.
REVOKE UPDATE ON mine FROM CURRENT_USER;
CALL feed_republish('mine');
GRANT UPDATE (feed_xid) ON mine TO CURRENT_USER;
REVOKE SELECT ON mine FROM CURRENT_USER;
CALL feed_republish('mine');
GRANT SELECT ON mine TO CURRENT_USER;
CALL feed_republish('mine');
RESET ROLE;
DROP TABLE mine, stage, before;

--
-- Partitions that come with rows: of two feeds, whose stamps are the same
--
CREATE TABLE a (p int, k int, v text, PRIMARY KEY (p, k)) PARTITION BY LIST (p);
CREATE TABLE a1 PARTITION OF a FOR VALUES IN (1);
CREATE TABLE b (p int, k int, v text, PRIMARY KEY (p, k)) PARTITION BY LIST (p);
CREATE TABLE b1 PARTITION OF b FOR VALUES IN (2);
CREATE TABLE ev (p int, k int, v text, PRIMARY KEY (p, k)) PARTITION BY LIST (p);
SELECT feed_attach('a'), feed_attach('b'), feed_attach('ev');
BEGIN;
INSERT INTO a SELECT 1, i, 'a' FROM generate_series(1, 10) i;
INSERT INTO b SELECT 2, i, 'b' FROM generate_series(1, 10) i;
COMMIT;
CALL feed_publish('a');
CALL feed_publish('b');
CALL feed_publish('ev');
ALTER TABLE a DETACH PARTITION a1;
ALTER TABLE b DETACH PARTITION b1;
ALTER TABLE ev ATTACH PARTITION a1 FOR VALUES IN (1);
ALTER TABLE ev ATTACH PARTITION b1 FOR VALUES IN (2);
SELECT a1.feed_pos = b1.feed_pos AS same FROM a1 JOIN b1 USING (k, feed_xid) GROUP BY 1;
CREATE FUNCTION count_pages(max_rows int, OUT rows bigint, OUT keys bigint) LANGUAGE sql AS $$
	WITH RECURSIVE page AS (
		SELECT feed_page('ev', '', max_rows) AS page
		UNION ALL
		SELECT feed_page('ev', p.page ->> 'cursor', max_rows) FROM page p
		WHERE json_array_length(p.page -> 'entries') > 0)
	SELECT count(*), count(DISTINCT e ->> 'key') FROM page, json_array_elements(page -> 'entries') e $$;
CREATE FUNCTION count_fetched(max_rows int, OUT rows bigint, OUT keys bigint) LANGUAGE sql AS $$
	WITH RECURSIVE page AS (
		SELECT array_agg(f) AS rows FROM feed_fetch(NULL::ev, '0', 0, max_rows) f
		UNION ALL
		SELECT (SELECT array_agg(f) FROM feed_fetch(NULL::ev, p.rows[cardinality(p.rows)].feed_xid, p.rows[cardinality(p.rows)].feed_pos, max_rows) f)
		FROM page p WHERE p.rows IS NOT NULL)
	SELECT count(*), count(DISTINCT ((r).p, (r).k)) FROM page, unnest(rows) r $$;
-- None is in the feed yet, whichever process admits the partitions.
CALL feed_publish('ev');
CALL feed_publish('ev');
SELECT * FROM count_pages(3);
SELECT * FROM count_fetched(3);
SELECT relation, state, rows FROM feedpub.jobs WHERE kind = 'stamp' ORDER BY relation::text COLLATE "C";
SET default_transaction_read_only = on;
CALL feed_republish('ev', unstamped_only => true);
RESET default_transaction_read_only;
CALL feed_publish('ev');
SELECT relation, state, rows FROM feedpub.jobs WHERE kind = 'stamp' ORDER BY relation::text COLLATE "C";
SELECT max_rows, p.*, f.* FROM unnest('{1,3,7,100}'::int[]) max_rows, count_pages(max_rows) p, count_fetched(max_rows) f;
DROP TABLE a, b;

--
-- A TRUNCATE comes before the rows of a partition that is attached after it,
-- however many deletes are published between.
--
INSERT INTO ev SELECT 1, i, 'more' FROM generate_series(101, 1600) i;
CALL feed_publish('ev');
SELECT feed_head('ev') AS head \gset
DO $$
BEGIN
	FOR i IN 101..1600 LOOP
		DELETE FROM ev WHERE p = 1 AND k = i;
		COMMIT;
	END LOOP;
END $$;
TRUNCATE ev;
CREATE TABLE ev3 (LIKE ev INCLUDING ALL);
INSERT INTO ev3 SELECT 3, i, 'loaded' FROM generate_series(1, 5) i;
ALTER TABLE ev ATTACH PARTITION ev3 FOR VALUES IN (3);
CALL feed_publish('ev');
CALL finish('ev', 100, NULL);
SELECT string_agg(op, ' ' ORDER BY first) FROM (SELECT op, min(n) AS first FROM feed_read(NULL::ev, :'head', 10000) WITH ORDINALITY r (cursor, op, entry, moment, n) GROUP BY op) ops;
-- A partition is detached, the table is truncated, and the partition is attached
-- again, in one transaction: its rows come again, after the TRUNCATE.
SELECT feed_head('ev') AS head \gset
BEGIN;
ALTER TABLE ev DETACH PARTITION ev3;
TRUNCATE ev;
ALTER TABLE ev ATTACH PARTITION ev3 FOR VALUES IN (3);
COMMIT;
CALL feed_publish('ev');
CALL finish('ev', 100, NULL);
SELECT string_agg(op || coalesce(' ' || (entry).k, ''), ', ' ORDER BY n) FROM feed_read(NULL::ev, :'head', 10000) WITH ORDINALITY r (cursor, op, entry, moment, n);
-- A pass that has ended says nothing of a partition that was attached again.
SELECT state FROM feedpub.jobs WHERE relation = 'ev3'::regclass;
SELECT since AS since_1 FROM feedpub._partition WHERE partition = 'ev3'::regclass \gset
BEGIN;
ALTER TABLE ev DETACH PARTITION ev3;
UPDATE ev3 SET v = 'unseen';
ALTER TABLE ev ATTACH PARTITION ev3 FOR VALUES IN (3);
COMMIT;
-- it has not been admitted
SELECT feedpub._run_job('ev', 100) AS stamped;
SELECT count(*) FROM feed_read(NULL::ev, '', 10000) WHERE op = 'upsert';
CALL feed_publish('ev');
SELECT since > :'since_1' AS anew FROM feedpub._partition WHERE partition = 'ev3'::regclass;
SELECT state FROM feedpub.jobs WHERE relation = 'ev3'::regclass;
CALL finish('ev', 2, NULL);
SELECT count(*) FROM feed_read(NULL::ev, '', 10000) WHERE op = 'upsert' AND (entry).v = 'unseen';

--
-- Rows with stamps of another server: the partition is admitted when they have
-- got others.
--
CREATE TABLE ev4 (LIKE ev INCLUDING ALL);
INSERT INTO ev4 SELECT 4, i, 'foreign', CASE WHEN i % 2 = 0 THEN '1000000000' ELSE '10' END::xid8, i FROM generate_series(1, 6) i;
ALTER TABLE ev ATTACH PARTITION ev4 FOR VALUES IN (4);
SELECT feed_head('ev') AS head \gset
CALL feed_publish('ev');
SELECT since = '18446744073709551615' AS not_yet FROM feedpub._partition WHERE partition = 'ev4'::regclass;
CALL finish('ev', 2, NULL);
SELECT since = '18446744073709551615' AS not_yet FROM feedpub._partition WHERE partition = 'ev4'::regclass;
CALL feed_republish('ev', unstamped_only => true);
CALL feed_publish('ev');
SELECT string_agg((entry).k::text, ' ' ORDER BY (entry).k) FROM feed_read(NULL::ev, :'head', 10000) WHERE op = 'upsert' AND (entry).p = 4;
SELECT relation, state, failed FROM feedpub.jobs WHERE kind = 'stamp' ORDER BY relation::text COLLATE "C";

-- Stamps of another server in a partition that was admitted long since
CALL forge('ev3', $$feed_xid = '1000000000'$$);
SELECT count(*) FROM feed_read(NULL::ev, '', 10);
CALL feed_republish('ev');
CALL feed_publish('ev');
SELECT count(*) FROM feed_read(NULL::ev, '', 10000) WHERE op = 'upsert' AND (entry).p = 3;

--
-- If one fails, it is shown to the owner and to members of pg_monitor.
--
ALTER TABLE ev OWNER TO regress_feedpub_owner;
CREATE TABLE ev5 (LIKE ev INCLUDING ALL);
INSERT INTO ev5 SELECT 5, i, 'v' || i FROM generate_series(1, 6) i;
ALTER TABLE ev5 OWNER TO regress_feedpub_owner;
ALTER TABLE ev5 ADD CHECK (v <> 'v4') NOT VALID;
ALTER TABLE ev ATTACH PARTITION ev5 FOR VALUES IN (5);
CALL feed_publish('ev');
CALL finish('ev', 100, NULL);
SELECT relation, state, rows, failed, last_error FROM feedpub.jobs WHERE relation = 'ev5'::regclass;
SET ROLE regress_feedpub_reader;
SELECT count(*) FROM feedpub.jobs WHERE kind <> 'sweep';
RESET ROLE;
GRANT pg_monitor TO regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
SELECT relation, state, failed, last_error FROM feedpub.jobs WHERE relation = 'ev5'::regclass;
SELECT state FROM feedpub.feeds WHERE feed = 'ev'::regclass;
RESET ROLE;
SELECT format('ALTER TABLE %s OWNER TO regress_feedpub_owner', unnest('{a1,b1,ev3,ev4}'::regclass[]))
\gexec
SELECT feed_repair('ev');
SELECT guard, problem, cure FROM feed_check('ev');
-- The cure tells what it comes to.
SELECT cure FROM feed_check('ev') WHERE guard = 'rows'
\gexec
SELECT state FROM feedpub.feeds WHERE feed = 'ev'::regclass;
SELECT state, failed, last_error FROM feedpub.jobs WHERE relation = 'ev5'::regclass;
-- Any UPDATE brings it into the feed.
ALTER TABLE ev5 DROP CONSTRAINT ev5_v_check;
UPDATE ev SET v = v WHERE k = 4;
CALL feed_publish('ev');
SELECT count(DISTINCT (entry).k) FROM feed_read(NULL::ev, '', 10000) WHERE op = 'upsert' AND (entry).p = 5;
SELECT cure FROM feed_check('ev') WHERE guard = 'rows'
\gexec
SELECT state FROM feedpub.feeds WHERE feed = 'ev'::regclass;
SELECT state, failed, last_error FROM feedpub.jobs WHERE relation = 'ev5'::regclass;
SELECT guard FROM feed_check('ev') WHERE guard = 'rows';
-- With a partition its failures go.
CREATE TABLE ev6 (LIKE ev INCLUDING ALL);
INSERT INTO ev6 VALUES (6, 1, 'a'), (6, 2, 'b');
ALTER TABLE ev6 OWNER TO regress_feedpub_owner;
ALTER TABLE ev6 ADD CHECK (v <> 'b') NOT VALID;
ALTER TABLE ev ATTACH PARTITION ev6 FOR VALUES IN (6);
CALL feed_publish('ev');
CALL finish('ev', 100, NULL);
SELECT state FROM feedpub.feeds WHERE feed = 'ev'::regclass;
ALTER TABLE ev DETACH PARTITION ev6;
CALL feed_publish('ev');
SELECT state FROM feedpub.feeds WHERE feed = 'ev'::regclass;
DROP TABLE ev6;
--
-- Code that takes a second for a row: each step stamps one, and all get their turn.
--
CREATE TABLE slow (p int, k int, PRIMARY KEY (p, k)) PARTITION BY LIST (p);
SELECT feed_attach('slow');
CREATE TABLE slow1 (LIKE slow INCLUDING ALL);
INSERT INTO slow1 VALUES (1, 1), (1, 2), (1, 3);
CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	began timestamptz := clock_timestamp();
BEGIN
	WHILE clock_timestamp() < began + interval '1001 ms' LOOP
	END LOOP;
	RETURN NEW;
END $$;
CREATE TRIGGER dawdle BEFORE UPDATE ON slow1 FOR EACH ROW EXECUTE FUNCTION dawdle();
ALTER TABLE slow ATTACH PARTITION slow1 FOR VALUES IN (1);
CALL feed_publish('slow');
CALL feed_republish('slow', unstamped_only => true);
CALL feed_publish('slow');
SELECT count(*), count(DISTINCT feed_xid) AS steps FROM slow WHERE feed_xid IS NOT NULL;
SELECT count(*) FROM feed_read(NULL::slow, '', 10) WHERE op = 'upsert';
DROP TABLE slow;
DROP FUNCTION dawdle;
DROP TABLE ev, kv, consumer;
DROP FUNCTION follow, count_pages, count_fetched, note, reject;
DROP PROCEDURE forge, finish;
REVOKE CREATE ON SCHEMA public FROM regress_feedpub_owner;
DROP ROLE regress_feedpub_owner, regress_feedpub_reader;
DROP FUNCTION steady;
