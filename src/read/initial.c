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
#include "access/xlog.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"

#include "read/read.h"

/* how many of the table's pages are looked at before the page's limits are checked */
#define WINDOW	64

static bool is_initial(TupleTableSlot *slot, AttrNumber xid_attno);

/*
 * A fingerprint of the file that a table is in.  Half of it tells in which
 * history of the feed, database and server it is that table's, and an OID a
 * partition's: a restored table may be in a file of the same number, with its
 * rows elsewhere.  The other half tells in which file it is.  Files get their
 * numbers from a counter.  So two files of one table differ in that half,
 * unless their numbers differ by a multiple of 65,536.
 */
uint32
feedpub_initial_fingerprint(Relation heap, uint32 history)
{
	uint64		system_id = GetSystemIdentifier();
	uint32		hash = murmurhash32(history);

	hash = hash_combine(hash, murmurhash32((uint32) (system_id >> 32)));
	hash = hash_combine(hash, murmurhash32((uint32) system_id));
	hash = hash_combine(hash, murmurhash32(MyDatabaseId));
	return (hash & 0xffff0000) | (heap->rd_rel->relfilenode & 0xffff);
}

/*
 * Add the rows of a table that have no stamp to the page, from the position on
 * that it has got to; a row identifier is one.  Returns whether the end of the table was reached.
 */
bool
feedpub_initial_read(FeedpubPageScan *scan, FeedpubPartition *partition)
{
	int64	   *pos = &scan->page->passed.pos;
	BlockNumber nblocks = RelationGetNumberOfBlocks(partition->heap);
	BlockNumber next = (BlockNumber) (*pos >> 16);	/* after the window */
	TupleTableSlot *slot = table_slot_create(partition->heap, NULL);
	TableScanDesc window = NULL;
	ItemPointerData from;
	ItemPointerData to;
	ItemPointer tid;
	bool		in_window = false;

	ItemPointerSet(&from, next, (OffsetNumber) (*pos & 0xffff) + 1);
	while ((in_window || next < nblocks) && !feedpub_entry_is_full(scan))
	{
		CHECK_FOR_INTERRUPTS();
		if (!in_window)
		{
			next = Min(next + WINDOW, nblocks);
			ItemPointerSet(&to, next - 1, MaxOffsetNumber);
			if (window == NULL)
				window = feedpub_table_beginscan_tidrange(partition->heap, scan->snapshot, &from, &to);
			else
				table_rescan_tidrange(window, &from, &to);
			ItemPointerSet(&from, next, FirstOffsetNumber);
		}
		in_window = table_scan_getnextslot_tidrange(window, ForwardScanDirection, slot);
		tid = in_window ? &slot->tts_tid : &to;
		*pos = (int64) ItemPointerGetBlockNumberNoCheck(tid) << 16 | ItemPointerGetOffsetNumberNoCheck(tid);
		if (in_window && is_initial(slot, partition->xid_attno))
			feedpub_entry_add_initial(scan, partition, slot);
		else
			scan->npassed++;
	}
	if (window != NULL)
		table_endscan(window);
	ExecDropSingleTupleTableSlot(slot);
	return !in_window && next >= nblocks;
}

/*
 * Has a row no stamp?  A row of an ordinary heap tells that by itself; taking
 * it apart up to its last columns would cost as much as the scan.
 */
static bool
is_initial(TupleTableSlot *slot, AttrNumber xid_attno)
{
	if (TTS_IS_BUFFERTUPLE(slot))
		return heap_attisnull(((HeapTupleTableSlot *) slot)->tuple, xid_attno,
							  slot->tts_tupleDescriptor);
	return slot_attisnull(slot, xid_attno);
}
