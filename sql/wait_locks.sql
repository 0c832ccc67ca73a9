-- A session that waits in feed_wait() holds no lock on the table, so that ALTER
-- TABLE, and all sessions after it, need not wait for it.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
SELECT feed_stop_worker() IS NOT NULL AS stopped;
SELECT feed_create('outbox');
CREATE EXTENSION dblink;
SELECT dblink_connect('waiter', format('dbname=%L user=%L host=%L port=%L application_name=%L', current_database(), current_user,
	split_part(current_setting('unix_socket_directories'), ',', 1), current_setting('port'), 'regress_feedpub waiter'));
CREATE PROCEDURE wait_for_waiter() LANGUAGE plpgsql AS $$
BEGIN
	WHILE NOT EXISTS (SELECT FROM pg_stat_activity
			WHERE application_name = 'regress_feedpub waiter' AND state = 'active' AND wait_event_type = 'Extension')
	LOOP
		PERFORM pg_stat_clear_snapshot();
	END LOOP;
END $$;
-- Of the table, its index and its sequence
CREATE VIEW locks AS
	SELECT c.relname, l.mode FROM pg_locks l JOIN pg_stat_activity a USING (pid) JOIN pg_class c ON c.oid = l.relation
	WHERE a.application_name = 'regress_feedpub waiter' AND c.relname LIKE 'outbox%' AND c.relnamespace = 'public'::regnamespace;
-- It knows the feed already.
SELECT * FROM dblink('waiter', $$SELECT feed_wait('outbox', '', '0')$$) AS t (arrived bool);
SELECT dblink_send_query('waiter', $$SELECT feed_wait('outbox', '', '1 h')$$);
CALL wait_for_waiter();
TABLE locks;
-- What would wait fails here.
SET statement_timeout = '60s';
ALTER TABLE outbox ADD COLUMN note text;
ALTER TABLE outbox ADD COLUMN u uuid DEFAULT gen_random_uuid();
TRUNCATE outbox;
RESET statement_timeout;
SELECT dblink_is_busy('waiter');
INSERT INTO outbox (message_type, data) VALUES ('a', '1');
CALL feed_publish('outbox');
SELECT * FROM dblink_get_result('waiter') AS t (arrived bool);
SELECT count(*) FROM dblink_get_result('waiter') AS t (arrived bool);
-- The same inside a transaction that waits again and again
SELECT * FROM dblink('waiter', $$SELECT feed_wait('outbox', '', '0')$$) AS t (arrived bool);
SELECT dblink_exec('waiter', 'BEGIN');
SELECT cursor FROM feed_read(NULL::outbox, '', 10) \gset
SELECT * FROM dblink('waiter', $$SELECT feed_wait('outbox', '', '1 h')$$) AS t (arrived bool);
SELECT dblink_send_query('waiter', format($$SELECT feed_wait('outbox', %L, '1 h')$$, :'cursor'));
CALL wait_for_waiter();
TABLE locks;
SET statement_timeout = '60s';
ALTER TABLE outbox DROP COLUMN note;
RESET statement_timeout;
INSERT INTO outbox (message_type, data) VALUES ('b', '1');
CALL feed_publish('outbox');
SELECT * FROM dblink_get_result('waiter') AS t (arrived bool);
SELECT count(*) FROM dblink_get_result('waiter') AS t (arrived bool);
TABLE locks;
SELECT dblink_exec('waiter', 'COMMIT');
-- Dropped while a session waits: false, and no error
SELECT * FROM dblink('waiter', $$SELECT feed_wait('outbox', '', '0')$$) AS t (arrived bool);
SELECT cursor FROM feed_read(NULL::outbox, '', 10) ORDER BY cursor COLLATE "C" DESC LIMIT 1 \gset
SELECT dblink_send_query('waiter', format($$SELECT feed_wait('outbox', %L, '1 h')$$, :'cursor'));
CALL wait_for_waiter();
SELECT feed_drop('outbox');
SELECT * FROM dblink_get_result('waiter') AS t (arrived bool);
SELECT dblink_disconnect('waiter');
DROP VIEW locks;
DROP PROCEDURE wait_for_waiter;
DROP EXTENSION dblink;
