# The concurrency checker of table feeds.  A table with rows in it becomes a
# feed while writers write, in every way a row can be changed, deleted and
# inserted again; consumers begin at '' before that, at once, in the middle and
# late, one of them divided into three shards; they are killed and go on from
# the cursor they kept, as is the worker.  The table is vacuumed, rewritten by
# VACUUM FULL, and all its rows are published again meanwhile; it is emptied by
# TRUNCATE in a second, shorter run, for that would forgive what went wrong
# before it.  Two runs are those of a partitioned table, of which partitions are
# attached with their rows, dropped, taken out, changed and put back; in the
# second all others are emptied meanwhile.  In the end each consumer's copy equals
# the table; and no key's version went back on the way.
#
# FEEDPUB_CHECKER_SECONDS (default 20) and FEEDPUB_CHECKER_TRANSACTIONS
# (2000): it goes on until both are reached; the others take half and a quarter.
# FEEDPUB_CHECKER_WRITERS (4), FEEDPUB_CHECKER_SEED (1) decides what is done,
# though not when.
# FEEDPUB_CHECKER_CRASHES (0): the server is crashed so often in each run, and
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
require FeedpubTableChecker;

my %size = (
	seconds => 20,
	transactions => 2000,
	writers => 4,
	crashes => 0,
	seed => 1);
for my $name (keys %size)
{
	my $given = $ENV{ 'FEEDPUB_CHECKER_' . uc $name };

	next if !defined $given || $given eq '';
	$given =~ /^\d+$/ or die "FEEDPUB_CHECKER_" . uc $name . " is no number";
	$size{$name} = $given;
}
# Up to five of the ids at which two copies differ.
sub differences
{
	my ($got, $expected) = @_;
	my %ids = (%$got, %$expected);
	my @ids = grep { ($got->{$_} // '') ne ($expected->{$_} // '') }
	  sort { $a <=> $b } keys %ids;

	return join '; ', map {
		"$_: got " . ($got->{$_} // 'none') . ', not ' . ($expected->{$_} // 'none')
	} @ids[ 0 .. ($#ids < 4 ? $#ids : 4) ];
}

sub check_run
{
	my ($label, %size) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir();

	my $node = feedpub_node($label, conf => <<"CONF");
log_statement = none
max_connections = @{[ 40 + 2 * $size{writers} ]}
max_prepared_transactions = @{[ 5 * $size{writers} ]}
shared_buffers = 64MB
max_wal_size = 1GB
feedpub.max_batch_transactions = 7
feedpub.stamping_rate = 1000
CONF
	sql($node, FeedpubTableChecker->schema($size{writers}, $size{partitioned}));
	sql($node, <<'SQL');
CREATE ROLE regress_feedpub_writer LOGIN;
CREATE ROLE regress_feedpub_reader LOGIN;
GRANT SELECT, INSERT, UPDATE, DELETE ON item TO regress_feedpub_writer;
GRANT SELECT, UPDATE ON counter TO regress_feedpub_writer;
GRANT USAGE ON SEQUENCE new_id, race_version TO regress_feedpub_writer;
GRANT SELECT ON item TO regress_feedpub_reader;
SQL

	my $run = FeedpubTableChecker->run(%size, node => $node, dir => $dir);

	if (!is("@{ $run->{failures} }", '', "$label: no process has failed"))
	{
		$node->stop;
		return;
	}

	my ($kinds, $fates) = FeedpubTableChecker->outcome($dir, $size{writers});
	my $transactions = 0;
	$transactions += $_ for values %$kinds;
	cmp_ok($transactions, '>=', $size{transactions}, 'enough transactions');
	is( join(' ', sort keys %$kinds),
		'bulk cold early hits move ordered parked prepared racing rollback savepoints',
		'of all kinds');
	cmp_ok($run->{kills}{processes}, '>', 0, 'consumers were killed');
	cmp_ok($run->{kills}{workers}, '>', 0, 'the worker was killed');
	is($run->{crashes}, $size{crashes}, 'the server was crashed as often as asked for');

	diag sprintf
	  "table checker, $label: seed %d, %d transactions, %d batches, %d tombstones",
	  $size{seed}, $transactions, batches($node, 'item'),
	  sql($node, 'SELECT count(*) FROM feedpub._tombstone');
	diag sprintf
	  "table checker, $label: %d workers, %d consumers and %d connections killed, %d crashes",
	  @{ $run->{kills} }{qw(workers processes connections)}, $run->{crashes};
	diag "table checker, $label: transactions: ",
	  join ', ', map { "$kinds->{$_} $_" } sort keys %$kinds;
	diag "table checker, $label: ended by: ",
	  join ', ', map { "$fates->{$_} $_" } sort keys %$fates;

	# What there is, and what each consumer holds.
	my %table = map { /^(\d+) (.*)$/ ? ($1 => $2) : die } split /\n/,
	  sql($node, <<'SQL');
SELECT concat_ws(' ', id, grp, version, md5(COALESCE(payload, 'null')),
	COALESCE(size::text, '-'), changed)
FROM item
SQL

	cmp_ok(scalar keys %table, '>', 0, 'the table ends with rows');
	my $initial = 0;
	my %sharded;
	for my $name (@{ $run->{consumers} })
	{
		my ($rows, $count, $inversions) = FeedpubTableChecker->apply($dir, $name);

		diag sprintf
		  "table checker, $label: %s: %d upserts, %d of them initial, %d deletes, %d truncates; ends with %d rows",
		  $name, @$count{qw(U initial D T)}, scalar keys %$rows;
		# after a crash one may be done again, though it had committed
		my $truncates = $size{truncate} ? $size{partitioned} ? 2 : 1 : 0;
		cmp_ok($count->{T}, '>=', $truncates, "$name: truncates");
		cmp_ok($count->{T}, '<=', $truncates && $truncates + $size{crashes},
			"$name: no more of them");
		is("@$inversions[0 .. ($#$inversions < 4 ? $#$inversions : 4)]",
			'', "$name: no version goes back");
		if ($name =~ /^shard/)
		{
			is(join(' ', grep { exists $sharded{$_} } sort keys %$rows),
				'', "$name: its keys are in no other shard");
			%sharded = (%sharded, %$rows);
			next;
		}
		is(differences($rows, \%table), '', "$name: its copy equals the table");
		$initial += $count->{initial};
	}
	# a slow consumer may find that all its rows were published again
	cmp_ok($initial, '>', 0, 'the initial snapshot was read');
	is(differences(\%sharded, \%table),
		'', 'the copies of three shards are the table');

	my $polled = FeedpubTableChecker->polled($dir);
	my %missed = (deletes => 0, old => 0, absent => 0);
	for (keys %{ { %table, %$polled } })
	{
		$missed{deletes}++, next if !$table{$_};
		my ($version) = $table{$_} =~ /^\S+ (\d+)/;

		$missed{absent}++ if !defined $polled->{$_};
		$missed{old}++ if defined $polled->{$_} && $polled->{$_} != $version;
	}
	diag sprintf
	  "table checker, $label: polling by time: %d rows missed, %d with an old version, %d that are gone kept; of %d",
	  @missed{qw(absent old deletes)}, scalar keys %table;

	is(sql($node, 'SELECT count(*) FROM item i LEFT JOIN feedpub._partition p ON p.partition = i.tableoid WHERE feed_xid IS NULL OR feed_pos IS NULL OR feed_xid < p.since'),
		'0', 'no row is without a stamp');
	is(sql($node, q(SELECT * FROM feed_check('item'))),
		'', 'all guards stand');
	unlike($node->log_content, qr/PANIC|CONTEXT:  publishing/,
		'no worker has met an error');
	$node->stop;
	return;
}

check_run('copies', %size);
check_run(
	'partitioned', %size,
	partitioned => 1,
	seconds => int($size{seconds} / 2),
	transactions => int($size{transactions} / 2));
check_run(
	'partitioned_and_emptied', %size,
	partitioned => 1,
	truncate => 1,
	seconds => int($size{seconds} / 2),
	transactions => int($size{transactions} / 2));
check_run(
	'emptied', %size,
	truncate => 1,
	seconds => int($size{seconds} / 4),
	transactions => int($size{transactions} / 4));
done_testing();
