# The documents of feedpub-http have all routes, settings and metrics of its
# source; the SQL of docs/operations.md runs; and what docs/openapi.yaml has is
# served.  If FEEDPUB_HTTP_LONG is set, validators from npm accept that file.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubHttp;
use FeedpubTest;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

my $top = "$FindBin::RealBin/../..";
my $reference = slurp_file("$top/docs/reference.md") =~ s/.*^(?=## HTTP$)//msr;
my $operations = slurp_file("$top/docs/operations.md") =~ s/.*^(?=## HTTP$)//msr;
my $openapi = slurp_file("$top/docs/openapi.yaml");

# A comma would end the text.
is(join("\n", $openapi =~ /^.*\{[^{}]*description: [^"{},]*,.*$/mg), '', 'no text in braces is cut in two');

# The routes: a "/" at the end has a name after it.
my @routes = slurp_file("$top/http/routes.c") =~ /^\t\{"(\/[^"]*)", "/mg;
my ($actions) = slurp_file("$top/http/write/subscription.c") =~ /\} actions\[\] = \{(.*?)\};/s;
my @actions = $actions =~ /"(\w+)"/g;
my @admin = slurp_file("$top/http/admin.c") =~ /strcmp\(path, "([^"]+)"\)/g;
my @metrics = slurp_file("$top/http/admin.c") =~ /# TYPE (\w+)/g;
my %paths = map { $_ => 1 } $openapi =~ /^  (\/\S*):$/mg;

is(scalar @routes . ' ' . scalar @actions . ' ' . scalar @admin, '7 7 3', 'the routes');
for my $route (@routes)
{
	my $name = $route eq '/subscriptions/' ? '{name}' : $route eq '/assets/' ? '{asset}' : '{feed}';

	ok($paths{ $route =~ m{./$} ? "$route$name" : $route }, "$route is in openapi.yaml");
	like($reference, qr/^\| `\Q$route\E(?:NAME)?`/m, 'and in reference.md');
}
for my $action (@actions)
{
	ok($paths{"/subscriptions/{name}/$action"}, "$action is in openapi.yaml");
	like($reference, qr/^\| `$action`: /m, 'and in reference.md');
}
for my $path (@admin)
{
	ok($paths{$path}, "$path is in openapi.yaml");
	like($reference, qr/^\| `\Q$path\E` \|/m, 'and in reference.md');
}
like($reference, qr/^\| `\Q$_\E[`{]/m, "$_ is in reference.md") for @metrics;
my %is_metric = map { $_ => 1 } @metrics;
is(join(' ', grep { !$is_metric{$_} } "$reference$operations" =~ /`(feedpub_http_\w+)/g),
	'', 'and no document names another');

# The status of each SQLSTATE
my %sqlstates = slurp_file("$top/http/server/problem.c") =~ /^\t\{"(\w+)", (\d+)\},/mg;
cmp_ok(scalar keys %sqlstates, '>', 15, 'the statuses');
like($reference, qr/^\| $sqlstates{$_} \| [^|]*`$_`/m, "$_ is in reference.md") for sort keys %sqlstates;

# The settings, with their defaults, and whether they are read again
my @settings = slurp_file("$top/http/config/config.c")
  =~ /^\t\{"([a-z-]+)", "[^"]*", "([^"]*)", \d+, \d+, (true|false),/mg;
cmp_ok(scalar @settings, '>', 60, 'the settings');
while (my ($name, $preset, $reloads) = splice @settings, 0, 3)
{
	my $default = $preset eq '' ? '' : "`$preset` ";
	my $reload = $reloads eq 'true' ? 'yes' : 'no';

	like($operations, qr/^\| `$name` \| \Q$default\E\| $reload \|/m, "$name is in operations.md");
}

# The SQL, and what openapi.yaml has
my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'");
sql($node, "SELECT feed_create('outbox'), feed_start_worker();"
	  . "CREATE TABLE kv (k text PRIMARY KEY, v text); SELECT feed_attach('kv');");
my $blocks = 0;
while ($operations =~ /^```sql\n(.*?)^```/msg)
{
	is($node->psql('postgres', $1, on_error_stop => 1), 0, 'the SQL of operations.md, ' . ++$blocks);
}
is($blocks, 2, 'there is some');
sql($node, "SET ROLE customer; SELECT feed_subscribe('mail', 'outbox', 'earliest')");

my $http = http_start($node, user => 'feedpub_http', anonymous_role => 'customer');
my ($path, %method);
for (split /\n/, $openapi)
{
	$path = $1 if /^  (\/\S*):$/;
	push @{ $method{$path} }, uc $1 if /^    (get|head|post):$/;
}
my ($asset) = get($http, '/', Accept => 'text/html')->{content} =~ /src="\.\/assets\/([^"]+)"/;
for my $of (sort keys %method)
{
	my $url = $of =~ s/\{feed\}/outbox/r =~ s/\{name\}/mail/r =~ s/\{asset\}/$asset/r;
	my %server = %$http;

	$server{url} = "http://127.0.0.1:$http->{admin}" if grep { $_ eq $of } @admin;
	for my $method (@{ $method{$of} })
	{
		my $status = get(\%server, $url, method => $method)->{status};

		# a POST without a body, without a receipt, without a secret
		is($status, $of =~ /retry$|discard$/ ? 403 : $method ne 'POST' || $of =~ /poll$/ ? 200 : 400, "$method $of");
	}
}

# the row of a subscription
my @columns = get($http, '/subscriptions/mail')->{content} =~ /[{,]\s*"(\w+)"\s*:/g;
my ($state) = $openapi =~ /^          description: The state\.$(.*?)^        "401"/ms;
is(join(' ', $state =~ /^ {18}(\w+): \{type/mg), join(' ', @columns), 'openapi.yaml has its members');
http_stop($http);

SKIP:
{
	skip 'FEEDPUB_HTTP_LONG is not set', 3 unless $ENV{FEEDPUB_HTTP_LONG};
	skip 'there is no npm', 3 if system('npm --version >/dev/null 2>&1');
	my $dir = PostgreSQL::Test::Utils::tempdir();
	my ($out, $error);

	local $ENV{npm_config_cache} = "$dir/cache";
	command_ok([ 'npm', 'install', '--silent', '--no-audit', '--no-fund', '--prefix', $dir,
			'@apidevtools/swagger-parser@13.0.0', '@redocly/cli@2.77.0' ], 'npm');
	append_to_file("$dir/validate.mjs", <<'JS');
import parser from '@apidevtools/swagger-parser';
console.log((await parser.validate(process.argv[2])).openapi);
JS
	IPC::Run::run([ 'node', "$dir/validate.mjs", "$top/docs/openapi.yaml" ],
		'>', \$out, '2>', \$error);
	is($out, "3.1.0\n", 'the validator accepts openapi.yaml') or diag $error;
	local $ENV{REDOCLY_TELEMETRY} = 'off';
	my $good = IPC::Run::run([ "$dir/node_modules/.bin/redocly", 'lint', "$top/docs/openapi.yaml" ],
		'>', \$out, '2>&1');

	# each error or warning is numbered; what it says of Node.js is not
	ok($good && $out =~ /is valid/ && $out !~ /^\[1\] /m, 'redocly lint too') or diag $out;
}

done_testing();
