-- Rows that were written while the trigger that stamps was disabled: feed_check()
-- names them until they are published, also after feed_repair().  In a feed with
-- deletes, another history publishes them (lost_changes).
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
SELECT feed_stop_worker() IS NOT NULL AS stopped;
DO $$
BEGIN
	WHILE EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'feedpub worker' AND datname = current_database()) LOOP
		PERFORM pg_stat_clear_snapshot();
	END LOOP;
END $$;
SET feedpub.read_wait = 0;
CREATE TABLE kv (k int PRIMARY KEY, v text);
CREATE TABLE parts (k int PRIMARY KEY, v text) PARTITION BY RANGE (k);
CREATE TABLE parts_0 PARTITION OF parts FOR VALUES FROM (0) TO (10);
SELECT feed_attach('kv', deletes => false), feed_attach('parts', deletes => false);
-- A new feed has its first trigger: nothing is to be published.
SELECT feed, unstamped FROM feedpub._feed WHERE feed IN ('kv'::regclass, 'parts'::regclass) ORDER BY feed::text;
CREATE TABLE parts_10 PARTITION OF parts FOR VALUES FROM (10) TO (20);
INSERT INTO kv VALUES (1, 'a');
INSERT INTO parts VALUES (1, 'a'), (11, 'a');
CALL feed_publish();
CALL feed_republish('parts', unstamped_only => true);
CALL feed_publish();
SELECT feed_head('kv') AS kv, feed_head('parts') AS parts \gset
-- As a restore with --disable-triggers loads them: without stamps, or with old ones
CREATE PROCEDURE load() LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO kv VALUES (2, 'no stamp');
	INSERT INTO kv VALUES (3, 'old stamp', '3', 1);
	INSERT INTO parts VALUES (2, 'no stamp'), (12, 'no stamp');
	INSERT INTO parts VALUES (3, 'old stamp', '3', 1), (13, 'old stamp', '3', 1);
END $$;
ALTER TABLE kv DISABLE TRIGGER ALL;
ALTER TABLE parts_0 DISABLE TRIGGER ALL;
ALTER TABLE parts_10 DISABLE TRIGGER ALL;
CALL load();
SELECT feed_repair('kv') > 0, feed_repair('parts') > 0;
SELECT feed, c.* FROM unnest('{kv,parts}'::regclass[]) feed, feed_check(feed) c ORDER BY 1;
SELECT feed_repair('kv'), feed_repair('parts');
SELECT feed, guard FROM unnest('{kv,parts}'::regclass[]) feed, feed_check(feed) c ORDER BY 1;
SELECT cure FROM unnest('{kv,parts}'::regclass[]) feed, feed_check(feed) c ORDER BY feed \gexec
SELECT feed, guard FROM unnest('{kv,parts}'::regclass[]) feed, feed_check(feed) c ORDER BY 1;
-- All get them: consumers that were there, and new ones.
CALL feed_publish();
SELECT DISTINCT (entry).k FROM feed_read(NULL::kv, :'kv', 100) WHERE op = 'upsert' ORDER BY 1;
SELECT DISTINCT (entry).k FROM feed_read(NULL::kv, '', 100) WHERE op = 'upsert' ORDER BY 1;
SELECT DISTINCT (entry).k FROM feed_read(NULL::parts, :'parts', 100) WHERE op = 'upsert' ORDER BY 1;
SELECT DISTINCT (entry).k FROM feed_read(NULL::parts, '', 100) WHERE op = 'upsert' ORDER BY 1;
-- An UPDATE without the trigger leaves the row its stamp, so only all rows do.
ALTER TABLE parts_0 DISABLE TRIGGER ALL;
UPDATE parts SET v = 'new' WHERE k = 1;
SELECT feed_repair('parts') > 0;
CALL feed_republish('parts', unstamped_only => true);
SELECT guard, cure FROM feed_check('parts');
CALL feed_republish('parts');
SELECT guard FROM feed_check('parts');
-- A row that cannot be published keeps the hint.
ALTER TABLE kv DISABLE TRIGGER ALL;
INSERT INTO kv VALUES (4, 'bad');
SELECT feed_repair('kv') > 0;
ALTER TABLE kv ADD CHECK (v <> 'bad') NOT VALID;
SET client_min_messages = error;
CALL feed_republish('kv', unstamped_only => true);
CALL feed_republish('kv');
SELECT guard FROM feed_check('kv');
-- Another history publishes all.
SELECT feed_begin_history('kv');
SELECT guard FROM feed_check('kv');
SELECT feed_detach('kv'), feed_detach('parts');
DROP TABLE kv, parts;
DROP PROCEDURE load;
