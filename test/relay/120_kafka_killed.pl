# Relays of Kafka that are killed, stopped and replaced while writers commit and
# roll back: a reader with read_committed gets every committed message once, and
# those of a key in published order.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubKafka;
use FeedpubRelay;
use FeedpubTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'\nsynchronous_commit = off");
my $kafka = kafka_start();
my $script = PostgreSQL::Test::Utils::tempdir() . '/write.sql';

sql($node, q{SELECT feed_create('outbox'); SELECT feed_start_worker()});
append_to_file($script, <<'SQL');
\set r random(1, 10)
BEGIN;
INSERT INTO outbox (message_type, message_key, data)
	SELECT 't', :client_id * 10 + i % 10, to_json(i) FROM generate_series(1, 10) i;
\if :r > 2
COMMIT;
\else
ROLLBACK;
\endif
SQL
my $writer = fork // die;
if (!$writer)
{
	exec 'pgbench', '-n', '-f', $script, '-c', '2', '-t', '400', '-R', '200', '-d', $node->connstr('postgres')
	  or POSIX::_exit(1);
}

# So that there is something to be sent, whatever the writers have done.
sub write_messages
{
	sql($node, "INSERT INTO outbox (message_type, message_key, data) SELECT 't', i % 7, to_json(i) FROM generate_series(1, 1500) i");
	return;
}

sub commits_grow
{
	my ($n) = @_;
	my $before = kafka_count($kafka, 'commit');

	for (1 .. 50 * $PostgreSQL::Test::Utils::timeout_default)
	{
		return if kafka_count($kafka, 'commit') >= $before + $n;
		select undef, undef, undef, 0.02;
	}
	die 'nothing is committed';
}

# A relay is killed when it has committed something, and goes on with more.  In
# one round it is stopped instead, until another one has taken over: then
# it goes on, as if that had not happened.  Answers are lost, connections are cut,
# and transactions take their time to end.
for my $n (0 .. 7)
{
	my $relay = relay_start($node, $kafka, name => 'first', takeover => 1, wait => 0, in_flight => 500);

	write_messages();
	kafka_do($kafka, 'settle', $n % 4 == 3 ? 150 : 2);
	commits_grow(2);
	kafka_do($kafka, 'lose', (qw(EndTxn TxnOffsetCommit Produce))[ $n / 3 ]) if $n % 3 == 1;
	kafka_do($kafka, 'lose', 'InitProducerId') if $n == 6;
	kafka_do($kafka, 'cut') if $n % 3 == 2;
	if ($n == 4)
	{
		my $second = relay_start($node, $kafka, name => 'second', takeover => 1, wait => 0, in_flight => 500);

		kill 'STOP', $relay->{pid};
		write_messages();
		relay_logs($second, qr/takes over from relay \\"first/, "another one takes over");
		commits_grow(2);
		kill 'CONT', $relay->{pid};
		relay_logs($relay, qr/is fenced: relay \\"second|has taken transactional.id|another relay has committed/, "the first is fenced");
		relay_stop($second, 'KILL');
	}
	if ($n == 0)
	{
		# in the middle of a transaction, for certain
		kafka_do($kafka, 'fail', 'EndTxn', 14, 1_000_000);
		write_messages();
		soon(sub { kafka_count($kafka, 'append') > kafka_records($kafka) }, 'a transaction is open');
	}
	select undef, undef, undef, 0.005 * $n;
	relay_stop($relay, 'KILL');
	kafka_do($kafka, 'pass', 'EndTxn') if $n == 0;
}
waitpid $writer, 0;
is($?, 0, 'the writers have ended');
sql($node, q{SELECT feed_flush('outbox')});
is(relay_once($node, $kafka, name => 'first', takeover => 1), 0, 'the last one sends the rest');

# what was committed, in the order of the feed
my @committed = map { [ split /\|/ ] } split /\n/, sql($node, <<'SQL');
WITH RECURSIVE p (n, cursor, ids, keys) AS (
	SELECT 0, ''::text, NULL::text[], NULL::text[]
	UNION ALL
	SELECT n + 1, r.cursor, r.ids, r.keys FROM p, LATERAL (
		SELECT (array_agg(f.cursor ORDER BY o DESC))[1] AS cursor,
			array_agg((f.entry).message_id ORDER BY o) FILTER (WHERE f.op <> 'end') AS ids,
			array_agg((f.entry).message_key ORDER BY o) FILTER (WHERE f.op <> 'end') AS keys
		FROM feed_read(NULL::outbox, p.cursor, 5000) WITH ORDINALITY f (cursor, op, entry, moment, o)) r
	WHERE r.cursor IS NOT NULL)
SELECT unnest(ids), unnest(keys) FROM p WHERE ids IS NOT NULL
SQL
my $count = sql($node, 'SELECT count(*) FROM outbox');
my @records = kafka_records($kafka);
cmp_ok($count, '>', 5000, 'many were committed');
is(scalar(@records), $count, 'as many are in committed transactions');
cmp_ok(kafka_count($kafka, 'append'), '>', $count, 'and more in others');
my (%sent, %expected);
push @{ $expected{ $_->[1] } }, $_->[0] for @committed;
push @{ $sent{ $_->{key} } }, $_->{headers}{ce_messageid} for @records;
is_deeply(\%sent, \%expected, 'each once, those of a key in order');

done_testing();
