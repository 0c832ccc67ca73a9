# Hostile calls: every function and procedure of the extension
# with arguments drawn at random, by a superuser, an owner of feeds and a
# stranger.  They may fail in any way but two: with an internal error (SQLSTATE
# XX...), which says that the code met what it had thought could not be, or by
# a signal.
#
# FEEDPUB_HOSTILE_CALLS is how many calls (1500), FEEDPUB_SEED chooses them.
# What failed is shown with its call.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $calls = $ENV{FEEDPUB_HOSTILE_CALLS} // 1500;
my $seed = $ENV{FEEDPUB_SEED} // 20;

# how many in a session, after which the world is put right again
my $session = 100;

srand($seed);
diag "FEEDPUB_HOSTILE_CALLS=$calls FEEDPUB_SEED=$seed";

my $node = feedpub_node('node', conf => <<'CONF');
log_error_verbosity = verbose
log_min_error_statement = error
log_min_messages = warning
restart_after_crash = off
log_statement = none
log_line_prefix = ''
CONF
my $script = PostgreSQL::Test::Utils::tempdir() . '/calls.sql';

sql($node, <<'SQL');
CREATE ROLE regress_feedpub_owner LOGIN;
CREATE ROLE regress_feedpub_stranger LOGIN;
GRANT CREATE ON SCHEMA public TO regress_feedpub_owner;
CREATE FOREIGN DATA WRAPPER wrapper;
CREATE SERVER server FOREIGN DATA WRAPPER wrapper;
SQL

#
# The world that they are called in: made again where a call has removed it.
#
my $world = <<'SQL';
SET client_min_messages = error;
CREATE PROCEDURE pg_temp.try(command text) LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE command;
EXCEPTION WHEN OTHERS THEN
	NULL;
END $$;
SET ROLE regress_feedpub_owner;
CALL pg_temp.try('CREATE TABLE plain (k int PRIMARY KEY, v text)');
CALL pg_temp.try('CREATE TABLE kv (k text PRIMARY KEY, v text)');
CALL pg_temp.try('CREATE TABLE "Odd ""Name"" %s" (a int, "b ""c" numeric, v jsonb, PRIMARY KEY ("b ""c", a))');
CALL pg_temp.try('CREATE TABLE parted (k int PRIMARY KEY, v text) PARTITION BY RANGE (k)');
CALL pg_temp.try('CREATE TABLE part1 PARTITION OF parted FOR VALUES FROM (0) TO (100)');
CALL pg_temp.try('CREATE TABLE part2 PARTITION OF parted FOR VALUES FROM (100) TO (200) PARTITION BY LIST (k)');
CALL pg_temp.try('CREATE TABLE parent (k int PRIMARY KEY)');
CALL pg_temp.try('CREATE TABLE child () INHERITS (parent)');
CALL pg_temp.try('CREATE TABLE nokey (v text)');
CALL pg_temp.try('CREATE TABLE nocolumns ()');
CALL pg_temp.try('CREATE TABLE hollow (feed_xid text, feed_pos point, message_key int, message_id int)');
CALL pg_temp.try('CREATE UNLOGGED TABLE unlogged (k int PRIMARY KEY)');
CALL pg_temp.try('CREATE VIEW a_view AS SELECT * FROM plain');
CALL pg_temp.try('CREATE MATERIALIZED VIEW a_matview AS SELECT * FROM plain');
CALL pg_temp.try('CREATE SEQUENCE a_sequence');
CALL pg_temp.try('CREATE INDEX an_index ON plain (v)');
CALL pg_temp.try('CREATE UNIQUE INDEX a_partial ON plain (k) WHERE k > 0');
CALL pg_temp.try('CREATE TYPE a_composite AS (a int, b text)');
CALL pg_temp.try('CREATE TYPE an_enum AS ENUM (''a'')');
CALL pg_temp.try('CREATE DOMAIN a_domain AS int CHECK (VALUE > 0)');
CALL pg_temp.try('CREATE DOMAIN a_row_domain AS plain');
CALL pg_temp.try('CREATE TABLE secured (k int PRIMARY KEY, v a_domain)');
CALL pg_temp.try('ALTER TABLE secured ENABLE ROW LEVEL SECURITY');
CALL pg_temp.try('CREATE POLICY p ON secured USING (k % 2 = 0)');
CALL pg_temp.try('SELECT feed_create(''outbox'')');
CALL pg_temp.try('SELECT feed_create(''other_outbox'', ''text'')');
CALL pg_temp.try('SELECT feed_attach(t) FROM unnest(ARRAY[''kv'', ''parted'', ''secured'', ''"Odd ""Name"" %s"'']::regclass[]) t');
CALL pg_temp.try('INSERT INTO outbox (message_type, data) SELECT ''a'', to_jsonb(i) FROM generate_series(1, 5) i');
CALL pg_temp.try('INSERT INTO kv SELECT i, ''v'' FROM generate_series(1, 5) i ON CONFLICT DO NOTHING');
CALL pg_temp.try('UPDATE kv SET v = v || ''x'' WHERE k < ''3''');
CALL pg_temp.try('DELETE FROM kv WHERE k = ''4''');
CALL pg_temp.try('INSERT INTO parted SELECT i, ''v'' FROM generate_series(1, 5) i ON CONFLICT DO NOTHING');
CALL pg_temp.try('DELETE FROM parted WHERE k = 4');
CALL pg_temp.try('INSERT INTO secured SELECT i, i FROM generate_series(1, 5) i ON CONFLICT DO NOTHING');
CALL pg_temp.try('GRANT SELECT ON outbox, secured TO regress_feedpub_stranger');
CALL pg_temp.try('SELECT feed_subscribe(''sub'', ''outbox'', ''earliest'')');
CALL pg_temp.try('SELECT feed_subscribe(''shared'', ''kv'', ''earliest'', 3, ''1 s'', 2)');
CALL pg_temp.try('SELECT feed_subscribe(''Odd "%s'', ''parted'', ''earliest'')');
RESET ROLE;
CALL pg_temp.try('CREATE FOREIGN TABLE a_foreign_table (k int) SERVER server');
CALL feed_publish();
-- cursors, receipts and stamps that mean something
SELECT feed_head('outbox') AS outbox_head, feed_head('kv') AS kv_head, feed_head('parted') AS parted_head \gset
SELECT feed_page('kv', '', 2) ->> 'cursor' AS kv_cursor, feed_page('parted', '', 1) ->> 'cursor' AS parted_cursor, feed_page('outbox', '', 1) ->> 'cursor' AS outbox_cursor \gset
SELECT cursor AS sub_cursor, receipt AS sub_receipt FROM feed_poll('sub', 1) \gset
SELECT cursor AS shared_cursor, receipt AS shared_receipt FROM feed_poll('shared', 1, 'w') \gset
SELECT cursor AS odd_cursor, receipt AS odd_receipt FROM feed_poll('Odd "%s', 1) \gset
SELECT 'nextval'::regproc::oid AS dropped \gset
CREATE TEMP TABLE gone (k int);
SELECT 'gone'::regclass::oid AS gone \gset
DROP TABLE gone;
CREATE TEMP TABLE a_temp_table (k int PRIMARY KEY, v text);
CREATE TEMP VIEW a_temp_view AS SELECT * FROM a_temp_table;
GRANT ALL ON a_temp_table, a_temp_view TO PUBLIC;
SET statement_timeout = 300;
SET lock_timeout = 200;
SQL

# what has not been made, because a call spoilt it for good, is left empty
my @variables = qw(outbox_head kv_head parted_head kv_cursor parted_cursor outbox_cursor
  sub_cursor shared_cursor odd_cursor sub_receipt shared_receipt odd_receipt gone);
my $defaults = join '', map { "\\set $_ 0\n" } @variables;

#
# Arguments
#
my @relations = qw(plain kv parted part1 part2 parent child nokey nocolumns hollow unlogged
  a_view a_matview a_sequence an_index a_partial a_composite secured a_foreign_table
  a_temp_table a_temp_view outbox other_outbox outbox_pkey kv_pkey parted_pkey part1_pkey
  outbox_feed_pos_seq pg_class pg_authid pg_proc pg_class_oid_index pg_stat_activity
  pg_toast.pg_toast_1255 pg_toast.pg_toast_1255_index information_schema.tables
  feedpub._feed feedpub._batch feedpub._tombstone feedpub._subscription feedpub._shard
  feedpub.feeds feedpub._batch_pkey feedpub._feed_default);
push @relations, '"Odd ""Name"" %s"', '"Odd ""Name"" %s_pkey"';
my @feeds = ('outbox', 'other_outbox', 'kv', 'parted', 'secured', '"Odd ""Name"" %s"');
my @types = qw(int4 int8 text jsonb json bytea xml record anyelement anyarray trigger void
  cstring internal unknown a_composite an_enum a_domain a_row_domain plain outbox kv parted
  pg_class feedpub._feed _int4 int4range regclass name "char" numeric oid xid8 event_trigger);
my @texts = (
	'', ' ', 'sub', 'shared', 'Odd "%s', 'outbox', 'kv', 'public.kv', 'a.b.c.d', 'no.such', '"', '""', '%s%n%s',
	'latest', 'earliest', 'now', 'infinity', '-infinity', '2000-01-01', '4714-11-24 BC', 'epoch', 'tomorrow',
	'w', 'all', 'unstamped', 'true', 'k = 1', 'false', '1 = 1; DROP TABLE kv', 'k', 'x' x 63, 'x' x 64, 'x' x 255, 'x' x 256,
	'0' x 99, 'f' x 99, '1p' . '0' x 134, '1r' . '0' x 134, '1l3ff' . 'f' x 131, '0' x 42, '01' . '0' x 97, '02' . '0' x 97, '01ffffffff' . 'f' x 89, '01' . '0' x 8 . '7' . 'f' x 88,
	"\x{1}", "a\tb\nc", "\xc3\xa9", "\xe2\x98\x83", '{"k": 1}', 'new outbox', 'pg_catalog.x', 'feedpub.x', 'pg_temp.x',
	'information_schema.tables', 'x.y', '"Quoted Feed"', 'pg_toast.x', '-1', '0', '1e10', "''", '\\', '$1', 'NULL');

sub pick { return $_[ int rand @_ ] }
sub chance { return rand(100) < $_[0] }

sub quote
{
	my ($text) = @_;

	$text =~ s/'/''/g;
	# a colon would be psql's
	return "'$text'" if $text !~ /[\\:\n]/;
	$text =~ s/\\/\\\\/g;
	$text =~ s/\n/\\n/g;
	return "E'$text'";
}

sub number
{
	my ($bits) = @_;

	return pick(0, 1, 2, 3, 5, 10, 100, 1000, -1, -2, 1023, 1024, 1025, 65535, 65536,
		2147483647, '(-2147483648)', int rand 1000) if $bits == 32 || chance(50);
	return pick('9223372036854775807', '(-9223372036854775808)', '4294967295', '4294967296', '2147483648',
		'281474976710656', '1099511627776');
}

sub text
{
	return quote(pick('sub', 'shared', 'Odd "%s')) if chance(30);
	if (chance(35))
	{
		my $cursor = ':\'' . pick(grep { /_(head|cursor|receipt)$/ } @variables) . '\'';

		# one that means something, or with another digit somewhere
		return $cursor if chance(60);
		my $at = 1 + int rand 140;
		my $digit = pick(0 .. 9, 'a' .. 'f', 'F', 'g', ' ', '');
		return "overlay($cursor placing '$digit' from $at for 1)";
	}
	return "repeat('" . pick('x', '0', 'é') . "', 1000000)" if chance(2);
	return quote(pick(@texts));
}

sub relation
{
	return pick('0', '1', '4294967295', '2147483648', ':gone') . '::oid::regclass' if chance(10);
	return quote(chance(40) ? pick(@feeds) : pick(@relations)) . '::regclass';
}

my %argument = (
	regclass => \&relation,
	_regclass => sub { return 'ARRAY[' . join(', ', map { chance(5) ? 'NULL' : relation() } 1 .. rand 4) . ']::regclass[]' },
	anyelement => sub {
		return 'NULL::' . pick(@feeds) if chance(50);
		return 'NULL' if chance(5);
		return pick('1', '\'a\'::text', 'ROW(1, 2)', 'ROW()', '\'{}\'::int[]', 'NULL::a_composite', 'NULL::a_row_domain',
			'NULL::a_domain', 'NULL::an_enum', 'NULL::feedpub._feed', 'NULL::pg_class', 'NULL::record', 'NULL::information_schema.tables',
			'(SELECT o FROM outbox o LIMIT 1)', '(SELECT k FROM kv k LIMIT 1)', 'NULL::kv[]', 'NULL::xid8', 'NULL::json')
		  if chance(40);
		return 'NULL::' . pick(@relations);
	},
	text => \&text,
	int4 => sub { return number(32) },
	int8 => sub { return number(64) },
	bool => sub { return pick('true', 'false') },
	xid8 => sub { return quote(pick(0, 1, 2, 3, 700, 1000, '4294967296', '9223372036854775808', '18446744073709551615')) . '::xid8' },
	interval => sub { return quote(pick('0', '1 us', '10 ms', '100 ms', '1 s', '30 s', '1 day', '-1 s', '1 month', '1 year',
				'178000000 years', '-178000000 years', '2562047788 hours', '-2562047788 hours', '1 year -1 year')) . '::interval' },
	timestamptz => sub { return quote(pick('now', 'infinity', '-infinity', 'epoch', '4714-11-24 BC', '294276-12-31', '2000-01-01')) . '::timestamptz' },
	jsonb => sub { return quote(pick('{}', '[]', 'null', '1', '{"k": 1}', '{"k": "1"}', '{"k": null}', '{"k": {"k": []}}', '{"k": 1, "v": 2}',
				'{"k": 1e400}', '{"b \"c": 1, "a": 1}', '{"a": 1}', '[{"k": 1}]')) . '::jsonb' },
	_text => sub { return quote(pick('{}', '{k}', '{v}', '{k,v}', '{k,k}', '{NULL}', '{k,NULL}', '{{k,v}}', '[5:6]={k,v}', '{feed_xid}', '{ctid,tableoid}',
				'{"",x}', '{a,"b \"c"}')) . '::text[]' },
	_interval => sub { return quote(pick('{}', '{1 s}', '{1 s,1 h}', '{NULL}', '{-1 s}', '{{1 s,2 s}}', '[5:6]={0,178000000 years}',
				'{' . join(',', ('1 s') x 101) . '}', '{infinity}')) . '::interval[]' },
	_name => sub { return quote(pick('{}', '{k}', '{v}', '{k,v}', '{k,k}', '{NULL}', '{{k,v}}', '[5:6]={k,v}', '{feed_xid}', '{ctid}')) . '::name[]' },
	regtype => sub {
		return pick('0', '4294967295', ':gone') . '::oid::regtype' if chance(10);
		return quote(pick(@types)) . '::regtype';
	},
	oid => sub { return pick('0', '10', '4294967295', ':gone', '\'regress_feedpub_owner\'::regrole', '\'kv\'::regclass') . '::oid' },
	name => sub { return quote(pick('', 'postgres', 'regress_feedpub_owner', 'no such')) . '::name' },);

#
# What there is to be called
#
my @functions;
foreach my $line (split /\n/, sql($node, <<'SQL'))
SELECT p.oid::regproc, p.prokind, p.prorettype::regtype, p.pronargs - p.pronargdefaults,
	(SELECT string_agg(t.typname, ',' ORDER BY n) FROM unnest(p.proargtypes) WITH ORDINALITY a (type, n) JOIN pg_type t ON t.oid = a.type)
FROM pg_depend d JOIN pg_proc p ON p.oid = d.objid
WHERE d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'feedpub')
ORDER BY p.oid::regprocedure::text
SQL
{
	my ($name, $kind, $returns, $least, $types) = split /\|/, $line;
	push @functions, {
		name => $name, kind => $kind, trigger => $returns eq 'trigger',
		least => $least, types => [ split /,/, $types // '' ] };
}
my %unknown = map { $_ => 1 } grep { !$argument{$_} } map { @{ $_->{types} } } @functions;
is(join(' ', sort keys %unknown), '', 'arguments of all types can be drawn');

# A call, as an expression.
sub call
{
	my ($function) = @_;
	my @types = @{ $function->{types} };
	my $last = chance(50) ? $#types : $function->{least} - 1 + int rand(@types - $function->{least} + 1);
	my @arguments;

	foreach my $type (@types[ 0 .. $last ])
	{
		my $value = chance(8) && $type ne 'anyelement' ? 'NULL' : $argument{$type}->();
		push @arguments, $value =~ /::/ || $type eq 'anyelement' ? $value : "$value\::$type";
	}
	return "$function->{name}(" . join(', ', @arguments) . ')';
}

# A trigger function as a trigger of a table, at any time, and what fires it.
sub trigger
{
	my ($function) = @_;
	my $row = pick('ROW', 'STATEMENT');
	my $events = join ' OR ', grep { chance(50) } 'INSERT', 'UPDATE', 'DELETE', $row eq 'ROW' ? () : 'TRUNCATE';
	my $table = pick('plain', 'nokey', 'hollow', 'nocolumns', 'part1', 'kv', 'a_temp_table', 'child');
	my $values = pick('DEFAULT VALUES', 'DEFAULT VALUES', 'VALUES (1000000)');
	my $arguments = join ', ', map { quote(pick(@texts)) } 1 .. rand 4;

	$events ||= 'INSERT';
	return ("CREATE TRIGGER a_trigger " . pick('BEFORE', 'AFTER') . " $events ON $table FOR EACH $row EXECUTE FUNCTION $function->{name}($arguments)",
		'SAVEPOINT s', "INSERT INTO $table $values", 'ROLLBACK TO s', "UPDATE $table SET " . pick('v = NULL', 'k = k', 'feed_xid = NULL'),
		'ROLLBACK TO s', "DELETE FROM $table", 'ROLLBACK TO s', "TRUNCATE $table CASCADE", 'ROLLBACK TO s');
}

my @views = split /\n/, sql($node, q(SELECT oid::regclass FROM pg_class WHERE relnamespace = 'feedpub'::regnamespace AND relkind = 'v' ORDER BY 1));

# The statements of one call.
sub statements
{
	my $function = pick(@functions);
	my $call = call($function);
	my @statements;

	return ('BEGIN', trigger($function), 'ROLLBACK') if $function->{trigger} && chance(60);
	return ("SELECT * FROM " . pick(@views)) if chance(3);
	if ($function->{kind} eq 'p') { @statements = ("CALL $call") }
	elsif (chance(30)) { @statements = ("SELECT $call") }
	elsif (chance(10)) { @statements = ("SELECT $call FROM generate_series(1, 3)") }
	else { @statements = ("SELECT * FROM $call" . (chance(10) ? ' LIMIT 1' : '')) }
	if (chance(5))
	{
		my $body = $statements[0] =~ s/^SELECT /PERFORM /r;

		@statements = (
			"CREATE FUNCTION pg_temp.f() RETURNS void LANGUAGE plpgsql AS \$\$ BEGIN $body; EXCEPTION WHEN division_by_zero THEN NULL; END \$\$",
			'SELECT pg_temp.f()', 'DROP FUNCTION pg_temp.f');

		# psql does not look into quotes of dollars
		return if $body =~ /:'?[a-z]+_[a-z]+|:gone/;
	}
	return @statements if chance(60);

	# with what a transaction has done before
	unshift @statements, pick('SELECT pg_current_xact_id()', 'INSERT INTO outbox (message_type, data) VALUES (\'x\', \'1\')', 'SAVEPOINT t',
		'UPDATE kv SET v = v', 'DELETE FROM kv', 'TRUNCATE kv', 'TRUNCATE outbox', 'ALTER TABLE kv ADD x int', 'DROP TABLE kv CASCADE', 'ALTER TABLE parted DETACH PARTITION part1',
		'DROP INDEX kv_pkey', 'ALTER TABLE kv DROP COLUMN k CASCADE', 'ALTER TABLE outbox DROP COLUMN message_key', 'ALTER TABLE outbox DROP COLUMN feed_pos CASCADE', 'ALTER TABLE kv RENAME k TO y',
		'ALTER TABLE kv ALTER k TYPE varchar', 'DELETE FROM feedpub._feed', 'DELETE FROM feedpub._batch', 'DECLARE c CURSOR FOR SELECT * FROM feed_read(NULL::kv, \'\', 10)')
	  if chance(60);
	return ('BEGIN' . pick('', '', ' ISOLATION LEVEL REPEATABLE READ', ' ISOLATION LEVEL SERIALIZABLE', ' READ ONLY'),
		@statements, pick(['ROLLBACK'], ['ROLLBACK'], ['COMMIT'], [ 'FETCH ALL FROM c', 'ROLLBACK' ],
			[ 'PREPARE TRANSACTION \'p\'', 'ROLLBACK PREPARED \'p\'' ])->@*);
}

#
# Sessions
#
my $made = 0;
my $offset = -s $node->logfile;
my $finished = 1;
my %states;
my @bad;
while ($made < $calls && $finished)
{
	my $statements = '';
	my $n = 0;

	while ($n < $session && $made + $n < $calls)
	{
		# a superuser's COMMIT could take the extension's tables apart
		my $role = pick('regress_feedpub_owner', 'regress_feedpub_owner', 'regress_feedpub_stranger', 'postgres');

		my @statements = statements() or next;
		@statements = map { s/^COMMIT$/ROLLBACK/r } @statements if $role eq 'postgres';
		$statements .= join ";\n", "SET SESSION AUTHORIZATION $role", @statements, "RESET SESSION AUTHORIZATION;\n";
		$n++;
	}
	unlink $script;
	append_to_file($script, "$defaults$world$statements\\echo finished\n");
	$made += $n;

	my ($stdout, $stderr) = ('', '');
	IPC::Run::run([ 'psql', '-XAtq', '-d', $node->connstr('postgres'), '-f', $script ], '>', \$stdout, '2>', \$stderr);
	$finished = $stdout =~ /^finished$/m or diag substr($stderr, -2000);

	# the log since the last session
	my $log = slurp_file($node->logfile, $offset);
	$offset += length $log;
	while ($log =~ /^((?:ERROR|FATAL|PANIC|WARNING|LOG):\s+([0-9A-Z]{5}): .*(?:\n(?!(?:ERROR|FATAL|PANIC|WARNING):).*){0,8})/mg)
	{
		my ($message, $state) = ($1, $2);

		$states{$state}++;
		push @bad, $message if $state =~ /^XX/;
	}
	push @bad, $1 while $log =~ /^(.*(?:terminated by signal|AddressSanitizer|runtime error:|TRAP:).*(?:\n.*){0,30})/mg;
}
is(scalar(grep { /^/ } @bad), 0, 'no internal error, no signal');
diag $_ foreach @bad[ 0 .. ($#bad > 19 ? 19 : $#bad) ];
ok($finished, 'the server lives');
is($made, $calls, "$calls calls");
note join ', ', map { "$states{$_} $_" } sort keys %states;

$node->stop('immediate', fail_ok => 1);
done_testing();
