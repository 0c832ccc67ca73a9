# The proof that each message is in the stream once: three nats-servers that are a
# cluster, three servers under Patroni in its synchronous mode, two relays, and
# every ten seconds something that is killed: a relay, the leader of the stream,
# another nats-server, the primary or a standby, or all of the primary with its
# Patroni.  Proxies between the relays and all of these delay connections, cut
# them, and leave them half open.
#
# Writers insert by transactions of up to 400 rows, of which some are rolled back,
# by a savepoint or as a whole, and some are open for up to 20 seconds.  They note
# what was acknowledged.  A consumer reads the stream all the time.  The truth is
# what is in the table at the end, in published order:
#
# - every transaction that was acknowledged is in it, whole, none that was rolled
#   back, and of those without an answer all or nothing;
# - what the consumer has read, and what the stream has, are these rows, each once,
#   in published order.
#
# It takes FEEDPUB_RELAY_LONG seconds (the proof: 1200), and some minutes to
# compare.  FEEDPUB_RELAY_RATE is how many rows a second are written (3000).
# FEEDPUB_RELAY_PROGRAM is another feedpub-relay, which may be a broken one.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use Test::More;

BEGIN
{
	plan skip_all => 'FEEDPUB_RELAY_LONG is not set' if !$ENV{FEEDPUB_RELAY_LONG};
	plan skip_all => 'Patroni, etcd or DBD::Pg is missing'
	  if !eval { require DBD::Pg; 1 } || grep { !qx(which $_) } qw(patroni patronictl etcd);
}

use FeedpubFailover;
use FeedpubPatroni;
use FeedpubProxy;
use FeedpubRelay;
use File::Basename;
use JSON::PP ();
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Time::HiRes ();

my $seconds = $ENV{FEEDPUB_RELAY_LONG};
my $rate = $ENV{FEEDPUB_RELAY_RATE} || 3000;
my $seed = $ENV{FEEDPUB_SEED} // time;
my $nwriters = 5;
my $interval = 10;
my $dir = PostgreSQL::Test::Utils::tempdir_short();
my $files = PostgreSQL::Test::Utils::tempdir();
my $owner = $$;
my ($cluster, %kills, %not, %clients);

diag("seed $seed");
srand $seed;
END
{
	if ($owner == $$)
	{
		my $status = $?;

		kill 'KILL', keys %clients;
		$cluster->end if $cluster;
		$? = $status;
	}
}

#
# What runs
#

$cluster = FeedpubPatroni->new(dir => $dir, bindir => dirname(qx(which initdb)));
$cluster->start;
$cluster->set_mode('synchronous');
my @ports = @{ $cluster->{port} }{ @{ $cluster->{nodes} } };
my $dbh = $cluster->connect($cluster->leader);
$dbh->do('CREATE EXTENSION feedpub');
$dbh->do(q{SELECT feed_create('outbox')});
$dbh->disconnect;

my @nats = nats_cluster();
my @proxies;

# A proxy before each of these ports; returns its port.
sub proxied
{
	return map {
		my $port = PostgreSQL::Test::Cluster::get_free_port();

		push @proxies, proxy_start($port, $_, every => 15);
		$port;
	} @_;
}

my $database = 'host=' . join(',', ('127.0.0.1') x 3) . ' port=' . join(',', proxied(@ports))
  . ' dbname=postgres user=postgres target_session_attrs=read-write connect_timeout=3';
my @options = (
	database => $database,
	to => join(',', map { "nats://127.0.0.1:$_" } proxied(map { $_->{port} } @nats)),
	subject => '{feed}.{type}.{key}',
	stream_replicas => 3,
	takeover => 3,
	statement_timeout => 5,
	wait => 0);
my %relays;

sub start_relay
{
	my ($i) = @_;

	$relays{$i} = relay_start(undef, undef, @options, name => "r$i");
	return;
}

sub spawn
{
	my ($code) = @_;
	my $pid = fork // die "could not fork: $!";

	if ($pid)
	{
		$clients{$pid} = 1;
		push @{ $cluster->{clients} }, $pid;
		return $pid;
	}
	$SIG{PIPE} = 'IGNORE';
	eval { $code->(); 1 } or print STDERR "# a client has ended: $@";
	POSIX::_exit(0);
}

# What a transaction came to: C was acknowledged, R was rolled back, U is not
# known, since the connection was lost or a statement failed.  A row that
# shall not be there says so.
sub write_rows
{
	my ($number, $end) = @_;
	my $load = FeedpubFailover->new(dir => $files, seed => 0, ports => \@ports);
	my $begin = Time::HiRes::time();
	my ($n, $rows) = (0, 0);

	srand $seed + $number;
	$load->{name} = "writer-$number";
	open my $log, '>', "$files/writer.$number" or die;
	while (Time::HiRes::time() < $end)
	{
		my $id = "$number." . ++$n;
		my $commits = rand() < 0.85;
		my $size = rand() < 0.3 ? 1 + int rand 5 : 1 + int rand 400;
		my $insert = sub {
			$load->run(<<'SQL', $_[0] ? 'committed' : 'rolled-back', "k$number", $id, $_[1], $_[2]);
INSERT INTO outbox (message_type, message_key, data)
SELECT $1, $2, json_build_object('id', $3 || '.' || i, 'text', repeat('x', 60)) FROM generate_series($4::int, $5::int) i
SQL
		};
		my $state = $load->attempt('read-write', sub {
			my $half = int $size / 2;

			$load->run('BEGIN');
			$insert->($commits, 1, $half);
			if (rand() < 0.1)
			{
				$load->run('SAVEPOINT s');
				$insert->(0, 1, 1 + int rand 20);
				$load->run('ROLLBACK TO s');
			}
			Time::HiRes::sleep(rand 20) if rand() < 0.005;
			Time::HiRes::sleep(rand 0.5) if rand() < 0.05;
			$insert->($commits, $half + 1, $size);
			$load->run($commits ? 'COMMIT' : 'ROLLBACK');
		});
		print $log defined $state ? $commits ? 'U' : 'R' : $commits ? 'C' : 'R', " $id $size\n";
		$rows += $size;
		my $ahead = $rows / ($rate / $nwriters) - (Time::HiRes::time() - $begin);
		# what was not written while there was no primary is not all made up for
		$begin += -$ahead - 20 if $ahead < -20;
		Time::HiRes::sleep($ahead) if $ahead > 0;
	}
	close $log;
	return;
}

# Each message as a line: sequence, type, id, message_id.
sub print_messages
{
	my ($file, $first, $goes_on) = @_;

	open my $out, '>', $file or die;
	stream_follow(\@nats, 'outbox', $first, sub {
		my ($message) = @_;

		if ($message)
		{
			my ($id) = $message->{data} =~ /"id" ?: ?"([^"]*)"/;
			print $out join(' ', $message->{seq}, $message->{headers}{'ce-type'}, $id, $message->{headers}{'ce-messageid'}), "\n";
		}
		return $goes_on->($message);
	});
	close $out;
	return;
}

# A server that has just begun may not know the stream's state.
sub info
{
	while (1)
	{
		my $info = nats_any(\@nats, 'STREAM.INFO.outbox');

		return $info if $info->{state} && defined $info->{state}{messages};
		note('no state: ' . JSON::PP::encode_json($info));
		Time::HiRes::sleep(0.2);
	}
}

#
# What is done to them
#

# Each returns whether it could be done now.
my %do = (
	relay => sub {
		my $i = 1 + int rand 2;

		relay_stop($relays{$i}, 'KILL');
		start_relay($i);
		return 1;
	},
	# it comes again when the other one has taken over
	sleep => sub {
		my $pid = $relays{ 1 + int rand 2 }{pid};

		kill 'STOP', $pid;
		Time::HiRes::sleep(4);
		kill 'CONT', $pid;
		return 1;
	},
	leader => sub { kill_nats(1) },
	follower => sub { kill_nats(0) },
	postmaster => sub { on_primary(sub { $cluster->kill_postmaster($_[0]) }) },
	server => sub {
		on_primary(sub {
			$cluster->kill_all($_[0]);
			$cluster->rejoin($_[0]);
		});
	},
	# it recovers, and goes on as the primary, or another one is promoted
	backend => sub {
		on_primary(sub {
			my @pids = grep { FeedpubPatroni::command_line($_) =~ /walwriter|checkpointer|feedpub/ } $cluster->server_pids($_[0]);

			kill 'KILL', $pids[ rand @pids ];
		});
	},
	standby => sub {
		on_primary(sub {
			my @standbys = grep { $_ ne $_[0] } @{ $cluster->{nodes} };

			kill 'KILL', $cluster->postmaster($standbys[ rand @standbys ]);
		});
	});
my @dice = ((map { ($_) x 6 } qw(relay leader)), (map { ($_) x 2 } qw(follower backend standby)), (map { ($_) x 3 } qw(postmaster)), qw(server sleep));

sub kill_nats
{
	my ($is_leader) = @_;
	my $leader = info()->{cluster}{leader} or return;
	my ($nats) = grep { $is_leader == ($_->{name} eq $leader) } sort { rand() <=> 0.5 } @nats;

	nats_stop($nats, 'KILL');
	nats_restart($nats);
	return 1;
}

# In synchronous mode nothing is lost while there is a standby that has all.
sub on_primary
{
	my ($code) = @_;

	return if !$cluster->is_healthy('synchronous');
	$code->($cluster->leader // return);
	return 1;
}

my $start = Time::HiRes::time();
my $end = $start + $seconds;
start_relay($_) for 1, 2;
my @writers = map { my $n = $_; spawn(sub { write_rows($n, $end) }) } 1 .. $nwriters;
nats_any(\@nats, 'STREAM.INFO.outbox');
my $consumer = spawn(sub {
	my $n = 0;

	print_messages("$files/consumed", 1, sub {
		$n++ if $_[0];
		return 1 if $_[0] || !-s "$files/count";
		return $n < slurp_file("$files/count");
	});
});

my ($next, $tell, $primary, $promotions) = ($start + 5, $start + 60, $cluster->leader, 0);
my $unexpected = 0;
while ((my $now = Time::HiRes::time()) < $end)
{
	Time::HiRes::sleep(0.2);
	$cluster->reap;
	for my $i (grep { !kill 0, $relays{$_}{pid} } keys %relays)
	{
		$unexpected++;
		diag("relay $i has ended: " . join '', (split /^/, relay_log($relays{$i}))[ -3 .. -1 ]);
		start_relay($i);
	}
	my $leader = $cluster->leader;
	$promotions++ if $leader && $leader ne $primary;
	$primary = $leader if $leader;
	if ($now >= $tell)
	{
		$tell += 60;
		note(sprintf '%d s: %d messages, %d promotions, kills: %s', $now - $start, info()->{state}{messages}, $promotions, kills());
	}
	next if $now < $next;
	my $what = $dice[ rand @dice ];
	if ($do{$what}->()) { $kills{$what}++; $next += $interval }
	else { $not{$what}++ }
}

sub kills { return join ', ', map { "$_ $kills{$_}" } sort keys %kills }

#
# The judge
#

FeedpubPatroni::wait_until(300, 'the end of the writers', sub { $cluster->reap; !grep { waitpid($_, POSIX::WNOHANG()) == 0 } @writers });
FeedpubPatroni::wait_until(120, 'a cluster of three', sub { $cluster->is_healthy('synchronous') });
$dbh = $cluster->connect($cluster->leader);
$dbh->do(q{SELECT feed_flush('outbox')});
my ($count) = $dbh->selectrow_array('SELECT count(*) FROM outbox');
my $killed = 0;
$killed += $kills{$_} for grep { $_ ne 'sleep' } keys %kills;
diag("$killed kills, and relays that slept: " . kills() . "; promotions: $promotions; not possible then: "
	  . join ', ', map { "$_ $not{$_}" } sort keys %not);
FeedpubPatroni::wait_until(600, 'all in the stream', sub { info()->{state}{messages} >= $count });
diag(sprintf '%d messages, all in the stream %.0f s after the last writer', $count, Time::HiRes::time() - $end);
append_to_file("$files/count", $count);
FeedpubPatroni::wait_until(600, 'the end of the consumer', sub { waitpid($consumer, POSIX::WNOHANG()) });
is($unexpected, 0, 'no relay has ended by itself');
is(relay_stop($_), 0, 'a relay ends') for values %relays;
my $last = info()->{state}{last_seq};
is($last, $count, 'the stream has as many messages as the table has rows');
print_messages("$files/stream", 1, sub { !$_[0] || $_[0]{seq} < $last });

# what was acknowledged, and what is in the table
my %rows = map { $_->[0] => $_->[1] } @{ $dbh->selectall_arrayref(<<'SQL') };
SELECT substring(data ->> 'id' FROM '^[0-9]+\.[0-9]+'), count(*) FROM outbox GROUP BY 1
SQL
my %wrong;
my %outcomes = map { $_ => 0 } qw(C R U);
for my $n (1 .. $nwriters)
{
	open my $log, '<', "$files/writer.$n" or die;
	while (<$log>)
	{
		my ($outcome, $id, $size) = split;
		my $there = delete $rows{$id} // 0;

		$outcomes{$outcome}++;
		next if $there == ($outcome eq 'R' ? 0 : $size) || ($outcome eq 'U' && $there == 0);
		push @{ $wrong{$outcome} }, $id;
	}
}
diag("transactions: $outcomes{C} committed, $outcomes{R} rolled back, $outcomes{U} without an answer");
is_deeply(\%wrong, {}, 'the table has what was acknowledged, whole, and nothing of what was rolled back');
is_deeply([ keys %rows ], [], 'and nothing else');

# what is in the table, in published order, and in the stream
my ($cursor, $at) = ('', 0);
my %differ = map { $_ => 0 } qw(consumed stream);
my %first;
open my $consumed, '<', "$files/consumed" or die;
open my $stream, '<', "$files/stream" or die;
while (1)
{
	my $entries = $dbh->selectall_arrayref(q{SELECT op, cursor, concat_ws(' ', (entry).message_type, (entry).data ->> 'id', (entry).message_id) FROM feed_read(NULL::outbox, $1, 20000)}, undef, $cursor);
	my $some = 0;

	for (grep { $_->[0] ne 'end' } @$entries)
	{
		my $expected = ++$at . " $_->[2]\n";

		$some = 1;
		for my $of ([ consumed => $consumed ], [ stream => $stream ])
		{
			my $fh = $of->[1];
			my $line = <$fh> // 'nothing';

			next if $line eq $expected;
			$differ{ $of->[0] }++;
			$first{ $of->[0] } //= "expected $expected, not $line";
		}
	}
	last if !$some;
	$cursor = $entries->[-1][1];
}
is($at, $count, 'all rows are published');
is($differ{consumed}, 0, 'the consumer has read these messages, each once, in published order') || diag($first{consumed});
is($differ{stream}, 0, 'they are what the stream has') || diag($first{stream});
for my $file (qw(consumed stream))
{
	my (%times, $lines, $rolled_back);

	open my $in, '<', "$files/$file" or die;
	while (<$in>)
	{
		$lines++;
		$rolled_back++ if / rolled-back /;
		$times{$1}++ if /(\S+)$/;
	}
	is($lines - keys %times, 0, "none is twice in $file");
	is($rolled_back // 0, 0, "none was rolled back in $file");
	is($lines, $count, "none lacks in $file");
}
$dbh->disconnect;
proxy_stop(@proxies);
cmp_ok($killed, '>=', $seconds / 12, 'that many were killed');
done_testing();
