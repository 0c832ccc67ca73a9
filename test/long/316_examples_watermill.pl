# examples/watermill: a publisher and a subscriber for watermill, in Go.  They
# pass watermill's own tests for all that publish and subscribe, in a group,
# with shards and without a group, while the server restarts; a publisher is in
# its caller's transaction, and a handler in that of the acknowledgement; all
# payload types arrive as they were.
#
# Watermill comes as go is set up to get it.  Runs only if FEEDPUB_CLIENTS is
# set.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use File::Copy qw(copy);
use FeedpubExample;
use FeedpubTest;
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'FEEDPUB_CLIENTS is not set' unless $ENV{FEEDPUB_CLIENTS};

my $dir = PostgreSQL::Test::Utils::tempdir();
for my $file (glob example('watermill/*'))
{
	copy($file, $dir) or die "copy: $!";
}

# Nothing of it stays: a module cache that cannot be written cannot be removed.
local $ENV{GOPATH} = "$dir/path";
local $ENV{GOCACHE} = "$dir/cache";
local $ENV{GOTOOLCHAIN} = 'local';
local $ENV{GOFLAGS} = '-modcacherw ' . ($ENV{GOFLAGS} // '');
delete local $ENV{GOMODCACHE};

# Debian has several, and perhaps none of them is "go".
my ($major, $minor) = slurp_file("$dir/go.mod") =~ /^go (\d+)\.(\d+)/m or die 'no version in go.mod';
my ($go) = grep {
	my ($out, $err);
	eval { IPC::Run::run([ $_, 'env', 'GOVERSION' ], '>', \$out, '2>', \$err) }
	  && $out =~ /^go$major\.(\d+)/ && $1 >= $minor
} 'go', sort glob '/usr/lib/go-*/bin/go';
plan skip_all => "go is not there, or older than $major.$minor" if !$go;
plan skip_all => 'go cannot get watermill here'
  if !run_quietly($go, '-C', $dir, 'mod', 'download', 'github.com/ThreeDotsLabs/watermill', 'github.com/lib/pq');
run_quietly($go, '-C', $dir, 'vet', '.') or die "$go vet fails in examples/watermill";
run_quietly($go, '-C', $dir, 'test', '-c', '-o', 'adapter.test') or die 'examples/watermill cannot be built';

my $node = feedpub_node('server', conf => <<'CONF');
shared_preload_libraries = 'feedpub'
log_statement = none
max_connections = 300
CONF
# Watermill does not wait for one restart before it begins the next.
append_to_file("$dir/restart",
	join("\n", '#!/bin/sh', 'exec flock -o "$0" pg_ctl restart -w -m fast -D ' . $node->data_dir . ' -l ' . $node->logfile, ''));
chmod 0700, "$dir/restart" or die "chmod: $!";

# The tests of watermill that do not apply, for what is not promised
my %skipped = (
	TestGroup => [qw(TestNewSubscriberReceivesOldMessages)],
	TestShards => [qw(TestNewSubscriberReceivesOldMessages TestNoAck TestPublishSubscribeInOrder)],
	TestNoGroup => [qw(TestConsumerGroups)]);

# One of them takes half a minute, and several if the machine is busy.
$PostgreSQL::Test::Utils::timeout_default *= 4;
for my $test (qw(TestGroup TestShards TestNoGroup TestTransactions TestPayloads))
{
	my $program = run_program($node,
		{ dir => $dir, env => { PGSSLMODE => 'disable', RESTART => "$dir/restart" } },
		"$dir/adapter.test", '-test.v', "-test.run=^$test\$");
	my $status = ended($program);
	my $output = output($program);

	is($status, 0, $test) or diag $output;
	next if !$skipped{$test};
	# those of watermill have an id below their name
	my @passed = $output =~ m,^ *--- PASS: $test/(\w+)/,gm;
	is_deeply([ sort $output =~ m,^ *--- SKIP: $test/(\w+)/,gm ], $skipped{$test}, "$test: what does not apply");
	cmp_ok(@passed, '>=', 16 - @{ $skipped{$test} }, "$test: the others have passed");
	note "$test: $_" for sort @passed;
}
is(sql($node, 'SELECT count(*) FROM feedpub.shards WHERE consumer IS NOT NULL'), 0, 'no lease is left');
$node->stop;
done_testing();
