-- Rights: every public function and every view of the extension, for
-- the owner of a feed, the owner of a subscription of it, a member of that
-- role, one that may read the feed and one that may not, one that is a member of
-- pg_monitor, one that reads all statistics, and a superuser.
--
-- A cell is what comes of it: the number of rows, or an SQLSTATE.  Whatever was
-- done is undone, so that each finds the same.
CREATE ROLE regress_feedpub_feed;
CREATE ROLE regress_feedpub_sub;
CREATE ROLE regress_feedpub_member IN ROLE regress_feedpub_sub;
CREATE ROLE regress_feedpub_reader;
CREATE ROLE regress_feedpub_stranger;
CREATE ROLE regress_feedpub_monitor IN ROLE pg_monitor;
CREATE ROLE regress_feedpub_stats IN ROLE pg_read_all_stats;
CREATE ROLE regress_feedpub_super SUPERUSER;

-- An outbox and three tables, of one owner, without old rows
SET client_min_messages = warning;
CREATE SCHEMA rights AUTHORIZATION regress_feedpub_feed;
GRANT USAGE ON SCHEMA rights TO PUBLIC;
SET ROLE regress_feedpub_feed;
SELECT feed_create('rights.box');
CREATE TABLE rights.kv (k int PRIMARY KEY, v text);
SELECT feed_attach('rights.kv');
CREATE TABLE rights.plain (k int PRIMARY KEY);
CREATE TABLE rights.captured (k int PRIMARY KEY);
SELECT feed_create_changes('rights.c');
SELECT feed_capture('rights.captured', 'rights.c');
GRANT SELECT ON rights.box, rights.kv TO regress_feedpub_sub, regress_feedpub_reader;
RESET ROLE;
SET ROLE regress_feedpub_sub;
SELECT feed_subscribe('sub', 'rights.box', 'earliest');
RESET ROLE;

-- The rest is undone.  A feed that one has altered oneself cannot be read before
-- one commits, so the feeds are there.
BEGIN;
SELECT no_plan();
INSERT INTO rights.box (message_type, data) VALUES ('a', '1'), ('a', '2');
INSERT INTO feedpub._parked_entry (subscription, shard, cursor, op, feed_xid, feed_pos, reason, state, page)
	VALUES ('sub', 0, '1-----0V-----0----------0' || repeat('-', 19), 'upsert', '1', 1, 'a reason', 1, 1);
UPDATE feedpub._shard SET parked = 1;

CREATE TEMP TABLE matrix (call text PRIMARY KEY, feed text, sub text, member text, reader text, stranger text, monitor text, stats text, super text);
INSERT INTO matrix VALUES
-- making and changing feeds: their owner
	($$feed_create('pg_temp.none')$$, '0A000', '0A000', '0A000', '0A000', '0A000', '0A000', '0A000', '0A000'),
	($$feed_create('rights.other')$$, '1', '42501', '42501', '42501', '42501', '42501', '42501', '1'),
	($$feed_create_changes('rights.changes')$$, '1', '42501', '42501', '42501', '42501', '42501', '42501', '1'),
	($$feed_drop('rights.box', cascade => true)$$, '1', '42501', '42501', '42501', '42501', '42501', '42501', '1'),
	($$feed_attach('rights.plain')$$, '1', '42501', '42501', '42501', '42501', '42501', '42501', '1'),
	($$feed_capture('rights.plain', 'rights.c')$$, '1', '42501', '42501', '42501', '42501', '42501', '42501', '1'),
	($$feed_uncapture('rights.captured', 'rights.c')$$, '1', '42501', '42501', '42501', '42501', '42501', '42501', '1'),
	($$feed_detach('rights.kv')$$, '1', '42501', '42501', '42501', '42501', '42501', '42501', '1'),
	($$feed_detach_all(cascade => true) WHERE problem IS NULL AND feed = 'rights.kv'::regclass$$, '1', '0', '0', '0', '0', '0', '0', '1'),
	($$feed_retain('rights.box', '1 h')$$, '1', '42501', '42501', '42501', '42501', '42501', '42501', '1'),
	($$feed_set_default('rights.box')$$, '1', '42501', '42501', '42501', '42501', '42501', '42501', '1'),
	($$feed_set_channel('rights.box', 'c')$$, '1', '42501', '42501', '42501', '42501', '42501', '42501', '1'),
	($$feed_repair('rights.box')$$, '1', '42501', '42501', '42501', '42501', '42501', '42501', '1'),
	($$feed_begin_history('rights.box')$$, '1', '42501', '42501', '42501', '42501', '42501', '42501', '1'),
-- reading: roles that may SELECT
	($$CALL feed_republish('rights.kv')$$, '25001', '25001', '25001', '25001', '25001', '25001', '25001', '25001'),
	($$feed_listen('rights.box')$$, '1', '1', '1', '1', '42501', '42501', '42501', '1'),
	($$feed_check('rights.box')$$, '0', '0', '0', '0', '42501', '42501', '42501', '0'),
	($$feed_fetch(NULL::rights.box, '0', 0, 1)$$, '0', '0', '0', '0', '42501', '42501', '42501', '0'),
	($$feed_fetch('0', 0, 1)$$, '0', '0', '0', '0', '42501', '42501', '42501', '0'),
	($$feed_xid_head('rights.box')$$, '1', '1', '1', '1', '42501', '42501', '42501', '1'),
	($$feed_read('rights.box')$$, '42809', '42809', '42809', '42809', '42809', '42809', '42809', '42809'),
	($$feed_read(NULL::rights.box, '', 1)$$, '1', '1', '1', '1', '42501', '42501', '42501', '1'),
	($$feed_page('rights.box', '', 1)$$, '1', '1', '1', '1', '42501', '42501', '42501', '1'),
	($$feed_floor('rights.box')$$, '1', '1', '1', '1', '42501', '42501', '42501', '1'),
	($$feed_head('rights.box')$$, '1', '1', '1', '1', '42501', '42501', '42501', '1'),
	($$feed_cursor('rights.box', '0', 0)$$, '1', '1', '1', '1', '42501', '42501', '42501', '1'),
	($$feed_flush('rights.box')$$, '55000', '55000', '55000', '55000', '42501', '42501', '42501', '55000'),
	($$feed_snapshot('{rights.box}')$$, '25001', '25001', '25001', '25001', '42501', '42501', '42501', '25001'),
	($$feed_wait('rights.box', '', '0')$$, '1', '1', '1', '1', '42501', '42501', '42501', '1'),
	($$feed_subscribe('new', 'rights.box')$$, '1', '1', '1', '1', '42501', '42501', '42501', '1'),
-- a subscription: its owner, which may read, and roles that have its rights
	($$feed_subscribe('sub', 'rights.box')$$, '42710', '42710', '42710', '42710', '42501', '42501', '42501', '42710'),
	($$feed_alter_subscription('sub')$$, '42501', '1', '1', '42501', '42704', '42704', '42704', '1'),
	($$feed_unsubscribe('sub')$$, '42501', '1', '1', '42501', '42704', '42704', '42704', '1'),
	($$feed_seek('sub', 'latest')$$, '42501', '1', '1', '42501', '42704', '42704', '42704', '1'),
	($$feed_poll('sub', 1)$$, '42501', '0', '0', '42501', '42704', '42704', '42704', '0'),
	($$feed_poll('sub', 1, 'w')$$, '42501', '0', '0', '42501', '42704', '42704', '42704', '0'),
	($$feed_poll_rows('sub', NULL::rights.box)$$, '42501', '0', '0', '42501', '42704', '42704', '42704', '0'),
	($$feed_poll('sub', timeout => '1 ms')$$, '42501', '0', '0', '42501', '42704', '42704', '42704', '0'),
	($$feed_poll('sub', ack => '1p' || repeat('1', 35) || lpad(to_hex(hashtext('sub')), 8, '0'))$$, '42501', 'PF003', 'PF003', '42501', '42704', '42704', '42704', 'PF003'),
	($$feed_ack('sub', '1p' || repeat('1', 35) || lpad(to_hex(hashtext('sub')), 8, '0'))$$, '42501', 'PF003', 'PF003', '42501', '42704', '42704', '42704', 'PF003'),
	($$feed_ack('sub', '1p' || repeat('1', 35) || lpad(to_hex(hashtext('sub')), 8, '0'), strict => false)$$, '42501', '1', '1', '42501', '42704', '42704', '42704', '1'),
	($$feed_leave('sub', 'w')$$, '42501', '1', '1', '42501', '42704', '42704', '42704', '1'),
	($$feed_park('sub', '1p' || repeat('1', 35) || lpad(to_hex(hashtext('sub')), 8, '0'))$$, '42501', 'PF003', 'PF003', '42501', '42704', '42704', '42704', 'PF003'),
	($$feed_nack('sub', '1p' || repeat('1', 35) || lpad(to_hex(hashtext('sub')), 8, '0'))$$, '42501', 'PF003', 'PF003', '42501', '42704', '42704', '42704', 'PF003'),
	($$feed_retry('sub')$$, '42501', '1', '1', '42501', '42704', '42704', '42704', '1'),
	($$feed_discard('sub', '')$$, '42501', '1', '1', '42501', '42704', '42704', '42704', '1'),
-- the worker
	($$feed_start_worker()$$, '1', '1', '1', '1', '42501', '42501', '42501', '1'),
	($$feed_stop_worker()$$, '42501', '42501', '42501', '42501', '42501', '42501', '42501', '1'),
-- procedures, which cannot be called in a transaction
	($$CALL feed_purge('rights.box', '')$$, '25001', '25001', '25001', '25001', '25001', '25001', '25001', '25001'),
	($$CALL feed_publish('rights.box')$$, '25001', '25001', '25001', '25001', '25001', '25001', '25001', '25001'),
	($$CALL feed_await('rights.box', '', '0', NULL)$$, '25001', '25001', '25001', '25001', '25001', '25001', '25001', '25001'),
-- views
	('feedpub.feeds', '3', '3', '3', '3', '3', '3', '3', '3'),
	('feedpub.captures', '1', '1', '1', '1', '1', '1', '1', '1'),
	('feedpub.waiting', '3', '3', '3', '3', '3', '3', '3', '3'),
	('feedpub.subscriptions', '0', '1', '1', '0', '0', '1', '1', '1'),
	('feedpub.shards', '0', '1', '1', '0', '0', '1', '1', '1'),
	('feedpub.parked', '0', '1', '1', '0', '0', '0', '0', '1'),
	('feedpub.jobs', '0', '0', '0', '0', '0', '0', '0', '0'),
	('feedpub.workers WHERE pid < 0', '0', '0', '0', '0', '0', '0', '0', '0'),
	('feedpub.blockers WHERE pid = pg_backend_pid()', '1', '1', '1', '1', '1', '1', '1', '1'),
-- tables of the extension: all roles may read the registry
	('feedpub._feed', '3', '3', '3', '3', '3', '3', '3', '3'),
	('feedpub._batch', '42501', '42501', '42501', '42501', '42501', '42501', '42501', '0'),
	('feedpub._floor', '42501', '42501', '42501', '42501', '42501', '42501', '42501', '3'),
	('feedpub._job', '42501', '42501', '42501', '42501', '42501', '42501', '42501', '0'),
	('feedpub._work', '42501', '42501', '42501', '42501', '42501', '42501', '42501', '0'),
	('feedpub._captured', '42501', '42501', '42501', '42501', '42501', '42501', '42501', '1'),
	('feedpub._capture_fault', '42501', '42501', '42501', '42501', '42501', '42501', '42501', '0'),
	('feedpub._capture_leftover', '42501', '42501', '42501', '42501', '42501', '42501', '42501', '0'),
	('feedpub._capture', '42501', '42501', '42501', '42501', '42501', '42501', '42501', '1'),
	('feedpub._partition', '42501', '42501', '42501', '42501', '42501', '42501', '42501', '0'),
	('feedpub._tombstone', '42501', '42501', '42501', '42501', '42501', '42501', '42501', '0'),
	('feedpub._lost_change', '42501', '42501', '42501', '42501', '42501', '42501', '42501', '0'),
	('feedpub._subscription', '42501', '42501', '42501', '42501', '42501', '42501', '42501', '1'),
	('feedpub._shard', '42501', '42501', '42501', '42501', '42501', '42501', '42501', '1'),
	('feedpub._consumer', '42501', '42501', '42501', '42501', '42501', '42501', '42501', '0'),
	('feedpub._parked_entry', '42501', '42501', '42501', '42501', '42501', '42501', '42501', '1');

CREATE FUNCTION pg_temp.try(call text, as_role name) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	n bigint;
	result text;
BEGIN
	EXECUTE format('SET LOCAL ROLE %I', as_role);
	IF call LIKE 'CALL %' THEN
		EXECUTE call;
		n := 0;
	ELSE
		EXECUTE 'SELECT count(*) FROM ' || call INTO n;
	END IF;
	RAISE EXCEPTION USING errcode = 'ZZ000', message = n::text;
EXCEPTION
	WHEN SQLSTATE 'ZZ000' THEN RETURN SQLERRM;
	WHEN OTHERS THEN RETURN SQLSTATE;
END $$;

-- Only the role that runs this may use pgTAP's functions and tables, so roles
-- only try.
CREATE TEMP TABLE result AS
	SELECT m.call, r.role, r.expected, pg_temp.try(m.call, ('regress_feedpub_' || r.role)::name) AS got
	FROM matrix m, LATERAL (VALUES ('feed', m.feed), ('sub', m.sub), ('member', m.member), ('reader', m.reader),
		('stranger', m.stranger), ('monitor', m.monitor), ('stats', m.stats), ('super', m.super)) r (role, expected)
	ORDER BY m.call;
SELECT is(got, expected, role || ': ' || call) FROM result ORDER BY call, role;

-- The matrix has them all.
SELECT is_empty($$
	SELECT p.proname FROM pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
		JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'feedpub'
	WHERE p.pronamespace <> 'feedpub'::regnamespace
		AND NOT EXISTS (SELECT FROM matrix WHERE call ~ ('^(CALL )?' || p.proname || '\('))
$$, 'each public function is in the matrix');
SELECT is_empty($$
	SELECT relname FROM pg_class WHERE relnamespace = 'feedpub'::regnamespace AND relkind IN ('v', 'r')
		AND NOT EXISTS (SELECT FROM matrix WHERE call ~ ('^feedpub.' || relname || '( |$)'))
$$, 'and each view and table');

SELECT * FROM finish();
ROLLBACK;

SELECT feed_unsubscribe('sub');
DROP SCHEMA rights CASCADE;
DROP ROLE regress_feedpub_feed, regress_feedpub_sub, regress_feedpub_member, regress_feedpub_reader,
	regress_feedpub_stranger, regress_feedpub_monitor, regress_feedpub_stats, regress_feedpub_super;
