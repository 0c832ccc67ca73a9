# Event streams and lines of JSON.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubHttp;
use FeedpubTest;
use JSON::PP;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'");

sql($node, <<'SQL');
SELECT feed_create('outbox', 'json'), feed_start_worker();
INSERT INTO outbox (message_type, message_key, data)
	SELECT 'A', i, E'{"a":\r\n\n"b\\nc"}' FROM generate_series(1, 25) i;
SELECT feed_flush('outbox');
SQL
my $http = http_start($node, heartbeat => 1, max_limit => 10);

# lines
my $response = get($http, '/feeds/outbox',
	Accept => 'application/json;q=0.5, application/x-ndjson');
is($response->{headers}{'content-type'}, 'application/x-ndjson', 'NDJSON');
my @lines = map { decode_json($_) } split /\n/, $response->{content};
is_deeply([ map { $_->{key}{message_key} } @lines ], [ 1 .. 25 ],
	'a line an entry, over several pages');
is($lines[0]{row}{data}{a}, "b\nc", 'line breaks of a string stay');
is_deeply(
	$lines[24],
	decode_json(sql($node, "SELECT feed_page('outbox')"))->{entries}[24],
	'the same entry as in a page');
is(get($http, '/feeds/nothing', Accept => 'application/x-ndjson')->{status},
	404, 'an error is no stream');

# events
my %accept = (Accept => 'text/event-stream');
my $stream = send_request($http, '/feeds/outbox', %accept);
my $text = read_until($stream, qr/^:$/m);
like($text, qr/^Content-Type: text\/event-stream\r$/m, 'an event stream');
like($text, qr/^retry: \d+$/m, 'says when to connect again');
is(scalar(() = $text =~ /^data: \{/mg), 25, 'has all entries, then a heartbeat');
my ($tenth) = $text =~ /^id: (.*)\ndata: .*"message_key":"10"/m;
is($tenth, $lines[9]{cursor}, 'the id of an event is its cursor');
sql($node, "INSERT INTO outbox (message_type, message_key, data) VALUES ('A', 26, '1')");
like(read_until($stream, qr/^data: .*\n/m),
	qr/"message_key":"26"/, 'what is published later comes by itself');

my $resumed = send_request($http, '/feeds/outbox', %accept,
	'Last-Event-ID' => $tenth);
$text = read_until($resumed, qr/^:$/m);
is_deeply([ $text =~ /^data: .*?"message_key":"(\d+)"/mg ],
	[ 11 .. 26 ], 'goes on after Last-Event-ID');

# the database restarts: closed, or it goes on
$node->stop('immediate');
$node->start;
sql($node, "INSERT INTO outbox (message_type, message_key, data) VALUES ('A', 27, '1')");
like(read_until($stream, qr/^data: .*\n/m),
	qr/"message_key":"27"/, 'a stream that waits goes on after a restart');

is(http_stop($http), 0, 'the server ends');
like(read_until($stream, qr/^0\r\n\r\n/m),
	qr/^0\r\n\r\n/m, 'after it has closed its streams');

done_testing();
