# Several webhooks of one feed in a process, with a role that has no more rights
# than it needs; and several relays that share a subscription with shards.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubReceiver;
use FeedpubRelay;
use FeedpubTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'");
my %to = map { $_ => receiver_start() } qw(a b shards);
my $directory = PostgreSQL::Test::Utils::tempdir();
my $file = "$directory/conf";

sub write_file
{
	my ($name, @lines) = @_;

	open my $out, '>', $name or die "$name: $!";
	print $out map { "$_\n" } @lines;
	close $out;
	return;
}

sub bodies { return [ sort map { $_->{body} } receiver_requests($to{ $_[0] }) ] }
sub got { my ($name, @bodies) = @_; return soon(sub { "@{ bodies($name) }" eq "@bodies" }, "$name gets: @bodies") || diag("@{ bodies($name) }") }

write_file("$directory/$_", 'whsec_' . $_ x 32) for qw(a b);
sql($node, <<'SQL');
SELECT feed_start_worker();
CREATE ROLE relay LOGIN;
CREATE SCHEMA shop;
SELECT feed_create('shop.orders');
ALTER TABLE shop.orders ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON shop.orders FOR SELECT TO relay USING (message_key IS DISTINCT FROM 'hidden');
INSERT INTO shop.orders (message_type, message_key, data)
	VALUES ('order', 'a', '1'), ('bill', 'b', '2'), ('order', 'hidden', '3');
SELECT feed_flush('shop.orders');
SQL
sub section
{
	my ($name, @lines) = @_;

	return ("[partner $name]", 'feed = shop.orders', "to = $to{$name}{url}", "subscription = $name", "secrets = $directory/$name", @lines);
}
my @common = ('allow = 127.0.0.1', 'name = one', 'request-timeout = 120');

# rights: SELECT on the feed, USAGE on its schema, nothing else
write_file($file, @common, section('a'));
my $relay = relay_start($node, undef, file => $file, role => 'relay', wait => 0);
relay_logs($relay, qr/permission denied for schema shop \(42501\)/, 'without USAGE it says so');
sql($node, 'GRANT USAGE ON SCHEMA shop TO relay');
relay_logs($relay, qr/permission denied for table orders \(42501\)/, 'without SELECT it says so');
sql($node, 'GRANT SELECT ON shop.orders TO relay');
got('a', 1, 2);
is(sql($node, q{SELECT has_database_privilege('relay', current_database(), 'CREATE') OR has_schema_privilege('relay', 'public', 'CREATE')}), 'f', 'it needs no more');
is(sql($node, 'SELECT owner FROM feedpub.subscriptions'), 'relay', 'the subscription is its own');

# a subscription of another role is refused, one of a role that it has is not
sql($node, q{CREATE ROLE other; GRANT USAGE ON SCHEMA shop TO other; GRANT SELECT ON shop.orders TO other; SET ROLE other; SELECT feed_subscribe('b', 'shop.orders', 'earliest')});
write_file($file, @common, section('a'), section('b', 'types = bill'));
kill 'HUP', $relay->{pid};
relay_logs($relay, qr/feed \\"partner b\\": stopped: .*\(42710\)/, 'a subscription of another role stops it');
is_deeply(bodies('b'), [], 'nothing is sent');
sql($node, q{GRANT other TO relay; SELECT feed_alter_subscription('b', types => '{bill}')});
kill 'HUP', $relay->{pid};
got('b', 2);

# two webhooks of one feed
sql($node, q{INSERT INTO shop.orders (message_type, message_key, data) VALUES ('order', 'a', '4'), ('bill', 'b', '5')});
got('a', 1, 2, 4, 5);
got('b', 2, 5);
soon(sub { relay_metric($relay, 'sent_total', 'partner a') == 4 && relay_metric($relay, 'sent_total', 'partner b') == 2 }, 'each has its metrics');
my ($a) = receiver_requests($to{a});
is($a->{headers}{'ce-source'}, '/feeds/shop.orders', 'the source is the feed');
is(relay_stop($relay), 0, 'SIGTERM ends it');

# sections of one subscription are refused
write_file($file, @common, section('a'), '[partner c]', 'feed = shop.orders', "to = $to{b}{url}", 'subscription = a', "secrets = $directory/b");
my $bad = relay_start($node, undef, file => $file, role => 'relay', wait => 0);
is(relay_wait($bad), 2, 'two sections with one subscription');
like(relay_log($bad), qr/feed \\"partner c\\": its subscription is that of feed \\"partner a\\" too/, 'are refused');

# two relays share a subscription with shards: each message once, each key in order
sql($node, <<'SQL');
SELECT feed_subscribe('shards', 'shop.orders', 'latest', shards => 4, lease => '2 s');
SQL
receiver_rules($to{shards}, { match => '.', times => 60, delay => 0.01 }, { match => '.', hold => 1 });
my @relays = map {
	relay_start($node, undef, feed => 'shop.orders', to => $to{shards}{url}, subscription => 'shards',
		secrets => "$directory/a", allow => '127.0.0.1', name => "r$_", requests => 2)
} 1, 2;
sql($node, q{INSERT INTO shop.orders (message_type, message_key, message_id, data)
	SELECT 'n', i % 20, i, to_json(i) FROM generate_series(1, 200) i});
sql($node, q{SELECT feed_flush('shop.orders')});
soon(sub { 60 <= grep { $_->{event} eq 'end' } receiver_events($to{shards}) }, 'some are delivered');
relay_stop($relays[1], 'KILL');
receiver_rules($to{shards}, { match => '.', delay => 0.01 });
soon(sub { sql($node, q{SELECT bool_and(lag IS NULL) FROM feedpub.subscriptions WHERE name = 'shards'}) eq 't' },
	'all is acknowledged, though one of them was killed');
my (%last, %seen);
my @wrong = grep { my $bad = ($last{ $_ % 20 } // 0) > $_; $last{ $_ % 20 } = $_; $bad }
  grep { !$seen{$_}++ } map { $_->{headers}{'webhook-id'} } receiver_requests($to{shards});
is(scalar(keys %seen), 200, 'each message has arrived');
is_deeply(\@wrong, [], 'each key is in order');
relay_stop($relays[0]);

done_testing();
