# Subjects of hostile names, types that are chosen, change feeds and table feeds.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use Encode ();
use FeedpubRelay;
use FeedpubTest;
use JSON::PP;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'");
my $nats = nats_start('n1');

sub decoded { return $_[0] =~ s/%([0-9A-F]{2})/chr hex $1/ger }

# Each token of a subject is a value, and different values have different ones.
my @values = (
	'a.b', 'a%2Eb', 'a b', 'a*', '>', '', '_', '%', '%00', '%5F', "a\tb", "a\x7fb",
	'.', '..', 'a.', '.a', 'a..b', 'ü', 'A', '$JS.API.STREAM.DELETE.outbox', '$SYS.x', "a\nb", "\\", '"');
sql($node, <<'SQL');
SELECT feed_create('outbox'), feed_create('"Odd ""Name/%."');
SELECT feed_start_worker();
SQL
for my $value (@values)
{
	my $hex = unpack 'H*', $value;
	sql($node, "INSERT INTO outbox (publication_id, message_type, message_key, data) SELECT v, v, v, '1' FROM convert_from('\\x$hex', 'UTF8') v");
}
sql($node, "INSERT INTO outbox (message_type, data) VALUES ('no key', '1')");
sql($node, "SELECT feed_flush('outbox')");
is(relay_once($node, $nats), 0, 'hostile keys and types are sent');
my @messages = stream_messages($nats, 'outbox');
is(scalar(@messages), @values + 1, 'all of them');
my %seen = map { $_->{subject} => 1 } @messages;
is(scalar(keys %seen), @values + 1, 'each has a subject of its own');
is($messages[6]{subject}, 'outbox.%5F.%5F', 'a value that looks as none has one too');
my @keys = map { decoded($_->{subject} =~ s/.*\.//r) } @messages;
is_deeply([ @keys[ 0 .. $#values ] ], [ map { $_ eq '' ? "\0" : $_ } @values ], 'which is the last token, percent-encoded');
is($messages[-1]{subject}, 'outbox.no%20key._', 'that of a message without a key is _');
is($messages[0]{subject}, 'outbox.a.b.a%2Eb', 'dots of a type stay');
is($messages[16]{subject}, 'outbox.a%2E%2Eb.a%2E%2Eb', 'unless there is nothing between them');
is($messages[19]{subject}, 'outbox.$JS.API.STREAM.DELETE.outbox.$JS%2EAPI%2ESTREAM%2EDELETE%2Eoutbox', 'none is a subject of the server');
is_deeply([ map { decoded(decoded($_->{headers}{'ce-subject'})) } @messages[ 0 .. $#values ] ],
	[ map { $_ eq '' ? "\0" : $_ } @values ], 'headers have the attributes of CloudEvents');
is_deeply([ grep { !/^[\x21-\x7e]*$/ } map { values %{ $_->{headers} } } map { +{ headers => { %{ $_->{headers} }{ grep { /^ce-/ } keys %{ $_->{headers} } } } } } @messages ],
	[], 'in ASCII');

# names of feeds, and templates
sql($node, q{INSERT INTO "Odd ""Name/%." (message_type, message_key, data) VALUES ('t', 'k', '1')});
sql($node, q{SELECT feed_flush('"Odd ""Name/%."')});
is(relay_once($node, $nats, feed => '"Odd ""Name/%."'), 0, 'a feed with an odd name');
@messages = stream_messages($nats, '=22Odd=20=22=22Name=2F=25=2E=22');
is($messages[0]{subject}, '%22Odd%20%22%22Name/%25%2E%22.t.k', 'has a stream of that name');
is(relay_once($node, $nats, stream => 'templates', subject => 'x.{publication}.{op}.y{key}', types => 'A,a b'), 0, 'another template');
@messages = stream_messages($nats, 'templates');
is_deeply([ map { $_->{subject} } @messages ], [ 'x.a%20b.upsert.ya%20b', 'x.A.upsert.yA' ], 'with types that are chosen');
for my $template ('x.{nothing}', 'a..b', '.a', 'a.', 'a b', 'a.*', 'a.>', 'a"b', 'a\\b', '', '{key', '{key}.{type}')
{
	my $relay = relay_start($node, $nats, subject => $template, wait => 0);

	is(relay_wait($relay), 2, "no template: $template");
	like(relay_log($relay), qr/no template|nothing in common/, 'which is said');
}
is(relay_once($node, $nats, stream => 'any', subject => '{type}.{key}', 'stream_subjects' => 'Order.>', types => 'Order'), 0, 'subjects that are said');
is_deeply(nats_api($nats, 'STREAM.INFO.any')->{config}{subjects}, ['Order.>'], 'are those of the stream');

# types
sql($node, "INSERT INTO outbox (message_type, message_key, data) SELECT CASE WHEN i % 1000 = 0 THEN 'OrderPlaced' ELSE 'other' END, i, to_json(i) FROM generate_series(1, 30000) i");
sql($node, "SELECT feed_flush('outbox')");
is(relay_once($node, $nats, stream => 'orders', subject => 'orders.{key}', types => 'Order*,none'), 0, 'few of many');
is_deeply([ map { $_->{data} } stream_messages($nats, 'orders') ], [ map { 1000 * $_ } 1 .. 30 ], 'only these are sent');
sql($node, "INSERT INTO outbox (message_type, data) SELECT 'other', '1' FROM generate_series(1, 20)");
sql($node, "SELECT feed_flush('outbox')");
is(relay_once($node, $nats, stream => 'orders', subject => 'orders.{key}', types => 'Order*,none'), 0, 'nothing is wanted');
sql($node, "CALL feed_purge('outbox', feed_head('outbox'))");
is(relay_once($node, $nats, stream => 'orders', subject => 'orders.{key}', types => 'Order*,none'), 0, 'what was passed may be removed');
my $relay = relay_start($node, $nats, feed => 'outbox', types => '{', wait => 0);
is(relay_wait($relay), 1, 'types that are none');
like(relay_log($relay), qr/stopped: .*malformed array literal.*see --feed, --from and --types/, 'are said');

# a change feed
sql($node, <<'SQL');
SELECT feed_create_changes('changes');
CREATE TABLE lines (k text PRIMARY KEY, v text);
SELECT feed_capture('lines', 'changes');
SELECT feed_start_worker();
BEGIN;
INSERT INTO lines VALUES ('a', '1');
UPDATE lines SET k = 'b';
COMMIT;
SELECT feed_flush('changes');
DELETE FROM lines;
SELECT feed_flush('changes');
TRUNCATE lines;
SELECT feed_flush('changes');
INSERT INTO changes (op, key, row) VALUES ('message', '"x"', '{"mine": 1}');
SELECT feed_flush('changes');
SQL
is(relay_once($node, $nats, feed => 'changes'), 0, 'a change feed');
@messages = stream_messages($nats, 'changes');
is_deeply(
	[ map { $_->{subject} } @messages ],
	[ 'changes.public.lines.insert.a', 'changes.public.lines.update.b', 'changes.public.lines.delete.b',
		'changes.public.lines.truncate._', 'changes.public.changes.message.x' ],
	'subjects of changes');
is_deeply([ map { $_->{headers}{'Feedpub-Op'} } @messages ], [qw(insert update delete truncate message)], 'op');
is_deeply([ map { $_->{headers}{'Feedpub-Moment'} } @messages ], [ undef, ('true') x 4 ], 'moments');
is_deeply([ map { $_->{headers}{'Feedpub-Old-Key'} } @messages ], [ undef, 'a', undef, undef, undef ], 'the old key');
is_deeply([ map { $_->{headers}{'Feedpub-Relation'} } @messages ], [ ('public.lines') x 4, undef ], 'relations');
is_deeply([ map { decode_json($_->{data})->{op} } @messages ], [qw(insert update delete truncate message)], 'the data is the entry');
is_deeply(decode_json($messages[1]{data})->{old}, { k => 'a' }, 'with old values');

# a table feed, from its initial snapshot on
sql($node, <<'SQL');
CREATE TABLE kv (k text PRIMARY KEY, v int);
INSERT INTO kv SELECT 'k' || i, i FROM generate_series(1, 5000) i;
SELECT feed_attach('kv');
SELECT feed_start_worker();
SQL
is(relay_once($node, $nats, feed => 'kv'), 0, 'a table feed');
is(nats_api($nats, 'STREAM.INFO.kv')->{state}{messages}, 5000, 'has its rows');
sql($node, "UPDATE kv SET v = -1 WHERE k = 'k7'; DELETE FROM kv WHERE k = 'k8'; SELECT feed_flush('kv')");
is(relay_once($node, $nats, feed => 'kv'), 0, 'and its changes');
sql($node, "TRUNCATE kv; SELECT feed_flush('kv')");
is(relay_once($node, $nats, feed => 'kv'), 0, 'and a TRUNCATE');
@messages = (stream_messages($nats, 'kv'))[ 5000 .. 5002 ];
is_deeply([ map { $_->{subject} } @messages ], [ 'kv.public.kv.upsert.k7', 'kv.public.kv.delete.k8', 'kv.public.kv.truncate._' ], 'subjects');
is_deeply([ map { $_->{data} } @messages ], [ '{"k":"k7","v":-1}', '', '' ], 'data');
is($messages[1]{headers}{'ce-method'}, 'DELETE', 'a delete');

# A message that hung on a lost connection is stored late, when nothing follows.
$relay = relay_start($node, $nats, feed => 'kv');
soon(sub { relay_metric($relay, 'at_end{feed="kv"}') == 1 }, 'a relay has nothing to send');
nats_publish($nats, $messages[0]{subject}, $messages[0]{data}, %{ $messages[0]{headers} }, 'Nats-Expected-Last-Sequence' => 5003);
soon(sub { nats_api($nats, 'STREAM.INFO.kv')->{state}{messages} == 5006 }, 'what comes after it is sent once more');
is_deeply([ map { $_->{subject} } (stream_messages($nats, 'kv'))[ 5003 .. 5005 ] ],
	[ map { $_->{subject} } @messages ], 'so the stream ends as the table');
relay_stop($relay);

done_testing();
