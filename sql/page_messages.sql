-- feedpub._page_messages(): the entries of a page as messages of Durable Streams.
-- Of a change feed they are messages of its State Protocol; SELECT messages(...)
-- shows them without cursors, transactions and times.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
SELECT feed_stop_worker() IS NOT NULL AS stopped;
SET feedpub.read_wait = 0;
\pset format unaligned
\pset tuples_only
CREATE FUNCTION messages(feed regclass, types text[] DEFAULT NULL, max_rows int DEFAULT 100, shard int DEFAULT NULL, shards int DEFAULT NULL) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
	lines text[];
	after text := '';
BEGIN
	LOOP
		lines := string_to_array(feedpub._page_messages(feed, after, max_rows, shard, shards, types), E'\n');
		after := split_part(lines[cardinality(lines)], ' ', 1);
		RETURN QUERY SELECT regexp_replace(regexp_replace(l, '"offset": "[^"]*"', '"offset": "<cursor>"'), '"txid": "\d+", "timestamp": "\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*\+00:00"', '"txid": "<xid>", "timestamp": "<time>"', 'g') FROM unnest(trim_array(lines, 1)) l;
		RETURN NEXT split_part(lines[cardinality(lines)], ' ', 2) || ' ' || split_part(lines[cardinality(lines)], ' ', 4);
		EXIT WHEN split_part(lines[cardinality(lines)], ' ', 2) = 'end';
	END LOOP;
END $$;

-- Outboxes: JSON, and digits of bytes; a table feed
SELECT feed_create('jsons', 'json'), feed_create('jsonbs', 'jsonb'), feed_create('texts', 'text'), feed_create('bytes', 'bytea');
INSERT INTO jsons (message_type, data) VALUES ('A', E'{"a" :\r\n 1.50}'), ('A', '"x"'), ('A', 'null');
INSERT INTO jsonbs (message_type, data) VALUES ('A', '{"a" : [1.50, null]}'), ('A', '2');
INSERT INTO texts (message_type, data) VALUES ('A', E'one\r\ntwo'), ('A', ''), ('A', 'ü');
INSERT INTO bytes (message_type, data) VALUES ('A', '\x00ff0a'), ('A', '');
CALL feed_publish('jsons');
CALL feed_publish('jsonbs');
CALL feed_publish('texts');
CALL feed_publish('bytes');
SELECT f, m FROM unnest('{jsons,jsonbs,texts,bytes}'::text[]) WITH ORDINALITY n (f, i), messages(f::regclass) WITH ORDINALITY l (m, j) ORDER BY i, j;
CREATE TABLE kv (k text PRIMARY KEY, v text);
SELECT feed_attach('kv') IS NULL AS attached;
INSERT INTO kv VALUES ('a', 'b');
CALL feed_publish('kv');
SELECT (line::json ->> 'op') || (line::json -> 'row')::text AS entry FROM string_to_table(feedpub._page_messages('kv'), E'\n') line WHERE line LIKE '{%';

-- Changes: insert, update, a key that changes, delete, messages, which are left
-- out
SELECT feed_create_changes('"Odd ""Changes"');
\set odd '"Odd ""Changes"'
CREATE TABLE one (k text PRIMARY KEY, v text);
CREATE TABLE "Two ""%" (a int, b text, v json, PRIMARY KEY (b, a));
SELECT feed_capture('one', :'odd'), feed_capture('"Two ""%"', :'odd');
BEGIN;
INSERT INTO one VALUES ('a', 'x'), ('', NULL), ('"', '"'), ('null', E'\n'), ('Zoë', '');
UPDATE one SET v = 'y' WHERE k = 'a';
UPDATE one SET k = 'b' WHERE k = 'a';
INSERT INTO :odd (op, relation, key, row) VALUES ('message', 'public.one', '"a"', '1');
DELETE FROM one WHERE k = 'b';
INSERT INTO "Two ""%" VALUES (1, 'x y,"', '{"a": [1, {"b" :2}]}');
UPDATE "Two ""%" SET a = 2;
COMMIT;
CALL feed_publish(:'odd');
SELECT messages(:'odd');
SELECT messages(:'odd', '{public.one}', shard => s, shards => 2) AS messages FROM generate_series(0, 1) s;

-- What an owner writes: keys that are no objects, with spaces, and none; errors
INSERT INTO :odd (op, relation, key, row, error) VALUES
	('insert', 'r', E'\t{ "a" : { "x": 1 } ,\n"b":[ 1, "}" ], "c" : "\\"," , "d":null }\r', '1', NULL),
	('insert', 'r', ' { "a" : "x \" y" } ', '1', NULL), ('insert', 'r', '{"a": {"b": 1}}', '1', NULL), ('insert', 'r', '"a b"', '1', NULL), ('insert', 'r', '12', '1', NULL),
	('insert', 'r', '[1, {"a": 2}]', '1', NULL), ('insert', 'r', '{}', '1', NULL), ('insert', 'r', 'null', '1', NULL), ('insert', 'r', '{"a":null}', '1', NULL), ('insert', NULL, NULL, '1', NULL),
	('update', 'r', '{"a": 1}', NULL, '22P05: not so'), ('delete', 'r', '{"a": 1}', NULL, NULL);
CALL feed_publish(:'odd');
SELECT messages(:'odd', '{r,""}');
SELECT (line::json ->> 'subject') AS subject FROM string_to_table(feedpub._page_events(:'odd', types => '{r,""}'), E'\n') line WHERE line LIKE '{%';

-- A page ends at a moment, if there is one in it
CREATE TABLE three (i int PRIMARY KEY);
SELECT feed_capture('three', :'odd');
INSERT INTO three VALUES (1), (2);
CALL feed_publish(:'odd');
INSERT INTO three SELECT i FROM generate_series(3, 8) i;
CALL feed_publish(:'odd');
SELECT regexp_replace(m, '^.*"key": "(\d)".*$', '\1') AS messages FROM messages(:'odd', '{public.three}', 4) m;

-- TRUNCATE: a reader of one relation begins anew, another is refused
TRUNCATE three;
INSERT INTO three VALUES (9);
INSERT INTO one VALUES ('after', '');
CALL feed_publish(:'odd');
SELECT regexp_replace(m, '^.*"key": "(\d)".*$', '\1') AS messages FROM messages(:'odd', '{public.three}', 3) m;
SELECT regexp_replace(m, '^.*"key": "(\d)".*$', '\1') AS messages FROM messages(:'odd', '{public.three}', shard => 0, shards => 1) m;
SELECT count(*) AS reset FROM generate_series(0, 1) s, messages(:'odd', '{public.three}', shard => s, shards => 2) m WHERE m LIKE '%"reset"%';
SELECT messages(:'odd', '{public.t*}');
SELECT messages(:'odd');
SELECT count(*) > 5 AS messages FROM messages(:'odd', '{public.one,r}');

SELECT feed_drop('jsons'), feed_drop('jsonbs'), feed_drop('texts'), feed_drop('bytes'), feed_drop(:'odd');
SELECT feed_detach('kv');
DROP TABLE one, "Two ""%", three, kv;
DROP FUNCTION messages;
