# CREATE EXTENSION: which roles may, where the functions go, and what must not be
# there before.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('server', extension => 0);

# The schemas that a database's extension has put its things into.
my $schemas = <<'SQL';
SELECT extnamespace::regnamespace, relocatable, superuser, trusted,
	(SELECT string_agg(DISTINCT proname::text, ' ' ORDER BY proname::text)
	 FROM pg_proc WHERE pronamespace = extnamespace
	 	AND proname LIKE 'feed\_%')
	LIKE '%feed_create%feed_fetch%feed_xid_head%'
FROM pg_extension
JOIN pg_available_extension_versions ON name = extname AND version = extversion
WHERE extname = 'feedpub'
SQL

#
# Only a superuser may, whatever another role owns.
#
sql($node, <<'SQL');
CREATE ROLE regress_feedpub_owner LOGIN CREATEDB;
CREATE DATABASE owned OWNER regress_feedpub_owner;
SQL
refused($node, 'CREATE EXTENSION feedpub', '42501',
	'permission denied to create extension "feedpub"',
	'the owner of a database may not make it',
	db => 'owned', user => 'regress_feedpub_owner');

#
# Schema feedpub must not exist: the role that made it could have put its own
# functions into it.
#
for my $how ('CREATE EXTENSION feedpub', 'CREATE EXTENSION feedpub CASCADE',
	'CREATE EXTENSION feedpub SCHEMA public')
{
	sql($node, 'CREATE SCHEMA feedpub',
		db => 'owned', user => 'regress_feedpub_owner');
	refused($node, $how, '42P06', 'schema "feedpub" already exists',
		"not beside somebody's schema feedpub: $how", db => 'owned');
	is(sql($node, 'SELECT count(*) FROM pg_extension WHERE extname = \'feedpub\'',
			db => 'owned'),
		0, 'and nothing is left of it');
	sql($node, 'DROP SCHEMA feedpub',
		db => 'owned', user => 'regress_feedpub_owner');
}

# Functions cannot go there either, for it is made by the script.
sql($node, 'CREATE SCHEMA feedpub', db => 'owned');
refused($node, 'CREATE EXTENSION feedpub SCHEMA feedpub', '42P06',
	'schema "feedpub" already exists',
	'also when it is named', db => 'owned');
sql($node, 'DROP SCHEMA feedpub', db => 'owned');
refused($node, 'CREATE EXTENSION feedpub SCHEMA feedpub', '3F000',
	'schema "feedpub" does not exist',
	'the schema named must exist', db => 'owned');

#
# Where the functions go: the first schema of the search path, or the one
# that is named, whatever its name.
#
sql($node, 'CREATE EXTENSION feedpub', db => 'owned');
is(sql($node, $schemas, db => 'owned'),
	'public|f|t|f|t', 'by default into schema public');
sql($node, 'DROP EXTENSION feedpub', db => 'owned');
is( sql($node, "SELECT count(*) FROM pg_namespace WHERE nspname = 'feedpub'",
		db => 'owned'),
	0,
	'DROP EXTENSION takes schema feedpub along');

sql($node, <<'SQL', db => 'owned');
CREATE SCHEMA first;
SET search_path = first, public;
CREATE EXTENSION feedpub;
SQL
is(sql($node, $schemas, db => 'owned'),
	'first|f|t|f|t', 'into the first schema of the search path');
sql($node, 'DROP EXTENSION feedpub', db => 'owned');

my $odd = '"Odd ""Schema"", x"';
sql($node, "CREATE SCHEMA $odd; CREATE EXTENSION feedpub SCHEMA $odd",
	db => 'owned');
is(sql($node, $schemas, db => 'owned'),
	"$odd|f|t|f|t", 'into the schema that is named');
refused($node, 'ALTER EXTENSION feedpub SET SCHEMA public', '0A000',
	'does not support SET SCHEMA',
	'which it does not leave again', db => 'owned');

# There it works for roles that have USAGE on the schema, with any search path.
sql($node, "GRANT USAGE ON SCHEMA $odd TO regress_feedpub_owner",
	db => 'owned');
sql($node, 'GRANT CREATE ON SCHEMA public TO regress_feedpub_owner',
	db => 'owned');
for my $path ('public', $odd, 'pg_catalog, feedpub', "''")
{
	is( sql($node, <<"SQL", db => 'owned', user => 'regress_feedpub_owner'),
SET client_min_messages = warning;
SET search_path = $path;
SELECT $odd.feed_create('public.outbox') IS NOT NULL;
INSERT INTO public.outbox (message_type, data) VALUES ('A', '1');
SELECT data FROM $odd.feed_fetch('0', 0, 100);
SELECT data FROM $odd.feed_fetch(NULL::public.outbox, '0', 0, 100);
SELECT count(*) FROM $odd.feed_check('public.outbox');
ALTER TABLE public.outbox DISABLE TRIGGER zz_feedpub_stamp;
SELECT $odd.feed_repair('public.outbox');
SELECT count(*) FROM $odd.feed_xid_head('public.outbox');
SELECT $odd.feed_drop('public.outbox');
SQL
		"t\n1\n1\n0\n1\n1\n",
		"functions in an odd schema, search_path $path");
}

#
# DROP EXTENSION leaves the users' tables, and what wrote into them goes on,
# though no session here has the library when it drops the extension.
#
sql($node, <<"SQL", db => 'owned', user => 'regress_feedpub_owner');
SELECT $odd.feed_create('public.outbox');
INSERT INTO public.outbox (message_type, data) VALUES ('A', '1'), ('A', '2');
SQL
is(sql($node, 'SHOW shared_preload_libraries'), '', 'nothing is preloaded');
sql($node, 'CREATE ROLE regress_feedpub_writer LOGIN', db => 'owned');
sql($node, <<'SQL', db => 'owned', user => 'regress_feedpub_owner');
GRANT INSERT ON outbox TO regress_feedpub_writer;
CREATE UNIQUE INDEX ON outbox (message_id);
SQL
my $rows = fetch_all($node, 'public.outbox', db => 'owned', in => "$odd.");
refused($node, 'DROP EXTENSION feedpub', '2BP01',
	'cannot drop extension feedpub because other objects depend on it',
	'DROP EXTENSION refuses while there are feeds', db => 'owned');
sql($node, <<'SQL', db => 'owned');
SET client_min_messages = warning;
DROP EXTENSION feedpub CASCADE;
SQL
is( sql($node, 'SELECT * FROM public.outbox ORDER BY feed_xid, feed_pos',
		db => 'owned'),
	$rows,
	'DROP EXTENSION ... CASCADE leaves the rows');
my $later = "INSERT INTO outbox (message_type, data) SELECT 'later', to_jsonb(i) FROM generate_series(1, 100) i";
sql($node, <<"SQL", db => 'owned', user => 'regress_feedpub_writer');
$later;
COPY outbox (message_type, data) FROM STDIN;
later	101
later	102
\\.
SQL
sql($node, q(UPDATE outbox SET data = '100' WHERE data = '100'; DELETE FROM outbox WHERE data = '101'),
	db => 'owned');
is( sql($node, q(SELECT count(*) FROM outbox WHERE message_type = 'later'), db => 'owned'),
	101, 'and it can be written, by INSERT, COPY, UPDATE and DELETE');
is( sql($node, q(SELECT contype FROM pg_constraint WHERE conrelid = 'outbox'::regclass AND contype = 'p'), db => 'owned'),
	'p', 'with the primary key, so that DELETE is replicated');
sql($node, 'CREATE EXTENSION feedpub SCHEMA public', db => 'owned');
refused($node, q(SELECT * FROM feed_fetch(NULL::outbox, '0', 0, 100)),
	'42809', 'is not a feed', 'a new extension does not know the feed',
	db => 'owned');
is( sql($node, q(SELECT feed_repair('outbox') > 0),
		db => 'owned', user => 'regress_feedpub_owner'),
	't',
	'until feed_repair has made it one again');
is(sql($node, q(SELECT * FROM feed_check('outbox')), db => 'owned'),
	'', 'with all its guards');
is( sql($node, q(SELECT count(DISTINCT message_id), bool_and(message_id ~ '^[0-9a-f-]{36}$'), array_agg(data::int ORDER BY feed_pos) FROM feed_fetch(NULL::outbox, '0', 0, 1000) WHERE message_type = 'later'),
		db => 'owned'),
	'101|t|{' . join(',', 1 .. 99, 102, 100) . '}',
	'and what was written meanwhile, with ids');
sql($node, q(DELETE FROM outbox WHERE message_type = 'later'), db => 'owned');
is(fetch_all($node, 'outbox', db => 'owned'), $rows, 'after the rows of before');
sql($node,
	q(INSERT INTO outbox (message_type, data) VALUES ('A', '3')),
	db => 'owned');
is(sql($node, q(SELECT array_agg(data ORDER BY feed_pos) FROM feed_fetch(NULL::outbox, '0', 0, 100)),
		db => 'owned'),
	'{1,2,3}', 'to which others are added');

$node->stop;
done_testing();
