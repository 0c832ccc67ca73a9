# A standby reads the initial snapshot of a table feed, while the primary changes
# it, and goes on into the batches that follow: what it delivers makes a copy that is
# equal, and cursors of one are cursors of the other.  After a crash of the
# primary they still are.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = feedpub_node('primary', allows_streaming => 1);
$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->start;

sql($primary, <<'SQL');
CREATE TABLE kv (k int PRIMARY KEY, v text);
INSERT INTO kv SELECT i, 'a' FROM generate_series(1, 500) i;
SELECT feed_attach('kv');
SQL

# One page of a server, applied to a copy; returns how many entries it had.
sub follow
{
	my ($node, $copy, $cursor, $page) = @_;
	my @rows = split /\n/, sql($node, <<"SQL");
SET feedpub.read_wait = 0;
SELECT cursor, op, (entry).k, (entry).v FROM feed_read(NULL::kv, '$$cursor', $page);
SQL

	for (@rows)
	{
		my ($after, $op, $k, $v) = split /\|/, $_, 4;

		$$cursor = $after;
		$copy->{$k} = $v if $op eq 'upsert';
		delete $copy->{$k} if $op eq 'delete';
		%$copy = () if $op eq 'truncate';
	}
	return scalar @rows;
}

sub text
{
	my ($copy) = @_;

	return join ' ', map { "$_=$copy->{$_}" } sort { $a <=> $b } keys %$copy;
}

sub table
{
	return sql($primary, q(SELECT string_agg(k || '=' || v, ' ' ORDER BY k) FROM kv));
}

sub catch_up
{
	sql($primary, q(CALL feed_publish('kv')));
	$primary->wait_for_replay_catchup($standby);
	return;
}

catch_up();
my (%copy, %turns);
my ($cursor, $turn_cursor) = ('', '');
my $step = 0;

# Pages of the initial snapshot of the standby alone, and of both by turns; changes before
# and after the readers.
for (1 .. 6)
{
	is(follow($standby, \%copy, \$cursor, 50), 50, "page $_ of the initial snapshot");
	follow($_ % 2 ? $standby : $primary, \%turns, \$turn_cursor, 40);
	$step++;
	sql($primary, <<"SQL");
UPDATE kv SET v = 'step $step' WHERE k % 100 = $step;
DELETE FROM kv WHERE k % 100 = 50 + $step;
UPDATE kv SET k = k + 1000 WHERE k % 100 = 70 + $step AND k < 1000;
INSERT INTO kv VALUES (2000 + $step, 'new');
SQL
	$primary->wait_for_replay_catchup($standby);
}
sql($primary, 'VACUUM kv');
catch_up();
1 while follow($standby, \%copy, \$cursor, 50);
1 while follow($standby, \%turns, \$turn_cursor, 50);
is(text(\%copy), table(), 'the copy of a consumer of the standby');
is(text(\%turns), table(), 'and of one of both');
is(sql($standby, q(SELECT left(feed_head('kv'), 25))),
	substr($cursor, 0, 25), 'who has read all is at the head');

# On the primary it begins anew, the same.
my %other;
my $other_cursor = '';
1 while follow($primary, \%other, \$other_cursor, 33);
is(text(\%other), table(), 'the copy of a consumer of the primary');
is(substr($other_cursor, 0, 37), substr($cursor, 0, 37), 'its cursor is the same, but for the base');

# VACUUM FULL in the middle of the initial snapshot.
my %full;
my $full_cursor = '';
follow($standby, \%full, \$full_cursor, 100);
sql($primary, 'VACUUM FULL kv');
sql($primary, q(UPDATE kv SET v = 'after' WHERE k = 99));
catch_up();
1 while follow($standby, \%full, \$full_cursor, 50);
is(text(\%full), table(), 'rewritten while it is read');

# A crash.
sql($primary, q(UPDATE kv SET v = 'before the crash' WHERE k = 100));
sql($primary, q(CALL feed_publish('kv')));
$primary->stop('immediate');
$primary->start;
sql($primary, q(UPDATE kv SET v = 'after it' WHERE k = 101; DELETE FROM kv WHERE k = 102));
catch_up();
for my $node ($standby, $primary)
{
	my %here = %full;
	my $from = $full_cursor;

	1 while follow($node, \%here, \$from, 50);
	is(text(\%here), table(), $node->name . ' goes on after a crash');
}

# TRUNCATE, and another server instead of the standby.
sql($primary, q(TRUNCATE kv; INSERT INTO kv VALUES (1, 'last')));
catch_up();
1 while follow($standby, \%full, \$full_cursor, 50);
is(text(\%full), '1=last', 'emptied');
$standby->promote;
sql($standby, q(UPDATE kv SET v = 'promoted'; CALL feed_publish('kv')));
1 while follow($standby, \%full, \$full_cursor, 50);
is(text(\%full), '1=promoted', 'promoted, it publishes by itself');
$standby->stop;
$primary->stop;
done_testing();
