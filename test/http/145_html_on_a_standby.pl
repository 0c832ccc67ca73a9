# Pages for people, of a standby: they are there, and show what it knows; forms
# say why nothing can be done.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubHttp;
use FeedpubTest;
use HTTP::Tiny;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = feedpub_node(
	'primary',
	allows_streaming => 1,
	conf => "shared_preload_libraries = 'feedpub'");
sql($primary, <<'SQL');
CREATE ROLE regress_feedpub_login LOGIN;
SELECT feed_create('outbox', 'json'), feed_start_worker();
GRANT SELECT ON outbox TO regress_feedpub_login;
INSERT INTO outbox (message_type, data) SELECT 'A', to_json('number ' || i) FROM generate_series(1, 5) i;
SELECT feed_flush('outbox');
SET ROLE regress_feedpub_login;
SELECT feed_subscribe('mail', 'outbox', 'earliest');
SELECT feed_park('mail', receipt, 'a reason') FROM feed_poll('mail', 1);
SQL
$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->start;
my $http = http_start($standby, user => 'regress_feedpub_login', anonymous_role => 'regress_feedpub_login');

sub page { return get($http, $_[0], Accept => 'text/html') }

foreach ([ '/', qr/outbox/ ], [ '/feeds', qr/outbox/ ], [ '/feeds/outbox', qr/number 5/ ], [ '/subscriptions/mail', qr/a reason/ ])
{
	my ($path, $shown) = @$_;
	my $page = page($path);

	is($page->{status}, 200, $path);
	like($page->{content}, $shown, 'shows what there is');
}

my ($secret) = page('/subscriptions/mail')->{content} =~ /name="secret" value="([^"]*)"/;
my $form = HTTP::Tiny->new(max_redirect => 0)->post(
	"$http->{url}/subscriptions/mail/retry",
	{ content => "secret=$secret", headers => { 'Content-Type' => 'application/x-www-form-urlencoded', Accept => 'text/html' } });
is($form->{status}, 503, 'a form is refused');
like($form->{content}, qr/the database is read-only now, as a standby is/, 'and says why') or diag $form->{content};

sql($primary, q(INSERT INTO outbox (message_type, data) VALUES ('A', '"number 6"')));
sql($primary, q(SELECT feed_flush('outbox')));
$primary->wait_for_replay_catchup($standby);
like(page('/feeds/outbox')->{content}, qr/number 6/, 'what is replayed is shown');

done_testing();
