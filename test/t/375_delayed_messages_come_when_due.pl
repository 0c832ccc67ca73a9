# Delayed messages survive crashes, failovers and dumps: a page counts only if
# what it left out is parked, and what waits comes when it is due, until it is
# acknowledged.  A poll that waits wakes for it.  Many that wait cost polls
# nothing.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Nothing writes WAL to disk unless it is asked to.
my $node = feedpub_node('primary', allows_streaming => 1, conf => <<'CONF');
log_statement = none
feedpub.read_wait = 0
wal_writer_delay = 10s
wal_writer_flush_after = 100MB
checkpoint_timeout = 1h
CONF
my $dir = PostgreSQL::Test::Utils::tempdir();

sql($node, <<'SQL');
SELECT feed_stop_worker();
SELECT feed_create('outbox');
SELECT feed_subscribe('later', 'outbox', 'earliest', delayed => true);
CREATE PROCEDURE add(first int, VARIADIC due timestamptz[]) LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO outbox (message_type, data, scheduled) SELECT 'a', to_jsonb(first + n - 1), t FROM unnest(due) WITH ORDINALITY u (t, n);
	COMMIT;
	CALL feed_publish('outbox');
END $$;
CREATE PROCEDURE pass(years int) LANGUAGE sql AS $$
	UPDATE feedpub._parked_entry SET retry_at = retry_at - make_interval(years => years)
$$;
SQL

my $poll = q(SELECT string_agg(p.row ->> 'data', ' '), max(receipt) FROM feed_poll('later') p);
my $poll_and_ack = q(SELECT p.row ->> 'data', feed_ack('later', receipt) FROM feed_poll('later', 1) p);
my $parked = q(SELECT string_agg((message ->> 'data') || ' ' || state, ', ' ORDER BY retry_at) FROM feedpub.parked WHERE subscription = 'later');

#
# A crash takes the poll's transaction back
#
sql($node, q(CALL add(1, '3026-01-01', now(), '3025-01-01', now())));
my ($data, $receipt) = split /\|/, sql($node, "SET synchronous_commit = off; $poll");
is($data, '2 4', 'two are parked, two are delivered');
$node->stop('immediate');
$node->start;
is(sql($node, $parked), '', 'a crash before that is on disk takes it back');
refused($node, "SELECT feed_ack('later', '$receipt')", 'PF003', 'lost the page', 'and the page does not count');
($data, $receipt) = split /\|/, sql($node, $poll);
is($data, '2 4', 'it comes again');
sql($node, "SELECT feed_ack('later', '$receipt')");
$node->stop('immediate');
$node->start;
is(sql($node, $parked), '3 scheduled, 1 scheduled', 'what was committed waits');

#
# A standby, which is promoted
#
$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
refused($standby, $poll, '25006', 'feed_poll', 'a standby is not polled');
sql($node, q(CALL add(5, '3024-01-01')));
is(sql($node, $poll_and_ack), '', 'one more waits');
$node->wait_for_replay_catchup($standby);
$node->stop('immediate');
$standby->promote;
is(sql($standby, $parked), '5 scheduled, 3 scheduled, 1 scheduled', 'all wait on the new primary');
sql($standby, 'CALL pass(1000)');
is(sql($standby, $poll_and_ack), '5|t', 'where they come');
$standby->stop('immediate');
$standby->start;
is(sql($standby, "BEGIN; $poll_and_ack; ROLLBACK;"), '3|t', 'until');
is(sql($standby, $poll_and_ack), '3|t', 'they are acknowledged');
sql($standby, q(CALL add(6, 'infinity')));
is(sql($standby, $poll_and_ack), '1|t', 'in the order of their times');
is(sql($standby, $poll_and_ack), '', 'each once');
is(sql($standby, $parked), '6 scheduled', 'one is never due');

#
# A dump
#
$standby->command_ok([ 'pg_dump', '-f', "$dir/dump.sql", $standby->connstr('postgres') ], 'dumped');
sql($standby, 'CREATE DATABASE again');
$standby->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', "$dir/dump.sql", '-d', $standby->connstr('again') ], 'restored');
is(sql($standby, 'SELECT name, delayed, parked FROM feedpub.subscriptions', db => 'again'), 'later|t|1', 'the subscription is in it');
is(sql($standby, $parked, db => 'again'), '6 scheduled', 'with what waits');
sql($standby, q(SELECT feed_retry('later', cursor) FROM feedpub.parked), db => 'again');
is(sql($standby, $poll_and_ack, db => 'again'), '6|t', 'which comes');

#
# A poll that waits
#
sql($standby, q(SELECT feed_start_worker()));
my $waits = $PostgreSQL::Test::Utils::timeout_default;
my $consumer = $standby->background_psql('postgres');
is($consumer->query_safe(<<"SQL"), '7|t', 'a poll wakes when a message is due, not before');
INSERT INTO outbox (message_type, data, scheduled) VALUES ('a', '7', clock_timestamp() + interval '2 s');
SELECT feed_flush('outbox') \\g /dev/null
SELECT FROM feed_poll('later') \\g /dev/null
SELECT p.row ->> 'data', clock_timestamp() BETWEEN (p.row ->> 'scheduled')::timestamptz AND (p.row ->> 'scheduled')::timestamptz + interval '$waits s' / 2
FROM feed_poll('later', timeout => '$waits s') p;
SQL
is(sql($standby, $poll_and_ack), '7|t', 'and has it until it is acknowledged');

# It does not wake a moment too early, and return nothing.
is(join(' ', map { $consumer->query_safe(<<"SQL") } 1001 .. 1020), join(' ', 1001 .. 1020), 'none wakes too early');
INSERT INTO outbox (message_type, data, scheduled) VALUES ('a', '$_', clock_timestamp() + interval '30 ms');
SELECT feed_flush('outbox') \\g /dev/null
SELECT FROM feed_poll('later') \\g /dev/null
SELECT COALESCE(max(p.row ->> 'data'), 'none') AS data, COALESCE(max(receipt), '') AS receipt
FROM feed_poll('later', timeout => '$waits s') p \\gset
SELECT feed_ack('later', COALESCE(NULLIF(:'receipt', ''), (SELECT receipt FROM feed_poll('later', timeout => '$waits s')))) \\g /dev/null
SELECT :'data';
SQL
$consumer->quit;

#
# Many that wait: polls read as many buffers as with twenty
#
sql($standby, <<'SQL');
SELECT feed_stop_worker();
SELECT feed_subscribe('other', 'outbox'), feed_seek('later', 'latest');
INSERT INTO outbox (message_type, data, scheduled) SELECT 'a', '8', 'infinity' FROM generate_series(1, 20);
CALL feed_publish('outbox');
SELECT FROM feed_poll('later');
SELECT feed_seek('other', 'latest');
CREATE FUNCTION buffers(query text) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
	plan json;
	fewest int;
BEGIN
	FOR i IN 1..8 LOOP
		EXECUTE 'EXPLAIN (ANALYZE, BUFFERS, TIMING off, FORMAT json) ' || query INTO plan;
		plan := plan -> 0 -> 'Plan';
		fewest := least(fewest, (plan ->> 'Shared Hit Blocks')::int + (plan ->> 'Shared Read Blocks')::int);
	END LOOP;
	RETURN fewest;
END $$;
SQL
my %queries = (
	'an empty poll' => q(SELECT FROM feed_poll('later')),
	'a poll of a subscription without delays' => q(SELECT FROM feed_poll('other')),
	'to cancel one' => q(SELECT feed_discard('later', (SELECT cursor FROM feedpub._parked_entry WHERE subscription = 'later' AND shard = 0 ORDER BY cursor LIMIT 1))),
	'to have one at once' => q(SELECT feed_retry('later', (SELECT cursor FROM feedpub._parked_entry WHERE subscription = 'later' AND shard = 0 ORDER BY cursor LIMIT 1))));
my %at_first = map { $_ => sql($standby, "BEGIN; SELECT buffers(\$\$$queries{$_}\$\$); ROLLBACK;") } keys %queries;

sql($standby, <<'SQL');
INSERT INTO outbox (message_type, data, scheduled) SELECT 'a', '8', now() + n * interval '1 day' FROM generate_series(1, 20000) n;
CALL feed_publish('outbox');
DO $$
BEGIN
	WHILE (SELECT count(*) < 20000 FROM feedpub._parked_entry WHERE retry_at < 'infinity') LOOP
		PERFORM FROM feed_poll('later');
	END LOOP;
END $$;
SELECT feed_seek('other', 'latest');
SQL
for my $query (sort keys %queries)
{
	my $later = sql($standby, "BEGIN; SELECT buffers(\$\$$queries{$query}\$\$); ROLLBACK;");

	note("$query: $at_first{$query} buffers at first, $later later");
	cmp_ok($later, '<=', $at_first{$query} + 20, "$query: as many buffers as with twenty that wait");
}
$standby->stop;
done_testing();
