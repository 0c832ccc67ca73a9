# A group of consumers on sixteen shards, through pgbouncer in transaction mode.
# Consumers are killed and started anew, under their old names or others,
# leases run out in the middle, the server crashes with commits that are not on
# its disk yet, and again and again a message cannot be dealt with.  In the end
# every message has had its effect, once, and those of a key in their order.
#
# FEEDPUB_GROUP_ROWS (default 30,000), FEEDPUB_GROUP_CONSUMERS (8),
# FEEDPUB_GROUP_PAGE (100), FEEDPUB_GROUP_SEED (1): it goes on until all rows
# have been dealt with.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes ();

plan skip_all => 'DBD::Pg is not there' if !eval { require DBD::Pg; 1 };
my ($pgbouncer) = grep { -x } map { "$_/pgbouncer" } split(/:/, $ENV{PATH}), '/usr/sbin', '/usr/local/sbin';
plan skip_all => 'pgbouncer is not there' if !$pgbouncer;
require FeedpubGroup;

my %size = (rows => 30_000, consumers => 8, page => 100, seed => 1);
for my $name (keys %size)
{
	my $given = $ENV{ 'FEEDPUB_GROUP_' . uc $name };

	$size{$name} = $given if defined $given && $given ne '';
}
note join ' ', map { 'FEEDPUB_GROUP_' . uc . "=$size{$_}" } sort keys %size;
srand($size{seed});

# Nothing writes WAL to disk unless it is asked to.
my $node = feedpub_node('group', conf => <<'CONF');
shared_preload_libraries = 'feedpub'
max_connections = 60
wal_writer_delay = 10s
wal_writer_flush_after = 100MB
wal_buffers = 16MB
checkpoint_timeout = 1h
bgwriter_lru_maxpages = 0
log_statement = none
CONF
my $dir = PostgreSQL::Test::Utils::tempdir();
my $group = FeedpubGroup->new(node => $node, dir => $dir, subscription => 'The "Group"',
	page => $size{page}, seed => $size{seed});

sql($node, <<'SQL');
CREATE ROLE regress_feedpub_consumer LOGIN;
SELECT feed_create('work');
GRANT SELECT ON work TO regress_feedpub_consumer;
CREATE TABLE effect (n bigint GENERATED ALWAYS AS IDENTITY, consumer text, kind text, key text, data text);
GRANT INSERT, SELECT ON effect TO regress_feedpub_consumer;
SET ROLE regress_feedpub_consumer;
SELECT feed_subscribe('The "Group"', 'work', 'earliest', 16, '2 seconds');
SQL
$group->start_pgbouncer($pgbouncer);

# Half of the messages are there; the others come while they are dealt with.
my $written = 0;

sub write_some
{
	my ($rows, $commit) = @_;

	sql($node, <<"SQL");
SET synchronous_commit = $commit;
INSERT INTO work (message_type, message_key, data)
SELECT CASE WHEN i % 500 = 0 THEN 'poison' ELSE 'plain' END, 'key ' || i % 97, to_jsonb(i)
FROM generate_series($written + 1, $written + $rows) i
SQL
	$written += $rows;
	return;
}
write_some(int($size{rows} / 2), 'on');

my (%running, $killed, $crashed);
my $step = int(($size{rows} - $written) / 40) || 1;
my $begun = Time::HiRes::time();
my $last_news = $begun;
my $seen = 0;
my $seen_at_kill = -1;

($killed, $crashed) = (0, 0);
$running{"worker $_"} = $group->spawn("worker $_") for 1 .. $size{consumers};
while (1)
{
	my $done;

	Time::HiRes::sleep(0.3);
	write_some($written + $step > $size{rows} ? $size{rows} - $written : $step, 'on')
	  if $written < $size{rows};

	# At random, and not to be asked about; but where they need longer to begin
	# than they live, none would get anywhere.
	if ($seen < 0.9 * $size{rows} && $seen > $seen_at_kill)
	{
		$seen_at_kill = $seen;
		my $victim = (sort keys %running)[ int rand keys %running ];

		kill 'KILL', $running{$victim};
		waitpid $running{$victim}, 0;
		delete $running{$victim};
		$killed++;
		my $name = rand() < 0.7 ? $victim : "worker $size{consumers}.$killed";

		$running{$name} = $group->spawn($name);
	}
	if ($crashed < 2 && $seen > $size{rows} * ($crashed + 1) / 4)
	{
		$node->stop('immediate');
		$node->start;
		$crashed++;
	}
	$done = sql($node, 'SELECT count(*) FROM effect');
	$last_news = Time::HiRes::time() if $done != $seen;
	$seen = $done;
	last if $seen >= $written && $written == $size{rows} &&
		sql($node, 'SELECT sum(parked) = 0 AND count(DISTINCT cursor) = 1 FROM feedpub.shards') eq 't';
	last if Time::HiRes::time() - $last_news > 180;
}
note sprintf '%d messages in %.1f s, %d kills, %d crashes', $seen,
  Time::HiRes::time() - $begun, $killed, $crashed;
append_to_file("$dir/stop", '');
waitpid $_, 0 for values %running;

is(join('', map { slurp_file($_) } glob("$dir/*.err")), '', 'no consumer met what it does not expect');
is($crashed, 2, 'the server crashed twice');
cmp_ok($killed, '>', 0, 'consumers were killed');
is(sql($node, 'SELECT count(*) FROM work'), $size{rows}, 'the messages are there');
is(sql($node, q(SELECT string_agg(data #>> '{}', ' ') FROM (SELECT data FROM work WHERE NOT EXISTS (SELECT FROM effect e WHERE e.data = work.data #>> '{}') LIMIT 5) w)),
	'', 'each of them had its effect');
is(sql($node, q(SELECT string_agg(data, ' ') FROM (SELECT data FROM effect GROUP BY data HAVING count(*) > 1 LIMIT 5) e)),
	'', 'once');
is(sql($node, q(SELECT string_agg(data || ' after ' || before, ', ') FROM
	(SELECT data, lag(data) OVER (PARTITION BY key ORDER BY n) AS before FROM effect WHERE kind = 'plain') e
	WHERE data::int < before::int)),
	'', 'in the order of its key');
cmp_ok(sql($node, 'SELECT count(DISTINCT consumer) FROM effect'), '>=', $size{consumers}, 'all consumers took part');
is(sql($node, 'SELECT parked FROM feedpub.subscriptions'), 0, 'no message is parked');
is(sql($node, 'SELECT count(DISTINCT cursor) FROM feedpub.shards'), 1, 'all cursors are at the end')
  or diag sql($node, 'SELECT * FROM feedpub.shards ORDER BY shard');
is(sql($node, q(SELECT count(*) FROM effect WHERE kind = 'poison')), int($size{rows} / 500), 'poison was dealt with');

$group->stop_pgbouncer;
$node->stop;
done_testing();
