# A database with feeds is restored into another cluster, whose transaction
# ids have not come as far.  Its stamps mean nothing there: reading in xid
# order is refused, for the rows would be hidden, or come out of order.  The
# rows are there, and writers are not in the way of it.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $old = feedpub_node('old');
my $new = feedpub_node('new', extension => 0);
my $dir = PostgreSQL::Test::Utils::tempdir();

# The first rows have stamps that the other cluster has passed, the last ones
# do not.
my $feeds = <<'SQL';
SELECT feed_create('outbox'), feed_create('guarded'), feed_create('fresh');
ALTER TABLE guarded ENABLE ROW LEVEL SECURITY;
CREATE POLICY all_rows ON guarded FOR SELECT USING (true);
GRANT SELECT ON guarded TO regress_feedpub_reader;
SQL
for my $node ($old, $new)
{
	sql($node, 'CREATE ROLE regress_feedpub_reader LOGIN');
}
sql($old, $feeds);
for my $feed ('outbox', 'guarded')
{
	sql($old, <<"SQL");
INSERT INTO $feed (message_type, data)
	SELECT 'A', to_jsonb(i) FROM generate_series(1, 10) i
SQL
}
burn_xids($old, 5000);
for my $feed ('outbox', 'guarded')
{
	sql($old, <<"SQL");
INSERT INTO $feed (message_type, data)
	SELECT 'A', to_jsonb(i) FROM generate_series(11, 20) i
SQL
}
my %rows = map { $_ => fetch_all($old, $_) } ('outbox', 'guarded');
is(scalar(split /\n/, $rows{outbox}), 20, 'rows to be dumped');

sub tests_of_history
{
	my ($db, $test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my @db = (db => $db);

	is( sql($new, <<'SQL', @db),
SELECT min(feed_xid) < pg_snapshot_xmax(pg_current_snapshot()),
	max(feed_xid) > pg_snapshot_xmax(pg_current_snapshot()) FROM outbox
SQL
		't|t',
		"$test: some stamps lie beyond the next xid");
	for my $feed ('outbox', 'guarded')
	{
		refused($new, "SELECT * FROM feed_fetch(NULL::$feed, '0', 0, 100)",
			'PF001',
			qq(feed "$feed" holds rows from another history.*HINT:),
			"$test: feed_fetch refuses $feed", @db);
		refused($new, "SELECT * FROM feed_xid_head('$feed')",
			'PF001', qq(feed "$feed" holds rows from another history),
			"$test: feed_xid_head refuses $feed", @db);
		refused($new, "SELECT feed_head('$feed')",
			'PF001', qq(feed "$feed" holds rows from another history),
			"$test: feed_head refuses $feed", @db);
		is( sql($new, "SELECT * FROM $feed ORDER BY feed_xid, feed_pos", @db),
			$rows{$feed}, "$test: the rows are there: $feed");
		is(sql($new, "SELECT guard, cure FROM feed_check('$feed')", @db),
			"history|SELECT public.feed_begin_history('public.$feed'::pg_catalog.regclass)",
			"$test: feed_check names it: $feed");
		is(sql($new, "SELECT feed_repair('$feed')", @db),
			0, "$test: feed_repair leaves the rows alone: $feed");
	}
	refused($new, "SELECT * FROM feed_fetch('0', 0, 100)", 'PF001',
		'feed "outbox" holds rows from another history',
		"$test: feed_fetch refuses the default feed", @db);
	refused($new, "SELECT * FROM feed_fetch(NULL::guarded, '0', 0, 100)",
		'PF001', 'feed "guarded" holds rows from another history',
		"$test: also when row security is in play",
		@db, user => 'regress_feedpub_reader');

	# A cursor from there is from another history whatever the feed holds.
	my ($xid, $pos) = $rows{outbox} =~ /^(\d+)\|(\d+)\|[^\n]*\z/m;
	refused($new, "SELECT * FROM feed_fetch(NULL::fresh, '$xid', $pos, 1)",
		'PF001', 'cursor of feed "fresh" is from another history',
		"$test: so is a cursor from there", @db);

	# Writers know nothing of it, and other feeds of the database neither.
	for my $feed ('outbox', 'guarded', 'fresh')
	{
		sql($new,
			"INSERT INTO $feed (message_type, data) VALUES ('new', '1')",
			@db);
	}
	is( sql($new,
			"SELECT count(*), max(feed_pos) = (SELECT feed_pos FROM outbox WHERE message_type = 'new') FROM outbox",
			@db),
		'21|t',
		"$test: writers go on");
	refused($new, "SELECT * FROM feed_fetch('0', 0, 100)", 'PF001',
		'feed "outbox" holds rows from another history',
		"$test: and the feed stays refused", @db);
	is(fetch_all($new, 'fresh', @db, columns => 'message_type'),
		'new', "$test: a feed without such rows is read");
	return;
}

#
# The whole database
#
$old->command_ok([ 'pg_dump', '-f', "$dir/whole.sql", 'postgres' ], 'pg_dump');
sql($new, 'CREATE DATABASE whole');
$new->command_ok(
	[
		'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1',
		'-f', "$dir/whole.sql", 'whole'
	],
	'psql restores it into the other cluster');
tests_of_history('whole', 'whole');

#
# The rows alone, loaded while others have the feeds open, and have found
# nothing wrong with them.
#
$old->command_ok(
	[
		'pg_dump', '--data-only', '-t', 'outbox*', '-t', 'guarded*', '-f',
		"$dir/rows.sql", 'postgres'
	],
	'pg_dump, rows alone');
sql($new, 'CREATE DATABASE rows');
sql($new, 'CREATE EXTENSION feedpub', db => 'rows');
sql($new, $feeds, db => 'rows');
my $reader = $new->background_psql('rows', on_error_stop => 0);
my $fetch = "SELECT count(*) FROM feed_fetch('0', 0, 100)";

is(scalar $reader->query($fetch), 0, 'an open session reads the empty feed');
sql($new, "ALTER TABLE $_ DISABLE TRIGGER zz_feedpub_stamp", db => 'rows')
  for 'outbox', 'guarded';
is(scalar $reader->query($fetch), 0, 'and again before the rows are loaded');
$new->command_ok(
	[
		'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1',
		'-f', "$dir/rows.sql", 'rows'
	],
	'psql loads the rows');
is(sql($new, "SELECT feed_repair('$_')", db => 'rows'), 1, "repaired: $_")
  for 'outbox', 'guarded';
$reader->query($fetch);
like(
	$reader->{stderr},
	qr/feed "outbox" holds rows from another history/,
	'after feed_repair the open session is refused');
$reader->{stderr} = '';
$reader->quit;
tests_of_history('rows', 'rows alone');

$_->stop for $old, $new;
done_testing();
