/*-------------------------------------------------------------------------
 *
 * documents.c
 *	  GET / and GET /openapi.yaml: what is served here.
 *
 *-------------------------------------------------------------------------
 */
#include "http.h"

#include "forms/forms.h"

static const char openapi[] = {
/* docs/openapi.yaml: the Makefile */
#include "openapi.inc"
};

static void answer(HttpRequest *request, const char *type, BaseText *text);

/* Relative, since a proxy may serve this under another path. */
void
http_index_begin(HttpRequest *request)
{
	BaseText	text = {0};

	if (form_html_wanted(request))
	{
		/* this form of it has something of the database */
		if (http_token_take(request))
			form_overview_begin(request);
		return;
	}
	base_text_print(&text, "{\"feeds\": \"./feeds\", \"documentation\": \"./openapi.yaml\"}\n");
	http_add(request, "Link", "<./openapi.yaml>; rel=\"service-desc\"; type=\"application/yaml\"");
	answer(request, "application/json", &text);
}

void
http_openapi_begin(HttpRequest *request)
{
	BaseText	text = {0};

	base_text_add(&text, openapi, sizeof(openapi));
	answer(request, "application/yaml", &text);
}

static void
answer(HttpRequest *request, const char *type, BaseText *text)
{
	http_add(request, "Cache-Control", "no-cache");
	http_respond_text(request, 200, type, text);
}
