# examples/follower: a copy of a table in another server's database.  It begins
# with the rows that are there and ends equal, through kills, crashes of either
# server, two processes at once, TRUNCATE, a new column, and another history.

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

my $shop = feedpub_node('shop', conf => <<'CONF');
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

# A column that the copy does not have is left out; one that it gets later is
# filled by the changes that come after.
sql($shop, 'ALTER TABLE "Odd ""Name""" ADD note text');
$follower = follower();
finish(writes(50));
is_equal('a column that the copy does not have is left out');
sql($search, 'ALTER TABLE "Odd ""Name""" ADD note text');
kill 'TERM', $follower->{pid};
is(ended($follower), 0, 'stopped by SIGTERM');
$follower = follower();
sql($shop, q(UPDATE "Odd ""Name""" SET note = 'noted'));
is_equal('the copy is equal');
is(sql($search, q(SELECT count(*) FROM "Odd ""Name""" WHERE note = 'noted')),
	sql($shop, 'SELECT count(*) FROM "Odd ""Name"""'), 'with the new column');
kill 'TERM', $follower->{pid};
is(ended($follower), 0, 'stopped by SIGTERM');

# Another history
sql($search, q(INSERT INTO "Odd ""Name""" VALUES (-1, 'of another history')));
sql($search, q(UPDATE follower SET cursor = overlay(cursor placing '12345678' from 44 for 8)));
$follower = follower();
is(ended($follower), 1, 'a foreign cursor: it ends');
like(output($follower), qr/from another history/, 'and says why');
$follower = follower('--begin-again');
is_equal('told to begin again, it fills the copy again');
kill 'TERM', $follower->{pid};
is(ended($follower), 0, 'stopped by SIGTERM');

$_->stop for $shop, $search;
done_testing();
