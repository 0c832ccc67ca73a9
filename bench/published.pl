# published.pl: the parts of bench/run that measure the published order.
# Loaded by measure.pl, whose tools it uses.

use strict;
use warnings;
use IPC::Open2;
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC sleep);

my $work = $ENV{WORK};
my $rounds = $ENV{ROUNDS};
my $seconds = $ENV{SECONDS_EACH};
my $long = $ENV{LONG};
my $payload = 'publication_id, message_id, message_type, message_key, data';

chomp(my $cpus = `nproc`);
my @pin = $cpus > 1 ? ('-c', $cpus - 1) : ();

#
# Tools
#

# Start the server again with other settings, until that is undone.
sub restart_with
{
	my (%settings) = @_;
	psql('postgres', 'ALTER SYSTEM RESET ALL',
		map { "ALTER SYSTEM SET $_ = '$settings{$_}'" } sort keys %settings);
	system("$ENV{BINDIR}/pg_ctl -D $work/data -l $work/server.log -w restart "
		  . ">/dev/null 2>&1") == 0
	  or die "could not restart the server: see $work/server.log\n";
	return;
}

# A database with the tables of schema.sql, unless it is there.
sub make_database
{
	my ($name) = @_;
	return 0 if has_database($name);
	psql('postgres', "CREATE DATABASE $name");
	psql_file($name, "$work/tree/bench/schema.sql");
	return 1;
}

# A table like another, with a sequence of its own.
sub like
{
	my ($table, $model) = @_;
	return ("CREATE TABLE $table (LIKE $model INCLUDING ALL)",
		"CREATE SEQUENCE ${table}_seq OWNED BY $table.position",
		"ALTER TABLE $table ALTER position SET DEFAULT nextval('${table}_seq')");
}

# The worker of a database, started if need be.
sub worker
{
	my ($database) = @_;
	psql($database, 'SELECT feed_start_worker()');
	for (1 .. 100)
	{
		my $pid = psql($database,
			'SELECT pid FROM pg_stat_activity WHERE datname = '
			  . q(current_database() AND application_name = 'feedpub worker'));
		return $pid if $pid;
		sleep 0.1;
	}
	die "$database has no worker\n";
}

sub stop_worker
{
	my ($database) = @_;
	psql($database, 'SELECT feed_stop_worker()');
	return;
}

# Wait until a query prints t.
sub wait_for
{
	my ($database, $query) = @_;
	for (1 .. 300)
	{
		return if psql($database, $query) eq 't';
		sleep 0.1;
	}
	die "waited in vain for: $query\n";
}

# Everything in a feed has been published.
sub wait_for_published
{
	my ($database, $feed) = @_;
	wait_for($database,
		'SELECT (SELECT COALESCE(sum(transactions), 0) FROM feedpub._batch '
		  . "WHERE feed = '$feed'::regclass) = "
		  . "(SELECT count(DISTINCT feed_xid) FROM $feed)");
	return;
}

# Seconds that processes have run.
sub cpu
{
	my ($sum, @pids) = (0, @_);
	for my $pid (@pids)
	{
		open my $in, '<', "/proc/$pid/schedstat" or return 0;
		my ($ns) = split ' ', <$in>;
		close $in;
		$sum += $ns * 1e-9;
	}
	return $sum;
}

# How often a process went to sleep.
sub sleeps
{
	my ($pid) = @_;
	open my $in, '<', "/proc/$pid/status" or return 0;
	my ($n) = map { /^voluntary_ctxt_switches:\s*(\d+)/ } <$in>;
	close $in;
	return $n;
}

sub write_spec
{
	my ($name, @lines) = @_;
	open my $out, '>', "$work/$name" or die "$name: $!\n";
	print $out map { "$_\n" } @lines;
	close $out;
	return "$work/$name";
}

# Run latency.c over variants, and add its lines to a file.
sub latency_client
{
	my ($out, $prefix, $spec, @options) = @_;
	my $file = write_spec('latency.spec', @$spec);
	open my $in, '-|', "$work/latency @options $file" or die "latency: $!\n";
	while (my $line = <$in>)
	{
		print $out join(',', @$prefix, $line);
	}
	close $in or die "latency failed\n";
	return;
}

# Readers in the background: who starts them ends them.
sub follow
{
	my (@spec) = @_;
	my $file = write_spec('follow.spec', @spec);
	my $pid = open2(my $out, my $in, "$work/latency", '-f', $file);
	my $ready = <$out> // '';
	die "the readers are not ready\n" unless $ready eq "ready\n";
	return { pid => $pid, out => $out, in => $in };
}

sub unfollow
{
	my ($readers) = @_;
	my %wakeups;
	close $readers->{in};
	while (my $line = readline $readers->{out})
	{
		my ($label, $n) = split /,/, $line;
		$wakeups{$label} = $n;
	}
	waitpid $readers->{pid}, 0;
	die "the readers failed\n" if $?;
	return \%wakeups;
}

# An INSERT of one message, $1 its data, $2 its id.
sub insert
{
	my ($table) = @_;
	return "INSERT INTO $table ($payload) "
	  . q(VALUES ('orders', $2, 'OrderPlaced', 'customer-7', $1::jsonb));
}

sub notifying
{
	my ($table, $channel, $message) = @_;
	return 'WITH message AS (' . insert($table) . ' RETURNING position) '
	  . "SELECT pg_notify('$channel', $message) FROM message";
}

sub read_published
{
	my ($feed, $limit) = @_;
	return "SELECT cursor, op, (entry).* FROM feed_read(NULL::$feed, \$1, $limit)";
}

#
# Latency
#

sub setup_latency
{
	if (make_database('latency'))
	{
		make_database('latency_other');
		psql(
			'latency',
			(map { "SELECT feed_create('feed_$_')" }
				  qw(listen wait await fetch)),
			"SELECT feed_set_channel('feed_listen', 'feed_listen')",
			(map { like("article_$_", 'article') } 10, 100),
			like('stream', 'plain'));
	}
	worker('latency');
	my @more = grep { $_ eq 'pgq' } optional_variants('latency');
	if (@more
		&& !psql('latency',
			q(SELECT count(*) FROM pgq.queue WHERE queue_name = 'latency')))
	{
		psql('latency',
			q(SELECT pgq.create_queue('latency'))
			  . q(, pgq.set_queue_config('latency', 'ticker_max_count', '1'))
			  . q(, pgq.set_queue_config('latency', 'ticker_max_lag', '0')),
			q(SELECT pgq.register_consumer('latency', 'bench')),

			# the ticker does not see the first event: its sequence is at 1
			# before it and after
			q(SELECT pgq.insert_event('latency', 'first', '')));
	}
	chomp(my $libraries = `$ENV{PG_CONFIG} --pkglibdir`);
	if (-e "$libraries/test_decoding.so")
	{
		psql('latency',
			q(SELECT pg_create_logical_replication_slot('bench', 'test_decoding')));
		push @more, 'recvlogical';
	}
	else
	{
		progress('recvlogical: skipped, test_decoding is not installed');
	}
	return @more;
}

sub latency_variants
{
	my $rest = "$payload, scheduled";
	my %spec = (
		fdatasync => [ 'disk', 0, -1, '', '', "$work/fdatasync" ],
		commit => [ 'commit', 0, -1, '', '', insert('plain') ],
		commit_off => [
			'commit', 0, -1, '', '',
			q(WITH off AS (SELECT set_config('synchronous_commit', 'off', true)) )
			  . "INSERT INTO plain ($payload) "
			  . q(SELECT 'orders', $2::text, 'OrderPlaced', 'customer-7', $1::jsonb FROM off)
		],
		feedpub_listen => [
			'listen', 0, 5, "''", '0', insert('feed_listen'),
			'LISTEN feed_listen', read_published('feed_listen', 1000) ],
		feedpub_wait => [
			'wait', 0, 5, "''", '0', insert('feed_wait'),
			q(SELECT feed_wait('feed_wait', $1, '1 s')),
			read_published('feed_wait', 1000) ],
		feedpub_await => [
			'wait', 0, 5, "''", '0', insert('feed_await'),
			q(CALL feed_await('feed_await', $1, '1 s')),
			read_published('feed_await', 1000) ],
		feed_fetch_10 => [
			'poll', 10, 3, '0;0', '0,1', insert('feed_fetch'),
			'SELECT * FROM feed_fetch(NULL::feed_fetch, $1, $2, 1000)' ],
		notify => [
			'notify', 0, 2, '', '',
			notifying('notify', 'notify', 'position::text'),
			'LISTEN notify',
			"SELECT position, $rest FROM notify WHERE position = ANY (\$1::bigint[])"
		],
		pgq => [
			'pgq', 100, 7, '', '',
			q(SELECT pgq.insert_event('latency', 'OrderPlaced', $1, 'orders', $2, 'customer-7', NULL)),
			q(SELECT pgq.ticker('latency')),
			q(SELECT pgq.next_batch('latency', 'bench')),
			'SELECT * FROM pgq.get_batch_events($1)',
			'SELECT pgq.finish_batch($1)' ],
		recvlogical => [
			'stream', 0, -1, '', '', insert('stream'),
			"exec $ENV{BINDIR}/pg_recvlogical -d latency -S bench --start -f - "
			  . '-s 1 -F 1 -o skip-empty-xacts=1' ]);
	for my $interval (10, 100)
	{
		my $table = "article_$interval";
		$spec{$table} = [
			'poll', $interval, 3, '0;0', '0,1', insert($table),
			"SELECT transaction_id, position, $rest FROM $table "
			  . 'WHERE ((transaction_id = $1 AND position > $2) '
			  . 'OR (transaction_id > $1)) '
			  . 'AND transaction_id < pg_snapshot_xmin(pg_current_snapshot()) '
			  . 'ORDER BY transaction_id ASC, position ASC LIMIT 1000' ];
	}
	return map { $_ => join("\t", $_, 'latency', @{ $spec{$_} }) } keys %spec;
}

sub latency
{
	my $out = csv('latency',
		qw(open round variant messages rate p50 p90 p99 max answer50 answer99
		  wakeups));

	restart_with(wal_level => 'logical');
	my @more = setup_latency();
	my %spec = latency_variants();
	my @read = wanted(
		qw(feedpub_listen feedpub_wait feedpub_await feed_fetch_10 article_10
		  article_100 notify), @more);
	my $text = psql('latency', 'SELECT message(481516234200)');

	progress("latency, $rounds rounds");
	latency_client($out, ['no'],
		[ @spec{ qw(fdatasync commit commit_off), @read } ],
		'-r', $rounds, '-s', 2, '-p', "'$text'");
	for my $where (qw(latency latency_other))
	{
		progress("latency, a write transaction open for $long s in "
			  . ($where eq 'latency' ? 'this' : 'another')
			  . ' database');
		latency_client($out, [ $where eq 'latency' ? 'here' : 'elsewhere' ],
			[ @spec{@read} ],
			'-r', 1, '-s', $long, '-b', $where, '-p', "'$text'");
	}
	psql('latency',
		q(SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots));
	restart_with();
	return;
}

#
# Writers with the wake-up on
#

sub setup_wakeup
{
	if (make_database('wakeup'))
	{
		psql('wakeup',
			q(SELECT feed_create('published'), feed_create('heard')),
			q(SELECT feed_set_channel('heard', 'heard')));
	}
	make_database('wakeup_quiet');
	make_database('wakeup_notify');
	worker('wakeup');
	stop_worker('wakeup_quiet');
	return;
}

sub wakeup
{
	my $out = csv('wakeup',
		qw(round messages variant calls rows bytes seconds p50 p99 cpu wal
		  cut));
	setup_wakeup();
	my $text = psql('wakeup', 'SELECT message(481516234200)');
	my %variants = (
		plain => [ 'wakeup_quiet', insert('plain') ],
		feedpub => [ 'wakeup_quiet', insert('feedpub') ],
		published => [ 'wakeup', insert('published') ],
		heard => [ 'wakeup', insert('heard') ],
		notify => [ 'wakeup_quiet', notifying('notify', 'notify', q('')) ],
		notify_heard => [ 'wakeup_notify', notifying('notify', 'heard', q('')) ]);

	for my $round (1 .. $rounds)
	{
		for my $messages (qw(order 1))
		{
			progress("wakeup, $messages, round $round of $rounds");
			my @spec = map {
				join "\t", $_, $variants{$_}[0], 'write', "$text;?", '',
				  $messages eq 'order'
				  ? ('BEGIN',
					'INSERT INTO orders (customer, total) VALUES (7, 90.50)',
					$variants{$_}[1], 'COMMIT')
				  : $variants{$_}[1]
			} wanted(qw(plain feedpub published heard notify notify_heard));
			psql($_, 'TRUNCATE orders, plain, notify', 'CHECKPOINT')
			  for qw(wakeup_quiet wakeup_notify);
			psql('wakeup_quiet', 'TRUNCATE feedpub');
			psql('wakeup', 'TRUNCATE orders');

			# what is woken does not read: that costs the same in all variants
			my $readers = follow(
				join("\t", 'listen', 'wakeup', 'listen', 0, -1, '', '', '',
					'LISTEN heard'),
				join("\t", 'wait', 'wakeup', 'wait', 0, -1, "''", '0', '',
					q(SELECT feed_wait('heard', $1, '1 s')),
					q(SELECT feed_head('heard'))),
				join("\t", 'notify', 'wakeup_notify', 'listen', 0, -1, '', '',
					'', 'LISTEN heard'));
			client($out, [ $round, $messages ], \@spec,
				'-C', 16, '-w', 20, '-n', 200, '-s', 2 * $seconds);
			wait_for_published('wakeup', $_) for qw(published heard);
			my $woken = unfollow($readers);
			progress("woken: listener $woken->{listen}, waiter $woken->{wait}, "
				  . "pg_notify's listener $woken->{notify}");
			die "somebody was not woken\n"
			  if grep { $_ == 0 } @$woken{qw(listen wait)};
		}
	}
	return;
}

#
# Pages and drains of batches
#

# A million rows: in 10,000 batches; in one that one transaction brought; in
# one of a thousand transactions, whose rows take turns.
sub load_batches
{
	return unless make_database('batches');
	progress('loading 3 times 1 million rows');
	psql(
		'batches',
		'ALTER DATABASE batches SET synchronous_commit = off',
		'ALTER DATABASE batches SET feedpub.publish_synchronous_commit = off');
	stop_worker('batches');
	psql('batches', q(
		SELECT feed_create('small'), feed_create('one'), feed_create('thousand')),
		"CREATE FUNCTION add(feed text, first int, n int) RETURNS void
		LANGUAGE plpgsql AS \$\$
		BEGIN
			EXECUTE format('INSERT INTO %I ($payload)
				SELECT ''orders'', (100000000000 + i)::text, ''OrderPlaced'',
					''customer-'' || i %% 1000, message(100000000000 + i)::jsonb
				FROM generate_series(\$1, \$1 + \$2 - 1) i', feed)
				USING first, n;
		END
		\$\$",
		'CREATE PROCEDURE load_small(n int, batch int) LANGUAGE plpgsql AS $$
		BEGIN
			FOR start IN 1 .. n BY batch LOOP
				PERFORM add(\'small\', start, batch);
				COMMIT;
				CALL feed_publish(\'small\');
			END LOOP;
		END
		$$',

		# transaction k gets the positions k, k + 1000, ...; the table is then
		# put into the order of positions
		'CREATE PROCEDURE load_thousand() LANGUAGE plpgsql AS $$
		BEGIN
			FOR k IN 1 .. 1000 LOOP
				PERFORM add(\'thousand\', k * 1000, 1000);
				COMMIT;
			END LOOP;
			ALTER TABLE thousand DISABLE TRIGGER USER;
			UPDATE thousand SET feed_pos = (feed_pos - 1) % 1000 * 1000 + (feed_pos - 1) / 1000 + 1;
			PERFORM feed_repair(\'thousand\');
		END
		$$',
		'CALL load_small(1000000, 100)',
		q(SELECT add('one', 1, 1000000)),
		q(CALL feed_publish('one')),
		'CALL load_thousand()');
	psql(
		'batches',
		'CREATE INDEX by_pos ON thousand (feed_pos)',
		'CLUSTER thousand USING by_pos',
		'DROP INDEX by_pos',
		q(CALL feed_publish('thousand')),
		'VACUUM ANALYZE',
		'CHECKPOINT');
	my %batches = (small => 10_000, one => 1, thousand => 1);
	for my $feed (sort keys %batches)
	{
		my $n = psql('batches',
			"SELECT count(*) FROM feedpub._batch WHERE feed = '$feed'::regclass");
		die "$feed has $n batches\n" if $n != $batches{$feed};
	}
	return;
}

# The cursor after so many rows of a feed with one batch.
sub batch_cursor
{
	my ($feed, $n) = @_;
	return q('') if $n == 0;
	my $pos = join '', map { ('-', 0 .. 9, 'A' .. 'Z', '_', 'a' .. 'z')[ $n >> 6 * $_ & 63 ] } reverse 0 .. 10;
	return psql('batches',
		"SELECT overlay(cursor PLACING '$pos' FROM 15 FOR 11) "
		  . "FROM feed_read(NULL::$feed, '', 1)");
}

sub batch_buffers
{
	my ($sql, $cursor) = @_;
	$cursor =~ s/^''$//;
	my $printed = psql(
		'batches',
		"PREPARE page(text) AS $sql",
		"\\o /dev/null\n" . join(";\n", ("EXECUTE page('$cursor')") x 7),
		"\\o\nEXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE page('$cursor')");
	my ($hit) = $printed =~ /"Shared Hit Blocks": (\d+)/;
	my ($read) = $printed =~ /"Shared Read Blocks": (\d+)/;
	return $hit + $read;
}

sub batches
{
	my @columns = qw(variant calls rows bytes seconds p50 p99 cpu wal cut);
	my $out = csv('batches', 'round', 'feed', 'limit', @columns);
	my $pages = csv('batchpages', 'round', 'feed', @columns);
	my $bufout = csv('batchbuffers', qw(feed where buffers));
	my $n = 1_000_000;

	load_batches();
	for my $round (1 .. $rounds)
	{
		for my $feed (qw(small one thousand))
		{
			for my $limit ($feed eq 'small' ? (100, 1000) : 1000)
			{
				progress(
					"batches: drain of $feed in pages of $limit, round $round of $rounds"
				);
				my @spec = (
					join("\t", 'row', 'batches', 'page', '0;0', '0,1',
						"SELECT feed_xid, feed_pos, $payload, scheduled FROM $feed "
						  . 'WHERE (feed_xid, feed_pos) > ($1, $2) '
						  . 'AND feed_xid < pg_snapshot_xmin(pg_current_snapshot()) '
						  . "ORDER BY feed_xid, feed_pos LIMIT $limit"),
					join("\t", 'feed_read', 'batches', 'page', q(''), '0',
						read_published($feed, $limit)),
					join("\t", 'feed_read_entry', 'batches', 'page', q(''), '0',
						"SELECT * FROM feed_read(NULL::$feed, \$1, $limit)"),
					join("\t", 'feed_fetch_any', 'batches', 'page', '0;0', '0,1',
						"SELECT * FROM feed_fetch(NULL::$feed, \$1, \$2, $limit)"),
					join("\t", 'feed_page', 'batches', 'json', q(''), '0',
						"SELECT feed_page('$feed', \$1, $limit)"));
				client($out, [ $round, $feed, $limit ],
					\@spec, @pin, '-a', '-w', 20, '-n',
					$limit == 100 ? 50 : 10, '-s', 60);
			}
		}
		for my $feed (qw(one thousand))
		{
			my $sql = read_published($feed, 1000);
			my %after = (
				first => 0,
				second => 1000,
				quarter => 250_000,
				middle => 500_000,
				last => $n - 1000);
			my @spec;

			progress("batches: pages of $feed, round $round of $rounds");
			for my $where (qw(first second quarter middle last))
			{
				my $cursor = batch_cursor($feed, $after{$where});
				push @spec, join "\t", $where, 'batches', 'page', $cursor, '0',
				  $sql;
				print $bufout "$feed,$where,", batch_buffers($sql, $cursor), "\n"
				  if $round == 1;
			}
			client($pages, [ $round, $feed ],
				\@spec, @pin, '-w', 20, '-n', 5, '-t', 40, '-s', 2);
		}
	}

	# all must have brought all
	open my $in, '<', "$work/csv/batches.csv" or die "batches.csv: $!\n";
	while (my $line = <$in>)
	{
		my @f = split /,/, $line;
		next if $f[0] eq 'round' || $f[-1] == 1;
		die "$f[3] delivered $f[5] rows of $f[1], not $n\n" if $f[5] != $n;
	}
	close $in;
	return;
}

#
# Readers of few types
#

sub types
{
	my $out = csv('types', 'round', 'limit',
		qw(variant calls rows bytes seconds p50 p99 cpu wal cut));
	my %wanted = (all => '', few => ", types => '{Rare*}'");
	my $entry = 'SELECT cursor, op, (entry).* FROM feed_read(NULL::feed';

	if (make_database('types'))
	{
		progress('loading 1 million messages, one in a hundred of another type');
		stop_worker('types');
		psql(
			'types',
			q(SELECT feed_create('feed')),
			"CREATE PROCEDURE load_types() LANGUAGE plpgsql AS \$\$
			BEGIN
				FOR start IN 1 .. 1000000 BY 10 LOOP
					INSERT INTO feed ($payload)
						SELECT 'orders', (100000000000 + i)::text,
							CASE i % 100 WHEN 0 THEN 'RareEvent' ELSE 'OrderPlaced' END,
							'customer-' || i % 1000, message(100000000000 + i)::jsonb
						FROM generate_series(start, start + 9) i;
					COMMIT;
				END LOOP;
			END
			\$\$",
			'SET synchronous_commit = off',
			'CALL load_types()',
			q(CALL feed_publish('feed')),
			'VACUUM ANALYZE');
	}
	for my $round (1 .. $rounds)
	{
		for my $limit (100, 1000)
		{
			progress("types, pages of $limit, round $round of $rounds");
			my @spec = map {
				(
					join("\t", "feed_page_$_", 'types', 'json', q(''), '0',
						"SELECT feed_page('feed', \$1, $limit$wanted{$_})"),
					join("\t", "feed_read_$_", 'types', 'page', q(''), '0',
						"$entry, \$1, $limit$wanted{$_})"))
			} qw(all few);
			client($out, [ $round, $limit ],
				\@spec, @pin, '-a', '-w', 5, '-n', 10, '-s', 60);
		}
	}
	return;
}

#
# The publisher
#

# What the publisher wrote to the WAL between two positions: its transactions
# are those that touch feedpub._batch, and, with a channel, those that do
# nothing but commit.
sub publisher_wal
{
	my ($database, $from, $to) = @_;
	my %tx;
	my %publisher;
	my $nodes = psql($database,
		q(SELECT string_agg(pg_relation_filenode(c.oid)::text, '|') )
		  . q(FROM pg_class c WHERE c.relnamespace = 'feedpub'::regnamespace )
		  . q(AND c.relname IN ('_batch', '_batch_pkey')));
	open my $in, '-|',
	  "$ENV{BINDIR}/pg_waldump -p $work/data/pg_wal -s $from -e $to"
	  or die "pg_waldump: $!\n";
	while (my $line = <$in>)
	{
		my ($rmgr, $bytes, $xid) =
		  $line =~ m{^rmgr: (\S+)\s+len \(rec/tot\):\s*\d+/\s*(\d+), tx:\s*(\d+)}
		  or next;
		$bytes = ($bytes + 7) & ~7;
		$tx{$xid}{bytes} += $bytes;
		$tx{$xid}{other} = 1 if $rmgr ne 'Transaction';
		$publisher{$xid} = 1 if $line =~ m{rel \d+/\d+/(?:$nodes) };
	}
	close $in or die "pg_waldump failed\n";
	delete $tx{0};

	my ($bytes, $batches, $announced, $all) = (0, 0, 0, 0);
	for my $xid (keys %tx)
	{
		$all += $tx{$xid}{bytes};
		$bytes += $tx{$xid}{bytes}, $batches++ if $publisher{$xid};
		$announced += $tx{$xid}{bytes} unless $tx{$xid}{other};
	}
	return ($bytes + $announced, $batches, $all);
}

sub publisher
{
	my $out = csv('publisher',
		qw(round channel wanted_rate variant messages rate p50 p90 p99 max
		  answer50 answer99 seconds cpu sleeps batches wal wal_all));
	if (make_database('publisher'))
	{
		psql('publisher',
			q(SELECT feed_create('silent'), feed_create('announced')),
			q(SELECT feed_set_channel('announced', 'announced')));
	}
	my $pid = worker('publisher');
	my $text = psql('publisher', 'SELECT message(481516234200)');

	for my $round (1 .. $rounds)
	{
		for my $feed (qw(silent announced))
		{
			for my $rate (200, 1000, 5000)
			{
				progress("publisher, $feed, $rate a second, round $round of $rounds");
				my $file = write_spec('publisher.spec',
					join("\t", 'feedpub', 'publisher', 'commit', 0, -1, '', '',
						insert($feed)));
				psql('publisher', 'CHECKPOINT');

				# the pages of the batches are in the WAL whole, once
				psql('publisher', insert($feed)
					  =~ s/\$2/'0'/r =~ s/\$1/'{}'/r);
				wait_for_published('publisher', $feed);
				my $from = psql('publisher', 'SELECT pg_current_wal_insert_lsn()');
				my $before = cpu($pid);
				my $slept = sleeps($pid);
				my $start = clock_gettime(CLOCK_MONOTONIC);
				my $line = `$work/latency -1 -C 16 -n $rate -s 5 -p '$text' $file`;
				die "latency failed\n" if $?;
				my $took = clock_gettime(CLOCK_MONOTONIC) - $start;
				sleep 0.1;
				my $cpu = cpu($pid) - $before;
				$slept = sleeps($pid) - $slept;
				my $to = psql('publisher', 'SELECT pg_current_wal_flush_lsn()');
				wait_for_published('publisher', $feed);
				my ($wal, $batches, $all) =
				  publisher_wal('publisher', $from, $to);
				chomp $line;
				my ($r, @figures) = split /,/, $line;
				print $out join(',', $round, $feed eq 'announced' ? 'yes' : 'no',
					$rate, @figures[ 0 .. 8 ],
					sprintf('%.3f,%.6f', $took, $cpu), $slept, $batches, $wal,
					$all),
				  "\n";
			}
		}
	}
	return;
}

#
# Idle feeds, and many batches
#

sub load_idle
{
	for my $database (qw(few many))
	{
		next unless make_database($database);
		progress("loading $database");
		psql($database,
			'CREATE PROCEDURE make_feeds(n int) LANGUAGE plpgsql AS $$
			BEGIN
				FOR i IN 1 .. n LOOP
					PERFORM feed_create(\'idle_\' || i);
					COMMIT;
				END LOOP;
			END
			$$',
			"CREATE PROCEDURE load(n int, batch int) LANGUAGE plpgsql AS \$\$
			BEGIN
				FOR start IN 1 .. n BY batch LOOP
					INSERT INTO feedpub ($payload)
						SELECT 'orders', (100000000000 + i)::text, 'OrderPlaced',
							'customer-' || i % 1000, message(100000000000 + i)::jsonb
						FROM generate_series(start, start + batch - 1) i;
					COMMIT;
					CALL feed_publish('feedpub');
				END LOOP;
			END
			\$\$",
			'SET synchronous_commit = off',
			'SET feedpub.publish_synchronous_commit = off',
			($database eq 'many' ? 'CALL make_feeds(1000)' : ()),
			$database eq 'many' ? 'CALL load(100000, 10)' : 'CALL load(1000, 10)',
			'VACUUM ANALYZE',
			'CHECKPOINT');
	}
	my $n = psql('many',
		q(SELECT count(*) FROM feedpub._batch WHERE feed = 'feedpub'::regclass));
	die "there are $n batches\n" if $n < 10_000;
	return;
}

# How many wait in the last cell: the server has 300 connections.
my $nwaiters = 200;

sub idle
{
	my @columns = qw(variant calls rows bytes seconds p50 p99 cpu wal cut);
	my $out = csv('idle', 'round', 'what', 'waiters', @columns);
	my $atrest = csv('atrest', qw(round database waiters seconds worker backends));

	load_idle();
	my %pid = map { $_ => worker($_) } qw(few many);
	my $text = psql('few', 'SELECT message(481516234200)');
	my @write = map { join "\t", $_, $_, 'write', "$text;?", '', insert('feedpub') }
	  qw(few many);
	my @waiters = map {
		join "\t", "waiter_$_", 'many', 'wait', 0, -1, "''", '0', '',
		  "SELECT feed_wait('idle_$_', \$1, '1 h')"
	} 1 .. $nwaiters;

	for my $round (1 .. $rounds)
	{
		for my $waiting (0, $nwaiters)
		{
			my $readers = $waiting ? follow(@waiters) : undef;
			if ($waiting)
			{
				wait_for('many',
					"SELECT count(*) = $nwaiters FROM pg_stat_activity "
					  . q(WHERE datname = 'many' AND state = 'active' )
					  . q(AND wait_event_type = 'Extension'));
			}
			progress("idle: $waiting waiters, round $round of $rounds");
			for my $database (qw(few many))
			{
				my @backends = split /\n/, psql($database,
					q(SELECT pid FROM pg_stat_activity WHERE query LIKE '%feed_wait%')
					  . q( AND pid <> pg_backend_pid() AND datname = current_database()));
				my $worker = cpu($pid{$database});
				my $sum = cpu(@backends);
				sleep 5;
				print $atrest join(',', $round, $database, $waiting, 5,
					map { sprintf '%.6f', $_ } cpu($pid{$database}) - $worker,
					cpu(@backends) - $sum), "\n";
			}
			for my $cell ([ 'write, 1 client', 1, @pin ], [ 'write, 16 clients', 16 ])
			{
				my ($what, $clients, @options) = @$cell;
				$what =~ s/,//;
				client($out, [ $round, $what, $waiting ],
					\@write, @options, '-C', $clients, '-w', 20, '-n', 100,
					'-s', $seconds);
				wait_for_published($_, 'feedpub') for qw(few many);
			}
			for my $limit (100, 1000)
			{
				my @spec = map {
					join "\t", $_, $_, 'page',
					  psql($_,
						q(SELECT cursor FROM feed_read(NULL::feedpub, '', 1))
						  . ' LIMIT 1'), '0',
					  read_published('feedpub', $limit)
				} qw(few many);
				client($out, [ $round, "page of $limit", $waiting ],
					\@spec, @pin, '-w', 20, '-n', $limit == 100 ? 50 : 10,
					'-t', 20, '-s', 1);
			}
			my @spec = map {
				join "\t", $_, $_, 'page', psql($_, q(SELECT feed_head('feedpub'))),
				  '0', read_published('feedpub', 100)
			} qw(few many);
			client($out, [ $round, 'empty page', $waiting ],
				\@spec, @pin, '-w', 20, '-n', 50, '-t', 20, '-s', 1);
			unfollow($readers) if $readers;
		}
	}
	return;
}

1;
