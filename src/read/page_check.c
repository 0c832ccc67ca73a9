/*-------------------------------------------------------------------------
 *
 * page_check.c
 *	  Whether a page can begin at its cursor.
 *
 * A cursor is refused if it is of another history, if its batch is another than
 * this server has published, or if deletes after it have expired.  If its batch
 * is only not here yet, the page is empty.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "read/read.h"

/*
 * Check that the cursor is of this life of the feed.  Returns false when
 * nothing can lie behind it yet: the snapshot is from before this life began.
 */
bool
feedpub_page_check_history(FeedpubPageScan *scan)
{
	FeedpubFloor now;
	Snapshot	latest;

	if (!scan->page->request.after.given || scan->page->request.after.history == scan->floor.history)
		return true;
	if (!RecoveryInProgress() && !IsInParallelMode())
	{
		latest = RegisterSnapshot(GetLatestSnapshot());
		feedpub_registry_floor(scan->page->feed.relid, latest, &now);
		UnregisterSnapshot(latest);
		if (scan->page->request.after.history == now.history)
			return false;
	}
	feedpub_cursor_refuse(scan->page->feed.relid);
	return false;
}

/*
 * Check that the cursor is one of this history, given the first batch at or
 * behind it, if there is one, just read.  Returns false when nothing can lie
 * behind it yet: its batch is not here, on a standby that lags or in a
 * snapshot that is older than the cursor, which somebody else has got since,
 * or was waited for under a row lock.  A batch that others were merged into is
 * another one: where that has not happened yet, its cursors mean nothing.
 */
bool
feedpub_page_check_cursor(FeedpubPageScan *scan, const FeedpubBatch *first)
{
	const FeedpubCursor *after = &scan->page->request.after;

	if (feedpub_cursor_batch(after) == 0)
		return true;
	if (first != NULL && feedpub_batch_knows(first, after))
		return true;
	if (first == NULL || after->merged)
	{
		FeedpubBatchScan *latest_batches;
		FeedpubBatch batch;
		Snapshot	latest;
		bool		known;

		if (RecoveryInProgress() || IsInParallelMode())
			return false;
		latest = RegisterSnapshot(GetLatestSnapshot());
		latest_batches = feedpub_batch_begin(scan->page->feed.relid, after->sync_id, latest);
		known = feedpub_batch_next(latest_batches, &batch) &&
			feedpub_batch_knows(&batch, after);
		feedpub_batch_end(latest_batches);
		UnregisterSnapshot(latest);
		if (known)
			return false;
	}
	feedpub_cursor_refuse(scan->page->feed.relid);
	return false;
}

/*
 * Check that no delete behind the cursor that its consumer needs has expired,
 * and set the base of the page's own cursors.
 *
 * The living rows of a table feed keep positions before the floor of its
 * deletes, so a consumer that begins now has cursors before the floor for a
 * while.  Its cursors therefore carry their base: the largest number of which
 * every page since '' has seen the batch.  A cursor is refused if the floor is
 * after both its place and its base.
 *
 * Take a delete that has expired.  Its transaction lies in a batch up to the
 * floor.  If the place is not before the floor, the consumer has been
 * delivered the delete, or the row was gone before it could get it.  If the
 * base is not, each of its pages was read with a snapshot that sees that
 * batch, hence the transaction of the delete, so none of them had the row.
 *
 * Base and rows come from one snapshot, the page's.  A later page may be read
 * with an older one (on a standby that lags, or in a REPEATABLE READ
 * transaction) and have rows that are gone in the earlier page's snapshot: so
 * the base is the smallest number of all these pages.
 */
void
feedpub_page_check_floor(FeedpubPageScan *scan)
{
	scan->base = scan->last.sync_id;
	if (scan->page->request.after.given)
		scan->base = Min(scan->base, scan->page->request.after.base);
	if (feedpub_cursor_is_expired(scan->page->feed.relid, &scan->page->request.after, &scan->floor,
								  scan->state))
		ereport(ERROR,
				(errcode(ERRCODE_FEED_CURSOR_EXPIRED),
				 errmsg("cursor of feed \"%s\" has expired",
						RelationGetRelationName(scan->page->heap)),
				 errdetail("Deletes that it has not got past are no longer retained."),
				 errhint("Begin again from '', a subscription with feed_seek(..., 'earliest'), and with nothing: rows that are gone are not announced.")));
}
