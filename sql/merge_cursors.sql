-- Cursors of batches that have been merged, once and again: none loses a row,
-- and none of another feed or server passes for one.
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
SELECT feed_create('outbox'), feed_create('other');
CREATE PROCEDURE write_row(VARIADIC types text[]) LANGUAGE sql AS $$ INSERT INTO outbox (message_type, data) SELECT t, '1' FROM unnest(types) t $$;
-- All batches but the last are old enough, and so many transactions become one;
-- by default as many as there are in them.
CREATE FUNCTION merge(max_transactions int DEFAULT NULL) RETURNS int LANGUAGE sql AS $$
	SELECT set_config('feedpub.max_batch_transactions', coalesce(max_transactions, (SELECT sum(transactions) FROM feedpub._batch
		WHERE feed = 'outbox'::regclass AND merged_pos IS NULL AND sync_id < (SELECT max(sync_id) FROM feedpub._batch WHERE feed = 'outbox'::regclass)))::text, true);
	UPDATE feedpub._batch SET published_at = '2000-01-01';
	SELECT feedpub._merge_batches('outbox');
$$;
CREATE VIEW batches AS
	SELECT sync_id, transactions, last_pos, merged_pos IS NOT NULL AS merged, merged_from, merged_pos FROM feedpub._batch WHERE feed = 'outbox'::regclass ORDER BY sync_id;
-- Every cursor that was ever delivered, with what came after it
CREATE TABLE known (cursor text PRIMARY KEY, rest text[] NOT NULL);
CREATE PROCEDURE note() LANGUAGE sql AS $$
	INSERT INTO known
	SELECT c.cursor, (SELECT coalesce(array_agg((entry).message_type), '{}') FROM feed_read(NULL::outbox, c.cursor, 1000))
	FROM (SELECT '' AS cursor UNION ALL SELECT feed_head('outbox') UNION SELECT cursor FROM feed_read(NULL::outbox, '', 1000)) c
	ON CONFLICT DO NOTHING
$$;
CREATE FUNCTION compare(OUT cursors bigint, OUT refused bigint, OUT lost bigint, OUT late bigint) LANGUAGE plpgsql AS $$
DECLARE
	k known;
	r text[];
	p json;
BEGIN
	cursors := 0; refused := 0; lost := 0; late := 0;
	FOR k IN SELECT * FROM known LOOP
		cursors := cursors + 1;
		BEGIN
			r := (SELECT coalesce(array_agg((entry).message_type), '{}') FROM feed_read(NULL::outbox, k.cursor, 1000) WHERE op = 'upsert');
			-- the same, row by row, with each page's own cursor
			p := feed_page('outbox', k.cursor, 1);
			FOR i IN 1..cardinality(r) LOOP
				IF p -> 'entries' -> 0 -> 'row' ->> 'message_type' IS DISTINCT FROM r[i] THEN
					late := late + 1;
				END IF;
				p := feed_page('outbox', p ->> 'cursor', 1);
			END LOOP;
		EXCEPTION WHEN SQLSTATE 'PF001' THEN
			refused := refused + 1;
			CONTINUE;
		END;
		lost := lost + (SELECT count(*) FROM unnest(k.rest) b WHERE b <> ALL (r));
	END LOOP;
END $$;

--
-- Positions 1 to 6 in batches {2}, {3, 4}, {1, 5}, {6}, while something else is
-- open all the time
--
BEGIN;
INSERT INTO other (message_type, data) VALUES ('open', '1');
PREPARE TRANSACTION 'regress_feedpub open';
BEGIN;
CALL write_row('1');
PREPARE TRANSACTION 'regress_feedpub early';
CALL write_row('2');
CALL feed_publish();
-- Another process, which makes the same fingerprints
\c
SET feedpub.read_wait = 0;
CALL write_row('3', '4');
CALL feed_publish();
COMMIT PREPARED 'regress_feedpub early';
CALL write_row('5');
CALL feed_publish();
CALL write_row('6');
CALL feed_publish();
TABLE batches;
CALL note();
SELECT * FROM compare();
-- In the same session a page has stopped inside batch 3, after position 1.
SELECT (entry).message_type FROM known k, feed_read(NULL::outbox, k.cursor, 1) WHERE k.rest = '{1,5,6}';
SELECT merge();
TABLE batches;
-- The cursor after position 1 in the merged batch is another one: here the
-- rows that had been in earlier batches come after it.
SELECT (p -> 'entries' -> 0 -> 'row' ->> 'message_type') AS first,
	(SELECT string_agg((entry).message_type, ' ') FROM feed_read(NULL::outbox, p ->> 'cursor', 10)) AS rest
	FROM feed_page('outbox', '', 1) p;
SELECT * FROM compare();
-- Each old cursor: what came after it is there, and something may come again.
SELECT rest, (SELECT array_agg((entry).message_type) FROM feed_read(NULL::outbox, k.cursor, 10)) AS now
	FROM known k ORDER BY cursor COLLATE "C";
-- None of them is waited for in vain.
SELECT bool_and(feed_wait('outbox', cursor, '0')) FROM known WHERE rest <> '{}';

ROLLBACK PREPARED 'regress_feedpub open';

--
-- Newer ones are merged beside those that have been
--
CALL note();
CALL write_row('7');
CALL feed_publish();
CALL write_row('8');
CALL feed_publish();
\c
SET feedpub.read_wait = 0;
CALL write_row('9');
CALL feed_publish();
CALL note();
BEGIN;
SELECT merge(3);
TABLE batches;
SELECT * FROM compare();
ROLLBACK;
SELECT merge(2);
TABLE batches;
CALL note();
SELECT * FROM compare();
BEGIN;
CALL write_row('11');
PREPARE TRANSACTION 'regress_feedpub early';
CALL write_row('12');
CALL feed_publish();
\c
SET feedpub.read_wait = 0;
COMMIT PREPARED 'regress_feedpub early';
CALL feed_publish();
CALL note();
SELECT merge(6);
TABLE batches;
CALL note();
SELECT * FROM compare();
CALL write_row('13');
CALL feed_publish();
SELECT merge();
TABLE batches;
CALL note();
SELECT * FROM compare();
-- With deleted rows as well
DELETE FROM outbox WHERE message_type IN ('1', '4', '12');
UPDATE known SET rest = array_remove(array_remove(array_remove(rest, '1'), '4'), '12');
SELECT * FROM compare();

--
-- Cursors that are none of this feed's
--
CREATE FUNCTION digits(value bigint, n int) RETURNS text LANGUAGE sql IMMUTABLE AS $$
	SELECT string_agg(substr('-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz', 1 + (value >> (6 * i) & 63)::int, 1), '' ORDER BY i DESC) FROM generate_series(0, n - 1) i
$$;
-- Batch, position, and fingerprint with whether it is merged
CREATE FUNCTION forge(batch bigint, pos bigint, fingerprint text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	RETURN (SELECT count(*) FROM feed_read(NULL::outbox, (SELECT '1' || digits(history & 4294967295, 6) FROM feedpub._floor WHERE feed = 'outbox'::regclass)
		|| digits(batch | (1::bigint << 41), 7) || digits(pos, 11) || fingerprint || repeat('-', 13), 10));
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE;
END $$;
-- Made up, in any batch
SELECT forge(batch, pos, fingerprint), count(*)
	FROM generate_series(1, 11) batch, generate_series(0, 14) pos, unnest('{------,0zzzzz,1-----,2zzzzz,012345,234567,3-----,4zzzzz,5-----,6zzzzz,345678,567890}'::text[]) fingerprint
	GROUP BY 1;
-- Another feed's of the same numbers
DO $$
BEGIN
	FOR i IN 1..11 LOOP
		INSERT INTO other (message_type, data) VALUES (i, '1');
		COMMIT;
		CALL feed_publish('other');
	END LOOP;
END $$;
SELECT forge(o.batch, 1, substr(o.cursor, 26, 6)), count(*)
	FROM (SELECT row_number() OVER () AS batch, cursor FROM feed_read(NULL::other, '', 100)) o
	GROUP BY 1;
-- A true fingerprint of another number
SELECT forge(m.batch, 1, substr(k.cursor, 26, 6)), count(*)
	FROM known k, generate_series(1, 11) m (batch)
	WHERE k.cursor <> '' AND substr(k.cursor, 8, 7) <> digits(m.batch | (1::bigint << 41), 7)
	GROUP BY 1;
SELECT feed_page('outbox', (SELECT cursor FROM feed_read(NULL::other, '', 2) ORDER BY cursor COLLATE "C" DESC LIMIT 1), 10);
\echo :SQLSTATE
-- Those of another life of the same feed, published by the same process
SELECT cursor AS old FROM feed_read(NULL::other, '', 1) \gset
SELECT feed_begin_history('other');
CALL feed_publish('other');
SELECT substr(cursor, 8, 18) = substr(:'old', 8, 18) AS same_point, cursor = :'old' AS same FROM feed_read(NULL::other, '', 1);
SELECT feed_page('other', :'old', 10);
\echo :SQLSTATE

DROP FUNCTION merge, compare, forge, digits;
DROP PROCEDURE note, write_row;
DROP VIEW batches;
DROP TABLE known;
SELECT feed_drop('outbox'), feed_drop('other');
