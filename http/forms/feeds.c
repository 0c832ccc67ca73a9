/*-------------------------------------------------------------------------
 *
 * feeds.c
 *	  GET /feeds: the list of feeds.  GET /feeds/NAME: a feed, in the form that
 *	  Accept asks for, and where a consumer begins.
 *
 *-------------------------------------------------------------------------
 */
#include "forms/forms.h"

#include <stdlib.h>
#include <string.h>

static const DbStatement list_statement = {
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

/* Of equal quality, the first. */
static const Form *const forms[] = {
	&form_page, &form_events, &form_lines, &form_cloudevents, &form_entries};

static void list_answer(HttpRequest *request);
static void begin_answer(HttpRequest *request);

/* GET /feeds */
void
form_list_begin(HttpRequest *request)
{
	if (form_html_wanted(request))
		form_overview_begin(request);
	else
		http_run(request, &list_statement, NULL, list_answer);
}

static void
list_answer(HttpRequest *request)
{
	DbResult   *result = request->waiter.result;

	if (db_result_failed(result))
	{
		http_problem_result(request);
		return;
	}
	if (result->body.data == NULL)
		base_text_print(&result->body, "%s", PQgetvalue(result->rows, 0, 0));
	form_send(request, "feeds", "no-cache", "application/json");
}

/* GET /feeds/NAME */
void
form_feed_begin(HttpRequest *request)
{
	char	   *accept = http_header_list(request, "Accept");
	const Form *form = NULL;
	const char *problem;
	FormRead   *read;
	double		best = 0;

	for (size_t i = 0; i < lengthof(forms); i++)
	{
		double		quality = forms[i] == &form_entries ?
			form_html_quality(accept) :
			http_request_quality(accept, forms[i]->type);

		if (quality > best)
		{
			best = quality;
			form = forms[i];
		}
	}
	free(accept);
	if (form == NULL)
	{
		http_problem(request, 406, "a feed is application/json, text/event-stream, "
								   "application/x-ndjson or application/cloudevents-batch+json");
		return;
	}
	problem = form_parse(request, request->path + strlen("/feeds/"), form);
	read = request->state;
	if (problem != NULL)
		http_problem(request, 400, problem);
	else if (!form_is_name(read->feed))
		http_problem(request, 404, "there is no such feed");

	else if (form == &form_entries)
		form->begin(request);

	/* if it were read again while it waits, it would never find anything */
	else if (strcmp(read->after, "latest") == 0)
		form_run(request, &head_statement, begin_answer);
	else if (form->begin != form_page_begin || *read->after != '\0' || read->begins)
		form->begin(request);
	else
		form_run(request, &begin_statement, begin_answer);
}

/* The feed's floor or head is known: send the consumer to where it begins. */
static void
begin_answer(HttpRequest *request)
{
	static const char *const kept[] = {"limit", "shard", "shards", "type", "wait", "timeout"};
	const FormRead *read = request->state;
	const char *name = read->form->is_http_feeds ? "lastEventId" : "after";
	BaseText	url = {0};
	const char *begin;

	if (db_result_failed(request->waiter.result))
	{
		http_problem_result(request);
		return;
	}
	if (PQntuples(request->waiter.result->rows) == 0)
	{
		form_page_begin(request);	/* no feed, which this says */
		return;
	}
	begin = PQgetvalue(request->waiter.result->rows, 0, 0);
	if (strncmp(begin, "table ", 6) == 0)
		name = "begin";
	/* relative, since a proxy may serve this under another path */
	base_text_print(&url, "?%s=%s", name, strchr(begin, ' ') + 1);
	for (int i = 0; i < request->argument_count; i++)
		for (size_t j = 0; j < lengthof(kept); j++)
		{
			const HttpField *argument = &request->arguments[i];

			if (argument->value != NULL && strcmp(argument->name, kept[j]) == 0)
				base_text_print(&url, "&%s=%s", kept[j], argument->value);
		}
	http_add(request, "Location", "%s", url.data);
	http_add(request, "Cache-Control", "no-store");
	free(url.data);
	http_respond(request, 307);
}
