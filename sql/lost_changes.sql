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

DROP FUNCTION problems(regclass), state(regclass);
DROP ROLE regress_feedpub_writer;
