# Triggers and functions that are made at random change rows again, free and give
# keys, fail in savepoints, within statements that are made at random: what a change
# feed tells of all that, applied by key in its order, is what the tables are when
# each transaction ends, and each row's entries are in the order of its versions.
#
# A seed decides all, on one server version.  FEEDPUB_FUZZ=N tries N seeds more;
# FEEDPUB_FUZZ_SEED is the first of these.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $transactions = 300;
my $node = feedpub_node('fuzzed', conf => "feedpub.read_wait = 0\nfsync = off\nsynchronous_commit = off");

# u is the row's own for ever, n the number of its version.  n is always set by the
# last BEFORE trigger, and a statement that inserts never gives it.
sql($node, <<'SQL');
SELECT feed_stop_worker();
CREATE SCHEMA fuzz;
SET search_path = fuzz, public;
CREATE TABLE fuzz.copy (relation text, key text, r jsonb, PRIMARY KEY (relation, key));
CREATE TABLE fuzz.version (relation text, u int PRIMARY KEY, n int, gone boolean);

CREATE FUNCTION fuzz.up_to(n int) RETURNS int LANGUAGE sql VOLATILE AS 'SELECT 1 + floor(random() * n)::int';
CREATE FUNCTION fuzz.one(VARIADIC list text[]) RETURNS text LANGUAGE sql VOLATILE AS
	'SELECT list[fuzz.up_to(cardinality(list))]';

-- how many changes have been made within a statement
CREATE SEQUENCE fuzz.made;

-- A statement about key k and others
CREATE FUNCTION fuzz.statement(k int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	a int := fuzz.up_to(7);
	b int := fuzz.up_to(7);
	r int := fuzz.up_to(4);
BEGIN
	RETURN replace(replace(replace(replace(fuzz.one(
		'INSERT INTO item (id, p) VALUES (:k, :a * 20 + :b)',
		'INSERT INTO item (id) VALUES (:k), (:a), (:b) ON CONFLICT (id) DO NOTHING',
		'INSERT INTO item (id) VALUES (:k), (:a) ON CONFLICT (id) DO UPDATE SET v = item.v + 1',
		'INSERT INTO item (id) VALUES (:k) ON CONFLICT (id) DO UPDATE SET id = :a, v = EXCLUDED.v',
		'INSERT INTO item (id, v) SELECT g, again(g) FROM generate_series(:a, :a + 2) g ON CONFLICT (id) DO UPDATE SET v = again(item.id)',
		'UPDATE item SET v = v + 1 WHERE id = :k',
		'UPDATE item SET v = v + 1 WHERE id = :k',
		'UPDATE item SET v = v + 1',
		'UPDATE item SET v = again(id) WHERE id IN (:k, :a, :b)',
		'UPDATE item SET id = :a WHERE id = :k',
		'UPDATE item SET id = id + 10 WHERE id IN (:k, :a) AND again(id) > 0',
		'UPDATE item SET id = -id WHERE v % 2 = 0',
		'UPDATE item SET p = :a * 20 + :b - coalesce(p, 0)',
		'DELETE FROM item WHERE id = :k',
		'DELETE FROM item WHERE id IN (:k, :a) AND again(id) > 0',
		'DELETE FROM item WHERE id < 0 OR id > 7',
		'WITH d AS (DELETE FROM item WHERE id IN (:k, :a) RETURNING *) INSERT INTO item (id, v) SELECT id, v FROM d WHERE again(id) > 0',
		'WITH u AS (UPDATE item SET id = id + 10 WHERE id = :k RETURNING *), i AS (INSERT INTO item (id) SELECT id - 10 FROM u RETURNING *) INSERT INTO child (id, item) SELECT :b, id FROM i',
		'WITH u AS (UPDATE item SET v = v + 1 RETURNING *) UPDATE part SET v = part.v + u.v, region = :r FROM u WHERE u.id = part.id',
		'MERGE INTO item USING (VALUES (:k), (:a)) s (i) ON item.id = s.i WHEN MATCHED AND v % 3 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET v = again(i), id = i WHEN NOT MATCHED THEN INSERT (id, v) VALUES (i, again(i))',
		'INSERT INTO part (id, region) VALUES (:k, :r)',
		'INSERT INTO part (id, region, v) SELECT g, :r, again(g) FROM generate_series(:a, :a + 2) g ON CONFLICT (id, region) DO UPDATE SET v = part.v + 1',
		'UPDATE part SET v = v + 1 WHERE id = :k',
		'UPDATE part SET v = again(id)',
		'UPDATE part SET region = :r WHERE id = :k',
		'UPDATE part SET region = region % 4 + 1 WHERE id IN (:k, :a)',
		'UPDATE part SET region = region % 4 + 1, v = again(id)',
		'UPDATE part SET id = :a, region = :r WHERE id = :k AND again(id) > 0',
		'UPDATE part SET id = id + 1 WHERE region = :r AND id > 3',
		'DELETE FROM part WHERE id = :k',
		'DELETE FROM part WHERE region = :r AND again(id) > 0',
		'WITH d AS (DELETE FROM part WHERE id IN (:k, :a) RETURNING *) INSERT INTO part (id, region) SELECT id, region FROM d WHERE again(id) > 0',
		'MERGE INTO part USING (VALUES (:k), (:a)) s (i) ON part.id = s.i WHEN MATCHED AND v % 3 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET v = again(i), region = :r WHEN NOT MATCHED THEN INSERT (id, region) VALUES (i, :r)',
		'INSERT INTO child (id, item) VALUES (:a, :k), (:b, :k) ON CONFLICT (id) DO UPDATE SET v = child.v + 1',
		'UPDATE child SET item = :a WHERE id = :b',
		'UPDATE child SET id = id + 10 WHERE item = :k',
		'DELETE FROM child WHERE id > 7 OR item = :k',
		'DELETE FROM child USING item WHERE item.id = item AND (item.id < 0 OR item.id > 7)'),
		':k', k::text), ':a', a::text), ':b', b::text), ':r', r::text);
END $$;

-- Make such a change within another; some are undone, and perhaps another made
CREATE FUNCTION fuzz.change(k int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	depth int := coalesce(nullif(current_setting('fuzz.depth', true), ''), '0')::int;
BEGIN
	IF depth >= 3 OR random() > 0.7 / (1 + depth) OR nextval('made') > 12 THEN
		RETURN;
	END IF;
	BEGIN
		PERFORM set_config('fuzz.depth', (depth + 1)::text, true);
		EXECUTE fuzz.statement(k);
		IF random() < 0.2 THEN
			RAISE 'undone';
		END IF;
		PERFORM set_config('fuzz.depth', depth::text, true);
	EXCEPTION
		WHEN raise_exception OR integrity_constraint_violation OR cardinality_violation OR triggered_data_change_violation THEN
			IF random() < 0.4 THEN
				PERFORM fuzz.change(k);
			END IF;
	END;
END $$;
CREATE FUNCTION fuzz.again(k int) RETURNS int LANGUAGE plpgsql VOLATILE AS $$
BEGIN
	PERFORM fuzz.change(k);
	RETURN fuzz.up_to(9);
END $$;
CREATE FUNCTION fuzz.meddle() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	k int := fuzz.up_to(7);
BEGIN
	IF TG_LEVEL = 'ROW' AND random() < 0.8 THEN
		k := CASE WHEN TG_OP = 'INSERT' OR TG_OP = 'UPDATE' AND random() < 0.5 THEN NEW.id ELSE OLD.id END;
	END IF;
	PERFORM fuzz.change(k);
	RETURN CASE WHEN TG_WHEN = 'AFTER' OR random() < 0.04 THEN NULL WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
END $$;
CREATE FUNCTION fuzz.number_version() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	NEW.n := CASE TG_OP WHEN 'UPDATE' THEN OLD.n + 1 ELSE coalesce(NEW.n, 1) END;
	RETURN NEW;
END $$;

-- Tables and triggers for a seed
CREATE PROCEDURE fuzz.begin(seed float8) LANGUAGE plpgsql AS $$
DECLARE
	t text;
	timing text;
BEGIN
	PERFORM setseed(seed);
	IF to_regclass('fuzz.changes') IS NOT NULL THEN
		PERFORM feed_drop('fuzz.changes');
	END IF;
	DROP TABLE IF EXISTS item, child, part;
	DROP SEQUENCE IF EXISTS u;
	DELETE FROM copy;
	DELETE FROM version;
	CREATE SEQUENCE u;
	CREATE TABLE item (id int PRIMARY KEY, p int UNIQUE DEFERRABLE INITIALLY DEFERRED, v int DEFAULT 0, u int DEFAULT nextval('u'), n int);
	CREATE TABLE child (id int PRIMARY KEY, item int REFERENCES item ON DELETE CASCADE ON UPDATE CASCADE DEFERRABLE, v int DEFAULT 0, u int DEFAULT nextval('u'), n int);
	CREATE TABLE part (id int, region int, v int DEFAULT 0, u int DEFAULT nextval('u'), n int, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
	CREATE TABLE part_1 PARTITION OF part FOR VALUES IN (1);
	CREATE TABLE part_2 (n int, v int DEFAULT 0, gone int, region int NOT NULL, u int DEFAULT nextval('u'), id int NOT NULL);
	ALTER TABLE part_2 DROP gone;
	ALTER TABLE part ATTACH PARTITION part_2 FOR VALUES IN (2);
	CREATE TABLE part_3 PARTITION OF part DEFAULT;
	PERFORM feed_create_changes('fuzz.changes');
	FOREACH t IN ARRAY '{item,child,part}'::text[] LOOP
		PERFORM feed_capture(('fuzz.' || t)::regclass, 'fuzz.changes');
		EXECUTE format('CREATE TRIGGER zzz_number BEFORE INSERT OR UPDATE ON %I FOR EACH ROW EXECUTE FUNCTION number_version()', t);
		FOR i IN 1..up_to(4) LOOP
			timing := one('BEFORE %s ON %I FOR EACH ROW', 'AFTER %s ON %I FOR EACH ROW', 'AFTER %s ON %I FOR EACH ROW', 'AFTER %s ON %I FOR EACH ROW',
				'AFTER %s ON %I DEFERRABLE INITIALLY DEFERRED FOR EACH ROW', 'AFTER %s ON %I FOR EACH STATEMENT');
			EXECUTE format('CREATE %s TRIGGER %I ' || timing || ' EXECUTE FUNCTION meddle()', CASE WHEN timing LIKE '%DEFER%' THEN 'CONSTRAINT' END,
				one('A', 'RI_a', 'RI_z', 'z') || i, one('INSERT', 'UPDATE', 'DELETE', 'INSERT OR UPDATE', 'INSERT OR UPDATE OR DELETE'), t);
		END LOOP;
	END LOOP;
END $$;

-- What a transaction may do besides
CREATE FUNCTION fuzz.top_statement() RETURNS text LANGUAGE sql VOLATILE AS $$
	SELECT setval('made', 1);
	SELECT CASE
		WHEN random() < 0.9 THEN fuzz.statement(fuzz.up_to(7))
		ELSE fuzz.one('SET CONSTRAINTS ALL IMMEDIATE', 'SET CONSTRAINTS ALL DEFERRED', 'TRUNCATE item CASCADE', 'TRUNCATE part', 'TRUNCATE part_1', 'TRUNCATE child, part_2',
			'DO $d$ BEGIN FOR i IN 1..3 LOOP PERFORM fuzz.change(i); END LOOP; END $d$',
			$s$COPY child (id, item) FROM PROGRAM 'printf "1\t1\n2\t2\n"'$s$) END
$$;

-- Apply what has been told.  Returns what is wrong
CREATE FUNCTION fuzz.judge() RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
	e record;
	known version;
BEGIN
	FOR e IN WITH gone AS (DELETE FROM changes RETURNING *)
		SELECT *, substr(g.relation, 6) AS t, coalesce(g."row"->>'u', g.old->>'u')::int AS ru, (g."row"->>'n')::int AS new_n, (g.old->>'n')::int AS old_n
		FROM gone g ORDER BY feed_xid, feed_pos
	LOOP
		IF e.error IS NOT NULL THEN
			RETURN NEXT 'error ' || e.error;
		END IF;
		DELETE FROM copy WHERE relation = e.t AND (e.op = 'truncate' OR key IN (e.key::jsonb::text, e.old_key::jsonb::text));
		IF e.op IN ('insert', 'update') THEN
			INSERT INTO copy VALUES (e.t, e.key::jsonb::text, e."row");
		END IF;
		IF e.op = 'truncate' THEN
			UPDATE version SET gone = true WHERE relation = e.t;
			CONTINUE;
		END IF;
		SELECT * INTO known FROM version v WHERE v.u = e.ru;
		CONTINUE WHEN e.op = 'insert' AND (e.new_n > 1 OR known.u IS NOT NULL);	-- told again
		IF (CASE e.op WHEN 'insert' THEN known.u IS NOT NULL
				WHEN 'update' THEN known.gone IS NOT FALSE OR known.n <> e.old_n OR e.new_n <> e.old_n + 1
				ELSE known.gone IS NOT FALSE OR known.n <> e.old_n END) THEN
			RETURN NEXT format('%s of row %s of %s comes after version %s: %s, before %s', e.op, e.ru, e.t, known, e."row", e.old);
		END IF;
		INSERT INTO version VALUES (e.t, e.ru, coalesce(e.new_n, e.old_n), e.op = 'delete')
		ON CONFLICT (u) DO UPDATE SET n = EXCLUDED.n, gone = EXCLUDED.gone;
	END LOOP;
	RETURN QUERY
		SELECT format('%s %s: %s is %s', coalesce(c.relation, s.t), coalesce(c.key, s.key), coalesce(c.r::text, 'nothing'), coalesce(s.r::text, 'nothing'))
		FROM copy c FULL JOIN (
			SELECT 'item' AS t, jsonb_build_object('id', id)::text AS key, to_jsonb(i) AS r FROM item i
			UNION ALL SELECT 'child', jsonb_build_object('id', id)::text, to_jsonb(i) FROM child i
			UNION ALL SELECT 'part', jsonb_build_object('id', id, 'region', region)::text, to_jsonb(i) FROM part i) s ON s.t = c.relation AND s.key = c.key
		WHERE c.r IS DISTINCT FROM s.r;
END $$;
SQL

# Each statement is one of the client, which takes back what has failed.
sub try_seed
{
	my ($seed) = @_;
	my $script = "SET search_path = fuzz, public;\nSET client_min_messages = error;\n\\set ON_ERROR_ROLLBACK on\nCALL fuzz.begin($seed);\n";

	$script .= "BEGIN;\nSELECT top_statement() FROM generate_series(1, up_to(4)) \\gexec\nCOMMIT;\nSELECT 'wrong: ' || judge();\n" for 1 .. $transactions;
	$script .= "SELECT 'told ' || count(*) || ' ' || sum(n) FROM version;\n";
	my ($status, $stdout, $stderr) = $node->psql('postgres', $script, on_error_stop => 0, extra_params => ['-e']);
	my ($rows, $versions) = $stdout =~ /^told (\d+) (\d+)$/m;
	my ($before) = $stdout =~ /^((?:.*\n){1,30})^wrong: /m;
	my @odd = grep { !/violates|undone|already exists|already modified|a second time|no partition|pending trigger|transaction is aborted/ } $stderr =~ /ERROR:  (.*)/g;

	note("seed $seed: $rows rows, $versions versions");
	is(join("\n", $stdout =~ /^(wrong: .*)/mg), '', "seed $seed: what is told is what there is")
	  or diag($before);
	is(join("\n", @odd), '', "seed $seed: no other errors");
	return;
}

try_seed($_ / 1000) for 1 .. 3;
if ($ENV{FEEDPUB_FUZZ})
{
	my $first = $ENV{FEEDPUB_FUZZ_SEED} // int rand 1_000_000;

	try_seed($_ / 1_000_000) for $first .. $first + $ENV{FEEDPUB_FUZZ} - 1;
}

$node->stop;
done_testing();
