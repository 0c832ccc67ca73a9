# Errors of Kafka: what may work later is tried again, and what never will stops
# the feed, or goes where such messages go; by the tests' own broker, which keeps
# transactions, and by librdkafka's mock cluster, which is another implementation
# of the protocol.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubKafka;
use FeedpubRelay;
use FeedpubTest;
use IPC::Open2;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'");
my $kafka = kafka_start(partitions => 1);
my $dir = PostgreSQL::Test::Utils::tempdir();
my $n = 0;

# Writes messages 1, 2, ... into an outbox.
sub write_messages
{
	my ($feed, $count) = @_;

	sql($node, "INSERT INTO $feed (message_type, message_key, data) SELECT 'n', 'k', to_json(i) FROM generate_series($n + 1, $n + $count) i");
	sql($node, "SELECT feed_flush('$feed')");
	$n += $count;
	return;
}

sub values_of { my ($topic) = @_; return [ map { $_->{value} } grep { $_->{topic} eq $topic } kafka_records($kafka) ] }

sql($node, q{SELECT feed_create('outbox'), feed_create('large'), feed_create('other'); SELECT feed_start_worker()});
write_messages('outbox', 10);

# each request that the relay makes fails: 14 and 15 are coordinators that move, 6
# is a leader that moves, 51 another transaction, 49 a producer that is forgotten,
# 47 one that is fenced
my $relay = relay_start($node, $kafka);
soon(sub { relay_metric($relay, 'sent_total') == 10 }, 'it sends');
for (
	[ 'Produce', 6 ], [ 'Produce', 45 ], [ 'Produce', 47 ],
	[ 'AddPartitionsToTxn', 51, 2 ], [ 'AddPartitionsToTxn', 49 ],
	[ 'AddOffsetsToTxn', 14 ], [ 'AddOffsetsToTxn', 48 ],
	[ 'TxnOffsetCommit', 15 ], [ 'TxnOffsetCommit', 22 ],
	[ 'EndTxn', 14 ], [ 'EndTxn', 51 ], [ 'EndTxn', 47 ], [ 'EndTxn', 48 ])
{
	kafka_do($kafka, 'fail', @$_);
	write_messages('outbox', 10);
	soon(sub { kafka_offset($kafka, 'feedpub.outbox') && @{ values_of('outbox') } == $n }, "goes on after @$_");
}
kafka_do($kafka, 'cut');
write_messages('outbox', 10);
soon(sub { @{ values_of('outbox') } == $n }, 'goes on after its connections have ended');
is_deeply(values_of('outbox'), [ 1 .. $n ], 'each once, in order');
is(relay_stop($relay), 0, 'it ends');

# not while an offset is being committed, and a first read that fails
kafka_do($kafka, 'fail', 'OffsetFetch', 14);
kafka_do($kafka, 'fail', 'InitProducerId', 51, 2);
write_messages('outbox', 1);
is(relay_once($node, $kafka), 0, 'it begins when it can');
is_deeply(values_of('outbox'), [ 1 .. $n ], 'after what it has sent');

# a transaction has ended, and its cursor cannot be read yet
kafka_do($kafka, 'late', 1500);
$relay = relay_start($node, $kafka);
write_messages('outbox', 10);
soon(sub { @{ values_of('outbox') } == $n }, 'it commits');
relay_stop($relay, 'KILL');
is(relay_once($node, $kafka), 0, 'it waits until the cursor is stable');
is_deeply(values_of('outbox'), [ 1 .. $n ], 'each once, in order');
kafka_do($kafka, 'late', 0);

# another relay that waits does nothing to the one that sends
$relay = relay_start($node, $kafka, name => 'first', takeover => 1);
write_messages('outbox', 1);
soon(sub { relay_metric($relay, 'sent_total') == 1 }, 'the first sends');
my $second = relay_start($node, $kafka, name => 'second', takeover => 1000, wait => 0);
relay_logs($second, qr/is fenced: relay \\"first [0-9a-f]+\\" sends/, 'the second is fenced');
write_messages('outbox', 1);
soon(sub { relay_metric($relay, 'sent_total') == 2 }, 'the first goes on');
is(relay_metric($relay, 'failures_total'), 0, 'and was not disturbed');
is(relay_metric($second, 'sent_total'), 0, 'the second sends nothing');
is(relay_stop($_), 0, 'it ends') for $relay, $second;

# of two with one name the second does not wait, and the first commits while the
# second takes over: what it has read before is not the cursor any more
$relay = relay_start($node, $kafka, name => 'same', takeover => 1);
write_messages('outbox', 1);
soon(sub { relay_metric($relay, 'sent_total') == 1 }, 'the first sends');
kafka_do($kafka, 'fail', 'InitProducerId', 51, 1000);
$second = relay_start($node, $kafka, name => 'same', wait => 0);
relay_logs($second, qr/goes on after sequence/, 'the second has read the cursor');
write_messages('outbox', 1);
soon(sub { @{ values_of('outbox') } == $n }, 'the first commits');
kafka_do($kafka, 'pass', 'InitProducerId');
relay_logs($second, qr/another relay has committed since this one was opened/, 'the second reads it again');
relay_stop($relay, 'KILL');
write_messages('outbox', 1);
soon(sub { @{ values_of('outbox') } >= $n }, 'and goes on');
is_deeply(values_of('outbox'), [ 1 .. $n ], 'each once');
is(relay_stop($second), 0, 'it ends');

# one that had committed its name, and no cursor yet, when it was killed
kafka_do($kafka, 'fail', 'AddPartitionsToTxn', 29, 1000);
sql($node, q{SELECT feed_create('named'); INSERT INTO named (message_type, message_key, data) SELECT 'n', 'k', to_json(i) FROM generate_series(1, 5) i; SELECT feed_flush('named')});
$relay = relay_start($node, $kafka, feed => 'named', name => 'first', wait => 0);
soon(sub { (kafka_offset($kafka, 'feedpub.named') // '') =~ /^- first / }, 'it has committed its name');
$second = relay_start($node, $kafka, feed => 'named', name => 'second', takeover => 1, wait => 0);
relay_logs($second, qr/is fenced: relay \\"first [0-9a-f]+\\" sends/, 'another one is fenced');
relay_stop($relay, 'KILL');
kafka_do($kafka, 'pass', 'AddPartitionsToTxn');
soon(sub { @{ values_of('named') } == 5 }, 'and takes over');
is_deeply(values_of('named'), [ 1 .. 5 ], 'from the beginning');
is(relay_stop($second), 0, 'it ends');

# the cursor has gone, while it runs and before it begins
$relay = relay_start($node, $kafka, takeover => 1);
write_messages('outbox', 1);
soon(sub { relay_metric($relay, 'sent_total') == 1 }, 'it runs');
# a cursor that is committed between the two would be there again
kafka_do($kafka, 'fail', 'EndTxn', 48, 1000);
kafka_do($kafka, 'forget');
sql($node, q{INSERT INTO outbox (message_type, message_key, data) VALUES ('n', 'k', '0'); SELECT feed_flush('outbox')});
relay_logs($relay, qr/stopped: the cursor that was committed for group \\"feedpub.outbox\\" is gone/, 'the cursor is gone');
is(relay_wait($relay), 1, 'it stops');
kafka_do($kafka, 'pass', 'EndTxn');
$relay = relay_start($node, $kafka, wait => 0);
relay_logs($relay, qr/stopped: topic \\"outbox\\" has records, but no cursor is committed for group \\"feedpub.outbox\\"/, 'the cursor has expired');
is(relay_wait($relay), 1, 'it stops');
is(relay_once($node, $kafka, from => 'latest'), 0, 'unless it is told where to begin');
is(scalar(@{ values_of('outbox') }), $n, 'nothing came twice');

# "latest" is the end of the feed when it begins, though the sink fails then
sql($node, q{SELECT feed_create('newest'); INSERT INTO newest (message_type, message_key, data) VALUES ('n', 'k', '0'); SELECT feed_flush('newest')});
kafka_do($kafka, 'fail', 'InitProducerId', 53, 1000);
$relay = relay_start($node, $kafka, feed => 'newest', from => 'latest', progress => 1, wait => 0);
relay_logs($relay, qr/could not take the transactional.id/, 'it begins at the end, and fails');
sql($node, q{INSERT INTO newest (message_type, message_key, data) SELECT 'n', 'k', to_json(i) FROM generate_series(1, 5) i; SELECT feed_flush('newest')});
my $failures = relay_metric($relay, 'failures_total', 'newest');
soon(sub { relay_metric($relay, 'failures_total', 'newest') > $failures + 3 }, 'and again');
kafka_do($kafka, 'pass', 'InitProducerId');
soon(sub { @{ values_of('newest') } == 5 }, 'what was published since it began is sent');
is(relay_stop($relay), 0, 'it ends');
unlike(relay_log($relay), qr/has sent nothing for 0 s/, 'and told nothing of before it had begun');

# too large for the topic: the batch, and then one of its entries
$n = 0;
kafka_do($kafka, 'limit', 20000);
sql($node, <<'SQL');
INSERT INTO large (message_type, message_key, data) SELECT 'n', 'k', to_json(CASE WHEN i = 70 THEN repeat('x', 30000) ELSE i || repeat('.', 100) END) FROM generate_series(1, 100) i;
SELECT feed_flush('large');
SQL
$relay = relay_start($node, $kafka, feed => 'large', wait => 0);
relay_logs($relay, qr/stopped: the entry with cursor \S+ cannot be sent: Broker: Message size too large; make it possible, or set --errors-to/, 'too large for the topic');
is(relay_wait($relay), 1, 'it stops');
is(scalar(@{ values_of('large') }), 69, 'what is before it is sent');
is(relay_once($node, $kafka, feed => 'large', errors_to => '{feed}.errors'), 0, 'or it goes elsewhere');
is(scalar(@{ values_of('large') }), 99, 'and all others are sent');
my ($error) = grep { $_->{topic} eq 'large.errors' } kafka_records($kafka);
is($error->{value}, undef, 'without its data');
is($error->{headers}{ce_error}, 'Broker: Message size too large', 'with the reason');

# larger than librdkafka takes
append_to_file("$dir/small", "# of librdkafka\nmessage.max.bytes = 5000\n");
kafka_do($kafka, 'limit', 1000000);
$relay = relay_start($node, $kafka, feed => 'large', kafka => "$dir/small", topic => 'again', transactional_id => 'again', wait => 0);
relay_logs($relay, qr/cannot be sent: it is larger than message.max.bytes/, 'too large for librdkafka');
is(relay_wait($relay), 1, 'it stops');
is(scalar(@{ values_of('again') }), 69, 'what is before it is sent, here too');

# also without its data
sql($node, <<'SQL');
SELECT feed_create('key');
INSERT INTO key (message_type, message_key, data) VALUES ('n', 'k', '1'), ('n', repeat('k', 6000), '2');
SELECT feed_flush('key');
SQL
$relay = relay_start($node, $kafka, feed => 'key', kafka => "$dir/small", errors_to => '{feed}.errors', wait => 0);
relay_logs($relay, qr/cannot be sent: it is larger than message.max.bytes of librdkafka, also without its data/, 'a key that is too large');
is(relay_wait($relay), 1, 'it stops');
is_deeply(values_of('key'), [1], 'what is before it is sent');

# librdkafka's mock
my $cflags = `pkg-config --cflags --libs rdkafka`;
chomp $cflags;
is(system("cc -Wall -Werror -o $dir/mock $FindBin::RealBin/kafka_mock.c $cflags"), 0, 'the mock builds');
my $pid = open2(my $from, my $to, "$dir/mock");
my $brokers = <$from>;
chomp $brokers;
my $mock = { url => "kafka://$brokers" };

sub mock_fails
{
	print $to "@_\n";
	$to->flush;
	return scalar <$from>;
}

# by their numbers: 22 InitProducerId, 24 AddPartitionsToTxn, 0 Produce, 26 EndTxn, ...
mock_fails(@$_) for [ 22, 15, 1 ], [ 10, 15, 1 ], [ 24, 51, 2 ], [ 0, 6, 1 ], [ 25, 14, 1 ], [ 28, 14, 1 ], [ 26, 14, 1 ];
write_messages('other', 100);
is(relay_once($node, $mock, feed => 'other'), 0, 'with the mock, all is sent after errors that pass');
mock_fails(26, 47, 1);
$relay = relay_start($node, $mock, feed => 'other', from => 'earliest', transactional_id => 'another', wait => 0);
relay_logs($relay, qr/another producer has taken transactional.id \\"another\\"/, 'with the mock, it knows that it is fenced');
relay_stop($relay);
close $to;
waitpid $pid, 0;

done_testing();
