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

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <libpq-fe.h>
#include <microhttpd.h>

#define lengthof(array) (sizeof(array) / sizeof((array)[0]))

typedef struct HttpKey HttpKey;

/* Settings; config.c says what they mean. */
typedef struct HttpConfig
{
	char	   *listen;
	char	   *admin;
	char	   *database;
	int			pool;
	char	   *anonymous_role;
	char	   *jwt_key;
	char	   *jwt_audience;
	char	   *jwt_role_claim;
	int			max_connections;
	int			max_connections_per_address;
	int			idle_timeout;
	int			statement_timeout;
	int			log_requests;
	int			max_limit;
	int			max_age;
	int			max_wait;
	int			heartbeat;
	char	   *message_type;
	int			drain;
	char	   *cors_origins;
	char	   *log_level;
	HttpKey    *key;			/* of tokens, or NULL */
} HttpConfig;

typedef enum HttpLogLevel
{
	HTTP_LOG_DEBUG,
	HTTP_LOG_INFO,
	HTTP_LOG_WARNING,
	HTTP_LOG_ERROR
} HttpLogLevel;

/* Text that grows. */
typedef struct HttpText
{
	char	   *data;
	size_t		length;
	size_t		size;
} HttpText;

#define HTTP_MAX_ARGUMENTS 6

typedef struct HttpResult HttpResult;

/*
 * What a job runs: one SELECT, INSERT, UPDATE or DELETE.  Its parameters are
 * of type text, the first column of its rows is the result.  %1$s is the
 * extension's schema, so a % of its own is %%.  What it names is qualified, the
 * operators too.
 */
typedef struct HttpStatement
{
	const char *text;
	int			nargs;
	bool		writes;			/* then it is run once, for one request */

	/* the feed that was read, and whether a request waits for more, or NULL */
	Oid (*feed)(const HttpResult *result, bool *empty);
} HttpStatement;

/* The outcome of a job.  The requests that share it count in refs. */
struct HttpResult
{
	int			refs;
	uint64_t	started;		/* http_job_clock() before it was read */
	bool		of_standby;		/* a server that announces nothing */
	PGresult   *rows;			/* or NULL, and then: */
	char		sqlstate[6];	/* "" if the database was not to be had */
	PGresult   *error;

	/* made once */
	HttpText	body;
	uint64_t	hash;			/* of it; 0: not yet */
};

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

/* A descriptor of the loop. */
typedef struct HttpSource HttpSource;
struct HttpSource
{
	void (*ready)(HttpSource *source, uint32_t events);
	int			fd;
	uint32_t	events;
	bool		is_watched;
	bool		is_ready;		/* for server.c */
};

typedef enum HttpSessionState
{
	HTTP_SESSION_CLOSED,
	HTTP_SESSION_CONNECTING,
	HTTP_SESSION_OPEN
} HttpSessionState;

/* A connection to the database, and what its owner does with it. */
typedef struct HttpSession HttpSession;
struct HttpSession
{
	HttpSource	source;			/* the first member */
	const char *application;
	HttpSessionState state;
	PGconn	   *connection;
	int			syncs;			/* that have not been received */
	int64_t		deadline;		/* ms; when to close it, or to connect; 0: none */
	bool		has_failed;		/* the last attempt */
	void (*opened)(HttpSession *session);
	void (*received)(HttpSession *session, PGresult *result);
	void (*closed)(HttpSession *session);
};

typedef struct HttpFeed HttpFeed;
typedef struct HttpJob HttpJob;
typedef struct HttpRequest HttpRequest;
typedef struct HttpStream HttpStream;
typedef struct HttpDurable HttpDurable;
typedef struct HttpAppend HttpAppend;
typedef struct HttpSubscription HttpSubscription;

/* A statement, as whom it is run, and for which requests; see job.c. */
struct HttpJob
{
	const HttpStatement *statement;
	char	   *role;			/* or "" */
	char	   *claims;
	char	   *arguments[HTTP_MAX_ARGUMENTS];

	bool		listens;		/* feed_listen() is called before it is read */
	int			tries;			/* on connections that were lost */
	uint64_t	hash;
	HttpJob    *next_of_bucket;
	HttpRequest *requests;
	int			count;			/* of them */
	HttpFeed   *feed;			/* that it waits for, or NULL */
	HttpJob    *next;			/* of those that are queued, or wait for it */
	HttpJob    *previous;		/* of those that wait for it */
	HttpResult *result;			/* the last one, empty, or NULL */
	int64_t		read_at;		/* ms, by http_now() */
};

/* Counts since the start, and of now. */
typedef struct HttpStatistics
{
	uint64_t	made;			/* jobs */
	uint64_t	joined;			/* requests that joined a job */
	int			waiting;		/* requests that wait for news */
} HttpStatistics;

typedef enum HttpFormat
{
	HTTP_FORMAT_PAGE,
	HTTP_FORMAT_EVENTS,			/* an event stream */
	HTTP_FORMAT_LINES,			/* NDJSON */
	HTTP_FORMAT_CLOUDEVENTS		/* a page as an array of CloudEvents */
} HttpFormat;

struct HttpRequest
{
	struct MHD_Connection *connection;
	char	   *path;			/* as it was sent */
	char	   *method;
	const char *allowed;		/* the methods of its route */
	int64_t		began;			/* ms, by http_now() */
	unsigned	status;			/* of the response, or 0 */
	bool		begun;			/* the handler has seen the whole request */
	HttpText	body;			/* of a POST */

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
	HttpResult *result;
	HttpStream *stream;
	HttpDurable *durable;		/* it reads by the Durable Streams protocol */
	HttpAppend *append;
	HttpSubscription *subscription;

	HttpJob    *job;			/* while it is suspended */
	HttpRequest *next_of_job;
	HttpRequest *previous_of_job;
	int64_t		deadline;		/* ms, by http_now(); 0: it does not wait */
	HttpRequest **slot;			/* of its deadline, or NULL */
	HttpRequest *next_of_slot;
	HttpRequest *previous_of_slot;
	int			socket;
	bool		is_watched;
	bool		is_gone;		/* the client; once set, it stays */
};

/* in admin.c */
extern bool http_admin_start(const char *address);
extern int64_t http_admin_run(void);

/* in append.c */
extern enum MHD_Result http_append_begin(HttpRequest *request);
extern void http_append_free(HttpAppend *append);

/* in config.c */
extern const HttpConfig *http_config(void);
extern bool http_config_load(int argc, char **argv, int *status);
extern bool http_config_reload(void);

/* in connection.c */
extern int	http_connection_limit(void);
extern void http_connection_notify(void *arg, struct MHD_Connection *connection,
								   void **context,
								   enum MHD_ConnectionNotificationCode code);
extern bool http_connection_refused(HttpRequest *request);
extern void http_connection_begin(HttpRequest *request);
extern void http_connection_end(HttpRequest *request);
extern int	http_connection_count(void);
extern int	http_connection_sweep(void);

/* in job.c */
extern void http_job_start(void);
extern void http_job_statistics(HttpStatistics *copy);
extern void http_job_add(HttpRequest *request, const HttpStatement *statement,
						 const char *const *arguments, Oid oid,
						 uint64_t since, int64_t deadline,
						 enum MHD_Result (*go_on)(HttpRequest *request));
extern void http_job_forget(HttpRequest *request);
extern bool http_job_is_queued(void);
extern HttpJob *http_job_take(void);
extern uint64_t http_job_clock(void);
extern void http_job_done(HttpJob *job, HttpResult *result);
extern void http_job_again(HttpJob *job);
extern void http_job_news(Oid oid);
extern void http_job_news_of_all(void);
extern void http_job_forget_listening(void);
extern void http_job_end_waiting(void);
extern int64_t http_job_sweep(void);

/* in durable.c */
extern enum MHD_Result http_durable_begin(HttpRequest *request);
extern void http_durable_free(HttpDurable *durable);
extern const HttpStatement http_durable_statement;
extern enum MHD_Result http_durable_send(HttpRequest *request);
extern void http_durable_add_headers(HttpRequest *request,
									 struct MHD_Response *response);
extern bool http_durable_add_events(HttpRequest *request, const HttpPage *page,
									HttpText *buffer);
extern int64_t http_durable_end(const HttpRequest *request);
extern const HttpStatement http_durable_statement_of_append;

/* in listener.c */
extern void http_listener_start(void);
extern bool http_listener_ready(void);
extern void http_listener_renew(void);
extern int64_t http_listener_sweep(int64_t now);

/* in loop.c */
extern void http_loop_start(void);
extern void http_loop_watch(HttpSource *source, int fd, uint32_t events);
extern void http_loop_forget(HttpSource *source);
extern void http_loop_wait(int64_t timeout);

/* in log.c */
extern void http_log_level(const char *level);
extern void http_log(HttpLogLevel level, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
extern void http_log_request(const HttpRequest *request);

/* in memory.c */
extern void *http_alloc(size_t size);
extern char *http_copy(const char *string);
extern void http_text_room(HttpText *text, size_t length);
extern void http_text_add(HttpText *text, const char *data, size_t length);
extern void http_text_print(HttpText *text, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
extern void http_text_json(HttpText *text, const char *string);
extern int64_t http_now(void);

/* in page.c */
extern enum MHD_Result http_page_begin(HttpRequest *request);
extern void http_page_run(HttpRequest *request, const HttpStatement *statement,
						  enum MHD_Result (*go_on)(HttpRequest *request));
extern void http_page_wait(HttpRequest *request, Oid feed, uint64_t since,
						   int64_t deadline,
						   enum MHD_Result (*go_on)(HttpRequest *request));
extern Oid	http_page_feed(const HttpResult *result, bool *empty);
extern enum MHD_Result http_page_read(HttpRequest *request);
extern enum MHD_Result http_page_send_body(HttpRequest *request,
										   const char *cursor,
										   const char *caching,
										   const char *type);
extern void http_page_go_on(HttpRequest *request, const HttpPage *page);
extern void http_page_caching(HttpRequest *request, const HttpPage *page,
							  HttpText *caching);
extern enum MHD_Result http_feeds_begin(HttpRequest *request);
extern void http_page_open(const HttpResult *result, HttpPage *page);
extern const char *http_page_next(HttpPage *page, size_t *length);
extern const HttpStatement *http_page_statement_of(const HttpRequest *request);

/* in pool.c */
extern void http_pool_start(int count);
extern int	http_pool_connected(void);
extern void http_pool_work(void);
extern int64_t http_pool_sweep(int64_t now);
extern void http_pool_run(HttpRequest *request, const HttpStatement *statement,
						  const char *const *arguments,
						  enum MHD_Result (*go_on)(HttpRequest *request));
extern bool http_result_failed(const HttpResult *result);
extern void http_result_release(HttpResult *result);

/* in problem.c */
extern enum MHD_Result http_problem(HttpRequest *request, unsigned status,
									const char *detail);
extern enum MHD_Result http_problem_result(HttpRequest *request);

/* in request.c */
extern char *http_request_decode(const char *string, size_t length);
extern const char *http_request_parse(HttpRequest *request, const char *name);
extern const char *http_request_argument(HttpRequest *request,
										 const char *name, char **value);
extern int	http_request_hex(char c);
extern bool http_request_is_name(const char *name);
extern double http_request_quality(const char *accept, const char *type);

/* in server.c */
extern bool http_server_start(void);
extern int64_t http_server_run(void);
extern bool http_server_is_ready(void);
extern bool http_server_drain(void);
extern bool http_server_draining(void);
extern struct MHD_Daemon *http_server_daemon(const char *address,
											 HttpSource *source,
											 MHD_AccessHandlerCallback handler,
											 bool main);
extern int64_t http_server_work(struct MHD_Daemon *daemon, HttpSource *source);
extern const char *http_header(HttpRequest *request, const char *name);
extern enum MHD_Result http_respond(HttpRequest *request, unsigned status,
									struct MHD_Response *response);
extern struct MHD_Response *http_response_text(HttpText *text,
											   const char *type);
extern void http_resume(HttpRequest *request);
extern uint64_t http_responses(int family);

/* in session.c */
extern void http_session_open(HttpSession *session);
extern void http_session_close(HttpSession *session, const char *reason);
extern int64_t http_session_sweep(HttpSession *session, int64_t now);
extern void http_session_hurry(HttpSession *session);
extern bool http_session_hopes(const HttpSession *session);
extern void http_session_send(HttpSession *session, const char *text,
							  int nargs, const char *const *arguments);
extern void http_session_sync(HttpSession *session);
extern void http_session_flush(HttpSession *session);
extern bool http_session_is_standby(const HttpSession *session);

/* in stream.c */
extern enum MHD_Result http_stream_begin(HttpRequest *request);
extern void http_stream_free(HttpStream *stream);

/* in subscription.c */
extern enum MHD_Result http_subscription_begin(HttpRequest *request);
extern void http_subscription_free(HttpSubscription *subscription);

/* in timer.c */
extern void http_timer_add(HttpRequest *request);
extern void http_timer_remove(HttpRequest *request);
extern int	http_timer_sweep(bool (*due)(HttpRequest *request, void *arg),
							 void *arg);

/* in token.c */
extern HttpKey *http_token_key(const char *name);
extern enum MHD_Result http_token_take(HttpRequest *request, bool *refused);
extern bool http_token_expired(const HttpRequest *request);
extern int64_t http_token_deadline(const HttpRequest *request,
								   int64_t deadline);

#endif							/* FEEDPUB_HTTP_H */
