# Writers that commit asynchronously and roll back often, a consumer of the
# published order that keeps its cursor elsewhere, and a server that crashes
# again and again: each committed row comes once, none that was delivered is
# gone after a crash, and the cursor goes on.  So it does when batches
# themselves are written asynchronously (feedpub.publish_synchronous_commit).
#
# FEEDPUB_CRASHES is the number of crashes each of them sees (default 6),
# FEEDPUB_SEED chooses how much the consumer reads before each.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubPublished;
use FeedpubTest;
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $crashes = $ENV{FEEDPUB_CRASHES} // 6;
my $seed = $ENV{FEEDPUB_SEED} // 20;
my $script = PostgreSQL::Test::Utils::tempdir() . '/writer.sql';

srand($seed);
note "FEEDPUB_CRASHES=$crashes FEEDPUB_SEED=$seed";

# Nothing writes WAL to disk unless it is asked to.
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

# About half of the transactions are rolled back.
sub write_script
{
	my ($feed) = @_;

	open my $fh, '>', $script or die;
	print $fh <<"SQL";
\\set dice random(1, 10)
BEGIN;
INSERT INTO $feed (message_type, data) VALUES ('A', '1');
\\if :dice > 5
INSERT INTO $feed (message_type, data) VALUES ('A', '2');
COMMIT;
\\else
ROLLBACK;
\\endif
SQL
	close $fh;
	return;
}

for my $commit (qw(on off))
{
	my $feed = "published_$commit";
	my $cursor = '';
	my %times;
	my @order;
	my $disordered = 0;

	# Takes part of the page only: every row's cursor is one to go on from.
	my $read = sub {
		my ($session, $limit) = @_;
		my @page = split /\n/, $session->query_safe(<<"SQL");
SELECT cursor, op, (entry).message_id FROM feed_read(NULL::$feed, '$cursor', $limit)
SQL
		my $count = 0;

		splice @page, 1 + int rand @page if @page && rand() < 0.3;
		for (@page)
		{
			my ($after, $op, $id) = split /\|/, $_, 3;

			$disordered++ if $after le $cursor;
			$cursor = $after;
			next if $op ne 'upsert';
			$times{$id}++;
			push @order, $id;
			$count++;
		}
		return $count;
	};

	sql($node, "SELECT feed_create('$feed')");
	$node->append_conf('postgresql.conf',
		"feedpub.publish_synchronous_commit = $commit");
	$node->reload;
	write_script($feed);
	sql($node, 'CHECKPOINT');
	for my $round (1 .. $crashes)
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

		$count += $read->($session, 1 + int rand 20) while $count < $enough;
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
	sql($node, 'SELECT feed_start_worker()');
	ok(await_published($node, $feed), "$feed: all is published");
	1 while $read->($session, 100);
	$session->quit;

	my %present = map { $_ => 1 } split /\n/,
	  sql($node, "SELECT message_id FROM $feed");
	my %result = (
		lost => scalar(grep { !$times{$_} } keys %present),
		gone => scalar(grep { !$present{$_} } keys %times),
		repeated => scalar(grep { $_ > 1 } values %times),
		disordered => $disordered
	);
	is_deeply(
		\%result,
		{ lost => 0, gone => 0, repeated => 0, disordered => 0 },
		"$feed: nothing lost, gone, repeated or out of order");
	cmp_ok(scalar keys %present, '>=', 13 * $crashes,
		"$feed: there are rows enough");
	is( sql($node,
			"SELECT (entry).message_id FROM feed_read(NULL::$feed, '', 10000)"),
		join("\n", @order),
		"$feed: from the beginning it is the same order");
	note "$feed: ", scalar(@order), ' rows, ', batches($node, $feed),
	  ' batches';
}

unlike($node->log_content, qr/CONTEXT:  publishing/,
	'no worker has met an error');
$node->stop;
done_testing();
