/*-------------------------------------------------------------------------
 *
 * request.c
 *	  What a request says: headers, arguments, Accept.
 *
 *-------------------------------------------------------------------------
 */
#include "server/server.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/*
 * bytes of the bodies of all requests: many clients that send theirs slowly
 * cannot take all memory
 */
#define MAX_BODIES (64 * 1024 * 1024)

static size_t bodies;

/* what is wrong with an argument */
#define NOT_ENCODED "an argument is not percent-encoded correctly"

HttpRequest *
http_request_new(void)
{
	HttpRequest *request = base_alloc(sizeof(HttpRequest));

	request->began = base_now();
	request->share = base_copy("");
	return request;
}

/* Free a request that waits for nothing. */
void
http_request_free(HttpRequest *request)
{
	if (request->state != NULL)
		request->free_state(request->state);
	db_result_release(request->waiter.result);
	db_result_release(request->shared);
	free(request->head.data);
	free(request->headers);
	free(request->arguments);
	free(request->body.data);
	bodies -= request->body_bytes;
	free(request->share);
	free(request->role);
	free(request->claims);
	free(request->subject);
	free(request->fields.data);
	free(request->text.data);
	free(request);
}

/*
 * More of the body has come.  Of what is too long no more is kept.  Returns
 * false if there is no room for it.
 */
bool
http_request_add_body(HttpRequest *request, const char *data, size_t length)
{
	if (request->body.length > HTTP_MAX_BODY)
		return true;
	if (length > MAX_BODIES - bodies)
		return false;
	bodies += length;
	request->body_bytes += length;
	base_text_add(&request->body, data, length);
	return true;
}

/* The value of a header, the first one if there are several, or NULL. */
const char *
http_header(const HttpRequest *request, const char *name)
{
	for (int i = 0; i < request->header_count; i++)
		if (strcasecmp(request->headers[i].name, name) == 0)
			return request->headers[i].value;
	return NULL;
}

int
http_header_count(const HttpRequest *request, const char *name)
{
	int			count = 0;

	for (int i = 0; i < request->header_count; i++)
		count += strcasecmp(request->headers[i].name, name) == 0;
	return count;
}

/* The values of a header that is a list, as one, for free(); NULL if none. */
char *
http_header_list(const HttpRequest *request, const char *name)
{
	BaseText	list = {0};

	for (int i = 0; i < request->header_count; i++)
		if (strcasecmp(request->headers[i].name, name) == 0)
			base_text_print(&list, "%s%s", list.length > 0 ? ", " : "",
							request->headers[i].value);
	return list.data;
}

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

/* Decode the value of an argument; NULL if it is malformed or has a NUL. */
static char *
decode_value(const char *raw)
{
	char	   *spaced = base_copy(raw);
	char	   *value;

	for (char *c = spaced; *c != '\0'; c++)
		if (*c == '+')
			*c = ' ';
	value = http_request_decode(spaced, strlen(spaced));
	free(spaced);
	return value;
}

/*
 * Decode an argument into *value, NULL if it is not there.  Returns what is
 * wrong, or NULL.
 */
const char *
http_request_argument(const HttpRequest *request, const char *name, char **value)
{
	const char *raw = NULL;

	*value = NULL;
	for (int i = 0; i < request->argument_count; i++)
	{
		const HttpField *argument = &request->arguments[i];

		if (strcmp(argument->name, name) != 0 || argument->value == NULL)
			continue;
		if (raw != NULL)
			return "an argument is given twice";
		raw = argument->value;
	}
	if (raw == NULL)
		return NULL;
	*value = decode_value(raw);
	return *value == NULL ? NOT_ENCODED : NULL;
}

/*
 * The same for one that may be given several times; *array becomes an array of
 * texts, as the database has it.
 */
const char *
http_request_list(const HttpRequest *request, const char *name, char **array)
{
	BaseText	list = {0};

	*array = NULL;
	for (int i = 0; i < request->argument_count; i++)
	{
		const HttpField *argument = &request->arguments[i];
		char	   *value;

		if (strcmp(argument->name, name) != 0 || argument->value == NULL)
			continue;
		value = decode_value(argument->value);
		if (value == NULL)
		{
			free(list.data);
			return NOT_ENCODED;
		}
		base_text_print(&list, "%s\"", list.length > 0 ? "," : "{");
		for (const char *c = value; *c != '\0'; c++)
			base_text_print(&list, "%s%c", *c == '"' || *c == '\\' ? "\\" : "", *c);
		base_text_print(&list, "\"");
		free(value);
	}
	if (list.length > 0)
		base_text_print(&list, "}");
	*array = list.data;
	return NULL;
}

/*
 * Does the request say that its body is JSON?  A page of another origin cannot
 * send that without asking first, as it can send forms.
 */
bool
http_request_is_json(const HttpRequest *request)
{
	static const char type[] = "application/json";
	const char *given = http_header(request, "Content-Type");

	return given != NULL && strcspn(given, "; \t") == strlen(type) &&
		strncasecmp(given, type, strlen(type)) == 0;
}

/*
 * The value of a field of an HTML form, for free(); NULL if it is not there, or
 * malformed.
 */
char *
http_request_form(const HttpRequest *request, const char *name)
{
	size_t		length = strlen(name);
	char	   *value = NULL;

	for (const char *field = request->body.data; value == NULL && field != NULL && *field != '\0';)
	{
		size_t		whole = strcspn(field, "&");

		if (whole > length && strncmp(field, name, length) == 0 && field[length] == '=')
		{
			BaseText	raw = {0};

			base_text_add(&raw, field + length + 1, whole - length - 1);
			value = decode_value(raw.data);
			free(raw.data);
			if (value == NULL)
				return NULL;
		}
		field += whole + (field[whole] == '&' ? 1 : 0);
	}
	return value;
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

	/* an empty one is none */
	if (accept == NULL || accept[strspn(accept, " \t,")] == '\0')
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
