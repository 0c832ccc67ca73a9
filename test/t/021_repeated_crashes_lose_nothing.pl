# Writers that commit asynchronously and roll back often, a consumer that
# keeps its cursor elsewhere, and a server that crashes again and again:
# feed_fetch() delivers each committed row once, and none that a crash takes
# back.  The plain SQL query, under the same schedule, loses rows.
#
# FEEDPUB_CRASHES is the number of crashes each of them sees (default 6),
# FEEDPUB_SEED chooses how much the consumer reads before each.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $crashes = $ENV{FEEDPUB_CRASHES} // 6;
my $seed = $ENV{FEEDPUB_SEED} // 20;
my $script = PostgreSQL::Test::Utils::tempdir() . '/writer.sql';

srand($seed);
note "FEEDPUB_CRASHES=$crashes FEEDPUB_SEED=$seed";

my $node = feedpub_node('crashing', conf => <<'CONF');
synchronous_commit = off
wal_writer_delay = 10s
wal_writer_flush_after = 100MB
wal_buffers = 16MB
checkpoint_timeout = 1h
bgwriter_lru_maxpages = 0
full_page_writes = off
log_statement = none
CONF
sql($node, q(SELECT feed_create('by_plain_sql'), feed_create('by_feed_fetch')));

# What pgbench's clients do, about six transactions of ten rolled back.
sub write_script
{
	my ($feed) = @_;

	open my $fh, '>', $script or die;
	print $fh <<"SQL";
\\set dice random(1, 10)
BEGIN;
INSERT INTO $feed (message_type, data) VALUES ('A', '1');
\\if :dice > 6
INSERT INTO $feed (message_type, data) VALUES ('A', '2');
COMMIT;
\\else
ROLLBACK;
\\endif
SQL
	close $fh;
	return;
}

my %query = (
	by_plain_sql => <<'SQL',
SELECT feed_xid, feed_pos, message_id FROM by_plain_sql
WHERE (feed_xid, feed_pos) > ('%s', %s)
	AND feed_xid < pg_snapshot_xmin(pg_current_snapshot())
ORDER BY feed_xid, feed_pos LIMIT %d
SQL
	by_feed_fetch => <<'SQL');
SELECT feed_xid, feed_pos, message_id
FROM feed_fetch(NULL::by_feed_fetch, '%s', %s, %d)
SQL

my %result;
for my $feed (sort keys %query)
{
	my ($xid, $pos) = (0, 0);
	my %times;
	my $ordered = 1;
	my $read = sub {
		my ($session, $limit) = @_;
		my @page = split /\n/,
		  $session->query_safe(sprintf $query{$feed}, $xid, $pos, $limit);

		for (@page)
		{
			my ($x, $p, $id) = split /\|/;

			$ordered = 0 if $x < $xid || ($x == $xid && $p <= $pos);
			($xid, $pos) = ($x, $p);
			$times{$id}++;
		}
		return scalar @page;
	};

	# Has it read a row that is gone, and passed one that it has not read?
	my $wrong = sub {
		my %present = map { $_ => 1 } split /\n/,
		  sql($node, "SELECT message_id FROM $feed");

		return (grep { !$present{$_} } keys %times)
		  && (grep { !$times{$_} } split /\n/,
			sql($node, "SELECT message_id FROM $feed WHERE (feed_xid, feed_pos) <= ('$xid', $pos)"));
	};

	write_script($feed);
	sql($node, 'CHECKPOINT');
	# A crash takes back what the server had not flushed by itself; where it is
	# slow, that may be nothing, and plain SQL gets some more of them.
	for (my $round = 1;
		$round <= $crashes
		|| ($feed eq 'by_plain_sql' && $round <= 10 * $crashes && !$wrong->());
		$round++)
	{
		my $enough = 10 + int rand 60;
		my $count = 0;
		my ($out, $err) = ('', '');
		local $ENV{PGHOST} = $node->host;
		local $ENV{PGPORT} = $node->port;
		my $writers = IPC::Run::start(
			[
				'pgbench', '-n', '-c', 3, '-R', 300, '-T', 600,
				'-f', $script, 'postgres'
			],
			'<', \undef, '>', \$out, '2>', \$err);
		my $session = $node->background_psql('postgres');

		# To the end, where the rows are that a crash may take back: where the
		# machine is slow, the writers are ahead when the consumer begins.
		my $at_end = 0;

		while ($count < $enough || !$at_end)
		{
			my $limit = 1 + int rand 200;
			my $rows = $read->($session, $limit);

			$count += $rows;
			$at_end = $rows < $limit;
		}
		$session->quit;
		$node->stop('immediate');
		$writers->finish;
		$node->start;

		# before the consumer comes back
		sql($node,
			"INSERT INTO $feed (message_type, data) VALUES ('A', '3')")
		  for 1 .. 3;
	}
	my $session = $node->background_psql('postgres');
	1 while $read->($session, 100);
	$session->quit;

	my %present = map { $_ => 1 } split /\n/,
	  sql($node, "SELECT message_id FROM $feed");
	$result{$feed} = {
		rows => scalar keys %present,
		read => scalar keys %times,
		lost => scalar(grep { !$times{$_} } keys %present),
		gone => scalar(grep { !$present{$_} } keys %times),
		repeated => scalar(grep { $_ > 1 } values %times),
		ordered => $ordered
	};
	note "$feed: ",
	  join ', ', map { "$_ $result{$feed}{$_}" } sort keys %{ $result{$feed} };
}

my $plain = $result{by_plain_sql};
cmp_ok($plain->{lost}, '>', 0, 'plain SQL loses rows');
cmp_ok($plain->{gone}, '>', 0, 'plain SQL reads rows that a crash takes back');

my $ours = $result{by_feed_fetch};
cmp_ok($ours->{rows}, '>=', 13 * $crashes, 'feed_fetch: rows stay in the feed');
is($ours->{lost}, 0, 'feed_fetch loses none of them');
is($ours->{gone}, 0, 'feed_fetch reads none that a crash takes back');
is($ours->{repeated}, 0, 'feed_fetch reads none twice');
ok($ours->{ordered}, 'feed_fetch reads in order');
is($ours->{read}, $ours->{rows}, 'feed_fetch reads what there is');

$node->stop;
done_testing();
