# A relay that sends webhooks is killed again and again: each message arrives, in
# the order of its key, and a receiver that remembers ids has each once.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubReceiver;
use FeedpubRelay;
use FeedpubTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes 'sleep';

my $N = 300;
my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'");
my $receiver = receiver_start();
my $directory = PostgreSQL::Test::Utils::tempdir();

append_to_file("$directory/secrets", 'whsec_' . 'A' x 32);
sql($node, <<"SQL");
SELECT feed_create('outbox');
SELECT feed_start_worker();
SELECT feed_subscribe('hook', 'outbox', 'earliest', lease => '2 s');
INSERT INTO outbox (message_type, message_key, message_id, data)
	SELECT 'n', i % 10, i, i::text::jsonb FROM generate_series(1, $N) i;
SELECT feed_flush('outbox');
SQL
sub left { return sql($node, 'SELECT lag_rows FROM feedpub.subscriptions') }

my ($kills, $before) = (0, 0);
while ((my $left = left()) > 0)
{
	# so that none gets further than it is looked at
	receiver_rules($receiver, { match => '.', times => 20, delay => 0.01 }, { match => '.', hold => 1 });
	# another name each second time, so that the lease has to end
	my $relay = relay_start($node, undef, to => $receiver->{url}, secrets => "$directory/secrets",
		subscription => 'hook', allow => '127.0.0.1', requests => 4, name => 'r' . int($kills / 2) % 2, wait => 0);
	my $until = time + $PostgreSQL::Test::Utils::timeout_default;

	# in the middle of requests, of which the first are acknowledged
	while ((my $now = left()) > 0 && time < $until)
	{
		last if $now <= $left - 10 && receiver_requests($receiver) >= $before + 20;
		sleep 0.02;
	}
	$before = receiver_requests($receiver);
	relay_stop($relay, 'KILL');
	$kills++;
}
cmp_ok($kills, '>', 4, 'the relay was killed');
my @got = map { $_->{headers}{'webhook-id'} } receiver_requests($receiver);
my (%seen, @first);
$seen{$_}++ or push @first, $_ for @got;
is(scalar(keys %seen), $N, 'each message has arrived');
cmp_ok(scalar(@got), '<', 2 * $N, 'few came twice');
my %last;
my @wrong = grep { my $bad = ($last{ $_ % 10 } // 0) > $_; $last{ $_ % 10 } = $_; $bad } @first;
is_deeply(\@wrong, [], 'by their ids each key is in order, without doubles');
is(sql($node, 'SELECT count(*) FROM feedpub.parked'), '0', 'nothing is parked');

done_testing();
