# A logical-replication subscriber whose table is a feed: the rows of the initial
# copy and of the apply worker get this server's stamps, deletes leave its
# tombstones; whether the publisher's table is a plain one, a feed whose stamp
# is left out of the publication, or a feed with its stamp; and where the
# subscriber's is partitioned.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $publisher = feedpub_node('publisher', allows_streaming => 'logical');
my $subscriber = feedpub_node('subscriber', allows_streaming => 'logical',
	conf => "max_logical_replication_workers = 10\nmax_worker_processes = 20\n");
my $connection = $publisher->connstr . ' dbname=postgres';
my @tables = qw(plain listed stamped parted);
my %published = (plain => '', listed => '(k, v)', stamped => '', parted => '');

# Rows move from one partition into the other, whose columns are in another
# order.
my %table = (parted => <<'SQL');
CREATE TABLE parted (k int PRIMARY KEY, v text) PARTITION BY RANGE (k);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (MINVALUE) TO (100);
CREATE TABLE parted_2 (v text, k int NOT NULL);
ALTER TABLE parted ATTACH PARTITION parted_2 DEFAULT;
SQL

# The publisher's stamps are far beyond the subscriber's.
burn_xids($publisher, 1000);
for my $table (@tables)
{
	sql($publisher, <<"SQL");
CREATE TABLE $table (k int PRIMARY KEY, v text);
INSERT INTO $table SELECT i, 'a' FROM generate_series(1, 50) i;
SQL
	sql($publisher, <<"SQL") if $table =~ /listed|stamped/;
SELECT feed_attach('$table');
UPDATE $table SET v = 'b' WHERE k <= 10;
SQL
	sql($publisher, "CREATE PUBLICATION $table FOR TABLE $table $published{$table}");
	sql($subscriber, $table{$table} // "CREATE TABLE $table (k int PRIMARY KEY, v text)");
	sql($subscriber, <<"SQL");
INSERT INTO $table VALUES (1000, 'of here');
SELECT feed_attach('$table');
CREATE SUBSCRIPTION $table CONNECTION '$connection' PUBLICATION $table;
SQL
}
$subscriber->wait_for_subscription_sync;

my (%copy, %cursor);
sub follow
{
	my ($table) = @_;
	my %ops;

	sql($subscriber, "CALL feed_publish('$table')");
	while (1)
	{
		my $after = $cursor{$table} // '';
		my @rows = split /\n/, sql($subscriber, <<"SQL");
SET feedpub.read_wait = 0;
SELECT cursor, op, (entry).k, (entry).v FROM feed_read(NULL::$table, '$after', 30);
SQL
		return join ' ', map { "$ops{$_} $_" } sort keys %ops if !@rows;
		for (@rows)
		{
			($cursor{$table}, my ($op, $k, $v)) = split /\|/, $_, 4;
			$copy{$table}{$k} = $v if $op eq 'upsert';
			delete $copy{$table}{$k} if $op eq 'delete';
			$copy{$table} = {} if $op eq 'truncate';
			$ops{$op}++ if $op ne 'end';
		}
	}
}

sub ends_equal
{
	my ($table, $test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $rows = "SELECT string_agg(k || '=' || v, ' ' ORDER BY k) FROM $table";
	my $copy = $copy{$table} // {};

	is( join(' ', map { "$_=$copy->{$_}" } sort { $a <=> $b } keys %$copy),
		sql($subscriber, $rows),
		"$test: the copy equals the table");
	is( sql($subscriber, "$rows WHERE k < 1000"),
		sql($publisher, $rows),
		"$test: and the publisher's");
	is( sql($subscriber, <<"SQL"),
SELECT count(*) FROM (
	SELECT feed_xid FROM $table UNION ALL
	SELECT feed_xid FROM feedpub._tombstone) s
WHERE feed_xid >= pg_snapshot_xmax(pg_current_snapshot())
SQL
		0, "$test: no stamp is the publisher's");
	return;
}

for my $table (@tables)
{
	my $step = sub {
		my ($change, $ops, $test) = @_;

		sql($publisher, $change) if $change;
		$publisher->wait_for_catchup($table);
		is(follow($table), $ops, "$table, $test: what comes");
		ends_equal($table, "$table, $test");
	};

	$step->('', '51 upsert', 'initial copy');
	is( sql($subscriber,
			"SELECT count(*), count(feed_xid) FROM $table"),
		'51|50', "$table: rows of the initial copy are stamped");
	$step->("INSERT INTO $table VALUES (100, 'c'), (101, 'c')",
		'2 upsert', 'INSERT');
	$step->("UPDATE $table SET v = 'd' WHERE k BETWEEN 5 AND 8",
		'4 upsert', 'UPDATE');
	$step->("UPDATE $table SET v = v WHERE k BETWEEN 20 AND 30",
		'', 'UPDATE that changes nothing');
	$step->("DELETE FROM $table WHERE k IN (6, 40)", '2 delete', 'DELETE');
	$step->("UPDATE $table SET k = k + 200 WHERE k = 7",
		'1 delete 1 upsert', 'another key');
	$step->("DELETE FROM $table WHERE k = 9; INSERT INTO $table VALUES (9, 'again')",
		'1 upsert', 'deleted and inserted again');
	$step->("COPY $table (k, v) FROM PROGRAM 'echo 300,copied' (FORMAT csv)",
		'1 upsert', 'COPY');
	sql($subscriber, "UPDATE $table SET feed_xid = NULL WHERE k = 300");
	is(follow($table), '1 upsert', "$table: republished here");
	ends_equal($table, "$table, republished");
}

# TRUNCATE takes the subscriber's own row along.
for my $table (qw(plain parted))
{
	sql($publisher, "TRUNCATE $table; INSERT INTO $table VALUES (1, 'new')");
	$publisher->wait_for_catchup($table);
	is(follow($table), '1 truncate 1 upsert', "$table: TRUNCATE");
	ends_equal($table, "$table, TRUNCATE");
}

unlike($subscriber->log_content, qr/ERROR/, 'no worker has failed');
$subscriber->stop;
$publisher->stop;
done_testing();
