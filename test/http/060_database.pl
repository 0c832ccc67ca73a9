# The database restarts, refuses connections, or does not answer: 503, and
# feedpub-http goes on.  The log.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubHttp;
use FeedpubProxy;
use FeedpubTest;
use POSIX ':sys_wait_h';
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'");

sql($node, <<'SQL');
CREATE ROLE regress_feedpub_login LOGIN;
SELECT feed_create('outbox'), feed_create('other'), feed_start_worker();
GRANT SELECT ON outbox, other TO regress_feedpub_login;
SQL
my $file = PostgreSQL::Test::Utils::tempdir() . '/feedpub-http.conf';
append_to_file($file, "statement-timeout = 1\nlog-requests = 100\n");
my $http = http_start($node, user => 'regress_feedpub_login',
	anonymous_role => 'regress_feedpub_login', pool => 1, file => $file);

# Tests a response that says to come again.
sub unavailable
{
	my ($path, $test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $response = get($http, $path);

	return is_deeply(
		[ $response->{status}, $response->{headers}{'retry-after'} ],
		[ 503, 1 ], $test);
}

ok(await_success(), 'it is there');

# a statement that waits for a lock
my $locker = $node->background_psql('postgres');
$locker->query_safe('BEGIN; LOCK other');
unavailable('/feeds/other', 'a statement that takes too long');
$locker->quit;
ok(await_success(), 'until it does not');

# a backend that does not answer; another connection is made
my $pids = sql($node, <<'SQL');
SELECT pid FROM pg_stat_activity WHERE usename = 'regress_feedpub_login'
SQL
kill 'STOP', split /\n/, $pids;
unavailable('/feeds/other', 'a backend that does not answer is given up');
ok(await_success(), 'and another one is asked');
kill 'CONT', split /\n/, $pids;

# the server refuses connections
my $last = await('/feeds/outbox')->{cursor};
my $waiting = send_request($http, "/feeds/outbox?after=$last&wait=60");
metric_is($http, 'waiting', 1, 'a request waits');
sql($node, 'ALTER ROLE regress_feedpub_login CONNECTION LIMIT 0');
sql($node, <<'SQL');
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'regress_feedpub_login'
SQL
unavailable('/feeds/other', 'too many connections');
sql($node, "INSERT INTO outbox (message_type, data) VALUES ('A', '1')");
sql($node, 'ALTER ROLE regress_feedpub_login CONNECTION LIMIT -1');
like(read_until($waiting, qr/"more": /), qr/"upsert"/, 'a request that waited misses nothing');

sql($node, 'ALTER ROLE regress_feedpub_login NOLOGIN');
sql($node, <<'SQL');
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'regress_feedpub_login'
SQL
unavailable('/feeds/other', 'not permitted to log in');
sql($node, 'ALTER ROLE regress_feedpub_login LOGIN');
ok(await_success(), 'it is again');

# an extension of another version: logged once, however often it is looked at
my $version = sql($node, q(SELECT extversion FROM pg_extension WHERE extname = 'feedpub'));
look_at('other', 5);
unavailable('/feeds/other', 'another version');
look_at('another', 1);
sql($node, "UPDATE pg_extension SET extversion = '$version' WHERE extname = 'feedpub'");
ok(await_success(), 'and the right one is served');
look_at('another', 1);
sql($node, "UPDATE pg_extension SET extversion = '$version' WHERE extname = 'feedpub'");
ok(await_success(), 'so it is again');
is(join(' ', slurp_file($http->{log}) =~ /"could not use the database: its extension feedpub has version (\w+), feedpub-http has \Q$version\E"/g),
	'other another another', 'each is logged once, until it is another one');

# connections are lost while much is sent
my $killer = open(my $killed, '-|', 'psql', '-Xqd', $node->connstr('postgres'), '-c', <<'SQL') // die;
DO $$ BEGIN
	FOR i IN 1 .. 100 LOOP
		PERFORM pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'regress_feedpub_login';
		PERFORM pg_stat_clear_snapshot(), pg_sleep(0.02);
	END LOOP;
END $$
SQL
my %statuses;
until (waitpid($killer, WNOHANG))
{
	$statuses{ HTTP::Tiny->new(timeout => $PostgreSQL::Test::Utils::timeout_default)
		  ->post("$http->{url}/subscriptions/none/poll", { content => q(") . 'x' x 1e6 . q(") })->{status} }++;
}
is(join(' ', grep { $_ != 400 && $_ != 503 } keys %statuses), '', 'connections are lost while much is sent');
ok(await_success(), 'and made again');

# a server that hangs does not make each request wait
kill 'STOP', $node->{_pid} // die;
sql_backends('STOP');
my @hung = map { send_request($http, '/feeds') } 1 .. 5;
is(scalar(grep { read_until($_, qr/\r\n\r\n/) =~ /^HTTP\/1\.1 503/ } @hung),
	5, 'a server that hangs');
sql_backends('CONT');
kill 'CONT', $node->{_pid};
ok(await_success(), 'goes on');

# the log
await('/feeds/outbox?after=secret');
@hung = ();
close $waiting;
metric_is($http, 'connections', 0, 'all requests have ended');
my $log = slurp_file($http->{log});
like($log, qr/^time=\S+Z level=info message="ready on [^"]*"$/m, 'a line of the log');
like($log, qr/^time=\S+Z level=info message="request" method="GET" path="\/feeds\/outbox" status=400 ms=\d+$/m,
	'a request');
like($log, qr/level=warning message="request" .* status=503/, 'one that failed');
unlike($log, qr/secret/, 'without its arguments');
append_to_file($file, "max-limit = 7\n");
kill 'HUP', $http->{pid};
my $tries = 20 * $PostgreSQL::Test::Utils::timeout_default;
select undef, undef, undef, 0.05
  while slurp_file($http->{log}) !~ /settings reloaded/ && $tries-- > 0;
like(slurp_file($http->{log}), qr/message="settings reloaded"/, 'SIGHUP');
is(http_stop($http), 0, 'the server has not ended by itself');

# The listener is the first that has the database again, just after the pool was
# refused: what waits goes on.
my $refuses = "$file.refuses";
my $port = PostgreSQL::Test::Cluster::get_free_port();
my $kept;
my $proxy = proxy_start($port, $node->host . '/.s.PGSQL.' . $node->port, delay => 0, admits => \&admits);
{
	local $ENV{PGAPPNAME};
	delete $ENV{PGAPPNAME};
	$http = http_start($node, user => 'regress_feedpub_login', anonymous_role => 'regress_feedpub_login', pool => 1,
		database => "host=127.0.0.1 port=$port sslmode=disable gssencmode=disable dbname=postgres user=regress_feedpub_login");
}
for my $turn (1 .. 3)
{
	$last = await('/feeds/outbox')->{cursor};
	$waiting = send_request($http, "/feeds/outbox?after=$last&wait=60");
	metric_is($http, 'waiting', 1, 'a request waits');
	append_to_file($refuses, '');
	sql($node, q(SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'regress_feedpub_login'));
	sql($node, "INSERT INTO outbox (message_type, data) VALUES ('A', '$turn')");
	like(read_until($waiting, qr/"more": |\}\n/), qr/"upsert"/, 'and is answered by the first connection that is made again');
}
http_stop($http);
proxy_stop($proxy);

# While there is the file, the proxy refuses the connections of the pool, and keeps
# that of the listener; when it has both, it refuses the one, lets the other pass,
# and refuses no more.
sub admits
{
	my ($client, $data) = @_;

	return [ $client, $data ] if !-e $refuses;
	if ($data =~ /listener/)
	{
		$kept = [ $client, $data ];
		return;
	}
	return if !$kept;
	close $client;
	unlink $refuses;
	my $listener = $kept;
	undef $kept;
	return $listener;
}

# Gives the extension another version, and asks until feedpub-http has looked at
# it so many times.
sub look_at
{
	my ($version, $count) = @_;
	my $tries = 20 * $PostgreSQL::Test::Utils::timeout_default;
	my $looks = sub { return scalar(() = slurp_file($node->logfile) =~ /SELECT pg_catalog\.quote_ident/g) };
	my $before = $looks->();

	sql($node, <<"SQL");
UPDATE pg_extension SET extversion = '$version' WHERE extname = 'feedpub';
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'regress_feedpub_login'
SQL
	while ($looks->() < $before + $count || slurp_file($http->{log}) !~ /has version \Q$version\E,/)
	{
		die "$version was not looked at" if $tries-- == 0;
		get($http, '/feeds/other');
		select undef, undef, undef, 0.05;
	}
	return;
}

# Clients come again after a 503, which there is also if the machine stands still
# for --statement-timeout.
sub await
{
	my ($path) = @_;
	my $tries = 20 * $PostgreSQL::Test::Utils::timeout_default;
	my $response;

	select undef, undef, undef, 0.05
	  while ($response = get($http, $path))->{status} == 503 && $tries-- > 0;
	return $response;
}

sub await_success { return await('/feeds/other')->{status} == 200 }

# Stops the backends of feedpub-http, or lets them go on.
sub sql_backends
{
	my ($signal) = @_;

	for my $proc (glob '/proc/[0-9]*')
	{
		my $stat = eval { slurp_file("$proc/stat") } // next;
		my ($parent) = $stat =~ /^\d+ \(.*\) \S (\d+)/s;
		my ($pid) = $proc =~ /(\d+)/;

		kill $signal, $pid if $parent == $node->{_pid};
	}
	return;
}

done_testing();
