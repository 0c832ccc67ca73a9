# report_subscriptions.pl: the tables of subscriptions, out of the raw figures
# of subscriptions.pl.  Loaded by report.pl, whose tools it uses.

use strict;
use warnings;

my @variants = qw(feed_read feed_page feed_poll poll_ack leased row watermill pgq pgmq);

sub subscription_goals
{
	my @lines;
	for my $limit (100, 1000)
	{
		my @cell = grep { $_->{limit} == $limit } rows_of('subscriptions') or next;
		my ($speed, $cpu) = speed_and_cpu('rows', @cell);
		push @lines,
		  goal(
			"poll and acknowledge pages of $limit in one call, against `feed_read`; with a lease",
			'≥ 0.80',
			[ map { median(ratios($speed, $_, 'feed_read')) } qw(poll_ack leased) ],
			[ map { median(inverse(ratios($cpu, $_, 'feed_read'))) } qw(poll_ack leased) ]);
		push @lines,
		  [
			'WAL of a message acknowledged in pages of 1000; with a lease',
			'≤ 0.25',
			join(' ', map {
					sprintf '%.2f',
					  median_of(by_variant(sub { $_[0]{wal} / $_[0]{rows} }, @cell), $_)
			} qw(poll_ack leased)), '' ]
		  if $limit == 1000;
	}
	return @lines;
}

sub subscription_sections
{
	my @rows = rows_of('subscriptions') or return;
	heading('Subscriptions', <<'EOF');
	A million messages read and acknowledged in pages, the cursor kept in the
	database, `synchronous_commit = off`; `feed_read` and `feed_page` keep none.
	`ratio`: rows a second against `feed_read`, whose rows are turned into JSON as
	those of `feed_poll` are.  CPU: of the backend, microseconds for a row.
	WAL: bytes for a row.  * stopped after 20 seconds, and rated by what it had
	read by then.
EOF
	for my $limit (100, 1000)
	{
		my @cell = grep { $_->{limit} == $limit } @rows;
		my ($speed, $cpu) = speed_and_cpu('rows', @cell);
		my $wal = by_variant(sub { $_[0]{wal} / $_[0]{rows} }, @cell);
		my @lines;
		for my $variant (@variants)
		{
			next unless $speed->{$variant};
			my $cut = grep { $_->{variant} eq $variant && $_->{cut} } @cell;
			push @lines,
			  [
				"`$variant`" . ($cut ? ' *' : ''),
				number(median_of($speed, $variant)),
				ratio(2, ratios($speed, $variant, 'feed_read')),
				number((median_of($cpu, $variant) // 0) * 1e6, 2),
				ratio(2, ratios($cpu, $variant, 'feed_read')),
				sprintf('%.2f', median_of($wal, $variant) // 0) ];
		}
		print "### Pages of $limit\n\n";
		table([ 'variant', 'rows a second', 'ratio', 'CPU µs a row', 'ratio', 'WAL' ], @lines);
	}
	table([ 'table', 'rows updated', 'of them HOT', 'dead rows left' ],
		map { [ "`$_->{table}`", map { number($_) } @$_{qw(updated hot dead)} ] }
		  rows_of('subscriptions_dead'));
	return;
}

1;
