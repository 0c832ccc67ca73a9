/*-------------------------------------------------------------------------
 *
 * stamp.c
 *	  The triggers that run inside a writer's statement on a feed.
 *
 * A BEFORE ROW trigger stamps each message that is inserted into an outbox,
 * whatever stamp it brings.  A message is never updated: consumers may have
 * read it.
 *
 * A BEFORE ROW trigger stamps each row of a table feed that is inserted, or
 * whose published columns change.  Its name sorts last, so that it runs after
 * other triggers have changed the row.  If a trigger sorts after it
 * nevertheless, every UPDATE stamps, since it cannot be known what that
 * trigger will change.  A deleted row leaves a tombstone.  So does a row whose
 * key changes, for its old key, and TRUNCATE (truncate.c).  The triggers
 * are ENABLE ALWAYS: rows that logical replication brings get stamps of this
 * server.
 *
 * A row of the initial snapshot was there before the table became a feed, and
 * has no stamp.  Every UPDATE stamps it: its new version may lie before the
 * position that a reader of the initial snapshot has reached (initial.c).
 * Every UPDATE also stamps a row that is not in the feed since its partition
 * came with it (partition_join.c).
 *
 * Order of events: the trigger is called with the old row locked (trigger.c:
 * GetTupleForTrigger).  So the position is taken after the transaction that
 * changed the row before has ended, and changes of one row are in the order of
 * their positions.  The xid is assigned before the position is taken.
 *
 * A tombstone may be written for a key that lives.  An INSERT takes its
 * position before it waits on the unique index, so its position may be smaller
 * than that of the DELETE for which it waited.  And if a row moves to another
 * partition, it is inserted into the new one before it is deleted from the old
 * one.  Readers do not deliver a tombstone whose key lives in the snapshot of
 * the page (read/entry.c).
 *
 * Partitions have clones of the row triggers.  A clone is called with the
 * partition: its columns may have other numbers than those of the feed's
 * table, and the sequence, the key and the tombstones are that table's.  An
 * UPDATE that moves a row to another partition fires the triggers of UPDATE
 * and DELETE on the old one and of INSERT on the new one.  The key contains
 * the partition key, so it has changed, and the old key gets two tombstones: a
 * consumer is told twice.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_attribute.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "utils/datum.h"
#include "utils/lsyscache.h"
#include "utils/xid8.h"

#include "write/write.h"

PG_FUNCTION_INFO_V1(feedpub_stamp_message);
PG_FUNCTION_INFO_V1(feedpub_stamp_row);
PG_FUNCTION_INFO_V1(feedpub_note_delete);

/*
 * What the triggers need to know of a table.  Relcache invalidation of the
 * table, its sequence or the registry makes an entry invalid.  Entries are
 * never freed.
 */
typedef struct TrackedTable
{
	FeedpubCached head;			/* its feed: the table, or its partitioned table */
	AttrNumber	xid_attno;
	AttrNumber	pos_attno;
	AttrNumber	id_attno;		/* an outbox's message_id, if it is text */
	bool		can_stamp;		/* columns and sequence are there */
	bool		deletes;
	uint64		since;			/* of a partition (partition_join.c) */
	int			nkeys;			/* 0: the key is not there */
	AttrNumber	keys[INDEX_MAX_KEYS];
	bool		always;			/* every UPDATE stamps */
	bool		published[MaxHeapAttributeNumber];	/* by attno - 1 */
} TrackedTable;

/* the outbox whose rows this backend is stamping anew, or InvalidOid */
Oid			feedpub_stamp_anew = InvalidOid;

static FeedpubCache tables = {"feedpub tracked tables", sizeof(TrackedTable)};

static Datum stamp_tuple(const TrackedTable *table, Relation rel,
						 HeapTuple tuple);
static TrackedTable *find_table(Relation rel);
static const char *feed_name(const TrackedTable *table, Relation rel);
static void learn_table(TrackedTable *table, Relation rel);
static void learn_columns(TrackedTable *table, Relation rel,
						  const Trigger *trigger);
static bool is_outside(const TrackedTable *table, TupleTableSlot *slot);
static bool has_changed(const TrackedTable *table, TupleTableSlot *old_slot,
						TupleTableSlot *new_slot);
static void leave_tombstone(const TrackedTable *table, Relation rel,
							TupleTableSlot *slot);

/*
 * How a trigger's function is called.  Raises 39P01 if it is not called at that
 * time, or for a row or a statement for which it is not made.
 */
TriggerData *
feedpub_stamp_trigger(FunctionCallInfo fcinfo, TriggerEvent timing, int by_row,
					  int by_statement, const char *name, const char *kind)
{
	TriggerData *trigdata = (TriggerData *) fcinfo->context;

	if (!CALLED_AS_TRIGGER(fcinfo) ||
		(trigdata->tg_event & TRIGGER_EVENT_TIMINGMASK) != timing ||
		((TRIGGER_FIRED_FOR_ROW(trigdata->tg_event) ? by_row : by_statement) & 1 << (trigdata->tg_event & TRIGGER_EVENT_OPMASK)) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function \"%s\" must be called as a %s", name, kind)));
	return trigdata;
}

/*
 * feedpub._stamp_message() returns trigger
 *
 * BEFORE INSERT OR UPDATE, FOR EACH ROW, on an outbox: stamps a new message,
 * and raises PF004 for an UPDATE.  BEFORE UPDATE, FOR EACH STATEMENT: raises
 * PF004 also if the UPDATE finds no row, or ON CONFLICT DO UPDATE no conflict,
 * so that such a statement fails when it is tried first.  (Logical replication
 * does not call triggers of statements.)  Only the UPDATE that stamps the
 * messages of an outbox anew may pass (job/rows.c).
 */
Datum
feedpub_stamp_message(PG_FUNCTION_ARGS)
{
	TriggerData *trigdata = feedpub_stamp_trigger(fcinfo, TRIGGER_EVENT_BEFORE, FEEDPUB_BY_INSERT | FEEDPUB_BY_UPDATE, FEEDPUB_BY_UPDATE,
												  "_stamp_message", "row trigger before INSERT, or a trigger before UPDATE");
	Relation	rel;

	rel = trigdata->tg_relation;
	if (TRIGGER_FIRED_BY_UPDATE(trigdata->tg_event) &&
		RelationGetRelid(rel) == feedpub_stamp_anew)
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
				 errmsg("cannot update feed \"%s\"",
						RelationGetRelationName(rel)),
				 errdetail("Consumers may have read its entries already."),
				 errhint("Insert a new row.  ON CONFLICT DO NOTHING and DELETE are allowed.")));
	return stamp_tuple(find_table(rel), rel, trigdata->tg_trigtuple);
}

/*
 * Returns the row with a new stamp.  The xid is assigned first, then the
 * position.  The caller needs no right on the sequence: it belongs to feed_pos
 * of the feed's table, so with the right to INSERT the owner has granted the
 * right to advance it.
 *
 * A message without an id gets one here.  A default that calls a function of
 * ours would go with the extension (DROP EXTENSION ... CASCADE).
 *
 * If a row of a table feed cannot be stamped, the writer goes on: the row
 * loses the stamp that it brings, and the feed has lost the change (lost.c).
 * A message is refused, since no consumer would get it.
 */
static Datum
stamp_tuple(const TrackedTable *table, Relation rel, HeapTuple tuple)
{
	int			columns[3] = {table->xid_attno, table->pos_attno, table->id_attno};
	bool		nulls[3] = {!table->can_stamp, !table->can_stamp, false};
	Datum		values[3] = {0};
	int			first = columns[0] == InvalidAttrNumber ? 1 : 0;
	int			n = (columns[1] == InvalidAttrNumber ? 1 : 2) - first;

	if (table->can_stamp)
	{
		FullTransactionId xid = GetTopFullTransactionId();

		values[0] = FullTransactionIdGetDatum(xid);
		values[1] = Int64GetDatum(feedpub_position_take(table->head.feed, table->head.seqid, 1));
		feedpub_wake_note(table->head.feed);
		if (table->id_attno != InvalidAttrNumber &&
			heap_attisnull(tuple, table->id_attno, RelationGetDescr(rel)))
			values[n++] = feedpub_message_id();
	}
	else if (feedpub_registry_is_table(table->head.feed))
		feedpub_lost_note(table->head.feed);
	else
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("rows of feed \"%s\" cannot be stamped",
						feed_name(table, rel)),
				 errdetail("Column %s, column %s or its sequence is missing or has been altered.",
						   FEEDPUB_XID_COLUMN, FEEDPUB_POS_COLUMN),
				 errhint("Run feed_check() to see what is missing, feed_repair() to put it back, or feed_detach() to stop publishing the table.")));
	if (n > 0)
		tuple = heap_modify_tuple_by_cols(tuple, RelationGetDescr(rel),
										  n, columns + first, values + first, nulls);
	return PointerGetDatum(tuple);
}

/*
 * feedpub._stamp_row(columns...)  returns trigger
 *
 * BEFORE INSERT OR UPDATE, FOR EACH ROW, on a table feed: gives the row a new
 * stamp if it is new, or if one of the columns named in the trigger's
 * arguments changes (any column if there are none), or if feed_xid is set to
 * NULL, which asks for a new stamp.  Raises PF004 if the statement writes the
 * stamp.  In replica role neither holds: an UPDATE keeps the stamp.
 */
Datum
feedpub_stamp_row(PG_FUNCTION_ARGS)
{
	TriggerData *trigdata = feedpub_stamp_trigger(fcinfo, TRIGGER_EVENT_BEFORE, FEEDPUB_BY_INSERT | FEEDPUB_BY_UPDATE, 0,
												  "_stamp_row", "row trigger before INSERT or UPDATE");
	Relation	rel;
	TrackedTable *table;
	HeapTuple	result;
	bool		is_update;

	rel = trigdata->tg_relation;
	table = find_table(rel);
	is_update = TRIGGER_FIRED_BY_UPDATE(trigdata->tg_event);
	result = is_update ? trigdata->tg_newtuple : trigdata->tg_trigtuple;
	if (!table->can_stamp)
		PG_RETURN_DATUM(stamp_tuple(table, rel, result));

	if (is_update)
	{
		TupleTableSlot *old_slot = trigdata->tg_trigslot;
		TupleTableSlot *new_slot = trigdata->tg_newslot;
		bool		is_replica = SessionReplicationRole == SESSION_REPLICATION_ROLE_REPLICA;
		bool		is_new = is_outside(table, old_slot);
		bool		is_asked = slot_attisnull(new_slot, table->xid_attno);
		bool		is_written = feedpub_stamp_values_differ(old_slot, new_slot, table->xid_attno, table->xid_attno) ||
			feedpub_stamp_values_differ(old_slot, new_slot, table->pos_attno, table->pos_attno);

		/* it may change what the key was */
		if (table->deletes && table->nkeys == 0)
			feedpub_lost_note(table->head.feed);
		for (int i = 0; i < table->nkeys && table->deletes; i++)
		{
			if (feedpub_stamp_values_differ(old_slot, new_slot, table->keys[i], table->keys[i]))
			{
				leave_tombstone(table, rel, old_slot);
				break;
			}
		}

		/* logical replication brings another server's stamp */
		if (is_written && !is_asked && !is_replica)
			ereport(ERROR,
					(errcode(ERRCODE_FEED_GUARDED),
					 errmsg("cannot write the stamp of feed \"%s\"",
							feed_name(table, rel)),
					 errdetail("Columns %s and %s are set by a trigger when a row changes.",
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
 * Is a row not in the feed: has it no xid or no position, or did its partition
 * come with it (partition_join.c)?
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
	TriggerData *trigdata = feedpub_stamp_trigger(fcinfo, TRIGGER_EVENT_AFTER, FEEDPUB_BY_DELETE, 0,
												  "_note_delete", "row trigger after DELETE");
	TrackedTable *table;

	table = find_table(trigdata->tg_relation);
	if (table->deletes)
		leave_tombstone(table, trigdata->tg_relation, trigdata->tg_trigslot);
	PG_RETURN_POINTER(NULL);
}

static TrackedTable *
find_table(Relation rel)
{
	Oid			relid = RelationGetRelid(rel);
	TrackedTable *table;

	table = feedpub_cache_enter(&tables, relid);
	if (!table->head.valid)
		learn_table(table, rel);
	return table;
}

/*
 * The name of a table's feed, for messages; the table's own if it is of none.
 */
static const char *
feed_name(const TrackedTable *table, Relation rel)
{
	char	   *name = get_rel_name(table->head.feed);

	return name != NULL ? name : RelationGetRelationName(rel);
}

/*
 * Look up what the triggers need to know of a table.  The writer's statement
 * holds a lock on it, so its definition cannot change meanwhile.  The registry
 * can: then the entry serves this row only.  So does that of a table that cannot
 * be stamped: a sequence that is made again is not announced to the table's
 * other sessions.
 */
static void
learn_table(TrackedTable *table, Relation rel)
{
	Oid			relid = RelationGetRelid(rel);
	Oid			stamp_row = feedpub_relation_function("_stamp_row", 0, NULL);
	const Trigger *trigger = NULL;
	FeedpubKey	key;
	Oid			keyid;
	uint64		before = feedpub_cache_begin();

	table->xid_attno = get_attnum(relid, FEEDPUB_XID_COLUMN);
	table->pos_attno = get_attnum(relid, FEEDPUB_POS_COLUMN);
	table->head.feed = feedpub_partition_feed(relid);
	table->id_attno = InvalidAttrNumber;
	table->since = 0;
	table->head.seqid = InvalidOid;
	if (OidIsValid(table->head.feed))
		table->head.seqid = feedpub_relation_sequence(table->head.feed);
	table->can_stamp = table->xid_attno != InvalidAttrNumber &&
		get_atttype(relid, table->xid_attno) == XID8OID &&
		OidIsValid(table->head.seqid) &&
		table->pos_attno != InvalidAttrNumber &&
		get_atttype(relid, table->pos_attno) == INT8OID;

	/* if the registry has no row, no deletes until feed_repair() */
	if (OidIsValid(feedpub_relation_trigger(rel, "_stamp_message")))
	{
		AttrNumber	id_attno = get_attnum(relid, "message_id");
		Oid			type = get_atttype(relid, id_attno);

		/* an id is longer than a limit may be */
		if (type == TEXTOID || (type == VARCHAROID && TupleDescAttr(RelationGetDescr(rel), id_attno - 1)->atttypmod < 0))
			table->id_attno = id_attno;
		table->deletes = false;
		table->nkeys = 0;
		table->head.valid = feedpub_cache_end(before) && table->can_stamp;
		return;
	}
	if (table->head.feed != relid)
	{
		feedpub_registry_stored_key(table->head.feed, &key, &table->deletes);
		feedpub_key_of_partition(table->head.feed, relid, &key);
		keyid = InvalidOid;
		table->since = feedpub_partition_since(table->head.feed, rel);
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
	table->head.valid = feedpub_cache_end(before) && table->can_stamp;
}

/*
 * The columns to compare: those named in the trigger's arguments, or all.  If
 * one of them is gone, renamed or computed from others, all are compared: one
 * stamp too many does no harm.
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
 * Does a column differ between two versions of a row, which may have other
 * numbers for it?  Values that are stored
 * out of line are not read: an UPDATE that does not write one keeps its
 * pointer, and one that writes it anew counts as a change.
 */
bool
feedpub_stamp_values_differ(TupleTableSlot *a, TupleTableSlot *b, AttrNumber aattno,
							AttrNumber battno)
{
	Form_pg_attribute att = TupleDescAttr(a->tts_tupleDescriptor, aattno - 1);
	bool		anull;
	bool		bnull;
	Datum		avalue = slot_getattr(a, aattno, &anull);
	Datum		bvalue = slot_getattr(b, battno, &bnull);

	if (anull || bnull)
		return anull != bnull;
	if (datumIsEqual(avalue, bvalue, att->attbyval, att->attlen))
		return false;
	return (att->attlen == -1 &&
			(VARATT_IS_EXTERNAL(DatumGetPointer(avalue)) ||
			 VARATT_IS_EXTERNAL(DatumGetPointer(bvalue)))) ||
		!datum_image_eq(avalue, bvalue, att->attbyval, att->attlen);
}

static bool
has_changed(const TrackedTable *table, TupleTableSlot *old_slot,
			TupleTableSlot *new_slot)
{
	int			natts = old_slot->tts_tupleDescriptor->natts;

	for (int i = 0; i < natts; i++)
	{
		if (table->published[i] && feedpub_stamp_values_differ(old_slot, new_slot, i + 1, i + 1))
			return true;
	}
	return false;
}

/*
 * Leave a tombstone for a row.  If its key is not known, because the feed has
 * lost a column of it, or the column may be null by now, the writer goes on,
 * and readers are refused (lost.c).
 */
static void
leave_tombstone(const TrackedTable *table, Relation rel, TupleTableSlot *slot)
{
	FullTransactionId xid = GetTopFullTransactionId();
	bool		has_key = table->nkeys > 0 && table->can_stamp;
	Datum		key;

	for (int i = 0; i < table->nkeys; i++)
		has_key = has_key && !slot_attisnull(slot, table->keys[i]);
	if (!has_key)
	{
		feedpub_lost_note(table->head.feed);
		return;
	}
	key = feedpub_key_texts(RelationGetDescr(rel), table->nkeys, table->keys, slot);
	feedpub_tombstone_write(table->head.feed, xid,
							feedpub_position_take(table->head.feed, table->head.seqid, 1), key);
	feedpub_wake_note(table->head.feed);
}
