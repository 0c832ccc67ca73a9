# What cannot be sent stops its feed with a message that says what to do, and
# others go on; or it goes to a subject for such messages, if it is told to.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubRelay;
use FeedpubTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'");
my $nats = nats_start('n1', conf => "max_payload: 100000\n");
my $file = PostgreSQL::Test::Utils::tempdir() . '/relay.conf';
my @feeds = qw(good large old moved broken long);

sub data { return [ map { $_->{data} } stream_messages($nats, $_[0]) ] }

# Writes a message into each outbox.
sub write_messages
{
	my ($data) = @_;

	sql($node, "INSERT INTO $_ (message_type, message_key, data) VALUES ('n', 'k', '$data')") for grep { $_ ne 'broken' } @feeds;
	sql($node, "SELECT feed_flush('$_')") for @feeds;
	return;
}

sql($node, <<'SQL');
SELECT feed_create('good'), feed_create('large'), feed_create('old'), feed_create('moved'), feed_create('long');
CREATE TYPE mood AS ENUM ('sad', 'gone');
CREATE TABLE broken (k int PRIMARY KEY, m mood);
SELECT feed_attach('broken');
INSERT INTO broken VALUES (1, 'sad');
SELECT feed_start_worker();
SQL
write_messages(1);
append_to_file($file, join "", "to = $nats->{url}\n", map { "[$_]\n" } @feeds);
is(relay_once($node, $nats, file => $file), 0, 'all feeds of a file');
is_deeply(data($_), [1], "has its message: $_") for grep { $_ ne 'broken' } @feeds;
is_deeply(data('broken'), ['{"k":1,"m":"sad"}'], 'has its row: broken');

# what is too large for the server, a subject that is too long, a row that is not
# JSON, another history, entries that retention has removed
write_messages(2);
sql($node, <<'SQL');
INSERT INTO large (message_type, message_key, data) VALUES ('n', 'k', to_json(repeat('x', 100000)));
INSERT INTO long (message_type, message_key, data) VALUES ('n', repeat('x', 4000), '3');
INSERT INTO broken VALUES (2, 'gone'), (3, 'sad');
DELETE FROM pg_enum WHERE enumtypid = 'mood'::regtype AND enumlabel = 'gone';
SELECT feed_begin_history('moved');
SQL
sql($node, q{CALL feed_purge('old', feed_head('old'))});
write_messages(4);
my $relay = relay_start($node, $nats, file => $file, wait => 0);
relay_logs($relay, qr/feed \\"large\\": stopped: the entry with cursor \S+ cannot be sent: it is larger than.*set --errors-to/, 'too large');
relay_logs($relay, qr/feed \\"long\\": stopped: the entry with cursor \S+ cannot be sent: its subject is too long/, 'too long');
relay_logs($relay, qr/feed \\"broken\\": stopped: the entry with cursor \S+ cannot be sent: 22P03: invalid internal value for enum/, 'not JSON');
relay_logs($relay, qr/feed \\"moved\\": stopped: .*\(PF001\); the feed's history is not that of the sink's last entry: begin again/, 'another history');
relay_logs($relay, qr/feed \\"old\\": stopped: .*\(PF002\); entries after the sink's last one have been removed by retention/, 'removed by retention');
stream_has($nats, 'good', 3, 'another feed goes on');
is(relay_metric($relay, 'stopped', 'large'), 1, 'metrics tell');
is(relay_get($relay, '/ready')->{status}, 503, 'it is not ready');
like(relay_get($relay, '/ready')->{content}, qr/feed "large" is stopped: the entry/, 'and says why');
is_deeply(data('large'), [ 1, 2 ], 'what is before it was sent: large');
is_deeply(data('long'), [ 1, 2 ], 'what is before it was sent: long');
is(scalar(@{ data('broken') }), 1, 'what is before it was sent: broken');
is_deeply(data('moved'), [1], 'nothing was sent: moved');
is_deeply(data('old'), [1], 'nothing was sent: old');

# told where such messages go, and read again
append_to_file($file, "[large]\nerrors-to = {feed}.errors\n[long]\nerrors-to = {feed}.errors\n[broken]\nerrors-to = elsewhere.{op}\n");
nats_api($nats, 'STREAM.UPDATE.broken', { %{ nats_api($nats, 'STREAM.INFO.broken')->{config} }, subjects => [ 'broken.>', 'elsewhere.>' ] });
kill 'HUP', $relay->{pid};
relay_logs($relay, qr/settings reloaded/, 'SIGHUP');
for my $feed (qw(large long broken good))
{
	soon(sub { relay_metric($relay, 'at_end', $feed) == 1 }, "goes on: $feed");
}
my @large = stream_messages($nats, 'large');
is_deeply([ map { $_->{data} } @large ], [ 1, 2, '', 4 ], 'without data');
is($large[2]{subject}, 'large.errors', 'to that subject');
is($large[2]{headers}{'ce-error'}, 'it%20is%20larger%20than%20the%20stream,%20or%20the%20server,%20takes', 'with the reason');
is((stream_messages($nats, 'long'))[2]{headers}{'ce-subject'}, 'x' x 4000, 'with the key');
like((stream_messages($nats, 'broken'))[1]{headers}{'ce-error'}, qr/22P03/, 'with the error of the row');
is((stream_messages($nats, 'broken'))[1]{subject}, 'elsewhere.upsert', 'by a template');
soon(sub { relay_metric($relay, 'stopped', 'moved') == 1 && relay_metric($relay, 'stopped', 'old') == 1 }, 'which others do not');
is(relay_stop($relay), 256, 'some are stopped still');

# all are stopped
$relay = relay_start($node, $nats, feed => 'old', wait => 0);
is(relay_wait($relay), 1, 'if all are stopped, it ends');

done_testing();
