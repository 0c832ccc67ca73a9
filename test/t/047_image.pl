# make image makes a directory from which PostgreSQL 18 uses feedpub in place:
# the server's own directories are not searched.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('server', extension => 0);

if ($node->{_pg_version} < 18)
{
	$node->stop;
	plan skip_all => 'extension_control_path is of PostgreSQL 18';
}
my $image = PostgreSQL::Test::Utils::tempdir() . '/a, b';

system_or_bail('make', '-s', '-C', "$FindBin::RealBin/../..", 'image', "IMAGE=$image");
is( join(' ', sort map { s/^\Q$image\E//r } glob "'$image'/*/* '$image'/share/extension/*"),
	'/lib/feedpub.so /share/extension /share/extension/feedpub--0.1.sql /share/extension/feedpub.control',
	'the directory has what the server needs');

# Nothing of the server's own directories
$node->append_conf('postgresql.conf', <<"CONF");
extension_control_path = '$image/share'
dynamic_library_path = '$image/lib'
CONF
for my $preload ('', 'feedpub')
{
	my $test = $preload ? 'preloaded' : 'not preloaded';

	$node->append_conf('postgresql.conf', "shared_preload_libraries = '$preload'");
	$node->restart;
	sql($node, "CREATE EXTENSION feedpub; SELECT feed_create('outbox')") if !$preload;
	sql($node, q(INSERT INTO outbox (message_type, data) VALUES ('A', '1')));
	sql($node, q(SELECT feed_flush('outbox', '60 s')));
	is(sql($node, 'SELECT count(*) FROM feed_read(NULL::outbox)'),
		$preload ? 2 : 1, "$test: written, published by the worker and read");
	my ($worker) = split /\n/, sql($node, q(SELECT pid FROM pg_stat_activity WHERE backend_type = 'feedpub worker'));
	my @mapped = grep { /feedpub\.so/ } split /\n/, slurp_file("/proc/$worker/maps");

	cmp_ok(scalar @mapped, '>', 0, "$test: the worker has the library");
	is(join("\n", grep { !/\Q$image\E/ } @mapped), '', 'from that directory');
}
$node->stop;
done_testing();
