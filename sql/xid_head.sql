-- feed_xid_head(): the cursor of now.  A consumer that starts there gets every row that
-- is committed later, also by transactions that are open already.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
SELECT feed_create('"Odd ""Name"", with a comma"');
-- "ours" is the next xid to be assigned, when no other transaction runs.
CREATE FUNCTION head(OUT xid xid8, OUT pos bigint, OUT of_now boolean) LANGUAGE plpgsql AS $$
BEGIN
	SELECT * INTO xid, pos FROM feed_xid_head('"Odd ""Name"", with a comma"');
	of_now := xid::text::bigint = pg_snapshot_xmin(pg_current_snapshot())::text::bigint - 1;
END $$;

-- It is the last transaction id below the horizon, with the largest position;
-- of an empty feed too.
SELECT pos, of_now FROM head();

-- Nothing that was there comes after it, everything that is committed later does.
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('before', '1');
SELECT after_xid, after_pos FROM feed_xid_head('"Odd ""Name"", with a comma"') \gset
SELECT message_type FROM feed_fetch(:'after_xid', :after_pos, 100);
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('after', '2');
SELECT message_type FROM feed_fetch(:'after_xid', :after_pos, 100);
-- It moves with every transaction of the server, whether it wrote here or not.
SELECT pg_current_xact_id() AS other \gset
SELECT after_xid::text::bigint >= :other AS moved FROM feed_xid_head('"Odd ""Name"", with a comma"');

-- A transaction is open, and its row is written: it will be delivered.  The
-- largest stamp in the table would be a wrong cursor to start from.
BEGIN;
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('open', '3');
PREPARE TRANSACTION 'regress_feedpub';
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('committed meanwhile', '4');
SELECT after_xid, after_pos FROM feed_xid_head('"Odd ""Name"", with a comma"') \gset
SELECT max(feed_xid) AS naive_xid FROM "Odd ""Name"", with a comma" \gset
SELECT message_type FROM feed_fetch(:'after_xid', :after_pos, 100);
COMMIT PREPARED 'regress_feedpub';
-- One that was committed meanwhile comes as well: in xid order it is younger.
SELECT message_type FROM feed_fetch(:'after_xid', :after_pos, 100);
SELECT message_type FROM feed_fetch(:'naive_xid', 9223372036854775807, 100);

-- In a transaction that has written, the horizon is at most its own xid: its
-- own rows will come after the head.
BEGIN;
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('own', '5');
SELECT of_now, xid < pg_current_xact_id() AS below_own FROM head();
SELECT after_xid, after_pos FROM feed_xid_head('"Odd ""Name"", with a comma"') \gset
COMMIT;
SELECT message_type FROM feed_fetch(:'after_xid', :after_pos, 100);

-- With a snapshot that is kept, it is the head of that snapshot.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT after_xid, after_pos FROM feed_xid_head('"Odd ""Name"", with a comma"') \gset
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('own, repeatable read', '6');
SELECT after_xid = :'after_xid' AS same FROM feed_xid_head('"Odd ""Name"", with a comma"');
COMMIT;
SELECT message_type FROM feed_fetch(:'after_xid', :after_pos, 100);

-- In a read-only transaction, as a column, for many feeds in one query
BEGIN READ ONLY;
SELECT of_now FROM head();
ROLLBACK;
SELECT (feed_xid_head('"Odd ""Name"", with a comma"')).after_pos;
SELECT feed_create('empty');
SELECT feed, after_pos, after_xid::text::bigint = pg_snapshot_xmin(pg_current_snapshot())::text::bigint - 1 AS of_now
  FROM feedpub.feeds, feed_xid_head(feed) ORDER BY feed::text COLLATE "C";

-- To start there, a role needs SELECT on the table, of one column at least.
CREATE ROLE regress_feedpub_reader;
GRANT INSERT, DELETE ON "Odd ""Name"", with a comma" TO regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
SELECT after_pos FROM feed_xid_head('"Odd ""Name"", with a comma"');
\echo :SQLSTATE
RESET ROLE;
GRANT SELECT (message_type) ON "Odd ""Name"", with a comma" TO regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
SELECT after_pos FROM feed_xid_head('"Odd ""Name"", with a comma"');
RESET ROLE;
DROP OWNED BY regress_feedpub_reader;
DROP ROLE regress_feedpub_reader;

DROP FUNCTION head;
SELECT feed_drop('empty'), feed_drop('"Odd ""Name"", with a comma"');
