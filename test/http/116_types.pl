# Only some types of messages: in pages and what caches keep of them, in
# CloudEvents, lines, event streams and Durable Streams, and while a request
# waits.

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
SELECT feed_create('outbox', 'json'), feed_create('many'), feed_create_changes('changes'), feed_start_worker();
CREATE TABLE kv (k text PRIMARY KEY, v text);
SELECT feed_attach('kv');
CREATE PROCEDURE add(VARIADIC types text[]) LANGUAGE sql AS $$
	INSERT INTO outbox (message_type, data) SELECT t, to_json(t) FROM unnest(types) WITH ORDINALITY u (t, n) ORDER BY n
$$;
CALL add('OrderPlaced', 'Stock', 'OrderPaid', 'Stock', 'a,"b" \{c}', 'Zoë & co', 'a+b', '', 'Order*', 'Stock');
INSERT INTO many (message_type, data) SELECT 'unwanted', '1' FROM generate_series(1, 10100);
INSERT INTO many (message_type, data) VALUES ('wanted', '2');
INSERT INTO changes (op, relation, row) VALUES ('insert', 'public.a', '1'), ('insert', 'shop.a', '2');
SELECT feed_flush('outbox'), feed_flush('many'), feed_flush('changes');
SQL
my $http = http_start($node, heartbeat => 1, max_limit => 10000);

# The types of the entries of a page
sub types
{
	my ($page) = @_;

	return join '|', map { $_->{row}{message_type} } @{ $page->{json}{entries} // [] };
}

# What the URL says
for (
	[ 'type=OrderPaid' => 'OrderPaid' ],
	[ 'type=Order*' => 'OrderPlaced|OrderPaid|Order*' ],
	[ 'type=Order%2A' => 'OrderPlaced|OrderPaid|Order*' ],
	[ 'type=Order**' => 'Order*' ],
	[ 'type=OrderPaid&type=Nothing&type=OrderPlaced' => 'OrderPlaced|OrderPaid' ],
	[ 'type=a,%22b%22%20%5c{c}' => 'a,"b" \{c}' ],
	[ 'type=Zo%C3%AB+%26+co' => "Zo\x{eb} & co" ],
	[ 'type=a%2Bb' => 'a+b' ],
	[ 'type=' => '' ],
	[ 'type={OrderPaid}' => '' ],
	[ 'type=OrderPaid,Stock' => '' ],
	[ 'type=NULL' => '' ])
{
	my ($query, $expected) = @$_;
	my $page = get($http, "/feeds/outbox?$query");

	is("$page->{status} " . types($page), "200 $expected", $query);
	is(scalar @{ $page->{json}{entries} }, 1, 'the message without a type') if $query eq 'type=';
}
is(types(get($http, '/feeds/outbox?type=*')), types(get($http, '/feeds/outbox')), 'all types');
is(get($http, '/feeds/changes?type=public.*')->{json}{entries}[0]{row}, 1, 'relations of a change feed');
for ('outbox?type=%zz', 'outbox?type=a&type=%00', 'kv?type=a')
{
	is(get($http, "/feeds/$_")->{status}, 400, 'refused: ' . substr $_, 0, 30);
}
is(get($http, '/feeds/outbox?' . join('&', ('type=a') x $_))->{status}, $_ == 250 ? 200 : 414, "$_ types") for 250, 257;

# The beginning keeps them all, and each URL has an ETag of its own
my $begin = get($http, '/feeds/outbox?type=Order*&limit=2&type=Stock', redirects => 0);
like($begin->{headers}{location}, qr/&type=Order\*&limit=2&type=Stock$/, 'the redirect keeps them');
my $url = url_from('/feeds/outbox', $begin->{headers}{location});
my $full = get($http, $url);
is(types($full), 'OrderPlaced|Stock', 'a page');
like($full->{headers}{'cache-control'}, qr/immutable/, 'a full page is kept');
my $other = get($http, $url =~ s/Stock/Nothing/r);
is(types($other), 'OrderPlaced|OrderPaid', 'a page of others at the same cursor');
isnt($other->{headers}{etag}, $full->{headers}{etag}, 'has another ETag');
is(get($http, $url, 'If-None-Match' => $full->{headers}{etag})->{status}, 304, 'the same page again');
is(get($http, $url =~ s/Stock/Nothing/r, 'If-None-Match' => $full->{headers}{etag})->{status}, 200, 'and not of others');
is(types(get($http, "/feeds/outbox?after=$full->{cursor}&type=Order*&type=Stock&limit=2")), 'OrderPaid|Stock', 'goes on');
my $last = get($http, '/feeds/outbox?type=Nothing');
is($last->{headers}{'cache-control'}, 'no-cache', 'the last page is asked for again');
is($last->{cursor}, sql($node, "SELECT feed_head('outbox')"), 'and has got to the head');

# A page that has passed as much as it may
my $passed = get($http, '/feeds/many?type=wanted');
is(types($passed) . $passed->{json}{more}, '1', 'it is empty, and there is more');
like($passed->{headers}{'cache-control'}, qr/immutable/, 'it is final');
is(types(get($http, "/feeds/many?type=wanted&after=$passed->{cursor}")), 'wanted', 'the next one is not empty');

# Other forms
is_deeply([ map { $_->{type} } @{ get($http, '/feeds/outbox?type=OrderP*', Accept => 'application/cloudevents-batch+json')->{json} } ],
	[ 'OrderPlaced', 'OrderPaid' ], 'CloudEvents');
is(scalar @{ get($http, '/feeds/many?type=wanted', Accept => 'application/cloudevents-batch+json')->{json} },
	1, 'an array of CloudEvents is not empty before the end');
is_deeply([ map { decode_json($_)->{row}{data} } split /\n/, get($http, '/feeds/many?type=wanted', Accept => 'application/x-ndjson')->{content} ],
	[2], 'lines');
my $stream = get($http, '/streams/outbox?offset=-1&type=OrderP*');
is_deeply($stream->{json}, [ 'OrderPlaced', 'OrderPaid' ], 'a Durable Stream');
is("$stream->{headers}{'stream-next-offset'} $stream->{headers}{'stream-up-to-date'}",
	sql($node, "SELECT feed_head('outbox')") . ' true', 'which is at the head');
is(get($http, "/streams/outbox?offset=$stream->{headers}{'stream-next-offset'}&type=OrderP*&live=long-poll&wait=1")->{status},
	204, 'a long-poll to which nothing comes');

# Waiting: other types wake nobody up, and their cursor is passed
my $head = sql($node, "SELECT feed_head('outbox')");
my $page = send_request($http, "/feeds/outbox?after=$head&type=Order*&wait=600");
my $poll = send_request($http, "/streams/outbox?offset=$head&type=Order*&live=long-poll&wait=600");
my $events = send_request($http, "/feeds/outbox?after=$head&type=Order*", Accept => 'text/event-stream');
metric_is($http, 'waiting', 3, 'three wait');
sql($node, "CALL add('Stock', 'Stock'); SELECT feed_flush('outbox')");
my $text = read_until($events, qr/^id: .*\n\n/m);
my ($id) = $text =~ /^id: (.*)\n\n/m;
unlike($text, qr/^data:/m, 'an event stream passes what is not wanted');
is(sql($node, "SELECT json_array_length(feed_page('outbox', '$id') -> 'entries') < json_array_length(feed_page('outbox', '$head') -> 'entries')"),
	't', 'and says how far it got');
sql($node, "CALL add('Stock', 'OrderSent'); SELECT feed_flush('outbox')");
like(read_until($events, qr/^data: .*\n\n/m), qr/^data: .*OrderSent/m, 'and goes on');
$text = read_until($page, qr/"more": \w+\}/);
like($text, qr/"OrderSent"/, 'a page is answered with what is wanted');
unlike($text, qr/Stock/, 'and with nothing else');
like(read_until($poll, qr/\["OrderSent"\]/), qr/\["OrderSent"\]/, 'and a long-poll');
is(http_stop($http), 0, 'the server ends');

done_testing();
