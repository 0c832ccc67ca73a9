/*-------------------------------------------------------------------------
 *
 * durable.c
 *	  A feed by the Durable Streams protocol: GET, HEAD /streams/NAME.
 *
 * An offset is a cursor.  A message of an outbox is its column "data": the
 * messages of json and jsonb are served as one array, those of text and bytea
 * as bytes one after the other, without anything between them.  A message of a
 * table feed is its entry.
 *
 * Reads and waits are those of page.c and stream.c; what is here is what the
 * protocol says of offsets, headers and framing.  What is served at offset -1
 * is never kept by a cache without being asked for again, for the reason that
 * page.c gives.
 *
 *-------------------------------------------------------------------------
 */
#include "http.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

/* Stream-Cursor counts these since 2024-10-09 00:00 UTC; s */
#define CURSOR_INTERVAL 20
#define CURSOR_EPOCH INT64_C(1728432000)

/* of intervals: how far it goes at most if a client is ahead */
#define CURSOR_JITTER 180

struct HttpDurable
{
	bool		is_live;
	bool		is_head;		/* "now", or HEAD: without messages */
	uint64_t	cursor;			/* that the client has sent, or 0 */
	int64_t		end;			/* of an event stream; ms, by base_now() */
	bool		begun;			/* an event has been sent */
};

/*
 * What a feed's messages are.  The type of an outbox's messages is that of its
 * column, or what the comment of the column says.
 */
#define STREAM_TEXT \
	"WITH stream AS MATERIALIZED (SELECT f.kind,"                                               \
	" CASE WHEN f.kind OPERATOR(pg_catalog.<>) 'outbox' THEN 'entry'"                           \
	"	WHEN a.atttypid OPERATOR(pg_catalog.=) 'pg_catalog.bytea'::pg_catalog.regtype THEN 'hex'" \
	"	WHEN a.atttypid OPERATOR(pg_catalog.=) 'pg_catalog.text'::pg_catalog.regtype THEN 'text'" \
	"	ELSE 'json' END AS mode,"                                                                 \
	" CASE"                                                                                     \
	"	WHEN a.atttypid OPERATOR(pg_catalog.=) 'pg_catalog.bytea'::pg_catalog.regtype"            \
	"		THEN coalesce(d.description, 'application/octet-stream')"                                \
	"	WHEN a.atttypid OPERATOR(pg_catalog.=) 'pg_catalog.text'::pg_catalog.regtype"             \
	"		THEN coalesce(d.description, 'text/plain')"                                              \
	"	ELSE 'application/json' END AS media,"                                                    \
	" a.atttypid, f.feed"                                                                       \
	" FROM feedpub._feed f"                                                                     \
	" LEFT JOIN pg_catalog.pg_attribute a"                                                      \
	"	ON a.attrelid OPERATOR(pg_catalog.=) f.feed"                                              \
	"	AND a.attname OPERATOR(pg_catalog.=) 'data'"                                              \
	"	AND f.kind OPERATOR(pg_catalog.=) 'outbox'"                                               \
	" LEFT JOIN pg_catalog.pg_description d"                                                    \
	"	ON d.objoid OPERATOR(pg_catalog.=) f.feed"                                                \
	"	AND d.classoid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass"         \
	"	AND d.objsubid OPERATOR(pg_catalog.=) a.attnum"                                           \
	"	AND d.description OPERATOR(pg_catalog.~)"                                                 \
	"		'^[A-Za-z0-9.+-]+/[A-Za-z0-9.+-]+(; ?[A-Za-z0-9.+_=-]+)*$'"                              \
	"	AND d.description OPERATOR(pg_catalog.!~*) '^application/json'"                           \
	" WHERE f.feed OPERATOR(pg_catalog.=) $1::pg_catalog.regclass) "

/*
 * The messages of a page, and its last row with what they are.  If a
 * value could not be made, the message is the whole entry, which has an error.
 */
#define MESSAGES_TEXT \
	STREAM_TEXT                                                                                           \
	"SELECT CASE"                                                                                         \
	" WHEN NOT pg_catalog.starts_with(line, '{')"                                                         \
	"	THEN line OPERATOR(pg_catalog.||) coalesce((SELECT ' '"                                             \
	"		OPERATOR(pg_catalog.||) mode OPERATOR(pg_catalog.||) ' '"                                          \
	"		OPERATOR(pg_catalog.||) media FROM stream), '')"                                                   \
	" WHEN (SELECT mode OPERATOR(pg_catalog.=) 'json' FROM stream)"                                       \
	"	THEN coalesce((line::pg_catalog.json OPERATOR(pg_catalog.#>) '{row,data}')::pg_catalog.text, line)" \
	" WHEN (SELECT mode OPERATOR(pg_catalog.=) 'entry' FROM stream) THEN line"                            \
	" ELSE line::pg_catalog.json OPERATOR(pg_catalog.#>>) '{row,data}' END"                               \
	" FROM pg_catalog.string_to_table(feedpub._page_lines("                                               \
	"	$1::pg_catalog.regclass, $2, $3::pg_catalog.int4, $4::pg_catalog.int4,"                             \
	"	$5::pg_catalog.int4), E'\\n') line"

const DbStatement http_durable_statement = {
	.text = MESSAGES_TEXT, .nargs = 5, .feed = http_page_feed};

/* The last row of a page that is empty, at the head. */
static const DbStatement head_statement = {
	.nargs = 1,
	.text =
		STREAM_TEXT
	"SELECT pg_catalog.concat(%1$s.feed_head($1::pg_catalog.regclass), ' end ',"
	" $1::pg_catalog.regclass::pg_catalog.oid, ' ',"
	" (SELECT pg_catalog.concat_ws(' ', kind, mode, media) FROM stream))"};

/* What an append must know of a feed, a row each; nothing if it is none. */
const DbStatement http_durable_statement_of_append = {
	.nargs = 1,
	.text =
		STREAM_TEXT
	"SELECT pg_catalog.unnest(ARRAY[s.kind, s.media,"
	"	pg_catalog.format_type(s.atttypid, NULL),"
	"	pg_catalog.has_any_column_privilege(c.oid, 'INSERT')::pg_catalog.text,"
	"	pg_catalog.format('%%I.%%I', n.nspname, c.relname)])"
	" FROM stream s"
	" JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) s.feed"
	" JOIN pg_catalog.pg_namespace n"
	"	ON n.oid OPERATOR(pg_catalog.=) c.relnamespace"};

typedef enum Mode
{
	MODE_UNKNOWN,
	MODE_JSON,
	MODE_TEXT,
	MODE_HEX
} Mode;

static const char *take_arguments(HttpRequest *request);
static enum MHD_Result count_argument(void *arg, enum MHD_ValueKind kind,
									  const char *name, const char *value);
static enum MHD_Result head_answer(HttpRequest *request);
static Mode mode_of(const HttpPage *page, const char **media);
static void add_messages(BaseText *text, const DbResult *result,
						 const HttpPage *page, Mode mode);
static void add_base64(BaseText *text, const BaseText *bytes);
static void add_data(BaseText *event, const BaseText *data);
static bool is_text(const char *media);
static uint64_t next_cursor(HttpRequest *request);

/* GET, HEAD /streams/NAME */
enum MHD_Result
http_durable_begin(HttpRequest *request)
{
	const char *problem;

	if (strcmp(request->method, "POST") == 0)
		return http_append_begin(request);
	problem = http_request_parse(request, request->path + strlen("/streams/"));
	request->durable = base_alloc(sizeof(HttpDurable));
	if (problem == NULL)
		problem = take_arguments(request);
	if (problem != NULL)
		return http_problem(request, 400, problem);
	if (!http_request_is_name(request->feed))
		return http_problem(request, 404, "there is no such feed");

	if (strcmp(request->method, "HEAD") == 0)
		request->durable->is_head = true;
	if (request->durable->is_head)
	{
		http_page_run(request, &head_statement, head_answer);
		return MHD_YES;
	}
	return request->format == HTTP_FORMAT_EVENTS ? http_stream_begin(request) : http_page_read(request);
}

/* Take offset, live and cursor; returns what is wrong, or NULL. */
static const char *
take_arguments(HttpRequest *request)
{
	HttpDurable *durable = request->durable;
	const char *problem;
	int			offsets = 0;
	char	   *offset;
	char	   *live;
	char	   *cursor;

	MHD_get_connection_values(request->connection, MHD_GET_ARGUMENT_KIND,
							  count_argument, &offsets);
	if (offsets > 1)
		return "argument \"offset\" must be given once";
	if ((problem = http_request_argument(request, "offset", &offset)) != NULL)
		return problem;
	free(request->after);
	request->after = offset != NULL ? offset : base_copy("-1");
	if (*request->after == '\0')
		return "argument \"offset\" is empty";
	if (strcmp(request->after, "-1") == 0)
		*request->after = '\0';
	else if (strcmp(request->after, "now") == 0)
		durable->is_head = true;

	if ((problem = http_request_argument(request, "cursor", &cursor)) != NULL)
		return problem;
	durable->cursor = cursor != NULL ? strtoull(cursor, NULL, 10) : 0;
	free(cursor);

	if ((problem = http_request_argument(request, "live", &live)) != NULL)
		return problem;
	durable->is_live = live != NULL;
	if (live != NULL && strcmp(live, "sse") == 0)
		request->format = HTTP_FORMAT_EVENTS;
	else if (live != NULL && strcmp(live, "long-poll") != 0)
		problem = "argument \"live\" must be \"long-poll\" or \"sse\"";
	else if (live == NULL)
		request->wait = 0;
	else if (request->wait == 0)
		request->wait = http_config()->max_wait * 1000L;
	if (live != NULL && offset == NULL)
		problem = "argument \"offset\" is needed for a live read";
	free(live);
	durable->end = base_now() + http_config()->max_wait * INT64_C(1000);
	return problem;
}

static enum MHD_Result
count_argument(void *arg, enum MHD_ValueKind kind, const char *name,
			   const char *value)
{
	if (strcmp(name, "offset") == 0)
		++*(int *) arg;
	return MHD_YES;
}

/* The head is known: it is the answer, or where a live read begins. */
static enum MHD_Result
head_answer(HttpRequest *request)
{
	HttpDurable *durable = request->durable;
	HttpPage	page;

	if (db_result_failed(request->waiter.result))
		return http_problem_result(request);
	if (!durable->is_live || strcmp(request->method, "HEAD") == 0)
		return http_durable_send(request);
	http_page_open(request->waiter.result, &page);
	http_page_go_on(request, &page);
	durable->is_head = false;
	return request->format == HTTP_FORMAT_EVENTS ? http_stream_begin(request) : http_page_read(request);
}

void
http_durable_free(HttpDurable *durable)
{
	free(durable);
}

/* What the messages of a page are.  Unknown if the feed is just being made. */
static Mode
mode_of(const HttpPage *page, const char **media)
{
	const char *mode = page->rest + strspn(page->rest, " ");

	*media = mode + strcspn(mode, " ");
	*media += strspn(*media, " ");
	if (strncmp(mode, "json ", 5) == 0 || strncmp(mode, "entry ", 6) == 0)
		return MODE_JSON;
	if (strncmp(mode, "text ", 5) == 0)
		return MODE_TEXT;
	return strncmp(mode, "hex ", 4) == 0 ? MODE_HEX : MODE_UNKNOWN;
}

/* A page, or the head, has been read: answer. */
enum MHD_Result
http_durable_send(HttpRequest *request)
{
	HttpDurable *durable = request->durable;
	BaseText   *body = &request->waiter.result->body;
	BaseText	caching = {0};
	struct MHD_Response *response;
	enum MHD_Result sent;
	const char *media;
	HttpPage	page;
	Mode		mode;

	http_page_open(request->waiter.result, &page);
	mode = mode_of(&page, &media);
	if (mode == MODE_UNKNOWN)
		return http_problem(request, 503, "the feed is being made");
	if (durable->is_live && page.rows == 0 && !page.more)
	{
		response = MHD_create_response_from_buffer(0, "", MHD_RESPMEM_PERSISTENT);
		MHD_add_response_header(response, "Cache-Control", "no-store");
		http_durable_add_headers(request, response);
		return http_respond(request, 204, response);
	}
	if (body->data == NULL)
	{
		base_text_add(body, "", 0);
		add_messages(body, request->waiter.result, &page, mode);
	}
	if (durable->is_head)
		base_text_print(&caching, "no-store");
	else
		http_page_caching(request, &page, &caching);
	sent = http_page_send_body(request, page.cursor, caching.data, media);
	free(caching.data);
	return sent;
}

/* The headers of the protocol, for a request whose result is a page. */
void
http_durable_add_headers(HttpRequest *request, struct MHD_Response *response)
{
	BaseText	value = {0};
	const char *media;
	HttpPage	page;
	Mode		mode;

	http_page_open(request->waiter.result, &page);
	mode = mode_of(&page, &media);
	base_text_print(&value, "%.*s", page.cursor_length, page.cursor);
	MHD_add_response_header(response, "Stream-Next-Offset", value.data);
	free(value.data);
	memset(&value, 0, sizeof(value));
	MHD_add_response_header(response, "Cross-Origin-Resource-Policy",
							*http_config()->cors_origins ? "cross-origin" : "same-origin");
	if (request->format == HTTP_FORMAT_EVENTS)
	{
		if (mode != MODE_JSON && !is_text(media))
			MHD_add_response_header(response, "Stream-SSE-Data-Encoding", "base64");
		return;
	}
	if (!page.more)
		MHD_add_response_header(response, "Stream-Up-To-Date", "true");
	if (request->durable->is_live)
	{
		base_text_print(&value, "%llu",
						(unsigned long long) next_cursor(request));
		MHD_add_response_header(response, "Stream-Cursor", value.data);
		free(value.data);
	}
}

/*
 * Add a page to an event stream: an event with its messages, if there are any,
 * and one that says where the stream is.  Returns false if the stream is to
 * end.
 */
bool
http_durable_add_events(HttpRequest *request, const HttpPage *page,
						BaseText *buffer)
{
	HttpDurable *durable = request->durable;
	BaseText	messages = {0};
	const char *media;
	Mode		mode = mode_of(page, &media);

	if (mode == MODE_UNKNOWN)
		return false;
	if (durable->begun && page->rows == 0 &&
		strncmp(page->cursor, request->after, page->cursor_length) == 0)
		return true;
	durable->begun = true;
	if (page->rows > 0)
	{
		add_messages(&messages, request->waiter.result, page, mode);
		if (mode != MODE_JSON && !is_text(media))
		{
			BaseText	bytes = messages;

			memset(&messages, 0, sizeof(messages));
			add_base64(&messages, &bytes);
			free(bytes.data);
		}
		base_text_print(buffer, "event: data\n");
		add_data(buffer, &messages);
		base_text_print(buffer, "\n");
		free(messages.data);
	}
	durable->cursor = next_cursor(request);
	base_text_print(buffer,
					"event: control\n"
					"data:{\"streamNextOffset\":\"%.*s\",\"streamCursor\":\"%llu\"%s}\n\n",
					page->cursor_length, page->cursor,
					(unsigned long long) durable->cursor,
					page->more ? "" : ",\"upToDate\":true");
	return true;
}

/* When an event stream is to end, so that proxies can join its clients; ms */
int64_t
http_durable_end(const HttpRequest *request)
{
	return request->durable != NULL ? request->durable->end : INT64_MAX;
}

static void
add_messages(BaseText *text, const DbResult *result, const HttpPage *page,
			 Mode mode)
{
	if (mode == MODE_JSON)
		base_text_add(text, "[", 1);
	for (int i = 0; i < page->rows; i++)
	{
		const char *message = PQgetvalue(result->rows, i, 0);

		if (mode == MODE_HEX)
			base_text_add_bytes(text, message);
		else
		{
			if (mode == MODE_JSON && i > 0)
				base_text_add(text, ",", 1);
			base_text_add(text, message, PQgetlength(result->rows, i, 0));
		}
	}
	if (mode == MODE_JSON)
		base_text_add(text, "]", 1);
}

static void
add_base64(BaseText *text, const BaseText *bytes)
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
								 "abcdefghijklmnopqrstuvwxyz0123456789+/";

	for (size_t i = 0; i < bytes->length; i += 3)
	{
		const unsigned char *in = (const unsigned char *) bytes->data + i;
		size_t		left = bytes->length - i;
		unsigned	group = in[0] << 16;
		char		out[4];

		if (left > 1)
			group |= in[1] << 8;
		if (left > 2)
			group |= in[2];
		out[0] = digits[group >> 18];
		out[1] = digits[group >> 12 & 63];
		out[2] = left > 1 ? digits[group >> 6 & 63] : '=';
		out[3] = left > 2 ? digits[group & 63] : '=';
		base_text_add(text, out, 4);
	}
}

/*
 * Add data as the lines of an event.  Each of CR, LF and CR LF ends a line, and
 * the reader removes one space after the colon, so a line that begins with a
 * space gets one more.
 */
static void
add_data(BaseText *event, const BaseText *data)
{
	size_t		begin = 0;

	while (begin <= data->length)
	{
		size_t		end = begin;

		while (end < data->length && data->data[end] != '\n' && data->data[end] != '\r')
			end++;
		base_text_add(event, "data: ",
					  end > begin && data->data[begin] == ' ' ? 6 : 5);
		if (end > begin)
			base_text_add(event, data->data + begin, end - begin);
		base_text_add(event, "\n", 1);
		if (end + 1 < data->length && data->data[end] == '\r' && data->data[end + 1] == '\n')
			end++;
		begin = end + 1;
	}
}

/* Can messages of this type stand in an event as they are? */
static bool
is_text(const char *media)
{
	return strncasecmp(media, "text/", 5) == 0;
}

/*
 * The next Stream-Cursor: the time, but always after the one that the client
 * has sent, so that no cache answers the same request for ever.
 */
static uint64_t
next_cursor(HttpRequest *request)
{
	uint64_t	now = (time(NULL) - CURSOR_EPOCH) / CURSOR_INTERVAL;
	uint64_t	known = request->durable->cursor;

	if (known < now || known >= INT64_MAX)
		return now;
	return known + 1 + base_now() % CURSOR_JITTER;
}
