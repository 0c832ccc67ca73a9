# make -C relay install: the program, its man page, and its systemd unit; and the
# reference has each setting with its default, and each metric.

use strict;
use warnings FATAL => 'all';

use FindBin;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

my $prefix = PostgreSQL::Test::Utils::tempdir() . '/usr';
my $source = "$FindBin::RealBin/../../relay";

# Runs a command; returns what it prints, on both channels.
sub output_of
{
	my (@command) = @_;
	my $output = '';

	IPC::Run::run(\@command, '>', \$output, '2>&1')
	  or diag("@command: $output");
	return $output;
}

# Can it be run here?
sub has_program
{
	my ($program) = @_;

	return grep { -x "$_/$program" } split(/:/, $ENV{PATH}), '/usr/bin';
}

output_of('make', '-s', '-C', $source, 'install', "PREFIX=$prefix");
my $help = output_of("$prefix/bin/feedpub-relay", '--help');
my $man = slurp_file("$prefix/share/man/man1/feedpub-relay.1");
my @options = $help =~ /^  --([a-z-]+)=/mg;

cmp_ok(scalar @options, q(>), 10, '--help has the options');
is_deeply([ grep { my $o = s/-/\\-/gr; $man !~ /^\.B \\-\\-\Q$o\E=/m } @options ],
	[], 'each is in the man page');
SKIP:
{
	skip 'no groff', 1 unless has_program('groff');
	is(output_of('groff', '-man', '-ww', '-z', "$prefix/share/man/man1/feedpub-relay.1"),
		'', 'which has no errors');
}
my $unit = "$prefix/lib/systemd/system/feedpub-relay.service";
like(slurp_file($unit), qr{^ExecStart=\Q$prefix\E/bin/feedpub-relay }m,
	'the unit starts the program that was installed');
SKIP:
{
	skip 'no systemd-analyze', 1 unless has_program('systemd-analyze');
	is(output_of('systemd-analyze', 'verify', '--man=no', $unit), '',
		'and systemd has nothing to say against it');
}

# the reference
my $reference = slurp_file("$source/../docs/reference.md") =~ s/.*^(?=## Relay$)//msr;
my $sources = join '', map { slurp_file($_) } glob "$source/config/*.c $source/status/*.c";
my %presets = $sources =~ /^\t\{"([a-z-]+)", (?:NULL|"[^"]*"), "([^"]*)"/mg;

cmp_ok(scalar keys %presets, '>', 30, 'the source has the settings');
for my $name (sort keys %presets)
{
	my $preset = $presets{$name} eq '' || $name =~ /^(?:once|check)$/ ? '' : " `\Q$presets{$name}\E`";

	like($reference, qr/^\|[^|]*`$name`[^|]*\|$preset \|/m, "the reference has $name and its default");
}
my @metrics = $sources =~ /print_metric\(text, "(\w+)"/g;
cmp_ok(scalar @metrics, '>', 5, 'the source has metrics');
like($reference, qr/`feedpub_relay_$_\{/, "the reference has $_") for @metrics;

done_testing();
