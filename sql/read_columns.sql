-- feed_read() and feed_page() by rights on columns: one on each column is
-- enough, as it is to select the rows.
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
SELECT feed_create('outbox');
INSERT INTO outbox (message_type, data) VALUES ('a', '1'), ('b', '2');
CALL feed_publish();
CREATE ROLE regress_feedpub_reader;
GRANT SELECT (feed_xid, feed_pos, publication_id, message_id, message_key, message_type, data) ON outbox TO regress_feedpub_reader;
\set VERBOSITY terse
SET ROLE regress_feedpub_reader;
SELECT op, (entry).message_type FROM feed_read(NULL::outbox, '', 100);
RESET ROLE;
GRANT SELECT (scheduled, headers) ON outbox TO regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
SELECT message_type FROM outbox ORDER BY feed_pos;
SELECT message_type FROM feed_fetch(NULL::outbox, '0', 0, 100);
SELECT op, (entry).message_type FROM feed_read(NULL::outbox, '', 100);
SELECT json_array_length(feed_page('outbox', '', 100) -> 'entries');
CALL feed_publish('outbox');
RESET ROLE;
-- All feeds that the role may read: this one as well
INSERT INTO outbox (message_type, data) VALUES ('c', '3');
SET ROLE regress_feedpub_reader;
CALL feed_publish();
SELECT op, (entry).message_type FROM feed_read(NULL::outbox, '', 100);
-- The initial snapshot too, which has no stamps
RESET ROLE;
CREATE TABLE kv (k text PRIMARY KEY, v int, gone int);
ALTER TABLE kv DROP COLUMN gone;
INSERT INTO kv VALUES ('a', 1), ('b', 2);
SELECT feed_attach('kv') \gexec
SELECT feed_attach('kv') IS NULL AS attached;
GRANT SELECT (k, v, feed_xid) ON kv TO regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
SELECT op, (entry).k, (entry).v FROM feed_read(NULL::kv, '', 100);
RESET ROLE;
GRANT SELECT (feed_pos) ON kv TO regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
SELECT op, (entry).k, (entry).v FROM feed_read(NULL::kv, '', 100);
SELECT json_array_length(feed_page('kv') -> 'entries');
RESET ROLE;
DROP TABLE kv;
-- Row security and columns together: the right must be one on the table.
RESET ROLE;
ALTER TABLE outbox ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON outbox FOR SELECT USING (message_type <> 'a');
SET ROLE regress_feedpub_reader;
SELECT op, (entry).message_type FROM feed_read(NULL::outbox, '', 100);
RESET ROLE;
GRANT SELECT ON outbox TO regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
SELECT op, (entry).message_type FROM feed_read(NULL::outbox, '', 100);
RESET ROLE;
-- A prepared (entry).* keeps its columns, the entry itself has those of now.
PREPARE columns AS SELECT (entry).* FROM feed_read(NULL::outbox, max_rows => 1);
PREPARE entry AS SELECT to_jsonb(entry) ->> 'added' AS added FROM feed_read(NULL::outbox, max_rows => 1);
EXECUTE columns \gset before_
EXECUTE entry;
ALTER TABLE outbox ADD COLUMN added text DEFAULT 'now';
EXECUTE columns \gset after_
\echo :{?before_message_type} :{?after_message_type} :{?after_added}
EXECUTE entry;
DEALLOCATE columns;
PREPARE columns AS SELECT (entry).* FROM feed_read(NULL::outbox, max_rows => 1);
EXECUTE columns \gset again_
\echo :{?again_added}
DEALLOCATE ALL;
-- after and max_rows have defaults: a page of 100 from the beginning.
INSERT INTO outbox (message_type, data) SELECT i, '1' FROM generate_series(1, 200) i;
CALL feed_publish();
SELECT count(*) FROM feed_read(NULL::outbox);
SELECT json_array_length(feed_page('outbox') -> 'entries');
SELECT op, (entry).message_type FROM feed_read(NULL::outbox, feed_page('outbox') ->> 'cursor', 1);
SELECT op, (entry).message_type FROM feed_read(feed => NULL::outbox, max_rows => 1);
-- Not the name as a text
SELECT count(*) FROM feed_read('outbox');
SELECT feed_drop('outbox');
DROP ROLE regress_feedpub_reader;
