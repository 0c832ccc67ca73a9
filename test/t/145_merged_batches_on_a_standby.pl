# A standby that lags does not see yet that batches have been merged on the
# primary.  A consumer that reads now here, now there goes on with a cursor of
# the merged batch: on the standby nothing is after it yet, though a batch of
# its number is there.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubPublished;
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = feedpub_node('primary', allows_streaming => 1);
sql($primary, q(SELECT feed_create('outbox'); SELECT feed_stop_worker()));
$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->start;

sub insert
{
	my (@keys) = @_;

	sql($primary,
		'INSERT INTO outbox (message_type, message_key, data) VALUES '
		  . join(', ', map { "('A', '$_', '1')" } @keys));
	return;
}

sub publish
{
	sql($primary, q(CALL feed_publish('outbox')));
	return;
}

# All batches but the last, and those that have been merged, into one
sub merge
{
	return sql($primary, <<'SQL');
UPDATE feedpub._batch SET published_at = '2000-01-01';
DO $$
BEGIN
	PERFORM set_config('feedpub.max_batch_transactions', sum(transactions)::text, false)
	FROM feedpub._batch WHERE merged_pos IS NULL AND sync_id < (SELECT max(sync_id) FROM feedpub._batch);
END $$;
SELECT feedpub._merge_batches('outbox');
SQL
}

sub pause_replay
{
	$primary->wait_for_replay_catchup($standby);
	sql($standby, 'SELECT pg_wal_replay_pause()');
	$standby->poll_query_until('postgres',
		q(SELECT pg_get_wal_replay_pause_state() = 'paused'))
	  or die 'replay does not pause';
	return;
}

# A page of so many rows: their keys, and the cursor to go on from.
sub page
{
	my ($node, $after, $max_rows) = @_;
	my ($keys, $cursor) = split /\|/, sql($node, <<"SQL");
SET feedpub.read_wait = 0;
SELECT (SELECT string_agg(e -> 'key' ->> 'message_key', ' ' ORDER BY n) FROM json_array_elements(p -> 'entries') WITH ORDINALITY e (e, n)), p ->> 'cursor'
FROM feed_page('outbox', '$after', $max_rows) p
SQL
	return ($keys, $cursor);
}

# The standby has seen all batches ("whole"), or not the last ones.
for my $missing (0 .. 2)
{
	my $test = "$missing batches missing on the standby";
	my ($keys, $cursor, $same);
	my %old;

	# Positions 1 to 6 in batches {2}, {3, 4}, {1, 5}, {6}, but for what rounds
	# before have left
	sql($primary, 'DELETE FROM outbox');
	my ($nothing, $begin) = page($primary, '', 10);
	$begin //= '';
	sql($primary, <<'SQL');
BEGIN;
INSERT INTO outbox (message_type, message_key, data) VALUES ('A', '1', '1');
PREPARE TRANSACTION 'long';
SQL
	insert(2);
	publish();
	insert(3, 4);
	publish();
	pause_replay() if $missing == 2;
	sql($primary, q(COMMIT PREPARED 'long'));
	insert(5);
	publish();
	pause_replay() if $missing == 1;
	insert(6);
	publish();
	pause_replay() if $missing == 0;
	$old{$_} = (page($primary, $begin, $_))[1] for 1 .. 6;
	cmp_ok(merge(), '>', 1, "$test: merged");

	($keys, $cursor) = page($primary, '', 1);
	is($keys, 1, "$test: the primary begins with the merged batch");
	($keys, $same) = page($standby, $cursor, 10);
	is($keys, '', "$test: nothing is after it on the standby");
	is($same, $cursor, "$test: the consumer stays where it is");
	is( sql($standby,
			"SELECT count(*) FROM feed_read(NULL::outbox, '$cursor', 10)"),
		0, "$test: nor for feed_read");
	is( sql($standby, "SELECT feed_wait('outbox', '$cursor', '0')"),
		'f', "$test: feed_wait refuses it neither, and does not say that something came");
	is((page($primary, $cursor, 10))[0],
		'2 3 4 5 6', "$test: the primary goes on without a loss");

	# Cursors from before the merge are good here and there, before and after.
	my @order = qw(2 3 4 1 5 6);
	for my $when (qw(before after))
	{
		if ($when eq 'after')
		{
			sql($standby, 'SELECT pg_wal_replay_resume()');
			$primary->wait_for_replay_catchup($standby);
			is((page($standby, $cursor, 10))[0],
				'2 3 4 5 6', "$test: the standby goes on when it has caught up");
			is( sql($standby, "SELECT feed_wait('outbox', '$cursor', '0')"),
				't', "$test: and feed_wait says so");
		}
		for my $n (1 .. 6)
		{
			for my $node ($primary, $standby)
			{
				my %got = map { $_ => 1 } split / /,
				  (page($node, $old{$n}, 10))[0] // '';
				my @lost = grep { !$got{$_} } @order[ $n .. 5 ];

				# what it has not got yet is not lost
				@lost = () if $node == $standby && $when eq 'before' && $missing;
				is("@lost", '',
					"$test: old cursor $n, $when, " . $node->name . ': nothing lost');
			}
		}
	}
	refused($standby,
		"SELECT feed_page('outbox', overlay('$cursor' PLACING '012345' FROM 26), 10)",
		'PF001', 'cursor of feed', "$test: a made-up one is refused there as well");
}

$standby->stop;
$primary->stop;
done_testing();
