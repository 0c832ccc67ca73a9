# A prepared transaction that nobody ends does not keep the worker awake: it
# looks no more often than the worker of another database, which has none.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubPublished;
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Each goes round ten times a second if nobody wakes it.
my $node = feedpub_node('server', conf => 'feedpub.naptime = 100ms');

sub turns
{
	my ($db) = @_;

	return sql($node,
		"SELECT turns FROM feedpub.workers WHERE database = '$db'");
}

# How many turns postgres's worker makes while the other one makes so many.
sub turns_beside
{
	my ($n) = @_;
	my $end = turns('other') + $n;
	my $before = turns('postgres');

	$node->poll_query_until('postgres',
		"SELECT turns >= $end FROM feedpub.workers WHERE database = 'other'")
	  or die 'the other worker does not go round';
	return turns('postgres') - $before;
}

sql($node, 'CREATE DATABASE other');
sql($node, 'CREATE EXTENSION feedpub', db => 'other');
for my $db ('other', 'postgres')
{
	sql($node, "SELECT feed_create('outbox')", db => $db);
	sql($node, 'SELECT feed_start_worker()', db => $db);
	await_worker($node, $db);
}

# For a while it looks more often, in case that COMMIT PREPARED comes soon.
sql($node, <<'SQL');
BEGIN;
INSERT INTO outbox (message_type, message_key, data) VALUES ('A', 'forgotten', '1');
PREPARE TRANSACTION 'forgotten';
SQL
turns_beside(30);
cmp_ok(turns_beside(50), '<', 100, 'the worker idles');

# Others are published, and this one when it is committed at last
sql($node,
	q(INSERT INTO outbox (message_type, message_key, data) VALUES ('A', 'other', '1')));
ok(await_published($node, 'outbox'), 'another message is published');
sql($node, q(COMMIT PREPARED 'forgotten'));
ok(await_published($node, 'outbox'), 'the forgotten one is published after all');
is(read_all($node, 'outbox'), "other\nforgotten", 'and read');

$node->stop;
done_testing();
