# A thousand feeds that are not written to, and a busy one: the busy one is
# published, the idle ones get no batches, and each of them is found when it
# wakes up.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubPublished;
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $nfeeds = $ENV{FEEDPUB_IDLE_FEEDS} // 1000;
my $node = feedpub_node('server', conf => <<'CONF');
log_statement = none
fsync = off
shared_buffers = 64MB
feedpub.max_batch_transactions = 1000
CONF

sql($node, <<"SQL");
SELECT feed_create('busy');
DO \$\$
BEGIN
	FOR i IN 1..$nfeeds LOOP
		PERFORM feed_create('idle' || i);
		COMMIT;
	END LOOP;
END \$\$;
SQL
sql($node, 'SELECT feed_start_worker()');
my $worker = await_worker($node);

sub insert_many
{
	sql($node, <<'SQL');
DO $$
BEGIN
	FOR i IN 1..500 LOOP
		INSERT INTO busy (message_type, message_key, data) VALUES ('A', i, '1');
		COMMIT;
	END LOOP;
END $$;
SQL
	return;
}

insert_many();
ok(await_published($node, 'busy'), 'the busy feed is published');
cmp_ok(batches($node, 'busy'), '>', 0, 'it has batches');
is( sql($node, "SELECT count(*) FROM feedpub._batch WHERE feed <> 'busy'::regclass"),
	0,
	'the idle ones have none');

# One wakes up, by name of all kinds: the first, the last, some between
for my $i (1, int($nfeeds / 2), $nfeeds)
{
	sql($node, "INSERT INTO idle$i (message_type, message_key, data) VALUES ('A', 'up', '1')");
	ok(await_published($node, "idle$i"), "an idle feed that wakes up is published");
	is(read_all($node, "idle$i"), 'up', 'and read');
}

# All at once, in one transaction and in many: more marks than there is room
sql($node, <<"SQL");
DO \$\$
BEGIN
	FOR i IN 1..$nfeeds LOOP
		EXECUTE format('INSERT INTO idle%s (message_type, data) VALUES (''A'', ''1'')', i);
		IF i > 100 THEN COMMIT; END IF;
	END LOOP;
END \$\$;
SQL
ok( $node->poll_query_until('postgres',
		"SELECT count(DISTINCT feed) = $nfeeds + 1 FROM feedpub._batch"),
	'all of them at once');
is(await_worker($node), $worker, 'by the same worker');

# A worker that begins looks at all of them once.
kill_worker($node);
insert_many();
sql($node, 'INSERT INTO idle7 (message_type, data) VALUES (\'A\', \'1\')');
my $before = sql($node, 'SELECT count(*) FROM feedpub._batch');
sql($node, 'SELECT feed_start_worker()');
ok(await_published($node, $_), "$_ is published by a new worker")
  for qw(busy idle7);
is(sql($node, 'SELECT count(*) FROM feedpub._batch'),
	$before + 2, 'with a batch each, and none for the others');

$node->stop;
done_testing();
