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
#include "access/relation.h"
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
#include "utils/inval.h"
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

static bool sees_writer(Snapshot snapshot, HeapTuple tuple);

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
	bool		sees;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for relation %u", relid);
	sees = sees_writer(snapshot, tuple);
	ReleaseSysCache(tuple);
	return sees;
}

/*
 * Does it see what wrote this version of a catalog's row?
 *
 * It sees what wrote a row that is frozen.  But VACUUM FULL of the catalog
 * does not wait for snapshots of a standby, nor does its replay, if the standby
 * sends no feedback.  It writes the catalog's own row in pg_class, and that last
 * if the catalog is pg_class, so that this row is not frozen.
 */
static bool
sees_writer(Snapshot snapshot, HeapTuple tuple)
{
	TransactionId xmin = HeapTupleHeaderGetXmin(tuple->t_data);

	if (!TransactionIdIsNormal(xmin))
		return !snapshot->takenDuringRecovery ||
			(tuple->t_tableOid == RelationRelationId &&
			 ((Form_pg_class) GETSTRUCT(tuple))->oid == RelationRelationId) ||
			feedpub_horizon_sees_table(snapshot, tuple->t_tableOid);
	return TransactionIdIsCurrentTransactionId(xmin) ||
		!XidInMVCCSnapshot(xmin, snapshot);
}

/*
 * Refuse an index (40001) that may lack rows which a snapshot of a standby
 * sees.
 *
 * An index that is made anew has no entry for rows that were deleted shortly
 * before, and one that is being dropped none for rows that come later.  On a
 * primary the command waits until no session needs these (indexcmds.c:
 * WaitForOlderSnapshots, WaitForLockers).  For a session of a standby it does
 * not, whatever hot_standby_feedback is.  So a reader there would pass rows
 * that retention has removed since its snapshot was taken, and would not find
 * the floor or the batches of that snapshot.
 *
 * Too young: the last step that makes an index valid writes its row in
 * pg_index (CREATE INDEX, and index.c: index_concurrently_swap), or that in
 * pg_class if the index stays and its file is another (REINDEX, VACUUM FULL,
 * CLUSTER).  Deletes for which entries are missing had committed before.  On a
 * standby commits become visible in the order of the WAL, so a snapshot that
 * sees that step sees those deletes as well.
 *
 * Too old: an index is not valid any more before the first row is missing in
 * it.  A snapshot that sees such a row was taken when this had been announced,
 * since a commit is announced before the next one is replayed (xact.c:
 * xact_redo_commit).  A transaction that has the locks already would not look
 * at what was announced, so it is taken in here.
 *
 * The snapshot may be in use after a promotion, so it is asked for where it
 * was taken.  The index is locked: its file does not change after this.
 */
void
feedpub_horizon_check_index(Snapshot snapshot, Oid indexid)
{
	HeapTuple	tuple;
	bool		whole;

	if (!snapshot->takenDuringRecovery)
		return;
	AcceptInvalidationMessages();
	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(indexid));
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for index %u", indexid);
	whole = ((Form_pg_index) GETSTRUCT(tuple))->indisvalid &&
		sees_writer(snapshot, tuple) &&
		feedpub_horizon_sees_table(snapshot, indexid);
	ReleaseSysCache(tuple);
	if (!whole)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("could not read index \"%s\"", get_rel_name(indexid)),
				 errdetail("It was made anew on the primary, and may lack rows that the snapshot sees."),
				 errhint("Try again in a new transaction.")));
}

/*
 * The same for a table that a statement has read through the planner, which
 * may have chosen any of its indexes.  One that was given up is not refused: the
 * caller has taken in what was announced before the statement was planned.
 */
void
feedpub_horizon_check_planned(Snapshot snapshot, Oid relid)
{
	Relation	rel;
	ListCell   *lc;

	if (!snapshot->takenDuringRecovery)
		return;
	rel = relation_open(relid, NoLock);
	foreach(lc, RelationGetIndexList(rel))
	{
		if (get_index_isvalid(lfirst_oid(lc)))
			feedpub_horizon_check_index(snapshot, lfirst_oid(lc));
	}
	relation_close(rel, NoLock);
}

/*
 * Begin to scan an index, which is open.  All scans of ours begin here.
 */
IndexScanDesc
feedpub_horizon_begin_scan(Relation heap, Relation index, Snapshot snapshot, int nkeys)
{
	feedpub_horizon_check_index(snapshot, RelationGetRelid(index));
	return feedpub_index_beginscan(heap, index, snapshot, nkeys);
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
	scan = feedpub_horizon_begin_scan(heap, index, snapshot, 1);
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
