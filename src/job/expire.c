/*-------------------------------------------------------------------------
 *
 * expire.c
 *	  Removing what is before a floor: the rows of an outbox, or the deletes of
 *	  a table feed, whose tombstones are rows of feedpub._tombstone.
 *
 * The rows that the snapshot of the floor's batch sees are deleted through the
 * index, in the order of their stamps, in steps.  Of an outbox each step is a
 * DELETE as the table's owner, so the owner's triggers fire and foreign keys
 * act.
 *
 * No reader misses a row of a step: the floor has moved before, in a
 * transaction that had committed when the step began (floor.c).  A step reads
 * the floor under a lock on the feed's history, which it holds until it
 * commits.  So feed_begin_history(), which forgets the floor and publishes all
 * rows again, cannot run between.
 *
 * A snapshot may see some of the tombstones before the floor, and not others.
 * A reader that is not refused has a base that is not before the floor
 * (read/cursor_check.c): it never got the rows that they removed, so it does not
 * matter which of them it gets.
 *
 * If the floor has moved, another pass begins: not at the first row, but at the
 * xid below which the snapshot of the floor before saw everything, and the pass
 * has been.  If rows were left, because they were locked or their DELETE
 * failed, the next pass begins where this one did.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "job/job.h"

/*
 * A step, under the locks.  Returns false if the floor has moved since, or the
 * feed is gone.
 */
bool
feedpub_remove_rows(FeedpubJob *job, Relation rel)
{
	bool		is_outbox = job->kind == FEEDPUB_JOB_REMOVE;
	FeedpubPass *pass = &job->pass;
	bool		is_there;
	FeedpubFeed registered;		/* reading it raises an error without an index */
	FeedpubFloor floor;
	FeedpubBatch batch;
	Relation	rows;

	PushActiveSnapshot(GetLatestSnapshot());
	feedpub_floor_read(job->feed, GetActiveSnapshot(), &floor);
	is_there = floor.sync_id == (int64) job->target && feedpub_registry_find(job->feed, &registered);
	if (is_there)
	{
		/* if it came with a dump, it sees rows that were written here since */
		feedpub_batch_last(job->feed, PG_INT64_MAX, GetActiveSnapshot(), &batch);
		feedpub_batch_refuse_foreign(&registered, &batch);
		feedpub_batch_last(job->feed, floor.sync_id + 1, GetActiveSnapshot(), &batch);
		if (batch.sync_id != floor.sync_id)
			elog(ERROR, "feed \"%s\" has no batch at its floor", RelationGetRelationName(rel));
		pass->kinds = 1 << FEEDPUB_ROWS_BEFORE;
		pass->before = batch.snapshot;
		pass->feed = is_outbox ? InvalidOid : job->feed;
		if (is_outbox)
			feedpub_rows_check(rel, true);
		rows = is_outbox ? rel : relation_open(feedpub_registry_table("_tombstone"), RowExclusiveLock);
		feedpub_rows_some(pass, rows, job->max_rows);

		/* from the first row, which is a step of its own, to the floor */
		if (job->first_pos == 0)
			job->first_pos = pass->pos;
		job->ratio = Max(Min((double) (pass->pos - job->first_pos) / Max(batch.last_pos - job->first_pos, 1), 1), 0);
		if (rows != rel)
			relation_close(rows, NoLock);
	}
	PopActiveSnapshot();
	return is_there;
}
