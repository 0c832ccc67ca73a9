# Clients that exist follow a feed through kills of feedpub-http and of the
# database, and end complete: curl and Python by the examples.  If
# FEEDPUB_HTTP_LONG is set, a page in headless Chromium too.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubHttp;
use FeedpubTest;
use IO::Socket::INET;
use JSON::PP;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $examples = "$FindBin::RealBin/../../examples/http";
my $dir = PostgreSQL::Test::Utils::tempdir();
my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'");
my @pids;

sql($node, q(SELECT feed_create('outbox'), feed_start_worker()));
my $pages = PostgreSQL::Test::Cluster::get_free_port();
my %flags = (port => PostgreSQL::Test::Cluster::get_free_port(), heartbeat => 1,
	cors_origins => "http://127.0.0.1:$pages");
my $http = http_start($node, %flags);
my $number = 0;

sub publish
{
	for (1 .. 5)
	{
		sql($node, "INSERT INTO outbox (message_type, message_key, data) VALUES ('A', 'k', '" . ++$number . "')");
	}
	return;
}

# A process of its own group
sub start
{
	my ($name, @command) = @_;
	my $pid = fork // die "could not fork: $!";

	if (!$pid)
	{
		setpgrp 0, 0;
		open STDOUT, '>>', "$dir/$name.out" or POSIX::_exit(1);
		open STDERR, '>>', "$dir/$name.err" or POSIX::_exit(1);
		exec { $command[0] } @command or POSIX::_exit(1);
	}
	push @pids, $pid;
	return $pid;
}

sub stop
{
	my ($pid) = @_;

	kill 'KILL', -$pid;
	waitpid $pid, 0;
	@pids = grep { $_ != $pid } @pids;
	return;
}

my $url = "$http->{url}/feeds/outbox";
my %clients = (curl => [ "$examples/follow.sh", $url, "$dir/curl.cursor" ]);
$clients{python} = [ 'python3', "$examples/follow.py", $url, "$dir/python.cursor" ]
  if !system q(python3 -c 'import requests' 2>/dev/null);
delete $clients{curl} if system 'curl --version >/dev/null 2>&1';

# What a client has printed, in order; what came again after a kill once
sub seen
{
	my ($name) = @_;
	my @numbers;

	return '' unless -e "$dir/$name.out";
	for (split /\n/, slurp_file("$dir/$name.out"))
	{
		my ($n) = $name eq 'chromium' ? /"data":(\d+)/ : /"data": ?(\d+)/;

		# the last line may be half written
		push @numbers, $n if defined $n && (!@numbers || $n > $numbers[-1]);
	}
	return "@numbers";
}

sub all_see
{
	my ($test) = @_;
	my $end = time + $PostgreSQL::Test::Utils::timeout_default;
	my $all = join ' ', 1 .. $number;

	for my $name (sort keys %clients)
	{
		select undef, undef, undef, 0.1 while seen($name) ne $all && time < $end;
		is(seen($name), $all, "$test: $name")
		  or diag -e "$dir/$name.err" ? slurp_file("$dir/$name.err") : '';
	}
	return;
}

# The page, and what it shows: a script in it sends that each time it changes.
sub serve_page
{
	my $listen = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $pages,
		Listen => 5, ReuseAddr => 1) or die "could not listen: $!";
	my $pid = fork // die "could not fork: $!";

	push @pids, $pid;
	return if $pid;
	setpgrp 0, 0;
	while (my $client = $listen->accept)
	{
		my ($head, $body) = ('', '');

		while (defined(my $line = <$client>))
		{
			last if $line eq "\r\n";
			$head .= $line;
		}
		if ($head =~ /^POST/ && $head =~ /^Content-Length: (\d+)/mi)
		{
			read $client, $body, $1;
			open my $out, '>', "$dir/chromium.new" or POSIX::_exit(1);
			print $out $body;
			close $out;
			rename "$dir/chromium.new", "$dir/chromium.out";
			$body = '';
		}
		elsif ($head =~ /live\.html/)
		{
			$body = slurp_file("$examples/live.html") . <<'HTML';
<script>
new MutationObserver(() => fetch('/seen', { method: 'POST',
	body: [...entries.children].map(item => item.textContent).join('\n') + '\n' }))
	.observe(entries, { childList: true });
</script>
HTML
		}
		print $client "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n",
		  'Content-Length: ', length $body, "\r\n\r\n$body";
		close $client;
	}
	POSIX::_exit(0);
}

if ($ENV{FEEDPUB_HTTP_LONG} && -x '/usr/bin/chromium')
{
	serve_page();
	$clients{chromium} = [
		'/usr/bin/chromium', '--headless', '--no-sandbox', '--disable-gpu',
		'--disable-dev-shm-usage', "--user-data-dir=$dir/profile",
		'--remote-debugging-port=0', "http://127.0.0.1:$pages/live.html?feed=$url" ];
	$ENV{HOME} = $dir;
}
plan skip_all => 'there is no client' unless %clients;

publish();
my %running = map { $_ => start($_, @{ $clients{$_} }) } sort keys %clients;
all_see('at the beginning');
publish();
all_see('live');

# feedpub-http is killed, and comes again
publish();
kill 'KILL', $http->{pid};
waitpid $http->{pid}, 0;
publish();
$http = http_start($node, %flags);
publish();
all_see('after a kill of feedpub-http');

# the database is
publish();
$node->stop('immediate');
publish_later();
all_see('after a kill of the database');

# and the clients are; Chromium keeps nothing
for my $name (grep { $_ ne 'chromium' } keys %running)
{
	stop($running{$name});
}
publish();
for my $name (grep { $_ ne 'chromium' } keys %running)
{
	$running{$name} = start($name, @{ $clients{$name} });
}
all_see('after a kill of the client');

# A cursor that is not accepted any more ends a client.
sql($node, q(SELECT feed_begin_history('outbox')));
for my $name (grep { $_ ne 'chromium' } sort keys %running)
{
	stop($running{$name});
	my $pid = start($name, @{ $clients{$name} });

	waitpid $pid, 0;
	isnt($?, 0, "another history ends $name");
	like(slurp_file("$dir/$name.err"), qr/410/, 'which says so');
}

sub publish_later
{
	# while it is away, clients are refused or get 503
	for (1 .. 5)
	{
		is(get($http, '/feeds/outbox', redirects => 0)->{status}, 503, 'no database') if $_ == 1;
		select undef, undef, undef, 0.2;
	}
	$node->start;
	publish();
	return;
}

http_stop($http);
done_testing();

END
{
	my $status = $?;

	for (@pids)
	{
		kill 'KILL', -$_, $_;
		waitpid $_, 0;
	}
	$? = $status;
}
