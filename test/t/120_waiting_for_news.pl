# feed_wait() and feed_await(): they return when something arrives, or when
# the time is over; they can be cancelled, end with the server and with the
# feed; and feed_await() holds nothing while it waits.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubPublished;
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('server',
	conf => "log_statement = none\nlisten_addresses = '127.0.0.1'\n");
my %call = (
	feed_wait => "SELECT feed_wait('%s', '%s', '%s');",
	feed_await => "CALL feed_await('%s', '%s', '%s');");

sql($node, <<'SQL');
CREATE ROLE regress_feedpub_reader LOGIN;
SELECT feed_create('outbox'), feed_create('other');
GRANT SELECT ON outbox TO regress_feedpub_reader;
SQL

sub insert
{
	my ($feed, $key) = @_;

	sql($node,
		"INSERT INTO $feed (message_type, message_key, data) VALUES ('A', '$key', '1')"
	);
	return;
}

sub head
{
	return sql($node, "SELECT feed_head('$_[0]')");
}

for my $name (sort keys %call)
{
	my $wait = sub { sprintf $call{$name}, @_ };
	my $start = sub {
		my $waiting = background($node, $wait->(@_));

		$waiting->await_wait or die "$name does not wait";
		return $waiting;
	};
	my ($waiting, $cursor, $bystander);

	#
	# Something is there, comes, or does not
	#
	insert('outbox', "$name 1");
	is(sql($node, $wait->('outbox', '', '60 s')),
		't', "$name: true at once when something is there, or soon to be");
	$cursor = head('outbox');
	is(sql($node, $wait->('outbox', $cursor, '0')),
		'f', "$name: false at once with no time to wait");
	is(sql($node, $wait->('outbox', $cursor, '150 ms')),
		'f', "$name: false when the time is over");
	is( sql($node, $wait->('outbox', '', '0')),
		't', "$name: true with no time to wait when something is there");

	$waiting = $start->('outbox', $cursor, '1 hour');
	$bystander = $start->('other', head('other'), '1 hour');
	insert('outbox', "$name 2");
	is($waiting->finish, 't', "$name: true when something arrives");
	is(read_all($node, 'outbox', after => \$cursor),
		"$name 2", "$name: then it can be read");
	ok($bystander->await_wait, "$name: who waits for another feed still waits");

	# A transaction that ends without a row, or whose row is gone
	$waiting = $start->('outbox', $cursor, '1 hour');
	sql($node, <<'SQL');
BEGIN; INSERT INTO outbox (message_type, data) VALUES ('A', '1'); ROLLBACK;
BEGIN; INSERT INTO outbox (message_type, data) VALUES ('A', '1') RETURNING feed_pos AS gone \gset
DELETE FROM outbox WHERE feed_pos = :gone; COMMIT;
INSERT INTO other (message_type, message_key, data) VALUES ('A', '1', '1');
SQL
	is($bystander->finish, 't', "$name: and returns when its own has news");
	ok($waiting->await_wait, "$name: a rollback or a deleted row is no news");
	kill_worker($node);
	insert('outbox', "$name 3");
	is($waiting->finish, 't', "$name: the worker was killed: who waits starts another");
	is(read_all($node, 'outbox', after => \$cursor),
		"$name 3", "$name: then it can be read");

	#
	# A crowd: all of them return
	#
	my @crowd = map { $start->('outbox', $cursor, '1 hour') } 1 .. 10;
	insert('outbox', "$name 4");
	is(join('', map { $_->finish } @crowd), 't' x 10, "$name: all who wait are woken");
	$cursor = head('outbox');

	#
	# Cancelled
	#
	$waiting = $start->('outbox', $cursor, '1 hour');
	sql($node, 'SELECT pg_cancel_backend(' . $waiting->activity('pid') . ')');
	is($waiting->finish, '', "$name: cancelled: returns nothing");
	like($waiting->{error}, qr/ERROR:  57014: .*user request/,
		"$name: pg_cancel_backend");
	refused(
		$node,
		"SET statement_timeout = '200ms'; " . $wait->('outbox', $cursor, '60 s'),
		'57014', 'statement timeout', "$name: statement_timeout");
	$waiting = $start->('outbox', $cursor, '1 hour');
	sql($node, 'SELECT pg_terminate_backend(' . $waiting->activity('pid') . ')');
	$waiting->finish;
	like($waiting->{error}, qr/FATAL:  57P01: /, "$name: pg_terminate_backend");

	#
	# The client is killed
	#
	for my $host ($node->host, '127.0.0.1')
	{
		$waiting = background($node, $wait->('outbox', $cursor, '1 hour'), host => $host);
		$waiting->await_wait or die "$name does not wait";
		my $pid = $waiting->activity('pid');
		my $log_end = -s $node->logfile;

		$waiting->{handle}->signal('KILL');
		$waiting->{handle}->finish;
		# it looks every second; a session that does not look stays for an hour
		is_soon($node, "NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $pid)",
			"$name: ends when its client has been killed, at $host");
		ok($node->log_contains(qr/FATAL:  (08006: )?connection to client lost/, $log_end),
			"$name: it says so");
	}

	for my $foreign ($cursor =~ s/^(.{25}).{6}/${1}0FLSdB/r,
		$cursor =~ s/^(.{8})-/${1}0/r)
	{
		refused($node, $wait->('outbox', $foreign, '1 s'),
			'PF001', 'another history',
			"$name: a cursor of another history is refused");
	}
	refused($node, $wait->('outbox', 'nonsense', '1 s'),
		'22023', 'malformed', "$name: so is what is no cursor");
	refused($node, $wait->('other', '', '1 s'),
		'42501', 'permission denied', "$name: without SELECT on the table",
		user => 'regress_feedpub_reader');
	is( sql($node, $wait->('outbox', '', '60 s'),
			user => 'regress_feedpub_reader'),
		't', "$name: with SELECT on the table");
}

#
# What is held while they wait
#
my $cursor = head('outbox');
my $held = <<'SQL';
backend_xmin IS NULL, backend_xid IS NULL, (SELECT count(*) FROM pg_locks l
	WHERE l.pid = pg_stat_activity.pid AND l.locktype IN ('relation', 'object'))
SQL
my $waiting = background($node, "CALL feed_await('outbox', '$cursor', '1 hour')");
$waiting->await_wait;
is($waiting->activity($held), 't|t|0', 'feed_await holds no snapshot and no lock');
# still so after it has looked again
insert('outbox', 'held');
is($waiting->finish, 't', 'and returns');
$cursor = head('outbox');
$waiting = background($node, "SELECT feed_wait('outbox', '$cursor', '1 hour')");
$waiting->await_wait;
like($waiting->activity($held), qr/^f\|t\|/, 'feed_wait holds a snapshot');
insert('outbox', 'held too');
is($waiting->finish, 't', 'and returns');
$cursor = head('outbox');

#
# Inside transactions
#
for my $level ('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE')
{
	$waiting = background($node, <<"SQL");
BEGIN ISOLATION LEVEL $level;
SELECT count(*) FROM feedpub.feeds;
SELECT feed_wait('outbox', '$cursor', '1 hour');
ROLLBACK;
SQL
	$waiting->await_wait;
	insert('outbox', $level);
	is($waiting->finish, "2\nt", "feed_wait in a $level transaction");
	is(read_all($node, 'outbox', after => \$cursor),
		$level, 'it was another transaction\'s row');
	is( sql($node, <<"SQL"), 'f', 'one that has written looks once, and not at its own row');
BEGIN ISOLATION LEVEL $level;
INSERT INTO outbox (message_type, data) VALUES ('A', '"my own, uncommitted"');
SELECT feed_wait('outbox', '$cursor', '1 hour');
ROLLBACK;
SQL
}
refused(
	$node,
	"BEGIN; CALL feed_await('outbox', '', '1 s')",
	'25001',
	'cannot run inside a transaction block',
	'feed_await in a transaction block');
$waiting = background($node, <<"SQL");
DO \$\$
DECLARE arrived bool;
BEGIN
	FOR i IN 1..2 LOOP
		CALL feed_await('outbox', '$cursor', '1 hour', arrived);
		RAISE NOTICE 'arrived: %', arrived;
	END LOOP;
END \$\$;
SQL
$waiting->await_wait;
is($waiting->activity($held), 't|t|0', 'feed_await in a DO block holds nothing either');
insert('outbox', 'do');
$waiting->finish;
like($waiting->{error}, qr/(arrived: t.*){2}/s, 'it returns');
$cursor = head('outbox');

#
# feed_flush() would wait for what its own transaction keeps the worker from.
# With this wal_level a lock alone takes no transaction id.
#
is(sql($node, 'SHOW wal_level'), 'minimal', 'wal_level');
sql($node, <<'SQL');
CREATE TABLE kv (k int PRIMARY KEY) PARTITION BY LIST (k);
CREATE TABLE kv_1 PARTITION OF kv FOR VALUES IN (1);
SELECT feed_attach('kv');
SQL
refused($node, "BEGIN; LOCK TABLE ONLY $_ IN ACCESS EXCLUSIVE MODE; SELECT feed_flush('kv', '1 s')",
	'55000', 'transaction that has locked it', "feed_flush() of a feed whose $_ is locked")
  for qw(kv kv_1);
is(sql($node, "BEGIN; LOCK TABLE kv IN EXCLUSIVE MODE; SELECT feed_flush('kv', '1 min') IS NOT NULL"),
	't', 'a weaker lock is in nobody\'s way');
sql($node, q(SELECT feed_detach('kv'); DROP TABLE kv));

#
# The feed goes
#
sql($node, q(SELECT feed_create('short_lived')));
insert('short_lived', 1);
sql($node, q(SELECT feed_flush('short_lived')));
$waiting = background($node,
	"SELECT feed_wait('short_lived', '', '1 hour'); CALL feed_await('short_lived', feed_head('short_lived'), '1 hour')"
);
$waiting->await_wait;
sql($node, q(SET lock_timeout = '60s'; SELECT feed_drop('short_lived')));
like($waiting->finish, qr/^t\n(f|$)/, 'feed_await ends when the feed is dropped');
unlike($waiting->{error}, qr/FATAL|PANIC|XX000/, 'in an orderly manner');

#
# A consumer that waits again and again does not have the worker look each time
#
my $wakeups = sql($node, 'SELECT wakeups FROM feedpub.workers');
sql($node, join ';', map { "SELECT feed_wait('outbox', 'latest', '5 ms')" } 1 .. 100);
$wakeups = sql($node, 'SELECT wakeups FROM feedpub.workers') - $wakeups;
cmp_ok($wakeups, '<', 30, 'a hundred waits do not wake the worker a hundred times');

#
# The server goes
#
my @waiting =
  map { background($node, sprintf $call{$_}, 'outbox', $cursor, '1 hour') }
  (sort keys %call) x 10;
$_->await_wait for @waiting;
my $time = time;
$node->stop('fast');
cmp_ok(time - $time, '<', 20, 'fast shutdown does not wait for those who wait');
for (@waiting)
{
	$_->finish;
	like($_->{error}, qr/FATAL:  57P01: /, 'they are told');
}
done_testing();
