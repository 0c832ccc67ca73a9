# A crash takes back nothing that a consumer has read.
#
# Writers that do not wait for the disk (synchronous_commit = off) show their
# rows before the rows are safe.  A crash then takes the rows back, and
# their transaction ids are assigned again, to other rows.  If the cursor of a
# consumer, kept elsewhere, is already there, it skips those.  That happens to the plain SQL
# query, and not to feed_fetch(), which makes durable what it delivers.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Nothing writes WAL to disk unless it is asked to: the WAL writer sleeps 10 s
# between its turns, and is far from a reason to be woken up.
my $node = feedpub_node('crashing', conf => <<'CONF');
synchronous_commit = off
wal_writer_delay = 10s
wal_writer_flush_after = 100MB
wal_buffers = 16MB
checkpoint_timeout = 1h
bgwriter_lru_maxpages = 0
full_page_writes = off
CONF

# "guarded" is read through the planner, because of its row security.  A worker
# would write to disk too.
sql($node, <<'SQL');
SELECT feed_stop_worker();
SELECT feed_create('outbox'), feed_create('other'), feed_create('guarded');
CREATE TABLE business (id int);
CREATE ROLE regress_feedpub_reader LOGIN;
GRANT SELECT ON guarded TO regress_feedpub_reader;
ALTER TABLE guarded ENABLE ROW LEVEL SECURITY;
CREATE POLICY all_rows ON guarded FOR SELECT USING (true);
SQL

sub insert
{
	my ($feed, @keys) = @_;

	sql($node,
		"INSERT INTO $feed (message_type, message_key, data) VALUES ('A', '$_', '1')"
	) for @keys;
	return;
}

sub crash
{
	$node->stop('immediate');
	$node->start;
	return;
}

# Is some of the WAL not on disk yet?
sub is_unflushed
{
	return sql($node,
		'SELECT pg_current_wal_flush_lsn() < pg_current_wal_insert_lsn()') eq
	  't';
}

# The ways to read what comes after a cursor: each returns lines xid|pos|key.
sub plain_sql
{
	my ($xid, $pos) = @_;

	return sql($node, <<"SQL");
SELECT feed_xid, feed_pos, message_key FROM outbox
WHERE (feed_xid, feed_pos) > ('$xid', $pos)
	AND feed_xid < pg_snapshot_xmin(pg_current_snapshot())
ORDER BY feed_xid, feed_pos
SQL
}

sub feed_fetch
{
	my ($feed, $limit, @options) = @_;

	return sub {
		my ($xid, $pos) = @_;

		return sql($node,
			'SELECT feed_xid, feed_pos, message_key FROM feed_fetch('
			  . ($feed ? "NULL::$feed, " : '')
			  . "'$xid', $pos, $limit)", @options);
	};
}

# Writes rows, reads them, crashes, writes others, and reads on.  Returns the
# keys that were read before the crash and have gone, and the new ones that
# are never delivered; undef when the server has flushed by itself.
sub crash_after_reading
{
	my ($feed, $read) = @_;
	my ($xid, $pos) = (0, 0);
	my @before;
	my @after;
	my $all = sub {
		my ($keys) = @_;

		while (my @page = split /\n/, $read->($xid, $pos))
		{
			for (@page)
			{
				($xid, $pos, my $key) = split /\|/;
				push @$keys, $key;
			}
		}
	};

	sql($node, "DELETE FROM $feed");
	# a new segment: the rows must not lie across the end of a WAL page, for
	# what is before it may be written without being asked for
	sql($node, 'SELECT pg_switch_wal()');
	sql($node, 'CHECKPOINT');
	insert($feed, qw(old1 old2 old3));
	return if !is_unflushed();
	$all->(\@before);
	crash();
	insert($feed, qw(new1 new2));
	$all->(\@after);

	my %present = map { $_ => 1 } split /\n/,
	  sql($node, "SELECT message_key FROM $feed");
	my %read = map { $_ => 1 } @after;
	return {
		before => "@before",
		gone => join(' ', grep { !$present{$_} } @before),
		skipped => join(' ', grep { !$read{$_} } qw(new1 new2)),
		after => "@after"
	};
}

#
# Rows
#
my $naive;
for (1 .. 5)
{
	$naive = crash_after_reading('outbox', \&plain_sql);
	last
	  if $naive
	  && $naive->{gone} eq 'old1 old2 old3'
	  && $naive->{skipped} eq 'new1 new2';
}
is($naive->{before}, 'old1 old2 old3', 'plain SQL: rows are read');
is($naive->{gone}, 'old1 old2 old3',
	'plain SQL: a crash takes back the rows that were read');
is($naive->{skipped}, 'new1 new2',
	'plain SQL: rows written after the crash are skipped');

my %readers = (
	'the default feed' => [ 'outbox', feed_fetch('', 100) ],
	'a named feed' => [ 'other', feed_fetch('other', 100) ],
	'pages of one row' => [ 'other', feed_fetch('other', 1) ],
	'a feed with row security' => [
		'guarded', feed_fetch('guarded', 100, user => 'regress_feedpub_reader')
	]);
for my $name (sort keys %readers)
{
	my $result;

	for (1 .. 5)
	{
		$result = crash_after_reading(@{ $readers{$name} });
		last if $result;
	}
	is_deeply(
		$result,
		{
			before => 'old1 old2 old3',
			gone => '',
			skipped => '',
			after => 'new1 new2'
		},
		"feed_fetch, $name: nothing gone, nothing skipped");
}

#
# A page that ends before the last row: the rest may go or stay, and the cursor
# goes on with what there is.
#
my $unfinished = feed_fetch('other', 1);
my $row;
for (1 .. 5)
{
	sql($node, 'DELETE FROM other; CHECKPOINT');
	insert('other', qw(read unread1 unread2));
	last if is_unflushed();
}
$row = $unfinished->(0, 0);
crash();
insert('other', qw(new1 new2));
like($row, qr/^\d+\|\d+\|read$/, 'a page ends before the last row');
is( sql($node,
		q(SELECT count(*) FILTER (WHERE message_key = 'read') FROM other)),
	1,
	'the row that was delivered stays');
is( feed_fetch('other', 100)->($row =~ /^(\d+)\|(\d+)/),
	sql($node, <<'SQL'),
SELECT feed_xid, feed_pos, message_key FROM other WHERE message_key <> 'read'
ORDER BY feed_xid, feed_pos
SQL
	'and the cursor after it goes on with what there is');

#
# One session that reads on and on: it keeps in mind what it knows to be
# durable, and must not think so of later rows.
#
sql($node, 'DELETE FROM outbox; CHECKPOINT');
my $session = $node->background_psql('postgres');
my ($xid, $pos) = (0, 0);
my @read;
for my $i (1 .. 12)
{
	insert('outbox', "s$i");
	# savepoints: the row's own xid is not the one that it is stamped with
	sql($node, <<"SQL");
BEGIN;
SAVEPOINT a;
INSERT INTO outbox (message_type, message_key, data) VALUES ('A', 'sub$i', '1');
RELEASE a;
COMMIT
SQL
	sql($node, 'SET synchronous_commit = on; INSERT INTO business VALUES (1)')
	  if $i % 4 == 0;
	for (
		split /\n/,
		$session->query_safe(
			"SELECT feed_xid, feed_pos, message_key FROM feed_fetch('$xid', $pos, 100)"
		))
	{
		($xid, $pos, my $key) = split /\|/;
		push @read, $key;
	}
}
$session->quit;
crash();
is_deeply(\@read, [ map { ("s$_", "sub$_") } 1 .. 12 ],
	'one session reads all rows, as they come');
is( sql($node,
		'SELECT message_key FROM outbox ORDER BY feed_xid, feed_pos'),
	join("\n", @read),
	'and after a crash all are still there');

#
# The same of one session whose first page needs no flush: its row is of a
# synchronous writer, and far enough from the others, for the commit log
# remembers what to flush for groups of 32 transactions.  That the first page
# had younger transactions after it does not make these durable.
#
my $second = '';
my $kept;
for (1 .. 5)
{
	sql($node, 'SET synchronous_commit = on; DELETE FROM outbox; CHECKPOINT');
	sql($node, <<'SQL');
SET synchronous_commit = on;
INSERT INTO outbox (message_type, message_key, data) VALUES ('A', 'sync', '1');
DO $$
BEGIN
	FOR i IN 1..70 LOOP
		PERFORM pg_current_xact_id();
		ROLLBACK;
	END LOOP;
END $$;
SQL
	insert('outbox', qw(async1 async2));

	$session = $node->background_psql('postgres');
	my $fetch = 'SELECT feed_xid, feed_pos, message_key FROM feed_fetch';
	my $first = $session->query_safe("$fetch('0', 0, 1)");
	$kept = is_unflushed();
	($xid, $pos) = split /\|/, $first;
	$second = $session->query_safe("$fetch('$xid', $pos, 100)");
	$session->quit;
	crash();
	last if $kept;
}
ok($kept, 'a page of a synchronous writer flushes nothing');
is($second =~ s/^\d+\|\d+\|//gmr, "async1\nasync2",
	'the next page has the others');
is( sql($node,
		'SELECT message_key FROM outbox ORDER BY feed_xid, feed_pos'),
	"sync\nasync1\nasync2",
	'and after a crash they are still there');

#
# The cursor of now names a transaction that need not have written a message.
#
sub crash_after_head
{
	my ($head) = @_;

	sql($node, 'DELETE FROM outbox; CHECKPOINT');
	sql($node, 'INSERT INTO business VALUES (1)') for 1 .. 4;
	sql($node,
		q(BEGIN; INSERT INTO outbox (message_type, data) VALUES ('A', '1'); ROLLBACK)
	);
	return if !is_unflushed();
	my ($xid, $pos) = split /\|/, sql($node, $head);
	crash();
	insert('outbox', qw(new1 new2));
	return join ' ', map { /(\w+)$/ } split /\n/, plain_sql($xid, $pos);
}

my $got;
for (1 .. 5)
{
	$got = crash_after_head(<<'SQL');
SELECT (pg_snapshot_xmin(pg_current_snapshot())::text::bigint - 1)::text::xid8,
	9223372036854775807
SQL
	last if defined $got && $got eq '';
}
is($got, '', 'plain SQL: rows written after the crash lie before the head');
for (1 .. 5)
{
	$got = crash_after_head(q(SELECT * FROM feed_xid_head('outbox')));
	last if defined $got;
}
is($got, 'new1 new2',
	'feed_xid_head: rows written after the crash come after it');

#
# feed_xid_head flushes up to the end of the WAL, also when that is where a
# page or a segment begins, whose header has not been written.
#
for my $unit ([ 'page', 8192, 24 ], [ 'segment', 16 * 1024 * 1024, 40 ])
{
	my ($name, $size, $header) = @$unit;
	my $out = sql($node, <<"SQL");
SELECT pg_switch_wal() IS NOT NULL;
CREATE FUNCTION pg_temp.room() RETURNS int LANGUAGE sql VOLATILE AS
	\$\$ SELECT $size - ((pg_current_wal_insert_lsn() - '0/0') % $size)::int \$\$;
CREATE FUNCTION pg_temp.emit(size int) RETURNS void LANGUAGE sql VOLATILE AS
	\$\$ SELECT pg_logical_emit_message(false, '', repeat('x', size)) \$\$;
DO \$\$
DECLARE
	before int;
	overhead int := 1000;
BEGIN
	-- What a record of this kind takes besides its text: the least of some
	-- tries, for a page may end within it, or other records come between.
	FOR i IN 1..10 LOOP
		before := pg_temp.room();
		PERFORM pg_temp.emit(400);
		overhead := LEAST(overhead, before - pg_temp.room() - 400);
	END LOOP;
	-- towards the last page of the segment
	WHILE pg_temp.room() > 16384 LOOP
		PERFORM pg_temp.emit(LEAST(pg_temp.room() - 12288, 1000000));
	END LOOP;
	-- its last record has 300 bytes and more: room for the long header
	WHILE pg_temp.room() > 8192 OR pg_temp.room() < 1000 LOOP
		PERFORM pg_temp.emit(400);
	END LOOP;
	PERFORM pg_temp.emit(pg_temp.room() - overhead);
END \$\$;
SELECT (pg_current_wal_insert_lsn() - '0/0') % $size;
SELECT after_pos FROM feed_xid_head('outbox');
SQL
	like($out, qr/^$header$/m, "the WAL ends where a $name begins");
	like($out, qr/^9223372036854775807$/m,
		"feed_xid_head works there");
}

$node->stop;
done_testing();
