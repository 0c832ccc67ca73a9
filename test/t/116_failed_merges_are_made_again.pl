# If a step that merges old batches fails when it commits, it has merged nothing:
# the worker tries it again soon, from the same batch.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubPublished;
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Two transactions become one batch; all batches are old at once, all deletes too.
my $node = feedpub_node('server', conf => <<'CONF');
feedpub.max_batch_transactions = 2
feedpub.batch_retention = 0
feedpub.tombstone_retention = 0
feedpub.naptime = 100ms
CONF

sql($node, <<'SQL');
SELECT feed_stop_worker();
CREATE TABLE kv (k int PRIMARY KEY);
SELECT feed_attach('kv');
SQL
await_no_worker($node);
for (q(INSERT INTO kv VALUES (1)), q(INSERT INTO kv VALUES (2)), q(DELETE FROM kv WHERE k = 1),
	q(INSERT INTO kv VALUES (3)), q(INSERT INTO kv VALUES (4)))
{
	sql($node, $_);
	sql($node, q(CALL feed_publish('kv')));
}
my $batches = 'SELECT count(*) FROM feedpub._batch';
is(sql($node, $batches), 5, 'there are batches to merge');

# The deletes expire in the same transaction, whose commit fails for that.
sql($node, <<'SQL');
CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE 'not now';
END $$;
CREATE CONSTRAINT TRIGGER fail AFTER INSERT ON feedpub._floor
	DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION fail();
SELECT feed_start_worker();
SQL
$node->wait_for_log(qr/ERROR:  not now(?s:.*?)merging batches of feed/);
my $worker = await_worker($node, 'postgres');
ok( comes_true($node, q((SELECT errors >= 2 FROM feedpub.workers WHERE database = 'postgres')), 50),
	'a merge that fails is tried again');
$node->wait_for_log(qr/(?:ERROR:  not now(?s:.*?)merging batches of feed(?s:.*?)){2}/);
is(sql($node, $batches), 5, 'it has merged nothing');

sql($node, 'DROP TRIGGER fail ON feedpub._floor');
ok(comes_true($node, '(SELECT count(*) = 0 FROM feedpub._tombstone)', 200),
	'when nothing stops it, deletes expire');
is(sql($node, $batches), 3, 'and the same batches are merged');
is(await_worker($node, 'postgres'), $worker, 'by the same worker');
$node->stop;
done_testing();
