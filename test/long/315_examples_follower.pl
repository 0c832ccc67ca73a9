# examples/follower: a copy of a table in another server's database.  It begins
# with the rows that are there and ends equal, through kills, crashes of either
# server, two processes at once, TRUNCATE, and another history.  It stops if the
# columns are not those of the copy any more.

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

# An encoding of which psycopg makes bytes, unless the client asks for another.
my $shop = feedpub_node('shop', extra => [ '--no-locale', '--encoding=SQL_ASCII' ], conf => <<'CONF');
shared_preload_libraries = 'feedpub'
log_statement = none
CONF
my $search = feedpub_node('search', extension => 0, conf => 'log_statement = none');

my $columns = q("a, b" int, "C ""c""" text, n numeric, at timestamptz, raw bytea, list text[], doc jsonb);
sql($_, qq(CREATE TABLE "Odd ""Name""" ($columns, PRIMARY KEY ("a, b", "C ""c""")))) for $shop, $search;
sql($shop, <<'SQL');
INSERT INTO "Odd ""Name""" SELECT i, 'there before' FROM generate_series(1, 1000) i;
SELECT feed_attach('"Odd ""Name"""');
CREATE ROLE regress_feedpub_search LOGIN;
GRANT SELECT ON "Odd ""Name""" TO regress_feedpub_search;
SQL

my $script = <<'SQL';
\set fate random(1, 20)
\set k random(1, 1200)
BEGIN;
INSERT INTO "Odd ""Name""" VALUES (:k, 'there before', random(), clock_timestamp(), decode(md5(random()::text), 'hex'),
    ARRAY['a "b", c', NULL, ''], jsonb_build_object('k', :k, 's', E'tab \t, quote " and \\'))
  ON CONFLICT ("a, b", "C ""c""") DO UPDATE SET n = excluded.n, at = excluded.at, raw = excluded.raw,
    list = excluded.list, doc = excluded.doc;
\if :fate = 2
DELETE FROM "Odd ""Name""" WHERE "a, b" BETWEEN :k AND :k + 10;
\elif :fate = 3
UPDATE "Odd ""Name""" SET "C ""c""" = 'key ' || md5(random()::text) WHERE "a, b" = :k;
\endif
\if :fate = 1
ROLLBACK;
\else
COMMIT;
\endif
SQL

sub follower
{
	return run_program($shop, $python, example('follower/follow.py'), @_,
		$shop->connstr('postgres') . ' user=regress_feedpub_search', '"Odd ""Name"""',
		$search->connstr('postgres'), '"Odd ""Name"""');
}

my $rows = q(SELECT count(*), md5(string_agg(t::text, ',' ORDER BY "a, b", "C ""c""")) FROM )
  . q((SELECT "a, b", "C ""c""", n, at, raw, list, doc FROM "Odd ""Name""") t);

my $all = q(SELECT count(*), md5(string_agg(t::text, ',' ORDER BY "a, b", "C ""c""")) FROM )
  . q((SELECT to_jsonb(o) - '{feed_xid,feed_pos}'::text[] AS t, "a, b", "C ""c""" FROM "Odd ""Name""" o) t);

sub is_equal
{
	my ($test) = @_;

	sql($shop, q(CALL feed_publish('"Odd ""Name"""')));
	wait_until('the copy is at the end of the feed', sub {
		my $cursor = sql($search, 'SELECT cursor FROM follower');
		# refused while it is of another history
		my $n = eval { sql($shop, qq(SELECT json_array_length(feed_page('"Odd ""Name"""', '$cursor', 1) -> 'entries'))) };
		return ($n // 1) == 0;
	});
	is(sql($search, $rows), sql($shop, $rows), $test);
	return;
}

sub writes { return run_writers($shop, $script, transactions => $_[0], tries => 10) }

# Killed, and each server in turn
my $writers;
my $follower = follower();
my $cursor = '';
for my $n (1 .. 3)
{
	$writers = writes(70);
	wait_until('the cursor moves', sub {
		my $now = eval { sql($search, 'SELECT cursor FROM follower') } // '';
		my $moved = $now gt $cursor;
		$cursor = $now;
		return $moved;
	});
	kill 'KILL', $follower->{pid};
	is(ended($follower), 'signal 9', "killed, time $n");
	$follower = follower();
	finish($writers);
}
is_equal('the copy is equal after kills');
$writers = writes(100);
$search->stop('immediate');
$search->start;
finish($writers);
$shop->stop('immediate');
$shop->start;
finish(writes(100));
is_equal('the copy is equal after crashes');

# Two at once
my $other = follower();
finish(writes(100));
sql($shop, 'TRUNCATE "Odd ""Name"""');
finish(writes(50));
is_equal('the copy is equal after a TRUNCATE, made by two at once');
for my $program ($follower, $other)
{
	kill 'TERM', $program->{pid};
	is(ended($program), 0, 'stopped by SIGTERM');
}

# A column that is added, renamed or dropped stops it at the next change, before
# that has an effect.
sub stops
{
	my ($name, $says) = @_;
	my $before = sql($search, $all);

	sql($shop, 'UPDATE "Odd ""Name""" SET n = n + 1');
	sql($shop, q(CALL feed_publish('"Odd ""Name"""')));
	$follower = follower();
	is(ended($follower), 1, "$name: it ends");
	like(output($follower), $says, 'and says why');
	is(sql($search, $all), $before, 'and has changed nothing');
	return;
}

sub goes_on
{
	my ($name, @options) = @_;

	$follower = follower(@options);
	finish(writes(20));
	is_equal($name);
	kill 'TERM', $follower->{pid};
	is(ended($follower), 0, 'stopped by SIGTERM');
	return;
}

sql($shop, q(ALTER TABLE "Odd ""Name""" ADD "new, too" text DEFAULT 'given'));
stops('a new column', qr/^The columns of "Odd ""Name""" are not those of the copy\.  New in the feed: new, too\.$/m);
goes_on('a column that is named is left out', '--without', 'new, too');
sql($search, q(ALTER TABLE "Odd ""Name""" ADD "new, too" text DEFAULT 'given'));
goes_on('the copy has it');
is(sql($search, $all), sql($shop, $all), 'with its values');

sql($shop, 'ALTER TABLE "Odd ""Name""" RENAME raw TO bytes');
stops('a renamed column', qr/New in the feed: bytes\.  Only in the copy: raw\.$/m);
sql($shop, 'ALTER TABLE "Odd ""Name""" RENAME bytes TO raw');
goes_on('it has its name again');

sql($shop, 'ALTER TABLE "Odd ""Name""" DROP "new, too"');
stops('a dropped column', qr/copy\.  Only in the copy: new, too\.$/m);
sql($search, 'ALTER TABLE "Odd ""Name""" DROP "new, too"');
goes_on('the copy does not have it any more');

# of a key column, a delete shows it too
my ($key) = sql($shop, q(SELECT "a, b" FROM "Odd ""Name""" LIMIT 1));
sql($shop, 'ALTER TABLE "Odd ""Name""" RENAME "a, b" TO a');
sql($shop, qq(DELETE FROM "Odd ""Name""" WHERE a = $key));
sql($shop, q(CALL feed_publish('"Odd ""Name"""')));
$follower = follower();
is(ended($follower), 1, 'a renamed column of the key: it ends');
like(output($follower), qr/column "a" does not exist/, 'and says why');
sql($shop, 'ALTER TABLE "Odd ""Name""" RENAME a TO "a, b"');
goes_on('it has its name again');

# Another history
sql($search, q(INSERT INTO "Odd ""Name""" VALUES (-1, 'of another history')));
sql($search, q(UPDATE follower SET cursor = overlay(cursor placing '012345' from 26 for 6)));
$follower = follower();
is(ended($follower), 1, 'a foreign cursor: it ends');
like(output($follower), qr/from another history/, 'and says why');
$follower = follower('--begin-again');
is_equal('told to begin again, it fills the copy again');
kill 'TERM', $follower->{pid};
is(ended($follower), 0, 'stopped by SIGTERM');

$_->stop for $shop, $search;
done_testing();
