#!/usr/bin/perl
# http.pl DIRECTORY PROGRAM
#
# The outbox that demo.pl has filled, over HTTP: starts feedpub-http, the
# PROGRAM, as a login that may read nothing itself, and a second process that
# follows the feed by GET alone, page after page, and waits at its end.  Six
# writers go on, and in the middle the server is killed and started again.
# Exits with 1 if the follower lost, repeated or reordered anything.
#
# Then it prints commands to try: on a terminal it waits for Enter, else it runs
# them itself.
use strict;
use warnings;

use FindBin;
use lib $FindBin::Bin;
use Demo;
use HTTP::Tiny;
use IO::Socket::INET;
use Time::HiRes qw(sleep time);

my $WRITERS = 6;
my $MESSAGES = 1000;               # of each writer
my $PATIENCE = 60;                 # seconds for the follower to reach the end

my ($dir, $program) = @ARGV;
my $journal = "$dir/http.journal";
my $port = free_port();
my $url = "http://127.0.0.1:$port";

sub free_port
{
	my $socket = IO::Socket::INET->new(Listen => 1, LocalAddr => '127.0.0.1')
	  or die "no port: $!\n";
	return $socket->sockport;
}

sub start_server
{
	my $pid = fork // die "could not fork: $!\n";

	if (!$pid)
	{
		open STDERR, '>>', "$dir/http.log" or die "$dir/http.log: $!\n";
		$ENV{PGUSER} = 'demo_http';
		exec $program, "--listen=127.0.0.1:$port", '--anonymous-role=demo_web'
		  or die "$program: $!\n";
	}
	for (1 .. 100)
	{
		return $pid if HTTP::Tiny->new->get("$url/feeds")->{success};
		sleep 0.1;
	}
	die "$program did not start: " . `cat $dir/http.log`;
}

# The second process: it has the URL and its journal, and no database.
sub follow
{
	my $http = HTTP::Tiny->new(timeout => 30, max_redirect => 0);
	my $cursor = '';

	open my $out, '>', $journal or die "$journal: $!\n";
	$out->autoflush;
	while (1)
	{
		my $response = $http->get("$url/feeds/outbox?after=$cursor&limit=1000&wait=20");

		# where the feed begins; HTTP::Tiny follows no relative URLs
		$response = $http->get("$url/feeds/outbox$response->{headers}{location}")
		  if $response->{status} == 307;
		if (!$response->{success})
		{
			die "$response->{status} $response->{content}\n"
			  if $response->{status} =~ /^4/;
			print $out "-\n";                 # it was not there
			sleep 0.1;
			next;
		}
		# JSON::PP would take a second for a page
		print $out map { "$_\n" }
		  $response->{content} =~ /"row": \{[^{}]*?"message_id":"([^"]+)"/g;
		($cursor) = $response->{content} =~ /\], "cursor": "([-\w]+)", "more": \w+\}$/;
	}
}

sub write_messages
{
	my ($writer) = @_;
	my $writes = connect_as("writer $writer");
	my $insert = $writes->prepare(
		q(INSERT INTO outbox (message_type, message_key, data) VALUES ('Demo', ?, '{}')));

	for my $i (1 .. $MESSAGES)
	{
		$writes->begin_work;
		$insert->execute("writer $writer");
		sleep 0.005 * rand if $i % 10 == 0;
		$i % 7 == 0 ? $writes->rollback : $writes->commit;
	}
	return;
}

sub run_process
{
	my ($do, @arguments) = @_;
	my $pid = fork // die "could not fork: $!\n";

	return $pid if $pid;
	$do->(@arguments);
	POSIX::_exit(0);
}

# The lines of the journal: message ids, and "-" for each failed attempt.
sub journal
{
	open my $in, '<', $journal or return;
	chomp(my @lines = <$in>);
	return @lines;
}

my $dbh = connect_as('demo');
$dbh->do($_)
  for 'CREATE ROLE demo_http LOGIN NOINHERIT', 'CREATE ROLE demo_web',
  'GRANT demo_web TO demo_http', 'GRANT SELECT ON outbox TO demo_web';

print "\nThe outbox over HTTP\n\n";
my $server = start_server();
my $begin = time;
my $follower = run_process(\&follow);
my @writers = map { run_process(\&write_messages, $_) } 1 .. $WRITERS;
sleep 0.2 while time < $begin + 1.5;
kill 'KILL', $server;
waitpid $server, 0;
sleep 0.5;
$server = start_server();
waitpid $_, 0 for @writers;

# what was committed last may not be published yet
$dbh->do(q(SELECT feed_flush('outbox')));
my $wanted = $dbh->selectcol_arrayref(<<'SQL');
	WITH RECURSIVE page AS (
		SELECT feed_page('outbox', '', 10000) AS page
		UNION ALL
		SELECT feed_page('outbox', page ->> 'cursor', 10000) FROM page
			WHERE (page ->> 'more')::bool)
	SELECT e -> 'row' ->> 'message_id' FROM page, json_array_elements(page -> 'entries') e
SQL
my $end = time + $PATIENCE;
my @lines;
do
{
	sleep 0.2;
	@lines = journal();
} while (@lines < @$wanted && time < $end);
kill 'TERM', $follower;
waitpid $follower, 0;

my @got = grep { $_ ne '-' } @lines;
printf "  A second process followed %s messages by GET, %s of them written meanwhile,\n"
  . "  while the server was killed and started again (%s of the requests failed).\n",
  n(scalar @got), n($WRITERS * ($MESSAGES - int($MESSAGES / 7))), n(@lines - @got);
if ("@got" ne "@$wanted")
{
	printf "FAILED: of %s messages, it has %s, or in another order\n",
	  n(scalar @$wanted), n(scalar @got);
	exit 1;
}
print "  It has each of them once, in the published order.\n\n";

my @try = (
	"curl -sL '$url/feeds/outbox?limit=2'",
	"curl -sL -H 'Accept: application/x-ndjson' $url/feeds/outbox | wc -l",
	"curl -sLN -m 2 -H 'Accept: text/event-stream' '$url/feeds/outbox?limit=2'",
	"curl -s $url/feeds");
if (-t STDIN && -t STDOUT)
{
	print "  The server runs until you press Enter.  Try:\n\n";
	print "    $_\n" for @try;
	print "\n  Or look at it in a browser: $url/\n";
	<STDIN>;
}
else
{
	for my $command (@try)
	{
		my $shown = `$command`;
		$shown =~ s/^(.{300}).*/$1 .../s;
		chomp $shown;
		print "  \$ $command\n$shown\n\n";
	}
	print "  In a browser: $url/\n";
}
kill 'TERM', $server;
waitpid $server, 0;
exit($? ? 1 : 0);
