# Settings: sections of a file, what SIGHUP changes, what is refused; and
# examples/relay.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubRelay;
use FeedpubTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'");
my $nats = nats_start('n1');
my $dir = PostgreSQL::Test::Utils::tempdir();
my $files = 0;

# A file with these lines.
sub file
{
	my $name = "$dir/" . ++$files . '.conf';

	append_to_file($name, join '', map { "$_\n" } @_);
	return $name;
}

sub change
{
	my ($name, @lines) = @_;

	open my $out, '>', $name or die;
	print $out map { "$_\n" } @lines;
	close $out;
	return;
}

sub data { return [ map { $_->{data} } stream_messages($nats, $_[0]) ] }
sub write_message
{
	my ($data) = @_;

	for my $feed (qw(a b c))
	{
		sql($node, "INSERT INTO $feed (message_type, message_key, data) VALUES ('t', 'k', '$data')");
		sql($node, "SELECT feed_flush('$feed')");
	}
	return;
}

sql($node, q{SELECT feed_create('a'), feed_create('b'), feed_create('c'); SELECT feed_start_worker()});
write_message(1);

# what a section does not say is as before the sections
my $file = file("to = $nats->{url}", 'stream-storage = memory', 'stream-max-messages = 100', '[a]', '', '# nothing', '[b]', 'stream = other', 'subject=x.{key}', 'stream-storage = file', 'stream-max-bytes = 1000000');
my $relay = relay_start($node, $nats, file => $file, env => { FEEDPUB_RELAY_STREAM_REPLICAS => 1 });
soon(sub { (relay_metric($relay, 'at_end', 'b') // 0) == 1 && relay_metric($relay, 'at_end', 'a') == 1 }, 'both feeds of a file');
my ($a, $b) = map { nats_api($nats, "STREAM.INFO.$_")->{config} } qw(a other);
is_deeply([ @$a{qw(storage max_msgs max_bytes)}, $a->{subjects}[0] ], [ 'memory', 100, -1, 'a.>' ], 'the first has what is before it');
is_deeply([ @$b{qw(storage max_msgs max_bytes)}, $b->{subjects}[0] ], [ 'file', 100, 1000000, 'x.>' ], 'the second has its own');

# SIGHUP: one is gone, one is new, one has another stream
change($file, "to = $nats->{url}", '[b]', 'stream = second', 'subject = y.{key}', '[c]');
kill 'HUP', $relay->{pid};
relay_logs($relay, qr/settings reloaded/, 'SIGHUP');
soon(sub { (relay_metric($relay, 'at_end', 'b') // 0) == 1 && (relay_metric($relay, 'at_end', 'c') // 0) == 1 }, 'the feeds of the new file');
write_message(2);
soon(sub { @{ data('second') } == 2 && @{ data('c') } == 2 }, 'are relayed');
is(relay_metric($relay, 'sent_total', 'a'), -1, 'the other one is not any more');
is_deeply(data('a'), [1], 'nothing of it is sent');
is_deeply(data('other'), [1], 'nor into the first stream');

# what is wrong changes nothing
change($file, "to = $nats->{url}", '[b]', 'nothing = 1');
kill 'HUP', $relay->{pid};
relay_logs($relay, qr/line 3: no such setting.*settings not reloaded/s, 'a setting that there is not');
change($file, "to = $nats->{url}", '[b]', 'takeover = 0');
kill 'HUP', $relay->{pid};
relay_logs($relay, qr/setting \\"takeover\\" must be a number from 1 to 3600/, 'a number out of range');
write_message(3);
soon(sub { @{ data('second') } == 3 && @{ data('c') } == 3 }, 'the feeds go on');
is(relay_stop($relay), 0, 'and end');

# refused at the start
for my $bad (
	[ qr/there is no feed/, file => file("to = $nats->{url}") ],
	[ qr/setting \\"to\\" is missing/, file => file('[a]') ],
	[ qr/has no sink for \\"kafkaesque:/, to => 'kafkaesque://x' ],
	[ qr/no such setting/, file => file('[a]', 'database = x') ],
	[ qr/could not open file/, file => "$dir/nothing" ],
	[ qr/must be file or memory/, stream_storage => 'paper' ],
	(map { [ qr/setting \\"stream\\" must be the name of a stream: printable ASCII/, stream => $_ ] }
		'a b', 'a.b', 'a"b', 'a*', '>', 'a/b', 'a%b', "a\tb", 'a\\b', "a\x{c3}\x{a9}"),
	(map { [ qr/setting \\"cursors\\" must be the name of a stream/, cursors => $_ ] } 'a b', ''),
	(map { [ qr/setting \\"stream-subjects\\" must have subjects/, stream_subjects => $_ ] } 'a.>, b.>', 'a"b'),
	[ qr/feed \\"b\\": its transactional-id is that of feed \\"a\\" too/, file => file('to = kafka://x:9092', '[a]', '[b]', 'feed = a') ],
	[ qr/unknown option/, nothing => 1 ],
	[ qr/needs \\"password\\"/, user => 'x' ])
{
	my ($pattern, @options) = @$bad;

	$relay = relay_start($node, $nats, @options, wait => 0);
	is(relay_wait($relay), 2, "refused: $pattern");
	like(relay_log($relay), $pattern, 'and says so');
}

# the extension of another version, no server, no JetStream
my $plain = nats_start('plain', port => PostgreSQL::Test::Cluster::get_free_port());
nats_stop($plain);
$relay = relay_start($node, $plain, feed => 'a', wait => 0);
relay_logs($relay, qr/could not connect to nats:/, 'no server: it says so');
is(relay_get($relay, '/ready')->{status}, 503, 'and is not ready');
$plain = nats_start('plain', port => $plain->{port}, store => $plain->{store});
soon(sub { relay_get($relay, '/ready')->{status} == 200 }, 'when there is one, it goes on');
$node->stop;
soon(sub { relay_get($relay, '/ready')->{status} == 503 }, 'without a database it is not ready');
$node->start;
soon(sub { relay_get($relay, '/ready')->{status} == 200 }, 'when there is one, it is');
write_message(4);
stream_has($plain, 'a', 4, 'and goes on');
relay_stop($relay);
sql($node, q{UPDATE pg_extension SET extversion = '9.9' WHERE extname = 'feedpub'});
$relay = relay_start($node, $plain, feed => 'a', wait => 0);
relay_logs($relay, qr{the database cannot be used: its extension feedpub has version 9\.9, feedpub-relay has }, 'another version of the extension');
is(relay_stop($relay), 0, 'SIGTERM ends it even so');
sql($node, q{UPDATE pg_extension SET extversion = '0.1' WHERE extname = 'feedpub'});

# examples/relay
my $source = "$FindBin::RealBin/../../examples/relay/consume.c";
is(system("cc -Wall -Werror -o $dir/consume $source \$(pkg-config --cflags --libs libnats)"), 0, 'examples/relay/consume.c builds');
is(`$dir/consume $nats->{url} 'y.>' 2`, "t k 1\nt k 2\n", 'and consumes');
is(`$dir/consume $nats->{url} 'y.>' 1`, "t k 3\n", 'where it was');

done_testing();
