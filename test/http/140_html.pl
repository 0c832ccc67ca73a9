# Pages for people: who gets them, what they show, what is escaped, who sees what,
# forms and what they refuse.  If FEEDPUB_HTTP_LONG is set, headless Chromium uses
# them: html_client.mjs.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubHttp;
use FeedpubTest;
use Digest::SHA qw(hmac_sha256);
use HTTP::Tiny;
use IPC::Run;
use JSON::PP;
use MIME::Base64 qw(encode_base64url);
use PostgreSQL::Test::Utils;
use Test::More;

my $BROWSER = 'text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8';
my $CSP = "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; "
  . "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
my $HOSTILE = q{<script>alert(1)</script>"'&<img src=x onerror=alert(2)>};
my $ROLE = q{regress_feedpub_<b>"x'};
my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'");
my $began = time;

sub quote_name { return '"' . $_[0] =~ s/"/""/gr . '"' }

sub quote { return "'" . $_[0] =~ s/'/''/gr . "'" }

sub encode { return $_[0] =~ s/([^A-Za-z0-9_-])/sprintf '%%%02X', ord $1/ger }

my $role = quote_name($ROLE);
my $feed = quote_name($HOSTILE);
my $hostile = quote($HOSTILE);
sql($node, <<"SQL");
CREATE ROLE regress_feedpub_login LOGIN NOINHERIT;
CREATE ROLE $role;
CREATE ROLE regress_feedpub_none;
CREATE ROLE regress_feedpub_watch;
GRANT $role, regress_feedpub_none, regress_feedpub_watch TO regress_feedpub_login;
GRANT pg_monitor TO regress_feedpub_watch;
SELECT feed_create('old'), feed_create('outbox', 'json'), feed_create('secret'), feed_create(${\ quote($feed)}, 'json'), feed_start_worker();
CREATE TABLE kv (k text PRIMARY KEY, v text);
SELECT feed_attach('kv'), feed_create_changes('changes');
SELECT feed_capture('kv', 'changes');
INSERT INTO old (message_type, data) VALUES ('A', '1');
SELECT feed_flush('old');
INSERT INTO old (message_type, data) VALUES ('A', '2');
SELECT feed_flush('old');
CREATE TABLE cursors AS SELECT cursor FROM feed_read(NULL::old, '', 1);
GRANT SELECT ON old, outbox, kv, changes, $feed TO $role;
INSERT INTO secret (message_type, data) VALUES ('secret message', '1');
INSERT INTO outbox (message_type, message_key, data) SELECT 'T' || i % 2, 'key ' || i, json_build_object('number', i) FROM generate_series(1, 60) i;
INSERT INTO $feed (message_type, message_key, data) VALUES ($hostile, $hostile, json_build_object('x', $hostile, $hostile, 1));
INSERT INTO $feed (message_type, data) VALUES ('nul', '"\\u0000"'), ('numbers', '{"a" :\n[12345678901234567890.10, {}, []], "b,}": "]"}');
INSERT INTO kv VALUES ($hostile, $hostile);
SELECT feed_flush(feed) FROM feedpub.feeds;
SET ROLE $role;
SELECT feed_subscribe('mail', 'outbox', 'earliest', backoff => '{2 h}');
SELECT feed_subscribe('other', 'outbox', 'earliest');
SELECT feed_subscribe($hostile, ${\ quote($feed)}, 'earliest');
SELECT feed_nack('mail', receipt, 'reason <b>"' || k.key || '"</b>') FROM (SELECT receipt, p.key ->> 'message_key' AS key FROM feed_poll('mail', 3) p) k;
SELECT feed_park($hostile, receipt, $hostile) FROM feed_poll($hostile, 9);
RESET ROLE;
SELECT feed_subscribe('theirs', 'secret', 'earliest'), feed_create('many');
SELECT feed_subscribe('many', 'many', 'earliest');
GRANT SELECT ON many TO $role;
INSERT INTO many (message_type, data) SELECT 'A', '1' FROM generate_series(1, 101);
SELECT feed_flush('many'), feed_create('delayed');
SELECT feed_subscribe('delayed', 'delayed', 'earliest', delayed => true);
INSERT INTO delayed (message_type, data, scheduled) VALUES ('never', '1', 'infinity'), ('later', '2', now() + '2 h');
SELECT feed_flush('delayed');
SELECT FROM feed_poll('delayed');
SELECT feed_park('many', (SELECT receipt FROM feed_poll('many', 101) OFFSET 100));
SELECT count(feed_nack('many', receipt, delay => '1 h')) FROM feed_poll('many', 100);
SQL
my %flags = (user => 'regress_feedpub_login', anonymous_role => $ROLE, lock_timeout => 1);
our $http = http_start($node, %flags);
my $mail = '/subscriptions/mail';
my $hostile_mail = '/subscriptions/' . encode($HOSTILE);
my $hostile_feed = '/feeds/' . encode($feed);

sub page
{
	my ($path, %headers) = @_;

	return get($http, $path, Accept => $BROWSER, %headers);
}

sub type { return $_[0]{headers}{'content-type'} }

# What a reader sees: text without its tags and entities
sub text
{
	my ($html) = @_;
	my %entity = (amp => '&', lt => '<', gt => '>', quot => '"', '#39' => "'");

	return $html =~ s/<[^>]*>//gr =~ s/&(#?\w+);/$entity{$1}/ger;
}

#
# Who gets them
#
for my $path ('/', '/feeds', '/feeds/outbox', $mail)
{
	my $json = get($http, $path, redirects => 0);

	for my $accept ($BROWSER, 'text/html', 'TEXT/HTML', 'application/json;q=0.5, text/html;q=0.6')
	{
		my $page = page($path, Accept => $accept);

		is("$page->{status} " . type($page), '200 text/html; charset=utf-8', "$path: $accept");
	}
	for my $accept (undef, '*/*', 'application/json', '', 'text/html;q=0, */*', 'application/json, text/html;q=0.9', 'application/json, text/html')
	{
		my $again = get($http, $path, redirects => 0, defined $accept ? (Accept => $accept) : ());
		my @differ = grep { ($again->{headers}{$_} // '') ne ($json->{headers}{$_} // '') } grep { $_ ne 'date' }
		  keys %{ { %{ $again->{headers} }, %{ $json->{headers} } } };

		# the lag grows
		is_deeply([ $again->{status}, $again->{content} =~ s/"lag":"[^"]*"//r, grep { $_ ne 'content-length' || $path ne $mail } @differ ],
			[ $json->{status}, $json->{content} =~ s/"lag":"[^"]*"//r ], "$path: the same as before for " . ($accept // 'none'));
	}
	my $page = page($path);
	my $head = page($path, method => 'HEAD');
	like($page->{headers}{vary}, qr/^Accept, Authorization/, "$path: caches keep them apart");
	like($json->{headers}{vary}, qr/^Accept, Authorization/, 'also the other form');
	is($page->{headers}{'cache-control'}, 'no-store', 'and no page for people');
	is($page->{headers}{'content-security-policy'}, $CSP, 'its policy');
	is($page->{headers}{'x-content-type-options'}, 'nosniff', 'types are what they say');
	is("$head->{status} $head->{content}" . type($head), '200 text/html; charset=utf-8', 'HEAD');
	is($head->{headers}{'content-security-policy'}, $CSP, 'with the headers of GET');
}
is(get($http, '/')->{content}, qq({"feeds": "./feeds", "documentation": "./openapi.yaml"}\n), 'the index is what it was');
for my $accept ('text/*', 'text/*, text/event-stream;q=0.5', 'text/event-stream, text/html;q=0.9')
{
	my $stream = send_request($http, '/feeds/outbox', Accept => $accept);

	like(read_until($stream, qr/\r\n\r\n/), qr/^Content-Type: text\/event-stream\r$/m, "an event stream for $accept");
}
like(get($http, '/feeds/outbox', Accept => 'image/png')->{content}, qr/"status": 406/, 'no form');

#
# Errors
#
for ([ '/nothing', 404 ], [ '/feeds/nothing', 404 ], [ '/feeds/1', 404 ], [ '/feeds/pg_class', 404 ], [ '/feeds/secret', 403 ], [ '/feeds/outbox?after=x', 400 ],
	[ '/feeds/outbox?limit=0', 400 ], [ '/feeds/outbox?type=%', 400 ], [ '/feeds/kv?type=A', 400 ], [ '/subscriptions/nothing', 404 ], [ '/subscriptions/theirs', 404 ],
	[ '/subscriptions/%00', 400 ], [ "/feeds/" . encode(qq("$HOSTILE.x")), 404 ])
{
	my ($path, $status) = @$_;
	my $page = page($path);
	my $json = get($http, $path, redirects => 0, Accept => 'application/json');

	is("$page->{status} " . type($page), "$status text/html; charset=utf-8", "$path is an error for people");
	like($page->{content}, qr/<h1>$status /, 'which says so');
	unlike($page->{content}, qr/<img|secret message/, 'and nothing else');
	is($page->{headers}{'content-security-policy'}, $CSP, 'with the policy');
	is(type($json), 'application/problem+json', 'and JSON for programs') unless $json->{status} == 307;
}
is(type(page('/feeds', method => 'POST')), 'text/html; charset=utf-8', 'another method too');

#
# Escaping: there are no tags and attributes but ours, nor anything inline.
#
my %ours = (html => 'lang', meta => 'charset name content', link => 'rel href', script => 'src defer', a => 'class href rel', nav => 'aria-label',
	main => 'id tabindex data-refresh', p => 'class id hidden', button => 'type aria-pressed class', span => 'role class', table => 'role aria-label',
	thead => 'role', tbody => 'role', tr => 'role', th => 'role scope class', td => 'role class data-name', dl => 'class', ol => 'class id data-after',
	form => 'class method action', input => 'type name value autocomplete spellcheck',
	map { $_ => '' } qw(head title body header h1 h2 div dt dd li details summary pre strong b label footer));

sub is_ours
{
	my ($path, $html) = @_;
	my @strange;

	# a & that is no entity of ours, a < that begins no tag, a stray quote
	push @strange, $& while $html =~ /&(?!(?:amp|lt|gt|quot|#39);).{0,20}/g;
	$html =~ s/^<!DOCTYPE html>\n//;
	while ($html =~ /\G(?:[^<>"']+|<(\/?)(\w+)((?: [\w-]+(?:="[^"<>]*")?)*)>|(.{1,30}))/gs)
	{
		push @strange, $4 if defined $4;
		next unless defined $2;
		my ($name, $attributes) = ($2, $3);
		my %allowed = map { $_ => 1 } split / /, $ours{$name} // '';

		push @strange, $name if !exists $ours{$name};
		push @strange, map { "$name $_" } grep { !$allowed{$_} } $attributes =~ s/="[^"]*"//gr =~ /([\w-]+)/g;
		push @strange, "$name $1" if $attributes =~ / (?:href|src|action)="((?!\.\/|\?|#main"|data:,")[^"]*)"/;
		push @strange, 'inline' if $name eq 'script' && $attributes !~ / src=/ && $1 eq '';
	}
	is_deeply(\@strange, [], "$path: all of it is ours");
	return;
}

for my $path ('/', '/feeds', '/feeds/outbox', '/feeds/kv', '/feeds/kv?after=earliest', '/feeds/changes', $hostile_feed, $mail, $hostile_mail, "$hostile_feed?after=earliest",
	"/feeds/outbox?after=earliest&limit=1&type=" . encode($HOSTILE), "/feeds/outbox?after=earliest&limit=1&type=T0&shard=0&shards=1&x=\"><script>",
	'/feeds/' . encode($HOSTILE), '/subscriptions/' . encode("x$HOSTILE"))
{
	is_ours($path, page($path)->{content});
}
my $shown = page($hostile_feed)->{content};
my $as_text = q{&lt;script&gt;alert\(1\)&lt;/script&gt;};
like($shown, qr/$_/, "what is hostile is text: $_")
  for "<title>&quot;$as_text", "<h1>&quot;$as_text", "<a href=[^<>]*>$as_text", "<span class=\"(?:type|key)\">[^<>]*$as_text", "<pre>[^<>]*$as_text";
like(text($shown), qr/"a" : \[\n\s*12345678901234567890\.10,\n\s*\{\},\n\s*\[\]\n\s*\],\n\s*"b,\}": "\]"/, 'JSON is indented, and else as it is');
like($shown, qr/\\u0000/, 'also what PostgreSQL cannot make text');
like(page('/feeds')->{content}, qr/<b>regress_feedpub_&lt;b&gt;&quot;x&#39;<\/b>/, 'the role');

# as deep as it may be, large, many bytes: a page stays small
sql($node, <<"SQL");
INSERT INTO outbox (message_type, data) SELECT 'deep', (repeat('[', 5000) || repeat(']', 5000))::json FROM generate_series(1, 5);
INSERT INTO outbox (message_type, data) SELECT 'quotes', to_json(repeat('"', 50000)) FROM generate_series(1, 50);
INSERT INTO outbox (message_type, data) SELECT 'lists', ('[' || repeat('[1,1],', 20000) || '1]')::json FROM generate_series(1, 10);
INSERT INTO outbox (message_type, data) VALUES ('bytes', to_json('x' || repeat('\x{c3}\x{bc}', 20000)));
SELECT feed_flush('outbox');
SQL
my $large = page('/feeds/outbox?limit=100')->{content};
is_ours('a large page', $large);
cmp_ok(length $large, '<', 2_000_000, 'a page is bounded');
is(scalar(() = $large =~ /^<li>/mg), 100, 'and has all its entries');
like($large, qr/for which there is no room here/, 'some only by name');
like($large, qr/\.\.\. \d+ bytes more/, 'and some cut');
ok(utf8::decode(my $copy = $large), 'between characters');
my $deep = page('/feeds/outbox?after=earliest&type=deep')->{content};
is(scalar(() = $deep =~ /^<li>/mg), 5, 'what is deep alone');
cmp_ok(length $deep, '<', 1_000_000, 'does not grow by its depth');
sql($node, q{DELETE FROM outbox WHERE message_type !~ '^T'});

#
# What they show
#
sub numbers { return join ' ', text($_[0]{content}) =~ /"number"\s*:\s*(\d+)/g }

is(numbers(page('/feeds/outbox?limit=3')), '', 'entries that are gone leave room');
sql($node, q{INSERT INTO outbox (message_type, data) SELECT 'T' || i % 2, json_build_object('number', i) FROM generate_series(61, 90) i; SELECT feed_flush('outbox')});
is(numbers(page('/feeds/outbox')), join(' ', reverse 66 .. 90), 'the newest, the newest first');
is(numbers(page('/feeds/outbox?after=latest&limit=3')), '90 89 88', 'or fewer');
is(numbers(page('/feeds/outbox?limit=4&type=T1')), '89 87', 'of one type');
is(numbers(page('/feeds/outbox?limit=2&type=')), '90 89', 'a field that is not filled in');
my $first = page('/feeds/outbox?after=earliest&type=T1&limit=20');
is(numbers($first), join(' ', map { 2 * $_ - 1 } 1 .. 20), 'from the beginning');
unlike($first->{content}, qr/data-after|id="live"/, 'which does not go on by itself');
my ($next) = $first->{content} =~ /rel="next" href="\?([^"]*)"/;
is(numbers(page('/feeds/outbox?' . $next =~ s/&amp;/&/gr)), join(' ', map { 2 * $_ - 1 } 21 .. 40), 'and what is after it');
my ($after) = page('/feeds/outbox?limit=2')->{content} =~ / data-after="([^"]+)"/;
is($after, sql($node, q{SELECT feed_head('outbox')}), 'live entries begin at the end of the page');
like(text(page('/feeds/kv')->{content}), qr/"op"\s*:\s*"upsert"/, 'a table feed');
like(text(page('/feeds/changes')->{content}), qr/insert public\.kv/, 'a change feed, with its relation');
for my $path ('/', '/feeds')
{
	my $overview = text(page($path)->{content});

	like($overview, qr/public\.outbox.*outbox.*ready.*nothing removed/, "$path: feeds");
	like($overview, qr/mail.*outbox.*0 of 1/, 'and subscriptions');
	unlike($overview, qr/secret|theirs/, 'but none that the role may not see');
}
like(text(page('/feeds/outbox')->{content}), qr/Size.*Floor.*Subscriptions.*mail/s, 'a feed');
like(text(page($mail)->{content}), qr/Rows after it.*Shards.*Parked entries.*upsert T1 .*waiting reason <b>"key 1"<\/b>/s, 'a subscription');
sql($node, "CALL feed_purge('old', " . quote(sql($node, q{SELECT feed_head('old')})) . ')');
my $gone = page('/feeds/old?after=' . sql($node, q{SELECT cursor FROM cursors}));
is($gone->{status}, 410, 'a cursor before the floor');
like($gone->{content}, qr/<a href="\?">The newest entries/, 'which shows where to go on');
is(page('/feeds/old?after=earliest')->{status}, 200, 'the beginning is the floor');

#
# Forms
#
sub send_form
{
	my ($path, $content, %headers) = @_;

	return HTTP::Tiny->new(max_redirect => 0, timeout => $PostgreSQL::Test::Utils::timeout_default)->request(
		'POST', "$http->{url}$path",
		{ content => $content, headers => { 'Content-Type' => 'application/x-www-form-urlencoded', Accept => $BROWSER, %headers } });
}

# The forms of a page: [ path, body ]
sub forms_of
{
	my ($path) = @_;
	my @forms;

	for my $form (page($path)->{content} =~ /(<form class="button".*?<\/form>)/gs)
	{
		my ($action) = $form =~ /action="([^"]*)"/;
		my @fields = map { encode(text($_)) } $form =~ /name="([^"]*)" value="([^"]*)"/g;
		my $body = '';

		while (my ($name, $value) = splice @fields, 0, 2)
		{
			$body .= ($body ne '' ? '&' : '') . "$name=$value";
		}
		push @forms, [ $action =~ s/^\.\/\.\.//r, $body ];
	}
	return @forms;
}

sub parked
{
	return sql($node, "SELECT string_agg(key ->> 'message_key' || ' ' || state, ', ' ORDER BY cursor) FROM feedpub.parked WHERE subscription = '$_[0]'");
}

my $before = parked('mail');
my @forms = forms_of($mail);
is($before, 'key 1 waiting, key 2 waiting, key 3 waiting', 'three are parked');
is(join(' ', map { $_->[0] } @forms), join(' ', map { "$mail/$_" } 'retry', ('retry', 'discard') x 3), 'the buttons');
my ($path, $body) = @{ $forms[2] };
my ($secret) = $body =~ /secret=([^&]+)/;
my ($other_secret) = (forms_of($hostile_mail))[0][1] =~ /secret=([^&]+)/;
for my $case ([ 'no secret', $body =~ s/secret=[^&]*&//r ],
	[ 'an empty secret', $body =~ s/secret=\K[^&]*//r ],
	[ 'a wrong secret', $body =~ s/secret=\K./*/r ],
	[ 'a secret that is cut', $body =~ s/secret=[^&]*\K.&/&/r ],
	[ 'a secret that is longer', $body =~ s/secret=[^&]*\K/x/r ],
	[ 'the secret of another subscription', $body =~ s/secret=\K[^&]*/$other_secret/r ],
	[ 'another origin', $body, Origin => 'https://evil.example' ],
	[ 'no origin of its own', $body, Origin => 'null' ],
	[ 'another site', $body, 'Sec-Fetch-Site' => 'cross-site' ],
	[ 'another host of the site', $body, 'Sec-Fetch-Site' => 'same-site', Origin => $http->{url} ],
	[ 'JSON as a form', '{"cursor": null}' ],
	[ 'JSON as text', '{"cursor": null}', 'Content-Type' => 'text/plain' ],
	[ 'nothing', '' ],
	[ 'another origin by JSON', '{}', 'Content-Type' => 'application/json', Origin => 'https://evil.example' ])
{
	my ($name, $content, %headers) = @$case;

	for my $action ('retry', 'discard')
	{
		my $answer = send_form("$mail/$action", $content, %headers);

		is("$answer->{status} " . type($answer), '403 text/html; charset=utf-8', "$action is refused: $name");
	}
}
is(parked('mail'), $before, 'and nothing has happened');

my %own = (Origin => $http->{url}, 'Sec-Fetch-Site' => 'same-origin');
my $answer = send_form($path, $body, %own);
is("$answer->{status} $answer->{headers}{location} $answer->{content}", '303 ../mail ', 'discard leads back');
is(parked('mail'), 'key 2 waiting, key 3 waiting', 'and has discarded that entry');
is(send_form($path, $body, Origin => $http->{url})->{status}, 303, 'again: there is nothing to do');
is(parked('mail'), 'key 2 waiting, key 3 waiting', 'and nothing is done');
is(send_form(@{ $forms[5] })->{status}, 303, 'retry, of a client that says no origin');
is(parked('mail'), 'key 2 waiting, key 3 due', 'has that entry come again');
is(send_form(@{ $forms[0] }, %own)->{status}, 303, 'retry all');
is(parked('mail'), 'key 2 due, key 3 due', 'has all of them come');
is(scalar(forms_of($hostile_mail)), 7, 'a hostile name: its buttons');
is(send_form(@{ (forms_of($hostile_mail))[2] }, %own)->{status}, 303, 'and one of them');
is(scalar(forms_of($hostile_mail)), 5, 'has discarded an entry');
is(send_form("$mail/discard", "secret=$secret", %own)->{status}, 400, 'discard needs a cursor');
is(send_form("$mail/discard", "secret=$secret&cursor=%", %own)->{status}, 400, 'that is encoded');
is(send_form("$mail/park", $body, %own)->{status}, 400, 'other actions have no form');
is(page("$mail/retry")->{status}, 405, 'and it is no GET');

# The same by JSON
sub send_json
{
	my ($path, $content, %headers) = @_;
	my $json = send_form($path, $content, 'Content-Type' => 'application/json', Accept => 'application/json', %headers);

	return "$json->{status} " . ($json->{status} == 200 ? $json->{content} : decode_json($json->{content})->{detail});
}
sql($node, qq{SET ROLE $role; SELECT feed_park('other', receipt) FROM feed_poll('other', 2)});
my ($cursor) = sql($node, q{SELECT cursor FROM feedpub.parked WHERE subscription = 'other' ORDER BY cursor LIMIT 1});
is(send_json('/subscriptions/other/discard', qq({"cursor": "$cursor"})), qq(200 {"discarded" : 1}\n), 'JSON: discard');
is(send_json('/subscriptions/other/discard', qq({"cursor": "$cursor"})), qq(200 {"discarded" : 0}\n), 'again');
is(send_json('/subscriptions/other/retry', '{}'), qq(200 {"retried" : 1}\n), 'retry');
is(send_json('/subscriptions/other/retry', ''), qq(200 {"retried" : 1}\n), 'of all');
like(send_json('/subscriptions/other/retry', '{"receipt": "x"}'), qr/^400 the body has a member/, 'another member');
like(send_json('/subscriptions/theirs/retry', '{}'), qr/^404 /, 'of another role');

# Rights: what the role of the request may do and see
http_stop($http);
$http = http_start($node, %flags, anonymous_role => 'regress_feedpub_none');
is(send_form(@{ $forms[2] }, %own)->{status}, 403, 'a form of an earlier start, or of another role');
is(page($_)->{status}, /mail/ ? 404 : 403, "a role without rights: $_") for '/feeds/outbox', $mail;
my $empty = page('/')->{content};
like($empty, qr/There is no feed that this role may read/, 'it sees no feed');
unlike($empty, qr/outbox|secret|mail|theirs/, 'at all');
http_stop($http);
$http = http_start($node, %flags, anonymous_role => 'regress_feedpub_watch');
my $blocker = $node->background_psql('postgres');
$blocker->query_safe('BEGIN; SELECT pg_current_xact_id();');
my $watched = text(page('/')->{content});
like($watched, qr/public\.outbox.*public\.secret.*theirs.*Transactions that hold back xid order.*session/s, 'pg_monitor sees figures of all');
is(page('/feeds/secret')->{status}, 403, 'but no entries');
is(scalar(forms_of('/subscriptions/theirs')), 0, 'and no buttons');
http_stop($http);
$http = http_start($node, lock_timeout => 1);
is(scalar(forms_of('/subscriptions/many')), 201, 'of 101 parked entries 100 have buttons');
like(page('/subscriptions/many')->{content}, qr/These are the first 100/, 'and the page says so');
like(page('/subscriptions/many')->{content} =~ s/.*?<ol//sr, qr/^[^\n]*\n<li>.*class="state">parked</, 'what waits for a decision is first');
my $delayed = text(page('/subscriptions/delayed')->{content});
my $due = join '|', map { sprintf '%d:%02d', $_ / 60, $_ % 60 } 119 - int((time - $began) / 60) .. 120;
like($delayed, qr/scheduled.*due in 0?(?:$due).*scheduled.*due in infinity/s, 'messages that are delayed, also for ever');
http_stop($http);
$http = http_start($node, %flags);
unlike(page('/')->{content}, qr/Transactions that hold back/, 'others see no sessions');
$blocker->query_safe('LOCK outbox');
is(page('/feeds/outbox')->{status}, 503, 'a feed that is locked');
is(page('/feeds/kv')->{status}, 200, 'delays no other');
$blocker->query_safe('ROLLBACK');
$blocker->quit;

# By JWTs, which a proxy may add: a secret is for the role and the subject.
my $keys = PostgreSQL::Test::Utils::tempdir();
append_to_file("$keys/key", 'k' x 32);

sub bearer
{
	my (%claims) = @_;
	my $text = join '.', map { encode_base64url(encode_json($_)) } { alg => 'HS256', typ => 'JWT' }, \%claims;

	return (Authorization => "Bearer $text." . encode_base64url(hmac_sha256($text, 'k' x 32)));
}
my $by_jwt = http_start($node, user => 'regress_feedpub_login', jwt_key => "$keys/key");
{
	local $http = $by_jwt;
	my %me = (role => $ROLE, sub => 'me');
	my %with = (%own, Origin => $http->{url});
	my ($content) = page($hostile_mail, bearer(%me, exp => time + 100))->{content} =~ /name="secret" value="([^"]*)"/;
	$content = "cursor=-&secret=$content";

	is(page('/')->{status}, 401, 'without a JWT there is no page');
	is(get($http, '/')->{status}, 200, 'but the index');
	for ([ 'another role', role => 'regress_feedpub_watch', sub => 'me' ], [ 'another subject', role => $ROLE, sub => 'you' ], [ 'no subject', role => $ROLE ])
	{
		my ($name, %claims) = @$_;

		is(send_form("$hostile_mail/retry", $content, %with, bearer(%claims))->{status}, 403, "a form for $name");
	}
	is(send_form("$hostile_mail/retry", $content, %with, bearer(%me, exp => time + 200))->{status}, 303, 'for a later JWT of the same');
}
http_stop($by_jwt);

# The style and the script
my ($style, $script) = page('/feeds/outbox')->{content} =~ /(?:href|src)="\.\/\.\.(\/assets\/[^"]+)"/g;
for ([ $style, 'text/css; charset=utf-8', qr/prefers-color-scheme: dark/ ], [ $script, 'text/javascript; charset=utf-8', qr/EventSource/ ])
{
	my $asset = get($http, $_->[0]);

	is("$asset->{status} " . type($asset), "200 $_->[1]", $_->[0]);
	is($asset->{headers}{'cache-control'}, 'public, max-age=31536000, immutable', 'is kept');
	like($asset->{content}, $_->[2], 'is what it is');
	is(get($http, $_->[0] =~ s/\w(?=\.)/x/r)->{status}, 404, 'of another version: not here');
}
unlike(get($http, $script)->{content}, qr/innerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function/, 'text never becomes HTML');

SKIP:
{
	my $dir = PostgreSQL::Test::Utils::tempdir();
	my ($out, $error);

	skip 'FEEDPUB_HTTP_LONG is not set', 1 unless $ENV{FEEDPUB_HTTP_LONG};
	skip 'there is no npm, or no Chromium', 1 if system('npm --version >/dev/null 2>&1') || !-x '/usr/bin/chromium';
	local $ENV{npm_config_cache} = "$dir/cache";
	local $ENV{HOME} = $dir;
	command_ok([ 'npm', 'install', '--silent', '--no-audit', '--no-fund', '--prefix', $dir, 'puppeteer-core@24.43.1', 'axe-core@4.14.1' ], 'npm');
	append_to_file("$dir/client.mjs", slurp_file("$FindBin::RealBin/html_client.mjs"));
	sql($node, "GRANT INSERT ON outbox TO $role; GRANT SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA public TO $role");
	IPC::Run::run([ 'node', "$dir/client.mjs", $http->{url}, $hostile_feed, $hostile_mail ], '>', \$out, '2>', \$error);
	my @lines = split /\n/, $out;
	cmp_ok(scalar @lines, '>', 30, 'Chromium has looked') or diag $error;
	for (@lines)
	{
		my ($ok, $what) = /^(ok|not ok) (.*)$/ or diag $_;

		ok($ok eq 'ok', $what) if $ok;
	}
	is($lines[-1], 'ok all of it', 'to the end') or diag $error;
}
http_stop($http);
done_testing();
