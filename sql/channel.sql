-- feed_set_channel(): each batch is announced by one NOTIFY, sent by the
-- publisher.
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
SET feedpub.read_wait = 0;
CREATE EXTENSION dblink;
SELECT feed_create('"Odd ""Name"", with a comma"');
SELECT feed_create('silent');
-- A listener on a connection of its own, whose notifications are shown
-- without what differs from run to run.  A mark that is sent after them says
-- that all have come.
CREATE FUNCTION connect(name text) RETURNS text LANGUAGE sql AS $$
	SELECT dblink_connect(name, format('dbname=%L user=%L host=%L port=%L', current_database(), current_user,
		split_part(current_setting('unix_socket_directories'), ',', 1), current_setting('port')))
$$;
SELECT connect('listener'), connect('sender');
SELECT dblink_exec('listener', 'LISTEN mark'), dblink_exec('listener', 'LISTEN outbox'),
	dblink_exec('listener', 'LISTEN "Odd ""Channel"", with a comma"');
CREATE FUNCTION notified() RETURNS TABLE (channel text, by_publisher boolean, payload_length int, is_head boolean) LANGUAGE plpgsql AS $$
DECLARE
	n record;
BEGIN
	PERFORM dblink_exec('sender', 'NOTIFY mark');
	LOOP
		FOR n IN SELECT * FROM dblink_get_notify('listener') LOOP
			IF n.notify_name = 'mark' THEN
				RETURN;
			END IF;
			channel := n.notify_name;
			by_publisher := n.be_pid = pg_backend_pid();
			payload_length := length(n.extra);
			is_head := n.extra = feed_head('"Odd ""Name"", with a comma"');
			RETURN NEXT;
		END LOOP;
	END LOOP;
END $$;

--
-- None to begin with
--
SELECT feed, channel FROM feedpub.feeds ORDER BY feed::text COLLATE "C";
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('a', '1');
CALL feed_publish();
SELECT * FROM notified();
-- One for each batch, its payload the newest cursor
SELECT feed_set_channel('"Odd ""Name"", with a comma"', 'outbox');
SELECT feed, channel FROM feedpub.feeds ORDER BY feed::text COLLATE "C";
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('b', '1'), ('c', '1');
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('d', '1');
INSERT INTO silent (message_type, data) VALUES ('e', '1');
SELECT * FROM notified();
CALL feed_publish();
SELECT * FROM notified();
-- What is after the payload is not published yet, and comes with the next.
SELECT op, (entry).message_type FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 10);
-- No batch, no notification: nothing new, a rollback, another feed
CALL feed_publish();
BEGIN;
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('x', '1');
ROLLBACK;
INSERT INTO silent (message_type, data) VALUES ('f', '1');
CALL feed_publish();
SELECT * FROM notified();
-- A backlog that is cut into several batches is announced once: a consumer that
-- wakes reads all of them.
SET feedpub.max_batch_transactions = 1;
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('g', '1');
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('h', '1');
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('i', '1');
CALL feed_publish();
RESET feedpub.max_batch_transactions;
SELECT * FROM notified();
SELECT count(*) AS batches FROM feedpub._batch WHERE feed = '"Odd ""Name"", with a comma"'::regclass;
-- Another channel, with a name that must be quoted; the longest there can be
SELECT feed_set_channel('"Odd ""Name"", with a comma"', 'Odd "Channel", with a comma');
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('j', '1');
CALL feed_publish('"Odd ""Name"", with a comma"');
SELECT * FROM notified();
SELECT dblink_exec('listener', format('LISTEN %I', repeat('c', 63)));
SELECT feed_set_channel('"Odd ""Name"", with a comma"', repeat('c', 63));
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('k', '1');
CALL feed_publish('"Odd ""Name"", with a comma"');
SELECT length(channel), by_publisher, is_head FROM notified();
-- Two feeds may have one channel.
SELECT feed_set_channel('"Odd ""Name"", with a comma"', 'outbox');
SELECT feed_set_channel('silent', 'outbox');
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('l', '1');
INSERT INTO silent (message_type, data) VALUES ('m', '1');
CALL feed_publish();
SELECT channel, count(*), count(*) FILTER (WHERE is_head) AS of_the_first FROM notified() GROUP BY channel;
-- NULL ends it.
SELECT feed_set_channel('"Odd ""Name"", with a comma"', NULL);
SELECT feed_set_channel('silent', NULL);
SELECT feed, channel FROM feedpub.feeds ORDER BY feed::text COLLATE "C";
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('n', '1');
CALL feed_publish();
SELECT * FROM notified();
-- Writers send no notification, and the batch does not depend on it.
SELECT op, (entry).message_type FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 100);
-- Rolled back, it is not set.
BEGIN;
SELECT feed_set_channel('silent', 'outbox');
ROLLBACK;
SELECT channel FROM feedpub.feeds WHERE feed = 'silent'::regclass;

-- A publisher that looks for a channel waits until one that is being set is
-- there, so no batch is visible later than the channel and not announced.
SELECT connect('owner'), connect('publisher');
SELECT pid AS publisher FROM dblink('publisher', 'SELECT pg_backend_pid()') p (pid int) \gset
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('o', '1');
SELECT dblink_exec('owner', 'BEGIN');
SELECT FROM dblink('owner', format('SELECT feed_set_channel(%L, %L)', '"Odd ""Name"", with a comma"', 'outbox')) s (void text);
SELECT dblink_send_query('publisher', 'CALL feed_publish(''"Odd ""Name"", with a comma"'')');
SELECT set_config('test.publisher', :'publisher', false) IS NOT NULL AS known;
DO $$
BEGIN
	WHILE dblink_is_busy('publisher') = 1 AND pg_blocking_pids(current_setting('test.publisher')::int) = '{}' LOOP
	END LOOP;
END $$;
SELECT dblink_is_busy('publisher') AS waits;
SELECT dblink_exec('owner', 'COMMIT');
SELECT * FROM dblink_get_result('publisher') r (result text);
SELECT dblink_disconnect('owner'), dblink_disconnect('publisher');
SELECT channel, is_head FROM notified();
SELECT feed_set_channel('"Odd ""Name"", with a comma"', NULL);

--
-- What it refuses
--
SELECT feed_set_channel('silent', '');
\echo :SQLSTATE
SELECT feed_set_channel('silent', repeat('c', 64));
\echo :SQLSTATE
SELECT feed_set_channel('silent', repeat(U&'\20AC', 21)), feed_set_channel('silent', NULL);
SELECT feed_set_channel('silent', repeat(U&'\20AC', 22));
\echo :SQLSTATE
SELECT feed_set_channel('feedpub._feed', 'outbox');
\echo :SQLSTATE
\set VERBOSITY sqlstate
SELECT feed_set_channel(0, 'outbox');
SELECT feed_set_channel(NULL, 'outbox');
\set VERBOSITY default
-- Only the owner may, or a member of the role.
CREATE ROLE regress_feedpub_owner;
CREATE ROLE regress_feedpub_reader;
ALTER TABLE silent OWNER TO regress_feedpub_owner;
GRANT ALL ON silent TO regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
SELECT feed_set_channel('silent', 'outbox');
\echo :SQLSTATE
SET ROLE regress_feedpub_owner;
SELECT feed_set_channel('silent', 'outbox');
RESET ROLE;
GRANT regress_feedpub_owner TO regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
SELECT feed_set_channel('silent', 'outbox');
RESET ROLE;
-- The channel stays with a feed that is renamed, and goes with it.
ALTER TABLE silent RENAME TO loud;
SELECT feed, channel FROM feedpub.feeds WHERE feed = 'loud'::regclass;
SELECT feed_drop('loud');
SELECT feed_create('loud');
SELECT channel IS NULL AS none FROM feedpub.feeds WHERE feed = 'loud'::regclass;

--
-- feed_listen(): the extension's own channel, without the owner
--
SELECT dblink_exec('listener', 'LISTEN feedpub');
INSERT INTO loud (message_type, data) VALUES ('x', '1');
CALL feed_publish('loud');
SELECT * FROM notified();
GRANT SELECT ON loud TO regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
BEGIN;
SELECT feed_listen('loud');
ROLLBACK;
RESET ROLE;
INSERT INTO loud (message_type, data) VALUES ('y', '1');
CALL feed_publish('loud');
SELECT channel, by_publisher, payload_length = length('loud'::regclass::oid::text) AS is_oid FROM notified();
-- Other feeds are not announced, nor a step without a batch.
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('z', '1');
CALL feed_publish('"Odd ""Name"", with a comma"');
CALL feed_publish('loud');
SELECT count(*) FROM notified() WHERE channel = 'feedpub';
-- With the owner's channel there are two.
SELECT feed_set_channel('loud', 'outbox');
INSERT INTO loud (message_type, data) VALUES ('w', '1');
CALL feed_publish('loud');
SELECT channel, by_publisher FROM notified() ORDER BY channel;
REVOKE SELECT ON loud FROM regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
SELECT feed_listen('loud');
\echo :SQLSTATE
RESET ROLE;
SELECT feed_listen('feedpub._feed');
\echo :SQLSTATE
-- When there is no room for more feeds, all are announced.
SELECT count(feed_create('many_' || n)) FROM generate_series(1, 65) n;
INSERT INTO many_1 (message_type, data) VALUES ('v', '1');
CALL feed_publish('many_1');
SELECT count(*) FROM notified();
SELECT count(feed_listen(('many_' || n)::regclass)) FROM generate_series(2, 65) n;
INSERT INTO many_1 (message_type, data) VALUES ('v', '2');
CALL feed_publish('many_1');
SELECT channel, by_publisher FROM notified();

SELECT dblink_disconnect('listener'), dblink_disconnect('sender');
DROP FUNCTION notified, connect;
DROP EXTENSION dblink;
SELECT count(feed_drop(feed::text)) FROM feedpub.feeds;
DROP ROLE regress_feedpub_owner, regress_feedpub_reader;
