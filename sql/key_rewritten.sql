-- ALTER TABLE writes other values into a key column: consumers, which know the
-- rows by the values of before, are refused until another history begins.
-- Whatever else writes a table or its catalogs anew does not disturb them.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
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
\set odd '"Odd ""Name"", with a comma"'
-- What a consumer gets that has read up to its cursor, which moves; or the error
CREATE TABLE consumer (cursor text NOT NULL);
INSERT INTO consumer VALUES ('');
CREATE FUNCTION rest(feed regclass) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	page json;
BEGIN
	page := feed_page(feed, (SELECT cursor FROM consumer), 100);
	UPDATE consumer SET cursor = page ->> 'cursor';
	RETURN (SELECT string_agg((e ->> 'op') || ' ' || (e ->> 'key'), ', ') FROM json_array_elements(page -> 'entries') e);
EXCEPTION WHEN OTHERS THEN
	RETURN sqlstate || ': ' || sqlerrm;
END $$;

--
-- The values change, and the type does not.
--
CREATE TABLE :odd ("the ""key""" int PRIMARY KEY, v text);
INSERT INTO :odd VALUES (1, 'initial');
SELECT feed_attach(:'odd');
INSERT INTO :odd VALUES (2, 'a'), (3, 'a');
DELETE FROM :odd WHERE v = 'a' AND "the ""key""" = 3;
CALL feed_publish(:'odd');
SELECT rest(:'odd');
SELECT feed_subscribe('sub', :'odd', 'earliest') <> '' AS made;
ALTER TABLE :odd ALTER "the ""key""" TYPE int USING "the ""key""" + 10;
SELECT rest(:'odd');
SELECT feed_page(:'odd');
\set VERBOSITY terse
SELECT op FROM feed_read(NULL::public.:odd, '', 100);
SELECT feed_wait(:'odd', (SELECT cursor FROM consumer), '0');
SELECT op FROM feed_poll('sub');
\echo :SQLSTATE
\set VERBOSITY default
SELECT state FROM feedpub.feeds WHERE feed = :'odd'::regclass;
SELECT * FROM feed_check(:'odd');
-- Writers and the publisher go on, and nothing makes that good but another
-- history.
INSERT INTO :odd VALUES (1, 'new');
DELETE FROM :odd WHERE v = 'a';
CALL feed_publish(:'odd');
VACUUM FULL :odd;
REINDEX TABLE CONCURRENTLY :odd;
ALTER TABLE :odd ALTER "the ""key""" SET STATISTICS 10;
CALL feed_publish(:'odd');
SELECT rest(:'odd');
SELECT feed_repair(:'odd');
SELECT rest(:'odd');
CALL feed_publish(:'odd');
UPDATE consumer SET cursor = '';
SELECT rest(:'odd');
SELECT * FROM feed_check(:'odd');
-- In the transaction that begins it, and in one that is rolled back
BEGIN;
ALTER TABLE :odd ALTER "the ""key""" TYPE int USING "the ""key""" + 10;
SELECT feed_begin_history(:'odd');
COMMIT;
CALL feed_publish(:'odd');
UPDATE consumer SET cursor = '';
SELECT rest(:'odd');
BEGIN;
ALTER TABLE :odd ALTER "the ""key""" TYPE int USING "the ""key""" + 10;
ROLLBACK;
SELECT rest(:'odd');
-- Without an index meanwhile
ALTER TABLE :odd DROP CONSTRAINT "Odd ""Name"", with a comma_pkey";
ALTER TABLE :odd ALTER "the ""key""" TYPE int USING "the ""key""" + 10;
CALL feed_publish(:'odd');
ALTER TABLE :odd ADD PRIMARY KEY ("the ""key""");
SELECT rest(:'odd');
SELECT feed_attach(:'odd');
CALL feed_publish(:'odd');
UPDATE consumer SET cursor = '';
SELECT rest(:'odd');
-- Another column of the same name and type, without a rewrite
ALTER TABLE :odd ADD other int;
UPDATE :odd SET other = "the ""key""" + 100;
CALL feed_publish(:'odd');
ALTER TABLE :odd DROP "the ""key""";
ALTER TABLE :odd RENAME other TO "the ""key""";
ALTER TABLE :odd ADD PRIMARY KEY ("the ""key""");
SELECT rest(:'odd');
SELECT feed_begin_history(:'odd');
CALL feed_publish(:'odd');
UPDATE consumer SET cursor = '';
SELECT rest(:'odd');

--
-- What writes the table anew, or the rows of the catalogs, and keeps the keys
--
SET allow_in_place_tablespaces = on;
CREATE TABLESPACE regress_feedpub_space LOCATION '';
SELECT feed_detach(:'odd', cascade => true);
DROP TABLE :odd;
CREATE TABLE kv (k serial PRIMARY KEY, v text, n int DEFAULT 0);
SELECT feed_attach('kv');
UPDATE consumer SET cursor = '';
SELECT rest('kv');
-- Each by itself; then the publisher has seen it.
\set after 'INSERT INTO kv (v) VALUES (''new''); CALL feed_publish(''kv''); SELECT rest(''kv'');'
VACUUM FULL kv;
:after
CLUSTER kv USING kv_pkey;
:after
REINDEX TABLE CONCURRENTLY kv;
:after
ALTER TABLE kv SET TABLESPACE regress_feedpub_space;
:after
ALTER INDEX kv_pkey SET TABLESPACE regress_feedpub_space;
:after
ALTER TABLE kv ALTER v TYPE varchar(3) USING left(v, 3);
:after
ALTER TABLE kv ADD "volatile" float DEFAULT random();
:after
ALTER TABLE kv ALTER k SET STATISTICS 10;
:after
ALTER TABLE kv RENAME k TO key;
:after
ALTER TABLE kv ALTER key TYPE int;
:after
ALTER TABLE kv DROP CONSTRAINT kv_pkey, ADD CONSTRAINT kv_pkey PRIMARY KEY (key);
:after
-- Two of them before it looks
ALTER TABLE kv ALTER key SET STATISTICS 20, ALTER n TYPE bigint;
:after
ALTER TABLE kv ALTER key SET STORAGE plain;
REINDEX TABLE CONCURRENTLY kv;
:after
REINDEX TABLE CONCURRENTLY kv;
VACUUM FULL kv;
:after
-- Many, if it looks between them
REINDEX TABLE CONCURRENTLY kv;
:after
ALTER TABLE kv ALTER key SET STATISTICS 30;
:after
VACUUM FULL kv;
:after
SELECT * FROM feed_check('kv');
-- All three before it looks cannot be told from other values.
BEGIN;
ALTER TABLE kv ALTER key TYPE int, ALTER n TYPE int;
SELECT feed_check('kv');
ROLLBACK;
SELECT rest('kv');
-- A key by a unique index: columns of it that are not the first
SELECT feed_detach('kv', cascade => true);
CREATE UNIQUE INDEX by_both ON kv (v, key);
ALTER TABLE kv ALTER v SET NOT NULL;
SELECT feed_attach('kv', key => 'by_both');
UPDATE consumer SET cursor = '';
SELECT rest('kv') <> '' AS read;
ALTER TABLE kv ALTER n TYPE int;
SELECT rest('kv');
ALTER TABLE kv ALTER key TYPE int USING key * 2;
SELECT rest('kv');
SELECT feed_begin_history('kv');
ALTER TABLE kv ALTER v TYPE varchar(3) USING upper(v);
UPDATE consumer SET cursor = '';
SELECT rest('kv');
DROP TABLE kv;
DROP TABLESPACE regress_feedpub_space;

--
-- A mark that is not of this table, as a dump brings it, says nothing, until the
-- publisher has written another.
--
CREATE TABLE kv (k int PRIMARY KEY);
INSERT INTO kv VALUES (1);
SELECT feed_attach('kv');
INSERT INTO kv VALUES (2);
CALL feed_publish('kv');
UPDATE consumer SET cursor = '';
SELECT rest('kv');
UPDATE feedpub._feed SET key_mark = '{1,2,3,4,5}', key_table = 2 WHERE feed = 'kv'::regclass;
ALTER TABLE kv ADD v text;
SELECT rest('kv');
INSERT INTO kv VALUES (3);
CALL feed_publish('kv');
SELECT rest('kv');
SELECT key_mark = '{1,2,3,4,5}' AS as_it_was FROM feedpub._feed WHERE feed = 'kv'::regclass;
UPDATE feedpub._feed SET key_mark = NULL WHERE feed = 'kv'::regclass;
ALTER TABLE kv DROP v;
INSERT INTO kv VALUES (4);
CALL feed_publish('kv');
SELECT rest('kv');
ALTER TABLE kv ALTER k TYPE int USING k + 10;
SELECT rest('kv');
DROP TABLE kv;

--
-- A partitioned table: its file is that of its first partition.
--
CREATE TABLE parted (r text, k varchar(5), v text, PRIMARY KEY (r, k)) PARTITION BY LIST (r);
SELECT feed_attach('parted');
CREATE TABLE parted_sub PARTITION OF parted FOR VALUES IN ('s') PARTITION BY LIST (r);
CREATE TABLE parted_a PARTITION OF parted FOR VALUES IN ('a');
CALL feed_publish('parted');
INSERT INTO parted VALUES ('a', 'x'), ('a', 'y');
CALL feed_publish('parted');
UPDATE consumer SET cursor = '';
SELECT rest('parted');
-- A longer length: nothing is rewritten.
ALTER TABLE parted ALTER k TYPE varchar(9);
SELECT rest('parted');
VACUUM FULL parted_a;
CREATE TABLE parted_s PARTITION OF parted_sub FOR VALUES IN ('s');
CALL feed_publish('parted');
INSERT INTO parted VALUES ('s', 'x');
CALL feed_publish('parted');
SELECT rest('parted');
ALTER TABLE parted ALTER v TYPE varchar(9);
ALTER TABLE parted ALTER v TYPE varchar(5);
ALTER TABLE parted ALTER k SET STATISTICS 10;
SELECT rest('parted');
ALTER TABLE parted ALTER k TYPE varchar(9) USING upper(k);
SELECT rest('parted');
SELECT feed_begin_history('parted');
UPDATE consumer SET cursor = '';
CALL feed_publish('parted');
SELECT feedpub._run_job('parted', 100) AS stamped;
CALL feed_publish('parted');
SELECT rest('parted');
INSERT INTO parted VALUES ('a', 'z');
CALL feed_publish('parted');
SELECT rest('parted');
-- The first partition goes, which the publisher has not seen.
ALTER TABLE parted DETACH PARTITION parted_a;
ALTER TABLE parted ALTER k TYPE varchar(9) USING lower(k);
SELECT rest('parted');
DROP TABLE parted, parted_a;

DROP FUNCTION rest(regclass);
DROP TABLE consumer;
