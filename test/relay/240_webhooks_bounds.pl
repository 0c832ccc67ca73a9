# What bounds a webhook: bytes of a page, answers that are absurd, connections that
# break; entries that cannot be written as JSON; what SIGHUP leaves.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubReceiver;
use FeedpubRelay;
use FeedpubTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'");
my $receiver = receiver_start(early => 1);
my $directory = PostgreSQL::Test::Utils::tempdir();

append_to_file("$directory/secrets", 'whsec_' . 'A' x 32);
sql($node, <<'SQL');
SELECT feed_start_worker();
SELECT feed_create('outbox');
CREATE TYPE mood AS ENUM ('sad', 'gone');
CREATE TABLE broken (k int PRIMARY KEY, m mood);
SELECT feed_attach('broken');
INSERT INTO broken VALUES (1, 'sad'), (2, 'gone'), (3, 'sad');
DELETE FROM pg_enum WHERE enumlabel = 'gone';
SELECT feed_flush('broken');
SQL

sub start
{
	my (%options) = @_;

	return relay_start($node, undef, to => $receiver->{url}, secrets => "$directory/secrets",
		subscription => 'hook', allow => '127.0.0.1', request_timeout => 120, %options);
}

# With the key that they begin with.
sub insert
{
	my (@data) = @_;

	my $array = '{' . join(',', @data) . '}';

	sql($node, "INSERT INTO outbox (message_type, message_key, message_id, data) SELECT 'n', left(d, 1), d, to_json(d) FROM unnest('$array'::text[]) d");
	return;
}

# The requests with this message, and how often.
sub of { return grep { $_->{headers}{'webhook-id'} eq $_[0] } receiver_requests($receiver) }
sub sent { my ($relay, $n, $test) = @_; return soon(sub { relay_metric($relay, 'sent_total') == $n }, $test) || diag(relay_log($relay)) }
sub most_memory { my ($relay) = @_; return slurp_file("/proc/$relay->{pid}/status") =~ /^VmHWM:\s+(\d+) kB/m ? $1 / 1024 : die }

# large rows; the first request is answered before it has been read; a proxy of the
# environment is not taken
sql($node, q{INSERT INTO outbox (message_type, message_id, data) SELECT 'n', i, to_json(repeat('x', 3000000)) FROM generate_series(1, 24) i});
my $relay = start(env => { map { $_ => 'http://127.0.0.1:1' } qw(http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY) });
sent($relay, 24, '24 rows of 3 MB');
my $memory = most_memory($relay);
cmp_ok($memory, '<', 60, 'take no more memory than a few of them');
note("$memory MB");
is(scalar(grep { $_->{length} == 3000002 } receiver_requests($receiver)), 24, 'each arrives once');

# headers without end: the status counts
receiver_rules($receiver, { match => 'a1', flood => 60000 });
insert('a1');
sent($relay, 25, 'an answer with 60 MB of headers');
cmp_ok(most_memory($relay), '<', $memory + 10, 'takes no memory');

# connections that the receiver closes when they could be used again
receiver_rules($receiver, { match => '.', close => 1 });
my $failures = relay_metric($relay, 'failures_total');
insert(map { "b$_" } 1 .. 9);
sent($relay, 34, 'connections that are closed unsaid');
is(relay_metric($relay, 'failures_total'), $failures, 'are no failures');

# the database is restarted while requests are in flight
receiver_rules($receiver, { match => '.', delay => 0.3 });
insert(map { "c$_" } 1 .. 9);
soon(sub { of('c2') }, 'in the middle');
$node->restart;
soon(sub { of('c9') }, 'the database is restarted');
soon(sub { sql($node, q{SELECT lag IS NULL FROM feedpub.subscriptions}) eq 't' }, 'all is acknowledged');
my %seen;
is_deeply([ grep { /^c/ && !$seen{$_}++ } map { $_->{headers}{'webhook-id'} } receiver_requests($receiver) ],
	[ map { "c$_" } 1 .. 9 ], 'in order');
relay_stop($relay);

# Retry-After as a date
$relay = start(attempts => 2);
receiver_rules($receiver, { match => 'd1', status => 503, times => 1, retry_at => 4 });
insert('d1');
sent($relay, 1, 'Retry-After as a date');
my @times = map { $_->{time} } of('d1');
cmp_ok($times[1] - $times[0], '>=', 2, 'is waited for');

# ... that is none
receiver_rules($receiver, map { { match => $_->[0], status => 503, times => 1, headers => { 'Retry-After' => $_->[1] } } } [ d2 => 'soon' ],
	[ d3 => '-99999999999999999999' ], [ d6 => '9999999999999999999999' ], [ d4 => 'Thu, 01 Jan 1970 00:00:00 GMT' ], [ d5 => '' ]);
insert(map { "d$_" } 2 .. 6);
sent($relay, 6, 'one that says nothing is as none');

# ... of ages
receiver_rules($receiver, { match => 'e1', status => 431, headers => { 'Retry-After' => '99999999999' } });
insert('e1');
relay_logs($relay, qr/answered with status 431/, 'a request whose headers are too large');
is(relay_stop($relay), 0, 'is no reason to wait at the end');
$relay = start(attempts => 1);
is_soon($node, q{(SELECT retry_at BETWEEN now() + '23 h' AND now() + '1 day' AND reason LIKE '%status 431' FROM feedpub.parked)}, 'is parked for a day at most');
is(relay_metric($relay, 'parked_total'), 1, 'and counted');

# too many requests: none is parked, though others are accepted
receiver_rules($receiver, { match => 'f1', status => 429, times => 3, headers => { 'Retry-After' => 1 } });
insert('f1', 'g1', 'f2', 'g2');
sent($relay, 4, 'too many requests');
is(scalar(of('f1')), 4, 'are no attempts that count');
is(relay_metric($relay, 'parked_total'), 1, 'nothing is parked');
relay_logs($relay, qr/delivers again/, 'the log says when it goes on');
relay_stop($relay);

# the settings change while the receiver does not work
my $file = "$directory/conf";
my $settings = "[outbox]\nsecrets = $directory/secrets\nsubscription = hook\nallow = 127.0.0.1\nto = ";
append_to_file($file, "${settings}http://127.0.0.1:1/\n");
$relay = relay_start($node, undef, file => $file, wait => 0);
insert('h1');
soon(sub { relay_get($relay, '/ready')->{content} =~ /retrying: could not deliver/ }, 'nobody is there');
unlink $file;
append_to_file($file, "$settings$receiver->{url}\n");
kill 'HUP', $relay->{pid};
soon(sub { of('h1') }, 'another URL');
soon(sub { relay_get($relay, '/ready')->{status} == 200 }, 'and it is ready');
relay_stop($relay);

# what cannot be written as JSON is not skipped: it stops there, or is parked
receiver_rules($receiver);
my $bad = start(feed => 'broken', subscription => 'broken', attempts => 0, requests => 1, once => 1);
is(relay_wait($bad), 1, 'a feed of which nothing is parked stops');
like(relay_log($bad), qr/stopped: the entry with cursor \S+ cannot be sent: 22P03: .*set --attempts/, 'and says what to do');
sub rows { return [ map { $_->{body} } grep { $_->{headers}{'ce-source'} eq '/feeds/public.broken' } receiver_requests($receiver) ] }
is_deeply(rows(), ['{"k":1,"m":"sad"}'], 'what is before it was sent, nothing that is after it');
is(sql($node, q{SELECT lag_rows FROM feedpub.subscriptions WHERE name = 'broken'}), '2', 'and acknowledged');
$relay = start(feed => 'broken', subscription => 'broken');
soon(sub { relay_metric($relay, 'sent_total', 'broken') == 1 }, 'else it is parked, and what is after it is sent');
is_deeply(rows(), [ '{"k":1,"m":"sad"}', '{"k":3,"m":"sad"}' ], 'once');
is_soon($node, q{(SELECT state = 'parked' AND reason LIKE '22P03: %' AND key->>'k' = '2' FROM feedpub.parked WHERE subscription = 'broken')}, 'with the reason');
is(relay_metric($relay, 'parked_total', 'broken'), 1, 'counted');
relay_logs($relay, qr/parks the entry with cursor \S+ for good: 22P03/, 'and logged');
relay_stop($relay);

# The first poll of a connection waits, while the answer to feed_listen() is there;
# then parking waits, and the connection ends: that entry has not been parked.
sql($node, <<'SQL');
INSERT INTO pg_enum SELECT 4294967000, enumtypid, 99, 'gone' FROM pg_enum WHERE enumlabel = 'sad';
CREATE TABLE first (k int PRIMARY KEY, m mood);
SELECT feed_attach('first');
INSERT INTO first VALUES (1, 'gone');
SELECT feed_flush('first');
INSERT INTO first VALUES (2, 'sad');
DELETE FROM pg_enum WHERE enumlabel = 'gone';
SELECT feed_flush('first');
SELECT feed_subscribe('first', 'first', 'earliest');
BEGIN; LOCK TABLE feedpub._shard IN EXCLUSIVE MODE; PREPARE TRANSACTION 'poll';
BEGIN; LOCK TABLE feedpub._parked_entry IN SHARE MODE; PREPARE TRANSACTION 'park';
SQL
sub is_waited_for { return is_soon($node, "EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'feedpub.$_[0]'::regclass)", "$_[0] is waited for") }
$relay = start(feed => 'first', subscription => 'first', lock_timeout => 600, statement_timeout => 600, wait => 0);
is_waited_for('_shard');
# it goes round its loop, and sees that answer
relay_get($relay, '/live') for 1 .. 3;
sql($node, "ROLLBACK PREPARED 'poll'");
is_waited_for('_parked_entry');
my $backend = sql($node, q{SELECT pid FROM pg_locks WHERE NOT granted AND relation = 'feedpub._parked_entry'::regclass});
sql($node, "SELECT pg_terminate_backend($backend)");
is_soon($node, "NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $backend)", 'the connection ends');
sql($node, "ROLLBACK PREPARED 'park'");
soon(sub { relay_metric($relay, 'sent_total', 'first') == 1 }, 'what is after it is sent');
is_soon($node, q{(SELECT lag IS NULL FROM feedpub.subscriptions WHERE name = 'first')}, 'and acknowledged');
is(sql($node, q{SELECT key->>'k' FROM feedpub.parked WHERE subscription = 'first'}), '1', 'what could not be sent is parked');
relay_stop($relay);

# a name server that never answers holds up its webhook, and nothing else
append_to_file("$directory/hang.c", <<'C');
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <string.h>
#include <unistd.h>
typedef int Lookup(const char *, const char *, const struct addrinfo *, struct addrinfo **);
int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **found)
{
	while (name && strcmp(name, "name.example") == 0)
		pause();
	return ((Lookup *) dlsym(RTLD_NEXT, "getaddrinfo"))(name, service, hints, found);
}
C
is(system("cc -shared -fPIC -o $directory/hang.so $directory/hang.c"), 0, 'a library with a name that is never found');
insert('i1');
$relay = start(to => 'http://name.example/', request_timeout => 1, env => { LD_PRELOAD => "$directory/hang.so" });
relay_logs($relay, qr/could not deliver: Resolving timed out/, 'a name server that does not answer');
is(relay_get($relay, '/live')->{status}, 200, 'the relay lives');
is(relay_stop($relay), 0, 'and ends');

done_testing();
