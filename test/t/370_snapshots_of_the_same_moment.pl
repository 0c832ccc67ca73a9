# feed_snapshot() beside writers: what is copied with the snapshot, in several
# sessions, and what is read after the cursors are together the whole, each
# message of an outbox and each entry of a change feed once; and the copies of all
# feeds are of one moment.

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

my $rounds = 5;
my $node = feedpub_node('source', allows_streaming => 1, conf => <<'CONF');
shared_preload_libraries = 'feedpub'
max_worker_processes = 16
synchronous_commit = off
CONF
my $dir = PostgreSQL::Test::Utils::tempdir();

# n of a row of kv is the number of messages with its key.
sql($node, <<'SQL');
SELECT feed_create('outbox');
CREATE TABLE kv (k int PRIMARY KEY, n int NOT NULL);
CREATE TABLE parts (k int PRIMARY KEY, v text) PARTITION BY HASH (k);
CREATE TABLE parts_0 PARTITION OF parts FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES WITH (MODULUS 2, REMAINDER 1);
INSERT INTO parts SELECT k, 'initial' FROM generate_series(1, 500) k;
SELECT feed_attach('kv'), feed_attach('parts');
CREATE TABLE acct (k int PRIMARY KEY, n int NOT NULL);
INSERT INTO acct SELECT k, 0 FROM generate_series(1, 200) k;
SELECT feed_create_changes('changes');
SELECT feed_capture('acct', 'changes');

-- An entry too many, or one that is missing, is an error.
CREATE FUNCTION replay(copy regclass, after text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	r record;
	n int;
	found_some bool := true;
BEGIN
	WHILE found_some LOOP
		found_some := false;
		FOR r IN SELECT p.cursor, (entry).op, ((entry).key ->> 'k')::int AS k, ((entry)."row" ->> 'n')::int AS n
			FROM feed_read(NULL::changes, after, 10000) p WHERE p.op <> 'end'
		LOOP
			EXECUTE CASE r.op
				WHEN 'insert' THEN format('INSERT INTO %s VALUES ($1, $2)', copy)
				WHEN 'update' THEN format('UPDATE %s SET n = $2 WHERE k = $1', copy)
				ELSE format('DELETE FROM %s WHERE k = $1 AND $2 IS NULL', copy) END USING r.k, r.n;
			GET DIAGNOSTICS n = ROW_COUNT;
			IF n <> 1 THEN
				RAISE EXCEPTION '% of % finds % rows', r.op, r.k, n;
			END IF;
			after := r.cursor;
			found_some := true;
		END LOOP;
	END LOOP;
END $$ SET feedpub.read_wait = 0;

CREATE FUNCTION follow(feed regclass, after text)
RETURNS TABLE (n bigint, op text, key json, "row" json) LANGUAGE plpgsql AS $$
DECLARE
	page json;
BEGIN
	n := 0;
	LOOP
		page := feed_page(feed, after, 10000);
		FOR op, key, "row" IN
			SELECT e ->> 'op', e -> 'key', e -> 'row' FROM json_array_elements(page -> 'entries') e
		LOOP
			n := n + 1;
			RETURN NEXT;
		END LOOP;
		after := page ->> 'cursor';
		EXIT WHEN NOT (page ->> 'more')::bool;
	END LOOP;
END $$;
SQL
append_to_file("$dir/load.sql", <<'SQL');
\set k random(1, 400)
\set p random(1, 500)
\set a random(1, 200)
\set fate random(1, 20)
BEGIN;
INSERT INTO outbox (message_type, message_key, data) VALUES ('count', :k, '1');
\if :fate = 1
SAVEPOINT s;
INSERT INTO outbox (message_type, message_key, data) VALUES ('count', :k, '1');
ROLLBACK TO s;
\elif :fate < 4
DELETE FROM parts WHERE k = :p;
\elif :fate < 10
INSERT INTO parts VALUES (:p, random()) ON CONFLICT (k) DO UPDATE SET v = excluded.v;
\endif
INSERT INTO kv VALUES (:k, 1) ON CONFLICT (k) DO UPDATE SET n = kv.n + 1;
\if :fate < 8
DELETE FROM acct WHERE k = :a;
\else
INSERT INTO acct VALUES (:a, 1) ON CONFLICT (k) DO UPDATE SET n = acct.n + 1;
\endif
\if :fate = 20
ROLLBACK;
\else
COMMIT;
\endif
SQL

$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;

my ($out, $err) = ('', '');
my $load = IPC::Run::start(
	[
		'pgbench', '-n', '-c', '4', '-T', '600', '-f', "$dir/load.sql",
		'-h', $node->host, '-p', $node->port, '-U', 'postgres', 'postgres'
	],
	'<', \undef, '>', \$out, '2>', \$err);

sub await_progress
{
	my $before = sql($node, 'SELECT last_value FROM outbox_feed_pos_seq');

	$node->poll_query_until('postgres',
		"SELECT last_value > $before + 300 FROM outbox_feed_pos_seq")
	  or die 'nobody writes';
	return;
}

# Two sessions copy with the snapshot at once, while others write.
my $caller = $node->background_psql('postgres');
my $late = $node->background_psql('postgres');
my @copiers = map { $node->background_psql('postgres') } 1 .. 2;
my (%cursor, $dumped);
for my $i (1 .. $rounds)
{
	my $key = 1000 + $i;

	await_progress();
	$late->query_safe(<<"SQL");
BEGIN;
INSERT INTO outbox (message_type, message_key, data) VALUES ('late', $key, '1');
INSERT INTO kv VALUES ($key, 1);
SQL
	my @rows = split /\n/, $caller->query_safe(
		q(SELECT feed, cursor, snapshot FROM feed_snapshot('{parts,kv,outbox,changes}', '1 hour')));
	my $snapshot;
	for (@rows)
	{
		(my ($feed, $cursor), $snapshot) = split /\|/;
		$cursor{$feed}[$i] = $cursor;
	}
	$late->query_safe('COMMIT');
	await_progress();
	$_->query_safe("BEGIN ISOLATION LEVEL REPEATABLE READ; SET TRANSACTION SNAPSHOT '$snapshot'")
	  for @copiers;
	$copiers[0]->query_safe("CREATE TABLE outbox_$i AS SELECT message_id, message_key FROM outbox");
	if ($i == 1)
	{
		command_ok(
			[
				'pg_dump', '-a', '-t', 'kv', '-f', "$dir/dump.sql",
				'--snapshot', $snapshot, $node->connstr('postgres')
			],
			'pg_dump takes the snapshot');
		$dumped = () = slurp_file("$dir/dump.sql") =~ /^\d+\t/mg;
	}
	await_progress();
	$copiers[1]->query_safe("CREATE TABLE kv_$i AS SELECT k, n FROM kv");
	$copiers[1]->query_safe("CREATE TABLE acct_$i AS TABLE acct");
	$copiers[1]->query_safe("CREATE TABLE parts_copy_$i (k int PRIMARY KEY, v text)");
	$copiers[1]->query_safe("INSERT INTO parts_copy_$i SELECT k, v FROM parts");
	$_->query_safe('COMMIT') for @copiers;
}
$_->quit for $caller, $late, @copiers;
await_progress();
$load->signal('TERM');
eval { $load->finish };
is($err =~ /(.*(?:ERROR|aborted).*)/ ? $1 : '', '', 'no writer has failed');
sql($node, "CALL feed_publish('$_')") for qw(outbox kv parts changes);

is($dumped, sql($node, 'SELECT count(*) FROM kv_1'), 'a dump is of that moment');
for my $i (1 .. $rounds)
{
	is(sql($node, <<"SQL"), 0, "$i: the copies of two feeds are of one moment");
SELECT count(*)
FROM (SELECT message_key::int AS k, count(*) AS n FROM outbox_$i GROUP BY 1) o
FULL JOIN kv_$i USING (k) WHERE o.n IS DISTINCT FROM kv_$i.n
SQL
	is(sql($node, <<"SQL"), '0|t|t', "$i: each message once, of the copy or after the cursor");
WITH delivered AS (
	SELECT message_id FROM outbox_$i
	UNION ALL
	SELECT "row" ->> 'message_id' FROM follow('outbox', '$cursor{outbox}[$i]') WHERE op = 'upsert')
SELECT count(*) - count(DISTINCT message_id), count(*) = (SELECT count(*) FROM outbox),
	NOT EXISTS (SELECT message_id FROM delivered EXCEPT SELECT message_id FROM outbox)
FROM delivered
SQL
	is(sql($node, "SELECT replay('acct_$i', '$cursor{changes}[$i]')"), '',
		"$i: each change once, of the copy or after the cursor");
	is(sql($node, "SELECT count(*) FROM (TABLE acct_$i EXCEPT TABLE acct) d"), 0,
		"$i: the copy ends equal");
	for my $feed ([ 'kv', "kv_$i", 'n' ], [ 'parts', "parts_copy_$i", 'v' ])
	{
		my ($name, $copy, $column) = @$feed;

		is(sql($node, <<"SQL"), 0, "$i: the copy of $name ends equal");
WITH last AS (
	SELECT DISTINCT ON (key ->> 'k') (key ->> 'k')::int AS k, op, "row" ->> '$column' AS $column
	FROM follow('$name', '$cursor{$name}[$i]') ORDER BY key ->> 'k', n DESC),
ended AS (
	SELECT k, $column\::text FROM $copy WHERE k NOT IN (SELECT k FROM last)
	UNION ALL SELECT k, $column FROM last WHERE op = 'upsert')
SELECT count(*) FROM (
	(TABLE ended EXCEPT SELECT k, $column\::text FROM $name)
	UNION ALL (SELECT k, $column\::text FROM $name EXCEPT TABLE ended)) d
SQL
	}
}
is(sql($node, "SELECT count(*) FROM outbox_$rounds WHERE message_key::int > 1000"), $rounds - 1,
	'what was open then is not in the copy');

# A standby follows from the cursors; it takes no snapshot itself.
$node->wait_for_replay_catchup($standby);
is( sql($standby, "SELECT count(*) FROM follow('outbox', '$cursor{outbox}[2]')"),
	sql($node, "SELECT count(*) FROM follow('outbox', '$cursor{outbox}[2]')"),
	'a standby goes on from a cursor');
refused($standby, q(SELECT * FROM feed_snapshot('{outbox}')), '25006', 'recovery',
	'a standby takes no snapshot');
$standby->stop;
$node->stop;
done_testing();
