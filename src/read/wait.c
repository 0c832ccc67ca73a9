/*-------------------------------------------------------------------------
 *
 * wait.c
 *	  Waiting for something to be published: feed_wait() and feed_await().
 *
 * A session that waits enters a queue in shared memory, then looks with a new
 * snapshot, then sleeps.  The worker commits a batch, then wakes the queue.
 * So either the look sees the batch, or the batch was committed after the
 * look, and the wake-up that follows finds the session in the queue.  Feeds
 * share queues, so a session that is woken looks again.
 *
 * On a standby nothing wakes the queue.  There, and if shared memory had no
 * room, the look is repeated.
 *
 * A function holds its query's snapshot while it waits, which keeps VACUUM
 * from cleaning up. feed_await() is a procedure, so that it can end its
 * transaction before it sleeps.
 *
 * Nothing sleeps with a transaction id (feedpub_wait_may_sleep()), nor after
 * its client is gone (check_client()).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "storage/latch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"

#include "read/read.h"

PG_FUNCTION_INFO_V1(feed_wait);
PG_FUNCTION_INFO_V1(feed_await);

/* how often a session that nothing wakes looks, in ms */
#define POLL_INTERVAL	50

/*
 * The same of sessions that are woken, in ms: at first, and then twice as long
 * each time.  A worker that leaves or comes wakes all that wait
 * (server/shmem.c).  So only the drop of a feed is found by looking.
 */
#define RECHECK_INTERVAL	1000
#define LAST_RECHECK		10000

/* how often a sleeper looks whether its client is still there, in ms */
#define CLIENT_INTERVAL		1000

/* libpq/libpq.h, which needs the headers of GSSAPI and of OpenSSL */
extern bool pq_check_connection(void);

static void check_client(void);
static Oid	parse(FunctionCallInfo fcinfo, FeedpubCursor *after, int64 *timeout);
static bool lies_after(Oid relid, const FeedpubCursor *after, bool from_start,
					   bool history_checked);
static bool is_to_ask(Oid relid);

/*
 * feed_wait(feed regclass, after text, timeout interval DEFAULT '10 seconds')
 * returns boolean, VOLATILE
 *
 * Waits until something is after the cursor in published order.  Returns false
 * if nothing came in time.  Looks once if the transaction has a transaction
 * id.  Holds a snapshot while it waits; feed_await() does not.  Starts the
 * worker if there is none.  Needs SELECT on the table.  Errors: 42809 if it is
 * no feed, 22023 for a malformed cursor or a negative timeout, 42501, PF001
 * for a cursor or a feed from another history.
 */
Datum
feed_wait(PG_FUNCTION_ARGS)
{
	FeedpubCursor after;
	int64		timeout;
	Oid			relid = parse(fcinfo, &after, &timeout);

	PG_RETURN_BOOL(feedpub_wait_for_batch(relid, &after, timeout, 0));
}

/*
 * PROCEDURE feed_await(feed regclass, after text,
 * timeout interval DEFAULT '10 seconds', INOUT arrived boolean DEFAULT NULL)
 *
 * The same, without a snapshot, a lock or a transaction while it waits.
 * Cannot run inside a transaction block (25001).
 */
Datum
feed_await(PG_FUNCTION_ARGS)
{
	FeedpubCursor after;
	int64		timeout;
	Oid			relid;
	bool		arrived;
	Datum		result;
	bool		isnull = false;

	/* the server calls a procedure with a CallContext only */
	if (castNode(CallContext, fcinfo->context)->atomic)
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("%s cannot run inside a transaction block", "feed_await"),
				 errhint("Use feed_wait(), which holds the transaction's snapshot while it waits.")));

	relid = parse(fcinfo, &after, &timeout);
	SPI_connect_ext(SPI_OPT_NONATOMIC);
	arrived = feedpub_wait_for_batch(relid, &after, timeout, FEEDPUB_WAIT_IN_PROCEDURE);
	SPI_finish();

	result = BoolGetDatum(arrived);
	return feedpub_argument_row(fcinfo, &result, &isnull);
}

/*
 * May this transaction sleep?  Not if it has a transaction id: that would hold
 * xid order back in the whole cluster, and VACUUM with it, as long as it
 * sleeps.  Then every wait looks once.
 */
bool
feedpub_wait_may_sleep(void)
{
	return !TransactionIdIsValid(GetTopTransactionIdIfAny());
}

/*
 * Check the arguments of both, and return the feed.
 */
static Oid
parse(FunctionCallInfo fcinfo, FeedpubCursor *after, int64 *timeout)
{
	Oid			relid;

	feedpub_argument_check(fcinfo, 0, 3);
	*timeout = feedpub_argument_timeout(fcinfo, 2);
	relid = PG_GETARG_OID(0);
	(void) feedpub_head_parse(relid, PG_GETARG_TEXT_PP(1), after);
	feedpub_wait_check_feed(relid);
	return relid;
}

/*
 * Check that a relation is a feed that the caller may read, and that its
 * batches are of this history.
 */
void
feedpub_wait_check_feed(Oid relid)
{
	Relation	heap = feedpub_registry_open(relid);
	FeedpubFeed feed;
	FeedpubBatch last;
	Snapshot	snapshot;

	feedpub_registry_get(relid, &feed);
	feedpub_require_select(relid);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	feedpub_batch_last(relid, PG_INT64_MAX, snapshot, &last);
	feedpub_batch_refuse_foreign(&feed, &last);
	feedpub_history_check_changes(&feed, heap, snapshot);
	UnregisterSnapshot(snapshot);

	/* a wait of an hour must not hold up an ALTER TABLE */
	relation_close(heap, AccessShareLock);
}

/*
 * Has anything been published after the cursor?  Looks with a new snapshot.
 * If the caller has compared the cursor's history, it is not read again.  Who
 * reads from the start has no cursor that could be refused: it looks again then.
 *
 * If the cursor's batch, a merged one, has not arrived on this standby, nothing
 * is after it (feedpub_cursor_check_batch()), though the batches that were merged
 * into it are there, and later ones.
 */
static bool
lies_after(Oid relid, const FeedpubCursor *after, bool from_start, bool history_checked)
{
	FeedpubBatch last;
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	int64		number = feedpub_cursor_batch(after);
	bool		is_other = false;
	bool		goes_back = false;
	bool		is_ahead;
	FeedpubFloor floor;

	feedpub_batch_last(relid, PG_INT64_MAX, snapshot, &last);
	feedpub_floor_read(relid, snapshot, &floor);
	if (from_start && (after->history != floor.history || feedpub_cursor_is_expired(relid, after, &floor, snapshot)))
	{
		UnregisterSnapshot(snapshot);
		return true;
	}
	is_ahead = after->merged && RecoveryInProgress() && !feedpub_batch_has_arrived(relid, after, snapshot);
	if (after->given && !history_checked)
	{
		is_other = after->history != floor.history;
		if (!is_other)
			feedpub_cursor_refuse_expired(relid, after, &floor, snapshot);
		goes_back = !is_other && feedpub_proof_goes_back(relid, after, snapshot);
	}
	UnregisterSnapshot(snapshot);
	if (is_other || (last.sync_id == 0 && number > 0))
	{
		/* all batches gone: dropped just now, or a cursor of another feed */
		AcceptInvalidationMessages();
		if (get_rel_name(relid) == NULL)
			return false;
	}
	if (is_other ||
		(last.sync_id < number && !RecoveryInProgress()) ||
		(last.sync_id == number && last.sync_id > 0 &&
		 !feedpub_batch_has_cursor(after, last.sync_id, last.is_merged, last.fingerprint) &&
		 !(RecoveryInProgress() && after->merged)))
		feedpub_cursor_refuse(relid);
	if (goes_back)
		return true;
	if (after->initial &&
		feedpub_registry_is_table(relid))
		return true;			/* the initial snapshot */
	if (is_ahead)
		return false;

	/* '' of an outbox begins at its floor */
	if (!after->given && last.sync_id == floor.sync_id)
		return false;
	return last.sync_id > number ||
		(last.sync_id == number && last.last_pos > after->pos);
}

/*
 * Is the worker to be asked to look at the feed?  Each writer asks it when it
 * commits; a partition that is attached with rows asks nobody.  So it is enough
 * that a consumer that waits again and again asks once in RECHECK_INTERVAL.  A
 * look that finds nothing is in the way of the next commit's.
 */
static bool
is_to_ask(Oid relid)
{
	static Oid	asked = InvalidOid;
	static TimestampTz asked_at = 0;
	TimestampTz now = GetCurrentTimestamp();

	if (asked == relid && now >= asked_at && now < TimestampTzPlusMilliseconds(asked_at, RECHECK_INTERVAL))
		return false;
	asked = relid;
	asked_at = now;
	return true;
}

/*
 * Wait until something is published after the cursor, or the time is over.  In
 * a procedure the transaction is ended before each sleep, and its transaction
 * id with it.  A function with a transaction id looks once, and has the worker
 * look. flags are FEEDPUB_WAIT_...
 */
bool
feedpub_wait_for_batch(Oid relid, const FeedpubCursor *after,
					   int64 timeout_ms, int flags)
{
	ConditionVariable *queue = feedpub_shmem_waiters(relid);
	TimestampTz end = GetCurrentTimestamp() + timeout_ms * 1000;
	bool		arrived = false;
	bool		looked_before = false;
	int			recheck_ms = RECHECK_INTERVAL;

	for (;;)
	{
		int64		left;
		long		sleep_ms;
		bool		woken = queue != NULL && !RecoveryInProgress();

		CHECK_FOR_INTERRUPTS();
		if (woken)
			ConditionVariablePrepareToSleep(queue);

		/* the feed may be dropped while a procedure sleeps without a lock */
		AcceptInvalidationMessages();
		if (get_rel_name(relid) == NULL)
			break;
		arrived = lies_after(relid, after, (flags & FEEDPUB_WAIT_FROM_START) != 0,
							 !looked_before && (flags & FEEDPUB_WAIT_CHECKED) != 0);
		/* rounded up: who waits until something is due must not come before */
		left = (end - GetCurrentTimestamp() + 999) / 1000;
		if (arrived || left <= 0)
			break;
		(void) feedpub_launcher_ensure((!looked_before && (flags & FEEDPUB_WAIT_CHECKED)) || !feedpub_wait_may_sleep() || is_to_ask(relid) ?
										   relid :
										   InvalidOid);
		looked_before = true;
		if (flags & FEEDPUB_WAIT_IN_PROCEDURE)
		{
			SPI_commit();
			InvalidateCatalogSnapshot();
		}
		if (!feedpub_wait_may_sleep())
			break;

		sleep_ms = Min(left, woken ? recheck_ms : POLL_INTERVAL);
		recheck_ms = Min(recheck_ms * 2, LAST_RECHECK);
		feedpub_wait_sleep_in(woken ? queue : NULL, sleep_ms);
	}
	ConditionVariableCancelSleep();
	if (!arrived && timeout_ms > 0)
		feedpub_launcher_warn(relid);
	return arrived;
}

/*
 * Sleep until the queue is woken, which the caller has entered, or the time is
 * over.  Without a queue, until the latch is set or the time is over.
 */
void
feedpub_wait_sleep_in(ConditionVariable *queue, int64 timeout_ms)
{
	uint32		event = feedpub_wait_event("FeedpubWait");
	TimestampTz end = GetCurrentTimestamp() + timeout_ms * 1000;
	int64		left = timeout_ms;

	while (left > 0)
	{
		long		sleep_ms = Min(left, CLIENT_INTERVAL);
		int			events = WL_TIMEOUT;

		if (queue == NULL)
		{
			events = WaitLatch(MyLatch,
							   WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
							   sleep_ms, event);
			ResetLatch(MyLatch);
		}
		else if (!ConditionVariableTimedSleep(queue, sleep_ms, event))
			return;
		check_client();
		if (events & WL_LATCH_SET)
			return;

		/* the queue's wake-up may have been taken for the client's */
		if (queue != NULL)
			SetLatch(MyLatch);
		left = (end - GetCurrentTimestamp()) / 1000;
	}
}

/*
 * End the session if its client is gone, as the server does if it cannot write
 * to it.  Without this, a wait for a client that was killed would last until
 * the timeout: the server looks only while it reads or writes, unless
 * client_connection_check_interval is set.  The look resets our latch.
 */
static void
check_client(void)
{
	if (MyProcPort != NULL && WaitEventSetCanReportClosed() &&
		!pq_check_connection())
	{
		ClientConnectionLost = true;
		InterruptPending = true;
	}
	CHECK_FOR_INTERRUPTS();
}
