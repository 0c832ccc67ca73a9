-- The README's first minute.
SET feedpub.read_wait = '30 s';  -- for a machine that is busy with other tests
CREATE EXTENSION feedpub;
SELECT feed_create('outbox');
INSERT INTO outbox (message_type, data) VALUES ('OrderPlaced', '{"order": 1}');
SELECT feed_page('outbox', '', 100)                         -- a page as JSON
\gset
-- The page holds an id and a time, so here is what does not vary of it.  It is
-- not empty although the row was not published yet: the read waited for the
-- worker that it started.
SELECT entry -> 'row' ->> 'message_type' AS message_type, entry -> 'row' -> 'data' AS data
  FROM json_array_elements(:'feed_page'::json -> 'entries') entry;
SELECT :'feed_page'::json ->> 'cursor' = feed_head('outbox') AS at_head,
       :'feed_page'::json ->> 'more' AS more;
SELECT op, (entry).message_type, (entry).data               -- the same as rows
  FROM feed_read(NULL::outbox, '', 100);
-- A consumer goes on after the last row, and waits when there is nothing.
SELECT op FROM feed_read(NULL::outbox, feed_head('outbox'), 100);
SELECT feed_wait('outbox', feed_head('outbox'), '0 s');
SELECT feed_wait('outbox', '', '30 s');
-- xid order
SELECT message_type, data FROM feed_fetch('0', 0, 100);
SELECT message_type, data FROM feed_fetch(NULL::outbox, '0', 0, 100);
SELECT f.* FROM feed_xid_head('outbox') h,
  LATERAL feed_fetch(h.after_xid, h.after_pos, 100) f;
SELECT feed_drop('outbox');
-- Any table as a feed
CREATE TABLE kv (k text PRIMARY KEY, v text);
INSERT INTO kv VALUES ('first', 'there before'), ('second', 'there as well');
SELECT feed_attach('kv');                                         -- NULL: ready
UPDATE kv SET v = 'jim' WHERE k = 'first';
SELECT op, (entry).k, (entry).v FROM feed_read(NULL::kv, '', 1);
SELECT max(cursor COLLATE "C") AS cursor
  FROM feed_read(NULL::kv, (SELECT cursor FROM feed_read(NULL::kv, '', 1)), 100) \gset
DELETE FROM kv WHERE k = 'first';
SELECT feed_wait('kv', :'cursor', '30 s');
SELECT op, (entry).k, (entry).v FROM feed_read(NULL::kv, feed_head('kv'), 100);
SELECT feed_detach('kv');
DROP TABLE kv;
