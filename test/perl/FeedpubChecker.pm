# FeedpubChecker.pm: writers, consumers and disturbers that work on one outbox
# at the same time, each a process of its own, and what comes of it.
#
# Writers log the fate of each row as they learn it; each row carries a token
# in message_key, made of the writer's number, its transaction's and its own.
# Consumers keep what they were delivered, and with it their cursor, in a file: a
# page and the cursor after it are one append, so a consumer that is killed
# goes on where its file ends.  Nothing is shared but that.
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

# How a transaction of a writer goes, and how often, in a thousand.
my @kinds = (
	[ single => 330 ],    # one row
	[ pair => 170 ],      # two rows, a moment apart
	[ early => 90 ],      # a transaction id long before the row
	[ rollback => 120 ],
	[ failed => 40 ],     # ended by an error
	[ savepoints => 130 ],
	[ prepared => 75 ],   # decided some transactions later
	[ copy => 40 ],
	[ long => 5 ]);

# Besides, one of so many transactions of each writer has 10,000 rows, by
# INSERT and COPY in turn.
my $bulk_every = 220;
my $bulk_rows = 10_000;

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

sub write_feed
{
	my ($self, $number) = @_;
	my $name = "writer$number";
	my $share = int($self->{transactions} / $self->{writers}) + 1;
	my $end = Time::HiRes::time() + $self->{seconds};

	$self->seed($name, 0);
	open my $log, '>', "$self->{dir}/$name.log" or die "$name: $!";
	my $w = {
		%{ $self->session('regress_feedpub_writer', $name) },
		name => $name,
		log => $log,
		crashes => $self->{crashes},
		prepared => []    # [gid, pieces] of those that are not decided
	};
	# false if that was lost in a crash
	my $try = sub {
		return 1 if $self->survives($w, @_);
		$w->{async} = 0;
		log_fate($w, 'U', @{ $w->{pieces} }, map { @{ $_->[1] } } @{ $w->{gone} });
		$w->{pieces} = [];
		return 0;
	};

	for (my $t = 1; $t <= $share || Time::HiRes::time() < $end; $t++)
	{
		my $dice = rand 1000;
		my $kind;

		$w->{transaction} = "$number.$t";
		$w->{rows} = 0;
		$w->{pieces} = [];

		my $commit = chance(5) ? chance(50) ? 'on' : 'off' : undef;

		if ($t % $bulk_every == 30 * $number % $bulk_every)
		{
			$kind =
			  (int($t / $bulk_every) + $number) % 2 ? 'bulk' : 'bulk_copy';
		}
		else
		{
			for (@kinds)
			{
				$kind = $_->[0];
				last if ($dice -= $_->[1]) < 0;
			}
		}
		my $flush = !$self->before_crash;
		if (!$flush)
		{
			# nor does anything old hold back xid order
			while (@{ $w->{prepared} })
			{
				$try->(sub { decide_prepared($w, 0) });
			}
			$commit = 'off';
			$kind = 'single' if $kind =~ /^(prepared|long)$/;
		}
		my $method = "write_$kind";
		$w->{kind} = $kind;
		$try->(sub {
			set_commit($w, $commit) if $commit;
			$self->$method($w);
			$w->{pieces} = [];
			decide_prepared($w, int rand @{ $w->{prepared} })
			  if $flush
			  && (@{ $w->{prepared} } > 2 || (@{ $w->{prepared} } && chance(15)));
		}) or $share++;
		pause(0.02) if chance(60);
	}
	while (@{ $w->{prepared} })
	{
		$try->(sub { decide_prepared($w, 0) });
	}
	$w->{dbh}->disconnect;
	close $log or die "$name: $!";
	return;
}

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

# The next rows of a transaction, as a piece of it that is to be logged: the
# kind, the transaction's number, and the rows' first and last number.
sub next_piece
{
	my ($w, $rows) = @_;
	my $piece =
	  [ $w->{kind}, $w->{transaction}, $w->{rows} + 1, $w->{rows} + $rows ];

	$w->{rows} += $rows;
	push @{ $w->{pieces} }, $piece;
	return $piece;
}

sub insert_rows
{
	my ($w, $rows) = @_;
	my (undef, undef, $from, $to) = @{ next_piece($w, $rows) };

	if ($rows == 1)
	{
		$w->{dbh}->prepare_cached(
			'INSERT INTO outbox (message_type, message_key, data) VALUES (?, ?, ?)'
		)->execute($w->{kind}, "$w->{transaction}.$from", $from);
	}
	else
	{
		$w->{dbh}->do(
			'INSERT INTO outbox (message_type, message_key, data) '
			  . "SELECT ?, ? || '.' || i, to_jsonb(i) FROM generate_series(?::int, ?::int) i",
			undef, $w->{kind}, $w->{transaction}, $from, $to);
	}
	return;
}

sub copy_rows
{
	my ($w, $rows) = @_;
	my (undef, undef, $from, $to) = @{ next_piece($w, $rows) };

	$w->{dbh}->do('COPY outbox (message_type, message_key, data) FROM STDIN');
	$w->{dbh}->pg_putcopydata("$w->{kind}\t$w->{transaction}.$_\t$_\n")
	  for $from .. $to;
	$w->{dbh}->pg_putcopyend;
	return;
}

# Logs what has become of pieces: C, committed, R, rolled back, or U, unknown.
sub log_fate
{
	my ($w, $fate, @pieces) = @_;

	print { $w->{log} } join("\t", $fate, @$_), "\n" for @pieces;
	return;
}

sub commit
{
	my ($w) = @_;

	$w->{dbh}->do('COMMIT');
	log_fate($w, committed($w), @{ $w->{pieces} });
	return;
}

sub rollback
{
	my ($w) = @_;

	$w->{dbh}->do('ROLLBACK');
	log_fate($w, 'R', @{ $w->{pieces} });
	return;
}

sub commit_or_rollback
{
	my ($w, $rollback) = @_;

	return chance($rollback) ? rollback($w) : commit($w);
}

sub write_single
{
	my ($self, $w) = @_;

	insert_rows($w, 1);
	log_fate($w, committed($w), @{ $w->{pieces} });
	return;
}

sub write_pair
{
	my ($self, $w) = @_;

	$w->{dbh}->do('BEGIN');
	insert_rows($w, 1);
	pause(0.03);
	insert_rows($w, 1);
	pause(0.01) if chance(50);
	return commit($w);
}

sub write_early
{
	my ($self, $w) = @_;

	$w->{dbh}->do('BEGIN');
	$w->{dbh}->do('SELECT pg_current_xact_id()');
	pause(0.04);
	insert_rows($w, 1 + int rand 3);
	return commit_or_rollback($w, 10);
}

sub write_rollback
{
	my ($self, $w) = @_;

	$w->{dbh}->do('BEGIN');
	insert_rows($w, 1 + int rand 5);
	pause(0.02);
	return rollback($w);
}

sub write_failed
{
	my ($self, $w) = @_;

	$w->{dbh}->do('BEGIN');
	insert_rows($w, 1);
	my (undef, undef, $from, $to) = @{ next_piece($w, 20) };
	my $done = eval {
		$w->{dbh}->do(
			'INSERT INTO outbox (message_type, message_key, data) '
			  . "SELECT ?, ? || '.' || i, to_jsonb(1 / (? - i)) FROM generate_series(?::int, ?::int) i",
			undef, $w->{kind}, $w->{transaction}, $to, $from, $to);
		1;
	};
	die 'an INSERT that divides by zero has succeeded' if $done;
	die $@ if $w->{dbh}->state ne '22012';
	return rollback($w);
}

sub write_savepoints
{
	my ($self, $w) = @_;
	my @open;    # how many pieces there were at each open savepoint

	$w->{dbh}->do('BEGIN');
	for (1 .. 3 + int rand 8)
	{
		my $dice = rand 100;

		if ($dice < 40)
		{
			insert_rows($w, chance(80) ? 1 : 1 + int rand 40);
		}
		elsif ($dice < 65 || !@open)
		{
			push @open, scalar @{ $w->{pieces} };
			$w->{dbh}->do("SAVEPOINT s$#open");
		}
		else
		{
			# this one, and those within it
			my $which = int rand @open;

			if ($dice < 85)
			{
				$w->{dbh}->do("ROLLBACK TO s$which");
				log_fate($w, 'R', splice @{ $w->{pieces} }, $open[$which]);
				splice @open, $which + 1;
			}
			else
			{
				$w->{dbh}->do("RELEASE s$which");
				splice @open, $which;
			}
		}
	}
	# one without a row would not be counted
	insert_rows($w, 1) if !$w->{rows};
	pause(0.02) if chance(50);
	return commit_or_rollback($w, 20);
}

sub write_prepared
{
	my ($self, $w) = @_;

	$w->{dbh}->do('BEGIN');
	insert_rows($w, 1 + int rand 3);
	# before it is: if the answer is lost, it is looked for
	push @{ $w->{prepared} }, [ $w->{transaction}, $w->{pieces} ];
	$w->{pieces} = [];
	$w->{dbh}->do("PREPARE TRANSACTION '$w->{transaction}'");
	return;
}

sub decide_prepared
{
	my ($w, $which) = @_;
	my ($gid, $pieces) = @{ $w->{prepared}[$which] };
	my $fate = chance(70) ? 'C' : 'R';

	$w->{dbh}->do(
		($fate eq 'C' ? 'COMMIT' : 'ROLLBACK') . " PREPARED '$gid'");
	splice @{ $w->{prepared} }, $which, 1;
	log_fate($w, $fate, @$pieces);
	return;
}

sub write_copy
{
	my ($self, $w) = @_;

	$w->{dbh}->do('BEGIN');
	copy_rows($w, 1 + int rand 300);
	insert_rows($w, 1) if chance(30);
	return commit_or_rollback($w, 20);
}

sub write_long
{
	my ($self, $w) = @_;

	$w->{dbh}->do('BEGIN');
	insert_rows($w, 1);
	pause(1.5);
	insert_rows($w, 1);
	return commit_or_rollback($w, 30);
}

sub write_bulk
{
	my ($self, $w) = @_;

	$w->{dbh}->do('BEGIN');
	insert_rows($w, $bulk_rows);
	return commit_or_rollback($w, 20);
}

sub write_bulk_copy
{
	my ($self, $w) = @_;

	$w->{dbh}->do('BEGIN');
	copy_rows($w, $bulk_rows);
	return commit_or_rollback($w, 20);
}

#
# Consumers
#

my $columns = 'feed_xid::text, feed_pos, message_key, message_id';

# How a consumer reads: the query, whose parameters are a cursor and a limit, as
# which role, and on which server.
my %way = (
	default => {
		query => "SELECT $columns FROM feed_fetch(?::xid8, ?, ?)",
		user => 'regress_feedpub_reader'
	},
	named => {
		query => "SELECT $columns FROM feed_fetch(NULL::outbox, ?::xid8, ?, ?)",
		user => 'regress_feedpub_reader'
	},
	policy => {
		query => "SELECT $columns FROM feed_fetch(NULL::outbox, ?::xid8, ?, ?)",
		user => 'regress_feedpub_restricted'
	},
	standby => {
		query => "SELECT $columns FROM feed_fetch(?::xid8, ?, ?)",
		user => 'regress_feedpub_reader',
		on_standby => 1
	},
	# A usual first attempt.
	naive => {
		query =>
		  "SELECT $columns FROM outbox WHERE (?::xid8 IS NOT NULL) AND feed_pos > ? ORDER BY feed_pos LIMIT ?",
		user => 'regress_feedpub_reader'
	});

# Reads the end of a consumer's file: its cursor.  Cuts off a page that was
# not completed.
sub last_cursor
{
	my ($file) = @_;
	my $content = '';

	open my $fh, '+<', $file or return (0, 0);
	my $size = -s $fh;
	seek $fh, ($size > 100 ? $size - 100 : 0), 0;
	{ local $/; $content = <$fh> // ''; }
	return ($1, $2) if $content =~ /^= (\d+) (\d+)\n\z/m;

	seek $fh, 0, 0;
	{ local $/; $content = <$fh> // ''; }
	my $whole =
	  $content =~ /\A(.*^= (\d+) (\d+)\n)/ms ? length $1 : 0;
	my @cursor = $whole ? ($2, $3) : (0, 0);
	truncate $fh, $whole or die "$file: $!";
	return @cursor;
}

# Errors that a consumer must live with: the connection is lost; it stands in
# the way of recovery on a standby; DDL meets its locks in a deadlock, or comes
# after its snapshot.
sub is_transient
{
	my ($dbh) = @_;

	return ($dbh && $dbh->state =~ /^(40001|40P01)$/) || is_lost($dbh);
}

# One life of a consumer, which may end by SIGKILL at any time.  Ends by
# itself when the feed has, after all writers have.
sub consume
{
	my ($self, $name, $way, $life) = @_;
	my $file = "$self->{dir}/$name.read";
	my ($xid, $pos) = last_cursor($file);
	my $node = $way->{on_standby} ? $self->{standby} : $self->{node};

	$self->seed($name, $life);
	open my $out, '>>', $file or die "$name: $!";
	while (1)
	{
		my $ended = 0;
		# the statement lives as long as its error is asked for: when it goes,
		# it takes that with it
		my ($dbh, $sth);

		my $ok = eval {
			$dbh = $self->connect_to($node, $way->{user}, $name);
			$sth = $dbh->prepare($way->{query});
			$dbh->do('SET statement_timeout = 180000');
			for (1 .. 1 + int rand 60)
			{
				my $quiet = -e "$self->{dir}/quiet";
				my $one_snapshot = chance(20);
				my $pages = $one_snapshot ? 1 + int rand 5 : 1;
				my $count = 0;

				$dbh->do('BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY')
				  if $one_snapshot;
				for (1 .. $pages)
				{
					my $limit = chance(60) ? 1 + int rand 50
					  : chance(75) ? 1 + int rand 1000
					  : 1 + int rand 10_000;

					$sth->execute($xid, $pos, $limit);
					my $rows = $sth->fetchall_arrayref;
					die "$name: a page of more than $limit rows"
					  if @$rows > $limit;
					last if !@$rows;
					$count += @$rows;
					($xid, $pos) = @{ $rows->[-1] };
					my $page =
					  join('', map { "@$_\n" } @$rows) . "= $xid $pos\n";
					syswrite($out, $page) == length $page
					  or die "$name: $!";
				}
				$dbh->do('COMMIT') if $one_snapshot;
				if (!$count)
				{
					$ended = 1, last if $quiet;
					pause(0.02);
				}
			}
			$dbh->disconnect;
			1;
		};
		return if $ended;
		if (!$ok)
		{
			my $error = $@;
			my $state = $dbh ? $dbh->state : $DBI::state;

			die "$state $error" if !is_transient($dbh);
			return if getppid != $self->{parent};
			($xid, $pos) = last_cursor($file);
			pause(0.1);
		}
	}
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

# Has what is to happen once happened, and each crash?
sub enough
{
	my ($self, $kills) = @_;

	return $kills->{processes}
	  && $kills->{connections}
	  && $self->{crashed} == $self->{crashes};
}

# When it is given up.
sub deadline
{
	my ($self) = @_;

	return Time::HiRes::time() + 300 + 10 * $self->{seconds} +
	  60 * $self->{crashes};
}

# Options: node; seconds, transactions (at least so many of both), writers,
# consumers, seed, crashes, dir (an empty directory).  Returns what happened:
#
#   ways        the consumers' names
#   kills       how many consumers were killed, and connections terminated
#   crashes     how often the server was crashed
#   failures    what processes died of
sub run
{
	my ($class, %options) = @_;
	my $self = bless { %options, parent => $$ }, $class;
	my $node = $self->{node};
	my @ways = qw(default named policy standby);
	my %consumer =
	  map { my $way = $ways[ ($_ - 1) % @ways ]; ("$way$_" => $way) }
	  1 .. $self->{consumers};
	my (%writer, %lives, %pid, %name);
	my @failures;
	my %kills = (processes => 0, connections => 0);
	$self->allow_crashes;
	my $deadline = $self->deadline;

	$consumer{naive} = 'naive';
	my $start = sub {
		my ($name) = @_;
		my $life = $lives{$name}++;

		$pid{$name} = $self->spawn($name,
			sub { $self->consume($name, $way{ $consumer{$name} }, $life) });
		$name{ $pid{$name} } = $name;
	};
	# Takes note of processes that have ended; consumers that were killed are
	# started again.
	my $reap = sub {
		while ((my $pid = waitpid -1, POSIX::WNOHANG()) > 0)
		{
			my $name = delete $name{$pid} // next;
			my $status = $?;

			delete $pid{$name};
			delete $writer{$name};
			if ($consumer{$name} && ($status & 127))
			{
				$start->($name);
			}
			elsif ($status)
			{
				open my $fh, '<', "$self->{dir}/$name.err";
				local $/;
				push @failures, "$name: " . (($fh && <$fh>) // $status);
			}
		}
	};

	$start->($_) for sort keys %consumer;
	for my $number (1 .. $self->{writers})
	{
		my $name = "writer$number";

		$writer{$name} = 1;
		$pid{$name} = $self->spawn($name, sub { $self->write_feed($number) });
		$name{ $pid{$name} } = $name;
	}
	$pid{disturber} = $self->spawn('disturber', sub { $self->disturb });
	$name{ $pid{disturber} } = 'disturber';

	$self->seed('killer', 0);
	my @names = sort keys %consumer;
	while ((%writer || !$self->enough(\%kills))
		&& !@failures
		&& Time::HiRes::time() < $deadline)
	{
		my $name = $names[ int rand @names ];

		pause(0.6);
		$self->crash_if_due;
		if (chance(70))
		{
			$kills{processes} += kill 'KILL', $pid{$name} if $pid{$name};
		}
		else
		{
			my $on = $consumer{$name} eq 'standby' ? $self->{standby} : $node;

			$kills{connections} += $on->safe_psql('postgres',
				"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = '$name'"
			);
		}
		$reap->();
	}

	# All writers have ended.  When nothing holds the horizon and the standby
	# is there too, consumers may end as soon as they find nothing more.
	$self->say('written');
	if (!%writer)
	{
		$node->poll_query_until('postgres',
			'SELECT count(*) = 0 FROM feedpub.blockers')
		  or push @failures, 'the horizon does not get free';
		$node->wait_for_replay_catchup($self->{standby}) if $self->{standby};
	}
	$self->say('quiet');
	while (%name && !@failures && Time::HiRes::time() < $deadline)
	{
		Time::HiRes::sleep(0.01);
		$reap->();
	}
	push @failures, "still running: @{[sort values %name]}" if %name;
	kill 'KILL', keys %name;
	waitpid $_, 0 for keys %name;

	delete $consumer{naive};
	return {
		consumers => [ sort keys %consumer ],
		kills => \%kills,
		crashes => $self->{crashed},
		failures => \@failures
	};
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

# Reads the writers' logs.  Returns the tokens of committed rows, of
# rolled-back ones, and the transactions of each kind.
sub outcome
{
	my ($class, $dir, $writers, $there) = @_;
	my (%committed, %aborted, %kinds);

	for my $number (1 .. $writers)
	{
		my %seen;

		open my $fh, '<', "$dir/writer$number.log" or die;
		while (<$fh>)
		{
			chomp;
			my ($fate, $kind, $transaction, $from, $to) = split /\t/;
			sort_out($fate, $there, \%committed, \%aborted,
				map { "$transaction.$_" } $from .. $to);
			$kinds{$kind}++ if !$seen{$transaction}++;
		}
		close $fh;
	}
	return (\%committed, \%aborted, \%kinds);
}

# What a consumer was handed: a list of lines, "xid pos token message_id".
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
