/*-------------------------------------------------------------------------
 *
 * routes.c
 *	  Which resources there are.
 *
 *-------------------------------------------------------------------------
 */
#include "http.h"

#include <stdlib.h>
#include <string.h>

#include "forms/forms.h"
#include "write/write.h"

typedef struct Route
{
	const char *path;			/* "/" after something: with a name after it */
	const char *methods;		/* as Allow says them */
	void (*begin)(HttpRequest *request);
	bool		is_open;		/* to everybody: it has nothing of the database */
} Route;

static void stream_begin(HttpRequest *request);

static const Route routes[] = {
	{"/", "GET, HEAD, OPTIONS", http_index_begin, true},
	{"/openapi.yaml", "GET, HEAD, OPTIONS", http_openapi_begin, true},
	{"/assets/", "GET, HEAD, OPTIONS", form_assets_begin, true},
	{"/feeds", "GET, HEAD, OPTIONS", form_list_begin},
	{"/feeds/", "GET, HEAD, OPTIONS", form_feed_begin},
	{"/streams/", "GET, HEAD, POST, OPTIONS", stream_begin},
	{"/subscriptions/", "GET, HEAD, POST, OPTIONS", http_subscription_begin},
};

static const Route *find_route(const char *path);
static bool is_allowed(const Route *route, const char *method);
static void answer_options(HttpRequest *request);

/* A request is complete: find what it is for. */
void
http_route(HttpRequest *request)
{
	const Route *route = find_route(request->path);

	base_log(BASE_LOG_DEBUG, "%s %s", request->method, request->path);
	request->allowed = route != NULL ? route->methods : NULL;
	free(request->share);
	request->share = http_share(request->path);
	if (form_html_wanted(request))
		request->problem_page = form_html_problem;
	if (request->is_refused)
		http_problem(request, 503, "there are too many connections");
	else if (route == NULL)
		http_problem(request, 404, "there is no such resource");
	else if (!is_allowed(route, request->method))
		http_problem(request, 405, "this method is not allowed here");
	else if (strcmp(request->method, "OPTIONS") == 0)
		answer_options(request);
	else if (strcmp(request->method, "POST") == 0 && http_origin_foreign(request))
		http_problem(request, 403, "pages of this origin may not write");
	else if (request->body.length > HTTP_MAX_BODY)
		http_problem(request, 413, "the body is too large");
	else if (route->is_open || http_token_take(request))
		route->begin(request);
}

static void
stream_begin(HttpRequest *request)
{
	if (strcmp(request->method, "POST") == 0)
		http_append_begin(request);
	else
		form_durable_begin(request);
}

static const Route *
find_route(const char *path)
{
	for (size_t i = 0; i < lengthof(routes); i++)
	{
		size_t		length = strlen(routes[i].path);

		if (length > 1 && routes[i].path[length - 1] == '/' ?
				strncmp(path, routes[i].path, length) == 0 :
				strcmp(path, routes[i].path) == 0)
			return &routes[i];
	}
	return NULL;
}

static bool
is_allowed(const Route *route, const char *method)
{
	size_t		length = strlen(method);

	for (const char *m = route->methods; m != NULL;
		 m = strchr(m, ' ') != NULL ? strchr(m, ' ') + 1 : NULL)
		if (strncmp(m, method, length) == 0 && (m[length] == ',' || m[length] == '\0'))
			return true;
	return false;
}

static void
answer_options(HttpRequest *request)
{
	http_add(request, "Allow", "%s", request->allowed);
	if (http_origin_allowed(http_header(request, "Origin")))
	{
		http_add(request, "Access-Control-Allow-Methods", "%s", request->allowed);
		http_add(request, "Access-Control-Allow-Headers",
				 "Authorization, Content-Type, If-None-Match, "
				 "Last-Event-ID, Message-Key, Message-Type");
		http_add(request, "Access-Control-Max-Age", "86400");
	}
	http_respond(request, 204);
}
