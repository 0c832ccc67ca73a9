/*-------------------------------------------------------------------------
 *
 * connection.c
 *	  Connections: bytes in, bytes out, and how long and how much they may take.
 *
 * A connection reads a request, has it handled, writes the response, and reads
 * the next one.  While a request is handled nothing more is read, so a client
 * that sends faster than it is served waits in its own buffers.  A request that
 * waits costs no work at all: its descriptor only tells when the client goes.
 *
 * One timer bounds what a client may take.  While a request is read, it is set
 * once, for one byte is traffic too; while a response is written, it is set
 * again when the client has taken something.
 *
 * One budget bounds the memory of all connections and of the results that they
 * have, which are counted once each: max-memory.  Above it, connections are
 * closed that the server waits for, because a request has begun and not ended,
 * or because of bytes that the client has not taken: first the one that has been
 * waited for longest.  That counts from the first byte of the request, or from
 * when the first of these bytes could not be sent, so nothing is gained by
 * sending or taking a byte now and then; and it is more likely to have much than
 * one that is waited for since a moment ago.  A client that waits for news, and
 * one that takes at once what it is sent, are never closed for it.
 *
 * What is refused before it is a request gets an answer too, and then what the
 * client still sends is read and dropped for a while: if a socket is closed
 * that has not been read, the client's side drops the answer.
 *
 * A connection that has been closed is freed at the end of the round, when no
 * event of this round can have it any more.
 *
 *-------------------------------------------------------------------------
 */
#include "server/server.h"

#include <errno.h>
#include <malloc.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "server/address.h"
#include "server/listener.h"
#include "server/parser.h"

/* ms for which a client that is refused is read */
#define LINGER 2000

/*
 * bytes that are read at a time: what a client sends after its request is kept
 * while that waits, in this much memory
 */
#define READ_AT_A_TIME 16383

/* bytes: when three quarters of more than this are free, the system gets them */
#define MUCH_MEMORY (32 * 1024 * 1024)

typedef enum State
{
	READS,
	HANDLES,					/* a request, which may wait */
	WRITES,
	LINGERS						/* nothing more is written */
} State;

typedef struct Connection
{
	BaseSource	source;			/* the first member */
	BaseTimer	timer;
	HttpListener *listener;
	HttpAddress *address;
	State		state;
	HttpParser	parser;
	HttpRequest *request;		/* NULL: no byte of it has come */
	BaseText	in;				/* has been read, and is of the next request */
	BaseText	out;			/* to be written, and then the body: */
	size_t		written;
	const char *body;
	size_t		body_length;
	bool		is_stream;		/* more is to be written then */
	bool		is_chunked;
	bool		closes;			/* after the response */
	bool		is_refused;		/* there are too many connections */
	bool		is_resumed;
	struct Connection *next;	/* of those that are resumed, or closed */
	size_t		size;			/* of what it has, as it is counted */
	bool		is_slow;		/* it is in the list of those: */
	struct Connection *slower;
	struct Connection *faster;
} Connection;

static Connection *resumed;
static Connection *closed;
static bool draining;
static int	requests;			/* complete, and not answered */
static int	lingering;			/* connections that linger */
static size_t held;				/* bytes of connections, without their results */
static Connection *slowest;		/* of those that the server waits for */
static Connection *fastest;
static uint64_t dropped;

static void close_connection(Connection *connection);
static void ready(BaseSource *source, uint32_t events);
static void end_late(BaseTimer *timer);
static void resume(JobWaiter *waiter);
static void set_timer(Connection *connection, int64_t ms);
static void count_memory(Connection *connection);
static void add_slow(Connection *connection);
static void remove_slow(Connection *connection);
static void drop_slow(void);
static void give_back(void);
static void advance(Connection *connection);
static bool read_more(Connection *connection);
static void parse(Connection *connection);
static void refuse(Connection *connection, unsigned status, const char *problem);
static void handle(Connection *connection);
static void begin_response(Connection *connection);
static bool write_more(Connection *connection);
static bool add_piece(Connection *connection);
static void end_response(Connection *connection);

/* A client has come. */
void
http_connection_open(HttpListener *listener, int fd, const struct sockaddr_storage *name)
{
	int			most = http_config()->max_connections_per_address;
	HttpAddress *address = http_address_take(name);
	Connection *connection;
	int			on = 1;

	if (listener->is_public && most > 0 && http_address_count(address) > most)
	{
		http_address_release(address);
		close(fd);
		return;
	}
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	connection = base_alloc(sizeof(Connection));
	connection->source.ready = ready;
	connection->source.fd = fd;
	connection->timer.due = end_late;
	connection->listener = listener;
	connection->address = address;
	connection->is_refused = ++listener->count > listener->most;
	connection->state = READS;
	/* so that those who are refused are told so soon, however many there are */
	set_timer(connection, connection->is_refused ? LINGER : http_config()->idle_timeout * INT64_C(1000));
	base_loop_watch(&connection->source, fd, EPOLLIN);
}

static void
close_connection(Connection *connection)
{
	if (connection->listener == NULL)
		return;
	base_loop_forget(&connection->source);
	base_timer_stop(&connection->timer);
	close(connection->source.fd);
	http_address_release(connection->address);
	connection->listener->count--;
	connection->listener = NULL;
	if (connection->state == LINGERS)
		lingering--;
	if (connection->request != NULL)
		end_response(connection);
	free(connection->in.data);
	free(connection->out.data);
	held -= connection->size;
	remove_slow(connection);
	if (connection->is_resumed)
		return;					/* it is freed when its turn comes */
	connection->next = closed;
	closed = connection;
}

/* Something has happened to a connection. */
static void
ready(BaseSource *source, uint32_t events)
{
	Connection *connection = (Connection *) source;

	if (events & (EPOLLERR | EPOLLHUP))
		close_connection(connection);
	else if (connection->state == HANDLES ||
			 (connection->state == WRITES && (events & EPOLLOUT) == 0))
	{
		/* the client has closed its side: it waits no more */
		connection->request->waiter.is_gone = true;
		base_loop_watch(source, source->fd, 0);
		job_leave(&connection->request->waiter);
	}
	else if ((connection->state != READS && connection->state != LINGERS) || read_more(connection))
		advance(connection);
}

/* It has taken too long: to send a request, of which something is there, or else. */
static void
end_late(BaseTimer *timer)
{
	Connection *connection = (Connection *) ((char *) timer - offsetof(Connection, timer));
	bool		is_large;

	if (connection->state != READS || connection->request == NULL)
	{
		close_connection(connection);
		return;
	}
	is_large = connection->request->body.length > HTTP_MAX_BODY;
	refuse(connection, is_large ? 413 : 408,
		   is_large ? "the body is too large" : "the request has taken too long");
	advance(connection);
}

/* The result of a request is there; it goes on in this round or the next. */
static void
resume(JobWaiter *waiter)
{
	Connection *connection = ((HttpRequest *) waiter)->connection;

	if (connection->is_resumed)
		return;
	connection->is_resumed = true;
	connection->next = resumed;
	resumed = connection;
}

static void
set_timer(Connection *connection, int64_t ms)
{
	base_timer_set(&connection->timer, base_now() + ms);
}

/*
 * Go on with the requests whose results are there, keep to the budget, and free
 * what has been closed.
 */
void
http_server_work(void)
{
	Connection *list = resumed;

	resumed = NULL;
	while (list != NULL)
	{
		Connection *connection = list;

		list = connection->next;
		connection->is_resumed = false;
		if (connection->listener == NULL)
		{
			connection->next = closed;
			closed = connection;
		}
		else
			advance(connection);
	}
	drop_slow();
	while (closed != NULL)
	{
		Connection *connection = closed;

		closed = connection->next;
		free(connection);
	}
	give_back();
}

/*
 * Has it something to do, at once?  If the last request of those that are drained
 * has ended with its connection, no event and no timer tells it.
 */
bool
http_server_is_ready(void)
{
	return resumed != NULL || (draining && requests == 0 && lingering == 0);
}

/*
 * Resume all requests that wait.  Returns whether all have ended.  To be called
 * until then.
 */
bool
http_server_drain(void)
{
	draining = true;
	job_end_waiting();
	return requests == 0;
}

/* Bytes of requests, of responses that are sent, and of results. */
size_t
http_memory(void)
{
	return held + db_results_held();
}

/* Clients that were dropped because of max-memory. */
uint64_t
http_dropped(void)
{
	return dropped;
}

static void
count_memory(Connection *connection)
{
	const HttpRequest *request = connection->request;
	size_t		size = connection->in.size + connection->out.size;

	if (request != NULL)
	{
		size += request->head.size + request->body.size + request->fields.size + request->text.size;
		db_result_count(request->waiter.result);
		db_result_count(request->shared);
	}
	held += size - connection->size;
	connection->size = size;
}

/* The server waits for a connection from now on. */
static void
add_slow(Connection *connection)
{
	if (connection->is_slow)
		return;
	connection->is_slow = true;
	connection->slower = fastest;
	connection->faster = NULL;
	*(fastest != NULL ? &fastest->faster : &slowest) = connection;
	fastest = connection;
}

static void
remove_slow(Connection *connection)
{
	if (!connection->is_slow)
		return;
	connection->is_slow = false;
	*(connection->slower != NULL ? &connection->slower->faster : &slowest) = connection->faster;
	*(connection->faster != NULL ? &connection->faster->slower : &fastest) = connection->slower;
}

/*
 * Keep to the budget.  The last one stays: a page that is larger than all of it
 * can be had, by one client at a time.
 */
static void
drop_slow(void)
{
	size_t		most = http_config()->max_memory * (size_t) (1024 * 1024);
	int			count = 0;

	for (; slowest != fastest && http_memory() > most; count++)
		close_connection(slowest);
	dropped += count;
	if (count > 0)
		base_log(BASE_LOG_WARNING, "dropped %d of the slowest clients, because max-memory is %d MB",
				 count, http_config()->max_memory);
}

/* What many clients had is the system's again: free() gives back the end only. */
static void
give_back(void)
{
	static size_t most;
	size_t		now = http_memory();

	if (now > most)
		most = now;
	if (most < MUCH_MEMORY || now > most / 4)
		return;
	malloc_trim(0);
	most = now;
}

/* Do what can be done now, and wait for what it needs. */
static void
advance(Connection *connection)
{
	uint32_t	events = 0;

	while (connection->listener != NULL)
	{
		if (connection->state == READS && connection->in.length > 0)
			parse(connection);
		else if (connection->state == HANDLES && connection->request->waiter.job == NULL)
			handle(connection);
		else if (connection->state != WRITES || !write_more(connection))
			break;
	}
	if (connection->listener == NULL)
		return;
	switch (connection->state)
	{
		case READS:
		case LINGERS:
			events = EPOLLIN;
			break;
		case HANDLES:
			events = connection->request->waiter.is_gone ? 0 : EPOLLRDHUP;
			break;
		case WRITES:
			if (connection->written < connection->out.length || connection->body_length > 0)
				events = EPOLLOUT;
			else
				events = connection->request->waiter.is_gone ? 0 : EPOLLRDHUP;
	}
	count_memory(connection);
	if (events == EPOLLOUT || (connection->state == READS && connection->request != NULL))
		add_slow(connection);
	else
		remove_slow(connection);
	base_loop_watch(&connection->source, connection->source.fd, events);
}

/* Read what has come.  Returns false if the client has closed. */
static bool
read_more(Connection *connection)
{
	static char buffer[READ_AT_A_TIME];
	ssize_t		length = read(connection->source.fd, buffer, sizeof(buffer));

	if (length < 0 && (errno == EAGAIN || errno == EINTR))
		return true;
	if (length <= 0)
	{
		close_connection(connection);
		return false;
	}
	if (connection->state == READS)
		base_text_add(&connection->in, buffer, length);
	return true;
}

/* Have what was read become a request. */
static void
parse(Connection *connection)
{
	HttpParser *parser = &connection->parser;
	BaseText   *in = &connection->in;
	size_t		length;

	if (connection->request == NULL)
	{
		HttpRequest *request = http_request_new();

		request->waiter.resume = resume;
		request->connection = connection;
		request->is_public = connection->listener->is_public;
		request->is_refused = connection->is_refused && request->is_public;
		connection->request = request;
		http_parse_begin(parser, request);
	}
	length = http_parse(parser, in->data, in->length);
	if (parser->continues && !parser->is_complete && parser->status == 0)
	{
		/* it is so short that a new connection's buffers have room for it */
		parser->continues = false;
		if (write(connection->source.fd, "HTTP/1.1 100 Continue\r\n\r\n", 25) != 25)
		{
			close_connection(connection);
			return;
		}
	}
	memmove(in->data, in->data + length, in->length - length);
	in->length -= length;
	if (parser->status == 0 && !parser->is_complete)
	{
		if (in->length > 0 && length == 0)
			close_connection(connection);
		return;
	}
	if (in->length == 0)
	{
		free(in->data);
		memset(in, 0, sizeof(*in));
	}
	if (parser->status != 0)
	{
		refuse(connection, parser->status, parser->problem);
		return;
	}
	requests++;
	remove_slow(connection);
	connection->state = HANDLES;
	base_timer_stop(&connection->timer);
}

/* Answer what is no request. */
static void
refuse(Connection *connection, unsigned status, const char *problem)
{
	requests++;
	connection->request->keeps = false;
	http_problem(connection->request, status, problem);
	begin_response(connection);
}

/* Have a request handled that waits for nothing. */
static void
handle(Connection *connection)
{
	HttpRequest *request = connection->request;
	void (*go_on)(HttpRequest *) = request->go_on;

	request->go_on = NULL;
	if (go_on != NULL)
		go_on(request);
	else
		connection->listener->handle(request);
	if (request->status != 0)
		begin_response(connection);
}

/* The response is there: make its head. */
static void
begin_response(Connection *connection)
{
	HttpRequest *request = connection->request;
	BaseText   *out = &connection->out;
	BaseText   *body = request->shared != NULL ? &request->shared->body : &request->text;
	bool		has_body = request->status != 204 && request->status != 304;
	time_t		now = time(NULL);
	struct tm parts;
	char		when[40];

	connection->is_stream = request->more != NULL;
	connection->is_chunked = connection->is_stream && !request->is_http10;
	connection->closes = !request->keeps || draining || connection->is_refused ||
		(connection->is_stream && !connection->is_chunked);
	strftime(when, sizeof(when), "%a, %d %b %Y %H:%M:%S GMT", gmtime_r(&now, &parts));
	base_text_print(out, "HTTP/1.1 %u %s\r\nDate: %s\r\n", request->status,
					http_phrase(request->status), when);
	base_text_add(out, request->fields.data, request->fields.length);
	if (connection->is_chunked)
		base_text_print(out, "Transfer-Encoding: chunked\r\n");
	else if (!connection->is_stream && has_body)
		base_text_print(out, "Content-Length: %zu\r\n", body->length);
	if (connection->closes)
		base_text_print(out, "Connection: close\r\n");
	else if (request->is_http10)
		base_text_print(out, "Connection: keep-alive\r\n");
	base_text_add(out, "\r\n", 2);

	connection->written = 0;
	if (request->method != NULL && strcmp(request->method, "HEAD") == 0)
		connection->is_stream = false;
	else if (has_body)
	{
		connection->body = body->data;
		connection->body_length = body->length;
	}
	connection->state = WRITES;
	set_timer(connection, http_config()->idle_timeout * INT64_C(1000));
}

/*
 * Write what there is.  Returns false if there is nothing to do until the
 * client has taken it, or the stream has more.
 */
static bool
write_more(Connection *connection)
{
	BaseText   *out = &connection->out;
	size_t		rest = out->length - connection->written;
	struct iovec parts[2] = {
		{out->data + connection->written, rest},
		{(char *) connection->body, connection->body_length}};
	struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
	ssize_t		written;

	if (rest + connection->body_length > 0)
	{
		written = sendmsg(connection->source.fd, &message, MSG_NOSIGNAL);
		if (written < 0 && (errno == EAGAIN || errno == EINTR))
			return false;
		if (written < 0)
		{
			close_connection(connection);
			return false;
		}
		set_timer(connection, http_config()->idle_timeout * INT64_C(1000));
		if ((size_t) written < rest)
		{
			connection->written += written;
			return false;
		}
		connection->written = out->length;
		written -= rest;
		connection->body += written;
		connection->body_length -= written;
		return connection->body_length == 0;
	}

	/* all has been written; what waits keeps no buffer */
	remove_slow(connection);
	free(out->data);
	memset(out, 0, sizeof(*out));
	connection->written = 0;
	if (connection->is_stream)
		return add_piece(connection);
	end_response(connection);
	if (!connection->closes)
	{
		connection->state = READS;
		set_timer(connection, http_config()->idle_timeout * INT64_C(1000));
		return true;
	}
	shutdown(connection->source.fd, SHUT_WR);
	connection->state = LINGERS;
	lingering++;
	set_timer(connection, LINGER);
	return false;
}

/* Add the next bytes of a stream, as a chunk.  Returns false if it waits. */
static bool
add_piece(Connection *connection)
{
	HttpRequest *request = connection->request;
	BaseText   *out = &connection->out;
	size_t		begin = connection->is_chunked ? 10 : 0;
	HttpMore	more;

	if (request->waiter.job != NULL)
	{
		base_timer_stop(&connection->timer);
		return false;
	}
	base_text_add(out, "12345678\r\n", begin);
	more = request->more(request, out);
	if (more == HTTP_BREAK)
	{
		close_connection(connection);
		return false;
	}
	if (out->length == begin)
		out->length = 0;
	else if (connection->is_chunked)
	{
		char		size[16];

		snprintf(size, sizeof(size), "%08x", (unsigned) (out->length - begin));
		memcpy(out->data, size, 8);
		base_text_add(out, "\r\n", 2);
	}
	if (more == HTTP_END)
	{
		connection->is_stream = false;
		if (connection->is_chunked)
			base_text_add(out, "0\r\n\r\n", 5);
	}
	return true;
}

/* A request has ended, however it has. */
static void
end_response(Connection *connection)
{
	HttpRequest *request = connection->request;

	connection->request = NULL;
	connection->body_length = 0;
	if (connection->state != READS)
	{
		requests--;
		if (request->is_public)
			http_response_log(request);
	}
	job_forget(&request->waiter);
	http_request_free(request);
}
