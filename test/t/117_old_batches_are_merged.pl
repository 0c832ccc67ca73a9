# The worker merges old batches from time to time, also of a feed whose batches
# it has looked through before.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubPublished;
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# All batches are old at once; the worker looks every six seconds, in which it
# goes round 600 times at most if nobody wakes it.
my $node = feedpub_node('server', conf => <<'CONF');
feedpub.naptime = 10ms
feedpub.max_batch_transactions = 2
feedpub.batch_retention = 0
CONF
my $merged = q(SELECT count(*) FROM feedpub._batch WHERE merged_from IS NOT NULL);

sub publish
{
	for (@_)
	{
		sql($node, "INSERT INTO outbox (message_key, message_type, data) VALUES ('$_', 'n', '{}')");
		sql($node, q(CALL feed_publish('outbox')));
	}
	return;
}

sql($node, q(SELECT feed_create('outbox')));
$node->restart;    # which has started a worker
publish('a' .. 'd');
sql($node, 'SELECT feed_start_worker()');
my $worker = await_worker($node, 'postgres');
ok(comes_true($node, "($merged) > 0", 100),
	'a worker that begins merges what is there');
my $first = sql($node, $merged);

publish('e' .. 'j');
ok(comes_true($node, "($merged) >= $first + 2", 1500),
	'and later what has become old since');
is(await_worker($node, 'postgres'), $worker, 'the same worker');
is(read_all($node, 'outbox'), join("\n", 'a' .. 'j'), 'nothing is lost or out of order');

# The numbers of another history begin at 1 again.
sub change
{
	for (@_)
	{
		sql($node, "INSERT INTO item VALUES ('$_')");
		sql($node, q(CALL feed_publish('item')));
	}
	return;
}

my $of_item = "$merged AND feed = 'item'::regclass";

sql($node, 'CREATE TABLE item (k text PRIMARY KEY)');
sql($node, q(SELECT feed_attach('item')));
change('a' .. 'f');
sql($node, q(SELECT feed_begin_history('outbox')));
publish('k' .. 'n');
ok(comes_true($node, "($merged AND feed = 'outbox'::regclass) > 0 AND ($of_item) > 0", 1500),
	'batches of a new history are merged');
is(read_all($node, 'outbox'), join("\n", 'a' .. 'n'), 'nothing is lost or out of order');
sql($node, q(SELECT feed_detach('item')));
sql($node, q(SELECT feed_attach('item')));
is(sql($node, $of_item), 0, 'a table is detached, and attached again');
change('g' .. 'j');
ok(comes_true($node, "($of_item) > 0", 1500), 'its batches are merged');
is(await_worker($node, 'postgres'), $worker, 'all by the same worker');
$node->stop;
done_testing();
