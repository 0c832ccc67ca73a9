-- Parallel queries: no function that reads a feed is run in one.
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
SELECT feed_create('outbox');
CREATE TABLE kv (k int PRIMARY KEY, v text);
SELECT feed_attach('kv');
INSERT INTO outbox (message_type, data) SELECT 'a', to_jsonb(i) FROM generate_series(1, 3) i;
INSERT INTO kv SELECT i, 'a' FROM generate_series(1, 3) i;
CALL feed_publish();
SELECT feed_subscribe('sub', 'outbox', 'earliest') <> '' AS made;
SELECT feed_head('outbox') AS head \gset
CREATE TABLE big AS SELECT i, i % 3 + 1 AS n FROM generate_series(1, 20000) i;
ANALYZE big;

-- Every query that can be is run in parallel, whatever it costs.
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
SET max_parallel_workers_per_gather = 2;
DO $$
BEGIN
	-- its name until 15, and from 16 on
	PERFORM set_config(name, 'on', false) FROM pg_settings WHERE name IN ('force_parallel_mode', 'debug_parallel_query');
END $$;
CREATE FUNCTION is_parallel(query text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	plan json;
BEGIN
	EXECUTE 'EXPLAIN (FORMAT json) ' || query INTO plan;
	RETURN plan::text ~ '"Gather( Merge)?"';
END $$;
SELECT is_parallel('SELECT count(*) FROM big');

--
-- A join with a large table
--
SELECT is_parallel($$SELECT count(*) FROM big, feed_read(NULL::outbox, '') f WHERE (f.entry).data::int = n$$);
SELECT count(*), sum((f.entry).data::int) FROM big, feed_read(NULL::outbox, '') f WHERE (f.entry).data::int = n;
SELECT count(*), sum((f.entry).k) FROM big, feed_read(NULL::kv, '') f WHERE (f.entry).k = n;
SELECT count(*), sum(json_array_length(page -> 'entries')) FROM big, feed_page('outbox') page;
SELECT count(*), sum(f.data::int) FROM big, feed_fetch('0', 0, 100) f WHERE f.data::int = n;
SELECT count(*), sum(f.k) FROM big, feed_fetch(NULL::kv, '0', 0, 100) f WHERE f.k = n;
SELECT count(*) FROM big, feed_xid_head('outbox');
SELECT count(*) FROM big, feed_poll('sub');
SELECT feed_wait('outbox', '', '0');
SELECT feed_cursor('outbox', '0', 0) <> '' AS cursor, feed_floor('outbox') <> '' AS floor;
SELECT feed, state, head, floor IS NULL AS no_floor FROM feedpub.feeds ORDER BY feed::text;
SELECT name, lag_rows, expired FROM feedpub.subscriptions;
SELECT feed, waiting FROM feedpub.waiting ORDER BY feed::text;
-- A cursor that must be refused is refused: an empty page would look like the end.
DELETE FROM feedpub._batch WHERE feed = 'outbox'::regclass;
SELECT count(*) FROM big LEFT JOIN feed_read(NULL::outbox, :'head') f ON true;
\echo :SQLSTATE
SELECT count(*) FROM big LEFT JOIN feed_page('outbox', :'head') f ON true;
\echo :SQLSTATE
SELECT feed_begin_history('outbox');
CALL feed_publish('outbox');

--
-- Functions that are labelled otherwise and call them
--
CREATE FUNCTION safe_page(feed regclass, after text DEFAULT '') RETURNS json LANGUAGE plpgsql PARALLEL SAFE AS $$ BEGIN RETURN feed_page(feed, after); END $$;
CREATE FUNCTION safe_read() RETURNS SETOF text LANGUAGE plpgsql PARALLEL SAFE ROWS 10 AS $$ BEGIN RETURN QUERY SELECT cursor FROM feed_read(NULL::outbox, ''); END $$;
CREATE FUNCTION safe_fetch() RETURNS SETOF xid8 LANGUAGE plpgsql PARALLEL SAFE ROWS 10 AS $$ BEGIN RETURN QUERY SELECT f.feed_xid FROM feed_fetch('0', 0, 100) f; END $$;
CREATE FUNCTION safe_xid_head() RETURNS xid8 LANGUAGE plpgsql PARALLEL SAFE AS $$ BEGIN RETURN (feed_xid_head('outbox')).after_xid; END $$;
CREATE FUNCTION safe_head() RETURNS text LANGUAGE plpgsql PARALLEL SAFE AS $$ BEGIN RETURN feed_head('outbox'); END $$;
CREATE FUNCTION safe_floor() RETURNS text LANGUAGE plpgsql PARALLEL SAFE AS $$ BEGIN RETURN feed_floor('outbox'); END $$;
CREATE FUNCTION safe_cursor() RETURNS text LANGUAGE plpgsql PARALLEL SAFE AS $$ BEGIN RETURN feed_cursor('outbox', '0', 0); END $$;
CREATE FUNCTION safe_wait() RETURNS boolean LANGUAGE plpgsql PARALLEL SAFE AS $$ BEGIN RETURN feed_wait('outbox', '', '0'); END $$;
CREATE FUNCTION restricted_page(feed regclass) RETURNS json LANGUAGE plpgsql PARALLEL RESTRICTED AS $$ BEGIN RETURN feed_page(feed); END $$;
CREATE FUNCTION unsafe_page(feed regclass) RETURNS json LANGUAGE plpgsql AS $$ BEGIN RETURN feed_page(feed); END $$;
CREATE FUNCTION safe_poll() RETURNS SETOF text LANGUAGE plpgsql PARALLEL SAFE ROWS 10 AS $$ BEGIN RETURN QUERY SELECT receipt FROM feed_poll('sub'); END $$;
CREATE FUNCTION try(query text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	result text;
BEGIN
	EXECUTE query INTO result;
	RETURN 'read';
EXCEPTION WHEN OTHERS THEN
	RETURN sqlstate || ': ' || sqlerrm;
END $$;
SELECT query, is_parallel(query), try(query) FROM unnest(ARRAY[
	$$SELECT safe_page('outbox') FROM big$$,
	$$SELECT safe_page('kv')$$,
	$$SELECT restricted_page('outbox') FROM big ORDER BY i$$,
	$$SELECT count(*) FROM big, safe_read()$$,
	$$SELECT count(*) FROM big, safe_fetch()$$,
	$$SELECT safe_xid_head()$$,
	$$SELECT safe_head()$$,
	$$SELECT safe_floor()$$,
	$$SELECT safe_cursor()$$,
	$$SELECT safe_wait()$$,
	$$SELECT unsafe_page('outbox') FROM big LIMIT 1$$]) query;
SELECT left(try($$SELECT safe_poll()$$), 6);
\set SHOW_CONTEXT never
SELECT safe_page('outbox') FROM big;
\set SHOW_CONTEXT errors
-- What is said to help
CREATE TABLE page AS SELECT unsafe_page('outbox') AS page;
SELECT count(*), sum(json_array_length(page -> 'entries')) FROM big, page;
DROP FUNCTION is_parallel, try, safe_page, safe_read, safe_fetch, safe_xid_head, safe_head, safe_floor, safe_cursor, safe_wait, safe_poll, restricted_page, unsafe_page;
SELECT feed_drop('outbox', cascade => true), feed_detach('kv');
DROP TABLE kv, big, page;
