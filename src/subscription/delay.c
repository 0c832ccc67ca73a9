/*-------------------------------------------------------------------------
 *
 * delay.c
 *	  Delayed messages, which are delivered when they are due.
 *
 * If a subscription wants it, a poll parks a message whose column scheduled is
 * in the future: with that time as retry_at, and no failure.  From there retry.c
 * delivers it, until it is acknowledged.
 *
 * A poll parks only if such a message comes first in its page; if not, the page
 * ends before the first of them.  So a consumer that polls again before it
 * acknowledges has the same page again, with the state in which it was read:
 * parking draws a new one.  It parks what comes before the last message that it
 * delivers, or, if it delivers none, all, and then passes them.  So once a page
 * is acknowledged, the committed cursor has passed what was parked with it, which
 * is due only then (retry.c).
 *
 * No message is lost.  A cursor passes a message that waits only by the poll
 * that has parked it, in the same transaction, or by receipts of pages that
 * leave it out since it was parked.  These have the state that parking drew, or
 * a later one.  If the transaction that parked is rolled back, or a crash takes
 * it back, so is that state, and the receipts do not count (receipt.c).
 *
 * None is delivered twice for it.  It is parked only while the shard, locked, is
 * in the state in which the page was read: it has not been acknowledged or parked
 * since.  A page with it that was read in that state, when the subscription did
 * not want delays, does not count any more.
 *
 * What a poll parks is bounded by pages, and by pass.c in time.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_attribute.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "subscription/subscription.h"

#define COLUMN		"scheduled"

/*
 * The column that says when messages are due.  Raises 0A000 if the feed has
 * none.
 */
AttrNumber
feedpub_delay_column(const FeedpubFeed *feed, Relation heap)
{
	bool		has_messages = feed->is_outbox && !feed->is_changes;
	AttrNumber	attno = has_messages ? get_attnum(feed->relid, COLUMN) : InvalidAttrNumber;
	Form_pg_attribute att = attno > 0 ? TupleDescAttr(RelationGetDescr(heap), attno - 1) : NULL;

	if (att == NULL || getBaseType(att->atttypid) != TIMESTAMPTZOID ||
		(att->attgenerated != '\0' && att->attgenerated != ATTRIBUTE_GENERATED_STORED))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("feed \"%s\" has no delayed messages", RelationGetRelationName(heap)),
				 has_messages ?
					 errdetail("It has no column " COLUMN " of type timestamp with time zone.") :
					 errdetail("It is no outbox."),
				 errhint("Delay entries in the consumer, with feed_nack().")));
	return attno;
}

/*
 * When a message is due that is not due yet; 0 if it is, or has no time.
 */
static TimestampTz
due_later(const FeedpubPage *page, AttrNumber attno, const FeedpubPageRow *row,
		  TimestampTz now)
{
	bool		isnull;
	Datum		value = heap_getattr(row->entry, attno, RelationGetDescr(page->heap), &isnull);

	return isnull || DatumGetTimestampTz(value) <= now ? 0 : DatumGetTimestampTz(value);
}

/*
 * Leave messages out of a page that are due later: park them if one comes
 * first, or else end the page before the first one.  It will have limit messages
 * at most.  Returns false if they
 * cannot be parked, since the shard is locked or in another state; then the page
 * is empty, and no cursor may pass it.
 */
bool
feedpub_delay_park(const FeedpubSubscription *sub, FeedpubShard *shard,
				   FeedpubReached *reached, FeedpubPage *page, int limit)
{
	TimestampTz now = GetCurrentTimestamp();
	AttrNumber	attno = feedpub_delay_column(&page->feed, page->heap);
	int64		state = feedpub_receipt_draw();
	FeedpubShard locked;
	MemoryContext context;
	int			first = page->nrows;	/* that is due later */
	int			end = 0;		/* after the last that is delivered */
	int			n = 0;

	for (int i = 0; i < page->nrows && n < limit; i++)
	{
		if (due_later(page, attno, &page->rows[i], now) != 0)
			first = Min(first, i);
		else
		{
			end = i + 1;
			n++;
		}
	}
	if (first > 0 || page->nrows == 0)
	{
		page->nrows = first;
		return true;
	}
	if (end > 0)
		page->nrows = end;
	if (!feedpub_shard_lock(sub, shard->shard, false, &locked) || locked.state != shard->state)
	{
		page->nrows = 0;
		return false;
	}
	context = AllocSetContextCreate(CurrentMemoryContext, "feedpub delay",
									ALLOCSET_DEFAULT_SIZES);
	for (int i = 0; i < page->nrows; i++)
	{
		FeedpubPageRow *row = &page->rows[i];
		TimestampTz due = due_later(page, attno, row, now);

		CHECK_FOR_INTERRUPTS();
		if (due != 0)
		{
			MemoryContext oldcontext = MemoryContextSwitchTo(context);

			feedpub_park_until(sub, shard->shard, page, row, due, state);
			MemoryContextSwitchTo(oldcontext);
			MemoryContextReset(context);
			row->entry = NULL;
			locked.parked++;
		}
	}
	MemoryContextDelete(context);
	feedpub_entry_drop_hidden(page);
	locked.state = state;
	locked.page = 0;
	feedpub_shard_write(sub, &locked);

	/* how far this poll has read in the shard still holds */
	if (reached->state == shard->state)
		reached->state = state;
	shard->state = state;
	shard->parked = locked.parked;
	return true;
}
