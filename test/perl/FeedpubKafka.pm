# FeedpubKafka.pm: a broker for tests of feedpub-relay: what Kafka's protocol says
# of transactions, and nothing else: one broker, records in a file.
#
#   kafka_start(option => value, ...)  starts it on 127.0.0.1.  Options: port (a
#                      free one), partitions (4, of each topic)
#   kafka_do(KAFKA, COMMAND, ...)      from now on:
#                      fail API CODE [N]  the next N (1) requests of an API fail
#                      cut                all connections end, unanswered
#                      delay MS           how long answers wait
#                      settle MS          how long a transaction takes to end, after
#                                         the broker has said that it does
#                      late MS            how long after a transaction has ended its
#                                         offsets can be read
#                      pass API           none of them fails any more
#                      lose API           the next request is done, and its
#                                         connection cut instead of an answer
#                      limit BYTES        of a batch of records
#                      forget             committed offsets are gone
#   kafka_records(KAFKA)               what a reader with read_committed gets, in the
#                      order of the log: hashes with topic, partition, offset, key,
#                      value (undef: null), headers (a hash), transaction
#   kafka_count(KAFKA, EVENT)          how often: append, commit, abort, fence
#   kafka_offset(KAFKA, GROUP)         the metadata of its committed offset
#   kafka_stop(KAFKA)
#
# It keeps to what makes transactions of Kafka whole: InitProducerId ends the
# transaction that is open and begins an epoch, requests of older epochs are
# refused, records need their partition in the transaction and the next sequence,
# and records and offsets count when their transaction is committed.  It speaks the
# versions of the protocol before compact fields, but for OffsetFetch, whose newest
# version waits for offsets that are being committed.
package FeedpubKafka;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use FeedpubTest;
use IO::Select;
use IO::Socket::INET;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Time::HiRes 'time';

our @EXPORT = qw(kafka_start kafka_do kafka_records kafka_count kafka_offset kafka_stop);


sub kafka_start
{
	my (%options) = @_;
	my $port = $options{port} // PostgreSQL::Test::Cluster::get_free_port();
	my $kafka = {
		port => $port,
		url => "kafka://127.0.0.1:$port",
		log => PostgreSQL::Test::Utils::tempdir() . '/log',
		partitions => $options{partitions} // 4
	};

	PostgreSQL::Test::Utils::append_to_file($kafka->{log}, '');
	my $listener = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $port,
		Listen => 100, ReuseAddr => 1) or die "could not listen: $!";
	pipe(my $commands, $kafka->{commands}) or die $!;
	pipe(my $answers, my $answer) or die $!;
	$kafka->{pid} = fork // die "could not fork: $!";
	if (!$kafka->{pid})
	{
		close $kafka->{commands};
		eval { serve($kafka, $listener, $commands, $answer); 1 } or warn $@;
		POSIX::_exit(0);
	}
	$kafka->{answers} = $answers;
	ends_with_test($kafka->{pid});
	return $kafka;
}

# It has been done when this returns.
sub kafka_do
{
	my ($kafka, @command) = @_;

	syswrite $kafka->{commands}, join(' ', @command) . "\n";
	sysread $kafka->{answers}, my $done, 1 or die 'the broker has ended';
	return;
}

# Events are lines: what it is, a transaction, and what belongs to it, with tabs
# between, each as put_field() makes it.
sub put_field { return defined $_[0] ? $_[0] =~ s/([\\\t\n])/sprintf '\\%03o', ord $1/ger : '\N' }
sub get_field { return $_[0] eq '\N' ? undef : $_[0] =~ s/\\(\d{3})/chr oct $1/ger }

sub events
{
	my ($kafka, @wanted) = @_;
	my %wanted = map { $_ => 1 } @wanted;

	open my $in, '<', $kafka->{log} or die $!;
	return map { my ($event, @fields) = split /\t/; $wanted{$event} ? [ $event, map { get_field($_) } @fields ] : () }
	  map { s/\n\z//r } <$in>;
}

sub kafka_records
{
	my ($kafka) = @_;

	# what is to be committed is so
	kafka_do($kafka, 'end');
	my %is_committed = map { $_->[1] => 1 } events($kafka, 'commit');
	return map {
		my (undef, $transaction, $topic, $partition, $offset, $key, $value, @headers) = @$_;
		{ topic => $topic, partition => $partition, offset => $offset, key => $key, value => $value, headers => {@headers},
			transaction => $transaction };
	} grep { $is_committed{ $_->[1] } } events($kafka, 'append');
}

sub kafka_count
{
	my ($kafka, $event) = @_;
	return scalar(() = PostgreSQL::Test::Utils::slurp_file($kafka->{log}) =~ /^\Q$event\E\t/mg);
}

sub kafka_offset
{
	my ($kafka, $group) = @_;
	my $metadata;

	kafka_do($kafka, 'end');
	for (events($kafka, 'commit'))
	{
		my (undef, undef, %offsets) = @$_;

		$metadata = $offsets{$group} // $metadata;
	}
	return $metadata;
}

sub kafka_stop
{
	my ($kafka) = @_;

	end_process($kafka->{pid});
	return;
}

# The broker

my ($kafka, %topics, %producers, %offsets, @pending, %fail, %lose, $log);
my ($delay, $settle, $late, $limit, $last_producer, $last_transaction) = (0, 5, 0, 1_000_000, 1000, 0);

# Numbers of the protocol's errors
my ($UNKNOWN_TOPIC, $TOO_LARGE, $OUT_OF_ORDER, $INVALID_EPOCH, $INVALID_STATE, $CONCURRENT, $UNSTABLE)
  = (3, 10, 45, 47, 48, 51, 88);

my %apis = (
	Produce => [ 0, 0, 3, \&produce ],
	Fetch => [ 1, 0, 4 ],
	ListOffsets => [ 2, 0, 2, \&list_offsets ],
	Metadata => [ 3, 0, 4, \&metadata ],
	OffsetCommit => [ 8, 0, 2 ],
	OffsetFetch => [ 9, 0, 7, \&fetch_offsets ],
	FindCoordinator => [ 10, 0, 1, \&find_coordinator ],
	JoinGroup => [ 11, 0, 0 ],
	Heartbeat => [ 12, 0, 0 ],
	LeaveGroup => [ 13, 0, 0 ],
	SyncGroup => [ 14, 0, 0 ],
	ApiVersions => [ 18, 0, 0, \&versions ],
	InitProducerId => [ 22, 0, 1, \&init_producer ],
	AddPartitionsToTxn => [ 24, 0, 0, \&add_partitions ],
	AddOffsetsToTxn => [ 25, 0, 0, \&add_offsets ],
	EndTxn => [ 26, 0, 0, \&end_transaction ],
	TxnOffsetCommit => [ 28, 0, 0, \&commit_offsets ]);
my %api_of = map { $apis{$_}[0] => $_ } keys %apis;

# What is read, from the front of a text, and what is written
sub get { my ($in, $length) = @_; return substr $$in, 0, $length, '' }
sub int8 { return unpack 'c', get($_[0], 1) }
sub int16 { return unpack 's>', get($_[0], 2) }
sub int32 { return unpack 'l>', get($_[0], 4) }
sub int64 { return unpack 'q>', get($_[0], 8) }
sub string { my $length = int16($_[0]); return $length < 0 ? undef : get($_[0], $length) }

sub list
{
	my ($in, $item) = @_;
	my $count = int32($in);

	return map { $item->($in) } 1 .. $count;
}
sub put_string { return defined $_[0] ? pack('s>/a*', $_[0]) : pack('s>', -1) }
sub put_list { return pack('l>', scalar @_) . join '', @_ }

# the same of newer versions: an unsigned number of variable length, one more than
# a length is, and a number of fields to come, which is 0
sub unsigned
{
	my ($in) = @_;
	my ($value, $shift, $byte) = (0, 0);

	do
	{
		$byte = ord get($in, 1);
		$value |= ($byte & 127) << $shift;
		$shift += 7;
	} while ($byte & 128);
	return $value;
}

sub signed { my $value = unsigned($_[0]); return $value & 1 ? -($value >> 1) - 1 : $value >> 1 }
sub varbytes { my $length = signed($_[0]); return $length < 0 ? undef : get($_[0], $length) }

sub put_unsigned
{
	my ($value) = @_;
	my $out = '';

	for (; $value > 127; $value >>= 7)
	{
		$out .= chr($value & 127 | 128);
	}
	return $out . chr $value;
}
sub put_compact { return defined $_[0] ? put_unsigned(1 + length $_[0]) . $_[0] : "\0" }

sub serve
{
	my ($self, $listener, $commands, $answer) = @_;
	my $select = IO::Select->new($listener, $commands);
	my (%buffers, @late);

	$kafka = $self;
	open $log, '>>', $kafka->{log} or die $!;
	# a test may ask when it has an answer
	local $SIG{PIPE} = 'IGNORE';
	while (1)
	{
		for my $handle ($select->can_read(0.002))
		{
			# it may have been cut in this round
			next if !defined fileno $handle;
			if ($handle == $listener)
			{
				my $client = $listener->accept or next;
				$select->add($client);
				$buffers{$client} = '';
			}
			elsif ($handle == $commands)
			{
				my $line = '';

				# one at a time, since kafka_do() waits
				sysread $commands, $line, 4096 or return;
				obey(split ' ', $line);
				if ($line =~ /^cut/)
				{
					for my $client (grep { $_ != $listener && $_ != $commands } $select->handles)
					{
						$select->remove($client);
						close $client;
					}
					@late = ();
				}
				syswrite $answer, '.';
			}
			elsif (!sysread $handle, $buffers{$handle}, 1 << 20, length $buffers{$handle})
			{
				$select->remove($handle);
				delete $buffers{$handle};
				close $handle;
			}
			else
			{
				while (length $buffers{$handle} >= 4)
				{
					my $length = unpack 'N', $buffers{$handle};

					last if length $buffers{$handle} < 4 + $length;
					get(\$buffers{$handle}, 4);
					my $response = respond(get(\$buffers{$handle}, $length));
					push @late, [ time + $delay / 1000, $handle, $response ] if defined $response;
					next if defined $response;
					$select->remove($handle);
					delete $buffers{$handle};
					close $handle;
					last;
				}
			}
		}
		settle();
		$log->flush;
		while (@late && $late[0][0] <= time)
		{
			my (undef, $handle, $response) = @{ shift @late };

			next if !defined fileno $handle;
			$handle->blocking(1);
			syswrite $handle, pack('N/a*', $response);
		}
	}
	return;
}

sub obey
{
	my ($command, @arguments) = @_;

	if ($command eq 'fail') { push @{ $fail{ $arguments[0] } }, ($arguments[1]) x ($arguments[2] // 1) }
	elsif ($command eq 'pass') { delete $fail{ $arguments[0] } }
	elsif ($command eq 'lose') { $lose{ $arguments[0] }++ }
	elsif ($command eq 'delay') { $delay = $arguments[0] }
	elsif ($command eq 'settle') { $settle = $arguments[0] }
	elsif ($command eq 'end') { end_now($_) for grep { $_->{transaction} && $_->{transaction}{ends_at} } values %producers; $log->flush }
	elsif ($command eq 'late') { $late = $arguments[0] }
	elsif ($command eq 'limit') { $limit = $arguments[0] }
	elsif ($command eq 'forget')
	{
		# those too that are being committed
		for (grep { $_->{transaction} && $_->{transaction}{ends_at} } values %producers)
		{
			end_now($_);
		}
		@pending = ();
		%offsets = ();
	}
	return;
}

# The answer to a request, or undef if it is lost.
sub respond
{
	my ($request) = @_;
	my ($key, $version, $id) = unpack 's>s>l>', get(\$request, 8);
	my $name = $api_of{$key} // die "unknown API $key";
	my (undef, undef, $newest, $code) = @{ $apis{$name} };

	die "API $name is not here" if !$code;
	string(\$request);
	# a client asks for versions in the newest way that it has, and then in the oldest
	return pack('l>', $id) . versions(\$request, $version, 35) if $name eq 'ApiVersions' && $version > 0;
	die "$name has no version $version" if $version > $newest;
	my $error = @{ $fail{$name} // [] } ? shift @{ $fail{$name} } : 0;
	my $answer = pack('l>', $id) . $code->(\$request, $version, $error);
	return $answer if !$lose{$name};
	$lose{$name}--;
	return;
}

sub versions
{
	my ($in, $version, $error) = @_;

	return pack('s>', $error)
	  . put_list(map { pack 's>3', @{ $apis{$_} }[ 0 .. 2 ] } sort { $apis{$a}[0] <=> $apis{$b}[0] } keys %apis);
}

sub topic
{
	my ($name) = @_;
	return $topics{$name} //= [ map { { end => 0 } } 1 .. $kafka->{partitions} ];
}

sub metadata
{
	my ($in, $version, $error) = @_;
	my $count = int32($in);
	my @names = $count < 0 || ($count == 0 && $version == 0) ? sort keys %topics : map { string($in) } 1 .. $count;

	return ($version >= 3 ? pack('l>', 0) : '')
	  . put_list(pack('l>', 1) . put_string('127.0.0.1') . pack('l>', $kafka->{port}) . ($version >= 1 ? put_string(undef) : ''))
	  . ($version >= 2 ? put_string('test') : '')
	  . ($version >= 1 ? pack('l>', 1) : '')
	  . put_list(
		map {
			pack('s>', $error) . put_string($_) . ($version >= 1 ? "\0" : '')
			  . put_list($error ? () : map { pack 's>l>l>l>l>l>l>', 0, $_, 1, 1, 1, 1, 1 } 0 .. $#{ topic($_) })
		} @names);
}

sub find_coordinator
{
	my ($in, $version, $error) = @_;

	return ($version >= 1 ? pack('l>', 0) : '') . pack('s>', $error)
	  . ($version >= 1 ? put_string(undef) : '') . pack('l>', 1) . put_string('127.0.0.1') . pack('l>', $kafka->{port});
}

sub list_offsets
{
	my ($in, $version, $error) = @_;

	int32($in);
	int8($in) if $version >= 2;
	return ($version >= 2 ? pack('l>', 0) : '') . put_list(list($in, sub {
		my $name = string($in);

		return put_string($name) . put_list(list($in, sub {
			my ($partition, $time) = (int32($in), int64($in));

			int32($in) if $version == 0;
			my $offset = $time == -2 ? 0 : topic($name)->[$partition]{end};
			return pack('l>s>', $partition, $error) . ($version == 0 ? put_list(pack 'q>', $offset) : pack('q>q>', -1, $offset));
		}));
	}));
}

sub note
{
	print $log join("\t", map { put_field($_) } @_), "\n";
	return;
}

# The transaction of a producer ends: what it has counts, or does not.
sub end_now
{
	my ($producer) = @_;
	my $transaction = delete $producer->{transaction} // return;

	push @pending, [ time + $late / 1000, $transaction->{offsets} ] if $transaction->{commits};
	$_->{end}++ for values %{ $transaction->{partitions} };
	note($transaction->{commits} ? 'commit' : 'abort', $transaction->{id},
		map { ((split /\0/)[0] => $transaction->{offsets}{$_}[1]) } sort keys %{ $transaction->{offsets} });
	return;
}

# Transactions that have been told to end, and those that take too long; offsets
# of those that have ended.
sub settle
{
	while (@pending && $pending[0][0] <= time)
	{
		my (undef, $new) = @{ shift @pending };

		@offsets{ keys %$new } = values %$new;
	}
	for my $producer (values %producers)
	{
		my $transaction = $producer->{transaction} // next;

		if ($transaction->{ends_at} ? $transaction->{ends_at} <= time : $transaction->{expires_at} <= time)
		{
			$producer->{epoch}++ if !$transaction->{ends_at};
			end_now($producer);
		}
	}
	return;
}

sub init_producer
{
	my ($in, $version, $error) = @_;
	my ($name, $timeout) = (string($in), int32($in));
	my $producer = $producers{$name} //= { name => $name, id => $last_producer++, epoch => -1 };
	my $transaction = $producer->{transaction};

	# one that is being committed stays so; one that is open is aborted
	$error ||= $CONCURRENT if $transaction && $transaction->{ends_at};
	if ($transaction && !$transaction->{ends_at} && !$error)
	{
		# the client asks again
		$producer->{epoch}++;
		$transaction->{ends_at} = time + $settle / 1000;
		note('fence', $transaction->{id});
		$error = $CONCURRENT;
	}
	return pack 'l>s>q>s>', 0, $error, -1, -1 if $error;
	$producer->{epoch}++;
	$producer->{timeout} = $timeout;
	$producer->{next} = {};
	return pack 'l>s>q>s>', 0, 0, $producer->{id}, $producer->{epoch};
}

# The producer of a request, and why it cannot be served now; "begin": a
# transaction begins by it.
sub check_producer
{
	my ($name, $id, $epoch, $begin) = @_;
	my $producer = $producers{ $name // '' } // return (undef, $INVALID_EPOCH);
	my $transaction = $producer->{transaction};

	return ($producer, $INVALID_EPOCH) if $producer->{id} != $id || $producer->{epoch} != $epoch;
	return ($producer, $CONCURRENT) if $transaction && $transaction->{ends_at};
	if (!$transaction && $begin)
	{
		$producer->{transaction} = { id => ++$last_transaction, partitions => {}, groups => {}, offsets => {},
			expires_at => time + $producer->{timeout} / 1000 };
	}
	return ($producer, $producer->{transaction} ? 0 : $INVALID_STATE);
}

sub add_partitions
{
	my ($in, $version, $error) = @_;
	my ($producer, $problem) = check_producer(string($in), int64($in), int16($in), !$error);

	$error ||= $problem;
	return pack('l>', 0) . put_list(list($in, sub {
		my $name = string($in);

		return put_string($name) . put_list(list($in, sub {
			my $partition = int32($in);

			$producer->{transaction}{partitions}{"$name\0$partition"} = topic($name)->[$partition] if !$error;
			return pack 'l>s>', $partition, $error;
		}));
	}));
}

sub add_offsets
{
	my ($in, $version, $error) = @_;
	my ($producer, $problem) = check_producer(string($in), int64($in), int16($in), !$error);

	$error ||= $problem;
	$producer->{transaction}{groups}{ string($in) } = 1 if !$error;
	return pack 'l>s>', 0, $error;
}

sub commit_offsets
{
	my ($in, $version, $error) = @_;
	my ($name, $group) = (string($in), string($in));
	my ($producer, $problem) = check_producer($name, int64($in), int16($in), 0);

	$error ||= $problem || ($producer->{transaction}{groups}{$group} ? 0 : $INVALID_STATE);
	return pack('l>', 0) . put_list(list($in, sub {
		my $topic = string($in);

		return put_string($topic) . put_list(list($in, sub {
			my ($partition, $offset, $metadata) = (int32($in), int64($in), string($in));
			my $result = $error || (exists $topics{$topic} ? 0 : $UNKNOWN_TOPIC);

			$producer->{transaction}{offsets}{"$group\0$topic\0$partition"} = [ $offset, $metadata ] if !$result;
			return pack 'l>s>', $partition, $result;
		}));
	}));
}

sub end_transaction
{
	my ($in, $version, $error) = @_;
	my ($name, $id, $epoch, $commits) = (string($in), int64($in), int16($in), int8($in));
	my $transaction = ($producers{$name} // {})->{transaction};

	# its answer may have been lost
	return pack 'l>s>', 0, 0
	  if !$error && $transaction && $transaction->{ends_at} && $producers{$name}{epoch} == $epoch
	  && $transaction->{commits} == $commits;
	my ($producer, $problem) = check_producer($name, $id, $epoch, 0);

	# nor does it matter if that transaction has ended
	$problem = 0
	  if $problem == $INVALID_STATE && $producer && ($producer->{ended} // -1) == $commits;
	$error ||= $problem;
	if (!$error && $producer->{transaction})
	{
		$producer->{ended} = $producer->{transaction}{commits} = $commits;
		$producer->{transaction}{ends_at} = time + $settle / 1000;
	}
	return pack 'l>s>', 0, $error;
}

sub fetch_offsets
{
	my ($in, $version, $error) = @_;
	my $is_new = $version >= 6;
	my $text = sub { $is_new ? get($in, unsigned($in) - 1) : string($in) };
	my $count = sub { $is_new ? unsigned($in) - 1 : int32($in) };
	my $put_count = sub { $is_new ? put_unsigned(1 + $_[0]) : pack 'l>', $_[0] };
	my $put_text = sub { $is_new ? put_compact($_[0]) : put_string($_[0]) };
	my $tags = $is_new ? "\0" : '';

	get($in, 1) if $is_new;		# the end of the request's header
	my $group = $text->();
	my @topics = map {
		my $name = $text->();
		my @partitions = map { int32($in) } 1 .. $count->();
		get($in, 1) if $is_new;
		[ $name, @partitions ];
	} 1 .. $count->();
	my $waits = $version >= 7 && int8($in);
	my $out = $tags . ($version >= 3 ? pack('l>', 0) : '') . $put_count->(scalar @topics);

	for (@topics)
	{
		my ($name, @partitions) = @$_;

		$out .= $put_text->($name) . $put_count->(scalar @partitions);
		for my $partition (@partitions)
		{
			my $key = "$group\0$name\0$partition";
			my ($offset, $metadata) = @{ $offsets{$key} // [ -1, '' ] };
			my $unstable = $waits && grep { exists $_->{$key} } map({ $_->[1] } @pending),
			  map { ($_->{transaction} // {})->{offsets} // {} } values %producers;

			$out .= pack('l>q>', $partition, $offset) . ($version >= 5 ? pack('l>', -1) : '')
			  . $put_text->($metadata) . pack('s>', $error || ($unstable ? $UNSTABLE : 0)) . $tags;
		}
		$out .= $tags;
	}
	return $out . ($version >= 2 ? pack('s>', 0) : '') . $tags;
}

sub produce
{
	my ($in, $version, $error) = @_;
	my ($name) = (string($in), int16($in), int32($in));
	my $answer = put_list(list($in, sub {
		my $topic = string($in);

		return put_string($topic) . put_list(list($in, sub {
			my ($partition, $records) = (int32($in), get($in, int32($in)));
			my ($result, $offset) = $error ? ($error, -1) : append($name, $topic, $partition, \$records);

			return pack 'l>s>q>q>', $partition, $result, $offset, -1;
		}));
	}));

	return $answer . pack 'l>', 0;
}

# Append a batch of records to a partition; returns an error, or the offset.
sub append
{
	my ($name, $topic, $partition, $in) = @_;
	my $size = length $$in;
	my (undef, $length, undef, $magic, undef, $attributes, undef, undef, undef, $id, $epoch, $sequence, $count)
	  = unpack 'q>l>l>cNs>l>q>q>q>s>l>l>', get($in, 61);

	die 'not one batch of records of the newest format, as it is' if $magic != 2 || $attributes & 7 || $length != $size - 12;
	die 'not in a transaction' if !($attributes & 16) || !defined $name;
	return ($TOO_LARGE, -1) if $size > $limit;
	my ($producer, $problem) = check_producer($name, $id, $epoch, 0);

	return ($problem, -1) if $problem;
	my $log_of = $producer->{transaction}{partitions}{"$topic\0$partition"} // return ($INVALID_STATE, -1);
	my $next = $producer->{next}{"$topic\0$partition"} //= { sequence => 0 };

	return (0, $next->{before}{$sequence}) if exists(($next->{before} //= {})->{$sequence});
	return ($OUT_OF_ORDER, -1) if $sequence != $next->{sequence};
	my $offset = $log_of->{end};

	for my $i (0 .. $count - 1)
	{
		my $record = get($in, signed($in));
		my $r = \$record;

		int8($r);
		signed($r);
		signed($r);
		my ($key, $value) = (varbytes($r), varbytes($r));
		my @headers = map { my $n = varbytes($r); ($n => varbytes($r)) } 1 .. signed($r);

		note('append', $producer->{transaction}{id}, $topic, $partition, $offset + $i, $key, $value, @headers);
	}
	$log_of->{end} += $count;
	$next->{before}{$sequence} = $offset;
	$next->{sequence} += $count;
	return (0, $offset);
}

1;
