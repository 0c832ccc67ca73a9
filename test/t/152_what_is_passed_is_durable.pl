# A row that has been deleted is passed, and the consumer's cursor is after
# it.  If the DELETE was committed asynchronously, a crash could bring the row
# back, before every cursor: so the DELETE is on disk before the page leaves.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Nothing writes WAL to disk unless it is asked to.
my $node = feedpub_node('crashing', conf => <<'CONF');
synchronous_commit = off
wal_writer_delay = 10s
wal_writer_flush_after = 100MB
wal_buffers = 16MB
checkpoint_timeout = 1h
bgwriter_lru_maxpages = 0
CONF

# A page of the rows after a cursor: their keys, and the cursor to go on from.
sub page
{
	my ($function, $feed, $after) = @_;
	my %page = (
		feed_page => <<"SQL",
SELECT string_agg(e -> 'key' ->> 'message_key', ' ' ORDER BY n), p ->> 'cursor'
FROM feed_page('$feed', '$after', 10) p
	LEFT JOIN json_array_elements(p -> 'entries') WITH ORDINALITY e (e, n) ON true
GROUP BY p ->> 'cursor'
SQL
		feed_read => <<"SQL");
SELECT string_agg((entry).message_key, ' ' ORDER BY cursor COLLATE "C"), COALESCE(max(cursor COLLATE "C"), '$after')
FROM feed_read(NULL::$feed, '$after', 10)
SQL

	return split /\|/,
	  sql($node, "SET feedpub.read_wait = 0; $page{$function}");
}

sql($node, 'SELECT feed_stop_worker()');
for my $function (qw(feed_page feed_read))
{
	# all of the batch, its last row, the first ones
	for my $gone ('1 2 3', '3', '1 2', '2')
	{
		my $feed = 'outbox_' . $function . '_' . $gone =~ s/ /_/gr;
		my $test = "$function, $gone deleted";
		my %is_gone = map { $_ => 1 } split / /, $gone;
		my ($keys, $cursor);

		sql($node, <<"SQL");
SET synchronous_commit = on;
SELECT feed_create('$feed');
INSERT INTO $feed (message_type, message_key, data) VALUES ('A', '1', '1'), ('A', '2', '1'), ('A', '3', '1');
CALL feed_publish('$feed');
SQL

		# The commit log keeps LSNs for groups of transactions: these lie
		# between the batch and the DELETE.
		sql($node, <<'SQL');
DO $$
BEGIN
	FOR i IN 1..70 LOOP
		PERFORM pg_current_xact_id();
		ROLLBACK;
	END LOOP;
END $$
SQL
		sql($node,
			"DELETE FROM $feed WHERE message_key = ANY (string_to_array('$gone', ' '))");
		($keys, $cursor) = page($function, $feed, '');
		is($keys, join(' ', grep { !$is_gone{$_} } 1 .. 3),
			"$test: the others are read");
		$node->stop('immediate');
		$node->start;

		my $there = sql($node,
			"SELECT string_agg(message_key, ' ' ORDER BY feed_pos) FROM $feed");
		my %delivered = map { $_ => 1 } split(/ /, $keys),
		  split(/ /, (page($function, $feed, $cursor))[0] // '');
		is(join(' ', grep { !$delivered{$_} } split / /, $there),
			'', "$test: no row is there that was not delivered");
	}
}

$node->stop;
done_testing();
