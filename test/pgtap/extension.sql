-- The extension as a whole: what it consists of, and how it is installed.
BEGIN;
SELECT plan(15);

SELECT is(extrelocatable, false, 'it stays in the schema that it was put into') FROM pg_extension WHERE extname = 'feedpub';
SELECT is(extversion, '0.1', 'its version') FROM pg_extension WHERE extname = 'feedpub';
SELECT results_eq($$ SELECT default_version FROM pg_available_extensions WHERE name = 'feedpub' $$, $$ VALUES ('0.1'::text) $$, 'which is the default one');
SELECT results_eq($$ SELECT superuser, trusted, relocatable, schema, requires FROM pg_available_extension_versions WHERE name = 'feedpub' $$,
	$$ VALUES (true, false, false, NULL::name, NULL::name[]) $$, 'superusers only, anywhere, with nothing else');
SELECT results_eq($$ SELECT extconfig::regclass[]::text FROM pg_extension WHERE extname = 'feedpub' $$, $$ VALUES ('{feedpub._feed,feedpub._batch,feedpub._floor,feedpub._tombstone,feedpub._lost_change,feedpub._subscription,feedpub._shard,feedpub._parked_entry,feedpub._partition,feedpub._capture}') $$, 'registry, batches, tombstones, subscriptions, partitions and captures are dumped');

-- All of its members, and nothing unlisted in its schema
CREATE TEMP VIEW member AS
	SELECT d.classid, d.objid, pg_describe_object(d.classid, d.objid, 0) AS description
	  FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass
	 WHERE e.extname = 'feedpub' AND d.deptype = 'e';
SELECT set_eq($$ SELECT description FROM member WHERE classid <> 'pg_type'::regclass $$, array[
	'schema feedpub',
	'table feedpub._feed',
	'table feedpub._batch',
	'table feedpub._floor',
	'table feedpub._job',
	'view feedpub._work',
	'view feedpub._capture_leftover',
	'view feedpub._captured',
	'view feedpub._capture_fault',
	'view feedpub.captures',
	'table feedpub._tombstone',
	'table feedpub._lost_change',
	'table feedpub._subscription',
	'table feedpub._shard',
	'table feedpub._consumer',
	'table feedpub._parked_entry',
	'view feedpub.subscriptions',
	'view feedpub.shards',
	'view feedpub.parked',
	'view feedpub.jobs',
	'table feedpub._partition',
	'table feedpub._capture',
	'view feedpub.feeds',
	'view feedpub.workers',
	'view feedpub.waiting',
	'view feedpub.blockers',
	'function feedpub._stamp_message()',
	'function feedpub._stamp_row()',
	'function feedpub._note_delete()',
	'function feedpub._note_truncate()',
	'function feedpub._capture_row()',
	'function feedpub._capture_truncate()',
	'function feedpub._feed_stats(regclass)',
	'function feedpub._workers()',
	'function feedpub._retention(regclass)',
	'function feedpub._merge_batches(regclass)',
	'function feedpub._move_floor(regclass)',
	'function feedpub._run_job(regclass,integer)',
	'function feedpub._restricted(text,text[])',
	'function feedpub._request(text,text,boolean,text,text[])',
	'function feedpub._newest(regclass,integer)',
	'function feedpub._page_lines(regclass,text,integer,integer,integer,text[])',
	'function feedpub._page_events(regclass,text,integer,integer,integer,text[])',
	'function feedpub._page_records(regclass,text,integer,integer,integer,text[])',
	'function feedpub._page_messages(regclass,text,integer,integer,integer,text[])',
	'function feed_create(text,regtype,boolean)',
	'function feed_create_changes(text,boolean)',
	'function feed_drop(text,boolean,boolean)',
	'function feed_attach(regclass,regclass,name[],boolean)',
	'function feed_capture(regclass,regclass,name[],regclass,boolean)',
	'function feed_uncapture(regclass,regclass)',
	'function feed_detach(regclass,boolean)',
	'function feed_detach_all(boolean)',
	'function feed_republish(regclass,boolean)',
	'function feed_retain(regclass,interval,interval,bigint)',
	'function feed_purge(regclass,text,bigint)',
	'function feed_floor(regclass)',
	'function feed_set_default(regclass)',
	'function feed_check(regclass)',
	'function feed_repair(regclass)',
	'function feed_begin_history(regclass)',
	'function feed_fetch(xid8,bigint,integer)',
	'function feed_fetch(anyelement,xid8,bigint,integer)',
	'function feed_xid_head(regclass)',
	'function feed_set_channel(regclass,text)',
	'function feed_listen(regclass)',
	'function feed_publish(regclass)',
	'function feed_read(anyelement,text,integer,integer,integer,text[])',
	'function feed_read(text,text,integer,integer,integer,text[])',
	'function feed_page(regclass,text,integer,integer,integer,text[])',
	'function feed_cursor(regclass,xid8,bigint)',
	'function feed_flush(regclass,interval)',
	'function feed_head(regclass)',
	'function feed_snapshot(regclass[],interval)',
	'function feed_wait(regclass,text,interval)',
	'function feed_await(regclass,text,interval,boolean)',
	'function feed_subscribe(text,regclass,text,integer,interval,integer,boolean,interval[],text[],boolean)',
	'function feed_subscribe(text,regclass,timestamp with time zone,integer,interval,integer,boolean,interval[],text[],boolean)',
	'function feed_alter_subscription(text,interval,integer,interval[],text[],boolean)',
	'function feed_unsubscribe(text)',
	'function feed_seek(text,text)',
	'function feed_seek(text,timestamp with time zone)',
	'function feed_poll(text,integer,text,interval,text)',
	'function feed_poll_rows(text,anyelement,integer,text,interval,text)',
	'function feed_ack(text,text,boolean)',
	'function feed_leave(text,text)',
	'function feed_park(text,text,text)',
	'function feed_nack(text,text,text,interval)',
	'function feed_retry(text,text)',
	'function feed_discard(text,text)',
	'function feedpub._cursor_compare(text,text)',
	'function feedpub._cursor_moves(text,text)',
	'function feedpub._subscription_owner(oid,name,bigint)',
	'function feedpub._lag(regclass,text,text[])',
	'function feed_start_worker()',
	'function feed_stop_worker()'], 'its members, without row types');
SELECT is_empty($$ SELECT description FROM member JOIN pg_type t ON classid = 'pg_type'::regclass AND t.oid = objid WHERE typtype <> 'c' AND typelem = 0 $$, 'no types but row types');
SELECT schema_owner_is('feedpub', current_user, 'schema feedpub is the installer''s');
SELECT is_empty($$ SELECT proname FROM pg_proc WHERE pronamespace = 'feedpub'::regnamespace AND NOT EXISTS (SELECT FROM member WHERE classid = 'pg_proc'::regclass AND objid = pg_proc.oid) $$, 'no function in schema feedpub is a stranger');
SELECT is_empty($$ SELECT relname FROM pg_class WHERE relnamespace = 'feedpub'::regnamespace AND relkind NOT IN ('i', 't') AND NOT EXISTS (SELECT FROM member WHERE classid = 'pg_class'::regclass AND objid = pg_class.oid) $$, 'no relation');
SELECT is_empty($$ SELECT oprname FROM pg_operator WHERE oprnamespace = 'feedpub'::regnamespace $$, 'no operator');
SELECT is_empty($$ SELECT typname FROM pg_type t WHERE typnamespace = 'feedpub'::regnamespace AND typrelid = 0 AND typelem = 0 $$, 'no type');

-- Its settings, known once the library is loaded
LOAD 'feedpub';
SELECT set_eq($$ SELECT name FROM pg_settings WHERE name LIKE 'feedpub.%' $$, array['feedpub.batch_retention',
	'feedpub.max_batch_transactions', 'feedpub.max_page_rows', 'feedpub.max_subscription_shards', 'feedpub.max_unmerged_batches', 'feedpub.max_workers',
	'feedpub.naptime', 'feedpub.publish_interval', 'feedpub.publish_synchronous_commit',
	'feedpub.read_wait', 'feedpub.removal_rate', 'feedpub.stamping_rate', 'feedpub.tombstone_retention'], 'its settings');
SELECT results_eq($$ SELECT context, vartype, boot_val, min_val, max_val FROM pg_settings WHERE name = 'feedpub.max_page_rows' $$,
	$$ VALUES ('superuser', 'integer', '10000', '1', '1000000') $$, 'feedpub.max_page_rows');
SELECT results_eq($$ SELECT context, vartype, boot_val, min_val, max_val FROM pg_settings WHERE name = 'feedpub.max_subscription_shards' $$,
	$$ VALUES ('superuser', 'integer', '4096', '0', '2147483647') $$, 'feedpub.max_subscription_shards');

SELECT * FROM finish();
ROLLBACK;
