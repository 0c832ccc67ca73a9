/*-------------------------------------------------------------------------
 *
 * page.c
 *	  The list of feeds, and a page of a feed: GET /feeds, /feeds/NAME.
 *
 * Caching.  A full page of an outbox ("more") is final, since what is after a
 * cursor never changes.  Any other page is to be asked for again, with its
 * ETag.  The beginning of an outbox is a redirect, never kept, to a URL with
 * the cursor of the floor, which names the history and the start of the server.
 * So when a consumer is refused and begins again, its URLs are other ones, and
 * no cache can lead it to the old cursors.
 *
 *-------------------------------------------------------------------------
 */
#include "http.h"

#include <stdlib.h>
#include <string.h>

/* How a page of feed_page() ends, after its cursor. */
static const char *const tail_more = "\", \"more\": true}";
static const char *const tail_last = "\", \"more\": false}";
static const char *const head_empty = "{\"entries\": [], ";

static enum MHD_Result feeds_answer(HttpRequest *request);
static enum MHD_Result begin_answer(HttpRequest *request);
static enum MHD_Result page_read(HttpRequest *request);
static enum MHD_Result page_answer(HttpRequest *request);
static enum MHD_Result page_woken(HttpRequest *request);
static enum MHD_Result send_page(HttpRequest *request);
static enum MHD_Result send_json(HttpRequest *request, int row,
								 const char *cursor, const char *caching);
static void add_argument(void *arg, const char *name, const char *value);
static enum MHD_Result each_argument(void *arg, enum MHD_ValueKind kind,
									 const char *name, const char *value);
static bool has_etag(const char *list, const char *etag);
static void release_result(void *arg);

enum MHD_Result
http_feeds_begin(HttpRequest *request)
{
	http_pool_read(request, HTTP_READ_FEEDS, false, feeds_answer);
	return MHD_YES;
}

static enum MHD_Result
feeds_answer(HttpRequest *request)
{
	if (request->result->sqlstate[0] != '\0' || request->result->rows == NULL)
		return http_problem_result(request);
	return send_json(request, 0, "feeds", "no-cache");
}

/* GET /feeds/NAME */
enum MHD_Result
http_page_begin(HttpRequest *request)
{
	const char *problem;

	if (!http_request_accepts(http_header(request, "Accept"),
							  "application/json"))
		return http_problem(request, 406, "a feed is application/json");
	problem = http_request_parse(request, request->path + strlen("/feeds/"));
	if (problem != NULL)
		return http_problem(request, 400, problem);

	/* regclass takes numbers and "-" too, which are no names */
	if (*request->feed == '\0' || *request->feed == '-' ||
		(*request->feed >= '0' && *request->feed <= '9'))
		return http_problem(request, 404, "there is no such feed");

	request->deadline = http_now() + request->wait * INT64_C(1000);
	if (*request->after != '\0')
		return page_read(request);
	http_pool_read(request, HTTP_READ_BEGIN, false, begin_answer);
	return MHD_YES;
}

/* The feed's floor is known, if it is an outbox: that is where to begin. */
static enum MHD_Result
begin_answer(HttpRequest *request)
{
	struct MHD_Response *response;
	HttpText	url = {0};
	const char *floor;

	if (request->result->sqlstate[0] != '\0' || request->result->rows == NULL)
		return http_problem_result(request);
	floor = PQgetvalue(request->result->rows, 0, 0);
	if (*floor == '\0')
		return page_read(request);

	http_text_print(&url, "%s?after=%s", request->path, floor);
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
	HttpText   *url = arg;
	static const char *const kept[] = {"limit", "shard", "shards", "wait"};

	for (size_t i = 0; value != NULL && i < lengthof(kept); i++)
		if (strcmp(name, kept[i]) == 0)
			http_text_print(url, "&%s=%.*s", name, (int) strcspn(value, " "),
							value);
}

static enum MHD_Result
page_read(HttpRequest *request)
{
	http_pool_read(request, HTTP_READ_PAGE, request->wait > 0, page_answer);
	return MHD_YES;
}

/* A page has been read: answer, or wait for news if it is empty. */
static enum MHD_Result
page_answer(HttpRequest *request)
{
	const HttpResult *result = request->result;

	if (result->sqlstate[0] != '\0' || result->rows == NULL)
		return http_problem_result(request);
	if (request->wait > 0 && http_now() < request->deadline &&
		strncmp(PQgetvalue(result->rows, 1, 0), head_empty,
				strlen(head_empty)) == 0)
	{
		Oid			feed = strtoul(PQgetvalue(result->rows, 0, 0), NULL, 10);

		request->go_on = page_woken;
		if (http_wait(request, feed, result->started, request->deadline))
		{
			http_log(HTTP_LOG_DEBUG, "a request waits for feed %u", feed);
			return MHD_YES;
		}
		if (!http_server_draining())
			return page_read(request);
	}
	return send_page(request);
}

static enum MHD_Result
page_woken(HttpRequest *request)
{
	return request->woken && !http_server_draining() ? page_read(request) :
													   send_page(request);
}

/* Where the page's cursor is, which has 99 characters, and whether it is full. */
bool
http_page_tail(const HttpResult *result, const char **cursor, bool *more)
{
	const char *page = PQgetvalue(result->rows, 1, 0);
	size_t		length = PQgetlength(result->rows, 1, 0);
	size_t		tail;

	*more = length > strlen(tail_more) &&
		strcmp(page + length - strlen(tail_more), tail_more) == 0;
	tail = strlen(*more ? tail_more : tail_last);
	if (length < tail + 99)
		return false;
	*cursor = page + length - tail - 99;
	return true;
}

static enum MHD_Result
send_page(HttpRequest *request)
{
	const char *kind = strchr(PQgetvalue(request->result->rows, 0, 0), ' ');
	const char *cursor;
	HttpText	caching = {0};
	enum MHD_Result sent;
	bool		more;

	if (!http_page_tail(request->result, &cursor, &more))
		return http_problem(request, 500, "the page has no cursor");
	if (more && kind != NULL && kind[1] == 't' && http_config()->max_age > 0)
		http_text_print(&caching, "%s, max-age=%d, immutable",
						http_header(request, "Authorization") != NULL ?
							"private" :
							"public",
						http_config()->max_age);
	else
		http_text_print(&caching, "no-cache");
	sent = send_json(request, 1, cursor, caching.data);
	free(caching.data);
	return sent;
}

/*
 * Send a row of the result.  The ETag has the cursor, so that two pages of
 * which one has more are never taken for equal, and a hash (FNV-1a) for what
 * else can change: rows that were deleted, columns that were added.
 */
static enum MHD_Result
send_json(HttpRequest *request, int row, const char *cursor,
		  const char *caching)
{
	HttpResult *result = request->result;
	char	   *json = PQgetvalue(result->rows, row, 0);
	size_t		length = PQgetlength(result->rows, row, 0);
	const char *known = http_header(request, "If-None-Match");
	uint64_t	hash = UINT64_C(0xcbf29ce484222325);
	struct MHD_Response *response;
	HttpText	etag = {0};
	bool		same;

	for (size_t i = 0; i < length; i++)
		hash = (hash ^ (unsigned char) json[i]) * UINT64_C(0x100000001b3);
	http_text_print(&etag, "\"%.*s-%016llx\"", (int) strcspn(cursor, "\""),
					cursor, (unsigned long long) hash);
	same = known != NULL && has_etag(known, etag.data);
	if (same)
		response = MHD_create_response_from_buffer(0, "", MHD_RESPMEM_PERSISTENT);
	else
	{
		__sync_add_and_fetch(&result->refs, 1);
		response =
			MHD_create_response_from_buffer_with_free_callback_cls(length, json,
																   release_result,
																   result);
		MHD_add_response_header(response, "Content-Type", "application/json");
	}
	MHD_add_response_header(response, "ETag", etag.data);
	MHD_add_response_header(response, "Cache-Control", caching);
	free(etag.data);
	return http_respond(request, same ? 304 : 200, response);
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
	http_result_release(arg);
}
