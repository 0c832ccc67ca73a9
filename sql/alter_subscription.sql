-- The settings of a subscription are changed while it is in use.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
-- No worker: this file publishes by hand.
SELECT feed_stop_worker() IS NOT NULL AS stopped;
SET feedpub.read_wait = 0;
SELECT feed_create('bills');
INSERT INTO bills (message_type, data) SELECT 'n', to_jsonb(i) FROM generate_series(1, 3) i;
CALL feed_publish('bills');
SELECT feed_subscribe('Due "bills"', 'bills', 'earliest', lease => '1 h') <> '' AS placed;
SELECT feed_subscribe('other', 'bills', 'earliest', max_attempts => 9) <> '' AS placed;
CREATE VIEW settings AS SELECT lease, max_attempts, backoff FROM feedpub.subscriptions WHERE name = 'Due "bills"';

-- What is not given stays as it is.
SELECT feed_alter_subscription('Due "bills"', max_attempts => 5, backoff => '[0:1]={1 h,3 h}');
TABLE settings;
SELECT feed_alter_subscription('Due "bills"', lease => '1 day');
TABLE settings;
SELECT feed_alter_subscription('Due "bills"', backoff => '{2 h}');
SELECT feed_alter_subscription('Due "bills"');
TABLE settings;
SELECT lease, max_attempts, backoff FROM feedpub.subscriptions WHERE name = 'other';

-- The limits are those of feed_subscribe().
SELECT feed_alter_subscription('Due "bills"', '999 ms');
SELECT feed_alter_subscription('Due "bills"', '1 day 1 ms');
SELECT feed_alter_subscription('Due "bills"', max_attempts => 0);
SELECT feed_alter_subscription('Due "bills"', backoff => '{}');
SELECT feed_alter_subscription('Due "bills"', backoff => '{1 s, NULL}');
SELECT feed_alter_subscription('Due "bills"', backoff => '{1 s, -1 s}');
SELECT feed_alter_subscription('no such', max_attempts => 1);
TABLE settings;

-- feed_nack() goes by the new settings.  What is parked stays as it is.
CREATE VIEW parked AS
	SELECT attempts, state, round(extract(epoch FROM retry_at - clock_timestamp()) / 3600) AS hours FROM feedpub.parked;
CREATE FUNCTION fail() RETURNS TABLE (attempts int, state text, hours numeric) LANGUAGE plpgsql AS $$
BEGIN
	PERFORM feed_retry('Due "bills"');
	PERFORM feed_nack('Due "bills"', p.receipt), feed_ack('Due "bills"', p.receipt) FROM feed_poll('Due "bills"', 1) p;
	RETURN QUERY TABLE parked;
END $$;
SELECT * FROM fail();
SELECT feed_alter_subscription('Due "bills"', backoff => '{4 h, 7 h}');
TABLE parked;
SELECT * FROM fail();
SELECT feed_alter_subscription('Due "bills"', max_attempts => 1);
TABLE parked;
SELECT * FROM fail();
-- without a limit again
SELECT feed_alter_subscription('Due "bills"', max_attempts => 2147483647);
TABLE parked;
SELECT * FROM fail();
SELECT feed_discard('Due "bills"', cursor) FROM feedpub.parked;

-- A consumer keeps its lease until it polls or acknowledges.
CREATE VIEW held AS
	SELECT consumer, round(extract(epoch FROM leased_until - clock_timestamp()) / 60) AS minutes FROM feedpub.shards WHERE subscription = 'Due "bills"';
SELECT feed_alter_subscription('Due "bills"', lease => '1 h');
SELECT receipt FROM feed_poll('Due "bills"', 1, 'a') \gset
SELECT feed_alter_subscription('Due "bills"', lease => '40 min');
TABLE held;
SELECT count(*) FROM feed_poll('Due "bills"', 1, 'b');
SELECT feed_ack('Due "bills"', :'receipt');
TABLE held;
SELECT feed_alter_subscription('Due "bills"', lease => '2 h');
TABLE held;
SELECT receipt FROM feed_poll('Due "bills"', 1, 'a') \gset
TABLE held;
-- If it ends more than two new leases from now, it is over.
SELECT feed_alter_subscription('Due "bills"', lease => '30 min');
SELECT row ->> 'data' AS data FROM feed_poll('Due "bills"', 1, 'b');
TABLE held;
SELECT feed_ack('Due "bills"', :'receipt', strict => false);

-- Only by the owner's rights, and where something can be written
CREATE ROLE regress_feedpub_other;
GRANT SELECT ON bills TO regress_feedpub_other;
SET ROLE regress_feedpub_other;
SELECT feed_alter_subscription('Due "bills"', max_attempts => 1);
RESET ROLE;
BEGIN READ ONLY;
SELECT feed_alter_subscription('Due "bills"', max_attempts => 1);
ROLLBACK;
BEGIN READ ONLY;
SELECT feed_unsubscribe('Due "bills"');
ROLLBACK;
TABLE settings;
DROP VIEW settings, held, parked;
DROP FUNCTION fail;
REVOKE ALL ON bills FROM regress_feedpub_other;
DROP ROLE regress_feedpub_other;

SELECT feed_drop('bills', cascade => true);
SELECT feed_start_worker() IS NOT NULL AS started;
