# Many clients that are slow, send much, or do nothing: others are served, and
# what they take is bounded.  With FEEDPUB_HTTP_LONG there are more of them.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubHttp;
use FeedpubTest;
use IO::Select;
use IO::Socket::INET;
use PostgreSQL::Test::Utils;
use Socket qw(SOL_SOCKET SO_LINGER);
use Test::More;
use Time::HiRes 'time';

my $MANY = $ENV{FEEDPUB_HTTP_LONG} ? 900 : 200;
my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'");
my $http;

$SIG{PIPE} = 'IGNORE';
sql($node, <<'SQL');
SELECT feed_create('outbox', 'text'), feed_create('quiet'), feed_start_worker();
INSERT INTO outbox (message_type, data) VALUES ('A', 'x');
SELECT feed_flush('outbox');
SQL

# A connection on which this has been sent.
sub raw
{
	my ($text) = @_;
	my $socket = IO::Socket::INET->new(
		PeerAddr => '127.0.0.1',
		PeerPort => $http->{port}) or die "could not connect: $!";

	syswrite $socket, $text if length $text;
	return $socket;
}

sub post
{
	my ($content) = @_;

	return HTTP::Tiny->new->post("$http->{url}/streams/outbox",
		{ headers => { 'Content-Type' => 'text/plain' }, content => $content });
}

sub memory { return slurp_file("/proc/$http->{pid}/status") =~ /^VmRSS:\s*(\d+) kB$/m ? $1 / 1024 : die 'no VmRSS' }

sub is_served
{
	my ($test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	return is(join(' ', map { get($http, $_)->{status} } '/feeds', '/feeds/quiet', '/feeds/none'),
		'200 200 404', $test);
}

# Slowloris: each client sends a byte of its headers now and then.
$http = http_start($node, pool => 1, idle_timeout => 3600);
my $unfinished = "GET /feeds HTTP/1.1\r\nHost: localhost\r\nX-";
my @slow = map { raw($unfinished) } 1 .. $MANY;
is_served('others are served beside clients that do not end their requests');
@slow = ();
metric_is($http, 'connections', 0, 'they go');
http_stop($http);

# They have two seconds.  If the machine stands still while they come, they may
# be late with their first byte, and come again.
$http = http_start($node, pool => 1, idle_timeout => 2);
my $is_late = 1;
my %answer;
for (my $turns = 10; $is_late && $turns > 0; $turns--)
{
	my $began = time;

	@slow = map { raw($unfinished) } 1 .. $MANY;
	$is_late = time - $began > 1;
	my $select = IO::Select->new(@slow);
	my $tries = 10 * $PostgreSQL::Test::Utils::timeout_default;

	%answer = map { $_ => '' } @slow;
	while ($select->count && $tries-- > 0)
	{
		for my $socket ($select->can_read(0.1))
		{
			sysread $socket, $answer{$socket}, 4096, length $answer{$socket} or $select->remove($socket);
		}
		syswrite $_, 'a' for grep { $answer{$_} eq '' } $select->handles;
	}
}
is(scalar(grep { /^HTTP\/1\.1 408 .*"status": 408/s } values %answer), $MANY, 'each of them is told, in time');
@slow = ();
metric_is($http, 'connections', 0, 'and dropped');
http_stop($http);

# Bodies that do not end: 64 MiB of them are kept
my $size = 1024 * 1024;
my $head = "POST /streams/outbox HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: $size\r\n\r\n";
$http = http_start($node, pool => 1, idle_timeout => 3600);
my @bodies = map { raw($head . 'a' x ($size - 1)) } 1 .. 100;
is_served('beside bodies that do not end, what has none is served');
cmp_ok(memory(), '<', 200, 'their memory is bounded');
syswrite $_, 'a' for @bodies;
my %statuses;
for (@bodies)
{
	my $text = read_until($_, qr/ 204 .*\r\n\r\n|\}\n$/s);

	$statuses{ $text =~ /^HTTP\/1\.1 503 .*^Retry-After: 1\r.*"too many requests have a body"/ms ? 503 : substr $text, 9, 3 }++;
}
is(join(' ', sort keys %statuses), '204 503', 'some are made, others are to come again')
  or note explain \%statuses;
@bodies = ();
metric_is($http, 'connections', 0, 'they go');
is(post('a' x 100)->{status}, 204, 'and others can come');

# what comes after a request is not read before that is answered
my $last = get($http, '/feeds/quiet')->{cursor};
my $before = memory();
my @waiting = map {
	raw("GET /feeds/quiet?after=$last&wait=60 HTTP/1.1\r\nHost: localhost\r\n\r\n" . 'a' x 60000)
} 1 .. $MANY;
metric_is($http, 'waiting', $MANY, 'clients that wait, and have sent more');
cmp_ok(memory() - $before, '<', 5 + $MANY * 40 / 1024, 'which is mostly not read');
@waiting = ();
metric_is($http, 'connections', 0, 'they go');

# Connections that come and go, as they like
for my $n (1 .. 10 * $MANY)
{
	my $socket = raw((
			'',
			"GET /feeds HTTP/1.1\r\nHost: lo",
			"GET /feeds/quiet?limit=$n HTTP/1.1\r\nHost: localhost\r\n\r\n",
			"GET /feeds/quiet?after=$last&wait=60 HTTP/1.1\r\nHost: localhost\r\n\r\n",
			"POST /streams/outbox HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nabc")[ $n % 5 ]);

	# some are reset
	setsockopt $socket, SOL_SOCKET, SO_LINGER, pack('ii', 1, 0) if $n % 3;
}
metric_is($http, 'connections', 0, 'connections that come and go leave nothing');
metric_is($http, 'waiting', 0, 'nor a request');
cmp_ok(scalar(grep { (readlink($_) // '') =~ /^socket/ } glob "/proc/$http->{pid}/fd/*"), '<', 8,
	'nor a socket: two listeners, two to the database');
is_served('the server is there');
http_stop($http);

# More connections than there may be, which send nothing: who asks is told.
$http = http_start($node, pool => 1, idle_timeout => 3600, max_connections => 20);
my @idle = map { raw('') } 1 .. $MANY;
my $refused = get($http, '/feeds');
is("$refused->{status} $refused->{headers}{'retry-after'}", '503 1', 'one more is refused, and told so');
@idle = splice @idle, 0, 19;
metric_is($http, 'connections', 19, 'when others have gone');
is_served('it is served');
http_stop($http);

done_testing();
