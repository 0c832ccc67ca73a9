/*-------------------------------------------------------------------------
 *
 * partition.c
 *	  The tables with a feed's rows: the feed's own or, if that is partitioned,
 *	  all its partitions that have no partitions of their own.
 *
 * A partitioned table is one feed: one sequence for its positions, one
 * registration, one order over all partitions.  The stamping triggers are
 * created on it, and the server clones them to each partition, also to later
 * ones (tablecmds.c: CloneRowTriggersToPartition), as it does the index.  So
 * each partition has an index in which its rows are found by their stamps, and
 * readers merge those indexes.
 *
 * Rows of a partition that joins later, or comes back, are in the feed when the
 * publisher has admitted it (partition_join.c).
 *
 * While the table is locked no partition can be detached or dropped
 * (partdesc.c).  The order of locks is in feed.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "catalog/partition.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "feed/partition.h"

/*
 * What is known of a table with rows of a feed.  Relcache invalidation of the
 * table, of the feed's table or of the registry makes an entry invalid.
 * Entries are never freed.
 */
typedef struct PartitionInfo
{
	FeedpubCached head;
	Oid			indexid;
	Oid			keyid;
	AttrNumber	xid_attno;
	bool		history_checked;	/* no foreign stamps were found in it */
} PartitionInfo;

static FeedpubCache infos = {"feedpub partitions", sizeof(PartitionInfo)};

/*
 * The feed to which a table's rows belong: the table itself, or the one of
 * which it is a partition, directly or not.  InvalidOid if there is none.  A
 * feed's table is the one whose feed_pos owns a sequence or, if that is gone,
 * that is registered.  Locks only catalogs: a writer into a partition need not
 * hold a lock on the partitioned table.
 */
Oid
feedpub_partition_feed(Oid relid)
{
	while (!OidIsValid(feedpub_relation_sequence(relid)) &&
		   !feedpub_registry_is_registered(relid))
	{
		/* a partition that is being detached still has the triggers */
		if (!get_rel_relispartition(relid))
			return InvalidOid;
		relid = get_partition_parent(relid, true);
	}
	return relid;
}

/*
 * The partitions of a partitioned table that have none of their own, by OID.
 * The table is locked.  Partitions below other partitions can be dropped,
 * unless keep_locks keeps those locked too.
 */
List *
feedpub_partition_list(Relation rel, bool keep_locks)
{
	List	   *partitions = NIL;
	ListCell   *lc;

	foreach(lc, feedpub_catalog_partitions(RelationGetRelid(rel)))
	{
		Relation	partition;

		if (get_rel_relkind(lfirst_oid(lc)) != RELKIND_PARTITIONED_TABLE)
		{
			partitions = lappend_oid(partitions, lfirst_oid(lc));
			continue;
		}
		partition = try_relation_open(lfirst_oid(lc), AccessShareLock);
		if (partition == NULL)
			continue;
		partitions = list_concat(partitions, feedpub_partition_list(partition, keep_locks));
		relation_close(partition, keep_locks ? NoLock : AccessShareLock);
	}
	list_sort(partitions, list_oid_cmp);
	return partitions;
}

/*
 * Does a feed's table have its index, and each of its partitions?  The server
 * runs what is constant in predicates before it compares them, so it may
 * attach a partition with an index that has another one.  Here nothing is run.
 */
bool
feedpub_partition_has_indexes(Relation rel)
{
	bool		found = OidIsValid(feedpub_relation_index(rel));
	ListCell   *lc;

	if (!found || rel->rd_rel->relkind != RELKIND_PARTITIONED_TABLE)
		return found;
	foreach(lc, feedpub_partition_list(rel, false))
	{
		Relation	partition = try_relation_open(lfirst_oid(lc), AccessShareLock);

		CHECK_FOR_INTERRUPTS();
		if (partition == NULL)
			continue;
		found = found && OidIsValid(feedpub_relation_index(partition));
		relation_close(partition, AccessShareLock);
	}
	return found;
}

/*
 * Does a snapshot see the feed's tables as they are defined now?
 */
bool
feedpub_partition_sees_tables(const FeedpubPartitions *partitions, Snapshot snapshot)
{
	if (!feedpub_snapshot_sees_table(snapshot, RelationGetRelid(partitions->table)))
		return false;
	for (int i = 0; i < partitions->n && partitions->is_partitioned; i++)
	{
		if (!feedpub_snapshot_sees_table(snapshot, RelationGetRelid(partitions->partitions[i].heap)))
			return false;
	}
	return true;
}

/*
 * What is known of a partition, looked up if it is not valid.  The caller
 * holds a lock on the partition.
 */
static PartitionInfo *
find_info(Oid feed, Relation rel)
{
	Oid			relid = RelationGetRelid(rel);
	PartitionInfo *info;
	FeedpubKey	key;
	bool		deletes;
	uint64		before;

	info = feedpub_cache_enter(&infos, relid);
	if (info->head.valid && info->head.feed == feed)
		return info;

	before = feedpub_cache_begin();
	info->head.feed = feed;
	info->xid_attno = get_attnum(relid, FEEDPUB_XID_COLUMN);
	info->indexid = feedpub_relation_index(rel);
	info->keyid = InvalidOid;
	info->history_checked = false;
	if (feedpub_registry_stored_key(feed, &key, &deletes))
	{
		if (relid != feed)
			feedpub_key_of_partition(feed, relid, &key);
		info->keyid = feedpub_key_index(rel, &key);
	}
	info->head.valid = feedpub_cache_end(before);
	return info;
}

/*
 * Open the tables with a feed's rows, and their indexes.  Of a partitioned
 * feed these are the partitions that are admitted in the snapshot, or all if
 * snapshot is NULL.  If keep_locks is set, locks are kept to the end of the
 * transaction; otherwise they are given back when the tables are closed.
 */
FeedpubPartitions *
feedpub_partition_open(const FeedpubFeed *feed, Relation heap,
					   Snapshot snapshot, bool keep_locks)
{
	FeedpubPartitions *partitions = palloc0_object(FeedpubPartitions);
	List	   *rows = NIL;
	List	   *oids = list_make1_oid(feed->relid);
	ListCell   *lc;

	partitions->table = heap;
	partitions->is_partitioned = feed->is_partitioned;
	partitions->unlock = keep_locks ? NoLock : AccessShareLock;
	if (feed->is_partitioned)
		oids = feedpub_partition_list(heap, keep_locks);
	if (feed->is_partitioned && snapshot != NULL)
		rows = feedpub_partition_read_rows(feed->relid, snapshot);
	partitions->partitions = palloc0((list_length(oids) + 1) * sizeof(FeedpubPartition));
	foreach(lc, oids)
	{
		FeedpubPartition *partition = &partitions->partitions[partitions->n];
		PartitionInfo *info;

		CHECK_FOR_INTERRUPTS();
		partition->heap = feed->is_partitioned ? try_relation_open(lfirst_oid(lc), AccessShareLock) : heap;
		if (partition->heap == NULL)
			continue;
		if (feed->is_partitioned && snapshot != NULL)
			partition->since = feedpub_partition_listed_since(rows, partition->heap);
		if (partition->since == FEEDPUB_SINCE_NEVER)
		{
			relation_close(partition->heap, partitions->unlock);
			continue;
		}
		info = find_info(feed->relid, partition->heap);
		if (!OidIsValid(info->indexid))
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("partition \"%s\" of feed \"%s\" has no index on (%s, %s)",
							RelationGetRelationName(partition->heap),
							RelationGetRelationName(heap),
							FEEDPUB_XID_COLUMN, FEEDPUB_POS_COLUMN),
					 errhint("Run feed_check() to see what is missing.")));

		/* both, in the order of their OIDs (feed.h), if there is a key */
		if (keep_locks && OidIsValid(info->keyid))
			LockRelationOid(Min(info->keyid, info->indexid), AccessShareLock);
		if (keep_locks)
			LockRelationOid(Max(info->keyid, info->indexid), AccessShareLock);
		partition->index = index_open(info->indexid, AccessShareLock);
		partition->xid_attno = info->xid_attno;
		partition->keyid = info->keyid;
		partition->history_checked = &info->history_checked;
		partition->has_map = !feed->is_partitioned;
		partitions->n++;
	}
	list_free_deep(rows);
	list_free(oids);
	return partitions;
}

/*
 * Close what feedpub_partition_open() has opened.
 */
void
feedpub_partition_close(FeedpubPartitions *partitions)
{
	for (int i = 0; i < partitions->n; i++)
	{
		FeedpubPartition *partition = &partitions->partitions[i];

		if (partition->slot != NULL)
			ExecDropSingleTupleTableSlot(partition->slot);
		if (partition->map != NULL)
			free_conversion_map(partition->map);
		if (partition->key != NULL)
			index_close(partition->key, partitions->unlock);
		index_close(partition->index, partitions->unlock);
		if (partitions->is_partitioned)
			relation_close(partition->heap, partitions->unlock);
	}
	pfree(partitions->partitions);
	pfree(partitions);
}

/*
 * Convert a row of a partition to the row type of the feed's table: a
 * partition may have its columns in another order, or dropped ones between
 * them.  The result is valid as long as the slot's row is.
 */
TupleTableSlot *
feedpub_partition_convert(FeedpubPartitions *partitions, FeedpubPartition *partition,
						  TupleTableSlot *slot)
{
	if (!partition->has_map)
	{
		MemoryContext oldcontext = MemoryContextSwitchTo(GetMemoryChunkContext(partitions));

		partition->map = convert_tuples_by_name(RelationGetDescr(partition->heap),
												RelationGetDescr(partitions->table));
		if (partition->map != NULL)
			partition->slot = MakeSingleTupleTableSlot(RelationGetDescr(partitions->table),
													   &TTSOpsVirtual);
		partition->has_map = true;
		MemoryContextSwitchTo(oldcontext);
	}
	if (partition->map == NULL)
		return slot;
	execute_attr_map_slot(partition->map->attrMap, slot, partition->slot);
	partition->slot->tts_tid = slot->tts_tid;
	return partition->slot;
}
