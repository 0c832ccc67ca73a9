-- Rows of a table feed are published again: one, those that meet a condition,
-- or all of them in the background.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
-- Here batches are made, and steps taken, by hand: no worker.
SELECT feed_stop_worker() IS NOT NULL AS stopped;
DO $$
BEGIN
	WHILE EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'feedpub worker' AND datname = current_database()) LOOP
		PERFORM pg_stat_clear_snapshot();
	END LOOP;
END $$;
SET feedpub.read_wait = 0;

-- What a consumer gets behind the cursor that it keeps
CREATE TABLE consumer (feed regclass PRIMARY KEY, cursor text NOT NULL);
CREATE FUNCTION follow(of regclass, OUT entry json) RETURNS SETOF json LANGUAGE plpgsql AS $$
DECLARE
	after text := '';
	page json;
BEGIN
	SELECT c.cursor INTO after FROM consumer c WHERE c.feed = of;
	page := feed_page(of, coalesce(after, ''), 10000);
	INSERT INTO consumer VALUES (of, page ->> 'cursor')
	ON CONFLICT (feed) DO UPDATE SET cursor = EXCLUDED.cursor;
	RETURN QUERY SELECT e FROM json_array_elements(page -> 'entries') e;
END $$;
-- Steps until nothing is to be done
CREATE FUNCTION finish(of regclass, max_rows int, OUT steps text) LANGUAGE plpgsql AS $$
DECLARE
	n int;
BEGIN
	LOOP
		n := feedpub._republish_some(of, max_rows);
		EXIT WHEN n IS NULL;
		steps := concat_ws(' ', steps, n);
	END LOOP;
END $$;

--
-- The last record, already consumed, is changed and republished.
--
CREATE TABLE kv (k text PRIMARY KEY, v text, hits int NOT NULL DEFAULT 0);
SELECT feed_attach('kv', columns => '{v}');
INSERT INTO kv VALUES ('fred', 'bob');
CALL feed_publish('kv');
SELECT * FROM follow('kv');
UPDATE kv SET v = 'jim', feed_xid = NULL WHERE k = 'fred';
CALL feed_publish('kv');
SELECT * FROM follow('kv');
-- And unchanged
SELECT feed_republish('kv', key => '{"k": "fred"}');
CALL feed_publish('kv');
SELECT * FROM follow('kv');
SELECT feed_republish('kv', key => '{"k": "nobody"}');
CALL feed_publish('kv');
SELECT * FROM follow('kv');

--
-- Keys: as feed_page() writes them
--
CREATE SCHEMA "Odd ""Schema"", x";
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE DOMAIN short AS varchar(5) CHECK (value <> 'none');
CREATE DOMAIN given AS text NOT NULL;
CREATE TABLE "Odd ""Schema"", x"."t, ""k""" (
	"a, ""b""" char(4), n numeric, at timestamptz, m mood, list int[], d short, other given, v text,
	PRIMARY KEY ("a, ""b""", n, at, m, list, d));
SELECT feed_attach('"Odd ""Schema"", x"."t, ""k"""');
INSERT INTO "Odd ""Schema"", x"."t, ""k""" VALUES
	('a', 1.00, '2001-01-01 00:00+00', 'ok', '{1,2}', 'it''s', 'x', 'v'),
	('a', 2, '2001-01-01 00:00+00', 'ok', '{1,2}', 'it''s', 'x', 'v');
CALL feed_publish('"Odd ""Schema"", x"."t, ""k"""');
SELECT entry -> 'key' FROM follow('"Odd ""Schema"", x"."t, ""k"""');
SELECT feed_republish('"Odd ""Schema"", x"."t, ""k"""', key =>
	'{"a, \"b\"": "a", "n": 1, "at": "2001-01-01T01:00:00+01:00", "m": "ok", "list": [1, 2], "d": "it''s"}');
CALL feed_publish('"Odd ""Schema"", x"."t, ""k"""');
SELECT entry -> 'key' FROM follow('"Odd ""Schema"", x"."t, ""k"""');
-- Not a key
SELECT feed_republish('"Odd ""Schema"", x"."t, ""k"""', key => '{"n": 1}');
SELECT feed_republish('kv', key => '{}');
SELECT feed_republish('kv', key => '[]');
SELECT feed_republish('kv', key => '"fred"');
SELECT feed_republish('kv', key => '{"k": null}');
SELECT feed_republish('kv', key => '{"k": "fred", "v": "jim"}');
SELECT feed_republish('kv', key => '{"k\" = '''' --": 1}');
-- A key's equality is that of its index.
CREATE TABLE loose (n numeric PRIMARY KEY);
INSERT INTO loose VALUES (1.0);
SELECT feed_attach('loose');
SELECT feed_republish('loose', key => '{"n": 1}'), feed_republish('loose', '{"n": "1.000"}');
DROP TABLE loose;

--
-- Conditions
--
INSERT INTO kv VALUES ('mary', 'a'), ('odd''s, "n"', 'a');
CALL feed_publish('kv');
SELECT count(*) FROM follow('kv');
SELECT feed_republish('kv', condition => 'v = ''a'' and kv.k > ''n'' -- with a comment');
CALL feed_publish('kv');
SELECT * FROM follow('kv');
SELECT feed_republish('kv', condition => 'exists (select from pg_class c where c.relname = v)');
SELECT feed_republish('kv', condition => 'false or k in (''mary'', ''fred'')');
SELECT feed_republish('kv', condition => 'null');
-- Nothing but one expression
SELECT feed_republish('kv', condition => 'true; DROP TABLE kv');
SELECT feed_republish('kv', condition => 'true) OR (true');
SELECT feed_republish('kv', condition => 'true) RETURNING (v');
SELECT feed_republish('kv', condition => 'true FROM kv');
SELECT feed_republish('kv', condition => 'true WHERE true');
SELECT feed_republish('kv', condition => 'true LIMIT 1');
SELECT feed_republish('kv', condition => 'true ORDER BY 1');
SELECT feed_republish('kv', condition => 'true UNION SELECT true');
SELECT feed_republish('kv', condition => 'DISTINCT true');
SELECT feed_republish('kv', condition => 'true FOR UPDATE');
SELECT feed_republish('kv', condition => 'true, false');
SELECT feed_republish('kv', condition => 'true AS "always"');
SELECT feed_republish('kv', condition => 'true always');
SELECT feed_republish('kv', condition => '/* true');
SELECT feed_republish('kv', condition => '');
SELECT feed_republish('kv', condition => '*');
SELECT feed_republish('kv', condition => '1');
SELECT feed_republish('kv', condition => 'nothing = 1');
SELECT feed_republish('kv', condition => '$1');
-- One of the three
SELECT feed_republish('kv');
SELECT feed_republish('kv', key => '{"k": "fred"}', condition => 'true');
SELECT feed_republish('kv', condition => 'true', rows => 'all');
SELECT feed_republish('kv', rows => 'some');
SELECT feed_republish(NULL, rows => 'all');
SET session_replication_role = replica;
SELECT feed_republish('kv', key => '{"k": "fred"}');
RESET session_replication_role;
-- Table feeds
CREATE TABLE plain (k int PRIMARY KEY);
SELECT feed_republish('plain', rows => 'all');
SELECT feed_republish('pg_class', condition => 'true');
SELECT feed_create('messages');
SELECT feed_republish('messages', rows => 'all');
SELECT feed_republish('messages', condition => 'true');
SELECT feed_republish_cancel('messages');
DROP TABLE plain, messages;

--
-- As the caller: his rights, row security for him, all triggers
--
CREATE ROLE regress_feedpub_owner;
CREATE ROLE regress_feedpub_writer;
CREATE ROLE regress_feedpub_reader;
GRANT CREATE ON SCHEMA public TO regress_feedpub_owner;
SET ROLE regress_feedpub_owner;
CREATE TABLE mine (id int PRIMARY KEY, whose name, v text, ran name);
INSERT INTO mine VALUES (1, 'regress_feedpub_owner', 'a'), (2, 'regress_feedpub_writer', 'a'), (3, 'regress_feedpub_writer', 'b');
SELECT feed_attach('mine');
GRANT SELECT, UPDATE (feed_xid) ON mine TO regress_feedpub_writer;
GRANT SELECT ON mine TO regress_feedpub_reader;
ALTER TABLE mine ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own ON mine USING (whose = current_user);
CREATE FUNCTION note_user() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	NEW.ran := current_user;
	RETURN NEW;
END $$;
CREATE TRIGGER note_user BEFORE UPDATE ON mine FOR EACH ROW EXECUTE FUNCTION note_user();
ALTER TABLE mine ENABLE ALWAYS TRIGGER note_user;
SET ROLE regress_feedpub_reader;
SELECT feed_republish('mine', key => '{"id": 1}');
SELECT feed_republish('mine', condition => 'true');
SELECT feed_republish('mine', rows => 'all');
SELECT feed_republish_cancel('mine');
SELECT feedpub._republish_some('mine', 1);
SELECT * FROM feedpub.republication;
SET ROLE regress_feedpub_writer;
SELECT feed_republish('mine', key => '{"id": 1}'), feed_republish('mine', key => '{"id": 2}');
SELECT feed_republish('mine', condition => 'current_user = ''regress_feedpub_writer''');
SELECT feed_republish('mine', rows => 'all');
RESET ROLE;
SELECT id, feed_pos, ran FROM mine ORDER BY id;

--
-- All, in the background: as the owner, past row security, no trigger fires
--
SET ROLE regress_feedpub_owner;
SELECT feed_republish('mine', rows => 'all');
SELECT feed, rows, state, stamped, requested_by, finished_at, last_error FROM feedpub.republishing;
SELECT feedpub._republish_some('mine', 1);
RESET ROLE;
SELECT * FROM finish('mine', 2);
SELECT id, feed_pos, ran FROM mine ORDER BY id;
SET ROLE regress_feedpub_reader;
SELECT count(*) FROM feedpub.republishing;
RESET ROLE;
GRANT pg_monitor TO regress_feedpub_reader;
SET ROLE regress_feedpub_reader;
SELECT count(*) FROM feedpub.republishing;
RESET ROLE;
REVOKE pg_monitor FROM regress_feedpub_reader;

-- His code in the indexes runs as himself, and can become nobody else.
SET ROLE regress_feedpub_owner;
CREATE TABLE stage (who name, wants text);
GRANT ALL ON stage TO PUBLIC;
CREATE FUNCTION evil(v text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RETURN v; END $$;
CREATE INDEX evil ON mine (evil(v)) WHERE evil(v) <> '';
CREATE OR REPLACE FUNCTION evil(v text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	PERFORM public.note_evil();
	RETURN v;
END $$;
CREATE FUNCTION note_evil() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO public.stage VALUES (current_user, 'path ' || current_setting('search_path'));
	BEGIN
		SET ROLE NONE;
	EXCEPTION WHEN OTHERS THEN
		INSERT INTO public.stage VALUES (current_user, SQLSTATE);
	END;
	BEGIN
		RESET SESSION AUTHORIZATION;
	EXCEPTION WHEN OTHERS THEN
		INSERT INTO public.stage VALUES (current_user, SQLSTATE);
	END;
	BEGIN
		ALTER ROLE regress_feedpub_owner SUPERUSER;
	EXCEPTION WHEN OTHERS THEN
		INSERT INTO public.stage VALUES (current_user, SQLSTATE);
	END;
END $$;
SELECT feed_republish('mine', rows => 'all');
RESET ROLE;
SELECT * FROM finish('mine', 100);
SELECT who, wants FROM stage GROUP BY who, wants ORDER BY wants COLLATE "C";
SELECT rolsuper FROM pg_roles WHERE rolname = 'regress_feedpub_owner';
-- Nor later, by a trigger that is deferred, nor by a path that he leaves.
SET ROLE regress_feedpub_owner;
CREATE FUNCTION later() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	ALTER ROLE regress_feedpub_owner SUPERUSER;
	RETURN NEW;
END $$;
CREATE CONSTRAINT TRIGGER later AFTER INSERT ON stage DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION later();
SELECT feed_republish('mine', rows => 'all');
RESET ROLE;
SELECT * FROM finish('mine', 100);
SELECT rolsuper FROM pg_roles WHERE rolname = 'regress_feedpub_owner';
SET ROLE regress_feedpub_owner;
DROP TRIGGER later ON stage;
CREATE OR REPLACE FUNCTION note_evil() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM set_config('search_path', 'public', false);
END $$;
RESET ROLE;
SET search_path = pg_catalog, public;
SELECT * FROM public.finish('mine', 100);
SHOW search_path;
RESET search_path;
DROP TABLE stage;
DROP INDEX evil;

--
-- What is kept, and what is passed on
--
CREATE TABLE rich (id int PRIMARY KEY, gone int, v text, big text, twice int GENERATED ALWAYS AS (id * 2) STORED,
	u int UNIQUE DEFERRABLE INITIALLY DEFERRED, span int4range, EXCLUDE USING gist (span WITH &&),
	CHECK (v <> 'no'));
ALTER TABLE rich ALTER big SET STORAGE EXTERNAL;
INSERT INTO rich (id, gone, v, big, u, span) SELECT i, i, 'v' || i, repeat('x', 5000), i, int4range(i, i + 1) FROM generate_series(1, 10) i;
-- A check that the rows do not meet, of which nobody asked
ALTER TABLE rich ADD CHECK (v = 'new') NOT VALID;
CREATE TABLE refers (id int REFERENCES rich);
INSERT INTO refers VALUES (1);
CREATE INDEX ON rich (lower(v)) WHERE id > 5;
CREATE INDEX ON rich USING hash (v);
CREATE INDEX ON rich USING brin (id);
CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'fired'; END $$;
CREATE TRIGGER a_fail BEFORE UPDATE ON rich FOR EACH ROW EXECUTE FUNCTION fail();
CREATE TRIGGER z_fail AFTER UPDATE ON rich FOR EACH ROW EXECUTE FUNCTION fail();
CREATE TRIGGER s_fail AFTER UPDATE ON rich FOR EACH STATEMENT EXECUTE FUNCTION fail();
ALTER TABLE rich ENABLE ALWAYS TRIGGER a_fail, ENABLE REPLICA TRIGGER z_fail, ENABLE ALWAYS TRIGGER s_fail;
SELECT feed_attach('rich');
ALTER TABLE rich DROP gone, ADD later int DEFAULT 7;
SELECT feed_republish('rich', key => '{"id": 1}');
CREATE TABLE before AS SELECT * FROM rich;
SELECT feed_republish('rich', rows => 'all');
SELECT * FROM finish('rich', 3);
SELECT * FROM finish('rich', 3);
SELECT count(feed_xid), count(DISTINCT feed_pos) FROM rich;
SELECT count(*) FROM before b FULL JOIN rich r USING (id)
	WHERE (b.v, b.big, b.twice, b.u, b.span, b.later) IS DISTINCT FROM (r.v, r.big, r.twice, r.u, r.span, r.later);
-- All indexes lead to the rows.
SET enable_seqscan = off;
SELECT count(*) FROM rich WHERE id BETWEEN 1 AND 10;
SELECT count(*) FROM rich WHERE u BETWEEN 1 AND 10;
SELECT count(*) FROM rich WHERE span && int4range(1, 11);
SELECT id FROM rich WHERE lower(v) = 'v7' AND id > 5;
SELECT id FROM rich WHERE lower(v) = 'v3' AND id > 5;
SELECT id FROM rich WHERE v = 'v3';
RESET enable_seqscan;
ALTER TABLE rich DISABLE TRIGGER USER;
INSERT INTO rich (id) VALUES (5);
INSERT INTO rich (id, v, u) VALUES (11, 'new', 5);
INSERT INTO rich (id, v, span) VALUES (11, 'new', int4range(5, 6));
DROP TABLE refers;
ALTER TABLE rich ENABLE ALWAYS TRIGGER zz_feedpub_stamp;
-- And what was computed from the stamp cannot be.
ALTER TABLE rich ADD CONSTRAINT "on ""stamp""" CHECK (feed_pos > 0) NOT VALID;
SELECT feed_republish('rich', rows => 'all');
ALTER TABLE rich DROP CONSTRAINT "on ""stamp""", ADD plus int8 GENERATED ALWAYS AS (feed_pos + 1) STORED;
SELECT feed_republish('rich', rows => 'all');
ALTER TABLE rich DROP plus;
CREATE UNIQUE INDEX one_of ON rich (v) WHERE feed_xid IS NULL;
SELECT feed_republish('rich', rows => 'all');
DROP INDEX one_of;
CREATE TABLE positions (pos int8 PRIMARY KEY);
INSERT INTO positions SELECT feed_pos FROM rich;
ALTER TABLE rich ADD CONSTRAINT known FOREIGN KEY (feed_pos) REFERENCES positions;
SELECT feed_republish('rich', rows => 'all');
ALTER TABLE rich DROP CONSTRAINT known;
-- Also when it comes later
SELECT feed_republish('rich', rows => 'all');
CREATE UNIQUE INDEX one_of ON rich (feed_xid, id);
SELECT feedpub._republish_some('rich', 1);
DROP INDEX one_of;
SELECT * FROM finish('rich', 100);
DROP TABLE rich, before, positions;

--
-- Step by step
--
CREATE TABLE big (id int PRIMARY KEY, v text, hits int);
INSERT INTO big SELECT i, 'a', 0 FROM generate_series(1, 1000) i;
SELECT feed_attach('big', columns => '{v}');
UPDATE big SET v = 'b' WHERE id <= 100;
DELETE FROM big WHERE id > 990;
CALL feed_publish('big');
SELECT count(*) FROM follow('big');
SELECT count(*) FROM follow('big');
SELECT feed_republish('big', rows => 'unstamped');
-- A step is one transaction, and does no more than its share.
SELECT feedpub._republish_some('big', 0);
SELECT feedpub._republish_some('big', 300);
SELECT state, blocks_done > 0 AS begun, blocks_done < blocks_total AS more, positions_total, stamped, rows_per_second > 0 AS rate FROM feedpub.republishing WHERE feed = 'big'::regclass;
-- Rows are updated, deleted and added meanwhile.
UPDATE big SET v = 'c' WHERE id IN (1, 150, 900);
UPDATE big SET hits = hits + 1 WHERE id IN (2, 151, 901);
DELETE FROM big WHERE id IN (3, 152, 902);
INSERT INTO big VALUES (2000, 'c');
SELECT * FROM finish('big', 300);
SELECT count(*), count(feed_xid), count(DISTINCT feed_pos) FROM big;
SELECT count(DISTINCT feed_xid) FROM big WHERE id > 100 AND v = 'a';
CALL feed_publish('big');
SELECT count(*), count(*) FILTER (WHERE entry ->> 'op' = 'delete') AS deletes FROM follow('big');
SELECT state, blocks_done = blocks_total AS complete, positions_done, stamped, finished_at IS NOT NULL AS finished FROM feedpub.republishing WHERE feed = 'big'::regclass;
-- Nothing is left to do.
SELECT feed_republish('big', rows => 'unstamped');
SELECT * FROM finish('big', 300);
-- All: cancelled, asked again; asked twice; asked for more
SELECT feed_republish('big', rows => 'all');
SELECT feedpub._republish_some('big', 100), feedpub._republish_some('big', 100);
SELECT feed_republish_cancel('big'), feed_republish_cancel('big');
SELECT state, stamped FROM feedpub.republishing WHERE feed = 'big'::regclass;
SELECT feedpub._republish_some('big', 100);
SELECT feed_republish('big', rows => 'unstamped');
SELECT feed_republish('big', rows => 'all');
SELECT feed_republish('big', rows => 'all');
SELECT feed_republish('big', rows => 'unstamped');
SELECT rows FROM feedpub.republishing WHERE feed = 'big'::regclass;
CREATE TABLE cutoff AS SELECT max(feed_pos) AS pos FROM big;
SELECT * FROM finish('big', 400);
SELECT positions_done = positions_total AS complete, stamped FROM feedpub.republishing WHERE feed = 'big'::regclass;
SELECT min(feed_pos) > (SELECT pos FROM cutoff) AS "all" FROM big;
CALL feed_publish('big');
SELECT count(*) FROM follow('big');
-- A row whose stamp is kept moves in the table while all are done.
SELECT feed_republish('big', rows => 'all');
SELECT feedpub._republish_some('big', 100), feedpub._republish_some('big', 100), feedpub._republish_some('big', 100);
UPDATE big SET hits = hits + 1;
VACUUM big;
UPDATE big SET hits = hits + 1;
-- The table is rewritten.
VACUUM FULL big;
SELECT feedpub._republish_some('big', 100);
CLUSTER big USING big_pkey;
UPDATE big SET v = 'd' WHERE id = 500;
TRUNCATE cutoff;
INSERT INTO cutoff SELECT cutoff FROM feedpub.republication WHERE feed = 'big'::regclass;
SELECT * FROM finish('big', 1000);
SELECT min(feed_pos) > (SELECT pos FROM cutoff) AS "all" FROM big;
SELECT count(*) = (SELECT stamped + 1 FROM feedpub.republishing WHERE feed = 'big'::regclass) AS once FROM big;
-- Rewritten among the rows without a stamp: from its beginning, over those that have one.
CREATE TABLE old (id int PRIMARY KEY, v text);
INSERT INTO old SELECT i, repeat('x', 100) FROM generate_series(1, 1000) i;
DELETE FROM old WHERE id <= 400;
SELECT feed_attach('old');
SELECT feed_republish('old', rows => 'all');
SELECT feedpub._republish_some('old', 300);
VACUUM FULL old;
SELECT * FROM finish('old', 200);
SELECT count(*), count(feed_xid) FROM old;
-- Emptied
SELECT feed_republish('old', rows => 'all');
TRUNCATE old;
SELECT * FROM finish('old', 200);
SELECT feed_republish('old', rows => 'all');
SELECT * FROM finish('old', 200);
-- What the cluster had in its index is in order: none comes twice.
SELECT * FROM follow('old') WHERE entry ->> 'op' <> 'truncate';

--
-- A partitioned table: one partition after the other
--
CREATE TABLE parts (id int, place text, hits int DEFAULT 0, PRIMARY KEY (id, place)) PARTITION BY LIST (place);
CREATE TABLE "part, ""a""" PARTITION OF parts FOR VALUES IN ('a');
CREATE TABLE part_b PARTITION OF parts FOR VALUES IN ('b') PARTITION BY RANGE (id);
CREATE TABLE part_b1 PARTITION OF part_b FOR VALUES FROM (0) TO (6);
CREATE TABLE part_b2 PARTITION OF part_b FOR VALUES FROM (6) TO (100);
INSERT INTO parts SELECT i, p FROM generate_series(1, 10) i, unnest(array['a', 'b']) p;
SELECT feed_attach('parts', columns => '{id}');
CALL feed_publish('parts');
SELECT count(*) FROM follow('parts');
UPDATE parts SET place = 'b', id = id + 20 WHERE id = 1 AND place = 'a';
SELECT feed_republish('parts', key => '{"id": 2, "place": "b"}'), feed_republish('parts', condition => 'id = 3');
CALL feed_publish('parts');
SELECT entry FROM follow('parts');
SELECT feed_republish('part_b1', rows => 'all');
SELECT feed_republish('parts', rows => 'all');
SELECT feedpub._republish_some('parts', 4), feedpub._republish_some('parts', 4);
-- Rows move, one comes with a partition.
UPDATE parts SET place = 'b', id = id + 20 WHERE id = 2 AND place = 'a';
UPDATE parts SET place = 'a', id = id + 20 WHERE id = 10 AND place = 'b';
CREATE TABLE part_c (id int NOT NULL, place text NOT NULL, hits int, feed_xid xid8, feed_pos bigint, PRIMARY KEY (id, place));
INSERT INTO part_c VALUES (1, 'c', 0);
ALTER TABLE parts ATTACH PARTITION part_c FOR VALUES IN ('c');
SELECT * FROM finish('parts', 4);
SELECT state, blocks_done = blocks_total AS complete, positions_done = positions_total AS passed FROM feedpub.republishing WHERE feed = 'parts'::regclass;
SELECT count(*), count(feed_xid), count(DISTINCT feed_pos), min(feed_pos) > (SELECT cutoff FROM feedpub.republication WHERE feed = 'parts'::regclass) AS "all" FROM parts;
CALL feed_publish('parts');
SELECT count(*) FILTER (WHERE entry ->> 'op' = 'upsert') AS rows, count(*) FILTER (WHERE entry ->> 'op' = 'delete') AS deletes FROM follow('parts');
SELECT count(*) FROM follow('parts');
DROP TABLE parts;

--
-- The cure of rows that nobody has stamped, or another server has
--
ALTER TABLE old DISABLE TRIGGER zz_feedpub_stamp;
INSERT INTO old VALUES (1, 'unstamped');
INSERT INTO old (id, v, feed_xid, feed_pos) VALUES (2, 'foreign', '9223372036854775807', 1), (3, 'foreign', '9223372036854775806', 2);
ALTER TABLE old ENABLE ALWAYS TRIGGER zz_feedpub_stamp;
CALL feed_publish('old');
SELECT guard, cure FROM feed_check('old');
SELECT feed_repair('old');
SELECT feed_republish('old', rows => 'all');
SELECT * FROM finish('old', 2);
SELECT * FROM feed_check('old');
CALL feed_publish('old');
SELECT entry -> 'row' FROM follow('old');

-- Those of steps, in a dump that was taken in the middle, lie behind the cutoff.
SELECT feed_republish('old', rows => 'all');
SELECT feedpub._republish_some('old', 1), feedpub._republish_some('old', 1);
ALTER TABLE old DISABLE TRIGGER zz_feedpub_stamp;
UPDATE old SET feed_xid = '9223372036854775807' WHERE feed_pos = (SELECT max(feed_pos) FROM old);
ALTER TABLE old ENABLE ALWAYS TRIGGER zz_feedpub_stamp;
SELECT feed_republish('old', rows => 'all');
SELECT * FROM finish('old', 2);
SELECT * FROM feed_check('old');

--
-- It goes with the feed.
--
SELECT feed_republish('old', rows => 'all');
SELECT feedpub._republish_some('old', 1);
SELECT feed_detach('old');
SELECT count(*) FROM feedpub.republication WHERE feed = 'old'::regclass;
SELECT count(*) FROM feedpub.republication_part WHERE feed = 'old'::regclass;
SELECT feed_attach('old');
SELECT feedpub._republish_some('old', 1);
SELECT feed_republish('old', rows => 'all');
DROP TABLE old, big;
SELECT count(*) FROM feedpub.republishing r WHERE NOT EXISTS (SELECT FROM feedpub.feed f JOIN pg_class c ON c.oid = f.feed WHERE f.feed = r.feed);
-- and without its index nothing is done.
CREATE TABLE bare (id int PRIMARY KEY);
INSERT INTO bare VALUES (1);
SELECT feed_attach('bare');
DROP INDEX bare_feed_idx;
SELECT feed_republish('bare', rows => 'all');
CREATE INDEX ON bare (feed_xid, feed_pos);
SELECT feed_republish('bare', rows => 'all');
DROP INDEX bare_feed_xid_feed_pos_idx;
SELECT feedpub._republish_some('bare', 1);
CREATE INDEX ON bare (feed_xid, feed_pos);
SELECT * FROM finish('bare', 1);

-- Children that inherit from the table are no part of the feed.
CREATE TABLE child () INHERITS (bare);
INSERT INTO child (id) VALUES (2);
SELECT feed_republish('bare', key => '{"id": 2}'), feed_republish('bare', condition => 'true');
SELECT feed_republish('bare', rows => 'all');
SELECT * FROM finish('bare', 10);
DROP TABLE child;

DROP TABLE bare, mine, kv, consumer, cutoff;
DROP SCHEMA "Odd ""Schema"", x" CASCADE;
DROP FUNCTION follow, finish, fail, evil, note_evil, later, note_user;
DROP TYPE mood;
DROP DOMAIN short, given;
REVOKE CREATE ON SCHEMA public FROM regress_feedpub_owner;
DROP ROLE regress_feedpub_owner, regress_feedpub_writer, regress_feedpub_reader;
