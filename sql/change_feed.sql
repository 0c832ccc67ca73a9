-- A change feed, without captures: messages of its own, in both orders
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
-- Pages in xid order are read here: no worker, whose transactions hold them
-- back.
SELECT feed_stop_worker() IS NOT NULL AS stopped;
DO $$
BEGIN
	WHILE EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'feedpub worker' AND datname = current_database()) LOOP
		PERFORM pg_stat_clear_snapshot();
	END LOOP;
END $$;

SELECT feed_create_changes('changes');
SELECT column_name, data_type, is_nullable FROM information_schema.columns
WHERE table_name = 'changes' ORDER BY ordinal_position;
SELECT feed, kind, is_default, state FROM feedpub.feeds WHERE feed = 'changes'::regclass;
SELECT * FROM feed_check('changes');

INSERT INTO changes (op, key, "row") VALUES ('message', '{"id": 1}', '{"a": [1, 2]}');
INSERT INTO changes (relation, "row") VALUES ('elsewhere', '"text"');
UPDATE changes SET op = 'insert';
CALL feed_publish('changes');
SELECT op, (entry).op AS entry_op, (entry).relation, (entry).key, (entry)."row" FROM feed_read(NULL::changes, '', 100) WHERE op <> 'end';
SELECT f.op, f.key FROM feed_fetch(NULL::changes, '0', 0, 100) f;
-- each row is in one shard
SELECT sum(n) FROM (SELECT count(*) AS n FROM generate_series(0, 2) s, feed_read(NULL::changes, '', 100, s, 3) r WHERE r.op <> 'end' GROUP BY s) x;

-- what it is not
SELECT feed_set_default('changes');
SELECT feed_create('changes', if_not_exists => true);
SELECT feed_create_changes('changes');
SET client_min_messages = notice;
SELECT feed_create_changes('changes', if_not_exists => true);
SET client_min_messages = warning;
CREATE TABLE plain (i int);
SELECT feed_create_changes('plain', if_not_exists => true);
SELECT feed_create('box');
SELECT feed_create_changes('box', if_not_exists => true);
SELECT feed_attach('changes');
CALL feed_republish('changes');
SELECT feed_retain('changes', max_age => '1 day');

-- its registration is found again by its columns
DELETE FROM feedpub._feed WHERE feed = 'changes'::regclass;
SELECT guard, problem FROM feed_check('changes');
SELECT feed_repair('changes');
SELECT feed, kind FROM feedpub.feeds WHERE feed IN ('changes'::regclass, 'box'::regclass) ORDER BY kind;
SELECT feed_drop('changes');
SELECT feed_drop('box');
DROP TABLE plain;
