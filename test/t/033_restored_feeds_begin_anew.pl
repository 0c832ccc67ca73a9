# A dump of production is restored into another cluster, whose transaction ids
# have not come as far: an outbox, a table and a partitioned table.  Each is
# refused until its owner runs the one call that feed_check() names.  Then a
# consumer that begins at '' gets every row once, in the order of before.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $old = feedpub_node('production');
my $new = feedpub_node('staging', extension => 0);
my $dir = PostgreSQL::Test::Utils::tempdir();

for my $node ($old, $new)
{
	sql($node, 'CREATE ROLE regress_feedpub_owner LOGIN');
}
sql($old, <<'SQL');
GRANT CREATE ON SCHEMA public TO regress_feedpub_owner;
SET ROLE regress_feedpub_owner;
SELECT feed_create('outbox');
CREATE TABLE kv (k int PRIMARY KEY, v text);
INSERT INTO kv SELECT i, 'initial' FROM generate_series(1, 5) i;
SELECT feed_attach('kv');
CREATE TABLE ev (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE ev_1 PARTITION OF ev FOR VALUES FROM (1) TO (100);
CREATE TABLE ev_2 PARTITION OF ev FOR VALUES FROM (100) TO (200);
SELECT feed_attach('ev');
SELECT feed_subscribe('mail', 'outbox', 'earliest'), feed_subscribe('copy', 'kv', 'earliest');
SQL

# What one loop writes; some stamps the other cluster has passed, others not.
sub write_rows
{
	my ($from, $to) = @_;

	for my $i ($from .. $to)
	{
		sql($old, <<"SQL");
BEGIN;
INSERT INTO outbox (message_type, data) SELECT 'm', to_jsonb('$i.' || j) FROM generate_series(1, 3) j;
INSERT INTO kv VALUES (10 * $i, 'new');
UPDATE kv SET v = 'changed $i' WHERE k = 1;
INSERT INTO ev VALUES ($i), (100 + $i);
COMMIT;
SQL
	}
	return;
}
write_rows(1, 4);

# One whose id is smaller than that of a later transaction, and its position
# larger: it comes after it.
my $early = $old->background_psql('postgres');
$early->query_safe(q(BEGIN; SELECT pg_current_xact_id()));
burn_xids($old, 5000);
write_rows(5, 8);
$early->query_safe(q(INSERT INTO outbox (message_type, data) VALUES ('m', '"early"')));
$early->query_safe(q(UPDATE kv SET v = 'early' WHERE k = 2));
$early->query_safe(q(COMMIT));
$early->quit;
sql($old, q(DELETE FROM kv WHERE k = 10; CALL feed_publish()));

# The rows of a table in the order of their positions, those of the initial
# snapshot first
my %value = (
	outbox => 'data',
	kv => q(format('%s=%s', k, v)),
	ev => 'id');
my $by_position = <<'SQL';
SELECT %s FROM %s ORDER BY feed_pos NULLS FIRST, ctid
SQL
my %rows = map { $_ => sql($old, sprintf $by_position, $value{$_}, $_) } keys %value;
my %cursor = map { $_ => sql($old, "SELECT feed_head('$_')") } keys %value;
is(sql($old, 'SELECT data FROM outbox ORDER BY feed_xid, feed_pos') eq $rows{outbox}, '',
	'the order of ids is another than that of positions');

$old->command_ok([ 'pg_dump', '-f', "$dir/dump.sql", 'postgres' ], 'dumped');
sub restore
{
	my ($db) = @_;

	sql($new, "CREATE DATABASE $db");
	$new->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', "$dir/dump.sql", $db ],
		"restored: $db");
	sql($new, 'SELECT feed_stop_worker()', db => $db);
	return;
}

# Everything after a cursor, page by page, as it is read
sub follow
{
	my ($db, $feed, $cursor) = @_;
	my $value = $value{$feed} =~ s/\b(data|k|v|id)\b/(entry).$1/gr;
	my @got;

	while (1)
	{
		my @page = split /\n/, sql($new, <<"SQL", db => $db);
SET feedpub.read_wait = 0;
SELECT cursor, op, $value FROM feed_read(NULL::$feed, '$cursor', 4)
SQL
		last if !@page;
		for (@page)
		{
			my ($after, $op, $entry) = split /\|/, $_, 3;

			$cursor = $after;
			push @got, $op eq 'upsert' ? $entry : "$op $entry" if $op ne 'end';
		}
	}
	return (join("\n", @got), $cursor);
}

#
# An outbox and a table
#
restore('staging');
my @db = (db => 'staging');

# What is written there before comes after what was restored.
sql($new, <<'SQL', @db);
INSERT INTO outbox (message_type, data) VALUES ('m', '"written before"');
INSERT INTO kv VALUES (1000, 'written before');
SQL
$rows{outbox} .= qq(\n"written before");
$rows{kv} .= "\n1000=written before";
for my $feed ('outbox', 'kv')
{
	my $as_owner = [ @db, user => 'regress_feedpub_owner' ];

	refused($new, "SELECT * FROM feed_read(NULL::$feed, '', 10)",
		'PF001', 'another history.*HINT:.*feed_begin_history', "$feed is refused", @db);
	is(sql($new, "SELECT feed_repair('$feed')", @$as_owner), 0, "$feed: feed_repair() does nothing");
	my $cure = sql($new, "SELECT cure FROM feed_check('$feed')", @$as_owner);
	is($cure, "SELECT public.feed_begin_history('public.$feed'::pg_catalog.regclass)", "$feed: feed_check() names one call");
	refused($new, "BEGIN ISOLATION LEVEL REPEATABLE READ; $cure",
		'0A000', 'feed_begin_history\(\) cannot be used', "$feed: not with an old snapshot", @$as_owner);
	sql($new, $cure, @$as_owner);
	is(sql($new, "SELECT * FROM feed_check('$feed')", @db), '', "$feed: all is well");
	sql($new, "CALL feed_publish('$feed')", @db);
	my ($got, $cursor) = follow('staging', $feed, '');
	is($got, $rows{$feed}, "$feed: every row once, in the order of before");
	refused($new, "SELECT * FROM feed_read(NULL::$feed, '$cursor{$feed}', 10)",
		'PF001', 'another history', "$feed: a cursor of before is refused", @db);
	is(sql($new, "SELECT count(*) FROM $feed", @db), 1 + ($rows{$feed} =~ tr/\n//), "$feed: no row is lost");

	# and it goes on
	sql($new, $feed eq 'outbox' ?
		q(INSERT INTO outbox (message_type, data) VALUES ('m', '"later"')) :
		q(INSERT INTO kv VALUES (1001, 'later')), @db);
	sql($new, "CALL feed_publish('$feed')", @db);
	is((follow('staging', $feed, $cursor))[0], $feed eq 'outbox' ? '"later"' : '1001=later', "$feed goes on");
}
is(sql($new, q(SELECT data FROM feed_fetch('0', 0, 100)), @db), qq($rows{outbox}\n"later"), 'the same in xid order');
refused($new, 'UPDATE outbox SET feed_xid = NULL', 'PF004', 'cannot update feed', 'messages are not updated otherwise', @db);

# Subscriptions deliver nothing until somebody decides where they go on.
for my $name (qw(mail copy))
{
	refused($new, "SELECT count(*) FROM feed_poll('$name', 100)", 'PF001', 'another history',
		"subscription $name delivers nothing", @db, user => 'regress_feedpub_owner');
}
sql($new, q(SELECT feed_seek('mail', 'latest')), @db, user => 'regress_feedpub_owner');
is(sql($new, q(SELECT count(*) FROM feed_poll('mail', 100)), @db, user => 'regress_feedpub_owner'),
	0, 'it goes on here');
sql($new, q(SELECT feed_seek('mail', 'earliest')), @db, user => 'regress_feedpub_owner');
is(sql($new, q(SELECT count(*) FROM feed_poll('mail', 100)), @db, user => 'regress_feedpub_owner'),
	2 + ($rows{outbox} =~ tr/\n//), 'or begins again');
sql($new, q(SELECT feed_seek('copy', 'earliest')), @db, user => 'regress_feedpub_owner');
is(sql($new, q(SELECT count(*) FROM feed_poll('copy', 100)), @db, user => 'regress_feedpub_owner'),
	2 + ($rows{kv} =~ tr/\n//), 'that of the table begins again after feed_seek()');

#
# A partitioned table: its rows are stamped in the background.
#
sql($new, q(SELECT feed_begin_history('ev'); SELECT feed_start_worker()), @db);
$new->poll_query_until('staging', q(SELECT count(*) = 2 AND bool_and(state = 'done') FROM feedpub.jobs), 't')
  or die 'the rows of partitions are not stamped';
$new->poll_query_until('staging', q(SELECT NOT unpublished FROM feedpub.feeds WHERE feed = 'ev'::regclass), 't')
  or die 'the rows of partitions are not published';
is(join(' ', sort { $a <=> $b } split /\n/, (follow('staging', 'ev', ''))[0]),
	join(' ', sort { $a <=> $b } split /\n/, $rows{ev}), 'a partitioned table: every row once');
is(sql($new, q(SELECT * FROM feed_check('ev') WHERE guard = 'history'), @db), '', 'and its history is this one');

#
# A writer meanwhile is waited for, and what it has written comes once, too.
#
restore('busy');
my $writer = $new->background_psql('busy');
$writer->query_safe(q(BEGIN; INSERT INTO outbox (message_type, data) VALUES ('m', '"open"')));
my $owner = $new->background_psql('busy');
$owner->query_until(qr/started/, "\\echo started\nSELECT feed_begin_history('outbox');\n");
# It waits, or has ended without having waited.
$new->poll_query_until('busy', <<'SQL', 't') or die 'feed_begin_history() does neither';
SELECT EXISTS (SELECT FROM pg_locks WHERE mode = 'ExclusiveLock' AND locktype = 'relation' AND NOT granted)
	OR EXISTS (SELECT FROM pg_stat_activity WHERE query ~ '^SELECT feed_begin_history' AND state = 'idle')
SQL
is(sql($new, q(SELECT count(*) FROM pg_locks WHERE mode = 'ExclusiveLock' AND locktype = 'relation' AND NOT granted), db => 'busy'),
	1, 'a writer is waited for');
is(sql($new, q(SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock' AND granted), db => 'busy'),
	1, 'without a transaction id');
$writer->query_safe('COMMIT');
$writer->quit;
$owner->quit;
sql($new, q(CALL feed_publish('outbox')), db => 'busy');
is((follow('busy', 'outbox', ''))[0], ($rows{outbox} =~ s/written before/open/r), 'a message of a writer meanwhile comes once, after the others');

#
# If a trigger of the owner's keeps a row from being stamped, nothing changes.
#
restore('kept');
sql($new, <<'SQL', db => 'kept', user => 'regress_feedpub_owner');
CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
CREATE TRIGGER keep BEFORE UPDATE ON outbox FOR EACH ROW WHEN (old.data = '"7.2"') EXECUTE FUNCTION keep();
SQL
my $before = sql($new, 'SELECT * FROM outbox ORDER BY feed_pos', db => 'kept');
refused($new, q(SELECT feed_begin_history('outbox')), '55000', 'could not be stamped anew', 'a row that a trigger keeps is an error', db => 'kept');
is(sql($new, 'SELECT * FROM outbox ORDER BY feed_pos', db => 'kept'), $before, 'nothing has changed');
refused($new, q(SELECT * FROM feed_read(NULL::outbox, '', 10)), 'PF001', 'another history', 'it is still refused', db => 'kept');
sql($new, q(ALTER TABLE outbox DISABLE TRIGGER keep; SELECT feed_begin_history('outbox'); CALL feed_publish('outbox')), db => 'kept');
is((follow('kept', 'outbox', ''))[0], ($rows{outbox} =~ s/\n"written before"//r), 'without it, every message once');

$_->stop for $old, $new;
done_testing();
