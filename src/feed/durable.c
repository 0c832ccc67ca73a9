/*-------------------------------------------------------------------------
 *
 * durable.c
 *	  What has to be on disk before rows are delivered.
 *
 * A row can be visible before its commit record is on disk
 * (synchronous_commit = off).  A crash would then take it back, and its xid
 * and position would be assigned again.  A consumer whose cursor is there
 * already would skip the new row.  So the records are flushed before the rows
 * are delivered.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "storage/lwlock.h"

#include "feed/feed.h"

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
feedpub_durable_commits(const FullTransactionId *xids, int nxids,
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
feedpub_durable_all(void)
{
	if (!RecoveryInProgress())
		XLogFlush(insert_end());
}
