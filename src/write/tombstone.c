/*-------------------------------------------------------------------------
 *
 * tombstone.c
 *	  The table feedpub._tombstone: deletes in table feeds.
 *
 * A tombstone is an entry for a deleted row: its key, and a stamp of the
 * transaction that deleted it.  One without a key stands for TRUNCATE.
 * Tombstones are in published order among the rows, by the same rules: run.c
 * reads them through their own index on (feed, feed_xid, feed_pos).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "catalog/indexing.h"
#include "utils/datum.h"
#include "utils/memutils.h"
#include "utils/xid8.h"

#include "write/write.h"

/* columns of feedpub._tombstone */
#define ANUM_TOMBSTONE_FEED		1
#define ANUM_TOMBSTONE_XID		2
#define ANUM_TOMBSTONE_POS		3
#define ANUM_TOMBSTONE_KEY		4
#define NATTS_TOMBSTONE			4

/* how many tombstones are written at once, and the size of their keys */
#define TOGETHER		500
#define MAX_TOGETHER	1000

struct FeedpubTombstones
{
	Oid			feed;
	Oid			seqid;			/* of its positions */
	FullTransactionId xid;
	Relation	table;
	TupleDesc	desc;			/* a copy: no slot is a resource to remember */
	CatalogIndexState indexes;
	MemoryContext context;		/* of what is not written yet */
	int			n;
	TupleTableSlot *slots[TOGETHER];
};

static void write_together(FeedpubTombstones *tombstones);

/*
 * Open the table, and its index if it is asked for.
 */
Relation
feedpub_tombstone_open(LOCKMODE lockmode, Relation *index)
{
	Relation	table = table_open(feedpub_registry_table("_tombstone"), lockmode);

	feedpub_registry_check_columns(table, NATTS_TOMBSTONE);
	if (index != NULL)
		*index = index_open(feedpub_registry_table("_tombstone_pkey"),
							lockmode);
	return table;
}

/*
 * Write a tombstone.  key is a text[], or 0 for TRUNCATE.  The write checks no
 * rights: the writer needs none on the table.
 */
void
feedpub_tombstone_write(Oid feed, FullTransactionId xid, int64 pos, Datum key)
{
	Relation	table = feedpub_tombstone_open(RowExclusiveLock, NULL);
	int			natts = RelationGetDescr(table)->natts;
	Datum	   *values = palloc0(natts * sizeof(Datum));
	bool	   *nulls = palloc0(natts * sizeof(bool));
	HeapTuple	tuple;

	for (int i = NATTS_TOMBSTONE; i < natts; i++)
		nulls[i] = true;
	values[ANUM_TOMBSTONE_FEED - 1] = ObjectIdGetDatum(feed);
	values[ANUM_TOMBSTONE_XID - 1] = FullTransactionIdGetDatum(xid);
	values[ANUM_TOMBSTONE_POS - 1] = Int64GetDatum(pos);
	values[ANUM_TOMBSTONE_KEY - 1] = key;
	nulls[ANUM_TOMBSTONE_KEY - 1] = key == (Datum) 0;

	/* a plain table with one plain index, as system catalogs are */
	tuple = heap_form_tuple(RelationGetDescr(table), values, nulls);
	CatalogTupleInsert(table, tuple);
	heap_freetuple(tuple);
	pfree(values);
	pfree(nulls);
	table_close(table, NoLock);
}

/*
 * Begin to write many tombstones of one transaction.  They are kept until
 * feedpub_tombstone_end(), or until there are enough for some pages of the
 * table, which are then written at once.
 */
FeedpubTombstones *
feedpub_tombstone_begin(Oid feed, Oid seqid, FullTransactionId xid)
{
	FeedpubTombstones *tombstones = palloc0_object(FeedpubTombstones);

	tombstones->feed = feed;
	tombstones->seqid = seqid;
	tombstones->xid = xid;
	tombstones->table = feedpub_tombstone_open(RowExclusiveLock, NULL);
	tombstones->desc = CreateTupleDescCopy(RelationGetDescr(tombstones->table));
	tombstones->indexes = CatalogOpenIndexes(tombstones->table);
	tombstones->context = AllocSetContextCreate(CurrentMemoryContext,
												"feedpub tombstones",
												ALLOCSET_DEFAULT_SIZES);
	return tombstones;
}

/*
 * Add one, as feedpub_tombstone_write() writes it, with a position that is taken
 * then.
 */
void
feedpub_tombstone_add(FeedpubTombstones *tombstones, Datum key)
{
	MemoryContext oldcontext;
	TupleTableSlot *slot;

	/* a value that is stored out of line, heap_multi_insert() may move */
	if (VARSIZE_ANY(DatumGetPointer(key)) > MAX_TOGETHER)
	{
		feedpub_tombstone_write(tombstones->feed, tombstones->xid,
								feedpub_position_take(tombstones->feed, tombstones->seqid, 1), key);
		return;
	}
	oldcontext = MemoryContextSwitchTo(tombstones->context);
	if (tombstones->slots[tombstones->n] == NULL)
	{
		MemoryContext own = MemoryContextSwitchTo(GetMemoryChunkContext(tombstones));

		tombstones->slots[tombstones->n] = MakeSingleTupleTableSlot(tombstones->desc, &TTSOpsHeapTuple);
		MemoryContextSwitchTo(own);
	}
	slot = tombstones->slots[tombstones->n++];
	ExecClearTuple(slot);
	memset(slot->tts_isnull, true, tombstones->desc->natts * sizeof(bool));
	memset(slot->tts_isnull, false, NATTS_TOMBSTONE * sizeof(bool));
	slot->tts_values[ANUM_TOMBSTONE_FEED - 1] = ObjectIdGetDatum(tombstones->feed);
	slot->tts_values[ANUM_TOMBSTONE_XID - 1] = FullTransactionIdGetDatum(tombstones->xid);
	slot->tts_values[ANUM_TOMBSTONE_KEY - 1] = datumCopy(key, false, -1);
	ExecStoreVirtualTuple(slot);
	MemoryContextSwitchTo(oldcontext);
	if (tombstones->n == TOGETHER)
		write_together(tombstones);
}

static void
write_together(FeedpubTombstones *tombstones)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(tombstones->context);

	for (int begin = 0; begin < tombstones->n; begin += FEEDPUB_MAX_POSITIONS)
	{
		int			n = Min(tombstones->n - begin, FEEDPUB_MAX_POSITIONS);
		int64		last = feedpub_position_take(tombstones->feed, tombstones->seqid, n);

		for (int i = 0; i < n; i++)
			tombstones->slots[begin + i]->tts_values[ANUM_TOMBSTONE_POS - 1] =
				Int64GetDatum(last - n + 1 + i);
	}

	/* as the server writes its catalogs, see feedpub_tombstone_write() */
	CatalogTuplesMultiInsertWithInfo(tombstones->table, tombstones->slots,
									 tombstones->n, tombstones->indexes);
	for (int i = 0; i < tombstones->n; i++)
		ExecClearTuple(tombstones->slots[i]);
	tombstones->n = 0;
	MemoryContextSwitchTo(oldcontext);
	MemoryContextReset(tombstones->context);
}

void
feedpub_tombstone_end(FeedpubTombstones *tombstones)
{
	write_together(tombstones);
	for (int i = 0; i < TOGETHER && tombstones->slots[i] != NULL; i++)
		ExecDropSingleTupleTableSlot(tombstones->slots[i]);
	MemoryContextDelete(tombstones->context);
	CatalogCloseIndexes(tombstones->indexes);
	table_close(tombstones->table, NoLock);
	pfree(tombstones);
}

/*
 * Get a tombstone's key, a text[].  Returns false for TRUNCATE.
 */
bool
feedpub_tombstone_key(TupleTableSlot *slot, Datum *key)
{
	bool		isnull;

	*key = slot_getattr(slot, ANUM_TOMBSTONE_KEY, &isnull);
	return !isnull;
}
