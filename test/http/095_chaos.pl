# Consumers by pages, lines, event streams and Durable Streams read all the
# time, while rows are purged, deletes expire, feeds begin other histories,
# settings are read again, and connections, feedpub-http and the server are
# killed.  In the end each has what is there, and each answer was one that it can
# go on from.  FEEDPUB_HTTP_SEED gives another order, FEEDPUB_HTTP_LONG more
# rounds.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubHttp;
use FeedpubTest;
use HTTP::Tiny;
use IO::Socket::INET;
use JSON::PP;
use List::Util 'shuffle';
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes 'sleep';

my $ROUNDS = $ENV{FEEDPUB_HTTP_LONG} ? 25 : 2;
my $seed = $ENV{FEEDPUB_HTTP_SEED} // 1;
my $dir = PostgreSQL::Test::Utils::tempdir();
my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'\nfeedpub.naptime = 10ms");

sql($node, <<'SQL');
SELECT feed_create('outbox'), feed_start_worker();
CREATE TABLE kv (k text PRIMARY KEY, v int);
SELECT feed_attach('kv');
CREATE SEQUENCE numbers;
SQL
append_to_file("$dir/conf", "max-limit = 5\nheartbeat = 1\nanonymous-role = postgres\n");
my $port = PostgreSQL::Test::Cluster::get_free_port();
my $http = http_start($node, port => $port, file => "$dir/conf", max_wait => 2);

# A consumer: what it has got since it began, of the outbox a list of numbers,
# of the table a copy; its cursor, and how often it has met each status.
sub begin_again
{
	my ($c) = @_;

	@$c{qw(list copy cursor has_end)} = ([], {}, undef, 0);
	return $c;
}

sub take
{
	my ($c, $entry) = @_;
	my $k = $entry->{key}{k};

	take_number($c, $entry->{row}{data}) if $c->{feed} eq 'outbox';
	return if $c->{feed} eq 'outbox';
	$c->{copy} = {} if $entry->{op} eq 'truncate';
	delete $c->{copy}{$k} if $entry->{op} eq 'delete';
	$c->{copy}{$k} = $entry->{row}{v} if $entry->{op} eq 'upsert';
	$c->{has_end} = exists $c->{copy}{end};
	return;
}

sub take_number
{
	my ($c, $number) = @_;

	push @{ $c->{list} }, $number;
	$c->{has_end} = $number eq 'end';
	return;
}

# What to do about an answer: 1 if it is to be taken.
sub meets
{
	my ($c, $status, $text) = @_;

	$c->{statuses}{$status}++;
	return 1 if $status == 200 || $status == 204;
	if ($status == 410)
	{
		begin_again($c);
		return 0;
	}
	die "$c->{kind}: $status: $text" if $status != 503 && $status != 599;
	sleep 0.05;
	return 0;
}

sub after { return defined $_[0]{cursor} ? "&after=$_[0]{cursor}" : '' }

# Each reads something; they return 1 when they have all, up to the end.
my %reads = (
	page => sub {
		my ($c) = @_;
		my $page = get($http, "/feeds/$c->{feed}?limit=7&wait=1" . after($c));

		return 0 if !meets($c, $page->{status}, $page->{content});
		take($c, $_) for @{ $page->{json}{entries} };
		$c->{cursor} = $page->{cursor};
		return $c->{has_end} && !$page->{json}{more};
	},
	lines => sub {
		my ($c) = @_;
		my $response = get($http, "/feeds/$c->{feed}?limit=7" . after($c), Accept => 'application/x-ndjson');

		return 0 if !meets($c, $response->{status}, $response->{content});
		for my $entry (map { decode_json($_) } split /\n/, $response->{content})
		{
			take($c, $entry);
			$c->{cursor} = $entry->{cursor};
		}
		return 1 if $c->{has_end};

		# lines do not wait for what comes after them
		get($http, "/feeds/$c->{feed}?limit=1&wait=1" . after($c));
		return 0;
	},
	durable => sub {
		my ($c) = @_;
		my $response = get($http, "/streams/$c->{feed}?limit=7&offset=" . ($c->{cursor} // '-1')
			  . (defined $c->{cursor} ? '&live=long-poll&wait=1' : ''));

		return 0 if !meets($c, $response->{status}, $response->{content});
		take_number($c, $_) for $response->{status} == 200 ? @{ $response->{json} } : ();
		$c->{cursor} = $response->{headers}{'stream-next-offset'};
		return $c->{has_end} && $response->{headers}{'stream-up-to-date'};
	},

	# until the stream ends, or has a comment, which says that it waits; over
	# HTTP/1.0, since that has no chunks
	events => sub {
		my ($c) = @_;
		my $socket = IO::Socket::INET->new(PeerAddr => "127.0.0.1:$port");
		my $id = defined $c->{cursor} ? "Last-Event-ID: $c->{cursor}\r\n" : '';
		my %event;

		return meets($c, 599) if !$socket;
		print $socket "GET /feeds/$c->{feed}?limit=7 HTTP/1.0\r\nAccept: text/event-stream\r\n$id\r\n";
		my $head = do { local $/ = "\r\n\r\n"; <$socket> } // '';
		my ($status) = $head =~ /^HTTP\/1\.1 (\d+) .*\r\n\r\n$/s;
		return 0 if !meets($c, $status // 599, $head);
		while (my $line = <$socket>)
		{
			$event{$1} = $2 if $line =~ /^(id|data): (.*)\n$/;
			return 1 if $line eq ":\n" && $c->{has_end};
			next if $line ne "\n";
			take($c, decode_json($event{data})) if exists $event{data};
			$c->{cursor} = $event{id} if exists $event{id};
			%event = ();
		}
		return 0;
	});

my @consumers = map { begin_again({ kind => $_->[0], feed => $_->[1], statuses => {} }) }
  [ 'page', 'kv' ], [ 'page', 'outbox' ], [ 'lines', 'kv' ], [ 'durable', 'outbox' ], [ 'events', 'kv' ], [ 'events', 'outbox' ];
for my $c (@consumers)
{
	$c->{file} = "$dir/$c->{kind}.$c->{feed}";
	$c->{pid} = fork // die "could not fork: $!";
	next if $c->{pid};
	local $SIG{PIPE} = 'IGNORE';
	eval { 1 while !$reads{ $c->{kind} }->($c); 1 } or $c->{error} = $@;
	append_to_file($c->{file}, encode_json($c));
	POSIX::_exit(0);
}

# Messages, and rows of kv: new ones, changed ones and deleted ones.
sub fill
{
	sql($node, <<'SQL');
DELETE FROM kv WHERE k LIKE '%7';
UPDATE kv SET v = v + 1 WHERE k LIKE '%3';
INSERT INTO outbox (message_type, data) SELECT 'A', to_jsonb(nextval('numbers')) FROM generate_series(1, 20);
INSERT INTO kv SELECT 'k' || nextval('numbers'), 1 FROM generate_series(1, 20);
SQL
	return;
}

sub flush { return sql($node, "SELECT feed_flush('outbox'), feed_flush('kv')") }

my $limit = 5;
my %events = (
	'a purge of messages' => sub { flush(); sql($node, q(CALL feed_purge('outbox', feed_head('outbox')))) },
	'a purge of deletes' => sub { flush(); sql($node, q(CALL feed_purge('kv', feed_head('kv')))) },
	'an expiry of deletes' => sub {
		my $floor = sql($node, q(SELECT feed_floor('kv')));
		sql($node, q(INSERT INTO kv VALUES ('gone', 1)));
		flush();
		sql($node, q(DELETE FROM kv WHERE k = 'gone'));
		flush();

		# the last batch never expires
		fill();
		flush();
		sql($node, q(SELECT feed_retain('kv', max_age => '1 ms')));
		$node->poll_query_until('postgres', "SELECT feed_floor('kv') <> '$floor'")
		  or die 'deletes do not expire';
		sql($node, q(SELECT feed_retain('kv', max_age => '1 h')));
	},
	'another history of the outbox' => sub { sql($node, q(SELECT feed_begin_history('outbox'))) },
	'another history of the table' => sub { sql($node, q(SELECT feed_begin_history('kv'))) },
	'a TRUNCATE' => sub { sql($node, 'TRUNCATE kv') },
	'other settings' => sub {
		$limit = 6 + $limit % 11;
		unlink "$dir/conf";
		append_to_file("$dir/conf", "max-limit = $limit\nheartbeat = 1\nanonymous-role = postgres\n");
		kill 'HUP', $http->{pid};
	},
	'connections that are killed' => sub {
		sql($node, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
			  . " WHERE application_name LIKE 'feedpub-http%' AND random() < 0.5");
	},
	'a process that is killed' => sub {
		kill 'KILL', $http->{pid};
		http_stop($http);
		$http = http_start($node, port => $port, file => "$dir/conf", max_wait => 2);
	},
	'a crash of the server' => sub { $node->stop('immediate'); $node->start });

END
{
	my $status = $?;

	kill 'KILL', grep { $_ } map { $_->{pid} } @consumers;
	$? = $status;
}

srand $seed;
for my $round (1 .. $ROUNDS)
{
	for my $event (shuffle sort keys %events)
	{
		fill();
		note $event;
		$events{$event}->();
		fill();
	}
	die 'feedpub-http ended' if waitpid($http->{pid}, POSIX::WNOHANG()) != 0;
}
flush();
sql($node, q(INSERT INTO outbox (message_type, data) VALUES ('A', '"end"'); INSERT INTO kv VALUES ('end', 1)));
flush();

my %there = (
	outbox => sql($node, q(SELECT string_agg(data #>> '{}', ' ' ORDER BY feed_pos) FROM outbox)),
	kv => sql($node, q(SELECT string_agg(k || '=' || v, ' ' ORDER BY k COLLATE "C") FROM kv)));
for my $of (@consumers)
{
	my $name = "$of->{feed} by $of->{kind}";

	waitpid $of->{pid}, 0;
	delete $of->{pid};
	my $c = decode_json(slurp_file($of->{file}));
	is($c->{error}, undef, "$name: answers that it can go on from");
	note join ', ', map { "$_: $c->{statuses}{$_}" } sort keys %{ $c->{statuses} };
	my $has = $c->{feed} eq 'outbox' ? join(' ', @{ $c->{list} }) :
	  join(' ', map { "$_=$c->{copy}{$_}" } sort keys %{ $c->{copy} });

	# what was removed may have been got before
	ok($c->{feed} eq 'outbox' ? $has =~ /(?:^| )\Q$there{outbox}\E$/ : $has eq $there{kv}, "$name: what is there")
	  or diag "has $has\nis $there{$c->{feed}}";
	my @numbers = grep { $_ ne 'end' } @{ $c->{list} };
	is_deeply(\@numbers, [ sort { $a <=> $b } @numbers ], "$name: in order");
}
is(http_stop($http), 0, 'feedpub-http has not ended by itself');

done_testing();
