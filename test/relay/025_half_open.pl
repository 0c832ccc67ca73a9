# Connections that are half open: nothing arrives, and nobody is told.  A relay
# that waits for news notices it; and --once ends when all that was published is
# acknowledged, and not before.  Nor does it wait for ever for an acknowledgement
# on a connection that answers.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubProxy;
use FeedpubRelay;
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'");
my $nats = nats_start('n1');
my @ports = map { PostgreSQL::Test::Cluster::get_free_port() } 1, 2;
my $to_nats = proxy_start($ports[0], $nats->{port}, delay => 0);
my $to_database = proxy_start($ports[1], $node->host . '/.s.PGSQL.' . $node->port, delay => 0);

sql($node, <<'SQL');
SELECT feed_create('outbox'), feed_create('other'), feed_create('silent');
INSERT INTO outbox (message_type, message_key, data) SELECT 'n', i, to_json(i) FROM generate_series(1, 100) i;
INSERT INTO other (message_type, message_key, data) VALUES ('n', 'k', '1');
INSERT INTO silent (message_type, message_key, data) VALUES ('n', 'k', '1');
SELECT feed_start_worker();
SELECT feed_flush('outbox'), feed_flush('other');
SQL

# The relay has all, and waits for news.
my $idle = relay_start($node, $nats, feed => 'other', statement_timeout => 1,
	database => "host=127.0.0.1 port=$ports[1] dbname=postgres user=postgres");
soon(sub { relay_metric($idle, 'at_end', 'other') == 1 }, 'a relay that waits');
proxy_mute($to_database);
sql($node, q{INSERT INTO other (message_type, message_key, data) VALUES ('n', 'k', '2')});

# Relays have opened their streams, and cannot read their feeds yet.  From then on
# nothing that the first sends arrives, and its connection is not closed; what the
# second sends goes to somebody who does not acknowledge it.
my $lock = $node->background_psql('postgres');
$lock->query_safe('BEGIN; LOCK TABLE outbox, silent IN ACCESS EXCLUSIVE MODE');
my $relay = relay_start($node, undef, to => "nats://127.0.0.1:$ports[0]", once => 1);
my $second = relay_start($node, $nats, feed => 'silent', once => 1);
relay_logs($_, qr/begins after sequence 0/, 'another one has opened the stream') for $relay, $second;
proxy_mute($to_nats);
my $config = nats_api($nats, 'STREAM.INFO.silent')->{config};
nats_api($nats, 'STREAM.UPDATE.silent', { %$config, subjects => ['elsewhere'] });
my $somebody = nats_connect($nats);
print { $somebody->{socket} } "SUB silent.> 1\r\nPING\r\n";
$somebody->{socket}->flush;
is(FeedpubRelay::read_line($somebody), 'PONG', 'somebody takes what the second sends');
$lock->query_safe('COMMIT');
relay_logs($second, qr/messages are not acknowledged/, 'which is not acknowledged');
nats_api($nats, 'STREAM.UPDATE.silent', $config);
is(relay_wait($second), 0, 'it sends again, and ends');
is_deeply([ map { $_->{data} } stream_messages($nats, 'silent') ], [1], 'when that is there');
# by what it has sent, or by what it asks whether the server is there
relay_logs($relay, qr/messages are not acknowledged|the connection was lost/, 'the first notices that nothing is answered');
is(relay_wait($relay), 0, 'it sends again, and ends');
is_deeply([ map { $_->{data} } stream_messages($nats, 'outbox') ], [ 1 .. 100 ], 'when all is there');
$lock->quit;

stream_has($nats, 'other', 2, 'the one that waits connects again, and sends what is new');
is(relay_stop($idle), 0, 'and ends');
proxy_stop($to_nats, $to_database);

done_testing();
