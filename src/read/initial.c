/*-------------------------------------------------------------------------
 *
 * initial.c
 *	  The initial snapshot: the rows that were in a table before it became a feed.
 *
 * They have no stamp and are read in place, in the order of their row
 * identifiers, page by page, while writers write.
 *
 * Why no row is lost between the initial snapshot and the batches.  The table
 * became a feed under a lock that let no writer in (feed_attach()).  So every
 * row that is written since is stamped, and an UPDATE of a row of the initial
 * snapshot stamps its new version (write/stamp.c).  A row without a stamp
 * stays as it is and where it is until it is updated or deleted.  Take the
 * page that covers its row identifier, and the snapshot that the page reads
 * with.
 *
 * If the snapshot sees the row without a stamp, the page has it.  If it sees
 * that a transaction has changed the row, that transaction has stamped the new
 * version or the tombstone, and it is in a batch; the consumer reads all
 * batches after the initial snapshot.  If that transaction commits after the
 * snapshot was taken, the page has the old version, and the new one is in a
 * batch all the same.
 *
 * This rests on rows that do not move.  VACUUM FULL, CLUSTER, TRUNCATE and
 * ALTER TABLE may rewrite the table into another file.  The file's number is
 * the cursor's fingerprint: if it is another, the initial snapshot begins
 * again.
 *
 * Rows of the initial snapshot are durable.  They were committed before the
 * table became a feed, and feed_attach() commits synchronously.
 *
 * The partitions of a partitioned feed are read one after the other, in the
 * order of their OIDs: those that were there when the table became a feed and
 * have been partitions since (feed/partition_join.c).  If one is detached, its rows
 * go with it; if it is attached again, its rows come in batches.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/tableam.h"
#include "access/xlog.h"
#include "common/hashfn.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"

#include "read/read.h"

/* how many of the table's pages are looked at before the caller checks its limits */
#define WINDOW	64

struct FeedpubInitialScan
{
	Relation	heap;
	AttrNumber	xid_attno;
	Snapshot	snapshot;
	BlockNumber nblocks;
	BlockNumber next_block;		/* after the window being scanned */
	TableScanDesc scan;			/* of the window */
	bool		in_window;
	ItemPointerData from;		/* where the next window begins */
	TupleTableSlot *slot;
};

static void begin_window(FeedpubInitialScan *initial);
static bool is_initial(FeedpubInitialScan *initial);

/*
 * A row identifier as a position.
 */
int64
feedpub_initial_pos(ItemPointer tid)
{
	return (int64) ItemPointerGetBlockNumberNoCheck(tid) << 16 |
		ItemPointerGetOffsetNumberNoCheck(tid);
}

/*
 * A hash of the history of the feed, this database and this server.
 */
static uint32
hash_history(uint32 history)
{
	uint64		system_id = GetSystemIdentifier();
	uint32		hash = murmurhash32(history);

	hash = hash_combine(hash, murmurhash32((uint32) (system_id >> 32)));
	hash = hash_combine(hash, murmurhash32((uint32) system_id));
	return hash_combine(hash, murmurhash32(MyDatabaseId));
}

/*
 * A fingerprint of the file that the table is in, in this history of the feed,
 * this database and this server.  A restored table may be in a file of the
 * same number, with its rows elsewhere.
 */
uint32
feedpub_initial_fingerprint(Relation heap, uint32 history)
{
	return hash_combine(hash_history(history), murmurhash32(heap->rd_rel->relfilenode));
}

/*
 * The same for a partition, whose cursors have its OID.  Half of it tells in
 * which history of the feed, database and server the OID is that partition's,
 * the other half in which file it is.  Files get their numbers from a counter.
 * So two files of one partition differ in that half, unless their numbers
 * differ by a multiple of 65,536.
 */
uint32
feedpub_initial_partition_fingerprint(Relation heap, uint32 history)
{
	return (hash_history(history) & 0xffff0000) | (heap->rd_rel->relfilenode & 0xffff);
}

/*
 * Begin to read a table's rows of the initial snapshot after a position.
 */
FeedpubInitialScan *
feedpub_initial_begin(Relation heap, AttrNumber xid_attno, Snapshot snapshot,
					  int64 after_pos)
{
	FeedpubInitialScan *initial = palloc0_object(FeedpubInitialScan);
	BlockNumber block = (BlockNumber) (after_pos >> 16);
	OffsetNumber offset = (OffsetNumber) (after_pos & 0xffff);

	initial->heap = heap;
	initial->xid_attno = xid_attno;
	initial->snapshot = snapshot;
	initial->nblocks = RelationGetNumberOfBlocks(heap);
	initial->slot = table_slot_create(heap, NULL);
	ItemPointerSet(&initial->from, block, offset + 1);
	initial->next_block = block;
	return initial;
}

/*
 * Set the scan to the next window.
 */
static void
begin_window(FeedpubInitialScan *initial)
{
	BlockNumber last = Min(initial->next_block + WINDOW, initial->nblocks) - 1;
	ItemPointerData to;

	ItemPointerSet(&to, last, MaxOffsetNumber);
	if (initial->scan == NULL)
		initial->scan = feedpub_table_beginscan_tidrange(initial->heap, initial->snapshot,
														 &initial->from, &to);
	else
		table_rescan_tidrange(initial->scan, &initial->from, &to);
	initial->next_block = last + 1;
	ItemPointerSet(&initial->from, last + 1, FirstOffsetNumber);
}

/*
 * Go on to the next row of the initial snapshot. *slot is NULL if there is
 * none in the pages that were looked at. *pos is how far it got, and *npassed
 * goes up by the stamped rows that were passed.  Returns false at the end of
 * the table.
 */
bool
feedpub_initial_next(FeedpubInitialScan *initial, TupleTableSlot **slot,
					 int64 *pos, int *npassed)
{
	ItemPointerData last;

	*slot = NULL;
	if (!initial->in_window)
	{
		if (initial->next_block >= initial->nblocks)
			return false;
		begin_window(initial);
		initial->in_window = true;
	}
	while (table_scan_getnextslot_tidrange(initial->scan, ForwardScanDirection,
										   initial->slot))
	{
		CHECK_FOR_INTERRUPTS();
		*pos = feedpub_initial_pos(&initial->slot->tts_tid);
		if (is_initial(initial))
		{
			*slot = initial->slot;
			return true;
		}
		(*npassed)++;
	}
	ItemPointerSet(&last, initial->next_block - 1, MaxOffsetNumber);
	*pos = feedpub_initial_pos(&last);
	initial->in_window = false;
	return true;
}

/*
 * Has the scan's row no stamp?  A row of an ordinary heap tells that by
 * itself; taking it apart up to its last columns would cost as much as the
 * scan.
 */
static bool
is_initial(FeedpubInitialScan *initial)
{
	if (TTS_IS_BUFFERTUPLE(initial->slot))
		return heap_attisnull(((HeapTupleTableSlot *) initial->slot)->tuple,
							  initial->xid_attno,
							  RelationGetDescr(initial->heap));
	return slot_attisnull(initial->slot, initial->xid_attno);
}

void
feedpub_initial_end(FeedpubInitialScan *initial)
{
	if (initial->scan != NULL)
		table_endscan(initial->scan);
	ExecDropSingleTupleTableSlot(initial->slot);
	pfree(initial);
}
