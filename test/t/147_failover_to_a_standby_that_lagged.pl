# A standby that has not got the last batches is promoted.  Cursors up to the
# fork go on; those beyond it are refused for ever, however many batches the new
# primary makes.  In an outbox nothing else is lost than what the standby never
# had.
#
# In a table feed a cursor at the fork may have passed what is back now: a row
# whose next version the standby never had, a delete whose key was inserted
# again.  Its consumer goes back to where a page ended a minute before.  If that
# page too saw what is lost, the cursor is refused.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubPublished;
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $old = feedpub_node('old', allows_streaming => 1);
my $node = $old;

sub publish
{
	sql($node, 'CALL feed_publish()');
	return;
}

sub write_rows
{
	for my $type (@_)
	{
		sql($node, "INSERT INTO outbox (message_type, data) VALUES ('$type', '1')");
		publish();
	}
	return;
}

# What an outbox's consumer gets after a cursor
sub types
{
	my ($cursor) = @_;

	return sql($node, <<"SQL");
SET feedpub.read_wait = 0;
SELECT string_agg((entry).message_type, ' ') FROM feed_read(NULL::outbox, '$cursor', 100)
SQL
}

sub head
{
	my ($feed) = @_;

	return sql($node, "SELECT feed_head('$feed')");
}

# A consumer of kv: a copy, and a cursor.  Returns how many entries it got.
sub follow
{
	my ($consumer) = @_;
	my $max_rows = $consumer->{max_rows} // 100;
	my $entries = sql($node, <<"SQL");
SET feedpub.read_wait = 0;
SELECT cursor, op, (entry).k, (entry).v FROM feed_read(NULL::kv, '$consumer->{cursor}', $max_rows)
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

sub copy
{
	my ($consumer) = @_;

	return join ' ', map { "$_=$consumer->{copy}{$_}" } sort keys %{ $consumer->{copy} };
}

# All but the newest batch are old.
sub minutes_pass
{
	sql($node, <<'SQL');
UPDATE feedpub._batch SET published_at = published_at - interval '2 minutes'
WHERE feed = 'kv'::regclass AND sync_id < (SELECT max(sync_id) FROM feedpub._batch WHERE feed = 'kv'::regclass)
SQL
	return;
}

sub table
{
	return sql($node, q(SELECT string_agg(k || '=' || v, ' ' ORDER BY k) FROM kv));
}

sql($node, <<'SQL');
SELECT feed_stop_worker();
SELECT feed_create('outbox');
CREATE TABLE kv (k text PRIMARY KEY, v text);
SELECT feed_attach('kv');
INSERT INTO kv VALUES ('a', 'first'), ('b', 'first'), ('c', 'first'), ('d', 'first');
SQL
$old->backup('base');
my $new = PostgreSQL::Test::Cluster->new('new');
$new->init_from_backup($old, 'base', has_streaming => 1);
$new->start;

my %early = (cursor => '', copy => {});
my %at_fork = (cursor => '', copy => {});
publish();
follow(\%early);
follow(\%at_fork);
write_rows('one', 'two', 'three');
my $before = sql($node, q(SELECT cursor FROM feed_read(NULL::outbox, '', 1)));
my $at = head('outbox');
sql($node, <<'SQL');
UPDATE kv SET v = 'second' WHERE k = 'a';
DELETE FROM kv WHERE k = 'b';
SQL
publish();
$old->wait_for_replay_catchup($new);
$new->stop;

# From here on all is lost.  A consumer that reads now passes what has changed since.
sql($node, <<'SQL');
UPDATE kv SET v = 'third' WHERE k = 'a';
INSERT INTO kv VALUES ('b', 'again');
SQL
follow(\%at_fork);
is(substr($at_fork{cursor}, 0, 25), substr(head('kv'), 0, 25), 'a consumer is at the fork');

# Pages of one entry, of the initial snapshot: a and b are passed before it.
my @slow = map { { cursor => '', copy => {}, max_rows => 1 } } 1 .. 4;
follow($_) for @slow;
follow($slow[1]);
is(join(', ', map { copy($_) } @slow), 'c=first, c=first d=first, c=first, c=first',
	'others have passed rows too');
is(copy(\%at_fork), 'a=first b=first c=first d=first',
	'and passed what has been changed since');
my @beyond;
for my $type (qw(four five six))
{
	write_rows($type);
	push @beyond, head('outbox');
}
sql($node, q(UPDATE kv SET v = 'lost' WHERE k = 'c'));
publish();
my %beyond = (cursor => $at_fork{cursor}, copy => { %{ $at_fork{copy} } });
follow(\%beyond);
is(copy(\%beyond), table(), 'another is beyond it');
my %sudden = (cursor => $early{cursor}, copy => { %{ $early{copy} } });
follow(\%sudden);
is(copy(\%sudden), table(), 'one has got there in one page, from before the fork');
follow($slow[3]);
minutes_pass();
follow($slow[2]);
is(copy($slow[2]), 'c=first d=first', 'the batch that proves the page before is lost too');

$old->stop('immediate');
$new->append_conf('postgresql.conf', q(primary_conninfo = ''));
$new->start;
$new->promote;
$node = $new;
sql($node, 'SELECT feed_stop_worker()');

sub beyond_is_refused
{
	my ($test) = @_;

	for my $i (0 .. $#beyond)
	{
		my $cursor = $beyond[$i];

		refused($node, "SELECT * FROM feed_read(NULL::outbox, '$cursor', 10)",
			'PF001', 'another history.*Begin again', "$test: feed_read, cursor $i");
		refused($node, "SELECT feed_page('outbox', '$cursor', 10)",
			'PF001', 'another history', "$test: feed_page, cursor $i");
	}

	# it looks at the last batch; a read after it tells
	refused($node, "SELECT feed_wait('outbox', '$beyond[-1]', '0')",
		'PF001', 'another history', "$test: feed_wait")
	  if sql($node, q(SELECT max(sync_id) FROM feedpub._batch WHERE feed = 'outbox'::regclass)) <= 6;
	refused($node, "SELECT * FROM feed_read(NULL::kv, '$_->{cursor}', 10)",
		'PF001', 'another history', "$test: a table feed's")
	  for \%beyond, \%sudden;
	return;
}

is(types($at), '', 'outbox: nothing is after the fork yet');
is( sql($node, "SELECT feed_wait('kv', '$at_fork{cursor}', '0'), feed_wait('kv', '$early{cursor}', '0')"),
	't|t', 'a consumer that is to go back does not wait');
beyond_is_refused('at once');
write_rows('another four');
beyond_is_refused('with fewer batches than there were');
write_rows('another five', 'another six');
sql($node, q(UPDATE kv SET v = 'after' WHERE k = 'd'));
publish();
beyond_is_refused('with as many');
write_rows('seven');
sql($node, q(UPDATE kv SET v = 'after that' WHERE k = 'd'));
publish();
beyond_is_refused('with more');
is(types($at), 'another four another five another six seven',
	'outbox: a cursor at the fork goes on');
is( types($before),
	'two three another four another five another six seven',
	'outbox: so does one before it');
is(types(''), 'one two three another four another five another six seven',
	'outbox: so does who begins again');

follow($_) for \%early, \%at_fork;
is(table(), 'a=second c=first d=after that', 'the table is as the standby had it');
is(copy(\%early), table(), 'table: a consumer who was before all that goes on');
is(copy(\%at_fork), table(), 'table: a consumer who was at the fork goes on');
for my $i (0, 1, 3)
{
	follow($slow[$i]) for 1 .. 8;
	is(copy($slow[$i]), table(), "table: so does one in the initial snapshot, number $i");
}
refused($node, "SELECT * FROM feed_read(NULL::kv, '$slow[2]{cursor}', 10)",
	'PF001', 'another history.*empty copy', 'table: not one that has no proof at all');
is(sql($node, "SELECT feed_wait('kv', '$slow[2]{cursor}', '0')"), 't', 'table: nor does it wait');

# What an owner does
sql($node, q(SELECT feed_begin_history('kv')));
publish();
for my $consumer (\%early, \%at_fork, \%beyond)
{
	refused($node, "SELECT * FROM feed_read(NULL::kv, '$consumer->{cursor}', 10)",
		'PF001', 'another history', 'the owner has consumers begin again');
	%$consumer = (cursor => '', copy => {});
	follow($consumer);
	is(copy($consumer), table(), 'and then all is well');
}

# Nothing is lost in a restart, so nobody is refused: not even if the page that
# has all follows one that had not, and the newest batch is of an earlier start.
sub restart
{
	$new->stop('immediate');
	$new->start;
	sql($node, 'SELECT feed_stop_worker()');
	return;
}

my %slowly = (cursor => '', copy => {}, max_rows => 2);
restart();
follow(\%slowly) for 1 .. 2;
is(copy(\%slowly), table(), 'another consumer has all');
sql($node, q(UPDATE kv SET v = 'published' WHERE k = 'a'));
publish();
minutes_pass();
sql($node, q(UPDATE kv SET v = 'not yet' WHERE k = 'c'));
is(follow(\%slowly), 1, 'it does not go back');
restart();
publish();
follow(\%slowly) for 1 .. 3;
is(copy(\%slowly), table(), 'and has all again after two restarts');

$new->stop;
done_testing();
