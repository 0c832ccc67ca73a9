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
 * A partition may come with rows that have no stamp, or a stamp of another
 * feed, or one from an earlier time in this feed, after which they may have
 * changed without a trace.  None of them may be lost.  So each partition must
 * be admitted: feedpub._partition lists those that are, each with an xid,
 * since.  A row is in the feed if its stamp is not below since.  All others
 * are stamped anew, by ordinary UPDATEs, in the background (job/stamp.c).
 *
 * The partitions that are there when a table is attached are listed with a
 * since of 0.  Their rows without a stamp are the initial snapshot, which is
 * read in place (initial.c).
 *
 * The publisher admits a later partition before it publishes.  It locks the
 * partition, so that its ATTACH has committed and is visible, gets its own
 * xid, and takes the next xid of the server as since.  Then:
 *
 * 1. If the stamp of a row is not below since, its transaction got its xid
 *	  after since was taken, so after the ATTACH had committed, hence through
 *	  this feed's trigger.  Its position is of this feed, and larger than those
 *	  of all that happened before the ATTACH, a TRUNCATE for example.
 * 2. No batch so far sees such a transaction: their snapshots are older.  So
 *	  the row is in a later batch, and no reader in published order has passed
 *	  it.  Nor has a reader in xid order whose snapshot does not see the list's
 *	  row: the publisher's xid was running then, so the reader's horizon is not
 *	  after that xid, and since is (fetch.c).
 * 3. The steps that stamp all other rows anew begin after the list's row is
 *	  visible, so their xids are not below since.  Writers with smaller xids
 *	  may still write such rows.  So the table is walked over again until a
 *	  walk that began after all those writers had ended finds none.
 * 4. Any UPDATE of a row that is not in the feed stamps it (stamp.c), so a
 *	  walk in the order of the table misses none: the new version either is in
 *	  the feed, or was written by one of those writers.  What a writer knows of
 *	  since is invalidated when the partition is attached, which locks the
 *	  writer out, and when it is admitted.  Until then the writer takes no row
 *	  to be in the feed.
 *
 * A row with a stamp from another cluster, not below this server's next xid,
 * would seem to be in the feed.  If there is one, the partition is listed with
 * the largest since, which no stamp reaches.  Those rows are stamped anew
 * first, and then the partition is admitted.
 *
 * A partition that is detached and attached again meanwhile may have changed
 * without a trace.  Its clone of the stamping trigger shows it, since the
 * server drops the clone and creates another.  Then it is admitted anew.
 *
 * After a restore each trigger is another one, and the list's rows show that
 * they were written for another table or server.  The next publisher takes the
 * list over, except for a partition that was detached and attached again
 * before that.  The xmin of the clone shows it: a restore attaches the
 * partitions first and creates the triggers later, so one command writes the
 * feed's trigger and all clones, while ATTACH writes a clone alone.  A since
 * that this server has not reached means nothing here, as no row would reach
 * it.  Such partitions are admitted anew.
 *
 * Readers read the list with the snapshot of the page.  They leave out a
 * partition that is not in it, or has another trigger than the listed one: its
 * rows come later.  A partition that has been detached or dropped is gone with
 * its rows, as it is from the table.  Nothing is published for them, since
 * their keys are not known any more.
 *
 * While the table is locked no partition can be detached or dropped
 * (partdesc.c).  The order of locks is in feed.h.
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
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/xid8.h"

#include "feed/partition.h"

/*
 * What is known of a partition.  Relcache invalidation of the partition, of
 * the feed's table or of the registry makes an entry invalid.  Entries are
 * never freed.
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

static PartitionInfo *find_info(Oid feed, Relation rel);
static void add_partitions(Relation rel, List **partitions, LOCKMODE unlock);
static void lock_indexes(Oid indexid, Oid keyid);
static List *open_all(Relation heap);
static bool has_foreign(Oid feed, Relation rel);

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

	add_partitions(rel, &partitions, keep_locks ? NoLock : AccessShareLock);
	list_sort(partitions, list_oid_cmp);
	return partitions;
}

static void
add_partitions(Relation rel, List **partitions, LOCKMODE unlock)
{
	ListCell   *lc;

	foreach(lc, feedpub_catalog_partitions(RelationGetRelid(rel)))
	{
		Relation	partition;

		if (get_rel_relkind(lfirst_oid(lc)) != RELKIND_PARTITIONED_TABLE)
		{
			*partitions = lappend_oid(*partitions, lfirst_oid(lc));
			continue;
		}
		partition = try_relation_open(lfirst_oid(lc), AccessShareLock);
		if (partition == NULL)
			continue;
		add_partitions(partition, partitions, unlock);
		relation_close(partition, unlock);
	}
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
	List	   *oids;
	ListCell   *lc;

	partitions->table = heap;
	partitions->is_partitioned = feed->is_partitioned;
	partitions->unlock = keep_locks ? NoLock : AccessShareLock;
	if (!feed->is_partitioned)
	{
		partitions->n = 1;
		partitions->partitions = palloc0_object(FeedpubPartition);
		partitions->partitions[0].heap = heap;
		if (keep_locks)
			lock_indexes(feed->indexid, feed->keyid);
		partitions->partitions[0].index = index_open(feed->indexid, AccessShareLock);
		partitions->partitions[0].xid_attno = feed->xid_attno;
		partitions->partitions[0].keyid = feed->keyid;
		partitions->partitions[0].has_map = true;
		return partitions;
	}

	oids = feedpub_partition_list(heap, keep_locks);
	if (snapshot != NULL)
		rows = feedpub_partition_read_rows(feed->relid, snapshot);
	partitions->partitions = palloc0((list_length(oids) + 1) * sizeof(FeedpubPartition));
	foreach(lc, oids)
	{
		FeedpubPartition *partition = &partitions->partitions[partitions->n];
		FeedpubPartitionRow *row = feedpub_partition_find_row(rows, lfirst_oid(lc));
		PartitionInfo *info;

		CHECK_FOR_INTERRUPTS();
		if (snapshot != NULL &&
			(row == NULL || row->since == FEEDPUB_SINCE_NEVER))
			continue;
		partition->heap = try_relation_open(lfirst_oid(lc), AccessShareLock);
		if (partition->heap == NULL)
			continue;
		if (snapshot != NULL &&
			feedpub_partition_is_changed(row, feedpub_partition_trigger(partition->heap)))
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
		if (keep_locks)
			lock_indexes(info->indexid, info->keyid);
		partition->index = index_open(info->indexid, AccessShareLock);
		partition->xid_attno = info->xid_attno;
		partition->keyid = info->keyid;
		if (row != NULL)
			partition->since = row->since;
		partitions->n++;
	}
	list_free_deep(rows);
	list_free(oids);
	return partitions;
}

/*
 * Lock the indexes of a table through which a feed is read, keyid if there is
 * one, in the order of their OIDs (feed.h).
 */
static void
lock_indexes(Oid indexid, Oid keyid)
{
	if (OidIsValid(keyid) && keyid < indexid)
		LockRelationOid(keyid, AccessShareLock);
	LockRelationOid(indexid, AccessShareLock);
	if (OidIsValid(keyid) && keyid > indexid)
		LockRelationOid(keyid, AccessShareLock);
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

/*
 * Find the partition in which a row with this key would be; *found is NULL if
 * it is not among the open ones.  attnos are the key's columns in the feed's
 * table.  Returns false if the key does not tell the partition.
 */
bool
feedpub_partition_route(FeedpubPartitions *partitions, int nkeys,
						const AttrNumber *attnos, const Datum *values,
						FeedpubPartition **found)
{
	Oid			relid;

	*found = NULL;
	if (!feedpub_catalog_route(partitions->table, nkeys, attnos, values, &relid))
		return false;
	for (int i = 0; i < partitions->n; i++)
	{
		if (RelationGetRelid(partitions->partitions[i].heap) == relid)
			*found = &partitions->partitions[i];
	}
	return true;
}

/*
 * Are there partitions that the publisher should admit, or remove from the
 * list?
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
	rows = feedpub_partition_read_rows(feed->relid, snapshot);
	foreach(lc, feedpub_partition_list(heap, false))
	{
		FeedpubPartitionRow *row = feedpub_partition_find_row(rows, lfirst_oid(lc));
		Relation	rel = try_relation_open(lfirst_oid(lc), AccessShareLock);

		if (rel == NULL)
			continue;
		nknown += row != NULL;
		found = found || feedpub_partition_is_changed(row, feedpub_partition_trigger(rel)) ||
			feedpub_partition_has_other_file(row, rel);
		relation_close(rel, AccessShareLock);
	}
	found = found || nknown < list_length(rows);
	list_free_deep(rows);
	return found;
}

/*
 * Admit new partitions, and remove those from the list that are no partitions
 * any more.  Returns whether it has written the row of any partition: its rows
 * may have to be stamped anew.  *guarded tells whether all have the trigger
 * that tells of a TRUNCATE (partition_guard.c).  The caller holds the
 * publishing lock, so no other process writes the list.
 */
bool
feedpub_partition_admit(const FeedpubFeed *feed, Relation heap, bool *guarded)
{
	List	   *rows;
	List	   *opened;
	Relation	table = NULL;
	ListCell   *lc;
	bool		admitted = false;

	*guarded = true;
	if (!feed->is_partitioned)
		return false;
	opened = open_all(heap);
	rows = feedpub_partition_read_rows(feed->relid, NULL);
	foreach(lc, opened)
	{
		Relation	rel = lfirst(lc);
		FeedpubPartitionRow *row = feedpub_partition_find_row(rows, RelationGetRelid(rel));
		FeedpubPartitionRow new_row = {0};
		Oid			trigger_id = feedpub_partition_trigger(rel);
		bool		is_new = feedpub_partition_is_changed(row, trigger_id);

		CHECK_FOR_INTERRUPTS();
		if (row != NULL)
		{
			row->is_there = true;
			new_row = *row;
		}
		new_row.file = feedpub_partition_is_guarded(feed, rel) ? InvalidOid : rel->rd_rel->relfilenode;
		*guarded = *guarded && !OidIsValid(new_row.file);
		if (feedpub_partition_has_other_file(row, rel))
			feedpub_lost_note(feed->relid);
		if (!OidIsValid(trigger_id))
		{
			relation_close(rel, NoLock);
			continue;			/* not before it is back */
		}
		if (is_new || row->since == FEEDPUB_SINCE_NEVER)
		{
			/* our own xid comes first, see 2. above */
			(void) GetTopTransactionId();
			new_row.since = has_foreign(feed->relid, rel) ?
				FEEDPUB_SINCE_NEVER :
				U64FromFullTransactionId(ReadNextFullTransactionId());
		}
		if (is_new || new_row.since != row->since || new_row.file != row->file ||
			!feedpub_partition_is_of_here(row))
		{
			new_row.partition = RelationGetRelid(rel);
			new_row.partition_id = new_row.partition;
			new_row.trigger_id = trigger_id;
			new_row.system_id = GetSystemIdentifier();
			if (table == NULL)
				table = table_open(feedpub_registry_table("_partition"), RowExclusiveLock);
			feedpub_partition_write_row(table, feed->relid, &new_row);
			CacheInvalidateRelcache(rel);	/* see 4. above */
			admitted = true;
		}
		relation_close(rel, NoLock);
	}
	foreach(lc, rows)
	{
		FeedpubPartitionRow *row = lfirst(lc);

		if (row->is_there)
			continue;
		if (table == NULL)
			table = table_open(feedpub_registry_table("_partition"), RowExclusiveLock);
		CatalogTupleDelete(table, &row->tid);
	}
	if (table != NULL)
	{
		table_close(table, NoLock);
		CommandCounterIncrement();
	}
	list_free_deep(rows);
	list_free(opened);
	return admitted;
}

/*
 * Open all partitions, and lock their indexes, before the first one gets the
 * publisher a transaction id: with one it waits for no lock that another
 * session may hold without a limit.  The locks are kept, see 1. above.
 */
static List *
open_all(Relation heap)
{
	List	   *opened = NIL;
	ListCell   *lc;

	foreach(lc, feedpub_partition_list(heap, true))
	{
		Relation	rel;
		ListCell   *index;

		CHECK_FOR_INTERRUPTS();
		rel = try_relation_open(lfirst_oid(lc), AccessShareLock);
		if (rel == NULL)
			continue;
		foreach(index, RelationGetIndexList(rel))
			LockRelationOid(lfirst_oid(index), AccessShareLock);
		opened = lappend(opened, rel);
	}
	return opened;
}

/*
 * A partition's since: a row is in the feed if its stamp is not below it.
 * Reads what is committed now.  The caller holds a lock on the partition.
 */
uint64
feedpub_partition_since(Oid feed, Relation rel)
{
	List	   *rows = feedpub_partition_read_rows(feed, NULL);
	FeedpubPartitionRow *row = feedpub_partition_find_row(rows, RelationGetRelid(rel));
	uint64		since = FEEDPUB_SINCE_NEVER;

	if (!feedpub_partition_is_changed(row, feedpub_partition_trigger(rel)) && row != NULL)
		since = row->since;
	list_free_deep(rows);
	return since;
}

/*
 * List the partitions that are there.  The caller has just created the feed,
 * and its lock still keeps all others out: the initial snapshot is of these
 * partitions.
 */
void
feedpub_partition_begin(Oid feed)
{
	Relation	heap = relation_open(feed, NoLock);
	Relation	table = table_open(feedpub_registry_table("_partition"), RowExclusiveLock);
	ListCell   *lc;

	foreach(lc, feedpub_partition_list(heap, true))
	{
		Relation	rel = relation_open(lfirst_oid(lc), AccessShareLock);
		FeedpubPartitionRow row = {0};

		row.partition = row.partition_id = RelationGetRelid(rel);
		row.trigger_id = feedpub_partition_trigger(rel);
		row.system_id = GetSystemIdentifier();
		feedpub_partition_write_row(table, feed, &row);
		relation_close(rel, NoLock);
	}
	table_close(table, NoLock);
	relation_close(heap, NoLock);
	CommandCounterIncrement();
}

/*
 * Have all partitions been searched for foreign stamps after they were
 * defined?
 */
bool
feedpub_partition_history_checked(const FeedpubPartitions *partitions)
{
	for (int i = 0; i < partitions->n; i++)
	{
		if (!find_info(RelationGetRelid(partitions->table),
					   partitions->partitions[i].heap)
				 ->history_checked)
			return false;
	}
	return true;
}

void
feedpub_partition_note_history(const FeedpubPartitions *partitions)
{
	for (int i = 0; i < partitions->n; i++)
		find_info(RelationGetRelid(partitions->table),
				  partitions->partitions[i].heap)
			->history_checked = true;
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
		feedpub_key_of_partition(feed, relid, &key);
		info->keyid = feedpub_key_index(rel, &key);
	}
	info->head.valid = feedpub_cache_end(before);
	return info;
}

/*
 * Does a partition have a row whose stamp is not below this server's next xid?
 */
static bool
has_foreign(Oid feed, Relation rel)
{
	PartitionInfo *info = find_info(feed, rel);
	FeedpubPartition partition = {.heap = rel};
	FeedpubPartitions partitions = {.n = 1, .partitions = &partition};
	FullTransactionId stamp;
	Snapshot	snapshot;
	bool		found;

	if (!OidIsValid(info->indexid))
		return true;			/* not known, so not admitted yet */
	partition.index = index_open(info->indexid, AccessShareLock);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	found = feedpub_foreign_exists(&partitions, snapshot, &stamp);
	UnregisterSnapshot(snapshot);
	index_close(partition.index, NoLock);
	return found;
}
