# Durable Streams: the main behaviours of the protocol.  With
# FEEDPUB_HTTP_LONG, its conformance suite too, which comes from npm.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubHttp;
use FeedpubTest;
use HTTP::Tiny;
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'");

sql($node, <<'SQL');
CREATE ROLE regress_feedpub_login LOGIN NOINHERIT;
CREATE ROLE regress_feedpub_web;
GRANT regress_feedpub_web TO regress_feedpub_login;
SELECT feed_create('"Odd ""%"', 'json'), feed_create('jsonb', 'jsonb'), feed_create('letters', 'text'),
	feed_create('bytes', 'bytea'), feed_create('images', 'bytea'), feed_create('page', 'text'),
	feed_create('inbox', 'text'), feed_create('secret', 'text');
COMMENT ON COLUMN images.data IS 'image/png';
COMMENT ON COLUMN page.data IS 'application/json';
CREATE TABLE kv (k text PRIMARY KEY, v text);
SELECT feed_attach('kv');
GRANT SELECT, INSERT ON "Odd ""%", jsonb, letters, bytes, images, page, kv TO regress_feedpub_web;
GRANT INSERT (message_type, message_key, data) ON inbox TO regress_feedpub_web;
SELECT feed_start_worker();
SQL
my $http = http_start(
	$node,
	user => 'regress_feedpub_login',
	anonymous_role => 'regress_feedpub_web',
	message_type => 'posted',
	max_limit => 10,
	max_wait => 1,
	log_level => 'debug');
my $odd = '/streams/%22Odd%20%22%22%25%22';

# A response, and its Stream-Next-Offset in {offset}
sub read_stream
{
	my ($path, %headers) = @_;
	my $response = get($http, $path, %headers);

	$response->{offset} = $response->{headers}{'stream-next-offset'};
	return $response;
}

sub append
{
	my ($path, $type, $body, %headers) = @_;
	my $not_waited = sub { return scalar(() = slurp_file($http->{log}) =~ /: an append was not waited for"/g) };
	my $before = $not_waited->();
	my $response = HTTP::Tiny->new->post("$http->{url}$path",
		{ headers => { 'Content-Type' => $type, %headers }, content => $body });

	$response->{offset} = $response->{headers}{'stream-next-offset'};

	# It waits five seconds until the message is published.  If the machine stands
	# still for so long, the log says so; the offset is then where the end is.
	my $name = $path =~ s{^/streams/}{}r =~ s/%(..)/chr hex $1/ger;

	$response->{offset} = sql($node, "SELECT feed_flush('$name')")
	  if !defined $response->{offset} && $name ne 'inbox' && $not_waited->() > $before;
	return $response;
}

sub insert_deep
{
	my ($depth) = @_;

	return q{INSERT INTO jsonb (message_type, data) VALUES ('deep', '} . '[' x $depth . ']' x $depth . q{')};
}

# an empty stream
my $empty = read_stream($odd);
is("$empty->{status} $empty->{content}", '200 []', 'a stream without messages');
is($empty->{headers}{'content-type'}, 'application/json', 'of type json');
is($empty->{headers}{'stream-up-to-date'}, 'true', 'is up to date');
is($empty->{headers}{'cross-origin-resource-policy'}, 'same-origin', 'is for its origin');
is($empty->{headers}{'x-content-type-options'}, 'nosniff', 'is of the type that it says');

# appends and reads
my $first = append($odd, 'application/json', '{"a": 1}');
is($first->{status}, 204, 'an append');
my $second = append($odd, 'Application/JSON; charset=utf-8', ' [ [2], "drei", 1.50 ]');
is($second->{status}, 204, 'an append of an array');
cmp_ok($second->{offset}, 'gt', $first->{offset}, 'offsets grow');
my $all = read_stream("$odd?offset=-1");
is($all->{content}, '[{"a": 1},[2],"drei",1.50]', 'all messages, of the array each, as they were sent');
is($all->{offset}, $second->{offset}, 'the offset of an append is where a reader gets to');
is(read_stream($odd)->{content}, $all->{content}, 'without an offset it is the beginning');
is(read_stream("$odd?offset=$first->{offset}")->{content}, '[[2],"drei",1.50]', 'from an offset');
my $tail = read_stream("$odd?offset=$second->{offset}");
is("$tail->{content} $tail->{offset}", "[] $second->{offset}", 'from the tail');
my $limited = read_stream("$odd?offset=-1&limit=3");
is($limited->{headers}{'stream-up-to-date'}, undef, 'a part is not up to date');
is($limited->{headers}{'cache-control'}, 'no-cache', 'at -1 it is asked for again');
is(read_stream("$odd?offset=$limited->{offset}")->{content}, '[1.50]', 'and goes on');
like(read_stream("$odd?offset=$empty->{offset}&limit=3")->{headers}{'cache-control'},
	qr/^public, max-age=\d+, immutable$/, 'a full page after an offset is kept');

my $jsonb = append('/streams/jsonb', 'application/json', '{"b":[1]}');
is($jsonb->{status}, 204, 'jsonb');
is(read_stream('/streams/jsonb')->{content}, '[{"b": [1]}]', 'as the database has it');
# As deep as a client of the database may write it: nothing parses it again.  A
# body that is too deep is too large.
my ($depth, $too_deep) = (1000, 200000);
while ($depth < $too_deep - 1)
{
	my $middle = int(($depth + $too_deep) / 2);

	my $is_taken = $node->psql('postgres', 'BEGIN; ' . insert_deep($middle)) == 0;
	($is_taken ? $depth : $too_deep) = $middle;
}
sql($node, insert_deep($depth));
sql($node, q(INSERT INTO letters (message_type, headers, data) SELECT 'A', data, 'x' FROM jsonb; SELECT feed_flush('letters'), feed_flush('jsonb')));
my $deep = HTTP::Tiny->new->get("$http->{url}/streams/jsonb?offset=$jsonb->{offset}");
is("$deep->{status} $deep->{content}", '200 [' . '[' x $depth . ']' x $depth . ']', 'a deep jsonb is read as it is');
is(read_stream('/streams/letters')->{content}, 'xx', 'and is beside a text');
is(append('/streams/jsonb', 'application/json', '[' x 1e5)->{status}, 413, 'a body that is too deep');
sql($node, "DELETE FROM jsonb WHERE message_type = 'deep'; DELETE FROM letters");
append('/streams/letters', 'text/plain', "  one\r\n\n two");
append('/streams/letters', 'text/plain', "\x{c3}\x{bc}");
my $letters = read_stream('/streams/letters');
is($letters->{content}, "  one\r\n\n two\x{c3}\x{bc}", 'text, byte for byte');
is($letters->{headers}{'content-type'}, 'text/plain', 'of type text');
my $bytes = join '', map { chr } 0 .. 255;
append('/streams/bytes', 'application/octet-stream', $bytes);
append('/streams/bytes', 'application/octet-stream', "\0");
is(read_stream('/streams/bytes')->{content}, "$bytes\0", 'bytes');
is(append('/streams/images', 'image/png', 'x')->{status}, 204, 'a type of a comment');
is(read_stream('/streams/images')->{headers}{'content-type'}, 'image/png', 'is served');
is(read_stream('/streams/page')->{headers}{'content-type'}, 'text/plain', 'text is never json');

sql($node, "INSERT INTO kv VALUES ('k', 'v'); SELECT feed_flush('kv')");
my $entries = read_stream('/streams/kv')->{json};
is("$entries->[0]{op} $entries->[0]{row}{v}", 'upsert v', 'the messages of a table feed are its entries');
is(append('/streams/kv', 'application/json', '{}')->{status}, 405, 'and none is appended');

# what an append writes
append('/streams/letters', 'text/plain', 'x', 'Message-Type' => 'Letter', 'Message-Key' => "k'\$1");
is(sql($node, "SELECT message_type, message_key FROM letters ORDER BY feed_pos"),
	"posted|\nposted|\nLetter|k'\$1", 'type and key of a message');
my $inbox = append('/streams/inbox', 'text/plain', 'x');
is("$inbox->{status} " . ($inbox->{offset} // ''), '204 ', 'a role that may not read gets no offset');
is(sql($node, 'SELECT data FROM inbox'), 'x', 'but has appended');
is(append('/streams/secret', 'text/plain', 'x')->{status}, 403, 'a role that may not insert');
is(append('/streams/nothing', 'text/plain', 'x')->{status}, 404, 'a stream that is not there');
is(append('/streams/letters', 'application/json', 'x')->{status}, 409, 'another type');
is(append('/streams/letters', 'text/plain', '')->{status}, 400, 'no body');
is(append('/streams/letters', 'text/plain', "a\0b")->{status}, 400, 'a NUL in text');
is(append('/streams/letters', 'text/plain', "\xff")->{status}, 400, 'text that is not UTF-8');
is(append($odd, 'application/json', $_)->{status}, 400, "$_ is no message") for '{', '[]';
sql($node, <<'SQL');
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'not this'; END$$;
CREATE TRIGGER refuse BEFORE INSERT ON images FOR EACH ROW WHEN (NEW.message_key = 'k') EXECUTE FUNCTION refuse();
ALTER TABLE images ADD CHECK (message_type <> 'bad');
SQL
is(append('/streams/images', 'image/png', 'x', 'Message-Type' => 'bad')->{status}, 400, 'a check that fails');
is(append('/streams/images', 'image/png', 'x', 'Message-Key' => 'k')->{status}, 400, 'a trigger that raises');
sql($node, <<'SQL');
CREATE SEQUENCE deaths;
CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
	IF nextval('deaths') = 1 THEN
		PERFORM pg_terminate_backend(pg_backend_pid()), pg_sleep(60);
	END IF;
	RETURN NEW;
END $$;
CREATE TRIGGER die BEFORE INSERT ON images FOR EACH ROW WHEN (NEW.message_key = 'die') EXECUTE FUNCTION die();
SQL
is(append('/streams/images', 'image/png', 'x', 'Message-Key' => 'die')->{status}, 503,
	'an append whose connection is lost is not made again');
is(append($odd, 'application/json', '1', 'Producer-Id' => 'p')->{status}, 400, 'what is not offered is refused');
is(append($odd, 'application/json', '1', Origin => 'http://a.example')->{status},
	403, 'a page of another origin does not write');
is(append($odd, 'application/json', '1', Origin => $http->{url}, 'Sec-Fetch-Site' => 'cross-site')->{status},
	403, 'as the browser says it');
is(read_stream($odd)->{content}, $all->{content}, 'nothing of these was written');
is(append('/streams/page', 'text/plain', 'x', Origin => $http->{url})->{status}, 204, 'a page of its own does');

# HEAD, now
my $head = read_stream($odd, method => 'HEAD');
is("$head->{status} $head->{offset}", "200 $second->{offset}", 'HEAD has the tail');
is($head->{headers}{'content-type'}, 'application/json', 'and the type');
is($head->{headers}{'cache-control'}, 'no-store', 'and is not kept');
my $now = read_stream("$odd?offset=now");
is("$now->{content} $now->{offset}", "[] $second->{offset}", 'now is the tail');
is($now->{headers}{'cache-control'}, 'no-store', 'which is not kept either');

# offsets that are none, and what is refused
is(read_stream("$odd?$_")->{status}, 400, "$_ is malformed")
  for 'offset=', 'offset=x', 'offset=0,1', 'offset=0%201', 'offset=a&offset=b', 'offset=%00',
  'offset=-1&live=x', 'live=long-poll', 'live=sse';
is(read_stream("/streams/$_")->{status}, 404, "there is no stream $_") for 'nothing', '1', '-', '';
is(read_stream('/streams/secret')->{status}, 403, 'a role that may not read');
sql($node, q{SELECT feed_begin_history('"Odd ""%"')});
my $gone = read_stream("$odd?offset=$first->{offset}");
is($gone->{status}, 410, 'an offset of another history');
is(url_from($odd, $gone->{json}{begin}), $odd, 'which says where to begin');
is(get($http, '/streams/letters', method => 'DELETE')->{status}, 405, 'a stream is not deleted');

# ETag
my $etag = $letters->{headers}{etag};
$letters = read_stream('/streams/letters');
isnt($letters->{headers}{etag}, $etag, 'new messages, another ETag');
my $same = read_stream('/streams/letters', 'If-None-Match' => $letters->{headers}{etag});
is("$same->{status} $same->{content}", '304 ', 'not modified');
is($same->{offset}, $letters->{offset}, 'with its offset');

# a response that is as long as it may be, and reaches the head; then there is more
sql($node, q{SELECT feed_create('whole'); GRANT SELECT ON whole TO PUBLIC;
	INSERT INTO whole (message_type, data) VALUES ('A', '1'), ('A', '2')});
sql($node, q{SELECT feed_flush('whole')});
my $whole = read_stream('/streams/whole?offset=-1&limit=2');
is("$whole->{content} $whole->{headers}{'stream-up-to-date'}", '[1,2] true', 'all of a stream');
sql($node, q{INSERT INTO whole (message_type, data) VALUES ('A', '3'); SELECT feed_flush('whole')});
my $part = read_stream('/streams/whole?offset=-1&limit=2', 'If-None-Match' => $whole->{headers}{etag});
is("$part->{status} $part->{content}", '200 [1,2]', 'which is another response when there is more');
is($part->{headers}{'stream-up-to-date'}, undef, 'that does not reach the head');

# long-polls
my $late = read_stream("/streams/letters?offset=now&live=long-poll");
is($late->{status}, 204, 'a long-poll at whose end there is nothing');
is($late->{offset}, $letters->{offset}, 'has the offset');
is($late->{headers}{'stream-up-to-date'}, 'true', 'is up to date');
my $cursor = $late->{headers}{'stream-cursor'};
like($cursor, qr/^\d+$/, 'and has a cursor');
my $soon = read_stream("/streams/letters?offset=-1&live=long-poll&cursor=$cursor");
is("$soon->{status} $soon->{content}", "200 $letters->{content}", 'what is there comes at once');
cmp_ok($soon->{headers}{'stream-cursor'}, '>', $cursor, 'with a later cursor');

like(read_until(send_request($http, '/streams/letters?offset=now&live=sse'), qr/^0\r\n\r\n/m),
	qr/upToDate.*^0\r\n\r\n/ms, 'an event stream ends after --max-wait');

http_stop($http);
$http = http_start(
	$node,
	user => 'regress_feedpub_login',
	anonymous_role => 'regress_feedpub_web',
	max_wait => 600);
my $poll = send_request($http, "/streams/letters?offset=now&live=long-poll");
my $events = send_request($http, "/streams/letters?offset=now&live=sse");
my $text = read_until($events, qr/^event: control\n.*\n\n/m);
append('/streams/letters', 'text/plain', 'news');
like(read_until($poll, qr/news/), qr/^HTTP\/1.1 200 .*\r\n\r\nnews$/s, 'a long-poll gets what is published');

# event streams
like($text, qr/^Content-Type: text\/event-stream\r$/m, 'an event stream');
unlike($text, qr/Stream-SSE-Data-Encoding/, 'of text');
like($text, qr/^data:\{"streamNextOffset":"$letters->{offset}","streamCursor":"\d+","upToDate":true\}$/m,
	'begins with where it is');
like(read_until($events, qr/upToDate/),
	qr/^event: data\ndata:news\n\nevent: control\ndata:\{"streamNextOffset":"/m,
	'what is published later comes by itself');
like(read_until(send_request($http, '/streams/letters?offset=-1&live=sse'), qr/upToDate/),
	qr/^event: data\ndata:   one\ndata:\ndata:  two\x{c3}\x{bc}xnews\n\n/m,
	'lines and the spaces that they begin with');
is(scalar(() = read_until(send_request($http, '/streams/letters?offset=-1&live=sse&limit=1'), qr/upToDate/) =~ /^event: control/mg),
	4, 'each page of a stream says where it is');
like(read_until(send_request($http, '/streams/jsonb?offset=-1&live=sse'), qr/upToDate/),
	qr/^data:\[\{"b": \[1\]\}\]\n\n/m, 'an array');
$text = read_until(send_request($http, '/streams/bytes?offset=-1&live=sse'), qr/upToDate/);
like($text, qr/^Stream-SSE-Data-Encoding: base64\r$/m, 'bytes are encoded');
my ($encoded) = $text =~ /^data:(.*)\n/m;
is(sql($node, "SELECT decode('$encoded', 'base64') = (SELECT string_agg(data, '' ORDER BY feed_pos) FROM bytes)"),
	't', 'and are the same');
is(read_stream('/streams/nothing?offset=now&live=sse')->{status}, 404, 'an error is no stream');
is(http_stop($http), 0, 'the server ends');

# the suite, and the client that belongs to it
SKIP:
{
	skip 'FEEDPUB_HTTP_LONG is not set', 1 unless $ENV{FEEDPUB_HTTP_LONG};
	skip 'there is no npm', 1 if system('npm --version >/dev/null 2>&1');

	my $dir = PostgreSQL::Test::Utils::tempdir();
	local $ENV{npm_config_cache} = "$dir/cache";
	command_ok(
		[
			'npm', 'install', '--silent', '--no-audit', '--no-fund', '--prefix', $dir,
			'@durable-streams/server-conformance-tests@0.3.6', '@durable-streams/client@0.2.6'
		],
		'npm');
	run_suite($dir);
	run_client($dir, $_) for 'long-poll', 'sse';
}

done_testing();

# Every test passes, but for those that are listed, which fail.
sub run_suite
{
	my ($dir) = @_;
	my $served = http_start($node, max_wait => 2, cors_origins => '*');
	my %unclaimed = map { $_ => 1 } grep { /^[^#]/ }
	  split /\n/, slurp_file("$FindBin::RealBin/durable_unclaimed.txt");
	my %passed;
	my %failed;

	my $adapter = open my $port, '-|', 'node', "$FindBin::RealBin/durable_adapter.js", $served->{url},
	  $node->connstr('postgres')
	  or die "could not run node: $!";
	local $ENV{CONFORMANCE_TEST_URL} = 'http://127.0.0.1:' . <$port> =~ s/\s//r;
	append_to_file("$dir/suite.test.mjs", <<'JS');
import { runConformanceTests } from "@durable-streams/server-conformance-tests"
runConformanceTests({ baseUrl: process.env.CONFORMANCE_TEST_URL })
JS
	system "cd $dir && node_modules/.bin/vitest run suite.test.mjs --no-coverage --testTimeout=60000"
	  . " --reporter=json --outputFile=$dir/result.json >$dir/suite.log 2>&1";
	kill 'TERM', $adapter;
	close $port;
	http_stop($served);

	for my $test (map { @{ $_->{assertionResults} } }
		@{ decode_json(slurp_file("$dir/result.json"))->{testResults} })
	{
		my $name = join ' > ', @{ $test->{ancestorTitles} }, $test->{title};

		utf8::encode($name);
		$passed{$name} = 1 if $test->{status} eq 'passed';
		$failed{$name} = $test->{failureMessages}[0] if $test->{status} eq 'failed';
	}
	cmp_ok(scalar keys %passed, '>', 150, 'tests of the suite pass');
	is_deeply([ grep { !$unclaimed{$_} } sort keys %failed ], [], 'all that are claimed')
	  or diag map { "$_: $failed{$_}\n" } grep { !$unclaimed{$_} } sort keys %failed;
	is_deeply([ grep { !exists $failed{$_} } sort keys %unclaimed ], [], 'only these');
}

# A client follows a stream while the server is killed, and the database.
sub run_client
{
	my ($dir, $live) = @_;
	my $served = http_start($node);
	my $name = "client_$live" =~ tr/-/_/r;
	my $text = '';

	sql($node, "SELECT feed_create('$name')");
	append_to_file("$dir/client.mjs", slurp_file("$FindBin::RealBin/durable_client.mjs"))
	  unless -e "$dir/client.mjs";
	my $client = open my $seen, '-|', 'node', "$dir/client.mjs", "$served->{url}/streams/$name", $live, 100
	  or die "could not run node: $!";
	for my $first (10, 20, 30)
	{
		my $port = $served->{port};

		sql($node, <<"SQL");
INSERT INTO $name (message_type, data)
	SELECT 'A', json_build_object('n', i) FROM generate_series($first, $first + 9) i;
SQL
		$text .= <$seen> for 1 .. 10;
		if ($first == 20)
		{
			$node->stop('immediate');
			$node->start;
			next;
		}
		kill 'KILL', $served->{pid};
		waitpid $served->{pid}, 0;
		$served = http_start($node, listen => "127.0.0.1:$port");
		$served->{port} = $port;
	}
	sql($node, "INSERT INTO $name (message_type, data) VALUES ('A', '{\"n\": 100}')");
	$text .= <$seen>;
	is($text, join('', map { "$_\n" } 10 .. 39, 100), "a client sees all by $live, and once");
	close $seen;
	http_stop($served);
}
