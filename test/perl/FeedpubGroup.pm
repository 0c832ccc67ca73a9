# FeedpubGroup.pm: a group of consumers of one subscription, each a process of
# its own, through pgbouncer in transaction mode.
#
# What a consumer does for a message is one row of table effect, in the
# transaction in which it acknowledges: sometimes the one in which it has
# polled, sometimes a later one.  Of some messages it says at first that it
# cannot deal with them.  Whatever error it meets it goes on with a new
# connection, as one that was killed does under its old name.
package FeedpubGroup;

use strict;
use warnings FATAL => 'all';

use DBI;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Time::HiRes ();

# options: node, dir, subscription, page, seed
sub new
{
	my ($class, %options) = @_;

	return bless { %options, lives => 0 }, $class;
}

# Starts pgbouncer before the node.  Fewer connections than consumers, so that
# each transaction of one may be in another session.
sub start_pgbouncer
{
	my ($self, $binary) = @_;
	my $node = $self->{node};

	$self->{port} = PostgreSQL::Test::Cluster::get_free_port();
	open my $ini, '>', "$self->{dir}/pgbouncer.ini" or die "pgbouncer.ini: $!";
	print $ini <<"INI";
[databases]
postgres = host=@{[ $node->host ]} port=@{[ $node->port ]} dbname=postgres user=regress_feedpub_consumer
[pgbouncer]
pool_mode = transaction
default_pool_size = 6
max_client_conn = 100
auth_type = any
listen_addr =
listen_port = $self->{port}
unix_socket_dir = @{[ $node->host ]}
logfile = $self->{dir}/pgbouncer.log
pidfile = $self->{dir}/pgbouncer.pid
server_login_retry = 0.2
ignore_startup_parameters = extra_float_digits,application_name
INI
	close $ini or die "pgbouncer.ini: $!";
	$self->{pgbouncer} = IPC::Run::start([ $binary, '-q', "$self->{dir}/pgbouncer.ini" ],
		'>', "$self->{dir}/pgbouncer.out", '2>&1');
	for (1 .. 300)
	{
		my $dbh = eval { $self->connect };

		if ($dbh)
		{
			$dbh->disconnect;
			return;
		}
		Time::HiRes::sleep(0.1);
	}
	die 'could not connect to pgbouncer: '
	  . PostgreSQL::Test::Utils::slurp_file("$self->{dir}/pgbouncer.log");
}

sub stop_pgbouncer
{
	my ($self) = @_;

	return if !$self->{pgbouncer};
	$self->{pgbouncer}->kill_kill;
	delete $self->{pgbouncer};
	return;
}

sub connect
{
	my ($self) = @_;

	return DBI->connect(
		'dbi:Pg:dbname=postgres;host=' . $self->{node}->host . ";port=$self->{port}",
		'regress_feedpub_consumer', '',
		{
			AutoCommit => 1,
			AutoInactiveDestroy => 1,
			PrintError => 0,
			PrintWarn => 0,
			RaiseError => 1,
			pg_server_prepare => 0
		});
}

# Starts a consumer and returns its pid.
sub spawn
{
	my ($self, $name) = @_;
	my $life = ++$self->{lives};
	my $pid = fork;

	die "could not fork: $!" if !defined $pid;
	return $pid if $pid;

	srand($self->{seed} * 1000 + $life);
	my $ok = eval { $self->consume($name); 1 };
	if (!$ok && open my $fh, '>>', "$self->{dir}/$name.err")
	{
		print $fh $@;
		close $fh;
	}
	POSIX::_exit($ok ? 0 : 1);
}

# What goes wrong in a consumer's life: its connection, a lease that another
# one has taken, serialization in higher isolation, the server's start and end.
sub is_expected
{
	my ($state) = @_;

	return $state =~ /^(?:08...|57P0[123]|PF003|PF005|40001|55000|25006|S....|22000)$/ || $state eq '';
}

sub consume
{
	my ($self, $name) = @_;
	my $dbh;

	while (!-e "$self->{dir}/stop")
	{
		my $ok = eval {
			$dbh //= $self->connect;
			$dbh->do('SET synchronous_commit = ' . (rand() < 0.5 ? 'on' : 'off'))
			  if rand() < 0.05;
			$self->consume_page($dbh, $name);
			1;
		};
		if (!$ok)
		{
			my $error = $@;
			my $state = $DBI::state // '';

			die "$state: $error"
			  if !is_expected($state) && $error !~ /pgbouncer|server closed|could not connect|connection to server/;
			eval { $dbh->disconnect } if $dbh;
			undef $dbh;
			Time::HiRes::sleep(0.1);
		}
	}
	eval { $dbh->do('SELECT feed_leave(?, ?)', undef, $self->{subscription}, $name) }
	  if $dbh && rand() < 0.5;
	return;
}

# One page.
sub consume_page
{
	my ($self, $dbh, $name) = @_;
	my $one_transaction = rand() < 0.5;
	my ($page, $done);

	$dbh->begin_work if $one_transaction;
	$dbh->do('SET TRANSACTION ISOLATION LEVEL REPEATABLE READ')
	  if $one_transaction && rand() < 0.1;
	$page = $dbh->selectall_arrayref(<<'SQL', undef, $self->{subscription}, 1 + int rand $self->{page}, $name);
SELECT receipt, attempt, row ->> 'message_type', row ->> 'message_key', row ->> 'data'
FROM feed_poll(?, ?, ?, '100 ms')
SQL
	Time::HiRes::sleep(rand 0.05) if rand() < 0.2;
	$dbh->begin_work if !$one_transaction;

	# a part of the page now and then; a lease may run out in the middle
	for my $row (@$page)
	{
		my ($receipt, $attempt, $type, $key, $data) = @$row;

		# messages of kind "poison" can be dealt with at the third attempt
		$done = $receipt;
		if ($type ne 'plain' && $attempt < 3)
		{
			$dbh->selectrow_array('SELECT feed_nack(?, ?, ?, ?)', undef,
				$self->{subscription}, $receipt, $name, '100 ms');
			next;
		}
		$dbh->do('INSERT INTO effect (consumer, kind, key, data) VALUES (?, ?, ?, ?)',
			undef, $name, $type, $key, $data);
		last if rand() < 0.001;
	}
	Time::HiRes::sleep(2.5) if @$page && rand() < 0.01;
	$dbh->selectrow_array('SELECT feed_ack(?, ?)', undef, $self->{subscription}, $done)
	  if $done;
	if (rand() < 0.02)
	{
		$dbh->rollback;
	}
	else
	{
		$dbh->commit;
	}
	return;
}

1;
