# report_http.pl: the tables of feedpub-http, out of the raw figures of
# http.pl.  Loaded by report.pl, whose tools it uses.

use strict;
use warnings;

my @variants = qw(feed_page http node);

# Rows a second by variant and round.
sub http_speed
{
	return by_variant(sub { $_[0]{rows} / $_[0]{seconds} }, @_);
}

# The median of the waits in microseconds, by variant and round.
sub http_latency
{
	my %waits;
	push @{ $waits{ $_->{variant} }{ $_->{round} } }, $_->{us} for @_;
	for my $rounds (values %waits)
	{
		$_ = median(@$_) for values %$rounds;
	}
	return \%waits;
}

sub http_goals
{
	my @pages = grep { $_->{limit} == 100 } rows_of('http_pages') or return;
	my $waits = http_latency(rows_of('http_latency'));

	return (
		[ 'pages of 100 over HTTP, against `feed_page`', '≥ 0.80',
			ratio(2, ratios(http_speed(@pages), 'http', 'feed_page')), '' ],
		[ 'drain of a million messages as NDJSON, against `feed_page` in pages of 1,000',
			'≥ 0.70', ratio(2, ratios(http_speed(rows_of('http_drain')), 'http', 'feed_page')), '' ],
		[ 'commit to a client that waits, more than `feed_wait` and a page, ms',
			'≤ 0.3',
			sprintf('%.2f', median(map { ($waits->{http}{$_} - $waits->{feed_page}{$_}) / 1000 }
						keys %{ $waits->{http} })), '' ]);
}

sub http_sections
{
	my @pages = rows_of('http_pages') or return;

	heading('Over HTTP', <<'EOF');
	A million messages read by one client over one connection.  `feed_page`: by
	libpq, prepared.  `http`: by feedpub-http, as a role of its own, with all that
	a request needs (DISCARD ALL too).  `node`: fifty lines over `pg`, prepared,
	without roles.  By elapsed time; client, server and backend share the
	processors.
EOF
	for my $limit (100, 1000)
	{
		my $speed = http_speed(grep { $_->{limit} == $limit } @pages);
		print "### Pages of $limit\n\n";
		table([ 'variant', 'rows a second', 'ratio' ],
			map { [ "`$_`", number(median_of($speed, $_)), ratio(2, ratios($speed, $_, 'feed_page')) ] }
			  grep { $speed->{$_} } @variants);
	}
	my $speed = http_speed(rows_of('http_drain'));
	my $waits = http_latency(rows_of('http_latency'));
	print "### All of it, and one message\n\n";
	table([ 'variant', 'drain, rows a second', 'ratio', 'from COMMIT to the page, median, ms' ],
		map { [ "`$_`", number(median_of($speed, $_)), ratio(2, ratios($speed, $_, 'feed_page')),
				sprintf('%.2f', median_of($waits, $_) / 1000) ] }
		  grep { $speed->{$_} } @variants);
	return;
}

1;
