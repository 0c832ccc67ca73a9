# FeedpubPatroni.pm: three servers under Patroni, and the etcd that it needs,
# on this machine, below one directory.
#
#   new(dir => DIR, bindir => DIR)   makes it; start, end
#   leader()             the name of the primary, or undef
#   is_healthy(MODE)     whether all three follow one primary, and in mode
#                        "synchronous" one of them is a synchronous standby
#   set_mode(MODE)       asynchronous or synchronous
#   lag(NODE), kill_all(NODE), kill_postmaster(NODE), freeze(NODE), thaw(NODE),
#   switch_over(FROM, TO), rejoin(NODE)    what is done to them
#   wait_until(SECONDS, WHAT, CODE)        waits for a condition, or dies
#
# The caller becomes the parent of all orphans below it, so that a postmaster
# that has been killed is gone, and no zombie.
package FeedpubPatroni;

use strict;
use warnings FATAL => 'all';

use DBI;
use HTTP::Tiny;
use IO::Socket::INET;
use JSON::PP ();
use POSIX ();
use Time::HiRes ();

# How often Patroni looks, and how long a leader may be silent.  A crash of the
# server is answered by a failover at once.
my %settings = (
	ttl => 20,
	loop_wait => 1,
	retry_timeout => 3,
	maximum_lag_on_failover => 1024 * 1024 * 1024,
	primary_start_timeout => 0);

sub new
{
	my ($class, %options) = @_;
	my $self = bless { %options, pid => {}, frozen => {}, clients => [] }, $class;
	my @ports = free_ports(8);

	$self->{nodes} = [ map { "node$_" } 1 .. 3 ];
	$self->{port}{$_} = shift @ports for @{ $self->{nodes} };
	$self->{rest}{$_} = shift @ports for @{ $self->{nodes} };
	@$self{qw(etcd_port peer_port)} = @ports;
	$self->{http} = HTTP::Tiny->new(timeout => 3);
	return $self;
}

# All are held until the last one is chosen.
sub free_ports
{
	my ($n) = @_;
	my @sockets = map {
		IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 1)
		  or die "no free port: $!"
	} 1 .. $n;

	return map { $_->sockport } @sockets;
}

sub wait_until
{
	my ($seconds, $what, $code) = @_;
	my $end = Time::HiRes::time() + $seconds;

	while (1)
	{
		my $result = $code->();

		return $result if $result;
		die "$what did not come about in $seconds s\n" if Time::HiRes::time() > $end;
		Time::HiRes::sleep(0.1);
	}
}

#
# Processes
#

# Starts a program in a directory of its own, its output in a file there.
sub spawn
{
	my ($self, $name, @command) = @_;
	my $dir = "$self->{dir}/$name";
	my $pid = fork;

	die "could not fork: $!" if !defined $pid;
	return $self->{pid}{$name} = $pid if $pid;
	chdir $dir or POSIX::_exit(1);
	POSIX::setsid();
	open STDIN, '<', '/dev/null' or POSIX::_exit(1);
	open STDOUT, '>>', "$dir/output.log" or POSIX::_exit(1);
	open STDERR, '>&', \*STDOUT or POSIX::_exit(1);
	{ no warnings; exec @command; }
	POSIX::_exit(1);
}

# Orphans become children of this process.  What has no such call has an init
# process that does as much.
sub adopt_orphans
{
	no warnings;
	eval {
		require 'syscall.ph';
		syscall(&SYS_prctl, 36, 1, 0, 0, 0);    # PR_SET_CHILD_SUBREAPER
	};
	return;
}

# Takes note of orphans that have ended; clients are not waited for here.
sub reap
{
	my ($self) = @_;

	for my $stat (glob '/proc/[0-9]*/stat')
	{
		my ($pid, $state, $parent) = process($stat) or next;

		next if $parent != $$ || $state ne 'Z';
		next if grep { $_ == $pid } @{ $self->{clients} };
		waitpid $pid, POSIX::WNOHANG();
	}
	return;
}

sub process
{
	my ($stat) = @_;

	open my $fh, '<', $stat or return;
	my $line = <$fh> // return;
	return $line =~ /^(\d+) \(.*\) (\S) (\d+)/s;
}

sub postmaster
{
	my ($self, $node) = @_;

	open my $fh, '<', "$self->{dir}/$node/data/postmaster.pid" or return;
	my $pid = <$fh> // return;
	return $pid =~ /^(\d+)/ ? $1 : undef;
}

# The postmaster and its children.
sub server_pids
{
	my ($self, $node) = @_;
	my $postmaster = $self->postmaster($node) or die "$node has no postmaster\n";
	my @pids = ($postmaster);

	for my $stat (glob '/proc/[0-9]*/stat')
	{
		my ($pid, undef, $parent) = process($stat) or next;

		push @pids, $pid if $parent == $postmaster;
	}
	return @pids;
}

sub command_line
{
	my ($pid) = @_;

	open my $fh, '<', "/proc/$pid/cmdline" or return '';
	local $/ = undef;
	return <$fh> // '';
}

#
# Beginning and end
#

# Patroni talks to etcd by its API of version 2.  With that of version 3, the
# one of Debian 12 (3.0.2) overwrites the leader's key of another one if it was
# stopped in the middle of its loop: it makes a new lease, and does not compare.
sub start
{
	my ($self) = @_;

	adopt_orphans();
	mkdir "$self->{dir}/$_" for 'etcd', @{ $self->{nodes} };
	my $client = "http://127.0.0.1:$self->{etcd_port}";
	my $peer = "http://127.0.0.1:$self->{peer_port}";
	$self->spawn('etcd', 'etcd', '--enable-v2', '--name', 'etcd', '--data-dir', 'data',
		'--listen-client-urls', $client, '--advertise-client-urls', $client,
		'--listen-peer-urls', $peer, '--initial-advertise-peer-urls', $peer,
		'--initial-cluster', "etcd=$peer");
	wait_until(30, 'a start of etcd',
		sub { $self->{http}->get("$client/health")->{success} });
	$self->write_config($_) for @{ $self->{nodes} };
	for (@{ $self->{nodes} })
	{
		$self->rejoin($_);
		wait_until(60, 'a first server', sub { $self->leader });
	}
	wait_until(120, 'a cluster of three', sub { $self->is_healthy('asynchronous') });
	return;
}

# JSON is YAML.
sub write_config
{
	my ($self, $node) = @_;
	my $dir = "$self->{dir}/$node";
	my $address = "127.0.0.1:$self->{port}{$node}";

	mkdir "$dir/socket";
	write_file("$dir/patroni.yml", JSON::PP->new->canonical->pretty->encode({
		scope => 'feedpub',
		name => $node,
		restapi => { listen => "127.0.0.1:$self->{rest}{$node}",
			connect_address => "127.0.0.1:$self->{rest}{$node}" },
		etcd => { host => "127.0.0.1:$self->{etcd_port}" },
		log => { dir => $dir, file_num => 1, file_size => 100_000_000 },
		bootstrap => {
			dcs => {
				%settings,
				postgresql => {
					use_pg_rewind => JSON::PP::true,
					use_slots => JSON::PP::true,
					parameters => {
						shared_preload_libraries => 'feedpub',
						shared_buffers => '64MB',
						max_connections => 100,
						wal_keep_size => '256MB',
						wal_retrieve_retry_interval => '100ms',
						hot_standby_feedback => 'on',
						'feedpub.max_batch_transactions' => 20
					}
				}
			},
			initdb => [ { encoding => 'UTF8' }, 'no-locale' ],
			pg_hba => [ 'local all all trust', 'host all all 127.0.0.1/32 trust',
				'host replication all 127.0.0.1/32 trust' ]
		},
		postgresql => {
			listen => $address,
			connect_address => $address,
			data_dir => "$dir/data",
			bin_dir => $self->{bindir},
			pgpass => "$dir/pgpass",
			# with trust the passwords are not looked at
			authentication => {
				superuser => { username => 'postgres', password => 'none' },
				replication => { username => 'replicator', password => 'none' },
				rewind => { username => 'rewinder', password => 'none' }
			},
			parameters => { unix_socket_directories => "$dir/socket" }
		}
	}));
	return;
}

sub write_file
{
	my ($file, $text) = @_;

	open my $fh, '>', $file or die "$file: $!";
	print $fh $text;
	close $fh or die "$file: $!";
	return;
}

sub rejoin
{
	my ($self, $node) = @_;

	$self->spawn($node, 'patroni', "$self->{dir}/$node/patroni.yml");
	return;
}

# Ends everything below the directory: Patroni first, which would start a
# server again.
sub end
{
	my ($self) = @_;
	my @pids = grep { defined } delete @{ $self->{pid} }{ @{ $self->{nodes} }, 'etcd' };

	for my $node (@{ $self->{nodes} })
	{
		push @pids, eval { $self->server_pids($node) };
	}
	kill 'KILL', @pids if @pids;
	$self->reap while kill(0, grep { defined } @pids) && Time::HiRes::sleep(0.05);
	return;
}

#
# What it is like
#

sub members
{
	my ($self) = @_;

	for my $node (grep { $self->{pid}{$_} && !$self->{frozen}{$_} } @{ $self->{nodes} })
	{
		my $response = $self->{http}->get("http://127.0.0.1:$self->{rest}{$node}/cluster");

		return @{ JSON::PP::decode_json($response->{content})->{members} // [] }
		  if $response->{success};
	}
	return;
}

# The name of the primary.  Patroni tells it before the server is one.
sub leader
{
	my ($self) = @_;

	$self->reap;
	for my $member ($self->members)
	{
		my $node = $member->{name};

		next if $member->{role} ne 'leader' || $self->{frozen}{$node} || !$self->{pid}{$node};
		return $node
		  if $self->{http}->get("http://127.0.0.1:$self->{rest}{$node}/primary")->{success};
	}
	return;
}

sub connect
{
	my ($self, $node) = @_;

	return DBI->connect(
		"dbi:Pg:dbname=postgres;host=127.0.0.1;port=$self->{port}{$node};connect_timeout=3",
		'postgres', '', { RaiseError => 1, PrintError => 0, PrintWarn => 0 });
}

sub is_healthy
{
	my ($self, $mode) = @_;
	my $leader = $self->leader or return;
	my @members = grep { $_->{state} =~ /^(?:running|streaming)$/ } $self->members;

	return if @members != 3;
	return if ($mode eq 'synchronous') != (grep { $_->{role} eq 'sync_standby' } @members);
	return eval {
		my $dbh = $self->connect($leader);
		my ($following, $synchronous, $names) = $dbh->selectrow_array(<<'SQL');
SELECT count(*), count(*) FILTER (WHERE sync_state IN ('sync', 'quorum')),
	current_setting('synchronous_standby_names')
FROM pg_stat_replication WHERE state = 'streaming' AND NOT pg_is_in_recovery()
SQL

		$dbh->disconnect;
		$following == 2
		  && ($mode eq 'synchronous'
			? $synchronous == 1 && $names ne '*'
			: $names eq '');
	};
}

sub set_mode
{
	my ($self, $mode) = @_;
	my $value = $mode eq 'synchronous' ? JSON::PP::true : JSON::PP::false;
	my $response = $self->{http}->request('PATCH',
		'http://127.0.0.1:' . $self->{rest}{ $self->leader } . '/config',
		{ content => JSON::PP::encode_json({ synchronous_mode => $value, synchronous_mode_strict => $value }) });

	die "could not set the mode: $response->{content}\n" if !$response->{success};
	wait_until(60, "mode $mode", sub { $self->is_healthy($mode) });
	return;
}

# How often a server has come back, by what Patroni says: pg_rewind, and a new
# copy in place of it.
sub rejoined
{
	my ($self) = @_;
	my %count = (rewound => 0, rewind_failed => 0, copied => 0);

	for my $node (@{ $self->{nodes} })
	{
		open my $fh, '<', "$self->{dir}/$node/patroni.log" or next;
		while (<$fh>)
		{
			$count{rewound}++ if /pg_rewind exit code=0/;
			$count{rewind_failed}++ if /pg_rewind exit code=[1-9]/;
			$count{copied}++ if /replica has been created/;
		}
	}
	return \%count;
}

# For a run that ended: what the cluster is like, and what its clients wait for.
sub diagnosis
{
	my ($self) = @_;
	my $text = "primary: @{[ $self->leader // 'none' ]}; members:\n";

	for my $member ($self->members)
	{
		$text .= join(' ', map { "$_=$member->{$_}" } sort keys %$member) . "\n";
	}
	for my $node (@{ $self->{nodes} })
	{
		my $rows = eval {
			my $dbh = $self->connect($node);

			$dbh->do(q(SET statement_timeout = '10 s'));
			$dbh->selectcol_arrayref(<<'SQL');
SELECT concat_ws(' ', 'recovery', pg_is_in_recovery(), current_setting('synchronous_standby_names'))
UNION ALL
SELECT concat_ws(' ', 'standby', application_name, state, sync_state, sent_lsn, flush_lsn, replay_lsn) FROM pg_stat_replication
UNION ALL
SELECT concat_ws(' ', application_name, backend_type, state, wait_event, now() - query_start, left(query, 60)) FROM pg_stat_activity
SQL
		};

		$text .= "== $node\n" . ($rows ? join("\n", @$rows) : $@) . "\n"
		  if !$self->{frozen}{$node};
	}
	return $text;
}

#
# What is done to it
#

sub walsenders
{
	my ($self, $node) = @_;

	return grep { command_line($_) =~ /walsender/ } $self->server_pids($node);
}

# What the primary writes from now on does not reach the others.
sub lag
{
	my ($self, $node) = @_;

	kill 'STOP', $self->walsenders($node);
	return;
}

sub kill_patroni
{
	my ($self, $node) = @_;
	my $pid = delete $self->{pid}{$node};

	kill 'KILL', $pid;
	waitpid $pid, 0;
	return;
}

sub kill_all
{
	my ($self, $node) = @_;
	my @pids = $self->server_pids($node);

	$self->kill_patroni($node);
	kill 'KILL', @pids;
	return;
}

# The server's other processes end by themselves, unless they are stopped.
sub kill_postmaster
{
	my ($self, $node) = @_;

	kill 'KILL', $self->postmaster($node), $self->walsenders($node);
	return;
}

sub freeze
{
	my ($self, $node) = @_;
	my $postmaster = $self->postmaster($node);

	$self->{frozen}{$node} = 1;
	kill 'STOP', $self->{pid}{$node}, $postmaster;
	kill 'STOP', $self->server_pids($node);
	return;
}

# The server first: for a moment there are two that take writes.
sub thaw
{
	my ($self, $node, $pause) = @_;

	kill 'CONT', $self->server_pids($node);
	Time::HiRes::sleep($pause);
	kill 'CONT', $self->{pid}{$node};
	delete $self->{frozen}{$node};
	return;
}

sub switch_over
{
	my ($self, $from, $to) = @_;
	my $output = `patronictl -c '$self->{dir}/$from/patroni.yml' switchover --leader $from --candidate $to --force feedpub 2>&1 </dev/null`;

	die "patronictl: $output\n" if $? != 0 || $output !~ /Successfully/;
	return;
}

1;
