# examples/follower/follow_all.py: copies of six tables with foreign keys, in
# another server's database, filled and followed while sessions change them in every
# way.  Each commit of the copy satisfies its constraints; and what it has then is
# compared, row by row, with what a snapshot of the source of the same moment saw
# (feed_snapshot).  Backlogs are cut; the follower and the worker are killed, both
# servers crash, and a standby of the source is promoted.
#
# FEEDPUB_CHECKER_SECONDS (20), FEEDPUB_CHECKER_WRITERS (4), and
# FEEDPUB_CHECKER_SEED (1), which decides what is done, though not when.
# FEEDPUB_CHECKER_ROUNDS (0): before that, so many short runs of as many seeds, in
# another database, where each fills the copy.  With FEEDPUB_CHECKER_SECONDS=0 there
# is nothing else.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubExample;
use FeedpubTest;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes ();

my $python = python_with('psycopg');
plan skip_all => 'python3 with psycopg (3) is not there' if !$python;
plan skip_all => 'DBD::Pg is not there' if !eval { require DBD::Pg; 1 };
require FeedpubFollowChecker;

my %size = (seconds => 20, writers => 4, seed => 1, rounds => 0);
for my $name (keys %size)
{
	my $given = $ENV{ 'FEEDPUB_CHECKER_' . uc $name } // '';

	next if $given eq '';
	$given =~ /^\d+$/ or die "FEEDPUB_CHECKER_" . uc $name . " is no number";
	$size{$name} = $given;
}

my $conf = <<'CONF';
shared_preload_libraries = 'feedpub'
log_statement = none
deadlock_timeout = 20ms
lock_timeout = 3s
max_connections = 60
max_worker_processes = 60
feedpub.max_batch_transactions = 2
feedpub.publish_synchronous_commit = on
CONF
my $shop = feedpub_node('shop', allows_streaming => 1, conf => $conf);
my $reports = feedpub_node('reports', extension => 0, conf => "log_statement = none\nmax_connections = 60");
my $standby;
my $standbys = 0;
my @spawned;
my %total = (moments => 0, compared => 0, judged => 0, parts => 0, committed => 0, undone => 0, filled => 0, kills => 0,
	crashes => 0, promotions => 0);

# The servers that are, or will be, the source.
sub connstr
{
	my ($db) = @_;
	my @nodes = ($shop, $standby // ());

	return 'host=' . join(',', map { $_->host } @nodes)
	  . ' port=' . join(',', map { $_->port } @nodes)
	  . " target_session_attrs=read-write dbname=$db";
}

sub make_standby
{
	my $name = 'standby' . ++$standbys;

	$shop->backup($name);
	$standby = PostgreSQL::Test::Cluster->new($name);
	$standby->init_from_backup($shop, $name, has_streaming => 1);
	$standby->start;
	$shop->safe_psql('postgres', q(ALTER SYSTEM SET synchronous_standby_names = '*'));
	$shop->reload;
	$shop->wait_for_replay_catchup($standby);
	return;
}

sub promote
{
	# its own settings were copied before that
	$shop->stop('immediate');
	$standby->promote;
	($shop, $standby) = ($standby, undef);
	$total{promotions}++;
	return;
}

sub spawn
{
	my ($run, $name, $code) = @_;
	my $pid = fork // die "fork: $!";

	if (!$pid)
	{
		my $ok = eval {
			my %count = $code->();
			append_to_file("$run->{dir}/$name.end", "@{[ %count ]}");
			1;
		};
		append_to_file("$run->{dir}/$name.err", "$name: $@") if !$ok;
		POSIX::_exit($ok ? 0 : 1);
	}
	push @{ $run->{pids} }, $pid;
	push @spawned, $pid;
	return;
}

# None outlives the test.
END
{
	my $status = $?;

	kill 'KILL', @spawned;
	$? = $status;
}

sub start_follower
{
	my ($run) = @_;

	$run->{follower} = run_program($shop, $python, example('follower/follow_all.py'), '--begin-again',
		'--page', (1, 1, 1, 1, 1, 3, 500)[ rand 7 ], connstr($run->{db}), 'changes', $reports->connstr($run->{db}));
	return;
}

sub end_follower
{
	my ($run, $signal) = @_;

	kill $signal, $run->{follower}{pid};
	my $status = ended($run->{follower});
	$total{filled}++ while output($run->{follower}) =~ /is filled again/g;
	return $status;
}

sub wait_for
{
	my ($run, $seconds) = @_;
	my $until = Time::HiRes::time() + $seconds;

	wait_until('time passes', sub {
		my @failed = glob "$run->{dir}/*.err";

		die map { slurp_file($_) } @failed if @failed;
		return Time::HiRes::time() >= $until;
	});
	return;
}

sub at { return sql($_[0], $_[2], db => $_[1]{db}) }

# One value, without a psql, for what is asked often.
sub ask
{
	my ($node, $run, $query) = @_;
	my $connstr = $node == $reports ? $reports->connstr($run->{db}) : connstr($run->{db});
	my $dbh = FeedpubFollowChecker::connect_to($connstr =~ s/ /;/gr =~ s/'//gr);
	my ($value) = $dbh->selectrow_array($query);

	return $value // '';
}

# So that there is a backlog, which is cut.
sub stop_worker
{
	my ($run) = @_;
	my $pid = ask($shop, $run, q(SELECT pid FROM pg_stat_activity WHERE backend_type = 'feedpub worker' AND datname = current_database()));

	return if $pid eq '';
	kill 'STOP', $pid;
	wait_for($run, rand 0.5);
	kill 'CONT', $pid;
	return;
}

sub kill_worker
{
	my ($run) = @_;

	at($shop, $run, q(SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'feedpub worker'));
	return;
}

sub kill_follower
{
	my ($run) = @_;

	end_follower($run, 'KILL');
	start_follower($run);
	$total{kills}++;
	return;
}

# Makes the database and its copy.
sub make
{
	my ($db) = @_;
	my $run = { db => $db };

	sql($_, "CREATE DATABASE $db") for $shop, $reports;
	at($shop, $run, 'CREATE EXTENSION feedpub');
	at($shop, $run, FeedpubFollowChecker::schema(source => 1));
	at($shop, $run, q(SELECT feed_create_changes('changes')));
	at($shop, $run, "SELECT feed_capture('$_', 'changes')") for FeedpubFollowChecker::captured();
	at($reports, $run, FeedpubFollowChecker::schema());
	my $state = FeedpubFollowChecker::state();
	at($reports, $run, <<"SQL");
CREATE TABLE follower (feed text PRIMARY KEY, cursor text NOT NULL);
CREATE TABLE seen (n serial, cursor text, state text);
CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS \$\$
BEGIN
	INSERT INTO seen (cursor, state) VALUES (NEW.cursor, COALESCE(($state), ''));
	RETURN NULL;
END \$\$;
CREATE CONSTRAINT TRIGGER see AFTER UPDATE ON follower DEFERRABLE INITIALLY DEFERRED
	FOR EACH ROW WHEN (NEW.cursor <> '') EXECUTE FUNCTION see();
SQL
	at($shop, $run, <<'SQL');
CREATE FUNCTION entries(after text, until text) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
	RETURN count(*) FROM feed_read(NULL::changes, after, 1) WHERE op <> 'end' AND left(cursor, 25) COLLATE "C" <= left(until, 25);
EXCEPTION WHEN SQLSTATE 'PF001' THEN
	RETURN NULL;
END $$;
SQL
	return;
}

# Begins to change the tables, and to fill and to follow.
sub begin
{
	my ($db, $seed) = @_;
	my $run = { db => $db, seed => $seed, dir => PostgreSQL::Test::Utils::tempdir() };

	srand $seed;
	for my $n (1 .. $size{writers})
	{
		spawn($run, "w$n", sub {
			FeedpubFollowChecker::write(connstr => connstr($db) =~ s/ /;/gr, dir => $run->{dir}, name => "$db$n",
				seed => $seed * 100 + $n, pause => 20);
		});
	}
	wait_for($run, rand 0.5);
	spawn($run, 'judge', sub {
		(judged => FeedpubFollowChecker::judge(connstr => connstr($db) =~ s/ /;/gr, dir => $run->{dir}, pause => 20));
	});
	start_follower($run);
	return $run;
}

# The first lines that one has and the other has not.
sub difference
{
	my ($copy, $source) = @_;
	my ($have, $want) = map { { map { $_ => 1 } split /\n/ } } $copy, $source;

	return join "\n", 'copy:', (grep { !$want->{$_} } sort keys %$have), 'source:', (grep { !$have->{$_} } sort keys %$want);
}

# Ends the sessions, waits until the copy is at the end, and compares.  SIGTERM ends
# a follower when its wait is over.
sub end
{
	my ($run, $signal) = @_;
	my $label = "seed $run->{seed}";

	append_to_file("$run->{dir}/end", '');
	waitpid $_, 0 for @{ $run->{pids} };
	wait_for($run, 0);
	my %count = map { map { split ' ' } slurp_file($_) } glob "$run->{dir}/judge.end";
	for my $file (glob "$run->{dir}/w*.end")
	{
		my %of = split ' ', slurp_file($file);

		$total{$_} += $of{$_} for qw(committed undone);
	}
	my $end = at($shop, $run, q(SELECT feed_flush('changes')));
	wait_until('the copy is at the end', sub {
		my $cursor = ask($reports, $run, 'SELECT cursor FROM follower');

		return $cursor ne '' && $end ne ''
		  && (eval { ask($shop, $run, "SELECT count(*) FROM feed_read(NULL::changes, '$cursor', 1) WHERE op <> 'end'") } // '') eq '0';
	});
	my $is_killed = end_follower($run, $signal);
	my ($copy, $source) = map { at($_, $run, FeedpubFollowChecker::state()) } $reports, $shop;
	my @wrong = $copy eq $source ? () : ("in the end\n" . difference($copy, $source));

	push @wrong, "the follower has ended with $is_killed" if $is_killed ne ($signal eq 'TERM' ? '0' : 'signal 9');

	# Cursors that this server does not have were lost with another.  Up to their
	# position they sort as text; what follows depends on the server's start.
	my $position = sub { return substr $_[0], 0, 25 };
	my $dbh = FeedpubFollowChecker::connect_to(connstr($run->{db}) =~ s/ /;/gr);
	my $entries = sub { return ($dbh->selectrow_array('SELECT entries(?, ?)', undef, @_))[0] };
	my $seen = FeedpubFollowChecker::connect_to($reports->connstr($run->{db}) =~ s/ /;/gr =~ s/'//gr)
	  ->selectall_arrayref('SELECT cursor, state FROM seen ORDER BY left(cursor, 25) COLLATE "C", n');
	my @seen = grep { defined $entries->($_->[0], '') } @$seen;
	my @judged = sort { $position->($a->[0]) cmp $position->($b->[0]) } map { [ split / /, $_, 2 ] } split /\n/, slurp_file("$run->{dir}/judged");
	my $i = 0;
	my $compared = 0;

	for my $moment (@judged)
	{
		my ($cursor, $state) = @$moment;

		next if !defined $entries->($cursor, '');
		$i++ while $i < @seen && $position->($seen[$i][0]) le $position->($cursor);
		next if $i == 0 || $entries->($seen[ $i - 1 ][0], $cursor) > 0;
		$compared++;
		$state =~ s/\x01/\n/g;
		next if $state eq $seen[ $i - 1 ][1];
		push @wrong, "at $cursor, copy at $seen[$i - 1][0]\n" . difference($seen[ $i - 1 ][1], $state);
	}
	$total{moments} += @$seen;
	$total{judged} += @judged;
	$total{compared} += $compared;
	$total{parts} += at($shop, $run, 'SELECT count(*) FROM feedpub._batch WHERE part');
	is(join("\n", @wrong[ 0 .. ($#wrong < 2 ? $#wrong : 2) ]), '', "$label: no difference at $compared moments");
	return $compared;
}

make('rounds') if $size{rounds};
for my $n (1 .. $size{rounds})
{
	my $run = { db => 'rounds' };

	at($reports, $run, 'TRUNCATE follower, seen, ' . join ', ', FeedpubFollowChecker::captured());
	$run = begin('rounds', $size{seed} + $n);

	for my $moments (4, 8, 16)
	{
		wait_until('moments are seen', sub {
			wait_for($run, 0.2);
			return ask($reports, $run, 'SELECT count(*) FROM seen') >= $moments;
		});
		stop_worker($run);
		kill_follower($run) if rand() < 0.2;
	}
	end($run, 'KILL');
}

if (!$size{seconds})
{
	diag 'follower checker: ' . join ', ', map { "$_ $total{$_}" } sort keys %total;
	$_->stop for $shop, $reports;
	done_testing();
	exit;
}

make_standby();
make('main');
my $run = begin('main', $size{seed});
my $until = Time::HiRes::time() + $size{seconds};
my @disturb = (
	sub { stop_worker($run) },
	sub { kill_follower($run) },
	sub { kill_worker($run) },
	sub { stop_worker($run) },
	sub {
		$shop->stop('immediate');
		$shop->start;
		$total{crashes}++;
	},
	sub { stop_worker($run) },
	sub {
		$reports->stop('immediate');
		$reports->start;
		$total{crashes}++;
	},
	sub { kill_follower($run) },
	sub { promote() if $standby });
my $compared = 0;
eval {
	for (my $n = 0; Time::HiRes::time() < $until || $n < @disturb; $n++)
	{
		wait_for($run, $size{seconds} / 12 < 4 ? $size{seconds} / 12 : 4);
		$disturb[ $n % @disturb ]->();
		stop_worker($run);
	}

	# a slow machine may have had no time for them
	my $moments = sub {
		return [ ask($reports, $run, 'SELECT count(*) FROM seen'),
			-e "$run->{dir}/judged" ? scalar(() = slurp_file("$run->{dir}/judged") =~ /\n/g) : 0 ];
	};
	my $before = $moments->();
	wait_until('moments are seen by the copy and by the judge, which nothing disturbs', sub {
		my $now = $moments->();

		wait_for($run, 0.2);
		return $now->[0] >= $before->[0] + 40 && $now->[1] >= $before->[1] + 40;
	});
	$compared = end($run, 'TERM');
	1;
} or fail("a session or the follower has failed: $@");
cmp_ok($compared, '>=', 10, 'enough moments were compared');
cmp_ok($total{parts}, '>', 0, 'backlogs were cut');
diag 'follower checker: ' . join ', ', map { "$_ $total{$_}" } sort keys %total;

$_->stop for $shop, $reports;
done_testing();
