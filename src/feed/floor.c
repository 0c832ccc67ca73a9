/*-------------------------------------------------------------------------
 *
 * floor.c
 *	  The floor of a feed: up to where rows or deletes have been removed.
 *
 * The floor is the end of a batch.  It moves before anything is removed, in a
 * transaction of its own (retention/retain.c).  A removal begins when that has
 * committed.  So a snapshot that does not see a removed row any more sees the
 * floor that is after it, also on a standby, where commits become visible in
 * the order of the WAL.  A page reads the floor with the snapshot that reads
 * its rows: either the rows are there, or the cursor is refused.
 *
 * feedpub._floor has one row for a feed.  A move inserts the new row and
 * deletes the old one, and the newest row is the first one in a backward scan
 * of the index.  So a read costs the same while VACUUM is held back and old
 * rows stay.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/fmgroids.h"

#include "feed/feed.h"

/* columns of feedpub._floor */
#define ANUM_FLOOR_FEED			1
#define ANUM_FLOOR_HISTORY		2
#define ANUM_FLOOR_SYNC_ID		3
#define ANUM_FLOOR_POS			4
#define ANUM_FLOOR_MERGED		5
#define ANUM_FLOOR_FINGERPRINT	6
#define ANUM_FLOOR_REMOVED_XID	7
#define ANUM_FLOOR_REMOVED_POS	8
#define ANUM_FLOOR_MOVED_AT		9
#define NATTS_FLOOR				9

/*
 * Read the history of a feed and its floor, whose number is 0 if nothing has
 * been removed.  It is not cached: readers need what their snapshot sees.
 */
void
feedpub_floor_read(Oid feed, Snapshot snapshot, FeedpubFloor *floor)
{
	Relation	table = table_open(feedpub_registry_table("_floor"), AccessShareLock);
	Relation	index = index_open(feedpub_registry_table("_floor_pkey"), AccessShareLock);
	TupleTableSlot *slot = table_slot_create(table, NULL);
	IndexScanDesc scan = feedpub_snapshot_begin_scan(table, index, snapshot, 1);
	ScanKeyData key;

	feedpub_registry_check_version(table, NATTS_FLOOR);
	MemSet(floor, 0, sizeof(FeedpubFloor));
	ScanKeyInit(&key, ANUM_FLOOR_FEED, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(feed));
	index_rescan(scan, &key, 1, NULL, 0);
	if (index_getnext_slot(scan, BackwardScanDirection, slot))
	{
		Datum	   *values = slot->tts_values;

		slot_getallattrs(slot);
		floor->history = DatumGetUInt32(values[ANUM_FLOOR_HISTORY - 1]);
		floor->sync_id = DatumGetInt64(values[ANUM_FLOOR_SYNC_ID - 1]);
		floor->pos = DatumGetInt64(values[ANUM_FLOOR_POS - 1]);
		floor->merged = DatumGetBool(values[ANUM_FLOOR_MERGED - 1]);
		floor->fingerprint = DatumGetUInt32(values[ANUM_FLOOR_FINGERPRINT - 1]);
		floor->removed_xid = DatumGetUInt64(values[ANUM_FLOOR_REMOVED_XID - 1]);
		floor->removed_pos = DatumGetInt64(values[ANUM_FLOOR_REMOVED_POS - 1]);
		floor->moved_at = DatumGetTimestampTz(values[ANUM_FLOOR_MOVED_AT - 1]);
	}
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	index_close(index, NoLock);
	table_close(table, NoLock);
}

/*
 * Read the history only.
 */
uint32
feedpub_floor_history(Oid feed, Snapshot snapshot)
{
	FeedpubFloor floor;

	feedpub_floor_read(feed, snapshot, &floor);
	return floor.history;
}

/*
 * Lock a feed's floor until the transaction ends: with ROW EXCLUSIVE while a
 * subscription is made or moved, with SHARE while the floor moves.  Neither
 * excludes itself; two movers exclude each other by the publishing lock.
 * Returns false if wait is false and the lock is not free.
 */
bool
feedpub_floor_lock(Oid feed, LOCKMODE lockmode, bool wait)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, feedpub_registry_table("_floor"), feed, 0);
	return LockAcquire(&tag, lockmode, false, !wait) != LOCKACQUIRE_NOT_AVAIL;
}

/*
 * The open transaction, of another session, that makes or moves a subscription
 * of a feed; NULL if there is none.  Waits for nothing.
 */
char *
feedpub_floor_subscriber(Oid feed)
{
	static FeedpubStatement find = {
		.sql = "SELECT COALESCE('a transaction of process ' || pid, 'a prepared transaction')::name FROM pg_locks"
			   " WHERE classid = 'feedpub._floor'::regclass AND objid = $1 AND locktype = 'object' AND granted"
			   " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
			   " AND mode = 'RowExclusiveLock' AND pid IS DISTINCT FROM pg_backend_pid() ORDER BY pid LIMIT 1",
	};
	List	   *found = feedpub_store_list(&find, (Datum[]){ObjectIdGetDatum(feed)});

	return found == NIL ? NULL : linitial(found);
}
