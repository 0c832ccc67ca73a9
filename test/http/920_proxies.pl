# Pages out of nginx and out of Varnish, by the configurations of
# examples/http: the second consumer of a million messages is served by the
# cache, and consumers end equal (120_caching.pl says what happens).
#
# Runs only if FEEDPUB_HTTP_LONG is set.  FEEDPUB_HTTP_MESSAGES is how many
# messages (1000000).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubCache;
use FeedpubHttp;
use FeedpubTest;
use HTTP::Tiny;
use IO::Socket::INET;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'FEEDPUB_HTTP_LONG is not set' unless $ENV{FEEDPUB_HTTP_LONG};

my $MESSAGES = $ENV{FEEDPUB_HTTP_MESSAGES} // 1000000;
my $examples = "$FindBin::RealBin/../../examples/http";
my @pids;

# A process that listens on a port, and ends with the test
sub run_proxy
{
	my ($port, @command) = @_;
	my $pid = fork // die "could not fork: $!";

	if (!$pid)
	{
		open STDOUT, '>>', "$PostgreSQL::Test::Utils::log_path/proxy.log" or POSIX::_exit(1);
		open STDERR, '>&', \*STDOUT or POSIX::_exit(1);
		exec { $command[0] } @command or POSIX::_exit(1);
	}
	push @pids, $pid;
	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		return $pid if IO::Socket::INET->new(PeerAddr => "127.0.0.1:$port");
		die "$command[0] ended" if waitpid($pid, POSIX::WNOHANG()) > 0;
		select undef, undef, undef, 0.1;
	}
	die "$command[0] does not listen";
}

# An example with other addresses, in a directory of its own
sub configuration
{
	my ($file, $dir, %replace) = @_;
	my $text = slurp_file("$examples/$file");

	for my $from (keys %replace)
	{
		die "$file has no $from" unless $text =~ s/\Q$from\E/$replace{$from}/;
	}
	open my $out, '>', "$dir/$file" or die "could not write $dir/$file: $!";
	print $out $text;
	close $out;
	return "$dir/$file";
}

my %proxies = (
	nginx => sub {
		my ($port, $backend) = @_;
		my $dir = PostgreSQL::Test::Utils::tempdir();
		my $file = configuration('nginx.conf', $dir,
			'127.0.0.1:8000' => "127.0.0.1:$port",
			'127.0.0.1:8080' => "127.0.0.1:$backend");

		return run_proxy($port, '/usr/sbin/nginx', '-p', $dir, '-c', $file,
			'-e', "$dir/error.log", '-g', 'daemon off;');
	},
	varnish => sub {
		my ($port, $backend) = @_;
		my $dir = PostgreSQL::Test::Utils::tempdir();
		my $file = configuration('varnish.vcl', $dir, '"8080"' => "\"$backend\"");

		return run_proxy($port, '/usr/sbin/varnishd', '-F', '-n', "$dir/work", '-f', $file,
			'-a', "127.0.0.1:$port", '-s', 'malloc,2g', '-j', 'none');
	});

for my $proxy (sort keys %proxies)
{
  SKIP:
	{
		skip "there is no $proxy", 1
		  unless -x "/usr/sbin/$proxy" || -x "/usr/sbin/${proxy}d";
		read_through($proxy);
	}
}

sub read_through
{
	my ($proxy) = @_;
	my $node = feedpub_node(
		$proxy,
		allows_streaming => 1,
		conf => "shared_preload_libraries = 'feedpub'\nfeedpub.naptime = 10ms\nfsync = off");
	my $http = http_start($node, max_limit => 1000);
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	my $pid = $proxies{$proxy}->($port, $http->{port});
	my $client = HTTP::Tiny->new(max_redirect => 0,
		timeout => $PostgreSQL::Test::Utils::timeout_default);
	my %count;
	my $get = sub {
		my ($path, %headers) = @_;
		my $response = $client->get("http://127.0.0.1:$port$path", { headers => \%headers });

		$count{ ($response->{headers}{'x-cache'} // '') eq 'HIT' ? 'hits' : 'misses' }++;
		return $response;
	};

	cache_feeds($node);
	sql($node, 'SELECT feed_create(\'million\')');
	for (1 .. 10)
	{
		sql($node, "INSERT INTO million (message_type, message_key, data)
			SELECT 'A', i % 1000, to_jsonb(i) FROM generate_series(1, $MESSAGES / 10) i");
	}
	sql($node, 'SELECT feed_flush(\'million\', \'10 min\')');
	for my $time (1, 2)
	{
		my $url = '/feeds/million?limit=1000';
		my ($entries, $last) = (0, '');

		%count = (hits => 0, misses => 0);
		while (1)
		{
			my $response = $get->($url);

			if ($response->{status} == 307)
			{
				$url = "/feeds/million$response->{headers}{location}";
				next;
			}
			last if $response->{status} != 200;
			$entries += () = $response->{content} =~ /"op": "upsert"/g;
			my ($cursor, $more) =
			  $response->{content} =~ /"cursor": "([-\w]+)", "more": (true|false)\}$/;
			last if $more eq 'false';
			$url = "/feeds/million?limit=1000&after=$cursor";
		}
		is($entries, $MESSAGES, "$proxy: consumer $time has all messages");
		note "$proxy: consumer $time: $count{hits} hits, $count{misses} misses";
	}

	# the redirect and the last page are not kept
	cmp_ok($count{misses}, '<=', 2, "$proxy: $count{hits} of the second one's pages came from the cache");
	cmp_ok($count{hits} / ($count{hits} + $count{misses}), '>=', 0.99,
		"$proxy: which is 99 percent") if $MESSAGES >= 1000000;

	# an event stream passes, and so do tokens
	my $stream = IO::Socket::INET->new(PeerAddr => "127.0.0.1:$port") or die;
	print $stream "GET /feeds/outbox HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n";
	like(read_until($stream, qr/^retry:/m), qr/^retry:/m, "$proxy: an event stream begins");
	sql($node, q(INSERT INTO outbox (message_type, data) VALUES ('live', '1')));
	like(read_until($stream, qr/"live"/), qr/"live"/, "$proxy: and goes on");
	close $stream;
	metric_is($http, 'waiting', 0, "$proxy: a stream ends at the server too");

	# equal long-polls wait at one time
	my $path = "/feeds/outbox?wait=600&after=" . get($http, '/feeds/outbox')->{cursor};
	my @waiting = map { IO::Socket::INET->new(PeerAddr => "127.0.0.1:$port") // die } 1 .. 3;
	print $_ "GET $path HTTP/1.1\r\nHost: localhost\r\n\r\n" for @waiting;
	metric_is($http, 'waiting', 3, "$proxy: three long-polls wait");
	sql($node, q(INSERT INTO outbox (message_type, data) VALUES ('news', '1')));
	is(scalar(grep { read_until($_, qr/"more"/) =~ /"news"/ } @waiting),
		3, "$proxy: and are answered");
	sql($node, 'TRUNCATE outbox');

	cache_scenarios($node, $get);
	cache_promotion($node, $get,
		sub { http_stop($http); $http = http_start($_[0], port => $http->{port}, max_limit => 1000) });
	kill 'TERM', $pid;
	waitpid $pid, 0;
	http_stop($http);
	return;
}

done_testing();

END
{
	my $status = $?;

	kill 'TERM', @pids;
	$? = $status;
}
