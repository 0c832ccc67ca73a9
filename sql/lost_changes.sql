-- What a feed needs is dropped.  Writers go on, and readers are refused until
-- another history begins.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
CREATE ROLE regress_feedpub_writer;
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

CREATE FUNCTION problems(feed regclass) RETURNS SETOF text LANGUAGE sql AS $$
	SELECT guard || ': ' || problem || COALESCE(' / ' || cure, '') FROM feed_check(feed)
$$;
CREATE FUNCTION state(relation regclass) RETURNS text LANGUAGE sql AS $$
	SELECT f.state FROM feedpub.feeds f WHERE f.feed = relation
$$;

--
-- The primary key is dropped, and its column.
--
CREATE TABLE kv (k int PRIMARY KEY, v text);
GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON kv TO regress_feedpub_writer;
SELECT feed_attach('kv');
INSERT INTO kv VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd');
CALL feed_publish('kv');
SELECT feed_head('kv') AS head \gset
SELECT feed_subscribe('copy', 'kv') IS NOT NULL AS subscribed;

-- the columns are enough to tell which row was deleted
ALTER TABLE kv DROP CONSTRAINT kv_pkey;
DELETE FROM kv WHERE k = 1;
ALTER TABLE kv ADD PRIMARY KEY (k);
CALL feed_publish('kv');
SELECT op, (entry).k FROM feed_read(NULL::kv, :'head', 10);
SELECT * FROM problems('kv');

ALTER TABLE kv DROP COLUMN k;
SET ROLE regress_feedpub_writer;
INSERT INTO kv VALUES ('e'), ('f');
UPDATE kv SET v = 'bb' WHERE v = 'b';
DELETE FROM kv WHERE v IN ('c', 'f');
DELETE FROM kv WHERE v = 'd';
BEGIN;
SAVEPOINT a;
DELETE FROM kv WHERE v = 'e';
ROLLBACK TO a;
DELETE FROM kv WHERE v = 'e';
COMMIT;
RESET ROLE;
SELECT feed, count(*) FROM feedpub._lost_change GROUP BY feed;
SELECT * FROM problems('kv');
SELECT state('kv');
CALL feed_publish('kv');
SELECT * FROM feed_read(NULL::kv, :'head', 10);
\echo :SQLSTATE
SELECT feed_repair('kv');
-- a column of the old name is another key, and the old one was not recorded
ALTER TABLE kv ADD COLUMN k int GENERATED ALWAYS AS IDENTITY PRIMARY KEY;
SELECT * FROM problems('kv');
SELECT state('kv');
SELECT * FROM feed_read(NULL::kv, :'head', 10);
\echo :SQLSTATE
SELECT * FROM feed_page('kv', '', 10);
\echo :SQLSTATE
SELECT * FROM feed_poll('copy', 10);
\echo :SQLSTATE
SELECT feed_wait('kv', :'head', '1 s');
\echo :SQLSTATE
SELECT * FROM feed_fetch(NULL::kv, '0', 0, 10);
\echo :SQLSTATE
SELECT feed_begin_history('kv');
SELECT count(*) FROM feedpub._lost_change;
SELECT * FROM problems('kv');
SELECT state('kv');
CALL feed_publish('kv');
SELECT op, (entry).v FROM feed_read(NULL::kv, '', 10);
SELECT * FROM feed_read(NULL::kv, :'head', 10);
\echo :SQLSTATE
SELECT feed_unsubscribe('copy');

--
-- What is rolled back was no change.
--
ALTER TABLE kv DROP COLUMN k;
BEGIN;
DELETE FROM kv;
SELECT count(*) FROM feedpub._lost_change;
ROLLBACK;
SELECT count(*) FROM feedpub._lost_change;
-- feed_attach() with another key begins another history
DELETE FROM kv;
ALTER TABLE kv ADD COLUMN id int NOT NULL UNIQUE;
SELECT feed_attach('kv', key => 'kv_id_key');
SELECT * FROM problems('kv');
SELECT count(*) FROM feedpub._lost_change;
INSERT INTO kv (v, id) VALUES ('g', 1);
CALL feed_publish('kv');
SELECT op, (entry).id FROM feed_read(NULL::kv, '', 10);
-- TRUNCATE needs no key
ALTER TABLE kv DROP COLUMN id;
TRUNCATE kv;
SELECT count(*) FROM feedpub._lost_change;
DROP TABLE kv;

--
-- A column of the key becomes null.
--
CREATE TABLE kv (k int PRIMARY KEY, v text);
SELECT feed_attach('kv');
INSERT INTO kv VALUES (1, 'a'), (2, 'b');
CALL feed_publish('kv');
SELECT feed_head('kv') AS head \gset
ALTER TABLE kv DROP CONSTRAINT kv_pkey;
ALTER TABLE kv ALTER COLUMN k DROP NOT NULL;
UPDATE kv SET k = NULL WHERE k = 1;
SELECT count(*) FROM feedpub._lost_change;
UPDATE kv SET k = 5 WHERE k IS NULL;
SELECT count(*) FROM feedpub._lost_change;
UPDATE kv SET k = NULL WHERE k = 2;
DELETE FROM kv WHERE k IS NULL;
ALTER TABLE kv ADD PRIMARY KEY (k);
SELECT feed_read(NULL::kv, :'head', 10);
SELECT feed_repair('kv');
CALL feed_publish('kv');
SELECT op, (entry).k, (entry).v FROM feed_read(NULL::kv, '', 10);

--
-- The sequence is dropped, or a column of the stamp: rows are written without
-- a stamp, whatever they bring.
--
DROP SEQUENCE kv_feed_pos_seq;
INSERT INTO kv VALUES (6, 'f', '700', 700);
UPDATE kv SET v = 'aa' WHERE k = 5;
DELETE FROM kv WHERE k = 5;
SELECT k, v, feed_xid, feed_pos FROM kv ORDER BY k;
SELECT count(*) > 0 AS some FROM feedpub._lost_change;
SELECT * FROM problems('kv');
SELECT feed_repair('kv') > 0 AS repaired;
SELECT * FROM problems('kv');
INSERT INTO kv VALUES (7, 'g');
CALL feed_publish('kv');
SELECT op, (entry).k, (entry).v FROM feed_read(NULL::kv, '', 10);
SELECT feed_head('kv') AS head \gset
DROP SEQUENCE kv_feed_pos_seq;
TRUNCATE kv;
SELECT count(*) FROM feedpub._lost_change;
SELECT feed_repair('kv') > 0 AS repaired;
SELECT feed_read(NULL::kv, :'head', 10);
\echo :SQLSTATE
ALTER TABLE kv DROP COLUMN feed_xid;
INSERT INTO kv VALUES (8, 'h');
UPDATE kv SET v = 'hh';
DELETE FROM kv;
TRUNCATE kv;
SELECT state('kv');
SELECT * FROM problems('kv');
SELECT feed_detach('kv');
SELECT count(*) FROM feedpub._lost_change;
DROP TABLE kv;

--
-- Partitions
--
CREATE TABLE parted (k int PRIMARY KEY, v text) PARTITION BY RANGE (k);
CREATE TABLE parted1 PARTITION OF parted FOR VALUES FROM (0) TO (10);
CREATE TABLE parted2 PARTITION OF parted FOR VALUES FROM (10) TO (20);
SELECT feed_attach('parted');
INSERT INTO parted VALUES (1, 'a'), (11, 'b'), (12, 'c');
CALL feed_publish('parted');
SELECT feed_head('parted') AS head \gset
DROP SEQUENCE parted_feed_pos_seq;
INSERT INTO parted VALUES (2, 'd'), (13, 'e');
UPDATE parted SET k = 14 WHERE k = 1;
DELETE FROM parted WHERE k = 11;
TRUNCATE parted2;
SELECT feed, count(*) > 0 AS some FROM feedpub._lost_change GROUP BY feed;
SELECT feed_repair('parted') > 0 AS repaired;
SELECT * FROM problems('parted');
SELECT feed_read(NULL::parted, :'head', 10);
\echo :SQLSTATE
DROP TABLE parted;
-- A partition is truncated when the key is not known any more.
CREATE TABLE parted (k int, e int, v text, PRIMARY KEY (k, e)) PARTITION BY RANGE (k);
CREATE TABLE parted1 PARTITION OF parted FOR VALUES FROM (0) TO (10);
CREATE TABLE parted2 PARTITION OF parted FOR VALUES FROM (10) TO (20);
SELECT feed_attach('parted');
INSERT INTO parted VALUES (11, 1, 'a'), (12, 1, 'b');
CALL feed_publish('parted');
SELECT feed_head('parted') AS head \gset
ALTER TABLE parted DROP COLUMN e;
TRUNCATE parted1;
SELECT count(*) FROM feedpub._lost_change;
TRUNCATE parted2;
SELECT count(*) FROM feedpub._lost_change;
SELECT feed_read(NULL::parted, :'head', 10);
\echo :SQLSTATE
DROP TABLE parted;

--
-- The triggers were off: what was changed meanwhile left no trace.
--
CREATE PROCEDURE off(statement text, changes text) LANGUAGE plpgsql AS $$
DECLARE
	head text;
	n int;
BEGIN
	DELETE FROM kv;
	INSERT INTO kv SELECT k, 'v' FROM generate_series(1, 3) k;
	COMMIT;
	CALL feed_publish('kv');
	head := feed_head('kv');
	EXECUTE statement;
	EXECUTE changes;
	RAISE INFO '%', (SELECT string_agg(p, '; ') FROM problems('kv') p);
	RAISE INFO '% repaired, then: %', feed_repair('kv'), (SELECT string_agg(p, '; ') FROM problems('kv') p);
	COMMIT;
	CALL feed_publish('kv');
	-- a reader is refused, until there is another history and then because of it
	BEGIN
		PERFORM feed_page('kv', head, 10);
		RAISE 'not refused';
	EXCEPTION WHEN SQLSTATE 'PF001' THEN
		NULL;
	END;
	SELECT count(*) INTO n FROM problems('kv');
	IF n > 0 THEN
		PERFORM feed_begin_history('kv');
	END IF;
	COMMIT;
	CALL feed_publish('kv');
	IF (SELECT relkind = 'p' FROM pg_class WHERE oid = 'kv'::regclass) THEN
		CALL feed_republish('kv', unstamped_only => true);
		CALL feed_publish('kv');
	END IF;
	RAISE INFO 'a copy: %, the table: %', (SELECT array_agg(e -> 'row' ->> 'k' ORDER BY e -> 'row' ->> 'k') FROM json_array_elements(feed_page('kv', '', 10) -> 'entries') e WHERE e ->> 'op' = 'upsert'),
		(SELECT array_agg(k::text ORDER BY k::text) FROM kv);
END $$;
CREATE TABLE kv (k int PRIMARY KEY, v text);
SELECT feed_attach('kv');
SELECT count(*) FROM feedpub._lost_change;
CALL off('ALTER TABLE kv DISABLE TRIGGER zz_feedpub_delete', 'DELETE FROM kv WHERE k = 1');
CALL off('DROP TRIGGER zz_feedpub_delete ON kv', 'DELETE FROM kv WHERE k = 2');
CALL off('ALTER TABLE kv ENABLE TRIGGER zz_feedpub_delete', 'SET LOCAL session_replication_role = replica; DELETE FROM kv WHERE k = 3');
CALL off('ALTER TABLE kv DISABLE TRIGGER zz_feedpub_truncate', 'TRUNCATE kv');
CALL off('DROP TRIGGER zz_feedpub_truncate ON kv', 'TRUNCATE kv');
-- so has a row whose key changes, and rows may have stamps that others have
CALL off('ALTER TABLE kv DISABLE TRIGGER zz_feedpub_stamp', 'UPDATE kv SET k = 9 WHERE k = 1; INSERT INTO kv SELECT 10, v, ''3'', feed_pos FROM kv WHERE k = 2');
SELECT count(*) = count(DISTINCT feed_pos) AS distinct FROM kv;
CALL off('ALTER TABLE kv DISABLE TRIGGER ALL', 'UPDATE kv SET k = 9 WHERE k = 1; DELETE FROM kv WHERE k = 2');
-- The cure can be run as it is printed.
INSERT INTO kv VALUES (20, 'v');
CALL feed_publish('kv');
SELECT feed_head('kv') AS head \gset
ALTER TABLE kv DISABLE TRIGGER zz_feedpub_delete;
DELETE FROM kv WHERE k = 20;
SELECT cure FROM feed_check('kv') \gexec
SELECT feed_read(NULL::kv, :'head', 10);
\echo :SQLSTATE
-- If it is rolled back, nothing is noted.
BEGIN;
ALTER TABLE kv DISABLE TRIGGER zz_feedpub_delete;
SELECT feed_repair('kv');
ROLLBACK;
SELECT count(*) FROM feedpub._lost_change;
DROP TABLE kv;

-- A partition
CREATE TABLE kv (k int PRIMARY KEY, v text) PARTITION BY RANGE (k);
CREATE TABLE kv_low PARTITION OF kv FOR VALUES FROM (0) TO (3);
SELECT feed_attach('kv');
CREATE TABLE kv_high PARTITION OF kv FOR VALUES FROM (3) TO (100);
-- its trigger for TRUNCATE was never there, so nothing was lost
SELECT * FROM problems('kv');
INSERT INTO kv VALUES (1, 'v'), (4, 'v');
SELECT feed_repair('kv');
SELECT count(*) FROM feedpub._lost_change;
CALL feed_publish('kv');
CALL off('ALTER TABLE kv_low DISABLE TRIGGER zz_feedpub_delete', 'DELETE FROM kv WHERE k = 1');
CALL off('ALTER TABLE kv_low DISABLE TRIGGER zz_feedpub_truncate', 'TRUNCATE kv_low');
CALL off('DROP TRIGGER zz_feedpub_truncate ON kv_high', 'TRUNCATE kv_high');
DROP TABLE kv;

-- Without deletes there is nothing to lose (loaded_rows).
CREATE TABLE kv (k int PRIMARY KEY, v text);
SELECT feed_attach('kv', deletes => false);
ALTER TABLE kv DISABLE TRIGGER ALL;
DELETE FROM kv;
TRUNCATE kv;
SELECT feed_repair('kv');
SELECT guard FROM feed_check('kv');
SELECT count(*) FROM feedpub._lost_change;
DROP TABLE kv;
DROP PROCEDURE off;

--
-- In an outbox a message without a stamp is refused: no consumer would get it.
--
SELECT feed_create('box', 'text');
INSERT INTO box (message_type, data) VALUES ('a', 'a');
DROP SEQUENCE box_feed_pos_seq;
INSERT INTO box (message_type, data) VALUES ('b', 'b');
\echo :SQLSTATE
DELETE FROM box;
TRUNCATE box;
SELECT feed_repair('box') > 0 AS repaired;
INSERT INTO box (message_type, data) VALUES ('b', 'b');
SELECT count(*) FROM box;
DROP TABLE box;

--
-- A session that has written without a sequence knows of the new one, which
-- changes nothing in the table itself.
--
SELECT feed_create('box', 'text');
CREATE TABLE kv (k int PRIMARY KEY);
SELECT feed_attach('kv');
DROP SEQUENCE box_feed_pos_seq, kv_feed_pos_seq;
INSERT INTO box (message_type, data) VALUES ('a', 'a');
BEGIN;
INSERT INTO kv VALUES (1);
ROLLBACK;
SELECT feed_repair('box') > 0 AS box, feed_repair('kv') > 0 AS kv;
INSERT INTO box (message_type, data) VALUES ('a', 'a');
INSERT INTO kv VALUES (1);
SELECT state('box') AS box, state('kv') AS kv;
DROP TABLE box, kv;

--
-- feed_attach(), called again, says what it cannot put back.
--
CREATE TABLE kv (k int PRIMARY KEY, v text);
SELECT feed_attach('kv');
ALTER TABLE kv DROP CONSTRAINT kv_pkey;
SELECT feed_attach('kv');
ALTER TABLE kv ADD UNIQUE (k);
SELECT feed_attach('kv', key => 'kv_k_key');
SELECT state('kv');
ALTER TABLE kv DROP COLUMN feed_pos;
SELECT feed_attach('kv');
DROP TABLE kv;

DROP FUNCTION problems(regclass), state(regclass);
DROP ROLE regress_feedpub_writer;
