# FeedpubExample.pm: what the tests of examples/ share: programs that run
# beside the test, writers, and waiting for what they do.
#
#   run_program(NODE, COMMAND ...)    starts one; returns it.  Options in front,
#                                     in a hash: env, db, dir, node => none
#   ended(PROGRAM)                    waits for its end: its exit status, or
#                                     "signal N"
#   output(PROGRAM)                   what it has printed
#   run_writers(NODE, SCRIPT, ...)    starts pgbench with a script; finish() it
#   finish(PROGRAM)                   waits for its end, which must be good
#   python_with(MODULE)               a python3 that has it, or undef
#   run_quietly(COMMAND ...)          runs one to its end; whether it went well
#   wait_until(WHAT, SUB)             until SUB returns true; dies after a
#                                     while, with what it was that did not come,
#                                     and when a program fails meanwhile
package FeedpubExample;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use FindBin;
use IPC::Run ();
use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes ();

our @EXPORT = qw(
  example run_program ended output run_writers finish
  python_with run_quietly wait_until);

my @programs;

# A file in examples/.
sub example { return "$FindBin::RealBin/../../examples/$_[0]" }

sub run_program
{
	my ($node, @command) = @_;
	my %options = ref $command[0] ? %{ shift @command } : ();
	my $log = PostgreSQL::Test::Utils::tempdir() . '/log';

	append_to_file($log, '');
	my $pid = fork // die "fork: $!";
	if (!$pid)
	{
		# a group of its own, and no signal ignored, as a shell or a supervisor
		# would have it, however the tests themselves were started
		POSIX::setpgid(0, 0);
		$SIG{$_} = 'DEFAULT' for qw(INT QUIT TERM HUP);
		%ENV = (
			%ENV,
			PGHOST => $node->host,
			PGPORT => $node->port,
			PGDATABASE => $options{db} // 'postgres',
			PGUSER => scalar getpwuid($<),    # what libpq takes, others do not
			%{ $options{env} // {} });
		open(STDIN, '<', '/dev/null') or POSIX::_exit(126);
		open(STDOUT, '>', $log) or POSIX::_exit(126);
		open(STDERR, '>&', \*STDOUT) or POSIX::_exit(126);
		chdir $options{dir} or POSIX::_exit(126) if $options{dir};
		exec { $command[0] } @command or POSIX::_exit(127);
	}
	my $program =
	  { pid => $pid, name => "@command", log => $log, status => undef };
	push @programs, $program;
	return $program;
}

sub look
{
	my ($program) = @_;

	return 1 if defined $program->{status};
	return 0 if waitpid($program->{pid}, POSIX::WNOHANG()) == 0;
	$program->{status} = $? & 127 ? 'signal ' . ($? & 127) : $? >> 8;
	return 1;
}

sub ended
{
	my ($program) = @_;

	$program->{ends} = 1;
	wait_until("$program->{name} ends", sub { look($program) });
	return $program->{status};
}

sub output { return slurp_file($_[0]->{log}) }

sub run_writers
{
	my ($node, $script, %options) = @_;
	my $file = PostgreSQL::Test::Utils::tempdir() . '/script.sql';

	append_to_file($file, $script);
	return run_program(
		$node, 'pgbench', '-n', '-f', $file,
		'-c', $options{clients} // 4,
		'-t', $options{transactions} // 100,
		$options{tries} ? "--max-tries=$options{tries}" : (),
		$options{db} // 'postgres');
}

sub finish
{
	my ($program) = @_;
	my $status = ended($program);

	die "$program->{name}: $status\n" . output($program) if $status ne '0';
	return;
}

# The distribution's has the distribution's modules, whichever comes first.
sub python_with
{
	my ($module) = @_;

	return (grep { run_quietly($_, '-c', "import $module") } 'python3', '/usr/bin/python3')[0];
}

sub run_quietly
{
	my (@command) = @_;
	my ($out, $err);

	# a command that is not there is an exception
	return eval { IPC::Run::run(\@command, '<', \undef, '>', \$out, '2>', \$err) };
}

sub wait_until
{
	my ($what, $condition) = @_;
	my $timeout = $PostgreSQL::Test::Utils::timeout_default;
	my $until = Time::HiRes::time() + $timeout;

	while (!$condition->())
	{
		my ($failed) = grep { !$_->{ends} && look($_) && $_->{status} ne '0' } @programs;

		if ($failed || Time::HiRes::time() > $until)
		{
			for my $program (@programs)
			{
				diag "$program->{name}:\n" . output($program);
				diag grep { /^ *$program->{pid} / } `ps -eo pgid,pid,ppid,stat,wchan:20,args`;
			}
			die "$failed->{name}: $failed->{status}" if $failed;
			die "$timeout s and still not: $what";
		}
		Time::HiRes::usleep(20_000);
	}
	return;
}

# None outlives the test.
END
{
	my $status = $?;

	for my $program (grep { !look($_) } @programs)
	{
		kill 'KILL', -$program->{pid};
		kill 'KILL', $program->{pid};
		waitpid $program->{pid}, 0;
	}
	$? = $status;
}

1;
