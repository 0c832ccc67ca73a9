/*-------------------------------------------------------------------------
 *
 * durable.c
 *	  A feed by the Durable Streams protocol: GET, HEAD /streams/NAME.
 *
 * An offset is a cursor.  What messages are, feedpub._page_messages() decides:
 * those that are JSON are served as one array, bytes one after the other,
 * without anything between them.
 *
 * Reads and waits are those of page.c and stream.c; what is here is what the
 * protocol says of offsets, headers and framing.  What is served at offset -1
 * is never kept by a cache without being asked for again, for the reason that
 * page.c gives.
 *
 *-------------------------------------------------------------------------
 */
#include "forms/forms.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

/* Stream-Cursor counts these since 2024-10-09 00:00 UTC; s */
#define CURSOR_INTERVAL 20
#define CURSOR_EPOCH INT64_C(1728432000)

/* of intervals: how far it goes at most if a client is ahead */
#define CURSOR_JITTER 180

typedef struct Durable
{
	bool		is_live;
	bool		is_head;		/* "now", or HEAD: without messages */
	uint64_t	cursor;			/* that the client has sent, or 0 */
	bool		begun;			/* an event has been sent */
} Durable;

/*
 * What a feed's messages are.  The type of an outbox's messages is that of its
 * column, or what the comment of the column says.
 */
#define STREAM_TEXT \
	"WITH stream AS MATERIALIZED (SELECT f.kind,"                                       \
	" CASE WHEN a.atttypid OPERATOR(pg_catalog.=) ANY ("                                \
	"	'{pg_catalog.bytea,pg_catalog.text}'::pg_catalog.regtype[])"                      \
	"	THEN 'hex' ELSE 'json' END AS mode,"                                              \
	" CASE"                                                                             \
	"	WHEN a.atttypid OPERATOR(pg_catalog.=) 'pg_catalog.bytea'::pg_catalog.regtype"    \
	"		THEN coalesce(d.description, 'application/octet-stream')"                        \
	"	WHEN a.atttypid OPERATOR(pg_catalog.=) 'pg_catalog.text'::pg_catalog.regtype"     \
	"		THEN coalesce(d.description, 'text/plain')"                                      \
	"	ELSE 'application/json' END AS media,"                                            \
	" a.atttypid, f.feed"                                                               \
	" FROM feedpub._feed f"                                                             \
	" LEFT JOIN pg_catalog.pg_attribute a"                                              \
	"	ON a.attrelid OPERATOR(pg_catalog.=) f.feed"                                      \
	"	AND a.attname OPERATOR(pg_catalog.=) 'data'"                                      \
	"	AND f.kind OPERATOR(pg_catalog.=) 'outbox'"                                       \
	" LEFT JOIN pg_catalog.pg_description d"                                            \
	"	ON d.objoid OPERATOR(pg_catalog.=) f.feed"                                        \
	"	AND d.classoid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass" \
	"	AND d.objsubid OPERATOR(pg_catalog.=) a.attnum"                                   \
	"	AND d.description OPERATOR(pg_catalog.~)"                                         \
	"		'^[A-Za-z0-9.+-]+/[A-Za-z0-9.+-]+(; ?[A-Za-z0-9.+_=-]+)*$'"                      \
	"	AND d.description OPERATOR(pg_catalog.!~*) '^application/json'"                   \
	" WHERE f.feed OPERATOR(pg_catalog.=) $1::pg_catalog.regclass) "

/* The messages of a page, and a row with what they are. */
static const DbStatement messages_statement = {
	.nargs = 6,
	.feed = form_feed_of,
	.text =
		STREAM_TEXT
	"SELECT feedpub._page_messages("
	"	$1::pg_catalog.regclass, $2, $3::pg_catalog.int4, $4::pg_catalog.int4,"
	"	$5::pg_catalog.int4, $6::pg_catalog.text[])"
	" UNION ALL SELECT pg_catalog.concat(mode, ' ', media) FROM stream"};

/* The same of a page that is empty, at the head. */
static const DbStatement head_statement = {
	.nargs = 1,
	.text =
		STREAM_TEXT
	"SELECT pg_catalog.concat(%1$s.feed_head($1::pg_catalog.regclass), ' end ',"
	" $1::pg_catalog.regclass::pg_catalog.oid, ' ', (SELECT kind FROM stream))"
	" UNION ALL SELECT pg_catalog.concat(mode, ' ', media) FROM stream"};

/* What an append must know of a feed, a row each; nothing if it is none. */
const DbStatement form_durable_describe = {
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
	MODE_HEX
} Mode;

static const char *take_arguments(HttpRequest *request);
static const char *take_offset(HttpRequest *request, bool *is_given);
static void head_answer(HttpRequest *request);
static void begin_read(HttpRequest *request);
static Mode mode_of(const FormPage *page, const char **media);
static void page_answer(HttpRequest *request);
static void add_headers(HttpRequest *request);
static bool frame_events(HttpRequest *request, FormPage *page, BaseText *out);
static void make_body(HttpRequest *request, FormPage *page, Mode mode);
static void add_base64(BaseText *text, const char *bytes, size_t length);
static void add_data(BaseText *event, FormPage *page, size_t length);
static bool is_text(const char *media);
static uint64_t next_cursor(Durable *durable);

static const Form form_durable = {.statement = &messages_statement,
								  .headers = add_headers};

static const Form form_durable_events = {.type = "text/event-stream",
										 .statement = &messages_statement,
										 .frame = frame_events,
										 .headers = add_headers};

/* GET, HEAD /streams/NAME */
void
form_durable_begin(HttpRequest *request)
{
	const char *problem = form_parse(request, request->path + strlen("/streams/"), &form_durable);
	FormRead   *read = request->state;
	Durable    *durable = read->own = base_alloc(sizeof(Durable));

	if (problem == NULL)
		problem = take_arguments(request);
	if (problem != NULL)
	{
		http_problem(request, 400, problem);
		return;
	}
	if (!form_is_name(read->feed))
	{
		http_problem(request, 404, "there is no such feed");
		return;
	}
	if (strcmp(request->method, "HEAD") == 0)
		durable->is_head = true;
	if (durable->is_head)
		form_run(request, &head_statement, head_answer);
	else
		begin_read(request);
}

static void
begin_read(HttpRequest *request)
{
	if (form_read_of(request)->form == &form_durable_events)
		form_stream_begin(request);
	else
		form_page_wait(request, page_answer);
}

/* Take offset, live and cursor; returns what is wrong, or NULL. */
static const char *
take_arguments(HttpRequest *request)
{
	FormRead   *read = request->state;
	Durable    *durable = read->own;
	bool		has_offset;
	const char *problem = take_offset(request, &has_offset);
	char	   *live;
	char	   *cursor;

	if (problem != NULL ||
		(problem = http_request_argument(request, "cursor", &cursor)) != NULL)
		return problem;
	durable->cursor = cursor != NULL ? strtoull(cursor, NULL, 10) : 0;
	free(cursor);

	if ((problem = http_request_argument(request, "live", &live)) != NULL)
		return problem;
	durable->is_live = live != NULL;
	if (live != NULL && strcmp(live, "sse") == 0)
		read->form = &form_durable_events;
	else if (live != NULL && strcmp(live, "long-poll") != 0)
		problem = "argument \"live\" must be \"long-poll\" or \"sse\"";
	else if (live == NULL)
		read->wait = 0;
	else if (read->wait == 0)
		read->wait = http_config()->max_wait * 1000L;
	if (live != NULL && !has_offset)
		problem = "argument \"offset\" is needed for a live read";
	free(live);

	/* so that proxies can join the clients of event streams */
	read->end = base_now() + http_config()->max_wait * INT64_C(1000);
	return problem;
}

static const char *
take_offset(HttpRequest *request, bool *is_given)
{
	FormRead   *read = request->state;
	char	   *offset;
	const char *problem = http_request_argument(request, "offset", &offset);

	if (problem != NULL)
		return problem;
	*is_given = offset != NULL;
	free(read->after);
	read->after = offset != NULL ? offset : base_copy("-1");
	if (*read->after == '\0')
		return "argument \"offset\" is empty";
	if (strcmp(read->after, "-1") == 0)
		*read->after = '\0';
	else if (strcmp(read->after, "now") == 0)
		((Durable *) read->own)->is_head = true;
	return NULL;
}

/* The head is known: it is the answer, or where a live read begins. */
static void
head_answer(HttpRequest *request)
{
	Durable    *durable = form_read_of(request)->own;
	FormPage	page;

	if (db_result_failed(request->waiter.result) || !durable->is_live ||
		strcmp(request->method, "HEAD") == 0)
	{
		page_answer(request);
		return;
	}
	form_page_open(request->waiter.result, &page);
	form_go_on(request, &page);
	durable->is_head = false;
	begin_read(request);
}

/* What the messages of a page are.  Unknown if the feed is just being made. */
static Mode
mode_of(const FormPage *page, const char **media)
{
	*media = page->rest + strcspn(page->rest, " ");
	*media += strspn(*media, " ");
	if (*page->rest == '\0')
		return MODE_UNKNOWN;
	return strncmp(page->rest, "hex ", 4) == 0 ? MODE_HEX : MODE_JSON;
}

/* A page, or the head, has been read: answer. */
static void
page_answer(HttpRequest *request)
{
	const Durable *durable = form_read_of(request)->own;
	DbResult   *result = request->waiter.result;
	BaseText	caching = {0};
	const char *media;
	FormPage	page;
	Mode		mode;

	if (db_result_failed(result))
	{
		http_problem_result(request);
		return;
	}
	form_page_open(result, &page);
	mode = mode_of(&page, &media);
	if (mode == MODE_UNKNOWN)
	{
		http_problem(request, 503, "the feed is being made");
		return;
	}
	add_headers(request);
	if (durable->is_live && page.length == 0 && !page.more)
	{
		http_add(request, "Cache-Control", "no-store");
		http_respond(request, 204);
		return;
	}
	make_body(request, &page, mode);
	if (durable->is_head)
		base_text_print(&caching, "no-store");
	else
		form_caching(request, &page, &caching);
	form_send(request, page.cursor, caching.data, media);
	free(caching.data);
}

/* The headers of the protocol, for a request whose result is a page. */
static void
add_headers(HttpRequest *request)
{
	FormRead   *read = request->state;
	Durable    *durable = read->own;
	const char *media;
	FormPage	page;
	Mode		mode;

	form_page_open(request->waiter.result, &page);
	mode = mode_of(&page, &media);
	http_add(request, "Stream-Next-Offset", "%.*s", page.cursor_length, page.cursor);
	http_add(request, "Cross-Origin-Resource-Policy",
			 *http_config()->cors_origins ? "cross-origin" : "same-origin");
	if (read->form == &form_durable_events)
	{
		if (mode != MODE_JSON && !is_text(media))
			http_add(request, "Stream-SSE-Data-Encoding", "base64");
		return;
	}
	if (!page.more)
		http_add(request, "Stream-Up-To-Date", "true");
	if (page.moment)
		http_add(request, "Feed-Moment", "true");
	if (durable->is_live)
		http_add(request, "Stream-Cursor", "%llu",
				 (unsigned long long) next_cursor(durable));
}

/*
 * Add a page to an event stream: an event with its messages, if there are any,
 * and one that says where the stream is.  The first one is made of the body that
 * pages have, piece by piece.
 */
static bool
frame_events(HttpRequest *request, FormPage *page, BaseText *out)
{
	const FormRead *read = request->state;
	Durable    *durable = read->own;
	const char *media;
	Mode		mode = mode_of(page, &media);
	bool		is_base64 = mode != MODE_JSON && !is_text(media);
	size_t		most = is_base64 ? FORM_PIECE / 4 * 3 : FORM_PIECE;

	if (!page->is_begun)
	{
		if (mode == MODE_UNKNOWN)
			return false;
		if (durable->begun && page->length == 0 &&
			strncmp(page->cursor, read->after, page->cursor_length) == 0)
			return true;
	}
	durable->begun = true;
	if (page->length > 0)
	{
		if (!page->is_begun)
		{
			const BaseText *body = &request->waiter.result->body;

			make_body(request, page, mode);
			page->entries = body->data;
			page->length = body->length;
			page->is_begun = true;
			base_text_print(out, "event: data\n%s", is_base64 ? "data:" : "");
			page->in_line = is_base64;
		}
		if (most > page->length)
			most = page->length;
		/* CR LF is one end of a line, so it stays together */
		else if (page->entries[most - 1] == '\r' && !is_base64)
			most--;
		if (is_base64)
			add_base64(out, page->entries, most);
		else
			add_data(out, page, most);
		form_page_take(page, most);
		if (page->length > 0)
			return true;
		base_text_print(out, "%s\n\n", page->in_line ? "" : "data:");
		page->is_begun = false;
	}
	durable->cursor = next_cursor(durable);
	base_text_print(out,
					"event: control\n"
					"data:{\"streamNextOffset\":\"%.*s\",\"streamCursor\":\"%llu\"%s%s}\n\n",
					page->cursor_length, page->cursor,
					(unsigned long long) durable->cursor,
					page->more ? "" : ",\"upToDate\":true",
					page->moment ? ",\"feedMoment\":true" : "");
	return true;
}

/* The messages of a page, for all that have its result. */
static void
make_body(HttpRequest *request, FormPage *page, Mode mode)
{
	BaseText   *text = &request->waiter.result->body;
	const char *separator = "[";
	const char *message;
	size_t		length;

	if (text->data != NULL)
		return;
	base_text_room(text, page->length + page->length / 64 + 256);
	while ((message = form_page_next(page, &length)) != NULL)
	{
		if (mode == MODE_HEX)
		{
			base_text_add_bytes(text, message, length);
			continue;
		}
		base_text_add(text, separator, strlen(separator));
		base_text_add(text, message, length);
		separator = ",";
	}
	if (mode == MODE_JSON)
		base_text_print(text, *separator == '[' ? "[]" : "]");
}

static void
add_base64(BaseText *text, const char *bytes, size_t length)
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
								 "abcdefghijklmnopqrstuvwxyz0123456789+/";

	for (size_t i = 0; i < length; i += 3)
	{
		const unsigned char *in = (const unsigned char *) bytes + i;
		size_t		left = length - i;
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
 * Add so much of a page as lines of an event, of which the last one may go on.
 * Each of CR, LF and CR LF ends a line, and the reader removes one space after
 * the colon, so a line that begins with a space gets one more.
 */
static void
add_data(BaseText *event, FormPage *page, size_t length)
{
	const char *data = page->entries;
	const char *stop = data + length;

	while (data < stop)
	{
		const char *end = data;

		while (end < stop && *end != '\n' && *end != '\r')
			end++;
		if (!page->in_line)
			base_text_add(event, "data: ", *data == ' ' ? 6 : 5);
		base_text_add(event, data, end - data);
		page->in_line = end == stop;
		if (end == stop)
			return;
		base_text_add(event, "\n", 1);
		data = end + (stop - end > 1 && end[0] == '\r' && end[1] == '\n' ? 2 : 1);
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
next_cursor(Durable *durable)
{
	uint64_t	now = (time(NULL) - CURSOR_EPOCH) / CURSOR_INTERVAL;
	uint64_t	known = durable->cursor;

	if (known < now || known >= INT64_MAX)
		return now;
	return known + 1 + base_now() % CURSOR_JITTER;
}
