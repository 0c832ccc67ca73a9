# Each start of a server as a primary has an id.  The seed that its cursors carry
# and that its batches have is made of it: after a restart, a crash, a promotion it is
# another one.  A standby shows the last one that has published.  Where a feed
# goes on twice from one state, in a dump that is restored or in a copy of the
# database, cursors of the one are none of the other's, though it is one start.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubPublished;
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = feedpub_node('primary', allows_streaming => 1);
my $dir = PostgreSQL::Test::Utils::tempdir();

sub publish
{
	my ($node, $type, @db) = @_;

	sql($node, "INSERT INTO outbox (message_type, data) VALUES ('$type', '1')", @db);
	sql($node, 'CALL feed_publish()', @db);
	return;
}

sub head
{
	my ($node, @db) = @_;

	return sql($node, q(SELECT feed_head('outbox')), @db);
}

sub types
{
	my ($node, $cursor, @db) = @_;

	return sql($node, <<"SQL", @db);
SET feedpub.read_wait = 0;
SELECT string_agg((entry).message_type, ' ') FROM feed_read(NULL::outbox, '$cursor', 100)
SQL
}

# The starts in a head and in the cursors of a page, one if they are the same
sub start_of
{
	my ($node, @db) = @_;
	my %starts = (substr(head($node, @db), 31, 6) => 1);

	for (split /\n/, sql($node, q(SET feedpub.read_wait = 0; SELECT cursor FROM feed_read(NULL::outbox, '', 100)), @db))
	{
		$starts{ substr($_, 31, 6) } = 1;
	}
	return join ' ', sort keys %starts;
}

# The seed of the last batch, as a cursor has it
sub written
{
	my ($node) = @_;
	my $seed = sql($node, q(SELECT seed::bigint & 4294967295 FROM feedpub._batch ORDER BY sync_id DESC LIMIT 1));

	return $seed && join '', map { ('-', 0 .. 9, 'A' .. 'Z', '_', 'a' .. 'z')[ $seed >> 6 * $_ & 63 ] } reverse 0 .. 5;
}

sql($primary, q(SELECT feed_stop_worker(); SELECT feed_create('outbox')));
$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->start;

my @starts = start_of($primary);
like($starts[0], qr/^\S{6}$/, 'a primary has one before its first batch');
my $none = start_of($standby);
isnt($none, $starts[0], 'a standby knows of none then');
publish($primary, 'one');
is(start_of($primary), $starts[0], 'its cursors have it');
is(written($primary), $starts[0], 'the first batch has it');
publish($primary, 'two');
$primary->wait_for_replay_catchup($standby);
is(start_of($standby), $starts[0], 'a standby shows the same');
my @cursors = (head($primary));

# Restarts: in order, and after a crash of one process
for my $how (qw(restart crash))
{
	if ($how eq 'restart')
	{
		$primary->restart;
	}
	else
	{
		$primary->append_conf('postgresql.conf', 'restart_after_crash = on');
		$primary->reload;
		my $victim = $primary->background_psql('postgres', on_error_stop => 0);
		my $pid = $victim->query('SELECT pg_backend_pid()');
		my $before = start_of($primary);
		is($before, $starts[-1], "$how: the start before");
		kill 'KILL', $pid;
		$primary->poll_query_until('postgres',
			"SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $pid)")
		  or die 'the server does not come back';
		eval { $victim->quit };
	}
	sql($primary, 'SELECT feed_stop_worker()');
	my $start = start_of($primary);
	like($start, qr/^\S{6}$/, "$how: one start");
	is(scalar(grep { $_ eq $start } @starts, $none), 0, "$how: another one");
	$primary->wait_for_replay_catchup($standby);
	is(start_of($standby), $starts[-1], "$how: the standby shows the one before");
	publish($primary, "$how one");
	publish($primary, "$how two");
	is(written($primary), $start, "$how: the first batch has it");
	$primary->wait_for_replay_catchup($standby);
	is(start_of($standby), $start, "$how: and the standby shows it");
	push @starts, $start;
	push @cursors, head($primary);
}
is(types($primary, $cursors[0]), 'restart one restart two crash one crash two',
	'a cursor of the first start goes on');

# A merge stays within a start, and knows the cursors of its parts.
my @all = split /\n/, sql($primary, q(SET feedpub.read_wait = 0; SELECT cursor FROM feed_read(NULL::outbox, '', 100)));
is(scalar @all, 6, 'cursors of three starts');
sql($primary, <<'SQL');
UPDATE feedpub._batch SET published_at = '2000-01-01';
SELECT feedpub._merge_batches('outbox');
SQL
is(sql($primary, q(SELECT merged_from, sync_id FROM feedpub._batch ORDER BY sync_id)),
	"1|2\n3|4\n|5\n|6", 'merged are those of one start');
my @types = ('one', 'two', 'restart one', 'restart two', 'crash one', 'crash two');
for my $i (0 .. 5)
{
	my $from = $i == 5 ? '' : join ' ', @types[ $i + 1 .. 5 ];
	my $got = types($primary, $all[$i]);

	like(" $got", qr/ \Q$from\E$/, "a cursor in a part is known: $i");
}
refused($primary,
	"SELECT * FROM feed_read(NULL::outbox, overlay('$all[0]' PLACING '012345' FROM 26), 10)",
	'PF001', 'another history', 'a made-up one of a part is not');

# One start, two databases that go on from one state
$primary->command_ok([ 'pg_dump', '-f', "$dir/dump.sql", 'postgres' ], 'pg_dump');
sql($primary, 'CREATE DATABASE restored');
$primary->command_ok(
	[ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', "$dir/dump.sql", 'restored' ],
	'psql restores it there');
sql($primary, 'CREATE DATABASE copied TEMPLATE postgres');
$primary->wait_for_replay_catchup($standby);
isnt(start_of($standby, db => $_), $starts[-1], "$_: a standby knows of none that has made batches there")
  for qw(restored copied);
my $common = head($primary);
publish($primary, 'here');
my $here = head($primary);
for my $db (qw(restored copied))
{
	sql($primary, 'SELECT feed_stop_worker()', db => $db);
	publish($primary, $db, db => $db);
	is(types($primary, $common, db => $db), $db, "$db: a cursor from before goes on");
	refused($primary, "SELECT * FROM feed_read(NULL::outbox, '$here', 10)",
		'PF001', 'another history', "$db: one from after it is refused", db => $db);
	refused($primary, "SELECT * FROM feed_read(NULL::outbox, '" . head($primary, db => $db) . "', 10)",
		'PF001', 'another history', "$db: and the other way round");
}

# A promotion
$primary->wait_for_replay_catchup($standby);
$primary->stop('immediate');
is(start_of($standby), $starts[-1], 'the standby still shows the last one');
$standby->promote;
my $promoted = start_of($standby);
is(scalar(grep { $_ eq $promoted } @starts, $none), 0, 'promoted it has its own');
sql($standby, 'SELECT feed_stop_worker()');
publish($standby, 'promoted');
is(written($standby), $promoted, 'which its first batch has');
is(types($standby, $here), 'promoted', 'cursors go on');

$standby->stop;
done_testing();
