# report_http.pl: the tables of feedpub-http, out of the raw figures of
# http.pl.  Loaded by report.pl, whose tools it uses.

use strict;
use warnings;

# Rows a second, and rows in a second of CPU, by variant and round.
sub http_speed
{
	return by_variant(sub { $_[0]{rows} / $_[0]{seconds} }, @_);
}

sub http_by_cpu
{
	return by_variant(sub { $_[0]{rows} / $_[0]{cpu} }, @_);
}

# The median of the waits in microseconds, by variant and round: since the INSERT
# was sent ("us"), or since its writer knew that it was committed.
sub http_latency
{
	my ($column) = @_;
	my %waits;
	push @{ $waits{ $_->{variant} }{ $_->{round} } }, $_->{$column} for rows_of('http_latency');
	for my $rounds (values %waits)
	{
		$_ = median(@$_) for values %$rounds;
	}
	return \%waits;
}

sub http_goals
{
	my @pages = grep { $_->{part} eq 'pages' && $_->{limit} == 100 } rows_of('http_pages') or return;

	return (
		[ 'pages of 100 over HTTP, against `feed_page` by libpq over TCP', '≥ 0.80',
			ratio(2, ratios(http_speed(@pages), 'http', 'feed_page')),
			ratio(2, ratios(http_by_cpu(@pages), 'http', 'feed_page')) ],
		[ 'drain of a million messages as NDJSON, against `feed_page` in pages of 1,000',
			'≥ 0.70', ratio(2, ratios(http_speed(rows_of('http_drain')), 'http', 'feed_page')), '' ],
		[ 'commit to a client that waits, times `feed_wait` and a page by libpq over TCP',
			'≤ 1.50', ratio(2, ratios(http_latency('committed_us'), 'http', 'feed_page')), '' ]);
}

# A table of variants, the first of which is the base.
sub http_table
{
	my (@rows) = @_;
	my ($speed, $cpu) = (http_speed(@rows), http_by_cpu(@rows));
	my (%of, @variants);

	for my $row (@rows)
	{
		push @variants, $row->{variant} unless $of{ $row->{variant} };
		push @{ $of{ $row->{variant} } }, $row;
	}
	table([ 'variant', 'rows a second', 'a call, median, µs', 'CPU of a row, µs', 'speed, ratio', 'by CPU' ],
		map {
			my $calls = $of{$_};
			[ "`$_`", number(median_of($speed, $_)),
				$calls->[0]{us} ? number(median(map { $_->{us} } @$calls)) : '–',
				number(1e6 / median_of($cpu, $_), 1),
				ratio(2, ratios($speed, $_, $variants[0])), ratio(2, ratios($cpu, $_, $variants[0])) ] }
		  @variants);
	return;
}

sub http_sections
{
	my @pages = rows_of('http_pages') or return;
	my ($sent, $committed) = (http_latency('us'), http_latency('committed_us'));

	heading('Over HTTP', <<'EOF');
	A million messages read by one client over one connection.  `feed_page`: by
	libpq over TCP, prepared.  `http`: by feedpub-http, as a role of its own, over a
	Unix socket to the database.  Where it goes: `socket` is `feed_page` over a Unix
	socket, `lines` the function that feedpub-http calls, `request` the same with
	role and claims.  `node`: fifty lines over `pg`, prepared, without roles.
	Client, server and backend share the processors; CPU is that of all three.
EOF
	for my $limit (100, 1000)
	{
		print "### Pages of $limit\n\n";
		http_table(grep { $_->{part} eq 'pages' && $_->{limit} == $limit } @pages);
	}
	print "### Pages of 100 CloudEvents\n\n";
	http_table(grep { $_->{part} eq 'events' } @pages);
	print "### JWTs, pages of one row\n\n";
	http_table(grep { $_->{part} eq 'jwts' } @pages);
	print "### All of it, as NDJSON\n\n";
	http_table(rows_of('http_drain'));
	print "### From COMMIT to the page of a client that waits\n\n";
	table([ 'variant', 'since the INSERT was sent, median, ms', 'since it was answered', 'ratio' ],
		map { [ "`$_`", sprintf('%.2f', median_of($sent, $_) / 1000), sprintf('%.2f', median_of($committed, $_) / 1000),
				ratio(2, ratios($committed, $_, 'feed_page')) ] } qw(feed_page http));
	return;
}

1;
