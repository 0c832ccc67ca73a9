# The alerts of examples/monitoring on feedpub-http: each is raised by what it is
# there for; rules, dashboard and reference name what /metrics has.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubAlerts;
use FeedpubHttp;
use FeedpubTest;
use PostgreSQL::Test::Utils;
use Socket;
use Test::More;

my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'");
my @alerts = alerts('feedpub-programs');
my $top = "$FindBin::RealBin/../..";

sql($node, <<'SQL');
SELECT feed_create('outbox', 'text'), feed_start_worker();
INSERT INTO outbox (message_type, data) SELECT 'A', repeat('x', 1000000) FROM generate_series(1, 30);
SELECT feed_flush('outbox');
SQL
my $http = http_start($node, pool => 1, max_memory => 16);
my $before;
sub now { return scraped('feedpub-http' => $http->{admin}) }
sub is_raised { return await_raised(\&now, $before, \@alerts, @_) }

# What /metrics has
uses_only('feedpub_http', now(),
	(map { $_->{alert} => $_->{expr} } @alerts),
	map { $_ => slurp_file("$top/$_") } qw(examples/monitoring/programs.json docs/operations.md docs/reference.md));

# Errors
$before = now();
get($http, '/feeds') for 1 .. 5;
is_raised('', 'all is well: no alert');
$before = now();
$node->stop;
is_raised('FeedpubProgramWithoutDatabase', 'without a database');
get($http, '/feeds');
is_raised("FeedpubProgramWithoutDatabase\nFeedpubHttpErrors", 'which is needed');
$node->start;
is_raised('FeedpubHttpErrors', 'it is there again');
get($http, '/feeds') for 1 .. 11;
is_raised('', 'an error in more than ten responses');

# Clients that take nothing
my @cursors = split /\n/, sql($node, q(SELECT cursor FROM feed_read(NULL::outbox)));
my @clients = map {
	socket my $client, PF_INET, SOCK_STREAM, 0 or die "$!";
	setsockopt $client, SOL_SOCKET, SO_RCVBUF, 4096 or die "$!";
	connect $client, pack_sockaddr_in($http->{port}, INADDR_LOOPBACK) or die "$!";
	syswrite $client, "GET /feeds/outbox?limit=1000&after=$_ HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n" or die "$!";
	$client
} @cursors[ 0 .. 5 ];
is_raised('FeedpubHttpDropped', 'event streams that are too slow');

@clients = ();
metric_is($http, 'connections', 0, 'they go');
is(http_stop($http), 0, 'it ends');
is(raised(now(), {}, @alerts), 'FeedpubProgramDown', 'a program that does not run');

done_testing();
