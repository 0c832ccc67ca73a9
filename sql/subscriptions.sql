-- Subscriptions: cursors of the published order that the database keeps.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
-- No worker: this file publishes by hand.
SELECT feed_stop_worker() IS NOT NULL AS stopped;
SET feedpub.read_wait = 0;

SELECT feed_create('"Odd ""Name"", with a comma"') AS feed \gset
INSERT INTO :feed (message_type, data) SELECT 'n', to_jsonb(i) FROM generate_series(1, 10) i;
CALL feed_publish();
SELECT published_at AS first_batch FROM feedpub._batch WHERE feed = :'feed'::regclass \gset
INSERT INTO :feed (message_type, data) SELECT 'n', to_jsonb(i) FROM generate_series(11, 20) i;
CALL feed_publish();

--
-- A subscription begins somewhere, and stays there until it is acknowledged.
--
SELECT feed_subscribe('mail', :'feed', 'earliest') AS place;
SELECT op, entry ->> 'data' AS data, token > 0 AS has_token FROM feed_poll('mail', 3);
SELECT op, entry ->> 'data' AS data FROM feed_poll('mail', 3);
SELECT cursor, token FROM feed_poll('mail', 3) OFFSET 2 \gset
SELECT feed_ack('mail', :'cursor', :token);
-- Once more, as after a lost answer
SELECT feed_ack('mail', :'cursor', :token);
SELECT entry ->> 'data' AS data FROM feed_poll('mail', 2);
-- It takes part in its transaction.
SELECT cursor, token FROM feed_poll('mail', 2) OFFSET 1 \gset
BEGIN;
SELECT feed_ack('mail', :'cursor', :token);
SELECT entry ->> 'data' AS data FROM feed_poll('mail', 1);
ROLLBACK;
SELECT entry ->> 'data' AS data FROM feed_poll('mail', 1);
-- In the middle of a page, and then at its end, with one token
SELECT cursor AS end, token FROM feed_poll('mail', 4) OFFSET 3 \gset
SELECT cursor AS middle FROM feed_poll('mail', 2) OFFSET 1 \gset
SELECT feed_ack('mail', :'middle', :token), feed_ack('mail', :'end', :token);
-- Never back, and never beyond what there is
SELECT feed_ack('mail', :'middle');
SELECT feed_ack('mail', overlay(:'end' placing '00000000000000ff' from 11 for 16));
SELECT feed_ack('mail', overlay(:'end' placing '00000000000000ff' from 27 for 16));
-- nor into another history
SELECT feed_ack('mail', overlay(:'end' placing '12345678' from 44 for 8));
SELECT feed_ack('mail', 'no cursor');
SELECT feed_ack('mail', :'middle', strict => true);
-- Two that were handed out the same rows: one of them wins, whatever the
-- other one's page had behind them.
SELECT cursor AS cursor1, token AS token1 FROM feed_poll('mail', 2) OFFSET 1 \gset
SELECT cursor AS cursor2, token AS token2 FROM feed_poll('mail', 5) OFFSET 4 \gset
SELECT feed_ack('mail', :'cursor1', :token1), feed_ack('mail', :'cursor2', :token2);
SELECT feed_ack('mail', :'cursor2', :token2, strict => true);
-- Both in one call; without a cursor for the first page
SELECT entry ->> 'data' AS data FROM feed_ack_poll('mail', NULL, NULL, 2);
SELECT cursor, token FROM feed_poll('mail', 2) OFFSET 1 \gset
SELECT entry ->> 'data' AS data FROM feed_ack_poll('mail', :'cursor', :token, 2);
SELECT entry ->> 'data' AS data FROM feed_ack_poll('mail', :'cursor2', :token2, 2);
SELECT entry ->> 'data' AS data FROM feed_ack_poll('mail', overlay(:'end' placing '00000000000000ff' from 11 for 16), NULL, 2);
-- Rows of the table's type
SELECT op, (entry).data FROM feed_poll(NULL::"Odd ""Name"", with a comma", 'mail', 2, '');
-- Drivers leave the types of parameters to the server.
PREPARE page AS SELECT op, entry -> 'data' AS data FROM feed_poll($1, $2, $3);
EXECUTE page('mail', 1, '');
DEALLOCATE page;
CREATE TABLE other (i int PRIMARY KEY);
SELECT * FROM feed_poll(NULL::other, 'mail', 2, '');

--
-- Other places to begin at
--
SELECT feed_seek('mail', 'latest') = feed_head(:'feed') AS at_head;
SELECT count(*) FROM feed_poll('mail', 100);
SELECT feed_seek('mail', :'first_batch') = feed_head(:'feed') AS at_head;
SELECT entry ->> 'data' AS data FROM feed_poll('mail', 1);
SELECT feed_seek('mail', (:'first_batch'::timestamptz - interval '1 second')::text) AS earliest;
SELECT feed_seek('mail', 'infinity') = feed_head(:'feed') AS at_head;
SELECT feed_seek('mail', :'cursor') = :'cursor' AS there;
SELECT feed_seek('mail', '') AS earliest;
-- What was handed out before cannot be acknowledged any more.
SELECT feed_ack('mail', :'cursor2', :token2);
SELECT feed_seek('mail', 'somewhere');
SELECT feed_seek('mail', overlay(:'end' placing '12345678' from 44 for 8));
SELECT feed_seek('mail', NULL);

--
-- How far it has got, and how far it lags
--
SELECT feed_wait_poll('mail', '0') AS something_there;
SELECT name, feed, owner = current_user AS mine, shards, lease, cursor, lag_rows, lag >= '0' AS lags, last_ack IS NOT NULL AS acked, expired
  FROM feedpub.subscriptions;
SELECT feed_seek('mail', 'latest') <> '' AS moved;
SELECT feed_wait_poll('mail', '10 ms') AS something_there;
SELECT name, lag_rows, lag FROM feedpub.subscriptions;

--
-- A table feed: the state of each key, then what changes
--
CREATE TABLE kv (k text PRIMARY KEY, v text);
INSERT INTO kv VALUES ('a', '1'), ('b', '2');
SELECT feed_attach('kv');
SELECT feed_subscribe('copy', 'kv', 'earliest') AS place;
SELECT op, entry FROM feed_poll('copy', 10);
SELECT cursor, token FROM feed_poll('copy', 10) OFFSET 2 \gset
SELECT feed_ack('copy', :'cursor', :token);
UPDATE kv SET v = '3' WHERE k = 'a';
DELETE FROM kv WHERE k = 'b';
CALL feed_publish('kv');
SELECT op, entry FROM feed_poll('copy', 10) WHERE op <> 'end';
SELECT op, (entry).k, (entry).v FROM feed_poll(NULL::kv, 'copy', 10, '') WHERE op <> 'end';
-- A table that is written anew while batch 0 is read: it begins again, and
-- its places count as further ones.
SELECT feed_detach('kv', cascade => true);
SELECT count(*) FROM feedpub.subscriptions WHERE name = 'copy';
INSERT INTO kv SELECT 'k' || i, '' FROM generate_series(1, 5) i;
SELECT feed_attach('kv');
SELECT feed_subscribe('copy', 'kv', 'earliest') AS place;
SELECT cursor, token FROM feed_poll('copy', 4) OFFSET 3 \gset
SELECT feed_ack('copy', :'cursor', :token);
VACUUM FULL kv;
SELECT entry ->> 'k' AS k, cursor, token FROM feed_poll('copy', 2) ORDER BY cursor DESC LIMIT 1 \gset
SELECT :'k', feed_ack('copy', :'cursor', :token);
SELECT entry ->> 'k' AS k FROM feed_poll('copy', 2);

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
SELECT feed_poll('x', 1);
SELECT feed_poll('mail', 0);
SELECT feed_poll('mail', NULL);
SELECT feed_poll(NULL, 1);
SELECT feed_ack('x', '');
SELECT feed_unsubscribe('x');
SELECT feed_wait_poll('mail', '-1 s');

SELECT feed_unsubscribe('mail');
SELECT count(*) FROM feedpub._shard WHERE subscription = 'mail';
-- A feed takes its subscriptions along, if that is said.
SELECT feed_detach('kv');
SELECT feed_detach('kv', cascade => true);
SELECT feed_subscribe('last', :'feed') <> '' AS placed;
SELECT feed_drop(:'feed', cascade => true);
SELECT count(*) FROM feedpub._subscription;
SELECT count(*) FROM feedpub._shard;
DROP TABLE kv, other;
SELECT feed_start_worker() IS NOT NULL AS started;
