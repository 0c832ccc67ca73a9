-- The cursor of the published order: text, opaque, of fixed width.
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
SELECT feed_create('"Odd ""Name"", with a comma"');
SELECT feed_create('other');
-- An attempt to read from a cursor: the SQLSTATE, or how many rows came
CREATE FUNCTION attempt(after text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	RETURN (SELECT count(*) || ' rows' FROM feed_read(NULL::"Odd ""Name"", with a comma", after, 100));
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE;
END $$;
CREATE FUNCTION attempt_page(after text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	RETURN json_array_length(feed_page('"Odd ""Name"", with a comma"', after, 100) -> 'entries') || ' rows';
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE;
END $$;
-- Numbers as a cursor has them
CREATE FUNCTION digits(value bigint, n int) RETURNS text LANGUAGE sql IMMUTABLE AS $$
	SELECT string_agg(substr('-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz', 1 + (value >> (6 * i) & 63)::int, 1), '' ORDER BY i DESC) FROM generate_series(0, n - 1) i
$$;
CREATE FUNCTION number(digits text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
	SELECT bit_or((strpos('-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz', substr(digits, i, 1)) - 1)::bigint << (6 * (length(digits) - i))) FROM generate_series(1, length(digits)) i
$$;
-- Another digit
CREATE FUNCTION changed(cursor text, i int) RETURNS text LANGUAGE sql IMMUTABLE AS $$
	SELECT overlay(cursor PLACING CASE substr(cursor, i, 1) WHEN '0' THEN '1' ELSE '0' END FROM i)
$$;
-- A character that is no digit, anywhere
SELECT DISTINCT attempt(overlay(head PLACING '.' FROM i FOR 1)) AS malformed
	FROM feed_head('"Odd ""Name"", with a comma"') head, generate_series(1, length(head)) i;

--
-- The layout: version, history, batch, position, its fingerprint and whether it
-- is a merged one, the seed of the server's start, and base.
-- Stored cursors are to be read by later versions: it does not change.
--
SELECT overlay(overlay(feed_head('"Odd ""Name"", with a comma"') PLACING 'hhhhhh' FROM 2) PLACING 'ssssss' FROM 32) AS head;
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) SELECT 'm', '1' FROM generate_series(1, 20);
CALL feed_publish();
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) SELECT 'm', '1' FROM generate_series(1, 300);
CALL feed_publish();
INSERT INTO other (message_type, data) SELECT 'm', '1' FROM generate_series(1, 20);
CALL feed_publish();
CREATE TABLE cursors AS
	SELECT row_number() OVER () AS n, cursor, (entry).feed_pos FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 1000);
SELECT n, length(cursor), octet_length(cursor), left(cursor, 1) AS version, substr(cursor, 8, 7) AS batch, substr(cursor, 15, 11) AS position,
	substr(cursor, 26, 12) ~ '^[-0-9A-Z_a-z]{12}$' AS digits, number(substr(cursor, 26, 6)) >> 32 AS merged, substr(cursor, 38) AS base
	FROM cursors WHERE n IN (1, 16, 20, 21, 320) ORDER BY n;
SELECT bool_and(number(substr(cursor, 15, 11)) = feed_pos) AS positions,
	bool_and(number(substr(cursor, 32, 6)) = b.seed::bigint & 4294967295) AS starts,
	bool_and(number(substr(cursor, 2, 6)) = f.history::bigint & 4294967295) AS histories
	FROM cursors LEFT JOIN (feedpub._batch b JOIN feedpub._floor f USING (feed)) ON b.feed = '"Odd ""Name"", with a comma"'::regclass AND b.sync_id = number(substr(cursor, 8, 7)) - (1::bigint << 41);
-- All of a feed are of this start, and another session's as well.
SELECT count(DISTINCT substr(cursor, 32, 6)) AS starts, count(DISTINCT substr(feed_head('other'), 32, 6)) AS of_another_feed, bool_or(substr(cursor, 32, 6) = substr(feed_head('other'), 32, 6)) AS same FROM cursors;
SELECT substr(feed_head('other'), 32, 6) AS start \gset
\c
SET feedpub.read_wait = 0;
SELECT substr(feed_head('other'), 32, 6) = :'start' AS same;
-- It does not matter for where a cursor is.
SELECT feedpub._cursor_compare(cursor, overlay(cursor PLACING '2zzzzz' FROM 32)) AS compared, attempt(cursor) = attempt(overlay(cursor PLACING '2zzzzz' FROM 32)) AS same FROM cursors WHERE n = 26;
-- Sorted as text, in any collation of ASCII that is one, they are in feed
-- order.
SELECT count(*) FILTER (WHERE n <> sorted) AS out_of_order, count(*) FILTER (WHERE n <> sorted_c) AS out_of_order_c
	FROM (SELECT n, row_number() OVER (ORDER BY cursor) AS sorted, row_number() OVER (ORDER BY cursor COLLATE "C") AS sorted_c FROM cursors) s;
-- The head is the cursor of the last row, while that is there.
SELECT feed_head('"Odd ""Name"", with a comma"') = cursor AS same FROM cursors WHERE n = 320;
-- A read after any of them returns the rows that came after it.
SELECT count(*) AS cursors, sum((SELECT count(*) FROM feed_read(NULL::"Odd ""Name"", with a comma", c.cursor, 5) r
		JOIN cursors l ON l.cursor = r.cursor AND l.n BETWEEN c.n + 1 AND c.n + 5)) AS found, sum(least(5, 320 - n)) AS of
	FROM cursors c;
-- A cursor may also be between two rows, or after the last.
SELECT count(*), min((entry).feed_pos) FROM feed_read(NULL::"Odd ""Name"", with a comma", (SELECT overlay(cursor PLACING '-----------' FROM 15) FROM cursors WHERE n = 100), 1000);
SELECT count(*), min((entry).feed_pos) FROM feed_read(NULL::"Odd ""Name"", with a comma", (SELECT overlay(cursor PLACING '6zzzzzzzzzz' FROM 15) FROM cursors WHERE n = 3), 1000);
SELECT count(*) FROM feed_read(NULL::"Odd ""Name"", with a comma", (SELECT overlay(cursor PLACING '6zzzzzzzzzz' FROM 15) FROM cursors WHERE n = 320), 1000);
-- The beginning, in words
SELECT history AS own FROM feedpub._floor WHERE feed = '"Odd ""Name"", with a comma"'::regclass \gset
SELECT attempt(''), attempt('1' || digits(:own & 4294967295, 6) || repeat('-', 37)), attempt('1' || digits(:own & 4294967295, 6) || 'V' || repeat('-', 36));

--
-- Malformed
--
SELECT cursor AS good FROM cursors WHERE n = 26 \gset
SELECT what, attempt(c), attempt_page(c) FROM (VALUES
	(1, 'good', :'good'),
	(4, 'too short', left(:'good', 43)),
	(5, 'too long', :'good' || '0'),
	(6, 'far too long', repeat(:'good', 100)),
	(7, 'a space', ' '),
	(8, 'a space in front', ' ' || :'good'),
	(9, 'a space at the end', :'good' || ' '),
	(10, 'a space in front, of the right length', ' ' || right(:'good', 43)),
	(11, 'a line feed at the end', :'good' || E'\n'),
	(12, 'one digit', '0'),
	(13, 'zeroes', repeat('-', 44)),
	(14, 'version 0', '0' || substr(:'good', 2)),
	(15, 'version 2', '2' || substr(:'good', 2)),
	(16, 'version z', 'z' || substr(:'good', 2)),
	(17, 'no digit', overlay(:'good' PLACING '/' FROM 20)),
	(18, 'a sign', overlay(:'good' PLACING '+' FROM 15)),
	(19, 'with 0x', '0x' || substr(:'good', 3)),
	(20, 'a history of 33 bits', overlay(:'good' PLACING '3' FROM 2)),
	(21, 'a negative position', overlay(:'good' PLACING '7' FROM 15)),
	(22, 'a position of more than 64 bits', overlay(:'good' PLACING 'z' FROM 15)),
	(23, 'multibyte, 44 characters', repeat(U&'\20AC', 44)),
	(24, 'multibyte, 44 bytes', repeat(U&'\20AC', 14) || U&'\00E9'),
	(25, 'multibyte at the end', left(:'good', 42) || U&'\00E9'),
	(26, 'other digits', overlay(:'good' PLACING U&'\0661' FROM 20)),
	(27, 'in words', 'beginning'),
	(29, 'merged or what', overlay(:'good' PLACING '7' FROM 26)),
	(31, 'no base', overlay(:'good' PLACING ' ' FROM 44)),
	(32, 'no start', overlay(:'good' PLACING '=' FROM 35)),
	(33, 'a start of 33 bits', overlay(:'good' PLACING '3' FROM 32)),
	(35, 'of a longer cursor', overlay(:'good' PLACING '7' FROM 32)),
	(34, 'a number', '12345')) AS v (n, what, c) ORDER BY n;
-- A cursor of a table feed's page goes on with what the page rests on.  If some
-- of that is cut off, or is no digit, it is no cursor.  If it is another digit,
-- the consumer goes on, goes back or is refused.
CREATE TABLE kv (k int PRIMARY KEY);
SELECT feed_attach('kv');
INSERT INTO kv SELECT generate_series(1, 3);
CALL feed_publish('kv');
CREATE FUNCTION attempt_kv(after text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	RETURN json_array_length(feed_page('kv', after) -> 'entries') || ' rows';
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE;
END $$;
SELECT feed_page('kv', '', 1) ->> 'cursor' AS long \gset
SELECT length(:'long'), attempt_kv(:'long') AS long, attempt_kv(:'long' || '0') AS too_long, attempt_kv(:'long' || :'long') AS twice, attempt_kv(substr(:'long', 45)) AS rest;
SELECT attempt_kv(left(:'long', n)), count(*) FROM generate_series(1, 63) n GROUP BY 1;
SELECT attempt_kv(overlay(:'long' PLACING c FROM n)), count(*) FROM generate_series(38, 64) n, (VALUES ('.'), ('+'), (' '), ('=')) v (c) GROUP BY 1;
SELECT attempt_kv(overlay(:'long' PLACING '3' FROM 45)) AS seed_of_33_bits, attempt_kv(overlay(:'long' PLACING 'zzzzzzz' FROM 38)) AS base_of_no_page,
	attempt_kv(overlay(:'long' PLACING 'y' FROM 60)) AS back_beyond_all, attempt_kv(overlay(:'long' PLACING 'y' FROM 56)) AS proof_beyond_all;
SELECT attempt_kv(overlay(overlay(:'long' PLACING digits(c, 1) FROM n) PLACING start FROM 32)) IN ('2 rows', '3 rows', '22023', 'PF001') AS expected, count(*)
	FROM generate_series(38, 64) n, generate_series(0, 63) c, (VALUES (substr(:'long', 32, 6)), ('7zzzzz')) v (start) GROUP BY 1;
-- If another server start made it, the proof decides, and then the other one.
SELECT overlay(feed_page('kv', '', 3) ->> 'cursor' PLACING '0' FROM 55) AS proved \gset
SELECT attempt_kv(:'proved') AS proved,
	attempt_kv(overlay(:'proved' PLACING '7zzzzz' FROM 32)) AS goes_back,
	attempt_kv(overlay(overlay(:'proved' PLACING '7zzzzz' FROM 32) PLACING '---0----0' FROM 56)) AS refused;
SELECT feed_detach('kv');
DROP FUNCTION attempt_kv;
DROP TABLE kv;
-- The message shows what was given, not all of it when that is long, and
-- whole characters.
SELECT count(*) FROM feed_read(NULL::"Odd ""Name"", with a comma", 'nonsense', 1);
\echo :SQLSTATE
SELECT count(*) FROM feed_read(NULL::"Odd ""Name"", with a comma", repeat(U&'x\20AC', 1000), 1);
\echo :SQLSTATE
SELECT count(*) FROM feed_read(NULL::"Odd ""Name"", with a comma", NULL, 1);
\echo :SQLSTATE
SELECT feed_wait('other', 'nonsense', '0 s');
\echo :SQLSTATE
CALL feed_await('other', 'nonsense', '0 s');
\echo :SQLSTATE

--
-- Of another history
--
SELECT what, attempt(c), attempt_page(c) FROM (VALUES
	(1, 'another history', changed(:'good', 7)),
	(2, 'history 0', overlay(:'good' PLACING '------' FROM 2)),
	(3, 'another history, at the beginning', '1012345' || repeat('-', 37)),
	(4, 'another history, before the first batch', '1012345V' || repeat('-', 36)),
	(5, 'another fingerprint', changed(:'good', 31)),
	(6, 'the fingerprint of the other batch', overlay(:'good' PLACING (SELECT substr(cursor, 26, 6) FROM cursors WHERE n = 1) FROM 26)),
	(11, 'of a merged batch', overlay(:'good' PLACING digits(number(substr(:'good', 26, 6)) | (1::bigint << 32), 6) FROM 26)),
	(7, 'the next batch', overlay(:'good' PLACING 'V-----2' FROM 8)),
	(8, 'a batch in the far future', overlay(:'good' PLACING 'zzzzzzz' FROM 8)),
	(9, 'another feed''s batch 1', (SELECT cursor FROM feed_read(NULL::other, '', 1))),
	(10, 'another feed''s head', feed_head('other'))) AS v (n, what, c) ORDER BY n;
SELECT count(*) FROM feed_read(NULL::"Odd ""Name"", with a comma", feed_head('other'), 1);
\echo :SQLSTATE
-- In a transaction that keeps its snapshot there is the batch or there is not.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT attempt(:'good'), attempt(overlay(:'good' PLACING 'V-----2' FROM 8)), attempt(feed_head('other'));
ROLLBACK;
-- A feed that was made again begins again, and knows the cursors of the old
-- one for what they are.
SELECT feed_drop('other');
SELECT feed_create('other');
CREATE FUNCTION attempt_other(after text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	RETURN (SELECT count(*) || ' rows' FROM feed_read(NULL::other, after, 100) WHERE op <> 'end');
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE;
END $$;
SELECT attempt_other(''), attempt_other(:'good');
INSERT INTO other (message_type, data) SELECT 'm', '1' FROM generate_series(1, 20);
CALL feed_publish();
SELECT attempt_other(''), attempt_other(:'good'), attempt_other((SELECT cursor FROM cursors WHERE n = 1));
-- From a stamp in xid order: after what the consumer has read, and before what
-- it has not.
SELECT feed_xid AS xid, max(feed_pos) AS pos FROM other GROUP BY feed_xid \gset
INSERT INTO other (message_type, data) VALUES ('next', '1') RETURNING feed_xid AS next_xid, feed_pos AS next_pos \gset
\set VERBOSITY terse
SELECT feed_cursor('other', :'next_xid', :next_pos);
\echo :SQLSTATE
CALL feed_publish();
SELECT count(*) AS all, max((entry).message_type) FROM feed_read(NULL::other, feed_cursor('other', '0', 0));
SELECT count(*) AS all FROM feed_read(NULL::other, feed_cursor('other', :'xid', :pos));
SELECT (entry).message_type FROM feed_read(NULL::other, feed_cursor('other', :'next_xid', :next_pos));
SELECT feed_cursor('other', '0', -1);
\echo :SQLSTATE
SELECT feed_cursor('other', '9223372036854775807', 0);
\echo :SQLSTATE
SELECT feed_cursor('cursors', '0', 0);
\echo :SQLSTATE
\set VERBOSITY default

-- Does a subscription move forward?  In the initial snapshot the batch is a
-- partition's OID, and the fingerprint tells of the database, in its first half,
-- and of the file: in another one all is read again.
CREATE FUNCTION moves(partition int, pos int, fingerprint bigint, to_partition int, to_pos int, to_fingerprint bigint) RETURNS boolean LANGUAGE sql AS $$
	SELECT feedpub._cursor_moves(format(layout, digits(partition, 7), digits(pos, 11), digits(fingerprint, 6)), format(layout, digits(to_partition, 7), digits(to_pos, 11), digits(to_fingerprint, 6)))
	FROM (SELECT '1------%s%s%s' || repeat('-', 13)) p (layout)
$$;
-- fingerprints aaaa0001, aaaa0002 and bbbb0001
SELECT moves(0, 1, 2863267841, 0, 2, 2863267841) AS on, moves(0, 2, 2863267841, 0, 1, 2863267841) AS back, moves(0, 2, 2863267841, 0, 1, 2863267842) AS in_another_file;
SELECT moves(4, 2, 2863267841, 5, 1, 2863267842) AS next_partition, moves(5, 1, 2863267842, 4, 2, 2863267841) AS partition_before, moves(5, 1, 2863267842, 4, 2, 3149594625) AS of_another_database;
DROP FUNCTION moves;

DROP FUNCTION attempt, attempt_page, attempt_other, digits, number, changed;
DROP TABLE cursors;
SELECT count(feed_drop(feed::text)) FROM feedpub.feeds;
