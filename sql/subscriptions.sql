-- Subscriptions: cursors of the published order that the database keeps.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
-- No worker: this file publishes by hand.
SELECT feed_stop_worker() IS NOT NULL AS stopped;
SET feedpub.read_wait = 0;

-- Acknowledges, and says by which error if not
CREATE FUNCTION ack(sub text, receipt text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	RETURN feed_ack(sub, receipt);
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE;
END $$;
SELECT feed_create('"Odd ""Name"", with a comma"') AS feed \gset
INSERT INTO :feed (message_type, data) SELECT 'n', to_jsonb(i) FROM generate_series(1, 10) i;
CALL feed_publish();
SELECT published_at AS first_batch FROM feedpub._batch WHERE feed = :'feed'::regclass \gset
INSERT INTO :feed (message_type, data) SELECT 'n', to_jsonb(i) FROM generate_series(11, 20) i;
CALL feed_publish();

--
-- A subscription begins somewhere, and stays there until it is acknowledged.
--
SELECT feed_subscribe('mail', :'feed', 'earliest') <> '' AS placed;
SELECT op, key, row ->> 'data' AS data, cursor = right(receipt, length(cursor)) AS has_cursor, xid ~ '^\d+$' AS has_xid, published_at <= now() AS published, attempt, error FROM feed_poll('mail', 3);
SELECT op, row ->> 'data' AS data FROM feed_poll('mail', 3);
SELECT receipt FROM feed_poll('mail', 3) OFFSET 2 \gset
SELECT feed_ack('mail', :'receipt');
-- Once more, as after a lost answer: an error, or else the work is done twice
SELECT feed_ack('mail', :'receipt');
SELECT row ->> 'data' AS data FROM feed_poll('mail', 2);
-- It takes part in its transaction.
SELECT receipt FROM feed_poll('mail', 2) OFFSET 1 \gset
BEGIN;
SELECT feed_ack('mail', :'receipt');
SELECT row ->> 'data' AS data FROM feed_poll('mail', 1);
ROLLBACK;
SELECT row ->> 'data' AS data FROM feed_poll('mail', 1);
-- In the middle of a page, and then at its end
SELECT r[2] AS middle, r[4] AS end FROM (SELECT array_agg(receipt ORDER BY cursor) AS r FROM feed_poll('mail', 4)) p \gset
SELECT feed_ack('mail', :'middle'), feed_ack('mail', :'end');
SELECT ack('mail', :'end'), ack('mail', :'middle');
SELECT feed_ack('mail', :'end', strict => false);
-- Never beyond what there is, nor into another history
SELECT receipt AS end FROM feed_poll('mail', 1) \gset
SELECT feed_ack('mail', overlay(:'end' placing '--2z' from 56 for 4));
SELECT feed_ack('mail', overlay(:'end' placing '--------2z' from 61 for 10));
SELECT feed_ack('mail', overlay(:'end' placing '012345' from 47 for 6));
-- of another state, page or shard
SELECT feed_ack('mail', overlay(:'end' placing '0123456789abcdef' from 6 for 16));
SELECT ack('mail', overlay(:'end' placing '0123456789abcdef0123456789abcdef' from 6 for 32));
SELECT feed_ack('mail', overlay(:'end' placing '0123456789abcdef' from 6 for 16), false);
SELECT ack('mail', overlay(:'end' placing '3ff' from 3 for 3)), ack('mail', overlay(:'end' placing '800' from 3 for 3));
SELECT row ->> 'data' AS data FROM feed_poll('mail', 1);
-- Of another subscription, which is no reason to poll again
SELECT feed_subscribe('mail too', :'feed', 'earliest') <> '' AS placed;
SELECT feed_ack('mail too', :'end', strict => false);
SELECT ack('mail too', :'end');
SELECT * FROM feed_poll('mail too', ack => :'end');
SELECT feed_nack('mail too', :'end');
SELECT feed_unsubscribe('mail too');
SELECT feed_ack('mail too', :'end');
-- What is no receipt
SELECT feed_ack('mail', 'no receipt');
SELECT feed_ack('mail', '');
-- One that is cut off, with more digits after it in its row
CREATE TABLE cut (receipt text, next "char");
INSERT INTO cut VALUES ('1p' || repeat('1', 42), '0');
SELECT feed_ack('mail', receipt) FROM cut;
DROP TABLE cut;
SELECT ack('mail', left(:'end', 44)), ack('mail', left(:'end', 48)), ack('mail', overlay(:'end' placing '2' from 1)), ack('mail', overlay(:'end' placing 'x' from 2)), ack('mail', overlay(:'end' placing 'x' from 4)), ack('mail', overlay(:'end' placing 'x' from 38)), ack('mail', :'end' || 'x'), ack('mail', NULL);
SELECT DISTINCT ack('mail', overlay(:'end' placing '.' from i for 1)) AS malformed FROM generate_series(1, length(:'end')) i;
SELECT ack('mail', overlay(:'end' placing upper(substr(:'end', 6, 32)) from 6 for 32)) AS upper_case;
-- Two that were delivered the same rows: one of them wins, whatever the other
-- one's page had after them.
SELECT receipt AS cursor1 FROM feed_poll('mail', 2) OFFSET 1 \gset
SELECT receipt AS cursor2 FROM feed_poll('mail', 5) OFFSET 4 \gset
SELECT ack('mail', :'cursor1'), ack('mail', :'cursor2');
SELECT feed_ack('mail', :'cursor2');
-- Both in one call; an error reads nothing
SELECT receipt FROM feed_poll('mail', 2) OFFSET 1 \gset
SELECT row ->> 'data' AS data FROM feed_poll('mail', 2, ack => :'receipt');
SELECT row ->> 'data' AS data FROM feed_poll('mail', 2, ack => :'receipt');
SELECT row ->> 'data' AS data FROM feed_poll('mail', 2, ack => :'cursor2');
SELECT row ->> 'data' AS data FROM feed_poll('mail', 2);
-- What it returns is of the state after it.
SELECT receipt FROM feed_poll('mail', 1) \gset
SELECT receipt FROM feed_poll('mail', 1, ack => :'receipt') \gset
SELECT feed_ack('mail', :'receipt');
-- Rows of the table's type
SELECT op, (entry).data, xid IS NOT NULL AS has_xid, published_at <= now() AS published, attempt FROM feed_poll_rows('mail', NULL::"Odd ""Name"", with a comma", 2);
SELECT receipt FROM feed_poll_rows('mail', NULL::"Odd ""Name"", with a comma", 1) \gset
SELECT (entry).data FROM feed_poll_rows('mail', NULL::"Odd ""Name"", with a comma", 1, ack => :'receipt');
-- Drivers leave the types of parameters to the server.
PREPARE page AS SELECT op, row -> 'data' AS data FROM feed_poll($1, $2, $3, $4, $5);
EXECUTE page('mail', 1, NULL, '0', NULL);
DEALLOCATE page;
CREATE TABLE other (i int PRIMARY KEY);
SELECT * FROM feed_poll_rows('mail', NULL::other, 2);

--
-- Other starts
--
SELECT feed_seek('mail', 'latest') = feed_head(:'feed') AS at_head;
SELECT count(*) FROM feed_poll('mail', 100);
SELECT cursor AS head FROM feedpub.subscriptions \gset
SELECT feed_seek('mail', :'first_batch') = :'head' AS at_head;
SELECT row ->> 'data' AS data FROM feed_poll('mail', 1);
SELECT feed_seek('mail', :'first_batch'::timestamptz) = :'head' AS at_head;
SELECT row ->> 'data' AS data, cursor FROM feed_poll('mail', 1) \gset
SELECT :'data';
SELECT feed_seek('mail', :'first_batch'::timestamptz - interval '1 second') <> '' AS earliest;
SELECT row ->> 'data' AS data FROM feed_poll('mail', 1);
SELECT feed_seek('mail', 'infinity') = :'head' AS at_head;
SELECT feed_seek('mail', :'cursor') = :'cursor' AS there;
SELECT feed_seek('mail', '') = feed_seek('mail', 'earliest') AS earliest;
SELECT row ->> 'data' AS data FROM feed_poll('mail', 1);
-- What was delivered before cannot be acknowledged any more.
SELECT ack('mail', :'cursor2'), ack('mail', :'receipt');
SELECT feed_seek('mail', 'somewhere');
SELECT feed_seek('mail', overlay(:'cursor' placing '012345' from 2 for 6));
SELECT feed_seek('mail', NULL);

--
-- How far it has got, and how far it lags
--
SELECT name, feed, owner = current_user AS mine, shards, lease, cursor <> '' AS placed, lag_rows, lag >= '0' AS lags, last_ack IS NOT NULL AS acked, expired
  FROM feedpub.subscriptions;
SELECT feed_seek('mail', 'latest') <> '' AS moved;
SELECT count(*) FROM feed_poll('mail', timeout => '10 ms');
SELECT name, lag_rows, lag FROM feedpub.subscriptions;

--
-- A table feed: the state of each key, then what changes
--
CREATE TABLE kv (k text PRIMARY KEY, v text);
INSERT INTO kv VALUES ('a', '1'), ('b', '2');
SELECT feed_attach('kv');
SELECT feed_subscribe('copy', 'kv', 'earliest') <> '' AS placed;
SELECT op, key, row, xid, published_at FROM feed_poll('copy', 10);
SELECT receipt FROM feed_poll('copy', 10) OFFSET 1 \gset
SELECT feed_ack('copy', :'receipt');
UPDATE kv SET v = '3' WHERE k = 'a';
DELETE FROM kv WHERE k = 'b';
CALL feed_publish('kv');
SELECT op, key, row FROM feed_poll('copy', 10);
SELECT op, (entry).k, (entry).v FROM feed_poll_rows('copy', NULL::kv, 10);
-- If a table is written anew while its initial snapshot is read, the snapshot
-- begins again, and its new cursors count as later ones.
SELECT feed_detach('kv', cascade => true);
SELECT count(*) FROM feedpub.subscriptions WHERE name = 'copy';
INSERT INTO kv SELECT 'k' || i, '' FROM generate_series(1, 5) i;
SELECT feed_attach('kv');
SELECT feed_subscribe('copy', 'kv', 'earliest') <> '' AS placed;
SELECT receipt FROM feed_poll('copy', 4) OFFSET 3 \gset
SELECT feed_ack('copy', :'receipt');
VACUUM FULL kv;
SELECT row ->> 'k' AS k, receipt FROM feed_poll('copy', 2) OFFSET 1 \gset
SELECT :'k', feed_ack('copy', :'receipt');
SELECT row ->> 'k' AS k FROM feed_poll('copy', 2);

--
-- Errors
--
SELECT feed_subscribe('mail', :'feed');
SELECT feed_subscribe('', :'feed');
SELECT feed_subscribe(repeat('x', 256), :'feed');
SELECT feed_subscribe(NULL, :'feed');
SELECT feed_subscribe('x', 'other');
SELECT feed_subscribe('x', :'feed', shards => 0);
SELECT feed_subscribe('x', :'feed', shards => 1025);
SELECT feed_subscribe('x', :'feed', lease => '10 ms');
SELECT feed_subscribe('x', :'feed', lease => '2 days');
SELECT feed_subscribe('x', :'feed', max_attempts => 0);
SELECT feed_subscribe('x', :'feed', 'beginning');
SELECT feed_subscribe('x', :'feed', if_not_exists => NULL);
SELECT feed_poll('x');
SELECT feed_poll('mail', 0);
SELECT feed_poll('mail', NULL);
SELECT feed_poll('mail', consumer => '');
SELECT feed_poll('mail', timeout => NULL);
SELECT feed_poll('mail', ack => 'x');
SELECT feed_poll(NULL, 1);
SELECT feed_ack('x', :'end');
SELECT feed_unsubscribe('x');
SELECT feed_poll('mail', timeout => '-1 s');

-- There already: the same cursor, and nothing is made; of another feed it is
-- an error.
SELECT feed_subscribe('mail', :'feed', 'earliest', if_not_exists => true) = cursor AS same FROM feedpub.subscriptions WHERE name = 'mail';
SELECT feed_subscribe('mail', 'kv', if_not_exists => true);
SELECT feed_subscribe('new', :'feed', now(), 3, if_not_exists => true) = feed_head(:'feed') AS made;
SELECT shards FROM feedpub.subscriptions WHERE name = 'new';
SELECT feed_unsubscribe('new');

SELECT feed_unsubscribe('mail');
SELECT count(*) FROM feedpub._shard WHERE subscription = 'mail';
-- A feed takes its subscriptions along, if that is said.
SELECT feed_detach('kv');
SELECT feed_detach('kv', cascade => true);
SELECT feed_subscribe('last', :'feed') <> '' AS placed;
SELECT feed_drop(:'feed', cascade => true);
SELECT count(*) FROM feedpub._subscription;
SELECT count(*) FROM feedpub._shard;
-- If the table is dropped, the subscription is left, and says so.
SELECT feed_attach('kv');
SELECT feed_subscribe('left', 'kv', 'earliest') <> '' AS placed;
SELECT receipt FROM feed_poll('left', 1) \gset
DROP TABLE kv;
SELECT feed_poll('left');
SELECT feed_poll('left', ack => :'receipt');
SELECT feed_ack('left', :'receipt');
SELECT feed_nack('left', :'receipt');
SELECT feed_seek('left', 'latest');
SELECT feed_unsubscribe('left');
DROP TABLE other;
DROP FUNCTION ack;
SELECT feed_start_worker() IS NOT NULL AS started;
