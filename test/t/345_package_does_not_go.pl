# The script that Debian's dpkg calls before it removes the package of the
# extension: it refuses while a database of a running cluster uses the
# extension.  Debian's pg_lsclusters, psql and runuser are scripts of the test.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('server');
my $dir = PostgreSQL::Test::Utils::tempdir();
my $template = slurp_file("$FindBin::RealBin/../../debian/extension.prerm.in");
my $clusters = '15 main 5432 online postgres /data /log';

sub write_script
{
	my ($name, $text) = @_;

	open my $fh, '>', "$dir/$name" or die $!;
	print $fh "#!/bin/sh\n$text\n";
	close $fh;
	chmod 0755, "$dir/$name" or die $!;
	return;
}

sub prerm
{
	my ($clusters, @arguments) = @_;
	local $ENV{PATH} = "$dir:$ENV{PATH}";
	my ($out, $err);

	write_script('pg_lsclusters', "cat <<'END'\n$clusters\nEND");
	my $ok = IPC::Run::run([ 'sh', "$dir/prerm", @arguments ], '>', \$out, '2>', \$err);
	return ($ok ? 'goes' : 'stays', $err);
}

chomp(my $psql = qx(sh -c 'command -v psql'));
my ($host, $port) = ($node->host, $node->port);
$template =~ s/PGVERSION/15/;
write_script('prerm', $template);
write_script('runuser', 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"');
write_script('psql', qq(shift 2; exec $psql -h $host -p $port "\$@"));

my ($result, $said) = prerm($clusters, 'remove');
is($result, 'stays', 'a database uses the extension');
like($said, qr{^used: database "postgres" of cluster 15/main$}m, 'it is named');
like($said, qr{feed_detach_all}, 'it is told what to do');
is((prerm($clusters, 'upgrade', '0.2'))[0], 'goes', 'an upgrade is not refused');
is((prerm($clusters, 'deconfigure'))[0], 'goes', 'nor is another call');
is((prerm($clusters =~ s/15/17/r, 'remove'))[0], 'goes', 'a cluster of another version does not count');
($result, $said) = prerm($clusters =~ s/online/down/r, 'remove');
is($result, 'goes', 'a cluster that does not run does not count');
like($said, qr{^unknown: cluster 15/main does not run$}m, 'it is named');
{
	local $ENV{FEEDPUB_REMOVE} = 'yes';
	is((prerm($clusters, 'remove'))[0], 'goes', 'if it is forced');
}

# the name of a database may be anything
$node->safe_psql('postgres', q(SELECT * FROM feed_detach_all(); DROP EXTENSION feedpub));
$node->safe_psql('postgres', q(CREATE DATABASE "Odd 'Name' = ""x"" \\\\" TEMPLATE template0));
($result, $said) = prerm($clusters, 'remove');
is($result, 'goes', 'no database uses the extension any more');
unlike($said, qr{database}, 'all could be looked at');
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'feedpub'");
$node->restart;
($result, $said) = prerm($clusters, 'remove');
is($result, 'stays', 'the server would not start any more');
like($said, qr{^used: shared_preload_libraries}m, 'it is told so');

done_testing();
