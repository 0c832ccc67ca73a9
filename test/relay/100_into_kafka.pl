# Into topics of Kafka: messages, their keys, headers and topics; where a relay
# begins; the cursor that is committed with them.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubKafka;
use FeedpubRelay;
use FeedpubTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'");
my $kafka = kafka_start();
my $dir = PostgreSQL::Test::Utils::tempdir();

sub values_of { my ($topic) = @_; return [ map { $_->{value} } grep { $_->{topic} eq $topic } kafka_records($kafka) ] }

sql($node, q{SELECT feed_create('outbox'); SELECT feed_start_worker()});
sql($node, <<'SQL');
INSERT INTO outbox (message_type, message_key, data) VALUES ('order.placed', 'k1', '{"n": 1}'), ('é', E'a b\n"%', '2'), ('n', '', '3'), ('n', NULL, '4');
SQL
sql($node, q{SELECT feed_flush('outbox')});
is(relay_once($node, $kafka), 0, 'all is sent');
my @records = kafka_records($kafka);
is_deeply([ sort map { $_->{value} } @records ], [ 2, 3, 4, '{"n": 1}' ], 'each once');
my ($first) = grep { $_->{value} eq '{"n": 1}' } @records;
is($first->{topic}, 'outbox', 'the topic is the feed');
is($first->{key}, 'k1', 'the key is that of the message');
like($first->{headers}{ce_id}, qr/^\S+$/, 'it has its cursor');
is($first->{headers}{ce_type}, 'order.placed', 'the type');
is($first->{headers}{ce_subject}, 'k1', 'the key as an attribute');
is($first->{headers}{'content-type'}, 'application/json', 'and says what it is');
done_testing();
