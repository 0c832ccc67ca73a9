/*-------------------------------------------------------------------------
 *
 * problem.c
 *	  Errors, as application/problem+json, or as a page for a person.
 *
 * An error that a client can do something about says what the database says:
 * the message and its DETAIL are "detail", its HINT is "hint".  Any other is in
 * the log, and says nothing of the database.
 *
 * "type" is about:blank, so "title" is the phrase of the status.  What tells
 * errors of one status apart is "sqlstate".  With 410, "begin" is the URL at
 * which to begin again, relative to that of the request, since a proxy may serve
 * it under another path.
 *
 *-------------------------------------------------------------------------
 */
#include "server/server.h"

#include <stdlib.h>
#include <string.h>

static const struct
{
	const char *sqlstate;		/* or the beginning of one */
	unsigned	status;
} statuses[] = {
	{"PF001", 410},
	{"PF002", 410},
	{"PF003", 409},
	{"PF005", 409},
	{"25006", 503},				/* a standby, until it is promoted */
	{"28000", 403},
	{"42501", 403},
	{"42704", 404},
	{"42809", 404},
	{"42P01", 404},
	{"3F000", 404},
	{"42601", 404},
	{"42602", 404},
	{"0A000", 400},
	{"22", 400},
	{"23", 400},
	{"P0001", 400},
	{"08", 503},
	{"40", 503},
	{"53", 503},
	{"54001", 413},				/* of a body, as JSON that is nested too deeply */
	{"55", 503},
	{"57", 503},
};

static const char *
field(const DbResult *result, int code)
{
	const char *value = PQresultErrorField(result->error, code);

	return value != NULL ? value : "";
}

/* Add the object. */
static void
add_json(const HttpRequest *request, unsigned status, const char *detail,
		 const char *hint, const DbResult *result, BaseText *text)
{
	BaseText	begin = {0};

	base_text_print(text, "{\"type\": \"about:blank\", \"title\": \"%s\", \"status\": %u, \"detail\": ",
					http_phrase(status), status);
	base_text_json(text, detail);
	if (*hint != '\0')
	{
		base_text_print(text, ", \"hint\": ");
		base_text_json(text, hint);
	}
	if (result != NULL)
		base_text_print(text, ", \"sqlstate\": \"%s\"", result->sqlstate);
	/* a subscription is moved by feed_seek() */
	if (status == 410 && strncmp(request->path, "/subscriptions/", 15) != 0)
	{
		base_text_print(&begin, "./%s", strrchr(request->path, '/') + 1);
		base_text_print(text, ", \"begin\": ");
		base_text_json(text, begin.data);
		free(begin.data);
	}
	base_text_print(text, "}\n");
}

/* detail is NULL if it is what the result's error says. */
static void
respond(HttpRequest *request, unsigned status, const char *detail,
		const DbResult *result)
{
	const char *type = "application/problem+json";
	const char *hint = detail == NULL ? field(result, PG_DIAG_MESSAGE_HINT) : "";
	BaseText	text = {0};
	BaseText	message = {0};

	if (detail == NULL)
	{
		base_text_print(&message, "%s", field(result, PG_DIAG_MESSAGE_PRIMARY));
		if (*field(result, PG_DIAG_MESSAGE_DETAIL) != '\0')
			base_text_print(&message, ". %s", field(result, PG_DIAG_MESSAGE_DETAIL));
		detail = message.data;
	}
	http_add(request, "Cache-Control", "no-store");
	if (request->problem_page != NULL)
	{
		type = "text/html; charset=utf-8";
		request->problem_page(request, status, detail, hint, &text);
	}
	else
		add_json(request, status, detail, hint, result, &text);
	free(message.data);
	if (status == 503)
		http_add(request, "Retry-After", "1");
	if (status == 401)
		http_add(request, "WWW-Authenticate", request->has_token ? "Bearer error=\"invalid_token\"" : "Bearer");
	if (status == 405)
		http_add(request, "Allow", "%s", request->allowed);
	http_respond_text(request, status, type, &text);
}

/* Answer with an error. */
void
http_problem(HttpRequest *request, unsigned status, const char *detail)
{
	respond(request, status, detail, NULL);
}

/* Answer with the error that is the request's result. */
void
http_problem_result(HttpRequest *request)
{
	const DbResult *result = request->waiter.result;
	unsigned	status = 500;

	if (result->sqlstate[0] == '\0')
	{
		http_problem(request, 503, "the database cannot be reached");
		return;
	}
	for (size_t i = 0; i < lengthof(statuses) && status == 500; i++)
		if (strncmp(statuses[i].sqlstate, result->sqlstate, strlen(statuses[i].sqlstate)) == 0)
			status = statuses[i].status;
	/* without a body it is the feed that is so */
	if (status == 413 && request->body.length == 0)
		status = 500;
	if (status < 500 && status != 403)
	{
		respond(request, status, NULL, result);
		return;
	}

	base_log(status == 403 ? BASE_LOG_INFO : BASE_LOG_ERROR, "%s: %s: %s",
			 request->path, result->sqlstate,
			 field(result, PG_DIAG_MESSAGE_PRIMARY));
	/* what a refusal says can name what the client did not */
	if (status == 403)
		respond(request, !request->has_token && http_config()->key != NULL ? 401 : 403,
				"permission denied", result);
	else
		respond(request, status,
				strcmp(result->sqlstate, "25006") == 0 ? "the database is read-only now, as a standby is" :
					status == 503					   ? "the database cannot answer now" :
														 "the database could not answer",
				result);
}
