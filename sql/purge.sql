-- feed_purge(): what it refuses, and rows that cannot be removed.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
CREATE EXTENSION dblink;
RESET client_min_messages;
SELECT feed_stop_worker() IS NOT NULL AS stopped;
\set VERBOSITY terse
SET feedpub.read_wait = 0;
CREATE ROLE regress_feedpub_purger;
GRANT CREATE ON SCHEMA public TO regress_feedpub_purger;
SET ROLE regress_feedpub_purger;
SELECT feed_create('purged');
CREATE TABLE refers (message_id text);
RESET ROLE;
CREATE PROCEDURE messages(VARIADIC names text[]) LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO purged (message_id, message_type, data) SELECT n, n, '{}' FROM unnest(names) n;
	COMMIT;
	CALL feed_publish('purged');
END $$;
CREATE VIEW there AS SELECT coalesce(string_agg(message_type, '' ORDER BY feed_pos), '') AS rows FROM purged;
CREATE VIEW held AS SELECT regexp_replace(held_by, '\d{3,}', 'N') AS held_by FROM feedpub.feeds WHERE feed = 'purged'::regclass;
CALL messages('a', 'b');
SELECT feed_head('purged') AS head \gset
-- Refused.
CALL feed_purge(NULL, :'head');
CALL feed_purge('purged', NULL);
CALL feed_purge('purged', 'no cursor');
CALL feed_purge('pg_class', :'head');
CALL feed_purge('refers', :'head');
BEGIN;
CALL feed_purge('purged', :'head');
ROLLBACK;
CREATE FUNCTION calls() RETURNS void LANGUAGE plpgsql AS $$ DECLARE n bigint; BEGIN CALL feed_purge('purged', feed_head('purged'), n); END $$;
SELECT calls();
DROP FUNCTION calls;
SET ROLE pg_read_all_data;
CALL feed_purge('purged', :'head');
RESET ROLE;
TABLE there;
-- Row security hides rows from the owner, or a rule replaces DELETE.
ALTER TABLE purged ENABLE ROW LEVEL SECURITY;
ALTER TABLE purged FORCE ROW LEVEL SECURITY;
CALL feed_purge('purged', :'head');
ALTER TABLE purged NO FORCE ROW LEVEL SECURITY;
ALTER TABLE purged DISABLE ROW LEVEL SECURITY;
CREATE RULE keep AS ON DELETE TO purged DO INSTEAD NOTHING;
CALL feed_purge('purged', :'head');
DROP RULE keep ON purged;
-- The floor has moved all the same: the rows are not delivered any more.
SELECT count(*) FROM feed_read(NULL::purged) WHERE op = 'upsert';
TABLE there;
CALL feed_purge('purged', :'head');
TABLE there;
-- What turns before have left to be tried is done.
CALL messages('v', 'w');
UPDATE feedpub._job SET attempts = 3, retry_at = now() + interval '1 h' WHERE feed = 'purged'::regclass;
CALL feed_purge('purged', feed_head('purged'));
SELECT state, attempts, retry_at FROM feedpub.jobs WHERE feed = 'purged'::regclass;
-- In a block that is no transaction.
CALL messages('x', 'y');
DO $$ DECLARE n bigint; BEGIN CALL feed_purge('purged', feed_head('purged'), n); RAISE NOTICE '%', n; END $$;
-- A foreign key keeps a row, and a trigger another one.
CALL messages('c', 'd', 'e', 'f');
SET ROLE regress_feedpub_purger;
ALTER TABLE purged ADD UNIQUE (message_id);
ALTER TABLE refers ADD FOREIGN KEY (message_id) REFERENCES purged (message_id);
INSERT INTO refers VALUES ('d');
RESET ROLE;
CALL feed_purge('purged', feed_head('purged'));
TABLE there;
TABLE held;
DELETE FROM refers;
CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
CREATE TRIGGER keep BEFORE DELETE ON purged FOR EACH ROW EXECUTE FUNCTION keep();
CALL feed_purge('purged', feed_head('purged'));
TABLE there;
TABLE held;
DROP TRIGGER keep ON purged;
DROP FUNCTION keep;
CALL feed_purge('purged', feed_head('purged'));
TABLE there;
TABLE held;
-- Rows that others have locked: one, two, a prepared transaction.
SELECT count(dblink_connect(s, format('dbname=%L user=%L host=%L port=%L', current_database(), current_user,
	split_part(current_setting('unix_socket_directories'), ',', 1), current_setting('port')))) FROM unnest('{one,two}'::text[]) s;
CALL messages('g', 'h', 'i', 'j');
SELECT dblink_exec('one', 'BEGIN');
SELECT * FROM dblink('one', $$SELECT message_type FROM purged WHERE message_type = 'h' FOR UPDATE$$) t (row text);
CALL feed_purge('purged', feed_head('purged'));
TABLE there;
TABLE held;
SELECT dblink_exec('one', 'COMMIT');
CALL feed_purge('purged', feed_head('purged'));
TABLE there;
CALL messages('k', 'l');
SELECT dblink_exec(s, 'BEGIN') FROM unnest('{one,two}'::text[]) s;
SELECT * FROM unnest('{one,two}'::text[]) s, dblink(s, $$SELECT message_type FROM purged WHERE message_type = 'k' FOR SHARE$$) t (row text);
CALL feed_purge('purged', feed_head('purged'));
TABLE held;
SELECT dblink_exec(s, 'COMMIT') FROM unnest('{one,two}'::text[]) s;
CALL feed_purge('purged', feed_head('purged'));
CALL messages('m', 'n');
SELECT dblink_exec('one', 'BEGIN');
SELECT * FROM dblink('one', $$SELECT message_type FROM purged WHERE message_type = 'm' FOR UPDATE$$) t (row text);
SELECT dblink_exec('one', $$PREPARE TRANSACTION 'regress_feedpub'$$);
CALL feed_purge('purged', feed_head('purged'));
TABLE held;
COMMIT PREPARED 'regress_feedpub';
CALL feed_purge('purged', feed_head('purged'));
TABLE there;
SELECT dblink_disconnect(s) FROM unnest('{one,two}'::text[]) s;
DROP VIEW there, held;
DROP TABLE refers;
SELECT feed_drop('purged');
DROP PROCEDURE messages;
REVOKE CREATE ON SCHEMA public FROM regress_feedpub_purger;
DROP ROLE regress_feedpub_purger;
DROP EXTENSION dblink;
