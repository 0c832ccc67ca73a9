-- Table and views of schema feedpub: columns, and which roles may do what.
BEGIN;
SELECT plan(25 * 7 + 61);

CREATE TEMP TABLE meant (name text, kind "char", columns text, reader oid DEFAULT 0, options text[], public_columns name[]);
INSERT INTO meant VALUES
	('_feed', 'r', 'feed regclass, kind text, is_default boolean, channel text, key name[], key_attnums smallint[], key_types regtype[], deletes boolean, '
		'key_table oid, keep interval, max_age interval, max_size bigint, created_at timestamp with time zone, key_mark bigint[], unstamped boolean'),
	('feeds', 'v', 'feed regclass, kind text, owner name, payload_type text, key name[], deletes boolean, state text, is_default boolean, channel text, '
		'size bigint, position bigint, rows_per_second double precision, head bigint, last_published timestamp with time zone, unpublished boolean, worker text, '
		'keep interval, max_age interval, max_size bigint, floor text, floor_moved_at timestamp with time zone, oldest timestamp with time zone, held_by text, created_at timestamp with time zone'),
	('workers', 'v', 'database name, pid integer, state text, started_at timestamp with time zone, turns bigint, wakeups bigint, batches bigint, transactions bigint, rows_stamped bigint, errors bigint, '
		'failing_feeds integer, last_error_at timestamp with time zone, last_error text, last_error_feed regclass'),
	('waiting', 'v', 'feed regclass, horizon xid8, waiting bigint'),
	('blockers', 'v', 'xid xid8, kind text, pid integer, gid text, database name, user name, application_name text, state text, '
		'query_start timestamp with time zone, xact_start timestamp with time zone, prepared_at timestamp with time zone, since timestamp with time zone, client_addr inet');
-- Keys are data of their tables, and batches tell when a feed was written: only
-- a role that dumps the database may read them.
INSERT INTO meant VALUES
	('_batch', 'r', 'feed regclass, sync_id bigint, snapshot pg_snapshot, last_pos bigint, transactions integer, publication bigint, published_at timestamp with time zone, '
		'seed integer, merged_from bigint, merged_pos bigint, site integer, part boolean', 'pg_database_owner'::regrole),
	('_floor', 'r', 'feed regclass, history integer, sync_id bigint, pos bigint, merged boolean, fingerprint integer, removed_xid xid8, removed_pos bigint, moved_at timestamp with time zone', 'pg_database_owner'::regrole),
	('_captured', 'v', 'feed regclass, relation regclass, trigger name, old boolean, key name[], key_attnums smallint[], columns name[], column_attnums smallint[], has_key boolean, is_current boolean', 'pg_database_owner'::regrole),
	('_capture_fault', 'v', 'feed regclass, relation regclass, trigger name, part regclass, kind text, name name, enabled "char"', 'pg_database_owner'::regrole),
	('captures', 'v', 'feed regclass, relation regclass, key name[], columns name[], old boolean, state text', DEFAULT),
	('_capture_leftover', 'v', 'relation regclass, name name', 'pg_database_owner'::regrole),
	('_work', 'v', 'feed regclass, kind text, relation regclass, target xid8, owner oid', 'pg_database_owner'::regrole),
	('_job', 'r', 'feed regclass, kind text, relation regclass, target xid8, done boolean, running boolean, rows bigint, locked bigint, failed bigint, attempts integer, retry_at timestamp with time zone, stepped_at timestamp with time zone, '
		'last_error text, last_error_at timestamp with time zone, pass bytea', 'pg_database_owner'::regrole),
	('_tombstone', 'r', 'feed regclass, feed_xid xid8, feed_pos bigint, key text[]', 'pg_database_owner'::regrole),
	('_lost_change', 'r', 'feed regclass, xid xid8', 'pg_database_owner'::regrole);
-- Those of subscriptions: their owners see them in views.
INSERT INTO meant VALUES
	('_subscription', 'r', 'name text, feed regclass, owner oid, owner_name name, system_id bigint, shards integer, lease interval, max_attempts integer, created_at timestamp with time zone, backoff interval[], types text[], delayed boolean', 'pg_database_owner'::regrole),
	('_shard', 'r', 'subscription text, shard integer, n bigint, cursor text, state bigint, page bigint, settled bigint, consumer text, leased_until timestamp with time zone, last_ack timestamp with time zone, parked integer',
		'pg_database_owner'::regrole),
	('_consumer', 'r', 'subscription text, consumer text, seen_until timestamp with time zone', 'pg_database_owner'::regrole),
	('_parked_entry', 'r', 'subscription text, shard integer, cursor text, op text, feed_xid xid8, feed_pos bigint, published_at timestamp with time zone, key_texts text[], key json, row json, relation text, old_key json, old json, '
		'reason text, attempts integer, parked_at timestamp with time zone, retry_at timestamp with time zone, state bigint, page bigint, failed_at text', 'pg_database_owner'::regrole);
INSERT INTO meant VALUES
	('subscriptions', 'v', 'name text, feed regclass, owner name, shards integer, lease interval, max_attempts integer, cursor text, lag_rows bigint, lag interval, '
		'last_ack timestamp with time zone, leased bigint, consumers bigint, parked bigint, expired boolean, created_at timestamp with time zone, backoff interval[], types text[], lag_more boolean, delayed boolean'),
	('shards', 'v', 'subscription text, shard integer, cursor text, consumer text, leased_until timestamp with time zone, last_ack timestamp with time zone, parked integer'),
	('parked', 'v', 'subscription text, shard integer, cursor text, op text, key json, message json, state text, reason text, attempts integer, parked_at timestamp with time zone, retry_at timestamp with time zone, relation text');
INSERT INTO meant VALUES
	('_partition', 'r', 'feed regclass, partition regclass, since xid8, trigger_id oid, partition_id oid, system_id bigint, file oid', 'pg_database_owner'::regrole),
	('_capture', 'r', 'relation regclass, feed regclass, key name[], key_attnums smallint[], columns name[], column_attnums smallint[], old boolean, numbers_of oid, trigger name', 'pg_database_owner'::regrole);
INSERT INTO meant VALUES
	('jobs', 'v', 'feed regclass, kind text, relation regclass, state text, rows bigint, locked bigint, failed bigint, attempts integer, retry_at timestamp with time zone, stepped_at timestamp with time zone, last_error text, last_error_at timestamp with time zone', 0, '{security_barrier=true}');
-- Room for new versions of rows
UPDATE meant SET options = '{fillfactor=30}' WHERE name = '_shard';
UPDATE meant SET options = '{fillfactor=50}' WHERE name IN ('_consumer', '_job');
-- A channel is for readers of its feed.
UPDATE meant SET reader = 'pg_database_owner'::regrole, public_columns = '{feed,kind,is_default,key,deletes,keep,max_age,max_size,created_at}' WHERE name = '_feed';
-- Functions of others are not called with rows that are not theirs.
UPDATE meant SET options = '{security_barrier=true}' WHERE name IN ('subscriptions', 'shards', 'parked');
CREATE TEMP VIEW present AS
	SELECT c.oid, c.relname, c.relkind, c.relacl, c.relowner, c.reloptions,
	       (SELECT string_agg(attname || ' ' || format_type(atttypid, atttypmod), ', ' ORDER BY attnum)
	          FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped) AS columns
	  FROM pg_class c WHERE c.relnamespace = 'feedpub'::regnamespace AND c.relkind NOT IN ('i', 'I', 't', 'c');

SELECT set_eq('SELECT relname::text, relkind FROM present', 'SELECT name, kind FROM meant', 'these and no other relations are in schema feedpub');

-- All roles, or that one, may read them; only their owner may do anything else.
CREATE FUNCTION pg_temp.shape(m meant) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
	r record;
BEGIN
	SELECT * INTO r FROM present WHERE relname = m.name;
	RETURN NEXT is(r.relkind, m.kind, 'feedpub.' || m.name || ' is of kind ' || m.kind::text);
	RETURN NEXT is(r.columns, m.columns, 'its columns');
	RETURN NEXT is((SELECT string_agg(privilege_type, ',' ORDER BY privilege_type) FROM aclexplode(r.relacl) WHERE grantee = m.reader), 'SELECT', CASE m.reader WHEN 0 THEN 'PUBLIC' ELSE m.reader::regrole::text END || ' may SELECT, and no more');
	RETURN NEXT is_empty(format('SELECT * FROM aclexplode(%L::aclitem[]) WHERE grantee NOT IN (%s, %s)', r.relacl, m.reader, r.relowner), 'no other role has a right of its own');
	RETURN NEXT bag_eq(format('SELECT attname, a.grantee, a.privilege_type FROM pg_attribute, aclexplode(attacl) a WHERE attrelid = %s', r.oid),
		format('SELECT unnest(%L::name[]), 0::oid, ''SELECT''', m.public_columns), 'PUBLIC may SELECT no columns but those meant');
	RETURN NEXT is(r.reloptions, m.options, 'its options');
	RETURN NEXT ok(obj_description(r.oid, 'pg_class') <> '', 'it has a comment');
END $$;
SELECT pg_temp.shape(m) FROM meant m;

-- An ordinary user cannot write the registry, whichever way.
CREATE ROLE regress_feedpub_nobody;
CREATE TEMP TABLE privilege AS SELECT unnest(array['INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) AS p;
SELECT ok(NOT has_table_privilege('regress_feedpub_nobody', 'feedpub._feed', p), p || ' on feedpub._feed is not for PUBLIC') FROM privilege ORDER BY p;
SELECT ok(NOT has_table_privilege('regress_feedpub_nobody', 'feedpub._batch', p), p || ' on feedpub._batch is not for PUBLIC') FROM privilege ORDER BY p;
SELECT ok(NOT has_table_privilege('regress_feedpub_nobody', 'feedpub._tombstone', p), p || ' on feedpub._tombstone is not for PUBLIC') FROM privilege ORDER BY p;
SELECT ok(NOT has_table_privilege('regress_feedpub_nobody', 'feedpub._partition', p), p || ' on feedpub._partition is not for PUBLIC') FROM privilege ORDER BY p;
SELECT ok(NOT has_any_column_privilege('regress_feedpub_nobody', 'feedpub._tombstone', 'SELECT'), 'nor may PUBLIC read it');
SELECT ok(NOT has_any_column_privilege('regress_feedpub_nobody', 'feedpub._batch', 'SELECT'), 'nor feedpub._batch');
SELECT ok(NOT has_table_privilege('regress_feedpub_nobody', 'feedpub._floor', p), p || ' on feedpub._floor is not for PUBLIC') FROM privilege ORDER BY p;
SELECT ok(NOT has_table_privilege('regress_feedpub_nobody', 'feedpub._job', p), p || ' on feedpub._job is not for PUBLIC') FROM privilege ORDER BY p;
SELECT ok(NOT has_any_column_privilege('regress_feedpub_nobody', t, 'SELECT'), 'nor may PUBLIC read ' || t) FROM unnest(array['feedpub._floor', 'feedpub._job']) t;
SELECT ok(NOT has_any_column_privilege('regress_feedpub_nobody', 'feedpub._feed', 'INSERT, UPDATE'), 'nor are its columns');
SELECT ok(has_schema_privilege('regress_feedpub_nobody', 'feedpub', 'USAGE'), 'PUBLIC may use schema feedpub');
SELECT ok(NOT has_schema_privilege('regress_feedpub_nobody', 'feedpub', 'CREATE'), 'and create nothing there');

-- What feedpub._feed keeps: one row a table, at most one default
SELECT col_is_pk('feedpub', '_feed', 'feed', 'a table is registered once');
SELECT indexes_are('feedpub', '_feed', array['_feed_pkey', '_feed_default']);
SELECT index_is_unique('feedpub', '_feed', '_feed_default', 'there is one default feed at most');
SELECT is_empty($$ SELECT tgname FROM pg_trigger WHERE tgrelid = 'feedpub._feed'::regclass $$, 'it has no trigger: those of member tables fire during a restore');

-- What feedpub._batch keeps: one row a number
SELECT col_is_pk('feedpub', '_batch', array['feed', 'sync_id'], 'a feed has one batch of a number');
SELECT is_empty($$ SELECT tgname FROM pg_trigger WHERE tgrelid = 'feedpub._batch'::regclass $$, 'it has no trigger either');

-- What feedpub._floor and feedpub._job keep
SELECT col_is_pk('feedpub', '_floor', array['feed', 'sync_id'], 'a floor is read from the end of its index');
SELECT indexes_are('feedpub', '_floor', array['_floor_pkey']);
SELECT col_is_pk('feedpub', '_job', array['feed', 'kind', 'relation'], 'a feed has one job of a kind on a relation');
SELECT is_empty(format('SELECT tgname FROM pg_trigger WHERE tgrelid = %L::regclass', t), t || ' has no trigger either') FROM unnest(array['feedpub._floor', 'feedpub._job']) t;

-- What feedpub._tombstone keeps: one entry a position, by which it is read
SELECT col_is_pk('feedpub', '_tombstone', array['feed', 'feed_xid', 'feed_pos'], 'a feed has one tombstone of a stamp');
SELECT indexes_are('feedpub', '_tombstone', array['_tombstone_pkey']);
SELECT is_empty($$ SELECT tgname FROM pg_trigger WHERE tgrelid = 'feedpub._tombstone'::regclass $$, 'it has no trigger either');

-- What feedpub._partition keeps: one row a partition
SELECT col_is_pk('feedpub', '_partition', array['feed', 'partition'], 'a feed has one row of a partition');
SELECT indexes_are('feedpub', '_partition', array['_partition_pkey']);
SELECT is_empty($$ SELECT tgname FROM pg_trigger WHERE tgrelid = 'feedpub._partition'::regclass $$, 'it has no trigger either');

SELECT * FROM finish();
ROLLBACK;
