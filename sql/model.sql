-- feed_fetch() against its specification in plain SQL, on random feeds: the
-- same rows in the same order, for every cursor and several limits.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
-- The comparison's own query is not worth compiling.
SET jit = off;
SELECT feed_create('"Odd ""Name"", with a comma"');
ALTER TABLE "Odd ""Name"", with a comma" RENAME TO model_feed;

-- What the transaction itself has deleted, which its reads show as before
CREATE TABLE removed (LIKE model_feed);
-- xid order, the specification
CREATE FUNCTION model_fetch(after_xid xid8, after_pos bigint, lim int) RETURNS SETOF model_feed
LANGUAGE sql STABLE AS $$
	SELECT * FROM (TABLE model_feed UNION ALL TABLE removed) m
	WHERE (feed_xid, feed_pos) > (after_xid, after_pos)
	  AND feed_xid < pg_snapshot_xmin(pg_current_snapshot())
	ORDER BY feed_xid, feed_pos
	LIMIT lim
$$;

-- Random transactions of 1 to 9 rows, in blocks of savepoints, some of which
-- are rolled back; whole transactions rolled back; rows deleted again.
CREATE TABLE stamp (feed_xid xid8, feed_pos bigint);	-- all that were ever given, and survived
CREATE PROCEDURE write_randomly(transactions int) LANGUAGE plpgsql AS $$
BEGIN
	FOR t IN 1..transactions LOOP
		FOR block IN 1..1 + floor(random() * 3)::int LOOP
			BEGIN
				INSERT INTO model_feed (message_type, message_key, data)
					SELECT 'random', floor(random() * 5)::text, to_jsonb(random())
					  FROM generate_series(1, 1 + floor(random() * 3)::int);
				IF random() < 0.25 THEN
					RAISE 'rolled back';
				END IF;
			EXCEPTION WHEN raise_exception THEN NULL;
			END;
		END LOOP;
		INSERT INTO stamp SELECT feed_xid, feed_pos FROM model_feed WHERE feed_xid = pg_current_xact_id_if_assigned();
		IF random() < 0.2 THEN
			DELETE FROM model_feed WHERE feed_pos IN (SELECT feed_pos FROM stamp ORDER BY random() LIMIT 3);
		END IF;
		IF random() < 0.2 THEN
			ROLLBACK;
		ELSE
			COMMIT;
		END IF;
	END LOOP;
END $$;

-- All cursors: the beginning, every stamp, those before the first and after
-- the last row of each transaction
CREATE VIEW cursors AS
	SELECT '0'::xid8 AS x, 0::bigint AS p
	UNION SELECT feed_xid, feed_pos FROM stamp
	UNION SELECT feed_xid, 0 FROM stamp
	UNION SELECT feed_xid, 9223372036854775807 FROM stamp;

-- The differences: rows of one that the other has not at that number.
CREATE FUNCTION compare(OUT cursors_and_limits boolean, OUT rows_compared boolean, OUT differences bigint) LANGUAGE sql AS $$
	SELECT count(*) > 500, sum(d.n) > 1000, sum(d.differences)
	  FROM cursors c, unnest(array[1, 7, 100000]) lim,
	       LATERAL (
			WITH fetched AS (SELECT row_number() OVER () AS nth, f.* FROM feed_fetch(NULL::model_feed, c.x, c.p, lim) f),
			     by_default AS (SELECT row_number() OVER () AS nth, f.* FROM feed_fetch(c.x, c.p, lim) f),
			     model AS (SELECT row_number() OVER () AS nth, m.* FROM model_fetch(c.x, c.p, lim) m)
			SELECT (SELECT count(*) FROM model) AS n,
			       (SELECT count(*) FROM (TABLE fetched EXCEPT ALL TABLE model) a)
			       + (SELECT count(*) FROM (TABLE model EXCEPT ALL TABLE fetched) b)
			       + (SELECT count(*) FROM (TABLE by_default EXCEPT ALL TABLE model) c)
			       + (SELECT count(*) FROM (TABLE model EXCEPT ALL TABLE by_default) d) AS differences) d
$$;

SELECT setseed(0.5);
CALL write_randomly(50);
SELECT count(*) > 100 AS rows, count(DISTINCT feed_xid) > 30 AS transactions FROM model_feed;
SELECT * FROM compare();

-- A prepared transaction holds back what was written after it began, and its
-- own rows, which come first among those.
BEGIN;
INSERT INTO model_feed (message_type, data) VALUES ('prepared', '1'), ('prepared', '2');
INSERT INTO stamp SELECT feed_xid, feed_pos FROM model_feed WHERE message_type = 'prepared';
PREPARE TRANSACTION 'regress_feedpub 1';
CALL write_randomly(20);
BEGIN;
INSERT INTO model_feed (message_type, data) VALUES ('prepared, rolled back', '3');
PREPARE TRANSACTION 'regress_feedpub 2';
CALL write_randomly(20);
SELECT * FROM compare();
SELECT count(*) < (SELECT count(*) FROM model_feed) AS held_back FROM feed_fetch('0', 0, 100000);
COMMIT PREPARED 'regress_feedpub 1';
SELECT * FROM compare();
SELECT count(*) < (SELECT count(*) FROM model_feed) AS held_back FROM feed_fetch('0', 0, 100000);
ROLLBACK PREPARED 'regress_feedpub 2';
SELECT * FROM compare();
SELECT count(*) < (SELECT count(*) FROM model_feed) AS held_back FROM feed_fetch('0', 0, 100000);

-- From inside a transaction that has written, deleted and rolled back to a
-- savepoint, with a snapshot of its own or one that is older
BEGIN;
INSERT INTO model_feed (message_type, data) VALUES ('own', '1');
WITH d AS (DELETE FROM model_feed WHERE feed_pos % 10 = 0 RETURNING *) INSERT INTO removed TABLE d;
SAVEPOINT s;
INSERT INTO model_feed (message_type, data) VALUES ('own', '2');
WITH d AS (DELETE FROM model_feed WHERE feed_pos % 10 = 1 RETURNING *) INSERT INTO removed TABLE d;
ROLLBACK TO s;
SELECT * FROM compare();
ROLLBACK;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) > 0 AS snapshot_taken FROM model_feed;
INSERT INTO model_feed (message_type, data) VALUES ('own', '1');
WITH d AS (DELETE FROM model_feed WHERE feed_pos % 10 = 0 RETURNING *) INSERT INTO removed TABLE d;
SELECT * FROM compare();
COMMIT;
TRUNCATE removed;
SELECT * FROM compare();

-- Vacuumed, and with columns that were added and dropped
VACUUM model_feed;
ALTER TABLE model_feed ADD COLUMN dropped int DEFAULT 7, ADD COLUMN dropped_too int;
ALTER TABLE model_feed DROP COLUMN dropped, DROP COLUMN dropped_too;
CALL write_randomly(20);
SELECT * FROM compare();

-- With row security the specification is the same query, by the same role:
-- with a prepared transaction, and from inside one that has written.
CREATE ROLE regress_feedpub_reader;
GRANT SELECT ON model_feed, stamp, removed, cursors TO regress_feedpub_reader;
ALTER TABLE model_feed ENABLE ROW LEVEL SECURITY;
CREATE POLICY some_rows ON model_feed FOR SELECT TO regress_feedpub_reader USING (message_key IN ('1', '3', '4') AND data > '0.1');
BEGIN;
INSERT INTO model_feed (message_type, message_key, data) VALUES ('prepared', '1', '1');
INSERT INTO stamp SELECT feed_xid, feed_pos FROM model_feed WHERE feed_xid = pg_current_xact_id();
PREPARE TRANSACTION 'regress_feedpub 3';
CALL write_randomly(10);
SET ROLE regress_feedpub_reader;
SELECT count(*) BETWEEN 20 AND 200 AS some_rows FROM model_feed;
SELECT count(*) < (SELECT count(*) FROM model_feed) AS held_back FROM feed_fetch('0', 0, 100000);
SELECT * FROM compare();
RESET ROLE;
COMMIT PREPARED 'regress_feedpub 3';
BEGIN;
INSERT INTO model_feed (message_type, message_key, data) VALUES ('own', '1', '1');
SET LOCAL ROLE regress_feedpub_reader;
SELECT count(*) < (SELECT count(*) FROM model_feed) AS held_back FROM feed_fetch('0', 0, 100000);
SELECT * FROM compare();
ROLLBACK;
SELECT * FROM compare();
-- By rights on columns
ALTER TABLE model_feed DISABLE ROW LEVEL SECURITY;
REVOKE SELECT ON model_feed FROM regress_feedpub_reader;
GRANT SELECT (feed_xid, feed_pos, publication_id, message_id, message_type, message_key, data, scheduled, headers) ON model_feed TO regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
SELECT * FROM compare();
RESET ROLE;

DROP FUNCTION compare;
DROP PROCEDURE write_randomly;
DROP FUNCTION model_fetch;
DROP VIEW cursors;
DROP TABLE stamp, removed;
SELECT feed_drop('model_feed');
DROP ROLE regress_feedpub_reader;
