# A worker blocks no one: its database can be dropped, renamed and copied
# without FORCE while it publishes, and it comes back where there still is a
# database; no process is started over and over for one that is gone.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubPublished;
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $odd = 'Odd "Name';
my $node = feedpub_node('server', extension => 0,
	conf => 'feedpub.naptime = 200ms');

sub insert
{
	my ($db, $key) = @_;

	sql( $node,
		"INSERT INTO outbox (message_type, message_key, data) VALUES ('A', '$key', '1')",
		db => $db);
	return;
}

sub make
{
	my ($db) = @_;

	sql($node, "CREATE DATABASE $db");
	sql($node, "CREATE EXTENSION feedpub; SELECT feed_create('outbox')",
		db => $db);
	insert($db, "$db 1");
	sql($node,
		"SET feedpub.read_wait = '60s'; SELECT count(*) FROM feed_read(NULL::outbox, '', 1)",
		db => $db);
	await_worker($node, $db);
	return;
}

for my $preload ('', 'feedpub')
{
	my $how = $preload ? 'preloaded' : 'on demand';

	$node->append_conf('postgresql.conf',
		"shared_preload_libraries = '$preload'");
	$node->restart;
	my $offset = -s $node->logfile;
	make($_) for qw(dropped renamed copied stays);
	is(workers($node), 'copied,dropped,renamed,stays',
		"$how: a worker in each database");
	my $stays = await_worker($node, 'stays');
	my $cursor = sql($node, q(SELECT feed_head('outbox')), db => 'copied');
	sql($node, q(CREATE TABLE kv (k int PRIMARY KEY); INSERT INTO kv VALUES (1), (2), (3); SELECT feed_attach('kv')),
		db => 'copied');
	my $one = sql($node, q(SELECT cursor FROM feed_read(NULL::kv, '', 1) WHERE op = 'upsert'), db => 'copied');
	my $further = "SELECT string_agg((entry).k::text, ',') FROM feed_read(NULL::kv, '$one', 9)";

	# The second batch after that page proves it, and the copy has that.
	for my $k (4, 5)
	{
		my $head = sql($node, q(SELECT feed_head('kv')), db => 'copied');

		is( sql($node, "INSERT INTO kv VALUES ($k); SET feedpub.read_wait = '60s'; SELECT (entry).k FROM feed_read(NULL::kv, '$head', 1)",
				db => 'copied'),
			$k, "$how: a batch after the initial snapshot");
	}

	# Each waits up to 5 s for others to leave, and fails if they do not.
	sql($node, 'DROP DATABASE dropped');
	pass("$how: DROP DATABASE");
	sql($node, 'ALTER DATABASE renamed RENAME TO "Odd ""Name"');
	pass("$how: ALTER DATABASE RENAME");
	sql($node, 'CREATE DATABASE copy TEMPLATE copied');
	pass("$how: CREATE DATABASE TEMPLATE");

	# Where there still is a database, rows are published; without the
	# preload line as soon as a session reads.
	insert($odd, 'renamed 2');
	insert('copied', 'copied 2');
	if ($preload)
	{
		ok(await_published($node, 'outbox', $_), "$how: $_ is published")
		  for $odd, 'copied';
	}
	is( read_all($node, 'outbox', db => $odd, wait => '60s'),
		"renamed 1\nrenamed 2",
		"$how: the renamed database publishes");
	my $after = $cursor;
	is( read_all(
			$node, 'outbox', db => 'copied', after => \$after, wait => '60s'),
		'copied 2',
		"$how: so does the one that was copied");

	# The copy has the original's batches, and goes on from there.
	insert('copy', 'copy 2');
	$after = $cursor;
	is( read_all(
			$node, 'outbox', db => 'copy', after => \$after, wait => '60s'),
		'copy 2',
		"$how: the copy goes on from a cursor of the original");
	is( read_all($node, 'outbox', db => 'copy'),
		"copied 1\ncopy 2",
		"$how: the copy has all rows");
	await_worker($node, $_) for qw(copy copied);

	# Its tables are in files of the same numbers.
	is(sql($node, $further, db => 'copied'), '2,3,4,5', "$how: the initial snapshot goes on");
	is(sql($node, $further, db => 'copy'), '1,2,3,4,5', "$how: in the copy it begins again");

	# Dropped while it publishes, and while the row is not published yet
	for my $round (1 .. 2)
	{
		make('again');
		insert('again', $_) for 1 .. 3;
		sql($node, 'DROP DATABASE again');
	}
	pass("$how: a database of the same name is made and dropped again");

	is(await_worker($node, 'stays'),
		$stays, "$how: the worker of another database has not noticed");
	insert('stays', 'stays 2');
	ok(await_published($node, 'outbox', 'stays'), "$how: it publishes");

	# By now, 3 databases are gone.  A worker that was under way to one of
	# them may have died of that, once.
	my $log = slurp_file($node->logfile, $offset);
	my $dead = () = $log =~ /FATAL:  database \d+ does not exist/g;
	cmp_ok($dead, '<=', 3, "$how: no worker is started over and over");
	my $exits = () = $log =~ /LOG:  background worker "feedpub/g;
	cmp_ok($exits, '<=', 6, "$how: nor does one die over and over");
	note "$dead FATAL, $exits exits";

	sql($node, "DROP DATABASE $_")
	  for 'copy', 'copied', 'stays', '"Odd ""Name"';
	ok(await_no_worker($node), "$how: with the databases, all workers are gone");

	# The launcher sees after five seconds that a database is gone, and goes
	# there no more.
	next unless $preload;
	sql($node, 'CREATE EXTENSION feedpub');
	is_soon($node, 'NOT EXISTS (SELECT FROM feedpub._workers() WHERE datid NOT IN (SELECT oid FROM pg_database))',
		"$how: no worker is wanted for one that is gone");
}

$node->stop;
done_testing();
