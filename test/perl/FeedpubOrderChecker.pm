# FeedpubOrderChecker.pm: checks an outbox, in published order or in xid order,
# by the option order: writers that bump the versions of keys, and consumers that
# follow.  In published order a worker is killed all the time, and some
# transaction is always open; that would hold back xid order, where a consumer
# that remembers the largest position runs too.
#
# A writer bumps a key's version under the lock of its row in "item", and then
# writes (key, version) to the feed.  So of two versions of a key the writer of
# the larger one has waited for the other's end, or come after it: published
# order promises to deliver them in this order.  Versions of rolled-back
# transactions are given out again.
#
# Each row carries a token in publication_id, made of the writer's number, its
# transaction's and its own; the key in message_key ('' for rows that are about
# no key), and the version in data.
package FeedpubOrderChecker;

use strict;
use warnings FATAL => 'all';

use FeedpubChecker;
use JSON::PP ();
use POSIX ();
use Time::HiRes ();

our @ISA = qw(FeedpubChecker);

*chance = \&FeedpubChecker::chance;
*pause = \&FeedpubChecker::pause;

my $keys = 40;
my %bulk_rows = (published => 1500, xid => 10_000);

# How a transaction of a writer goes, and how often, in a thousand.
my @kinds = (
	[ single => 270 ],    # one key
	[ pair => 130 ],      # two keys, a moment apart
	[ early => 130 ],     # a transaction id long before the key
	[ waiting => 60 ],    # a row, then a key: positions far apart
	[ rollback => 100 ],
	[ savepoints => 100 ],
	[ prepared => 60 ],   # holds its key's lock until it is decided
	[ parked => 40 ],     # decided some transactions later
	[ plain => 60 ],      # about no key
	[ copy => 15 ],
	[ failed => 20 ],     # ended by an error
	[ held => 5 ],        # open for a while
	[ bulk => 3 ],
	[ bulk_copy => 2 ]);

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
		%{ $self->session('regress_feedpub_writer', $name) },
		number => $number,
		log => $log,
		crashes => $self->{crashes},
		prepared => []    # [gid, tokens] of those that are not decided
	};
	# false if that was lost in a crash
	my $try = sub {
		return 1 if $self->survives($w, @_);
		$w->{async} = 0;
		log_fate($w, 'U', @{ $w->{tokens} });
		$w->{tokens} = [];
		for (@{ $w->{gone} })
		{
			my ($gid, @tokens) = @$_;

			local $w->{kind} = $gid eq $w->{transaction} ? $w->{kind} : 'parked';
			log_fate($w, 'U', @tokens);
		}
		return 0;
	};

	for (my $t = 1; $t <= $share || Time::HiRes::time() < $end; $t++)
	{
		my $dice = rand 1000;
		my $kind;

		for (@kinds)
		{
			$kind = $_->[0];
			last if ($dice -= $_->[1]) < 0;
		}
		my $commit = chance(5) ? chance(50) ? 'on' : 'off' : undef;
		my $flush = !$self->before_crash;
		$commit = 'off' if !$flush;
		$kind = 'single' if !$flush && $kind =~ /^(prepared|parked|held)$/;
		# nor does anything old hold back xid order
		while (!$flush && $self->{order} eq 'xid' && @{ $w->{prepared} })
		{
			$try->(sub { decide_parked($w, 0) });
		}
		$w->{transaction} = "$number.$t";
		$w->{rows} = 0;
		$w->{tokens} = [];
		$w->{kind} = $kind;
		my $method = "write_$kind";
		$try->(sub {
			FeedpubChecker::set_commit($w, $commit) if $commit;
			$self->$method($w);
			$w->{tokens} = [];
			decide_parked($w, int rand @{ $w->{prepared} })
			  if $flush
			  && (@{ $w->{prepared} } > 2 || (@{ $w->{prepared} } && chance(15)));
		}) or $share++;
		# in a crash, one may be left that holds its key's lock
		while ($kind eq 'prepared'
			&& @{ $w->{prepared} }
			&& $w->{prepared}[-1][0] eq $w->{transaction})
		{
			$try->(sub { decide($w, -1) });
		}
		pause(0.02) if chance(60);
	}
	while (@{ $w->{prepared} })
	{
		$try->(sub { decide_parked($w, 0) });
	}
	$w->{dbh}->disconnect;
	close $log or die "$name: $!";
	return;
}

# Logs what has become of rows: C, committed, R, rolled back, or U, unknown.
sub log_fate
{
	my ($w, $fate, @tokens) = @_;

	print { $w->{log} } join(' ', $fate, $w->{kind}, @tokens), "\n";
	return;
}

sub next_token
{
	my ($w) = @_;
	my $token = "$w->{transaction}." . ++$w->{rows};

	push @{ $w->{tokens} }, $token;
	return $token;
}

# Bumps keys and writes of it; in one statement or in two.  Keys ascend, so
# that writers do not meet in a deadlock.
sub bump
{
	my ($w, $key) = @_;
	my $token = next_token($w);

	if (chance(50))
	{
		$w->{dbh}->prepare_cached(<<'SQL')->execute($key, $token);
WITH bumped AS (UPDATE item SET version = version + 1 WHERE key = ? RETURNING key, version)
INSERT INTO outbox (publication_id, message_type, message_key, data)
SELECT ?, 'bump', key::text, to_jsonb(version) FROM bumped
SQL
	}
	else
	{
		my $bump = $w->{dbh}->prepare_cached(
			'UPDATE item SET version = version + 1 WHERE key = ? RETURNING version'
		);
		my ($version) = $w->{dbh}->selectrow_array($bump, undef, $key);

		pause(0.002) if chance(20);
		$w->{dbh}->prepare_cached(
			"INSERT INTO outbox (publication_id, message_type, message_key, data) VALUES (?, 'bump', ?, to_jsonb(?::int))"
		)->execute($token, $key, $version);
	}
	return;
}

sub some_key
{
	return 1 + int rand $keys;
}

sub insert_plain
{
	my ($w, $rows) = @_;
	my $first = $w->{rows} + 1;

	next_token($w) for 1 .. $rows;
	$w->{dbh}->do(
		"INSERT INTO outbox (publication_id, message_type, message_key, data) "
		  . "SELECT ? || '.' || i, 'plain', '', '0' FROM generate_series(?::int, ?::int) i",
		undef, $w->{transaction}, $first, $w->{rows});
	return;
}

sub commit_or_rollback
{
	my ($w, $rollback) = @_;
	my $fate = chance($rollback) ? 'R' : 'C';

	$w->{dbh}->do($fate eq 'C' ? 'COMMIT' : 'ROLLBACK');
	$fate = FeedpubChecker::committed($w) if $fate eq 'C';
	log_fate($w, $fate, @{ $w->{tokens} });
	return;
}

sub write_single
{
	my ($self, $w) = @_;

	$w->{dbh}->do('BEGIN');
	bump($w, some_key());
	return commit_or_rollback($w, 0);
}

sub write_pair
{
	my ($self, $w) = @_;

	$w->{dbh}->do('BEGIN');
	for my $key (sort { $a <=> $b } some_key(), some_key())
	{
		bump($w, $key);
		pause(0.02);
	}
	return commit_or_rollback($w, 0);
}

sub write_early
{
	my ($self, $w) = @_;

	$w->{dbh}->do('BEGIN');
	$w->{dbh}->do('SELECT pg_current_xact_id()');
	pause(0.05);
	bump($w, some_key());
	return commit_or_rollback($w, 10);
}

sub write_waiting
{
	my ($self, $w) = @_;

	$w->{dbh}->do('BEGIN');
	insert_plain($w, 1);
	pause(0.08);
	bump($w, some_key());
	return commit_or_rollback($w, 10);
}

sub write_rollback
{
	my ($self, $w) = @_;

	$w->{dbh}->do('BEGIN');
	bump($w, some_key());
	pause(0.02);
	return commit_or_rollback($w, 100);
}

sub write_savepoints
{
	my ($self, $w) = @_;
	my $key = some_key();

	$w->{dbh}->do('BEGIN');
	for (1 .. 1 + int rand 4)
	{
		my $before = @{ $w->{tokens} };

		$w->{dbh}->do('SAVEPOINT a');
		bump($w, $key);
		insert_plain($w, 1 + int rand 3) if chance(30);
		if (chance(40))
		{
			$w->{dbh}->do('ROLLBACK TO a');
			log_fate($w, 'R', splice @{ $w->{tokens} }, $before);
		}
		elsif (chance(70))
		{
			$w->{dbh}->do('RELEASE a');
		}
		$key += 1 if $key < $keys && chance(50);
	}
	return commit_or_rollback($w, 15);
}

sub prepare_transaction
{
	my ($w) = @_;

	# noted before it is: if the answer is lost, it is looked for
	push @{ $w->{prepared} }, [ $w->{transaction}, @{ $w->{tokens} } ];
	$w->{tokens} = [];
	$w->{dbh}->do("PREPARE TRANSACTION '$w->{transaction}'");
	return;
}

sub decide
{
	my ($w, $which) = @_;
	my ($gid, @tokens) = @{ $w->{prepared}[$which] };
	my $fate = chance(75) ? 'C' : 'R';

	$w->{dbh}->do(
		($fate eq 'C' ? 'COMMIT' : 'ROLLBACK') . " PREPARED '$gid'");
	splice @{ $w->{prepared} }, $which, 1;
	log_fate($w, $fate, @tokens);
	return;
}

sub decide_parked
{
	my ($w, $which) = @_;

	local $w->{kind} = 'parked';
	return decide($w, $which);
}

sub write_prepared
{
	my ($self, $w) = @_;

	$w->{dbh}->do('BEGIN');
	bump($w, some_key());
	prepare_transaction($w);
	pause(0.03);
	return decide($w, -1);
}

sub write_parked
{
	my ($self, $w) = @_;

	$w->{dbh}->do('BEGIN');
	insert_plain($w, 1 + int rand 3);
	return prepare_transaction($w);
}

sub write_plain
{
	my ($self, $w) = @_;

	$w->{dbh}->do('BEGIN');
	insert_plain($w, 1 + int rand 3);
	return commit_or_rollback($w, 10);
}

sub write_failed
{
	my ($self, $w) = @_;

	$w->{dbh}->do('BEGIN');
	bump($w, some_key());
	my $done = eval {
		$w->{dbh}->do(
			'INSERT INTO outbox (publication_id, message_type, message_key, data) '
			  . q(SELECT ? || i, 'failed', '', to_jsonb(1 / (20 - i)) FROM generate_series(1, 20) i),
			undef, next_token($w));
		1;
	};
	die 'an INSERT that divides by zero has succeeded' if $done;
	die $@ if $w->{dbh}->state ne '22012';
	return commit_or_rollback($w, 100);
}

sub write_held
{
	my ($self, $w) = @_;

	$w->{dbh}->do('BEGIN');
	insert_plain($w, 1);
	pause(1.5);
	insert_plain($w, 1);
	return commit_or_rollback($w, 30);
}

sub copy_rows
{
	my ($w, $rows) = @_;

	$w->{dbh}->do(
		'COPY outbox (publication_id, message_type, message_key, data) FROM STDIN'
	);
	$w->{dbh}->pg_putcopydata(next_token($w) . "\tcopy\t\t0\n") for 1 .. $rows;
	$w->{dbh}->pg_putcopyend;
	return;
}

sub write_copy
{
	my ($self, $w) = @_;

	$w->{dbh}->do('BEGIN');
	copy_rows($w, 1 + int rand 200);
	bump($w, some_key()) if chance(50);
	return commit_or_rollback($w, 20);
}

sub write_bulk_copy
{
	my ($self, $w) = @_;

	$w->{dbh}->do('BEGIN');
	copy_rows($w, $bulk_rows{ $self->{order} });
	return commit_or_rollback($w, 20);
}

sub write_bulk
{
	my ($self, $w) = @_;

	$w->{dbh}->do('BEGIN');
	bump($w, some_key());
	insert_plain($w, $bulk_rows{ $self->{order} });
	bump($w, $keys);
	return commit_or_rollback($w, 20);
}

# There is always a transaction open that is long: the next one begins before
# the one before ends.  The first stays open over the whole run, or to the
# first crash.
sub write_long
{
	my ($self) = @_;
	my @open;

	$self->seed('long', 0);
	open my $log, '>', "$self->{dir}/writerlong.log" or die "long: $!";
	my $begin = sub {
		my ($number) = @_;
		my $w = {
			%{ $self->session('regress_feedpub_writer', 'long') },
			log => $log,
			kind => 'long',
			transaction => "long.$number",
			rows => 0,
			tokens => []
		};

		until ($self->survives($w, sub {
					$w->{dbh}->do('BEGIN');
					insert_plain($w, 2);
				}))
		{
			log_fate($w, 'R', splice @{ $w->{tokens} });
		}
		return $w;
	};
	my $end = sub {
		my ($w) = @_;

		$self->survives($w, sub {
				insert_plain($w, 1);
				commit_or_rollback($w, 0);
			})
		  or log_fate($w, 'U', @{ $w->{tokens} });
		$w->{dbh}->disconnect;
		return;
	};
	my $number = 0;
	my $first = $begin->($number++);

	push @open, $begin->($number++);
	until (-e "$self->{dir}/short_written")
	{
		pause(3);
		push @open, $begin->($number++);
		$end->(shift @open);
	}
	$end->($_) for @open, $first;
	close $log or die "long: $!";
	return;
}

#
# Consumers
#

my $read = <<'SQL';
SELECT cursor, op, (entry).publication_id, (entry).message_key, (entry).data::text
FROM feed_read(NULL::outbox, ?, ?)
SQL
my $page = q(SELECT feed_page('outbox', ?, ?)::text);
my $columns = q('upsert', publication_id, message_key, data::text);
our $fetch = "SELECT feed_xid::text || ' ' || feed_pos, $columns FROM feed_fetch(NULL::outbox, ?::xid8, ?, ?)";

# How a consumer reads, and what it waits by when there is nothing.
our %way = (
	read => { query => $read },
	page => { query => $page },
	wait => { query => $read, wait => q(SELECT feed_wait('outbox', ?, '1 s')) },
	policy => {
		query => $read,
		user => 'regress_feedpub_restricted',
		wait => q(CALL feed_await('outbox', ?, '1 s'))
	},
	standby => {
		query => $page,
		on_standby => 1,
		wait => q(SELECT feed_wait('outbox', ?, '1 s'))
	},
	xid_default => { query => $fetch =~ s/NULL::outbox, //r, order => 'xid' },
	xid_named => { query => $fetch, order => 'xid' },
	xid_policy => { query => $fetch, order => 'xid', user => 'regress_feedpub_restricted' },
	xid_standby => { query => $fetch =~ s/NULL::outbox, //r, order => 'xid', on_standby => 1 },
	# A usual first attempt.
	naive => {
		query => "SELECT feed_pos::text AS after, $columns FROM outbox WHERE feed_pos > ? ORDER BY feed_pos LIMIT ?",
		order => 'position'
	});
for (values %way)
{
	$_ = { user => 'regress_feedpub_reader', order => 'published', takes_parts => 1, %$_ };
}

# Which of them read in an order, by turns.
my %ways_of = (
	published => [qw(read page wait policy standby)],
	xid => [qw(xid_default xid_named xid_policy xid_standby)]);

# The rows of a page as [cursor, "token kKEY version"], after the cursor to go on
# from.
sub take_page
{
	my ($self, $way, $sth, $cursor, $limit) = @_;
	my @rows;

	if ($way->{order} eq 'published')
	{
		$sth->execute($cursor, $limit);
	}
	else
	{
		$sth->execute($way->{order} eq 'xid' ? split(/ /, $cursor || '0 0') : $cursor || 0, $limit);
	}
	if ($way->{query} eq $page)
	{
		my ($json) = $sth->fetchrow_array;

		$sth->finish;
		my $body = JSON::PP->new->utf8->decode($json);

		for (@{ $body->{entries} })
		{
			my $row = $_->{row};

			die 'a stamp is shown' if exists $row->{feed_xid};
			push @rows, [ $_->{cursor}, "$row->{publication_id} k$row->{message_key} $row->{data}" ];
		}
		return ($body->{cursor}, @rows);
	}
	for my $row (@{ $sth->fetchall_arrayref })
	{
		my ($after, $op, $token, $key, $version) = @$row;

		die "cursor $after is not after $cursor" if !$self->is_after($way, $after, $cursor);
		$cursor = $after;
		push @rows, [ $after, "$token k$key $version" ] if $op eq 'upsert';
	}
	return ($cursor, @rows);
}

sub limit_after
{
	return chance(60) ? 1 + int rand 30 : chance(75) ? 1 + int rand 500 : 1 + int rand 10_000;
}

# Cursors of xid order and of positions are numbers.
sub is_after
{
	my ($self, $way, $next, $cursor) = @_;

	return $next gt $cursor if $way->{order} eq 'published';
	my @next = split / /, $next;
	my @cursor = split / /, $cursor || '0 0';

	return $next[0] > $cursor[0] || ($next[0] == $cursor[0] && ($next[1] // 0) > ($cursor[1] // 0));
}

sub wait_after
{
	my ($self, $way, $dbh, $cursor) = @_;

	if ($way->{wait} && chance(80))
	{
		# what an unnamed statement returns does not matter here
		$dbh->selectall_arrayref($way->{wait}, undef, $cursor);
	}
	else
	{
		pause(0.02);
	}
	return;
}

#
# The process that kills the worker
#

sub kill_workers
{
	my ($self) = @_;
	my $kills = 0;

	$self->seed('killer of workers', 0);
	my $killer = $self->session('postgres', 'killer');
	my $kill = sub {
		my $dbh = $killer->{dbh};

		if (chance(15))
		{
			# away for a while: a backlog, which is cut into batches
			my ($stopped) = $dbh->selectrow_array('SELECT feed_stop_worker()');

			$kills++ if $stopped;
			pause(0.6);
			$dbh->do('SELECT feed_start_worker()');
		}
		elsif (chance(10))
		{
			# a second publisher beside it
			for (1 .. 5)
			{
				eval { $dbh->do('CALL feed_publish()'); 1 }
				  or $dbh->state eq '40P01'
				  or die $@;
			}
		}
		else
		{
			my $killed = $dbh->selectcol_arrayref(
				"SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'feedpub worker'");

			# Readers start another, maybe as soon as this one has ended.
			$kills += @$killed;
			if (chance(70))
			{
				pause(0.02)
				  while $dbh->selectrow_array(
					'SELECT 1 FROM pg_stat_activity WHERE pid = ANY (?) LIMIT 1', undef, $killed);
				$dbh->do('SELECT feed_start_worker()');
			}
		}
	};

	# to the end, and on a slow machine until enough have been killed
	until (-e "$self->{dir}/written" && $kills >= $self->{seconds} / 3)
	{
		pause(1);
		$self->survives($killer, $kill);
	}
	1 until $self->survives($killer,
		sub { $killer->{dbh}->do('SELECT feed_start_worker()') });
	$killer->{dbh}->disconnect;
	open my $fh, '>', "$self->{dir}/kills" or die;
	print $fh $kills;
	close $fh or die;
	return;
}

#
# The run
#

# Options: node; standby; order; seconds, transactions (at least so many of both),
# writers, consumers, seed, crashes, dir (an empty directory).
sub run
{
	my ($class, %options) = @_;
	my $self = $class->new_run(%options);
	my $node = $self->{node};
	my $published = $self->{order} eq 'published';
	my @ways = grep { $self->{standby} || !$way{$_}{on_standby} } @{ $ways_of{ $self->{order} } };

	for (1 .. $self->{consumers})
	{
		my $way = $ways[ ($_ - 1) % @ways ];

		$self->{consumer}{"$way$_"} = $way{$way};
	}
	$self->{consumer}{naive} = $way{naive} if !$published;
	my @names = sort keys %{ $self->{consumer} };

	$self->start($_) for @names;
	$self->begin('long', sub { $self->write_long }) if $published;
	$self->begin_writers(1 .. $self->{writers});
	$self->begin('disturber', sub { $self->disturb });
	$self->begin('killer', sub { $self->kill_workers }) if $published;

	$self->seed('killer of consumers', 0);
	$self->kill_one(0.8, @names)
	  while ($self->running('^writer') || !$self->enough) && $self->goes_on;

	# All short transactions have ended; then the long ones do.  Nothing is
	# written after that, and all must be delivered all the same.
	$self->say('short_written');
	$self->await_end('^long$');
	$self->say('written');
	$self->await_end('^(disturber|killer)$');
	if ($self->goes_on)
	{
		$node->poll_query_until('postgres', $published ? <<'SQL' : 'SELECT count(*) = 0 FROM feedpub.blockers')
SELECT count(*) = 0 FROM outbox WHERE NOT pg_visible_in_snapshot(feed_xid,
	(SELECT snapshot FROM feedpub._batch ORDER BY sync_id DESC LIMIT 1))
SQL
		  or $self->failed('not all rows can be read');
		$node->wait_for_replay_catchup($self->{standby}) if $self->{standby};
	}
	return $self->end_run;
}

#
# What came of it
#

# Reads the writers' logs.  Returns the tokens of committed rows, of
# rolled-back ones, and the transactions of each kind.
sub outcome
{
	my ($class, $dir, $writers, $there) = @_;
	my (%committed, %aborted, %kinds);

	for my $number ('long', 1 .. $writers)
	{
		my %seen;

		next if !-e "$dir/writer$number.log" && $number eq 'long';
		open my $fh, '<', "$dir/writer$number.log" or die;
		while (<$fh>)
		{
			my ($fate, $kind, @tokens) = split;

			FeedpubChecker::sort_out($fate, $there, \%committed, \%aborted,
				@tokens);
			my ($transaction) = ($tokens[0] // '') =~ /^(.*)\./ or next;
			$kinds{$kind}++ if !$seen{$transaction}++;
		}
		close $fh;
	}
	return (\%committed, \%aborted, \%kinds);
}

1;
