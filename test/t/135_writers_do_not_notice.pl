# A writer neither fails nor waits because of the worker: none runs, it is
# stuck, there is no shared memory for it; and however many feeds a transaction
# writes to, all of them are published.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubPublished;
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('server', conf => <<'CONF');
max_locks_per_transaction = 64
max_prepared_transactions = 70
CONF
my @feeds = map { "feed$_" } 1 .. 60;

sql($node, <<'SQL');
CREATE ROLE regress_feedpub_writer LOGIN;
DO $$
BEGIN
	FOR i IN 1..60 LOOP
		PERFORM feed_create('feed' || i);
		EXECUTE format('GRANT INSERT ON feed%s TO regress_feedpub_writer', i);
	END LOOP;
END $$;
SQL

# the feeds have started one
$node->restart;

my $nrows = 0;

sub insert_sql
{
	my (@into) = @_;

	$nrows += @into;
	return join '',
	  map { "INSERT INTO $_ (message_type, data) VALUES ('A', '$nrows'); " } @into;
}

# As the writer, which may do nothing else; an error in it ends the test.
sub writes
{
	my ($test, $query) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($status, $out, $err) = $node->psql(
		'postgres', "SET statement_timeout = '60s'; $query",
		extra_params => [ '-U', 'regress_feedpub_writer' ]);

	is("$status $err", '0 ', $test);
	return;
}

# What a writer may do.
sub all_writes
{
	my ($how) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	writes("$how: one row", insert_sql('feed1'));
	writes("$how: ten feeds in one transaction",
		'BEGIN;' . insert_sql(@feeds[ 0 .. 9 ]) . 'COMMIT');
	writes("$how: sixty feeds in one transaction",
		'BEGIN;' . insert_sql(@feeds) . 'COMMIT');
	writes("$how: in sixty transactions", insert_sql(@feeds));
	writes("$how: prepared",
		'BEGIN;' . insert_sql(@feeds[ 0 .. 29 ])
		  . "PREPARE TRANSACTION 'p'; COMMIT PREPARED 'p'");
	writes("$how: twenty prepared transactions",
		join('', map { 'BEGIN;' . insert_sql($feeds[$_]) . "PREPARE TRANSACTION 'p$_';" } 1 .. 20)
		  . join('', map { "COMMIT PREPARED 'p$_';" } 1 .. 20));
	writes("$how: savepoints",
		'BEGIN; SAVEPOINT a;' . insert_sql('feed1') . 'ROLLBACK TO a;'
		  . insert_sql('feed2') . 'SAVEPOINT b;' . insert_sql('feed3')
		  . 'RELEASE b; COMMIT');
	$nrows--;    # of the savepoint
	writes("$how: COPY", <<"SQL");
COPY feed1 (message_type, data) FROM STDIN;
A	1
A	2
\\.
SQL
	$nrows += 2;
	return;
}

sub count_rows
{
	return sql($node, 'SELECT ' . join ' + ', map { "(SELECT count(*) FROM $_)" } @feeds);
}

sub all_are_published
{
	my ($test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	ok(await_all_published($node, @feeds), "$test: all feeds are published");
	is(count_rows(), $nrows, "$test: all rows are there");
	return;
}

#
# No worker has ever been there
#
all_writes('no worker');
is(workers($node), '', 'none was started by that');
sql($node, 'SELECT feed_start_worker()');
my $worker = await_worker($node);
all_are_published('started afterwards');

all_writes('a worker');
all_are_published('a worker');

#
# It is stuck, or stopped
#
my $holder = hold_publisher($node);
writes('a row for it to be stuck with', insert_sql('feed1'));
$node->poll_query_until('postgres',
	"SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $worker"
) or die 'the worker does not write';
all_writes('a worker that is stuck');
$holder->quit;
all_are_published('a worker that was stuck');

kill 'STOP', $worker;
all_writes('a worker that is frozen');
kill 'CONT', $worker;
all_are_published('a worker that was frozen');
is(await_worker($node), $worker, 'the same worker all the time');

sql($node, 'SELECT feed_stop_worker()');
await_no_worker($node);
all_writes('a worker that was stopped');
sql($node, 'SELECT feed_start_worker()');
all_are_published('a worker that was stopped');

#
# A transaction that fails leaves nothing in its session.
#
my $session = $node->background_psql('postgres', on_error_stop => 0);
$session->query($_)
  for 'BEGIN; ' . insert_sql(@feeds), 'SELECT 1 / 0', 'ROLLBACK',
  insert_sql('feed7');
$nrows -= @feeds;
all_are_published('after a rollback');
$session->quit;

#
# A single user has no worker, nor shared memory to reach one by.
#
sub single_user
{
	my ($db, $input) = @_;
	my ($out, $err) = ('', '');

	IPC::Run::run(
		[
			$node->config_data('--bindir') . '/postgres', '--single', '-D',
			$node->data_dir, $db
		],
		'<', \$input, '>', \$out, '2>', \$err);
	return ($out, $err);
}

sql($node, 'CREATE DATABASE single');
$node->stop;
my ($out, $err) = single_user('postgres',
	insert_sql('feed1', 'feed2') =~ s/; /\n/gr
	  . "SELECT count(*) AS read FROM feed_read(NULL::feed1, '', 1)\n");
unlike($err, qr/ERROR|FATAL|PANIC/, 'a single user writes');
like($out, qr/read = "1"/, 'and reads what was published');
($out, $err) = single_user('single', <<'SQL');
CREATE EXTENSION feedpub
SELECT feed_create('outbox')
INSERT INTO outbox (message_type, data) VALUES ('A', '1')
SELECT count(*) FILTER (WHERE op <> 'end') AS unpublished FROM feed_read(NULL::outbox, '', 10)
CALL feed_publish()
SELECT count(*) FILTER (WHERE op <> 'end') AS published FROM feed_read(NULL::outbox, '', 10)
SELECT feed_wait('outbox', feed_head('outbox'), '1 ms') AS more
SQL
unlike($err, qr/ERROR|FATAL|PANIC/, 'a single user makes a feed, and publishes');
like($out, qr/unpublished = "0".*published = "1".*more = "f"/s, 'by hand');
$node->start;
is(count_rows(), $nrows, 'its rows are there');

#
# Shared memory has no room left: others took it, for locks.
#
my $taker = $node->background_psql('postgres', on_error_stop => 0);
for (1 .. 3)
{
	$taker->query(
		'SELECT count(pg_advisory_lock(i)) FROM generate_series(1, 1000000) i');
}
$taker->query('SELECT pg_advisory_unlock_all()');
all_writes('no shared memory');
sql($node, 'CALL feed_publish()');
all_are_published('no shared memory, by hand');
is( sql($node, "SELECT count(*) > 5 FROM feed_read(NULL::feed1, '', 1000)"),
	't',
	'no shared memory: what is published can be read');
refused(
	$node,
	"SET statement_timeout = '100ms'; "
	  . insert_sql('feed1')
	  . 'SELECT pg_sleep(20)',
	'57014',
	'statement timeout',
	'no shared memory: a writer\'s session can still be cancelled');

# Readers and consumers too: what needs shared memory says so, all else goes on.
my $quiet = 'SET client_min_messages = error; ';
is(sql($node, $quiet . 'SELECT feed_start_worker(), feed_stop_worker()'),
	'f|f', 'no shared memory: no worker to start or to stop');
is(sql($node, 'SELECT count(*) FROM feedpub.workers'),
	0, 'no shared memory: none is listed');
is(sql($node, "SELECT worker FROM feedpub.feeds WHERE feed = 'feed1'::regclass"),
	'refused', 'no shared memory: the view says so');
refused($node, q(SELECT feed_listen('feed1')),
	'53400', 'cannot be announced', 'no shared memory: feed_listen()');
refused($node, q(SELECT feed_flush('feed1', '1 min')),
	'55000', 'no worker', 'no shared memory: feed_flush()');
sql($node, 'CALL feed_publish()');
my $head = sql($node, q(SELECT feed_head('feed1')));
my $waiting = background($node, "CALL feed_await('feed1', '$head', '1 h')");
$waiting->await_wait or die 'feed_await does not wait';
writes('no shared memory: a row that is waited for', insert_sql('feed1'));
sql($node, q(CALL feed_publish('feed1')));
is($waiting->finish, 't', 'no shared memory: a session that waits finds the batch');
$taker->quit;

unlike($node->log_content, qr/PANIC|was terminated by signal/,
	'nothing has crashed');
$node->stop;
done_testing();
