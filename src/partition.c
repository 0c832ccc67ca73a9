/*-------------------------------------------------------------------------
 *
 * partition.c
 *	  The tables that a feed's rows are in: the feed's own or, when that is
 *	  partitioned, its partitions without partitions of their own, the leaves.
 *
 * A partitioned table is one feed: one sequence gives its positions, one
 * registration, one order over all leaves.  The triggers that stamp are made
 * on it and cloned by the server to each partition, also to those that come
 * later (tablecmds.c: CloneRowTriggersToPartition), as is the index.  So a
 * leaf's rows are found by their stamps in an index of its own, and readers
 * merge those indexes.
 *
 * Rows without a stamp, however, come with a partition too: those that were
 * there when the feed was attached, and those of a table that is attached as
 * a partition later, when readers have long passed batch 0.  Such a table may
 * also bring rows with stamps, old ones, because it was a partition before.
 * None of them may be lost.  So partitioned feeds have no batch 0; instead the
 * publisher admits partitions: feedpub.partition lists those of each feed,
 * with the batch k that brought them.  For batches before k the partition is
 * not there.  Batch k hands out, behind its other rows, the old ones of the
 * partition: those that have no stamp, or one that the snapshot of the batch
 * before k sees.  They are read in place, as batch 0 is.  The other rows of the
 * partition are in the batches, k and later ones, that see their stamps first.
 *
 * Why each row of a partition L that batch k brought is handed out, and once:
 *
 * 1. A row is old, and in k by its place, or it is not, and in a batch by its
 *	  stamp.  A reader who has passed the batch before k has passed none of L's.
 * 2. L was attached under a lock that let no writer in, and has had the
 *	  triggers since; and any UPDATE of an old row stamps it anew (change.c).
 *	  So the argument of initial.c holds for the old rows: whoever reads them in
 *	  place misses none but those that have changed before his snapshot.  Such
 *	  a change has a stamp.  If the batch before k sees it, the row is an old one
 *	  in its new place; that change was before the batch was made, so before
 *	  any reader was here.  If not, it is in k, which he has read up to L, or in
 *	  a later batch.
 * 3. Which rows are old a writer knows by old_xid, which is beyond all ids
 *	  that the batch before k sees.  Before L is admitted he takes all rows to
 *	  be old; and what he knows from before a new admission is void, for L was
 *	  locked against him when it was attached.
 *
 * A partition that is detached and attached again meanwhile may have changed
 * without a trace.  It is told by its clone of the trigger that stamps: the
 * server drops it and makes another.  Then it is admitted anew.  After a
 * restore, where each trigger is another, the list says of which table and
 * server it was made, and is taken over.
 *
 * The publisher admits before it publishes, in one transaction, so a partition
 * that was made empty is in the list before its first row is published; then
 * it brings nothing.  One whose definition the publisher's snapshot does not
 * see, for somebody has just attached it, is left to the next step: whether
 * it brings rows cannot be told yet.  Until then no reader has it in his list,
 * so it is no matter that batches may pass rows of it.
 *
 * Readers take the list with the snapshot that reads; a partition that it does
 * not have yet has no rows in the batches that the snapshot sees.  One that has
 * been detached or dropped is gone with its rows, as it is from the table:
 * nothing is published, for nobody can tell which keys it had.
 *
 * Lock order: the table, then partitions as the server opens them, then
 * indexes.  While the table is locked no partition can go (partdesc.c).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xlog.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/partition.h"
#include "catalog/pg_class.h"
#include "common/hashfn.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/xid8.h"

#include "feedpub.h"

/* columns of feedpub.partition */
#define ANUM_PARTITION_FEED			1
#define ANUM_PARTITION_LEAF			2
#define ANUM_PARTITION_SYNC_ID		3
#define ANUM_PARTITION_NUMBER		4
#define ANUM_PARTITION_OLD_XID		5
#define ANUM_PARTITION_TRIGGER_ID	6
#define ANUM_PARTITION_LEAF_ID		7
#define ANUM_PARTITION_SYSTEM_ID	8
#define NATTS_PARTITION				8

/* up to how many pages a new partition is searched for rows it brings */
#define MAX_LOOK	128

/* as many partitions a batch can bring, see feedpub_partition_pos() */
#define MAX_NUMBER	0x3ffe

/* One row of feedpub.partition. */
typedef struct PartitionRow
{
	Oid			leaf;
	int64		since;
	int			number;
	uint64		old_xid;
	Oid			trigger_id;
	Oid			leaf_id;
	uint64		system_id;
	ItemPointerData tid;
	bool		is_there;		/* a partition of the table, as it is now */
} PartitionRow;

/*
 * What is known of a leaf.  Entries are voided by relcache invalidation of the
 * leaf, of the feed's table or of the registry, and never freed.
 */
typedef struct LeafInfo
{
	Oid			relid;			/* hash key, must be first */
	bool		valid;
	Oid			feed;
	Oid			indexid;
	Oid			keyid;
	AttrNumber	xid_attno;
	bool		history_checked;	/* no foreign stamps were found in it */
} LeafInfo;

static HTAB *infos = NULL;
static uint64 ninvalidations = 0;
static Oid	registry_relid = InvalidOid;

static void invalidate_infos(Datum arg, Oid relid);
static LeafInfo *find_info(Oid feed, Relation rel);
static void add_leaves(Relation rel, List **leaves, LOCKMODE unlock);
static List *read_rows(Oid feed, Snapshot snapshot);
static PartitionRow *find_row(List *rows, Oid leaf);
static Oid	find_trigger(Relation rel);
static bool is_changed(const PartitionRow *row, Oid trigger_id);
static bool brings_rows(const FeedpubLeaf *leaf, const FeedpubSnapshot *before,
						Snapshot snapshot);
static void write_row(Relation table, Oid feed, const PartitionRow *row);

/*
 * The feed that a table's rows belong to: the table itself, or the one that it
 * is a partition of, at whatever distance; InvalidOid if there is none.  It is
 * told by the sequence that its feed_pos owns.  Locks nothing but the catalog:
 * a writer into a partition need not hold a lock on the partitioned table.
 */
Oid
feedpub_partition_feed(Oid relid)
{
	while (!OidIsValid(feedpub_guard_sequence(relid)))
	{
		/* one that is being detached still has the triggers */
		if (!get_rel_relispartition(relid))
			return InvalidOid;
		relid = get_partition_parent(relid, true);
	}
	return relid;
}

/*
 * The leaves of a partitioned table, by OID; the table is locked.  Those below
 * other partitions can go unless these are kept locked, too.
 */
List *
feedpub_partition_list(Relation rel, bool keep_locks)
{
	List	   *leaves = NIL;

	add_leaves(rel, &leaves, keep_locks ? NoLock : AccessShareLock);
	list_sort(leaves, list_oid_cmp);
	return leaves;
}

static void
add_leaves(Relation rel, List **leaves, LOCKMODE unlock)
{
	ListCell   *lc;

	foreach(lc, feedpub_catalog_partitions(RelationGetRelid(rel)))
	{
		Relation	part;

		if (get_rel_relkind(lfirst_oid(lc)) != RELKIND_PARTITIONED_TABLE)
		{
			*leaves = lappend_oid(*leaves, lfirst_oid(lc));
			continue;
		}
		part = try_relation_open(lfirst_oid(lc), AccessShareLock);
		if (part == NULL)
			continue;
		add_leaves(part, leaves, unlock);
		relation_close(part, unlock);
	}
}

/*
 * Does a snapshot see the feed's tables as they are defined now?
 */
bool
feedpub_partition_sees_tables(const FeedpubLeaves *leaves, Snapshot snapshot)
{
	if (!feedpub_horizon_sees_table(snapshot, leaves->table))
		return false;
	for (int i = 0; i < leaves->n && leaves->is_partitioned; i++)
	{
		if (!feedpub_horizon_sees_table(snapshot, leaves->leaves[i].heap))
			return false;
	}
	return true;
}

/*
 * Open the tables that a feed's rows are in, with their indexes.  A partitioned
 * feed's are those that the snapshot knows of, or all if there is none.  Locks
 * are kept as the feed's table's are, or given back with the tables.
 */
FeedpubLeaves *
feedpub_partition_open(const FeedpubFeed *feed, Relation heap,
					   Snapshot snapshot, bool keep_locks)
{
	FeedpubLeaves *leaves = palloc0_object(FeedpubLeaves);
	List	   *rows = NIL;
	List	   *oids;
	ListCell   *lc;

	leaves->table = heap;
	leaves->is_partitioned = feed->is_partitioned;
	leaves->unlock = keep_locks ? NoLock : AccessShareLock;
	if (!feed->is_partitioned)
	{
		leaves->n = 1;
		leaves->leaves = palloc0_object(FeedpubLeaf);
		leaves->leaves[0].heap = heap;
		leaves->leaves[0].index = index_open(feed->indexid, AccessShareLock);
		leaves->leaves[0].xid_attno = feed->xid_attno;
		leaves->leaves[0].keyid = feed->keyid;
		leaves->leaves[0].has_map = true;
		return leaves;
	}

	oids = feedpub_partition_list(heap, keep_locks);
	if (snapshot != NULL)
		rows = read_rows(feed->relid, snapshot);
	leaves->leaves = palloc0((list_length(oids) + 1) * sizeof(FeedpubLeaf));
	foreach(lc, oids)
	{
		FeedpubLeaf *leaf = &leaves->leaves[leaves->n];
		PartitionRow *row = find_row(rows, lfirst_oid(lc));
		LeafInfo   *info;

		CHECK_FOR_INTERRUPTS();
		if (snapshot != NULL && row == NULL)
			continue;
		leaf->heap = try_relation_open(lfirst_oid(lc), AccessShareLock);
		if (leaf->heap == NULL)
			continue;
		info = find_info(feed->relid, leaf->heap);
		if (!OidIsValid(info->indexid))
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("partition \"%s\" of feed \"%s\" has no index on (%s, %s)",
							RelationGetRelationName(leaf->heap),
							RelationGetRelationName(heap),
							FEEDPUB_XID_COLUMN, FEEDPUB_POS_COLUMN),
					 errhint("Run feed_check() to see what is missing.")));
		leaf->index = index_open(info->indexid, AccessShareLock);
		leaf->xid_attno = info->xid_attno;
		leaf->keyid = info->keyid;
		if (row != NULL)
		{
			leaf->since = row->since;
			leaf->number = row->number;
		}
		leaves->last_since = Max(leaves->last_since, leaf->since);
		leaves->fingerprint = hash_combine(leaves->fingerprint,
										   murmurhash32(lfirst_oid(lc) ^ (uint32) leaf->since));
		leaves->n++;
	}
	list_free_deep(rows);
	list_free(oids);
	return leaves;
}

/*
 * Close them.
 */
void
feedpub_partition_close(FeedpubLeaves *leaves)
{
	for (int i = 0; i < leaves->n; i++)
	{
		FeedpubLeaf *leaf = &leaves->leaves[i];

		if (leaf->slot != NULL)
			ExecDropSingleTupleTableSlot(leaf->slot);
		if (leaf->map != NULL)
			free_conversion_map(leaf->map);
		if (leaf->key != NULL)
			index_close(leaf->key, leaves->unlock);
		index_close(leaf->index, leaves->unlock);
		if (leaves->is_partitioned)
			relation_close(leaf->heap, leaves->unlock);
	}
	pfree(leaves->leaves);
	pfree(leaves);
}

/*
 * A row of a leaf as one of the feed's table: partitions may have their
 * columns in another order, or dropped ones between them.  The result lives as
 * long as the slot's row does.
 */
TupleTableSlot *
feedpub_partition_convert(FeedpubLeaves *leaves, FeedpubLeaf *leaf,
						  TupleTableSlot *slot)
{
	if (!leaf->has_map)
	{
		MemoryContext oldcontext = MemoryContextSwitchTo(GetMemoryChunkContext(leaves));

		leaf->map = convert_tuples_by_name(RelationGetDescr(leaf->heap),
										   RelationGetDescr(leaves->table));
		if (leaf->map != NULL)
			leaf->slot = MakeSingleTupleTableSlot(RelationGetDescr(leaves->table),
												  &TTSOpsVirtual);
		leaf->has_map = true;
		MemoryContextSwitchTo(oldcontext);
	}
	if (leaf->map == NULL)
		return slot;
	execute_attr_map_slot(leaf->map->attrMap, slot, leaf->slot);
	leaf->slot->tts_tid = slot->tts_tid;
	return leaf->slot;
}

/*
 * The leaf in which a row with this key would be, or NULL if there is none that
 * is read.  attnos are the key's columns in the feed's table.  Returns false
 * when that cannot be told from the key.
 */
bool
feedpub_partition_route(FeedpubLeaves *leaves, int nkeys,
						const AttrNumber *attnos, const Datum *values,
						FeedpubLeaf **found)
{
	Oid			relid;

	*found = NULL;
	if (!feedpub_catalog_route(leaves->table, nkeys, attnos, values, &relid))
		return false;
	for (int i = 0; i < leaves->n; i++)
	{
		if (RelationGetRelid(leaves->leaves[i].heap) == relid)
			*found = &leaves->leaves[i];
	}
	return true;
}

/*
 * The place of a row that a batch hands out with its partition, as a position:
 * beyond those of all stamps, then by partition and row identifier.  The
 * largest number that there is lies behind all of them.
 */
int64
feedpub_partition_pos(int number, ItemPointer tid)
{
	return FEEDPUB_PARTITION_POS | (int64) number << 48 |
		(int64) ItemPointerGetBlockNumberNoCheck(tid) << 16 |
		ItemPointerGetOffsetNumberNoCheck(tid);
}

/*
 * The place behind all that is in a batch.
 */
int64
feedpub_partition_end_pos(Oid feed, const FeedpubBatch *batch)
{
	if (batch->sync_id > 0 && get_rel_relkind(feed) == RELKIND_PARTITIONED_TABLE)
		return PG_INT64_MAX;
	return batch->last_pos;
}

/*
 * The fingerprint of a cursor at such a place: half of the batch's, and half of
 * the file that the partition is in, for who reads on must find the rows where
 * they were.  Files get their numbers from a counter, so two of one partition
 * differ in that half.
 */
uint32
feedpub_partition_fingerprint(const FeedpubLeaf *leaf, uint32 batch)
{
	uint64		system_id = GetSystemIdentifier();
	uint32		hash = murmurhash32((uint32) system_id) ^
		murmurhash32((uint32) (system_id >> 32)) ^ murmurhash32(MyDatabaseId);

	return (batch & 0xffff0000) |
		((hash ^ leaf->heap->rd_rel->relfilenode) & 0xffff);
}

/*
 * The leaf with this place in a batch, or the next one behind it; NULL if
 * there is none.
 */
FeedpubLeaf *
feedpub_partition_brought(FeedpubLeaves *leaves, int64 sync_id, int number)
{
	FeedpubLeaf *found = NULL;

	if (leaves->last_since < sync_id)
		return NULL;
	for (int i = 0; i < leaves->n; i++)
	{
		FeedpubLeaf *leaf = &leaves->leaves[i];

		if (leaf->since == sync_id && leaf->number >= Max(number, 1) &&
			(found == NULL || leaf->number < found->number))
			found = leaf;
	}
	return found;
}

/*
 * The batches that brought partitions, a List of pointers to int64.
 */
List *
feedpub_partition_batches(Oid feed, Snapshot snapshot)
{
	List	   *batches = NIL;
	ListCell   *lc;

	foreach(lc, read_rows(feed, snapshot))
	{
		PartitionRow *row = lfirst(lc);

		/* neighbours in the list are likely to have one batch */
		if (row->since > 0 &&
			(batches == NIL || *(int64 *) llast(batches) != row->since))
			batches = lappend(batches, &row->since);
	}
	return batches;
}

/*
 * Did a batch bring partitions with their rows, as far as a snapshot knows?
 */
bool
feedpub_partition_in_batch(Oid feed, int64 sync_id, Snapshot snapshot)
{
	List	   *rows;
	ListCell   *lc;
	bool		found = false;

	if (get_rel_relkind(feed) != RELKIND_PARTITIONED_TABLE)
		return false;
	rows = read_rows(feed, snapshot);
	foreach(lc, rows)
	{
		PartitionRow *row = lfirst(lc);

		found = found ||
			(row->since == sync_id && row->number > 0 &&
			 get_rel_relispartition(row->leaf));
	}
	list_free_deep(rows);
	return found;
}

/*
 * Are there partitions that the publisher should admit, or forget?
 */
bool
feedpub_partition_has_new(const FeedpubFeed *feed, Relation heap,
						  Snapshot snapshot)
{
	List	   *rows;
	int			nknown = 0;
	ListCell   *lc;
	bool		found = false;

	if (!feed->is_partitioned)
		return false;
	rows = read_rows(feed->relid, snapshot);
	foreach(lc, feedpub_partition_list(heap, false))
	{
		PartitionRow *row = find_row(rows, lfirst_oid(lc));
		Relation	rel = try_relation_open(lfirst_oid(lc), AccessShareLock);

		if (rel == NULL)
			continue;
		nknown += row != NULL;
		found = found || is_changed(row, find_trigger(rel));
		relation_close(rel, AccessShareLock);
	}
	found = found || nknown < list_length(rows);
	list_free_deep(rows);
	return found;
}

/*
 * Admit new partitions, and forget those that have gone.  The leaves are all
 * that there are.  Returns whether rows come with any, which the next batch
 * after last then hands out.  The caller holds the publishing lock, and
 * snapshot was taken since.
 */
bool
feedpub_partition_admit(Oid feed, FeedpubLeaves *leaves,
						const FeedpubBatch *last, Snapshot snapshot)
{
	List	   *rows = read_rows(feed, snapshot);
	Relation	table = NULL;
	int			nbrought = 0;
	ListCell   *lc;

	for (int i = 0; i < leaves->n; i++)
	{
		FeedpubLeaf *leaf = &leaves->leaves[i];
		PartitionRow *row = find_row(rows, RelationGetRelid(leaf->heap));
		Oid			trigger_id = find_trigger(leaf->heap);
		PartitionRow new_row = {0};

		if (row != NULL)
		{
			row->is_there = true;
			new_row = *row;
		}

		/*
		 * The list of leaves may be younger than the snapshot, which then sees
		 * none of the rows that were put into a table before it was attached.
		 */
		if (!feedpub_horizon_sees_table(snapshot, leaf->heap))
			continue;
		if (is_changed(row, trigger_id))
		{
			new_row.since = 0;
			new_row.number = 0;
			new_row.old_xid = 0;
			if (brings_rows(leaf, &last->snapshot, snapshot))
			{
				/* more than a batch can bring: the rest in the next step */
				if (nbrought == MAX_NUMBER)
					continue;
				new_row.since = last->sync_id + 1;
				new_row.number = ++nbrought;
				new_row.old_xid = last->snapshot.xmax;
			}
		}
		else if (row->leaf_id == row->leaf && row->system_id == GetSystemIdentifier())
			continue;

		/* new, or restored */
		new_row.leaf = RelationGetRelid(leaf->heap);
		new_row.leaf_id = new_row.leaf;
		new_row.trigger_id = trigger_id;
		new_row.system_id = GetSystemIdentifier();
		if (table == NULL)
			table = table_open(feedpub_registry_table("partition"), RowExclusiveLock);
		write_row(table, feed, &new_row);
		CacheInvalidateRelcache(leaf->heap);	/* writers want to know */
		leaf->since = new_row.since;
		leaf->number = new_row.number;
	}
	foreach(lc, rows)
	{
		PartitionRow *row = lfirst(lc);

		if (row->is_there)
			continue;
		if (table == NULL)
			table = table_open(feedpub_registry_table("partition"), RowExclusiveLock);
		CatalogTupleDelete(table, &row->tid);
	}
	if (table != NULL)
	{
		table_close(table, NoLock);
		CommandCounterIncrement();
	}
	return nbrought > 0;
}

/*
 * Rows of a partition with smaller ids than this in their stamps are old ones;
 * all are as long as it has not been admitted.
 */
uint64
feedpub_partition_old_xid(Oid feed, Relation rel)
{
	List	   *rows = read_rows(feed, NULL);
	PartitionRow *row = find_row(rows, RelationGetRelid(rel));
	uint64		old_xid = is_changed(row, find_trigger(rel)) ? PG_UINT64_MAX : row->old_xid;

	list_free_deep(rows);
	return old_xid;
}

/*
 * Begin with the partitions that are there: batch 1 hands out their rows.  For
 * who has just made the feed and still keeps everybody from it.
 *
 * This batch sees no transaction at all: it belongs to what was there before
 * the feed's first stamp.  So it needs no snapshot that is older than its
 * writer, as a publisher's does.
 */
void
feedpub_partition_begin(Relation heap)
{
	FeedpubLeaves leaves = {.table = heap, .is_partitioned = true};
	FeedpubBatch batch = {0};
	Oid			feed = RelationGetRelid(heap);
	List	   *oids = feedpub_partition_list(heap, true);
	Snapshot	snapshot;
	ListCell   *lc;

	leaves.leaves = palloc0((list_length(oids) + 1) * sizeof(FeedpubLeaf));
	foreach(lc, oids)
	{
		FeedpubLeaf *leaf = &leaves.leaves[leaves.n++];

		leaf->heap = relation_open(lfirst_oid(lc), AccessShareLock);
		leaf->xid_attno = get_attnum(lfirst_oid(lc), FEEDPUB_XID_COLUMN);
	}
	feedpub_batch_lock(feed, true);

	/* the newest: the batch's fingerprint is of this life of the feed */
	PushActiveSnapshot(GetLatestSnapshot());
	snapshot = GetActiveSnapshot();
	feedpub_batch_last(feed, PG_INT64_MAX, snapshot, &batch);
	if (feedpub_partition_admit(feed, &leaves, &batch, snapshot))
	{
		batch.sync_id++;
		feedpub_batch_write(feed, &batch);
	}
	PopActiveSnapshot();
	for (int i = 0; i < leaves.n; i++)
		relation_close(leaves.leaves[i].heap, NoLock);
}

/*
 * Have all leaves been searched for foreign stamps since they were defined?
 */
bool
feedpub_partition_history_checked(const FeedpubLeaves *leaves)
{
	for (int i = 0; i < leaves->n; i++)
	{
		if (!find_info(RelationGetRelid(leaves->table),
					   leaves->leaves[i].heap)
				 ->history_checked)
			return false;
	}
	return true;
}

void
feedpub_partition_note_history(const FeedpubLeaves *leaves)
{
	for (int i = 0; i < leaves->n; i++)
		find_info(RelationGetRelid(leaves->table),
				  leaves->leaves[i].heap)
			->history_checked = true;
}

static void
invalidate_infos(Datum arg, Oid relid)
{
	HASH_SEQ_STATUS status;
	LeafInfo   *info;
	bool		all = !OidIsValid(relid) || relid == registry_relid;

	ninvalidations++;
	hash_seq_init(&status, infos);
	while ((info = hash_seq_search(&status)) != NULL)
	{
		if (all || info->relid == relid || info->feed == relid)
			info->valid = false;
	}
}

/*
 * Find out about a leaf, which is locked.
 */
static LeafInfo *
find_info(Oid feed, Relation rel)
{
	Oid			relid = RelationGetRelid(rel);
	LeafInfo   *info;
	FeedpubKey	key;
	bool		found;
	bool		deletes;
	uint64		before;

	if (infos == NULL)
	{
		HASHCTL		ctl = {0};

		ctl.keysize = sizeof(Oid);
		ctl.entrysize = sizeof(LeafInfo);
		ctl.hcxt = TopMemoryContext;
		infos = hash_create("feedpub partitions", 64, &ctl,
							HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
		CacheRegisterRelcacheCallback(invalidate_infos, (Datum) 0);
	}
	info = hash_search(infos, &relid, HASH_ENTER, &found);
	if (!found)
		info->valid = false;
	if (info->valid && info->feed == feed)
		return info;

	before = ninvalidations;
	registry_relid = feedpub_registry_relid();
	info->feed = feed;
	info->xid_attno = get_attnum(relid, FEEDPUB_XID_COLUMN);
	info->indexid = feedpub_guard_index(rel);
	info->keyid = InvalidOid;
	info->history_checked = false;
	if (feedpub_registry_stored_key(feed, &key, &deletes))
	{
		feedpub_key_of_partition(feed, relid, &key);
		info->keyid = feedpub_key_index(rel, &key);
	}
	info->valid = before == ninvalidations;
	return info;
}

/*
 * The partitions of a feed that a snapshot knows of, a List of PartitionRow.
 */
static List *
read_rows(Oid feed, Snapshot snapshot)
{
	Relation	table = table_open(feedpub_registry_table("partition"), AccessShareLock);
	TupleDesc	desc = RelationGetDescr(table);
	List	   *rows = NIL;
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	tuple;

	feedpub_registry_check_version(table, NATTS_PARTITION);
	ScanKeyInit(&key, ANUM_PARTITION_FEED, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(feed));
	scan = systable_beginscan(table, feedpub_registry_table("partition_pkey"),
							  true, snapshot, 1, &key);
	while ((tuple = systable_getnext(scan)) != NULL)
	{
		PartitionRow *row = palloc0_object(PartitionRow);
		Datum		values[NATTS_PARTITION];
		bool		nulls[NATTS_PARTITION];

		heap_deform_tuple(tuple, desc, values, nulls);
		row->leaf = DatumGetObjectId(values[ANUM_PARTITION_LEAF - 1]);
		row->since = DatumGetInt64(values[ANUM_PARTITION_SYNC_ID - 1]);
		row->number = DatumGetInt32(values[ANUM_PARTITION_NUMBER - 1]);
		row->old_xid = U64FromFullTransactionId(DatumGetFullTransactionId(values[ANUM_PARTITION_OLD_XID - 1]));
		row->trigger_id = DatumGetObjectId(values[ANUM_PARTITION_TRIGGER_ID - 1]);
		row->leaf_id = DatumGetObjectId(values[ANUM_PARTITION_LEAF_ID - 1]);
		row->system_id = (uint64) DatumGetInt64(values[ANUM_PARTITION_SYSTEM_ID - 1]);
		row->tid = tuple->t_self;
		rows = lappend(rows, row);
	}
	systable_endscan(scan);
	table_close(table, AccessShareLock);
	return rows;
}

/*
 * The rows come in the order of an index on (feed, leaf), so they are sorted.
 */
static PartitionRow *
find_row(List *rows, Oid leaf)
{
	int			low = 0;
	int			high = list_length(rows);

	while (low < high)
	{
		int			middle = (low + high) / 2;
		PartitionRow *row = list_nth(rows, middle);

		if (row->leaf == leaf)
			return row;
		if (row->leaf < leaf)
			low = middle + 1;
		else
			high = middle;
	}
	return NULL;
}

/*
 * A partition's clone of the trigger that stamps.
 */
static Oid
find_trigger(Relation rel)
{
	Oid			funcid = feedpub_registry_function("_stamp_row", 0, NULL);

	for (int i = 0; rel->trigdesc != NULL && i < rel->trigdesc->numtriggers; i++)
	{
		if (rel->trigdesc->triggers[i].tgfoid == funcid)
			return rel->trigdesc->triggers[i].tgoid;
	}
	return InvalidOid;
}

/*
 * Is a partition another than the one that was admitted, if any was?  Should
 * the trigger be missing, its return will tell.
 */
static bool
is_changed(const PartitionRow *row, Oid trigger_id)
{
	if (row == NULL)
		return true;
	return row->leaf_id == row->leaf &&
		row->system_id == GetSystemIdentifier() &&
		OidIsValid(trigger_id) && row->trigger_id != trigger_id;
}

/*
 * Does a partition come with rows that have no stamp, or one that batches have
 * passed?  If it is large, it is taken to: whoever reads the batch looks.
 */
static bool
brings_rows(const FeedpubLeaf *leaf, const FeedpubSnapshot *before,
			Snapshot snapshot)
{
	BlockNumber nblocks = RelationGetNumberOfBlocks(leaf->heap);
	TableScanDesc scan;
	TupleTableSlot *slot;
	bool		found = false;

	if (nblocks == 0 || nblocks > MAX_LOOK)
		return nblocks > 0;
	slot = table_slot_create(leaf->heap, NULL);
	scan = table_beginscan(leaf->heap, snapshot, 0, NULL);
	while (!found && table_scan_getnextslot(scan, ForwardScanDirection, slot))
		found = feedpub_partition_is_old(slot, leaf->xid_attno, before);
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	return found;
}

/*
 * Has a row no stamp, or one that a batch has passed?
 */
bool
feedpub_partition_is_old(TupleTableSlot *slot, AttrNumber xid_attno,
						 const FeedpubSnapshot *before)
{
	bool		isnull;
	Datum		xid = slot_getattr(slot, xid_attno, &isnull);

	return isnull ||
		feedpub_batch_sees(before, U64FromFullTransactionId(DatumGetFullTransactionId(xid)));
}

/*
 * Write a row of feedpub.partition, over the one that it was read from if it
 * was.  As ourselves: a publisher needs no right on the table.
 */
static void
write_row(Relation table, Oid feed, const PartitionRow *row)
{
	Datum		values[NATTS_PARTITION];
	bool		nulls[NATTS_PARTITION] = {false};
	HeapTuple	tuple;

	values[ANUM_PARTITION_FEED - 1] = ObjectIdGetDatum(feed);
	values[ANUM_PARTITION_LEAF - 1] = ObjectIdGetDatum(row->leaf);
	values[ANUM_PARTITION_SYNC_ID - 1] = Int64GetDatum(row->since);
	values[ANUM_PARTITION_NUMBER - 1] = Int32GetDatum(row->number);
	values[ANUM_PARTITION_OLD_XID - 1] = FullTransactionIdGetDatum(FullTransactionIdFromU64(row->old_xid));
	values[ANUM_PARTITION_TRIGGER_ID - 1] = ObjectIdGetDatum(row->trigger_id);
	values[ANUM_PARTITION_LEAF_ID - 1] = ObjectIdGetDatum(row->leaf_id);
	values[ANUM_PARTITION_SYSTEM_ID - 1] = Int64GetDatum((int64) row->system_id);

	/* a plain table with one plain index, as those of the catalog */
	tuple = heap_form_tuple(RelationGetDescr(table), values, nulls);
	if (ItemPointerIsValid(&row->tid))
	{
		ItemPointerData tid = row->tid;

		CatalogTupleUpdate(table, &tid, tuple);
	}
	else
		CatalogTupleInsert(table, tuple);
	heap_freetuple(tuple);
}
