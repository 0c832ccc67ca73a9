# A feed that cannot be published, because a session has its table locked, its
# index is gone or its rows are from elsewhere, is tried again until it can;
# the others do not notice.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubPublished;
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('server');
my $good = 0;

sql($node, <<'SQL');
SELECT feed_create('good'), feed_create('locked'), feed_create('queued'),
	feed_create('broken'), feed_create('alien'), feed_create('dropped');
SQL

sub insert
{
	my ($feed, $key) = @_;

	sql($node,
		"INSERT INTO $feed (message_type, message_key, data) VALUES ('A', '$key', '1')"
	);
	return;
}

# Rows of the good feed come through, one after the other.
sub good_goes_on
{
	my ($test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	for (1 .. 3)
	{
		insert('good', ++$good);
		ok(await_published($node, 'good'), "$test: the good feed goes on")
		  or return;
	}
	return;
}

insert('good', ++$good);
is(read_all($node, 'good', wait => '60s'), 1, 'the worker publishes');
my $worker = await_worker($node);

#
# All of them have a row that is not published when they go bad.
#
my $holder = hold_publisher($node);
insert('good', ++$good);
$node->poll_query_until('postgres',
	"SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $worker"
) or die 'the worker does not write';
insert($_, 'one') for qw(locked queued broken alien dropped);

my $locker = $node->background_psql('postgres');
$locker->query_safe('BEGIN; LOCK TABLE locked IN ACCESS EXCLUSIVE MODE');

# "queued" is only read, but a session waits to lock it.
my $reader = $node->background_psql('postgres');
$reader->query_safe('BEGIN; SELECT count(*) FROM queued');
my $waiter = background($node, 'BEGIN; LOCK TABLE queued IN ACCESS EXCLUSIVE MODE; COMMIT');
$node->poll_query_until('postgres',
	"SELECT count(*) = 1 FROM pg_locks WHERE relation = 'queued'::regclass AND NOT granted"
) or die 'nobody waits';

sql($node, <<'SQL');
ALTER TABLE broken DROP CONSTRAINT broken_pkey;
ALTER TABLE alien DISABLE TRIGGER zz_feedpub_stamp;
INSERT INTO alien (feed_xid, feed_pos, message_type, message_key, data)
	OVERRIDING SYSTEM VALUE VALUES ('1000000000', 1000, 'A', 'alien', '1');
ALTER TABLE alien ENABLE ALWAYS TRIGGER zz_feedpub_stamp;
DROP TABLE dropped;
SQL
my $offset = -s $node->logfile;
$holder->quit;

ok(await_published($node, 'good'), 'the good feed is published');
good_goes_on('five bad feeds');
$node->wait_for_log(qr/ERROR: .*broken.*\n(.*\n)*?.*CONTEXT:  publishing feed/,
	$offset);
pass('the feed without an index is reported');
$node->wait_for_log(
	qr/ERROR:  feed "alien" holds rows from another history\n(.*\n)*?.*CONTEXT:  publishing feed/,
	$offset);
pass('the feed with rows of another history is reported');
good_goes_on('reported');

# A bad feed is not tried whenever a good one is: sixty times that one, while
# the bad ones double their time from 100 ms.
$offset = -s $node->logfile;
sql($node, <<'SQL');
DO $$
DECLARE
	xid xid8;
BEGIN
	FOR i IN 1..60 LOOP
		INSERT INTO good (message_type, message_key, data) VALUES ('A', 'again', '1') RETURNING feed_xid INTO xid;
		COMMIT;
		WHILE NOT pg_visible_in_snapshot(xid, (SELECT snapshot FROM feedpub._batch WHERE feed = 'good'::regclass ORDER BY sync_id DESC LIMIT 1)) LOOP
		END LOOP;
	END LOOP;
	DELETE FROM good WHERE message_key = 'again';
END $$;
SQL
my $failures = () = slurp_file($node->logfile, $offset) =~ /CONTEXT:  publishing feed/g;
cmp_ok($failures, '<', 40, 'bad feeds are tried less and less often');
is( sql($node, "SELECT count(*) FROM feedpub._batch WHERE feed <> 'good'::regclass"),
	0, 'none of the bad feeds is published');

#
# They recover by themselves: nothing is written to them, and no session reads.
#
$locker->quit;
ok(await_published($node, 'locked'), 'the lock is gone: published');
$reader->quit;
$waiter->finish;
ok(await_published($node, 'queued'), 'the queue is gone: published');
sql($node, q(SELECT feed_repair('broken')));
ok(await_published($node, 'broken'), 'repaired: published');
sql($node, q(DELETE FROM alien WHERE message_key = 'alien'));
ok(await_published($node, 'alien'), 'rid of the alien row: published');
is(read_all($node, $_), 'one', "$_ has its row")
  for qw(locked queued broken alien);
good_goes_on('recovered');
is( sql($node, "SELECT count(*) FROM feedpub._feed WHERE feed::oid NOT IN (SELECT oid FROM pg_class)"),
	0, 'the dropped feed is forgotten');
is(read_all($node, 'good'), join("\n", 1 .. $good), 'all rows of the good feed');
is(await_worker($node), $worker, 'all by the same worker');

#
# A lock on our own table holds up all of them, but breaks nothing.
#
$locker = $node->background_psql('postgres');
$locker->query_safe('BEGIN; LOCK TABLE feedpub._batch IN ACCESS EXCLUSIVE MODE');
insert($_, 'two') for qw(good locked);
$node->poll_query_until('postgres',
	"SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $worker"
) or die 'the worker does not read';
$locker->quit;
ok(await_published($node, $_), "$_ is published after it") for qw(good locked);

#
# Defaults of the database that would break the worker's steps.  Our own
# sessions take them back.
#
kill_worker($node);
sql($node, <<'SQL');
ALTER DATABASE postgres SET default_transaction_isolation = 'serializable';
ALTER DATABASE postgres SET default_transaction_read_only = on;
ALTER DATABASE postgres SET default_transaction_deferrable = on;
ALTER DATABASE postgres SET synchronous_commit = off;
ALTER DATABASE postgres SET statement_timeout = '1ms';
ALTER DATABASE postgres SET lock_timeout = '1ms';
ALTER DATABASE postgres SET idle_session_timeout = '1ms';
ALTER DATABASE postgres SET idle_in_transaction_session_timeout = '1ms';
ALTER DATABASE postgres SET search_path = 'nowhere';
ALTER DATABASE postgres SET row_security = off;
ALTER DATABASE postgres SET session_replication_role = replica;
ALTER DATABASE postgres SET enable_indexscan = off;
SQL
{
	local $ENV{PGOPTIONS} = join ' ', map { "-c $_" } (
		'default_transaction_isolation=read\ committed',
		'default_transaction_read_only=off',
		'default_transaction_deferrable=off',
		'statement_timeout=0',
		'lock_timeout=0',
		'idle_session_timeout=0',
		'idle_in_transaction_session_timeout=0',
		'search_path=public',
		'session_replication_role=origin');

	my $cursor = sql($node, q(SELECT feed_head('good')));
	insert('good', 'defaults');
	is(read_all($node, 'good', after => \$cursor, wait => '60s'),
		'defaults', 'published whatever the defaults of the database');
	sql($node, 'DROP TABLE locked');
	ok( $node->poll_query_until('postgres',
			"SELECT count(*) = 0 FROM feedpub._feed WHERE feed::oid NOT IN (SELECT oid FROM pg_class)"
		),
		'and a dropped feed is forgotten');
	$offset = -s $node->logfile;
	$worker = await_worker($node);
	$holder = hold_publisher($node);
	insert('good', 'the end');
	$node->poll_query_until('postgres',
		"SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $worker"
	) or die 'the worker does not write';
	$holder->quit;
	ok(await_published($node, 'good'), 'and the worker goes on');
	is(await_worker($node), $worker, 'it is the same');
	unlike(slurp_file($node->logfile, $offset), qr/CONTEXT:  publishing/,
		'and no time was over for it');
	sql($node, 'ALTER DATABASE postgres RESET ALL');
}

unlike($node->log_content, qr/PANIC|server process .* was terminated/,
	'nothing has crashed');
$node->stop;
done_testing();
