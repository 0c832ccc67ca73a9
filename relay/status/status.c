/*-------------------------------------------------------------------------
 *
 * status.c
 *	  GET /live, /ready and /metrics, on an address of its own.
 *
 * A request is a line and headers, of MAX_REQUEST bytes at most, and its
 * connection is closed when it is answered.  feedpub-http's server has bounds and
 * forms that are not needed here.  There are MAX_CLIENTS connections; while all
 * are in use, others wait in the queue of the socket.  One that has not sent its
 * request after TIMEOUT is closed.
 *
 *-------------------------------------------------------------------------
 */
#include "status/status.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAX_REQUEST 4096
#define MAX_CLIENTS 8
#define TIMEOUT 5000			/* ms */

typedef struct Client
{
	BaseSource	source;			/* the first member */
	BaseTimer	timer;
	bool		is_open;
	char		request[MAX_REQUEST + 1];
	size_t		length;
	BaseText	answer;
	size_t		written;
} Client;

static BaseSource listener;
static Client clients[MAX_CLIENTS];

static void accept_client(BaseSource *source, uint32_t events);
static void serve(BaseSource *source, uint32_t events);
static void late(BaseTimer *timer);
static void close_client(Client *client);
static void answer(Client *client);
static void print_metrics(BaseText *text);

/* Listen on ADDRESS:PORT; false if that fails, as logged. */
bool
status_listen(const char *address)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
	struct addrinfo *found;
	char	   *host = base_copy(address);
	char	   *port = strrchr(host, ':');
	int			fd = -1;
	int			on = 1;

	if (port != NULL)
	{
		*port++ = '\0';
		if (*host == '[' && port[-2] == ']')
			port[-2] = '\0';
	}
	if (port == NULL || getaddrinfo(*host == '\0' ? NULL : host + (*host == '['), port, &hints, &found) != 0)
		base_log(BASE_LOG_ERROR, "\"%s\" is no ADDRESS:PORT", address);
	else
	{
		fd = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
		if (fd >= 0 && (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 || bind(fd, found->ai_addr, found->ai_addrlen) != 0 || listen(fd, 64) != 0))
		{
			close(fd);
			fd = -1;
		}
		if (fd < 0)
			base_log(BASE_LOG_ERROR, "could not listen on \"%s\": %s", address, strerror(errno));
		freeaddrinfo(found);
	}
	free(host);
	if (fd < 0)
		return false;
	listener.ready = accept_client;
	base_loop_watch(&listener, fd, EPOLLIN);
	return true;
}

static void
accept_client(BaseSource *source, uint32_t events)
{
	Client	   *client = NULL;
	int			fd;

	for (int i = 0; i < MAX_CLIENTS; i++)
		if (!clients[i].is_open)
			client = &clients[i];
	if (client == NULL)
	{
		base_loop_watch(&listener, listener.fd, 0);
		return;
	}
	fd = accept4(source->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (fd < 0)
		return;
	client->is_open = true;
	client->length = 0;
	client->written = 0;
	client->answer.length = 0;
	client->timer.due = late;
	client->source.ready = serve;
	base_timer_set(&client->timer, base_now() + TIMEOUT);
	base_loop_watch(&client->source, fd, EPOLLIN);
}

static void
close_client(Client *client)
{
	base_timer_stop(&client->timer);
	base_loop_forget(&client->source);
	close(client->source.fd);
	client->is_open = false;
	base_loop_watch(&listener, listener.fd, EPOLLIN);
}

static void
late(BaseTimer *timer)
{
	close_client((Client *) ((char *) timer - offsetof(Client, timer)));
}

static void
serve(BaseSource *source, uint32_t events)
{
	Client	   *client = (Client *) source;
	ssize_t		n;

	if (client->answer.length == 0)
	{
		n = read(source->fd, client->request + client->length, MAX_REQUEST - client->length);
		if (n < 0 && errno == EAGAIN)
			return;
		if (n <= 0)
		{
			close_client(client);
			return;
		}
		client->length += n;
		client->request[client->length] = '\0';
		if (strstr(client->request, "\r\n\r\n") == NULL && strstr(client->request, "\n\n") == NULL &&
			client->length < MAX_REQUEST)
			return;
		answer(client);
	}
	n = send(source->fd, client->answer.data + client->written,
			 client->answer.length - client->written, MSG_NOSIGNAL);
	if (n > 0)
		client->written += n;
	if ((n < 0 && errno != EAGAIN) || client->written == client->answer.length)
	{
		/* what a client still sends would have its answer thrown away */
		shutdown(source->fd, SHUT_WR);
		close_client(client);
	}
	else
		base_loop_watch(source, source->fd, EPOLLOUT);
}

static void
answer(Client *client)
{
	const char *request = client->request;
	bool		is_head = strncmp(request, "HEAD ", 5) == 0;
	const char *path = strncmp(request, "GET ", 4) == 0 ? request + 4 :
		is_head											? request + 5 :
														  NULL;
	size_t		length = path != NULL ? strcspn(path, " ?\r\n") : 0;
	const char *status = "200 OK";
	BaseText	body = {0};
	bool		is_ready = db_listener_ready();

	if (path == NULL)
		status = "405 Method Not Allowed";
	else if (length == 5 && strncmp(path, "/live", 5) == 0)
		base_text_print(&body, "ok\n");
	else if (length == 6 && strncmp(path, "/ready", 6) == 0)
	{
		for (const Feed *feed = feed_first(); feed != NULL; feed = feed->next)
		{
			if (feed->is_removed || feed->state == FEED_RUNNING || feed->state == FEED_FENCED)
				continue;
			is_ready = false;
			/* what has stopped a feed begins with its state */
			base_text_print(&body, "feed \"%s\" is %s%s%s\n", feed->name,
							feed->state == FEED_STOPPED ? "" : feed_state_name(feed),
							feed->state == FEED_STOPPED ? "" : ": ", feed->problem);
		}
		if (is_ready)
			base_text_print(&body, "ok\n");
		else
			status = "503 Service Unavailable";
		if (body.length == 0)
			base_text_print(&body, "there is no database\n");
	}
	else if (length == 8 && strncmp(path, "/metrics", 8) == 0)
		print_metrics(&body);
	else
		status = "404 Not Found";
	base_text_print(&client->answer,
					"HTTP/1.1 %s\r\nContent-Type: text/plain; charset=utf-8\r\n"
					"Cache-Control: no-store\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
					status, body.length);
	if (!is_head && body.length > 0)
		base_text_add(&client->answer, body.data, body.length);
	free(body.data);
}

/* A metric of each feed, in the text format of Prometheus. */
static void
print_metric(BaseText *text, const char *name, const char *type,
			 unsigned long long (*value)(const Feed *feed))
{
	base_text_print(text, "# TYPE feedpub_relay_%s %s\n", name, type);
	for (const Feed *feed = feed_first(); feed != NULL; feed = feed->next)
	{
		if (feed->is_removed)
			continue;
		base_text_print(text, "feedpub_relay_%s{feed=", name);
		base_text_json(text, feed->name);
		base_text_print(text, "} %llu\n", value(feed));
	}
}

static unsigned long long
sent(const Feed *feed)
{
	return feed->sent;
}

static unsigned long long
in_flight(const Feed *feed)
{
	return feed->sink->sent - feed->sink->acknowledged;
}

static unsigned long long
failures(const Feed *feed)
{
	return feed->failures;
}

static unsigned long long
parked(const Feed *feed)
{
	return feed->parked;
}

static unsigned long long
is_running(const Feed *feed)
{
	return feed->state == FEED_RUNNING;
}

static unsigned long long
is_fenced(const Feed *feed)
{
	return feed->state == FEED_FENCED;
}

static unsigned long long
is_stopped(const Feed *feed)
{
	return feed->state == FEED_STOPPED;
}

static unsigned long long
is_at_end(const Feed *feed)
{
	return feed->state == FEED_RUNNING &&
		(feed->runner != NULL ? feed->is_at_end : feed_reader_at_end(&feed->reader)) &&
		feed->sink->sent == feed->sink->acknowledged;
}

/* Of a feed with a runner, the database's views tell it. */
static unsigned long long
left(const Feed *feed)
{
	return feed->runner != NULL || is_at_end(feed) || feed->reader.left < 0 ? 0 : feed->reader.left;
}

static void
print_metrics(BaseText *text)
{
	print_metric(text, "sent_total", "counter", sent);
	print_metric(text, "in_flight", "gauge", in_flight);
	print_metric(text, "left", "gauge", left);
	print_metric(text, "failures_total", "counter", failures);
	print_metric(text, "parked_total", "counter", parked);
	print_metric(text, "running", "gauge", is_running);
	print_metric(text, "fenced", "gauge", is_fenced);
	print_metric(text, "stopped", "gauge", is_stopped);
	print_metric(text, "at_end", "gauge", is_at_end);
	base_text_print(text, "# TYPE feedpub_relay_database gauge\nfeedpub_relay_database %d\n",
					db_listener_ready());
}
