# examples/group: four workers share a subscription of eight shards.  Each
# message takes effect once, those of a key in the order of the feed, through
# kills, a restart and a crash of the server, and a worker that is late; messages
# that cannot be handled are parked and let the others pass; the group stops
# when it is told to.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubExample;
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $python = python_with('psycopg');
plan skip_all => 'python3 with psycopg (3) is not there' if !$python;

# An encoding of which psycopg makes bytes, unless the client asks for another.
my $node = feedpub_node('server', extra => [ '--no-locale', '--encoding=SQL_ASCII' ], conf => <<'CONF');
shared_preload_libraries = 'feedpub'
log_statement = none
CONF
sql($node, <<'SQL');
SELECT feed_create('outbox');
SELECT feed_subscribe('shipping', 'outbox', 'earliest', shards => 8, lease => '2 s', max_attempts => 2);
CREATE TABLE shipment (id bigserial, customer text, order_id bigint);
CREATE SEQUENCE number;
SQL
my $order = <<'SQL';
INSERT INTO outbox (message_type, message_key, data)
  SELECT 'OrderPlaced', :customer, jsonb_build_object('order', nextval('number'));
SQL
my $script = <<"SQL";
\\set fate random(1, 10)
\\set customer random(1, 40)
BEGIN;
$order
\\if :fate = 1
ROLLBACK;
\\else
COMMIT;
\\endif
SQL

sub group
{
	return run_program($node, $python, example('group/group.py'), 'shipping');
}

sub count { return sql($node, "SELECT count(*) FROM $_[0]") }

sub wait_for_shipments
{
	my ($n) = @_;

	wait_until("$n orders are handled", sub { count('shipment') >= $n });
	return;
}

# The workers that a group has started, by name the latest.
sub workers
{
	my ($group) = @_;
	my %pids = output($group) =~ /^(.+): process (\d+)$/mg;

	return values %pids;
}

my $writers = run_writers($node, $script, transactions => 200);
my $group = group();

# All four come to work.
wait_until('four consumers have leased two shards each',
	sub {
		sql($node, <<'SQL') eq '2 2 2 2';
SELECT string_agg(n::text, ' ') FROM (SELECT count(*) AS n
  FROM feedpub.shards WHERE consumer IS NOT NULL GROUP BY consumer) s
SQL
	});
wait_for_shipments(100);

# One is killed, and started again; then the whole group.
my ($worker) = workers($group);
kill 'KILL', $worker;
wait_until('a worker is started again',
	sub { output($group) =~ /killed by signal 9.*: process \d+$/sm });
finish($writers);
$writers = run_writers($node, $script, transactions => 200);
kill 'KILL', -$group->{pid};
is(ended($group), 'signal 9', 'the group is killed');
$group = group();
$node->restart;
ended($writers);
$writers = run_writers($node, $script, transactions => 100);
$node->stop('immediate');
ended($writers);
$node->start;
finish(run_writers($node, $script, transactions => 100));
wait_for_shipments(count('outbox'));

#
# Poison: a message that no consumer can handle, and one that can be handled later, among
# others
#
sql($node, <<'SQL');
ALTER TABLE shipment ADD CONSTRAINT address CHECK (customer <> 'nowhere') NOT VALID;
INSERT INTO outbox (message_type, message_key, data)
  SELECT 'OrderPlaced', n % 5, jsonb_build_object('order', nextval('number')) FROM generate_series(1, 20) n;
INSERT INTO outbox (message_type, message_key, data) VALUES
  ('OrderPlaced', '1', '{"order": "none"}'), ('OrderPlaced', 'nowhere', '{"order": -1}');
INSERT INTO outbox (message_type, message_key, data)
  SELECT 'OrderPlaced', n % 5, jsonb_build_object('order', nextval('number')) FROM generate_series(1, 20) n;
SQL
wait_for_shipments(count('outbox') - 2);
wait_until('two are parked', sub { count('feedpub.parked') == 2 });
sql($node, 'ALTER TABLE shipment DROP CONSTRAINT address');
sql($node, q(SELECT feed_retry('shipping')));
wait_for_shipments(count('outbox') - 1);
wait_until('one has failed for good',
	sub { sql($node, 'SELECT attempts, retry_at IS NULL FROM feedpub.parked') eq '2|t' });
like(sql($node, 'SELECT reason FROM feedpub.parked'),
	qr/invalid input syntax for type bigint: "none"/, 'with the reason');

#
# A worker that is late: its lease runs out while it is stuck in a message, and
# another is delivered the same one.
#
sql($node, <<'SQL');
BEGIN;
LOCK TABLE shipment IN EXCLUSIVE MODE;
PREPARE TRANSACTION 'held';
SQL
sql($node, $order =~ s/:customer/'late'/r);
wait_until('two are stuck in the same message',
	sub {
		sql($node, q(SELECT count(*) FROM pg_locks WHERE relation = 'shipment'::regclass AND NOT granted)) >= 2;
	});
sql($node, q(COMMIT PREPARED 'held'));
wait_until('the late one knows', sub { output($group) =~ /lost the page/ });
wait_for_shipments(count('outbox') - 1);

kill 'TERM', $group->{pid};
is(ended($group), 0, 'stopped by SIGTERM');
is(sql($node, 'SELECT leased, consumers FROM feedpub.subscriptions'), '0|0',
	'no lease is left, and nobody is there');

# Everything once, in the order that the feed has for its key.  The one that
# was handled later is the only one of its key.
cmp_ok(count('outbox'), '>', 1000, 'there were many');
is(sql($node, <<'SQL'), '', 'every order once, in order by customer');
SELECT customer, f.orders, s.orders
  FROM (SELECT (entry).message_key AS customer, array_agg((entry).data ->> 'order' ORDER BY n) AS orders
	FROM feed_read(NULL::outbox, '', 10000) WITH ORDINALITY r (cursor, op, entry, moment, n)
	WHERE (entry).data <> '{"order": "none"}' GROUP BY 1) f
  FULL JOIN (SELECT customer, array_agg(order_id::text ORDER BY id) AS orders
	FROM shipment GROUP BY 1) s USING (customer)
  WHERE f.orders IS DISTINCT FROM s.orders
SQL

# What only a human can mend
sql($node, q(UPDATE feedpub._shard SET cursor = overlay(cursor placing '012345' from 26 for 6)));
$group = group();
is(ended($group), 1, 'a foreign cursor: the group ends');
like(output($group), qr/is from another history.*feed_seek/s, 'and says what to do');

$node->stop;
done_testing();
