# On a standby nothing waits for a reader when the primary makes an index anew:
# the new index lacks rows that were deleted before, which an older snapshot of
# the standby still sees; the old one lacks rows that come after it was given
# up.  A reader with such a snapshot or such an index is told to try again
# (40001).  It never passes a row.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = feedpub_node('primary', allows_streaming => 1);
sql($primary, <<'SQL');
SELECT feed_create('outbox');
SELECT feed_stop_worker();
CREATE ROLE regress_feedpub_restricted LOGIN;
ALTER TABLE outbox ENABLE ROW LEVEL SECURITY;
CREATE POLICY all_rows ON outbox FOR SELECT USING (true);
GRANT SELECT ON outbox TO regress_feedpub_restricted;
CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (100);
SQL
sql($primary, q(SELECT feed_attach('parts')));
$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
# with it, nothing is removed from the heap that a session of the standby needs
$standby->append_conf('postgresql.conf', <<'CONF');
hot_standby_feedback = on
wal_receiver_status_interval = 1s
CONF
$standby->start;
$primary->poll_query_until('postgres', 'SELECT backend_xmin IS NOT NULL FROM pg_stat_replication')
  or die 'no feedback';

my $n = 0;

# Publishes ten rows.  Returns the head.
sub publish_ten
{
	sql($primary, "INSERT INTO outbox (message_type, data) SELECT 'A', to_jsonb($n + i) FROM generate_series(1, 10) i");
	$n += 10;
	sql($primary, q(CALL feed_publish('outbox')));
	return sql($primary, q(SELECT feed_head('outbox')));
}

# A session of the standby.
sub session
{
	my ($user) = @_;

	return $standby->background_psql('postgres',
		on_error_stop => 0,
		extra_params => [ '-U', $user // 'postgres', '-v', 'VERBOSITY=sqlstate' ]);
}

# One with a snapshot.
sub session_with_snapshot
{
	my $session = session(@_);

	$primary->wait_for_replay_catchup($standby);
	$session->query('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
	return $session;
}

# A session of the primary that makes an index, and waits for other sessions.
sub indexer
{
	my ($command, $phase) = @_;
	my $session = $primary->background_psql('postgres');

	$session->query_until(qr/begins/, "\\echo begins\n$command;\n");
	waits($phase);
	return $session;
}

sub waits
{
	my ($phase) = @_;

	$primary->poll_query_until('postgres',
		"SELECT count(*) > 0 FROM pg_stat_progress_create_index WHERE phase = 'waiting for $phase'")
	  or die "nothing waits for $phase";
	return;
}

# A session of the primary that has a lock on the table.
sub holder
{
	my ($table, $mode) = @_;
	my $session = $primary->background_psql('postgres');

	$session->query_safe("BEGIN; LOCK TABLE $table IN $mode MODE");
	return $session;
}

# What a query gives: its output, or the SQLSTATE.
sub answer
{
	my ($session, $query) = @_;
	my $output = $session->query($query);
	my ($state) = $session->{stderr} =~ /ERROR:  (\w+)/;

	$session->{stderr} = '';
	return $state // $output;
}

# The same in a transaction, which goes on, and without the locks.
sub answer_within
{
	my ($session, $query) = @_;
	my $answer = answer($session, "SAVEPOINT a; $query");

	answer($session, 'ROLLBACK TO a');
	return $answer;
}

my %reads = (
	feed_fetch => q(SELECT string_agg(data::text, ' ') FROM feed_fetch(NULL::outbox, '0', 0, 100)),
	feed_read => q(SELECT string_agg((entry).data::text, ' ') FROM feed_read(NULL::outbox, '', 100)));
my $all = join ' ', 1 .. 20;

#
# Rows that were removed
#
my $head = publish_ten();
publish_ten();
sql($primary, q(INSERT INTO parts VALUES (1); CALL feed_publish('parts')));
my %session = map { $_ => session_with_snapshot(/planned/ ? 'regress_feedpub_restricted' : 'postgres') }
  qw(direct planned promoted);

sql($primary, "CALL feed_purge('outbox', '$head')");
$primary->wait_for_replay_catchup($standby);
for my $way (qw(direct planned))
{
	is(answer_within($session{$way}, $reads{$_}), $all, "$way: $_ gives what was removed after the snapshot") for sort keys %reads;
}

sql($primary, 'REINDEX TABLE CONCURRENTLY outbox');
$primary->wait_for_replay_catchup($standby);
for my $way (qw(direct planned))
{
	is(answer_within($session{$way}, $reads{$_}), '40001', "$way: $_ does not when its index was made anew") for sort keys %reads;
	is(answer_within($session{$way}, q(SET LOCAL enable_indexscan = off; SELECT count(*) FROM outbox)),
		20, "$way: the table has the rows");
}
$_->quit for delete @session{qw(direct planned)};

# A new one sees the index and the floor.
my $new = session_with_snapshot();
is(answer_within($new, $reads{$_}), join(' ', 11 .. 20), "$_ gives what is left, with a new snapshot") for sort keys %reads;
$new->quit;

#
# Through the planner any index may be used, also one of a table in which row
# security looks something up.  Without the old version of a row there, all of
# the feed's rows look hidden.
#
sql($primary, <<'SQL');
CREATE TABLE member (name text PRIMARY KEY, seen int UNIQUE);
INSERT INTO member VALUES ('regress_feedpub_restricted', 1);
GRANT SELECT ON member TO regress_feedpub_restricted;
ALTER POLICY all_rows ON outbox USING (EXISTS (SELECT FROM member m WHERE m.name = current_user));
SQL
my $member = session_with_snapshot('regress_feedpub_restricted');
my $left = join ' ', 11 .. 20;
is(answer_within($member, $reads{$_}), $left, "$_: a member") for sort keys %reads;
# not a HOT update: the new version is found by an entry of its own
sql($primary, 'UPDATE member SET seen = seen + 1');
sql($primary, 'REINDEX TABLE CONCURRENTLY member');
$primary->wait_for_replay_catchup($standby);
is(answer_within($member, $reads{$_}), '40001', "$_: an index of a table that row security looks at") for sort keys %reads;
$member->quit;

# A plan goes on in an index that was given up, unless it is told so.
sql($primary, <<'SQL');
DELETE FROM member;
CREATE TABLE old (id int PRIMARY KEY);
INSERT INTO old VALUES (1);
ALTER TABLE old ENABLE ROW LEVEL SECURITY;
CREATE POLICY all_rows ON old FOR SELECT USING (EXISTS (SELECT FROM member m WHERE m.name = current_user));
GRANT SELECT ON old TO regress_feedpub_restricted;
SQL
sql($primary, q(SELECT feed_attach('old')));
$primary->wait_for_replay_catchup($standby);
my %through = (%reads, initial => q(SELECT string_agg((entry).id::text, ' ') FROM feed_read(NULL::old, '', 100)));
my %found = (feed_fetch => $left, feed_read => $left, initial => 1);
my %planned = map { $_ => session('regress_feedpub_restricted') } keys %through;

for my $read (sort keys %through)
{
	$planned{$read}->query("PREPARE r AS $through{$read}; BEGIN");
	is(answer($planned{$read}, 'EXECUTE r'), '', "$read: no member") for 1 .. 2;
}
my $first = holder('member', 'ACCESS SHARE');
my $remake = indexer('REINDEX TABLE CONCURRENTLY member', 'readers before marking dead');
my $second = holder('member', 'ACCESS SHARE');
$first->quit;
waits('readers before dropping');
sql($primary, "INSERT INTO member VALUES ('regress_feedpub_restricted', 1)");
$primary->wait_for_replay_catchup($standby);
is(answer($planned{$_}, 'EXECUTE r'), $found{$_}, "$_ finds the member in the new index") for sort keys %through;
$_->quit for $second, $remake, values %planned;

#
# Our own tables: the floor of a snapshot is not in an index that is made after
# it has moved.
#
publish_ten();
my %own = (
	_floor => q(SELECT count(*) FROM feed_fetch(NULL::outbox, '3', 0, 100)),
	_batch => "SELECT count(*) FROM feed_read(NULL::outbox, '$head', 100)",
	_partition => q(SELECT count(*) FROM feed_fetch(NULL::parts, '0', 0, 100)));
my %before = (_floor => 'PF002', _batch => 20, _partition => 1);

$session{$_} = session_with_snapshot() for sort keys %own;
$head = sql($primary, q(SELECT feed_head('outbox')));
sql($primary, "CALL feed_purge('outbox', '$head')");
for my $table (sort keys %own)
{
	is(answer_within($session{$table}, $own{$table}), $before{$table}, "$table: before its index is made anew");
	sql($primary, "REINDEX TABLE CONCURRENTLY feedpub.$table");
	$primary->wait_for_replay_catchup($standby);
	is(answer_within($session{$table}, $own{$table}), '40001', "$table: after it");
	(delete $session{$table})->quit;
}

#
# An index that was given up.  A transaction that has the table's lock, and
# statements that are planned, need not look at what has changed.  The REINDEX
# waits for holders of a lock before it gives the index up, and for others after
# that: meanwhile rows come that are in the new index only.
#
my %reader = map { $_ => session() } keys %reads;

for my $read (sort keys %reads)
{
	$reader{$read}->query("PREPARE r AS $reads{$read}; BEGIN");
	is(answer($reader{$read}, 'EXECUTE r'), '', "$read finds no row in a transaction") for 1 .. 2;
}
my $before = holder('outbox', 'ACCESS SHARE');
my $reindex = indexer('REINDEX TABLE CONCURRENTLY outbox', 'readers before marking dead');
my $after = holder('outbox', 'ACCESS SHARE');
$before->quit;
waits('readers before dropping');
publish_ten();
$primary->wait_for_replay_catchup($standby);
is(answer($reader{$_}, 'EXECUTE r'), '40001', "$_ does not pass rows that the old index lacks") for sort keys %reads;
$_->quit for $after, $reindex, values %reader;

#
# An index that is new: it was known to the snapshot, and built later.
#
sql($primary, 'CREATE TABLE item (id int PRIMARY KEY)');
sql($primary, q(SELECT feed_attach('item')));
sql($primary, 'INSERT INTO item VALUES (1), (2)');
my ($index, $command) = split /\|/, sql($primary, <<'SQL');
SELECT indexrelid::regclass, pg_get_indexdef(indexrelid) FROM pg_index
WHERE indrelid = 'item'::regclass AND NOT indisprimary
SQL
sql($primary, "DROP INDEX $index");
$command =~ s/ INDEX / INDEX CONCURRENTLY /;
my $writer = holder('item', 'ROW EXCLUSIVE');
my $creator = indexer($command, 'writers before build');
my $early = session_with_snapshot();
$writer->query_safe('DELETE FROM item WHERE id = 1; COMMIT');
$_->quit for $writer, $creator;
$primary->wait_for_replay_catchup($standby);
is(answer_within($early, q(SELECT count(*) FROM feed_fetch(NULL::item, '0', 0, 100))),
	'40001', 'an index that was built later');
$early->quit;

# An index that gets another file stays what it is in pg_index.
my $older = session_with_snapshot();
sql($primary, 'REINDEX TABLE outbox');
$primary->wait_for_replay_catchup($standby);
is(answer_within($older, $reads{$_}), '40001', "$_: an index that has another file") for sort keys %reads;
$older->quit;

# A snapshot outlives the promotion.
$primary->wait_for_replay_catchup($standby);
$standby->promote;
is(answer_within($session{promoted}, $reads{$_}), '40001', "$_ refuses it after the promotion, too") for sort keys %reads;
$session{promoted}->quit;
done_testing();
