# Streams with messages of others, that are purged, deleted, sealed, full, or not
# such that a relay can write into them.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubRelay;
use FeedpubTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'");
my $nats = nats_start('n1');
my $written = 0;

sub write_messages
{
	my ($n, $type) = @_;

	$type //= 'n';
	sql($node, "INSERT INTO outbox (message_type, message_key, data) SELECT '$type', i, to_json(i) FROM generate_series($written + 1, $written + $n) i");
	$written += $n;
	sql($node, "SELECT feed_flush('outbox')");
	return;
}

sub make_stream
{
	my ($name, %config) = @_;
	my $made = nats_api($nats, "STREAM.CREATE.$name",
		{ name => $name, subjects => ["$name.>"], retention => 'limits', storage => 'file', max_consumers => -1, max_msgs => -1,
		  max_bytes => -1, discard => 'old', num_replicas => 1, %config });

	die $made->{error}{description} if $made->{error};
	return;
}

sub of_stream { return (stream => $_[0], subject => "$_[0].{type}.{key}", @_[1 .. $#_]) }
sub data { return [ map { $_->{data} } stream_messages($nats, $_[0]) ] }

# Runs a relay that is to stop, with this message.
sub stops
{
	my ($pattern, $test, @options) = @_;
	my $relay = relay_start($node, $nats, @options, wait => 0);
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is(relay_wait($relay), 1, "$test: the relay ends");
	like(relay_log($relay), $pattern, "$test: and says why");
	return;
}

sql($node, q{SELECT feed_create('outbox'); SELECT feed_start_worker()});
write_messages(3);

# a stream that somebody has made, with limits of their own
make_stream('made', max_msgs => 2);
is(relay_once($node, $nats, of_stream('made')), 0, 'a stream that is there');
is_deeply(data('made'), [ 2, 3 ], 'keeps what its limits say');
write_messages(1);
relay_once($node, $nats, of_stream('made'));
is_deeply(data('made'), [ 3, 4 ], 'and goes on');
is(nats_api($nats, 'STREAM.INFO.made')->{config}{max_msgs}, 2, 'its settings stay');

# others' messages
make_stream('others');
nats_publish($nats, 'others.x', 'theirs', 'ce-id' => 'an event of theirs');
stops(qr/stream \\"others\\" has messages of others: its last, 1, has no header Feedpub-Relay/, "others' messages", of_stream('others'));
is_deeply(data('others'), ['theirs'], 'nothing was sent');
make_stream('between');
my $relay = relay_start($node, $nats, of_stream('between'));
soon(sub { relay_metric($relay, 'at_end') == 1 }, 'a stream of its own');
nats_publish($nats, 'between.x', 'theirs');
write_messages(1);
is(relay_wait($relay), 1, 'others write into it: the relay ends');
like(relay_log($relay), qr/has messages of others: its last, 5/, 'and says why');
is_deeply(data('between'), [ 1 .. 4, 'theirs' ], 'nothing was sent after that');

# not such
make_stream('queue', retention => 'workqueue');
stops(qr/its retention is not \\"limits\\"/, 'a work queue', of_stream('queue'));
make_stream('silent', no_ack => JSON::PP::true);
stops(qr/it acknowledges nothing/, 'a stream without acknowledgements', of_stream('silent'));
make_stream('other_subjects', subjects => ['elsewhere']);
make_stream('catches', subjects => ['caught.>']);
stops(qr/stopped: expected stream does not match/, "subjects of another stream", stream => 'other_subjects', subject => 'caught.{key}', 'stream-subjects' => 'x');

# purged
relay_once($node, $nats, of_stream('purged'));
nats_api($nats, 'STREAM.PURGE.purged');
write_messages(1);
is(relay_once($node, $nats, of_stream('purged')), 0, 'purged: the cursor is noted elsewhere');
is_deeply(data('purged'), [$written], 'and it goes on there');
$relay = relay_start($node, $nats, of_stream('purged'));
soon(sub { relay_metric($relay, 'at_end') == 1 }, 'it runs');
nats_api($nats, 'STREAM.PURGE.purged');
write_messages(2);
stream_has($nats, 'purged', 2, 'purged while it runs: it goes on');
relay_stop($relay);
is_deeply(data('purged'), [ $written - 1, $written ], 'with what comes next');
nats_api($nats, 'STREAM.PURGE.purged');
nats_api($nats, 'STREAM.PURGE.FEEDPUB_RELAY');
write_messages(1);
stops(qr/has lost its last message, \d+, and nothing else says how far it is.*set --from/, 'purged with the cursors', of_stream('purged'));
is(relay_once($node, $nats, of_stream('purged', from => 'latest')), 0, 'told where to go on, it goes on');
write_messages(1);
is(relay_once($node, $nats, of_stream('purged')), 0, 'and needs not be told again');
is_deeply(data('purged'), [$written], 'from there');

# the last message alone
nats_api($nats, 'STREAM.PURGE.FEEDPUB_RELAY');
my $last = nats_api($nats, 'STREAM.INFO.made')->{state}{last_seq};
nats_api($nats, 'STREAM.MSG.DELETE.made', { seq => $last });
stops(qr/has lost its last message, $last/, 'the last message was deleted', of_stream('made'));

# messages that have grown old: the stream is empty, and it goes on
relay_once($node, $nats, of_stream('aged', 'stream-max-age' => 3600));
my $aged = nats_api($nats, 'STREAM.INFO.aged')->{config};
is($aged->{max_age}, 3600e9, 'an age that was said when the stream was made');
nats_api($nats, 'STREAM.UPDATE.aged', { %$aged, max_age => 1e9, duplicate_window => 1e9 });
stream_has($nats, 'aged', 0, 'all messages are too old');
nats_api($nats, 'STREAM.UPDATE.aged', $aged);
write_messages(1);
relay_once($node, $nats, of_stream('aged'));
is(nats_api($nats, 'STREAM.INFO.aged')->{state}{last_seq}, $written, 'it goes on');

# deleted
relay_once($node, $nats, of_stream('deleted'));
$relay = relay_start($node, $nats, of_stream('deleted'));
nats_api($nats, 'STREAM.DELETE.deleted');
write_messages(1);
is(relay_wait($relay), 1, 'deleted while it runs: the relay ends');
like(relay_log($relay), qr/stream \\"deleted\\" has been deleted/, 'and says so');
relay_once($node, $nats, of_stream('deleted'));
is_deeply(data('deleted'), [ 1 .. $written ], 'started again it begins again');

# deleted and made anew: what was noted of the one before does not count
nats_api($nats, 'STREAM.DELETE.deleted');
relay_once($node, $nats, of_stream('deleted', types => 'x'));
is_deeply(data('deleted'), [], 'another stream of that name');
relay_once($node, $nats, of_stream('deleted'));
is_deeply(data('deleted'), [], 'what was read and not wanted is not read again');
nats_api($nats, 'STREAM.DELETE.deleted');
relay_once($node, $nats, of_stream('deleted'));
is_deeply(data('deleted'), [ 1 .. $written ], 'but in a stream that is made anew, which has the same sequence');
my ($note) = map { $_->{data} } grep { $_->{subject} eq 'feedpub.relay.deleted' } stream_messages($nats, 'FEEDPUB_RELAY');
write_messages(1);
relay_once($node, $nats, of_stream('deleted'));
nats_publish($nats, 'feedpub.relay.deleted', $note);
relay_once($node, $nats, of_stream('deleted'));
is_deeply(data('deleted'), [ 1 .. $written ], 'what was noted at another sequence does not count');
$relay = relay_start($node, $nats, of_stream('anew'));
soon(sub { relay_metric($relay, 'at_end') == 1 }, 'a stream with messages');
nats_api($nats, 'STREAM.DELETE.anew');
make_stream('anew');
write_messages(1);
is(relay_wait($relay), 1, 'made anew while it runs: the relay ends');
like(relay_log($relay), qr/stream \\"anew\\" has been (made anew|deleted)/, 'and says so');

# sealed
relay_once($node, $nats, of_stream('sealed'));
$relay = relay_start($node, $nats, of_stream('sealed'));
my $config = nats_api($nats, 'STREAM.INFO.sealed')->{config};
nats_api($nats, 'STREAM.UPDATE.sealed', { %$config, sealed => JSON::PP::true });
write_messages(1);
is(relay_wait($relay), 1, 'sealed while it runs: the relay ends');
like(relay_log($relay), qr/seal/, 'and says so');
stops(qr/cannot use stream \\"sealed\\": it is sealed/, 'sealed before', of_stream('sealed'));

# full: it waits, others go on
make_stream('full', max_msgs => $written + 2, discard => 'new');
$relay = relay_start($node, $nats, of_stream('full'));
soon(sub { relay_metric($relay, 'at_end') == 1 }, 'a stream with room');
write_messages(5);
relay_logs($relay, qr/maximum messages exceeded/, 'a full stream is told of');
is(nats_api($nats, 'STREAM.INFO.full')->{state}{messages}, $written - 3, 'it has what it takes');
nats_api($nats, 'STREAM.PURGE.full', { seq => 5 });
soon(sub { relay_metric($relay, 'at_end') == 1 }, 'when there is room, it goes on');
relay_stop($relay);
is_deeply(data('full'), [ 5 .. $written ], 'and nothing is missing');

# full by bytes
make_stream('bytes', max_bytes => 20000, discard => 'new');
sql($node, "INSERT INTO outbox (message_type, message_key, data) SELECT 'n', i, to_json(repeat(i::text, 1000)) FROM generate_series(1, 9) i");
sql($node, "SELECT feed_flush('outbox')");
$relay = relay_start($node, $nats, of_stream('bytes'), wait => 0);
relay_logs($relay, qr/maximum bytes exceeded/, 'a stream that has its bytes is told of');
nats_api($nats, 'STREAM.UPDATE.bytes', { %{ nats_api($nats, 'STREAM.INFO.bytes')->{config} }, max_bytes => 1000000 });
soon(sub { relay_metric($relay, 'at_end') == 1 }, 'when there is room, it goes on');
relay_stop($relay);
is_deeply(data('bytes'), [ 1 .. $written, map { '"' . $_ x 1000 . '"' } 1 .. 9 ], 'to the end, with each message once');

# consumers that are slow: one does not acknowledge, one does not read
relay_once($node, $nats, of_stream('slow', 'stream-max-messages' => 3000));
for my $consumer ([ explicit => 'pull' ], [ none => 'push', deliver_subject => 'delivered.slow' ])
{
	my ($ack, $name, %config) = @$consumer;
	my $made = nats_api($nats, "CONSUMER.DURABLE.CREATE.slow.$name",
		{ stream_name => 'slow', config => { durable_name => $name, ack_policy => $ack, deliver_policy => 'all', replay_policy => 'instant', %config } });

	ok(!$made->{error}, "a slow consumer, $name");
}
my ($reader, $sleeper) = map { nats_connect($nats) } 1, 2;
print { $sleeper->{socket} } "SUB delivered.slow 1\r\n";
print { $reader->{socket} } "SUB _INBOX.slow 1\r\nPUB \$JS.API.CONSUMER.MSG.NEXT.slow.pull _INBOX.slow 12\r\n{\"batch\":100}\r\n";
$_->{socket}->flush for $sleeper, $reader;
$relay = relay_start($node, $nats, of_stream('slow'));
my $last_of_slow = nats_api($nats, 'STREAM.INFO.slow')->{state}{last_seq};
write_messages(5000);
soon(sub { nats_api($nats, 'STREAM.INFO.slow')->{state}{last_seq} == $last_of_slow + 5000 }, 'slow consumers hold nothing up');
relay_stop($relay);
is_deeply(data('slow'), [ $written - 2999 .. $written ], 'of which the stream keeps as many as it is to');

done_testing();
