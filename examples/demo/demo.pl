#!/usr/bin/perl
# demo.pl DIRECTORY CATALOGUE
#
# The main job of feedpub on real input, in the database that PGHOST & co.
# name (./demo starts a private server and calls this).  Each record of the
# package catalogue, the output of `apt-cache dumpavail`, becomes a message of
# an outbox.  At the same time run
#
#   six writers        transactions of 1 to 1000 messages; some roll back, some
#                      roll back to a savepoint, some bulk ones use COPY, and
#                      one writer now and then leaves a transaction open
#   consumers A and B  follow with feed_fetch; B is killed and started again
#   a naive consumer   follows with "feed_pos > the last one that I saw"
#
# A consumer keeps its cursor where it keeps its work, in a journal outside
# the database: for each page what arrived when, closed by the cursor.  The
# writers keep accounts too, of what they committed and what they rolled
# back.  In the end the journals are held against the accounts.  Exits with 1
# when a feedpub consumer lost, repeated or reordered anything.
use strict;
use warnings;

use DBI;
use IO::Handle;
use IO::Select;
use List::Util qw(max min sum0);
use POSIX qw(_exit);
use Time::HiRes qw(sleep time);

my $WRITERS = 6;
my $PAGE = 200;                    # rows in a page
my $PAUSE = 0.005;                 # of a consumer that got an empty page
my $RECORDS = 60_000;              # of the catalogue, at most
my $PACED = 0.75;                  # of the records are published at a set pace,
my $DURATION = 20;                 # in so many seconds; the rest at full speed
my $PATIENCE = 30;                 # seconds for consumers to reach the end

my ($dir, $catalogue) = @ARGV;
die "usage: demo.pl DIRECTORY CATALOGUE\n" unless $catalogue;

my %child;                         # pid => name
my $parent = $$;
$SIG{INT} = $SIG{TERM} = sub { exit 130 };
END
{
	if ($$ == $parent)
	{
		my $status = $?;
		kill 'KILL', keys %child;
		waitpid $_, 0 for keys %child;
		$? = $status;
	}
}

#
# Small helpers
#

sub connect_as
{
	my ($name) = @_;
	my $dbh = DBI->connect(
		'dbi:Pg:', '', '',
		{
			RaiseError => 1,
			PrintError => 0,
			AutoCommit => 1,
			pg_enable_utf8 => 0
		});
	$dbh->do("SET application_name = '$name'");
	$dbh->do("SET client_encoding = 'UTF8'");
	$dbh->do('SET client_min_messages = warning');
	return $dbh;
}

sub append_to
{
	my ($name) = @_;
	open my $file, '>>', "$dir/$name" or die "could not open $dir/$name: $!\n";
	$file->autoflush(1);
	return $file;
}

# One write, so that a kill does not leave half a page.
sub write_all
{
	my ($file, $text) = @_;
	defined syswrite $file, $text or die "could not write: $!\n";
}

sub lines_of
{
	my ($name) = @_;
	open my $file, '<', "$dir/$name" or die "could not open $dir/$name: $!\n";
	chomp(my @lines = <$file>);
	return @lines;
}

# 1234567 -> 1,234,567
sub n
{
	my $n = sprintf '%.0f', shift;
	1 while $n =~ s/^(\d+)(\d{3})/$1,$2/;
	return $n;
}

sub ms
{
	my $ms = $_[0] * 1000;
	return ($ms < 10 ? sprintf('%.1f', $ms) : n($ms)) . ' ms';
}

sub percentile
{
	my ($p, @sorted) = @_;
	return @sorted ? $sorted[ min($#sorted, int($p / 100 * @sorted)) ] : 0;
}

#
# The catalogue: stanzas of "Field: value" lines with indented continuations
#

sub read_catalogue
{
	local $/ = '';
	open my $file, '<', $catalogue or die "could not open $catalogue: $!\n";
	my @stanzas = grep { /^Package: / } <$file>;
	splice @stanzas, $RECORDS if @stanzas > $RECORDS;
	return @stanzas;
}

# The name of the package, and its fields as JSON.
sub message_of
{
	my ($stanza) = @_;
	my (%field, $last);

	utf8::decode(my $copy = $stanza) or utf8::encode($stanza);
	for my $line (split /\n/, $stanza)
	{
		if ($line =~ /^([^\s:]+):\s*(.*)/)
		{
			$last = $1;
			$field{$last} = $2;
		}
		elsif (defined $last)
		{
			$field{$last} .= "\n" . substr $line, 1;
		}
	}
	my $json = join ', ',
	  map { json_string($_) . ': ' . json_string($field{$_}) } sort keys %field;
	return ($field{Package}, "{$json}");
}

sub json_string
{
	my ($text) = @_;
	$text =~ s/([\x00-\x1f"\\])/sprintf '\\u%04x', ord $1/ge;
	return qq("$text");
}

#
# A writer: publishes its share of the catalogue, in transactions whose sizes
# and fates are drawn by lot (the same lots in each run)
#

sub run_writer
{
	my ($number, $tell, $begin, @stanzas) = @_;
	my $name = "writer $number";
	my $dbh = connect_as($name);
	my $accounts = append_to("accounts $number");
	my $total = @stanzas;
	my $published = 0;
	my $last_slow = $begin;
	my $is_hurried = 0;
	my @attempts = (0) x $total;

	my $insert = $dbh->prepare(
		q(INSERT INTO outbox (message_id, message_type, message_key, data)
		  VALUES (?, 'PackagePublished', ?, ?)));

	# the messages of a transaction, made before it begins
	my %message;

	# Writes messages and returns their ids.  An id says which writer's which
	# record it is, and which attempt.
	my $write = sub {
		my @ids;
		my $bulk = @_ > 150;
		$dbh->do(
			'COPY outbox (message_id, message_type, message_key, data) FROM STDIN'
		) if $bulk;
		for my $i (@_)
		{
			my ($package, $json) = @{ $message{$i} };
			my $id = join '.', $number, $i, ++$attempts[$i];
			if ($bulk)
			{
				$json =~ s/\\/\\\\/g;
				$dbh->pg_putcopydata(
					"$id\tPackagePublished\t$package\t$json\n");
			}
			else
			{
				$insert->execute($id, $package, $json);
			}
			push @ids, $id;
		}
		$dbh->pg_putcopyend if $bulk;
		return @ids;
	};

	srand $number;
	while ($published < $total)
	{
		# at a set pace first, so that latency is seen and not the backlog of a
		# machine that is fully used, then at full speed
		if ($published < $PACED * $total)
		{
			my $due = $begin + $DURATION * $published / ($PACED * $total);
			sleep max(0, $due - time);
		}
		elsif (!$is_hurried)
		{
			$is_hurried = 1;
			write_all($accounts, 'hurried ' . time . "\n");
		}

		my $lot = rand;
		my $size = 1 + int rand(
			  $lot < 0.70 ? 5
			: $lot < 0.95 ? 40
			: $lot < 0.99 ? 300
			: 1000);
		my $rolls_back = rand() < 0.1;
		my $has_savepoint = $size > 1 && rand() < 0.15;
		my $hold = 0.5 + rand;
		my $is_slow = $number == 1 && !$is_hurried && time - $last_slow > 2;

		my @mine = $published .. min($published + $size, $total) - 1;
		my (@ids, @undone);

		%message = map { $_ => [ message_of($stanzas[$_]) ] } @mine;
		my $since = time;
		$dbh->begin_work;
		if ($has_savepoint)
		{
			$dbh->do('SAVEPOINT s');
			@undone = $write->(@mine[ 0 .. $#mine / 2 ]);
			$dbh->do('ROLLBACK TO s');
		}
		@ids = $write->(@mine);
		if ($is_slow)
		{
			sleep $hold;
			$last_slow = time;
			$dbh->commit;
			write_all($accounts, "slow $since " . time . "\n");
		}
		elsif ($rolls_back)
		{
			$dbh->rollback;
		}
		else
		{
			$dbh->commit;
		}

		my $kept = $is_slow || !$rolls_back;
		push @undone, splice @ids unless $kept;
		my $account = '';
		$account .= join(' ', 'committed', @ids) . "\n" if @ids;
		$account .= join(' ', 'undone', @undone) . "\n" if @undone;
		$account .= "savepoint\n" if $has_savepoint;
		$account .= "rollback\n" unless $kept;
		write_all($accounts, $account);
		if ($kept)
		{
			$published += @ids;
			write_all($tell, "published " . @ids . "\n");
		}
	}
	$dbh->disconnect;
}

#
# The consumers: both kinds keep a journal, which ends with the cursor
#

sub run_consumer
{
	my ($name, $tell, $sql, @cursor) = @_;
	my $dbh = connect_as("consumer $name");
	my $page = $dbh->prepare($sql);
	my $journal = append_to("journal $name");
	my ($goal, $deadline);

	# go on from the stored cursor; what a kill left behind it is cut off
	if (-s "$dir/journal $name")
	{
		open my $file, '<', "$dir/journal $name" or die;
		my $end = 0;
		while (my $line = <$file>)
		{
			next unless $line =~ /^cursor (.+)\n/;
			@cursor = split ' ', $1;
			$end = tell $file;
		}
		truncate $journal, $end or die "could not truncate: $!\n";
	}

	while (1)
	{
		# the cursor behind the last row of all, once the writers are done
		if (!$goal && -e "$dir/goal $name")
		{
			($goal) = lines_of("goal $name");
			$deadline = time + $PATIENCE;
		}

		$page->execute(@cursor, $PAGE);
		my $rows = $page->fetchall_arrayref;
		my $now = time;
		if (!@$rows)
		{
			last if $goal && ("@cursor" eq $goal || time > $deadline);
			sleep $PAUSE;
			next;
		}

		# a real consumer would now do something with data
		@cursor = @cursor == 1 ? $rows->[-1][1] : @{ $rows->[-1] }[ 0, 1 ];
		write_all($journal,
			join('', map { "$_->[0] $_->[1] $_->[2] $now\n" } @$rows)
			  . "cursor @cursor\n");
		write_all($tell, "$name " . @$rows . "\n");
	}
	$dbh->disconnect;
}

sub run_feedpub_consumer
{
	my ($name, $tell) = @_;
	run_consumer(
		$name, $tell,
		q(SELECT feed_xid, feed_pos, message_id, message_type, message_key, data
		  FROM feed_fetch(?, ?, ?)),
		0, 0);
}

sub run_naive_consumer
{
	my ($name, $tell) = @_;
	run_consumer(
		$name, $tell,
		q(SELECT feed_xid, feed_pos, message_id, message_type, message_key, data
		  FROM outbox WHERE feed_pos > ? ORDER BY feed_pos LIMIT ?),
		0);
}

#
# The stage manager
#

my $terminal = -t STDOUT;
my %count = map { $_ => 0 } qw(published A B naive);
my $total;
my $begin;
my $shown = 0;
my $b_is = '';

sub show_progress
{
	my ($force) = @_;
	my $now = time;
	return if !$force && $now - $shown < ($terminal ? 0.2 : 5);
	$shown = $now;
	my $line = sprintf
	  '%5.1f s  published %s of %s  A %s  B %s%s  naive %s',
	  max(0, $now - $begin), n($count{published}), n($total), n($count{A}),
	  n($count{B}), $b_is, n($count{naive});
	print $terminal ? "\r$line\e[K" : "$line\n";
}

sub note
{
	print $terminal ? "\r\e[K" : '', @_, "\n";
}

pipe(my $hear, my $tell) or die "could not make a pipe: $!\n";
my $select = IO::Select->new($hear);

sub start
{
	my ($name, $code, @arguments) = @_;
	defined(my $pid = fork) or die "could not start $name: $!\n";
	if ($pid == 0)
	{
		$SIG{INT} = $SIG{TERM} = 'DEFAULT';
		close $hear;
		eval { $code->(@arguments); 1 } or do
		{
			print STDERR "$name: $@";
			_exit(1);
		};
		_exit(0);
	}
	$child{$pid} = $name;
	return $pid;
}

my $heard = '';

# What the children tell, until one ends or for a moment.
sub listen_to_children
{
	if ($select->can_read(0.1))
	{
		sysread $hear, $heard, 65536, length $heard;
		$count{$1} += $2 while $heard =~ s/^(\S+) (\d+)\n//;
	}
	for my $pid (keys %child)
	{
		next unless waitpid($pid, POSIX::WNOHANG) > 0;
		my $name = delete $child{$pid};
		die "$name failed\n" if $?;
	}
	show_progress();
}

sub running { my ($what) = @_; return grep { /^$what/ } values %child }

STDOUT->autoflush(1);
my $dbh = connect_as('demo');
$dbh->do('CREATE EXTENSION feedpub');
$dbh->do(q(SELECT feed_create('outbox')));
# without an index of its own the naive consumer would only lag behind
$dbh->do('CREATE INDEX ON outbox (feed_pos)');

start('consumer A', \&run_feedpub_consumer, 'A', $tell);
my $pid_b = start('consumer B', \&run_feedpub_consumer, 'B', $tell);
start('consumer naive', \&run_naive_consumer, 'naive', $tell);

my @stanzas = read_catalogue();
$total = @stanzas;
die "the catalogue is empty\n" unless $total;
my @share;
push @{ $share[ $_ % $WRITERS ] }, $stanzas[$_] for 0 .. $#stanzas;
note("$WRITERS writers publish ", n($total),
	' packages; consumers A, B and a naive one follow');
$begin = time + 0.5;
start("writer $_", \&run_writer, $_, $tell, $begin, @{ $share[ $_ - 1 ] })
  for 1 .. $WRITERS;
@stanzas = @share = ();

# B is killed a third of the way, and started again two seconds later.
listen_to_children() while $count{B} < $total / 3 && running('writer');
kill 'KILL', $pid_b;
waitpid $pid_b, 0;
delete $child{$pid_b};
my $killed = time;
my ($xid, $pos) = (grep { /^cursor/ } lines_of('journal B'))[-1] =~ /(\d+) (\d+)/;
note("consumer B killed; its journal ends with the cursor ($xid, $pos)");
$b_is = ' (down)';
listen_to_children() while time - $killed < 2;
$b_is = '';
note('consumer B started again, from there');
start('consumer B', \&run_feedpub_consumer, 'B', $tell);

listen_to_children() while running('writer');
my $took = time - $begin;

# All is committed: when the consumers have reached the last row they end.
my $by_stamp = q(SELECT feed_xid || ' ' || feed_pos FROM outbox
	ORDER BY feed_xid DESC, feed_pos DESC LIMIT 1);
my $by_position = 'SELECT max(feed_pos) FROM outbox';
for ([ 'A', $by_stamp ], [ 'B', $by_stamp ], [ 'naive', $by_position ])
{
	my ($name, $query) = @$_;
	write_all(append_to('goal.new'),
		$dbh->selectrow_array($query) . "\n");
	rename "$dir/goal.new", "$dir/goal $name" or die "could not rename: $!\n";
}
listen_to_children() while %child;
show_progress(1);
print "\n";

#
# The reckoning
#

my (%committed, %undone, @slow, $transactions, $rollbacks, $savepoints);
$rollbacks = $savepoints = $transactions = 0;
my $biggest = 0;
my $hurried = $begin + $took;
for my $w (1 .. $WRITERS)
{
	for (lines_of("accounts $w"))
	{
		my ($what, @rest) = split ' ';
		if ($what eq 'committed')
		{
			$committed{$_} = 1 for @rest;
			$transactions++;
			$biggest = max($biggest, scalar @rest);
		}
		elsif ($what eq 'undone') { $undone{$_} = 1 for @rest }
		elsif ($what eq 'slow') { push @slow, [@rest] }
		elsif ($what eq 'hurried') { $hurried = min($hurried, $rest[0]) }
		elsif ($what eq 'rollback') { $rollbacks++ }
		elsif ($what eq 'savepoint') { $savepoints++ }
	}
}

# When each transaction committed, says the server (track_commit_timestamp).
my %commit_time = map { @$_ } @{
	$dbh->selectall_arrayref(
		q(SELECT feed_xid, extract(epoch FROM pg_xact_commit_timestamp(feed_xid::xid))
		  FROM (SELECT DISTINCT feed_xid FROM outbox) x))
};

# How long rows took to consumer A (B was down for a while), in three classes:
# committed beside a slow transaction, at full speed, and the others.
my (%result, %latency, @missing);
for my $name (qw(A B naive))
{
	my %seen;
	my %r = (delivered => 0, lost => 0, twice => 0, undone => 0, order => 'yes');
	my @last = (0, 0);
	for (lines_of("journal $name"))
	{
		next if /^cursor/;
		my ($xid, $pos, $id, $time) = split ' ';
		$r{delivered}++;
		$r{twice}++ if $seen{$id}++;
		$r{undone}++ unless $committed{$id};
		$r{order} = 'NO' if $xid < $last[0] || $xid == $last[0] && $pos <= $last[1];
		@last = ($xid, $pos);

		next if $name ne 'A' || !$commit_time{$xid};
		my $at = $commit_time{$xid};
		my $class =
		    (grep { $at >= $_->[0] && $at <= $_->[1] } @slow) ? 'slow'
		  : $at >= $hurried ? 'hurried'
		  : 'paced';
		push @{ $latency{$class} }, $time - $at;
	}
	my @lost = grep { !$seen{$_} } sort keys %committed;
	$r{lost} = @lost;
	@missing = @lost if $name eq 'naive';
	$r{order} = '-' if $name eq 'naive';
	$result{$name} = \%r;
}

my ($in_table) = $dbh->selectrow_array('SELECT count(*) FROM outbox');
my $committed = keys %committed;

my $fast = grep { $commit_time{$_->[0]} >= $hurried } @{
	$dbh->selectall_arrayref('SELECT feed_xid FROM outbox')
};
printf "\nPublished  %s packages in %.1f s: %s at a set pace, then %s at full speed,\n",
  n($committed), $took, n($committed - $fast), n($fast);
printf "           %s rows/s.  %s transactions of 1 to %s rows, and %s rolled back;\n",
  n($fast / max(0.001, $begin + $took - $hurried)), n($transactions), n($biggest), n($rollbacks);
printf "           %s savepoints rolled back; %s transactions held open for %.1f to %.1f s.\n\n",
  n($savepoints), scalar @slow, @slow
  ? (min(map { $_->[1] - $_->[0] } @slow), max(map { $_->[1] - $_->[0] } @slow))
  : (0, 0);

printf "%-28s %10s %7s %7s %12s %9s\n", '', 'delivered', 'lost', 'twice',
  'rolled back', 'in order';
for (
	[ 'A', 'consumer A' ],
	[ 'B', 'consumer B (killed once)' ],
	[ 'naive', 'naive consumer' ])
{
	my $r = $result{ $_->[0] };
	printf "%-28s %10s %7s %7s %12s %9s\n", $_->[1],
	  map({ n($r->{$_}) } qw(delivered lost twice undone)), $r->{order};
}

print "\nLatency from commit (by the server's own account) to delivery to A:\n";
for (
	[ 'paced', 'no slow transaction open' ],
	[ 'slow', 'beside a slow transaction' ],
	[ 'hurried', 'at full speed' ])
{
	my ($class, $what) = @$_;
	my @sorted = sort { $a <=> $b } @{ $latency{$class} || [] };
	printf "  %-26s %10s rows   p50 %9s   p99 %9s\n", $what,
	  n(scalar @sorted), ms(percentile(50, @sorted)), ms(percentile(99, @sorted));
}
print "Rows wait for every older transaction: those committed beside a slow one are\n",
  "delivered when it ends.  A consumer that got nothing asks again after ",
  ms($PAUSE), ".\n";

# A fresh reader, to see what reading alone can do.
my @cursor = (0, 0);
my $rows = 0;
my $start = time;
my $page = $dbh->prepare('SELECT * FROM feed_fetch(?, ?, 1000)');
while ($page->execute(@cursor) > 0)
{
	my $got = $page->fetchall_arrayref;
	$rows += @$got;
	@cursor = @{ $got->[-1] }[ 0, 1 ];
}
printf "Reading all %s rows again, in pages of 1,000: %s rows/s.\n",
  n($rows), n($rows / (time - $start));

print "\nThe first messages\n";
my $sample = $dbh->selectall_arrayref(
	q(SELECT feed_xid, feed_pos, message_type, message_key, data->>'Version', data->>'Description'
	  FROM feed_fetch('0', 0, 3)));
printf "  (%s, %s)  %s  %s %s: %.50s\n", map { (split /\n/)[0] } @$_ for @$sample;

if (@missing)
{
	print "Some that the naive consumer never saw\n";
	for my $id (@missing[ 0, $#missing / 2, $#missing ])
	{
		my @row = $dbh->selectrow_array(
			q(SELECT feed_xid, feed_pos, message_type, message_key, data->>'Version', data->>'Description'
			  FROM outbox WHERE message_id = ?), {}, $id);
		printf "  (%s, %s)  %s  %s %s: %.50s\n", map { (split /\n/)[0] } @row;
	}
}

my @wrong;
push @wrong, "the table has $in_table rows" if $in_table != $committed;
for my $name (qw(A B))
{
	my $r = $result{$name};
	push @wrong, "consumer $name is not right"
	  if $r->{lost} || $r->{twice} || $r->{undone} || $r->{order} ne 'yes';
}
if (@wrong)
{
	print "\nFAILED: ", join('; ', @wrong), "\n";
	exit 1;
}
printf "\nfeed_fetch delivered each committed row once, in one order; the naive consumer lost %s.\n",
  n($result{naive}{lost});
exit 0;
