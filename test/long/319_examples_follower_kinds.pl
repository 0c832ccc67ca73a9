# examples/follower/follow_all.py: what a copy can be of, and what stops it.  Names,
# types and keys of every kind; tables that are altered, truncated, loaded,
# replicated; partitions that come and go; two feeds, two copies; rows of the
# target's own; entries that are gone; a lock that is waited for; a standby, and
# pgbouncer.  Each part has a schema and a feed of its own name in both databases.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubExample;
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $python = python_with('psycopg');
plan skip_all => 'python3 with psycopg (3) is not there' if !$python;

my $shop = feedpub_node('shop', allows_streaming => 1, conf => <<'CONF');
shared_preload_libraries = 'feedpub'
log_statement = none
max_worker_processes = 20
CONF
my $reports = feedpub_node('reports', extension => 0, allows_streaming => 'logical', conf => "log_statement = none\n");
sql($reports, 'CREATE DATABASE other');

my ($feed, $follower, $db);

# The server from which is read, and both through another one if that is set
my $from = $shop;
my $pool;

# Begins a part: tables in the source, and in the copy.
sub part
{
	my ($name, $source, $copy, %options) = @_;

	$follower = undef;
	$db = 'postgres';
	$feed = $name;
	sql($shop, "SELECT feed_create_changes('$feed')");
	sql($shop, "CREATE SCHEMA s_$name; SET search_path = s_$name, public; $source");
	sql($reports, "CREATE SCHEMA s_$name; SET search_path = s_$name, public; " . ($copy // $source));
	return;
}

sub in_shop { return sql($shop, "SET search_path = s_$feed, public; $_[0]") }
sub in_copy { return sql($reports, "SET search_path = s_$feed, public; $_[0]", db => $db) }
sub capture { return in_shop(join ';', map { "SELECT feed_capture('$_', '$feed')" } @_) }

sub follow
{
	my (@options) = @_;
	my $user = $options[0] && $options[0] =~ /^user=/ ? shift @options : '';
	my ($source, $target) = $pool ? ("$pool dbname=shop", "$pool dbname=reports") : ($from->connstr('postgres'), $reports->connstr($db));

	$follower = run_program($shop, $python, example('follower/follow_all.py'), @options, "$source $user", $feed, $target);
	return $follower;
}

# It may be killed at any time.
sub ends
{
	return if !$follower;
	kill 'KILL', $follower->{pid};
	ended($follower);
	$follower = undef;
	return;
}

# Waits until the copy is at the end of the feed, and compares.  Options: tables, with
# the query whose rows are compared, by default all.
sub is_copy
{
	my ($test, @tables) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	follow() if !$follower;
	in_shop("SELECT feed_flush('$feed')");
	wait_until("$test: the copy is at the end", sub {
		my $cursor = eval { sql($reports, "SELECT cursor FROM follower WHERE feed = '$feed'", db => $db) } // '';
		my $n = $cursor eq '' ? '' : eval { in_shop("SELECT count(*) FROM feed_read(NULL::$feed, '$cursor', 1) WHERE op <> 'end'") };
		return ($n // '') eq '0';
	});
	for my $table (@tables)
	{
		my $query = $table =~ /^SELECT/ ? $table : "SELECT * FROM $table";
		my $rows = qq(SELECT count(*), string_agg(t::text, E'\\n' ORDER BY t::text COLLATE "C") FROM ($query) t);

		is(in_copy($rows), in_shop($rows), "$test: $table");
	}
	return;
}

# It stops by itself, and says why.
sub stops
{
	my ($test, $says, @options) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	in_shop("SELECT feed_flush('$feed')");
	follow(@options) if !$follower;
	is(ended($follower), 1, "$test: it stops");
	like(output($follower), $says, "$test: and says why");
	$follower = undef;
	return;
}

# Without a worker, so that what is done next is one moment.
sub in_one_moment
{
	my (@steps) = @_;

	sql($shop, 'SELECT feed_stop_worker()');
	wait_until('there is no worker', sub {
		sql($shop, q(SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'feedpub worker' AND datname = 'postgres')) eq '0';
	});
	in_shop($_) for @steps;
	sql($shop, "CALL feed_publish('$feed')");
	sql($shop, 'SELECT feed_start_worker()');
	return;
}

#
# Names that psycopg or SQL could take for something else; keys of several columns;
# columns that are computed or numbered
#
my $odd = <<'SQL';
CREATE TABLE "T {0}, %s ""x""" ("a %s" int, "{b}" text COLLATE "C", "%" int GENERATED ALWAYS AS IDENTITY,
	"c'%%" int GENERATED ALWAYS AS ("a %s" * 2) STORED, "D d" text, PRIMARY KEY ("{b}", "a %s"));
SQL
part('odd', $odd);
in_shop(<<'SQL');
SELECT feed_capture('"T {0}, %s ""x"""', 'odd');
INSERT INTO "T {0}, %s ""x""" ("a %s", "{b}", "D d") SELECT i, 'b ' || i, 'before' FROM generate_series(1, 5) i;
SQL
is_copy('odd names, filled', '"T {0}, %s ""x"""');
in_shop(<<'SQL');
INSERT INTO "T {0}, %s ""x""" ("a %s", "{b}", "D d") VALUES (6, '"6, {}%s', 'after');
UPDATE "T {0}, %s ""x""" SET "a %s" = "a %s" + 1;
DELETE FROM "T {0}, %s ""x""" WHERE "a %s" = 3;
SQL
is_copy('odd names, followed', '"T {0}, %s ""x"""');
ends();

#
# Only some columns are captured
#
part('few', 'CREATE TABLE t (id int PRIMARY KEY, v int, secret text, k int NOT NULL UNIQUE)', 'CREATE TABLE t (v int, k int PRIMARY KEY)');
in_shop(q(SELECT feed_capture('t', 'few', columns => '{v}', key => 't_k_key')));
in_shop(q(INSERT INTO t VALUES (1, 1, 's', 10), (2, 2, 's', 20), (3, 3, 's', 30)));
is_copy('some columns, filled', 'SELECT v, k FROM t');
in_shop(q(UPDATE t SET v = 5 WHERE id = 1; UPDATE t SET secret = 't'; UPDATE t SET k = 21 WHERE id = 2; DELETE FROM t WHERE id = 3; INSERT INTO t VALUES (4, 4, 's', 40)));
is_copy('some columns, followed', 'SELECT v, k FROM t');
ends();

#
# Values of every type
#
my $types = <<'SQL';
CREATE TYPE mood AS ENUM ('good', 'so "so", {x}');
CREATE TYPE pair AS (a int, "b b" text[]);
CREATE DOMAIN small AS int CHECK (VALUE < 10);
CREATE DOMAIN list AS int[];
CREATE DOMAIN couple AS pair;
CREATE TABLE t (id numeric PRIMARY KEY, f4 real, f8 float8, n numeric(20, 4), i8 bigint, b bool, c char(5), v varchar(5), "ch" "char", nm name,
	t text, raw bytea, d date, tm time, tz timetz, ts timestamp, tstz timestamptz, iv interval, m money, e mood, p pair, s small, l list, cp couple,
	u uuid, ip inet, net cidr, mac macaddr8, bits bit(3), vb varbit, x xml, j json, jb jsonb, tv tsvector, tq tsquery, r int4range,
	mr nummultirange, rt tstzrange, pt point, bx box, pg polygon, oi oid, rc regclass, lsn pg_lsn, x8 xid8, ta text[], pa pair[], ma int[][], ja jsonb[],
	ba bytea[], ea mood[], bxs box[], iv2 int2vector, jp jsonpath);
SQL
part('types', $types);
capture('t');
my $values = <<'SQL';
INSERT INTO t (id, f4, f8, n, i8, b, c, v, ch, nm, t, raw, d, tm, tz, ts, tstz, iv, m, e, p, s, l, cp, u, ip, net, mac, bits, vb, x, j, jb, tv, tq, r,
	mr, rt, pt, bx, pg, oi, rc, lsn, x8, ta, pa, ma, ja, ba, ea, bxs, iv2, jp) VALUES
(1.0, 0.1, 1e-300, 1234567890123456.7891, 9223372036854775807, true, 'a', 'ab ', 'x', 'name', E'tab\t"quote" \\ \n{} é 𝄞', '\x00ff',
	'0044-03-15 BC', '24:00', '12:00+05:30', 'infinity', '2026-01-01 12:00:00.123456+00', '1 year -2 days 03:04:05.6', 12.34, 'so "so", {x}',
	(1, '{a,NULL,"b, c"}')::pair, 9, '{1,NULL,3}', (2, '{}')::pair, '00000000-0000-0000-0000-000000000001', '::1/64', '10.0.0.0/8', '08:00:2b:01:02:03:04:05',
	'101', '', '<a b="c">&amp;</a>', '{"a" : 1, "a":2, "n": 1.50}', '{"a": [null, 1e500, "x"], "s": "\""}', '''a b'':1A c:2', 'a & !(b | c)', 'empty',
	'{[1,2),(3.5,)}', '[2026-01-01 00:00+00,)', '(1,2.5)', '(1,1),(0,0)', '((0,0),(1,1),(2,0))', 4294967295, 'pg_class', 'FF/FFFFFFFF', '18446744073709551615',
	'{"a \"b\", c",NULL,"NULL",""}', ARRAY[(1, '{x}')::pair, NULL], '{{1,2},{3,4}}', ARRAY['{"a": 1}', '"s"', '[1]']::jsonb[], '{"\\x00",NULL}',
	'{good}', '{(1,1),(0,0);(3,3),(2,2)}', '1 2 3', '$.a[*] ? (@ > 1)'),
(2, 'NaN', '-Infinity', 'NaN', -9223372036854775808, false, '', '', '', '', '', '', 'infinity', '00:00:00.000001', '23:59:59-15:59', '4713-01-01 BC', '-infinity', '-178000000 years', -0.01, 'good',
	(NULL, NULL)::pair, -5, '{}', NULL, 'ffffffff-ffff-ffff-ffff-ffffffffffff', '1.2.3.4', '::/0', '00:00:00:00:00:00:00:00', '000', '1', '', '[]', '{}', '', '', '(,)',
	'{}', 'empty', '(NaN,Infinity)', '(Infinity,1),(0,-Infinity)', '((0,0))', 0, 0, '0/0', '0', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '', '$'),
(3, '-0', '5e-324', '0.0000', 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '0044-03-15 10:00:00+00 BC', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '"a string"', '"a string"', NULL, NULL, NULL,
	NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
SQL
in_shop($values);
is_copy('types, filled', 't');
in_shop(q(UPDATE t SET id = id + 10));
is_copy('types, followed', 't');
in_shop(q(UPDATE t SET id = 12.00 WHERE id = 12; UPDATE t SET f4 = 1; DELETE FROM t WHERE id = 11; UPDATE t SET id = 11.000 WHERE id = 13.0));
is_copy('keys that are equal and differ', 't');
ends();

#
# Keys that are equal by their collation
#
part('folded', <<'SQL');
CREATE COLLATION folded (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE TABLE t (k text COLLATE folded PRIMARY KEY, v int);
SQL
capture('t');
in_shop(q(INSERT INTO t VALUES ('a', 1), ('b', 1)));
is_copy('folded keys, filled', 't');
in_one_moment(q(UPDATE t SET v = 2), q(UPDATE t SET k = 'A' WHERE k = 'a'), q(DELETE FROM t WHERE k = 'b'), q(INSERT INTO t VALUES ('c', 1), ('B', 4)), q(UPDATE t SET k = 'C' WHERE k = 'c'));
is_copy('folded keys, followed', 't');
ends();

#
# Two copies, and two processes for one of them; a table in two feeds
#
part('twice', 'CREATE TABLE t (id int PRIMARY KEY, v int)');
sql($reports, 'CREATE SCHEMA s_twice; CREATE TABLE s_twice.t (id int PRIMARY KEY, v int)', db => 'other');
capture('t');
in_shop(q(SELECT feed_create_changes('public.again'); SELECT feed_capture('t', 'again', old => false)));
in_shop('INSERT INTO t SELECT i, 0 FROM generate_series(1, 100) i');
my @all = (follow(), follow());
$feed = 'again';
$db = 'other';
push @all, follow();
in_shop("SET search_path = s_twice, public; UPDATE t SET v = v + 1 WHERE id % 10 = $_") for 0 .. 9;
in_shop('TRUNCATE s_twice.t') ;
in_shop('INSERT INTO s_twice.t VALUES (1, 1)');
is_copy('the second copy', 's_twice.t');
($feed, $db) = ('twice', 'postgres');
is_copy('the first, by two processes', 't');
$follower = $_, ends() for @all;

#
# Tables that are altered.  What was done before and after is in one moment, too.
#
part('altered', 'CREATE TABLE t (id int PRIMARY KEY, v int, gone int); CREATE TABLE u (id int PRIMARY KEY, t int REFERENCES t DEFERRABLE)');
capture('t', 'u');
in_shop('INSERT INTO t VALUES (1, 1, 1), (2, 2, 2); INSERT INTO u VALUES (1, 1)');
is_copy('before it is altered', 't', 'u');
in_one_moment(
	'UPDATE t SET v = 10 WHERE id = 1',
	'ALTER TABLE t ADD COLUMN added int DEFAULT 7',
	'INSERT INTO t VALUES (3, 3, 3, 3); UPDATE t SET v = 20 WHERE id = 2');
stops('a column comes', qr/New in the feed: added/);
in_copy('ALTER TABLE t ADD COLUMN added int DEFAULT 7');
is_copy('a column has come, within a moment', 't', 'u');
ends();
in_one_moment('UPDATE t SET gone = 11 WHERE id = 1', 'ALTER TABLE t DROP COLUMN gone', 'UPDATE t SET v = 21 WHERE id = 2');
stops('a column goes', qr/Only in the copy: gone/);
in_copy('ALTER TABLE t DROP COLUMN gone');
is_copy('a column has gone, within a moment', 't', 'u');
in_shop('ALTER TABLE t ADD COLUMN a int DEFAULT 4, DROP COLUMN added');
in_shop('INSERT INTO t VALUES (4, 4)');
stops('a column is exchanged', qr/New in the feed: a\..*Only in the copy: added/s);
in_copy('ALTER TABLE t ADD COLUMN a int DEFAULT 4, DROP COLUMN added');
is_copy('a column is exchanged', 't', 'u');
ends();
in_one_moment('UPDATE t SET a = 5 WHERE id = 1', 'ALTER TABLE t RENAME a TO b', 'UPDATE t SET b = 6 WHERE id = 2');
stops('a column is renamed within a moment', qr/New in the feed: b\..*Only in the copy: a/s);
in_copy('ALTER TABLE t RENAME a TO b');
stops('what it was called before cannot be told', qr/renamed or exchanged within a moment.\nFill the copy again/);
sql($reports, q(DELETE FROM follower WHERE feed = 'altered'));
in_copy('TRUNCATE t, u');
is_copy('it is filled again', 't', 'u');
in_shop('ALTER TABLE t ALTER v TYPE text USING v::text');
in_shop('UPDATE t SET v = v');
in_shop(q(INSERT INTO t VALUES (5, 'no number')));
stops('a type changes', qr/invalid input syntax for type integer: "no number"/);
in_copy('ALTER TABLE t ALTER v TYPE text');
is_copy('the type has changed', 't', 'u');
in_shop('ALTER TABLE u RENAME TO w; INSERT INTO w VALUES (2, 2)');
stops('a table is renamed', qr/The copy has no table s_altered\.w/);
in_copy('ALTER TABLE u RENAME TO w');
is_copy('the table is renamed', 't', 'w');
in_shop('CREATE TABLE n (id int PRIMARY KEY, t int REFERENCES t ON DELETE SET NULL)');
capture('n');
in_shop('INSERT INTO n VALUES (1, 1)');
stops('a table comes', qr/The copy has no table s_altered\.n/);
in_copy('CREATE TABLE n (id int PRIMARY KEY, t int REFERENCES t)');
stops('its key is not deferrable', qr/must be DEFERRABLE/);
in_copy('ALTER TABLE n ALTER CONSTRAINT n_t_fkey DEFERRABLE');
is_copy('the table has come', 't', 'w', 'n');
in_shop('DROP TABLE n; UPDATE t SET b = b + 1');
is_copy('a table is dropped', 't', 'w');
in_shop('CREATE TABLE n (a int, b int, PRIMARY KEY (a, b))');
capture('n');
in_shop('INSERT INTO n VALUES (1, 1)');
stops('another of its name has another key', qr/The key of s_altered\.n is .*, and in the copy id/);
in_copy('DROP TABLE n; CREATE TABLE n (a int, b int, PRIMARY KEY (a, b))');
is_copy('another of its name', 't', 'w', 'n');
# made, captured and loaded at once
in_copy('CREATE TABLE loaded (id int PRIMARY KEY, v text)');
in_shop(<<'SQL');
BEGIN;
CREATE TABLE loaded (id int PRIMARY KEY, v text);
SELECT feed_capture('loaded', 'altered');
COPY loaded FROM stdin WITH (FREEZE);
1	one
2	two
\.
UPDATE loaded SET v = 'three' WHERE id = 2;
COMMIT;
SQL
is_copy('loaded with FREEZE', 'loaded');
ends();

#
# TRUNCATE of some and of all, also beside tables that are left out, or not captured
#
part('emptied', <<'SQL', <<'COPY');
CREATE TABLE a (id int GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, v int);
CREATE TABLE b (id serial PRIMARY KEY, a int REFERENCES a);
CREATE TABLE c (id int PRIMARY KEY, b int REFERENCES b);
CREATE TABLE d (id int PRIMARY KEY, a int REFERENCES a);
SQL
CREATE TABLE a (id int PRIMARY KEY, v int);
CREATE TABLE b (id int PRIMARY KEY, a int REFERENCES a DEFERRABLE);
COPY
capture('a', 'b', 'c');
my $fill = q(INSERT INTO a (v) SELECT 1 FROM generate_series(1, 5); INSERT INTO b (a) SELECT id FROM a; INSERT INTO c SELECT id, id FROM b; INSERT INTO d SELECT id, id FROM a;);
in_shop($fill);
follow('--without', 's_emptied.c');
is_copy('one is left out', 'a', 'b');
in_shop($_) for 'TRUNCATE a RESTART IDENTITY CASCADE', $fill, 'TRUNCATE b CASCADE', "BEGIN; TRUNCATE a RESTART IDENTITY CASCADE; $fill DELETE FROM c; DELETE FROM b; COMMIT";
is_copy('truncated', 'a', 'b');
# and beside a table that only the target has
in_copy('CREATE TABLE own (id int PRIMARY KEY, a int REFERENCES a DEFERRABLE)');
in_shop("BEGIN; TRUNCATE a RESTART IDENTITY CASCADE; $fill COMMIT");
stops('the target has rows that refer to what is truncated', qr/cannot truncate a table referenced in a foreign key constraint/);
in_copy('DROP TABLE own');
follow('--without', 's_emptied.c');
is_copy('the target has no such table any more', 'a', 'b');
ends();

#
# Rows and triggers of the target's own
#
part('own', 'CREATE TABLE t (id int PRIMARY KEY, v int)', <<'SQL');
CREATE TABLE t (id int PRIMARY KEY, v int);
CREATE TABLE log (n serial, what text);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO s_own.log (what) VALUES (TG_OP || ' ' || COALESCE(NEW.id, OLD.id));
	RETURN COALESCE(NEW, OLD);
END $$;
CREATE TRIGGER note BEFORE INSERT OR UPDATE OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION note();
INSERT INTO t VALUES (7, 7);
SQL
capture('t');
in_shop('INSERT INTO t VALUES (1, 1)');
stops('the target has rows', qr/The table s_own\.t of the copy is not empty/);
in_copy('TRUNCATE t; TRUNCATE log');
is_copy('the rows of the target are gone', 't');
in_shop('UPDATE t SET v = 2');
is_copy('its triggers are called', 't');
is(in_copy('SELECT string_agg(what, $$, $$ ORDER BY n) FROM log'), 'INSERT 1, DELETE 1, INSERT 1', 'triggers of the target see deletes and inserts');
ends();
in_copy('INSERT INTO t VALUES (2, 20); ALTER TABLE t ADD UNIQUE (v)');
in_shop('INSERT INTO t VALUES (3, 20)');
stops('a row does not fit beside one of the target', qr/duplicate key value violates unique constraint/);
in_copy('DELETE FROM t WHERE id = 2');
in_shop('DELETE FROM t WHERE id = 1');
is_copy('it fits', 't');
ends();

#
# Row security of the captured table: the copy is of all rows, or is not made.  The
# role has no more rights than are needed.
#
part('secured', 'CREATE TABLE t (id int PRIMARY KEY, owner text)');
capture('t');
in_shop(<<'SQL');
CREATE ROLE regress_feedpub_follower LOGIN;
GRANT USAGE ON SCHEMA s_secured TO regress_feedpub_follower;
GRANT SELECT ON t, secured TO regress_feedpub_follower;
ALTER TABLE t ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON t USING (owner = current_user);
INSERT INTO t VALUES (1, 'regress_feedpub_follower'), (2, 'another');
SQL
stops('row security hides rows', qr/would be affected by row-level security policy/, 'user=regress_feedpub_follower');
in_shop('ALTER TABLE t DISABLE ROW LEVEL SECURITY');
follow('user=regress_feedpub_follower');
is_copy('the role has SELECT', 't');
in_shop(q(ALTER TABLE t ENABLE ROW LEVEL SECURITY; UPDATE t SET id = id + 10));
is_copy('row security does not hide changes', 't');
ends();

#
# What logical replication brings
#
part('replicated', 'CREATE TABLE t (id int PRIMARY KEY, v text)');
capture('t');
sql($reports, 'CREATE DATABASE origin');
sql($reports, <<'SQL', db => 'origin');
CREATE SCHEMA s_replicated;
CREATE TABLE s_replicated.t (id int PRIMARY KEY, v text);
INSERT INTO s_replicated.t SELECT i, repeat('long', 1000) FROM generate_series(1, 50) i;
CREATE PUBLICATION p FOR ALL TABLES;
SQL
follow();
in_shop("CREATE SUBSCRIPTION sub CONNECTION '" . ($reports->connstr('origin') =~ s/'/''/gr) . "' PUBLICATION p");
$shop->wait_for_subscription_sync($reports, 'sub', 'postgres') if $shop->can('wait_for_subscription_sync');
wait_until('the rows have come', sub { in_shop('SELECT count(*) FROM t') eq '50' });
sql($reports, <<'SQL', db => 'origin');
SET search_path = s_replicated;
UPDATE t SET v = 'short' WHERE id < 10;
UPDATE t SET id = id + 100 WHERE id > 40;
DELETE FROM t WHERE id = 20;
SQL
wait_until('the changes have come', sub { in_shop('SELECT count(*) FROM t') eq '49' });
is_copy('replicated', 't');
is(in_shop('SELECT count(*), count(*) FILTER (WHERE v = $$short$$) FROM t'), '49|9', 'all of it was replicated');
sql($reports, 'TRUNCATE s_replicated.t', db => 'origin');
wait_until('the TRUNCATE has come', sub { in_shop('SELECT count(*) FROM t') eq '0' });
is_copy('replicated TRUNCATE', 't');
in_shop('DROP SUBSCRIPTION sub');
ends();

#
# Partitions: what ATTACH brings and DETACH takes away is no change, and harms none
#
part('parted', <<'SQL', 'CREATE TABLE t (id int PRIMARY KEY, v int)');
CREATE TABLE t (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);
CREATE TABLE t_0 PARTITION OF t FOR VALUES FROM (0) TO (10);
CREATE TABLE t_1 (v int, id int PRIMARY KEY);
SQL
capture('t');
in_shop('INSERT INTO t VALUES (1, 1), (2, 2); INSERT INTO t_1 VALUES (11, 11), (12, 12)');
is_copy('parted', 't');
in_shop('ALTER TABLE t ATTACH PARTITION t_1 FOR VALUES FROM (10) TO (20)');
in_shop('UPDATE t SET v = 0 WHERE id = 11; UPDATE t SET id = 3 WHERE id = 12; DELETE FROM t WHERE id = 1; INSERT INTO t VALUES (13, 13)');
is_copy('a partition is attached', 't');
in_shop('ALTER TABLE t DETACH PARTITION t_0; UPDATE t_0 SET v = 100; CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM (0) TO (10)');
in_shop('INSERT INTO t VALUES (2, 22); UPDATE t SET id = 4 WHERE id = 13');
is_copy('a partition is detached', 'SELECT * FROM t WHERE id <> 3');
is(in_copy('SELECT v FROM t WHERE id = 3'), '12', 'the copy keeps what DETACH has taken away');
in_shop('DROP TABLE t_2; UPDATE t SET v = 5');
is_copy('a partition is dropped', 'SELECT * FROM t WHERE id > 9');
ends();

#
# Entries that are gone, and another history
#
part('late', 'CREATE TABLE t (id int PRIMARY KEY, v int); CREATE TABLE u (id int PRIMARY KEY, t int REFERENCES t DEFERRABLE)');
capture('t', 'u');
in_shop('INSERT INTO t SELECT i, 0 FROM generate_series(1, 20) i; INSERT INTO u SELECT i, i FROM generate_series(1, 20) i');
is_copy('before', 't', 'u');
ends();
for my $i (1 .. 20)
{
	in_shop("UPDATE t SET v = $i WHERE id >= $i; UPDATE t SET id = 120 - id WHERE id IN ($i + 20, $i + 40); INSERT INTO t VALUES ($i + 20, 0); INSERT INTO u VALUES ($i + 20, $i + 20)");
	sql($shop, q(CALL feed_publish('late')));
}
sql($shop, q(UPDATE feedpub._batch SET published_at = '2000-01-01' WHERE feed = 'late'::regclass));
cmp_ok(sql($shop, q(SET feedpub.max_batch_transactions = 10; SELECT feedpub._merge_batches('late'))), '>', 0, 'batches are merged');
is_copy('batches were merged meanwhile', 't', 'u');
ends();
in_shop('DELETE FROM u WHERE id > 5; UPDATE t SET v = 50');
sql($shop, q(SELECT feed_flush('late'); CALL feed_purge('late', feed_head('late'))));
stops('what it needs is gone', qr/PF002|no longer kept|removed|expired/i);
in_shop('TRUNCATE u; UPDATE t SET v = 51');
follow('--begin-again');
is_copy('it begins again', 't', 'u');
like(output($follower), qr/The copy is filled again/, 'and says so');
ends();
sql($shop, q(SELECT feed_begin_history('late')));
stops('another history', qr/history/);
follow('--begin-again');
in_shop('UPDATE t SET v = 52');
is_copy('it begins again with the other history', 't', 'u');
ends();

#
# A TRUNCATE that waits while the copy is filled is neither waited for nor lost
#
part('locked', 'CREATE TABLE t (id int PRIMARY KEY, v int); CREATE TABLE u (id int PRIMARY KEY, t int REFERENCES t DEFERRABLE)');
capture('t', 'u');
in_shop('INSERT INTO t SELECT i, 0 FROM generate_series(1, 20) i; INSERT INTO u SELECT i, i FROM generate_series(1, 20) i');
my ($locker, $truncates) = map { $_->background_psql('postgres') } $reports, $shop;
$locker->query_safe('BEGIN; LOCK TABLE s_locked.t IN SHARE MODE');
follow();
$reports->poll_query_until('postgres', q(SELECT count(*) = 1 FROM pg_stat_activity WHERE query LIKE 'COPY%' AND wait_event_type = 'Lock')) or die 'no COPY waits';
$truncates->query_until(qr/begun/, "\\echo begun\nTRUNCATE s_locked.u;\n");
$shop->poll_query_until('postgres', q(SELECT count(*) = 1 FROM pg_stat_activity WHERE query LIKE 'TRUNCATE%' AND wait_event_type = 'Lock')) or die 'no TRUNCATE waits';
$locker->query_safe('ROLLBACK');
is_soon($shop, q(NOT EXISTS (SELECT FROM pg_stat_activity WHERE query LIKE 'TRUNCATE%' AND wait_event_type = 'Lock')),
	'the TRUNCATE goes on when the copy is filled');
ends();
$_->quit for $locker, $truncates;
is_copy('a TRUNCATE waits', 't', 'u');
ends();

#
# From a standby, once the copy is filled; and through pgbouncer
#
part('standby', 'CREATE TABLE t (id int PRIMARY KEY, v int); CREATE TABLE u (id int PRIMARY KEY, t int REFERENCES t DEFERRABLE)');
capture('t', 'u');
in_shop('INSERT INTO t SELECT i, 0 FROM generate_series(1, 20) i');
is_copy('filled from the primary', 't', 'u');
ends();
$shop->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($shop, 'base', has_streaming => 1);
$standby->start;
$from = $standby;
in_shop("INSERT INTO u SELECT id + 100 * $_, id FROM t; UPDATE t SET v = $_; DELETE FROM u WHERE t = $_; DELETE FROM t WHERE id = $_") for 1 .. 10;
is_copy('followed from a standby', 't', 'u');
ends();
$from = $shop;
$standby->stop;

my ($pgbouncer) = grep { -x } map { "$_/pgbouncer" } split(/:/, $ENV{PATH}), '/usr/sbin', '/usr/local/sbin';
SKIP:
{
	skip 'pgbouncer is not there', 4 if !$pgbouncer;
	my $dir = PostgreSQL::Test::Utils::tempdir_short();
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	my $user = getpwuid $<;

	append_to_file("$dir/users", qq("$user" ""\n));
	append_to_file("$dir/ini", <<"INI");
[databases]
shop = host=@{[ $shop->host ]} port=@{[ $shop->port ]} dbname=postgres user=$user
reports = host=@{[ $reports->host ]} port=@{[ $reports->port ]} dbname=postgres user=$user
[pgbouncer]
listen_addr =
listen_port = $port
unix_socket_dir = $dir
auth_type = any
pool_mode = transaction
ignore_startup_parameters = extra_float_digits
INI
	my $program = run_program($shop, $pgbouncer, '-q', "$dir/ini");

	wait_until('pgbouncer answers', sub { run_quietly('psql', '-XAtqc', 'SELECT 1', "host=$dir port=$port dbname=shop user=$user") });
	part('pooled', 'CREATE TABLE t (id int PRIMARY KEY, v int); CREATE TABLE u (id int PRIMARY KEY, t int REFERENCES t DEFERRABLE)');
	capture('t', 'u');
	in_shop('INSERT INTO t SELECT i, 0 FROM generate_series(1, 20) i');
	$pool = "host=$dir port=$port user=$user";
	is_copy('filled through pgbouncer', 't', 'u');
	in_shop("INSERT INTO u SELECT id + 100 * $_, id FROM t; UPDATE t SET v = $_; DELETE FROM u WHERE t = $_; DELETE FROM t WHERE id = $_") for 1 .. 10;
	is_copy('followed through pgbouncer', 't', 'u');
	ends();
	$program->{ends} = 1;
	kill 'TERM', $program->{pid};
}

$_->stop for $shop, $reports;
done_testing();
