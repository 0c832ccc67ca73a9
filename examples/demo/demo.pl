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
#                      one writer now and then leaves a transaction open; each
#                      ends with a change of a section of the catalogue, made
#                      under a lock and numbered, and a message about that
#   consumers A and B  follow in published order
#   consumers C and D  follow in xid order; B and D are killed and started again
#   a naive consumer   follows with "feed_pos > the last one that I saw"
#   a long transaction in another database of the server, which has nothing to
#                      do with the outbox
#
# A consumer keeps its cursor where it keeps its work, in a journal outside
# the database: for each page what arrived when, closed by the cursor.  The
# writers keep accounts too, of what they committed and what they rolled
# back.  In the end the journals are held against the accounts.  Exits with 1
# when a feedpub consumer lost, repeated or reordered anything.
use strict;
use warnings;

use FindBin;
use lib $FindBin::Bin;
use Demo;
use List::Util qw(max min);
use Time::HiRes qw(sleep time);

my $WRITERS = 6;
my $PAGE = 200;                    # rows in a page
my $PAUSE = 0.005;                 # of a consumer that nobody wakes
my $RECORDS = 60_000;              # of the catalogue, at most
my $PACED = 0.75;                  # of the records are published at a set pace,
my $DURATION = 20;                 # in so many seconds; the rest at full speed
my $KILL = 3;                      # when consumers are killed,
my $RESTART = 5;                   # and started again
my $LONG = 8;                      # when the long transaction begins,
my $OPEN = 8;                      # and how long it stays open
my $PATIENCE = 30;                 # seconds for consumers to reach the end

# The orders: the beginning, a page after a cursor, and which of two cursors
# comes first.  A query's first three columns are message_id, feed_xid and the
# cursor to go on from.
my %order = (
	published => {
		beginning => '',
		page => q(SELECT (entry).message_id, (entry).feed_xid, cursor,
				(entry).message_type, (entry).message_key, (entry).data
			FROM feed_read(NULL::outbox, ?, ?)),
		is_before => sub { $_[0] lt $_[1] }
	},
	xid => {
		beginning => '0 0',
		page => q(SELECT message_id, feed_xid, feed_xid || ' ' || feed_pos,
				message_type, message_key, data
			FROM feed_fetch(?, ?, ?)),
		is_before => sub {
			my ($xid1, $pos1, $xid2, $pos2) = map { split ' ' } @_;
			return $xid1 < $xid2 || $xid1 == $xid2 && $pos1 < $pos2;
		}
	},
	naive => {
		beginning => '0',
		page => q(SELECT message_id, feed_xid, feed_pos,
				message_type, message_key, data
			FROM outbox WHERE feed_pos > ? ORDER BY feed_pos LIMIT ?),
		is_before => sub { $_[0] < $_[1] }
	});
my %consumer = (
	A => 'published',
	B => 'published',
	C => 'xid',
	D => 'xid',
	naive => 'naive');
my @killed = qw(B D);

my ($dir, $catalogue) = @ARGV;
die "usage: demo.pl DIRECTORY CATALOGUE\n" unless $catalogue;

work_in($dir);

#
# The catalogue
#

sub read_catalogue
{
	local $/ = '';
	open my $file, '<', $catalogue or die "could not open $catalogue: $!\n";
	my @stanzas = grep { /^Package: / } <$file>;
	splice @stanzas, $RECORDS if @stanzas > $RECORDS;
	return @stanzas;
}

# The name of the package, its fields as JSON, and its section.
sub message_of
{
	my ($field, $json) = record_of(@_);
	return ($field->{Package}, $json, $field->{Section} // 'none');
}

#
# A writer: publishes its share of the catalogue, in transactions whose sizes
# and fates are drawn by lot (the same lots in each run)
#

sub run_writer
{
	my ($number, $begin, @stanzas) = @_;
	my $name = "writer $number";
	my $dbh = connect_as($name);
	my $accounts = append_to("accounts $number");
	my $total = @stanzas;
	my $published = 0;
	my $last_slow = $begin;
	my $is_hurried = 0;
	my @attempts = (0) x $total;
	my $changes = 0;

	my $insert = $dbh->prepare(
		q(INSERT INTO outbox (message_id, message_type, message_key, data)
		  VALUES (?, 'PackagePublished', ?, ?)));
	my $change = $dbh->prepare(
		q(INSERT INTO section (name, version) VALUES (?, 1)
		  ON CONFLICT (name) DO UPDATE SET version = section.version + 1
		  RETURNING version));
	my $insert_change = $dbh->prepare(
		q(INSERT INTO outbox (message_id, message_type, message_key, data)
		  VALUES (?, 'SectionChanged', ?, jsonb_build_object('version', ?::int))));

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

	# Changes a section, which locks its row until the commit, then writes the
	# message about it, and returns its id.
	my $change_section = sub {
		my ($section) = @_;
		my $id = join '.', $number, 'section', ++$changes;
		$change->execute($section);
		my ($version) = $change->fetchrow_array;
		$change->finish;
		$insert_change->execute($id, $section, $version);
		return $id;
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
		sleep $hold if $is_slow;
		push @ids, $change_section->($message{ $mine[-1] }[2]);
		my $kept = $is_slow || !$rolls_back;
		$kept ? $dbh->commit : $dbh->rollback;
		if ($is_slow)
		{
			$last_slow = time;
			write_all($accounts, "slow $since $last_slow\n");
		}

		push @undone, splice @ids unless $kept;
		my $account = '';
		$account .= join(' ', 'committed', @ids) . "\n" if @ids;
		$account .= join(' ', 'undone', @undone) . "\n" if @undone;
		$account .= "savepoint\n" if $has_savepoint;
		$account .= "rollback\n" unless $kept;
		write_all($accounts, $account);
		if ($kept)
		{
			$published += @mine;
			report('committed', scalar @ids);
		}
	}
	$dbh->disconnect;
}

# A transaction that stays open, in a database without any feed.
sub run_long_transaction
{
	my $dbh = connect_as('long transaction', 'elsewhere');
	$dbh->do('CREATE TABLE work ()');
	my $since = time;
	$dbh->begin_work;
	$dbh->do('INSERT INTO work DEFAULT VALUES');
	sleep $OPEN;
	$dbh->commit;
	write_all(append_to('accounts long'), "long $since " . time . "\n");
}

#
# The consumers: all keep a journal, which ends with the cursor
#

# What is in a journal after its last cursor is of a page that a kill left
# unfinished.  Returns the cursor, and where in the file it ends.
sub last_cursor
{
	my ($name) = @_;
	my ($cursor, $end) = ($order{ $consumer{$name} }{beginning}, 0);

	open my $file, '<', "$dir/journal $name" or return ($cursor, $end);
	while (my $line = <$file>)
	{
		next unless $line =~ /^cursor (.+)\n/;
		$cursor = $1;
		$end = tell $file;
	}
	return ($cursor, $end);
}

sub run_consumer
{
	my ($name) = @_;
	my $dbh = connect_as("consumer $name");
	my $page = $dbh->prepare($order{ $consumer{$name} }{page});
	my $journal = append_to("journal $name");
	my ($cursor, $end) = last_cursor($name);
	my ($goal, $deadline);

	truncate $journal, $end or die "could not truncate: $!\n";
	while (1)
	{
		# the cursor after the last row of all, once the writers are done
		if (!$goal && -e "$dir/goal $name")
		{
			($goal) = lines_of("goal $name");
			$deadline = time + $PATIENCE;
		}

		$page->execute($cursor eq '' ? '' : split(' ', $cursor), $PAGE);
		my $rows = $page->fetchall_arrayref;
		my $now = time;
		if (!@$rows)
		{
			last if $goal && ($cursor eq $goal || time > $deadline);
			if ($consumer{$name} eq 'published')
			{
				$dbh->do(q(CALL feed_await('outbox', ?, '1 s')), {}, $cursor);
			}
			else
			{
				sleep $PAUSE;
			}
			next;
		}

		# A real consumer would now do something with data.  (A page in
		# published order may end with a line that has a cursor and no message.)
		$cursor = $rows->[-1][2];
		my @messages = grep { defined $_->[0] } @$rows;
		write_all($journal,
			join('', map { "$_->[0] $_->[1] $now $_->[2]\n" } @messages)
			  . "cursor $cursor\n");
		report($name, scalar @messages);
	}
	$dbh->disconnect;
}

#
# The stage manager
#

my %count = map { $_ => 0 } 'committed', keys %consumer;
my $begin;
my %is_down;
my $long_since;

sub show_progress
{
	my ($is_last) = @_;
	my $counts = sprintf '%10s%11s%8s%11s%8s%10s',
	  map { $is_down{$_} ? 'killed' : n($count{$_}) }
	  qw(committed A B C D naive);
	show_line($begin, $counts,
		$long_since ? sprintf('   open %.1f s', time - $long_since) : '',
		$is_last);
}

sub listen_to_children
{
	hear_children(\%count);
	show_progress();
}

sub listen_until
{
	my ($moment) = @_;
	listen_to_children() while time < $begin + $moment && running('writer');
}

my $dbh = connect_as('demo');
$dbh->do('CREATE DATABASE elsewhere');
$dbh->do('CREATE EXTENSION feedpub');
$dbh->do(q(SELECT feed_create('outbox')));
$dbh->do('CREATE TABLE section (name text PRIMARY KEY, version int NOT NULL)');
# without an index of its own the naive consumer would only lag
$dbh->do('CREATE INDEX ON outbox (feed_pos)');

my %pid = map { $_ => start("consumer $_", \&run_consumer, $_) }
  sort keys %consumer;

my @stanzas = read_catalogue();
die "the catalogue is empty\n" unless @stanzas;
my @share;
push @{ $share[ $_ % $WRITERS ] }, $stanzas[$_] for 0 .. $#stanzas;
print "\n$WRITERS writers publish ", n(scalar @stanzas),
  " packages.  A and B read in published order, C and D in\n",
  "xid order; a naive consumer asks for what lies after the largest position it\n",
  "saw.  Rows delivered so far:\n\n",
  "                      published order          xid order     naive   long\n",
  "    time committed          A       B          C       D            transaction\n";
$begin = time + 0.5;
start("writer $_", \&run_writer, $_, $begin, @{ $share[ $_ - 1 ] })
  for 1 .. $WRITERS;
@stanzas = @share = ();

listen_until($KILL);
for (@killed)
{
	kill 'KILL', $pid{$_};
	waitpid $pid{$_}, 0;
	delete $child{ $pid{$_} };
	$is_down{$_} = 1;
}
note($begin, 'consumers '
	  . join(' and ', @killed)
	  . ' are killed; their journals end with the cursors');
print ' ' x 9, "$_  ", (last_cursor($_))[0], "\n" for @killed;

listen_until($RESTART);
note($begin, 'they are started again, from there');
%is_down = ();
# what it had stored, but not told, when it was killed
$count{$_} = grep { !/^cursor/ } lines_of("journal $_") for @killed;
start("consumer $_", \&run_consumer, $_) for @killed;

listen_until($LONG);
note($begin, 'in another database of the server, a transaction begins and stays open');
$long_since = time;
start('long transaction', \&run_long_transaction);
listen_to_children() while running('long');
$long_since = undef;
note($begin, 'it ends');

listen_to_children() while running('writer');
my $took = time - $begin;

# All is committed: when the consumers have reached the last row they end.
$dbh->do('CALL feed_publish()');
my %goal = (
	published => q(SELECT feed_head('outbox')),
	xid => q(SELECT feed_xid || ' ' || feed_pos FROM outbox
		ORDER BY feed_xid DESC, feed_pos DESC LIMIT 1),
	naive => 'SELECT max(feed_pos) FROM outbox');
for (keys %consumer)
{
	write_all(append_to('goal.new'),
		$dbh->selectrow_array($goal{ $consumer{$_} }) . "\n");
	rename "$dir/goal.new", "$dir/goal $_" or die "could not rename: $!\n";
}
listen_to_children() while %child;
show_progress(1);
clear_line();

#
# The reckoning
#

my (%committed, %undone, @slow, @long, $transactions, $rollbacks, $savepoints);
$rollbacks = $savepoints = $transactions = 0;
my $biggest = 0;
my $hurried = $begin + $took;
for (map { lines_of("accounts $_") } 1 .. $WRITERS, 'long')
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
	elsif ($what eq 'long') { @long = @rest }
	elsif ($what eq 'hurried') { $hurried = min($hurried, $rest[0]) }
	elsif ($what eq 'rollback') { $rollbacks++ }
	elsif ($what eq 'savepoint') { $savepoints++ }
}

# When each transaction committed, says the server (track_commit_timestamp).
my %commit_time = map { @$_ } @{
	$dbh->selectall_arrayref(
		q(SELECT feed_xid, extract(epoch FROM pg_xact_commit_timestamp(feed_xid::xid))
		  FROM (SELECT DISTINCT feed_xid FROM outbox) x))
};

# message_id => section and number of the change
my %change = map { $_->[0] => [ @$_[ 1, 2 ] ] } @{
	$dbh->selectall_arrayref(
		q(SELECT message_id, message_key, data ->> 'version' FROM outbox
		  WHERE message_type = 'SectionChanged'))
};

# How long a row took is counted in three classes: committed while a slow
# transaction or the long one was open, at full speed, and the others.
sub class_of
{
	my ($at) = @_;
	return (grep { $at >= $_->[0] && $at <= $_->[1] } @slow, \@long) ? 'slow'
	  : $at >= $hurried ? 'hurried'
	  : 'paced';
}

my (%result, %latency, %sequence, %while_long, @missing);
for my $name (sort keys %consumer)
{
	my $order = $order{ $consumer{$name} };
	my $last = $order->{beginning};
	my (%seen, %version, @sequence);
	my %r = (delivered => 0, twice => 0, undone => 0, reversed => 0, in_order => 1);
	$while_long{$name} = 0;
	for (lines_of("journal $name"))
	{
		next if /^cursor/;
		my ($id, $xid, $time, $cursor) = split ' ', $_, 4;
		push @sequence, $id;
		$r{delivered}++;
		$r{twice}++ if $seen{$id}++;
		$r{undone}++ unless $committed{$id};
		$r{in_order} &&= $order->{is_before}->($last, $cursor);
		$last = $cursor;
		if ($change{$id})
		{
			my ($section, $version) = @{ $change{$id} };
			$r{reversed}++ if $version < ($version{$section} // 0);
			$version{$section} = max($version, $version{$section} // 0);
		}
		$while_long{$name}++ if $time > $long[0] && $time < $long[1];
		my $at = $commit_time{$xid} // next;
		push @{ $latency{$name}{ class_of($at) } }, $time - $at;
	}
	my @lost = grep { !$seen{$_} } sort keys %committed;
	$r{lost} = @lost;
	@missing = @lost if $name eq 'naive';

	# all consumers of an order see the same one
	my $first = $sequence{ $consumer{$name} } //= "@sequence";
	$r{in_order} &&= $first eq "@sequence";
	$result{$name} = \%r;
}

my ($in_table) = $dbh->selectrow_array('SELECT count(*) FROM outbox');
my $committed = keys %committed;
my $fast = grep { $commit_time{ $_->[0] } >= $hurried } @{
	$dbh->selectall_arrayref('SELECT feed_xid FROM outbox')
};
printf "\nCommitted  %s rows in %.1f s: %s at a set pace, %s at full speed\n",
  n($committed), $took, n($committed - $fast), n($fast);
printf "           (%s rows/s), in %s transactions of 1 to %s rows.  Rolled back:\n",
  n($fast / max(0.001, $begin + $took - $hurried)), n($transactions), n($biggest);
printf "           %s transactions and %s savepoints.  Kept open: %s for %.1f to %.1f s,\n",
  n($rollbacks), n($savepoints), scalar @slow, @slow
  ? (min(map { $_->[1] - $_->[0] } @slow), max(map { $_->[1] - $_->[0] } @slow))
  : (0, 0);
printf "           and one in another database for %.1f s.\n\n", $long[1] - $long[0];

printf "%-24s%10s%7s%6s%13s%10s%10s\n", '', 'delivered', 'lost', 'twice',
  'rolled back', 'in order', 'reversed';
for (
	[ 'A', 'A  published order' ],
	[ 'B', 'B  the same, killed once' ],
	[ 'C', 'C  xid order' ],
	[ 'D', 'D  the same, killed once' ],
	[ 'naive', 'naive' ])
{
	my ($name, $label) = @$_;
	my $r = $result{$name};
	printf "%-24s%10s%7s%6s%13s%10s%10s\n", $label,
	  map({ n($r->{$_}) } qw(delivered lost twice undone)),
	  $name eq 'naive' ? ('-', '-')
	  : ($r->{in_order} ? 'yes' : 'NO', n($r->{reversed}));
}
print "\nReversed: changes of a section of the catalogue that came after a later change\n",
  "of it.  xid order is that in which transactions began to write.\n";

print "\nFrom commit, by the server's own account, to delivery\n";
printf "%-25s%10s%22s%22s\n", '', '', 'published order (A)', 'xid order (C)';
printf "%-25s%10s%13s%9s%13s%9s\n", '', 'rows', 'p50', 'p99', 'p50', 'p99';
for (
	[ 'paced', 'no slow transaction open' ],
	[ 'slow', 'beside a slow or long one' ],
	[ 'hurried', 'at full speed' ])
{
	my ($class, $what) = @$_;
	my @a = sort { $a <=> $b } @{ $latency{A}{$class} || [] };
	my @c = sort { $a <=> $b } @{ $latency{C}{$class} || [] };
	printf "%-25s%10s%13s%9s%13s%9s\n", $what, n(scalar @a),
	  map { ms($_) } map { percentile(50, @$_), percentile(99, @$_) } \@a, \@c;
}
printf "While the long transaction was open, A got %s rows, C %s.  In xid order a row\n",
  n($while_long{A}), n($while_long{C});
print "waits for every older transaction of the server.\n";

# Fresh readers, to see what reading alone can do.
my @speed;
for my $order (@order{ 'published', 'xid' })
{
	my $page = $dbh->prepare($order->{page});
	my $cursor = $order->{beginning};
	my $start = time;
	while ($page->execute($cursor eq '' ? '' : split(' ', $cursor), 1000) > 0)
	{
		$cursor = $page->fetchall_arrayref->[-1][2];
	}
	push @speed, n($in_table / (time - $start));
}
printf "Reading all rows again, in pages of 1,000: %s rows/s; in xid order %s.\n", @speed;

my @sample = map { $_->[0] } @{
	$dbh->selectall_arrayref(
		q(SELECT (entry).message_id FROM feed_read(NULL::outbox, '', 3)))
};
for ([ 'The first messages', @sample ],
	[ 'Some that the naive consumer never saw: smaller positions, committed later',
		@missing ? @missing[ 0, $#missing / 2, $#missing ] : () ])
{
	my ($title, @ids) = @$_;
	print "\n$title\n" if @ids;
	for my $id (@ids)
	{
		my @row = $dbh->selectrow_array(
			q(SELECT feed_pos, message_type, message_key,
				coalesce(data ->> 'Version', 'version ' || (data ->> 'version')),
				coalesce(data ->> 'Description', '')
			  FROM outbox WHERE message_id = ?), {}, $id);
		printf "  %7s  %-16s  %.50s\n", n($row[0]), $row[1],
		  join ' ', map { (split /\n/)[0] // () } @row[ 2 .. 4 ];
	}
}

my @wrong;
push @wrong, "the table has $in_table rows" if $in_table != $committed;
for my $name (qw(A B C D))
{
	my $r = $result{$name};
	push @wrong, "consumer $name is not right"
	  if $r->{lost} || $r->{twice} || $r->{undone} || !$r->{in_order}
	  || $consumer{$name} eq 'published' && $r->{reversed};
}
if (@wrong)
{
	print "\nFAILED: ", join('; ', @wrong), "\n";
	exit 1;
}
printf "\nA, B, C and D got each committed row once, in order.  The naive one lost %s.\n",
  n($result{naive}{lost});
exit 0;
