# pg_upgrade keeps the feeds and goes on with the same transaction ids, so a
# consumer goes on from its cursor, in both orders, and in the middle of the
# initial snapshot of a table; so do subscriptions, what is parked, floors, and
# captures of change feeds.
#
# The old server is of the same version as the new one, or the one of
# FEEDPUB_OLD_PG_CONFIG, into which feedpub must have been installed.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use File::Basename;
use IPC::Run ();
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $old_pg_config = $ENV{FEEDPUB_OLD_PG_CONFIG} || 'pg_config';
my ($new_bindir) = run_command([ 'pg_config', '--bindir' ]);
my ($old_bindir) = run_command([ $old_pg_config, '--bindir' ]);

plan skip_all => 'pg_upgrade is not there' if !-x "$new_bindir/pg_upgrade";

my $old = feedpub_node(
	'old',
	start => 0,
	$ENV{FEEDPUB_OLD_PG_CONFIG}
	? (install_path => dirname($old_bindir))
	: ());

# Transaction ids of more than 32 bits, as an old cluster has.
$old->command_ok([ "$old_bindir/pg_resetwal", '-e', '3', $old->data_dir ],
	'the old cluster has used up its 32-bit transaction ids three times');
$old->start;

my $odd = '"S, ""p"""."Odd ""Name"", x"';
sql($old, <<"SQL");
CREATE SCHEMA "S, ""p""";
CREATE SCHEMA ext;
CREATE EXTENSION feedpub SCHEMA ext;
SELECT ext.feed_create('outbox'), ext.feed_create('$odd', 'text');
INSERT INTO outbox (message_type, data)
	SELECT 'A', to_jsonb(i) FROM generate_series(1, 50) i;
INSERT INTO outbox (message_type, data)
	SELECT 'A', to_jsonb(i) FROM generate_series(51, 100) i;
INSERT INTO $odd (message_type, data) SELECT 'B', i FROM generate_series(1, 5) i;
SQL
sql($old, <<'SQL');
CREATE TABLE kv (k int PRIMARY KEY) PARTITION BY RANGE (k);
SELECT ext.feed_attach('kv');
CREATE TABLE kv_0 PARTITION OF kv FOR VALUES FROM (0) TO (10);
CALL ext.feed_publish('kv');
INSERT INTO kv VALUES (1);
SQL
my $partitions = 'SELECT partition, since FROM feedpub._partition';
my $brought = sql($old, $partitions);
like($brought, qr/^kv_0\|\d+$/, 'a partition came to a feed');
my %rows = map { $_ => fetch_all($old, $_, in => 'ext.') } ('outbox', $odd);
my @outbox = split /\n/, $rows{outbox};
is(scalar @outbox, 100, 'rows to be upgraded');
is( sql($old, 'SELECT min(feed_xid) > (3::bigint << 32)::text::xid8 FROM outbox'),
	't',
	'stamped with 64-bit transaction ids');

# One consumer has read 70 rows, another all.
my ($cursor) = $outbox[69] =~ /^(\d+\|\d+)/;
my ($end) = $outbox[99] =~ /^(\d+\|\d+)/;
my $head = sql($old, q(SELECT * FROM ext.feed_xid_head('outbox')));

# Consumers that keep a copy of a table, at some page each: some are still in
# the initial snapshot, others have all.
sub read_copy
{
	my ($node, $consumer, $pages) = @_;

	while ($pages--)
	{
		my $page = decode_json(sql($node, "SELECT ext.feed_page('item', '$consumer->{cursor}', 7)"));

		for (@{ $page->{entries} })
		{
			$_->{op} eq 'delete'
			  ? delete $consumer->{copy}{ $_->{key}{id} }
			  : ($consumer->{copy}{ $_->{row}{id} } = $_->{row}{v});
		}
		$consumer->{cursor} = $page->{cursor};
		return if !@{ $page->{entries} } && !$page->{more};
	}
	return;
}

my $copied = q(SELECT json_object_agg(id, v) FROM item);

sql($old, <<'SQL');
CREATE TABLE item (id int PRIMARY KEY, v text);
INSERT INTO item SELECT i, 'first' FROM generate_series(1, 30) i;
SELECT ext.feed_attach('item');
SQL
my @copies = map { { pages => $_, cursor => '', copy => {} } } 1, 3, 5, 7, 100;
read_copy($old, $_, $_->{pages}) for @copies[ 0, 1 ];
for my $i (1 .. 3)
{
	sql($old, "UPDATE item SET v = 'version $i' WHERE id % 4 = $i");
	sql($old, "DELETE FROM item WHERE id = 10 * $i");
	sql($old, q(CALL ext.feed_publish('item')));
}
read_copy($old, $_, $_->{pages}) for @copies[ 2 .. 4 ];
my $read = join ' ', map { scalar keys %{ $_->{copy} } } @copies;

# A subscription has acknowledged 40 entries and parked one; a group of four
# shards has acknowledged a page of two of them, and holds leases; an outbox
# has lost what is before its floor.
sql($old, <<'SQL');
SELECT ext.feed_subscribe('mail', 'outbox', 'earliest', max_attempts => 3);
SELECT ext.feed_ack('mail', max(receipt COLLATE "C")) FROM ext.feed_poll('mail', 40);
SELECT ext.feed_nack('mail', min(receipt COLLATE "C"), 'no', delay => '0') FROM ext.feed_poll('mail', 1);
SELECT ext.feed_create('work');
INSERT INTO work (message_type, message_key, data) SELECT 'A', i % 10, to_jsonb(i) FROM generate_series(1, 60) i;
CALL ext.feed_publish('work');
SELECT ext.feed_subscribe('group', 'work', 'earliest', 4, '1 s');
CREATE TABLE effect (i int);
SQL

# One page of a consumer of the group, its effects, and its acknowledgement.
sub group_page
{
	my ($node, $consumer) = @_;

	sql($node, <<"SQL");
BEGIN;
CREATE TEMP TABLE page ON COMMIT DROP AS
	SELECT receipt, (p."row" ->> 'data')::int AS i FROM ext.feed_poll('group', 5, '$consumer') p;
INSERT INTO effect SELECT i FROM page;
SELECT ext.feed_ack('group', max(receipt COLLATE "C")) FROM page HAVING count(*) > 0;
COMMIT;
SQL
	return;
}
group_page($old, 'one') for 1, 2;
sql($old, <<'SQL');
SELECT ext.feed_create('old');
INSERT INTO old (message_type, data) SELECT 'A', to_jsonb(i) FROM generate_series(1, 10) i;
CALL ext.feed_publish('old');
SQL
my ($purged) = sql($old, q(SELECT min(cursor COLLATE "C") FROM ext.feed_read(NULL::old)));
my $floor = sql($old, q(SELECT ext.feed_head('old')));
sql($old, q(INSERT INTO old (message_type, data) VALUES ('A', '11')));
sql($old, q(CALL ext.feed_publish('old')));
sql($old, "CALL ext.feed_purge('old', '$floor')");
sql($old, q(SELECT ext.feed_retain('old', '30 days', '60 days')));

# A captured table with a column that is gone, and with a partition.
sql($old, <<'SQL');
SELECT ext.feed_create_changes('changes');
CREATE TABLE line (gone int, id int PRIMARY KEY, v text, w text) PARTITION BY RANGE (id);
CREATE TABLE line_0 PARTITION OF line FOR VALUES FROM (0) TO (10);
CREATE TABLE line_1 PARTITION OF line FOR VALUES FROM (10) TO (20);
ALTER TABLE line DROP gone;
SELECT ext.feed_capture('line', 'changes', columns => '{w}');
INSERT INTO line VALUES (1, 'a', 'a');
CALL ext.feed_publish('changes');
SQL
my ($changed) = sql($old, q(SELECT ext.feed_head('changes')));
sql($old, "UPDATE line SET w = 'b'");
my %same = map { $_ => sql($old, $_) } (
	'SELECT feed, kind, keep, max_age FROM feedpub.feeds ORDER BY 1',
	'SELECT feed, relation, key, columns, old, state FROM feedpub.captures',
	'SELECT name, feed, max_attempts, parked FROM feedpub.subscriptions ORDER BY 1',
	'SELECT subscription, shard, cursor, last_ack, parked FROM feedpub.shards ORDER BY 1, 2',
	q(SELECT subscription, attempts, key, cursor FROM feedpub.parked),
	q(SELECT substr(ext.feed_floor('old'), 1, 25)));
$old->stop;

my @init;
if ($ENV{FEEDPUB_OLD_PG_CONFIG})
{
	# the newer server's initdb would switch data checksums on
	my ($help) = run_command([ 'initdb', '--help' ]);
	@init = ('--no-data-checksums') if $help =~ /--no-data-checksums/;
}
my $new = PostgreSQL::Test::Cluster->new('new');
$new->init(extra => [ '--no-locale', '--encoding=UTF8', @init ]);
chdir PostgreSQL::Test::Utils::tempdir();
my $upgraded = IPC::Run::run(
	[
		'pg_upgrade',
		'-d', $old->data_dir,
		'-D', $new->data_dir,
		'-b', $old_bindir,
		'-B', $new_bindir,
		'-s', $new->host,
		'-p', $old->port,
		'-P', $new->port
	],
	'>', \my $output, '2>&1');
# it names the log that tells why
$output = join "\n", $output, grep { /^pg_\w+: |^Command was/ } split /\n/, slurp_file($1)
  if !$upgraded && $output =~ /"(.*\.log)"/;
ok($upgraded, 'pg_upgrade') or BAIL_OUT($output);
$new->start;

sql($new, q(CALL ext.feed_publish('kv')));
is(sql($new, $partitions), $brought, 'a partition is no new one');

for my $feed ('outbox', $odd)
{
	is(fetch_all($new, $feed, in => 'ext.'), $rows{$feed},
		"the same rows: $feed");
	is(sql($new, "SELECT * FROM ext.feed_check('$feed')"),
		'', "all guards stand: $feed");
}
is( fetch_all($new, 'outbox', in => 'ext.', after => $cursor),
	join("\n", @outbox[ 70 .. 99 ]),
	'a consumer goes on from its cursor');
is(fetch_all($new, 'outbox', in => 'ext.', after => $end),
	'', 'one who had all is given none');

sql($new, q(INSERT INTO outbox (message_type, data) VALUES ('new', '1')));
for ([ 'the last row', $end ], [ 'the head', $head ])
{
	my ($name, $after) = @$_;

	is( fetch_all(
			$new, 'outbox',
			in => 'ext.',
			after => $after,
			columns => 'message_type'),
		'new',
		"until there is a new one, after $name");
}
refused($new, q(UPDATE outbox SET message_type = 'C'),
	'PF004', 'cannot update', 'a message cannot be changed');
is( sql($new,
		q(INSERT INTO outbox (feed_xid, feed_pos, message_type, data) VALUES ('1', 1, 'A', '1') RETURNING feed_xid > '1' AND feed_pos > 1)),
	't',
	'a stamp cannot be forged');

is(sql($new, $_), $same{$_}, "the same: $_") for sort keys %same;

for (@copies)
{
	my $before = keys %{ $_->{copy} };

	read_copy($new, $_, 1000);
	is_deeply($_->{copy}, decode_json(sql($new, $copied)),
		"a copy of $before rows goes on and equals the table");
}
sql($new, q(INSERT INTO item VALUES (100, 'new'); DELETE FROM item WHERE id = 5; CALL ext.feed_publish('item')));
sql($new, q(CALL ext.feed_publish('item')));
read_copy($new, $_, 1000) for @copies;
is_deeply($_->{copy}, decode_json(sql($new, $copied)), 'and follows') for @copies;

my $next = q(SELECT p.attempt, p."row" ->> 'data' FROM ext.feed_poll('mail', 1) p);
is(sql($new, $next), '1|42', 'a subscription goes on after its last acknowledged entry');
sql($new, q(SELECT ext.feed_ack('mail', max(receipt)) FROM ext.feed_poll('mail', 1)));
is(sql($new, $next), '2|41', 'and what is parked comes again');

# the leases of the one that is gone end after a second
my $deadline = time + $PostgreSQL::Test::Utils::timeout_default;
group_page($new, 'two') while sql($new, 'SELECT count(*) FROM effect') < 60 && time < $deadline;
is(sql($new, 'SELECT count(*), count(DISTINCT i) FROM effect'), '60|60', 'the group gets each entry once');

refused($new, "SELECT ext.feed_page('old', '$purged')", 'PF002', 'expired', 'what was before the floor has expired');
is(sql($new, "SELECT json_array_length(ext.feed_page('old', '$floor') -> 'entries')"), 1, 'what is after it is there');

sql($new, 'UPDATE line SET id = 11; TRUNCATE line_1');
sql($new, q(CALL ext.feed_publish('changes')));
is(sql($new, "SELECT op, (entry).key, (entry).old_key, (entry).row FROM ext.feed_read(NULL::changes, '$changed')"),
	join("\n", 'update|{"id":1}||{"w":"b"}', 'update|{"id":11}|{"id":1}|{"w":"b"}', 'delete|{"id":11}||'), 'what is captured goes on');
is(sql($new, q(SELECT guard FROM ext.feed_check('changes'))), 'capture', 'a capture does not go with its feed any more');
is(sql($new, q(SELECT ext.feed_repair('changes'))), 1, 'feed_repair() mends that');
is(sql($new, q(SELECT guard FROM ext.feed_check('changes'))), '', 'and nothing is wrong');
sql($new, 'DROP TABLE changes');
is(sql($new, q(SELECT count(*) FROM pg_trigger WHERE tgfoid = 'feedpub._capture_row'::regproc)), '0', 'then it goes');

$new->stop;
done_testing();
