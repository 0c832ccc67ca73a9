# FeedpubRelay.pm: what the tests of feedpub-relay share.
#
#   nats_start(NAME, option => value, ...)  starts nats-server with JetStream, and
#                      waits until it answers.  Options: port (a free one), conf
#                      (lines of its configuration), store (a directory)
#   nats_stop(NATS, SIGNAL)                 ends it (TERM)
#   nats_cluster()     three nats-servers, n0 to n2, that are a cluster
#   nats_restart(NATS) starts one that was stopped, as it was, and does not wait
#   nats_any(NATS, SUBJECT, HASH)           a request to any server of a list,
#                      until one answers
#   nats_api(NATS, SUBJECT, HASH)           a request to $JS.API.SUBJECT
#   nats_publish(NATS, SUBJECT, DATA, NAME => VALUE, ...)  publishes into
#                      JetStream with these headers, and returns the answer
#   stream_messages(NATS, STREAM)           all messages of a stream, in order:
#                      hashes with subject, data, headers (a hash), seq
#   stream_follow(NATS, STREAM, FIRST, CODE)  calls CODE with the messages of a
#                      stream from sequence FIRST on, as they come, by any server
#                      of a list, until CODE returns false; with undef when there
#                      is nothing more for now
#   relay_start(NODE, NATS, option => value, ...)  starts feedpub-relay for a
#                      server's database postgres.  Options: feed (outbox), role
#                      (postgres), program, file, database, wait (1: until it
#                      runs), env (a hash), all others are flags, with _ for -.
#                      It has a minute to end (--drain)
#   relay_once(NODE, NATS, option => value, ...)  runs it with --once, and
#                      returns its exit status
#   relay_stop(RELAY, SIGNAL)  ends it (TERM), and returns its exit status
#   relay_wait(RELAY)          waits until it ends, and returns its exit status
#   relay_log(RELAY)           its log
#   relay_logs(RELAY, PATTERN, TEST)        tests that its log has this soon
#   relay_metric(RELAY, NAME)  a number of /metrics, NAME without feedpub_relay_;
#                              -1 if there is none
#   relay_get(RELAY, PATH)     a response, as of HTTP::Tiny
#   stream_has(NATS, STREAM, N, TEST)       tests that it has N messages soon.
#                      The relay counts what was acknowledged, and an
#                      acknowledgement is lost if it comes too late
#   soon(CODE, TEST)           tests that CODE returns true in time
package FeedpubRelay;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use FeedpubTest;
use File::Basename;
use HTTP::Tiny;
use IO::Select;
use IO::Socket::INET;
use JSON::PP;
use MIME::Base64;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(nats_start nats_stop nats_api nats_publish nats_connect nats_cluster
  nats_restart nats_any stream_messages stream_follow stream_has
  relay_start relay_once relay_stop relay_wait relay_log relay_logs relay_metric
  relay_get soon);

my $PROGRAM = $ENV{FEEDPUB_RELAY_PROGRAM} // dirname(__FILE__) . '/../../relay/feedpub-relay';
my $started = 0;

# How long a request may take, in seconds.  A cluster without a leader drops it,
# and goes on to send PING, so it is to be sent again.
our $patience = $PostgreSQL::Test::Utils::timeout_default;

sub run_program
{
	my ($log, $env, $program, @arguments) = @_;
	my $pid = fork // die "could not fork: $!";

	if (!$pid)
	{
		$ENV{$_} = $env->{$_} for keys %$env;
		open STDERR, '>>', $log or POSIX::_exit(1);
		open STDOUT, '>&', \*STDERR or POSIX::_exit(1);
		exec { $program } $program, @arguments or POSIX::_exit(1);
	}
	return ends_with_test($pid);
}

sub nats_start
{
	my ($name, %options) = @_;
	my $port = $options{port} // PostgreSQL::Test::Cluster::get_free_port();
	my $store = $options{store} // PostgreSQL::Test::Utils::tempdir();
	my $base = "$PostgreSQL::Test::Utils::log_path/nats." . basename($0, '.pl') . ".$name";
	my $nats = {
		name => $name,
		port => $port,
		store => $store,
		url => ($options{tls} ? 'tls' : 'nats') . "://127.0.0.1:$port",
		conf => $options{conf},
		connect => $options{connect}
	};

	open my $out, '>', "$base.conf" or die "$base.conf: $!";
	print $out "listen: \"127.0.0.1:$port\"\nserver_name: $name\n",
	  "jetstream: { store_dir: \"$store\" }\n", $options{conf} // '';
	close $out;
	$nats->{log} = "$base.log";
	$nats->{config} = "$base.conf";
	$nats->{pid} = run_program($nats->{log}, {}, 'nats-server', '-c', "$base.conf");
	return $nats if $options{no_wait};
	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		return $nats
		  if ($options{tls} ? -e $nats->{log} && slurp_file($nats->{log}) =~ /Server is ready/ : eval { nats_connect($nats) });
		select undef, undef, undef, 0.1;
	}
	die 'nats-server did not start: ' . slurp_file($nats->{log});
}

sub nats_stop
{
	my ($nats, $signal) = @_;

	end_process($nats->{pid}, $signal // 'TERM');
	delete $nats->{socket};
	return;
}

sub nats_restart
{
	my ($nats) = @_;

	$nats->{pid} = run_program($nats->{log}, {}, 'nats-server', '-c', $nats->{config});
	return;
}

sub nats_cluster
{
	my @ports = map { PostgreSQL::Test::Cluster::get_free_port() } 0 .. 2;
	my $routes = join ', ', map { "\"nats://127.0.0.1:$_\"" } @ports;
	my @nats = map {
		nats_start("n$_", no_wait => 1, conf => "cluster: { name: c, listen: \"127.0.0.1:$ports[$_]\", routes: [ $routes ] }\n")
	} 0 .. 2;

	nats_any(\@nats, 'INFO');
	return @nats;
}

sub nats_any
{
	my ($nats, @request) = @_;
	my $answer;

	for (1 .. 2 * $PostgreSQL::Test::Utils::timeout_default)
	{
		for my $server (@$nats)
		{
			local $patience = 3;

			$answer = eval { nats_api($server, @request) };
			return $answer if $answer && !$answer->{error};
		}
		select undef, undef, undef, 0.2;
	}
	die "no server answers $request[0]: " . ($answer ? encode_json($answer) : $@);
}

# A connection that has sent CONNECT, and whose PONG has come.
sub nats_connect
{
	my ($nats) = @_;
	my $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $nats->{port})
	  or die "could not connect: $!";
	my %connect = (verbose => JSON::PP::false, pedantic => JSON::PP::false,
		headers => JSON::PP::true, no_responders => JSON::PP::true, %{ $nats->{connect} // {} });
	my $client = { socket => $socket, buffer => '' };

	print $socket 'CONNECT ', encode_json(\%connect), "\r\nPING\r\n";
	$socket->flush;
	while (defined(my $line = read_line($client)))
	{
		return $client if $line =~ /^PONG/;
		die $line if $line =~ /^-ERR/;
	}
	die 'nats-server closed the connection';
}

sub fill
{
	my ($client) = @_;
	my $left = $client->{until} ? $client->{until} - time : $PostgreSQL::Test::Utils::timeout_default;

	die 'nats-server does not answer'
	  unless $left > 0 && IO::Select->new($client->{socket})->can_read($left);
	return sysread $client->{socket}, $client->{buffer}, 1 << 20, length $client->{buffer};
}

sub read_line
{
	my ($client) = @_;

	while (1)
	{
		return $1 if $client->{buffer} =~ s/\A(.*?)\r\n//;
		fill($client) or return;
	}
}

sub read_bytes
{
	my ($client, $n) = @_;

	while (length $client->{buffer} < $n + 2)
	{
		fill($client) or return;
	}
	my $bytes = substr $client->{buffer}, 0, $n;
	$client->{buffer} = substr $client->{buffer}, $n + 2;
	return $bytes;
}

# The next message: (subject, headers' text, data, reply)
sub read_message
{
	my ($client) = @_;

	while (defined(my $line = read_line($client)))
	{
		my @words = split / /, $line;

		if ($words[0] eq 'PING')
		{
			print { $client->{socket} } "PONG\r\n";
			$client->{socket}->flush;
		}
		elsif ($words[0] eq 'MSG')
		{
			return ($words[1], '', read_bytes($client, $words[-1]), $words[3]);
		}
		elsif ($words[0] eq 'HMSG')
		{
			my $all = read_bytes($client, $words[-1]);
			return ($words[1], substr($all, 0, $words[-2]), substr($all, $words[-2]), $words[3]);
		}
		elsif ($words[0] eq '-ERR')
		{
			die $line;
		}
	}
	die 'nats-server closed the connection';
}

# A request; returns the answer's data.
sub request
{
	my ($nats, $subject, $data, %headers) = @_;
	my $client = nats_connect($nats);
	my $head = %headers ? join('', "NATS/1.0\r\n", (map { "$_: $headers{$_}\r\n" } sort keys %headers), "\r\n") : '';

	$client->{until} = time + $patience;
	print { $client->{socket} } "SUB _INBOX.test.1 1\r\n",
	  $head eq ''
	  ? "PUB $subject _INBOX.test.1 " . length($data) . "\r\n$data\r\n"
	  : "HPUB $subject _INBOX.test.1 " . length($head) . ' ' . length($head . $data) . "\r\n$head$data\r\n";
	$client->{socket}->flush;
	my (undef, $status, $answer) = read_message($client);
	return $status =~ m{^NATS/1.0 503} ? { error => { code => 503 } } : decode_json($answer);
}

sub nats_api
{
	my ($nats, $subject, $hash) = @_;

	return request($nats, "\$JS.API.$subject", defined $hash ? encode_json($hash) : '');
}

sub nats_publish
{
	my ($nats, $subject, $data, %headers) = @_;

	return request($nats, $subject, $data, %headers);
}

# By a consumer that is asked for some at a time.
sub stream_messages
{
	my ($nats, $stream) = @_;
	my $info = nats_api($nats, "STREAM.INFO.$stream");
	my $left = $info->{state}{messages} // die encode_json($info);
	my $client = nats_connect($nats);
	my $consumer = 'test' . ++$started;
	my @messages;

	return @messages if $left == 0;
	print { $client->{socket} } "SUB _INBOX.read 1\r\n";
	my $made = nats_api(
		$nats,
		"CONSUMER.DURABLE.CREATE.$stream.$consumer",
		{
			stream_name => $stream,
			config => {
				durable_name => $consumer,
				ack_policy => 'none',
				deliver_policy => 'all',
				replay_policy => 'instant'
			}
		});
	die encode_json($made) if $made->{error};
	while ($left > 0)
	{
		my $batch = $left < 5000 ? $left : 5000;
		my $request = "{\"batch\": $batch}";

		print { $client->{socket} } "PUB \$JS.API.CONSUMER.MSG.NEXT.$stream.$consumer _INBOX.read ",
		  length $request, "\r\n$request\r\n";
		$client->{socket}->flush;
		$left -= $batch;
		while ($batch-- > 0)
		{
			my ($subject, $head, $data, $reply) = read_message($client);
			# $JS.ACK.<stream>.<consumer>.<deliveries>.<sequence>...
			my ($seq) = $reply =~ /^\$JS\.ACK\.(?:[^.]+\.){3}(\d+)\./ or die "$reply $head";
			my %headers = $head =~ /^([^:\s]+): ?(.*?)\r$/mg;
			push @messages, { subject => $subject, data => $data, headers => \%headers, seq => $seq };
		}
	}
	nats_api($nats, "CONSUMER.DELETE.$stream.$consumer");
	return @messages;
}

sub stream_has
{
	my ($nats, $stream, $n, $test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	return soon(sub { (nats_api($nats, "STREAM.INFO.$stream")->{state}{messages} // -1) == $n }, $test);
}

# By consumers that the server forgets.  Whatever fails, another one goes on.
sub stream_follow
{
	my ($nats, $stream, $first, $code) = @_;
	my $goes_on = 1;

	for (my $i = 0; $goes_on; $i++)
	{
		eval { $goes_on = follow($nats->[ $i % @$nats ], $stream, \$first, $code) };
		select undef, undef, undef, 0.2 if $goes_on;
	}
	return;
}

sub follow
{
	my ($nats, $stream, $first, $code) = @_;
	local $patience = 5;
	my $made = nats_api(
		$nats,
		"CONSUMER.CREATE.$stream",
		{
			stream_name => $stream,
			config => {
				ack_policy => 'none',
				deliver_policy => 'by_start_sequence',
				opt_start_seq => $$first + 0,
				replay_policy => 'instant',
				inactive_threshold => 60_000_000_000,
				mem_storage => JSON::PP::true,
				num_replicas => 1
			}
		});
	die encode_json($made) if $made->{error};
	my $client = nats_connect($nats);
	my $request = '{"batch": 1000, "expires": 2000000000}';

	print { $client->{socket} } "SUB _INBOX.follow 1\r\n";
	while (1)
	{
		my $left = 1000;

		print { $client->{socket} } "PUB \$JS.API.CONSUMER.MSG.NEXT.$stream.$made->{name} _INBOX.follow ", length $request, "\r\n$request\r\n";
		$client->{socket}->flush;
		$client->{until} = time + $patience;
		while ($left-- > 0)
		{
			my ($subject, $head, $data, $reply) = read_message($client);

			# 408: there is nothing more for now
			last if $head =~ m{^NATS/1\.0 408};
			die $head if $head =~ m{^NATS/1\.0 \d};
			my ($seq) = $reply =~ /^\$JS\.ACK\.(?:[^.]+\.){3}(\d+)\./ or die "$reply $head";
			my %headers = $head =~ /^([^:\s]+): ?(.*?)\r$/mg;

			# a server that was killed begins again where its consumer began
			die "message $seq again" if $seq < $$first;
			$client->{until} = time + $patience;
			$$first = $seq + 1;
			return 0 if !$code->({ subject => $subject, data => $data, headers => \%headers, seq => $seq });
		}
		return 0 if !$code->(undef);
	}
}

sub relay_start
{
	my ($node, $nats, %options) = @_;
	my $user = delete $options{role} // 'postgres';
	my $program = delete $options{program} // $PROGRAM;
	my $wait = delete $options{wait} // !$options{once};
	my $database = delete $options{database} // $node->connstr('postgres') . " user=$user";
	my $env = delete $options{env} // {};
	my $file = delete $options{file};
	my $admin = PostgreSQL::Test::Cluster::get_free_port();
	my $relay = {
		admin => $admin,
		log => "$PostgreSQL::Test::Utils::log_path/feedpub-relay."
		  . basename($0, '.pl') . '.' . ++$started . '.log'
	};
	my @flags = ("--database=$database", "--admin=127.0.0.1:$admin");

	$options{drain} //= 60;
	push @flags, "--config=$file" if $file;
	push @flags, '--once' if delete $options{once};
	push @flags, '--check' if delete $options{check};
	$options{feed} //= 'outbox' unless $file;
	$options{to} //= $nats->{url} unless $file;
	push @flags, map { '--' . tr/_/-/r . "=$options{$_}" } sort keys %options;
	$relay->{pid} = run_program($relay->{log}, $env, $program, @flags);
	return $relay unless $wait;
	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		return $relay if relay_get($relay, '/ready')->{status} == 200;
		die 'feedpub-relay ended: ' . relay_log($relay)
		  if waitpid($relay->{pid}, POSIX::WNOHANG()) > 0;
		select undef, undef, undef, 0.1;
	}
	die 'feedpub-relay did not start: ' . relay_log($relay);
}

sub relay_once
{
	my ($node, $nats, %options) = @_;
	my $relay = relay_start($node, $nats, %options, once => 1);

	return relay_wait($relay);
}

sub relay_wait
{
	my ($relay) = @_;

	for (1 .. 20 * $PostgreSQL::Test::Utils::timeout_default)
	{
		if (waitpid($relay->{pid}, POSIX::WNOHANG()) > 0)
		{
			has_ended($relay->{pid});
			return $? >> 8;
		}
		select undef, undef, undef, 0.05;
	}
	die 'feedpub-relay does not end: ' . relay_log($relay);
}

sub relay_stop
{
	my ($relay, $signal) = @_;

	return end_process($relay->{pid}, $signal // 'TERM');
}

sub relay_log
{
	my ($relay) = @_;

	return -e $relay->{log} ? slurp_file($relay->{log}) : '';
}

sub relay_logs
{
	my ($relay, $pattern, $test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	return soon(sub { relay_log($relay) =~ $pattern }, $test)
	  || diag(relay_log($relay));
}

sub relay_get
{
	my ($relay, $path) = @_;

	return HTTP::Tiny->new(timeout => 60)->get("http://127.0.0.1:$relay->{admin}$path");
}

sub relay_metric
{
	my ($relay, $name, $feed) = @_;
	my $text = relay_get($relay, '/metrics')->{content} // '';

	$feed //= 'outbox';
	return $text =~ /^feedpub_relay_\Q$name\E(?:\{feed="\Q$feed\E"\})? (\d+)$/m ? $1 : -1;
}

sub soon
{
	my ($code, $test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	for (1 .. 20 * $PostgreSQL::Test::Utils::timeout_default)
	{
		return ok(1, $test) if $code->();
		select undef, undef, undef, 0.05;
	}
	return ok(0, $test);
}

1;
