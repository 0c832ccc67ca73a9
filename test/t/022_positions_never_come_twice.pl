# No position comes twice and none is smaller than an earlier one, while the
# sequence is set back, the server crashes before and after checkpoints, a standby is
# promoted, and the sequence's own functions are called, all in random order and
# with nothing published in between.  The same with wal_level = minimal.
#
# FEEDPUB_SEED chooses the order, FEEDPUB_STEPS how many there are.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $seed = $ENV{FEEDPUB_SEED} // 7;
my $steps = $ENV{FEEDPUB_STEPS} // 60;

srand($seed);
note "FEEDPUB_SEED=$seed FEEDPUB_STEPS=$steps";

my $node = feedpub_node('first', allows_streaming => 1, conf => <<'CONF');
checkpoint_timeout = 1h
wal_keep_size = 1GB
CONF
sql($node, <<'SQL');
SELECT feed_create('outbox');
SELECT feed_stop_worker();
SQL
my $last = 0;
my @wrong;

# Some rows, in one session: their positions.
sub insert_rows
{
	my ($how) = @_;
	my $n = 1 + int rand 70;

	for my $pos (split /\n/, sql($node, <<"SQL"))
WITH i AS (
	INSERT INTO outbox (message_type, data) SELECT 'a', '1' FROM generate_series(1, $n) RETURNING feed_pos)
SELECT feed_pos FROM i ORDER BY 1
SQL
	{
		push @wrong, "$how: $pos after $last" if $pos <= $last;
		$last = $pos;
	}
	return;
}

my $nodes = 1;

# A copy of the server follows it and is promoted; the old one is gone.
sub fail_over
{
	my $next = PostgreSQL::Test::Cluster->new('node' . ++$nodes);

	$node->backup("backup$nodes");
	$next->init_from_backup($node, "backup$nodes", has_streaming => 1);
	$next->start;
	insert_rows('while a standby follows');
	sql($node, q(SELECT setval('outbox_feed_pos_seq', 2))) if rand() < 0.5;
	$node->wait_for_catchup($next, 'replay', $node->lsn('insert'));
	$node->stop('immediate');
	$next->promote;
	$node = $next;
	return;
}

my %step = (
	nothing => sub { },
	setval => sub { sql($node, q(SELECT setval('outbox_feed_pos_seq', 2))) },
	not_called => sub { sql($node, q(SELECT setval('outbox_feed_pos_seq', 1, false))) },
	nextval => sub { sql($node, q(SELECT setval('outbox_feed_pos_seq', 3), nextval('outbox_feed_pos_seq'))) },
	restart => sub { sql($node, 'ALTER SEQUENCE outbox_feed_pos_seq RESTART') },
	truncate => sub { sql($node, 'TRUNCATE outbox RESTART IDENTITY') },
	checkpoint => sub { sql($node, 'CHECKPOINT') },
	crash => sub { $node->stop('immediate'); $node->start },
	crash_again => sub { $node->stop('immediate'); $node->start },
	rolled_back => sub { sql($node, 'BEGIN; TRUNCATE outbox RESTART IDENTITY; ROLLBACK') },
	setval_crash => sub {
		sql($node, q(SELECT setval('outbox_feed_pos_seq', 2)));
		$node->stop('immediate');
		$node->start;
	},
	checkpoint_crash => sub {
		sql($node, 'CHECKPOINT');
		insert_rows('after a checkpoint');
		$node->stop('immediate');
		$node->start;
	});
my @names = sort keys %step;

insert_rows('at first');
for my $n (1 .. $steps)
{
	my $name = $n % 20 == 0 ? 'failover' : $names[ rand @names ];

	$name eq 'failover' ? fail_over() : $step{$name}->();
	insert_rows($name);
}
is("@wrong", '', 'each position is larger than those before');
is( sql($node, 'SELECT count(*) - count(DISTINCT feed_pos) FROM outbox'),
	0, 'no position is there twice');

# A crash alone leaves only a small gap: the values are logged ahead.
sql($node, 'CHECKPOINT');
insert_rows('before the last crash');
my $before = $last;
$node->stop('immediate');
$node->start;
insert_rows('after the last crash');
cmp_ok(sql($node, "SELECT min(feed_pos) - $before FROM outbox WHERE feed_pos > $before"),
	'<=', 32, 'a crash leaves a small gap');

$node->stop;

# With wal_level = minimal a transaction logs no positions if it has made the
# sequence or its file.  Those that come next are logged all the same.
$node = feedpub_node('minimal', conf => <<'CONF');
wal_level = minimal
max_wal_senders = 0
checkpoint_timeout = 1h
CONF
for my $made ('feed_create', 'TRUNCATE')
{
	sql($node, 'CHECKPOINT');
	sql($node, 'BEGIN; '
		. ($made eq 'TRUNCATE' ? 'TRUNCATE outbox RESTART IDENTITY; ' : "SELECT feed_create('outbox'); ")
		. q(INSERT INTO outbox (message_type, data) SELECT 'a', '1' FROM generate_series(1, 1000); COMMIT));
	my $taken = sql($node, q(INSERT INTO outbox (message_type, data) VALUES ('a', '1') RETURNING feed_pos));

	$node->stop('immediate');
	$node->start;
	cmp_ok(sql($node, q(INSERT INTO outbox (message_type, data) VALUES ('a', '1') RETURNING feed_pos)),
		'>', $taken, "no position comes twice if $made and the first rows were not logged");
}

$node->stop;
done_testing();
