/*-------------------------------------------------------------------------
 *
 * problem.c
 *	  Errors, as application/problem+json.
 *
 * An error that a client can do something about says what the database says.
 * Any other is in the log, and says nothing of the database.
 *
 *-------------------------------------------------------------------------
 */
#include "http.h"

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
	{"25006", 405},
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
	{"55", 503},
	{"57", 503},
};

static const char *
title(unsigned status)
{
	switch (status)
	{
		case 400:
			return "Bad Request";
		case 401:
			return "Unauthorized";
		case 403:
			return "Forbidden";
		case 404:
			return "Not Found";
		case 405:
			return "Method Not Allowed";
		case 406:
			return "Not Acceptable";
		case 409:
			return "Conflict";
		case 410:
			return "Gone";
		case 413:
			return "Content Too Large";
		case 503:
			return "Service Unavailable";
		default:
			return "Internal Server Error";
	}
}

static enum MHD_Result
respond(HttpRequest *request, unsigned status, const char *detail,
		const char *sqlstate)
{
	HttpText	text = {0};
	struct MHD_Response *response;

	http_text_print(&text, "{\"title\": \"%s\", \"status\": %u, \"detail\": ",
					title(status), status);
	http_text_json(&text, detail);
	if (sqlstate != NULL)
		http_text_print(&text, ", \"sqlstate\": \"%s\"", sqlstate);
	/* a subscription is moved by feed_seek() */
	if (status == 410 && request->subscription == NULL)
	{
		http_text_print(&text, ", \"begin\": ");
		http_text_json(&text, request->path);
	}
	http_text_print(&text, "}\n");
	response = http_response_text(&text, "application/problem+json");
	MHD_add_response_header(response, "Cache-Control", "no-store");
	if (status == 503)
		MHD_add_response_header(response, "Retry-After", "1");
	if (status == 401)
		MHD_add_response_header(response, "WWW-Authenticate", request->has_token ? "Bearer error=\"invalid_token\"" : "Bearer");
	if (status == 405)
		MHD_add_response_header(response, "Allow", request->allowed);
	return http_respond(request, status, response);
}

/* Answer with an error. */
enum MHD_Result
http_problem(HttpRequest *request, unsigned status, const char *detail)
{
	return respond(request, status, detail, NULL);
}

/* Answer with the error that is the request's result. */
enum MHD_Result
http_problem_result(HttpRequest *request)
{
	const HttpResult *result = request->result;
	unsigned	status = 500;

	if (result->sqlstate[0] == '\0')
		return http_problem(request, 503, "the database cannot be reached");
	for (size_t i = 0; i < lengthof(statuses); i++)
	{
		const char *sqlstate = statuses[i].sqlstate;

		if (strncmp(sqlstate, result->sqlstate, strlen(sqlstate)) == 0)
		{
			status = statuses[i].status;
			break;
		}
	}
	if (status == 403)
	{
		/* what it says can name what the client did not */
		http_log(HTTP_LOG_INFO, "%s: %s: %s", request->path, result->sqlstate,
				 result->message);
		if (!request->has_token && http_config()->key != NULL)
			status = 401;
		return respond(request, status, "permission denied", result->sqlstate);
	}
	if (status < 500)
		return respond(request, status, result->message, result->sqlstate);
	http_log(HTTP_LOG_ERROR, "%s: %s: %s", request->path, result->sqlstate,
			 result->message);
	return respond(request, status, status == 503 ? "the database cannot answer now" : "the database could not answer", result->sqlstate);
}
