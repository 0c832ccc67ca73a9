# Consumers of subscriptions by POST: poll, ack, nack, park, leave.

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

sql($node, <<'SQL');
CREATE ROLE regress_feedpub_login LOGIN NOINHERIT;
CREATE ROLE regress_feedpub_web;
GRANT regress_feedpub_web TO regress_feedpub_login;
SELECT feed_create('outbox'), feed_create('other'), feed_start_worker();
GRANT SELECT ON outbox TO regress_feedpub_web;
INSERT INTO outbox (message_type, message_key, data) SELECT 'A', i, to_json(i) FROM generate_series(1, 5) i;
SELECT feed_flush('outbox');
SET ROLE regress_feedpub_web;
SELECT feed_subscribe('mail', 'outbox', 'earliest');
SELECT feed_subscribe('steps', 'outbox', 'earliest', backoff => '{2 h}');
SELECT feed_subscribe('odd/ "ü"', 'outbox', 'earliest');
SELECT feed_subscribe('group', 'outbox', 'earliest', shards => 2, lease => '1 h');
RESET ROLE;
SELECT feed_subscribe('theirs', 'other', 'earliest');
SQL
my $http = http_start($node, user => 'regress_feedpub_login', anonymous_role => 'regress_feedpub_web', pool => 2);

sub post
{
	my ($path, $body) = @_;
	my $response = HTTP::Tiny->new(timeout => $PostgreSQL::Test::Utils::timeout_default)
	  ->post("$http->{url}/subscriptions/$path", { content => ref $body ? encode_json($body) : $body });

	$response->{json} = decode_json($response->{content})
	  if ($response->{headers}{'content-type'} // '') =~ /json$/;
	return $response;
}

sub entries { return @{ post(@_)->{json}{entries} // [] } }

sub numbers { return join ' ', map { $_->{row}{data} } @_ }

sub problem
{
	my ($path, $body, $status, $sqlstate, $test) = @_;
	my $response = post($path, $body);
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is("$response->{status} " . ($response->{json}{sqlstate} // ''), "$status $sqlstate", $test)
	  or diag $response->{content};
	return $response->{json}{detail};
}

# a request that has been sent
sub send_post
{
	my ($path, $body) = @_;
	my $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $http->{port})
	  or die "could not connect: $!";
	my $text = encode_json($body);

	print $socket "POST /subscriptions/$path HTTP/1.1\r\nHost: localhost\r\nContent-Length: ",
	  length $text, "\r\n\r\n$text";
	$socket->flush;
	return $socket;
}

sub insert
{
	my ($data) = @_;
	sql($node, "INSERT INTO outbox (message_type, message_key, data) VALUES ('A', '$data', '$data')");
	return;
}

# a page, and its acknowledgement
my @page = entries('mail/poll', { max_rows => 2 });
is(numbers(@page), '1 2', 'a page');
is_deeply([ sort keys %{ $page[0] } ],
	[qw(attempt cursor error key op published_at receipt row shard xid)], 'the columns of feed_poll()');
is(numbers(entries('mail/poll', '')), '1 2 3 4 5', 'it comes again');
is_deeply(post('mail/ack', { receipt => $page[1]{receipt} })->{json}, { acknowledged => JSON::PP::true },
	'is acknowledged');
like(problem('mail/ack', { receipt => $page[1]{receipt} }, 409, 'PF005', 'twice'), qr/already acknowledged/, 'says so');
is_deeply(post('mail/ack', { receipt => $page[1]{receipt}, strict => JSON::PP::false })->{json},
	{ acknowledged => JSON::PP::true }, 'which can be no error');
@page = entries('mail/poll', { max_rows => 1 });
is(numbers(@page), '3', 'the next one');
@page = entries('mail/poll', { max_rows => 1, ack => $page[0]{receipt} });
is(numbers(@page), '4', 'a poll that acknowledges');

# poison: a nack, and a park
is_deeply(post('mail/nack', { receipt => $page[0]{receipt}, delay => '0 s', reason => "it's \"busy\"" })->{json},
	{ parked => JSON::PP::true }, 'a nack');
@page = entries('mail/poll', { ack => $page[0]{receipt} });
is(numbers(@page) . ' ' . $page[0]{attempt}, '4 2', 'it comes again, once more');
is(sql($node, q(SELECT reason FROM feedpub.parked)), q(it's "busy"), 'the reason');
is_deeply(post('mail/park', { receipt => $page[0]{receipt} })->{json}, { parked => JSON::PP::true }, 'a park');
@page = entries('mail/poll', {});
is(numbers(@page), '5', 'it comes no more');
is(sql($node, q(SELECT state, attempts FROM feedpub.parked)), 'parked|2', 'it is parked');

my ($step) = entries('steps/poll', { max_rows => 1 });
is_deeply(post('steps/nack', { receipt => $step->{receipt} })->{json}, { parked => JSON::PP::true }, 'a nack without a delay');
is( sql($node, q(SELECT retry_at > clock_timestamp() + interval '1 h' FROM feedpub.parked WHERE subscription = 'steps')),
	't', 'has that of the subscription');
sql($node, q(SELECT feed_discard('steps', cursor) FROM feedpub.parked WHERE subscription = 'steps'));

# a poll that waits
my $empty = post('mail/poll', { ack => $page[0]{receipt}, timeout => 0.1 });
is("$empty->{status} " . scalar @{ $empty->{json}{entries} }, '200 0', 'at the end of the wait');
is($empty->{headers}{'cache-control'}, 'no-store', 'no answer is kept');
my $socket = send_post('mail/poll', { timeout => '60 s' });
metric_is($http, 'waiting', 1, 'it waits');
is(sql($node, <<'SQL'), '0', 'without a transaction');
SELECT count(*) FROM pg_stat_activity WHERE usename = 'regress_feedpub_login' AND state LIKE '%in transaction%'
SQL
insert(6);
like(read_until($socket, qr/\}\]\}\n/), qr/^HTTP\/1.1 200 .*"data":6/s, 'it is woken');
@page = entries('mail/poll', {});
$socket = send_post('mail/poll', { ack => $page[0]{receipt}, timeout => 60 });
metric_is($http, 'waiting', 1, 'one that has acknowledged waits');
$node->stop('immediate');
$node->start;
insert(7);
like(read_until($socket, qr/\}\]\}\n|\}\n/), qr/^HTTP\/1.1 (200 .*"data":7|503 )/s, 'over a restart of the database');
is(numbers(entries('mail/poll', { timeout => 60 })), '7', 'what it acknowledged is');
$socket = send_post('odd%2F%20%22%C3%BC%22/poll', { timeout => 60 });
like(read_until($socket, qr/\}\]\}\n/), qr/"data":1\b/, 'an odd name');

# a parked entry that is due, which is no news
@page = entries('mail/poll', {});
post('mail/nack', { receipt => $page[0]{receipt}, delay => '1 s' });
is(numbers(entries('mail/poll', { ack => $page[0]{receipt}, timeout => 60 })), '7', 'a delay that ends');

# two consumers of a group: one has all shards, and leaves
my %seen;
while (my @entries = entries('group/poll', { consumer => 'one' }))
{
	$seen{ $_->{row}{data} }++ for @entries;
	post('group/ack', { receipt => $entries[-1]{receipt} });
}
is(join(' ', map { "$_:$seen{$_}" } sort keys %seen), '1:1 2:1 3:1 4:1 5:1 6:1 7:1', 'a group reads all');
problem('group/poll', {}, 400, '22023', 'a group needs the name of the consumer');
insert(8);
sql($node, q(SELECT feed_flush('outbox')));
is(numbers(entries('group/poll', { consumer => 'one' })), '8', 'the one has it');
$socket = send_post('group/poll', { consumer => 'two', timeout => 60 });
metric_is($http, 'waiting', 1, 'another one waits');
is(post('group/leave', { consumer => 'one' })->{json}{shards}, 2, 'the one leaves');
like(read_until($socket, qr/\}\]\}\n/), qr/"data":8/, 'the other one goes on');

# the state
my $state = get($http, '/subscriptions/mail');
is("$state->{json}{name} $state->{json}{feed} $state->{json}{parked}", 'mail outbox 2', 'the state of a subscription');
is(get($http, "/subscriptions/$_")->{status}, 404, 'there is none') for 'theirs', 'none';

# errors
problem("theirs/$_->[0]", $_->[1], 404, '42704', "another role's: $_->[0]")
  for [ poll => {} ], [ ack => { receipt => $page[0]{receipt} } ], [ nack => { receipt => $page[0]{receipt} } ],
  [ park => { receipt => $page[0]{receipt} } ], [ leave => { consumer => 'x' } ];
is(problem('none/poll', {}, 404, '42704', 'none') =~ s/none/theirs/r,
	problem('theirs/poll', {}, 404, '42704', "another role's"), 'looks like none');
problem('mail/poll', '{', 400, '22P02', 'malformed');
problem('mail/poll', '[' x 1e5, 413, '54001', 'nested too deeply');
problem('mail/poll', '[1]', 400, '22023', 'no object');
problem('mail/poll', "{\"consumer\": \"\0\"}", 400, '', 'a NUL');
problem('mail/poll', '{"consumer": "\u0000"}', 400, '22P05', 'an escaped NUL');
problem('mail/poll', { max_rows => 'x' }, 400, '22P02', 'no number');
problem('mail/poll', { max_rows => 0 }, 400, '22023', 'too few');
like(problem('mail/poll', { 'odd " name' => 1 }, 400, '', 'an unknown member'), qr/: "odd " name"$/, 'is named');
for my $action ('retry', 'discard')
{
	like(problem("mail/$action", {}, 403, '', "$action that is not said to be JSON"), qr/Content-Type: application\/json/, 'is told how');
}
problem('mail/ack', {}, 400, '22004', 'no receipt');
problem('mail/ack', { receipt => 'x' }, 400, '22023', 'a malformed receipt');
problem('mail/nack', { receipt => $page[0]{receipt}, delay => '-1 s' }, 400, '22023', 'a negative delay');
problem('mail/other', {}, 404, '', 'no such action');
problem('mail', {}, 405, '', 'a state is not posted');
my $wrong = get($http, '/subscriptions/mail/poll');
is("$wrong->{status} $wrong->{headers}{allow}", '405 POST, OPTIONS', 'a poll is no GET');
sql($node, q(REVOKE SELECT ON outbox FROM regress_feedpub_web));
problem('mail/poll', {}, 403, '42501', 'without SELECT');
sql($node, q(GRANT SELECT ON outbox TO regress_feedpub_web));

# a delayed message, which a poll gets when it is due
sql($node, <<'SQL');
SET ROLE regress_feedpub_web;
SELECT feed_subscribe('later', 'outbox', delayed => true);
RESET ROLE;
INSERT INTO outbox (message_type, data, scheduled) VALUES ('A', '"due"', clock_timestamp() + interval '2 s'), ('A', '"never"', 'infinity');
SELECT feed_flush('outbox');
SQL
my @due;
for (1 .. 20)
{
	@due = entries('later/poll', { timeout => 30 }) and last;
}
is(numbers(@due), 'due', 'a delayed message comes');
is(sql($node, "SELECT clock_timestamp() >= '$due[0]{row}{scheduled}'"), 't', 'not before it is due');
is(post('later/ack', { receipt => $due[0]{receipt} })->{status}, 200, 'and is acknowledged');
ok(get($http, '/subscriptions/later')->{json}{delayed}, 'the state of the subscription says so');
is(sql($node, "SELECT message ->> 'data', state FROM feedpub.parked WHERE subscription = 'later'"), 'never|scheduled', 'another one waits');
sql($node, q(SELECT feed_unsubscribe('later')));

# a consumer that was taken over, and one that has expired
my @old = entries('odd%2F%20%22%C3%BC%22/poll', {});
sql($node, q(SELECT feed_seek('odd/ "ü"', 'earliest')));
problem('odd%2F%20%22%C3%BC%22/ack', { receipt => $old[0]{receipt} }, 409, 'PF003', 'moved meanwhile');
sql($node, <<'SQL');
SELECT feed_retain('outbox', keep => '0', max_age => '1 ms');
SELECT feed_flush('outbox');
SQL
$node->poll_query_until('postgres',
	q(SELECT bool_and(expired) FROM feedpub.subscriptions WHERE name LIKE 'odd%')) or die 'it did not expire';
problem('odd%2F%20%22%C3%BC%22/poll', {}, 410, 'PF002', 'expired');
my $expired = get($http, "/feeds/outbox?after=$old[0]{cursor}");
is("$expired->{status} $expired->{json}{sqlstate} $expired->{json}{begin}", '410 PF002 ./outbox',
	'a cursor before the floor, and where to begin');
like($expired->{json}{detail}, qr/ has expired\. Rows after it are no longer retained since \d{4}-\d\d-\d\d \d/,
	'and since when');
is(get($http, url_from('/feeds/outbox', $expired->{json}{begin}))->{status}, 200, 'which is served');

is(http_stop($http), 0, 'the server ends');
done_testing();
