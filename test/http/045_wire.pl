# Bytes: a request has one meaning or is refused, its size does not decide
# whether it is answered, and each error is problem+json.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubHttp;
use FeedpubTest;
use IO::Socket::INET;
use JSON::PP;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'");

sql($node, "SELECT feed_create('outbox', 'text'), feed_start_worker()");
my $http = http_start($node, idle_timeout => 120, heartbeat => 3600);
my $host = "Host: localhost\r\n";

# A connection on which this has been sent.
sub raw
{
	my ($text) = @_;
	my $socket = IO::Socket::INET->new(
		PeerAddr => '127.0.0.1',
		PeerPort => $http->{port}) or die "could not connect: $!";

	syswrite $socket, $text;
	return $socket;
}

# What comes until the server closes.
sub all_of { return read_until(raw($_[0]), qr/(?!)/) }

# The request is refused: by this status, in problem+json, and nothing after it
# is taken for a request.
sub is_refused
{
	my ($text, $status, $test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $response = all_of("${text}GET /feeds?smuggled HTTP/1.1\r\n$host\r\n");
	my ($head, $body) = split /\r\n\r\n/, $response, 2;

	like($head // '', qr/^HTTP\/1\.1 $status /, $test);
	like($head // '', qr/^Content-Type: application\/problem\+json\r?$/m, 'in problem+json');
	my $problem = eval { decode_json($body // '') } // {};
	is($problem->{status}, $status, 'which is whole, and the last');
	return;
}

# An append, with a header of so many bytes.
sub append
{
	my ($size) = @_;
	my $padding = $size > 0 ? 'X-Padding: ' . 'a' x $size . "\r\n" : '';

	return "POST /streams/outbox HTTP/1.1\r\n${host}Content-Type: text/plain\r\n"
	  . "Connection: close\r\n${padding}Content-Length: 1\r\n\r\nA";
}

# An append that is committed has been answered, whatever its size.
my %answers;
my $sizes = 0;
for my $size (grep { ($_ > 3300 && $_ < 4200) || $_ > 7300 } map { $_ * 40 } 80 .. 205)
{
	my ($status) = all_of(append($size)) =~ /^HTTP\/1\.1 (\d+) /;

	$answers{ $status // 'none' }++;
	$sizes++;
}
is_deeply([ sort keys %answers ], ['204'], 'appends with 3 to 8 kB of headers are answered')
  or note explain \%answers;
is(sql($node, 'SELECT count(*) FROM outbox'), $sizes, 'and made');
for my $size (3600, 3800, 3900, 4000, 7400, 7600, 7800, 8000)
{
	for my $path ('/feeds', '/feeds/outbox', '/feeds/outbox?begin=1', '/streams/outbox?offset=-1',
		'/subscriptions/none', '/feeds/none')
	{
		my $text = all_of("GET $path HTTP/1.1\r\n${host}Connection: close\r\n"
			  . 'Cookie: ' . 'a' x $size . "\r\n\r\n");

		$answers{gets}++ if $text =~ /^HTTP\/1\.1 (200|307|404) .*\r\n\r\n/s;
	}
}
is($answers{gets}, 48, 'and so is each GET');
is_refused(append(10000), 431, 'headers of 10 kB');
is_refused("GET /feeds/" . 'a' x 10000 . " HTTP/1.1\r\n$host\r\n", 414, 'a URL of 10 kB');
is_refused("GET /?" . '&' x 256 . " HTTP/1.1\r\n$host\r\n", 414, '257 arguments');
is_refused("GET / HTTP/1.1\r\n$host" . "a:\r\n" x 256 . "\r\n", 431, '257 headers');
for my $more (0, 1)
{
	# line breaks are not counted
	my $rest = 9216 + $more - length 'GET /feeds HTTP/1.1Host: localhostConnection: closeX: ';
	my $text = all_of("GET /feeds HTTP/1.1\r\n${host}Connection: close\r\nX: " . 'a' x $rest . "\r\n\r\n");

	like($text, $more ? qr/^HTTP\/1\.1 431 / : qr/^HTTP\/1\.1 200 /, 'a head of 9216 bytes' . ($more ? ', and one more' : ''));
}
for my $more (0, 1)
{
	my $size = 1024 * 1024 + $more;

	for my $body ("Content-Length: $size\r\n\r\n" . 'a' x $size,
		sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", $size, 'a' x $size))
	{
		like(all_of("POST /streams/outbox HTTP/1.1\r\n${host}Content-Type: text/plain\r\nConnection: close\r\n$body"),
			$more ? qr/^HTTP\/1\.1 413 / : qr/^HTTP\/1\.1 204 /, 'a body of a MiB' . ($more ? ', and one more byte' : ''));
	}
}
$sizes += 2;
is(sql($node, 'SELECT count(*) FROM outbox'), $sizes, 'what is too large is not made');

# one meaning
my $post = "POST /streams/outbox HTTP/1.1\r\n${host}Content-Type: text/plain\r\n";
is_refused("${post}Content-Length: 1\r\nContent-Length: 5\r\n\r\nA", 400, 'two lengths');
is_refused("${post}Content-Length: +1\r\n\r\nA", 400, 'a length with a sign');
is_refused("${post}Content-Length: 1, 1\r\n\r\nA", 400, 'a list of lengths');
is_refused("${post}Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, 'a length and a coding');
is_refused("${post}Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", 400, 'or the other way round');
is_refused("${post}Transfer-Encoding: gzip\r\n\r\nA", 501, 'another coding');
is_refused("${post}Transfer-Encoding: gzip, chunked\r\n\r\n1\r\nA\r\n0\r\n\r\n", 501, 'two of them');
is_refused("${post}Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", 501, 'in two headers');
is_refused("${post}Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nA\r\n0\r\n\r\n", 400, 'a chunk of an overlong size');
is_refused("${post}Transfer-Encoding: chunked\r\n\r\n1\nA\n0\n\n", 400, 'chunks with bare LFs');
is_refused("${post}Transfer-Encoding: chunked\r\n\r\n1\r\nAxx0\r\n\r\n", 400, 'a chunk that is longer than it says');
is_refused("GET /feeds HTTP/1.1\r\n${host}Host: other\r\n\r\n", 400, 'two hosts');
is_refused("GET /feeds HTTP/1.1\n$host\r\n", 400, 'a bare LF after the first line');
is_refused("GET /feeds HTTP/1.1\r\nHost: localhost\nX: 1\r\n\r\n", 400, 'after a header');
is_refused("GET /feeds HTTP/1.1\r\n$host\n", 400, 'at the end');
is_refused("GET /feeds HTTP/1.1\r\n${host}X: a\rY: b\r\n\r\n", 400, 'a bare CR');
is_refused("GET /feeds HTTP/1.1\r\n${host} folded: 1\r\n\r\n", 400, 'a header in two lines');
is_refused("GET /feeds HTTP/1.1\r\n${host}X : 1\r\n\r\n", 400, 'a space before the colon');
is_refused("GET /feeds HTTP/1.1\r\n${host}X: a\0b\r\n\r\n", 400, 'a NUL in a header');
is_refused("GET /feeds\0/x HTTP/1.1\r\n$host\r\n", 400, 'in the path');
is_refused("\rGET /feeds HTTP/1.1\r\n$host\r\n", 400, 'a bare CR before the first line');
is_refused("GET /feeds HTTP/1.1\r\n${host}: 1\r\n\r\n", 400, 'a header without a name');
is_refused("GET  /feeds HTTP/1.1\r\n$host\r\n", 400, 'two spaces before the URL');
is_refused("GET /feeds  HTTP/1.1\r\n$host\r\n", 400, 'or after it');
is_refused("GET /feeds HTTP/1.1\r\nHost: $_\r\n\r\n", 400, "the host $_") for 'a b', 'a/b', 'a@b', 'a?b';
for my $trailer ("\n", "X: a\n\r\n", "X: a\r\n\n", "X: a\r\n b\r\n\r\n", " X: a\r\n\r\n", ": a\r\n\r\n")
{
	is_refused("${post}Transfer-Encoding: chunked\r\n\r\n1\r\nA\r\n0\r\n$trailer", 400,
		'a trailer ' . $trailer =~ s/\r/CR/gr =~ s/\n/LF/gr);
}
is_refused("${post}Transfer-Encoding: chunked\r\n\r\n1\r\nA\r\n0\r\nX: " . 'a' x 10000 . "\r\n\r\n", 431, 'a long one');
is_refused("GET /feeds RTSP/1.0\r\n$host\r\n", 505, 'another protocol');
is_refused("POST /streams/outbox HTTP/1.0\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nA\r\n0\r\n\r\n", 400,
	'HTTP/1.0 in chunks');
like(all_of("POST /streams/outbox HTTP/1.1\r\n${host}Connection: close\r\nContent-Length: 1\r\n\r\nA"),
	qr/^HTTP\/1\.1 400 .*there is no Content-Type/s, 'a body without a type');
is_refused("PRI * HTTP/2.0\r\n\r\n", 505, 'HTTP/2');
is_refused("GET /feeds HTTP/3.7\r\n$host\r\n", 505, 'another version');
is_refused("GET /feeds\r\n\r\n", 505, 'none');
is_refused("nonsense\r\n\r\n", 501, 'no HTTP at all');
is(sql($node, 'SELECT count(*) FROM outbox'), $sizes, 'none of them has written');
my $sends = raw("GET /feeds HTTP/1.1\r\n\r\n");
like(read_until($sends, qr/(?!)/), qr/^HTTP\/1\.1 400 /, 'a client that is refused');
{
	local $SIG{PIPE} = 'IGNORE';
	ok(syswrite($sends, 'x') && syswrite($sends, 'x'), 'may go on sending for a while');
}

# what is right
my $empty = "GET /feeds HTTP/1.1\r\n${host}X-Empty:\r\nX-Spaces: \t a b \t\r\nX-Last:\r\n\r\n";
like(read_until(raw($empty x 2), qr/(\{"feeds".*){2}/s), qr/(HTTP\/1\.1 200 .*){2}/s, 'empty values, and spaces');
like(read_until(raw("\r\n\r\nGET /feeds HTTP/1.1\r\n$host\r\n"), qr/"feeds"/), qr/^HTTP\/1\.1 200 /, 'empty lines before it');
like(read_until(raw("GET /feeds HTTP/1.1\r\n${host}Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n\r\n"), qr/"feeds"/),
	qr/^HTTP\/1\.1 200 /, 'an upgrade is not taken');
my $expects = raw("${post}Expect: 100-continue\r\nContent-Length: 1\r\n\r\n");
is(read_until($expects, qr/\r\n\r\n/), "HTTP/1.1 100 Continue\r\n\r\n", 'a client that asks first');
syswrite $expects, 'A';
like(read_until($expects, qr/\r\n\r\n/), qr/^HTTP\/1\.1 204 /, 'and sends its body');
like(all_of("${post}Expect: 100-continue\r\nContent-Length: 2000000\r\n\r\n"), qr/^HTTP\/1\.1 413 /, 'or need not');
my $slowly = raw('');
syswrite $slowly, $_ for split //, "${post}Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n1;x=y\r\nA\r\n0\r\nTrailer: x\r\n\r\n";
like(read_until($slowly, qr/(?!)/), qr/^HTTP\/1\.1 204 /, 'byte by byte, with a trailer');
$slowly = raw("${post}Transfer-Encoding: chunked\r\n\r\n1\r\nA\r\n0\r\nTrailer: x\r\n\r\nGET /feeds HTTP/1.1\r\n${host}Connection: close\r\n\r\n");
like(read_until($slowly, qr/(?!)/), qr/^HTTP\/1\.1 204 .*HTTP\/1\.1 200 /s, 'at once, and then another request');
like(all_of("GET $_ HTTP/1.1\r\n${host}Connection: close\r\n\r\n"), qr/^HTTP\/1\.1 200 /, "a whole URL, $_")
  for 'http://localhost/feeds', 'https://localhost:1/feeds';
is(sql($node, 'SELECT count(*) FROM outbox'), $sizes + 3, 'all are made');
like(all_of("GET /feeds HTTP/1.0\r\n\r\n"), qr/\r\nConnection: close\r\n.*"feeds"/s, 'HTTP/1.0 closes');
like(read_until(raw("GET /feeds HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"), qr/"feeds"/),
	qr/\r\nConnection: keep-alive\r\n/, 'unless it is asked not to');

# arguments and lists
my $cursor = get($http, '/feeds/outbox')->{cursor};
for my $path ("/feeds/outbox?after=$cursor&after=x", '/feeds/outbox?limit=1&limit=2',
	'/streams/outbox?offset=-1&offset=now')
{
	is(get($http, $path)->{status}, 400, "$path is refused");
}
my $accepts = "GET /feeds/outbox?after=$cursor HTTP/1.1\r\n${host}Connection: close\r\n";
like(all_of("${accepts}Accept: text/plain\r\nAccept: application/x-ndjson\r\n\r\n"),
	qr/Content-Type: application\/x-ndjson\r\n/, 'two Accepts are one list');
like(all_of("${accepts}Accept:\r\n\r\n"), qr/Content-Type: application\/json\r\n/, 'an empty one accepts all');

is(get($http, '/feeds/outbox?limit=10000000000')->{status}, 200, 'a limit of eleven digits is the largest');
is(get($http, "/feeds/outbox?limit=$_")->{status}, 400, "a limit of $_ is none") for qw(0 x 10000000000x -1);
is(get($http, "/feeds/outbox?$_")->{status}, 400, "$_ alone is refused") for qw(shard=0 shards=2);

# streams whose clients have gone
close $_ for $sends, $expects, $slowly;
metric_is($http, 'connections', 0, 'all connections are closed');
my @streams = map {
	raw("GET /feeds/outbox?after=$cursor HTTP/1.1\r\n${host}Accept: text/event-stream\r\n\r\n")
} 1 .. 20;
metric_is($http, 'waiting', 20, 'streams wait');
read_until($_, qr/retry: \d+\n\n/) for @streams;
@streams = ();
metric_is($http, 'connections', 0, 'and leave no connection, long before the next heartbeat');
my ($pid) = $http->{pid};
cmp_ok(scalar(grep { (readlink($_) // '') =~ /^socket/ } glob "/proc/$pid/fd/*"), '<', 12,
	'nor a socket: two listeners, five to the database');
http_stop($http);

done_testing();
