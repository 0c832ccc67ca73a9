/*-------------------------------------------------------------------------
 * republish.c
 *	  Publishing all rows of a table feed again, or those that are not in the
 *	  feed: feed_republish().
 *
 * An UPDATE that sets feed_xid to NULL publishes one row again, or those that
 * meet a condition.  This is for more rows than fit in one transaction.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_class.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "storage/lmgr.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "job/job.h"

PG_FUNCTION_INFO_V1(feed_republish);

/* how many rows are stamped in one transaction */
#define STEP_ROWS		1000

/* how often progress is reported, in ms */
#define REPORT_INTERVAL	10000

static List *find_tables(Oid feed);
static void require_table_feed(Oid relid);
static bool republish_table(Oid feed, Oid relid, bool unstamped_only);
static void admit_partitions(Oid relid);
static void stamp_outside(Oid feed);
static Relation begin_step(Oid feed, Oid relid);

/*
 * PROCEDURE feed_republish(feed regclass, unstamped_only boolean DEFAULT
 * false)
 *
 * Publishes all rows of a table feed again that were written before the call,
 * or only those that are not in the feed: rows without a stamp, or with a
 * stamp of another feed, or of a time when the partition was not in this one.
 * It works in steps, each in a transaction of its own, so it cannot run inside
 * a transaction block (25001).  If it is interrupted, it can be called again.
 *
 * It is an UPDATE as the table's owner, in a security-restricted operation:
 * triggers fire, and checks are made.  If the UPDATE of a row fails, the row
 * is left as it is, with a WARNING.  Locked rows are waited for.  For the
 * owner only.
 *
 * Errors: 42809 if it is no table feed; 55000 if the feed lacks its index, row
 * security holds for the owner, or a rule replaces UPDATE; 25006 on a standby;
 * 42501.
 */
Datum
feed_republish(PG_FUNCTION_ARGS)
{
	static const char *const names[] = {"feed", "unstamped_only"};
	bool		unstamped_only;
	MemoryContext oldcontext;
	List	   *tables;
	ListCell   *lc;
	Oid			relid;
	bool		done = true;

	/* the server calls a procedure with a CallContext only */
	if (castNode(CallContext, fcinfo->context)->atomic)
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("%s cannot run inside a transaction block",
						"feed_republish")));
	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
				 errmsg("feeds cannot be republished during recovery")));
	feedpub_argument_check(fcinfo, lengthof(names), names);
	relid = PG_GETARG_OID(0);
	unstamped_only = PG_GETARG_BOOL(1);
	require_table_feed(relid);
	feedpub_require_owner(relid);

	oldcontext = MemoryContextSwitchTo(PortalContext);
	tables = find_tables(relid);
	MemoryContextSwitchTo(oldcontext);
	SPI_connect_ext(SPI_OPT_NONATOMIC);
	SPI_commit();
	if (get_rel_relkind(relid) == RELKIND_PARTITIONED_TABLE)
		admit_partitions(relid);
	foreach(lc, tables)
		done = republish_table(relid, lfirst_oid(lc), unstamped_only) && done;
	if (get_rel_relkind(relid) == RELKIND_PARTITIONED_TABLE)
		stamp_outside(relid);
	feedpub_job_begin_transaction();
	if (done && !unstamped_only && get_rel_name(relid) != NULL)
		feedpub_registry_set_unstamped(relid, false);
	SPI_commit();
	SPI_finish();
	PG_RETURN_VOID();
}

static void
require_table_feed(Oid relid)
{
	FeedpubFeed feed;

	if (!feedpub_registry_is_registered(relid))
		feedpub_registry_get(relid, &feed); /* raises the error */
	if (!feedpub_registry_is_table(relid))
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("feed \"%s\" is an outbox", get_rel_name(relid)),
				 errdetail("A message is published once.")));
}

/*
 * The tables that have a feed's rows.
 */
static List *
find_tables(Oid feed)
{
	Relation	rel;
	List	   *tables;

	/* a table that inherits from a plain table is not in its feed */
	if (get_rel_relkind(feed) != RELKIND_PARTITIONED_TABLE)
		return list_make1_oid(feed);
	rel = relation_open(feed, AccessShareLock);
	tables = feedpub_partition_list(rel, false);
	relation_close(rel, AccessShareLock);
	return tables;
}

/*
 * Begin a transaction of a step: lock the table, and check that the step is
 * allowed.  Returns NULL if the table is not there any more.
 */
static Relation
begin_step(Oid feed, Oid relid)
{
	Relation	rel;

	feedpub_job_begin_transaction();
	rel = try_relation_open(relid, RowExclusiveLock);
	if (rel == NULL || !feedpub_registry_is_registered(feed) ||
		feedpub_partition_feed(relid) != feed)
	{
		if (rel != NULL)
			relation_close(rel, NoLock);
		return NULL;
	}
	feedpub_require_owner(feed);
	if (!OidIsValid(feedpub_relation_index(rel)))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("feed \"%s\" has no index on (%s, %s)",
						RelationGetRelationName(rel),
						FEEDPUB_XID_COLUMN, FEEDPUB_POS_COLUMN),
				 errhint("Run feed_check() to see what is missing.")));
	feedpub_rows_check(rel, false);
	return rel;
}

/*
 * Publish the rows of one table again.
 */
static bool
republish_table(Oid feed, Oid relid, bool unstamped_only)
{
	FeedpubPass pass;
	TimestampTz reported = GetCurrentTimestamp();
	int64		stamped = 0;
	uint64		next = U64FromFullTransactionId(ReadNextFullTransactionId());
	char	   *name = MemoryContextStrdup(PortalContext,
										   get_rel_name(relid) ? get_rel_name(relid) : "?");

	do
	{
		MemSet(&pass, 0, sizeof(pass));
		do
		{
			Relation	rel = begin_step(feed, relid);

			CHECK_FOR_INTERRUPTS();
			if (rel == NULL)
				return true;
			feedpub_rows_since(&pass, !unstamped_only ? next : relid == feed ? 0 :
																			   feedpub_partition_since(feed, rel));
			if (!unstamped_only)
				pass.kinds |= 1 << FEEDPUB_ROWS_FOREIGN;
			feedpub_rows_some(&pass, rel, STEP_ROWS);
			relation_close(rel, NoLock);
			stamped += pass.done;
			if (TimestampDifferenceExceeds(reported, GetCurrentTimestamp(), REPORT_INTERVAL))
			{
				ereport(INFO,
						(errmsg("%lld rows of \"%s\" have been published again so far",
								(long long) stamped, name)));
				reported = GetCurrentTimestamp();
			}
		} while (!pass.ended);
		if (TransactionIdIsValid(pass.left_xid))
		{
			/* a locked row was met: wait for its transaction */
			feedpub_job_begin_transaction();
			XactLockTableWait(pass.left_xid, NULL, NULL, XLTW_None);
		}
	} while (pass.moved + pass.left > 0);
	SPI_commit();
	ereport(INFO,
			(errmsg("%lld rows of \"%s\" have been published again",
					(long long) stamped, name)));
	if (pass.failed > 0)
		ereport(WARNING,
				(errmsg("%lld rows of \"%s\" could not be published again",
						(long long) pass.failed, name),
				 errdetail("The last error: %s.", pass.error),
				 errhint("Correct them, and call feed_republish(..., unstamped_only => true).")));
	return pass.failed == 0;
}

/*
 * Admit the partitions that are not admitted yet, as a publisher does, but
 * also if rows are of another history.
 */
static void
admit_partitions(Oid relid)
{
	FeedpubFeed feed;
	Relation	heap;
	bool		guarded;

	feedpub_job_begin_transaction();
	heap = feedpub_registry_open(relid);
	feedpub_registry_get(relid, &feed);
	feedpub_batch_lock(relid, true);
	(void) feedpub_partition_admit(&feed, heap, &guarded);
	relation_close(heap, NoLock);
	if (!guarded)
	{
		feedpub_job_begin_transaction();
		(void) feedpub_publish_guard(relid);
	}
}

/*
 * Stamp the rows that partitions came with, as the background process does,
 * and note which partitions are done.
 */
static void
stamp_outside(Oid feed)
{
	bool		failed_too = true;
	bool		admitted = false;

	for (;;)
	{
		MemoryContext oldcontext;
		List	   *jobs;
		ListCell   *lc;
		bool		progressed = false;

		feedpub_job_begin_transaction();
		oldcontext = MemoryContextSwitchTo(PortalContext);
		jobs = feedpub_job_list(feed, failed_too);
		MemoryContextSwitchTo(oldcontext);
		foreach(lc, jobs)
		{
			FeedpubJob *job = lfirst(lc);
			FeedpubJobOutcome outcome;

			if (job->kind != FEEDPUB_JOB_STAMP)
				continue;
			feedpub_job_begin(job, false, failed_too);
			do
			{
				CHECK_FOR_INTERRUPTS();
				feedpub_job_begin_transaction();
				outcome = feedpub_job_step(job, STEP_ROWS, true);
				progressed = progressed || job->pass.done > 0;
			} while (outcome == FEEDPUB_JOB_GOES_ON);
			feedpub_job_begin_transaction();
			if (outcome == FEEDPUB_JOB_DONE)
				jobs = foreach_delete_current(jobs, lc);
		}
		failed_too = false;
		if (jobs == NIL)
			break;
		if (progressed)
			continue;
		if (admitted)
		{
			ereport(NOTICE,
					(errmsg("rows of feed \"%s\" are still to be stamped", get_rel_name(feed)),
					 errdetail("Transactions that began before a partition was attached are still running, or rows are locked."),
					 errhint("Call feed_republish() again when they have ended.")));
			break;
		}
		/* rows of another server may have kept a partition out */
		admit_partitions(feed);
		admitted = true;
	}
}
