# make -C http install: the program, its man page, and its systemd unit.

use strict;
use warnings FATAL => 'all';

use FindBin;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

my $prefix = PostgreSQL::Test::Utils::tempdir() . '/usr';
my $source = "$FindBin::RealBin/../../http";

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

# What is missing is named, with the packages that have it.
my $without_llhttp = PostgreSQL::Test::Utils::tempdir() . '/pkg-config';
append_to_file($without_llhttp, qq{#!/bin/sh\ncase "\$*" in *llhttp*) exit 1 ;; esac\n});
chmod 0755, $without_llhttp;
for my $case ([ 'false', qr/needs libpq and libjwt.*libjwt-dev/ ], [ $without_llhttp, qr/needs llhttp.*libllhttp-dev/ ])
{
	my ($pkg_config, $expected) = @$case;
	my $output = '';

	IPC::Run::run([ 'make', '-n', '-C', $source, "PKG_CONFIG=$pkg_config", $pkg_config eq 'false' ? () : 'LLHTTP=/nowhere' ], '>', \$output, '2>&1');
	like($output, $expected, 'make says what it needs');
}

output_of('make', '-s', '-C', $source, 'install', "PREFIX=$prefix");
my $help = output_of("$prefix/bin/feedpub-http", '--help');
my $man = slurp_file("$prefix/share/man/man1/feedpub-http.1");
my @options = $help =~ /^  --([a-z-]+)=/mg;

cmp_ok(scalar @options, '>', 10, '--help has the options');
is_deeply([ grep { my $o = s/-/\\-/gr; $man !~ /^\.B \\-\\-\Q$o\E=/m } @options ],
	[], 'each is in the man page');
SKIP:
{
	skip 'no groff', 1 unless has_program('groff');
	is(output_of('groff', '-man', '-ww', '-z', "$prefix/share/man/man1/feedpub-http.1"),
		'', 'which has no errors');
}
my $unit = "$prefix/lib/systemd/system/feedpub-http.service";
like(slurp_file($unit), qr{^ExecStart=\Q$prefix\E/bin/feedpub-http }m,
	'the unit starts the program that was installed');
SKIP:
{
	skip 'no systemd-analyze', 1 unless has_program('systemd-analyze');
	is(output_of('systemd-analyze', 'verify', '--man=no', $unit), '',
		'and systemd has nothing to say against it');
}

done_testing();
