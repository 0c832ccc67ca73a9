# FeedpubChecker.pm: writers, consumers and disturbers that work on a feed at the
# same time, each a process of its own, and what comes of it.  What the checkers
# share: FeedpubOrderChecker checks an outbox, in xid order or in published
# order, FeedpubTableChecker a table feed, FeedpubRetentionChecker what is
# removed.
#
# Writers log the fate of each row as they learn it.
# Consumers keep what they were delivered, and with it their cursor, in a file: a
# page and the cursor after it, "= cursor", are one append, so a consumer that is
# killed goes on where its file ends.  Nothing is shared but that.
#
# What each process does is decided by a random generator of its own, seeded
# by the run's seed and the process's name; when it happens is not.
#
# A run may have crashes.  Then writers and disturbers connect again too, and
# what a lost connection leaves open is the fate U, unknown: of a transaction
# whose COMMIT was not answered, and of one that had committed asynchronously.
# In the end the table tells it.
package FeedpubChecker;

use strict;
use warnings FATAL => 'all';

use DBI;
use POSIX ();
use Time::HiRes ();

# A process of its own.  code->(...) runs in it; it dies with its message in
# NAME.err.  Returns its pid.
sub spawn
{
	my ($self, $name, $code) = @_;
	my $pid = fork;

	die "could not fork: $!" if !defined $pid;
	return $pid if $pid;

	# Not to end as the test does, which stops its servers.
	my $ok = eval { $code->(); 1 };
	if (!$ok)
	{
		if (open my $fh, '>>', "$self->{dir}/$name.err")
		{
			print $fh $@;
			close $fh;
		}
	}
	POSIX::_exit($ok ? 0 : 1);
}

# Seed the generator for a process, by its name and how often it has begun.
sub seed
{
	my ($self, $name, $life) = @_;
	my $sum = $self->{seed} * 7919 + $life * 104_729;

	$sum = ($sum * 31 + ord) % 2147483647 for split //, $name;
	srand($sum);
	return;
}

# Connects to a node, or to the one that code returns, and runs a statement with
# the session's settings, if given.  If the run has crashes, it waits until the
# server is there again.
sub connect_to
{
	my ($self, $node, $user, $name, $settings) = @_;
	my $dbh;
	my $connect = sub {
		my $at = ref $node eq 'CODE' ? $node->() : $node;

		$dbh = DBI->connect(
			'dbi:Pg:dbname=postgres;host='
			  . $at->host
			  . ';port='
			  . $at->port
			  . ";application_name=$name",
			$user, '',
			{
				AutoCommit => 1,
				AutoInactiveDestroy => 1,
				PrintError => 0,
				PrintWarn => 0,
				RaiseError => 1
			});
		$dbh->do($settings) if $settings;
		return 1;
	};

	while (1)
	{
		if (!-e "$self->{dir}/crashing")
		{
			undef $dbh;
			return $dbh if eval { $connect->() };
			die $@ if !$self->{crashes} || !is_lost($dbh);
		}
		die "$name: the test has ended\n"
		  if $$ != $self->{parent} && getppid != $self->{parent};
		pause(0.1);
	}
}

# After an error: is the connection lost, or was none made?  libpq gives an
# SQLSTATE of its own, or none, when a server closes it without a word.
sub is_lost
{
	my ($dbh) = @_;
	my $state = $dbh ? $dbh->state : $DBI::state;

	return $state =~ /^(57P0[123]|08...)$/ || ($dbh && !$dbh->ping);
}

# After an error of a session $w that has "connect", how to connect: if its
# connection was lost in a run that has crashes, it gets another and the
# answer is true.  Prepared transactions that are gone move from "prepared",
# whose entries begin with their gid, to "gone".
sub reconnected
{
	my ($self, $w) = @_;
	my %there;
	local $@;

	return 0 if !$self->{crashes} || !is_lost($w->{dbh});
	while (1)
	{
		$w->{dbh} = $w->{connect}->();
		last
		  if eval {
			%there = map { $_ => 1 } @{ $w->{dbh}
				  ->selectcol_arrayref('SELECT gid FROM pg_prepared_xacts') };
			1;
		  };
		die $@ if !is_lost($w->{dbh});
	}
	my @prepared = @{ $w->{prepared} // [] };

	$w->{prepared} = [ grep { $there{ $_->[0] } } @prepared ];
	$w->{gone} = [ grep { !$there{ $_->[0] } } @prepared ];
	return 1;
}

# Runs code that works with the session $w.  False if its connection was lost;
# then it has another.
sub survives
{
	my ($self, $w, $code) = @_;

	return 1 if eval { $code->(); 1 };
	my $error = $@;
	die $error if !$self->reconnected($w);
	return 0;
}

# A session of this kind.
sub session
{
	my ($self, @connect) = @_;
	my $connect = sub { $self->connect_to($self->{node}, @connect) };

	return { connect => $connect, dbh => $connect->() };
}

sub say
{
	my ($self, $name) = @_;

	open my $fh, '>', "$self->{dir}/$name" or die "$name: $!";
	close $fh;
	return;
}

#
# Crashes
#

# Only the test's main process crashes the server, and goes on when it is there
# again.  Nothing connects in the meantime: before that, a transaction whose
# COMMIT was lost may look as if it were still to be decided.
sub allow_crashes
{
	my ($self) = @_;

	$self->{crashes} //= 0;
	$self->{crashed} = 0;
	return if !$self->{crashes};

	# nothing writes WAL to disk unless it is asked to
	$self->{node}->append_conf('postgresql.conf', <<'CONF');
restart_after_crash = on
wal_buffers = 16MB
wal_writer_delay = 10s
wal_writer_flush_after = 100MB
bgwriter_lru_maxpages = 0
CONF
	$self->{node}->restart;
	return;
}

# Before a crash writers ask for nothing of that kind for a moment, so that
# there is something to be lost.
sub before_crash
{
	my ($self) = @_;

	return $self->{crashes} && -e "$self->{dir}/before_crash";
}

# Crashes are spread over the seconds from the first call on.
sub crash_if_due
{
	my ($self) = @_;
	my $node = $self->{node};
	my $now = Time::HiRes::time();

	$self->{crashes_from} //= $now;
	return
	  if $self->{crashed} == $self->{crashes}
	  || $now < $self->{crashes_from} +
	  ($self->{crashed} + 0.5) * $self->{seconds} / $self->{crashes};

	$self->say('before_crash');
	pause(2);
	if (++$self->{crashed} % 3 == 0)
	{
		$self->say('crashing');
		$node->stop('immediate');
		$node->start;
	}
	else
	{
		# the background processes that there are, and a session that cannot end
		# by itself
		my $offset = -s $node->logfile;
		my $victim = $self->connect_to($node, 'postgres', 'victim');
		my $pids = $victim->selectcol_arrayref(<<'SQL');
SELECT pid FROM pg_stat_activity
WHERE backend_type IN ('feedpub worker', 'feedpub job') OR pid = pg_backend_pid()
ORDER BY pid = pg_backend_pid()
SQL

		$self->say('crashing');
		kill 'KILL', @$pids;
		$node->wait_for_log(
			qr/all server processes terminated; reinitializing/, $offset);
		$node->poll_query_until('postgres', 'SELECT true')
		  or die 'the server does not come back';
	}
	unlink "$self->{dir}/before_crash", "$self->{dir}/crashing";
	return;
}

sub pause
{
	my ($most) = @_;

	Time::HiRes::sleep(rand $most);
	return;
}

sub chance
{
	my ($of_100) = @_;

	return rand(100) < $of_100;
}

#
# Writers
#

sub set_commit
{
	my ($w, $commit) = @_;

	$w->{dbh}->do("SET synchronous_commit = $commit");
	$w->{async} = $commit eq 'off';
	return;
}

# The fate of what has committed just now: a crash may still take it back.
sub committed
{
	my ($w) = @_;

	return $w->{crashes} && $w->{async} ? 'U' : 'C';
}

#
# Consumers
#

# The server that a consumer reads.
sub node_of
{
	my ($self, $on_standby) = @_;

	return $on_standby ? $self->{standby} : $self->{node};
}

# Reads the end of a consumer's file: its cursor.  Cuts off a page that was
# not completed.
sub last_cursor
{
	my ($file) = @_;
	my $content = '';

	open my $fh, '+<', $file or return '';
	{ local $/; $content = <$fh> // ''; }
	my ($whole, $cursor) = $content =~ /\A(.*^= ([^\n]*)\n)/ms;
	truncate $fh, length($whole // '') or die "$file: $!";
	return $cursor // '';
}

# One life of a consumer, which may end by SIGKILL at any time.  It ends by
# itself when there is nothing more and all is quiet.  A checker says how: its
# take_page(WAY, STATEMENT, CURSOR, LIMIT) returns the cursor after a page and its
# entries, as [CURSOR, LINE]; limit_after(CURSOR) is a page's size,
# is_after(WAY, CURSOR, CURSOR) whether a page has gone on, wait_after(WAY, SESSION,
# CURSOR) waits, and is_early(SQLSTATE) says whether there is no feed yet.
sub consume
{
	my ($self, $name, $way, $life) = @_;
	my $file = "$self->{dir}/$name.read";
	my $cursor = last_cursor($file);

	$self->seed($name, $life);
	open my $out, '>>', $file or die "$name: $!";
	while (1)
	{
		my $ended = 0;
		# the statement lives as long as its error is asked for: when it goes,
		# it takes that with it
		my ($dbh, $sth);

		my $ok = eval {
			$dbh = $self->connect_to($self->node_of($way->{on_standby}), $way->{user}, $name);
			$sth = $dbh->prepare($way->{query});
			$dbh->do('SET statement_timeout = 180000');
			$dbh->do('SET feedpub.read_wait = ' . int rand 100);
			for (1 .. 1 + int rand 60)
			{
				my $quiet = -e "$self->{dir}/quiet";
				my $one_snapshot = chance(15);
				my $count = 0;

				$dbh->do('BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY')
				  if $one_snapshot;
				for (1 .. ($one_snapshot ? 1 + int rand 5 : 1))
				{
					my $limit = $self->limit_after($cursor);
					my ($next, @entries) = $self->take_page($way, $sth, $cursor, $limit);

					die "$name: a page of more than $limit rows\n"
					  if @entries > $limit;
					last if !@entries && $next eq $cursor;
					die "$name: cursor $next is not after $cursor\n"
					  if !$self->is_after($way, $next, $cursor);

					# not all that was delivered is always taken
					if ($way->{takes_parts} && @entries > 1 && chance(10))
					{
						splice @entries, 1 + int rand $#entries;
						$next = $entries[-1][0];
					}
					$count++;
					$cursor = $next;
					my $text = join('', map { "$_->[1]\n" } @entries) . "= $cursor\n";
					syswrite($out, $text) == length $text
					  or die "$name: $!";
				}
				$dbh->do('COMMIT') if $one_snapshot;
				next if $count;
				$ended = 1, last if $quiet;
				$self->wait_after($way, $dbh, $cursor);
			}
			$dbh->disconnect;
			1;
		};
		return if $ended;
		if (!$ok)
		{
			my $error = $@;
			my $state = ($dbh ? $dbh->state : $DBI::state) // '';
			my $early = $self->is_early($state);

			die "$state $error" if !$early && !is_transient($dbh);
			return if getppid != $self->{parent};
			$cursor = last_cursor($file);
			pause($early ? 0.005 : 0.1);
		}
	}
}

sub is_early
{
	return 0;
}

# Errors that a consumer must live with: the connection is lost; it stands in
# the way of recovery on a standby; DDL meets its locks in a deadlock, or comes
# after its snapshot.
sub is_transient
{
	my ($dbh) = @_;

	return ($dbh && $dbh->state =~ /^(40001|40P01)$/) || is_lost($dbh);
}

#
# Things that happen to a table
#
sub disturb
{
	my ($self) = @_;
	my @what = (
		'VACUUM outbox', 'ANALYZE outbox', 'CHECKPOINT',
		'REINDEX TABLE CONCURRENTLY outbox',
		'ALTER TABLE outbox SET (fillfactor = 90)',
		'ALTER TABLE outbox RESET (fillfactor)');

	$self->seed('disturber', 0);
	my $d = $self->session('postgres', 'disturber');
	until (-e "$self->{dir}/written")
	{
		pause(1.5);
		my $statement = $what[ int rand @what ];
		$self->survives($d, sub { $d->{dbh}->do($statement) });
	}
	$d->{dbh}->disconnect;
	return;
}

#
# The run
#

# A run, with what is known of its processes, by their names: which there are
# (pid), which of them are consumers, how often these have begun (lives).
sub new_run
{
	my ($class, %options) = @_;
	my $self = bless {
		%options,
		parent => $$,
		pid => {},
		name => {},
		consumer => {},
		lives => {},
		failures => [],
		kills => { processes => 0, connections => 0, workers => 0 }
	}, $class;

	$self->allow_crashes;
	$self->{deadline} = $self->deadline;
	return $self;
}

sub begin
{
	my ($self, $name, $code) = @_;
	my $pid = $self->spawn($name, $code);

	$self->{pid}{$name} = $pid;
	$self->{name}{$pid} = $name;
	return;
}

sub begin_writers
{
	my ($self, @numbers) = @_;

	for my $number (@numbers)
	{
		$self->begin("writer$number", sub { $self->write_feed($number) });
	}
	return;
}

# The next life of a consumer.
sub start
{
	my ($self, $name) = @_;
	my $life = $self->{lives}{$name}++;

	$self->begin($name, sub { $self->live($name, $life) });
	return;
}

sub live
{
	my ($self, $name, $life) = @_;

	return $self->consume($name, $self->{consumer}{$name}, $life);
}

# The processes that are there, of those whose names match.
sub running
{
	my ($self, $pattern) = @_;

	return grep { /$pattern/ } sort keys %{ $self->{pid} };
}

# Takes note of processes that have ended; consumers that were killed are
# started again.
sub reap
{
	my ($self) = @_;

	while ((my $pid = waitpid -1, POSIX::WNOHANG()) > 0)
	{
		my $name = delete $self->{name}{$pid} // next;
		my $status = $?;

		delete $self->{pid}{$name};
		if ($self->{consumer}{$name} && ($status & 127))
		{
			$self->start($name);
		}
		elsif ($status)
		{
			open my $fh, '<', "$self->{dir}/$name.err";
			local $/;
			push @{ $self->{failures} }, "$name: " . (($fh && <$fh>) // $status);
		}
	}
	return;
}

sub goes_on
{
	my ($self) = @_;

	return !@{ $self->{failures} } && Time::HiRes::time() < $self->{deadline};
}

# Waits until none of the processes is there whose names match.
sub await_end
{
	my ($self, $pattern) = @_;

	while ($self->running($pattern) && $self->goes_on)
	{
		Time::HiRes::sleep(0.01);
		$self->reap;
	}
	return;
}

sub failed
{
	my ($self, $why) = @_;

	push @{ $self->{failures} }, $why;
	return;
}

# Kills one of the consumers with these names, or its connection.
sub kill_one
{
	my ($self, $most, @names) = @_;
	my $name = $names[ int rand @names ];

	pause($most);
	$self->crash_if_due;
	if (chance(70))
	{
		$self->{kills}{processes} += kill 'KILL', $self->{pid}{$name} if $self->{pid}{$name};
	}
	else
	{
		$self->{kills}{connections} += $self->node_of($self->{consumer}{$name}{on_standby})->safe_psql('postgres',
			"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = '$name'");
	}
	$self->reap;
	return;
}

# Nothing more comes: consumers end when they have all.  Returns what happened:
#
#   consumers   their names
#   kills       how many consumers were killed, connections terminated,
#               workers killed
#   crashes     how often the server was crashed
#   failures    what processes died of
sub end_run
{
	my ($self) = @_;

	$self->say('quiet');
	$self->await_end('.');
	$self->failed("still running: @{[sort keys %{ $self->{pid} }]}") if %{ $self->{pid} };
	kill 'KILL', values %{ $self->{pid} };
	waitpid $_, 0 for values %{ $self->{pid} };
	if (open my $fh, '<', "$self->{dir}/kills")
	{
		$self->{kills}{workers} = <$fh>;
	}
	return {
		consumers => [ sort keys %{ $self->{consumer} } ],
		kills => $self->{kills},
		crashes => $self->{crashed},
		failures => $self->{failures}
	};
}

# Has what is to happen once happened, and each crash?
sub enough
{
	my ($self) = @_;

	return $self->{kills}{processes}
	  && $self->{kills}{connections}
	  && $self->{crashed} == $self->{crashes};
}

# When it is given up.
sub deadline
{
	my ($self) = @_;

	return Time::HiRes::time() + 300 + 10 * $self->{seconds} +
	  60 * $self->{crashes};
}

#
# What came of it
#

# Where the tokens of rows belong, among those that committed or those that
# were rolled back.  Of an unknown fate the table tells it: $there has the
# tokens of its rows.
sub sort_out
{
	my ($fate, $there, $committed, $aborted, @tokens) = @_;

	for (@tokens)
	{
		my $has_committed = $fate eq 'U' ? $there->{$_} : $fate eq 'C';

		($has_committed ? $committed : $aborted)->{$_} = 1;
	}
	return;
}

# What a consumer was handed: a list of lines.
sub handed_out
{
	my ($class, $dir, $name) = @_;
	my @lines;

	open my $fh, '<', "$dir/$name.read" or die "$name: $!";
	while (<$fh>)
	{
		chomp;
		push @lines, $_ if !/^=/;
	}
	close $fh;
	return \@lines;
}

1;
