/*-------------------------------------------------------------------------
 *
 * flush.c
 *	  Waiting until all that has been committed is published: feed_flush().
 *
 * Everything that had committed before the call is published if
 *
 * - the last batch sees all that a snapshot sees which was taken in the call; or
 * - a new snapshot sees no living row that is in no batch.  Then rows that had
 *	 committed before the call are in one, or are gone.
 *
 * The caller enters a queue, asks this, marks the feed as a commit does, and
 * sleeps.  The worker takes the mark, then begins a look, whose snapshot is
 * later than that of the call.  A look writes batches until its snapshot sees
 * no living row that is in none (publish/cut.c), of a large backlog in several
 * steps.  After each batch it wakes the queue.  If the look has written batches,
 * the last one sees all that the snapshot of the call sees.  If it finds nothing,
 * the row has been removed since the caller saw it.  No batch follows then, and
 * the caller asks again in a second.
 *
 * If the look fails, or cannot be made because something is locked, the worker
 * looks again.
 *
 * Batches of one feed say nothing of other feeds, so no order between feeds is
 * needed.  The caller never publishes by itself: its batch could be rolled
 * back.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"

#include "read/read.h"

PG_FUNCTION_INFO_V1(feed_flush);

/* how often the wait looks for a worker, in ms */
#define RECHECK_INTERVAL	1000

static void check_transaction(Oid relid);
static void await_look(Oid relid, int64 timeout_ms);

/*
 * feed_flush(feed regclass, timeout interval DEFAULT '1 min') returns text,
 * VOLATILE
 *
 * Waits until everything that had committed before the call is published, and
 * returns the head then.  A consumer that has got there has caught up.  It
 * does not wait for transactions that still run, nor for rows that are to be
 * stamped anew.  Holds the query's snapshot while it waits.
 *
 * Needs SELECT on the table.  Errors: 42809 if it is no feed, 22023 for a
 * negative timeout, 42501, PF001, 57014 at the timeout; 55000 if nothing could
 * come: without a worker, on a standby, with a transaction id, or if the
 * caller's own locks keep the worker from the feed.
 */
Datum
feed_flush(PG_FUNCTION_ARGS)
{
	Oid			relid;
	int64		timeout_ms;
	text	   *head;

	feedpub_argument_check(fcinfo, 0, 2);
	relid = PG_GETARG_OID(0);
	timeout_ms = feedpub_argument_timeout(fcinfo, 1);
	feedpub_wait_check_feed(relid);
	check_transaction(relid);
	await_look(relid, timeout_ms);

	PushActiveSnapshot(GetLatestSnapshot());
	head = feedpub_head_of(relid);
	PopActiveSnapshot();
	PG_RETURN_TEXT_P(head);
}

/*
 * Refuse a wait that could not end.  Nothing waits with a transaction id
 * (feedpub_wait_may_sleep()).
 */
static void
check_transaction(Oid relid)
{
	bool		is_standby = RecoveryInProgress();
	const char *when = is_standby												   ? "during recovery" :
		TransactionIdIsValid(GetTopTransactionIdIfAny())						   ? "in a transaction that has written" :
		feedpub_batch_is_locked_here(relid) || feedpub_own_changes_has_lock(relid) ? "in a transaction that has locked it" :
																					 NULL;

	if (when != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("feed \"%s\" cannot be flushed %s", get_rel_name(relid), when),
				 is_standby ?
					 errhint("Flush it on the primary, and wait for the cursor here.") :
					 errhint("Commit first.")));
}

/*
 * Have the worker look at the feed, until everything is published that a
 * snapshot of now sees.
 */
static void
await_look(Oid relid, int64 timeout_ms)
{
	ConditionVariable *queue = feedpub_shmem_waiters(relid);
	TimestampTz end = GetCurrentTimestamp() + timeout_ms * 1000;
	FeedpubSnapshot called;

	feedpub_batch_take_snapshot(GetLatestSnapshot(), &called);
	for (;;)
	{
		int64		left;

		CHECK_FOR_INTERRUPTS();
		if (!feedpub_launcher_ensure(InvalidOid))
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("feed \"%s\" cannot be flushed: this database has no worker",
							get_rel_name(relid)),
					 feedpub_launcher_errdetail()));
		ConditionVariablePrepareToSleep(queue);
		if (feedpub_flush_is_published(relid, &called))
			break;
		left = (end - GetCurrentTimestamp()) / 1000;
		if (left <= 0)
			ereport(ERROR,
					(errcode(ERRCODE_QUERY_CANCELED),
					 errmsg("could not flush feed \"%s\" in time",
							get_rel_name(relid)),
					 errhint("feedpub.workers and feedpub.feeds say what the worker does.")));
		feedpub_shmem_mark(&relid, 1, false, false);
		feedpub_wait_sleep_in(queue, Min(left, RECHECK_INTERVAL));
	}
	ConditionVariableCancelSleep();
}

/*
 * Is everything published, or all that this snapshot sees?
 */
bool
feedpub_flush_is_published(Oid relid, const FeedpubSnapshot *called)
{
	Relation	heap = feedpub_registry_open(relid);
	FeedpubFeed feed;
	FeedpubBatch last;
	bool		result;

	feedpub_registry_get(relid, &feed);
	PushActiveSnapshot(GetLatestSnapshot());
	feedpub_batch_last(relid, PG_INT64_MAX, GetActiveSnapshot(), &last);
	result = (called != NULL && feedpub_batch_is_later(&last.snapshot, called)) ||
		!feedpub_unpublished_exists(&feed, heap, GetActiveSnapshot(), &last.snapshot);
	PopActiveSnapshot();

	/* a wait must not hold up an ALTER TABLE */
	relation_close(heap, AccessShareLock);
	return result;
}
