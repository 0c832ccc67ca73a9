# feed_snapshot(), when something ends: the process that holds the snapshot, the
# session or the client that asked for it, the server.  At each point no lock, no
# process and no snapshot is left, and the feeds go on from the cursors.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubPublished;
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('source', allows_streaming => 1, conf => <<'CONF');
restart_after_crash = on
dynamic_shared_memory_type = mmap
wal_writer_delay = 10s
wal_writer_flush_after = 100MB
max_worker_processes = 8
CONF

sql($node, <<'SQL');
SELECT feed_stop_worker();
SELECT feed_create('outbox');
CREATE TABLE other (k int PRIMARY KEY) PARTITION BY LIST (k);
CREATE TABLE other_1 PARTITION OF other FOR VALUES IN (1);
SELECT feed_attach('other');
SELECT feed_set_channel('outbox', 'news');
CREATE TABLE plain (k int);
SQL
await_no_worker($node);

my $helpers = q(SELECT pid FROM pg_stat_activity WHERE backend_type = 'feedpub snapshot');

# A call that takes a snapshot of both feeds.
sub call
{
	my ($hold) = @_;

	return "SELECT cursor || '|' || snapshot FROM feed_snapshot('{outbox,other}', '$hold') ORDER BY feed::text DESC";
}

# Of a session: the cursor of the outbox, and the name of the snapshot.
sub take
{
	my ($session, $hold) = @_;

	return split /\||\n/, $session->query_safe(call($hold // '1 hour'));
}

# How many segments of dynamic shared memory there are
my $segments = q(SELECT count(*) FROM pg_ls_dir('pg_dynshmem') f WHERE f LIKE 'mmap.%');
my $base = sql($node, $segments);

sub import_of
{
	my ($snapshot) = @_;

	return "BEGIN ISOLATION LEVEL REPEATABLE READ; SET TRANSACTION SNAPSHOT '$snapshot'; SELECT count(*) FROM outbox";
}

# The process that a call in the background has started
sub await_helper
{
	$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM ($helpers) h") or die 'no process came';
	return sql($node, $helpers);
}

sub write_one
{
	my ($key) = @_;

	sql($node, "INSERT INTO outbox (message_type, message_key, data) VALUES ('', '$key', '1')");
	return;
}

my $nkeys = 0;
my $seen = '';

# Nothing is left, and all that was written is delivered, each message once, to a
# consumer that goes on from its last cursor.
sub is_over
{
	my ($test) = @_;

	is_soon($node, "NOT EXISTS ($helpers)", "$test: no process is left");
	is_deeply([ glob $node->data_dir . '/pg_snapshots/*' ], [], "$test: no snapshot is left");
	is_soon($node, "($segments) = $base", "$test: no shared memory is left");
	is( sql($node, q(SELECT count(*) FROM pg_locks WHERE classid = 'feedpub._batch'::regclass)),
		0, "$test: no lock is left");
	write_one(++$nkeys);
	sql($node, "CALL feed_publish('outbox')");
	is(read_all($node, 'outbox', after => \$seen), $nkeys, "$test: nothing is lost");
	return;
}

#
# While it is held
#
my $caller = $node->background_psql('postgres', on_error_stop => 0);
my ($cursor, $snapshot) = take($caller);
is(sql($node, import_of($snapshot)), 0, 'another session takes the snapshot');
is(sql($node, 'SELECT count(*) FROM pg_stat_activity WHERE backend_type = $$feedpub snapshot$$ AND backend_xmin IS NOT NULL AND backend_xid IS NULL'),
	1, 'the process holds it, without a transaction id');
my $importer = $node->background_psql('postgres');
$importer->query_safe(import_of($snapshot));
write_one(++$nkeys);
sql($node, "CALL feed_publish('outbox')");
is(read_all($node, 'outbox', after => \$cursor), $nkeys, 'meanwhile the feed goes on');
read_all($node, 'outbox', after => \$seen);

sql($node, "SELECT pg_terminate_backend(pid) FROM ($helpers) h");
is_over('the process is terminated');
is($importer->query_safe('SELECT count(*) FROM outbox'), 0, 'one that has the snapshot keeps it');
my (undef, undef, $refusal) = $node->psql('postgres', import_of($snapshot), extra_params => [ '-v', 'VERBOSITY=verbose' ]);
like($refusal, qr/ERROR:  (?:22023: .*invalid snapshot|42704: )/s, 'others do not get it any more');    # 42704 since 16
$importer->quit;

($cursor, $snapshot) = take($caller);
is(sql($node, import_of($snapshot)), $nkeys, 'the session takes another one');
my $pid = $caller->query_safe('SELECT pg_backend_pid()');
$caller->query_safe($_) for 'DISCARD ALL', 'BEGIN; SELECT 1; ROLLBACK';
is(sql($node, import_of($snapshot)), $nkeys, 'which its transactions do not end');
sql($node, "SELECT pg_terminate_backend($pid)");
eval { $caller->quit };
is_over('the session is terminated');

$caller = $node->background_psql('postgres');
take($caller);
$caller->{run}->signal('KILL');
eval { $caller->{run}->finish };
is_over('the client is killed');

$caller = $node->background_psql('postgres', on_error_stop => 0);
take($caller, '1 ms');
is_over('the time is up');

# When there is no room for another process, this is an error; all end with the
# session.
my $held = 0;
$held++ while $held < 20 && $caller->query(call('1 hour')) =~ /\|/;
cmp_ok($held, '>', 2, 'several are held at once');
cmp_ok($held, '<', 8, 'but not more than the server has room for');
like($caller->{stderr}, qr/free slot for a background worker.*max_worker_processes/s, 'the error says so');
$caller->{stderr} = '';
$caller->quit;
is_over('the session of several ends');

#
# While it waits for a lock
#
my $locker = $node->background_psql('postgres');

# One that is not there for long is waited for, again and again.
$locker->query_safe('BEGIN; LOCK TABLE other_1 IN ACCESS EXCLUSIVE MODE');
my $call = background($node, call('1 ms'));
is_soon($node, q(EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'feedpub snapshot' AND wait_event_type = 'Extension')),
	'after a while it pauses');
$locker->query_safe('ROLLBACK');
like($call->finish, qr/\|/, 'it is taken when the lock is free');

for my $lock ('LOCK TABLE other_1 IN ACCESS EXCLUSIVE MODE', q(SELECT feedpub._merge_batches('other')))
{
	for my $end (
		[ 'the process', 'pg_terminate_backend', $helpers, qr/55000: .*has ended/ ],
		[ 'the caller', 'pg_terminate_backend', undef, qr/57P01: / ],
		[ 'the statement', 'pg_cancel_backend', undef, qr/57014: / ])
	{
		my ($who, $function, $pids, $error) = @$end;
		my $is_table = $lock =~ /TABLE/;
		my $what = "$who ends, " . ($is_table ? 'a partition is locked' : 'another publishes');

		$locker->query_safe("BEGIN; $lock");
		my $call = background($node, call('1 hour'));
		await_helper();
		$pids //= "SELECT pid FROM pg_stat_activity WHERE application_name = '$call->{name}'";
		is(sql($node, "SELECT $function(pid) FROM ($pids) p"), 't', "$what: it does");
		$call->finish;
		like($call->{error}, $error, "$what: the caller has an error");
		is_soon($node, "NOT EXISTS ($helpers)", "$what: the lock is not waited for");
		$locker->query_safe('ROLLBACK');
		is_over($what);
	}
}

# While another publishes one feed, the others go on.
$locker->query_safe(q(BEGIN; SELECT feedpub._merge_batches('other')));
$call = background($node, call('1 hour'));
await_helper();
write_one(++$nkeys);
is($node->psql('postgres', q(SET lock_timeout = '30 s'; CALL feed_publish('outbox'))), 0,
	'it gives the locks back');
is(read_all($node, 'outbox', after => \$seen), $nkeys, 'and the feed is published');
$call->finish;
like($call->{error}, qr/55P03: could not take a snapshot: /, 'a lock that stays is an error');
$locker->query_safe('ROLLBACK');
is_over('a lock stays');

#
# After its batches are written: the commit waits for a standby.
#
sub call_that_waits
{
	my ($query) = @_;

	write_one(++$nkeys);
	sql($node, $_)
	  for q(ALTER SYSTEM SET synchronous_standby_names = 'nobody'), 'SELECT pg_reload_conf()';
	$node->poll_query_until('postgres', q(SELECT current_setting('synchronous_standby_names') = 'nobody'));
	my $waits = background($node, $query);
	$node->wait_for_event('feedpub snapshot', 'SyncRep');
	return $waits;
}

sub let_it_go
{
	sql($node, $_)
	  for q(ALTER SYSTEM RESET synchronous_standby_names), 'SELECT pg_reload_conf()';
	return;
}

for my $who ('process', 'caller')
{
	$call = call_that_waits(call('1 hour'));
	sql($node, $who eq 'process' ?
		  "SELECT pg_terminate_backend(pid) FROM ($helpers) h" :
		  "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '$call->{name}'");
	$call->finish;
	like($call->{error}, $who eq 'process' ? qr/55000: / : qr/57P01: /, "the $who ends in the commit");
	let_it_go();
	is_soon($node, "NOT EXISTS ($helpers)", "the $who ends in the commit: no process is left");
	is(read_all($node, 'outbox', after => \$seen), $nkeys, 'the batch is there');
	is_over("the $who ends in the commit");
}

# What commits meanwhile is not in the snapshot, and comes after the cursor.
$call = call_that_waits(<<'SQL');
SELECT cursor, snapshot FROM feed_snapshot('{outbox}', '1 hour') \gset
CALL feed_publish('outbox');
BEGIN ISOLATION LEVEL REPEATABLE READ;
SET TRANSACTION SNAPSHOT :'snapshot';
SELECT max(message_key::int) FROM outbox;
COMMIT;
SELECT (entry).message_key FROM feed_read(NULL::outbox, :'cursor') WHERE op = 'upsert';
SQL
my $copied = $nkeys++;
sql($node, "SET synchronous_commit = local; INSERT INTO outbox (message_type, message_key, data) VALUES ('', '$nkeys', '1')");
let_it_go();
is($call->finish, "$copied\n$nkeys", 'what commits after the snapshot comes after the cursor');
read_all($node, 'outbox', after => \$seen);
is_over('a commit comes meanwhile');

#
# Crashes: of the process, and of the server.  What the snapshot has seen is
# durable, also if no feed has news.
#
$caller = $node->background_psql('postgres', on_error_stop => 0);
($cursor, $snapshot) = take($caller);
my $offset = -s $node->logfile;
kill 'KILL', await_helper();
$node->wait_for_log(qr/reinitializing/, $offset);
eval { $caller->quit };
$node->poll_query_until('postgres', 'SELECT true') or die;
is_over('the process crashes');

# (What a server does first after a start flushes WAL; so the first call is not
# the one.)
$locker = $node->background_psql('postgres');
$caller = $node->background_psql('postgres', on_error_stop => 0);
take($caller, '1 ms');
$locker->query_safe('SET synchronous_commit = off');
$locker->query_safe('INSERT INTO plain VALUES (1)');
($cursor, $snapshot) = take($caller);
is(sql($node, import_of($snapshot) =~ s/outbox/plain/r), 1, 'a commit that is not durable yet is seen');
$node->stop('immediate');
eval { $_->quit } for $caller, $locker;
$node->start;
is(sql($node, 'SELECT count(*) FROM plain'), 1, 'it is durable then');
is_over('the server crashes');

#
# Those that wait for batches are told.
#
write_one(++$nkeys);
my ($status, $stdout) = $node->psql('postgres', 'LISTEN news; ' . call('1 ms') . '; SELECT 1');
like($stdout, qr/Asynchronous notification "news" with payload/, 'its batches are announced');
$node->stop;
done_testing();
