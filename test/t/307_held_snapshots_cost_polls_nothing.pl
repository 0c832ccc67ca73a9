# While a snapshot is held, VACUUM removes no version of a shard's row.  A poll
# and its acknowledgement read as many buffers after 20,000 acknowledgements as
# at first, and so does what takes leases, parks entries, moves and shows
# subscriptions.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $acks = $ENV{FEEDPUB_ACKS} // 20_000;
my $node = feedpub_node('server', conf => "log_statement = none\nfsync = off\nautovacuum = off\nfeedpub.read_wait = 0");

sql($node, <<"SQL");
SELECT feed_stop_worker();
SELECT feed_create('outbox');
INSERT INTO outbox (message_type, data) SELECT 'a', '1' FROM generate_series(1, $acks + 100);
CALL feed_publish();
SELECT feed_subscribe('plain', 'outbox', 'earliest');
SELECT feed_subscribe('group', 'outbox', 'earliest', lease => '1 hour');

-- The fewest buffers that a query reads: the first runs in a session load
-- catalogs.
CREATE FUNCTION buffers(query text) RETURNS int LANGUAGE plpgsql AS \$\$
DECLARE
	plan json;
	fewest int;
BEGIN
	FOR i IN 1..8 LOOP
		EXECUTE 'EXPLAIN (ANALYZE, BUFFERS, TIMING off, FORMAT json) ' || query INTO plan;
		plan := plan -> 0 -> 'Plan';
		fewest := least(fewest, (plan ->> 'Shared Hit Blocks')::int + (plan ->> 'Shared Read Blocks')::int);
	END LOOP;
	RETURN fewest;
END \$\$;
CREATE PROCEDURE acknowledge(subscription text, consumer text, n int) LANGUAGE plpgsql AS \$\$
DECLARE
	last text;
BEGIN
	FOR i IN 1..n LOOP
		SELECT receipt INTO STRICT last FROM feed_poll(subscription, 1, consumer, ack => last);
		COMMIT;
	END LOOP;
END \$\$;
SQL

# What a turn of a consumer reads, and what others do with the shards.  Each
# acknowledges the entry that it polls, and is rolled back.
my %queries = (
	'poll and ack' => q(SELECT feed_ack('plain', receipt) FROM feed_poll('plain', 1)),
	'poll and ack by a consumer with a name' => q(SELECT feed_ack('group', receipt) FROM feed_poll('group', 1, 'w')),
	'to take a shard' => q(SELECT FROM feed_leave('group', 'w'), feed_poll('group', 1, 'x')),
	'to park an entry' => q(SELECT feed_nack('plain', receipt) FROM feed_poll('plain', 1)),
	'to move it' => q(SELECT feed_seek('plain', 'earliest')),
	'to have entries delivered again' => q(SELECT feed_retry('plain')),
	'to have one delivered again' => q(SELECT feed_retry('plain', cursor) FROM feedpub.parked),
	'to discard one' => q(SELECT feed_discard('plain', cursor) FROM feedpub.parked),
	'feedpub.shards' => 'SELECT * FROM feedpub.shards',
	'feedpub.subscriptions' => 'SELECT * FROM feedpub.subscriptions');

# In one session: what was planned for a table of one page stays planned.
my $session;

sub measure
{
	my %buffers;

	for my $query (keys %queries)
	{
		my $quoted = $queries{$query} =~ s/'/''/gr;

		$session->query_safe('BEGIN');
		$buffers{$query} = $session->query_safe("SELECT buffers('$quoted')");
		$session->query_safe('ROLLBACK');
	}
	return %buffers;
}

sub acknowledge
{
	my ($n) = @_;

	# in parts: each may take half a minute, if they cost more and more
	for (1 .. 10)
	{
		sql($node, "CALL acknowledge('plain', NULL, $n / 10)");
		sql($node, "CALL acknowledge('group', 'w', $n / 10)");
	}
	return;
}

sql($node, "SELECT feed_nack('plain', receipt, delay => '1 day') FROM feed_poll('plain', 1)");

acknowledge(20);
sql($node, 'VACUUM ANALYZE feedpub._shard, feedpub._subscription, feedpub._consumer');
$session = $node->background_psql('postgres');
my %at_first = measure();

my $holder = $node->background_psql('postgres');
$holder->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1;');
acknowledge($acks);
cmp_ok(sql($node, q(SELECT pg_relation_size('feedpub._shard') / 8192)), '>', $acks / 40, 'all versions of the rows are there');
my %later = measure();

# a version of the same number more or less, and a deeper index
for my $query (sort keys %queries)
{
	note("$query: $at_first{$query} buffers at first, $later{$query} later");
	cmp_ok($later{$query}, '<=', $at_first{$query} + 20, "$query: as many buffers as at first");
}
$_->quit for $holder, $session;
done_testing();
