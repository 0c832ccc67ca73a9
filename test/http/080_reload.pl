# SIGHUP: the settings are read again, also while requests wait and run, and
# those before are freed.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubHttp;
use FeedpubTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'");
my $directory = PostgreSQL::Test::Utils::tempdir();
my $file = "$directory/feedpub-http.conf";

sql($node, <<'SQL');
CREATE ROLE regress_feedpub_login LOGIN;
SELECT feed_create('outbox'), feed_start_worker();
INSERT INTO outbox (message_type, data) SELECT 'A', '1' FROM generate_series(1, 100);
SELECT feed_flush('outbox');
GRANT SELECT ON outbox TO regress_feedpub_login;
SQL
append_to_file("$directory/key", 'a secret of thirty-two bytes or more');
append_to_file($file, <<"CONF");
anonymous-role = regress_feedpub_login
jwt-key = $directory/key
cors-origins = https://a.example
CONF
my $http = http_start($node, user => 'regress_feedpub_login', file => $file, max_wait => 3600);
open my $log, '<', $http->{log} or die "could not open: $!";

# Reads the settings again, so many times.
sub reload
{
	my ($count, $outcome) = @_;

	for (1 .. $count)
	{
		my $tries = 1000 * $PostgreSQL::Test::Utils::timeout_default;
		my $line = '';

		kill 'HUP', $http->{pid};
		while ($line !~ /message="settings (not )?reloaded"/)
		{
			die 'SIGHUP was not taken' if $tries-- == 0;
			$line = <$log> // '';
			next if $line ne '';
			select undef, undef, undef, 0.001;
			seek $log, 0, 1;
		}
		die "not expected: $line" if $line !~ /"\Q$outcome\E"/;
	}
	return;
}

# Memory that the process may write, in kB.
sub memory
{
	return slurp_file("/proc/$http->{pid}/status") =~ /^VmData:\s*(\d+) kB$/m ? $1 : die 'no VmData';
}

# Each time there is a key of 16 kB.
my %origin = (Origin => 'https://a.example');
my $last = get($http, '/feeds/outbox')->{cursor};
my $waiting = send_request($http, "/feeds/outbox?after=$last&wait=3600", %origin);
metric_is($http, 'waiting', 1, 'a request waits');
reload(10, 'settings reloaded');
my $before = memory();
reload(300, 'settings reloaded');
cmp_ok(memory() - $before, '<', 1024, 'settings before a reload are freed');
is(get($http, '/feeds/outbox')->{status}, 200, 'the server has its addresses');
append_to_file($file, "max-limit = none\n");
reload(10, 'settings not reloaded');
$before = memory();
reload(300, 'settings not reloaded');
cmp_ok(memory() - $before, '<', 1024, 'so are those that are wrong');

# requests all the time
sql($node, "INSERT INTO outbox (message_type, data) VALUES ('A', '2')");
like(read_until($waiting, qr/"more": /), qr/Allow-Origin: https:\/\/a\.example\r.*"data":2/s,
	'a request that waited is answered');
for my $n (1 .. 50)
{
	unlink $file;
	append_to_file($file, "anonymous-role = regress_feedpub_login\nmax-limit = $n\ncors-origins = https://$n.example\n");
	my @held = map { send_request($http, "/feeds/outbox?shards=50&shard=$_", %origin) } 1 .. 5;
	my $stream = send_request($http, '/feeds/outbox', Accept => 'text/event-stream', %origin);

	reload(1, 'settings reloaded');
	read_until($_, qr/\r\n\r\n/) =~ /^HTTP\/1\.1 (200|307) / or die 'a request has failed' for @held;
	read_until($stream, qr/^data: .*\n/m) =~ /^data: /m or die 'a stream has failed';
}
my $response = get($http, '/feeds/outbox', Origin => 'https://50.example');
is(scalar(@{ $response->{json}{entries} }), 50, 'the last settings are in force');
is($response->{headers}{'access-control-allow-origin'}, 'https://50.example', 'all of them');

# a new connection needs settings
sql($node, <<'SQL');
SELECT pg_terminate_backend(pid, 180000) FROM pg_stat_activity WHERE usename = 'regress_feedpub_login'
SQL
is(get($http, '/feeds/outbox')->{status}, 200, 'it connects again');
is(http_stop($http), 0, 'the server has not ended by itself');

done_testing();
