# examples/node: a consumer in node, waiting in the server and listening.  Its
# effects, which are in the transaction of the acknowledgement, happen once,
# through kills, a restart and a crash of the server; another process takes over
# from one that was killed; it stops when it is told to, and by itself where
# nothing but a human can help.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use File::Copy qw(copy);
use FeedpubExample;
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# pg is there already, or npm gets it from wherever it is set up to; it does not
# try for long where that is nowhere.
my $dir = PostgreSQL::Test::Utils::tempdir();
copy(example("node/$_"), "$dir/$_") or die "copy: $!"
  for qw(package.json consumer.js main.js);

plan skip_all => 'node is not there, or older than 18'
  if !run_quietly('node', '-e', 'process.exit(parseInt(process.versions.node) < 18 ? 1 : 0)');
if (!run_quietly('node', '-e', "require(require.resolve('pg', { paths: ['$dir'] }))"))
{
	plan skip_all => 'npm is not there' if !run_quietly('npm', '--version');
	plan skip_all => 'npm cannot install pg here'
	  if !run_quietly(
		'npm', 'install', '--prefix', $dir, '--no-package-lock',
		'--no-audit', '--no-fund', '--ignore-scripts',
		'--fetch-retries=1', '--fetch-timeout=20000');
}

my $node = feedpub_node('server', conf => <<'CONF');
shared_preload_libraries = 'feedpub'
log_statement = none
CONF
sql($node, <<'SQL');
SELECT feed_create('outbox');
SELECT feed_set_channel('outbox', 'Odd "channel"');
CREATE SEQUENCE number;
CREATE TABLE shipment (order_id bigint, planned_at timestamptz DEFAULT now());
SQL
my $order = <<'SQL';
INSERT INTO outbox (message_type, data)
  SELECT 'OrderPlaced', jsonb_build_object('order', nextval('number'));
SQL
my $script = <<"SQL";
\\set fate random(1, 10)
BEGIN;
$order
\\if :fate = 1
ROLLBACK;
\\else
COMMIT;
\\endif
SQL

sub consumer
{
	my (@arguments) = @_;

	return run_program($node, { dir => $dir, env => { RETRY_AFTER => '100 ms' } },
		'node', 'main.js', @arguments);
}

sub wait_for_shipments
{
	my ($n) = @_;

	wait_until("$n orders are handled",
		sub { sql($node, 'SELECT count(*) FROM shipment') >= $n });
	return;
}

sub orders { return sql($node, 'SELECT count(*) FROM outbox') }

# What is missing, what is there twice, what was rolled back
sub is_exact
{
	my ($test) = @_;

	is(sql($node, <<'SQL'), '', $test);
SELECT order_id, n, d FROM (
	SELECT order_id, count(*) AS n FROM shipment GROUP BY order_id) s
  FULL JOIN (SELECT (data ->> 'order')::bigint AS order_id, true AS d FROM outbox) o
  USING (order_id) WHERE n IS DISTINCT FROM 1 OR d IS NULL
SQL
	return;
}

sub begin
{
	my ($subscription, @options) = @_;

	sql($node, join(';', 'TRUNCATE shipment', 'DELETE FROM outbox',
		"SELECT feed_subscribe('$subscription', 'outbox', 'latest'@options)"));
	return;
}

# Writers at work while the server goes away properly, and after a crash.
sub disturb
{
	my $writers = run_writers($node, $script, transactions => 100);

	$node->restart;
	ended($writers);
	my $before = orders();
	$node->stop('immediate');
	$node->start;
	finish(run_writers($node, $script, transactions => 50));
	cmp_ok(orders(), '>', $before, 'more has been written after a crash');
	wait_for_shipments(orders());
	return;
}

#
# Waiting in the server; two processes, of which one works
#
begin('waiting', q(, lease => '2 s'));
my $writers = run_writers($node, $script, transactions => 150);
my $first = consumer('waiting', 'first one');
wait_for_shipments(50);
kill 'KILL', $first->{pid};
is(ended($first), 'signal 9', 'waiting: killed');
my $second = consumer('waiting', 'second one');
wait_for_shipments(150);    # of which the second has some
$first = consumer('waiting', 'first one');
finish($writers);
disturb();

# A consumer that stops leaves its lease to the other.
kill 'TERM', $second->{pid};
is(ended($second), 0, 'waiting: stopped by SIGTERM');
sql($node, $order);
wait_for_shipments(orders());
kill 'INT', $first->{pid};
is(ended($first), 0, 'waiting: stopped by SIGINT');
is(sql($node, 'SELECT leased FROM feedpub.subscriptions'), 0, 'no lease is left');
is_exact('waiting: every order once');
sql($node, q(SELECT feed_unsubscribe('waiting')));

#
# Listening
#
begin('listening');
$writers = run_writers($node, $script, transactions => 150);
my $consumer = consumer('listening', '', 'Odd "channel"');
wait_for_shipments(50);
kill 'KILL', $consumer->{pid};
is(ended($consumer), 'signal 9', 'listening: killed');
$consumer = consumer('listening', '', 'Odd "channel"');
finish($writers);
disturb();
wait_until('it listens again',
	sub { sql($node, q(SELECT count(*) FROM pg_stat_activity WHERE application_name = 'listening' AND wait_event = 'ClientRead')) });
sql($node, $order);
wait_for_shipments(orders());
kill 'TERM', $consumer->{pid};
is(ended($consumer), 0, 'listening: stopped by SIGTERM');
is_exact('listening: every order once');
sql($node, q(SELECT feed_unsubscribe('listening')));

#
# A handler that fails for a while: the others go on, and the one comes again.
#
my $bad = sql($node, 'SELECT last_value + 1 FROM number');
sql($node, <<"SQL");
ALTER TABLE shipment ADD CONSTRAINT closed CHECK (order_id <> $bad) NOT VALID;
SELECT feed_subscribe('alone', 'outbox', 'latest');
SQL
sql($node, $order) for 1 .. 3;
$consumer = consumer('alone');
wait_until('the others are handled',
	sub { sql($node, "SELECT count(*) FROM shipment WHERE order_id > $bad") == 2 });
wait_until('the handler has failed twice',
	sub { (() = output($consumer) =~ /violates check constraint/g) >= 2 });
sql($node, 'ALTER TABLE shipment DROP CONSTRAINT closed');
wait_for_shipments(orders());
kill 'TERM', $consumer->{pid};
is(ended($consumer), 0, 'stopped by SIGTERM');
is_exact('every order once');
is(sql($node, 'SELECT count(*) FROM feedpub.parked'), 0, 'and none is parked any more');

#
# Given up: it stays, with what it is and why.
#
$bad = sql($node, 'SELECT last_value + 1 FROM number');
sql($node, <<"SQL");
ALTER TABLE shipment ADD CONSTRAINT closed CHECK (order_id <> $bad) NOT VALID;
SELECT feed_subscribe('twice', 'outbox', 'latest', max_attempts => 2);
SQL
sql($node, $order);
$consumer = consumer('twice');
wait_until('it is given up',
	sub { sql($node, q(SELECT state FROM feedpub.parked)) eq 'parked' });
kill 'TERM', $consumer->{pid};
is(ended($consumer), 0, 'stopped by SIGTERM');
is(sql($node, q(SELECT attempts, message -> 'data' ->> 'order', reason ~ 'closed' FROM feedpub.parked)),
	"2|$bad|t", 'after two attempts');
sql($node, 'ALTER TABLE shipment DROP CONSTRAINT closed');
sql($node, q(SELECT feed_retry('twice')));
$consumer = consumer('twice');
wait_for_shipments(orders());
kill 'TERM', $consumer->{pid};
is(ended($consumer), 0, 'stopped by SIGTERM');
is_exact('asked for again, it is handled');
sql($node, q(SELECT feed_seek('alone', 'latest'), feed_unsubscribe('twice')));

#
# Killed between the effects and the acknowledgement: neither has happened.
#
sql($node, <<'SQL');
BEGIN;
SELECT FROM feedpub._shard FOR UPDATE;
PREPARE TRANSACTION 'held';
SQL
$consumer = consumer('alone');
my $before = orders();
sql($node, $order);
wait_until('the acknowledgement waits',
	sub {
		sql($node, q(SELECT count(*) FROM pg_stat_activity WHERE application_name = 'alone' AND wait_event_type = 'Lock')) > 0;
	});
is(sql($node, 'SELECT count(*) FROM shipment'), $before, 'no effect without the acknowledgement');
kill 'KILL', $consumer->{pid};
ended($consumer);
sql($node, q(COMMIT PREPARED 'held'));
$consumer = consumer('alone');
wait_for_shipments(orders());
kill 'TERM', $consumer->{pid};
is(ended($consumer), 0, 'stopped by SIGTERM');
is_exact('every order once');

# What only a human can mend
sql($node, q(UPDATE feedpub._shard SET cursor = overlay(cursor placing '012345' from 26 for 6)));
$consumer = consumer('alone');
is(ended($consumer), 1, 'a foreign cursor: it ends');
like(output($consumer), qr/PF001 .*feed_seek/s, 'and says what to do');
$consumer = consumer('nobody');
is(ended($consumer), 1, 'no subscription: it ends');
like(output($consumer), qr/42704 /, 'and says why');

$node->stop;
done_testing();
