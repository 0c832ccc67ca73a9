# A consumer polls, works and acknowledges in one transaction, and is killed
# whenever it meets one of some messages.  After max_attempts deliveries they are
# parked, and all others have taken effect once.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('server');
my $settings = 'SET feedpub.read_wait = 0';
my $consumer;

# A turn of the consumer.  Returns what was delivered, as "data:attempt", and
# whether it was killed.
sub turn
{
	my ($subscription, $limit, $name) = @_;
	my $args = defined $name ? "$limit, '$name'" : $limit;

	if (!$consumer)
	{
		$consumer = $node->background_psql('postgres');
		$consumer->query_safe($settings);
	}
	my $pid = $consumer->query_safe('SELECT pg_backend_pid()');
	$consumer->query_safe('BEGIN');
	my $page = $consumer->query_safe(<<"SQL");
CREATE TEMP TABLE page ON COMMIT DROP AS
	SELECT receipt, row ->> 'data' AS data, attempt, ordinality FROM feed_poll('$subscription', $args) WITH ORDINALITY;
INSERT INTO effect SELECT '$subscription', data FROM page;
SELECT string_agg(data || ':' || attempt, ' ' ORDER BY ordinality) FROM page;
SQL
	if ($page =~ /poison/)
	{
		$consumer->{run}->signal('KILL');
		eval { $consumer->{run}->finish };
		undef $consumer;
		$node->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid")
		  or die 'its transaction does not end';
		return ($page, 1);
	}
	$consumer->query_safe("SELECT feed_ack('$subscription', receipt) FROM page ORDER BY ordinality DESC LIMIT 1; COMMIT;");
	return ($page, 0);
}

# Turns until nothing is left, or until it was killed $most times.
sub consume
{
	my ($most, @args) = @_;
	my ($kills, @pages) = (0);

	while ($kills < $most)
	{
		my ($page, $killed) = turn(@args);

		$kills += $killed;
		push @pages, $page;
		last if $page eq '' && sql($node, "SELECT lag_rows FROM feedpub.subscriptions WHERE name = '$args[0]'") == 0;
		die "@pages" if @pages > 200;
	}
	return ($kills, @pages);
}

sub effects
{
	my ($subscription) = @_;

	return sql($node, "SELECT count(*), count(DISTINCT data), count(*) FILTER (WHERE data ~ 'poison') FROM effect WHERE subscription = '$subscription'");
}

sub parked
{
	my ($subscription) = @_;

	return sql($node, "SELECT string_agg(message ->> 'data' || ' ' || attempts || ' ' || state, ', ' ORDER BY cursor) FROM feedpub.parked WHERE subscription = '$subscription'");
}

sql($node, <<'SQL');
SELECT feed_stop_worker();
SELECT feed_create('outbox');
CREATE TABLE effect (subscription text, data text);
INSERT INTO outbox (message_type, data)
	SELECT 'a', to_jsonb(CASE WHEN i IN (17, 25, 26) THEN 'poison' ELSE 'm' END || i) FROM generate_series(1, 40) i;
CALL feed_publish();
SQL

for my $preloaded (0, 1)
{
	my $how = $preloaded ? 'preloaded' : 'not preloaded';

	if ($preloaded)
	{
		undef $consumer;
		$node->append_conf('postgresql.conf', "shared_preload_libraries = 'feedpub'");
		$node->restart;
		sql($node, 'SELECT feed_stop_worker()');
	}
	for my $limit (1, 10)
	{
		my $subscription = "of_$limit";
		my $test = "$how, pages of $limit";

		sql($node, "SELECT feed_subscribe('$subscription', 'outbox', 'earliest', max_attempts => 3)");
		my ($kills, @pages) = consume(100, $subscription, $limit);
		is(parked($subscription), 'poison17 3 parked, poison25 3 parked, poison26 3 parked', "$test: they are parked");
		is(effects($subscription), '37|37|0', "$test: all others took effect once");

		# in a page of several one that is not the first one is not counted
		is($kills, $limit == 1 ? 9 : 11, "$test: it was killed so often");
		is(sql($node, "SELECT DISTINCT reason FROM feedpub.parked WHERE subscription = '$subscription'"),
			'deliveries ended without an acknowledgement', "$test: with the reason");
		note(join "\n", @pages);
		is((grep { /^m1[0-6]:1( |$)/ } @pages) > 0, 1, "$test: entries before it are delivered");
		my @last = grep { /m40:/ } @pages;
		is(scalar(() = $last[-1] =~ /m/g), $limit == 1 ? 1 : $pages[-2] =~ tr/m//, "$test: pages have their size again");

		# an operator has one delivered again
		sql($node, "SELECT feed_retry('$subscription', cursor) FROM feedpub.parked WHERE subscription = '$subscription' AND message ->> 'data' = 'poison25'");
		($kills, @pages) = consume(2, $subscription, $limit);
		is("@pages", 'poison25:4 ', "$test: after feed_retry() one attempt more");
		is(parked($subscription), 'poison17 3 parked, poison25 4 parked, poison26 3 parked', "$test: and it is parked again");

		# the bad messages are dealt with
		sql($node, "DELETE FROM effect WHERE subscription = '$subscription'; SELECT feed_unsubscribe('$subscription')");
	}
}

#
# A lease that runs out and is taken over: the count goes on.
#
sql($node, "SELECT feed_subscribe('group', 'outbox', 'earliest', lease => '1 s', max_attempts => 2)");
my ($kills) = (0);
for my $turn (1 .. 300)
{
	my $name = "worker $turn";
	my ($page, $killed) = turn('group', 5, $name);

	$kills += $killed;
	sql($node, "UPDATE feedpub._shard SET leased_until = now() - interval '1 ms' WHERE subscription = 'group';"
		  . "DELETE FROM feedpub._consumer");
	last if $page eq '' && sql($node, "SELECT lag_rows FROM feedpub.subscriptions WHERE name = 'group'") == 0;
}
is(parked('group'), 'poison17 2 parked, poison25 2 parked, poison26 2 parked', 'other consumers: parked');
is(effects('group'), '37|37|0', 'other consumers: all others took effect once');
sql($node, "SELECT feed_unsubscribe('group')");

#
# A parked entry that kills the consumer when it is delivered again.
#
sql($node, <<"SQL");
$settings;
SELECT feed_subscribe('nacked', 'outbox', 'earliest', max_attempts => 3);
CREATE TEMP TABLE page AS SELECT receipt, row, ordinality FROM feed_poll('nacked', 40) WITH ORDINALITY;
SELECT feed_nack('nacked', receipt, delay => '0') FROM page WHERE row ->> 'data' = 'poison17';
SELECT feed_ack('nacked', receipt) FROM page ORDER BY ordinality DESC LIMIT 1;
SQL
($kills, my @pages) = consume(100, 'nacked', 40);
is("@pages", 'poison17:2 poison17:3 ', 'a parked entry comes until it has failed too often');
is(parked('nacked'), 'poison17 3 parked', 'and stays parked');

#
# What counts nothing: no max_attempts parks nothing, but attempt says it; a
# read-only transaction; a standby is in 305.  A crash forgets.
#
sql($node, "SELECT feed_subscribe('free', 'outbox', 'earliest')");
my $poll = "SELECT string_agg(DISTINCT attempt::text, ' '), count(*) FROM feed_poll('free', 5)";
is(sql($node, "$settings; $poll; $poll; BEGIN READ ONLY; $poll; COMMIT; $poll"), "1|5\n2|5\n1|5\n3|5", 'without max_attempts');
sql($node, "SELECT feed_seek('free', 'earliest')");
is(sql($node, "$settings; $poll"), '1|5', 'feed_seek() begins again');

# In another history entries come again with the positions that they had.
sql($node, "SELECT feed_subscribe('anew', 'outbox', 'earliest', max_attempts => 2)");
$poll = "SELECT string_agg(row ->> 'data' || ':' || attempt, ' ') FROM feed_poll('anew', 3)";
is(sql($node, "$settings; $poll; $poll; $poll; $poll"), "m1:1 m2:1 m3:1\nm1:2\n\nm2:1", 'an entry is parked by a poll that returns nothing');
# if that poll is rolled back, the next one parks it
is(sql($node, "$settings; $poll; BEGIN; $poll; SELECT count(*) FROM feedpub.parked WHERE subscription = 'anew'; ROLLBACK; $poll; SELECT count(*) FROM feedpub.parked WHERE subscription = 'anew'; $poll"),
	"m2:2\n\n2\n\n2\nm3:1", 'and again if that is rolled back');
# one that was never alone may not be the one that kills
sql($node, "SELECT feed_subscribe('once', 'outbox', 'earliest', max_attempts => 1)");
my $once = $poll =~ s/anew/once/r;
is(sql($node, "$settings; $once; $once; $once; $once"), "m1:1 m2:1 m3:1\nm1:2\n\nm2:1", 'not before it was alone');
sql($node, "SELECT feed_begin_history('outbox'), feed_seek('anew', 'earliest'); CALL feed_publish()");
is(sql($node, "$settings; $poll; $poll"), "m1:1 m2:1 m3:1\nm1:2", 'another history begins again');
sql($node, 'ALTER SYSTEM SET restart_after_crash = on');
undef $consumer;
$node->stop('immediate');
$node->start;
is(sql($node, "$settings; $poll"), 'm1:1 m2:1 m3:1', 'a crash forgets the counts');
done_testing();
