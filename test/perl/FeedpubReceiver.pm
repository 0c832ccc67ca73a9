# FeedpubReceiver.pm: a receiver of webhooks, for tests of feedpub-relay.
#
#   receiver_start(option => value, ...)  starts a server of HTTP on 127.0.0.1.
#                      Option: port (a free one)
#   receiver_rules(RECEIVER, HASH, ...)   how it answers from now on; the first
#                      rule that fits counts: match (a pattern for the body),
#                      times (how often it counts), status (200), headers (a hash),
#                      delay (s), hang (no answer), endless (a body without end).
#                      Without a rule the status is 200
#   receiver_requests(RECEIVER)           what it got, in order: hashes with body,
#                      headers (a hash, names in lower case), status
#   receiver_events(RECEIVER)             the same, each when it begins and when it
#                      ends: hashes with event, body and id
#   receiver_stop(RECEIVER)
package FeedpubReceiver;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use Fcntl ':flock';
use IO::Socket::INET;
use JSON::PP;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Time::HiRes 'sleep';

our @EXPORT = qw(receiver_start receiver_rules receiver_requests receiver_events receiver_stop);

my %running;

sub receiver_start
{
	my (%options) = @_;
	my $port = $options{port} // PostgreSQL::Test::Cluster::get_free_port();
	my $directory = PostgreSQL::Test::Utils::tempdir();
	my $receiver = {
		port => $port,
		url => "http://127.0.0.1:$port/hook",
		log => "$directory/requests",
		rules => "$directory/rules"
	};

	receiver_rules($receiver);
	PostgreSQL::Test::Utils::append_to_file($receiver->{log}, '');
	my $listener = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $port,
		Listen => 100, ReuseAddr => 1) or die "could not listen: $!";
	$receiver->{pid} = fork // die "could not fork: $!";
	if (!$receiver->{pid})
	{
		# so that connections end with it
		setpgrp;
		local $SIG{CHLD} = 'IGNORE';
		while (1)
		{
			my $client = $listener->accept or next;
			my $pid = fork;
			next if $pid || !defined $pid;
			eval {
				$SIG{PIPE} = 'IGNORE';
				serve($receiver, $client);
			};
			POSIX::_exit(0);
		}
	}
	$listener->close;
	$running{ $receiver->{pid} } = 1;
	return $receiver;
}

sub receiver_rules
{
	my ($receiver, @rules) = @_;
	my $generation = ++$receiver->{generation};

	open my $out, '>', "$receiver->{rules}.new" or die $!;
	print $out encode_json({ generation => $generation, rules => \@rules });
	close $out;
	rename "$receiver->{rules}.new", $receiver->{rules} or die $!;
	return;
}

sub lines_of
{
	my ($in) = @_;

	seek $in, 0, 0;
	return map { decode_json($_) } <$in>;
}

# One connection, with its requests.
sub serve
{
	my ($receiver, $client) = @_;
	my $buffer = '';

	while (1)
	{
		while ($buffer !~ /\r\n\r\n/)
		{
			sysread $client, $buffer, 65536, length $buffer or return;
		}
		$buffer =~ s/\A(.*?)\r\n\r\n//s;
		my %headers = map { /^([^:]+):\s*(.*)$/ ? (lc $1, $2) : () } split /\r\n/, $1;
		while (length $buffer < ($headers{'content-length'} // 0))
		{
			sysread $client, $buffer, 65536, length $buffer or return;
		}
		my $body = substr $buffer, 0, $headers{'content-length'} // 0, '';
		my ($rule, $id) = note($receiver, $body, \%headers);

		sleep $rule->{delay} if $rule->{delay};
		sleep 3600 if $rule->{hang};
		note_end($receiver, $body, $id);
		my $status = $rule->{status} // 200;
		my $head = "HTTP/1.1 $status X\r\n"
		  . join '', map { "$_: $rule->{headers}{$_}\r\n" } keys %{ $rule->{headers} // {} };
		if ($rule->{endless})
		{
			syswrite $client, "$head\r\n" or return;
			1 while syswrite $client, 'x' x $rule->{endless} and sleep 0.01;
			return;
		}
		syswrite $client, "${head}Content-Length: 2\r\n\r\nok" or return;
	}
}

sub note
{
	my ($receiver, $body, $headers) = @_;

	open my $log, '+>>', $receiver->{log} or die $!;
	flock $log, LOCK_EX;
	my $file = decode_json(PostgreSQL::Test::Utils::slurp_file($receiver->{rules}));
	my @before = lines_of($log);
	my ($rule, $number) = ({}, undef);
	for my $i (0 .. $#{ $file->{rules} })
	{
		my $r = $file->{rules}[$i];
		my $n = grep { $_->{event} eq 'begin' && ($_->{rule} // '') eq "$file->{generation}.$i" } @before;

		next if $body !~ /(?:$r->{match})/ || (defined $r->{times} && $n >= $r->{times});
		($rule, $number) = ($r, "$file->{generation}.$i");
		last;
	}
	my $line = { event => 'begin', id => scalar @before, body => $body, headers => $headers,
		rule => $number, status => $rule->{hang} ? 0 : $rule->{status} // 200, time => time };
	print $log encode_json($line), "\n";
	close $log;
	return ($rule, scalar @before);
}

sub note_end
{
	my ($receiver, $body, $id) = @_;

	open my $log, '>>', $receiver->{log} or die $!;
	flock $log, LOCK_EX;
	print $log encode_json({ event => 'end', id => $id, body => $body }), "\n";
	close $log;
	return;
}

sub receiver_events
{
	my ($receiver) = @_;

	open my $log, '<', $receiver->{log} or die $!;
	flock $log, LOCK_SH;
	return lines_of($log);
}

sub receiver_requests
{
	my ($receiver) = @_;

	return grep { $_->{event} eq 'begin' } receiver_events($receiver);
}

sub receiver_stop
{
	my ($receiver) = @_;

	kill 'KILL', -$receiver->{pid};
	kill 'KILL', $receiver->{pid};
	waitpid $receiver->{pid}, 0;
	delete $running{ $receiver->{pid} };
	return;
}

END
{
	my $status = $?;

	for my $pid (keys %running)
	{
		kill 'KILL', -$pid, $pid;
		waitpid $pid, 0;
	}
	$? = $status;
}

1;
