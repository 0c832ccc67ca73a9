# A stream of three replicas: without a quorum nothing is sent, and the relay says
# so; when there is one again, or the leader changes, it goes on.  And consumers
# that are slow, or a server that does not answer, hold nothing but their feed up.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubRelay;
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'");
my @ports = map { PostgreSQL::Test::Cluster::get_free_port() } 1 .. 6;
my $routes = join ', ', map { "\"nats://127.0.0.1:$_\"" } @ports[ 3 .. 5 ];
my @stores = map { PostgreSQL::Test::Utils::tempdir() } 0 .. 2;
my @nats;
my $written = 0;

sub start_server
{
	my ($i) = @_;

	$nats[$i] = nats_start("n$i", port => $ports[$i], store => $stores[$i], no_wait => 1,
		conf => "cluster: { name: c, listen: \"127.0.0.1:$ports[3 + $i]\", routes: [ $routes ] }\n");
	return;
}

sub write_messages
{
	my ($n) = @_;

	sql($node, "INSERT INTO outbox (message_type, message_key, data) SELECT 'n', i, to_json(i) FROM generate_series($written + 1, $written + $n) i");
	$written += $n;
	sql($node, "SELECT feed_flush('outbox')");
	return;
}

# What the stream's leader says, by whichever server answers.
sub info { return nats_any([ grep { $_->{pid} } @nats ], 'STREAM.INFO.outbox') }
sub leader { return info()->{cluster}{leader} // '' }

# All that was written is in the stream.
sub all_sent { my ($test) = @_; return soon(sub { info()->{state}{messages} == $written }, $test) }

start_server($_) for 0 .. 2;
soon(sub { local $FeedpubRelay::patience = 3; my $i = eval { nats_api($nats[0], 'INFO') }; $i && !$i->{error} }, 'a cluster of three');
sql($node, q{SELECT feed_create('outbox'), feed_create('other'); SELECT feed_start_worker()});
write_messages(1000);
my $relay = relay_start($node, undef, stream_replicas => 3, to => join(',', map { "nats://127.0.0.1:$_" } @ports[ 0 .. 2 ]));
relay_logs($relay, qr/begins after sequence 0/, 'a stream of three replicas');
all_sent('has all');
is(info()->{config}{num_replicas}, 3, 'is made');

# another leader
my $leader;
soon(sub { $leader = leader() }, 'a leader');
soon(
	sub {
		my $now = leader();

		# the one that it was can be elected again
		nats_any(\@nats, 'STREAM.LEADER.STEPDOWN.outbox') if $now eq $leader;
		return $now && $now ne $leader;
	},
	'another leader');
write_messages(1000);
all_sent('it goes on');

# no quorum
soon(sub { $leader = leader() }, 'a leader');
my ($left) = $leader =~ /(\d)/;
my @others = grep { $_ != $left } 0 .. 2;
my $before = length relay_log($relay);
nats_stop($nats[$_], 'KILL') for @others;
delete $nats[$_]{pid} for @others;
write_messages(1000);
soon(sub { substr(relay_log($relay), $before) =~ /not acknowledged|no stream takes|could not|connection was/ }, 'without a quorum it says that something is wrong')
  || diag(relay_log($relay));
cmp_ok(relay_metric($relay, 'sent_total'), '<', 3000, 'and has not sent all');
is(relay_get($relay, '/live')->{content}, "ok\n", 'it lives');
start_server($_) for @others;
all_sent('with a quorum it goes on');
is(relay_stop($relay), 0, 'it ends');
my @messages;
stream_follow(\@nats, 'outbox', 1, sub { push @messages, $_[0] if $_[0]; @messages < $written });
is_deeply([ map { $_->{data} } @messages ], [ 1 .. $written ], 'each once, in order');
is(info()->{state}{messages}, $written, 'and nothing else');
nats_stop($nats[$_]) for 0 .. 2;

# A server that does not answer any more, though its connections stay, stops its
# feed only.
my ($frozen, $good) = map { nats_start($_) } qw(frozen good);
my $file = PostgreSQL::Test::Utils::tempdir() . '/relay.conf';
append_to_file($file, "[outbox]\nto = $frozen->{url}\n[other]\nto = $good->{url}\n");
$relay = relay_start($node, undef, file => $file);
stream_has($frozen, 'outbox', $written, 'two servers');
$before = length relay_log($relay);
kill 'STOP', $frozen->{pid};
sql($node, "INSERT INTO outbox (message_type, data) SELECT 'n', to_json(repeat('x', 1000)) FROM generate_series(1, 50000)");
sql($node, "INSERT INTO other (message_type, data) SELECT 'n', '1' FROM generate_series(1, 50000)");
stream_has($good, 'other', 50000, 'the feed of the other server goes on');
my ($peak) = slurp_file("/proc/$relay->{pid}/status") =~ /^VmHWM:\s+(\d+) kB/m;
cmp_ok($peak, '<', 100_000, 'with bounded memory');
soon(sub { substr(relay_log($relay), $before) =~ /feed \\"outbox\\": / }, 'and the relay says what is wrong with the first');
kill 'CONT', $frozen->{pid};
stream_has($frozen, 'outbox', $written + 50000, 'when that answers, it goes on');
relay_stop($relay);
is(scalar(stream_messages($frozen, 'outbox')), $written + 50000, 'each once');

done_testing();
