# Long work on the rows of feeds is done in short steps, apart from the
# publisher: deletes that expire, and what a dropped feed has left.  An owner
# whose code takes hours, and checks no interrupts, keeps a process; the feeds of
# other owners do not wait for it.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubPublished;
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('server', conf => <<'CONF');
shared_preload_libraries = 'feedpub'
feedpub.naptime = 10ms
feedpub.tombstone_retention = 0
feedpub.removal_rate = 20
max_worker_processes = 16
CONF
my $rows = 5000;

sub set_rate
{
	my ($rate) = @_;

	sql($node, "ALTER SYSTEM SET feedpub.removal_rate = $rate");
	sql($node, 'SELECT pg_reload_conf()');
	return;
}

# Some of the deletes are gone, and others are not: no transaction has removed
# all of them.
sub in_steps
{
	my ($left, $test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is_soon($node, "($left) BETWEEN 1 AND $rows - 1", "$test in steps");
	sql($node, q(INSERT INTO outbox (message_type, data) VALUES ('A', '1')));
	ok(await_published($node, 'outbox'), 'another feed is published meanwhile');
	return;
}

sub feed_with_deletes
{
	my ($name) = @_;

	sql($node, <<"SQL");
CREATE TABLE $name (k int PRIMARY KEY);
SELECT feed_attach('$name');
INSERT INTO $name SELECT generate_series(1, $rows);
CALL feed_publish('$name');
DELETE FROM $name;
CALL feed_publish('$name');
SQL
	return;
}

#
# Deletes expire.
#
sql($node, q(SELECT feed_create('outbox')));
feed_with_deletes('kv');
my $left = q(SELECT count(*) FROM feedpub._tombstone WHERE feed = 'kv'::regclass);
is(sql($node, $left), $rows, 'the newest deletes stay');
sql($node, q(INSERT INTO kv VALUES (0); CALL feed_publish('kv')));
in_steps($left, 'deletes expire');
is(sql($node, q(SELECT kind, relation, state FROM feedpub.jobs WHERE feed = 'kv'::regclass)),
	'expire|kv|running', 'which is seen');

# A crash in the middle
$node->stop('immediate');
$node->start;
cmp_ok(sql($node, $left), '>', 0, 'the server crashes in the middle');
is(sql($node, q(SELECT string_agg((entry).k::text, ',') FROM feed_read(NULL::kv, '', 10000) WHERE op <> 'delete')),
	0, 'what is left of them does no harm');
set_rate(0);
is_soon($node, "($left) = 0", 'the rest expires');
is_soon($node, q((SELECT rows BETWEEN 1 AND 5000 AND state = 'done' FROM feedpub.jobs WHERE feed = 'kv'::regclass)), 'and it is done');

#
# A feed is dropped.
#
set_rate(20);
feed_with_deletes('dropped');
my $oid = sql($node, q(SELECT 'dropped'::regclass::oid));
sql($node, 'DROP TABLE dropped');
$left = "SELECT count(*) FROM feedpub._tombstone WHERE feed::oid = $oid";
in_steps($left, 'a dropped feed is swept');
set_rate(0);
is_soon($node, "($left) = 0 AND NOT EXISTS (SELECT FROM feedpub._feed WHERE feed::oid = $oid)", 'it is forgotten');

#
# The DELETE of an owner, and another's UPDATE, take hours: the libraries that
# are called check no interrupts.
#
SKIP:
{
	skip 'this server has no XML', 1
	  if $node->psql('postgres', q(SELECT xpath('/a', '<a/>'))) != 0;

	sql($node, <<'SQL');
CREATE FUNCTION takes_hours() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM xpath('//a[count(//a[count(//a[count(//a) > 1]) > 1]) > 1]',
		('<r>' || repeat('<a/>', 3000) || '</r>')::xml);
	RETURN COALESCE(NEW, OLD);
END $$;
SQL
	for my $role (qw(slow slower good))
	{
		sql($node, "CREATE ROLE regress_feedpub_$role; GRANT CREATE ON SCHEMA public TO regress_feedpub_$role");
		sql($node, <<"SQL");
SET ROLE regress_feedpub_$role;
SELECT feed_create('$role');
SELECT feed_retain('$role', '0');
CREATE TABLE parted_$role (k int PRIMARY KEY) PARTITION BY RANGE (k);
SELECT feed_attach('parted_$role');
SQL
	}
	sql($node, 'CREATE TRIGGER hours BEFORE DELETE ON slow FOR EACH ROW EXECUTE FUNCTION takes_hours()');
	for my $role (qw(slow slower))
	{
		sql($node, "INSERT INTO $role (message_type, data) VALUES ('A', '1')");
		sql($node, "CREATE TRIGGER hours BEFORE DELETE ON slower FOR EACH ROW EXECUTE FUNCTION takes_hours()")
		  if $role eq 'slow';
		is_soon($node, "EXISTS (SELECT FROM feedpub._job WHERE feed = '$role'::regclass AND running)",
			"the code of $role is run");
	}
	my $busy = q(SELECT count(*) = 2 FROM pg_stat_activity WHERE backend_type = 'feedpub job' AND now() - backend_start > '8 s');
	is_soon($node, "($busy)", 'it takes longer than a step may');

	sql($node, q(INSERT INTO good (message_type, data) VALUES ('A', '1')));
	is_soon($node, q((SELECT count(*) FROM good) = 0), q(another owner's rows are removed));
	sql($node, <<'SQL');
SET ROLE regress_feedpub_good;
CREATE TABLE parted_good_1 (LIKE parted_good INCLUDING ALL);
INSERT INTO parted_good_1 VALUES (1);
ALTER TABLE parted_good ATTACH PARTITION parted_good_1 FOR VALUES FROM (0) TO (10);
SQL
	sql($node, q(CALL feed_publish('parted_good')));

	# it is not done before older transactions have ended, but its rows are there
	is_soon($node, q((SELECT count(*) FROM feed_read(NULL::parted_good, '', 10)) = 1), 'and stamped');
	sql($node, q(DELETE FROM kv; CALL feed_publish('kv'); INSERT INTO kv VALUES (1); CALL feed_publish('kv')));
	is_soon($node, q((SELECT count(*) FROM feedpub._tombstone WHERE feed = 'kv'::regclass) = 0),
		'and deletes expire');
	is_soon($node, "($busy)", 'the slow ones are not ready');
	is( sql($node, q(SELECT count(*) FROM feedpub._job WHERE running AND feed IN ('slow'::regclass, 'slower'::regclass))),
		2, 'each has one process');
}

$node->stop('immediate');

#
# The server has slots for the launcher and the worker, and for no process.  It is
# said once.
#
$node->append_conf('postgresql.conf', <<'CONF');
max_worker_processes = 2
max_logical_replication_workers = 0
CONF
my $offset = -s $node->logfile;
$node->start;
sql($node, 'DROP TABLE IF EXISTS slow, slower');
await_worker($node);
sql($node, q(INSERT INTO kv VALUES (2); DELETE FROM kv; CALL feed_publish('kv'); INSERT INTO kv VALUES (1); CALL feed_publish('kv')));
$left = q(SELECT count(*) FROM feedpub._tombstone WHERE feed = 'kv'::regclass);
ok(!comes_true($node, "($left) = 0", 100), 'without a slot for a process deletes stay');
my @warnings = slurp_file($node->logfile, $offset) =~
  /WARNING:  could not start a process for jobs of feeds\n.*(DETAIL:  .*)\n.*(HINT:  .*)/g;
is(join("\n", @warnings),
	qq(DETAIL:  The server has no free slot for a background worker.\nHINT:  You might need to increase "max_worker_processes".),
	'which is said once');
$node->append_conf('postgresql.conf', 'max_worker_processes = 16');
$node->restart;
is_soon($node, "($left) = 0", 'with one they expire');
$node->stop;
done_testing();
