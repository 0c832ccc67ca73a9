/*-------------------------------------------------------------------------
 *
 * access.c
 *	  What readers of both orders need before and after they read.
 *
 * Which feed is named; whether the table can be read without the executor;
 * with which snapshot; and what must be on disk before a row is returned.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "executor/executor.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"
#include "utils/tuplestore.h"

#include "read/read.h"

/* so much of a result is kept in memory, in kB */
#define RESULT_MEMORY	(16 * 1024)

/*
 * The table that an argument of a function names by its row type.
 */
Oid
feedpub_access_argument(FunctionCallInfo fcinfo, int arg)
{
	Oid			type = get_fn_expr_argtype(fcinfo->flinfo, arg);
	Oid			relid = OidIsValid(type) ? get_typ_typrelid(type) : InvalidOid;

	if (!OidIsValid(relid))
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("type %s is not the row type of a feed",
						OidIsValid(type) ? format_type_be(type) : "???"),
				 errhint("Name the feed by a NULL of its row type, as in NULL::my_feed.")));
	return relid;
}

/*
 * Check the caller's right on the rows of a table: SELECT on it, or on each of
 * its columns.  Returns whether it can be read without the executor.  Not if
 * the executor would filter rows, compute columns, or call a hook.  Then rows
 * are found by their identifier, a system column, on which no right can be granted
 * alone; so the right must be one on the table.
 */
bool
feedpub_access_is_direct(Relation heap)
{
	Oid			relid = RelationGetRelid(heap);
	bool		direct = check_enable_rls(relid, InvalidOid, true) != RLS_ENABLED &&
		!feedpub_has_virtual_columns(RelationGetDescr(heap)) &&
		ExecutorCheckPerms_hook == NULL;

	if (pg_class_aclcheck(relid, GetUserId(), ACL_SELECT) != ACLCHECK_OK &&
		!(direct && pg_attribute_aclcheck_all(relid, GetUserId(), ACL_SELECT, ACLMASK_ALL) == ACLCHECK_OK))
		feedpub_refuse_select(relid);
	return direct;
}

/*
 * Take a newer snapshot than the caller's, which is older than the table.
 * Raises 40001 if the transaction must keep its snapshot.
 */
void
feedpub_access_push_snapshot(Relation heap)
{
	if (IsolationUsesXactSnapshot())
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("could not read feed \"%s\"",
						RelationGetRelationName(heap)),
				 errdetail("The table was altered after the transaction's snapshot was taken."),
				 errhint("Try again in a new transaction.")));
	PushActiveSnapshot(GetLatestSnapshot());
}

/*
 * Has the table the columns for which the statement was planned?  The planner
 * does not lock it, so it may have been altered until we had our lock.  Then
 * the statement is to be planned again, and the server does so when it is run
 * again.  The executor would raise 42804 or even XX000.
 */
void
feedpub_access_check_columns(Relation heap, TupleDesc planned)
{
	TupleDesc	desc = RelationGetDescr(heap);
	bool		same = desc->natts == planned->natts;

	for (int i = 0; same && i < desc->natts; i++)
		same = TupleDescAttr(desc, i)->atttypid == TupleDescAttr(planned, i)->atttypid;
	if (!same)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("could not read feed \"%s\"",
						RelationGetRelationName(heap)),
				 errdetail("The table was altered after the statement was planned."),
				 errhint("Try again.")));
}

/*
 * Check that the caller may read a feed, and that its rows are of this history.
 */
void
feedpub_access_check_feed(Oid relid, FeedpubFeed *feed)
{
	Relation	heap = feedpub_registry_open(relid);
	FeedpubPartitions *partitions;

	feedpub_registry_get(relid, feed);
	feedpub_require_select(relid);
	partitions = feedpub_partition_open(feed, heap, GetActiveSnapshot(), true);
	feedpub_history_check(feed, partitions);
	feedpub_partition_close(partitions);
	relation_close(heap, NoLock);
}

/*
 * Open the key of a feed's table, or of a partition.
 */
Relation
feedpub_access_open_key(Relation heap, Oid keyid)
{
	if (!OidIsValid(keyid))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("feed \"%s\" has no key",
						RelationGetRelationName(heap)),
				 errhint("Run feed_check() to see what is missing.")));
	return index_open(keyid, AccessShareLock);
}

/*
 * Keep the memory of one page for the next.
 *
 * A page is in memory until its query ends.  Then glibc gives memory at the
 * top of the heap back to the system if it is more than 128 kB, and each page
 * costs getting it again, zeroed: of a page of 10,000 rows more than half of
 * the time (bench/README.md).  The bound becomes twice the size of the largest
 * block that was mapped by itself and freed.  So one is mapped and freed, once;
 * nothing is written into it.  With another allocator this does nothing.
 */
void
feedpub_access_keep_memory(void)
{
	static bool done = false;

	if (!done)
		pfree(palloc(31 * 1024 * 1024));
	done = true;
}

/*
 * Begin a set of rows as a result.  More of them are kept in memory than
 * work_mem: a page is in memory already, and a file for its second half would
 * cost as much as reading it.
 */
void
feedpub_access_begin_result(FunctionCallInfo fcinfo)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	MemoryContext oldcontext;

	feedpub_access_keep_memory();
	InitMaterializedSRF(fcinfo, 0);
	oldcontext = MemoryContextSwitchTo(rsinfo->econtext->ecxt_per_query_memory);
	tuplestore_end(rsinfo->setResult);
	rsinfo->setResult = tuplestore_begin_heap((rsinfo->allowedModes & SFRM_Materialize_Random) != 0,
											  false, Max(work_mem, RESULT_MEMORY));
	MemoryContextSwitchTo(oldcontext);
}

/*
 * If batches are not published durably, flush the WAL before a batch is shown,
 * up to the batch, and with it everything before it.
 */
void
feedpub_access_make_durable(FullTransactionId publisher, Snapshot snapshot)
{
	if (FullTransactionIdIsValid(publisher))
		feedpub_durable_commits(&publisher, 1, feedpub_horizon(snapshot));
}
