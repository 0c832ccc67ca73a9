/*-------------------------------------------------------------------------
 *
 * server.h
 *	  HTTP/1.1: connections, requests, responses, errors, tokens.
 *
 * A request is given to the function of its listener when it is complete.  That
 * answers it, or has a statement run and goes on when its result is there.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_HTTP_SERVER_H
#define FEEDPUB_HTTP_SERVER_H

#include "config/config.h"
#include "jobs/jobs.h"

typedef struct HttpRequest HttpRequest;

/* A header or an argument of a request, as it was sent. */
typedef struct HttpField
{
	char	   *name;
	char	   *value;
} HttpField;

typedef enum HttpMore
{
	HTTP_MORE,					/* or, without any bytes, not yet: it waits */
	HTTP_END,
	HTTP_BREAK					/* so that the client sees that it is not whole */
} HttpMore;

struct HttpRequest
{
	JobWaiter	waiter;			/* the first member */
	void	   *connection;		/* of connection.c */

	/* what the client has sent: parser.c */
	BaseText	head;			/* what the following points into */
	const char *method;
	char	   *path;
	HttpField  *headers;
	int			header_count;
	HttpField  *arguments;
	int			argument_count;
	BaseText	body;			/* more than HTTP_MAX_BODY: too large */
	size_t		body_bytes;		/* of it, as the client has sent them */
	bool		is_http10;
	bool		keeps;			/* the connection, after the response */
	int64_t		began;			/* ms, by base_now() */

	/* whose request it is: token.c */
	char	   *role;
	char	   *claims;			/* JSON for request.jwt.claims */
	char	   *subject;		/* the claim sub, or NULL */
	bool		is_private;		/* the response depends on credentials */
	bool		has_token;
	int64_t		expires;		/* when the token does, in s since 1970, or 0 */

	/* its route */
	bool		is_public;		/* of the listener of feeds */
	bool		is_refused;		/* there are too many connections */
	const char *allowed;		/* the methods of its route */
	char	   *share;			/* of the pool: http_share() */
	void	   *state;
	void (*free_state)(void *state);
	void (*go_on)(HttpRequest *request);	/* when its result is there */

	/* make the body of an error, for a person who reads it; or NULL */
	void (*problem_page)(HttpRequest *request, unsigned status,
						 const char *detail, const char *hint, BaseText *text);

	/* its response: response.c */
	unsigned	status;			/* 0: there is none yet */
	BaseText	fields;			/* the headers, as they are sent */
	BaseText	text;			/* the body, or it is that of this result: */
	DbResult   *shared;
	HttpMore (*more)(HttpRequest *request, BaseText *out);	/* or of a stream */
};

/* bytes of a request's body */
#define HTTP_MAX_BODY (1024 * 1024)

/* in connection.c */
extern void http_server_work(void);
extern bool http_server_is_ready(void);
extern bool http_server_drain(void);
extern size_t http_memory(void);
extern uint64_t http_dropped(void);

/* in forgery.c */
extern char *http_forgery_secret(const HttpRequest *request, const char *purpose);
extern bool http_forgery_check(const HttpRequest *request, const char *purpose,
							   const char *secret);

/* in listener.c */
extern bool http_listen(const char *address, bool is_public,
						void (*handle)(HttpRequest *request));
extern void http_stop_listening(void);
extern int	http_connection_count(void);

/* in origin.c */
extern bool http_origin_allowed(const char *origin);
extern bool http_origin_foreign(const HttpRequest *request);
extern bool http_origin_own(const HttpRequest *request);

/* in problem.c */
extern void http_problem(HttpRequest *request, unsigned status,
						 const char *detail);
extern void http_problem_result(HttpRequest *request);

/* in request.c */
extern HttpRequest *http_request_new(void);
extern void http_request_free(HttpRequest *request);
extern bool http_request_add_body(HttpRequest *request, const char *data, size_t length);
extern const char *http_header(const HttpRequest *request, const char *name);
extern int	http_header_count(const HttpRequest *request, const char *name);
extern char *http_header_list(const HttpRequest *request, const char *name);
extern char *http_request_decode(const char *string, size_t length);
extern const char *http_request_argument(const HttpRequest *request,
										 const char *name, char **value);
extern const char *http_request_list(const HttpRequest *request, const char *name,
									 char **array);
extern bool http_request_is_json(const HttpRequest *request);
extern char *http_request_form(const HttpRequest *request, const char *name);
extern double http_request_quality(const char *accept, const char *type);

/* in response.c */
extern const char *http_phrase(unsigned status);
extern void http_add(HttpRequest *request, const char *name, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
extern void http_respond(HttpRequest *request, unsigned status);
extern void http_respond_text(HttpRequest *request, unsigned status,
							  const char *type, BaseText *text);
extern void http_respond_shared(HttpRequest *request, const char *type);
extern void http_respond_stream(HttpRequest *request, const char *type,
								HttpMore (*more)(HttpRequest *request, BaseText *out));
extern void http_response_log(const HttpRequest *request);
extern uint64_t http_responses(int family);

/* in run.c */
extern char *http_share(const char *path);
extern char *http_share_of(char *share);
extern void http_run(HttpRequest *request, const DbStatement *statement,
					 const char *const *arguments,
					 void (*go_on)(HttpRequest *request));
extern void http_wait(HttpRequest *request, const DbStatement *statement,
					  const char *const *arguments, Oid feed, uint64_t since,
					  int64_t deadline, void (*go_on)(HttpRequest *request));

/* in token.c */
extern bool http_token_take(HttpRequest *request);
extern void http_token_forget(void);
extern bool http_token_expired(const HttpRequest *request);
extern int64_t http_token_deadline(const HttpRequest *request,
								   int64_t deadline);

#endif							/* FEEDPUB_HTTP_SERVER_H */
