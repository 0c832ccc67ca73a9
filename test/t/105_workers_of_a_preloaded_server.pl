# With shared_preload_libraries a launcher keeps a worker for each database
# that has feeds: from the start, and after whatever has ended it, rows are
# published though no session reads.

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
restart_after_crash = on
feedpub.publish_interval = 0
CONF

# "a" and "b" have feeds; "idle" has none, postgres not even the extension.
for my $db (qw(a b idle))
{
	sql($node, "CREATE DATABASE $db");
	sql($node, 'CREATE EXTENSION feedpub', db => $db);
}
for my $db (qw(a b))
{
	sql($node, q(SELECT feed_create('outbox'), feed_create('other')), db => $db);
	# unpublished when the server restarts
	sql($node, 'SELECT feed_start_worker()', db => $db);
	await_worker($node, $db);
	sql($node, 'SELECT feed_stop_worker()', db => $db);
	ok(await_no_worker($node, $db), "$db: stopped by hand");
	insert($db, 'before');
	is(batches($node, 'outbox', $db), 0, "$db: a row is unpublished");
}

sub insert
{
	my ($db, $key) = @_;

	sql( $node,
		"INSERT INTO outbox (message_type, message_key, data) VALUES ('A', '$key', '1')",
		db => $db);
	return;
}

# Both databases have their worker and no unpublished row, though no session
# reads.
sub all_is_well
{
	my ($test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$node->poll_query_until('postgres',
		"SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'feedpub launcher'"
	) or die 'no launcher';
	for my $db (qw(a b))
	{
		ok(await_published($node, 'outbox', $db), "$test: $db is published");
		await_worker($node, $db);
	}
	return;
}

# The server restarts by itself after a crash.
sub await_crash_restart
{
	my ($started) = @_;

	$node->poll_query_until('postgres',
		"SELECT pg_postmaster_start_time() IS NOT NULL AND (SELECT backend_start FROM pg_stat_activity WHERE backend_type = 'checkpointer') <> '$started'"
	) or die 'no restart';
	return;
}

sub checkpointer_started
{
	return sql($node,
		"SELECT backend_start FROM pg_stat_activity WHERE backend_type = 'checkpointer'"
	);
}

$node->restart;

# The launcher goes to all databases in a second.
is_soon($node, "(SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'feedpub worker' AND datname IN ('a', 'b')) = 2",
	'start: each database with a feed gets its worker');
all_is_well('start');

#
# Killed, in all ways
#
my $old = kill_worker($node, 'a');
insert('a', 'after kill');
all_is_well('SIGTERM');
isnt(await_worker($node, 'a'), $old, 'another worker');

sql($node, 'SELECT pg_terminate_backend(' . await_worker($node, 'b') . ')');
insert('b', 'after terminate');
all_is_well('pg_terminate_backend');

# While a batch is being written: the row is committed and not published.
my $holder = hold_publisher($node, 'a');
insert('a', 'held');
my $pid = await_worker($node, 'a');
$node->poll_query_until('postgres',
	"SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $pid")
  or die 'the worker does not write';
kill_worker($node, 'a');
my $before = batches($node, 'outbox', 'a');
$holder->quit;
all_is_well('killed while it writes a batch');
is(batches($node, 'outbox', 'a'), $before + 1, 'one batch came of it');

# The server's crash, with an unpublished row
for my $signal (qw(KILL QUIT))
{
	my $victim = $node->background_psql('a', on_error_stop => 0);
	my $backend = $victim->query_safe('SELECT pg_backend_pid()');
	my $started = checkpointer_started();

	$holder = hold_publisher($node, 'a');
	insert('a', "SIG$signal");
	$backend = await_worker($node, 'a') if $signal eq 'KILL';
	kill $signal, $backend;
	await_crash_restart($started);
	all_is_well("crash by SIG$signal of "
		  . ($signal eq 'KILL' ? 'the worker' : 'a session'));
	$_->{run}->finish for $victim, $holder;
}
is( read_all($node, 'outbox', db => 'a'),
	join("\n", 'before', 'after kill', 'held', 'SIGKILL', 'SIGQUIT'),
	'all that was written, in order');

#
# The launcher
#
($pid) = split /\n/,
  sql($node,
	"SELECT pid FROM pg_stat_activity WHERE backend_type = 'feedpub launcher'");
kill 'TERM', $pid;
FeedpubPublished::await_gone($node, $pid);
kill_worker($node, 'b');
insert('b', 'without launcher');
all_is_well('the launcher killed, and a worker');

#
# Settings, by reload: five transactions are one batch, or five
#
for my $most (1000, 1)
{
	$node->append_conf('postgresql.conf',
		"feedpub.max_batch_transactions = $most");
	$node->reload;
	$node->poll_query_until('postgres',
		"SELECT current_setting('feedpub.max_batch_transactions') = '$most'")
	  or die 'no reload';
	$before = batches($node, 'outbox', 'a');
	$holder = hold_publisher($node, 'a');
	insert('a', 'first');    # the worker is at this one
	$pid = await_worker($node, 'a');
	$node->poll_query_until('postgres',
		"SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $pid"
	) or die 'the worker does not write';
	insert('a', $_) for 1 .. 5;
	$holder->quit;
	ok(await_published($node, 'outbox', 'a'), 'published');
	is( batches($node, 'outbox', 'a') - $before,
		1 + 5 / ($most == 1 ? 1 : 5),
		"a worker that runs obeys feedpub.max_batch_transactions = $most");
}
is(await_worker($node, 'a'), $pid, 'it is the same worker');

#
# The last feed goes
#
sql($node, q(SELECT feed_drop('other')), db => 'a');
sql($node, q(DROP TABLE other), db => 'b');
insert($_, 'one feed left') for qw(a b);
all_is_well('one feed of two dropped');
sql($node, q(SELECT feed_drop('outbox')), db => 'a');
ok(await_no_worker($node, 'a'), 'feed_drop of the last feed: the worker leaves');
# it locks table after table, and may meet a statement of the worker in a deadlock
my ($status, $error);
do
{
	($status, undef, $error) = $node->psql('b', 'DROP EXTENSION feedpub CASCADE');
} while ($status != 0 && $error =~ /deadlock detected/);
is($status, 0, 'DROP EXTENSION while the worker runs');
ok(await_no_worker($node, 'b'), 'DROP EXTENSION: the worker leaves');
is(workers($node), '', 'none is left');

#
# The first feed comes: no session reads, and the writer wakes the launcher.
#
sql($node, q(SELECT feed_create('outbox')), db => 'idle');
insert('idle', 'first');
ok(await_published($node, 'outbox', 'idle'),
	'the first row of a first feed is published though nobody reads');
sql($node, q(SELECT feed_drop('outbox')), db => 'idle');
ok(await_no_worker($node, 'idle'), 'and with the feed the worker leaves');

#
# The end, with a busy worker: no wait for it
#
sql($node, q(SELECT feed_create('outbox')), db => 'a');
insert('a', 'last');
read_all($node, 'outbox', db => 'a', wait => '60s');
await_worker($node, 'a');
$holder = hold_publisher($node, 'a');
insert('a', 'held');
my $time = time;
$node->stop('fast');
cmp_ok(time - $time, '<', 20, 'fast shutdown does not wait for the worker');
$holder->{run}->finish;
$node->start;
ok(await_published($node, 'outbox', 'a'), 'the last row is published at start');

my $log = $node->log_content;
unlike($log, qr/could not start a feedpub worker/, 'there was always a slot');
unlike($log, qr/CONTEXT:  publishing/, 'no worker has met an error');
# the others have been looked at, at start
ok( $node->poll_query_until('postgres',
		"SELECT string_agg(datname, ',') = 'a' FROM pg_stat_activity WHERE backend_type = 'feedpub worker'"
	),
	'one worker, for the database with a feed');
$node->stop;

#
# A template has no worker, for it could not be copied then.  The launcher starts
# workers in the order of the databases, and the server's log names each.
#
$node->append_conf('postgresql.conf', 'log_min_messages = debug1');
$node->start;
for my $db (qw(template last))
{
	sql($node, "CREATE DATABASE $db");
	sql($node, 'CREATE EXTENSION feedpub; SELECT feed_create(\'outbox\')', db => $db);
}
sql($node, 'ALTER DATABASE template IS_TEMPLATE true');
# which is that of their rows
sql($node, 'ALTER DATABASE last CONNECTION LIMIT -1')
  while sql($node, q(SELECT (SELECT ctid FROM pg_database WHERE datname = 'last') < (SELECT ctid FROM pg_database WHERE datname = 'template'))) eq 't';
my ($template, $last) = split /\|/, sql($node, <<'SQL');
SELECT max(oid::bigint) FILTER (WHERE datname = 'template'), max(oid::bigint) FILTER (WHERE datname = 'last') FROM pg_database
SQL
# what ran before, since feed_create() orders a worker, is not to be counted
$node->stop;
my $offset = -s $node->logfile;
$node->start;
$node->wait_for_log(qr/starting background worker process "feedpub worker for database $last"/, $offset);
unlike(slurp_file($node->logfile, $offset), qr/starting background worker process "feedpub worker for database $template"/,
	'a template has no worker');
sql($node, 'CREATE DATABASE copy TEMPLATE template');
$node->stop;

#
# pg_upgrade's server has no worker: nothing but its own may write there.
#
command_ok(
	[
		'pg_ctl', '--pgdata', $node->data_dir, '--log', $node->logfile, '--wait',
		'--options', '-b', 'start'
	],
	'a server for pg_upgrade starts');
is( sql($node,
		"SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'feedpub%'"),
	0,
	'it has neither launcher nor worker');
command_ok([ 'pg_ctl', '--pgdata', $node->data_dir, '--wait', 'stop' ],
	'and stops');
done_testing();
