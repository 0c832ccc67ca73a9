# A dump that is restored by the owner of a database, which is no superuser and
# may not write our tables: the tables and their rows come, what we keep does
# not.  A superuser brings that afterwards from the same dump, or each feed's
# owner begins anew.  As docs/operations.md has it.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('node');
my $dump = PostgreSQL::Test::Utils::tempdir() . '/dump';
my $quiet = 'SET feedpub.read_wait = 0;';

sql($node, <<'SQL');
CREATE ROLE regress_feedpub_owner LOGIN;
SELECT feed_stop_worker();
GRANT CREATE ON SCHEMA public TO regress_feedpub_owner;
SET ROLE regress_feedpub_owner;
SELECT feed_create('outbox');
CREATE TABLE kv (k int PRIMARY KEY, v text);
SELECT feed_attach('kv');
INSERT INTO outbox (message_type, data) SELECT 'a', to_jsonb(i) FROM generate_series(1, 3) i;
INSERT INTO kv SELECT i, 'v' FROM generate_series(1, 3) i;
CALL feed_publish();
SELECT feed_subscribe('sub', 'outbox', 'earliest');
SELECT feed_ack('sub', receipt) FROM feed_poll('sub', 1);
RESET ROLE;
SQL
my $cursor = sql($node, q(SELECT feed_head('kv')));
sql($node, 'DELETE FROM kv WHERE k = 1; CALL feed_publish()');
$node->command_ok([ 'pg_dump', '-Fc', '-f', $dump, $node->connstr('postgres') ], 'dumped');

# What is there of a database's feeds
my $state = <<'SQL';
SELECT (SELECT count(*) FROM outbox) AS messages, (SELECT count(*) FROM kv) AS rows,
	(SELECT count(*) FROM feedpub._feed) AS feeds, (SELECT count(*) > 0 FROM feedpub._batch) AS batches,
	(SELECT count(*) FROM feedpub._tombstone) AS tombstones, (SELECT count(*) FROM feedpub._subscription) AS subscriptions;
SQL
is(sql($node, $state), '3|2|2|t|1|1', 'a database with feeds');

# A database of the owner's, in which a superuser has made the extension, and
# what the owner can restore.
sub restore
{
	my ($db) = @_;
	my $stderr = '';

	sql($node, "CREATE DATABASE $db OWNER regress_feedpub_owner");
	sql($node, 'CREATE EXTENSION feedpub; SELECT feed_stop_worker()', db => $db);
	IPC::Run::run([ 'pg_restore', '--no-owner', '-U', 'regress_feedpub_owner', '-d', $node->connstr($db), $dump ], '2>', \$stderr);
	return $stderr;
}

my $errors = restore('mended');
like($errors, qr/permission denied for table $_\b/, "the owner cannot restore feedpub.$_")
  foreach qw(_feed _batch _tombstone _subscription _shard);
is(sql($node, $state, db => 'mended'), '3|2|0|f|0|0', 'the rows have come, and no more');
refused($node, q(SELECT feed_page('outbox', '', 10)), '42809', 'not a feed', 'which is no feed', db => 'mended');

#
# A superuser brings what is missing.
#
$node->command_ok([ 'pg_restore', '--data-only', '--schema=feedpub', '-d', $node->connstr('mended'), $dump ],
	'a superuser can restore schema feedpub alone');
is(sql($node, $state, db => 'mended'), '3|2|2|t|1|1', 'with that all is there');
is(sql($node, "$quiet SELECT op, row ->> 'data' FROM feed_poll('sub', 10)", db => 'mended', user => 'regress_feedpub_owner'),
	"upsert|2\nupsert|3", 'a subscription goes on');
is(sql($node, "$quiet SELECT op, (entry).k FROM feed_read(NULL::kv, '$cursor', 10) WHERE op <> 'end'", db => 'mended', user => 'regress_feedpub_owner'),
	'delete|1', 'so do cursors');
is(sql($node, q(SELECT problem FROM feed_check('outbox') UNION ALL SELECT problem FROM feed_check('kv')), db => 'mended'), '', 'and nothing is wrong');

#
# Without one, each feed begins anew.
#
restore('anew');
is(sql($node, <<'SQL', db => 'anew', user => 'regress_feedpub_owner'), '3|2|2|f|0|0', 'the owner registers feeds again');
SELECT feed_repair(f) FROM unnest('{outbox,kv}'::regclass[]) f \g /dev/null
SELECT (SELECT count(*) FROM outbox) AS messages, (SELECT count(*) FROM kv) AS rows,
	(SELECT count(*) FROM feedpub._feed) AS feeds, (SELECT count(*) > 0 FROM feedpub._batch) AS batches,
	(SELECT count(*) FROM feedpub._tombstone) AS tombstones, (SELECT count(*) FROM feedpub._subscription) AS subscriptions;
SQL
sql($node, 'CALL feed_publish()', db => 'anew', user => 'regress_feedpub_owner');
is(sql($node, "$quiet SELECT json_array_length(feed_page(f, '', 10) -> 'entries') FROM unnest('{outbox,kv}'::regclass[]) f", db => 'anew', user => 'regress_feedpub_owner'),
	"3\n2", 'all rows are in them');
refused($node, "SELECT feed_page('kv', '$cursor', 10)", 'PF001', 'history', 'older cursors are refused', db => 'anew');
is(sql($node, q(SELECT problem FROM feed_check('outbox') UNION ALL SELECT problem FROM feed_check('kv')), db => 'anew'), '', 'and nothing is wrong');

$node->stop;
done_testing();
