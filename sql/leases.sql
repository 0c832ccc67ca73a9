-- Leases of shards: what the receipts say.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
-- No worker: this file publishes by hand.
SELECT feed_stop_worker() IS NOT NULL AS stopped;
SET feedpub.read_wait = 0;
SELECT feed_create('parcels');
INSERT INTO parcels (message_type, message_key, data) SELECT 'n', i, to_jsonb(i) FROM generate_series(1, 20) i;
CALL feed_publish('parcels');
SELECT feed_subscribe('depot', 'parcels', 'earliest', shards => 3) <> '' AS placed;

-- One consumer gets all shards, in turn; a receipt has its shard's number.
SELECT count(*) > 0 AS some FROM feed_poll('depot', 100, 'a');
SELECT shard, consumer FROM feedpub.shards ORDER BY shard;
DO $$
DECLARE
	page record;
BEGIN
	LOOP
		SELECT receipt INTO page FROM feed_poll('depot', 100, 'a') ORDER BY cursor DESC LIMIT 1;
		EXIT WHEN NOT FOUND;
		PERFORM feed_ack('depot', page.receipt);
	END LOOP;
END $$;
-- Rows of other shards were passed, too.
SELECT count(DISTINCT cursor) AS cursors, min(cursor) = feed_head('parcels') AS at_end FROM feedpub.shards;
-- Nothing of a shard in many batches: one poll passes them, and moves it.
INSERT INTO parcels (message_type, message_key, data) SELECT 'n', '1', to_jsonb(i) FROM generate_series(21, 30) i;
CALL feed_publish('parcels');
INSERT INTO parcels (message_type, message_key, data) SELECT 'n', '1', to_jsonb(i) FROM generate_series(31, 40) i;
CALL feed_publish('parcels');
SELECT count(*) FROM feed_poll('depot', 100, 'a');
SELECT max(receipt) AS receipt FROM feed_poll('depot', 100, 'a') \gset
SELECT feed_ack('depot', :'receipt');
SELECT count(*) FROM feed_poll('depot', 100, 'a');
SELECT count(DISTINCT cursor) AS cursors, min(cursor) = feed_head('parcels') AS at_end FROM feedpub.shards;

-- A consumer that leaves gives all back.
SELECT feed_leave('depot', 'a');
SELECT shard, consumer FROM feedpub.shards ORDER BY shard;

SELECT feed_drop('parcels', cascade => true);
SELECT feed_start_worker() IS NOT NULL AS started;
