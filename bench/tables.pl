# tables.pl: the parts of bench/run that measure table feeds.  Loaded by
# measure.pl, whose tools it uses.

use strict;
use warnings;
use POSIX ();
use Time::HiRes qw(sleep time);

my $work = $ENV{WORK};
my $rounds = $ENV{ROUNDS};
my $seconds = $ENV{SECONDS_EACH};

chomp(my $cpus = `nproc`);
my @pin = $cpus > 1 ? ('-c', $cpus - 1) : ();

my $n = 100_000;
my @timed = qw(calls rows bytes seconds p50 p99 cpu wal cut);

#
# Tools
#

# A database with what tables.sql makes.
sub table_database
{
	my ($name) = @_;
	return 0 if has_database($name);
	psql('postgres', "CREATE DATABASE $name");
	psql_file($name, "$work/tree/bench/tables.sql",
		'-v', "change_log=$work/change_log.so");
	return 1;
}

# Where a variant's tables are: one with a worker has its own database.
sub database_of
{
	my ($variant) = @_;
	return $variant eq 'published' ? 'tables_published' : 'tables';
}

# A variant's table with so many indexes, filled and then updated, a fifth at
# a time: by then the room for new versions is where it will be, and each page
# has been written since the last checkpoint.
sub make_table
{
	my ($variant, $name, $indexes) = @_;
	psql(
		database_of($variant),
		"CALL make_table('$variant', '$name', $indexes)",
		"CALL fill_table('$name', $n)",
		(map {
				("UPDATE $name SET total = total + 1 WHERE id % 5 = $_",
					"VACUUM $name")
		} 0 .. 4),
		"ANALYZE $name");
	return;
}

# The databases, and the variants that can be had.
sub table_variants
{
	my @variants = qw(bare feedpub published unpublished updated_at log);
	my $new = table_database('tables');

	table_database('tables_published');
	push @variants, grep { $_ eq 'pgq' } optional_variants('tables');
	psql('tables', q(SELECT pgq.create_queue('bench')))
	  if $new && grep { $_ eq 'pgq' } @variants;
	return wanted(@variants);
}

sub setup_tables
{
	my @variants = table_variants();

	return @variants if psql('tables', q(SELECT to_regclass('bare_new')));
	for my $variant (@variants)
	{
		progress("loading the tables of $variant");
		for my $indexes (1, 4)
		{
			make_table($variant, "${variant}_$indexes", $indexes);
		}
		psql(database_of($variant),
			"CALL make_table('$variant', '${variant}_new', 1)");
	}
	stop_worker('tables');
	worker('tables_published') if grep { $_ eq 'published' } @variants;
	return @variants;
}

sub update_of
{
	my ($table) = @_;
	return "UPDATE $table SET total = total + 1 "
	  . "WHERE id = \$1::bigint % $n + 1";
}

sub insert_into
{
	my ($table) = @_;
	return "INSERT INTO $table (customer, state, total, note) "
	  . q(VALUES ($1::bigint % 10007, 'new', 90.50, repeat(md5($1::text), 4)));
}

# Remove what the cell before left.
sub tidy_tables
{
	my ($table, @variants) = @_;
	my %sql;
	for my $variant (@variants)
	{
		my $name = "${variant}_$table";
		my $of = $sql{ database_of($variant) } //= [];
		push @$of, $table eq 'new' ? "TRUNCATE $name" : "VACUUM $name";
		push @$of, "DELETE FROM ${name}_log", "VACUUM ${name}_log"
		  if $variant eq 'log';
		push @$of,
		  'TRUNCATE ' . psql('tables', q(SELECT pgq.current_event_table('bench')))
		  if $variant eq 'pgq';
	}
	psql($_, @{ $sql{$_} }) for sort keys %sql;
	return;
}

#
# Writers
#

sub tables
{
	my @variants = setup_tables();
	my $out = csv('tables', qw(round sync clients statement variant), @timed);

	for my $round (1 .. $rounds)
	{
		progress("tables, round $round of $rounds");
		for my $sync (qw(on slow off))
		{
			for my $clients ($sync eq 'slow' ? 16 : (1, 16))
			{
				for my $statement (qw(update insert update4))
				{
					my $table = { update => 1, update4 => 4, insert => 'new' }
					  ->{$statement};
					my @spec = map {
						my $name = "${_}_$table";
						join "\t", $_, database_of($_), 'write', '?', '',
						  $statement eq 'insert'
						  ? insert_into($name)
						  : update_of($name)
					} @variants;
					tidy_tables($table, @variants);
					client($out, [ $round, $sync, $clients, $statement ],
						\@spec,
						$clients == 1 ? @pin : (),
						'-C', $clients, '-w', 20,
						'-n', $clients == 1 ? 100 : 50, '-s', $seconds,
						'-e',
						$sync eq 'slow'
						? "'-c commit_delay=2000 -c commit_siblings=0'"
						: "'-c synchronous_commit=$sync'");
				}
			}
		}
	}
	return;
}

# Each change of a table, into a change feed and by other means: an UPDATE of a
# row, durable by 16 clients and not by one, and many rows in one statement.
sub changes
{
	my $rows = 1_000_000;
	my @variants = wanted(qw(bare feedpub captured captured_new audit));
	my $out = csv('changes', qw(round sync clients statement variant), @timed);

	table_database('changes');
	if (grep { $_ eq 'pgq' } optional_variants('changes'))
	{
		push @variants, wanted('pgq');
		psql('changes', q(SELECT pgq.create_queue('bench')));
	}
	for my $variant (@variants)
	{
		progress("loading the tables of $variant");
		psql('changes', "CALL make_table('$variant', '${variant}_1', 1)",
			"CALL fill_table('${variant}_1', $n)",
			"CALL make_table('$variant', '${variant}_bulk', 1)");
	}
	stop_worker('changes');
	for my $round (1 .. $rounds)
	{
		progress("changes, round $round of $rounds");
		for ([ 'on', 16 ], [ 'off', 1 ])
		{
			my ($sync, $clients) = @$_;
			psql('changes', map { "VACUUM ${_}_1" } @variants);
			client($out, [ $round, $sync, $clients, 'update' ],
				[ map { join "\t", $_, 'changes', 'write', '?', '', update_of("${_}_1") } @variants ],
				$clients == 1 ? @pin : (),
				'-C', $clients, '-w', 20,
				'-n', $clients == 1 ? 100 : 50, '-s', $seconds,
				'-e', "'-c synchronous_commit=$sync'");
		}
		psql('changes', map { "TRUNCATE ${_}_bulk" } @variants);
		client($out, [ $round, 'off', 1, 'bulk' ],
			[ map { join "\t", $_, 'changes', 'once', '', '',
					"INSERT INTO ${_}_bulk (customer, state, total, note) "
					  . "SELECT i % 10007, 'new', 90.50, repeat(md5(i::text), 4) FROM generate_series(1, $rows) i" } @variants ],
			@pin, '-n', 1, '-t', 1);
	}
	return;
}

#
# Over time
#

# Ten times: a fifth of a table's rows updated, whichever they are or always
# those of one hundredth; all of it read; and what autovacuum would do then.
# A log is compacted before it is vacuumed, its last entry of each key kept.
# Then thirty times more, in one statement each, for the sizes in the end.
sub churn
{
	my @variants = grep { !/published/ } table_variants();
	my $steps = 10;
	my $out = csv('churn', qw(spread step what variant), @timed);
	my $sizes = csv('churn_size', qw(spread step variant heap indexes log));

	for my $spread (qw(all hot))
	{
		for my $variant (@variants)
		{
			make_table($variant, "${variant}_$spread", 1);
			psql('tables', "TRUNCATE ${variant}_${spread}_log")
			  if $variant eq 'log';
		}
		for my $step (1 .. $steps)
		{
			progress("churn, $spread rows, step $step of $steps");
			my @cell = ($spread, $step);
			my %after = map { $_ => last_stamp($_, "${_}_$spread") } @variants;
			psql('tables', 'CHECKPOINT');
			client($out, [ @cell, 'write' ],
				[ map { churn_write($_, $spread) } @variants ],
				'-C', 16, '-n', 25, '-t', $n / 5 / 16 / 25);
			client($out, [ @cell, 'read' ],
				[ map { churn_read($_, $spread, $after{$_}) }
					  grep { /feedpub|log/ } @variants ],
				@pin, '-a', '-n', 10);
			client($out, [ @cell, 'vacuum' ],
				[ map { churn_vacuum($_, $spread) } @variants ],
				'-n', 1, '-t', 1);
			print $sizes join(',', @cell, $_, sizes_of("${_}_$spread")), "\n"
			  for @variants;
		}
		churn_on($_, $spread, 30) for @variants;
		print $sizes join(',', $spread, $steps + 30, $_, sizes_of("${_}_$spread")),
		  "\n"
		  for @variants;
	}
	return;
}

sub churn_on
{
	my ($variant, $spread, $steps) = @_;
	my $table = "${variant}_$spread";
	my $random = 'SELECT 1 + floor(random() * '
	  . ($spread eq 'hot' ? $n / 100 : $n) . ')::bigint';
	my @vacuum = map { (split /\t/)[-1] } churn_vacuum($variant, $spread);

	progress("churn, $spread rows, $steps steps more of $variant");
	psql(
		'tables',
		(
			"UPDATE $table SET total = total + 1 WHERE id IN "
			  . "($random FROM generate_series(1, $n / 5))",
			@vacuum) x $steps);
	return;
}

sub churn_write
{
	my ($variant, $spread) = @_;
	my $sql = update_of("${variant}_$spread");
	$sql =~ s/% $n/% ($n \/ 100)/ if $spread eq 'hot';
	return join "\t", $variant, 'tables', 'write', '?', '', $sql;
}

# The last stamp that there is, as the parameters of a page.
sub last_stamp
{
	my ($variant, $table) = @_;
	return '' unless $variant =~ /feedpub|log/;
	$table .= '_log' if $variant eq 'log';
	return psql('tables',
		"SELECT COALESCE(max(feed_xid::text::numeric), 0) || ';' "
		  . "|| COALESCE(max(feed_pos), 0) FROM $table");
}

# Pages of 1000 in plain SQL, from a stamp on.
sub churn_read
{
	my ($variant, $spread, $after) = @_;
	my $table = "${variant}_$spread";
	my $page = 'WHERE (feed_xid, feed_pos) > ($1, $2) '
	  . 'AND feed_xid < pg_snapshot_xmin(pg_current_snapshot()) '
	  . 'ORDER BY feed_xid, feed_pos LIMIT 1000';
	my $columns = 'feed_xid, feed_pos, id, customer, state, total, placed, note';
	return join "\t", $variant, 'tables', 'page', $after, '0,1',
	  $variant eq 'feedpub'
	  ? "SELECT $columns FROM $table $page"
	  : "SELECT $columns FROM (SELECT * FROM ${table}_log $page) l "
	  . "LEFT JOIN $table USING (id) ORDER BY feed_xid, feed_pos";
}

sub churn_vacuum
{
	my ($variant, $spread) = @_;
	my $table = "${variant}_$spread";
	my @sql = ("VACUUM $table");
	push @sql,
	  "DELETE FROM ${table}_log USING (SELECT feed_xid AS x, feed_pos AS p, "
	  . 'lead(feed_pos) OVER (PARTITION BY id ORDER BY feed_xid, feed_pos) '
	  . "AS next FROM ${table}_log) o "
	  . 'WHERE feed_xid = x AND feed_pos = p AND next IS NOT NULL',
	  "VACUUM ${table}_log"
	  if $variant eq 'log';
	return map { join "\t", $variant, 'tables', 'once', '', '', $_ } @sql;
}

# Bytes of a table, its indexes, and its log with its index.
sub sizes_of
{
	my ($table) = @_;
	return split /\|/,
	  psql('tables',
		"SELECT pg_relation_size('$table'), pg_indexes_size('$table'), "
		  . "COALESCE(pg_total_relation_size(to_regclass('${table}_log')), 0)");
}

#
# The initial snapshot
#

# A table of a million rows becomes a feed: its initial
# snapshot in pages, and the same rows read without feedpub.
sub initial
{
	my $rows = 1_000_000;
	my $out = csv('initial', qw(round limit variant), @timed);
	my $rest = csv('attached', qw(seconds cpu wal));
	my $columns = 'id, customer, state, total, placed, note';

	setup_initial($rows);
	for my $round (1 .. $rounds)
	{
		for my $limit (100, 1000, 10_000)
		{
			progress("initial, pages of $limit, round $round of $rounds");
			my %page = (
				tid => [ q((0,0)), '0',
					"SELECT ctid, $columns FROM million WHERE ctid > \$1 LIMIT $limit"
				],
				tid_wide => [ q((0,0)), '0',
					q(SELECT ctid, '12345678901234567890123456789012345678901234567890'::text, 'upsert'::text, )
					  . "$columns, feed_xid, feed_pos FROM million WHERE ctid > \$1 LIMIT $limit"
				],
				key => [ '0', '0',
					"SELECT $columns FROM million WHERE id > \$1 ORDER BY id LIMIT $limit"
				],
				fetch => [ '', '', 'BEGIN',
					"DECLARE c CURSOR FOR SELECT $columns FROM million",
					"FETCH $limit FROM c" ],
				whole => [ '', '', 'BEGIN',
					"DECLARE c CURSOR FOR SELECT $columns FROM million",
					'FETCH ALL FROM c' ],
				feed_read => [ q(''), '0',
					"SELECT cursor, op, (entry).* FROM feed_read(NULL::million, \$1, $limit)"
				],
				feed_read_entry => [ q(''), '0',
					"SELECT * FROM feed_read(NULL::million, \$1, $limit)" ],
				json => [ q((0,0)), '',
					q~SELECT '{"entries": [' || COALESCE(string_agg('{"op": "upsert", "key": ' ~
					  . q~|| json_build_object('id', id) || ', "row": ' || row_to_json(t) || '}', ', '), '') ~
					  . q~|| '], "cursor": "' || COALESCE(max(tid), $1) || '"}' FROM ~
					  . "(SELECT ctid AS tid, $columns FROM million WHERE ctid > \$1 LIMIT $limit) t"
				],
				feed_page => [ q(''), '',
					"SELECT feed_page('million', \$1, $limit)" ]);
			my @spec = map {
				join "\t", $_, 'initial', /^json|feed_page/ ? 'json' : 'page',
				  @{ $page{$_} }
			  } qw(tid tid_wide key fetch), $limit == 10_000 ? 'whole' : (),
			  qw(feed_read feed_read_entry json feed_page);
			client($out, [ $round, $limit ],
				\@spec, @pin, '-a', '-n', 50_000 / $limit);
		}
	}
	at_rest($rest);

	# all must have brought all
	open my $in, '<', "$work/csv/initial.csv" or die "initial.csv: $!\n";
	while (my $line = <$in>)
	{
		my @f = split /,/, $line;
		next if $f[0] eq 'round';
		die "$f[2] delivered $f[4] rows of $rows\n"
		  if $f[4] - ($f[2] =~ /^feed/ ? 1 : 0) > $rows || $f[4] < $rows;
	}
	close $in;
	return;
}

sub setup_initial
{
	my ($rows) = @_;
	return unless table_database('initial');
	progress("loading $rows rows");
	psql(
		'initial',
		q(CALL make_table('bare', 'million', 1)),
		"CALL fill_table('million', $rows)",
		'VACUUM ANALYZE million',
		'CHECKPOINT');
	psql('initial', psql('initial', q(SELECT feed_attach('million'))));
	die "million is not ready\n"
	  if psql('initial', q(SELECT feed_attach('million')));
	return;
}

# What the worker does while nobody writes to an attached table.
sub at_rest
{
	my ($out) = @_;
	my $pid = worker('initial');
	my @then;
	sleep 2;
	for (1 .. 2)
	{
		push @then,
		  [ time, cpu($pid),
			psql('initial', q(SELECT pg_current_wal_insert_lsn() - '0/0')) ];
		sleep 5 if $_ == 1;
	}
	print $out join(',', map { $then[1][$_] - $then[0][$_] } 0 .. 2), "\n";
	return;
}

#
# Attach under load
#

# A table of ten million rows becomes a feed while 16 connections change 500
# rows a second by a timetable, and a consumer reads it from the beginning.
# One round.
sub attach
{
	my $rows = 10_000_000;
	my @phases;
	my $phase = sub {
		progress($_[0]);
		push @phases, [ $_[0], time ];
	};

	setup_attach($rows);
	my $file = psql('attach', q(SELECT pg_relation_filenode('kv')));
	my $load = start_load();
	$phase->('before');
	sleep 20;
	$phase->('feed_attach');
	my $index = psql('attach', q(SELECT feed_attach('kv')));
	$phase->('CREATE INDEX CONCURRENTLY');
	psql('attach', $index) if $index;
	$phase->('feed_attach again');
	die "kv is not ready\n" if psql('attach', q(SELECT feed_attach('kv')));
	$phase->('a consumer reads all');
	psql('attach', 'CALL follow()');
	$phase->('and follows');
	for (1 .. 10)
	{
		psql('attach', 'CALL follow()');
		sleep 1;
	}
	end_load($load);
	$phase->('the end');
	psql('attach', q(CALL feed_publish('kv')), 'CALL follow()');
	attach_check($rows, $file);
	attach_report(@phases);
	return;
}

sub setup_attach
{
	my ($rows) = @_;
	return unless table_database('attach');
	progress("loading $rows rows");
	psql(
		'attach',
		q(CREATE TABLE kv (id int PRIMARY KEY, v int NOT NULL, note text)),
		'INSERT INTO kv SELECT i, 0, md5(i::text) '
		  . "FROM generate_series(1, $rows) i",
		'VACUUM ANALYZE kv',
		'CHECKPOINT',
		'CREATE TABLE copy (LIKE kv INCLUDING ALL)',
		q(CREATE TABLE progress (cursor text NOT NULL)),
		q(INSERT INTO progress VALUES ('')),

		# A page holds a key once, or only deletes of it, so the order inside
		# it does not matter.
		q(CREATE PROCEDURE follow() LANGUAGE plpgsql AS $$
		DECLARE
			done text := p.cursor FROM progress p;
			next text;
		BEGIN
			LOOP
				WITH page AS MATERIALIZED (
					SELECT cursor, op, (entry).id, (entry).v, (entry).note
					FROM feed_read(NULL::kv, done, 10000)
				), gone AS (
					DELETE FROM copy USING page
					WHERE op = 'delete' AND copy.id = page.id
				), come AS (
					INSERT INTO copy SELECT id, v, note FROM page
					WHERE op = 'upsert'
					ON CONFLICT (id) DO UPDATE
						SET v = excluded.v, note = excluded.note
				)
				SELECT max(cursor) INTO next FROM page;
				EXIT WHEN next IS NULL;
				UPDATE progress SET cursor = next;
				done := next;
				COMMIT;
			END LOOP;
		END
		$$));
	open my $out, '>', "$work/load.sql" or die "load.sql: $!\n";
	print $out <<"EOF";
\\set id random(1, $rows)
\\set what random(1, 20)
\\if :what = 1
DELETE FROM kv WHERE id = :id;
\\elif :what = 2
INSERT INTO kv VALUES (:id, -1, '') ON CONFLICT (id) DO UPDATE SET v = kv.v - 1;
\\else
UPDATE kv SET v = v + 1 WHERE id = :id;
\\endif
EOF
	close $out;
	return;
}

# pgbench by a timetable, ten seconds at a time until it is told to end; each
# transaction leaves a line in its log.
sub start_load
{
	my $pid = fork // die "fork: $!\n";
	if ($pid == 0)
	{
		my $end = 0;
		local $SIG{TERM} = sub { $end = 1 };
		while (!$end)
		{
			system("$ENV{BINDIR}/pgbench -n -c 16 -j 2 -T 10 -R 500 -M prepared "
				  . "-f $work/load.sql -l --log-prefix=$work/load attach "
				  . ">>$work/load.out 2>&1") == 0
			  or POSIX::_exit(1);
		}
		POSIX::_exit(0);
	}
	return $pid;
}

sub end_load
{
	my ($pid) = @_;
	kill 'TERM', $pid;
	waitpid $pid, 0;
	die "a writer failed: see $work/load.out\n" if $?;
	return;
}

# The copy is the table, and the table is in the file that it was in.
sub attach_check
{
	my ($rows, $file) = @_;

	die "kv was rewritten\n"
	  if psql('attach', q(SELECT pg_relation_filenode('kv'))) != $file;
	my $differ = psql('attach',
		'SELECT count(*) FROM kv FULL JOIN copy USING (id) '
		  . 'WHERE (kv.v, kv.note) IS DISTINCT FROM (copy.v, copy.note)');
	die "$differ rows of the copy differ\n" if $differ;
	progress('the copy equals the table: '
		  . psql('attach', q(SELECT count(*) || ' rows' FROM copy)));
	return;
}

# How long the transactions that ended in each phase took: alone, and counted
# from when they were due.
sub attach_report
{
	my (@phases) = @_;
	my $out = csv('attach', qw(phase seconds transactions p50 p99 max due));
	my @of = map { [] } @phases;

	for my $file (glob "$work/load.[0-9]*")
	{
		open my $in, '<', $file or die "$file: $!\n";
		while (my $line = <$in>)
		{
			my (undef, undef, $time, undef, $s, $us, $lag) = split ' ', $line;
			my ($i) = grep { $phases[$_][1] <= $s + $us / 1e6 } reverse 0 .. $#phases;
			push @{ $of[$i] }, [ $time - $lag, $time ] if defined $i;
		}
		close $in;
	}
	for my $i (0 .. $#phases - 1)
	{
		my @alone = sort { $a <=> $b } map { $_->[0] } @{ $of[$i] };
		my @due = sort { $a <=> $b } map { $_->[1] } @{ $of[$i] };
		print $out join(',',
			$phases[$i][0],
			$phases[ $i + 1 ][1] - $phases[$i][1],
			scalar @alone,
			@alone
			? ($alone[ @alone / 2 ], $alone[ @alone * 0.99 ], $alone[-1], $due[-1])
			: ('') x 4), "\n";
	}
	return;
}

#
# Stamping all rows
#

# All rows of a table get a new stamp: by feed_republish(), in steps; by an
# UPDATE, with and without feedpub.  First when none has one yet, then when all do.
sub stamping
{
	my $rows = 200_000;
	my @variants = wanted(qw(bare update republish));
	my $out = csv('stamping', qw(round rows variant n seconds wal));

	table_database('stamping');
	for my $round (1 .. $rounds)
	{
		for my $variant (@variants)
		{
			progress("stamping, $variant, round $round of $rounds");
			make_item($variant, $rows);
			for my $state (qw(unstamped stamped))
			{
				psql('stamping', 'VACUUM ANALYZE item', 'CHECKPOINT');
				print $out join(',',
					$round, $state, $variant, $rows, stamp_all($variant, $rows)), "\n";
			}
		}
	}
	return;
}

# A table of so many rows, a feed if it is to be one.
sub make_item
{
	my ($variant, $rows) = @_;

	stop_worker('stamping');
	psql(
		'stamping',
		'SET client_min_messages = warning',
		'DROP TABLE IF EXISTS item',
		q(CALL make_table('bare', 'item', 2)),
		"CALL fill_table('item', $rows)");
	return if $variant eq 'bare';
	psql('stamping',
		psql('stamping', 'SET client_min_messages = warning', q(SELECT feed_attach('item'))));
	die "item is not ready\n"
	  if psql('stamping', q(SELECT feed_attach('item')));
	return;
}

# Seconds, and bytes of WAL.
sub stamp_all
{
	my ($variant, $rows) = @_;
	my %sql = (
		bare => 'UPDATE item SET total = total',
		update => 'UPDATE item SET feed_xid = NULL',
		republish => q(CALL feed_republish('item')));
	my $insert = q(SELECT pg_current_wal_insert_lsn() - '0/0');
	my $lsn = psql('stamping', $insert);
	my $start = time;
	my $seconds;

	psql('stamping', $sql{$variant});
	$seconds = time - $start;
	return ($seconds, psql('stamping', $insert) - $lsn);
}

1;
