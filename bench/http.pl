# http.pl: the part of bench/run that measures feedpub-http.  Loaded by
# measure.pl, whose tools it uses.

use strict;
use warnings;
use IO::Socket::INET;

my $work = $ENV{WORK};
my $rounds = $ENV{ROUNDS};

# A port that nobody listens on.
sub free_port
{
	my $socket = IO::Socket::INET->new(Listen => 1, LocalAddr => '127.0.0.1')
	  or die "no port: $!\n";
	return $socket->sockport;
}

# Start a server, and wait until it accepts connections.
sub start_server
{
	my ($port, @command) = @_;
	my $pid = fork // die "could not fork: $!\n";

	if (!$pid)
	{
		open STDOUT, '>', "$work/http.$port.log" or die "$!\n";
		open STDERR, '>&', \*STDOUT or die "$!\n";
		exec @command or die "$command[0]: $!\n";
	}
	for (1 .. 100)
	{
		return $pid
		  if IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port);
		select undef, undef, undef, 0.1;
	}
	die "@command did not start: " . `cat $work/http.$port.log`;
}

sub http
{
	my %port = (http => free_port());
	my @servers;

	load('1m');
	psql('feed_1m', q(CALL feed_publish('feedpub')), 'SELECT feed_start_worker()');
	local $ENV{PGDATABASE} = 'feed_1m';
	push @servers, start_server($port{http}, "$work/tree/http/feedpub-http",
		"--listen=127.0.0.1:$port{http}", '--anonymous-role=postgres');
	if (-d "$work/node/node_modules/pg")
	{
		$port{node} = free_port();
		push @servers, start_server($port{node}, 'node', "$work/node/node.js", $port{node});
	}
	else
	{
		progress('node: skipped, npm could not install pg');
	}

	my $pages = csv('http_pages', qw(round limit variant calls rows bytes seconds));
	my $drain = csv('http_drain', qw(round variant calls rows bytes seconds));
	my $latency = csv('http_latency', qw(round variant us));
	my @all = ('feed_page=pq', map { "$_=$port{$_}" } sort keys %port);
	my @ours = ('feed_page=pq', "http=$port{http}");
	my $insert = q(INSERT INTO feedpub (publication_id, message_id, message_type, data)
		VALUES ('orders', gen_random_uuid()::text, 'OrderPlaced', message(1)::jsonb));
	for my $round (1 .. $rounds)
	{
		progress("http, round $round of $rounds");
		for my $limit (100, 1000)
		{
			http_client($pages, [ $round, $limit ], 'pages', 'feedpub', $limit,
				20, $limit == 100 ? 100 : 20, @all);
		}
		http_client($drain, [$round], 'drain', 'feedpub', 1000,
			$round % 2 ? @ours : reverse @ours);
		http_client($latency, [$round], 'latency', 'feedpub', 200, $insert, @ours);
	}
	kill 'TERM', @servers;
	waitpid $_, 0 for @servers;
	return;
}

# Run http.c, and add its lines to a file.
sub http_client
{
	my ($out, $prefix, @command) = @_;

	open my $in, '-|', "$work/http", @command or die "http: $!\n";
	while (my $line = <$in>)
	{
		print $out join(',', @$prefix, $line);
	}
	close $in or die "http failed\n";
	return;
}

1;
