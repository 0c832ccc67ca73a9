/*-------------------------------------------------------------------------
 *
 * foreign.c
 *	  Transaction ids that this server has not assigned yet, in stamps and in
 *	  cursors of xid order: another server has, or this one before it was put
 *	  back to an earlier state.  And stamps that are no transaction's.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/xid8.h"

#include "feed/feed.h"

/*
 * Raise PF001 for a cursor that this server cannot have delivered.  A cursor's
 * xid was assigned, and durable, before the cursor was delivered.  So an xid
 * that is still to be assigned shows another history.  A standby that lags its
 * primary may get such a cursor from it, so it accepts the cursor: it has
 * nothing after it yet.
 */
void
feedpub_foreign_refuse_cursor(const FeedpubFeed *feed,
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
 * Does a table have a row whose xid is in a range: from the given one on, or
 * equal to it?  *stamp is then the xid of the first one.  The transaction's
 * snapshot may be too old to see it.
 */
static bool
has_row(Relation heap, Relation index, StrategyNumber strategy, RegProcedure function,
		FullTransactionId *stamp)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	TupleTableSlot *slot = table_slot_create(heap, NULL);
	IndexScanDesc scan = feedpub_snapshot_begin_scan(heap, index, snapshot, 1);
	ScanKeyData key;
	bool		found;
	bool		isnull;

	ScanKeyInit(&key, 1, strategy, function, FullTransactionIdGetDatum(*stamp));
	index_rescan(scan, &key, 1, NULL, 0);
	found = index_getnext_slot(scan, ForwardScanDirection, slot);
	if (found)
		*stamp = DatumGetFullTransactionId(slot_getattr(slot, index->rd_index->indkey.values[0], &isnull));
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	UnregisterSnapshot(snapshot);
	return found;
}

/*
 * Does a feed have visible rows with a stamp that is not below the next xid?
 * Only another server writes such stamps.  *stamp is the first that was found.
 * It costs one descent of each index, which ends after the last row.
 */
bool
feedpub_foreign_exists(const FeedpubPartitions *partitions, FullTransactionId *stamp)
{
	for (int i = 0; i < partitions->n; i++)
	{
		*stamp = ReadNextFullTransactionId();
		if (has_row(partitions->partitions[i].heap, partitions->partitions[i].index,
					BTGreaterEqualStrategyNumber, F_XID8GE, stamp))
			return true;
	}
	return false;
}

/*
 * Does an outbox, which has its index, have visible rows that the trigger has
 * not stamped?
 */
bool
feedpub_foreign_has_unstamped(Relation rel)
{
	FullTransactionId none = InvalidFullTransactionId;
	Relation	index = index_open(feedpub_relation_index(rel), AccessShareLock);
	bool		found = has_row(rel, index, BTEqualStrategyNumber, F_XID8EQ, &none);

	index_close(index, AccessShareLock);
	return found;
}
