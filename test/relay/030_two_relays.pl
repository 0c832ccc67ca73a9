# Two relays of one feed: the second is fenced and waits; it takes over when the
# first one leaves work undone; and when both write, each entry is there once.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubRelay;
use FeedpubTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'");
my $nats = nats_start('n1');
my $written = 0;

sub write_messages
{
	my ($n) = @_;

	sql($node, "INSERT INTO outbox (message_type, message_key, data) SELECT 'n', i, to_json(i) FROM generate_series($written + 1, $written + $n) i");
	$written += $n;
	return;
}

sql($node, q{SELECT feed_create('outbox'); SELECT feed_start_worker()});
write_messages(10);
my $first = relay_start($node, $nats, name => 'first', takeover => 1000);
stream_has($nats, 'outbox', 10, 'the first sends');

# The second waits as long as the first goes on, and however long nothing is to be
# done.  If this machine holds the first up for a second, the second is right to
# take over, which shows nothing, and another one is tried.
my $second;
for my $try (1 .. 20)
{
	my $slowest = 0;

	$second = relay_start($node, $nats, name => 'second', takeover => 1);
	relay_logs($second, qr/is fenced: relay \\"first [0-9a-f]+\\" sends/, 'the second is fenced and says so');
	if ($try == 1)
	{
		is(relay_metric($second, 'fenced'), 1, 'so do its metrics');
		is(relay_get($second, '/ready')->{status}, 200, 'it is ready to take over');
	}
	for my $n (1 .. 5)
	{
		my $begin = time;

		write_messages(10);
		stream_has($nats, 'outbox', $written, "all is sent, $n");
		$slowest = time - $begin if time - $begin > $slowest;
		sleep 0.5;
	}
	last if $slowest < 1;
	note("once more: it took $slowest s");
	relay_stop($_, 'KILL') for $first, $second;
	for my $takeover (1, 1000)
	{
		$first = relay_start($node, $nats, name => 'first', takeover => $takeover);
		write_messages(10);
		stream_has($nats, 'outbox', $written, 'the first sends');
		relay_stop($first) if $takeover == 1;
	}
}
is(relay_metric($second, 'sent_total'), 0, 'the second sends nothing');
sleep 4;
unlike(relay_log($second), qr/takes over/, 'that nothing is to be done is no reason to take over');

# the first does not answer any more
my $before = $written;
kill 'STOP', $first->{pid};
write_messages(1000);
relay_logs($second, qr/takes over from relay \\"first [0-9a-f]+\\" at sequence $before\D/, 'the second takes over');
stream_has($nats, 'outbox', $written, 'and sends what there is');
kill 'CONT', $first->{pid};
write_messages(1000);
relay_logs($first, qr/is fenced: relay \\"second [0-9a-f]+\\" sends/, 'the first is fenced when it comes again');
stream_has($nats, 'outbox', $written, 'all is there');

# killed; the other one takes over, and the one that comes again waits
relay_stop($second, 'KILL');
relay_stop($first);
write_messages(1000);
$first = relay_start($node, $nats, name => 'first', takeover => 1);
relay_logs($first, qr/takes over from relay \\"second [0-9a-f]+\\"/, 'one that is started after the other was killed takes over');
stream_has($nats, 'outbox', $written, 'and sends');
$second = relay_start($node, $nats, name => 'second', takeover => 1000);
relay_logs($second, qr/is fenced/, 'the other one is fenced when it is started again');

# started again by its name it does not wait
relay_stop($first, 'KILL');
my $again = relay_start($node, $nats, name => 'first', takeover => 1000);
write_messages(10);
stream_has($nats, 'outbox', $written, 'a relay that is started again goes on at once');
unlike(relay_log($again), qr/fenced/, 'without being fenced');

# a namesake: the last that was started goes on, the other is fenced
my $namesake = relay_start($node, $nats, name => 'first', takeover => 1000);
write_messages(100);
stream_has($nats, 'outbox', $written, 'two of one name: all is sent');
soon(sub { grep { relay_log($_) =~ /is fenced: relay \\"first [0-9a-f]+\\" sends/ } $again, $namesake },
	'by one of them, the other is fenced');
relay_stop($_) for $again, $namesake, $second;

# others in the same stream
sql($node, "SELECT feed_create('another')");
my $other = relay_start($node, $nats, name => 'other', types => 'n', wait => 0);
is(relay_wait($other), 1, 'a relay with other types ends');
like(relay_log($other), qr/stopped: relay \\"first [0-9a-f]+\\", which sends into stream \\"outbox\\", has other --types/, 'and says why');
$other = relay_start($node, $nats, name => 'first', types => 'n');
write_messages(10);
stream_has($nats, 'outbox', $written, 'a relay that is started again may have others than before');
for my $types ('', 'n,m')
{
	my $wrong = relay_start($node, $nats, name => 'other', types => $types, wait => 0);

	is(relay_wait($wrong), 1, "but another one with types '$types' ends");
}
my $same = relay_start($node, $nats, name => 'second', types => 'n', takeover => 1);
relay_logs($same, qr/is fenced/, 'and one with the same is fenced');
relay_stop($other, 'KILL');
write_messages(10);
stream_has($nats, 'outbox', $written, 'and takes over');
relay_stop($same);
my $all = relay_start($node, $nats, name => 'second');
write_messages(10);
stream_has($nats, 'outbox', $written, 'all types again');
relay_stop($all);
$other = relay_start($node, $nats, name => 'other', feed => 'another', stream => 'outbox', wait => 0);
is(relay_wait($other), 1, 'a relay of another feed ends');
like(relay_log($other), qr/\(PF001\)/, 'and says why');

# both write at once, for they take over again and again
my @relays = map { relay_start($node, $nats, name => "r$_", takeover => 1, wait => 0) } 1 .. 3;
for my $n (1 .. 15)
{
	write_messages(2000);
	kill 'STOP', $relays[ $n % 3 ]{pid};
	select undef, undef, undef, 0.4;
	kill 'CONT', $relays[ ($n + 1) % 3 ]{pid};
}
kill 'CONT', $_->{pid} for @relays;
stream_has($nats, 'outbox', $written, 'three that are stopped by turns send all');
relay_stop($_) for @relays;
is_deeply([ map { $_->{data} } stream_messages($nats, 'outbox') ], [ 1 .. $written ], 'each once, in order');

done_testing();
