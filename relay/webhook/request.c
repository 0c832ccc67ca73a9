/*-------------------------------------------------------------------------
 *
 * request.c
 *	  Requests of webhooks, by libcurl in the loop.
 *
 * libcurl says which descriptors it waits for, and how long; nothing of it waits
 * itself, and its threads only look up names.  Its timeouts are kept here and not
 * as timers of the loop, which may be late by a quarter of a second.  A thread that
 * still looks up a name when its request ends is left to itself (QUICK_EXIT): to
 * wait for it would stop all feeds for as long as a name server does not answer.
 *
 * What a receiver can do to the relay is bounded.  No redirect is followed, no
 * proxy of the environment is taken, and a socket is made for an address that may
 * be taken only (address.c).  The status of an answer is all that counts: its body
 * is read, so that the connection can be used again, until it is longer than
 * MAX_BODY or the time is over, and then the connection is closed.
 *
 *-------------------------------------------------------------------------
 */
#include "webhook/webhook.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#define MAX_BODY 65536
#define MAX_RETRY_AFTER 86400	/* s */

struct WebhookRequest
{
	CURL	   *handle;
	struct curl_slist *headers;
	char	   *allow;
	size_t		received;		/* bytes of the body */
	bool		is_refused;		/* an address was not allowed */
	char		error[CURL_ERROR_SIZE];
	void (*ended)(void *arg, const WebhookAnswer *answer);
	void	   *arg;
};

/* A descriptor of libcurl's.  As any source it lives as long as the process. */
typedef struct Socket Socket;
struct Socket
{
	BaseSource	source;			/* the first member */
	Socket	   *next;			/* of those that are free */
};

static CURLM *multi;
static Socket *free_sockets;
static int64_t timeout_at;		/* ms; 0: none */

static void start(void);
static int	watch(CURL *handle, curl_socket_t fd, int what, void *arg, void *assigned);
static int	set_timeout(CURLM *handle, long ms, void *arg);
static void ready(BaseSource *source, uint32_t events);
static curl_socket_t open_socket(void *arg, curlsocktype purpose, struct curl_sockaddr *address);
static int	check_connection(void *arg, char *address, char *own, int port, int own_port);
static size_t take_body(char *data, size_t size, size_t n, void *arg);
static void take_ends(void);
static void end(WebhookRequest *request, CURLcode code);
static void release(WebhookRequest *request);

static void
start(void)
{
	if (multi != NULL)
		return;
	if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK || (multi = curl_multi_init()) == NULL)
		abort();
	curl_multi_setopt(multi, CURLMOPT_SOCKETFUNCTION, watch);
	curl_multi_setopt(multi, CURLMOPT_TIMERFUNCTION, set_timeout);
}

/* libcurl waits for other events of a descriptor than before. */
static int
watch(CURL *handle, curl_socket_t fd, int what, void *arg, void *assigned)
{
	Socket	   *socket = assigned;

	if (what == CURL_POLL_REMOVE)
	{
		if (socket == NULL)
			return 0;
		base_loop_forget(&socket->source);
		curl_multi_assign(multi, fd, NULL);
		socket->next = free_sockets;
		free_sockets = socket;
		return 0;
	}
	if (socket == NULL)
	{
		socket = free_sockets != NULL ? free_sockets : base_alloc(sizeof(Socket));
		if (socket == free_sockets)
			free_sockets = socket->next;
		socket->source.ready = ready;
		curl_multi_assign(multi, fd, socket);
	}
	base_loop_watch(&socket->source, fd,
					(what & CURL_POLL_IN ? EPOLLIN : 0) | (what & CURL_POLL_OUT ? EPOLLOUT : 0));
	return 0;
}

static int
set_timeout(CURLM *handle, long ms, void *arg)
{
	timeout_at = ms < 0 ? 0 : base_now() + ms;
	return 0;
}

/*
 * A descriptor is ready.  If it is another one than the event was of, since the
 * source was used again meanwhile, libcurl finds nothing to do.
 */
static void
ready(BaseSource *source, uint32_t events)
{
	int			mask = 0;
	int			running;

	if (events & EPOLLIN)
		mask |= CURL_CSELECT_IN;
	if (events & EPOLLOUT)
		mask |= CURL_CSELECT_OUT;
	if (events & (EPOLLERR | EPOLLHUP))
		mask |= CURL_CSELECT_ERR;
	curl_multi_socket_action(multi, source->fd, mask, &running);
	take_ends();
}

/* When webhook_request_work() is to be called again. */
int64_t
webhook_request_due(void)
{
	return timeout_at > 0 ? timeout_at : INT64_MAX;
}

/* Called in each round of the loop. */
void
webhook_request_work(int64_t now)
{
	int			running;

	if (timeout_at > 0 && timeout_at <= now)
	{
		timeout_at = 0;
		curl_multi_socket_action(multi, CURL_SOCKET_TIMEOUT, 0, &running);
		take_ends();
	}
}

static curl_socket_t
open_socket(void *arg, curlsocktype purpose, struct curl_sockaddr *address)
{
	WebhookRequest *request = arg;

	if (webhook_address_allowed(&address->addr, request->allow))
		return socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
	request->is_refused = true;
	return CURL_SOCKET_BAD;
}

/*
 * A connection that was made for another request is judged by this one's list:
 * another webhook may have more in its list.
 */
static int
check_connection(void *arg, char *address, char *own, int port, int own_port)
{
	WebhookRequest *request = arg;
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
	struct sockaddr_in v4 = {.sin_family = AF_INET};
	bool		is_allowed =
		inet_pton(AF_INET, address, &v4.sin_addr) == 1 ?
		webhook_address_allowed((struct sockaddr *) &v4, request->allow) :
		inet_pton(AF_INET6, address, &v6.sin6_addr) == 1 &&
				   webhook_address_allowed((struct sockaddr *) &v6, request->allow);

	if (is_allowed)
		return CURL_PREREQFUNC_OK;
	request->is_refused = true;
	return CURL_PREREQFUNC_ABORT;
}

static size_t
take_body(char *data, size_t size, size_t n, void *arg)
{
	WebhookRequest *request = arg;

	request->received += size * n;
	return request->received <= MAX_BODY ? size * n : 0;
}

/* A request that has not been sent. */
WebhookRequest *
webhook_request_begin(const RelayFeedConfig *config)
{
	WebhookRequest *request = base_alloc(sizeof(WebhookRequest));
	CURL	   *handle;

	start();
	request->handle = handle = curl_easy_init();
	if (handle == NULL)
		abort();
	request->allow = base_copy(config->allow);
	curl_easy_setopt(handle, CURLOPT_URL, config->to);
	curl_easy_setopt(handle, CURLOPT_PRIVATE, request);
	curl_easy_setopt(handle, CURLOPT_ERRORBUFFER, request->error);
	curl_easy_setopt(handle, CURLOPT_PROTOCOLS_STR, "http,https");
	curl_easy_setopt(handle, CURLOPT_HTTP_VERSION, (long) CURL_HTTP_VERSION_1_1);
	curl_easy_setopt(handle, CURLOPT_SSLVERSION, (long) CURL_SSLVERSION_TLSv1_2);
	curl_easy_setopt(handle, CURLOPT_FOLLOWLOCATION, 0L);
	curl_easy_setopt(handle, CURLOPT_PROXY, "");
	curl_easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(handle, CURLOPT_TIMEOUT, (long) config->request_timeout);
	curl_easy_setopt(handle, CURLOPT_QUICK_EXIT, 1L);
	curl_easy_setopt(handle, CURLOPT_OPENSOCKETFUNCTION, open_socket);
	curl_easy_setopt(handle, CURLOPT_OPENSOCKETDATA, request);
	curl_easy_setopt(handle, CURLOPT_PREREQFUNCTION, check_connection);
	curl_easy_setopt(handle, CURLOPT_PREREQDATA, request);
	curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, take_body);
	curl_easy_setopt(handle, CURLOPT_WRITEDATA, request);
	curl_easy_setopt(handle, CURLOPT_USERAGENT, FEEDPUB_PROGRAM "/" FEEDPUB_VERSION);
	if (*config->tls_ca != '\0')
		curl_easy_setopt(handle, CURLOPT_CAINFO, config->tls_ca);
	if (*config->tls_certificate != '\0')
		curl_easy_setopt(handle, CURLOPT_SSLCERT, config->tls_certificate);
	if (*config->tls_key != '\0')
		curl_easy_setopt(handle, CURLOPT_SSLKEY, config->tls_key);
	webhook_request_header(request, "Expect", "");
	return request;
}

/* Add a header; an empty value leaves out one of libcurl's. */
void
webhook_request_header(WebhookRequest *request, const char *name, const char *value)
{
	BaseText	line = {0};
	struct curl_slist *headers;

	base_text_print(&line, *value != '\0' ? "%s: %s" : "%s:", name, value);
	headers = curl_slist_append(request->headers, line.data);
	if (headers == NULL)
		abort();
	request->headers = headers;
	free(line.data);
}

/*
 * Send it with this body, which is to stay until the end; ended() is called from
 * the loop.  Returns false if it cannot be sent; then it is gone.
 */
bool
webhook_request_send(WebhookRequest *request, const char *body, size_t length,
					 void (*ended)(void *arg, const WebhookAnswer *answer), void *arg)
{
	request->ended = ended;
	request->arg = arg;
	curl_easy_setopt(request->handle, CURLOPT_POST, 1L);
	curl_easy_setopt(request->handle, CURLOPT_POSTFIELDS, body);
	curl_easy_setopt(request->handle, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t) length);
	curl_easy_setopt(request->handle, CURLOPT_HTTPHEADER, request->headers);
	if (curl_multi_add_handle(multi, request->handle) == CURLM_OK)
		return true;
	release(request);
	return false;
}

/* Forget a request in flight: ended() is not called. */
void
webhook_request_cancel(WebhookRequest *request)
{
	curl_multi_remove_handle(multi, request->handle);
	release(request);
}

static void
release(WebhookRequest *request)
{
	curl_easy_cleanup(request->handle);
	curl_slist_free_all(request->headers);
	free(request->allow);
	free(request);
}

/* Tell of the requests that have ended. */
static void
take_ends(void)
{
	CURLMsg    *message;
	int			left;

	while ((message = curl_multi_info_read(multi, &left)) != NULL)
	{
		WebhookRequest *request = NULL;
		CURLcode	code = message->data.result;

		if (message->msg != CURLMSG_DONE)
			continue;
		curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, (char **) &request);
		end(request, code);
	}
}

static void
end(WebhookRequest *request, CURLcode code)
{
	WebhookAnswer answer = {0};
	long		status = 0;
	curl_off_t	retry_after = 0;

	curl_easy_getinfo(request->handle, CURLINFO_RESPONSE_CODE, &status);
	curl_easy_getinfo(request->handle, CURLINFO_RETRY_AFTER, &retry_after);
	curl_multi_remove_handle(multi, request->handle);

	/* what comes after the headers changes nothing */
	if (code == CURLE_OK || status >= 200)
		answer.status = status;
	if (answer.status == 0)
		answer.problem = request->is_refused ? "its address is not public, and not in \"allow\"" :
			request->error[0] != '\0'		 ? request->error :
											   curl_easy_strerror(code);
	if (retry_after > 0)
		answer.retry_after = retry_after < MAX_RETRY_AFTER ? retry_after : MAX_RETRY_AFTER;
	request->ended(request->arg, &answer);
	release(request);
}
