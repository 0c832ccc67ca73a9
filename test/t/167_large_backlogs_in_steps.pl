# A large backlog is published in steps: in bounded memory, in the order of
# positions also where a step ends, and other feeds get their turns meanwhile.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubPublished;
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $batch = 1024;
my $batches = 2048;
my $rows = $batch * $batches;
my $node = feedpub_node('server', conf => <<"CONF");
fsync = off
wal_level = minimal
max_wal_senders = 0
feedpub.max_batch_transactions = $batch
CONF

# Which transactions wrote the batches of a feed, the steps, in their order.
sub steps
{
	my ($feed) = @_;

	return split /\n/, sql($node, <<"SQL");
SELECT xmin FROM feedpub._batch WHERE feed = '$feed'::regclass
GROUP BY 1 ORDER BY min(sync_id)
SQL
}

# Each batch has the transactions that end next in the order of
# positions: its snapshot sees them, and the one before does not.
sub is_in_order
{
	my ($how) = @_;

	is(batches($node, 'large'), $batches, "$how: all is published");
	is(sql($node, <<"SQL"), 0, "$how: in the order of positions");
WITH batch AS (
	SELECT sync_id, snapshot, lag(snapshot) OVER (ORDER BY sync_id) AS before
	FROM feedpub._batch WHERE feed = 'large'::regclass),
message AS (
	SELECT feed_xid, (row_number() OVER (ORDER BY feed_pos) - 1) / $batch + 1 AS sync_id
	FROM large)
SELECT count(*) FROM message JOIN batch USING (sync_id)
WHERE NOT pg_visible_in_snapshot(feed_xid, snapshot)
	OR pg_visible_in_snapshot(feed_xid, before)
SQL
	return;
}

# The small one has its batch before the large one has its second step.
sub is_fair
{
	my ($how) = @_;
	my @large = steps('large');
	my @small = steps('small');

	cmp_ok(scalar(@large), '>', 3, "$how: in steps");
	is(scalar(@small), 1, "$how: another feed too");
	cmp_ok($small[0], '<', $large[1], "$how: and it did not wait for all of them");
	return;
}

sql($node, 'SELECT feed_stop_worker()');
sql($node, "SELECT feed_create('large'), feed_create('small')");
jump_xid($node, 5_000_000);
sql($node, 'SELECT feed_stop_worker()');

# Messages as of many transactions that committed one after another, but for
# some of the oldest, which ran for long and took their positions late.
sql($node, <<"SQL");
SET session_replication_role = replica;
ALTER TABLE large DISABLE TRIGGER USER;
INSERT INTO large (feed_xid, feed_pos, message_type, data)
SELECT (1000000 + i)::text::xid8,
	CASE WHEN i % 20000 = 7 THEN least(i + 40 * (i % 30000), 2 * $rows) * 2 + 1 ELSE i * 2 END,
	'A', '1'
FROM generate_series(1, $rows) i;
INSERT INTO small (message_type, data) VALUES ('A', '1');
SQL

sql($node, 'SELECT feed_start_worker()');
my $worker = await_worker($node);
sql($node, "SELECT feed_flush('large', '10 min')");
is_in_order('by the worker');
sql($node, "SELECT feed_flush('small', '10 min')");
is_fair('by the worker');
is(await_worker($node), $worker, 'one worker did it');
SKIP:
{
	skip 'no /proc', 1 if !-e "/proc/$worker/status";
	my ($peak) = slurp_file("/proc/$worker/status") =~ /^VmHWM:\s*(\d+) kB/m;

	note("peak memory of the worker: $peak kB");
	cmp_ok($peak, '<', 120_000, 'in bounded memory');
}

kill_worker($node);
sql($node, 'SELECT feed_stop_worker()');
sql($node, "SELECT feed_begin_history('large'), feed_begin_history('small')");
sql($node, 'CALL feed_publish()');
is_in_order('by hand');
is_fair('by hand');

$node->stop;
done_testing();
