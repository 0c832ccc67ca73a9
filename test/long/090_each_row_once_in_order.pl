# The concurrency checker.  Writers with delays, savepoints, rollbacks,
# prepared transactions, bulk rows and COPY; consumers that read pages of any
# size, are killed, and go on from the cursor they kept; a table that is
# vacuumed and reindexed meanwhile.  In the end each consumer has been handed
# each committed row once, none that was rolled back, in the order of (xid,
# position); and one that reads "position > last" has lost some.
#
# FEEDPUB_CHECKER_SECONDS (default 30) and FEEDPUB_CHECKER_TRANSACTIONS
# (3000): it goes on until both are reached.  FEEDPUB_CHECKER_WRITERS (4),
# FEEDPUB_CHECKER_CONSUMERS (4; every fourth reads a standby),
# FEEDPUB_CHECKER_SEED (1) decides what is done, though not when.
# FEEDPUB_CHECKER_CRASHES (0): the server is crashed so often meanwhile, and
# what a crash takes back no consumer has been given.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'DBD::Pg is not there' if !eval { require DBD::Pg; 1 };
require FeedpubChecker;

my %size = (
	seconds => 30,
	transactions => 3000,
	writers => 4,
	consumers => 4,
	crashes => 0,
	seed => 1);
for my $name (keys %size)
{
	my $given = $ENV{ 'FEEDPUB_CHECKER_' . uc $name };

	next if !defined $given || $given eq '';
	$given =~ /^\d+$/ or die "FEEDPUB_CHECKER_" . uc $name . " is no number";
	$size{$name} = $given;
}
my $dir = PostgreSQL::Test::Utils::tempdir();

my $node = feedpub_node(
	'checker',
	allows_streaming => 1,
	conf => <<"CONF");
log_statement = none
max_connections = @{[ 20 + 2 * ($size{writers} + $size{consumers}) ]}
max_prepared_transactions = @{[ 4 * $size{writers} ]}
shared_buffers = 64MB
max_wal_size = 1GB
wal_keep_size = 1GB
CONF

# A feed that has row security for one of its readers.  The second index is
# for the naive consumer, which could not keep up without.
sql($node, <<'SQL');
SELECT feed_create('outbox');
CREATE INDEX ON outbox (feed_pos);
CREATE ROLE regress_feedpub_writer LOGIN BYPASSRLS;
CREATE ROLE regress_feedpub_reader LOGIN BYPASSRLS;
CREATE ROLE regress_feedpub_restricted LOGIN;
GRANT INSERT ON outbox TO regress_feedpub_writer;
GRANT SELECT ON outbox TO regress_feedpub_reader, regress_feedpub_restricted;
ALTER TABLE outbox ENABLE ROW LEVEL SECURITY;
CREATE POLICY all_rows ON outbox FOR SELECT USING (message_type <> '');
SQL

my $standby;
if ($size{consumers} >= 4)
{
	$node->backup('base');
	$standby = PostgreSQL::Test::Cluster->new('checker_standby');
	$standby->init_from_backup($node, 'base', has_streaming => 1);
	$standby->start;
}

my $run = FeedpubChecker->run(
	%size,
	node => $node,
	standby => $standby,
	dir => $dir);

is("@{ $run->{failures} }", '', 'no writer and no consumer has failed')
  or BAIL_OUT('the checker did not finish');

#
# What there is: the writers' word against the table.
#
my @table = split /\n/, sql($node, <<'SQL');
SELECT concat_ws(' ', feed_xid, feed_pos, message_key, message_id)
FROM outbox ORDER BY feed_xid, feed_pos
SQL
my %present = map { (split)[2] => 1 } @table;
my ($committed, $aborted, $kinds) =
  FeedpubChecker->outcome($dir, $size{writers}, \%present);
my $transactions = 0;
$transactions += $_ for values %$kinds;

cmp_ok($transactions, '>=', $size{transactions}, 'enough transactions');
is( join(' ', sort keys %$kinds),
	'bulk bulk_copy copy early failed long pair prepared rollback savepoints single',
	'of all kinds');
cmp_ok($run->{kills}{processes}, '>', 0, 'consumers were killed');
cmp_ok($run->{kills}{connections}, '>', 0, 'connections were terminated');
is($run->{crashes}, $size{crashes}, 'the server was crashed as often as asked for');
is(scalar @table, scalar keys %$committed, 'the table has as many rows as were committed');
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

#
# What each consumer was handed
#
sub judge
{
	my ($name) = @_;
	my $lines = FeedpubChecker->handed_out($dir, $name);
	my %times;
	my %judged = (
		rows => scalar @$lines,
		lost => 0,
		repeated => 0,
		aborted => 0,
		disordered => 0);
	my ($last_xid, $last_pos) = (0, 0);

	for (@$lines)
	{
		my ($xid, $pos, $token) = split;

		$judged{repeated}++ if $times{$token}++;
		$judged{aborted}++ if !$committed->{$token};
		$judged{disordered}++
		  if $xid < $last_xid || ($xid == $last_xid && $pos <= $last_pos);
		($last_xid, $last_pos) = ($xid, $pos);
	}
	$judged{lost} = grep { !$times{$_} } keys %$committed;
	$judged{same} = join("\n", @$lines) eq join("\n", @table) ? 1 : 0;
	return \%judged;
}

diag sprintf 'checker: seed %d, %d transactions, %d rows committed, %d rolled back, %d consumers killed, %d connections, %d crashes',
  $size{seed}, $transactions, scalar keys %$committed,
  scalar keys %$aborted, $run->{kills}{processes},
  $run->{kills}{connections}, $run->{crashes};
diag 'checker: transactions: ',
  join ', ', map { "$kinds->{$_} $_" } sort keys %$kinds;

my @consumers = @{ $run->{consumers} };
is(scalar @consumers, $size{consumers}, 'all consumers are judged');
for my $name (@consumers)
{
	my $judged = judge($name);

	is_deeply(
		$judged,
		{
			rows => scalar keys %$committed,
			lost => 0,
			repeated => 0,
			aborted => 0,
			disordered => 0,
			same => 1
		},
		"$name was handed each committed row once, in order");
	diag "checker: $name: ",
	  join ', ', map { "$judged->{$_} $_" } qw(rows lost repeated aborted disordered);
}

my $naive = judge('naive');
diag "checker: naive: ",
  join ', ', map { "$naive->{$_} $_" } qw(rows lost repeated aborted);
cmp_ok($naive->{lost}, '>', 0, 'who reads "position > last" has lost rows');
is($naive->{repeated}, 0, 'though it was delivered none twice');
is($naive->{aborted}, 0, 'and no other row') if !$size{crashes};

is(sql($node, q(SELECT * FROM feed_check('outbox'))),
	'', 'all guards stand');
$standby->stop if $standby;
$node->stop;
done_testing();
