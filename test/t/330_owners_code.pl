# The owner of tables has put code wherever a table can hold any.
# Superusers, members of pg_monitor, readers and strangers call what there is to
# call, and the workers work: the code runs as the owner, or as a caller whose
# own SELECT would run it, and stops nothing.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubPublished;
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $owner = 'regress_feedpub_owner';
my @callers = map { "regress_feedpub_$_" } qw(super monitor reader stranger);
my $node = feedpub_node('server');

# The code says in the server's log as which role it runs: that is not rolled
# back, and can be done anywhere.
sql($node, <<"SQL");
CREATE ROLE $owner LOGIN;
CREATE ROLE regress_feedpub_super LOGIN SUPERUSER;
CREATE ROLE regress_feedpub_monitor LOGIN IN ROLE pg_monitor;
CREATE ROLE regress_feedpub_reader LOGIN;
CREATE ROLE regress_feedpub_stranger LOGIN;
CREATE SCHEMA code AUTHORIZATION $owner;
GRANT USAGE ON SCHEMA code TO PUBLIC;
SELECT feed_create('other');
SQL
sql($node, <<'SQL', user => $owner);
SET search_path = code, public;
CREATE FUNCTION note(spot text) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
BEGIN
	IF current_setting('code.loop', true) = 'on' THEN
		LOOP NULL; END LOOP;
	END IF;
	RAISE LOG 'code: % as %', spot, current_user;
	RETURN spot;
END $$;
CREATE FUNCTION f(spot text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	RETURN code.note(spot);
END $$;
CREATE FUNCTION fire() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM code.note('trigger ' || TG_WHEN || ' ' || TG_OP || ' ' || TG_LEVEL);
	RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
END $$;
CREATE DOMAIN word AS text DEFAULT code.f('domain default') CHECK (code.f('domain check') IS NOT NULL AND value <> '');
CREATE TYPE pair AS (a int, b text);
CREATE FUNCTION pair_json(pair) RETURNS json LANGUAGE sql IMMUTABLE AS $$ SELECT to_json(code.f('cast')) $$;
CREATE CAST (pair AS json) WITH FUNCTION pair_json(pair);

-- Of two tables one has policies, too.
DO $do$
DECLARE
	t text;
	e text;
	l text;
BEGIN
	FOREACH t IN ARRAY '{plain,secured}'::text[] LOOP
		EXECUTE format('CREATE TABLE %I (k word PRIMARY KEY, v pair, d text DEFAULT code.f(''default''),'
			' g text GENERATED ALWAYS AS (code.f(''generated'')) STORED, CHECK (code.f(''check'') IS NOT NULL))', t);
		EXECUTE format('CREATE INDEX ON %I ((code.f(''index expression'')), k)', t);
		EXECUTE format('CREATE INDEX ON %I (k) WHERE code.f(''index predicate'') IS NOT NULL', t);
		PERFORM feed_attach(t::regclass);
		FOREACH e IN ARRAY '{INSERT,UPDATE,DELETE}'::text[] LOOP
			FOREACH l IN ARRAY '{ROW,STATEMENT}'::text[] LOOP
				EXECUTE format('CREATE TRIGGER a_%s_%s BEFORE %s ON %I FOR EACH %s EXECUTE FUNCTION fire()', e, l, e, t, l);
				EXECUTE format('CREATE TRIGGER b_%s_%s AFTER %s ON %I FOR EACH %s EXECUTE FUNCTION fire()', e, l, e, t, l);
			END LOOP;
		END LOOP;
		EXECUTE format('CREATE TRIGGER a_truncate BEFORE TRUNCATE ON %I EXECUTE FUNCTION fire()', t);
		EXECUTE format('CREATE CONSTRAINT TRIGGER late AFTER INSERT OR UPDATE OR DELETE ON %I DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION fire()', t);
		EXECUTE format('CREATE RULE also AS ON UPDATE TO %I DO ALSO SELECT code.note(''rule'')', t);
		EXECUTE format('CREATE VIEW %I AS SELECT *, code.f(''view'') FROM %I', t || '_view', t);
	END LOOP;
END $do$;
ALTER TABLE secured ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON secured USING (code.note('policy') IS NOT NULL);

-- Partitions: an expression in the key of one, and one that comes with rows
CREATE TABLE parted (k int PRIMARY KEY, v text) PARTITION BY RANGE (k);
CREATE TABLE parted1 PARTITION OF parted FOR VALUES FROM (0) TO (10);
SELECT feed_attach('parted', deletes => false);
ALTER TABLE parted DROP CONSTRAINT parted_pkey;
CREATE TABLE parted2 PARTITION OF parted FOR VALUES FROM (10) TO (20) PARTITION BY LIST ((code.f('partition key') || k));
CREATE TABLE parted21 PARTITION OF parted2 DEFAULT;
CREATE TABLE parted3 (k int NOT NULL, v text, feed_xid xid8, feed_pos bigint, CHECK (code.f('check') IS NOT NULL));
INSERT INTO parted3 VALUES (21, 'loaded'), (22, 'loaded');
CREATE INDEX ON parted3 ((code.f('index expression')));
CREATE TRIGGER a_note BEFORE UPDATE ON parted3 FOR EACH ROW EXECUTE FUNCTION fire();
ALTER TABLE parted ATTACH PARTITION parted3 FOR VALUES FROM (20) TO (30);
CREATE TYPE late AS (a int);
CREATE TABLE keyed (k int PRIMARY KEY, v late);
SELECT feed_attach('keyed');
GRANT SELECT ON plain, secured, parted, keyed TO regress_feedpub_reader, regress_feedpub_super;

INSERT INTO plain SELECT 'k' || i, ROW(i, 'v')::pair FROM generate_series(1, 5) i;
INSERT INTO secured SELECT 'k' || i, ROW(i, 'v')::pair FROM generate_series(1, 5) i;
DELETE FROM plain WHERE k = 'k1';
DELETE FROM secured WHERE k = 'k1';
INSERT INTO parted VALUES (1, 'a'), (11, 'b');
INSERT INTO keyed VALUES (1, ROW(1)::late), (2, ROW(2)::late);
DELETE FROM keyed WHERE k = 1;
SQL
sql($node, 'SELECT feed_start_worker()');
my @feeds = map { "code.$_" } qw(plain secured parted keyed);

# By a look that is one of those that are tested: a SELECT would run the code.
sub await_looked_published
{
	my ($feed) = @_;

	return $node->poll_query_until('postgres',
		"SELECT NOT unpublished AND head IS NOT NULL FROM feedpub.feeds WHERE feed = '$feed'::regclass");
}

sub await_stamping
{
	my ($partition, $condition, $test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	ok( $node->poll_query_until('postgres',
			"SELECT $condition FROM feedpub.jobs WHERE relation = 'code.$partition'::regclass"),
		$test)
	  or diag(sql($node, 'SELECT * FROM feedpub._job'));
	return;
}

# What the code says from where the last look ended: "WHERE as ROLE".
my $offset = 0;
sub notes
{
	my $log = slurp_file($node->logfile, $offset);
	my %found;

	$offset += length $log;
	$found{$1}++ while $log =~ /LOG:  code: (.+ as \w+)$/mg;
	return keys %found;
}

# What of it is neither as the owner nor allowed
sub others
{
	my %allowed = map { $_ => 1 } @_;

	return join ', ', sort grep { !/ as $owner$/ && !$allowed{$_} } notes();
}

# Statements, each in a session of its own; what they return does not matter.
sub call
{
	my ($user, @statements) = @_;
	local $ENV{PGOPTIONS} = '-c statement_timeout=120s';

	$node->psql('postgres', join(";\n\\connect -\n", @statements) . ';',
		on_error_stop => 0, on_error_die => 0, extra_params => [ '-U', $user ]);
	return;
}

#
# The workers: what is there is published, and the partition's rows stamped.
#
ok(await_looked_published($_), "$_ is published") for @feeds;
await_stamping('parted3', "state = 'done'", 'rows of a partition that came are stamped');
like(slurp_file($node->logfile), qr/code: trigger BEFORE UPDATE ROW as $owner/,
	'by code that runs as the owner');
is(others(), '',
	'publishing and stamping run nothing as another role');

#
# Roles that look, roles that read
#
my @looks = map { "SELECT * FROM feedpub.$_" }
  qw(feeds waiting workers blockers subscriptions shards parked jobs);
my $one_argument = sql($node, <<'SQL');
SELECT format(CASE WHEN prokind = 'p' THEN 'CALL %I.%I(%%s)' ELSE 'BEGIN; SELECT %I.%I(%%s); ROLLBACK' END, n.nspname, proname)
FROM pg_proc p JOIN pg_namespace n ON n.oid = pronamespace
	JOIN pg_depend d ON d.objid = p.oid AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
	JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'feedpub'
WHERE proargtypes[0] = 'regclass'::regtype AND pronargs - pronargdefaults <= 1
	AND proname NOT IN ('feed_page', '_page_lines', '_page_events', '_page_records', '_page_messages', 'feed_read', 'feed_attach')
ORDER BY 1
SQL

for my $user (@callers)
{
	my (@calls, @reads);

	for my $feed (@feeds)
	{
		push @calls, map { sprintf $_, "'$feed'" } split /\n/, $one_argument;
		push @reads, "SELECT * FROM feed_read(NULL::$feed, '', 10)",
		  "SELECT feed_page('$feed', '', 10)",
		  "SELECT feedpub._newest('$feed', 10)",
		  "SELECT feedpub._page_lines('$feed', '', 10)",
		  "SELECT feedpub._page_events('$feed', '', 10)",
		  "SELECT feedpub._page_records('$feed', '', 10)",
		  "SELECT feedpub._page_messages('$feed', '', 10)",
		  "SELECT * FROM feed_fetch(NULL::$feed, '0', 0, 10)",
		  "SELECT feed_subscribe('s $feed $user', '$feed', 'earliest')",
		  "SELECT * FROM feed_poll('s $feed $user', 3)",
		  "SELECT * FROM feed_poll_rows('s $feed $user', NULL::$feed, 3)",
		  "SELECT feed_unsubscribe('s $feed $user')";
	}
	notes();
	call($user, @looks, @calls);
	is(others(), '', "$user looks and calls");
	call($user, map { "SELECT * FROM $_" } @feeds);
	my @allowed = notes();
	call($user, @reads);
	is(others(@allowed), '', "$user reads");
}

#
# The workers run code in one process, that which stamps, and this ends: neither
# a lock that the code has taken stays, nor does a loop keep anyone waiting.
#
sql($node, <<'SQL', user => $owner);
SET search_path = code, public;
CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_advisory_lock(4711);
	RETURN NEW;
END $$;
CREATE TABLE parted4 (LIKE parted);
INSERT INTO parted4 VALUES (31, 'loaded');
CREATE TRIGGER a_keep BEFORE UPDATE ON parted4 FOR EACH ROW EXECUTE FUNCTION keep();
ALTER TABLE parted ATTACH PARTITION parted4 FOR VALUES FROM (30) TO (40);
SQL
sql($node, q(CALL feed_publish('code.parted')));
await_stamping('parted4', "state = 'done'", 'a row is stamped by code that takes a lock');
ok( $node->poll_query_until('postgres',
		q(SELECT count(*) = 0 FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711)),
	'which does not stay');

sql($node, "ALTER DATABASE postgres SET code.loop = 'on'");
kill_worker($node);
sql($node, 'SELECT feed_start_worker()');
sql($node, <<'SQL', user => $owner);
SET code.loop = off;
SET search_path = code, public;
CREATE TABLE parted5 (LIKE parted);
INSERT INTO parted5 VALUES (41, 'loaded');
CREATE TRIGGER a_note BEFORE UPDATE ON parted5 FOR EACH ROW EXECUTE FUNCTION fire();
ALTER TABLE parted ATTACH PARTITION parted5 FOR VALUES FROM (40) TO (50);
INSERT INTO plain VALUES ('new', NULL);
INSERT INTO parted VALUES (12, 'c');
SQL
ok( $node->poll_query_until('postgres',
		q(SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'feedpub job')),
	'code that never ends is run');
sql($node, q(INSERT INTO other (message_type, data) VALUES ('A', '1')));
ok(await_looked_published($_), "$_ is published meanwhile")
  for qw(other code.plain code.parted);
await_stamping('parted5', "last_error = 'a step took too long and was ended'",
	'the code is ended, and its feed says so');
{
	local $ENV{PGOPTIONS} = '-c statement_timeout=120s';

	is(sql($node, 'SELECT count(*) FROM feedpub.feeds', user => $_), 5,
		"$_ sees all feeds")
	  for qw(regress_feedpub_super regress_feedpub_monitor);
	is(sql($node, "SELECT count(*) FROM feed_check('code.plain')", user => 'regress_feedpub_super'),
		0, 'and a superuser that all is well');
}

#
# A type that its owner has locked keeps its readers waiting, and no others.
#
my $locker = $node->background_psql('postgres', extra_params => [ '-U', $owner ]);
$locker->query_safe('BEGIN; ALTER TYPE code.late RENAME ATTRIBUTE a TO b');
sql($node, q(INSERT INTO other (message_type, data) VALUES ('A', '1')));
ok(await_looked_published('other'), 'another feed is published');
{
	local $ENV{PGOPTIONS} = '-c statement_timeout=120s -c lock_timeout=10ms';

	is(sql($node, 'SELECT count(*) FROM feedpub.feeds', user => $_), 5,
		"$_ sees all feeds")
	  for qw(regress_feedpub_super regress_feedpub_monitor);
	refused($node, q(SELECT feed_page('code.keyed', '', 10)),
		'55P03', 'lock timeout', 'a reader waits, and passes nothing',
		user => 'regress_feedpub_reader');
}
$locker->quit;
is( sql($node, q(SELECT string_agg(op, ',' ORDER BY op) FROM feed_read(NULL::code.keyed, '', 10)), user => 'regress_feedpub_reader'),
	'delete,upsert', 'and comes to all rows when it may');

unlike($node->log_content, qr/PANIC|server process .* was terminated/,
	'nothing has crashed');
$node->stop;
done_testing();
