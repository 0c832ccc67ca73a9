# Without hot_standby_feedback, VACUUM FULL leaves out rows that a snapshot of a
# standby sees.  That of pg_class freezes its rows, so that they no longer tell
# what wrote them.  Until the standby cancels the query, which it may never do,
# a reader with such a snapshot is told to try again (40001).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = feedpub_node('primary', allows_streaming => 1);

# A page that is pruned would stop the replay.  A full one is, when a row of it
# has been updated.  So the rows of pg_class that are written here are in its
# last page, which is new.
sql($primary, 'VACUUM FULL pg_class');
sql($primary, <<'SQL');
DO $$
DECLARE
	size bigint := pg_relation_size('pg_class');
	n int := 0;
BEGIN
	WHILE pg_relation_size('pg_class') = size LOOP
		EXECUTE format('CREATE TABLE filler_%s ()', n);
		n := n + 1;
	END LOOP;
END $$
SQL
sql($primary, <<'SQL');
SELECT feed_create('outbox');
SELECT feed_stop_worker();
INSERT INTO outbox (message_type, data) SELECT 'A', '1' FROM generate_series(1, 10);
CALL feed_publish('outbox');
SQL
$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->append_conf('postgresql.conf', 'max_standby_streaming_delay = -1');
$standby->start;
$primary->wait_for_replay_catchup($standby);

my %reads = (
	feed_fetch => q(SELECT count(*) FROM feed_fetch(NULL::outbox, '0', 0, 100)),
	feed_read => q(SELECT count((entry).data) FROM feed_read(NULL::outbox, '', 100)));
my $reader = $standby->background_psql('postgres',
	on_error_stop => 0,
	extra_params => [ '-v', 'VERBOSITY=sqlstate' ]);

# What a query gives, in a transaction that goes on without the locks.
sub answer
{
	my ($query) = @_;
	my $output = $reader->query("SAVEPOINT a; $query");
	my ($state) = $reader->{stderr} =~ /ERROR:  (\w+)/;

	$reader->query('ROLLBACK TO a');
	$reader->{stderr} = '';
	return $state // $output;
}

# Wait until the standby has a table in the file in which it is now.
sub wait_for_file
{
	my ($table) = @_;
	my $file = sql($primary, "SELECT pg_relation_filenode('$table')");

	$standby->poll_query_until('postgres', "SELECT pg_relation_filenode('$table') = $file")
	  or die "$table is not replayed";
	return;
}

$reader->query('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
is(answer($reads{$_}), 10, "$_: before") for sort keys %reads;
sql($primary, q(CALL feed_purge('outbox', feed_head('outbox'))));
sql($primary, 'VACUUM FULL outbox');
wait_for_file('outbox');
is(answer($reads{$_}), '40001', "$_: the feed was rewritten") for sort keys %reads;
sql($primary, 'VACUUM FULL pg_class');
wait_for_file('pg_class');
is(answer($reads{$_}), '40001', "$_: pg_class was, too") for sort keys %reads;
$reader->query('ROLLBACK');
$primary->wait_for_replay_catchup($standby);
$reader->query('BEGIN');
is(answer($reads{$_}), 0, "$_: with a new snapshot") for sort keys %reads;
$reader->quit;
done_testing();
