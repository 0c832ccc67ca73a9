# FeedpubTableChecker.pm: checks a table feed: writers that change a table in every way, consumers that keep a copy of it, and a poller
# that polls it by the time of the last change.
#
# The table is item (id, grp, version, payload, size, changed, hits); hits is
# not published and has an index of its own.  Its keys:
#
#   1 ..          "ordered": a writer that changes one bumps its row in counter first, and
#                 writes that version, whether it inserts, updates, deletes,
#                 or moves a row to this key: versions never go back
#   101 ..        "racing": inserted and deleted without such a lock, so that
#                 an INSERT waits on the unique index for a DELETE
#   1001 .. 4000  "cold": there before the table is a feed.  The first 40 are
#                 hot all the same.  Updated under the row's own lock, never
#                 inserted again
#   5000 ..       "reserved": there before as well, each taken once, for
#                 transactions that stay open or prepared
#   100000 ..     new ones, never inserted again
#   10000000 ..   where the table is partitioned, those of a partition that is
#                 attached with its rows, and taken out, changed and put back
#
# Then it is partitioned by ranges of the key, so that ordered and racing keys
# move between partitions; one has its columns in another order, one is
# partitioned again by hash.
#
# A consumer's file has lines "U id grp version payload-md5 size changed",
# "D id" and "T", and after each page "= cursor".
package FeedpubTableChecker;

use strict;
use warnings FATAL => 'all';

use Digest::MD5 ();
use FeedpubChecker;
use FeedpubOrderChecker;
use JSON::PP ();
use Time::HiRes ();

our @ISA = qw(FeedpubOrderChecker);

*chance = \&FeedpubChecker::chance;
*pause = \&FeedpubChecker::pause;

my $ordered = 60;
my $racing = 40;
my $reserved = 400;    # for each writer

# Errors that end a writer's transaction and no more: a duplicate key, a
# serialization failure, a deadlock, a lock that was waited for too long.
my %expected = map { $_ => 1 } qw(23505 40001 40P01 55P03);

# How a transaction of a writer goes, and how often, in a thousand.
my @kinds = (
	[ ordered => 260 ],     # one or two ordered keys
	[ racing => 200 ],      # some racing keys
	[ cold => 130 ],        # rows that need not have a stamp yet
	[ hits => 90 ],         # unpublished columns alone
	[ move => 80 ],         # a row gets another key
	[ early => 60 ],        # a transaction id long before the change
	[ rollback => 60 ],
	[ savepoints => 70 ],
	[ prepared => 30 ],
	[ parked => 10 ],       # prepared, and decided some transactions later
	[ bulk => 10 ]);

my $payload = q(CASE WHEN random() < 0.1 THEN NULL
	WHEN random() < 0.1 THEN (SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 100))
	ELSE md5(random()::text) END);

# The table, and the rows that are there before it is a feed.
sub schema
{
	my ($class, $writers, $partitioned) = @_;
	my $last_reserved = 5000 + $reserved * ($writers + 1) - 1;
	my $kind = $partitioned ? 'PARTITION BY RANGE (id)' : 'WITH (fillfactor = 90)';
	my $partitions = !$partitioned ? '' : <<'SQL';
CREATE TABLE item_1 (hits int NOT NULL DEFAULT 0, changed bigint NOT NULL, dropped int,
	payload text, version bigint NOT NULL, id int NOT NULL, grp text NOT NULL,
	size int GENERATED ALWAYS AS (length(payload)) STORED);
ALTER TABLE item_1 DROP dropped;
ALTER TABLE item ATTACH PARTITION item_1 FOR VALUES FROM (MINVALUE) TO (31);
CREATE TABLE item_2 PARTITION OF item FOR VALUES FROM (31) TO (121);
CREATE TABLE item_3 PARTITION OF item FOR VALUES FROM (121) TO (5000) PARTITION BY HASH (id);
CREATE TABLE item_3_0 PARTITION OF item_3 FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE item_3_1 PARTITION OF item_3 FOR VALUES WITH (MODULUS 2, REMAINDER 1);
CREATE TABLE item_4 PARTITION OF item DEFAULT;
SQL

	return <<"SQL";
CREATE FUNCTION now_us() RETURNS bigint LANGUAGE sql VOLATILE
	AS 'SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint';
CREATE TABLE item (id int PRIMARY KEY, grp text NOT NULL,
	version bigint NOT NULL, payload text,
	size int GENERATED ALWAYS AS (length(payload)) STORED,
	changed bigint NOT NULL, hits int NOT NULL DEFAULT 0)
	$kind;
$partitions
ALTER TABLE item ALTER payload SET STORAGE EXTERNAL;
CREATE INDEX item_hits ON item (hits);
CREATE INDEX item_changed ON item (changed);
CREATE TABLE counter (id int PRIMARY KEY, version bigint NOT NULL);
CREATE SEQUENCE new_id START 100000;
CREATE SEQUENCE race_version;
INSERT INTO counter SELECT i, 0 FROM generate_series(1, $ordered) i;
INSERT INTO item (id, grp, version, payload, changed)
SELECT i, 'g' || i % 7, 0, md5(i::text), now_us()
FROM (SELECT generate_series(1, $ordered / 2)
	UNION ALL SELECT generate_series(101, 100 + $racing / 2)
	UNION ALL SELECT generate_series(1001, 4000)
	UNION ALL SELECT generate_series(5000, $last_reserved)) AS keys (i)
ORDER BY random();
SQL
}

#
# Writers
#

sub write_feed
{
	my ($self, $number) = @_;
	my $name = "writer$number";
	my $share = int($self->{transactions} / $self->{writers}) + 1;
	my $end = Time::HiRes::time() + $self->{seconds};

	$self->seed($name, 0);
	open my $log, '>', "$self->{dir}/$name.log" or die "$name: $!";
	my $w = {
		%{ $self->session('regress_feedpub_writer', $name, "SET lock_timeout = '10s'") },
		number => $number,
		prepared => [],    # [gid] of those that are not decided
		next_reserved => 5000 + $reserved * $number
	};
	my $decide = sub {
		my ($which) = @_;

		return $self->survives($w, sub { decide($w, $which) });
	};
	# each kind at least once, whatever the dice say
	my @must = map { $_->[0] } @kinds;
	push @must, splice @must, 0, $number % @must;
	# and some after the table was emptied, and whatever else is done to it
	my $last;
	my $more = 20;
	my $goes_on = sub {
		return 1 if $_[0] <= $share || @must || Time::HiRes::time() < $end;
		return 1 if !-e "$self->{dir}/disturbed";
		$last //= Time::HiRes::time() + 0.1 * $self->{seconds};
		return $more-- > 0 || Time::HiRes::time() < $last;
	};
	for (my $t = 1; $goes_on->($t); $t++)
	{
		my $dice = rand 1000;
		my $kind;

		for (@kinds)
		{
			$kind = $_->[0];
			last if ($dice -= $_->[1]) < 0;
		}
		# nothing stays open while a session waits for the table's lock
		my $calm = !-e "$self->{dir}/attached" || -e "$self->{dir}/calm";
		my $flush = !$self->before_crash;
		$kind = shift @must if @must && !$calm && $flush;
		$kind = 'ordered'
		  if ($calm && $kind eq 'parked')
		  || (!$flush && $kind =~ /^(prepared|parked)$/);
		while (@{ $w->{prepared} } && ($calm || @{ $w->{prepared} } > 2))
		{
			$decide->(int rand @{ $w->{prepared} });
		}

		$w->{gid} = "$number.$t";
		my $commit = chance(5) ? chance(50) ? 'on' : 'off' : undef;
		$commit = 'off' if !$flush;
		my $method = "write_$kind";
		my $isolation =
		  chance(85) ? 'READ COMMITTED'
		  : chance(70) ? 'REPEATABLE READ'
		  : 'SERIALIZABLE';
		my $fate = 'C';
		my $failed = $self->attempt($w, sub {
			FeedpubChecker::set_commit($w, $commit) if $commit;
			$w->{dbh}->do("BEGIN ISOLATION LEVEL $isolation");
			$fate = $self->$method($w) // 'C';
			$w->{dbh}->do($fate eq 'C' ? 'COMMIT' : 'ROLLBACK')
			  if $fate =~ /^[CR]$/;
		});
		# in a crash, one may be left that holds its key's lock
		while ($kind eq 'prepared'
			&& @{ $w->{prepared} }
			&& $w->{prepared}[-1][0] eq $w->{gid})
		{
			$decide->(-1);
		}
		print $log $failed // $fate, " $kind\n";
		$decide->(int rand @{ $w->{prepared} })
		  if $flush && @{ $w->{prepared} } && chance(10);
		pause(0.02) if chance(50);
	}
	while (@{ $w->{prepared} })
	{
		$decide->(int rand @{ $w->{prepared} });
	}
	$w->{dbh}->disconnect;
	close $log or die "$name: $!";
	return;
}

# Runs the statements of a transaction.  Undefined, or why it has not committed:
# an SQLSTATE, or U if that is unknown, for the connection was lost.
sub attempt
{
	my ($self, $w, $code) = @_;

	return if eval { $code->(); 1 };
	my $error = $@;
	my $state = $w->{dbh}->state;

	return 'U' if $self->reconnected($w);
	die "$state $error" if !$expected{$state};
	$self->survives($w, sub { $w->{dbh}->do('ROLLBACK') });
	return $state;
}

sub some_ordered
{
	return 1 + int rand $ordered;
}

# A key's next version, and the lock that makes it so.
sub bump_counter
{
	my ($dbh, $id) = @_;

	return ($dbh->selectrow_array(
			'UPDATE counter SET version = version + 1 WHERE id = ? RETURNING version',
			undef, $id))[0];
}

my $upsert = <<"SQL";
INSERT INTO item (id, grp, version, payload, changed) VALUES (?, ?, ?, $payload, now_us())
ON CONFLICT (id) DO UPDATE SET grp = EXCLUDED.grp, version = EXCLUDED.version, changed = now_us()
SQL

# Changes one ordered key in one way or another.
sub change_ordered
{
	my ($dbh, $id) = @_;
	my $version = bump_counter($dbh, $id);
	my $dice = rand 100;

	pause(0.002) if chance(20);
	if ($dice < 30)
	{
		$dbh->do($upsert, undef, $id, 'upsert', $version);
	}
	elsif ($dice < 55)
	{
		$dbh->do('DELETE FROM item WHERE id = ?', undef, $id);
	}
	elsif ($dice < 65)
	{
		# deleted and inserted in one transaction
		$dbh->do('DELETE FROM item WHERE id = ?', undef, $id);
		$dbh->do($upsert, undef, $id, 'again', $version);
	}
	elsif ($dice < 75)
	{
		$dbh->do(
			"UPDATE item SET version = ?, payload = $payload, changed = now_us() WHERE id = ?",
			undef, $version, $id);
		$dbh->do('UPDATE item SET hits = hits + 1 WHERE id = ?', undef, $id);
	}
	else
	{
		my $n = $dbh->do(
			'UPDATE item SET version = ?, changed = now_us() WHERE id = ?',
			undef, $version, $id);

		$dbh->do($upsert, undef, $id, 'new', $version) if $n == 0 && chance(70);
	}
	return;
}

sub write_ordered
{
	my ($self, $w) = @_;
	my @ids = (some_ordered());

	push @ids, some_ordered() if chance(30);
	for my $id (sort { $a <=> $b } @ids)
	{
		change_ordered($w->{dbh}, $id);
		pause(0.02) if @ids > 1;
	}
	return;
}

sub change_racing
{
	my ($dbh) = @_;
	my $id = 101 + int rand $racing;
	my $dice = rand 100;
	my $version = ($dbh->selectrow_array("SELECT nextval('race_version')"))[0];

	if ($dice < 35)
	{
		$dbh->do('DELETE FROM item WHERE id = ?', undef, $id);
	}
	elsif ($dice < 55)
	{
		$dbh->do(
			"INSERT INTO item (id, grp, version, payload, changed) VALUES (?, 'race', ?, $payload, now_us())",
			undef, $id, $version);
	}
	elsif ($dice < 65)
	{
		$dbh->do($upsert, undef, $id, 'race', $version);
	}
	elsif ($dice < 75)
	{
		$dbh->do(
			"INSERT INTO item (id, grp, version, payload, changed) VALUES (?, 'nothing', ?, NULL, now_us()) ON CONFLICT DO NOTHING",
			undef, $id, $version);
	}
	elsif ($dice < 85)
	{
		$dbh->do(<<'SQL', undef, $id, $version);
MERGE INTO item USING (VALUES (?::int, ?::bigint)) AS s (id, version) ON item.id = s.id
WHEN MATCHED AND item.version % 2 = 0 THEN DELETE
WHEN MATCHED THEN UPDATE SET version = s.version, changed = now_us()
WHEN NOT MATCHED THEN INSERT (id, grp, version, changed) VALUES (s.id, 'merge', s.version, now_us())
SQL
	}
	elsif ($dice < 95)
	{
		# to a key that may be there, or be about to go
		$dbh->do(
			'UPDATE item SET id = ?, version = ?, changed = now_us() WHERE id = ?',
			undef, 101 + int rand $racing, $version, $id);
	}
	else
	{
		$dbh->do(
			'UPDATE item SET version = ?, changed = now_us() WHERE id = ?',
			undef, $version, $id);
	}
	return;
}

sub write_racing
{
	my ($self, $w) = @_;

	change_racing($w->{dbh});
	pause(0.02);
	change_racing($w->{dbh}) if chance(30);
	return chance(5) ? 'R' : 'C';
}

sub write_cold
{
	my ($self, $w) = @_;
	my $id = chance(60) ? 1001 + int rand 40 : 1001 + int rand 3000;

	if ($id > 1040 && chance(20))
	{
		$w->{dbh}->do('DELETE FROM item WHERE id = ?', undef, $id);
		return;
	}
	$w->{dbh}->do('SELECT FROM item WHERE id = ? FOR UPDATE', undef, $id)
	  if chance(30);
	$w->{dbh}->do(
		'UPDATE item SET version = version + 1, changed = now_us() WHERE id = ?',
		undef, $id);
	pause(0.02) if chance(50);
	return;
}

sub write_hits
{
	my ($self, $w) = @_;
	my $first = chance(50) ? 1001 + int rand 3000 : 1;

	$w->{dbh}->do(
		"UPDATE item SET hits = hits + 1 WHERE id IN (SELECT id FROM item WHERE id BETWEEN ? AND ? ORDER BY id FOR UPDATE)",
		undef, $first, $first + int rand 40);
	return;
}

# A row of one ordered key gets another.
sub write_move
{
	my ($self, $w) = @_;
	my ($a, $b) = sort { $a <=> $b } some_ordered(), some_ordered();
	my %version;

	return if $a == $b;
	$version{$_} = bump_counter($w->{dbh}, $_) for $a, $b;
	($a, $b) = ($b, $a) if chance(50);
	$w->{dbh}->do('DELETE FROM item WHERE id = ?', undef, $b);
	pause(0.01);
	$w->{dbh}->do(
		"UPDATE item SET id = ?, grp = 'moved', version = ?, changed = now_us() WHERE id = ?",
		undef, $b, $version{$b}, $a);
	# and back
	$w->{dbh}->do('UPDATE item SET id = ?, version = ? WHERE id = ?',
		undef, $a, $version{$a}, $b)
	  if chance(20);
	return chance(10) ? 'R' : 'C';
}

sub write_early
{
	my ($self, $w) = @_;

	$w->{dbh}->do('SELECT pg_current_xact_id()');
	pause(0.06);
	change_ordered($w->{dbh}, some_ordered());
	return;
}

sub write_rollback
{
	my ($self, $w) = @_;

	change_ordered($w->{dbh}, some_ordered());
	pause(0.02);
	return 'R';
}

sub write_savepoints
{
	my ($self, $w) = @_;
	my $id = some_ordered();

	for (1 .. 1 + int rand 4)
	{
		$w->{dbh}->do('SAVEPOINT a');
		change_ordered($w->{dbh}, $id);
		if (chance(40))
		{
			$w->{dbh}->do('ROLLBACK TO a');
		}
		elsif (chance(70))
		{
			$w->{dbh}->do('RELEASE a');
		}
		$id++ if $id < $ordered && chance(50);
	}
	return chance(15) ? 'R' : 'C';
}

sub insert_new
{
	my ($dbh, $rows) = @_;

	$dbh->do(
		"INSERT INTO item (id, grp, version, payload, changed) SELECT nextval('new_id'), 'new', 1, md5(i::text), now_us() FROM generate_series(1, ?::int) i",
		undef, $rows);
	return;
}

# Changes or deletes some of the keys that no other session touches.
sub change_reserved
{
	my ($w) = @_;
	my $id = $w->{next_reserved}++;

	$w->{dbh}->do('DELETE FROM item WHERE id = ?', undef, $id);
	$id = $w->{next_reserved}++;
	$w->{dbh}->do(
		'UPDATE item SET version = version + 1, changed = now_us() WHERE id = ?',
		undef, $id);
	return $id;
}

# It is noted before it is: if the answer is lost, it is looked for.  If it
# fails, it is none.
sub prepare_transaction
{
	my ($w) = @_;

	push @{ $w->{prepared} }, [ $w->{gid} ];
	return if eval { $w->{dbh}->do("PREPARE TRANSACTION '$w->{gid}'"); 1 };
	pop @{ $w->{prepared} } if $expected{ $w->{dbh}->state };
	die $@;
}

sub decide
{
	my ($w, $which) = @_;

	$w->{dbh}->do((chance(75) ? 'COMMIT' : 'ROLLBACK')
		. " PREPARED '$w->{prepared}[$which][0]'");
	splice @{ $w->{prepared} }, $which, 1;
	return;
}

sub write_prepared
{
	my ($self, $w) = @_;

	change_ordered($w->{dbh}, some_ordered());
	change_reserved($w);
	prepare_transaction($w);
	pause(0.03);
	decide($w, -1);
	return 'P';
}

sub write_parked
{
	my ($self, $w) = @_;

	insert_new($w->{dbh}, 2);
	change_reserved($w);
	prepare_transaction($w);
	return 'P';
}

sub write_bulk
{
	my ($self, $w) = @_;
	my $first = 1041 + int rand 2600;
	my $dice = rand 100;

	if ($dice < 50)
	{
		$w->{dbh}->do(
			'UPDATE item SET version = version + 1, changed = now_us() WHERE id IN (SELECT id FROM item WHERE id BETWEEN ? AND ? ORDER BY id FOR UPDATE)',
			undef, $first, $first + 300);
	}
	elsif ($dice < 65)
	{
		$w->{dbh}->do(
			'DELETE FROM item WHERE id IN (SELECT id FROM item WHERE id BETWEEN ? AND ? ORDER BY id FOR UPDATE)',
			undef, $first, $first + 60);
	}
	else
	{
		insert_new($w->{dbh}, 200);
	}
	return chance(20) ? 'R' : 'C';
}

# There is always a transaction open that is long: the next one begins before
# the one before ends.  The first has its transaction id before the table is a
# feed, and writes into it after.
sub write_long
{
	my ($self) = @_;
	my $next_reserved = 5000;
	my $begin = sub {
		my ($touch) = @_;
		my $w = {
			%{ $self->session('regress_feedpub_writer', 'long') },
			next_reserved => $next_reserved
		};

		$next_reserved += 10;
		1 while $self->attempt($w, sub {
				$w->{dbh}->do('BEGIN');
				$w->{dbh}->do('SELECT pg_current_xact_id()');
				if ($touch)
				{
					$w->{again} = change_reserved($w);
					insert_new($w->{dbh}, 2);
				}
			});
		return $w;
	};
	my $end = sub {
		my ($w) = @_;

		$self->attempt($w, sub {
				change_reserved($w);
				$w->{dbh}->do(
					'UPDATE item SET version = version + 1, changed = now_us() WHERE id = ?',
					undef, $w->{again})
				  if $w->{again};
				$w->{dbh}->do('COMMIT');
			});
		$w->{dbh}->disconnect;
		return;
	};

	$self->seed('long', 0);
	my $first = $begin->(0);
	my @open;
	until (-e "$self->{dir}/short_written")
	{
		my $calm = -e "$self->{dir}/calm";

		pause($calm ? 0.1 : 2);
		if ($calm || !-e "$self->{dir}/attached")
		{
			$end->(shift @open) while @open;
			next;
		}
		push @open, $begin->(1);
		$end->(shift @open) if @open > 1;
	}
	$end->($_) for @open, $first;
	return;
}

# What other sessions do to the table as a whole: it is vacuumed all the time; twice
# all its rows are published again; in the middle VACUUM FULL moves the rows of
# the initial snapshot; with the option truncate, it is emptied then.  Of a partitioned table
# partitions come with rows, go, are changed outside and put back.
sub disturb
{
	my ($self) = @_;
	my $began = Time::HiRes::time();
	my $again = q(CALL feed_republish('item'));
	my @due = (
		[ 0.3 * $self->{seconds}, $again ],
		[ 0.45 * $self->{seconds}, 'VACUUM FULL item' ],
		[ 0.7 * $self->{seconds}, $again ],
		$self->{truncate} ? [ 0.75 * $self->{seconds}, 'TRUNCATE item' ] : ());

	# all but one partition, which is put back as it was
	push @due, [ 0.8 * $self->{seconds}, <<'SQL' ] if $self->{partitioned} && $self->{truncate};
BEGIN;
ALTER TABLE item DETACH PARTITION item_5;
TRUNCATE item;
ALTER TABLE item ATTACH PARTITION item_5 FOR VALUES FROM (10000000) TO (20000000);
COMMIT
SQL

	if ($self->{partitioned})
	{
		push @due, map { [ $_->[0] * $self->{seconds}, $_->[1] ] }
		  [ 0.2, <<'SQL' ], [ 0.35, <<'SQL' ], [ 0.5, <<'SQL' ], [ 0.55, <<'SQL' ], [ 0.6, <<'SQL' ], [ 0.65, <<'SQL' ];
CREATE TABLE item_5 (LIKE item INCLUDING ALL);
INSERT INTO item_5 (id, grp, version, payload, changed)
SELECT i, 'loaded', 0, md5(i::text), now_us() FROM generate_series(10000000, 10000999) i;
ALTER TABLE item ATTACH PARTITION item_5 FOR VALUES FROM (10000000) TO (20000000);
SELECT feed_repair('item')
SQL
UPDATE item SET version = version + 1, changed = now_us() WHERE id >= 10000000 AND id % 2 = 0;
DELETE FROM item WHERE id >= 10000000 AND id % 10 = 0
SQL
CREATE TABLE item_6 (LIKE item INCLUDING ALL);
INSERT INTO item_6 (id, grp, version, payload, changed)
SELECT i, 'goes', 0, md5(i::text), now_us() FROM generate_series(20000000, 20000099) i;
ALTER TABLE item ATTACH PARTITION item_6 FOR VALUES FROM (20000000) TO (30000000)
SQL
DELETE FROM item WHERE id >= 20000000
SQL
DROP TABLE item_6
SQL
BEGIN;
ALTER TABLE item DETACH PARTITION item_5;
UPDATE item_5 SET version = version + 1, changed = now_us() WHERE id % 3 = 0;
ALTER TABLE item ATTACH PARTITION item_5 FOR VALUES FROM (10000000) TO (20000000);
COMMIT
SQL
		@due = sort { $a->[0] <=> $b->[0] } @due;
	}

	$self->seed('disturber', 0);
	my $d = $self->session('postgres', 'disturber', "SET lock_timeout = '300ms'");
	until (-e "$self->{dir}/written" && !@due)
	{
		pause(0.5);
		if (@due && Time::HiRes::time() - $began > $due[0][0])
		{
			my (undef, $statement) = @{ shift @due };

			# what waits for no lock can be done among all others
			$self->say('calm') if $statement ne $again;
			my $lost = 0;
			until (eval { $d->{dbh}->do($statement); 1 })
			{
				my $error = $@;
				my $state = $d->{dbh}->state;

				# done once more if that is not known; a table may be there, or
				# be gone
				$lost = 1, next if $self->reconnected($d);
				last if $lost && $state =~ /^42P0[17]$/;
				die $error if $state !~ ($statement eq $again ? qr/^(55P03|40P01|42809)$/ : qr/^(55P03|40P01|40001|42809)$/);
				$self->survives($d, sub { $d->{dbh}->do('ROLLBACK') })
				  if $statement =~ /^BEGIN/;
				pause(0.2);
			}
			unlink "$self->{dir}/calm";
			$self->say('disturbed') if !@due;
		}
		elsif (chance(40))
		{
			# not while one waits for the other's lock
			eval { $d->{dbh}->do('VACUUM (INDEX_CLEANUP ON) item'); 1 }
			  or $d->{dbh}->state =~ /^(55P03|40P01)$/
			  or $self->reconnected($d)
			  or die $@;
		}
	}
	$d->{dbh}->disconnect;
	return;
}

#
# Consumers
#

my $read = <<'SQL';
SELECT cursor, op, (entry).id, (entry).grp, (entry).version,
	md5(COALESCE((entry).payload, 'null')), (entry).size, (entry).changed
FROM feed_read(NULL::item, ?, ?, ?, ?)
SQL
my $page = q(SELECT feed_page('item', ?, ?, ?, ?)::text);

# Does a cursor stand in the initial snapshot, or right after it?
sub in_initial
{
	my ($cursor) = @_;

	return $cursor eq '' || substr($cursor, 7, 1) lt 'V' || substr($cursor, 7, 7) eq 'V------';
}

# An entry as a line of the consumer's file.
sub line
{
	my ($op, $id, @row) = @_;

	return $op =~ /^truncate/ ? 'T' : $op eq 'delete' ? "D $id" : join ' ', 'U', $id, @row;
}

sub take_page
{
	my ($self, $way, $sth, $cursor, $limit) = @_;
	my @entries;

	$sth->execute($cursor, $limit, @$way{qw(shard shards)});
	if ($way->{query} eq $page)
	{
		my ($json) = $sth->fetchrow_array;

		$sth->finish;
		my $body = JSON::PP->new->utf8->decode($json);

		for my $entry (@{ $body->{entries} })
		{
			my $row = $entry->{row} // {};

			die 'a stamp is shown' if exists $row->{feed_xid};
			push @entries, [ $entry->{cursor}, line($entry->{op}, $entry->{key}{id},
				@$row{qw(grp version)},
				Digest::MD5::md5_hex($row->{payload} // 'null'),
				$row->{size} // '-', $row->{changed}) ];
		}
		return ($body->{cursor}, @entries);
	}
	for my $row (@{ $sth->fetchall_arrayref })
	{
		my ($after, $op, $id, $grp, $version, $md5, $size, $changed) = @$row;

		die "cursor $after is not after $cursor\n"
		  if !$self->is_after($way, $after, $cursor);
		$cursor = $after;
		push @entries, [ $cursor, line($op, $id, $grp, $version, $md5, $size // '-', $changed) ]
		  if $op ne 'end';
	}
	return ($cursor, @entries);
}

# Small pages while the rows of the initial snapshot are read.
sub limit_after
{
	my ($self, $cursor) = @_;

	return
	    in_initial($cursor) ? 1 + int rand 150
	  : chance(50) ? 1 + int rand 30
	  : chance(75) ? 1 + int rand 300
	  : 1 + int rand 10_000;
}

# A rewritten table begins the initial snapshot again.
sub is_after
{
	my ($self, $way, $next, $cursor) = @_;

	return $next gt $cursor || in_initial($next);
}

sub wait_after
{
	my ($self, $way, $dbh, $cursor) = @_;

	if (chance(50))
	{
		$dbh->selectall_arrayref(
			chance(50)
			? q(SELECT feed_wait('item', ?, '50 ms'))
			: q(CALL feed_await('item', ?, '1 s')),
			undef, $cursor);
	}
	else
	{
		pause(0.02);
	}
	return;
}

# Before the table is a feed, it is none.
sub is_early
{
	my ($self, $state) = @_;

	return $state eq '42809';
}

# The usual home-made way: remembers the largest time of a change.  Its file
# has lines "id version".
sub poll_naively
{
	my ($self) = @_;
	my $last = 0;
	my $poller = $self->session('regress_feedpub_reader', 'poller');

	open my $out, '>', "$self->{dir}/naive.read" or die "naive: $!";
	while (1)
	{
		my $quiet = -e "$self->{dir}/quiet";
		my $rows = eval {
			$poller->{dbh}->selectall_arrayref(
				'SELECT id, version, changed FROM item WHERE changed > ? ORDER BY changed',
				undef, $last);
		};
		$rows
		  or $poller->{dbh}->state eq '40P01'
		  or $self->reconnected($poller)
		  or die $@;
		for (@{ $rows // [] })
		{
			print $out "$_->[0] $_->[1]\n";
			$last = $_->[2];
		}
		last if $quiet && $rows && !@$rows;
		pause(0.1);
	}
	$poller->{dbh}->disconnect;
	close $out or die "naive: $!";
	return;
}

#
# The run
#

# Options: node; seconds, transactions (at least so many of both), writers,
# seed, truncate, partitioned, crashes, dir (an empty directory).
sub run
{
	my ($class, %options) = @_;
	my $self = $class->new_run(%options);
	my $node = $self->{node};
	my $began = Time::HiRes::time();
	my %whole = (user => 'regress_feedpub_reader', shard => undef, shards => undef);

	# when it begins, in parts of the run; before the table is a feed, if 0
	$self->{consumer} = {
		before => { %whole, query => $read, at => 0 },
		before_page => { %whole, query => $page, at => 0 },
		steady => { %whole, query => $read, at => 0, steady => 1 },
		attached => { %whole, query => $read, at => 0.1 },
		middle => { %whole, query => $read, at => 0.4 },
		middle_page => { %whole, query => $page, at => 0.45 },
		late => { %whole, query => $read, at => 0.8 },
		(
			map {
				("shard$_" => { %whole, query => $_ == 1 ? $page : $read, at => 0.2 + 0.2 * $_, shard => $_, shards => 3 })
			} 0 .. 2) };
	my @names = sort keys %{ $self->{consumer} };
	my $is_due = sub {
		return Time::HiRes::time() - $began >= $self->{consumer}{ $_[0] }{at} * $self->{seconds};
	};

	$self->begin('long', sub { $self->write_long });
	$self->begin_writers(1 .. $self->{writers});
	$self->begin('poller', sub { $self->poll_naively });
	$self->start($_) for grep { $self->{consumer}{$_}{at} == 0 } @names;
	# when writers are well under way
	$node->poll_query_until('postgres',
		'SELECT min(version) > 0 FROM counter')
	  or $self->failed('no writer writes');
	$node->safe_psql('postgres', <<'SQL');
SELECT feed_attach('item', columns => '{grp,version,payload,size,changed}')
SQL
	$self->say('attached');
	$self->begin('disturber', sub { $self->disturb });
	$self->begin('killer', sub { $self->kill_workers });

	$self->seed('killer of consumers', 0);
	while (($self->running('^writer') || !$self->enough) && $self->goes_on)
	{
		$self->start($_) for grep { !$self->{lives}{$_} && $is_due->($_) } @names;
		$self->kill_one(0.8, grep { $self->{lives}{$_} && !$self->{consumer}{$_}{steady} } @names);
	}
	# the last, if the loop ended just before
	$self->start($_) for grep { !$self->{lives}{$_} } @names;

	# All short transactions have ended; then the long ones do.  Nothing is
	# written after that, and all must get published all the same.
	$self->say('short_written');
	$self->await_end('^long$');
	$self->say('written');
	$self->await_end('^(disturber|killer)$');
	if ($self->goes_on)
	{
		# a partition that has come last is admitted, and its rows are stamped
		$node->safe_psql('postgres', q(CALL feed_publish('item')));
		$node->poll_query_until('postgres',
			q(SELECT count(*) = 0 FROM feedpub.jobs WHERE state <> 'done'))
		  or $self->failed('not all is stamped');
		$node->poll_query_until('postgres', <<'SQL')
SELECT bool_and(pg_visible_in_snapshot(feed_xid,
	(SELECT snapshot FROM feedpub._batch ORDER BY sync_id DESC LIMIT 1)))
FROM (SELECT feed_xid FROM item WHERE feed_xid IS NOT NULL
	UNION ALL SELECT feed_xid FROM feedpub._tombstone) s
SQL
		  or $self->failed('not all is published');
	}
	return $self->end_run;
}

#
# What came of it
#

# The writers' transactions: how many of each kind, and of each fate.
sub outcome
{
	my ($class, $dir, $writers) = @_;
	my (%kinds, %fates);

	for my $number (1 .. $writers)
	{
		open my $fh, '<', "$dir/writer$number.log" or die;
		while (<$fh>)
		{
			my ($fate, $kind) = split;

			$kinds{$kind}++;
			$fates{$fate}++;
		}
		close $fh;
	}
	return (\%kinds, \%fates);
}

# Applies a consumer's file to an empty table.  Returns the rows by their ids,
# the entries of each kind, and those whose version is below one that came
# before, or that are another row of the same version, of keys that are never
# inserted again without a lock.
sub apply
{
	my ($class, $dir, $name) = @_;
	my (%rows, %version, %last, @inversions);
	my %count = (U => 0, D => 0, T => 0, initial => 0);
	my @page;

	open my $fh, '<', "$dir/$name.read" or die "$name: $!";
	while (<$fh>)
	{
		chomp;
		push @page, $_;
		next if !/^= (.*)/;
		my $is_initial = in_initial($1);
		pop @page;
		for (@page)
		{
			my ($op, $id, $row) = split / /, $_, 3;

			$count{$op}++;
			$count{initial}++ if $is_initial;
			%rows = () if $op eq 'T';
			delete $rows{$id} if $op eq 'D';
			next if $op ne 'U';
			$rows{$id} = $row;
			next if $id > 100 && $id <= 100 + $racing;
			my ($version) = $row =~ /^\S+ (\d+)/;
			push @inversions, "key $id: $version after $version{$id}"
			  if $version < ($version{$id} // 0);
			push @inversions, "key $id: $row after $last{$id}"
			  if $version == ($version{$id} // -1) && $row ne $last{$id};
			$version{$id} = $version;
			$last{$id} = $row;
		}
		@page = ();
	}
	close $fh;
	return (\%rows, \%count, \@inversions);
}

# What the naive poller holds: the version of each id.
sub polled
{
	my ($class, $dir) = @_;
	my %version;

	open my $fh, '<', "$dir/naive.read" or die;
	while (<$fh>)
	{
		my ($id, $version) = split;

		$version{$id} = $version;
	}
	close $fh;
	return \%version;
}

1;
