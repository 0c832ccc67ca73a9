# FeedpubCache.pm: consumers that read through a cache, and what happens to the
# feeds meanwhile.
#
#   FeedpubCache->new(GET)  a cache that keeps what Cache-Control allows a cache
#                      that is shared; GET->(PATH, headers) asks the server
#     ->get(PATH, header => value, ...)  a response, as of HTTP::Tiny;
#     {hits}, {misses}   how many came out of it, and how many did not
#   cache_feeds(NODE)  makes the feeds
#   cache_scenarios(NODE, GET)
#                      fills and empties them while consumers read by
#                      GET->(PATH, headers), and tests that they end equal
#   cache_promotion(NODE, GET, SERVE)
#                      promotes a standby that lacks the last batches, which
#                      SERVE->(NODE) serves from then on; returns it
package FeedpubCache;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use FeedpubTest;
use JSON::PP;
use PostgreSQL::Test::Cluster;
use Test::More;
use Time::HiRes 'time';

our @EXPORT = qw(cache_feeds cache_scenarios cache_promotion);

my $LIMIT = 6;

sub new
{
	my ($class, $ask) = @_;

	return bless { ask => $ask, kept => {}, hits => 0, misses => 0 }, $class;
}

sub get
{
	my ($self, $path, %headers) = @_;
	my $key = join "\n", $path, map { $headers{$_} // '' } qw(Accept Authorization);
	my $kept = $self->{kept}{$key};

	if ($kept && time < $kept->{until})
	{
		$self->{hits}++;
		return $kept->{response};
	}
	$self->{misses}++;
	my $response = $self->{ask}->($path, %headers,
		$kept ? ('If-None-Match' => $kept->{response}{headers}{etag}) : ());
	return $kept->{response} if $kept && $response->{status} == 304;
	my $caching = $response->{headers}{'cache-control'} // '';
	if ($caching =~ /no-store|private/)
	{
		delete $self->{kept}{$key};
	}
	else
	{
		my ($age) = $caching =~ /max-age=(\d+)/;

		$self->{kept}{$key} = { response => $response, until => time + ($age // 0) };
	}
	return $response;
}

# A consumer: what it has got, of the outbox a list of numbers, of the table a
# copy, and where it goes on.
sub consumer
{
	my ($feed) = @_;

	return { feed => $feed, list => [], copy => {}, url => "/feeds/$feed?limit=$LIMIT",
		restarts => 0 };
}

# Reads on to the end, or at most so many pages.
sub follow
{
	my ($consumer, $get, $pages) = @_;
	my $requests = 0;

	$consumer->{restarts} = 0;
	while (1)
	{
		return fail("$consumer->{feed}: a consumer goes round in circles")
		  if ++$requests > 500;
		my $response = $get->($consumer->{url});

		if ($response->{status} == 307)
		{
			$consumer->{url} =~ s/\?.*//s;
			$consumer->{url} .= $response->{headers}{location};
			next;
		}
		if ($response->{status} == 410)
		{
			my $restarts = $consumer->{restarts} + 1;

			%$consumer = (%{ consumer($consumer->{feed}) }, restarts => $restarts);
			next;
		}
		return fail("$consumer->{feed}: status $response->{status}: $response->{content}")
		  if $response->{status} != 200;
		my $page = $response->{page} //= decode_json($response->{content});
		for my $entry (@{ $page->{entries} })
		{
			my $k = $entry->{key}{k};

			push @{ $consumer->{list} }, $entry->{row}{data} if $consumer->{feed} eq 'outbox';
			next if $consumer->{feed} eq 'outbox';
			$consumer->{copy} = {} if $entry->{op} eq 'truncate';
			delete $consumer->{copy}{$k} if $entry->{op} eq 'delete';
			$consumer->{copy}{$k} = $entry->{row}{v} if $entry->{op} eq 'upsert';
		}
		$consumer->{url} = "/feeds/$consumer->{feed}?after=$page->{cursor}&limit=$LIMIT";
		last if !$page->{more} || (defined $pages && --$pages <= 0);
	}
	return;
}

# All consumers read to the end, twice, so that one meets what another left in
# the cache: each then has what is there, after at most one restart.
sub ends_equal
{
	my ($node, $get, $test, @consumers) = @_;
	my %there = (
		outbox => sql($node, q(SELECT string_agg(data #>> '{}', ' ' ORDER BY feed_pos) FROM outbox)),
		kv => sql($node, q(SELECT string_agg(k || '=' || v, ' ' ORDER BY k COLLATE "C") FROM kv)));
	my @wrong;

	push @consumers, consumer('outbox'), consumer('kv');
	for my $turn (1 .. 2)
	{
		for my $i (0 .. $#consumers)
		{
			my $c = $consumers[$i];
			follow($c, $get);
			my $has = $c->{feed} eq 'outbox' ? join(' ', @{ $c->{list} }) :
			  join(' ', map { "$_=$c->{copy}{$_}" } sort keys %{ $c->{copy} });

			# what was removed may have been got before
			push @wrong, "$c->{feed} consumer $i, turn $turn: has \"$has\""
			  if $c->{feed} eq 'outbox' ? $has !~ /(?:^| )\Q$there{outbox}\E$/ :
			  $has ne $there{kv};
			push @wrong, "$c->{feed} consumer $i, turn $turn: $c->{restarts} restarts"
			  if $c->{restarts} > ($turn == 1 ? 1 : 0);
		}
	}
	return is_deeply(\@wrong, [], $test);
}

sub cache_feeds
{
	my ($node) = @_;

	return sql($node, <<'SQL');
SELECT feed_create('outbox');
CREATE TABLE kv (k text PRIMARY KEY, v int);
SELECT feed_attach('kv'), feed_start_worker();
CREATE SEQUENCE numbers;
SQL
}

# Messages, and rows of kv: new ones, changed ones and deleted ones.
sub fill
{
	my ($node) = @_;

	for (1 .. 3)
	{
		sql($node, <<'SQL');
INSERT INTO outbox (message_type, data) SELECT 'A', to_jsonb(nextval('numbers')) FROM generate_series(1, 12);
INSERT INTO kv SELECT 'k' || nextval('numbers'), 1 FROM generate_series(1, 12);
UPDATE kv SET v = v + 1 WHERE k LIKE '%3';
DELETE FROM kv WHERE k LIKE '%7';
SELECT feed_flush('outbox'), feed_flush('kv');
SQL
	}
	return;
}

# Consumers at the beginning, on the way and at the end; and pages in the cache.
sub consumers
{
	my ($get) = @_;
	my @consumers;

	for my $feed (qw(outbox kv))
	{
		for my $pages (1, 3, 5, undef)
		{
			my $consumer = consumer($feed);
			follow($consumer, $get, $pages);
			push @consumers, $consumer;
		}
		follow(consumer($feed), $get);
	}
	return @consumers;
}

sub cache_scenarios
{
	my ($node, $get) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my @consumers;

	fill($node);
	@consumers = consumers($get);
	fill($node);
	ends_equal($node, $get, 'all read on', @consumers);

	for my $time (1, 2)
	{
		@consumers = consumers($get);
		fill($node);
		sql($node, 'CALL feed_purge(\'outbox\', feed_head(\'outbox\'))');
		sql($node, 'CALL feed_purge(\'kv\', feed_head(\'kv\'))');
		fill($node);
		ends_equal($node, $get, "a purge, time $time", @consumers);
	}

	# deletes expire: those that are there, and then no others
	@consumers = consumers($get);
	fill($node);
	my $floor = sql($node, q(SELECT feed_floor('kv')));
	sql($node, q(SELECT feed_retain('kv', max_age => '1 ms')));
	is_soon($node, "feed_floor('kv') <> '$floor'", 'deletes expire');
	sql($node, q(SELECT feed_retain('kv', max_age => '1 h')));
	ends_equal($node, $get, 'an expiry of deletes', @consumers);
	@consumers = consumers($get);
	fill($node);
	sql($node, 'CALL feed_purge(\'kv\', feed_head(\'kv\'))');
	ends_equal($node, $get, 'and a purge', @consumers);

	for my $time (1, 2)
	{
		@consumers = consumers($get);
		fill($node);
		sql($node, "SELECT feed_begin_history('$_')") for qw(outbox kv);
		sql($node, "SELECT feed_flush('$_')") for qw(outbox kv);
		ends_equal($node, $get, "another history, time $time", @consumers);
	}

	# the server starts again: its cursors are others
	@consumers = consumers($get);
	$node->stop('immediate');
	$node->start;
	fill($node);
	ends_equal($node, $get, 'a crash', @consumers);
	return;
}

sub cache_promotion
{
	my ($node, $get, $serve) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $new = PostgreSQL::Test::Cluster->new('new_' . $node->name);
	my @consumers;

	$node->backup('base');
	$new->init_from_backup($node, 'base', has_streaming => 1);
	$new->start;
	@consumers = consumers($get);
	fill($node);
	$node->wait_for_replay_catchup($new);
	$new->stop;
	push @consumers, consumers($get);

	# what the standby never has is in the cache too
	fill($node);
	push @consumers, consumers($get);
	$node->stop('immediate');
	$new->append_conf('postgresql.conf', q(primary_conninfo = ''));
	$new->start;
	$new->promote;
	sql($new, 'SELECT feed_start_worker()');
	$serve->($new);

	# A consumer that was at the fork cannot tell what the table had after it:
	# the owner has all begin again.
	sql($new, q(SELECT feed_begin_history('kv')));
	fill($new);
	ends_equal($new, $get, 'a standby that lacks the last batches', @consumers);
	@consumers = consumers($get);
	fill($new);
	ends_equal($new, $get, 'and goes on', @consumers);
	return $new;
}

1;
