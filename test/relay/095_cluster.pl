# The proof: a cluster of three nats-servers, writers with rollbacks and long
# transactions, and relays, leaders and the database that are killed, and
# connections that are cut, delayed and half open.  A consumer compares: every
# committed message once, in published order, and nothing that was rolled back.
#
# It takes 30 s; with FEEDPUB_RELAY_LONG=1200 that many.  A relay that lacks the
# expected sequence must be seen: FEEDPUB_RELAY_PROGRAM=...

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubRelay;
use FeedpubTest;
use IO::Select;
use IO::Socket::INET;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $seconds = $ENV{FEEDPUB_RELAY_LONG} || 30;
my $seed = $ENV{FEEDPUB_SEED} // time;
srand $seed;
note("seed $seed");

my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'\nmax_connections = 60");
my @ports = map { PostgreSQL::Test::Cluster::get_free_port() } 1 .. 9;
my @routes = @ports[ 3 .. 5 ];
my (@nats, %kills);

sub start_server
{
	my ($i) = @_;
	my $routes = join ', ', map { "\"nats://127.0.0.1:$_\"" } @routes;

	$nats[$i] = nats_start("n$i", port => $ports[$i], store => $nats[$i]{store} // PostgreSQL::Test::Utils::tempdir(), no_wait => 1,
		conf => "cluster: { name: c, listen: \"127.0.0.1:$routes[$i]\", routes: [ $routes ] }\n");
	return;
}

# A proxy before each server: it delays, cuts, and forgets connections, which are
# half open then.
sub proxy
{
	my ($listen, $to) = @_;
	my $pid = fork // die;

	return $pid if $pid;
	$SIG{PIPE} = 'IGNORE';
	eval { run_proxy($listen, $to) };
	print STDERR "proxy: $@";
	POSIX::_exit(1);
}

sub run_proxy
{
	my ($listen, $to) = @_;
	my $listener = IO::Socket::INET->new(Listen => 50, LocalAddr => '127.0.0.1', LocalPort => $listen, ReuseAddr => 1) or POSIX::_exit(1);
	my $select = IO::Select->new($listener);
	my %peer;
	my $until = 0;

	srand $$;
	while (1)
	{
		for my $ready ($select->can_read(0.2))
		{
			if ($ready == $listener)
			{
				my $client = $listener->accept or next;
				my $server = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $to);

				if (!$server) { close $client; next; }
				$select->add($client, $server);
				@peer{ $client, $server } = ($server, $client);
				next;
			}
			# it may have been closed in this round
			my $other = $peer{$ready} // next;
			my $n = sysread $ready, my $data, 65536;

			if (!$n)
			{
				$select->remove($ready, $other);
				delete @peer{ $ready, $other };
				close $_ for $ready, $other;
				next;
			}
			select undef, undef, undef, 0.002 * rand if rand() < 0.05;
			for (my $at = 0; $at < $n;)
			{
				my $written = syswrite $other, $data, $n - $at, $at;
				last unless $written;
				$at += $written;
			}
		}
		next if rand() > 0.002;
		my @all = grep { $_ != $listener } $select->handles;
		my $victim = $all[ rand @all ] or next;
		my $other = $peer{$victim};

		# cut, or half open: one side is not told
		$select->remove($victim, $other);
		delete @peer{ $victim, $other };
		close $victim;
		if (rand() < 0.5) { close $other }
		else { push @{ $peer{kept} }, $other; close shift @{ $peer{kept} } if @{ $peer{kept} } > 5; }
	}
}

start_server($_) for 0 .. 2;
my @proxies = map { proxy($ports[ 6 + $_ ], $ports[$_]) } 0 .. 2;
my $url = join ',', map { "nats://127.0.0.1:$ports[$_]" } 6 .. 8;
my @options = (to => $url, stream_replicas => 3, takeover => 2, wait => 0);

# the answer of any server
sub api
{
	for my $try (1 .. 600)
	{
		for my $nats (@nats)
		{
			my $answer = eval { local $SIG{ALRM} = sub { die 'late' }; alarm 5; my $a = nats_api($nats, @_); alarm 0; $a };

			alarm 0;
			return $answer if $answer && !$answer->{error};
		}
		select undef, undef, undef, 0.2;
	}
	die 'no server answers';
}

soon(sub { local $FeedpubRelay::patience = 3; my $i = eval { nats_api($nats[0], 'INFO') }; $i && !$i->{error} }, 'a cluster');
sql($node, q{SELECT feed_create('outbox'); SELECT feed_start_worker()});
my $script = PostgreSQL::Test::Utils::tempdir() . '/write.sql';
append_to_file($script, <<'SQL');
\set r random(1, 20)
\set n random(1, 60)
BEGIN;
INSERT INTO outbox (message_type, message_key, data)
	SELECT CASE WHEN :r > 3 THEN 'committed' ELSE 'rolled back' END, :client_id, to_json(i) FROM generate_series(1, :n) i;
\if :r = 7
\sleep 300 ms
\endif
\if :r > 3
COMMIT;
\else
ROLLBACK;
\endif
\sleep 10 ms
SQL

my $writers = 0;
my $end = time + $seconds;
my $stop = PostgreSQL::Test::Utils::tempdir() . '/stop';

# Writers that begin again when the database was killed.
my $writer = fork // die;
if (!$writer)
{
	open STDOUT, '>', '/dev/null';
	open STDERR, '>', '/dev/null';
	while (time < $end)
	{
		my $left = $end - time;
		system 'pgbench', '-n', '-f', $script, '-c', '6', '-T', ($left > 1 ? $left : 1), '-d', $node->connstr('postgres');
		select undef, undef, undef, 0.3;
	}
	POSIX::_exit(0);
}

my %relays = map { $_ => relay_start($node, undef, @options, name => "r$_") } 1, 2;
my $interval = $seconds > 300 ? 10 : 4;
for (my $next = time + $interval; time < $end;)
{
	select undef, undef, undef, 0.2;
	next if time < $next;
	$next = time + $interval;
	my $what = (qw(relay relay leader follower stop database))[ rand 6 ];

	$kills{$what}++;
	if ($what eq 'relay')
	{
		my $i = 1 + int rand 2;

		relay_stop($relays{$i}, 'KILL');
		$relays{$i} = relay_start($node, undef, @options, name => "r$i");
	}
	elsif ($what eq 'database')
	{
		$node->stop('immediate');
		$node->start;
	}
	elsif ($what eq 'stop')
	{
		# a relay that sleeps, and comes again when the other one has taken over
		my $i = 1 + int rand 2;

		kill 'STOP', $relays{$i}{pid};
		select undef, undef, undef, 3;
		kill 'CONT', $relays{$i}{pid};
	}
	else
	{
		my $info = eval { api('STREAM.INFO.outbox') };
		my $leader = $info ? $info->{cluster}{leader} // 'n0' : 'n0';
		my ($i) = grep { ($what eq 'leader') == ("n$_" eq $leader) } sort { rand() <=> 0.5 } 0 .. 2;

		nats_stop($nats[$i], 'KILL');
		start_server($i);
	}
}
waitpid $writer, 0;
sql($node, q{SELECT feed_flush('outbox')});
diag('kills: ' . join ', ', map { "$_ $kills{$_}" } sort keys %kills);
my $count = sql($node, 'SELECT count(*) FROM outbox');
soon(sub { api('STREAM.INFO.outbox')->{state}{messages} >= $count }, 'all is in the stream');
relay_stop($_) for values %relays;
kill 'KILL', @proxies;
waitpid $_, 0 for @proxies;

# what was committed, in the order of the feed
my $cursor = '';
my @committed;
while (1)
{
	my @rows = split /\n/, sql($node, "SELECT op, cursor, (entry).message_id FROM feed_read(NULL::outbox, '$cursor', 20000)");
	my @entries = grep { !/^end/ } @rows;

	push @committed, map { (split /\|/)[2] } @entries;
	last unless @entries;
	$cursor = (split /\|/, $rows[-1])[1];
}
is(scalar(@committed), $count, 'all that was committed is published');
my @messages;
for my $try (1 .. 50)
{
	@messages = eval { stream_messages($nats[ $try % 3 ], 'outbox') };
	last if @messages;
	select undef, undef, undef, 1;
}
is(scalar(@messages), $count, 'as many are in the stream');
my @sent = map { $_->{headers}{'ce-messageid'} } @messages;
my %times;
$times{$_}++ for @sent;
is(scalar(grep { $times{$_} > 1 } keys %times), 0, 'none is there twice');
my ($wrong) = grep { ($sent[$_] // '') ne $committed[$_] } 0 .. $#committed;
is($wrong, undef, 'they are in published order');
is(scalar(grep { $_->{headers}{'ce-type'} ne 'committed' } @messages), 0, 'none was rolled back');
diag("$count messages");

done_testing();
