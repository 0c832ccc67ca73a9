# The rows of a feed are dumped without its table and loaded into a feed that
# is there already.  They are new messages there.  Where they shall keep their
# stamps, the owner disables the trigger, loads the rows with the sequence, and
# has feed_repair() enable it again.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('loaded', extension => 0);
my $dir = PostgreSQL::Test::Utils::tempdir();
my @owner = (user => 'regress_feedpub_owner');

sql($node, <<'SQL');
CREATE ROLE regress_feedpub_owner LOGIN;
CREATE ROLE regress_feedpub_writer LOGIN;
SQL
for my $db ('src', 'dst', 'no_sequence')
{
	sql($node, "CREATE DATABASE $db OWNER regress_feedpub_owner");
	sql($node, <<'SQL', db => $db);
CREATE EXTENSION feedpub;
GRANT CREATE ON SCHEMA public TO regress_feedpub_owner;
SQL
	sql($node, <<'SQL', db => $db, @owner);
SELECT feed_create('outbox');
GRANT INSERT ON outbox TO regress_feedpub_writer;
SQL
}

# An early transaction whose row has the later position: the largest position
# is not that of the last row.
my $early = $node->background_psql('src');
$early->query_safe('BEGIN; SELECT pg_current_xact_id()');
sql($node, <<'SQL', db => 'src', @owner);
INSERT INTO outbox (message_type, data)
	SELECT 'A', to_jsonb(i) FROM generate_series(1, 40) i
SQL
$early->query_safe(
	q(INSERT INTO outbox (message_type, data) VALUES ('A', '0'); COMMIT));
$early->quit;
my $rows = fetch_all($node, 'outbox', db => 'src');
my $loaded = sql($node, 'TABLE outbox', db => 'src');
is(scalar(split /\n/, $rows), 41, 'rows to be dumped');
like($rows, qr/^\d+\|41\|/, 'the first has the last position');

# pg_dump takes the sequence of a column along with its table.
$node->command_ok(
	[
		'pg_dump', '--data-only', '-t', 'outbox', '-U',
		'regress_feedpub_owner', '-f', "$dir/rows.sql", 'src'
	],
	'pg_dump, the data alone');

# Runs psql commands as the owner.
sub run_as_owner
{
	my ($db, $commands) = @_;

	return $node->psql($db, $commands,
		extra_params =>
		  [ '-U', 'regress_feedpub_owner', '-v', 'VERBOSITY=verbose' ]);
}

# A reader that is connected all the while.
my $reader = $node->background_psql('dst');
is($reader->query_safe("SELECT count(*) FROM feed_fetch('0', 0, 100)"),
	0, 'the feed to load into is empty');

#
# As new messages, in the order in which they come
#
my ($status, $stdout, $stderr) = run_as_owner('dst', "\\i $dir/rows.sql");
is($status, 0, 'the rows are loaded') or diag $stderr;
is( sql($node, <<'SQL', db => 'dst'),
SELECT count(*), count(DISTINCT feed_pos), count(DISTINCT feed_xid),
	string_agg(data::text, ' ' ORDER BY feed_pos)
FROM feed_fetch('0', 0, 100)
SQL
	'41|41|1|' . join(' ', map { (split /\|/)[6] } split /\n/, $loaded),
	'with stamps of their own');
sql($node, 'TRUNCATE outbox', db => 'dst', @owner);

#
# With their stamps
#
sql($node, 'ALTER TABLE outbox DISABLE TRIGGER zz_feedpub_stamp',
	db => 'dst', @owner);
is(sql($node, q(SELECT problem FROM feed_check('outbox')), db => 'dst'),
	'the trigger that stamps rows is disabled', 'feed_check misses the trigger');
($status, $stdout, $stderr) = run_as_owner('dst', "\\i $dir/rows.sql");
is($status, 0, 'without it the rows are loaded') or diag $stderr;
is(sql($node, q(SELECT guard FROM feed_check('outbox')), db => 'dst'),
	'trigger', 'the sequence has come along');
is(sql($node, q(SELECT feed_repair('outbox')), db => 'dst', @owner),
	1, 'feed_repair enables the trigger');

is(sql($node, q(SELECT * FROM feed_check('outbox')), db => 'dst'),
	'', 'all guards stand');
is(fetch_all($node, 'outbox', db => 'dst'), $rows, 'the same rows are read');
is( $reader->query_safe("SELECT count(*) FROM feed_fetch('0', 0, 100)"),
	41,
	'also by who was connected before');
$reader->quit;

# What is loaded can be dumped and restored as a whole.
$node->command_ok([ 'pg_dump', '-f', "$dir/whole.sql", 'dst' ],
	'pg_dump of what was loaded');
sql($node, 'CREATE DATABASE again');
$node->command_ok(
	[
		'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1',
		'-f', "$dir/whole.sql", 'again'
	],
	'psql restores it');
is(fetch_all($node, 'outbox', db => 'again'), $rows, 'the same rows again');

#
# By COPY, which leaves the sequence where it is
#
sql($node, 'ALTER TABLE outbox DISABLE TRIGGER zz_feedpub_stamp',
	db => 'no_sequence', @owner);
run_as_owner('src', "\\copy outbox to $dir/rows.copy");
($status, $stdout, $stderr) =
  run_as_owner('no_sequence', "\\copy outbox from $dir/rows.copy");
is($status, 0, 'rows are loaded without the sequence') or diag $stderr;
is( sql($node, q(SELECT guard FROM feed_check('outbox') ORDER BY guard),
		db => 'no_sequence'),
	'trigger', 'feed_check misses the trigger');
is(sql($node, q(SELECT feed_repair('outbox')), db => 'no_sequence', @owner),
	1, 'feed_repair enables the trigger, and raises the sequence');
is(sql($node, q(SELECT * FROM feed_check('outbox')), db => 'no_sequence'),
	'', 'all guards stand');
is(fetch_all($node, 'outbox', db => 'no_sequence'),
	$rows, 'the same rows are read');

#
# Writers go on, after the largest position.
#
for my $db ('dst', 'no_sequence')
{
	sql($node,
		q(INSERT INTO outbox (message_type, data) VALUES ('new', '1')),
		db => $db, user => 'regress_feedpub_writer');
	is( sql($node,
			q(SELECT feed_pos > 41, data FROM feed_fetch('0', 0, 100) OFFSET 41),
			db => $db),
		't|1',
		"$db: a new message comes after the others");
}

$node->stop;
done_testing();
