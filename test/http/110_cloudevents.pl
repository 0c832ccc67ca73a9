# A feed as CloudEvents, by http-feeds.org.

use strict;
use warnings FATAL => 'all';
use utf8;

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubHttp;
use FeedpubTest;
use JSON::PP;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'");
my %accept = (Accept => 'application/cloudevents-batch+json');

sql($node, <<'SQL');
CREATE ROLE regress_feedpub_login LOGIN NOINHERIT;
CREATE ROLE regress_feedpub_web;
GRANT regress_feedpub_web TO regress_feedpub_login;
CREATE SCHEMA "Odd ""Schema";
GRANT USAGE ON SCHEMA "Odd ""Schema" TO regress_feedpub_web;
SELECT feed_create('"Odd ""Schema"."a/b, %"', 'json'), feed_create('hidden');
CREATE TABLE kv (k text PRIMARY KEY, v text);
CREATE TABLE "two keys" (a int, "b 1" text, PRIMARY KEY ("b 1", a));
INSERT INTO kv VALUES ('before', 'attach');
SELECT feed_attach('kv'), feed_attach('"two keys"');
GRANT SELECT ON hidden, kv, "two keys", "Odd ""Schema"."a/b, %" TO regress_feedpub_web;
ALTER TABLE hidden ENABLE ROW LEVEL SECURITY;
CREATE POLICY shown ON hidden USING (message_type = 'shown');
INSERT INTO "Odd ""Schema"."a/b, %" (message_type, message_key, data, headers) VALUES
	('', '', '""', NULL),
	(E'Odd\u0001\u007f\u0085\ufdd0\uffff\U0001f600"\\', E'50%\n', '{"a":"\u0000"}', '["a"]'),
	('A', NULL, '[1,2]', '{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=b"}'),
	('B', 'b', 'null', '{"traceparent": "", "tracestate": "a\nb"}'),
	('C', repeat('k', 1000), ('"' || repeat('x', 100000) || '"')::json, NULL);
INSERT INTO kv VALUES ('', NULL), ('gone', 'x'), (E'\t', E'"\u0001"');
INSERT INTO "two keys" VALUES (1, E'x"\n');
INSERT INTO hidden (message_type, data)
	SELECT CASE WHEN i IN (1, 900) THEN 'shown' ELSE 'hidden' END, to_json(i) FROM generate_series(1, 1000) i;
SELECT feed_start_worker();
SELECT feed_flush('kv');
DELETE FROM kv WHERE k = 'gone';
SELECT feed_flush('"Odd ""Schema"."a/b, %"'), feed_flush('kv'), feed_flush('hidden'), feed_flush('"two keys"');
SQL
my $http = http_start(
	$node,
	user => 'regress_feedpub_login',
	anonymous_role => 'regress_feedpub_web',
	max_wait => 600);
my $odd = '/feeds/%22Odd%20%22%22Schema%22.%22a%2Fb,%20%25%22';

sub events
{
	my ($path) = @_;
	my $response = get($http, $path, %accept);

	is($response->{status}, 200, $path =~ s/[-\w]{44}/.../r)
	  or diag $response->{content};
	return @{ decode_json($response->{content}) };
}

# What CloudEvents 1.0 asks of an event in JSON
sub problems
{
	my ($event) = @_;
	my @problems;
	my %members = %$event;

	delete @members{qw(data data_base64)};
	push @problems, "no $_"
	  for grep { !defined $event->{$_} } qw(id source specversion type);
	for my $name (sort keys %members)
	{
		my $value = $members{$name};

		push @problems, "name $name" if $name !~ /^[a-z0-9]{1,20}$/;
		push @problems, "$name is not a string" if !defined $value || ref $value;
		push @problems, "$name is empty" if ($value // '') eq '';
		push @problems, "$name has what is not allowed"
		  if ($value // '') =~ /[\x00-\x1f\x7f-\x9f\x{fdd0}-\x{fdef}\x{fffe}\x{ffff}]/;
	}
	push @problems, 'specversion' if $event->{specversion} ne '1.0';
	push @problems, 'source'
	  if $event->{source} !~ m{^(?:[A-Za-z0-9._~/-]|%[0-9A-F]{2})+$};
	push @problems, 'time'
	  if $event->{time} !~ /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?\+00:00$/;
	push @problems, 'datacontenttype'
	  if exists $event->{data} && $event->{datacontenttype} ne 'application/json';
	return @problems;
}

# an outbox
my @events = events($odd);
is_deeply([ map { problems($_) } @events ], [], 'events are CloudEvents');
is_deeply(
	[ map { $_->{source} } @events ],
	[ ('/feeds/%22Odd%20%22%22Schema%22.%22a%2Fb%2C%20%25%22') x 5 ],
	'source is the feed');
is_deeply(
	[ map { $_->{type} } @events ],
	[ '%00', qq(Odd%01%7F%C2%85%EF%B7%90%EF%BF%BF\x{1f600}"\\), 'A', 'B', 'C' ],
	'type is message_type');
is_deeply([ map { $_->{subject} } @events ],
	[ '%00', '50%25%0A', undef, 'b', 'k' x 1000 ], 'subject is the key');
is_deeply([ map { $_->{data} } @events ],
	[ '', { a => "\0" }, [ 1, 2 ], undef, 'x' x 100000 ], 'data');
is_deeply(
	[ map { [ @$_{qw(traceparent tracestate)} ] } @events[ 1 .. 3 ] ],
	[
		[ undef, undef ],
		[ '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01', 'a=b' ],
		[ undef, undef ]
	],
	'the trace context');
is(scalar(grep { $_->{messageid} =~ /^[0-9a-f-]{36}$/ } @events), 5, 'messageid');
my $page = get($http, $odd)->{json};
is_deeply(
	[ map { [ @$_{qw(id time)} ] } @events ],
	[ map { [ @$_{qw(cursor published_at)} ] } @{ $page->{entries} } ],
	'id is the cursor, time when it was published');

# going on
my $begin = get($http, "$odd?limit=2&timeout=0", %accept, redirects => 0);
is($begin->{status}, 307, 'the beginning is elsewhere');
like($begin->{headers}{location},
	qr/^\?lastEventId=[-\w]{44}&limit=2&timeout=0$/, 'with an id');
for my $none ('null', '')
{
	is_deeply([ events("$odd?lastEventId=$none") ], \@events,
		"an id \"$none\" is the beginning");
}
my @read;
my $last = '';
while (my @page = events("$odd?limit=2&lastEventId=$last"))
{
	push @read, @page;
	$last = $page[-1]{id};
}
is_deeply(\@read, \@events, 'page by page, up to an empty one');
my $full = get($http, "$odd?limit=2&lastEventId=$events[0]{id}", %accept);
is($full->{headers}{'content-type'}, 'application/cloudevents-batch+json', 'its type');
is($full->{headers}{'cache-control'}, 'public, max-age=31536000, immutable',
	'a full page is final');
my $end = get($http, "$odd?lastEventId=$last", %accept);
is($end->{content}, '[]', 'the end');
is($end->{headers}{'cache-control'}, 'no-cache', 'is not');
is( get($http, "$odd?lastEventId=$last", %accept,
		'If-None-Match' => $end->{headers}{etag})->{status},
	304, 'and has an ETag');
is(get($http, "$odd?lastEventId=x", %accept)->{status}, 400, 'no id');
is(get($http, "$odd?timeout=x", %accept)->{status}, 400, 'no timeout');

# waiting: the timeout is one of milliseconds
is(get($http, "$odd?lastEventId=$last&timeout=50", %accept)->{content},
	'[]', 'nothing within the timeout');
my $waits = send_request($http, "$odd?lastEventId=$last&timeout=500000", %accept);
metric_is($http, 'waiting', 1, 'a request waits');
sql($node, q(INSERT INTO "Odd ""Schema"."a/b, %" (message_type, data) VALUES ('new', '1')));
like(read_until($waits, qr/"type": "new"/), qr/"type": "new"/, 'it is answered');

# a table feed
my %by_subject = map { $_->{subject} => $_ } events('/feeds/kv');
is_deeply([ map { problems($_) } values %by_subject ], [], 'rows and deletes too');
is_deeply(
	{ map { $_ => $by_subject{$_}{data} } keys %by_subject },
	{
		before => { k => 'before', v => 'attach' },
		'%00' => { k => '', v => undef },
		'%09' => { k => "\t", v => "\"\x01\"" },
		gone => undef
	},
	'the rows');
is($by_subject{gone}{method}, 'DELETE', 'a delete has a method');
ok(!exists $by_subject{gone}{data}, 'and no data');
is_deeply(
	[ map { $by_subject{$_}{type} } qw(before gone) ],
	[ 'public.kv.upsert', 'public.kv.delete' ],
	'types');
is((events('/feeds/%22two%20keys%22'))[0]{subject},
	q(["x\"\n",1]), 'a key of two columns');

# Consumers take a page without events for the end: it is none if rows that are
# hidden have others after them.
my @shown;
$last = '';
while (my @page = events("/feeds/hidden?limit=1&lastEventId=$last"))
{
	push @shown, $page[0]{data};
	$last = $page[0]{id};
}
is_deeply(\@shown, [ 1, 900 ], 'what is hidden is passed');
is(get($http, "/feeds/hidden?lastEventId=$last&timeout=50", %accept)->{content},
	'[]', 'also at the end');

# by quality
for (
	[ '*/*', 'application/json' ],
	[ 'application/*', 'application/json' ],
	[ 'application/cloudevents-batch+json, */*;q=0.1', $accept{Accept} ],
	[ 'application/json;q=0.9, application/cloudevents-batch+json', $accept{Accept} ],
	[ 'application/json;q=0, application/*', 'application/x-ndjson' ],
	[ 'application/cloudevents-batch+json;q=0, text/*;q=0, application/x-ndjson;q=0.1, */*;q=0.2', 'application/json' ],
	[ 'application/x-ndjson; q=0.5, text/csv', 'application/x-ndjson' ],
	[ 'APPLICATION/JSON', 'application/json' ],
	[ 'application/json;charset=utf-8', 'application/json' ])
{
	my ($wanted, $got) = @$_;

	is(get($http, '/feeds/kv', Accept => $wanted)->{headers}{'content-type'},
		$got, "Accept: $wanted");
}

# the package from npm
SKIP:
{
	skip 'FEEDPUB_HTTP_LONG is not set', 1 unless $ENV{FEEDPUB_HTTP_LONG};
	skip 'there is no npm', 1 if system('npm --version >/dev/null 2>&1');

	my $dir = PostgreSQL::Test::Utils::tempdir();
	local $ENV{npm_config_cache} = "$dir/cache";
	command_ok([ 'npm', 'install', '--silent', '--no-audit', '--no-fund', '--prefix', $dir,
			'cloudevents@10.0.0' ], 'npm');
	local $ENV{NODE_PATH} = "$dir/node_modules";
	sql($node, <<'SQL');
SELECT feed_create('bytes', 'bytea'), feed_create('texts', 'text');
INSERT INTO bytes (message_type, data) VALUES ('A', '\\x00ff');
INSERT INTO texts (message_type, message_key, data) VALUES ('A', 'a', 'no JSON'), ('A', 'b', '{"a": 1}'), ('A', '', '');
INSERT INTO hidden (message_type, message_key, data) SELECT 'shown', repeat(chr(i), 3), '{}' FROM generate_series(1, 700) i;
INSERT INTO hidden (message_type, data) SELECT 'shown', json_build_object('a', repeat('x', 20000000)) FROM generate_series(1, 2);
GRANT SELECT ON bytes, texts TO regress_feedpub_web;
SELECT feed_flush('bytes'), feed_flush('texts'), feed_flush('hidden');
SQL
	for my $path ($odd, map { "/feeds/$_" } qw(kv %22two%20keys%22 hidden?limit=1000 bytes texts))
	{
		my $batch = HTTP::Tiny->new->get("$http->{url}$path", { headers => \%accept })->{content};
		my $expected = () = $batch =~ /"specversion": "1.0"/g;
		my ($out, $error);

		IPC::Run::run([ 'node', "$FindBin::RealBin/client/cloudevents.js" ],
			'<', \$batch, '>', \$out, '2>', \$error);
		is($out, "$expected\n", "$path: $expected events") or diag $error;
	}
}

http_stop($http);
done_testing();
