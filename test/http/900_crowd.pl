# Ten thousand clients that wait: what they cost, and that one read wakes them.
# Runs only if FEEDPUB_HTTP_LONG is set.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubHttp;
use FeedpubTest;
use IPC::Open2;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'FEEDPUB_HTTP_LONG is not set' unless $ENV{FEEDPUB_HTTP_LONG};

my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'");

sql($node, "SELECT feed_create('outbox'), feed_start_worker()");
my $http = http_start($node, max_wait => 3600, max_connections => 11000);
my $head = get($http, '/feeds/outbox')->{cursor};

# s of a processor, and KB of memory
sub used
{
	my @stat = split / /, slurp_file("/proc/$http->{pid}/stat");
	my ($memory) = slurp_file("/proc/$http->{pid}/status") =~ /^VmRSS:\s*(\d+)/m;

	return (($stat[13] + $stat[14]) / 100, $memory);
}

# ms of a processor that a page costs, another one than is waited for; the least
# of some rounds
sub page_costs
{
	my $least;

	for (1 .. 5)
	{
		my ($before) = slurp_file("/proc/$http->{pid}/schedstat") =~ /^(\d+)/;
		for (1 .. 1000)
		{
			get($http, "/feeds/outbox?after=$head&limit=5")->{status} == 200 or die;
		}
		my ($after) = slurp_file("/proc/$http->{pid}/schedstat") =~ /^(\d+)/;
		my $costs = ($after - $before) / 1e9;
		$least = $costs if !defined $least || $costs < $least;
	}
	return $least;
}

my $alone = page_costs();
my $pid = open2(my $out, my $in, 'python3', "$FindBin::RealBin/client/crowd.py",
	$http->{port}, 5000, 5000, "/feeds/outbox?after=$head&wait=3600");

is(scalar <$out>, "open\n", 'ten thousand clients');
metric_is($http, 'waiting', 10000, 'all wait');
my $beside = page_costs();
note sprintf 'a page costs %.3f ms of a processor alone, %.3f ms beside them', $alone, $beside;
cmp_ok($beside / $alone, '<=', 1.5, 'a page costs little more beside them');
my ($busy) = used();
sleep 30;
my ($later, $memory) = used();
note sprintf 'idle: %.2f %% of a processor', 100 * ($later - $busy) / 30;
note sprintf 'memory: %.0f MB', $memory / 1024;
cmp_ok($memory, '<', 150 * 1024, 'in less than 150 MB');
is(sql($node, <<'SQL'), '0|5', 'no snapshot is held, by five connections');
SELECT count(backend_xmin), count(*) FROM pg_stat_activity
WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
SQL

my $made = metric($http, 'jobs_total');
print $in "go\n";
$in->flush;
sql($node, "INSERT INTO outbox (message_type, data) VALUES ('A', '1')");
my ($woken, $ms) = <$out> =~ /^(\d+) (\d+)$/;
is($woken, 10000, 'one commit wakes all');
note "within $ms ms";
cmp_ok(metric($http, 'jobs_total') - $made, '<=', 3, 'by one read');
metric_is($http, 'waiting', 5000, 'the streams wait again');
note sprintf 'memory: %.0f MB', (used())[1] / 1024;

print $in "end\n";
$in->flush;
waitpid $pid, 0;
metric_is($http, 'connections', 0, 'they go');
is(http_stop($http), 0, 'the server ends');

done_testing();
