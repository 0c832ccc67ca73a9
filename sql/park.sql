-- Entries that are set aside: the rest flows, and each is dealt with once.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
SELECT feed_stop_worker() IS NOT NULL AS stopped;
SET feedpub.read_wait = 0;

-- A page as a consumer keeps it
CREATE FUNCTION page(consumer text, sub text, max_rows int, OUT token bigint, OUT cursors text[], OUT entries text[]) LANGUAGE sql AS $$
	SELECT min(p.token), array_agg(p.cursor), array_agg(p.op || COALESCE(' ' || (p.entry ->> 'data'), p.entry::text, '')) FROM feed_poll(sub, max_rows, consumer) p
$$;
CREATE FUNCTION parked(OUT data text, OUT attempts int, OUT due boolean) RETURNS SETOF record LANGUAGE sql AS $$
	SELECT reason, attempts, retry_at < now() + interval '1 hour' FROM feedpub.parked ORDER BY 1
$$;

SELECT feed_create('letters') AS feed \gset
INSERT INTO letters (message_type, data) SELECT 'n', to_jsonb(i) FROM generate_series(1, 10) i;
CALL feed_publish();
SELECT feed_subscribe('post', 'letters', 'earliest') AS place;

--
-- To set an entry of a page aside claims the page: another page with it can
-- no longer be acknowledged, or it would be dealt with twice.
--
SELECT token, cursors[2] AS second, cursors[3] AS last FROM page('', 'post', 3) \gset a_
SELECT token, cursors[2] AS second, cursors[5] AS last FROM page('', 'post', 5) \gset b_
SELECT feed_park('post', :'a_second', '2', :a_token);
SELECT feed_ack('post', :'b_last', :b_token), feed_ack('post', :'a_last', :a_token);
SELECT feed_park('post', :'b_second', 'other', :b_token);
SELECT * FROM parked();
-- Also when a part of the page had been acknowledged before.
SELECT feed_subscribe('parts', 'letters', 'earliest') AS place;
SELECT token, cursors[1] AS first, cursors[2] AS second FROM page('', 'parts', 3) \gset a_
SELECT feed_ack('parts', :'a_first', :a_token);
SELECT token, cursors[1] AS first, cursors[3] AS last FROM page('', 'parts', 3) \gset b_
SELECT :'a_second' = :'b_first' AS in_both, feed_park('parts', :'a_second', 'in both', :a_token), feed_ack('parts', :'b_last', :b_token);
SELECT feed_unsubscribe('parts');
-- So does who has no token.
SELECT token, cursors[1] AS first, cursors[3] AS last FROM page('', 'post', 3) \gset b_
SELECT feed_park('post', :'b_first', '4');
SELECT feed_ack('post', :'b_last', :b_token);
-- Nor is one set aside by whom the page has been taken from.
SELECT token, cursors[1] AS first, cursors[2] AS last, entries FROM page('w', 'post', 3) \gset a_
UPDATE feedpub._shard SET leased_until = now() - interval '1 s';
SELECT token, cursors[1] AS first, cursors[2] AS last, entries FROM page('v', 'post', 3) \gset b_
SELECT :'a_entries', :'b_entries';
SELECT feed_park('post', :'a_first', '5', :a_token);
SELECT feed_nack('post', :'b_first', '5', '0', :b_token), feed_ack('post', :'b_last', :b_token), feed_leave('post', 'v');

--
-- What is due comes alone, before what is new, and is dealt with by whoever
-- acknowledges it first.
--
SELECT token, cursors[1] AS cursor, entries FROM page('', 'post', 10) \gset a_
SELECT token, cursors[1] AS cursor, entries FROM page('', 'post', 10) \gset b_
SELECT :'a_entries', :'b_entries', feed_ack('post', :'a_cursor', :a_token), feed_ack('post', :'b_cursor', :b_token);
SELECT feed_ack('post', :'b_cursor', :b_token, strict => true);
-- Who comes late cannot set it aside again.
SELECT feed_nack('post', :'b_cursor', 'late', '0', :b_token);
SELECT * FROM parked();
-- Its token is not one of the place.
SELECT feed_retry('post');
SELECT token, cursors[1] AS cursor, entries FROM page('', 'post', 10) \gset a_
SELECT token AS page, cursors[1] AS next FROM page('', 'post', 1) \gset
SELECT feed_ack('post', :'b_cursor', :a_token), feed_ack('post', :'a_cursor', :a_token);
SELECT token, cursors[1] AS cursor, entries FROM page('', 'post', 10) \gset a_
SELECT :'a_entries', feed_ack('post', :'a_cursor', :a_token);
-- Who lost the lease has lost that too.
SELECT feed_park('post', cursors[1], '7', token) FROM page('w', 'post', 2);
SELECT entries, feed_ack('post', cursors[1], token) FROM page('w', 'post', 1);
SELECT feed_retry('post');
SELECT token, cursors[1] AS cursor, entries FROM page('w', 'post', 1) \gset a_
UPDATE feedpub._shard SET leased_until = now() - interval '1 s';
SELECT token, cursors[1] AS cursor, entries FROM page('v', 'post', 1) \gset b_
SELECT :'a_entries', :'b_entries', feed_ack('post', :'a_cursor', :a_token), feed_ack('post', :'b_cursor', :b_token), feed_leave('post', 'v');

--
-- One that fails again and again, at once, does not keep the others back.
--
SELECT feed_seek('post', 'earliest');
CREATE TABLE log (n int GENERATED ALWAYS AS IDENTITY, what text);
DO $$
DECLARE
	p record;
BEGIN
	FOR i IN 1..14 LOOP
		SELECT * INTO p FROM page('', 'post', 2);
		EXIT WHEN p.cursors IS NULL;
		INSERT INTO log (what) VALUES (p.entries::text);
		IF 'upsert 1' = ANY (p.entries) THEN
			PERFORM feed_nack('post', p.cursors[array_position(p.entries, 'upsert 1')], 'always', '0', p.token);
		END IF;
		IF p.entries <> '{upsert 1}' THEN
			PERFORM feed_ack('post', p.cursors[cardinality(p.cursors)], p.token);
		END IF;
	END LOOP;
END $$;
SELECT what FROM log ORDER BY n;
SELECT * FROM parked();
-- Asked for by hand, it comes first again.
INSERT INTO letters (message_type, data) VALUES ('n', '11');
CALL feed_publish();
SELECT entries FROM page('', 'post', 2);
SELECT feed_retry('post');
SELECT entries FROM page('', 'post', 2);

--
-- What is discarded does not come again, not even if the place has yet to pass
-- it.
--
SELECT feed_discard('post', cursor) FROM feedpub.parked;
SELECT feed_seek('post', 'earliest');
SELECT token, cursors[2] AS second, cursors[3] AS third, entries FROM page('', 'post', 3) \gset a_
SELECT :'a_entries', feed_park('post', :'a_second', '2', :a_token), feed_park('post', :'a_third', '3', :a_token);
SELECT feed_discard('post', :'a_second'), feed_discard('post', :'a_second'), feed_discard('post', 'none');
SELECT * FROM parked();
SELECT feed_retry('post', :'a_second');
SELECT entries FROM page('', 'post', 4);
SELECT feed_ack('post', cursors[2], token) FROM page('', 'post', 4);
SELECT reason FROM feedpub._parked_entry ORDER BY 1;
SELECT entries FROM page('', 'post', 1);
SELECT reason, (SELECT parked FROM feedpub.subscriptions) FROM feedpub._parked_entry;
SELECT feed_discard('post', cursor) FROM feedpub.parked;
SELECT count(*), (SELECT parked FROM feedpub.subscriptions) FROM feedpub._parked_entry;

--
-- Messages that are gone do not stand in the way of others, however many.
--
INSERT INTO letters (message_type, data) SELECT 'n', to_jsonb(i) FROM generate_series(1001, 1251) i;
SELECT feed_seek('post', 'latest') <> '' AS placed;
CALL feed_publish();
SELECT token, cursors FROM page('', 'post', 300) \gset
SELECT count(feed_park('post', c, 'x', :token)) FROM unnest(:'cursors'::text[]) c;
SELECT feed_ack('post', (:'cursors'::text[])[251], :token);
DELETE FROM letters WHERE data BETWEEN '1001' AND '1250';
SELECT feed_retry('post');
BEGIN READ ONLY;
SELECT entries FROM page('', 'post', 1);
ROLLBACK;
SELECT parked FROM feedpub.subscriptions;
SELECT token, cursors[1] AS cursor, entries FROM page('', 'post', 1) \gset a_
SELECT :'a_entries', (SELECT parked FROM feedpub.subscriptions), feed_ack('post', :'a_cursor', :a_token);
SELECT parked FROM feedpub.subscriptions;
SELECT feed_drop('letters', cascade => true);

--
-- A table: what is handed out again is the row as it is now.
--
CREATE TABLE "t t" (k int, "k ""2" text, t text DEFAULT 't', "?" text DEFAULT '?', "$1" text DEFAULT '$1', PRIMARY KEY (k, "k ""2"));
INSERT INTO "t t" SELECT i, 'i' FROM generate_series(1, 6) i;
SELECT feed_attach('"t t"');
SELECT feed_subscribe('copy', '"t t"', 'earliest') AS place;
-- In batch 0; the table is written anew, and other rows are where those were.
SELECT token, cursors[1] AS first, cursors[2] AS second, entries[2] AS entry FROM page('', 'copy', 2) \gset
SELECT :'entry', feed_park('copy', :'second', '2', :token);
SELECT entries FROM page('', 'copy', 3);
DELETE FROM "t t" WHERE k = 1;
VACUUM FULL "t t";
SELECT entries FROM page('', 'copy', 10);
-- A cursor of the old file is no row's of the new one.
SELECT feed_park('copy', :'first', 'old');
SELECT feed_ack('copy', cursors[5], token) FROM page('', 'copy', 10);
SELECT feed_retry('copy');
SELECT entries FROM page('', 'copy', 10);
SELECT feed_ack('copy', cursors[1], token) FROM page('', 'copy', 10);
CALL feed_publish();
SELECT feed_ack('copy', cursors[cardinality(cursors)], token) FROM page('', 'copy', 10);
-- Changed since, gone since, the key alive again, a delete
UPDATE "t t" SET "?" = 'parked';
CALL feed_publish();
SELECT token, cursors, entries FROM page('', 'copy', 10) \gset
SELECT :'entries';
SELECT count(feed_park('copy', c, 'x', :token)) FROM unnest(:'cursors'::text[]) c;
SELECT op, key, attempts FROM feedpub.parked ORDER BY cursor;
SELECT feed_ack('copy', (:'cursors'::text[])[cardinality(:'cursors'::text[])], :token);
UPDATE "t t" SET "?" = 'changed' WHERE k = 2;
DELETE FROM "t t" WHERE k IN (3, 4);
INSERT INTO "t t" VALUES (4, 'i', 'again');
UPDATE "t t" SET k = 15 WHERE k = 5;
SELECT feed_retry('copy');
CREATE PROCEDURE drain(sub text) LANGUAGE plpgsql AS $$
DECLARE
	p record;
BEGIN
	TRUNCATE log;
	LOOP
		SELECT * INTO p FROM page('', sub, 1);
		EXIT WHEN p.cursors IS NULL;
		INSERT INTO log (what) VALUES (p.entries::text);
		PERFORM feed_ack(sub, p.cursors[1], p.token);
	END LOOP;
END $$;
-- Not published, and handed out all the same: it is what the row is now.
CALL drain('copy');
SELECT what FROM log ORDER BY n;
CALL feed_publish();
SELECT token, cursors, entries FROM page('', 'copy', 10) \gset
SELECT :'entries';
SELECT count(feed_park('copy', c, 'x', :token)) FROM unnest(:'cursors'::text[]) c;
SELECT feed_ack('copy', (:'cursors'::text[])[cardinality(:'cursors'::text[])], :token);
-- A delete whose key lives again has nothing left to say.
INSERT INTO "t t" VALUES (3, 'i', 'third');
SELECT feed_retry('copy');
CALL drain('copy');
SELECT what FROM log ORDER BY n;
CALL feed_publish();
CALL drain('copy');
-- The typed form
SELECT feed_park('copy', cursor, 'x') FROM feed_read(NULL::"t t", '', 1);
SELECT feed_retry('copy');
SELECT op, (entry).* FROM feed_poll(NULL::"t t", 'copy', 1, '');
CALL drain('copy');

-- The key's type changes: rows that are aside are found by their stamps; where
-- even that is gone, they stay aside rather than be forgotten.
UPDATE "t t" SET t = 'typed';
CALL feed_publish();
SELECT token, cursors, entries FROM page('', 'copy', 2) \gset
SELECT count(feed_park('copy', c, 'x', :token)) FROM unnest(:'cursors'::text[]) c;
SELECT feed_ack('copy', cursors[1], token) FROM page('', 'copy', 1);
ALTER TABLE "t t" ALTER k TYPE text USING 'number ' || k;
ALTER TABLE "t t" ALTER k TYPE int USING 100 + replace(k, 'number ', '')::int;
SELECT feed_retry('copy');
CALL drain('copy');
SELECT what FROM log WHERE what LIKE '%typed%' ORDER BY n;
SELECT feed_detach('"t t"', cascade => true);

-- A table without deletes, and its key lost: the stamp is still there, and
-- where it is not, nothing is forgotten.
SELECT feed_attach('"t t"', deletes => false);
SELECT feed_subscribe('copy', '"t t"', 'latest') <> '' AS placed;
UPDATE "t t" SET t = 'u' WHERE "?" <> '';
CALL feed_publish();
SELECT token, cursors, entries FROM page('', 'copy', 10) \gset
SELECT count(feed_park('copy', c, 'x', :token)) FROM unnest(:'cursors'::text[]) c;
SELECT feed_ack('copy', (:'cursors'::text[])[cardinality(:'cursors'::text[])], :token);
ALTER TABLE "t t" DROP CONSTRAINT "t t_pkey";
SELECT feed_retry('copy');
SELECT entries FROM page('', 'copy', 1);
UPDATE "t t" SET t = 'v';
SELECT entries FROM page('', 'copy', 1) p WHERE p.token & 1 = 1;
SELECT count(*) > 0 AS still_aside FROM feedpub.parked;
ALTER TABLE "t t" ADD PRIMARY KEY (k, "k ""2");
SELECT entries FROM page('', 'copy', 1) p WHERE p.token & 1 = 1;
SET client_min_messages = warning;
SELECT feed_detach('"t t"', cascade => true);
RESET client_min_messages;
DROP TABLE "t t";

-- A partition that is written anew while its rows are read in place: its pages
-- begin again, their places count as further ones, and what was aside hides no
-- other row.
CREATE TABLE p (k int PRIMARY KEY, v text) PARTITION BY RANGE (k);
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (100) TO (200);
INSERT INTO p SELECT i, 'v' FROM generate_series(101, 106) i;
SELECT feed_attach('p');
CALL feed_publish();
SELECT feed_subscribe('parts', 'p', 'earliest') AS place;
SELECT token, cursors, entries FROM page('', 'parts', 5) \gset
SELECT :'entries', feed_park('parts', (:'cursors'::text[])[2], '2', :token), feed_ack('parts', (:'cursors'::text[])[5], :token);
DELETE FROM p2 WHERE k = 101;
VACUUM FULL p2;
CALL drain('parts');
SELECT what FROM log ORDER BY n;
SELECT feed_retry('parts');
CALL drain('parts');
SELECT what FROM log ORDER BY n;
CALL feed_publish();
CALL drain('parts');
SELECT what FROM log ORDER BY n;
SELECT feed_detach('p', cascade => true);
DROP TABLE p;

--
-- Limits, and what cannot be
--
SELECT feed_create('limits') AS feed;
INSERT INTO limits (message_type, data) VALUES ('n', '1'), ('n', '2');
CALL feed_publish();
SELECT feed_subscribe('two', 'limits', 'earliest', max_attempts => 2) AS place;
SELECT cursors[1] AS cursor, token FROM page('', 'two', 1) \gset
SELECT feed_nack('two', :'cursor', '1', '0', :token);
SELECT feed_ack('two', cursors[1], token) FROM page('', 'two', 1);
SELECT * FROM parked();
SELECT feed_nack('two', cursors[1], '2', '0', token) FROM page('', 'two', 1);
SELECT * FROM parked();
SELECT feed_nack('two', :'cursor', NULL, '-1 s');
SELECT feed_nack('two', :'cursor', NULL, NULL);
SELECT feed_nack('two', NULL, NULL);
SELECT feed_park('two', '', NULL);
SELECT feed_park('two', 'x', NULL);
SELECT feed_park('two', overlay(:'cursor' placing '0000000000000000' from 27 for 16), NULL);
SELECT feed_park('three', :'cursor', NULL);
SELECT feed_discard('three', :'cursor');
SELECT feed_retry('three');
SELECT feed_retry(NULL);
BEGIN READ ONLY;
SELECT feed_park('two', :'cursor', NULL);
ROLLBACK;
SELECT feed_drop('limits', cascade => true);
CREATE TABLE kv (k int PRIMARY KEY);
SELECT feed_attach('kv');
SELECT feed_subscribe('all', 'kv', 'earliest') AS place;
SELECT op, feed_park('all', cursor, 'the end', token) FROM feed_poll('all', 1);
SELECT feed_subscribe('kv', 'kv') <> '' AS placed;
TRUNCATE kv;
CALL feed_publish();
SELECT feed_park('kv', cursor, 'no') FROM feed_poll('kv', 1);
SELECT feed_park('kv', overlay(feed_head('kv') placing '7fffffffffffffff' from 27 for 16), 'the end');
SELECT feed_detach('kv', cascade => true);
DROP TABLE kv, log;
DROP FUNCTION page, parked;
DROP PROCEDURE drain;
SELECT feed_start_worker() IS NOT NULL AS started;
