# A statement on our tables that has to scan one of them is planned with
# enable_seqscan off, at a cost at which the server would compile it with LLVM
# each time.  In the worker that took 25 ms every ten seconds, in which nothing
# was published.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('server', conf => <<'CONF');
shared_preload_libraries = 'auto_explain, feedpub'
auto_explain.log_min_duration = 0
auto_explain.log_analyze = on
auto_explain.log_nested_statements = on
feedpub.naptime = 10ms
CONF

plan skip_all => 'this server does not compile queries' unless sql($node, 'SELECT pg_jit_available()') eq 't';
sql($node, <<'SQL');
SELECT feed_create('outbox');
SELECT feed_start_worker();
INSERT INTO outbox (message_type, data) VALUES ('A', '1');
SELECT feed_flush('outbox');
SELECT feed_subscribe('mail', 'outbox', 'earliest');
SELECT count(*) FROM feed_poll('mail', 10);
SQL
$node->wait_for_log(qr/Query Text: SELECT feed FROM feedpub\._feed/);
unlike(slurp_file($node->logfile), qr/JIT:/, 'no statement is compiled');
done_testing();
