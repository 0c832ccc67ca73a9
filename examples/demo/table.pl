#!/usr/bin/perl
# table.pl DIRECTORY CATALOGUE
#
# An ordinary table as a feed, on real input, in the server that PGHOST & co.
# name (./demo starts a private one and calls this).  DIRECTORY holds what
# examples/demo/releases found: the package records of this machine's release
# and of another one.  Where it found none, the first set is CATALOGUE.
#
# The first set is loaded into a table.  At the same time run
#
#   four writers  make it the second set: UPDATE, DELETE, INSERT, also DELETE
#                 and INSERT of one key; in transactions of 1 to 400 rows, of
#                 which some roll back and some stay open for a while; and now
#                 and then one gives any package another version, also if
#                 another writer is changing it
#   the owner     makes the table a feed: feed_attach(), CREATE INDEX
#   a follower    begins with nothing, and applies the feed to a table of
#                 another database, where it keeps its cursor too, in the same
#                 transaction; it is killed in the middle of the initial load,
#                 and started again
#   a poller      does the same in the usual home-made way: "which rows have
#                 an updated_at above the largest that I saw"
#
# In the end both copies are held against the table.  Exits with 1 when the
# follower's is not equal.
use strict;
use warnings;

use Digest::MD5 qw(md5);
use FindBin;
use lib $FindBin::Bin;
use Demo;
use List::Util qw(max min sum0);
use Text::Wrap ();
use Time::HiRes qw(sleep time);

my $WRITERS = 4;
my $PAGE = 500;                    # rows in a page
my $SLICE = 20;                    # rows that a writer changes at a time
my $RECORDS = 35_000;              # of the first set, at most
my $DURATION = 12;                 # seconds that the writers take
my $ATTACH = 1;                    # when the table becomes a feed
my $PAUSE = 0.1;                   # of the poller, whom nobody wakes

my $COLUMNS = 'name text, architecture text, version text, section text, fields jsonb';
my $INSERT = qq(INSERT INTO package (name, architecture, version, section, fields)
	SELECT * FROM json_to_recordset(?) AS r ($COLUMNS));

my ($dir, $catalogue) = @ARGV;
die "usage: table.pl DIRECTORY CATALOGUE\n" unless $catalogue;
work_in($dir);

# Text in lines of 80 columns, indented under its first word, which stands out;
# "~" is a space that does not end a line.
sub print_paragraph
{
	my ($first, $text) = @_;
	local $Text::Wrap::columns = 81;
	local $Text::Wrap::unexpand = 0;
	my $lines = Text::Wrap::wrap($first, ' ' x length $first, $text);
	$lines =~ s/ +$//mg;
	print $lines =~ tr/~/ /r, "\n";
}

#
# The two sets: records by "name architecture"
#

sub has { my ($file) = @_; return -s "$dir/$file" }

# A number that goes by the key alone, the same in each run.
sub lot_of { my ($key) = @_; return unpack 'N', md5($key) }

# Of several records of a key the first one.
sub read_records
{
	my ($name) = @_;
	local $/ = '';
	open my $file, '<', $name or die "could not open $name: $!\n";
	my %record;
	while (my $stanza = <$file>)
	{
		my ($package) = $stanza =~ /^Package: (\S+)/m or next;
		my ($architecture) = $stanza =~ /^Architecture: (\S+)/m or next;
		$record{"$package $architecture"} //= $stanza;
	}
	return \%record;
}

# Leaves one package in so many, all architectures of it.
sub thin_out
{
	my ($step, $set) = @_;
	delete @$set{ grep { lot_of(/^(\S+)/) % $step } keys %$set };
}

# Where there is no other release to be had, changes are made up.
sub make_up_changes
{
	my ($first, $second) = @_;
	for my $key (keys %$first)
	{
		my $lot = lot_of($key) / 1000 % 10;
		if ($lot == 0) { delete $second->{$key} }
		elsif ($lot == 1) { delete $first->{$key} }
		elsif ($lot < 5) { $second->{$key} =~ s/^(Version: \S+)/$1+b1/m }
	}
}

# [verb, key, stanza] for each record that is to change, in order of the keys
sub changes_between
{
	my ($first, $second) = @_;
	my %change;
	for my $key (keys %$first)
	{
		my ($old, $new) = ($first->{$key}, $second->{$key});
		$change{$key} = !defined $new ? [ 'delete', $key, $old ]
		  : $new ne $old ? [ 'update', $key, $new ]
		  : next;
	}
	for my $key (grep { !exists $first->{$_} } keys %$second)
	{
		$change{$key} = [ 'insert', $key, $second->{$key} ];
	}
	return map { $change{$_} } sort keys %change;
}

# Rows of the table as a JSON array.
sub rows_of
{
	my @rows;
	for (@_)
	{
		my ($field, $json) = record_of($_);
		my %column = (
			name => $field->{Package},
			architecture => $field->{Architecture},
			version => $field->{Version} // '',
			section => $field->{Section} // 'none');
		push @rows, '{'
		  . join(',', map { qq("$_":) . json_string($column{$_}) } sort keys %column)
		  . qq(,"fields":$json});
	}
	return '[' . join(',', @rows) . ']';
}

#
# A writer: makes its share of the changes, in transactions whose sizes and
# fates are drawn by lot (the same lots in each run)
#

sub run_writer
{
	my ($number, $begin, $keys, @changes) = @_;
	my $dbh = connect_as("writer $number", 'catalogue');
	my $accounts = append_to("accounts $number");
	my $done = 0;
	my $last_open = $begin;

	my $is_same = '(p.name, p.architecture) = (r.name, r.architecture)';
	my %verb = (
		insert => $dbh->prepare($INSERT),
		update => $dbh->prepare(
			qq(UPDATE package p SET version = r.version, section = r.section,
					fields = r.fields, updated_at = now()
				FROM json_to_recordset(?) AS r ($COLUMNS) WHERE $is_same)),
		delete => $dbh->prepare(
			qq(DELETE FROM package p
				USING json_to_recordset(?) AS r ($COLUMNS) WHERE $is_same)));
	my $rebuild = $dbh->prepare(
		q(UPDATE package SET version = version || '+b1', updated_at = now()
		  WHERE name = ? AND architecture = ?));

	srand $number;
	while ($done < @changes)
	{
		sleep max(0, $begin + $DURATION * $done / @changes - time);

		my $lot = rand;
		my $size = 1 + int rand(
			  $lot < 0.70 ? 5
			: $lot < 0.97 ? 40
			: 400);
		my $rolls_back = rand() < 0.1;
		my $hold = $number == 1 && time - $last_open > 1 ? 0.3 + rand(0.7) : 0;
		my @mine = @changes[ $done .. min($done + $size, scalar @changes) - 1 ];
		my %rows = (update => 0, delete => 0, insert => 0, again => 0);

		$dbh->begin_work;
		while (my @slice = splice @mine, 0, $SLICE)
		{
			my $is_again = rand() < 0.1;
			for my $verb (qw(delete insert update))
			{
				my @stanzas = map { $_->[2] } grep { $_->[0] eq $verb } @slice
				  or next;
				my $rows = rows_of(@stanzas);
				if ($verb eq 'update' && $is_again)
				{
					$verb{delete}->execute($rows);
					$rows{again} += $verb{insert}->execute($rows);
				}
				else
				{
					$rows{$verb} += $verb{$verb}->execute($rows);
				}
			}
		}
		sleep $hold;
		$last_open = time if $hold;
		if ($rolls_back)
		{
			$dbh->rollback;
			write_all($accounts, "undone\n");
			next;
		}
		$dbh->commit;
		$done += $size;
		write_all($accounts, join(' ', 'committed', %rows, 'open', $hold) . "\n");
		report('committed', sum0 values %rows);

		# any package, also if another writer is changing it
		if (rand() < 0.2)
		{
			my $rows = $rebuild->execute(split ' ', $keys->[ rand @$keys ]);
			next unless $rows > 0;
			write_all($accounts, "committed update 1\n");
			report('committed', 1);
		}
	}
	$dbh->disconnect;
}

# The owner makes the table a feed while it is in use.
sub run_owner
{
	my $dbh = connect_as('owner', 'catalogue');
	my $accounts = append_to('accounts owner');
	my $since = time;
	my ($statement) = $dbh->selectrow_array(q(SELECT feed_attach('package')));
	write_all($accounts, "attached $since " . time . "\n");
	return unless defined $statement;
	$since = time;
	$dbh->do($statement);
	write_all($accounts, "indexed $since " . time . "\n");
}

#
# The copies, in another database
#

# Applies rows to a copy, a JSON array of them.
sub upsert_into
{
	my ($table) = @_;
	return qq(INSERT INTO $table SELECT * FROM json_populate_recordset(NULL::$table, ?)
		ON CONFLICT (name, architecture) DO UPDATE SET
			(version, section, fields, updated_at) =
			(EXCLUDED.version, EXCLUDED.section, EXCLUDED.fields, EXCLUDED.updated_at));
}

sub run_follower
{
	my $source = connect_as('follower', 'catalogue');
	my $copy = connect_as('follower', 'copy');
	my $journal = append_to('journal');
	# One follower at a time: the lock of one that was killed goes with its
	# session, after what that still had to commit.
	$copy->do('SELECT pg_advisory_lock(1)');
	my ($cursor) = $copy->selectrow_array('SELECT cursor FROM follower');
	my $caught_up;

	# An entry is a row of the table; of a deleted one only the key is there.
	# Rows that nobody has changed since the table became a feed, which the
	# initial load brings, have no feed_xid.
	my $read = $source->prepare(
		q(SELECT cursor, op, row_to_json(entry), (entry).feed_xid
		  FROM feed_read(NULL::package, ?, ?)));
	my %apply = (
		upsert => $copy->prepare(upsert_into('followed')),
		delete => $copy->prepare(
			q(DELETE FROM followed f
				USING json_populate_recordset(NULL::followed, ?) d
				WHERE (f.name, f.architecture) = (d.name, d.architecture))),
		truncate => $copy->prepare('TRUNCATE followed'));
	my $keep = $copy->prepare(
		q(UPDATE follower SET cursor = ?, loaded = loaded + ?,
			upserts = upserts + ?, deletes = deletes + ?));

	while (1)
	{
		# Once the writers are done and all is published, an empty page is the end.
		my $is_over = -e "$dir/over";

		$read->execute($cursor, $PAGE);
		my $entries = $read->fetchall_arrayref;
		if (!@$entries)
		{
			last if $is_over;
			write_all($journal, 'caught-up ' . time . "\n") unless $caught_up++;
			$source->do(q(CALL feed_await('package', ?, '1 s')), {}, $cursor);
			next;
		}
		$cursor = $entries->[-1][0];

		# neighbours of one kind go in one statement, in the order of the feed
		my (@steps, %stamped, %count);
		for (@$entries)
		{
			my (undef, $op, $row, $xid) = @$_;
			next if $op eq 'end';
			push @steps, [$op] if !@steps || $steps[-1][0] ne $op;
			push @{ $steps[-1] }, $row // ();
			$stamped{$xid}++ if defined $xid;
			$count{ $op eq 'upsert' && !defined $xid ? 'loaded' : $op }++;
		}
		$copy->begin_work;
		for (@steps)
		{
			my ($op, @rows) = @$_;
			$apply{$op}->execute($op eq 'truncate' ? () : '[' . join(',', @rows) . ']');
		}
		$keep->execute($cursor, map { $count{$_} // 0 } qw(loaded upsert delete));
		$copy->commit;

		my $now = time;
		write_all($journal, join '', ("loaded $now\n") x !!$count{loaded},
			map { "stamped $_ $stamped{$_} $now\n" } keys %stamped);
		report('loaded', $count{loaded} // 0);
		report('followed', ($count{upsert} // 0) + ($count{delete} // 0));
	}
	$_->disconnect for $source, $copy;
}

sub run_poller
{
	my $source = connect_as('poller', 'catalogue');
	my $copy = connect_as('poller', 'copy');
	my $poll = $source->prepare(
		q(SELECT updated_at, row_to_json(package) FROM package
		  WHERE updated_at > ? ORDER BY updated_at));
	my $apply = $copy->prepare(upsert_into('polled'));
	my $last = '-infinity';

	while (1)
	{
		my $is_over = -e "$dir/over";
		$poll->execute($last);
		my $rows = $poll->fetchall_arrayref;
		last if $is_over && !@$rows;
		$last = $rows->[-1][0] if @$rows;
		report('polled', scalar @$rows);
		$copy->begin_work;
		while (my @page = splice @$rows, 0, $PAGE)
		{
			$apply->execute('[' . join(',', map { $_->[1] } @page) . ']');
		}
		$copy->commit;
		sleep $PAUSE;
	}
	$_->disconnect for $source, $copy;
}

#
# The stage manager
#

my %count = map { $_ => 0 } qw(committed loaded followed polled);
my $begin;

sub listen_to_children
{
	my ($is_last) = @_;
	hear_children(\%count) unless $is_last;
	show_line($begin,
		sprintf('%12s%20s%12s%20s', map { n($count{$_}) } qw(committed loaded followed polled)),
		'', $is_last);
}

# What comes first: the sets, the table, its first rows.
my ($kind, $name, $other) = ('none', 'this machine', '');
($kind, $name, $other) = split /\|/, (lines_of('about'))[0] if has('about');
my $first = read_records(has('first') ? "$dir/first" : $catalogue);
die "the catalogue is empty\n" unless %$first;
my $second = has('second') ? read_records("$dir/second") : {%$first};
my $all = keys %$first;
my $step = int(($all - 1) / $RECORDS) + 1;
thin_out($step, $_) for $first, $second;
make_up_changes($first, $second) unless $kind eq 'release';
my @changes = changes_between($first, $second);
my %planned;
$planned{ $_->[0] }++ for @changes;
my %any = (%$first, %$second);
my @keys = sort keys %any;

my $dbh = connect_as('demo');
$dbh->do("CREATE DATABASE $_") for qw(catalogue copy);
my $source = connect_as('demo', 'catalogue');
$source->do('CREATE EXTENSION feedpub');
$source->do(
	q(CREATE TABLE package (
		name text,
		architecture text,
		version text NOT NULL,
		section text NOT NULL,
		fields jsonb NOT NULL,
		updated_at timestamptz NOT NULL DEFAULT now(),
		PRIMARY KEY (name, architecture))));
$source->do('CREATE INDEX ON package (updated_at)');

my $copy = connect_as('demo', 'copy');
$copy->do(
	qq(CREATE TABLE $_ (
		name text,
		architecture text,
		version text,
		section text,
		fields jsonb,
		updated_at timestamptz,
		PRIMARY KEY (name, architecture)))) for qw(followed polled);
$copy->do(
	q(CREATE TABLE follower (cursor text, loaded int, upserts int, deletes int)));
$copy->do(q(INSERT INTO follower VALUES ('', 0, 0, 0)));

$source->begin_work;
my @loading = map { $first->{$_} } sort keys %$first;
while (my @part = splice @loading, 0, $PAGE)
{
	$source->do($INSERT, {}, rows_of(@part));
}
$source->commit;
$source->do('ANALYZE package');

my $every = { 1 => '', 2 => 'every second of ', 3 => 'every third of ' }->{$step}
  // "one in $step of ";
my $will_be = {
	release => "the list of $other.",
	updates => "the list of $other.  That of another release could"
	  . ' not be had; as updates are few, other changes are made up: versions rise,'
	  . ' packages go and come.',
	none => 'another list.  That of another release could not be had, so the'
	  . ' changes are made up: versions rise, packages go and come.'
}->{$kind};
my $rows = keys %$first;
print "\n";
print_paragraph('', "An ordinary table holds the package list of $name, $every"
	  . n($all) . " records.  $WRITERS writers make it $will_be  To do: "
	  . join(', ', map { n($planned{ $_->[0] } // 0) . "~$_->[1]" }
		  [ 'update', 'updates' ], [ 'delete', 'deletes' ], [ 'insert', 'inserts' ])
	  . '.');
print_paragraph('', 'Meanwhile it becomes a feed, and two copies of it are made in'
	  . ' another database.  The follower applies the feed, from its beginning.  The'
	  . " poller does without: every $PAUSE~s it asks for the rows"
	  . ' WHERE~updated_at~>~the largest that it saw.');
print "\n",
  "          committed                   follower              poller\n",
  "    time    changes      initial load      changes            rows\n";

my @share;
push @{ $share[ $_ % $WRITERS ] }, $changes[$_] for 0 .. $#changes;
$begin = time + 0.2;
start("writer $_", \&run_writer, $_, $begin, \@keys, @{ $share[ $_ - 1 ] })
  for 1 .. $WRITERS;
@changes = @share = %any = ();
undef $first;
undef $second;

listen_to_children() while time < $begin + $ATTACH;
note($begin, q(the owner calls feed_attach('package')));
start('owner', \&run_owner);
listen_to_children() while running('owner');
my %owner;
for (lines_of('accounts owner'))
{
	my ($what, $from, $to) = split ' ';
	$owner{$what} = $to - $from;
}
note($begin, 'it took ' . ms($owner{attached})
	  . ($owner{indexed}
		? ', then CREATE INDEX CONCURRENTLY ' . ms($owner{indexed})
		: ''));

my $followed_since = time;
my $pid = start('follower', \&run_follower);
start('poller', \&run_poller);
listen_to_children() while $count{loaded} < $rows / 3 && time < $begin + $DURATION;
kill 'KILL', $pid;
waitpid $pid, 0;
delete $child{$pid};
listen_to_children();
$copy->do('SELECT pg_advisory_lock(1), pg_advisory_unlock(1)');
@count{ 'loaded', 'followed' } =
  $copy->selectrow_array('SELECT loaded, upserts + deletes FROM follower');
note($begin, 'the follower is killed, and started again from its cursor');
start('follower', \&run_follower);

listen_to_children() while running('writer');
my $took = time - $begin;

# All is committed and published: when the copies have reached the end they are
# done.
$source->do('CALL feed_publish()');
append_to('over');
listen_to_children() while %child;
listen_to_children(1);
clear_line();

#
# The reckoning
#

my %made = map { $_ => 0 } qw(update delete insert again);
my ($transactions, $undone, $biggest, @open) = (0, 0, 0);
for (map { lines_of("accounts $_") } 1 .. $WRITERS)
{
	my ($fate, %a) = split ' ';
	if ($fate eq 'undone') { $undone++; next }
	$transactions++;
	my $hold = delete $a{open};
	push @open, $hold if $hold;
	$made{$_} += $a{$_} for keys %a;
	$biggest = max($biggest, sum0 values %a);
}

# When each transaction committed, says the server (track_commit_timestamp).
my ($loaded_at, $caught_up_at, @stamped) = (0, 0);
for (lines_of('journal'))
{
	my ($what, @rest) = split ' ';
	if ($what eq 'loaded') { $loaded_at = $rest[0] }
	elsif ($what eq 'caught-up') { $caught_up_at = $rest[0] }
	else { push @stamped, \@rest }
}
my %xid = map { $_->[0] => 1 } @stamped;
my %commit_time = map { @$_ } @{
	$source->selectall_arrayref(
		q(SELECT x, extract(epoch FROM pg_xact_commit_timestamp(x::xid))
		  FROM unnest(?::xid8[]) x), {}, [ keys %xid ])
};
my @latency;
for (@stamped)
{
	my ($xid, $count, $time) = @$_;
	my $at = $commit_time{$xid} // next;
	push @latency, ($time - $at) x $count if $caught_up_at && $at > $caught_up_at;
}
@latency = sort { $a <=> $b } @latency;

# Every row of the table, and a hash of it, goes to the other database.
my $hash = 'md5(ROW(name, architecture, version, section, fields, updated_at)::text)';
$copy->do('CREATE TEMP TABLE original (name text, architecture text, version text, hash text)');
$copy->do('COPY original FROM STDIN');
$source->do("COPY (SELECT name, architecture, version, $hash FROM package) TO STDOUT");
my $line;
$copy->pg_putcopydata($line) while $source->pg_getcopydata($line) >= 0;
$copy->pg_putcopyend;
my ($in_table) = $copy->selectrow_array('SELECT count(*) FROM original');

# What differs, by EXCEPT both ways, is missing, stale, or should be gone.
my (%rows, %wrong);
for my $table (qw(followed polled))
{
	my $here = "SELECT name, architecture, version, $hash AS hash FROM $table";
	($rows{$table}) = $copy->selectrow_array("SELECT count(*) FROM $table");
	$wrong{$table} = $copy->selectall_hashref(
		qq(WITH lacks AS (TABLE original EXCEPT $here),
				has AS ($here EXCEPT TABLE original),
				wrong AS (
					SELECT CASE WHEN h.name IS NULL THEN 'missing'
							WHEN l.name IS NULL THEN 'gone' ELSE 'stale' END AS what,
						name, h.version AS has, l.version AS lacks
					FROM lacks l FULL JOIN has h USING (name, architecture))
			SELECT what, count(*), max(concat_ws(' ', name, has,
				CASE WHEN has <> lacks THEN 'is' END, nullif(lacks, has))) AS example
			FROM wrong GROUP BY what), 'what');
}
my ($loaded, $upserts, $deletes) =
  $copy->selectrow_array('SELECT loaded, upserts, deletes FROM follower');

print "\n";
print_paragraph('Committed  ', sprintf
	  '%s changes in %.1f~s: %s rows updated, %s deleted, %s inserted, %s deleted and'
	  . ' inserted again; in %s transactions of 1 to %s rows.  %s stayed open for'
	  . ' 0.3 to %.1f~s, %s others rolled back.',
	n(sum0 values %made), $took, map({ n($_) } @made{qw(update delete insert again)},
		$transactions, $biggest, scalar @open), max(0, @open), n($undone));
print_paragraph('Follower   ', sprintf
	  'The initial load of %s rows took %.1f~s while writers wrote%s.  Changes: %s'
	  . ' upserts (rows inserted or updated), %s deletes; of a row that changes often'
	  . ' a feed may have only the last version.  From commit to applied: p50~%s,'
	  . ' p99~%s (%s rows, those written since).',
	n($loaded), $loaded_at - $followed_since,
	$caught_up_at
	? sprintf('; it had caught up with them after %.1f~s', $caught_up_at - $followed_since)
	: '',
	n($upserts), n($deletes),
	map({ ms($_) =~ tr/ /~/r } percentile(50, @latency), percentile(99, @latency)),
	n(scalar @latency));

print "\n";
printf "%-18s%10s%12s%12s%18s\n", '', 'rows', 'missing', 'stale', 'should be gone';
printf "%-18s%10s\n", 'table', n($in_table);
for ([ 'followed', "follower's copy" ], [ 'polled', "poller's copy" ])
{
	my ($table, $label) = @$_;
	printf "%-18s%10s%12s%12s%18s\n", $label, n($rows{$table}),
	  map { exists $wrong{$table}{$_} ? n($wrong{$table}{$_}{count}) : 0 }
	  qw(missing stale gone);
}

my $polled = $wrong{polled};
if (%$polled)
{
	print "\n";
	print_paragraph('', 'A poller sees no deletes.  And updated_at says when a'
		  . ' transaction began: a row that is committed late has a time that a poll'
		  . ' may have passed, and is never asked for.  For example');
}
for ([ 'missing', 'missing' ], [ 'stale', 'stale' ], [ 'gone', 'should be gone' ])
{
	my ($what, $label) = @$_;
	printf "  %-16s%.62s\n", $label, $polled->{$what}{example} if $polled->{$what};
}

print "\n";
if (%{ $wrong{followed} } || $rows{followed} != $in_table)
{
	print "FAILED: the follower's copy is not equal to the table\n";
	exit 1;
}
print_paragraph('', sprintf q(The follower's copy equals the table: by a hash of each row,)
	  . ' EXCEPT both ways finds 0~differences.  The poller has %s rows wrong.',
	n(sum0 map { $_->{count} } values %$polled));
exit 0;
