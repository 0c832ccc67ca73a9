# against.pl: the measuring of bench/against, which sets up the two servers.
# A round of a cell is one run of client.c, in which both take turns.

use strict;
use warnings;

my $work = $ENV{WORK};
my $rounds = $ENV{ROUNDS};
my $commit = $ENV{COMMIT};
my %servers = (
	this => "host=$work/sock dbname=bench",
	other => "host=$work/against/sock dbname=bench");
my @parts = @ARGV ? @ARGV : qw(stamps pages);
my $n = 100_000;

# One client and its backends share the last processor.
chomp(my $cpus = `nproc`);
my @pin = $cpus > 1 ? ('-c', $cpus - 1) : ();

my $payload = 'publication_id, message_id, message_type, message_key, data';
my @rows;

# Run SQL, each statement by itself; returns what it prints.
sub psql
{
	my ($database, @sql) = @_;
	open my $out, '>', "$work/sql" or die "$work/sql: $!\n";
	print $out map { /\n\z/ ? $_ : "$_;\n" } @sql;
	close $out;
	open my $in, '-|', 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-d', $database, '-f',
	  "$work/sql" or die "psql: $!\n";
	my $printed = join '', <$in>;
	close $in or die "failed: @sql\n";
	chomp $printed;
	return $printed;
}

# One round; figures by server, or nothing where the SQL of one fails.
sub client
{
	my ($method, $params, $columns, $sql, @options) = @_;
	my %figures;
	open my $out, '>', "$work/spec" or die "$work/spec: $!\n";
	for my $server (sort keys %servers)
	{
		my ($its_params, $its_columns, $its_sql) =
		  map { ref $_ eq 'HASH' ? $_->{$server} : $_ } $params, $columns, $sql;
		print $out join("\t", $server, $servers{$server}, $method,
			$its_params, $its_columns, @$its_sql), "\n";
	}
	close $out;
	open my $in, '-|', "$work/client @pin @options -e '-c synchronous_commit=off' <$work/spec"
	  or die "client: $!\n";
	while (my $line = <$in>)
	{
		chomp $line;
		my ($server, $calls, $rows, $bytes, $seconds, $p50, $p99, $cpu) = split /,/, $line;
		$figures{$server} =
		  { rows => $rows / $calls, time => $seconds / $calls, cpu => $cpu / $calls };
	}
	return close($in) ? \%figures : undef;
}

sub median
{
	my @sorted = sort { $a <=> $b } @_;
	return ($sorted[ $#sorted / 2 ] + $sorted[ @sorted / 2 ]) / 2;
}

# The other's cost by this one's, which is the speed of this one.
sub ratio
{
	my ($what, @figures) = @_;
	return 'unknown' if grep { !$_->{this}{$what} } @figures;
	my @ratios = sort { $a <=> $b } map { $_->{other}{$what} / $_->{this}{$what} } @figures;
	return sprintf '%.2f (%.2f to %.2f)', median(@ratios), $ratios[0], $ratios[-1];
}

# All rounds of a cell: what client.c is told, in hashes by server what
# differs; before each round both servers run the SQL before.
sub cell
{
	my ($name, $what, $options, @before) = @_;
	my @figures;
	for my $round (1 .. $rounds)
	{
		print STDERR "$name, round $round of $rounds\n";
		my $figures = eval {
			psql($_, @before) for sort values %servers;
			client(@$what, @$options);
		};
		my ($this, $other) = $figures ? map { $figures->{$_}{rows} } qw(this other) : ();
		if (!$figures || $this < 0.98 * $other || $other < 0.98 * $this)
		{
			print STDERR "$name: skipped, ",
			  $figures ? "$other and $this rows a call" : 'its SQL fails in one of the trees', "\n";
			return;
		}
		push @figures, $figures;
	}
	push @rows, [
		$name,
		sprintf('%.1f', 1e6 * median(map { $_->{other}{cpu} } @figures)),
		sprintf('%.1f', 1e6 * median(map { $_->{this}{cpu} } @figures)),
		ratio('cpu', @figures), ratio('time', @figures) ];
	return;
}

# The query that makes so many messages, whose numbers follow one.
sub messages
{
	my ($number, $count) = @_;
	return "SELECT 'orders', ($number + i)::text, 'OrderPlaced', 'customer-' || i, "
	  . "message($number + i)::jsonb FROM generate_series(1, $count) i";
}

sub stamps
{
	my @empty = ('TRUNCATE feedpub, orders', 'CHECKPOINT');
	my $text = psql($servers{this}, 'SELECT message(481516234200)');
	my $order = 'INSERT INTO orders (customer, total) VALUES (7, 90.50)';
	my $message = "INSERT INTO feedpub ($payload) "
	  . q(VALUES ('orders', $2, 'OrderPlaced', 'customer-7', $1::jsonb));
	my @options = ('-w', 20, '-s', 2, '-n');

	cell('a message alone', [ 'write', "$text;?", '', [$message] ], [ @options, 100 ], @empty);
	cell('an order and its message',
		[ 'write', "$text;?", '', [ 'BEGIN', $order, $message, 'COMMIT' ] ],
		[ @options, 50 ], @empty);
	cell('100 messages in a statement',
		[ 'write', '?', '', [ "INSERT INTO feedpub ($payload) " . messages('$1::bigint', 100) ] ],
		[ @options, 5 ], @empty);

	psql($servers{this}, 'COPY (' . messages('100000000000', $n) . ") TO '$work/copy'");
	cell('COPY of 100,000 messages',
		[ 'once', '', '', [ @empty, "COPY feedpub ($payload) FROM '$work/copy'" ] ],
		[ '-n', 1, '-t', 3 ]);
	return;
}

# An outbox, and a table feed that was attached while it was empty: a thousand
# transactions of a hundred rows each, ten in a batch.
sub load
{
	my ($database) = @_;
	psql(
		$database,
		'SET client_min_messages = warning',
		'SET synchronous_commit = off',
		'SET feedpub.publish_synchronous_commit = off',
		'TRUNCATE feedpub',
		'CREATE TABLE item (id bigint PRIMARY KEY, customer int NOT NULL, note text NOT NULL)',
		q(SELECT feed_attach('item') \gexec) . "\n",
		q(SELECT feed_attach('item')),
		"CREATE PROCEDURE load(n int) LANGUAGE plpgsql AS \$\$
		BEGIN
			FOR k IN 0 .. n - 1 BY 100 LOOP
				INSERT INTO feedpub ($payload) " . messages('100000000000 + k', 100) . ";
				INSERT INTO item SELECT i, i % 1000, repeat('note', 32)
					FROM generate_series(k + 1, k + 100) i;
				COMMIT;
				IF k % 1000 = 900 THEN
					CALL feed_publish();
				END IF;
			END LOOP;
		END
		\$\$",
		"CALL load($n)",
		'VACUUM ANALYZE',
		'CHECKPOINT');
	return;
}

sub pages
{
	my (%outbox, %item, %item_end, %stamp);
	for my $server (sort keys %servers)
	{
		my $middle = sub {
			return psql($servers{$server}, "SET feedpub.max_page_rows = $n",
				"SELECT @_ OFFSET $n / 2 - 1 LIMIT 1");
		};
		load($servers{$server});
		$outbox{$server} = $middle->("cursor FROM feed_read(NULL::feedpub, '', $n)");

		# pages from '' on pass the table's file first, and a cursor of a page
		# has what that rests on
		$item{$server} = psql($servers{$server}, <<"SQL");
SELECT feed_page('item', feed_cursor('item', feed_xid, feed_pos), 1) ->> 'cursor'
FROM (SELECT feed_xid, feed_pos FROM item ORDER BY feed_xid, feed_pos OFFSET $n / 2 LIMIT 1) middle;
SQL
		$item_end{$server} = psql($servers{$server}, "SET feedpub.max_page_rows = $n",
			"SELECT feed_page('item', '$item{$server}', $n) ->> 'cursor'");
		$stamp{$server} =
		  $middle->(q(feed_xid || ';' || feed_pos FROM feedpub ORDER BY feed_xid, feed_pos));
		eval { psql($servers{$server}, q(SELECT feed_subscribe('bench', 'feedpub', 'earliest'))) };
	}

	my $page = sub { "SELECT feed_page('$_[0]', \$1, $_[1])" };
	my $read = sub { "SELECT * FROM feed_read(NULL::feedpub, \$1, $_[0])" };
	my @timed = ('-w', 20, '-s', 1, '-n');
	for ([ 1, 100 ], [ 100, 10 ], [ 1000, 2 ])
	{
		my ($limit, $calls) = @$_;
		cell("feed_page, a page of $limit",
			[ 'json', \%outbox, '', [ $page->('feedpub', $limit) ] ], [ @timed, $calls ]);
		cell("feed_read, a page of $limit",
			[ 'page', \%outbox, '', [ $read->($limit) ] ], [ @timed, $calls ]);
		cell("feed_fetch, a page of $limit",
			[ 'page', \%stamp, '', ["SELECT * FROM feed_fetch(NULL::feedpub, \$1, \$2, $limit)"] ],
			[ @timed, $calls ]);
	}
	cell('feed_page of a table feed, a page of 100',
		[ 'json', \%item, '', [ $page->('item', 100) ] ], [ @timed, 10 ]);
	cell('feed_page of a table feed, a page of 1000',
		[ 'json', \%item, '', [ $page->('item', 1000) ] ], [ @timed, 2 ]);
	cell('feed_page of a table feed, at its end',
		[ 'json', \%item_end, '', [ $page->('item', 100) ] ], [ @timed, 50 ]);

	cell('feed_page, 100,000 messages, pages of 1000',
		[ 'json', "''", '', [ $page->('feedpub', 1000) ] ], [ '-a', '-n', 2 ]);
	cell('feed_read, 100,000 messages, pages of 1000',
		[ 'page', "''", '0', [ $read->(1000) ] ], [ '-a', '-n', 2 ]);

	my @again = (q(SELECT feed_seek('bench', 'earliest')), 'VACUUM');
	my (%poll, %poll_columns, %both, %both_params);
	for my $server (keys %servers)
	{
		my $by_token = psql($servers{$server}, q(SELECT count(*) FROM pg_proc WHERE proname = 'feed_ack_poll'));
		my $columns = $by_token ? 'cursor, op, entry, token' : 'receipt, op, key, row, xid, published_at';

		$poll_columns{$server} = $by_token ? '0,3' : '0';
		$poll{$server} = [ "SELECT $columns FROM feed_poll('bench', 100)",
			$by_token ? q(SELECT feed_ack('bench', $1, $2::bigint)) : q(SELECT feed_ack('bench', $1)) ];
		$both_params{$server} = $by_token ? "'';''" : "''";
		$both{$server} = [ "SELECT $columns FROM " . ($by_token
			? q[feed_ack_poll('bench', nullif($1, ''), nullif($2, '')::bigint, 100)]
			: q[feed_poll('bench', 100, ack => nullif($1, ''))]) ];
	}
	cell('feed_poll and feed_ack, pages of 100', [ 'ack', '', \%poll_columns, \%poll ],
		[ '-a', '-s', 2, '-n', 10 ], @again);
	cell('feed_poll with ack, pages of 100', [ 'page', \%both_params, \%poll_columns, \%both ],
		[ '-a', '-s', 2, '-n', 10 ], @again);
	return;
}

my %parts = (stamps => \&stamps, pages => \&pages);
for my $part (@parts)
{
	die "no such part: $part\n" unless $parts{$part};
}
for my $server (values %servers)
{
	psql($server =~ s/dbname=bench/dbname=postgres/r, 'CREATE DATABASE bench');
	psql($server, 'SET client_min_messages = warning', "\\i $work/tree/bench/schema.sql\n");
}
for my $part (@parts)
{
	$parts{$part}->();
}
print "| | CPU of a call, µs: $commit | this tree | speed by CPU | by time |\n|---|---|---|---|---|\n";
print '| ', join(' | ', @$_), " |\n" for @rows;
