# FeedpubAlerts.pm: what the tests of examples/monitoring share.
#
#   alerts(GROUP)      those of a group of alerts.yaml
#   scraped(JOB => PORT, ...)  what Prometheus has of programs that serve /metrics
#                      there.  One that does not answer has only up
#   raised(METRICS, BEFORE, ALERT, ...)  the alerts that would be raised, a line
#                      each: their names, and of what subscription or feed.  BEFORE
#                      is what counters were when they began to grow
#   await_raised(CODE, BEFORE, ALERTS, EXPECTED, TEST)  tests that these are raised
#                      soon; CODE returns METRICS, ALERTS is an array
#   uses_only(PROGRAM, METRICS, NAME => TEXT, ...)  tests that a rule, a dashboard or
#                      a document of this name has only these of a program's metrics
#
# METRICS is a hash of hashes: of a metric, its value for each set of labels,
# "name=value,name=value".
#
# What is to last has lasted, and what is to be much is as much as it is now: a
# number that is to be exceeded is taken for 0, and an average for its last value.
package FeedpubAlerts;

use strict;
use warnings FATAL => 'all';

use CPAN::Meta::YAML;
use Exporter 'import';
use File::Basename;
use HTTP::Tiny;
use PostgreSQL::Test::Utils ();
use Test::More;

our @EXPORT = qw(alerts scraped raised await_raised uses_only);

my $file = dirname(__FILE__) . '/../../examples/monitoring/alerts.yaml';
my %compare = (
	'>' => sub { $_[0] > $_[1] },
	'<' => sub { $_[0] < $_[1] },
	'==' => sub { $_[0] == $_[1] });

sub alerts
{
	my ($group) = @_;
	my $groups = CPAN::Meta::YAML->read($file)->[0]{groups};

	return map { @{ $_->{rules} } } grep { $_->{name} eq $group } @$groups;
}

sub scraped
{
	my %metrics;

	while (my ($job, $port) = splice @_, 0, 2)
	{
		my $instance = "instance=$port,job=$job";
		my $response = HTTP::Tiny->new(timeout => 60)->get("http://127.0.0.1:$port/metrics");

		$metrics{up}{$instance} = $response->{success} ? 1 : 0;
		next unless $response->{success};
		while ($response->{content} =~ /^(\w+)(?:\{(.*)\})? (\S+)$/mg)
		{
			my ($metric, $labels, $value) = ($1, $2, $3);

			$labels = defined $labels ? $labels =~ s/"//gr . ',' : '';
			$metrics{$metric}{"$labels$instance"} = $value;
		}
	}
	return \%metrics;
}

sub label
{
	my ($name, $labels) = @_;

	return $labels =~ /(?:^|,)$name=([^,]*)/ ? $1 : '';
}

sub without
{
	my ($name, $labels) = @_;

	return defined $name ? $labels =~ s/\b$name=[^,]*,?//r : $labels;
}

# A metric, which is a vector: its value for each set of labels.
sub vector
{
	my ($text, $metrics, $before) = @_;
	my ($function, $metric, $matchers) = $text =~ /^(?:(increase|avg_over_time)\()?(\w+)(?:\{(.*)\})?(?:\[\w+\]\))?$/
	  or die "cannot evaluate $text";
	my %all = %{ $metrics->{$metric} // {} };
	my %vector = %all;

	for my $matcher (split /,/, $matchers // '')
	{
		my ($name, $pattern) = $matcher =~ /^(\w+)=~?"(.*)"$/ or die "cannot evaluate $text";

		delete @vector{ grep { label($name, $_) !~ /^(?:$pattern)$/ } keys %vector };
	}
	$vector{$_} -= $before->{$metric}{$_} // 0 for $function && $function eq 'increase' ? keys %vector : ();
	return \%vector;
}

# The sets of labels for which "LEFT OP RIGHT" holds.
sub met
{
	my ($condition, $metrics, $before) = @_;
	my ($text, $op, $ignored, $factor, $right) =
	  $condition =~ /^(\S+(?:\{.*?\})?\S*) (>|<|==) (?:ignoring \((\w+)\) )?(?:([\d.]+) \* )?(\S+)$/
	  or die "cannot evaluate $condition";
	my $left = vector($text, $metrics, $before);
	my %bound;

	if ($right =~ /^[\d.]+$/)
	{
		$bound{$_} = $op eq '>' ? 0 : $right for keys %$left;
	}
	else
	{
		my $vector = vector($right, $metrics, $before);

		$bound{ without($ignored, $_) } = $vector->{$_} * ($factor // 1) for keys %$vector;
	}
	return grep {
		my $bound = $bound{ without($ignored, $_) };
		defined $left->{$_} && defined $bound && $compare{$op}->($left->{$_}, $bound)
	} keys %$left;
}

sub raised
{
	my ($metrics, $before, @alerts) = @_;
	my @raised;

	for my $alert (@alerts)
	{
		my ($first, @rest) = split / (and|or|unless)(?: on \((\w+)\))? /, $alert->{expr};
		my %is_met = map { $_ => 1 } met($first, $metrics, $before);

		while (my ($operator, $on, $condition) = splice @rest, 0, 3)
		{
			my $of = sub { return defined $on ? label($on, $_[0]) : $_[0] };
			my %other = map { $of->($_) => $_ } met($condition, $metrics, $before);

			$is_met{$_} = 1 for $operator eq 'or' ? values %other : ();
			delete @is_met{ grep { !$other{ $of->($_) } } keys %is_met } if $operator eq 'and';
			delete @is_met{ grep { $other{ $of->($_) } } keys %is_met } if $operator eq 'unless';
		}
		push @raised, map { join ' ', $alert->{alert}, /subscription=(.*)/ ? $1 : /feed=([^,]+)/ ? $1 : () } sort keys %is_met;
	}
	return join "\n", @raised;
}

sub await_raised
{
	my ($metrics, $before, $alerts, $expected, $test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $tries = 20 * $PostgreSQL::Test::Utils::timeout_default;
	my $raised;

	select undef, undef, undef, 0.05
	  while ($raised = raised($metrics->(), $before, @$alerts)) ne $expected && $tries-- > 0;
	return is($raised, $expected, $test);
}

sub uses_only
{
	my ($program, $metrics, @texts) = @_;

	while (my ($name, $text) = splice @texts, 0, 2)
	{
		my %used = map { $_ => 1 } $text =~ /\b(${program}_\w+)/g;

		is(join(' ', grep { !$metrics->{$_} } sort keys %used), '', "$name: each metric of $program is there");
	}
	return;
}

1;
