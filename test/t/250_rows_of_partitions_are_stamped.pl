# The rows that a partition comes with are stamped anew by a process in the
# background: in steps of a bounded number of rows, so that it goes on after the
# worker, or the server, was stopped in the middle.  Locked rows are come back
# to.  Code of the table's owner that fails, takes its time, or wants to be
# superuser is in no other's way: publishing goes on, and other owners' rows are
# stamped meanwhile.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('stamping', conf => <<'CONF');
shared_preload_libraries = 'feedpub'
feedpub.naptime = 50ms
max_worker_processes = 16
CONF

sub set_rate
{
	my ($rate) = @_;

	sql($node, "ALTER SYSTEM SET feedpub.stamping_rate = $rate");
	sql($node, 'SELECT pg_reload_conf()');
	return;
}

sub stop_worker
{
	sql($node, 'SELECT feed_stop_worker()');
	$node->poll_query_until('postgres',
		q(SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'feedpub worker'))
	  or die 'the worker does not stop';
	return;
}

# Waits until something is true of a partition's row in feedpub.jobs.
sub await_state
{
	my ($partition, $condition, $test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is_soon($node, "(SELECT $condition FROM feedpub.jobs WHERE relation = '$partition'::regclass)", $test);
	return;
}

sub is_done
{
	my ($feed, $partition, $rows, $test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	await_state($partition, "state = 'done'", "$test: done");
	is( sql($node, "SELECT count(*) FROM $partition, feedpub._partition p WHERE p.partition = '$partition'::regclass AND (feed_xid IS NULL OR feed_xid < p.since)"),
		'0', "$test: no row is left");
	is( sql($node, "SELECT rows FROM feedpub.jobs WHERE relation = '$partition'::regclass"),
		$rows, "$test: each was stamped once");
	ok( $node->poll_query_until('postgres',
			"SELECT count(DISTINCT (entry).k) = (SELECT count(*) FROM $feed) FROM feed_read(NULL::$feed, '', 10000) WHERE op = 'upsert'"),
		"$test: all are published");
	return;
}

# A partition with rows comes to a feed, and the publisher sees it.
sub attach
{
	my ($feed, $partition, $from, $rows, %options) = @_;

	sql($node, <<"SQL", %options);
CREATE TABLE $partition (LIKE $feed INCLUDING ALL);
INSERT INTO $partition (k, v) SELECT i, 'v' FROM generate_series($from, $from + $rows - 1) i;
SQL
	sql($node, $options{code}, %options) if $options{code};
	sql($node, "ALTER TABLE $feed ATTACH PARTITION $partition FOR VALUES FROM ($from) TO ($from + 10000)", %options);
	sql($node, "CALL feed_publish('$feed')", %options);
	return;
}

#
# In steps of a tenth of what the rate allows in a second
#
set_rate(2000);
sql($node, <<'SQL');
CREATE TABLE kv (k int PRIMARY KEY, v text) PARTITION BY RANGE (k);
CREATE TABLE kv_0 PARTITION OF kv FOR VALUES FROM (0) TO (10000);
INSERT INTO kv SELECT i, 'v' FROM generate_series(1, 10) i;
SELECT feed_attach('kv');
SQL
attach('kv', 'kv_1', 10000, 3000);
is_done('kv', 'kv_1', 3000, 'throttled');
is( sql($node, 'SELECT max(n) <= 200, count(*) >= 15 FROM (SELECT count(*) AS n FROM kv_1 GROUP BY feed_xid) s'),
	't|t', 'no step stamps more than its share');

#
# The worker, then the server, is stopped in the middle.
#
set_rate(50);
attach('kv', 'kv_2', 20000, 3000);
await_state('kv_2', 'rows > 0', 'some rows are stamped');
sql($node, 'SELECT pg_terminate_backend(pid, 60000) FROM feedpub.workers WHERE pid IS NOT NULL');
ok( $node->poll_query_until('postgres',
		"SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'feedpub job' AND backend_start < (SELECT max(started_at) FROM feedpub.workers)"),
	'its process ends with it');
my $stamped = sql($node, q(SELECT rows FROM feedpub.jobs WHERE relation = 'kv_2'::regclass));
cmp_ok($stamped, '<', 3000, 'the worker ends in the middle');
await_state('kv_2', "rows > $stamped", 'another goes on');
$node->stop('immediate');
$node->start;
cmp_ok(sql($node, q(SELECT rows FROM feedpub.jobs WHERE relation = 'kv_2'::regclass)),
	'<', 3000, 'the server ends in the middle');
set_rate(0);
is_done('kv', 'kv_2', 3000, 'after a crash');

#
# Somebody has rows locked, then the table.
#
my $locker = $node->background_psql('postgres', on_error_die => 1);
stop_worker();
$locker->query_safe('BEGIN');
sql($node, 'CREATE TABLE kv_3 (LIKE kv INCLUDING ALL)');
sql($node, q(INSERT INTO kv_3 SELECT i, 'v' FROM generate_series(30000, 32999) i));
sql($node, 'ALTER TABLE kv ATTACH PARTITION kv_3 FOR VALUES FROM (30000) TO (40000)');
$locker->query_safe('SELECT k FROM kv WHERE k IN (30005, 32500) FOR UPDATE');
sql($node, 'SELECT feed_start_worker()');
sql($node, q(CALL feed_publish('kv')));
await_state('kv_3', "state = 'running' AND rows = 2998", 'locked rows are left');
$locker->query_safe('COMMIT');
is_done('kv', 'kv_3', 3000, 'locked rows');
attach('kv', 'kv_4', 40000, 0);
await_state('kv_4', "state = 'done'", 'an empty one is done');
$locker->quit;

#
# Code of the owner's, in a check
#
sql($node, <<'SQL');
CREATE ROLE regress_feedpub_owner LOGIN;
CREATE ROLE regress_feedpub_other LOGIN;
GRANT CREATE ON SCHEMA public TO regress_feedpub_owner, regress_feedpub_other;
SQL
for my $role ('owner', 'other')
{
	sql($node, <<"SQL", user => "regress_feedpub_$role");
CREATE TABLE $role (k int PRIMARY KEY, v text) PARTITION BY RANGE (k);
SELECT feed_attach('$role');
CREATE FUNCTION does_$role(v text) RETURNS bool LANGUAGE plpgsql AS 'BEGIN RETURN true; END';
SQL
}
sub does
{
	my ($body) = @_;

	sql($node, <<"SQL", user => 'regress_feedpub_owner');
CREATE OR REPLACE FUNCTION does_owner(v text) RETURNS bool LANGUAGE plpgsql AS \$\$
BEGIN
	$body
	RETURN true;
END \$\$;
SQL
	return;
}

# It fails: the rows are shown, with the error, to the owner.
attach('owner', 'owner_1', 10000, 3, user => 'regress_feedpub_owner', code => <<'SQL');
ALTER TABLE owner_1 ADD CHECK (does_owner(v));
CREATE OR REPLACE FUNCTION does_owner(v text) RETURNS bool LANGUAGE plpgsql AS 'BEGIN RAISE ''does not like %'', v; END';
SQL
await_state('owner_1', q(state = 'done' AND failed = 3 AND last_error = 'does not like v'), 'rows that fail are shown');
does('');
sql($node, q(CALL feed_republish('owner', unstamped_only => true)), user => 'regress_feedpub_owner');
is(sql($node, 'SELECT count(*) FROM owner_1 o, feedpub._partition p WHERE p.partition = o.tableoid AND o.feed_xid >= p.since'), '3', 'they are stamped when that is mended');

# If the step itself fails, the feed waits, each time twice as long.
does(q(RAISE 'no room' USING ERRCODE = 'disk_full';));
my $offset = -s $node->logfile;
attach('owner', 'owner_0', 0, 3, user => 'regress_feedpub_owner', code => 'ALTER TABLE owner_0 ADD CHECK (does_owner(v)) NOT VALID');
$node->wait_for_log(qr/(?:could not stamp rows(?s:.*?)){3}/, $offset);
my $log = slurp_file($node->logfile, $offset);
my @failed_at;
push @failed_at, $1 * 3600 + $2 * 60 + $3
  while $log =~ /^\S+ (\d+):(\d+):(\d+\.\d+) .* could not stamp rows/mg;
my @waits = map { ($failed_at[$_] - $failed_at[ $_ - 1 ]) % 86400 } 1, 2;
cmp_ok($waits[$_], '>=', (1, 2)[$_], 'a feed whose step failed waits') for 0, 1;
await_state('owner_0', q(state = 'failing' AND failed = 0 AND last_error = 'no room'), 'no row is given up for that');
does('');
is_done('owner', 'owner_0', 3, 'when there is room');

# It can become no other role.
does(<<'SQL');
	BEGIN
		RESET SESSION AUTHORIZATION;
	EXCEPTION WHEN OTHERS THEN
		NULL;
	END;
	ALTER ROLE regress_feedpub_owner SUPERUSER;
SQL
attach('owner', 'owner_2', 20000, 3, user => 'regress_feedpub_owner', code => 'ALTER TABLE owner_2 ADD CHECK (does_owner(v)) NOT VALID');
await_state('owner_2', q(failed = 3 AND last_error ~ 'superuser|permission denied'), 'it is not made superuser');
is(sql($node, q(SELECT rolsuper FROM pg_roles WHERE rolname = 'regress_feedpub_owner')), 'f', 'the owner is none');

# It takes its time, traps what would end it, and keeps a lock: the process ends.
does(<<'SQL');
	LOOP
		BEGIN
			PERFORM pg_catalog.pg_advisory_lock(4711);
			PERFORM pg_catalog.pg_sleep(3600);
		EXCEPTION WHEN query_canceled OR OTHERS THEN
			NULL;
		END;
	END LOOP;
SQL
attach('owner', 'owner_3', 30000, 3, user => 'regress_feedpub_owner', code => 'ALTER TABLE owner_3 ADD CHECK (does_owner(v)) NOT VALID');
ok( $node->poll_query_until('postgres', q(SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711)),
	'a step is in it');
my $pid = sql($node, q(SELECT COALESCE(max(pid), 0) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711));
sql($node, q(INSERT INTO kv VALUES (40001, 'meanwhile')));
ok( $node->poll_query_until('postgres',
		q(SELECT NOT unpublished FROM feedpub.feeds WHERE feed = 'kv'::regclass)),
	'publishing goes on meanwhile');
attach('other', 'other_1', 10000, 3, user => 'regress_feedpub_other');
is_soon($node, "NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $pid)", 'its process ends');
await_state('owner_3', q(state = 'failing' AND last_error = 'a step took too long and was ended'), 'it is ended');
is_done('other', 'other_1', 3, 'another owner has its turn');

# Killed by somebody before it has taken long: each process that is seen, until one
# was young enough.
is_soon($node, <<'SQL', 'a process that was killed is told from one that was too slow');
(SELECT last_error = 'its process was ended' FROM feedpub.jobs WHERE relation = 'owner_3'::regclass)
	OR (SELECT count(pg_terminate_backend(pid)) < 0 FROM pg_stat_activity WHERE backend_type = 'feedpub job')
SQL
does('');
await_state('owner_3', "state = 'done' AND rows = 3", 'when it is mended it is done');
ok( $node->poll_query_until('postgres', q(SELECT count(*) = 0 FROM pg_locks WHERE locktype = 'advisory')),
	'the lock went with the process');
ok( $node->poll_query_until('postgres', q(SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'feedpub job')),
	'no process stays when there is nothing to do');

#
# Nine feeds wait at a time, eight of them of one owner: the other owner has the
# first turn or the second.
#
stop_worker();
for my $n (1 .. 9)
{
	my $owner = $n < 9 ? 'regress_feedpub_owner' : 'regress_feedpub_other';

	sql($node, <<"SQL");
CREATE TABLE turn_$n (k int PRIMARY KEY, v text) PARTITION BY RANGE (k);
ALTER TABLE turn_$n OWNER TO $owner;
SELECT feed_attach('turn_$n');
SQL
	attach("turn_$n", "turn_${n}_0", 0, 3, code => "ALTER TABLE turn_${n}_0 OWNER TO $owner");
}
sql($node, 'SELECT feed_start_worker()');
await_state("turn_${_}_0", "state = 'done'", "feed $_ of nine has its turn") for 1 .. 9;
my $stamps = join ' UNION ALL ',
  map { "SELECT $_ AS n, (SELECT feed_xid FROM turn_$_ ORDER BY feed_xid LIMIT 1) AS stamp" } 1 .. 9;
is( sql($node, "SELECT count(*) < 2 FROM ($stamps) a, ($stamps) b WHERE a.stamp < b.stamp AND b.n = 9"),
	't', 'owners take turns');
unlike($node->log_content, qr/PANIC|TRAP/, 'no crash');
$node->stop;
done_testing();
