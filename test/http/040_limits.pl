# Limits: of what a client sends, how long it takes, and how many there are.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubHttp;
use FeedpubTest;
use IO::Socket::INET;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes 'time';

my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'");

sql($node, <<'SQL');
SELECT feed_create('outbox', 'text'), feed_start_worker();
INSERT INTO outbox (message_type, data)
	SELECT 'A', repeat('x', 100000) FROM generate_series(1, 200);
SELECT feed_flush('outbox');
SQL
my $http = http_start($node, idle_timeout => 3600, pool => 1);

$SIG{PIPE} = 'IGNORE';

# A connection on which this has been sent.
sub raw
{
	my ($text) = @_;
	my $socket = IO::Socket::INET->new(
		PeerAddr => '127.0.0.1',
		PeerPort => $http->{port}) or die "could not connect: $!";

	syswrite $socket, $text if length $text;
	return $socket;
}

# Tests the status line of what comes.
sub answers
{
	my ($text, $status, $test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	return like(read_until(raw($text), qr/\r\n\r\n/),
		qr/^HTTP\/1\.[01] $status /, $test);
}

my $host = "Host: localhost\r\n";
answers("GET /feeds?" . 'a' x 10000 . " HTTP/1.1\r\n$host\r\n", 414, 'a long URL');
answers("GET /feeds HTTP/1.1\r\n${host}X-Long: " . 'a' x 10000 . "\r\n\r\n",
	431, 'long headers');
answers("GET /feeds HTTP/1.1\r\n\r\n", 400, 'no Host');
answers("GET /feeds HTTP/1.0\r\n\r\n", 200, 'HTTP/1.0 needs none');
answers("GET http://localhost/feeds HTTP/1.1\r\n$host\r\n", 200, 'an absolute URL');
answers("GET http://localhost HTTP/1.1\r\n$host\r\n", 200, 'one without a path');
answers("PUT /feeds HTTP/1.1\r\n$host\r\n", 405, 'another method');
answers("BREW /feeds HTTP/1.1\r\n$host\r\n", 501, 'one that there is not');
answers("GET /feeds HTTP/1.1\r\n${host}Content-Length: 2000000\r\n\r\n"
	  . 'a' x 2000000, 413, 'a large body');
answers("GET /feeds HTTP/1.1\r\n${host}Transfer-Encoding: chunked\r\n\r\n"
	  . "5\r\nabcde\r\n0\r\n\r\n", 200, 'a chunked body');
answers("GET /feeds HTTP/1.1\r\n${host}Transfer-Encoding: chunked\r\n\r\nx\r\n",
	400, 'a malformed one');
answers("GET /feeds/outbox%00 HTTP/1.1\r\n$host\r\n", 400, 'a NUL in the path');

my $pipelined = raw("GET /feeds HTTP/1.1\r\n$host\r\n" x 5);
my $text = read_until($pipelined, qr/(HTTP\/1.1 200.*){5}\}\s*$/s);
is(scalar(() = $text =~ /HTTP\/1\.1 200 OK\r/g), 5, 'pipelined requests');

my $head = raw("HEAD /feeds/outbox?limit=1 HTTP/1.1\r\n${host}Accept: text/event-stream\r\n\r\n"
	  . "GET /feeds HTTP/1.1\r\n$host\r\n");
like(read_until($head, qr/"feeds"/),
	qr/^HTTP\/1\.1 200 OK.*?text\/event-stream.*?\r\n\r\nHTTP\/1\.1 200 OK/s,
	'HEAD of an event stream ends');
like(read_until(raw("GET /feeds/outbox HTTP/1.0\r\nAccept: text/event-stream\r\n\r\n"), qr/\ndata: /),
	qr/text\/event-stream.*\r\n\r\nretry/s, 'an event stream over HTTP/1.0');

# clients that take nothing
my @takes_nothing = map { "GET /feeds/outbox HTTP/1.1\r\n${host}Accept: $_\r\n\r\n" } 'application/x-ndjson', 'text/event-stream';
my @stuck = map { raw($_) } @takes_nothing;
my $byte;
sysread $_, $byte, 1 for @stuck;
is(get($http, '/feeds')->{status}, 200, 'clients that take nothing hold no connection of the pool');
@stuck = ();
http_stop($http);

# slow clients: they have two seconds.  If the machine stands still, one that
# sends at once is late too, and comes again.
$http = http_start($node, idle_timeout => 2, pool => 1);

sub is_timeout
{
	my ($text, $status, $test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $response = '';

	for (1 .. 10)
	{
		my $began = time;
		my $socket = raw($text);
		my $is_late = time - $began > 1;

		$response = read_until($socket, qr/(?!)/);
		last if $response ne '' && !$is_late;
	}
	like($response, qr/^HTTP\/1\.1 $status .*\nContent-Type: application\/problem\+json\r\n.*\nConnection: close\r\n.*"status": $status,/s, $test);
	return;
}

is_timeout("GET /feeds HTTP/1.1\r\n", 408, 'a client that does not end its headers is told');
is_timeout("POST /streams/outbox HTTP/1.1\r\n${host}Content-Length: 2\r\n\r\na", 408, 'nor its body');
is_timeout("POST /streams/outbox HTTP/1.1\r\n${host}Content-Length: 1099511627776\r\n\r\n" . 'a' x 2000000,
	413, 'nor one that is too large');
is(read_until(raw(''), qr/(?!)/), '', 'one that sends nothing is dropped');
my $slow = raw("GET /feeds HTTP/1.1\r\n");
my $closed = 0;
for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
{
	# each byte is traffic, but the request does not end
	syswrite $slow, 'X' or $closed = 1;
	last if $closed;
	select undef, undef, undef, 0.1;
}
is($closed, 1, 'a client that does not end its request is dropped');
@stuck = map { raw($_) } @takes_nothing;
sysread $_, $byte, 1 for @stuck;
metric_is($http, 'connections', 0, 'and those that take nothing');
http_stop($http);

# many clients
$http = http_start($node, max_connections => 3, pool => 1);
my @open = map { raw('') } 1 .. 3;
metric_is($http, 'connections', 3, 'as many connections as there may be');
my $refused = get($http, '/feeds');
is($refused->{status}, 503, 'one more is refused');
is($refused->{headers}{'retry-after'}, 1, 'for now');
@open = ();
metric_is($http, 'connections', 0, 'they go');
is(get($http, '/feeds')->{status}, 200, 'and others can come');
http_stop($http);

$http = http_start($node, max_connections_per_address => 2, pool => 1);
@open = map { raw('') } 1 .. 2;
metric_is($http, 'connections', 2, 'as many as one address may have');
is(read_until(raw("GET /feeds HTTP/1.1\r\n$host\r\n"), qr/\n/),
	'', 'one more is closed');
@open = ();
metric_is($http, 'connections', 0, 'they go');
is(get($http, '/feeds')->{status}, 200, 'and others can come');
http_stop($http);

# open files
my $limited = PostgreSQL::Test::Cluster::get_free_port();
my $pid = fork // die "could not fork: $!";
if (!$pid)
{
	exec 'sh', '-c', "ulimit -n 300; exec '$FindBin::RealBin/../../http/feedpub-http' "
	  . "--anonymous-role=postgres --listen=127.0.0.1:$limited 2> '$http->{log}.few'";
}
my $tries = 20 * $PostgreSQL::Test::Utils::timeout_default;
select undef, undef, undef, 0.05
  while (!-e "$http->{log}.few" || slurp_file("$http->{log}.few") !~ /ready/) && $tries-- > 0;
like(slurp_file("$http->{log}.few"), qr/level=error message="could not have 10000 connections, but \d+: the limit of open files is 300/,
	'too few open files');
kill 'TERM', $pid;
waitpid $pid, 0;

done_testing();
