/*-------------------------------------------------------------------------
 *
 * page.c
 *	  A page of a feed, and what caches may keep of it.
 *
 * Caching.  A full page of an outbox ("more") is final, since what is after a
 * cursor never changes.  So is one of a change feed: its marks of moments tell
 * of what a reader has got by then, which stays true (read/changes.c).  A full
 * page of a table feed is not, but what has been changed in it since comes again
 * after it.  It may be kept for a quarter of
 * the time for which deletes are retained, so that a consumer that is led by
 * pages out of a cache has three quarters to get past the deletes.  Any other
 * page is to be asked for again, with its ETag.
 *
 * The beginning is a redirect, never kept, to a URL with the cursor of the
 * floor, which names the history and the start of the server.  Of an outbox
 * that is where to begin; of a table feed, which is read from its beginning,
 * the argument "begin" only makes another URL.  When a consumer is refused, the
 * floor has moved past its cursor, or another history or server start serves
 * the feed.  So it begins at another URL, and no cache leads it to the old
 * cursors again: those of a table feed have the number of the batch that the
 * first page saw.
 *
 *-------------------------------------------------------------------------
 */
#include "forms/forms.h"

#include <stdlib.h>
#include <string.h>

static void page_answer(HttpRequest *request);
static bool frame_page(HttpRequest *request, FormPage *page, BaseText *body);
static uint64_t hash_of(const BaseText *text);
static inline void add_words(uint64_t *lanes, const uint64_t *words);
static inline uint64_t mix(uint64_t lane, uint64_t word);
static bool has_etag(const char *list, const char *etag);

const DbStatement form_page_statement = {
	.text =
		"SELECT feedpub._page_lines($1::pg_catalog.regclass, $2, $3::pg_catalog.int4,"
		"	$4::pg_catalog.int4, $5::pg_catalog.int4, $6::pg_catalog.text[])",
	.nargs = 6,
	.feed = form_feed_of};

const Form	form_page = {.type = "application/json",
						 .statement = &form_page_statement,
						 .frame = frame_page,
						 .begin = form_page_begin};

/* Read a page, or wait for it, and answer. */
void
form_page_begin(HttpRequest *request)
{
	form_page_wait(request, page_answer);
}

void
form_page_wait(HttpRequest *request, void (*go_on)(HttpRequest *request))
{
	const FormRead *read = request->state;

	if (read->wait > 0)
		form_wait(request, InvalidOid, 0, base_now() + read->wait, go_on);
	else
		form_run(request, read->form->statement, go_on);
}

static void
page_answer(HttpRequest *request)
{
	const Form *form = form_read_of(request)->form;
	BaseText	caching = {0};
	FormPage	page;

	if (db_result_failed(request->waiter.result))
	{
		http_problem_result(request);
		return;
	}
	form_page_open(request->waiter.result, &page);

	/* what it has passed is all hidden; nothing would be taken for the end */
	if (form->is_http_feeds && page.length == 0 && page.more)
	{
		form_go_on(request, &page);
		form_page_begin(request);
		return;
	}
	form_caching(request, &page, &caching);
	if (request->waiter.result->body.data == NULL)
		form->frame(request, &page, &request->waiter.result->body);
	form_send(request, page.cursor, caching.data, form->type);
	free(caching.data);
}

static bool
frame_page(HttpRequest *request, FormPage *page, BaseText *body)
{
	const char *separator = "";
	const char *entry;
	size_t		length;

	base_text_room(body, page->length + page->length / 64 + 256);
	base_text_print(body, "{\"entries\": [");
	while ((entry = form_page_next(page, &length)) != NULL)
	{
		base_text_add(body, separator, strlen(separator));
		base_text_add(body, entry, length);
		separator = ", ";
	}
	base_text_print(body, "], \"cursor\": \"%.*s\", \"more\": %s%s}",
					page->cursor_length, page->cursor,
					page->more ? "true" : "false",
					!page->is_changes ? "" :
						page->moment  ? ", \"moment\": true" :
										", \"moment\": false");
	return true;
}

/* How long a page may be kept. */
void
form_caching(HttpRequest *request, const FormPage *page, BaseText *caching)
{
	const FormRead *read = request->state;
	long		age = http_config()->max_age;
	const char *scope = request->is_private ? "private" : "public";

	if (!page->is_outbox && page->retention >= 0 && page->retention / 4 < age)
		age = page->retention / 4;
	if (page->more && age > 0 &&
		(*read->after != '\0' || (!page->is_outbox && read->begins)))
		base_text_print(caching, "%s, max-age=%ld%s", scope, age,
						page->is_outbox ? ", immutable" : "");
	else
		base_text_print(caching, "no-cache");
}

/*
 * Send the body of the result.  The ETag has the cursor and whether there is
 * more, for two pages of which one has are not equal: a cache would keep the
 * other one's headers, for ever.  It has a hash for what else can change: rows
 * that were deleted, columns that were added.
 */
void
form_send(HttpRequest *request, const char *cursor, const char *caching,
		  const char *type)
{
	DbResult   *result = request->waiter.result;
	char	   *known = http_header_list(request, "If-None-Match");
	int			length = strcspn(cursor, " ");
	bool		more = strncmp(cursor + length, " more ", 6) == 0;
	BaseText	etag = {0};

	if (result->hash == 0)
		result->hash = hash_of(&result->body);
	base_text_print(&etag, "\"%.*s%s-%016llx\"", length, cursor, more ? "+" : "",
					(unsigned long long) result->hash);
	http_add(request, "ETag", "%s", etag.data);
	http_add(request, "Cache-Control", "%s", caching);
	if (known != NULL && has_etag(known, etag.data))
		http_respond(request, 304);
	else
		http_respond_shared(request, type);
	free(known);
	free(etag.data);
}

/*
 * A hash of a text; never 0.  In four lanes, of eight bytes each, since a
 * multiplication waits for the one before in its lane.
 */
static uint64_t
hash_of(const BaseText *text)
{
	uint64_t	lanes[4] = {text->length, 1, 2, 3};
	uint64_t	words[4];
	size_t		i = 0;

	for (; text->length - i >= sizeof(words); i += sizeof(words))
	{
		memcpy(words, text->data + i, sizeof(words));
		add_words(lanes, words);
	}
	memset(words, 0, sizeof(words));
	memcpy(words, text->data + i, text->length - i);
	add_words(lanes, words);
	return mix(mix(mix(lanes[0], lanes[1]), lanes[2]), lanes[3]) | 1;
}

static inline void
add_words(uint64_t *lanes, const uint64_t *words)
{
	lanes[0] = mix(lanes[0], words[0]);
	lanes[1] = mix(lanes[1], words[1]);
	lanes[2] = mix(lanes[2], words[2]);
	lanes[3] = mix(lanes[3], words[3]);
}

static inline uint64_t
mix(uint64_t lane, uint64_t word)
{
	return (lane ^ word ^ lane >> 32) * UINT64_C(0x9e3779b97f4a7c15);
}

/* Is an ETag in the list of an If-None-Match? */
static bool
has_etag(const char *list, const char *etag)
{
	const char *found = strstr(list, etag);

	return found != NULL || strcmp(list, "*") == 0;
}
