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

# What a page costs, another one than is waited for, of what it costs a server
# where nobody waits: the median of some rounds, and its quartiles.  The servers take turns, on one
# processor, since what else the machine does changes it more than waiters do.
my $alone = http_start($node);
system 'taskset', '-cp', 0, $_->{pid} for $http, $alone;

sub page_costs
{
	my ($server) = @_;
	my ($before) = slurp_file("/proc/$server->{pid}/schedstat") =~ /^(\d+)/;

	for (1 .. 100)
	{
		get($server, "/feeds/outbox?after=$head&limit=5")->{status} == 200 or die;
	}
	my ($after) = slurp_file("/proc/$server->{pid}/schedstat") =~ /^(\d+)/;
	return ($after - $before) / 1e8;
}

sub ratio
{
	my @ratios;

	for my $round (1 .. 41)
	{
		my %costs = map { $_ => page_costs($_ eq 'alone' ? $alone : $http) }
		  $round % 2 ? ('alone', 'beside') : ('beside', 'alone');
		push @ratios, $costs{beside} / $costs{alone};
	}
	@ratios = sort { $a <=> $b } @ratios;
	return @ratios[ 20, 10, 30 ];
}

note sprintf 'before they come, a page costs %.2f (%.2f to %.2f) of what it costs the other server', ratio();
my $pid = open2(my $out, my $in, 'python3', "$FindBin::RealBin/client/crowd.py",
	$http->{port}, 5000, 5000, "/feeds/outbox?after=$head&wait=3600");

is(scalar <$out>, "open\n", 'ten thousand clients');
metric_is($http, 'waiting', 10000, 'all wait');
my ($ratio, $low, $high) = ratio();
note sprintf 'beside them a page costs %.2f (%.2f to %.2f)', $ratio, $low, $high;
cmp_ok($ratio, '<=', 1.1, 'a page costs no more beside them');
http_stop($alone);
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
