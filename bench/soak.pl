# soak.pl: what bench/soak runs.  Each writer, consumer and disturber is a
# process; this one restarts the server, and measures.
#
# Feed "stream" is an outbox.  A writer numbers the rows of each of its keys
# from 1 without a gap, counting only what has committed: so a consumer knows
# of each row whether it is the next one of its key, and needs to remember one
# number a key.  Table feed "kv" has rows that are changed and deleted; table
# feed "event" has a partition for each minute, some attached with their rows.
# Consumers of both keep copies.
#
# Every five minutes writers pause.  When all have been read, each consumer
# must have each key's last number, and each copy equal its table.  Then memory
# and sizes are compared with those of such a time before.
use strict;
use warnings;
use DBI;
use Digest::MD5 qw(md5_hex);
use HTTP::Tiny;
use IO::Socket::INET;
use JSON::PP;
use POSIX ();
use Time::HiRes qw(sleep time);

$| = 1;
my ($minutes) = @ARGV;
my $work = $ENV{WORK};
my $dir = "$work/soak";
my $json = JSON::PP->new->utf8;
my $me = $$;
my $quiet_every = $minutes < 20 ? 2 : 5;
my $restart_every = int($minutes / 8) || 1;
my %port = (http => free_port(), admin => free_port(), pool => 6432);
my %process;    # pid => name

sub free_port
{
	return IO::Socket::INET->new(Listen => 1, LocalAddr => '127.0.0.1')->sockport;
}

sub chance { return rand(100) < $_[0] }

# Files are how processes speak to each other.
sub put
{
	my ($name, $content) = @_;

	open my $out, '>', "$dir/$name.new.$$" or die "$name: $!";
	print $out $content;
	close $out or die "$name: $!";
	rename "$dir/$name.new.$$", "$dir/$name" or die "$name: $!";
	return;
}

sub got
{
	my ($name) = @_;

	open my $in, '<', "$dir/$name" or return '';
	local $/;
	return <$in> // '';
}

sub problem
{
	my ($text) = @_;

	open my $out, '>>', "$dir/problems" or die "problems: $!";
	print $out "$text\n";
	return;
}

sub connect_as
{
	my ($name, %options) = @_;
	my $port = $options{pool} ? $port{pool} : $ENV{PGPORT};
	my $dbh = DBI->connect("dbi:Pg:host=$work/sock;port=$port;dbname=postgres;application_name='soak $name'",
		'postgres', '', { RaiseError => 1, PrintError => 0, AutoCommit => 1 });

	$dbh->{pg_server_prepare} = 0 if $options{pool};
	return $dbh;
}

# Runs a turn of a process until it returns false, each time with a connection
# that works.  What a client must live with is a restart, a conflict, a
# deadlock, or a lock that is not to be had.
sub live
{
	my ($name, $turn, %options) = @_;
	my $dbh;

	while (getppid == $me)
	{
		my $goes_on = eval { $dbh //= connect_as($name, %options); $turn->($dbh) };
		next if $goes_on;
		my $error = $@ or return;
		my $state = ($dbh ? $dbh->state : $DBI::state) // '';

		if ($dbh && $dbh->ping > 0 && $state =~ /^(40001|40P01|55P03)$|$options{also}/)
		{
			eval { $dbh->rollback if !$dbh->{AutoCommit}; 1 } and next;
		}
		elsif ($dbh && $dbh->ping > 0 && $state !~ /^(57|08)/)
		{
			problem("$name: $state $error");
			return;
		}
		eval { $dbh->disconnect } if $dbh;
		undef $dbh;
		$options{lost}->() if $options{lost};
		sleep 0.2;
	}
	return;
}

sub start
{
	my ($name, $code) = @_;
	my $pid = fork // die "fork: $!";

	if (!$pid)
	{
		srand $$;
		open STDIN, '<', '/dev/null';
		open STDERR, '>>', "$dir/$name.err";
		eval { $code->(); 1 } or problem("$name: $@");
		POSIX::_exit(0);
	}
	$process{$pid} = $name;
	return;
}

# A pause of all who write: what they have written is in their files then.
sub pause_here
{
	my ($name, $state) = @_;

	return if !-e "$dir/pause";
	put("$name.paused", $state);
	sleep 0.05 while -e "$dir/pause" && getppid == $me;
	unlink "$dir/$name.paused";
	return;
}

#
# Writers
#

my @writers = map { "writer$_" } 1 .. 3;
my @all_writers = (@writers, 'long', 'changer', 'partitioner');
my $insert = q(INSERT INTO stream (message_type, message_key, data)
	SELECT 'soak', k, n || ' ' || extract(epoch FROM clock_timestamp()) FROM unnest(?::text[], ?::int[]) AS r (k, n));

# A transaction of some rows, whose last numbers are to be in %last when it has
# committed.  If the answer to COMMIT is lost, the table tells it.
sub write_rows
{
	my ($dbh, $name, $last, $rows, %options) = @_;
	my %next = %$last;
	my (@keys, @numbers);

	for (1 .. $rows)
	{
		push @keys, "$name." . int rand 8;
		push @numbers, ++$next{ $keys[-1] };
	}
	$dbh->begin_work;
	$dbh->do('SELECT pg_current_xact_id()') if $options{open};
	sleep $options{open} if $options{open};
	if (chance(5))
	{
		$dbh->do('SAVEPOINT a');
		$dbh->do($insert, undef, \@keys, \@numbers);
		$dbh->do('ROLLBACK TO a');
	}
	$dbh->do($insert, undef, \@keys, \@numbers);
	if (chance(5))
	{
		$dbh->rollback;
		return;
	}
	eval { $dbh->commit; 1 } or do
	{
		my $error = $@;
		my $found;

		until (defined $found)
		{
			$found = eval {
				(connect_as($name)->selectrow_array(
						q(SELECT count(*) FROM stream WHERE message_key = ? AND split_part(data, ' ', 1) = ?),
						undef, $keys[-1], $numbers[-1]))[0];
			} // (sleep(0.3), undef)[1];
			return if getppid != $me;
		}
		%$last = %next if $found;
		die $error;
	};
	%$last = %next;
	return;
}

sub writer
{
	my ($name, %options) = @_;
	my %last;

	live($name, sub {
		my ($dbh) = @_;

		pause_here($name, $json->encode(\%last));
		if ($options{open})
		{
			write_rows($dbh, $name, \%last, 3, open => $options{open} * rand);
			# so that others can be known to be paused
			return 1;
		}
		write_rows($dbh, $name, \%last, chance(2) ? 200 : 1 + int rand 4);
		sleep 0.03;
		return 1;
	}, also => 'x^');
	return;
}

sub changer
{
	live('changer', sub {
		my ($dbh) = @_;
		my $k = int rand 2000;

		pause_here('changer', '');
		$dbh->begin_work;
		$dbh->do(
			  chance(20) ? 'DELETE FROM kv WHERE k = ?'
			: q(INSERT INTO kv VALUES (?, 1, repeat('x', 100)) ON CONFLICT (k) DO UPDATE SET v = kv.v + 1), undef, $k);
		$dbh->do(q(INSERT INTO event SELECT max(n), (random() * 500)::int, 'row' FROM partitions
			ON CONFLICT (n, id) DO UPDATE SET v = event.v || 'x'));
		chance(5) ? $dbh->rollback : $dbh->commit;
		sleep 0.03;
		return 1;
	}, also => '23514|x^');    # its partition is about to come
	return;
}

# A partition comes each half minute, every other one with its rows; of the
# oldest the rows are deleted, and it goes.
sub partitioner
{
	my $next = time;

	live('partitioner', sub {
		my ($dbh) = @_;

		pause_here('partitioner', '');
		sleep(0.2), return 1 if time < $next;
		my ($n) = $dbh->selectrow_array('SELECT max(n) + 1 FROM partitions');
		my ($old) = $dbh->selectrow_array('SELECT min(n) FROM partitions HAVING count(*) > 5');

		$dbh->do(q(SET lock_timeout = '5s'));
		$dbh->begin_work;
		if ($n % 2)
		{
			$dbh->do("CREATE TABLE event_$n PARTITION OF event FOR VALUES IN ($n)");
		}
		else
		{
			$dbh->do("CREATE TABLE event_$n (LIKE event INCLUDING ALL)");
			$dbh->do("INSERT INTO event_$n (n, id, v) SELECT $n, i, 'there' FROM generate_series(501, 1000) i");
			$dbh->do("ALTER TABLE event ATTACH PARTITION event_$n FOR VALUES IN ($n)");
		}
		$dbh->do('INSERT INTO partitions VALUES (?)', undef, $n);
		$dbh->commit;
		$next = time + 30;
		return 1 if !$old;
		# rows that are not stamped yet have no delete that follows them
		$dbh->do('DELETE FROM event WHERE n = ?', undef, $old);
		$dbh->begin_work;
		$dbh->do("DROP TABLE event_$old");
		$dbh->do('DELETE FROM partitions WHERE n = ?', undef, $old);
		$dbh->commit;
		return 1;
	}, also => '42P07|x^');
	return;
}

#
# Consumers
#

# Is a row the next one of its key?
sub follow
{
	my ($name, $last, $key, $data) = @_;
	my ($n) = split / /, $data;
	my $next = ($last->{$key} // 0) + 1;

	problem("$name: $key: $n in place of $next") if $n != $next;
	$last->{$key} = $n;
	return;
}

# Where a consumer is, when it has found nothing more.
sub at
{
	my ($name, $state) = @_;

	put("$name.at", $state) if got("$name.at") ne $state;
	return;
}

sub numbers
{
	my ($last) = @_;

	return join ' ', map { "$_=$last->{$_}" } sort keys %$last;
}

sub digest
{
	my ($copy) = @_;

	return md5_hex(join "\n", map { "$_ $copy->{$_}" } sort keys %$copy);
}

my %read = (
	published => q(SELECT cursor, (entry).message_key, (entry).data FROM feed_read(NULL::stream, ?, ?)),
	xid => q(SELECT feed_xid || ' ' || feed_pos, message_key, data FROM feed_fetch(NULL::stream,
		split_part(?, ' ', 1)::xid8, split_part(?, ' ', 2)::bigint, ?)));

sub reader
{
	my ($name, $query, $pause) = @_;
	my $cursor = $query eq 'xid' ? '0 0' : '';
	my (%last, $latency);

	open $latency, '>>', "$dir/latency" if $name eq 'reader';
	$latency->autoflush(1) if $latency;
	live($name, sub {
		my ($dbh) = @_;
		my @cursor = ($cursor) x ($query eq 'xid' ? 2 : 1);
		my $page = $dbh->selectall_arrayref($read{$query}, undef, @cursor,
			$pause ? 10_000 : 1 + int rand 1000);

		for (@$page)
		{
			next if !defined $_->[1];
			follow($name, \%last, @$_[ 1, 2 ]);
			printf $latency "%.1f\n", 1000 * (time - (split / /, $_->[2])[1]) if $latency && $_->[1] =~ /^writer/;
		}
		if (@$page)
		{
			$cursor = $page->[-1][0];
			sleep $pause if $pause;
			return 1;
		}
		at($name, numbers(\%last));
		$query eq 'xid' ? sleep 0.1 : $dbh->do(q(SELECT feed_wait('stream', ?, '1 s')), undef, $cursor);
		return 1;
	}, also => 'x^');
	return;
}

# Applies the entries of a page to a copy; values are rows without their key.
sub apply
{
	my ($copy, $entries) = @_;

	for my $entry (@$entries)
	{
		my $key = join ' ', map { $entry->{key}{$_} } sort keys %{ $entry->{key} };

		$entry->{op} eq 'delete' ? delete $copy->{$key} : ($copy->{$key} = $entry->{row}{v});
	}
	return;
}

sub copier
{
	my ($name, $feed, $max_rows) = @_;
	my ($cursor, %copy) = ('');

	live($name, sub {
		my ($dbh) = @_;
		my $page = $json->decode(($dbh->selectrow_array('SELECT feed_page(?, ?, ?)', undef, $feed, $cursor, $max_rows))[0]);

		apply(\%copy, $page->{entries});
		$cursor = $page->{cursor};
		at($name, digest(\%copy)), sleep 0.2 if !@{ $page->{entries} } && !$page->{more};
		return 1;
	}, also => 'x^');
	return;
}

# The effect of a page is in the transaction of its acknowledgement.
sub subscriber
{
	my ($name, $subscription, %options) = @_;

	live($name, sub {
		my ($dbh) = @_;

		$dbh->begin_work;
		my $page = $dbh->selectall_arrayref(
			q(SELECT receipt, "row" ->> 'message_key', "row" ->> 'data' FROM feed_poll(?, ?, ?)),
			undef, $subscription, 1 + int rand 500, $name);
		for (@$page)
		{
			my ($n) = split / /, $_->[2];
			my ($before) = $dbh->selectrow_array(
				'INSERT INTO effect AS e VALUES (?, ?, ?) ON CONFLICT (subscription, key) DO UPDATE SET n = EXCLUDED.n, before = e.n RETURNING before',
				undef, $subscription, $_->[1], $n);

			problem("$name: $_->[1]: $n after " . ($before // 'none')) if $n != ($before // 0) + 1;
		}
		$dbh->do('SELECT feed_ack(?, ?)', undef, $subscription, $page->[-1][0]) if @$page;
		chance(2) ? $dbh->rollback : $dbh->commit;
		sleep 0.2 if !@$page;
		return 1;
	}, also => 'PF003|PF005', %options);
	return;
}

# A stream by curl, which goes on where it was when it ends.
sub streamer
{
	my %last;
	my $id = '';

	while (getppid == $me)
	{
		my $pid = open my $in, '-|', 'curl', '-sN', '--max-time', 100 + int rand 100, '-H', 'Accept: text/event-stream',
		  '-H', "Last-Event-ID: $id", "http://127.0.0.1:$port{http}/feeds/stream"
		  or die "curl: $!";
		my %event;
		while (my $line = <$in>)
		{
			last if getppid != $me;
			$event{$1} = $2 if $line =~ /^(\w+): (.*)\n/;
			next if $line ne "\n";
			# the event is whole; the last one may be cut short
			$id = $event{id} // $id;
			if (defined $event{data})
			{
				my $entry = $json->decode($event{data});
				follow('streamer', \%last, $entry->{row}{message_key}, $entry->{row}{data});
			}
			at('streamer', numbers(\%last)) if -e "$dir/pause";
			%event = ();
		}
		kill 'TERM', $pid;
		close $in;
		sleep 0.5;
	}
	return;
}

# Pages that wait, of the outbox, or of the table for a copy.
sub http_reader
{
	my ($name, $feed) = @_;
	my $http = HTTP::Tiny->new(timeout => 60, keep_alive => 1, max_redirect => 0);
	my ($after, %last) = ('');

	while (getppid == $me)
	{
		my $url = "http://127.0.0.1:$port{http}/feeds/$feed";
		my $page = $http->get("$url?limit=" . (1 + int rand 1000) . "&wait=2&after=$after");
		# where the feed begins; HTTP::Tiny follows no relative URLs
		$page = $http->get("$url$page->{headers}{location}") if $page->{status} == 307;
		if ($page->{status} != 200)
		{
			# no connection, no database, the server starts
			problem("$name: $page->{status} $page->{content}") if $page->{status} !~ /^(503|599)$/;
			sleep 0.5;
			next;
		}
		my $body = $json->decode($page->{content});

		$feed eq 'stream'
		  ? map { follow($name, \%last, $_->{row}{message_key}, $_->{row}{data}) } @{ $body->{entries} }
		  : apply(\%last, $body->{entries});
		$after = $body->{cursor};
		at($name, $feed eq 'stream' ? numbers(\%last) : digest(\%last)) if !@{ $body->{entries} };
	}
	return;
}

#
# What disturbs
#

sub disturber
{
	my @what = (
		'VACUUM stream', 'VACUUM kv', 'ANALYZE', 'CHECKPOINT',
		'REINDEX TABLE CONCURRENTLY stream', 'REINDEX TABLE CONCURRENTLY kv',
		'REINDEX TABLE CONCURRENTLY feedpub._batch', 'REINDEX TABLE CONCURRENTLY feedpub._tombstone',
		'ALTER TABLE stream ADD IF NOT EXISTS more text', 'ALTER TABLE stream DROP IF EXISTS more',
		'ALTER TABLE kv ADD IF NOT EXISTS more int DEFAULT 7', 'ALTER TABLE kv DROP IF EXISTS more',
		'ALTER TABLE event ADD IF NOT EXISTS more int', 'ALTER TABLE event DROP IF EXISTS more',
		q(CALL feed_republish('kv')), q(CALL feed_republish('event', true)),
		q(SELECT feed_subscribe('visitor', 'stream')),
		q(SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type LIKE 'feedpub%' ORDER BY random() LIMIT 1),
		'repack stream', 'repack kv', 'storm', 'storm', 'storm');

	live('disturber', sub {
		my ($dbh) = @_;
		my $what = $what[ int rand @what ];

		sleep 2 + rand 8;
		return 1 if $what =~ /terminate/ && -e "$dir/half";
		put('disturbing', $what);
		$dbh->do(q(SET lock_timeout = '2s'));
		# one that reads nothing does not stay: what it has not read is kept
		$dbh->do(q(SELECT feed_unsubscribe(name) FROM feedpub.subscriptions WHERE name = 'visitor'));
		if ($what =~ /^repack (.*)/)
		{
			system("pg_repack -D -T 5 -t $1 -d postgres >>$dir/repack.log 2>&1");
		}
		elsif ($what eq 'storm')
		{
			# each transaction a connection of its own
			put('storm.sql', q(SELECT count(*) FROM feed_read(NULL::stream, feed_head('stream'));));
			system("pgbench -n -C -c 40 -t 5 -f $dir/storm.sql -h $work/sock -p $_ postgres >>$dir/storm.log 2>&1")
			  for $port{pool}, $ENV{PGPORT};
		}
		else
		{
			$dbh->do($what);
		}
		return 1;
	}, also => 'x^');
	return;
}

#
# What is measured
#

my %series;    # name => [value of each quiet time]

# Anonymous memory in MB, and file descriptors, of a process.
sub of_process
{
	my ($pid) = @_;

	open my $in, '<', "/proc/$pid/status" or return (0, 0);
	my ($kb) = map { /^RssAnon:\s+(\d+)/ ? $1 : () } <$in>;
	my @fds = glob "/proc/$pid/fd/*";

	return (($kb // 0) / 1024, scalar @fds);
}

sub largest
{
	my (@pids) = @_;
	my ($memory, $fds) = (0, 0);

	for (@pids)
	{
		my ($m, $f) = of_process($_);
		$memory = $m if $m > $memory;
		$fds = $f if $f > $fds;
	}
	return ($memory, $fds);
}

sub measure
{
	my ($dbh, $http) = @_;
	my %now;
	my $pids = sub {
		return map { $_->[0] } @{ $dbh->selectall_arrayref("SELECT pid FROM pg_stat_activity WHERE $_[0]") };
	};

	@now{ 'backend MB', 'backend fds' } = largest($pids->(q(application_name ~ '^soak .*(read|copy|solo|group)')));
	@now{ 'worker MB', 'worker fds' } = largest($pids->(q(backend_type LIKE 'feedpub%')));
	@now{ 'http MB', 'http fds' } = of_process($http);
	my $sizes = $dbh->selectall_arrayref(<<'SQL');
SELECT CASE WHEN relnamespace = 'feedpub'::regnamespace THEN 'feedpub' WHEN relname ~ '^event' THEN 'event' ELSE relname END,
	sum(pg_total_relation_size(oid)) / 1048576.0
FROM pg_class
WHERE relkind = 'r' AND (relnamespace = 'feedpub'::regnamespace OR relname ~ '^(stream|kv|event)')
GROUP BY 1
SQL
	$now{"$_->[0] size"} = $_->[1] for @$sizes;
	return %now;
}

my @columns = ('backend MB', 'worker MB', 'http MB', 'backend fds', 'worker fds', 'http fds',
	'feedpub size', 'stream size', 'kv size', 'event size');

sub percentile
{
	my ($p, @sorted) = @_;

	return @sorted ? $sorted[ int($p * $#sorted) ] : 0;
}

# All writers pause, all consumers come to the end: are they equal?
sub quiet
{
	my ($dbh) = @_;
	my $begun = time;
	my (%last, %truth, @differ);

	put('pause', '');
	until (@all_writers == grep { -e "$dir/$_.paused" } @all_writers)
	{
		sleep 0.1;
		return problem("quiet: not paused: @{[grep { !-e qq($dir/$_.paused) } @all_writers]}") if time > $begun + 120;
	}
	%last = (%last, %{ $json->decode(got("$_.paused")) }) for @writers, 'long';
	$dbh->do("SELECT feed_flush('$_')") for qw(stream kv event);
	my $stream = numbers(\%last);

	do
	{
		my %copy;
		sleep 0.2;
		for my $feed (qw(kv event))
		{
			my $key = $feed eq 'kv' ? 'k::text' : q(id || ' ' || n);
			$copy{$feed} = digest({ map { @$_ } @{ $dbh->selectall_arrayref("SELECT $key, v FROM $feed") } });
		}
		%truth = (
			(map { $_ => $stream } qw(reader slow xid_reader streamer http_reader)),
			(map { $_ => $copy{kv} } qw(copy_kv http_copy)), copy_event => $copy{event});
		@differ = grep { got("$_.at") ne $truth{$_} } sort keys %truth;
		for my $subscription (qw(solo group))
		{
			my %effect = map { @$_ } @{ $dbh->selectall_arrayref(
					'SELECT key, n FROM effect WHERE subscription = ?', undef, $subscription) };
			push @differ, $subscription if numbers(\%effect) ne $stream;
		}
	} while (@differ && time < $begun + 180);
	problem("quiet: not at the end: @differ") if @differ;
	return;
}

#
# The run
#

# Ends all, however this ends.
my %service;
$SIG{$_} = sub { exit 1 } for qw(INT TERM HUP);
END
{
	my $status = $?;
	if ($$ == $me)
	{
		kill 'TERM', grep { defined } keys %process, values %service;
	}
	$? = $status;
}

sub service
{
	my ($name, @command) = @_;
	my $pid = fork // die "fork: $!";

	if (!$pid)
	{
		open STDIN, '<', '/dev/null';
		open STDOUT, '>>', "$dir/$name.log";
		open STDERR, '>&', \*STDOUT;
		exec @command or POSIX::_exit(1);
	}
	return $service{$name} = $pid;
}

put('pgbouncer.ini', <<"INI");
[databases]
postgres = host=$work/sock port=$ENV{PGPORT} dbname=postgres user=postgres
[pgbouncer]
pool_mode = transaction
default_pool_size = 20
max_client_conn = 500
auth_type = any
listen_addr =
listen_port = $port{pool}
unix_socket_dir = $work/sock
server_login_retry = 0.2
ignore_startup_parameters = extra_float_digits,application_name
INI
my $dbh = connect_as('driver');
$dbh->do($_) for 'CREATE EXTENSION feedpub', 'CREATE EXTENSION pg_repack',
  q(SELECT feed_create('stream', 'text')), q(SELECT feed_retain('stream', '3 min')),
  'CREATE TABLE kv (k int PRIMARY KEY, v bigint NOT NULL, filler text)', q(SELECT feed_attach('kv')),
  'CREATE TABLE event (n int, id int, v text, PRIMARY KEY (n, id)) PARTITION BY LIST (n)',
  'CREATE TABLE event_1 PARTITION OF event FOR VALUES IN (1)', q(SELECT feed_attach('event')),
  'CREATE TABLE partitions (n int PRIMARY KEY)', 'INSERT INTO partitions VALUES (1)',
  'CREATE TABLE effect (subscription text, key text, n int NOT NULL, before int, PRIMARY KEY (subscription, key))',
  q(SELECT feed_subscribe('solo', 'stream', 'earliest')), q(SELECT feed_subscribe('group', 'stream', 'earliest', 16));
service('pgbouncer', 'pgbouncer', '-q', "$dir/pgbouncer.ini");
my $http = service('http', "$work/tree/http/feedpub-http", "--listen=127.0.0.1:$port{http}", "--admin=127.0.0.1:$port{admin}",
	"--database=host=$work/sock dbname=postgres user=postgres", '--anonymous-role=postgres');

start('reader', sub { reader('reader', 'published') });
start('slow', sub { reader('slow', 'published', 10) });
start('xid_reader', sub { reader('xid_reader', 'xid') });
start('copy_kv', sub { copier('copy_kv', 'kv', 300) });
start('copy_event', sub { copier('copy_event', 'event', 100) });
start('solo', sub { subscriber('solo', 'solo') });
for my $member (1 .. 3)
{
	start("group$member", sub { subscriber("group$member", 'group', pool => 1) });
}
start('streamer', \&streamer);
start('http_reader', sub { http_reader('http_reader', 'stream') });
start('http_copy', sub { http_reader('http_copy', 'kv') });
for my $name (@writers)
{
	start($name, sub { writer($name) });
}
start('long', sub { writer('long', open => 40) });
start('changer', \&changer);
start('partitioner', \&partitioner);
start('disturber', \&disturber);

print join("\t", qw(minute rows/s p50_ms p99_ms max_ms), map { tr/ /_/r } @columns), "\n";
my ($at, $modes, $checks) = (time, 0, 0);
my $latency_at = 0;
for my $minute (1 .. $minutes)
{
	my $end = $at + 60;
	my $happened = '';

	# none in the second half, so that what grows slowly has the time to
	if ($minute % $restart_every == 0 && $minute <= $minutes / 2)
	{
		my $mode = $modes++ % 2 ? 'immediate' : 'fast';

		$happened = "\trestart $mode";
		system("pg_ctl -D $work/data -l $work/server.log -w -t 120 -m $mode restart >>$dir/restart.log 2>&1") == 0
		  or problem("the server did not restart: " . got('restart.log'));
		eval { $dbh->disconnect };
		$dbh = connect_as('driver');
	}
	put('half', '') if $minute > $minutes / 2;
	sleep($end - 10 - time) if time < $end - 10;
	if ($minute % $quiet_every == 0 || $minute == $minutes)
	{
		$happened .= "\tquiet";
		quiet($dbh);
		$checks++;
	}
	else
	{
		sleep($end - time) if time < $end;
	}
	my %now = measure($dbh, $http);
	push @{ $series{$_} }, $now{$_} for @columns;
	my ($holder) = $dbh->selectrow_array(
		q(SELECT held_by FROM feedpub.feeds WHERE feed = 'stream'::regclass AND held_by ~ '^subscription'));
	$happened .= "\theld by $holder" if defined $holder;
	unlink "$dir/pause";

	open my $in, '<', "$dir/latency";
	seek $in, $latency_at, 0;
	my @latency = sort { $a <=> $b } map { 0 + $_ } <$in>;
	$latency_at = tell $in;
	printf "%s%s\n", join("\t", $minute, map { sprintf '%.1f', $_ } scalar(@latency) / (time - $at),
		percentile(0.5, @latency), percentile(0.99, @latency), percentile(1, @latency), @now{@columns}), $happened;
	$at = time;
	while ((my $pid = waitpid -1, POSIX::WNOHANG()) > 0)
	{
		problem("$process{$pid} has ended") if $process{$pid};
		problem('feedpub-http has ended') if $pid == $http;
		delete $process{$pid};
	}
	last if -s "$dir/problems";
}

# Flat: the second half, without restarts, is not above the first.
my $half = int(@{ $series{ $columns[0] } } / 2);
for my $name ($half ? @columns : ())
{
	my @values = @{ $series{$name} };
	my $peak = sub { return (sort { $a <=> $b } @_)[-1] };
	my ($early, $late) = ($peak->(@values[ 0 .. $half - 1 ]), $peak->(@values[ $half .. $#values ]));
	my $slack = $name =~ /fds/ ? 64 : 8;

	printf "%-12s peak of the first half %.1f, of the second %.1f\n", $name, $early, $late;
	problem("$name has grown from $early to $late") if $minutes >= 20 && $late > 1.25 * $early + $slack;
}
my $failures = got('problems');
print "problems:\n$failures" if $failures;
print $failures ? "FAILED\n"
  : 'nothing lost, ' . ($minutes < 20 ? 'too short for what grows' : 'nothing grew')
  . ": $checks checks at quiet times, $modes restarts\n";
exit($failures ? 1 : 0);
