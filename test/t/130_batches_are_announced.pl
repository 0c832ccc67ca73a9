# A feed with a channel: each batch is followed by one NOTIFY, whose payload
# is the cursor of the newest batch.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubPublished;
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('server');
my $channel = 'Odd "Name';
my @heard;

sql($node, <<'SQL');
CREATE ROLE regress_feedpub_writer LOGIN;
SELECT feed_create('outbox'), feed_create('other'), feed_create('silent');
GRANT INSERT ON outbox TO regress_feedpub_writer;
SELECT feed_set_channel('outbox', 'Odd "Name'), feed_set_channel('other', 'other');
SQL

my $listener = $node->background_psql('postgres');
$listener->query_safe('LISTEN "Odd ""Name"');

# psql says what it has heard when a query ends.
sub listen_on
{
	my $out = $listener->query_safe('SELECT 1');

	while ($out =~ /Asynchronous notification "(.*)" with payload "(.*)" received from server process with PID (\d+)/g)
	{
		push @heard, { channel => $1, cursor => $2, pid => $3 };
	}
	return;
}

sub await_heard
{
	my ($n) = @_;

	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		listen_on();
		return 1 if @heard >= $n;
		select undef, undef, undef, 0.1;
	}
	diag scalar @heard, ' notifications';
	return 0;
}

sub insert
{
	my ($feed, $key, %options) = @_;

	sql( $node,
		"INSERT INTO $feed (message_type, message_key, data) VALUES ('A', '$key', '1')",
		%options);
	return;
}

#
# One by one, each read by a listener that was told, from the cursor before
#
my $cursor = '';
insert('outbox', 0);
is(read_all($node, 'outbox', wait => '60s', after => \$cursor),
	0, 'the worker publishes');
my $worker = await_worker($node);
ok(await_heard(1), 'the first batch is announced');
is($heard[0]{cursor}, $cursor, 'with its cursor');

for my $i (1 .. 5)
{
	insert('outbox', $i, user => 'regress_feedpub_writer');
	ok(await_heard($i + 1), "batch $i is announced");
	is( sql($node, <<"SQL"),
SET feedpub.read_wait = 0;
SELECT (entry).message_key FROM feed_read(NULL::outbox, '$heard[-2]{cursor}', 10)
SQL
		$i, 'after the cursor of the one before comes its row');
	is( sql($node, <<"SQL"),
SET feedpub.read_wait = 0;
SELECT count(*) FROM feed_read(NULL::outbox, '$heard[-1]{cursor}', 10)
SQL
		0, 'after its own nothing yet');
	is($heard[-1]{cursor}, sql($node, q(SELECT feed_head('outbox'))),
		'it is the head');
	ok($heard[-1]{cursor} gt $heard[-2]{cursor}, 'and later than the one before');
}

# Rows that are committed while it is busy make one batch.
my $holder = hold_publisher($node);
insert('outbox', 6);
$node->poll_query_until('postgres',
	"SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $worker"
) or die 'the worker does not write';
insert('outbox', $_) for 7 .. 12;
insert($_, 1) for qw(other silent);
sql($node,
	q(BEGIN; INSERT INTO outbox (message_type, data) VALUES ('A', '1'); ROLLBACK)
);
$holder->quit;
ok(await_heard(8), 'two more batches');
ok(await_published($node, $_), "$_ is published") for qw(other silent);
is( read_all($node, 'outbox', after => \$cursor),
	join("\n", 1 .. 12),
	'all rows');
listen_on();
is(scalar @heard, batches($node, 'outbox'),
	'as many notifications as batches, none of other feeds');
is_deeply([ sort { $a cmp $b } map { $_->{cursor} } @heard ],
	[ map { $_->{cursor} } @heard ], 'their cursors ascend');
is_deeply([ grep { $_->{channel} ne $channel } @heard ],
	[], 'all on the channel');
is_deeply([ grep { $_->{pid} != $worker } @heard ],
	[], 'all by the worker: no writer has notified');

#
# Nobody listens, then a step by hand
#
$listener->query_safe('UNLISTEN *');
insert('outbox', 13);
ok(await_published($node, 'outbox'), 'published, with nobody to hear');
$listener->query_safe('LISTEN "Odd ""Name"');
sql($node, 'SELECT feed_stop_worker()');
await_no_worker($node);
@heard = ();
insert('outbox', 14);
sql($node, q(CALL feed_publish('outbox')));
ok(await_heard(1), 'a batch made by hand is announced too');
sql($node, q(CALL feed_publish('outbox')));
listen_on();
is(scalar @heard, 1, 'a step that finds nothing announces nothing');

# Its publisher may have ended between the batch and the NOTIFY: a worker that
# starts announces the newest one, in its first turns.
@heard = ();
sql($node, q(SELECT feed_start_worker()));
my $row = 'FROM feedpub.workers WHERE database = current_database()';
$node->poll_query_until('postgres', "SELECT count(*) = 1 $row") or die 'no worker came';
my $last = sql($node, "SELECT turns + 10 $row");
my $is_over;
do
{
	$is_over = sql($node, "SELECT turns >= $last $row");
	listen_on();
} until (@heard || $is_over eq 't');
is(scalar @heard, 1, 'a worker that starts announces the newest batch');
is($heard[0]{cursor}, sql($node, q(SELECT feed_head('outbox'))), 'its cursor is the head');
sql($node, 'SELECT feed_stop_worker()');
await_no_worker($node);

#
# Turned off
#
sql($node, q(SELECT feed_set_channel('outbox', NULL)));
sql($node, q(SELECT feed_start_worker()));
await_worker($node);
insert('outbox', 15);
ok(await_published($node, 'outbox'), 'published');
sql($node, q(SELECT feed_set_channel('outbox', 'Odd "Name')));
insert('outbox', 16);
ok(await_heard(2), 'on again');
listen_on();
is(scalar @heard, 2, 'nothing was announced in between');
is($heard[-1]{cursor}, sql($node, q(SELECT feed_head('outbox'))),
	'the cursor is the head');

#
# A reader can have a feed announced on the extension's own channel.
#
$listener->query_safe('LISTEN feedpub');
insert('silent', 1);
ok(await_published($node, 'silent'), 'published');
is(sql($node, q(SELECT feed_listen('silent'))), 'feedpub', 'feed_listen() tells the channel');
listen_on();
@heard = ();
insert('silent', 2);
ok(await_heard(1), 'the worker announces the batch on it');
is("$heard[0]{channel} $heard[0]{cursor}",
	'feedpub ' . sql($node, q(SELECT 'silent'::regclass::oid)),
	'the payload is the OID of the feed');
@heard = ();

#
# A NOTIFY that fails, as it does when its queue is full: here, because the
# channel's name is one that feed_set_channel() would not take.
#
sql($node,
	q(UPDATE feedpub._feed SET channel = repeat('x', 100) WHERE feed = 'outbox'::regclass)
);
my $offset = -s $node->logfile;
for my $i (1 .. 12)
{
	insert('outbox', "unannounced $i");
	ok(await_published($node, 'outbox'), 'published though NOTIFY fails')
	  or last;
}
like(slurp_file($node->logfile, $offset), qr/ERROR:  channel name too long/,
	'which is reported');
is(sql($node, q(SELECT pid FROM pg_stat_activity WHERE backend_type = 'feedpub worker')),
	await_worker($node), 'and the worker goes on');

$listener->quit;
$node->stop;
done_testing();
