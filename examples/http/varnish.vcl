# Varnish as a cache before feedpub-http.
#
# Each response says how long it may be kept, and Varnish obeys, if no grace is
# given: a stale page can lead a consumer to a cursor that is refused.  Requests
# with credentials are passed by Varnish's own rules.
#
# Replace the address.
vcl 4.1;

backend feedpub {
	.host = "127.0.0.1";
	.port = "8080";
	.first_byte_timeout = 3600s;    # long-polls
	.between_bytes_timeout = 60s;   # event streams have a heartbeat before that
}

sub vcl_recv {
	# a stream has no end that could be waited for
	if (req.http.Accept ~ "text/event-stream|application/x-ndjson" ||
			req.url ~ "[?&]live=") {
		return (pipe);
	}
	# equal long-polls do not wait for each other
	if (req.url ~ "[?&](wait|timeout)=") {
		set req.hash_ignore_busy = true;
	}
}

sub vcl_pipe {
	set bereq.http.Connection = "close";
}

sub vcl_backend_response {
	set beresp.grace = 0s;
	set beresp.keep = 1h;           # asked for again with its ETag
}

sub vcl_deliver {
	if (obj.hits > 0) {
		set resp.http.X-Cache = "HIT";
	} else {
		set resp.http.X-Cache = "MISS";
	}
}
