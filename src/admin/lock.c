/*-------------------------------------------------------------------------
 *
 * lock.c
 *	  The lock that the functions for owners take on tables.
 *
 * It is asked for in attempts, short ones at first: while it waits, it blocks
 * all other sessions that need the table.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/proc.h"

#include "admin/admin.h"

/*
 * The first attempt waits this long for the lock, and each further one twice
 * as long, up to the last.  After each attempt, other sessions have twice its
 * time.  All of it ends after LOCK_TOTAL_MS, or lock_timeout.
 */
#define LOCK_FIRST_WAIT_MS	100
#define LOCK_LAST_WAIT_MS	2000
#define LOCK_TOTAL_MS		30000

/* An attempt to lock tables. */
typedef struct LockAttempt
{
	List	   *feeds;			/* with what is captured into them */
	List	   *relids;
	LOCKMODE	mode;
	int			held_ms;		/* how long it may last with the first lock */
	TimestampTz end;
} LockAttempt;

/*
 * The tables that are captured into feeds.
 */
static List *
captured(List *feeds)
{
	List	   *result = NIL;
	ListCell   *lc;

	foreach(lc, feeds)
		result = list_concat_unique_oid(result, feedpub_capture_list(lfirst_oid(lc)));
	return result;
}

/*
 * Lock the tables, their partitions and theirs, up to the attempt's end, which
 * is earlier from the first lock on.
 */
static void
lock_tables(LockAttempt *attempt)
{
	ListCell   *lc;

	foreach(lc, attempt->relids)
	{
		LockTimeout = Max(TimestampDifferenceMilliseconds(GetCurrentTimestamp(), attempt->end), 1);
		LockRelationOid(lfirst_oid(lc), attempt->mode);
		attempt->end = Min(attempt->end, TimestampTzPlusMilliseconds(GetCurrentTimestamp(), attempt->held_ms));
		attempt->relids = feedpub_catalog_partitions(lfirst_oid(lc));
		lock_tables(attempt);
	}
}

static void
lock_all(void *arg)
{
	LockAttempt *attempt = arg;
	List	   *known = captured(attempt->feeds);

	attempt->relids = list_concat(list_concat(list_copy(known), attempt->feeds), attempt->relids);
	lock_tables(attempt);
	if (list_difference_oid(captured(attempt->feeds), known) != NIL)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("another table was captured into a feed that was waited for")));
}

/*
 * Lock tables against all other sessions, or against writers, with their
 * partitions.
 *
 * While the lock is waited for, no other session gets one: new writers and
 * readers queue after us.  So it is waited for a short time only, then given
 * up, and asked for again when they have had theirs.  But if transactions
 * overlap without end, a wait succeeds only if it is as long as the longest
 * transaction that began before it.  So each attempt is longer than the one
 * before.
 *
 * No session is blocked for more than two seconds, nor for more than a third
 * of the time.  The lock is obtained if transactions take up to two seconds,
 * that of several tables if they take up to half of deadlock_timeout.  If a
 * reader takes an hour, we give up.
 *
 * A writer may wait for a table that we have locked, while we wait for one that
 * it has.  It would look for deadlocks after deadlock_timeout and be cancelled.
 * So from the first lock on, an attempt ends within half of that time, and with
 * it go all locks that it has got: no writer has waited long enough to look.
 * Several tables are locked in one attempt for the same reason.
 *
 * We ourselves look for deadlocks sooner, so that the server cancels an
 * autovacuum for us before the attempt ends.
 */
void
feedpub_lock_tables(List *relids, LOCKMODE mode)
{
	feedpub_lock_feeds(NIL, relids, mode);
}

/*
 * The same of feeds, and of the tables that are captured into them, before them:
 * a writer of a captured table locks that first, and then the feed.  A table can be
 * captured while the feed is waited for.  So when all is locked, the captures are
 * looked at again.  Nobody can make one any more, since that locks the feed.  If
 * there is one of a table that is not locked, the attempt is given up.
 */
void
feedpub_lock_feeds(List *feeds, List *relids, LOCKMODE mode)
{
	int			total = LockTimeout > 0 ? LockTimeout : LOCK_TOTAL_MS;
	TimestampTz end = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), total);
	int			save_timeout = LockTimeout;
	int			save_deadlock_timeout = DeadlockTimeout;
	int			wait_ms = LOCK_FIRST_WAIT_MS;
	int			held_ms = Max(DeadlockTimeout / 2, 1);

	for (;;)
	{
		TimestampTz now = GetCurrentTimestamp();
		long		left = TimestampDifferenceMilliseconds(now, end);
		LockAttempt attempt = {feeds, relids, mode, held_ms, TimestampTzPlusMilliseconds(now, Max(Min(wait_ms, left), 1))};
		ErrorData  *error;

		DeadlockTimeout = Max(held_ms / 2, 1);
		error = feedpub_attempt_error(lock_all, &attempt, true);
		LockTimeout = save_timeout;
		DeadlockTimeout = save_deadlock_timeout;
		if (error == NULL)
			return;

		/* the last attempt was that with the time that was left */
		if (left <= wait_ms ||
			(error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE &&
			 error->sqlerrcode != ERRCODE_T_R_DEADLOCK_DETECTED))
			ReThrowError(error);
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 Min(2 * wait_ms, TimestampDifferenceMilliseconds(GetCurrentTimestamp(), end)),
						 feedpub_wait_event("FeedpubAttach"));
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		wait_ms = Min(2 * wait_ms, LOCK_LAST_WAIT_MS);
	}
}

/*
 * The tables that are captured into a feed and exist, by OID.
 */
List *
feedpub_capture_list(Oid feed)
{
	static FeedpubStatement find = {
		.sql = "SELECT c.relation FROM feedpub._capture c, pg_catalog.pg_class r"
			   " WHERE c.feed = $1 AND r.oid = c.relation ORDER BY c.relation",
		.latest = true,
	};

	return feedpub_store_list(&find, (Datum[]){ObjectIdGetDatum(feed)});
}
