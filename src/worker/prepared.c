/*-------------------------------------------------------------------------
 * prepared.c
 *	  When prepared transactions end.
 *
 * COMMIT PREPARED runs no callback of ours, so it cannot wake the worker.  It
 * keeps a list of the prepared transactions, and looks at all feeds when one of
 * them has ended.
 *
 * A session that prepares a transaction marks the feeds to which that has
 * written, and tells the worker that the list is out of date.  The worker takes
 * both, reads the list, and then looks at the feeds.  If the transaction is in
 * the list, its end will be seen.  If not, it has ended before the look at its
 * feeds.  Between one list and the next none is lost: those that the next one
 * lacks have ended.
 *
 * The server counts transactions that end.  While that count is unchanged,
 * there is nothing to look for.  Most prepared transactions are committed at
 * once, so the worker looks often at first.  One that is forgotten must not
 * keep it awake: the older the youngest one, the less often it looks.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "worker/worker.h"

/*
 * The time between two looks: this share of the time for which the youngest
 * has been prepared, and at least so many ms.
 */
#define WATCH_SHARE		8
#define WATCH_INTERVAL	10

static List *watched = NIL;		/* their ids, as OIDs */
static List *listed;			/* what list_prepared() found */
static TimestampTz watched_since;	/* the youngest */

static void list_prepared(Oid feed);

/*
 * Mark all feeds if one has ended.  is_new says that the list lacks some.
 */
void
feedpub_prepared_check(bool is_new, void (*mark)(Oid feed), FeedpubRunStep run_step)
{
	static uint64 seen_completions = 0;
	static bool due = false;	/* the list is to be read */
	uint64		completions = TransamVariables->xactCompletionCount;
	ListCell   *lc;

	if (is_new)
		watched_since = GetCurrentTimestamp();
	due = due || is_new;
	if (completions != seen_completions)
	{
		foreach(lc, watched)
			due = due || !TransactionIdIsInProgress(lfirst_oid(lc));
	}
	seen_completions = completions;
	if (!due || !run_step("looking for prepared transactions", list_prepared, InvalidOid))
		return;
	due = false;
	if (list_difference_oid(watched, listed) != NIL)
		mark(InvalidOid);
	list_free(watched);
	watched = listed;
}

/*
 * They are read by SQL: the server's own list is private to twophase.c, and
 * their PGPROCs look like those of ended ones.
 */
static void
list_prepared(Oid feed)
{
	static FeedpubStatement find = {
		.sql = "SELECT transaction FROM pg_prepared_xacts WHERE database = current_database()",
	};
	List	   *prepared = feedpub_store_list(&find, NULL);
	MemoryContext oldcontext = MemoryContextSwitchTo(TopMemoryContext);

	listed = list_copy(prepared);
	MemoryContextSwitchTo(oldcontext);
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
