# FeedpubFailover.pm: the clients of test/failover, each a process of its own.
#
# They connect by libpq's list of servers, in random order, and ask for one
# that takes writes, or for a standby.  Whatever happens to a connection, the
# client makes another.  A server that is stopped answers nothing and closes
# nothing, so each statement has a limit.
#
# The parent tells in the file "phase" what is to be done, with the number of
# the round: "load"; "rest", in which the table feed is not changed; "quiet", in
# which writers stop and report; "settle", in which consumers read up to the end
# and report; "stop".  A report is the file
# NAME.ROUND.  After each round everything that came before is forgotten.
#
# What is written has an id, WRITER.LIFE.N, that is never used again.  A life
# ends with its connection: an answer that was lost may belong to a transaction
# that commits later.  Within a life, N is the order of the commits.
package FeedpubFailover;

use strict;
use warnings FATAL => 'all';

use DBI;
use DBD::Pg qw(:async);
use List::Util qw(shuffle);
use POSIX ();
use Storable ();
use Time::HiRes ();

our $limit = 10;    # seconds for a statement

# options: dir, ports, seed
sub new
{
	my ($class, %options) = @_;

	return bless { %options, number => 0 }, $class;
}

sub schema
{
	return <<'SQL';
CREATE EXTENSION feedpub;
SELECT feed_create('outbox');
CREATE TABLE kv (k int PRIMARY KEY, v text NOT NULL);
INSERT INTO kv SELECT k, '0.0.' || k FROM generate_series(1, 400) k;
SELECT feed_attach('kv');
CREATE TABLE kv_log (id text NOT NULL, xid xid8 NOT NULL DEFAULT pg_current_xact_id(), k int NOT NULL, op text NOT NULL);
CREATE TABLE effect (id text NOT NULL, consumer text NOT NULL);
SELECT feed_subscribe('group', 'outbox', 'earliest', shards => 4, lease => '5 s');
SQL
}

#
# What all have
#

sub spawn
{
	my ($self, $client) = @_;
	my $number = ++$self->{number};
	my $pid = fork;

	die "could not fork: $!" if !defined $pid;
	return $pid if $pid;
	@$self{qw(name number parent)} = ($client->{name}, $number, getppid());
	srand($self->{seed} * 1000 + $number);
	$SIG{PIPE} = 'IGNORE';
	my $method = $client->{method};
	my $ok = eval { $self->$method($client); 1 };
	$self->complain($@) if !$ok;
	POSIX::_exit($ok ? 0 : 1);
}

sub complain
{
	my ($self, $error) = @_;

	if (open my $fh, '>>', "$self->{dir}/errors")
	{
		print $fh "$self->{name}: $error\n";
		close $fh;
	}
	return;
}

# Ends with the parent.
sub phase
{
	my ($self) = @_;

	open my $fh, '<', "$self->{dir}/phase" or die "phase: $!";
	my ($phase, $round, $set_back) = split ' ', scalar <$fh>;
	$phase = 'stop' if getppid() != $self->{parent};
	return ($phase, $round, $set_back);
}

sub report
{
	my ($self, $round, $data) = @_;
	my $file = "$self->{dir}/$self->{name}.$round";

	Storable::nstore($data, "$file.new");
	rename "$file.new", $file or die "$file: $!";
	$self->{reported} = $round;
	return;
}

sub pause
{
	my ($seconds) = @_;

	Time::HiRes::sleep(rand(2 * $seconds));
	return;
}

sub connection
{
	my ($self, $attributes) = @_;

	return $self->{dbh} if $self->{dbh};
	my @ports = shuffle @{ $self->{ports} };

	$self->{life}++;
	return $self->{dbh} = DBI->connect(
		'dbi:Pg:dbname=postgres;host=' . join(',', ('127.0.0.1') x @ports)
		  . ';port=' . join(',', @ports)
		  . ";target_session_attrs=$attributes;connect_timeout=3;application_name=$self->{name}",
		'postgres', '',
		{ RaiseError => 1, PrintError => 0, Warn => 0, AutoInactiveDestroy => 1, pg_server_prepare => 0 });
}

sub disconnect
{
	my ($self) = @_;
	my $dbh = delete $self->{dbh} or return;
	local $SIG{__WARN__} = sub { };

	# else libpq would wait for an answer
	if ($dbh->{pg_socket} >= 0 && open my $socket, '+<&', $dbh->{pg_socket})
	{
		shutdown $socket, 2;
	}
	delete $self->{sth};
	eval { $dbh->disconnect };
	return;
}

# Runs a statement and returns its rows.
sub run
{
	my ($self, $sql, @values) = @_;
	my $dbh = $self->{dbh};
	my $end = Time::HiRes::time() + $limit;
	my $sth = $self->{sth} = $dbh->prepare($sql, { pg_async => PG_ASYNC });

	$sth->execute(@values);
	until ($dbh->pg_ready)
	{
		my $left = $end - Time::HiRes::time();
		my $bits = '';

		die "no answer\n" if $left <= 0 || $dbh->{pg_socket} < 0;
		vec($bits, $dbh->{pg_socket}, 1) = 1;
		select $bits, undef, undef, $left;
	}
	$dbh->pg_result;
	return $sth->{NUM_OF_FIELDS} ? $sth->fetchall_arrayref : [];
}

# Runs code that uses the connection.  Undefined, or the SQLSTATE of what went
# wrong, "lost" if the connection did.  What is expected: a server that goes,
# comes, has become a standby, or takes back what a standby's reader looks at;
# writers that meet.
sub attempt
{
	my ($self, $attributes, $code) = @_;
	my $state;

	return if eval {
		$self->connection($attributes);
		$code->();
		1;
	};
	my $error = $@;
	$state = $DBI::state // '' if $error !~ /^no answer/;
	if ($error =~ /^no answer/ || !$self->{dbh} || $state =~ /^(?:08|57P0|S|22000|00000|$)/
		|| $error =~ /server closed the connection|terminating connection|could not receive data/)
	{
		$state = 'lost';
	}
	elsif ($state !~ /^(?:PF00[1-5]|40001|40P01|23505|53300|25006)$/)
	{
		$self->complain("$state $error");
	}
	if ($state eq 'lost' || $state eq '25006' || !eval { $self->run('ROLLBACK'); 1 })
	{
		$self->disconnect;
		Time::HiRes::sleep(0.1);
	}
	return $state;
}

#
# Writers
#

sub writer
{
	my ($self, $client) = @_;
	my (@acknowledged, $n);
	my $life = 0;

	while (1)
	{
		my ($phase, $round) = $self->phase;

		last if $phase eq 'stop';
		if ($phase ne 'load' && ($phase ne 'rest' || $client->{feed} eq 'kv'))
		{
			$self->report($round, [@acknowledged]), @acknowledged = ()
			  if $phase ne 'rest' && ($self->{reported} // -1) != $round;
			Time::HiRes::sleep(0.02);
			next;
		}
		my @ids;
		my $statement = $client->{feed} eq 'kv' ? \&change_kv : \&insert_messages;
		my $commits = rand() < 0.97;
		my $failed = $self->attempt('read-write', sub {
			$n = 0, $life = $self->{life} if $life != $self->{life};
			$self->run('BEGIN');
			@ids = $statement->($self, "$self->{number}.$life", \$n);
			pause(0.05) if rand() < 0.1;
			$self->run($commits ? 'COMMIT' : 'ROLLBACK');
		});
		push @acknowledged, @ids if !$failed && $commits;
		pause($client->{feed} eq 'kv' ? 0.02 : 0.03);
	}
	$self->disconnect;
	return;
}

sub insert_messages
{
	my ($self, $life, $n) = @_;
	my @ids;

	for (1 .. 1 + int rand 2)
	{
		my @some = map { "$life." . ++$$n } 1 .. 1 + int rand 3;

		$self->run(<<'SQL', '{' . join(',', @some) . '}');
INSERT INTO outbox (message_type, message_key, data)
SELECT 'written', 'key ' || (random() * 50)::int, jsonb_build_object('id', id) FROM unnest(?::text[]) AS u (id)
SQL
		push @ids, @some;
	}
	return @ids;
}

# Keys come in order, so writers do not wait for each other in a circle.
sub change_kv
{
	my ($self, $life, $n) = @_;
	my @ids;

	for my $k (sort { $a <=> $b } map { 1 + int rand 500 } 1 .. 1 + int rand 6)
	{
		my $id = "$life." . ++$$n;
		my $done = $self->run(rand() < 0.25 ? <<'DELETE' : <<'UPSERT', $k, $id);
WITH change AS (DELETE FROM kv WHERE k = $1 RETURNING k)
INSERT INTO kv_log (id, k, op) SELECT $2, k, 'delete' FROM change RETURNING k
DELETE
WITH change AS (INSERT INTO kv VALUES ($1, $2) ON CONFLICT (k) DO UPDATE SET v = EXCLUDED.v RETURNING k)
INSERT INTO kv_log (id, k, op) SELECT $2, k, 'upsert' FROM change RETURNING k
UPSERT
		push @ids, $id if @$done;
	}
	return @ids;
}

#
# Consumers.  $self->{told} is what the consumer has been told in the round:
# entries in their order, for the outbox ids, for kv [xid, key, id or undef].
# {refused} has what was told before it had to begin again.
#

sub consumer
{
	my ($self, $client) = @_;
	my $read = "read_$client->{by}";
	my $every = $client->{every} // 1;

	@$self{qw(max_rows cursor told refused copy)} = ($client->{max_rows}, '', [], [], {});
	@$self{qw(pages back expired)} = (0, 0, 0);
	while (1)
	{
		my ($phase, $round, $set_back) = $self->phase;
		my $settles = $phase eq 'settle' && $round % $every == 0;

		last if $phase eq 'stop';
		if (($self->{reported} // -1) == $round || $phase eq 'settle' && !$settles)
		{
			Time::HiRes::sleep(0.02);
			next;
		}
		if ($settles)
		{
			# at the end everyone reads where everything is
			$self->disconnect if $client->{from} ne 'read-write';
			if ($client->{by} eq 'fetch' && $set_back)
			{
				push @{ $self->{refused} }, { told => $self->{told}, set_back => 1 };
				@$self{qw(cursor told)} = ($self->{before} // '', []);
			}
			next if !$self->settle($read);
			$self->{before} = $self->{cursor};
			$self->report($round, { map { $_ => $self->{$_} } qw(told refused copy pages back expired) });
			@$self{qw(told refused)} = ([], []);
			@$self{qw(pages back expired)} = (0, 0, 0);
			$self->disconnect if $client->{from} ne 'read-write';
			next;
		}
		my $found = $self->page($read, $client->{from});

		# sometimes it is late, sometimes it goes to another server
		pause($client->{pause} // ($found ? 0.02 : 0.05));
		pause(0.5) if rand() < 0.01;
		$self->disconnect if $client->{from} ne 'read-write' && rand() < 0.01;
	}
	$self->disconnect;
	return;
}

# Up to the end, which stays where it is.
sub settle
{
	my ($self, $read) = @_;

	while (1)
	{
		my $more = $self->page($read, 'read-write');

		return 1 if defined $more && !$more;
		my ($phase) = $self->phase;
		return 0 if $phase ne 'settle';
	}
}

# Whether there may be more; undefined if that is not known.
sub page
{
	my ($self, $read, $from) = @_;
	my $more;
	my $failed = $self->attempt($from, sub { $more = $self->$read });

	$self->{pages}++;
	return $more if !$failed;
	return undef if $failed !~ /^PF00[12]$/;
	$self->{expired}++ if $failed eq 'PF002';
	push @{ $self->{refused} }, { told => $self->{told} };
	@$self{qw(cursor told copy)} = ('', [], {});
	return 1;
}

sub read_read
{
	my ($self) = @_;
	my $rows = $self->run(
		q(SELECT cursor, op, (entry).data ->> 'id' FROM feed_read(NULL::outbox, ?::text, ?::int)),
		$self->{cursor}, $self->{max_rows});

	return 0 if !@$rows;
	$self->move($rows->[-1][0]);
	push @{ $self->{told} }, map { $_->[2] } grep { $_->[1] ne 'end' } @$rows;
	return 1;
}

sub read_page
{
	my ($self) = @_;
	my ($entries, $more) = $self->json_page('outbox', q(e -> 'row' -> 'data' ->> 'id'));

	push @{ $self->{told} }, map { $_->[3] } @$entries;
	return $more;
}

sub read_kv
{
	my ($self) = @_;
	my ($entries, $more) = $self->json_page('kv', q(e -> 'row' ->> 'v'));

	for (@$entries)
	{
		my ($op, $xid, $k, $v) = @$_;

		push @{ $self->{told} }, [ $xid, $k, $v ];
		if ($op eq 'upsert') { $self->{copy}{$k} = $v; }
		elsif ($op eq 'delete') { delete $self->{copy}{$k}; }
		else { die "an entry with op $op"; }
	}
	return $more;
}

sub json_page
{
	my ($self, $feed, $value) = @_;
	my $rows = $self->run(<<"SQL", $self->{cursor}, $self->{max_rows});
WITH page AS MATERIALIZED (SELECT feed_page('$feed', ?::text, ?::int) AS p)
SELECT n, p ->> 'cursor', p ->> 'more', NULL, NULL FROM page, (VALUES (0)) AS zero (n)
UNION ALL
SELECT n, e ->> 'op', e ->> 'xid', e -> 'key' ->> 'k', $value
FROM page, json_array_elements(p -> 'entries') WITH ORDINALITY AS x (e, n)
ORDER BY 1
SQL
	my (undef, $cursor, $more) = @{ shift @$rows };

	$self->move($cursor);
	return ([ map { [ @$_[ 1 .. $#$_ ] ] } @$rows ], $more eq 'true' || @$rows > 0);
}

# The position, without the rest of the cursor.
sub move
{
	my ($self, $cursor) = @_;

	$self->{back}++ if substr($cursor, 0, 25) lt substr($self->{cursor}, 0, 25);
	$self->{cursor} = $cursor;
	return;
}

sub read_fetch
{
	my ($self) = @_;
	my ($xid, $pos) = split / /, $self->{cursor} || '0 0';
	my $rows = $self->run(
		q(SELECT feed_xid, feed_pos, data ->> 'id' FROM feed_fetch(?::xid8, ?::bigint, ?::int)),
		$xid, $pos, $self->{max_rows});

	return 0 if !@$rows;
	$self->{cursor} = "$rows->[-1][0] $rows->[-1][1]";
	push @{ $self->{told} }, map { $_->[2] } @$rows;
	return 1;
}

#
# A member of the group.  Its effect is a row, in the transaction of the
# acknowledgement.
#

sub member
{
	my ($self, $client) = @_;

	while (($self->phase)[0] ne 'stop')
	{
		my $found = 0;

		$self->attempt('read-write', sub {
			my $first = rand() < 0.5;

			$self->run('BEGIN') if $first;
			my $page = $self->run(
				q(SELECT receipt, attempt, row -> 'data' ->> 'id' FROM feed_poll('group', ?::int, ?::text, '100 ms')),
				1 + int rand 50, $self->{name});
			$self->run('BEGIN') if !$first;
			my $done;
			for (@$page)
			{
				my ($receipt, $attempt, $id) = @$_;

				last if defined $done && rand() < 0.01;
				$done = $receipt;
				if ($attempt < 3 && rand() < 0.01)
				{
					$self->run(q(SELECT feed_nack('group', ?, delay => '100 ms')), $receipt);
					next;
				}
				$self->run('INSERT INTO effect VALUES (?, ?)', $id, $self->{name});
			}
			$self->run(q(SELECT feed_ack('group', ?)), $done) if defined $done;
			$self->run(rand() < 0.02 ? 'ROLLBACK' : 'COMMIT');
			$found = @$page;
		});
		pause(0.02) if !$found;
	}
	$self->disconnect;
	return;
}

1;
