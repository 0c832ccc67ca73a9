# FeedpubTest.pm: what the TAP tests of feedpub share.
#
#   feedpub_node(NAME, option => value, ...)  a private server that runs
#   sql(NODE, QUERY, ...)       runs a query, returns its unaligned output
#   refused(NODE, QUERY, CODE, PATTERN, TEST)
#                               tests that a query fails with this SQLSTATE
#   is_soon(NODE, CONDITION, TEST)
#                               tests that a condition comes true in time
#   fetch_all(NODE, FEED, ...)  the rows of a feed, read page by page
#   burn_xids(NODE, N)          lets the server assign N transaction ids
#   jump_xid(NODE, XID)         lets it go on with this id, after a restart
#   ends_with_test(PID)         a process that is killed when the test ends
#   end_process(PID, SIGNAL)    ends it now (KILL), and returns its status
#   has_ended(PID)              somebody else has waited for it
#
# Below that, methods which PostgreSQL::Test::Cluster has in newer servers
# and lacks in older ones.
package FeedpubTest;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(feedpub_node sql refused is_soon fetch_all burn_xids
  jump_xid ends_with_test end_process has_ended);

my %processes;

# Makes and starts a server in the C locale and UTF8.  Options: conf, lines
# for postgresql.conf; extension, whether to make it in database postgres
# (default yes); start (default yes); install_path of another server; all
# others are those of Cluster's init().
#
# Nothing but the tests writes: autovacuum is off.
sub feedpub_node
{
	my ($name, %options) = @_;
	my %own = (conf => '', extension => 1, start => 1, install_path => undef);

	$own{$_} = delete $options{$_}
	  for grep { exists $options{$_} } keys %own;

	my $node = PostgreSQL::Test::Cluster->new($name,
		$own{install_path} ? (install_path => $own{install_path}) : ());
	$node->init(extra => [ '--no-locale', '--encoding=UTF8' ], %options);
	$node->append_conf('postgresql.conf', <<"CONF");
autovacuum = off
max_connections = 40
shared_buffers = 16MB
max_prepared_transactions = 20
$own{conf}
CONF
	if ($own{start})
	{
		$node->start;
		sql($node, 'CREATE EXTENSION feedpub') if $own{extension};
	}
	return $node;
}

sub ends_with_test
{
	my ($pid) = @_;
	$processes{$pid} = 1;
	return $pid;
}

sub has_ended
{
	my ($pid) = @_;
	delete $processes{$pid};
	return;
}

sub end_process
{
	my ($pid, $signal) = @_;

	kill $signal // 'KILL', $pid;
	waitpid $pid, 0;
	has_ended($pid);
	return $?;
}

# With the processes of their groups, if they have one.
END
{
	my $status = $?;

	for my $pid (keys %processes)
	{
		kill 'KILL', -$pid;
		end_process($pid);
	}
	$? = $status;
}

# Options: db, a database other than postgres; user.
sub sql
{
	my ($node, $query, %options) = @_;

	return $node->safe_psql($options{db} // 'postgres', $query,
		$options{user} ? (extra_params => [ '-U', $options{user} ]) : ());
}

sub refused
{
	my ($node, $query, $code, $pattern, $test, %options) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my @extra = ('-v', 'VERBOSITY=verbose');

	push @extra, '-U', $options{user} if $options{user};
	my ($status, $stdout, $stderr) = $node->psql($options{db} // 'postgres',
		$query, extra_params => \@extra);
	like($stderr, qr/ERROR:  \Q$code\E: .*$pattern/s, $test);
	return;
}

# For what a server does by itself, in a few seconds or never: that it does not
# is a failed test here, where poll_query_until() alone runs out of time.  So this
# waits two thirds of the time that a poll may take, 120 s by default.
sub is_soon
{
	my ($node, $condition, $test) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $end = time + $PostgreSQL::Test::Utils::timeout_default * 2 / 3;
	my $answer;

	while (1)
	{
		(undef, $answer) = $node->psql('postgres', "SELECT $condition");
		last if $answer eq 't' || time > $end;
		select undef, undef, undef, 0.1;
	}
	is($answer, 't', $test);
	return;
}

# Follows a feed from a cursor to its end, a page at a time, as a consumer
# does.  Returns the rows as psql prints them, a line each.  Options: db;
# user; page, rows a page (default 100); after, the cursor to begin after,
# 'xid|pos'; columns (default *); in, the schema of the extension's functions,
# with the dot.
sub fetch_all
{
	my ($node, $feed, %options) = @_;
	my $cursor = $options{after} // '0|0';
	my $columns = $options{columns} // '*';
	my $in = $options{in} // '';
	my $page = $options{page} // 100;
	my @rows;

	while (1)
	{
		my ($xid, $pos) = split /\|/, $cursor;
		my $out = sql($node,
			"SELECT feed_xid, feed_pos, $columns"
			  . " FROM ${in}feed_fetch(NULL::$feed, '$xid', $pos, $page)",
			%options);
		my @page = split /\n/, $out;

		return join("\n", @rows) if !@page;
		die "a page of more than $page rows" if @page > $page;
		($cursor) = $page[-1] =~ /^(\d+\|\d+)\|/;
		push @rows, map { s/^\d+\|\d+\|//r } @page;
	}
}

sub burn_xids
{
	my ($node, $n, %options) = @_;

	sql($node, <<"SQL", %options);
DO \$\$
BEGIN
	FOR i IN 1..$n LOOP
		PERFORM pg_current_xact_id();
		COMMIT;
	END LOOP;
END \$\$
SQL
	return;
}

# The next transaction gets this id, or a slightly smaller one: the first of a
# file of the commit log.  Whatever is there is frozen before, for ids are
# compared within half of their range.
sub jump_xid
{
	my ($node, $xid) = @_;

	$xid &= ~0xfffff;
	sql($node, 'ALTER DATABASE template0 ALLOW_CONNECTIONS true');
	sql($node, 'VACUUM (FREEZE)', db => $_)
	  for split /\n/, sql($node, 'SELECT datname FROM pg_database WHERE datallowconn');
	sql($node, 'CHECKPOINT');
	$node->stop;

	# 32 pages of four ids a byte
	my $file = sprintf '%s/pg_xact/%04X', $node->data_dir, $xid >> 20;
	open my $segment, '>', $file or die "$file: $!";
	binmode $segment;
	print {$segment} "\0" x (32 * 8192) or die;
	close $segment or die;
	system_or_bail('pg_resetwal', '-x', $xid, '-u', $xid - 1000, $node->data_dir);
	$node->start;
	return;
}

package PostgreSQL::Test::Cluster;

no strict 'refs';    ## no critic

# The server's log, which newer servers' module gives too.
*log_content = sub {
	my ($self) = @_;

	return PostgreSQL::Test::Utils::slurp_file($self->logfile);
  }
  if !defined &log_content;

# Wait until a backend of some type waits for some event.
*wait_for_event = sub {
	my ($self, $backend_type, $event) = @_;

	$self->poll_query_until('postgres', qq(
		SELECT count(*) > 0 FROM pg_stat_activity
		WHERE backend_type = '$backend_type' AND wait_event = '$event'))
	  or die "no $backend_type came to wait for $event";
	return;
  }
  if !defined &wait_for_event;

# Wait until a standby has replayed what this server has flushed.
*wait_for_replay_catchup = sub {
	my ($self, $standby) = @_;

	$self->wait_for_catchup($standby, 'replay', $self->lsn('flush'));
	return;
  }
  if !defined &wait_for_replay_catchup;

# Is an extension to be had?
*check_extension = sub {
	my ($self, $name) = @_;

	return $self->safe_psql('postgres',
		"SELECT count(*) > 0 FROM pg_available_extensions WHERE name = '$name'"
	) eq 't';
  }
  if !defined &check_extension;

1;
