# Subscriptions on a standby, in a dump, and in another cluster, where the
# roles may be missing that own them.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = feedpub_node('primary', allows_streaming => 1);
my $dir = PostgreSQL::Test::Utils::tempdir();

# Publishes by hand, so that what is read does not depend on the worker.
sql($primary, <<'SQL');
CREATE ROLE regress_feedpub_consumer LOGIN;
CREATE ROLE regress_feedpub_dropped;
SELECT feed_stop_worker();
SELECT feed_create('outbox');
CREATE TABLE kv (k int PRIMARY KEY, v text);
SELECT feed_attach('kv');
INSERT INTO outbox (message_type, data) SELECT 'a', to_jsonb(i) FROM generate_series(1, 5) i;
INSERT INTO kv SELECT i, 'v' FROM generate_series(1, 5) i;
CALL feed_publish();
GRANT SELECT ON outbox, kv TO regress_feedpub_consumer, regress_feedpub_dropped;
SET ROLE regress_feedpub_dropped;
SELECT feed_subscribe('nobody''s', 'outbox', 'earliest');
RESET ROLE;
DROP OWNED BY regress_feedpub_dropped;
DROP ROLE regress_feedpub_dropped;
SET ROLE regress_feedpub_consumer;
SELECT feed_subscribe('My ''"Mail"', 'outbox', 'earliest');
SELECT feed_subscribe('copy', 'kv', 'earliest', 2);
SQL

my $as_consumer = "SET feedpub.read_wait = 0; SET ROLE regress_feedpub_consumer;";
my $poll = "$as_consumer SELECT string_agg(row ->> 'data', ' ') FROM feed_poll('My ''\"Mail\"', 10);";

sub ack_some
{
	my ($node, $rows) = @_;

	return sql($node, <<"SQL");
$as_consumer
WITH page AS MATERIALIZED (SELECT max(receipt) AS receipt FROM feed_poll('My ''"Mail"', $rows))
SELECT feed_ack('My ''"Mail"', receipt) FROM page;
SQL
}
is(ack_some($primary, 2), 't', 'two messages are dealt with');
is(sql($primary, <<'SQL'), 't', 'one is parked');
SET ROLE regress_feedpub_consumer;
SELECT feed_park('My ''"Mail"', receipt, 'why') FROM feed_poll('My ''"Mail"', 1);
SQL
is(sql($primary, $poll), '4 5', 'and left out');

#
# A standby reads for a consumer without a name, and moves nothing.
#
$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->start;
$primary->wait_for_replay_catchup($standby);
is(sql($standby, $poll), '4 5', 'a standby delivers the same');
refused($standby, "$as_consumer SELECT feed_poll('copy', 10, 'w')", '25006', 'by a consumer with a name', 'not to a consumer with a name');
my $receipt = sql($standby, "$as_consumer SELECT receipt FROM feed_poll('My ''\"Mail\"', 1)");
refused($standby, "$as_consumer SELECT feed_ack('My ''\"Mail\"', '$receipt')", '25006', 'feed_ack', 'nor can be acknowledged there');
refused($standby, "$as_consumer SELECT feed_park('My ''\"Mail\"', '$receipt', 'r')", '25006', 'feed_park', 'or parked');
refused($standby, "$as_consumer SELECT feed_seek('My ''\"Mail\"', 'latest')", '25006', 'read-only', 'or sought');
is(sql($standby, "$as_consumer SELECT count(*) FROM feed_poll('My ''\"Mail\"', timeout => '1 h')"), '2', 'a poll that may wait has it at once');
is(ack_some($primary, 1), 't', 'the primary goes on');
sql($primary, "$as_consumer SELECT feed_retry('My ''\"Mail\"')");
$primary->wait_for_replay_catchup($standby);
is(sql($standby, $poll), '3', 'and so does the standby: with what is due');
sql($primary, "DELETE FROM outbox WHERE data = '3'");
$primary->wait_for_replay_catchup($standby);
is(sql($standby, $poll), '3', 'also if its row is gone');
$standby->promote;
is(sql($standby, $poll), '3', 'promoted, it delivers the same');
is(sql($standby, 'SELECT sum(parked) FROM feedpub.subscriptions'), '1', 'until it is acknowledged');
is(ack_some($standby, 10), 't', 'and its cursors move');
is(sql($standby, "$as_consumer SELECT count(*) > 0 FROM feed_poll('copy', 10, 'w')"), 't', 'consumers can lease shards');
$standby->stop;

#
# A dump, restored in the same cluster: everything goes on.
#
sql($primary, "$as_consumer SELECT count(*) FROM feed_poll('copy', 10, 'w')");
my $dump = "$dir/dump.sql";
$primary->command_ok([ 'pg_dump', '-O', '-x', '-f', $dump, $primary->connstr('postgres') ], 'dumped');
sql($primary, 'CREATE DATABASE again');
$primary->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', $dump, '-d', $primary->connstr('again') ], 'restored');
sql($primary, 'GRANT SELECT ON outbox, kv TO regress_feedpub_consumer', db => 'again');
is(sql($primary, q(SELECT name, owner, shards, parked FROM feedpub.subscriptions WHERE owner NOT LIKE 'unknown%' ORDER BY name), db => 'again'),
	"My '\"Mail\"|regress_feedpub_consumer|1|1\ncopy|regress_feedpub_consumer|2|0", 'subscriptions with what is parked');
is(sql($primary, $poll, db => 'again'), '3', 'with its key and message');

#
# In another cluster, without the role: the restore does not fail, and the role that
# has the consumer's OID there gets nothing.
#
my $other = feedpub_node('other', extension => 0);
sql($other, "CREATE ROLE regress_feedpub_else LOGIN; CREATE DATABASE restored");
$other->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', $dump, '-d', $other->connstr('restored') ],
	'restored where the roles are missing');
sql($other, 'SELECT feed_stop_worker(); GRANT SELECT ON outbox, kv TO PUBLIC', db => 'restored');
sql($other, q(UPDATE feedpub._subscription SET owner = 'regress_feedpub_else'::regrole WHERE owner_name = 'regress_feedpub_consumer'), db => 'restored');
is(sql($other, 'SELECT count(*) FROM feedpub.subscriptions', db => 'restored', user => 'regress_feedpub_else'), '0', 'it owns nothing for that');
sql($other, 'CREATE ROLE regress_feedpub_consumer LOGIN', db => 'restored');
is(sql($other, 'SELECT name FROM feedpub.subscriptions ORDER BY name', db => 'restored', user => 'regress_feedpub_consumer'),
	"My '\"Mail\"\ncopy", 'who has the name does');

# Its ids have to come as far as the other's before rows are read.
sql($other, 'SELECT feed_stop_worker()', db => 'restored');
burn_xids($other, 200, db => 'restored')
  while sql($other, "SELECT pg_snapshot_xmax(pg_current_snapshot()) <= (SELECT max(m) FROM (SELECT max(feed_xid) AS m FROM outbox UNION ALL SELECT max(feed_xid) FROM kv) x)", db => 'restored') eq 't';
sql($other, "SELECT feed_begin_history('outbox'), feed_begin_history('kv')", db => 'restored');
sql($other, 'CALL feed_publish()', db => 'restored');
refused($other, $poll, 'PF001', 'history', 'nothing is delivered', db => 'restored');
is(sql($other, "$as_consumer SELECT count(*) FROM feedpub.parked", db => 'restored'), '0', 'and nothing is parked any more');
sql($other, "$as_consumer SELECT feed_seek('My ''\"Mail\"', 'latest')", db => 'restored');
is(sql($other, $poll, db => 'restored'), '', 'until somebody says: go on here');
sql($other, "$as_consumer SELECT feed_seek('My ''\"Mail\"', 'earliest')", db => 'restored');
is(sql($other, $poll, db => 'restored'), '1 2 4 5', 'or: begin again');
refused($other, "$as_consumer SELECT feed_poll('copy', 10, 'w')", 'PF001', 'history', 'a copy of a table is refused', db => 'restored');
is(sql($other, <<"SQL", db => 'restored'), 't', 'until it begins again');
$as_consumer
SELECT feed_seek('copy', 'earliest') \\g /dev/null
SELECT count(*) > 0 FROM feed_poll('copy', 10, 'w');
SQL
$other->stop;
$primary->stop;
done_testing();
