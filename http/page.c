/*-------------------------------------------------------------------------
 *
 * page.c
 *	  The list of feeds, and a page of a feed: GET /feeds, /feeds/NAME.
 *
 * Caching.  A full page of an outbox ("more") is final, since what is after a
 * cursor never changes.  A full page of a table feed is not, but what has been
 * changed in it since comes again after it.  It may be kept for a quarter of
 * the time for which deletes are retained, so that a consumer that is led by
 * pages out of a cache has three quarters to get past the deletes.  Any other
 * page is to be asked for again, with its ETag.
 *
 * The beginning is a redirect, never kept, to a URL with the cursor of the
 * floor, which names the history and the start of the server.  Of an outbox
 * that is where to begin; of a table feed, which is read from its beginning,
 * the argument "begin" only makes another URL.  When a consumer is refused, the
 * floor has moved past its cursor, or another history or server start serves
 * the feed.  So it begins at another URL, and no cache leads it to the old
 * cursors again: those of a table feed have the number of the batch that the
 * first page saw.
 *
 * http-feeds.org.  A consumer of CloudEvents goes on after the last event that
 * it has got, and takes a page without events for the end.  So if what a page
 * has passed is all hidden from the reader, the next page is read at once.
 *
 *-------------------------------------------------------------------------
 */
#include "http.h"

#include <stdlib.h>
#include <string.h>

static const DbStatement feeds_statement = {
	.text =
		"SELECT pg_catalog.json_build_object('feeds', coalesce("
		"	pg_catalog.json_agg(pg_catalog.json_build_object("
		"		'name', pg_catalog.format('%%I.%%I', n.nspname, c.relname),"
		"		'kind', f.kind) ORDER BY n.nspname, c.relname), '[]'))::text"
		" FROM feedpub.feeds f"
		" JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) f.feed"
		" JOIN pg_catalog.pg_namespace n"
		"	ON n.oid OPERATOR(pg_catalog.=) c.relnamespace"
		" WHERE pg_catalog.has_any_column_privilege(c.oid, 'SELECT')"
		"	AND pg_catalog.has_schema_privilege(n.oid, 'USAGE')"};

/* The kind of a feed, and its floor. */
static const DbStatement begin_statement = {
	.nargs = 1,
	.text =
		"SELECT pg_catalog.concat(f.kind, ' ', %1$s.feed_floor(f.feed))"
		" FROM feedpub._feed f"
		" WHERE f.feed OPERATOR(pg_catalog.=) $1::pg_catalog.regclass"};

/* The same with the end of what is published: a cursor of any feed. */
static const DbStatement head_statement = {
	.nargs = 1,
	.text =
		"SELECT pg_catalog.concat('outbox ', %1$s.feed_head(f.feed))"
		" FROM feedpub._feed f"
		" WHERE f.feed OPERATOR(pg_catalog.=) $1::pg_catalog.regclass"};

#define PAGE_TEXT(function) \
	"SELECT feedpub." function "($1::pg_catalog.regclass, $2," \
	" $3::pg_catalog.int4, $4::pg_catalog.int4, $5::pg_catalog.int4)"

static const DbStatement page_statement = {
	.text = PAGE_TEXT("_page_lines"), .nargs = 5, .feed = http_page_feed};
static const DbStatement cloudevents_statement = {
	.text = PAGE_TEXT("_page_events"), .nargs = 5, .feed = http_page_feed};

static enum MHD_Result feeds_answer(HttpRequest *request);
static bool has_begun(HttpRequest *request);
static enum MHD_Result begin_answer(HttpRequest *request);
static enum MHD_Result page_answer(HttpRequest *request);
static enum MHD_Result send_page(HttpRequest *request);
static void add_argument(void *arg, const char *name, const char *value);
static enum MHD_Result each_argument(void *arg, enum MHD_ValueKind kind,
									 const char *name, const char *value);
static uint64_t hash_of(const BaseText *text);
static bool has_etag(const char *list, const char *etag);
static void release_result(void *arg);

enum MHD_Result
http_feeds_begin(HttpRequest *request)
{
	http_run(request, &feeds_statement, NULL, feeds_answer);
	return MHD_YES;
}

static enum MHD_Result
feeds_answer(HttpRequest *request)
{
	if (db_result_failed(request->waiter.result))
		return http_problem_result(request);
	if (request->waiter.result->body.data == NULL)
		base_text_print(&request->waiter.result->body, "%s",
						PQgetvalue(request->waiter.result->rows, 0, 0));
	return http_page_send_body(request, "feeds", "no-cache", "application/json");
}

/* GET /feeds/NAME */
enum MHD_Result
http_page_begin(HttpRequest *request)
{
	/* of equal quality, the first */
	static const struct
	{
		const char *type;
		HttpFormat	format;
	} formats[] = {
		{"application/json", HTTP_FORMAT_PAGE},
		{"text/event-stream", HTTP_FORMAT_EVENTS},
		{"application/x-ndjson", HTTP_FORMAT_LINES},
		{"application/cloudevents-batch+json", HTTP_FORMAT_CLOUDEVENTS},
	};
	const char *accept = http_header(request, "Accept");
	const char *problem;
	double		best = 0;

	for (size_t i = 0; i < lengthof(formats); i++)
	{
		double		quality = http_request_quality(accept, formats[i].type);

		if (quality > best)
		{
			best = quality;
			request->format = formats[i].format;
		}
	}
	if (best <= 0)
		return http_problem(request, 406, "a feed is application/json, text/event-stream, "
										  "application/x-ndjson or application/cloudevents-batch+json");
	problem = http_request_parse(request, request->path + strlen("/feeds/"));
	if (problem != NULL)
		return http_problem(request, 400, problem);

	if (!http_request_is_name(request->feed))
		return http_problem(request, 404, "there is no such feed");

	/* if it were read again while it waits, it would never find anything */
	if (strcmp(request->after, "latest") == 0)
	{
		http_page_run(request, &head_statement, begin_answer);
		return MHD_YES;
	}
	if (request->format == HTTP_FORMAT_EVENTS || request->format == HTTP_FORMAT_LINES)
		return http_stream_begin(request);
	if (*request->after != '\0' || has_begun(request))
		return http_page_read(request);
	http_page_run(request, &begin_statement, begin_answer);
	return MHD_YES;
}

/* Has a consumer of a table feed been sent to where it begins? */
static bool
has_begun(HttpRequest *request)
{
	return MHD_lookup_connection_value(request->connection,
									   MHD_GET_ARGUMENT_KIND, "begin") != NULL;
}

/* The feed's floor or head is known: send the consumer to where it begins. */
static enum MHD_Result
begin_answer(HttpRequest *request)
{
	struct MHD_Response *response;
	BaseText	url = {0};
	const char *begin;
	const char *name = request->format == HTTP_FORMAT_CLOUDEVENTS ? "lastEventId" : "after";

	if (db_result_failed(request->waiter.result))
		return http_problem_result(request);
	if (PQntuples(request->waiter.result->rows) == 0)
		return http_page_read(request); /* no feed, which this says */
	begin = PQgetvalue(request->waiter.result->rows, 0, 0);
	if (strncmp(begin, "outbox ", 7) != 0)
		name = "begin";
	base_text_print(&url, "%s?%s=%s", request->path, name, strchr(begin, ' ') + 1);
	MHD_get_connection_values(request->connection, MHD_GET_ARGUMENT_KIND,
							  each_argument, &url);
	response = MHD_create_response_from_buffer(0, "", MHD_RESPMEM_PERSISTENT);
	MHD_add_response_header(response, "Location", url.data);
	MHD_add_response_header(response, "Cache-Control", "no-store");
	free(url.data);
	return http_respond(request, 307, response);
}

static enum MHD_Result
each_argument(void *arg, enum MHD_ValueKind kind, const char *name,
			  const char *value)
{
	add_argument(arg, name, value);
	return MHD_YES;
}

/*
 * Add an argument to a URL.  It is as it was sent, but "+" has become a space.
 */
static void
add_argument(void *arg, const char *name, const char *value)
{
	BaseText   *url = arg;
	static const char *const kept[] = {"limit", "shard", "shards", "wait", "timeout"};

	for (size_t i = 0; value != NULL && i < lengthof(kept); i++)
		if (strcmp(name, kept[i]) == 0)
			base_text_print(url, "&%s=%.*s", name, (int) strcspn(value, " "),
							value);
}

/* Read a page, or wait for it, and answer. */
enum MHD_Result
http_page_read(HttpRequest *request)
{
	if (request->wait > 0)
		http_page_wait(request, InvalidOid, 0,
					   base_now() + request->wait, page_answer);
	else
		http_page_run(request, http_page_statement_of(request), page_answer);
	return MHD_YES;
}

/* What reads a page for a request. */
const DbStatement *
http_page_statement_of(const HttpRequest *request)
{
	if (request->durable != NULL)
		return &http_durable_statement;
	if (request->format == HTTP_FORMAT_CLOUDEVENTS)
		return &cloudevents_statement;
	return &page_statement;
}

/* Run a statement with the arguments of a page. */
void
http_page_run(HttpRequest *request, const DbStatement *statement,
			  enum MHD_Result (*go_on)(HttpRequest *request))
{
	const char *arguments[DB_MAX_ARGUMENTS] = {request->feed, request->after, request->limit,
											   request->shard, request->shards};

	http_run(request, statement, arguments, go_on);
}

/*
 * Read a page that is not empty, or wait for it until the deadline.  With a
 * feed: the page was empty when the clock was "since".
 */
void
http_page_wait(HttpRequest *request, Oid feed, uint64_t since,
			   int64_t deadline,
			   enum MHD_Result (*go_on)(HttpRequest *request))
{
	const char *arguments[DB_MAX_ARGUMENTS] = {request->feed, request->after, request->limit,
											   request->shard, request->shards};

	http_wait(request, http_page_statement_of(request), arguments, feed,
			  since, http_token_deadline(request, deadline), go_on);
}

/* The feed of a page, and whether there is nothing yet after its cursor. */
Oid
http_page_feed(const DbResult *result, bool *empty)
{
	HttpPage	page;

	http_page_open(result, &page);
	*empty = page.rows == 0 && page.length == 0 && !page.more;
	return page.feed;
}

static enum MHD_Result
page_answer(HttpRequest *request)
{
	HttpPage	page;

	if (db_result_failed(request->waiter.result))
		return http_problem_result(request);
	if (request->format == HTTP_FORMAT_CLOUDEVENTS)
	{
		http_page_open(request->waiter.result, &page);
		if (page.length == 0 && page.more)
		{
			http_page_go_on(request, &page);
			return http_page_read(request);
		}
	}
	return send_page(request);
}

/* Find the parts of a page: what is before its last row is durable.c's. */
void
http_page_open(const DbResult *result, HttpPage *page)
{
	const char *end;

	page->rows = PQntuples(result->rows) - 1;
	page->entries = PQgetvalue(result->rows, page->rows, 0);
	end = memrchr(page->entries, '\n', PQgetlength(result->rows, page->rows, 0));
	page->cursor = end != NULL ? end + 1 : page->entries;
	page->length = page->cursor - page->entries;
	page->cursor_length = strcspn(page->cursor, " ");
	end = page->cursor + page->cursor_length;
	page->more = strncmp(end, " more ", 6) == 0;
	end = strchr(end + 1, ' ') + 1;
	page->feed = strtoul(end, NULL, 10);
	end = strchr(end, ' ') + 1;
	page->is_outbox = strncmp(end, "outbox", 6) == 0;
	end += strcspn(end, " ");
	page->retention = strtol(end, (char **) &page->rest, 10);
}

/* The next page begins where this one ends. */
void
http_page_go_on(HttpRequest *request, const HttpPage *page)
{
	free(request->after);
	request->after = base_alloc(page->cursor_length + 1);
	memcpy(request->after, page->cursor, page->cursor_length);
}

/* How long a page may be kept. */
void
http_page_caching(HttpRequest *request, const HttpPage *page,
				  BaseText *caching)
{
	long		age = http_config()->max_age;
	const char *scope = request->is_private ? "private" : "public";

	if (!page->is_outbox && page->retention >= 0 && page->retention / 4 < age)
		age = page->retention / 4;
	if (page->more && age > 0 &&
		(*request->after != '\0' || (!page->is_outbox && has_begun(request))))
		base_text_print(caching, "%s, max-age=%ld%s", scope, age,
						page->is_outbox ? ", immutable" : "");
	else
		base_text_print(caching, "no-cache");
}

/*
 * The next entry of a page and its length, without the line break; NULL at the
 * end.
 */
const char *
http_page_next(HttpPage *page, size_t *length)
{
	const char *entry = page->entries;

	if (page->length == 0)
		return NULL;
	*length = (const char *) memchr(entry, '\n', page->length) - entry;
	page->entries += *length + 1;
	page->length -= *length + 1;
	return entry;
}

static enum MHD_Result
send_page(HttpRequest *request)
{
	BaseText   *body = &request->waiter.result->body;
	BaseText	caching = {0};
	bool		events = request->format == HTTP_FORMAT_CLOUDEVENTS;
	enum MHD_Result sent;
	HttpPage	page;

	if (request->durable != NULL)
		return http_durable_send(request);
	http_page_open(request->waiter.result, &page);
	if (body->data == NULL)
	{
		const char *entry;
		const char *separator = "";
		size_t		length;

		base_text_room(body, page.length + page.length / 64 + 256);
		base_text_print(body, events ? "[" : "{\"entries\": [");
		while ((entry = http_page_next(&page, &length)) != NULL)
		{
			base_text_add(body, separator, strlen(separator));
			base_text_add(body, entry, length);
			separator = ", ";
		}
		base_text_print(body, "]");
		if (!events)
			base_text_print(body, ", \"cursor\": \"%.*s\", \"more\": %s}",
							page.cursor_length, page.cursor,
							page.more ? "true" : "false");
	}
	http_page_caching(request, &page, &caching);
	sent = http_page_send_body(request, page.cursor, caching.data,
							   events ? "application/cloudevents-batch+json" : "application/json");
	free(caching.data);
	return sent;
}

/*
 * Send the body of the result.  The ETag has the cursor, so that two pages of
 * which one has more are never taken for equal, and a hash for what
 * else can change: rows that were deleted, columns that were added.
 */
enum MHD_Result
http_page_send_body(HttpRequest *request, const char *cursor,
					const char *caching, const char *type)
{
	DbResult   *result = request->waiter.result;
	const char *known = http_header(request, "If-None-Match");
	struct MHD_Response *response;
	BaseText	etag = {0};
	bool		same;

	if (result->hash == 0)
		result->hash = hash_of(&result->body);
	base_text_print(&etag, "\"%.*s-%016llx\"", (int) strcspn(cursor, " "),
					cursor, (unsigned long long) result->hash);
	same = known != NULL && has_etag(known, etag.data);
	if (same)
		response = MHD_create_response_from_buffer(0, "", MHD_RESPMEM_PERSISTENT);
	else
	{
		result->refs++;
		response =
			MHD_create_response_from_buffer_with_free_callback_cls(result->body.length,
																   result->body.data,
																   release_result,
																   result);
		MHD_add_response_header(response, "Content-Type", type);
	}
	if (request->durable != NULL)
		http_durable_add_headers(request, response);
	MHD_add_response_header(response, "ETag", etag.data);
	MHD_add_response_header(response, "Cache-Control", caching);
	free(etag.data);
	return http_respond(request, same ? 304 : 200, response);
}

/*
 * A hash of a text; never 0.  In four lanes, of eight bytes each, since a
 * multiplication waits for the one before in its lane.
 */
static uint64_t
hash_of(const BaseText *text)
{
	uint64_t	lanes[4] = {text->length, 1, 2, 3};
	uint64_t	words[4];
	uint64_t	hash = 0;

	for (size_t i = 0; i < text->length; i += sizeof(words))
	{
		size_t		rest = text->length - i;

		memset(words, 0, sizeof(words));
		memcpy(words, text->data + i, rest < sizeof(words) ? rest : sizeof(words));
		for (size_t j = 0; j < lengthof(lanes); j++)
			lanes[j] = (lanes[j] ^ words[j] ^ lanes[j] >> 32) * UINT64_C(0x9e3779b97f4a7c15);
	}
	for (size_t j = 0; j < lengthof(lanes); j++)
		hash = (hash ^ lanes[j] ^ lanes[j] >> 32) * UINT64_C(0x9e3779b97f4a7c15);
	return hash | 1;
}

/* Is an ETag in the list of an If-None-Match? */
static bool
has_etag(const char *list, const char *etag)
{
	const char *found = strstr(list, etag);

	return found != NULL || strcmp(list, "*") == 0;
}

static void
release_result(void *arg)
{
	db_result_release(arg);
}
