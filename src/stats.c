/*-------------------------------------------------------------------------
 *
 * stats.c
 *	  Functions behind the views: who holds xid order back, and how much
 *	  waits behind.  Reads only, and never counts rows.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/itup.h"
#include "access/relation.h"
#include "access/relscan.h"
#include "access/xlog.h"
#include "catalog/pg_class.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "utils/acl.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/xid8.h"

#include "feedpub.h"

PG_FUNCTION_INFO_V1(feedpub_running);
PG_FUNCTION_INFO_V1(feedpub_waiting);

/*
 * feedpub._running() returns TABLE (xid xid8, pid integer), VOLATILE
 *
 * The running transactions that hold the horizon: those that a snapshot would
 * find (procarray.c: GetSnapshotData), of all databases.  pid is 0 for a
 * prepared one.  Not those of VACUUM and of logical decoding, which snapshots
 * skip.  On a standby, which knows its primary's transactions only by their
 * xids, the oldest one, with a pid of NULL.
 *
 * Xids and pids are no secrets, pg_locks shows them to everybody; who they
 * belong to is left to pg_stat_activity.
 */
Datum
feedpub_running(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	int			maxrunning = ProcGlobal->allProcCount;
	TransactionId *xids = palloc(maxrunning * sizeof(TransactionId));
	int		   *pids = palloc(maxrunning * sizeof(int));
	int			nrunning = 0;
	ListCell   *lc;

	InitMaterializedSRF(fcinfo, 0);

	if (RecoveryInProgress())
	{
		Datum		values[2] = {0};
		bool		nulls[2] = {false, true};
		FullTransactionId horizon = feedpub_horizon(GetActiveSnapshot());

		if (FullTransactionIdPrecedes(horizon, ReadNextFullTransactionId()))
		{
			values[0] = FullTransactionIdGetDatum(horizon);
			tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
		}
		return (Datum) 0;
	}

	/* nothing that may fail or allocate while the lock is held */
	LWLockAcquire(ProcArrayLock, LW_SHARED);
	for (int i = 0; i < maxrunning; i++)
	{
		PGPROC	   *proc = &ProcGlobal->allProcs[i];
		TransactionId xid = proc->xid;

		if (!TransactionIdIsNormal(xid) ||
			(proc->statusFlags & (PROC_IN_VACUUM | PROC_IN_LOGICAL_DECODING)))
			continue;
		xids[nrunning] = xid;
		pids[nrunning++] = proc->pid;
	}
	LWLockRelease(ProcArrayLock);

	foreach(lc, feedpub_horizon_prepared())
	{
		Datum		values[2];
		bool		nulls[2] = {false, false};

		values[0] = FullTransactionIdGetDatum(feedpub_horizon_widen(lfirst_oid(lc)));
		values[1] = Int32GetDatum(0);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	for (int i = 0; i < nrunning; i++)
	{
		Datum		values[2];
		bool		nulls[2] = {false, false};

		values[0] = FullTransactionIdGetDatum(feedpub_horizon_widen(xids[i]));
		values[1] = Int32GetDatum(pids[i]);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/*
 * The position in the first index entry at a place, whoever's row it is:
 * nothing but the index is read.  Returns false when there is none.
 */
static bool
find_pos(Relation heap, Relation index, StrategyNumber strategy,
		 RegProcedure proc, ScanDirection direction,
		 FullTransactionId xid, int64 *pos)
{
	IndexScanDesc scan;
	ScanKeyData key;
	bool		found;

	ScanKeyInit(&key, 1, strategy, proc, FullTransactionIdGetDatum(xid));
	scan = feedpub_index_beginscan(heap, index, GetActiveSnapshot(), 1);
	scan->xs_want_itup = true;
	index_rescan(scan, &key, 1, NULL, 0);
	found = index_getnext_tid(scan, direction) != NULL;
	if (found)
	{
		bool		isnull;

		*pos = DatumGetInt64(index_getattr(scan->xs_itup, 2,
										   RelationGetDescr(index), &isnull));
	}
	index_endscan(scan);
	return found;
}

/*
 * feedpub._estimate_waiting(feed regclass, OUT horizon xid8, OUT waiting bigint)
 * VOLATILE
 *
 * Estimates how many rows of a feed lie at or beyond the horizon: the
 * positions given out since the last row below it.  Counts rolled-back rows,
 * and misses those that an old transaction wrote late.  A few buffers of the
 * index, whatever waits.  NULL when the table is gone or its index is, or the
 * caller may not SELECT from it.
 */
Datum
feedpub_waiting(PG_FUNCTION_ARGS)
{
	Oid			relid = PG_GETARG_OID(0);
	Relation	heap = try_relation_open(relid, AccessShareLock);
	FullTransactionId horizon = feedpub_horizon(GetActiveSnapshot());
	TupleDesc	desc;
	Datum		values[2] = {0};
	bool		nulls[2] = {false, true};
	Oid			indexid = InvalidOid;
	Oid			seqid = InvalidOid;

	if (heap != NULL &&
		pg_class_aclcheck(relid, GetUserId(), ACL_SELECT) == ACLCHECK_OK)
	{
		indexid = feedpub_guard_index(heap);
		seqid = feedpub_guard_sequence(heap);
	}
	if (OidIsValid(indexid) && OidIsValid(seqid))
	{
		Relation	index = index_open(indexid, AccessShareLock);
		int64		waiting = 0;
		int64		pos = 0;

		if (find_pos(heap, index, BTGreaterEqualStrategyNumber, F_XID8GE,
					 ForwardScanDirection, horizon, &pos))
		{
			pos = 0;
			(void) find_pos(heap, index, BTLessStrategyNumber, F_XID8LT,
							BackwardScanDirection, horizon, &pos);
			waiting = Max(feedpub_guard_last_pos(seqid) - pos, 1);
		}
		values[1] = Int64GetDatum(waiting);
		nulls[1] = false;
		index_close(index, AccessShareLock);
	}
	if (heap != NULL)
		relation_close(heap, AccessShareLock);

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	values[0] = FullTransactionIdGetDatum(horizon);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc),
													  values, nulls)));
}
