# The command feedpub: bin/feedpub, as it was installed.

use strict;
use warnings FATAL => 'all';

use FindBin;
use IPC::Run ();
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'");
my $feed = q("Odd ""Name"", with a 'comma'");
my $literal = $feed =~ s/'/''/gr;

$ENV{PGHOST} = $node->host;
$ENV{PGPORT} = $node->port;
$ENV{PGDATABASE} = 'postgres';
delete $ENV{PGAPPNAME};

sub feedpub
{
	my (@arguments) = @_;
	my ($stdout, $stderr) = ('', '');

	IPC::Run::run([ 'feedpub', @arguments ], '<', \'', '>', \$stdout, '2>', \$stderr);
	return ($? >> 8, $stdout, $stderr);
}

sub wrong
{
	my ($status, $pattern, @arguments) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($got, $stdout, $stderr) = feedpub(@arguments);

	is($got, $status, "exit status of: feedpub @arguments");
	like($stderr, $pattern, 'and why');
	is($stdout, '', 'on standard error');
	return;
}

# usage
my ($status, $stdout, $stderr) = feedpub('--help');
is("$status $stderr", '0 ', '--help');
like($stdout, qr/^Usage:$/m, 'says how');
($status, $stdout) = feedpub('--version');
is("$status $stdout", "0 feedpub 0.1\n", '--version');
is_deeply([ feedpub('help') ], [ feedpub('--help') ], 'help');
is_deeply([ feedpub('version') ], [ feedpub('--version') ], 'version');
wrong(2, qr/no command/);
wrong(2, qr/unknown command: nonsense/, 'nonsense');
wrong(2, qr/unknown option: -x/, '-x', 'lag');
wrong(2, qr/option -p needs a value/, 'lag', '-p');
wrong(2, qr/tail needs one feed/, 'tail');
wrong(2, qr/tail needs one feed/, 'tail', 'a', 'b');
wrong(2, qr/option -n needs a count: 0/, 'tail', '-n', '0', 'a');
wrong(2, qr/lag takes no argument/, 'lag', 'a');
wrong(2, qr/are options of tail/, 'who', '-n', '1');
wrong(2, qr/are options of tail/, 'lag', '--type', 'A');
wrong(2, qr/are options of tail/, 'top', '--earliest');
wrong(2, qr/top takes no argument/, 'top', 'a');
wrong(1, qr/database "none" does not exist/, 'top', '-d', 'none');
wrong(2, qr/option --type needs a value/, 'tail', 'a', '--type');
wrong(1, qr/relation "none" does not exist/, 'tail', 'none');
wrong(1, qr/"pg_class" is not a feed/, 'tail', 'pg_class');
wrong(1, qr/database "none" does not exist/, 'lag', '-d', 'none');
wrong(1, qr/extension "feedpub" does not exist/, '-d', 'template1', 'lag');

# tail
sql($node, <<"SQL");
SELECT feed_create('$literal');
INSERT INTO $feed (message_type, data) SELECT 'A', to_jsonb(i) FROM generate_series(1, 250) i;
SELECT feed_flush('$literal');
SQL
($status, $stdout) = feedpub('tail', '--earliest', '-n', '150', $feed);
my @lines = split /\n/, $stdout;
is($status, 0, 'tail -n ends');
is(scalar @lines, 150, 'after so many');
is(scalar(grep { !/^\{"cursor": "[-0-9A-Z_a-z]{44}", "op": "upsert", .*\}$/ } @lines), 0, 'a line each');
my ($cursor) = $lines[149] =~ /"cursor": "([-\w]+)"/;
($status, $stdout) = feedpub('tail', '--after', $cursor, '-n', '2', '--', $feed);
is(join(' ', $stdout =~ /"data":\s*(\d+)/g), '151 152', 'after a cursor');
wrong(1, qr/malformed cursor/, 'tail', '--after', q('; SELECT 1), $feed);

# some types, of which none is in the first page
sql($node, "INSERT INTO $feed (message_type, data) VALUES ('B', '251'), ('b \"\\,', '252'), ('Bee', '253'); SELECT feed_flush('$literal')");
for ([ 'B' => '251' ], [ 'B*' => '251 253' ], [ 'b "\\,' => '252' ], [ 'B', 'Bee' => '251 253' ])
{
	my @types = @$_;
	my $expected = pop @types;

	($status, $stdout) = feedpub('tail', '--earliest', (map { ('--type', $_) } @types), '-n', scalar(split / /, $expected), $feed);
	is(join(' ', $stdout =~ /"data":\s*(\d+)/g), $expected, "of type @types");
}

# from now on, through a restart of the server
my ($out, $err) = ('', '');
my $tail = IPC::Run::start([ 'feedpub', 'tail', '-n', '2', $feed ], '<', \'', '>', \$out, '2>', \$err);
is_soon($node, q(EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'feedpub' AND query LIKE 'CALL %')),
	'tail waits');
sql($node, "INSERT INTO $feed (message_type, data) VALUES ('A', '1001')");
IPC::Run::pump($tail) until $out =~ /1001/;
is_soon($node, q(EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'feedpub' AND query LIKE 'CALL %')),
	'and waits again');
$node->restart;
sql($node, "INSERT INTO $feed (message_type, data) VALUES ('A', '1002')");
IPC::Run::finish($tail);
is(join(' ', $out =~ /"data":\s*(\d+)/g), '1001 1002', 'each entry once');
like($err, qr/the connection is lost; trying again/, 'and says that it was lost');

# the tables
sql($node, <<"SQL");
SELECT feed_subscribe('it''s, "one"', '$literal', 'earliest'), feed_subscribe('other', '$literal');
INSERT INTO $feed (message_type, data) SELECT 'many', '0' FROM generate_series(1, 1001);
SELECT feed_flush('$literal'), feed_subscribe('many', '$literal', 'earliest', types => '{many}');
SELECT feed_park('it''s, "one"', (SELECT receipt FROM feed_poll('it''s, "one"', 1)), 'no such customer');
SQL
($status, $stdout) = feedpub('lag');
is($status, 0, 'lag');
like($stdout, qr/^ it's, "one" +\|.*\n(?:.*\n)* other +\|/m, 'has the subscriptions, the one with a lag first');
like($stdout, qr/^ many .*\| 1000\+ /m, 'and says that there are more of its types');
for my $arguments ([], [ q(it's, "one") ])
{
	($status, $stdout) = feedpub('parked', @$arguments);
	is($status, 0, 'parked');
	like($stdout, qr/it's, "one".* \| A +\|.* parked .*no such customer/, 'has the entry, with its type');
}
($status, $stdout) = feedpub('parked', 'other');
is($status, 0, 'parked of another');
unlike($stdout, qr/no such customer/, 'has not');

my $holder = $node->background_psql('postgres');
$holder->query_safe('BEGIN; SELECT pg_current_xact_id()');
sql($node, "INSERT INTO $feed (message_type, data) VALUES ('A', '1')");
($status, $stdout) = feedpub('who');
is($status, 0, 'who');
like($stdout, qr/^ session \| +\d+ \|.* idle in transaction /m, 'has the session');
like($stdout, qr/"Odd ""Name"", with a 'comma'" *\| +1$/m, 'and the rows that wait');

# top: without a terminal, pictures one after another
($status, $stdout, $stderr) = feedpub('top', '-n', '2');
is("$status $stderr", '0 ', 'top -n');
unlike($stdout, qr/\033/, 'without a terminal, no control sequences');
my @pictures = split /^feedpub top: /m, $stdout;
is(scalar @pictures, 3, 'two pictures');
for (@pictures[ 1, 2 ])
{
	like($_, qr/^postgres as \S+, \d\d:\d\d:\d\d$/m, 'what it is of');
	like($_, qr/^"Odd ""Name"", with a 'comma'" +outbox +ready +running +[\d.]+ +\d+ kB .* 1 *$/m, 'the feed');
	like($_, qr/^it's, "one" .* 1 *$/m, 'a subscription');
	like($_, qr/^session +\d+ +postgres .* idle in transaction /m, 'a transaction');
}

# On a terminal
SKIP:
{
	skip 'there is no script', 8 unless -x '/usr/bin/script';
	skip 'there is no pseudo-terminal', 9 if system("script -qec true /dev/null >/dev/null 2>&1 </dev/null") != 0;
	my ($shown, $file) = ('', PostgreSQL::Test::Utils::tempdir() . '/entries');
	my $literally = $feed =~ s/'/'\\''/gr;

	IPC::Run::run([ 'script', '-qefc', 'stty rows 12 cols 70; feedpub top -n 2', '/dev/null' ], '<', \'', '>', \$shown, '2>&1');
	like($shown, qr/^\033\[\?1049h\033\[\?25l\033\[Hfeedpub top: .*\033\[J\033\[Hfeedpub top: .*\033\[\?25h\033\[\?1049l$/s, 'top draws over what it has drawn, and leaves the terminal as it was');
	my ($first) = $shown =~ /\033\[H(feedpub.*?)\033\[J/s;
	cmp_ok($first =~ tr/\n//, '<', 12, 'not more than the rows of the terminal');
	is(scalar(grep { length(s/\033\[K|\r//gr) > 70 } split /\n/, $first), 0, 'and its columns');
	IPC::Run::run([ 'script', '-qefc', 'stty rows 40 cols 80; feedpub top -n 1', '/dev/null' ], '<', \'', '>', \$shown, '2>&1');
	like($shown, qr/ held by *\033.* parked state *\033.* since *\033/s, 'all columns are on a terminal of 80');
	IPC::Run::run([ 'script', '-qefc', "feedpub tail --earliest -n 300 '$literally' >$file", '/dev/null' ], '<', \'', '>', \$shown, '2>&1');
	is(scalar(() = slurp_file($file) =~ /\n/g), 300, 'tail into a file');
	my ($rate, $minutes, $seconds) = $shown =~ qr{\r\[#* *\] 100 entries, (\d+)/s, about (\d+):(\d\d) left\033\[K};
	my $left = sql($node, "SELECT rows FROM feedpub._lag('$literal', feed_page('$literal', '', 100) ->> 'cursor', NULL)");
	cmp_ok($rate // 0, '>', 0, 'shows on the terminal how far it is');
	is(60 * $minutes + $seconds, int($left / $rate), 'and how long the rest takes');
	like($shown, qr/\r\033\[K$/, 'and leaves nothing of that');
	IPC::Run::run([ 'script', '-qefc', "feedpub tail --earliest -n 1 '$literally'", '/dev/null' ], '<', \'', '>', \$shown, '2>&1');
	like($shown, qr/^\{.*\}\r\n$/, 'but not if the entries go there');
}
$holder->quit;

# Completion in bash
sub complete
{
	my (@words) = @_;
	my $bash = '. "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _feedpub; printf "%s\n" "${COMPREPLY[@]}"';
	my ($stdout, $stderr) = ('', '');

	IPC::Run::run([ 'bash', '-c', $bash, "$FindBin::RealBin/../../bin/completion/feedpub", 'feedpub', @words ], '<', \'', '>', \$stdout, '2>', \$stderr);
	return $stderr . join ' ', sort split /\n/, $stdout;
}
is(complete(''), 'help lag parked tail top version who', 'completes commands');
is(complete('-d', 'postgres', 't'), 'tail top', 'after options');
is(complete('-'), '--help --version -U -d -h -p', 'options');
is(complete('tail', '--'), '--after --earliest --help --type --version', 'of tail');
is(complete('tail', '-n', ''), '', 'no value of an option');
like(complete('tail', ''), qr/^\\"Odd\\ \\"\\"Name\\"\\"\\,\\ with\\ a\\ \\'comma\\'\\"$/, 'feeds');
is(complete('-d', 'postgres', 'parked', 'o'), 'other', 'subscriptions');
is(complete('-d', 'none', 'parked', ''), '', 'without a database, nothing');
$node->stop;
done_testing();
