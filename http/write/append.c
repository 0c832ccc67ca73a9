/*-------------------------------------------------------------------------
 *
 * append.c
 *	  The append of the Durable Streams protocol: POST /streams/NAME.
 *
 * Inserts messages into an outbox, as the role of the request, whose rights
 * and policies decide.  The answer is sent when the messages are published, so
 * that a read after it finds them.
 *
 * When the insert has committed, the append has succeeded.  If the messages
 * cannot be waited for then, the answer is a success too, but without the
 * offset: an error would make clients send them again.
 *
 *-------------------------------------------------------------------------
 */
#include "write/write.h"

#include "forms/forms.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/*
 * Waits until what has committed is published.  Appends that wait for a
 * connection of the pool share it.
 */
static const DbStatement flush_statement = {
	.nargs = 1,
	.text = "SELECT %1$s.feed_flush($1::pg_catalog.regclass, '5 s')"};

/* An element of an array is a message, anything else is one. */
#define JSON_TEXT \
	" FROM pg_catalog.json_array_elements(CASE"                                        \
	"	WHEN pg_catalog.json_typeof($3::pg_catalog.json) OPERATOR(pg_catalog.=) 'array'" \
	"	THEN $3::pg_catalog.json"                                                        \
	"	ELSE pg_catalog.json_build_array($3::pg_catalog.json) END)"                      \
	" WITH ORDINALITY AS message (value, number) ORDER BY number"

/* How the body becomes messages, by the type of the column. */
static const struct
{
	const char *type;
	const char *select;
} types[] = {
	{"json", "message.value" JSON_TEXT},
	{"jsonb", "message.value::pg_catalog.text::pg_catalog.jsonb" JSON_TEXT},
	{"text", "$3"},
	{"bytea", "$3::pg_catalog.bytea"},
};

/*
 * Headers of what is not offered.  If they were ignored, more would be written
 * than was meant; after a 501 clients try again.
 */
static const char *const refused[] = {
	"Stream-Seq", "Stream-Closed", "Producer-Id", "Producer-Epoch", "Producer-Seq"};

/* The methods of a stream that takes no appends. */
#define READ_ONLY "GET, HEAD, OPTIONS"

/* The state of a request. */
typedef struct Append
{
	char	   *feed;
	DbStatement statement;
	BaseText	text;			/* of the statement */
} Append;

static void free_append(void *state);
static const char *check(const HttpRequest *request);
static void described(HttpRequest *request);
static void insert(HttpRequest *request, const char *name, const char *type);
static void inserted(HttpRequest *request);
static void flushed(HttpRequest *request);
static bool same_media(const char *a, const char *b);

/* POST /streams/NAME */
void
http_append_begin(HttpRequest *request)
{
	const char *name = request->path + strlen("/streams/");
	Append	   *append = request->state = base_alloc(sizeof(Append));
	const char *problem = NULL;

	request->free_state = free_append;
	append->feed = http_request_decode(name, strlen(name));
	if (append->feed == NULL)
		problem = "the path is not percent-encoded correctly";
	else if (!form_is_name(append->feed))
	{
		http_problem(request, 404, "there is no such feed");
		return;
	}
	else
		problem = check(request);
	if (problem != NULL)
		http_problem(request, 400, problem);
	else
	{
		const char *arguments[DB_MAX_ARGUMENTS] = {append->feed};

		http_run(request, &form_durable_describe, arguments, described);
	}
}

static void
free_append(void *state)
{
	Append	   *append = state;

	free(append->feed);
	free(append->text.data);
	free(append);
}

static const char *
check(const HttpRequest *request)
{
	for (size_t i = 0; i < lengthof(refused); i++)
		if (http_header(request, refused[i]) != NULL)
			return "sequence numbers, producers and closing are not offered";
	if (request->body.length == 0)
		return "the body is empty";
	if (http_header(request, "Content-Type") == NULL)
		return "there is no Content-Type";
	return NULL;
}

/* The feed is known: see whether the request fits it. */
static void
described(HttpRequest *request)
{
	const PGresult *rows = request->waiter.result->rows;

	if (db_result_failed(request->waiter.result))
		http_problem_result(request);
	else if (PQntuples(rows) == 0)
		http_problem(request, 404, "there is no such feed");
	else if (strcmp(PQgetvalue(rows, 3, 0), "true") != 0)
		http_problem(request, 403, "the role may not insert into this feed");
	else if (strcmp(PQgetvalue(rows, 0, 0), "outbox") != 0)
	{
		request->allowed = READ_ONLY;
		http_problem(request, 405, "this feed is no outbox");
	}
	else if (!same_media(http_header(request, "Content-Type"), PQgetvalue(rows, 1, 0)))
		http_problem(request, 409, "the stream has another content type");
	else
		insert(request, PQgetvalue(rows, 4, 0), PQgetvalue(rows, 2, 0));
}

/* Run the INSERT.  The name is quoted. */
static void
insert(HttpRequest *request, const char *name, const char *type)
{
	Append	   *append = request->state;
	const char *message_type = http_header(request, "Message-Type");
	const char *arguments[DB_MAX_ARGUMENTS] = {
		message_type != NULL ? message_type : http_config()->message_type,
		http_header(request, "Message-Key"), request->body.data};
	BaseText	bytes = {0};

	base_text_print(&append->text, "INSERT INTO ");
	for (; *name != '\0'; name++)
		base_text_add(&append->text, *name == '%' ? "%%" : name,
					  *name == '%' ? 2 : 1);
	base_text_print(&append->text, " (message_type, message_key, data) SELECT $1, $2, ");
	for (size_t i = 0; i < lengthof(types); i++)
		if (strcmp(types[i].type, type) == 0)
			base_text_print(&append->text, "%s", types[i].select);
	base_text_print(&append->text, " RETURNING 1");

	append->statement.text = append->text.data;
	append->statement.nargs = 3;
	append->statement.writes = true;
	if (strcmp(type, "bytea") == 0)
	{
		base_text_add_hex(&bytes, request->body.data, request->body.length);
		arguments[2] = bytes.data;
	}
	else if (memchr(request->body.data, '\0', request->body.length) != NULL)
	{
		http_problem(request, 400, "text has no NUL");
		return;
	}
	http_run(request, &append->statement, arguments, inserted);
	free(bytes.data);
}

static void
inserted(HttpRequest *request)
{
	const Append *append = request->state;
	const char *arguments[DB_MAX_ARGUMENTS] = {append->feed};

	if (db_result_failed(request->waiter.result))
		http_problem_result(request);
	else if (PQntuples(request->waiter.result->rows) == 0)
		http_problem(request, 400, "there is no message in the body");
	else
		http_run(request, &flush_statement, arguments, flushed);
}

static void
flushed(HttpRequest *request)
{
	const DbResult *result = request->waiter.result;

	if (!db_result_failed(result))
		http_add(request, "Stream-Next-Offset", "%s", PQgetvalue(result->rows, 0, 0));
	else
		base_log(BASE_LOG_DEBUG, "%s: an append was not waited for", request->path);
	http_add(request, "Cache-Control", "no-store");
	http_respond(request, 204);
}

/* Are two types equal, whatever their parameters? */
static bool
same_media(const char *a, const char *b)
{
	size_t		length = strcspn(a, "; \t");

	return length == strcspn(b, "; \t") && strncasecmp(a, b, length) == 0;
}
