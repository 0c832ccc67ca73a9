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

my $far = qr/DETAIL:  1 rows a second; about [4-9]\d % are done, and about 0:00:0\d is left\./;
like(
	${ $calls{republish}[1] },
	qr/^NOTICE:  so far, [5-9] rows of "kv" have been published again\n$far\nINFO:  10 rows of "kv" have been published again$/,
	'feed_republish() tells once');
like(${ $calls{purge}[1] }, qr/^NOTICE:  so far, [5-9] rows of "outbox" have been removed\n$far$/, 'feed_purge() does, too');
is(sql($node, 'SELECT count(*) FROM outbox'), 0, 'it has removed all');

my (undef, undef, $quick) = $node->psql('postgres', "CALL feed_republish('quick')");
unlike($quick, qr/so far/, 'a short call says only what it has done');

done_testing();
