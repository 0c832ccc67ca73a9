# A prepared transaction's rows are published when it is committed, though
# COMMIT PREPARED runs no code of ours: the worker has it on watch, also over
# a restart of the worker or of the server.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubPublished;
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node(
	'server',
	conf => <<'CONF');
max_prepared_transactions = 40
restart_after_crash = on
CONF
my @feeds = map { "feed$_" } 1 .. 12;

sql($node, "SELECT feed_create('$_')") for 'outbox', @feeds;

sub prepare_sql
{
	my ($gid, @into) = @_;

	return 'BEGIN; '
	  . join('',
		map
		{
			"INSERT INTO $_ (message_type, message_key, data) VALUES ('A', '$gid', '1'); "
		} @into)
	  . "PREPARE TRANSACTION '$gid'; ";
}

sub prepare
{
	return sql($node, prepare_sql(@_));
}

sub start_worker
{
	sql($node, 'SELECT feed_start_worker()');
	return await_worker($node);
}

for my $preload ('', 'feedpub')
{
	my $how = $preload ? 'preloaded' : 'on demand';
	my $cursor;
	my $publishes = sub {
		my ($keys, $test) = @_;
		local $Test::Builder::Level = $Test::Builder::Level + 1;

		ok(await_published($node, 'outbox'), "$how: $test: published, though nobody reads");
		is(read_all($node, 'outbox', after => \$cursor), $keys, "$how: $test");
	};
	my $restart = sub {
		$node->restart;
		start_worker() if !$preload;
		return await_worker($node);
	};

	$node->append_conf('postgresql.conf',
		"shared_preload_libraries = '$preload'");
	$restart->();
	$cursor = sql($node, q(SELECT feed_head('outbox')));

	prepare('one', 'outbox');
	sql($node,
		q(INSERT INTO outbox (message_type, message_key, data) VALUES ('A', 'other', '1'))
	);
	$publishes->('other', 'another row is not held back');
	sql($node, q(COMMIT PREPARED 'one'));
	$publishes->('one', 'COMMIT PREPARED');

	my $before = batches($node, 'outbox');
	prepare('never', 'outbox');
	prepare('two', 'outbox');
	sql($node, q(ROLLBACK PREPARED 'never'));
	sql($node, q(COMMIT PREPARED 'two'));
	$publishes->('two', 'after ROLLBACK PREPARED of another');
	is(batches($node, 'outbox'), $before + 1, "$how: which made no batch");

	prepare('three', 'outbox');
	kill_worker($node);
	start_worker();
	sql($node, q(COMMIT PREPARED 'three'));
	$publishes->('three', 'prepared before the worker began');

	prepare('four', 'outbox');
	kill_worker($node) if !$preload;
	sql($node, q(COMMIT PREPARED 'four'));
	start_worker();
	$publishes->('four', 'committed before the worker began');

	prepare('five', 'outbox');
	$restart->();
	sql($node, q(COMMIT PREPARED 'five'));
	$publishes->('five', 'prepared before the server was restarted');

	prepare('six', 'outbox');
	$node->stop('immediate');
	$node->start;
	start_worker() if !$preload;
	await_worker($node);
	sql($node, q(COMMIT PREPARED 'six'));
	$publishes->('six', 'prepared before a crash');

	# More at a time than there is room for; the worker is busy meanwhile
	my $worker = await_worker($node);
	my $holder = hold_publisher($node);
	sql($node,
		q(INSERT INTO outbox (message_type, message_key, data) VALUES ('A', 'busy', '1'))
	);
	$node->poll_query_until('postgres',
		"SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $worker"
	) or die 'the worker does not write';
	sql($node,
		join '', prepare_sql('wide', @feeds),
		map { prepare_sql("many$_", $feeds[ $_ % @feeds ]) } 1 .. 24);
	$holder->quit;
	$publishes->('busy', 'busy');
	sql($node,
		join '', map { "COMMIT PREPARED '$_'; " } 'wide',
		map { "many$_" } 1 .. 24);
	ok(await_all_published($node, @feeds),
		"$how: many prepared transactions into many feeds");
	prepare('last', 'outbox');
	sql($node, q(COMMIT PREPARED 'last'));
	$publishes->('last', 'and afterwards one');
	is(await_worker($node), $worker, "$how: all by one worker");
}

$node->stop;
done_testing();
