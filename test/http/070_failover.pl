# A primary and a standby: reads and waits of clients go on through a failover,
# and miss nothing.  A server that takes no connections: 503, or a stream that
# is closed.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubHttp;
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = feedpub_node('primary', allows_streaming => 1,
	conf => "shared_preload_libraries = 'feedpub'\nmax_connections = 20\n");
sql($primary, <<'SQL');
CREATE ROLE regress_feedpub_login LOGIN;
SELECT feed_create('outbox', 'json'), feed_start_worker();
GRANT SELECT, INSERT ON outbox TO regress_feedpub_login;
INSERT INTO outbox (message_type, data) SELECT 'A', to_json(i) FROM generate_series(1, 5) i;
SELECT feed_flush('outbox');
SQL
$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->start;

my %both = (host => join(',', map { $_->host } $primary, $standby),
	port => join(',', map { $_->port } $primary, $standby));
my $http = http_start(undef, user => 'regress_feedpub_login', heartbeat => 1,
	database => "host=$both{host} port=$both{port} dbname=postgres user=regress_feedpub_login");
my $stream = send_request($http, '/feeds/outbox', Accept => 'text/event-stream');
my $seen = read_until($stream, qr/"data":5\b/);
my ($last) = $seen =~ /.*^id: ([-\w]+)$/ms;
my $poll = send_request($http, "/feeds/outbox?after=$last&wait=60");
metric_is($http, 'waiting', 2, 'a stream and a long-poll wait');

# Publishes a number, and waits until the standby has it.
sub publish
{
	my ($node, $number) = @_;

	sql($node, "INSERT INTO outbox (message_type, data) VALUES ('A', '$number')");
	sql($node, "SELECT feed_flush('outbox')");
	$node->wait_for_replay_catchup($standby) if $node == $primary;
	return;
}

# The messages after a cursor, read until there is this one.
sub read_after
{
	my ($cursor, $number) = @_;
	my $tries = 20 * $PostgreSQL::Test::Utils::timeout_default;
	my @got;

	while (!grep({ $_ == $number } @got) && $tries-- > 0)
	{
		my $page = get($http, "/feeds/outbox?after=$cursor&wait=5");

		# clients come again after a 503
		if ($page->{status} != 200)
		{
			die $page->{content} if $page->{status} != 503 || !$page->{headers}{'retry-after'};
			select undef, undef, undef, 0.05;
			next;
		}
		push @got, map { $_->{row}{data} } @{ $page->{json}{entries} };
		$cursor = $page->{cursor};
	}
	return "@got";
}

# the primary stops
publish($primary, 6);
like(read_until($poll, qr/"more": /), qr/"data":6\b/, 'a long-poll on the primary');
$primary->stop;
is(read_after($last, 6), '6', 'reads go to the standby');
metric_is($http, 'waiting', 1, 'the stream still waits');
my $append = HTTP::Tiny->new->post("$http->{url}/streams/outbox",
	{ headers => { 'Content-Type' => 'application/json' }, content => '[{"data": 0}]' });
is("$append->{status} @{ $append->{headers} }{'retry-after'}", '503 1', 'a write is to come again');
my $empty = get($http, '/feeds/outbox?limit=100')->{cursor};
$poll = send_request($http, "/feeds/outbox?after=$empty&wait=60");
metric_is($http, 'waiting', 2, 'a long-poll on the standby');
like(read_until($stream, qr/"data":6\b/), qr/"data":6\b/, 'the stream has what was published before');

# the standby is promoted
$standby->promote;
sql($standby, 'SELECT feed_start_worker()');
publish($standby, 7);
like(read_until($poll, qr/"more": /), qr/"data":7\b/, 'a long-poll over the promotion');
like(read_until($stream, qr/"data":7\b/), qr/"data":7\b/, 'a stream too');
is(read_after($last, 7), '6 7', 'there is no gap');
publish($standby, 8);
like(read_until($stream, qr/"data":8\b/), qr/"data":8\b/, 'and it goes on');

# the new primary has no connections left, then pg_hba.conf refuses
my $hba = $standby->data_dir . '/pg_hba.conf';
my $allows = slurp_file($hba);
for my $refusal ([ 'too many connections', "ALTER ROLE regress_feedpub_login CONNECTION LIMIT 0",
		"ALTER ROLE regress_feedpub_login CONNECTION LIMIT -1" ], ['pg_hba.conf'])
{
	my ($test, $refuse, $allow) = @$refusal;

	if ($refuse)
	{
		sql($standby, $refuse);
	}
	else
	{
		open my $handle, '>', $hba or die $!;
		print $handle "local all regress_feedpub_login reject\nhost all regress_feedpub_login all reject\n$allows";
		close $handle;
		$standby->reload;
	}
	sql($standby, "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = 'regress_feedpub_login'");
	my $response = get($http, '/feeds');
	is("$response->{status} $response->{headers}{'retry-after'}", '503 1', $test);
	if ($refuse)
	{
		sql($standby, $allow);
	}
	else
	{
		open my $handle, '>', $hba or die $!;
		print $handle $allows;
		close $handle;
		$standby->reload;
	}
	is(read_after($last, 8), '6 7 8', "$test: until it is allowed");
}
is(http_stop($http), 0, 'the server has not ended by itself');

done_testing();
