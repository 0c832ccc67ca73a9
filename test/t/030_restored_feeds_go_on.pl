# A database with feeds is dumped and restored in the same cluster, under
# another name: the feeds read the same there, their positions go on, and
# their triggers are in order.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('dumped', extension => 0);
my $dir = PostgreSQL::Test::Utils::tempdir();

# The extension's functions are in a schema that is in no search_path.
my $in = '"The ""Ext"", x".';
my %payload = (
	'public.outbox' => 'jsonb',
	'public."select"' => 'jsonb',
	'"S ""p"", x"."Odd ""Name"", x"' => 'text',
	'"S ""p"", x".outbox' => 'json',
	'public.bytes' => 'bytea');
my @feeds = sort keys %payload;

# Data that a dump has to quote.
my %data = (
	jsonb => q('"a\\tb \\\\N"'),
	json => q('{"b":  "\\u0041", "a": 1}'),
	text => q(E'a\tb\\\\N'),
	bytea => q('\x00ff5c0a27'));

sql($node, <<"SQL");
CREATE ROLE regress_feedpub_owner LOGIN;
CREATE ROLE regress_feedpub_writer LOGIN;
CREATE ROLE regress_feedpub_reader LOGIN;
CREATE DATABASE src OWNER regress_feedpub_owner;
SQL
sql($node, <<"SQL", db => 'src');
CREATE SCHEMA "The ""Ext"", x";
GRANT USAGE ON SCHEMA "The ""Ext"", x" TO PUBLIC;
CREATE EXTENSION feedpub SCHEMA "The ""Ext"", x";
SELECT ${in}feed_stop_worker();
CREATE SCHEMA "S ""p"", x" AUTHORIZATION regress_feedpub_owner;
GRANT CREATE ON SCHEMA public TO regress_feedpub_owner;
GRANT USAGE ON SCHEMA "S ""p"", x" TO regress_feedpub_writer;
SQL
for my $feed (@feeds, 'public.dropped')
{
	my $type = $payload{$feed} // 'jsonb';

	sql($node, <<"SQL", db => 'src', user => 'regress_feedpub_owner');
SELECT ${in}feed_create('$feed', '$type');
INSERT INTO $feed (message_type, message_key, data)
	SELECT 'A', 'key ' || i, $data{$type} FROM generate_series(1, 30) i;
BEGIN;
INSERT INTO $feed (message_type, data) VALUES ('gone', '0');
ROLLBACK;
INSERT INTO $feed (publication_id, message_type, data) VALUES ('p', 'B|\\', '7');
DELETE FROM $feed WHERE message_key = 'key 3';
GRANT INSERT ON $feed TO regress_feedpub_writer;
SQL
}

# What an owner may do to a table: another default feed, a column more, row
# security, a comment; and a table dropped without the registry.
sql($node, <<"SQL", db => 'src', user => 'regress_feedpub_owner');
SELECT ${in}feed_set_default('public."select"');
ALTER TABLE public.outbox ADD COLUMN tenant int DEFAULT 5;
ALTER TABLE public.bytes ENABLE ROW LEVEL SECURITY;
CREATE POLICY some_rows ON public.bytes FOR SELECT TO regress_feedpub_reader
	USING (message_key = 'key 4');
CREATE POLICY writers ON public.bytes FOR INSERT TO regress_feedpub_writer
	WITH CHECK (true);
GRANT SELECT ON public.bytes TO regress_feedpub_reader;
DROP TABLE public.dropped;
SQL

my $registry = <<'SQL';
SELECT feed::text, kind, owner, payload_type, is_default, created_at
FROM feedpub.feeds ORDER BY 1
SQL
my %rows =
  map { $_ => fetch_all($node, $_, db => 'src', in => $in) } @feeds;
my $registered = sql($node, $registry, db => 'src');

is(scalar(split(/\n/, $rows{$_})), 30, "$_: rows to be dumped") for @feeds;
is(scalar(split(/\n/, $registered)), scalar @feeds, 'feeds to be dumped');
is(sql($node, 'SELECT count(*) FROM feedpub._feed', db => 'src'),
	@feeds + 1, 'and a dropped one, still in the registry');

# What must hold in a restored database.
sub goes_on
{
	my ($db, $test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is(sql($node, $registry, db => $db), $registered,
		"$test: the same feeds are registered");
	is(sql($node, 'SELECT count(*) FROM feedpub._feed', db => $db),
		scalar @feeds, "$test: without the dropped one");
	for my $feed (@feeds)
	{
		is(fetch_all($node, $feed, db => $db, in => $in),
			$rows{$feed}, "$test: the same rows: $feed");
		is(sql($node, "SELECT * FROM ${in}feed_check('$feed')", db => $db),
			'', "$test: all guards stand: $feed");

		# Writers go on, with no right but INSERT.
		my $last = sql($node,
			"SELECT max(feed_xid), max(feed_pos) FROM $feed", db => $db);
		my ($xid, $pos) = split /\|/, $last;
		sql($node,
			"INSERT INTO $feed (message_type, data) VALUES ('new', '1')",
			db => $db, user => 'regress_feedpub_writer') for 1 .. 2;
		is( sql($node, <<"SQL", db => $db),
SELECT count(*), min(feed_xid) > '$xid', min(feed_pos) > $pos,
	count(DISTINCT (feed_xid, feed_pos))
FROM ${in}feed_fetch(NULL::$feed, '$xid', $pos, 100) WHERE message_type = 'new'
SQL
			'2|t|t|2',
			"$test: new messages come after the others: $feed");
		is( sql($node,
				"INSERT INTO $feed (feed_xid, feed_pos, message_type, data) VALUES ('1', 1, 'A', '1') RETURNING feed_xid > '$xid' AND feed_pos > $pos",
				db => $db),
			't',
			"$test: a stamp cannot be forged: $feed");
		sql($node, "DELETE FROM $feed WHERE feed_pos = (SELECT max(feed_pos) FROM $feed)", db => $db);
		refused($node, "UPDATE $feed SET message_type = 'C'",
			'PF004', 'cannot update',
			"$test: a message cannot be changed: $feed",
			db => $db, user => 'regress_feedpub_owner');
	}
	is( sql($node,
			"SELECT count(*) FROM ${in}feed_fetch('0', 0, 1000)",
			db => $db),
		32, "$test: the default feed is read");
	is( fetch_all(
			$node, 'public.bytes',
			db => $db,
			in => $in,
			user => 'regress_feedpub_reader',
			columns => 'message_key'),
		'key 4',
		"$test: row security holds");
	return;
}

#
# Plain, custom with two jobs, and again over what is there.
#
$node->command_ok([ 'pg_dump', '-f', "$dir/plain.sql", 'src' ], 'pg_dump, plain');
sql($node, 'CREATE DATABASE plain');
$node->command_ok(
	[
		'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1',
		'-f', "$dir/plain.sql", 'plain'
	],
	'psql restores it');
goes_on('plain', 'plain');

$node->command_ok([ 'pg_dump', '-Fc', '-f', "$dir/custom.dump", 'src' ],
	'pg_dump, custom');
sql($node, 'CREATE DATABASE custom');
$node->command_ok(
	[
		'pg_restore', '--exit-on-error', '-j2', '-d', 'custom',
		"$dir/custom.dump"
	],
	'pg_restore restores it with two jobs');
goes_on('custom', 'custom');

$node->command_ok(
	[
		'pg_restore', '--exit-on-error', '--clean', '-d', 'custom',
		"$dir/custom.dump"
	],
	'pg_restore --clean restores it over itself');
goes_on('custom', 'clean');

#
# The schema alone: the registry's rows are data and are not restored.
# Writers do not mind; the owner registers the feeds again.
#
$node->command_ok(
	[ 'pg_dump', '--schema-only', '-f', "$dir/schema.sql", 'src' ],
	'pg_dump, the schema alone');
sql($node, 'CREATE DATABASE schema_only');
$node->command_ok(
	[
		'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1',
		'-f', "$dir/schema.sql", 'schema_only'
	],
	'psql restores it');
for my $feed (@feeds)
{
	my %as_owner = (db => 'schema_only', user => 'regress_feedpub_owner');

	sql($node, "INSERT INTO $feed (message_type, data) VALUES ('new', '1')",
		db => 'schema_only', user => 'regress_feedpub_writer');
	refused($node, "SELECT * FROM ${in}feed_fetch(NULL::$feed, '0', 0, 100)",
		'42809', 'is not a feed',
		"schema alone: not a feed yet: $feed", %as_owner);
	is( sql($node, "SELECT guard FROM ${in}feed_check('$feed')", %as_owner),
		'registration',
		"schema alone: nothing else is missing: $feed");
	is(sql($node, "SELECT ${in}feed_repair('$feed')", %as_owner),
		1, "schema alone: feed_repair registers it: $feed");
	is( fetch_all(
			$node, $feed, %as_owner,
			in => $in,
			columns => 'message_type'),
		'new',
		"schema alone: then it is read: $feed");
	is(sql($node, "SELECT ${in}feed_repair('$feed')", %as_owner),
		0, "schema alone: and nothing is left to repair: $feed");
}
is(sql($node, 'SELECT count(*) FROM feedpub.feeds WHERE is_default',
		db => 'schema_only'),
	0, 'schema alone: there is no default feed until one is chosen');

$node->stop;
done_testing();
