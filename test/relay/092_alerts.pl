# The alerts of examples/monitoring on feedpub-relay: each is raised by what it is
# there for; rules, dashboard and documents name what /metrics has.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubAlerts;
use FeedpubRelay;
use FeedpubTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'");
my $nats = nats_start('n1');
my @alerts = alerts('feedpub-programs');
my $top = "$FindBin::RealBin/../..";
my $file = PostgreSQL::Test::Utils::tempdir() . '/conf';
my @relays;
my $before;

sub now { return scraped(map { ('feedpub-relay' => $_->{admin}) } @relays) }
sub is_raised { return await_raised(\&now, $before, \@alerts, @_) }

sub write_message
{
	sql($node, "INSERT INTO $_ (message_type, message_key, data) VALUES ('t', 'k', '1')") for qw(a b);
	return sql($node, q{SELECT feed_flush('a'), feed_flush('b')});
}

sql($node, q{SELECT feed_create('a'), feed_create('b'); SELECT feed_start_worker()});
write_message();
append_to_file($file, "to = $nats->{url}\nprogress = 1\ntakeover = 3600\n[a]\n[b]\n");
push @relays, relay_start($node, $nats, file => $file, name => 'first');
uses_only('feedpub_relay', now(),
	(map { $_->{alert} => $_->{expr} } @alerts),
	map { $_ => slurp_file("$top/$_") } qw(examples/monitoring/programs.json docs/operations.md docs/reference.md));
$before = now();
is_raised('', 'all is well: no alert');

# a feed that is stopped
nats_api($nats, 'STREAM.DELETE.b');
write_message();
is_raised('FeedpubRelayStopped b', 'a stream is deleted');
kill 'HUP', $relays[0]{pid};
is_raised('', 'started again');

# a sink that does not answer: nothing is sent, and something is left
$before = now();
nats_stop($nats);
is_raised("FeedpubRelayFailing a\nFeedpubRelayFailing b", 'no sink');
write_message();
is_raised(join("\n", map { ("FeedpubRelay$_ a", "FeedpubRelay$_ b") } qw(Failing Lag)), 'for which there are entries');
nats_restart($nats);
is_raised('', 'it is there');

# no database; what it reads just now would be a failure
soon(sub { relay_metric($relays[0], 'at_end', 'a') == 1 && relay_metric($relays[0], 'at_end', 'b') == 1 }, 'at the end');
$before = now();
$node->stop;
is_raised('FeedpubProgramWithoutDatabase', 'no database');
$node->start;
is_raised('', 'it is there');

# another relay
push @relays, relay_start($node, $nats, file => $file, name => 'second');
soon(sub { relay_metric($relays[1], 'fenced', 'a') == 1 && relay_metric($relays[1], 'fenced', 'b') == 1 }, 'a second relay is fenced');
is(raised(now(), $before, @alerts), '', 'as it is to be');
my $first = shift @relays;
is(raised(now(), $before, @alerts), "FeedpubRelayFenced a\nFeedpubRelayFenced b", 'if nothing is known of the first one');

# one that has ended
unshift @relays, $first;
relay_stop($first);
is_raised("FeedpubProgramDown\nFeedpubRelayFenced a\nFeedpubRelayFenced b", 'the first does not run');

done_testing();
