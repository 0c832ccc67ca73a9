# feedpub.workers: the workers of all databases, what they have done, what
# went wrong last; a thousand feeds are listed at once; and each role sees
# what it may.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubPublished;
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node(
	'server',
	extension => 0,
	conf => <<'CONF');
shared_preload_libraries = 'feedpub'
feedpub.publish_interval = 0
log_statement = none
fsync = off
CONF

sql($node, <<'SQL');
CREATE DATABASE a;
CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1';
CREATE ROLE regress_feedpub_nobody LOGIN;
CREATE ROLE regress_feedpub_monitor LOGIN IN ROLE pg_monitor;
SQL
for my $db (qw(postgres a latin))
{
	sql($node, 'CREATE EXTENSION feedpub', db => $db);
}

# What the view says of a database, seen from another.
sub seen
{
	my ($db, $columns, %options) = @_;

	return sql($node,
		"SELECT $columns FROM feedpub.workers WHERE database = '$db'", %options);
}

sub await_seen
{
	my ($db, $condition, $test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	ok( $node->poll_query_until('postgres',
			"SELECT $condition FROM feedpub.workers WHERE database = '$db'"),
		$test)
	  or diag(seen($db, '*'));
	return;
}

sub insert
{
	my ($db, $feed, $n) = @_;

	sql($node, <<"SQL", db => $db);
DO \$\$
BEGIN
	FOR i IN 1..$n LOOP
		INSERT INTO $feed (message_type, data) VALUES ('A', '1');
		COMMIT;
	END LOOP;
END \$\$;
SQL
	return;
}

is(sql($node, 'SELECT count(*) FROM feedpub.workers'), 0,
	'no feeds, no workers');

#
# A worker runs, and counts.
#
sql($node, q(SELECT feed_create('outbox'), feed_create('other')), db => 'a');
insert('a', 'outbox', 20);
ok(await_published($node, 'outbox', 'a'), 'published');
my $worker = await_worker($node, 'a');
ok( comes_true($node, "EXISTS (SELECT FROM feedpub.workers WHERE pid = $worker AND state = 'running' AND transactions = 20)", 2, 'a'),
	'its pid, and each transaction once');
is( seen('a',
		'batches BETWEEN 1 AND 20, turns > 0, started_at < now(), errors, failing_feeds, last_error, last_error_at'
	),
	't|t|t|0|0||',
	'it counts batches and turns, and has met no error');
is( sql($node, 'SELECT count(*) FROM feedpub._batch', db => 'a'),
	seen('a', 'batches'), 'as many batches as there are');
my $turns = seen('a', 'turns');
await_seen('a', "turns > $turns + 1", 'an idle worker turns as well');
is(seen('a', 'transactions'), 20, 'which publishes nothing');
my $wakeups = seen('a', 'wakeups');
insert('a', 'outbox', 1);
await_seen('a', "transactions = 21 AND wakeups > $wakeups AND wakeups < turns",
	'a commit wakes it');

#
# Errors, by a feed that lost its index
#
sql($node, 'ALTER TABLE other DROP CONSTRAINT other_pkey', db => 'a');
my $failing_since = sql($node, 'SELECT clock_timestamp()');
insert('a', 'other', 1);
await_seen('a', "state = 'failing' AND failing_feeds = 1 AND errors > 1",
	'a feed that fails, each time it is tried');
like(seen('a', 'last_error'), qr/^feed "other" has no index on /, 'says why');
is( seen('a', "last_error_at BETWEEN '$failing_since' AND clock_timestamp()"),
	't', 'and when');
is(seen('a', 'last_error_feed'), '', 'which feed only its own database knows');
is(seen('a', 'last_error_feed', db => 'a'), 'other', 'there it is');
insert('a', 'outbox', 1);
ok(await_published($node, 'outbox', 'a'), 'the other feed goes on');
is(seen('a', 'state'), 'failing', 'which does not hide the one that fails');
is( sql($node,
		"SELECT string_agg(feed || ' ' || state || ' ' || COALESCE(unpublished::text, '?'), ',' ORDER BY feed::text) FROM feedpub.feeds",
		db => 'a',
		user => 'regress_feedpub_monitor'),
	'other no index ?,outbox ready false',
	'feedpub.feeds shows which');
my $failed_at = seen('a', 'last_error_at');
sql($node, q(SELECT feed_repair('other')), db => 'a');
ok(await_published($node, 'other', 'a'), 'it is published when it was repaired');
ok( comes_true($node, "EXISTS (SELECT FROM feedpub.workers WHERE database = 'a' AND state = 'running' AND failing_feeds = 0)", 2, 'a'),
	'then nothing fails');
ok( seen('a', 'last_error_at') ge $failed_at, 'the last error stays to be read');
like(seen('a', 'last_error'), qr/^feed "other" has no index/, 'with its text');

#
# What each role sees
#
sql($node, q(SELECT feed_create('outbox')));
insert('postgres', 'outbox', 1);
await_worker($node);
is( sql($node,
		'SELECT string_agg(database, \',\' ORDER BY database COLLATE "C") FROM feedpub.workers',
		user => 'regress_feedpub_monitor'),
	'a,postgres',
	'pg_monitor sees the workers of all databases');
like(seen('a', 'last_error', user => 'regress_feedpub_monitor'),
	qr/other/, 'and their errors');
is( sql($node,
		'SELECT database, pid IS NOT NULL, state FROM feedpub.workers',
		user => 'regress_feedpub_nobody'),
	'postgres|t|running',
	'another role sees the one of its own database');
is( seen('a', 'state, errors > 0, last_error_at IS NOT NULL, last_error, last_error_feed',
		db => 'a', user => 'regress_feedpub_nobody'),
	'running|t|t||',
	'that there was an error, not what it was');

#
# Rows that are stamped anew; and an error that tells of them, which is the owner's
#
sql($node, <<'SQL');
CREATE TABLE kv (k text PRIMARY KEY) PARTITION BY LIST (k);
SELECT feed_attach('kv');
CREATE TABLE kv_1 (LIKE kv INCLUDING ALL);
INSERT INTO kv_1 VALUES ('a secret'), ('b');
ALTER TABLE kv_1 ADD CHECK (k <> 'a secret') NOT VALID;
ALTER TABLE kv ATTACH PARTITION kv_1 DEFAULT;
SQL
sql($node, q(CALL feed_publish('kv')));
ok( $node->poll_query_until('postgres',
		"SELECT state = 'done' AND failed = 1 AND last_error LIKE '%violates check%' FROM feedpub.jobs"),
	'the owner is shown why a row cannot be stamped');
is( sql($node,
		'SELECT feed, failed, last_error, last_error_at IS NOT NULL FROM feedpub.jobs',
		user => 'regress_feedpub_monitor'),
	'kv|1||t',
	'pg_monitor is not told of rows');
await_seen('postgres', 'rows_stamped = 1', 'rows that are stamped are counted');
sql($node, 'DROP TABLE kv');

#
# An error in another encoding: the feed's name has a letter of LATIN1.
#
sql($node, <<'SQL', db => 'latin');
SELECT feed_create('caf' || chr(233));
DO $$ BEGIN EXECUTE format('ALTER TABLE %I DROP CONSTRAINT %I', 'caf' || chr(233), 'caf' || chr(233) || '_pkey'); END $$;
DO $$ BEGIN EXECUTE format('INSERT INTO %I (message_type, data) VALUES (''A'', ''1'')', 'caf' || chr(233)); END $$;
SQL
await_seen('latin', 'errors > 0', 'an error in another encoding');
like(seen('latin', 'last_error'), qr/^feed "caf\?" has no index/,
	'is readable all the same');
is( sql($node,
		"SELECT last_error LIKE 'feed \"caf' || chr(233) || '\"%', last_error_feed::text = quote_ident('caf' || chr(233)) FROM feedpub.workers WHERE database = 'latin'",
		db => 'latin'),
	't|t', 'and whole in its own database');

#
# Another worker goes on counting; a restart of the server begins anew.
#
my $transactions = seen('a', 'transactions');
kill_worker($node, 'a');
await_seen('a', "state = 'running'", 'the launcher starts another worker');
isnt(seen('a', 'pid'), $worker, 'another process');
is(seen('a', 'transactions'), $transactions, 'which goes on counting');
sql($node, 'SELECT feed_stop_worker()', db => 'a');
await_seen('a', "state = 'stopped' AND pid IS NULL AND started_at IS NULL",
	'one that was stopped by hand');
like(seen('a', 'last_error'), qr/other/, 'still says what went wrong');

$node->append_conf('postgresql.conf', 'feedpub.max_workers = 0');
$node->restart;
insert('a', 'outbox', 1);
await_seen('a', "state = 'missing' AND turns = 0 AND transactions = 0",
	'one that there should be, and cannot');
is(seen('a', 'errors, last_error, last_error_at'), '0||',
	'the restart has forgotten the errors');
$node->append_conf('postgresql.conf', 'feedpub.max_workers = 8');
$node->reload;
await_seen('a', "state = 'running'", 'it comes when it can');

sql($node, q(SELECT feed_drop('outbox'), feed_drop('other')), db => 'a');
await_seen('a', "state = 'not needed' AND pid IS NULL",
	'with the last feed it goes');
sql($node, 'DROP DATABASE a');
is(sql($node, q(SELECT count(*) FROM feedpub.workers WHERE database = 'a')),
	0, 'a dropped database has none');

#
# Many feeds, and one with many rows
#
my $nfeeds = $ENV{FEEDPUB_IDLE_FEEDS} // 1000;
sql($node, <<"SQL");
INSERT INTO outbox (message_type, data) SELECT 'A', '1' FROM generate_series(1, 100000);
DO \$\$
BEGIN
	FOR i IN 1..$nfeeds LOOP
		PERFORM feed_create('feed' || i);
		COMMIT;
	END LOOP;
END \$\$;
SQL
ok(await_published($node, 'outbox'), 'published');
is( sql($node, <<'SQL', user => 'regress_feedpub_monitor'),
SELECT count(*), count(*) FILTER (WHERE state = 'ready'), count(*) FILTER (WHERE unpublished), max(position) >= 100000 FROM feedpub.feeds;
SQL
	($nfeeds + 1) . '|' . ($nfeeds + 1) . '|0|t',
	'all feeds at once');

# No look at rows: so many buffers for the outbox, however many rows it has
sql($node, <<'SQL');
CREATE FUNCTION buffers(query text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	plan json;
BEGIN
	EXECUTE query;
	EXECUTE 'EXPLAIN (ANALYZE, BUFFERS, FORMAT json) ' || query INTO plan;
	RAISE LOG 'buffers: %', plan;
	RETURN (plan -> 0 -> 'Plan' ->> 'Shared Hit Blocks')::bigint + (plan -> 0 -> 'Plan' ->> 'Shared Read Blocks')::bigint;
END $$;
SQL
my $buffers = sql($node, q(SELECT buffers('SELECT * FROM feedpub._feed_stats(''outbox'')')));
cmp_ok($buffers, '<', 200, "a feed of 100,000 rows takes $buffers buffers");
$buffers = sql($node, q(SELECT buffers('SELECT * FROM feedpub.feeds')));
cmp_ok($buffers, '<', 200 * $nfeeds, "and all of them $buffers");
my ($time) = (slurp_file($node->logfile) =~ /"Execution Time": ([\d.]+)/g)[-1];
note("in $time ms");

$node->stop;
done_testing();
