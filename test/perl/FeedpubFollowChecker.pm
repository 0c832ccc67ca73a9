# FeedpubFollowChecker.pm: six tables with foreign keys, sessions that change them
# at random, and what snapshots of them see.  For the test of
# examples/follower/follow_all.py.
#
#   schema(source => 1)    the tables as the source has them, with cascades and
#                          triggers; without, as a copy has them
#   captured()             their names
#   state()                a query for all their rows, as one text
#   write(...)             changes them, until the file "end" is there
#   judge(...)             takes snapshots of them until then, and writes each
#                          one's cursor and state into DIR/judged
#
# What a session does is decided by its seed; when it happens is not.
package FeedpubFollowChecker;

use strict;
use warnings FATAL => 'all';

use DBI;
use Time::HiRes ();

my @tables = qw(office person task tag event tree);

sub captured { return @tables }

sub schema
{
	my (%options) = @_;
	my $sql = <<'SQL';
CREATE TABLE office (id int PRIMARY KEY, rank int, head int, note text, UNIQUE (rank) DEFERRABLE);
CREATE TABLE person (id int PRIMARY KEY,
	boss int REFERENCES person ON DELETE SET NULL ON UPDATE CASCADE,
	office int REFERENCES office ON DELETE CASCADE ON UPDATE CASCADE DEFERRABLE INITIALLY DEFERRED,
	nick text, active boolean);
CREATE UNIQUE INDEX person_nick ON person (nick) WHERE active;
ALTER TABLE office ADD FOREIGN KEY (head) REFERENCES person ON DELETE SET NULL ON UPDATE CASCADE
	DEFERRABLE INITIALLY DEFERRED;
CREATE TABLE task (id int PRIMARY KEY,
	person int NOT NULL REFERENCES person ON DELETE CASCADE ON UPDATE CASCADE,
	pos int NOT NULL, v int NOT NULL DEFAULT 0, UNIQUE (person, pos) DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE tag (task int REFERENCES task ON DELETE CASCADE ON UPDATE CASCADE, name text, payload text,
	size int GENERATED ALWAYS AS (length(name)) STORED, PRIMARY KEY (task, name));
CREATE TABLE event (id int, region int,
	person int REFERENCES person ON DELETE SET NULL ON UPDATE CASCADE, v int, PRIMARY KEY (id, region))
	PARTITION BY LIST (region);
CREATE TABLE event_1 PARTITION OF event FOR VALUES IN (1);
CREATE TABLE event_2 (v int, region int NOT NULL, dropped int, person int, id int NOT NULL);
ALTER TABLE event_2 DROP dropped;
ALTER TABLE event ATTACH PARTITION event_2 FOR VALUES IN (2);
CREATE TABLE event_3 PARTITION OF event DEFAULT;
CREATE TABLE tree (id int PRIMARY KEY, parent int REFERENCES tree DEFERRABLE INITIALLY DEFERRED,
	event int, region int, note text,
	FOREIGN KEY (event, region) REFERENCES event ON DELETE SET NULL ON UPDATE CASCADE);
SQL

	if (!$options{source})
	{
		# no actions, no partitions, all keys deferred
		$sql =~ s/ ON (DELETE|UPDATE) (CASCADE|SET NULL)//g;
		$sql =~ s/\s+DEFERRABLE( INITIALLY DEFERRED)?//g;
		$sql =~ s/(REFERENCES \w+)/$1 DEFERRABLE/g;
		$sql =~ s/\s*PARTITION BY LIST \(region\)//;
		$sql =~ s/^(CREATE|ALTER) TABLE event_?.*(_\d|PARTITION).*\n//mg;
		return $sql;
	}
	return $sql . <<'SQL';
-- lists that are numbered anew, by triggers that are called before ours and after
CREATE FUNCTION number_tasks() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF pg_trigger_depth() < 3 THEN
		UPDATE task t SET pos = s.n
		FROM (SELECT id, row_number() OVER (ORDER BY pos DESC, id) AS n FROM task WHERE person = NEW.person) s
		WHERE s.id = t.id AND t.pos <> s.n;
		UPDATE task SET v = v + 1 WHERE id = NEW.id AND v % 3 = 0;
	END IF;
	RETURN NULL;
END $$;
CREATE TRIGGER "A number" AFTER INSERT OR UPDATE OF person ON task FOR EACH ROW EXECUTE FUNCTION number_tasks();
CREATE FUNCTION rename_again() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF pg_trigger_depth() < 3 THEN
		UPDATE person SET nick = nick || '.' WHERE id = NEW.id AND length(nick) < 3;
		UPDATE person SET boss = NULL WHERE boss = id OR id = NEW.boss AND boss = NEW.id;
	END IF;
	RETURN NULL;
END $$;
CREATE TRIGGER "z again" AFTER INSERT OR UPDATE ON person FOR EACH ROW EXECUTE FUNCTION rename_again();
-- a row that comes back, before its delete is written
CREATE FUNCTION keep_tag() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF OLD.name IN ('a', 'd') AND OLD.payload IS DISTINCT FROM 'kept' THEN
		INSERT INTO tag SELECT id, OLD.name, 'kept' FROM task WHERE id = OLD.task ON CONFLICT DO NOTHING;
	END IF;
	RETURN NULL;
END $$;
CREATE TRIGGER "A keep" AFTER DELETE ON tag FOR EACH ROW EXECUTE FUNCTION keep_tag();
CREATE FUNCTION note_others() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF pg_trigger_depth() < 3 THEN
		UPDATE office SET note = left(coalesce(note, '') || NEW.id, 9) WHERE id = NEW.id + 1;
	END IF;
	RETURN NEW;
END $$;
CREATE TRIGGER "note others" BEFORE INSERT OR UPDATE ON office FOR EACH ROW EXECUTE FUNCTION note_others();
-- one that writes when its transaction commits
CREATE FUNCTION note_late() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	UPDATE tree SET note = coalesce(note, '') || '+' WHERE id = NEW.id AND (note IS NULL OR length(note) < 3);
	RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER late AFTER INSERT OR UPDATE ON tree DEFERRABLE INITIALLY DEFERRED
	FOR EACH ROW EXECUTE FUNCTION note_late();
SQL
}

# Rows as texts, in an order that does not depend on the database.
sub state
{
	return q{SELECT string_agg(r, E'\n' ORDER BY r COLLATE "C") FROM (}
	  . join(' UNION ALL ', map { "SELECT '$_ ' || t::text FROM $_ t" } @tables)
	  . ') rows (r)';
}

sub chance { return rand 100 < $_[0] }
sub some { return 1 + int rand $_[0] }
sub one { return $_[ int rand @_ ] }

# How each statement is made, and how often.
my @statements = (
	[ 6 => sub { sprintf "INSERT INTO office VALUES (%d, %d, NULL, 'x') ON CONFLICT (id) DO UPDATE SET rank = EXCLUDED.rank", some(8), some(12) } ],
	[ 3 => sub { my ($a, $b) = (some(12), some(12)); "UPDATE office SET rank = CASE rank WHEN $a THEN $b ELSE $a END WHERE rank IN ($a, $b)" } ],
	[ 1 => sub { 'UPDATE office SET rank = 13 - rank' } ],
	[ 2 => sub { sprintf 'UPDATE office SET id = %d WHERE id = %d', some(8), some(8) } ],
	[ 1 => sub { sprintf 'DELETE FROM office WHERE id = %d', some(8) } ],
	[ 3 => sub { sprintf 'UPDATE office SET head = %d WHERE id = %d', some(30), some(8) } ],
	[ 10 => sub {
		my ($a, $b) = (some(30), some(30));
		sprintf "INSERT INTO person VALUES (%d, %d, %d, '%s', %s), (%d, %d, NULL, '%s', %s) ON CONFLICT DO NOTHING",
		  $a, $b, some(8), one('a' .. 'f'), one('true', 'false'), $b, $a, one('a' .. 'f'), one('true', 'false');
	} ],
	[ 3 => sub { sprintf 'UPDATE person SET id = %d WHERE id = %d', some(30), some(30) } ],
	[ 1 => sub { 'UPDATE person SET id = CASE WHEN id < 100 THEN id + 100 ELSE id - 100 END' } ],
	[ 3 => sub { sprintf 'UPDATE person SET active = NOT active WHERE nick IN (SELECT nick FROM person WHERE id BETWEEN %d AND %d)', some(30), 1 + some(30) } ],
	[ 2 => sub { sprintf 'UPDATE person SET office = %d, boss = %d WHERE id = %d', some(8), some(30), some(30) } ],
	[ 2 => sub { sprintf 'DELETE FROM person WHERE id %% 13 = %d', some(13) } ],
	[ 10 => sub { sprintf 'INSERT INTO task SELECT i, (SELECT id FROM person ORDER BY id %% %d, id LIMIT 1), 100 + i, %d FROM generate_series(%d, %d) i ON CONFLICT (id) DO UPDATE SET pos = task.pos + 7', some(5), some(9), map { ($_, $_ + 2) } some(40) } ],
	[ 3 => sub { sprintf 'UPDATE task SET pos = -pos WHERE person = (SELECT person FROM task WHERE id = %d)', some(40) } ],
	[ 2 => sub { sprintf 'UPDATE task SET person = (SELECT person FROM task WHERE id = %d) WHERE id = %d', some(40), some(40) } ],
	[ 3 => sub { sprintf 'UPDATE task SET id = %d WHERE id = %d', some(40), some(40) } ],
	[ 2 => sub { sprintf 'DELETE FROM task WHERE id BETWEEN %d AND %d', map { ($_, $_ + 3) } some(40) } ],
	[ 10 => sub { sprintf q(INSERT INTO tag SELECT id, '%s', repeat('%s', %d) FROM task WHERE id %% 7 = %d ON CONFLICT (task, name) DO UPDATE SET payload = tag.payload || 'u'), one('a' .. 'd'), one('x', 'y'), one(1, 1, 1, 3000), some(6) } ],
	[ 4 => sub { sprintf q(DELETE FROM tag WHERE name = '%s' AND task %% 3 < 2), one('a', 'd') } ],
	[ 3 => sub { sprintf q(WITH d AS (DELETE FROM tag WHERE name = '%s' RETURNING *) INSERT INTO tag SELECT task, name, payload || 'again' FROM d WHERE task %% 2 = %d), one('a' .. 'd'), some(2) - 1 } ],
	[ 3 => sub { sprintf q(WITH d AS (DELETE FROM tag WHERE task = %d RETURNING *), i AS (INSERT INTO tag (task, name) SELECT task, name || 'i' FROM d WHERE length(name) < 3 RETURNING *), u AS (UPDATE task SET v = v + 1 WHERE id IN (SELECT task FROM d) RETURNING id) UPDATE task SET id = %d WHERE id = %d), some(40), some(40), some(40) } ],
	[ 3 => sub { sprintf q(UPDATE tag SET name = '%s' WHERE task = %d AND name = '%s'), one('a' .. 'd'), some(40), one('a' .. 'd') } ],
	[ 8 => sub { sprintf 'INSERT INTO event SELECT i, %d, (SELECT min(id) FROM person WHERE id >= %d), 0 FROM generate_series(%d, %d) i ON CONFLICT DO NOTHING', some(4), some(30), map { ($_, $_ + 3) } some(40) } ],
	[ 6 => sub { sprintf 'UPDATE event SET region = %d, v = v + 1 WHERE id BETWEEN %d AND %d', some(4), map { ($_, $_ + 2) } some(40) } ],
	[ 2 => sub { sprintf 'UPDATE event SET region = %d, id = %d WHERE id = %d', some(4), some(40), some(40) } ],
	[ 2 => sub { sprintf 'MERGE INTO event e USING (SELECT * FROM generate_series(%d, %d) i) s ON e.id = s.i WHEN MATCHED AND e.v > 2 THEN DELETE WHEN MATCHED THEN UPDATE SET v = v + 1, region = region %% 4 + 1 WHEN NOT MATCHED THEN INSERT VALUES (s.i, %d, NULL, 0)', map({ ($_, $_ + 3) } some(40)), some(4) } ],
	[ 2 => sub { sprintf 'DELETE FROM event WHERE id %% 9 = %d', some(9) } ],
	[ 6 => sub { my ($a, $b, $c) = (some(20), some(20), some(20)); "INSERT INTO tree VALUES ($a, $b), ($b, $c), ($c, NULL) ON CONFLICT DO NOTHING" } ],
	[ 2 => sub { sprintf 'UPDATE tree SET id = id + 20 * (1 - 2 * (id > 20)::int), parent = parent + 20 * (1 - 2 * (parent > 20)::int)' } ],
	[ 2 => sub { sprintf 'UPDATE tree SET (event, region) = (SELECT id, region FROM event ORDER BY id %% %d, id LIMIT 1) WHERE id = %d', some(5), some(20) } ],
	[ 3 => sub { sprintf 'DELETE FROM tree WHERE id %% 7 = %d', some(7) } ],
	[ 1 => sub { 'SET CONSTRAINTS ALL ' . one('DEFERRED', 'IMMEDIATE') } ],
	[ 1 => sub { 'TRUNCATE ' . one('tag', 'tag, tree', 'tree RESTART IDENTITY', 'event_1 CASCADE', 'event CASCADE', 'task CASCADE', 'office CASCADE') } ],
	# rows that are written anew, elsewhere, as they are
	[ 1 => sub { sprintf 'ALTER TABLE %s ALTER v TYPE %s', one('task', 'event'), one('int', 'bigint') } ],
	[ 1 => sub { one('CLUSTER person USING person_pkey', 'CLUSTER tree USING tree_pkey', 'REINDEX TABLE tag', 'ALTER TABLE tree ALTER note SET STORAGE EXTENDED') } ],
	[ 1 => sub { q(INSERT INTO changes (key, "row") VALUES ('"own"', '1')) } ]);

sub statement
{
	my $total = 0;

	$total += $_->[0] for @statements;
	my $dice = rand $total;
	for (@statements)
	{
		return $_->[1]->() if ($dice -= $_->[0]) < 0;
	}
	die;
}

# A connection, as soon as there can be one.
sub connect_to
{
	my ($connstr) = @_;

	while (1)
	{
		die "the test has ended\n" if getppid == 1;
		my $dbh = eval {
			DBI->connect("dbi:Pg:$connstr", 'postgres', '',
				{ AutoCommit => 1, PrintError => 0, PrintWarn => 0, RaiseError => 1 });
		};
		return $dbh if $dbh && eval { $dbh->do("SET client_min_messages = error"); 1 };
		Time::HiRes::usleep(50_000);
	}
}

sub is_lost { return $_[0]->state =~ /^(57P0.|08...|25006)$/ || !$_[0]->ping }

# What random transactions run into.
my $expected = qr/^(23503|23505|23502|40001|40P01|55P03|55006|27000|21000)$/;

# Options: connstr, dir, name, seed.  Returns how many transactions have
# committed, and how many have been undone.
sub write
{
	my (%o) = @_;
	my $dbh = connect_to($o{connstr});
	my %count = (committed => 0, undone => 0, lost => 0);

	srand $o{seed};
	while (!-e "$o{dir}/end" && getppid != 1)
	{
		my $prepares = chance(4) && !-e "$o{dir}/calm";
		my $n = one(1, 1, 2, 3, 5, 9);

		eval {
			$dbh->do('BEGIN ISOLATION LEVEL ' . one(('READ COMMITTED') x 6, 'REPEATABLE READ', 'SERIALIZABLE'));
			$dbh->do('SET LOCAL synchronous_commit = off') if chance(10) && !$o{synchronous};
			for (1 .. $n)
			{
				my $guarded = chance(50);
				my $sql = statement();

				$dbh->do('SAVEPOINT s') if $guarded;
				if (!eval { $dbh->do($sql); 1 })
				{
					die $@ if is_lost($dbh);
					die $dbh->state . " $@ in $sql" if $dbh->state !~ $expected;
					die $@ if !$guarded;
					$dbh->do('ROLLBACK TO s');
				}
				elsif ($guarded)
				{
					$dbh->do(chance(30) ? 'ROLLBACK TO s' : 'RELEASE s');
				}
				Time::HiRes::usleep(int rand 10_000) if chance(10);
			}
			if ($prepares)
			{
				$dbh->do("PREPARE TRANSACTION '$o{name}'");
				Time::HiRes::usleep(int rand 50_000);
				$dbh->do((chance(70) ? 'COMMIT' : 'ROLLBACK') . " PREPARED '$o{name}'");
			}
			else
			{
				$dbh->do(chance(90) ? 'COMMIT' : 'ROLLBACK');
			}
			$count{committed}++;
			1;
		} or do {
			my $error = $@;

			if (is_lost($dbh))
			{
				$count{lost}++;
				$dbh = connect_to($o{connstr});
				# nobody else decides about it
				eval { $dbh->do("COMMIT PREPARED '$o{name}'") };
				next;
			}
			die $dbh->state . " $error" if $dbh->state !~ $expected;
			$count{undone}++;
			$dbh->do('ROLLBACK');
		};
		Time::HiRes::usleep(int rand $o{pause} * 1000) if $o{pause};
	}
	return %count;
}

# Options: connstr, dir, pause in ms.  A line for each snapshot: its cursor, and its
# state with newlines as \x01.
sub judge
{
	my (%o) = @_;
	my ($dbh, $other) = map { connect_to($o{connstr}) } 1, 2;
	my $lock = 'LOCK TABLE ' . join(', ', @tables) . ' IN ACCESS SHARE MODE';
	my $n = 0;

	open my $out, '>>', "$o{dir}/judged" or die;
	$out->autoflush(1);
	while (!-e "$o{dir}/end" && getppid != 1)
	{
		eval {
			$dbh->do('BEGIN');
			$dbh->do($lock);
			my ($cursor, $snapshot) = $dbh->selectrow_array(q(SELECT cursor, snapshot FROM feed_snapshot('{changes}', '2 s')));
			$other->do('BEGIN ISOLATION LEVEL REPEATABLE READ');
			$other->do("SET TRANSACTION SNAPSHOT '$snapshot'");
			my ($state) = $other->selectrow_array(FeedpubFollowChecker::state());
			$other->do('COMMIT');
			$dbh->do('COMMIT');
			$state //= '';
			$state =~ s/\n/\x01/g;
			print $out "$cursor $state\n";
			$n++;
			1;
		} or do {
			my $error = $@;

			if (is_lost($dbh) || is_lost($other))
			{
				($dbh, $other) = map { connect_to($o{connstr}) } 1, 2;
			}
			else
			{
				my $state = join ' ', map { $_->state } $dbh, $other;

				die "$state $error" if $state !~ /40P01|40001|55P03|55000|22023|42704/;
				$_->do('ROLLBACK') for $dbh, $other;
			}
		};
		Time::HiRes::usleep($o{pause} * 1000);
	}
	return $n;
}

1;
