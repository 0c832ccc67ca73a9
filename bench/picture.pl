#!/usr/bin/perl
# picture.pl: runs what bench/picture draws, in the database that PGHOST & co.
# name, and prints the picture as SVG.
#
# Writers insert one row in a transaction of 0 to 40 ms, one after the other.
# One more writer inserts a row and leaves its transaction open for ten seconds.
# Three consumers ask for new rows every 50 ms:
#
#   naive      WHERE feed_pos > the greatest that it saw
#   xid        feed_fetch: nothing at or after the oldest open transaction
#   published  feed_read
#
# Each notes when it had received how many rows.  Ends with 1 if one of the two
# orders lacks a row in the end, or if the naive consumer lacks none.
use strict;
use warnings;

use DBI;
use Time::HiRes qw(clock_gettime sleep CLOCK_MONOTONIC);

my $WRITERS = 8;
my $HELD = 0.040;                  # s: the longest transaction of a writer
my $PAUSE = 0.100;                 # s: the longest pause between two
my $WRITING = 20;                  # s
my ($OPENED, $CLOSED) = (5, 15);   # when the long transaction begins and ends
my $POLL = 0.050;                  # s
my $SHOWN = 22;                    # s: where the axis ends

my $start;

sub elapsed { return clock_gettime(CLOCK_MONOTONIC) - $start }

sub connection
{
	return DBI->connect('dbi:Pg:', undef, undef,
		{ RaiseError => 1, PrintError => 0, AutoCommit => 1 });
}

sub insert
{
	my ($db) = @_;
	return $db->do(q(INSERT INTO outbox (message_type, data)
		VALUES ('Drawn', '{"some": "data"}')));
}

# A child that runs the function and prints, and where to read that.
sub child
{
	my ($run) = @_;
	my $pid = open(my $output, '-|') // die "could not fork: $!\n";
	return $output if $pid;
	srand($$);
	$run->();
	close STDOUT or die "could not write: $!\n";
	exit 0;
}

sub writer
{
	my $db = connection();
	my $rows = 0;
	while (elapsed() < $WRITING)
	{
		$db->begin_work;
		insert($db);
		sleep(rand($HELD));
		$db->commit;
		$rows++;
		sleep(rand($PAUSE));
	}
	print "$rows\n";
	return;
}

sub long_writer
{
	my $db = connection();
	sleep($OPENED - elapsed());
	$db->begin_work;
	insert($db);
	sleep($CLOSED - elapsed());
	$db->commit;
	print "1\n";
	return;
}

# Prints a line "seconds rows" whenever it has received rows.  The first column
# of the query is 1, or 0 of a row that only says how far the page got; the
# others are the query's next arguments.
sub consumer
{
	my ($query, @cursor) = @_;
	my $db = connection();
	my $page = $db->prepare($query);
	my $rows = 0;
	while (elapsed() < $SHOWN)
	{
		$page->execute(@cursor);
		my $entries = $page->fetchall_arrayref;
		if (@$entries)
		{
			$rows += $_->[0] for @$entries;
			(undef, @cursor) = @{ $entries->[-1] };
			printf "%.2f %d\n", elapsed(), $rows;
		}
		sleep($POLL) if @$entries < 1000;
	}
	return;
}

sub lines { my ($output) = @_; my @lines = <$output>; chomp @lines; return @lines }

#
# The picture
#

my ($WIDTH, $HEIGHT) = (760, 340);
my ($LEFT, $RIGHT, $TOP, $BOTTOM) = (56, 640, 30, 300);
my $most;

sub across { return sprintf '%.1f', $LEFT + $_[0] / $SHOWN * ($RIGHT - $LEFT) }
sub up { return sprintf '%.1f', $BOTTOM - $_[0] / $most * ($BOTTOM - $TOP) }

# A line in steps: what has been received stays so until more comes.
sub steps
{
	my (@lines) = @_;
	my $path = 'M' . across(0) . ' ' . up(0);
	my $last = '';
	for my $line (@lines)
	{
		my ($at, $rows) = split ' ', $line;
		my $step = 'H' . across($at) . 'V' . up($rows);
		$path .= $step if $step ne $last;
		$last = $step;
	}
	return $path . 'H' . across($SHOWN);
}

sub text
{
	my ($x, $y, $class, $text) = @_;
	return qq(<text x="$x" y="$y" class="$class">$text</text>\n);
}

sub picture
{
	my ($committed, %of) = @_;
	my %end = map { $_ => (split ' ', $of{$_}[-1])[1] } keys %of;
	my $lost = $committed - $end{naive};
	$most = $committed * 1.05;

	my $svg = <<"SVG";
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 $WIDTH $HEIGHT" width="$WIDTH" height="$HEIGHT" role="img" aria-labelledby="t d">
<title id="t">Rows delivered over time, beside an open write transaction</title>
<desc id="d">$committed rows are committed in $WRITING seconds. In published order all are delivered at once. In xid order none are while a write transaction is open, from second $OPENED to second $CLOSED. The naive consumer never gets $lost of them.</desc>
<style>
svg { --ink: #1f2328; --faint: #59636e; --grid: #d1d9e0; --open: #818b981f; --published: #0a5fb4; --xid: #9a5b00; --naive: #b3202c; font: 13px system-ui, sans-serif }
\@media (prefers-color-scheme: dark) { svg { --ink: #f0f6fc; --faint: #a5aeb8; --grid: #3d444d; --open: #9198a133; --published: #6cb0ff; --xid: #e0a63a; --naive: #ff8080 } }
path { fill: none; stroke-width: 2 }
text { fill: var(--faint) }
.end { text-anchor: end } .middle { text-anchor: middle } .ink { fill: var(--ink) }
.published { stroke: var(--published) } text.published { fill: var(--published); stroke: none }
.xid { stroke: var(--xid); stroke-dasharray: 7 3 } text.xid { fill: var(--xid); stroke: none }
.naive { stroke: var(--naive); stroke-dasharray: 2 2 } text.naive { fill: var(--naive); stroke: none }
.grid { stroke: var(--grid); stroke-width: 1 } .open { fill: var(--open) }
</style>
SVG
	my ($from, $to) = (across($OPENED), across($CLOSED));
	$svg .= sprintf qq(<rect class="open" x="%s" y="%s" width="%.1f" height="%s"/>\n),
	  $from, $TOP, $to - $from, $BOTTOM - $TOP;
	$svg .= text(($from + $to) / 2, $TOP - 8, 'middle',
		'a write transaction is open');
	my $unit = $committed > 2500 ? 1000 : 500;
	for (my $rows = 0; $rows < $most; $rows += $unit)
	{
		my $y = up($rows);
		$svg .= qq(<path class="grid" d="M$LEFT ${y}H$RIGHT"/>\n)
		  . text($LEFT - 6, $y + 4, 'end', $rows);
	}
	$svg .= text(across($_), $BOTTOM + 18, 'middle', "$_ s") for 0, 5, 10, 15, 20;
	$svg .= text($LEFT, $TOP - 8, 'ink', 'rows delivered');
	$svg .= qq(<path class="$_" d=") . steps(@{ $of{$_} }) . qq("/>\n)
	  for qw(naive xid published);
	$svg .= text($RIGHT + 8, up($committed) - 2, 'published', 'published order');
	$svg .= text($RIGHT + 8, up($committed) + 14, 'xid', 'xid order');
	my $y = up($end{naive});
	$y = up($committed) + 32 if $y < up($committed) + 32;
	$svg .= text($RIGHT + 8, $y, 'naive', 'naive:');
	$svg .= text($RIGHT + 8, $y + 16, 'naive', "$lost rows lost");
	return "$svg</svg>\n";
}

my $db = connection();
$db->do('CREATE EXTENSION feedpub');
$db->do(q(SELECT feed_create('outbox')));
$db->disconnect;

$start = clock_gettime(CLOCK_MONOTONIC);
my %consumer = (
	naive => child(sub { consumer('SELECT 1, feed_pos FROM outbox
		WHERE feed_pos > ? ORDER BY feed_pos LIMIT 1000', 0) }),
	xid => child(sub { consumer('SELECT 1, feed_xid, feed_pos
		FROM feed_fetch(?, ?, 1000)', '0', 0) }),
	published => child(sub { consumer(q(SELECT (op <> 'end')::int, cursor
		FROM feed_read(NULL::outbox, ?, 1000)), '') }));
my @writers = ((map { child(\&writer) } 1 .. $WRITERS), child(\&long_writer));

my $committed = 0;
$committed += $_ for map { lines($_) } @writers;
my %of = map { $_ => [ lines($consumer{$_}) ] } keys %consumer;
for my $order (qw(published xid))
{
	my $rows = (split ' ', $of{$order}[-1] // '0 0')[1];
	die "$order order delivered $rows of $committed rows\n"
	  if $rows != $committed;
}
die "the naive consumer lost nothing\n"
  if (split ' ', $of{naive}[-1])[1] == $committed;
print picture($committed, %of);
