-- Leases of shards: what the tokens say.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
-- No worker: this file publishes by hand.
SELECT feed_stop_worker() IS NOT NULL AS stopped;
SET feedpub.read_wait = 0;
SELECT feed_create('parcels');
INSERT INTO parcels (message_type, message_key, data) SELECT 'n', i, to_jsonb(i) FROM generate_series(1, 20) i;
CALL feed_publish('parcels');
SELECT feed_subscribe('depot', 'parcels', 'earliest', shards => 3) AS place;

-- One consumer gets all shards, in turn; a token has its shard's number.
SELECT count(*) > 0 AS some FROM feed_poll('depot', 100, 'a');
SELECT shard, consumer FROM feedpub.shards ORDER BY shard;
-- Whatever the lease's number, which goes into the token
CREATE FUNCTION deal_with_all() RETURNS TABLE (result text, times bigint) LANGUAGE plpgsql AS $$
DECLARE
	bit int;
	page record;
BEGIN
	CREATE TEMP TABLE results (result text);
	FOR bit IN 11..60 LOOP
		UPDATE feedpub._shard SET cursor = '', token = 1::bigint << 61 | 1::bigint << bit | shard::bigint << 1
			WHERE subscription = 'depot';
		LOOP
			SELECT cursor, token INTO page FROM feed_poll('depot', 100, 'a') ORDER BY cursor DESC LIMIT 1;
			EXIT WHEN NOT FOUND;
			INSERT INTO results VALUES (feed_ack('depot', page.cursor, page.token));
			EXIT WHEN EXISTS (SELECT FROM results r WHERE r.result <> 'moved');
		END LOOP;
	END LOOP;
	RETURN QUERY SELECT r.result, count(*) FROM results r GROUP BY r.result;
	DROP TABLE results;
END $$;
SELECT * FROM deal_with_all();
DROP FUNCTION deal_with_all();
SELECT count(DISTINCT cursor) AS cursors FROM feedpub.shards;

-- Who leaves gives all back.
SELECT feed_leave('depot', 'a');
SELECT shard, consumer FROM feedpub.shards ORDER BY shard;

SELECT feed_drop('parcels', cascade => true);
SELECT feed_start_worker() IS NOT NULL AS started;
