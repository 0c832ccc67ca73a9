-- The functions of schema feedpub: called by defaults, checks, triggers and
-- views of everybody, so everybody may execute them, but for those that say so.
BEGIN;
SELECT plan(23 * 9 + 2);

CREATE TEMP TABLE meant (name text, arguments text, result text, volatility "char", is_strict boolean, parallel "char", public boolean DEFAULT true);
INSERT INTO meant VALUES
	('_stamp_message', '', 'trigger', 'v', false, 'u'),
	('_stamp_row', '', 'trigger', 'v', false, 'u'),
	('_note_delete', '', 'trigger', 'v', false, 'u'),
	('_note_truncate', '', 'trigger', 'v', false, 'u'),
	('_capture_row', '', 'trigger', 'v', false, 'u'),
	('_capture_truncate', '', 'trigger', 'v', false, 'u'),
	('_feed_stats', 'feed regclass, OUT state text, OUT size bigint, OUT "position" bigint, OUT rows_per_second double precision, OUT head bigint, OUT last_published timestamp with time zone, OUT unpublished boolean, OUT worker text, OUT waiting bigint', 'record', 'v', true, 'u'),
	('_workers', 'OUT datid oid, OUT pid integer, OUT state text, OUT started_at timestamp with time zone, OUT turns bigint, OUT wakeups bigint, OUT batches bigint, OUT transactions bigint, OUT rows_stamped bigint, OUT errors bigint, '
		'OUT failing_feeds integer, OUT last_error text, OUT last_error_at timestamp with time zone, OUT last_error_feed oid', 'SETOF record', 'v', false, 'r');
INSERT INTO meant VALUES
	('_subscription_owner', 'owner oid, owner_name name, system_id bigint', 'oid', 's', true, 's'),
	('_retention', 'feed regclass, OUT floor text, OUT floor_moved_at timestamp with time zone, OUT oldest timestamp with time zone, OUT held_by text', 'record', 'v', true, 'u'),
	('_restricted', 'statement text, VARIADIC arguments text[] DEFAULT ''{}''::text[]', 'SETOF text', 'v', false, 'u'),
	('_request', 'role text, claims text, read_only boolean, statement text, VARIADIC arguments text[] DEFAULT ''{}''::text[]', 'SETOF text', 'v', false, 'u'),
	('_newest', 'feed regclass, max_rows integer', 'text', 'v', false, 'u'),
	('_page_lines', 'feed regclass, after text DEFAULT ''''::text, max_rows integer DEFAULT 100, shard integer DEFAULT NULL::integer, shards integer DEFAULT NULL::integer, types text[] DEFAULT NULL::text[]', 'text', 'v', false, 'u'),
	('_page_events', 'feed regclass, after text DEFAULT ''''::text, max_rows integer DEFAULT 100, shard integer DEFAULT NULL::integer, shards integer DEFAULT NULL::integer, types text[] DEFAULT NULL::text[]', 'text', 'v', false, 'u'),
	('_page_records', 'feed regclass, after text DEFAULT ''''::text, max_rows integer DEFAULT 100, shard integer DEFAULT NULL::integer, shards integer DEFAULT NULL::integer, types text[] DEFAULT NULL::text[]', 'text', 'v', false, 'u'),
	('_page_messages', 'feed regclass, after text DEFAULT ''''::text, max_rows integer DEFAULT 100, shard integer DEFAULT NULL::integer, shards integer DEFAULT NULL::integer, types text[] DEFAULT NULL::text[]', 'text', 'v', false, 'u'),
	('_lag', 'feed regclass, cursor text, types text[], OUT rows bigint, OUT more boolean, OUT since timestamp with time zone, OUT expired boolean', 'record', 'v', false, 'u');
INSERT INTO meant VALUES
	('_cursor_compare', 'a text, b text', 'integer', 'i', true, 's', false),
	('_cursor_moves', 'a text, b text', 'boolean', 'i', true, 's', false),
	('_merge_batches', 'feed regclass', 'integer', 'v', true, 'u', false),
	('_move_floor', 'feed regclass', 'bigint', 'v', true, 'u', false),
	('_run_job', 'feed regclass, max_rows integer', 'bigint', 'v', true, 'u', false);
CREATE TEMP VIEW present AS
	SELECT p.*, pg_get_function_arguments(p.oid) AS arguments, pg_get_function_result(p.oid) AS result
	  FROM pg_proc p WHERE p.pronamespace = 'feedpub'::regnamespace;

SELECT set_eq('SELECT proname, arguments FROM present', 'SELECT name, arguments FROM meant', 'these and no others are in schema feedpub');
SELECT is_empty($$ SELECT proname FROM present WHERE proname !~ '^_[a-z_]+$' $$, 'all names begin with an underscore');

CREATE FUNCTION pg_temp.shape(m meant) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
	p record;
	f text := m.name || '(' || m.arguments || ')';
BEGIN
	SELECT * INTO p FROM present WHERE proname = m.name AND present.arguments = m.arguments;
	RETURN NEXT is(p.result, m.result, f || ' returns ' || m.result);
	RETURN NEXT is(p.provolatile, m.volatility, 'its volatility');
	RETURN NEXT is(p.proisstrict, m.is_strict, 'its strictness');
	RETURN NEXT is(p.proparallel, m.parallel, 'its parallel safety');
	RETURN NEXT is((SELECT lanname FROM pg_language WHERE oid = p.prolang), 'c', 'it is written in C');
	RETURN NEXT ok(NOT p.prosecdef, 'it runs as its caller');
	RETURN NEXT ok(p.proconfig IS NULL AND NOT p.proleakproof, 'it sets no parameter and is not leakproof');
	RETURN NEXT is(has_function_privilege('pg_monitor', p.oid, 'EXECUTE'), m.public, 'whether PUBLIC may execute it');
	RETURN NEXT ok(obj_description(p.oid, 'pg_proc') <> '', 'it has a comment');
END $$;
SELECT pg_temp.shape(m) FROM meant m;

SELECT * FROM finish();
ROLLBACK;
