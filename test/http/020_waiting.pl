# Long-polls: they end when something is published, and hold nothing meanwhile.

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
SQL
my $http = http_start($node, pool => 3, drain => 30, lock_timeout => 100);
my $head = get($http, '/feeds/outbox')->{cursor};
my $insert = "INSERT INTO %s (message_type, data) VALUES ('A', '1')";

my $empty = get($http, "/feeds/outbox?after=$head&wait=1");
is($empty->{status}, 200, 'at the end of the wait');
is_deeply($empty->{json}{entries}, [], 'there are no entries');

my @waiting = map { send_request($http, "/feeds/outbox?after=$head&wait=60") } 1 .. 20;
metric_is($http, 'waiting', 20, 'twenty wait');
is(sql($node, <<'SQL'), '0', 'without a transaction');
SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'
	AND pid <> pg_backend_pid() AND (backend_xmin IS NOT NULL OR state <> 'idle')
SQL
sql($node, sprintf $insert, 'other');
sql($node, "SELECT feed_flush('other')");
my $made = metric($http, 'jobs_total');
sql($node, sprintf $insert, 'outbox');
my @answers = map { read_until($_, qr/"more": /) } @waiting;
is(scalar(grep { /^HTTP\/1.1 200 .*"op": "upsert"/s } @answers),
	20, 'and all get what was published');
cmp_ok(metric($http, 'jobs_total') - $made, '<=', 2, 'which is read for all of them at once');
is(metric($http, 'waiting'), 0, 'none waits any more');

# a client that goes away
my $before = $head;
$head = get($http, "/feeds/outbox?after=$head")->{cursor};
@waiting = map { send_request($http, "/feeds/outbox?after=$head&wait=60", @$_) }
  [], [], [ Accept => 'text/event-stream' ], [ Accept => 'text/event-stream' ];
metric_is($http, 'waiting', 4, 'two long-polls and two streams');
close $_ for @waiting[ 1, 3 ];
metric_is($http, 'waiting', 2, 'a client that goes away is forgotten at once');
shutdown $_, 1 for @waiting[ 0, 2 ];
metric_is($http, 'waiting', 0, 'one that closes its side does not wait either');
like(read_until($waiting[0], qr/"more": /), qr/"entries": \[\]/, 'it gets an empty page');
metric_is($http, 'connections', 0, 'their connections are closed');

# a stream has read what is before, and waits, while a long-poll reads what it
# waits for
my $locker = $node->background_psql('postgres');
$locker->query_safe('BEGIN; LOCK outbox');
my $poll = send_request($http, "/feeds/outbox?after=$head&wait=60");
my $reader = q(FROM pg_stat_activity WHERE query LIKE '%feedpub._request%' AND pid <> pg_backend_pid() AND wait_event_type = 'Lock');
$node->poll_query_until('postgres', "SELECT count(*) = 1 $reader");
my $pid = sql($node, "SELECT pid $reader");
kill 'STOP', $pid;
$locker->quit;
my $stream = send_request($http, "/feeds/outbox?after=$before", Accept => 'text/event-stream');
metric_is($http, 'waiting', 1, 'a stream waits while a long-poll reads');
kill 'CONT', $pid;
metric_is($http, 'waiting', 2, 'the long-poll waits with it');
shutdown $poll, 1;
like(read_until($poll, qr/"more": /), qr/"entries": \[\]/, 'and ends with an empty page');
close $stream;
metric_is($http, 'connections', 0, 'all ends');

# news that is heard while a long-poll reads, with a snapshot from before
my $other = send_request($http, "/feeds/outbox?after=$head&limit=3&wait=60");
metric_is($http, 'waiting', 1, 'one waits');
$locker = $node->background_psql('postgres');
$locker->query_safe('BEGIN; LOCK outbox');
$poll = send_request($http, "/feeds/outbox?after=$head&wait=60");
$node->poll_query_until('postgres', "SELECT count(*) = 1 $reader");
$pid = sql($node, "SELECT pid $reader");
kill 'STOP', $pid;
$locker->query_safe(sprintf "$insert; COMMIT", 'outbox');
like(read_until($other, qr/"more": /), qr/"op": "upsert"/, 'it is woken by news');
kill 'CONT', $pid;
like(read_until($poll, qr/"more": /), qr/"op": "upsert"/, 'after which the other one reads again');
$locker->quit;

# the database restarts while they wait
$head = get($http, "/feeds/outbox?after=$head")->{cursor};
@waiting = map { send_request($http, "/feeds/outbox?after=$head&wait=60") } 1 .. 5;
metric_is($http, 'waiting', 5, 'five wait');
$node->stop('immediate');
$node->start;
sql($node, sprintf $insert, 'outbox');
@answers = map { read_until($_, qr/"more": /) } @waiting;
is(scalar(grep { /^HTTP\/1.1 200 .*"op": "upsert"/s } @answers),
	5, 'over a restart of the database');

# SIGTERM answers those that wait
$head = get($http, "/feeds/outbox?after=$head")->{cursor};
@waiting = (send_request($http, "/feeds/outbox?after=$head&wait=60"));
metric_is($http, 'waiting', 1, 'one waits');
my $began = time;
is(http_stop($http), 0, 'the server ends');
cmp_ok(time - $began, '<', 30, 'before it has to');
note('took ' . (time - $began));
like(read_until($waiting[0], qr/"more": /),
	qr/^HTTP\/1.1 200 .*"entries": \[\]/s, 'after it has answered');

# ... and waits for nobody who goes then, while a page is read, nor until it looks
# after its connections, each ten seconds; a machine may be late once
my @took;
for (1 .. 5)
{
	$http = http_start($node, drain => 60, pool => 1);
	$locker = $node->background_psql('postgres');
	$locker->query_safe('BEGIN; LOCK outbox');
	$stream = send_request($http, '/feeds/outbox', Accept => 'text/event-stream');
	is_soon($node, q(EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock')), 'an event stream is read');
	kill 'STOP', $http->{pid};
	close $stream;
	kill $_, $http->{pid} for 'TERM', 'CONT';
	my $tries = 20 * $PostgreSQL::Test::Utils::timeout_default;
	select undef, undef, undef, 0.05
	  while slurp_file($http->{log}) !~ /message="ending"/ && $tries-- > 0;
	$began = time;
	$locker->quit;
	is(http_stop($http), 0, 'if its client goes too, the server ends');
	push @took, time - $began;
}
cmp_ok(scalar(grep { $_ >= 8 } @took), '<=', 1, 'at once');
note("@took s");

done_testing();
