# Rows are removed at random limits while they are read.  Policies change all
# the time, feeds are purged by hand, and what removes rows is killed; the
# server crashes, and in the end a standby takes over.  Consumers read in
# published order and in xid order, fast and slow, here and on the standby, with
# old snapshots, and from the beginning again and again; subscriptions are read
# by one consumer and by a group; others copy a table whose deletes expire.
#
# What each of them was delivered from a beginning on is all that had committed
# after it, in order and once, up to where it was refused (PF002).  What was
# refused had been removed.  A feed that is kept for its subscriptions, without
# a limit, loses none of their rows.
#
# FEEDPUB_CHECKER_SECONDS (default 10) and FEEDPUB_CHECKER_TRANSACTIONS
# (600): it goes on until both are reached, and for a third of that after the
# promotion.  FEEDPUB_CHECKER_WRITERS (2), FEEDPUB_CHECKER_SEED (1) decides what
# is done, though not when.  FEEDPUB_CHECKER_CRASHES (3).

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
require FeedpubRetentionChecker;

my %size = (seconds => 10, transactions => 600, writers => 2, crashes => 3, seed => 1);
for my $name (keys %size)
{
	my $given = $ENV{ 'FEEDPUB_CHECKER_' . uc $name };

	next if !defined $given || $given eq '';
	$given =~ /^\d+$/ or die "FEEDPUB_CHECKER_" . uc $name . " is no number";
	$size{$name} = $given;
}
# the promotion needs consumers that connect again, as a crash does
$size{crashes} ||= 1;
my $dir = PostgreSQL::Test::Utils::tempdir();

# The worker looks every 200 ms.
my $node = feedpub_node('retention', allows_streaming => 1, conf => <<"CONF");
log_statement = none
max_connections = 80
max_prepared_transactions = @{[ 5 * $size{writers} ]}
shared_buffers = 64MB
max_wal_size = 1GB
wal_keep_size = 1GB
feedpub.naptime = 20ms
feedpub.max_batch_transactions = 7
CONF
sql($node, <<'SQL' . FeedpubRetentionChecker->schema);
CREATE ROLE regress_feedpub_writer LOGIN BYPASSRLS;
CREATE ROLE regress_feedpub_reader LOGIN BYPASSRLS;
CREATE ROLE regress_feedpub_restricted LOGIN;
SQL
$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('retention_standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;

my $run = FeedpubRetentionChecker->run(%size, node => $node, standby => $standby, dir => $dir);

is("@{ $run->{failures} }", '', 'no process has failed')
  or BAIL_OUT('the checker did not finish');

#
# What there is
#
sub rows
{
	my ($query) = @_;

	return map { [ split /\|/, $_, -1 ] } split /\n/, sql($standby, $query);
}

my (%model, %xid_order);
for my $feed (qw(outbox kept))
{
	my @truth = rows("SELECT feed_xid, feed_pos, token, key, version FROM truth WHERE feed = '$feed' ORDER BY feed_xid, feed_pos");
	my @batches = rows("SELECT sync_id, snapshot FROM batches WHERE feed = '$feed' ORDER BY sync_id");
	my %batch;

	is(join(' ', map { $_->[0] } @batches), join(' ', 1 .. @batches), "$feed: each batch is known");
	$model{$feed} = [ FeedpubRetentionChecker->published_order(\@truth, \@batches) ];
	is(scalar @{ $model{$feed} }, scalar @truth, "$feed: each row is in a batch");
	%batch = map { @$_ } @{ $model{$feed} };
	$xid_order{$feed} = [ map { [ $_, $batch{$_} ] } map { "$_->[2] k$_->[3] $_->[4]" } @truth ];
}
my %present = map { (split / /, $_->[0])[0] => 1 } @{ $model{outbox} };
my ($committed, $aborted, $kinds) = FeedpubRetentionChecker->outcome($dir, 2 * $size{writers}, \%present);

is(scalar(grep { !$present{$_} } keys %$committed), 0, 'all rows that were committed are known');
is(scalar(grep { $present{$_} } keys %$aborted), 0, 'none that was rolled back');
is(scalar keys %present, scalar keys %$committed, 'and no others');
cmp_ok($run->{kills}{$_}, '>', 0, "$_ were killed") for sort keys %{ $run->{kills} };
is($run->{crashes}, $size{crashes}, 'the server was crashed as often as asked for');
diag sprintf 'retention: seed %d, %d rows; %s killed; %d crashes', $size{seed}, scalar keys %present,
  join(', ', map { "$run->{kills}{$_} $_" } sort keys %{ $run->{kills} }), $run->{crashes};

#
# What consumers were delivered
#
my %total = (refused => 0);

sub told
{
	my ($name, $count, @problems) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is(join('; ', @problems), '', $name);
	diag "retention: $name: ", join ', ', map { "$count->{$_} $_" } sort keys %$count;
	return;
}

for my $name (FeedpubRetentionChecker->readers)
{
	my $order = FeedpubRetentionChecker->order_of($name);
	my ($count, @problems) =
	  FeedpubRetentionChecker->judge($dir, $name, $order eq 'xid' ? $xid_order{outbox} : $model{outbox});

	told("$name, in $order order", $count, @problems);
	$total{refused} += $count->{refused};
}
cmp_ok($total{refused}, '>', 0, 'some were refused');

my @effects = rows('SELECT subscription, kind, token FROM effect ORDER BY n');
my %starts;
for (
	[ solo => 'kept', parks => 1 ],
	[ group => 'kept', parks => 1, by_key => 1 ],
	[ capped => 'outbox' ],
	[ fresh => 'outbox' ])
{
	my ($name, $feed, %options) = @$_;
	my @own = map { [ @$_[ 1, 2 ] ] } grep { $_->[0] eq $name } @effects;
	my ($starts, @problems) = FeedpubRetentionChecker->judge_effects(\@own, $model{$feed}, %options);

	$starts{$name} = $starts;
	told("subscription $name", { effects => scalar @own, starts => $starts }, @problems);
}
is("@starts{qw(solo group)}", '0 0', 'without a limit no subscription expires');
cmp_ok($starts{fresh}, '>', 0, 'one begins anew');

#
# Copies of the table
#
my @rows = rows('SELECT id, xid FROM gone ORDER BY id, xid');
my %batch_of = map { $_->[0] => $_->[1] } FeedpubRetentionChecker->published_order(
	[ map { [ $_->[1], 0, $_->[1], '', '' ] } sort { $a->[1] <=> $b->[1] } @rows ],
	[ rows("SELECT sync_id, snapshot FROM batches WHERE feed = 'thing' ORDER BY sync_id") ]);
%batch_of = map { /^(\d+)/ ? ($1 => $batch_of{$_}) : () } keys %batch_of;
my %deleted = map { $_->[0] > 1000 ? ($_->[0] => $batch_of{ $_->[1] }) : () } @rows;
my $table = sql($standby, q(SELECT string_agg(id || ' ' || version, ', ' ORDER BY id) FROM thing));

for my $name (FeedpubRetentionChecker->copiers)
{
	my ($copy, $count, @problems) = FeedpubRetentionChecker->judge_copy($dir, $name, \%deleted, \%batch_of);

	told("copy $name", $count, @problems);
	is(join(', ', map { "$_ $copy->{$_}" } sort { $a <=> $b } keys %$copy), $table, "$name: its copy equals the table");
	$total{refused_copies} += $count->{refused};
}

#
# What is removed in the end
#

# The rows that are there, or else those that are not, of those before or after
# the floor.
sub count_rows
{
	my ($feed, $there, $side) = @_;
	my $not_there = $there ? '' : 'NOT';
	my $after = $side eq 'after' ? 'NOT' : '';

	return <<"SQL";
(SELECT count(*) FROM truth t JOIN floors f ON f.feed = t.feed
WHERE t.feed = '$feed' AND $after pg_visible_in_snapshot(feed_xid, snapshot)
	AND $not_there EXISTS (SELECT FROM $feed o WHERE (o.feed_xid, o.feed_pos) = (t.feed_xid, t.feed_pos)))
SQL
}
sql($standby, q(LOAD 'feedpub'; ALTER SYSTEM SET feedpub.removal_rate = 0));
sql($standby, q(SELECT pg_reload_conf()));
for my $feed (qw(outbox kept))
{
	sql($standby, "SELECT feed_retain('$feed', '1 h')");
	cmp_ok(sql($standby, "SELECT sync_id FROM floors WHERE feed = '$feed'"), '>', 0, "$feed: the floor has moved");
	is_soon($standby, count_rows($feed, 1, 'before') . ' = 0', "$feed: what is before the floor is removed");
	is(sql($standby, 'SELECT ' . count_rows($feed, 0, 'after')), 0, "$feed: what is after it is there");
	sql($standby, "SELECT feed_retain('$feed', '0')");
}
sql($standby, q(SELECT feed_unsubscribe('capped'), feed_unsubscribe('fresh')));
is_soon($standby, 'NOT EXISTS (SELECT FROM outbox)', 'without a subscription all is removed');
is_soon($standby, 'NOT EXISTS (SELECT FROM kept)', 'what all have acknowledged is removed');

is(sql($standby, qq(SELECT * FROM feed_check('$_'))), '', "$_: all guards stand") for qw(outbox kept thing);
for ($node, $standby)
{
	unlike($_->log_content, qr/PANIC|CONTEXT:  publishing/, 'no worker has met an error');
	unlike($_->log_content, qr/terminated by signal (?!9\b)/, 'no process has crashed by itself');
}
$standby->stop;
done_testing();
