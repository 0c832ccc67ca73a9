# report_published.pl: the tables of the published order, out of the raw
# figures of published.pl.  Loaded by report.pl, whose tools it uses.

use strict;
use warnings;

my @latency = qw(feedpub_listen feedpub_wait feedpub_await notify recvlogical
  feed_fetch_10 article_10 article_100 pgq);
my @costs = qw(commit commit_off fdatasync);

sub milliseconds
{
	my ($microseconds) = @_;
	return '–' unless defined $microseconds;
	return number($microseconds / 1e3, $microseconds < 1e5 ? 2 : 0);
}

sub values_of
{
	my ($column, @rows) = @_;
	return map { $_->{$column} } @rows;
}

# The median of the rounds' medians and so on, and the greatest of all.
sub latency_figures
{
	my (@rows) = @_;
	return (
		(map { milliseconds(median(values_of($_, @rows))) } qw(p50 p90 p99)),
		milliseconds((sort { $b <=> $a } values_of('max', @rows))[0]));
}

sub speed_and_cpu
{
	my ($per, @rows) = @_;
	return (
		by_variant(sub { $_[0]{$per} / $_[0]{seconds} }, @rows),
		by_variant(
			sub { $_[0]{cpu} / $_[0]{$per} if $_[0]{cpu} > 0 }, @rows));
}

# CPU ratios are of cost; those of goals are of speed, as elsewhere.
sub inverse
{
	return map { 1 / $_ } @_;
}

sub share_of_core
{
	return 100 * $_[0]{cpu} / $_[0]{seconds};
}

sub wal_of_message
{
	return $_[0]{wal} / $_[0]{messages};
}

#
# Goals
#

sub published_goals
{
	my @lines;

	for my $open (qw(no here elsewhere))
	{
		for my $variant (qw(feedpub_listen feedpub_wait))
		{
			my @rows = grep { $_->{open} eq $open && $_->{variant} eq $variant }
			  rows_of('latency');
			next unless @rows;
			my ($p50, undef, $p99) = latency_figures(@rows);
			my %where = (
				no => '',
				here => ', a write transaction open in this database',
				elsewhere => ', one open in another database');
			push @lines,
			  [
				"latency, ms, p50 p99, `$variant`$where{$open}",
				'≤ 0.80 2.00', "$p50 $p99", '' ];
		}
	}
	if (my @rows = grep { $_->{variant} eq 'fdatasync' } rows_of('latency'))
	{
		my ($p50, undef, $p99) = latency_figures(@rows);
		push @lines,
		  [
			'what one flush costs, ms, p50 p99: two of them are in each latency',
			'–', "$p50 $p99", '' ];
	}
	for my $messages (qw(order 1))
	{
		my @rows = grep { $_->{messages} eq $messages } rows_of('wakeup');
		next unless @rows;
		my ($speed, $cpu) = speed_and_cpu('calls', @rows);
		push @lines,
		  goal(
			'write '
			  . ($messages eq 'order' ? 'an order and its message'
				: 'a message alone')
			  . ', wake-up on, 16 clients; published, heard',
			'≥ 0.98',
			[ map { median(ratios($speed, $_, 'plain')) } qw(published heard) ],
			[
				map { median(inverse(ratios($cpu, $_, 'plain'))) }
				  qw(published heard) ]);
	}
	for my $limit (100, 1000)
	{
		my @rows =
		  grep { $_->{feed} eq 'small' && $_->{limit} == $limit }
		  rows_of('batches');
		next unless @rows;
		my ($speed, $cpu) = speed_and_cpu('rows', @rows);
		push @lines,
		  goal(
			"drain of 10,000 batches in pages of $limit, against `row`",
			$limit == 1000 ? '≥ 0.90' : '–',
			[ median(ratios($speed, 'feed_read', 'row')) ],
			[ median(inverse(ratios($cpu, 'feed_read', 'row'))) ]);
	}
	for my $feed (qw(one thousand))
	{
		my @rows = grep { $_->{feed} eq $feed } rows_of('batchpages');
		next unless @rows;
		my (undef, $cpu) = speed_and_cpu('calls', @rows);
		my $p50 = by_variant(sub { $_[0]{p50} }, @rows);
		my @where = qw(second quarter middle last);
		push @lines,
		  goal(
			'time of a page of one batch of a million rows, of '
			  . ($feed eq 'one' ? 'one transaction' : '1,000 transactions')
			  . ', against its first; second, at a quarter, middle, last',
			'≤ 1.50',
			[ map { median(ratios($p50, $_, 'first')) } @where ],
			[ map { median(ratios($cpu, $_, 'first')) } @where ]);
	}
	if (my @rows = grep { $_->{wanted_rate} == 5000 } rows_of('publisher'))
	{
		my $rate = number(median(values_of('rate', @rows)));
		push @lines,
		  [
			"publisher's share of a core at $rate tx/s", '< 15 %',
			sprintf('%.1f %%', median(map { share_of_core($_) } @rows)), '' ],
		  [
			"publisher's WAL at $rate tx/s, bytes a message", '< 20',
			sprintf('%.1f', median(map { wal_of_message($_) } @rows)), '' ];
	}
	if (my @all = rows_of('idle'))
	{
		for ([ write => 'writers' ], [ page => 'pages' ])
		{
			my ($what, $name) = @$_;
			my (@speed, @cpu);
			for my $cell (idle_cells(@all))
			{
				next unless $cell->[0] =~ /$what/;
				my ($speed, $cpu) = speed_and_cpu('calls', idle_rows($cell, @all));
				push @speed, median(ratios($speed, 'many', 'few'));
				push @cpu, median(inverse(ratios($cpu, 'many', 'few')));
			}
			push @lines,
			  goal(
				"$name beside 1,000 idle feeds and 10,000 batches, against one feed",
				'1.00', \@speed, \@cpu);
		}
	}
	return @lines;
}

# The cells of the part idle, in their order.
sub idle_cells
{
	my %seen;
	return map { [ $_->{what}, $_->{waiters} ] }
	  grep { !$seen{"$_->{what} $_->{waiters}"}++ } @_;
}

sub idle_rows
{
	my ($cell, @rows) = @_;
	return
	  grep { $_->{what} eq $cell->[0] && $_->{waiters} == $cell->[1] } @rows;
}

#
# Tables
#

sub latency_section
{
	my @rows = rows_of('latency') or return;
	my $long = (sort { $b <=> $a }
		  map { $_->{messages} / 200 } grep { $_->{open} ne 'no' } @rows)[0];
	heading('Latency', <<'EOF');
	Milliseconds from the moment in which COMMIT is sent to that in which the
	reader holds the row, 200 transactions a second: medians of the rounds' p50,
	p90 and p99, the greatest maximum.  Answer: p50 and p99 of the time until the
	writer's COMMIT is answered.
EOF
	my %title = (
		no => 'Nothing else is going on',
		here => 'A write transaction is open in this database',
		elsewhere => 'A write transaction is open in another database');
	for my $open (qw(no here elsewhere))
	{
		my @cell = grep { $_->{open} eq $open } @rows;
		next unless @cell;
		print "### $title{$open}"
		  . ($open eq 'no' ? '' : sprintf(', %.0f seconds', $long)) . "\n\n";
		my @lines;
		for my $variant (@latency)
		{
			my @of = grep { $_->{variant} eq $variant } @cell;
			next unless @of;
			push @lines,
			  [
				"`$variant`",
				latency_figures(@of),
				map { milliseconds(median(values_of($_, @of))) }
				  qw(answer50 answer99) ];
		}
		table([ 'variant', 'p50', 'p90', 'p99', 'max', 'answer p50', 'p99' ],
			@lines);
	}

	print "### What one flush costs here\n\n";
	my %what = (
		commit => 'COMMIT of a message, synchronous_commit = on',
		commit_off => 'the same, off',
		fdatasync => '8 kB written over and fdatasync(), by the client');
	table(
		[ 'ms', 'p50', 'p90', 'p99', 'max' ],
		map {
			my $variant = $_;
			my @of = grep { $_->{variant} eq $variant } @rows;
			@of ? [ $what{$variant}, latency_figures(@of) ] : ()
		} @costs);
	return;
}

sub wakeup_section
{
	my @rows = rows_of('wakeup') or return;
	heading('Writers with the wake-up on', <<'EOF');
	16 clients, synchronous_commit = on.  Transactions a second and CPU of the
	backends that write, microseconds a transaction, against `plain`, and
	against `feedpub`: what the wake-up alone costs.
EOF
	my %title = (order => 'An order and its message', 1 => 'A message alone');
	for my $messages (qw(order 1))
	{
		my @cell = grep { $_->{messages} eq $messages } @rows;
		my ($speed, $cpu) = speed_and_cpu('calls', @cell);
		print "### $title{$messages}\n\n";
		table(
			[
				'variant', 'tx/s', 'ratio', 'CPU µs', 'ratio',
				'tx/s to `feedpub`', 'CPU' ],
			map {
				$speed->{$_}
				  ? [
					"`$_`",
					number(median_of($speed, $_)),
					ratio(2, ratios($speed, $_, 'plain')),
					number((median_of($cpu, $_) // 0) * 1e6, 1),
					ratio(2, ratios($cpu, $_, 'plain')),
					ratio(2, ratios($speed, $_, 'feedpub')),
					ratio(2, ratios($cpu, $_, 'feedpub')) ]
				  : ()
			} qw(plain feedpub published heard notify notify_heard));
	}
	return;
}

sub batches_section
{
	my @rows = rows_of('batches') or return;
	heading('Batches', <<'EOF');
	A million rows drained, `small`: in 10,000 batches of 100 rows; `one`: in one
	batch, of one transaction; `thousand`: in one batch, of 1,000 transactions
	whose rows take turns.  Rows a second and CPU of the backend, microseconds a
	row, against `row`, which reads the same table in xid order.
EOF
	my @lines;
	for my $cell ([ 'small', 100 ], [ 'small', 1000 ], [ 'one', 1000 ],
		[ 'thousand', 1000 ])
	{
		my @of =
		  grep { $_->{feed} eq $cell->[0] && $_->{limit} == $cell->[1] } @rows;
		my ($speed, $cpu) = speed_and_cpu('rows', @of);
		for my $variant (
			qw(row feed_read feed_read_entry feed_page feed_fetch_any))
		{
			next unless $speed->{$variant};
			my $cut = grep { $_->{variant} eq $variant && $_->{cut} } @of;
			push @lines,
			  [
				"`$cell->[0]`, pages of $cell->[1]",
				"`$variant`" . ($cut ? ' *' : ''),
				number(median_of($speed, $variant)),
				ratio(2, ratios($speed, $variant, 'row')),
				number((median_of($cpu, $variant) // 0) * 1e6, 2),
				ratio(2, ratios($cpu, $variant, 'row')) ];
		}
	}
	table([ 'feed', 'variant', 'rows a second', 'ratio', 'CPU µs a row', 'ratio' ],
		@lines);

	my @buffers = rows_of('batchbuffers');
	my @pages = rows_of('batchpages');
	print "### Pages of 1000, `feed_read`, against the first one\n\n";
	@lines = ();
	for my $feed (qw(one thousand))
	{
		my @of = grep { $_->{feed} eq $feed } @pages;
		my $p50 = by_variant(sub { $_[0]{p50} }, @of);
		my (undef, $cpu) = speed_and_cpu('calls', @of);
		for my $where (qw(first second quarter middle last))
		{
			my ($touched) =
			  grep { $_->{feed} eq $feed && $_->{where} eq $where } @buffers;
			push @lines,
			  [
				"`$feed`", $where,
				number(median_of($p50, $where)),
				ratio(2, ratios($p50, $where, 'first')),
				number((median_of($cpu, $where) // 0) * 1e6),
				ratio(2, ratios($cpu, $where, 'first')),
				number($touched->{buffers}) ];
		}
	}
	table([ 'feed', 'page', 'p50 µs', 'ratio', 'CPU µs', 'ratio', 'buffers' ],
		@lines);
	return;
}

sub publisher_section
{
	my @rows = rows_of('publisher') or return;
	heading('Publisher', <<'EOF');
	One message a transaction, 16 connections, `feedpub.publish_interval` as it
	comes.  CPU: of the worker, percent of one core, and microseconds a
	message.  WAL: bytes of the worker's transactions for each message, and all
	that was written.  Sleeps: how often the worker waited, for its latch or the disk.
EOF
	my @lines;
	for my $channel (qw(no yes))
	{
		for my $rate (200, 1000, 5000)
		{
			my @of =
			  grep { $_->{channel} eq $channel && $_->{wanted_rate} == $rate }
			  @rows;
			next unless @of;
			my $figure = sub {
				my ($digits, $value) = @_;
				return number(median(map { $value->($_) } @of), $digits);
			};
			push @lines,
			  [
				$channel,
				$figure->(0, sub { $_[0]{rate} }),
				$figure->(1, \&share_of_core),
				$figure->(1, sub { 1e6 * $_[0]{cpu} / $_[0]{messages} }),
				$figure->(0, sub { $_[0]{batches} / $_[0]{seconds} }),
				$figure->(0, sub { $_[0]{sleeps} / $_[0]{seconds} }),
				$figure->(1, \&wal_of_message),
				$figure->(0, sub { $_[0]{wal_all} / $_[0]{messages} }) ];
		}
	}
	table(
		[
			'channel', 'tx/s', 'CPU %', 'CPU µs a message', 'batches a second',
			'sleeps a second', 'WAL a message', 'of all' ],
		@lines);
	return;
}

sub idle_section
{
	my @rows = rows_of('idle') or return;
	heading('Idle feeds', <<'EOF');
	`few`: one feed with 100 batches.  `many`: one with 10,000, and 1,000 feeds
	that nobody writes to, of which each of the waiters waits for one.  Calls a
	second, and CPU of the backends, microseconds a call, of `many` against
	`few`.
EOF
	my @lines;
	for my $cell (idle_cells(@rows))
	{
		my ($speed, $cpu) = speed_and_cpu('calls', idle_rows($cell, @rows));
		push @lines,
		  [
			@$cell,
			number(median_of($speed, 'few')),
			number(median_of($speed, 'many')),
			ratio(2, ratios($speed, 'many', 'few')),
			number((median_of($cpu, 'few') // 0) * 1e6, 1),
			ratio(2, ratios($cpu, 'many', 'few')) ];
	}
	table(
		[ 'what', 'waiters', '`few`', '`many`', 'ratio', 'CPU µs', 'ratio' ],
		@lines);

	my @atrest = rows_of('atrest');
	my %waiters = map { $_->{waiters} => 1 } @atrest;
	print "### At rest\n\n";
	print "Percent of one core, while nothing is written.\n\n";
	@lines = ();
	for my $waiters (sort { $a <=> $b } keys %waiters)
	{
		for my $database (qw(few many))
		{
			my @of = grep {
				$_->{database} eq $database && $_->{waiters} == $waiters
			} @atrest;
			push @lines,
			  [
				"`$database`", $waiters,
				map {
					my $who = $_;
					number(
						median(map { 100 * $_->{$who} / $_->{seconds} } @of), 2)
				} qw(worker backends) ];
		}
	}
	table([ 'database', 'waiters', 'worker', 'all waiters' ], @lines);
	return;
}

sub types_section
{
	my @rows = rows_of('types') or return;
	heading('Types', <<'EOF');
	A million messages drained, `all`, or only the one in a hundred that is of
	another type, `few`.  Seconds, and CPU of the backend, seconds, against
	`all`.
EOF
	my @lines;
	for my $limit (100, 1000)
	{
		my @of = grep { $_->{limit} == $limit } @rows;
		my $seconds = by_variant(sub { $_[0]{seconds} }, @of);
		my $cpu = by_variant(sub { $_[0]{cpu} }, @of);
		for my $way (qw(feed_page feed_read))
		{
			my ($few, $all) = ("${way}_few", "${way}_all");
			push @lines,
			  [
				"`$way`, pages of $limit",
				number(median_of($seconds, $all), 2),
				number(median_of($seconds, $few), 2),
				ratio(2, ratios($seconds, $few, $all)),
				number(median_of($cpu, $all), 2),
				number(median_of($cpu, $few), 2),
				ratio(2, ratios($cpu, $few, $all)) ];
		}
	}
	table([ 'read by', '`all`', '`few`', 'ratio', 'CPU `all`', 'CPU `few`', 'ratio' ],
		@lines);
	return;
}

sub published_sections
{
	latency_section();
	wakeup_section();
	batches_section();
	types_section();
	publisher_section();
	idle_section();
	return;
}

1;
