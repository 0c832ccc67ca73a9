-- feedpub._page_events(): the entries of a page as CloudEvents 1.0.
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

-- The events of a feed, less what differs from run to run
CREATE FUNCTION events(feed regclass) RETURNS SETOF text LANGUAGE sql AS $$
	SELECT regexp_replace(regexp_replace(regexp_replace(r, '"id": "[-0-9A-Z_a-z]{44,64}"', '"id": "<cursor>"'),
		'"time": "\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00"', '"time": "<time>"'),
		'"messageid": "[0-9a-f-]{36}"', '"messageid": "<uuid>"')
	  FROM string_to_table(feedpub._page_events(feed), E'\n') r WHERE r LIKE '{%'
$$;

-- A message: data as it is, the key, the trace context
SELECT feed_create('outbox', 'json');
INSERT INTO outbox (message_type, message_key, data, headers) VALUES
	('OrderPlaced', 'order 1', '{"a" : 1.10, "a":2, "b": "\u0000"}', '{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=b", "other": 1}'),
	('no key', NULL, '"text"', '["traceparent"]'),
	('', '', 'null', '{"traceparent": 1, "tracestate": ""}'),
	(E'Odd\u0001\u007f\u0085\u00a0\ufdd0\uffff\U0001f600\U0010ffff"\\', E'50%\n', '[]', E'{"traceparent": "a\\nb"}');
INSERT INTO outbox (message_type, message_id, message_key, data) VALUES ('id', E'odd\t', '%00', '{}');
CALL feed_publish();
SELECT * FROM events('outbox');
-- No data is SQL's NULL: there is no such member
ALTER TABLE outbox ALTER data DROP NOT NULL;
INSERT INTO outbox (message_type) VALUES ('nothing');
CALL feed_publish();
SELECT * FROM events('outbox') OFFSET 5;

-- Keys of a table feed, its initial snapshot, deletes, a TRUNCATE
CREATE TABLE "Odd ""Name/%" (k text PRIMARY KEY, "v.1" int);
INSERT INTO "Odd ""Name/%" VALUES ('initial', 1), ('', NULL);
SELECT feed_attach('"Odd ""Name/%"');
SELECT * FROM events('"Odd ""Name/%"');
SELECT bool_and((r::json ->> 'time')::timestamptz = f.created_at) AS "when the feed was made"
  FROM string_to_table(feedpub._page_events('"Odd ""Name/%"'), E'\n') r, feedpub.feeds f
  WHERE f.feed = '"Odd ""Name/%"'::regclass AND r LIKE '{%';
CALL feed_publish();
DELETE FROM "Odd ""Name/%" WHERE k IN ('initial', '');
CALL feed_publish();
SELECT * FROM events('"Odd ""Name/%"');
TRUNCATE "Odd ""Name/%";
CALL feed_publish();
SELECT * FROM events('"Odd ""Name/%"') OFFSET 2;
CREATE TABLE two (a int, b text, c timestamptz, v int, PRIMARY KEY (b, a, c));
SELECT feed_attach('two');
INSERT INTO two VALUES (1, E'x"\n', '2026-01-01 00:00:00+00', 1);
CREATE TABLE times (at timestamptz PRIMARY KEY);
SELECT feed_attach('times');
INSERT INTO times VALUES ('2026-01-01 00:00:00+00');
CREATE TABLE kept (k int PRIMARY KEY, v int);
SELECT feed_attach('kept', deletes => false);
INSERT INTO kept VALUES (-1, 1);
CALL feed_publish();
SET timezone = 'UTC';
SET datestyle = 'German';
SELECT * FROM events('two');
SELECT * FROM events('times');
SELECT * FROM events('kept');
RESET datestyle;
RESET timezone;

-- What cannot be made: a row, a key
CREATE TYPE mood AS ENUM ('sad', 'gone');
CREATE TABLE broken (k int PRIMARY KEY, m mood);
CREATE TABLE moods (m mood PRIMARY KEY);
SELECT feed_attach('broken'), feed_attach('moods');
INSERT INTO broken VALUES (1, 'sad'), (2, 'gone');
INSERT INTO moods VALUES ('sad'), ('gone');
DELETE FROM pg_enum WHERE enumtypid = 'mood'::regtype AND enumlabel = 'gone';
CALL feed_publish();
SELECT regexp_replace(e, 'enum: \d+', 'enum: N') FROM events('broken') e;
SELECT regexp_replace(e, 'enum: \d+', 'enum: N') FROM events('moods') e;

-- The same as records, with what events lack
CREATE FUNCTION records(feed regclass) RETURNS SETOF text LANGUAGE sql AS $$
	SELECT replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace(r, '(?<=\mid=)[-0-9A-Z_a-z]{44,64}', '<cursor>'),
		'(?<=\mtime=)\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00', '<time>'),
		'(?<=\mmessageid=)[0-9a-f-]{36}', '<uuid>'), '"(cursor|xid|published_at|statement)": ("[^"]*"|\d+)', '"\1": ...', 'g'), E'\t', ' | ')
	  FROM string_to_table(feedpub._page_records(feed), E'\n') WITH ORDINALITY r (r, n) WHERE r LIKE 'op=%' ORDER BY n
$$;
INSERT INTO outbox (publication_id, message_type, message_key, data) VALUES (E'a\tb%', 'published', 'k', '{"a" : "x\t"}');
SELECT feed_create_changes('changes');
CREATE TABLE lines (k text PRIMARY KEY, v text);
SELECT feed_capture('lines', 'changes');
INSERT INTO lines VALUES (E'k\n1', E'v\n1');
UPDATE lines SET k = '';
DELETE FROM lines;
TRUNCATE lines;
INSERT INTO changes (op, key, row) VALUES ('message', NULL, '{}');
CALL feed_publish();
SELECT * FROM records('outbox');
SELECT * FROM records('"Odd ""Name/%"');
SELECT regexp_replace(e, 'enum: \d+', 'enum: N') FROM records('broken') e;
SELECT * FROM records('changes');
SELECT regexp_replace(split_part(feedpub._page_records('changes', max_rows => 2), E'\n', -1), '^\S+ (\S+) \d+ ', '\1 ') AS part,
	regexp_replace(split_part(feedpub._page_records('changes'), E'\n', -1), '^\S+ (\S+) \d+ ', '\1 ') AS whole;
-- A page ends with the entry after which it has 1 MB
SELECT feed_head('outbox') AS head \gset
INSERT INTO outbox (message_type, data) SELECT 'large', to_json(repeat('x', 600000)) FROM generate_series(1, 3);
CALL feed_publish();
SELECT count(*) FILTER (WHERE r LIKE 'op=%') AS entries, bool_or(r ~ '^\S+ more ') AS more
  FROM string_to_table(feedpub._page_records('outbox', :'head'), E'\n') r;

-- The last line, of both functions: how long deletes are retained, in s
CREATE FUNCTION ends(feed regclass) RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(regexp_replace(r, '^\S+ (\S+) \d+ ', '\1 '), ', ')
	  FROM (SELECT string_to_table(feedpub._page_lines(feed) || E'\n' || feedpub._page_events(feed), E'\n')) p (r) WHERE r NOT LIKE '{%'
$$;
SELECT ends('outbox'), ends('kept'), ends('two');
SELECT feed_retain('two', keep => '1 h');
SELECT ends('two');
SELECT feed_retain('two', keep => '1 h', max_age => '1 d');
SELECT ends('two');
SELECT feed_retain('two', max_age => '1.5 s');
SELECT ends('two');
-- Rights and errors are those of feed_page().
\set VERBOSITY terse
SELECT feedpub._page_events(NULL);
SELECT feedpub._page_events('two', 'x');
SELECT feedpub._page_events('feedpub._feed');

SET client_min_messages = warning;
DROP FUNCTION events, records, ends;
DROP TABLE "Odd ""Name/%", two, times, kept, broken, moods, lines;
DROP TYPE mood;
SELECT feed_drop('outbox'), feed_drop('changes');
