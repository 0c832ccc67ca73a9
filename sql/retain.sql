-- Retention of an outbox: the floor, what is before it, and who is refused.
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
\set VERBOSITY terse
SET feedpub.read_wait = 0;
SELECT feed_create('retained');
-- A batch with n messages, a to z.
CREATE PROCEDURE messages(VARIADIC names text[]) LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO retained (message_type, data) SELECT n, '{}' FROM unnest(names) n;
	COMMIT;
	CALL feed_publish('retained');
END $$;
-- What a page after a cursor has, and its errors.
CREATE FUNCTION page(after text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	RETURN (SELECT coalesce(string_agg((entry).message_type, '' ORDER BY cursor COLLATE "C"), '') FROM feed_read(NULL::retained, after) WHERE op = 'upsert');
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE || ': ' || SQLERRM;
END $$;
CREATE TABLE cursors (name text PRIMARY KEY, cursor text);
INSERT INTO cursors SELECT 'empty', cursor FROM feed_read(NULL::retained);
-- Nothing has been removed: the floor is before the first batch.
SELECT feed_floor('retained') = (SELECT cursor FROM cursors WHERE name = 'empty') AS at_beginning;
CALL messages('a', 'b');
INSERT INTO cursors SELECT (entry).message_type, cursor FROM feed_read(NULL::retained) WHERE op = 'upsert';
CALL messages('c');
CALL messages('d', 'e');
INSERT INTO cursors SELECT (entry).message_type, cursor FROM feed_read(NULL::retained) WHERE op = 'upsert' ON CONFLICT DO NOTHING;
SELECT page('');
-- Policies.
SELECT feed_retain('retained', '-1 s');
SELECT feed_retain('retained', max_age => '0');
SELECT feed_retain('retained', '2 h', '1 h');
SELECT feed_retain('retained', max_size => 0);
SELECT feed_retain('retained', '1001 years');
SELECT feed_retain('pg_class', '1 h');
SELECT feed_retain(NULL, '1 h');
-- Without a policy, and within keep, nothing moves.
SELECT feedpub._move_floor('retained');
SELECT feed_retain('retained', '1 h');
SELECT feedpub._move_floor('retained');
SELECT keep, max_age, max_size FROM feedpub._feed WHERE feed = 'retained'::regclass;
-- A subscription holds the floor back; without one, keep decides.
SELECT feed_subscribe('reader', 'retained', 'earliest') = feed_floor('retained') AS at_floor;
SELECT feed_retain('retained', '0');
SELECT feedpub._move_floor('retained');
-- A page that is in the middle of a batch keeps the batch.
SELECT feed_ack('reader', receipt) FROM feed_poll('reader', 1);
SELECT feedpub._move_floor('retained');
SELECT feed_ack('reader', max(receipt COLLATE "C")) FROM feed_poll('reader', 2);
SELECT feedpub._move_floor('retained');
SELECT sync_id, pos, removed_pos FROM feedpub._floor;
-- The rows are there still, but not delivered any more.
SELECT count(*) FROM retained;
SELECT page('');
SELECT name, page(cursor) FROM cursors ORDER BY name;
SELECT page(feed_floor('retained'));
SELECT feed_page('retained', (SELECT cursor FROM cursors WHERE name = 'b'));
SELECT feed_wait('retained', (SELECT cursor FROM cursors WHERE name = 'b'), '0');
SELECT feed_wait('retained', '', '0');
-- In xid order: at or after the largest stamp that was removed.
SELECT message_type FROM feed_fetch(NULL::retained, '0', 0, 10);
SELECT n.message_type, f.message_type AS next
FROM retained n, LATERAL feed_fetch(NULL::retained, n.feed_xid, n.feed_pos, 1) f
WHERE n.message_type IN ('c', 'd') ORDER BY 1;
SELECT FROM retained n, LATERAL feed_fetch(NULL::retained, n.feed_xid, n.feed_pos, 1) f WHERE n.message_type = 'b';
-- By hand: not past a subscription.
CALL feed_purge('retained', feed_head('retained'));
CALL feed_purge('retained', '');
CALL feed_purge('retained', feed_floor('retained'));
SELECT string_agg(message_type, '' ORDER BY feed_pos) FROM retained;
SELECT feed_unsubscribe('reader');
-- The floor's batch stays when batches are merged, for it is the next one's
-- lower bound.
CALL messages('x');
CALL messages('y');
CALL messages('z');
UPDATE feedpub._batch SET published_at = published_at - interval '30 days';
SELECT feedpub._merge_batches('retained') > 0 AS merged;
SELECT b.sync_id = f.sync_id AS at_floor, merged_from IS NOT NULL AS merged FROM feedpub._batch b, feedpub._floor f ORDER BY b.sync_id;
SELECT page(''), page(feed_floor('retained'));
-- A time before the floor is refused as a start, one after it is none.
SELECT feed_subscribe('late', 'retained', now() - interval '40 days');
SELECT feed_subscribe('late', 'retained', 'earliest') = feed_floor('retained') AS at_floor;
SELECT feed_unsubscribe('late');
-- In the middle of a batch, up to the batch before.
SELECT cursor AS d FROM cursors WHERE name = 'd' \gset
CALL feed_purge('retained', :'d');
CALL feed_purge('retained', feed_head('retained'));
SELECT count(*) FROM retained;
SELECT count(*) FROM feedpub._batch WHERE feed = 'retained'::regclass;
SELECT page(''), page(feed_head('retained')), feed_head('retained') = feed_floor('retained') AS at_floor, feed_wait('retained', '', '0') AS wait;
CALL messages('f');
SELECT page(''), page(feed_floor('retained')), feed_wait('retained', '', '0') AS wait;
-- No subscription is passed, whichever of several is at which entry.
SELECT feed_xid AS x, feed_pos AS p FROM retained WHERE message_type = 'f' \gset
CALL messages('g', 'h', 'i');
SELECT feed_subscribe(name, 'retained', 'earliest') = feed_floor('retained') AS at_floor FROM unnest('{one,two}'::text[]) name;
SELECT feed_ack('two', max(receipt COLLATE "C")) FROM feed_poll('two');
SELECT feed_ack('one', receipt) FROM feed_poll('one', 1);
CALL feed_purge('retained', feed_head('retained'));
-- A limit passes them. They have expired then, until they seek.
CALL messages('j');
UPDATE feedpub._batch SET published_at = published_at - interval '2 days' WHERE sync_id < (SELECT max(sync_id) FROM feedpub._batch);
SELECT feed_retain('retained', '1 s', '1 day');
SELECT feedpub._move_floor('retained') > 0 AS moved;
SELECT name, expired FROM feedpub.subscriptions ORDER BY name;
SELECT message_type FROM feed_poll_rows('one', NULL::retained) r, LATERAL (SELECT (r.entry).message_type) m;
SELECT feed_seek('one', 'earliest') = feed_floor('retained') AS at_floor;
SELECT (entry).message_type FROM feed_poll_rows('one', NULL::retained);
-- Another history keeps what xid order refuses.
SELECT feed_unsubscribe(name) FROM feedpub.subscriptions ORDER BY name;
CALL feed_purge('retained', feed_head('retained'));
CALL messages('k');
SELECT message_type FROM feed_fetch(NULL::retained, :'x', :p, 10);
SELECT feed_begin_history('retained');
SELECT message_type FROM feed_fetch(NULL::retained, :'x', :p, 10);
CALL feed_publish('retained');
SELECT page('');
-- What the owner removes otherwise moves no floor.
SELECT feed_floor('retained') AS floor \gset
DELETE FROM retained;
TRUNCATE retained;
SELECT feed_floor('retained') = :'floor' AS same, page(:'floor');
SELECT feed_drop('retained');
SELECT count(*) FROM feedpub._floor;
SELECT count(*) FROM feedpub._job WHERE kind = 'remove';
DROP TABLE cursors;
DROP FUNCTION page;
DROP PROCEDURE messages;
