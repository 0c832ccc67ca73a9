# Clients: what the table "Clients" in docs/reference.md says of each client is
# what its program in test/clients finds out, on the server and through
# pgbouncer in transaction mode.
#
# A program prints a line "feature: result" for each feature that its client
# has.  It is run
#
#   prepared             with statements that the client prepares; the table
#                        has its lines, by the feature's name in bold type
#   unprepared           with the setting that keeps the client from it; the
#                        same, and the rows on prepared statements work: row
#                        "unprepared"
#   unprepared, pooled   the same again: row "pool"
#   prepared session, pooled
#                        a prepared statement in another session: row
#                        "pool-prepared"; "pool-follows" if pgbouncer is one
#                        that knows prepared statements
#
# Clients that are not there are skipped.  Those of npm are fetched, in the
# versions that the table names, if FEEDPUB_CLIENTS is set.

use strict;
use warnings FATAL => 'all';

use File::Copy qw(copy);
use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubExample;
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $programs = "$FindBin::RealBin/../clients";
my $dir = PostgreSQL::Test::Utils::tempdir();

# The table: for each client, what it says of each feature
my ($section) =
  slurp_file("$FindBin::RealBin/../../docs/reference.md") =~ /^## Clients\n(.*?)^## /ms;
my ($head, undef, @rows) =
  map { [ split / *\| */, s/^\| *//r ] } ($section // '') =~ /^(\|.*\|)$/mg;
my %said;
for my $row (@rows)
{
	my ($feature) = $row->[0] =~ /^\*\*([\w-]+)\*\*/;

	ok($feature, "there is a name in: $row->[0]") or next;
	$said{ $head->[$_] }{$feature} = $row->[$_] =~ tr/`//dr for 1 .. $#$head;
}

#
# The clients: how to run each, or why not
#
sub fetched
{
	my ($package, $program) = @_;
	my ($name) = grep { /^\Q$package\E \d/ } @$head;
	my $to = "$dir/$package";

	return 'FEEDPUB_CLIENTS is not set' if !$ENV{FEEDPUB_CLIENTS};
	return 'node and npm are not there'
	  if !run_quietly('node', '--version') || !run_quietly('npm', '--version');
	mkdir $to or die "mkdir: $!";
	copy("$programs/$program", "$to/$program") or die "copy: $!";
	local $ENV{npm_config_cache} = "$dir/cache";
	return "npm cannot install $name"
	  if !run_quietly('npm', 'install', '--prefix', $to, '--no-audit', '--no-fund',
		'--ignore-scripts', '--fetch-retries=1', '--fetch-timeout=20000',
		$name =~ /^(\S+) ([\d.]+)/ ? ($1 eq 'postgres.js' ? 'postgres' : $1) . "\@$2" : $name);
	return [ 'node', "$to/$program" ];
}

my %clients = (
	'pg' => sub { fetched('pg', 'node.mjs') },
	'postgres.js' => sub { fetched('postgres.js', 'postgres.mjs') },
	'psycopg 3' => sub {
		my $python = python_with('psycopg');

		return $python ? [ $python, "$programs/psycopg3.py" ] : 'python3-psycopg is not there';
	},
	'JDBC' => sub {
		my $jar = '/usr/share/java/postgresql.jar';

		return 'libpostgresql-jdbc-java is not there' if !-e $jar;
		return 'there is no Java compiler' if !run_quietly('javac', '-version');
		ok(run_quietly('javac', '-d', $dir, "$programs/Jdbc.java"), 'JDBC: it compiles');
		return [ 'java', '-cp', "$dir:$jar", 'Jdbc' ];
	},
	'DBD::Pg' => sub {
		return eval { require DBD::Pg; 1 }
		  ? [ $^X, "$programs/dbd.pl" ]
		  : 'DBD::Pg is not there';
	},
	'lib/pq' => sub {
		my $sources = '/usr/share/gocode';

		return 'golang-github-lib-pq-dev is not there' if !-e "$sources/src/github.com/lib/pq";
		return 'Go is not there' if !run_quietly('go', 'version');
		local @ENV{qw(GO111MODULE GOPATH GOCACHE)} = ('off', $sources, "$dir/go");
		ok(run_quietly('go', 'build', '-o', "$dir/lib-pq", "$programs/main.go"), 'lib/pq: it compiles');
		return ["$dir/lib-pq"];
	});

is(join(', ', map { s/ .*//r } sort @$head[ 1 .. $#$head ]),
	join(', ', map { s/ .*//r } sort keys %clients), 'the table has these clients');

#
# The server, and pgbouncer before it
#
my $user = getpwuid $<;
my $node = feedpub_node('server', conf => <<'CONF');
shared_preload_libraries = 'feedpub'
listen_addresses = '127.0.0.1'
CONF
my ($pgbouncer) =
  grep { -x } map { "$_/pgbouncer" } split(/:/, $ENV{PATH}), '/usr/sbin', '/usr/local/sbin';
my ($major, $minor) = $pgbouncer ? `$pgbouncer --version` =~ /(\d+)\.(\d+)/ : (0, 0);
my $follows = $major > 1 || $minor >= 21;

# It gives a connection the session that was free last.
sub start_pool
{
	my ($statements) = @_;
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	my $ini = PostgreSQL::Test::Utils::tempdir() . '/pgbouncer.ini';

	append_to_file($ini, <<"INI");
[databases]
postgres = host=127.0.0.1 port=@{[ $node->port ]} dbname=postgres user=$user
[pgbouncer]
pool_mode = transaction
default_pool_size = 4
server_round_robin = 0
auth_type = any
listen_addr = 127.0.0.1
listen_port = $port
unix_socket_dir =
ignore_startup_parameters = extra_float_digits
@{[ $follows ? "max_prepared_statements = $statements" : '' ]}
INI
	my $pool = run_program($node, $pgbouncer, '-q', $ini);
	wait_until('pgbouncer answers',
		sub { run_quietly('psql', '-X', '-h', '127.0.0.1', '-p', $port, '-U', $user, '-c', 'SELECT 1', 'postgres') });
	$pool->{port} = $port;
	return $pool;
}

# What a program prints, by feature
sub run_client
{
	my ($command, $port, @arguments) = @_;

	sql($node, <<'SQL');
SELECT feed_create('outbox');
INSERT INTO outbox (message_type, message_key, data)
  SELECT 'Counted', n, '{"n": 9007199254740993}' FROM generate_series(1, 5) n;
SELECT feed_flush('outbox'), feed_subscribe('mail', 'outbox', 'earliest');
CREATE TABLE effect (key text);
SQL
	my $program = run_program($node, { env => { PGHOST => '127.0.0.1', PGPORT => $port } }, @$command, @arguments);
	is(ended($program), 0, "$command->[-1] @arguments ends well") or diag(output($program));
	sql($node, q(SELECT feed_unsubscribe('mail'), feed_drop('outbox'); DROP TABLE effect));
	return { map { /^([\w-]+): (.*)$/ ? ($1 => $2 =~ tr/`//dr) : (other => $_) } split /\n/, output($program) };
}

sub run_pooled
{
	my ($command, $statements, @arguments) = @_;
	my $pool = start_pool($statements);
	my $got = run_client($command, $pool->{port}, @arguments);

	kill 'TERM', $pool->{pid};
	ended($pool);
	return $got;
}

# Of the error there is more than one code: it depends on what another
# connection has prepared in that session.
sub lost { return $_[0]->{session} =~ s/^no: (?:26000|42P05|08P01)$/no/r }

sub all_work
{
	my ($got, @features) = @_;

	return join(', ', grep { $_ ne 'works' } map { $got->{$_} } @features) || 'works';
}

sub without
{
	my ($got, @features) = @_;
	my %left = %$got;

	delete @left{@features};
	return \%left;
}

my @of_prepared = qw(add replan retype);
for my $client (sort keys %clients)
{
	SKIP:
	{
		my $command = $clients{$client}->();
		skip "$client: $command", 1 if !ref $command;

		my ($column) = grep { /^\Q$client\E/ } @$head;
		my %said = %{ $said{$column} };
		my %got = %{ run_client($command, $node->port, 'prepared') };
		my $unprepared = run_client($command, $node->port, 'unprepared');

		$got{unprepared} = all_work($unprepared, @of_prepared);
		$got{setting} = $unprepared->{setting};
		delete $got{session};
		my %both = (%said, %got);
		for my $feature (grep { !/^pool/ } sort keys %both)
		{
			is($got{$feature} // '-', $said{$feature} // '(no row)', "$client: $feature");
		}
		my @different = (@of_prepared, qw(setting session unprepared));
		is_deeply(without($unprepared, @different), without(\%got, @different),
			"$client: unprepared, nothing else is different");

		skip "$client: pgbouncer is not there", 1 if !$pgbouncer;
		my $pooled = run_pooled($command, 0, 'unprepared');
		is_deeply($pooled, $unprepared, "$client: the same through pgbouncer");
		is($pooled->{session}, $said{pool}, "$client: pool");
		is(lost(run_pooled($command, 0, 'prepared', 'session')), $said{'pool-prepared'}, "$client: pool-prepared");
		skip "$client: this pgbouncer does not know prepared statements", 1 if !$follows;
		is(lost(run_pooled($command, 100, 'prepared', 'session')), $said{'pool-follows'}, "$client: pool-follows");
	}
}

$node->stop;
done_testing();
