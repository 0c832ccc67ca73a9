# Connections that are half open: nothing arrives, and nobody is told.  A relay
# that waits for news notices it; and --once ends when all that was published is
# acknowledged, and not before.

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
SELECT feed_create('outbox'), feed_create('other');
INSERT INTO outbox (message_type, message_key, data) SELECT 'n', i, to_json(i) FROM generate_series(1, 100) i;
INSERT INTO other (message_type, message_key, data) VALUES ('n', 'k', '1');
SELECT feed_start_worker();
SELECT feed_flush('outbox', '3 min'), feed_flush('other', '3 min');
SQL

# The relay has all, and waits for news.
my $idle = relay_start($node, $nats, feed => 'other', statement_timeout => 1,
	database => "host=127.0.0.1 port=$ports[1] dbname=postgres user=postgres");
soon(sub { relay_metric($idle, 'at_end', 'other') == 1 }, 'a relay that waits');
proxy_mute($to_database);
sql($node, q{INSERT INTO other (message_type, message_key, data) VALUES ('n', 'k', '2')});

# The relay has opened the stream, and cannot read the feed yet; from then on
# nothing that it sends arrives, and its connection is not closed.
my $lock = $node->background_psql('postgres');
$lock->query_safe('BEGIN; LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE');
my $relay = relay_start($node, undef, to => "nats://127.0.0.1:$ports[0]", once => 1);
relay_logs($relay, qr/begins after sequence 0/, 'another one has opened the stream');
proxy_mute($to_nats);
$lock->query_safe('COMMIT');
relay_logs($relay, qr/messages are not acknowledged/, 'what it has sent is not acknowledged');
is(relay_wait($relay), 0, 'it sends again, and ends');
is_deeply([ map { $_->{data} } stream_messages($nats, 'outbox') ], [ 1 .. 100 ], 'when all is there');
$lock->quit;

soon(sub { relay_metric($idle, 'sent_total', 'other') == 2 }, 'the one that waits connects again, and sends what is new');
is(relay_stop($idle), 0, 'and ends');
proxy_stop($to_nats, $to_database);

done_testing();
