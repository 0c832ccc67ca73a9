# Failovers under load.  The primary is killed while writers update, delete and
# insert rows of a table feed; its standby is promoted, and is the primary of
# the next round.  Consumers of several page sizes keep a copy and a cursor
# each, and read from both.  After each failover they go on where they were; if
# a cursor is refused, they begin again with an empty copy.  At the end of each
# round every copy equals the table.
#
# By turns, the standby is synchronous; it is asynchronous; it has been cut off
# some milliseconds before, while consumers went on reading, a few pages late.
#
# FEEDPUB_FAILOVERS (default 3) is how many.  Lines tell how many consumers went
# back, and how many were refused.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $failovers = $ENV{FEEDPUB_FAILOVERS} || 3;
srand($ENV{FEEDPUB_CHECKER_SEED} || 1);

my @consumers = map { { name => "pages of $_", max_rows => $_, cursor => '', copy => {} } }
  3, 10, 30, 1000;
my @kinds = ('synchronous', 'asynchronous', 'cut off');
my $kind;
my %count = map { $_ => { consumers => 0, pages => 0, back => 0, refused => 0 } } @kinds;

# One page, with a connection of its own, which the server may not survive.
# Returns undef if it did not, else whether there may be more.
sub read_page
{
	my ($node, $consumer) = @_;
	my ($stdout, $stderr) = ('', '');
	my $status = $node->psql('postgres', <<"SQL", stdout => \$stdout, stderr => \$stderr);
\\set ON_ERROR_STOP 1
\\set VERBOSITY verbose
WITH page AS MATERIALIZED (SELECT feed_page('kv', '$consumer->{cursor}', $consumer->{max_rows}) AS p)
SELECT CASE WHEN n = 0 THEN concat_ws('|', p ->> 'cursor', p ->> 'more')
	ELSE concat_ws('|', e ->> 'op', e -> 'key' ->> 'k', e -> 'row' ->> 'v') END
FROM page, LATERAL (SELECT 0 AS n, NULL::json AS e UNION ALL
	SELECT * FROM (SELECT n, e FROM json_array_elements(p -> 'entries') WITH ORDINALITY x (e, n)) y) z
ORDER BY n
SQL
	if ($stderr =~ /ERROR:  PF001/)
	{
		@$consumer{qw(cursor copy)} = ('', {});
		$count{$kind}{refused}++;
		return 1;
	}
	return undef if $status != 0;

	my ($first, @entries) = split /\n/, $stdout;
	my ($cursor, $more) = split /\|/, $first;

	$count{$kind}{pages}++;
	$count{$kind}{back}++ if substr($cursor, 0, 25) lt substr($consumer->{cursor}, 0, 25);
	$consumer->{cursor} = $cursor;
	for (@entries)
	{
		my ($op, $k, $v) = split /\|/;

		$consumer->{copy}{$k} = $v if $op eq 'upsert';
		delete $consumer->{copy}{$k} if $op eq 'delete';
	}
	return $more eq 'true' || @entries > 0;
}

# Wait until so many more versions have been written.
sub wait_for_versions
{
	my ($node, $n) = @_;
	my $then = sql($node, 'SELECT last_value FROM version');

	$node->poll_query_until('postgres', "SELECT last_value >= $then + $n FROM version")
	  or die 'no writer writes';
	return;
}

sub copy
{
	my ($copy) = @_;

	return join ' ', map { "$_=$copy->{$_}" } sort keys %$copy;
}

my $conf = <<'CONF';
max_connections = 60
hot_standby = on
wal_receiver_status_interval = 1
wal_retrieve_retry_interval = 20ms
feedpub.max_batch_transactions = 20
CONF
my $primary = feedpub_node('server_0', allows_streaming => 1, conf => $conf);

sql($primary, <<'SQL');
CREATE TABLE kv (k int PRIMARY KEY, v int NOT NULL);
INSERT INTO kv SELECT k, 0 FROM generate_series(1, 100) k;
SELECT feed_attach('kv');
CREATE SEQUENCE version;
SQL

my $load = PostgreSQL::Test::Utils::tempdir() . '/load.sql';
append_to_file($load, <<'SQL');
\set k random(1, 130)
\set what random(1, 10)
\if :what < 3
DELETE FROM kv WHERE k = :k;
\else
INSERT INTO kv VALUES (:k, nextval('version')) ON CONFLICT (k) DO UPDATE SET v = EXCLUDED.v;
\endif
SQL

for my $round (1 .. $failovers)
{
	my $backup = "backup_$round";

	$kind = $kinds[ ($round - 1) % @kinds ];

	$primary->backup($backup);
	my $standby = PostgreSQL::Test::Cluster->new("server_$round");
	$standby->init_from_backup($primary, $backup, has_streaming => 1);
	$standby->start;
	$primary->wait_for_catchup($standby, 'replay');
	sql($primary, q(ALTER SYSTEM SET synchronous_standby_names = '*')), $primary->reload
	  if $kind eq 'synchronous';

	my $output = '';
	my $writers = IPC::Run::start(
		[ 'pgbench', '-n', '-c', '4', '-j', '2', '-T', '600', '-R', '300', '-f', $load, $primary->connstr('postgres') ],
		'>&', \$output);
	for my $turn (1 .. 6)
	{
		for my $consumer (@consumers)
		{
			my $node = rand() < 0.3 ? $standby : $primary;

			defined read_page($node, $consumer) or die 'a server is gone';
		}
	}

	# Then some do not read for a while.  If the standby is cut off, all that
	# comes is lost, and they pass rows of which it is the next version.
	wait_for_versions($primary, 150);
	if ($kind eq 'cut off')
	{
		$standby->stop;
		wait_for_versions($primary, 5 + int(rand(30)));
	}
	for my $turn (0 .. int(rand(2)))
	{
		read_page($primary, $_) for grep { rand() < 0.8 } @consumers;
	}
	$primary->stop('immediate');
	IPC::Run::finish($writers);

	if ($kind eq 'cut off')
	{
		$standby->append_conf('postgresql.conf', q(primary_conninfo = ''));
		$standby->start;
	}
	$standby->promote;
	$primary = $standby;

	# What consumers read now, before the new one publishes, counts too.
	read_page($primary, $_) for grep { rand() < 0.5 } @consumers;
	sql($primary, q(INSERT INTO kv VALUES (0, nextval('version')) ON CONFLICT (k) DO UPDATE SET v = EXCLUDED.v))
	  if rand() < 0.5;
	sql($primary, q(SELECT feed_flush('kv')));

	my $table = copy({ map { split /\|/ } split /\n/, sql($primary, 'SELECT k, v FROM kv') });

	for my $consumer (@consumers)
	{
		while (read_page($primary, $consumer)) { }
		is(copy($consumer->{copy}), $table, "failover $round, $kind: $consumer->{name}");
		$count{$kind}{consumers}++;
	}
}
for (@kinds)
{
	diag "checker: $_: $count{$_}{pages} pages; of $count{$_}{consumers} consumers"
	  . " $count{$_}{back} went back, $count{$_}{refused} were refused";
}
is($count{synchronous}{refused}, 0, 'with a synchronous standby none is refused');
$primary->stop;
done_testing();
