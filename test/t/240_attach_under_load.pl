# A table that is not small becomes a feed while others write into it: none of
# them fails.  Its index is built beside them, by the statement that
# feed_attach() returns; a crash in the middle leaves an invalid one, which the
# next feed_attach() replaces.  A crash at any other moment leaves a feed or an
# ordinary table.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubPublished;
use FeedpubTest;
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('attaching', conf => 'synchronous_commit = off');
my $dir = PostgreSQL::Test::Utils::tempdir();

sql($node, <<'SQL');
CREATE TABLE kv (k int PRIMARY KEY, v int NOT NULL, filler text);
INSERT INTO kv SELECT i, 0, repeat('x', 300) FROM generate_series(1, 40000) i;
SQL
cmp_ok(sql($node, q(SELECT pg_relation_size('kv') / 8192)),
	'>', 1024, 'the table is not small');
my $filenode = sql($node, q(SELECT pg_relation_filenode('kv')));

append_to_file("$dir/load.sql", <<'SQL');
\set k random(1, 40000)
\set d random(1, 100)
UPDATE kv SET v = v + 1 WHERE k = :k;
\if :d < 10
DELETE FROM kv WHERE k = :k;
\endif
\if :d > 90
INSERT INTO kv VALUES (:k, -1) ON CONFLICT (k) DO UPDATE SET v = kv.v + 1;
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
	my $before = sql($node, 'SELECT sum(v) FROM kv');
	$node->poll_query_until('postgres', "SELECT sum(v) > $before + 100 FROM kv")
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

# A crash before feed_attach() has committed leaves the table as it was, and one
# right after it a feed, although commits are not waited for here.
my $open = $node->background_psql('postgres');
$open->query_safe(
	q(SET client_min_messages = warning; BEGIN; SELECT feed_attach('kv')));
$node->stop('immediate');
eval { $open->quit };
$node->start;
is( sql($node, <<'SQL'),
SELECT count(*), (SELECT count(*) FROM pg_trigger WHERE tgrelid = 'kv'::regclass),
	(SELECT count(*) FROM feedpub._feed)
FROM pg_attribute WHERE attrelid = 'kv'::regclass AND attname LIKE 'feed%'
SQL
	'0|0|0', 'a crash in the middle of feed_attach() leaves nothing of it');
sql($node, q(SELECT feed_attach('kv')));
$node->stop('immediate');
$node->start;
is(sql($node, q(SELECT state FROM feedpub.feeds)),
	'no index', 'what feed_attach() has done survives a crash');
is(sql($node, q(SELECT * FROM feed_check('kv') WHERE guard <> 'index')),
	'', 'all of it');
sql($node, q(SELECT feed_detach('kv')));
is(sql($node, q(SELECT pg_relation_filenode('kv'))), $filenode, 'nothing was rewritten');

my $load = start_load();
my $statement = sql($node, q(SELECT feed_attach('kv')));
like($statement, qr/^CREATE INDEX CONCURRENTLY /, 'the index is still to be made');
is(sql($node, q(SELECT state FROM feedpub.feeds)), 'no index', 'and the state says so');
is(sql($node, q(SELECT feed_attach('kv'))), $statement, 'called again, the same');
is(sql($node, q(SELECT pg_relation_filenode('kv'))), $filenode, 'nothing was rewritten');
refused($node, q(SELECT feed_page('kv', '', 10)), '55000', 'index',
	'readers are told to wait');
$node->poll_query_until('postgres', 'SELECT count(feed_xid) > 100 FROM kv')
  or die 'nobody is stamped';

# A transaction with an old snapshot keeps the index from being finished.
my $old = $node->background_psql('postgres');
$old->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM feedpub._feed');
my $build = background($node, "$statement;");
$node->poll_query_until('postgres', <<'SQL')
SELECT count(*) = 1 FROM pg_stat_progress_create_index
WHERE phase LIKE 'waiting for old snapshots' OR phase LIKE 'waiting for writers%'
SQL
  or die 'the index is not being built';
is(end_load($load), '', 'no writer has failed');

# The crash, while others write and the index is being built
$load = start_load();
$node->stop('immediate');
end_load($load);
eval { $build->finish };
eval { $old->quit };
$node->start;
is( sql($node, q(SELECT count(*) FROM pg_index WHERE indrelid = 'kv'::regclass AND NOT indisvalid)),
	1, 'the crash has left an invalid index');
is(sql($node, q(SELECT state FROM feedpub.feeds)), 'invalid index', 'the state says so');
refused($node, q(SELECT feed_page('kv', '', 10)), '55000', 'index',
	'readers are still told to wait');

# Resumed, once more under load
$load = start_load();
$statement = sql($node, q(SELECT feed_attach('kv')));
like($statement, qr/INDEX CONCURRENTLY /, 'feed_attach() goes on');
is(sql($node, $_), '', "it runs: $_") for split /;\s*/, $statement;
is(sql($node, q(SELECT feed_attach('kv'))), '', 'then nothing is left to do');
is(sql($node, q(SELECT state FROM feedpub.feeds)), 'ready', 'it is ready');
is( sql($node, q(SELECT count(*) FROM pg_index WHERE indrelid = 'kv'::regclass AND NOT indisvalid)),
	0, 'no invalid index is left');
is(sql($node, q(SELECT * FROM feed_check('kv'))), '', 'all guards stand');

# A consumer, which begins while they write
my %copy;
my $cursor = '';
sub follow
{
	my ($pages) = @_;

	while ($pages-- > 0)
	{
		my @rows = split /\n/, sql($node, <<"SQL");
SET feedpub.read_wait = 0;
SELECT cursor, op, (entry).k, (entry).v FROM feed_read(NULL::kv, '$cursor', 5000);
SQL
		last if !@rows;
		for (@rows)
		{
			($cursor, my ($op, $k, $v)) = split /\|/, $_, 4;
			$copy{$k} = $v if $op eq 'upsert';
			delete $copy{$k} if $op eq 'delete';
		}
	}
	return;
}
follow(4);
is(end_load($load), '', 'no writer has failed');
sql($node, q(CALL feed_publish('kv')));
follow(1_000_000);
my %table = map { split /\|/ } split /\n/, sql($node, 'SELECT k, v FROM kv');
is_deeply(\%copy, \%table, 'the copy equals the table');

# Detached under load, too
$load = start_load();
sql($node, q(SELECT feed_detach('kv')));
is(end_load($load), '', 'no writer has failed');
is(sql($node, q(SELECT count(*) FROM feedpub._feed)), 0, 'it is no feed any more');
$node->stop;
done_testing();
