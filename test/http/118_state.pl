# A change feed by Durable Streams' State Protocol: its clients, from npm, follow
# three tables in node and in headless Chromium while feedpub-http and the server
# are killed, and show only what the tables were at a moment; messages fit the
# protocol's schema; the page of examples/http shows a table.  All of that needs
# FEEDPUB_HTTP_LONG; what messages are is in sql/page_messages.sql.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubHttp;
use FeedpubTest;
use IO::Socket::INET;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'FEEDPUB_HTTP_LONG is not set' unless $ENV{FEEDPUB_HTTP_LONG};
plan skip_all => 'there is no npm' if system('npm --version >/dev/null 2>&1');

my $dir = PostgreSQL::Test::Utils::tempdir();
my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'");
my $pages = PostgreSQL::Test::Cluster::get_free_port();
my %flags = (port => PostgreSQL::Test::Cluster::get_free_port(), heartbeat => 1, max_wait => 5,
	cors_origins => "http://127.0.0.1:$pages");
my @pids;

local $ENV{npm_config_cache} = "$dir/cache";
local $ENV{HOME} = $dir;
command_ok([ 'npm', 'install', '--silent', '--no-audit', '--no-fund', '--prefix', $dir,
		'@durable-streams/state@0.3.1', '@durable-streams/client@0.2.6', '@tanstack/db@0.15.2', 'ajv@8.20.0',
		'ajv-formats@3.0.1', 'esbuild@0.28.2' ], 'npm');
append_to_file("$dir/$_", slurp_file("$FindBin::RealBin/$_")) for 'state_client.mjs', 'state_schema.mjs';

# The sum of the accounts is 0 at each moment.  The rows of accounts are there
# before they are captured.
sql($node, <<'SQL');
CREATE TABLE accounts (id int PRIMARY KEY, v int);
CREATE TABLE lines (v text, line int, number int, PRIMARY KEY (number, line));
CREATE TABLE names (k text PRIMARY KEY, v text);
INSERT INTO accounts SELECT i, CASE i % 2 WHEN 0 THEN 100 ELSE -100 END FROM generate_series(1, 20) i;
SELECT feed_create_changes('changes'), feed_start_worker();
BEGIN;
SELECT feed_capture(t, 'changes') FROM unnest('{accounts,lines,names}'::regclass[]) t;
INSERT INTO changes (op, relation, key, row) SELECT 'insert', 'public.accounts', json_build_object('id', id), to_json(a) FROM accounts a;
COMMIT;
CREATE PROCEDURE work(i int) LANGUAGE plpgsql AS $$
DECLARE
	amount int := random() * 100;
	low int := 1 + random() * 9;
BEGIN
	UPDATE accounts SET v = v + amount WHERE id = low;
	INSERT INTO lines SELECT md5(random()::text), l, i FROM generate_series(1, 3) l ON CONFLICT (number, line) DO UPDATE SET v = 'again';
	UPDATE lines SET line = line + 3 WHERE number = i AND line = 2 AND NOT EXISTS (SELECT FROM lines WHERE number = i AND line = 5);
	DELETE FROM lines WHERE number = i - 1 AND line = 1;
	INSERT INTO names VALUES ('k"' || i, i) ON CONFLICT (k) DO UPDATE SET v = names.v || '!';
	UPDATE names SET k = k || 'é' WHERE k = 'k"' || (i - 1) AND NOT EXISTS (SELECT FROM names n WHERE n.k = names.k || 'é');
	UPDATE accounts SET v = v - amount WHERE id = low + 10;
END $$;
SQL
my $there = q{
	SELECT concat_ws('|',
		(SELECT string_agg(r, ' ' ORDER BY r COLLATE "C") FROM (SELECT format('%s=%s', id, v) FROM accounts) t (r)),
		coalesce((SELECT string_agg(r, ' ' ORDER BY r COLLATE "C") FROM (SELECT format('[%s,%s]=%s', number, line, v) FROM lines) t (r)), ''),
		coalesce((SELECT string_agg(r, ' ' ORDER BY r COLLATE "C") FROM (SELECT format('%s=%s', k, v) FROM names) t (r)), ''))};
my $http = http_start($node, %flags);

# Transactions, each of which is a moment: less than a page.
sub work
{
	my ($n) = @_;

	sql($node, join '', map { "CALL work($_); SELECT feed_flush('changes');" } 1 .. $n);
	return;
}

sub start
{
	my ($name, @command) = @_;
	my $pid = fork // die "could not fork: $!";

	if (!$pid)
	{
		setpgrp 0, 0;
		chdir $dir;
		open STDOUT, '>>', "$dir/$name.out" or POSIX::_exit(1);
		open STDERR, '>>', "$dir/$name.err" or POSIX::_exit(1);
		exec { $command[0] } @command or POSIX::_exit(1);
	}
	push @pids, $pid;
	return;
}

# Pages, each with a script that sends what it shows to a file of its name
sub serve_pages
{
	my (%page) = @_;
	my $listen = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $pages,
		Listen => 5, ReuseAddr => 1) or die "could not listen: $!";
	my $pid = fork // die "could not fork: $!";

	push @pids, $pid;
	return if $pid;
	setpgrp 0, 0;
	while (my $client = $listen->accept)
	{
		my ($head, $body) = ('', '');

		while (defined(my $line = <$client>))
		{
			last if $line eq "\r\n";
			$head .= $line;
		}
		my ($length) = $head =~ /^Content-Length: (\d+)/mi;
		my ($referer) = $head =~ m{^Referer: http://[^/]*/(\w+)}mi;
		if ($head =~ /^POST/)
		{
			read $client, $body, $length;
			append_to_file("$dir/$referer.out", $body);
			$body = '';
		}
		else
		{
			my ($name) = $head =~ m{^GET /(\w+)};
			$body = $page{ $name // '' } // '';
		}
		print $client "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nReferrer-Policy: unsafe-url\r\nConnection: close\r\n",
		  'Content-Length: ', length $body, "\r\n\r\n$body";
		close $client;
	}
	POSIX::_exit(0);
}

my %clients = map { $_ => [ 'node', 'state_client.mjs', "$http->{url}/streams/changes?limit=30", $_ ] } 'memory', 'collections';
if (-x '/usr/bin/chromium')
{
	command_ok([ "$dir/node_modules/.bin/esbuild", "$dir/state_client.mjs", '--bundle', '--format=esm', '--log-level=error', "--outfile=$dir/bundle.js" ],
		'a bundle for the browser');
	my $script = "<meta charset=utf-8><script type=module>\n" . slurp_file("$dir/bundle.js") =~ s{</script}{<\\/script}gr . '</script>';
	my $table = slurp_file("$FindBin::RealBin/../../examples/http/table.html") . <<'HTML';
<script>
new MutationObserver(() => fetch('/seen', { method: 'POST',
	body: [...body.rows].map(row => row.cells[0].textContent + '=' + row.cells[1].textContent).sort().join(' ') + '\n' }))
	.observe(body, { childList: true });
</script>
HTML
	serve_pages(chromium_memory => $script, chromium_collections => $script, chromium_table => $table);
	for ([ memory => "url=$http->{url}/streams/changes?limit%3D30&kind=memory" ],
		[ collections => "url=$http->{url}/streams/changes?limit%3D30&kind=collections" ],
		[ table => "stream=$http->{url}/streams/changes?type%3Dpublic.accounts" ])
	{
		my ($name, $query) = @$_;

		$clients{"chromium_$name"} = [ '/usr/bin/chromium', '--headless', '--no-sandbox', '--disable-gpu',
			'--disable-dev-shm-usage', "--user-data-dir=$dir/profile_$name", '--remote-debugging-port=0',
			"http://127.0.0.1:$pages/chromium_$name?$query" ];
	}
}

sub last_of
{
	my ($name) = @_;
	my ($line) = -e "$dir/$name.out" ? slurp_file("$dir/$name.out") =~ /^(.*)\n[^\n]*\z/m : ();

	return $line // '';
}

sub all_see
{
	my ($test) = @_;
	my $all = sql($node, $there);
	my $end = time + $PostgreSQL::Test::Utils::timeout_default;

	for my $name (sort keys %clients)
	{
		my $expected = $name eq 'chromium_table' ? $all =~ s/\|.*//sr : $all;

		select undef, undef, undef, 0.1 while last_of($name) ne $expected && time < $end;
		is(last_of($name), $expected, "$test: $name")
		  or diag -e "$dir/$name.err" ? substr slurp_file("$dir/$name.err"), -2000 : '';
	}
	return;
}

work(30);
start($_, @{ $clients{$_} }) for sort keys %clients;
all_see('at the beginning');
work(20);
all_see('live');
for my $round (1 .. 3)
{
	work(10);
	kill 'KILL', $http->{pid};
	waitpid $http->{pid}, 0;
	work(10);
	$http = http_start($node, %flags);
	work(10);
	all_see("after kill $round of feedpub-http");
	$node->stop('immediate');
	$node->start;
	work(10);
	all_see("after crash $round of the server");
}

# What they have shown
for my $name (grep { $_ ne 'chromium_table' } sort keys %clients)
{
	my @states = split /\n/, slurp_file("$dir/$name.out");
	my @torn = grep {
		my $sum = 0;
		$sum += $1 while s/^[^|]*?\K\d+=(-?\d+)//;
		$sum != 0
	} @states;

	cmp_ok(scalar @states, '>', 10, "$name has shown states: " . scalar @states);
	is(scalar @torn, 0, "$name: each of a moment") or diag $torn[0];
}

# The schema of the protocol, and a transaction that a client waits for
my ($xid) = split /\n/, sql($node, 'BEGIN; UPDATE names SET v = 1; SELECT pg_current_xact_id(); COMMIT');
my ($out, $error);
IPC::Run::run([ 'node', "$dir/state_schema.mjs", "$http->{url}/streams/changes", $xid ], '>', \$out, '2>', \$error);
like($out, qr/^[1-9]\d\d+ messages, 0 invalid; the transaction has come$/, "the schema: $out") or diag $error;

# A TRUNCATE clears what a reader of one table has; another is refused.
sql($node, 'TRUNCATE accounts; INSERT INTO accounts VALUES (1, 0)');
if ($clients{chromium_table})
{
	%clients = (chromium_table => 1);
	all_see('after a TRUNCATE');
}
my ($status, $offset) = (200, '-1');
while ($status == 200)
{
	my $page = get($http, "/streams/changes?limit=1000&offset=$offset");

	$status = $page->{status};
	$offset = $page->{headers}{'stream-next-offset'} if $status == 200;
}
is($status, 400, 'a reader of several is refused there');
like(get($http, "/streams/changes?limit=1&offset=$offset&type=public.accounts")->{content}, qr/^\[\{"headers": \{"control": "reset"/, 'just there');
http_stop($http);
done_testing();

END
{
	my $status = $?;

	for (@pids)
	{
		kill 'KILL', -$_, $_;
		waitpid $_, 0;
	}
	$? = $status;
}
