# Logical replication into an outbox.  A publication that leaves the stamp's
# columns out brings rows, which the subscriber stamps as its own; so does one
# that does not.  A replicated UPDATE is refused.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $publisher = feedpub_node('publisher', allows_streaming => 'logical');
# log_error_verbosity shows SQLSTATEs in the log
my $subscriber = feedpub_node(
	'subscriber',
	allows_streaming => 'logical',
	conf => 'log_error_verbosity = verbose');
my $connection = $publisher->connstr . ' dbname=postgres';
my $columns =
  'publication_id, message_id, message_type, message_key, data, scheduled';

# The stamps of the two differ: the publisher has used more of both.
burn_xids($publisher, 1000);
sql($publisher, <<'SQL');
SELECT feed_create('outbox'), feed_create('synced'), feed_create('applied');
BEGIN;
INSERT INTO outbox (message_type, data) SELECT 'A', '0' FROM generate_series(1, 100);
ROLLBACK;
SQL
sql($subscriber,
	q(SELECT feed_create('outbox'), feed_create('synced'), feed_create('applied'))
);

sub publish
{
	my ($feed, $type) = @_;

	sql($publisher,
		"INSERT INTO $feed (message_type, data) VALUES ('$type', '1')");
	return;
}

# Do both have the same messages?  Their order is compared apart from it.
sub same_messages
{
	my ($feed, $test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $messages =
	  "SELECT $columns FROM feed_fetch(NULL::$feed, '0', 0, 1000) ORDER BY message_id";

	is(sql($subscriber, $messages), sql($publisher, $messages), $test);
	return;
}

#
# Without the stamp's columns
#
publish('outbox', "before $_") for 1 .. 3;
sql($publisher,
	"CREATE PUBLICATION messages FOR TABLE outbox ($columns) WITH (publish = 'insert')"
);
sql($subscriber,
	"CREATE SUBSCRIPTION messages CONNECTION '$connection' PUBLICATION messages"
);
$subscriber->wait_for_subscription_sync($publisher, 'messages');
is(sql($subscriber, 'SELECT count(*) FROM outbox'),
	3, 'initial synchronisation brings the rows');
same_messages('outbox', 'which can be fetched');
is( sql($subscriber, <<'SQL'),
SELECT count(DISTINCT feed_xid), min(feed_pos), max(feed_pos) FROM outbox
SQL
	'1|1|3',
	'stamped by the one transaction that copied them');

my $head = sql($subscriber, q(SELECT * FROM feed_xid_head('outbox')));
publish('outbox', "streamed $_") for 1 .. 3;
sql($publisher, <<'SQL');
BEGIN;
INSERT INTO outbox (message_type, data) VALUES ('both 1', '1');
SAVEPOINT a;
INSERT INTO outbox (message_type, data) VALUES ('gone', '1');
ROLLBACK TO a;
INSERT INTO outbox (message_type, data) VALUES ('both 2', '1');
COMMIT;
BEGIN;
INSERT INTO outbox (message_type, data) VALUES ('gone', '1');
ROLLBACK;
SQL
$publisher->wait_for_catchup('messages');
is( fetch_all(
		$subscriber, 'outbox',
		after => $head,
		columns => 'message_type'),
	join("\n", 'streamed 1', 'streamed 2', 'streamed 3', 'both 1', 'both 2'),
	'streamed rows come after them, in the order of their commits');
same_messages('outbox', 'and can be fetched');
is( sql($subscriber, <<'SQL'),
SELECT count(DISTINCT feed_xid),
	max(feed_xid) < pg_snapshot_xmax(pg_current_snapshot()),
	count(DISTINCT feed_pos), min(feed_pos), max(feed_pos)
FROM outbox
SQL
	'5|t|8|1|8',
	'stamped by the transactions that applied them');

# The subscriber's own writers
sql($subscriber,
	q(INSERT INTO outbox (message_type, data) VALUES ('own', '1')));
publish('outbox', 'last');
$publisher->wait_for_catchup('messages');
is( join(' ',
		map { /^(\w+)/ } split /\n/,
		fetch_all($subscriber, 'outbox', columns => 'message_type')),
	'before before before streamed streamed streamed both both own last',
	'rows of its own stand among them');
is(sql($subscriber, q(SELECT * FROM feed_check('outbox'))),
	'', 'all guards stand');

#
# With the stamp's columns
#
publish('synced', 'A');
for my $table ('synced', 'applied')
{
	sql($publisher, "CREATE PUBLICATION $table FOR TABLE $table");
	sql($subscriber,
		"CREATE SUBSCRIPTION $table CONNECTION '$connection' PUBLICATION $table");
	$subscriber->wait_for_subscription_sync($publisher, $table);
	publish($table, 'B');
	$publisher->wait_for_catchup($table);
	same_messages($table, "a publication with the stamp: $table");
	is( sql($subscriber, <<"SQL"),
SELECT max(feed_xid) < pg_snapshot_xmax(pg_current_snapshot()),
	count(DISTINCT feed_pos) = count(*), min(feed_pos), max(feed_pos) = count(*)
FROM $table
SQL
		't|t|1|t',
		'its rows have stamps of the subscriber');
	sql($subscriber, "DROP SUBSCRIPTION $table");
	sql($publisher, "DROP PUBLICATION $table");
}

#
# What fails: disable_on_error ends what would be tried again and again.
#
sub subscription_fails
{
	my ($name, $table, $options, $pattern, $test, $provoke) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $offset = -s $subscriber->logfile;

	sql($publisher, "CREATE PUBLICATION $name FOR TABLE $table");
	sql($subscriber,
		"CREATE SUBSCRIPTION $name CONNECTION '$connection' PUBLICATION $name"
		  . " WITH (disable_on_error = true$options)");
	$provoke->() if $provoke;
	$subscriber->poll_query_until('postgres',
		"SELECT NOT subenabled FROM pg_subscription WHERE subname = '$name'")
	  or die "subscription $name was not disabled";
	like(slurp_file($subscriber->logfile, $offset), $pattern, $test);
	sql($subscriber, <<"SQL");
ALTER SUBSCRIPTION $name SET (slot_name = NONE);
DROP SUBSCRIPTION $name;
SQL
	$publisher->poll_query_until('postgres',
		"SELECT count(*) = 0 FROM pg_replication_slots WHERE slot_name LIKE '$name%' AND active"
	) or die "slot of $name stays in use";
	sql($publisher, <<"SQL");
SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
WHERE slot_name LIKE '$name%';
DROP PUBLICATION $name;
SQL
	return;
}

#
# A replicated UPDATE.  A subscriber can apply one only where it finds the row
# by columns that the publication has.
#
sql($_, <<'SQL') for $publisher, $subscriber;
CREATE UNIQUE INDEX applied_message_id ON applied (message_id);
ALTER TABLE applied ALTER COLUMN message_id SET NOT NULL, REPLICA IDENTITY USING INDEX applied_message_id;
SQL
sql($publisher, <<'SQL');
DROP TABLE applied;
CREATE TABLE applied (message_id text PRIMARY KEY, message_type text, data jsonb);
SQL
for my $update (
	q(UPDATE applied SET data = '2' WHERE message_id = 'm1'),
	q(BEGIN;
INSERT INTO applied VALUES ('m2', 'A', '1');
UPDATE applied SET data = '2' WHERE message_id = 'm2';
COMMIT))
{
	sql($publisher, q(DELETE FROM applied));
	sql($subscriber, q(DELETE FROM applied));
	subscription_fails(
		'updates',
		'applied',
		', copy_data = false',
		qr/ERROR:  PF004: cannot update feed "applied"/,
		'a replicated UPDATE is refused: '
		  . ($update =~ /BEGIN/ ? 'of a row of its transaction' : 'of a row that was there'),
		sub {
			sql($publisher, q(INSERT INTO applied VALUES ('m1', 'A', '1')));
			$publisher->wait_for_catchup('updates');
			sql($publisher, $update);
		});
	is( fetch_all(
			$subscriber, 'applied', columns => 'message_id, data'),
		'm1|1',
		'and the message stays as it was');
}

sql($subscriber, 'DROP SUBSCRIPTION messages');
$_->stop for $subscriber, $publisher;
done_testing();
