-- How rows of an outbox get their stamp, and what is refused.
--
-- feed_xid is the writer's top-level transaction id, feed_pos the next number
-- of the feed's sequence, both given by a trigger as the row is written, whatever
-- the writer says.  UPDATE is refused.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
SELECT feed_create('"Odd ""Name"", with a comma"');
-- Its rows as the tests below look at them; "mine" are those of the
-- transaction that looks.
-- Positions are shown from the last one before the rows of a section on.
CREATE TABLE start AS SELECT 0::bigint AS pos;
\set restart 'TRUNCATE "Odd ""Name"", with a comma"; UPDATE start SET pos = (SELECT last_value FROM "Odd ""Name"", with a comma_feed_pos_seq");'
CREATE VIEW stamps AS
	SELECT feed_pos - (SELECT pos FROM start) AS pos, feed_xid = pg_current_xact_id_if_assigned() AS mine, message_type AS type, data
	FROM "Odd ""Name"", with a comma" ORDER BY feed_xid, feed_pos;

--
-- INSERT
--
BEGIN;
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('one row', '1')
	RETURNING feed_xid = pg_current_xact_id() AS own_xid, feed_pos, publication_id, message_key, data, scheduled = now() AS now;
-- A message_id is a UUID of version 7, of this moment.
SELECT message_id ~ '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$' AS uuid_v7,
       abs(extract(epoch FROM clock_timestamp()) * 1000
           - ('x' || lpad(translate(left(message_id, 13), '-', ''), 16, '0'))::bit(64)::bigint) < 3600000 AS of_now
  FROM "Odd ""Name"", with a comma";
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('values', '1'), ('values', '2'), ('values', '3');
INSERT INTO "Odd ""Name"", with a comma" (message_type, data, feed_xid, feed_pos) VALUES ('asked for', '1', DEFAULT, DEFAULT);
INSERT INTO "Odd ""Name"", with a comma" VALUES (DEFAULT, DEFAULT, 'app', 'id 1', 'all columns', 'key', '{"a": 1}', '-infinity');
SELECT * FROM stamps;
COMMIT;
SELECT pos, mine FROM stamps WHERE mine;
-- An id of the writer's is kept, whatever it is; NULL is none.
BEGIN;
INSERT INTO "Odd ""Name"", with a comma" (message_id, message_type, data) VALUES ('id', 'kept', '1'), ('', 'kept', '2'), (repeat('id', 100000), 'kept', '3'), (NULL, 'kept', '4');
SELECT left(message_id, 2), length(message_id) FROM "Odd ""Name"", with a comma" WHERE message_type = 'kept' ORDER BY feed_pos;
ROLLBACK;
-- The column may be varchar.
BEGIN;
TRUNCATE "Odd ""Name"", with a comma";
ALTER TABLE "Odd ""Name"", with a comma" ALTER COLUMN message_id TYPE varchar;
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('varchar', '1') RETURNING message_id ~ '^[0-9a-f-]{36}$' AS uuid;
TRUNCATE "Odd ""Name"", with a comma";
ALTER TABLE "Odd ""Name"", with a comma" ALTER COLUMN message_id TYPE varchar(30);
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('varchar(30)', '1') RETURNING message_id IS NULL AS without;
ROLLBACK;
-- Each transaction has its own xid, and each row its own position.
SELECT count(*), count(DISTINCT feed_pos), count(DISTINCT feed_xid), count(DISTINCT message_id), count(DISTINCT right(message_id, 17)) AS random FROM "Odd ""Name"", with a comma";

-- INSERT ... SELECT: positions follow the order of the query.
:restart
INSERT INTO "Odd ""Name"", with a comma" (message_type, data)
	SELECT 'ordered', to_jsonb(i) FROM generate_series(1, 4) i ORDER BY i DESC;
INSERT INTO "Odd ""Name"", with a comma" (message_type, data)
	SELECT 'limited', to_jsonb(i) FROM generate_series(1, 100) i ORDER BY i LIMIT 2;
-- Set-returning functions give each of their rows a stamp.
INSERT INTO "Odd ""Name"", with a comma" (message_type, data)
	SELECT 'set', jsonb_array_elements('["a", "b", "c"]');
INSERT INTO "Odd ""Name"", with a comma" (message_type, data)
	SELECT 'set, ordered', jsonb_array_elements('[1, 3, 2]') ORDER BY 2 DESC;
INSERT INTO "Odd ""Name"", with a comma" (message_type, data)
	VALUES ('set in VALUES', jsonb_array_elements('["d", "e"]'));
INSERT INTO "Odd ""Name"", with a comma" (message_type, data)
	SELECT 'grouped', to_jsonb(count(*)) FROM generate_series(1, 10) i GROUP BY i % 2;
INSERT INTO "Odd ""Name"", with a comma" (message_type, data)
	SELECT 'union', '1'::jsonb UNION SELECT 'union', '1' UNION ALL SELECT 'union all', '2';
INSERT INTO "Odd ""Name"", with a comma" (message_type, data)
	SELECT 'window', to_jsonb(row_number() OVER (ORDER BY i DESC)) FROM generate_series(1, 2) i;
-- From the outbox into itself
INSERT INTO "Odd ""Name"", with a comma" (message_type, data)
	SELECT 'copy of ' || message_type, data FROM "Odd ""Name"", with a comma" WHERE feed_pos <= (SELECT pos + 2 FROM start) ORDER BY feed_pos;
SELECT row_number() OVER () AS row, type, data FROM stamps;
SELECT count(*) = count(DISTINCT feed_pos) AS unique_positions FROM "Odd ""Name"", with a comma";
:restart

-- Writing CTEs
WITH first AS (
	INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('cte', '1'), ('cte', '2') RETURNING feed_pos, data)
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) SELECT 'after cte', jsonb_build_object('pos', feed_pos - (SELECT pos FROM start)) FROM first ORDER BY feed_pos;
SELECT pos, type, data FROM stamps;

-- Prepared statements, with a plan of their own each time and a generic one
PREPARE publish AS INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ($1, $2) RETURNING feed_pos - (SELECT pos FROM start) AS feed_pos;
SET plan_cache_mode = force_custom_plan;
EXECUTE publish ('custom plan', '1');
EXECUTE publish ('custom plan', '2');
SET plan_cache_mode = force_generic_plan;
EXECUTE publish ('generic plan', '1');
EXECUTE publish ('generic plan', '2');
RESET plan_cache_mode;
DEALLOCATE publish;
SELECT count(DISTINCT feed_xid) FROM "Odd ""Name"", with a comma" WHERE message_type LIKE '%plan';
:restart

--
-- COPY
--
COPY "Odd ""Name"", with a comma" (message_type, message_key, data) FROM stdin;
copied	a	1
copied	b	2
copied	\N	3
\.
COPY "Odd ""Name"", with a comma" (message_type, data) FROM stdin (FORMAT csv);
csv,"{""a"": 1}"
\.
COPY "Odd ""Name"", with a comma" (message_type, data) FROM stdin WHERE message_type <> 'unwanted';
wanted	1
unwanted	2
wanted	3
\.
SELECT row_number() OVER () AS row, type, data FROM stamps;
SELECT count(*) = count(DISTINCT feed_pos) AS unique_positions, count(DISTINCT feed_xid),
       count(DISTINCT message_id) FROM "Odd ""Name"", with a comma";
-- Stamps that are copied in are not taken, neither both nor one of them.
COPY "Odd ""Name"", with a comma" (feed_xid, feed_pos, message_type, data) FROM stdin;
3	1000	forged	1
\N	\N	forged	2
\.
COPY "Odd ""Name"", with a comma" (feed_pos, message_type, data) FROM stdin;
1000	forged	3
\.
COPY "Odd ""Name"", with a comma" (feed_xid, message_type, data) FROM stdin;
3	forged	4
\.
SELECT feed_pos - (SELECT pos FROM start) AS feed_pos, feed_xid > '3' AS own, data FROM "Odd ""Name"", with a comma" WHERE message_type = 'forged' ORDER BY feed_pos;
:restart

--
-- MERGE inserts, and may delete, but not update.
--
CREATE TABLE source (key text PRIMARY KEY, value jsonb);
INSERT INTO source VALUES ('a', '1'), ('b', '2'), ('c', '3');
INSERT INTO "Odd ""Name"", with a comma" (message_type, message_key, data) VALUES ('there', 'a', '0'), ('there', 'x', '0');
MERGE INTO "Odd ""Name"", with a comma" o USING (SELECT * FROM source ORDER BY key) s ON o.message_key = s.key
	WHEN MATCHED THEN DELETE
	WHEN NOT MATCHED THEN INSERT (message_type, message_key, data) VALUES ('merged', s.key, s.value);
SELECT message_type, message_key, data FROM "Odd ""Name"", with a comma" ORDER BY message_key;
SELECT count(*) = count(DISTINCT feed_pos) AS unique_positions, bool_and(feed_pos > 2) AS new_positions
  FROM "Odd ""Name"", with a comma" WHERE message_type = 'merged';
MERGE INTO "Odd ""Name"", with a comma" o USING source s ON o.message_key = s.key
	WHEN MATCHED THEN UPDATE SET data = s.value
	WHEN NOT MATCHED THEN INSERT (message_type, message_key, data) VALUES ('merged', s.key, s.value);
\echo :SQLSTATE
MERGE INTO "Odd ""Name"", with a comma" o USING source s ON o.message_key = s.key
	WHEN NOT MATCHED THEN INSERT (feed_xid, feed_pos, message_type, data) VALUES ('3', 1000, 'forged', s.value);
SELECT count(*), bool_and(feed_pos < (SELECT pos + 100 FROM start) AND feed_xid > '3') AS own FROM "Odd ""Name"", with a comma" WHERE message_type = 'forged';
:restart
DROP TABLE source;

--
-- ON CONFLICT DO NOTHING is allowed, DO UPDATE is not, conflict or no conflict.
--
CREATE UNIQUE INDEX once ON "Odd ""Name"", with a comma" (message_id);
INSERT INTO "Odd ""Name"", with a comma" (message_id, message_type, data) VALUES ('m1', 'new', '1') ON CONFLICT DO NOTHING;
INSERT INTO "Odd ""Name"", with a comma" (message_id, message_type, data) VALUES ('m1', 'again', '1'), ('m2', 'new', '2'), ('m2', 'again', '2') ON CONFLICT (message_id) DO NOTHING;
INSERT INTO "Odd ""Name"", with a comma" (message_id, message_type, data) VALUES ('m3', 'new', '3') ON CONFLICT (message_id) DO UPDATE SET data = '4';
\echo :SQLSTATE
INSERT INTO "Odd ""Name"", with a comma" (message_id, message_type, data) VALUES ('m1', 'new', '3') ON CONFLICT (message_id) DO UPDATE SET data = '4';
\echo :SQLSTATE
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('new', '3') ON CONFLICT (feed_xid, feed_pos) DO UPDATE SET feed_xid = DEFAULT, feed_pos = DEFAULT;
\echo :SQLSTATE
SELECT message_id, message_type, data FROM "Odd ""Name"", with a comma" ORDER BY message_id;
DROP INDEX once;

--
-- UPDATE is refused, to the owner and superuser too, even of no row, and of
-- no more than taking a new stamp.
--
UPDATE "Odd ""Name"", with a comma" SET data = '5';
\echo :SQLSTATE
UPDATE "Odd ""Name"", with a comma" SET feed_xid = DEFAULT, feed_pos = DEFAULT;
\echo :SQLSTATE
UPDATE "Odd ""Name"", with a comma" SET feed_xid = NULL;
\echo :SQLSTATE
UPDATE "Odd ""Name"", with a comma" SET scheduled = now() WHERE false;
\echo :SQLSTATE
WITH u AS (UPDATE "Odd ""Name"", with a comma" SET data = '5' RETURNING 1) SELECT count(*) FROM u;
\echo :SQLSTATE
CREATE VIEW updatable AS SELECT message_id, data FROM "Odd ""Name"", with a comma";
UPDATE updatable SET data = '5';
\echo :SQLSTATE
-- INSERT through a view is an insert.
CREATE VIEW insertable AS SELECT message_type, data FROM "Odd ""Name"", with a comma" WHERE message_type <> 'hidden' WITH CHECK OPTION;
INSERT INTO insertable VALUES ('by view', '1');
SELECT type, data FROM stamps WHERE type = 'by view';
-- A role that may insert into the view needs no right on the table.
CREATE ROLE regress_feedpub_nobody;
GRANT SELECT, INSERT ON insertable TO regress_feedpub_nobody;
SET ROLE regress_feedpub_nobody;
INSERT INTO insertable (message_type, data) VALUES ('by view', '1') RETURNING message_type;
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('not allowed', '1');
\echo :SQLSTATE
RESET ROLE;
DROP VIEW updatable, insertable;
DROP ROLE regress_feedpub_nobody;
-- A foreign key that would update it
CREATE TABLE customer (id text PRIMARY KEY);
INSERT INTO customer VALUES ('c1');
ALTER TABLE "Odd ""Name"", with a comma" ADD FOREIGN KEY (message_key) REFERENCES customer ON UPDATE CASCADE ON DELETE CASCADE;
INSERT INTO "Odd ""Name"", with a comma" (message_type, message_key, data) VALUES ('of customer', 'c1', '1');
\set VERBOSITY terse
UPDATE customer SET id = 'c2';
\set VERBOSITY default
\echo :SQLSTATE
SELECT type, message_key FROM stamps JOIN "Odd ""Name"", with a comma" ON feed_pos = pos + (SELECT pos FROM start) WHERE message_key IS NOT NULL;
-- DELETE is allowed, by cascade too.
DELETE FROM customer;
SELECT count(*) FROM "Odd ""Name"", with a comma" WHERE message_type = 'of customer';
ALTER TABLE "Odd ""Name"", with a comma" DROP CONSTRAINT "Odd ""Name"", with a comma_message_key_fkey";
DROP TABLE customer;
DELETE FROM "Odd ""Name"", with a comma" WHERE message_type = 'by view';
SELECT type, data FROM stamps;
-- A row may be locked, as a queue of workers does.
SELECT count(*) FROM (SELECT FROM "Odd ""Name"", with a comma" FOR UPDATE SKIP LOCKED) locked;
-- Replica roles are no way around the triggers.
SET session_replication_role = replica;
UPDATE "Odd ""Name"", with a comma" SET data = '5';
\echo :SQLSTATE
BEGIN;
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('replica', '1');
INSERT INTO "Odd ""Name"", with a comma" (feed_xid, feed_pos, message_type, data) VALUES ('3', 1000, 'replica', '2');
SELECT mine, pos < 1000 AS next, type FROM stamps WHERE type = 'replica';
COMMIT;
RESET session_replication_role;
-- TRUNCATE is DELETE of all.  Positions go on.
SELECT last_value AS before FROM "Odd ""Name"", with a comma_feed_pos_seq" \gset
TRUNCATE "Odd ""Name"", with a comma";
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('after truncate', '1') RETURNING feed_pos > :before AS goes_on;
TRUNCATE "Odd ""Name"", with a comma";

--
-- No stamp is forged: the writer's is not taken, not the superuser's either.
--
BEGIN;
INSERT INTO "Odd ""Name"", with a comma" (feed_pos, message_type, data) VALUES (1, 'forged', '1');
INSERT INTO "Odd ""Name"", with a comma" (feed_xid, message_type, data) VALUES ('3', 'forged', '2');
INSERT INTO "Odd ""Name"", with a comma" (feed_xid, message_type, data)
	VALUES ((pg_current_xact_id()::text::bigint + 1)::text::xid8, 'forged', '3');
INSERT INTO "Odd ""Name"", with a comma" (feed_xid, feed_pos, message_type, data) OVERRIDING SYSTEM VALUE VALUES ('3', 1000, 'forged', '4');
INSERT INTO "Odd ""Name"", with a comma" (feed_xid, feed_pos, message_type, data) OVERRIDING USER VALUE VALUES ('3', 1000, 'forged', '5');
INSERT INTO "Odd ""Name"", with a comma" (feed_pos, message_type, data) VALUES (DEFAULT, 'forged', '6'), (1000, 'forged', '7');
INSERT INTO "Odd ""Name"", with a comma" (feed_xid, feed_pos, message_type, data) VALUES (NULL, NULL, 'forged', '8');
INSERT INTO "Odd ""Name"", with a comma" (feed_pos, message_type, data)
	SELECT 1000, 'forged', to_jsonb(i) FROM generate_series(9, 10) i;
SELECT * FROM stamps;
ROLLBACK;
-- The trigger functions elsewhere: on tables that are no feeds, for other
-- events, by hand
CREATE TABLE plain (id serial, t text);
CREATE TABLE alike (feed_xid xid8, feed_pos bigint, t text);
CREATE TABLE other_types (feed_xid xid, feed_pos serial, t text);
CREATE VIEW instead AS SELECT * FROM alike;
CREATE TRIGGER wrong BEFORE INSERT OR UPDATE ON plain FOR EACH ROW EXECUTE FUNCTION feedpub._stamp_message();
CREATE TRIGGER wrong BEFORE INSERT OR UPDATE ON alike FOR EACH ROW EXECUTE FUNCTION feedpub._stamp_message('an argument', '');
CREATE TRIGGER wrong BEFORE INSERT OR UPDATE ON other_types FOR EACH ROW EXECUTE FUNCTION feedpub._stamp_row('no column', '');
CREATE TRIGGER wrong INSTEAD OF INSERT ON instead FOR EACH ROW EXECUTE FUNCTION feedpub._stamp_message();
INSERT INTO plain (t) VALUES ('x');
\echo :SQLSTATE
INSERT INTO alike (t) VALUES ('x');
\echo :SQLSTATE
INSERT INTO other_types (t) VALUES ('x');
\echo :SQLSTATE
INSERT INTO instead (t) VALUES ('x');
\echo :SQLSTATE
UPDATE plain SET t = 'x';
CREATE TRIGGER wrong_too BEFORE INSERT ON plain FOR EACH STATEMENT EXECUTE FUNCTION feedpub._stamp_message();
\set VERBOSITY sqlstate
INSERT INTO plain (t) VALUES ('x');
CREATE OR REPLACE TRIGGER wrong_too BEFORE INSERT ON plain FOR EACH STATEMENT EXECUTE FUNCTION feedpub._stamp_row();
INSERT INTO plain (t) VALUES ('x');
CREATE OR REPLACE TRIGGER wrong_too AFTER UPDATE ON alike FOR EACH STATEMENT EXECUTE FUNCTION feedpub._stamp_message();
UPDATE alike SET t = 'x';
CREATE OR REPLACE TRIGGER wrong_too BEFORE DELETE ON alike FOR EACH STATEMENT EXECUTE FUNCTION feedpub._stamp_message();
DELETE FROM alike;
SELECT feedpub._stamp_message();
SELECT feedpub._stamp_row();
SELECT feedpub._note_delete();
SELECT feedpub._note_truncate();
\set VERBOSITY default
-- A table of one's own, made like an outbox, has positions of its own sequence.
ALTER TABLE alike ALTER COLUMN t SET NOT NULL;
CREATE SEQUENCE own OWNED BY alike.feed_pos;
INSERT INTO alike (feed_pos, t) VALUES (1000, 'x') RETURNING feed_xid = pg_current_xact_id() AS own, feed_pos <> 1000 AS own_pos;
SELECT count(*) > 0 AS named FROM feed_check('alike');
DROP TABLE plain, alike, other_types CASCADE;
--
-- A writer needs INSERT on the table and no right on the sequence.
--
CREATE ROLE regress_feedpub_writer;
GRANT INSERT ON "Odd ""Name"", with a comma" TO regress_feedpub_writer;
SET ROLE regress_feedpub_writer;
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('by the writer', '1');
COPY "Odd ""Name"", with a comma" (message_type, data) FROM stdin;
copied by the writer	1
\.
SELECT nextval('"Odd ""Name"", with a comma_feed_pos_seq"');
\echo :SQLSTATE
RESET ROLE;
SELECT type, data FROM stamps;
-- The way that the trigger takes positions is no way to others' sequences.
GRANT CREATE ON SCHEMA public TO regress_feedpub_writer;
SET ROLE regress_feedpub_writer;
CREATE TABLE lure (feed_xid xid8, feed_pos bigint DEFAULT nextval('"Odd ""Name"", with a comma_feed_pos_seq"'));
CREATE TRIGGER stamp BEFORE INSERT ON lure FOR EACH ROW EXECUTE FUNCTION feedpub._stamp_message();
INSERT INTO lure (feed_pos) VALUES (1);
\echo :SQLSTATE
ALTER SEQUENCE "Odd ""Name"", with a comma_feed_pos_seq" OWNED BY lure.feed_pos;
\echo :SQLSTATE
DROP TABLE lure;
RESET ROLE;
REVOKE CREATE ON SCHEMA public FROM regress_feedpub_writer;
DROP OWNED BY regress_feedpub_writer;
DROP ROLE regress_feedpub_writer;
:restart

--
-- Savepoints: the xid is the top one, whatever the depth, and rows that are
-- rolled back leave nothing but unused positions.
--
BEGIN;
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('top', '1');
SAVEPOINT a;
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('in a', '2');
SAVEPOINT b;
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('in b, rolled back', '3');
ROLLBACK TO b;
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('in b', '4');
RELEASE a;
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('top again', '5');
SELECT * FROM stamps;
COMMIT;
-- The xid is not taken in a savepoint when the first row is.
BEGIN;
SAVEPOINT a;
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('first in savepoint', '1');
ROLLBACK TO a;
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('and after it', '1');
SELECT pos, mine, type FROM stamps WHERE mine;
COMMIT;
DO $$
BEGIN
	FOR i IN 1..5 LOOP
		BEGIN
			INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('in a block', to_jsonb(i));
			IF i % 2 = 0 THEN RAISE 'no'; END IF;
		EXCEPTION WHEN raise_exception THEN NULL;
		END;
	END LOOP;
END $$;
SELECT pos, type, data FROM stamps WHERE type = 'in a block';
SELECT count(DISTINCT feed_xid) FROM "Odd ""Name"", with a comma" WHERE message_type = 'in a block';
:restart

--
-- Triggers of the user's own on the outbox
--
-- One that inserts into the same outbox, several deep: before the outer row has
-- its position, or after it.
CREATE FUNCTION chain() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF (NEW.data ->> 'left')::int > 0 THEN
		INSERT INTO "Odd ""Name"", with a comma" (message_type, data)
			VALUES (TG_WHEN || ' ' || NEW.message_type, jsonb_build_object('left', (NEW.data ->> 'left')::int - 1));
	END IF;
	RETURN NEW;
END $$;
CREATE TRIGGER chain BEFORE INSERT ON "Odd ""Name"", with a comma" FOR EACH ROW EXECUTE FUNCTION chain();
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('a', '{"left": 2}'), ('b', '{"left": 1}'), ('c', '{}');
COPY "Odd ""Name"", with a comma" (message_type, data) FROM stdin;
d	{"left": 1}
e	{"left": 1}
\.
SELECT pos, type, data FROM stamps;
DROP TRIGGER chain ON "Odd ""Name"", with a comma";
:restart
CREATE TRIGGER chain AFTER INSERT ON "Odd ""Name"", with a comma" FOR EACH ROW EXECUTE FUNCTION chain();
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('a', '{"left": 2}'), ('b', '{"left": 1}');
SELECT pos, type, data FROM stamps;
DROP TRIGGER chain ON "Odd ""Name"", with a comma";
:restart
-- One that drops rows
CREATE FUNCTION drop_odd() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RETURN CASE WHEN (NEW.data)::int % 2 = 0 THEN NEW END;
END $$;
CREATE TRIGGER drop_odd BEFORE INSERT ON "Odd ""Name"", with a comma" FOR EACH ROW EXECUTE FUNCTION drop_odd();
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) SELECT 'even', to_jsonb(i) FROM generate_series(1, 3000) i;
COPY "Odd ""Name"", with a comma" (message_type, data) FROM stdin;
even, copied	1
even, copied	2
even, copied	3
even, copied	4
\.
SELECT message_type, count(*), min(feed_pos) - (SELECT pos FROM start) AS min, max(feed_pos) - (SELECT pos FROM start) AS max, bool_and(data::int % 2 = 0) AS even FROM "Odd ""Name"", with a comma" GROUP BY 1 ORDER BY 1;
DROP TRIGGER drop_odd ON "Odd ""Name"", with a comma";
DROP FUNCTION drop_odd;
:restart
-- One that changes the stamp does so in vain, unless it comes after ours.
CREATE FUNCTION forge() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	NEW.feed_pos := 1000;
	RETURN NEW;
END $$;
CREATE TRIGGER forge BEFORE INSERT ON "Odd ""Name"", with a comma" FOR EACH ROW EXECUTE FUNCTION forge();
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('forged', '1');
SELECT * FROM stamps;
SELECT * FROM feed_check('"Odd ""Name"", with a comma"');
ALTER TRIGGER forge ON "Odd ""Name"", with a comma" RENAME TO zzz_forge;
SELECT * FROM feed_check('"Odd ""Name"", with a comma"');
DROP TRIGGER zzz_forge ON "Odd ""Name"", with a comma";
DROP FUNCTION forge, chain;
-- A trigger may write a second row, and drop it again.
CREATE FUNCTION chain_and_drop() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF NEW.message_type = 'second' THEN
		RETURN NULL;
	END IF;
	INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('second', '0');
	RETURN NEW;
END $$;
CREATE TRIGGER chain_and_drop BEFORE INSERT ON "Odd ""Name"", with a comma" FOR EACH ROW EXECUTE FUNCTION chain_and_drop();
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) VALUES ('first', '1'), ('first', '2');
SELECT type, data FROM stamps WHERE type IN ('first', 'second') ORDER BY data;
DROP TRIGGER chain_and_drop ON "Odd ""Name"", with a comma";
DROP FUNCTION chain_and_drop;
-- A trigger on another table of the application is the usual writer.
CREATE TABLE orders (id int PRIMARY KEY, status text);
CREATE FUNCTION publish_order() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO "Odd ""Name"", with a comma" (message_type, message_key, data) VALUES ('order ' || NEW.status, NEW.id, to_jsonb(NEW));
	RETURN NULL;
END $$;
CREATE TRIGGER publish AFTER INSERT OR UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION publish_order();
INSERT INTO orders VALUES (1, 'placed'), (2, 'placed');
UPDATE orders SET status = 'paid' WHERE id = 2;
INSERT INTO orders VALUES (1, 'again'), (3, 'placed') ON CONFLICT (id) DO UPDATE SET status = 'shipped';
SELECT pos, type, data FROM stamps;
DROP TABLE orders;
DROP FUNCTION publish_order;

DROP VIEW stamps;
DROP TABLE start;
SELECT feed_drop('"Odd ""Name"", with a comma"');
-- Each of many ids
SELECT feed_create('ids');
INSERT INTO ids (message_type, data) SELECT 'n', '1' FROM generate_series(1, 100);
SELECT count(DISTINCT message_id) AS ids, bool_and(message_id ~ '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$') AS uuid_v7 FROM ids;
SELECT feed_drop('ids');
