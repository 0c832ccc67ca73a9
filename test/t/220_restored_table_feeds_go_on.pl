# Table feeds are dumped and restored: into another database of the cluster,
# and into another cluster.  Stamps, tombstones, triggers and the registry come
# over.  A cursor inside the initial snapshot begins it again, since the rows are
# elsewhere in the restored table; nothing is lost.

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

sql($node, <<'SQL');
CREATE ROLE regress_feedpub_owner LOGIN;
CREATE DATABASE src OWNER regress_feedpub_owner;
SQL
sql($node, 'CREATE EXTENSION feedpub; GRANT CREATE ON SCHEMA public TO regress_feedpub_owner',
	db => 'src');

# Far ahead of the cluster into which it will be restored, in both numbers.
burn_xids($node, 1000);
sql($node, <<'SQL', db => 'src');
DO $$
BEGIN
	FOR i IN 1..200 LOOP
		CREATE TABLE gone ();
		DROP TABLE gone;
	END LOOP;
END $$
SQL

# Rows of the initial snapshot with holes between them, stamped rows and tombstones; one feed
# with a key of two columns and a hostile name, one of a domain over a range type;
# one with a key of a type that is renamed.  (Labels of an enum take even object
# numbers only, and the last test counts the numbers that are taken, so it has none.)
sql($node, <<'SQL', db => 'src', user => 'regress_feedpub_owner');
CREATE TABLE kv (k int PRIMARY KEY, v text, hits int);
INSERT INTO kv SELECT i, 'a' FROM generate_series(1, 300) i;
DELETE FROM kv WHERE k <= 100;
CREATE TYPE renamed AS ENUM ();
CREATE TABLE empty (k renamed PRIMARY KEY);
CREATE DOMAIN ns AS numrange;
CREATE TABLE "Odd ""Name"", x" (ns ns, "a b" int, v text, PRIMARY KEY (ns, "a b"));
INSERT INTO "Odd ""Name"", x" VALUES ('[1,1]', 1, 'a'), ('[1,1]', 2, 'a'), ('[2,2]', 1, 'a');
SELECT feed_attach('kv', columns => '{v}');
SELECT feed_attach('"Odd ""Name"", x"');
SELECT feed_attach('empty');
UPDATE kv SET v = 'b' WHERE k BETWEEN 150 AND 160;
ALTER TYPE renamed RENAME TO "Odd ""Type"", x";
DELETE FROM kv WHERE k BETWEEN 161 AND 170;
DELETE FROM "Odd ""Name"", x" WHERE ns::text = '[2,2]';
UPDATE "Odd ""Name"", x" SET v = 'b' WHERE "a b" = 2;
CALL feed_publish();
SQL

# Follows kv from a cursor to the end, or for some pages.
sub follow
{
	my ($server, $db, $copy, $cursor, $page, $pages) = @_;

	while (!defined $pages || $pages-- > 0)
	{
		my @rows = split /\n/, sql($server, <<"SQL", db => $db);
SET feedpub.read_wait = 0;
SELECT cursor, op, (entry).k, (entry).v FROM feed_read(NULL::kv, '$cursor', $page);
SQL
		last if !@rows;
		for (@rows)
		{
			my ($after, $op, $k, $v) = split /\|/, $_, 4;

			$cursor = $after;
			$copy->{$k} = $v if $op eq 'upsert';
			delete $copy->{$k} if $op eq 'delete';
		}
	}
	return $cursor;
}

sub text
{
	my ($copy) = @_;

	return join ' ', map { "$_=$copy->{$_}" } sort { $a <=> $b } keys %$copy;
}

sub table
{
	my ($server, $db) = @_;

	return sql($server,
		q(SELECT string_agg(k || '=' || v, ' ' ORDER BY k) FROM kv),
		db => $db);
}

my (%half, %whole);
my $half = follow($node, 'src', \%half, '', 50, 2);
my $after_initial = follow($node, 'src', \%whole, '', 1000, 1);
my $end = follow($node, 'src', \%whole, '', 1000);
is(scalar keys %half, 100, 'half of the initial snapshot is read');
is(text(\%whole), table($node, 'src'), 'all is read');

my $registry = <<'SQL';
SELECT feed, kind, owner, key, deletes, state FROM feedpub.feeds WHERE feed <> 'empty'::regclass ORDER BY feed::text
SQL
my $stamps = <<'SQL';
SELECT k, v, feed_xid, feed_pos FROM kv ORDER BY k;
SELECT feed, feed_xid, feed_pos, key FROM feedpub._tombstone ORDER BY feed_pos, feed::text;
SELECT tgname, tgenabled, tgargs, tgrelid::regclass::text FROM pg_trigger WHERE tgname LIKE 'zz_feedpub%' ORDER BY 4, 1;
SQL
my $registered = sql($node, $registry, db => 'src');
my $stamped = sql($node, $stamps, db => 'src');

sub goes_on
{
	my ($server, $db, $test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is(sql($server, $registry, db => $db), $registered, "$test: the registry");
	is(sql($server, $stamps, db => $db),
		$stamped, "$test: stamps, tombstones and triggers");
	is(sql($server, 'SELECT c.* FROM feedpub._feed f, feed_check(f.feed) c', db => $db),
		'', "$test: all guards stand");

	sql($server, <<'SQL', db => $db);
UPDATE kv SET v = 'restored' WHERE k IN (101, 155, 299);
DELETE FROM kv WHERE k IN (102, 156, 298);
INSERT INTO kv VALUES (1, 'restored'), (161, 'restored');
UPDATE kv SET hits = 1 WHERE k = 157;
CALL feed_publish('kv');
SQL
	my %new;
	my %from_half = %half;
	my %from_end = %whole;

	follow($server, $db, \%new, '', 40);
	is(text(\%new), table($server, $db), "$test: from the beginning");
	follow($server, $db, \%from_half, $half, 40);
	is(text(\%from_half), table($server, $db),
		"$test: from the middle of the initial snapshot");
	follow($server, $db, \%from_end, $end, 40);
	is(text(\%from_end), table($server, $db), "$test: from the end");
	return;
}

# In another cluster whose ids have not come as far, the batches mean nothing:
# published order is refused until the owner has had them forgotten.  Then all
# is published anew, and a consumer of the old feed begins again.
sub begins_anew
{
	my ($server, $db, $test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is(sql($server, $registry, db => $db),
		$registered =~ s{\|ready$}{|other history}gmr, "$test: the registry");
	is(sql($server, $stamps, db => $db),
		$stamped, "$test: stamps, tombstones and triggers");
	like(sql($server, q(SELECT guard FROM feed_check('kv')), db => $db),
		qr/^history$/, "$test: feed_check() says so");
	sql($server, q(UPDATE kv SET v = 'before the repair' WHERE k IN (103, 158)), db => $db);
	for my $cursor ('', $half, $end)
	{
		refused($server, "SELECT * FROM feed_read(NULL::kv, '$cursor', 10)",
			'PF001', 'another history', "$test: refused", db => $db);
	}
	sql($server, 'SELECT feed_repair(feed) FROM feedpub._feed', db => $db);
	is(sql($server, 'SELECT c.* FROM feedpub._feed f, feed_check(f.feed) c', db => $db),
		'', "$test: repaired, all guards stand");
	refused($server, "SELECT * FROM feed_read(NULL::kv, '$half', 10)",
		'PF001', 'another history', "$test: a cursor of the old initial snapshot is refused", db => $db);
	refused($server, "SELECT * FROM feed_read(NULL::kv, '$end', 10)",
		'PF001', 'another history', "$test: an old cursor is refused", db => $db);

	my %new;
	my $cursor = follow($server, $db, \%new, '', 40, 2);
	sql($server, <<'SQL', db => $db);
UPDATE kv SET v = 'restored' WHERE k IN (101, 155, 299);
DELETE FROM kv WHERE k IN (102, 156, 298);
INSERT INTO kv VALUES (1, 'restored'), (161, 'restored');
CALL feed_publish('kv');
SQL
	follow($server, $db, \%new, $cursor, 40);
	is(text(\%new), table($server, $db), "$test: from the beginning");
	return;
}

# Other formats, and in parallel; by a superuser and by the database's owner.
for my $case (
	[ 'plain', 'postgres', '-Fp' ],
	[ 'custom', 'postgres', '-Fc', '-j2' ],
	[ 'directory', 'postgres', '-Fd', '-j2' ],
	[ 'by_owner', 'regress_feedpub_owner', '-Fc' ])
{
	my ($name, $user, $format, @jobs) = @$case;
	my $file = "$dir/$name";
	my $db = "copy_$name";

	command_ok(
		[
			'pg_dump', '-h', $node->host, '-p', $node->port, '-U', $user,
			$format, '-f', $file, 'src'
		],
		"$name: dumped");
	sql($node, "CREATE DATABASE $db OWNER regress_feedpub_owner");
	command_ok(
		$format eq '-Fp'
		? [
			'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-h', $node->host, '-p',
			$node->port, '-U', 'postgres', '-d', $db, '-f', $file
		  ]
		: [
			'pg_restore', '--exit-on-error', @jobs, '-h', $node->host, '-p',
			$node->port, '-U', 'postgres', '-d', $db, $file
		],
		"$name: restored");
	goes_on($node, $db, $name);
}

#
# Another cluster, whose transaction ids have not come as far at first
#
my $other = feedpub_node('restored', extension => 0);
sql($other, 'CREATE ROLE regress_feedpub_owner LOGIN');
my $xid = sql($node, 'SELECT pg_current_xact_id()');

# A table there may get the same file number as it had here; then only
# something else can tell that its rows are elsewhere.
my $filenode = sql($node, q(SELECT pg_relation_filenode('kv')), db => 'src');
sub restore_there
{
	my ($db) = @_;

	sql($other, "CREATE DATABASE $db");
	command_ok(
		[
			'pg_restore', '--exit-on-error', '-h', $other->host, '-p',
			$other->port, '-U', 'postgres', '-d', $db, "$dir/custom"
		],
		"$db: restored in another cluster");
	return sql($other, q(SELECT pg_relation_filenode('kv')), db => $db);
}

sub next_oid
{
	my ($oid) = @_;

	$other->stop;
	command_ok([ 'pg_resetwal', '-o', $oid, $other->data_dir ],
		'its next object number is set');
	$other->start;
	return;
}

next_oid(100_000);
my $got = restore_there('first');
refused($other, q(SELECT * FROM feed_read(NULL::kv, '', 10)),
	'PF001', 'another history', 'stamps are beyond this server', db => 'first');
burn_xids($other, $xid - sql($other, 'SELECT pg_current_xact_id()') + 100);
begins_anew($other, 'first', 'another cluster');

# How many numbers are taken before it is not known.
my $start = 100_000;
for my $try (1 .. 4)
{
	$start -= $got - $filenode;
	next_oid($start);
	$got = restore_there("again$try");
	goes_on($other, "again$try", 'ids have come further, the same file number'), last
	  if $got == $filenode;
}
is($got, $filenode, 'the table has had the same file number as in the source');

$other->stop;
$node->stop;
done_testing();
