# Without shared_preload_libraries: a session that makes a feed, reads or waits in
# published order starts the worker of its database.  It may be killed, stopped by hand, and
# there may be no slot for it.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubPublished;
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# A machine under load may need longer than the default of 100 ms to start a
# worker.
my $patient = "SET feedpub.read_wait = '60s'; ";
my $insert = q(INSERT INTO outbox (message_type, message_key, data) VALUES ('A', '%s', '1'); );
my $read = q(SELECT op, (entry).message_key FROM feed_read(NULL::outbox, '%s', 100));
my $cursor = '';

my $node = feedpub_node('server');
sql($node, <<'SQL');
CREATE ROLE regress_feedpub_reader LOGIN;
CREATE ROLE regress_feedpub_stranger LOGIN;
SELECT feed_create('outbox');
GRANT SELECT ON outbox TO regress_feedpub_reader;
SQL

# Writes a row and reads on, in one session.  Returns the page.
sub write_and_read
{
	my ($key) = @_;
	my $rows = sql($node, $patient . sprintf($insert . $read, $key, $cursor));

	$cursor = sql($node, q(SELECT feed_head('outbox')));
	return $rows;
}

is(sql($node, 'SHOW shared_preload_libraries'), '', 'nothing is preloaded');
is_soon($node, q(EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'feedpub worker')),
	'a feed that is made orders a worker');
await_worker($node);
pass('a feed that is made has a worker, though nobody reads');
sql($node, q(SELECT feed_drop('outbox')));
ok(await_no_worker($node), 'which leaves with it');
sql($node, q(BEGIN; CREATE TABLE kv (k int PRIMARY KEY); SELECT feed_attach('kv'); ROLLBACK));
sql($node, q(CREATE TABLE kv (k int PRIMARY KEY); BEGIN; SELECT feed_attach('kv'); COMMIT));
await_worker($node);
pass('so has a table that becomes one');
sql($node, q(DROP TABLE kv; SELECT feed_create('outbox'); GRANT SELECT ON outbox TO regress_feedpub_reader));
$node->restart;
# more that were rolled back than a reader looks at: they hide nothing
sql($node, <<'SQL');
DO $$
BEGIN
	FOR i IN 1..150 LOOP
		INSERT INTO outbox (message_type, data) VALUES ('A', '1');
		ROLLBACK;
	END LOOP;
END $$;
SQL
sql($node, sprintf $insert, 'zero');
is(workers($node), '', 'a writer starts no worker');
is( write_and_read('one'),
	"upsert|zero\nupsert|one",
	'a session that writes and reads at once sees its row');
my $first = await_worker($node);
is_soon($node, <<"SQL",
(SELECT (backend_type, application_name, wait_event_type) = ('feedpub worker', 'feedpub worker', 'Extension')
	AND backend_xid IS NULL AND backend_xmin IS NULL AND xact_start IS NULL
FROM pg_stat_activity WHERE pid = $first)
SQL
	'pg_stat_activity shows the worker, which has no transaction while it waits');
is(write_and_read('two'), 'upsert|two', 'again, with a worker that runs');
is(await_worker($node), $first, 'the same one');
my $holder = hold_publisher($node);
sql($node, sprintf $insert, 'held');
ok( $node->poll_query_until('postgres',
		"SELECT state, query, wait_event_type FROM pg_stat_activity WHERE pid = $first",
		'active|publishing|Lock'),
	'pg_stat_activity shows what it does, and what it waits for');
$holder->quit;
ok(await_published($node, 'outbox'), 'it goes on');
is(read_all($node, 'outbox', after => \$cursor), 'held', 'which it has published');

#
# Killed
#
kill_worker($node);
is(workers($node), '', 'a worker that was killed is not there');
is(write_and_read('three'), 'upsert|three', 'the next reader starts another');
my $second = await_worker($node);
isnt($second, $first, 'a new process');

kill_worker($node);
sql($node, sprintf $insert, 'four');
is(workers($node), '', 'a writer starts none');
is( sql($node, "SELECT feed_wait('outbox', '$cursor', '60s')"),
	't', 'who waits starts another');
is(read_all($node, 'outbox', after => \$cursor),
	'four', 'which has published');

# as a query is cancelled; whether it goes on or dies is its own affair
sql($node, 'SELECT pg_cancel_backend(' . await_worker($node) . ')');
sql($node, sprintf $insert, 'five');
is( sql($node, "CALL feed_await('outbox', '$cursor', '60s')"),
	't', 'a worker that is cancelled goes on, or another one comes');
is(read_all($node, 'outbox', after => \$cursor),
	'five', 'and has published');

#
# By hand
#
await_worker($node);
is(sql($node, 'SELECT feed_stop_worker()'), 't', 'stopping the worker');
ok(await_no_worker($node), 'it leaves');
is(sql($node, 'SELECT feed_stop_worker()'), 'f', 'then there is none to stop');
is( sql($node,
		"SET feedpub.read_wait = '200ms'; "
		  . sprintf($insert . $read, 'six', $cursor)),
	'',
	'a reader starts none and finds an empty page');
is(sql($node, "SELECT feed_wait('outbox', '$cursor', '200ms')"),
	'f', 'nor does who waits');
is(workers($node), '', 'it stays away');
sql($node, 'CALL feed_publish()');
is(read_all($node, 'outbox', after => \$cursor),
	'six', 'a step by hand publishes all the same');

sql($node, sprintf $insert, 'seven');
refused($node, 'SELECT feed_start_worker()', '42501', 'permission denied',
	'who may read no feed may not start it',
	user => 'regress_feedpub_stranger');
is( sql($node, 'SELECT feed_start_worker()', user => 'regress_feedpub_reader'),
	't',
	'who may read a feed may start it');
my $before = await_worker($node);
ok(await_published($node, 'outbox'), 'it publishes what there is unasked');
is(sql($node, 'SELECT feed_start_worker()'), 't', 'starting it once more');
is(await_worker($node), $before, 'changes nothing');
refused($node, 'SELECT feed_stop_worker()', '42501', 'permission denied',
	'only superusers may stop it',
	user => 'regress_feedpub_reader');
is(read_all($node, 'outbox', after => \$cursor), 'seven', 'all is read');

# A reader that finds something starts it as well, after a crash with a backlog.
# If there is no room for a worker, it is seen at once which reader asks for one.
my $asked = q(SELECT worker FROM feedpub.feeds WHERE feed = 'outbox'::regclass);
$node->append_conf('postgresql.conf', 'feedpub.max_workers = 0');
$node->stop('immediate');
$node->start;
is(sql($node, q(SET feedpub.read_wait = 0; SELECT op FROM feed_read(NULL::outbox, '', 1))),
	'upsert', 'without room for a worker: a reader finds something');
is(sql($node, $asked), 'none', 'one that does not want to wait asks for no worker');
is(sql($node, q(SELECT op FROM feed_read(NULL::outbox, '', 1))), 'upsert', 'so does any other');
is(sql($node, $asked), 'refused', 'which asks for a worker');

$node->append_conf('postgresql.conf', 'feedpub.max_workers = 8');
$node->stop('immediate');
$node->start;
sql($node, sprintf $insert, 'backlog');
is(workers($node), '', 'after a crash there is no worker');
is(sql($node, q(SET feedpub.read_wait = 0; SELECT op FROM feed_read(NULL::outbox, '', 1))),
	'upsert', 'a reader finds something');
is(workers($node), '', 'one that does not want to wait starts none');
is(sql($node, q(SELECT op FROM feed_read(NULL::outbox, '', 1))), 'upsert', 'any other does');
ok(await_published($node, 'outbox'), 'and has the backlog published');
is(read_all($node, 'outbox', after => \$cursor), 'backlog', 'it is read');

# Stopped before there was any: nobody has started one lately, and nobody does.
$node->restart;
is(sql($node, 'SELECT feed_stop_worker()'), 'f', 'stopped, after a restart');
sql($node, sprintf $insert, 'stopped');
is(sql($node, "SELECT feed_wait('outbox', '$cursor', '500 ms')"),
	'f', 'who waits starts none');
is(workers($node), '', 'it stays away');
sql($node, 'CALL feed_publish()');
is(read_all($node, 'outbox', after => \$cursor), 'stopped', 'a step by hand publishes');

#
# No slot
#
sub warned
{
	my ($query, $setting, $rows, $test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($status, $out, $err) = $node->psql('postgres', $query);

	is($status, 0, "$test: no error");
	is($out, $rows, "$test: what is returned");
	like($err,
		qr/WARNING:  (could not start a feedpub worker|feed "outbox" is not being published: this database has no worker)\n.*DETAIL:.*\nHINT:  You might need to increase .*"$setting"/s,
		"$test: a warning with a hint");
	return;
}

$node->append_conf('postgresql.conf', 'feedpub.max_workers = 0');
$node->restart;
warned(
	"SET feedpub.read_wait = '200ms'; "
	  . sprintf($insert . $read, 'eight', $cursor),
	'feedpub.max_workers', '', 'feedpub.max_workers reached, reading');
warned('SELECT feed_start_worker()',
	'feedpub.max_workers', 'f', 'feedpub.max_workers reached, starting');

# The server's own launcher for logical replication takes the one slot.
$node->append_conf('postgresql.conf',
	"feedpub.max_workers = 8\nmax_worker_processes = 1");
$node->restart;
warned(
	"SET feedpub.read_wait = '200ms'; "
	  . sprintf($insert . $read, 'nine', $cursor),
	'max_worker_processes', '', 'no slot, reading');
warned("SELECT feed_start_worker()",
	'max_worker_processes', 'f', 'no slot, starting');
sql($node, 'CALL feed_publish()');
is(read_all($node, 'outbox', after => \$cursor),
	"eight\nnine", 'a step by hand publishes all the same');

$node->append_conf('postgresql.conf', 'max_worker_processes = 8');
$node->restart;
is(write_and_read('ten'), 'upsert|ten', 'with a slot: as before');

#
# The last feed goes
#
await_worker($node);
sql($node, q(SELECT feed_create('other')));
sql($node, q(SELECT feed_drop('outbox')));
sql($node, q(INSERT INTO other (message_type, data) VALUES ('A', '1')));
ok(await_published($node, 'other'), 'one feed is dropped: the other goes on');
sql($node, q(SELECT feed_drop('other')));
ok(await_no_worker($node), 'feed_drop of the last feed: the worker leaves');

for my $last ('DROP TABLE outbox', 'DROP EXTENSION feedpub CASCADE')
{
	sql($node, q(SELECT feed_create('outbox')));
	is( sql($node, $patient . sprintf($insert . $read, 'again', '')),
		'upsert|again', 'a feed is made, and read');
	await_worker($node);
	sql($node, $last);
	ok(await_no_worker($node), "$last: the worker leaves");
}

unlike($node->log_content, qr/(ERROR|FATAL|PANIC).*\n.*CONTEXT:  publishing/,
	'no worker has met an error');
$node->stop;
done_testing();
