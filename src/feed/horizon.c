/*-------------------------------------------------------------------------
 *
 * horizon.c
 *	  What xid order needs of transaction ids and snapshots: how far
 *	  it may be read, and whether stamps and cursors are of this server's
 *	  history.
 *
 * The horizon.  All transactions with an xid below a snapshot's xmin had ended
 * when the snapshot was taken (procarray.c: GetSnapshotData; an xid enters the
 * set of running ones before it can be seen, GetNewTransactionId).  A row is
 * stamped with its writer's top-level xid.  So with the same snapshot every
 * row with feed_xid < xmin is either visible or will never be, and no row with
 * a smaller stamp can appear before a cursor later.  The horizon must come
 * from the snapshot that reads the rows, or from an older one; with a younger
 * one, rows that the read could not see yet would be skipped.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/clog.h"
#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "catalog/pg_class.h"
#include "catalog/pg_attribute.h"
#include "catalog/pg_index.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_policy.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "executor/tuptable.h"
#include "storage/lwlock.h"
#include "utils/datum.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/xid8.h"

#include "feed/feed.h"

/*
 * Add the epoch to a 32-bit xid.  The xid must be normal, not after next, and
 * less than 2^32 before it.  next is ReadNextFullTransactionId() of a moment
 * after the xid was seen.  A caller with several xids reads it once, since
 * that takes XidGenLock, as each new xid does.
 */
FullTransactionId
feedpub_horizon_widen(TransactionId xid, FullTransactionId next)
{
	uint32		epoch = EpochFromFullTransactionId(next);

	if (xid > XidFromFullTransactionId(next))
		epoch--;
	return FullTransactionIdFromEpochAndXid(epoch, xid);
}

/*
 * The horizon of a snapshot: rows with a smaller feed_xid may be read with it.
 * The same value as pg_snapshot_xmin(pg_current_snapshot()), xid8funcs.c.
 */
FullTransactionId
feedpub_horizon(Snapshot snapshot)
{
	return feedpub_horizon_widen(snapshot->xmin, ReadNextFullTransactionId());
}

/*
 * Raise PF001 for a cursor that this server cannot have delivered.  A cursor's
 * xid was assigned, and durable, before the cursor was delivered.  So an xid
 * that is still to be assigned shows another history.  A standby that lags its
 * primary may get such a cursor from it, so it accepts the cursor: it has
 * nothing after it yet.
 */
void
feedpub_horizon_refuse_foreign(const FeedpubFeed *feed,
							   FullTransactionId after_xid)
{
	FullTransactionId next;

	if (RecoveryInProgress())
		return;
	next = ReadNextFullTransactionId();
	if (FullTransactionIdPrecedes(after_xid, next))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_FEED_FOREIGN_HISTORY),
			 errmsg("cursor of feed \"%s\" is from another history",
					get_rel_name(feed->relid)),
			 errdetail("The cursor's transaction id is %llu, but the next one of this server is %llu.",
					   (unsigned long long) U64FromFullTransactionId(after_xid),
					   (unsigned long long) U64FromFullTransactionId(next)),
			 errhint("The cursor is from another server, or this one has been restored or replaced since.  Start from feed_xid_head(), or from the beginning, ('0', 0).")));
}

/*
 * The prepared transactions of all databases, a List of their 32-bit xids as
 * OIDs, in the current context.  They are read by SQL: the server's own list
 * is private to twophase.c, and their PGPROCs look like those of ended ones.
 */
List *
feedpub_horizon_prepared(void)
{
	MemoryContext context = CurrentMemoryContext;
	List	   *prepared = NIL;

	SPI_connect();
	if (SPI_execute("SELECT p.transaction FROM pg_catalog.pg_prepared_xacts p",
					true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read pg_prepared_xacts");
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		bool		isnull;
		TransactionId xid = DatumGetTransactionId(SPI_getbinval(SPI_tuptable->vals[i],
																SPI_tuptable->tupdesc, 1, &isnull));
		MemoryContext oldcontext = MemoryContextSwitchTo(context);

		prepared = lappend_oid(prepared, xid);
		MemoryContextSwitchTo(oldcontext);
	}
	SPI_finish();
	return prepared;
}

/*
 * Has a transaction committed, if a snapshot saw it as ended?  One that is too
 * old for the commit log counts as committed: VACUUM removes the rows of those
 * that were rolled back before it truncates the log.  At most index entries
 * that point to nothing are left.
 */
bool
feedpub_horizon_committed(FullTransactionId xid)
{
	FullTransactionId oldest;
	bool		committed;

	LWLockAcquire(XactTruncationLock, LW_SHARED);
	oldest = feedpub_horizon_widen(TransamVariables->oldestClogXid,
								   ReadNextFullTransactionId());
	committed = FullTransactionIdPrecedes(xid, oldest) ||
		TransactionIdDidCommit(XidFromFullTransactionId(xid));
	LWLockRelease(XactTruncationLock);
	return committed;
}

/*
 * Does a snapshot see the table as it is defined now?
 *
 * A query takes its snapshot before it gets the lock on the table, and a
 * transaction long before.  Meanwhile the table may have been rewritten: the
 * rows of an ALTER TABLE that rewrites carry its xid, so such a snapshot sees
 * none of them.  Or it may have become a feed: then the snapshot misses rows
 * that were committed before, and have no stamp.  Each such command writes the
 * table's row in pg_class.  Others do too, a GRANT for example; then the
 * caller takes a new snapshot for nothing.
 */
bool
feedpub_horizon_sees_table(Snapshot snapshot, Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	TransactionId xmin;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for relation %u", relid);
	xmin = HeapTupleHeaderGetXmin(tuple->t_data);
	ReleaseSysCache(tuple);
	return !TransactionIdIsNormal(xmin) ||
		TransactionIdIsCurrentTransactionId(xmin) ||
		!XidInMVCCSnapshot(xmin, snapshot);
}

/*
 * Push a snapshot without the transaction's own changes.
 *
 * A page shows a feed as it was before the reader's transaction.  That may be
 * rolled back: as a whole, to a savepoint, or by the EXCEPTION clause of a
 * PL/pgSQL block.  A program keeps the cursor, and the cursor does not go
 * back.  A row that the transaction has deleted, or has moved to the feed's
 * end by an UPDATE, lives again after a rollback.  If the page had passed it,
 * it would be skipped.
 *
 * Of its own transaction a snapshot sees the commands before its curcid
 * (heapam_visibility.c: HeapTupleSatisfiesMVCC).  With the first command id it
 * sees none: no row of the transaction, and the rows that it has removed as if
 * they were there.
 */
void
feedpub_horizon_push(Snapshot snapshot)
{
	PushCopiedSnapshot(snapshot);
	GetActiveSnapshot()->curcid = FirstCommandId;
}

static bool has_foreign(Relation heap, Relation index, Snapshot snapshot,
						FullTransactionId *stamp);

/*
 * Does a feed have visible rows with a stamp that is not below the next xid?
 * Only another server writes such stamps.  *stamp is the first that was found.
 * It costs one descent of each index, which ends after the last row.
 */
bool
feedpub_horizon_has_foreign(const FeedpubPartitions *partitions, Snapshot snapshot,
							FullTransactionId *stamp)
{
	for (int i = 0; i < partitions->n; i++)
	{
		if (has_foreign(partitions->partitions[i].heap, partitions->partitions[i].index, snapshot, stamp))
			return true;
	}
	return false;
}

static bool
has_foreign(Relation heap, Relation index, Snapshot snapshot,
			FullTransactionId *stamp)
{
	FullTransactionId next = ReadNextFullTransactionId();
	IndexScanDesc scan;
	ScanKeyData key;
	TupleTableSlot *slot;
	bool		found;

	ScanKeyInit(&key, 1, BTGreaterEqualStrategyNumber, F_XID8GE,
				FullTransactionIdGetDatum(next));
	slot = table_slot_create(heap, NULL);
	scan = feedpub_index_beginscan(heap, index, snapshot, 1);
	index_rescan(scan, &key, 1, NULL, 0);
	found = index_getnext_slot(scan, ForwardScanDirection, slot);
	if (found)
	{
		bool		isnull;

		*stamp = DatumGetFullTransactionId(slot_getattr(slot,
														index->rd_index->indkey.values[0],
														&isnull));
	}
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	return found;
}
