# Relay, nats-server and connections that are killed while writers commit and
# roll back: every committed message is in the stream once, in published order.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubRelay;
use FeedpubTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'\nsynchronous_commit = off");
my $nats = nats_start('n1');
my $script = PostgreSQL::Test::Utils::tempdir() . '/write.sql';

sql($node, q{SELECT feed_create('outbox'); SELECT feed_start_worker()});
append_to_file($script, <<'SQL');
\set r random(1, 10)
BEGIN;
INSERT INTO outbox (message_type, message_key, data)
	SELECT 't', :client_id, to_json(i) FROM generate_series(1, 25) i;
\if :r > 2
COMMIT;
\else
ROLLBACK;
\endif
SQL
my $writer = fork // die;
if (!$writer)
{
	exec 'pgbench', '-n', '-f', $script, '-c', '4', '-t', '1250', '-d', $node->connstr('postgres')
	  or POSIX::_exit(1);
}

# Each relay is killed when it has had some acknowledged, and has more in flight.
my ($kills, $written) = (0, 0);
for (my $end = time + 10 * $PostgreSQL::Test::Utils::timeout_default; time < $end;)
{
	my $relay = relay_start($node, $nats, wait => 0);

	for (1 .. 100)
	{
		last if (relay_metric($relay, 'sent_total') // 0) >= 1500;
		select undef, undef, undef, 0.02;
	}
	if ($kills % 3 == 2)
	{
		# the relay goes on, with a server that has lost its connection
		nats_stop($nats, 'KILL');
		$nats = nats_start('n1', port => $nats->{port}, store => $nats->{store});
		select undef, undef, undef, 0.3;
	}
	relay_stop($relay, 'KILL');
	$kills++;
	$written = 1 if !$written && waitpid($writer, POSIX::WNOHANG()) > 0;
	last if $written && $kills >= 12;
}
ok($written, 'the writers have ended');
cmp_ok($kills, '>=', 12, 'relays were killed');
sql($node, q{SELECT feed_flush('outbox')});
is(relay_once($node, $nats), 0, 'the last one sends the rest');

# what was committed, in the order of the feed
my @committed = split /\n/, sql($node, <<'SQL');
WITH RECURSIVE p (n, cursor, ids) AS (
	SELECT 0, ''::text, NULL::text[]
	UNION ALL
	SELECT n + 1, r.cursor, r.ids FROM p, LATERAL (
		SELECT (array_agg(f.cursor ORDER BY o DESC))[1] AS cursor,
			array_agg((f.entry).message_id ORDER BY o) FILTER (WHERE f.op <> 'end') AS ids
		FROM feed_read(NULL::outbox, p.cursor, 5000) WITH ORDINALITY f (cursor, op, entry, moment, o)) r
	WHERE r.cursor IS NOT NULL)
SELECT unnest(ids) FROM p WHERE ids IS NOT NULL
SQL
my $count = sql($node, 'SELECT count(*) FROM outbox');
cmp_ok($count, '>', 80000, 'many were committed');
is(scalar(@committed), $count, 'all are published');
my @sent = map { $_->{headers}{'ce-messageid'} } stream_messages($nats, 'outbox');
is(scalar(@sent), $count, 'as many are in the stream');
my ($wrong) = grep { ($sent[$_] // '') ne $committed[$_] } 0 .. $#committed;
is($wrong, undef, 'in published order, each once');

done_testing();
