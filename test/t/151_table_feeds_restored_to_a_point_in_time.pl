# A server is restored to a point in time, and goes on from there.  Consumers of
# a table feed have read on its original until later.  What each has passed that
# is back now comes again; a consumer of a batch that is not there is refused.
# Other sessions of the restored server may write more WAL than was lost, and it
# may crash before it publishes: that proves nothing.  Nor does a second restore
# to the same point, on the same timeline, know what the first one made.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubPublished;
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('node', has_archiving => 1, allows_streaming => 1);

# A consumer of kv: a page into its copy.  Returns how many entries it had.
sub follow
{
	my ($consumer, $at) = @_;
	my $entries = sql($at // $node, <<"SQL");
SET feedpub.read_wait = 0;
SELECT cursor, op, (entry).k, (entry).v FROM feed_read(NULL::kv, '$consumer->{cursor}', $consumer->{max_rows})
SQL
	for (split /\n/, $entries)
	{
		my ($cursor, $op, $k, $v) = split /\|/;

		$consumer->{cursor} = $cursor;
		$consumer->{copy}{$k} = $v if $op eq 'upsert';
		delete $consumer->{copy}{$k} if $op eq 'delete';
	}
	return scalar split /\n/, $entries;
}

sub shown
{
	my ($consumer) = @_;

	return join ' ', map { "$_=$consumer->{copy}{$_}" } sort keys %{ $consumer->{copy} };
}

# Its copy, when it has read to the end
sub copy
{
	my ($consumer, $at) = @_;

	1 while follow($consumer, $at);
	return shown($consumer);
}

sub consumer
{
	my ($max_rows) = @_;

	return { cursor => '', copy => {}, max_rows => $max_rows };
}

sub clone
{
	my ($consumer) = @_;

	return { %$consumer, copy => { %{ $consumer->{copy} } } };
}

sub table
{
	my ($at) = @_;

	return sql($at, q(SELECT string_agg(k || '=' || v, ' ' ORDER BY k) FROM kv));
}

# The server as of the point, on an archive that nothing is added to
sub restored
{
	my ($name) = @_;
	my $restored = PostgreSQL::Test::Cluster->new($name);

	$restored->init_from_backup($node, 'base', has_restoring => 1);
	$restored->append_conf('postgresql.conf', <<'CONF');
archive_mode = off
recovery_target_name = 'here'
recovery_target_action = 'promote'
CONF
	$restored->start;
	$restored->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()') or die;
	sql($restored, 'SELECT feed_stop_worker()');
	return $restored;
}

# i and j are the initial snapshot, the others are published.
sql($node, <<'SQL');
SELECT feed_stop_worker();
CREATE TABLE kv (k text PRIMARY KEY, v text);
INSERT INTO kv VALUES ('i', 'first'), ('j', 'first');
SELECT feed_attach('kv');
INSERT INTO kv VALUES ('a', 'first'), ('b', 'first'), ('c', 'first'), ('d', 'first');
CALL feed_publish();
SQL
$node->backup('base');
my $early = consumer(100);
follow($early);
sql($node, $_)
  for q(UPDATE kv SET v = 'second' WHERE k = 'a'), q(DELETE FROM kv WHERE k = 'b'),
  'CALL feed_publish()', q(SELECT pg_create_restore_point('here'));

# From here on all is lost.
my $settled = clone($early);
is(copy($settled), table($node), 'one has all that is kept');
sql($node, $_)
  for q(UPDATE kv SET v = 'lost' WHERE k IN ('a', 'c', 'i')), q(INSERT INTO kv VALUES ('b', 'lost'));
my $passed = clone($early);
is(copy($passed), 'a=first b=first c=first d=first i=first j=first', 'one passes what has changed again');
my $begun = consumer(1);
follow($begun) for 1 .. 2;
is(shown($begun), 'd=first j=first', 'so does one that begins');
my $beginning = consumer(1);
follow($beginning);
is(shown($beginning), 'j=first', 'and one in the initial snapshot');
sql($node, 'CALL feed_publish()');
my $beyond = clone($passed);
is(copy($beyond), table($node), 'and one gets what is lost');
my $lost_at = sql($node, 'SELECT pg_current_wal_lsn()');
sql($node, 'SELECT pg_switch_wal()');
$node->poll_query_until('postgres',
	"SELECT last_archived_wal >= pg_walfile_name('$lost_at') FROM pg_stat_archiver")
  or die 'the WAL is not archived';
$node->stop('immediate');

my $restored = restored('restored');
is(table($restored), 'a=second c=first d=first i=first j=first', 'restored');
my $state = { map { $_ => clone($_) } $settled, $passed, $begun, $beginning };

# More WAL than was lost, of no feed; then it crashes.
sql($restored, <<'SQL');
CREATE TABLE other AS SELECT g FROM generate_series(1, 10000) g;
SELECT pg_switch_wal();
SQL
is(sql($restored, "SELECT pg_current_wal_lsn() > '$lost_at'"), 't', 'the restored server has written beyond what is lost');
$restored->stop('immediate');
$restored->start;
sql($restored, 'SELECT feed_stop_worker()');

is(copy($settled, $restored), table($restored), 'the one that had all goes on');
for ([ $passed, 'what was passed' ], [ $begun, 'one that had begun' ], [ $beginning, 'one in the initial snapshot' ])
{
	my ($consumer, $which) = @$_;

	isnt(shown($consumer), table($restored), "$which: its copy is another");
	is(copy($consumer, $restored), table($restored), "$which: it gets what is back");
}
refused($restored, "SELECT * FROM feed_read(NULL::kv, '$beyond->{cursor}', 10)",
	'PF001', 'another history.*empty copy', 'one of a batch that is not there is refused');

# They go on with it, also when the restored server has published as much.
sql($restored, $_)
  for q(UPDATE kv SET v = 'third' WHERE k IN ('a', 'j')), q(INSERT INTO kv VALUES ('e', 'new')), 'CALL feed_publish()';
is(copy($_, $restored), table($restored), 'and goes on') for $settled, $passed, $begun, $beginning;
refused($restored, "SELECT * FROM feed_read(NULL::kv, '$beyond->{cursor}', 10)",
	'PF001', 'another history', 'that one is still refused');
sql($restored, q(UPDATE kv SET v = 'lost too' WHERE k = 'd'));
my $unpublished = consumer(4);
follow($unpublished, $restored) for 1 .. 2;
unlike(shown($unpublished), qr/d=/, 'one passes what only this server has');

# Another one, as of the same point
my $again = restored('again');
is( sql($again, 'SELECT timeline_id FROM pg_control_checkpoint()'),
	sql($restored, 'SELECT timeline_id FROM pg_control_checkpoint()'),
	'another restored server has the same timeline');
sql($again, $_) for q(UPDATE kv SET v = 'here' WHERE k = 'a'), 'CALL feed_publish()';
for my $consumer (values %$state)
{
	is(copy($consumer, $again), table($again), 'consumers of the first server go on there');
}
refused($again, "SELECT * FROM feed_read(NULL::kv, '$_->{cursor}', 10)",
	'PF001', 'another history', 'those of the other one do not')
  for $settled, $unpublished;

$again->stop;
$restored->stop;
done_testing();
