/*-------------------------------------------------------------------------
 *
 * connection.c
 *	  Limits of connections: how many, and how long one may take to send a
 *	  request.
 *
 * libmicrohttpd closes a connection without traffic, but one byte is traffic.
 * So a connection whose request is not complete --idle-timeout seconds after it
 * was made, or after its last response, is shut down here.
 *
 *-------------------------------------------------------------------------
 */
#include "http.h"

#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>

/* Descriptors beside those of clients and of the pool. */
#define OTHER_DESCRIPTORS 64

/* Above --max-connections so many at a time are told so. */
#define REFUSED_CONNECTIONS 64

typedef struct Connection
{
	int			socket;
	bool		refused;		/* there are too many */
	bool		listed;			/* it has no complete request */
	int64_t		since;			/* ms, by base_now() */
	struct Connection *next;
	struct Connection *previous;
} Connection;

static Connection *first;		/* of those without a request, the oldest */
static Connection *last;
static int	open_connections;
static int	most = INT32_MAX;

static int	watcher;			/* an epoll: clients that may go away */
static BaseSource watcher_source;

static void list(Connection *connection);
static void unlist(Connection *connection);
static Connection *connection_of(HttpRequest *request);

/*
 * Have as many descriptors as --max-connections needs; if there are not so
 * many, serve fewer clients.  Returns how many libmicrohttpd may take.
 */
int
http_connection_limit(void)
{
	int			others = http_config()->database.pool + OTHER_DESCRIPTORS + REFUSED_CONNECTIONS;
	struct rlimit limit;

	most = http_config()->max_connections;
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 &&
		limit.rlim_cur < (rlim_t) most + others)
	{
		rlim_t		wanted = (rlim_t) most + others;

		limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
		setrlimit(RLIMIT_NOFILE, &limit);
		if (limit.rlim_cur < wanted)
		{
			most = (int) limit.rlim_cur - others;
			if (most < 1)
				most = 1;
			base_log(BASE_LOG_ERROR,
					 "could not have %d connections, but %d: the limit of open files is %llu, not %llu",
					 http_config()->max_connections, most,
					 (unsigned long long) limit.rlim_max,
					 (unsigned long long) wanted);
		}
	}
	return most + REFUSED_CONNECTIONS;
}

/* Called by libmicrohttpd when a connection has been made, and closed. */
void
http_connection_notify(void *arg, struct MHD_Connection *connection,
					   void **context,
					   enum MHD_ConnectionNotificationCode code)
{
	Connection *c = *context;

	if (code == MHD_CONNECTION_NOTIFY_STARTED)
	{
		c = base_alloc(sizeof(Connection));
		c->socket = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
		c->refused = ++open_connections > most;
		list(c);
		*context = c;
	}
	else
	{
		open_connections--;
		unlist(c);
		free(c);
		*context = NULL;
	}
}

/* The oldest is the first, for all have the same time. */
static void
list(Connection *connection)
{
	connection->listed = true;
	connection->since = base_now();
	connection->next = NULL;
	connection->previous = last;
	if (last != NULL)
		last->next = connection;
	else
		first = connection;
	last = connection;
}

static void
unlist(Connection *connection)
{
	if (!connection->listed)
		return;
	connection->listed = false;
	if (connection->previous != NULL)
		connection->previous->next = connection->next;
	else
		first = connection->next;
	if (connection->next != NULL)
		connection->next->previous = connection->previous;
	else
		last = connection->previous;
}

static Connection *
connection_of(HttpRequest *request)
{
	return MHD_get_connection_info(request->connection,
								   MHD_CONNECTION_INFO_SOCKET_CONTEXT)
		->socket_context;
}

/* Is the connection one too many? */
bool
http_connection_refused(HttpRequest *request)
{
	return connection_of(request)->refused;
}

/* The request is complete. */
void
http_connection_begin(HttpRequest *request)
{
	unlist(connection_of(request));
}

/* The request has ended, and there may be another. */
void
http_connection_end(HttpRequest *request)
{
	Connection *connection = connection_of(request);

	unlist(connection);
	list(connection);
}

/*
 * libmicrohttpd does not look at the sockets of suspended connections.  So each
 * request that waits is watched here, from its first wait until it ends; if its
 * client has closed the connection, or its side of it, the request is resumed
 * and waits no more.  An event never has a request that is no more, since none
 * is freed while events are taken.
 */
static void
take_gone(BaseSource *source, uint32_t ready)
{
	struct epoll_event events[64];
	int			count;

	while ((count = epoll_wait(watcher, events, lengthof(events), 0)) > 0)
		for (int i = 0; i < count; i++)
			job_leave(events[i].data.ptr);
}

void
http_connection_start(void)
{
	watcher = epoll_create1(EPOLL_CLOEXEC);
	if (watcher < 0)
		abort();
	watcher_source.ready = take_gone;
	base_loop_watch(&watcher_source, watcher, EPOLLIN);
}

void
http_connection_watch(HttpRequest *request)
{
	struct epoll_event event = {.events = EPOLLRDHUP | EPOLLONESHOT,
								.data.ptr = &request->waiter};

	if (request->is_watched)
		return;
	request->is_watched =
		epoll_ctl(watcher, EPOLL_CTL_ADD, connection_of(request)->socket, &event) == 0;
}

/* The request ends; its socket is still open. */
void
http_connection_forget(HttpRequest *request)
{
	if (request->is_watched)
		epoll_ctl(watcher, EPOLL_CTL_DEL, connection_of(request)->socket, NULL);
}

int
http_connection_count(void)
{
	return open_connections;
}

/*
 * Shut down the connections that have taken too long.  Returns in how many ms
 * to look again: no connection that is new then is older than the limit.
 */
int
http_connection_sweep(void)
{
	int64_t		limit = http_config()->idle_timeout * INT64_C(1000);
	int64_t		now = base_now();
	int64_t		rest = limit;

	while (first != NULL && first->since + limit <= now)
	{
		Connection *connection = first;

		shutdown(connection->socket, SHUT_RDWR);
		unlist(connection);
	}
	if (first != NULL)
		rest = first->since + limit - now;
	return rest;
}
