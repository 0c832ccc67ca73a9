# Many short transactions at the same time, and the worker at work between
# them: whenever they are over, all rows get published, though nothing more is
# written and no session reads.  A mark that the worker takes away without having
# seen the commit that set it would leave a row unpublished for ever.

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

my $rounds = $ENV{FEEDPUB_ROUNDS} // 40;
my $writers = 4;
my $node = feedpub_node('server', conf => <<'CONF');
log_statement = none
max_prepared_transactions = 20
CONF

sql($node, q(SELECT feed_create('one'), feed_create('two'), feed_create('three')));
sql($node, 'SELECT feed_start_worker()');
my $worker = await_worker($node);

# A round's transactions: now and then a pause, so that the worker has nothing
# to do for a moment; a rollback; a transaction that is long for this.
my $dir = PostgreSQL::Test::Utils::tempdir();
my %script = (
	short => <<'SQL',
\set feed random(1, 3)
\set us random(0, 3000)
\if :feed = 1
INSERT INTO one (message_type, data) VALUES ('A', '1');
\elif :feed = 2
INSERT INTO two (message_type, data) VALUES ('A', '1');
\else
BEGIN;
INSERT INTO one (message_type, data) VALUES ('A', '1');
INSERT INTO three (message_type, data) VALUES ('A', '1');
COMMIT;
\endif
\if :us > 1500
\sleep :us us
\endif
SQL
	mixed => <<'SQL');
\set dice random(1, 10)
\set us random(0, 4000)
BEGIN;
INSERT INTO one (message_type, data) VALUES ('A', '1');
\if :dice < 3
ROLLBACK;
\elif :dice < 5
PREPARE TRANSACTION 'c:client_id';
COMMIT PREPARED 'c:client_id';
\else
SAVEPOINT a;
INSERT INTO two (message_type, data) VALUES ('A', '1');
\sleep :us us
RELEASE a;
INSERT INTO three (message_type, data) VALUES ('A', '1');
COMMIT;
\endif
SQL
append_to_file("$dir/$_.sql", $script{$_}) for keys %script;

for my $interval (qw(10ms 0))
{
	my $late;

	$node->append_conf('postgresql.conf',
		"feedpub.publish_interval = $interval");
	$node->reload;
	for my $round (1 .. $rounds / 2)
	{
		my ($out, $err) = ('', '');
		local $ENV{PGHOST} = $node->host;
		local $ENV{PGPORT} = $node->port;

		IPC::Run::run(
			[
				'pgbench', '-n', '-c', $writers, '-j', 2, '-t', 25, '-f',
				"$dir/" . ($round % 2 ? 'short' : 'mixed') . '.sql', 'postgres'
			],
			'<', \undef, '>', \$out, '2>', \$err)
		  or die "pgbench: $err";
		$late = !await_all_published($node, qw(one two three));
		last if $late;
	}
	ok(!$late, "publish_interval $interval: nothing stays unpublished");
}
is(await_worker($node), $worker, 'one worker has done it all');
my $rows = sql($node,
	'SELECT (SELECT count(*) FROM one) + (SELECT count(*) FROM two) + (SELECT count(*) FROM three)'
);
is( sql($node, <<'SQL'),
SET feedpub.read_wait = 0;
SELECT (SELECT count(*) FROM feed_read(NULL::one, '', 10000) WHERE op <> 'end')
	+ (SELECT count(*) FROM feed_read(NULL::two, '', 10000) WHERE op <> 'end')
	+ (SELECT count(*) FROM feed_read(NULL::three, '', 10000) WHERE op <> 'end')
SQL
	$rows,
	'all rows can be read');
cmp_ok($rows, '>', $rounds * $writers * 25 / 2, 'there are rows enough');

$node->stop;
done_testing();
