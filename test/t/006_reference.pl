# docs/reference.md says what the extension does: its examples can be pasted
# into psql, from the first to the last, and print what the file shows; and it
# has each function with its signature, each view with its columns, each
# setting with its default, and each error code that the source raises.
#
# What the file keeps to:
#
#   - Each function has a line in the table at the head, with what it does.
#   - Each function has a section "### name".  It begins with a block without a
#     language that has the signatures; a table with a row for each argument
#     follows, then "- **Result:**", "- **Errors:**", "- **Locks:**" and
#     "- **Rights:**", and at least one example.
#   - A block in sql is an example.  The block in text right after it is what
#     psql prints, on both of its outputs; without one it prints nothing.
#   - In such a text, <cursor>, <receipt>, <time>, <uuid> and <xid> stand for a
#     value of that shape (%shapes).  Runs of spaces and of hyphens match runs
#     of any length, since they depend on the lengths of such values.

use strict;
use warnings FATAL => 'all';

use File::Basename;
use File::Find;
use FindBin;
use IPC::Run;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $cursor = qr/1[-0-9A-Z_a-z]{43}(?:[-0-9A-Z_a-z]{20})?/;
my $zone = qr/[+-]\d\d(?::\d\d)?/;
my %shapes = (
	cursor => $cursor,
	receipt => qr/1[plr][0-9a-f]{43}$cursor/,
	time => qr/\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?$zone/,
	uuid => qr/[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}/,
	xid => qr/[1-9]\d*/);

my $top = "$FindBin::RealBin/../..";
my $reference = slurp_file("$top/docs/reference.md");

# A machine that is busy with other tests publishes later.
my $node = feedpub_node('server', extension => 0, conf => q(feedpub.read_wait = '30 s'));

# The sections, by their headings of any level, without what is below deeper
# ones.  Lines in blocks are no headings.
my %sections;
my @headings;
{
	my $heading = '';
	my $fenced = 0;

	for my $line (split /^/, $reference)
	{
		$fenced = !$fenced if $line =~ /^```/;
		if (!$fenced && $line =~ /^#+ (.*)$/)
		{
			$heading = $1;
			push @headings, $heading;
		}
		$sections{$heading} .= $line;
	}
}

# What an example prints is matched by what the file shows.
sub shown
{
	my ($text) = @_;
	my @pieces = split /(<[a-z]+>| +|-{2,}|\n)/, $text;

	return join '', map {
		/^<([a-z]+)>$/ && $shapes{$1} ? $shapes{$1}
		  : /^ +$/ ? ' +'
		  : /^--/ ? '-{2,}'
		  : /^\n$/ ? ' *\n'
		  : quotemeta
	} @pieces;
}

# The cells of those rows of a section's tables that begin with a name in
# backquotes.
sub rows
{
	my ($section) = @_;

	return map { [ map { s/^\s+|\s+$//gr =~ s/^`(.*)`$/$1/r } split /(?<!\\)\|/, $_ ] }
	  ($sections{$section} // '') =~ /^\| (`.*)\|$/mg;
}

sub is_list
{
	my ($got, $expected, $test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is(join("\n", @$got), join("\n", @$expected), $test);
	return;
}

#
# The examples
#

my $marker = 'the next example is of line';
my @examples;
my $script = '';
while ($reference =~ /^```sql\n(.*?)^```\n(?:\n?```text\n(.*?)^```\n)?/msg)
{
	my ($statements, $text) = ($1, $2 // '');
	my $line = 1 + substr($reference, 0, $-[0]) =~ tr/\n//;

	push @examples, [ $line, $text ];
	$script .= "\\echo $marker $line\n$statements";
}
my $printed = '';
IPC::Run::run([ 'psql', '-X', '-d', $node->connstr('postgres') ],
	'<', \$script, '>', \$printed, '2>&1',
	IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
my (undef, %printed) = split /^$marker (\d+)\n/m, $printed;

cmp_ok(scalar @examples, '>', 40, 'there are examples');
for (@examples)
{
	my ($line, $text) = @$_;
	my $pattern = shown($text);
	my $got = $printed{$line} // 'nothing: psql did not get there';

	ok($got =~ /\A$pattern\s*\z/, "the example of line $line prints what is shown")
	  or diag("shown:\n${text}printed:\n$got");
}

#
# Functions
#

my $of_extension = q{deptype = 'e'
	AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'feedpub')};
my %functions;
for my $row (split /\n/, sql($node, qq{
	SELECT p.proname, p.prokind, pg_get_function_arguments(p.oid),
		pg_get_function_result(p.oid), p.proargnames[:coalesce(array_length(p.proallargtypes, 1), p.pronargs)],
		coalesce(p.proargmodes::text, '')
	FROM pg_proc p JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
	WHERE $of_extension AND p.proname !~ '^_'
	ORDER BY 1, 3}))
{
	my ($name, $kind, $arguments, $result, $names, $modes) = split /\|/, $row, -1;
	my @modes = split /,/, $modes =~ tr/{}//dr;

	# constants need no types, and what is not said is IN
	$arguments =~ s/('[^']*'|NULL)::[^,]+/$1/g;
	$arguments =~ s/\bIN (?=\w)//g;
	push @{ $functions{$name}{signatures} },
	  $kind eq 'p' ? "PROCEDURE $name($arguments)" : "$name($arguments) RETURNS $result";
	for my $argument (split /,/, $names =~ tr/{}"//dr)
	{
		my $mode = shift @modes // 'i';
		$functions{$name}{arguments}{$argument} = 1 if $mode =~ /[ib]/;
	}
}
cmp_ok(scalar keys %functions, '>', 30, 'there are functions');
is_list([ grep { /^feed_\w+$/ } sort @headings ], [ sort keys %functions ],
	'each function has a section, and each such section a function');
is_list([ sort $sections{Reference} =~ /^\| \[(feed_\w+)\]\(#\1\) \| \S/mg ],
	[ sort keys %functions ], 'and a line in the table at the head');

for my $name (sort keys %functions)
{
	my $section = $sections{$name} // '';
	my ($signatures) = $section =~ /\A### \w+\n\n```\n(.*?)^```$/ms;
	my @signatures = map { s/\s+/ /gr =~ s/ $//r } split /^(?=\S)/m, $signatures // '';

	is_list([ sort @signatures ], [ sort @{ $functions{$name}{signatures} } ],
		"$name: the signature");
	is_list([ sort map { split /`, `/, $_->[0] } rows($name) ],
		[ sort keys %{ $functions{$name}{arguments} // {} } ], "$name: its arguments");
	is_list([ $section =~ /^- \*\*(\w+):\*\*\s+\S/mg ], [qw(Result Errors Locks Rights)],
		"$name: what it returns, its errors, locks, and who may call it");
	like($section, qr/^```sql\n.*^```text\n/ms, "$name: an example");
}

#
# Views
#

my %views;
for (split /\n/, sql($node, qq{
	SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod)
	FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
	JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid AND $of_extension
	WHERE c.relkind = 'v' AND c.relname !~ '^_'
	ORDER BY 1, a.attnum}))
{
	my ($view, $column, $type) = split /\|/;
	push @{ $views{"feedpub.$view"} }, "$column $type";
}
cmp_ok(scalar keys %views, '>', 5, 'there are views');
is_list([ grep { /^feedpub\.\w+$/ } sort @headings ], [ sort keys %views ],
	'each view has a section, and each such section a view');
is_list([ map { "$_->[0] $_->[1]" } rows($_) ], $views{$_} // [], "$_: its columns")
  for sort keys %views;

#
# Settings
#

my @settings = split /\n/, sql($node, q{
	LOAD 'feedpub';
	SELECT name, boot_val, coalesce(unit, ''), coalesce(min_val || ' to ' || max_val,
		array_to_string(enumvals, ', ')), context
	FROM pg_settings WHERE name LIKE 'feedpub.%' ORDER BY name});
cmp_ok(scalar @settings, '>', 5, 'there are settings');
is_list([ sort map { join '|', @$_[ 0 .. 4 ] } rows('Settings') ], \@settings,
	'each setting has its default, its unit, its range and its context');

#
# Error codes
#

# What the source calls conditions PL/pgSQL knows by the same names, less the
# abbreviated classes.  The codes of our own are defined in a header.
my (%conditions, %own);
find(sub {
	return if !/\.[ch]$/;
	my $source = slurp_file($_);
	$own{$1} = $2 =~ tr/A-Z0-9//cdr
	  while $source =~ /#define (ERRCODE_\w+)\s+MAKE_SQLSTATE\((.*?)\)/g;
	$conditions{$1} = 1 while $source =~ /errcode\((ERRCODE_\w+)\)/g;
}, "$top/src");
sql($node, q{
	CREATE FUNCTION sqlstate_of(condition text) RETURNS text LANGUAGE plpgsql AS $$
	BEGIN
		RAISE 'known' USING ERRCODE = condition;
	EXCEPTION WHEN query_canceled OR OTHERS THEN
		RETURN CASE SQLERRM WHEN 'known' THEN SQLSTATE ELSE SQLERRM END;
	END $$});
my %codes = map { $_ => 1 } values %own;
for (sort keys %conditions)
{
	my ($condition) = /^ERRCODE_(?:E_R_I_E_|T_R_)?(\w+)$/;
	$codes{ $own{$_} // sql($node, "SELECT sqlstate_of(lower('$condition'))") } = 1;
}
my %documented = map { $_->[0] => 1 } rows('Errors');
cmp_ok(scalar keys %codes, '>', 20, 'there are error codes');
is_list([ grep { !$documented{$_} } sort keys %codes ], [], 'each error code has an entry');
is_list([ grep { !$codes{$_} } grep { /^PF/ } sort keys %documented ], [],
	'and none of ours that nothing raises');

# The codes that the sections name have entries too.
for my $name (sort keys %functions)
{
	my ($errors) = ($sections{$name} // '') =~ /^(- \*\*Errors:\*\*.*?)(?=^- \*\*)/ms;
	is_list([ grep { !$documented{$_} } ($errors // '') =~ /`([A-Z0-9]{5})`/g ], [],
		"$name: its error codes have entries");
}

#
# Links
#

# The anchors that a document's headings make.
sub anchors
{
	my ($text) = @_;

	$text =~ s/^```.*?^```$//msg;
	return map { lc($_) =~ s/[^\w\- ]//gr =~ tr/ /-/r => 1 } $text =~ /^#+ (.*)$/mg;
}

# Links from the reference, and to it.
my @documents = ('README.md', 'CHANGELOG.md', 'CONTRIBUTING.md', 'SECURITY.md',
	map { "docs/" . basename($_) } glob("$top/docs/*.md"));
for my $document (@documents)
{
	my $text = slurp_file("$top/$document");
	my @broken;

	while ($text =~ /\]\(([^)\s#]*)#([^)\s]+)\)/g)
	{
		my ($path, $anchor) = ($1, $2);
		my $target = $path eq '' ? $document : dirname($document) . "/$path";

		next if $target =~ /^https?:/ || "$document $target" !~ /\breference\.md/;
		my %anchors = anchors(slurp_file("$top/$target"));
		push @broken, "$path#$anchor" if !$anchors{$anchor};
	}
	is_list(\@broken, [], "$document: its links lead to sections");
}

$node->stop;
done_testing();
