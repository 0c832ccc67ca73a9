# Captures are dumped and restored, followed by a standby, and go on where they
# come: by names, since all numbers are others there.  feed_check() says what a
# restore leaves to do, feed_repair() does it; then a capture ends with its feed,
# and with its table.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('dumped', extension => 0, allows_streaming => 1, conf => 'feedpub.read_wait = 0');
my $dir = PostgreSQL::Test::Utils::tempdir();

sql($node, <<'SQL');
CREATE ROLE regress_feedpub_owner LOGIN;
CREATE DATABASE src OWNER regress_feedpub_owner;
SQL
sql($node, <<'SQL', db => 'src');
CREATE EXTENSION feedpub;
SELECT feed_stop_worker();
GRANT CREATE ON SCHEMA public TO regress_feedpub_owner;
SQL

# In tables with dropped columns, which a restored table has not: numbers of
# columns mean others there.
sql($node, <<'SQL', db => 'src', user => 'regress_feedpub_owner');
SELECT feed_create_changes('changes'), feed_create_changes('"Odd ""Feed"""');
CREATE TABLE plain (gone int, id int PRIMARY KEY, v text, w text);
CREATE TABLE "Odd ""Name"", x" (gone int, gone_too int, id int PRIMARY KEY, "a ""b""" int NOT NULL UNIQUE, v text, w text, u text);
CREATE TABLE parted (gone int, id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE parted_0 PARTITION OF parted FOR VALUES FROM (0) TO (10);
CREATE TABLE parted_1 (v text, id int PRIMARY KEY);
ALTER TABLE plain DROP gone;
ALTER TABLE "Odd ""Name"", x" DROP gone, DROP gone_too;
ALTER TABLE parted DROP gone;
ALTER TABLE parted ATTACH PARTITION parted_1 FOR VALUES FROM (10) TO (20);
SELECT feed_capture('plain', 'changes');
SELECT feed_capture('plain', '"Odd ""Feed"""', columns => '{w}');
SELECT feed_capture('"Odd ""Name"", x"', 'changes', columns => '{u,v}', key => '"Odd ""Name"", x_a ""b""_key"', old => false);
SELECT feed_capture('parted', 'changes');
ALTER TABLE plain RENAME w TO "W w";
INSERT INTO plain VALUES (1, 'a', 'a'), (2, 'a', 'a');
INSERT INTO "Odd ""Name"", x" VALUES (1, 1, 'a', 'a', 'a');
INSERT INTO parted VALUES (1, 'a'), (11, 'a');
SQL

# The same is done in each database, and the same must come of it.
my $work = <<'SQL';
INSERT INTO plain VALUES (3, 'b', 'b');
UPDATE plain SET "W w" = 'c' WHERE id = 1;
UPDATE plain SET id = 20 WHERE id = 2;
DELETE FROM plain WHERE id = 3;
INSERT INTO "Odd ""Name"", x" VALUES (2, 2, 'b', 'b', 'b');
UPDATE "Odd ""Name"", x" SET v = 'c', w = 'c' WHERE id = 1;
UPDATE "Odd ""Name"", x" SET w = 'd' WHERE id = 1;
UPDATE "Odd ""Name"", x" SET "a ""b""" = 3 WHERE id = 2;
DELETE FROM "Odd ""Name"", x" WHERE id = 2;
INSERT INTO parted VALUES (2, 'b'), (12, 'b');
BEGIN;
UPDATE parted SET id = 13, v = 'c' WHERE id = 2;
UPDATE parted SET id = 14 WHERE id = 12;
COMMIT;
TRUNCATE parted_0;
TRUNCATE plain, parted;
SQL
my $after = join ';', map {
	"SELECT op, (entry).relation, (entry).key, (entry).old_key, (entry).row, (entry).old, (entry).statement IS NOT NULL, moment FROM feed_read(NULL::$_, :'$_', 1000)"
} 'changes', 'odd';
$after =~ s/NULL::odd/NULL::"Odd ""Feed"""/;

my %head;

# What a reader gets who had all when the dump was made.
sub entries
{
	my ($server, $db) = @_;

	return sql($server, $after =~ s/:'(\w+)'/'$head{$1}'/gr, db => $db);
}

sub works
{
	my ($server, $db) = @_;

	sql($server, "$work CALL feed_publish();", db => $db, user => 'regress_feedpub_owner');
	return entries($server, $db);
}

my $faults = q(SELECT guard, problem, cure FROM feed_check('changes') UNION ALL SELECT guard, problem, cure FROM feed_check('"Odd ""Feed"""') ORDER BY 3 DESC, 2);
my $captures = 'SELECT feed, relation, key, columns, old, state FROM feedpub.captures ORDER BY feed::text, relation::text';
my $triggers = q(SELECT tgrelid::regclass, tgname FROM pg_trigger WHERE tgname LIKE 'RI\_feedpub%' ORDER BY tgrelid::regclass::text, tgname);

# what is left to do, of some tables that are captured into changes
sub stored
{
	my ($feed, @tables) = @_;

	return join "\n", map { "capture|the capture of table $_ is not what a dump needs: it was restored, or columns were renamed|SELECT public.feed_repair('public.$feed'::pg_catalog.regclass)" } @tables;
}

my $renamed = sql($node, $faults, db => 'src');
is($renamed, stored('"Odd ""Feed"""', 'public.plain'), 'a column was renamed, of which a dump would have the old name');
is(sql($node, q(SELECT feed_repair('"Odd ""Feed"""')), db => 'src'), 1, 'it is written down');
is(sql($node, $faults, db => 'src'), '', 'then nothing is left');
sql($node, 'CALL feed_publish()', db => 'src');
$head{changes} = sql($node, q(SELECT feed_head('changes')), db => 'src');
$head{odd} = sql($node, q(SELECT feed_head('"Odd ""Feed"""')), db => 'src');

my $dump = "$dir/dump";
$node->command_ok([ 'pg_dump', '-Fc', '-f', $dump, $node->connstr('src') ], 'dumped');
$node->backup('base');
my $captured = sql($node, $captures, db => 'src');
is($captured, <<'TEXT' =~ s/\n\z//r, 'the captures');
"Odd ""Feed"""|plain|{id}|{"W w"}|t|ready
changes|"Odd ""Name"", x"|{"a \"b\""}|{u,v}|f|ready
changes|parted|{id}||t|ready
changes|plain|{id}||t|ready
TEXT
my $triggered = sql($node, $triggers, db => 'src');
my $expected = works($node, 'src');
is(() = $expected =~ /^(?:insert|update|delete|truncate)\|/mg, 20, 'changes are captured');
my $all = q(SELECT op, entry, moment FROM feed_read(NULL::changes, '', 1000));

# In sections: in one run with -j, the server's tools make the triggers of a
# partitioned table while rows are loaded into its partitions.
sub restore
{
	my ($db) = @_;

	sql($node, "CREATE DATABASE $db OWNER regress_feedpub_owner");
	$node->command_ok([ 'pg_restore', '--exit-on-error', '-j2', "--section=$_", '-d', $node->connstr($db), $dump ], "$db: restored, $_")
	  for qw(pre-data data post-data);
	sql($node, 'SELECT feed_stop_worker()', db => $db);
	return;
}

#
# Restored by a superuser
#
restore('copy');
isnt(sql($node, q(SELECT 'plain'::regclass::oid, 'changes'::regclass::oid, attnum FROM pg_attribute WHERE attrelid = 'plain'::regclass AND attname = 'W w'), db => 'copy'),
	sql($node, q(SELECT 'plain'::regclass::oid, 'changes'::regclass::oid, attnum FROM pg_attribute WHERE attrelid = 'plain'::regclass AND attname = 'W w'), db => 'src'),
	'numbers are others');
is(sql($node, $captures, db => 'copy'), $captured, 'the captures are there');
is(sql($node, $triggers, db => 'copy'), $triggered, 'and their triggers');
is(works($node, 'copy'), $expected, 'and they capture the same');
my $odd = 'public."Odd ""Name"", x"';
is(sql($node, $faults, db => 'copy'), join("\n", stored('changes', $odd, 'public.parted', 'public.plain'), $renamed),
	'feed_check() says what is left to do');
is(sql($node, q(SELECT feed_repair('changes'), feed_repair('"Odd ""Feed"""')), db => 'copy', user => 'regress_feedpub_owner'), '3|1', 'feed_repair() does it');
is(sql($node, $faults, db => 'copy'), '', 'and nothing is left');
sql($node, 'ALTER TABLE plain RENAME v TO v2; ALTER TABLE plain RENAME id TO id2; INSERT INTO plain VALUES (5, \'v\', \'w\'); CALL feed_publish()', db => 'copy');
is(sql($node, q(SELECT (entry).key, (entry).row FROM feed_read(NULL::changes, '', 1000) ORDER BY cursor COLLATE "C" DESC LIMIT 1), db => 'copy'),
	'{"id2":5}|{"id2":5,"v2":"v","W w":"w"}', 'columns have the numbers that they have here');

# A feed that is dropped takes its triggers with it, a table its row.
sql($node, 'DROP TABLE changes', db => 'copy', user => 'regress_feedpub_owner');
is(sql($node, "$triggers", db => 'copy'), join("\n", grep { /truncate/ || /Odd ""Feed/ || /RI_feedpub_Odd/ } split /\n/, $triggered), 'DROP TABLE of a feed drops its triggers');
is(sql($node, $captures, db => 'copy'), '"Odd ""Feed"""|plain|{id2}|{"W w"}|t|ready', 'the other feed keeps its own');
sql($node, "INSERT INTO plain VALUES (6, 'v', 'w'); INSERT INTO parted VALUES (3); TRUNCATE parted; CALL feed_publish()", db => 'copy', user => 'regress_feedpub_owner');
is(sql($node, q(SELECT (entry).key FROM feed_read(NULL::"Odd ""Feed""", '', 1000) ORDER BY cursor COLLATE "C" DESC LIMIT 1), db => 'copy'), '{"id2":6}', 'which goes on');
sql($node, 'DROP TABLE plain', db => 'copy', user => 'regress_feedpub_owner');
is(sql($node, $captures, db => 'copy'), '', 'DROP TABLE of a captured table ends its capture');
is(sql($node, $faults =~ s/ UNION.*//sr =~ s/'changes'/'"Odd ""Feed"""'/r, db => 'copy'), '', 'without a fault');

#
# A feed that is dropped before that leaves triggers, which do nothing.
#
restore('unrepaired');
sql($node, 'DROP TABLE changes', db => 'unrepaired');
is(sql($node, $triggers, db => 'unrepaired'), $triggered, 'without feed_repair() triggers stay');
sql($node, $work, db => 'unrepaired', user => 'regress_feedpub_owner');
sql($node, q(SELECT feed_create_changes('changes'); SELECT feed_capture('plain', 'changes'), feed_capture('parted', 'changes')), db => 'unrepaired', user => 'regress_feedpub_owner');
sql($node, "INSERT INTO plain VALUES (7, 'v', 'w'); INSERT INTO parted VALUES (7, 'v'), (17, 'v'); TRUNCATE parted_0", db => 'unrepaired', user => 'regress_feedpub_owner');
is(sql($node, 'SELECT op, relation, key FROM changes ORDER BY feed_pos', db => 'unrepaired'), <<'TEXT' =~ s/\n\z//r, 'another feed of that name captures each change once');
insert|public.plain|{"id":7}
insert|public.parted|{"id":7}
insert|public.parted|{"id":17}
delete|public.parted|{"id":7}
TEXT

#
# Restored by the owner of the database, who may not write our tables
#
sub restore_as_owner
{
	my ($db) = @_;
	my $stderr = '';

	sql($node, "CREATE DATABASE $db OWNER regress_feedpub_owner");
	sql($node, 'CREATE EXTENSION feedpub; SELECT feed_stop_worker()', db => $db);
	IPC::Run::run([ 'pg_restore', '--no-owner', '-U', 'regress_feedpub_owner', '-d', $node->connstr($db), $dump ], '2>', \$stderr);
	like($stderr, qr/permission denied for table _capture\b/, "$db: the owner cannot restore captures");
	is(sql($node, $triggers, db => $db), $triggered, "$db: but their triggers");
	is(sql($node, $captures, db => $db), '', "$db: which belong to none");
	return;
}

restore_as_owner('mended');
$node->command_ok([ 'pg_restore', '--data-only', '--schema=feedpub', '-d', $node->connstr('mended'), $dump ], 'a superuser brings them');
is(works($node, 'mended'), $expected, 'and all goes on');
is(sql($node, q(SELECT feed_repair('changes'), feed_repair('"Odd ""Feed"""')), db => 'mended', user => 'regress_feedpub_owner'), '3|1', 'feed_repair() is the owner\'s');

restore_as_owner('anew');
sql($node, "INSERT INTO plain VALUES (8, 'v', 'w')", db => 'anew', user => 'regress_feedpub_owner');
sql($node, <<'SQL', db => 'anew', user => 'regress_feedpub_owner');
SELECT feed_repair('changes'), feed_repair('"Odd ""Feed"""');
SELECT feed_capture('plain', 'changes');
SELECT feed_capture('plain', '"Odd ""Feed"""', columns => '{"W w"}');
SELECT feed_capture('"Odd ""Name"", x"', 'changes', columns => '{u,v}', key => '"Odd ""Name"", x_a ""b""_key"', old => false);
SELECT feed_capture('parted', 'changes');
DELETE FROM plain WHERE id = 8;
CALL feed_publish();
SQL
is(sql($node, $captures, db => 'anew'), $captured, 'without one, the owner captures the tables again');
is(sql($node, $triggers, db => 'anew'), $triggered, 'and has the same triggers');
refused($node, "SELECT feed_read(NULL::changes, '$head{changes}')", 'PF001', 'history', 'older cursors are refused', db => 'anew');
my %old = %head;
$head{changes} = sql($node, q(SELECT feed_head('changes')), db => 'anew');
$head{odd} = sql($node, q(SELECT feed_head('"Odd ""Feed"""')), db => 'anew');
is(works($node, 'anew'), $expected, 'which capture the same');
is(sql($node, $faults, db => 'anew'), '', 'and nothing is left to do');
%head = %old;

#
# A standby reads all of it, with moments, also of a backlog that is cut; and when
# it is promoted captures go on.
#
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
sql($node, "INSERT INTO plain VALUES ($_, 'a', 'a')", db => 'src') for 100 .. 104;
sql($node, 'SET feedpub.max_batch_transactions = 2; CALL feed_publish()', db => 'src');
$node->wait_for_replay_catchup($standby);
my $primarys = sql($node, $all, db => 'src');
is(sql($standby, $all, db => 'src'), $primarys, 'a standby reads the same');
is(entries($standby, 'src'), entries($node, 'src'), 'from a cursor, too');
is(sql($standby, $captures, db => 'src'), $captured, 'and shows the captures');
is(sql($standby, $faults, db => 'src'), '', 'and that nothing is wrong');
$node->stop;
$standby->promote;
my $head = sql($standby, q(SELECT feed_head('changes')), db => 'src');
sql($standby, <<'SQL', db => 'src');
INSERT INTO plain VALUES (30, 'a', 'a');
UPDATE plain SET v = 'b' WHERE id = 30;
INSERT INTO parted VALUES (5, 'a');
TRUNCATE parted_0;
CALL feed_publish();
SQL
is(sql($standby, "SELECT op, (entry).relation, (entry).key, moment FROM feed_read(NULL::changes, '$head')", db => 'src'), <<'TEXT' =~ s/\n\z//r, 'promoted, it captures');
insert|public.plain|{"id":30}|f
update|public.plain|{"id":30}|f
insert|public.parted|{"id":5}|f
delete|public.parted|{"id":5}|t
TEXT
$standby->stop;
done_testing();
