# A row that a client's encoding cannot have is an entry with an error, and the
# rows around it come: in WIN1252 the byte 0x81 is accepted and is no character,
# and SQL_ASCII accepts any byte.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('node', extension => 0);
my %bad = (
	win => [ 'WIN1252', '81', '22P05: character with byte sequence 0x81 in encoding "WIN1252" has no equivalent in encoding "UTF8"' ],
	ascii => [ 'SQL_ASCII', 'ff', '22021: invalid byte sequence for encoding "UTF8": 0xff' ]);

for my $name (sort keys %bad)
{
	my ($encoding, $byte, $error) = @{ $bad{$name} };
	my %db = (db => $name);
	my $bad = $encoding eq 'SQL_ASCII' ?
	  "encode('\\x$byte', 'escape')" : "convert_from('\\x$byte', '$encoding')";

	# a text of any bytes: what COPY takes from a client of that encoding
	sql($node, qq(CREATE DATABASE $name ENCODING '$encoding' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'));
	sql($node, <<"SQL", %db);
SET client_encoding = '$encoding';
CREATE EXTENSION feedpub;
SELECT feed_stop_worker();
SELECT feed_create('outbox');
CREATE TABLE kv (k text PRIMARY KEY, v text);
SELECT feed_attach('kv');
CREATE TABLE bad AS SELECT E'\\x$byte' AS text;
INSERT INTO outbox (message_type, message_key, data)
  SELECT 'a', 'first', '0' UNION ALL
  SELECT 'value', 'second', to_jsonb(text) FROM bad UNION ALL
  SELECT 'key', 'third' || text, '0' FROM bad UNION ALL
  SELECT 'type' || text, 'fourth', '0' FROM bad UNION ALL
  SELECT 'e' || E'\\xc3\\xa9', 'last', '0';
INSERT INTO kv SELECT 'gone' || text, '' FROM bad UNION ALL SELECT 'here', '';
CALL feed_publish();
SELECT feed_subscribe('sub', 'outbox', 'earliest');
SQL
	my $head = sql($node, q(SELECT feed_head('kv')), %db);
	sql($node, 'DELETE FROM kv; CALL feed_publish()', %db);

	my $entries = sub {
		my ($query) = @_;
		return sql($node, <<"SQL", %db);
SET client_encoding = 'UTF8';
SET feedpub.read_wait = 0;
SELECT key, row IS NULL, error FROM ($query) q;
SQL
	};
	my $expected = <<"END" =~ s/\n\z//r;
first|f|
second|t|$error
|t|$error
fourth|t|$error
last|f|
END

	is($entries->(<<'SQL'), $expected, "$encoding: feed_page()");
SELECT e ->> 'key' AS key, e -> 'row' AS row, e ->> 'error' AS error FROM
  (SELECT CASE jsonb_typeof(x -> 'key') WHEN 'object' THEN jsonb_set(x, '{key}', x -> 'key' -> 'message_key') ELSE x END AS e
   FROM jsonb_array_elements(feed_page('outbox')::jsonb -> 'entries') x) e
SQL
	is($entries->(q(SELECT key ->> 'message_key' AS key, row, error FROM feed_poll('sub'))),
		$expected, "$encoding: feed_poll()");
	is($entries->(<<"SQL"), "|t|$error\nhere|t|", "$encoding: deletes");
SELECT e -> 'key' ->> 'k' AS key, e -> 'row' AS row, e ->> 'error' AS error
FROM json_array_elements(feed_page('kv', '$head') -> 'entries') e
SQL

	# the events are for feedpub-http
	is(sql($node, <<'SQL', %db), <<"END" =~ s/\n\z//r, "$encoding: CloudEvents");
SET client_encoding = 'UTF8';
SET feedpub.read_wait = 0;
SELECT e ->> 'type', e ->> 'subject', e ->> 'data', e ->> 'error'
FROM regexp_split_to_table(feedpub._page_events('outbox'), '\n') l,
  LATERAL (SELECT CASE WHEN l LIKE '{%' THEN l::json END) x (e) WHERE e IS NOT NULL;
SQL
a|first|0|
value|second||$error
key|||$error
type%@{[ uc $byte ]}|fourth||$error
@{[ $encoding eq 'WIN1252' ? 'e%C3%A9' : "e\xc3\xa9" ]}|last|0|
END

	# a client of the database's own encoding gets all of it
	is(sql($node, <<"SQL", %db), '0', "$encoding: another client gets them");
SET client_encoding = '$encoding';
SET feedpub.read_wait = 0;
SELECT count(error) FROM feed_poll('sub');
SQL

	# parked by it, and gone: what was kept cannot be sent to others
	is(sql($node, <<"SQL", %db), "second||t|$error", "$encoding: what was kept of a parked entry");
SET client_encoding = '$encoding';
SET feedpub.read_wait = 0;
SELECT feed_ack('sub', receipt) FROM feed_poll('sub', 1) \\g /dev/null
SELECT feed_park('sub', receipt) FROM feed_poll('sub', 1) \\g /dev/null
DELETE FROM outbox WHERE message_key = 'second';
SELECT feed_retry('sub', cursor) FROM feedpub.parked \\g /dev/null
-- what is new comes before what has just failed
SELECT feed_ack('sub', max(receipt COLLATE "C")) FROM feed_poll('sub', 100) \\g /dev/null
SET client_encoding = 'UTF8';
SELECT key ->> 'message_key', row, row IS NULL, error FROM feed_poll('sub', 1);
SQL
}

$node->stop;
done_testing();
