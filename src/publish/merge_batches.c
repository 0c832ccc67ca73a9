/*-------------------------------------------------------------------------
 * merge_batches.c
 *	  Merging old batches.
 *
 * Batches older than feedpub.batch_retention, and those before the newest
 * feedpub.max_unmerged_batches, are merged, so that the table stays small.
 * Neighbours are merged into the youngest of them.
 *
 * A merged batch has no more transactions than a batch may be published with,
 * feedpub.max_batch_transactions, so that pages cost no more.  (Those that
 * were rolled back are not counted; pages pass them until VACUUM has.)  It has
 * at most MERGE_PARTS batches in it, all of one server start, since those of
 * another have another seed (seed.c).  It is made when the
 * next neighbour does not fit into it, so the last batch of a feed stays as it
 * is.  It is never merged again.
 *
 * Merging deletes the rows of the older batches, so the snapshot before the
 * youngest becomes an earlier one, and the youngest now holds what they held.
 * It is another batch then, with another fingerprint, and knows the
 * fingerprints of the batches that are in it.  If a reader's cursor is in one
 * of them, the reader gets from the merged batch:
 *
 * - all of it, if the cursor is in an older one;
 * - the rows after its position, if it is in the youngest;
 * - nothing, if it is at the end of the youngest.
 *
 * No row is skipped: what was after a cursor still is.
 *
 * A part of a cut backlog, whose end is no moment of the source (cut.c), stays as
 * it is.  So all batches that are merged end at moments, and what they become
 * ends at that of the youngest.  Such parts are full, so mostly nothing would
 * have fitted into them.
 *
 * The batch at whose end the floor of an outbox is stays as it is.  Its
 * snapshot is the one before the next batch, and tells which rows are removed.
 *
 * A standby that lags and an old snapshot do not see the merged batch, so a
 * cursor in it could be taken for one in the youngest.  For this the cursor
 * says that it is of a merged batch (feedpub_cursor_check_batch).
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "publish/publish.h"

/* how many batches one step looks at, and how many become one */
#define MERGE_AT_ONCE	10000
#define MERGE_PARTS		1000

PG_FUNCTION_INFO_V1(feedpub_merge_batches);

static FeedpubStatement merge = {
	.sql = "WITH gone AS (DELETE FROM feedpub._batch WHERE feed = $1"
		   "  AND sync_id >= $2 AND sync_id < $3 RETURNING last_pos, transactions),"
		   " older AS (SELECT max(last_pos) AS last_pos, sum(transactions)::int4 AS transactions FROM gone)"
		   " UPDATE feedpub._batch b SET merged_from = $2, merged_pos = b.last_pos,"
		   "  last_pos = greatest(b.last_pos, older.last_pos),"
		   "  transactions = b.transactions + older.transactions"
		   " FROM older WHERE b.feed = $1 AND b.sync_id = $3",
};

/*
 * feedpub._merge_batches(feed regclass) returns integer
 *
 * The worker's steps, by hand.  Returns how many batches are gone.  Not for
 * PUBLIC.
 */
Datum
feedpub_merge_batches(PG_FUNCTION_ARGS)
{
	FeedpubMerged merged = {0};
	bool		more = true;
	int			ngone = 0;

	while (more)
		ngone += feedpub_merge_step(PG_GETARG_OID(0), &merged, &more);
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
 * Merge some of the old batches of a feed, those after *merged, which moves.
 * It goes back if the feed has begun another history, whose numbers begin at 1
 * again.  Sets *more if there may be others.  Returns how many batches are
 * gone.  Runs with the caller's rights, which must be those of the extension's
 * owner.  Holds the publishing lock, so that no publisher takes a batch for
 * the last one while it is being removed.  The snapshot is taken after the
 * lock, so it sees all batches.
 */
int
feedpub_merge_step(Oid relid, FeedpubMerged *merged, bool *more)
{
	MemoryContext context;
	MemoryContext oldcontext;
	Snapshot	snapshot;
	FeedpubBatchScan *batches;
	FeedpubBatch batch;
	FeedpubBatch last;
	FeedpubFloor floor;
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
	feedpub_floor_read(relid, snapshot, &floor);
	if (floor.history != merged->history)
		merged->to = 0;
	merged->history = floor.history;
	batches = feedpub_batch_begin(relid, merged->to + 1, snapshot);
	oldcontext = MemoryContextSwitchTo(context);
	while (feedpub_batch_next(batches, &batch))
	{
		bool		is_old = batch.sync_id < last.sync_id &&
			(batch.published_at < old ||
					batch.sync_id <= last.sync_id - feedpub_max_unmerged_batches);

		CHECK_FOR_INTERRUPTS();
		MemoryContextReset(context);

		/* another batch follows, so the last one is in no group */
		if (group.nparts > 0 &&
			(batch.is_merged || batch.is_part || group.last == floor.sync_id || batch.seed != group.seed || group.nparts == MERGE_PARTS ||
			 group.transactions + batch.transactions > feedpub_max_batch_transactions))
		{
			if (group.nparts > 1)
				(void) feedpub_store_execute(&merge, (Datum[]){ObjectIdGetDatum(relid), Int64GetDatum(group.first), Int64GetDatum(group.last)}, NULL);
			ngone += group.nparts - 1;
			merged->to = group.last;
			MemSet(&group, 0, sizeof(group));
		}
		*more = is_old && ++nlooked > MERGE_AT_ONCE;
		if (!is_old || *more)
			break;
		if (batch.is_merged || batch.is_part)
		{
			merged->to = batch.sync_id;
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
