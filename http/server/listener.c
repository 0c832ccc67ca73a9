/*-------------------------------------------------------------------------
 *
 * listener.c
 *	  Addresses that clients connect to, and how many clients there are.
 *
 *-------------------------------------------------------------------------
 */
#include "server/listener.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

/* Descriptors beside those of clients and of the pool. */
#define OTHER_DESCRIPTORS 64

/* Above --max-connections so many at a time are told so. */
#define REFUSED_CONNECTIONS 64

/* Clients of a listener that is not public. */
#define PRIVATE_CONNECTIONS 100

/* ms after which clients are taken again */
#define RETRY 500

/* bytes that the system keeps for a client besides what is under way to it */
#define UNSENT 65536

static HttpListener *listeners;
static bool ended;				/* no new clients */

static int	connection_limit(void);
static void take_clients(BaseSource *source, uint32_t events);
static void listen_again(BaseTimer *timer);

/*
 * Listen on an address, "host:port" or "[host]:port".  Returns false if it
 * fails, which has been logged.  Requests are refused above the limits only if
 * it is public.
 */
bool
http_listen(const char *address, bool is_public,
			void (*handle)(HttpRequest *request))
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
	struct addrinfo *found;
	const char *colon = strrchr(address, ':');
	char	   *host = base_copy(address);
	char	   *name = host;
	HttpListener *listener;
	int			on = 1;
	int			unsent = UNSENT;
	int			fd;

	if (colon != NULL)
		host[colon - address] = '\0';
	if (*name == '[' && name[strlen(name) - 1] == ']')
	{
		name[strlen(name) - 1] = '\0';
		name++;
	}
	if (colon == NULL ||
		getaddrinfo(*name ? name : NULL, colon + 1, &hints, &found) != 0)
	{
		base_log(BASE_LOG_ERROR, "address \"%s\" is not HOST:PORT", address);
		free(host);
		return false;
	}
	free(host);

	fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 ||
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
		setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof(unsent)) != 0 ||
		bind(fd, found->ai_addr, found->ai_addrlen) != 0 ||
		listen(fd, 1024) != 0)
	{
		base_log(BASE_LOG_ERROR, "could not listen on \"%s\": %m", address);
		freeaddrinfo(found);
		return false;
	}
	freeaddrinfo(found);

	listener = base_alloc(sizeof(HttpListener));
	listener->source.ready = take_clients;
	listener->timer.due = listen_again;
	listener->is_public = is_public;
	listener->handle = handle;
	listener->most = is_public ? connection_limit() : PRIVATE_CONNECTIONS;
	listener->next = listeners;
	listeners = listener;
	base_loop_watch(&listener->source, fd, EPOLLIN);
	return true;
}

/*
 * Have as many descriptors as --max-connections needs; if there are not so
 * many, serve fewer clients.
 */
static int
connection_limit(void)
{
	int			others = http_config()->database.pool + OTHER_DESCRIPTORS + REFUSED_CONNECTIONS;
	int			most = http_config()->max_connections;
	struct rlimit limit;

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
	return most;
}

/* Take the clients that have come, and stop listening if there are too many. */
static void
take_clients(BaseSource *source, uint32_t events)
{
	HttpListener *listener = (HttpListener *) source;
	struct sockaddr_storage name;
	int			fd;

	for (int i = 0; i < 64; i++)
	{
		socklen_t	length = sizeof(name);

		if (listener->count < listener->most + REFUSED_CONNECTIONS)
			fd = accept4(source->fd, (struct sockaddr *) &name, &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
		else
		{
			fd = -1;
			errno = EMFILE;
		}
		if (fd >= 0)
			http_connection_open(listener, fd, &name);
		else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
		{
			base_loop_forget(source);
			base_timer_set(&listener->timer, base_now() + RETRY);
			return;
		}
		else if (errno == EAGAIN)
			return;
	}
}

static void
listen_again(BaseTimer *timer)
{
	HttpListener *listener = (HttpListener *) ((char *) timer - offsetof(HttpListener, timer));

	if (!ended)
		base_loop_watch(&listener->source, listener->source.fd, EPOLLIN);
}

/* Take no new clients of feeds. */
void
http_stop_listening(void)
{
	ended = true;
	for (HttpListener *l = listeners; l != NULL; l = l->next)
	{
		if (!l->is_public)
			continue;
		base_loop_forget(&l->source);
		close(l->source.fd);
	}
}

/* Clients of feeds. */
int
http_connection_count(void)
{
	int			count = 0;

	for (const HttpListener *l = listeners; l != NULL; l = l->next)
		if (l->is_public)
			count += l->count;
	return count;
}
