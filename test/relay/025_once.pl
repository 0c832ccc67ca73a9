# --once ends when all that was published is acknowledged, and not before.

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
my $port = PostgreSQL::Test::Cluster::get_free_port();
my $proxy = proxy_start($port, $nats->{port}, delay => 0);

sql($node, <<'SQL');
SELECT feed_create('outbox');
INSERT INTO outbox (message_type, message_key, data) SELECT 'n', i, to_json(i) FROM generate_series(1, 100) i;
SELECT feed_start_worker();
SELECT feed_flush('outbox');
SQL

# The relay has opened the stream, and cannot read the feed yet; from then on
# nothing that it sends arrives, and its connection is not closed.
my $lock = $node->background_psql('postgres');
$lock->query_safe('BEGIN; LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE');
my $relay = relay_start($node, undef, to => "nats://127.0.0.1:$port", once => 1);
relay_logs($relay, qr/begins after sequence 0/, 'it has opened the stream');
proxy_mute($proxy);
$lock->query_safe('COMMIT');
relay_logs($relay, qr/messages are not acknowledged/, 'what it has sent is not acknowledged');
is(relay_wait($relay), 0, 'it sends again, and ends');
is_deeply([ map { $_->{data} } stream_messages($nats, 'outbox') ], [ 1 .. 100 ], 'when all is there');
$lock->quit;
proxy_stop($proxy);

done_testing();
