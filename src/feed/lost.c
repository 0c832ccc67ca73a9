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

#include "access/table.h"
#include "utils/fmgroids.h"

#include "feed/feed.h"

/* column of feedpub._lost_change */
#define ANUM_LOST_FEED			1

/*
 * Note that the transaction changes a feed without a trace in it; once, however
 * many rows it changes.  It checks no rights: the writer needs none.
 */
void
feedpub_lost_note(Oid feed)
{
	static FeedpubStatement note = {
		.sql = "INSERT INTO feedpub._lost_change VALUES ($1, pg_catalog.pg_current_xact_id()) ON CONFLICT DO NOTHING",
		.latest = true,
	};

	(void) feedpub_store_execute(&note, (Datum[]){ObjectIdGetDatum(feed)}, NULL);
}

/*
 * Does a snapshot see a change of a feed that could not be recorded?
 */
bool
feedpub_lost_exists(Oid feed, Snapshot snapshot)
{
	Relation	table = table_open(feedpub_registry_table("_lost_change"), AccessShareLock);
	Oid			indexid = feedpub_registry_table("_lost_change_pkey");
	SysScanDesc scan;
	ScanKeyData key;
	bool		found;

	ScanKeyInit(&key, ANUM_LOST_FEED, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(feed));
	scan = systable_beginscan(table, indexid, true, snapshot, 1, &key);
	feedpub_snapshot_check_index(snapshot, indexid);
	found = HeapTupleIsValid(systable_getnext(scan));
	systable_endscan(scan);
	table_close(table, NoLock);
	return found;
}
