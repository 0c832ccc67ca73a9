# FeedpubRetentionChecker.pm: as FeedpubOrderChecker, while rows are removed.
#
# Three feeds: outbox, whose policy changes all the time, and which is purged
# by hand; kept, a copy of it, whose policy is "keep" alone, so that its
# subscriptions never lose a row; and thing, a table whose deletes expire.  Its
# keys are 1 to 20, which are inserted again, and new ones, which are not.
#
# Triggers keep what is removed: truth has the stamp of each row of the
# outboxes, gone that of each delete of thing, and truth_batch the batches.
#
# A consumer's file has, for each stretch from a beginning on:
#
#   S floor    it begins; floor is the number of the floor's batch in the
#              snapshot that it begins with, or "?"
#   rows       "token kKEY version", or "U id version", "D id xid" of thing
#   X floor    it was refused (PF002); the floor's batch at that moment
#   N          it begins anew by itself
#   = cursor   the end of what was taken together, and the cursor after it
#
# What a subscription's consumer does for a row is a row of table effect, in
# the transaction in which it acknowledges.
package FeedpubRetentionChecker;

use strict;
use warnings FATAL => 'all';

use FeedpubChecker;
use FeedpubOrderChecker;
use JSON::PP ();
use POSIX ();
use Time::HiRes ();

our @ISA = qw(FeedpubOrderChecker);

*chance = \&FeedpubChecker::chance;
*pause = \&FeedpubChecker::pause;

my $page_of_thing = q(SELECT feed_page('thing', ?, ?)::text);

# How a consumer reads: like one of FeedpubOrderChecker, in xid order, or a
# table.  slow: it pauses between pages; hold: it reads with old snapshots;
# newcomer: it begins anew when it has come to the end, or before.
my %way = (
	fast => { like => 'read' },
	waiting => { like => 'wait' },
	slow => { like => 'page', slow => 1 },
	held => { like => 'policy', hold => 1 },
	newcomer => { like => 'read', newcomer => 1 },
	standby => { like => 'standby' },
	standby_slow => { like => 'standby', slow => 1, hold => 1 },
	standby_newcomer => { like => 'standby', newcomer => 1 },
	xid => { order => 'xid' },
	xid_standby => { order => 'xid', on_standby => 1, hold => 1, newcomer => 1 },
	thing => { feed => 'thing' },
	thing_slow => { feed => 'thing', slow => 1, hold => 1 },
	thing_standby => { feed => 'thing', on_standby => 1 });

# Consumers of subscriptions.
my %work = (
	solo => { subscription => 'solo', feed => 'kept', parks => 1 },
	member1 => { subscription => 'group', feed => 'kept', parks => 1 },
	member2 => { subscription => 'group', feed => 'kept', parks => 1 },
	member3 => { subscription => 'group', feed => 'kept', parks => 1 },
	capped => { subscription => 'capped', feed => 'outbox', seeks => 1 },
	fresh => { subscription => 'fresh', feed => 'outbox', seeks => 1, fresh => 1 });

for (values %way)
{
	$_ = { %{ $FeedpubOrderChecker::way{ $_->{like} } }, %$_ } if $_->{like};
	$_->{feed} //= 'outbox';
	$_->{order} //= 'published';
	$_->{query} //= $_->{order} eq 'xid' ? $FeedpubOrderChecker::fetch : $page_of_thing;
	$_->{user} //= 'regress_feedpub_reader';
}

# The tables, after the roles.
sub schema
{
	return <<'SQL';
SELECT feed_create('outbox');
SELECT feed_create('kept');
CREATE TABLE item (key int PRIMARY KEY, version int NOT NULL DEFAULT 0);
INSERT INTO item SELECT i FROM generate_series(1, 40) i;
CREATE TABLE thing (id int PRIMARY KEY, version int NOT NULL);
CREATE SEQUENCE new_id START 1001;
INSERT INTO thing SELECT i, 0 FROM generate_series(1, 20) i;
SELECT feed_attach('thing');

CREATE TABLE truth (feed name, feed_xid xid8, feed_pos bigint, token text, key text, version text);
CREATE TABLE gone (id int, xid xid8);
CREATE TABLE truth_batch (feed name, sync_id bigint, snapshot pg_snapshot);
CREATE TABLE effect (n bigint GENERATED ALWAYS AS IDENTITY, subscription text, kind text, token text, key text);
CREATE FUNCTION keep_row() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
	INSERT INTO public.truth VALUES (TG_TABLE_NAME, NEW.feed_xid, NEW.feed_pos,
		NEW.publication_id, NEW.message_key, NEW.data::text);
	IF TG_TABLE_NAME = 'outbox' THEN
		INSERT INTO public.kept (publication_id, message_type, message_key, data)
		VALUES (NEW.publication_id, NEW.message_type, NEW.message_key, NEW.data);
	END IF;
	RETURN NULL;
END $$;
CREATE TRIGGER keep_row AFTER INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION keep_row();
CREATE TRIGGER keep_row AFTER INSERT ON kept FOR EACH ROW EXECUTE FUNCTION keep_row();
CREATE FUNCTION keep_delete() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
	INSERT INTO public.gone VALUES (OLD.id, pg_current_xact_id());
	RETURN NULL;
END $$;
CREATE TRIGGER keep_delete AFTER DELETE ON thing FOR EACH ROW EXECUTE FUNCTION keep_delete();
CREATE FUNCTION keep_batch() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
	INSERT INTO public.truth_batch
	SELECT relname, OLD.sync_id, OLD.snapshot FROM pg_class WHERE oid = OLD.feed;
	RETURN NULL;
END $$;
CREATE TRIGGER keep_batch AFTER DELETE ON feedpub._batch FOR EACH ROW EXECUTE FUNCTION keep_batch();
CREATE VIEW batches AS SELECT *, lag(snapshot) OVER (PARTITION BY feed ORDER BY sync_id) AS before FROM (
	SELECT feed, sync_id, snapshot FROM truth_batch
	UNION ALL SELECT relname, sync_id, snapshot FROM feedpub._batch b JOIN pg_class c ON c.oid = b.feed) AS b;
CREATE VIEW floors AS SELECT b.feed, b.sync_id, b.snapshot
	FROM (SELECT feed, max(sync_id) AS sync_id FROM feedpub._floor GROUP BY feed) AS f
	JOIN pg_class c ON c.oid = f.feed JOIN batches b ON (b.feed, b.sync_id) = (c.relname, f.sync_id);

ALTER TABLE outbox ENABLE ROW LEVEL SECURITY;
CREATE POLICY all_rows ON outbox FOR SELECT USING (message_type <> '');
GRANT INSERT ON outbox TO regress_feedpub_writer;
GRANT SELECT, UPDATE ON item TO regress_feedpub_writer;
GRANT SELECT, INSERT, UPDATE, DELETE ON thing TO regress_feedpub_writer;
GRANT USAGE ON SEQUENCE new_id TO regress_feedpub_writer;
GRANT SELECT ON outbox, kept, thing, feedpub._floor TO regress_feedpub_reader, regress_feedpub_restricted;
GRANT SELECT, INSERT ON effect TO regress_feedpub_reader;
GRANT SELECT ON truth TO regress_feedpub_reader;

SET ROLE regress_feedpub_reader;
SELECT feed_subscribe('solo', 'kept', 'earliest');
SELECT feed_subscribe('group', 'kept', 'earliest', 4, '2 s');
SELECT feed_subscribe('capped', 'outbox', 'earliest');
SELECT feed_subscribe('fresh', 'outbox', 'earliest');
SQL
}

sub node_of
{
	my ($self, $on_standby) = @_;

	return $on_standby || -e "$self->{dir}/promoted" ? $self->{standby} : $self->{node};
}

#
# Writers, besides those of FeedpubOrderChecker
#

# A transaction that is open for a while, again and again.
sub write_long
{
	my ($self) = @_;

	$self->seed('long', 0);
	open my $log, '>', "$self->{dir}/writerlong.log" or die "long: $!";
	my $w = {
		%{ $self->session('regress_feedpub_writer', 'long') },
		log => $log,
		kind => 'long'
	};
	for (my $number = 0; !-e "$self->{dir}/short_written"; $number++)
	{
		@$w{qw(transaction rows tokens)} = ("long.$number", 0, []);
		$self->survives($w, sub {
				$w->{dbh}->do('BEGIN');
				FeedpubOrderChecker::insert_plain($w, 2);
				pause(3);
				FeedpubOrderChecker::insert_plain($w, 1);
				FeedpubOrderChecker::commit_or_rollback($w, 10);
			})
		  or FeedpubOrderChecker::log_fate($w, 'U', @{ $w->{tokens} });
	}
	$w->{dbh}->disconnect;
	close $log or die "long: $!";
	return;
}

my @changes = (
	q(INSERT INTO thing SELECT nextval('new_id'), 0 FROM generate_series(1, 1 + (random() * 9)::int)),
	q(INSERT INTO thing SELECT 1 + (random() * 19)::int, 0 ON CONFLICT (id) DO UPDATE SET version = thing.version + 1),
	q(UPDATE thing SET version = version + 1 WHERE id % 7 = (random() * 6)::int),
	q(DELETE FROM thing WHERE id IN (SELECT id FROM thing ORDER BY random() LIMIT 6)),
	q(DELETE FROM thing WHERE id IN (SELECT id FROM thing ORDER BY id LIMIT 3)));

# Changes the table until a file is there.
sub write_things
{
	my ($self, $name, $until) = @_;

	$self->seed($name, 0);
	my $w = $self->session('regress_feedpub_writer', $name);

	until (-e "$self->{dir}/$until")
	{
		my $ok = eval {
			$w->{dbh}->do('BEGIN');
			for (1 .. 1 + int rand 3)
			{
				$w->{dbh}->do($changes[ int rand @changes ]);
				pause(0.3) if chance(5);
			}
			$w->{dbh}->do(chance(85) ? 'COMMIT' : 'ROLLBACK');
			1;
		};
		if (!$ok)
		{
			my $error = $@;

			if ($w->{dbh}->state =~ /^(23505|40P01|40001)$/)
			{
				$w->{dbh}->do('ROLLBACK');
			}
			else
			{
				die $error if !$self->reconnected($w);
			}
		}
		pause(0.06);
	}
	$w->{dbh}->disconnect;
	return;
}

#
# The process that sets policies, purges, and kills what removes rows
#

sub one_of
{
	return $_[ int rand @_ ];
}

sub interval
{
	my ($ms) = @_;

	return defined $ms ? "$ms ms" : undef;
}

sub retain
{
	my ($self, $name, $until) = @_;
	my @heads;

	$self->seed($name, 0);
	my $w = $self->session('postgres', $name);
	my @acts = (
		[ 30 => sub {
			my $keep = one_of(undef, 0, 0, 100, 1000);
			my $age = one_of(undef, undef, 100, 300, 1500);

			$age = $keep if defined $age && defined $keep && $age < $keep;
			my $size = one_of(undef, undef, undef, chance(10) ? 1 : 1 + int rand 500_000);

			$w->{dbh}->do('SELECT feed_retain(?, ?, ?, ?)', undef, 'outbox',
				interval($keep), interval($age), $size);
		} ],
		[ 10 => sub {
			$w->{dbh}->do('SELECT feed_retain(?, ?)', undef, 'kept',
				interval(one_of(undef, 0, 0, 300)));
		} ],
		[ 10 => sub {
			$w->{dbh}->do('SELECT feed_retain(?, ?, ?)', undef, 'thing',
				interval(one_of(undef, 0, 200)), interval(one_of(undef, 300, 1000, 2000)));
		} ],
		[ 15 => sub {
			my ($feed, $head) = @{ $heads[ int rand @heads ] // return };

			return if eval { $w->{dbh}->do('CALL feed_purge(?, ?)', undef, $feed, $head); 1 };
			# a subscription needs something of it
			die $@ if $w->{dbh}->state ne '55000';
		} ],
		[ 10 => sub {
			$w->{dbh}->do('ALTER SYSTEM SET feedpub.removal_rate = ' . one_of(0, 0, 300, 3000, 20_000));
			$w->{dbh}->do('SELECT pg_reload_conf()');
		} ],
		[ 15 => sub {
			$w->{dbh}->do(
				"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'feedpub job'");
		} ],
		[ 10 => sub {
			$w->{dbh}->do('BEGIN');
			$w->{dbh}->do('SELECT FROM ' . one_of(qw(outbox kept)) . ' ORDER BY feed_xid, feed_pos LIMIT 3 FOR UPDATE');
			pause(0.5);
			$w->{dbh}->do('COMMIT');
		} ]);

	until (-e "$self->{dir}/$until")
	{
		my $dice = rand 100;
		my $act;

		for (@acts)
		{
			$act = $_->[1];
			last if ($dice -= $_->[0]) < 0;
		}
		$self->survives($w, sub {
				for my $feed (qw(outbox kept thing))
				{
					my ($head) = $w->{dbh}->selectrow_array('SELECT feed_head(?)', undef, $feed);

					push @heads, [ $feed, $head ] if $head ne '';
				}
				splice @heads, 0, @heads - 12 if @heads > 12;
				$act->();
			})
		  or @heads = ();
		pause(0.4);
	}
	$w->{dbh}->disconnect;
	return;
}

#
# Consumers
#

sub take_page
{
	my ($self, $way, $sth, $cursor, $limit) = @_;

	return $self->SUPER::take_page($way, $sth, $cursor, $limit) if $way->{feed} ne 'thing';
	$sth->execute($cursor, $limit);
	my $body = JSON::PP->new->utf8->decode($sth->fetchrow_array);

	$sth->finish;
	return (
		$body->{cursor},
		map {
			[ $_->{cursor}, $_->{op} eq 'delete' ? "D $_->{key}{id} $_->{xid}" : "U $_->{row}{id} $_->{row}{version}" ]
		} @{ $body->{entries} });
}

# The number of the floor's batch, as the session's next snapshot has it.
sub floor_of
{
	my ($dbh, $feed) = @_;

	return $dbh->selectrow_array(
		'SELECT COALESCE(max(sync_id), 0) FROM feedpub._floor WHERE feed = ?::regclass', undef, $feed);
}

# Reads some pages.  Writes them by out->(LINES, CURSOR), which moves the
# cursor.  Returns how many it has read.
sub read_pages
{
	my ($self, $way, $dbh, $sth, $cursor, $out) = @_;
	my $begins = $$cursor eq '';
	my $one_snapshot = $begins ? chance(80) || $way->{order} eq 'xid' : $way->{hold} ? chance(60) : chance(15);
	my $start = $begins ? "S ?\n" : '';
	my $after = $$cursor;
	my $count = 0;

	$dbh->do('BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY') if $one_snapshot;
	if ($one_snapshot)
	{
		my $floor = floor_of($dbh, $way->{feed});

		$start = "S $floor\n" if $begins;
		pause(2) if $way->{hold} && chance(50);
	}
	if ($begins && $way->{order} eq 'published' && chance(40) && $way->{feed} ne 'thing')
	{
		($after) = $dbh->selectrow_array('SELECT feed_floor(?)', undef, $way->{feed});
	}
	for (1 .. ($one_snapshot ? 1 + int rand 5 : 1))
	{
		my $limit = chance(60) ? 1 + int rand 30 : chance(75) ? 1 + int rand 500 : 1 + int rand 5000;
		my ($next, @rows);

		if (!eval { ($next, @rows) = $self->take_page($way, $sth, $after, $limit); 1 })
		{
			my $error = $@;

			die $error if !$dbh->state || $dbh->state ne 'PF002';
			die "refused in the snapshot of its own beginning or of a page: $error"
			  if $one_snapshot && ($begins || $count) && $way->{order} ne 'xid';
			$dbh->do('ROLLBACK') if $one_snapshot;
			$out->($start . 'X ' . floor_of($dbh, $way->{feed}) . "\n", '');
			return 1;
		}
		die "a page of more than $limit rows" if @rows > $limit;
		last if !@rows && $next eq $after;
		# not all that was delivered is always taken
		if (@rows > 1 && chance(10))
		{
			splice @rows, 1 + int rand $#rows;
			$next = $rows[-1][0];
		}
		$count++;
		$after = $next;
		$out->(join('', $start, map { "$_->[1]\n" } @rows), $next);
		$start = '';
		pause(1) if $way->{hold} && $one_snapshot && chance(30);
	}
	$dbh->do('COMMIT') if $one_snapshot;
	return $count;
}

# May all rows be read in xid order?  An open transaction that writes none of
# them holds it back, too.
sub is_settled
{
	my ($dbh) = @_;

	return $dbh->selectrow_array(<<'SQL');
SELECT NOT EXISTS (SELECT FROM truth
	WHERE feed = 'outbox' AND feed_xid >= pg_snapshot_xmin(pg_current_snapshot()))
SQL
}

# One life of a consumer, which may end by SIGKILL at any time.
sub consume
{
	my ($self, $name, $way, $life) = @_;
	my $file = "$self->{dir}/$name.read";
	my $cursor = FeedpubChecker::last_cursor($file);

	$self->seed($name, $life);
	open my $fh, '>>', $file or die "$name: $!";
	my $out = sub {
		my ($lines, $next) = @_;
		my $text = "$lines= $next\n";

		syswrite($fh, $text) == length $text or die "$name: $!";
		$cursor = $next;
	};
	while (1)
	{
		my ($dbh, $sth);
		my $ended = 0;

		my $ok = eval {
			$dbh = $self->connect_to(sub { $self->node_of($way->{on_standby}) }, $way->{user}, $name);
			$sth = $dbh->prepare($way->{query});
			$dbh->do('SET statement_timeout = 180000');
			$dbh->do('SET feedpub.read_wait = ' . int rand 100);
			for (1 .. 1 + int rand 60)
			{
				my $quiet = -e "$self->{dir}/quiet" && ($way->{order} ne 'xid' || is_settled($dbh));
				my $count = $self->read_pages($way, $dbh, $sth, \$cursor, $out);

				pause(chance(10) ? 4 : 0.3) if $way->{slow} && !$quiet;
				if (!$count && $quiet)
				{
					$ended = 1;
					last;
				}
				if ($way->{newcomer} && !$quiet && chance($count ? 5 : 60))
				{
					$out->("N\n", '');
				}
				next if $count;
				if ($way->{wait} && $cursor ne '' && chance(80))
				{
					eval { $dbh->selectall_arrayref($way->{wait}, undef, $cursor); 1 }
					  or $dbh->state eq 'PF002'
					  or die $@;
				}
				else
				{
					pause(0.1);
				}
			}
			$dbh->disconnect;
			1;
		};
		return if $ended;
		if (!$ok)
		{
			my $error = $@;
			my $state = $dbh ? $dbh->state : $DBI::state;

			die "$state $error" if !FeedpubChecker::is_transient($dbh);
			return if getppid != $self->{parent};
			$cursor = FeedpubChecker::last_cursor($file);
			pause(0.1);
		}
	}
}

#
# Consumers of subscriptions
#

# Errors that end a page and no more: the lease or the page is another's, the
# answer to an acknowledgement was lost, serialization.
sub is_of_a_group
{
	my ($state) = @_;

	return $state =~ /^(PF003|PF005|40001|40P01)$/;
}

# Begins a subscription anew, at the floor.
sub begin_anew
{
	my ($dbh, $work) = @_;
	my $name = $work->{subscription};

	while (1)
	{
		my ($start) = $dbh->selectrow_array(
			$work->{fresh} && chance(50) ? q(SELECT feed_floor('outbox')) : q(SELECT 'earliest'));

		$dbh->begin_work;
		last if eval {
			if ($work->{fresh} && chance(70))
			{
				$dbh->do('SELECT feed_unsubscribe(?)', undef, $name);
				$dbh->do('SELECT feed_subscribe(?, ?, ?)', undef, $name, $work->{feed}, $start);
			}
			else
			{
				$dbh->do('SELECT feed_seek(?, ?)', undef, $name, $start);
			}
			1;
		};
		# the floor has moved since
		die $@ if !$dbh->state || $dbh->state ne 'PF002';
		die "a subscription cannot begin at 'earliest': $@" if $start eq 'earliest';
		$dbh->rollback;
	}
	# it does not move until this commits
	$dbh->do(q(INSERT INTO effect (subscription, kind, token) VALUES (?, 'start', ?)),
		undef, $name, floor_of($dbh, $work->{feed}));
	$dbh->commit;
	return;
}

# One page.  Returns whether there was one.
sub work_page
{
	my ($self, $dbh, $work, $name, $quiet) = @_;
	my $one_transaction = chance(50);
	my $poll = 'SELECT receipt, row ->> ?, row ->> ? FROM feed_poll(?, ?, ?)';
	my ($page, @tokens, @keys, $last, $kind);

	$dbh->begin_work if $one_transaction;
	$page = $dbh->selectall_arrayref($poll, undef, 'publication_id', 'message_key', $work->{subscription},
		chance(50) ? 1 + int rand 30 : 1 + int rand 1000, $name);
	pause(chance(2) ? 3 : 0.1) if !$quiet;
	$dbh->begin_work if !$one_transaction;
	for my $row (@$page)
	{
		my ($receipt, $token, $key) = @$row;

		$last = $receipt;
		# the receipt of an entry that was parked is of a kind of its own
		$kind = $receipt =~ /^.r/ ? 'parked' : 'row';
		if ($work->{parks} && $kind eq 'row' && chance(0.3))
		{
			$dbh->do('SELECT feed_park(?, ?)', undef, $work->{subscription}, $receipt);
			next;
		}
		push @tokens, $token;
		push @keys, $key;
		last if chance(0.5);
	}
	$dbh->do('INSERT INTO effect (subscription, kind, token, key) SELECT ?, ?, t, k FROM unnest(?::text[], ?::text[]) AS r (t, k)',
		undef, $work->{subscription}, $kind, \@tokens, \@keys)
	  if @tokens;
	$dbh->do('SELECT feed_ack(?, ?)', undef, $work->{subscription}, $last) if $last;
	$dbh->do('SELECT feed_retry(?)', undef, $work->{subscription})
	  if $work->{parks} && chance($quiet ? 50 : 5);
	chance(3) ? $dbh->rollback : $dbh->commit;
	return scalar @$page;
}

# Has a subscription come to the end?
sub has_all
{
	my ($dbh, $work) = @_;

	return 1 if $work->{seeks};
	return $dbh->selectrow_array(<<'SQL', undef, $work->{subscription}, $work->{feed});
SELECT (SELECT count(*) FROM effect WHERE subscription = ?) >= (SELECT count(*) FROM truth WHERE feed = ?)
SQL
}

sub work
{
	my ($self, $name, $life) = @_;
	my $work = $work{$name};
	my $unseen = 0;
	my $news = Time::HiRes::time();
	my $dbh;

	$self->seed($name, $life);
	while (1)
	{
		my $quiet = -e "$self->{dir}/quiet";
		my $count;
		my $ok = eval {
			$dbh //= $self->connect_to(sub { $self->node_of(0) }, 'regress_feedpub_reader', $name);
			begin_anew($dbh, $work) if $work->{fresh} && !$quiet && chance(5);
			$count = $self->work_page($dbh, $work, $name, $quiet);
			$news = Time::HiRes::time() if $count || !$quiet;
			# what has not come by then is lost
			return 0
			  if !$count && $quiet && (has_all($dbh, $work) || Time::HiRes::time() > $news + 20);
			pause(0.1) if !$count;
			pause(4) if $work->{seeks} && !$quiet && chance(4);
			1;
		};

		next if $ok;
		return if defined $ok;
		my $error = $@;
		my $state = ($dbh ? $dbh->state : $DBI::state) // '';
		return if getppid != $self->{parent};
		if ($state eq 'PF002' && $work->{seeks})
		{
			$dbh->rollback if !$dbh->{AutoCommit};
			next if eval {
				my ($expired) = $dbh->selectrow_array('SELECT expired FROM feedpub.subscriptions WHERE name = ?',
					undef, $work->{subscription});

				# a killed one may have begun it anew at this moment
				$unseen = $expired ? 0 : $unseen + 1;
				die "refused, and not shown as expired\n" if $unseen > 1;
				begin_anew($dbh, $work) if $expired;
				1;
			};
			$error = $@;
			$state = $dbh->state // '';
		}
		if (is_of_a_group($state))
		{
			$dbh->rollback if !$dbh->{AutoCommit};
			next;
		}
		die "$state $error" if !FeedpubChecker::is_lost($dbh);
		eval { $dbh->disconnect } if $dbh;
		undef $dbh;
		pause(0.1);
	}
}

#
# The run
#

# When it is given up.
sub deadline
{
	my ($self) = @_;

	return Time::HiRes::time() + 90 + 5 * $self->{seconds} + 20 * $self->{crashes};
}

# The standby takes over, when it has everything.  The old server ends as in a
# crash.
sub promote
{
	my ($self) = @_;

	$self->{node}->wait_for_replay_catchup($self->{standby});
	$self->say('crashing');
	$self->{node}->stop('immediate');
	$self->{standby}->promote;
	$self->say('promoted');
	$self->{node} = $self->{standby};
	$self->{node}->safe_psql('postgres', 'SELECT feed_start_worker()');
	unlink "$self->{dir}/crashing";
	return;
}

sub live
{
	my ($self, $name, $life) = @_;

	return $way{$name} ? $self->consume($name, $way{$name}, $life) : $self->work($name, $life);
}

# Options: node; standby; seconds, transactions, writers, seed, crashes, dir
# (an empty directory).  A third of it comes again after the promotion.
sub run
{
	my ($class, %options) = @_;
	my $self = $class->new_run(%options, order => 'published');
	my @names = (sort keys %way, sort keys %work);

	$self->{consumer} = { %way, %work };
	$self->{node}->safe_psql('postgres', 'SELECT feed_start_worker()');
	$self->start($_) for @names;
	$self->begin('long', sub { $self->write_long });
	$self->begin('things', sub { $self->write_things('things', 'short_written') });
	$self->begin('retainer', sub { $self->retain('retainer', 'written') });
	$self->begin_writers(1 .. $self->{writers});
	$self->begin('disturber', sub { $self->disturb });
	$self->begin('killer', sub { $self->kill_workers });

	$self->seed('killer of consumers', 0);
	$self->kill_one(0.5, @names)
	  while ($self->running('^writer') || !$self->enough) && $self->goes_on;
	$self->say('short_written');
	$self->await_end('^(long|things)$');
	$self->say('written');
	$self->await_end('^(disturber|killer|retainer)$');
	if ($self->goes_on)
	{
		$self->promote;
		$self->begin('things2', sub { $self->write_things('things2', 'written2') });
		$self->begin('retainer2', sub { $self->retain('retainer2', 'written2') });
		{
			local @$self{qw(seconds transactions)} = map { $_ / 3 } @$self{qw(seconds transactions)};
			$self->begin_writers($self->{writers} + 1 .. 2 * $self->{writers});
		}
		$self->kill_one(0.5, @names) while $self->running('^writer') && $self->goes_on;
		$self->say('written2');
		$self->await_end('^(things2|retainer2)$');
	}
	if ($self->goes_on)
	{
		$self->{node}->poll_query_until('postgres', <<'SQL')
SELECT count(*) = 0 FROM (
	SELECT feed, feed_xid FROM truth
	UNION ALL SELECT 'thing', feed_xid FROM thing) AS t
WHERE NOT pg_visible_in_snapshot(feed_xid,
	(SELECT snapshot FROM batches b WHERE b.feed = t.feed ORDER BY sync_id DESC LIMIT 1))
SQL
		  or $self->failed('not all rows get published');
	}
	return $self->end_run;
}

#
# What came of it
#

# The consumers that keep a cursor of the outbox, of the table.
sub readers
{
	return sort grep { $way{$_}{feed} eq 'outbox' } keys %way;
}

sub copiers
{
	return sort grep { $way{$_}{feed} eq 'thing' } keys %way;
}

sub order_of
{
	my ($class, $name) = @_;

	return $way{$name}{order};
}

sub lines_of
{
	my ($dir, $name) = @_;

	open my $fh, '<', "$dir/$name.read" or die "$name: $!";
	my @lines = <$fh>;
	chomp @lines;
	return @lines;
}

# Judges what a consumer of the outbox was delivered.  model is the list of
# all rows that have committed, in its order, as ["token kKEY version", batch].
# Returns how often what happened, and the first problems.
sub judge
{
	my ($class, $dir, $name, $model) = @_;
	my %index = map { $model->[$_][0] => $_ } 0 .. $#$model;
	my %count = (rows => 0, starts => 0, refused => 0, skipped => 0);
	my $lenient = $way{$name}{order} eq 'xid';
	my @problems;
	my ($next, $floor, $first_page) = (0, undef, 0);
	my $batch = sub { my ($i) = @_; return $i < @$model ? $model->[$i][1] : 9e15 };
	# rows that are not delivered, up to one: only what was removed before the
	# beginning, or what is not known
	my $skip = sub {
		my ($to) = @_;

		return if $to == $next;
		if ($to < $next)
		{
			push @problems, "row $to comes after row " . ($next - 1);
			return;
		}
		my @missed = grep { defined $floor ? $batch->($_) > $floor : !$first_page } $next .. $to - 1;

		$count{skipped} += @missed;
		push @problems, 'missed ' . @missed . " rows from $missed[0] on, of batch " . $batch->($missed[0])
		  if @missed;
	};

	for (lines_of($dir, $name))
	{
		if (/^S (.*)/)
		{
			($next, $floor, $first_page) = (0, $1 eq '?' ? undef : $1, 1);
			$count{starts}++;
		}
		elsif (/^X (\d+)/)
		{
			$count{refused}++;
			# nothing after its cursor has been removed
			push @problems, "refused after row " . ($next - 1) . " though the floor is at $1"
			  if !$lenient && $next > 0 && $batch->($next - 1) >= $1 && $batch->($next) > $1;
			$next = undef;
		}
		elsif (/^N/)
		{
			$next = undef;
		}
		elsif (/^= /)
		{
			# in xid order, rows that were there at the beginning have all been
			# delivered before others; else, once there was a row
			next if !defined $next;
			($floor, $first_page) = (0, 0) if $next > 0;
		}
		else
		{
			my $i = $index{$_};

			$count{rows}++;
			if (!defined $i)
			{
				push @problems, "$_ has not committed";
				next;
			}
			$skip->($i);
			push @problems, "row $i is before the floor $floor" if !$lenient && $floor && $batch->($i) <= $floor;
			# from a beginning that is not known, the first row tells it
			($floor, $first_page) = (0, 0) if !defined $floor || !$lenient;
			$next = $i + 1;
		}
	}
	$skip->(scalar @$model) if defined $next;
	return (\%count, @problems > 5 ? @problems[ 0 .. 4 ] : @problems);
}

# Judges a copy of the table: deleted has the batch of each id's delete, if it
# is never inserted again, and batch_of that of each transaction that deletes.
# Returns the copy, how often what happened, and problems: rows that are in
# the copy although a later delete has been delivered.
sub judge_copy
{
	my ($class, $dir, $name, $deleted, $batch_of) = @_;
	my %count = (U => 0, D => 0, starts => 0, refused => 0);
	my (%copy, @problems);
	my $last = 0;
	my $end = sub {
		push @problems, map { "$_ was deleted in batch $deleted->{$_}, a delete of batch $last was delivered" }
		  grep { $deleted->{$_} && $deleted->{$_} < $last } sort { $a <=> $b } keys %copy;
	};

	for (lines_of($dir, $name))
	{
		if (/^S/)
		{
			%copy = ();
			$last = 0;
			$count{starts}++;
		}
		elsif (/^X/)
		{
			$count{refused}++;
			$end->();
			%copy = ();
		}
		elsif (/^U (\d+) (\d+)/)
		{
			$copy{$1} = $2;
			$count{U}++;
		}
		elsif (/^D (\d+) (\d+)/)
		{
			delete $copy{$1};
			$last = $batch_of->{$2} // $last;
			$count{D}++;
		}
	}
	$end->();
	return (\%copy, \%count, @problems > 5 ? @problems[ 0 .. 4 ] : @problems);
}

# The rows of an outbox that have committed, in published order, as
# ["token kKEY version", batch]: each transaction lies in the first batch whose
# snapshot sees it.  rows are [xid, position, token, key, version], batches
# [number, snapshot], both in order.
sub published_order
{
	my ($class, $rows, $batches) = @_;
	my @rest = @$rows;
	my (@model, @pending);

	for (@$batches)
	{
		my ($number, $xmax, $running) = ($_->[0], $_->[1] =~ /^\d+:(\d+):(.*)$/);
		my %running = map { $_ => 1 } split /,/, $running;
		my @seen;

		push @pending, shift @rest while @rest && $rest[0][0] < $xmax;
		@seen = grep { !$running{ $_->[0] } } @pending;
		@pending = grep { $running{ $_->[0] } } @pending;
		push @model, map { [ "$_->[2] k$_->[3] $_->[4]", $number ] } sort { $a->[1] <=> $b->[1] } @seen;
	}
	return @model;
}

# Judges the effects of a subscription, as [kind, token] in their order.  Each
# row has one effect from a beginning on, those of a key in their order, or all
# if there is one shard; only a row that was parked comes later.  Returns how
# often it has begun anew, and the first problems.
sub judge_effects
{
	my ($class, $effects, $model, %options) = @_;
	my (%number_of, %rows);    # of each row: its key, and its number among those
	my (@problems, %next, %done);
	my ($starts, $floor) = (0, 0);

	for (@$model)
	{
		my ($token, $key) = split / /, $_->[0];

		$key = '' if !$options{by_key};
		push @{ $rows{$key} }, [ $token, $_->[1] ];
		$number_of{$token} = [ $key, $#{ $rows{$key} }, $_->[1] ];
	}
	for (@$effects)
	{
		my ($kind, $token) = @$_;

		if ($kind eq 'start')
		{
			(%next, %done) = ();
			$floor = $token;
			$starts++;
			next;
		}
		if (!$number_of{$token})
		{
			push @problems, "$token has not committed";
			next;
		}
		my ($key, $i, $batch) = @{ $number_of{$token} };
		my $at = $next{$key} // 0;

		push @problems, "$token comes twice" if $done{$token}++;
		push @problems, "$token is before the floor" if $batch <= $floor;
		next if $kind eq 'parked';
		push @problems, "$token comes too late" if $i < $at;
		push @problems, map { "$token comes before $_->[0]" }
		  grep { $_->[1] > $floor && !$options{parks} } @{ $rows{$key} }[ $at .. $i - 1 ];
		$next{$key} = $i + 1;
	}
	push @problems, map { "$_ is lost" } grep { !$done{$_} && $number_of{$_}[2] > $floor } sort keys %number_of;
	return ($starts, @problems > 5 ? @problems[ 0 .. 4 ] : @problems);
}

1;
