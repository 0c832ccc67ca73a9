/*-------------------------------------------------------------------------
 *
 * http.h
 *	  What the files of feedpub-http share.
 *
 * The process has one thread and one loop (main.c, loop.c): libmicrohttpd, the
 * connections to the database, signals and deadlines are called from it, and
 * nothing of them waits.  So nothing is locked.  A request whose answer has to
 * be waited for is suspended, and resumed when there is a result.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_HTTP_H
#define FEEDPUB_HTTP_H

#include <microhttpd.h>

#include "config/config.h"
#include "jobs/jobs.h"

/* A page, and its end: the lines of feedpub._page_lines(). */
typedef struct HttpPage
{
	const char *entries;		/* lines with an object each */
	size_t		length;			/* of them; 0: there are none */
	int			rows;			/* before the last one: durable.c */
	const char *cursor;			/* not terminated */
	int			cursor_length;
	bool		more;
	Oid			feed;
	bool		is_outbox;
	long		retention;		/* of deletes, s; -1: not limited */
	const char *rest;			/* what follows: durable.c */
} HttpPage;

typedef struct HttpRequest HttpRequest;
typedef struct HttpStream HttpStream;
typedef struct HttpDurable HttpDurable;
typedef struct HttpAppend HttpAppend;
typedef struct HttpSubscription HttpSubscription;

typedef enum HttpFormat
{
	HTTP_FORMAT_PAGE,
	HTTP_FORMAT_EVENTS,			/* an event stream */
	HTTP_FORMAT_LINES,			/* NDJSON */
	HTTP_FORMAT_CLOUDEVENTS		/* a page as an array of CloudEvents */
} HttpFormat;

struct HttpRequest
{
	JobWaiter	waiter;			/* the first member; its result is this one's */
	struct MHD_Connection *connection;
	char	   *path;			/* as it was sent */
	char	   *method;
	const char *allowed;		/* the methods of its route */
	int64_t		began;			/* ms, by base_now() */
	unsigned	status;			/* of the response, or 0 */
	bool		begun;			/* the handler has seen the whole request */
	BaseText	body;			/* of a POST */

	/* whose request it is: token.c */
	char	   *role;
	char	   *claims;			/* JSON for request.jwt.claims */
	bool		is_private;		/* the response depends on credentials */
	bool		has_token;
	int64_t		expires;		/* when the token does, in s since 1970, or 0 */

	/* what it asks for */
	HttpFormat	format;
	char	   *feed;
	char	   *after;			/* never NULL */
	char		limit[12];
	char	   *shard;			/* or NULL */
	char	   *shards;
	long		wait;			/* ms */

	/* what is to be done when the connection has been resumed */
	enum MHD_Result (*go_on)(HttpRequest *request);
	HttpStream *stream;
	HttpDurable *durable;		/* it reads by the Durable Streams protocol */
	HttpAppend *append;
	HttpSubscription *subscription;

	int			socket;
	bool		is_watched;
};

/* in admin.c */
extern bool http_admin_start(const char *address);
extern int64_t http_admin_run(void);

/* in append.c */
extern enum MHD_Result http_append_begin(HttpRequest *request);
extern void http_append_free(HttpAppend *append);

/* in connection.c */
extern int	http_connection_limit(void);
extern void http_connection_notify(void *arg, struct MHD_Connection *connection,
								   void **context,
								   enum MHD_ConnectionNotificationCode code);
extern bool http_connection_refused(HttpRequest *request);
extern void http_connection_begin(HttpRequest *request);
extern void http_connection_end(HttpRequest *request);
extern void http_connection_start(void);
extern void http_connection_watch(HttpRequest *request);
extern void http_connection_forget(HttpRequest *request);
extern int	http_connection_count(void);
extern int	http_connection_sweep(void);

/* in durable.c */
extern enum MHD_Result http_durable_begin(HttpRequest *request);
extern void http_durable_free(HttpDurable *durable);
extern const DbStatement http_durable_statement;
extern enum MHD_Result http_durable_send(HttpRequest *request);
extern void http_durable_add_headers(HttpRequest *request,
									 struct MHD_Response *response);
extern bool http_durable_add_events(HttpRequest *request, const HttpPage *page,
									BaseText *buffer);
extern int64_t http_durable_end(const HttpRequest *request);
extern const DbStatement http_durable_statement_of_append;

/* in page.c */
extern enum MHD_Result http_page_begin(HttpRequest *request);
extern void http_page_run(HttpRequest *request, const DbStatement *statement,
						  enum MHD_Result (*go_on)(HttpRequest *request));
extern void http_page_wait(HttpRequest *request, Oid feed, uint64_t since,
						   int64_t deadline,
						   enum MHD_Result (*go_on)(HttpRequest *request));
extern Oid	http_page_feed(const DbResult *result, bool *empty);
extern enum MHD_Result http_page_read(HttpRequest *request);
extern enum MHD_Result http_page_send_body(HttpRequest *request,
										   const char *cursor,
										   const char *caching,
										   const char *type);
extern void http_page_go_on(HttpRequest *request, const HttpPage *page);
extern void http_page_caching(HttpRequest *request, const HttpPage *page,
							  BaseText *caching);
extern enum MHD_Result http_feeds_begin(HttpRequest *request);
extern void http_page_open(const DbResult *result, HttpPage *page);
extern const char *http_page_next(HttpPage *page, size_t *length);
extern const DbStatement *http_page_statement_of(const HttpRequest *request);

/* in problem.c */
extern enum MHD_Result http_problem(HttpRequest *request, unsigned status,
									const char *detail);
extern enum MHD_Result http_problem_result(HttpRequest *request);

/* in request.c */
extern char *http_request_decode(const char *string, size_t length);
extern const char *http_request_parse(HttpRequest *request, const char *name);
extern const char *http_request_argument(HttpRequest *request,
										 const char *name, char **value);
extern bool http_request_is_name(const char *name);
extern double http_request_quality(const char *accept, const char *type);

/* in server.c */
extern bool http_server_start(void);
extern int64_t http_server_run(void);
extern bool http_server_is_ready(void);
extern bool http_server_drain(void);
extern bool http_server_draining(void);
extern struct MHD_Daemon *http_server_daemon(const char *address,
											 BaseSource *source,
											 MHD_AccessHandlerCallback handler,
											 bool main);
extern int64_t http_server_work(struct MHD_Daemon *daemon, BaseSource *source);
extern const char *http_header(HttpRequest *request, const char *name);
extern enum MHD_Result http_respond(HttpRequest *request, unsigned status,
									struct MHD_Response *response);
extern struct MHD_Response *http_response_text(BaseText *text,
											   const char *type);
extern void http_run(HttpRequest *request, const DbStatement *statement,
					 const char *const *arguments,
					 enum MHD_Result (*go_on)(HttpRequest *request));
extern void http_wait(HttpRequest *request, const DbStatement *statement,
					  const char *const *arguments, Oid oid, uint64_t since,
					  int64_t deadline,
					  enum MHD_Result (*go_on)(HttpRequest *request));
extern uint64_t http_responses(int family);

/* in stream.c */
extern enum MHD_Result http_stream_begin(HttpRequest *request);
extern void http_stream_free(HttpStream *stream);

/* in subscription.c */
extern enum MHD_Result http_subscription_begin(HttpRequest *request);
extern void http_subscription_free(HttpSubscription *subscription);

/* in token.c */
extern enum MHD_Result http_token_take(HttpRequest *request, bool *refused);
extern bool http_token_expired(const HttpRequest *request);
extern int64_t http_token_deadline(const HttpRequest *request,
								   int64_t deadline);

#endif							/* FEEDPUB_HTTP_H */
