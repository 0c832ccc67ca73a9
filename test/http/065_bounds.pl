# What one feed, its owner and its clients can take of the database: a share of
# the pool, for a time.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubHttp;
use FeedpubTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'");

sql($node, <<'SQL');
SELECT feed_create('outbox'), feed_create('other'), feed_start_worker();
SELECT feed_create(repeat('x', 63));
SELECT feed_subscribe('subscription' || i, 'outbox') FROM generate_series(1, 4) i;
INSERT INTO other (message_type, data) VALUES ('A', '1');
SELECT feed_flush('other');
SQL

# the statements of requests
my $active = "query LIKE 'SELECT feedpub.\\_request(%' AND state = 'active'";
my $locked = "$active AND wait_event_type = 'Lock'";

sub lock_outbox
{
	sql($node, "BEGIN; LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE; PREPARE TRANSACTION 'lock'");
	return;
}

sub unlock_outbox { sql($node, "ROLLBACK PREPARED 'lock'"); return }

# The other feed is served while so many reads wait for the lock.
sub is_served
{
	my ($http, $reads, $test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is(get($http, '/feeds/other?begin=1')->{status}, 200, $test);
	is(sql($node, "SELECT count(*) FROM pg_stat_activity WHERE $locked"), $reads, 'meanwhile');
	return;
}

# A locked table, and equal reads of clients that go
my $http = http_start($node, pool => 3, lock_timeout => 600, statement_timeout => 600);
my ($after) = sql($node, "SELECT feed_floor('outbox')");
lock_outbox();
my @clients = send_request($http, "/feeds/outbox?after=$after");
is_soon($node, "(SELECT count(*) = 1 FROM pg_stat_activity WHERE $locked)", 'a read runs');
push @clients, map { send_request($http, "/feeds/outbox?after=$after") } 2 .. 6;
metric_is($http, 'jobs_joined_total', 4, 'five equal ones are one more');
is_served($http, 1, 'another feed is served');
@clients = ();
is_soon($node, "(SELECT count(*) = 0 FROM pg_stat_activity WHERE $locked)",
	'when nobody waits any more, the read is ended');

# other reads of it, also by other names
@clients = map { send_request($http, "/feeds/$_") }
  map { ("outbox?limit=$_", "public.outbox?limit=$_", "%22outbox%22?limit=$_", "OUTBOX?limit=$_") } 1 .. 2;
is_soon($node, "(SELECT count(*) = 2 FROM pg_stat_activity WHERE $locked)", 'eight reads have two of three connections');
is_served($http, 2, 'another feed is served');
unlock_outbox();
like(read_until($_, qr/\r\n\r\n/), qr/^HTTP\/1\.1 307 /, 'and they are, when the lock is gone') for @clients;

# its subscriptions, which have names of their own
lock_outbox();
@clients = map { send_request($http, "/subscriptions/subscription$_/poll", method => 'POST') } 1 .. 4;
is_soon($node, "(SELECT count(*) = 2 FROM pg_stat_activity WHERE $locked)", 'polls of four subscriptions have two connections too');
is_served($http, 2, 'another feed is served');
unlock_outbox();
like(read_until($_, qr/\r\n\r\n/), qr/^HTTP\/1\.1 200 /, 'and they are, when the lock is gone') for @clients;

# names that SQL cuts
sql($node, "BEGIN; LOCK TABLE @{['x' x 63]} IN ACCESS EXCLUSIVE MODE; PREPARE TRANSACTION 'lock'");
@clients = map { send_request($http, '/feeds/' . 'x' x 63 . "$_?after=$after") } 1 .. 4;
is_soon($node, "(SELECT count(*) = 2 FROM pg_stat_activity WHERE $locked)", 'a feed with names that are too long has two connections');
is_served($http, 2, 'another feed is served');
unlock_outbox();
@clients = ();
http_stop($http);

# a lock is not waited for longer than a request may
$http = http_start($node, pool => 2, lock_timeout => 1);
lock_outbox();
my $refused = get($http, "/feeds/outbox?after=$after");
is("$refused->{status} $refused->{json}{sqlstate}", '503 55P03', 'a lock that is not to be had in time');
unlock_outbox();
is(get($http, "/feeds/outbox?after=$after")->{status}, 200, 'and when it is');
http_stop($http);

# a policy that catches what would end it
sql($node, <<'SQL');
CREATE FUNCTION loops() RETURNS bool LANGUAGE plpgsql AS $$
BEGIN
	RAISE LOG 'it loops';
	LOOP
		BEGIN
			PERFORM pg_sleep(100);
		EXCEPTION WHEN query_canceled THEN
			NULL;
		END;
	END LOOP;
END $$;
CREATE ROLE regress_feedpub_reader;
GRANT SELECT ON outbox TO regress_feedpub_reader;
ALTER TABLE outbox ENABLE ROW LEVEL SECURITY;
CREATE POLICY loops ON outbox USING (loops());
INSERT INTO outbox (message_type, data) VALUES ('A', '1');
SELECT feed_flush('outbox');
SQL
$http = http_start($node, pool => 2, statement_timeout => 1, anonymous_role => 'regress_feedpub_reader');
my $offset = -s $node->logfile;
my $client = send_request($http, "/feeds/outbox?after=$after");
$node->wait_for_log(qr/it loops/, $offset);
like(read_until($client, qr/\r\n\r\n/), qr/^HTTP\/1\.1 503 /, 'its client is told');
is_soon($node, "(SELECT count(*) = 0 FROM pg_stat_activity WHERE $active)",
	'and its process is ended');
my $log = slurp_file($node->logfile, $offset);
is(scalar(() = $log =~ /it loops/g), 1, 'it was run once');
like($log, qr/terminating connection due to administrator command/, 'by the server');
http_stop($http);

done_testing();
