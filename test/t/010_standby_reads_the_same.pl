# A hot standby reads a feed as its primary does: the same rows in the same
# order, held back by the same transactions; only later, if it lags.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $odd = '"Odd ""Name"", x"';
my $primary = feedpub_node('primary', allows_streaming => 1);

sql($primary, "SELECT feed_create('outbox'), feed_create('$odd', 'text')");
sql($primary, <<"SQL");
INSERT INTO outbox (message_type, message_key, data)
	SELECT 'A', 'k' || i, to_jsonb(i) FROM generate_series(1, 250) i;
INSERT INTO $odd (message_type, data) SELECT 'B', i FROM generate_series(1, 7) i;
DELETE FROM outbox WHERE message_key = 'k100';
SQL

$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->start;

# Waits until the standby has what the primary has, and tests that both read
# the same from the beginning.
sub reads_the_same
{
	my ($count, $test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$primary->wait_for_replay_catchup($standby);
	for my $feed ('outbox', $odd)
	{
		is(fetch_all($standby, $feed), fetch_all($primary, $feed),
			"$test: $feed");
	}
	is(sql($standby, "SELECT count(*) FROM feed_fetch('0', 0, 1000)"),
		$count, "$test: rows of the default feed");
	return;
}

reads_the_same(249, 'nothing open');
is(fetch_all($standby, 'outbox', page => 7),
	fetch_all($primary, 'outbox', page => 1000),
	'small pages on the standby make up the large one on the primary');
is(sql($standby, 'SELECT count(*) FROM feedpub.blockers'),
	0, 'nothing holds the standby back');

#
# A transaction is open on the primary, with a row in the feed; others commit
# after it.  Their rows wait for it, on both servers.
#
my $writer = $primary->background_psql('postgres');
$writer->query_safe(
	q(BEGIN; INSERT INTO outbox (message_type, message_key, data) VALUES ('A', 'open', '1')));
my $horizon = sql($primary, 'SELECT xid FROM feedpub.blockers');
sql($primary,
	q(INSERT INTO outbox (message_type, message_key, data) VALUES ('A', 'later', '1')));
reads_the_same(249, 'a transaction open on the primary');
is(sql($standby, "SELECT count(*) FROM outbox WHERE message_key = 'later'"),
	1, 'the row that waits is visible on the standby');

like($horizon, qr/^\d+$/, 'one transaction holds the primary back');
is( sql($standby,
		'SELECT xid, kind, pid IS NULL, gid IS NULL, database IS NULL FROM feedpub.blockers'
	),
	"$horizon|primary|t|t|t",
	'blockers on the standby names its xid, of kind primary');
# A sequence's state comes to a standby ahead of what was given out, up to 32
# positions, so the estimate may be larger there.
is( sql($standby,
		"SELECT horizon, waiting BETWEEN 2 AND 2 + 32 FROM feedpub.waiting WHERE feed = 'outbox'::regclass"
	),
	"$horizon|t",
	'feedpub.waiting on the standby shows that rows wait');

# The cursor of now: the open transaction's row comes after it.
my $head = sql($standby, "SELECT * FROM feed_xid_head('outbox')");
is($head, sql($primary, "SELECT * FROM feed_xid_head('outbox')"),
	'feed_xid_head is the same on both');
is( sql($standby,
		'BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; '
		  . "SELECT after_xid < '$horizon' FROM feed_xid_head('outbox'); "
		  . "SELECT count(*) FROM feed_fetch('0', 0, 1000); COMMIT"),
	"t\n249",
	'both work in a read-only transaction');

$writer->query_safe('COMMIT');
$writer->quit;
reads_the_same(251, 'after its commit');
is( fetch_all($standby, 'outbox', after => $head, columns => 'message_key'),
	"open\nlater",
	'who started at the head is given both, in the order in which they began'
);

# A transaction whose row is in a savepoint, and a prepared one.
sql($primary, <<'SQL');
BEGIN;
SAVEPOINT a;
INSERT INTO outbox (message_type, data) VALUES ('A', '"gone"');
ROLLBACK TO a;
INSERT INTO outbox (message_type, data) VALUES ('A', '"prepared"');
PREPARE TRANSACTION 'p';
INSERT INTO outbox (message_type, data) VALUES ('A', '"after"');
SQL
reads_the_same(251, 'a prepared transaction on the primary');
is(sql($standby, 'SELECT kind, gid IS NULL FROM feedpub.blockers'),
	'primary|t', 'blockers on the standby shows it as its primary\'s');
sql($primary, "COMMIT PREPARED 'p'");
reads_the_same(253, 'after COMMIT PREPARED');

#
# A standby that lags: a cursor from the primary may lie beyond all it knows.
#
my $feed_end = fetch_all($primary, 'outbox');
my ($known) = $feed_end =~ /^(\d+\|\d+)\|[^\n]*\z/m;

sql($standby, 'SELECT pg_wal_replay_pause()');
$standby->poll_query_until('postgres',
	"SELECT pg_get_wal_replay_pause_state() = 'paused'")
  or die 'replay was not paused';
sql($primary,
	q(INSERT INTO outbox (message_type, message_key, data) VALUES ('A', 'lag', '1'))
) for 1 .. 3;
my ($future) = fetch_all($primary, 'outbox', after => $known) =~
  /^(\d+\|\d+)\|[^\n]*\z/m;
my ($xid, $pos) = split /\|/, $future;

is(fetch_all($standby, 'outbox'), $feed_end,
	'a lagging standby reads what it has');
is( sql($standby, "SELECT count(*) FROM feed_fetch('$xid', $pos, 100)"),
	0,
	'a cursor of the primary returns nothing on a standby that lags'
);
is(fetch_all($standby, $odd, after => $future),
	'', 'also of a feed named by its type');
is( sql($standby, "SELECT after_xid < '$xid' FROM feed_xid_head('outbox')"),
	't', 'the head of the lagging standby lies before it');

# The next xid, which nobody had yet: the primary knows better.
my $next = sql($primary, 'SELECT pg_snapshot_xmax(pg_current_snapshot())');
is(sql($standby, "SELECT count(*) FROM feed_fetch('$next', 0, 100)"),
	0, 'a cursor that no server has given returns nothing on a standby');
refused(
	$primary,
	"SELECT * FROM feed_fetch('$next', 0, 100)",
	'PF001',
	'cursor of feed "outbox" is from another history',
	'the primary refuses it');
refused(
	$primary,
	"SELECT * FROM feed_fetch(NULL::$odd, '$next', 0, 100)",
	'PF001',
	'is from another history',
	'the primary refuses it for a feed named by its type');

sql($primary,
	q(INSERT INTO outbox (message_type, message_key, data) VALUES ('A', 'end', '1'))
);
sql($standby, 'SELECT pg_wal_replay_resume()');
$primary->wait_for_replay_catchup($standby);
is(fetch_all($standby, 'outbox', after => $known, columns => 'message_key'),
	"lag\nlag\nlag\nend", 'the standby has caught up');
is(fetch_all($standby, 'outbox', after => $future, columns => 'message_key'),
	'end', 'and goes on from the cursor that it did not know');

#
# Promotion of a standby that has not got all: the cursor is from a history
# that it does not have.
#
$standby->stop;
sql($primary,
	q(INSERT INTO outbox (message_type, message_key, data) VALUES ('A', 'lost', '1'))
) for 1 .. 3;
($future) = fetch_all($primary, 'outbox') =~ /^(\d+\|\d+)\|[^\n]*\z/m;
($xid, $pos) = split /\|/, $future;
$primary->stop('immediate');
$standby->start;
is(sql($standby, "SELECT count(*) FROM feed_fetch('$xid', $pos, 100)"),
	0, 'before promotion the cursor returns nothing');
$standby->promote;
refused(
	$standby,
	"SELECT * FROM feed_fetch('$xid', $pos, 100)",
	'PF001',
	'cursor of feed "outbox" is from another history',
	'after promotion it is refused');

$head = sql($standby, "SELECT * FROM feed_xid_head('outbox')");
sql($standby,
	q(INSERT INTO outbox (message_type, message_key, data) VALUES ('A', 'new', '1'))
);
is(fetch_all($standby, 'outbox', after => $head, columns => 'message_key'),
	'new', 'a promoted standby takes messages and delivers them');
is(sql($standby, "SELECT count(*) FROM feed_check('outbox')"),
	0, 'and all guards stand');

$standby->stop;
done_testing();
