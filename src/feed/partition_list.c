/*-------------------------------------------------------------------------
 *
 * partition_list.c
 *	  The list of a feed's partitions, feedpub._partition: reading and writing
 *	  it, and whether a partition is the listed one.  The head of partition.c
 *	  says what the list is for.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/transam.h"
#include "access/xlog.h"
#include "catalog/indexing.h"
#include "catalog/pg_trigger.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/xid8.h"

#include "feed/partition.h"

/* columns of feedpub._partition */
#define ANUM_PARTITION_FEED			1
#define ANUM_PARTITION_PARTITION	2
#define ANUM_PARTITION_SINCE		3
#define ANUM_PARTITION_TRIGGER_ID	4
#define ANUM_PARTITION_PARTITION_ID	5
#define ANUM_PARTITION_SYSTEM_ID	6
#define ANUM_PARTITION_FILE			7
#define NATTS_PARTITION				7

static bool is_cloned_with_feed(Oid trigger_id);

/*
 * The list of a feed's partitions as a snapshot sees it, or as it is committed
 * if that is NULL: a List of FeedpubPartitionRow.
 */
List *
feedpub_partition_read_rows(Oid feed, Snapshot snapshot)
{
	Relation	table = table_open(feedpub_registry_table("_partition"), AccessShareLock);
	Oid			indexid = feedpub_registry_table("_partition_pkey");
	TupleDesc	desc = RelationGetDescr(table);
	List	   *rows = NIL;
	Datum	   *values;
	bool	   *nulls;
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	tuple;

	feedpub_registry_check_columns(table, NATTS_PARTITION);
	values = palloc(desc->natts * sizeof(Datum));
	nulls = palloc(desc->natts * sizeof(bool));
	ScanKeyInit(&key, ANUM_PARTITION_FEED, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(feed));
	scan = systable_beginscan(table, indexid, true, snapshot, 1, &key);
	if (snapshot != NULL)
		feedpub_snapshot_check_index(snapshot, indexid);
	while ((tuple = systable_getnext(scan)) != NULL)
	{
		FeedpubPartitionRow *row = palloc0_object(FeedpubPartitionRow);

		heap_deform_tuple(tuple, desc, values, nulls);
		row->partition = DatumGetObjectId(values[ANUM_PARTITION_PARTITION - 1]);
		row->since = U64FromFullTransactionId(DatumGetFullTransactionId(values[ANUM_PARTITION_SINCE - 1]));
		row->trigger_id = DatumGetObjectId(values[ANUM_PARTITION_TRIGGER_ID - 1]);
		row->partition_id = DatumGetObjectId(values[ANUM_PARTITION_PARTITION_ID - 1]);
		row->system_id = (uint64) DatumGetInt64(values[ANUM_PARTITION_SYSTEM_ID - 1]);
		row->file = DatumGetObjectId(values[ANUM_PARTITION_FILE - 1]);
		row->tid = tuple->t_self;
		rows = lappend(rows, row);
	}
	systable_endscan(scan);
	pfree(values);
	pfree(nulls);
	table_close(table, AccessShareLock);
	return rows;
}

/*
 * Find a partition's row, or NULL.  The rows come in the order of an index on
 * (feed, partition), so they are sorted.
 */
FeedpubPartitionRow *
feedpub_partition_find_row(List *rows, Oid partition)
{
	int			low = 0;
	int			high = list_length(rows);

	while (low < high)
	{
		int			middle = (low + high) / 2;
		FeedpubPartitionRow *row = list_nth(rows, middle);

		if (row->partition == partition)
			return row;
		if (row->partition < partition)
			low = middle + 1;
		else
			high = middle;
	}
	return NULL;
}

/*
 * A partition's clone of the stamping trigger, or InvalidOid.
 */
Oid
feedpub_partition_trigger(Relation rel)
{
	Oid			funcid = feedpub_relation_function("_stamp_row", 0, NULL);

	for (int i = 0; rel->trigdesc != NULL && i < rel->trigdesc->numtriggers; i++)
	{
		if (rel->trigdesc->triggers[i].tgfoid == funcid)
			return rel->trigdesc->triggers[i].tgoid;
	}
	return InvalidOid;
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
 * Would a TRUNCATE of a partition be told?  A trigger that its owner has
 * disabled counts as there: feed_check() names it.
 */
bool
feedpub_partition_is_guarded(const FeedpubFeed *feed, Relation rel)
{
	return !feed->deletes || feedpub_relation_has_trigger(rel, "_note_truncate");
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
 * Was a row of the list written for this table, on this server?
 */
bool
feedpub_partition_is_of_here(const FeedpubPartitionRow *row)
{
	return row->partition_id == row->partition && row->system_id == GetSystemIdentifier();
}

/*
 * Did one command write a clone of a trigger and the trigger of the feed?
 * Their xmin tells; it stays when they are frozen.
 */
static bool
is_cloned_with_feed(Oid trigger_id)
{
	Relation	table = table_open(TriggerRelationId, AccessShareLock);
	TransactionId first = InvalidTransactionId;
	bool		same = true;

	while (OidIsValid(trigger_id) && same)
	{
		SysScanDesc scan;
		ScanKeyData key;
		HeapTuple	tuple;

		ScanKeyInit(&key, Anum_pg_trigger_oid, BTEqualStrategyNumber, F_OIDEQ,
					ObjectIdGetDatum(trigger_id));
		scan = systable_beginscan(table, TriggerOidIndexId, true, NULL, 1, &key);
		tuple = systable_getnext(scan);
		trigger_id = InvalidOid;
		if (HeapTupleIsValid(tuple))
		{
			TransactionId xmin = HeapTupleHeaderGetRawXmin(tuple->t_data);

			same = !TransactionIdIsValid(first) || xmin == first;
			first = xmin;
			trigger_id = ((Form_pg_trigger) GETSTRUCT(tuple))->tgparentid;
		}
		systable_endscan(scan);
	}
	table_close(table, AccessShareLock);
	return same;
}

/*
 * Write a row of feedpub._partition; it replaces the one that it was read
 * from, if any.  The write checks no rights: a publisher needs none on the
 * table.
 */
void
feedpub_partition_write_row(Relation table, Oid feed, const FeedpubPartitionRow *row)
{
	Datum		values[NATTS_PARTITION];
	bool		nulls[NATTS_PARTITION] = {false};
	HeapTuple	tuple;

	feedpub_registry_check_version(table, NATTS_PARTITION);
	values[ANUM_PARTITION_FEED - 1] = ObjectIdGetDatum(feed);
	values[ANUM_PARTITION_PARTITION - 1] = ObjectIdGetDatum(row->partition);
	values[ANUM_PARTITION_SINCE - 1] = FullTransactionIdGetDatum(FullTransactionIdFromU64(row->since));
	values[ANUM_PARTITION_TRIGGER_ID - 1] = ObjectIdGetDatum(row->trigger_id);
	values[ANUM_PARTITION_PARTITION_ID - 1] = ObjectIdGetDatum(row->partition_id);
	values[ANUM_PARTITION_SYSTEM_ID - 1] = Int64GetDatum((int64) row->system_id);
	values[ANUM_PARTITION_FILE - 1] = ObjectIdGetDatum(row->file);

	/* a plain table with plain indexes, as system catalogs are */
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
