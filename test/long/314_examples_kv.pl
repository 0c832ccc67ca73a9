# examples/kv: the key/value table of the feeds posts under several consumers,
# one of all namespaces and one for each of two, while writers insert, update,
# move and delete, some in long transactions; the consumers are killed in the
# middle.  In the end each copy equals what it is a copy of.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubExample;
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('server', conf => <<'CONF');
shared_preload_libraries = 'feedpub'
log_statement = none
CONF
sql($node, slurp_file(example('kv/schema.sql')));
my %consumers = (B => 'NULL', 'C: cats' => q('cats'), 'D: people' => q('people'));
sql($node, "INSERT INTO cursors VALUES ('$_')") for sort keys %consumers;

my $script = <<'SQL';
\set what random(1, 10)
\set ns random(1, 3)
\set k random(1, 50)
\set us random(0, 20000)
BEGIN;
INSERT INTO kv (ns, k, v) VALUES ((ARRAY['cats', 'people', 'math'])[:ns], :k, :us)
  ON CONFLICT (ns, k) DO UPDATE SET v = excluded.v, feed_xid = NULL;
\if :what <= 2
DELETE FROM kv WHERE (ns, k) = ('cats', :k::text);
\elif :what = 3
\sleep :us us
\elif :what = 4
UPDATE kv SET ns = 'people', k = k || ' ' || pg_current_xact_id() WHERE (ns, k) = ('math', :k::text);
\endif
\if :what = 5
ROLLBACK;
\else
COMMIT;
\endif
SQL

# A consumer goes on until it is killed.
sub consumer
{
	my ($name) = @_;

	return run_program($node, 'sh', '-c',
		qq(while psql -XAtqc "SELECT consume('$name', $consumers{$name}, 20)"; do :; done));
}

sub cursors { return sql($node, 'SELECT string_agg(cursor, chr(10) ORDER BY name) FROM cursors') }

# two writers may lock each other out
my $writers = run_writers($node, $script, transactions => 250, tries => 10);
sub at_end
{
	return sql($node, q(SELECT bool_and(left(cursor, 25) = left(feed_head('kv'), 25)) AND NOT EXISTS
		(SELECT FROM pg_stat_activity WHERE application_name = 'pgbench') FROM cursors)) eq 't';
}

my %running = map { $_ => consumer($_) } keys %consumers;
for (1 .. 3)
{
	my $before = cursors();

	# on a busy machine writers may be done by now
	wait_until('all consumers have got on, or to the end', sub {
		return 1 if at_end();
		my @before = split /\n/, $before, -1;
		my @now = split /\n/, cursors(), -1;
		return !grep { $now[$_] eq $before[$_] } 0 .. $#now;
	});
	for my $name (sort keys %running)
	{
		kill 'KILL', -$running{$name}->{pid};
		is(ended($running{$name}), 'signal 9', "$name: killed");
		$running{$name} = consumer($name);
	}
}
finish($writers);
wait_until('all consumers have come to the end', \&at_end);

for my $name (sort keys %consumers)
{
	my $ns = $consumers{$name};
	my $copy = "SELECT ns, k, v FROM copy WHERE consumer = '$name'";
	my $table = "SELECT ns, k, v FROM kv WHERE ns = $ns OR $ns IS NULL";

	cmp_ok(sql($node, "SELECT count(*) FROM ($table) t"), '>', 0, "$name: there is something");
	is(sql($node, "($copy EXCEPT $table) UNION ALL ($table EXCEPT $copy)"), '', "$name: its copy is equal");
}

for my $program (values %running)
{
	kill 'KILL', -$program->{pid};
	ended($program);
}
$node->stop;
done_testing();
