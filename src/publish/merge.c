/*-------------------------------------------------------------------------
 *
 * merge.c
 *	  Merging old batches.
 *
 * Batches older than feedpub.batch_retention, and those before the newest
 * feedpub.max_unmerged_batches, are merged, neighbours into the youngest of
 * them, so that the table stays small.  A merged batch has no more transactions
 * than one may be published with, feedpub.max_batch_transactions, so that pages
 * cost no more; nor very many parts; nor parts of two server starts, which have
 * other seeds (batch.c).  It is made when no further neighbour would
 * fit into it, so the last batch of a feed stays as it is; and never merged
 * again.
 *
 * Merging deletes the rows of the older ones, which makes the snapshot before
 * the youngest an earlier one: it now holds what they held.  It is another
 * batch then, with another fingerprint, and knows those of the batches that are
 * in it: a reader whose cursor is in one of them gets what lies behind his
 * position in the merged one, nothing if he was at the end of the youngest,
 * and the whole of it if his batch was an older one.  None is skipped: whatever
 * was behind a cursor still is.  A cursor of the merged batch means nothing to
 * who does not see it yet, on a standby that lags or in an old snapshot; for
 * that it says that it is of a merged one (page.c: check_cursor).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "publish/publish.h"

/* how many batches are looked at in one step, and how many become one */
#define MERGE_AT_ONCE	10000
#define MERGE_PARTS		1000

PG_FUNCTION_INFO_V1(feedpub_merge_batches);

/*
 * feedpub._merge_batches(feed regclass) returns integer
 *
 * What the worker does from time to time, by hand.  Not for PUBLIC.
 */
Datum
feedpub_merge_batches(PG_FUNCTION_ARGS)
{
	int64		merged_to = 0;
	bool		more = true;
	int			ngone = 0;

	while (more)
		ngone += feedpub_merge_step(PG_GETARG_OID(0), &merged_to, &more);
	PG_RETURN_INT32(ngone);
}

/* Neighbours that are to be one batch. */
typedef struct MergeGroup
{
	int			nparts;
	int64		first;
	int64		last;
	int			transactions;
	uint32		seed;
} MergeGroup;

/*
 * Merge some of the old batches of a feed, those behind *merged_to, which
 * moves; *more says whether there may be others.  Returns how many are gone.
 * Runs with the caller's rights, which must be those of the extension's owner.
 * Holds the publishing lock: a publisher must not take a batch for the last
 * one that is about to go.  The snapshot is taken after it, so it sees all
 * batches.
 */
int
feedpub_merge_step(Oid relid, int64 *merged_to, bool *more)
{
	MemoryContext context;
	MemoryContext oldcontext;
	Snapshot	snapshot;
	FeedpubBatchScan *batches;
	FeedpubBatch batch;
	FeedpubBatch last;
	TimestampTz old = GetCurrentTimestamp() - feedpub_batch_retention * USECS_PER_SEC;
	MergeGroup	group = {0};
	int			nlooked = 0;
	int			ngone = 0;

	*more = false;
	if (!feedpub_batch_lock(relid, false))
		return 0;
	context = AllocSetContextCreate(CurrentMemoryContext, "feedpub merge",
									ALLOCSET_DEFAULT_SIZES);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	feedpub_batch_last(relid, PG_INT64_MAX, snapshot, &last);
	batches = feedpub_batch_begin(relid, *merged_to + 1, snapshot);
	oldcontext = MemoryContextSwitchTo(context);
	while (feedpub_batch_next(batches, &batch))
	{
		bool		is_old = batch.sync_id < last.sync_id &&
			(batch.published_at < old ||
					batch.sync_id <= last.sync_id - feedpub_max_unmerged_batches);

		CHECK_FOR_INTERRUPTS();
		MemoryContextReset(context);

		/* another one follows, so the last of all is in no group */
		if (group.nparts > 0 &&
			(batch.is_merged || batch.seed != group.seed || group.nparts == MERGE_PARTS ||
			 group.transactions + batch.transactions > feedpub_max_batch_transactions))
		{
			if (group.nparts > 1)
				feedpub_batch_merge(relid, group.first, group.last, snapshot);
			ngone += group.nparts - 1;
			*merged_to = group.last;
			MemSet(&group, 0, sizeof(group));
		}
		*more = is_old && ++nlooked > MERGE_AT_ONCE;
		if (!is_old || *more)
			break;
		if (batch.is_merged)
		{
			*merged_to = batch.sync_id;
			continue;
		}
		if (group.nparts++ == 0)
			group.first = batch.sync_id;
		group.seed = batch.seed;
		group.last = batch.sync_id;
		group.transactions += batch.transactions;
	}
	MemoryContextSwitchTo(oldcontext);
	feedpub_batch_end(batches);
	UnregisterSnapshot(snapshot);
	MemoryContextDelete(context);
	return ngone;
}
