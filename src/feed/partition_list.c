/*-------------------------------------------------------------------------
 *
 * partition_list.c
 *	  The list of a feed's partitions, feedpub._partition: reading and writing
 *	  it, and whether a partition is the listed one.  The head of
 *	  partition_join.c says what the list is for.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xlog.h"
#include "catalog/indexing.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"

#include "feed/partition.h"

/* columns of feedpub._partition */
#define ANUM_PARTITION_FEED			1
#define NATTS_PARTITION				7

/*
 * The list of a feed's partitions as a snapshot sees it, or as it is committed
 * if that is NULL: a List of FeedpubPartitionRow, by OID.
 */
List *
feedpub_partition_read_rows(Oid feed, Snapshot snapshot)
{
	Relation	table = table_open(feedpub_registry_table("_partition"), AccessShareLock);
	Oid			indexid = feedpub_registry_table("_partition_pkey");
	List	   *rows = NIL;
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	tuple;

	feedpub_registry_check_columns(table, NATTS_PARTITION);
	ScanKeyInit(&key, ANUM_PARTITION_FEED, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(feed));
	scan = systable_beginscan(table, indexid, true, snapshot, 1, &key);
	if (snapshot != NULL)
		feedpub_snapshot_check_index(snapshot, indexid);
	while ((tuple = systable_getnext(scan)) != NULL)
	{
		FeedpubPartitionRow *row = palloc0_object(FeedpubPartitionRow);

		/* no column is null, and each has a fixed size */
		memcpy(row, GETSTRUCT(tuple), offsetof(FeedpubPartitionRow, tid));
		row->tid = tuple->t_self;
		rows = lappend(rows, row);
	}
	systable_endscan(scan);
	table_close(table, AccessShareLock);
	return rows;
}

static int
compare_rows(const void *a, const void *b)
{
	Oid			x = ((FeedpubPartitionRow *) lfirst((const ListCell *) a))->partition;
	Oid			y = ((FeedpubPartitionRow *) lfirst((const ListCell *) b))->partition;

	return (x > y) - (x < y);
}

/*
 * Find a partition's row, or NULL.
 */
FeedpubPartitionRow *
feedpub_partition_find_row(List *rows, Oid partition)
{
	FeedpubPartitionRow row = {.partition = partition};
	ListCell	key = {.ptr_value = &row};
	ListCell   *found = NULL;

	if (rows != NIL)
		found = bsearch(&key, rows->elements, rows->length, sizeof(ListCell), compare_rows);
	return found == NULL ? NULL : lfirst(found);
}

/*
 * Did one command write a clone of a trigger and the trigger of the feed?
 * Their xmin tells; it stays when they are frozen.
 */
static bool
is_cloned_with_feed(Oid trigger_id)
{
	static FeedpubStatement count = {
		.sql = "WITH RECURSIVE t AS (SELECT xmin, tgparentid FROM pg_trigger WHERE oid = $1"
			   " UNION ALL SELECT p.xmin, p.tgparentid FROM t JOIN pg_trigger p ON p.oid = t.tgparentid)"
			   " SELECT count(DISTINCT xmin::text) FROM t",
	};
	Datum		values[1] = {ObjectIdGetDatum(trigger_id)};

	return feedpub_store_number(&count, values, 0) == 1;
}

/*
 * Is a partition another one than the listed one, or not listed?  If it has no
 * trigger that stamps, the answer waits until it has one again.
 */
bool
feedpub_partition_is_changed(const FeedpubPartitionRow *row, Oid trigger_id)
{
	bool		is_same;

	if (!OidIsValid(trigger_id))
		return false;
	if (row == NULL)
		return true;
	if (feedpub_partition_is_of_here(row))
		return row->trigger_id != trigger_id;

	/* the same trigger: the server has got a new system identifier */
	is_same = row->partition_id == row->partition && row->trigger_id == trigger_id;
	return (!is_same && !is_cloned_with_feed(trigger_id)) ||
		(row->since != FEEDPUB_SINCE_NEVER &&
		 row->since > U64FromFullTransactionId(ReadNextFullTransactionId()));
}

/*
 * Was a partition listed without the trigger that tells of its TRUNCATE, and
 * has it another file since?  On another server the number says nothing, so it
 * counts as changed.
 */
bool
feedpub_partition_has_other_file(const FeedpubPartitionRow *row, Relation rel)
{
	return row != NULL && OidIsValid(row->file) &&
		(row->file != rel->rd_rel->relfilenode || !feedpub_partition_is_of_here(row));
}

/*
 * Is a partition listed as one that has the trigger?  If it has none, somebody
 * has dropped it.
 */
bool
feedpub_partition_had_guard(Oid feed, Oid partition)
{
	FeedpubPartitionRow *row = feedpub_partition_find_row(feedpub_partition_read_rows(feed, NULL), partition);

	return row != NULL && !OidIsValid(row->file);
}

/*
 * Was a row of the list written for this table, on this server?
 */
bool
feedpub_partition_is_of_here(const FeedpubPartitionRow *row)
{
	return row->partition_id == row->partition && row->system_id == GetSystemIdentifier();
}

/*
 * Write a row of feedpub._partition; it replaces the one that it was read
 * from, if any.  The write checks no rights: a publisher needs none on the
 * table.
 */
void
feedpub_partition_write_row(Relation table, const FeedpubPartitionRow *row)
{
	Datum		values[NATTS_PARTITION] = {
		ObjectIdGetDatum(row->feed),
		ObjectIdGetDatum(row->partition),
		UInt64GetDatum(row->since),
		ObjectIdGetDatum(row->trigger_id),
		ObjectIdGetDatum(row->partition_id),
		Int64GetDatum(row->system_id),
		ObjectIdGetDatum(row->file),
	};
	bool		nulls[NATTS_PARTITION] = {false};
	ItemPointerData tid = row->tid;
	HeapTuple	tuple;

	/* a plain table with plain indexes, as system catalogs are */
	feedpub_registry_check_version(table, NATTS_PARTITION);
	tuple = heap_form_tuple(RelationGetDescr(table), values, nulls);
	if (ItemPointerIsValid(&tid))
		CatalogTupleUpdate(table, &tid, tuple);
	else
		CatalogTupleInsert(table, tuple);
	heap_freetuple(tuple);
}

/*
 * A partition's since: a row is in the feed if its stamp is not below it.  The
 * caller holds a lock on the partition.
 */
uint64
feedpub_partition_listed_since(List *rows, Relation rel)
{
	FeedpubPartitionRow *row = feedpub_partition_find_row(rows, RelationGetRelid(rel));

	return row == NULL || feedpub_partition_is_changed(row, feedpub_relation_trigger(rel, "_stamp_row")) ? FEEDPUB_SINCE_NEVER : row->since;
}

/*
 * The same, by what is committed now.
 */
uint64
feedpub_partition_since(Oid feed, Relation rel)
{
	return feedpub_partition_listed_since(feedpub_partition_read_rows(feed, NULL), rel);
}
