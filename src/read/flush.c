/*-------------------------------------------------------------------------
 *
 * flush.c
 *	  Waiting until all that has been committed is published: feed_flush().
 *
 * The caller asks the worker, in shared memory, to look at the feed, and waits
 * for the answer (server/shmem_mark.c).  Why everything that had committed
 * before the call is published then:
 *
 * 1. A transaction that had committed before the call had left the list of
 *    running ones before the question was written.
 * 2. The worker reads the question, under the same mutex, and only then
 *    begins the transaction of the look, which takes its snapshot. So that
 *    snapshot sees the transaction.
 * 3. The worker answers after that transaction has committed. If the look
 *    fails, or cannot be made because something is locked, the worker does
 *    not answer, and looks again.
 * 4. A look writes batches until its snapshot sees no living row that is
 *    in none (publish/publish.c). Of a large backlog each look writes a part,
 *    and only the last look is answered, which began later still. So the rows
 *    are in a batch, which is committed, and the snapshot that reads the head
 *    sees it.
 *
 * Batches of one feed say nothing of other feeds, so no order between feeds is
 * needed.  The caller never publishes by itself: its batch could be rolled
 * back.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "read/read.h"

PG_FUNCTION_INFO_V1(feed_flush);

/* how often the wait looks for a worker, in ms */
#define RECHECK_INTERVAL	1000

/* how often it asks again if all entries for requests are taken, in ms */
#define FULL_INTERVAL		50

static void check_transaction(Oid relid);
static void await_look(Oid relid, int64 timeout_ms);
static void check_worker(Oid relid);

/*
 * feed_flush(feed regclass, timeout interval DEFAULT '10 s') returns text,
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
	static const char *const names[] = {"feed", "timeout"};
	Oid			relid;
	int64		timeout_ms;
	text	   *head;

	feedpub_argument_check(fcinfo, lengthof(names), names);
	relid = PG_GETARG_OID(0);
	timeout_ms = feedpub_argument_timeout(PG_GETARG_INTERVAL_P(1));
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
	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("feed \"%s\" cannot be flushed during recovery",
						get_rel_name(relid)),
				 errhint("Flush it on the primary, and wait for the cursor here.")));
	if (TransactionIdIsValid(GetTopTransactionIdIfAny()))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("feed \"%s\" cannot be flushed in a transaction that has written",
						get_rel_name(relid)),
				 errhint("Commit first.")));
	if (feedpub_batch_is_locked_here(relid) || feedpub_own_changes_has_lock(relid))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("feed \"%s\" cannot be flushed in a transaction that has locked it",
						get_rel_name(relid)),
				 errhint("Commit first.")));
}

/*
 * Have the worker look at the feed, and wait until it has.  As in wait.c, the
 * queue is entered before the answer is looked for, so no wake-up is missed.
 */
static void
await_look(Oid relid, int64 timeout_ms)
{
	ConditionVariable *queue = feedpub_shmem_waiters(relid);
	TimestampTz end = GetCurrentTimestamp() + timeout_ms * 1000;
	uint64		number = 0;
	int			slot = -1;

	for (;;)
	{
		int64		left;

		CHECK_FOR_INTERRUPTS();
		check_worker(relid);
		ConditionVariablePrepareToSleep(queue);
		if (slot < 0)
			slot = feedpub_shmem_ask(relid, &number);
		if (slot >= 0 && feedpub_shmem_is_answered(slot, number))
			break;
		left = (end - GetCurrentTimestamp()) / 1000;
		if (left <= 0)
			ereport(ERROR,
					(errcode(ERRCODE_QUERY_CANCELED),
					 errmsg("could not flush feed \"%s\" in time",
							get_rel_name(relid)),
					 errhint("feedpub.workers and feedpub.feeds say what the worker does.")));
		feedpub_wait_sleep_in(queue, Min(left, slot < 0 ? FULL_INTERVAL : RECHECK_INTERVAL));
	}
	ConditionVariableCancelSleep();
}

/*
 * Make sure that there is a worker.
 */
static void
check_worker(Oid relid)
{
	if (!feedpub_launcher_ensure(InvalidOid))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("feed \"%s\" cannot be flushed: this database has no worker",
						get_rel_name(relid)),
				 feedpub_launcher_errdetail()));
}
