/*-------------------------------------------------------------------------
 * batch.c
 *	  The table feedpub._batch and the snapshots in it.
 *
 * A batch is one row: the feed, its number (sync_id), the snapshot that the
 * publisher took, the last position in it, and a seed, from which its
 * fingerprint is made.  If a cursor points to a batch of that number in another
 * history, the fingerprint differs.  Batch k holds the rows of the transactions
 * that are visible in its snapshot and not in that of batch k - 1.  The snapshot
 * before the first batch is empty.
 *
 * Snapshots are stored as pg_snapshot, the server's own type, so that SQL can
 * use them (pg_visible_in_snapshot).  Its layout is on disk and does not
 * change.  The server declares it in xid8funcs.c only, so the declaration is
 * copied below.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/sysattr.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/xid8.h"

#include "publish/publish.h"

/* columns of feedpub._batch */
#define ANUM_BATCH_FEED			1
#define ANUM_BATCH_SYNC_ID		2
#define ANUM_BATCH_SNAPSHOT		3
#define ANUM_BATCH_LAST_POS		4
#define ANUM_BATCH_TRANSACTIONS	5
#define ANUM_BATCH_PUBLICATION	6
#define ANUM_BATCH_PUBLISHED_AT	7
#define ANUM_BATCH_SEED			8
#define ANUM_BATCH_MERGED_FROM	9
#define ANUM_BATCH_MERGED_POS	10
#define ANUM_BATCH_SITE			11
#define ANUM_BATCH_PART			12
#define NATTS_BATCH				12

/* pg_snapshot, as in xid8funcs.c */
typedef struct StoredSnapshot
{
	int32		varsz;
	uint32		nxip;
	uint64		xmin;
	uint64		xmax;
	uint64		xip[FLEXIBLE_ARRAY_MEMBER];
} StoredSnapshot;

struct FeedpubBatchScan
{
	MemoryContext context;		/* in which the scan keeps its state */
	Relation	table;
	Relation	index;
	IndexScanDesc scan;
	ScanKeyData keys[2];
	TupleTableSlot *slot;
	ScanDirection direction;
	FullTransactionId next;		/* the xid of no row that the snapshot sees */
};

static uint32 make_fingerprint(uint32 seed, int64 from, int64 to);
static Relation open_table(LOCKMODE lockmode);

/*
 * Is a transaction visible in a snapshot?  Does what is_visible_fxid() of
 * xid8funcs.c does; xip is sorted.
 */
bool
feedpub_batch_sees(const FeedpubSnapshot *snapshot, uint64 xid)
{
	int			low = 0;
	int			high = snapshot->nxip;

	if (xid < snapshot->xmin)
		return true;
	if (xid >= snapshot->xmax)
		return false;
	while (low < high)
	{
		int			middle = (low + high) / 2;

		if (snapshot->xip[middle] < xid)
			low = middle + 1;
		else
			high = middle;
	}
	return low == snapshot->nxip || snapshot->xip[low] != xid;
}

/*
 * Convert the server's snapshot, in the current memory context.
 *
 * A snapshot does not list our own transaction, which is running too, so it is
 * added.  A standby's lists none, and shows no row of those that are running.
 */
void
feedpub_batch_take_snapshot(Snapshot snapshot, FeedpubSnapshot *taken)
{
	FullTransactionId own = GetTopFullTransactionIdIfAny();
	StoredSnapshot *stored;
	int			i;

	PushActiveSnapshot(snapshot);
	stored = (StoredSnapshot *) DatumGetPointer(OidFunctionCall0(F_PG_CURRENT_SNAPSHOT));
	PopActiveSnapshot();
	taken->xmin = stored->xmin;
	taken->xmax = stored->xmax;
	taken->nxip = stored->nxip;
	taken->xip = palloc_array(uint64, stored->nxip + 1);
	memcpy(taken->xip, stored->xip, stored->nxip * sizeof(uint64));
	if (!FullTransactionIdIsValid(own) || U64FromFullTransactionId(own) >= taken->xmax)
		return;
	for (i = taken->nxip++; i > 0 && taken->xip[i - 1] > U64FromFullTransactionId(own); i--)
		taken->xip[i] = taken->xip[i - 1];
	taken->xip[i] = U64FromFullTransactionId(own);
}

/*
 * Does a snapshot see all that an older one sees?
 */
bool
feedpub_batch_is_later(const FeedpubSnapshot *later,
					   const FeedpubSnapshot *earlier)
{
	if (later->xmax < earlier->xmax)
		return false;
	for (int i = 0; i < later->nxip; i++)
	{
		if (feedpub_batch_sees(earlier, later->xip[i]))
			return false;
	}
	return true;
}

/*
 * A snapshot as a value of type pg_snapshot.
 */
Datum
feedpub_batch_snapshot_datum(const FeedpubSnapshot *snapshot)
{
	Size		size = offsetof(StoredSnapshot, xip) + snapshot->nxip * sizeof(uint64);
	StoredSnapshot *stored = palloc0(size);

	SET_VARSIZE(stored, size);
	stored->nxip = snapshot->nxip;
	stored->xmin = snapshot->xmin;
	stored->xmax = snapshot->xmax;
	if (snapshot->nxip > 0)
		memcpy(stored->xip, snapshot->xip, snapshot->nxip * sizeof(uint64));
	return PointerGetDatum(stored);
}

/*
 * Begin to read the batches of a feed, from a number on, in their order, with
 * the given snapshot.  Checks no right: callers have checked that the user may
 * read the feed, and batches tell a reader nothing more.
 */
FeedpubBatchScan *
feedpub_batch_begin(Oid feed, int64 from, Snapshot snapshot)
{
	FeedpubBatchScan *batches = palloc0_object(FeedpubBatchScan);

	batches->context = CurrentMemoryContext;
	batches->direction = ForwardScanDirection;
	batches->next = ReadNextFullTransactionId();
	batches->table = open_table(AccessShareLock);
	batches->index = index_open(feedpub_registry_table("_batch_pkey"), AccessShareLock);
	batches->slot = table_slot_create(batches->table, NULL);
	ScanKeyInit(&batches->keys[0], 1, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(feed));
	ScanKeyInit(&batches->keys[1], 2, BTGreaterEqualStrategyNumber, F_INT8GE,
				Int64GetDatum(from));
	batches->scan = feedpub_snapshot_begin_scan(batches->table, batches->index,
												snapshot, 2);
	index_rescan(batches->scan, batches->keys, 2, NULL, 0);
	return batches;
}

/*
 * The same backwards, from the last batch below a number on.
 */
FeedpubBatchScan *
feedpub_batch_begin_backward(Oid feed, int64 below, Snapshot snapshot)
{
	FeedpubBatchScan *batches = feedpub_batch_begin(feed, 0, snapshot);

	batches->direction = BackwardScanDirection;
	ScanKeyInit(&batches->keys[1], 2, BTLessStrategyNumber, F_INT8LT,
				Int64GetDatum(below));
	index_rescan(batches->scan, batches->keys, 2, NULL, 0);
	return batches;
}

/*
 * Read the next batch, in the current memory context.  Returns false if there
 * is none.
 */
bool
feedpub_batch_next(FeedpubBatchScan *batches, FeedpubBatch *batch)
{
	TupleTableSlot *slot = batches->slot;
	StoredSnapshot *stored;
	MemoryContext oldcontext;
	TransactionId publisher;
	bool		found;
	bool		isnull;

	/* a step may allocate what the scan keeps: its list of dead entries */
	oldcontext = MemoryContextSwitchTo(batches->context);
	found = index_getnext_slot(batches->scan, batches->direction, slot);
	MemoryContextSwitchTo(oldcontext);
	if (!found)
		return false;
	slot_getsomeattrs(slot, NATTS_BATCH);
	stored = (StoredSnapshot *) PG_DETOAST_DATUM_COPY(slot->tts_values[ANUM_BATCH_SNAPSHOT - 1]);
	batch->sync_id = DatumGetInt64(slot->tts_values[ANUM_BATCH_SYNC_ID - 1]);
	batch->last_pos = DatumGetInt64(slot->tts_values[ANUM_BATCH_LAST_POS - 1]);
	batch->transactions = DatumGetInt32(slot->tts_values[ANUM_BATCH_TRANSACTIONS - 1]);
	batch->publication = DatumGetInt64(slot->tts_values[ANUM_BATCH_PUBLICATION - 1]);
	batch->snapshot.xmin = stored->xmin;
	batch->snapshot.xmax = stored->xmax;
	batch->snapshot.nxip = stored->nxip;
	batch->snapshot.xip = stored->xip;
	batch->published_at = DatumGetTimestampTz(slot->tts_values[ANUM_BATCH_PUBLISHED_AT - 1]);
	batch->seed = DatumGetUInt32(slot->tts_values[ANUM_BATCH_SEED - 1]);
	batch->site = DatumGetUInt32(slot->tts_values[ANUM_BATCH_SITE - 1]);
	batch->is_part = DatumGetBool(slot->tts_values[ANUM_BATCH_PART - 1]);
	batch->is_merged = !slot->tts_isnull[ANUM_BATCH_MERGED_POS - 1];
	batch->merged_from = batch->is_merged ?
		DatumGetInt64(slot->tts_values[ANUM_BATCH_MERGED_FROM - 1]) :
		batch->sync_id;
	batch->merged_pos = batch->is_merged ?
		DatumGetInt64(slot->tts_values[ANUM_BATCH_MERGED_POS - 1]) :
		batch->last_pos;
	batch->fingerprint = make_fingerprint(batch->seed, batch->merged_from, batch->sync_id);
	publisher = DatumGetTransactionId(slot_getsysattr(slot, MinTransactionIdAttributeNumber,
													  &isnull));
	batch->publisher = TransactionIdIsNormal(publisher) ?
		feedpub_horizon_widen(publisher, batches->next) :
		InvalidFullTransactionId;
	return true;
}

/*
 * The fingerprint of the batch with these batches of a seed, in which mostly
 * both numbers are its own.
 */
static uint32
make_fingerprint(uint32 seed, int64 from, int64 to)
{
	uint64		parts[] = {seed, from, to};

	return hash_bytes((const unsigned char *) parts, sizeof(parts));
}

/*
 * Does a batch know the cursor?  It does if the cursor is in this batch, or in
 * one that was merged into it.
 */
bool
feedpub_batch_knows(const FeedpubBatch *batch, const FeedpubCursor *cursor)
{
	if (feedpub_batch_has_cursor(cursor, batch->sync_id, batch->is_merged, batch->fingerprint))
		return true;
	return batch->is_merged &&
		cursor->sync_id >= batch->merged_from && cursor->sync_id <= batch->sync_id &&
		feedpub_batch_has_cursor(cursor, cursor->sync_id, false,
								 make_fingerprint(batch->seed, cursor->sync_id, cursor->sync_id));
}

/*
 * Up to which position of this batch has a cursor passed it?  The cursor is in
 * this batch, or in the youngest one that was merged into it.  If it was at
 * the end of that one, it has passed all of the merged batch.
 */
int64
feedpub_batch_passed(const FeedpubBatch *batch, const FeedpubCursor *cursor)
{
	if (batch->is_merged && !cursor->merged &&
		cursor->pos >= batch->merged_pos)
		return batch->last_pos;
	return cursor->pos;
}

/*
 * Is a batch from another history?  It is if it came with a dump and has seen
 * transactions that this server had not ended by then.  Rows that this server
 * has written since would count as seen by it.
 *
 * A publisher gets its xid after it has taken its snapshot, so the xid that
 * wrote a batch's row is at or beyond the snapshot's xmax.  If a dump is
 * restored, another transaction writes the row.  If its xid is at or beyond
 * xmax too, so are all later xids of this server, and the batch serves here as
 * it did there.  A merged batch was written again, much later, but the last
 * batch of a feed is never a merged one.  pg_upgrade keeps the rows as they
 * are.
 *
 * Full ids are compared.  The first batches of a backlog that was cut have
 * seen only up to the ids of their own transactions.  These may be more than
 * half of the 32-bit ids before the publisher's.  If a row was written more
 * than 2^32 ids ago, it seems to have been written later than it was, so an
 * own batch is never refused.
 */
bool
feedpub_batch_is_foreign(const FeedpubBatch *batch)
{
	return batch->sync_id > 0 &&
		!batch->is_merged &&
		FullTransactionIdIsValid(batch->publisher) &&
		U64FromFullTransactionId(batch->publisher) < batch->snapshot.xmax;
}

/*
 * Refuse such a batch.
 */
void
feedpub_batch_refuse_foreign(const FeedpubFeed *feed, const FeedpubBatch *batch)
{
	if (!feedpub_batch_is_foreign(batch))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_FEED_FOREIGN_HISTORY),
			 errmsg("batches of feed \"%s\" are from another history",
					get_rel_name(feed->relid)),
			 errdetail("They were made by another server, or before this one was put back to an earlier state."),
			 errhint("Its owner can forget them, and publish all rows anew: SELECT feed_begin_history(...).  Consumers begin again.")));
}

void
feedpub_batch_end(FeedpubBatchScan *batches)
{
	index_endscan(batches->scan);
	ExecDropSingleTupleTableSlot(batches->slot);
	index_close(batches->index, NoLock);
	table_close(batches->table, NoLock);
	pfree(batches);
}

/*
 * Read the last batch below a number, in the current memory context.  If there
 * is none, batch becomes the beginning: number 0 and the snapshot that sees
 * nothing.
 */
void
feedpub_batch_last(Oid feed, int64 below, Snapshot snapshot,
				   FeedpubBatch *batch)
{
	FeedpubBatchScan *batches;
	bool		found = false;

	/* numbers begin at 1 */
	if (below > 1)
	{
		batches = feedpub_batch_begin_backward(feed, below, snapshot);
		found = feedpub_batch_next(batches, batch);
		feedpub_batch_end(batches);
	}
	if (!found)
	{
		MemSet(batch, 0, sizeof(FeedpubBatch));
		batch->snapshot.xmin = batch->snapshot.xmax = FirstNormalTransactionId;
	}
}

/*
 * Does a snapshot see the batch of a cursor, or the one that it was merged
 * into?
 */
bool
feedpub_batch_has_arrived(Oid feed, const FeedpubCursor *cursor, Snapshot snapshot)
{
	FeedpubBatchScan *batches = feedpub_batch_begin(feed, cursor->sync_id, snapshot);
	FeedpubBatch batch;
	bool		result = feedpub_batch_next(batches, &batch) && feedpub_batch_knows(&batch, cursor);

	feedpub_batch_end(batches);
	return result;
}

/*
 * Is a batch of the right seed a proof?
 */
bool
feedpub_batch_is_proof(const FeedpubBatch *batch, const FeedpubProof *proof)
{
	return (proof->is_to_come ? batch->publication - 1 : batch->sync_id) >= proof->batch;
}

/*
 * Is there a batch that proves what has to be proved?
 *
 * Batches of one start follow each other.  The first one from a number on has
 * the start's seed if the start has made it, or one that it was merged into.
 */
bool
feedpub_batch_proves(Oid feed, const FeedpubProof *proof, Snapshot snapshot)
{
	FeedpubBatchScan *batches;
	FeedpubBatch batch;
	bool		found = false;

	if (proof->batch == 0)
		return true;
	batches = feedpub_batch_begin(feed, proof->batch, snapshot);
	while (!found && feedpub_batch_next(batches, &batch) && batch.seed == proof->seed)
	{
		CHECK_FOR_INTERRUPTS();
		found = feedpub_batch_is_proof(&batch, proof);
	}
	feedpub_batch_end(batches);
	return found;
}

static Relation
open_table(LOCKMODE lockmode)
{
	Relation	table = table_open(feedpub_registry_table("_batch"), lockmode);

	feedpub_registry_check_version(table, NATTS_BATCH);
	return table;
}

/*
 * Write a batch, and give it its seed.  The caller holds the feed's
 * publishing lock.
 */
void
feedpub_batch_write(Oid feed, FeedpubBatch *batch)
{
	Relation	table = open_table(RowExclusiveLock);
	Datum		values[NATTS_BATCH] = {0};
	bool		nulls[NATTS_BATCH] = {false};

	batch->seed = feedpub_seed_make(feed, feedpub_floor_history(feed, GetActiveSnapshot()), true);
	batch->site = feedpub_seed_site(GetWALInsertionTimeLine());

	nulls[ANUM_BATCH_MERGED_FROM - 1] = true;
	nulls[ANUM_BATCH_MERGED_POS - 1] = true;
	values[ANUM_BATCH_FEED - 1] = ObjectIdGetDatum(feed);
	values[ANUM_BATCH_SYNC_ID - 1] = Int64GetDatum(batch->sync_id);
	values[ANUM_BATCH_SNAPSHOT - 1] = feedpub_batch_snapshot_datum(&batch->snapshot);
	values[ANUM_BATCH_LAST_POS - 1] = Int64GetDatum(batch->last_pos);
	values[ANUM_BATCH_TRANSACTIONS - 1] = Int32GetDatum(batch->transactions);
	values[ANUM_BATCH_PUBLICATION - 1] = Int64GetDatum(batch->publication);
	values[ANUM_BATCH_PUBLISHED_AT - 1] = TimestampTzGetDatum(GetCurrentTimestamp());
	values[ANUM_BATCH_SEED - 1] = UInt32GetDatum(batch->seed);
	values[ANUM_BATCH_SITE - 1] = UInt32GetDatum(batch->site);
	values[ANUM_BATCH_PART - 1] = BoolGetDatum(batch->is_part);

	/* a plain table with one plain index, as the system catalogs */
	CatalogTupleInsert(table, heap_form_tuple(RelationGetDescr(table), values, nulls));
	table_close(table, NoLock);
}

/*
 * Take the publishing lock of a feed, which serialises its publishers, to the
 * end of the transaction: on the feed as an object of class feedpub._batch.
 * Returns false if wait is false and the lock is not free.
 */
bool
feedpub_batch_lock(Oid feed, bool wait)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, feedpub_registry_table("_batch"), feed, 0);
	return LockAcquire(&tag, ExclusiveLock, false, !wait) != LOCKACQUIRE_NOT_AVAIL;
}

/*
 * Does this backend hold the publishing lock?
 */
bool
feedpub_batch_is_locked_here(Oid feed)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, feedpub_registry_table("_batch"), feed, 0);
	return feedpub_lock_held(&tag, ExclusiveLock);
}

/*
 * Is a cursor in this batch, with its fingerprint?
 */
bool
feedpub_batch_has_cursor(const FeedpubCursor *cursor, int64 sync_id, bool merged,
						 uint32 fingerprint)
{
	return !cursor->initial && cursor->sync_id == sync_id &&
		cursor->merged == merged && cursor->fingerprint == fingerprint;
}
