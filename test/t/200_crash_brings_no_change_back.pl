# A crash does not bring back what a reader of a table feed has passed.
#
# A reader passes a row that a writer has changed, and a tombstone whose key was
# inserted again: what replaces them comes later.  If that change was committed
# without waiting for the disk (synchronous_commit = off), a crash takes it back:
# the old row is there again, or the key is gone again, before the consumer's
# cursor.  So a page must not move the cursor over what such a change hides,
# before the change is on disk.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Nothing writes WAL to disk unless it is asked to, and no worker publishes.
my $node = feedpub_node('crashing', conf => <<'CONF');
wal_writer_delay = 10s
wal_writer_flush_after = 100MB
wal_buffers = 16MB
checkpoint_timeout = 1h
bgwriter_lru_maxpages = 0
full_page_writes = off
CONF

# Reads to the end; applies what comes to a copy.  Returns the cursor.
sub follow
{
	my ($copy, $cursor, $page) = @_;

	while (1)
	{
		my @rows = split /\n/, sql($node, <<"SQL");
SET feedpub.read_wait = 0;
SELECT cursor, op, (entry).k, (entry).v FROM feed_read(NULL::kv, '$cursor', $page);
SQL
		return $cursor if !@rows;
		for (@rows)
		{
			my ($after, $op, $k, $v) = split /\|/, $_, 4;

			$cursor = $after;
			$copy->{$k} = $v if $op eq 'upsert';
			delete $copy->{$k} if $op eq 'delete';
			%$copy = () if $op eq 'truncate';
		}
	}
}

sub text
{
	my ($copy) = @_;

	return join ' ', map { "$_=$copy->{$_}" } sort keys %$copy;
}

sub publish
{
	return sql($node, q(CALL feed_publish('kv')));
}

# The commit log remembers what to flush for groups of 32 transactions: those
# of before and the one that follows must not share one.
sub burn
{
	return sql($node, <<'SQL');
DO $$
BEGIN
	FOR i IN 1..70 LOOP
		PERFORM pg_current_xact_id();
		ROLLBACK;
	END LOOP;
END $$
SQL
}

# A feed with three rows.  before: statements that are published and durable,
# after a consumer has read what there was if read_first.  Then hidden, which is
# not durable; the consumer reads; a crash; it reads on.
sub try_crash
{
	my (%case) = @_;
	my %copy;
	my $cursor = '';
	my $unflushed;

	# before there is a feed: a worker that has started writes to disk
	sql($node, <<'SQL');
SELECT feed_stop_worker();
DROP TABLE IF EXISTS kv;
CREATE TABLE kv (k int PRIMARY KEY, v text);
INSERT INTO kv VALUES (1, 'a'), (2, 'a'), (3, 'a');
SELECT feed_attach('kv');
SQL
	$cursor = follow(\%copy, $cursor, 10) if $case{read_first};
	sql($node, $_) for @{ $case{before} // [] };
	publish();
	# a new segment: the change must not lie across the end of a WAL page
	sql($node, 'SELECT pg_switch_wal()');
	sql($node, 'CHECKPOINT');
	burn();
	sql($node, 'SELECT pg_switch_wal()');
	sql($node, "SET synchronous_commit = off; $case{hidden}");
	$unflushed = sql($node,
		'SELECT pg_current_wal_flush_lsn() < pg_current_wal_insert_lsn()');
	$cursor = follow(\%copy, $cursor, $case{page} // 10);
	$node->stop('immediate');
	$node->start;
	publish();
	follow(\%copy, $cursor, 10);
	return ($unflushed, text(\%copy),
		sql($node, q(SELECT string_agg(k || '=' || v, ' ' ORDER BY k) FROM kv)));
}

my @cases = (
	{
		name => 'a row of the initial snapshot that is updated',
		hidden => q(UPDATE kv SET v = 'lost' WHERE k = 1)
	},
	{
		name => 'a row of the initial snapshot that is deleted',
		hidden => 'DELETE FROM kv WHERE k = 3'
	},
	{
		name => 'the same in pages of one row',
		hidden => q(UPDATE kv SET v = 'lost' WHERE k = 2),
		page => 1
	},
	{
		name => 'a published row that is updated',
		read_first => 1,
		before => [
			q(UPDATE kv SET v = 'b' WHERE k = 1),
			q(UPDATE kv SET v = 'b' WHERE k = 2)
		],
		hidden => q(UPDATE kv SET v = 'lost' WHERE k = 1)
	},
	{
		name => 'the last published row, deleted',
		read_first => 1,
		before => [q(UPDATE kv SET v = 'b' WHERE k = 1)],
		hidden => 'DELETE FROM kv WHERE k = 1'
	},
	{
		name => 'a tombstone whose key is inserted again',
		read_first => 1,
		before => [
			'DELETE FROM kv WHERE k = 1', q(UPDATE kv SET v = 'b' WHERE k = 2)
		],
		hidden => q(INSERT INTO kv VALUES (1, 'lost'))
	});
for my $case (@cases)
{
	my ($unflushed, $copy, $table);

	# the server may have flushed by itself
	for (1 .. 5)
	{
		($unflushed, $copy, $table) = try_crash(%$case);
		last if $unflushed eq 't';
	}
	is($unflushed, 't', "$case->{name}: not on disk when it is read");
	is($copy, $table, "$case->{name}: the copy equals the table");
}
$node->stop;
done_testing();
