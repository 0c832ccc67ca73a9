# The commands of README.md, "Over HTTP", taken out of that file: they start
# the server, read a page and an event stream.  The six lines of
# docs/reference.md, "Subscriptions over HTTP", are a consumer that gets all
# messages, also when the server is killed.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubHttp;
use FeedpubTest;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'there is no curl' if system 'curl --version >/dev/null 2>&1';

my $top = "$FindBin::RealBin/../..";
my $dir = PostgreSQL::Test::Utils::tempdir();

# the block of commands in a section
sub commands_of
{
	my ($file, $heading) = @_;
	my ($section) = slurp_file("$top/$file") =~ /^#+ \Q$heading\E\n(.*?)^#/ms;

	return $section =~ /^```sh\n(.*?)^```/ms;
}

my ($commands) = commands_of('README.md', 'Over HTTP');
my ($consumer) = commands_of('docs/reference.md', 'Subscriptions over HTTP');
my @commands = split /\n/, $commands;
my $port = PostgreSQL::Test::Cluster::get_free_port();
my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'");
my %pids;

is(scalar(() = $consumer =~ /\n/g), 6, 'the consumer has six lines');
is(scalar @commands, 4, 'beside the commands');
s/127\.0\.0\.1:8080/127.0.0.1:$port/g for @commands, $consumer;

# perl runs a command without a shell, for which "#" begins no comment
s/ +#.*// for @commands;
local @ENV{qw(PGHOST PGPORT PGDATABASE FEEDPUB_HTTP_LISTEN)}
  = ($node->host, $node->port, 'postgres', "127.0.0.1:$port");
chdir $top or die "could not change to $top: $!";

# A script as a process of its own group
sub start
{
	my ($name, $script) = @_;
	my $pid = fork // die "could not fork: $!";

	if (!$pid)
	{
		setpgrp 0, 0;
		open STDOUT, '>>', "$dir/$name.out" or POSIX::_exit(1);
		open STDERR, '>>', "$dir/$name.err" or POSIX::_exit(1);
		exec 'sh', '-c', $script or POSIX::_exit(1);
	}
	$pids{$name} = $pid;
	return;
}

sub stop
{
	my ($name) = @_;

	kill 'KILL', -$pids{$name};
	waitpid delete $pids{$name}, 0;
	return;
}

sub start_server
{
	start('server', $commands[1] =~ s/ &$//r);
	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		return if get({ url => "http://127.0.0.1:$port" }, '/feeds')->{status} == 200;
		select undef, undef, undef, 0.1;
	}
	die 'it did not start: ' . slurp_file("$dir/server.err");
}

sub insert
{
	my ($data) = @_;
	sql($node, "INSERT INTO outbox (message_type, data) VALUES ('A', '$data')");
	return;
}

# The numbers that the consumer has printed; those that came again, once
sub numbers
{
	my @numbers;

	for ((-e "$dir/consumer.out" ? slurp_file("$dir/consumer.out") : '') =~ /"n": ?(\d+)/g)
	{
		push @numbers, $_ if !@numbers || $numbers[-1] < $_;
	}
	return "@numbers";
}

sub await
{
	my ($expected, $test) = @_;

	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		last if numbers() eq $expected;
		select undef, undef, undef, 0.1;
	}
	return is(numbers(), $expected, $test) || diag slurp_file("$dir/consumer.err");
}

sql($node, q(SELECT feed_create('outbox', 'json'), feed_start_worker()));
sql($node, q(SELECT feed_subscribe('mail', 'outbox', 'earliest')));
insert('{"n": 1}');
sql($node, q(SELECT feed_flush('outbox')));
is($commands[0], 'make -C http', 'it has been built');
start_server();
like(`$commands[2]`, qr/^\{"entries": \[.*"more": false\}$/, 'a page');
start('stream', $commands[3]);

start('consumer', $consumer);
await('1', 'the consumer has the first');
insert(qq({"receipt":"x", "entries": [{"receipt":"y"}],\n"n": 2}));
insert(q<{"n": 3, "text": "it''s \"odd\" $(exit) `exit` \\\\ %s"}>);
await('1 2 3', 'data is data');
my $event = qr/^id: [-\w]{44}\ndata: .*"n": 1\}/m;
my $tries = 10 * $PostgreSQL::Test::Utils::timeout_default;
select undef, undef, undef, 0.1 while slurp_file("$dir/stream.out") !~ $event && $tries-- > 0;
like(slurp_file("$dir/stream.out"), $event, 'the event stream');
stop('server');
insert('{"n": 4}');
start_server();
insert('{"n": 5}');
await('1 2 3 4 5', 'the server is killed');
is($node->poll_query_until('postgres', q(SELECT lag_rows = 0 FROM feedpub.subscriptions)), 1,
	'all is acknowledged');

done_testing();

END
{
	my $status = $?;

	stop($_) for keys %pids;
	$? = $status;
}
