# Partitioned feeds: the rows of an attached partition are stamped and published
# though the server crashes before; a standby delivers them in the same pages; a
# dump takes along which partitions there are, and cursors among the rows that
# were there begin those again.  In another cluster all of it begins anew.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('primary', allows_streaming => 1, extension => 0);
$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
my $dir = PostgreSQL::Test::Utils::tempdir();

# Far ahead of the cluster into which it will be restored.
burn_xids($node, 1000);
sql($node, 'CREATE DATABASE src');
sql($node, <<'SQL', db => 'src');
CREATE EXTENSION feedpub;
CREATE TABLE kv (part text, k int, v text, PRIMARY KEY (part, k)) PARTITION BY LIST (part);
CREATE TABLE kv_a PARTITION OF kv FOR VALUES IN ('a');
CREATE TABLE "kv ""b"", x" (v text, k int NOT NULL, part text NOT NULL);
ALTER TABLE kv ATTACH PARTITION "kv ""b"", x" FOR VALUES IN ('b');
INSERT INTO kv SELECT p, k, 'old' FROM unnest('{a,b}'::text[]) p, generate_series(1, 50) k;
DELETE FROM kv WHERE k <= 10;
SELECT feed_attach('kv');
UPDATE kv SET v = 'new' WHERE k = 11;
SQL

# Follows kv from a cursor, to the end or for some pages, and applies it.
sub follow
{
	my ($server, $db, $copy, $cursor, $page, $pages) = @_;

	while (!defined $pages || $pages-- > 0)
	{
		my @rows = split /\n/, sql($server, <<"SQL", db => $db);
SET feedpub.read_wait = 0;
SELECT cursor, op, (entry).part || (entry).k, (entry).v FROM feed_read(NULL::kv, '$$cursor', $page);
SQL
		last if !@rows;
		for (@rows)
		{
			my ($after, $op, $key, $v) = split /\|/, $_, 4;

			$$cursor = $after;
			$copy->{$key} = $v if $op eq 'upsert';
			delete $copy->{$key} if $op eq 'delete';
		}
	}
	return;
}

sub text
{
	my ($copy) = @_;

	return join ' ', map { "$_=$copy->{$_}" } sort keys %$copy;
}

sub table
{
	my ($server, $db) = @_;

	return sql($server,
		q(SELECT string_agg(part || k || '=' || v, ' ' ORDER BY (part || k) COLLATE "C") FROM kv),
		db => $db);
}

sub publish
{
	my ($db) = @_;

	$db //= 'src';
	sql($node, q(CALL feed_publish('kv')), db => $db);
	1 while sql($node, q(SELECT feedpub._run_job('kv', 7)), db => $db) ne '';
	sql($node, q(CALL feed_publish('kv')), db => $db);
	return;
}

# The partitions, and since when they are in the feed.
my $partitions = 'SELECT partition, since FROM feedpub._partition ORDER BY partition::text';

#
# A crash between attaching and publishing
#
publish();
my (%copy, %turns);
my ($cursor, $turn_cursor) = ('', '');
follow($node, 'src', \%copy, \$cursor, 7, 3);
my %initial = %copy;
my $initial = $cursor;
follow($node, 'src', \%copy, \$cursor, 7);
is(text(\%copy), table($node, 'src'), 'a copy is made');
sql($node, <<'SQL', db => 'src');
CREATE TABLE kv_c (LIKE kv INCLUDING ALL);
INSERT INTO kv_c SELECT 'c', k, 'loaded' FROM generate_series(1, 50) k;
ALTER TABLE kv ATTACH PARTITION kv_c FOR VALUES IN ('c');
UPDATE kv SET v = 'changed' WHERE part = 'c' AND k = 20;
SQL
$node->stop('immediate');
$node->start;
publish();
follow($node, 'src', \%copy, \$cursor, 7, 3);
cmp_ok(scalar keys %copy, '<', sql($node, 'SELECT count(*) FROM kv', db => 'src'),
	'a reader is among the rows of the partition');

#
# On a standby: pages by turns
#
$node->wait_for_replay_catchup($standby);
%turns = %copy;
$turn_cursor = $cursor;
my $middle = $cursor;
my %middle = %copy;
for my $turn (1 .. 12)
{
	sql($node, "UPDATE kv SET v = 'turn $turn' WHERE k = 20 + $turn", db => 'src');
	publish();
	$node->wait_for_replay_catchup($standby);
	follow($turn % 2 ? $standby : $node, 'src', \%turns, \$turn_cursor, 5, 1);
	follow($standby, 'src', \%copy, \$cursor, 9, 1);
}
follow($standby, 'src', \%copy, \$cursor, 1000);
follow($standby, 'src', \%turns, \$turn_cursor, 1000);
is(text(\%copy), table($node, 'src'), 'the copy that was made of a standby is equal');
is(text(\%turns), table($node, 'src'), 'and so is the one that was made by turns');
is(substr($turn_cursor, 0, 25), substr($cursor, 0, 25), 'their cursors are at one position');
$standby->stop;

#
# Restored into another database of the cluster: it goes on.
#
my $brought = sql($node, $partitions, db => 'src');
$node->command_ok([ 'pg_dump', '-Fc', '-f', "$dir/dump", '-d', $node->connstr('src') ],
	'it is dumped');
sql($node, 'CREATE DATABASE dst');
$node->command_ok([ 'pg_restore', '-e', '-d', $node->connstr('dst'), "$dir/dump" ],
	'and restored');
is(sql($node, $partitions, db => 'dst'), $brought, 'the partitions came over');
is(sql($node, q(SELECT guard, problem FROM feed_check('kv')), db => 'dst'),
	sql($node, q(SELECT guard, problem FROM feed_check('kv')), db => 'src'),
	'the triggers and the index did');

# With another identifier of the server, and all else as it was, they are the same.
sql($node, 'UPDATE feedpub._partition SET system_id = 1', db => 'src');
publish();
is(sql($node, $partitions, db => 'src'), $brought, 'the server may have a new identifier');
sql($node, q(UPDATE kv SET v = 'dst' WHERE k = 40), db => 'dst');
publish('dst');
is(sql($node, $partitions, db => 'dst'), $brought, 'they are no new ones');
# Who was at the end may go back by a minute: this database has not made the batch
# that would prove its last pages (proof.c).
my %goes_on = %copy;
my $end = $cursor;
follow($node, 'dst', \%goes_on, \$end, 1000, 1);
is(text(\%goes_on), table($node, 'dst'), 'who was at the end gets what came since');
my %begins_again = %middle;
follow($node, 'dst', \%begins_again, \$middle, 6);
is(text(\%begins_again), table($node, 'dst'), 'who was inside a partition loses none of it');
follow($node, 'dst', \%initial, \$initial, 6);
is(text(\%initial), table($node, 'dst'), 'nor who was among the rows that were there');

# There, too, it is seen when a partition is taken out, changed and put back.
sql($node, <<'SQL', db => 'dst');
ALTER TABLE kv DETACH PARTITION kv_c;
UPDATE kv_c SET v = 'unseen' WHERE k IN (20, 45);
ALTER TABLE kv ATTACH PARTITION kv_c FOR VALUES IN ('c');
SQL
publish('dst');
follow($node, 'dst', \%goes_on, \$end, 1000);
is(text(\%goes_on), table($node, 'dst'), 'what was changed outside is published');

# And if that is done before the first publisher comes; the others are no new ones.
sql($node, 'CREATE DATABASE early');
$node->command_ok([ 'pg_restore', '-e', '-d', $node->connstr('early'), "$dir/dump" ],
	'it is restored once more');
is(sql($node, 'SELECT count(*) FROM feedpub._job', db => 'early'),
	0, 'without what was found in the rows of another table');
sql($node, <<'SQL', db => 'early');
ALTER TABLE kv DETACH PARTITION kv_c;
UPDATE kv_c SET v = 'unseen' WHERE k IN (20, 45);
ALTER TABLE kv ATTACH PARTITION kv_c FOR VALUES IN ('c');
SQL
publish('early');
isnt(sql($node, $partitions, db => 'early'), $brought, 'the partition is a new one');
is( sql($node, "$partitions LIMIT 2", db => 'early'),
	join("\n", (split /\n/, $brought)[ 0, 1 ]),
	'which the others are not');
my %early = %copy;
my $early = $cursor;
follow($node, 'early', \%early, \$early, 1000);
is(text(\%early), table($node, 'early'), 'what was changed before the first batch is published');

# DETACH CONCURRENTLY: the partition is gone for all that come after its first
# half, and readers do not keep it from that.
my $reader = $node->background_psql('dst');
$reader->query_safe("BEGIN; SELECT count(*) FROM feed_read(NULL::kv, '', 10)");
my $detach = IPC::Run::start(
	[ 'psql', '-X', '-q', '-d', $node->connstr('dst'), '-c', 'ALTER TABLE kv DETACH PARTITION kv_c CONCURRENTLY' ],
	'<', \undef, '>', \my $out, '2>', \my $err);
$node->poll_query_until('dst', 'SELECT inhdetachpending FROM pg_inherits WHERE inhrelid = \'kv_c\'::regclass')
  or die 'it is not being detached';
sql($node, q(INSERT INTO kv_c VALUES ('c', 1000, 'direct'); UPDATE kv SET v = 'meanwhile' WHERE k = 41), db => 'dst');
publish('dst');
follow($node, 'dst', \%goes_on, \$end, 1000);
my %rest = map { $_ => $goes_on{$_} } grep { !/^c/ } keys %goes_on;
is(text(\%rest), table($node, 'dst'), 'the others are read while one is being detached');
is(sql($node, $partitions, db => 'dst') =~ /kv_c/, '', 'which is in the feed no more');
$reader->quit;
$detach->finish;
is($err, '', 'it is detached');

#
# In another cluster all begins anew.
#
my $other = feedpub_node('other', extension => 0);

# A feed that has no rows goes on, though its partition was admitted at an id that
# the other server has not reached.
sql($node, 'CREATE DATABASE empty');
sql($node, <<'SQL', db => 'empty');
CREATE EXTENSION feedpub;
CREATE TABLE kv (part text, k int, v text, PRIMARY KEY (part, k)) PARTITION BY LIST (part);
SELECT feed_attach('kv');
CREATE TABLE kv_a PARTITION OF kv FOR VALUES IN ('a');
CALL feed_publish('kv');
SQL
$node->command_ok([ 'pg_dump', '-Fc', '-f', "$dir/empty", '-d', $node->connstr('empty') ],
	'an empty feed is dumped');
sql($other, 'CREATE DATABASE empty');
$other->command_ok([ 'pg_restore', '-e', '-d', $other->connstr('empty'), "$dir/empty" ],
	'and restored elsewhere');
sql($other, q(INSERT INTO kv VALUES ('a', 1, 'b')), db => 'empty');
sql($other, q(CALL feed_publish('kv')), db => 'empty');
sql($other, q(UPDATE kv SET v = 'c'), db => 'empty');
sql($other, q(CALL feed_publish('kv')), db => 'empty');
is(sql($other, q(SELECT (entry).v FROM feed_read(NULL::kv, '', 10)), db => 'empty'),
	'c', 'its rows are published');

sql($other, 'CREATE DATABASE dst');
$other->command_ok([ 'pg_restore', '-e', '-d', $other->connstr('dst'), "$dir/dump" ],
	'it is restored elsewhere');
refused($other, q(SELECT * FROM feed_read(NULL::kv, '', 10)), 'PF001', 'another history',
	'where its stamps are not known', db => 'dst');
burn_xids($other, 1500);
sql($other, <<'SQL', db => 'dst');
SELECT feed_repair('kv');
UPDATE kv SET v = 'other' WHERE k = 30;
CALL feed_publish('kv');
SQL
sql($other, q(CALL feed_republish('kv', unstamped_only => true)), db => 'dst');
sql($other, q(CALL feed_publish('kv')), db => 'dst');
my %anew;
my $anew = '';
follow($other, 'dst', \%anew, \$anew, 8);
is(text(\%anew), table($other, 'dst'), 'from the beginning');
is(sql($other, q(SELECT count(*) FROM feedpub.jobs WHERE state = 'done'), db => 'dst'),
	3, 'all its rows have been stamped anew');
refused($other, "SELECT * FROM feed_read(NULL::kv, '$cursor', 10)", 'PF001', 'another history',
	'cursors of there are refused', db => 'dst');

done_testing();
