-- The public functions: what callers may rely on.
BEGIN;
SELECT plan(47 * 11 + 4 + 64);

-- As they are meant to be: in the schema that the extension was put into.
CREATE TEMP TABLE meant (name text, arguments text, result text, volatility "char", is_strict boolean, parallel "char", rows real, kind "char" DEFAULT 'f');
INSERT INTO meant VALUES
	('feed_create_changes', 'name text, if_not_exists boolean DEFAULT false', 'regclass', 'v', false, 'u', 0),
	('feed_create', 'name text, payload_type regtype DEFAULT ''jsonb''::regtype, if_not_exists boolean DEFAULT false', 'regclass', 'v', false, 'u', 0),
	('feed_drop', 'feed text, if_exists boolean DEFAULT false, cascade boolean DEFAULT false', 'void', 'v', false, 'u', 0),
	('feed_attach', 'feed regclass, key regclass DEFAULT NULL::regclass, columns name[] DEFAULT NULL::name[], deletes boolean DEFAULT true', 'text', 'v', false, 'u', 0),
	('feed_capture', 'relation regclass, feed regclass, columns name[] DEFAULT NULL::name[], key regclass DEFAULT NULL::regclass, old boolean DEFAULT true', 'void', 'v', false, 'u', 0),
	('feed_uncapture', 'relation regclass, feed regclass', 'void', 'v', false, 'u', 0),
	('feed_detach', 'feed regclass, cascade boolean DEFAULT false', 'void', 'v', false, 'u', 0),
	('feed_detach_all', 'cascade boolean DEFAULT false, OUT feed regclass, OUT problem text', 'SETOF record', 'v', false, 'u', 1000),
	('feed_retain', 'feed regclass, keep interval DEFAULT NULL::interval, max_age interval DEFAULT NULL::interval, max_size bigint DEFAULT NULL::bigint', 'void', 'v', false, 'u', 0),
	('feed_set_default', 'feed regclass', 'void', 'v', false, 'u', 0),
	('feed_check', 'feed regclass, OUT guard text, OUT problem text, OUT cure text', 'SETOF record', 'v', false, 'u', 1),
	('feed_repair', 'feed regclass', 'integer', 'v', false, 'u', 0),
	('feed_begin_history', 'feed regclass', 'void', 'v', false, 'u', 0),
	('feed_fetch', 'after_xid xid8, after_pos bigint, "limit" integer',
		'TABLE(feed_xid xid8, feed_pos bigint, publication_id text, message_id text, message_type text, message_key text, data jsonb, scheduled timestamp with time zone, headers jsonb)',
		'v', false, 'u', 100),
	('feed_fetch', 'feed anyelement, after_xid xid8, after_pos bigint, "limit" integer', 'SETOF anyelement', 'v', false, 'u', 100),
	('feed_xid_head', 'feed regclass, OUT after_xid xid8, OUT after_pos bigint', 'record', 'v', false, 'u', 0),
	('feed_set_channel', 'feed regclass, channel text', 'void', 'v', false, 'u', 0),
	('feed_listen', 'feed regclass', 'text', 'v', false, 'u', 0),
	('feed_read', 'feed anyelement, after text DEFAULT ''''::text, max_rows integer DEFAULT 100, shard integer DEFAULT NULL::integer, shards integer DEFAULT NULL::integer, types text[] DEFAULT NULL::text[]',
		'TABLE(cursor text, op text, entry anyelement, moment boolean)', 'v', false, 'u', 100),
	('feed_read', 'feed text, after text DEFAULT ''''::text, max_rows integer DEFAULT 100, shard integer DEFAULT NULL::integer, shards integer DEFAULT NULL::integer, types text[] DEFAULT NULL::text[]',
		'TABLE(cursor text, op text, entry text)', 'v', false, 'u', 100),
	('feed_page', 'feed regclass, after text DEFAULT ''''::text, max_rows integer DEFAULT 100, shard integer DEFAULT NULL::integer, shards integer DEFAULT NULL::integer, types text[] DEFAULT NULL::text[]', 'json', 'v', false, 'u', 0),
	('feed_floor', 'feed regclass', 'text', 'v', false, 'u', 0),
	('feed_head', 'feed regclass', 'text', 'v', false, 'u', 0),
	('feed_cursor', 'feed regclass, feed_xid xid8, feed_pos bigint', 'text', 'v', false, 'u', 0),
	('feed_flush', 'feed regclass, timeout interval DEFAULT ''00:01:00''::interval', 'text', 'v', false, 'u', 0),
	('feed_snapshot', 'feeds regclass[], hold interval DEFAULT ''00:00:10''::interval', 'TABLE(feed regclass, cursor text, snapshot text)', 'v', false, 'u', 10),
	('feed_wait', 'feed regclass, after text, timeout interval DEFAULT ''00:00:10''::interval', 'boolean', 'v', false, 'u', 0),
	('feed_start_worker', '', 'boolean', 'v', false, 'u', 0),
	('feed_stop_worker', '', 'boolean', 'v', false, 'u', 0);
INSERT INTO meant VALUES
	('feed_subscribe', 'name text, feed regclass, start text DEFAULT ''latest''::text, shards integer DEFAULT 1, lease interval DEFAULT ''00:00:30''::interval, max_attempts integer DEFAULT NULL::integer, if_not_exists boolean DEFAULT false, backoff interval[] DEFAULT NULL::interval[], types text[] DEFAULT NULL::text[], delayed boolean DEFAULT false', 'text', 'v', false, 'u', 0),
	('feed_subscribe', 'name text, feed regclass, start timestamp with time zone, shards integer DEFAULT 1, lease interval DEFAULT ''00:00:30''::interval, max_attempts integer DEFAULT NULL::integer, if_not_exists boolean DEFAULT false, backoff interval[] DEFAULT NULL::interval[], types text[] DEFAULT NULL::text[], delayed boolean DEFAULT false', 'text', 'v', false, 'u', 0),
	('feed_alter_subscription', 'name text, lease interval DEFAULT NULL::interval, max_attempts integer DEFAULT NULL::integer, backoff interval[] DEFAULT NULL::interval[], types text[] DEFAULT NULL::text[], delayed boolean DEFAULT NULL::boolean', 'void', 'v', false, 'u', 0),
	('feed_unsubscribe', 'name text', 'void', 'v', false, 'u', 0),
	('feed_seek', 'name text, start text', 'text', 'v', false, 'u', 0),
	('feed_seek', 'name text, start timestamp with time zone', 'text', 'v', false, 'u', 0),
	('feed_poll', 'name text, max_rows integer DEFAULT 100, consumer text DEFAULT NULL::text, timeout interval DEFAULT ''00:00:00''::interval, ack text DEFAULT NULL::text', 'TABLE(receipt text, cursor text, op text, key json, "row" json, xid text, published_at timestamp with time zone, attempt integer, error text, shard integer, relation text, old_key json, old json, statement bigint, moment boolean)', 'v', false, 'u', 100),
	('feed_poll_rows', 'name text, feed anyelement, max_rows integer DEFAULT 100, consumer text DEFAULT NULL::text, timeout interval DEFAULT ''00:00:00''::interval, ack text DEFAULT NULL::text', 'TABLE(receipt text, cursor text, op text, entry anyelement, xid text, published_at timestamp with time zone, attempt integer, shard integer, moment boolean)', 'v', false, 'u', 100),
	('feed_ack', 'name text, receipt text, strict boolean DEFAULT true', 'boolean', 'v', false, 'u', 0),
	('feed_leave', 'name text, consumer text', 'integer', 'v', false, 'u', 0),
	('feed_park', 'name text, receipt text, reason text DEFAULT NULL::text', 'boolean', 'v', false, 'u', 0),
	('feed_nack', 'name text, receipt text, reason text DEFAULT NULL::text, delay interval DEFAULT NULL::interval', 'boolean', 'v', false, 'u', 0),
	('feed_retry', 'name text, cursor text DEFAULT NULL::text', 'integer', 'v', false, 'u', 0),
	('feed_discard', 'name text, cursor text', 'integer', 'v', false, 'u', 0);
INSERT INTO meant VALUES
	('feed_republish', 'IN feed regclass, IN unstamped_only boolean DEFAULT false', NULL, 'v', false, 'u', 0, 'p'),
	('feed_purge', 'IN feed regclass, IN before text, INOUT purged bigint DEFAULT NULL::bigint', NULL, 'v', false, 'u', 0, 'p'),
	('feed_publish', 'IN feed regclass DEFAULT NULL::regclass', NULL, 'v', false, 'u', 0, 'p'),
	('feed_await', 'IN feed regclass, IN after text, IN timeout interval DEFAULT ''00:00:10''::interval, INOUT arrived boolean DEFAULT NULL::boolean', NULL, 'v', false, 'u', 0, 'p');

-- And as they are: the extension's functions outside of schema feedpub.
CREATE TEMP VIEW present AS
	SELECT p.*, pg_get_function_arguments(p.oid) AS arguments, pg_get_function_result(p.oid) AS result
	  FROM pg_proc p
	  JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
	  JOIN pg_extension e ON e.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass AND e.extname = 'feedpub'
	 WHERE p.pronamespace = e.extnamespace;

SELECT set_eq('SELECT proname, arguments FROM present', 'SELECT name, arguments FROM meant', 'these and no others are public');
SELECT is_empty($$ SELECT proname FROM present WHERE proname !~ '^feed_[a-z_]+$' $$, 'all names are feed_<verb>');
SELECT is_empty($$ SELECT proname FROM present WHERE coalesce(cardinality(proargnames), 0) < coalesce(cardinality(proallargtypes), pronargs) OR '' = ANY (proargnames) $$, 'all arguments have names');

-- NULL is "not given": where that is not the default, it is an error that names
-- the argument, and no function returns NULL without a word.
SELECT is_empty($$ SELECT proname FROM present WHERE proisstrict $$, 'no function is strict');
CREATE TEMP TABLE with_null (call text, argument text);
INSERT INTO with_null VALUES
	($c$feed_create(NULL)$c$, 'name'),
	($c$feed_create_changes(NULL)$c$, 'name'),
	($c$feed_create_changes('f', NULL)$c$, 'if_not_exists'),
	($c$feed_create('f', NULL)$c$, 'payload_type'),
	($c$feed_create('f', if_not_exists => NULL)$c$, 'if_not_exists'),
	($c$feed_drop(NULL)$c$, 'feed'),
	($c$feed_drop('f', NULL)$c$, 'if_exists'),
	($c$feed_drop('f', cascade => NULL)$c$, 'cascade'),
	($c$feed_attach(NULL)$c$, 'feed'),
	($c$feed_attach(0, deletes => NULL)$c$, 'deletes'),
	($c$feed_capture(NULL, 0)$c$, 'relation'),
	($c$feed_capture(0, NULL)$c$, 'feed'),
	($c$feed_capture(0, 0, old => NULL)$c$, 'old'),
	($c$feed_uncapture(NULL, 0)$c$, 'relation'),
	($c$feed_uncapture(0, NULL)$c$, 'feed'),
	($c$feed_detach(NULL)$c$, 'feed'),
	($c$feed_detach(0, NULL)$c$, 'cascade'),
	($c$feed_detach_all(NULL)$c$, 'cascade'),
	($c$feed_retain(NULL)$c$, 'feed'),
	($c$feed_floor(NULL)$c$, 'feed'),
	($c$feed_set_default(NULL)$c$, 'feed'),
	($c$feed_set_channel(NULL, 'c')$c$, 'feed'),
	($c$feed_listen(NULL)$c$, 'feed'),
	($c$feed_check(NULL)$c$, 'feed'),
	($c$feed_repair(NULL)$c$, 'feed'),
	($c$feed_begin_history(NULL)$c$, 'feed'),
	($c$feed_fetch(NULL, 0, 1)$c$, 'after_xid'),
	($c$feed_fetch('0', NULL, 1)$c$, 'after_pos'),
	($c$feed_fetch('0', 0, NULL)$c$, 'limit'),
	($c$feed_fetch(NULL::pg_catalog.pg_class, NULL, 0, 1)$c$, 'after_xid'),
	($c$feed_xid_head(NULL)$c$, 'feed'),
	($c$feed_read(NULL::pg_catalog.pg_class, NULL)$c$, 'after'),
	($c$feed_read(NULL::pg_catalog.pg_class, '', NULL)$c$, 'max_rows'),
	($c$feed_page(NULL)$c$, 'feed'),
	($c$feed_page(0, NULL)$c$, 'after'),
	($c$feed_page(0, '', NULL)$c$, 'max_rows'),
	($c$feed_head(NULL)$c$, 'feed'),
	($c$feed_snapshot(NULL)$c$, 'feeds'),
	($c$feed_snapshot('{0}', NULL)$c$, 'hold'),
	($c$feed_wait(NULL, '', '0')$c$, 'feed'),
	($c$feed_wait(0, NULL, '0')$c$, 'after'),
	($c$feed_wait(0, '', NULL)$c$, 'timeout'),
	($c$feed_alter_subscription(NULL)$c$, 'name'),
	($c$feed_unsubscribe(NULL)$c$, 'name'),
	($c$feed_subscribe(NULL, 0)$c$, 'name'),
	($c$feed_subscribe('s', NULL)$c$, 'feed'),
	($c$feed_subscribe('s', 0, shards => NULL)$c$, 'shards'),
	($c$feed_subscribe('s', 0, if_not_exists => NULL)$c$, 'if_not_exists'),
	($c$feed_subscribe('s', 0, delayed => NULL)$c$, 'delayed'),
	($c$feed_seek(NULL, '')$c$, 'name'),
	($c$feed_seek('s', NULL::text)$c$, 'start'),
	($c$feed_poll(NULL)$c$, 'name'),
	($c$feed_poll('s', NULL)$c$, 'max_rows'),
	($c$feed_poll('s', timeout => NULL)$c$, 'timeout'),
	($c$feed_ack(NULL, 'r')$c$, 'name'),
	($c$feed_ack('s', NULL)$c$, 'receipt'),
	($c$feed_ack('s', 'r', NULL)$c$, 'strict'),
	($c$feed_nack('s', NULL)$c$, 'receipt'),
	($c$feed_park(NULL, 'r')$c$, 'name'),
	($c$feed_retry(NULL)$c$, 'name'),
	($c$feed_leave(NULL, 'c')$c$, 'name'),
	($c$feed_leave('s', NULL)$c$, 'consumer'),
	($c$feed_discard(NULL, 'c')$c$, 'name'),
	($c$feed_discard('s', NULL)$c$, 'cursor');
SELECT throws_ok('SELECT ' || call, '22004', format('argument "%s" must not be null', argument), call) FROM with_null;

-- One by one
CREATE FUNCTION pg_temp.shape(m meant) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
	p record;
	f text := m.name || '(' || m.arguments || ')';
BEGIN
	SELECT * INTO p FROM present WHERE proname = m.name AND present.arguments = m.arguments;
	RETURN NEXT is(p.result, m.result, f || ' returns ' || coalesce(m.result, 'nothing'));
	RETURN NEXT is(p.provolatile, m.volatility, 'its volatility');
	RETURN NEXT is(p.proisstrict, m.is_strict, 'its strictness');
	RETURN NEXT is(p.proparallel, m.parallel, 'its parallel safety');
	RETURN NEXT is(p.prorows, m.rows, 'its estimate of rows');
	RETURN NEXT is((SELECT lanname FROM pg_language WHERE oid = p.prolang), 'c', 'it is written in C');
	RETURN NEXT ok(NOT p.prosecdef, 'it runs as its caller');
	RETURN NEXT ok(p.proconfig IS NULL, 'it sets no parameter');
	RETURN NEXT ok(NOT p.proleakproof AND p.prokind = m.kind AND p.provariadic = 0, 'it is an ordinary function or procedure');
	RETURN NEXT ok(p.proacl IS NULL AND has_function_privilege('pg_monitor', p.oid, 'EXECUTE'), 'PUBLIC may execute it');
	RETURN NEXT ok(obj_description(p.oid, 'pg_proc') <> '', 'it has a comment');
END $$;
SELECT pg_temp.shape(m) FROM meant m;

SELECT * FROM finish();
ROLLBACK;
