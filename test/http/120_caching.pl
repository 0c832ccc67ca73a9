# Pages out of a cache: consumers that are led by them end equal to the feed,
# after at most one restart.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubCache;
use FeedpubHttp;
use FeedpubTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node(
	'old',
	allows_streaming => 1,
	conf => "shared_preload_libraries = 'feedpub'\nfeedpub.naptime = 10ms");
my $http = http_start($node, max_age => 3600);
my $cache = FeedpubCache->new(sub { get($http, @_, redirects => 0) });
my $get = sub { $cache->get(@_) };

cache_feeds($node);

# What a cache is told
sub caching
{
	my ($path, %headers) = @_;

	return get($http, $path, redirects => 0, %headers)->{headers}{'cache-control'};
}

sql($node, <<'SQL');
INSERT INTO outbox (message_type, data) SELECT 'A', '0' FROM generate_series(1, 5);
INSERT INTO kv SELECT i, i FROM generate_series(1, 5) i;
SELECT feed_flush('outbox'), feed_flush('kv');
SQL
for my $feed (qw(outbox kv))
{
	my $begin = get($http, "/feeds/$feed?limit=2", redirects => 0);
	my $url = url_from("/feeds/$feed", $begin->{headers}{location});
	my $floor = sql($node, "SELECT feed_floor('$feed')");
	my $max_age = $feed eq 'kv' ? 'max-age=3600' : 'max-age=3600, immutable';

	is($begin->{status}, 307, "$feed: the beginning is elsewhere");
	is($begin->{headers}{'cache-control'}, 'no-store', "$feed: and not kept");
	is($url, "/feeds/$feed?" . ($feed eq 'kv' ? 'begin' : 'after') . "=$floor&limit=2",
		"$feed: its URL has the floor");
	is(caching($url), "public, $max_age", "$feed: a full page is kept");
	is(caching($url, Authorization => 'Basic eDp5'),
		"private, $max_age", "$feed: with credentials by its reader only");
	is(caching($url, method => 'HEAD'), "public, $max_age", "$feed: HEAD says so too");
	my $last = get($http, "/feeds/$feed");
	is($last->{headers}{'cache-control'}, 'no-cache', "$feed: the last page is asked for again");
	for my $etags ($last->{headers}{etag}, "W/$last->{headers}{etag}",
		"\"x\", W/$last->{headers}{etag}", '*')
	{
		is(get($http, "/feeds/$feed", 'If-None-Match' => $etags)->{status},
			304, "$feed: If-None-Match: $etags");
	}
	is(get($http, "/feeds/$feed", 'If-None-Match' => '"x"')->{status}, 200, "$feed: another ETag");
	is(caching("/feeds/$feed?after=x"), 'no-store', "$feed: errors are not kept");
}
my $begun = url_from("/feeds/kv", get($http, "/feeds/kv", redirects => 0)->{headers}{location});
for (
	[ q(max_age => '1 h'), 'public, max-age=900' ],
	[ q(keep => '10 s', max_age => '1 h'), 'public, max-age=2' ],
	[ q(max_age => '1 d'), 'public, max-age=3600' ],
	[ q(max_age => '3 s'), 'no-cache' ])
{
	my ($policy, $caching) = @$_;

	sql($node, "SELECT feed_retain('kv', $policy)");
	is(caching("$begun&limit=2"), $caching, "a quarter of the retention: $policy");
}
sql($node, q(SELECT feed_retain('kv', NULL)));

# Cursors have the id of the server that made them.
my $before = get($http, '/feeds/outbox?limit=2')->{json};
$node->restart;
my $after = get($http, '/feeds/outbox?limit=2')->{json};
is(substr($after->{cursor}, 0, 25), substr($before->{cursor}, 0, 25), 'the same position');
isnt($after->{cursor}, $before->{cursor}, 'has another cursor after a restart');

sql($node, 'TRUNCATE outbox, kv');
cache_scenarios($node, $get);
my $new = cache_promotion($node, $get,
	sub { http_stop($http); $http = http_start($_[0], max_age => 3600) });
cmp_ok($cache->{hits}, '>', $cache->{misses},
	"of the requests $cache->{hits} came from the cache, $cache->{misses} did not");

http_stop($http);
done_testing();
