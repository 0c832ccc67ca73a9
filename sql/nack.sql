-- Entries that a consumer cannot deal with are handed out again until it can.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
-- No worker: this file publishes by hand.
SELECT feed_stop_worker() IS NOT NULL AS stopped;
SET feedpub.read_wait = 0;
SELECT feed_create('letters');
SELECT feed_subscribe('post', 'letters', 'earliest', max_attempts => 3) AS place;
INSERT INTO letters (message_type, data) VALUES ('n', '1'), ('n', '2'), ('n', '3');
CALL feed_publish('letters');

-- The last of a page is set aside: the page is acknowledged by the one before
-- it, and an end entry leads past the rest.
SELECT cursor, token FROM feed_poll('post', 10) OFFSET 2 \gset
SELECT feed_nack('post', :'cursor', 'no address', '0', :token);
SELECT cursor AS before FROM feed_poll('post', 10) OFFSET 1 LIMIT 1 \gset
SELECT feed_ack('post', :'before', :token);
SELECT op, cursor = :'cursor' AS same, token AS next_token FROM feed_poll('post', 10) \gset
SELECT :'op', :'same', feed_ack('post', :'cursor', :next_token);

-- It is due.  Set aside a second time it is not due any more, and whoever
-- acknowledges it all the same does not lose it.
SELECT op, entry -> 'data' AS data, token FROM feed_poll('post', 10) \gset
SELECT :'op', :'data', feed_nack('post', :'cursor', 'no address', '1 day', :token);
SELECT feed_ack('post', :'cursor', :token);
SELECT attempts, retry_at IS NOT NULL AS comes_again FROM feedpub.parked;
-- Nor when it is due again by then: that is another attempt.
SELECT feed_retry('post', :'cursor');
SELECT feed_ack('post', :'cursor', :token);
SELECT attempts, retry_at IS NOT NULL AS comes_again FROM feedpub.parked;
SELECT op, entry -> 'data' AS data, token FROM feed_poll('post', 10) \gset
-- The same in a transaction, and the third time it stays aside.
BEGIN;
SELECT :'op', :'data', feed_nack('post', :'cursor', 'no address', '1 day', :token);
SELECT feed_ack('post', :'cursor', :token);
COMMIT;
SELECT attempts, reason, retry_at IS NOT NULL AS comes_again FROM feedpub.parked;
SELECT count(*) FROM feed_poll('post', 10);
-- When there is an address after all
SELECT feed_retry('post');
SELECT entry -> 'data' AS data, feed_ack('post', cursor, token) FROM feed_poll('post', 10);
SELECT count(*) FROM feedpub.parked;
SELECT count(*) FROM feed_poll('post', 10);

SELECT feed_drop('letters', cascade => true);
SELECT feed_start_worker() IS NOT NULL AS started;
