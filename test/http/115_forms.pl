# Forms of a feed, names, HEAD, OPTIONS and CORS.

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
my @names = (
	'outbox', 'public.outbox', '"outbox"', 'OUTBOX', '"public"."outbox"',
	'"Outbox"', "\"\x{c3}\x{bc}ml\x{c3}\x{a4}ut\"", '"a.b"', '"a/b"', '"a%2Fb"', '"a b+c"',
	'"a?b&c#d"', '"say ""hi"""', '"it\'s"', '"sch.ema"."t.able"', '"-"', '"1"', '" "');

sql($node, 'CREATE SCHEMA "sch.ema"; SELECT feed_start_worker()');
for my $name (grep { !/^(?:public\.|"public"|"outbox"|OUTBOX)/ } @names)
{
	my $quoted = $name =~ s/'/''/gr;

	sql($node, "SELECT feed_create('$quoted'); INSERT INTO $name (message_type, data) VALUES ('$quoted', '1')");
}
sql($node, "INSERT INTO outbox (message_type, data) SELECT 'more', to_json(i) FROM generate_series(1, 24) i");
sql($node, "SELECT feed_flush(feed) FROM feedpub.feeds");
my $http = http_start($node, max_limit => 10, heartbeat => 1,
	cors_origins => 'https://a.example, https://b.example:8443');

# Names as SQL writes them, percent-encoded in all of its ways
for my $name (@names)
{
	my $encoded = $name =~ s/([^A-Za-z0-9._-])/sprintf '%%%02x', ord $1/ger;
	my $response = get($http, "/feeds/$encoded?limit=1");
	my $expected = $name =~ /^"?(?:public"?\.|outbox|OUTBOX)/ ? 'outbox' : $name;

	utf8::decode($expected);
	is($response->{json}{entries}[0]{row}{message_type}, $expected, "name $encoded");
	my $all = join '', map { sprintf '%%%02X', ord } split //, $name;
	is(get($http, "/feeds/$all?limit=1")->{content}, $response->{content}, 'all of it encoded');
}

# What the list calls a feed is a name
for my $feed (@{ get($http, '/feeds')->{json}{feeds} })
{
	my $name = $feed->{name};

	utf8::encode($name);
	is(get($http, '/feeds/' . $name =~ s/([^A-Za-z0-9._-])/sprintf '%%%02X', ord $1/ger)->{status},
		200, "the list: $name");
}

# lines: all of the feed, whatever the limit
my $lines = get($http, '/feeds/outbox', Accept => 'application/x-ndjson');
my @entries = map { decode_json($_) } split /\n/, $lines->{content};
is(scalar @entries, 25, 'lines go on to the head');
is($lines->{headers}{'cache-control'}, 'no-store', 'and are not kept');
my $rest = get($http, "/feeds/outbox?after=$entries[19]{cursor}", Accept => 'application/x-ndjson');
is(scalar(split /\n/, $rest->{content}), 5, 'or begin after a cursor');
is(get($http, "/feeds/outbox?after=$entries[24]{cursor}", Accept => 'application/x-ndjson')
	  ->{content}, '', 'at the head there are none');

# HEAD: the headers of GET, and no body
for my $type (qw(application/json application/cloudevents-batch+json application/x-ndjson text/event-stream))
{
	my $head = get($http, '/feeds/outbox?after=' . $entries[3]{cursor}, method => 'HEAD', Accept => $type);

	is($head->{status}, 200, "HEAD: $type");
	is($head->{headers}{'content-type'}, $type, 'its type');
	is($head->{content}, '', 'no body');
	like($head->{headers}{vary}, qr/^Accept, Authorization/, 'varies');
	is(get($http, '/feeds/nothing', method => 'HEAD', Accept => $type)->{status}, 404, 'no feed');
	is(get($http, '/feeds/outbox?after=x', method => 'HEAD', Accept => $type)->{status}, 400, 'no cursor');
}
is(get($http, '/feeds', method => 'HEAD')->{status}, 200, 'HEAD: the list');

# CORS
for my $path (qw(/feeds /feeds/outbox))
{
	for my $origin ('https://a.example', 'https://b.example:8443')
	{
		my $preflight = get(
			$http, $path,
			method => 'OPTIONS',
			Origin => $origin,
			'Access-Control-Request-Method' => 'GET',
			'Access-Control-Request-Headers' => 'authorization, last-event-id');

		is($preflight->{status}, 204, "$path: preflight of $origin");
		is($preflight->{headers}{'access-control-allow-origin'}, $origin, 'that origin');
		like($preflight->{headers}{'access-control-allow-methods'}, qr/\bGET\b/, 'the method');
		like($preflight->{headers}{'access-control-allow-headers'},
			qr/Authorization.*Last-Event-ID/, 'the headers');
		like($preflight->{headers}{vary}, qr/Origin/, 'varies');
		my $got = get($http, $path, Origin => $origin, redirects => 0);
		is($got->{headers}{'access-control-allow-origin'}, $origin, 'and the response');
		like($got->{headers}{'access-control-expose-headers'}, qr/ETag,.* Location/, 'shows headers');
	}
	for my $origin ('https://c.example', 'http://a.example', 'https://a.example.evil', 'https://b.example', 'null')
	{
		my $preflight = get($http, $path, method => 'OPTIONS', Origin => $origin,
			'Access-Control-Request-Method' => 'GET');

		is_deeply([ grep { /^access-control/ } keys %{ $preflight->{headers} } ],
			[], "$path: nothing for $origin");
	}
	my $options = get($http, $path, method => 'OPTIONS');
	is($options->{status}, 204, "$path: OPTIONS");
	is($options->{headers}{allow}, 'GET, HEAD, OPTIONS', 'what is allowed');
}
is(get($http, '/feeds/nothing', Origin => 'https://a.example')
	  ->{headers}{'access-control-allow-origin'},
	'https://a.example', 'errors can be read as well');

http_stop($http);
$http = http_start($node, cors_origins => '*');
is(get($http, '/feeds', Origin => 'https://any.example')
	  ->{headers}{'access-control-allow-origin'},
	'https://any.example', 'any origin, if all are allowed');
is(get($http, '/feeds')->{headers}{'access-control-allow-origin'}, undef, 'no origin');
http_stop($http);

done_testing();
