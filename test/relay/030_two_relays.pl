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

sub in_stream
{
	return nats_api($nats, 'STREAM.INFO.outbox')->{state}{messages};
}

sql($node, q{SELECT feed_create('outbox'); SELECT feed_start_worker()});
write_messages(10);
my $first = relay_start($node, $nats, name => 'first');
soon(sub { relay_metric($first, 'sent_total') == 10 }, 'the first sends');

# the second waits, however long nothing is to be done
my $second = relay_start($node, $nats, name => 'second', takeover => 1);
relay_logs($second, qr/is fenced: relay \\"first [0-9a-f]+\\" sends/, 'the second is fenced and says so');
is(relay_metric($second, 'fenced'), 1, 'so do its metrics');
is(relay_get($second, '/ready')->{status}, 200, 'it is ready to take over');
for my $n (1 .. 5)
{
	write_messages(10);
	soon(sub { relay_metric($first, 'sent_total') == 10 + 10 * $n }, "the first goes on, $n");
	select undef, undef, undef, 0.5;
}
is(relay_metric($second, 'sent_total'), 0, 'the second sends nothing');
select undef, undef, undef, 4;
unlike(relay_log($second), qr/takes over/, 'that nothing is to be done is no reason to take over');

# the first does not answer any more
kill 'STOP', $first->{pid};
write_messages(1000);
relay_logs($second, qr/takes over from relay \\"first [0-9a-f]+\\" at sequence 60/, 'the second takes over');
soon(sub { relay_metric($second, 'sent_total') == 1000 }, 'and sends what there is');
kill 'CONT', $first->{pid};
write_messages(1000);
relay_logs($first, qr/is fenced: relay \\"second [0-9a-f]+\\" sends/, 'the first is fenced when it comes again');
soon(sub { in_stream() == 2060 }, 'all is there');

# killed; the other one takes over, and the one that comes again waits
relay_stop($second, 'KILL');
relay_stop($first);
write_messages(1000);
$first = relay_start($node, $nats, name => 'first', takeover => 1);
relay_logs($first, qr/takes over from relay \\"second [0-9a-f]+\\"/, 'one that is started after the other was killed takes over');
soon(sub { in_stream() == 3060 }, 'and sends');
$second = relay_start($node, $nats, name => 'second', takeover => 1);
relay_logs($second, qr/is fenced/, 'the other one is fenced when it is started again');

# started again by its name it does not wait
relay_stop($first, 'KILL');
my $again = relay_start($node, $nats, name => 'first', takeover => 1000);
write_messages(10);
soon(sub { relay_metric($again, 'sent_total') == 10 }, 'a relay that is started again goes on at once');
unlike(relay_log($again), qr/fenced/, 'without being fenced');

# a namesake: the last that was started goes on, the other is fenced
my $namesake = relay_start($node, $nats, name => 'first', takeover => 1000);
write_messages(100);
soon(sub { in_stream() == 3170 }, 'two of one name: all is sent');
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
soon(sub { relay_metric($other, 'sent_total') == 10 }, 'a relay that is started again may have others than before');
for my $types ('', 'n,m')
{
	my $wrong = relay_start($node, $nats, name => 'other', types => $types, wait => 0);

	is(relay_wait($wrong), 1, "but another one with types '$types' ends");
}
my $same = relay_start($node, $nats, name => 'second', types => 'n', takeover => 1);
relay_logs($same, qr/is fenced/, 'and one with the same is fenced');
relay_stop($other, 'KILL');
write_messages(10);
soon(sub { relay_metric($same, 'sent_total') == 10 }, 'and takes over');
relay_stop($same);
my $all = relay_start($node, $nats, name => 'second');
write_messages(10);
soon(sub { relay_metric($all, 'sent_total') == 10 }, 'all types again');
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
soon(sub { in_stream() == $written }, 'three that are stopped by turns send all');
relay_stop($_) for @relays;
is_deeply([ map { $_->{data} } stream_messages($nats, 'outbox') ], [ 1 .. $written ], 'each once, in order');

done_testing();
