# Random requests against a feedpub-http that is built with sanitizers: no
# error of theirs, no leak, no response 500.  A few hundred, or 100,000 if
# FEEDPUB_HTTP_LONG is set; FEEDPUB_HTTP_SEED begins them elsewhere.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubHttp;
use FeedpubTest;
use IO::Select;
use IO::Socket::INET;
use PostgreSQL::Test::Utils;
use Test::More;

my $total = $ENV{FEEDPUB_HTTP_LONG} ? 100000 : 600;
my $seed = $ENV{FEEDPUB_HTTP_SEED} // 1;
my $at_a_time = $ENV{FEEDPUB_HTTP_LONG} ? 500 : 100;

# the program, in a copy of its source
my $tree = "$FindBin::RealBin/../..";
my $build = PostgreSQL::Test::Utils::tempdir();
system_or_bail('cp', '-R', "$tree/common", "$tree/http", "$tree/docs", "$tree/feedpub.control", $build);
system_or_bail('make', '-s', '-C', "$build/http", 'clean');
my $flags = '-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all';
system_or_bail('make', '-s', '-C', "$build/http", "CFLAGS=$flags", 'feedpub-http');

my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'");
sql($node, <<'SQL');
SELECT feed_create('outbox', 'json'), feed_create('"a b"', 'text'), feed_create_changes('changes'), feed_start_worker();
CREATE TABLE kv (k int PRIMARY KEY, v text);
SELECT feed_attach('kv'), feed_capture('kv', 'changes');
INSERT INTO kv SELECT i, repeat('v', i) FROM generate_series(1, 300) i;
INSERT INTO outbox (message_type, message_key, data)
	SELECT 'A', i, '{"a": 1}' FROM generate_series(1, 300) i;
SELECT feed_flush('outbox'), feed_flush('kv'), feed_flush('changes');
SELECT feed_subscribe('worker', 'outbox');
SQL

$ENV{ASAN_OPTIONS} = 'detect_leaks=1';
my $http = http_start($node, program => "$build/http/feedpub-http",
	max_wait => 1, heartbeat => 1, idle_timeout => 1);
my $cursor = get($http, '/feeds/outbox?limit=5')->{cursor};
my @bytes = map { chr } 0 .. 255;

sub pick { return $_[ int rand @_ ] }

sub some { return join '', map { pick(@bytes) } 1 .. 1 + int rand $_[0] }

# Bytes in a URL, mostly as they have to be.
sub encoded
{
	my $text = some(@_);

	$text =~ s/([^\w.-])/sprintf '%%%02x', ord $1/eg if rand() < 0.95;
	return $text;
}

sub path
{
	my $path = pick(('/feeds/outbox', '/feeds/kv', '/streams/outbox') x 5, '/feeds', '/feeds/', '/feeds/outbox', '/feeds/kv',
		'/feeds/%22a%20b%22', '/streams/outbox', '/streams/kv', '/streams/', '/feeds/changes', '/streams/changes', '/streams/changes',
		'/subscriptions/worker/' . pick(qw(poll ack nack park leave retry discard x)),
		'/', '*', '', '//', '/feeds/' . encoded(10), 'http://localhost/feeds/kv',
		'/feeds/' . '%' . pick(qw(00 0 gg ff c3%bc 0d%0aX:1 22)), '/' . 'a' x rand 9000);
	my @arguments = rand() < 0.7 ? map { pick("after=$cursor", 'limit=3', 'wait=1', 'shard=0&shards=2', 'offset=-1', 'live=sse') } 1 .. rand 4 : map {
		pick(qw(after limit shard shards wait offset live cursor lastEventId timeout type), encoded(5))
		  . pick('=', '=', '=', '')
		  . pick($cursor, $cursor, '', '-1', 'now', 0, 1, 2, 100, '99999999999999999999', 'long-poll',
			'sse', '%00', '%0d%0aX:%201', '%', encoded(20), substr($cursor, 0, rand length $cursor))
	} 1 .. rand 5;

	return @arguments ? $path . '?' . join(pick('&', '&', '&&', '?'), @arguments) : $path;
}

sub header
{
	return pick(
		'Accept: ' . pick('*/*', 'text/html', 'application/json', 'text/event-stream', 'application/x-ndjson',
			'application/cloudevents-batch+json', 'text/*;q=0.5,*/*;q=' . pick('x', '1e999', '-1', '0.1'),
			';,;', some(30)),
		'Last-Event-ID: ' . pick($cursor, '', some(30), '"'),
		'If-None-Match: ' . pick('*', '""', 'W/"x"', some(20)),
		'Authorization: ' . pick('Bearer ', 'Bearer a.b.c', 'Basic eDp5', 'Bearer ' . some(60)),
		'Origin: ' . pick('https://a.example', 'null', some(10)),
		'Content-Type: ' . pick('application/json', 'text/plain', some(10)),
		'Expect: 100-continue', 'Connection: ' . pick('close', 'keep-alive', 'upgrade'),
		'Content-Length: ' . pick(0, 5, -1, 'x', '99999999999999999999'),
		'Transfer-Encoding: ' . pick('chunked', 'gzip, chunked', 'x'),
		'Host: ' . pick('', 'a', some(10)), some(20), 'X: ' . 'a' x rand 9000,
		' folded', ':', 'X-' . some(5) . ': ' . some(20)) if rand() < 0.2;
	return pick('Accept: text/event-stream', 'Accept: application/x-ndjson', 'Accept: text/html',
		'Accept: */*', 'Origin: null', "Last-Event-ID: $cursor", 'If-None-Match: *',
		'Connection: close', 'Content-Type: application/json');
}

sub request
{
	my $body = pick(('') x 12, '{}', '[]', '[1, 2', '{"a": 1}', '{"max_rows": 1, "timeout": 0}',
		'{"receipt": "x"}', 'secret=' . some(20) . '&cursor=' . some(20), some(100), '5' . "\r\nabcde\r\n0\r\n\r\n", 'x' x rand 3000);
	my $request = join '', pick(('GET') x 20, qw(HEAD HEAD POST POST PUT DELETE OPTIONS), some(5)), ' ', path(), ' ',
	  pick(('HTTP/1.1') x 20, 'HTTP/1.0', 'HTTP/9.9', '', some(5)), "\r\n",
	  (rand() < 0.98 ? "Host: localhost\r\n" : ''),
	  (map { header() . pick(("\r\n") x 50, "\n") } 1 .. rand 4),
	  (rand() < 0.9 && length $body ? 'Content-Length: ' . length($body) . "\r\n" : ''),
	  "\r\n", $body;

	# other bytes, fewer bytes
	substr $request, rand length $request, 1, pick(@bytes)
	  for 1 .. (rand() < 0.1 ? rand 5 : 0);
	$request = substr $request, 0, rand length $request if rand() < 0.1;
	return $request;
}

srand $seed;
local $SIG{PIPE} = 'IGNORE';
my %statuses;
my @bad;
my $stuck = 0;
for (my $sent = 0; $sent < $total; $sent += $at_a_time)
{
	my %open;
	my $until = time + $PostgreSQL::Test::Utils::timeout_default;
	my $end_at = time + 2;

	for (1 .. $at_a_time)
	{
		my $socket = IO::Socket::INET->new(
			PeerAddr => '127.0.0.1',
			PeerPort => $http->{port}) or die "could not connect: $!";
		my $request = join '', map { request() } 1 .. pick(1, 1, 1, 3);

		# the server closes, or the client says that it has no more
		my $closes = rand() < 0.7;
		$request .= "GET /feeds HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n" if $closes;
		syswrite $socket, $request;
		shutdown $socket, 1 if !$closes;
		$open{$socket} = { socket => $socket, request => $request, response => '' };
	}
	my $select = IO::Select->new(map { $_->{socket} } values %open);
	while ($select->count && time < $until)
	{
		# an event stream ends when its client does
		if (time >= $end_at)
		{
			shutdown $_, 1 for $select->handles;
			$end_at = $until;
		}
		for my $socket ($select->can_read(1))
		{
			next if sysread $socket, $open{$socket}{response}, 65536, length $open{$socket}{response};
			$select->remove($socket);
		}
	}
	$stuck += $select->count;
	for (values %open)
	{
		$statuses{$1}++ while $_->{response} =~ /HTTP\/1\.[01] (\d+) /g;
		push @bad, $_ if $_->{response} =~ /HTTP\/1\.[01] 500 /;
	}
	diag "$sent" if $ENV{FEEDPUB_HTTP_LONG} && $sent % 10000 == 0;
	BAIL_OUT('feedpub-http crashed: ' . slurp_file($http->{log}))
	  if waitpid($http->{pid}, POSIX::WNOHANG()) != 0;
}
note join ', ', map { "$_: $statuses{$_}" } sort keys %statuses;
ok($statuses{200} > $total / 4, 'many are answered');
is(scalar @bad, 0, 'none by 500');
is($stuck, 0, 'each connection ended');
note "request: $_->{request}\nresponse: $_->{response}" for @bad[ 0 .. ($#bad > 4 ? 4 : $#bad) ];
metric_is($http, 'connections', 0, 'all connections are closed');
is(http_stop($http), 0, 'no leak');
unlike(slurp_file($http->{log}), qr/Sanitizer|runtime error/, 'no error of the sanitizers');

done_testing();
