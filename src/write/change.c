/*-------------------------------------------------------------------------
 *
 * change.c
 *	  What runs inside a writer's statement on a feed.
 *
 * A message of an outbox is stamped by a BEFORE ROW trigger as it is inserted,
 * whatever stamp it brings, and is never updated: consumers may have read it.
 *
 * A row of a table that is inserted, or whose published columns change, is stamped by a
 * BEFORE ROW trigger.  Its name sorts last, so that other triggers have done
 * what they will by then; where one does come after it, every UPDATE stamps,
 * for what that one will change cannot be known.  A row that is deleted
 * leaves a tombstone, as does one whose key changes, for its old key, and
 * TRUNCATE, before it begins.  The triggers are ENABLE ALWAYS: rows that logical replication
 * brings get stamps of this server.
 *
 * A row of batch 0, one that was there before the table became a feed and has
 * no stamp, is stamped by any UPDATE at all: its new version may lie before
 * the place that a reader of batch 0 has reached (initial.c).  So is a row that
 * is not in the feed, since its partition came with it (partition.c).
 *
 * Order of events: the trigger is called with the old row locked (trigger.c:
 * GetTupleForTrigger), so the position is taken after whoever changed the row
 * before has ended: changes of one row are in the order of their positions.
 * The xid is assigned before the position is taken.
 *
 * A tombstone may be written for a key that lives: an INSERT takes its
 * position before it waits on the unique index, so it may have a smaller one
 * than the DELETE that it waited for; and where a row moves to another place
 * it is deleted there after it is inserted here.  Readers do not hand out a
 * tombstone whose key lives in the snapshot that reads (read.c).
 *
 * Partitions have clones of the row triggers, which are called with the
 * partition: its columns may have other numbers than those of the feed's table,
 * and the sequence, the key and the tombstones are that table's.  An UPDATE
 * that moves a row to another partition fires the triggers of UPDATE and DELETE
 * there and of INSERT here, so its old key, for it must have changed, leaves two
 * tombstones; a consumer is told twice.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_attribute.h"
#include "catalog/pg_class.h"
#include "catalog/pg_trigger.h"
#include "commands/sequence.h"
#include "commands/trigger.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/datum.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/xid8.h"

#include "write/write.h"

PG_FUNCTION_INFO_V1(feedpub_stamp_message);
PG_FUNCTION_INFO_V1(feedpub_stamp_row);
PG_FUNCTION_INFO_V1(feedpub_note_delete);
PG_FUNCTION_INFO_V1(feedpub_note_truncate);

/*
 * What the triggers need to know of a table.  Entries are voided by relcache
 * invalidation of the table, its sequence or the registry, and never freed.
 */
typedef struct TrackedTable
{
	Oid			relid;			/* hash key, must be first */
	bool		valid;
	Oid			feed;			/* the table, or the one it is a partition of */
	Oid			seqid;
	AttrNumber	xid_attno;
	AttrNumber	pos_attno;
	bool		deletes;
	uint64		since;			/* of a partition: rows below are not in the feed */
	int			nkeys;			/* 0: the key is not there */
	AttrNumber	keys[INDEX_MAX_KEYS];
	bool		always;			/* every UPDATE stamps */
	bool		published[MaxHeapAttributeNumber];	/* by attno - 1 */

	/* of a feed that was truncated: when, where; these are kept when voided */
	FullTransactionId truncated_by;
	SubTransactionId truncating;	/* while its partitions are, too */
	int64		truncated_at;	/* later positions are larger */
} TrackedTable;

/* the outbox whose rows are being stamped anew by this backend */
Oid			feedpub_change_stamped_anew = InvalidOid;

static HTAB *tables = NULL;
static Oid	registry_relid = InvalidOid;
static uint64 ninvalidations = 0;

static Datum stamp_tuple(const TrackedTable *table, Relation rel,
						 HeapTuple tuple);
static void note_feed_truncate(TrackedTable *table);
static bool is_truncated_with_all(Oid feed);
static void invalidate_tables(Datum arg, Oid relid);
static TrackedTable *find_table(Relation rel);
static void learn_table(TrackedTable *table, Relation rel);
static void learn_columns(TrackedTable *table, Relation rel,
						  const Trigger *trigger);
static bool is_outside(const TrackedTable *table, TupleTableSlot *slot);
static bool values_differ(TupleTableSlot *a, TupleTableSlot *b,
						  AttrNumber attno);
static bool has_changed(const TrackedTable *table, TupleTableSlot *old_slot,
						TupleTableSlot *new_slot);
static void keep_position(const TrackedTable *table, const TrackedTable *feed);
static void leave_tombstone(const TrackedTable *table, Relation rel,
							TupleTableSlot *slot);
static void leave_all_tombstones(const TrackedTable *table, Relation rel);

/*
 * feedpub._stamp_message() returns trigger
 *
 * BEFORE INSERT OR UPDATE, FOR EACH ROW, on an outbox: stamps a new message and
 * raises PF004 for an UPDATE.  BEFORE UPDATE, FOR EACH STATEMENT: the same, also
 * if there is no row, or no conflict in ON CONFLICT DO UPDATE, so that such a
 * statement fails the first time it is tried.  (Logical replication does not
 * call triggers of statements.)  Only the UPDATE that stamps the messages of an
 * outbox anew is let through (restamp.c).
 */
Datum
feedpub_stamp_message(PG_FUNCTION_ARGS)
{
	TriggerData *trigdata = (TriggerData *) fcinfo->context;
	Relation	rel;

	if (!CALLED_AS_TRIGGER(fcinfo) ||
		!TRIGGER_FIRED_BEFORE(trigdata->tg_event) ||
		!(TRIGGER_FIRED_BY_UPDATE(trigdata->tg_event) ||
		  (TRIGGER_FIRED_BY_INSERT(trigdata->tg_event) &&
		   TRIGGER_FIRED_FOR_ROW(trigdata->tg_event))))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function \"%s\" must be called as a row trigger before INSERT, or a trigger before UPDATE",
						"_stamp_message")));
	rel = trigdata->tg_relation;
	if (TRIGGER_FIRED_BY_UPDATE(trigdata->tg_event) &&
		RelationGetRelid(rel) == feedpub_change_stamped_anew)
	{
		TrackedTable *table = find_table(rel);

		if (!TRIGGER_FIRED_FOR_ROW(trigdata->tg_event))
			PG_RETURN_POINTER(NULL);
		if (slot_attisnull(trigdata->tg_newslot, table->xid_attno))
			return stamp_tuple(table, rel, trigdata->tg_newtuple);
	}
	if (TRIGGER_FIRED_BY_UPDATE(trigdata->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_FEED_GUARDED),
				 errmsg("cannot update outbox feed \"%s\"",
						RelationGetRelationName(rel)),
				 errdetail("Its rows are messages that consumers may have read already."),
				 errhint("Insert a new message.  ON CONFLICT DO NOTHING and DELETE are allowed.")));
	return stamp_tuple(find_table(rel), rel, trigdata->tg_trigtuple);
}

/*
 * A row with a new stamp: the xid first, then the position.  Needs no right on
 * the sequence: it belongs to feed_pos of the feed's table, so its owner has
 * given whoever may INSERT the right to advance it.
 */
static Datum
stamp_tuple(const TrackedTable *table, Relation rel, HeapTuple tuple)
{
	FullTransactionId xid = GetTopFullTransactionId();
	int			columns[2] = {table->xid_attno, table->pos_attno};
	bool		nulls[2] = {false, false};
	Datum		values[2];

	values[0] = FullTransactionIdGetDatum(xid);
	values[1] = Int64GetDatum(nextval_internal(table->seqid, false));
	feedpub_stamp_note(table->feed, xid);
	return PointerGetDatum(heap_modify_tuple_by_cols(tuple, RelationGetDescr(rel),
													 2, columns, values, nulls));
}

/*
 * feedpub._stamp_row(columns...) returns trigger
 *
 * BEFORE INSERT OR UPDATE, FOR EACH ROW, on a table feed: gives the row a new
 * stamp if it is new, or if one of the columns named in the trigger's
 * arguments changes, any column if there are none; or if feed_xid is set to
 * NULL, which asks for that.  Raises PF004 when the stamp would be written.
 */
Datum
feedpub_stamp_row(PG_FUNCTION_ARGS)
{
	TriggerData *trigdata = (TriggerData *) fcinfo->context;
	Relation	rel;
	TrackedTable *table;
	HeapTuple	result;
	bool		is_update;

	if (!CALLED_AS_TRIGGER(fcinfo) ||
		!TRIGGER_FIRED_BEFORE(trigdata->tg_event) ||
		!TRIGGER_FIRED_FOR_ROW(trigdata->tg_event) ||
		TRIGGER_FIRED_BY_DELETE(trigdata->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function \"%s\" must be called as a row trigger before INSERT or UPDATE",
						"_stamp_row")));
	rel = trigdata->tg_relation;
	table = find_table(rel);
	is_update = TRIGGER_FIRED_BY_UPDATE(trigdata->tg_event);
	result = is_update ? trigdata->tg_newtuple : trigdata->tg_trigtuple;

	if (is_update)
	{
		TupleTableSlot *old_slot = trigdata->tg_trigslot;
		TupleTableSlot *new_slot = trigdata->tg_newslot;
		bool		is_replica = SessionReplicationRole == SESSION_REPLICATION_ROLE_REPLICA;
		bool		is_new = is_outside(table, old_slot);
		bool		is_asked = slot_attisnull(new_slot, table->xid_attno);
		bool		is_written = values_differ(old_slot, new_slot, table->xid_attno) ||
			values_differ(old_slot, new_slot, table->pos_attno);

		for (int i = 0; i < table->nkeys && table->deletes; i++)
		{
			if (values_differ(old_slot, new_slot, table->keys[i]))
			{
				leave_tombstone(table, rel, old_slot);
				break;
			}
		}

		/* what replication brings is another server's stamp */
		if (is_written && !is_asked && !is_replica)
			ereport(ERROR,
					(errcode(ERRCODE_FEED_GUARDED),
					 errmsg("cannot write the stamp of feed \"%s\"",
							RelationGetRelationName(rel)),
					 errdetail("Columns %s and %s are given to each row as it changes.",
							   FEEDPUB_XID_COLUMN, FEEDPUB_POS_COLUMN),
					 errhint("To publish a row again, set %s to NULL.", FEEDPUB_XID_COLUMN)));
		if (!is_new && !(is_asked && !is_replica) && !table->always &&
			!has_changed(table, old_slot, new_slot))
		{
			int			columns[2] = {table->xid_attno, table->pos_attno};
			Datum		values[2];
			bool		nulls[2];

			if (!is_written)
				PG_RETURN_POINTER(result);
			for (int i = 0; i < 2; i++)
				values[i] = slot_getattr(old_slot, columns[i], &nulls[i]);
			PG_RETURN_POINTER(heap_modify_tuple_by_cols(result, RelationGetDescr(rel),
														2, columns, values, nulls));
		}
	}

	return stamp_tuple(table, rel, result);
}

/*
 * Has a row no stamp, not even half of one, or is it not in the feed since it
 * came with its partition (partition.c)?
 */
static inline bool
is_outside(const TrackedTable *table, TupleTableSlot *slot)
{
	bool		isnull;
	Datum		xid = slot_getattr(slot, table->xid_attno, &isnull);

	return isnull || slot_attisnull(slot, table->pos_attno) ||
		U64FromFullTransactionId(DatumGetFullTransactionId(xid)) < table->since;
}

/*
 * feedpub._note_delete() returns trigger
 *
 * AFTER DELETE, FOR EACH ROW, on a table feed: leaves a tombstone.
 */
Datum
feedpub_note_delete(PG_FUNCTION_ARGS)
{
	TriggerData *trigdata = (TriggerData *) fcinfo->context;
	TrackedTable *table;

	if (!CALLED_AS_TRIGGER(fcinfo) ||
		!TRIGGER_FIRED_AFTER(trigdata->tg_event) ||
		!TRIGGER_FIRED_BY_DELETE(trigdata->tg_event) ||
		!TRIGGER_FIRED_FOR_ROW(trigdata->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function \"%s\" must be called as a row trigger after DELETE",
						"_note_delete")));
	table = find_table(trigdata->tg_relation);
	if (table->deletes)
		leave_tombstone(table, trigdata->tg_relation, trigdata->tg_trigslot);
	PG_RETURN_POINTER(NULL);
}

/*
 * feedpub._note_truncate() returns trigger
 *
 * BEFORE TRUNCATE, FOR EACH STATEMENT, on a feed: leaves the tombstone of a
 * TRUNCATE.  Its position is larger than those of all rows that go: their
 * writers have ended, for the statement locks all its tables before it calls
 * any trigger, or are this transaction.  What the statement's AFTER triggers
 * write, and whoever comes after it, gets larger ones.  (What its BEFORE
 * triggers write into the feed goes with the rest.)
 *
 * The same on a partition: leaves a tombstone for each row, unless the whole
 * feed is being truncated, which the trigger on the partitioned table has
 * noticed.  (The server calls that first where the statement names the table,
 * tablecmds.c: ExecuteTruncateGuts; if it names partitions before, their
 * deletes are published as well.)  A table that was a partition keeps the
 * trigger; there it does nothing.
 *
 * AFTER TRUNCATE, FOR EACH STATEMENT, on a feed: takes back what RESTART
 * IDENTITY did to its sequence (see keep_position), should no other trigger's
 * row have done so.
 */
Datum
feedpub_note_truncate(PG_FUNCTION_ARGS)
{
	TriggerData *trigdata = (TriggerData *) fcinfo->context;
	Relation	rel;
	Oid			feed;
	TrackedTable *table;

	if (!CALLED_AS_TRIGGER(fcinfo) ||
		!TRIGGER_FIRED_BY_TRUNCATE(trigdata->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function \"%s\" must be called as a trigger on TRUNCATE",
						"_note_truncate")));
	rel = trigdata->tg_relation;
	feed = feedpub_partition_feed(RelationGetRelid(rel));
	if (!OidIsValid(feed))
		PG_RETURN_POINTER(NULL);
	if (feed == RelationGetRelid(rel))
	{
		table = find_table(rel);
		if (TRIGGER_FIRED_BEFORE(trigdata->tg_event))
			note_feed_truncate(table);
		else
			table->truncating = InvalidSubTransactionId;
	}
	else if (TRIGGER_FIRED_BEFORE(trigdata->tg_event) &&
			 rel->rd_rel->relkind != RELKIND_PARTITIONED_TABLE &&
			 !is_truncated_with_all(feed))
	{
		table = find_table(rel);
		if (table->deletes)
			leave_all_tombstones(table, rel);
	}
	PG_RETURN_POINTER(NULL);
}

static void
note_feed_truncate(TrackedTable *table)
{
	FullTransactionId xid = GetTopFullTransactionId();
	int64		pos = nextval_internal(table->seqid, false);

	table->truncated_by = xid;
	table->truncating = GetCurrentSubTransactionId();
	table->truncated_at = pos;
	if (!table->deletes)
		return;
	feedpub_tombstone_write(table->feed, xid, pos, (Datum) 0);
	feedpub_stamp_note(table->feed, xid);
}

/*
 * Is a feed being truncated as a whole?  Should that fail, its subtransaction
 * is not ours any more.
 */
static bool
is_truncated_with_all(Oid feed)
{
	TrackedTable *table = NULL;

	if (tables != NULL)
		table = hash_search(tables, &feed, HASH_FIND, NULL);
	return table != NULL &&
		FullTransactionIdIsValid(table->truncated_by) &&
		FullTransactionIdEquals(table->truncated_by, GetTopFullTransactionIdIfAny()) &&
		table->truncating == GetCurrentSubTransactionId();
}

static void
invalidate_tables(Datum arg, Oid relid)
{
	HASH_SEQ_STATUS status;
	TrackedTable *table;
	bool		all = !OidIsValid(relid) || relid == registry_relid;

	ninvalidations++;
	hash_seq_init(&status, tables);
	while ((table = hash_seq_search(&status)) != NULL)
	{
		if (all || table->relid == relid || table->feed == relid ||
			table->seqid == relid)
			table->valid = false;
	}
}

static TrackedTable *
find_table(Relation rel)
{
	Oid			relid = RelationGetRelid(rel);
	TrackedTable *table;
	bool		found;

	if (tables == NULL)
	{
		HASHCTL		ctl = {0};

		ctl.keysize = sizeof(Oid);
		ctl.entrysize = sizeof(TrackedTable);
		ctl.hcxt = TopMemoryContext;
		tables = hash_create("feedpub tracked tables", 16, &ctl,
							 HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
		CacheRegisterRelcacheCallback(invalidate_tables, (Datum) 0);
	}
	table = hash_search(tables, &relid, HASH_ENTER, &found);
	if (!found)
	{
		table->valid = false;
		table->truncated_by = InvalidFullTransactionId;
	}
	if (!table->valid)
		learn_table(table, rel);
	return table;
}

/*
 * Find out about a table.  Its definition cannot change meanwhile: the
 * writer's statement holds a lock on it.  The registry can: then what was
 * learned serves this row only.
 */
static void
learn_table(TrackedTable *table, Relation rel)
{
	Oid			relid = RelationGetRelid(rel);
	Oid			stamp_row = feedpub_relation_function("_stamp_row", 0, NULL);
	const Trigger *trigger = NULL;
	FeedpubKey	key;
	Oid			keyid;
	uint64		before = ninvalidations;

	table->xid_attno = get_attnum(relid, FEEDPUB_XID_COLUMN);
	table->pos_attno = get_attnum(relid, FEEDPUB_POS_COLUMN);
	table->feed = feedpub_partition_feed(relid);
	table->since = 0;
	table->seqid = InvalidOid;
	if (OidIsValid(table->feed))
		table->seqid = feedpub_relation_sequence(table->feed);
	if (table->xid_attno == InvalidAttrNumber ||
		get_atttype(relid, table->xid_attno) != XID8OID ||
		!OidIsValid(table->seqid) ||
		get_atttype(relid, table->pos_attno) != INT8OID)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("rows of feed \"%s\" cannot be stamped",
						RelationGetRelationName(rel)),
				 errdetail("Columns %s and %s, or the sequence of the latter, are not what they were.",
						   FEEDPUB_XID_COLUMN, FEEDPUB_POS_COLUMN),
				 errhint("Run feed_check() to see what is missing, feed_repair() to put it back, or feed_detach() to do without.")));

	/* without a row in the registry: no deletes, until feed_repair() */
	registry_relid = feedpub_registry_relid();
	if (feedpub_relation_has_trigger(rel, "_stamp_message"))
	{
		table->deletes = false;
		table->nkeys = 0;
		keep_position(table, table);
		table->valid = before == ninvalidations;
		return;
	}
	if (table->feed != relid)
	{
		feedpub_registry_stored_key(table->feed, &key, &table->deletes);
		feedpub_key_of_partition(table->feed, relid, &key);
		keyid = InvalidOid;
		table->since = feedpub_partition_since(table->feed, rel);
	}
	else
		feedpub_registry_key(rel, &key, &keyid, &table->deletes);
	if (OidIsValid(keyid))
		table->nkeys = feedpub_key_columns(keyid, table->keys);
	else
		table->nkeys = feedpub_key_attnos(rel, &key, table->keys);

	table->always = false;
	for (int i = 0; rel->trigdesc != NULL && i < rel->trigdesc->numtriggers; i++)
	{
		const Trigger *t = &rel->trigdesc->triggers[i];

		if (t->tgfoid == stamp_row)
			trigger = t;
		else if (trigger != NULL && TRIGGER_FOR_ROW(t->tgtype) &&
				 TRIGGER_FOR_BEFORE(t->tgtype) && TRIGGER_FOR_UPDATE(t->tgtype))
			table->always = true;
	}
	learn_columns(table, rel, trigger);
	keep_position(table, table->feed == relid ? table : hash_search(tables, &table->feed, HASH_FIND, NULL));
	table->valid = before == ninvalidations;
}

/*
 * Which columns are compared: those named in the trigger's arguments, or all.
 * All as well if one of them is gone or renamed, or is computed from others:
 * rather one stamp too many.
 */
static void
learn_columns(TrackedTable *table, Relation rel, const Trigger *trigger)
{
	TupleDesc	desc = RelationGetDescr(rel);
	bool		all = trigger == NULL || trigger->tgnargs == 0;

	MemSet(table->published, 0, sizeof(table->published));
	for (int i = 0; !all && i < trigger->tgnargs; i++)
	{
		AttrNumber	attno = get_attnum(RelationGetRelid(rel), trigger->tgargs[i]);

		if (attno <= 0 || TupleDescAttr(desc, attno - 1)->attgenerated != '\0')
			all = true;
		else
			table->published[attno - 1] = true;
	}
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (att->attisdropped || att->attgenerated != '\0' ||
			i + 1 == table->xid_attno || i + 1 == table->pos_attno)
			table->published[i] = false;
		else if (all)
			table->published[i] = true;
	}
	for (int i = 0; i < table->nkeys; i++)
		table->published[table->keys[i] - 1] = true;
}

/*
 * Does a column differ between two versions of a row?  Values that are stored
 * out of line are not read: an UPDATE that leaves one alone leaves its
 * pointer, and one that writes it anew counts as a change.
 */
static bool
values_differ(TupleTableSlot *a, TupleTableSlot *b, AttrNumber attno)
{
	Form_pg_attribute att = TupleDescAttr(a->tts_tupleDescriptor, attno - 1);
	bool		anull;
	bool		bnull;
	Datum		avalue = slot_getattr(a, attno, &anull);
	Datum		bvalue = slot_getattr(b, attno, &bnull);

	if (anull || bnull)
		return anull != bnull;
	if (att->attlen == -1 &&
		(VARATT_IS_EXTERNAL(DatumGetPointer(avalue)) ||
		 VARATT_IS_EXTERNAL(DatumGetPointer(bvalue))))
		return VARSIZE_ANY(DatumGetPointer(avalue)) != VARSIZE_ANY(DatumGetPointer(bvalue)) ||
			memcmp(DatumGetPointer(avalue), DatumGetPointer(bvalue),
				   VARSIZE_ANY(DatumGetPointer(avalue))) != 0;
	return !datum_image_eq(avalue, bvalue, att->attbyval, att->attlen);
}

static bool
has_changed(const TrackedTable *table, TupleTableSlot *old_slot,
			TupleTableSlot *new_slot)
{
	int			natts = old_slot->tts_tupleDescriptor->natts;

	for (int i = 0; i < natts; i++)
	{
		if (table->published[i] && values_differ(old_slot, new_slot, i + 1))
			return true;
	}
	return false;
}

/*
 * Leave a tombstone for a row.
 */
static void
leave_tombstone(const TrackedTable *table, Relation rel, TupleTableSlot *slot)
{
	FullTransactionId xid;
	Datum		key;

	if (table->nkeys == 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("feed \"%s\" has no key", RelationGetRelationName(rel)),
				 errdetail("A delete is published by the row's key."),
				 errhint("Run feed_check() to see what is missing, or feed_detach() to do without.")));
	key = feedpub_key_texts(RelationGetDescr(rel), table->nkeys, table->keys, slot);
	xid = GetTopFullTransactionId();
	feedpub_tombstone_write(table->feed, xid,
							nextval_internal(table->seqid, false), key);
	feedpub_stamp_note(table->feed, xid);
}

/*
 * A partition is about to be truncated: leave a tombstone for each of its rows,
 * since the other partitions keep theirs.  Those that nobody sees any more have
 * theirs.
 */
static void
leave_all_tombstones(const TrackedTable *table, Relation rel)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	TableScanDesc scan = table_beginscan(rel, snapshot, 0, NULL);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "feedpub truncate",
												  ALLOCSET_DEFAULT_SIZES);

	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		MemoryContext oldcontext = MemoryContextSwitchTo(context);

		CHECK_FOR_INTERRUPTS();
		leave_tombstone(table, rel, slot);
		MemoryContextSwitchTo(oldcontext);
		MemoryContextReset(context);
	}
	MemoryContextDelete(context);
	ExecDropSingleTupleTableSlot(slot);
	table_endscan(scan);
	UnregisterSnapshot(snapshot);
}

/*
 * After TRUNCATE ... RESTART IDENTITY: positions go on.
 *
 * The server sets the sequence back between the BEFORE and the AFTER triggers
 * of the statement, in a new file, whose invalidation voids what is known of
 * the feed and its partitions.  So we are here before the next position is
 * taken, for a row of somebody's AFTER trigger, or in our own AFTER trigger;
 * and nobody else is, for the sequence is locked until the transaction ends.
 * Positions taken since our BEFORE trigger are those of tombstones, which are
 * kept, and of rows that are gone.  If the TRUNCATE is rolled back, the old
 * file is there again, which has the position of the TRUNCATE.
 *
 * As the extension's owner: whose row it is need have no right on the sequence,
 * and to set it forward takes no code of anybody's.
 */
static void
keep_position(const TrackedTable *table, const TrackedTable *feed)
{
	FeedpubRole caller;
	int64		largest;

	if (feed == NULL || !FullTransactionIdIsValid(feed->truncated_by) ||
		!FullTransactionIdEquals(feed->truncated_by, GetTopFullTransactionIdIfAny()) ||
		feedpub_relation_last_pos(table->seqid) >= feed->truncated_at)
		return;
	largest = Max(feed->truncated_at, feedpub_tombstone_largest_pos(table->feed));
	feedpub_store_begin(&caller);
	(void) DirectFunctionCall2(setval_oid, ObjectIdGetDatum(table->seqid),
							   Int64GetDatum(largest));
	feedpub_store_end(&caller);
}
