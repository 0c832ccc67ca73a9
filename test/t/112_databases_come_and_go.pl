# Databases with feeds are made and dropped in turn, more of them than shared
# memory has room for at a time: each has a worker while it is there.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubPublished;
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# FEEDPUB_MAX_DATABASES is 32.
my $databases = 36;
my $node = feedpub_node('server', extension => 0, conf => <<'CONF');
fsync = off
feedpub.naptime = 10ms
CONF

sql($node, 'CREATE DATABASE template_feed');
sql($node, q(CREATE EXTENSION feedpub; SELECT feed_create('outbox')),
	db => 'template_feed');

for my $preload ('', 'feedpub')
{
	my $how = $preload ? 'preloaded' : 'on demand';
	my $served = 0;

	$node->append_conf('postgresql.conf',
		"shared_preload_libraries = '$preload'");
	$node->restart;
	for my $n (1 .. $databases)
	{
		my $db = "come_and_go_$n";

		sql($node, "CREATE DATABASE $db TEMPLATE template_feed");
		sql($node,
			"INSERT INTO outbox (message_type, message_key, data) VALUES ('A', '$n', '1')",
			db => $db);
		if ($preload)
		{
			await_published($node, 'outbox', $db) or last;
		}
		last if read_all($node, 'outbox', db => $db, wait => '60s') ne $n;
		last if workers($node) !~ /\b$db\b/;
		$served++;
		sql($node, "DROP DATABASE $db");
	}
	is($served, $databases, "$how: each database had a worker");
}

#
# All at a time: one more than there is room for does without shared memory,
# until one of the others is dropped.
#
$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$node->restart;
my $room = 32;

for my $n (1 .. $room + 1)
{
	sql($node, "CREATE DATABASE full_$n TEMPLATE template_feed");
	next if $n > $room;
	sql($node, q(SELECT feed_listen('outbox')), db => "full_$n") eq 'feedpub'
	  or die 'feed_listen() does not answer';
}
my $last = 'full_' . ($room + 1);

refused($node, q(SELECT feed_listen('outbox')), '53400',
	'32 other databases of the server have feeds', 'one database too many', db => $last);
refused($node, q(SELECT feed_flush('outbox')), '55000', 'has no worker',
	'feed_flush() has no worker there', db => $last);
is( sql($node, q(SET client_min_messages = error; SELECT feed_start_worker(), feed_stop_worker()),
		db => $last),
	'f|f', 'there is none to start or to stop');
my ($status, $out, $err) = $node->psql($last, q(SELECT feed_start_worker()));
like($err, qr/HINT:  Drop one of these databases/, 'a hint that helps');
sql($node, <<'SQL', db => $last);
INSERT INTO outbox (message_type, message_key, data) VALUES ('A', 'k', '1');
CALL feed_publish();
SQL
is(read_all($node, 'outbox', db => $last), 'k', 'publishing by hand and reading work there');
sql($node, 'DROP DATABASE full_1');
is(sql($node, q(SELECT feed_listen('outbox')), db => $last),
	'feedpub', 'when another database is dropped there is room');

$node->stop;
done_testing();
