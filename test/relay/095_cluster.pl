# A cluster of three nats-servers, writers with rollbacks and long transactions,
# and relays, leaders and the database that are killed, and connections that are
# cut, delayed and half open.  A consumer compares: every committed message once,
# in published order, and nothing that was rolled back.  It takes 30 s;
# 097_proof.pl has twenty minutes of it, with failovers by Patroni.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubProxy;
use FeedpubRelay;
use FeedpubTest;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $seconds = 30;
my $seed = $ENV{FEEDPUB_SEED} // time;
srand $seed;
note("seed $seed");

my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'\nmax_connections = 60");
my @nats = nats_cluster();
my @ports = map { PostgreSQL::Test::Cluster::get_free_port() } @nats;
my @proxies = map { proxy_start($ports[$_], $nats[$_]{port}, every => 3) } 0 .. 2;
my @options = (to => join(',', map { "nats://127.0.0.1:$_" } @ports), stream_replicas => 3, takeover => 2, wait => 0);
my %kills;

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

my $end = time + $seconds;

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
for (my $next = time + 4; time < $end;)
{
	select undef, undef, undef, 0.2;
	next if time < $next;
	$next = time + 4;
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
		my $leader = nats_any(\@nats, 'STREAM.INFO.outbox')->{cluster}{leader} // 'n0';
		my ($i) = grep { ($what eq 'leader') == ("n$_" eq $leader) } sort { rand() <=> 0.5 } 0 .. 2;

		nats_stop($nats[$i], 'KILL');
		nats_restart($nats[$i]);
	}
}
waitpid $writer, 0;
sql($node, q{SELECT feed_flush('outbox')});
diag('kills: ' . join ', ', map { "$_ $kills{$_}" } sort keys %kills);
my $count = sql($node, 'SELECT count(*) FROM outbox');
soon(sub { nats_any(\@nats, 'STREAM.INFO.outbox')->{state}{messages} >= $count }, 'all is in the stream');
relay_stop($_) for values %relays;
proxy_stop(@proxies);

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
my $last = nats_any(\@nats, 'STREAM.INFO.outbox')->{state}{last_seq};
stream_follow(\@nats, 'outbox', 1, sub { push @messages, $_[0] if $_[0]; !@messages || $messages[-1]{seq} < $last });
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
