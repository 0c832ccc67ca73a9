-- Readers that divide a feed among them: every key is in exactly one shard, in
-- the order of the whole feed, and everybody can compute in which.
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
-- The shard of a key, as it is documented: the first four bytes of the SHA-256
-- of its texts (here in UTF-8), with a unit separator between them, as a number, modulo shards.
CREATE FUNCTION shard_of(shards int, VARIADIC key text[]) RETURNS int LANGUAGE sql AS $$
	SELECT (('x' || encode(substr(sha256(convert_to(array_to_string(key, chr(31)), 'UTF8')), 1, 4), 'hex'))::bit(32)::bigint % shards)::int
$$;
-- (two that were computed elsewhere: printf 'a\037b' | sha256sum)
SELECT shard_of(1000000, 'a', 'b'), shard_of(1000000, '');

--
-- A table feed: initial snapshot, changed rows, deletes; then a TRUNCATE
--
CREATE TABLE :odd (v text, id int, name text, PRIMARY KEY (name, id));
INSERT INTO :odd SELECT 'old', i, CASE WHEN i % 7 = 0 THEN 'Zoë, "' || i ELSE '' END FROM generate_series(1, 300) i;
SELECT feed_attach(:'odd');
UPDATE :odd SET v = 'new' WHERE id % 3 = 0;
DELETE FROM :odd WHERE id % 10 = 0;
CALL feed_publish(:'odd');
INSERT INTO :odd SELECT 'newer', i, '' FROM generate_series(1000, 1100) i;
UPDATE :odd SET name = name || 'x' WHERE id % 50 = 1;
UPDATE :odd SET v = 'last' WHERE id % 4 = 0;
CALL feed_publish(:'odd');
CREATE TABLE whole AS SELECT n, cursor, op, (entry).id, (entry).name, (entry).v FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 10000) WITH ORDINALITY r (cursor, op, entry, moment, n) WHERE op <> 'end';
SELECT op, count(*) FROM whole GROUP BY op ORDER BY op;
-- One shard read page by page
CREATE TABLE part (shard int, shards int, n int, cursor text, op text, id int, name text, v text);
CREATE PROCEDURE read_part(shard int, shards int, max_rows int) LANGUAGE plpgsql AS $$
DECLARE
	after text := '';
	r record;
	next text;
	n int := 0;
BEGIN
	LOOP
		next := NULL;
		FOR r IN SELECT * FROM feed_read(NULL::"Odd ""Name"", with a comma", after, max_rows, shard, shards) LOOP
			n := n + 1;
			next := r.cursor;
			CONTINUE WHEN r.op = 'end';
			INSERT INTO part VALUES (shard, shards, n, r.cursor, r.op, (r.entry).id, (r.entry).name, (r.entry).v);
		END LOOP;
		EXIT WHEN next IS NULL;
		after := next;
	END LOOP;
END $$;
CREATE PROCEDURE read_parts(shards int, max_rows int) LANGUAGE plpgsql AS $$
BEGIN
	FOR shard IN 0 .. shards - 1 LOOP
		CALL read_part(shard, shards, max_rows);
	END LOOP;
END $$;
-- For each number of shards: entries that are in none or in two of them, whose
-- order is another, that are in the wrong one; and whether that was all of them
CREATE VIEW verdict AS
	SELECT shards,
		(SELECT count(*) FROM whole w WHERE (SELECT count(*) FROM part x WHERE x.shards = p.shards AND left(x.cursor, 25) = left(w.cursor, 25) AND x.op = w.op AND (x.id, x.name, x.v) IS NOT DISTINCT FROM (w.id, w.name, w.v)) <> CASE op WHEN 'truncate' THEN shards ELSE 1 END) AS not_once,
		(SELECT count(*) FROM (SELECT cursor <= lag(cursor) OVER (PARTITION BY shard ORDER BY n) COLLATE "C" AS back FROM part x WHERE x.shards = p.shards) y WHERE back) AS not_in_order,
		count(*) FILTER (WHERE op <> 'truncate' AND shard <> shard_of(shards, name, id::text)) AS wrong,
		count(*) = (SELECT count(*) + sum(CASE op WHEN 'truncate' THEN shards - 1 ELSE 0 END) FROM whole) AS whole,
		(SELECT min(c) > 0 FROM (SELECT count(x.shard) AS c FROM generate_series(0, shards - 1) s LEFT JOIN part x ON x.shard = s AND x.shards = p.shards GROUP BY s) y) AS all_have_some
	FROM part p GROUP BY shards ORDER BY shards;
CALL read_parts(1, 10000);
CALL read_parts(2, 1);
CALL read_parts(3, 10);
CALL read_parts(16, 100);
SELECT * FROM verdict;
-- feed_page() divides in the same way.
SELECT s, json_array_length(page -> 'entries') = (SELECT count(*) FROM part WHERE shards = 3 AND shard = s) AS the_same, page -> 'more' AS more FROM generate_series(0, 2) s, feed_page(:'odd', '', 10000, s, 3) page;
SELECT json_array_length(feed_page(:'odd', '', 10000, shards => 3, shard => 1) -> 'entries') = (SELECT count(*) FROM part WHERE shards = 3 AND shard = 1) AS by_name;
-- A shard without any of the keys gets an end, and is not told of the others.
SELECT feed_head(:'odd') AS head \gset
INSERT INTO :odd VALUES ('alone', 5000, '');
CALL feed_publish(:'odd');
SELECT shard, op, feedpub._cursor_compare(cursor, feed_head(:'odd')) = 0 AS head FROM generate_series(0, 3) shard, feed_read(NULL::"Odd ""Name"", with a comma", :'head', 1, shard, 4);
-- TRUNCATE is in all of them, each time for one.
TRUNCATE :odd;
INSERT INTO :odd SELECT 'fresh', i, '' FROM generate_series(1, 50) i;
DELETE FROM :odd WHERE id = 50;
CALL feed_publish(:'odd');
TRUNCATE part;
DROP VIEW verdict;
SELECT shard, count(*) FILTER (WHERE op = 'truncate_shard') AS truncates, count(*) FILTER (WHERE op = 'truncate') AS whole, count(*) FILTER (WHERE op = 'upsert' AND shard_of(4, (entry).name, (entry).id::text) <> shard) AS wrong FROM generate_series(0, 3) shard, feed_read(NULL::"Odd ""Name"", with a comma", :'head', 10000, shard, 4) GROUP BY shard ORDER BY shard;
SELECT sum(json_array_length(feed_page(:'odd', :'head', 10000, shard, 4) -> 'entries')) FROM generate_series(0, 3) shard;
-- Whatever the settings of the reader, a key is in the same shard, and its deletes too.
SELECT feed_detach(:'odd');
ALTER TABLE :odd DROP CONSTRAINT "Odd ""Name"", with a comma_pkey", ADD at timestamptz, ADD mark bytea;
ALTER TABLE :odd ALTER name DROP NOT NULL, ALTER id DROP NOT NULL;
TRUNCATE :odd;
ALTER TABLE :odd ADD PRIMARY KEY (at, mark);
SELECT feed_attach(:'odd');
SET timezone = 'UTC';
INSERT INTO :odd (id, at, mark) SELECT i, '2026-01-01 00:00Z'::timestamptz + i * interval '1 hour', int4send(i) FROM generate_series(1, 40) i;
CALL feed_publish(:'odd');
SELECT count(*) AS wrong FROM generate_series(0, 2) shard, feed_read(NULL::"Odd ""Name"", with a comma", '', 100, shard, 3)
	WHERE op = 'upsert' AND shard <> shard_of(3, to_char((entry).at, 'YYYY-MM-DD HH24:MI:SS') || '+00', (entry).mark::text);
CREATE TABLE before AS SELECT shard, (entry).id FROM generate_series(0, 2) shard, feed_read(NULL::"Odd ""Name"", with a comma", '', 100, shard, 3) WHERE op = 'upsert';
SET timezone = 'Asia/Tokyo';
SET datestyle = 'German';
SET bytea_output = 'escape';
SELECT count(*), count(*) FILTER (WHERE EXISTS (SELECT FROM before b WHERE b.shard = s AND b.id = (entry).id)) AS in_the_same FROM generate_series(0, 2) s, feed_read(NULL::"Odd ""Name"", with a comma", '', 100, s, 3) WHERE op = 'upsert';
ALTER TABLE before ADD at timestamptz;
UPDATE before b SET at = o.at FROM :odd o WHERE o.id = b.id;
DELETE FROM :odd;
RESET datestyle;
RESET bytea_output;
SET timezone = 'UTC';
CALL feed_publish(:'odd');
SELECT count(*), count(*) FILTER (WHERE EXISTS (SELECT FROM before b WHERE b.shard = s AND b.at = (entry).at)) AS in_the_same FROM generate_series(0, 2) s, feed_read(NULL::"Odd ""Name"", with a comma", '', 100, s, 3) WHERE op = 'delete';
RESET timezone;
SELECT feed_detach(:'odd');
DROP TABLE :odd, whole, part, before;
DROP PROCEDURE read_parts, read_part;

--
-- An outbox: by message_key, and messages without one by message_id
--
SELECT feed_create(:'odd');
INSERT INTO :odd (message_type, message_key, data) SELECT 'm', CASE WHEN i % 4 > 0 THEN 'key ' || i % 13 END, to_jsonb(i) FROM generate_series(1, 200) i;
INSERT INTO :odd (message_type, message_key, data) VALUES ('m', '', '0'), ('m', 'ключ', '0');
CALL feed_publish(:'odd');
SELECT count(*), count(DISTINCT (entry).feed_pos), count(*) FILTER (WHERE shard <> shard_of(5, coalesce((entry).message_key, (entry).message_id))) AS wrong
	FROM generate_series(0, 4) shard, feed_read(NULL::"Odd ""Name"", with a comma", '', 1000, shard, 5) WHERE op = 'upsert';
-- A message that has neither is of the shard of ''.
SELECT feed_create('neither');
ALTER TABLE neither ALTER COLUMN message_id TYPE varchar(40);
INSERT INTO neither (message_type, data) VALUES ('m', '1');
CALL feed_publish('neither');
SELECT (entry).message_id, shard = shard_of(5, '') AS same FROM generate_series(0, 4) shard, feed_read(NULL::neither, '', 1000, shard, 5) WHERE op = 'upsert';
SELECT feed_drop('neither');
SELECT count(*) FILTER (WHERE pos < before) AS back FROM (
	SELECT (entry).feed_pos AS pos, lag((entry).feed_pos) OVER (PARTITION BY shard ORDER BY n) AS before
	FROM generate_series(0, 4) shard, feed_read(NULL::"Odd ""Name"", with a comma", '', 1000, shard, 5) WITH ORDINALITY r (cursor, op, entry, moment, n) WHERE op = 'upsert') x;
-- A page that stops short of its rows says how far it got.
SELECT shard, op, feedpub._cursor_compare(cursor, feed_head(:'odd')) = 0 AS head FROM generate_series(0, 1) shard, LATERAL (SELECT * FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 1000, shard, 2) ORDER BY cursor COLLATE "C" DESC LIMIT 1) last;

--
-- Keys that can be equal and print differently cannot be divided: the upsert
-- of one text and the delete of another would be in two shards.
--
CREATE COLLATION nondeterministic (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE DOMAIN amount AS numeric(10, 2);
CREATE DOMAIN code AS char(3);
CREATE DOMAIN codes AS code CHECK (VALUE <> 'no');
CREATE DOMAIN loose AS bpchar;
CREATE TYPE color AS ENUM ('red', 'green');
CREATE FUNCTION divides(column_type text, opclass text DEFAULT '') RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	verdict text := '';
	name constant text := 'Odd "Name", with a comma';
	page text;
BEGIN
	EXECUTE format('CREATE TABLE keyed (id int, %I %s NOT NULL)', name, column_type);
	EXECUTE format('CREATE UNIQUE INDEX keyed_key ON keyed (id, %I %s)', name, opclass);
	ALTER TABLE keyed ALTER id SET NOT NULL;
	PERFORM feed_attach('keyed', key => 'keyed_key');
	FOREACH page IN ARRAY ARRAY[
		$p$PERFORM feed_page('keyed', '', 1, 0, 2)$p$,
		$p$PERFORM feed_read(NULL::keyed, '', 1, 0, 2)$p$,
		$p$PERFORM feed_subscribe('keyed', 'keyed', 'earliest', 2)$p$,
		$p$PERFORM feed_page('keyed', '', 1, 0, 1)$p$,
		$p$PERFORM feed_subscribe('keyed one', 'keyed', 'earliest', 1)$p$] LOOP
		BEGIN
			EXECUTE format('DO %L', 'BEGIN ' || page || '; END');
			verdict := verdict || ' yes';
		EXCEPTION
		WHEN object_not_in_prerequisite_state THEN
			-- the table is this transaction's
			verdict := verdict || ' yes';
		WHEN feature_not_supported THEN
			verdict := verdict || ' no';
		END;
	END LOOP;
	PERFORM feed_detach('keyed', cascade => true);
	DROP TABLE keyed;
	RETURN verdict;
END $$;
SELECT type, divides(type) FROM unnest('{bool,int2,int4,int8,oid,text,varchar(5),name,uuid,bytea,date,time,timestamp,timestamptz,inet,color,char(3),code,codes,text COLLATE \"POSIX\"}'::text[]) type;
SELECT type, divides(type) FROM unnest('{numeric,amount,float4,float8,interval,bpchar,loose,jsonb,int[],int4range,text COLLATE nondeterministic,char(3) COLLATE nondeterministic}'::text[]) type;
-- It is the key's operator class that tells which values are equal.
SELECT type, opclass, divides(type, opclass) FROM (VALUES ('text', 'text_pattern_ops'), ('varchar(3)', 'bpchar_ops'), ('char(3)', 'bpchar_pattern_ops')) x (type, opclass);
-- A type or a collation that changes later
CREATE TABLE changing (k text PRIMARY KEY);
SELECT feed_attach('changing');
SELECT feed_subscribe('changing', 'changing', 'earliest', 2) <> '' AS placed;
INSERT INTO changing VALUES ('a');
CALL feed_publish('changing');
SELECT count(*) FROM feed_poll('changing', 10, 'me') WHERE op = 'upsert';
ALTER TABLE changing ALTER k TYPE text COLLATE nondeterministic;
SELECT count(*) FROM feed_poll('changing', 10, 'me');
\echo :SQLSTATE
SELECT feed_page('changing', '', 1, 0, 2);
SELECT json_array_length(feed_page('changing', '', 1) -> 'entries') AS whole;
ALTER TABLE changing ALTER k TYPE text COLLATE "default";
SELECT count(*) FROM feed_poll('changing', 10, 'me') WHERE op = 'upsert';
DROP TABLE changing;
-- An outbox by the columns' own types
ALTER TABLE :odd ALTER message_key TYPE text COLLATE nondeterministic;
SELECT count(*) FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 1, 0, 2);
ALTER TABLE :odd ALTER message_key TYPE text COLLATE "default";
SELECT count(*) FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 1, 0, 2);
DROP FUNCTION divides;
DROP COLLATION nondeterministic;
DROP DOMAIN amount, codes, code, loose;
DROP TYPE color;

--
-- Errors
--
\set VERBOSITY terse
SELECT * FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 1, 0);
\echo :SQLSTATE
SELECT * FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 1, NULL, 2);
SELECT * FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 1, 0, 0);
\echo :SQLSTATE
SELECT * FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 1, 2, 2);
\echo :SQLSTATE
SELECT * FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 1, -1, 2);
SELECT feed_page(:'odd', '', 1, 0, -1);
SELECT feed_page(:'odd', '', 1, shard => 0);
-- An outbox that has lost the columns of its keys can only be read whole.
ALTER TABLE :odd DROP message_key;
SELECT * FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 1, 0, 2);
\echo :SQLSTATE
SELECT json_array_length(feed_page(:'odd', '', 1) -> 'entries') AS whole, json_array_length(feed_page(:'odd', '', 1, 0, 1) -> 'entries') AS one_of_one;
\set VERBOSITY default
SELECT feed_drop(:'odd', cascade => true);
DROP FUNCTION shard_of;
