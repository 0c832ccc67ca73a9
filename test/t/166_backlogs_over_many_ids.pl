# A backlog that is cut into batches may reach over more than half of the 32-bit
# transaction ids: its first batches have seen few of them, and their publisher
# has an id beyond all.  They are this server's, so they are published and read.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubPublished;
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('server');

sub insert
{
	my ($key) = @_;

	sql($node,
		"INSERT INTO outbox (message_type, message_key, data) VALUES ('A', '$key', '1')");
	return;
}

sql($node, q(SELECT feed_stop_worker()));
sql($node, q(SELECT feed_create('outbox')));
insert($_) for 1 .. 3;
jump_xid($node, 1_500_000_000);
sql($node, q(SELECT feed_stop_worker()));
insert($_) for 4 .. 6;
jump_xid($node, 3_000_000_000);
sql($node, q(SELECT feed_stop_worker()));
insert($_) for 7 .. 9;
is( sql($node, q(SELECT max(feed_xid::text::numeric) - min(feed_xid::text::numeric) > 2147483648 FROM outbox)),
	't',
	'ids further apart than half of them');
sql($node, 'SET feedpub.max_batch_transactions = 1; CALL feed_publish()');
is( sql($node, q(SELECT count(*), bool_or(xmin::text::numeric - pg_snapshot_xmax(snapshot)::text::numeric > 2147483648) FROM feedpub._batch)),
	'9|t',
	'batches whose publisher came so much later');
is(read_all($node, 'outbox', page => 2), join("\n", 1 .. 9), 'all is read');
is(sql($node, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM feed_read(NULL::outbox, '', 100)"),
	9, 'the table was made so many ids ago that its own seems to come');
insert(10);
sql($node, 'CALL feed_publish()');
is(read_all($node, 'outbox'), join("\n", 1 .. 10), 'and publishing goes on');
is(sql($node, q(SELECT * FROM feed_check('outbox'))), '', 'nothing is amiss');

$node->stop;
done_testing();
