-- The floor against its specification in plain SQL, on random feeds: where it
-- goes, which cursors are refused, what the others get, and what is removed.
-- max_size, which depends on the server's statistics, is in retain_limits.sql.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
-- Here batches are made by hand: no worker, and reads do not wait for one.
SELECT feed_stop_worker() IS NOT NULL AS stopped;
DO $$
BEGIN
	WHILE EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'feedpub worker' AND datname = current_database()) LOOP
		PERFORM pg_stat_clear_snapshot();
	END LOOP;
END $$;
SET feedpub.read_wait = 0;
SET jit = off;
CREATE EXTENSION dblink;
SELECT feed_create('model_feed');
CREATE TABLE model_table (id int PRIMARY KEY, v int NOT NULL);
INSERT INTO model_table SELECT i, 0 FROM generate_series(1, 6) i;
SELECT feed_attach('model_table');

--
-- The specification.  It has its own record of the batches, which keeps those
-- that have been removed; which batches are merged it takes from the other.
--
CREATE TABLE model_batch (feed regclass, sync_id bigint, snapshot pg_snapshot, last_pos bigint, published_at timestamptz,
	youngest_pos bigint, -- if it is merged, where the youngest of them ended
	PRIMARY KEY (feed, sync_id));
CREATE TABLE model_floor (feed regclass PRIMARY KEY, sync_id bigint NOT NULL DEFAULT 0, pos bigint NOT NULL DEFAULT 0, youngest_pos bigint,
	removed_xid xid8 NOT NULL DEFAULT '0', removed_pos bigint NOT NULL DEFAULT 0);
INSERT INTO model_floor VALUES ('model_feed'), ('model_table');
-- Rows of the outbox, and deletes of the table, that are to be there
CREATE TABLE model_row (feed_xid xid8, feed_pos bigint PRIMARY KEY);
CREATE TABLE model_delete (LIKE model_row INCLUDING ALL);
-- Cursors that a consumer had, with its base, and its copy of the table
CREATE TABLE known (feed regclass, cursor text, base bigint NOT NULL, copy jsonb NOT NULL DEFAULT '{}');
-- Two pages may give the same position with other proofs.
CREATE UNIQUE INDEX ON known (feed, left(cursor, 44));
INSERT INTO known VALUES ('model_feed', '', 9e18), ('model_table', '', 9e18);

-- Only here a cursor is taken apart.
-- A subscription's has no proof.
CREATE FUNCTION plain(cursor text) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT overlay(left(cursor, 44) PLACING translate(substr(cursor, 32, 1), '789A', '-012') FROM 32) $$;
CREATE FUNCTION number(digits text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
	SELECT bit_or((strpos('-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz', substr(digits, i, 1)) - 1)::bigint << (6 * (length(digits) - i))) FROM generate_series(1, length(digits)) i
$$;
CREATE TYPE parsed AS (sync_id bigint, pos bigint, merged bool, base bigint);
CREATE FUNCTION parse(cursor text) RETURNS parsed LANGUAGE sql IMMUTABLE AS $$
	SELECT CASE WHEN cursor = '' OR substr(cursor, 8, 1) < 'V' COLLATE "C" THEN 0 ELSE number(substr(cursor, 8, 7)) & (1::bigint << 41) - 1 END,
		CASE WHEN cursor = '' OR substr(cursor, 8, 1) < 'V' COLLATE "C" THEN 0 ELSE number(substr(cursor, 15, 11)) END,
		number(substr(cursor, 26, 6)) >> 32 = 1, CASE WHEN cursor <> '' THEN number(substr(cursor, 38, 7)) END
$$;
-- Has a cursor passed the end of a batch?
CREATE FUNCTION passed(c parsed, sync_id bigint, last_pos bigint, youngest_pos bigint) RETURNS bool LANGUAGE sql IMMUTABLE AS $$
	SELECT c.sync_id > sync_id OR c.sync_id = sync_id AND (c.pos >= last_pos OR coalesce(NOT c.merged AND c.pos >= youngest_pos, false))
$$;
-- Is it before the floor, in a table feed with its base too?
CREATE FUNCTION expired(f regclass, c parsed, base bigint) RETURNS bool LANGUAGE sql STABLE AS $$
	SELECT (f = 'model_feed'::regclass OR base < m.sync_id) AND NOT passed(c, m.sync_id, m.pos, m.youngest_pos) FROM model_floor m WHERE m.feed = f
$$;
-- The committed cursors that have not expired
CREATE VIEW interest AS
	SELECT s.feed, c AS parsed FROM feedpub._subscription s JOIN feedpub._shard h ON h.subscription = s.name, parse(h.cursor) c
	WHERE NOT expired(s.feed, c, c.base);
-- Where the policy puts the floor: before the first batch that is to be kept.
-- The last batch of a table feed stays.
CREATE FUNCTION model_choose(f regclass, scale float8) RETURNS bigint LANGUAGE sql STABLE AS $$
	WITH p AS (SELECT clock_timestamp() - keep * scale AS keep,
			clock_timestamp() - coalesce(max_age, CASE WHEN kind = 'table' AND keep IS NULL THEN interval '7 days' END) * scale AS max_age
		FROM feedpub._feed WHERE feed = f),
	head AS (SELECT * FROM model_batch WHERE feed = f ORDER BY sync_id DESC LIMIT 1),
	kept AS (SELECT min(b.sync_id) AS sync_id FROM model_batch b, p
		WHERE b.feed = f AND b.sync_id > (SELECT sync_id FROM model_floor WHERE feed = f)
		AND NOT coalesce(b.published_at <= p.max_age, false)
		AND NOT coalesce(b.published_at <= p.keep AND NOT EXISTS (SELECT FROM interest i
			WHERE i.feed = f AND NOT passed(i.parsed, b.sync_id, b.last_pos, b.youngest_pos)), false))
	SELECT max(b.sync_id) FROM model_batch b, head, kept
	WHERE b.feed = f AND b.sync_id > (SELECT sync_id FROM model_floor WHERE feed = f)
	AND b.sync_id < coalesce(kept.sync_id, 9e18) AND (f = 'model_feed'::regclass OR b.sync_id < head.sync_id)
$$;
-- In a table feed only if a delete is a quarter older than it has to be
CREATE FUNCTION model_policy(f regclass) RETURNS bigint LANGUAGE sql STABLE AS $$
	SELECT model_choose(f, 1) WHERE f = 'model_feed'::regclass OR EXISTS (SELECT FROM model_delete d, model_batch b
		WHERE b.feed = f AND b.sync_id = model_choose(f, 1.25) AND pg_visible_in_snapshot(d.feed_xid, b.snapshot))
$$;
-- Where a purge puts it: the last batch that the cursor has passed
CREATE FUNCTION model_purge(f regclass, before parsed) RETURNS bigint LANGUAGE sql STABLE AS $$
	SELECT max(b.sync_id) FROM model_batch b
	WHERE b.feed = f AND b.sync_id > (SELECT sync_id FROM model_floor WHERE feed = f) AND passed(before, b.sync_id, b.last_pos, b.youngest_pos)
	AND (f = 'model_feed'::regclass OR b.sync_id < (SELECT max(sync_id) FROM model_batch WHERE feed = f))
$$;
-- It is refused if a subscription has not passed the cursor.
CREATE FUNCTION model_purge_refused(f regclass, before parsed) RETURNS bool LANGUAGE sql STABLE AS $$
	SELECT before.sync_id > m.sync_id AND EXISTS (SELECT FROM interest i LEFT JOIN model_batch b ON b.feed = f AND b.sync_id = before.sync_id
		WHERE i.feed = f AND ((i.parsed).sync_id < before.sync_id OR (i.parsed).sync_id = before.sync_id AND (i.parsed).pos < before.pos
			OR passed(before, b.sync_id, b.last_pos, b.youngest_pos))
		AND NOT coalesce(passed(i.parsed, b.sync_id, b.last_pos, b.youngest_pos), false))
	FROM model_floor m WHERE m.feed = f
$$;
-- The floor moves; deletes go with it.  Returns how many batches or deletes.
CREATE FUNCTION model_move(f regclass, target bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	n bigint;
	old bigint;
	b model_batch;
BEGIN
	SELECT * INTO b FROM model_batch WHERE feed = f AND sync_id = target;
	IF NOT FOUND THEN
		RETURN 0;
	END IF;
	SELECT sync_id INTO old FROM model_floor WHERE feed = f;
	UPDATE model_floor SET sync_id = target, pos = b.last_pos, youngest_pos = b.youngest_pos WHERE feed = f;
	IF f = 'model_table'::regclass THEN
		DELETE FROM model_delete WHERE pg_visible_in_snapshot(feed_xid, b.snapshot);
		GET DIAGNOSTICS n = ROW_COUNT;
		RETURN n;
	END IF;
	UPDATE model_floor m SET removed_xid = r.feed_xid, removed_pos = r.feed_pos
		FROM (SELECT * FROM model_row WHERE pg_visible_in_snapshot(feed_xid, b.snapshot) ORDER BY feed_xid DESC, feed_pos DESC LIMIT 1) r
		WHERE feed = f AND (removed_xid, removed_pos) < (r.feed_xid, r.feed_pos);
	RETURN (SELECT count(*) FROM model_batch WHERE feed = f AND sync_id >= old AND sync_id < target);
END $$;

--
-- What is compared
--
CREATE TABLE comparison (what text, expected text, got text);
CREATE FUNCTION compare(what text, expected text, got text) RETURNS void LANGUAGE sql AS $$ INSERT INTO comparison VALUES (what, expected, got) $$;
-- What a statement returns, or its SQLSTATE
CREATE FUNCTION result(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	r text;
BEGIN
	EXECUTE statement INTO r;
	RETURN coalesce(r, 'nothing');
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE;
END $$;
CREATE PROCEDURE note() LANGUAGE sql AS $$
	INSERT INTO model_batch SELECT feed, sync_id, snapshot, last_pos, published_at FROM feedpub._batch b
		WHERE sync_id > coalesce((SELECT max(sync_id) FROM model_batch m WHERE m.feed = b.feed), 0);
	INSERT INTO model_row SELECT feed_xid, feed_pos FROM model_feed ON CONFLICT DO NOTHING;
	INSERT INTO model_delete SELECT feed_xid, feed_pos FROM feedpub._tombstone ON CONFLICT DO NOTHING;
$$;
CREATE PROCEDURE compare_floor(f regclass) LANGUAGE plpgsql AS $$
DECLARE
	m model_floor;
BEGIN
	SELECT * INTO m FROM model_floor WHERE feed = f;
	PERFORM compare('floor', (SELECT ROW(m.sync_id, m.pos, m.removed_xid, m.removed_pos)::text),
		(SELECT ROW(sync_id, pos, removed_xid, removed_pos)::text FROM feedpub._floor WHERE feed = f));
	PERFORM compare('feed_floor()', ROW(m.sync_id, m.pos, m.youngest_pos IS NOT NULL, CASE WHEN f = 'model_table'::regclass THEN m.sync_id ELSE 0 END)::text,
		parse(feed_floor(f))::text);
	PERFORM compare('batches', (SELECT string_agg(sync_id::text, ' ' ORDER BY sync_id) FROM model_batch WHERE feed = f AND (f = 'model_table'::regclass OR sync_id >= m.sync_id)),
		(SELECT string_agg(sync_id::text, ' ' ORDER BY sync_id) FROM feedpub._batch WHERE feed = f));
	PERFORM compare('deletes left', (SELECT array_agg(feed_pos ORDER BY feed_pos)::text FROM model_delete), (SELECT array_agg(feed_pos ORDER BY feed_pos)::text FROM feedpub._tombstone));
	PERFORM compare('expired subscriptions', (SELECT string_agg(s.name || bool, ' ' ORDER BY s.name) FROM (SELECT s.name, bool_or(expired(s.feed, c, c.base))
			FROM feedpub._subscription s JOIN feedpub._shard h ON h.subscription = s.name, parse(h.cursor) c GROUP BY s.name) s (name, bool)),
		(SELECT string_agg(name || expired, ' ' ORDER BY name) FROM feedpub.subscriptions));
END $$;
-- Every cursor.  Of those that are accepted: the rows after it, and whether the
-- copy is equal then.  In xid order every stamp.
CREATE PROCEDURE compare_cursors() LANGUAGE plpgsql AS $$
DECLARE
	k known;
	c parsed;
	refused bool;
	s record;
BEGIN
	CREATE TEMP TABLE published AS
		SELECT (SELECT min(sync_id) FROM model_batch b WHERE feed = 'model_feed'::regclass AND pg_visible_in_snapshot(r.feed_xid, b.snapshot)) AS sync_id, feed_pos
		FROM model_row r;
	DELETE FROM published WHERE sync_id IS NULL OR sync_id <= (SELECT sync_id FROM model_floor WHERE feed = 'model_feed'::regclass);
	FOR k IN SELECT * FROM known LOOP
		c := parse(k.cursor);
		refused := k.cursor <> '' AND expired(k.feed, c, k.base);
		PERFORM compare('base', CASE WHEN k.cursor <> '' AND k.feed = 'model_table'::regclass THEN nullif(k.base, 0)::text END, nullif(c.base::text, '0'));
		IF k.feed = 'model_table'::regclass THEN
			PERFORM compare('table', CASE WHEN refused THEN 'PF002' ELSE (SELECT jsonb_object_agg(id, v)::text FROM model_table) END,
				result(format('SELECT apply(%L, %L)', k.copy, k.cursor)));
		ELSE
			PERFORM compare('outbox', CASE WHEN refused THEN 'PF002' ELSE (SELECT coalesce(array_agg(feed_pos ORDER BY p.sync_id, feed_pos)::text, 'nothing')
					FROM published p LEFT JOIN model_batch b ON b.feed = k.feed AND b.sync_id = c.sync_id
					WHERE p.sync_id > c.sync_id OR p.sync_id = c.sync_id AND feed_pos > c.pos AND NOT passed(c, c.sync_id, b.last_pos, b.youngest_pos)) END,
				result(format('SELECT array_agg((entry).feed_pos) FROM feed_read(NULL::model_feed, %L, 10000) WHERE op = ''upsert''', k.cursor)));
		END IF;
		PERFORM compare('feed_page()', CASE WHEN refused THEN 'PF002' ELSE 'true' END, result(format('SELECT feed_page(%L, %L, 1) IS NOT NULL', k.feed, k.cursor)));
		PERFORM compare('feed_wait()', CASE WHEN refused THEN 'PF002' ELSE 'true' END, result(format('SELECT feed_wait(%L, %L, ''0'') IS NOT NULL', k.feed, k.cursor)));
	END LOOP;
	DROP TABLE published;
	FOR s IN SELECT feed_xid AS x, p, m.* FROM (SELECT '0'::xid8 AS feed_xid, 0::bigint AS feed_pos UNION ALL SELECT * FROM stamp) st,
		unnest(ARRAY[feed_pos, feed_pos - 1]) p, model_floor m WHERE feed = 'model_feed'::regclass AND p >= 0
	LOOP
		PERFORM compare('xid order', CASE WHEN s.x > '0' AND (s.x, s.p) < (s.removed_xid, s.removed_pos) THEN 'PF002'
			ELSE (SELECT coalesce(array_agg(feed_pos)::text, 'nothing') FROM (SELECT feed_pos FROM model_row WHERE (feed_xid, feed_pos) > (s.x, s.p)
				AND feed_xid < pg_snapshot_xmin(pg_current_snapshot()) ORDER BY feed_xid, feed_pos LIMIT 5) r) END,
			result(format('SELECT array_agg(feed_pos) FROM feed_fetch(NULL::model_feed, %L, %s, 5)', s.x, s.p)));
		PERFORM compare('feed_cursor()', CASE WHEN s.sync_id > (SELECT coalesce(max(sync_id), 0) FROM model_batch b WHERE b.feed = s.feed
				AND NOT EXISTS (SELECT FROM generate_series(s.x::text::bigint, pg_snapshot_xmax(b.snapshot)::text::bigint) x
					WHERE pg_visible_in_snapshot(x::text::xid8, b.snapshot))) THEN 'PF002' ELSE 'true' END,
			result(format('SELECT feed_cursor(''model_feed'', %L, %s) IS NOT NULL', s.x, s.p)));
	END LOOP;
END $$;
-- A consumer's copy after a page
CREATE FUNCTION apply(copy jsonb, after text) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
	r record;
	arrived bool := true;
BEGIN
	WHILE arrived LOOP
		arrived := false;
		FOR r IN SELECT * FROM feed_read(NULL::model_table, after, 10000) LOOP
			arrived := true;
			after := r.cursor;
			copy := CASE r.op WHEN 'upsert' THEN copy || jsonb_build_object((r.entry).id, (r.entry).v) WHEN 'delete' THEN copy - (r.entry).id::text ELSE copy END;
		END LOOP;
	END LOOP;
	RETURN copy;
END $$;

--
-- What happens, at random
--
CREATE TABLE stamp (feed_xid xid8, feed_pos bigint);
-- A page after a cursor, most often a late one; each of its cursors is known then.
CREATE PROCEDURE read_on(f regclass, max_rows int) LANGUAGE plpgsql AS $$
DECLARE
	k known;
	r record;
BEGIN
	SELECT * INTO k FROM (SELECT * FROM known WHERE feed = f AND (cursor = '' OR NOT expired(f, parse(cursor), base))
		ORDER BY cursor COLLATE "C" DESC LIMIT 1 + floor(random() ^ 3 * 200)::int) l ORDER BY cursor COLLATE "C" LIMIT 1;
	k.base := least(k.base, (SELECT coalesce(max(sync_id), 0) FROM model_batch WHERE feed = f));
	FOR r IN EXECUTE format('SELECT cursor, op, to_jsonb(entry) AS entry FROM feed_read(NULL::%s, %L, %s)', f, k.cursor, max_rows) LOOP
		k.copy := CASE WHEN f = 'model_feed'::regclass THEN '{}' WHEN r.op = 'upsert' THEN k.copy || jsonb_build_object(r.entry ->> 'id', r.entry -> 'v')
			WHEN r.op = 'delete' THEN k.copy - (r.entry ->> 'id') ELSE k.copy END;
		INSERT INTO known VALUES (f, r.cursor, k.base, k.copy) ON CONFLICT DO NOTHING;
	END LOOP;
END $$;
CREATE PROCEDURE set_policy(f regclass) LANGUAGE plpgsql AS $$
DECLARE
	keep int := CASE WHEN random() < 0.7 THEN floor(random() * 4) END;
	max_age int := CASE WHEN random() < 0.3 THEN 1 + coalesce(keep, 0) + floor(random() * 5) END;
BEGIN
	PERFORM feed_retain(f, keep * interval '1 hour', max_age * interval '1 hour');
END $$;
CREATE PROCEDURE subscribe(f regclass, n int) LANGUAGE plpgsql AS $$
DECLARE
	sub text := f || ' ' || n;
	has_expired bool := (SELECT bool_or(expired(f, c, c.base)) FROM feedpub._shard, parse(cursor) c WHERE subscription = sub);
	got text;
	r float8 := random();
	k known;
BEGIN
	SELECT * INTO k FROM known WHERE feed = f AND cursor <> '' ORDER BY random() LIMIT 1;
	IF NOT EXISTS (SELECT FROM feedpub._subscription s WHERE s.name = sub) THEN
		IF r < 0.5 AND k.feed IS NOT NULL THEN
			PERFORM compare('start', CASE WHEN expired(f, parse(k.cursor), k.base) THEN 'PF002' ELSE plain(k.cursor) END,
				result(format('SELECT feed_subscribe(%L, %L, %L, %s)', sub, f, k.cursor, n)));
		ELSE
			PERFORM feed_subscribe(sub, f, CASE WHEN r < 0.75 THEN 'earliest' ELSE 'latest' END, n);
		END IF;
	ELSIF r < 0.15 THEN
		PERFORM feed_unsubscribe(sub);
	ELSIF r < 0.25 AND k.feed IS NOT NULL THEN
		PERFORM compare('start', CASE WHEN expired(f, parse(k.cursor), k.base) THEN 'PF002' ELSE plain(k.cursor) END, result(format('SELECT feed_seek(%L, %L)', sub, k.cursor)));
	ELSE
		-- of two shards one may have expired
		got := result(format('SELECT coalesce(bool_and(feed_ack(%L, receipt)), true) FROM (SELECT receipt FROM feed_poll(%L, %s, ''consumer'') OFFSET %s LIMIT 1) r',
			sub, sub, 1 + floor(random() * 12)::int, floor(random() * 4)::int));
		IF n = 1 THEN
			PERFORM compare('feed_poll()', CASE WHEN has_expired THEN 'PF002' ELSE 'true' END, got);
		END IF;
	END IF;
END $$;
CREATE PROCEDURE merge(f regclass) LANGUAGE sql AS $$
	-- the older half is old
	UPDATE feedpub._batch SET published_at = '2000-01-01' WHERE feed = f AND sync_id < (SELECT avg(sync_id) FROM feedpub._batch WHERE feed = f);
	SELECT feedpub._merge_batches(f);
	UPDATE model_batch m SET youngest_pos = m.last_pos, last_pos = b.last_pos FROM feedpub._batch b
		WHERE b.feed = m.feed AND b.sync_id = m.sync_id AND b.merged_from IS NOT NULL AND m.youngest_pos IS NULL;
	DELETE FROM model_batch m USING feedpub._batch b WHERE b.feed = m.feed AND m.sync_id >= b.merged_from AND m.sync_id < b.sync_id;
	UPDATE feedpub._batch b SET published_at = m.published_at FROM model_batch m WHERE m.feed = b.feed AND m.sync_id = b.sync_id
$$;
CREATE PROCEDURE pass(f regclass, lapse interval) LANGUAGE sql AS $$
	UPDATE model_batch SET published_at = published_at - lapse WHERE feed = f;
	UPDATE feedpub._batch b SET published_at = m.published_at FROM model_batch m WHERE m.feed = b.feed AND m.sync_id = b.sync_id
$$;
-- Sessions: w1 to w3 write, some transactions are prepared, w0 does the rest.
SELECT count(dblink_connect('w' || i, format('dbname=%L user=%L host=%L port=%L', current_database(), current_user,
	split_part(current_setting('unix_socket_directories'), ',', 1), current_setting('port')))) FROM generate_series(0, 3) i;
CREATE PROCEDURE happen(events int) LANGUAGE plpgsql AS $$
DECLARE
	open boolean[] := array_fill(false, ARRAY[3]);
	prepared text[] := '{}';
	w int;
	c text;
	r float8;
	f regclass;
	k known;
	target bigint;
	expected text;
	n bigint;
BEGIN
	FOR event IN 1..events LOOP
		r := random();
		w := 1 + floor(random() * 3)::int;
		c := 'w' || w;
		f := (ARRAY['model_feed', 'model_table'])[1 + floor(random() * 2)::int];
		IF r < 0.45 THEN
			IF cardinality(prepared) > 0 AND random() < 0.1 THEN
				PERFORM dblink_exec('w0', CASE WHEN random() < 0.8 THEN 'COMMIT' ELSE 'ROLLBACK' END || ' PREPARED ' || quote_literal(prepared[1]));
				prepared := prepared[2:];
			ELSIF NOT open[w] THEN
				PERFORM dblink_exec(c, 'BEGIN');
				open[w] := true;
			ELSIF random() < 0.6 THEN
				PERFORM dblink_exec(c, format('INSERT INTO model_feed (message_type, message_key, data) SELECT ''random'', %s::text, ''1'' FROM generate_series(1, %s)',
					floor(random() * 5), 1 + floor(random() * 3)));
				-- each session has rows of its own, so none waits
				IF cardinality(prepared) = 0 THEN
					PERFORM dblink_exec(c, format('INSERT INTO model_table VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET v = EXCLUDED.v', event % 20 * 3 + w, event));
					PERFORM dblink_exec(c, format('DELETE FROM model_table WHERE id %% 3 = %s %% 3 AND v < %s', w, event - 60));
				END IF;
			ELSIF random() < 0.1 AND cardinality(prepared) = 0 THEN
				PERFORM dblink_exec(c, format('PREPARE TRANSACTION %L', 'regress_feedpub ' || event));
				prepared := prepared || ('regress_feedpub ' || event);
				open[w] := false;
			ELSE
				PERFORM dblink_exec(c, CASE WHEN random() < 0.85 THEN 'COMMIT' ELSE 'ROLLBACK' END);
				open[w] := false;
			END IF;
		ELSIF r < 0.55 THEN
			CALL feed_publish();
			-- the clock may have been ahead, or back
			CALL note();
			IF random() < 0.2 THEN
				UPDATE model_batch SET published_at = published_at + interval '30 min' * (floor(random() * 6) - 3) WHERE sync_id = (SELECT max(sync_id) FROM model_batch WHERE feed = f) AND feed = f;
				CALL pass(f, '0');
			END IF;
		ELSIF r < 0.60 THEN
			CALL pass(f, CASE WHEN random() < 0.02 THEN interval '9 days' ELSE interval '1 hour' END);
		ELSIF r < 0.74 THEN
			CALL read_on(f, 1 + floor(random() * 6)::int);
		ELSIF r < 0.76 THEN
			CALL set_policy(f);
		ELSIF r < 0.83 THEN
			CALL subscribe(f, 1 + floor(random() * 2)::int);
		ELSIF r < 0.89 THEN
			CALL note();
			target := model_policy(f);
			expected := model_move(f, target);
			PERFORM compare('policy', expected, feedpub._move_floor(f)::text);
			CALL compare_floor(f);
		ELSIF r < 0.94 THEN
			CALL note();
			SELECT * INTO k FROM known WHERE feed = f AND cursor <> '' ORDER BY cursor COLLATE "C" DESC OFFSET floor(random() ^ 2 * 60) LIMIT 1;
			CONTINUE WHEN k.feed IS NULL;
			IF model_purge_refused(f, parse(k.cursor)) THEN
				expected := '55000';
			ELSE
				n := model_move(f, model_purge(f, parse(k.cursor)));
				IF f = 'model_feed'::regclass THEN
					DELETE FROM model_row r USING model_floor m, model_batch b
						WHERE m.feed = f AND b.feed = f AND b.sync_id = m.sync_id AND pg_visible_in_snapshot(r.feed_xid, b.snapshot);
					GET DIAGNOSTICS n = ROW_COUNT;
				END IF;
				expected := n;
			END IF;
			COMMIT;
			PERFORM compare('feed_purge()', expected, result(format('SELECT purged FROM dblink(''w0'', %L) AS t (purged bigint)', format('CALL feed_purge(%L, %L)', f, k.cursor))));
			CALL compare_floor(f);
			PERFORM compare('rows left', (SELECT array_agg(feed_pos ORDER BY feed_pos)::text FROM model_row), (SELECT array_agg(feed_pos ORDER BY feed_pos)::text FROM model_feed));
		ELSIF r < 0.98 THEN
			CALL merge(f);
		ELSIF r < 0.985 THEN
			WITH d AS (DELETE FROM model_feed WHERE feed_pos IN (SELECT feed_pos FROM model_feed ORDER BY random() LIMIT 3) RETURNING feed_pos)
				DELETE FROM model_row USING d WHERE model_row.feed_pos = d.feed_pos;
		ELSE
			COMMIT;
			CALL feed_publish();
			CALL note();
			INSERT INTO stamp SELECT * FROM model_row ORDER BY random() LIMIT 5;
			CALL compare_cursors();
		END IF;
		COMMIT;
	END LOOP;
	FOR i IN 1..3 LOOP
		IF open[i] THEN
			PERFORM dblink_exec('w' || i, 'COMMIT');
		END IF;
	END LOOP;
	IF cardinality(prepared) > 0 THEN
		PERFORM dblink_exec('w0', 'COMMIT PREPARED ' || quote_literal(prepared[1]));
	END IF;
END $$;
SET feedpub.max_batch_transactions = 8;
SELECT setseed(0.75);
CALL happen(700);
-- The differences, of which there are none
SELECT what, expected, got FROM comparison WHERE expected IS DISTINCT FROM got LIMIT 10;
-- What has been compared
SELECT what, count(*) > 5 AS several, count(*) FILTER (WHERE expected IS DISTINCT FROM got) AS differences,
	bool_or(expected IN ('PF002', '55000')) AS some_refused, bool_or(expected NOT IN ('PF002', '55000')) AS some_not
FROM comparison GROUP BY what ORDER BY what COLLATE "C";
SELECT count(*) FILTER (WHERE what = 'policy' AND got <> '0') > 2 AS floors_moved, count(*) FILTER (WHERE what = 'expired subscriptions' AND got ~ 'true') > 2 AS expired FROM comparison;

SELECT dblink_disconnect('w' || i) FROM generate_series(0, 3) i;
SELECT feed_drop('model_feed', cascade => true);
SELECT feed_detach('model_table', cascade => true);
DROP PROCEDURE happen, pass, merge, subscribe, set_policy, read_on, compare_cursors, compare_floor, note;
DROP FUNCTION apply, result, compare, model_move, model_purge_refused, model_purge, model_policy, model_choose;
DROP VIEW interest;
DROP FUNCTION expired, passed, parse, number, plain;
DROP TYPE parsed;
DROP TABLE model_table, model_batch, model_floor, model_row, model_delete, known, comparison, stamp;
DROP EXTENSION dblink;
