# examples/emmett: emmett's projectors and reactors on a feed.  Each handles
# every message once, through kills, crashes and two processes at once; a message
# that is committed late is handled late; a handler that fails stops nobody else;
# "caught up" is said when it is so.
#
# emmett comes from npm.  Runs only if FEEDPUB_CLIENTS is set.

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

plan skip_all => 'FEEDPUB_CLIENTS is not set' unless $ENV{FEEDPUB_CLIENTS};
plan skip_all => 'node is not there, or older than 20'
  if !run_quietly('node', '-e', 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)');
plan skip_all => 'npm is not there' if !run_quietly('npm', '--version');

my $dir = PostgreSQL::Test::Utils::tempdir();
copy(example("emmett/$_"), "$dir/$_") or die "copy: $!"
  for qw(package.json consumer.js main.js);
plan skip_all => 'npm cannot install emmett here'
  if !run_quietly(
	'npm', 'install', '--prefix', $dir, '--no-package-lock',
	'--no-audit', '--no-fund', '--ignore-scripts',
	'--fetch-retries=1', '--fetch-timeout=20000');

my $node = feedpub_node('server', conf => <<'CONF');
shared_preload_libraries = 'feedpub'
log_statement = none
CONF
sql($node, <<'SQL');
SELECT feed_create('outbox');
CREATE SEQUENCE number;
CREATE TABLE feed_processor (processor_id text, partition text, cursor text, PRIMARY KEY (processor_id, partition));
CREATE TABLE orders (order_id bigint, state text);
CREATE TABLE mail (order_id bigint, sent_at timestamptz DEFAULT now());
SQL
my $order = <<'SQL';
INSERT INTO outbox (message_type, message_key, data)
  SELECT 'OrderPlaced', 'customer', jsonb_build_object('order', nextval('number'));
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
\\if :fate = 2
INSERT INTO outbox (message_type, data) VALUES ('OrderRead', '{}');
\\endif
SQL

sub consumer { return run_program($node, { dir => $dir }, 'node', 'main.js', 'outbox', @_) }

sub placed { return sql($node, q(SELECT count(*) FROM outbox WHERE message_type = 'OrderPlaced')) }

sub wait_for
{
	my ($table, $n) = @_;

	wait_until("$n are in $table", sub { sql($node, "SELECT count(*) FROM $table") >= $n });
	return;
}

# What is missing, what is there twice, what was rolled back
sub is_exact
{
	my ($test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	wait_for($_, placed()) for qw(orders mail);
	is(sql($node, <<"SQL"), '', "$test: $_") for qw(orders mail);
SELECT order_id, n, d FROM (SELECT order_id, count(*) AS n FROM $_ GROUP BY order_id) s
  FULL JOIN (SELECT (data ->> 'order')::bigint AS order_id, true AS d FROM outbox WHERE message_type = 'OrderPlaced') o
  USING (order_id) WHERE n IS DISTINCT FROM 1 OR d IS NULL
SQL
	return;
}

sub stop
{
	my ($program, $signal) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	kill $signal // 'TERM', $program->{pid};
	is(ended($program), 0, 'stopped');
	return;
}

#
# Killed, restarted, two at once; the server goes away properly, and crashes
#
my $writers = run_writers($node, $script, transactions => 150);
my $first = consumer();
wait_for('orders', 50);
kill 'KILL', $first->{pid};
is(ended($first), 'signal 9', 'killed');
$first = consumer();
my $second = consumer();
wait_for('mail', 100);
kill 'KILL', $second->{pid};
is(ended($second), 'signal 9', 'the second killed');
$second = consumer();
finish($writers);
is_exact('kills and restarts');
$writers = run_writers($node, $script, transactions => 100);
$node->restart;
ended($writers);
$node->stop('immediate');
$node->start;
my $before = placed();
finish(run_writers($node, $script, transactions => 50));
cmp_ok(placed(), '>', $before, 'more has been written after a crash');
is_exact('a restart and a crash of the server');
wait_until('a consumer has caught up', sub { output($second) =~ /^caught up$/m });
stop($second, 'INT');
stop($first);

#
# Until it has caught up: then it ends.  A late commit is handled late.
#
sql($node, "BEGIN; $order PREPARE TRANSACTION 'late'");
sql($node, $order) for 1 .. 3;
my $now = placed();
my $once = consumer('until-caught-up');
is(ended($once), 0, 'it ends when it has caught up');
is(sql($node, "SELECT count(*) FROM $_"), $now, "all that was committed is in $_") for qw(orders mail);
sql($node, "COMMIT PREPARED 'late'");
is(ended(consumer('until-caught-up')), 0, 'a restart');
is(placed(), $now + 1, 'one was committed late');
is_exact('a late commit');

#
# What a processor does not handle is passed, and its checkpoint moves.
#
sql($node, q(INSERT INTO outbox (message_type, data) VALUES ('OrderRead', '{}')));
is(ended(consumer('until-caught-up')), 0, 'it ends');
is(sql($node, q(SELECT count(*) FROM feed_processor, feed_read(NULL::outbox, cursor) WHERE op = 'upsert')), 0,
	'nothing is after the checkpoints');

#
# A handler that fails: its page comes again, and the other goes on.
#
my $bad = sql($node, 'SELECT last_value + 2 FROM number');
sql($node, "ALTER TABLE mail ADD CONSTRAINT closed CHECK (order_id <> $bad) NOT VALID");
my $mails = sql($node, 'SELECT count(*) FROM mail');
sql($node, "BEGIN; $order $order $order COMMIT");
$first = consumer();
wait_for('orders', placed());
wait_until('the handler has failed twice', sub { (() = output($first) =~ /violates check constraint/g) >= 2 });
is(sql($node, 'SELECT count(*) FROM mail'), $mails, 'nothing of its page has happened');
sql($node, 'ALTER TABLE mail DROP CONSTRAINT closed');
is_exact('a handler that failed');
stop($first);

#
# Positions, and stopping, as emmett has them
#
append_to_file("$dir/positions.js", <<'JS');
import { feedConsumer } from './consumer.js';
const seen = (tag) => async ({ data, metadata }) => console.log(tag, data.order, metadata.streamName, metadata.trace);
const consumer = feedConsumer({ feed: 'outbox', batchSize: 2 });
consumer.reactor({ processorId: 'end', startFrom: 'END', eachMessage: seen('end'), stopAfter: () => true });
let n = 0;
consumer.reactor({ processorId: 'two', eachMessage: seen('two'), stopAfter: () => ++n === 3 });
await consumer.start();
console.log('ended');
JS
$first = run_program($node, { dir => $dir }, 'node', 'positions.js');
wait_until('three are handled', sub { (() = output($first) =~ /^two /mg) == 3 });
wait_until('the other has begun',
	sub { sql($node, q(SELECT count(*) FROM feed_processor WHERE processor_id = 'end')) == 1 });
sql($node, q(INSERT INTO outbox (message_type, message_key, data, headers) VALUES ('OrderRead', 'a', '{"order": 0}', '{"trace": "t"}')));
is(ended($first), 0, 'it ends when all processors have stopped');
my @two = split /\n/, sql($node, q(SELECT format('two %s %s undefined', coalesce((entry).data ->> 'order', 'undefined'), coalesce((entry).message_key, 'null'))
	FROM feed_read(NULL::outbox, max_rows => 3)));
is_deeply([ sort grep { /^two/ } split /\n/, output($first) ], [ sort @two ], 'three from the beginning');
like(output($first), qr/^end 0 a t$/m, 'and the first after the end');
is((() = output($first) =~ /^end /mg), 1, 'only that');
is(sql($node, q(SELECT (feed_page('outbox', cursor, 1) -> 'entries' -> 0 ->> 'cursor')
	= (feed_page('outbox', '', 4) -> 'entries' -> 3 ->> 'cursor') FROM feed_processor WHERE processor_id = 'two')), 't',
	'the checkpoint is that of the last message');

#
# Where only a human can help
#
sql($node, 'UPDATE feed_processor SET cursor = overlay(cursor placing $$012345$$ from 26 for 6)');
$first = consumer();
is(ended($first), 1, 'a foreign cursor: it ends');
like(output($first), qr/^PF001 /m, 'and says why');
sql($node, 'DROP TABLE feed_processor');
$first = consumer();
is(ended($first), 1, 'no table: it ends');
like(output($first), qr/^42P01 /m, 'and says why');

$node->stop;
done_testing();
