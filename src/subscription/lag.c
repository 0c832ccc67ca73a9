/*-------------------------------------------------------------------------
 *
 * lag.c
 *	  How much of a feed is after a cursor, for the views on subscriptions, and
 *	  whether more is to come.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "catalog/pg_authid.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "subscription/subscription.h"

PG_FUNCTION_INFO_V1(feedpub_lag);

/*
 * feedpub._lag(feed regclass, cursor text, OUT rows bigint,
 * OUT since timestamptz, OUT expired boolean), VOLATILE
 *
 * What is after a cursor: an estimate of the number of rows, from the
 * positions; when the first of them was published; and whether the cursor has
 * expired.  Two look-ups in an index.  NULLs if the caller may not read the
 * feed and is no member of pg_read_all_stats.
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
	TupleDesc	desc;
	Datum		values[3] = {0};
	bool		nulls[3] = {true, true, true};
	int64		number;
	bool		found;

	desc = feedpub_argument_row_type(fcinfo);
	desc = BlessTupleDesc(desc);
	feedpub_cursor_parse(PG_GETARG_TEXT_PP(1), &cursor);
	if (!feedpub_registry_is_registered(feed) ||
		(!feedpub_may_select(feed) &&
		 !has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS)))
		PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(desc, values, nulls)));

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
	values[1] = TimestampTzGetDatum(found ? batch.published_at : 0);
	nulls[0] = false;
	nulls[1] = !found;
	feedpub_floor_read(feed, snapshot, &floor);
	values[2] = BoolGetDatum(feedpub_cursor_is_expired(feed, &cursor, &floor, snapshot));
	nulls[2] = false;
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(desc, values, nulls)));
}

/*
 * Have rows been committed that are not published yet?
 */
bool
feedpub_lag_has_news(const FeedpubSubscription *sub)
{
	Relation	heap = feedpub_registry_open(sub->feed);
	FeedpubFeed feed;
	FeedpubBatch last;
	bool		result = false;

	feedpub_registry_get(sub->feed, &feed);
	feedpub_batch_last(sub->feed, PG_INT64_MAX, GetActiveSnapshot(), &last);
	feedpub_batch_refuse_foreign(&feed, &last);
	if (feedpub_partition_has_indexes(heap))
		result = feedpub_unpublished_exists(&feed, heap, GetActiveSnapshot(),
											&last.snapshot);

	/* a wait must not block an ALTER TABLE */
	relation_close(heap, AccessShareLock);
	return result;
}
