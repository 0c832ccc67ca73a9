/*-------------------------------------------------------------------------
 *
 * html.c
 *	  What all pages for people have: their frame, tables, errors.  Here alone
 *	  text becomes HTML.
 *
 * A page is written into the request's text.  All that is not a literal of this
 * source goes through form_html_text() or form_html_url(), names of SQL too.
 * Should something get past them, the Content-Security-Policy runs no script,
 * style or form but those of this server.
 *
 * A page says what it is for its reader at its time, so no cache keeps it.
 * Links are relative, since a proxy may serve this under another path.
 *
 *-------------------------------------------------------------------------
 */
#include "forms/forms.h"

#include <stdlib.h>
#include <string.h>

static const char *entity_of(char c);
static void add_to_root(const HttpRequest *request, BaseText *out);
static void add_headers(HttpRequest *request);
static void add_head(const HttpRequest *request, const char *title, BaseText *out);
static void add_foot(const HttpRequest *request, BaseText *out);
static void add_cell(const HttpRequest *request, const FormColumn *column,
					 const char *value, BaseText *out);

/*
 * How much a client wants a page for people: 0 unless Accept names it, for a
 * client that takes anything is a program.
 */
double
form_html_quality(const char *accept)
{
	return accept != NULL && strcasestr(accept, "text/html") != NULL ?
		http_request_quality(accept, "text/html") :
		0;
}

/* Is it to be a page for people, and not JSON? */
bool
form_html_wanted(const HttpRequest *request)
{
	char	   *accept = http_header_list(request, "Accept");
	bool		wanted = form_html_quality(accept) > http_request_quality(accept, "application/json");

	free(accept);
	return wanted;
}

/* What stands for a character that means something in HTML; NULL: itself. */
static const char *
entity_of(char c)
{
	switch (c)
	{
		case '&':
			return "&amp;";
		case '<':
			return "&lt;";
		case '>':
			return "&gt;";
		case '"':
			return "&quot;";
		case '\'':
			return "&#39;";
		default:
			return NULL;
	}
}

/* Add text: what it says, in an element or in an attribute with quotes. */
void
form_html_text(BaseText *out, const char *text, size_t length)
{
	const char *begin = text;	/* of what has not been added */
	const char *end = text + length;

	for (; text < end; text++)
	{
		const char *entity = entity_of(*text);

		if (entity == NULL)
			continue;
		base_text_add(out, begin, text - begin);
		base_text_add(out, entity, strlen(entity));
		begin = text + 1;
	}
	base_text_add(out, begin, end - begin);
}

/* Add a part of a URL. */
void
form_html_url(BaseText *out, const char *part)
{
	for (; *part != '\0'; part++)
	{
		unsigned char c = *part;

		if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
			c == '-' || c == '_' || c == '.')
			base_text_add(out, part, 1);
		else
			base_text_print(out, "%%%02X", c);
	}
}

/* Add the URL of something with a name, in a folder such as "feeds/". */
void
form_html_link(const HttpRequest *request, const char *folder, const char *name,
			   BaseText *out)
{
	add_to_root(request, out);
	base_text_print(out, "%s", folder);
	form_html_url(out, name);
}

/* The way from the URL of a request to "/", by its slashes. */
static void
add_to_root(const HttpRequest *request, BaseText *out)
{
	base_text_print(out, "./");
	for (const char *c = request->path + 1; *c != '\0'; c++)
		if (*c == '/')
			base_text_print(out, "../");
}

/* The headers, of which an error that follows half a page has no second ones. */
static void
add_headers(HttpRequest *request)
{
	http_add(request, "Content-Security-Policy",
			 "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; "
			 "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'");
	http_add(request, "Referrer-Policy", "same-origin");
	http_add(request, "Cross-Origin-Resource-Policy", "same-origin");
}

static void
add_head(const HttpRequest *request, const char *title, BaseText *out)
{
	base_text_print(out,
					"<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
					"<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
					"<meta name=\"color-scheme\" content=\"light dark\">\n<title>");
	form_html_text(out, title, strlen(title));
	base_text_print(out, " - feedpub</title>\n<link rel=\"icon\" href=\"data:,\">\n<link rel=\"stylesheet\" href=\"");
	add_to_root(request, out);
	base_text_print(out, "%s\">\n<script src=\"", form_assets_style());
	add_to_root(request, out);
	base_text_print(out, "%s\" defer></script>\n</head>\n<body>\n"
						 "<a class=\"skip\" href=\"#main\">Skip to the content</a>\n<header>\n<a class=\"home\" href=\"",
					form_assets_script());
	add_to_root(request, out);
	base_text_print(out, "\">feedpub</a>\n<nav aria-label=\"Site\"><a href=\"");
	add_to_root(request, out);
	base_text_print(out, "feeds\">Feeds</a> <a href=\"");
	add_to_root(request, out);
	base_text_print(out, "openapi.yaml\">API</a></nav>\n</header>\n");
}

static void
add_foot(const HttpRequest *request, BaseText *out)
{
	base_text_print(out, "</main>\n<footer>feedpub-http " FEEDPUB_VERSION);
	if (request->role != NULL)
	{
		base_text_print(out, ", as role <b>");
		form_html_text(out, request->role, strlen(request->role));
		base_text_print(out, "</b>");
	}
	base_text_print(out, "</footer>\n</body>\n</html>\n");
}

/* Begin a page.  One that "refreshes" is loaded again by its script. */
void
form_html_begin(HttpRequest *request, const char *title, bool refreshes)
{
	BaseText   *out = &request->text;

	add_head(request, title, out);
	base_text_print(out, "<main id=\"main\" tabindex=\"-1\"%s>\n<h1>", refreshes ? " data-refresh=\"5\"" : "");
	form_html_text(out, title, strlen(title));
	base_text_print(out, "</h1>\n");
	if (refreshes)
		form_html_live(request);
}

/* What the script shows of itself: without it, nothing. */
void
form_html_live(HttpRequest *request)
{
	base_text_print(&request->text,
					"<p class=\"live\" id=\"live\" hidden><button type=\"button\" aria-pressed=\"false\">Pause</button>"
					" <span role=\"status\"></span> <span class=\"count\"></span></p>\n");
}

/* End the page, and send it. */
void
form_html_send(HttpRequest *request)
{
	BaseText	text = request->text;

	memset(&request->text, 0, sizeof(request->text));
	add_foot(request, &text);
	add_headers(request);
	http_add(request, "Cache-Control", "no-store");
	http_respond_text(request, 200, "text/html; charset=utf-8", &text);
}

/* Has the last statement failed?  Then that is the answer. */
bool
form_html_failed(HttpRequest *request)
{
	if (!db_result_failed(request->waiter.result))
		return false;
	http_problem_result(request);
	return true;
}

/* An error, as a page. */
void
form_html_problem(HttpRequest *request, unsigned status, const char *detail,
				  const char *hint, BaseText *out)
{
	add_headers(request);
	add_head(request, http_phrase(status), out);
	base_text_print(out, "<main id=\"main\" tabindex=\"-1\">\n<h1>%u %s</h1>\n<p>", status, http_phrase(status));
	form_html_text(out, detail, strlen(detail));
	base_text_print(out, "</p>\n");
	if (*hint != '\0')
	{
		base_text_print(out, "<p>Hint: ");
		form_html_text(out, hint, strlen(hint));
		base_text_print(out, "</p>\n");
	}
	if (status == 410)
		base_text_print(out, "<p><a href=\"?\">The newest entries</a></p>\n");
	base_text_print(out, "<p><a href=\"");
	add_to_root(request, out);
	base_text_print(out, "feeds\">All feeds</a></p>\n");
	add_foot(request, out);
}

/*
 * A list of names and values, which are two rows each of the result; those
 * without a value are left out.
 */
void
form_html_facts(HttpRequest *request)
{
	const PGresult *rows = request->waiter.result->rows;
	BaseText   *out = &request->text;

	base_text_print(out, "<dl class=\"facts\">\n");
	for (int i = 0; i + 1 < PQntuples(rows); i += 2)
	{
		if (PQgetisnull(rows, i + 1, 0))
			continue;
		base_text_print(out, "<div><dt>");
		form_html_text(out, PQgetvalue(rows, i, 0), PQgetlength(rows, i, 0));
		base_text_print(out, "</dt><dd>");
		form_html_text(out, PQgetvalue(rows, i + 1, 0), PQgetlength(rows, i + 1, 0));
		base_text_print(out, "</dd></div>\n");
	}
	base_text_print(out, "</dl>\n");
}

/*
 * A table of the result, which has a row for each value.  If there is none,
 * "none" is said, or with NULL nothing.  Where the window is narrow the style
 * shows rows as blocks, in which each value has its name; the roles keep it a
 * table for those who hear it.
 */
void
form_html_table(HttpRequest *request, const char *title, const char *none,
				const FormColumn *columns)
{
	const PGresult *rows = request->waiter.result->rows;
	BaseText   *out = &request->text;
	int			count = 0;

	if (PQntuples(rows) == 0 && none == NULL)
		return;
	base_text_print(out, "<h2>%s</h2>\n", title);
	if (PQntuples(rows) == 0)
	{
		base_text_print(out, "<p>%s</p>\n", none);
		return;
	}
	base_text_print(out, "<table role=\"table\" aria-label=\"%s\">\n<thead role=\"rowgroup\"><tr role=\"row\">", title);
	for (; columns[count].name != NULL; count++)
		base_text_print(out, "<th role=\"columnheader\" scope=\"col\"%s>%s</th>",
						columns[count].kind == FORM_NUMBER ? " class=\"number\"" : "", columns[count].name);
	base_text_print(out, "</tr></thead>\n<tbody role=\"rowgroup\">\n");
	for (int i = 0; i + count <= PQntuples(rows); i += count)
	{
		base_text_print(out, "<tr role=\"row\">");
		for (int j = 0; j < count; j++)
			add_cell(request, &columns[j],
					 PQgetisnull(rows, i + j, 0) ? "" : PQgetvalue(rows, i + j, 0), out);
		base_text_print(out, "</tr>\n");
	}
	base_text_print(out, "</tbody>\n</table>\n");
}

static void
add_cell(const HttpRequest *request, const FormColumn *column, const char *value,
		 BaseText *out)
{
	const char *folder = column->kind == FORM_FEED ? "feeds/" :
		column->kind == FORM_SUBSCRIPTION		   ? "subscriptions/" :
													 NULL;

	base_text_print(out, "<td role=\"cell\" data-name=\"%s\"%s>", column->name,
					column->kind == FORM_NUMBER ? " class=\"number\"" : "");
	if (folder != NULL)
	{
		base_text_print(out, "<a href=\"");
		form_html_link(request, folder, value, out);
		base_text_print(out, "\">");
	}
	form_html_text(out, value, strlen(value));
	base_text_print(out, "%s</td>", folder != NULL ? "</a>" : "");
}
