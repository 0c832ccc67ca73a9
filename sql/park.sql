-- Parked entries: the others are delivered, and each is dealt with once.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
SELECT feed_stop_worker() IS NOT NULL AS stopped;
SET feedpub.read_wait = 0;

-- A page as a consumer keeps it; not in JSON, for \gset
CREATE FUNCTION page(consumer text, sub text, max_rows int, OUT receipts text[], OUT entries text[], OUT retry boolean) LANGUAGE sql AS $$
	SELECT array_agg(p.receipt), array_agg(p.op || COALESCE(' ' || (p.row ->> 'data'), p.row::text, p.key::text, '')), max(p.attempt) > 1 FROM feed_poll(sub, max_rows, consumer) p
$$;
-- Acknowledges, and says by which error if not
CREATE FUNCTION ack(sub text, receipt text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	RETURN feed_ack(sub, receipt);
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE;
END $$;
CREATE FUNCTION parked(OUT data text, OUT attempts int, OUT due boolean) RETURNS SETOF record LANGUAGE sql AS $$
	SELECT reason, attempts, retry_at < now() + interval '1 hour' FROM feedpub.parked ORDER BY 1
$$;

SELECT feed_create('letters') AS feed \gset
INSERT INTO letters (message_type, data) SELECT 'n', to_jsonb(i) FROM generate_series(1, 10) i;
CALL feed_publish();
SELECT feed_subscribe('post', 'letters', 'earliest') <> '' AS placed;

--
-- If an entry of a page is parked, another page with it can no longer be
-- acknowledged: otherwise it would be dealt with twice.
--
SELECT receipts[2] AS second, receipts[3] AS last FROM page(NULL, 'post', 3) \gset a_
SELECT receipts[2] AS second, receipts[5] AS last FROM page(NULL, 'post', 5) \gset b_
SELECT feed_park('post', :'a_second', '2');
SELECT ack('post', :'b_last'), ack('post', :'a_last');
SELECT feed_park('post', :'b_second', 'other');
SELECT * FROM parked();
-- Also when a part of the page had been acknowledged before.
SELECT feed_subscribe('parts', 'letters', 'earliest') <> '' AS placed;
SELECT receipts[1] AS first, receipts[2] AS second FROM page(NULL, 'parts', 3) \gset a_
SELECT ack('parts', :'a_first');
SELECT receipts[1] AS first, receipts[3] AS last FROM page(NULL, 'parts', 3) \gset b_
SELECT right(:'a_second', 44) = right(:'b_first', 44) AS in_both, feed_park('parts', :'a_second', 'in both'), ack('parts', :'b_last');
SELECT feed_unsubscribe('parts');
-- Nor is one parked by a consumer from which the page has been taken.
SELECT receipts[1] AS first, receipts[2] AS last, entries FROM page('w', 'post', 3) \gset a_
UPDATE feedpub._shard SET leased_until = now() - interval '1 s';
SELECT receipts[1] AS first, receipts[2] AS last, entries FROM page('v', 'post', 3) \gset b_
SELECT :'a_entries', :'b_entries';
SELECT feed_park('post', :'a_first', '5');
SELECT feed_nack('post', :'b_first', '5', delay => '0'), ack('post', :'b_last'), feed_leave('post', 'v');

--
-- An entry that is due comes alone, before new ones, and the consumer that
-- acknowledges it first has dealt with it.
--
SELECT receipts[1] AS cursor, entries FROM page(NULL, 'post', 10) \gset a_
SELECT receipts[1] AS cursor, entries FROM page(NULL, 'post', 10) \gset b_
SELECT :'a_entries', :'b_entries', ack('post', :'a_cursor'), ack('post', :'b_cursor');
SELECT ack('post', :'b_cursor');
-- A consumer that comes late cannot park it again.
SELECT feed_nack('post', :'b_cursor', 'late', delay => '0');
SELECT * FROM parked();
-- Its receipt does not move the cursor, and a page's is not its own.
SELECT feed_retry('post');
SELECT receipts[1] AS cursor, entries FROM page(NULL, 'post', 10) \gset a_
SELECT ack('post', overlay(:'a_cursor' placing 'p' from 2)), ack('post', :'b_cursor'), ack('post', :'a_cursor');
SELECT receipts[1] AS cursor, entries FROM page(NULL, 'post', 10) \gset a_
SELECT :'a_entries', ack('post', :'a_cursor');
-- The first consumer that deals with it has it, with the lease or without.
SELECT feed_park('post', receipts[1], '7') FROM page('w', 'post', 2);
SELECT entries, ack('post', receipts[1]) FROM page('w', 'post', 1);
SELECT feed_retry('post');
SELECT receipts[1] AS cursor, entries FROM page('w', 'post', 1) \gset a_
UPDATE feedpub._shard SET leased_until = now() - interval '1 s';
SELECT receipts[1] AS cursor, entries FROM page('v', 'post', 1) \gset b_
SELECT :'a_entries', :'b_entries', ack('post', :'a_cursor'), ack('post', :'b_cursor'), feed_leave('post', 'v');

--
-- One that fails again and again, at once, does not keep the others back.
--
SELECT feed_seek('post', 'earliest') <> '' AS placed;
CREATE TABLE log (n int GENERATED ALWAYS AS IDENTITY, what text);
DO $$
DECLARE
	p record;
BEGIN
	FOR i IN 1..14 LOOP
		SELECT * INTO p FROM page(NULL, 'post', 2);
		EXIT WHEN p.receipts IS NULL;
		INSERT INTO log (what) VALUES (p.entries::text);
		IF 'upsert 1' = ANY (p.entries) THEN
			PERFORM feed_nack('post', p.receipts[array_position(p.entries, 'upsert 1')], 'always', delay => '0');
		END IF;
		IF p.entries <> '{upsert 1}' THEN
			PERFORM feed_ack('post', p.receipts[cardinality(p.receipts)]);
		END IF;
	END LOOP;
END $$;
SELECT what FROM log ORDER BY n;
SELECT * FROM parked();
-- Asked for by hand, it comes first again.
INSERT INTO letters (message_type, data) VALUES ('n', '11');
CALL feed_publish();
SELECT entries FROM page(NULL, 'post', 2);
SELECT feed_retry('post');
SELECT entries FROM page(NULL, 'post', 2);

--
-- What is discarded does not come again, not even if the cursor has yet to pass
-- it.
--
SELECT feed_discard('post', cursor) FROM feedpub.parked;
SELECT feed_seek('post', 'earliest') <> '' AS placed;
SELECT receipts[2] AS second, receipts[3] AS third, entries FROM page(NULL, 'post', 3) \gset a_
SELECT :'a_entries', feed_park('post', :'a_second', '2'), feed_park('post', :'a_third', '3');
SELECT cursor AS second FROM feedpub.parked WHERE reason = '2' \gset
SELECT feed_discard('post', :'second'), feed_discard('post', :'second'), feed_discard('post', 'none');
SELECT * FROM parked();
SELECT feed_retry('post', :'second');
SELECT entries FROM page(NULL, 'post', 4);
SELECT ack('post', receipts[2]) FROM page(NULL, 'post', 4);
SELECT reason FROM feedpub._parked_entry ORDER BY 1;
SELECT entries FROM page(NULL, 'post', 1);
SELECT reason, (SELECT parked FROM feedpub.subscriptions) FROM feedpub._parked_entry;
SELECT feed_discard('post', cursor) FROM feedpub.parked;
SELECT count(*), (SELECT parked FROM feedpub.subscriptions) FROM feedpub._parked_entry;

--
-- A message that is gone from the outbox is delivered all the same, as it was
-- when it was parked.
--
SELECT feed_seek('post', 'latest') <> '' AS placed;
INSERT INTO letters (message_type, message_key, data) VALUES ('n', 'kept', '12');
CALL feed_publish();
SELECT receipts[1] AS receipt FROM page(NULL, 'post', 1) \gset
SELECT feed_park('post', :'receipt', 'kept');
DELETE FROM letters WHERE data = '12';
SELECT key, message ->> 'data' AS data, state FROM feedpub.parked;
-- The poll passes it.
SELECT entries FROM page(NULL, 'post', 1);
SELECT feed_retry('post');
SELECT state FROM feedpub.parked;
BEGIN READ ONLY;
SELECT key, row ->> 'data' AS data FROM feed_poll('post');
ROLLBACK;
SELECT receipts[1] AS receipt, entries FROM page(NULL, 'post', 1) \gset
SELECT :'entries', ack('post', :'receipt'), ack('post', :'receipt'), (SELECT count(*) FROM feedpub.parked);
SELECT feed_drop('letters', cascade => true);

--
-- Rows of a table that no longer exist do not block others, however many.
--
CREATE TABLE gone (k int PRIMARY KEY);
SELECT feed_attach('gone');
SELECT feed_subscribe('gone', 'gone') <> '' AS placed;
INSERT INTO gone SELECT generate_series(1001, 1251);
CALL feed_publish();
SELECT receipts FROM page(NULL, 'gone', 300) \gset
SELECT count(feed_park('gone', c, 'x')) FROM unnest(:'receipts'::text[]) c;
SELECT ack('gone', (:'receipts'::text[])[251]);
DELETE FROM gone WHERE k < 1251;
SELECT feed_retry('gone');
BEGIN READ ONLY;
SELECT entries FROM page(NULL, 'gone', 1);
ROLLBACK;
SELECT parked FROM feedpub.subscriptions;
SELECT receipts[1] AS receipt, entries FROM page(NULL, 'gone', 1) \gset
SELECT :'entries', (SELECT parked FROM feedpub.subscriptions), ack('gone', :'receipt');
SELECT parked FROM feedpub.subscriptions;
SELECT feed_detach('gone', cascade => true);
DROP TABLE gone;

--
-- A table: what is delivered again is the row as it is now.
--
CREATE TABLE "t t" (k int, "k ""2" text, t text DEFAULT 't', "?" text DEFAULT '?', "$1" text DEFAULT '$1', PRIMARY KEY (k, "k ""2"));
INSERT INTO "t t" SELECT i, 'i' FROM generate_series(1, 6) i;
SELECT feed_attach('"t t"');
SELECT feed_subscribe('copy', '"t t"', 'earliest') <> '' AS placed;
-- In the initial snapshot; the table is written anew, and other rows are where those were.
SELECT receipts[1] AS first, receipts[2] AS second, entries[2] AS entry FROM page(NULL, 'copy', 2) \gset
SELECT :'entry', feed_park('copy', :'second', '2');
SELECT entries FROM page(NULL, 'copy', 3);
DELETE FROM "t t" WHERE k = 1;
VACUUM FULL "t t";
SELECT entries FROM page(NULL, 'copy', 10);
-- A receipt of the old file is no row's of the new one.
SELECT feed_park('copy', :'first', 'old');
SELECT ack('copy', receipts[5]) FROM page(NULL, 'copy', 10);
SELECT feed_retry('copy');
SELECT entries FROM page(NULL, 'copy', 10);
SELECT ack('copy', receipts[1]) FROM page(NULL, 'copy', 10);
CALL feed_publish();
SELECT ack('copy', receipts[cardinality(receipts)]) FROM page(NULL, 'copy', 10);
-- Changed since, gone since, the key alive again, a delete
UPDATE "t t" SET "?" = 'parked';
CALL feed_publish();
SELECT receipts, entries FROM page(NULL, 'copy', 10) \gset
SELECT :'entries';
SELECT count(feed_park('copy', c, 'x')) FROM unnest(:'receipts'::text[]) c;
SELECT op, key, attempts FROM feedpub.parked ORDER BY cursor;
SELECT ack('copy', (:'receipts'::text[])[cardinality(:'receipts'::text[])]);
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
		SELECT * INTO p FROM page(NULL, sub, 1);
		EXIT WHEN p.receipts IS NULL;
		INSERT INTO log (what) VALUES (p.entries::text);
		PERFORM feed_ack(sub, p.receipts[1]);
	END LOOP;
END $$;
-- Not published, and delivered all the same: it is what the row is now.
CALL drain('copy');
SELECT what FROM log ORDER BY n;
CALL feed_publish();
SELECT receipts, entries FROM page(NULL, 'copy', 10) \gset
SELECT :'entries';
SELECT count(feed_park('copy', c, 'x')) FROM unnest(:'receipts'::text[]) c;
SELECT ack('copy', (:'receipts'::text[])[cardinality(:'receipts'::text[])]);
-- If the key of a delete exists again, nothing is left to do.
INSERT INTO "t t" VALUES (3, 'i', 'third');
SELECT feed_retry('copy');
CALL drain('copy');
SELECT what FROM log ORDER BY n;
CALL feed_publish();
CALL drain('copy');
-- The typed form
SELECT feed_seek('copy', 'earliest') <> '' AS placed;
SELECT feed_park('copy', receipt, 'x') FROM (SELECT receipt FROM feed_poll('copy') WHERE op = 'upsert' LIMIT 1) p;
SELECT feed_seek('copy', 'latest') <> '' AS placed;
SELECT feed_retry('copy');
SELECT op, (entry).k, (entry).t, (entry)."?", attempt FROM feed_poll_rows('copy', NULL::"t t", 1);
CALL drain('copy');

-- The keys' values change: parked rows are found by their stamps; if these are
-- gone too, the entries stay parked and are not forgotten.
UPDATE "t t" SET t = 'typed';
CALL feed_publish();
SELECT receipts, entries FROM page(NULL, 'copy', 2) \gset
SELECT count(feed_park('copy', c, 'x')) FROM unnest(:'receipts'::text[]) c;
SELECT ack('copy', receipts[1]) FROM page(NULL, 'copy', 1);
ALTER TABLE "t t" DISABLE TRIGGER USER;
UPDATE "t t" SET k = 100 + k;
ALTER TABLE "t t" ENABLE ALWAYS TRIGGER zz_feedpub_stamp, ENABLE ALWAYS TRIGGER zz_feedpub_delete, ENABLE ALWAYS TRIGGER zz_feedpub_truncate;
SELECT * FROM feed_check('"t t"');
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
SELECT receipts, entries FROM page(NULL, 'copy', 10) \gset
SELECT count(feed_park('copy', c, 'x')) FROM unnest(:'receipts'::text[]) c;
SELECT ack('copy', (:'receipts'::text[])[cardinality(:'receipts'::text[])]);
ALTER TABLE "t t" DROP CONSTRAINT "t t_pkey";
SELECT feed_retry('copy');
SELECT entries FROM page(NULL, 'copy', 1);
UPDATE "t t" SET t = 'v';
SELECT entries FROM page(NULL, 'copy', 1) p WHERE p.retry;
SELECT count(*) > 0 AS still_there FROM feedpub.parked;
ALTER TABLE "t t" ADD PRIMARY KEY (k, "k ""2");
SELECT entries FROM page(NULL, 'copy', 1) p WHERE p.retry;
SET client_min_messages = warning;
SELECT feed_detach('"t t"', cascade => true);
RESET client_min_messages;
DROP TABLE "t t";

-- A partition that is written anew while its rows are read in place: its pages
-- begin again, its cursors count as further ones, and what was parked hides no
-- other row.
CREATE TABLE p (k int PRIMARY KEY, v text) PARTITION BY RANGE (k);
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (100) TO (200);
INSERT INTO p SELECT i, 'v' FROM generate_series(101, 106) i;
SELECT feed_attach('p');
CALL feed_publish();
SELECT feed_subscribe('parts', 'p', 'earliest') <> '' AS placed;
SELECT receipts, entries FROM page(NULL, 'parts', 5) \gset
SELECT :'entries', feed_park('parts', (:'receipts'::text[])[2], '2'), ack('parts', (:'receipts'::text[])[5]);
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
SELECT feed_subscribe('two', 'limits', 'earliest', max_attempts => 2) <> '' AS placed;
SELECT receipts[1] AS receipt FROM page(NULL, 'two', 1) \gset
SELECT feed_nack('two', :'receipt', '1', delay => '0');
SELECT ack('two', receipts[1]) FROM page(NULL, 'two', 1);
SELECT * FROM parked();
SELECT feed_nack('two', receipts[1], '2', delay => '0') FROM page(NULL, 'two', 1);
SELECT * FROM parked();
SELECT feed_nack('two', :'receipt', delay => '-1 s');
SELECT feed_nack('two', NULL);
SELECT feed_park('two', NULL);
SELECT feed_park('two', '', NULL);
SELECT feed_park('two', 'x', NULL);
INSERT INTO limits (message_type, data) VALUES ('n', '3');
CALL feed_publish();
SELECT receipts[1] AS receipt FROM page(NULL, 'two', 1) \gset
SELECT feed_park('two', overlay(:'receipt' placing '-----------' from 60 for 11), NULL);
SELECT feed_park('two', overlay(:'receipt' placing '6zzzzzzzzzz' from 60 for 11), NULL);
SELECT feed_park('two', overlay(:'receipt' placing '0123456789abcdef' from 6 for 16), NULL);
SELECT feed_park('three', :'receipt', NULL);
SELECT feed_discard('three', '');
SELECT feed_retry('three');
SELECT feed_retry(NULL);
BEGIN READ ONLY;
SELECT feed_park('two', :'receipt', NULL);
ROLLBACK;
SELECT feed_drop('limits', cascade => true);
CREATE TABLE kv (k int PRIMARY KEY);
SELECT feed_attach('kv');
SELECT feed_subscribe('kv', 'kv') <> '' AS placed;
TRUNCATE kv;
CALL feed_publish();
SELECT feed_park('kv', receipt, 'no') FROM feed_poll('kv', 1);
SELECT feed_detach('kv', cascade => true);
DROP TABLE kv, log;
DROP FUNCTION page, parked, ack;
DROP PROCEDURE drain;
SELECT feed_start_worker() IS NOT NULL AS started;
