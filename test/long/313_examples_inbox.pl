# examples/inbox: a consumer whose effects are in another server's database.
# Each message takes effect once, through kills, crashes of either server, two
# processes at once, messages sent twice, and when all of the feed is read again.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubExample;
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $python = python_with('psycopg');
plan skip_all => 'python3 with psycopg (3) is not there' if !$python;

# An encoding of which psycopg makes bytes, unless the client asks for another.
my $shop = feedpub_node('shop', extra => [ '--no-locale', '--encoding=SQL_ASCII' ], conf => <<'CONF');
shared_preload_libraries = 'feedpub'
log_statement = none
CONF
my $bank = feedpub_node('bank', extension => 0, conf => 'log_statement = none');
sql($shop, <<'SQL');
SELECT feed_create('outbox');
CREATE ROLE regress_feedpub_bank LOGIN;
GRANT SELECT ON outbox TO regress_feedpub_bank;
SQL
sql($bank, slurp_file(example('inbox/inbox.sql')));

# Now and then one message twice under the same id, as by a producer that has
# lost the answer.
my $script = <<'SQL';
\set fate random(1, 10)
\set owner random(1, 10)
\set amount random(-100, 100)
BEGIN;
\if :fate = 2
INSERT INTO outbox (message_type, message_key, message_id, data)
  SELECT 'PaidIn', :owner, md5(random()::text), jsonb_build_object('amount', :amount);
INSERT INTO outbox (message_type, message_key, message_id, data)
  SELECT message_type, message_key, message_id, data FROM outbox ORDER BY feed_xid DESC, feed_pos DESC LIMIT 1;
\else
INSERT INTO outbox (message_type, message_key, data)
  SELECT 'PaidIn', :owner, jsonb_build_object('amount', :amount);
\endif
\if :fate = 1
ROLLBACK;
\else
COMMIT;
\endif
SQL

sub consumer
{
	return run_program($shop, $python, example('inbox/inbox.py'),
		$shop->connstr('postgres') . ' user=regress_feedpub_bank', 'outbox',
		$bank->connstr('postgres'));
}

sub ids { return sql($shop, 'SELECT count(DISTINCT message_id) FROM outbox') }
sub received { return sql($bank, 'SELECT count(*) FROM inbox') }

sub wait_for_messages
{
	my ($n) = @_;

	wait_until("$n messages are received", sub { received() >= $n });
	return;
}

sub is_booked
{
	my ($test) = @_;

	is( sql($bank, 'SELECT owner, balance FROM account ORDER BY owner'),
		sql($shop, <<'SQL'), $test);
SELECT message_key, sum((data ->> 'amount')::bigint)
  FROM (SELECT DISTINCT message_id, message_key, data FROM outbox) o
  GROUP BY message_key ORDER BY message_key
SQL
	return;
}

# Killed, and each server in turn
my $writers = run_writers($shop, $script, transactions => 200);
my $consumer = consumer();
for my $n (100, 200, 300)
{
	wait_for_messages($n);
	kill 'KILL', $consumer->{pid};
	is(ended($consumer), 'signal 9', "killed after $n messages");
	$consumer = consumer();
}
finish($writers);
$writers = run_writers($shop, $script, transactions => 100);
$bank->stop('immediate');
$bank->start;
wait_for_messages(received() + 1) if received() < ids();
finish($writers);
$shop->stop('immediate');
$shop->start;
finish(run_writers($shop, $script, transactions => 50));
wait_for_messages(ids());
is_booked('every payment is booked once');
cmp_ok(sql($shop, 'SELECT count(*) FROM outbox'), '>', ids(), 'although some were sent twice');

# Two at once
my $other = consumer();
finish(run_writers($shop, $script, transactions => 100));
wait_for_messages(ids());
for my $program ($consumer, $other)
{
	kill 'TERM', $program->{pid};
	is(ended($program), 0, 'stopped by SIGTERM');
}
is_booked('two at once');

# Killed in the middle: neither effect nor cursor
sql($bank, <<'SQL');
BEGIN;
LOCK TABLE account IN EXCLUSIVE MODE;
PREPARE TRANSACTION 'held';
SQL
my $cursor = sql($bank, 'SELECT cursor FROM inbox_cursor');
my $received = received();
$consumer = consumer();
sql($shop, q(INSERT INTO outbox (message_type, message_key, data) VALUES ('PaidIn', '1', '{"amount": 1}')));
wait_until('a booking waits',
	sub { sql($bank, q(SELECT count(*) FROM pg_locks WHERE relation = 'account'::regclass AND NOT granted)) > 0 });
is(sql($bank, 'SELECT cursor FROM inbox_cursor'), $cursor, 'the cursor waits for the booking');
is(received(), $received, 'and so does the inbox');
kill 'KILL', $consumer->{pid};
ended($consumer);
sql($bank, q(COMMIT PREPARED 'held'));
$consumer = consumer();
wait_for_messages(ids());
kill 'TERM', $consumer->{pid};
is(ended($consumer), 0, 'stopped by SIGTERM');
is_booked('killed in the middle of a booking');

# All of it again
is(sql($bank, q(UPDATE inbox_cursor SET cursor = overlay(cursor placing '012345' from 26 for 6) RETURNING feed)), 'outbox', 'a foreign cursor');
$consumer = consumer();
is(ended($consumer), 1, 'it ends');
like(output($consumer), qr/from another history.*UPDATE inbox_cursor SET cursor = ''/s, 'and says what to do');
sql($bank, q(UPDATE inbox_cursor SET cursor = ''));
$consumer = consumer();
my $head = sql($shop, q(SELECT feed_head('outbox')));
wait_until('it has read all again',
	sub { sql($bank, 'SELECT cursor FROM inbox_cursor') eq $head });
kill 'TERM', $consumer->{pid};
is(ended($consumer), 0, 'stopped by SIGTERM');
is_booked('and booked nothing again');

$_->stop for $shop, $bank;
done_testing();
