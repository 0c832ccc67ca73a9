# pg_upgrade keeps the feeds and goes on with the same transaction ids, so a
# consumer goes on from its cursor.
#
# The old server is of the same version as the new one, or the one of
# FEEDPUB_OLD_PG_CONFIG, into which feedpub must have been installed.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use File::Basename;
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
$new->command_ok(
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
	'pg_upgrade');
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

$new->stop;
done_testing();
