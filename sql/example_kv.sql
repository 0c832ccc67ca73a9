-- The schema of the feeds posts, examples/kv: what its README shows, run.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
SET feedpub.read_wait = '30 s';  -- for a machine that is busy with other tests
\getenv abs_srcdir PG_ABS_SRCDIR
\set schema :abs_srcdir '/examples/kv/schema.sql'
\set posts :abs_srcdir '/examples/kv/posts.sql'
\i :schema
SELECT feed_start_worker() IS NOT NULL AS started;  -- which may just have ended
\i :posts

--
-- The three transactions of the posts.  TRX1 takes its number first and commits
-- last: a consumer that remembers MAX(id) passes k1.
--
SELECT consume('B');
INSERT INTO kv (ns, k, v) VALUES ('-', 'k0', 'v0');     -- TRX0
SELECT consume('B');
BEGIN;
INSERT INTO kv (ns, k, v) VALUES ('-', 'k1', 'v1');     -- TRX1
PREPARE TRANSACTION 'TRX1';     -- which goes on in another session
INSERT INTO kv (ns, k, v) VALUES ('-', 'k2', 'v2');     -- TRX2
SELECT consume('B'), (SELECT max(id) AS max_id FROM kv) \gset
SELECT k FROM copy WHERE consumer = 'B' AND ns = '-' ORDER BY k;
COMMIT PREPARED 'TRX1';
SELECT count(*) FROM kv WHERE id > :max_id;
SELECT consume('B');
SELECT k FROM copy WHERE consumer = 'B' AND ns = '-' ORDER BY k;

--
-- A consumer that must not see the others' namespaces: row security.  It gets
-- no deletes.
--
CREATE ROLE regress_feedpub_cats;
GRANT SELECT ON kv TO regress_feedpub_cats;
ALTER TABLE kv ENABLE ROW LEVEL SECURITY;
CREATE POLICY cats ON kv TO regress_feedpub_cats USING (ns = 'cats');
BEGIN;
UPDATE kv SET v = 'out' WHERE (ns, k) = ('cats', 'fred');
INSERT INTO kv (ns, k, v) VALUES ('cats', 'kit', 'new');
DELETE FROM kv WHERE ns = 'math';
COMMIT;
SELECT consume('B');
SET ROLE regress_feedpub_cats;
SELECT op, (entry).ns, (entry).k, (entry).v FROM feed_read(NULL::kv, '', 100) WHERE op <> 'end';
RESET ROLE;
ALTER TABLE kv DISABLE ROW LEVEL SECURITY;

--
-- A consumer of several processes: every key in one shard, and of one shard
-- the order that its changes have
--
SELECT ns, k, count(*) FROM generate_series(0, 3) shard,
	LATERAL (SELECT (entry).ns, (entry).k FROM feed_read(NULL::kv, '', 100, shard, 4) WHERE op = 'upsert') r
	GROUP BY ns, k ORDER BY ns, k;

--
-- The cursor kept by the server instead of table "cursors"
--
SELECT feed_subscribe('E', 'kv', 'latest') <> '' AS placed;
UPDATE kv SET v = 'last' WHERE (ns, k) = ('cats', 'kit');
SELECT op, row ->> 'v' AS v, receipt FROM feed_poll('E', timeout => '30 s') \gset
SELECT :'op', :'v', feed_ack('E', :'receipt');
-- Consumed, changed and published again: it comes again.
UPDATE kv SET v = 'laster', feed_xid = NULL WHERE (ns, k) = ('cats', 'kit');
SELECT op, row ->> 'v' AS v FROM feed_poll('E', timeout => '30 s');

-- In the end each copy equals what it is a copy of.
SELECT consume('B') > 0 AS b, consume('C: cats', 'cats') > 0 AS c, consume('D: people', 'people') > 0 AS d;
SELECT n.consumer, e.*
	FROM (VALUES ('B', NULL), ('C: cats', 'cats'), ('D: people', 'people')) n (consumer, ns),
	LATERAL ((SELECT ns, k, v FROM kv WHERE kv.ns = n.ns OR n.ns IS NULL
		EXCEPT SELECT ns, k, v FROM copy WHERE copy.consumer = n.consumer)
		UNION ALL (SELECT ns, k, v FROM copy WHERE copy.consumer = n.consumer
		EXCEPT SELECT ns, k, v FROM kv WHERE kv.ns = n.ns OR n.ns IS NULL)) e;
SELECT consumer, count(*) FROM copy GROUP BY consumer ORDER BY consumer;
TRUNCATE kv;
SELECT consume('B'), consume('C: cats', 'cats'), consume('D: people', 'people');
SELECT count(*) FROM copy;

SELECT feed_detach('kv', cascade => true), feed_detach('support_case', cascade => true);
DROP TABLE kv, support_case, cursors, copy;
DROP FUNCTION consume;
DROP ROLE regress_feedpub_cats;
