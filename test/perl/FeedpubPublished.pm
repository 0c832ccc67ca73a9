# FeedpubPublished.pm: what the TAP tests of published order, of the worker and
# of waiting share.
#
#   workers(NODE)               the databases with a worker, 'a,b'
#   await_worker(NODE, DB)      waits for a database's worker, returns its pid
#   await_no_worker(NODE, DB)   waits until a database has none
#   kill_worker(NODE, DB)       ends it by SIGTERM, waits until it is gone
#   hold_publisher(NODE, DB)    keeps all batches of a database from being
#                               written until ->quit
#   await_published(NODE, FEED, DB), await_all_published(NODE, FEED, ...)
#                               waits until all committed rows are published
#   comes_true(NODE, CONDITION, TURNS, DB)
#                               does it before the worker has gone round so
#                               many times?
#   read_all(NODE, FEED, ...)   the keys of a feed's rows, read page by page
#   background(NODE, QUERY)     a psql of its own, see below
#
# None of these but read_all() wakes a worker or starts one: they look at
# feedpub._batch and pg_stat_activity with plain SQL.
package FeedpubPublished;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use FeedpubTest;
use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(workers await_worker await_no_worker kill_worker
  hold_publisher await_published await_all_published batches comes_true
  read_all background);

# With the database's name where it is still there.
my $workers = q(
	SELECT string_agg(COALESCE(d.datname, 'unknown'), ',' ORDER BY d.datname)
	FROM pg_stat_activity a LEFT JOIN pg_database d ON d.oid = a.datid
	WHERE a.backend_type = 'feedpub worker');

sub workers
{
	my ($node) = @_;

	return sql($node, $workers);
}

sub await_worker
{
	my ($node, $db) = @_;
	my $where = "WHERE backend_type = 'feedpub worker' AND datname = '"
	  . ($db // 'postgres') . "'";

	$node->poll_query_until('postgres',
		"SELECT count(*) = 1 FROM pg_stat_activity $where")
	  or die 'no worker came';
	return sql($node, "SELECT pid FROM pg_stat_activity $where");
}

sub await_no_worker
{
	my ($node, $db) = @_;

	return $node->poll_query_until('postgres',
		"SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'feedpub worker'"
		  . ($db ? " AND datname = '$db'" : ''));
}

sub await_gone
{
	my ($node, $pid) = @_;

	$node->poll_query_until('postgres',
		"SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid")
	  or die "process $pid does not go";
	return;
}

sub kill_worker
{
	my ($node, $db) = @_;
	my $pid = await_worker($node, $db);

	kill('TERM', $pid) == 1 or die "could not kill $pid: $!";
	await_gone($node, $pid);
	return $pid;
}

# A publisher waits for this lock when it has found news and writes its batch.
sub hold_publisher
{
	my ($node, $db) = @_;
	my $session = $node->background_psql($db // 'postgres');

	$session->query_safe(
		'BEGIN; LOCK TABLE feedpub._batch IN SHARE MODE');
	return $session;
}

# Every row lies in the last batch of its feed or in one before it.
sub is_published
{
	my ($feed) = @_;

	return <<"SQL";
NOT EXISTS (SELECT FROM $feed t WHERE NOT EXISTS (
	SELECT FROM (SELECT snapshot FROM feedpub._batch
		WHERE feed = '$feed'::regclass ORDER BY sync_id DESC LIMIT 1) b
	WHERE pg_visible_in_snapshot(t.feed_xid, b.snapshot)))
SQL
}

sub await_published
{
	my ($node, $feed, $db) = @_;

	return $node->poll_query_until($db // 'postgres',
		'SELECT ' . is_published($feed));
}

sub await_all_published
{
	my ($node, @feeds) = @_;

	return $node->poll_query_until('postgres',
		'SELECT ' . join(' AND ', map { is_published($_) } @feeds));
}

sub batches
{
	my ($node, $feed, $db) = @_;

	return sql($node,
		"SELECT count(*) FROM feedpub._batch WHERE feed = '$feed'::regclass",
		db => $db);
}

# What the worker does by itself it does within so many turns; a wait for that
# alone could not tell a worker that never does it from a slow machine.
sub comes_true
{
	my ($node, $condition, $turns, $db) = @_;
	my @db = (db => $db // 'postgres');
	my $is_later = 'SELECT turns >= %s FROM feedpub.workers WHERE database = current_database()';
	my $end = sql($node,
		"SELECT turns + $turns FROM feedpub.workers WHERE database = current_database()",
		@db);

	$node->poll_query_until($db // 'postgres',
		"SELECT ($condition) OR (" . sprintf($is_later, $end) . ')')
	  or die 'the worker stands still';
	return sql($node, "SELECT $condition", @db) eq 't';
}

# Follows a feed to its end, as a consumer does, and returns the rows'
# message_key, a line each.  Options: db; user; page, rows a page (default
# 100); after, a reference to the cursor to begin after, which is moved; wait,
# for feedpub.read_wait (default 0: what is not published is not waited for).
sub read_all
{
	my ($node, $feed, %options) = @_;
	my $start = '';
	my $cursor = $options{after} // \$start;
	my $page = $options{page} // 100;
	my $wait = $options{wait} // 0;
	my @keys;

	while (1)
	{
		my @page = split /\n/, sql($node, <<"SQL", %options);
SET feedpub.read_wait = '$wait';
SELECT cursor, op, (entry).message_key FROM feed_read(NULL::$feed, '$$cursor', $page);
SQL
		return join "\n", @keys if !@page;
		die "a page of more than $page rows" if @page > $page + 1;
		for (@page)
		{
			my ($after, $op, $key) = split /\|/, $_, 3;

			die "cursor $after is not after $$cursor" if $after le $$cursor;
			$$cursor = $after;
			push @keys, $key if $op eq 'upsert';
		}
	}
}

# Starts a psql that runs a query, each statement by itself, and returns at
# once.  Options: db; user.  Its methods:
#
#   await_wait()    waits until it waits for something to be published
#   finish()        waits for its end, returns its output
#   error           what it wrote to stderr, after finish()
my $nbackground = 0;

sub background
{
	my ($node, $query, %options) = @_;
	my $name = 'background' . ++$nbackground;
	my $self = bless {
		node => $node,
		name => $name,
		out => '',
		error => ''
	  },
	  __PACKAGE__;
	my $file = PostgreSQL::Test::Utils::tempdir_short() . '/query.sql';
	my $connstr =
	  $node->connstr($options{db} // 'postgres') . " application_name=$name";

	append_to_file($file, $query);
	$connstr .= " user=$options{user}" if $options{user};
	$connstr .= " host=$options{host}" if $options{host};
	$self->{handle} = IPC::Run::start(
		[
			'psql', '--no-psqlrc', '--no-align', '--tuples-only', '--quiet',
			'--set', 'ON_ERROR_STOP=1', '--set', 'VERBOSITY=verbose',
			'--file', $file, '--dbname', $connstr
		],
		'<', \undef, '>', \$self->{out}, '2>', \$self->{error},
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	return $self;
}

# What pg_stat_activity says of it; columns is an SQL expression.
sub activity
{
	my ($self, $columns) = @_;

	return sql($self->{node},
		"SELECT $columns FROM pg_stat_activity WHERE application_name = '$self->{name}'"
	);
}

sub await_wait
{
	my ($self) = @_;

	return $self->{node}->poll_query_until('postgres',
		"SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = '$self->{name}' AND state = 'active' AND wait_event_type = 'Extension'"
	);
}

sub finish
{
	my ($self) = @_;

	$self->{handle}->finish;
	chomp $self->{out};
	return $self->{out};
}

1;
