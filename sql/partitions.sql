-- An outbox is a plain table.  As a partition, as a child or a parent of
-- another table it can still be read and is still guarded, but rows may be
-- written where it does not look: feed_check() names that.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
SELECT feed_create('"Odd ""Name"", with a comma"');
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('odd', '1');

--
-- A partition
--
CREATE TABLE parent (LIKE "Odd ""Name"", with a comma") PARTITION BY LIST (message_type);
CREATE TABLE rest PARTITION OF parent DEFAULT;
ALTER TABLE parent ATTACH PARTITION "Odd ""Name"", with a comma" FOR VALUES IN ('odd', 'strange');
SELECT * FROM feed_check('"Odd ""Name"", with a comma"');
-- Read and written as before
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('odd', '2');
SELECT feed_pos, message_type, data FROM feed_fetch(NULL::"Odd ""Name"", with a comma", '0', 0, 100);
SELECT feed_pos, message_type, data FROM feed_fetch('0', 0, 100);
-- The parent is no feed.
SELECT * FROM feed_fetch(NULL::parent, '0', 0, 100);
\echo :SQLSTATE
-- A row that is inserted through the parent is stamped, whatever the parent's
-- defaults are.
INSERT INTO parent (message_id, message_type, data, publication_id, scheduled) VALUES ('1', 'odd', '3', '', now());
INSERT INTO parent (feed_xid, feed_pos, message_id, message_type, data, publication_id, scheduled) VALUES ('3', 1000, '1', 'odd', '3', '', now());
ALTER TABLE parent
	ALTER COLUMN feed_xid SET DEFAULT pg_current_xact_id(),
	ALTER COLUMN feed_pos SET DEFAULT 0,
	ALTER COLUMN message_id SET DEFAULT gen_random_uuid()::text,
	ALTER COLUMN publication_id SET DEFAULT '',
	ALTER COLUMN scheduled SET DEFAULT now();
INSERT INTO parent (message_type, data) VALUES ('odd', '4'), ('else', '5'), ('strange', '6'), ('else', '7');
COPY parent (message_type, data) FROM stdin;
odd	8
else	9
strange	10
\.
SELECT message_type, data FROM feed_fetch('0', 0, 100);
-- An UPDATE through the parent calls no triggers of statements on the partition,
-- but those of rows.  A row that comes by one is inserted; none leaves by one.
UPDATE parent SET data = '0' WHERE message_type = 'odd';
\echo :SQLSTATE
UPDATE parent SET message_type = 'odd' WHERE message_type = 'else' AND data = '9';
UPDATE parent SET message_type = 'else' WHERE data = '10';
\echo :SQLSTATE
INSERT INTO parent (message_type, data) VALUES ('odd', '4') ON CONFLICT DO NOTHING;
-- Rows may be deleted.
DELETE FROM parent WHERE data = '8';
SELECT message_type, data FROM feed_fetch('0', 0, 100);
SELECT message_type, data FROM rest ORDER BY data;
-- A partition that is made after the outbox was attached has nothing of its guards.
CREATE TABLE another PARTITION OF parent FOR VALUES IN ('another');
SELECT count(*) FROM pg_trigger WHERE tgrelid = 'another'::regclass;
-- Detached, all is as it was.
ALTER TABLE parent DETACH PARTITION "Odd ""Name"", with a comma";
SELECT * FROM feed_check('"Odd ""Name"", with a comma"');
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('odd', '11');
SELECT message_type, data FROM feed_fetch('0', 0, 100);
DROP TABLE parent;

--
-- A child
--
TRUNCATE "Odd ""Name"", with a comma" RESTART IDENTITY;
CREATE TABLE parent (message_type text, data jsonb);
ALTER TABLE "Odd ""Name"", with a comma" INHERIT parent;
SELECT guard FROM feed_check('"Odd ""Name"", with a comma"');
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('odd', '1');
INSERT INTO parent VALUES ('not in the feed', '2');
SELECT message_type, data FROM feed_fetch('0', 0, 100);
UPDATE parent SET data = '3';
\echo :SQLSTATE
UPDATE ONLY parent SET data = '3';
SELECT message_type, data FROM parent ORDER BY data;
ALTER TABLE "Odd ""Name"", with a comma" NO INHERIT parent;
DROP TABLE parent;
SELECT * FROM feed_check('"Odd ""Name"", with a comma"');

--
-- A parent: the rows of its children are not part of the feed.
--
CREATE TABLE child () INHERITS ("Odd ""Name"", with a comma");
SELECT guard FROM feed_check('"Odd ""Name"", with a comma"');
INSERT INTO child (message_type, data) VALUES ('of the child', '2');
SELECT message_type, data FROM "Odd ""Name"", with a comma" ORDER BY data;
SELECT message_type, data FROM feed_fetch('0', 0, 100);
SELECT message_type, data FROM feed_fetch(NULL::"Odd ""Name"", with a comma", '0', 0, 100);
-- Through the planner as well
CREATE ROLE regress_feedpub_reader;
GRANT SELECT ON "Odd ""Name"", with a comma" TO regress_feedpub_reader;
ALTER TABLE "Odd ""Name"", with a comma" ENABLE ROW LEVEL SECURITY;
CREATE POLICY all_rows ON "Odd ""Name"", with a comma" USING (true);
SET ROLE regress_feedpub_reader;
SELECT message_type, data FROM feed_fetch('0', 0, 100);
SELECT message_type, data FROM feed_fetch(NULL::"Odd ""Name"", with a comma", '0', 0, 100);
RESET ROLE;
DROP OWNED BY regress_feedpub_reader;
DROP ROLE regress_feedpub_reader;
SELECT message_type FROM feed_fetch(NULL::child, '0', 0, 100);
\echo :SQLSTATE
DROP TABLE child;
SELECT * FROM feed_check('"Odd ""Name"", with a comma"');

--
-- A partitioned table cannot be a feed by being made like one.
--
CREATE TABLE parent (LIKE "Odd ""Name"", with a comma" INCLUDING ALL) PARTITION BY RANGE (feed_xid);
SELECT feed_check('parent');
\echo :SQLSTATE
SELECT feed_repair('parent');
\echo :SQLSTATE
DROP TABLE parent;

SELECT feed_drop('"Odd ""Name"", with a comma"');
