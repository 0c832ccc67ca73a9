# report_tables.pl: the tables of table feeds, out of the raw figures of
# tables.pl.  Loaded by report.pl, whose tools it uses.

use strict;
use warnings;

my @variants = qw(bare feedpub published unpublished updated_at log
  pgq);
my @readers = qw(tid tid_wide key fetch whole feed_read feed_read_entry json
  feed_page);
my %sync = (
	on => 'synchronous_commit = on',
	slow => 'the same, a flush lasting 2 ms longer',
	off => 'synchronous_commit = off');
my %statement = (
	update => 'UPDATE of a row',
	update4 => 'UPDATE of a row, three more indexes',
	insert => 'INSERT of a row');

sub tps
{
	return $_[0]{calls} / $_[0]{seconds};
}

sub cpu_of_call
{
	return $_[0]{cpu} / $_[0]{calls} if $_[0]{cpu} > 0;
	return undef;
}

sub wal_of_call
{
	return $_[0]{wal} / $_[0]{calls};
}

sub cell_of
{
	my ($sync, $clients, $statement, @rows) = @_;
	return grep {
		     $_->{sync} eq $sync
		  && $_->{clients} == $clients
		  && $_->{statement} eq $statement
	} @rows;
}

#
# Goals
#

sub table_goals
{
	my @rows = rows_of('tables');
	my @lines;

	for (
		[ bare => '≥ 0.90' ],
		[ updated_at => '≥ 0.98' ],
		[ pgq => '≥ 1.20' ])
	{
		my ($base, $goal) = @$_;
		for my $sync (qw(on slow))
		{
			my @cell = cell_of($sync, 16, 'update', @rows) or next;
			push @lines,
			  goal(
				"UPDATE of a table feed against `$base`, 16 clients, $sync{$sync}; "
				  . 'without, with a worker',
				$goal,
				[
					map { median(ratios(by_variant(\&tps, @cell), $_, $base)) }
					  qw(feedpub published) ],
				[
					map {
						median(
							inverse(
								ratios(by_variant(\&cpu_of_call, @cell), $_, $base)))
					} qw(feedpub published) ]);
		}
	}
	for my $limit (100, 1000, 10000)
	{
		my @cell = grep { $_->{limit} == $limit } rows_of('initial') or next;
		my ($speed, $cpu) = speed_and_cpu('rows', @cell);
		for ([ 'feed_read', 'tid_wide' ], [ 'feed_page', 'json' ])
		{
			push @lines,
			  goal(
				"initial snapshot in pages of $limit, `$_->[0]` against `$_->[1]`",
				'≥ 0.90',
				[ median(ratios($speed, @$_)) ],
				[ median(inverse(ratios($cpu, @$_))) ]);
		}
	}
	for my $state (qw(unstamped stamped))
	{
		my @cell = grep { $_->{rows} eq $state } rows_of('stamping') or next;
		my $speed = by_variant(sub { $_[0]{n} / $_[0]{seconds} }, @cell);
		push @lines,
		  goal("thousands of rows that the worker stamps in a second, $state before",
			'≥ 30', [ (median_of($speed, 'worker') // 0) / 1000 ], []);
	}
	return @lines;
}

#
# Writers
#

sub tables_section
{
	my @rows = rows_of('tables') or return;
	heading('Table feeds: writers', <<'EOF');
	Statements a second, each its own transaction, and the ratio to `bare`;
	p50 and p99, of 16 clients where there are, in microseconds; CPU of the
	backends and WAL of a statement (no full-page images), and the ratio.
EOF
	for my $statement (qw(update update4 insert))
	{
		for my $sync (qw(on slow off))
		{
			my @clients = $sync eq 'slow' ? (16) : (1, 16);
			print "### $statement{$statement}, $sync{$sync}\n\n";
			table(
				[
					'variant',
					(map { ($_ == 1 ? '1 client' : "$_ clients", 'ratio') } @clients),
					'p50', 'p99', 'CPU µs', 'ratio', 'WAL', 'ratio' ],
				map { tables_line($_, $statement, $sync, \@clients, @rows) }
				  @variants);
		}
	}
	return;
}

sub tables_line
{
	my ($variant, $statement, $sync, $clients, @rows) = @_;
	my @line = ("`$variant`");
	my @cell;

	for my $n (@$clients)
	{
		@cell = cell_of($sync, $n, $statement, @rows);
		my $tps = by_variant(\&tps, @cell);
		return unless $tps->{$variant};
		push @line, number(median_of($tps, $variant)),
		  ratio(2, ratios($tps, $variant, 'bare'));
	}
	my $cpu = by_variant(\&cpu_of_call, @cell);
	my $wal = by_variant(\&wal_of_call, @cell);
	push @line,
	  map { number(median_of(by_variant(sub { $_[0]{$_} }, @cell), $variant)) }
	  qw(p50 p99);
	return [
		@line,
		number((median_of($cpu, $variant) // 0) * 1e6, 1),
		ratio(2, ratios($cpu, $variant, 'bare')),
		number(median_of($wal, $variant)),
		ratio(2, ratios($wal, $variant, 'bare')) ];
}

sub changes_section
{
	my @rows = rows_of('changes') or return;
	heading('Change feeds: writers', <<'EOF');
	As above, for what keeps each change of a table.  `captured` is a change
	feed, `captured_new` one without old values, `audit` a trigger in
	PL/pgSQL that writes `to_jsonb()` of the new and the old row, `pgq` the
	trigger `pgq.logutriga()`, `feedpub` a table feed, which keeps the last
	version only.
EOF
	for (
		[ 'update', 'on', 16, 'UPDATE of a row, synchronous_commit = on' ],
		[ 'update', 'off', 1, 'UPDATE of a row, synchronous_commit = off' ],
		[ 'bulk', 'off', 1, 'INSERT of a million rows in one statement' ])
	{
		my ($statement, $sync, $clients, $title) = @$_;
		print "### $title\n\n";
		table(
			[ 'variant', $clients == 1 ? '1 client' : "$clients clients", 'ratio', 'p50', 'p99', 'CPU µs', 'ratio', 'WAL', 'ratio' ],
			map { tables_line($_, $statement, $sync, [$clients], @rows) }
			  qw(bare feedpub captured captured_new audit pgq));
	}
	return;
}

#
# Over time
#

# Sums over the steps of one spread, what and variant.
sub churn_sums
{
	my (@rows) = @_;
	my %sums;
	for my $row (@rows)
	{
		$sums{ $row->{spread} }{ $row->{what} }{ $row->{variant} }{$_} +=
		  $row->{$_}
		  for qw(calls rows seconds cpu wal);
	}
	return \%sums;
}

sub churn_section
{
	my @rows = rows_of('churn') or return;
	my $sums = churn_sums(@rows);
	my @sizes = rows_of('churn_size');
	my @steps = sort { $a <=> $b } map { $_->{step} } @sizes;
	my %title = (all => 'All rows', hot => 'Always the same hundredth of them');

	heading('Table feeds: over time', <<'EOF');
	A table of 100,000 rows, one index.  Ten times: a checkpoint, 20,000 updates
	by 16 clients, durable; one consumer reads what has changed, in plain SQL;
	VACUUM, and of a log compaction.  Sums, for each update: CPU of the writers,
	of what is done then, and of the consumer, microseconds; WAL with full-page
	images.  MB after the first step, and after thirty more than the ten.
EOF
	for my $spread (qw(all hot))
	{
		my @lines;
		for my $variant (@variants)
		{
			my $write = $sums->{$spread}{write}{$variant} or next;
			my $read = $sums->{$spread}{read}{$variant};
			my $vacuum = $sums->{$spread}{vacuum}{$variant};
			my $n = $write->{calls};
			my %size = map { $_->{step} => $_ }
			  grep { $_->{spread} eq $spread && $_->{variant} eq $variant }
			  @sizes;
			push @lines,
			  [
				"`$variant`",
				number($n / $write->{seconds}),
				(map { number($_->{cpu} / $n * 1e6, 1) } $write, $vacuum),
				$read
				? (number($read->{cpu} / $n * 1e6, 1), number($read->{rows}))
				: ('–', '–'),
				(map { number($_->{wal} / $n) } $write, $vacuum),
				map {
					my $part = $_;
					join ' ',
					  map { number($size{$_}{$part} / 2**20, 1) } @steps[ 0, -1 ]
				} qw(heap indexes log) ];
		}
		print "### $title{$spread}\n\n";
		table(
			[
				'variant', 'updates a second', 'CPU', 'vacuum', 'reading',
				'rows read', 'WAL', 'vacuum', 'heap', 'indexes', 'log' ],
			@lines);
	}
	return;
}

#
# The initial snapshot, and attaching
#

sub initial_section
{
	my @rows = rows_of('initial') or return;
	heading('Table feeds: initial snapshot', <<'EOF');
	A million rows that were there, read in pages.  `tid_wide` returns as many
	columns and bytes as `feed_read`, and is what ratios are to; those of
	`feed_page` are to `json`.
EOF
	for my $limit (100, 1000, 10000)
	{
		my @cell = grep { $_->{limit} == $limit } @rows;
		my ($speed, $cpu) = speed_and_cpu('rows', @cell);
		my @lines;
		for my $variant (@readers)
		{
			my $base = $variant =~ /json|page/ ? 'json' : 'tid_wide';
			next unless $speed->{$variant};
			push @lines,
			  [
				"`$variant`",
				number(median_of($speed, $variant)),
				ratio(2, ratios($speed, $variant, $base)),
				number((median_of($cpu, $variant) // 0) * 1e6, 2),
				ratio(2, ratios($cpu, $variant, $base)) ];
		}
		print "### Pages of $limit\n\n";
		table([ 'variant', 'rows a second', 'ratio', 'CPU µs a row', 'ratio' ],
			@lines);
	}
	if (my ($rest) = rows_of('attached'))
	{
		printf "The worker of an attached table that nobody writes to: "
		  . "%.2f %% of a core, %d bytes of WAL in %.0f seconds.\n\n",
		  100 * $rest->{cpu} / $rest->{seconds}, $rest->{wal}, $rest->{seconds};
	}
	return;
}

sub attach_section
{
	my @rows = rows_of('attach') or return;
	heading('Table feeds: attached under load', <<'EOF');
	Ten million rows, 500 changes a second over 16 connections.  Milliseconds
	that a change took, and the longest counted from when it was due.  No writer
	failed, the table's file stayed, and the consumer's copy was equal in the end.
EOF
	table(
		[ 'while', 'seconds', 'changes', 'p50', 'p99', 'max', 'max from due' ],
		map {
			my $row = $_;
			[
				$row->{phase}, number($row->{seconds}, 2),
				number($row->{transactions}),
				map { $row->{$_} eq '' ? '–' : number($row->{$_} / 1e3, 1) }
				  qw(p50 p99 max due) ]
		} @rows);
	return;
}

#
# Stamping all rows
#

sub stamping_section
{
	my @rows = rows_of('stamping') or return;
	my %title = (
		unstamped => 'Rows without a stamp',
		stamped => 'Rows with an old stamp');

	heading('Table feeds: stamping all rows', <<'EOF');
	200,000 rows, three indexes beside the primary key and the stamp's, a
	checkpoint before.  WAL in bytes a row, with full-page images.
EOF
	for my $state (qw(unstamped stamped))
	{
		my @cell = grep { $_->{rows} eq $state } @rows;
		my $speed = by_variant(sub { $_[0]{n} / $_[0]{seconds} }, @cell);
		my $wal = by_variant(sub { $_[0]{wal} / $_[0]{n} }, @cell);

		print "### $title{$state}\n\n";
		table(
			[ 'variant', 'rows a second', 'ratio to `update`', 'WAL', 'ratio' ],
			map {
				[
					"`$_`",
					number(median_of($speed, $_)),
					ratio(2, ratios($speed, $_, 'update')),
					number(median_of($wal, $_)),
					ratio(2, ratios($wal, $_, 'update')) ]
			} grep { $speed->{$_} } qw(bare update republish));
	}
	return;
}

sub table_sections
{
	tables_section();
	changes_section();
	churn_section();
	initial_section();
	attach_section();
	stamping_section();
	return;
}

1;
