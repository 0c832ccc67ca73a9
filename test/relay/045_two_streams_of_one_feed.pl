# One feed into two streams, by two sections of a file: each has a cursor of its
# own, one that stops leaves the other going on, and two cannot have one stream.

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
my $file = PostgreSQL::Test::Utils::tempdir() . '/conf';
my %section = (
	all => [ '[all]', 'feed = outbox', 'subject = all.{key}', 'stream = all' ],
	orders => [ '[orders]', 'feed = outbox', 'subject = orders.{key}', 'stream = orders', 'types = order.*' ]);
my $last = 0;

# The file has these sections, and these lines of the last of them.
sub configure
{
	my ($sections, @lines) = @_;

	open my $out, '>', $file or die "$file: $!";
	print $out map { "$_\n" } "to = $nats->{url}", (map { @{ $section{$_} } } @$sections), @lines;
	close $out;
	return;
}

# Orders and a bill, in one transaction; the data of orders is odd.
sub write_messages
{
	sql($node, "INSERT INTO outbox (message_type, message_key, data) VALUES ('order.placed', 'k', '@{[ ++$last ]}'), ('bill', 'k', '@{[ ++$last ]}'), ('order.sent', 'k', '@{[ ++$last ]}'), ('bill', 'k', '@{[ ++$last ]}')");
	return sql($node, "SELECT feed_flush('outbox')");
}

sub data { return join ' ', map { $_->{data} } stream_messages($nats, $_[0]) }
my %wanted = (all => sub { return join ' ', 1 .. $last }, orders => sub { return join ' ', grep { $_ % 2 } 1 .. $last });

sub has_all
{
	my ($relay, $stream, $test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	soon(sub { relay_metric($relay, 'at_end', $stream) == 1 && nats_api($nats, "STREAM.INFO.$stream")->{state}{messages} == split / /, $wanted{$stream}->() },
		"$stream: $test");
	return is(data($stream), $wanted{$stream}->(), 'each once, in order');
}

sub reload
{
	my ($relay, $pattern, $test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $before = length relay_log($relay);

	kill 'HUP', $relay->{pid};
	return soon(sub { substr(relay_log($relay), $before) =~ $pattern }, $test);
}

sub openings { return scalar(() = relay_log($_[0]) =~ /feed \\"$_[1]\\": (?:begins|goes on) after/g) }

sql($node, q{SELECT feed_create('outbox'); SELECT feed_start_worker()});
write_messages();
configure([qw(all orders)]);
my $relay = relay_start($node, $nats, file => $file);
has_all($relay, 'all', 'a stream of all messages');
has_all($relay, 'orders', 'a stream of some of them');
is(join(' ', map { relay_metric($relay, 'sent_total', $_) } qw(all orders outbox)), '4 2 -1', 'metrics have the names of the sections');

# one section goes and comes again: the other does not notice
configure(['all']);
reload($relay, qr/\\"orders\\": is not relayed any more.*settings reloaded/s, 'a section is removed');
write_messages();
has_all($relay, 'all', 'the other one goes on');
is(data('orders'), '1 3', 'nothing more comes into its stream');
is(relay_metric($relay, 'sent_total', 'orders'), -1, 'nor is it in the metrics');
configure([qw(orders all)]);
reload($relay, qr/settings reloaded/, 'it is there again');
has_all($relay, 'orders', 'it goes on where its own stream ends');
is(join(' ', map { openings($relay, $_) } qw(all orders)), '1 2', 'the other one was never opened again');

# killed, and one alone has gone further
relay_stop($relay, 'KILL');
configure(['all']);
write_messages();
is(relay_once($node, $nats, file => $file), 0, 'one section alone');
is(data('all'), $wanted{all}->(), 'gets on');
configure([qw(all orders)]);
$relay = relay_start($node, $nats, file => $file);
has_all($relay, $_, 'both, each after its own cursor') for qw(orders all);

# one that stops
nats_api($nats, 'STREAM.DELETE.orders');
write_messages();
soon(sub { relay_metric($relay, 'stopped', 'orders') == 1 }, 'one of the streams is deleted: it is stopped');
has_all($relay, 'all', 'the other one goes on');
is(join(' ', map { relay_metric($relay, $_, 'all') } qw(running stopped)), '1 0', 'as metrics tell');
like(relay_get($relay, '/ready')->{content}, qr/\Afeed "orders" is stopped: stream "orders" has been deleted[^\n]*\n\z/, '/ready says which one, and why');
reload($relay, qr/settings reloaded/, 'SIGHUP starts it again');
has_all($relay, 'orders', 'from the beginning, as it was said');
my $config = nats_api($nats, 'STREAM.INFO.all')->{config};
nats_api($nats, 'STREAM.UPDATE.all', { %$config, sealed => JSON::PP::true });
write_messages();
soon(sub { relay_metric($relay, 'stopped', 'all') == 1 }, 'the other one is sealed: it is stopped');
has_all($relay, 'orders', 'the first one goes on');
is(openings($relay, 'all'), 1, 'and neither noticed the other');

# one stream for both: the cursor of one would be taken for that of the other
configure([qw(all orders)], 'stream = all');
reload($relay, qr/feed \\"orders\\": its stream is that of feed \\"all\\" too.*settings not reloaded/s, 'two sections with one stream are refused');
write_messages();
has_all($relay, 'orders', 'and nothing changes');
configure([qw(all orders)], 'stream = all', 'to = nats://127.0.0.1:1');
reload($relay, qr/settings reloaded/, 'on another server it is another stream');
soon(sub { relay_metric($relay, 'stopped', 'all') == 1 }, 'the one that is sealed is stopped again');
is(relay_stop($relay) >> 8, 1, 'SIGTERM ends it, with the status of one that was stopped');

done_testing();
