# Tokens: whose request it is, and that nothing of another role is told.

use strict;
use warnings FATAL => 'all';

use Digest::SHA qw(hmac_sha256 hmac_sha512);
use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubHttp;
use FeedpubTest;
use JSON::PP;
use MIME::Base64;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'");
my $directory = PostgreSQL::Test::Utils::tempdir();
my $secret = 'a secret of thirty-two bytes or more';

sql($node, <<'SQL');
CREATE ROLE regress_feedpub_login LOGIN NOINHERIT;
CREATE ROLE regress_feedpub_anonymous;
CREATE ROLE regress_feedpub_alice;
CREATE ROLE regress_feedpub_bob;
CREATE ROLE regress_feedpub_other;
GRANT regress_feedpub_anonymous, regress_feedpub_alice, regress_feedpub_bob TO regress_feedpub_login;
SELECT feed_create('outbox', 'json'), feed_create('secret_feed'), feed_create('public_feed');
ALTER TABLE outbox ENABLE ROW LEVEL SECURITY;
CREATE POLICY by_role ON outbox FOR SELECT USING (message_key = current_user);
CREATE POLICY by_claim ON outbox FOR SELECT
	USING (message_key = current_setting('request.jwt.claims', true)::json ->> 'sub');
GRANT SELECT ON outbox, public_feed TO regress_feedpub_alice, regress_feedpub_bob;
GRANT SELECT ON public_feed TO regress_feedpub_anonymous;
INSERT INTO outbox (message_type, message_key, data)
	SELECT 'A', k, to_json('data of ' || k)
	FROM unnest(ARRAY['regress_feedpub_alice', 'regress_feedpub_bob', 'it''s "ü"', 'other']) k;
SELECT feed_start_worker();
SELECT feed_flush('outbox'), feed_flush('secret_feed'), feed_flush('public_feed');
SQL

sub write_file
{
	my ($name, $content) = @_;

	open my $file, '>:raw', "$directory/$name" or die "could not write: $!";
	print $file $content;
	close $file or die "could not write: $!";
	return "$directory/$name";
}

sub encode { return encode_base64($_[0], '') =~ tr{+/=}{-_}dr }

# A token of some claims, or of any text.
sub token
{
	my ($claims, %options) = @_;
	my $algorithm = $options{alg} // 'HS256';
	my $text = encode(encode_json({ typ => 'JWT', alg => $algorithm, %{ $options{header} // {} } })) . '.'
	  . encode(ref $claims ? encode_json($claims) : $claims);
	my $signature = '';

	if ($options{pem})
	{
		my $file = write_file('to-sign', $text);
		$signature = `openssl dgst -sha256 -sign '$options{pem}' '$file'`;
		$signature = raw_signature($signature) if $algorithm eq 'ES256';
	}
	elsif ($algorithm ne 'none')
	{
		my $hmac = $algorithm eq 'HS512' ? \&hmac_sha512 : \&hmac_sha256;
		$signature = $hmac->($text, $options{secret} // $secret);
	}
	return "$text." . encode($signature);
}

# The two numbers of a signature in DER, 32 bytes each.  One of RSA stays.
sub raw_signature
{
	my ($der) = @_;
	return $der if length $der > 80;
	my ($r, $s) = unpack 'x3 C/a x C/a', $der;

	return join '', map { substr(("\0" x 32) . $_, -32) } $r, $s;
}

my $http;

sub as { my ($token, $path, %headers) = @_; return get($http, $path, Authorization => "Bearer $token", %headers) }

sub keys_of
{
	my ($response) = @_;
	return [ map { $_->{key}{message_key} } @{ $response->{json}{entries} } ];
}

# Where token.c keeps a token.
sub slot_of
{
	my $hash = 0;
	$hash = ($hash * 31 + ord) % 2**32 for split //, $_[0];
	return $hash % 1024;
}

sub is_refused
{
	my ($token, $status, $detail, $test) = @_;
	my $response = as($token, '/feeds/outbox');
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is("$response->{status} " . ($response->{json}{detail} // ''), "$status $detail", $test);
	return $response;
}

my $now = time;
my $alice = { role => 'regress_feedpub_alice', exp => $now + 3600 };
my $bob = { role => 'regress_feedpub_bob' };
my $invalid = 'the token is not valid';

# the algorithms
for my $kind ([ 'RS256', 'RSA', 'rsa_keygen_bits:2048' ], [ 'ES256', 'EC', 'ec_paramgen_curve:P-256' ])
{
	my ($algorithm, $type, $option) = @$kind;
	my $private = "$directory/$algorithm.private";
	my $public = "$directory/$algorithm.public";

	system("openssl genpkey -algorithm $type -pkeyopt $option -out '$private' 2>/dev/null && "
		  . "openssl pkey -in '$private' -pubout -out '$public'") == 0
	  or die 'openssl failed';
	$http = http_start($node, user => 'regress_feedpub_login', jwt_key => $public);
	is_deeply(keys_of(as(token($alice, alg => $algorithm, pem => $private), '/feeds/outbox')),
		['regress_feedpub_alice'], $algorithm);
	is_refused(token($alice, secret => slurp_file($public)), 401, $invalid,
		'HS256 with the public key as its secret');
	is_refused(token($alice, alg => 'none'), 401, $invalid, 'alg none');
	is_refused(token({ exp => $now + 3600 }, alg => $algorithm, pem => $private), 401, 'the token has no role',
		'a token without a role, and no anonymous one');
	is_refused(token($alice, alg => $algorithm, pem => $private) =~ s/\.[^.]{8}([^.]*)$/.AAAAAAAA$1/r,
		401, $invalid, 'a forged signature');
	is_refused(token($alice, alg => $algorithm eq 'RS256' ? 'ES256' : 'RS256', pem => $private),
		401, $invalid, 'the algorithm of another kind of key');
	my $none = get($http, '/feeds/outbox');
	is("$none->{status} $none->{headers}{'www-authenticate'} $none->{headers}{'cache-control'}",
		'401 Bearer no-store', 'no token, and no anonymous role');
	is(get($http, '/feeds')->{status}, 401, 'so there is no list');
	is(get($http, $_)->{status}, 200, "$_ is for everybody") for '/', '/openapi.yaml';
	http_stop($http);
}

my $key = write_file('secret', "$secret\n");
$http = http_start(
	$node,
	user => 'regress_feedpub_login',
	jwt_key => $key,
	anonymous_role => 'regress_feedpub_anonymous',
	jwt_audience => 'feeds');
$_->{aud} = [ 'x', 'feeds' ] for $alice, $bob;

my $page = as(token($alice), '/feeds/outbox');
is_deeply(keys_of($page), ['regress_feedpub_alice'], 'HS256');
like($page->{headers}{'cache-control'}, qr/private|no-cache/, 'what is answered is not for all');
like($page->{headers}{vary}, qr/Authorization/, 'and varies');
is_deeply(keys_of(get($http, '/feeds/outbox', Authorization => 'bearer  ' . token($bob))),
	['regress_feedpub_bob'], 'the scheme has no case');

like(as(token($alice), '/feeds/outbox?limit=1')->{headers}{'cache-control'}, qr/^private, max-age=/,
	'a full page is for one role');

# what is refused
is_refused(token({ %$alice, exp => $now - 40 }), 401, 'the token has expired', 'expired');
is_refused(token({ %$alice, exp => 'never' }), 401, 'a time of the token is not valid', 'a time that is none');
is_refused(token({ %$alice, nbf => $now + 600 }), 401, 'the token is not valid yet', 'not yet valid');
is(as(token({ %$alice, exp => time - 1.5, nbf => time + 1 }), '/feeds/outbox')->{status},
	200, 'clocks may differ a little');
is_refused(token({ %$alice, aud => $_ }), 401, 'the token is for another audience', 'another audience')
  for 'other', ['other'], 'x","feeds', ['x","feeds","y'];
is(as(token({ %$alice, aud => 'feeds' }), '/feeds/outbox')->{status}, 200, 'an audience alone');
is(as(token({ %$alice, aud => [ 'a"b\\', ['x'], 'feeds' ] }), '/feeds/outbox')->{status}, 200, 'the last one');
is_refused(token({ %$alice, aud => $_ }), 401, 'the token is for another audience', 'part of another one')
  for [['feeds']], ['x"feeds"'], ['x\\"feeds'], [ { feeds => 'feeds' } ], { feeds => 'feeds' }, ['feed'], ['feedsx'];
is_refused(token({ role => $alice->{role} }), 401, 'the token is for another audience', 'no audience');
is_refused(token($alice, header => { crit => $_ }), 401, 'the token has an extension that is not known', 'a critical extension')
  for ['exp'], 'x', [];
like(is_refused(token($alice, secret => 'another secret of 32 bytes at least'), 401, $invalid, 'another key')
	  ->{headers}{'www-authenticate'}, qr/^Bearer error="invalid_token"$/, 'the client is told');
is_refused(token($alice, alg => 'none'), 401, $invalid, 'alg none');
is_refused(token($alice, alg => 'none') =~ s/\.$//r, 401, $invalid, 'nothing after it');
is_refused(token($alice, alg => 'HS512'), 401, $invalid, 'another algorithm');
is_refused(token($alice) =~ s/^([^.]*\.).*?\./$1 . encode('{"role":"postgres"}') . '.'/er, 401, $invalid, 'forged');
is_refused($_, 401, $invalid, 'malformed')
  for '', 'x', '..', '.', '%%%.%%%.%%%', 'a.b.c', token('{'), token('[]'), token('"x"'), token('null'), token(''),
  token('{"role":"regress_feedpub_alice\u0000","aud":"feeds"}');
is_refused(token({ %$alice, role => $_ }), 401, 'the role of the token is not a string', 'a role that is no string')
  for 1, undef, [], {}, \1;
for my $role ('', 'none', 'regress_feedpub_other', 'regress_feedpub_login', 'postgres', 'no such role', 'regress_feedpub_login"', 'x' x 100)
{
	my $response = as(token({ %$alice, role => $role }), '/feeds/outbox');

	is($response->{status}, 403, 'a role that may not be taken') or diag $response->{content};
	unlike($response->{content}, qr/regress|postgres|no such role|xxx/, 'is not named');
}
sql($node, 'GRANT SELECT ON outbox TO regress_feedpub_login');
is(as(token({ %$alice, role => 'regress_feedpub_login' }), '/feeds/outbox')->{status}, 403, 'nor the login role, if it could read');
like(slurp_file($http->{log}), qr/role ..regress_feedpub_login.. is the login role/, 'which the log names');
sql($node, 'REVOKE SELECT ON outbox FROM regress_feedpub_login');
is(as(token({ %$alice, more => 'x' x 9000 }), '/feeds/outbox')->{status}, 431, 'a token that is too long');
my $two = send_request($http, '/feeds/outbox', Authorization => 'Bearer ' . token($alice)
	  . "\r\nAuthorization: Bearer " . token($bob));
like(read_until($two, qr/\}/), qr/^HTTP\/1.1 400 .*more than one/s, 'two tokens');
is(get($http, '/feeds/outbox?access_token=' . token($alice))->{status}, 401, 'a token in the URL is none');

# claims
my %quoted = (%$bob, sub => qq(it's "\x{fc}"));
is_deeply([ sort @{ keys_of(as(token(\%quoted), '/feeds/outbox')) } ],
	[ sort $quoted{sub}, 'regress_feedpub_bob' ], 'claims with quotes');
is_deeply(keys_of(as(token({ %$bob, sub => "x' OR true --" }), '/feeds/outbox')),
	['regress_feedpub_bob'], 'claims are data');
my @lists = map {
	[ map { $_->{name} } @{ $_->{json}{feeds} } ]
} as(token($alice), '/feeds'), get($http, '/feeds'), as(token({ aud => 'feeds' }), '/feeds');
is_deeply(\@lists,
	[ [ 'public.outbox', 'public.public_feed' ], ['public.public_feed'], ['public.public_feed'] ],
	'the list of feeds; a token without a role has the anonymous one');

# errors: 401 without a token, 403 with one, which name nothing
my $denied = get($http, '/feeds/secret_feed');
is("$denied->{status} $denied->{headers}{'www-authenticate'} $denied->{json}{detail}",
	'401 Bearer permission denied', 'without a token');
$denied = as(token($alice), '/feeds/secret_feed');
is("$denied->{status} $denied->{json}{detail}", '403 permission denied', 'with one');

# all forms of reading
for my $role (qw(alice bob))
{
	my $other = $role eq 'alice' ? 'bob' : 'alice';
	my $token = token($role eq 'alice' ? $alice : $bob);
	my $lines = as($token, '/feeds/outbox', Accept => 'application/x-ndjson')->{content};
	my $stream = send_request($http, '/feeds/outbox', Accept => 'text/event-stream',
		Authorization => "Bearer $token");

	for my $text ($lines, read_until($stream, qr/^data: .*\n\n/m),
		as($token, '/streams/outbox?offset=-1')->{content},
		as($token, '/feeds/outbox', Accept => 'application/cloudevents-batch+json')->{content})
	{
		like($text, qr/data of regress_feedpub_$role/, "$role reads what is theirs");
		unlike($text, qr/$other|other|it's/, 'and nothing else');
	}
}

# equal reads of two roles that wait together
my $head = as(token($alice), '/feeds/outbox')->{cursor};
my @waiting = map {
	send_request($http, "/feeds/outbox?after=$head&wait=60", Authorization => 'Bearer ' . token($_))
} $alice, $bob, { %$bob, sub => 'a claim' };
metric_is($http, 'waiting', 3, 'three wait');
sql($node, <<'SQL');
INSERT INTO outbox (message_type, message_key, data)
	SELECT 'A', k, to_json(k) FROM unnest('{regress_feedpub_alice,regress_feedpub_bob,a claim}'::text[]) k
SQL
is_deeply([ map { join ' ', sort /"key": ?\{"message_key": ?"(.*?)"/g } map { read_until($_, qr/"more": /) } @waiting ],
	[ 'regress_feedpub_alice', 'regress_feedpub_bob', 'a claim regress_feedpub_bob' ],
	'each gets its own');

# a right that is revoked while equal reads wait and come
$head = as(token($alice), '/feeds/outbox')->{cursor};
my $held = send_request($http, "/feeds/outbox?after=$head&wait=60", Authorization => 'Bearer ' . token($alice));
metric_is($http, 'waiting', 1, 'one waits');
sql($node, 'REVOKE SELECT ON outbox FROM regress_feedpub_alice');
my $status = 200;
for (1 .. 10)
{
	last if $status != 200;
	$status = as(token($alice), "/feeds/outbox?after=$head&wait=1")->{status};
}
is($status, 403, 'is seen by the next but one');
like(read_until($held, qr/\}/), qr/^HTTP\/1.1 403 /, 'and then by the one that waits');
sql($node, 'GRANT SELECT ON outbox TO regress_feedpub_alice');

# streams and long-polls end when the token does
my ($short, $of_stream, $of_poll);
$head = as(token($alice), '/feeds/outbox')->{cursor};
for (1 .. 10)
{
	$short = token({ %$alice, exp => time - 27 });
	my $poll = send_request($http, "/feeds/outbox?after=$head&wait=60", Authorization => "Bearer $short");
	my $stream = send_request($http, "/feeds/outbox?after=$head", Accept => 'text/event-stream',
		Authorization => "Bearer $short");

	# a machine that stands still may be too late with a token of three seconds
	$of_stream = read_until($stream, qr/^0\r\n\r\n|\}$/m);
	$of_poll = read_until($poll, qr/"more": |\}$/);
	last if "$of_stream$of_poll" !~ /^HTTP\/1.1 401 /m;
}
like($of_stream, qr/^HTTP\/1.1 200 .*^0\r\n\r\n/ms, 'a stream ends with its token');
like($of_poll, qr/^HTTP\/1.1 200 .*"entries": \[\]/s, 'a long-poll too');
is_refused($short, 401, 'the token has expired', 'which has expired');

# tokens whose signature is good are kept: another one in the same slot is not
my $kept = token($alice);
is(as($kept, '/feeds/outbox')->{status}, 200, 'a token that is kept');
my $forged;
for my $i (1 .. 100_000)
{
	$forged = substr($kept, 0, -20) . sprintf('%020d', $i);
	last if slot_of($forged) == slot_of($kept);
}
is(slot_of($forged), slot_of($kept), 'a forged one in its slot');
is_refused($forged, 401, $invalid, 'is refused');
is(as($kept, '/feeds/outbox')->{status}, 200, 'and the other one is not');

# the key is read again
write_file('secret', 'a new secret that has 32 bytes or more');
kill 'HUP', $http->{pid};
my $tries = 10 * $PostgreSQL::Test::Utils::timeout_default;
select undef, undef, undef, 0.1
  while as(token($alice, secret => 'a new secret that has 32 bytes or more'), '/feeds/outbox')->{status} != 200 && $tries-- > 0;
ok($tries > 0, 'a token of the new key');
is_refused(token($alice), 401, $invalid, 'and one of the old key');
is_refused($kept, 401, $invalid, 'which is not kept either');
write_file('secret', 'short');
kill 'HUP', $http->{pid};
$tries = 10 * $PostgreSQL::Test::Utils::timeout_default;
select undef, undef, undef, 0.1
  while slurp_file($http->{log}) !~ /settings not reloaded/ && $tries-- > 0;
is(as(token($alice, secret => 'a new secret that has 32 bytes or more'), '/feeds/outbox')->{status},
	200, 'a bad key changes nothing');
http_stop($http);

# what an owner's code leaves reaches no other request: one connection
sql($node, <<'SQL');
GRANT CREATE ON SCHEMA public TO regress_feedpub_bob;
SET ROLE regress_feedpub_bob;
CREATE TABLE seen (who text);
GRANT INSERT ON seen TO PUBLIC;
CREATE FUNCTION hostile() RETURNS bool LANGUAGE plpgsql AS $$
BEGIN
	PERFORM set_config('search_path', 'pg_temp', false),
		set_config('request.jwt.claims', '{"sub": "other"}', false), set_config('hostile.mark', 'x', false),
		pg_advisory_lock(1);
	BEGIN PERFORM set_config('role', 'regress_feedpub_alice', false); EXCEPTION WHEN OTHERS THEN END;
	BEGIN EXECUTE 'CREATE TEMP TABLE outbox (x int)'; EXCEPTION WHEN OTHERS THEN END;
	BEGIN EXECUTE 'PREPARE hostile AS SELECT 1'; EXCEPTION WHEN OTHERS THEN END;
	BEGIN EXECUTE 'LISTEN hostile'; EXCEPTION WHEN OTHERS THEN END;
	BEGIN INSERT INTO public.seen VALUES (current_user); EXCEPTION WHEN OTHERS THEN END;
	RETURN true;
END $$;
RESET ROLE;
CREATE POLICY hostile ON public_feed USING (hostile());
CREATE POLICY hostile_outbox ON outbox FOR SELECT TO regress_feedpub_bob USING (hostile() AND false);
ALTER TABLE public_feed ENABLE ROW LEVEL SECURITY;
INSERT INTO public_feed (message_type, data) SELECT 'A', '1' FROM generate_series(1, 3);
SELECT feed_flush('public_feed');
CREATE FUNCTION hostile_trigger() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM public.hostile(); RETURN NEW; END';
CREATE CONSTRAINT TRIGGER hostile AFTER INSERT ON public_feed DEFERRABLE INITIALLY DEFERRED
	FOR EACH ROW EXECUTE FUNCTION hostile_trigger();
SET ROLE regress_feedpub_alice;
SELECT feed_subscribe('hostile', 'public_feed', 'earliest');
RESET ROLE;
ALTER TABLE public_feed ALTER headers SET DEFAULT to_jsonb(hostile()::text || current_user);
GRANT INSERT ON public_feed TO regress_feedpub_alice;
SQL
write_file('secret', $secret);
$http = http_start($node, user => 'regress_feedpub_login', jwt_key => $key, pool => 1,
	anonymous_role => 'regress_feedpub_anonymous');
for my $path ('/feeds/public_feed', '/feeds/outbox')
{
	is(as(token($bob), $path)->{status}, 200, 'code of an owner');
	is_deeply([ sort @{ keys_of(as(token($alice), '/feeds/outbox')) } ],
		[ ('regress_feedpub_alice') x 2 ], 'does not reach the next request');
	is(sql($node, q(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory')), '0', 'it leaves no lock');
}
my $append = HTTP::Tiny->new->post("$http->{url}/streams/public_feed",
	{ headers => { 'Content-Type' => 'application/json', Authorization => 'Bearer ' . token($alice) },
		content => '{}' });
is($append->{status}, 204, 'an append runs an owner\'s default');
is(sql($node, q(SELECT headers FROM public_feed WHERE headers IS NOT NULL)),
	'"trueregress_feedpub_alice"', 'as the role');
is_deeply(keys_of(as(token($bob), '/feeds/outbox')), [ ('regress_feedpub_bob') x 2 ], 'and leaves nothing');
for my $action (qw(nack park ack))
{
	my $post = sub {
		my ($path, $arguments) = @_;
		return HTTP::Tiny->new->post("$http->{url}/subscriptions/hostile/$path",
			{ headers => { Authorization => 'Bearer ' . token($alice) }, content => encode_json($arguments) });
	};
	my $page = decode_json($post->('poll', { max_rows => 1 })->{content});
	my $done = $post->($action, { receipt => $page->{entries}[0]{receipt}, $action eq 'nack' ? (delay => '0 s') : () });

	is($done->{status}, 200, "$action runs an owner's policy") or diag $done->{content};
	is_deeply(keys_of(as(token($bob), '/feeds/outbox')), [ ('regress_feedpub_bob') x 2 ], 'and leaves nothing');
	is(sql($node, q(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory')), '0', 'and no lock');
}
is(sql($node, 'SELECT DISTINCT who FROM seen'), 'regress_feedpub_alice', 'all as the role');
http_stop($http);

# the command line
for my $bad ([ qr/all requests would be refused/ ], [ qr/must have 32 bytes/, '--jwt-key=' . write_file('short', 'x') ],
	[ qr/must be a public key/, "--jwt-key=$directory/RS256.private" ],
	[ qr/could not open file/, "--jwt-key=$directory/none" ],
	[ qr/it is too long/, '--jwt-key=' . write_file('long', 'x' x 16385) ],
	[ qr/could not open file/, "--config=$directory/none" ],
	[ qr/line 2: no such setting"\n.*line 3: no such setting/, '--config=' . write_file('settings', "# one\nthere-is-none = 1\nmax-limit\n") ],
	map { [ qr/address \\"\Q$_\E\\" is not HOST:PORT/, '--anonymous-role=postgres', "--listen=$_" ] } 'localhost', '127.0.0.1:nothing', '[::1:80')
{
	my ($expected, @flags) = @$bad;
	my $error;

	IPC::Run::run([ "$FindBin::RealBin/../../http/feedpub-http", @flags ], '2>', \$error);
	like($error, $expected, 'it does not start');
}

done_testing();
