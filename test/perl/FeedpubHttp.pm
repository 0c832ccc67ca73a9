# FeedpubHttp.pm: what the tests of feedpub-http share.
#
#   http_start(NODE, option => value, ...)  starts feedpub-http for a server's
#                      database postgres, and waits until it answers.  Options:
#                      user (postgres), file (a configuration file), port (a
#                      free one), program (or FEEDPUB_HTTP_PROGRAM), database
#                      (connection string), all others are flags, with _ for -
#   get(HTTP, PATH, header => value, ...)   a response, as of HTTP::Tiny, with
#                      its JSON in {json} and its cursor in {cursor}; redirects
#                      are followed, unless redirects => 0
#   url_from(PATH, REFERENCE)  what a relative URL means in the response to PATH
#   send_request(HTTP, PATH, header => value, ...)  a socket with a request that
#                      has been sent, a GET, unless method => 'POST'
#   read_until(SOCKET, PATTERN)             what comes, until it matches
#   metric(HTTP, NAME)  a number of /metrics, NAME without its feedpub_http_
#   metric_is(HTTP, NAME, NUMBER, TEST)  tests that it becomes that
#   http_stop(HTTP)    ends it by SIGTERM, and returns its exit status
#
# HTTP is a hash: pid, port, admin (a port), url, log (a file).
package FeedpubHttp;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use FeedpubTest;
use File::Basename;
use HTTP::Tiny;
use IO::Select;
use IO::Socket::INET;
use JSON::PP;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(http_start get url_from send_request read_until metric metric_is http_stop);

my $PROGRAM = $ENV{FEEDPUB_HTTP_PROGRAM} // dirname(__FILE__) . '/../../http/feedpub-http';
my $started = 0;

sub http_start
{
	my ($node, %options) = @_;
	$options{anonymous_role} //= $options{user} // 'postgres'
	  unless exists $options{jwt_key} || $options{file};
	my $port = delete $options{port} // PostgreSQL::Test::Cluster::get_free_port();
	my $admin = PostgreSQL::Test::Cluster::get_free_port();
	my $user = delete $options{user} // 'postgres';
	my $program = delete $options{program} // $PROGRAM;
	my $http = {
		port => $port,
		admin => $admin,
		url => "http://127.0.0.1:$port",
		log => "$PostgreSQL::Test::Utils::log_path/feedpub-http."
		  . basename($0, '.pl') . '.' . ++$started . '.log'
	};
	my $database = delete $options{database} // $node->connstr('postgres') . " user=$user";
	my @flags = ("--listen=127.0.0.1:$port", "--admin=127.0.0.1:$admin", "--database=$database");

	push @flags, '--config', delete $options{file} if $options{file};
	push @flags, map { '--' . tr/_/-/r . "=$options{$_}" } sort keys %options;
	$http->{pid} = fork // die "could not fork: $!";
	if (!$http->{pid})
	{
		open STDERR, '>>', $http->{log} or POSIX::_exit(1);
		open STDOUT, '>&', \*STDERR or POSIX::_exit(1);
		exec { $program } $program, @flags or POSIX::_exit(1);
	}
	ends_with_test($http->{pid});
	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		return $http
		  if HTTP::Tiny->new(timeout => 5)
		  ->get("http://127.0.0.1:$admin/ready")->{status} == 200;
		die 'feedpub-http ended: ' . slurp_file($http->{log})
		  if waitpid($http->{pid}, POSIX::WNOHANG()) > 0;
		select undef, undef, undef, 0.1;
	}
	die 'feedpub-http did not start: ' . slurp_file($http->{log});
}

sub get
{
	my ($http, $path, %headers) = @_;
	my $method = delete $headers{method} // 'GET';
	my $redirects = delete $headers{redirects} // 5;
	my $client = HTTP::Tiny->new(
		max_redirect => 0,
		timeout => $PostgreSQL::Test::Utils::timeout_default);
	my $response;

	# HTTP::Tiny follows no relative URLs
	while (1)
	{
		$response = $client->request($method, "$http->{url}$path", { headers => \%headers });
		last if $response->{status} != 307 || $redirects-- == 0;
		$path = url_from($path, $response->{headers}{location});
	}
	$response->{content} //= q();
	if (($response->{headers}{'content-type'} // '') =~ m{[/+]json$}
		&& $response->{content} ne '')
	{
		$response->{json} = decode_json($response->{content});
		$response->{cursor} = $response->{json}{cursor}
		  if ref $response->{json} eq 'HASH';
	}
	return $response;
}

sub url_from
{
	my ($path, $reference) = @_;

	$path =~ s/\?.*//s;
	return "$path$reference" if $reference =~ /^\?/;
	return $path =~ s{[^/]*$}{}r . $reference =~ s{^\./}{}r;
}

sub send_request
{
	my ($http, $path, %headers) = @_;
	my $method = delete $headers{method} // 'GET';
	my $socket = IO::Socket::INET->new(
		PeerAddr => '127.0.0.1',
		PeerPort => $http->{port}) or die "could not connect: $!";

	print $socket "$method $path HTTP/1.1\r\nHost: localhost\r\n",
	  (map { "$_: $headers{$_}\r\n" } sort keys %headers), "\r\n";
	$socket->flush;
	return $socket;
}

# Returns what came, also if the other side closed or time ran out.
sub read_until
{
	my ($socket, $pattern) = @_;
	my $end = time + $PostgreSQL::Test::Utils::timeout_default;
	my $text = '';

	while ($text !~ $pattern && time < $end)
	{
		next unless IO::Select->new($socket)->can_read(1);
		last unless sysread($socket, $text, 65536, length $text);
	}
	return $text;
}

sub metric
{
	my ($http, $name) = @_;
	my $text = HTTP::Tiny->new(timeout => $PostgreSQL::Test::Utils::timeout_default)
	  ->get("http://127.0.0.1:$http->{admin}/metrics")->{content};

	return $text =~ /^feedpub_http_\Q$name\E (\d+)$/m ? $1 : undef;
}

sub metric_is
{
	my ($http, $name, $number, $test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $tries = 20 * $PostgreSQL::Test::Utils::timeout_default;

	while ((metric($http, $name) // -1) != $number && $tries-- > 0)
	{
		die "feedpub-http ended: $?" if waitpid($http->{pid}, POSIX::WNOHANG()) > 0;
		select undef, undef, undef, 0.05;
	}
	return is(metric($http, $name), $number, $test);
}

sub http_stop
{
	my ($http) = @_;

	return end_process($http->{pid}, 'TERM');
}

1;
