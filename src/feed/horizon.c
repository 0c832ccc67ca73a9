/*-------------------------------------------------------------------------
 *
 * horizon.c
 *	  What xid order needs of transaction ids and snapshots: how far
 *	  xid order may be read, whether a row may be delivered yet, and whether
 *	  stamps and cursors are of this server's history.
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
 * Durability.  A row can be visible before its commit record is on disk
 * (synchronous_commit = off).  A crash would then take it back, and its xid
 * and position would be assigned again.  A consumer whose cursor is there
 * already would skip the new row.  So the records are flushed before the rows
 * are delivered.
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

static bool sees_relation(Snapshot snapshot, Oid relid);

/*
 * What this backend knows to be durable: the commits of all xids below
 * durable_below.  pending_horizon is the next value.  It counts once the
 * server has flushed pending_lsn, which it does by itself.  Both values only
 * grow, and a crash of the server ends this backend.
 */
static uint64 durable_below = 0;
static uint64 pending_horizon = 0;
static XLogRecPtr pending_lsn = InvalidXLogRecPtr;

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
feedpub_horizon_sees_table(Snapshot snapshot, Relation rel)
{
	return sees_relation(snapshot, RelationGetRelid(rel));
}

static bool
sees_relation(Snapshot snapshot, Oid relid)
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

static void check_looked_up(Relation feed, Oid relid);
static bool is_own_relation(Oid relid);
static bool has_own_change(Oid relid);
static bool is_column_altered(HeapTuple old);
static bool differ(TupleDesc desc, HeapTuple a, HeapTuple b,
				   const AttrNumber *ignored, int nignored);
static bool is_own_row(HeapTupleHeader header);
static bool has_own_partition(Relation catalog, Oid relid, Snapshot snapshot,
							  List **relids);

/*
 * Raise 55000 if the transaction itself has altered or truncated a feed's
 * table, or one of its partitions: the rows that it had may be in no file that
 * can be read.
 *
 * DDL and TRUNCATE write the table's row in pg_class.  A partition that comes
 * or goes has a row in pg_inherits.  A trigger that is dropped (its clones go
 * with it), an index and a column have rows of their own.  So has a policy,
 * and by a new policy a page would pass rows.  A GRANT writes such rows too,
 * and changes only the rights in them.  If a subtransaction did that and was
 * rolled back, the rows are the old ones again.
 */
void
feedpub_horizon_refuse_own_ddl(Relation table)
{
	List	   *relids;
	bool		found;

	if (!TransactionIdIsValid(GetTopTransactionIdIfAny()))
		return;
	relids = list_make1_oid(RelationGetRelid(table));
	found = is_own_relation(RelationGetRelid(table)) || has_own_change(RelationGetRelid(table));
	if (!found && table->rd_rel->relkind == RELKIND_PARTITIONED_TABLE)
	{
		Relation	catalog = table_open(InheritsRelationId, AccessShareLock);
		ListCell   *lc;

		/*
		 * This snapshot still has what the transaction has detached or
		 * dropped.
		 */
		feedpub_horizon_push(IsInParallelMode() ? GetActiveSnapshot() : GetLatestSnapshot());
		foreach(lc, relids)
		{
			if (is_own_relation(lfirst_oid(lc)) ||
				has_own_partition(catalog, lfirst_oid(lc), GetActiveSnapshot(), &relids) ||
				has_own_partition(catalog, lfirst_oid(lc), NULL, NULL))
			{
				found = true;
				break;
			}
		}
		PopActiveSnapshot();
		table_close(catalog, AccessShareLock);
	}
	list_free(relids);
	if (found)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot read feed \"%s\" in the transaction that altered it",
						RelationGetRelationName(table)),
				 errdetail("A page shows the feed as it was before the reader's transaction, which has altered or truncated the table or a partition, or altered a policy."),
				 errhint("Commit first.")));
}

/*
 * Has the transaction created a table, or written its row in pg_class so that
 * more than rights and statistics differ?
 */
static bool
is_own_relation(Oid relid)
{
	static const AttrNumber ignored[] = {
		Anum_pg_class_relacl,
		Anum_pg_class_relpages,
		Anum_pg_class_reltuples,
		Anum_pg_class_relallvisible,
#ifdef Anum_pg_class_relallfrozen
		Anum_pg_class_relallfrozen,
#endif
	};
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	bool		result = false;

	if (!HeapTupleIsValid(tuple))
		return false;
	if (TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(tuple->t_data)))
	{
		Relation	catalog = table_open(RelationRelationId, AccessShareLock);
		SysScanDesc scan;
		ScanKeyData key;
		HeapTuple	old;

		feedpub_horizon_push(IsInParallelMode() ? GetActiveSnapshot() : GetLatestSnapshot());
		ScanKeyInit(&key, Anum_pg_class_oid, BTEqualStrategyNumber, F_OIDEQ,
					ObjectIdGetDatum(relid));
		scan = systable_beginscan(catalog, ClassOidIndexId, true,
								  GetActiveSnapshot(), 1, &key);
		old = systable_getnext(scan);
		result = !HeapTupleIsValid(old) ||
			differ(RelationGetDescr(catalog), old, tuple, ignored, lengthof(ignored));
		systable_endscan(scan);
		PopActiveSnapshot();
		table_close(catalog, AccessShareLock);
	}
	ReleaseSysCache(tuple);
	return result;
}

/*
 * Select rows of a feed as the caller, with the active snapshot, which is the
 * page's.  The rows are in SPI_tuptable.
 *
 * Row security may look at other tables.  If such a table was truncated or
 * rewritten after the snapshot was taken, or by the transaction itself, the
 * snapshot sees none of its rows, and the page would pass rows that the caller
 * may see.  The query has locked the tables of its plan, so what pg_class says
 * of them stays so until the transaction ends.  Tables that only a function
 * reads are not in the plan.
 */
void
feedpub_horizon_select(struct _SPI_plan *plan, Datum *values, Relation feed)
{
	Portal		portal = SPI_cursor_open(NULL, plan, values, NULL, true);
	ListCell   *lc;

	SPI_cursor_fetch(portal, true, FETCH_ALL);
	foreach(lc, portal->stmts)
	{
		ListCell   *table;

		foreach(table, lfirst_node(PlannedStmt, lc)->relationOids)
		{
			if (lfirst_oid(table) != RelationGetRelid(feed))
				check_looked_up(feed, lfirst_oid(table));
		}
	}
	SPI_cursor_close(portal);
}

static void
check_looked_up(Relation feed, Oid relid)
{
	if (is_own_relation(relid))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot read feed \"%s\" in the transaction that altered what its row security looks at",
						RelationGetRelationName(feed)),
				 errdetail("A page shows the feed as it was before the reader's transaction, which has altered or truncated table \"%s\".",
						   get_rel_name(relid)),
				 errhint("Commit first.")));
	if (!sees_relation(GetActiveSnapshot(), relid))
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("could not read feed \"%s\"", RelationGetRelationName(feed)),
				 errdetail("Table \"%s\", which its row security looks at, was altered after the snapshot was taken.",
						   get_rel_name(relid)),
				 errhint("Try again in a new transaction.")));
}

/*
 * Has the transaction dropped or altered a trigger, an index or a column that
 * the table had before, or a policy, or has it created a policy?
 */
static bool
has_own_change(Oid relid)
{
	static const struct
	{
		Oid			catalog;
		Oid			index;
		AttrNumber	attno;		/* the column with the table's OID */
		bool		now;		/* look at the rows of now */
	} catalogs[] = {
		{TriggerRelationId, TriggerRelidNameIndexId, Anum_pg_trigger_tgrelid, false},
		{IndexRelationId, IndexIndrelidIndexId, Anum_pg_index_indrelid, false},
		{AttributeRelationId, AttributeRelidNumIndexId, Anum_pg_attribute_attrelid, false},
		{PolicyRelationId, PolicyPolrelidPolnameIndexId, Anum_pg_policy_polrelid, false},
		{PolicyRelationId, PolicyPolrelidPolnameIndexId, Anum_pg_policy_polrelid, true},
	};
	bool		found = false;

	/* This snapshot still has what the transaction has dropped. */
	feedpub_horizon_push(IsInParallelMode() ? GetActiveSnapshot() : GetLatestSnapshot());
	for (int i = 0; i < lengthof(catalogs) && !found; i++)
	{
		Relation	catalog = table_open(catalogs[i].catalog, AccessShareLock);
		SysScanDesc scan;
		ScanKeyData key;
		HeapTuple	tuple;

		ScanKeyInit(&key, catalogs[i].attno, BTEqualStrategyNumber, F_OIDEQ,
					ObjectIdGetDatum(relid));
		scan = systable_beginscan(catalog, catalogs[i].index, true,
								  catalogs[i].now ? NULL : GetActiveSnapshot(),
								  1, &key);
		while (!found && HeapTupleIsValid(tuple = systable_getnext(scan)))
			found = is_own_row(tuple->t_data) &&
				(catalogs[i].catalog != AttributeRelationId || is_column_altered(tuple));
		systable_endscan(scan);
		table_close(catalog, AccessShareLock);
	}
	PopActiveSnapshot();
	return found;
}

/*
 * Does a column differ from its old row in more than rights?
 */
static bool
is_column_altered(HeapTuple old)
{
	static const AttrNumber ignored[] = {Anum_pg_attribute_attacl};
	Form_pg_attribute attribute = (Form_pg_attribute) GETSTRUCT(old);
	HeapTuple	tuple = SearchSysCache2(ATTNUM,
										ObjectIdGetDatum(attribute->attrelid),
										Int16GetDatum(attribute->attnum));
	Relation	catalog;
	bool		result;

	if (!HeapTupleIsValid(tuple))
		return true;
	catalog = table_open(AttributeRelationId, AccessShareLock);
	result = differ(RelationGetDescr(catalog), old, tuple, ignored, lengthof(ignored));
	table_close(catalog, AccessShareLock);
	ReleaseSysCache(tuple);
	return result;
}

/*
 * Do two versions of a catalog's row differ in a column that is not ignored?
 */
static bool
differ(TupleDesc desc, HeapTuple a, HeapTuple b, const AttrNumber *ignored,
	   int nignored)
{
	for (AttrNumber attno = 1; attno <= desc->natts; attno++)
	{
		Form_pg_attribute attribute = TupleDescAttr(desc, attno - 1);
		bool		is_ignored = false;
		bool		a_null;
		bool		b_null;
		Datum		in_a = heap_getattr(a, attno, desc, &a_null);
		Datum		in_b = heap_getattr(b, attno, desc, &b_null);

		for (int i = 0; i < nignored; i++)
			is_ignored = is_ignored || ignored[i] == attno;
		if (is_ignored || (a_null && b_null))
			continue;
		if (a_null != b_null ||
			!datumIsEqual(in_a, in_b, attribute->attbyval, attribute->attlen))
			return true;
	}
	return false;
}

/*
 * Has the transaction written or removed a row of a catalog?
 */
static bool
is_own_row(HeapTupleHeader header)
{
	return TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(header)) ||
		((header->t_infomask & HEAP_XMAX_INVALID) == 0 &&
		 !HEAP_XMAX_IS_LOCKED_ONLY(header->t_infomask) &&
		 TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetUpdateXid(header)));
}

/*
 * Has the transaction removed a partition of a table, or added one?  Looks at
 * those that the snapshot sees, or at those of now if it is NULL.  Adds them
 * to relids, unless that is NULL.
 */
static bool
has_own_partition(Relation catalog, Oid relid, Snapshot snapshot,
				  List **relids)
{
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	tuple;
	bool		found = false;

	ScanKeyInit(&key, Anum_pg_inherits_inhparent, BTEqualStrategyNumber,
				F_OIDEQ, ObjectIdGetDatum(relid));
	scan = systable_beginscan(catalog, InheritsParentIndexId, true, snapshot, 1, &key);
	while (!found && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		found = is_own_row(tuple->t_data);
		if (relids != NULL)
			*relids = lappend_oid(*relids, ((Form_pg_inherits) GETSTRUCT(tuple))->inhrelid);
	}
	systable_endscan(scan);
	return found;
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

/*
 * The end of the inserted WAL, as a position that can be flushed.
 *
 * GetXLogInsertRecPtr() returns the position of the next record.  If the last
 * one ended on a page boundary, that is after the next page's header, which is
 * not written yet, and XLogFlush() up to there fails.
 */
static XLogRecPtr
insert_end(void)
{
	XLogRecPtr	lsn = GetXLogInsertRecPtr();

	if (XLogSegmentOffset(lsn, wal_segment_size) == SizeOfXLogLongPHD)
		lsn -= SizeOfXLogLongPHD;
	else if (lsn % XLOG_BLCKSZ == SizeOfXLogShortPHD)
		lsn -= SizeOfXLogShortPHD;
	return lsn;
}

/*
 * Make the commits of some xids durable before their rows are delivered.  The
 * xids ascend and have committed; horizon is that of the snapshot that saw
 * them.
 *
 * For groups of xids the commit log has an upper bound of the LSN up to which
 * WAL must be flushed for an asynchronous commit (transam.c:
 * TransactionIdGetCommitLSN).  A synchronous commit leaves none, since its
 * record was flushed before the commit log was changed.  Xids older than
 * oldestClogXid may have no commit log page any more, but they are durable.
 * XactTruncationLock keeps that boundary in place during the look-ups, as in
 * xid8funcs.c: TransactionIdInRecentPast.
 *
 * In a page of many small transactions the look-ups cost more than all else.
 * So they are not made below durable_below.  Each transaction below the
 * horizon had inserted its commit record before it left the set of running
 * ones, so before the horizon's snapshot was taken.  Once WAL is flushed up to
 * an insert position that was read after that, all of them are durable.
 *
 * A standby shows only what its primary has flushed.
 */
void
feedpub_horizon_make_durable(const FullTransactionId *xids, int nxids,
							 FullTransactionId horizon)
{
	XLogRecPtr	lsn = InvalidXLogRecPtr;
	XLogRecPtr	flushed;
	FullTransactionId next;
	FullTransactionId oldest;

	if (nxids == 0 || RecoveryInProgress())
		return;

	flushed = GetFlushRecPtr(NULL);
	if (pending_horizon != 0 && pending_lsn <= flushed)
	{
		durable_below = Max(durable_below, pending_horizon);
		pending_horizon = 0;
	}
	if (U64FromFullTransactionId(xids[nxids - 1]) < durable_below)
		return;

	LWLockAcquire(XactTruncationLock, LW_SHARED);
	next = ReadNextFullTransactionId();
	oldest = feedpub_horizon_widen(TransamVariables->oldestClogXid, next);
	for (int i = nxids - 1; i >= 0; i--)
	{
		XLogRecPtr	commit_lsn;

		if (U64FromFullTransactionId(xids[i]) < durable_below ||
			FullTransactionIdPrecedes(xids[i], oldest))
			break;
		commit_lsn = TransactionIdGetCommitLSN(XidFromFullTransactionId(xids[i]));
		lsn = Max(lsn, commit_lsn);
	}
	LWLockRelease(XactTruncationLock);

	if (lsn > flushed)
		XLogFlush(lsn);

	if (pending_horizon == 0)
	{
		pending_horizon = U64FromFullTransactionId(horizon);
		pending_lsn = insert_end();
	}
}

/*
 * Make everything durable that has happened so far.  For callers that name
 * xids that need not have written a row of the feed: their commit or abort
 * records are flushed, so that the xids cannot be assigned again after a
 * crash.
 */
void
feedpub_horizon_flush_all(void)
{
	if (!RecoveryInProgress())
		XLogFlush(insert_end());
}
