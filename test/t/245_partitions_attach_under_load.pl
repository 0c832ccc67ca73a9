# A partitioned table becomes a feed while others write into it: none of them
# fails, and none of the larger partitions is read under a lock.  Each gets its
# index by a statement of its own, which feed_attach() returns one after the
# other; partitions that come meanwhile need none.  A crash in the middle is
# gone on from.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('attaching', conf => 'synchronous_commit = off');
my $dir = PostgreSQL::Test::Utils::tempdir();

sql($node, <<'SQL');
CREATE TABLE kv (part int, k int, v int NOT NULL, filler text, PRIMARY KEY (part, k)) PARTITION BY LIST (part);
CREATE TABLE kv_1 PARTITION OF kv FOR VALUES IN (1);
CREATE TABLE kv_2 PARTITION OF kv FOR VALUES IN (2) PARTITION BY HASH (k);
CREATE TABLE kv_2_0 PARTITION OF kv_2 FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE kv_2_1 PARTITION OF kv_2 FOR VALUES WITH (MODULUS 2, REMAINDER 1);
CREATE TABLE kv_3 PARTITION OF kv FOR VALUES IN (3);
INSERT INTO kv SELECT 1 + i % 2, i, 0, repeat('x', 300) FROM generate_series(1, 100000) i;
INSERT INTO kv SELECT 3, i, 0, '' FROM generate_series(1, 100) i;
SQL
my $filenodes = q(SELECT string_agg(pg_relation_filenode(oid)::text, ' ' ORDER BY relname) FROM pg_class WHERE relname LIKE 'kv\_%' AND relkind = 'r');
my $before = sql($node, $filenodes);

append_to_file("$dir/load.sql", <<'SQL');
\set k random(1, 100000)
\set d random(1, 100)
UPDATE kv SET v = v + 1 WHERE part = 1 + :k % 2 AND k = :k;
\if :d < 10
DELETE FROM kv WHERE part = 1 + :k % 2 AND k = :k;
\endif
\if :d > 90
INSERT INTO kv VALUES (1 + :k % 2, :k, -1) ON CONFLICT (part, k) DO UPDATE SET v = kv.v + 1;
\endif
\if :d = 50
UPDATE kv SET part = 3, k = k + 1000000 WHERE part = 1 + :k % 2 AND k = :k;
\endif
SQL

# Writers that go on until they are told to end, or the server crashes.
sub start_load
{
	my $load = { out => '', err => '' };

	$load->{handle} = IPC::Run::start(
		[
			'pgbench', '-n', '-c', '4', '-T', '180', '-f', "$dir/load.sql",
			'-h', $node->host, '-p', $node->port, '-U', 'postgres', 'postgres'
		],
		'<', \undef, '>', \$load->{out}, '2>', \$load->{err});
	my $sum = sql($node, 'SELECT sum(v) FROM kv');
	$node->poll_query_until('postgres', "SELECT sum(v) > $sum + 100 FROM kv")
	  or die 'nobody writes';
	return $load;
}

# What pgbench says of errors goes to stderr; it is terminated at the end.
sub end_load
{
	my ($load) = @_;

	$load->{handle}->signal('TERM');
	eval { $load->{handle}->finish };
	return $load->{err} =~ /(.*(?:ERROR|aborted).*)/ ? $1 : '';
}

my $load = start_load();
my $statement = sql($node, q(SELECT feed_attach('kv')));
like($statement, qr/^CREATE INDEX CONCURRENTLY kv_1_feed_idx /,
	'the index of the first partition is to be made');
is(end_load($load), '', 'no writer has failed');

# The crash, between two of them
sql($node, $statement);
$node->stop('immediate');
$node->start;
$load = start_load();
my @statements;
while ($statement = sql($node, q(SELECT feed_attach('kv'))))
{
	push @statements, $statement;
	die 'there is no end of it' if @statements > 5;
	sql($node, $statement);
	sql($node, 'CREATE TABLE kv_4 PARTITION OF kv FOR VALUES IN (4)') if @statements == 1;
}

# the crash may have taken back the end of the first one, which is repeated
like(join(' ', map { /(\w+_feed_idx)/ ? $1 : $_ } @statements),
	qr/^(kv_1_feed_idx )?kv_2_0_feed_idx kv_2_1_feed_idx$/,
	'then those of the others, once each');
sql($node, q(INSERT INTO kv VALUES (4, 1, 1)));
is( sql($node, q(SELECT count(*) FROM pg_index WHERE indrelid IN ('kv'::regclass, 'kv_3'::regclass) AND NOT indisprimary AND indisvalid)),
	2, 'that of a small one comes with the one of the table');
is(sql($node, $filenodes) =~ s/ \d+$//r, $before, 'nothing was rewritten');
is(sql($node, q(SELECT state FROM feedpub.feeds)), 'ready', 'the feed is ready');
is(sql($node, q(SELECT problem FROM feed_check('kv'))),
	'', 'the new partition has all it needs');

# A copy that is made while they write
my %copy;
my $cursor = '';
my $follow = sub {
	my ($pages) = @_;

	while ($pages-- > 0)
	{
		my @rows = split /\n/, sql($node, <<"SQL");
SET feedpub.read_wait = 0;
SELECT cursor, op, (entry).part, (entry).k, (entry).v FROM feed_read(NULL::kv, '$cursor', 5000);
SQL
		last if !@rows;
		for (@rows)
		{
			my ($after, $op, $part, $k, $v) = split /\|/;

			$cursor = $after;
			$copy{"$part $k"} = $v if $op eq 'upsert';
			delete $copy{"$part $k"} if $op eq 'delete';
		}
	}
};
$follow->(15);
is(end_load($load), '', 'no writer has failed');
sql($node, q(CALL feed_publish('kv')));
1 while sql($node, q(SELECT feedpub._run_job('kv', 1000))) ne '';
sql($node, q(CALL feed_publish('kv')));
$follow->(1000);
my %table = map { /^(\d+ \d+) (-?\d+)$/ ? ($1 => $2) : die } split /\n/,
  sql($node, q(SELECT part || ' ' || k || ' ' || v FROM kv));
is(scalar(grep { ($copy{$_} // '') ne $table{$_} } keys %table), 0, 'it has all rows');
is(scalar keys %copy, scalar keys %table, 'and no others');

done_testing();
