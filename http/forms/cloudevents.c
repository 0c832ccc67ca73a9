/*-------------------------------------------------------------------------
 *
 * cloudevents.c
 *	  A page as an array of CloudEvents, as http-feeds.org has it.
 *
 * A consumer goes on after the last event that it has got, and takes a page
 * without events for the end.  So if what a page has passed is all hidden from
 * the reader, the next page is read at once: page.c.
 *
 *-------------------------------------------------------------------------
 */
#include "forms/forms.h"

#include <string.h>

static bool frame_events(HttpRequest *request, FormPage *page, BaseText *body);

static const DbStatement statement = {
	.text =
		"SELECT feedpub._page_events($1::pg_catalog.regclass, $2, $3::pg_catalog.int4,"
		"	$4::pg_catalog.int4, $5::pg_catalog.int4, $6::pg_catalog.text[])",
	.nargs = 6,
	.feed = form_feed_of};

const Form	form_cloudevents = {.type = "application/cloudevents-batch+json",
								.statement = &statement,
								.is_http_feeds = true,
								.frame = frame_events,
								.begin = form_page_begin};

static bool
frame_events(HttpRequest *request, FormPage *page, BaseText *body)
{
	const char *separator = "[";
	const char *event;
	size_t		length;

	base_text_room(body, page->length + page->length / 64 + 256);
	while ((event = form_page_next(page, &length)) != NULL)
	{
		base_text_add(body, separator, strlen(separator));
		base_text_add(body, event, length);
		separator = ", ";
	}
	base_text_print(body, *separator == '[' ? "[]" : "]");
	return true;
}
