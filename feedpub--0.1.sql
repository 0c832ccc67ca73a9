/* feedpub--0.1.sql */

-- refuse to be sourced in psql; CREATE EXTENSION loads this file
\echo Use "CREATE EXTENSION feedpub" to load this file. \quit

--
-- The schema of our tables, views and internal functions.  If it exists
-- already, this fails: the role that made it could have put functions into it
-- that we would call.
--
CREATE SCHEMA feedpub;
GRANT USAGE ON SCHEMA feedpub TO PUBLIC;

--
-- Tables
--

CREATE TABLE feedpub._feed (
	feed pg_catalog.regclass PRIMARY KEY,
	kind pg_catalog.text NOT NULL,
	is_default pg_catalog.bool NOT NULL DEFAULT false,
	channel pg_catalog.text,
	-- of a table feed: the columns of its key by name, which a dump keeps, and
	-- by number, which a RENAME keeps; the numbers count only if key_table is
	-- the table's OID
	key pg_catalog.name[],
	key_attnums pg_catalog.int2[],
	-- and by type, as it was when the history began; a dump has the names
	key_types pg_catalog.regtype[],
	-- of a table feed: are deletes published?
	deletes pg_catalog.bool NOT NULL DEFAULT false,
	key_table pg_catalog.oid,
	-- feed_retain()
	keep pg_catalog.interval,
	max_age pg_catalog.interval,
	max_size pg_catalog.int8,
	created_at pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.now(),
	-- of a table feed: tells whether ALTER TABLE has written other values into
	-- the columns of its key
	key_mark pg_catalog.int8[],
	-- of a table feed: feed_repair() has put back the trigger that stamps, so
	-- rows may have been written without it; until feed_republish()
	unstamped pg_catalog.bool NOT NULL DEFAULT false,
	CHECK (kind OPERATOR(pg_catalog.=) 'outbox' OR kind OPERATOR(pg_catalog.=) 'changes' OR kind OPERATOR(pg_catalog.=) 'table')
);
CREATE UNIQUE INDEX _feed_default ON feedpub._feed (is_default) WHERE is_default;
-- A role that dumps the database must read it.  Others see all columns but the
-- channel and the internal ones: a role that knows the channel can LISTEN
-- without any right.
GRANT SELECT ON feedpub._feed TO pg_database_owner;
GRANT SELECT (feed, kind, is_default, key, deletes, keep, max_age, max_size, created_at) ON feedpub._feed TO PUBLIC;
COMMENT ON TABLE feedpub._feed IS
	'The registry of feeds: one row for each feed. feed_create(), feed_attach(), feed_drop(), feed_detach() and their kin write it.';
-- Rows of dropped tables are not dumped: their feed would be a bare number.
SELECT pg_catalog.pg_extension_config_dump('feedpub._feed',
	'WHERE EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid OPERATOR(pg_catalog.=) feed)');

-- Published order: batch k has the transactions that its snapshot sees and the
-- snapshot of batch k-1 does not.  It tells when a feed is written and how
-- much.  Only readers of the feed may know that, and they read it through our
-- functions.  So PUBLIC may not read it, but a role that dumps the database
-- must.
CREATE TABLE feedpub._batch (
	feed pg_catalog.regclass NOT NULL,
	sync_id pg_catalog.int8 NOT NULL,
	snapshot pg_catalog.pg_snapshot NOT NULL,
	last_pos pg_catalog.int8 NOT NULL,
	transactions pg_catalog.int4 NOT NULL,
	-- the number of the first batch of the transaction that wrote this one
	publication pg_catalog.int8 NOT NULL,
	published_at pg_catalog.timestamptz NOT NULL,
	-- a number of the server start; the fingerprint is made of it and sync_id
	seed pg_catalog.int4 NOT NULL,
	-- of the batches that have been merged into this one, all of this seed: the
	-- number of the oldest, and the last position of the youngest
	merged_from pg_catalog.int8,
	merged_pos pg_catalog.int8,
	-- a number of the server, its timeline, the database and this table
	site pg_catalog.int4 NOT NULL DEFAULT 0,
	-- not the last of the batches that a backlog was cut into: its end is no
	-- moment of the source
	part pg_catalog.bool NOT NULL DEFAULT false,
	PRIMARY KEY (feed, sync_id)
);
GRANT SELECT ON feedpub._batch TO pg_database_owner;
COMMENT ON TABLE feedpub._batch IS
	'The batches of each feed in published order. The publisher writes them.';
SELECT pg_catalog.pg_extension_config_dump('feedpub._batch',
	'WHERE EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid OPERATOR(pg_catalog.=) feed)');

-- The history of a feed, a random number, and its floor: the end of the batch
-- up to which rows or deletes have been removed.  merged and fingerprint are
-- those of that batch.  Of an outbox also the largest stamp that was removed.
-- A move inserts a row and deletes the one before, so that the newest is the
-- first in a backward scan.
CREATE TABLE feedpub._floor (
	feed pg_catalog.regclass NOT NULL,
	history pg_catalog.int4 NOT NULL,
	sync_id pg_catalog.int8 NOT NULL DEFAULT 0,
	pos pg_catalog.int8 NOT NULL DEFAULT 0,
	merged pg_catalog.bool NOT NULL DEFAULT false,
	fingerprint pg_catalog.int4 NOT NULL DEFAULT 0,
	removed_xid pg_catalog.xid8 NOT NULL DEFAULT '0',
	removed_pos pg_catalog.int8 NOT NULL DEFAULT 0,
	moved_at pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
	PRIMARY KEY (feed, sync_id)
);
GRANT SELECT ON feedpub._floor TO pg_database_owner;
COMMENT ON TABLE feedpub._floor IS
	'The history and the floor of each feed. The worker and feed_purge() move the floor.';
SELECT pg_catalog.pg_extension_config_dump('feedpub._floor',
	'WHERE EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid OPERATOR(pg_catalog.=) feed)');

-- Tombstones, the deletes in table feeds: the key of the row, as texts, and a
-- stamp.  If key is NULL, the table was truncated.  Keys are data of their
-- tables.  So PUBLIC may not read them, but a role that dumps the database
-- must.
CREATE TABLE feedpub._tombstone (
	feed pg_catalog.regclass NOT NULL,
	feed_xid pg_catalog.xid8 NOT NULL,
	feed_pos pg_catalog.int8 NOT NULL,
	key pg_catalog.text[],
	PRIMARY KEY (feed, feed_xid, feed_pos)
);
GRANT SELECT ON feedpub._tombstone TO pg_database_owner;
COMMENT ON TABLE feedpub._tombstone IS
	'The rows that were deleted from table feeds, and the truncates. Triggers of the feeds write them.';
SELECT pg_catalog.pg_extension_config_dump('feedpub._tombstone',
	'WHERE EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid OPERATOR(pg_catalog.=) feed)');

-- Transactions that changed a table feed without a trace in it, because what
-- that needs was not there.  While there is a row, readers are refused.
CREATE TABLE feedpub._lost_change (
	feed pg_catalog.regclass NOT NULL,
	xid pg_catalog.xid8 NOT NULL,
	PRIMARY KEY (feed, xid)
);
GRANT SELECT ON feedpub._lost_change TO pg_database_owner;
COMMENT ON TABLE feedpub._lost_change IS
	'The transactions whose changes of a table feed could not be recorded. Triggers of the feeds write them.';
SELECT pg_catalog.pg_extension_config_dump('feedpub._lost_change',
	'WHERE EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid OPERATOR(pg_catalog.=) feed)');

-- Subscriptions.  Each has a row here, and a row of _shard for each of its
-- shards.  Their owners see them in views.
CREATE TABLE feedpub._subscription (
	name pg_catalog.text COLLATE pg_catalog."C" PRIMARY KEY,
	feed pg_catalog.regclass NOT NULL,
	-- no regrole: if the role is missing, a dump could not be restored
	owner pg_catalog.oid NOT NULL,
	owner_name pg_catalog.name NOT NULL,
	system_id pg_catalog.int8 NOT NULL,
	shards pg_catalog.int4 NOT NULL,
	lease pg_catalog.interval NOT NULL,
	max_attempts pg_catalog.int4,
	created_at pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.now(),
	-- how long feed_nack() parks an entry after its first failure, its second
	backoff pg_catalog.interval[],
	-- which messages its consumers want; NULL: all
	types pg_catalog.text[],
	-- are messages delivered when they are due?
	delayed pg_catalog.bool NOT NULL
);
GRANT SELECT ON feedpub._subscription TO pg_database_owner;
COMMENT ON TABLE feedpub._subscription IS
	'The subscriptions: one row for each. feed_subscribe(), feed_alter_subscription() and feed_unsubscribe() write it.';
SELECT pg_catalog.pg_extension_config_dump('feedpub._subscription',
	'WHERE EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid OPERATOR(pg_catalog.=) feed)');

-- The shards: the committed cursor, a random number for the state, and the
-- number of the page that was acknowledged last.  Changes raise n, so that the
-- newest version of a row is the first in a backward scan.  Pages are filled to
-- 30 per cent, so that a new version of a row finds room on its page.
CREATE TABLE feedpub._shard (
	subscription pg_catalog.text COLLATE pg_catalog."C",
	shard pg_catalog.int4,
	n pg_catalog.int8 DEFAULT 0,
	cursor pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
	state pg_catalog.int8 NOT NULL,
	page pg_catalog.int8,
	-- the page number of the parked entry that was acknowledged last
	settled pg_catalog.int8,
	consumer pg_catalog.text COLLATE pg_catalog."C",
	leased_until pg_catalog.timestamptz,
	last_ack pg_catalog.timestamptz,
	parked pg_catalog.int4 NOT NULL DEFAULT 0,
	PRIMARY KEY (subscription, shard, n)
) WITH (fillfactor = 30);
GRANT SELECT ON feedpub._shard TO pg_database_owner;
COMMENT ON TABLE feedpub._shard IS
	'The committed cursor and the lease of each shard of a subscription. feed_poll(), feed_ack() and their kin write them.';
SELECT pg_catalog.pg_extension_config_dump('feedpub._shard',
	'WHERE EXISTS (SELECT FROM feedpub._subscription s, pg_catalog.pg_class c'
	' WHERE s.name OPERATOR(pg_catalog.=) subscription AND c.oid OPERATOR(pg_catalog.=) s.feed)');

-- Consumers with a name, among which the shards are divided.
CREATE TABLE feedpub._consumer (
	subscription pg_catalog.text COLLATE pg_catalog."C",
	consumer pg_catalog.text COLLATE pg_catalog."C",
	seen_until pg_catalog.timestamptz NOT NULL,
	PRIMARY KEY (subscription, consumer)
) WITH (fillfactor = 50);
GRANT SELECT ON feedpub._consumer TO pg_database_owner;
COMMENT ON TABLE feedpub._consumer IS
	'The consumers with a name that share a subscription. feed_poll() registers them.';

-- Parked entries, with their cursor, their stamp, and the key if the table has
-- one.  Keys and rows are data of their tables; the database's owner may read
-- them to dump them.
CREATE TABLE feedpub._parked_entry (
	subscription pg_catalog.text COLLATE pg_catalog."C",
	shard pg_catalog.int4,
	cursor pg_catalog.text COLLATE pg_catalog."C",
	op pg_catalog.text NOT NULL,
	feed_xid pg_catalog.xid8 NOT NULL,
	feed_pos pg_catalog.int8 NOT NULL,
	published_at pg_catalog.timestamptz,
	key_texts pg_catalog.text[],
	-- as feed_poll() returned them
	key pg_catalog.json,
	"row" pg_catalog.json,
	relation pg_catalog.text,
	old_key pg_catalog.json,
	old pg_catalog.json,
	reason pg_catalog.text,
	attempts pg_catalog.int4 NOT NULL DEFAULT 1,
	parked_at pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
	-- when it is delivered again, or, without an attempt, first; NULL: after
	-- feed_retry(); '-infinity': never, since it has been discarded
	retry_at pg_catalog.timestamptz,
	-- the random numbers of its state and of the page that parked it
	state pg_catalog.int8 NOT NULL,
	page pg_catalog.int8 NOT NULL,
	-- the committed cursor when it failed last
	failed_at pg_catalog.text COLLATE pg_catalog."C",
	PRIMARY KEY (subscription, shard, cursor)
);
-- What is due, and which entries of a page are parked, of many that wait.  Where
-- there are no statistics, neither must be taken for the primary key.
CREATE INDEX _parked_entry_due ON feedpub._parked_entry (subscription, shard, retry_at, cursor) WHERE retry_at IS NOT NULL;
CREATE INDEX _parked_entry_pos ON feedpub._parked_entry (subscription, feed_pos, shard);
GRANT SELECT ON feedpub._parked_entry TO pg_database_owner;
COMMENT ON TABLE feedpub._parked_entry IS
	'The entries that consumers have parked, and those that wait until they are due. feed_park(), feed_nack() and feed_poll() write them.';
SELECT pg_catalog.pg_extension_config_dump('feedpub._parked_entry',
	'WHERE EXISTS (SELECT FROM feedpub._subscription s, pg_catalog.pg_class c'
	' WHERE s.name OPERATOR(pg_catalog.=) subscription AND c.oid OPERATOR(pg_catalog.=) s.feed)');

-- The partitions of partitioned table feeds: a row is in the feed if its stamp
-- is not below since.  trigger_id is the partition's clone of the trigger that
-- stamps; if it has another one now, it has been detached meanwhile.
-- partition_id and system_id tell on which server trigger_id and file hold.
-- file is the partition's file while no trigger tells of its TRUNCATE, else 0.
CREATE TABLE feedpub._partition (
	feed pg_catalog.regclass NOT NULL,
	partition pg_catalog.regclass NOT NULL,
	since pg_catalog.xid8 NOT NULL,
	trigger_id pg_catalog.oid NOT NULL,
	partition_id pg_catalog.oid NOT NULL,
	system_id pg_catalog.int8 NOT NULL,
	file pg_catalog.oid NOT NULL DEFAULT 0,
	PRIMARY KEY (feed, partition)
);
GRANT SELECT ON feedpub._partition TO pg_database_owner;
COMMENT ON TABLE feedpub._partition IS
	'The partitions of each partitioned feed. feed_attach() and the publisher write them.';
SELECT pg_catalog.pg_extension_config_dump('feedpub._partition',
	'WHERE EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid OPERATOR(pg_catalog.=) feed)'
	' AND EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid OPERATOR(pg_catalog.=) partition)');

-- Captures: the tables whose changes are written into change feeds.  The row
-- trigger of a table has column trigger as its argument; a dump keeps both, and
-- partitions have clones.  The columns of the key and those
-- that are captured (NULL: all) are kept by name, which a dump keeps, and by
-- number, which a RENAME keeps; the numbers count only if numbers_of is the
-- relation's OID.
CREATE TABLE feedpub._capture (
	relation pg_catalog.regclass NOT NULL,
	feed pg_catalog.regclass NOT NULL,
	key pg_catalog.name[] NOT NULL,
	key_attnums pg_catalog.int2[] NOT NULL,
	columns pg_catalog.name[],
	column_attnums pg_catalog.int2[],
	old pg_catalog.bool NOT NULL,
	numbers_of pg_catalog.oid NOT NULL,
	trigger pg_catalog.name NOT NULL,
	PRIMARY KEY (relation, feed)
);
GRANT SELECT ON feedpub._capture TO pg_database_owner;
COMMENT ON TABLE feedpub._capture IS
	'The tables that are captured into change feeds. feed_capture() and feed_uncapture() write it.';
SELECT pg_catalog.pg_extension_config_dump('feedpub._capture',
	'WHERE EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid OPERATOR(pg_catalog.=) feed)'
	' AND EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid OPERATOR(pg_catalog.=) relation)');

-- The jobs that there are: what is to be stamped anew, removed or swept, and as
-- whom, 0 if no owner's code runs.  target is what the job is to reach: since of
-- the partition, or the number of the floor's batch.
CREATE VIEW feedpub._work AS
	SELECT p.feed, 'stamp'::pg_catalog.text AS kind, p.partition AS relation,
		p.since AS target, c.relowner AS owner
	FROM feedpub._partition p
	JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) p.partition
	WHERE p.since OPERATOR(pg_catalog.>) '0'::pg_catalog.xid8
	UNION ALL
	SELECT f.feed, CASE g.kind WHEN 'table' THEN 'expire' ELSE 'remove' END, f.feed,
		f.sync_id::pg_catalog.text::pg_catalog.xid8,
		CASE g.kind WHEN 'table' THEN 0::pg_catalog.oid ELSE c.relowner END
	FROM feedpub._floor f
	JOIN feedpub._feed g ON g.feed OPERATOR(pg_catalog.=) f.feed
	JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) f.feed
	WHERE f.sync_id OPERATOR(pg_catalog.>) 0
	UNION ALL
	SELECT 0::pg_catalog.regclass, 'sweep', 0::pg_catalog.regclass, '0'::pg_catalog.xid8, 0::pg_catalog.oid
	WHERE EXISTS (SELECT FROM feedpub._feed g
		WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_class c
			WHERE c.oid OPERATOR(pg_catalog.=) g.feed));
COMMENT ON VIEW feedpub._work IS
	'The jobs that follow from the feeds as they are now.';
GRANT SELECT ON feedpub._work TO pg_database_owner;

-- How far they are.  done holds for the target.  locked and failed are the rows
-- that the last pass has left.  pass tells how far the current pass is, and
-- where the next one begins, as the processes have it in memory (job.h).  It is
-- not dumped: then a pass begins at the first row.
CREATE TABLE feedpub._job (
	feed pg_catalog.regclass NOT NULL,
	kind pg_catalog.text NOT NULL,
	relation pg_catalog.regclass NOT NULL,
	target pg_catalog.xid8 NOT NULL,
	done pg_catalog.bool NOT NULL DEFAULT false,
	running pg_catalog.bool NOT NULL DEFAULT false,
	rows pg_catalog.int8 NOT NULL DEFAULT 0,
	locked pg_catalog.int8 NOT NULL DEFAULT 0,
	failed pg_catalog.int8 NOT NULL DEFAULT 0,
	-- turns in succession that have not ended well, and when the next one is due
	attempts pg_catalog.int4 NOT NULL DEFAULT 0,
	retry_at pg_catalog.timestamptz,
	stepped_at pg_catalog.timestamptz,
	last_error pg_catalog.text,
	last_error_at pg_catalog.timestamptz,
	pass pg_catalog.bytea,
	PRIMARY KEY (feed, kind, relation)
) WITH (fillfactor = 50);
-- The message of an error may have data of rows, so PUBLIC may not read it.
GRANT SELECT ON feedpub._job TO pg_database_owner;
COMMENT ON TABLE feedpub._job IS
	'How far the jobs of feeds are. Background workers, feed_republish() and feed_purge() write it.';

--
-- Internal functions.  If a trigger of a feed calls a function, it runs with the
-- rights of the writer, so PUBLIC may execute it.
--

CREATE FUNCTION feedpub._stamp_message()
RETURNS pg_catalog.trigger
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'feedpub_stamp_message';
COMMENT ON FUNCTION feedpub._stamp_message() IS
	'Trigger of an outbox: it stamps each message that is inserted, and refuses UPDATE.';

CREATE FUNCTION feedpub._stamp_row()
RETURNS pg_catalog.trigger
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'feedpub_stamp_row';
COMMENT ON FUNCTION feedpub._stamp_row() IS
	'Trigger of a table feed: it stamps each row that is inserted or changed.';

CREATE FUNCTION feedpub._note_delete()
RETURNS pg_catalog.trigger
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'feedpub_note_delete';
COMMENT ON FUNCTION feedpub._note_delete() IS
	'Trigger of a table feed: it writes a tombstone for each row that is deleted.';

CREATE FUNCTION feedpub._note_truncate()
RETURNS pg_catalog.trigger
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'feedpub_note_truncate';
COMMENT ON FUNCTION feedpub._note_truncate() IS
	'Trigger of a feed: it writes a tombstone for each TRUNCATE.';

CREATE FUNCTION feedpub._capture_row()
RETURNS pg_catalog.trigger
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'feedpub_capture_row';
COMMENT ON FUNCTION feedpub._capture_row() IS
	'Trigger of a captured table: it writes each change of a row into a change feed.';

CREATE FUNCTION feedpub._capture_truncate()
RETURNS pg_catalog.trigger
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'feedpub_capture_truncate';
COMMENT ON FUNCTION feedpub._capture_truncate() IS
	'Trigger of a captured table: it writes each TRUNCATE into the change feeds.';

-- What is wrong with captures: kind is row or truncate for a trigger of the table
-- or of a partition, name NULL if it is missing; key if a column of the key is
-- gone; unique if nothing guarantees that rows have different keys; stored if the numbers or names are out of date, or the trigger (name) does
-- not depend on the feed.  The arrays are the columns as they are now.
CREATE VIEW feedpub._captured AS
	SELECT c.feed, c.relation, c.trigger, c.old,
		k.names AS key, k.numbers AS key_attnums,
		CASE WHEN c.columns IS NOT NULL THEN COALESCE(l.names, '{}') END AS columns,
		CASE WHEN c.columns IS NOT NULL THEN COALESCE(l.numbers, '{}') END AS column_attnums,
		pg_catalog.cardinality(k.names) IS NOT DISTINCT FROM pg_catalog.cardinality(c.key) AS has_key,
		c.numbers_of OPERATOR(pg_catalog.=) c.relation
			AND k.names IS NOT DISTINCT FROM c.key
			AND (c.columns IS NULL OR COALESCE(l.names, '{}') OPERATOR(pg_catalog.=) c.columns) AS is_current
	FROM feedpub._capture c
	JOIN pg_catalog.pg_class r ON r.oid OPERATOR(pg_catalog.=) c.relation
	JOIN pg_catalog.pg_class f ON f.oid OPERATOR(pg_catalog.=) c.feed
	CROSS JOIN LATERAL (SELECT pg_catalog.array_agg(a.attname ORDER BY u.n), pg_catalog.array_agg(a.attnum ORDER BY u.n)
		FROM ROWS FROM (pg_catalog.unnest(c.key), pg_catalog.unnest(c.key_attnums)) WITH ORDINALITY u (name, number, n)
		JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) c.relation
			AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped
			AND CASE WHEN c.numbers_of OPERATOR(pg_catalog.=) c.relation
				THEN a.attnum OPERATOR(pg_catalog.=) u.number ELSE a.attname OPERATOR(pg_catalog.=) u.name END) k (names, numbers)
	CROSS JOIN LATERAL (SELECT pg_catalog.array_agg(a.attname ORDER BY u.n), pg_catalog.array_agg(a.attnum ORDER BY u.n)
		FROM ROWS FROM (pg_catalog.unnest(c.columns), pg_catalog.unnest(c.column_attnums)) WITH ORDINALITY u (name, number, n)
		JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) c.relation
			AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped
			AND CASE WHEN c.numbers_of OPERATOR(pg_catalog.=) c.relation
				THEN a.attnum OPERATOR(pg_catalog.=) u.number ELSE a.attname OPERATOR(pg_catalog.=) u.name END) l (names, numbers);
COMMENT ON VIEW feedpub._captured IS
	'The captures whose table and feed exist, with their columns as they are now.';
GRANT SELECT ON feedpub._captured TO pg_database_owner;

CREATE VIEW feedpub._capture_fault AS
	WITH RECURSIVE part (feed, relation, trigger, oid, relkind) AS (
		SELECT c.feed, c.relation, c.trigger, r.oid, r.relkind
		FROM feedpub._captured c
		JOIN pg_catalog.pg_class r ON r.oid OPERATOR(pg_catalog.=) c.relation
		UNION ALL
		SELECT p.feed, p.relation, p.trigger, r.oid, r.relkind
		FROM part p
		JOIN pg_catalog.pg_inherits i ON i.inhparent OPERATOR(pg_catalog.=) p.oid
		JOIN pg_catalog.pg_class r ON r.oid OPERATOR(pg_catalog.=) i.inhrelid AND r.relispartition)
	SELECT p.feed, p.relation, p.trigger, p.oid::pg_catalog.regclass AS part, w.kind, t.tgname AS name, t.tgenabled AS enabled
	FROM part p
	CROSS JOIN (VALUES ('row', 'feedpub._capture_row()'::pg_catalog.regprocedure, 29),
		('truncate', 'feedpub._capture_truncate()'::pg_catalog.regprocedure, 34)) w (kind, function, type)
	LEFT JOIN LATERAL (SELECT t.tgname, t.tgenabled FROM pg_catalog.pg_trigger t
		WHERE t.tgrelid OPERATOR(pg_catalog.=) p.oid
			AND t.tgfoid OPERATOR(pg_catalog.=) w.function
			AND (w.kind OPERATOR(pg_catalog.=) 'truncate' OR (t.tgparentid OPERATOR(pg_catalog.=) 0) OPERATOR(pg_catalog.=) (p.oid OPERATOR(pg_catalog.=) p.relation))
			AND t.tgtype OPERATOR(pg_catalog.=) w.type
			AND t.tgqual IS NULL AND NOT t.tgdeferrable
			AND pg_catalog.cardinality(t.tgattr::pg_catalog.int2[]) OPERATOR(pg_catalog.=) 0
			AND (w.kind OPERATOR(pg_catalog.=) 'truncate' OR t.tgargs OPERATOR(pg_catalog.=)
				(pg_catalog.convert_to(p.trigger::pg_catalog.text, pg_catalog.getdatabaseencoding()) OPERATOR(pg_catalog.||) '\x00'::pg_catalog.bytea))
		ORDER BY t.tgenabled OPERATOR(pg_catalog.=) 'A' DESC, t.tgname LIMIT 1) t ON true
	WHERE t.tgenabled IS DISTINCT FROM 'A'
		AND (p.oid OPERATOR(pg_catalog.=) p.relation
			OR CASE w.kind WHEN 'row' THEN t.tgname IS NOT NULL ELSE p.relkind OPERATOR(pg_catalog.<>) 'p' END)
	UNION ALL
	SELECT p.feed, p.relation, p.trigger, p.oid, 'unlogged', NULL, NULL
	FROM part p
	JOIN pg_catalog.pg_class r ON r.oid OPERATOR(pg_catalog.=) p.oid
	WHERE r.relpersistence OPERATOR(pg_catalog.=) 'u' AND r.relkind OPERATOR(pg_catalog.<>) 'p'
	UNION ALL
	SELECT c.feed, c.relation, c.trigger, c.relation, 'key', NULL, NULL
	FROM feedpub._captured c WHERE NOT c.has_key
	UNION ALL
	SELECT c.feed, c.relation, c.trigger, c.relation, 'unique', NULL, NULL
	FROM feedpub._captured c
	WHERE c.has_key AND NOT EXISTS (SELECT FROM pg_catalog.pg_index i
		WHERE i.indrelid OPERATOR(pg_catalog.=) c.relation
			AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL
			AND NOT EXISTS (SELECT FROM pg_catalog.unnest(i.indkey::pg_catalog.int2[]) WITH ORDINALITY u (attnum, n)
				WHERE u.n OPERATOR(pg_catalog.<=) i.indnkeyatts
					AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute a
						WHERE a.attrelid OPERATOR(pg_catalog.=) c.relation
							AND a.attnum OPERATOR(pg_catalog.=) u.attnum AND a.attnotnull
							AND a.attnum OPERATOR(pg_catalog.=) ANY (c.key_attnums))))
	UNION ALL
	SELECT c.feed, c.relation, c.trigger, c.relation, 'stored', t.tgname, NULL
	FROM feedpub._captured c
	LEFT JOIN pg_catalog.pg_trigger t ON t.tgrelid OPERATOR(pg_catalog.=) c.relation
		AND t.tgparentid OPERATOR(pg_catalog.=) 0
		AND t.tgfoid OPERATOR(pg_catalog.=) 'feedpub._capture_row()'::pg_catalog.regprocedure
		AND t.tgargs OPERATOR(pg_catalog.=)
			(pg_catalog.convert_to(c.trigger::pg_catalog.text, pg_catalog.getdatabaseencoding()) OPERATOR(pg_catalog.||) '\x00'::pg_catalog.bytea)
		AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d
			WHERE d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_trigger'::pg_catalog.regclass
				AND d.objid OPERATOR(pg_catalog.=) t.oid
				AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass
				AND d.refobjid OPERATOR(pg_catalog.=) c.feed)
	WHERE c.has_key AND (NOT c.is_current OR t.tgname IS NOT NULL);
COMMENT ON VIEW feedpub._capture_fault IS
	'What is wrong with captures.';
GRANT SELECT ON feedpub._capture_fault TO pg_database_owner;

-- The triggers of captures that are not there any more: their feed was dropped, or
-- the partition detached, or only the schema restored.
CREATE VIEW feedpub._capture_leftover AS
	SELECT t.tgrelid::pg_catalog.regclass AS relation, t.tgname AS name
	FROM pg_catalog.pg_trigger t
	WHERE t.tgparentid OPERATOR(pg_catalog.=) 0
		AND (t.tgfoid OPERATOR(pg_catalog.=) 'feedpub._capture_row()'::pg_catalog.regprocedure
			AND NOT EXISTS (SELECT FROM feedpub._capture c
				JOIN pg_catalog.pg_class f ON f.oid OPERATOR(pg_catalog.=) c.feed
				WHERE c.relation OPERATOR(pg_catalog.=) t.tgrelid
					AND t.tgargs OPERATOR(pg_catalog.=)
						(pg_catalog.convert_to(c.trigger::pg_catalog.text, pg_catalog.getdatabaseencoding()) OPERATOR(pg_catalog.||) '\x00'::pg_catalog.bytea))
			OR t.tgfoid OPERATOR(pg_catalog.=) 'feedpub._capture_truncate()'::pg_catalog.regprocedure
			AND NOT EXISTS (SELECT FROM feedpub._capture c
				JOIN pg_catalog.pg_class f ON f.oid OPERATOR(pg_catalog.=) c.feed
				WHERE c.relation OPERATOR(pg_catalog.=) t.tgrelid
					OR EXISTS (SELECT FROM pg_catalog.pg_partition_ancestors(t.tgrelid) a
						WHERE a.relid OPERATOR(pg_catalog.=) c.relation)));
COMMENT ON VIEW feedpub._capture_leftover IS
	'Triggers that belong to no capture.';
GRANT SELECT ON feedpub._capture_leftover TO pg_database_owner;

CREATE FUNCTION feedpub._feed_stats(feed pg_catalog.regclass,
	OUT state pg_catalog.text, OUT size pg_catalog.int8,
	OUT "position" pg_catalog.int8, OUT rows_per_second pg_catalog.float8,
	OUT head pg_catalog.int8, OUT last_published pg_catalog.timestamptz,
	OUT unpublished pg_catalog.bool, OUT worker pg_catalog.text,
	OUT waiting pg_catalog.int8)
RETURNS record
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feedpub_feed_stats';
COMMENT ON FUNCTION feedpub._feed_stats(pg_catalog.regclass) IS
	'Returns the state and the numbers of a feed that feedpub.feeds and feedpub.waiting show. The numbers are NULL for a caller that may read neither the feed nor all statistics.';

CREATE FUNCTION feedpub._workers(OUT datid pg_catalog.oid, OUT pid pg_catalog.int4,
	OUT state pg_catalog.text, OUT started_at pg_catalog.timestamptz,
	OUT turns pg_catalog.int8, OUT wakeups pg_catalog.int8,
	OUT batches pg_catalog.int8, OUT transactions pg_catalog.int8,
	OUT rows_stamped pg_catalog.int8, OUT errors pg_catalog.int8, OUT failing_feeds pg_catalog.int4,
	OUT last_error pg_catalog.text, OUT last_error_at pg_catalog.timestamptz,
	OUT last_error_feed pg_catalog.oid)
RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL RESTRICTED ROWS 10
AS 'MODULE_PATHNAME', 'feedpub_workers';
COMMENT ON FUNCTION feedpub._workers() IS
	'Returns the workers of all databases, and their counters.';

CREATE FUNCTION feedpub._retention(feed pg_catalog.regclass,
	OUT floor pg_catalog.text, OUT floor_moved_at pg_catalog.timestamptz,
	OUT oldest pg_catalog.timestamptz, OUT held_by pg_catalog.text)
RETURNS record
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feedpub_retention';
COMMENT ON FUNCTION feedpub._retention(pg_catalog.regclass) IS
	'Returns the floor of a feed, and what holds it back, as feedpub.feeds shows them.';

CREATE FUNCTION feedpub._merge_batches(feed pg_catalog.regclass)
RETURNS pg_catalog.int4
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feedpub_merge_batches';
REVOKE ALL ON FUNCTION feedpub._merge_batches(pg_catalog.regclass) FROM PUBLIC;
COMMENT ON FUNCTION feedpub._merge_batches(pg_catalog.regclass) IS
	'Merges the batches of a feed that are older than feedpub.batch_retention. Returns how many batches were removed.';

CREATE FUNCTION feedpub._move_floor(feed pg_catalog.regclass)
RETURNS pg_catalog.int8
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feedpub_move_floor';
REVOKE ALL ON FUNCTION feedpub._move_floor(pg_catalog.regclass) FROM PUBLIC;
COMMENT ON FUNCTION feedpub._move_floor(pg_catalog.regclass) IS
	'Moves the floor of a feed to where its policy has it, and removes the deletes before it. Returns how many batches of an outbox, or tombstones of a table feed, were removed.';

CREATE FUNCTION feedpub._run_job(feed pg_catalog.regclass, max_rows pg_catalog.int4)
RETURNS pg_catalog.int8
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feedpub_run_job';
REVOKE ALL ON FUNCTION feedpub._run_job(pg_catalog.regclass, pg_catalog.int4) FROM PUBLIC;
COMMENT ON FUNCTION feedpub._run_job(pg_catalog.regclass, pg_catalog.int4) IS
	'Makes a step of a job of a feed. Returns how many rows were stamped or removed.';

-- They give no right, so all roles may call them.
CREATE FUNCTION feedpub._restricted(statement pg_catalog.text,
	VARIADIC arguments pg_catalog.text[] DEFAULT '{}')
RETURNS SETOF pg_catalog.text
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feedpub_restricted';
COMMENT ON FUNCTION feedpub._restricted(pg_catalog.text, pg_catalog.text[]) IS
	'Runs a statement as the caller, whose code cannot change the role and leaves nothing to be run later. Returns the first column of its rows.';

CREATE FUNCTION feedpub._request(role pg_catalog.text, claims pg_catalog.text,
	read_only pg_catalog.bool, statement pg_catalog.text,
	VARIADIC arguments pg_catalog.text[] DEFAULT '{}')
RETURNS SETOF pg_catalog.text
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feedpub_request';
COMMENT ON FUNCTION feedpub._request(pg_catalog.text, pg_catalog.text, pg_catalog.bool, pg_catalog.text, pg_catalog.text[]) IS
	'Takes a role and the claims of an access token until the end of the transaction, and runs a statement as _restricted() does.';

--
-- Making, checking and removing feeds
--

CREATE FUNCTION feed_create(name pg_catalog.text,
	payload_type pg_catalog.regtype DEFAULT 'pg_catalog.jsonb',
	if_not_exists pg_catalog.bool DEFAULT false)
RETURNS pg_catalog.regclass
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_create';
COMMENT ON FUNCTION feed_create(pg_catalog.text, pg_catalog.regtype, pg_catalog.bool) IS
	'Makes an outbox, a table of messages that is a feed. The caller owns it.';

CREATE FUNCTION feed_create_changes(name pg_catalog.text,
	if_not_exists pg_catalog.bool DEFAULT false)
RETURNS pg_catalog.regclass
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_create_changes';
COMMENT ON FUNCTION feed_create_changes(pg_catalog.text, pg_catalog.bool) IS
	'Makes a change feed, a table that gets each change of the tables that are captured into it. The caller owns it.';

-- The name is a text, since a missing table has no regclass.
CREATE FUNCTION feed_drop(feed pg_catalog.text,
	if_exists pg_catalog.bool DEFAULT false,
	cascade pg_catalog.bool DEFAULT false)
RETURNS pg_catalog.void
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_drop';
COMMENT ON FUNCTION feed_drop(pg_catalog.text, pg_catalog.bool, pg_catalog.bool) IS
	'Drops an outbox with its rows. With cascade, its subscriptions are dropped too.';

CREATE FUNCTION feed_attach(feed pg_catalog.regclass,
	key pg_catalog.regclass DEFAULT NULL, columns pg_catalog.name[] DEFAULT NULL,
	deletes pg_catalog.bool DEFAULT true)
RETURNS pg_catalog.text
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_attach';
COMMENT ON FUNCTION feed_attach(pg_catalog.regclass, pg_catalog.regclass, pg_catalog.name[], pg_catalog.bool) IS
	'Makes a table a feed of its changes. Returns the statement that is to be run next, or NULL if the feed is complete.';

CREATE FUNCTION feed_capture(relation pg_catalog.regclass, feed pg_catalog.regclass,
	columns pg_catalog.name[] DEFAULT NULL, key pg_catalog.regclass DEFAULT NULL,
	old pg_catalog.bool DEFAULT true)
RETURNS pg_catalog.void
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_capture';
COMMENT ON FUNCTION feed_capture(pg_catalog.regclass, pg_catalog.regclass, pg_catalog.name[], pg_catalog.regclass, pg_catalog.bool) IS
	'From now on writes each change of a table into a change feed.';

CREATE FUNCTION feed_uncapture(relation pg_catalog.regclass, feed pg_catalog.regclass)
RETURNS pg_catalog.void
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_uncapture';
COMMENT ON FUNCTION feed_uncapture(pg_catalog.regclass, pg_catalog.regclass) IS
	'From now on writes no change of a table into a change feed. What is in the feed stays.';

CREATE FUNCTION feed_detach(feed pg_catalog.regclass,
	cascade pg_catalog.bool DEFAULT false)
RETURNS pg_catalog.void
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_detach';
COMMENT ON FUNCTION feed_detach(pg_catalog.regclass, pg_catalog.bool) IS
	'Makes a feed an ordinary table again; its rows stay. With cascade, its subscriptions are dropped too.';

CREATE FUNCTION feed_detach_all(cascade pg_catalog.bool DEFAULT false,
	OUT feed pg_catalog.regclass, OUT problem pg_catalog.text)
RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_detach_all';
COMMENT ON FUNCTION feed_detach_all(pg_catalog.bool) IS
	'Makes all feeds of the database ordinary tables again, and returns a row for each: problem says why a feed stays. With cascade, subscriptions are dropped too.';

CREATE PROCEDURE feed_republish(feed pg_catalog.regclass,
	unstamped_only pg_catalog.bool DEFAULT false)
LANGUAGE C
AS 'MODULE_PATHNAME', 'feed_republish';
COMMENT ON PROCEDURE feed_republish(pg_catalog.regclass, pg_catalog.bool) IS
	'Publishes all rows of a table feed again, in steps. With unstamped_only, it publishes only the rows that are not in the feed.';

CREATE FUNCTION feed_retain(feed pg_catalog.regclass,
	keep pg_catalog.interval DEFAULT NULL, max_age pg_catalog.interval DEFAULT NULL,
	max_size pg_catalog.int8 DEFAULT NULL)
RETURNS pg_catalog.void
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_retain';
COMMENT ON FUNCTION feed_retain(pg_catalog.regclass, pg_catalog.interval, pg_catalog.interval, pg_catalog.int8) IS
	'Sets how long rows of an outbox, or deletes of a table feed, are retained.';

CREATE PROCEDURE feed_purge(feed pg_catalog.regclass, before pg_catalog.text,
	INOUT purged pg_catalog.int8 DEFAULT NULL)
LANGUAGE C
AS 'MODULE_PATHNAME', 'feed_purge';
COMMENT ON PROCEDURE feed_purge(pg_catalog.regclass, pg_catalog.text, pg_catalog.int8) IS
	'Removes the rows of an outbox, or the deletes of a table feed, up to a cursor.';

CREATE FUNCTION feed_set_default(feed pg_catalog.regclass)
RETURNS pg_catalog.void
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_set_default';
COMMENT ON FUNCTION feed_set_default(pg_catalog.regclass) IS
	'Chooses the feed that feed_fetch() reads if none is named.';

CREATE FUNCTION feed_set_channel(feed pg_catalog.regclass, channel pg_catalog.text)
RETURNS pg_catalog.void
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_set_channel';
COMMENT ON FUNCTION feed_set_channel(pg_catalog.regclass, pg_catalog.text) IS
	'Has each batch of a feed announced by a NOTIFY on a channel. NULL ends that.';

CREATE FUNCTION feed_listen(feed pg_catalog.regclass)
RETURNS pg_catalog.text
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_listen';
COMMENT ON FUNCTION feed_listen(pg_catalog.regclass) IS
	'Has each batch of a feed announced for an hour by a NOTIFY on the channel that it returns.';

CREATE FUNCTION feed_check(feed pg_catalog.regclass,
	OUT guard pg_catalog.text, OUT problem pg_catalog.text,
	OUT cure pg_catalog.text)
RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1
AS 'MODULE_PATHNAME', 'feed_check';
COMMENT ON FUNCTION feed_check(pg_catalog.regclass) IS
	'Tells whether everything that a feed needs is in order. Returns a row for each problem, with its cure.';

CREATE FUNCTION feed_repair(feed pg_catalog.regclass)
RETURNS pg_catalog.int4
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_repair';
COMMENT ON FUNCTION feed_repair(pg_catalog.regclass) IS
	'Mends what feed_check() finds, as far as that can be done in a transaction. Returns how many problems it has mended.';

CREATE FUNCTION feed_begin_history(feed pg_catalog.regclass)
RETURNS pg_catalog.void
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_begin_history';
COMMENT ON FUNCTION feed_begin_history(pg_catalog.regclass) IS
	'Makes a feed usable that was restored, or whose key has got another type or other values. Its batches and deletes are forgotten, all rows are published again in their order, and older cursors are refused.';

--
-- Reading in xid order
--

CREATE FUNCTION feed_fetch(after_xid pg_catalog.xid8, after_pos pg_catalog.int8,
	"limit" pg_catalog.int4)
RETURNS TABLE (feed_xid pg_catalog.xid8, feed_pos pg_catalog.int8,
	publication_id pg_catalog.text, message_id pg_catalog.text,
	message_type pg_catalog.text, message_key pg_catalog.text,
	data pg_catalog.jsonb, scheduled pg_catalog.timestamptz,
	headers pg_catalog.jsonb)
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100
AS 'MODULE_PATHNAME', 'feed_fetch_default';
COMMENT ON FUNCTION feed_fetch(pg_catalog.xid8, pg_catalog.int8, pg_catalog.int4) IS
	'Reads a page of the default feed in xid order.';

CREATE FUNCTION feed_fetch(feed pg_catalog.anyelement, after_xid pg_catalog.xid8,
	after_pos pg_catalog.int8, "limit" pg_catalog.int4)
RETURNS SETOF pg_catalog.anyelement
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100
AS 'MODULE_PATHNAME', 'feed_fetch';
COMMENT ON FUNCTION feed_fetch(pg_catalog.anyelement, pg_catalog.xid8, pg_catalog.int8, pg_catalog.int4) IS
	'Reads a page of a feed in xid order, as rows of its table.';

CREATE FUNCTION feed_xid_head(feed pg_catalog.regclass,
	OUT after_xid pg_catalog.xid8, OUT after_pos pg_catalog.int8)
RETURNS record
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_xid_head';
COMMENT ON FUNCTION feed_xid_head(pg_catalog.regclass) IS
	'Returns the end of a feed in xid order. All rows that commit later come after it.';

--
-- Published order
--

CREATE PROCEDURE feed_publish(feed pg_catalog.regclass DEFAULT NULL)
LANGUAGE C
AS 'MODULE_PATHNAME', 'feed_publish';
COMMENT ON PROCEDURE feed_publish(pg_catalog.regclass) IS
	'Publishes what has been committed to a feed, or to all feeds. The worker does the same by itself.';

CREATE FUNCTION feed_read(feed pg_catalog.anyelement,
	after pg_catalog.text DEFAULT '', max_rows pg_catalog.int4 DEFAULT 100,
	shard pg_catalog.int4 DEFAULT NULL, shards pg_catalog.int4 DEFAULT NULL,
	types pg_catalog.text[] DEFAULT NULL)
RETURNS TABLE (cursor pg_catalog.text, op pg_catalog.text, entry pg_catalog.anyelement,
	moment pg_catalog.bool)
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100
AS 'MODULE_PATHNAME', 'feed_read';
COMMENT ON FUNCTION feed_read(pg_catalog.anyelement, pg_catalog.text, pg_catalog.int4, pg_catalog.int4, pg_catalog.int4, pg_catalog.text[]) IS
	'Reads a page of a feed in published order, as rows of its table.';

-- Of feed_read('outbox') the parser would say only that it knows no type of it.
CREATE FUNCTION feed_read(feed pg_catalog.text,
	after pg_catalog.text DEFAULT '', max_rows pg_catalog.int4 DEFAULT 100,
	shard pg_catalog.int4 DEFAULT NULL, shards pg_catalog.int4 DEFAULT NULL,
	types pg_catalog.text[] DEFAULT NULL)
RETURNS TABLE (cursor pg_catalog.text, op pg_catalog.text, entry pg_catalog.text)
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100
AS 'MODULE_PATHNAME', 'feed_read';
COMMENT ON FUNCTION feed_read(pg_catalog.text, pg_catalog.text, pg_catalog.int4, pg_catalog.int4, pg_catalog.int4, pg_catalog.text[]) IS
	'Raises an error that shows how feed_read() is called: feed_read(NULL::outbox).';

CREATE FUNCTION feed_page(feed pg_catalog.regclass,
	after pg_catalog.text DEFAULT '', max_rows pg_catalog.int4 DEFAULT 100,
	shard pg_catalog.int4 DEFAULT NULL, shards pg_catalog.int4 DEFAULT NULL,
	types pg_catalog.text[] DEFAULT NULL)
RETURNS pg_catalog.json
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_page';
COMMENT ON FUNCTION feed_page(pg_catalog.regclass, pg_catalog.text, pg_catalog.int4, pg_catalog.int4, pg_catalog.int4, pg_catalog.text[]) IS
	'Reads a page of a feed in published order, as the JSON body of an HTTP response.';

CREATE FUNCTION feedpub._newest(feed pg_catalog.regclass, max_rows pg_catalog.int4)
RETURNS pg_catalog.text
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feedpub_newest';
COMMENT ON FUNCTION feedpub._newest(pg_catalog.regclass, pg_catalog.int4) IS
	'Returns a cursor about so many entries before the end of what is published.';

CREATE FUNCTION feedpub._page_lines(feed pg_catalog.regclass,
	after pg_catalog.text DEFAULT '', max_rows pg_catalog.int4 DEFAULT 100,
	shard pg_catalog.int4 DEFAULT NULL, shards pg_catalog.int4 DEFAULT NULL,
	types pg_catalog.text[] DEFAULT NULL)
RETURNS pg_catalog.text
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feedpub_page_lines';
COMMENT ON FUNCTION feedpub._page_lines(pg_catalog.regclass, pg_catalog.text, pg_catalog.int4, pg_catalog.int4, pg_catalog.int4, pg_catalog.text[]) IS
	'Reads a page of a feed in published order: its entries as JSON, a line each, and a last line with its end.';

CREATE FUNCTION feedpub._page_events(feed pg_catalog.regclass,
	after pg_catalog.text DEFAULT '', max_rows pg_catalog.int4 DEFAULT 100,
	shard pg_catalog.int4 DEFAULT NULL, shards pg_catalog.int4 DEFAULT NULL,
	types pg_catalog.text[] DEFAULT NULL)
RETURNS pg_catalog.text
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feedpub_page_events';
COMMENT ON FUNCTION feedpub._page_events(pg_catalog.regclass, pg_catalog.text, pg_catalog.int4, pg_catalog.int4, pg_catalog.int4, pg_catalog.text[]) IS
	'Reads a page of a feed in published order: its entries as CloudEvents, a line each, and a last line with its end.';

CREATE FUNCTION feedpub._page_records(feed pg_catalog.regclass,
	after pg_catalog.text DEFAULT '', max_rows pg_catalog.int4 DEFAULT 100,
	shard pg_catalog.int4 DEFAULT NULL, shards pg_catalog.int4 DEFAULT NULL,
	types pg_catalog.text[] DEFAULT NULL)
RETURNS pg_catalog.text
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feedpub_page_records';
COMMENT ON FUNCTION feedpub._page_records(pg_catalog.regclass, pg_catalog.text, pg_catalog.int4, pg_catalog.int4, pg_catalog.int4, pg_catalog.text[]) IS
	'Reads a page of a feed in published order: its entries as attributes and data, a line each, and a last line with its end.';

CREATE FUNCTION feedpub._page_messages(feed pg_catalog.regclass,
	after pg_catalog.text DEFAULT '', max_rows pg_catalog.int4 DEFAULT 100,
	shard pg_catalog.int4 DEFAULT NULL, shards pg_catalog.int4 DEFAULT NULL,
	types pg_catalog.text[] DEFAULT NULL)
RETURNS pg_catalog.text
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feedpub_page_messages';
COMMENT ON FUNCTION feedpub._page_messages(pg_catalog.regclass, pg_catalog.text, pg_catalog.int4, pg_catalog.int4, pg_catalog.int4, pg_catalog.text[]) IS
	'Reads a page of a feed in published order: its entries as messages of Durable Streams, a line each, and a last line with its end.';

CREATE FUNCTION feed_floor(feed pg_catalog.regclass)
RETURNS pg_catalog.text
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_floor';
COMMENT ON FUNCTION feed_floor(pg_catalog.regclass) IS
	'Returns the oldest cursor that is accepted: where what is retained begins.';

CREATE FUNCTION feed_head(feed pg_catalog.regclass)
RETURNS pg_catalog.text
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_head';
COMMENT ON FUNCTION feed_head(pg_catalog.regclass) IS
	'Returns the cursor of the end of what is published.';

CREATE FUNCTION feed_cursor(feed pg_catalog.regclass,
	feed_xid pg_catalog.xid8, feed_pos pg_catalog.int8)
RETURNS pg_catalog.text
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_cursor';
COMMENT ON FUNCTION feed_cursor(pg_catalog.regclass, pg_catalog.xid8, pg_catalog.int8) IS
	'Returns the cursor in published order after which a consumer that has read up to a stamp in xid order goes on.';

CREATE FUNCTION feed_flush(feed pg_catalog.regclass,
	timeout pg_catalog.interval DEFAULT '1 minute')
RETURNS pg_catalog.text
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_flush';
COMMENT ON FUNCTION feed_flush(pg_catalog.regclass, pg_catalog.interval) IS
	'Waits until everything that had committed before the call is published. Returns the cursor of the end then.';

CREATE FUNCTION feed_snapshot(feeds pg_catalog.regclass[],
	hold pg_catalog.interval DEFAULT '10 seconds')
RETURNS TABLE (feed pg_catalog.regclass, cursor pg_catalog.text, snapshot pg_catalog.text)
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 10
AS 'MODULE_PATHNAME', 'feed_snapshot';
COMMENT ON FUNCTION feed_snapshot(pg_catalog.regclass[], pg_catalog.interval) IS
	'Exports a snapshot, which is held for a time. Returns its name and, for each feed, a cursor: what the snapshot sees is what is before the cursors.';

CREATE FUNCTION feed_wait(feed pg_catalog.regclass, after pg_catalog.text,
	timeout pg_catalog.interval DEFAULT '10 seconds')
RETURNS pg_catalog.bool
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_wait';
COMMENT ON FUNCTION feed_wait(pg_catalog.regclass, pg_catalog.text, pg_catalog.interval) IS
	'Waits until something is published after a cursor. Returns false if nothing is published in time.';

CREATE PROCEDURE feed_await(feed pg_catalog.regclass, after pg_catalog.text,
	timeout pg_catalog.interval DEFAULT '10 seconds', INOUT arrived pg_catalog.bool DEFAULT NULL)
LANGUAGE C
AS 'MODULE_PATHNAME', 'feed_await';
COMMENT ON PROCEDURE feed_await(pg_catalog.regclass, pg_catalog.text, pg_catalog.interval, pg_catalog.bool) IS
	'Waits until something is published after a cursor, and holds no snapshot, lock or transaction while it waits.';

CREATE FUNCTION feed_start_worker()
RETURNS pg_catalog.bool
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_start_worker';
COMMENT ON FUNCTION feed_start_worker() IS
	'Starts the worker that publishes the feeds of this database.';

CREATE FUNCTION feed_stop_worker()
RETURNS pg_catalog.bool
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_stop_worker';
COMMENT ON FUNCTION feed_stop_worker() IS
	'Stops the worker of this database, until feed_start_worker() or a restart of the server.';

--
-- Subscriptions
--

CREATE FUNCTION feed_subscribe(name pg_catalog.text, feed pg_catalog.regclass,
	start pg_catalog.text DEFAULT 'latest', shards pg_catalog.int4 DEFAULT 1,
	lease pg_catalog.interval DEFAULT '30 seconds',
	max_attempts pg_catalog.int4 DEFAULT NULL,
	if_not_exists pg_catalog.bool DEFAULT false,
	backoff pg_catalog.interval[] DEFAULT NULL,
	types pg_catalog.text[] DEFAULT NULL,
	delayed pg_catalog.bool DEFAULT false)
RETURNS pg_catalog.text
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_subscribe';
COMMENT ON FUNCTION feed_subscribe(pg_catalog.text, pg_catalog.regclass, pg_catalog.text, pg_catalog.int4, pg_catalog.interval, pg_catalog.int4, pg_catalog.bool, pg_catalog.interval[], pg_catalog.text[], pg_catalog.bool) IS
	'Makes a subscription: the server keeps a cursor of a feed for its consumers. Returns the cursor after which it begins.';

-- For a start of type timestamptz; a literal is a text.
CREATE FUNCTION feed_subscribe(name pg_catalog.text, feed pg_catalog.regclass,
	start pg_catalog.timestamptz, shards pg_catalog.int4 DEFAULT 1,
	lease pg_catalog.interval DEFAULT '30 seconds',
	max_attempts pg_catalog.int4 DEFAULT NULL,
	if_not_exists pg_catalog.bool DEFAULT false,
	backoff pg_catalog.interval[] DEFAULT NULL,
	types pg_catalog.text[] DEFAULT NULL,
	delayed pg_catalog.bool DEFAULT false)
RETURNS pg_catalog.text
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_subscribe';
COMMENT ON FUNCTION feed_subscribe(pg_catalog.text, pg_catalog.regclass, pg_catalog.timestamptz, pg_catalog.int4, pg_catalog.interval, pg_catalog.int4, pg_catalog.bool, pg_catalog.interval[], pg_catalog.text[], pg_catalog.bool) IS
	'Makes a subscription that begins with what was published after a time. Returns the cursor after which it begins.';

CREATE FUNCTION feed_alter_subscription(name pg_catalog.text,
	lease pg_catalog.interval DEFAULT NULL,
	max_attempts pg_catalog.int4 DEFAULT NULL,
	backoff pg_catalog.interval[] DEFAULT NULL,
	types pg_catalog.text[] DEFAULT NULL,
	delayed pg_catalog.bool DEFAULT NULL)
RETURNS pg_catalog.void
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_alter_subscription';
COMMENT ON FUNCTION feed_alter_subscription(pg_catalog.text, pg_catalog.interval, pg_catalog.int4, pg_catalog.interval[], pg_catalog.text[], pg_catalog.bool) IS
	'Changes settings of a subscription; those that are not given stay as they are.';

CREATE FUNCTION feed_unsubscribe(name pg_catalog.text)
RETURNS pg_catalog.void
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_unsubscribe';
COMMENT ON FUNCTION feed_unsubscribe(pg_catalog.text) IS
	'Removes a subscription, with its committed cursors, leases and parked entries.';

CREATE FUNCTION feed_seek(name pg_catalog.text, start pg_catalog.text)
RETURNS pg_catalog.text
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_seek';
COMMENT ON FUNCTION feed_seek(pg_catalog.text, pg_catalog.text) IS
	'Moves a subscription to another cursor. Returns that cursor.';

CREATE FUNCTION feed_seek(name pg_catalog.text, start pg_catalog.timestamptz)
RETURNS pg_catalog.text
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_seek';
COMMENT ON FUNCTION feed_seek(pg_catalog.text, pg_catalog.timestamptz) IS
	'Moves a subscription to what was published after a time. Returns the cursor.';

CREATE FUNCTION feed_poll(name pg_catalog.text,
	max_rows pg_catalog.int4 DEFAULT 100,
	consumer pg_catalog.text DEFAULT NULL,
	timeout pg_catalog.interval DEFAULT '0',
	ack pg_catalog.text DEFAULT NULL)
RETURNS TABLE (receipt pg_catalog.text, cursor pg_catalog.text,
	op pg_catalog.text, key pg_catalog.json, "row" pg_catalog.json,
	xid pg_catalog.text, published_at pg_catalog.timestamptz,
	attempt pg_catalog.int4, error pg_catalog.text, shard pg_catalog.int4,
	relation pg_catalog.text, old_key pg_catalog.json, old pg_catalog.json,
	statement pg_catalog.int8, moment pg_catalog.bool)
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100
AS 'MODULE_PATHNAME', 'feed_poll';
COMMENT ON FUNCTION feed_poll(pg_catalog.text, pg_catalog.int4, pg_catalog.text, pg_catalog.interval, pg_catalog.text) IS
	'Reads what is after the committed cursor of a subscription. The same entries are delivered again until feed_ack() acknowledges them.';

CREATE FUNCTION feed_poll_rows(name pg_catalog.text,
	feed pg_catalog.anyelement, max_rows pg_catalog.int4 DEFAULT 100,
	consumer pg_catalog.text DEFAULT NULL,
	timeout pg_catalog.interval DEFAULT '0',
	ack pg_catalog.text DEFAULT NULL)
RETURNS TABLE (receipt pg_catalog.text, cursor pg_catalog.text,
	op pg_catalog.text, entry pg_catalog.anyelement, xid pg_catalog.text,
	published_at pg_catalog.timestamptz, attempt pg_catalog.int4,
	shard pg_catalog.int4, moment pg_catalog.bool)
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100
AS 'MODULE_PATHNAME', 'feed_poll_rows';
COMMENT ON FUNCTION feed_poll_rows(pg_catalog.text, pg_catalog.anyelement, pg_catalog.int4, pg_catalog.text, pg_catalog.interval, pg_catalog.text) IS
	'Reads like feed_poll(), and returns rows of the feed''s table.';

CREATE FUNCTION feed_ack(name pg_catalog.text, receipt pg_catalog.text,
	strict pg_catalog.bool DEFAULT true)
RETURNS pg_catalog.bool
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_ack';
COMMENT ON FUNCTION feed_ack(pg_catalog.text, pg_catalog.text, pg_catalog.bool) IS
	'Acknowledges a page up to the entry of a receipt: the committed cursor moves there.';

CREATE FUNCTION feed_leave(name pg_catalog.text, consumer pg_catalog.text)
RETURNS pg_catalog.int4
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_leave';
COMMENT ON FUNCTION feed_leave(pg_catalog.text, pg_catalog.text) IS
	'Gives back the shards that a consumer has leased, so that other consumers need not wait until the leases end. Returns how many.';

CREATE FUNCTION feed_park(name pg_catalog.text, receipt pg_catalog.text,
	reason pg_catalog.text DEFAULT NULL)
RETURNS pg_catalog.bool
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_park';
COMMENT ON FUNCTION feed_park(pg_catalog.text, pg_catalog.text, pg_catalog.text) IS
	'Parks an entry that was delivered, so that the consumer can go on: it is delivered again only after feed_retry(). Returns false if the entry is acknowledged already or does not exist any more.';

CREATE FUNCTION feed_nack(name pg_catalog.text, receipt pg_catalog.text,
	reason pg_catalog.text DEFAULT NULL,
	delay pg_catalog.interval DEFAULT NULL)
RETURNS pg_catalog.bool
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_nack';
COMMENT ON FUNCTION feed_nack(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.interval) IS
	'Parks an entry that was delivered, and has it delivered again after a delay, or what the subscription''s backoff says, until it has failed max_attempts times. Returns false if the entry is acknowledged already or does not exist any more.';

CREATE FUNCTION feed_retry(name pg_catalog.text, cursor pg_catalog.text DEFAULT NULL)
RETURNS pg_catalog.int4
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_retry';
COMMENT ON FUNCTION feed_retry(pg_catalog.text, pg_catalog.text) IS
	'Has a parked entry delivered again, or all parked entries of a subscription. Returns how many.';

CREATE FUNCTION feed_discard(name pg_catalog.text, cursor pg_catalog.text)
RETURNS pg_catalog.int4
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_discard';
COMMENT ON FUNCTION feed_discard(pg_catalog.text, pg_catalog.text) IS
	'Forgets a parked entry: it is not delivered again. Returns how many entries there were, 0 or 1.';

CREATE FUNCTION feedpub._cursor_compare(a pg_catalog.text, b pg_catalog.text)
RETURNS pg_catalog.int4
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'feedpub_cursor_compare_texts';
REVOKE ALL ON FUNCTION feedpub._cursor_compare(pg_catalog.text, pg_catalog.text) FROM PUBLIC;
COMMENT ON FUNCTION feedpub._cursor_compare(pg_catalog.text, pg_catalog.text) IS
	'Compares the positions of two cursors of one history: -1, 0 or 1.';

CREATE FUNCTION feedpub._cursor_moves(a pg_catalog.text, b pg_catalog.text)
RETURNS pg_catalog.bool
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'feedpub_cursor_moves_texts';
REVOKE ALL ON FUNCTION feedpub._cursor_moves(pg_catalog.text, pg_catalog.text) FROM PUBLIC;
COMMENT ON FUNCTION feedpub._cursor_moves(pg_catalog.text, pg_catalog.text) IS
	'Tells whether a committed cursor that moves from the first cursor to the second goes forward.';

CREATE FUNCTION feedpub._subscription_owner(owner pg_catalog.oid,
	owner_name pg_catalog.name, system_id pg_catalog.int8)
RETURNS pg_catalog.oid
LANGUAGE C STABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'feedpub_subscription_owner';
COMMENT ON FUNCTION feedpub._subscription_owner(pg_catalog.oid, pg_catalog.name, pg_catalog.int8) IS
	'Returns the role that owns a subscription; 0 if there is no such role on this server.';

CREATE FUNCTION feedpub._lag(feed pg_catalog.regclass, cursor pg_catalog.text,
	types pg_catalog.text[],
	OUT "rows" pg_catalog.int8, OUT more pg_catalog.bool,
	OUT since pg_catalog.timestamptz, OUT expired pg_catalog.bool)
RETURNS record
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feedpub_lag';
COMMENT ON FUNCTION feedpub._lag(pg_catalog.regclass, pg_catalog.text, pg_catalog.text[]) IS
	'Tells what is after a cursor: the number of rows, an estimate without types, and since when. It also tells whether the cursor has expired.';

--
-- Views
--

CREATE VIEW feedpub.feeds AS
	SELECT f.feed,
		f.kind,
		pg_catalog.pg_get_userbyid(c.relowner) AS owner,
		pg_catalog.format_type(a.atttypid, NULL) AS payload_type,
		f.key,
		f.deletes,
		CASE WHEN s.state OPERATOR(pg_catalog.=) 'ready' AND EXISTS (
			SELECT FROM feedpub._partition p, feedpub._job r
			WHERE p.feed OPERATOR(pg_catalog.=) f.feed
				AND r.feed OPERATOR(pg_catalog.=) p.feed
				AND r.kind OPERATOR(pg_catalog.=) 'stamp'
				AND r.relation OPERATOR(pg_catalog.=) p.partition
				AND r.target OPERATOR(pg_catalog.=) p.since
				AND r.failed OPERATOR(pg_catalog.>) 0)
			THEN 'failed rows' ELSE s.state END AS state,
		f.is_default,
		CASE WHEN pg_catalog.has_any_column_privilege(f.feed, 'SELECT') THEN f.channel END AS channel,
		s.size,
		s."position",
		s.rows_per_second,
		s.head,
		s.last_published,
		s.unpublished,
		s.worker,
		f.keep,
		f.max_age,
		f.max_size,
		r.floor,
		r.floor_moved_at,
		r.oldest,
		r.held_by,
		f.created_at
	FROM feedpub._feed f
	JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) f.feed
	CROSS JOIN LATERAL feedpub._feed_stats(f.feed) s
	CROSS JOIN LATERAL feedpub._retention(f.feed) r
	LEFT JOIN pg_catalog.pg_attribute a
		ON a.attrelid OPERATOR(pg_catalog.=) c.oid
		AND f.kind OPERATOR(pg_catalog.=) 'outbox'
		AND a.attname OPERATOR(pg_catalog.=) 'data'
		AND a.attnum OPERATOR(pg_catalog.>) 0
		AND NOT a.attisdropped;
COMMENT ON VIEW feedpub.feeds IS
	'The feeds of this database, with their state.';
COMMENT ON COLUMN feedpub.feeds.state IS
	'ready, or what is wrong: feed_check() tells more.';
COMMENT ON COLUMN feedpub.feeds.keep IS
	'How long rows are kept after they were published, and then until every subscription has acknowledged them.';
COMMENT ON COLUMN feedpub.feeds.max_age IS
	'The age at which rows are removed even so.';
COMMENT ON COLUMN feedpub.feeds.max_size IS
	'The size of what is kept at most, in bytes, an estimate.';
COMMENT ON COLUMN feedpub.feeds.floor IS
	'The oldest cursor that is accepted; NULL if nothing has been removed.';
COMMENT ON COLUMN feedpub.feeds.floor_moved_at IS
	'When the floor moved there.';
COMMENT ON COLUMN feedpub.feeds.oldest IS
	'When the oldest batch after the floor was published.';
COMMENT ON COLUMN feedpub.feeds.held_by IS
	'What holds retention back: a subscription, a transaction that makes one, locked rows, or an error. For the owner of the feed and members of pg_read_all_stats.';
COMMENT ON COLUMN feedpub.feeds.payload_type IS
	'The type of data, in an outbox.';
COMMENT ON COLUMN feedpub.feeds.key IS
	'The columns of the key, in a table feed.';
COMMENT ON COLUMN feedpub.feeds.deletes IS
	'Are deletes published? Only in a table feed.';
COMMENT ON COLUMN feedpub.feeds.is_default IS
	'Does feed_fetch() read this feed if none is named?';
COMMENT ON COLUMN feedpub.feeds.channel IS
	'The channel on which batches are announced. Only readers of the feed see it.';
COMMENT ON COLUMN feedpub.feeds.size IS
	'The bytes of the table and its indexes.';
COMMENT ON COLUMN feedpub.feeds."position" IS
	'The last position that was given.';
COMMENT ON COLUMN feedpub.feeds.rows_per_second IS
	'An estimate of the rows and deletes a second, in the last minute.';
COMMENT ON COLUMN feedpub.feeds.head IS
	'The number of the newest batch.';
COMMENT ON COLUMN feedpub.feeds.last_published IS
	'When the newest batch was published.';
COMMENT ON COLUMN feedpub.feeds.unpublished IS
	'Are committed rows waiting to be published? NULL on a standby.';
COMMENT ON COLUMN feedpub.feeds.worker IS
	'running; none: the next read, poll or wait starts it; stopped: by feed_stop_worker(); refused: feedpub.max_workers or max_worker_processes is reached.';
GRANT SELECT ON feedpub.feeds TO PUBLIC;

-- No lock is taken on the tables, so that a view waits for nobody.
CREATE VIEW feedpub.captures AS
	SELECT c.feed, c.relation, c.key, c.columns, c.old,
		CASE WHEN NOT c.has_key THEN 'no key' WHEN f.unguarded THEN 'unguarded' WHEN f.feed IS NOT NULL THEN 'not unique' ELSE 'ready' END AS state
	FROM feedpub._captured c
	LEFT JOIN (SELECT f.feed, f.relation, pg_catalog.bool_or(f.kind OPERATOR(pg_catalog.<>) 'unique') AS unguarded
		FROM feedpub._capture_fault f
		WHERE f.kind OPERATOR(pg_catalog.=) 'unique'
			OR ((f.kind OPERATOR(pg_catalog.=) 'row' OR f.kind OPERATOR(pg_catalog.=) 'truncate')
				AND (f.name IS NOT NULL OR f.part OPERATOR(pg_catalog.=) f.relation))
		GROUP BY f.feed, f.relation) f
		ON f.feed OPERATOR(pg_catalog.=) c.feed AND f.relation OPERATOR(pg_catalog.=) c.relation;
COMMENT ON VIEW feedpub.captures IS
	'The tables whose changes are written into change feeds.';
COMMENT ON COLUMN feedpub.captures.columns IS
	'The columns that are written beside those of the key; NULL: all.';
COMMENT ON COLUMN feedpub.captures.old IS
	'Whether old values are written.';
COMMENT ON COLUMN feedpub.captures.state IS
	'ready; unguarded: a trigger is missing or does not fire, which feed_check() explains; no key: a column of the key is gone; not unique: several rows can have one key.';
GRANT SELECT ON feedpub.captures TO PUBLIC;

-- A database that was dropped keeps its entry in shared memory until another
-- database needs it; the join leaves it out.
CREATE VIEW feedpub.workers AS
	SELECT d.datname AS database,
		w.pid,
		w.state,
		w.started_at,
		w.turns,
		w.wakeups,
		w.batches,
		w.transactions,
		w.rows_stamped,
		w.errors,
		w.failing_feeds,
		w.last_error_at,
		w.last_error,
		CASE WHEN d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
			THEN w.last_error_feed::pg_catalog.regclass END AS last_error_feed
	FROM feedpub._workers() w
	JOIN pg_catalog.pg_database d ON d.oid OPERATOR(pg_catalog.=) w.datid;
COMMENT ON VIEW feedpub.workers IS
	'The worker of this database; for members of pg_monitor, the workers of all databases.';
COMMENT ON COLUMN feedpub.workers.state IS
	'running; failing: a feed could not be published when it was last tried; missing: it should run, and does not; stopped; not needed.';
COMMENT ON COLUMN feedpub.workers.turns IS
	'How often it has looked at its feeds.';
COMMENT ON COLUMN feedpub.workers.wakeups IS
	'How often it was woken.';
COMMENT ON COLUMN feedpub.workers.rows_stamped IS
	'Rows of partitions that were stamped anew.';
COMMENT ON COLUMN feedpub.workers.failing_feeds IS
	'Feeds that could not be published when they were last tried.';
COMMENT ON COLUMN feedpub.workers.last_error_feed IS
	'The feed of the last error, in its own database.';
GRANT SELECT ON feedpub.workers TO PUBLIC;

-- Those that a snapshot finds, and the caller's own; so not those of VACUUM, which
-- snapshots skip.  The epoch of an xid is that with which it is less than 2^31
-- from the snapshot's xmax (written with OPERATOR, all operators are of one
-- precedence, from left to right).  A standby knows its primary's transactions
-- only by their xids, so there it is the oldest one, if another that is younger
-- has ended.  pg_stat_activity shows all roles which session has which xid; other
-- details it hides itself.
CREATE VIEW feedpub.blockers AS
	SELECT w.xid, b.kind, b.pid, b.gid, b.database, b."user", b.application_name,
		b.state, b.query_start, b.xact_start, b.prepared_at,
		COALESCE(b.prepared_at, b.xact_start) AS since,
		b.client_addr
	FROM pg_catalog.pg_current_snapshot() s (snapshot),
		LATERAL (
			SELECT 'session'::pg_catalog.text AS kind, a.backend_xid AS id, a.pid, NULL::pg_catalog.text AS gid,
				a.datname AS database, a.usename AS "user", a.application_name, a.state,
				a.query_start, a.xact_start, NULL::pg_catalog.timestamptz AS prepared_at, a.client_addr
			FROM pg_catalog.pg_stat_activity a
			WHERE a.backend_xid IS NOT NULL
			UNION ALL
			SELECT 'prepared', p.transaction, NULL, p.gid, p.database, p.owner, NULL, NULL, NULL, NULL, p.prepared, NULL
			FROM pg_catalog.pg_prepared_xacts p
			UNION ALL
			SELECT 'primary', pg_catalog.pg_snapshot_xmin(s.snapshot)::pg_catalog.xid,
				NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
			WHERE pg_catalog.pg_is_in_recovery()
				AND pg_catalog.pg_snapshot_xmin(s.snapshot) OPERATOR(pg_catalog.<) pg_catalog.pg_snapshot_xmax(s.snapshot)) b,
		LATERAL (SELECT pg_catalog.pg_snapshot_xmax(s.snapshot)::pg_catalog.text::pg_catalog.int8) x (xmax),
		LATERAL (SELECT (b.id::pg_catalog.text::pg_catalog.int8 OPERATOR(pg_catalog.-) x.xmax
			OPERATOR(pg_catalog.%) 4294967296 OPERATOR(pg_catalog.+) 6442450944 OPERATOR(pg_catalog.%) 4294967296
			OPERATOR(pg_catalog.-) 2147483648 OPERATOR(pg_catalog.+) x.xmax)::pg_catalog.text::pg_catalog.xid8) w (xid)
	WHERE NOT pg_catalog.pg_visible_in_snapshot(w.xid, s.snapshot)
		OR b.pid OPERATOR(pg_catalog.=) pg_catalog.pg_backend_pid()
		OR b.kind OPERATOR(pg_catalog.=) 'primary'
	ORDER BY w.xid;
COMMENT ON VIEW feedpub.blockers IS
	'The transactions of all databases that hold back xid order, the oldest first.';
COMMENT ON COLUMN feedpub.blockers.kind IS
	'session, prepared, or, on a standby, primary: a transaction of the primary.';
COMMENT ON COLUMN feedpub.blockers.gid IS
	'The name of a prepared transaction.';
COMMENT ON COLUMN feedpub.blockers.since IS
	'prepared_at or xact_start.';
GRANT SELECT ON feedpub.blockers TO PUBLIC;

CREATE VIEW feedpub.waiting AS
	SELECT f.feed, pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot()) AS horizon, s.waiting
	FROM feedpub._feed f, feedpub._feed_stats(f.feed) s
	WHERE EXISTS (SELECT FROM pg_catalog.pg_class c
		WHERE c.oid OPERATOR(pg_catalog.=) f.feed);
COMMENT ON VIEW feedpub.waiting IS
	'For each feed, an estimate of the rows that xid order holds back.';
COMMENT ON COLUMN feedpub.waiting.horizon IS
	'All transactions with smaller xids have ended.';
COMMENT ON COLUMN feedpub.waiting.waiting IS
	'An estimate of the rows that wait for it. Rows that were rolled back count.';
GRANT SELECT ON feedpub.waiting TO PUBLIC;

-- The owner of a subscription sees it, and members of pg_read_all_stats.
-- These views are security barriers: conditions of the caller are evaluated
-- only for rows that it may see.
--
-- The newest version of each shard is looked up by the end of the index.  The
-- numbers of the shards come from an array, of which the planner expects ten
-- elements; of generate_series() it expects a thousand rows, and would compile
-- the query (jit_above_cost) at each look.
CREATE VIEW feedpub.subscriptions WITH (security_barrier) AS
	SELECT s.name, s.feed,
		pg_catalog.pg_get_userbyid(o.owner) AS owner,
		s.shards, s.lease, s.max_attempts,
		h.cursor, h.lag_rows,
		pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) h.since AS lag,
		h.last_ack, h.leased,
		(SELECT pg_catalog.count(*) FROM feedpub._consumer c
			WHERE c.subscription OPERATOR(pg_catalog.=) s.name
			AND c.seen_until OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()) AS consumers,
		h.parked, h.expired, s.created_at, s.backoff, s.types, h.lag_more, s.delayed
	FROM feedpub._subscription s
	CROSS JOIN LATERAL feedpub._subscription_owner(s.owner, s.owner_name, s.system_id) o (owner)
	CROSS JOIN LATERAL (
		SELECT pg_catalog.min(h.cursor) AS cursor,
			pg_catalog.avg(l.rows)::pg_catalog.int8 AS lag_rows,
			pg_catalog.bool_or(l.more) AS lag_more,
			pg_catalog.min(l.since) AS since,
			pg_catalog.max(h.last_ack) AS last_ack,
			pg_catalog.count(*) FILTER (WHERE h.consumer IS NOT NULL
				AND h.leased_until OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()) AS leased,
			pg_catalog.sum(h.parked) AS parked,
			pg_catalog.bool_or(l.expired) AS expired
		FROM pg_catalog.unnest(pg_catalog.array_fill(0, ARRAY[s.shards])) WITH ORDINALITY i (zero, ord),
			LATERAL (SELECT n.* FROM feedpub._shard n
				WHERE n.subscription OPERATOR(pg_catalog.=) s.name
				AND n.shard OPERATOR(pg_catalog.=) (i.ord::pg_catalog.int4 OPERATOR(pg_catalog.-) 1)
				ORDER BY n.n DESC LIMIT 1) h,
			feedpub._lag(s.feed, h.cursor, s.types) l) h
	WHERE (pg_catalog.pg_has_role(o.owner, 'USAGE')
		OR pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE'))
	AND EXISTS (SELECT FROM pg_catalog.pg_class c
		WHERE c.oid OPERATOR(pg_catalog.=) s.feed);
COMMENT ON VIEW feedpub.subscriptions IS
	'The subscriptions that the caller may use, with what is after their committed cursors; for members of pg_read_all_stats, all subscriptions.';
COMMENT ON COLUMN feedpub.subscriptions.cursor IS
	'The committed cursor; of several shards the smallest.';
COMMENT ON COLUMN feedpub.subscriptions.lag_rows IS
	'An estimate of the rows after the committed cursor; with types, those of these types, counted.';
COMMENT ON COLUMN feedpub.subscriptions.lag_more IS
	'May there be more of these types? NULL: they could not be counted, and lag_rows is an estimate of all types.';
COMMENT ON COLUMN feedpub.subscriptions.lag IS
	'For how long the first of them has been published.';
COMMENT ON COLUMN feedpub.subscriptions.leased IS
	'The number of shards that are leased.';
COMMENT ON COLUMN feedpub.subscriptions.consumers IS
	'The number of consumers with a name that have polled within a lease.';
COMMENT ON COLUMN feedpub.subscriptions.parked IS
	'The number of parked entries.';
COMMENT ON COLUMN feedpub.subscriptions.delayed IS
	'Are messages delivered when they are due?';
COMMENT ON COLUMN feedpub.subscriptions.expired IS
	'Does the next poll raise PF002?';
GRANT SELECT ON feedpub.subscriptions TO PUBLIC;

CREATE VIEW feedpub.shards WITH (security_barrier) AS
	SELECT h.subscription, h.shard, h.cursor,
		CASE WHEN h.leased_until OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()
			THEN h.consumer END AS consumer,
		CASE WHEN h.leased_until OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()
			THEN h.leased_until END AS leased_until,
		h.last_ack, h.parked
	FROM feedpub._subscription s
	CROSS JOIN pg_catalog.unnest(pg_catalog.array_fill(0, ARRAY[s.shards])) WITH ORDINALITY i (zero, ord)
	CROSS JOIN LATERAL (SELECT n.* FROM feedpub._shard n
		WHERE n.subscription OPERATOR(pg_catalog.=) s.name
		AND n.shard OPERATOR(pg_catalog.=) (i.ord::pg_catalog.int4 OPERATOR(pg_catalog.-) 1)
		ORDER BY n.n DESC LIMIT 1) h
	WHERE pg_catalog.pg_has_role(feedpub._subscription_owner(s.owner, s.owner_name, s.system_id), 'USAGE')
		OR pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE');
COMMENT ON VIEW feedpub.shards IS
	'The shards of the subscriptions that the caller may use, and their leases; for members of pg_read_all_stats, those of all subscriptions.';
COMMENT ON COLUMN feedpub.shards.cursor IS
	'The committed cursor.';
COMMENT ON COLUMN feedpub.shards.consumer IS
	'The consumer that has leased the shard, if the lease has not ended.';
COMMENT ON COLUMN feedpub.shards.parked IS
	'The number of parked entries.';
GRANT SELECT ON feedpub.shards TO PUBLIC;

-- Reasons are data of the subscription.  Keys and messages are data of the
-- table, so only roles that may see all of its rows see them.
CREATE VIEW feedpub.parked WITH (security_barrier) AS
	SELECT p.subscription, p.shard, p.cursor, p.op,
		CASE WHEN t.shown THEN p.key END AS key,
		CASE WHEN t.shown THEN p.row END AS message,
		CASE WHEN p.retry_at IS NULL THEN 'parked'
			WHEN p.attempts OPERATOR(pg_catalog.=) 0
				AND p.retry_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp() THEN 'scheduled'
			WHEN p.retry_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp() THEN 'waiting'
			ELSE 'due' END AS state,
		p.reason, p.attempts, p.parked_at, p.retry_at, p.relation
	FROM feedpub._parked_entry p
	JOIN feedpub._subscription s ON s.name OPERATOR(pg_catalog.=) p.subscription
	JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) s.feed
	CROSS JOIN LATERAL (SELECT pg_catalog.has_table_privilege(s.feed, 'SELECT')
		AND NOT pg_catalog.row_security_active(s.feed) AS shown) t
	WHERE pg_catalog.pg_has_role(feedpub._subscription_owner(s.owner, s.owner_name, s.system_id), 'USAGE')
	AND (p.retry_at IS NULL OR p.retry_at OPERATOR(pg_catalog.>) '-infinity'::pg_catalog.timestamptz);
COMMENT ON VIEW feedpub.parked IS
	'The parked entries of the subscriptions that the caller may use.';
COMMENT ON COLUMN feedpub.parked.cursor IS
	'The cursor of the entry, for feed_retry() and feed_discard().';
COMMENT ON COLUMN feedpub.parked.key IS
	'NULL, as message is, if the caller may not read all rows of the table.';
COMMENT ON COLUMN feedpub.parked.message IS
	'The row as it was when it was parked.';
COMMENT ON COLUMN feedpub.parked.state IS
	'waiting until retry_at; scheduled: a message that is due then; due; or parked: it comes again only after feed_retry().';
COMMENT ON COLUMN feedpub.parked.attempts IS
	'How often it has failed.';
COMMENT ON COLUMN feedpub.parked.retry_at IS
	'When it is delivered again, or first if it is scheduled; NULL if only after feed_retry().';
COMMENT ON COLUMN feedpub.parked.relation IS
	'Of a change feed: the table whose row has changed.';
GRANT SELECT ON feedpub.parked TO PUBLIC;

-- The message of an error may have data of the table, so only its owner sees
-- it.
CREATE VIEW feedpub.jobs WITH (security_barrier) AS
	SELECT w.feed, w.kind, w.relation,
		CASE WHEN j.done AND j.target OPERATOR(pg_catalog.=) w.target THEN 'done'
			WHEN j.last_error_at OPERATOR(pg_catalog.>) j.stepped_at THEN 'failing'
			WHEN j.stepped_at IS NULL OR j.done THEN 'waiting'
			ELSE 'running' END AS state,
		COALESCE(j.rows, 0) AS rows,
		COALESCE(j.locked, 0) AS locked,
		COALESCE(j.failed, 0) AS failed,
		j.attempts, j.retry_at, j.stepped_at,
		CASE WHEN pg_catalog.pg_has_role(c.relowner, 'USAGE') THEN j.last_error END AS last_error,
		j.last_error_at
	FROM feedpub._work w
	LEFT JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) w.relation
	LEFT JOIN pg_catalog.pg_class f ON f.oid OPERATOR(pg_catalog.=) w.feed
	LEFT JOIN feedpub._job j ON j.feed OPERATOR(pg_catalog.=) w.feed
		AND j.kind OPERATOR(pg_catalog.=) w.kind
		AND j.relation OPERATOR(pg_catalog.=) w.relation
		AND (j.target OPERATOR(pg_catalog.=) w.target OR w.kind OPERATOR(pg_catalog.<>) 'stamp')
	WHERE pg_catalog.pg_has_role(c.relowner, 'USAGE')
		OR pg_catalog.pg_has_role(f.relowner, 'USAGE')
		OR pg_catalog.pg_has_role('pg_monitor', 'USAGE');
COMMENT ON VIEW feedpub.jobs IS
	'The jobs on the rows of feeds, and how far they are. The owners of feed and partition see them, and members of pg_monitor.';
COMMENT ON COLUMN feedpub.jobs.kind IS
	'stamp: the rows that a partition came with are stamped anew; remove: the rows before the floor of an outbox; expire: the deletes before the floor of a table feed; sweep: what dropped feeds have left.';
COMMENT ON COLUMN feedpub.jobs.relation IS
	'The partition, or the feed''s table.';
COMMENT ON COLUMN feedpub.jobs.state IS
	'waiting, running, failing or done.';
COMMENT ON COLUMN feedpub.jobs.rows IS
	'Rows that have been stamped or removed.';
COMMENT ON COLUMN feedpub.jobs.locked IS
	'Rows that were left, because they were locked.';
COMMENT ON COLUMN feedpub.jobs.failed IS
	'Rows that could not be stamped or removed, since their UPDATE or DELETE fails.';
COMMENT ON COLUMN feedpub.jobs.attempts IS
	'Turns in succession that have not ended well.';
COMMENT ON COLUMN feedpub.jobs.retry_at IS
	'When the next turn is due.';
COMMENT ON COLUMN feedpub.jobs.stepped_at IS
	'When it was last worked on.';
COMMENT ON COLUMN feedpub.jobs.last_error IS
	'The last error. Only the owner of relation sees it.';
GRANT SELECT ON feedpub.jobs TO PUBLIC;
