/*-------------------------------------------------------------------------
 *
 * lost.c
 *	  Changes of a table feed that could not be recorded.
 *
 * A writer's statement must not fail because the feed's owner has dropped what
 * the feed needs: a delete whose key is not known any more, or a row that
 * cannot be stamped.  So the writer goes on, and a row of feedpub._lost_change
 * says that its transaction has changed the feed without a trace in it.
 * Readers are refused until another history begins (history.c), which forgets
 * that row.
 *
 * The row is the writer's: it goes with a rollback, and a snapshot that sees
 * the change sees the row, also on a standby.  So a page either is refused, or
 * shows the feed as it was before the change.  Writers do not wait for each
 * other, since each writes a row of its own.  If a writer ends after another
 * history has begun, its row is seen by the readers of that one, who may have
 * got what the writer removed: they are refused as well.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/xid8.h"

#include "feed/feed.h"

/* columns of feedpub._lost_change */
#define ANUM_LOST_FEED			1
#define ANUM_LOST_XID			2
#define NATTS_LOST				2

static bool find(Relation table, Oid feed, FullTransactionId xid,
				 Snapshot snapshot);

/*
 * Note that the transaction changes a feed without a trace in it; once, however
 * many rows it changes.  It checks no rights: the writer needs none.
 */
void
feedpub_lost_note(Oid feed)
{
	Relation	table = table_open(feedpub_registry_table("_lost_change"), RowExclusiveLock);
	FullTransactionId xid = GetTopFullTransactionId();
	Datum		values[NATTS_LOST];
	bool		nulls[NATTS_LOST] = {0};

	if (!find(table, feed, xid, SnapshotSelf))
	{
		values[ANUM_LOST_FEED - 1] = ObjectIdGetDatum(feed);
		values[ANUM_LOST_XID - 1] = FullTransactionIdGetDatum(xid);
		CatalogTupleInsert(table, heap_form_tuple(RelationGetDescr(table), values, nulls));
	}
	table_close(table, NoLock);
}

/*
 * Does a snapshot see a change of a feed that could not be recorded?
 */
bool
feedpub_lost_exists(Oid feed, Snapshot snapshot)
{
	Relation	table = table_open(feedpub_registry_table("_lost_change"), AccessShareLock);
	bool		found = find(table, feed, InvalidFullTransactionId, snapshot);

	table_close(table, NoLock);
	return found;
}

/* of this transaction, or of any if xid is not valid */
static bool
find(Relation table, Oid feed, FullTransactionId xid, Snapshot snapshot)
{
	int			nkeys = FullTransactionIdIsValid(xid) ? 2 : 1;
	Oid			indexid = feedpub_registry_table("_lost_change_pkey");
	SysScanDesc scan;
	ScanKeyData keys[2];
	bool		found;

	ScanKeyInit(&keys[0], ANUM_LOST_FEED, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(feed));
	ScanKeyInit(&keys[1], ANUM_LOST_XID, BTEqualStrategyNumber, F_XID8EQ,
				FullTransactionIdGetDatum(xid));
	scan = systable_beginscan(table, indexid, true, snapshot, nkeys, keys);
	feedpub_snapshot_check_index(snapshot, indexid);
	found = HeapTupleIsValid(systable_getnext(scan));
	systable_endscan(scan);
	return found;
}
