# http.pl: the part of bench/run that measures feedpub-http.  Loaded by
# measure.pl, whose tools it uses.

use strict;
use warnings;
use Digest::SHA qw(hmac_sha256);
use IO::Socket::INET;
use MIME::Base64 qw(encode_base64url);

my $work = $ENV{WORK};
my $rounds = $ENV{ROUNDS};

# A port that nobody listens on.
sub free_port
{
	my $socket = IO::Socket::INET->new(Listen => 1, LocalAddr => '127.0.0.1')
	  or die "no port: $!\n";
	return $socket->sockport;
}

# Start a server, and wait until it accepts connections.  Returns "PORT:PID", as
# http.c takes it.
my @servers;

sub start_server
{
	my ($port, @command) = @_;
	my $pid = fork // die "could not fork: $!\n";

	if (!$pid)
	{
		$ENV{PGAPPNAME} = "http.$$";
		open STDOUT, '>', "$work/http.$port.log" or die "$!\n";
		open STDERR, '>&', \*STDOUT or die "$!\n";
		exec @command or die "$command[0]: $!\n";
	}
	push @servers, $pid;
	for (1 .. 100)
	{
		return "$port:$pid"
		  if IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port);
		select undef, undef, undef, 0.1;
	}
	die "@command did not start: " . `cat $work/http.$port.log`;
}

sub start_feedpub
{
	my (@options) = @_;
	my $port = free_port();

	return start_server($port, "$work/tree/http/feedpub-http", "--listen=127.0.0.1:$port",
		'--anonymous-role=postgres', @options);
}

sub write_file
{
	my ($name, $content) = @_;

	open my $out, '>', "$work/$name" or die "$name: $!\n";
	print $out $content;
	close $out;
	return "$work/$name";
}

# A server that takes JWTs of this algorithm, and one for it; nothing if
# there is no openssl.
sub start_with_jwt
{
	my ($algorithm) = @_;
	my $jwt = encode_base64url(qq({"alg":"$algorithm","typ":"JWT"})) . '.'
	  . encode_base64url(q({"role":"postgres","sub":"user 4711","exp":4000000000}));
	my ($key, $signature);

	if ($algorithm eq 'HS256')
	{
		my $secret = 'a secret of thirty-two bytes or more';
		$key = write_file('secret', $secret);
		$signature = hmac_sha256($jwt, $secret);
	}
	else
	{
		my $private = "$work/$algorithm.private";
		my $input = write_file('jwt', $jwt);
		$key = "$work/$algorithm.public";
		system("openssl genpkey -out $private "
			  . ($algorithm eq 'RS256' ? '-algorithm RSA -pkeyopt rsa_keygen_bits:2048' :
				'-algorithm EC -pkeyopt ec_paramgen_curve:P-256')
			  . " 2>$work/openssl.log && openssl pkey -in $private -pubout -out $key") == 0
		  or return;
		$signature = `openssl dgst -sha256 -sign $private $input`;

		# two numbers, each with its length before it, become 32 bytes each
		if ($algorithm eq 'ES256')
		{
			my ($r, $s) = unpack 'x3 C/a x C/a', $signature;
			$signature = join '', map { substr(("\0" x 32) . $_, -32) } $r, $s;
		}
	}
	$jwt .= '.' . encode_base64url($signature);
	return start_feedpub("--jwt-key=$key") . ":Authorization: Bearer $jwt";
}

sub http
{
	load('1m');
	psql('feed_1m', q(CALL feed_publish('feedpub')), 'SELECT feed_start_worker()');
	local $ENV{PGDATABASE} = 'feed_1m';
	my $lines = 'SELECT feedpub._page_lines($1::pg_catalog.regclass, $2, $3::pg_catalog.int4)';
	(my $events = $lines) =~ s/_page_lines/_page_events/;
	my @ours = ('feed_page=pq:127.0.0.1', 'http=' . start_feedpub());
	my @all = (@ours, 'socket=pq:', "lines=pq::$lines",
		"request=pq::SELECT feedpub._request('postgres', '{}', true, '$lines', \$1, \$2, \$3)");
	my @events = ($ours[0], "events=pq:127.0.0.1:$events",
		'http=' . start_feedpub() . ':Accept: application/cloudevents-batch+json');
	my @jwts = ('none=' . start_feedpub());

	if (-d "$work/node/node_modules/pg")
	{
		my $port = free_port();
		push @all, 'node=' . start_server($port, 'node', "$work/node/node.js", $port);
	}
	else
	{
		progress('node: skipped, npm could not install pg');
	}
	for my $algorithm (qw(HS256 RS256 ES256))
	{
		my $server = start_with_jwt($algorithm);
		push @jwts, "$algorithm=$server" if defined $server;
	}

	my $pages = csv('http_pages', qw(round part limit variant calls rows bytes seconds cpu us));
	my $drain = csv('http_drain', qw(round variant calls rows bytes seconds cpu));
	my $latency = csv('http_latency', qw(round variant us committed_us));
	my $insert = q(INSERT INTO feedpub (publication_id, message_id, message_type, data)
		VALUES ('orders', gen_random_uuid()::text, 'OrderPlaced', message(1)::jsonb));
	for my $round (1 .. $rounds)
	{
		progress("http, round $round of $rounds");
		for my $limit (100, 1000)
		{
			http_client($pages, [ $round, 'pages', $limit ], 'pages', 'feedpub', $limit,
				20, $limit == 100 ? 100 : 20, @all);
		}
		http_client($pages, [ $round, 'events', 100 ], 'pages', 'feedpub', 100, 20, 50, @events);
		http_client($pages, [ $round, 'jwts', 1 ], 'pages', 'feedpub', 1, 20, 50, @jwts);
		http_client($drain, [$round], 'drain', 'feedpub', 1000,
			$round % 2 ? @ours : reverse @ours);
		http_client($latency, [$round], 'latency', 'feedpub', 200, $insert, @ours);
	}
	kill 'TERM', @servers;
	waitpid $_, 0 for @servers;
	return;
}

# Run http.c, and add its lines to a file.
sub http_client
{
	my ($out, $prefix, @command) = @_;

	open my $in, '-|', "$work/http", @command or die "http: $!\n";
	while (my $line = <$in>)
	{
		print $out join(',', @$prefix, $line);
	}
	close $in or die "http failed\n";
	return;
}

1;
