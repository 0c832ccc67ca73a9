# The concurrency checker, in published order and in xid order.  Writers bump
# versions of keys, with early transaction ids, savepoints, rollbacks, prepared
# transactions, bulk rows and COPY; consumers read pages of any size, wait, are
# killed, and go on from the cursor they kept; the table is vacuumed and
# reindexed meanwhile.  In the end each consumer has been handed each committed
# row once, none that was rolled back, all in the same order.
#
# In published order a long transaction is open all the time, and the worker is
# killed again and again, and its backlog cut into small batches.  The order is
# that of the SQL model, and in it the versions of each key ascend.  In xid order,
# of the same rows, they do not.
#
# In xid order, which is (xid, position), a consumer that reads "position > last"
# has lost some rows.
#
# FEEDPUB_CHECKER_SECONDS (default 30) and FEEDPUB_CHECKER_TRANSACTIONS
# (3000): it goes on until both are reached.  FEEDPUB_CHECKER_WRITERS (4),
# FEEDPUB_CHECKER_CONSUMERS (5; the last of four or five reads a standby),
# FEEDPUB_CHECKER_SEED (1) decides what is done, though not when.
# FEEDPUB_CHECKER_CRASHES (0): the server is crashed so often meanwhile, and
# what a crash takes back no consumer has been given.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubPublished;
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'DBD::Pg is not there' if !eval { require DBD::Pg; 1 };
require FeedpubOrderChecker;

my %size = (
	seconds => 30,
	transactions => 3000,
	writers => 4,
	consumers => 5,
	crashes => 0,
	seed => 1);
for my $name (keys %size)
{
	my $given = $ENV{ 'FEEDPUB_CHECKER_' . uc $name };

	next if !defined $given || $given eq '';
	$given =~ /^\d+$/ or die "FEEDPUB_CHECKER_" . uc $name . " is no number";
	$size{$name} = $given;
}

# In published order each transaction lies in the one batch whose snapshot sees it
# while that of the batch before does not.
my %model = (
	published => <<'SQL',
SET enable_nestloop = on; SET work_mem = '256MB';
WITH batches AS (
	SELECT sync_id, snapshot, lag(snapshot) OVER (ORDER BY sync_id) AS before
	FROM feedpub._batch),
transactions AS (SELECT DISTINCT feed_xid FROM outbox),
model AS MATERIALIZED (
	SELECT t.feed_xid, b.sync_id FROM transactions t, batches b
	WHERE pg_visible_in_snapshot(t.feed_xid, b.snapshot)
		AND (b.before IS NULL OR NOT pg_visible_in_snapshot(t.feed_xid, b.before)))
SELECT concat_ws(' ', o.publication_id, 'k' || o.message_key, o.data)
FROM outbox o JOIN model USING (feed_xid)
ORDER BY sync_id, feed_pos
SQL
	xid => <<'SQL');
SELECT concat_ws(' ', publication_id, 'k' || message_key, data)
FROM outbox ORDER BY feed_xid, feed_pos
SQL

# How often a version of a key comes after a larger one
sub inversions
{
	my ($lines) = @_;
	my %version;
	my $inversions = 0;

	for (@$lines)
	{
		my (undef, $key, $version) = split;

		next if $key eq 'k';
		$inversions++ if $version <= ($version{$key} // 0);
		$version{$key} = $version;
	}
	return $inversions;
}

# What a consumer was handed, which is a list of lines
sub judge
{
	my ($lines, $committed) = @_;
	my %judged = (rows => scalar @$lines, repeated => 0, aborted => 0);
	my %times;

	for (@$lines)
	{
		my ($token) = split;

		$judged{repeated}++ if $times{$token}++;
		$judged{aborted}++ if !$committed->{$token};
	}
	$judged{lost} = grep { !$times{$_} } keys %$committed;
	return \%judged;
}

sub check_order
{
	my ($order, %size) = @_;
	my $published = $order eq 'published';
	my $dir = PostgreSQL::Test::Utils::tempdir();

	my $node = feedpub_node(
		"checker_$order",
		allows_streaming => 1,
		conf => <<"CONF");
log_statement = none
max_connections = @{[ 30 + 2 * ($size{writers} + $size{consumers}) ]}
max_prepared_transactions = @{[ 5 * $size{writers} ]}
shared_buffers = 64MB
max_wal_size = 1GB
wal_keep_size = 1GB
feedpub.max_batch_transactions = 7
CONF

	# A feed that has row security for one of its readers.  The second index is
	# for the naive consumer, which could not keep up without.
	sql($node, <<'SQL');
SELECT feed_create('outbox');
CREATE INDEX ON outbox (feed_pos);
CREATE TABLE item (key int PRIMARY KEY, version int NOT NULL DEFAULT 0);
INSERT INTO item SELECT i FROM generate_series(1, 40) i;
CREATE ROLE regress_feedpub_writer LOGIN BYPASSRLS;
CREATE ROLE regress_feedpub_reader LOGIN BYPASSRLS;
CREATE ROLE regress_feedpub_restricted LOGIN;
GRANT INSERT ON outbox TO regress_feedpub_writer;
GRANT SELECT, UPDATE ON item TO regress_feedpub_writer;
GRANT SELECT ON outbox TO regress_feedpub_reader, regress_feedpub_restricted;
ALTER TABLE outbox ENABLE ROW LEVEL SECURITY;
CREATE POLICY all_rows ON outbox FOR SELECT USING (message_type <> '');
SQL

	my $standby;
	if ($size{consumers} >= 4)
	{
		$node->backup('base');
		$standby = PostgreSQL::Test::Cluster->new("checker_${order}_standby");
		$standby->init_from_backup($node, 'base', has_streaming => 1);
		$standby->start;
	}

	my $run = FeedpubOrderChecker->run(
		%size,
		order => $order,
		node => $node,
		standby => $standby,
		dir => $dir);

	is("@{ $run->{failures} }", '', "$order order: no writer and no consumer has failed")
	  or BAIL_OUT('the checker did not finish');

	#
	# What there is: the writers' word against the table, in the order's model.
	#
	my @model = split /\n/, sql($node, $model{$order});
	my %present = map { (split)[0] => 1 } @model;
	my ($committed, $aborted, $kinds) =
	  FeedpubOrderChecker->outcome($dir, $size{writers}, \%present);
	my $transactions = 0;
	$transactions += $_ for values %$kinds;

	cmp_ok($transactions, '>=', $size{transactions}, 'enough transactions');
	is( join(' ', sort keys %$kinds),
		'bulk bulk_copy copy early failed held '
		  . ($published ? 'long ' : '')
		  . 'pair parked plain prepared rollback savepoints single waiting',
		'of all kinds');
	cmp_ok($run->{kills}{processes}, '>', 0, 'consumers were killed');
	cmp_ok($run->{kills}{connections}, '>', 0, 'connections were terminated');
	cmp_ok($run->{kills}{workers}, '>=', int($size{seconds} / 3), 'the worker was killed')
	  if $published;
	is($run->{crashes}, $size{crashes}, 'the server was crashed as often as asked for');
	is(sql($node, 'SELECT count(*) FROM outbox'),
		scalar keys %$committed, 'the table has as many rows as were committed');
	is(scalar @model, scalar keys %$committed, 'the model has each of them once');
	is(scalar(grep { !$present{$_} } keys %$committed),
		0, 'all that were committed');
	is(scalar(grep { $present{$_} } keys %$aborted),
		0, 'none that was rolled back');
	is( sql($node, <<'SQL'),
SELECT count(*) - count(DISTINCT feed_pos), count(*) - count(DISTINCT message_id)
FROM outbox
SQL
		'0|0',
		'no position and no message id twice');
	is( sql($node, <<'SQL'),
SELECT count(*) = max(sync_id), min(sync_id), max(transactions) <= 7,
	bool_and(transactions >= 0), bool_and(last_pos > 0)
FROM feedpub._batch
SQL
		't|1|t|t|t',
		'batches are numbered without a gap, and none is larger than it may be')
	  if $published;

	diag sprintf
	  '%s checker: seed %d, %d transactions, %d rows committed, %d rolled back, %d batches',
	  $order, $size{seed}, $transactions, scalar keys %$committed,
	  scalar keys %$aborted, batches($node, 'outbox');
	diag sprintf
	  '%s checker: %d workers, %d consumers and %d connections killed, %d crashes',
	  $order, @{ $run->{kills} }{qw(workers processes connections)}, $run->{crashes};
	diag "$order checker: transactions: ",
	  join ', ', map { "$kinds->{$_} $_" } sort keys %$kinds;

	#
	# What each consumer was handed
	#
	my @consumers = grep { $_ ne 'naive' } @{ $run->{consumers} };
	is(scalar @consumers, $size{consumers}, 'all consumers are judged');
	for my $name (@consumers)
	{
		my $lines = FeedpubOrderChecker->handed_out($dir, $name);
		my $judged = judge($lines, $committed);

		diag "$order checker: $name: ",
		  join ', ', map { "$judged->{$_} $_" } qw(rows lost repeated aborted);
		$judged->{as_model} = join("\n", @$lines) eq join("\n", @model) ? 1 : 0;
		$judged->{inversions} = inversions($lines) if $published;
		is_deeply(
			$judged,
			{
				rows => scalar keys %$committed,
				lost => 0,
				repeated => 0,
				aborted => 0,
				as_model => 1,
				$published ? (inversions => 0) : ()
			},
			"$name was handed each committed row once, in order");
	}
	if ($published)
	{
		# The same rows in the other order, by which consumers would end up with
		# an old version.
		my $inverted = inversions([ split /\n/, sql($node, $model{xid}) ]);

		diag "$order checker: xid order: $inverted inversions";
		cmp_ok($inverted, '>', 0, 'xid order inverts versions');
	}
	else
	{
		my $naive = judge(FeedpubOrderChecker->handed_out($dir, 'naive'), $committed);

		diag "$order checker: naive: ",
		  join ', ', map { "$naive->{$_} $_" } qw(rows lost repeated aborted);
		cmp_ok($naive->{lost}, '>', 0, 'who reads "position > last" has lost rows');
		is($naive->{repeated}, 0, 'though it was delivered none twice');
		is($naive->{aborted}, 0, 'and no other row') if !$size{crashes};
	}
	is( sql($node, <<'SQL'),
SELECT count(*) FROM item WHERE version <>
	(SELECT COALESCE(max(data::text::int), 0) FROM outbox WHERE message_key = key::text)
SQL
		0,
		'the last version of each key is in the feed');

	is(sql($node, q(SELECT * FROM feed_check('outbox'))),
		'', 'all guards stand');
	unlike($node->log_content, qr/PANIC|CONTEXT:  publishing/,
		'no worker has met an error');
	$standby->stop if $standby;
	$node->stop;
	return;
}

check_order('published', %size);
check_order('xid', %size, consumers => $size{consumers} > 4 ? $size{consumers} - 1 : $size{consumers});
done_testing();
