-- feed_attach() makes an ordinary table a feed of its changes, feed_detach() an
-- ordinary table again; what is refused; the index of a large table.
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
CREATE SCHEMA "Odd ""Schema"", with a comma";
SET search_path = "Odd ""Schema"", with a comma", public;
\set odd '"Odd ""Name"", with a comma"'
-- What a statement is refused with
CREATE FUNCTION refusal(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	detail text;
BEGIN
	EXECUTE statement;
	RETURN 'not refused';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
	RETURN SQLSTATE || ': ' || SQLERRM || coalesce(' / ' || nullif(detail, ''), '');
END $$;
-- What a table consists of
CREATE VIEW parts AS
	SELECT attrelid::regclass AS tab, 'column' AS part, attname || ' ' || format_type(atttypid, atttypmod) AS is
	  FROM pg_attribute WHERE attnum > 0 AND NOT attisdropped
	UNION ALL SELECT tgrelid, 'trigger', tgname || ' ' || tgenabled::text || ' ' || encode(tgargs, 'escape') FROM pg_trigger WHERE NOT tgisinternal
	UNION ALL SELECT indrelid, 'index', pg_get_indexdef(indexrelid) FROM pg_index
	UNION ALL SELECT refobjid, 'sequence', objid::regclass::text FROM pg_depend WHERE deptype = 'a' AND classid = 'pg_class'::regclass AND EXISTS (SELECT FROM pg_sequence WHERE seqrelid = objid);

--
-- A table with a primary key
--
CREATE TABLE :odd (id int PRIMARY KEY, "The ""value"", say" text, note text);
INSERT INTO :odd VALUES (1, 'one'), (2, 'two'), (3, 'three');
SELECT pg_relation_filenode(:'odd') AS file \gset
SELECT array_agg(ctid::text) AS tids FROM :odd \gset
SELECT feed_attach(:'odd');
-- Nothing was rewritten, and no row touched.
SELECT pg_relation_filenode(:'odd') = :file AS same_file, (SELECT array_agg(ctid::text) FROM :odd) = :'tids' AS same_tids;
SELECT part, "is" FROM parts WHERE tab = :'odd'::regclass ORDER BY part, "is" COLLATE "C";
SELECT feed, kind, owner = current_user AS owner, payload_type, key, deletes, state, is_default FROM feedpub.feeds WHERE feed = :'odd'::regclass;
SELECT * FROM feed_check(:'odd');
INSERT INTO :odd VALUES (4, 'four');
CALL feed_publish(:'odd');
SELECT op, (entry).id, (entry).feed_pos FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 100);
-- A second call finds nothing to do.
SELECT xmin AS version FROM pg_class WHERE oid = :'odd'::regclass \gset
SELECT feed_attach(:'odd'), feed_repair(:'odd'), (SELECT xmin FROM pg_class WHERE oid = :'odd'::regclass) = :'version' AS untouched;
-- It is no outbox.
SELECT refusal($$SELECT feed_drop('"Odd ""Name"", with a comma"')$$) UNION ALL SELECT refusal($$SELECT feed_set_default('"Odd ""Name"", with a comma"')$$);
-- What depends on the stamp is in the way of feed_detach(), which then changes nothing.
CREATE VIEW dependent AS SELECT feed_xid FROM :odd;
SELECT refusal($$SELECT feed_detach('"Odd ""Name"", with a comma"')$$) ~ '^2BP01: cannot drop column feed_xid' AS refused;
DROP VIEW dependent;
SELECT * FROM feed_check(:'odd');
DELETE FROM :odd WHERE id = 4;
SELECT count(*) FROM feedpub._tombstone;
-- Detached, all of it is gone; the rows stay, and as they are.
SELECT feed_detach(:'odd');
SELECT part, "is" FROM parts WHERE tab = :'odd'::regclass ORDER BY part, "is" COLLATE "C";
SELECT (SELECT count(*) FROM feedpub._feed) AS feeds, (SELECT count(*) FROM feedpub._batch) AS batches, (SELECT count(*) FROM feedpub._tombstone) AS tombstones;
SELECT *, pg_relation_filenode(:'odd') = :file AS same_file FROM :odd ORDER BY id;
SELECT refusal($$SELECT feed_detach('"Odd ""Name"", with a comma"')$$) UNION ALL SELECT refusal($$SELECT * FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 1)$$);
-- And attached again: what was stamped before is in the initial snapshot now.  In a transaction that is rolled back nothing happened.
BEGIN;
SELECT feed_attach(:'odd');
ROLLBACK;
SELECT count(*) FROM parts WHERE tab = :'odd'::regclass AND part = 'trigger';
SELECT feed_attach(:'odd');
SELECT op, (entry).id, (entry).feed_pos FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 100);
SELECT feed_detach(:'odd');

--
-- Another key, some columns, no deletes
--
CREATE TABLE keyed (id int, a int NOT NULL, b text NOT NULL, c int, "quo'te\" text, UNIQUE (a, b));
CREATE UNIQUE INDEX "odd, index" ON keyed (b, a) INCLUDE (c);
SELECT refusal($$SELECT feed_attach('keyed')$$);
SELECT feed_attach('keyed', key => '"odd, index"', columns => '{c,"quo''te\\"}', deletes => false);
SELECT part, "is" FROM parts WHERE tab = 'keyed'::regclass AND part = 'trigger' ORDER BY "is";
SELECT key, deletes, state FROM feedpub.feeds WHERE feed = 'keyed'::regclass;
INSERT INTO keyed VALUES (1, 2, 'b', 3, 'x');
SELECT feed_page('keyed', '', 10) -> 'entries';
CALL feed_publish('keyed');
SELECT steady(e) AS e FROM json_array_elements(feed_page('keyed', '', 10) -> 'entries') e;
-- What it was attached with stays.
SELECT feed_attach('keyed', key => 'keyed_a_b_key', deletes => true);
SELECT key, deletes FROM feedpub.feeds WHERE feed = 'keyed'::regclass;
SET client_min_messages = warning;
SELECT feed_detach('keyed');
RESET client_min_messages;
-- The primary key may be named as well.
ALTER TABLE keyed ADD PRIMARY KEY (id);
SELECT feed_attach('keyed', 'keyed_pkey');
SELECT key, deletes FROM feedpub.feeds WHERE feed = 'keyed'::regclass;
-- Subscriptions keep it a feed, but with cascade, which removes them.
SELECT feed_subscribe('reader', 'keyed', 'earliest') IS NOT NULL AS begun;
SELECT refusal($$SELECT feed_detach('keyed')$$);
SELECT state FROM feedpub.feeds WHERE feed = 'keyed'::regclass;
SELECT feed_detach('keyed', cascade => true);
SELECT count(*) FROM feedpub._subscription;

--
-- What cannot be a feed, nor a key
--
CREATE VIEW a_view AS SELECT 1 AS id;
CREATE MATERIALIZED VIEW a_matview AS SELECT 1 AS id;
CREATE TABLE partitioned (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE partition PARTITION OF partitioned FOR VALUES FROM (0) TO (1);
CREATE UNLOGGED TABLE unlogged_partition PARTITION OF partitioned DEFAULT;
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent);
CREATE TEMP TABLE a_temp (id int PRIMARY KEY);
CREATE UNLOGGED TABLE an_unlogged (id int PRIMARY KEY);
CREATE FOREIGN DATA WRAPPER regress_feedpub_fdw;
CREATE SERVER regress_feedpub_server FOREIGN DATA WRAPPER regress_feedpub_fdw;
CREATE FOREIGN TABLE a_foreign (id int) SERVER regress_feedpub_server;
CREATE TABLE half_foreign (id int) PARTITION BY RANGE (id);
CREATE FOREIGN TABLE foreign_partition PARTITION OF half_foreign DEFAULT SERVER regress_feedpub_server;
CREATE SEQUENCE a_sequence;
SELECT feed_create('an_outbox');
SELECT name, refusal(format('SELECT feed_attach(%L)', name)) FROM unnest('{a_view,a_matview,partitioned,partition,parent,child,a_temp,an_unlogged,a_foreign,half_foreign,a_sequence,partition_pkey,an_outbox,pg_catalog.pg_class,feedpub._feed,feedpub._batch,feedpub._tombstone,12345678}'::text[]) name;
SELECT refusal($$SELECT feed_detach('parent')$$);
CREATE TABLE plain (id int, a int NOT NULL, b int NOT NULL, c int UNIQUE, d int NOT NULL, id2 int UNIQUE NOT NULL);
CREATE UNIQUE INDEX partial ON plain (a) WHERE b > 0;
CREATE UNIQUE INDEX expression ON plain (a, (b + 1));
CREATE INDEX not_unique ON plain (a);
CREATE UNIQUE INDEX not_valid ON plain (d);
UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'not_valid'::regclass;
SELECT key, refusal(format('SELECT feed_attach(%L, key => %L)', 'plain', key)) FROM unnest('{NULL,partial,expression,not_unique,plain_c_key,not_valid,keyed_pkey,plain,12345678}'::text[]) key;
-- Two rows can have the same deferrable key until their transaction ends.
ALTER TABLE plain ADD PRIMARY KEY (id) DEFERRABLE, ADD CONSTRAINT deferred UNIQUE (a) DEFERRABLE;
SELECT key, refusal(format('SELECT feed_attach(%L, key => %L)', 'plain', key)) FROM unnest('{NULL,plain_pkey,deferred}'::text[]) key;
SELECT feed_attach('plain');
ALTER TABLE plain DROP CONSTRAINT plain_pkey, DROP CONSTRAINT deferred;
SELECT columns, refusal(format('SELECT feed_attach(%L, key => %L, columns => %L)', 'plain', 'plain_id2_key', columns)) FROM unnest('{"{}","{a,nothing}","{a,NULL}","{ctid}","{feed_xid}","{a,a}"}'::text[]) columns;
SELECT refusal('SELECT feed_attach(NULL)') UNION ALL SELECT refusal($$SELECT feed_attach('plain', key => 'plain_id2_key', deletes => NULL)$$);
SELECT refusal('SELECT feed_detach(NULL)') UNION ALL SELECT refusal($$SELECT feed_detach('keyed', cascade => NULL)$$);
ALTER TABLE plain ADD feed_pos text;
SELECT refusal($$SELECT feed_attach('plain', key => 'plain_id2_key')$$);
ALTER TABLE plain RENAME feed_pos TO feed_xid;
SELECT refusal($$SELECT feed_attach('plain', key => 'plain_id2_key')$$);
-- Of all that nothing is left.
SELECT feed FROM feedpub.feeds WHERE kind = 'table';
SELECT count(*) FROM parts WHERE part = 'trigger' AND "is" ~ 'feedpub' AND tab <> 'an_outbox'::regclass;
-- Only the owner may, and it need be no superuser.
CREATE ROLE regress_feedpub_owner;
GRANT USAGE, CREATE ON SCHEMA "Odd ""Schema"", with a comma" TO regress_feedpub_owner;
GRANT ALL ON :odd TO regress_feedpub_owner;
SET ROLE regress_feedpub_owner;
SELECT refusal($$SELECT feed_attach('"Odd ""Name"", with a comma"')$$);
RESET ROLE;
ALTER TABLE :odd OWNER TO regress_feedpub_owner;
SET ROLE regress_feedpub_owner;
SELECT feed_attach(:'odd');
RESET ROLE;
ALTER TABLE :odd OWNER TO CURRENT_USER;
REVOKE ALL ON :odd FROM regress_feedpub_owner;
SET ROLE regress_feedpub_owner;
SELECT refusal($$SELECT feed_attach('"Odd ""Name"", with a comma"')$$) UNION ALL SELECT refusal($$SELECT feed_detach('"Odd ""Name"", with a comma"')$$);
RESET ROLE;
SELECT feed_detach(:'odd');
DROP VIEW a_view;
DROP MATERIALIZED VIEW a_matview;
DROP TABLE partitioned, half_foreign, child, parent, a_temp, an_unlogged, plain, keyed;
DROP SEQUENCE a_sequence;
DROP FOREIGN TABLE a_foreign;
DROP SERVER regress_feedpub_server;
DROP FOREIGN DATA WRAPPER regress_feedpub_fdw;
SELECT feed_drop('an_outbox');

--
-- A table of more than 1024 pages: here of a row a page
--
CREATE TABLE edge (id int PRIMARY KEY, v text);
ALTER TABLE edge ALTER v SET STORAGE plain;
INSERT INTO edge SELECT i, repeat('x', 7000) FROM generate_series(1, 1024) i;
BEGIN;
SELECT feed_attach('edge');
SELECT state FROM feedpub.feeds WHERE feed = 'edge'::regclass;
ROLLBACK;
INSERT INTO edge VALUES (1025, repeat('x', 7000));
\set VERBOSITY terse
SELECT feed_attach('edge');
-- Until the index is there, rows are stamped, and the feed cannot be read.
SELECT state FROM feedpub.feeds WHERE feed = 'edge'::regclass;
SELECT cure FROM feed_check('edge');
INSERT INTO edge VALUES (1026, 'y') RETURNING feed_pos;
UPDATE edge SET v = 'z' WHERE id = 1 RETURNING feed_pos;
DELETE FROM edge WHERE id = 2;
SELECT count(*) FROM feed_read(NULL::edge, '', 100);
\echo :SQLSTATE
SELECT count(*) FROM feed_fetch(NULL::edge, '0', 0, 100);
\echo :SQLSTATE
SELECT feed_head('edge');
\echo :SQLSTATE
-- The statement can be asked for again, and run.
SELECT feed_attach('edge') \gexec
SELECT state FROM feedpub.feeds WHERE feed = 'edge'::regclass;
SELECT feed_attach('edge') IS NULL AS ready;
SELECT * FROM feed_check('edge');
CALL feed_publish('edge');
SELECT op, count(*), min((entry).id), max((entry).id) FROM feed_read(NULL::edge, '', 10000) GROUP BY op, (entry).feed_pos IS NULL ORDER BY 1, 2;
-- One that was left invalid, as by a failed CREATE INDEX CONCURRENTLY, is built again.
UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'edge_feed_idx'::regclass;
\c
SET search_path = "Odd ""Schema"", with a comma", public;
SET feedpub.read_wait = 0;
\set VERBOSITY terse
SELECT state FROM feedpub.feeds WHERE feed = 'edge'::regclass;
SELECT count(*) FROM feed_read(NULL::edge, '', 100);
SELECT cure FROM feed_check('edge') \gexec
SELECT state FROM feedpub.feeds WHERE feed = 'edge'::regclass;
SELECT count(*) FROM feed_read(NULL::edge, '', 100);
\set VERBOSITY default
SELECT feed_detach('edge');
DROP TABLE edge;

-- Somebody else's table, by a superuser: all of it is its owner's.
CREATE TABLE theirs (id int PRIMARY KEY);
ALTER TABLE theirs OWNER TO regress_feedpub_owner;
SELECT feed_attach('theirs');
SELECT relkind, relowner::regrole FROM pg_class
 WHERE oid IN (pg_get_serial_sequence('theirs', 'feed_pos')::regclass, 'theirs_feed_idx'::regclass) ORDER BY relkind;
SELECT count(*) FROM feed_check('theirs');
SELECT feed_detach('theirs');
DROP TABLE theirs;

-- Triggers that were given other names go too.
CREATE TABLE renamed (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE renamed_part PARTITION OF renamed DEFAULT;
SELECT feed_attach('renamed') IS NULL AS attached;
ALTER TRIGGER zz_feedpub_stamp ON renamed RENAME TO "Odd ""Name"", with a comma";
ALTER TRIGGER zz_feedpub_delete ON renamed RENAME TO other_delete;
ALTER TRIGGER zz_feedpub_truncate ON renamed RENAME TO other_truncate;
ALTER TRIGGER zz_feedpub_truncate ON renamed_part RENAME TO other_truncate;
SELECT feed_detach('renamed');
SELECT tgrelid::regclass, tgname FROM pg_trigger WHERE tgrelid IN ('renamed'::regclass, 'renamed_part'::regclass) ORDER BY 1, 2;
INSERT INTO renamed VALUES (1);
DROP TABLE renamed;

DROP VIEW parts;
DROP FUNCTION refusal;
DROP TABLE :odd;
RESET search_path;
DROP OWNED BY regress_feedpub_owner;
DROP ROLE regress_feedpub_owner;
DROP SCHEMA "Odd ""Schema"", with a comma";
DROP FUNCTION steady;
