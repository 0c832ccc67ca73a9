# A dump brings the feeds' batches along.  Restored into another server, whose
# transaction ids have not come as far or are others', they would swallow rows:
# a batch has seen ids that are yet to be assigned.  So they are refused, also
# when the ids have passed those of the dump, and whether or not a row is left;
# feed_repair() begins anew, and loses nothing.  In the server where the dump
# was taken batches and cursors go on, and in one that pg_upgrade has made of it.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubPublished;
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $old = feedpub_node('old');
my $new = feedpub_node('new', extension => 0);
my $dump = PostgreSQL::Test::Utils::tempdir() . '/dump.sql';
my @feeds = qw(emptied kept);
my (%cursor, %keys);

sub insert
{
	my ($node, $db, $feed, @keys) = @_;

	sql( $node,
		"INSERT INTO $feed (message_type, message_key, data) VALUES ('A', '$_', '1')",
		db => $db)
	  for @keys;
	return;
}

sub restore
{
	my ($node, $db, $test) = @_;

	$node->command_ok(
		[
			'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1',
			'-f', $dump, $db
		],
		$test);
	return;
}

sub xids_have_passed
{
	return sql($new,
		"SELECT bool_and(pg_snapshot_xmax(snapshot) < pg_snapshot_xmin(pg_current_snapshot())) FROM feedpub._batch",
		db => 'restored');
}

#
# The dump: a feed with rows, one whose rows have been deleted, read and
# published, and one that has never had any
#
burn_xids($old, 2000);
sql($old, "SELECT feed_create('$_')") for @feeds, 'unused';
sql($old, "SELECT feed_stop_worker()");
for my $feed (@feeds)
{
	insert($old, 'postgres', $feed, 1 .. 3);
	sql($old, "CALL feed_publish('$feed')");
	insert($old, 'postgres', $feed, 4);
	sql($old, "CALL feed_publish('$feed')");
	$cursor{$feed} = sql($old, "SELECT feed_head('$feed')");
}
sql($old, 'DELETE FROM emptied');
$old->command_ok([ 'pg_dump', '-f', $dump, 'postgres' ], 'pg_dump');

#
# Another server.  Something else is there already, so that the tables have
# other OIDs.
#
sql($new, 'CREATE DATABASE restored');
sql($new, <<'SQL', db => 'restored');
DO $$ BEGIN
	FOR i IN 1..100 LOOP
		EXECUTE format('CREATE TABLE something_else_%s (i int)', i);
	END LOOP;
END $$
SQL
restore($new, 'restored', 'psql restores it into another server');
is( sql($new, <<'SQL', db => 'restored'),
SELECT count(*) FILTER (WHERE b.feed IS NOT NULL)
FROM feedpub._feed f LEFT JOIN feedpub._batch b USING (feed)
SQL
	4,
	'with batches');
is(xids_have_passed(), 'f', 'transaction ids have not come as far');

sub tests_of_refusal
{
	my ($test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my @db = (db => 'restored');
	my $foreign = 'from another history.*HINT:';

	for my $feed (@feeds)
	{
		for my $after ('', $cursor{$feed})
		{
			my $from = $after ? 'a cursor' : 'the beginning';

			refused($new, "SELECT * FROM feed_read(NULL::$feed, '$after', 10)",
				'PF001', $foreign, "$test: feed_read from $from: $feed", @db);
			refused($new, "SELECT feed_page('$feed', '$after', 10)",
				'PF001', $foreign, "$test: feed_page from $from: $feed", @db);
			refused($new, "SELECT feed_wait('$feed', '$after', '1 s')",
				'PF001', $foreign, "$test: feed_wait from $from: $feed", @db);
		}
		refused($new, "SELECT feed_head('$feed')",
			'PF001', $foreign, "$test: feed_head: $feed", @db);
		refused($new, "CALL feed_await('$feed', '', '1 s')",
			'PF001', $foreign, "$test: feed_await: $feed", @db);
		refused($new, "CALL feed_publish('$feed')",
			'PF001', $foreign, "$test: feed_publish: $feed", @db);
		like(
			sql($new,
				"SELECT guard, problem, cure FROM feed_check('$feed') WHERE cure <> ''",
				@db),
			qr/^history\|(?:its batches were made by another server|a row is stamped with transaction id).*\.feed_begin_history\('public.$feed'::pg_catalog.regclass\)\z/,
			"$test: feed_check names it: $feed");
	}

	my ($status, $stdout, $stderr) = $new->psql('restored',
		'CALL feed_publish()', extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	is($status, 0, "$test: CALL feed_publish() for all goes on");
	like($stderr, qr/WARNING:  PF001: could not publish feed "$_"/,
		"$test: with a warning: $_")
	  for @feeds;

	# The worker reports each, and goes on.
	sql($new, 'SELECT feed_stop_worker()', @db);
	await_no_worker($new, 'restored');
	my $offset = -s $new->logfile;
	insert($new, 'restored', $_, "before repair, $test") for @feeds;
	sql($new, 'SELECT feed_start_worker()', @db);
	await_worker($new, 'restored');
	ok( comes_true($new,
			q((SELECT failing_feeds = 2 FROM feedpub.workers WHERE database = 'restored')), 10, 'restored'),
		"$test: the worker publishes neither");
	for my $feed (@feeds)
	{
		like(slurp_file($new->logfile, $offset), qr/CONTEXT:  publishing feed "$feed"$/m,
			"$test: and reports $feed");
	}
	sql($new, 'SELECT feed_stop_worker()', @db);
	await_no_worker($new, 'restored');
	is(batches($new, $_, 'restored'), 2, "$test: nothing was published: $_")
	  for @feeds;
	return;
}

tests_of_refusal('ids before');
burn_xids($new, 2200);
is(xids_have_passed(), 't', 'transaction ids have passed those of the dump');
tests_of_refusal('ids passed');

#
# The cure
#
for my $feed (@feeds)
{
	is(sql($new, "SELECT feed_repair('$feed')", db => 'restored'),
		1, "feed_repair cures it: $feed");
	is(sql($new, "SELECT * FROM feed_check('$feed')", db => 'restored'),
		'', "nothing is amiss then: $feed");
	is(sql($new, "SELECT feed_repair('$feed')", db => 'restored'),
		0, "once: $feed");
	insert($new, 'restored', $feed, 'after');
	sql($new, "CALL feed_publish('$feed')", db => 'restored');
	my @keys = (
		$feed eq 'kept' ? (1 .. 4) : (),
		'before repair, ids before',
		'before repair, ids passed',
		'after');
	my $cursor = '';

	is( read_all($new, $feed, db => 'restored', after => \$cursor, page => 2),
		join("\n", @keys),
		"all rows are published anew: $feed");
	refused($new, "SELECT * FROM feed_read(NULL::$feed, '$cursor{$feed}', 10)",
		'PF001', 'cursor of feed', "old cursors are refused: $feed",
		db => 'restored');
	refused($new, "SELECT feed_wait('$feed', '$cursor{$feed}', '1 s')",
		'PF001', 'cursor of feed', "to wait for as well: $feed",
		db => 'restored');
	insert($new, 'restored', $feed, 'later');
	sql($new, "CALL feed_publish('$feed')", db => 'restored');
	is(read_all($new, $feed, db => 'restored', after => \$cursor),
		'later', "new ones go on: $feed");
}

# A feed without batches has nothing to be refused for.
{
	insert($new, 'restored', 'unused', 1);
	sql($new, "CALL feed_publish('unused')", db => 'restored');
	my ($status, $stdout) = $new->psql('restored',
		"SELECT (entry).message_key FROM feed_read(NULL::unused, '', 10)");
	is($stdout, 1, 'a feed that had no batches is published and read');
	is(sql($new, "SELECT guard FROM feed_check('unused')", db => 'restored'),
		'', 'and nothing is amiss with it');
}

#
# The same server, another database: its transaction ids are the same.
#
sql($old, 'CREATE DATABASE copy');
restore($old, 'copy', 'psql restores it into another database of the server');
for my $feed (@feeds)
{
	my $after = $cursor{$feed};

	is(sql($old, "SELECT * FROM feed_check('$feed')", db => 'copy'),
		'', "same server: nothing is amiss: $feed");
	insert($old, 'copy', $feed, 'new');
	sql($old, "CALL feed_publish('$feed')", db => 'copy');
	is(read_all($old, $feed, db => 'copy', after => \$after),
		'new', "same server: an old cursor goes on: $feed");
	is( read_all($old, $feed, db => 'copy'),
		$feed eq 'kept' ? "1\n2\n3\n4\nnew" : 'new',
		"same server: so do those who begin: $feed");
}

#
# A server made in the same way has the same OIDs: what a fresh server, and
# the only feed of a database, come to.
#
my %alike = map { $_ => feedpub_node($_, extension => $_ eq 'first') } qw(first second);
sql($alike{first}, q(SELECT feed_create('outbox')));
burn_xids($alike{first}, 300);
insert($alike{first}, 'postgres', 'outbox', 1 .. 3);
sql($alike{first}, 'CALL feed_publish()');
sql($alike{first}, 'DELETE FROM outbox');
my $head = sql($alike{first}, q(SELECT feed_head('outbox')));
$alike{first}->command_ok([ 'pg_dump', '-f', $dump, 'postgres' ], 'pg_dump');
restore($alike{second}, 'postgres', 'psql restores it into a fresh server');
burn_xids($alike{second}, 10);
insert($alike{second}, 'postgres', 'outbox', 4);
burn_xids($alike{second}, 400);
refused($alike{second}, "SELECT * FROM feed_read(NULL::outbox, '$head', 10)",
	'PF001', 'from another history', 'the same OID by chance: refused');
is(sql($alike{second}, q(SELECT feed_repair('outbox'))),
	1, 'the same OID by chance: feed_repair cures it');
sql($alike{second}, 'CALL feed_publish()');
is(read_all($alike{second}, 'outbox'), 4, 'and the row comes');

$_->stop for $old, $new, values %alike;
done_testing();
