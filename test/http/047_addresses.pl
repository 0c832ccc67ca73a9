# What else may stand in a request or an address: IPv6, names that are none,
# numbers that are none, tokens where none are taken.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubHttp;
use FeedpubTest;
use HTTP::Tiny;
use IO::Socket::IP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Socket;
use Test::More;

my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'");

sql($node, <<'SQL');
SELECT feed_create('outbox', 'text'), feed_start_worker();
INSERT INTO outbox (message_type, data) VALUES ('A', 'x');
SELECT feed_flush('outbox');
SQL
my $http = http_start($node);

sub is_problem
{
	my ($method, $path, $status, $detail, %headers) = @_;
	my $response = HTTP::Tiny->new->request($method, "$http->{url}$path",
		{ headers => { 'Content-Type' => 'text/plain', %headers }, $method eq 'POST' ? (content => 'x') : () });

	like("$response->{status} $response->{headers}{'content-type'} $response->{content}",
		qr/^$status application\/problem\+json .*\Q$detail\E/s, "$method $path");
	return;
}

is_problem('GET', "/feeds/outbox?begin=1&$_", 400, 'must be numbers')
  for 'shard=x&shards=2', 'shard=0&shards=0', 'shard=-1&shards=2', 'shard=0&shards=99999999999';
is_problem('GET', '/feeds/outbox?begin=1&shard=0', 400, 'needed both');
is_problem('GET', '/feeds/outbox', 401, 'this server takes no tokens', Authorization => 'Bearer x.y.z');
is_problem('POST', '/streams/none', 404, 'does not exist');
is_problem('POST', '/streams/a.b.c.d', 404, 'too many dotted names');
is_problem('POST', "/$_", 400, 'not percent-encoded correctly') for 'streams/%zz', 'subscriptions/%zz/poll';
is(sql($node, 'SELECT count(*) FROM outbox'), 1, 'nothing is made');
http_stop($http);

SKIP:
{
	my $port = PostgreSQL::Test::Cluster::get_free_port();

	skip 'no IPv6', 2 if !IO::Socket::IP->new(LocalHost => '::1', LocalPort => $port, Listen => 1, ReuseAddr => 1);
	$http = http_start($node, listen => "[::1]:$port", max_connections_per_address => 1);
	my @sockets = map { IO::Socket::IP->new(PeerHost => '::1', PeerPort => $port) // die "$!" } 1 .. 2;
	my $request = "GET /feeds/outbox?begin=1 HTTP/1.1\r\nHost: [::1]:$port\r\n\r\n";

	syswrite $sockets[0], $request;
	like(read_until($sockets[0], qr/"more"/), qr/^HTTP\/1\.1 200 .*"entries"/s, 'IPv6');
	syswrite $sockets[1], $request;
	is(read_until($sockets[1], qr/\n/), '', 'whose addresses are counted, too');
	http_stop($http);
}
done_testing();
