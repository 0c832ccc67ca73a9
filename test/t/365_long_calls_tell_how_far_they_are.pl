# feed_republish() and feed_purge() tell their caller how far they are, if they
# take longer than some seconds; feedpub.jobs tells others of a removal.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'");

# a row takes most of a second, so each step changes one, and a call eight
sql($node, <<'SQL');
SELECT feed_create('outbox');
INSERT INTO outbox (message_type, message_key, data) SELECT 'n', i, to_json(i) FROM generate_series(1, 10) i;
CREATE TABLE kv (id int PRIMARY KEY);
SELECT feed_attach('kv');
INSERT INTO kv SELECT generate_series(1, 10);
ANALYZE kv;
CREATE TABLE quick (id int PRIMARY KEY);
SELECT feed_attach('quick');
INSERT INTO quick SELECT generate_series(1, 1000);
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.8); RETURN COALESCE(NEW, OLD); END $$;
CREATE TRIGGER slow BEFORE DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION slow();
CREATE TRIGGER slow BEFORE UPDATE ON kv FOR EACH ROW EXECUTE FUNCTION slow();
SELECT feed_flush('outbox');
SQL

my $began = time;
my %calls;
foreach my $call (qw(republish purge))
{
	my $arguments = $call eq 'purge' ? q(('outbox', feed_head('outbox'))) : q(('kv'));
	my ($out, $err) = ('', '');
	my $handle = IPC::Run::start([ 'psql', '-XAt', '-d', $node->connstr('postgres'), '-c', "CALL feed_$call$arguments" ],
		'<', \undef, '>', \$out, '2>', \$err);
	$calls{$call} = [ $handle, \$err ];
}
ok( $node->poll_query_until(
		'postgres', q(SELECT rows BETWEEN 1 AND 9 AND state = 'running' FROM feedpub.jobs WHERE feed = 'outbox'::regclass)),
	'others see in feedpub.jobs how far a removal is');
$_->[0]->finish foreach values %calls;

my $seconds = time - $began + 1;

# What a call has told: after five seconds, then each time after twice as long as
# the time before.  Of the share that is done and of the rate, which is rounded
# down, follows how much time is left.
sub tells
{
	my ($text, $what, $end, $share, $test) = @_;
	my @told = $text =~ /NOTICE:  so far, (\d) rows of $what\nDETAIL:  (\d+) rows a second; about (\d+) % are done, and about (\d+):(\d\d):(\d\d) is left\.\n?/g;
	my $times = () = $text =~ /NOTICE: /g;

	cmp_ok($times, '>=', 1, "$test tells");
	cmp_ok(5 * 2**($times - 1), '<=', $seconds, "$test: more rarely, the longer it takes");
	is($text =~ s/NOTICE: .*\nDETAIL: .*\n?//gr, $end, "$test: nothing else");
	while (my ($rows, $rate, $percent, $hours, $minutes, $left) = splice @told, 0, 6)
	{
		my $done = $share->($rows);
		my $rest = $rows * (1 / $done - 1);

		$left += 60 * ($minutes + 60 * $hours);
		is($percent, sprintf('%.0f', 100 * $done), "$test: $rows of 10 rows");
		cmp_ok($left, '>=', int($rest / ($rate + 1)), "$test: $left seconds are left at $rate rows a second");
		cmp_ok($left, '<=', $rest / $rate, 'and no more') if $rate > 0;
	}
	return;
}
tells(${ $calls{republish}[1] }, '"kv" have been published again', qq(INFO:  10 rows of "kv" have been published again\n), sub { $_[0] / 10 }, 'feed_republish()');
tells(${ $calls{purge}[1] }, '"outbox" have been removed', '', sub { ($_[0] - 1) / 9 }, 'feed_purge()');
is(sql($node, 'SELECT count(*) FROM outbox'), 0, 'it has removed all');

my (undef, undef, $quick) = $node->psql('postgres', "CALL feed_republish('quick')");
unlike($quick, qr/so far/, 'a short call says only what it has done');

done_testing();
