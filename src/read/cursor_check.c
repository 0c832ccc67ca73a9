/*-------------------------------------------------------------------------
 *
 * cursor_check.c
 *	  Whether a page can begin at its cursor.
 *
 * A cursor is refused if it is of another history, if its batch is another
 * than this server has published, or if deletes after it have expired.  If its
 * batch is only not here yet, the page is empty.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "utils/snapmgr.h"

#include "read/read.h"

/*
 * Check that the cursor is of this history of the feed.
 *
 * Returns false if nothing can be after it yet: the page's snapshot is older
 * than the history.
 */
bool
feedpub_cursor_check_history(FeedpubPageScan *scan)
{
	uint32		now;
	Snapshot	latest;

	if (!scan->page->request.after.given || scan->page->request.after.history == scan->floor.history)
		return true;
	if (!RecoveryInProgress())
	{
		latest = RegisterSnapshot(GetLatestSnapshot());
		now = feedpub_floor_history(scan->page->feed.relid, latest);
		UnregisterSnapshot(latest);
		if (scan->page->request.after.history == now)
			return false;
	}
	feedpub_cursor_refuse(scan->page->feed.relid);
	return false;
}

/*
 * Check that the cursor's batch is one of this history. first is the first
 * batch at or after it, just read, or NULL.
 *
 * Returns false if nothing can be after the cursor yet, because the snapshot
 * does not see its batch: on a standby that lags, or if the snapshot is older
 * than the cursor, which another session has got since, or which was waited
 * for under a row lock.  If others have been merged into a batch, it is
 * another one, and a snapshot that does not see that yet does not know its
 * cursors.
 */
bool
feedpub_cursor_check_batch(FeedpubPageScan *scan, const FeedpubBatch *first)
{
	const FeedpubCursor *after = &scan->from;

	if (feedpub_cursor_batch(after) == 0)
		return true;
	if (first != NULL && feedpub_batch_knows(first, after))
		return true;
	if (first == NULL || after->merged)
	{
		Snapshot	latest;
		bool		known;

		if (RecoveryInProgress())
			return false;
		latest = RegisterSnapshot(GetLatestSnapshot());
		known = feedpub_batch_has_arrived(scan->page->feed.relid, after, latest);
		UnregisterSnapshot(latest);
		if (known)
			return false;
	}
	feedpub_cursor_refuse(scan->page->feed.relid);
	return false;
}

/*
 * Check that nothing after the cursor that its consumer needs has been
 * removed, set where the page begins, and the base of its own cursors.
 *
 * In an outbox the rows before the floor are gone, so a cursor before it is
 * refused.  Without a cursor the page begins at the floor.
 *
 * The living rows of a table feed keep positions before the floor of its
 * deletes.  So a consumer that begins now has cursors before the floor for a
 * while.  Therefore its cursors carry their base: the largest batch number
 * such that every page since '' has seen that batch.  A cursor is refused if
 * the floor is after both its position and its base.
 *
 * Take a delete that has expired.  Its transaction is in a batch up to the
 * floor.  If the cursor's position is not before the floor, the consumer has
 * been delivered the delete, or the row was gone before it could get it.  If
 * the base is not before the floor, each of its pages was read with a snapshot
 * that sees that batch, hence the transaction of the delete, so none of them
 * had the row.
 *
 * Base and rows come from one snapshot, the page's.  A later page may be read
 * with an older one (on a standby that lags, or in a REPEATABLE READ
 * transaction) and have rows that are gone in the earlier page's snapshot.  So
 * the base is the smallest number of all these pages.
 */
void
feedpub_cursor_check_floor(FeedpubPageScan *scan)
{
	const FeedpubCursor *after = &scan->page->request.after;
	Oid			relid = scan->page->feed.relid;

	scan->from = *after;
	feedpub_cursor_refuse_expired(relid, after, &scan->floor, scan->state);
	if (scan->page->feed.is_outbox)
	{
		if (!after->given && scan->floor.sync_id > 0)
			feedpub_cursor_at_floor(relid, &scan->floor, scan->state, &scan->from);
		return;
	}
	scan->base = scan->last.sync_id;
	if (after->given)
		scan->base = Min(scan->base, after->base);
}
