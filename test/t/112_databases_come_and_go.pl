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

$node->stop;
done_testing();
