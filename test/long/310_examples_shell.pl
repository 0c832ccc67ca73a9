# examples/shell: a consumer in shell handles every message in order, through
# kills, a crash of the server and a command that fails; stops when it is told
# to, and stops by itself where nothing but a human can help.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubExample;
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('server', conf => <<'CONF');
shared_preload_libraries = 'feedpub'
log_statement = none
CONF
my $dir = PostgreSQL::Test::Utils::tempdir();

# A payload of type json keeps the line breaks that it is given.
sql($node, <<'SQL');
SELECT feed_create('"Odd, ""Name"" 1"', payload_type => 'json');
SELECT feed_subscribe('it''s "mine"', '"Odd, ""Name"" 1"', 'earliest');
CREATE SEQUENCE number;
SQL
my $insert = <<'SQL';
INSERT INTO "Odd, ""Name"" 1" (message_type, data)
  SELECT 'n', format(E'{\n"n": %s,\t"s": "a\\tb \\"$HOME\\" `x`"\n}', n)::json FROM
SQL
my $script = <<"SQL";
\\set fate random(1, 10)
BEGIN;
$insert nextval('number') n;
\\if :fate = 1
ROLLBACK;
\\else
COMMIT;
\\endif
SQL

# The command writes what it is given into a file.  It fails for one message,
# twice; and it waits as long as it is told to.
append_to_file("$dir/command", <<'SH');
#!/bin/sh
read -r entry || exit 1
case $entry in
	*'"n": 30,'*)
		if [ "$(ls "$1".failed.* 2>/dev/null | wc -l)" -lt 2 ]; then
			mktemp "$1.failed.XXXXXX" >/dev/null
			exit 1
		fi ;;
esac
if [ -e "$1.hold" ]; then
	: >"$1.held"
	while [ -e "$1.hold" ]; do sleep 0.1; done
fi
printf '%s %s\n' "$FEED_OP" "$entry" >>"$1"
SH
chmod 0755, "$dir/command";

sub handled
{
	my ($file) = @_;

	return if !-e $file;

	# the last line may still be written
	my ($lines) = slurp_file($file) =~ /\A(.*\n|)[^\n]*\z/s;
	return map { /"n": (\d+),/ ? $1 : die "\"$_\"" } split /\n/, $lines;
}

sub expected
{
	return split /\n/, sql($node,
		q(SELECT data ->> 'n' FROM "Odd, ""Name"" 1" ORDER BY feed_pos));
}

sub consumer
{
	return run_program($node, example('shell/consume.sh'),
		q(it's "mine"), "$dir/command", "$dir/handled");
}

sub wait_for_handled
{
	my ($n) = @_;

	wait_until("$n messages are handled",
		sub { (my @handled = handled("$dir/handled")) >= $n });
	return;
}

#
# Killed, and the server killed, while writers write
#
sql($node, $insert . "(SELECT nextval('number') AS n FROM generate_series(1, 50)) x");
my $consumer = consumer();
my $writers = run_writers($node, $script, transactions => 100);

for my $n (100, 250)
{
	wait_for_handled($n);
	kill 'KILL', -$consumer->{pid};
	is(ended($consumer), 'signal 9', "killed after $n messages");
	$consumer = consumer();
}
finish($writers);
$node->stop('immediate');
$node->start;
$writers = run_writers($node, $script, transactions => 100);
wait_for_handled(600);
finish($writers);

my @expected = expected();
wait_until('all messages are handled',
	sub {
		my %handled = map { $_ => 1 } handled("$dir/handled");
		return !grep { !$handled{$_} } @expected;
	});

# SIGTERM to the shell alone, as a supervisor might send it
kill 'TERM', $consumer->{pid};
is(ended($consumer), 0, 'stopped by SIGTERM');

my (%times, @first, @again);
for my $n (handled("$dir/handled"))
{
	push @first, $n if !$times{$n}++;
}
cmp_ok(scalar @expected, '>', 600, 'there were many');
my %rows = map { $_ => 1 } @expected;
is_deeply([ grep { !$rows{$_} } @first ], [], 'none that was rolled back');
is(scalar @first, scalar @expected, 'every message was handled');
is(scalar(() = glob "$dir/handled.failed.*"), 2, 'the command failed twice');
like(slurp_file("$dir/handled"),
	qr/^upsert \{.*"data":\{ "n": 30, "s": "a\\tb \\"\$HOME\\" `x`" \}/m,
	'and was run again; payloads arrive as they are');

# The order is that of the feed: the one in which feed_read() has them.
is(join(' ', @first), join(' ', split /\n/, sql($node,
	q(SELECT (entry).data ->> 'n' FROM feed_read(NULL::"Odd, ""Name"" 1", '', 10000)))),
	'in the order of the feed');

#
# Stopped properly, it handles nothing again.
#
my $handled = () = handled("$dir/handled");
sql($node, q(INSERT INTO "Odd, ""Name"" 1" (message_type, data) VALUES ('n', '{"n": 100001,"s": ""}')));
$consumer = consumer();
wait_for_handled($handled + 1);
kill 'INT', -$consumer->{pid};
is(ended($consumer), 0, 'stopped by SIGINT');
is(join(' ', (handled("$dir/handled"))[ $handled .. $handled ]), '100001', 'the new one');
is(scalar(() = handled("$dir/handled")), $handled + 1, 'and that alone');

#
# Nor when the signal meets the acknowledgement: that is made once more.
#
my $acks = q(SELECT pid FROM pg_stat_activity WHERE query LIKE 'SELECT feed_ack%' AND wait_event_type = 'Lock');
my $blocker = $node->background_psql('postgres');
$blocker->query_safe('BEGIN; SELECT FROM feedpub._shard FOR UPDATE');
sql($node, q(INSERT INTO "Odd, ""Name"" 1" (message_type, data) VALUES ('n', '{"n": 100003,"s": ""}')));
$consumer = consumer();
my $ack;
wait_until('it acknowledges', sub { ($ack = sql($node, $acks)) ne '' });
kill 'INT', -$consumer->{pid};
wait_until('and does so again', sub { my $now = sql($node, $acks); $now ne '' && $now ne $ack });
$blocker->query_safe('COMMIT');
$blocker->quit;
is(ended($consumer), 0, 'stopped while it acknowledges');
is(sql($node, q(SELECT cursor = feed_head(feed) FROM feedpub.subscriptions)), 't', 'which it has done');
$handled++;

#
# Killed while the command runs, it runs it again.
#
append_to_file("$dir/handled.hold", '');
sql($node, q(INSERT INTO "Odd, ""Name"" 1" (message_type, data) VALUES ('n', '{"n": 100002,"s": ""}')));
$consumer = consumer();
wait_until('the command runs', sub { -e "$dir/handled.held" });
kill 'KILL', -$consumer->{pid};
ended($consumer);
unlink "$dir/handled.hold";
is((handled("$dir/handled"))[-1], 100003, 'killed in the middle');
$consumer = consumer();
wait_for_handled($handled + 2);
is((handled("$dir/handled"))[-1], 100002, 'not lost');
kill 'TERM', $consumer->{pid};
is(ended($consumer), 0, 'stopped by SIGTERM');

#
# What only a human can mend
#
sql($node, q(UPDATE feedpub._shard SET cursor = overlay(cursor placing '012345' from 26 for 6)));
$consumer = consumer();
is(ended($consumer), 1, 'a foreign cursor: it ends');
like(output($consumer), qr/PF001: .*SELECT feed_seek\('it's "mine"', \.\.\.\)/s, 'and says what to do');
$consumer = run_program($node, example('shell/consume.sh'), 'nobody', 'true');
is(ended($consumer), 1, 'no subscription: it ends');
like(output($consumer), qr/42704: /, 'and says why');

$node->stop;
done_testing();
