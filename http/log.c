/*-------------------------------------------------------------------------
 *
 * log.c
 *	  The log: a line an event on standard error, key=value.
 *
 *-------------------------------------------------------------------------
 */
#include "http.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

static const char *const level_names[] = {"debug", "info", "warning", "error"};

static HttpLogLevel least = HTTP_LOG_INFO;

/* Log what has this level or a higher one. */
void
http_log_level(const char *level)
{
	for (size_t i = 0; i < lengthof(level_names); i++)
		if (strcasecmp(level, level_names[i]) == 0)
			least = i;
}

/*
 * Messages can have what a client sent: control characters become spaces, so
 * that a client cannot write a line of the log.
 */
void
http_log(HttpLogLevel level, const char *format, ...)
{
	HttpText	text = {0};
	char		when[32];
	time_t		now = time(NULL);
	struct tm parts;
	char		message[1024];
	va_list		arguments;

	if (level < least)
		return;
	strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &parts));
	va_start(arguments, format);
	vsnprintf(message, sizeof(message), format, arguments);
	va_end(arguments);
	for (char *c = message; *c != '\0'; c++)
		if ((unsigned char) *c < ' ' || *c == 0x7f)
			*c = ' ';
	http_text_print(&text, "time=%s level=%s message=", when, level_names[level]);
	http_text_json(&text, message);
	http_text_add(&text, "\n", 1);
	fputs(text.data, stderr);
	free(text.data);
}

/*
 * Log a request that has ended.  The arguments of its URL are not logged: they
 * can be secrets, and of any length.
 */
void
http_log_request(const HttpRequest *request)
{
	HttpText	text = {0};
	char		when[32];
	time_t		now = time(NULL);
	struct tm parts;

	if (request->status < (unsigned) http_config()->log_requests)
		return;
	strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &parts));
	http_text_print(&text, "time=%s level=%s message=\"request\" method=", when,
					level_names[request->status >= 500 ? HTTP_LOG_WARNING : HTTP_LOG_INFO]);
	http_text_json(&text, request->method);
	http_text_print(&text, " path=");
	http_text_json(&text, request->path);
	http_text_print(&text, " status=%u ms=%lld\n", request->status,
					(long long) (http_now() - request->began));
	fputs(text.data, stderr);
	free(text.data);
}
