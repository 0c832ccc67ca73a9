/*-------------------------------------------------------------------------
 *
 * response.c
 *	  Responses: what all of them have.  connection.c sends them.
 *
 *-------------------------------------------------------------------------
 */
#include "server/server.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const struct
{
	unsigned	status;
	const char *phrase;
} phrases[] = {
	{200, "OK"},
	{204, "No Content"},
	{303, "See Other"},
	{304, "Not Modified"},
	{307, "Temporary Redirect"},
	{400, "Bad Request"},
	{401, "Unauthorized"},
	{403, "Forbidden"},
	{404, "Not Found"},
	{405, "Method Not Allowed"},
	{406, "Not Acceptable"},
	{408, "Request Timeout"},
	{409, "Conflict"},
	{410, "Gone"},
	{413, "Content Too Large"},
	{414, "URI Too Long"},
	{431, "Request Header Fields Too Large"},
	{500, "Internal Server Error"},
	{501, "Not Implemented"},
	{503, "Service Unavailable"},
	{505, "HTTP Version Not Supported"},
};

static uint64_t responses[6];	/* by the first digit of the status */

static void add_common(HttpRequest *request);

const char *
http_phrase(unsigned status)
{
	for (size_t i = 0; i < lengthof(phrases); i++)
		if (phrases[i].status == status)
			return phrases[i].phrase;
	return "";
}

/* Add a header to the response. */
void
http_add(HttpRequest *request, const char *name, const char *format, ...)
{
	char		small[256];
	char	   *value = small;
	va_list		arguments;
	int			length;

	va_start(arguments, format);
	length = vsnprintf(small, sizeof(small), format, arguments);
	va_end(arguments);
	if (length >= (int) sizeof(small))
	{
		value = base_alloc(length + 1);
		va_start(arguments, format);
		vsnprintf(value, length + 1, format, arguments);
		va_end(arguments);
	}
	base_text_print(&request->fields, "%s: %s\r\n", name, value);
	if (value != small)
		free(value);
}

/* Headers of all responses; those of the admin listener have fewer. */
static void
add_common(HttpRequest *request)
{
	const char *origin = http_header(request, "Origin");

	http_add(request, "X-Content-Type-Options", "nosniff");
	http_add(request, "Vary", *http_config()->cors_origins ? "Accept, Authorization, Origin" : "Accept, Authorization");
	if (http_origin_allowed(origin))
	{
		http_add(request, "Access-Control-Allow-Origin", "%s", origin);
		http_add(request, "Access-Control-Expose-Headers",
				 "ETag, Feed-Moment, Location, Retry-After, Stream-Cursor, "
				 "Stream-Next-Offset, Stream-SSE-Data-Encoding, "
				 "Stream-Up-To-Date");
	}
}

/* Answer without a body. */
void
http_respond(HttpRequest *request, unsigned status)
{
	request->status = status;
	if (!request->is_public)
		return;
	add_common(request);
	if (status / 100 < lengthof(responses))
		responses[status / 100]++;
}

/* Answer with a text, which is taken. */
void
http_respond_text(HttpRequest *request, unsigned status, const char *type,
				  BaseText *text)
{
	free(request->text.data);
	request->text = *text;
	memset(text, 0, sizeof(*text));
	http_add(request, "Content-Type", "%s", type);
	http_respond(request, status);
}

/* Answer with the body of the request's result, which others may have too. */
void
http_respond_shared(HttpRequest *request, const char *type)
{
	request->shared = request->waiter.result;
	request->shared->refs++;
	http_add(request, "Content-Type", "%s", type);
	http_respond(request, 200);
}

/* Answer with what a function adds, each time that the client has taken it. */
void
http_respond_stream(HttpRequest *request, const char *type,
					HttpMore (*more)(HttpRequest *request, BaseText *out))
{
	request->more = more;
	http_add(request, "Content-Type", "%s", type);
	http_respond(request, 200);
}

/*
 * Log a request that has ended.  The arguments of its URL are not logged: they
 * can be secrets, and of any length.
 */
void
http_response_log(const HttpRequest *request)
{
	BaseText	text = {0};

	if (request->status < (unsigned) http_config()->log_requests)
		return;
	base_log_begin(&text, request->status >= 500 ? BASE_LOG_WARNING : BASE_LOG_INFO);
	base_text_print(&text, "\"request\" method=");
	base_text_json(&text, request->method != NULL ? request->method : "");
	base_text_print(&text, " path=");
	base_text_json(&text, request->path != NULL ? request->path : "");
	base_text_print(&text, " status=%u ms=%lld", request->status,
					(long long) (base_now() - request->began));
	base_log_end(&text);
}

/* Responses whose status has this first digit. */
uint64_t
http_responses(int family)
{
	return responses[family];
}
