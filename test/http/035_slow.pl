# Clients that are slow: what is equal is held once, and the memory of all keeps
# to a budget, for which the slowest are dropped.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubHttp;
use FeedpubTest;
use JSON::PP;
use MIME::Base64;
use PostgreSQL::Test::Utils;
use Socket;
use Test::More;

my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'");

sql($node, <<'SQL');
SELECT feed_create('small', 'text'), feed_create('large', 'text'), feed_create('bytes', 'bytea'), feed_start_worker();
INSERT INTO small (message_type, message_key, data) SELECT 'A', i, repeat('x', 1000) FROM generate_series(1, 2000) i;
INSERT INTO large (message_type, message_key, data) SELECT 'A', i, repeat('x', 1000000) FROM generate_series(1, 40) i;
INSERT INTO bytes (message_type, message_key, data)
	SELECT 'A', i, decode(repeat('0d0a00', 20000) || '0d', 'hex') FROM generate_series(1, 10) i;
SELECT feed_flush('small'), feed_flush('large'), feed_flush('bytes');
SQL

# MB: the budget, and what a server has beside it: itself, and pages that its
# connections to the database receive
my $budget = 48;
my $beside = 100;
my $http;

sub start
{
	http_stop($http) if $http;
	return $http = http_start($node, max_memory => $budget, pool => 2, heartbeat => 1, lock_timeout => 600, statement_timeout => 600);
}

# A request of a client that takes as little as it can, and reads nothing.
sub send_slowly
{
	my ($request, %headers) = @_;

	socket my $client, PF_INET, SOCK_STREAM, 0 or die "$!";
	setsockopt $client, SOL_SOCKET, SO_RCVBUF, 4096 or die "$!";
	connect $client, pack_sockaddr_in($http->{port}, INADDR_LOOPBACK) or die "$!";
	syswrite $client, "$request HTTP/1.1\r\nHost: localhost\r\n"
	  . join('', map { "$_: $headers{$_}\r\n" } sort keys %headers) . "\r\n" or die "$!";
	return $client;
}

sub stream { my ($path) = @_; return send_slowly("GET $path", Accept => 'text/event-stream') }

# Memory of the process, in MB: VmRSS what it has, VmHWM the most that it ever had
sub memory
{
	my ($what) = @_;
	my ($memory) = slurp_file("/proc/$http->{pid}/status") =~ /^$what:\s*(\d+)/m;

	return $memory / 1024;
}

sub peak { return memory('VmHWM') }

# Wait until a test of the metrics holds. It is asked once: what comes in the next
# round of the loop is above the budget until that round ends.
sub wait_until
{
	my ($test, $holds) = @_;
	my $tries = 20 * $PostgreSQL::Test::Utils::timeout_default;
	my $held;

	select undef, undef, undef, 0.05 until ($held = $holds->()) || $tries-- < 0;
	ok($held, $test);
	return;
}

sub keeps_to_budget
{
	my ($what) = @_;

	# what comes in a round of the loop is dropped at its end
	wait_until("$what: the budget is kept to",
		sub { metric($http, 'memory_bytes') <= $budget * 1024 * 1024 });
	note sprintf '%s: the peak is %.0f MB', $what, peak();
	cmp_ok(peak(), '<', $budget + $beside, "$what: by the process");
	is(scalar @{ get($http, '/feeds/small?limit=10')->{json}{entries} }, 10, "$what: a page is served");
	return;
}

# The cursors of a feed's first entries
sub cursors
{
	my ($feed, $number) = @_;
	return split /\n/, sql($node, "SELECT cursor FROM feed_read(NULL::$feed, '', $number)");
}

# Equal reads that come together have one result, which is held once
start();
sql($node, "BEGIN; LOCK TABLE large IN ACCESS EXCLUSIVE MODE; PREPARE TRANSACTION 'lock'");
my @clients = map { stream('/feeds/large?limit=3') } 1 .. 300;
push @clients, map { stream('/streams/large?limit=3&offset=-1&live=sse') } 1 .. 100;
metric_is($http, 'jobs_joined_total', 300 - 2 + 100 - 1, '400 event streams share three reads');
sql($node, "ROLLBACK PREPARED 'lock'");
wait_until('which are answered', sub { metric($http, 'responses_total{status="2xx"}') == 400 });
keeps_to_budget('equal event streams');
is(metric($http, 'dropped_total'), 0, 'nobody is dropped');

# Each with another cursor
for my $feed ('small', 'large')
{
	start();
	my @cursors = cursors($feed, $feed eq 'small' ? 300 : 35);
	my $fast = send_request($http, "/feeds/small?limit=1000", Accept => 'text/event-stream');

	read_until($fast, qr/"message_key":"2000"/);
	@clients = map { stream("/feeds/$feed?limit=1000&after=$_") } @cursors;
	wait_until("event streams of $feed rows: the slowest are dropped",
		sub { metric($http, 'dropped_total') > 0
			  && metric($http, 'responses_total{status="2xx"}') > @cursors });
	keeps_to_budget("event streams of $feed rows");
	is(sysread($clients[0], my $got, 1) && length read_until($clients[0], qr/^never$/) > 0,
		1, 'the first one had been slow for longest');
	cmp_ok(metric($http, 'connections'), '>', 1, 'not all');
	sql($node, "INSERT INTO small (message_type, message_key, data) VALUES ('A', '$feed', 'x')");
	like(read_until($fast, qr/"message_key":"$feed"/), qr/"message_key":"$feed"/, 'one that is not slow goes on');
	like(slurp_file($http->{log}), qr/level=warning message="dropped \d+ of the slowest clients/, 'the log says so');
	@clients = ();
	wait_until('when they have gone, the system has the memory again', sub { memory('VmRSS') < $budget / 2 }) if $feed eq 'small';
	note sprintf 'at last it has %.0f MB', memory('VmRSS');
}

# Bodies that do not end
start();
@clients = map { send_slowly('POST /streams/small', 'Content-Type' => 'text/plain', 'Content-Length' => 1000000) } 1 .. 60;
for my $client (@clients)
{
	syswrite $client, 'x' x 999_999;
}
wait_until('requests that do not end: the slowest are dropped', sub { metric($http, 'dropped_total') > 0 });
keeps_to_budget('requests that do not end');
is(sql($node, "SELECT count(*) FROM small WHERE message_type = 'message'"), 0, 'nothing is appended');

# A page that is larger than the budget
sql($node, "INSERT INTO large (message_type, message_key, data) VALUES ('A', 'whole', repeat('x', 60000000)); SELECT feed_flush('large')");
my ($last) = (cursors('large', 40))[-1];
cmp_ok(length get($http, "/feeds/large?after=$last", Accept => 'application/x-ndjson')->{content},
	'>', 60000000, 'an entry that is larger than the budget');

# What is sent in pieces is whole, wherever it is cut
sql($node, <<'SQL');
SELECT feed_create('pieces', 'text');
INSERT INTO pieces (message_type, data) SELECT 'A', repeat('y', n)
	FROM generate_series(31000, 33000, 100) n UNION ALL SELECT 'A', repeat('z', 200000);
SELECT feed_create('lines', 'text');
INSERT INTO lines (message_type, data) VALUES ('A', 'x' || repeat(E'\r\n ', 30000)), ('A', E' two\r');
SELECT feed_flush('pieces'), feed_flush('lines');
SQL
my $page = get($http, '/feeds/pieces');
my @entries = @{ $page->{json}{entries} };
my ($events) = events('/feeds/pieces', qr/^:$/m);
is_deeply([ map { $_->{id} } @$events ], [ map { $_->{cursor} } @entries ], 'ids of events');
is_deeply([ map { decode_json($_->{data}) } @$events ], \@entries, 'events');
is_deeply([ map { decode_json($_) } split /\n/, get($http, '/feeds/pieces', Accept => 'application/x-ndjson')->{content} ],
	\@entries, 'lines');
for my $feed ('pieces', 'lines', 'bytes')
{
	my $content = get($http, "/streams/$feed")->{content};
	my $sent = '';
	my ($of_stream, $head) = events("/streams/$feed?offset=-1&live=sse", qr/upToDate/);

	$sent .= $_->{data} for grep { $_->{event} eq 'data' } @$of_stream;
	$sent = decode_base64($sent) if $head =~ /^Stream-SSE-Data-Encoding: base64\r$/m;
	$content =~ s/\r\n?/\n/g if $feed eq 'lines';
	ok($sent eq $content, "messages of $feed");
}
is(http_stop($http), 0, 'the server ends');

# The events of a stream until one matches, and its headers
sub events
{
	my ($path, $end) = @_;
	my ($head, $text) = split /\r\n\r\n/,
	  read_until(send_request($http, $path, Accept => 'text/event-stream'), $end), 2;
	my $rest = $text;
	my @events;

	# without the chunks
	$text = '';
	while ($rest =~ s/^(?:\r\n)?([0-9a-f]+)\r\n//)
	{
		$text .= substr $rest, 0, hex $1, '';
	}
	for my $block (split /\n\n/, $text)
	{
		my %event;

		while ($block =~ /^(\w+):(?: )?(.*)$/mg)
		{
			$event{$1} = defined $event{$1} ? "$event{$1}\n$2" : $2;
		}
		push @events, \%event if defined $event{data};
	}
	return (\@events, $head);
}

done_testing();
