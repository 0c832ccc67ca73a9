-- A session's own rows are not published before it commits: its reads do not
-- wait for them.  A read that waits would run into the timeout.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
SELECT feed_stop_worker() IS NOT NULL AS stopped;
SELECT feed_create('outbox');
CREATE EXTENSION dblink;
CREATE FUNCTION other(query text) RETURNS text LANGUAGE sql AS $$
	SELECT dblink_exec(format('dbname=%L user=%L host=%L port=%L', current_database(), current_user,
		split_part(current_setting('unix_socket_directories'), ',', 1), current_setting('port')), query)
$$;
CREATE TABLE elsewhere (i int);
SET feedpub.read_wait = '60s';
SET statement_timeout = '50s';
-- With a transaction id that is younger than its own, and has ended
BEGIN;
INSERT INTO outbox (message_type, data) VALUES ('own', '1');
SELECT other('INSERT INTO elsewhere VALUES (1)');
SELECT pg_snapshot_xmax(pg_current_snapshot()) > pg_current_xact_id() AS younger;
SELECT count(*) FROM feed_read(NULL::outbox, '', 10) WHERE op <> 'end';
SELECT feed_page('outbox', '', 10) -> 'entries' AS entries;
SELECT unpublished FROM feedpub.feeds WHERE feed = 'outbox'::regclass;
-- In a savepoint
SAVEPOINT s;
INSERT INTO outbox (message_type, data) VALUES ('own', '2');
SELECT other('INSERT INTO elsewhere VALUES (2)');
SELECT count(*) FROM feed_read(NULL::outbox, '', 10) WHERE op <> 'end';
RELEASE s;
SELECT count(*) FROM feed_read(NULL::outbox, '', 10) WHERE op <> 'end';
ROLLBACK;
-- Many that were rolled back are none either, nor is what was deleted.
BEGIN;
INSERT INTO outbox (message_type, data) VALUES ('own', '3');
DELETE FROM outbox;
SELECT other('INSERT INTO elsewhere VALUES (3)');
SELECT count(*) FROM feed_read(NULL::outbox, '', 10) WHERE op <> 'end';
COMMIT;
SELECT count(*) FROM feed_read(NULL::outbox, '', 10) WHERE op <> 'end';
-- Those of others are not waited for either: nothing waits with a transaction id.
BEGIN;
INSERT INTO outbox (message_type, data) VALUES ('own', '4');
SELECT other($$INSERT INTO outbox (message_type, data) VALUES ('other', '1')$$);
SELECT unpublished FROM feedpub.feeds WHERE feed = 'outbox'::regclass;
SELECT count(*) FROM feed_read(NULL::outbox, '', 10) WHERE op <> 'end';
COMMIT;
-- Without one they are, also where the first poll of a consumer takes a lease,
-- which writes.
SELECT feed_subscribe('shared', 'outbox', 'earliest') <> '' AS placed;
SET statement_timeout = '120s';
SELECT feed_start_worker();
SELECT row ->> 'message_type' AS message_type FROM feed_poll('shared', 10, 'first');
SELECT feed_stop_worker();
RESET statement_timeout;
DROP FUNCTION other;
DROP TABLE elsewhere;
DROP EXTENSION dblink;
SELECT feed_unsubscribe('shared');
SELECT feed_drop('outbox');
