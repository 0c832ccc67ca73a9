/*-------------------------------------------------------------------------
 *
 * read.c
 *	  What a request reads of a feed: arguments, and the parts of a page.
 *
 *-------------------------------------------------------------------------
 */
#include "forms/forms.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void free_read(void *state);
static bool take_number(const char *value, long least, long most, long *number);
static const char *take_after(HttpRequest *request);
static const char *take_shard(HttpRequest *request);
static const char *take_limit(HttpRequest *request);
static const char *take_wait(HttpRequest *request, const char *name, int unit);

FormRead *
form_read_of(const HttpRequest *request)
{
	return request->state;
}

static void
free_read(void *state)
{
	FormRead   *read = state;

	free(read->feed);
	free(read->after);
	free(read->shard);
	free(read->shards);
	free(read->types);
	free(read->own);
	free(read);
}

static bool
take_number(const char *value, long least, long most, long *number)
{
	char	   *end;

	if (*value < '0' || *value > '9' || strlen(value) > 9)
		return false;
	*number = strtol(value, &end, 10);
	return *end == '\0' && *number >= least && *number <= most;
}

/*
 * Take the name of a feed, as it was sent, and the arguments of a read.
 * Returns what is wrong, or NULL.
 */
const char *
form_parse(HttpRequest *request, const char *name, const Form *form)
{
	FormRead   *read = base_alloc(sizeof(FormRead));
	const char *problem;

	request->state = read;
	request->free_state = free_read;
	read->form = form;
	read->end = INT64_MAX;
	read->feed = http_request_decode(name, strlen(name));
	if (read->feed == NULL)
		return "the path is not percent-encoded correctly";
	for (int i = 0; i < request->argument_count; i++)
		if (strcmp(request->arguments[i].name, "begin") == 0)
			read->begins = true;
	if ((problem = take_after(request)) != NULL ||
		(problem = take_shard(request)) != NULL ||
		(problem = http_request_list(request, "type", &read->types)) != NULL ||
		(problem = take_limit(request)) != NULL ||
		(problem = take_wait(request, "wait", 1000)) != NULL)
		return problem;
	return form->is_http_feeds ? take_wait(request, "timeout", 1) : NULL;
}

/*
 * The cursor.  An EventSource that connects again has its first URL, and the id
 * of its last event in a header.
 */
static const char *
take_after(HttpRequest *request)
{
	FormRead   *read = request->state;
	const char *name = read->form->last_id;
	const char *header = name != NULL ? http_header(request, name) : NULL;
	char	   *last = NULL;
	const char *problem = http_request_argument(request, "after", &read->after);

	if (problem == NULL && read->form->is_http_feeds)
		problem = http_request_argument(request, "lastEventId", &last);
	if (last != NULL && strcmp(last, "null") == 0)
		*last = '\0';
	if (last == NULL)
		last = base_copy(header);
	if (last != NULL)
	{
		free(read->after);
		read->after = last;
	}
	if (read->after == NULL)
		read->after = base_copy("");
	if (strcmp(read->after, "earliest") == 0)
		*read->after = '\0';
	return problem;
}

static const char *
take_shard(HttpRequest *request)
{
	FormRead   *read = request->state;
	const char *problem = http_request_argument(request, "shard", &read->shard);
	long		number;

	if (problem == NULL)
		problem = http_request_argument(request, "shards", &read->shards);
	if (problem != NULL)
		return problem;
	if ((read->shard != NULL && !take_number(read->shard, 0, INT32_MAX, &number)) ||
		(read->shards != NULL && !take_number(read->shards, 1, INT32_MAX, &number)))
		return "arguments \"shard\" and \"shards\" must be numbers";
	if ((read->shard == NULL) != (read->shards == NULL))
		return "arguments \"shard\" and \"shards\" are needed both";
	return NULL;
}

static const char *
take_limit(HttpRequest *request)
{
	FormRead   *read = request->state;
	char	   *limit;
	const char *problem = http_request_argument(request, "limit", &limit);
	long		number = 100;

	/* whatever is larger than the largest page */
	if (limit != NULL && strlen(limit) > 9 && limit[strspn(limit, "0123456789")] == '\0')
		number = INT32_MAX;
	else if (limit != NULL && !take_number(limit, 1, INT32_MAX, &number))
		problem = "argument \"limit\" must be a number, at least 1";
	if (number > http_config()->max_limit)
		number = http_config()->max_limit;
	snprintf(read->limit, sizeof(read->limit), "%d", (int) number);
	free(limit);
	return problem;
}

/* How long to wait, in a unit of so many ms. */
static const char *
take_wait(HttpRequest *request, const char *name, int unit)
{
	FormRead   *read = request->state;
	char	   *wait;
	const char *problem = http_request_argument(request, name, &wait);
	long		most = http_config()->max_wait * 1000L;
	long		number;

	if (wait == NULL)
		return problem;
	if (take_number(wait, 0, INT32_MAX, &number))
		read->wait = number * unit < most ? number * unit : most;
	else
		problem = "arguments \"wait\" and \"timeout\" must be numbers, of seconds and of milliseconds";
	free(wait);
	return problem;
}

/* May this name a feed?  regclass takes numbers and "-" too, which do not. */
bool
form_is_name(const char *name)
{
	return *name != '\0' && *name != '-' && (*name < '0' || *name > '9');
}

/* Run a statement with the arguments of a page. */
void
form_run(HttpRequest *request, const DbStatement *statement,
		 void (*go_on)(HttpRequest *request))
{
	const FormRead *read = request->state;
	const char *arguments[DB_MAX_ARGUMENTS] = {read->feed, read->after, read->limit,
											   read->shard, read->shards, read->types};

	http_run(request, statement, arguments, go_on);
}

/*
 * Read a page that is not empty, or wait for it until the deadline.  With a
 * feed: the page was empty when the clock was "since".
 */
void
form_wait(HttpRequest *request, Oid feed, uint64_t since, int64_t deadline,
		  void (*go_on)(HttpRequest *request))
{
	const FormRead *read = request->state;
	const char *arguments[DB_MAX_ARGUMENTS] = {read->feed, read->after, read->limit,
											   read->shard, read->shards, read->types};

	http_wait(request, read->form->statement, arguments, feed, since, deadline, go_on);
}

/* The feed of a page, and whether there is nothing yet after its cursor. */
Oid
form_feed_of(const DbResult *result, bool *empty)
{
	FormPage	page;

	form_page_open(result, &page);
	*empty = page.length == 0 && !page.more;
	return page.feed;
}

/* Find the parts of a page. */
void
form_page_open(const DbResult *result, FormPage *page)
{
	const char *end;

	page->entries = PQgetvalue(result->rows, 0, 0);
	page->rest = PQntuples(result->rows) > 1 ? PQgetvalue(result->rows, 1, 0) : "";
	end = memrchr(page->entries, '\n', PQgetlength(result->rows, 0, 0));
	page->cursor = end != NULL ? end + 1 : page->entries;
	page->length = page->cursor - page->entries;
	page->cursor_length = strcspn(page->cursor, " ");
	end = page->cursor + page->cursor_length;
	page->more = strncmp(end, " more ", 6) == 0;
	end = strchr(end + 1, ' ') + 1;
	page->is_begun = false;
	page->in_line = false;
	page->feed = strtoul(end, NULL, 10);
	end = strchr(end, ' ') + 1;
	page->is_changes = strncmp(end, "changes", 7) == 0;
	page->is_outbox = page->is_changes || strncmp(end, "outbox", 6) == 0;
	page->moment = strncmp(end, "changes,moment", 14) == 0;
	end += strcspn(end, " ");
	page->retention = strtol(end, NULL, 10);
}

/*
 * The next entry of a page and its length, without the line break; NULL at the
 * end.
 */
const char *
form_page_next(FormPage *page, size_t *length)
{
	const char *entry = page->entries;

	if (page->length == 0)
		return NULL;
	*length = (const char *) memchr(entry, '\n', page->length) - entry;
	form_page_take(page, *length + 1);
	return entry;
}

/* So much of a page has been framed. */
void
form_page_take(FormPage *page, size_t length)
{
	page->entries += length;
	page->length -= length;
}

/* The next page begins where this one ends. */
void
form_go_on(HttpRequest *request, const FormPage *page)
{
	FormRead   *read = request->state;

	free(read->after);
	read->after = base_alloc(page->cursor_length + 1);
	memcpy(read->after, page->cursor, page->cursor_length);
}
