# What is announced: feed_listen() is called again as long as anybody waits, also
# if event streams that overlap keep one job waiting.  The program is built so
# that it calls again after 200 ms, not five minutes.

use strict;
use warnings FATAL => 'all';

use File::Copy;
use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubHttp;
use FeedpubTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $tree = "$FindBin::RealBin/../..";
my $build = PostgreSQL::Test::Utils::tempdir();
mkdir "$build/http" or die $!;
copy($_, "$build/http/") for glob "$tree/http/*.[ch] $tree/http/Makefile $tree/http/*.in";
copy("$tree/feedpub.control", $build);
system_or_bail('make', '-s', '-C', "$build/http", 'CPPFLAGS=-DLISTENED=200', 'feedpub-http');

my $node = feedpub_node('server', conf => <<'CONF');
shared_preload_libraries = 'feedpub'
log_statement = all
CONF
sql($node, q(SELECT feed_create('outbox'), feed_start_worker()));
my $http = http_start($node, program => "$build/http/feedpub-http", heartbeat => 2);
my $head = get($http, '/feeds/outbox')->{cursor};

sub calls
{
	my $log = slurp_file($node->logfile);

	return scalar(() = $log =~ /'SELECT \S+feed_listen\(/g);
}

# Heartbeats come every two seconds, from the second on in which a stream begins
# to wait: one stream gets its own while the other one waits.
my @streams;
for my $odd (0, 1)
{
	select undef, undef, undef, 0.01 while time % 2 != $odd;
	push @streams, send_request($http, "/feeds/outbox?after=$head", Accept => 'text/event-stream');
	metric_is($http, 'waiting', scalar @streams, @streams . ' wait');
}
my $calls = calls();

cmp_ok($calls, '>', 0, 'feed_listen() was called');
for (1 .. 1000)
{
	last if calls() > $calls;
	select undef, undef, undef, 0.02;
}
cmp_ok(calls(), '>', $calls, 'and is called again');

sql($node, q(INSERT INTO outbox (message_type, data) VALUES ('A', '1')));
is(scalar(grep { read_until($_, qr/^data: /m) =~ /^data: /m } @streams),
	scalar @streams, 'all get the news');
http_stop($http);
$node->stop;
done_testing();
