# A partition that comes later gets the trigger that publishes its TRUNCATE, without
# a call: from the worker, or from feed_publish() (of a captured table from the worker).  Nobody waits for that,
# and no code of the owner's or of an event trigger runs.  A TRUNCATE before that
# is found, and readers are refused.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('truncated', conf => <<'CONF');
shared_preload_libraries = 'feedpub'
feedpub.naptime = 50ms
max_worker_processes = 16
CONF

sub await
{
	my ($condition, $test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is_soon($node, $condition, $test);
	return;
}

# A worker that runs could make the trigger before a test has locked the partition.
sub stop_worker
{
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	sql($node, 'SELECT feed_stop_worker()');
	await("NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'feedpub worker')", 'no worker');
	return;
}

sub has_trigger
{
	my ($partition) = @_;

	return "EXISTS (SELECT FROM pg_trigger WHERE tgrelid = '$partition'::regclass AND tgname = 'zz_feedpub_truncate' AND tgenabled = 'A')";
}

# What a consumer has that has read all from the beginning.
my $copy = <<'SQL';
(SELECT string_agg(k::text, ',' ORDER BY k) FROM
	(SELECT DISTINCT ON ((entry).k) (entry).k, op FROM feed_read(NULL::kv, '', 1000) WITH ORDINALITY r
		WHERE op <> 'end' ORDER BY (entry).k, ordinality DESC) l WHERE op = 'upsert')
SQL

sql($node, <<'SQL');
CREATE ROLE owner;
CREATE ROLE other;
CREATE ROLE reader;
CREATE TABLE kv (k int PRIMARY KEY, v text) PARTITION BY RANGE (k);
CREATE TABLE kv_0 PARTITION OF kv FOR VALUES FROM (0) TO (10);
SELECT feed_attach('kv');
ALTER TABLE kv OWNER TO owner;
GRANT SELECT ON kv TO reader;
-- no DDL is allowed, but to superusers
CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN
	IF current_user IN ('owner', 'other') THEN RAISE 'no DDL'; END IF;
END $$;
CREATE EVENT TRIGGER refuse ON ddl_command_start EXECUTE FUNCTION refuse();
INSERT INTO kv VALUES (1, 'a');
SQL

#
# Made, written and truncated, as a tool does every night
#
sql($node, 'CREATE TABLE kv_10 PARTITION OF kv FOR VALUES FROM (10) TO (20)');
sql($node, 'ALTER TABLE kv_10 OWNER TO other');
sql($node, "INSERT INTO kv VALUES (10, 'a'), (11, 'a')");
await(has_trigger('kv_10'), 'the worker makes the trigger');
await("$copy = '1,10,11'", 'the rows are published');
sql($node, 'TRUNCATE kv_10');
await("$copy = '1'", 'so are the deletes of a TRUNCATE');
is(sql($node, "SELECT count(*) FROM feed_check('kv')"), '0', 'nothing is missing');

#
# A transaction holds the partition: nobody waits, and the trigger comes later.
#
my $open = $node->background_psql('postgres', on_error_stop => 1);
stop_worker();
sql($node, 'CREATE TABLE kv_20 PARTITION OF kv FOR VALUES FROM (20) TO (30)');
$open->query_safe('BEGIN');
$open->query_safe("INSERT INTO kv VALUES (20, 'open')");
sql($node, 'SELECT feed_start_worker()');
sql($node, "INSERT INTO kv VALUES (21, 'other')");
await("EXISTS (SELECT FROM feedpub._partition WHERE partition = 'kv_20'::regclass AND file <> 0)",
	'it is admitted meanwhile');
sql($node, "SET statement_timeout = '100s'; INSERT INTO kv VALUES (22, 'another')");
await("$copy = '1,21,22'", 'rows of others are published');
is(sql($node, 'SELECT ' . has_trigger('kv_20')), 'f', 'there is no trigger yet');
is(sql($node, "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'kv_20'::regclass"), '0', 'nobody waits');
$open->query_safe('COMMIT');
await(has_trigger('kv_20'), 'it comes when the transaction has ended');
await("$copy = '1,20,21,22'", 'its row too');
sql($node, 'TRUNCATE kv_20');
await("$copy = '1'", 'and TRUNCATE is published');

#
# By hand, by a role that may only read
#
stop_worker();
sql($node, 'CREATE TABLE kv_30 PARTITION OF kv FOR VALUES FROM (30) TO (40)');
sql($node, "SET ROLE reader; SET default_transaction_read_only = on; CALL feed_publish('kv')");
is(sql($node, 'SELECT ' . has_trigger('kv_30')), 't', 'feed_publish() makes it');

#
# Truncated before it has the trigger, by a transaction that writes nothing to the
# feed: the worker finds it when it asks for the lock again.
#
sql($node, 'CREATE TABLE kv_40 PARTITION OF kv FOR VALUES FROM (40) TO (50)');
$open->query_safe('BEGIN');
$open->query_safe('LOCK TABLE kv_40 IN ROW EXCLUSIVE MODE');
sql($node, 'SELECT feed_start_worker()');
sql($node, "INSERT INTO kv VALUES (40, 'a')");
await("EXISTS (SELECT FROM feedpub._partition WHERE partition = 'kv_40'::regclass AND file <> 0)",
	'admitted without the trigger');
$open->query_safe('TRUNCATE kv_40');
$open->query_safe('COMMIT');
$open->quit;
await("EXISTS (SELECT FROM feed_check('kv') WHERE guard = 'history')", 'the worker finds the TRUNCATE, without a commit in the feed');
await(has_trigger('kv_40'), 'and the trigger comes');
refused($node, "SELECT count(*) FROM feed_read(NULL::kv, '', 1000)", 'PF001',
	'changes of feed "kv" could not be recorded', 'readers are refused');
sql($node, "SELECT feed_begin_history('kv')");
await("$copy = '1'", 'another history begins');
is(sql($node, "SELECT count(*) FROM feedpub._partition WHERE file <> 0"), '0', 'all have the trigger');

#
# The same in captured tables, whose partitions have a trigger for TRUNCATE, too
#
sql($node, <<'SQL');
SELECT feed_create_changes('changes');
CREATE TABLE captured (k int PRIMARY KEY) PARTITION BY RANGE (k);
SELECT feed_capture('captured', 'changes'), feed_stop_worker();
CREATE TABLE captured_0 PARTITION OF captured FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (k);
CREATE TABLE captured_0_0 PARTITION OF captured_0 FOR VALUES FROM (0) TO (5);
CREATE TABLE captured_10 PARTITION OF captured FOR VALUES FROM (10) TO (20);
ALTER TABLE captured_0_0 OWNER TO other;
SQL
my $lacks = q(SELECT problem FROM feed_check('changes') ORDER BY problem);
is(sql($node, $lacks), join("\n", map { "there is no trigger that captures TRUNCATE of public.captured in partition public.captured_$_" } '0_0', '10'),
	'partitions that come later lack it');
my $holds = $node->background_psql('postgres', on_error_stop => 1);
$holds->query_safe('BEGIN; INSERT INTO captured VALUES (10)');
sql($node, 'SELECT feed_start_worker()');
await(has_trigger('captured_0_0') =~ s/zz_feedpub/zz_feedpub_capture/r, 'the worker makes it');
is(sql($node, "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'captured_10'::regclass"), '0', 'waits for nobody');
$holds->query_safe('COMMIT');
$holds->quit;
await(has_trigger('captured_10') =~ s/zz_feedpub/zz_feedpub_capture/r, 'and comes back');
is(sql($node, $lacks), '', 'then nothing is missing');
sql($node, 'INSERT INTO captured VALUES (1), (2); TRUNCATE captured_0_0');
is(sql($node, q(SELECT string_agg(op || ' ' || (key ->> 'k'), ', ' ORDER BY feed_pos) FROM changes)),
	'insert 10, insert 1, insert 2, delete 1, delete 2', 'a TRUNCATE of one is captured');
sql($node, "ALTER EVENT TRIGGER refuse DISABLE; SELECT feed_uncapture('captured', 'changes')");
is(sql($node, q(SELECT count(*) FROM pg_trigger JOIN pg_proc p ON p.oid = tgfoid WHERE proname LIKE '\_capture%')), '0', 'the triggers go with the capture');
sql($node, "SELECT feed_drop('changes'); DROP TABLE captured; ALTER EVENT TRIGGER refuse ENABLE");

#
# A dump has the triggers.
#
my $dump = $node->basedir . '/dump.sql';
$node->command_ok([ 'pg_dump', '--file', $dump, 'postgres' ], 'dumped');
sql($node, 'CREATE DATABASE restored');
$node->command_ok([ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-d', 'restored', '-f', $dump ], 'restored');
is(sql($node, "SELECT count(*) FROM pg_trigger WHERE tgname = 'zz_feedpub_truncate' AND tgenabled = 'A'", db => 'restored'),
	'6', 'the table and each partition have theirs');
sql($node, "CALL feed_publish('kv')", db => 'restored');
is(sql($node, "SELECT count(*) FROM feed_check('kv') WHERE problem LIKE '%TRUNCATE%'", db => 'restored'), '0', 'nothing is lost there');

$node->stop;
done_testing();
