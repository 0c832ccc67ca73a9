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

# What the stream's leader says, by whichever server answers; undef without one.
sub info
{
	for my $i (grep { $nats[$_]{pid} } 0 .. 2)
	{
		my $info = eval { local $SIG{ALRM} = sub { die }; alarm 3; my $r = nats_api($nats[$i], 'STREAM.INFO.outbox'); alarm 0; $r };

		alarm 0;
		return $info if $info && $info->{state};
	}
	return;
}

start_server($_) for 0 .. 2;
soon(sub { local $FeedpubRelay::patience = 3; my $i = eval { nats_api($nats[0], 'INFO') }; $i && !$i->{error} }, 'a cluster of three');
sql($node, q{SELECT feed_create('outbox'), feed_create('other'); SELECT feed_start_worker()});
write_messages(1000);
my $relay = relay_start($node, undef, stream_replicas => 3, to => join(',', map { "nats://127.0.0.1:$_" } @ports[ 0 .. 2 ]));
soon(sub { relay_metric($relay, 'sent_total') == 1000 }, 'a stream of three replicas');
is(info()->{config}{num_replicas}, 3, 'is made');

# another leader
my $leader = info()->{cluster}{leader};
nats_api($nats[0], 'STREAM.LEADER.STEPDOWN.outbox');
soon(sub { my $i = info(); $i && ($i->{cluster}{leader} // $leader) ne $leader }, 'another leader');
write_messages(1000);
soon(sub { relay_metric($relay, 'sent_total') == 2000 }, 'it goes on');

# no quorum
($leader) = info()->{cluster}{leader} =~ /(\d)/;
my @others = grep { $_ != $leader } 0 .. 2;
nats_stop($nats[$_], 'KILL') for @others;
delete $nats[$_]{pid} for @others;
write_messages(1000);
relay_logs($relay, qr/not acknowledged|no stream takes|could not|connection was/, 'without a quorum it says that something is wrong');
cmp_ok(relay_metric($relay, 'sent_total'), '<', 3000, 'and has not sent all');
is(relay_get($relay, '/live')->{content}, "ok\n", 'it lives');
start_server($_) for @others;
soon(sub { relay_metric($relay, 'at_end') == 1 }, 'with a quorum it goes on');
is(relay_stop($relay), 0, 'it ends');
my $reader = $nats[$leader];
is_deeply([ map { $_->{data} } stream_messages($reader, 'outbox') ], [ 1 .. $written ], 'each once, in order');
nats_stop($nats[$_]) for 0 .. 2;

# A server that does not answer any more, though its connections stay, stops its
# feed only.
my ($frozen, $good) = map { nats_start($_) } qw(frozen good);
my $file = PostgreSQL::Test::Utils::tempdir() . '/relay.conf';
append_to_file($file, "[outbox]\nto = $frozen->{url}\n[other]\nto = $good->{url}\n");
$relay = relay_start($node, undef, file => $file);
soon(sub { relay_metric($relay, 'sent_total') == $written }, 'two servers');
kill 'STOP', $frozen->{pid};
sql($node, "INSERT INTO outbox (message_type, data) SELECT 'n', to_json(repeat('x', 1000)) FROM generate_series(1, 50000)");
sql($node, "INSERT INTO other (message_type, data) SELECT 'n', '1' FROM generate_series(1, 50000)");
soon(sub { (relay_metric($relay, 'sent_total', 'other') // 0) == 50000 }, 'the feed of the other server goes on');
my ($peak) = slurp_file("/proc/$relay->{pid}/status") =~ /^VmHWM:\s+(\d+) kB/m;
cmp_ok($peak, '<', 100_000, 'with bounded memory');
relay_logs($relay, qr/feed \\"outbox\\": /, 'and the relay says what is wrong with the first');
kill 'CONT', $frozen->{pid};
soon(sub { (relay_metric($relay, 'at_end') // 0) == 1 }, 'when that answers, it goes on');
relay_stop($relay);
is(scalar(stream_messages($frozen, 'outbox')), $written + 50000, 'each once');

done_testing();
