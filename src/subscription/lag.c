/*-------------------------------------------------------------------------
 *
 * lag.c
 *	  How much of a feed is after a cursor, for the views on subscriptions.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "catalog/pg_authid.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/memutils.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"

#include "subscription/subscription.h"

PG_FUNCTION_INFO_V1(feedpub_lag);

/* so many messages are counted, if some types are wanted */
#define MAX_COUNTED		1000

/* What is counted, and what there is. */
typedef struct Count
{
	Oid			feed;
	FeedpubCursor after;
	FeedpubTypes *types;
	bool		counted;
	int			nrows;
	TimestampTz since;			/* the first one */
	bool		more;
} Count;

static void count_wanted(Count *count);
static void read_wanted(void *arg);

/*
 * feedpub._lag(feed regclass, cursor text, types text[], OUT rows bigint,
 * OUT more boolean, OUT since timestamptz, OUT expired boolean), VOLATILE
 *
 * What is after a cursor: an estimate of the number of rows, from the
 * positions; when the first of them was published; and whether the cursor has
 * expired.  Two look-ups in an index.  With types, those of these types are
 * counted, up to MAX_COUNTED, of as many rows as a page passes; more tells
 * whether there may be others, and is NULL if they cannot be counted.  NULLs if
 * the caller may not read the feed and is no member of pg_read_all_stats.
 */
Datum
feedpub_lag(PG_FUNCTION_ARGS)
{
	Oid			feed = PG_GETARG_OID(0);
	Snapshot	snapshot = GetActiveSnapshot();
	FeedpubCursor cursor;
	FeedpubBatch last;
	FeedpubBatch batch;
	FeedpubBatchScan *batches;
	FeedpubFloor floor;
	Datum		values[4] = {0};
	bool		nulls[4] = {true, true, true, true};
	int64		number;
	bool		found;
	Count		count = {.feed = feed};

	feedpub_argument_check(fcinfo, 0, 2);
	feedpub_cursor_parse(PG_GETARG_TEXT_PP(1), &cursor);
	count.after = cursor;
	if (!feedpub_registry_is_registered(feed) ||
		(!feedpub_may_select(feed) &&
		 !has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS)))
		return feedpub_argument_row(fcinfo, values, nulls);

	feedpub_batch_last(feed, PG_INT64_MAX, snapshot, &last);
	number = feedpub_cursor_batch(&cursor);
	batches = feedpub_batch_begin(feed, number, snapshot);
	found = feedpub_batch_next(batches, &batch);
	if (found && batch.sync_id == number &&
		batch.last_pos <= feedpub_batch_passed(&batch, &cursor))
	{
		cursor.pos = batch.last_pos;
		found = feedpub_batch_next(batches, &batch);
	}
	feedpub_batch_end(batches);

	/*
	 * Later batches may have smaller positions, so the difference can be less
	 * than 1 although rows are left.
	 */
	values[0] = Int64GetDatum(found ? Max(last.last_pos - (number > 0 ? cursor.pos : 0), 1) : 0);
	values[1] = BoolGetDatum(false);
	values[2] = TimestampTzGetDatum(found ? batch.published_at : 0);
	nulls[0] = nulls[1] = false;
	nulls[2] = !found;
	feedpub_floor_read(feed, snapshot, &floor);
	values[3] = BoolGetDatum(feedpub_cursor_is_expired(feed, &cursor, &floor, snapshot));
	nulls[3] = false;
	if (found && !PG_ARGISNULL(2))
	{
		count.types = feedpub_types_parse(PG_GETARG_ARRAYTYPE_P(2));
		count_wanted(&count);
		nulls[1] = !count.counted;
		if (count.counted)
		{
			values[0] = Int64GetDatum(count.nrows);
			values[1] = BoolGetDatum(count.more);
			nulls[2] = count.nrows == 0 && !count.more;
			if (count.nrows > 0)
				values[2] = TimestampTzGetDatum(count.since);
		}
	}
	return feedpub_argument_row(fcinfo, values, nulls);
}

/*
 * Count what is wanted.  Whatever keeps us from that must not keep the view
 * from its other rows, and the view waits for nobody who has locked a feed.
 */
static void
count_wanted(Count *count)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "feedpub count",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext oldcontext = MemoryContextSwitchTo(context);
	ErrorData  *error = feedpub_attempt_error(read_wanted, count, false);

	MemoryContextSwitchTo(oldcontext);
	if (error != NULL && !feedpub_attempt_is_of_the_data(error->sqlerrcode))
		ReThrowError(error);
	MemoryContextDelete(context);
}

/*
 * Read a page, whose rows are counted.  Not under row security: how many there
 * are would tell which types the rows have that are hidden.
 */
static void
read_wanted(void *arg)
{
	Count	   *count = arg;
	FeedpubPage page = {.request = {.after = count->after,
									.max_rows = MAX_COUNTED,
									.shards = 1,
									.types = count->types,
									.subscribed = true}};

	if (check_enable_rls(count->feed, InvalidOid, true) == RLS_ENABLED ||
		!ConditionalLockRelationOid(count->feed, AccessShareLock))
		return;
	page.heap = feedpub_registry_open(count->feed);
	feedpub_page_read(&page);
	count->nrows = page.nrows;
	count->more = page.more;
	if (page.nrows > 0)
		count->since = page.rows[0].published_at;
	relation_close(page.heap, NoLock);
	count->counted = true;
}
