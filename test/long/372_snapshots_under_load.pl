# feed_snapshot() of an outbox, a table feed and a change feed, beside as many
# transactions as this machine makes, while the processes that take part end: the
# one that takes the snapshot, the worker, the session, the client, the server.  Each
# transaction adds the same number to all three, so what a snapshot sees of them must
# have the same sum; and with what is read after the cursors it must be the whole,
# once.  pg_dump takes the snapshots too.
#
# FEEDPUB_CHECKER_SECONDS (20), FEEDPUB_CHECKER_WRITERS (8).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubExample;
use FeedpubTest;
use IPC::Run ();
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes ();

my $seconds = $ENV{FEEDPUB_CHECKER_SECONDS} || 20;
my $writers = $ENV{FEEDPUB_CHECKER_WRITERS} || 8;
my $node = feedpub_node('source', conf => <<'CONF');
shared_preload_libraries = 'feedpub'
max_worker_processes = 16
synchronous_commit = off
restart_after_crash = on
log_statement = none
CONF
my $dir = PostgreSQL::Test::Utils::tempdir();

sql($node, <<'SQL');
SELECT feed_create('outbox');
CREATE TABLE kv (k int PRIMARY KEY, n bigint NOT NULL) PARTITION BY HASH (k);
CREATE TABLE kv_0 PARTITION OF kv FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE kv_1 PARTITION OF kv FOR VALUES WITH (MODULUS 2, REMAINDER 1);
INSERT INTO kv SELECT k, 0 FROM generate_series(0, 999) k;
SELECT feed_attach('kv');
CREATE TABLE account (k int PRIMARY KEY, n bigint NOT NULL);
INSERT INTO account SELECT k, 0 FROM generate_series(0, 999) k;
SELECT feed_create_changes('changes');
SELECT feed_capture('account', 'changes');

-- of all entries after a cursor: how many they are, and their sum
CREATE FUNCTION rest(feed regclass, after text, OUT entries bigint, OUT sum numeric) LANGUAGE plpgsql AS $$
DECLARE
	r record;
	before text;
BEGIN
	entries := 0;
	sum := 0;
	LOOP
		before := after;
		IF feed = 'outbox'::regclass THEN
			SELECT count(*), sum(((entry).data ->> 'n')::numeric), max(cursor COLLATE "C") INTO r
			FROM feed_read(NULL::outbox, after, 10000) WHERE op <> 'end';
		ELSE
			SELECT count(*), sum(((entry)."row" ->> 'n')::numeric - ((entry).old ->> 'n')::numeric), max(cursor COLLATE "C") INTO r
			FROM feed_read(NULL::changes, after, 10000) WHERE op <> 'end';
		END IF;
		EXIT WHEN r.count = 0;
		entries := entries + r.count;
		sum := sum + r.sum;
		after := r.max;
	END LOOP;
END $$ SET feedpub.read_wait = 0;
-- the rows of the table feed after a cursor, in their order
CREATE FUNCTION follow(after text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
	page json;
BEGIN
	LOOP
		page := feed_page('kv', after, 1000);
		RETURN QUERY SELECT concat(e -> 'key' ->> 'k', ' ', e -> 'row' ->> 'n') FROM json_array_elements(page -> 'entries') e;
		after := page ->> 'cursor';
		EXIT WHEN NOT (page ->> 'more')::bool;
	END LOOP;
END $$;
SQL

# The sums that a session sees, of each feed
my $sums = q(SELECT (SELECT count(*) || '|' || coalesce(sum((data ->> 'n')::bigint), 0) FROM outbox) || '|' ||)
  . q( (SELECT sum(n) FROM kv) || '|' || (SELECT sum(n) FROM account) || '|' || (SELECT count(*) FROM changes));

append_to_file("$dir/load.sql", <<'SQL');
\set n random(1, 1000000)
\set k random(0, 999)
\set fate random(1, 50)
BEGIN;
INSERT INTO outbox (message_type, message_key, data) VALUES ('add', :k, jsonb_build_object('n', :n::bigint));
UPDATE kv SET n = n + :n WHERE k = :k;
UPDATE account SET n = n + :n WHERE k = :k;
\if :fate = 1
ROLLBACK;
\else
COMMIT;
\endif
SQL
append_to_file("$dir/load.sh", <<"SH");
while [ ! -e $dir/end ]; do
	pgbench -n -M prepared -c $writers -j 2 -T 2 -f $dir/load.sql >>$dir/load.out 2>>$dir/load.err
done
exit 0
SH
my $load = run_program($node, 'sh', "$dir/load.sh");

my $take = q(SELECT string_agg(feed || ' ' || cursor, ' ' ORDER BY feed::text) || ' ' || min(snapshot) FROM feed_snapshot('{outbox,kv,changes}', '1 hour'));
my @taken;
my %count = (taken => 0, dumped => 0, refused => 0, map { $_ => 0 } qw(process worker session client crash));

sub kill_some
{
	my ($who, $how) = @_;

	eval { sql($node, "SELECT $how(pid) FROM pg_stat_activity WHERE $who") };
	return;
}

my $helpers = q(backend_type = 'feedpub snapshot');
my %disturb = (
	process => sub { kill_some($helpers, 'pg_terminate_backend') },
	worker => sub { kill_some(q(backend_type = 'feedpub worker'), 'pg_terminate_backend') },
	session => sub { kill_some(q(application_name = 'caller'), 'pg_terminate_backend') },
	crash => sub {
		my $pid = eval { sql($node, "SELECT min(pid) FROM pg_stat_activity WHERE $helpers") } // '';

		kill 'KILL', $pid if $pid ne '';
	});

my $until = Time::HiRes::time() + $seconds;
my @order = qw(none dump none process dump worker session none client crash);
for (my $n = 0; $n < @order || Time::HiRes::time() < $until; $n++)
{
	my $what = $order[ $n % @order ];

	wait_until('the server is there', sub { eval { sql($node, 'SELECT 1') eq '1' } });
	my $caller = eval { $node->background_psql('postgres', on_error_stop => 0) } // next;
	$caller->query(q(SET application_name = 'caller'));

	# some end while the snapshot is taken, some while it is held
	my $is_early = $disturb{$what} && int($n / @order) % 2;
	my $early = $is_early ? fork // die : undef;
	if (defined $early && !$early)
	{
		Time::HiRes::usleep(int rand 30_000);
		$disturb{$what}->();
		POSIX::_exit(0);
	}
	my @got;
	eval { @got = split ' ', $caller->query($take) };
	waitpid $early, 0 if $early;
	if (@got == 7)
	{
		my %cursor = @got[ 0 .. 5 ];
		my ($status, $seen) = $node->psql('postgres', "BEGIN ISOLATION LEVEL REPEATABLE READ; SET TRANSACTION SNAPSHOT '$got[6]'; $sums");

		if ($status == 0 && $seen =~ /\|/)
		{
			push @taken, { cursor => \%cursor, seen => $seen };
			$count{taken}++;
		}
		else
		{
			$count{refused}++;
		}
		if ($what eq 'dump')
		{
			my $file = "$dir/dump$n";

			if (IPC::Run::run(
				[
					'pg_dump', '-a', '-j', '2', '-Fd', '-f', $file, '--snapshot', $got[6],
					map({ ('-t', $_) } qw(outbox kv* account changes)), $node->connstr('postgres')
				],
				'2>', \my $error))
			{
				my $text = '';

				IPC::Run::run([ 'pg_restore', '-f', '-', $file ], '>', \$text) or die;
				$taken[-1]{dump} = $text;
				$count{dumped}++;
			}
			else
			{
				diag $error;
			}
		}
	}
	else
	{
		$count{refused}++;
	}
	if ($what eq 'client')
	{
		$caller->{run}->signal('KILL');
		eval { $caller->{run}->finish };
	}
	else
	{
		$disturb{$what}->() if $disturb{$what} && !$is_early;
		eval { $caller->quit };
	}
	$count{$what}++;
}
append_to_file("$dir/end", '');
wait_until('the server is there', sub { eval { sql($node, 'SELECT 1') eq '1' } });
finish($load);
is(join('', grep { /ERROR/ && !/terminating|crash|recovery|shutting|starting|PANIC|connection/ } split /^/, slurp_file("$dir/load.err")), '', 'no writer has failed');
is_soon($node, "NOT EXISTS (SELECT FROM pg_stat_activity WHERE $helpers)", 'no process is left');
is_deeply([ glob $node->data_dir . '/pg_snapshots/*' ], [], 'no snapshot is left');

sql($node, "SELECT feed_flush('$_')") for qw(outbox kv changes);
my ($messages, $total, undef, undef, $entries) = split /\|/, sql($node, $sums);
my $rows = join ' ', sort split /\n/, sql($node, q(SELECT k || ' ' || n FROM kv));
my @wrong;
for my $taken (@taken)
{
	my ($n, $sum, $kv, $account, $changes) = split /\|/, $taken->{seen};
	my ($rest, $rest_sum) = split /\|/, sql($node, "SELECT * FROM rest('outbox', '$taken->{cursor}{outbox}')");
	my ($left, $left_sum) = split /\|/, sql($node, "SELECT * FROM rest('changes', '$taken->{cursor}{changes}')");

	push @wrong, "the sums differ: $taken->{seen}" if $sum != $kv || $sum != $account || $n != $changes;
	push @wrong, "outbox: $n + $rest of $messages, $sum + $rest_sum of $total" if $n + $rest != $messages || $sum + $rest_sum != $total;
	push @wrong, "changes: $changes + $left of $entries, $account + $left_sum of $total" if $changes + $left != $entries || $account + $left_sum != $total;
	if ($taken->{dump})
	{
		my (%rows, %copy, $table);

		for my $line (split /\n/, $taken->{dump})
		{
			if ($line =~ /^COPY public\.(\w+?)(_\d)? /) { $table = $1 }
			elsif ($line eq '\\.') { $table = undef }
			elsif (defined $table)
			{
				$rows{$table}++;
				$copy{$1} = $2 if $table eq 'kv' && $line =~ /^(\d+)\t(\d+)/;
			}
		}
		# a table feed's entries replace rows of the copy
		my $after = sql($node, "SELECT follow('$taken->{cursor}{kv}')");

		$copy{$1} = $2 while $after =~ /^(\d+) (\d+)$/mg;
		push @wrong, 'dump: the copy of the table feed does not end equal' if join(' ', map { "$_ $copy{$_}" } sort keys %copy) ne $rows;
		push @wrong, "dump: $rows{outbox} of $n, $rows{changes} of $changes, $rows{kv}, $rows{account}"
		  if $rows{outbox} != $n || $rows{changes} != $changes || $rows{kv} != 1000 || $rows{account} != 1000;
	}
}
is(join("\n", @wrong[ 0 .. ($#wrong < 4 ? $#wrong : 4) ]), '', 'each snapshot is one moment of all feeds, and the cursors are its end');
cmp_ok($count{taken}, '>=', 3, 'snapshots were taken');
cmp_ok($count{dumped}, '>=', 1, 'and dumped');
diag 'snapshots: ' . join ', ', (map { "$_ $count{$_}" } sort keys %count), sprintf '%.0f transactions a second', $messages / $seconds;
$node->stop;
done_testing();
