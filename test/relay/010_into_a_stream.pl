# A feed into a stream: the stream is made, each message is there once, in
# published order, with its attributes; a restart goes on where the stream ends.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubRelay;
use FeedpubTest;
use JSON::PP;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'");
my $nats = nats_start('n1');

sql($node, <<'SQL');
SELECT feed_create('outbox');
INSERT INTO outbox (publication_id, message_type, message_id, message_key, data, headers)
	VALUES ('shop', 'order.placed', 'id 1', 'order 1', '{"total": 10}', '{"traceparent": "00-a-b-01"}');
SELECT feed_start_worker();
SELECT feed_flush('outbox');
SQL

# the plain call, once
is(relay_once($node, $nats), 0, 'sends what there is, and ends');
my $info = nats_api($nats, 'STREAM.INFO.outbox');
is_deeply($info->{config}{subjects}, ['outbox.>'], 'the stream has the subjects of the feed');
is($info->{config}{num_replicas}, 1, 'one replica');
is($info->{config}{storage}, 'file', 'in a file');
my ($message) = stream_messages($nats, 'outbox');
my ($cursor) = sql($node, "SELECT cursor FROM feed_read(NULL::outbox) WHERE op = 'upsert'");
is($message->{subject}, 'outbox.order.placed.order%201', 'the subject is feed, type and key');
is($message->{data}, '{"total": 10}', 'the data is the message');
my %headers = %{ $message->{headers} };
like(delete $headers{'ce-time'}, qr/^\d{4}-\d\d-\d\dT.*\+00:00$/, 'when it was published');
like(delete $headers{'Feedpub-Relay'}, qr/^\S+ [0-9a-f]{16}$/, 'which relay has sent it');
is_deeply(
	\%headers,
	{
		'Nats-Expected-Last-Sequence' => 0,
		'Nats-Expected-Stream' => 'outbox',
		'ce-specversion' => '1.0',
		'ce-id' => $cursor,
		'ce-source' => '/feeds/public.outbox',
		'ce-type' => 'order.placed',
		'ce-subject' => 'order%201',
		'ce-messageid' => 'id%201',
		'ce-publication' => 'shop',
		'ce-traceparent' => '00-a-b-01',
		'Content-Type' => 'application/json'
	},
	'attributes are headers');

# going on
is(relay_once($node, $nats), 0, 'a second run');
is(scalar(stream_messages($nats, 'outbox')), 1, 'sends nothing again');
my $relay = relay_start($node, $nats);
sql($node, "INSERT INTO outbox (message_type, message_key, data) SELECT 'n', i, to_json(i) FROM generate_series(1, 5000) i");
stream_has($nats, 'outbox', 5001, 'one that runs sends what is published');
soon(sub { relay_metric($relay, 'at_end') == 1 }, 'and knows that there is no more');
# an acknowledgement on a connection that it has given up is none
ok(relay_metric($relay, 'sent_total') == 5000 || relay_metric($relay, 'failures_total') > 0, 'and how many it has sent');
is(relay_metric($relay, 'in_flight'), 0, 'all is acknowledged');
is(relay_get($relay, '/live')->{content}, "ok\n", '/live');
is(relay_get($relay, '/nothing')->{status}, 404, 'what there is not');
is(relay_stop($relay), 0, 'SIGTERM ends it');
my @messages = stream_messages($nats, 'outbox');
is_deeply([ map { $_->{data} } @messages ], [ '{"total": 10}', 1 .. 5000 ], 'each once, in order');
is_deeply([ map { $_->{seq} } @messages ], [ 1 .. 5001 ], 'in a stream without others');

# nothing is there yet
is(relay_once($node, $nats, feed => 'outbox', stream => 'late', subject => 'late.{key}', from => 'latest'), 0, '--from=latest');
is(scalar(stream_messages($nats, 'late')), 0, 'begins at the end');
sql($node, "INSERT INTO outbox (message_type, message_key, data) VALUES ('n', 'a', '\"late\"')");
sql($node, "SELECT feed_flush('outbox')");
is(relay_once($node, $nats, feed => 'outbox', stream => 'late', subject => 'late.{key}', from => 'latest'), 0, 'and again');
is_deeply([ map { $_->{data} } stream_messages($nats, 'late') ], ['"late"'], 'which is where the first run was');
is(relay_once($node, $nats, stream => 'middle', subject => 'middle.{key}', from => $messages[4998]{headers}{'ce-id'}), 0, '--from=CURSOR');
is_deeply([ map { $_->{data} } stream_messages($nats, 'middle') ], [ 4999, 5000, '"late"' ], 'begins after it');

# looks, and makes nothing
my $checked = relay_start($node, $nats, stream => 'none', subject => 'none.{key}', check => 1, wait => 0);
is(relay_wait($checked), 0, '--check');
like(relay_log($checked), qr/can be read, and its sink is there/, 'says so');
is(nats_api($nats, 'STREAM.INFO.none')->{error}{code}, 404, 'and makes no stream');
$checked = relay_start($node, $nats, feed => 'nothing', check => 1, wait => 0);
relay_logs($checked, qr/relation .*nothing.* does not exist/, '--check of a feed that is not there');
isnt(relay_wait($checked), 0, 'fails');

done_testing();
