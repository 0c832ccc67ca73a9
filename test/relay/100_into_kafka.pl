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

# a connection is tried for ten seconds
my $lonely = relay_start($node, { url => 'kafka://127.0.0.1:1' }, wait => 0);

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
my %by_value = map { ($_->{value} // '') => $_ } @records;
is($by_value{2}{key}, qq{a b\n"%}, 'a key as it is');
is($by_value{2}{headers}{ce_subject}, 'a b%0A"%25', 'and without control characters as an attribute');
is($by_value{2}{headers}{ce_type}, "\xc3\xa9", 'attributes are UTF-8');
is($by_value{3}{key}, '', 'an empty key');
is($by_value{4}{key}, undef, 'none');
ok(!exists $by_value{4}{headers}{ce_subject}, 'and no attribute then');
my ($cursor) = kafka_offset($kafka, 'feedpub.outbox') =~ /^(\S+) \S+ [0-9a-f]{16}$/;
ok((grep { $_->{headers}{ce_id} eq $cursor } @records), 'the cursor of the last entry is committed');

# once more, nothing new; then more, of which some are not sent
is(relay_once($node, $kafka), 0, 'nothing to be done');
is(scalar(kafka_records($kafka)), 4, 'nothing came twice');
sql($node, q{INSERT INTO outbox (message_type, message_key, data) VALUES ('skipped', 'k1', '5'); SELECT feed_flush('outbox')});
is(relay_once($node, $kafka, types => 'order*'), 0, 'what is not sent');
isnt((split / /, kafka_offset($kafka, 'feedpub.outbox'))[0], $cursor, 'moves the cursor');
is(relay_once($node, $kafka), 0, 'later');
is(scalar(kafka_records($kafka)), 4, 'it is passed');

# topics of a template: all values have different ones
sql($node, q{SELECT feed_create('"Odd ""Name"""')});
sql($node, q{INSERT INTO "Odd ""Name""" (message_type, message_key, data) SELECT t, 'k', to_json(t) FROM unnest(ARRAY['a.b', 'a_b', 'a_2Eb', '.a', '_', 'é', 'a%b', 'a b', 'x_CAFE', '']) t; SELECT feed_flush('"Odd ""Name"""')});
is(relay_once($node, $kafka, feed => '"Odd ""Name"""', topic => 'x.{feed}.{type}', cursors => 'cursors'), 0, 'topics of a template');
my %topics = map { $_->{topic} => $_->{value} } grep { $_->{topic} =~ /^x/ } kafka_records($kafka);
my $odd = 'x._22Odd_20_22_22Name_22_22_22';
is_deeply(\%topics, {
	"$odd.a.b" => '"a.b"', "$odd.a_b" => '"a_b"', "$odd.a_5F2Eb" => '"a_2Eb"', "$odd._2Ea" => '".a"', "$odd._5F" => '"_"',
	"$odd._C3_A9" => "\"\xc3\xa9\"", "$odd.a_25b" => '"a%b"', "$odd.a_20b" => '"a b"', "$odd.x_5FCAFE" => '"x_CAFE"', "$odd._00" => '""'
}, 'all of them differ');
ok(kafka_offset($kafka, 'feedpub.=22Odd=20=22=22Name=22=22=22'), 'with a cursor elsewhere');

# a table feed: what is deleted is a tombstone
sql($node, q{CREATE TABLE t (k int PRIMARY KEY, v text); SELECT feed_attach('t'); INSERT INTO t VALUES (1, 'a'), (2, 'b'); DELETE FROM t WHERE k = 1; SELECT feed_flush('t')});
is(relay_once($node, $kafka, feed => 't'), 0, 'a table feed');
my @rows = grep { $_->{topic} eq 't' } kafka_records($kafka);
my %rows = map { $_->{key} => $_ } @rows;
is_deeply([ map { $_->{value} } @rows{ sort keys %rows } ], [ undef, '{"k":2,"v":"b"}' ], 'a deleted row is a tombstone') or diag explain \@rows;
is_deeply([ map { $_->{headers}{'Feedpub-Op'} } @rows{ sort keys %rows } ], [ 'delete', 'upsert' ], 'the ops');
unlike(join('', map { $_->{headers}{'content-type'} // '-' } $rows[0]{value} ? $rows[1] : $rows[0]), qr/json/, 'without data there is no type of it');

# what is wrong is said before it begins, and values of the file are not told
sub refuses
{
	my ($pattern, %options) = @_;
	my $relay = relay_start($node, $kafka, wait => 0, check => 1, %options);

	is(relay_wait($relay), 2, "refuses @{[ %options ]}");
	like(relay_log($relay), $pattern, 'and says so');
	unlike(relay_log($relay), qr/s3cret/, 'no secret');
	return;
}

append_to_file("$dir/$_->[0]", $_->[1]) for [ a => "acks=1\n" ], [ b => "sasl.passwort=s3cret\n" ], [ c => "s3cret\n" ], [ d => "transactional.id = s3cret\n" ],
  [ e => "partitioner=random\n" ], [ f => "partitioner=consistent_random\n" ], [ good => "# s3cret\n\nlinger.ms = 1\nsasl.password=s3cret\n" ];
refuses(qr/may not have \\"acks\\", on which the relay depends/, kafka => "$dir/a");
refuses(qr/librdkafka does not take \\"sasl.passwort\\"/, kafka => "$dir/b");
refuses(qr/line 1 of \\"\S+\\" is not name=value/, kafka => "$dir/c");
refuses(qr/may not have \\"transactional.id\\"/, kafka => "$dir/d");
refuses(qr/may not have \\"partitioner\\"/, kafka => "$dir/$_") for 'e', 'f';
refuses(qr/could not open file/, kafka => "$dir/none");
refuses(qr/is no template of topics/, topic => 'a b');
refuses(qr/is no template of topics/, errors_to => '{nothing}');
refuses(qr/are set in the file of setting \\"kafka\\"/, tls_ca => "$dir/a");
my $relay = relay_start($node, $kafka, kafka => "$dir/good");
is(relay_stop($relay), 0, 'a good file');
unlike(relay_log($relay), qr/s3cret/, 'no secret');
$relay = relay_start($node, $kafka, check => 1, wait => 0, feed => 'outbox', transactional_id => 'nobody');
is(relay_wait($relay), 0, '--check');
is(kafka_offset($kafka, 'nobody'), undef, 'commits nothing');

relay_logs($lonely, qr/could not read the cursor .*(?:127.0.0.1:1|Timed out|transport)/i, 'no broker');
is(relay_stop($lonely), 0, 'it ends');

done_testing();
