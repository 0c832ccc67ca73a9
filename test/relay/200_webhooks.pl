# A webhook gets each entry of a subscription: attributes, signatures, the order
# of each key, several requests in flight, what fails, and what is parked.

use strict;
use warnings FATAL => 'all';

use Digest::SHA 'hmac_sha256_base64';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubReceiver;
use FeedpubRelay;
use FeedpubTest;
use MIME::Base64;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'");
my $receiver = receiver_start();
my $directory = PostgreSQL::Test::Utils::tempdir();
my @secrets = map { 'whsec_' . encode_base64(join('', map { chr } $_ .. $_ + 31), '') } 3, 100;

append_to_file("$directory/secrets", "$secrets[0]\n$secrets[1]\n");
sql($node, 'SELECT feed_start_worker()');

sub start
{
	my (%options) = @_;

	return relay_start($node, undef, to => $receiver->{url}, secrets => "$directory/secrets",
		subscription => 'hook', allow => '127.0.0.0/8', request_timeout => 120, %options);
}

# The first of these that a body has.
sub bodies { return map { $_->{body} } receiver_requests($receiver) }
sub got { my ($n, $test) = @_; return soon(sub { receiver_requests($receiver) >= $n }, $test) }

sub insert
{
	my ($key, @data) = @_;

	sql($node, "INSERT INTO outbox (message_type, message_key, message_id, data) SELECT 'n', "
		  . (defined $key ? "'$key'" : 'NULL') . ", d, to_json(d) FROM unnest('{" . join(',', @data) . "}'::text[]) d");
	return;
}

# An implementation of signatures that shares nothing with the relay's.
sub signature
{
	my ($secret, $request) = @_;
	my $key = decode_base64($secret =~ s/^whsec_//r);
	my $text = "$request->{headers}{'webhook-id'}.$request->{headers}{'webhook-timestamp'}.$request->{body}";
	my $mac = hmac_sha256_base64($text, $key);

	return 'v1,' . $mac . '=' x (-length($mac) % 4);
}

# attributes and signatures
sql($node, <<'SQL');
SELECT feed_create('outbox');
INSERT INTO outbox (publication_id, message_type, message_id, message_key, data, headers)
	VALUES ('shop', 'order.placed', 'id.1', E'a 1%\n', '{"total": 10}', '{"traceparent": "00-a-b-01"}');
SELECT feed_flush('outbox');
SQL
my $once = start(once => 1);
is(relay_wait($once), 0, '--once');
my ($request) = receiver_requests($receiver);
my %headers = %{ $request->{headers} };
is($request->{body}, '{"total": 10}', 'the body is the data');
is($headers{'ce-subject'}, 'a%201%2525%250A', 'the key');
my ($cursor) = sql($node, "SELECT cursor FROM feed_read(NULL::outbox) WHERE op = 'upsert'");
is_deeply(
	{ map { $_ => $headers{$_} } grep { /^ce-(?!time|subject)|^content-type|^user/ } keys %headers },
	{
		'ce-specversion' => '1.0',
		'ce-id' => $cursor,
		'ce-source' => '/feeds/public.outbox',
		'ce-type' => 'order.placed',
		'ce-messageid' => 'id.1',
		'ce-publication' => 'shop',
		'ce-traceparent' => '00-a-b-01',
		'content-type' => 'application/json',
		'user-agent' => $headers{'user-agent'}
	},
	'attributes are headers');
like($headers{'ce-time'}, qr/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00$/, 'when it was published');
is($headers{'webhook-id'}, 'id%2E1', 'the id is that of the message');
ok(abs($headers{'webhook-timestamp'} - time) < 300, 'the timestamp is now');
is($headers{'webhook-signature'}, join(' ', map { signature($_, $request) } @secrets), 'it is signed by both secrets');
is(sql($node, 'SELECT lag_rows FROM feedpub.subscriptions'), '0', 'it is acknowledged');

# one in flight for each key, several of different keys, in the order of each key
sql($node, q{SELECT feed_alter_subscription('hook', backoff => '{1 h}')});
my $relay = start(attempts => 3);
receiver_rules($receiver, { match => '', hold => 1 });
sql($node, "INSERT INTO outbox (message_type, message_key, message_id, data)
	SELECT 'n', 'k' || i % 5, i, json_build_object('i', i) FROM generate_series(1, 100) i");
got(6, 'one message of each key');
receiver_rules($receiver, { match => '', delay => 0.05 });
got(101, 'a hundred messages');
soon(sub { relay_metric($relay, 'sent_total') == 100 }, 'are accepted');
my (%open, %last, $most);
my $in_order = 1;
for my $event (grep { $_->{body} =~ /"i"/ } receiver_events($receiver))
{
	my ($i) = $event->{body} =~ /(\d+)/;
	my $key = $i % 5;

	if ($event->{event} eq 'begin')
	{
		$in_order = 0 if $open{$key} || $i <= ($last{$key} // 0);
		($open{$key}, $last{$key}) = (1, $i);
		$most = keys %open if keys %open > ($most // 0);
	}
	else
	{
		delete $open{$key};
	}
}
ok($in_order, 'each key has its order, and one request at a time');
is($most, 5, 'and all keys are in flight at a time');
soon(sub { relay_metric($relay, 'at_end') == 1 }, 'at the end');

# a receiver that does not work: nothing is parked, and the order stays
receiver_rules($receiver, { match => '', status => 503, times => 2 });
insert('b', 'b1', 'b2');
soon(sub { relay_metric($relay, 'sent_total') == 102 }, 'what fails is sent again');
is_deeply([ (bodies())[ -4 .. -1 ] ], [ '"b1"', '"b1"', '"b1"', '"b2"' ], 'and its key waits');
is(sql($node, 'SELECT count(*) FROM feedpub.parked'), '0', 'nothing is parked');
relay_logs($relay, qr/could not deliver: the receiver answered with status 503/, 'the log says so');

# Retry-After
receiver_rules($receiver, { match => 'c1', status => 429, times => 1, headers => { 'Retry-After' => 3 } });
insert('c', 'c1', 'c2');
soon(sub { relay_metric($relay, 'sent_total') == 104 }, 'a receiver that is busy gets it again');
my @times = map { $_->{time} } grep { $_->{body} eq '"c1"' } receiver_requests($receiver);
ok(@times == 2 && $times[1] - $times[0] >= 3, 'not before Retry-After');

# an entry that it cannot take, while others are taken
receiver_rules($receiver, { match => 'd1', status => 400 });
insert('d', 'd1', 'd2');
insert('e', 'e1');
is_soon($node, "(SELECT state = 'waiting' AND reason = 'the receiver answered with status 400'"
	  . " AND message->>'message_id' = 'd1' FROM feedpub.parked)", 'after so many attempts it is parked');
soon(sub { relay_metric($relay, 'sent_total') == 106 }, 'and the others go on');
is(scalar(grep { $_ eq '"d1"' } bodies()), 3, 'three attempts');
receiver_rules($receiver);
sql($node, "SELECT feed_retry('hook')");
soon(sub { relay_metric($relay, 'sent_total') == 107 }, 'it comes again');
is_soon($node, '(SELECT count(*) = 0 FROM feedpub.parked)', 'and is accepted then');

# one that it cannot take, and nothing else that would show that it works
receiver_rules($receiver, { match => 'x1', status => 500 });
insert('x', 'x1');
insert('y', 'y1');
is_soon($node, "(SELECT reason = 'the receiver answered with status 500' FROM feedpub.parked)", 'a page of one entry does not block');
soon(sub { relay_metric($relay, 'sent_total') == 108 }, 'what is after it');
sql($node, "SELECT feed_discard('hook', cursor) FROM feedpub.parked");

# 410
receiver_rules($receiver, { match => 'f1', status => 410 });
insert('f', 'f1', 'f2');
is_soon($node, "(SELECT state = 'parked' AND message->>'message_id' = 'f1' FROM feedpub.parked)", '410 parks for good');
soon(sub { relay_metric($relay, 'sent_total') == 109 }, 'and the next one of its key goes on');
is(scalar(grep { $_ eq '"f1"' } bodies()), 1, 'it was sent once');
sql($node, "SELECT feed_discard('hook', cursor) FROM feedpub.parked");

# redirects are not followed
my $other = receiver_start();
receiver_rules($receiver, { match => 'g1', status => 307, times => 1, headers => { Location => $other->{url} } });
insert('g', 'g1');
soon(sub { relay_metric($relay, 'sent_total') == 110 }, 'a redirect is a failure');
is(scalar(receiver_requests($other)), 0, 'and is not followed');

# bodies without end, and no answer at all
relay_stop($relay);
$relay = start(request_timeout => 2);
receiver_rules($receiver, { match => 'h1', endless => 100000 }, { match => 'h2', endless => 1 },
	{ match => 'h3', hang => 1, times => 1 });
insert('h', 'h1', 'h2', 'h3');
soon(sub { relay_metric($relay, 'sent_total') == 3 }, 'long and slow bodies do not matter');
my $failures = relay_metric($relay, 'failures_total');
cmp_ok(scalar(grep { /"h3"/ } bodies()), '>=', 2, 'without an answer it is sent again');
cmp_ok(scalar(grep { /"h[123]"/ } bodies()), '<=', 3 + $failures, 'nothing else is, for the status has come');
relay_logs($relay, qr/could not deliver: .*timed? ?out/i, 'the log says so');
is(relay_stop($relay), 0, 'SIGTERM ends it');
receiver_rules($receiver);

# private addresses
$relay = start(allow => '', wait => 0);
insert('i', 'i1');
relay_logs($relay, qr{its address is not public}, 'an address that is not public is refused');
relay_stop($relay);
$relay = start(allow => '10.0.0.0/8,127.0.0.2,::1', wait => 0);
relay_logs($relay, qr/its address is not public/, 'nor is one that is not in the list');
relay_stop($relay);
$relay = start(allow => '', to => "http://[::ffff:127.0.0.1]:$receiver->{port}/", wait => 0);
relay_logs($relay, qr/its address is not public/, 'an address of IPv4 in one of IPv6');
relay_stop($relay);
is(scalar(grep { $_ eq '"i1"' } bodies()), 0, 'nothing was sent there');
$relay = start(allow => '127.0.0.1');
got(1, 'one that is in the list');
soon(sub { scalar(grep { $_ eq '"i1"' } bodies()) == 1 }, 'gets it');

# a key of which no secret may be seen
unlike(relay_log($relay), qr/whsec_/, 'no secret is in the log');
relay_stop($relay);

# other secrets
$relay = start();
open my $file, '>', "$directory/secrets" or die $!;
print $file "$secrets[1]\n";
close $file;
kill 'HUP', $relay->{pid};
relay_logs($relay, qr/settings reloaded/, 'SIGHUP');
insert('j', 'j1');
soon(sub { scalar(grep { $_ eq '"j1"' } bodies()) == 1 }, 'a message after it');
($request) = grep { $_->{body} eq '"j1"' } receiver_requests($receiver);
is($request->{headers}{'webhook-signature'}, signature($secrets[1], $request), 'has the signature of the secret that is left');
relay_stop($relay);
@secrets = $secrets[1];

# settings
for my $case ([ 'secrets', '/nonexistent', qr/could not open file/ ], [ 'subscription', '', qr{subscription.* is missing} ],
	[ 'allow', 'localhost', qr{allow.* is no list} ])
{
	my ($name, $value, $pattern) = @$case;
	my $bad = start($name => $value, wait => 0);

	is(relay_wait($bad), 2, "a wrong setting $name");
	like(relay_log($bad), $pattern, 'says so');
}
append_to_file("$directory/short", 'whsec_' . encode_base64('short', ''));
my $bad = start(secrets => "$directory/short", wait => 0);
is(relay_wait($bad), 2, 'a secret that is too short');
my $checked = start(check => 1, wait => 0, subscription => 'none');
is(relay_wait($checked), 0, '--check');
is(sql($node, "SELECT count(*) FROM feedpub.subscriptions WHERE name = 'none'"), '0', 'makes no subscription');
sql($node, "SELECT feed_create('elsewhere')");
$bad = start(feed => 'elsewhere', wait => 0);
relay_logs($bad, qr/stopped: .*\(42710\)/, 'the subscription of another feed stops it');
relay_stop($bad);

# a table feed, a change feed, and what is not there
sql($node, <<'SQL');
CREATE TABLE kv (k text, n int, v text, PRIMARY KEY (k, n));
SELECT feed_attach('kv');
SELECT feed_create_changes('changes');
SELECT feed_capture('kv', 'changes');
INSERT INTO kv VALUES ('a b', 1, 'x');
UPDATE kv SET n = 2;
DELETE FROM kv;
INSERT INTO kv VALUES ('c', 3, 'y');
SELECT feed_flush('kv');
SELECT feed_flush('changes');
TRUNCATE kv;
SELECT feed_flush('kv');
SELECT feed_flush('changes');
SQL
is(relay_wait(start(feed => 'kv', subscription => 'rows', once => 1)), 0, 'a table feed');
my @rows = (receiver_requests($receiver))[ -3 .. -1 ];
is($rows[-1]{headers}{'ce-type'}, 'public.kv.truncate', 'a TRUNCATE comes last');
is($rows[-1]{headers}{'ce-method'}, 'DELETE', 'and is a DELETE');
my ($delete) = grep { $_->{headers}{'ce-type'} eq 'public.kv.delete' } @rows;
is($delete->{body}, '', 'a delete has no body');
is($delete->{headers}{'webhook-signature'}, join(' ', map { signature($_, $delete) } @secrets), 'and is signed');
is(relay_wait(start(feed => 'changes', subscription => 'changes', requests => 1, once => 1)), 0, 'a change feed');
my @changes = (receiver_requests($receiver))[ -5 .. -1 ];
is_deeply([ map { $_->{headers}{'feedpub-op'} } @changes ], [qw(insert update delete insert truncate)], 'all changes')
  or diag(explain(\@changes));
is($changes[1]{headers}{'feedpub-relation'}, 'public.kv', 'with the relation');
is($changes[1]{headers}{'ce-subject'}, '[%22a%20b%22,2]', 'the key');
is($changes[1]{headers}{'feedpub-old-key'}, '[%22a%20b%22,1]', 'and the old one');
my ($page) = sql($node, "SELECT feed_page('changes')");
my $entries = JSON::PP::decode_json($page)->{entries};
is_deeply([ map { JSON::PP::decode_json($_->{body}) } @changes ], $entries, 'the body is the entry of a page');

done_testing();
