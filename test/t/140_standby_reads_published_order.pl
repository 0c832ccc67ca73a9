# On a hot standby the batches arrive by replication and read the same;
# feed_wait() sees them come; and a standby that is promoted publishes on.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubPublished;
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = feedpub_node('primary', allows_streaming => 1);
sql($primary, q(SELECT feed_create('outbox')));
$primary->backup('base');
my %standby;

# One of them has the line, and with it a launcher that must wait.
for my $name (qw(plain preloaded))
{
	$standby{$name} = PostgreSQL::Test::Cluster->new($name);
	$standby{$name}->init_from_backup($primary, 'base', has_streaming => 1);
	$standby{$name}->append_conf('postgresql.conf',
		"shared_preload_libraries = 'feedpub'")
	  if $name eq 'preloaded';
	$standby{$name}->start;
}
my @standbys = @standby{qw(plain preloaded)};

sub insert
{
	my ($node, @keys) = @_;

	sql($node,
		"INSERT INTO outbox (message_type, message_key, data) VALUES ('A', '$_', '1')"
	) for @keys;
	return;
}

sub catch_up
{
	$primary->wait_for_replay_catchup($_) for @standbys;
	return;
}

# All ways to read: rows with cursors, in one go and in small pages; the page
# as JSON; the head.
sub everything
{
	my ($node) = @_;

	return join "\n", sql($node, <<'SQL'), read_all($node, 'outbox', page => 3);
SELECT * FROM feed_read(NULL::outbox, '', 1000);
SELECT feed_page('outbox', '', 1000);
SELECT feed_page('outbox', '', 2);
SELECT feed_head('outbox');
SQL
}

#
# The same, with open and prepared transactions on the primary
#
my $open = $primary->background_psql('postgres');
$open->query_safe('BEGIN');
$open->query_safe(
	q(INSERT INTO outbox (message_type, message_key, data) VALUES ('A', 'open', '1'))
);
sql($primary, <<'SQL');
BEGIN;
INSERT INTO outbox (message_type, message_key, data) VALUES ('A', 'prepared', '1');
PREPARE TRANSACTION 'p';
SQL
insert($primary, 1 .. 5);
sql($primary,
	q(INSERT INTO outbox (message_type, message_key, data) SELECT 'A', 'many ' || i, '1' FROM generate_series(1, 50) i)
);
is( read_all($primary, 'outbox', wait => '60s'),
	join("\n", 1 .. 5, map { "many $_" } 1 .. 50),
	'the primary publishes; open transactions hold back only their own');
$primary->poll_query_until('postgres',
	q(SELECT count(*) = 55 FROM feed_read(NULL::outbox, '', 1000)))
  or die 'not all is published';
catch_up();
is(everything($_), everything($primary), $_->name . ': reads the same')
  for @standbys;
sql($primary, q(DELETE FROM outbox WHERE message_key LIKE 'many %3'));
$open->query_safe('COMMIT');
$open->quit;
sql($primary, q(COMMIT PREPARED 'p'));
insert($primary, 6);
ok(await_published($primary, 'outbox'), 'the late ones are published');
catch_up();
is(everything($_), everything($primary), $_->name . ': and later')
  for @standbys;
my @all = split /\n/, read_all($primary, 'outbox');
is_deeply([ sort @all[ -3 .. -1 ] ], [qw(6 open prepared)], 'they are the last');
is(workers($_), '', $_->name . ': no worker') for @standbys;

#
# A history begins that a standby has not got yet
#
{
	my $lagging = $standbys[0];

	sql($primary, q(SELECT feed_create('anew')));
	catch_up();
	sql($lagging, 'SELECT pg_wal_replay_pause()');
	sql($primary, q(SELECT feed_begin_history('anew')));
	my $cursor = sql($primary, q(SELECT feed_head('anew')));
	refused($lagging, "SELECT feed_page('anew', '$cursor')",
		'PF001', 'HINT: [^\n]* when this standby has it',
		'a cursor of a history that a standby has not got yet');
	sql($lagging, 'SELECT pg_wal_replay_resume()');
	catch_up();
	is(sql($lagging, "SELECT feed_page('anew', '$cursor') ->> 'more'"),
		'false', 'it is accepted when the standby has it');
	sql($primary, q(SELECT feed_drop('anew')));
}

#
# What does not go there
#
for my $standby (@standbys)
{
	my $name = $standby->name;

	refused($standby, 'CALL feed_publish()',
		'25006', 'during recovery', "$name: feed_publish is refused");
	refused($standby, 'SELECT feed_start_worker()',
		'25006', 'during recovery', "$name: feed_start_worker is refused");
	refused($standby, q(CALL feed_republish('outbox')),
		'25006', 'during recovery', "$name: feed_republish is refused");
	refused($standby, q(SELECT feed_flush('outbox')),
		'55000', 'during recovery', "$name: feed_flush is refused");
	refused($standby, "SELECT $_", '25006', 'during recovery', "$name: $_ is refused")
	  for q(feed_begin_history('outbox')), q(feed_drop('outbox')),
	  q(feed_set_channel('outbox', 'news')), q(feed_attach('outbox')), q(feed_detach('outbox'));
}

#
# Waiting
#
my $cursor = sql($primary, q(SELECT feed_head('outbox')));
for my $call ("SELECT feed_wait('outbox', '%s', '%s')",
	"CALL feed_await('outbox', '%s', '%s')")
{
	my ($name) = $call =~ /(feed_\w+)/;

	is(sql($standby{plain}, sprintf $call, $cursor, '150 ms'),
		'f', "$name on a standby: false when the time is over");
	my $waiting = background($standby{plain}, sprintf $call, $cursor, '1 hour');
	ok($waiting->await_wait, "$name on a standby waits");
	insert($primary, $name);
	ok(await_published($primary, 'outbox'), 'the primary publishes');
	is($waiting->finish, 't', "$name on a standby: true when something arrives");
	is(read_all($standby{plain}, 'outbox', after => \$cursor),
		$name, 'and it can be read there');
	refused(
		$standby{plain},
		"SET statement_timeout = '200ms'; " . sprintf($call, $cursor, '1 hour'),
		'57014',
		'statement timeout',
		"$name on a standby can be cancelled");
}
catch_up();

#
# A standby that lags meets cursors from its future.
#
my $after = $cursor;
sql($_, 'SELECT pg_wal_replay_pause()') for @standbys;
$_->poll_query_until('postgres', q(SELECT pg_get_wal_replay_pause_state() = 'paused'))
  for @standbys;
insert($primary, qw(future1 future2));
is( read_all($primary, 'outbox', after => \$cursor, wait => '60s') =~ /^future1/,
	1, 'the primary is ahead');
ok(await_published($primary, 'outbox'), 'all is published');
read_all($primary, 'outbox', after => \$cursor);
for my $standby (@standbys)
{
	my $name = $standby->name;

	is( sql($standby, "SELECT count(*) FROM feed_read(NULL::outbox, '$cursor', 10)"),
		0, "$name: nothing yet after a cursor of the future");
	is( sql($standby, "SELECT feed_page('outbox', '$cursor', 10)"),
		qq({"entries": [], "cursor": "$cursor", "more": false}),
		"$name: an empty page leaves the cursor where it is");
	is(sql($standby, "SELECT feed_wait('outbox', '$cursor', '100 ms')"),
		'f', "$name: feed_wait has nothing either");
	sql($standby, 'SELECT pg_wal_replay_resume()');
}
insert($primary, 'future3');
ok(await_published($primary, 'outbox'), 'one more is published');
catch_up();
for my $standby (@standbys)
{
	my $mine = $cursor;

	is(read_all($standby, 'outbox', after => \$mine),
		'future3', $standby->name . ': what came after it is read');
	is(everything($standby), everything($primary),
		$standby->name . ': all is the same');
}
$cursor = sql($primary, q(SELECT feed_head('outbox')));

#
# Promotion, with rows that were committed and not published, a prepared
# transaction, one that was open, and a session that waits
#
sql($primary, 'SELECT feed_stop_worker()');
await_no_worker($primary);
insert($primary, qw(unpublished1 unpublished2));
sql($primary, <<'SQL');
BEGIN;
INSERT INTO outbox (message_type, message_key, data) VALUES ('A', 'prepared over promotion', '1');
PREPARE TRANSACTION 'over';
SQL
$open = $primary->background_psql('postgres');
$open->query_safe('BEGIN');
$open->query_safe(
	q(INSERT INTO outbox (message_type, message_key, data) VALUES ('A', 'lost with the primary', '1'))
);
catch_up();
my $before = read_all($primary, 'outbox');
my %waiting =
  map { $_->name => background($_, "SELECT feed_wait('outbox', '$cursor', '1 hour')") }
  @standbys;
$_->await_wait for values %waiting;
$primary->stop('immediate');
$open->{run}->finish;
$_->promote for @standbys;

for my $standby (@standbys)
{
	my $name = $standby->name;
	my $mine = $cursor;

	is($waiting{$name}->finish, 't', "$name, promoted: who has waited returns");
	is( read_all($standby, 'outbox', after => \$mine, wait => '60s'),
		"unpublished1\nunpublished2",
		"$name, promoted: publishes what was not yet");
	is(workers($standby), 'postgres', "$name, promoted: it has a worker");
	insert($standby, 'after');
	ok( $standby->poll_query_until('postgres',
			"SELECT count(*) = 1 FROM feed_read(NULL::outbox, '$mine', 10)"),
		"$name, promoted: publishes what comes");
	is(read_all($standby, 'outbox', after => \$mine),
		'after', "$name, promoted: it is read");
	sql($standby, q(COMMIT PREPARED 'over'));
	ok(await_published($standby, 'outbox'),
		"$name, promoted: publishes what was prepared");
	is(read_all($standby, 'outbox', after => \$mine),
		'prepared over promotion', "$name, promoted: it is read");
	is( read_all($standby, 'outbox'),
		"$before\nunpublished1\nunpublished2\nafter\nprepared over promotion",
		"$name, promoted: all that was before, then the new ones");
	unlike($standby->log_content, qr/PANIC|CONTEXT:  publishing/,
		"$name: no worker has met an error");
	$standby->stop;
}
done_testing();
