# What was wrong once, and, marked as such, what is known to be wrong still:
# claims of the documentation that do not hold in every case yet.

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

sql($node, 'SELECT feed_stop_worker()');

# Reads a feed to its end, so many rows a page; returns what came, or the error.
sub consume
{
	my ($feed, $cursor, $page) = @_;
	my @keys;

	while (1)
	{
		my ($status, $stdout, $stderr) = $node->psql('postgres', <<"SQL");
SET feedpub.read_wait = 0;
\\set VERBOSITY sqlstate
SELECT cursor, op, (entry).id FROM feed_read(NULL::$feed, '$cursor', $page)
SQL
		return join(' ', @keys, $1) if $stderr =~ /ERROR:\s+(\w+)/;
		return join(' ', @keys) if $stdout eq '';
		for (split /\n/, $stdout)
		{
			my ($after, $op, $id) = split /\|/;

			$cursor = $after;
			push @keys, $id if $op eq 'upsert';
		}
	}
}

sub attach
{
	my ($table) = @_;

	sql($node, "CREATE TABLE $table (id int PRIMARY KEY)");
	my $rest = sql($node, "SELECT feed_attach('$table')");
	sql($node, $rest) if $rest;
	return;
}

# All batches of a feed but the last are old enough.
sub let_old
{
	my ($feed) = @_;

	sql($node,
		"UPDATE feedpub.batch SET published_at = '2000-01-01' WHERE feed = '$feed'::regclass AND sync_id < (SELECT max(sync_id) FROM feedpub.batch WHERE feed = '$feed'::regclass)"
	);
	return;
}

# Rows 1 to 6 in batches of one, deletes among them
attach('small_pages');
for my $n (1 .. 6)
{
	sql($node, "INSERT INTO small_pages VALUES ($n), (10 + $n)");
	sql($node, 'DELETE FROM small_pages WHERE id > 10');
	sql($node, q(CALL feed_publish('small_pages')));
}
let_old('small_pages');
is(sql($node, q(SELECT feedpub._expire_tombstones('small_pages') > 0)),
	't', 'tombstones have expired');
is(consume('small_pages', '', 100),
	'1 2 3 4 5 6', 'who begins gets all in one large page');
is(consume('small_pages', '', 2),
	'1 2 3 4 5 6', 'who begins gets all in small pages');

TODO:
{
	local $TODO = 'merging moves last_pos, and with it the floor, beyond cursors that are past it';

	attach('merged');
	sql($node, <<'SQL');
BEGIN;
INSERT INTO merged VALUES (1);
PREPARE TRANSACTION 'long';
SQL
	sql($node, 'INSERT INTO merged VALUES (2)');
	sql($node, 'DELETE FROM merged WHERE id = 2');
	sql($node, q(CALL feed_publish('merged')));
	sql($node, q(COMMIT PREPARED 'long'));
	sql($node, q(CALL feed_publish('merged')));
	my $head = sql($node, q(SELECT feed_head('merged')));
	sql($node, 'INSERT INTO merged VALUES (3)');
	sql($node, q(CALL feed_publish('merged')));
	let_old('merged');
	sql($node, q(SELECT feedpub._merge_batches('merged'), feedpub._expire_tombstones('merged')));
	is(consume('merged', $head, 100), '3',
		'a consumer who was at the end of a batch that was merged goes on');
}

{
	sql($node, q(SELECT feed_create('outbox')));
	my $waiting = background($node, q(SELECT feed_wait('outbox', '', '1 h')));
	$waiting->await_wait;
	is( sql($node,
			q(SELECT count(*) FROM pg_locks WHERE relation = 'outbox'::regclass)),
		0, 'feed_wait(), the first in a session, holds no lock on the table');
	sql($node, q(INSERT INTO outbox (message_type, data) VALUES ('a', '1')));
	sql($node, q(CALL feed_publish('outbox')));
	$waiting->finish;
}

$node->stop;
done_testing();
