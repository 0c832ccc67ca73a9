# FeedpubProxy.pm: a proxy between a client and a server, as a process of its own.
#
#   proxy_start(LISTEN, PORT, option => value, ...)  connects what comes at one
#                port of this machine with another one, or with the socket of
#                this name, and returns its pid.
#                Options: every, the seconds between two connections that it
#                breaks, on average (0: none); delay, the share of pieces that
#                come up to 2 ms late (0.05); admits, code that gets a new
#                connection and what it has sent first, and returns those, in
#                arrays of two, that are let through now (all).  One that it does
#                not keep is closed
#   proxy_stop(PID, ...)   ends proxies
#   proxy_mute(PID)        from now on nothing passes on the connections that
#                          there are, and nobody is told
#
# A connection that it breaks is cut, or is half open: one side is closed, the
# other one is not told.  A proxy that waits for one receiver has all others wait
# as well.
package FeedpubProxy;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use FeedpubTest;
use IO::Select;
use IO::Socket::INET;
use IO::Socket::UNIX;
use POSIX ();
use Time::HiRes ();

our @EXPORT = qw(proxy_start proxy_stop proxy_mute);

my %told;

sub proxy_start
{
	my ($listen, $to, %options) = @_;
	my $listener = IO::Socket::INET->new(Listen => 50, LocalAddr => '127.0.0.1', LocalPort => $listen, ReuseAddr => 1)
	  or die "port $listen: $!";
	pipe my $told, my $tell or die "pipe: $!";
	my $pid = fork // die "could not fork: $!";

	if ($pid)
	{
		$told{$pid} = $told;
		return ends_with_test($pid);
	}
	$SIG{PIPE} = 'IGNORE';
	$SIG{$_} = 'DEFAULT' for qw(INT TERM HUP ALRM);
	eval { run($listener, $to, $tell, %options) };
	print STDERR "proxy: $@";
	POSIX::_exit(1);
}

sub proxy_stop
{
	for my $pid (@_)
	{
		end_process($pid);
	}
	return;
}

sub proxy_mute
{
	my ($pid) = @_;

	kill 'USR1', $pid;
	sysread $told{$pid}, my $answer, 1;
	return;
}

sub run
{
	my ($listener, $to, $tell, %options) = @_;
	my $every = $options{every} // 0;
	my $delay = $options{delay} // 0.05;
	my $select = IO::Select->new($listener);
	my (%peer, %is_new, @silent);
	my $mute = 0;
	my $next = Time::HiRes::time() + $every * 2 * rand;

	srand $$;
	local $SIG{USR1} = sub { $mute = 1 };
	while (1)
	{
		my @ready = $select->can_read(0.2);

		if ($mute)
		{
			# open, and never looked at again
			push @silent, grep { $_ != $listener } $select->handles;
			$select = IO::Select->new($listener);
			%peer = ();
			$mute = 0;
			syswrite $tell, '.';
			next;
		}
		for my $ready (@ready)
		{
			if ($ready == $listener)
			{
				my $client = $listener->accept or next;

				$select->add($client);
				if ($options{admits}) { $is_new{$client} = 1 }
				else { connect_peer($client, $to, $select, \%peer) }
				next;
			}
			if (delete $is_new{$ready})
			{
				$select->remove($ready);
				my $n = sysread $ready, my $data, 65536;

				for ($n ? $options{admits}->($ready, $data) : ())
				{
					my ($client, $first) = @$_;

					$select->add($client);
					connect_peer($client, $to, $select, \%peer);
					syswrite $peer{$client}, $first if $peer{$client};
				}
				next;
			}
			# it may have been closed in this round
			my $other = $peer{$ready} // next;

			pass($ready, $other, $delay) and next;
			$select->remove($ready, $other);
			delete @peer{ $ready, $other };
			close $_ for $ready, $other;
		}
		next if !$every || Time::HiRes::time() < $next;
		$next = Time::HiRes::time() + $every * 2 * rand;
		my @all = grep { $_ != $listener } $select->handles;
		my $victim = $all[ rand @all ] or next;
		my $other = $peer{$victim};

		$select->remove($victim, $other);
		delete @peer{ $victim, $other };
		close $victim;
		if (rand() < 0.5) { close $other }
		else
		{
			push @silent, $other;
			close shift @silent if @silent > 20;
		}
	}
	return;
}

# Connects a client with the server; it is closed if there is none.
sub connect_peer
{
	my ($client, $to, $select, $peer) = @_;
	my $server = $to =~ m{/} ? IO::Socket::UNIX->new(Peer => $to) : IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $to);

	if (!$server)
	{
		$select->remove($client);
		close $client;
		return;
	}
	$select->add($server);
	@$peer{ $client, $server } = ($server, $client);
	return;
}

sub pass
{
	my ($from, $to, $delay) = @_;
	my $n = sysread $from, my $data, 65536;

	return 0 if !$n;
	Time::HiRes::sleep(0.002 * rand) if rand() < $delay;
	for (my $at = 0; $at < $n;)
	{
		my $written = syswrite $to, $data, $n - $at, $at;

		return 1 if !$written;
		$at += $written;
	}
	return 1;
}

1;
