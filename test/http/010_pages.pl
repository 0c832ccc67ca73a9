# Pages over HTTP: what they have, how they are cached, and errors.

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
CREATE ROLE regress_feedpub_login LOGIN NOINHERIT;
CREATE ROLE regress_feedpub_web;
GRANT regress_feedpub_web TO regress_feedpub_login;
CREATE SCHEMA "Odd ""Schema";
GRANT USAGE ON SCHEMA "Odd ""Schema" TO regress_feedpub_web;
SELECT feed_create('outbox'), feed_create('secret'), feed_create('"Odd ""Schema"."a/b, %"');
CREATE TABLE kv (k text PRIMARY KEY, v text);
SELECT feed_attach('kv');
GRANT SELECT ON outbox, kv, "Odd ""Schema"."a/b, %" TO regress_feedpub_web;
INSERT INTO outbox (message_type, message_key, data)
	SELECT 'A', 'ü' || i, '1' FROM generate_series(1, 25) i;
INSERT INTO kv VALUES ('a', 'b');
INSERT INTO "Odd ""Schema"."a/b, %" (message_type, data) VALUES ('odd', '{}');
SELECT feed_start_worker();
SELECT feed_flush('outbox'), feed_flush('kv'), feed_flush('"Odd ""Schema"."a/b, %"');
SQL

my $http = http_start(
	$node,
	user => 'regress_feedpub_login',
	anonymous_role => 'regress_feedpub_web',
	max_limit => 20,
	cors_origins => 'https://a.example,https://b.example');
my $odd = '/feeds/%22Odd%20%22%22Schema%22.%22a%2Fb,%20%25%22';

# the list
my $list = get($http, '/feeds');
is_deeply(
	$list->{json},
	{
		feeds => [
			{ name => '"Odd ""Schema"."a/b, %"', kind => 'outbox' },
			{ name => 'public.kv', kind => 'table' },
			{ name => 'public.outbox', kind => 'outbox' }
		]
	},
	'the feeds that the role may read');

# pages
my $begin = get($http, '/feeds/outbox?limit=10', redirects => 0);
my $floor = sql($node, "SELECT feed_floor('outbox')");
is($begin->{status}, 307, 'the beginning of an outbox is elsewhere');
is($begin->{headers}{location}, "?after=$floor&limit=10",
	'at its floor, wherever a proxy serves it');
is($begin->{headers}{'cache-control'}, 'no-store', 'and that is not kept');

# words in place of a cursor
is(get($http, '/feeds/outbox?after=earliest&limit=10', redirects => 0)->{headers}{location},
	$begin->{headers}{location}, 'earliest is the beginning');
for my $feed (qw(outbox kv))
{
	my $head = sql($node, "SELECT feed_head('$feed')");

	for my $type (qw(application/json text/event-stream application/x-ndjson))
	{
		my $end = get($http, "/feeds/$feed?after=latest&limit=10&wait=1", redirects => 0, Accept => $type);

		is("$end->{status} $end->{headers}{location} $end->{headers}{'cache-control'}",
			"307 ?after=$head&limit=10&wait=1 no-store", "$feed: latest is the end: $type");
	}
}
is(get($http, '/feeds/none?after=latest')->{status}, 404, 'latest of no feed');

my $first = url_from('/feeds/outbox', $begin->{headers}{location});
my $page = get($http, $first);
is($page->{status}, 200, 'a page');
is($page->{content}, sql($node, "SELECT feed_page('outbox', max_rows => 10)"),
	'what feed_page() returns');
is($page->{headers}{'cache-control'}, 'public, max-age=31536000, immutable',
	'a full page of an outbox is final');
is($page->{headers}{'content-type'}, 'application/json', 'its type');
like($page->{headers}{vary}, qr/Accept, Authorization/, 'it varies');
is(get($http, $first, Authorization => 'Basic eDp5')
	  ->{headers}{'cache-control'},
	'private, max-age=31536000, immutable', 'with credentials it is private');

my @keys;
my $path = '/feeds/outbox?limit=10';
while (1)
{
	$page = get($http, $path);
	push @keys, map { $_->{key}{message_key} } @{ $page->{json}{entries} };
	last if !$page->{json}{more};
	$path = "/feeds/outbox?limit=10&after=$page->{cursor}";
}
is_deeply(\@keys, [ map { "\x{fc}$_" } 1 .. 25 ], 'each entry once, in order');
is($page->{headers}{'cache-control'}, 'no-cache', 'the last page is not final');

my $last = $path;
my $etag = $page->{headers}{etag};
my $same = get($http, $last, 'If-None-Match' => "\"other\", $etag");
is($same->{status}, 304, 'the same page again');
is($same->{content}, '', 'without a body');
is($same->{headers}{etag}, $etag, 'with its ETag');
sql($node, "INSERT INTO outbox (message_type, data) VALUES ('A', '1'); SELECT feed_flush('outbox')");
$same = get($http, $last, 'If-None-Match' => $etag);
is($same->{status}, 200, 'not the same after another message');
isnt($same->{headers}{etag}, $etag, 'so another ETag');

is(scalar @{ get($http, '/feeds/outbox?limit=21')->{json}{entries} },
	20, 'a page of at most --max-limit rows');
my $table = get($http, '/feeds/kv');
is($table->{json}{entries}[0]{row}{v}, 'b', 'a table feed');
is($table->{headers}{'cache-control'}, 'no-cache', 'is never final');
is(get($http, $odd)->{json}{entries}[0]{row}{message_type},
	'odd', 'a feed with an odd name');
is(get($http, '/feeds/public.outbox?limit=1')->{status}, 200, 'a qualified name');
my @shards = map {
	scalar @{ get($http, "/feeds/kv?shard=$_&shards=2")->{json}{entries} }
} 0, 1;
is($shards[0] + $shards[1], 1, 'each row is in one shard');

# methods
my $head = get($http, $last, method => 'HEAD');
is($head->{status}, 200, 'HEAD');
is($head->{headers}{'content-length'},
	length(get($http, $last)->{content}), 'with the length of the page');
my $post = get($http, '/feeds/outbox', method => 'POST');
is($post->{status}, 405, 'POST is refused');
is($post->{headers}{allow}, 'GET, HEAD, OPTIONS', 'with what is allowed');
my $options = get($http, '/feeds/outbox', method => 'OPTIONS',
	Origin => 'https://b.example');
is($options->{status}, 204, 'OPTIONS');
is($options->{headers}{'access-control-allow-origin'},
	'https://b.example', 'a page of that origin may read');
like($options->{headers}{'access-control-allow-headers'},
	qr/If-None-Match/, 'with that header');
is( get($http, '/feeds', Origin => 'https://c.example')
	  ->{headers}{'access-control-allow-origin'},
	undef, 'another origin may not');

# errors
sub problem
{
	my ($path, $status, $sqlstate, $detail, $test, %headers) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $response = get($http, $path, %headers);

	is_deeply(
		[
			$response->{status},
			@{ $response->{headers} }{ 'content-type', 'cache-control' },
			@{ $response->{json} }{ 'status', 'sqlstate' }
		],
		[ $status, 'application/problem+json', 'no-store', $status, $sqlstate ],
		$test);
	like($response->{json}{detail}, $detail, "$test: detail");
	return $response;
}

problem('/feeds/outbox?after=here', 400, '22023', qr/^malformed cursor: "here"$/,
	'a malformed cursor');
problem('/feeds/outbox?after=a%00b', 400, undef, qr/percent-encoded/, 'a NUL');
problem('/feeds/outbox?after=%', 400, undef, qr/percent-encoded/,
	'half a percent-encoding');
problem('/feeds/outbox%f', 400, undef, qr/percent-encoded/, 'in the path too');
problem('/feeds/outbox?after=%ff', 400, '22021', qr/UTF8/, 'no UTF-8');
problem('/feeds/outbox?limit=0', 400, undef, qr/limit/, 'no rows');
problem('/feeds/outbox?limit=1x', 400, undef, qr/limit/, 'no number');
problem('/feeds/kv?shard=2&shards=2', 400, '22023', qr/shard/, 'no such shard');
problem('/feeds/secret', 403, '42501', qr/permission denied/, 'no right');
problem('/feeds/nothing', 404, '42P01', qr/does not exist/, 'no table');
problem('/feeds/pg_class', 404, '42809', qr/is not a feed/, 'no feed');
problem('/feeds/' . sql($node, "SELECT 'outbox'::regclass::oid"),
	404, undef, qr/no such feed/, 'an OID is no name');
problem('/feeds/a.b.c.d', 404, '42601', qr/name/, 'no name');
problem($_, 404, undef, qr/no such resource/, "another path, $_") for '/nothing', '//', '/openapi.yaml/', '/feed';
problem('/feeds/outbox', 406, undef, qr/application/, 'another type',
	Accept => 'image/png, application/json;q=0');
is(get($http, '/feeds/outbox', Accept => "application/json;$_")->{status}, 200, "Accept: $_ is no quality of 0")
  for 'seq=0', 'q=0.1;seq=0', 'a="q=0"', ' q=1 ';
my $foreign = get($http, $odd)->{cursor};
my $gone = problem("/feeds/outbox?after=$foreign", 410, 'PF001',
	qr/is from another history\. This server has not/, 'a cursor of another history');
is_deeply([ sort keys %{ $gone->{json} } ], [qw(begin detail hint sqlstate status title type)],
	'what a problem says');
is("@{ $gone->{json} }{qw(type title begin)}", 'about:blank Gone ./outbox', 'and where to begin');
like($gone->{json}{hint}, qr/Begin again/, 'the hint');
problem('/feeds/kv?after=%22%0D%0AX-Injected:%201', 400, '22023', qr/malformed/,
	'no header is injected');

# The last attempt to connect may have been just before the server was there.
sub await_database
{
	my ($path) = @_;
	my $tries = 10 * $PostgreSQL::Test::Utils::timeout_default;

	select undef, undef, undef, 0.1
	  while get($http, $path)->{status} == 503 && $tries-- > 0;
	return;
}

# what is served here, from the URL of the server on, as a proxy may have it
my $index = get($http, '/');
is_deeply($index->{json}, { feeds => './feeds', documentation => './openapi.yaml' }, 'where the feeds are');
is(url_from('/api/', $index->{json}{feeds}), '/api/feeds', 'also below another path');
my $openapi = get($http, url_from('/', $index->{json}{documentation}));
is("$openapi->{status} $openapi->{headers}{'content-type'}", '200 application/yaml', 'and their description');
is($openapi->{content}, slurp_file("$FindBin::RealBin/../../docs/openapi.yaml"), 'which is docs/openapi.yaml');
like($index->{headers}{link}, qr/^<\.\/openapi\.yaml>; rel="service-desc"/, 'as a header says, too');
is(url_from('/api/feeds/outbox', $begin->{headers}{location}), "/api/feeds/outbox?after=$floor&limit=10",
	'the beginning is below that path, too');
is(url_from('/api/feeds/outbox', $gone->{json}{begin}), '/api/feeds/outbox', 'also after a 410');

# the server goes and comes
my $admin = { url => "http://127.0.0.1:$http->{admin}" };
is(get($admin, '/live')->{status}, 200, 'live');
$node->stop('immediate');
problem($last, 503, undef, qr/cannot be reached/, 'no database');
my $tries = 10 * $PostgreSQL::Test::Utils::timeout_default;
select undef, undef, undef, 0.1
  while get($admin, '/ready')->{status} != 503 && $tries-- > 0;
my $unready = get($admin, '/ready');
is("$unready->{status} $unready->{headers}{'content-type'}", '503 application/problem+json', 'not ready');
for my $of ([ '/nothing', 404 ], [ '/live', 405, method => 'POST' ])
{
	my ($path, $status, @how) = @$of;
	my $problem = get($admin, $path, @how);

	is("$problem->{status} $problem->{json}{status} $problem->{headers}{'content-type'}",
		"$status $status application/problem+json", "$path: $status");
}
is(get($admin, '/live')->{status}, 200, 'live even so');
$node->start;
await_database($last);
is(get($http, $last)->{status}, 200, 'the database is there again');
is(http_stop($http), 0, 'SIGTERM ends it');

$http = http_start($node, user => 'regress_feedpub_login');
problem('/feeds/outbox', 403, '42501', qr/permission denied/,
	'the login role alone reads nothing');
$node->stop('fast');
$node->start;
await_database('/feeds/outbox');
problem('/feeds/outbox', 403, '42501', qr/permission denied/,
	'a connection that was closed is made again');
http_stop($http);

# the command line
my $program = "$FindBin::RealBin/../../http/feedpub-http";
my ($out, $error);
IPC::Run::run([ $program, '--help' ], '>', \$out);
like($out, qr/--max-age=SECONDS/, '--help');
IPC::Run::run([ $program, '--version' ], '>', \$out);
like($out, qr/^feedpub-http \d/, '--version');
IPC::Run::run([ $program, '--pool=0' ], '2>', \$error);
like($error, qr/pool\\" must be a number from 1 to 1000/, 'a value out of range');
IPC::Run::run([ $program, '--poool=1' ], '2>', \$error);
like($error, qr/unknown option/, 'an unknown option');

done_testing();
