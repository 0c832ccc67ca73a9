-- feed_wait() and feed_await(): true as soon as something is published after
-- a cursor, false when the time is over.
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
SELECT feed_create('"Odd ""Name"", with a comma"');
-- How long a query takes
CREATE FUNCTION seconds(query text) RETURNS float8 LANGUAGE plpgsql AS $$
DECLARE
	start timestamptz := clock_timestamp();
BEGIN
	EXECUTE query;
	RETURN extract(epoch FROM clock_timestamp() - start);
END $$;

--
-- Nothing there: until the time is over, and no longer
--
SELECT feed_wait('"Odd ""Name"", with a comma"', '', '0');
SELECT seconds($$SELECT feed_wait('"Odd ""Name"", with a comma"', '', '0.3 s')$$) BETWEEN 0.29 AND 20 AS in_time;
SELECT feed_wait('"Odd ""Name"", with a comma"', feed_head('"Odd ""Name"", with a comma"'), '10 ms');
CALL feed_await('"Odd ""Name"", with a comma"', '', '10 ms');
CALL feed_await('"Odd ""Name"", with a comma"', '', '10 ms', true);
-- Committed and not published: without a worker nothing arrives.
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('a', '1');
SELECT feed_wait('"Odd ""Name"", with a comma"', '', '10 ms');
-- It was stopped by hand, so the waits have not started it.
SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'feedpub worker' AND datname = current_database();

--
-- Published: at once
--
CALL feed_publish('"Odd ""Name"", with a comma"');
SELECT feed_wait('"Odd ""Name"", with a comma"', '', '1 day');
SELECT feed_wait('"Odd ""Name"", with a comma"', '', '0');
SELECT feed_wait('"Odd ""Name"", with a comma"', '', '1000000 years');
CALL feed_await('"Odd ""Name"", with a comma"', '', '1 day');
CALL feed_await(feed => '"Odd ""Name"", with a comma"', timeout => '1 day', after => '', arrived => NULL);
-- After the last row there is nothing; after the one before there is.
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('b', '1'), ('c', '1');
CALL feed_publish('"Odd ""Name"", with a comma"');
CREATE TABLE cursors AS
	SELECT (entry).message_type, cursor FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 10);
SELECT message_type, feed_wait('"Odd ""Name"", with a comma"', cursor, '10 ms') FROM cursors ORDER BY message_type;
-- What is true of feed_wait() is what feed_read() finds there.
SELECT message_type, feed_wait('"Odd ""Name"", with a comma"', cursor, '0') =
		EXISTS (SELECT FROM feed_read(NULL::"Odd ""Name"", with a comma", cursor, 1)) AS same
	FROM cursors ORDER BY message_type;
-- Deleted rows: there is something to pass, until it has been passed.
DELETE FROM "Odd ""Name"", with a comma" WHERE message_type = 'c';
SELECT message_type, feed_wait('"Odd ""Name"", with a comma"', cursor, '10 ms') FROM cursors ORDER BY message_type;
SELECT feed_wait('"Odd ""Name"", with a comma"', cursor, '10 ms') AS after_the_end_row
	FROM feed_read(NULL::"Odd ""Name"", with a comma", (SELECT cursor FROM cursors WHERE message_type = 'b'), 1) WHERE op = 'end';

--
-- In transactions of any kind
--
BEGIN;
SELECT feed_wait('"Odd ""Name"", with a comma"', '', '1 day');
SELECT feed_wait('"Odd ""Name"", with a comma"', feed_head('"Odd ""Name"", with a comma"'), '1 ms');
-- Its own rows are nothing that it could wait for.
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('own', '1');
SELECT feed_wait('"Odd ""Name"", with a comma"', feed_head('"Odd ""Name"", with a comma"'), '1 ms');
ROLLBACK;
-- With a transaction id they look once: none holds back xid order and VACUUM.
SELECT feed_subscribe('waited', '"Odd ""Name"", with a comma"') IS NOT NULL AS subscribed;
SELECT feed_subscribe('held', '"Odd ""Name"", with a comma"') IS NOT NULL AS subscribed;
SELECT count(*) FROM feed_poll('held', 10, 'holder');
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('not published', '1');
BEGIN;
SELECT pg_current_xact_id() IS NOT NULL AS has_xid;
SET LOCAL statement_timeout = '50 s';
SET LOCAL feedpub.read_wait = '60 s';
SELECT clock_timestamp() AS began \gset
SELECT feed_wait('"Odd ""Name"", with a comma"', feed_head('"Odd ""Name"", with a comma"'), '20 s');
SELECT clock_timestamp() < timestamptz :'began' + '20 s' AS at_once;
SELECT feed_wait('"Odd ""Name"", with a comma"', '', '1 h');
SELECT feed_wait('"Odd ""Name"", with a comma"', '');
SELECT feed_wait('"Odd ""Name"", with a comma"', 'earliest', '1 h'), feed_wait('"Odd ""Name"", with a comma"', 'latest', '1 ms');
SELECT count(*) FROM feed_read(NULL::"Odd ""Name"", with a comma", feed_head('"Odd ""Name"", with a comma"'), 10);
SELECT json_array_length(feed_page('"Odd ""Name"", with a comma"', feed_head('"Odd ""Name"", with a comma"'), 10) -> 'entries') AS entries;
SELECT count(*) FROM feed_poll('waited', 10);
SELECT count(*) FROM feed_poll('waited', 10, 'first');
SELECT count(*) FROM feed_poll('waited', timeout => '1 h');
-- None of the shards is this consumer's.
SELECT count(*) FROM feed_poll('held', consumer => 'other', timeout => '1 h');
COMMIT;
-- An acknowledgement writes, so the page after it is what is there.
CALL feed_publish();
SELECT feed_subscribe('acknowledged', '"Odd ""Name"", with a comma"', 'earliest') <> '' AS placed;
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('not published', '1');
SELECT receipt FROM feed_poll('acknowledged', 100) ORDER BY cursor COLLATE "C" DESC LIMIT 1 \gset page_
SET statement_timeout = '50 s';
SET feedpub.read_wait = '60 s';
SELECT count(*) FROM feed_poll('acknowledged', 10, timeout => '1 h', ack => :'page_receipt');
SET feedpub.read_wait = 0;
RESET statement_timeout;
DELETE FROM "Odd ""Name"", with a comma" WHERE message_type = 'not published';
SELECT feed_unsubscribe(name) FROM unnest('{waited,held,acknowledged}'::text[]) name;
BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY;
SELECT feed_wait('"Odd ""Name"", with a comma"', '', '1 day');
COMMIT;
-- Interrupted by a timeout, or by a cancel
SET statement_timeout = '100 ms';
SELECT feed_wait('"Odd ""Name"", with a comma"', feed_head('"Odd ""Name"", with a comma"'), '1 day');
\echo :SQLSTATE
SELECT feed_head('"Odd ""Name"", with a comma"') AS head \gset
CALL feed_await('"Odd ""Name"", with a comma"', :'head', '1 day');
\echo :SQLSTATE
RESET statement_timeout;
-- feed_await() in a procedure, where each ends its transaction
CREATE PROCEDURE await(after text, INOUT arrived boolean) LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('by a procedure', '1');
	CALL feed_await('"Odd ""Name"", with a comma"', after, '10 ms', arrived);
END $$;
CALL await(:'head', NULL);
CALL await('', NULL);
SELECT count(*) FROM "Odd ""Name"", with a comma" WHERE message_type = 'by a procedure';
-- It cannot where that is not possible.
BEGIN;
CALL feed_await('"Odd ""Name"", with a comma"', '', '1 s');
\echo :SQLSTATE
ROLLBACK;
SELECT 1 AS one \; CALL feed_await('"Odd ""Name"", with a comma"', '', '1 s');
\echo :SQLSTATE
\set VERBOSITY sqlstate
CREATE FUNCTION await_in_function() RETURNS void LANGUAGE plpgsql AS $$ DECLARE b bool; BEGIN CALL feed_await('cursors', '', '1 s', b); END $$;
SELECT await_in_function();
\set VERBOSITY default

--
-- A session waits, and something happens: on a connection of its own.
--
CREATE EXTENSION dblink;
CREATE FUNCTION connect() RETURNS text LANGUAGE sql AS $$
	SELECT dblink_connect('waiter', format('dbname=%L user=%L host=%L port=%L', current_database(), current_user,
		split_part(current_setting('unix_socket_directories'), ',', 1), current_setting('port')))
$$;
SELECT connect();
-- Sends a query, and returns when it sleeps: what it holds meanwhile.
CREATE FUNCTION send(query text, OUT snapshot boolean, OUT xid boolean, OUT lock boolean) LANGUAGE plpgsql AS $$
DECLARE
	waiter int := (SELECT pid FROM dblink('waiter', 'SELECT pg_backend_pid()') AS t (pid int));
BEGIN
	PERFORM dblink_send_query('waiter', query);
	LOOP
		PERFORM pg_stat_clear_snapshot();
		SELECT backend_xmin IS NOT NULL, backend_xid IS NOT NULL,
			EXISTS (SELECT FROM pg_locks WHERE pid = waiter AND relation = '"Odd ""Name"", with a comma"'::regclass)
			INTO snapshot, xid, lock
			FROM pg_stat_activity WHERE pid = waiter AND state = 'active' AND wait_event_type = 'Extension';
		EXIT WHEN FOUND;
	END LOOP;
	-- once more: those were not all looked at in one moment
	PERFORM pg_stat_clear_snapshot();
	SELECT backend_xmin IS NOT NULL INTO snapshot FROM pg_stat_activity WHERE pid = waiter;
END $$;
-- What came back, an error's message included
CREATE FUNCTION result() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer text;
BEGIN
	answer := (SELECT b FROM dblink_get_result('waiter') AS t (b bool));
	PERFORM FROM dblink_get_result('waiter') AS t (b bool);
	RETURN answer;
EXCEPTION WHEN query_canceled OR OTHERS THEN
	PERFORM dblink_disconnect('waiter');
	PERFORM connect();
	RETURN SQLSTATE || ' ' || SQLERRM;
END $$;
CREATE PROCEDURE write_and_publish() LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('later', '1');
	COMMIT;
	CALL feed_publish('"Odd ""Name"", with a comma"');
END $$;
-- Published: it is woken.
CALL feed_publish();
SELECT * FROM send($$SELECT feed_wait('"Odd ""Name"", with a comma"', feed_head('"Odd ""Name"", with a comma"'), '1 min')$$);
CALL write_and_publish();
SELECT result();
SELECT * FROM send($$CALL feed_await('"Odd ""Name"", with a comma"', feed_head('"Odd ""Name"", with a comma"'), '1 min')$$);
CALL write_and_publish();
SELECT result();
-- And not left to its own look, once a second: one of some returns in half of
-- that, the first on a machine that is not too busy.
CREATE PROCEDURE wake(INOUT woken boolean) LANGUAGE plpgsql AS $$
DECLARE
	start timestamptz;
BEGIN
	woken := false;
	FOR i IN 1..50 LOOP
		PERFORM send(format('SELECT feed_wait(%1$L, feed_head(%1$L), ''1 min'')', '"Odd ""Name"", with a comma"'));
		COMMIT;
		start := clock_timestamp();
		INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('later', '1');
		COMMIT;
		CALL feed_publish('"Odd ""Name"", with a comma"');
		PERFORM result();
		woken := clock_timestamp() - start < '0.5 s';
		COMMIT;
		EXIT WHEN woken;
	END LOOP;
END $$;
CALL wake(NULL);
DROP PROCEDURE wake;
-- Cancelled
SELECT * FROM send($$CALL feed_await('"Odd ""Name"", with a comma"', feed_head('"Odd ""Name"", with a comma"'), '1 min')$$);
SELECT dblink_cancel_query('waiter');
SELECT result();
-- The feed is dropped meanwhile: that ends the waiting.
SELECT feed_create('going');
INSERT INTO going (message_type, data) VALUES ('a', '1');
SELECT * FROM send($$CALL feed_await('going', '', '1 min')$$);
SELECT feed_drop('going');
SELECT result();
SELECT feed_create('going');
INSERT INTO going (message_type, data) VALUES ('a', '1');
CALL feed_publish();
SELECT * FROM send($$CALL feed_await('going', feed_head('going'), '1 min')$$);
SELECT feed_drop('going');
SELECT result();
SELECT feed_create('going');
INSERT INTO going (message_type, data) VALUES ('a', '1');
CALL feed_publish();
SELECT * FROM send($$CALL feed_await('going', feed_head('going'), '1 min')$$);
DROP TABLE going;
SELECT result();
SELECT dblink_disconnect('waiter');

--
-- A cursor of another history is refused, as it is by feed_read().
--
SELECT feed_create('other');
SELECT feed_wait('other', :'head', '1 s');
\echo :SQLSTATE
CALL feed_await('other', :'head', '1 s');
\echo :SQLSTATE
SELECT feed_wait('"Odd ""Name"", with a comma"', overlay(:'head' PLACING 'zzz' FROM 8), '1 s');
\echo :SQLSTATE
SELECT feed_wait('"Odd ""Name"", with a comma"', overlay(feed_head('"Odd ""Name"", with a comma"') PLACING '------' FROM 2), '1 s');
\echo :SQLSTATE
SELECT feed_wait('"Odd ""Name"", with a comma"', overlay(head PLACING CASE substr(head, 31, 1) WHEN '0' THEN '1' ELSE '0' END FROM 31), '1 s')
	FROM feed_head('"Odd ""Name"", with a comma"') head;
\echo :SQLSTATE
SELECT feed_drop('other');

--
-- What they refuse
--
SELECT feed_wait(NULL, '', '1 s');
\echo :SQLSTATE
SELECT feed_wait('"Odd ""Name"", with a comma"', NULL, '1 s');
\echo :SQLSTATE
SELECT feed_wait('"Odd ""Name"", with a comma"', '', NULL);
\echo :SQLSTATE
SELECT feed_wait('"Odd ""Name"", with a comma"', '', '-1 us');
\echo :SQLSTATE
SELECT feed_wait('"Odd ""Name"", with a comma"', '', '1 day -25 hours');
\echo :SQLSTATE
SELECT feed_wait('"Odd ""Name"", with a comma"', 'x', '1 s');
\echo :SQLSTATE
SELECT feed_wait('cursors', '', '1 s');
\echo :SQLSTATE
CALL feed_await(NULL, '', '1 s');
\echo :SQLSTATE
CALL feed_await('"Odd ""Name"", with a comma"', NULL, '1 s');
\echo :SQLSTATE
CALL feed_await('"Odd ""Name"", with a comma"', '', NULL);
\echo :SQLSTATE
CALL feed_await('"Odd ""Name"", with a comma"', '', '-1 s');
\echo :SQLSTATE
CALL feed_await('"Odd ""Name"", with a comma"', 'x', '1 s');
\echo :SQLSTATE
CALL feed_await('cursors', '', '1 s');
\echo :SQLSTATE
\set VERBOSITY sqlstate
SELECT feed_wait(0, '', '1 s');
CALL feed_await(0, '', '1 s');
\set VERBOSITY default
-- A role that may read may wait, and no other.
CREATE ROLE regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
SELECT feed_wait('"Odd ""Name"", with a comma"', '', '1 s');
\echo :SQLSTATE
CALL feed_await('"Odd ""Name"", with a comma"', '', '1 s');
\echo :SQLSTATE
RESET ROLE;
GRANT SELECT (message_type) ON "Odd ""Name"", with a comma" TO regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
SELECT feed_wait('"Odd ""Name"", with a comma"', '', '1 s');
CALL feed_await('"Odd ""Name"", with a comma"', '', '1 s');
RESET ROLE;

-- Starting and stopping the worker takes a right as well.
SET ROLE regress_feedpub_reader;
SELECT feed_stop_worker();
\echo :SQLSTATE
RESET ROLE;
REVOKE ALL ON "Odd ""Name"", with a comma" FROM regress_feedpub_reader;
REVOKE ALL (message_type) ON "Odd ""Name"", with a comma" FROM regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
SELECT feed_start_worker();
\echo :SQLSTATE
RESET ROLE;
SELECT feed_stop_worker();

DROP PROCEDURE await, write_and_publish;
DROP FUNCTION await_in_function, seconds, connect, send, result;
DROP EXTENSION dblink;
DROP TABLE cursors;
SELECT feed_drop('"Odd ""Name"", with a comma"');
DROP ROLE regress_feedpub_reader;
