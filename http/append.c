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
#include "http.h"

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
	" WHEN pg_catalog.json_typeof($3::pg_catalog.json) OPERATOR(pg_catalog.=) 'array'" \
	" THEN $3::pg_catalog.json"                                                        \
	" ELSE pg_catalog.json_build_array($3::pg_catalog.json) END)"                      \
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

struct HttpAppend
{
	DbStatement statement;
	BaseText	text;			/* of the statement */
};

static enum MHD_Result append_described(HttpRequest *request);
static enum MHD_Result append_insert(HttpRequest *request, const char *name,
									 const char *type);
static enum MHD_Result append_inserted(HttpRequest *request);
static enum MHD_Result append_flushed(HttpRequest *request);
static bool same_media(const char *a, const char *b);

/* POST /streams/NAME */
enum MHD_Result
http_append_begin(HttpRequest *request)
{
	const char *problem = http_request_parse(request, request->path + strlen("/streams/"));

	if (problem != NULL)
		return http_problem(request, 400, problem);
	if (!http_request_is_name(request->feed))
		return http_problem(request, 404, "there is no such feed");
	for (size_t i = 0; i < lengthof(refused); i++)
		if (http_header(request, refused[i]) != NULL)
			return http_problem(request, 400, "sequence numbers, producers and closing are not offered");
	if (request->body.length == 0)
		return http_problem(request, 400, "the body is empty");
	if (http_header(request, "Content-Type") == NULL)
		return http_problem(request, 400, "there is no Content-Type");
	http_page_run(request, &http_durable_statement_of_append, append_described);
	return MHD_YES;
}

void
http_append_free(HttpAppend *append)
{
	if (append == NULL)
		return;
	free(append->text.data);
	free(append);
}

/* The feed is known: see whether the request fits it. */
static enum MHD_Result
append_described(HttpRequest *request)
{
	const PGresult *rows = request->waiter.result->rows;

	if (db_result_failed(request->waiter.result))
		return http_problem_result(request);
	if (PQntuples(rows) == 0)
		return http_problem(request, 404, "there is no such feed");
	if (strcmp(PQgetvalue(rows, 3, 0), "true") != 0)
		return http_problem(request, 403, "the role may not insert into this feed");
	if (strcmp(PQgetvalue(rows, 0, 0), "outbox") != 0)
	{
		request->allowed = READ_ONLY;
		return http_problem(request, 405, "this feed is no outbox");
	}
	if (!same_media(http_header(request, "Content-Type"), PQgetvalue(rows, 1, 0)))
		return http_problem(request, 409, "the stream has another content type");
	return append_insert(request, PQgetvalue(rows, 4, 0), PQgetvalue(rows, 2, 0));
}

/* Run the INSERT.  The name is quoted. */
static enum MHD_Result
append_insert(HttpRequest *request, const char *name, const char *type)
{
	HttpAppend *append = request->append = base_alloc(sizeof(HttpAppend));
	const char *message_type = http_header(request, "Message-Type");
	const char *arguments[DB_MAX_ARGUMENTS] = {
		message_type != NULL ? message_type : http_config()->message_type,
		http_header(request, "Message-Key")};
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
	arguments[2] = request->body.data;
	if (strcmp(type, "bytea") == 0)
	{
		base_text_add_hex(&bytes, request->body.data, request->body.length);
		arguments[2] = bytes.data;
	}
	else if (memchr(request->body.data, '\0', request->body.length) != NULL)
		return http_problem(request, 400, "text has no NUL");
	http_run(request, &append->statement, arguments, append_inserted);
	free(bytes.data);
	return MHD_YES;
}

static enum MHD_Result
append_inserted(HttpRequest *request)
{
	if (db_result_failed(request->waiter.result))
		return http_problem_result(request);
	if (PQntuples(request->waiter.result->rows) == 0)
		return http_problem(request, 400, "there is no message in the body");
	http_page_run(request, &flush_statement, append_flushed);
	return MHD_YES;
}

static enum MHD_Result
append_flushed(HttpRequest *request)
{
	struct MHD_Response *response =
		MHD_create_response_from_buffer(0, "", MHD_RESPMEM_PERSISTENT);

	if (!db_result_failed(request->waiter.result))
		MHD_add_response_header(response, "Stream-Next-Offset",
								PQgetvalue(request->waiter.result->rows, 0, 0));
	else
		base_log(BASE_LOG_DEBUG, "%s: an append was not waited for", request->path);
	MHD_add_response_header(response, "Cache-Control", "no-store");
	return http_respond(request, 204, response);
}

/* Are two types equal, whatever their parameters? */
static bool
same_media(const char *a, const char *b)
{
	size_t		length = strcspn(a, "; \t");

	return length == strcspn(b, "; \t") && strncasecmp(a, b, length) == 0;
}
