# A change feed over HTTP: pages and what caches keep of them, NDJSON, event
# streams, CloudEvents, Durable Streams, subscriptions; only some relations;
# shards; moments; pieces of what is large; waiting.  Outboxes and table feeds say
# what they said.  In the end docs/openapi.yaml is compared with what was sent.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubHttp;
use FeedpubTest;
use HTTP::Tiny;
use IO::Socket::INET;
use JSON::PP;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'");
my %cloudevents = (Accept => 'application/cloudevents-batch+json');
my %lines = (Accept => 'application/x-ndjson');
my %events = (Accept => 'text/event-stream');

# What was sent, by schema
my %sent;

sub take_messages
{
	push @{ $sent{ $_->{headers}{control} ? 'ControlMessage' : 'ChangeMessage' } }, $_ for @_;
	return;
}

sql($node, <<'SQL');
CREATE ROLE regress_feedpub_login LOGIN NOINHERIT;
CREATE ROLE regress_feedpub_web;
GRANT regress_feedpub_web TO regress_feedpub_login;
SELECT feed_create_changes('changes'), feed_create('outbox'), feed_start_worker();
CREATE TABLE a (id int PRIMARY KEY, v text);
CREATE TABLE b (x text, y int, v text, PRIMARY KEY (y, x));
CREATE TABLE kv (k text PRIMARY KEY, v text);
SELECT feed_attach('kv'), feed_capture('a', 'changes'), feed_capture('b', 'changes');
GRANT SELECT ON changes, outbox, kv TO regress_feedpub_web;
ALTER TABLE a ENABLE ROW LEVEL SECURITY;
INSERT INTO a VALUES (1, 'one'), (2, 'two');
SELECT feed_flush('changes');
BEGIN;
UPDATE a SET v = 'new' WHERE id = 1;
UPDATE a SET id = 3 WHERE id = 2;
INSERT INTO b VALUES ('k', 1, NULL);
INSERT INTO changes (op, key, row) VALUES ('message', '"m"', '{"text": "hello"}');
DELETE FROM a WHERE id = 1;
COMMIT;
SELECT feed_flush('changes');
TRUNCATE a, b;
INSERT INTO outbox (message_type, data) VALUES ('A', '1');
INSERT INTO kv VALUES ('k', 'v');
SELECT feed_flush('changes'), feed_flush('outbox'), feed_flush('kv');
SQL
my $http = http_start($node, user => 'regress_feedpub_login', anonymous_role => 'regress_feedpub_web',
	heartbeat => 1, max_limit => 10000);
my $head = sql($node, "SELECT feed_head('changes')");

# The entries that the database has
my @entries = @{ decode_json(sql($node, "SELECT feed_page('changes', '', 100)"))->{entries} };
is(join(' ', map { $_->{op} } @entries), 'insert insert update update insert message delete truncate truncate', 'what is there');
my @moments = map { $_->{moment} ? 1 : 0 } @entries;
is("@moments", '0 1 0 0 0 0 1 0 1', 'and where moments end');

# The list, and pages
push @{ $sent{Feeds} }, my $list = get($http, '/feeds')->{json};
is(join(' ', map { "$_->{name}=$_->{kind}" } @{ $list->{feeds} }), 'public.changes=changes public.kv=table public.outbox=outbox', 'the list');
my $begin = get($http, '/feeds/changes?limit=4&type=public.*', redirects => 0);
like($begin->{headers}{location}, qr/^\?after=[^&]+&limit=4&type=public\.\*$/, 'the beginning is the floor');
my $page = get($http, '/feeds/changes');
push @{ $sent{Page} }, $page->{json};
is_deeply($page->{json}{entries}, \@entries, 'a page has the entries of feed_page()');
is(($page->{json}{moment} // 'none') . " $page->{json}{more} $page->{cursor}", "1 0 $head", 'it ends at a moment, at the head');
is($page->{headers}{'cache-control'}, 'no-cache', 'and is asked for again');
is(get($http, "/feeds/changes?after=", 'If-None-Match' => $page->{headers}{etag})->{status}, 304, 'with its ETag');

# Pages of three, by which caches lead: each mark comes once, whatever the size
my (@by_pages, @ends);
my $url = url_from('/feeds/changes', get($http, '/feeds/changes?limit=3', redirects => 0)->{headers}{location});
while (1)
{
	my $part = get($http, $url);

	push @{ $sent{Page} }, $part->{json};
	push @by_pages, @{ $part->{json}{entries} };
	push @ends, $part->{json}{moment} ? 1 : 0;
	is(get($http, $url, 'If-None-Match' => $part->{headers}{etag})->{status}, 304, 'the same page again');
	like($part->{headers}{'cache-control'}, $part->{json}{more} ? qr/immutable$/ : qr/^no-cache$/, 'what is full is final');
	last if !$part->{json}{more};
	$url =~ s/after=[^&]*/after=$part->{cursor}/;
}
is_deeply(\@by_pages, \@entries, 'pages of three have all, and the same marks');
is("@ends", '0 0 1', 'and say whether they end at one');
my $at = url_from('/feeds/changes', get($http, '/feeds/changes?limit=2', redirects => 0)->{headers}{location});
is(get($http, $at)->{json}{moment}, JSON::PP::true, 'a page that a moment ends');

# Only some relations
my $of = get($http, '/feeds/changes?type=public.b');
push @{ $sent{Page} }, $of->{json};
is(join(' ', map { "$_->{relation}.$_->{op}" . ($_->{moment} ? '!' : '') } @{ $of->{json}{entries} }), 'public.b.insert! public.b.truncate!',
	'a relation, with the moments of what the reader gets');
is(join(' ', map { $_->{op} } @{ get($http, '/feeds/changes?type=')->{json}{entries} }), 'message', 'what has no relation');

# Shards: a key that moves is in both, a TRUNCATE in each
my @shards = map { get($http, "/feeds/changes?shards=2&shard=$_&type=public.a")->{json} } 0, 1;
push @{ $sent{Page} }, @shards;
is(join(' ', sort map { $_->{op} } map { @{ $_->{entries} } } @shards),
	(grep { my $e = $_; grep { $_->{old_key} } @{ $e->{entries} } } @shards) ?
		'delete insert insert truncate_shard truncate_shard update update' : 'delete delete insert insert truncate_shard truncate_shard update update',
	'shards have all');

# Lines
my $lines = get($http, '/feeds/changes?limit=2', %lines);
is_deeply([ map { decode_json($_) } split /\n/, $lines->{content} ], \@entries, 'lines, to the head');
push @{ $sent{Change} }, map { decode_json($_) } split /\n/, $lines->{content};

# Events
my $stream = read_until(send_request($http, '/feeds/changes?limit=2', %events), qr/^id: \Q$head\E\n.*\n\n/m);
my @data = $stream =~ /^data: (.*)\n/mg;
is_deeply([ map { decode_json($_) } @data ], \@entries, 'an event stream');
is(join(' ', $stream =~ /^id: (.*)\ndata:/mg), join(' ', map { $_->{cursor} } @entries), 'whose ids are cursors');
$stream = read_until(send_request($http, '/feeds/changes', %events, 'Last-Event-ID' => $entries[6]{cursor}), qr/^id: \Q$head\E\n.*\n\n/m);
is(scalar(() = $stream =~ /^data: /mg), 2, 'which goes on after an id');

# A moment that ends with what is not for the reader: it has got all before
sql($node, "INSERT INTO changes (op, row) VALUES ('message', '1'); SELECT feed_flush('changes')");
my $passed = get($http, "/feeds/changes?after=$head&type=public.a");
push @{ $sent{Page} }, $passed->{json};
is(scalar(@{ $passed->{json}{entries} }) . ' ' . ($passed->{json}{moment} // 'none') . " $passed->{json}{more}", '0 1 0', 'a page without entries ends a moment');
my ($line) = split /\n/, get($http, "/feeds/changes?after=$head&type=public.a", %lines)->{content};
is($line, qq({"cursor": "$passed->{cursor}", "moment": true}), 'a line says so');
$line //= '{}';
push @{ $sent{Moment} }, decode_json($line);
$stream = read_until(send_request($http, "/feeds/changes?after=$head&type=public.a", %events), qr/^event: moment\n.*\n\n/m);
like($stream, qr/^id: \Q$passed->{cursor}\E\nevent: moment\ndata: \Q$line\E\n\n/m, 'and an event');
$head = sql($node, "SELECT feed_head('changes')");

# CloudEvents
my $batch = get($http, '/feeds/changes', %cloudevents)->{json};
push @{ $sent{CloudEvent} }, @$batch;
is(join(' ', map { "$_->{type}:" . ($_->{subject} // '-') . ':' . ($_->{method} // '-') } @$batch),
	'public.a.insert:1:- public.a.insert:2:- public.a.update:1:- public.a.update:3:- public.b.insert:[1,"k"]:-'
	  . ' public.changes.message:m:- public.a.delete:1:DELETE public.a.truncate:-:DELETE public.b.truncate:-:DELETE public.changes.message:-:-',
	'CloudEvents');
is_deeply([ map { $_->{data} } @{$batch}[ 0 .. 8 ] ], \@entries, 'whose data are entries');
is(scalar @{ get($http, "/feeds/changes?lastEventId=$entries[6]{cursor}&type=public.b", %cloudevents)->{json} }, 1, 'after an event, of a relation');

# A Durable Stream: what state becomes of it is in sql/page_messages.sql
my $durable = get($http, "/streams/changes?offset=-1&limit=4");
take_messages(@{ $durable->{json} });
is(join(' ', map { "$_->{type}:$_->{key}:$_->{headers}{operation}" } @{ $durable->{json} }), 'public.a:1:insert public.a:2:insert',
	'a stream ends at a moment');
is(($durable->{headers}{'feed-moment'} // 'none') . " $durable->{headers}{'stream-next-offset'}", "true $entries[1]{cursor}", 'and says so');
is($durable->{headers}{'stream-up-to-date'}, undef, 'with more to come');
my $offset = $durable->{headers}{'stream-next-offset'};
$durable = get($http, "/streams/changes?offset=$offset&limit=3");
take_messages(@{ $durable->{json} });
is(scalar(@{ $durable->{json} }) . ' ' . ($durable->{headers}{'feed-moment'} // 'no moment'), '4 no moment',
	'a part of a moment; the key that moved is two messages');
is($durable->{json}[1]{headers}{operation} . $durable->{json}[1]{key} . $durable->{json}[2]{headers}{operation} . $durable->{json}[2]{key},
	'delete2insert3', 'a delete and an insert');
$durable = get($http, "/streams/changes?offset=$durable->{headers}{'stream-next-offset'}");
is($durable->{json}[0]{headers}{operation}, 'delete', 'no message of an owner');
is(scalar @{ $durable->{json} }, 1, 'before a TRUNCATE it ends');
my $refused = get($http, "/streams/changes?offset=$durable->{headers}{'stream-next-offset'}");
is("$refused->{status} $refused->{json}{sqlstate}", '400 0A000', 'which is not for readers of several relations');
push @{ $sent{Problem} }, $refused->{json};
$durable = get($http, "/streams/changes?offset=-1&type=public.a");
take_messages(@{ $durable->{json} });
is($durable->{json}[-1]{headers}{control}, 'reset', 'but for one of a single relation');
is($durable->{headers}{'stream-next-offset'}, $head, 'which is at the head');
is(get($http, '/streams/changes?offset=-1&type=public.a&type=public.a')->{json}[-1]{headers}{control}, 'reset', 'also if it is named twice');
is(get($http, "/streams/changes?offset=$offset&type=public.a&type=public.b")->{json}[-1]{headers}{control}, undef, 'but not of two');
$stream = read_until(send_request($http, "/streams/changes?offset=-1&type=public.b&live=sse"), qr/upToDate.*\n\n/);
like($stream, qr/^event: data\ndata:\[\{.*"reset".*\}\]\n\nevent: control\ndata:\{.*"upToDate":true,"feedMoment":true\}\n\n/m, 'live');
is(HTTP::Tiny->new->post("$http->{url}/streams/changes", { headers => { 'Content-Type' => 'application/json' }, content => '{}' })->{status},
	403, 'nothing is appended');
is(get($http, '/streams/changes', method => 'HEAD')->{headers}{'stream-next-offset'}, $head, 'HEAD');

# Subscriptions
sql($node, "SET ROLE regress_feedpub_web; SELECT feed_subscribe('copy', 'changes', 'earliest'), feed_subscribe('of b', 'changes', 'earliest', types => '{public.b}')");

sub poll
{
	my ($name, $body) = @_;
	my $answer = HTTP::Tiny->new->post("$http->{url}/subscriptions/$name/poll", { content => encode_json($body) });

	is($answer->{status}, 200, "a poll of $name") or diag $answer->{content};
	my $entries = decode_json($answer->{content})->{entries};
	push @{ $sent{ $name eq 'messages' ? 'Delivery' : 'DeliveredChange' } }, @$entries;
	return @$entries;
}

my @polled = poll('copy', { max_rows => 100 });
is(join(' ', map { $_->{op} } @polled), join(' ', map { $_->{op} } @entries) . ' message', 'all');
for my $i (0 .. $#entries)
{
	is_deeply([ map { $polled[$i]{$_} } qw(cursor op relation key old_key row old statement error) ],
		[ map { $entries[$i]{$_} } qw(cursor op relation key old_key row old statement error) ], "what entry $i has");
}
is(join(' ', map { $_->{moment} ? 1 : 0 } @polled), "@moments 1", 'with moments');
@polled = poll('copy', { max_rows => 3 });
is(join(' ', map { $_->{moment} ? 1 : 0 } @polled), '0 1 0', 'whatever the size');
@polled = poll('copy', { max_rows => 100, ack => $polled[1]{receipt} });
is($polled[0]{cursor}, $entries[2]{cursor}, 'after an acknowledgement');
is(join(' ', map { "$_->{relation}.$_->{op}" } poll('of%20b', {})), 'public.b.insert public.b.truncate', 'of a relation');

# Waiting: news of other relations wakes nobody up
my $waits = send_request($http, "/feeds/changes?after=$head&type=public.a&wait=600");
my $polls = send_request($http, "/streams/changes?offset=$head&live=long-poll&type=public.a&wait=600");
metric_is($http, 'waiting', 2, 'two wait');
sql($node, "INSERT INTO b VALUES ('other', 2); SELECT feed_flush('changes')");
sql($node, "INSERT INTO a VALUES (10, 'news'); SELECT feed_flush('changes')");
my $got = read_until($waits, qr/"more": \w+, "moment": \w+\}/);
like($got, qr/"v":"news"\}.*"moment": true\}\], "cursor": "[^"]*", "more": false, "moment": true\}$/, 'a page comes with its moment');
unlike($got, qr/"other"/, 'and with nothing else');
like(read_until($polls, qr/news"\}\}\]/), qr/^Feed-Moment: true\r$/m, 'and a long-poll');

# A transaction that is larger than a page, with a row that is larger than a
# piece of a stream: one moment
$head = sql($node, "SELECT feed_head('changes')");
sql($node, "INSERT INTO a SELECT i, CASE i WHEN 1500 THEN repeat(E'x\\n\\u00fc', 100000) ELSE i::text END FROM generate_series(1001, 2000) i; SELECT feed_flush('changes')");
my $end = sql($node, "SELECT feed_head('changes')");
for ([ '100 a page' => sub {
		my ($cursor, @all) = ($head);
		while (1)
		{
			my $part = get($http, "/feeds/changes?after=$cursor")->{json};

			push @all, @{ $part->{entries} };
			return @all if !$part->{more};
			$cursor = $part->{cursor};
		}
	} ],
	[ lines => sub { return map { decode_json($_) } split /\n/, get($http, "/feeds/changes?after=$head", %lines)->{content} } ],
	[ events => sub {
		my $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $http->{port}) or die "could not connect: $!";

		# HTTP/1.0 has no chunks
		print $socket "GET /feeds/changes?after=$head HTTP/1.0\r\nAccept: text/event-stream\r\n\r\n";
		return map { decode_json($_) } read_until($socket, qr/^id: \Q$end\E\n.*\n\n/m) =~ /^data: (.*)\n/mg;
	} ])
{
	my ($form, $read) = @$_;
	my @all = $read->();

	is(join(' ', map { $_->{key}{id} } @all), join(' ', 1001 .. 2000), "$form: all of a large transaction");
	is(join(' ', map { $_->{key}{id} } grep { $_->{moment} } @all), '2000', "$form: which is one moment");
	is(length $all[499]{row}{v}, 300000, "$form: with the large row");
}
my $state = get($http, "/streams/changes?offset=$head&limit=400");
is(($state->{headers}{'feed-moment'} // 'none') . ' ' . scalar @{ $state->{json} }, 'none 400', 'a part of it in a stream');

# What cannot be JSON
sql($node, "INSERT INTO changes (op, relation, key, error) VALUES ('update', 'public.a', '{\"id\": 7}', '22P05: not so'); SELECT feed_flush('changes')");
for my $entry (get($http, "/feeds/changes?after=$end")->{json}{entries}[0])
{
	is("$entry->{error} " . exists $entry->{row}, '22P05: not so ', 'an entry with an error');
	push @{ $sent{Change} }, $entry;
}
$state = get($http, "/streams/changes?offset=$end")->{json};
take_messages(@$state);
is_deeply([ $state->[0]{value}, $state->[0]{headers}{error} ], [ undef, '22P05: not so' ], 'a message without a value');
$batch = get($http, "/feeds/changes?after=$end", %cloudevents)->{json};
push @{ $sent{CloudEvent} }, @$batch;
is($batch->[0]{error}, '22P05: not so', 'an event with an error');

# A limit of the server, which no client can do anything about
sql($node, <<'SQL');
CREATE FUNCTION limited() RETURNS bool LANGUAGE plpgsql AS $$BEGIN RAISE 'too deep' USING ERRCODE = '54001'; END$$;
ALTER TABLE changes ENABLE ROW LEVEL SECURITY;
CREATE POLICY limited ON changes USING (limited());
SQL
is(get($http, "/feeds/changes?after=$head")->{status}, 500, 'class 54 is no fault of the client');
sql($node, 'ALTER TABLE changes DISABLE ROW LEVEL SECURITY');

# Outboxes and table feeds have no moments
sql($node, "SET ROLE regress_feedpub_web; SELECT feed_subscribe('messages', 'outbox', 'earliest')");
for my $feed ('outbox', 'kv')
{
	my $page = get($http, "/feeds/$feed");

	is(join(' ', sort keys %{ $page->{json} }), 'cursor entries more', "$feed: a page");
	is(join(' ', sort keys %{ $page->{json}{entries}[0] }), 'cursor key op published_at row xid', "$feed: an entry");
	unlike($_, qr/moment/, "$feed: no moment")
	  for get($http, "/feeds/$feed", %lines)->{content}, get($http, "/feeds/$feed", %cloudevents)->{content},
	  read_until(send_request($http, "/feeds/$feed", %events), qr/^data: .*\n\n/m),
	  read_until(send_request($http, "/streams/$feed?offset=-1&live=sse"), qr/upToDate.*\n\n/);
	is(get($http, "/streams/$feed")->{headers}{'feed-moment'}, undef, "$feed: nor in a stream");
	push @{ $sent{Page} }, $page->{json};
	push @{ $sent{CloudEvent} }, @{ get($http, "/feeds/$feed", %cloudevents)->{json} };
}
my ($message) = poll('messages', {});
is(join(' ', sort keys %$message), 'attempt cursor error key op published_at receipt row shard xid', 'a message that is polled');
http_stop($http);

compare();
done_testing();

# docs/openapi.yaml and what was sent: nothing was sent that it does not have,
# each member has its type, and what it has was sent.
sub compare
{
	my $schemas = read_schemas(slurp_file("$FindBin::RealBin/../../docs/openapi.yaml"));
	my %seen;

	for my $name (sort keys %sent)
	{
		my @wrong = map { check($schemas, { '$ref' => "#/components/schemas/$name" }, $_, $name, \%seen) } @{ $sent{$name} };

		is(join("\n", @wrong), '', scalar @{ $sent{$name} } . " of the schema $name");
	}
	my %expected = map { $_ => 1 } map { my $s = $_; map { "$s.$_" } keys %{ $schemas->{$s}{properties} } }
	  qw(Feeds Feed Page Entry Change Moment Delivery DeliveredChange ChangeMessage ChangeHeaders ControlMessage ControlHeaders);
	is(join(' ', grep { !$seen{$_} } sort keys %expected), 'Entry.error', 'all that they have was sent');
	return;
}

# The schemas: of each the members that stand in a line
sub read_schemas
{
	my ($yaml) = @_;
	my (%schemas, $schema);

	for (split /\n/, $yaml =~ s/.*^  schemas:\n//msr)
	{
		$schema = $schemas{$1} = {} if /^    (\w+):$/;
		$schema->{$1} = read_flow($2) if /^      (\w+): (.+)$/;
		$schema->{properties}{$1} = read_flow($2) if /^        (\w+): (.+)$/;
	}
	return \%schemas;
}

# A YAML flow value, which becomes JSON
sub read_flow
{
	my ($flow) = @_;
	my $json = '';

	return $flow =~ s/^"|"$//gr if $flow !~ /^[{\[]/;

	# each part is a token, of which names and texts get quotes
	while ($flow =~ /\G\s*(?:([{}\[\],])|(:)\s|("[^"]*")|([^{}\[\],":]+))/gc)
	{
		my ($part, $text) = ($1 // $2 // $3, $4);

		$part //= $text if defined $text && $text =~ /^(?:true|false|\d+)$/;
		$json .= $part // qq("$text");
	}
	return JSON::PP->new->allow_nonref->decode($json);
}

# What is wrong with a value
sub check
{
	my ($schemas, $schema, $value, $path, $seen) = @_;
	my $name = ($schema->{'$ref'} // '') =~ s{.*/}{}r;
	my @wrong;

	$schema = $schemas->{$name} // return "$path: no schema $name" if $name ne '';
	if ($schema->{anyOf})
	{
		for my $one (@{ $schema->{anyOf} })
		{
			my %also;

			@wrong = check($schemas, $one, $value, $path, \%also);
			next if @wrong;
			@$seen{ keys %also } = values %also;
			return;
		}
		return @wrong;
	}
	my $json = JSON::PP->new->allow_nonref->canonical;
	my $text = $json->encode($value);
	my $type = $text =~ /^\{/ ? 'object' : $text =~ /^\[/ ? 'array' : $text =~ /^"/ ? 'string' : $text =~ /^[tf]/ ? 'boolean' : $text eq 'null' ? 'null' : 'integer';
	my $types = $schema->{type} // $type;
	my @allowed = $schema->{const} // @{ $schema->{enum} // [] };

	push @wrong, "$path: is a $type" unless grep { $_ eq $type } ref $types ? @$types : $types;
	push @wrong, "$path: is $text" if @allowed && !grep { $json->encode($_) eq $text } @allowed;
	push @wrong, map { check($schemas, $schema->{items}, $_, $path, $seen) } @$value if $type eq 'array' && $schema->{items};
	return @wrong if $type ne 'object' || !$schema->{properties};
	push @wrong, map { "$path: no $_" } grep { !exists $value->{$_} } @{ $schema->{required} // [] };
	for my $member (sort keys %$value)
	{
		my $of = $schema->{properties}{$member};

		push @wrong, $of ? check($schemas, $of, $value->{$member}, "$path.$member", $seen) : "$path: has $member";
		$seen->{"$name.$member"} = 1;
	}
	return @wrong;
}
