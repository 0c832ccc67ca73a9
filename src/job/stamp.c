/*-------------------------------------------------------------------------
 * stamp.c
 *	  Stamping the rows that partitions came with.
 *
 * A partition that is admitted later (partition_join.c) may have rows that are not
 * in the feed.  They are stamped anew in steps.
 *
 * A pass over a partition holds for one admission of it: for its xid, called
 * since, and for the trigger that is listed with it.  Each step locks the
 * partition, and then compares both with what is committed now: until the step
 * commits, the partition cannot be detached and attached again.
 *
 * A partition is done under two conditions.  The pass has found only rows that
 * cannot be stamped.  When the pass began, no transaction with an xid below
 * since was running: such transactions may write rows with stamps that are not
 * in the feed, until they end.  If since is FEEDPUB_SINCE_NEVER, only the rows
 * with stamps of another server are stamped, and then the publisher looks
 * again.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/bufmgr.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "job/job.h"

/*
 * The target of the job that stamps rows of a table: since of a partition.  A
 * feed's own table has none; feed_republish() may stamp its rows, too.
 */
uint64
feedpub_stamp_target(Oid feed, Relation rel)
{
	return RelationGetRelid(rel) == feed ? 0 : feedpub_partition_since(feed, rel);
}

/*
 * A step, under the lock, which keeps the partition as it is.  Returns false if
 * it is not as the pass has it.
 */
bool
feedpub_stamp_rows(FeedpubJob *job, Relation rel)
{
	FeedpubFeed registered;		/* reading it raises an error without an index */
	FeedpubPass *pass = &job->pass;
	bool		admitted = job->target != FEEDPUB_SINCE_NEVER;
	uint64		before = Max(admitted ? job->target : 0, job->republished);

	if (!feedpub_registry_find(job->feed, &registered) ||
		feedpub_partition_feed(job->relation) != job->feed ||
		feedpub_stamp_target(job->feed, rel) != job->target)
		return false;
	feedpub_rows_check(rel, false);
	pass->before = (FeedpubSnapshot){.xmin = before, .xmax = before};
	pass->kinds = admitted || job->republished > 0 ?
		1 << FEEDPUB_ROWS_UNSTAMPED | 1 << FEEDPUB_ROWS_BEFORE :
		0;
	if (!admitted || job->republished > 0)
		pass->kinds |= 1 << FEEDPUB_ROWS_FOREIGN;
	if (pass->file != rel->rd_rel->relfilenode)
	{
		/* a pass begins: before its first snapshot */
		Snapshot	snapshot = GetLatestSnapshot();

		pass->settled = U64FromFullTransactionId(feedpub_horizon(snapshot)) >= job->target;
	}
	feedpub_rows_some(pass, rel, job->max_rows);

	/* of all rows, as many as statistics say; or of the pages */
	if (job->republished > 0)
		job->ratio = job->total + pass->done < rel->rd_rel->reltuples ?
			(job->total + pass->done) / rel->rd_rel->reltuples :
			0;
	else if (pass->kind == FEEDPUB_ROWS_UNSTAMPED)
		job->ratio =
			Min((double) ItemPointerGetBlockNumberNoCheck(&pass->tid) / Max(RelationGetNumberOfBlocks(rel), 1), 1);
	if (!admitted && pass->ended && pass->left + pass->moved == 0)
		feedpub_shmem_mark(&job->feed, 1, false, false);	/* it can be admitted */
	return true;
}
