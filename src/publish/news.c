/*-------------------------------------------------------------------------
 *
 * news.c
 *	  Whether rows have become visible that no batch has yet.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "publish/publish.h"

/* how many transactions a reader looks at */
#define MAX_LOOK	100

/*
 * Would a step with this snapshot find news after the last batch?  For
 * readers, who look at a few transactions only.
 */
bool
feedpub_news_exist(const FeedpubFeed *feed, Relation heap,
				   Snapshot snapshot, const FeedpubSnapshot *last)
{
	FeedpubPartitions *partitions;
	FeedpubRunReader *reader;
	FeedpubSnapshot now;
	List	   *runs;
	bool		found;

	if (feedpub_partition_has_new(feed, heap, snapshot))
		return true;
	partitions = feedpub_partition_open(feed, heap, snapshot, false);
	reader = feedpub_run_begin(feed, partitions, snapshot, snapshot);
	feedpub_batch_take_snapshot(snapshot, &now);
	runs = feedpub_run_load(reader, last, &now, 0, MAX_LOOK);

	/* so many transactions without a row in sight: let the publisher see */
	found = list_length(runs) >= MAX_LOOK || feedpub_news_some_live(reader, runs);
	feedpub_run_end(reader);
	feedpub_partition_close(partitions);
	return found;
}

/*
 * Is there news: a row that lives?  Transactions may have been rolled back,
 * or have left nothing but rows of rolled-back savepoints, or have deleted
 * all they wrote.
 */
bool
feedpub_news_some_live(FeedpubRunReader *reader, List *runs)
{
	ListCell   *lc;

	foreach(lc, runs)
	{
		if (feedpub_news_run_lives(reader, lfirst(lc)))
			return true;
	}
	return false;
}

/*
 * Does a row live of a run's first ones?  If none does, and the run is long,
 * the commit log decides; a wrong answer costs a batch without rows, or, for
 * ids of another cluster, a wait for the next news.
 */
bool
feedpub_news_run_lives(FeedpubRunReader *reader, const FeedpubRun *run)
{
	for (int i = 0; i < run->nentries; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (feedpub_run_fetch(reader, run, i) != NULL)
			return true;
	}
	return run->more &&
		feedpub_horizon_committed(FullTransactionIdFromU64(run->xid));
}
