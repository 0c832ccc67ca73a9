# A worker runs for months: it keeps nothing of feeds that are gone, and nothing
# of its looks at those that are there.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubPublished;
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

# It looks for policies ten times a second.
my $node = feedpub_node('server', conf => <<'CONF');
feedpub.naptime = 10ms
fsync = off
log_statement = none
CONF
my $feeds = 40;

sql($node, q(SELECT feed_create('outbox')));
sql($node, q(SELECT feed_start_worker()));
my $worker = await_worker($node);

# The bytes that are used in a memory context of the worker.
sub used
{
	my ($context) = @_;
	my $offset = -s $node->logfile;
	my $log;

	sql($node, "SELECT pg_log_backend_memory_contexts($worker)");
	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		$log = slurp_file($node->logfile, $offset);
		last if $log =~ /Grand total: /;
		usleep(100_000);
	}
	$log =~ /level: \d+; \Q$context\E: \d+ total .*; (\d+) used$/m
	  or die "no context $context in: $log";
	return $1;
}

sub await_turns
{
	my ($n) = @_;

	return comes_true($node, 'false', $n);
}

# Feeds that come and go
sub come_and_go
{
	sql($node, <<"SQL");
DO \$\$
BEGIN
	FOR i IN 1..$feeds LOOP
		PERFORM feed_create('short' || i);
		PERFORM feed_retain('short' || i, keep => '0 s');
		EXECUTE format('INSERT INTO short%s (message_type, data) VALUES (''A'', ''1'')', i);
	END LOOP;
END \$\$;
SQL
	ok( $node->poll_query_until('postgres',
			"SELECT count(*) = $feeds FROM feedpub._floor WHERE sync_id > 0"),
		'feeds come, and their rows may be removed');
	await_turns(3);
	return;
}

sub go
{
	sql($node, "DO \$\$BEGIN FOR i IN 1..$feeds LOOP PERFORM feed_drop('short' || i); END LOOP; END\$\$");
	await_turns(3);
	return;
}

come_and_go();

# Looks at policies
await_turns(100);
my $before = used('TopMemoryContext');
await_turns(1000);
cmp_ok(used('TopMemoryContext'), '<', $before + 4096,
	'looks for policies leave nothing');

go();
my $states = used('feedpub worker feeds');
for (1 .. 3)
{
	come_and_go();
	go();
}
cmp_ok(used('feedpub worker feeds'), '<=', $states, 'nothing is left of feeds that are gone');
is(await_worker($node), $worker, 'it is the same worker');

$node->stop;
done_testing();
