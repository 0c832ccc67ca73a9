/*-------------------------------------------------------------------------
 *
 * request.c
 *	  What a request says: names, arguments, Accept.
 *
 * libmicrohttpd gives paths and arguments as they were sent (server.c sees to
 * that), for its own decoding ends a string at "%00" and lets what is
 * malformed pass.
 *
 *-------------------------------------------------------------------------
 */
#include "http.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char *take_wait(HttpRequest *request, const char *name, int unit);
static bool take_number(const char *value, long least, long most, long *number);

/* Decode what is percent-encoded; NULL if it is malformed or has a NUL. */
char *
http_request_decode(const char *string, size_t length)
{
	char	   *decoded = base_alloc(length + 1);
	size_t		end = 0;

	for (size_t i = 0; i < length; i++)
	{
		int			c = (unsigned char) string[i];

		if (c == '%')
		{
			int			high = i + 1 < length ? base_hex(string[i + 1]) : -1;
			int			low = i + 2 < length ? base_hex(string[i + 2]) : -1;

			c = high < 0 || low < 0 ? 0 : high * 16 + low;
			i += 2;
		}
		if (c == '\0')
		{
			free(decoded);
			return NULL;
		}
		decoded[end++] = c;
	}
	return decoded;
}

/* Decode an argument into *value, NULL if it is not there. */
const char *
http_request_argument(HttpRequest *request, const char *name, char **value)
{
	const char *raw = MHD_lookup_connection_value(request->connection,
												  MHD_GET_ARGUMENT_KIND, name);

	*value = NULL;
	if (raw == NULL)
		return NULL;
	*value = http_request_decode(raw, strlen(raw));
	return *value == NULL ? "an argument is not percent-encoded correctly" : NULL;
}

static bool
take_number(const char *value, long least, long most, long *number)
{
	char	   *end;

	if (*value < '0' || *value > '9' || strlen(value) > 9)
		return false;
	*number = strtol(value, &end, 10);
	return *end == '\0' && *number >= least && *number <= most;
}

/*
 * Take the name of a feed, as it was sent, and the arguments of a read.
 * Returns what is wrong, or NULL.
 */
const char *
http_request_parse(HttpRequest *request, const char *name)
{
	char	   *limit = NULL;
	const char *problem;
	long		number;

	request->feed = http_request_decode(name, strlen(name));
	if (request->feed == NULL)
		return "the path is not percent-encoded correctly";
	if ((problem = http_request_argument(request, "after", &request->after)) != NULL ||
		(problem = http_request_argument(request, "shard", &request->shard)) != NULL ||
		(problem = http_request_argument(request, "shards", &request->shards)) != NULL)
		return problem;
	if ((request->shard != NULL && !take_number(request->shard, 0, INT32_MAX, &number)) ||
		(request->shards != NULL && !take_number(request->shards, 1, INT32_MAX, &number)))
		return "arguments \"shard\" and \"shards\" must be numbers";
	if (request->after == NULL)
		request->after = base_copy("");
	if (request->format == HTTP_FORMAT_CLOUDEVENTS)
	{
		char	   *last;

		problem = http_request_argument(request, "lastEventId", &last);
		if (problem != NULL)
			return problem;
		if (last != NULL)
		{
			free(request->after);
			request->after = last;
			if (strcmp(last, "null") == 0)
				*last = '\0';
		}
	}
	if (request->format == HTTP_FORMAT_EVENTS)
	{
		/* an EventSource that reconnects has its first URL, and goes on */
		const char *last = http_header(request, "Last-Event-ID");

		if (last != NULL)
		{
			free(request->after);
			request->after = base_copy(last);
		}
	}

	if (strcmp(request->after, "earliest") == 0)
		*request->after = '\0';
	problem = http_request_argument(request, "limit", &limit);
	number = 100;
	if (problem == NULL && limit != NULL && !take_number(limit, 1, INT32_MAX, &number))
		problem = "argument \"limit\" must be a number, at least 1";
	if (number > http_config()->max_limit)
		number = http_config()->max_limit;
	snprintf(request->limit, sizeof(request->limit), "%d", (int) number);
	free(limit);
	if (problem != NULL)
		return problem;

	problem = take_wait(request, "wait", 1000);
	if (problem == NULL && request->format == HTTP_FORMAT_CLOUDEVENTS)
		problem = take_wait(request, "timeout", 1);
	return problem;
}

/* Take an argument that says how long to wait, in a unit of so many ms. */
static const char *
take_wait(HttpRequest *request, const char *name, int unit)
{
	char	   *wait;
	const char *problem = http_request_argument(request, name, &wait);
	long		most = http_config()->max_wait * 1000L;
	long		number;

	if (problem != NULL || wait == NULL)
		return problem;
	if (take_number(wait, 0, INT32_MAX, &number))
		request->wait = number * unit < most ? number * unit : most;
	else
		problem = "arguments \"wait\" and \"timeout\" must be numbers, of seconds and of milliseconds";
	free(wait);
	return problem;
}

/* May this name a feed?  regclass takes numbers and "-" too, which do not. */
bool
http_request_is_name(const char *name)
{
	return *name != '\0' && *name != '-' && (*name < '0' || *name > '9');
}

/* The parameter q of a range of an Accept header. */
static double
range_quality(const char *range, size_t length)
{
	const char *end = range + length;

	while ((range = memchr(range, ';', end - range)) != NULL)
	{
		range++;
		range += strspn(range, " \t");
		if (strncasecmp(range, "q=", 2) == 0)
			return strtod(range + 2, NULL);
	}
	return 1;
}

/*
 * The quality that an Accept header gives a type, 0 if it refuses it.  Of the
 * ranges that match the type the most exact one decides.
 */
double
http_request_quality(const char *accept, const char *type)
{
	size_t		family = strcspn(type, "/") + 1;
	double		quality = 0;
	int			exactness = 0;

	if (accept == NULL)
		return 1;
	for (const char *range = accept; *range != '\0';)
	{
		size_t		whole = strcspn(range, ",");
		const char *next = range + whole + (range[whole] == ',' ? 1 : 0);
		size_t		length;
		int			exact = 0;

		while (whole > 0 && (*range == ' ' || *range == '\t'))
		{
			range++;
			whole--;
		}
		length = strcspn(range, ";, \t");
		if (length == strlen(type) && strncasecmp(range, type, length) == 0)
			exact = 3;
		else if (length == family + 1 && range[family] == '*' &&
				 strncasecmp(range, type, family) == 0)
			exact = 2;
		else if (length == 3 && strncmp(range, "*/*", 3) == 0)
			exact = 1;
		if (exact > exactness)
		{
			exactness = exact;
			quality = range_quality(range, whole);
		}
		range = next;
	}
	return quality;
}
