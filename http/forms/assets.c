/*-------------------------------------------------------------------------
 *
 * assets.c
 *	  GET /assets/NAME: the style and the script of the pages for people.
 *
 * The name has a hash of what is in it, so caches may keep it for ever, and a
 * page never gets that of another version.
 *
 *-------------------------------------------------------------------------
 */
#include "forms/forms.h"

#include <stdio.h>
#include <string.h>

static const char style[] = {
/* http/pages/: the Makefile */
#include "pages/style.inc"
};

static const char script[] = {
#include "pages/script.inc"
};

#define NAME_LENGTH 40

static const char *name_of(char *name, const char *data, size_t length, const char *end);

const char *
form_assets_style(void)
{
	static char name[NAME_LENGTH];

	return name_of(name, style, sizeof(style), "css");
}

const char *
form_assets_script(void)
{
	static char name[NAME_LENGTH];

	return name_of(name, script, sizeof(script), "js");
}

/* The name by which it is served, made once: FNV-1a. */
static const char *
name_of(char *name, const char *data, size_t length, const char *end)
{
	uint64_t	hash = UINT64_C(0xcbf29ce484222325);

	if (*name != '\0')
		return name;
	for (size_t i = 0; i < length; i++)
		hash = (hash ^ (unsigned char) data[i]) * UINT64_C(0x100000001b3);
	snprintf(name, NAME_LENGTH, "assets/%016llx.%s", (unsigned long long) hash, end);
	return name;
}

/* GET /assets/NAME */
void
form_assets_begin(HttpRequest *request)
{
	bool		is_style = strcmp(request->path + 1, form_assets_style()) == 0;
	BaseText	text = {0};

	if (!is_style && strcmp(request->path + 1, form_assets_script()) != 0)
	{
		http_problem(request, 404, "there is no such resource");
		return;
	}
	if (is_style)
		base_text_add(&text, style, sizeof(style));
	else
		base_text_add(&text, script, sizeof(script));
	http_add(request, "Cache-Control", "public, max-age=31536000, immutable");
	http_respond_text(request, 200, is_style ? "text/css; charset=utf-8" : "text/javascript; charset=utf-8", &text);
}
