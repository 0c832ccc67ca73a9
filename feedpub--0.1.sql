/* feedpub--0.1.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION feedpub" to load this file. \quit

--
-- The schema of our tables, views and internal functions.  It must not exist
-- before: whoever made it could have put things into it that we would call.
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
	-- by number, which a RENAME keeps, as long as key_table is the table's OID;
	-- and whether deletes are published
	key pg_catalog.name[],
	key_attnums pg_catalog.int2[],
	deletes pg_catalog.bool NOT NULL DEFAULT false,
	-- up to which place, in published order, tombstones have expired
	floor_sync_id pg_catalog.int8 NOT NULL DEFAULT 0,
	floor_pos pg_catalog.int8 NOT NULL DEFAULT 0,
	-- random: cursors are of this life of the feed
	history pg_catalog.int4 NOT NULL DEFAULT 0,
	key_table pg_catalog.oid,
	created_at pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.now(),
	CHECK (kind OPERATOR(pg_catalog.=) 'outbox' OR kind OPERATOR(pg_catalog.=) 'table')
);
CREATE UNIQUE INDEX _feed_default ON feedpub._feed (is_default) WHERE is_default;
-- What dumps must read it.  Others see all but the channel: whoever knows that
-- can LISTEN, without any right.
GRANT SELECT ON feedpub._feed TO pg_database_owner;
GRANT SELECT (feed, kind, is_default, key, deletes, created_at) ON feedpub._feed TO PUBLIC;
COMMENT ON TABLE feedpub._feed IS
	'the registry of feeds; written by feed_create() and its kin only';
-- The rows of dropped tables, which would dump as bare numbers, stay behind.
SELECT pg_catalog.pg_extension_config_dump('feedpub._feed',
	'WHERE EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid OPERATOR(pg_catalog.=) feed)');

-- Published order: batch k holds the transactions that its snapshot sees and
-- that of batch k-1 does not.  When others write into a feed, and how much, is
-- for its readers, and they read it through our functions; so it is not for
-- PUBLIC, but whoever dumps the database must read it.
CREATE TABLE feedpub._batch (
	feed pg_catalog.regclass NOT NULL,
	sync_id pg_catalog.int8 NOT NULL,
	snapshot pg_catalog.pg_snapshot NOT NULL,
	last_pos pg_catalog.int8 NOT NULL,
	transactions pg_catalog.int4 NOT NULL,
	fingerprint pg_catalog.int4 NOT NULL,
	published_at pg_catalog.timestamptz NOT NULL,
	-- of the server start; the fingerprint is made of it and the number
	seed pg_catalog.int4 NOT NULL,
	-- what they were that have been merged into this one, all of this seed: the
	-- number of the oldest, and the last position of the youngest
	merged_from pg_catalog.int8,
	merged_pos pg_catalog.int8,
	PRIMARY KEY (feed, sync_id)
);
GRANT SELECT ON feedpub._batch TO pg_database_owner;
COMMENT ON TABLE feedpub._batch IS
	'the batches of each feed in published order; written by feed_publish() only';
SELECT pg_catalog.pg_extension_config_dump('feedpub._batch',
	'WHERE EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid OPERATOR(pg_catalog.=) feed)');

-- The start of the server that has published last here: one row.  Not dumped:
-- elsewhere it means nothing.
CREATE TABLE feedpub._server_start (
	id pg_catalog.int8 PRIMARY KEY,
	written_at pg_catalog.timestamptz NOT NULL
);
GRANT SELECT ON feedpub._server_start TO pg_database_owner;
COMMENT ON TABLE feedpub._server_start IS
	'the server start that has published last; written with its first batch only';

-- Deletes in table feeds: the key of the row, as texts, and a stamp; without
-- a key, the table was truncated.  Keys are their tables' data, so this is not
-- for PUBLIC; but whoever dumps the database must read it.
CREATE TABLE feedpub._tombstone (
	feed pg_catalog.regclass NOT NULL,
	feed_xid pg_catalog.xid8 NOT NULL,
	feed_pos pg_catalog.int8 NOT NULL,
	key pg_catalog.text[],
	PRIMARY KEY (feed, feed_xid, feed_pos)
);
GRANT SELECT ON feedpub._tombstone TO pg_database_owner;
COMMENT ON TABLE feedpub._tombstone IS
	'rows deleted from table feeds; written by their triggers only';
SELECT pg_catalog.pg_extension_config_dump('feedpub._tombstone',
	'WHERE EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid OPERATOR(pg_catalog.=) feed)');

-- Subscriptions: cursors that are kept here, for those who want that.  A row
-- for each, and one for each of its shards with the committed cursor, a random
-- number of its state, and that of the page which was acknowledged last.  Their owners see them in views.
CREATE TABLE feedpub._subscription (
	name pg_catalog.text COLLATE pg_catalog."C" PRIMARY KEY,
	feed pg_catalog.regclass NOT NULL,
	-- no regrole: where a role is missing, a dump could not be restored
	owner pg_catalog.oid NOT NULL,
	owner_name pg_catalog.name NOT NULL,
	system_id pg_catalog.int8 NOT NULL,
	shards pg_catalog.int4 NOT NULL,
	lease pg_catalog.interval NOT NULL,
	max_attempts pg_catalog.int4,
	created_at pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.now()
);
GRANT SELECT ON feedpub._subscription TO pg_database_owner;
COMMENT ON TABLE feedpub._subscription IS
	'subscriptions; written by feed_subscribe() and its kin only';
SELECT pg_catalog.pg_extension_config_dump('feedpub._subscription',
	'WHERE EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid OPERATOR(pg_catalog.=) feed)');

-- Room on the page, so that an acknowledged place overwrites an old version.
CREATE TABLE feedpub._shard (
	subscription pg_catalog.text COLLATE pg_catalog."C",
	shard pg_catalog.int4,
	cursor pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
	state pg_catalog.int8 NOT NULL,
	page pg_catalog.int8,
	-- the page of the parked entry that was acknowledged last
	settled pg_catalog.int8,
	consumer pg_catalog.text COLLATE pg_catalog."C",
	leased_until pg_catalog.timestamptz,
	last_ack pg_catalog.timestamptz,
	parked pg_catalog.int4 NOT NULL DEFAULT 0,
	PRIMARY KEY (subscription, shard)
) WITH (fillfactor = 30);
GRANT SELECT ON feedpub._shard TO pg_database_owner;
COMMENT ON TABLE feedpub._shard IS
	'the committed cursors and leases of subscriptions, by shard; written by feed_ack() and its kin only';
SELECT pg_catalog.pg_extension_config_dump('feedpub._shard',
	'WHERE EXISTS (SELECT FROM feedpub._subscription s, pg_catalog.pg_class c'
	' WHERE s.name OPERATOR(pg_catalog.=) subscription AND c.oid OPERATOR(pg_catalog.=) s.feed)');

-- Who takes part in a subscription, so that shards are shared out fairly.
CREATE TABLE feedpub._consumer (
	subscription pg_catalog.text COLLATE pg_catalog."C",
	consumer pg_catalog.text COLLATE pg_catalog."C",
	seen_until pg_catalog.timestamptz NOT NULL,
	PRIMARY KEY (subscription, consumer)
) WITH (fillfactor = 50);
GRANT SELECT ON feedpub._consumer TO pg_database_owner;
COMMENT ON TABLE feedpub._consumer IS
	'consumers that share subscriptions; written by feed_poll() only';

-- Parked entries, by their cursor and their stamp; if the table has a key, by
-- that.  Keys and rows are their tables' data; the database's owner may read
-- them in order to dump them.
CREATE TABLE feedpub._parked_entry (
	subscription pg_catalog.text COLLATE pg_catalog."C",
	shard pg_catalog.int4,
	cursor pg_catalog.text COLLATE pg_catalog."C",
	op pg_catalog.text NOT NULL,
	feed_xid pg_catalog.xid8 NOT NULL,
	feed_pos pg_catalog.int8 NOT NULL,
	published_at pg_catalog.timestamptz,
	key_texts pg_catalog.text[],
	-- what feed_poll() returned of it
	key pg_catalog.json,
	"row" pg_catalog.json,
	reason pg_catalog.text,
	attempts pg_catalog.int4 NOT NULL DEFAULT 1,
	parked_at pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
	-- when it is delivered again; NULL: when feed_retry() says so;
	-- '-infinity': never, it has been discarded
	retry_at pg_catalog.timestamptz,
	-- the random number of its state, and of the page that parked it
	state pg_catalog.int8 NOT NULL,
	page pg_catalog.int8 NOT NULL,
	-- the committed cursor when it failed last
	failed_at pg_catalog.text COLLATE pg_catalog."C",
	PRIMARY KEY (subscription, shard, cursor)
);
GRANT SELECT ON feedpub._parked_entry TO pg_database_owner;
COMMENT ON TABLE feedpub._parked_entry IS
	'entries that consumers have parked; written by feed_park() and its kin only';
SELECT pg_catalog.pg_extension_config_dump('feedpub._parked_entry',
	'WHERE EXISTS (SELECT FROM feedpub._subscription s, pg_catalog.pg_class c'
	' WHERE s.name OPERATOR(pg_catalog.=) subscription AND c.oid OPERATOR(pg_catalog.=) s.feed)');

-- The partitions of partitioned table feeds: a row is in the feed if its stamp
-- is not below since.  By trigger_id, its clone of the trigger that stamps, a
-- partition is known to have been detached meanwhile; partition_id and system_id
-- tell where that number is from.
CREATE TABLE feedpub._partition (
	feed pg_catalog.regclass NOT NULL,
	partition pg_catalog.regclass NOT NULL,
	since pg_catalog.xid8 NOT NULL,
	trigger_id pg_catalog.oid NOT NULL,
	partition_id pg_catalog.oid NOT NULL,
	system_id pg_catalog.int8 NOT NULL,
	PRIMARY KEY (feed, partition)
);
GRANT SELECT ON feedpub._partition TO pg_database_owner;
COMMENT ON TABLE feedpub._partition IS
	'the partitions of each partitioned feed; written by feed_attach() and feed_publish() only';
SELECT pg_catalog.pg_extension_config_dump('feedpub._partition',
	'WHERE EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid OPERATOR(pg_catalog.=) feed)'
	' AND EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid OPERATOR(pg_catalog.=) partition)');

-- How far the rows that such a partition came with have been stamped anew, for
-- one since; pass_file to pass_settled tell where the pass over it is.  Not
-- dumped: what a pass has found says nothing of the table that is restored, so
-- another looks.
CREATE TABLE feedpub._stamping (
	feed pg_catalog.regclass NOT NULL,
	partition pg_catalog.regclass NOT NULL,
	since pg_catalog.xid8 NOT NULL,
	running pg_catalog.bool NOT NULL DEFAULT false,
	done pg_catalog.bool NOT NULL DEFAULT false,
	stamped pg_catalog.int8 NOT NULL DEFAULT 0,
	failed pg_catalog.int8 NOT NULL DEFAULT 0,
	stepped_at pg_catalog.timestamptz,
	last_error pg_catalog.text,
	last_error_at pg_catalog.timestamptz,
	pass_file pg_catalog.oid NOT NULL DEFAULT 0,
	pass_kind pg_catalog.int4 NOT NULL DEFAULT 0,
	pass_xid pg_catalog.xid8 NOT NULL DEFAULT '0',
	pass_pos pg_catalog.int8 NOT NULL DEFAULT 0,
	pass_tid pg_catalog.tid NOT NULL DEFAULT '(0,0)',
	pass_found pg_catalog.int8 NOT NULL DEFAULT 0,
	pass_moved pg_catalog.int8 NOT NULL DEFAULT 0,
	pass_failed pg_catalog.int8 NOT NULL DEFAULT 0,
	pass_settled pg_catalog.bool NOT NULL DEFAULT false,
	PRIMARY KEY (feed, partition)
);
-- An error may tell of rows, so this is not for PUBLIC.
GRANT SELECT ON feedpub._stamping TO pg_database_owner;
COMMENT ON TABLE feedpub._stamping IS
	'how far the rows of partitions have been stamped anew; written by the background and feed_republish() only';

--
-- Internal functions.  Those that defaults and triggers of a feed call
-- run with the rights of whoever writes into it, so PUBLIC may execute them.
--

CREATE FUNCTION feedpub._message_id()
RETURNS pg_catalog.text
LANGUAGE C VOLATILE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'feedpub_message_id';
COMMENT ON FUNCTION feedpub._message_id() IS
	'default of message_id: a UUID of version 7';

CREATE FUNCTION feedpub._stamp_message()
RETURNS pg_catalog.trigger
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'feedpub_stamp_message';
COMMENT ON FUNCTION feedpub._stamp_message() IS
	'trigger of an outbox: stamps a message that is inserted, refuses UPDATE';

CREATE FUNCTION feedpub._stamp_row()
RETURNS pg_catalog.trigger
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'feedpub_stamp_row';
COMMENT ON FUNCTION feedpub._stamp_row() IS
	'trigger of a table feed: stamps a row that is inserted or changes';

CREATE FUNCTION feedpub._note_delete()
RETURNS pg_catalog.trigger
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'feedpub_note_delete';
COMMENT ON FUNCTION feedpub._note_delete() IS
	'trigger of a table feed: leaves a tombstone for a row that is deleted';

CREATE FUNCTION feedpub._note_truncate()
RETURNS pg_catalog.trigger
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'feedpub_note_truncate';
COMMENT ON FUNCTION feedpub._note_truncate() IS
	'trigger of a feed: leaves a tombstone for TRUNCATE, and keeps positions from going back';

CREATE FUNCTION feedpub._running(OUT xid pg_catalog.xid8, OUT pid pg_catalog.int4)
RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL RESTRICTED ROWS 10
AS 'MODULE_PATHNAME', 'feedpub_running';
COMMENT ON FUNCTION feedpub._running() IS
	'running transactions that hold back xid order';

CREATE FUNCTION feedpub._estimate_waiting(feed pg_catalog.regclass,
	OUT horizon pg_catalog.xid8, OUT waiting pg_catalog.int8)
RETURNS record
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED
AS 'MODULE_PATHNAME', 'feedpub_waiting';
COMMENT ON FUNCTION feedpub._estimate_waiting(pg_catalog.regclass) IS
	'estimates the rows of a feed that xid order holds back';

CREATE FUNCTION feedpub._feed_stats(feed pg_catalog.regclass,
	OUT state pg_catalog.text, OUT size pg_catalog.int8,
	OUT "position" pg_catalog.int8, OUT rows_per_second pg_catalog.float8,
	OUT head pg_catalog.int8, OUT last_published pg_catalog.timestamptz,
	OUT unpublished pg_catalog.bool, OUT worker pg_catalog.text)
RETURNS record
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED
AS 'MODULE_PATHNAME', 'feedpub_feed_stats';
COMMENT ON FUNCTION feedpub._feed_stats(pg_catalog.regclass) IS
	'how a feed is, for who may read it or all statistics';

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
	'the workers of all databases, and what they have done';

CREATE FUNCTION feedpub._merge_batches(feed pg_catalog.regclass)
RETURNS pg_catalog.int4
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feedpub_merge_batches';
REVOKE ALL ON FUNCTION feedpub._merge_batches(pg_catalog.regclass) FROM PUBLIC;
COMMENT ON FUNCTION feedpub._merge_batches(pg_catalog.regclass) IS
	'merges batches older than feedpub.batch_retention; returns how many went';

CREATE FUNCTION feedpub._expire_tombstones(feed pg_catalog.regclass)
RETURNS pg_catalog.int8
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feedpub_expire_tombstones';
REVOKE ALL ON FUNCTION feedpub._expire_tombstones(pg_catalog.regclass) FROM PUBLIC;
COMMENT ON FUNCTION feedpub._expire_tombstones(pg_catalog.regclass) IS
	'removes tombstones older than feedpub.tombstone_retention; returns how many';

CREATE FUNCTION feedpub._stamp_some(feed pg_catalog.regclass, max_rows pg_catalog.int4)
RETURNS pg_catalog.int8
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feedpub_stamp_some';
REVOKE ALL ON FUNCTION feedpub._stamp_some(pg_catalog.regclass, pg_catalog.int4) FROM PUBLIC;
COMMENT ON FUNCTION feedpub._stamp_some(pg_catalog.regclass, pg_catalog.int4) IS
	'stamps some of the rows that a partition came with; returns how many';

--
-- Making feeds
--

CREATE FUNCTION feed_create(name pg_catalog.text,
	payload_type pg_catalog.regtype DEFAULT 'pg_catalog.jsonb',
	if_not_exists pg_catalog.bool DEFAULT false)
RETURNS pg_catalog.regclass
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_create';
COMMENT ON FUNCTION feed_create(pg_catalog.text, pg_catalog.regtype, pg_catalog.bool) IS
	'makes an outbox feed';

-- A name as text, for a regclass of a missing table cannot be made.
CREATE FUNCTION feed_drop(feed pg_catalog.text,
	if_exists pg_catalog.bool DEFAULT false,
	cascade pg_catalog.bool DEFAULT false)
RETURNS pg_catalog.void
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_drop';
COMMENT ON FUNCTION feed_drop(pg_catalog.text, pg_catalog.bool, pg_catalog.bool) IS
	'drops an outbox feed with its rows, and with cascade its subscriptions';

CREATE FUNCTION feed_attach(feed pg_catalog.regclass,
	key pg_catalog.regclass DEFAULT NULL, columns pg_catalog.name[] DEFAULT NULL,
	deletes pg_catalog.bool DEFAULT true)
RETURNS pg_catalog.text
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_attach';
COMMENT ON FUNCTION feed_attach(pg_catalog.regclass, pg_catalog.regclass, pg_catalog.name[], pg_catalog.bool) IS
	'makes a table a feed of its changes; returns the statement that is still to be run, or NULL';

CREATE FUNCTION feed_detach(feed pg_catalog.regclass,
	cascade pg_catalog.bool DEFAULT false)
RETURNS pg_catalog.void
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_detach';
COMMENT ON FUNCTION feed_detach(pg_catalog.regclass, pg_catalog.bool) IS
	'makes a table feed an ordinary table again; with cascade its subscriptions go';

CREATE PROCEDURE feed_republish(feed pg_catalog.regclass,
	unstamped_only pg_catalog.bool DEFAULT false)
LANGUAGE C
AS 'MODULE_PATHNAME', 'feed_republish';
COMMENT ON PROCEDURE feed_republish(pg_catalog.regclass, pg_catalog.bool) IS
	'publishes all rows of a table feed again, or those that are not in the feed, in steps';

CREATE FUNCTION feed_set_default(feed pg_catalog.regclass)
RETURNS pg_catalog.void
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_set_default';
COMMENT ON FUNCTION feed_set_default(pg_catalog.regclass) IS
	'chooses the feed that feed_fetch() reads when none is named';

CREATE FUNCTION feed_set_channel(feed pg_catalog.regclass, channel pg_catalog.text)
RETURNS pg_catalog.void
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_set_channel';
COMMENT ON FUNCTION feed_set_channel(pg_catalog.regclass, pg_catalog.text) IS
	'has each batch announced by a NOTIFY on a channel; NULL ends that';

CREATE FUNCTION feed_check(feed pg_catalog.regclass,
	OUT guard pg_catalog.text, OUT problem pg_catalog.text,
	OUT cure pg_catalog.text)
RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1
AS 'MODULE_PATHNAME', 'feed_check';
COMMENT ON FUNCTION feed_check(pg_catalog.regclass) IS
	'tells whether everything a feed rests on still stands: a row for each thing that does not';

CREATE FUNCTION feed_repair(feed pg_catalog.regclass)
RETURNS pg_catalog.int4
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_repair';
COMMENT ON FUNCTION feed_repair(pg_catalog.regclass) IS
	'puts back what feed_check() finds missing; returns how many things';

CREATE FUNCTION feed_begin_history(feed pg_catalog.regclass)
RETURNS pg_catalog.void
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_begin_history';
COMMENT ON FUNCTION feed_begin_history(pg_catalog.regclass) IS
	'makes a restored feed usable: forgets its batches and deletes, so that all rows are published anew, in their order';

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
LANGUAGE C VOLATILE PARALLEL SAFE ROWS 100
AS 'MODULE_PATHNAME', 'feed_fetch_default';
COMMENT ON FUNCTION feed_fetch(pg_catalog.xid8, pg_catalog.int8, pg_catalog.int4) IS
	'reads a page of the default feed in xid order';

CREATE FUNCTION feed_fetch(feed pg_catalog.anyelement, after_xid pg_catalog.xid8,
	after_pos pg_catalog.int8, "limit" pg_catalog.int4)
RETURNS SETOF pg_catalog.anyelement
LANGUAGE C VOLATILE PARALLEL SAFE ROWS 100
AS 'MODULE_PATHNAME', 'feed_fetch';
COMMENT ON FUNCTION feed_fetch(pg_catalog.anyelement, pg_catalog.xid8, pg_catalog.int8, pg_catalog.int4) IS
	'reads a page of a feed in xid order';

CREATE FUNCTION feed_xid_head(feed pg_catalog.regclass,
	OUT after_xid pg_catalog.xid8, OUT after_pos pg_catalog.int8)
RETURNS record
LANGUAGE C VOLATILE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'feed_xid_head';
COMMENT ON FUNCTION feed_xid_head(pg_catalog.regclass) IS
	'the cursor of now in xid order: whatever commits later lies behind it';

--
-- Published order
--

CREATE PROCEDURE feed_publish(feed pg_catalog.regclass DEFAULT NULL)
LANGUAGE C
AS 'MODULE_PATHNAME', 'feed_publish';
COMMENT ON PROCEDURE feed_publish(pg_catalog.regclass) IS
	'publishes what has been committed to a feed, or to all feeds';

CREATE FUNCTION feed_read(feed pg_catalog.anyelement,
	after pg_catalog.text DEFAULT '', max_rows pg_catalog.int4 DEFAULT 100,
	shard pg_catalog.int4 DEFAULT NULL, shards pg_catalog.int4 DEFAULT NULL)
RETURNS TABLE (cursor pg_catalog.text, op pg_catalog.text, entry pg_catalog.anyelement)
LANGUAGE C VOLATILE PARALLEL RESTRICTED ROWS 100
AS 'MODULE_PATHNAME', 'feed_read';
COMMENT ON FUNCTION feed_read(pg_catalog.anyelement, pg_catalog.text, pg_catalog.int4, pg_catalog.int4, pg_catalog.int4) IS
	'reads a page of a feed in published order';

CREATE FUNCTION feed_page(feed pg_catalog.regclass,
	after pg_catalog.text DEFAULT '', max_rows pg_catalog.int4 DEFAULT 100,
	shard pg_catalog.int4 DEFAULT NULL, shards pg_catalog.int4 DEFAULT NULL)
RETURNS pg_catalog.json
LANGUAGE C VOLATILE PARALLEL RESTRICTED
AS 'MODULE_PATHNAME', 'feed_page';
COMMENT ON FUNCTION feed_page(pg_catalog.regclass, pg_catalog.text, pg_catalog.int4, pg_catalog.int4, pg_catalog.int4) IS
	'reads a page of a feed in published order, as the JSON body of an HTTP response';

CREATE FUNCTION feed_head(feed pg_catalog.regclass)
RETURNS pg_catalog.text
LANGUAGE C VOLATILE PARALLEL RESTRICTED
AS 'MODULE_PATHNAME', 'feed_head';
COMMENT ON FUNCTION feed_head(pg_catalog.regclass) IS
	'the cursor of now in published order';

CREATE FUNCTION feed_cursor(feed pg_catalog.regclass,
	feed_xid pg_catalog.xid8, feed_pos pg_catalog.int8)
RETURNS pg_catalog.text
LANGUAGE C VOLATILE PARALLEL RESTRICTED
AS 'MODULE_PATHNAME', 'feed_cursor';
COMMENT ON FUNCTION feed_cursor(pg_catalog.regclass, pg_catalog.xid8, pg_catalog.int8) IS
	'the cursor in published order by which a consumer in xid order goes on from a stamp';

CREATE FUNCTION feed_flush(feed pg_catalog.regclass,
	timeout pg_catalog.interval DEFAULT '10 seconds')
RETURNS pg_catalog.text
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_flush';
COMMENT ON FUNCTION feed_flush(pg_catalog.regclass, pg_catalog.interval) IS
	'waits until everything that had committed before the call is published; returns the head then';

CREATE FUNCTION feed_wait(feed pg_catalog.regclass, after pg_catalog.text,
	timeout pg_catalog.interval)
RETURNS pg_catalog.bool
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_wait';
COMMENT ON FUNCTION feed_wait(pg_catalog.regclass, pg_catalog.text, pg_catalog.interval) IS
	'waits until something lies behind a cursor in published order';

CREATE PROCEDURE feed_await(feed pg_catalog.regclass, after pg_catalog.text,
	timeout pg_catalog.interval, INOUT arrived pg_catalog.bool DEFAULT NULL)
LANGUAGE C
AS 'MODULE_PATHNAME', 'feed_await';
COMMENT ON PROCEDURE feed_await(pg_catalog.regclass, pg_catalog.text, pg_catalog.interval, pg_catalog.bool) IS
	'waits until something lies behind a cursor, holding no snapshot';

CREATE FUNCTION feed_start_worker()
RETURNS pg_catalog.bool
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_start_worker';
COMMENT ON FUNCTION feed_start_worker() IS
	'starts the worker that publishes the feeds of this database';

CREATE FUNCTION feed_stop_worker()
RETURNS pg_catalog.bool
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_stop_worker';
COMMENT ON FUNCTION feed_stop_worker() IS
	'stops the worker of this database, until feed_start_worker()';

--
-- Subscriptions
--

CREATE FUNCTION feed_subscribe(name pg_catalog.text, feed pg_catalog.regclass,
	start pg_catalog.text DEFAULT 'latest', shards pg_catalog.int4 DEFAULT 1,
	lease pg_catalog.interval DEFAULT '30 seconds',
	max_attempts pg_catalog.int4 DEFAULT NULL,
	if_not_exists pg_catalog.bool DEFAULT false)
RETURNS pg_catalog.text
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_subscribe';
COMMENT ON FUNCTION feed_subscribe(pg_catalog.text, pg_catalog.regclass, pg_catalog.text, pg_catalog.int4, pg_catalog.interval, pg_catalog.int4, pg_catalog.bool) IS
	'makes a subscription, which keeps a cursor of a feed, or one for each shard; returns where it begins';

-- For a start that has the type of a time; a literal is a text.
CREATE FUNCTION feed_subscribe(name pg_catalog.text, feed pg_catalog.regclass,
	start pg_catalog.timestamptz, shards pg_catalog.int4 DEFAULT 1,
	lease pg_catalog.interval DEFAULT '30 seconds',
	max_attempts pg_catalog.int4 DEFAULT NULL,
	if_not_exists pg_catalog.bool DEFAULT false)
RETURNS pg_catalog.text
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_subscribe_at';
COMMENT ON FUNCTION feed_subscribe(pg_catalog.text, pg_catalog.regclass, pg_catalog.timestamptz, pg_catalog.int4, pg_catalog.interval, pg_catalog.int4, pg_catalog.bool) IS
	'makes a subscription that begins with what was published after a time';

CREATE FUNCTION feed_unsubscribe(name pg_catalog.text)
RETURNS pg_catalog.void
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_unsubscribe';
COMMENT ON FUNCTION feed_unsubscribe(pg_catalog.text) IS
	'removes a subscription';

CREATE FUNCTION feed_seek(name pg_catalog.text, start pg_catalog.text)
RETURNS pg_catalog.text
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_seek';
COMMENT ON FUNCTION feed_seek(pg_catalog.text, pg_catalog.text) IS
	'moves a subscription to another cursor; returns it';

CREATE FUNCTION feed_seek(name pg_catalog.text, start pg_catalog.timestamptz)
RETURNS pg_catalog.text
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_seek_at';
COMMENT ON FUNCTION feed_seek(pg_catalog.text, pg_catalog.timestamptz) IS
	'moves a subscription to what was published after a time; returns the cursor';

CREATE FUNCTION feed_poll(name pg_catalog.text,
	max_rows pg_catalog.int4 DEFAULT 100,
	consumer pg_catalog.text DEFAULT NULL,
	timeout pg_catalog.interval DEFAULT '0',
	ack pg_catalog.text DEFAULT NULL)
RETURNS TABLE (receipt pg_catalog.text, cursor pg_catalog.text,
	op pg_catalog.text, key pg_catalog.json, "row" pg_catalog.json,
	xid pg_catalog.text, published_at pg_catalog.timestamptz,
	attempt pg_catalog.int4, error pg_catalog.text)
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100
AS 'MODULE_PATHNAME', 'feed_poll';
COMMENT ON FUNCTION feed_poll(pg_catalog.text, pg_catalog.int4, pg_catalog.text, pg_catalog.interval, pg_catalog.text) IS
	'reads what is after a subscription''s cursor, which stays where it is until feed_ack() is called';

CREATE FUNCTION feed_poll_rows(feed pg_catalog.anyelement,
	name pg_catalog.text, max_rows pg_catalog.int4 DEFAULT 100,
	consumer pg_catalog.text DEFAULT NULL,
	timeout pg_catalog.interval DEFAULT '0',
	ack pg_catalog.text DEFAULT NULL)
RETURNS TABLE (receipt pg_catalog.text, cursor pg_catalog.text,
	op pg_catalog.text, entry pg_catalog.anyelement, xid pg_catalog.text,
	published_at pg_catalog.timestamptz, attempt pg_catalog.int4)
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100
AS 'MODULE_PATHNAME', 'feed_poll_rows';
COMMENT ON FUNCTION feed_poll_rows(pg_catalog.anyelement, pg_catalog.text, pg_catalog.int4, pg_catalog.text, pg_catalog.interval, pg_catalog.text) IS
	'feed_poll() with rows of the feed''s table';

CREATE FUNCTION feed_ack(name pg_catalog.text, receipt pg_catalog.text,
	strict pg_catalog.bool DEFAULT true)
RETURNS pg_catalog.bool
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_ack';
COMMENT ON FUNCTION feed_ack(pg_catalog.text, pg_catalog.text, pg_catalog.bool) IS
	'acknowledges a page up to the entry of a receipt';

CREATE FUNCTION feed_leave(name pg_catalog.text, consumer pg_catalog.text)
RETURNS pg_catalog.int4
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_leave';
COMMENT ON FUNCTION feed_leave(pg_catalog.text, pg_catalog.text) IS
	'gives back the shards that a consumer has leased; returns how many';

CREATE FUNCTION feed_park(name pg_catalog.text, receipt pg_catalog.text,
	reason pg_catalog.text DEFAULT NULL)
RETURNS pg_catalog.bool
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_park';
COMMENT ON FUNCTION feed_park(pg_catalog.text, pg_catalog.text, pg_catalog.text) IS
	'parks an entry that was polled, so that the others go on; false if it is no longer there';

CREATE FUNCTION feed_nack(name pg_catalog.text, receipt pg_catalog.text,
	delay pg_catalog.interval DEFAULT '10 seconds',
	reason pg_catalog.text DEFAULT NULL)
RETURNS pg_catalog.bool
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_nack';
COMMENT ON FUNCTION feed_nack(pg_catalog.text, pg_catalog.text, pg_catalog.interval, pg_catalog.text) IS
	'parks an entry that is delivered again after a delay, until it has failed max_attempts times';

CREATE FUNCTION feed_retry(name pg_catalog.text, cursor pg_catalog.text DEFAULT NULL)
RETURNS pg_catalog.int4
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_retry';
COMMENT ON FUNCTION feed_retry(pg_catalog.text, pg_catalog.text) IS
	'has a parked entry, or all of them, delivered again; returns how many';

CREATE FUNCTION feed_discard(name pg_catalog.text, cursor pg_catalog.text)
RETURNS pg_catalog.int4
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'feed_discard';
COMMENT ON FUNCTION feed_discard(pg_catalog.text, pg_catalog.text) IS
	'forgets a parked entry; returns how many, 0 or 1';

CREATE FUNCTION feedpub._cursor_compare(a pg_catalog.text, b pg_catalog.text)
RETURNS pg_catalog.int4
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'feedpub_cursor_compare_texts';
REVOKE ALL ON FUNCTION feedpub._cursor_compare(pg_catalog.text, pg_catalog.text) FROM PUBLIC;
COMMENT ON FUNCTION feedpub._cursor_compare(pg_catalog.text, pg_catalog.text) IS
	'compares the places of two cursors of one history: -1, 0 or 1';

CREATE FUNCTION feedpub._cursor_moves(a pg_catalog.text, b pg_catalog.text)
RETURNS pg_catalog.bool
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'feedpub_cursor_moves_texts';
REVOKE ALL ON FUNCTION feedpub._cursor_moves(pg_catalog.text, pg_catalog.text) FROM PUBLIC;
COMMENT ON FUNCTION feedpub._cursor_moves(pg_catalog.text, pg_catalog.text) IS
	'whether a subscription that moves from one cursor to another goes forward';

CREATE FUNCTION feedpub._subscription_owner(owner pg_catalog.oid,
	owner_name pg_catalog.name, system_id pg_catalog.int8)
RETURNS pg_catalog.oid
LANGUAGE C STABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'feedpub_subscription_owner';
COMMENT ON FUNCTION feedpub._subscription_owner(pg_catalog.oid, pg_catalog.name, pg_catalog.int8) IS
	'the role that owns a subscription, 0 when there is none here';

CREATE FUNCTION feedpub._lag(feed pg_catalog.regclass, cursor pg_catalog.text,
	OUT "rows" pg_catalog.int8, OUT since pg_catalog.timestamptz,
	OUT expired pg_catalog.bool)
RETURNS record
LANGUAGE C VOLATILE STRICT PARALLEL RESTRICTED
AS 'MODULE_PATHNAME', 'feedpub_lag';
COMMENT ON FUNCTION feedpub._lag(pg_catalog.regclass, pg_catalog.text) IS
	'estimates what lies behind a cursor';

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
			SELECT FROM feedpub._partition p, feedpub._stamping r
			WHERE p.feed OPERATOR(pg_catalog.=) f.feed
				AND r.feed OPERATOR(pg_catalog.=) p.feed
				AND r.partition OPERATOR(pg_catalog.=) p.partition
				AND r.since OPERATOR(pg_catalog.=) p.since
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
		f.created_at
	FROM feedpub._feed f
	JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) f.feed
	CROSS JOIN LATERAL feedpub._feed_stats(f.feed) s
	LEFT JOIN pg_catalog.pg_attribute a
		ON a.attrelid OPERATOR(pg_catalog.=) c.oid
		AND f.kind OPERATOR(pg_catalog.=) 'outbox'
		AND a.attname OPERATOR(pg_catalog.=) 'data'
		AND a.attnum OPERATOR(pg_catalog.>) 0
		AND NOT a.attisdropped;
COMMENT ON VIEW feedpub.feeds IS 'the feeds of this database';
GRANT SELECT ON feedpub.feeds TO PUBLIC;

-- Databases that are gone have an entry until somebody needs its place.
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
	'the workers of this database, and for pg_monitor of all';
GRANT SELECT ON feedpub.workers TO PUBLIC;

-- Details of other users' sessions are hidden by pg_stat_activity itself,
-- which goes by who asks.
CREATE VIEW feedpub.blockers AS
	SELECT r.xid,
		CASE WHEN p.gid IS NOT NULL THEN 'prepared'
			WHEN r.pid IS NULL THEN 'primary'
			ELSE 'session' END AS kind,
		CASE WHEN r.pid OPERATOR(pg_catalog.<>) 0 THEN r.pid END AS pid,
		p.gid,
		COALESCE(a.datname, p.database) AS database,
		COALESCE(a.usename, p.owner) AS "user",
		a.application_name,
		a.state,
		a.query_start,
		a.xact_start,
		p.prepared AS prepared_at,
		COALESCE(p.prepared, a.xact_start) AS since,
		a.client_addr
	FROM feedpub._running() r
	LEFT JOIN pg_catalog.pg_stat_activity a
		ON a.pid OPERATOR(pg_catalog.=) r.pid
	LEFT JOIN pg_catalog.pg_prepared_xacts p
		ON r.pid OPERATOR(pg_catalog.=) 0
		AND p.transaction OPERATOR(pg_catalog.=) r.xid::pg_catalog.xid
	ORDER BY r.xid;
COMMENT ON VIEW feedpub.blockers IS
	'transactions of all databases that hold back xid order, who and since when, the oldest first';
GRANT SELECT ON feedpub.blockers TO PUBLIC;

CREATE VIEW feedpub.waiting AS
	SELECT f.feed, w.horizon, w.waiting
	FROM feedpub._feed f, feedpub._estimate_waiting(f.feed) w
	WHERE EXISTS (SELECT FROM pg_catalog.pg_class c
		WHERE c.oid OPERATOR(pg_catalog.=) f.feed);
COMMENT ON VIEW feedpub.waiting IS
	'for each feed an estimate of the rows that xid order holds back';
GRANT SELECT ON feedpub.waiting TO PUBLIC;

-- Who owns a subscription sees it, and who watches over the server.  Barriers:
-- whatever else is asked of a row is asked when that has been decided.
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
		h.parked, h.expired, s.created_at
	FROM feedpub._subscription s
	CROSS JOIN LATERAL feedpub._subscription_owner(s.owner, s.owner_name, s.system_id) o (owner)
	CROSS JOIN LATERAL (
		SELECT pg_catalog.min(h.cursor) AS cursor,
			pg_catalog.avg(l.rows)::pg_catalog.int8 AS lag_rows,
			pg_catalog.min(l.since) AS since,
			pg_catalog.max(h.last_ack) AS last_ack,
			pg_catalog.count(*) FILTER (WHERE h.consumer IS NOT NULL
				AND h.leased_until OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()) AS leased,
			pg_catalog.sum(h.parked) AS parked,
			pg_catalog.bool_or(l.expired) AS expired
		FROM feedpub._shard h, feedpub._lag(s.feed, h.cursor) l
		WHERE h.subscription OPERATOR(pg_catalog.=) s.name) h
	WHERE (pg_catalog.pg_has_role(o.owner, 'USAGE')
		OR pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE'))
	AND EXISTS (SELECT FROM pg_catalog.pg_class c
		WHERE c.oid OPERATOR(pg_catalog.=) s.feed);
COMMENT ON VIEW feedpub.subscriptions IS
	'subscriptions, how far they have got and how far they lag';
GRANT SELECT ON feedpub.subscriptions TO PUBLIC;

CREATE VIEW feedpub.shards WITH (security_barrier) AS
	SELECT h.subscription, h.shard, h.cursor,
		CASE WHEN h.leased_until OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()
			THEN h.consumer END AS consumer,
		CASE WHEN h.leased_until OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()
			THEN h.leased_until END AS leased_until,
		h.last_ack, h.parked
	FROM feedpub._shard h
	JOIN feedpub._subscription s ON s.name OPERATOR(pg_catalog.=) h.subscription
	WHERE pg_catalog.pg_has_role(feedpub._subscription_owner(s.owner, s.owner_name, s.system_id), 'USAGE')
		OR pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE');
COMMENT ON VIEW feedpub.shards IS
	'the shards of subscriptions, and who has leased them';
GRANT SELECT ON feedpub.shards TO PUBLIC;

-- Reasons are the subscriber's own; keys and messages are the table's, and for
-- roles that may see all of its rows.
CREATE VIEW feedpub.parked WITH (security_barrier) AS
	SELECT p.subscription, p.shard, p.cursor, p.op,
		CASE WHEN t.shown THEN p.key END AS key,
		CASE WHEN t.shown THEN p.row END AS message,
		CASE WHEN p.retry_at IS NULL THEN 'parked'
			WHEN p.retry_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp() THEN 'waiting'
			ELSE 'due' END AS state,
		p.reason, p.attempts, p.parked_at, p.retry_at
	FROM feedpub._parked_entry p
	JOIN feedpub._subscription s ON s.name OPERATOR(pg_catalog.=) p.subscription
	JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) s.feed
	CROSS JOIN LATERAL (SELECT pg_catalog.has_table_privilege(s.feed, 'SELECT')
		AND NOT pg_catalog.row_security_active(s.feed) AS shown) t
	WHERE pg_catalog.pg_has_role(feedpub._subscription_owner(s.owner, s.owner_name, s.system_id), 'USAGE')
	AND (p.retry_at IS NULL OR p.retry_at OPERATOR(pg_catalog.>) '-infinity'::pg_catalog.timestamptz);
COMMENT ON VIEW feedpub.parked IS
	'parked entries: due, waiting to be delivered again, or parked until feed_retry()';
GRANT SELECT ON feedpub.parked TO PUBLIC;

-- What an error tells may be from the table, so it is for its owner.
CREATE VIEW feedpub.republishing WITH (security_barrier) AS
	SELECT p.feed, p.partition,
		CASE WHEN s.done THEN 'done'
			WHEN s.last_error_at OPERATOR(pg_catalog.>) COALESCE(s.stepped_at, '-infinity') THEN 'failing'
			WHEN s.stepped_at IS NULL THEN 'waiting'
			ELSE 'running' END AS state,
		COALESCE(s.stamped, 0) AS stamped,
		COALESCE(s.failed, 0) AS failed,
		s.stepped_at,
		CASE WHEN pg_catalog.pg_has_role(c.relowner, 'USAGE') THEN s.last_error END AS last_error,
		s.last_error_at
	FROM feedpub._partition p
	JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) p.partition
	JOIN pg_catalog.pg_class f ON f.oid OPERATOR(pg_catalog.=) p.feed
	LEFT JOIN feedpub._stamping s ON s.feed OPERATOR(pg_catalog.=) p.feed
		AND s.partition OPERATOR(pg_catalog.=) p.partition
		AND s.since OPERATOR(pg_catalog.=) p.since
	WHERE p.since OPERATOR(pg_catalog.>) '0'
		AND (pg_catalog.pg_has_role(c.relowner, 'USAGE')
			OR pg_catalog.pg_has_role(f.relowner, 'USAGE')
			OR pg_catalog.pg_has_role('pg_monitor', 'USAGE'));
COMMENT ON VIEW feedpub.republishing IS
	'partitions that came to a feed later, and how far the rows they came with have been stamped, for the owners and pg_monitor';
GRANT SELECT ON feedpub.republishing TO PUBLIC;
