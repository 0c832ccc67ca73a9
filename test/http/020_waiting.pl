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
my $http = http_start($node, pool => 2);
my $head = get($http, '/feeds/outbox')->{cursor};
my $insert = "INSERT INTO %s (message_type, data) VALUES ('A', '1')";

# Waits until so many requests have begun to wait.
sub await_waiting
{
	my ($n) = @_;

	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		my $waits = () = slurp_file($http->{log}) =~ /waits for feed/g;

		return 1 if $waits >= $n;
		select undef, undef, undef, 0.1;
	}
	return 0;
}

my $empty = get($http, "/feeds/outbox?after=$head&wait=1");
is($empty->{status}, 200, 'at the end of the wait');
is_deeply($empty->{json}{entries}, [], 'there are no entries');

http_stop($http);
$http = http_start($node, pool => 2, log_level => 'debug');
my @waiting = map { send_request($http, "/feeds/outbox?after=$head&wait=60") } 1 .. 20;
ok(await_waiting(20), 'twenty wait');
is(sql($node, <<'SQL'), '0', 'without a transaction');
SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'
	AND pid <> pg_backend_pid() AND (backend_xmin IS NOT NULL OR state <> 'idle')
SQL
sql($node, sprintf $insert, 'other');
sql($node, sprintf $insert, 'outbox');
my @answers = map { read_until($_, qr/"more": /) } @waiting;
is(scalar(grep { /^HTTP\/1.1 200 .*"op": "upsert"/s } @answers),
	20, 'and all get what was published');

# the database restarts while they wait
$head = get($http, "/feeds/outbox?after=$head")->{cursor};
@waiting = map { send_request($http, "/feeds/outbox?after=$head&wait=60") } 1 .. 5;
ok(await_waiting(25), 'five wait');
$node->restart('immediate');
sql($node, sprintf $insert, 'outbox');
@answers = map { read_until($_, qr/"more": /) } @waiting;
is(scalar(grep { /^HTTP\/1.1 200 .*"op": "upsert"/s } @answers),
	5, 'over a restart of the database');

# SIGTERM answers those that wait
$head = get($http, "/feeds/outbox?after=$head")->{cursor};
@waiting = (send_request($http, "/feeds/outbox?after=$head&wait=60"));
ok(await_waiting(26), 'one waits');
is(http_stop($http), 0, 'the server ends');
like(read_until($waiting[0], qr/"more": /),
	qr/^HTTP\/1.1 200 .*"entries": \[\]/s, 'after it has answered');

done_testing();
