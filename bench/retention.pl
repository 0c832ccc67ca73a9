# retention.pl: the part of bench/run that measures retention.  Loaded by
# measure.pl, whose tools and those of published.pl it uses.

use strict;
use warnings;
use POSIX qw(ceil);
use Time::HiRes qw(sleep time);

my $work = $ENV{WORK};
my $rounds = $ENV{ROUNDS};
my $rate = $ENV{RATE};
my $length = $ENV{MINUTES} * 60;
my $payload = 'publication_id, message_id, message_type, message_key, data';

chomp(my $cpus = `nproc`);
my @pin = $cpus > 1 ? ('-c', $cpus - 1) : ();

# Messages in a transaction of the schedule.
my $many = 10;

# Run SQL in a session of its own, at the same time.  Its end is waited for.
sub background
{
	my ($database, @sql) = @_;
	my $pid = fork() // die "fork: $!\n";
	return $pid if $pid;
	open STDOUT, '>', '/dev/null';
	open STDERR, '>>', "$work/background.log";
	exec 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-d', $database, map { ('-c', $_) } @sql;
	die "psql: $!\n";
}

# The same, a CALL again and again, each for two seconds at most: a session
# counts for autovacuum between two statements only.
my $nfiles = 0;

sub again_and_again
{
	my ($database, $call) = @_;
	my $file = write_spec('again' . ++$nfiles . '.sql',
		"SELECT \$\$CALL $call\$\$ FROM generate_series(1, " . ceil($length + 60) . ') \\gexec');
	return background($database, "\\i $file");
}

sub consumer
{
	my ($database, $name) = @_;
	return again_and_again($database, ($database eq 'queued' ? 'consume_queue' : 'consume') . "('$name')");
}

sub ended
{
	my ($what, @pids) = @_;
	for (@pids)
	{
		waitpid $_, 0;
		die "$what failed: see $work/background.log\n" if $?;
	}
	return;
}

# Add up the CPU of the server's processes by their titles, many times a second,
# since those of retention and autovacuum run for a short time.  Returns a
# function that ends this and returns the sums.
sub watch_cpu
{
	open my $in, '<', "$work/data/postmaster.pid" or die "postmaster.pid: $!\n";
	chomp(my $postmaster = <$in>);
	close $in;
	my $pid = open(my $sums, '-|') // die "fork: $!\n";
	if (!$pid)
	{
		my (%cpu, %title);
		my $stop = 0;
		local $SIG{TERM} = sub { $stop = 1 };
		while (!$stop && getppid() != 1)
		{
			open my $children, '<', "/proc/$postmaster/task/$postmaster/children" or last;
			for my $child (split ' ', <$children> // '')
			{
				open my $cmdline, '<', "/proc/$child/cmdline" or next;
				next unless (<$cmdline> // '') =~ /^postgres: (feedpub \w+|autovacuum worker \w+)/;
				$title{$child} = $1;
				$cpu{$child} = cpu($child) || $cpu{$child};
			}
			sleep 0.01;
		}
		my %sum;
		$sum{ $title{$_} } += $cpu{$_} // 0 for keys %title;
		print map { "$_=$sum{$_}\n" } keys %sum;
		close STDOUT;
		POSIX::_exit(0);
	}
	return sub {
		kill 'TERM', $pid;
		my %sum = map { chomp; split /=/ } <$sums>;
		close $sums;
		return \%sum;
	};
}

sub retention_database
{
	my ($name) = @_;
	psql('postgres', "DROP DATABASE IF EXISTS $name WITH (FORCE)");
	make_database($name);
	psql_file($name, "$work/tree/bench/retention.sql");
	psql($name, "ALTER DATABASE $name SET synchronous_commit = off",
		"ALTER DATABASE $name SET feedpub.publish_synchronous_commit = off");
	return;
}

# Sizes: table, index, rows written, rows after the floor, _batch with its
# index, _floor, _job.
sub sample
{
	my ($database) = @_;
	return psql($database, $database eq 'queued'
		? q(SELECT sum(pg_relation_size(c.oid)), sum(pg_indexes_size(c.oid)), 0, 0, 0, 0, 0, 0
			FROM pg_class c WHERE relnamespace = 'pgq'::regnamespace AND relname ~ '^event_\d+_\d+$')
		: q(SELECT pg_relation_size('feedpub'), pg_relation_size('feedpub_pkey'), last_value,
			last_value - COALESCE((SELECT max(pos) FROM feedpub._floor WHERE feed = 'feedpub'::regclass), 0),
			(SELECT count(*) FROM feedpub._batch WHERE feed = 'feedpub'::regclass),
			pg_table_size('feedpub._batch'), pg_indexes_size('feedpub._batch'),
			pg_total_relation_size('feedpub._floor') + pg_total_relation_size('feedpub._job')
			FROM feedpub_feed_pos_seq)) =~ s/\|/,/gr;
}

# All variants at once, each in its database, all driven by one client.
sub schedule
{
	my ($round, $sizes, $writers, $processes) = @_;
	my @variants = ('kept', 'retained');
	my @consumers = qw(one two three);
	my $second = $length / 600;	# of the schedule, whose times are for ten minutes
	my $text = psql('postgres', q(SELECT '"' || repeat('x', 331) || '"'));
	my (%worker, @background);

	restart_with(autovacuum => 'on', autovacuum_naptime => ceil(10 * $second) . 's',
		checkpoint_timeout => ceil($second < 0.1 ? 30 : 300 * $second) . 's',
		'feedpub.naptime' => ceil(1000 * $second) . 'ms');
	retention_database('queued');
	push @variants, grep { $_ eq 'pgq' } wanted(optional_variants('queued'));
	for (@variants) { $_ = 'queued' if $_ eq 'pgq' }
	for my $database (@variants)
	{
		if ($database eq 'queued')
		{
			psql($database, q(SELECT pgq.create_queue('bench')),
				sprintf(q(SELECT pgq.set_queue_config('bench', 'rotation_period', '%d s')), ceil($length / 10)),
				map { "SELECT pgq.register_consumer('bench', '$_')" } @consumers);
			push @background, again_and_again($database, 'tick()');
			next;
		}
		retention_database($database);
		$worker{$database} = worker($database);
		psql($database, map { "SELECT feed_subscribe('$_', 'feedpub', 'earliest')" } @consumers);
		psql($database, sprintf(q(SELECT feed_retain('feedpub', '%d ms')), 60000 * $second)) if $database eq 'retained';
	}
	my %one = (queued => q(SELECT pgq.insert_event('bench', 'OrderPlaced', $1, 'orders', $2::text || i, 'customer-' || i, NULL)));
	my @spec = map {
		join "\t", $_, $_, 'write', "$text;?", '',
		  ($one{$_} // "INSERT INTO feedpub ($payload) SELECT 'orders', \$2::text || i, 'OrderPlaced', 'customer-' || i, \$1::jsonb")
		  . " FROM generate_series(1, $many) i"
	} @variants;
	my %cpu = map { $_ => cpu($worker{$_}) } keys %worker;
	my $cpu = watch_cpu();
	my $begun = time;
	my $client = fork() // die "fork: $!\n";
	if (!$client)
	{
		client($writers, [$round], \@spec, '-C', 4, '-n', 5, '-r', $rate / $many,
			'-t', ceil($length * $rate / $many / 20));
		POSIX::_exit(0);
	}

	# what happens, in seconds of ten minutes; the last consumer is away for
	# three of them, and a transaction is open for three
	my @events = (
		[ 0, sub { push @background, map { my $d = $_; map { consumer($d, $_) } @consumers } @variants } ],
		[ 90, sub { psql($_, q(INSERT INTO stopped VALUES ('three'))) for @variants } ],
		[ 270, sub { psql($_, 'DELETE FROM stopped') for @variants;
				push @background, map { consumer($_, 'three') } @variants } ],
		[ 390, sub { push @background, map {
					background($_, 'BEGIN', 'SELECT pg_current_xact_id()', sprintf('SELECT pg_sleep(%f)', 180 * $second)) } @variants } ],
		map { [ 10 * $_, undef ] } 1 .. 60);
	my $all = 0;
	for my $event (sort { $a->[0] <=> $b->[0] } @events)
	{
		my ($at, $do) = @$event;
		my $wait = $begun + $at * $second - time;
		sleep $wait if $wait > 0;
		$do->() if $do;
		next if $do;
		printf $sizes "%d,%.0f,%s,%s\n", $round, (time - $begun) / $second, $_, sample($_) for @variants;
	}
	waitpid $client, 0;
	die "client failed\n" if $?;
	my $took = time - $begun;
	my $sums = $cpu->();
	printf $processes "%d,%s,%.1f,%.3f,%.3f,%.3f\n", $round, $_, $took,
	  $worker{$_} ? cpu($worker{$_}) - $cpu{$_} : 0, $_ eq 'retained' ? $sums->{'feedpub job'} // 0 : 0,
	  $sums->{"autovacuum worker $_"} // 0
	  for @variants;
	psql($_, q(INSERT INTO stopped VALUES ('one'), ('two'), ('three'), ('ticker'))) for @variants;
	ended('a consumer', @background);
	psql('postgres', map { "DROP DATABASE $_ WITH (FORCE)" } @variants);
	restart_with();
	return;
}

# WAL of 200,000 messages that are written, removed, vacuumed, and of others
# that then take their space.
sub retention_wal
{
	my ($round, $out) = @_;
	my $n = 200_000;

	retention_database('wal');
	stop_worker('wal');
	for my $checkpoint (qw(no yes))
	{
		my @lsn;
		my $feed = "checkpoint_$checkpoint";
		my $note = sub { push @lsn, psql('wal', q(SELECT pg_current_wal_insert_lsn() - '0/0')) };
		psql('wal', "SELECT feed_create('$feed')", 'CHECKPOINT');
		for my $step ("CALL load('$feed', $n, $many, 1000)", "CALL feed_purge('$feed', feed_head('$feed'))",
			"VACUUM $feed", "CALL load('$feed', $n, $many, 1000)")
		{
			psql('wal', 'CHECKPOINT') if $checkpoint eq 'yes' && $step !~ /VACUUM/;
			$note->();
			psql('wal', $step);
			$note->();
		}
		print $out join(',', $round, $checkpoint, map { sprintf '%.1f', ($lsn[ 2 * $_ + 1 ] - $lsn[ 2 * $_ ]) / $n } 0 .. 3), "\n";
	}
	return;
}

# A million rows are removed as fast as it goes.
sub removal
{
	my ($round, $out) = @_;
	my $n = 1_000_000;

	psql('postgres', 'ALTER SYSTEM SET feedpub.removal_rate = 0', 'SELECT pg_reload_conf()');
	retention_database('removal');
	psql('removal', "CALL load('feedpub', $n, 100, 10000)");
	worker('removal');
	wait_for_published('removal', 'feedpub');
	my $cpu = watch_cpu();
	psql('removal', q(SELECT feed_retain('feedpub', '0')));
	wait_for('removal', 'SELECT count(*) > 0 FROM feedpub._job');
	my $begun = time;
	wait_for('removal', "SELECT rows >= $n FROM feedpub._job");
	printf $out "%d,%d,%.3f,%.3f\n", $round, $n, time - $begun, $cpu->()->{'feedpub job'} // 0;
	psql('postgres', 'ALTER SYSTEM RESET feedpub.removal_rate', 'SELECT pg_reload_conf()', 'DROP DATABASE removal WITH (FORCE)');
	return;
}

# Two feeds with the same rows; of one of them a million others were removed
# before.  VACUUM is held back by a transaction with an id, which holds back xid
# order too; then by a snapshot only; then by nothing, and has run.
sub retention_readers
{
	my ($round, $out) = @_;
	my $n = 100_000;

	retention_database('readers');
	stop_worker('readers');
	my %open = (
		xid => background('readers', 'BEGIN', 'SELECT pg_current_xact_id()', q(SELECT pg_sleep(86400) AS xid)),
		snapshot => background('readers', q(SELECT pg_sleep(86400) AS snapshot)));
	wait_for('readers', 'SELECT count(*) = 2 FROM pg_stat_activity WHERE datname = current_database() AND query ~ ' . q('^SELECT pg_sleep'));
	psql('readers', map { "SELECT feed_create('$_')" } qw(clean removed));
	psql('readers', q(CALL load('removed', 1000000, 100, 10000)), q(CALL feed_purge('removed', feed_head('removed'))),
		map { ("CALL load('$_', $n, $many, 1000)", "SELECT feed_subscribe('$_', '$_', 'earliest')") } qw(clean removed));
	for my $held (qw(xid snapshot nothing))
	{
		if (my ($end) = $held eq 'snapshot' ? 'xid' : $held eq 'nothing' ? 'snapshot' : ())
		{
			psql('readers', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query ~ '^SELECT pg_sleep.* AS $end' AND datname = current_database()");
			waitpid $open{$end}, 0;
			psql('readers', 'VACUUM ANALYZE') if $held eq 'nothing';
		}
		my %at = map { my $feed = $_; $feed => { beginning => q(''), end => psql('readers', "SELECT feed_head('$feed')"),
				middle => psql('readers', "SELECT cursor FROM feed_read(NULL::$feed, '', 10000) OFFSET 9999") } } qw(clean removed);
		my %first = map { $_ => psql('readers', "SELECT min(feed_xid::text::bigint) - 1 FROM $_") } qw(clean removed);
		my %cells = (
			(map { my $at = $_; ("page, $at" => [ 'json', sub { $at{ $_[0] }{$at} }, q(SELECT feed_page('%s', $1, 100)) ]) } qw(beginning middle end)),
			'poll' => [ 'page', sub { '' }, q(SELECT * FROM feed_poll('%s', 100)) ],
			'fetch, beginning' => [ 'page', sub { '0;0' }, 'SELECT * FROM feed_fetch(NULL::%s, $1, $2, 100)' ],
			'fetch, going on' => [ 'page', sub { "$first{$_[0]};9223372036854775807" }, 'SELECT * FROM feed_fetch(NULL::%s, $1, $2, 100)' ]);
		for my $cell (sort keys %cells)
		{
			my ($method, $params, $sql) = @{ $cells{$cell} };
			my @spec = map { join "\t", $_, 'readers', $method, $params->($_), '', sprintf($sql, $_) } qw(clean removed);
			client($out, [ $round, $held, $cell =~ s/,//r ], \@spec, @pin,
				$cell =~ /beginning/ ? ('-n', 1, '-t', 5) : ('-w', 20, '-n', 20, '-t', 50));
		}
	}
	psql('postgres', 'DROP DATABASE readers WITH (FORCE)');
	return;
}

# As many moves of the floor, and merges, as in a week, or in a part of it: two
# batches to each move.  In one database the consumer acknowledges everything,
# in the other it is away, and comes back in the end.
sub week
{
	my ($round, $out) = @_;
	my $moves = ceil(60480 * $length / 600);

	# a sixtieth of the week's batches, as the default is
	restart_with(autovacuum => 'on', autovacuum_naptime => '1s',
		'feedpub.max_unmerged_batches' => ceil($moves / 30));
	for my $consumer (qw(there away))
	{
		my $database = "week_$consumer";
		retention_database($database);
		worker($database);
		psql($database,
			q(SELECT feed_subscribe('consumer', 'feedpub', 'earliest')), q(SELECT feed_retain('feedpub', '0')));
	}
	my $note = sub {
		my ($moves) = @_;
		print $out "$round,$moves,$_," . psql("week_$_", q(SELECT concat_ws(',', count(*), pg_table_size('feedpub._batch'), pg_indexes_size('feedpub._batch'),
			pg_total_relation_size('feedpub._floor'), pg_total_relation_size('feedpub._job')) FROM feedpub._batch)), "\n" for qw(there away);
	};
	my $null = csv('retention_moves', qw(day variant calls rows bytes seconds p50 p99 cpu wal cut));
	for my $day (1 .. 7)
	{
		client($null, [$day], [ map { join "\t", $_, "week_$_", 'write', '', '', 'CALL move(' . ($_ eq 'there' ? 'true' : 'false') . ')' } qw(there away) ],
			'-n', 1, '-t', ceil($moves / 7));
		$note->($day * ceil($moves / 7));
	}
	psql('week_away', 'CALL consume_all()', q(SELECT feedpub._move_floor('feedpub')));
	$note->('then');
	psql('postgres', map { "DROP DATABASE week_$_ WITH (FORCE)" } qw(there away));
	restart_with();
	return;
}

sub retention
{
	my @figures = qw(variant calls rows bytes seconds p50 p99 cpu wal cut);
	my $sizes = csv('retention_sizes', qw(round second variant heap index written retained batches batch batch_index floor));
	my $writers = csv('retention_writers', 'round', @figures);
	my $processes = csv('retention_cpu', qw(round variant seconds worker maintenance autovacuum));
	my $wal = csv('retention_wal', qw(round checkpoint write remove vacuum again));
	my $removal = csv('retention_removal', qw(round rows seconds cpu));
	my $readers = csv('retention_readers', qw(round held what), @figures);
	my $week = csv('retention_week', qw(round moves consumer batches table index floor removal));

	# the server knows our settings then
	local $ENV{PGOPTIONS} = '-c session_preload_libraries=feedpub -c client_min_messages=warning';
	for my $round (1 .. $rounds)
	{
		progress("retention: WAL, removal, readers, round $round of $rounds");
		retention_wal($round, $wal);
		removal($round, $removal);
		retention_readers($round, $readers);
		progress("retention: the schedule, round $round of $rounds");
		schedule($round, $sizes, $writers, $processes);
		progress("retention: a week of batches, round $round of $rounds");
		week($round, $week);
	}
	return;
}

1;
