# feed_republish(..., rows => 'all') is done by the worker: in steps of a
# bounded number of rows, each a transaction with its progress, so that it goes
# on after the worker, or the server, was stopped in the middle, and after a
# restore.  Locked rows are come back to.  Code of the table's owner that fails,
# takes its time, or wants to be superuser hurts nobody but him.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = PostgreSQL::Test::Utils::tempdir();
my $node = feedpub_node('stamping', conf => <<'CONF');
shared_preload_libraries = 'feedpub'
feedpub.naptime = 50ms
CONF

sub set_rate
{
	my ($server, $rate) = @_;

	sql($server, "ALTER SYSTEM SET feedpub.stamping_rate = $rate");
	sql($server, 'SELECT pg_reload_conf()');
	return;
}

# Waits until a query on the row of feedpub.republishing is true.
sub await_state
{
	my ($server, $feed, $condition, $test, %options) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	ok( $server->poll_query_until(
			$options{db} // 'postgres',
			"SELECT $condition FROM feedpub.republishing WHERE feed = '$feed'::regclass"),
		$test)
	  or diag(sql($server, 'SELECT * FROM feedpub.republishing', %options));
	return;
}

# Follows kv from a cursor to its end, or for some pages, into a copy.
sub follow
{
	my ($server, $copy, $cursor, $page, %options) = @_;

	for (my $i = 0; !$options{pages} || $i < $options{pages}; $i++)
	{
		my @rows = split /\n/, sql($server, <<"SQL", %options);
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
	my ($server, %options) = @_;

	return sql($server,
		q(SELECT string_agg(k || '=' || v, ' ' ORDER BY k) FROM kv), %options);
}

# A feed with 3000 rows, of which the last 1000 are stamped.
sub make_feed
{
	my ($server, %options) = @_;

	sql($server, <<'SQL', %options);
DROP TABLE IF EXISTS kv;
CREATE TABLE kv (k int PRIMARY KEY, v text, hits int);
INSERT INTO kv SELECT i, 'a' FROM generate_series(1, 3000) i;
SELECT feed_attach('kv', columns => '{v}');
UPDATE kv SET v = 'b' WHERE k > 2000;
SQL
	return;
}

# Every row has been stamped once, since it was asked for.
sub is_done
{
	my ($server, $test, %options) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	await_state($server, 'kv', "state = 'done'", "$test: done", %options);
	is( sql($server, <<'SQL', %options),
SELECT count(*) FROM kv, feedpub.republication r
 WHERE r.feed = 'kv'::regclass AND (feed_pos IS NULL OR feed_pos <= r.cutoff)
SQL
		'0',
		"$test: no row is left");
	is( sql($server, <<'SQL', %options),
SELECT r.stamped = count(*) FROM kv, feedpub.republication r
 WHERE r.feed = 'kv'::regclass GROUP BY r.stamped
SQL
		't',
		"$test: each was stamped once");
	return;
}

# Another worker tries at once what failed with the one before.
sub renew_worker
{
	sql($node, <<'SQL');
SELECT pg_terminate_backend(pid, 60000) FROM feedpub.workers
 WHERE pid IS NOT NULL AND database = current_database()
SQL
	return;
}

#
# In steps of a tenth of what the rate allows in a second
#
set_rate($node, 2000);
make_feed($node);
my %copy;
my $cursor = follow($node, \%copy, '', 1000);
sql($node, q(SELECT feed_republish('kv', rows => 'all')));
is_done($node, 'throttled');
is( sql($node, <<'SQL'),
SELECT max(n) <= 200, count(*) >= 15 FROM (SELECT count(*) AS n FROM kv GROUP BY feed_xid) s
SQL
	't|t',
	'no step stamps more than its share');
ok( $node->poll_query_until('postgres',
		q(SELECT NOT unpublished FROM feedpub.feeds WHERE feed = 'kv'::regclass)),
	'all is published');
my %again;
follow($node, \%again, $cursor, 1000);
is(text(\%again), table($node), 'a consumer that had all gets all again');
follow($node, \%copy, '', 1000);
is(text(\%copy), table($node), 'so does one that begins');

#
# The worker, then the server, is stopped in the middle.
#
set_rate($node, 1000);
make_feed($node);
sql($node, q(SELECT feed_republish('kv', rows => 'all')));
await_state($node, 'kv', 'stamped > 0', 'some rows are stamped');
renew_worker();
my $stamped = sql($node, 'SELECT stamped FROM feedpub.republishing');
cmp_ok($stamped, '<', 3000, 'the worker ends in the middle');
await_state($node, 'kv', "stamped > $stamped", 'another goes on');
await_state($node, 'kv', 'stamped > 1200', 'more rows are stamped');
$node->stop('immediate');
$node->start;
cmp_ok(sql($node, 'SELECT stamped FROM feedpub.republishing'),
	'<', 3000, 'the server ends in the middle');
set_rate($node, 0);
is_done($node, 'after a crash');
%copy = ();
follow($node, \%copy, '', 1000);
is(text(\%copy), table($node), 'a consumer gets all');

#
# Somebody has rows, and then the table, locked.
#
make_feed($node);
my $locker = $node->background_psql('postgres', on_error_die => 1);
$locker->query_safe('BEGIN');
$locker->query_safe('SELECT k FROM kv WHERE k IN (5, 2500) FOR UPDATE');
sql($node, q(SELECT feed_republish('kv', rows => 'all')));
await_state($node, 'kv', "state = 'locked rows' AND stamped = 1999",
	'a locked row is left');
$locker->query_safe('UPDATE kv SET hits = 1 WHERE k = 2500');
$locker->query_safe('COMMIT');
is_done($node, 'locked rows');
$locker->query_safe('BEGIN');
$locker->query_safe('LOCK TABLE kv IN SHARE MODE');
sql($node, q(SELECT feed_republish('kv', rows => 'all')));
sql($node, <<'SQL');
CREATE TABLE other (k int PRIMARY KEY);
SELECT feed_attach('other');
INSERT INTO other VALUES (1);
SELECT feed_republish('other', rows => 'all');
SQL
await_state($node, 'other', "state = 'done'", 'another table is done meanwhile');
is(sql($node, q(SELECT state, stamped FROM feedpub.republishing WHERE feed = 'kv'::regclass)),
	'running|0', 'the locked one waits');
$locker->query_safe('COMMIT');
is_done($node, 'locked table');
$locker->quit;

#
# The owner's code, in an index
#
sql($node, <<'SQL');
CREATE ROLE regress_feedpub_owner LOGIN;
GRANT CREATE ON SCHEMA public TO regress_feedpub_owner;
SQL
sql($node, <<'SQL', user => 'regress_feedpub_owner');
CREATE TABLE mine (k int PRIMARY KEY, v text);
INSERT INTO mine VALUES (1, 'a');
SELECT feed_attach('mine');
CREATE FUNCTION does(v text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN v; END';
CREATE INDEX ON mine (does(v));
CREATE OR REPLACE FUNCTION does(v text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	RAISE 'does not like %', v;
END $$;
SELECT feed_republish('mine', rows => 'all');
SQL
await_state($node, 'mine', q(state = 'failing' AND last_error = 'does not like a' AND last_error_at IS NOT NULL),
	'it fails');
sql($node, q(SELECT feed_republish('other', rows => 'all')));
await_state($node, 'other', "state = 'done'", 'the others go on');

# One that catches that ends the worker, and the next one leaves it alone.
sql($node, <<'SQL', user => 'regress_feedpub_owner');
CREATE OR REPLACE FUNCTION does(v text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	LOOP
		BEGIN
			PERFORM pg_catalog.pg_sleep(3600);
		EXCEPTION WHEN query_canceled THEN
			NULL;
		END;
	END LOOP;
END $$;
SQL
renew_worker();
sql($node, q(SELECT feed_republish('other', rows => 'all')));
await_state($node, 'other', "state = 'done'", 'not by a step that catches its end');
sql($node, <<'SQL', user => 'regress_feedpub_owner');
CREATE FUNCTION tries() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	RESET SESSION AUTHORIZATION;
	ALTER ROLE regress_feedpub_owner SUPERUSER;
END $$;
CREATE OR REPLACE FUNCTION does(v text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	PERFORM public.tries();
	RETURN v;
END $$;
SQL
renew_worker();
await_state($node, 'mine', q(last_error LIKE '%security-restricted%'),
	'he becomes nobody else');
sql($node, <<'SQL', user => 'regress_feedpub_owner');
CREATE OR REPLACE FUNCTION tries() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	ALTER ROLE regress_feedpub_owner SUPERUSER;
END $$;
SQL
renew_worker();
await_state($node, 'mine', q(last_error ~ 'superuser|permission denied'),
	'nor can he make himself more');
is(sql($node, q(SELECT rolsuper FROM pg_roles WHERE rolname = 'regress_feedpub_owner')),
	'f', 'he is no superuser');
sql($node, <<'SQL', user => 'regress_feedpub_owner');
CREATE OR REPLACE FUNCTION does(v text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	PERFORM pg_catalog.pg_sleep(3600);
	RETURN v;
END $$;
SQL
renew_worker();
await_state($node, 'mine', q(last_error LIKE '%statement timeout%'),
	'a step that takes too long is ended');
sql($node, q(SELECT feed_republish('other', rows => 'all')));
await_state($node, 'other', "state = 'done'", 'the others go on');
sql($node, <<'SQL', user => 'regress_feedpub_owner');
CREATE OR REPLACE FUNCTION does(v text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN v; END';
SQL
renew_worker();
await_state($node, 'mine', "state = 'done'", 'when it is mended it is done');

#
# Dumped with batch 0 half read and half of the rows stamped
#
sql($node, 'CREATE DATABASE src');
sql($node, 'CREATE EXTENSION feedpub', db => 'src');
set_rate($node, 500);
make_feed($node, db => 'src');
sql($node, q(DELETE FROM kv WHERE k <= 300), db => 'src');
my %half;
my $half = follow($node, \%half, '', 300, pages => 2, db => 'src');
sql($node, q(SELECT feed_republish('kv', rows => 'all')), db => 'src');
await_state($node, 'kv', 'stamped > 700', 'half of the rows are stamped',
	db => 'src');
sql($node, 'SELECT feed_stop_worker()', db => 'src');
$node->poll_query_until('src', q(SELECT NOT EXISTS (SELECT FROM pg_stat_activity
	WHERE backend_type = 'feedpub worker' AND datname = 'src')))
  or die 'the worker does not stop';
my $before = sql($node, 'SELECT stamped FROM feedpub.republication', db => 'src');
$node->command_ok(
	[
		'pg_dump', '-Fc', '-h', $node->host, '-p', $node->port, '-f',
		"$dir/half", 'src'
	],
	'dumped');
set_rate($node, 0);

# Restores it, and what a consumer must find when all is done.
sub restore
{
	my ($server, $db) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	sql($server, "CREATE DATABASE $db");
	$server->command_ok(
		[
			'pg_restore', '--exit-on-error', '-h', $server->host, '-p',
			$server->port, '-d', $db, "$dir/half"
		],
		"$db: restored");
	return;
}

restore($node, 'restored');
sql($node, q(SELECT feed_start_worker()), db => 'restored');
is_done($node, 'restored', db => 'restored');
sql($node, q(UPDATE kv SET v = 'restored' WHERE k IN (400, 1000, 2500); DELETE FROM kv WHERE k IN (401, 1001, 2501); CALL feed_publish('kv')),
	db => 'restored');
follow($node, \%half, $half, 500, db => 'restored');
is(text(\%half), table($node, db => 'restored'),
	'a consumer from before goes on');
%copy = ();
follow($node, \%copy, '', 500, db => 'restored');
is(text(\%copy), table($node, db => 'restored'), 'a new one gets all');

# In another cluster the stamps are from elsewhere, those of the steps as well:
# they are given new ones by the rest of the steps.
my $other = feedpub_node('other', conf => 'feedpub.stamping_rate = 0');
restore($other, 'moved');
is(sql($other, 'SELECT feed_start_worker()', db => 'moved'), 't', 'there is a worker');
await_state($other, 'kv', "state = 'done'", 'moved: done', db => 'moved');
is( sql($other, "SELECT stamped = $before + (SELECT count(*) FROM kv) FROM feedpub.republication",
		db => 'moved'),
	't',
	'moved: what had been stamped before the dump is stamped again');
refused($other, q(SELECT * FROM feed_read(NULL::kv, '', 10)),
	'PF001', 'another history', 'its batches are from elsewhere', db => 'moved');
sql($other, q(SELECT feed_repair('kv')), db => 'moved');
is(sql($other, q(SELECT * FROM feed_check('kv')), db => 'moved'), '', 'all is well');
sql($other, q(CALL feed_publish('kv')), db => 'moved');
%copy = ();
follow($other, \%copy, '', 500, db => 'moved');
is(text(\%copy), table($other, db => 'moved'), 'a new consumer gets all');

$other->stop;
$node->stop;
done_testing();
