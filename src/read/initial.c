/*-------------------------------------------------------------------------
 *
 * initial.c
 *	  Batch 0: the rows that were in a table before it became a feed.
 *
 * They have no stamp and are read where they lie, in the order of their row
 * identifiers, page by page, while writers write.
 *
 * Why no row slips between batch 0 and the later ones: the table became a feed
 * under a lock that let no writer in (attach.c), so whatever is written since
 * is stamped, and any UPDATE of a row of batch 0 stamps its new version
 * (change.c).  A row without a stamp thus stays as it is, in its place, until
 * it is updated or deleted.  Take the page that covers a row's place, and the
 * snapshot that the page reads with.  Either the snapshot sees the row without
 * a stamp: then it is in the page.  Or it sees that a transaction has changed
 * it: then the new version, or the tombstone, is stamped by that transaction,
 * and will be in a batch, all of which the consumer reads after batch 0.  And
 * if that transaction commits later than the snapshot, the page has the old
 * version, and the new one is in a batch all the same.
 *
 * That rests on places not moving.  VACUUM FULL, CLUSTER, TRUNCATE and ALTER
 * TABLE may rewrite the table, into another file, whose number is the cursor's
 * fingerprint: then batch 0 begins again.
 *
 * Rows of batch 0 are durable: they were committed before the table became a
 * feed, which attach.c commits synchronously.
 *
 * The partitions of a partitioned feed are read one after the other, in the
 * order of their OIDs: those that were there when the table became a feed and
 * have been partitions since (partition.c).  One that is detached goes with its
 * rows; if it is attached again, its rows come in batches.
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

/* how many of the table's pages are looked at before the reader is asked */
#define WINDOW	64

struct FeedpubInitialScan
{
	Relation	heap;
	AttrNumber	xid_attno;
	Snapshot	snapshot;
	BlockNumber nblocks;
	BlockNumber next_block;		/* behind the window being scanned */
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
 * The file that the table is in, in this life of the feed, this database and
 * this server, as a fingerprint: a restored table may be in a file of the same
 * number, with its rows in other places.
 */
uint32
feedpub_initial_fingerprint(Relation heap, const FeedpubFloor *floor)
{
	uint64		system_id = GetSystemIdentifier();
	uint32		hash = murmurhash32(floor->history);

	hash = hash_combine(hash, murmurhash32((uint32) (system_id >> 32)));
	hash = hash_combine(hash, murmurhash32((uint32) system_id));
	hash = hash_combine(hash, murmurhash32(MyDatabaseId));
	return hash_combine(hash, murmurhash32(heap->rd_rel->relfilenode));
}

/*
 * The same for a partition, whose cursors have its OID: half of it tells in
 * which life of the feed, database and server the OID is that partition's, and
 * half in which file it is.  Files get their numbers from a counter, so two of
 * one partition differ in that half.
 */
uint32
feedpub_initial_partition_fingerprint(Relation heap, const FeedpubFloor *floor)
{
	uint64		system_id = GetSystemIdentifier();
	uint32		hash = murmurhash32(floor->history);

	hash = hash_combine(hash, murmurhash32((uint32) (system_id >> 32)));
	hash = hash_combine(hash, murmurhash32((uint32) system_id));
	hash = hash_combine(hash, murmurhash32(MyDatabaseId));
	return (hash & 0xffff0000) | (heap->rd_rel->relfilenode & 0xffff);
}

/*
 * Begin to read a table's rows of batch 0 after a position.
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
		initial->scan = table_beginscan_tidrange(initial->heap, initial->snapshot,
												 &initial->from, &to);
	else
		table_rescan_tidrange(initial->scan, &initial->from, &to);
	initial->next_block = last + 1;
	ItemPointerSet(&initial->from, last + 1, FirstOffsetNumber);
}

/*
 * Go on to the next row of batch 0; *slot is NULL where there is none in the
 * pages that were looked at.  *pos is how far it got, and *npassed goes up by
 * the stamped rows that were passed.  Returns false at the end of the table.
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
 * Has the scan's row no stamp?  Of an ordinary heap the row says so by itself;
 * taking it apart up to its last columns would cost as much as the scan.
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
