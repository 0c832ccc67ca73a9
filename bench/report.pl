# report.pl DIRECTORY: makes the tables of bench/results.md out of the raw
# figures of measure.pl.
#
# A ratio is made inside a round, of figures that were taken side by side;
# printed are the median of the rounds' ratios, and the least and greatest.

use strict;
use warnings;

my $dir = $ARGV[0];

# The tables of the published order, and of table feeds; they use the tools
# here.
require "$ENV{WORK}/tree/bench/report_published.pl";
require "$ENV{WORK}/tree/bench/report_tables.pl";
require "$ENV{WORK}/tree/bench/report_subscriptions.pl";
require "$ENV{WORK}/tree/bench/report_retention.pl";
require "$ENV{WORK}/tree/bench/report_http.pl";

my @sizes = qw(10k 1m 10m);
my @writers = qw(plain feedpub article trigger counter notify pgq pgmq
  plain_id feedpub_id);
my @readers = qw(position position_wide row article feed_fetch feed_fetch_any
  feed_fetch_narrow pgq pgmq);

# What a variant is compared with.
my %base = map { $_ => 'plain' } @writers;
$base{plain_id} = $base{feedpub_id} = 'plain_id';

sub rows_of
{
	my ($name) = @_;
	open my $in, '<', "$dir/$name.csv" or return;
	chomp(my $head = <$in>);
	my @columns = split /,/, $head;
	my @rows;
	while (my $line = <$in>)
	{
		chomp $line;
		my %row;
		@row{@columns} = split /,/, $line;
		push @rows, \%row;
	}
	close $in;
	return @rows;
}

sub median
{
	my @sorted = sort { $a <=> $b } @_;
	my $n = @sorted;
	return undef unless $n;
	return $n % 2
	  ? $sorted[ $n / 2 ]
	  : ($sorted[ $n / 2 - 1 ] + $sorted[ $n / 2 ]) / 2;
}

sub number
{
	my ($x, $digits) = @_;
	return '–' unless defined $x;
	my $text = sprintf '%.*f', $digits // 0, $x;
	1 while $text =~ s/^(\d+)(\d{3})/$1,$2/;
	return $text;
}

sub ratio
{
	my ($digits, @ratios) = @_;
	return '–' unless @ratios;
	my @sorted = sort { $a <=> $b } @ratios;
	$digits = 4 if $sorted[-1] < 0.1;
	return sprintf '%.*f [%.*f–%.*f]', $digits, median(@ratios), $digits,
	  $sorted[0], $digits, $sorted[-1];
}

sub table
{
	my ($head, @lines) = @_;
	print '| ', join(' | ', @$head), " |\n";
	print '|', join('|', '---', ('--:') x $#$head), "|\n";
	print '| ', join(' | ', @$_), " |\n" for @lines;
	print "\n";
	return;
}

# Figures by variant and round.
sub by_variant
{
	my ($value, @rows) = @_;
	my %figures;
	for my $row (@rows)
	{
		my $x = $value->($row);
		$figures{ $row->{variant} }{ $row->{round} } = $x
		  if defined $x && $x > 0;
	}
	return \%figures;
}

sub ratios
{
	my ($figures, $variant, $base) = @_;
	my @ratios;
	for my $round (sort keys %{ $figures->{$variant} })
	{
		my $b = $figures->{$base}{$round};
		push @ratios, $figures->{$variant}{$round} / $b if $b;
	}
	return @ratios;
}

sub median_of
{
	my ($figures, $variant) = @_;
	return median(values %{ $figures->{$variant} });
}

sub heading
{
	my ($title, $text) = @_;
	print "## $title\n\n";
	$text =~ s/^\t+//mg;
	print "$text\n";
	return;
}

#
# The machine
#

sub first_line
{
	my ($command) = @_;
	my $line = `$command 2>/dev/null` // '';
	$line =~ s/\n.*//s;
	return $line;
}

my $model = first_line("sed -n 's/^model name[^:]*: //p' /proc/cpuinfo");
my $memory = first_line("sed -n 's/^MemTotal: *\\([0-9]*\\).*/\\1/p' /proc/meminfo");
my $server = first_line('psql -XqAt -d postgres -c "SHOW server_version"');

print "# Results\n\n";
print "Written by `bench/run`; `bench/README.md` says what each variant is and\n";
print "how to read this.\n\n";
printf "PostgreSQL %s, %d processors (%s), %d GB, %s.\n\n", $server,
  first_line('nproc'), $model, $memory / 1048576 + 0.5,
  first_line('uname -sr');

#
# Goals
#

# One line: the ratios of several cells by speed and by CPU, and the goal.
sub goal
{
	my ($what, $goal, $speed, $cpu) = @_;
	return unless @$speed;
	my $list = sub {
		my @medians = map { sprintf '%.2f', $_ } grep { defined } @_;
		return @medians ? join(' ', @medians) : '–';
	};
	return [ $what, $goal, $list->(@$speed), $list->(@$cpu) ];
}

sub goals
{
	my @writers_rows = rows_of('writers');
	my @copy_rows = rows_of('copy');
	my @pages_rows = rows_of('pages');
	my @buffers_rows = rows_of('buffers');
	my @drain_rows = rows_of('drain');
	my @lines;

	my $median_ratio = sub {
		my ($value, $variant, $base, @rows) = @_;
		return median(ratios(by_variant($value, @rows), $variant, $base));
	};
	my $speed = sub { $_[0]{calls} / $_[0]{seconds} };
	my $cpu = sub { $_[0]{calls} / $_[0]{cpu} if $_[0]{cpu} > 0 };
	my $fast = sub { 1 / $_[0]{p50} };

	for (
		[ order => 'an order and its message', '0.98' ],
		[ 1 => 'a message alone', '0.98' ],
		[ 100 => '100 messages', '0.95' ])
	{
		my ($messages, $what, $goal) = @$_;
		for my $sync (qw(on off))
		{
			my (@speed, @cpu);
			for my $clients (1, 4, 16)
			{
				my @cell = grep {
					     $_->{messages} eq $messages
					  && $_->{sync} eq $sync
					  && $_->{clients} == $clients
				} @writers_rows;
				push @speed, $median_ratio->($speed, 'feedpub', 'plain', @cell);
				push @cpu, $median_ratio->($cpu, 'feedpub', 'plain', @cell);
			}
			push @lines,
			  goal("write $what, synchronous_commit = $sync; 1, 4, 16 clients",
				"≥ $goal", \@speed, \@cpu)
			  if @writers_rows;
		}
	}
	push @lines,
	  goal(
		'COPY', '≥ 0.85',
		[ $median_ratio->($fast, 'feedpub', 'plain', @copy_rows) ],
		[ $median_ratio->($cpu, 'feedpub', 'plain', @copy_rows) ])
	  if @copy_rows;

	for my $limit (100, 1000)
	{
		my (@p50, @cpu);
		for my $size (@sizes)
		{
			for my $where (qw(beginning middle tail))
			{
				my @cell = grep {
					     $_->{limit} == $limit
					  && $_->{where} eq $where
					  && $_->{size} eq $size
				} @pages_rows;
				next unless @cell;
				push @p50,
				  $median_ratio->($fast, 'feed_fetch', 'position', @cell);
				push @cpu,
				  $median_ratio->($cpu, 'feed_fetch', 'position', @cell);
			}
		}
		push @lines,
		  goal(
			"page of $limit; beginning, middle, tail of "
			  . join(', ', sizes_in(@pages_rows)),
			$limit == 100 ? '≥ 0.90' : '–',
			\@p50, \@cpu);
	}
	for my $limit (100, 1000)
	{
		my @cell = grep { $_->{limit} == $limit } @drain_rows;
		next unless @cell;
		push @lines,
		  goal(
			"drain in pages of $limit",
			$limit == 1000 ? '≥ 1.00' : '–',
			[
				$median_ratio->(
					sub { $_[0]{rows} / $_[0]{seconds} },
					'feed_fetch', 'position', @cell) ],
			[
				$median_ratio->(
					sub { $_[0]{rows} / $_[0]{cpu} if $_[0]{cpu} > 0 },
					'feed_fetch', 'position', @cell) ]);
	}

	my $wal = sub { $_[0]{wal} / $_[0]{calls} };
	my @wal = map {
		my $messages = $_;
		my @cell = grep {
			     $_->{messages} eq $messages
			  && $_->{clients} == 1
			  && $_->{sync} eq 'off'
		} @writers_rows;
		$median_ratio->($wal, 'feedpub', 'plain', @cell);
	} 1, 100;
	push @wal, $median_ratio->($wal, 'feedpub', 'plain', @copy_rows);
	@wal = map { sprintf '%.3f', $_ } grep { defined } @wal;
	push @lines,
	  [ 'WAL of a message alone, of 100, COPY', '≤ 1.03', "@wal", '' ]
	  if @wal;

	my @there = sizes_in(@pages_rows);
	if (@there > 1)
	{
		my @flat = map {
			my $where = $_;
			my @p50 = map {
				my $size = $_;
				median(
					map { $_->{p50} }
					  grep {
						     $_->{limit} == 100
						  && $_->{where} eq $where
						  && $_->{size} eq $size
						  && $_->{variant} eq 'feed_fetch'
					  } @pages_rows);
			} @there[ 0, -1 ];
			sprintf '%.2f', $p50[1] / $p50[0];
		} qw(beginning middle tail);
		push @lines,
		  [
			"page of 100 of $there[-1] rows against $there[0]; "
			  . 'beginning, middle, tail',
			'≤ 1.10', "@flat", '' ];
	}
	for ([ 'page of 100', '≤ 30', 0 ], [ 'empty page', '≤ 4', 1 ])
	{
		my ($what, $goal, $empty) = @$_;
		my @touched = sort { $b <=> $a } map { $_->{buffers} } grep {
			     $_->{limit} == 100
			  && $_->{variant} eq 'feed_fetch'
			  && ($_->{where} eq 'empty') == $empty
		} @buffers_rows;
		push @lines, [ "buffers of one $what, at most", $goal, $touched[0], '' ]
		  if @touched;
	}
	push @lines, published_goals(), table_goals(),
	  subscription_goals(),
	  http_goals(),
	  retention_goals();
	return @lines;
}

sub sizes_in
{
	my @rows = @_;
	return grep {
		my $size = $_;
		grep { $_->{size} eq $size } @rows
	} @sizes;
}

heading('feedpub in short', <<'EOF');
	Medians, as ratios to `plain` and `position`: of speeds 1.00 is as fast,
	more is faster.  By time (of pages, the p50) and by the CPU of the
	backends, which a busy machine disturbs less.
EOF
table([ 'what', 'goal', 'measured', 'by CPU' ], goals());

#
# Writers
#

if (my @rows = rows_of('writers'))
{
	my $rounds = (sort { $b <=> $a } map { $_->{round} } @rows)[0];
	heading('Writers', <<"EOF");
	Transactions a second, and the ratio to `plain` (`feedpub_id` to
	`plain_id`): median of $rounds rounds [least–greatest].
EOF
	my %title = (
		order => 'An order and its message, four round trips',
		1 => 'A message alone, one round trip',
		100 => '100 messages in one statement');
	for my $messages (qw(order 1 100))
	{
		for my $sync (qw(on off))
		{
			print "### $title{$messages}, synchronous_commit = $sync\n\n";
			my @lines;
			for my $variant (@writers)
			{
				my @line = ("`$variant`");
				my $cpu;
				for my $clients (1, 4, 16)
				{
					my @cell = grep {
						     $_->{messages} eq $messages
						  && $_->{sync} eq $sync
						  && $_->{clients} == $clients
					} @rows;
					my $tps =
				  by_variant(sub { $_[0]{calls} / $_[0]{seconds} }, @cell);
					push @line, number(median_of($tps, $variant)),
					  ratio(2, ratios($tps, $variant, $base{$variant}));
					$cpu = by_variant(
						sub { $_[0]{cpu} / $_[0]{calls} }, @cell)
					  if $clients == 1;
				}
				my $spent = median_of($cpu, $variant);
				next unless defined $spent || $line[1] ne '–';
				push @lines,
				  [
					@line,
					number($spent && $spent * 1e6, 1),
					ratio(2, ratios($cpu, $variant, $base{$variant})) ];
			}
			table(
				[
					'variant',
					(map { ($_ == 1 ? '1 client' : "$_ clients", 'ratio') }
						  1, 4, 16),
					'CPU µs (1 client)', 'ratio' ],
				@lines);
		}
	}

	heading('WAL', <<'EOF');
	Bytes a message, one client, tables empty and a checkpoint at the
	beginning; commit records included.
EOF
	my @lines;
	for my $variant (@writers)
	{
		my @line = ("`$variant`");
		for my $messages (1, 100)
		{
			my $wal = by_variant(
				sub { $_[0]{wal} / $_[0]{calls} / $messages },
				grep {
					     $_->{messages} eq $messages
					  && $_->{clients} == 1
					  && $_->{sync} eq 'off'
				} @rows);
			push @line, number(median_of($wal, $variant), 1),
			  ratio(3, ratios($wal, $variant, $base{$variant}));
		}
		push @lines, \@line if $line[1] ne '–';
	}
	table([ 'variant', '1 a transaction', 'ratio', '100 a transaction',
			'ratio' ],
		@lines);
}

if (my @rows = rows_of('copy'))
{
	heading('COPY', <<'EOF');
	100,000 messages in one COPY; `pgq` and `pgmq`, which have none, send them
	from a table with one statement.  Speed, and CPU of the backend, against
	`plain`.
EOF
	my @lines;
	my $rate = by_variant(sub { 1 / $_[0]{p50} }, @rows);
	my $cpu = by_variant(sub { $_[0]{cpu} / $_[0]{calls} }, @rows);
	my $wal = by_variant(sub { $_[0]{wal} / $_[0]{calls} / 1e5 }, @rows);
	for my $variant (@writers)
	{
		next unless $rate->{$variant};
		push @lines,
		  [
			"`$variant`",
			number(1e-3 / median_of($rate, $variant)),
			ratio(2, ratios($rate, $variant, $base{$variant})),
			number((median_of($cpu, $variant) // 0) * 1e3),
			ratio(2, ratios($cpu, $variant, $base{$variant})),
			number(median_of($wal, $variant), 1),
			ratio(3, ratios($wal, $variant, $base{$variant})) ];
	}
	table(
		[
			'variant', 'ms', 'speed ratio', 'CPU ms', 'CPU ratio',
			'WAL B/message', 'ratio' ],
		@lines);
}

#
# Readers
#

if (my @rows = rows_of('pages'))
{
	my @buffers = rows_of('buffers');
	my @there = sizes_in(@rows);
	heading('Pages', <<'EOF');
	The same page again and again, one client.  `p50`: microseconds until the
	page is there.  `ratio`: pages a second against `position`, of the mean
	time.  `p50 ratio`: the same of the medians.  `CPU`: of the backend,
	microseconds a page, and against `position` (more is worse).  Buffers:
	those of one page in a warm session.
EOF
	for my $limit (100, 1000)
	{
		for my $size (@there)
		{
			print "### Pages of $limit, $size rows\n\n";
			my @lines;
			for my $where (qw(beginning middle tail empty))
			{
				my @cell = grep {
					     $_->{limit} == $limit
					  && $_->{where} eq $where
					  && $_->{size} eq $size
				} @rows;
				my $rate =
				  by_variant(sub { $_[0]{calls} / $_[0]{seconds} }, @cell);
				my $p50 = by_variant(sub { $_[0]{p50} }, @cell);
				my $speed = by_variant(sub { 1 / $_[0]{p50} }, @cell);
				my $cpu = by_variant(
					sub { $_[0]{cpu} / $_[0]{calls} * 1e6 }, @cell);
				for my $variant (@readers)
				{
					next unless $p50->{$variant};
					my ($touched) = grep {
						     $_->{limit} == $limit
						  && $_->{where} eq $where
						  && $_->{size} eq $size
						  && $_->{variant} eq $variant
					} @buffers;
					push @lines,
					  [
						$where,
						"`$variant`",
						number(median_of($p50, $variant)),
						ratio(2, ratios($rate, $variant, 'position')),
						ratio(2, ratios($speed, $variant, 'position')),
						number(median_of($cpu, $variant)),
						ratio(2, ratios($cpu, $variant, 'position')),
						number($touched->{buffers}) ];
				}
			}
			table(
				[
					'page at the', 'variant', 'p50 µs', 'ratio',
					'p50 ratio', 'CPU µs', 'ratio', 'buffers' ],
				@lines);
		}
	}

	if (@there > 1)
	{
		heading('Flatness', <<'EOF');
	p50 of a page of a large feed against the same page of 10,000 rows: 1.00
	is a cost that does not depend on what there is.
EOF
		for my $limit (100, 1000)
		{
			print "### Pages of $limit\n\n";
			my @lines;
			for my $variant (@readers)
			{
				for my $size (@there[ 1 .. $#there ])
				{
					my @line = ("`$variant`", $size);
					for my $where (qw(beginning middle tail empty))
					{
						my %p50 = map { ("$_->{round} $_->{size}" => $_->{p50}) }
						  grep {
							     $_->{limit} == $limit
							  && $_->{where} eq $where
							  && $_->{variant} eq $variant
						  } @rows;
						my @ratios;
						for my $key (grep { / $size$/ } keys %p50)
						{
							my $small = $p50{ $key =~ s/ $size$/ $there[0]/r };
							push @ratios, $p50{$key} / $small if $small;
						}
						push @line, ratio(2, @ratios);
					}
					push @lines, \@line if $line[2] ne '–';
				}
			}
			table([ 'variant', 'rows', 'beginning', 'middle', 'tail', 'empty' ],
				@lines);
		}
	}
}

if (my @rows = rows_of('drain'))
{
	heading('Drain', <<'EOF');
	A million rows from the beginning to the end, the cursor kept in the
	client.  `ratio`: rows a second against `position`.  CPU: of the backend,
	microseconds for a row.  * stopped after 20 seconds, and rated by what it
	had read by then.
EOF
	for my $limit (100, 1000)
	{
		my @cell = grep { $_->{limit} == $limit } @rows;
		my $rate = by_variant(sub { $_[0]{rows} / $_[0]{seconds} }, @cell);
		my $cpu = by_variant(sub { $_[0]{cpu} / $_[0]{rows} * 1e6 }, @cell);
		my @lines;
		for my $variant (@readers)
		{
			next unless $rate->{$variant};
			my $cut = grep { $_->{variant} eq $variant && $_->{cut} } @cell;
			push @lines,
			  [
				"`$variant`" . ($cut ? ' *' : ''),
				number(median_of($rate, $variant)),
				ratio(2, ratios($rate, $variant, 'position')),
				number(median_of($cpu, $variant), 2),
				ratio(2, ratios($cpu, $variant, 'position')) ];
		}
		print "### Pages of $limit\n\n";
		table([ 'variant', 'rows a second', 'ratio', 'CPU µs a row', 'ratio' ],
			@lines);
	}
}

published_sections();
table_sections();
subscription_sections();
http_sections();
retention_sections();
