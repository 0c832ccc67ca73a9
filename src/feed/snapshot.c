/*-------------------------------------------------------------------------
 *
 * snapshot.c
 *	  What a snapshot may miss: rows of a table that was rewritten since it was
 *	  taken and, on a standby, rows that an index lacks.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/xact.h"
#include "catalog/pg_index.h"
#include "executor/spi.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/portal.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "feed/feed.h"

/*
 * Does a snapshot see what wrote this version of a catalog's row?
 *
 * On a primary it sees what wrote a row that is frozen.  But VACUUM FULL of the
 * catalog does not wait for snapshots of a standby, nor does its replay, if the
 * standby sends no feedback.  So the xid is taken that a frozen row still has.
 * If it was written more than 2^31 ids ago, it can seem to be to come, which no
 * xid of a row is.
 */
static bool
sees_writer(Snapshot snapshot, HeapTuple tuple)
{
	TransactionId xmin = HeapTupleHeaderGetRawXmin(tuple->t_data);

	return !XidInMVCCSnapshot(xmin, snapshot) ||
		TransactionIdIsCurrentTransactionId(xmin) ||
		TransactionIdFollowsOrEquals(xmin, XidFromFullTransactionId(ReadNextFullTransactionId()));
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
feedpub_snapshot_sees_table(Snapshot snapshot, Oid relid)
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
feedpub_snapshot_check_index(Snapshot snapshot, Oid indexid)
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
		feedpub_snapshot_sees_table(snapshot, indexid);
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
static void
check_planned(Snapshot snapshot, Oid relid)
{
	Relation	rel;
	ListCell   *lc;

	if (!snapshot->takenDuringRecovery)
		return;
	rel = relation_open(relid, NoLock);
	foreach(lc, RelationGetIndexList(rel))
	{
		if (get_index_isvalid(lfirst_oid(lc)))
			feedpub_snapshot_check_index(snapshot, lfirst_oid(lc));
	}
	relation_close(rel, NoLock);
}

/*
 * Begin to scan an index, which is open.  All scans of ours begin here.
 */
IndexScanDesc
feedpub_snapshot_begin_scan(Relation heap, Relation index, Snapshot snapshot, int nkeys)
{
	feedpub_snapshot_check_index(snapshot, RelationGetRelid(index));
	return feedpub_index_beginscan(heap, index, snapshot, nkeys);
}

static void
check_looked_up(Relation feed, Oid relid)
{
	if (feedpub_own_changes_has_lock(relid))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot read feed \"%s\" in the transaction that altered what its row security looks at",
						RelationGetRelationName(feed)),
				 errdetail("A page shows the feed as it was before the reader's transaction, which has altered, truncated or locked table \"%s\".",
						   get_rel_name(relid)),
				 errhint("Commit first.")));
	if (!feedpub_snapshot_sees_table(GetActiveSnapshot(), relid))
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("could not read feed \"%s\"", RelationGetRelationName(feed)),
				 errdetail("Table \"%s\", which its row security looks at, was altered after the snapshot was taken.",
						   get_rel_name(relid)),
				 errhint("Try again in a new transaction.")));
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
 *
 * On a standby the planner could choose an index that lacks rows, of the feed
 * or of such a table.  It knows those that were given up before the snapshot was
 * taken, also if it has all locks already: each page has begun with a scan of an
 * index with that snapshot, of the floor or of the feed, and what was announced
 * was taken in there.
 */
void
feedpub_snapshot_select(struct _SPI_plan *plan, Datum *values, Relation feed)
{
	Snapshot	snapshot = GetActiveSnapshot();
	Portal		portal;
	ListCell   *lc;

	portal = SPI_cursor_open(NULL, plan, values, NULL, true);
	SPI_cursor_fetch(portal, true, FETCH_ALL);
	foreach(lc, portal->stmts)
	{
		ListCell   *table;

		foreach(table, lfirst_node(PlannedStmt, lc)->relationOids)
		{
			if (lfirst_oid(table) != RelationGetRelid(feed))
				check_looked_up(feed, lfirst_oid(table));
			check_planned(snapshot, lfirst_oid(table));
		}
	}
	SPI_cursor_close(portal);
}
