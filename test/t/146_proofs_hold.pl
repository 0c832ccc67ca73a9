# A server that has the proof of a page of a table feed has all that the page saw.
# In each case a consumer passes a row that has another version, which is then
# lost.  It gets the row that is back, or is refused.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubPublished;
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# A consumer of kv: a page into its copy.
sub follow
{
	my ($node, $consumer, %options) = @_;
	my $entries = sql($node, <<"SQL", %options);
SET feedpub.read_wait = 0;
SELECT cursor, op, (entry).k, (entry).v FROM feed_read(NULL::kv, '$consumer->{cursor}', $consumer->{max_rows})
SQL
	for (split /\n/, $entries)
	{
		my ($cursor, $op, $k, $v) = split /\|/;

		$consumer->{cursor} = $cursor;
		$consumer->{copy}{$k} = $v if $op eq 'upsert';
		delete $consumer->{copy}{$k} if $op eq 'delete';
	}
	return scalar split /\n/, $entries;
}

# Its copy, when it has read to the end
sub copy
{
	my ($node, $consumer, %options) = @_;

	1 while follow($node, $consumer, %options);
	return shown($consumer);
}

sub shown
{
	my ($consumer) = @_;

	return join ' ', map { "$_=$consumer->{copy}{$_}" } sort keys %{ $consumer->{copy} };
}

sub table
{
	my ($node, %options) = @_;

	return sql($node, q(SELECT string_agg(k || '=' || v, ' ' ORDER BY k) FROM kv), %options);
}

sub consumer
{
	my ($max_rows) = @_;

	return { cursor => '', copy => {}, max_rows => $max_rows };
}

# kv with rows in one batch, and perhaps rows that were there before
sub make_feed
{
	my ($node, %options) = @_;
	my $keys = delete $options{keys} // 'a,b,c,d';
	my $there = delete $options{there} // '';

	sql($node, $_, %options)
	  for 'SELECT feed_stop_worker()',
	  'CREATE TABLE kv (k text PRIMARY KEY, v text)',
	  "INSERT INTO kv SELECT k, 'first' FROM unnest('{$there}'::text[]) k",
	  q(SELECT feed_attach('kv')),
	  "INSERT INTO kv SELECT k, 'first' FROM unnest('{$keys}'::text[]) k",
	  'CALL feed_publish()';
	return;
}

sub change
{
	my ($node, $k, $v, %options) = @_;

	sql($node, "UPDATE kv SET v = '$v' WHERE k = '$k'", %options);
	return;
}

sub standby_of
{
	my ($node, $name) = @_;
	my $standby = PostgreSQL::Test::Cluster->new($name);

	$node->backup("for_$name");
	$standby->init_from_backup($node, "for_$name", has_streaming => 1);
	$standby->start;
	$node->wait_for_replay_catchup($standby);
	return $standby;
}

sub promote
{
	my ($node) = @_;

	$node->append_conf('postgresql.conf', q(primary_conninfo = ''));
	$node->start;
	$node->promote;
	sql($node, 'SELECT feed_stop_worker()');
	return;
}

#
# The publisher gets its xid after the writer.  Its commit record comes first,
# but it waits for a standby, so the writer's commit is seen first.  It writes
# two batches: neither of them proves anything.
#
my $primary = feedpub_node('primary', allows_streaming => 1);
make_feed($primary);
my $standby = standby_of($primary, 'standby');
my $writer = $primary->background_psql('postgres');
$writer->query_safe(q(SET synchronous_commit = local; BEGIN; UPDATE kv SET v = 'lost' WHERE k = 'a'));
change($primary, $_, 'second') for qw(b d);
$primary->append_conf('postgresql.conf', q(synchronous_standby_names = 'none'));
$primary->append_conf('postgresql.conf', 'feedpub.max_batch_transactions = 1');
$primary->reload;
my $publisher = background($primary, 'CALL feed_publish()');
$primary->wait_for_event('client backend', 'SyncRep');
$primary->wait_for_replay_catchup($standby);
$standby->stop;
$writer->query_safe('COMMIT');
$writer->quit;
my $raced = consumer(1);
follow($primary, $raced);
is(shown($raced), 'c=first', 'a consumer passes what a batch is waiting with');
is(sql($primary, q(SELECT count(*) FROM feedpub._batch)), 1, 'which it does not see');
$primary->stop('immediate');
eval { $publisher->finish };
promote($standby);
is(sql($standby, q(SELECT count(*) FROM feedpub._batch)), 3, 'the standby has the batches');
is(table($standby), 'a=first b=second c=first d=second', 'but not the change before it in xid order');
is(copy($standby, $raced), table($standby), 'the consumer goes back');
$standby->stop;

#
# A standby follows a primary that has not published yet since its promotion.
#
my $first = feedpub_node('first', allows_streaming => 1);
make_feed($first);
my $second = standby_of($first, 'second');
my $third = PostgreSQL::Test::Cluster->new('third');
$second->backup('for_third');
$third->init_from_backup($second, 'for_third', has_streaming => 1);
$second->stop;
my $quiet = consumer(3);
change($first, 'c', 'lost');
follow($first, $quiet);
is(shown($quiet), 'a=first b=first d=first', 'a consumer of the first primary passes a row');
sql($first, 'CALL feed_publish()');
$first->stop('immediate');
promote($second);
$third->start;
$second->wait_for_replay_catchup($third);
is(copy($third, $quiet), table($third), 'the standby of the second one lets it go back');

change($second, 'b', 'lost too');
$second->wait_for_replay_catchup($third);
is(sql($third, q(SELECT count(*) FROM feedpub._batch)), 1, 'the second primary has not published');
my $elsewhere = consumer(1);
follow($third, $elsewhere) for 1 .. 2;
is(shown($elsewhere), 'a=first c=first', 'a consumer of the standby passes a row');
my $published = { %$elsewhere, copy => { %{ $elsewhere->{copy} } } };
sql($second, 'CALL feed_publish()');
$second->wait_for_replay_catchup($third);
is(copy($third, $published), table($third), 'it gets what is published then');
$third->stop;
$second->stop('immediate');
$first->start;
sql($first, 'SELECT feed_stop_worker()');
is(copy($first, $elsewhere), table($first), 'the first primary again: the consumer goes back');
$first->stop;

#
# One start serves a database and its copies.
#
my $node = feedpub_node('node', extension => 0);
sql($node, 'CREATE DATABASE app');
sql($node, 'CREATE EXTENSION feedpub', db => 'app');
make_feed($node, db => 'app');
my $dump = PostgreSQL::Test::Utils::tempdir() . '/dump.sql';
$node->command_ok([ 'pg_dump', '-f', $dump, 'app' ], 'pg_dump');
$node->poll_query_until('postgres', q(SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = 'app'));
sql($node, 'CREATE DATABASE copied TEMPLATE app');
sql($node, 'CREATE DATABASE restored');
$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', $dump, 'restored' ], 'psql restores it');
change($node, 'a', 'lost', db => 'app');
for my $db (qw(copied restored))
{
	my $moved = consumer(1);

	follow($node, $moved, db => 'app');
	is(shown($moved), 'b=first', "$db: a consumer passes what is lost");
	sql($node, 'SELECT feed_stop_worker()', db => $db);
	is(copy($node, $moved, db => $db), table($node, db => $db), "$db: it goes back");
}
my $here = consumer(1);
follow($node, $here, db => 'app');
my $at = $here->{cursor};
is(copy($node, $here, db => 'app'), 'b=first c=first d=first', 'where nothing is lost it goes on');
sql($node, 'CALL feed_publish()', db => 'app');
is(copy($node, $here, db => 'app'), table($node, db => 'app'), 'and gets what is published then');

# A cursor that was cut is none.
refused($node, "SELECT feed_page('kv', left('$at', 44))", '22023', 'malformed', 'a cursor without its proof', db => 'app');
$node->stop;

#
# A cursor of a consumer that has gone back does not tell how far it had got.  If
# the server is lost then, it goes back once more, unless the standby lacks a row
# that it has.
#
my $lost = feedpub_node('lost', allows_streaming => 1);
make_feed($lost, there => 'a', keys => 'b,c,d');
my $lagging = standby_of($lost, 'lagging');
my $further = standby_of($lost, 'further');
$lagging->stop;
my ($gone, $returned) = (consumer(5), consumer(5));
sql($lost, q(INSERT INTO kv VALUES ('e', 'lost')));
sql($lost, 'CALL feed_publish()');
sql($lost, q(INSERT INTO kv VALUES ('f', 'lost')));
for my $consumer ($gone, $returned)
{
	follow($lost, $consumer);
	is(shown($consumer), 'a=first b=first c=first d=first e=lost', 'a consumer has a row that the standby has not');
}
$lost->stop('immediate');
$lost->start;
sql($lost, 'SELECT feed_stop_worker()');
for my $consumer ($gone, $returned)
{
	$consumer->{max_rows} = 2;
	is(follow($lost, $consumer), 2, 'after a restart it goes back, and reads a page');
}
follow($lost, $returned) for 1 .. 2;
$lost->wait_for_replay_catchup($further);
$further->stop;
change($lost, 'e', 'lost again');
follow($lost, $returned);
$lost->stop('immediate');
promote($lagging);
refused($lagging, "SELECT feed_page('kv', '$gone->{cursor}')", 'PF001', 'another history', 'the standby refuses it');
$lagging->stop;
promote($further);
sql($further, 'CALL feed_publish()');
is(copy($further, $returned), table($further), 'another standby, which has that row, lets it go back once more');
$further->stop;

#
# The base of a cursor counts batches.  After a failover they are others.
#
my $counted = feedpub_node('counted', allows_streaming => 1);
make_feed($counted);
my $fork = standby_of($counted, 'fork');
$fork->stop;
for my $v (1 .. 5)
{
	change($counted, 'd', $v);
	sql($counted, 'CALL feed_publish()');
}
my $early = consumer(2);
follow($counted, $early);
is(shown($early), 'a=first b=first', 'a consumer begins after six batches');
$counted->stop('immediate');
promote($fork);
is(copy($fork, { %$early, copy => { %{ $early->{copy} } } }), table($fork), 'on the standby, which has one of them, it goes back');
sql($fork, $_) for q(DELETE FROM kv WHERE k = 'a'), 'CALL feed_publish()',
  q(UPDATE kv SET v = 'last' WHERE k = 'b'), 'CALL feed_publish()',
  q(CALL feed_purge('kv', feed_head('kv')));
refused($fork, "SELECT feed_page('kv', '$early->{cursor}')", 'PF002', 'has expired', 'it is refused when a delete is gone that it has not got');
$fork->stop;
done_testing();
