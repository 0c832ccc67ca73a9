-- Leaving: feeds become ordinary tables again, one by one, all at once, or with
-- the extension; and tables become feeds again.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
CREATE ROLE regress_feedpub_owner;
CREATE ROLE regress_feedpub_writer;
RESET client_min_messages;
SELECT feed_stop_worker() IS NOT NULL AS stopped;
DO $$
BEGIN
	WHILE EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'feedpub worker' AND datname = current_database()) LOOP
		PERFORM pg_stat_clear_snapshot();
	END LOOP;
END $$;
SET feedpub.read_wait = 0;
CREATE SCHEMA own AUTHORIZATION regress_feedpub_owner;
GRANT USAGE ON SCHEMA own TO regress_feedpub_writer;
\set odd 'own."Odd ""Name"", with a comma"'

-- What is left of feedpub on a table, and in our tables
CREATE FUNCTION own.left_of(relation regclass) RETURNS SETOF text LANGUAGE sql AS $$
	SELECT 'column ' || attname || COALESCE(' DEFAULT ' || pg_get_expr(adbin, adrelid), '') || CASE WHEN attnotnull THEN ' NOT NULL' ELSE '' END
		FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
		WHERE attrelid = relation AND attnum > 0 AND NOT attisdropped AND attname IN ('feed_xid', 'feed_pos', 'message_id')
	UNION ALL SELECT 'trigger ' || tgname FROM pg_trigger WHERE tgrelid = relation
	UNION ALL SELECT 'index ' || indexrelid::regclass FROM pg_index WHERE indrelid = relation
	UNION ALL SELECT 'sequence ' || objid::regclass FROM pg_depend WHERE refobjid = relation AND classid = 'pg_class'::regclass AND deptype = 'a'
		AND objid IN (SELECT oid FROM pg_class WHERE relkind = 'S')
	ORDER BY 1
$$;

--
-- An outbox
--
SET ROLE regress_feedpub_owner;
SELECT feed_create(:'odd', 'text');
GRANT INSERT, SELECT ON :odd TO regress_feedpub_writer;
INSERT INTO :odd (message_type, data) VALUES ('a', 'a');
RESET ROLE;
CALL feed_publish(:'odd');
SELECT feed_subscribe('reader', :'odd') IS NOT NULL AS subscribed;
SELECT feed_detach(:'odd');
\echo :SQLSTATE
SET ROLE regress_feedpub_writer;
SELECT feed_detach(:'odd', cascade => true);
SET ROLE regress_feedpub_owner;
SELECT feed_detach(:'odd', cascade => true);
SELECT * FROM own.left_of(:'odd');
SELECT count(*) FROM feedpub.subscriptions;
SELECT message_type, data FROM :odd;
SET ROLE regress_feedpub_writer;
INSERT INTO :odd (message_type, data) VALUES ('b', 'b'), ('c', 'c');
SELECT count(DISTINCT message_id) FROM :odd;
SELECT feed_detach(:'odd');
\echo :SQLSTATE
RESET ROLE;
SELECT feed_create(:'odd', 'text', if_not_exists => true);
DROP TABLE :odd;
-- A default of one's own stays.
SELECT feed_create('own.box');
ALTER TABLE own.box ALTER message_id SET DEFAULT 'mine';
SELECT feed_detach('own.box');
SELECT * FROM own.left_of('own.box');
DROP TABLE own.box;

--
-- All of a database
--
CREATE TABLE own.kv (k int PRIMARY KEY, v text);
CREATE TABLE own.parted (k int PRIMARY KEY, v text) PARTITION BY RANGE (k);
CREATE TABLE own.parted1 PARTITION OF own.parted FOR VALUES FROM (0) TO (10);
INSERT INTO own.kv VALUES (1, 'a');
SELECT feed_attach('own.kv'), feed_attach('own.parted'), feed_create('own.box'), feed_create('own.viewed');
SELECT feed_subscribe('reader', 'own.kv') IS NOT NULL AS subscribed;
CREATE VIEW own.a_view AS SELECT feed_pos FROM own.viewed;
ALTER TABLE own.box OWNER TO regress_feedpub_owner;
SET ROLE regress_feedpub_owner;
SELECT * FROM feed_detach_all() ORDER BY feed::text;
RESET ROLE;
SELECT feed_create('own.box2');
SELECT * FROM feed_detach_all() ORDER BY feed::text;
SELECT * FROM feed_detach_all(cascade => true) ORDER BY feed::text;
SELECT feed FROM feedpub.feeds;
SELECT own.left_of(r) FROM unnest('{own.kv,own.parted,own.parted1,own.box}'::regclass[]) r;
DROP VIEW own.a_view;
SELECT * FROM feed_detach_all(NULL);
SELECT * FROM feed_detach_all();

--
-- With the extension
--
SELECT feed_attach('own.kv'), feed_create('own.messages');
INSERT INTO own.messages (message_type, data) VALUES ('a', '1');
INSERT INTO own.kv VALUES (2, 'b');
CALL feed_publish('own.kv');
CREATE TABLE own.mine (x int);
GRANT INSERT ON own.messages TO regress_feedpub_writer;
\set VERBOSITY terse
DROP EXTENSION feedpub;
\echo :SQLSTATE
\set VERBOSITY default
SET ROLE regress_feedpub_owner;
DROP EXTENSION feedpub CASCADE;
RESET ROLE;
\set VERBOSITY terse
BEGIN;
DROP EXTENSION IF EXISTS feedpub CASCADE;
SELECT own.left_of(r) FROM unnest('{own.kv,own.messages}'::regclass[]) r;
ROLLBACK;
SELECT feed FROM feedpub.feeds ORDER BY feed::text;
-- another table refers to the key of one
SELECT feed_create('own.referred');
CREATE TABLE own.referring (feed_xid xid8, feed_pos int8, FOREIGN KEY (feed_xid, feed_pos) REFERENCES own.referred);
-- the key of another is another one
SELECT feed_create('own.keyed');
ALTER TABLE own.keyed DROP CONSTRAINT keyed_pkey, ADD PRIMARY KEY (message_id), ADD UNIQUE (feed_xid, feed_pos);
SELECT problem FROM feed_check('own.keyed');
SELECT feed_repair('own.keyed');
DROP EXTENSION feedpub CASCADE;
DROP EXTENSION feedpub CASCADE;
DROP EXTENSION IF EXISTS feedpub CASCADE;
-- the feeds are ordinary tables
INSERT INTO own.kv VALUES (3, 'c');
UPDATE own.kv SET v = 'x' WHERE k = 3;
DELETE FROM own.kv WHERE k = 3;
SET ROLE regress_feedpub_writer;
INSERT INTO own.messages (message_type, data) VALUES ('b', '2');
RESET ROLE;
INSERT INTO own.keyed (message_type, data) VALUES ('a', '1');
UPDATE own.messages SET data = '3' WHERE message_type = 'b';
SELECT message_type, data, feed_xid = '0' AS unstamped, message_id IS NULL AS nameless FROM own.messages ORDER BY message_type;
INSERT INTO own.referred (message_type, data) VALUES ('a', '1');
DROP TABLE own.referring, own.referred;
\set VERBOSITY default

--
-- Back again.  What is left of an outbox is taken over.
--
CREATE EXTENSION feedpub;
SELECT feed_stop_worker() IS NOT NULL AS stopped;
SELECT guard, problem FROM feed_check('own.messages') WHERE guard IN ('columns', 'default', 'rows');
SELECT feed_create('own.messages', if_not_exists => true);
SELECT feed_repair('own.keyed') > 0 AS repaired;
SELECT * FROM feed_check('own.messages');
SELECT * FROM feed_check('own.keyed');
SET ROLE regress_feedpub_writer;
INSERT INTO own.messages (message_type, data) VALUES ('c', '4');
RESET ROLE;
CALL feed_publish();
SELECT (entry).message_type, (entry).data, (entry).message_id IS NULL AS nameless FROM feed_read(NULL::own.messages, '', 10);
SELECT (entry).message_type FROM feed_read(NULL::own.keyed, '', 10);
-- Columns of a table feed's stamp are dropped first.
SELECT feed_attach('own.kv');
\echo :SQLSTATE
ALTER TABLE own.kv DROP COLUMN feed_xid, DROP COLUMN feed_pos;
SELECT feed_attach('own.kv');
SELECT feed_detach('own.kv');

-- Rows that were written meanwhile have none, or what they brought.
SELECT feed_attach('own.kv'), feed_attach('own.parted');
INSERT INTO own.kv VALUES (4, 'd');
INSERT INTO own.parted VALUES (1, 'a'), (2, 'b');
CALL feed_publish('own.kv');
SELECT feed_head('own.kv') AS head \gset
SELECT format('DROP TRIGGER %I ON %s', tgname, tgrelid::regclass) FROM pg_trigger
	WHERE tgrelid IN ('own.kv'::regclass, 'own.parted'::regclass) AND tgname LIKE 'zz_feedpub%' ORDER BY 1 \gexec
DELETE FROM feedpub._feed WHERE feed IN ('own.kv'::regclass, 'own.parted'::regclass);
ALTER INDEX own.kv_feed_idx RENAME TO other_name;
INSERT INTO own.kv VALUES (5, 'e', '900', 900);
UPDATE own.kv SET v = 'dd' WHERE k = 4;
SELECT guard FROM feed_check('own.kv');
SELECT guard FROM feed_check('own.parted');
SELECT feed_repair('own.kv');
ALTER TABLE own.kv DROP COLUMN feed_xid, DROP COLUMN feed_pos;
ALTER TABLE own.parted DROP COLUMN feed_xid, DROP COLUMN feed_pos;
SELECT feed_attach('own.kv'), feed_attach('own.parted');
SELECT own.left_of(r) FROM unnest('{own.kv,own.parted,own.parted1}'::regclass[]) r;
SELECT * FROM feed_check('own.kv');
SELECT * FROM feed_check('own.parted');
CALL feed_publish();
SELECT op, (entry).k, (entry).v, (entry).feed_pos FROM feed_read(NULL::own.kv, '', 10);
SELECT op, (entry).k, (entry).v FROM feed_read(NULL::own.parted, '', 10);
SELECT * FROM feed_read(NULL::own.kv, :'head', 10);
\echo :SQLSTATE
-- columns of one's own are not ours
CREATE TABLE own.other (k int PRIMARY KEY, feed_xid xid8, feed_pos int8);
SELECT feed_attach('own.other');
\echo :SQLSTATE
SELECT feed_create('own.other', if_not_exists => true);
\echo :SQLSTATE
-- detached and attached again
SELECT feed_detach('own.kv');
SELECT feed_attach('own.kv');
SELECT op, (entry).k FROM feed_read(NULL::own.kv, '', 10);

SELECT * FROM feed_detach_all(cascade => true) ORDER BY feed::text;
SET client_min_messages = warning;
DROP SCHEMA own CASCADE;
DROP ROLE regress_feedpub_owner, regress_feedpub_writer;
