-- posts.sql: what the feeds posts do, one after the other, with the tables of
-- schema.sql.

--
-- A feed for B, C and D: the response body of "GET /kv?after=&limit=10"
--
INSERT INTO kv (ns, k, v) VALUES ('people', 'fred', 'bob'), ('math', 'pi', '3.14159');
SELECT feed_page('kv', '', 10) AS page \gset
SELECT e ->> 'op' AS op, e -> 'key' AS key, e -> 'row' ->> 'v' AS v
	FROM json_array_elements(:'page'::json -> 'entries') e;
-- its cursor leads to the next page, which has nothing yet
SELECT :'page'::json ->> 'cursor' AS after, :'page'::json ->> 'more' AS more \gset
SELECT :'more' AS more, json_array_length(feed_page('kv', :'after', 10) -> 'entries') AS entries;

--
-- Republishing the last record.  In the posts, with MAX(feed_sync_id) + 1, the
-- consumer had consumed number 1; fred was republished as number 1 again, and
-- the consumer never saw jim.
--
INSERT INTO cursors VALUES ('B');
SELECT consume('B');                                    -- t=0 to t=3
SELECT k, v FROM copy WHERE consumer = 'B' ORDER BY k;
-- t=4: in the posts "UPDATE kv SET v = 'jim', feed_sync_id = null WHERE k = 'fred'"
UPDATE kv SET v = 'jim', feed_xid = NULL WHERE k = 'fred';
SELECT consume('B');                                    -- t=6
SELECT k, v FROM copy WHERE consumer = 'B' ORDER BY k;
-- Nobody can forget it: an UPDATE that changes the row publishes it anyway,
UPDATE kv SET v = 'joe' WHERE k = 'fred';
SELECT consume('B');
-- one that changes nothing does not,
UPDATE kv SET v = 'joe' WHERE k = 'fred';
SELECT consume('B');
-- unless it says so;
UPDATE kv SET feed_xid = NULL WHERE k = 'fred';
SELECT consume('B');
-- some of them, the same.
UPDATE kv SET feed_xid = NULL WHERE ns IN ('people', 'math');
SELECT consume('B');
-- It rolls back with its transaction.
BEGIN;
UPDATE kv SET v = 'nobody', feed_xid = NULL WHERE k = 'fred';
ROLLBACK;
SELECT consume('B');
-- Deleting the last record, after which MAX() falls back
DELETE FROM kv WHERE k = 'fred';
SELECT consume('B');
SELECT k, v FROM copy WHERE consumer = 'B' ORDER BY k;
INSERT INTO kv (ns, k, v) VALUES ('people', 'fred', 'back');
SELECT consume('B');
SELECT k, v FROM copy WHERE consumer = 'B' ORDER BY k;

--
-- One feed, a consumer for each namespace, and one that takes all of them.
-- The key is (ns, k): fred and fred are two.
--
INSERT INTO kv (ns, k, v) VALUES ('cats', 'fred', 'asleep'), ('cats', 'tom', 'out'), ('people', 'ann', 'in');
INSERT INTO cursors VALUES ('C: cats'), ('D: people');
SELECT consume('B'), consume('C: cats', 'cats'), consume('D: people', 'people');
BEGIN;
UPDATE kv SET v = 'awake' WHERE (ns, k) = ('cats', 'fred');
UPDATE kv SET ns = 'people' WHERE (ns, k) = ('cats', 'tom');    -- leaves one, enters the other
COMMIT;
SELECT consume('B') > 0 AS b, consume('C: cats', 'cats') > 0 AS c, consume('D: people', 'people') > 0 AS d;
SELECT consumer, ns, k, v FROM copy ORDER BY consumer, ns, k;

--
-- Two feeds in one database, each with its own order
--
INSERT INTO support_case VALUES (1, 'fred sleeps');
SELECT op, (entry).id, (entry).subject FROM feed_read(NULL::support_case, '', 10);
SELECT consume('B');                                    -- nothing of that
SELECT feed, kind, key, state FROM feedpub.feeds
	WHERE feed IN ('kv'::regclass, 'support_case'::regclass) ORDER BY feed::text;
