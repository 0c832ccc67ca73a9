/*-------------------------------------------------------------------------
 *
 * start.c
 *	  The start of a subscription: 'earliest', 'latest', a cursor or a time.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"

#include "subscription/subscription.h"

static FeedpubStatement find_batch = {
	.sql = "SELECT pg_catalog.max(sync_id) FROM feedpub._batch"
		   " WHERE feed = $1 AND published_at <= $2",
	.latest = true,
};

static void hint_at_starts(void *arg);
static text *earliest_cursor(Oid feed);
static text *check_cursor(Oid feed, const text *cursor);

/*
 * The cursor that start stands for.  Error 22007, of the server, if it is no time
 * either, 42809 if feed is no feed, PF001 or PF002 if it is a cursor that is refused, 42501.
 */
text *
feedpub_start_find(Oid feed, const text *start)
{
	char	   *word = text_to_cstring(start);
	Datum		at;
	FeedpubFeed found;
	ErrorContextCallback context = {.callback = hint_at_starts};

	feedpub_registry_get(feed, &found);
	feedpub_require_select(feed);
	if (strcmp(word, "earliest") == 0 || word[0] == '\0')
		return earliest_cursor(feed);
	if (strcmp(word, "latest") == 0)
		return feedpub_head_of(feed);
	if (strlen(word) == FEEDPUB_CURSOR_LENGTH || strlen(word) == FEEDPUB_CURSOR_MAX_LENGTH)
		return check_cursor(feed, start);
	context.previous = error_context_stack;
	error_context_stack = &context;
	at = DirectFunctionCall3(timestamptz_in, CStringGetDatum(word),
							 ObjectIdGetDatum(InvalidOid), Int32GetDatum(-1));
	error_context_stack = context.previous;
	return feedpub_start_at(feed, DatumGetTimestampTz(at));
}

/* The server's error says only that it is no time. */
static void
hint_at_starts(void *arg)
{
	if (geterrcode() == ERRCODE_INVALID_DATETIME_FORMAT)
		errhint("Use 'earliest', 'latest', a cursor or a time.");
}

/*
 * The beginning of a feed as it is now.  It has the feed's history, so if the
 * feed begins another history or rows are removed before the first poll, that
 * poll fails.
 *
 * Its base is the largest possible: no page has been read yet, so no page has
 * a row whose delete may expire (feedpub_cursor_check_floor()).
 */
static text *
earliest_cursor(Oid feed)
{
	Snapshot	snapshot = GetActiveSnapshot();
	FeedpubCursor cursor = {.given = true};
	FeedpubFloor floor;

	feedpub_floor_read(feed, snapshot, &floor);
	if (!feedpub_registry_is_table(feed))
	{
		feedpub_cursor_at_floor(feed, &floor, snapshot, &cursor);
		return feedpub_cursor_text(&cursor);
	}
	cursor.history = floor.history;
	cursor.start = feedpub_cursor_start(feed, floor.history, snapshot);
	cursor.initial = true;
	cursor.base = PG_INT64_MAX;
	return feedpub_cursor_text(&cursor);
}

/*
 * The end of the last batch published at or before a time.  If the clock was
 * put back, batches before it may have later times.
 */
text *
feedpub_start_at(Oid feed, TimestampTz at)
{
	Snapshot	snapshot = GetActiveSnapshot();
	Datum		values[2] = {ObjectIdGetDatum(feed), TimestampTzGetDatum(at)};
	FeedpubFloor floor = {0};
	FeedpubBatch found;
	FeedpubCursor cursor;

	feedpub_require_select(feed);
	feedpub_floor_read(feed, snapshot, &floor);
	feedpub_batch_last(feed, feedpub_store_number(&find_batch, values, 0) + 1, snapshot, &found);
	if (found.sync_id == 0 && (floor.sync_id == 0 || feedpub_registry_is_table(feed)))
		return earliest_cursor(feed);
	feedpub_cursor_at_end(feed, &found, snapshot, &cursor);
	feedpub_cursor_refuse_expired(feed, &cursor, &floor, snapshot);
	return feedpub_cursor_text(&cursor);
}

/*
 * Check a cursor by reading a page of one row after it.  Returns the cursor
 * after which the page began.
 */
static text *
check_cursor(Oid feed, const text *cursor)
{
	FeedpubPage page = {0};

	feedpub_cursor_parse(cursor, &page.request.after);
	page.request.max_rows = 1;
	page.request.shards = 1;
	page.request.subscribed = true;
	page.heap = feedpub_registry_open(feed);
	feedpub_page_read(&page);
	relation_close(page.heap, NoLock);
	page.request.after.fallback = NULL;
	return feedpub_cursor_text(&page.request.after);
}
