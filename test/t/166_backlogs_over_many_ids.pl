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

# The next transaction gets this id.  Whatever is there has been frozen, for ids
# are compared within half of their range.
sub jump
{
	my ($xid) = @_;

	sql($node, 'VACUUM (FREEZE)', db => $_)
	  for split /\n/, sql($node, 'SELECT datname FROM pg_database WHERE datallowconn');
	sql($node, 'CHECKPOINT');
	$node->stop;

	# the part of the commit log in which it is: 32 pages of four ids a byte
	my $file = sprintf '%s/pg_xact/%04X', $node->data_dir, $xid >> 20;
	open my $segment, '>', $file or die "$file: $!";
	binmode $segment;
	print {$segment} "\0" x (32 * 8192) or die;
	close $segment or die;
	system_or_bail('pg_resetwal', '-x', $xid, '-u', $xid - 1000, $node->data_dir);
	$node->start;
	return;
}

$node->append_conf('postgresql.conf', 'autovacuum = off');
$node->restart;
sql($node, 'ALTER DATABASE template0 ALLOW_CONNECTIONS true');
sql($node, q(SELECT feed_stop_worker()));
sql($node, q(SELECT feed_create('outbox')));
insert($_) for 1 .. 3;
jump(1_500_000_000 & ~0xfffff);
sql($node, q(SELECT feed_stop_worker()));
insert($_) for 4 .. 6;
jump(3_000_000_000 & ~0xfffff);
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
insert(10);
sql($node, 'CALL feed_publish()');
is(read_all($node, 'outbox'), join("\n", 1 .. 10), 'and publishing goes on');
is(sql($node, q(SELECT * FROM feed_check('outbox'))), '', 'nothing is amiss');

$node->stop;
done_testing();
