# subscriptions.pl: the part of bench/run that measures cursors kept in the
# database.  Loaded by measure.pl, whose tools it uses.

use strict;
use warnings;

my $rounds = $ENV{ROUNDS};

chomp(my $cpus = `nproc`);
my @pin = $cpus > 1 ? ('-c', $cpus - 1) : ();

my $rest = 'publication_id, message_id, message_type, message_key, data, scheduled';

# What each variant runs for a page: method, first parameters, the columns of
# the last row that the next ones are in, statements.
sub consumers
{
	my ($limit) = @_;
	my $poll = 'SELECT receipt, op, key, row, xid, published_at FROM';
	return (
		feed_page => [
			'json', "''", '', "SELECT feed_page('feedpub', \$1, $limit)" ],
		feed_read => [
			'page', "''", '0',
			"SELECT cursor, op, row_to_json(entry) FROM feed_read(NULL::feedpub, \$1, $limit)" ],
		feed_poll => [
			'ack', '', '0', "$poll feed_poll('poll', $limit)",
			q(SELECT feed_ack('poll', $1)) ],
		poll_ack => [
			'page', "''", '0',
			"$poll feed_poll('poll_ack', $limit, ack => nullif(\$1, ''))"
		],
		leased => [
			'page', "''", '0',
			"$poll feed_poll('leased', $limit, 'bench', ack => nullif(\$1, ''))"
		],
		row => [
			'ack', '', '0', "SELECT position, $rest FROM plain "
			  . q(WHERE position > (SELECT position FROM position_cursor WHERE consumer = 'bench') )
			  . "ORDER BY position LIMIT $limit",
			q(UPDATE position_cursor SET position = $1::bigint WHERE consumer = 'bench') ],
		watermill => [
			'ack', '', '0,1', 'BEGIN ISOLATION LEVEL REPEATABLE READ',
			"WITH position_cursor AS MATERIALIZED (SELECT xid, position FROM xid_cursor WHERE consumer = 'bench' FOR UPDATE) "
			  . "SELECT transaction_id, position, $rest FROM article "
			  . 'WHERE (transaction_id, position) > ((SELECT xid FROM position_cursor), (SELECT position FROM position_cursor)) '
			  . 'AND transaction_id < pg_snapshot_xmin(pg_current_snapshot()) '
			  . "ORDER BY transaction_id, position LIMIT $limit",
			q(INSERT INTO xid_cursor VALUES ('bench', $1::xid8, $2::bigint) )
			  . 'ON CONFLICT (consumer) DO UPDATE SET xid = excluded.xid, position = excluded.position',
			'COMMIT' ]);
}

sub start_consumers
{
	psql(
		'feed_1m',
		(map { "SELECT feed_seek('$_', 'earliest')" } qw(poll poll_ack leased)),
		'TRUNCATE position_cursor, xid_cursor',
		q(INSERT INTO position_cursor VALUES ('bench', 0)),
		q(INSERT INTO xid_cursor VALUES ('bench', '0', 0)),
		'VACUUM feedpub._shard, position_cursor, xid_cursor');
	return;
}

sub subscriptions
{
	my $n = 1_000_000;
	my $out = csv('subscriptions',
		qw(round limit variant calls rows bytes seconds p50 p99 cpu wal cut));
	my $dead = csv('subscriptions_dead', qw(table updated hot dead));

	load('1m');
	my @queues = wanted(optional_variants('feed_1m'));
	if (grep { $_ eq 'pgq' } @queues)
	{
		load_queue($_) for 100, 1000;
	}
	psql('feed_1m', q(CALL feed_publish('feedpub')));
	psql('feed_1m', 'CREATE TABLE position_cursor (consumer text PRIMARY KEY, position bigint)',
		'CREATE TABLE xid_cursor (consumer text PRIMARY KEY, xid xid8, position bigint)',
		(map { "SELECT feed_subscribe('$_', 'feedpub', 'earliest', lease => '1 hour')" }
			  qw(poll poll_ack leased)));

	for my $round (1 .. $rounds)
	{
		for my $limit (100, 1000)
		{
			progress("subscriptions, pages of $limit, round $round of $rounds");
			start_consumers();
			my %consumers = consumers($limit);
			my @spec = map { join "\t", $_, 'feed_1m', @{ $consumers{$_} } }
			  grep { exists $consumers{$_} }
			  qw(feed_page feed_read), wanted(qw(feed_poll poll_ack leased row watermill));
			push @spec, map { join "\t", $_, 'feed_1m', $_, '', '', queue_reader($_, $limit) } @queues;
			client($out, [ $round, $limit ], \@spec,
				@pin, '-a', '-n', $limit == 100 ? 50 : 10,
				'-s', 20, '-e', "'-c synchronous_commit=off'");
		}
	}
	psql('feed_1m', 'SELECT pg_stat_force_next_flush()');
	print $dead "$_\n"
	  for split /\n/,
	  psql('feed_1m',
		q(SELECT format('%s,%s,%s,%s', relname, n_tup_upd, n_tup_hot_upd, n_dead_tup)
		  FROM pg_stat_user_tables WHERE relid = ANY
		  (array['feedpub', 'feedpub._shard', 'position_cursor', 'xid_cursor', 'plain', 'article']::regclass[])
		  ORDER BY relname));
	return;
}

1;
