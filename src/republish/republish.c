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
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "job/job.h"

PG_FUNCTION_INFO_V1(feed_republish);

/*
 * A row may fail by a conflict though no transaction has locked it, for example
 * if a trigger raises 40001.  After so many passes in which no row was stamped
 * it counts as failed.
 */
#define MAX_TRIES		20

/*
 * Admit the partitions that are not admitted yet, as a publisher does, but
 * also if rows are of another history.
 */
static void
admit_partitions(Oid relid)
{
	FeedpubFeed feed;
	Relation	heap = feedpub_registry_open(relid);
	bool		admitted;
	bool		guarded;

	feedpub_registry_get(relid, &feed);
	feedpub_batch_lock(relid, true);
	feedpub_partition_close(feedpub_partition_admit(&feed, heap, &admitted, &guarded));
	relation_close(heap, NoLock);
	feedpub_job_begin_transaction();
	if (!guarded)
		(void) feedpub_publish_guard(relid);
}

/*
 * The tables that have a feed's rows, until the end of the call.
 */
static List *
find_tables(Oid feed)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(PortalContext);
	List	   *tables = list_make1_oid(feed);

	/* a table that inherits from a plain table is not in its feed */
	if (get_rel_relkind(feed) == RELKIND_PARTITIONED_TABLE)
	{
		Relation	rel = feedpub_registry_open(feed);

		tables = feedpub_partition_list(rel, false);
		relation_close(rel, AccessShareLock);
	}
	MemoryContextSwitchTo(oldcontext);
	return tables;
}

/*
 * Publish the rows of one table again: a stamp job, as the background process
 * does it, for more rows.  Returns whether it is to be done again, since the
 * partition has become another one for the feed meanwhile.
 */
static bool
republish_table(Oid feed, Oid relid, uint64 before, bool *failed)
{
	FeedpubJob *job = MemoryContextAllocZero(PortalContext, sizeof(FeedpubJob));
	FeedpubPass *pass = &job->pass;
	FeedpubJobOutcome outcome;
	Relation	rel;
	char	   *name;
	int			tries = 0;

	feedpub_job_begin_transaction();
	rel = try_relation_open(relid, AccessShareLock);
	if (rel == NULL)
		return false;
	name = MemoryContextStrdup(PortalContext, RelationGetRelationName(rel));
	*job = (FeedpubJob){.feed = feed, .relation = relid, .republished = before, .target = feedpub_stamp_target(feed, rel), .max_rows = 1};
	relation_close(rel, AccessShareLock);
	if (job->target > 0)
		feedpub_job_begin(job, false, true);
	for (int64 total = 0;; total = job->total)
	{
		outcome = feedpub_job_run(job);
		if (job->total > total)
			tries = 0;
		if (outcome != FEEDPUB_JOB_WAITS || pass->left == 0)
			break;
		feedpub_job_begin_transaction();
		if (TransactionIdIsValid(pass->left_xid))
			XactLockTableWait(pass->left_xid, NULL, NULL, XLTW_None);
		else if (++tries == MAX_TRIES)
			break;
	}
	SPI_commit();
	ereport(INFO,
			(errmsg("%lld rows of \"%s\" have been published again",
					(long long) job->total, name)));
	if (pass->failed + pass->left > 0)
		ereport(WARNING,
				(errmsg("%lld rows of \"%s\" could not be published again",
						(long long) (pass->failed + pass->left), name),
				 errdetail("The last error: %s.", pass->error),
				 errhint("Correct them, and call feed_republish(..., unstamped_only => true).")));
	*failed = *failed || pass->failed + pass->left > 0;

	/* a partition is admitted when its rows of another server are stamped */
	if (outcome == FEEDPUB_JOB_NOTHING)
		return feedpub_partition_feed(relid) == feed;
	if (job->target == FEEDPUB_SINCE_NEVER)
		return job->total > 0 && pass->failed == 0;
	if (outcome == FEEDPUB_JOB_WAITS && pass->left == 0)
		ereport(NOTICE,
				(errmsg("rows of feed \"%s\" are still to be stamped", get_rel_name(feed)),
				 errdetail("Transactions that began before a partition was attached are still running."),
				 errhint("Call feed_republish() again when they have ended.")));
	return false;
}

/*
 * PROCEDURE feed_republish(feed regclass, unstamped_only boolean DEFAULT
 * false)
 *
 * Publishes all rows of a table feed again that were written before the call,
 * or only those that are not in the feed: rows without a stamp, or with a
 * stamp of another feed, or of a time when the partition was not in this one.
 * It works in steps, each in a transaction of its own, so it cannot run inside
 * a transaction block (25001).  If it is interrupted, it can be called again;
 * the rows that partitions came with are stamped in the background in any case.
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
	bool		unstamped_only;
	FeedpubFeed feed;
	bool		failed = false;
	bool		again = true;
	uint64		before;
	Oid			relid;

	feedpub_argument_check_call(fcinfo, "feed_republish");
	feedpub_argument_check(fcinfo, 0, 2);
	relid = PG_GETARG_OID(0);
	unstamped_only = PG_GETARG_BOOL(1);
	feedpub_registry_get(relid, &feed);
	if (feed.is_outbox)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("feed \"%s\" is %s", get_rel_name(relid), feed.is_changes ? "a change feed" : "an outbox"),
				 errdetail("%s is published once.", feed.is_changes ? "A change" : "A message")));
	feedpub_require_owner(relid);
	before = unstamped_only ? 0 : U64FromFullTransactionId(ReadNextFullTransactionId());

	SPI_connect_ext(SPI_OPT_NONATOMIC);
	while (again)
	{
		ListCell   *lc;

		again = false;
		feedpub_job_begin_transaction();
		if (!feedpub_registry_is_registered(relid))
			break;
		if (get_rel_relkind(relid) == RELKIND_PARTITIONED_TABLE)
			admit_partitions(relid);
		foreach(lc, find_tables(relid))
			again = republish_table(relid, lfirst_oid(lc), before, &failed) || again;
	}
	feedpub_job_begin_transaction();
	if (!failed && !unstamped_only && get_rel_name(relid) != NULL)
		feedpub_registry_set_unstamped(relid, false);
	SPI_commit();
	SPI_finish();
	PG_RETURN_VOID();
}
