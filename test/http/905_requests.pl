# Requests of all kinds, one after another: the memory of the process stays what
# it was.  Four thousand, or 200,000 if FEEDPUB_HTTP_LONG is set.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubHttp;
use FeedpubTest;
use HTTP::Tiny;
use IO::Select;
use IO::Socket::INET;
use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;

my $TOTAL = $ENV{FEEDPUB_HTTP_LONG} ? 200000 : 4000;
my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'");

sql($node, <<'SQL');
SELECT feed_create('outbox', 'text'), feed_create('empty'), feed_create('target', 'text'), feed_start_worker();
CREATE TABLE kv (k text PRIMARY KEY, v text);
SELECT feed_attach('kv');
INSERT INTO outbox (message_type, data) SELECT 'A', repeat('x', 100) FROM generate_series(1, 200);
INSERT INTO kv SELECT i, 'v' FROM generate_series(1, 200) i;
SELECT feed_flush('outbox'), feed_flush('kv'), feed_subscribe('mail', 'outbox', 'earliest');
SQL
my $http = http_start($node, max_wait => 1, heartbeat => 1);
my $page = get($http, '/feeds/outbox?limit=10');
my $cursor = $page->{cursor};
my $head = get($http, '/feeds/empty')->{cursor};
my $foreign = get($http, '/feeds/kv?limit=10')->{cursor};

# What is sent, and the status that it gets.  Of some each is another one, so
# that nothing that is made for them may stay.
my $n = 0;
my @kinds = (
	[ 200, sub { "GET /feeds/outbox?after=$cursor&limit=" . (1 + $n % 100) } ],
	[ 200, sub { "GET /feeds/kv?begin=$n&limit=10" } ],
	[ 307, sub { "GET /feeds/outbox?limit=$n" } ],
	[ 304, sub { "GET /feeds/outbox?after=$cursor&limit=10", "If-None-Match: *" } ],
	[ 200, sub { "GET /feeds/outbox?after=$cursor", 'Accept: application/x-ndjson' } ],
	[ 200, sub { "GET /feeds/outbox?lastEventId=$cursor", 'Accept: application/cloudevents-batch+json' } ],
	[ 200, sub { "GET /streams/outbox?offset=$cursor&limit=10" } ],
	[ 200, sub { 'GET /feeds' } ],
	[ 200, sub { 'GET /openapi.yaml' } ],
	[ 200, sub { 'GET /subscriptions/mail' } ],
	[ 204, sub { 'OPTIONS /feeds' } ],
	[ 404, sub { "GET /nothing/$n" } ],
	[ 404, sub { "GET /feeds/none$n?begin=1" } ],
	[ 404, sub { "GET /streams/none$n" } ],
	[ 405, sub { "DELETE /feeds/outbox" } ],
	[ 406, sub { "GET /feeds/outbox", "Accept: image/$n" } ],
	[ 400, sub { "GET /feeds/outbox?after=$n" } ],
	[ 410, sub { "GET /feeds/outbox?after=$foreign" } ]);

# Sends a hundred, and reads as many answers.
my %wrong;
sub some_requests
{
	my @expected;
	my $text = '';

	for (1 .. 100)
	{
		my ($status, $what) = @{ $kinds[ $n++ % @kinds ] };
		my ($line, @headers) = $what->();

		$text .= join "\r\n", "$line HTTP/1.1", 'Host: localhost', "X-Padding: " . 'a' x ($n % 2000), @headers, '', '';
		push @expected, $status;
	}
	my $socket = IO::Socket::INET->new(
		PeerAddr => '127.0.0.1',
		PeerPort => $http->{port}) or die "could not connect: $!";

	# the server closes after the last one
	my $pid = fork // die "could not fork: $!";
	if (!$pid)
	{
		print $socket $text, "GET /the-end HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
		$socket->flush;
		POSIX::_exit(0);
	}
	my $answers = '';
	1 while IO::Select->new($socket)->can_read($PostgreSQL::Test::Utils::timeout_default)
	  && sysread $socket, $answers, 1024 * 1024, length $answers;
	waitpid $pid, 0;
	my @got = $answers =~ /HTTP\/1\.1 (\d+) /g;
	push @expected, 404;
	return if "@got" eq "@expected";
	$wrong{"@got"}++;
	return;
}

# Others that end in another way: bodies, waits whose clients go, streams that
# are left, requests that are none.
sub others
{
	my $post = HTTP::Tiny->new->post("$http->{url}/streams/target",
		{ headers => { 'Content-Type' => 'text/plain' }, content => 'a' x ($n % 50000 + 1) });

	$wrong{"append $post->{status}"}++ if $post->{status} != 204;
	for my $request ("GET /feeds/empty?after=$head&wait=1", "GET /feeds/outbox?limit=$n&after=",
		"GET /feeds/outbox?after=$head")
	{
		my $client = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $http->{port}) or die;

		print $client "$request HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream, application/json;q=0.5\r\n\r\n";
		$client->flush;
	}
	for my $nonsense ("GET /feeds HTTP/1.1\r\n", "nonsense $n\r\n\r\n", "GET /feeds HTTP/1.1\r\nX\r\n\r\n",
		"POST /streams/target HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc")
	{
		my $client = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $http->{port}) or die;

		print $client $nonsense;
		$client->flush;
	}
	$n += 8;
	return;
}

sub memory { return slurp_file("/proc/$http->{pid}/status") =~ /^VmRSS:\s*(\d+) kB$/m ? $1 : die 'no VmRSS' }

my @memory;
$SIG{PIPE} = 'IGNORE';
for my $quarter (1 .. 4)
{
	while ($n < $TOTAL * $quarter / 4)
	{
		some_requests();
		others();
	}
	metric_is($http, 'connections', 0, "$n requests: all connections are closed");
	metric_is($http, 'waiting', 0, 'nothing waits');
	push @memory, memory();
}
note "memory after each quarter: @memory kB";
is_deeply(\%wrong, {}, 'each has its answer');
cmp_ok($memory[3] - $memory[0], '<', 1024, 'memory stays what it was');
is(http_stop($http), 0, 'the server ends');

done_testing();
