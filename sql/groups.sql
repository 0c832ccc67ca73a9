-- Consumers that share a subscription: leases, shares, and receipts, by which
-- two that have the same entries cannot both acknowledge them.  Time passes by
-- hand here.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
SELECT feed_stop_worker() IS NOT NULL AS stopped;
SET feedpub.read_wait = 0;
-- the checks below join views with tables that were never analysed
SET jit = off;

CREATE PROCEDURE pass(lapse interval) LANGUAGE sql AS $$
	UPDATE feedpub._shard SET leased_until = leased_until - lapse;
	UPDATE feedpub._consumer SET seen_until = seen_until - lapse;
$$;

SELECT feed_create('orders') AS feed \gset
INSERT INTO orders (message_type, message_key, data) SELECT 'n', 'k' || i % 50, to_jsonb(i) FROM generate_series(1, 1000) i;
CALL feed_publish();

--
-- One shard: of two pages with the same entries one is acknowledged,
-- whichever consumer asked for it, and whichever is longer.
--
SELECT feed_subscribe('one', 'orders', 'earliest') <> '' AS placed;
CREATE FUNCTION page(consumer text, max_rows int, OUT middle text, OUT "end" text) LANGUAGE sql AS $$
	SELECT (array_agg(p.receipt ORDER BY p.cursor))[(count(*) + 1) / 2], (array_agg(p.receipt ORDER BY p.cursor DESC))[1] FROM feed_poll('one', max_rows, consumer) p
$$;
-- Acknowledges, and says by which error if not
CREATE FUNCTION ack(sub text, receipt text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	RETURN feed_ack(sub, receipt);
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE;
END $$;
CREATE FUNCTION left_over() RETURNS bigint LANGUAGE sql AS $$ SELECT count(*) FROM feed_page('orders', (SELECT cursor FROM feedpub.shards WHERE subscription = 'one'), 10000) p, json_array_elements(p -> 'entries') $$;
-- without a name, both
SELECT * FROM page(NULL, 10) \gset a_
SELECT * FROM page(NULL, 20) \gset b_
SELECT ack('one', :'a_end'), ack('one', :'b_end'), left_over();
SELECT * FROM page(NULL, 10) \gset a_
SELECT * FROM page(NULL, 20) \gset b_
SELECT ack('one', :'b_end'), ack('one', :'a_end'), left_over();
-- One process that has lost its connection while its COMMIT was under way, and
-- asks again; or two of one name.
SELECT * FROM page('w', 10) \gset a_
SELECT * FROM page('w', 20) \gset b_
SELECT ack('one', :'a_end'), ack('one', :'b_end'), left_over();
SELECT ack('one', :'b_end');
-- In parts: the page that has been begun is the one that goes on.
SELECT * FROM page('w', 10) \gset a_
SELECT * FROM page('w', 20) \gset b_
SELECT ack('one', :'a_middle'), ack('one', :'b_end'), ack('one', :'a_end'), left_over();
-- and not when another one has begun where it was
SELECT * FROM page('w', 10) \gset a_
SELECT ack('one', :'a_middle');
SELECT * FROM page('w', 10) \gset b_
SELECT ack('one', :'b_middle'), ack('one', :'a_end'), ack('one', :'b_end'), left_over();
-- A lost answer
SELECT ack('one', :'b_end'), ack('one', :'b_middle');

-- A consumer that holds the lease keeps those without a name out,
SELECT count(*) FROM feed_poll('one', 10);
SELECT ack('one', :'b_end');
-- until it has run out; then it is good again, until another consumer has
-- moved the cursor.
SELECT * FROM page('w', 10) \gset a_
CALL pass('1 minute');
SELECT * FROM page(NULL, 10) \gset b_
SELECT ack('one', :'a_middle'), ack('one', :'b_end'), left_over();
SELECT consumer, leased_until > now() AS renewed FROM feedpub.shards WHERE subscription = 'one';
CALL pass('1 minute');
SELECT * FROM page(NULL, 10) \gset b_
SELECT ack('one', :'b_end'), ack('one', :'a_end'), left_over();
-- An acknowledgement without a name does not renew another consumer's lease.
SELECT consumer IS NULL AS free FROM feedpub.shards WHERE subscription = 'one';
-- Another consumer takes it: the late one has lost it, before and after the other
-- acknowledges.
SELECT * FROM page('w', 10) \gset a_
CALL pass('1 minute');
SELECT * FROM page('v', 10) \gset b_
SELECT ack('one', :'a_end'), ack('one', :'b_end'), ack('one', :'a_end'), left_over();
SELECT ack('one', :'a_end');
SELECT * FROM feed_poll('one', 1, 'w', ack => :'a_end');
-- A consumer that leaves may acknowledge until another one comes.
SELECT * FROM page('v', 10) \gset a_
SELECT feed_leave('one', 'v'), feed_leave('one', 'v'), feed_leave('one', 'nobody');
SELECT ack('one', :'a_middle');
SELECT * FROM page('w', 10) \gset b_
SELECT ack('one', :'a_end'), ack('one', :'b_end'), feed_leave('one', 'w'), left_over();
-- To seek the cursor where it is voids all receipts as well.
SELECT * FROM page(NULL, 10) \gset a_
SELECT feed_seek('one', cursor) = cursor AS there FROM feedpub.shards WHERE subscription = 'one';
SELECT ack('one', :'a_end'), left_over();
-- The clock was put back by a day: a lease of the time after is no lease.
SELECT * FROM page('w', 10) \gset a_
CALL pass('-1 day');
SELECT * FROM page('v', 10) \gset b_
SELECT ack('one', :'a_end'), ack('one', :'b_end'), left_over();
CALL pass('-1 day');
SELECT * FROM page(NULL, 10) \gset b_
SELECT ack('one', :'b_end'), left_over();

-- A name is a lease, and that is written: not in a transaction that only
-- reads, even while there is nothing to write.
SELECT count(*) FROM feed_poll('one', 10, 'w');
BEGIN READ ONLY;
SELECT count(*) FROM feed_poll('one', 10, 'w');
ROLLBACK;
SELECT feed_leave('one', 'w');
BEGIN READ ONLY;
SELECT count(*) FROM feed_poll('one', 10);
SELECT feed_ack('one', :'a_end');
ROLLBACK;
SELECT feed_unsubscribe('one');

-- A consumer that waits for the publisher, here in vain, does not lose its lease by that.
SELECT feed_create('later') AS feed \gset
SELECT feed_subscribe('brief', 'later', lease => '1 second') AS start \gset
INSERT INTO later (message_type, data) VALUES ('n', '0');
SET feedpub.read_wait = '60 s';
SET statement_timeout = '30 s';
SELECT count(*) FROM feed_poll('brief', 10, 'w');
SELECT count(*) FROM feed_poll('brief', 10, 'w');
RESET statement_timeout;
SET feedpub.read_wait = 0;
SELECT feed_drop('later', cascade => true);

--
-- Shares.  Consumers come, go and die; after three rounds in which each polls
-- and a third of the lease passes, every shard is leased, and no consumer has
-- more than one shard more than another.
--
CREATE TABLE consumer (name text PRIMARY KEY);
CREATE FUNCTION go_round() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	c text;
BEGIN
	FOR c IN SELECT name FROM consumer ORDER BY random() LOOP
		PERFORM FROM feed_poll('group', 1, c);
	END LOOP;
	CALL pass('10.1 seconds');
END $$;
CREATE FUNCTION unfair(shards int) RETURNS text LANGUAGE sql AS $$
	WITH held AS (
		SELECT name, (SELECT count(*) FROM feedpub.shards WHERE subscription = 'group' AND consumer = name) AS n FROM consumer)
	SELECT string_agg(name || ' has ' || n, ', ' ORDER BY name) FROM held
	HAVING sum(n) <> shards OR max(n) - min(n) > 1
$$;
CREATE PROCEDURE divide(n int) LANGUAGE plpgsql AS $$
DECLARE
	problem text;
BEGIN
	PERFORM feed_subscribe('group', 'orders', 'earliest', n);
	DELETE FROM consumer;
	FOR turn IN 1..25 LOOP
		IF random() < 0.6 OR NOT EXISTS (SELECT FROM consumer) THEN
			INSERT INTO consumer SELECT 'c' || (random() * 1000)::int FROM generate_series(1, 1 + (random() * 4)::int) ON CONFLICT DO NOTHING;
		ELSIF random() < 0.5 THEN
			PERFORM feed_leave('group', name) FROM consumer WHERE random() < 0.5;
			DELETE FROM consumer WHERE name NOT IN (SELECT consumer FROM feedpub._consumer WHERE subscription = 'group');
		ELSE
			DELETE FROM consumer WHERE random() < 0.5;
			CALL pass('31 seconds');
		END IF;
		CONTINUE WHEN NOT EXISTS (SELECT FROM consumer);
		FOR i IN 1..3 LOOP
			PERFORM go_round();
		END LOOP;
		problem := unfair(n);
		IF problem IS NOT NULL THEN
			RAISE EXCEPTION '% shards, turn %: %', n, turn, problem;
		END IF;
	END LOOP;
	PERFORM feed_unsubscribe('group');
END $$;
CALL divide(1);
CALL divide(2);
CALL divide(3);
CALL divide(16);
CALL divide(17);

-- Consumers that have not polled for ten leases are forgotten.
SELECT feed_subscribe('group', 'orders', 'earliest', 4) <> '' AS placed;
SELECT count(*) FROM feed_poll('group', 1, 'a');
CALL pass('6 minutes');
SELECT count(*) FROM feed_poll('group', 1, 'b');
SELECT consumer FROM feedpub._consumer;
-- More consumers than shards: one more waits, and comes in when one leaves.
SELECT feed_leave('group', 'b'), (SELECT count(*) FROM feedpub._consumer);
SELECT c, (SELECT count(*) FROM feed_poll('group', 1, c)) AS n FROM unnest('{a,b,c,d,e}'::text[]) c;
CALL pass('11 s');
SELECT c, (SELECT count(*) FROM feed_poll('group', 1, c)) AS n FROM unnest('{a,b,c,d,e}'::text[]) c;
CALL pass('11 s');
SELECT c, (SELECT count(*) FROM feed_poll('group', 1, c)) AS n FROM unnest('{a,b,c,d,e}'::text[]) c;
-- It is not sent round and round while there is nothing for it; nor is one that
-- has some because of those that others have, or that are free.
SELECT count(*) AS e FROM feed_poll('group', 1, 'e', timeout => '10 ms');
SELECT feed_leave('group', 'b');
SELECT count(*) AS e FROM feed_poll('group', 1, 'e', timeout => '1 h');
SELECT count(*) AS b FROM feed_poll('group', 1, 'b', timeout => '10 ms');
SELECT feed_poll('group', timeout => '10 ms');
SELECT feed_leave('group', c) FROM unnest('{a,c,d}'::text[]) c;
WITH page AS MATERIALIZED (SELECT max(receipt) AS receipt FROM feed_poll('group', 1000, 'e'))
SELECT feed_ack('group', receipt) FROM page;
SELECT count(*) AS something_free_but_not_its_own FROM feed_poll('group', 1, 'e', timeout => '10 ms');
-- Poll, and all that it has leased comes, each shard's in the order of the feed.
CALL pass('1 minute');
CREATE TABLE got (n int GENERATED ALWAYS AS IDENTITY, k text, i int);
DO $$
DECLARE
	r record;
	last record;
BEGIN
	PERFORM feed_seek('group', 'earliest');
	LOOP
		last := NULL;
		FOR r IN SELECT * FROM feed_poll('group', 7, 'e') LOOP
			INSERT INTO got (k, i) VALUES (r.key ->> 'message_key', (r.row ->> 'data')::int);
			last := r;
		END LOOP;
		EXIT WHEN last IS NULL;
		PERFORM feed_ack('group', last.receipt);
	END LOOP;
END $$;
SELECT count(*), count(DISTINCT i) FROM got;
SELECT count(*) AS out_of_order FROM (SELECT i, lag(i) OVER (PARTITION BY k ORDER BY n) AS before FROM got) g WHERE before > i;

-- A consumer that is one too many does not take what is free, nor look for it
-- again and again: it sleeps.
DELETE FROM feedpub._consumer;
INSERT INTO feedpub._consumer SELECT 'group', n, now() + interval '20 seconds' FROM unnest('{a,b,c,d}'::text[]) n;
UPDATE feedpub._shard SET consumer = NULL, leased_until = NULL WHERE subscription = 'group';
SELECT feed_seek('group', 'earliest') <> '' AS placed;
SET statement_timeout = '300 ms';
SELECT count(*) FROM feed_poll('group', 1, 'z', timeout => '1 h');
RESET statement_timeout;
-- A subscription is of so many shards.
SELECT count(*) FROM feed_poll('group', 1);
SELECT feed_unsubscribe('group');

-- If its table is dropped, a name is free again without feed_unsubscribe().
SELECT feed_create('short_lived') AS short \gset
SELECT feed_subscribe('short', :'short', 'earliest', 2) <> '' AS placed;
SELECT count(*) FROM feed_poll('short', 1, 'w');
DROP TABLE short_lived;
SELECT count(*) FROM feedpub.subscriptions;
SELECT feed_subscribe('short', 'orders', 'earliest') <> '' AS placed;
SELECT count(*) FROM feedpub._shard;
SELECT feed_unsubscribe('short');

-- The base of a cursor does not count when cursors are compared.
CREATE TABLE kv (k int PRIMARY KEY);
SELECT feed_attach('kv');
INSERT INTO kv VALUES (1);
CALL feed_publish('kv');
INSERT INTO kv VALUES (2), (3);
CALL feed_publish('kv');
DELETE FROM kv WHERE k = 3;
CALL feed_publish('kv');
SELECT feed_subscribe('copy', 'kv', 'latest') AS start \gset
UPDATE feedpub._batch SET published_at = published_at - interval '1 year' WHERE feed = 'kv'::regclass;
SELECT feedpub._move_floor('kv');
SELECT cursor AS first FROM feed_read(NULL::kv, '', 1) \gset
SELECT cursor AS last FROM feed_read(NULL::kv, overlay(:'first' PLACING '------1' FROM 38), 100) ORDER BY cursor DESC LIMIT 1 \gset
SELECT substr(:'last', 38, 7) < substr(:'start', 38, 7) COLLATE "C" AS older_base, feedpub._cursor_moves(:'start', :'last'), feedpub._cursor_moves(:'last', :'start'), feedpub._cursor_moves(:'first', :'last');

-- Another history: a consumer gets an error until somebody decides where it goes
-- on: it may have dealt with messages already, or have rows of a table whose
-- deletes are forgotten.
SELECT feed_subscribe('one', 'orders') <> '' AS placed;
SELECT feed_begin_history('orders'), feed_begin_history('kv');
SELECT count(*) FROM feed_poll('copy', 1);
CALL feed_publish();
SELECT count(*) FROM feed_poll('copy', 1);
SELECT feed_seek('copy', 'earliest') <> '' AS placed;
SELECT row FROM feed_poll('copy', 10);
SELECT count(*) FROM feed_poll('one', 10000);
SELECT feed_seek('one', 'earliest') <> '' AS placed;
SELECT count(*) FROM feed_poll('one', 10000);
SELECT feed_detach('kv', cascade => true);
DROP TABLE kv;
SELECT feed_unsubscribe('one');

-- The extension goes and comes in one session, which has seen the old one.
SELECT feed_drop('orders', cascade => true);
DROP EXTENSION feedpub CASCADE;
CREATE EXTENSION feedpub;
SELECT feed_stop_worker() IS NOT NULL AS stopped;
SELECT feed_create('orders') AS feed;
SELECT feed_subscribe('again', 'orders', 'earliest', 2) <> '' AS placed;
INSERT INTO orders (message_type, message_key, data) VALUES ('n', 'a', '1');
CALL feed_publish();
SELECT op, row ->> 'data' AS data FROM feed_poll('again', 10, 'w');
SELECT feed_unsubscribe('again');

DROP FUNCTION go_round, unfair, page, left_over, ack;
DROP PROCEDURE pass, divide;
DROP TABLE consumer, got;
SELECT feed_drop('orders', cascade => true);
SELECT feed_start_worker() IS NOT NULL AS started;
