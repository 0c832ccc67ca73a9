/*-------------------------------------------------------------------------
 *
 * purge.c
 *	  Removing rows by hand: feed_purge().
 *
 * It does what the worker and its process for jobs do: the floor moves
 * in a transaction of its own, and then the rows before it are removed in
 * steps.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "retention/retention.h"

PG_FUNCTION_INFO_V1(feed_purge);
PG_FUNCTION_INFO_V1(feedpub_move_floor);

static int64 remove_all(Oid relid);
static FeedpubJob *find_removal(Oid feed);
static void warn(Oid relid, const FeedpubPass *pass);

/*
 * PROCEDURE feed_purge(feed regclass, before text,
 * INOUT purged bigint DEFAULT NULL)
 *
 * Removes the rows of an outbox, or the deletes of a table feed, up to a
 * cursor: whole batches, so those of the cursor's own batch only if it is at
 * the batch's end.  purged is how many this
 * call has removed.  The floor moves there, and older cursors are refused
 * (PF002).  It works in steps, each in a transaction of
 * its own, so it cannot run inside a transaction block (25001).  If it is
 * interrupted, what is before the floor is removed in the background.
 *
 * It is a DELETE as the table's owner, in a security-restricted operation:
 * triggers fire, and foreign keys act.  If the DELETE of a row fails, or it is
 * locked, the row is left, with a WARNING; in published order it is not
 * delivered any more.  For the owner only.
 *
 * Errors: 42809 if it is no feed, 22004; 22023 if before is no cursor; 55000
 * if a subscription has not acknowledged everything before the cursor, or row
 * security holds for the owner, or a rule replaces DELETE; PF001 for a cursor
 * of another history; 25006 on a standby; 42501.
 */
Datum
feed_purge(PG_FUNCTION_ARGS)
{
	FeedpubCursor before;
	FeedpubFeed feed;
	Oid			relid;
	Datum		purged;
	bool		isnull = false;

	feedpub_argument_check_call(fcinfo, "feed_purge");
	feedpub_argument_check(fcinfo, 0, 2);
	relid = PG_GETARG_OID(0);
	feedpub_cursor_parse(PG_GETARG_TEXT_PP(1), &before);
	if (!before.given)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"before\" must be a cursor"),
				 errhint("Use feed_head(), or a cursor as it was delivered.")));
	feedpub_registry_get(relid, &feed);
	feedpub_require_owner(relid);

	SPI_connect_ext(SPI_OPT_NONATOMIC);
	do
	{
		CHECK_FOR_INTERRUPTS();
		feedpub_job_begin_transaction();
		if (!feedpub_registry_is_registered(relid))
			break;
		feedpub_require_owner(relid);	/* it may have changed */
	} while (feedpub_retain_move_to(relid, &before));
	purged = Int64GetDatum(remove_all(relid));
	SPI_commit();
	SPI_finish();
	return feedpub_argument_row(fcinfo, &purged, &isnull);
}

/*
 * Remove what is before the floor.  Returns how many rows.
 */
static int64
remove_all(Oid relid)
{
	FeedpubJobOutcome outcome = FEEDPUB_JOB_NOTHING;
	FeedpubJob *job;
	int64		removed = 0;

	while (outcome == FEEDPUB_JOB_NOTHING)
	{
		feedpub_job_begin_transaction();
		job = find_removal(relid);
		if (job == NULL)
			break;
		feedpub_job_begin(job, false, true);
		outcome = feedpub_job_run(job);
		removed += job->total;
		if (outcome == FEEDPUB_JOB_WAITS)
			warn(relid, &job->pass);
	}
	return removed;
}

/*
 * The job that removes what is before the floor of a feed; NULL if there is
 * nothing.  It lives until the end of the call.
 */
static FeedpubJob *
find_removal(Oid feed)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(PortalContext);
	FeedpubJob *removal = NULL;
	ListCell   *lc;

	foreach(lc, feedpub_job_list(feed))
	{
		FeedpubJob *job = lfirst(lc);

		if (job->kind != FEEDPUB_JOB_STAMP)
			removal = job;
	}
	MemoryContextSwitchTo(oldcontext);
	return removal;
}

static void
warn(Oid relid, const FeedpubPass *pass)
{
	int64		n = pass->failed + pass->left;

	ereport(WARNING,
			(errmsg_plural("%lld row of \"%s\" before the floor could not be removed",
						   "%lld rows of \"%s\" before the floor could not be removed",
						   n, (long long) n, get_rel_name(relid)),
			 pass->failed > 0			? errdetail("The last error: %s.", pass->error) :
				 pass->error[0] != '\0' ? errdetail("A row is %s.", pass->error) :
										  errdetail("Other sessions had locked them."),
			 errhint("They are not delivered in published order any more.  The worker tries again.")));
}

/*
 * feedpub._move_floor(feed regclass) returns bigint
 *
 * The worker's step, by hand, and the removal of a table feed's deletes.
 * Returns how many batches of an outbox, or tombstones of a table feed, were
 * removed.  Not for PUBLIC.
 */
Datum
feedpub_move_floor(PG_FUNCTION_ARGS)
{
	Oid			feed = PG_GETARG_OID(0);
	int64		removed = feedpub_retain_step(feed);
	FeedpubJob *job = removed < 0 ? NULL : find_removal(feed);

	if (job != NULL && job->kind == FEEDPUB_JOB_EXPIRE)
	{
		feedpub_job_begin(job, false, false);
		while (feedpub_job_step(job, false) == FEEDPUB_JOB_GOES_ON)
			CHECK_FOR_INTERRUPTS();
		removed += job->total;
	}
	PG_RETURN_INT64(Max(removed, 0));
}
