# Demo.pm: what demo.pl and table.pl share: numbers as people read them, the
# records of a package catalogue, connections, files, and the processes that
# play writers and consumers.
package Demo;

use strict;
use warnings;

use DBI;
use Exporter qw(import);
use IO::Handle;
use IO::Select;
use List::Util qw(max min);
use POSIX qw(_exit);
use Time::HiRes qw(time);

our @EXPORT = qw(
  n ms percentile record_of json_string
  work_in connect_as append_to write_all lines_of
  %child start hear_children report running
  show_line note clear_line);

#
# Numbers
#

# 1234567 -> 1,234,567
sub n
{
	my $n = sprintf '%.0f', shift;
	1 while $n =~ s/^(\d+)(\d{3})/$1,$2/;
	return $n;
}

sub ms
{
	my $ms = $_[0] * 1000;
	return ($ms < 10 ? sprintf('%.1f', $ms) : n($ms)) . ' ms';
}

sub percentile
{
	my ($p, @sorted) = @_;
	return @sorted ? $sorted[ min($#sorted, int($p / 100 * @sorted)) ] : 0;
}

#
# The catalogue: stanzas of "Field: value" lines with indented continuations
#

# The fields of a package, and the same as JSON.
sub record_of
{
	my ($stanza) = @_;
	my (%field, $last);

	utf8::decode(my $copy = $stanza) or utf8::encode($stanza);
	for my $line (split /\n/, $stanza)
	{
		if ($line =~ /^([^\s:]+):\s*(.*)/)
		{
			$last = $1;
			$field{$last} = $2;
		}
		elsif (defined $last)
		{
			$field{$last} .= "\n" . substr $line, 1;
		}
	}
	my $json = join ', ',
	  map { json_string($_) . ': ' . json_string($field{$_}) } sort keys %field;
	return (\%field, "{$json}");
}

sub json_string
{
	my ($text) = @_;
	$text =~ s/([\x00-\x1f"\\])/sprintf '\\u%04x', ord $1/ge;
	return qq("$text");
}

#
# Connections and files
#

my $dir;

# Where append_to() and lines_of() find their files.
sub work_in { ($dir) = @_; return }

sub connect_as
{
	my ($name, $database) = @_;
	my $dbh = DBI->connect(
		$database ? "dbi:Pg:dbname=$database" : 'dbi:Pg:', '', '',
		{
			RaiseError => 1,
			PrintError => 0,
			AutoCommit => 1,
			pg_enable_utf8 => 0
		});
	$dbh->do("SET application_name = '$name'");
	$dbh->do("SET client_encoding = 'UTF8'");
	$dbh->do('SET client_min_messages = warning');
	return $dbh;
}

sub append_to
{
	my ($name) = @_;
	open my $file, '>>', "$dir/$name" or die "could not open $dir/$name: $!\n";
	$file->autoflush(1);
	return $file;
}

# One write, so that a kill does not leave half a page.
sub write_all
{
	my ($file, $text) = @_;
	defined syswrite $file, $text or die "could not write: $!\n";
}

sub lines_of
{
	my ($name) = @_;
	open my $file, '<', "$dir/$name" or die "could not open $dir/$name: $!\n";
	chomp(my @lines = <$file>);
	return @lines;
}

#
# Processes: they tell through a pipe how many of what they have done
#

our %child;                        # pid => name
my $parent = $$;
$SIG{INT} = $SIG{TERM} = sub { exit 130 };
END
{
	if ($$ == $parent)
	{
		my $status = $?;
		kill 'KILL', keys %child;
		waitpid $_, 0 for keys %child;
		$? = $status;
	}
}

pipe(my $hear, my $tell) or die "could not make a pipe: $!\n";
my $select = IO::Select->new($hear);
my $heard = '';

sub start
{
	my ($name, $code, @arguments) = @_;
	defined(my $pid = fork) or die "could not start $name: $!\n";
	if ($pid == 0)
	{
		$SIG{INT} = $SIG{TERM} = 'DEFAULT';
		close $hear;
		eval { $code->(@arguments); 1 } or do
		{
			print STDERR "$name: $@";
			_exit(1);
		};
		_exit(0);
	}
	$child{$pid} = $name;
	return $pid;
}

sub report { my ($what, $count) = @_; return write_all($tell, "$what $count\n") }

# Adds what the children tell, until one ends or for a moment.
sub hear_children
{
	my ($count) = @_;
	if ($select->can_read(0.1))
	{
		sysread $hear, $heard, 65536, length $heard;
		$count->{$1} += $2 while $heard =~ s/^(\S+) (\d+)\n//;
	}
	for my $pid (keys %child)
	{
		next unless waitpid($pid, POSIX::WNOHANG) > 0;
		my $name = delete $child{$pid};
		die "$name failed\n" if $?;
	}
}

sub running { my ($what) = @_; return grep { /^$what/ } values %child }

#
# Progress: a line every two seconds, which a terminal sees grow
#

my $terminal = -t STDOUT;
my $shown = 0;                     # when a line was last shown
my $kept = 0;                      # how many lines stay on the screen,
my $kept_counts = '';              # and what the last one says

sub clear_line { return print $terminal ? "\r\e[K" : '' }

# $more is shown after the counts; the last line only if they have changed.
sub show_line
{
	my ($begin, $counts, $more, $is_last) = @_;
	my $now = time;
	return unless $begin && $now >= $begin;
	my $keep = $is_last ? $counts ne $kept_counts
	  : $now - $begin >= 2 * ($kept + 1);
	return unless $keep || $terminal && $now - $shown >= 0.2;

	clear_line();
	printf '%5.1f s%s%s%s', $now - $begin, $counts, $more, $keep ? "\n" : '';
	$shown = $now;
	return unless $keep;
	$kept++;
	$kept_counts = $counts;
}

# Says what happens, between those lines.
sub note
{
	my ($begin, $text) = @_;
	clear_line();
	printf "%5.1f s  %s\n", max(0, time - $begin), $text;
}

STDOUT->autoflush(1);

1;
