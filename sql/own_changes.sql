-- A page shows the feed as it was before the reader's own transaction: the
-- cursor is the program's, and stays where it is if the transaction, or a part
-- of it, is rolled back.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
-- Entries, less what differs from run to run
CREATE FUNCTION steady(j json) RETURNS json LANGUAGE sql AS $$
	SELECT regexp_replace(j::text, '"cursor": "[^"]*", |, "xid": [^,]*, "published_at": ("[^"]*"|null)', '', 'g')::json
$$;
SELECT feed_stop_worker() IS NOT NULL AS stopped;
SET feedpub.read_wait = 0;
SELECT feed_create('outbox');
INSERT INTO outbox (message_type, message_key, data) SELECT m, m, '1' FROM unnest('{a,b,c}'::text[]) m;
CREATE TABLE kv (k text PRIMARY KEY, v int);
INSERT INTO kv VALUES ('initial', 1);
SELECT feed_attach('kv') IS NULL AS attached;
CREATE TABLE part (k text, v int, PRIMARY KEY (k)) PARTITION BY LIST (k);
CREATE TABLE part_a PARTITION OF part FOR VALUES IN ('a');
CREATE TABLE part_bc PARTITION OF part FOR VALUES IN ('b', 'c') PARTITION BY LIST (k);
CREATE TABLE part_b PARTITION OF part_bc FOR VALUES IN ('b');
CREATE TABLE part_c PARTITION OF part_bc FOR VALUES IN ('c');
SELECT feed_attach('part') IS NULL AS attached;
INSERT INTO kv VALUES ('a', 1), ('b', 1), ('c', 1);
INSERT INTO part VALUES ('a', 1), ('b', 1), ('c', 1);
DELETE FROM kv WHERE k = 'c';
CALL feed_publish();
-- What all ways of reading show of a feed
CREATE FUNCTION shown(OUT read text, OUT page text, OUT fetched text, OUT polled text) LANGUAGE sql AS $$
	SELECT (SELECT string_agg((entry).message_type, ' ') FROM feed_read(NULL::outbox, '', 10)),
		(SELECT string_agg(e -> 'row' ->> 'message_type', ' ') FROM json_array_elements(feed_page('outbox', '', 10) -> 'entries') e),
		(SELECT string_agg(message_type, ' ') FROM feed_fetch(NULL::outbox, '0', 0, 10)),
		(SELECT string_agg(row ->> 'message_type', ' ') FROM feed_poll('mail', 10))
$$;
CREATE FUNCTION shown_kv(OUT read text, OUT page text, OUT fetched text, OUT polled text) LANGUAGE sql AS $$
	SELECT (SELECT string_agg(op || ' ' || (entry).k || coalesce((entry).v::text, ''), ', ') FROM feed_read(NULL::kv, '', 10)),
		(SELECT string_agg((e ->> 'op') || ' ' || (e -> 'key' ->> 'k') || coalesce(e -> 'row' ->> 'v', ''), ', ')
			FROM json_array_elements(feed_page('kv', '', 10) -> 'entries') e),
		(SELECT string_agg(k || v, ' ') FROM feed_fetch(NULL::kv, '0', 0, 10)),
		(SELECT string_agg(op || ' ' || (key ->> 'k') || coalesce(row ->> 'v', ''), ', ') FROM feed_poll('kv', 10))
$$;
SELECT feed_subscribe('mail', 'outbox', 'earliest') <> '' AS placed, feed_subscribe('kv', 'kv', 'earliest') <> '' AS placed;
-- Its own rows, updates and deletes
BEGIN;
SELECT * FROM shown() \gx
SELECT * FROM shown_kv() \gx
INSERT INTO outbox (message_type, data) VALUES ('own', '1');
DELETE FROM outbox WHERE message_type = 'b';
INSERT INTO kv VALUES ('own', 1), ('c', 2);
UPDATE kv SET v = 2 WHERE k IN ('a', 'initial');
DELETE FROM kv WHERE k = 'b';
SELECT * FROM shown() \gx
SELECT * FROM shown_kv() \gx
SELECT feed_wait('outbox', feed_head('outbox'), '0') AS outbox, feed_wait('kv', feed_head('kv'), '0') AS kv;
ROLLBACK;
SELECT * FROM shown() \gx
SELECT * FROM shown_kv() \gx
-- The same as a reader under row security, whose rows the executor reads
CREATE ROLE regress_feedpub_reader;
GRANT SELECT, DELETE, UPDATE ON outbox, kv TO regress_feedpub_reader;
ALTER TABLE outbox ENABLE ROW LEVEL SECURITY;
ALTER TABLE kv ENABLE ROW LEVEL SECURITY;
CREATE POLICY all_rows ON outbox USING (true);
CREATE POLICY all_rows ON kv USING (true);
GRANT regress_feedpub_reader TO CURRENT_USER;
SET ROLE regress_feedpub_reader;
BEGIN;
DELETE FROM outbox WHERE message_type = 'b';
UPDATE kv SET v = 2 WHERE k IN ('a', 'initial');
DELETE FROM kv WHERE k = 'b';
SELECT string_agg((entry).message_type, ' ') FROM feed_read(NULL::outbox, '', 10);
SELECT string_agg(message_type, ' ') FROM feed_fetch(NULL::outbox, '0', 0, 10);
WITH RECURSIVE page (p) AS (
	SELECT feed_page('kv', '', 10)
	UNION ALL
	SELECT feed_page('kv', p ->> 'cursor', 10) FROM page WHERE p ->> 'more' = 'true'
)
SELECT steady(e) AS e FROM page, json_array_elements(p -> 'entries') e;
SELECT string_agg(k || v, ' ') FROM feed_fetch(NULL::kv, '0', 0, 10);
ROLLBACK;
RESET ROLE;
-- What policies look up is seen as before the transaction too, also by a STABLE
-- function.
CREATE TABLE allowed (type text);
INSERT INTO allowed VALUES ('a'), ('b');
GRANT SELECT, DELETE ON allowed TO regress_feedpub_reader;
CREATE FUNCTION is_allowed(wanted text) RETURNS boolean STABLE LANGUAGE plpgsql AS $$
BEGIN
	RETURN EXISTS (SELECT FROM allowed WHERE type = wanted);
END $$;
CREATE POLICY looked_up ON outbox AS RESTRICTIVE USING (message_type IN (SELECT type FROM allowed) AND is_allowed(message_type));
SET ROLE regress_feedpub_reader;
BEGIN;
DELETE FROM allowed WHERE type = 'a';
SELECT op, (entry).message_type FROM feed_read(NULL::outbox, '', 10);
ROLLBACK;
RESET ROLE;
DROP POLICY looked_up ON outbox;
DROP TABLE allowed;
DROP FUNCTION is_allowed;
DROP POLICY all_rows ON outbox;
DROP POLICY all_rows ON kv;
ALTER TABLE outbox DISABLE ROW LEVEL SECURITY;
ALTER TABLE kv DISABLE ROW LEVEL SECURITY;

--
-- A savepoint: what was deleted exists again, and has been delivered.
--
BEGIN;
SAVEPOINT s;
DELETE FROM outbox WHERE message_type = 'a';
SELECT receipt, row ->> 'message_type' AS type FROM feed_poll('mail', 1) \gset own_
SELECT :'own_type' AS type;
ROLLBACK TO s;
SELECT feed_ack('mail', :'own_receipt');
COMMIT;
SELECT string_agg(row ->> 'message_type', ' ') FROM feed_poll('mail', 10);
-- The EXCEPTION clause of a block
DO $$
DECLARE
	done text := '';
	seen text[] := '{}';
	r record;
BEGIN
	BEGIN
		DELETE FROM outbox WHERE message_type IN ('a', 'c');
		UPDATE kv SET v = 3;
		FOR r IN SELECT * FROM feed_read(NULL::outbox, done, 10) LOOP
			seen := seen || (r.entry).message_type;
			done := r.cursor;
		END LOOP;
		FOR r IN SELECT * FROM feed_fetch(NULL::kv, '0', 0, 10) LOOP
			seen := seen || (r.k || r.v);
		END LOOP;
		RAISE division_by_zero;
	EXCEPTION WHEN division_by_zero THEN
		RAISE NOTICE 'rolled back';
	END;
	RAISE NOTICE '%, then %', seen, (SELECT count(*) FROM feed_read(NULL::outbox, done, 10));
END $$;
-- A parked entry that the transaction deletes
SELECT receipt FROM feed_poll('mail', 1) \gset nack_
SELECT feed_nack('mail', :'nack_receipt', 'bad', delay => '0') IS NOT NULL AS again;
SELECT receipt FROM feed_poll('mail', 1) \gset last_
SELECT feed_ack('mail', :'last_receipt');
BEGIN;
DELETE FROM outbox WHERE message_type = 'b';
SELECT row ->> 'message_type' AS type FROM feed_poll('mail', 1);
ROLLBACK;
SELECT row ->> 'message_type' AS type FROM feed_poll('mail', 1);
SELECT feed_seek('kv', 'earliest') <> '' AS placed;
SELECT key ->> 'k' AS k, receipt FROM feed_poll('kv', 1) \gset nack_
SELECT feed_nack('kv', :'nack_receipt', 'bad', delay => '0') IS NOT NULL AS again;
SELECT max(receipt) AS receipt FROM feed_poll('kv', 1) \gset last_
SELECT feed_ack('kv', :'last_receipt');
BEGIN;
DELETE FROM kv WHERE k = :'nack_k';
SELECT key ->> 'k' = :'nack_k' AS same FROM feed_poll('kv', 1);
ROLLBACK;
SELECT key ->> 'k' = :'nack_k' AS same FROM feed_poll('kv', 1);

--
-- After DDL of its own, and TRUNCATE, nothing is read; rolled back, it is.
--
CREATE PROCEDURE try(VARIADIC statements text[]) LANGUAGE plpgsql AS $$
DECLARE
	query text;
	code text;
	result text := '';
BEGIN
	FOREACH query IN ARRAY statements LOOP
		EXECUTE query;
	END LOOP;
	FOREACH query IN ARRAY ARRAY['SELECT count(*) FROM feed_read(NULL::kv, '''', 10)', 'SELECT feed_page(''kv'', '''', 10)',
		'SELECT count(*) FROM feed_fetch(NULL::kv, ''0'', 0, 10)', 'SELECT count(*) FROM feed_poll(''kv'', 10)',
		'SELECT feed_page(''part'', '''', 10)', 'SELECT count(*) FROM feed_fetch(NULL::part, ''0'', 0, 10)'] LOOP
		BEGIN
			EXECUTE query;
			code := 'ok';
		EXCEPTION WHEN OTHERS THEN
			code := SQLSTATE;
		END;
		result := result || ' ' || code;
	END LOOP;
	RAISE division_by_zero;
EXCEPTION WHEN division_by_zero THEN
	RAISE NOTICE '%: %', statements, result;
END $$;
CALL try('SELECT 1');
CALL try('INSERT INTO kv VALUES (1, 1)', 'INSERT INTO part VALUES (''a'', 2) ON CONFLICT (k) DO UPDATE SET v = 2');
CALL try('TRUNCATE kv');
CALL try('ALTER TABLE kv ADD COLUMN c int');
CALL try('ALTER TABLE kv ALTER COLUMN v TYPE bigint');
CALL try('ALTER TABLE kv ALTER COLUMN k TYPE bytea USING k::bytea');
CALL try('CLUSTER kv USING kv_pkey');
CALL try('TRUNCATE part_b');
CALL try('ALTER TABLE part DETACH PARTITION part_a');
CALL try('ALTER TABLE part_bc DETACH PARTITION part_b');
CALL try('DROP TABLE part_c');
CALL try('DROP TABLE part_bc');
CALL try('CREATE TABLE part_d PARTITION OF part FOR VALUES IN (''d'')');
CALL try('CREATE TABLE part_d PARTITION OF part_bc FOR VALUES IN (NULL)');
-- A trigger that is dropped takes its clones with it; a row that is updated while
-- the index is away is in no index that is made after that.
CALL try('DROP TRIGGER zz_feedpub_stamp ON part');
CALL try('DROP TRIGGER zz_feedpub_stamp ON part', 'SELECT feed_repair(''part'')');
CALL try('DROP INDEX kv_feed_idx', 'UPDATE kv SET v = 2', 'SELECT feed_repair(''kv'')');
CALL try('ALTER TABLE kv RENAME COLUMN v TO w');
CALL try('CREATE INDEX ON kv (v)');
CALL try('ALTER TABLE kv DROP COLUMN v');
CREATE TABLE part_e (LIKE part);
CALL try('ALTER TABLE part ATTACH PARTITION part_e FOR VALUES IN (''e'')');
DROP TABLE part_e;
-- A policy decides which rows a page passes.
CALL try('CREATE POLICY few ON kv USING (v > 1)');
CREATE POLICY few ON kv USING (v > 1);
CALL try('ALTER POLICY few ON kv USING (v > 2)');
CALL try('DROP POLICY few ON kv');
DROP POLICY few ON kv;
-- After what changes neither rows nor how they are found, they are read.
CALL try('GRANT SELECT ON kv, part, part_a TO pg_monitor', 'GRANT SELECT (v) ON kv, part TO pg_monitor');
CALL try('GRANT SELECT ON kv TO pg_monitor', 'ANALYZE kv', 'INSERT INTO kv VALUES (2, 2)');
CALL try('COMMENT ON TABLE kv IS ''a table''', 'COMMENT ON COLUMN kv.v IS ''a column''', 'ANALYZE kv, part',
	'CREATE STATISTICS kv_statistics ON k, v FROM kv');
CALL try('ALTER TABLE kv DISABLE TRIGGER zz_feedpub_stamp', 'UPDATE kv SET v = 2');
-- But it hides nothing that does.
CALL try('GRANT SELECT ON kv TO pg_monitor', 'TRUNCATE kv');
CALL try('TRUNCATE kv', 'GRANT SELECT ON kv TO pg_monitor');
CALL try('GRANT SELECT (v) ON kv TO pg_monitor', 'ALTER TABLE kv ALTER COLUMN v SET NOT NULL');
CALL try('ALTER TABLE kv ALTER COLUMN v SET NOT NULL', 'GRANT SELECT (v) ON kv TO pg_monitor');
CALL try('GRANT SELECT ON part_bc, part_b TO pg_monitor', 'TRUNCATE part_b');
-- Another table's is none of the feed's.
CALL try('CREATE TABLE other (LIKE kv)', 'TRUNCATE outbox');
-- A lock alone is taken for DDL: for nothing, but nothing is lost.  A weaker one is not.
CALL try('LOCK TABLE kv IN ACCESS EXCLUSIVE MODE');
CALL try('LOCK TABLE part_b IN ACCESS EXCLUSIVE MODE');
CALL try('LOCK TABLE kv IN EXCLUSIVE MODE', 'INSERT INTO kv VALUES (3, 3)');
CALL try('SELECT 1');
BEGIN;
TRUNCATE kv;
SELECT feed_page('kv', '', 10);
ROLLBACK;
-- A feed of its own has no page yet, but a head.
BEGIN;
SELECT feed_create('new');
SELECT feed_head('new') <> '' AS head, feed_subscribe('new', 'new') <> '' AS subscribed;
SAVEPOINT s;
SELECT * FROM feed_read(NULL::new, '', 10);
ROLLBACK TO s;
COMMIT;
SELECT count(*) FROM feed_poll('new', 10);
DROP PROCEDURE try;
DROP FUNCTION shown, shown_kv;
SELECT feed_unsubscribe(name) FROM unnest('{mail,kv,new}'::text[]) name;
SELECT feed_drop('outbox'), feed_drop('new'), feed_detach('kv'), feed_detach('part');
DROP TABLE kv, part;
DROP ROLE regress_feedpub_reader;
DROP FUNCTION steady;
