-- Entries that a consumer cannot deal with are delivered again until it can.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
-- No worker: this file publishes by hand.
SELECT feed_stop_worker() IS NOT NULL AS stopped;
SET feedpub.read_wait = 0;
SELECT feed_create('letters');
SELECT feed_subscribe('post', 'letters', 'earliest', max_attempts => 3) <> '' AS placed;
INSERT INTO letters (message_type, data) VALUES ('n', '1'), ('n', '2'), ('n', '3');
CALL feed_publish('letters');

-- The last of a page fails.  It is due, but comes after the one before it.
SELECT r[1] AS first, r[3] AS receipt FROM (SELECT array_agg(receipt ORDER BY cursor) AS r FROM feed_poll('post', 10)) p \gset
SELECT feed_nack('post', :'receipt', 'no address', delay => '0'), feed_ack('post', :'first');
SELECT row -> 'data' AS data FROM feed_poll('post', 10);

-- The page is acknowledged by its last receipt all the same: the entry stays
-- parked.
SELECT feed_nack('post', :'receipt', 'no address', delay => '0'), feed_ack('post', :'receipt');
-- Called again, as after a lost answer, it has failed once.
SELECT feed_nack('post', :'receipt', 'no address', delay => '0');
SELECT attempts, state, key, message ->> 'data' AS data, reason FROM feedpub.parked;

-- It is due.  Parked a second time it is not due any more, and if it is
-- acknowledged all the same it is not lost.
SELECT op, row -> 'data' AS data, attempt, receipt FROM feed_poll('post', 10) \gset
SELECT :'op', :'data', :'attempt', feed_nack('post', :'receipt', 'no address', delay => '1 day');
SELECT feed_ack('post', :'receipt');
SELECT attempts, state FROM feedpub.parked;
-- Nor if it is due again by then: that is another delivery.
SELECT feed_retry('post', cursor) FROM feedpub.parked;
SELECT feed_ack('post', :'receipt');
SELECT attempts, state FROM feedpub.parked;
SELECT op, row -> 'data' AS data, attempt, receipt FROM feed_poll('post', 10) \gset
-- The same in a transaction, and the third time it stays parked.
BEGIN;
SELECT :'op', :'data', :'attempt', feed_nack('post', :'receipt', 'no address', delay => '1 day');
SELECT feed_ack('post', :'receipt');
COMMIT;
SELECT attempts, reason, state FROM feedpub.parked;
SELECT count(*) FROM feed_poll('post', 10);
-- If there is an address after all
SELECT feed_retry('post');
SELECT row -> 'data' AS data, attempt, receipt FROM feed_poll('post', 10) \gset
SELECT :'data', :'attempt', feed_ack('post', :'receipt');
SELECT count(*) FROM feedpub.parked;
-- What is acknowledged is not delivered again.
SELECT feed_nack('post', :'receipt'), feed_park('post', :'receipt');
SELECT feed_ack('post', :'receipt');
SELECT count(*) FROM feed_poll('post', 10);
-- Nor is an entry of a page.
INSERT INTO letters (message_type, data) VALUES ('n', '4'), ('n', '5');
CALL feed_publish('letters');
SELECT r[1] AS first, r[2] AS second FROM (SELECT array_agg(receipt ORDER BY cursor) AS r FROM feed_poll('post', 10)) p \gset
SELECT feed_ack('post', :'first');
SELECT feed_nack('post', :'first', delay => '0'), feed_park('post', :'first');
SELECT feed_nack('post', :'second', delay => '0'), feed_ack('post', :'second'), feed_nack('post', :'first', delay => '0');
SELECT attempts, message ->> 'data' AS data FROM feedpub.parked;

-- All of a page fails, and nothing is acknowledged: the next poll passes it.
SELECT feed_discard('post', cursor) FROM feedpub.parked;
INSERT INTO letters (message_type, data) VALUES ('n', '6'), ('n', '7');
CALL feed_publish('letters');
SELECT count(feed_nack('post', receipt, delay => '1 day')) FROM feed_poll('post', 10);
SELECT count(*) FROM feed_poll('post', 10);
SELECT cursor = feed_head('letters') AS at_end FROM feedpub.subscriptions;
-- With the row gone, the message is still there.
DELETE FROM letters;
SELECT feed_retry('post');
SELECT op, key, row ->> 'data' AS data, xid IS NOT NULL AS has_xid, published_at IS NOT NULL AS has_time, attempt FROM feed_poll('post', 10);
SELECT op, entry IS NULL AS gone, attempt, receipt FROM feed_poll_rows('post', NULL::letters, 10) \gset
SELECT :'op', :'gone', :'attempt', feed_ack('post', :'receipt');
SELECT message ->> 'data' AS data, state FROM feedpub.parked;

-- Each failure has its delay in the subscription's backoff, the last one for
-- all that follow; a delay that is given comes first.
SELECT feed_unsubscribe('post');
SELECT feed_subscribe('steps', 'letters', 'latest', backoff => '{1 h, 3 h, 5 h}') <> '' AS placed;
SELECT feed_subscribe('twice', 'letters', 'latest', max_attempts => 2, backoff => '{2 h}') <> '' AS placed;
SELECT feed_subscribe('plain', 'letters', 'latest') <> '' AS placed;
INSERT INTO letters (message_type, data) VALUES ('n', '8');
CALL feed_publish('letters');
CREATE FUNCTION fail(subscription text, delay interval DEFAULT NULL)
RETURNS TABLE (attempts int, state text, seconds numeric)
LANGUAGE plpgsql AS $$
DECLARE
	begun timestamptz := clock_timestamp();
BEGIN
	PERFORM feed_retry(subscription);
	-- the first poll may only move the cursor past what is parked
	FOR i IN 1..2 LOOP
		PERFORM feed_nack(subscription, p.receipt, delay => fail.delay) FROM feed_poll(subscription, 1) p;
		EXIT WHEN FOUND;
	END LOOP;
	RETURN QUERY SELECT p.attempts, p.state, floor(extract(epoch FROM retry_at - begun) / 10) * 10
		FROM feedpub.parked p WHERE p.subscription = fail.subscription;
END $$;
SELECT * FROM fail('steps');
SELECT * FROM fail('steps');
SELECT * FROM fail('steps');
SELECT * FROM fail('steps');
SELECT * FROM fail('steps', '7 h');
SELECT * FROM fail('steps');
SELECT * FROM fail('twice');
SELECT * FROM fail('twice');
SELECT * FROM fail('plain');
SELECT * FROM fail('plain');
SELECT * FROM fail('plain', '7 h');
SELECT name, backoff FROM feedpub.subscriptions ORDER BY name;
SELECT feed_subscribe('x', 'letters', backoff => '{}');
SELECT feed_subscribe('x', 'letters', backoff => '{{1 s}}');
SELECT feed_subscribe('x', 'letters', backoff => '{1 s, NULL}');
SELECT feed_subscribe('x', 'letters', backoff => '{1 s, -1 s}');
SELECT feed_subscribe('x', 'letters', backoff => array_fill('1 s'::interval, '{101}'));
SELECT feed_subscribe('x', 'letters', backoff => array_fill('1 s'::interval, '{100}')) <> '' AS placed;
DROP FUNCTION fail;

-- An entry has failed twice without an acknowledgement, but the poll that says
-- so is rolled back.  After feed_retry() it is delivered all the same.
SELECT feed_subscribe('again', 'letters', 'latest', max_attempts => 3) <> '' AS placed;
INSERT INTO letters (message_type, data) VALUES ('n', '9');
CALL feed_publish('letters');
SELECT feed_nack('again', receipt, delay => '0'), feed_ack('again', receipt) FROM feed_poll('again');
SELECT attempt FROM feed_poll('again');
SELECT attempt, receipt FROM feed_poll('again') \gset
BEGIN;
SELECT attempt FROM feed_poll('again');
SELECT state, attempts FROM feedpub.parked WHERE subscription = 'again';
ROLLBACK;
SELECT feed_retry('again');
SELECT attempt FROM feed_poll('again');
-- What was delivered before counts no longer.
SELECT feed_ack('again', :'receipt');
SELECT feed_ack('again', receipt) FROM feed_poll('again');
-- It is settled, also if the cursor is before it again.
SELECT feed_seek('again', 'earliest') <> '' AS moved;
SELECT feed_nack('again', :'receipt');
SELECT count(*) FROM feedpub.parked WHERE subscription = 'again';

SELECT feed_drop('letters', cascade => true);
SELECT feed_start_worker() IS NOT NULL AS started;
