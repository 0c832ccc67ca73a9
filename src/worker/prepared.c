/*-------------------------------------------------------------------------
 * prepared.c
 *	  Feeds to which prepared transactions have written.
 *
 * COMMIT PREPARED runs no callback of ours, so it cannot wake the worker.  It
 * has these transactions on watch, and marks their feeds when they have ended.
 * Their sessions put them on watch when they are prepared; those that were
 * prepared before the server started are looked for.
 *
 * The server counts transactions that end.  While that count is unchanged,
 * there is nothing to look for.  Most prepared transactions are committed at
 * once, so the worker looks often at first.  One that is forgotten must not
 * keep it awake: the older the youngest one, the less often it looks.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "storage/procarray.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "worker/worker.h"

/*
 * The time between two looks: this share of the time for which the youngest
 * has been on watch, and at least so many ms.
 */
#define WATCH_SHARE		8
#define WATCH_INTERVAL	10

static List *watched = NIL;		/* of FeedpubPrepared */
static TimestampTz watched_since;	/* the youngest */
static uint64 seen_completions = 0;
static bool some_prepared;		/* what count_prepared() found */

static void watch(const FeedpubPrepared *prepared);
static void count_prepared(Oid relid);

/*
 * Put on watch what is prepared when the worker begins.
 */
void
feedpub_prepared_begin(void)
{
	ListCell   *lc;

	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	foreach(lc, feedpub_horizon_prepared())
	{
		FeedpubPrepared prepared = {.xid = lfirst_oid(lc)};

		watch(&prepared);
	}
	PopActiveSnapshot();
	CommitTransactionCommand();
}

static void
watch(const FeedpubPrepared *prepared)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(TopMemoryContext);
	FeedpubPrepared *p = palloc_object(FeedpubPrepared);

	*p = *prepared;
	watched = lappend(watched, p);
	watched_since = GetCurrentTimestamp();
	MemoryContextSwitchTo(oldcontext);
}

/*
 * Mark the feeds of those that have ended; InvalidOid stands for all feeds.
 */
void
feedpub_prepared_check(void (*mark)(Oid feed), FeedpubRunStep run_step)
{
	FeedpubPrepared prepared[FEEDPUB_MAX_PREPARED];
	int			nprepared = feedpub_shmem_take_watch(prepared);
	uint64		completions;
	ListCell   *lc;

	for (int i = 0; i < nprepared; i++)
		watch(&prepared[i]);
	completions = TransamVariables->xactCompletionCount;
	if (watched == NIL || (nprepared == 0 && completions == seen_completions))
		return;
	seen_completions = completions;
	foreach(lc, watched)
	{
		FeedpubPrepared *p = lfirst(lc);

		/* there were too many to list: each end may be one of theirs */
		if (TransactionIdIsValid(p->xid) && TransactionIdIsInProgress(p->xid))
			continue;
		mark(p->feed);
		if (!TransactionIdIsValid(p->xid))
		{
			some_prepared = true;
			(void) run_step("looking for prepared transactions",
							count_prepared, InvalidOid);
			if (some_prepared)
				continue;
		}
		watched = foreach_delete_current(watched, lc);
		pfree(p);
	}
}

static void
count_prepared(Oid relid)
{
	some_prepared = feedpub_horizon_prepared() != NIL;
}

/*
 * How long the worker may sleep before the next look, in ms.
 */
long
feedpub_prepared_wait(void)
{
	if (watched == NIL)
		return LONG_MAX;
	return Max(TimestampDifferenceMilliseconds(watched_since, GetCurrentTimestamp()) / WATCH_SHARE,
			   WATCH_INTERVAL);
}
