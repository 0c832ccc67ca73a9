/*-------------------------------------------------------------------------
 *
 * subscription_page.c
 *	  /subscriptions/NAME for people: how far it is, its shards, and its parked
 *	  entries, which can be retried and discarded.
 *
 * The buttons are forms of the requests that write/subscription.c takes, each
 * with a secret (server/forgery.c).
 *
 *-------------------------------------------------------------------------
 */
#include "forms/forms.h"

#include <stdlib.h>
#include <string.h>

/* parked entries of a page, and bytes of a message that are read */
#define ENTRIES 100

static const DbStatement facts = {
	.nargs = 1,
	.text =
		"SELECT u.v FROM feedpub.subscriptions s"
		" CROSS JOIN LATERAL ROWS FROM (pg_catalog.unnest(ARRAY['Feed', s.feed::pg_catalog.text,"
		"	'Owner', s.owner::pg_catalog.text, 'State', CASE WHEN s.expired THEN 'expired' ELSE 'ready' END,"
		"	'Rows after it', s.lag_rows OPERATOR(pg_catalog.||) CASE WHEN s.lag_more THEN ' or more' ELSE '' END,"
		"	'Lag', coalesce(pg_catalog.date_trunc('milliseconds', s.lag)::pg_catalog.text, 'none'),"
		"	'Last acknowledged', coalesce("
		"	pg_catalog.date_trunc('seconds', pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) s.last_ack)::pg_catalog.text OPERATOR(pg_catalog.||) ' ago', 'never'),"
		"	'Shards leased', pg_catalog.concat(s.leased, ' of ', s.shards),"
		"	'Consumers', s.consumers::pg_catalog.text, 'Parked', s.parked::pg_catalog.text,"
		"	'Lease', s.lease::pg_catalog.text, 'Attempts at most', s.max_attempts::pg_catalog.text,"
		"	'Backoff', pg_catalog.array_to_string(s.backoff, ', '),"
		"	'Delayed messages', CASE WHEN s.delayed THEN 'yes' END,"
		"	'Types', pg_catalog.array_to_string(s.types, ', '), 'Committed cursor', s.cursor]))"
		"	WITH ORDINALITY u (v, n)"
		" WHERE s.name OPERATOR(pg_catalog.=) $1 ORDER BY u.n"};

static const DbStatement shards = {
	.nargs = 1,
	.text =
		"SELECT u.v FROM (SELECT * FROM feedpub.shards s WHERE s.subscription OPERATOR(pg_catalog.=) $1"
		"	ORDER BY s.shard LIMIT 1000) s"
		" CROSS JOIN LATERAL ROWS FROM (pg_catalog.unnest(ARRAY[s.shard::pg_catalog.text, s.consumer,"
		"	pg_catalog.date_trunc('seconds', s.leased_until OPERATOR(pg_catalog.-) pg_catalog.clock_timestamp())::pg_catalog.text,"
		"	pg_catalog.date_trunc('seconds', pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) s.last_ack)::pg_catalog.text OPERATOR(pg_catalog.||) ' ago', s.parked::pg_catalog.text, s.cursor])) WITH ORDINALITY u (v, n)"
		" ORDER BY s.shard, u.n"};

static const FormColumn shard_columns[] = {
	{"Shard", FORM_NUMBER}, {"Consumer"}, {"Leased for"}, {"Last acknowledged"}, {"Parked", FORM_NUMBER}, {"Committed cursor"}, {0}};

/*
 * Those that come again only after a decision are first.  Of each shard no more
 * are read than can be shown, for a million may wait until they are due.  The
 * bounds of the others are from subqueries, of which the planner expects few
 * rows: so it looks into the index, and not through the table.
 */
static const DbStatement parked = {
	.nargs = 1,
	.text =
		"SELECT u.v FROM (SELECT p.* FROM feedpub.shards s, LATERAL ("
		"		(SELECT * FROM feedpub.parked p WHERE p.subscription OPERATOR(pg_catalog.=) $1"
		"			AND p.shard OPERATOR(pg_catalog.=) s.shard AND p.retry_at IS NULL LIMIT 100)"
		"		UNION ALL (SELECT * FROM feedpub.parked p WHERE p.subscription OPERATOR(pg_catalog.=) $1"
		"			AND p.shard OPERATOR(pg_catalog.=) s.shard"
		"			AND p.retry_at OPERATOR(pg_catalog.>=) (SELECT '-infinity'::pg_catalog.timestamptz)"
		"			AND p.retry_at OPERATOR(pg_catalog.<=) (SELECT 'infinity'::pg_catalog.timestamptz) LIMIT 100)) p"
		"	WHERE s.subscription OPERATOR(pg_catalog.=) $1"
		"	ORDER BY p.retry_at NULLS FIRST, p.cursor LIMIT 100) p"
		" CROSS JOIN LATERAL ROWS FROM (pg_catalog.unnest(ARRAY[p.cursor, p.op, p.relation,"
		"	pg_catalog.left(p.key::pg_catalog.text, 300), p.state, p.attempts::pg_catalog.text, pg_catalog.left(p.reason, 1000),"
		"	pg_catalog.date_trunc('seconds', pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) p.parked_at)::pg_catalog.text OPERATOR(pg_catalog.||) ' ago',"
		"	CASE WHEN pg_catalog.isfinite(p.retry_at) THEN pg_catalog.date_trunc('seconds',"
		"		p.retry_at OPERATOR(pg_catalog.-) pg_catalog.clock_timestamp())::pg_catalog.text"
		"	ELSE p.retry_at::pg_catalog.text END,"
		"	pg_catalog.left(p.message::pg_catalog.text, 16384)])) WITH ORDINALITY u (v, n)"
		" ORDER BY p.retry_at NULLS FIRST, p.cursor, u.n"};

/* What it has of an entry, in this order. */
typedef enum Parked
{
	PARKED_CURSOR,
	PARKED_OP,
	PARKED_RELATION,
	PARKED_KEY,
	PARKED_STATE,
	PARKED_ATTEMPTS,
	PARKED_REASON,
	PARKED_AGE,
	PARKED_RETRY,
	PARKED_MESSAGE,
	PARKED_COUNT
} Parked;

static char *name_of(const HttpRequest *request);
static void run(HttpRequest *request, const DbStatement *statement,
				void (*go_on)(HttpRequest *request));
static void facts_answer(HttpRequest *request);
static void shards_answer(HttpRequest *request);
static void parked_answer(HttpRequest *request);
static void add_parked(HttpRequest *request, const char *name, const char *secret, int row);
static void add_value(HttpRequest *request, const char *label, int row);
static void add_button(HttpRequest *request, const char *name, const char *secret,
					   const char *action, const char *label, const char *cursor);

/* GET /subscriptions/NAME */
void
form_subscription_page_begin(HttpRequest *request)
{
	run(request, &facts, facts_answer);
}

/* The name, for free(). */
static char *
name_of(const HttpRequest *request)
{
	const char *name = request->path + strlen("/subscriptions/");

	return http_request_decode(name, strlen(name));
}

static void
run(HttpRequest *request, const DbStatement *statement, void (*go_on)(HttpRequest *request))
{
	char	   *name = name_of(request);
	const char *arguments[DB_MAX_ARGUMENTS] = {name};

	http_run(request, statement, arguments, go_on);
	free(name);
}

static void
facts_answer(HttpRequest *request)
{
	char	   *name;

	if (form_html_failed(request))
		return;
	if (PQntuples(request->waiter.result->rows) == 0)
	{
		http_problem(request, 404, "there is no such subscription");
		return;
	}
	name = name_of(request);
	form_html_begin(request, name, true);
	free(name);
	form_html_facts(request);
	run(request, &shards, shards_answer);
}

static void
shards_answer(HttpRequest *request)
{
	if (form_html_failed(request))
		return;
	form_html_table(request, "Shards", NULL, shard_columns);
	run(request, &parked, parked_answer);
}

static void
parked_answer(HttpRequest *request)
{
	BaseText   *out = &request->text;
	char	   *name;
	char	   *secret;
	int			count;

	if (form_html_failed(request))
		return;
	count = PQntuples(request->waiter.result->rows) / PARKED_COUNT;
	base_text_print(out, "<h2>Parked entries</h2>\n");
	if (count == 0)
		base_text_print(out, "<p>There is none.</p>\n");
	else
	{
		name = name_of(request);
		secret = http_forgery_secret(request, name);
		add_button(request, name, secret, "retry", "Retry all", NULL);
		base_text_print(out, "<ol class=\"entries\">\n");
		for (int i = 0; i < count; i++)
			add_parked(request, name, secret, i * PARKED_COUNT);
		base_text_print(out, "</ol>\n");
		if (count == ENTRIES)
			base_text_print(out, "<p>These are the first 100.</p>\n");
		free(secret);
		free(name);
	}
	form_html_send(request);
}

static void
add_parked(HttpRequest *request, const char *name, const char *secret, int row)
{
	const PGresult *rows = request->waiter.result->rows;
	const char *cursor = PQgetvalue(rows, row + PARKED_CURSOR, 0);
	const char *message = PQgetvalue(rows, row + PARKED_MESSAGE, 0);
	BaseText   *out = &request->text;

	base_text_print(out, "<li><details><summary>");
	add_value(request, "op", row + PARKED_OP);
	add_value(request, "type", row + PARKED_RELATION);
	if (PQgetisnull(rows, row + PARKED_RELATION, 0))
		form_entry_add_type(out, message, strlen(message));
	add_value(request, "key", row + PARKED_KEY);
	add_value(request, "state", row + PARKED_STATE);
	add_value(request, "reason", row + PARKED_REASON);
	base_text_print(out, "</summary>\n<p>Attempts that failed: %s; parked ", PQgetvalue(rows, row + PARKED_ATTEMPTS, 0));
	form_html_text(out, PQgetvalue(rows, row + PARKED_AGE, 0), PQgetlength(rows, row + PARKED_AGE, 0));
	if (!PQgetisnull(rows, row + PARKED_RETRY, 0))
	{
		base_text_print(out, "; is due in ");
		form_html_text(out, PQgetvalue(rows, row + PARKED_RETRY, 0), PQgetlength(rows, row + PARKED_RETRY, 0));
	}
	base_text_print(out, "</p>\n");
	if (!PQgetisnull(rows, row + PARKED_MESSAGE, 0))
	{
		base_text_print(out, "<pre>");
		form_entry_add_json(out, message, strlen(message));
		base_text_print(out, "</pre>\n");
	}
	base_text_print(out, "</details>\n");
	add_button(request, name, secret, "retry", "Retry", cursor);
	add_button(request, name, secret, "discard", "Discard", cursor);
	base_text_print(out, "</li>\n");
}

/* A value of an entry in its line, cut by the style. */
static void
add_value(HttpRequest *request, const char *class, int row)
{
	const PGresult *rows = request->waiter.result->rows;
	BaseText   *out = &request->text;

	if (PQgetisnull(rows, row, 0))
		return;
	base_text_print(out, "<span class=\"%s\">", class);
	form_html_text(out, PQgetvalue(rows, row, 0), PQgetlength(rows, row, 0));
	base_text_print(out, "</span> ");
}

/* A button that does something about an entry, or about all. */
static void
add_button(HttpRequest *request, const char *name, const char *secret,
		   const char *action, const char *label, const char *cursor)
{
	BaseText   *out = &request->text;

	base_text_print(out, "<form class=\"button\" method=\"post\" action=\"");
	form_html_link(request, "subscriptions/", name, out);
	base_text_print(out, "/%s\"><input type=\"hidden\" name=\"secret\" value=\"", action);
	form_html_text(out, secret, strlen(secret));
	if (cursor != NULL)
	{
		base_text_print(out, "\"><input type=\"hidden\" name=\"cursor\" value=\"");
		form_html_text(out, cursor, strlen(cursor));
	}
	base_text_print(out, "\"><button class=\"%s\">%s</button></form>\n", action, label);
}
