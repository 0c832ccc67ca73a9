# ALTER EXTENSION feedpub UPDATE, with a version of our own: 0.1 and columns and a
# function more.  Both ways lead to the same catalog, a fresh install and the
# update.  What was there goes on; writers whose session has the library of
# before go on too, and readers among them are told.
#
# When there is a second version, its scripts take the place of those that are
# made here.

use strict;
use warnings FATAL => 'all';

use File::Copy;
use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('server', extension => 0);
my $directory = $node->config_data('--sharedir') . '/extension';
my $version = "0.1.test$$";
my $change = <<'SQL';
ALTER TABLE feedpub._feed ADD COLUMN of_test pg_catalog.int4;
ALTER TABLE feedpub._partition ADD COLUMN of_test pg_catalog.int4 DEFAULT 1;
ALTER TABLE feedpub._tombstone ADD COLUMN of_test pg_catalog.text[];
CREATE FUNCTION feedpub._of_test() RETURNS pg_catalog.int4 LANGUAGE sql
	IMMUTABLE PARALLEL SAFE AS 'SELECT 1';
REVOKE ALL ON FUNCTION feedpub._of_test() FROM PUBLIC;
COMMENT ON FUNCTION feedpub._of_test() IS 'of a test';
SQL
my @scripts = ("$directory/feedpub--$version.sql", "$directory/feedpub--0.1--$version.sql");
append_to_file($scripts[0], slurp_file("$directory/feedpub--0.1.sql") . $change);
append_to_file($scripts[1], $change);
END { unlink @scripts if @scripts; }

# All that belongs to the extension, as text, in any order of making.
my $catalog = <<'SQL';
WITH member AS (
	SELECT d.classid, d.objid FROM pg_depend d JOIN pg_extension e
		ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND d.deptype = 'e'
	WHERE e.extname = 'feedpub')
SELECT string_agg(line, E'\n' ORDER BY line COLLATE "C") FROM (
	SELECT concat_ws(' ', pg_describe_object(classid, objid, 0),
		obj_description(objid, classid::regclass::name)) AS line FROM member
	UNION ALL SELECT concat_ws(' ', 'function', pg_get_functiondef(p.oid), p.proacl)
		FROM member JOIN pg_proc p ON p.oid = objid AND classid = 'pg_proc'::regclass WHERE prokind <> 'a'
	UNION ALL SELECT concat_ws(' ', 'relation', c.oid::regclass, c.relkind, c.relpersistence, c.reloptions, c.relacl,
		CASE WHEN c.relkind = 'v' THEN pg_get_viewdef(c.oid) END)
		FROM member JOIN pg_class c ON c.oid = objid AND classid = 'pg_class'::regclass
	UNION ALL SELECT concat_ws(' ', 'column', a.attrelid::regclass, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod),
		a.attnotnull, a.attacl, pg_get_expr(d.adbin, d.adrelid), col_description(a.attrelid, a.attnum))
		FROM member JOIN pg_attribute a ON a.attrelid = objid AND classid = 'pg_class'::regclass AND a.attnum > 0
		LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
	UNION ALL SELECT concat_ws(' ', 'constraint', conrelid::regclass, conname, pg_get_constraintdef(c.oid))
		FROM member JOIN pg_constraint c ON c.conrelid = objid AND classid = 'pg_class'::regclass
	UNION ALL SELECT concat_ws(' ', 'index', pg_get_indexdef(indexrelid))
		FROM member JOIN pg_index i ON i.indrelid = objid AND classid = 'pg_class'::regclass
	UNION ALL SELECT concat_ws(' ', 'trigger', pg_get_triggerdef(t.oid))
		FROM member JOIN pg_trigger t ON t.tgrelid = objid AND classid = 'pg_class'::regclass AND NOT tgisinternal
	UNION ALL SELECT concat_ws(' ', 'dumped', o.t::regclass, o.condition)
		FROM pg_extension e, LATERAL unnest(e.extconfig, e.extcondition) o (t, condition) WHERE e.extname = 'feedpub') l
SQL

sql($node, 'CREATE EXTENSION feedpub VERSION ' . q("0.1"));
sql($node, <<'SQL');
SELECT feed_create('outbox');
CREATE TABLE kv (k int PRIMARY KEY, v text);
SELECT feed_attach('kv');
CREATE TABLE parts (k int PRIMARY KEY, v text) PARTITION BY LIST (k);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES IN (1, 2, 3);
SELECT feed_attach('parts');
INSERT INTO outbox (message_type, data) SELECT 'A', to_jsonb(i) FROM generate_series(1, 5) i;
INSERT INTO kv VALUES (1, 'one'), (2, 'two');
INSERT INTO parts VALUES (1, 'one'), (2, 'two');
SELECT feed_flush('outbox'), feed_flush('kv'), feed_flush('parts');
SELECT feed_subscribe('mail', 'outbox', 'earliest'), feed_subscribe('parked', 'outbox', 'earliest');
SELECT feed_ack('mail', receipt) FROM feed_poll('mail', 2) OFFSET 1;
SELECT feed_park('parked', receipt, 'why') FROM feed_poll('parked', 1);
SELECT feed_retain('outbox', keep => '1 h'), feed_retain('kv', keep => '2 h');
SQL
my %cursors = map { $_ => sql($node, "SELECT feed_head('$_')") } qw(outbox kv parts);
my $state = <<'SQL';
SELECT to_jsonb(f) - 'of_test' FROM feedpub._feed f ORDER BY feed;
SELECT to_jsonb(f) FROM feedpub._floor f ORDER BY feed;
SELECT to_jsonb(s) FROM feedpub._subscription s ORDER BY name;
SELECT to_jsonb(h) FROM feedpub._shard h ORDER BY subscription, shard;
SELECT to_jsonb(p) FROM feedpub._parked_entry p;
SQL
my $before = sql($node, $state);

# A session that was there before: it has the library of 0.1.
my $writer = $node->background_psql('postgres');
my $write = q(INSERT INTO outbox (message_type, data) VALUES ('A', '6');
	INSERT INTO kv VALUES (3, 'three'); DELETE FROM kv WHERE k = 1; UPDATE kv SET k = 20 WHERE k = 2;
	INSERT INTO parts VALUES (3, 'three'); DELETE FROM parts WHERE k = 1; TRUNCATE parts_1;
	INSERT INTO parts VALUES (2, 'again'));
$writer->query_safe(q(INSERT INTO kv VALUES (4, 'four')));
sql($node, "ALTER EXTENSION feedpub UPDATE TO '$version'");

sql($node, 'CREATE DATABASE fresh');
sql($node, qq(CREATE EXTENSION feedpub VERSION "$version"), db => 'fresh');
my $updated = sql($node, $catalog);
is($updated, sql($node, $catalog, db => 'fresh'), 'the update leads where a fresh install leads');
like($updated, qr/^column feedpub\._feed \d+ of_test integer/m, 'with what is new');
like($updated, qr/^dumped feedpub\._feed/m, 'and what is dumped');
is(sql($node, $state), $before, 'subscriptions, parked entries and policies are as they were');

# The library of 0.1 does not know the new tables.
$writer->query_safe($write);
is(sql($node, q(SELECT string_agg(k::text, ' ' ORDER BY k) FROM kv)), '3 4 20', 'a writer goes on');
refused($node, "SELECT feed_page('$_', '$cursors{$_}')", '55000',
	'of another version than the library.*The library is of version 0\.1\..*ALTER EXTENSION', "a reader of $_ is told")
  for sort keys %cursors;
refused($node, q(CALL feed_publish('kv')), '55000', 'of another version', 'so is who publishes');
$writer->quit;

$node->stop;
done_testing();
