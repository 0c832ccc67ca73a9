/*-------------------------------------------------------------------------
 *
 * entries.c
 *	  /feeds/NAME for people: a feed's state, its subscriptions, and its entries:
 *	  the newest, which go on as new ones come, or those after a cursor.
 *
 * The script reads what comes later as an event stream of the same URL.  It
 * begins at the cursor at which this page ends, so nothing is missed.
 *
 *-------------------------------------------------------------------------
 */
#include "forms/forms.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* entries of a page, if the URL does not say it, and at most */
#define ENTRIES 25
#define MAX_ENTRIES 100

/* bytes of a page after which entries are only named */
#define MAX_PAGE (1024 * 1024)

static const DbStatement facts = {
	.nargs = 1,
	.text =
		"SELECT u.v FROM (SELECT pg_catalog.pg_size_pretty(f.size) AS bytes,"
		"		pg_catalog.round(f.rows_per_second::pg_catalog.numeric, 1)::pg_catalog.text AS rate,"
		"		f.*, w.waiting"
		"	FROM feedpub.feeds f"
		"	JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) f.feed"
		"	JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace"
		"	LEFT JOIN feedpub.waiting w ON w.feed OPERATOR(pg_catalog.=) f.feed"
		"	WHERE f.feed OPERATOR(pg_catalog.=) $1::pg_catalog.regclass AND"
		"		(pg_catalog.has_any_column_privilege(c.oid, 'SELECT')"
		"			AND pg_catalog.has_schema_privilege(n.oid, 'USAGE')"
		"			OR pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE'))) f"
		" CROSS JOIN LATERAL ROWS FROM (pg_catalog.unnest(ARRAY['Kind', f.kind, 'Owner', f.owner::pg_catalog.text,"
		"	'Type of data', f.payload_type, 'Key', pg_catalog.array_to_string(f.key, ', '),"
		"	'State', f.state, 'Worker', f.worker, 'Rows/s', f.rate, 'Size', f.bytes,"
		"	'Last position', f.\"position\"::pg_catalog.text,"
		"	'Last published',"
		"		pg_catalog.date_trunc('seconds', pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) f.last_published)::pg_catalog.text OPERATOR(pg_catalog.||) ' ago',"
		"	'Rows that wait in xid order', f.waiting::pg_catalog.text,"
		"	'Kept for', f.keep::pg_catalog.text, 'Kept at most for', f.max_age::pg_catalog.text,"
		"	'Kept bytes at most', pg_catalog.pg_size_pretty(f.max_size),"
		"	'Floor', coalesce(f.floor, 'nothing removed'), 'Floor moved',"
		"		pg_catalog.date_trunc('seconds', pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) f.floor_moved_at)::pg_catalog.text OPERATOR(pg_catalog.||) ' ago',"
		"	'Oldest batch after the floor',"
		"		pg_catalog.date_trunc('seconds', pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) f.oldest)::pg_catalog.text OPERATOR(pg_catalog.||) ' ago',"
		"	'Held back by', f.held_by])) WITH ORDINALITY u (v, n)"
		" ORDER BY u.n"};

/* Without a cursor, the newest. */
static const DbStatement statement = {
	.nargs = 6,
	.text =
		"SELECT feedpub._page_lines($1::pg_catalog.regclass,"
		"	CASE WHEN $2 OPERATOR(pg_catalog.=) 'latest'"
		"		THEN feedpub._newest($1::pg_catalog.regclass, $3::pg_catalog.int4) ELSE $2 END,"
		"	$3::pg_catalog.int4, $4::pg_catalog.int4, $5::pg_catalog.int4, $6::pg_catalog.text[])"};

static void begin(HttpRequest *request);
static void facts_answer(HttpRequest *request);
static void subscriptions_answer(HttpRequest *request);
static void entries_answer(HttpRequest *request);
static void add_controls(HttpRequest *request, const FormPage *page);
static void add_entries(BaseText *out, FormPage *page, bool reverse);
static void add_next(HttpRequest *request, const FormPage *page);
static void add_arguments(const HttpRequest *request, BaseText *out);

const Form	form_entries = {.type = "text/html", .statement = &statement, .begin = begin};

static void
begin(HttpRequest *request)
{
	FormRead   *read = request->state;
	const char *arguments[DB_MAX_ARGUMENTS] = {read->feed};
	bool		has_after = false;
	int			limit = ENTRIES;

	for (int i = 0; i < request->argument_count; i++)
	{
		const char *name = request->arguments[i].name;
		const char *value = request->arguments[i].value;

		if (strcmp(name, "after") == 0 && value != NULL && *value != '\0')
			has_after = true;
		else if (strcmp(name, "limit") == 0 && value != NULL)
			limit = atoi(read->limit);
	}
	snprintf(read->limit, sizeof(read->limit), "%d", limit < MAX_ENTRIES ? limit : MAX_ENTRIES);

	/* a form sends empty fields, too */
	if (read->types != NULL && strcmp(read->types, "{\"\"}") == 0)
	{
		free(read->types);
		read->types = NULL;
	}
	if (!has_after)
	{
		free(read->after);
		read->after = base_copy("latest");
	}
	http_run(request, &facts, arguments, facts_answer);
}

static void
facts_answer(HttpRequest *request)
{
	const FormRead *read = request->state;
	const char *arguments[DB_MAX_ARGUMENTS] = {read->feed};

	if (form_html_failed(request))
		return;
	form_html_begin(request, read->feed, false);
	form_html_facts(request);
	http_run(request, &form_overview_subscription, arguments, subscriptions_answer);
}

static void
subscriptions_answer(HttpRequest *request)
{
	if (form_html_failed(request))
		return;
	form_html_table(request, "Subscriptions", NULL, form_overview_subscriptions);
	form_run(request, &statement, entries_answer);
}

static void
entries_answer(HttpRequest *request)
{
	const FormRead *read = request->state;
	bool		is_newest = strcmp(read->after, "latest") == 0;
	BaseText   *out = &request->text;
	FormPage	page;

	if (form_html_failed(request))
		return;
	form_page_open(request->waiter.result, &page);
	base_text_print(out, "<h2>%s</h2>\n", is_newest ? "Newest entries, the newest first" : "Entries, in their order");
	add_controls(request, &page);
	if (is_newest && !page.more)
		form_html_live(request);
	if (page.length == 0)
		base_text_print(out, "<p id=\"none\">There is none%s.</p>\n", page.more ? " in this part of the feed" : "");
	base_text_print(out, "<ol class=\"entries\" id=\"entries\"");
	if (is_newest)
		base_text_print(out, " data-after=\"%.*s\"", page.cursor_length, page.cursor);
	base_text_print(out, ">\n");
	add_entries(out, &page, is_newest);
	base_text_print(out, "</ol>\n");
	add_next(request, &page);
	form_html_send(request);
}

/* Where to begin, and with what. */
static void
add_controls(HttpRequest *request, const FormPage *page)
{
	const FormRead *read = request->state;
	BaseText   *out = &request->text;

	base_text_print(out, "<p class=\"links\"><a href=\"?\">Newest</a> <a href=\"?after=earliest\">From the beginning</a></p>\n"
						 "<form class=\"filter\" method=\"get\"><label>After the cursor <input name=\"after\" value=\"");
	if (strcmp(read->after, "latest") != 0)
		form_html_text(out, read->after, strlen(read->after));
	base_text_print(out, "\" autocomplete=\"off\" spellcheck=\"false\"></label> ");
	if (page->is_outbox)
	{
		char	   *type;

		base_text_print(out, "<label>%s <input name=\"type\" value=\"", page->is_changes ? "Relation" : "Type");
		if (http_request_argument(request, "type", &type) == NULL && type != NULL)
			form_html_text(out, type, strlen(type));
		free(type);
		base_text_print(out, "\" autocomplete=\"off\" spellcheck=\"false\"></label> ");
	}
	base_text_print(out, "<button>Show</button></form>\n");
}

/* The entries of a page, in reverse if the newest come first. */
static void
add_entries(BaseText *out, FormPage *page, bool reverse)
{
	const char *entries[MAX_ENTRIES];
	size_t		lengths[MAX_ENTRIES];
	int			count = 0;

	while (count < MAX_ENTRIES &&
		   (entries[count] = form_page_next(page, &lengths[count])) != NULL)
		count++;
	for (int i = 0; i < count; i++)
	{
		int			n = reverse ? count - 1 - i : i;

		if (out->length < MAX_PAGE)
			form_entry_add(out, entries[n], lengths[n]);
		else
			base_text_print(out, "<li>An entry of %zu bytes, for which there is no room here</li>\n", lengths[n]);
	}
}

static void
add_next(HttpRequest *request, const FormPage *page)
{
	BaseText   *out = &request->text;

	if (!page->more)
		return;
	base_text_print(out, "<p class=\"links\"><a rel=\"next\" href=\"?after=%.*s", page->cursor_length, page->cursor);
	add_arguments(request, out);
	base_text_print(out, "\">Entries after these</a></p>\n");
}

/* The other arguments of the request, as they were sent. */
static void
add_arguments(const HttpRequest *request, BaseText *out)
{
	static const char *const kept[] = {"limit", "shard", "shards", "type"};

	for (int i = 0; i < request->argument_count; i++)
		for (size_t j = 0; j < lengthof(kept); j++)
		{
			const HttpField *argument = &request->arguments[i];

			if (argument->value == NULL || strcmp(argument->name, kept[j]) != 0)
				continue;
			base_text_print(out, "&amp;%s=", kept[j]);
			form_html_text(out, argument->value, strlen(argument->value));
		}
}
