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

#include "access/htup_details.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/portal.h"

#include "retention/retention.h"

/* how many rows are removed in one transaction */
#define STEP_ROWS		1000

PG_FUNCTION_INFO_V1(feed_purge);
PG_FUNCTION_INFO_V1(feedpub_move_floor);

static int64 remove_all(Oid relid);
static void warn(Oid relid, const FeedpubPass *pass);
static Datum result(int64 purged);
static int64 expire_all(Oid feed);

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
	static const char *const names[] = {"feed", "before"};
	FeedpubCursor before;
	FeedpubFeed feed;
	Oid			relid;
	int64		purged;

	if (fcinfo->context == NULL || !IsA(fcinfo->context, CallContext) ||
		castNode(CallContext, fcinfo->context)->atomic)
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("%s cannot run inside a transaction block", "feed_purge")));
	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
				 errmsg("feeds cannot be purged during recovery")));
	feedpub_argument_check(fcinfo, lengthof(names), names);
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
	purged = remove_all(relid);
	SPI_commit();
	SPI_finish();
	return result(purged);
}

/*
 * Remove what is before the floor.  Returns how many rows.
 */
static int64
remove_all(Oid relid)
{
	FeedpubJobOutcome outcome = FEEDPUB_JOB_NOTHING;
	int64		removed = 0;

	while (outcome == FEEDPUB_JOB_NOTHING)
	{
		MemoryContext oldcontext;
		FeedpubJob *job = NULL;
		ListCell   *lc;

		feedpub_job_begin_transaction();
		oldcontext = MemoryContextSwitchTo(PortalContext);
		foreach(lc, feedpub_job_list(relid, false))
		{
			if (((FeedpubJob *) lfirst(lc))->kind != FEEDPUB_JOB_STAMP)
				job = lfirst(lc);
		}
		MemoryContextSwitchTo(oldcontext);
		if (job == NULL)
			break;
		feedpub_job_begin(job, false, true);
		do
		{
			CHECK_FOR_INTERRUPTS();
			feedpub_job_begin_transaction();
			outcome = feedpub_job_step(job, STEP_ROWS, true);
			removed += job->pass.done;
		} while (outcome == FEEDPUB_JOB_GOES_ON);
		if (outcome == FEEDPUB_JOB_WAITS)
			warn(relid, &job->pass);
	}
	return removed;
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
 * The row that the procedure returns.
 */
static Datum
result(int64 purged)
{
	TupleDesc	desc = CreateTemplateTupleDesc(1);
	Datum		values[1] = {Int64GetDatum(purged)};
	bool		nulls[1] = {false};

	TupleDescInitEntry(desc, 1, "purged", INT8OID, -1, 0);
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls));
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

	PG_RETURN_INT64(removed < 0 ? 0 : removed + expire_all(feed));
}

/*
 * Remove the deletes before the floor of a table feed, in this transaction.
 */
static int64
expire_all(Oid feed)
{
	int64		removed = 0;
	ListCell   *lc;

	foreach(lc, feedpub_job_list(feed, false))
	{
		FeedpubJob *job = lfirst(lc);
		FeedpubJobOutcome outcome;

		if (job->kind != FEEDPUB_JOB_EXPIRE)
			continue;
		feedpub_job_begin(job, false, false);
		do
		{
			outcome = feedpub_job_step(job, STEP_ROWS, false);
			removed += job->pass.done;
		} while (outcome == FEEDPUB_JOB_GOES_ON);
	}
	return removed;
}
