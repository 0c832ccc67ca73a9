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
-- A character that is no digit, anywhere
SELECT DISTINCT attempt(overlay(head PLACING 'g' FROM i FOR 1)) AS malformed
	FROM feed_head('"Odd ""Name"", with a comma"') head, generate_series(1, length(head)) i;

--
-- The layout: version, history, kind, batch, position, whether the batch is a
-- merged one, its fingerprint, the server's start, base, and what is reserved.
-- Stored cursors are to be read by later versions: it does not change.
--
SELECT overlay(overlay(feed_head('"Odd ""Name"", with a comma"') PLACING 'hhhhhhhh' FROM 2) PLACING 'ssssssssssssssss' FROM 52) AS head;
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) SELECT 'm', '1' FROM generate_series(1, 20);
CALL feed_publish();
INSERT INTO "Odd ""Name"", with a comma" (message_type, data) SELECT 'm', '1' FROM generate_series(1, 300);
CALL feed_publish();
INSERT INTO other (message_type, data) SELECT 'm', '1' FROM generate_series(1, 20);
CALL feed_publish();
CREATE TABLE cursors AS
	SELECT row_number() OVER () AS n, cursor, (entry).feed_pos FROM feed_read(NULL::"Odd ""Name"", with a comma", '', 1000);
SELECT n, length(cursor), octet_length(cursor), left(cursor, 1) AS version, substr(cursor, 10, 1) AS kind, substr(cursor, 11, 16) AS batch, substr(cursor, 27, 16) AS position,
	substr(cursor, 43, 1) AS merged, substr(cursor, 44, 24) ~ '^[0-9a-f]{24}$' AS hex, substr(cursor, 68, 16) AS base, substr(cursor, 84) AS reserved
	FROM cursors WHERE n IN (1, 16, 20, 21, 320) ORDER BY n;
SELECT bool_and(('x' || substr(cursor, 27, 16))::bit(64)::bigint = feed_pos) AS positions,
	bool_and(('x' || substr(cursor, 44, 8))::bit(32)::int = b.fingerprint) AS fingerprints,
	bool_and(('x' || substr(cursor, 2, 8))::bit(32)::int = f.history) AS histories
	FROM cursors LEFT JOIN (feedpub._batch b JOIN feedpub._floor f USING (feed)) ON b.feed = '"Odd ""Name"", with a comma"'::regclass AND b.sync_id = ('x' || substr(cursor, 11, 16))::bit(64)::bigint;
-- All are of this start, and another session's as well.
SELECT count(DISTINCT start) AS starts, bool_or(start = repeat('0', 16)) AS zero, min(start) = (SELECT lpad(to_hex(id), 16, '0') FROM feedpub._server_start) AS written
	FROM (SELECT substr(cursor, 52, 16) AS start FROM cursors UNION ALL SELECT substr(feed_head('other'), 52, 16)) s;
SELECT substr(cursor, 52, 16) AS start FROM cursors LIMIT 1 \gset
\c
SET feedpub.read_wait = 0;
SELECT substr(feed_head('other'), 52, 16) = :'start' AS same;
-- It does not matter for where a cursor is.
SELECT feedpub._cursor_compare(cursor, overlay(cursor PLACING 'ffffffffffffffff' FROM 52)) AS compared, attempt(cursor) = attempt(overlay(cursor PLACING 'ffffffffffffffff' FROM 52)) AS same FROM cursors WHERE n = 26;
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
SELECT count(*), min((entry).feed_pos) FROM feed_read(NULL::"Odd ""Name"", with a comma", (SELECT overlay(cursor PLACING '0000000000000000' FROM 27) FROM cursors WHERE n = 100), 1000);
SELECT count(*), min((entry).feed_pos) FROM feed_read(NULL::"Odd ""Name"", with a comma", (SELECT overlay(cursor PLACING '7fffffffffffffff' FROM 27) FROM cursors WHERE n = 3), 1000);
SELECT count(*) FROM feed_read(NULL::"Odd ""Name"", with a comma", (SELECT overlay(cursor PLACING '7fffffffffffffff' FROM 27) FROM cursors WHERE n = 320), 1000);
-- The beginning, in words
SELECT history AS own FROM feedpub._floor WHERE feed = '"Odd ""Name"", with a comma"'::regclass \gset
SELECT attempt(''), attempt('1' || lpad(to_hex(:own), 8, '0') || 'a' || repeat('0', 89)), attempt('1' || lpad(to_hex(:own), 8, '0') || 'b' || repeat('0', 89));

--
-- Malformed
--
SELECT cursor AS good FROM cursors WHERE n = 26 \gset
SELECT what, attempt(c), attempt_page(c) FROM (VALUES
	(1, 'good', :'good'),
	(2, 'upper case', upper(:'good')),
	(3, 'one digit in upper case', overlay(:'good' PLACING 'A' FROM 42)),
	(4, 'too short', left(:'good', 98)),
	(5, 'too long', :'good' || '0'),
	(6, 'far too long', repeat(:'good', 100)),
	(7, 'a space', ' '),
	(8, 'a space in front', ' ' || :'good'),
	(9, 'a space at the end', :'good' || ' '),
	(10, 'a space in front, of the right length', ' ' || right(:'good', 98)),
	(11, 'a line feed at the end', :'good' || E'\n'),
	(12, 'one digit', '0'),
	(13, 'zeroes', repeat('0', 99)),
	(14, 'version 0', '0' || substr(:'good', 2)),
	(15, 'version 2', '2' || substr(:'good', 2)),
	(16, 'version 15', 'f' || substr(:'good', 2)),
	(17, 'a letter beyond f', overlay(:'good' PLACING 'g' FROM 30)),
	(18, 'a sign', overlay(:'good' PLACING '-' FROM 27)),
	(19, 'with 0x', '0x' || substr(:'good', 3)),
	(20, 'a negative batch', overlay(:'good' PLACING 'f' FROM 11)),
	(21, 'a negative position', overlay(:'good' PLACING '8' FROM 27)),
	(22, 'a number', '12345'),
	(23, 'multibyte, 99 characters', repeat(U&'\20AC', 99)),
	(24, 'multibyte, 99 bytes', repeat(U&'\20AC', 33)),
	(25, 'multibyte at the end', left(:'good', 97) || U&'\00E9'),
	(26, 'other digits', overlay(:'good' PLACING U&'\0661' FROM 30)),
	(27, 'in words', 'beginning'),
	(28, 'of no kind', overlay(:'good' PLACING 'c' FROM 10)),
	(29, 'merged or what', overlay(:'good' PLACING '2' FROM 43)),
	(30, 'a negative base', overlay(:'good' PLACING '8' FROM 68)),
	(31, 'no base', overlay(:'good' PLACING ' ' FROM 83)),
	(32, 'no start', overlay(:'good' PLACING 'x' FROM 60)),
	(33, 'no reserved digits', overlay(:'good' PLACING 'x' FROM 99)),
	(34, 'a reserved digit', overlay(:'good' PLACING '1' FROM 99))) AS v (n, what, c) ORDER BY n;
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
SELECT length(:'long'), attempt_kv(:'long') AS long, attempt_kv(:'long' || '0') AS too_long, attempt_kv(:'long' || :'long') AS twice, attempt_kv(substr(:'long', 100)) AS rest;
SELECT attempt_kv(left(:'long', n)), count(*) FROM generate_series(1, 204) n GROUP BY 1;
SELECT attempt_kv(overlay(:'long' PLACING c FROM n)), count(*) FROM generate_series(84, 205) n, (VALUES ('g'), ('A'), (' '), ('-')) v (c) GROUP BY 1;
SELECT attempt_kv(overlay(:'long' PLACING '8' FROM n)) AS negative, n FROM (VALUES (84), (125), (141), (166)) v (n);
SELECT attempt_kv(overlay(overlay(:'long' PLACING to_hex(c) FROM n) PLACING start FROM 52)) IN ('2 rows', '3 rows', '22023', 'PF001') AS expected, count(*)
	FROM generate_series(84, 205) n, generate_series(0, 15) c, (VALUES (substr(:'long', 52, 16)), (repeat('f', 16))) v (start) GROUP BY 1;
-- If another server start made it, the proof decides, and then the other one.
SELECT overlay(feed_page('kv', '', 3) ->> 'cursor' PLACING repeat('f', 16) FROM 52) AS foreign \gset
SELECT attempt_kv(:'foreign') AS proved,
	attempt_kv(overlay(:'foreign' PLACING '00000000' FROM 116)) AS goes_back,
	attempt_kv(overlay(overlay(:'foreign' PLACING '00000000' FROM 116) PLACING '0000000000000001' FROM 166)) AS refused;
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
	(1, 'another history', overlay(:'good' PLACING translate(substr(:'good', 9, 1), '0123456789abcdef', '123456789abcdef0') FROM 9)),
	(2, 'history 0', overlay(:'good' PLACING '00000000' FROM 2)),
	(3, 'another history, at the beginning', '1' || '12345678' || 'a' || repeat('0', 89)),
	(4, 'another history, before the first batch', '1' || '12345678' || 'b' || repeat('0', 89)),
	(5, 'another fingerprint', overlay(:'good' PLACING translate(substr(:'good', 51, 1), '0123456789abcdef', '123456789abcdef0') FROM 51)),
	(6, 'the fingerprint of the other batch', overlay(:'good' PLACING (SELECT substr(cursor, 44, 8) FROM cursors WHERE n = 1) FROM 44)),
	(11, 'of a merged batch', overlay(:'good' PLACING '1' FROM 43)),
	(7, 'the next batch', overlay(:'good' PLACING '3' FROM 26)),
	(8, 'a batch in the far future', overlay(:'good' PLACING '7fffffffffffffff' FROM 11)),
	(9, 'another feed''s batch 1', (SELECT cursor FROM feed_read(NULL::other, '', 1))),
	(10, 'another feed''s head', feed_head('other'))) AS v (n, what, c) ORDER BY n;
SELECT count(*) FROM feed_read(NULL::"Odd ""Name"", with a comma", feed_head('other'), 1);
\echo :SQLSTATE
-- In a transaction that keeps its snapshot there is the batch or there is not.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT attempt(:'good'), attempt(overlay(:'good' PLACING '3' FROM 26)), attempt(feed_head('other'));
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
CREATE FUNCTION moves(partition int, pos int, fingerprint text, to_partition int, to_pos int, to_fingerprint text) RETURNS boolean LANGUAGE sql AS $$
	SELECT feedpub._cursor_moves(format(layout, lpad(to_hex(partition), 16, '0'), lpad(to_hex(pos), 16, '0'), fingerprint), format(layout, lpad(to_hex(to_partition), 16, '0'), lpad(to_hex(to_pos), 16, '0'), to_fingerprint))
	FROM (SELECT '100000000a%s%s0%s' || repeat('0', 48)) p (layout)
$$;
SELECT moves(0, 1, 'aaaa0001', 0, 2, 'aaaa0001') AS on, moves(0, 2, 'aaaa0001', 0, 1, 'aaaa0001') AS back, moves(0, 2, 'aaaa0001', 0, 1, 'aaaa0002') AS in_another_file;
SELECT moves(4, 2, 'aaaa0001', 5, 1, 'aaaa0002') AS next_partition, moves(5, 1, 'aaaa0002', 4, 2, 'aaaa0001') AS partition_before, moves(5, 1, 'aaaa0002', 4, 2, 'bbbb0001') AS of_another_database;
DROP FUNCTION moves;

DROP FUNCTION attempt, attempt_page, attempt_other;
DROP TABLE cursors;
SELECT count(feed_drop(feed::text)) FROM feedpub.feeds;
