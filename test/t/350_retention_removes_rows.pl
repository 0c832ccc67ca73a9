# The worker moves the floor of an outbox, and a process removes what is before
# it: as the owner, past locked rows and rows that cannot go, and again after a
# crash.  A standby refuses the same cursors.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubPublished;
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# The worker looks every 100 ms.
my $node = feedpub_node('server', allows_streaming => 1, conf => <<'CONF');
feedpub.naptime = 10ms
CONF

# n messages, each in a batch of its own.
sub messages
{
	for (@_)
	{
		sql($node, "INSERT INTO outbox (message_type, data) VALUES ('$_', '{}')");
		await_published($node, 'outbox');
	}
	return;
}

# The types of the rows that are there, in order.
my $there = q(SELECT string_agg(message_type, '' ORDER BY feed_pos) FROM outbox);
my $held = q(SELECT held_by FROM feedpub.feeds WHERE feed = 'outbox'::regclass);

sub acknowledge
{
	my ($type) = @_;

	return sql($node, "SELECT feed_ack('copy', receipt) FROM feed_poll_rows('copy', NULL::outbox) WHERE (entry).message_type = '$type'");
}

sql($node, q(CREATE ROLE owner; GRANT CREATE ON SCHEMA public TO owner));
sql($node, q(SET ROLE owner; SELECT feed_create('outbox')));
$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;

sql($node, q(SELECT feed_start_worker()));
sql($node, q(SELECT feed_subscribe('copy', 'outbox', 'earliest')));
messages('a' .. 'f');
my $start = sql($node, q(SELECT cursor FROM feed_read(NULL::outbox, '', 1) LIMIT 1));
sql($node, q(SELECT feed_retain('outbox', '0')));
is_soon($node, "($held) = 'subscription \"copy\"'", 'a subscription holds the rows');
is(acknowledge('b'), 't', 'it acknowledges some');
is_soon($node, "($there) = 'cdef'", 'which are removed');
is(sql($node, $there), 'cdef', 'and no others');
is(sql($node, q(SELECT string_agg((entry).message_type, '') FROM feed_read(NULL::outbox))), 'cdef', 'a new reader begins at the floor');
refused($node, "SELECT feed_page('outbox', '$start')", 'PF002', 'has expired', 'an old cursor is refused');
$node->wait_for_replay_catchup($standby);
refused($standby, "SELECT feed_page('outbox', '$start')", 'PF002', 'has expired', 'on a standby too');
is(sql($standby, q(SELECT string_agg((entry).message_type, '') FROM feed_read(NULL::outbox))), 'cdef', 'which begins at the floor');

# A locked row is left, and removed later.
my $locker = $node->background_psql('postgres');
$locker->query_safe(q(BEGIN; SELECT FROM outbox WHERE message_type = 'c' FOR UPDATE));
is(acknowledge('d'), 't', 'a locked row is acknowledged');
is_soon($node, "($there) = 'cef'", 'the next row is removed');
my $pid = $locker->query_safe('SELECT pg_backend_pid()');
is_soon($node, "($held) = '1 locked row: locked by process $pid'", 'and the view tells who has locked one');
is(sql($node, q(SELECT string_agg((entry).message_type, '') FROM feed_read(NULL::outbox))), 'ef', 'which is not delivered any more');
$locker->query_safe('COMMIT');
$locker->quit;
is_soon($node, "($there) = 'ef'", 'it is removed when it is not locked any more');
is_soon($node, "($held) = 'subscription \"copy\"'", 'and the view tells that');

# A foreign key forbids it.
sql($node, q(ALTER TABLE outbox ADD UNIQUE (message_id);
	CREATE TABLE refers (message_id text REFERENCES outbox (message_id));
	INSERT INTO refers SELECT message_id FROM outbox WHERE message_type = 'e';
	ALTER TABLE refers OWNER TO owner));
is(acknowledge('f'), 't', 'a row that another table refers to is acknowledged');
is_soon($node, "($there) = 'e'", 'the next row is removed');
is_soon($node, "($held) ~ '^1 row that failed: .*foreign key'", 'the view tells why one is left');
sql($node, 'DROP TABLE refers');
is_soon($node, "($there) IS NULL", 'it is removed when it can be');

# The owner's triggers run as the owner, in an operation that is restricted.
sql($node, q(SET ROLE owner; CREATE TABLE seen (who name);
	CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql SET search_path = public AS $$
	BEGIN PERFORM pg_advisory_lock(1); INSERT INTO seen VALUES (current_user); RETURN OLD; END $$;
	CREATE TRIGGER see BEFORE DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION see()));
messages('g');
is(acknowledge('g'), 't', 'a row of a table with a trigger is acknowledged');
is_soon($node, "($there) IS NULL", 'it is removed');
is(sql($node, 'SELECT DISTINCT who FROM seen'), 'owner', 'as the owner, who may take an advisory lock there');

# Row security that holds for the owner hides rows without an error.
sql($node, q(ALTER TABLE outbox ENABLE ROW LEVEL SECURITY; ALTER TABLE outbox FORCE ROW LEVEL SECURITY));
messages('h');
sql($node, q(SELECT feed_unsubscribe('copy')));
is_soon($node, "($held) ~ 'cannot be removed'", 'forced row security is told');
is(sql($node, $there), 'h', 'and nothing is removed');
sql($node, q(ALTER TABLE outbox NO FORCE ROW LEVEL SECURITY));
is_soon($node, "($there) IS NULL", 'until it is gone');

# The floor moves while rows are removed: all of them are counted.
$node->append_conf('postgresql.conf', 'feedpub.removal_rate = 10');
$node->reload;
sql($node, q(DROP TRIGGER see ON outbox));
my $rows = q((SELECT rows FROM feedpub.jobs WHERE feed = 'outbox'::regclass));
my $before = sql($node, "SELECT $rows");
sql($node, q(INSERT INTO outbox (message_type, data) SELECT 'i', '{}' FROM generate_series(1, 50) i));
is_soon($node, '(SELECT count(*) FROM outbox) BETWEEN 1 AND 45', 'a removal is under way');
messages('j');
is_soon($node, '(SELECT count(*) FROM outbox) = 0', 'another row is removed as well');
is_soon($node, "$rows = $before + 51", 'each is counted');

# After a crash the rest is removed.
sql($node, q(INSERT INTO outbox (message_type, data) SELECT 'i', '{}' FROM generate_series(1, 1000)));
is_soon($node, '(SELECT count(*) FROM outbox) BETWEEN 1 AND 999', 'a removal is under way');
$node->stop('immediate');
$node->append_conf('postgresql.conf', 'feedpub.removal_rate = 0');
$node->start;
sql($node, q(SELECT feed_start_worker()));
is_soon($node, '(SELECT count(*) FROM outbox) = 0', 'after a crash the rest is removed');
is(sql($node, q(SELECT count(*) FROM feed_read(NULL::outbox) WHERE op = 'upsert')), 0, 'and nothing comes again');

# A promoted standby goes on.
$node->wait_for_replay_catchup($standby);
$node->stop;
$standby->promote;
refused($standby, "SELECT feed_page('outbox', '$start')", 'PF002', 'has expired', 'a promoted standby refuses old cursors');
sql($standby, q(INSERT INTO outbox (message_type, data) VALUES ('z', '{}')));
sql($standby, q(SELECT feed_start_worker()));
is_soon($standby, '(SELECT count(*) FROM outbox) = 0', 'and removes on');
$standby->stop;
done_testing();
