# measure.pl: the parts of bench/run, which sets up server and environment.
# Each part writes files of raw figures into $WORK/csv.

use strict;
use warnings;
use IO::Handle;

my $work = $ENV{WORK};
my $rounds = $ENV{ROUNDS};
my $seconds = $ENV{SECONDS_EACH};
my @sizes = split ' ', $ENV{SIZES};
my %rows = ('10k' => 10_000, '1m' => 1_000_000, '10m' => 10_000_000);
my %only = map { $_ => 1 } split /,/, $ENV{VARIANTS};
my %parts = (
	writers => \&writers,
	copy => \&copy,
	pages => \&pages,
	drain => \&drain,
	latency => \&latency,
	wakeup => \&wakeup,
	batches => \&batches,
	types => \&types,
	publisher => \&publisher,
	idle => \&idle,
	tables => \&tables,
	changes => \&changes,
	churn => \&churn,
	initial => \&initial,
	attach => \&attach,
	stamping => \&stamping,
	subscriptions => \&subscriptions,
	retention => \&retention,
	http => \&http);

# The parts of the published order, of table feeds, of subscriptions, of
# retention and of feedpub-http; they use the tools here.
require "$work/tree/bench/published.pl";
require "$work/tree/bench/tables.pl";
require "$work/tree/bench/subscriptions.pl";
require "$work/tree/bench/retention.pl";
require "$work/tree/bench/http.pl";

# One client and its backend share the last processor.
chomp(my $cpus = `nproc`);
my @pin = $cpus > 1 ? ('-c', $cpus - 1) : ();

my $payload = 'publication_id, message_id, message_type, message_key, data';

STDOUT->autoflush;

#
# Tools
#

sub progress
{
	my ($text) = @_;
	my @now = localtime;
	printf "%02d:%02d:%02d %s\n", @now[ 2, 1, 0 ], $text;
	return;
}

sub run
{
	my (@command) = @_;
	system(@command) == 0 or die "failed: @command\n";
	return;
}

# Run SQL in a database, return what it prints.
sub psql
{
	my ($database, @sql) = @_;
	my $file = "$work/sql";
	open my $out, '>', $file or die "$file: $!\n";
	print $out join(";\n", @sql), ";\n";
	close $out;
	my $printed = `psql -XqAt -v ON_ERROR_STOP=1 -d $database -f $file`;
	die "failed: @sql\n" if $?;
	chomp $printed;
	return $printed;
}

sub psql_file
{
	my ($database, $file, @options) = @_;
	local $ENV{PGOPTIONS} = '-c client_min_messages=warning';
	run('psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-o', '/dev/null', '-d',
		$database, @options, '-f', $file);
	return;
}

sub has_database
{
	my ($name) = @_;
	return psql('postgres',
		"SELECT count(*) FROM pg_database WHERE datname = '$name'");
}

# Make a file of figures.
sub csv
{
	my ($name, @columns) = @_;
	open my $out, '>', "$work/csv/$name.csv" or die "$name.csv: $!\n";
	$out->autoflush;
	print $out join(',', @columns), "\n";
	return $out;
}

# What the user asked for, and what everything is compared with.
sub wanted
{
	my (@variants) = @_;
	return grep { !%only || $only{$_} || /^(plain|position|bare)/ } @variants;
}

# The variants that are not there on every machine, installed.
sub optional_variants
{
	my ($database) = @_;
	my @more;

	if (psql(
			'postgres',
			q(SELECT count(*) FROM pg_available_extensions WHERE name = 'pgq')))
	{
		psql($database, 'SET client_min_messages = error',
			'CREATE EXTENSION IF NOT EXISTS pgq');
		push @more, 'pgq';
	}
	else
	{
		progress('pgq: skipped, its package is not installed');
	}
	if (-e "$work/pgmq.sql")
	{
		if (!psql($database,
				q(SELECT count(*) FROM pg_namespace WHERE nspname = 'pgmq')))
		{
			psql($database, 'CREATE SCHEMA pgmq');
			psql_file($database, "$work/pgmq.sql");
		}
		push @more, 'pgmq';
	}
	else
	{
		progress('pgmq: skipped, PGMQ_SQL does not name its SQL script');
	}
	return @more;
}

# Run client.c over variants, and add its lines to a file.
sub client
{
	my ($out, $prefix, $spec, @options) = @_;
	my $file = "$work/spec";
	open my $specout, '>', $file or die "$file: $!\n";
	print $specout map { "$_\n" } @$spec;
	close $specout;
	open my $in, '-|', "$work/client @options <$file" or die "client: $!\n";
	while (my $line = <$in>)
	{
		print $out join(',', @$prefix, $line);
	}
	close $in or die "client failed\n";
	return;
}

#
# Writers
#

# What a variant runs for one message, with parameters data and id; for one
# that goes with an order; or for many in one statement, with an id to count
# from.
sub writer_script
{
	my ($variant, $messages) = @_;
	if ($messages eq 'order')
	{
		return ('BEGIN',
			"INSERT INTO orders (customer, total) VALUES (7, 90.50)",
			writer_script($variant, 1), 'COMMIT');
	}
	my $one = $messages == 1;
	my $id = $one ? '$2' : '($1::bigint + i)::text';
	my $key = $one ? q('customer-7') : q('customer-' || i);
	my $data = $one ? '$1' : 'message($1::bigint + i)';
	my $from = $one ? '' : " FROM generate_series(1, $messages) i";

	if ($variant eq 'pgq')
	{
		return "SELECT pgq.insert_event('bench', 'OrderPlaced', $data, "
		  . "'orders', $id, $key, NULL)$from";
	}
	if ($variant eq 'pgmq')
	{
		my $headers = "jsonb_build_object('publication_id', 'orders', "
		  . "'message_id', $id"
		  . ($one ? '::text' : '')
		  . ", 'message_type', 'OrderPlaced', 'message_key', $key)";
		return "SELECT pgmq.send('bench', ${data}::jsonb, $headers)$from";
	}

	my $columns = $payload;
	my $values = "'orders', $id, 'OrderPlaced', $key, ${data}::jsonb";
	if ($variant =~ /_id$/)
	{
		$columns =~ s/message_id, //;
		$values = "'orders', 'OrderPlaced', $key, ${data}::jsonb";
	}
	my $table = $variant =~ s/^feedpub_id$/feedpub/r;
	my $insert = "INSERT INTO $table ($columns) "
	  . ($one ? "VALUES ($values)" : "SELECT $values$from");
	return $variant eq 'notify'
	  ? "WITH message AS ($insert) SELECT pg_notify('bench', '')"
	  : $insert;
}

sub setup_writers
{
	my $new = !has_database('writers');
	my @variants = qw(plain feedpub article trigger counter notify);

	if ($new)
	{
		psql('postgres', 'CREATE DATABASE writers');
		psql_file('writers', "$work/tree/bench/schema.sql");
	}
	for my $more (optional_variants('writers'))
	{
		psql('writers', "SELECT $more.create"
			  . ($more eq 'pgq' ? '_queue' : '') . "('bench')")
		  if $new;
		push @variants, $more;
	}
	return wanted(@variants, 'plain_id', 'feedpub_id');
}

sub table_of
{
	my ($variant) = @_;
	return 'feedpub' if $variant eq 'feedpub_id';
	return 'pgmq.q_bench' if $variant eq 'pgmq';
	return psql('writers', "SELECT pgq.current_event_table('bench')")
	  if $variant eq 'pgq';
	return $variant;
}

# All tables empty, and nothing left to write.
sub empty_tables
{
	my (@variants) = @_;
	my %tables = map { table_of($_) => 1 } @variants;
	psql(
		'writers',
		(map { "TRUNCATE $_" } sort keys %tables),
		'TRUNCATE orders',
		'VACUUM last_position',
		'CHECKPOINT');
	return;
}

sub writers
{
	my @variants = setup_writers();
	my $text = psql('writers', 'SELECT message(481516234200)');
	my $out = csv('writers',
		qw(round sync clients messages variant calls rows bytes seconds p50
		  p99 cpu wal cut));

	for my $round (1 .. $rounds)
	{
		progress("writers, round $round of $rounds");
		for my $sync (qw(off on))
		{
			for my $clients (1, 4, 16)
			{
				for my $messages (qw(order 1 100))
				{
					my @spec;
					for my $variant (@variants)
					{
						my $params =
						    $messages eq '100' ? '?'
						  : $variant =~ /_id$/ ? $text
						  : "$text;?";
						push @spec, join "\t", $variant, 'writers', 'write',
						  $params, '', writer_script($variant, $messages);
					}
					empty_tables(@variants);
					client($out, [ $round, $sync, $clients, $messages ],
						\@spec,
						$clients == 1 ? @pin : (),
						'-C', $clients, '-w', 20,
						'-n', $messages eq '100' ? 5 : 100, '-s', $seconds,
						'-e', "'-c synchronous_commit=$sync'");
				}
			}
		}
	}
	return;
}

#
# COPY
#

sub copy
{

	# A COPY would notify once; and 100,000 positions taken from one row in
	# one transaction cost minutes, each one walks over the dead versions.
	my @variants = grep { !/^(notify|counter)$/ } setup_writers();
	my $out = csv('copy',
		qw(round variant calls rows bytes seconds p50 p99 cpu wal cut));
	my $n = 100_000;
	my %spec;

	psql(
		'writers',
		'SET client_min_messages = warning',
		'DROP TABLE IF EXISTS staging',
		"CREATE TABLE staging AS SELECT 'orders' AS publication_id, "
		  . "i::text AS message_id, 'OrderPlaced' AS message_type, "
		  . "'customer-' || i % 1000 AS message_key, message(i) AS data "
		  . "FROM generate_series(100000000000, 100000000000 + $n - 1) i",
		'VACUUM ANALYZE staging',
		"COPY staging ($payload) TO '$work/copy'",
		'COPY staging (publication_id, message_type, message_key, data) '
		  . "TO '$work/copy_id'");

	for my $variant (@variants)
	{
		my $table = table_of($variant);
		my $sql =
		  $variant eq 'pgq'
		  ? "SELECT count(pgq.insert_event('bench', message_type, data, "
		  . 'publication_id, message_id, message_key, NULL)) FROM staging'
		  : $variant eq 'pgmq'
		  ? "SELECT count(*) FROM staging, pgmq.send('bench', data::jsonb, "
		  . "jsonb_build_object('publication_id', publication_id, "
		  . "'message_id', message_id, 'message_type', message_type, "
		  . "'message_key', message_key))"
		  : $variant =~ /_id$/
		  ? "COPY $table (publication_id, message_type, message_key, data) "
		  . "FROM '$work/copy_id'"
		  : "COPY $table ($payload) FROM '$work/copy'";
		$spec{$variant} = join "\t", $variant, 'writers', 'once', '', '',
		  "TRUNCATE $table", 'CHECKPOINT', $sql;
	}
	for my $round (1 .. $rounds)
	{
		progress("copy, round $round of $rounds");
		client($out, [$round], [ map { $spec{$_} } @variants ],
			@pin, '-n', 1, '-t', 3);
	}
	return;
}

#
# Readers
#

# The same messages in a feed, the article's table and the plain table, ten
# in a transaction.  Each size has its database, for a database has one
# default feed.
sub load
{
	my ($size) = @_;
	my $database = "feed_$size";
	my $n = $rows{$size};

	return if has_database($database);
	progress("loading $n rows");
	psql('postgres', "CREATE DATABASE $database");
	psql_file($database, "$work/tree/bench/schema.sql");
	psql(
		$database,
		"CREATE PROCEDURE load(n int) LANGUAGE plpgsql AS \$\$
		BEGIN
			FOR start IN 1 .. n BY 10 LOOP
				INSERT INTO feedpub ($payload)
					SELECT 'orders', (100000000000 + i)::text, 'OrderPlaced',
						'customer-' || i % 1000, message(100000000000 + i)::jsonb
					FROM generate_series(start, start + 9) i;
				COMMIT;
			END LOOP;
		END
		\$\$",
		'SET synchronous_commit = off',
		"CALL load($n)",
		"INSERT INTO article (position, transaction_id, $payload, scheduled) "
		  . "SELECT feed_pos, feed_xid, $payload, scheduled "
		  . 'FROM feedpub ORDER BY feed_xid, feed_pos',
		"INSERT INTO plain (position, $payload, scheduled) "
		  . "SELECT feed_pos, $payload, scheduled "
		  . 'FROM feedpub ORDER BY feed_xid, feed_pos',
		'VACUUM ANALYZE feedpub, article, plain',
		'CHECKPOINT');
	return;
}

# How each variant reads a page: its SQL, what its parameters are, and in
# which columns of the last row the next ones are found.
sub page_variants
{
	my ($limit) = @_;
	my $rest = "$payload, scheduled";
	my @stamp = ([ 'xid', 'pos' ], '0,1');

	return (
		position => [
			"SELECT position, $rest FROM plain WHERE position > \$1 "
			  . "ORDER BY position LIMIT $limit",
			[ 'pos' ], '0' ],
		position_wide => [
			"SELECT transaction_id, position, $rest FROM article "
			  . "WHERE position > \$1 ORDER BY position LIMIT $limit",
			[ 'pos' ], '1' ],
		row => [
			"SELECT feed_xid, feed_pos, $rest FROM feedpub "
			  . 'WHERE (feed_xid, feed_pos) > ($1, $2) '
			  . 'AND feed_xid < pg_snapshot_xmin(pg_current_snapshot()) '
			  . "ORDER BY feed_xid, feed_pos LIMIT $limit",
			@stamp ],
		article => [
			"SELECT transaction_id, position, $rest FROM article "
			  . 'WHERE ((transaction_id = $1 AND position > $2) '
			  . 'OR (transaction_id > $1)) '
			  . 'AND transaction_id < pg_snapshot_xmin(pg_current_snapshot()) '
			  . "ORDER BY transaction_id ASC, position ASC LIMIT $limit",
			@stamp ],
		feed_fetch => [
			"SELECT * FROM feed_fetch(\$1, \$2, $limit)", @stamp ],
		feed_fetch_any => [
			"SELECT * FROM feed_fetch(NULL::feedpub, \$1, \$2, $limit)",
			@stamp ],

		# as many columns as position; without the xid, not for a drain
		feed_fetch_narrow => [
			"SELECT feed_pos, $rest FROM feed_fetch(\$1, \$2, $limit)",
			[ 'xid', 'pos' ] ]);
}

my @page_order = qw(position position_wide row article feed_fetch
  feed_fetch_any feed_fetch_narrow);

# The cursor after which a page begins.
sub cursor
{
	my ($size, $where, $limit) = @_;
	my $n = $rows{$size};
	my $pos =
	    $where eq 'beginning' ? 0
	  : $where eq 'middle' ? $n / 2
	  : $where eq 'tail' ? $n - $limit
	  : $n;
	my $xid = $pos == 0 ? 0 : psql("feed_$size",
		"SELECT transaction_id FROM article WHERE position = $pos");
	return { pos => $pos, xid => $xid };
}

# Buffers of one page in a warm session; the plan's, not the planner's.
sub buffers
{
	my ($size, $sql, $params) = @_;
	my $args = join ', ', map { "'$_'" } @$params;
	my $types = @$params == 2 ? 'xid8, bigint' : 'bigint';
	my $printed = psql(
		"feed_$size",
		"PREPARE page($types) AS $sql",
		"\\o /dev/null\n" . join(";\n", ("EXECUTE page($args)") x 7),
		"\\o\nEXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE page($args)");
	my ($hit) = $printed =~ /"Shared Hit Blocks": (\d+)/;
	my ($read) = $printed =~ /"Shared Read Blocks": (\d+)/;
	return $hit + $read;
}

sub pages
{
	my @variants = wanted(@page_order);
	my $out = csv('pages',
		qw(round limit where size variant calls rows bytes seconds p50 p99 cpu
		  wal cut));
	my $bufout = csv('buffers', qw(limit where size variant buffers));

	load($_) for @sizes;
	for my $round (1 .. $rounds)
	{
		progress("pages, round $round of $rounds");
		for my $limit (100, 1000)
		{
			my %variants = page_variants($limit);
			for my $where (qw(beginning middle tail empty))
			{
				my @spec;
				for my $size (@sizes)
				{
					my $cursor = cursor($size, $where, $limit);
					for my $variant (@variants)
					{
						my ($sql, $keys) = @{ $variants{$variant} };
						my @params = map { $cursor->{$_} } @$keys;
						push @spec, join "\t", "$size,$variant",
						  "feed_$size", 'page', join(';', @params), '', $sql;
						print $bufout "$limit,$where,$size,$variant,",
						  buffers($size, $sql, \@params), "\n"
						  if $round == 1;
					}
				}
				client($out, [ $round, $limit, $where ],
					\@spec,
					@pin, '-w', 20, '-n', $limit == 100 ? 50 : 10,
					'-t', 20, '-s', 1);
			}
		}
	}
	return;
}

# Events of a queue, so many in a batch: PgQ's batches are what lies between
# two ticks.
sub load_queue
{
	my ($limit) = @_;
	my $n = $rows{'1m'};
	my $queue = "q$limit";

	return if psql('feed_1m',
		"SELECT count(*) FROM pgq.queue WHERE queue_name = '$queue'");
	progress("loading $n events, $limit in a batch");
	psql(
		'feed_1m',
		"CREATE OR REPLACE PROCEDURE load_queue(queue text, n int, batch int)
		LANGUAGE plpgsql AS \$\$
		BEGIN
			FOR start IN 1 .. n BY 10 LOOP
				PERFORM pgq.insert_event(queue, 'OrderPlaced',
						message(100000000000 + i), 'orders',
						(100000000000 + i)::text, 'customer-' || i % 1000, NULL)
					FROM generate_series(start, start + 9) i;
				COMMIT;
				IF (start + 9) % batch = 0 THEN
					PERFORM pgq.ticker(queue);
					COMMIT;
				END IF;
			END LOOP;
		END
		\$\$",
		"SELECT pgq.create_queue('$queue'), "
		  . "pgq.set_queue_config('$queue', 'ticker_max_count', '1'), "
		  . "pgq.set_queue_config('$queue', 'ticker_max_lag', '0')",
		'SET synchronous_commit = off',
		"CALL load_queue('$queue', $n, $limit)",
		'VACUUM ANALYZE');
	return;
}

# A consumer at the beginning of a queue: its statements.
sub queue_reader
{
	my ($variant, $limit) = @_;

	if ($variant eq 'pgq')
	{
		psql(
			'feed_1m',
			"SELECT pgq.unregister_consumer('q$limit', 'bench') WHERE EXISTS "
			  . "(SELECT FROM pgq.get_consumer_info('q$limit', 'bench'))",
			"SELECT pgq.register_consumer_at('q$limit', 'bench', min(tick_id)) "
			  . 'FROM pgq.tick JOIN pgq.queue ON queue_id = tick_queue '
			  . "WHERE queue_name = 'q$limit'");
		return (
			"SELECT pgq.next_batch('q$limit', 'bench')",
			'SELECT * FROM pgq.get_batch_events($1)',
			'SELECT pgq.finish_batch($1)');
	}
	psql(
		'feed_1m',
		"SELECT pgmq.drop_queue('bench') "
		  . "WHERE to_regclass('pgmq.q_bench') IS NOT NULL",
		"SELECT pgmq.create('bench')",
		'INSERT INTO pgmq.q_bench (vt, message, headers) SELECT now(), data, '
		  . "jsonb_build_object('publication_id', publication_id, "
		  . "'message_id', message_id, 'message_type', message_type, "
		  . "'message_key', message_key) FROM plain ORDER BY position",
		'VACUUM ANALYZE pgmq.q_bench');
	return (
		"SELECT * FROM pgmq.read('bench', 600, $limit)",
		"SELECT pgmq.delete('bench', \$1::bigint[])");
}

sub drain
{
	my $n = $rows{'1m'};
	my $out = csv('drain',
		qw(round limit variant calls rows bytes seconds p50 p99 cpu wal cut));

	load('1m');
	my @queues = wanted(optional_variants('feed_1m'));
	my @tables = grep { $_ ne 'feed_fetch_narrow' } wanted(@page_order);
	if (grep { $_ eq 'pgq' } @queues)
	{
		load_queue($_) for 100, 1000;
	}

	for my $round (1 .. $rounds)
	{
		for my $limit (100, 1000)
		{
			progress("drain in pages of $limit, round $round of $rounds");
			my %variants = page_variants($limit);
			my @spec;
			for my $variant (@tables)
			{
				my ($sql, $keys, $columns) = @{ $variants{$variant} };
				push @spec, join "\t", $variant, 'feed_1m', 'page',
				  join(';', (0) x @$keys), $columns, $sql;
			}
			for my $variant (@queues)
			{
				push @spec, join "\t", $variant, 'feed_1m', $variant, '', '',
				  queue_reader($variant, $limit);
			}
			client($out, [ $round, $limit ], \@spec,
				@pin, '-a', '-w', 20, '-n', $limit == 100 ? 50 : 10,
				'-s', 20, '-e', "'-c synchronous_commit=off'");
		}
	}

	# all must have done the same work, but those that were cut short
	open my $in, '<', "$work/csv/drain.csv" or die "drain.csv: $!\n";
	while (my $line = <$in>)
	{
		chomp $line;
		my @f = split /,/, $line;
		next if $f[0] eq 'round' || $f[11];
		die "$f[2] delivered $f[4] rows of $n\n" if $f[4] != $n;
	}
	close $in;
	return;
}

for my $part (@ARGV)
{
	die "no such part: $part\n" unless $parts{$part};
}
for my $part (
	qw(writers copy pages drain latency wakeup batches types publisher idle tables changes
	churn initial attach stamping subscriptions retention http))
{
	$parts{$part}->() if grep { $_ eq $part } @ARGV;
}
