-- A consumer that starts at '' and applies what it reads to an empty table ends
-- up with the same rows as the table that is published, however it reads.
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
CREATE EXTENSION dblink;
SELECT dblink_connect('late', format('dbname=%L user=%L host=%L port=%L', current_database(), current_user,
	split_part(current_setting('unix_socket_directories'), ',', 1), current_setting('port')));

-- The table: v is published; note is not, and has an index of its own, so that
-- an UPDATE of note gives a row a second entry in the index on the stamp.
CREATE TABLE "Odd ""Name"", with a comma" (id int PRIMARY KEY, v text, note int);
CREATE INDEX ON "Odd ""Name"", with a comma" (note);
INSERT INTO "Odd ""Name"", with a comma" SELECT i, 'initial ' || i, i FROM generate_series(1, 500) i;
SELECT feed_attach('"Odd ""Name"", with a comma"', columns => '{v}');

-- Its consumers: each reads pages of a size, some of them only one of three
-- shards into a copy that they share, and keeps its cursor with its copy.
CREATE TABLE consumer (name text, max_rows int, shard int, shards int, cursor text DEFAULT '', pages int DEFAULT 0, copy text);
INSERT INTO consumer (name, max_rows) VALUES ('ones', 1), ('threes', 3), ('thousands', 1000), ('patient', 7);
INSERT INTO consumer VALUES ('shard 0', 2, 0, 3), ('shard 1', 10, 1, 3), ('shard 2', 1000, 2, 3);
UPDATE consumer SET copy = CASE WHEN shards IS NULL THEN name ELSE 'shards' END;
CREATE TABLE copy (copy text, id int, v text, PRIMARY KEY (copy, id));

-- One page of a consumer, or all until there is nothing
CREATE PROCEDURE consume(who text, max_pages int) LANGUAGE plpgsql AS $$
DECLARE
	c consumer;
	r record;
	next text;
BEGIN
	FOR i IN 1..max_pages LOOP
		SELECT * INTO c FROM consumer WHERE name = who;
		next := NULL;
		FOR r IN SELECT * FROM feed_read(NULL::"Odd ""Name"", with a comma", c.cursor, c.max_rows, c.shard, c.shards) LOOP
			CASE r.op
				WHEN 'upsert' THEN
					INSERT INTO copy VALUES (c.copy, (r.entry).id, (r.entry).v) ON CONFLICT ON CONSTRAINT copy_pkey DO UPDATE SET v = excluded.v;
				WHEN 'delete' THEN
					DELETE FROM copy WHERE copy = c.copy AND id = (r.entry).id;
				WHEN 'truncate', 'truncate_shard' THEN
					-- each shard's reader gets it, in its own time: its keys only
					DELETE FROM copy WHERE copy = c.copy AND (c.shards IS NULL OR shard_of(id, c.shards) = c.shard);
				WHEN 'end' THEN
			END CASE;
			next := r.cursor;
		END LOOP;
		EXIT WHEN next IS NULL;
		UPDATE consumer SET cursor = next, pages = pages + 1 WHERE name = who;
		COMMIT;
	END LOOP;
END $$;
-- The shard of a key, as it is documented
CREATE FUNCTION shard_of(id int, shards int) RETURNS int LANGUAGE sql AS $$
	SELECT (('x' || encode(substr(sha256(convert_to(id::text, 'UTF8')), 1, 4), 'hex'))::bit(32)::bigint % shards)::int
$$;
-- What differs between the table and the copies: nothing, or how many rows of which
CREATE FUNCTION differences() RETURNS TABLE (of text, missing bigint, surplus bigint) LANGUAGE sql AS $$
	SELECT c.copy, (SELECT count(*) FROM (SELECT id, v FROM "Odd ""Name"", with a comma" EXCEPT SELECT id, v FROM copy WHERE copy = c.copy) x),
		(SELECT count(*) FROM (SELECT id, v FROM copy WHERE copy = c.copy EXCEPT SELECT id, v FROM "Odd ""Name"", with a comma") x)
	FROM (SELECT DISTINCT copy FROM consumer) c ORDER BY c.copy
$$;
-- Random changes, each a transaction of one to three statements, some in a
-- savepoint, some of those rolled back; now and then a batch; now and then a
-- consumer reads on.  A key is below 700, so that it often comes again.
CREATE PROCEDURE change(steps int) LANGUAGE plpgsql AS $$
DECLARE
	a int;
	b int;
	what float8;
	c text;
BEGIN
	FOR i IN 1..steps LOOP
		FOR j IN 1 .. 1 + floor(random() * 3) LOOP
			a := floor(random() * 700);
			b := floor(random() * 700);
			what := random();
			BEGIN
				IF what < 0.25 THEN
					INSERT INTO "Odd ""Name"", with a comma" VALUES (a, 'inserted ' || i, b) ON CONFLICT (id) DO UPDATE SET v = excluded.v;
				ELSIF what < 0.45 THEN
					UPDATE "Odd ""Name"", with a comma" SET v = 'updated ' || i WHERE id BETWEEN a AND a + 5;
				ELSIF what < 0.60 THEN
					UPDATE "Odd ""Name"", with a comma" SET note = b WHERE id BETWEEN a AND a + 30;
				ELSIF what < 0.75 THEN
					DELETE FROM "Odd ""Name"", with a comma" WHERE id BETWEEN a AND a + 3;
				ELSIF what < 0.85 THEN
					UPDATE "Odd ""Name"", with a comma" SET id = b WHERE id = a;
				ELSIF what < 0.95 THEN
					UPDATE "Odd ""Name"", with a comma" SET feed_xid = NULL WHERE id BETWEEN a AND a + 2;
				ELSE
					-- deleted and inserted again with another value
					DELETE FROM "Odd ""Name"", with a comma" WHERE id = a;
					INSERT INTO "Odd ""Name"", with a comma" VALUES (a, 'again ' || i, b);
				END IF;
				IF random() < 0.1 THEN
					RAISE division_by_zero;
				END IF;
			EXCEPTION WHEN unique_violation OR division_by_zero THEN
			END;
		END LOOP;
		COMMIT;
		IF random() < 0.15 THEN
			CALL feed_publish('"Odd ""Name"", with a comma"');
		END IF;
		IF random() < 0.5 THEN
			SELECT name INTO c FROM consumer WHERE name <> 'patient' ORDER BY random(), name LIMIT 1;
			CALL consume(c, 1 + floor(random() * 20)::int);
		END IF;
	END LOOP;
END $$;

SELECT setseed(0.4);
CALL change(100);
-- A transaction that takes long, and changes rows that the others leave alone:
-- published when it ends, after those that began later
INSERT INTO "Odd ""Name"", with a comma" SELECT i, 'for the late one', i FROM generate_series(1000, 1010) i;
SELECT dblink_exec('late', 'BEGIN'), dblink_exec('late', $$UPDATE "Odd ""Name"", with a comma" SET v = 'late' WHERE id BETWEEN 1000 AND 1004$$), dblink_exec('late', $$DELETE FROM "Odd ""Name"", with a comma" WHERE id = 1005$$);
CALL change(150);
SELECT dblink_exec('late', $$UPDATE "Odd ""Name"", with a comma" SET id = 2000 WHERE id = 1006$$), dblink_exec('late', 'COMMIT');
CALL change(100);
VACUUM "Odd ""Name"", with a comma";
CALL change(100);
-- Some are still in the initial snapshot here, others are not; then the rows move.
SELECT count(*) FILTER (WHERE cursor = '' OR substr(cursor, 8, 1) < 'V' COLLATE "C") > 0 AS in_initial, count(*) FILTER (WHERE substr(cursor, 8, 7) > 'V-----0' COLLATE "C") > 0 AS beyond FROM consumer;
VACUUM FULL "Odd ""Name"", with a comma";
CALL change(100);
CALL feed_publish('"Odd ""Name"", with a comma"');
CREATE PROCEDURE drain() LANGUAGE plpgsql AS $$
DECLARE
	who text;
BEGIN
	FOR who IN SELECT name FROM consumer ORDER BY name LOOP
		CALL consume(who, 100000);
	END LOOP;
END $$;
CALL drain();
SELECT count(*) > 100 AS many FROM "Odd ""Name"", with a comma";
SELECT * FROM differences();
SELECT name FROM consumer WHERE pages = 0 OR feedpub._cursor_compare(cursor, feed_head('"Odd ""Name"", with a comma"')) <> 0;
-- Emptied, and filled again
CALL change(20);
TRUNCATE "Odd ""Name"", with a comma";
CALL change(150);
CALL feed_publish('"Odd ""Name"", with a comma"');
CALL drain();
SELECT * FROM differences();
-- A consumer that begins only now gets the same.
UPDATE consumer SET cursor = '';
DELETE FROM copy;
CALL drain();
SELECT * FROM differences();
-- xid order has the same rows, which all are stamped since the TRUNCATE, but no deletes.
SELECT count(*) FROM ((SELECT id, v FROM "Odd ""Name"", with a comma" EXCEPT SELECT id, v FROM feed_fetch(NULL::"Odd ""Name"", with a comma", '0', 0, 10000))
	UNION ALL (SELECT id, v FROM feed_fetch(NULL::"Odd ""Name"", with a comma", '0', 0, 10000) EXCEPT SELECT id, v FROM "Odd ""Name"", with a comma")) x;
-- Every row has a stamp of its own.
SELECT count(*) - count(DISTINCT feed_pos) AS twice, count(*) - count(feed_xid) AS unstamped FROM "Odd ""Name"", with a comma";

SELECT dblink_disconnect('late');
DROP EXTENSION dblink;
DROP PROCEDURE drain, change, consume;
DROP FUNCTION differences, shard_of;
SELECT feed_detach('"Odd ""Name"", with a comma"');
DROP TABLE "Odd ""Name"", with a comma", consumer, copy;
