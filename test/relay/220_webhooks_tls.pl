# The certificate of a webhook's receiver is verified.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FeedpubRelay;
use FeedpubTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'there is no python3' if system 'python3 -c "import ssl" 2>/dev/null';

# a receiver of HTTPS, with a certificate for this name
sub start_receiver
{
	my ($directory, $name) = @_;
	my $port = PostgreSQL::Test::Cluster::get_free_port();

	system("openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test -addext subjectAltName=$name"
		  . " -keyout $directory/key -out $directory/cert 2>/dev/null") == 0 or die 'openssl';
	my $pid = fork // die "could not fork: $!";
	exec 'python3', '-c', <<'PYTHON', $port, $directory or die unless $pid;
import http.server, ssl, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers['Content-Length']))
        with open(sys.argv[2] + '/bodies', 'ab') as out:
            out.write(body + b'\n')
        self.send_response(204)
        self.end_headers()
    def log_message(self, *args):
        pass
server = http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[2] + '/cert', sys.argv[2] + '/key')
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
PYTHON
	return { port => $port, pid => $pid, directory => $directory };
}

my $node = feedpub_node('server', conf => "shared_preload_libraries = 'feedpub'");
my @receivers = map { start_receiver(PostgreSQL::Test::Utils::tempdir(), $_) } 'IP:127.0.0.1', 'DNS:other.example';
my ($right, $other) = @receivers;

append_to_file("$right->{directory}/secrets", 'whsec_' . 'A' x 32);
sql($node, <<'SQL');
SELECT feed_create('outbox');
SELECT feed_start_worker();
INSERT INTO outbox (message_type, message_key, data) VALUES ('n', 'a', '1');
SQL

sub start
{
	my ($receiver, %options) = @_;

	return relay_start($node, undef, to => "https://127.0.0.1:$receiver->{port}/", wait => 0,
		secrets => "$right->{directory}/secrets", subscription => 'hook', allow => '127.0.0.1', %options);
}

my $relay = start($right);
relay_logs($relay, qr/could not deliver: .*certificate/i, 'one that nobody knows is refused');
relay_stop($relay);
$relay = start($other, tls_ca => "$other->{directory}/cert");
relay_logs($relay, qr/could not deliver: .*(?:certificate|SSL|alternative)/i, 'so is one for another name');
relay_stop($relay);
ok(!-e "$_->{directory}/bodies", 'nothing was sent') for @receivers;
$relay = start($right, tls_ca => "$right->{directory}/cert");
soon(sub { -e "$right->{directory}/bodies" }, 'with its authority it is taken');
soon(sub { relay_metric($relay, 'sent_total') == 1 }, 'and the entry is accepted');
is(relay_stop($relay), 0, 'SIGTERM ends it');
kill 'KILL', map { $_->{pid} } @receivers;
waitpid $_->{pid}, 0 for @receivers;

done_testing();
