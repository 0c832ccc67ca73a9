# How the relay logs in: passwords, tokens, NKeys, TLS; as whom it reads; and that
# nothing secret is in the list of processes, the log or the metrics.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubRelay;
use FeedpubTest;
use JSON::PP;
use MIME::Base64;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'");
my $dir = PostgreSQL::Test::Utils::tempdir();
my $secret = 'very-secret-word';

sub file
{
	my ($name, $content) = @_;

	append_to_file("$dir/$name", $content);
	chmod 0600, "$dir/$name";
	return "$dir/$name";
}

# A relay sends what there is, by these settings; and never shows the secret.
sub sends
{
	my ($nats, $test, %options) = @_;
	my $relay = relay_start($node, $nats, %options);
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	soon(sub { (relay_metric($relay, 'at_end') // 0) == 1 }, "$test: it sends");
	my $shown = relay_log($relay) . slurp_file("/proc/$relay->{pid}/cmdline")
	  . relay_get($relay, '/metrics')->{content} . relay_get($relay, '/ready')->{content};
	unlike($shown, qr/\Q$secret\E|SU[A-Z2-7]{50}/, "$test: nothing secret is shown");
	relay_stop($relay);
	return;
}

sub is_refused
{
	my ($nats, $pattern, $test, %options) = @_;
	my $relay = relay_start($node, $nats, %options, wait => 0);
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	relay_logs($relay, $pattern, "$test: says why");
	unlike(relay_log($relay) . slurp_file("/proc/$relay->{pid}/cmdline"), qr/\Q$secret\E|SU[A-Z2-7]{50}/, "$test: nothing secret is shown");
	relay_stop($relay);
	return;
}

sql($node, <<'SQL');
SELECT feed_create('outbox');
INSERT INTO outbox (message_type, message_key, data) VALUES ('n', 'k', '1');
SELECT feed_start_worker();
SELECT feed_flush('outbox');
SQL

# a password, and a token
my $password = file('password', "$secret\n");
my $nats = nats_start('password', conf => "authorization: { user: relay, password: \"$secret\" }\n", connect => { user => 'relay', pass => $secret });
sends($nats, 'a password', user => 'relay', password => $password);
is_refused($nats, qr/could not connect to \S+: Authentication/, 'a wrong password', user => 'relay', password => file('wrong', 'wrong'));
is_refused($nats, qr/could not connect to \S+: Authentication/, 'none');
is_refused($nats, qr/could not open file .*nothing/, 'a file that is not there', user => 'relay', password => "$dir/nothing");
nats_stop($nats);
$nats = nats_start('token', conf => "authorization: { token: \"$secret\" }\n", connect => { auth_token => $secret });
sends($nats, 'a token', token => $password);
is_refused($nats, qr/could not connect to \S+: Authentication/, 'a wrong token', token => "$dir/wrong");
nats_stop($nats);

# Such URLs are refused: the list of processes has them, so they are no secrets.
$nats = nats_start('n1');
for my $bad ([ to => "nats://relay:other\@127.0.0.1:$nats->{port}" ], [ database => $node->connstr('postgres') . ' password=other' ])
{
	my $relay = relay_start($node, $nats, @$bad, wait => 0);

	relay_logs($relay, qr/may not have a (user or )?password/, "a password in --$bad->[0] is refused");
	is(relay_wait($relay), 2, 'and the relay ends');
	unlike(relay_log($relay), qr/other/, 'without it');
}

# as whom it reads
sql($node, <<'SQL');
CREATE ROLE regress_feedpub_relay LOGIN;
CREATE ROLE regress_feedpub_nobody LOGIN;
GRANT SELECT ON outbox TO regress_feedpub_relay;
ALTER TABLE outbox ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON outbox FOR SELECT TO regress_feedpub_relay USING (publication_id = 'shown');
INSERT INTO outbox (publication_id, message_type, message_key, data)
	SELECT CASE WHEN i % 2 = 0 THEN 'shown' ELSE 'hidden' END, 'n', 'k', to_json(i) FROM generate_series(1, 10) i;
SELECT feed_flush('outbox');
SQL
sends($nats, 'row security', database => $node->connstr('postgres') . ' user=regress_feedpub_relay');
is_deeply([ map { $_->{data} } stream_messages($nats, 'outbox') ], [ 2, 4, 6, 8, 10 ], 'what row security hides is not sent');
is_refused($nats, qr/could not read: permission denied for table outbox \(42501\)/, 'no right', stream => 'other', subject => 'other.x', database => $node->connstr('postgres') . ' user=regress_feedpub_nobody');
nats_stop($nats);
sql($node, 'ALTER TABLE outbox DISABLE ROW LEVEL SECURITY');

SKIP:
{
	my $openssl = sub { system('openssl', @_) == 0 or die 'openssl' };

	skip 'no openssl', 1 unless `openssl version 2>/dev/null`;

	# an NKey: a pair of Ed25519 keys, with prefix and checksum, in base 32
	my $base32 = sub {
		my $bits = unpack 'B*', $_[0];
		my @letters = ('A' .. 'Z', '2' .. '7');

		$bits .= '0' while length($bits) % 5;
		return join '', map { $letters[ oct "0b$_" ] } $bits =~ /(.{5})/g;
	};
	my $with_sum = sub {
		my $sum = 0;

		for my $byte (unpack 'C*', $_[0])
		{
			$sum ^= $byte << 8;
			$sum = ($sum & 0x8000 ? $sum << 1 ^ 0x1021 : $sum << 1) & 0xffff for 1 .. 8;
		}
		return $base32->($_[0] . pack 'v', $sum);
	};
	# of a user, an account (A) or an operator (O): its public key and its seed
	my $pair = sub {
		my ($name, $type) = @_;
		my $prefix = { O => 14, A => 0, U => 20 }->{$type};

		$openssl->('genpkey', '-algorithm', 'ed25519', '-outform', 'DER', '-out', "$dir/$name.der");
		$openssl->('pkey', '-inform', 'DER', '-in', "$dir/$name.der", '-pubout', '-outform', 'DER', '-out', "$dir/$name.pub");
		return ($with_sum->(chr($prefix << 3) . substr slurp_file("$dir/$name.pub"), -32),
			$with_sum->(chr(18 << 3 | $prefix >> 2) . chr(($prefix & 3) << 6) . substr slurp_file("$dir/$name.der"), -32));
	};
	my ($nkey, $seed) = $pair->('user', 'U');

	$seed = file('seed', "$seed\n");
	like($nkey, qr/^U[A-Z2-7]{55}$/, 'an NKey');
	like(slurp_file($seed), qr/^SU[A-Z2-7]{56}$/, 'and its seed');
	$nats = nats_start('nkey', no_wait => 1, conf => "authorization: { users: [ { nkey: $nkey } ] }\n");
	soon(sub { -e $nats->{log} && slurp_file($nats->{log}) =~ /Server is ready/ }, 'a server with it');
	sends($nats, 'an NKey', nkey => $nkey, nkey_seed => $seed);
	is_refused($nats, qr/could not connect/, 'another NKey', nkey => $nkey, nkey_seed => file('other', $with_sum->(chr(18 << 3 | 20 >> 2) . chr((20 & 3) << 6) . ('x' x 32)) . "\n"));
	nats_stop($nats);

	# credentials: JWTs of an operator, of accounts that it has signed, of a user
	my %key = map { $_ => [ $pair->($_, { operator => 'O', user => 'U' }->{$_} // 'A') ] } qw(operator account system user);
	my $base64 = sub { return encode_base64($_[0], '') =~ tr{+/=}{-_}dr };
	my $jwt = sub {
		my ($by, $whose, %nats) = @_;
		my %claims = (jti => 'x', iat => time, iss => $key{$by}[0], sub => $key{$whose}[0], name => $whose, nats => { %nats, version => 2 });
		my $text = join '.', map { $base64->(encode_json($_)) } { typ => 'JWT', alg => 'ed25519-nkey' }, \%claims;

		append_to_file("$dir/$whose.jwt", $text);
		$openssl->('pkeyutl', '-sign', '-rawin', '-keyform', 'DER', '-inkey', "$dir/$by.der", '-in', "$dir/$whose.jwt", '-out', "$dir/$whose.signature");
		return "$text." . $base64->(slurp_file("$dir/$whose.signature"));
	};
	my %limits = map { $_ => -1 } qw(subs data payload imports exports conn leaf mem_storage disk_storage streams consumer);
	my @accounts = map { "$key{$_}[0]: " . $jwt->('operator', $_, type => 'account', limits => { %limits, ($_ eq 'system' ? (mem_storage => 0, disk_storage => 0) : ()), wildcards => JSON::PP::true }) } qw(account system);
	my $user = $jwt->('account', 'user', type => 'user', pub => {}, sub => {}, subs => -1, data => -1, payload => -1);
	my $credentials = sub {
		my ($name, $key) = @_;

		return file($name, "-----BEGIN NATS USER JWT-----\n$user\n------END NATS USER JWT------\n\n-----BEGIN USER NKEY SEED-----\n$key\n------END USER NKEY SEED------\n");
	};
	$nats = nats_start('credentials', no_wait => 1,
		conf => 'operator: ' . $jwt->('operator', 'operator', type => 'operator') . "\nresolver: MEMORY\nsystem_account: $key{system}[0]\nresolver_preload: {\n" . join("\n", @accounts) . "\n}\n");
	soon(sub { -e $nats->{log} && slurp_file($nats->{log}) =~ /Server is ready/ }, 'a server of an operator') || diag(slurp_file($nats->{log}));
	sends($nats, 'credentials', credentials => $credentials->('relay.creds', $key{user}[1]));
	is_refused($nats, qr/could not connect/, 'credentials with the seed of another one', credentials => $credentials->('other.creds', ($pair->('another', 'U'))[1]));
	is_refused($nats, qr/could not open file .*nothing.*setting \\"credentials\\": /s, 'credentials that are not there', credentials => "$dir/nothing");
	is_refused($nats, qr/could not connect/, 'no credentials');
	nats_stop($nats);

	# TLS, both ways
	for my $who (qw(ca server relay))
	{
		my @by = $who eq 'ca' ? () : ('-CA', "$dir/ca.crt", '-CAkey', "$dir/ca.key");

		$openssl->('req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days', '2', '-subj', "/CN=$who",
			'-addext', 'subjectAltName=IP:127.0.0.1', '-keyout', "$dir/$who.key", '-out', "$dir/$who.crt", @by);
	}
	$nats = nats_start('tls', tls => 1, conf => "tls: { cert_file: \"$dir/server.crt\", key_file: \"$dir/server.key\", ca_file: \"$dir/ca.crt\", verify: true }\n");
	sends($nats, 'TLS', tls_ca => "$dir/ca.crt", tls_certificate => "$dir/relay.crt", tls_key => "$dir/relay.key");
	is_refused($nats, qr/could not connect.*SSL/, 'a server whose certificate is not trusted', tls_certificate => "$dir/relay.crt", tls_key => "$dir/relay.key");
	is_refused($nats, qr/could not connect/, 'no certificate', tls_ca => "$dir/ca.crt");
	nats_stop($nats);
}

done_testing();
