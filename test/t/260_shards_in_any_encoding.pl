# Keys are divided into shards by the bytes that the database keeps: in WIN1252
# the byte 0x81 is accepted and is no character, so no conversion may be tried.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use Digest::SHA qw(sha256);
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('node', extension => 0);
sql($node, q(CREATE DATABASE win ENCODING 'WIN1252' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'));
my %win = (db => 'win');

# the hexadecimal bytes of keys: no character, an e with an accent, ASCII
my @keys = ('81', '8d', 'e9', '61', '6181');
my $keys = join ', ', map { "convert_from('\\x$_', 'WIN1252')" } @keys;

sql($node, <<"SQL", %win);
CREATE EXTENSION feedpub;
SELECT feed_stop_worker();
SELECT feed_create('outbox');
CREATE TABLE kv (k text PRIMARY KEY, v text);
SELECT feed_attach('kv');
INSERT INTO outbox (message_type, message_key, data) SELECT 'a', k, '0' FROM unnest(ARRAY[$keys]) k;
INSERT INTO kv SELECT k, 'v' FROM unnest(ARRAY[$keys]) k;
CALL feed_publish();
SQL

# What key lies where: hexadecimal, shard.
sub shards_of
{
	my ($query) = @_;

	return sql($node, <<"SQL", %win);
SET client_encoding = 'WIN1252';
SET feedpub.read_wait = 0;
SELECT encode(convert_to(key, 'WIN1252'), 'hex'), s FROM generate_series(0, 2) s,
  LATERAL (SELECT $query) r (op, key) WHERE op IN ('upsert', 'delete') ORDER BY 1, 2;
SQL
}
my $expected = join "\n", map { $_ . '|' . unpack('N', sha256(pack('H*', $_))) % 3 } sort @keys;

is(shards_of(q(op, (entry).message_key FROM feed_read(NULL::outbox, '', 100, s, 3))),
	$expected, 'messages lie in shards by the bytes of their keys');
is(shards_of(q(op, (entry).k FROM feed_read(NULL::kv, '', 100, s, 3))),
	$expected, 'rows do');
my $head = sql($node, q(SELECT feed_head('kv')), %win);
sql($node, 'DELETE FROM kv; CALL feed_publish()', %win);
is(shards_of("op, (entry).k FROM feed_read(NULL::kv, '$head', 100, s, 3)"),
	$expected, 'deletes do');
is(sql($node, <<'SQL', %win), '5', 'a subscription is divided too');
SET client_encoding = 'WIN1252';
SELECT feed_subscribe('sub', 'outbox', 'earliest', 3) \g /dev/null
SELECT sum(json_array_length(feed_page('outbox', '', 100, s, 3) -> 'entries')) FROM generate_series(0, 2) s;
SQL

#
# Keys that can be equal and print differently, of a type that an extension
# brings (the others are in sql/shards.sql)
#
SKIP:
{
	skip 'no citext', 1
	  if sql($node, q(SELECT count(*) FROM pg_available_extensions WHERE name = 'citext')) eq '0';
	sql($node, <<'SQL');
CREATE EXTENSION feedpub;
CREATE EXTENSION citext;
CREATE TABLE names (k citext PRIMARY KEY);
SELECT feed_attach('names');
SQL
	refused($node, q(SELECT feed_page('names', '', 1, 0, 2)), '0A000', 'cannot be divided',
		'citext is no key to divide by');
}

$node->stop;
done_testing();
