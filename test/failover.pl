# failover.pl MODE ...: what test/failover does, when feedpub is installed.
#
# All the time, against whatever server there is:
#
# - Writers insert into an outbox and change a table feed, and remember which
#   of their commits were acknowledged.
# - Consumers read the outbox, in published order and in xid order; some in
#   published order read a standby.
# - Consumers keep copies of the table feed, in pages of several sizes.  Some
#   are slow, so that what their pages see goes on changing; two read a standby;
#   one is late by some failovers.
# - A group of three reads the outbox by a subscription.  Its effects are rows,
#   in the transactions of its acknowledgements.
#
# In asynchronous mode the primary's last commits often reach no standby before
# it goes.  The synchronous mode is Patroni's strict one.
#
# After each failover, when all servers follow one primary again, the writers
# stop, and all consumers read to the end.  The truth is then what is in the
# tables:
#
# - A consumer of the outbox has each row once, in order, since it began.  It
#   began again if it was refused (PF001).  In xid order a failover that loses
#   something cannot be noticed; so there, as the documents say, an operator
#   sets the cursors back after a failover in asynchronous mode.
# - Each copy equals the table.
# - Each row has one effect, and each effect has its row.
# - In synchronous mode every acknowledged change is there.  If the primary was
#   not stopped, nothing that a primary delivered has been taken back, and none
#   of its consumers was refused.
#
# Then the outbox is purged, so neither this nor the tables grow.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/perl";
use FeedpubFailover;
use FeedpubPatroni;
use POSIX ();
use Storable ();
use Time::HiRes ();

my @modes = @ARGV;
my @kinds = qw(kill stop postmaster switchover);
my $dir = $ENV{DIR};
my $seed = $ENV{FEEDPUB_CHECKER_SEED} || 1;
my $late = 3;    # the late consumer is judged that often

my @outbox = (
	{ name => 'rows-7', by => 'read', max_rows => 7, from => 'read-write' },
	{ name => 'rows-300', by => 'read', max_rows => 300, from => 'read-write' },
	{ name => 'pages-40', by => 'page', max_rows => 40, from => 'read-write' },
	{ name => 'pages-40-standby', by => 'page', max_rows => 40, from => 'standby' },
	{ name => 'xid-10', by => 'fetch', max_rows => 10, from => 'read-write' },
	{ name => 'xid-200', by => 'fetch', max_rows => 200, from => 'read-write' });
my @kv = (
	(map { { name => "kv-$_", by => 'kv', max_rows => $_, from => 'read-write' } } 3, 30, 1000),
	(map { { name => "kv-$_->[0]-slow", by => 'kv', max_rows => $_->[0], from => 'read-write', pause => $_->[1] } }
		[ 5, 0.1 ], [ 10, 0.15 ], [ 30, 0.4 ], [ 100, 1.2 ]),
	(map { { name => "kv-$_-standby", by => 'kv', max_rows => $_, from => 'standby' } } 5, 50),
	{ name => 'kv-20-late', by => 'kv', max_rows => 20, from => 'read-write', pause => 1, every => $late });
my @writers = (
	(map { { name => "outbox-writer-$_", feed => 'outbox', method => 'writer' } } 1 .. 3),
	(map { { name => "kv-writer-$_", feed => 'kv', method => 'writer' } } 1 .. 3));
my @members = map { { name => "member-$_", method => 'member' } } 1 .. 3;
$_->{method} = 'consumer' for @outbox, @kv;

my $cluster = FeedpubPatroni->new(dir => $dir, bindir => $ENV{BINDIR});
my $load = FeedpubFailover->new(
	dir => $dir, seed => $seed, ports => [ @{ $cluster->{port} }{ @{ $cluster->{nodes} } } ]);
my (%client, %cell, %table_before, $primary);
my $problems = 0;
my $owner = $$;

srand($seed);
$| = 1;
$SIG{$_} = sub { exit 1 } for qw(INT TERM HUP);
END { finish() if $owner == $$; }

sub finish
{
	my $status = $?;

	phase('stop', 0) if -e "$dir/phase";
	for (1 .. 300)
	{
		last if !%client;
		kill 'KILL', keys %client if $_ == 150;
		waitpid($_, POSIX::WNOHANG()) && delete $client{$_} for keys %client;
		Time::HiRes::sleep(0.1) if %client;
	}
	$cluster->end if $cluster;
	$? = $status;
	return;
}

sub phase
{
	FeedpubPatroni::write_file("$dir/phase.new", join(' ', @_) . "\n");
	rename "$dir/phase.new", "$dir/phase" or die "phase: $!";
	return;
}

sub wait_until { return FeedpubPatroni::wait_until(@_) }

# Whatever a client did not expect, and any that has ended, ends the run.
# Patroni waits for a postmaster that has ended until its parent, which may be
# this process, has taken note.
sub check_clients
{
	$cluster->reap;
	for my $pid (keys %client)
	{
		die "$client{$pid} has ended\n" . errors() if waitpid($pid, POSIX::WNOHANG());
	}
	die errors() if -s "$dir/errors";
	return;
}

sub errors
{
	open my $fh, '<', "$dir/errors" or return '';
	local $/ = undef;
	return <$fh>;
}

sub reports
{
	my ($round, @clients) = @_;

	return map {
		my $file = "$dir/$_->{name}.$round";

		wait_until(120, "a report of $_->{name}", sub { check_clients(); -e $file });
		my $report = Storable::retrieve($file);
		unlink $file;
		$report;
	} @clients;
}

sub query
{
	my ($sql, @values) = @_;
	my $dbh = $cluster->connect($primary);

	$dbh->do(q(SET statement_timeout = '60 s'));
	my $rows = $dbh->selectall_arrayref($sql, undef, @values);
	$dbh->disconnect;
	return $rows;
}

sub wait_for_rows
{
	my ($n) = @_;
	my $count = sub { (eval { query('SELECT count(*) FROM outbox')->[0][0] }) // 0 };
	my $then = $count->();

	wait_until(60, 'writers that write', sub { check_clients(); $count->() >= $then + $n });
	return;
}

#
# A failover
#

# Returns the seconds until there was another primary.
sub fail_over
{
	my ($round, $mode, $kind) = @_;
	my $old = $primary;
	my ($standby) = grep { $_->{role} ne 'leader' && ($mode eq 'asynchronous' || $_->{role} eq 'sync_standby') }
	  sort { rand() <=> 0.5 } $cluster->members;

	if ($mode eq 'asynchronous' && $kind ne 'switchover' && rand() < 0.7)
	{
		$cluster->lag($old);
		Time::HiRes::sleep(0.005 + rand(rand() < 0.5 ? 0.05 : 0.5));
	}
	# often the table stays as it is then, so nothing heals a copy
	phase('rest', $round) if rand() < 0.75;
	my $begin = Time::HiRes::time();
	$cluster->kill_all($old) if $kind eq 'kill';
	$cluster->kill_postmaster($old) if $kind eq 'postmaster';
	$cluster->freeze($old) if $kind eq 'stop';
	$cluster->switch_over($old, $standby->{name}) if $kind eq 'switchover';

	$primary = wait_until(90, 'another primary', sub {
		my $leader = $cluster->leader // $old;

		check_clients();
		return $leader eq $old ? undef : $leader;
	});
	my $seconds = Time::HiRes::time() - $begin;

	wait_for_rows(20) if rand() < 0.5;
	$cluster->thaw($old, rand() < 0.5 ? 0 : rand 2) if $kind eq 'stop';
	$cluster->rejoin($old) if $kind eq 'kill';
	wait_until(120, 'a cluster of three', sub { check_clients(); $cluster->is_healthy($mode) });
	return $seconds;
}

#
# The judge
#

sub problem
{
	my ($cell, $column, $n, $text) = @_;

	return if !$n;
	$cell->{$column} += $n;
	$problems++;
	print "PROBLEM: $text: $n $column\n";
	return;
}

sub judge_outbox
{
	my ($cell, $strict, $truth, $consumer, $report, $order) = @_;
	my %there = map { $_ => 1 } @$truth;
	my (%told, %last);
	my ($doubled, $disorder) = (0, 0);

	for my $id (@{ $report->{told} })
	{
		my ($life, $n) = $id =~ /^(.*)\.(\d+)$/;

		$doubled++ if $told{$id}++;
		$disorder++ if ($last{$life} // 0) > $n;
		$last{$life} = $n;
	}
	my $name = $consumer->{name};
	problem($cell, 'lost', scalar(grep { !$told{$_} } @$truth), $name);
	problem($cell, 'doubled', $doubled, $name);
	problem($cell, 'disordered', $disorder, $name);
	problem($cell, 'invented', scalar(grep { !$there{$_} } keys %told), $name);
	# all have one order; that of the xids is known
	problem($cell, 'disordered', 1, "$name has another order")
	  if !$doubled && join(' ', @{ $report->{told} }) ne join(' ', @$order);
	problem($cell, 'expired', $report->{expired}, $name);
	problem($cell, 'went back', $report->{back}, $name);

	$cell->{consumers}++;
	for my $refused (@{ $report->{refused} })
	{
		my $taken = grep { !$there{$_} } @{ $refused->{told} };
		my $where = $consumer->{from} eq 'standby' ? 'taken standby' : 'taken';
		my $promised = $strict && $where eq 'taken';

		$cell->{ $refused->{set_back} ? 'set back' : 'refused' }++;
		$cell->{$where} += $taken;
		problem($cell, 'taken back', $taken, $name) if $promised;
		problem($cell, 'refused in synchronous mode', 1, $name) if $promised;
	}
	return;
}

sub table
{
	return map { @$_ } @{ query('SELECT k, v FROM kv') };
}

sub judge_kv
{
	my ($cell, $strict, $table, $log, $consumer, $report) = @_;
	my $copy = $report->{copy};
	my %keys = (%$table, %$copy);

	problem($cell, 'unequal', scalar(grep { ($table->{$_} // '') ne ($copy->{$_} // '') } keys %keys), $consumer->{name});
	problem($cell, 'expired', $report->{expired}, $consumer->{name});
	$cell->{copies}++;
	$cell->{pages} += $report->{pages};
	$cell->{back} += $report->{back};
	$cell->{$_} //= 0 for 'kv refused', 'needless', 'unequal';
	for my $refused (@{ $report->{refused} })
	{
		my $survived = 1;

		for (@{ $refused->{told} })
		{
			my ($xid, $k, $v) = @$_;

			$survived = 0 if !$log->{ defined $v ? "$k $v" : "$k delete $xid" };
		}
		$cell->{'kv refused'}++;
		$cell->{needless} += $survived;
		problem($cell, 'refused in synchronous mode', 1, $consumer->{name})
		  if $strict && $consumer->{from} ne 'standby';
	}
	return;
}

# The group's effects are in the database, so they are judged there.
sub judge_group
{
	my ($cell) = @_;

	eval {
		wait_until(60, 'an effect of each row', sub {
			check_clients();
			query('SELECT NOT EXISTS (SELECT FROM outbox WHERE data ->> $$id$$ NOT IN (SELECT id FROM effect))')->[0][0];
		});
	} or print $@;
	my ($lost, $doubled, $invented) = @{ query(<<'SQL')->[0] };
SELECT (SELECT count(*) FROM outbox WHERE data ->> 'id' NOT IN (SELECT id FROM effect)),
	(SELECT count(*) - count(DISTINCT id) FROM effect),
	(SELECT count(*) FROM effect WHERE id NOT IN (SELECT data ->> 'id' FROM outbox))
SQL
	problem($cell, 'lost', $lost, 'group');
	problem($cell, 'doubled', $doubled, 'group');
	problem($cell, 'invented', $invented, 'group');
	return;
}

sub forget
{
	my ($round) = @_;
	my $head = query('SELECT feed_head($$outbox$$)')->[0][0];

	# the members' cursors move past rows of other shards as they poll
	wait_until(30, 'a purge', sub {
		eval {
			query('CALL feed_purge($$outbox$$, ?)', $head);
			1;
		} or $@ =~ /has not acknowledged/ ? 0 : die $@;
	});
	wait_until(30, 'an empty outbox', sub { !query('SELECT count(*) FROM outbox')->[0][0] });
	query('WITH gone AS (DELETE FROM effect) SELECT');
	return if $round % $late != 0;
	query('WITH gone AS (DELETE FROM kv_log) SELECT');
	%table_before = table();
	return;
}

sub judge
{
	my ($round, $mode, $kind) = @_;
	my $cell = $cell{$mode}{$kind} //= {};
	my $lossy = $mode eq 'asynchronous' && $kind ne 'switchover';
	my $strict = $mode eq 'synchronous' && $kind ne 'stop';
	my @kv_now = grep { $round % ($_->{every} // 1) == 0 } @kv;
	my %before = %$cell;

	phase('quiet', $round);
	my @acknowledged = map { @$_ } reports($round, @writers);
	query("SELECT feed_flush('$_', '30 s')") for qw(outbox kv);
	phase('settle', $round, $lossy ? 1 : 0);
	my @outbox_reports = reports($round, @outbox);
	my @kv_reports = reports($round, @kv_now);

	my @truth = map { @$_ } @{ query(q(SELECT data ->> 'id' FROM outbox ORDER BY feed_xid, feed_pos)) };
	my %table = table();
	my %log;
	my %there = map { $_ => 1 } @truth;
	for (@{ query('SELECT id, xid, k, op FROM kv_log') })
	{
		my ($id, $xid, $k, $op) = @$_;

		$there{$id} = 1;
		$log{ $op eq 'upsert' ? "$k $id" : "$k delete $xid" } = 1;
	}
	$log{"$_ $table_before{$_}"} = 1 for keys %table_before;

	my $lost = grep { !$there{$_} } @acknowledged;
	$cell->{'changes lost'} += $lost;
	problem($cell, 'lost', $lost, 'acknowledged changes') if $mode eq 'synchronous';
	for my $i (0 .. $#outbox)
	{
		judge_outbox($cell, $strict, \@truth, $outbox[$i], $outbox_reports[$i],
			$outbox[$i]{by} eq 'fetch' ? \@truth : $outbox_reports[0]{told});
	}
	for my $i (0 .. $#kv_now)
	{
		# what happened to a late one may be of an earlier failover
		my $late = ($kv_now[$i]{every} // 1) > 1;

		judge_kv($late ? $cell{late} //= {} : $cell, $strict && !$late, \%table, \%log, $kv_now[$i], $kv_reports[$i]);
	}
	judge_group($cell);
	$cell->{failovers}++;
	$cell->{rows} += @truth;
	forget($round);

	return join ', ', @truth . ' rows',
	  map { ($cell->{$_} // 0) - ($before{$_} // 0) . " $_" }
	  ('changes lost', 'refused', 'taken', 'back', 'kv refused', 'needless');
}

sub report
{
	my @columns = (
		[ 'failovers' => 'failovers' ], [ 'new primary after, s' => 'seconds' ],
		[ 'acknowledged changes lost' => 'changes lost' ],
		[ 'consumers of the outbox' => 'consumers' ], [ 'refused' => 'refused' ],
		[ 'rows taken back' => 'taken' ], [ 'of a standby' => 'taken standby' ],
		[ 'copies' => 'copies' ], [ 'went back' => 'back' ], [ 'refused' => 'kv refused' ],
		[ 'needlessly' => 'needless' ], [ 'lost' => 'lost' ], [ 'doubled' => 'doubled' ],
		[ 'unequal' => 'unequal' ]);

	print "\n| mode | kind |", (map { " $_->[0] |" } @columns), "\n|---|---|", '---|' x @columns, "\n";
	my $print_row = sub {
		my ($mode, $kind, $cell) = @_;

		print "| $mode | $kind |", (map { ' ' . ($cell->{ $_->[1] } // '') . ' |' } @columns), "\n";
	};
	for my $mode (@modes)
	{
		for (grep { $cell{$mode}{$_} } @kinds)
		{
			my $cell = $cell{$mode}{$_};

			$cell->{ $_->[1] } //= 0 for @columns;
			$print_row->($mode, $_, $cell);
		}
	}
	$print_row->('any', 'late consumer', $cell{late}) if $cell{late};
	my $rejoined = $cluster->rejoined;
	my %sum = map { $_ => 0 } qw(rows pages), 'set back';
	for my $cell ((map { values %{ $cell{$_} // {} } } @modes), $cell{late} // {})
	{
		$sum{$_} += $cell->{$_} // 0 for keys %sum;
	}
	print "\n$sum{rows} rows of the outbox, $sum{pages} pages of kv; cursors in xid order set back by hand: $sum{'set back'}\n",
	  "pg_rewind: $rejoined->{rewound}, failed: $rejoined->{rewind_failed}; base backups: $rejoined->{copied}\n",
	  $problems ? "$problems problems\n" : "nothing lost, doubled or unequal\n";
	return;
}

my $ok = eval {
	$cluster->start;
	$primary = $cluster->leader;
	my $dbh = $cluster->connect($primary);
	$dbh->do(FeedpubFailover::schema());
	$dbh->disconnect;
	%table_before = table();
	phase('load', 1);
	for (@writers, @outbox, @kv, @members)
	{
		$client{ my $pid = $load->spawn($_) } = $_->{name};
		push @{ $cluster->{clients} }, $pid;
	}
	my $mode = '';
	for my $round (1 .. $ENV{FAILOVERS})
	{
		my $kind = $kinds[ ($round - 1) % @kinds ];
		my $wanted = $modes[ int(($round - 1) / @kinds) % @modes ];
		my $begin = Time::HiRes::time();

		phase('load', $round);
		$cluster->set_mode($mode = $wanted) if $mode ne $wanted;
		wait_for_rows(150);
		Time::HiRes::sleep(rand 1);
		my $old = $primary;
		my $seconds = fail_over($round, $mode, $kind);
		wait_for_rows(100);
		my $line = judge($round, $mode, $kind);
		my $cell = $cell{$mode}{$kind};
		$cell->{seconds} = sprintf '%.0f', $seconds if $seconds > ($cell->{seconds} // 0);
		printf "%d %s %s: %s to %s in %.0f s, all in %.0f s: %s\n",
		  $round, $mode, $kind, $old, $primary, $seconds, Time::HiRes::time() - $begin, $line;
	}
	1;
};
if (!$ok)
{
	chomp(my $error = $@);

	problem({}, 'that ended the run', 1, $error);
	print eval { $cluster->diagnosis } // $@;
}
report();
exit($problems ? 1 : 0);
