/*-------------------------------------------------------------------------
 *
 * newest.c
 *	  Where the newest entries of a feed begin: feedpub._newest().
 *
 * A feed is read forward, so a reader that wants its last entries needs a
 * cursor a little before its end.  Positions tell about how many entries are
 * between two batches, and a cursor in a batch is its number and a position.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/snapmgr.h"

#include "http/http.h"

PG_FUNCTION_INFO_V1(feedpub_newest);

static void go_back(Oid relid, int64 rows, Snapshot snapshot, FeedpubBatch *batch,
					FeedpubCursor *cursor);

/*
 * feedpub._newest(feed regclass, max_rows int) returns text, VOLATILE
 *
 * Returns a cursor about so many entries before the end of what is published.
 * After it can be fewer entries, since positions are lost when transactions
 * roll back and when rows are deleted.  There can be more, if transactions took
 * positions long before they committed.  It is not before the floor.  Rights,
 * locks and errors are those of feed_head(), and 22023 for a number below 1.
 */
Datum
feedpub_newest(PG_FUNCTION_ARGS)
{
	Snapshot	snapshot = GetActiveSnapshot();
	FeedpubCursor cursor;
	FeedpubFeed feed;
	FeedpubBatch last;
	Oid			relid;

	feedpub_argument_check(fcinfo, 0, 2);
	relid = PG_GETARG_OID(0);
	feedpub_argument_least(fcinfo, 1, PG_GETARG_INT32(1), 1);
	feedpub_access_check_feed(relid, &feed);
	feedpub_batch_last(relid, PG_INT64_MAX, snapshot, &last);
	feedpub_batch_refuse_foreign(&feed, &last);
	feedpub_access_make_durable(last.publisher, snapshot);
	go_back(relid, PG_GETARG_INT32(1), snapshot, &last, &cursor);
	PG_RETURN_TEXT_P(feedpub_cursor_text(&cursor));
}

/*
 * Go back from the end of a batch.  Each turn takes a row off, or ends, so this
 * looks at no more batches than rows are wanted.
 */
static void
go_back(Oid relid, int64 rows, Snapshot snapshot, FeedpubBatch *batch,
		FeedpubCursor *cursor)
{
	FeedpubFloor floor;

	feedpub_floor_read(relid, snapshot, &floor);
	while (batch->sync_id > floor.sync_id && rows > 0)
	{
		FeedpubBatch before;
		int64		n;

		feedpub_batch_last(relid, batch->sync_id, snapshot, &before);
		n = batch->last_pos - before.last_pos;

		/* its positions tell nothing if it ends before the one before it */
		if (n <= 0 || n > rows)
		{
			feedpub_cursor_at_end(relid, batch, snapshot, cursor);
			cursor->pos = Max(batch->last_pos - rows, 0);
			return;
		}
		rows -= n;
		*batch = before;
	}
	if (batch->sync_id > floor.sync_id)
		feedpub_cursor_at_end(relid, batch, snapshot, cursor);
	else
		feedpub_cursor_at_floor(relid, &floor, snapshot, cursor);
}
