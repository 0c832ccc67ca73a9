# A relay that catches up logs how far it is, and a metric tells what is left.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubRelay;
use FeedpubTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes 'sleep';

my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'");
my $nats = nats_start('n1');
my $n = 100_000;

sql($node, <<"SQL");
SELECT feed_create('outbox');
SELECT feed_start_worker();
INSERT INTO outbox (message_type, message_key, data) SELECT 'n', i, '1' FROM generate_series(1, $n) i;
SELECT feed_flush('outbox');
SQL

# one message at a time takes long
my %slowly = (from => 'earliest', in_flight => 1, progress => 1);
my $relay = relay_start($node, $nats, %slowly);
relay_logs(
	$relay,
	qr/outbox.*: has sent [1-9]\d* entries, [1-9]\d* a second, and about [1-9]\d* are left, for 0:\d\d:\d\d"/m,
	'it logs how far it is');

# A relay that finds nothing acknowledged for ten seconds connects again, and counts
# from there on, so on a machine that stands still this is tried once more.
my $tells = 0;
for my $try (1 .. 10)
{
	my $before = relay_metric($relay, 'sent_total');

	kill 'CONT', $nats->{pid};
	for (1 .. 1000)
	{
		last if relay_metric($relay, 'sent_total') > $before;
		sleep 0.05;
	}
	kill 'STOP', $nats->{pid};
	for (1 .. 160)
	{
		last if $tells;
		sleep 0.05;
		$tells = relay_log($relay) =~ /has sent nothing for \d+ s, and about [1-9]\d* entries are left"/;
	}
	last if $tells;
}
ok($tells, 'and that it does not get on');
my ($sent, $left) = map { relay_metric($relay, $_) } qw(sent_total left);
cmp_ok(abs($sent + $left - $n), '<', 10, 'what was sent, and what is left, is all there is');
kill 'CONT', $nats->{pid};
soon(sub { relay_metric($relay, 'sent_total') > $sent }, 'it goes on');
is(relay_stop($relay), 0, 'SIGTERM ends it');

is(relay_once($node, $nats), 0, 'the rest, at once');
$relay = relay_start($node, $nats, %slowly);
soon(sub { relay_metric($relay, 'at_end') == 1 }, 'at the end');
is(relay_metric($relay, 'left'), 0, 'nothing is left');
sql($node, q(INSERT INTO outbox (message_type, message_key, data) VALUES ('n', 'last', '1')));
stream_has($nats, 'outbox', $n + 1, 'one more is sent');
is(relay_stop($relay), 0, 'it ends');
unlike(relay_log($relay), qr/left/, 'who is at the end logs nothing of this');

done_testing();
