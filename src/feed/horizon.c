/*-------------------------------------------------------------------------
 *
 * horizon.c
 *	  Transaction ids: how far xid order may be read, and what is known of one.
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

#include "storage/lwlock.h"

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
