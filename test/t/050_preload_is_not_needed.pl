# Nothing of xid order needs shared_preload_libraries, and nothing is amiss
# with it; the line may come and go.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('server', extension => 0);
my $total = 0;

# A day in the life of a feed, each step in a session that begins with it.
sub works
{
	my ($test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	sql($node, q(INSERT INTO outbox (message_type, data) VALUES ('A', '1')),
		user => 'regress_feedpub_writer');
	sql($node, q(COPY outbox (message_type, data) FROM STDIN;
A	2
A	3
\.
), user => 'regress_feedpub_writer');
	$total += 3;
	is(scalar(split /\n/, fetch_all($node, 'outbox', page => 2)),
		$total, "$test: written and read");
	is(sql($node, "SELECT count(*) FROM feed_fetch('0', 0, 1000)"),
		$total, "$test: the default feed");
	is(sql($node, q(SELECT after_pos > 0 FROM feed_xid_head('outbox'))),
		't', "$test: the head");
	is(sql($node, q(SELECT * FROM feed_check('outbox'))),
		'', "$test: all guards stand");
	is(sql($node, 'SELECT count(*) FROM feedpub.blockers'),
		0, "$test: blockers");
	is(sql($node, 'SELECT waiting FROM feedpub.waiting'),
		0, "$test: waiting");
	refused($node, q(UPDATE outbox SET message_type = 'B'),
		'PF004', 'cannot update', "$test: UPDATE is refused");
	is( sql($node,
			q(BEGIN; INSERT INTO outbox (feed_xid, feed_pos, message_type, data) VALUES ('1', 1, 'A', '1') RETURNING feed_xid > '1' AND feed_pos > 1; ROLLBACK)),
		't',
		"$test: a stamp cannot be forged");

	# Set before the library is there, or after: it caps all the same.
	is( sql($node,
			"SET feedpub.max_page_rows = 2; SELECT count(*) FROM feed_fetch('0', 0, 100)"
		),
		2,
		"$test: a setting made first caps a page");
	is( sql($node,
			"SELECT count(*) > 2 FROM feed_fetch('0', 0, 100); SET feedpub.max_page_rows = 2; SELECT count(*) FROM feed_fetch('0', 0, 100)"
		),
		"t\n2",
		"$test: a setting made later caps a page");
	return;
}

is(sql($node, 'SHOW shared_preload_libraries'), '', 'nothing is preloaded');
sql($node, <<'SQL');
CREATE ROLE regress_feedpub_writer LOGIN;
CREATE EXTENSION feedpub;
SELECT feed_create('outbox');
GRANT INSERT ON outbox TO regress_feedpub_writer;
SQL
works('not preloaded');
$node->restart;
works('not preloaded, restarted');

# Beside a library that reserves shared memory too, if the server has it.
my $beside = $node->check_extension('pg_stat_statements') ? 'pg_stat_statements, ' : '';
$node->append_conf('postgresql.conf',
	"shared_preload_libraries = '${beside}feedpub'\nfeedpub.max_page_rows = 500");
$node->restart;
is(sql($node, 'SHOW shared_preload_libraries'), "${beside}feedpub", 'preloaded');
is(sql($node, 'CREATE EXTENSION pg_stat_statements; SELECT count(*) > 0 FROM pg_stat_statements; DROP EXTENSION pg_stat_statements'),
	't', 'the other library works as well')
  if $beside;
is(sql($node, 'SHOW feedpub.max_page_rows'),
	500, 'a session that has not used it knows its setting');
works('preloaded');
sql($node, 'CREATE DATABASE other');
is(sql($node, 'SELECT 1', db => 'other'),
	1, 'preloaded: a database without the extension works');

# What works beside it: only sessions load it.
$node->append_conf('postgresql.conf',
	"shared_preload_libraries = ''\nsession_preload_libraries = 'feedpub'");
$node->restart;
works('session_preload_libraries');

$node->append_conf('postgresql.conf', "session_preload_libraries = ''");
$node->restart;
is(sql($node, 'SHOW shared_preload_libraries'), '', 'the line is gone');
works('no longer preloaded');

$node->stop;
done_testing();
