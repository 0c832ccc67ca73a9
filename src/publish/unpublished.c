/*-------------------------------------------------------------------------
 * unpublished.c
 *	  Whether rows have become visible that are in no batch yet.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "publish/publish.h"

/*
 * Would a step with this snapshot find news after the last batch?
 *
 * If none of the first transactions has a visible row, there is news if there
 * are so many that a step is sure to publish a full part, which it does
 * without a visible row (cut.c): a transaction has at most one run in each
 * table, and one of tombstones.
 */
bool
feedpub_unpublished_exists(const FeedpubFeed *feed, Relation heap,
						   Snapshot snapshot, const FeedpubSnapshot *last)
{
	FeedpubPartitions *partitions;
	FeedpubRunReader *reader;
	FeedpubSnapshot now;
	List	   *runs;
	int			limit;
	bool		found;

	if (feedpub_partition_has_new(feed, heap, snapshot))
		return true;
	partitions = feedpub_partition_open(feed, heap, snapshot, false);
	reader = feedpub_run_begin(feed, partitions, snapshot, snapshot);
	feedpub_batch_take_snapshot(snapshot, &now);
	limit = feedpub_max_batch_transactions * (partitions->n + 1);
	runs = feedpub_run_load(reader, last, &now, 0, limit);
	found = feedpub_unpublished_some_live(reader, runs) || list_length(runs) >= limit;
	feedpub_run_end(reader);
	feedpub_partition_close(partitions);
	return found;
}

/*
 * Is there news, a visible row?  Transactions may have been rolled back, may
 * have left only rows of rolled-back savepoints, or may have deleted all that
 * they wrote.
 *
 * If none of a run's first rows is visible, and the run is long, the commit log
 * decides.  A wrong answer costs a batch without rows, or, if the ids are of
 * another cluster, a wait for the next news.
 */
bool
feedpub_unpublished_some_live(FeedpubRunReader *reader, List *runs)
{
	ListCell   *lc;

	foreach(lc, runs)
	{
		const FeedpubRun *run = lfirst(lc);

		for (int i = 0; i < run->nentries; i++)
		{
			CHECK_FOR_INTERRUPTS();
			if (feedpub_run_fetch(reader, run, i) != NULL)
				return true;
		}
		if (run->more && feedpub_horizon_committed(FullTransactionIdFromU64(run->xid)))
			return true;
	}
	return false;
}
