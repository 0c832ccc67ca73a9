# report_retention.pl: the tables of retention, out of the raw figures of
# retention.pl.  Loaded by report.pl, whose tools it uses.

use strict;
use warnings;

# Cost of one reading cell of a feed with dead rows, against one without.
sub reading_ratios
{
	my ($held, $what) = @_;
	my @cell = grep { $_->{held} eq $held && $_->{what} eq $what } rows_of('retention_readers');
	my (undef, $cpu) = speed_and_cpu('calls', @cell);
	return ratios($cpu, 'removed', 'clean');
}

# The largest size of the table until the transaction is opened, by what its
# rows that are after the floor take at most until then.
sub peak
{
	my ($round) = @_;
	my @rows = grep { $_->{round} == $round && $_->{second} <= 390 } rows_of('retention_sizes');
	my ($kept) = sort { $b->{written} <=> $a->{written} } grep { $_->{variant} eq 'kept' } @rows;
	my @retained = grep { $_->{variant} eq 'retained' } @rows;
	my ($heap) = sort { $b <=> $a } map { $_->{heap} } @retained;
	my ($most) = sort { $b <=> $a } map { $_->{retained} } @retained;
	return $heap / ($most * $kept->{heap} / $kept->{written});
}

sub retention_rounds
{
	my %rounds = map { $_->{round} => 1 } rows_of('retention_sizes');
	return sort keys %rounds;
}

sub retention_goals
{
	my @writers = rows_of('retention_writers') or return;
	my ($speed, $cpu) = speed_and_cpu('calls', @writers);
	my @wal = rows_of('retention_wal');
	my @reading = map { my $held = $_; map { [ $held, $_ ] } 'page middle', 'page end', 'poll', 'fetch going on' } qw(xid snapshot nothing);
	return (
		goal('writers with retention, against none', '≥ 0.97',
			[ median(ratios($speed, 'retained', 'kept')) ],
			[ median(inverse(ratios($cpu, 'retained', 'kept'))) ]),
		[ 'WAL of a message removed before the next checkpoint', '≤ 100',
			sprintf('%.0f', median(map { $_->{remove} + $_->{vacuum} } grep { $_->{checkpoint} eq 'no' } @wal)), '' ],
		[ 'table while VACUUM can run, by what is retained', '≤ 1.20',
			sprintf('%.2f', median(map { peak($_) } retention_rounds())), '' ],
		[ 'rows removed in a second, without a throttle', '≥ 200,000',
			map { my $per = $_; number(median(map { $_->{rows} / $_->{$per} } grep { $_->{$per} > 0 } rows_of('retention_removal'))) } qw(seconds cpu) ],
		[ 'the slowest reader, by the same without removed rows', '≤ 1.10', '',
			sprintf('%.2f', (sort { $b <=> $a } map { median(reading_ratios(@$_)) // 0 } @reading)[0]) ],
		[ 'the first page after a million removed rows, VACUUM held back, seconds', '≤ 2',
			join(' ', map { my $what = $_;
					sprintf '%.2f', median(map { $_->{p50} / 1e6 } grep { $_->{held} eq 'snapshot' && $_->{what} eq $what && $_->{variant} eq 'removed' } rows_of('retention_readers'))
			} 'page beginning', 'fetch beginning'), '' ]);
}

sub retention_sections
{
	my @writers = rows_of('retention_writers') or return;
	my ($speed, $cpu) = speed_and_cpu('calls', @writers);
	my %name = (queued => '`pgq`', map { $_ => "`$_`" } qw(kept retained));
	my @variants = grep { $speed->{$_} } qw(kept retained queued);

	heading('Retention: the schedule', <<'EOF');
	All variants write the same number of messages a second at once, ten in a
	transaction, and have three consumers.  Times are those of ten minutes: one
	consumer is away from 90 to 270 s, and a transaction is open from 390 to
	570 s.  `retained` keeps messages for 60 s; PgQ rotates every 60 s.  CPU of
	the writers: microseconds for a message; of others: percent of a core.
EOF
	my %process = map { $_->{variant} => $_ } rows_of('retention_cpu');
	table([ 'variant', 'messages a second', 'p50, ms', 'p99, ms', 'CPU', 'ratio', 'worker', 'removal', 'autovacuum' ],
		map {
			my $v = $_;
			my ($row) = grep { $_->{variant} eq $v } @writers;
			[ $name{$v}, number(10 * $row->{calls} / $process{$v}{seconds}),
				sprintf('%.2f', $row->{p50} / 1e3), sprintf('%.2f', $row->{p99} / 1e3),
				number(median_of($cpu, $v) * 1e5, 1), ratio(2, ratios($cpu, $v, 'kept')),
				map { sprintf '%.1f', 100 * $process{$v}{$_} / $process{$v}{seconds} } qw(worker maintenance autovacuum) ]
		} @variants);
	my @sizes = grep { $_->{round} == 1 } rows_of('retention_sizes');
	my %at;
	push @{ $at{ $_->{variant} } }, $_ for @sizes;
	my $mb = sub { sprintf '%.0f + %.0f', $_[0]{heap} / 1e6, $_[0]{index} / 1e6 };
	table([ 'second', map({ "$name{$_}, MB" } @variants), 'rows retained', 'batches', '`_batch`, its index, `_floor` and `_job`, kB' ],
		map {
			my $i = $_;
			my $r = $at{retained}[$i];
			[ $r->{second}, map({ $at{$_}[$i] ? $mb->($at{$_}[$i]) : '–' } @variants),
				number($r->{retained}), number($r->{batches}), join ' ', map { number($_ / 1024) } @$r{qw(batch batch_index floor)} ]
		} grep { $_ % 3 == 2 } 0 .. $#{ $at{retained} });

	heading('Retention: WAL, removal, readers', <<'EOF');
	WAL: bytes for a message of 424 bytes of `jsonb`, ten in a transaction, with
	the checkpoint before each step or before none; `again`: others take the
	space.  Readers: CPU, microseconds for a call, of a feed from which a million
	rows were removed, and its ratio to one from which none were.
EOF
	table([ 'checkpoint before it', 'write', 'remove', 'VACUUM', 'again' ],
		map {
			my $c = $_;
			[ $c, map { my $step = $_; number(median(map { $_->{$step} } grep { $_->{checkpoint} eq $c } rows_of('retention_wal'))) } qw(write remove vacuum again) ]
		} qw(no yes));
	my %why = (xid => 'a transaction with an id', snapshot => 'a snapshot', nothing => 'nothing');
	table([ 'VACUUM held back by', 'read', 'CPU', 'ratio' ],
		map {
			my $held = $_;
			map {
				my $what = $_;
				[ $why{$held}, $what, number(median(map { $_->{cpu} / $_->{calls} * 1e6 }
							grep { $_->{held} eq $held && $_->{what} eq $what && $_->{variant} eq 'removed' } rows_of('retention_readers')) // 0),
					ratio(2, reading_ratios($held, $what)) ]
			} 'page beginning', 'page middle', 'page end', 'poll', 'fetch beginning', 'fetch going on'
		} qw(xid snapshot nothing));

	heading('Retention: a week of batches', <<'EOF');
	The floor moves, and batches are merged, as often as in a week (of a shorter
	schedule: a part of it).  Two batches between two moves, one message each.
	In the end the consumer that was away has come back.  Sizes in kB.
EOF
	table([ 'moves', 'the consumer is', 'batches', '`_batch`', 'its index', '`_floor`', '`_job`' ],
		map { my $row = $_; [ @$row{qw(moves consumer)}, number($row->{batches}), map { number($row->{$_} / 1024) } qw(table index floor removal) ] }
		  grep { $_->{round} == 1 } rows_of('retention_week'));
	return;
}

1;
