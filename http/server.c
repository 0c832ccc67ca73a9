/*-------------------------------------------------------------------------
 *
 * server.c
 *	  The listener for HTTP: routes, and what all responses have.
 *
 *-------------------------------------------------------------------------
 */
#include "http.h"

#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

/*
 * Memory of a connection, for the request's line and headers and then for the
 * response's; what is longer gets 414 or 431.
 */
#define CONNECTION_MEMORY 8192

/* bytes of a request's body */
#define MAX_BODY (1024 * 1024)

typedef struct Route
{
	const char *path;			/* a "/" at its end: with a name after it */
	const char *methods;		/* as Allow says them */
	enum MHD_Result (*begin)(HttpRequest *request);
} Route;

static const Route routes[] = {
	{"/feeds", "GET, HEAD, OPTIONS", http_feeds_begin},
	{"/feeds/", "GET, HEAD, OPTIONS", http_page_begin},
	{"/streams/", "GET, HEAD, POST, OPTIONS", http_durable_begin},
	{"/subscriptions/", "GET, HEAD, POST, OPTIONS", http_subscription_begin},
};

static struct MHD_Daemon *server;
static BaseSource source;
static bool draining;
static int	requests;			/* that have begun and not ended */
static uint64_t responses[6];	/* by the first digit of the status */

static void ready(BaseSource *source, uint32_t events);
static size_t keep_encoded(void *arg, struct MHD_Connection *connection,
						   char *string);
static const char *path_of(const char *url);
static enum MHD_Result handle(void *arg, struct MHD_Connection *connection,
							  const char *path, const char *method,
							  const char *version, const char *body,
							  size_t *length, void **state);
static enum MHD_Result route(HttpRequest *request);
static const Route *find_route(const char *path);
static bool is_allowed(const Route *route, const char *method);
static enum MHD_Result answer_options(HttpRequest *request);
static void end_request(void *arg, struct MHD_Connection *connection,
						void **state, enum MHD_RequestTerminationCode code);
static void log_request(const HttpRequest *request);
static bool allows_origin(const char *origin);
static bool is_foreign(HttpRequest *request);

/* request.c decodes. */
static size_t
keep_encoded(void *arg, struct MHD_Connection *connection, char *string)
{
	return strlen(string);
}

/*
 * Listen on an address, "host:port" or "[host]:port".  The main server's
 * connections can be suspended.  NULL if it fails, which has been logged.
 */
struct MHD_Daemon *
http_server_daemon(const char *address, BaseSource *source,
				   MHD_AccessHandlerCallback handler, bool main)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
	struct addrinfo *found;
	struct MHD_Daemon *made = NULL;
	const char *colon = strrchr(address, ':');
	char	   *host = base_copy(address);
	char	   *name = host;
	int			on = 1;
	int			listener;

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
		return NULL;
	}
	free(host);

	listener = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (listener < 0 ||
		setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
		bind(listener, found->ai_addr, found->ai_addrlen) != 0 ||
		listen(listener, 1024) != 0)
		base_log(BASE_LOG_ERROR, "could not listen on \"%s\": %m", address);
	else
		made = MHD_start_daemon((main ? MHD_ALLOW_SUSPEND_RESUME : 0) | MHD_USE_EPOLL, 0,
								NULL, NULL, handler, NULL,
								MHD_OPTION_LISTEN_SOCKET, listener,
								MHD_OPTION_CONNECTION_LIMIT,
								main ? (unsigned) http_connection_limit() : 100U,
								MHD_OPTION_PER_IP_CONNECTION_LIMIT,
								main ? (unsigned) http_config()->max_connections_per_address : 0U,
								MHD_OPTION_CONNECTION_MEMORY_LIMIT,
								(size_t) CONNECTION_MEMORY,
								MHD_OPTION_CONNECTION_TIMEOUT,
								(unsigned) http_config()->idle_timeout,
								MHD_OPTION_STRICT_FOR_CLIENT, 1,
								MHD_OPTION_UNESCAPE_CALLBACK, keep_encoded, NULL,
								MHD_OPTION_NOTIFY_COMPLETED,
								main ? end_request : NULL, NULL,
								MHD_OPTION_NOTIFY_CONNECTION,
								main ? http_connection_notify : NULL, NULL,
								MHD_OPTION_END);
	if (made == NULL && listener >= 0)
		close(listener);
	if (made != NULL)
	{
		source->ready = ready;
		base_loop_watch(source, MHD_get_daemon_info(made, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd,
						EPOLLIN);
	}
	freeaddrinfo(found);
	return made;
}

/* A daemon has something to do, which it does at the end of the round. */
static void
ready(BaseSource *source, uint32_t events)
{
	source->is_ready = true;
}

bool
http_server_start(void)
{
	server = http_server_daemon(http_config()->listen, &source, handle, true);
	return server != NULL;
}

/*
 * Do what there is to do for clients.  Returns in how many ms to be called
 * again, -1 if there is no need.
 */
int64_t
http_server_run(void)
{
	return http_server_work(server, &source);
}

/* Has it something to do? */
bool
http_server_is_ready(void)
{
	return source.is_ready;
}

/* The same as http_server_run(), for any daemon. */
int64_t
http_server_work(struct MHD_Daemon *daemon, BaseSource *source)
{
	MHD_UNSIGNED_LONG_LONG timeout;
	bool		has_timeout = MHD_get_timeout(daemon, &timeout) == MHD_YES;

	if (source->is_ready || (has_timeout && timeout == 0))
	{
		source->is_ready = false;
		MHD_run(daemon);
		has_timeout = MHD_get_timeout(daemon, &timeout) == MHD_YES;
	}
	return has_timeout ? (int64_t) timeout : -1;
}

/*
 * Take no new clients, and resume all requests that wait.  Returns whether all
 * have ended.  To be called until then.
 */
bool
http_server_drain(void)
{
	if (!draining)
	{
		int			listener = MHD_quiesce_daemon(server);

		draining = true;
		if (listener >= 0)
			close(listener);
	}
	job_end_waiting();
	return requests == 0;
}

bool
http_server_draining(void)
{
	return draining;
}

/* The path of a URL, which a client may send whole. */
static const char *
path_of(const char *url)
{
	if (strncasecmp(url, "http://", 7) != 0)
		return url;
	url += 7 + strcspn(url + 7, "/");
	return *url != '\0' ? url : "/";
}

/*
 * Called by libmicrohttpd when a request's headers are there, when its body
 * is, and each time that the connection has been resumed.
 */
static enum MHD_Result
handle(void *arg, struct MHD_Connection *connection, const char *path,
	   const char *method, const char *version, const char *body,
	   size_t *length, void **state)
{
	HttpRequest *request = *state;
	enum MHD_Result (*go_on)(HttpRequest *);

	if (request == NULL)
	{
		requests++;
		request = base_alloc(sizeof(HttpRequest));
		request->connection = connection;
		request->began = base_now();
		request->path = base_copy(path_of(path));
		request->method = base_copy(method);
		*state = request;
		return MHD_YES;
	}
	if (*length > 0)
	{
		/* what is too long is read, and not kept */
		if (request->body.length <= MAX_BODY)
			base_text_add(&request->body, body, *length);
		*length = 0;
		return MHD_YES;
	}
	if (!request->begun)
	{
		request->begun = true;
		http_connection_begin(request);
		return route(request);
	}
	go_on = request->go_on;
	if (go_on == NULL)
		return MHD_YES;
	request->go_on = NULL;
	return go_on(request);
}

static const Route *
find_route(const char *path)
{
	for (size_t i = 0; i < lengthof(routes); i++)
	{
		size_t		length = strlen(routes[i].path);

		if (routes[i].path[length - 1] == '/' ?
				strncmp(path, routes[i].path, length) == 0 :
				strcmp(path, routes[i].path) == 0)
			return &routes[i];
	}
	return NULL;
}

static bool
is_allowed(const Route *route, const char *method)
{
	size_t		length = strlen(method);

	for (const char *m = route->methods; m != NULL;
		 m = strchr(m, ' ') != NULL ? strchr(m, ' ') + 1 : NULL)
		if (strncmp(m, method, length) == 0 && (m[length] == ',' || m[length] == '\0'))
			return true;
	return false;
}

static enum MHD_Result
route(HttpRequest *request)
{
	const Route *route = find_route(request->path);
	enum MHD_Result sent;
	bool		refused;

	base_log(BASE_LOG_DEBUG, "%s %s", request->method, request->path);
	if (http_connection_refused(request))
		return http_problem(request, 503, "there are too many connections");
	if (route == NULL)
		return http_problem(request, 404, "there is no such resource");
	request->allowed = route->methods;
	if (!is_allowed(route, request->method))
		return http_problem(request, 405, "this method is not allowed here");
	if (strcmp(request->method, "OPTIONS") == 0)
		return answer_options(request);
	if (strcmp(request->method, "POST") == 0 && is_foreign(request))
		return http_problem(request, 403, "pages of this origin may not write");
	if (request->body.length > MAX_BODY)
		return http_problem(request, 413, "the body is too large");
	sent = http_token_take(request, &refused);
	return refused ? sent : route->begin(request);
}

static enum MHD_Result
answer_options(HttpRequest *request)
{
	struct MHD_Response *response =
		MHD_create_response_from_buffer(0, "", MHD_RESPMEM_PERSISTENT);

	MHD_add_response_header(response, "Allow", request->allowed);
	if (allows_origin(http_header(request, "Origin")))
	{
		MHD_add_response_header(response, "Access-Control-Allow-Methods",
								request->allowed);
		MHD_add_response_header(response, "Access-Control-Allow-Headers",
								"Authorization, Content-Type, If-None-Match, "
								"Last-Event-ID, Message-Key, Message-Type");
		MHD_add_response_header(response, "Access-Control-Max-Age", "86400");
	}
	return http_respond(request, 204, response);
}

/* Called by libmicrohttpd when a request has ended, however it has. */
static void
end_request(void *arg, struct MHD_Connection *connection, void **state,
			enum MHD_RequestTerminationCode code)
{
	HttpRequest *request = *state;

	if (request == NULL)
		return;
	*state = NULL;
	log_request(request);
	http_connection_forget(request);
	http_connection_end(request);
	db_result_release(request->waiter.result);
	http_stream_free(request->stream);
	http_durable_free(request->durable);
	http_append_free(request->append);
	http_subscription_free(request->subscription);
	free(request->path);
	free(request->method);
	free(request->feed);
	free(request->after);
	free(request->shard);
	free(request->shards);
	free(request->role);
	free(request->claims);
	free(request->body.data);
	free(request);
	requests--;
}

/*
 * Log a request that has ended.  The arguments of its URL are not logged: they
 * can be secrets, and of any length.
 */
static void
log_request(const HttpRequest *request)
{
	BaseText	text = {0};

	if (request->status < (unsigned) http_config()->log_requests)
		return;
	base_log_begin(&text, request->status >= 500 ? BASE_LOG_WARNING : BASE_LOG_INFO);
	base_text_print(&text, "\"request\" method=");
	base_text_json(&text, request->method);
	base_text_print(&text, " path=");
	base_text_json(&text, request->path);
	base_text_print(&text, " status=%u ms=%lld", request->status,
					(long long) (base_now() - request->began));
	base_log_end(&text);
}

const char *
http_header(HttpRequest *request, const char *name)
{
	return MHD_lookup_connection_value(request->connection, MHD_HEADER_KIND,
									   name);
}

/* May pages of this origin read? */
static bool
allows_origin(const char *origin)
{
	const char *list = http_config()->cors_origins;

	if (origin == NULL)
		return false;
	while (*list != '\0')
	{
		size_t		length;

		list += strspn(list, ", ");
		length = strcspn(list, ", ");
		if ((length == 1 && *list == '*') ||
			(length == strlen(origin) && strncasecmp(list, origin, length) == 0))
			return true;
		list += length;
	}
	return false;
}

/*
 * Is it a browser's request, for a page of another origin that is not listed?
 * A browser sends some requests that write without asking first.  Old ones do
 * not say where the page is from, or only by Origin.
 */
static bool
is_foreign(HttpRequest *request)
{
	const char *origin = http_header(request, "Origin");
	const char *site = http_header(request, "Sec-Fetch-Site");
	const char *host = http_header(request, "Host");
	const char *own = origin != NULL ? strstr(origin, "://") : NULL;

	if (origin == NULL || allows_origin(origin))
		return false;
	if (site != NULL)
		return strcmp(site, "same-origin") != 0;
	return own == NULL || host == NULL || strcasecmp(own + 3, host) != 0;
}

/* Give a response the headers that all have, and send it. */
enum MHD_Result
http_respond(HttpRequest *request, unsigned status,
			 struct MHD_Response *response)
{
	const char *origin = http_header(request, "Origin");
	enum MHD_Result sent;

	MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
	MHD_add_response_header(response, "Vary", *http_config()->cors_origins ? "Accept, Authorization, Origin" : "Accept, Authorization");
	if (allows_origin(origin))
	{
		MHD_add_response_header(response, "Access-Control-Allow-Origin", origin);
		MHD_add_response_header(response, "Access-Control-Expose-Headers",
								"ETag, Location, Retry-After, Stream-Cursor, "
								"Stream-Next-Offset, Stream-SSE-Data-Encoding, "
								"Stream-Up-To-Date");
	}
	if (draining || http_connection_refused(request))
		MHD_add_response_header(response, "Connection", "close");
	request->status = status;
	if (status / 100 < lengthof(responses))
		responses[status / 100]++;
	sent = MHD_queue_response(request->connection, status, response);
	MHD_destroy_response(response);
	return sent;
}

/* A response with this text, which is freed with it. */
struct MHD_Response *
http_response_text(BaseText *text, const char *type)
{
	struct MHD_Response *response =
		MHD_create_response_from_buffer(text->length, text->data,
										MHD_RESPMEM_MUST_FREE);

	MHD_add_response_header(response, "Content-Type", type);
	return response;
}

/* Responses whose status has this first digit. */
uint64_t
http_responses(int family)
{
	return responses[family];
}

/* Give a request back to libmicrohttpd. */
static void
resume(JobWaiter *waiter)
{
	source.is_ready = true;
	MHD_resume_connection(((HttpRequest *) waiter)->connection);
}

/* Suspend a request until a statement has been run for it. */
void
http_run(HttpRequest *request, const DbStatement *statement,
		 const char *const *arguments,
		 enum MHD_Result (*go_on)(HttpRequest *request))
{
	http_wait(request, statement, arguments, InvalidOid, 0, 0, go_on);
}

/* The same until its result is not empty: job_add(). */
void
http_wait(HttpRequest *request, const DbStatement *statement,
		  const char *const *arguments, Oid oid, uint64_t since,
		  int64_t deadline, enum MHD_Result (*go_on)(HttpRequest *request))
{
	request->go_on = go_on;
	MHD_suspend_connection(request->connection);
	request->waiter.resume = resume;
	if (deadline > 0)
		http_connection_watch(request);
	job_add(&request->waiter, statement, request->role, request->claims,
			arguments, oid, since, deadline);
}
