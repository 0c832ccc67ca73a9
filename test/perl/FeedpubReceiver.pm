# FeedpubReceiver.pm: a receiver of webhooks, for tests of feedpub-relay.
#
#   receiver_start(option => value, ...)  starts a server of HTTP on 127.0.0.1.
#                      Options: port (a free one), early (it answers so many
#                      requests with 413 before it has read them, and closes)
#   receiver_rules(RECEIVER, HASH, ...)   how it answers from now on; the first
#                      rule that fits counts: match (a pattern for the body),
#                      times (how often it counts), status (200), headers (a hash),
#                      delay (s), hang (no answer), endless (a body without end),
#                      close (it closes the connection after its answer, unsaid),
#                      flood (so many headers of 1 kB, and no end of them), hold
#                      (no answer before there are other rules), retry_at (a date
#                      in Retry-After, so many seconds after the request came).
#                      Without a rule the status is 200
#   receiver_requests(RECEIVER)           what it got, in order: hashes with body
#                      (1,000 bytes at most), headers (a hash, names in lower
#                      case), status, length (of the body)
#   receiver_events(RECEIVER)             the same, each when it begins and when it
#                      ends: hashes with event, body and id
#   receiver_stop(RECEIVER)
package FeedpubReceiver;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use Fcntl ':flock';
use FeedpubTest;
use IO::Socket::INET;
use JSON::PP;
use POSIX 'strftime';
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Time::HiRes 'sleep';

our @EXPORT = qw(receiver_start receiver_rules receiver_requests receiver_events receiver_stop);


sub receiver_start
{
	my (%options) = @_;
	my $port = $options{port} // PostgreSQL::Test::Cluster::get_free_port();
	my $directory = PostgreSQL::Test::Utils::tempdir();
	my $receiver = {
		port => $port,
		url => "http://127.0.0.1:$port/hook",
		log => "$directory/requests",
		rules => "$directory/rules",
		early => $options{early} // 0
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
			$receiver->{early}--;
			next if $pid || !defined $pid;
			eval {
				$SIG{PIPE} = 'IGNORE';
				serve($receiver, $client);
			};
			POSIX::_exit(0);
		}
	}
	$listener->close;
	ends_with_test($receiver->{pid});
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

sub rules_of { return decode_json(PostgreSQL::Test::Utils::slurp_file($_[0]{rules})) }

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
	while (1)
	{
		my $buffer = '';

		while ($buffer !~ /\r\n\r\n/)
		{
			sysread $client, $buffer, 65536, length $buffer or return;
		}
		my ($head, $body) = split /\r\n\r\n/, $buffer, 2;
		my %headers = map { /^([^:]+):\s*(.*)$/ ? (lc $1, $2) : () } split /\r\n/, $head;
		if ($receiver->{early} > -1)
		{
			syswrite $client, "HTTP/1.1 413 X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
			return;
		}
		while ((my $rest = ($headers{'content-length'} // 0) - length $body) > 0)
		{
			sysread $client, $body, $rest, length $body or return;
		}
		my ($rule, $id, $generation) = note($receiver, $body, \%headers);
		my $came = time;

		sleep $rule->{delay} if $rule->{delay};
		sleep 3600 if $rule->{hang};
		sleep 0.02 while $rule->{hold} && rules_of($receiver)->{generation} == $generation;
		note_end($receiver, $body, $id);
		my $status = $rule->{status} // 200;
		my $answer = "HTTP/1.1 $status X\r\n"
		  . join '', map { "$_: $rule->{headers}{$_}\r\n" } keys %{ $rule->{headers} // {} };
		$answer .= strftime("Retry-After: %a, %d %b %Y %H:%M:%S GMT\r\n", gmtime($came + $rule->{retry_at})) if $rule->{retry_at};
		if ($rule->{flood})
		{
			syswrite $client, "HTTP/1.1 $status X\r\n";
			syswrite $client, 'X-Header: ' . 'x' x 1000 . "\r\n" or last for 1 .. $rule->{flood};
			return;
		}
		if ($rule->{endless})
		{
			syswrite $client, "$answer\r\n" or return;
			1 while syswrite $client, 'x' x $rule->{endless} and sleep 0.01;
			return;
		}
		syswrite $client, "${answer}Content-Length: 2\r\n\r\nok" or return;
		return if $rule->{close};
	}
}

sub note
{
	my ($receiver, $body, $headers) = @_;

	open my $log, '+>>', $receiver->{log} or die $!;
	flock $log, LOCK_EX;
	my $file = rules_of($receiver);
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
	my $line = { event => 'begin', id => scalar @before, body => substr($body, 0, 1000), headers => $headers, length => length $body,
		rule => $number, status => $rule->{hang} ? 0 : $rule->{status} // 200, time => time };
	print $log encode_json($line), "\n";
	close $log;
	return ($rule, scalar @before, $file->{generation});
}

sub note_end
{
	my ($receiver, $body, $id) = @_;

	open my $log, '>>', $receiver->{log} or die $!;
	flock $log, LOCK_EX;
	print $log encode_json({ event => 'end', id => $id, body => substr($body, 0, 1000) }), "\n";
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
	end_process($receiver->{pid});
	return;
}

1;
