/*-------------------------------------------------------------------------
 *
 * capture.c
 *	  The triggers of captured tables, which write changes into change feeds.
 *
 * A captured table has an AFTER ROW trigger for each of its change feeds, which
 * writes an entry for each row that is inserted, updated or deleted (change.c
 * says in which order), and one for TRUNCATE.  They are ENABLE ALWAYS: what
 * logical replication brings is captured too.  Partitions have clones.
 *
 * What is captured, into which feed and by which key, is in feedpub._capture.
 * The trigger's argument names a row there: of this table, or of one of which it
 * is a partition.
 *
 * A writer never fails because of that, but as its own INSERT into a table might:
 * no space, a cancel.  JSON is made when the row is written.  Where a type's
 * output function may fail, or a value may be too large, it is made in a
 * subtransaction, and the entry has the error.  If the feed, the capture or the
 * key is not there, or the feed cannot take the entry, the change is lost, which
 * is noted (feed/lost.c), and readers are refused.
 *
 * The feed is locked as by an INSERT, before what is known of it is looked at.
 * So it is not altered while it is written, and if it has been, this is known.
 *
 * JSON does not depend on the writer's settings: times are in UTC, and settings
 * that other values depend on are set: of types that we know, if they differ.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/relation.h"
#include "access/table.h"
#include "catalog/pg_class.h"
#include "catalog/pg_trigger.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/bytea.h"
#include "utils/float.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "write/write.h"

PG_FUNCTION_INFO_V1(feedpub_capture_row);
PG_FUNCTION_INFO_V1(feedpub_capture_truncate);

/* columns of feedpub._capture */
#define ANUM_CAPTURE_RELATION		1
#define ANUM_CAPTURE_FEED			2
#define ANUM_CAPTURE_KEY			3
#define ANUM_CAPTURE_KEY_ATTNUMS	4
#define ANUM_CAPTURE_COLUMNS		5
#define ANUM_CAPTURE_COLUMN_ATTNUMS	6
#define ANUM_CAPTURE_OLD			7
#define ANUM_CAPTURE_NUMBERS_OF		8
#define ANUM_CAPTURE_TRIGGER		9
#define NATTS_CAPTURE				9

/* What is known of a trigger, until the table or the feed is altered. */
typedef struct Capture
{
	FeedpubCached head;			/* by the trigger's OID */
	LocalTransactionId locked_by;	/* that has its feed locked */
	bool		can_write;
	Oid			root;			/* the captured table, maybe of this partition */
	Datum		relation;		/* its name, a text */
	bool		with_old;
	bool		is_safe;		/* no output function fails */
	FeedpubJsonShape key;
	FeedpubJsonShape row;		/* in the order of the captured table */
	FeedpubJsonValues *values;
	FeedpubChangeFeed to;
	MemoryContext context;		/* of all that */
	MemoryContext scratch;		/* of values being written */
} Capture;

/* A change of a row that is being made an entry. */
typedef struct Change
{
	Capture    *capture;
	Capture    *old_capture;	/* of the partition that had the row */
	TupleTableSlot *old;		/* NULL: there is none */
	TupleTableSlot *new;
	bool		key_changed;
	bool	   *skip;			/* columns that have not changed */
	FeedpubChangeColumn column; /* that is being made */
	int64		statement;		/* of a truncate */
	Datum		values[FEEDPUB_CHANGE_NCOLUMNS];
	bool		nulls[FEEDPUB_CHANGE_NCOLUMNS];
} Change;

static FeedpubCache captures = {"feedpub captures", sizeof(Capture)};

/* the newest command that has given a key to a row, and its transaction */
static LocalTransactionId newest_lxid = InvalidLocalTransactionId;
static CommandId newest;

static Capture *find_capture(Relation rel, const Trigger *trigger);
static Capture *capture_in(Relation rel, const Trigger *trigger, const Capture *capture);
static bool can_write(const Capture *capture);
static bool find_row(const Trigger *trigger, Oid *root, Datum **values, bool **nulls);
static bool learn(Capture *capture, Relation rel, const Trigger *trigger);
static bool find_columns(Relation rel, Oid root, Datum names, Datum numbers,
						 bool numbers_hold, int *n, AttrNumber *attnos);
static int	all_columns(Relation rel, Oid root, AttrNumber *attnos);
static void tell_again(Capture *capture, Relation rel, TupleTableSlot *version,
					   CommandId command, List **versions);
static void write_change(Change *change, const char *op, FeedpubWritten *written);
static void make_json(void *arg);
static void leave_delete(TupleTableSlot *slot, void *capture);

/*
 * feedpub._capture_row() returns trigger
 *
 * AFTER INSERT OR UPDATE OR DELETE, FOR EACH ROW, on a captured table: writes
 * the change into the feed that the trigger names.  An UPDATE that changes none
 * of the captured columns writes nothing.
 */
Datum
feedpub_capture_row(PG_FUNCTION_ARGS)
{
	TriggerData *trigdata = feedpub_stamp_trigger(fcinfo, TRIGGER_EVENT_AFTER, FEEDPUB_BY_INSERT | FEEDPUB_BY_UPDATE | FEEDPUB_BY_DELETE, 0,
												  "_capture_row", "row trigger after INSERT, UPDATE or DELETE");
	bool		is_insert = TRIGGER_FIRED_BY_INSERT(trigdata->tg_event);
	bool		is_delete = TRIGGER_FIRED_BY_DELETE(trigdata->tg_event);
	Relation	rel = trigdata->tg_relation;
	Relation	old_rel = rel;
	HeapTuple	old = is_insert ? NULL : trigdata->tg_trigtuple;
	HeapTuple	new = is_delete ? NULL :
		is_insert			  ? trigdata->tg_trigtuple :
								  trigdata->tg_newtuple;
	Capture    *capture = find_capture(rel, trigdata->tg_trigger);
	Change		change = {.capture = capture, .old_capture = capture};
	FeedpubWritten written = {.pos = 0};
	FeedpubMoved *moved;
	bool		differs = true;
	CommandId	command;
	List	   *versions = NIL;

	if (!can_write(capture))
		PG_RETURN_POINTER(NULL);
	change.old = is_insert ? NULL : trigdata->tg_trigslot;
	change.new = is_delete ? NULL :
		is_insert		   ? trigdata->tg_trigslot :
							 trigdata->tg_newslot;
	if (is_insert && (moved = feedpub_change_end_move(&capture->to, capture->root, new)) != NULL)
	{
		old_rel = table_open(moved->partition, NoLock);
		old = moved->old;
		if ((change.old_capture = capture_in(old_rel, trigdata->tg_trigger, capture)) == NULL)
			change.old_capture = capture;
		change.old = MakeSingleTupleTableSlot(RelationGetDescr(old_rel), &TTSOpsHeapTuple);
		ExecStoreHeapTuple(old, change.old, false);
	}
	if (change.old != NULL && change.new != NULL)
	{
		const Capture *from = change.old_capture;

		differs = false;
		slot_getallattrs(change.old);
		slot_getallattrs(change.new);
		change.skip = palloc(Max(capture->row.natts, 1) * sizeof(bool));
		for (int i = 0; i < capture->row.natts; i++)
		{
			change.skip[i] = !feedpub_stamp_values_differ(change.old, change.new, from->row.columns[i].attno,
														  capture->row.columns[i].attno);
			differs = differs || !change.skip[i];
		}
		for (int i = 0; i < capture->key.natts; i++)
			change.key_changed = change.key_changed ||
				feedpub_stamp_values_differ(change.old, change.new, from->key.columns[i].attno,
											capture->key.columns[i].attno);
		differs = differs || change.key_changed;
	}
	if (differs)
		write_change(&change, change.old == NULL ? "insert" : change.new == NULL ? "delete" :
																				   "update",
					 &written);
	feedpub_change_link(&capture->to, old_rel, old, rel, new, &written, &versions);
	if (newest_lxid != feedpub_own_lxid())
		newest = FirstCommandId;
	newest_lxid = feedpub_own_lxid();
	command = new == NULL					   ? HeapTupleHeaderGetCmax(old->t_data) :
		HeapTupleHeaderXminFrozen(new->t_data) ? newest :
												 HeapTupleHeaderGetCmin(new->t_data);
	if (command < newest)
	{
		int			nversions = list_length(versions);

		if (old != NULL && (new == NULL || change.key_changed))
			tell_again(change.old_capture, old_rel, change.old, command, &versions);
		for (int i = 0; i < nversions; i++)
		{
			FeedpubVersion *version = list_nth(versions, i);
			Relation	table = try_relation_open(version->table, AccessShareLock);
			Capture    *of_table;
			TupleTableSlot *slot;

			if (table == NULL)
				continue;
			of_table = capture_in(table, trigdata->tg_trigger, capture);
			slot = table_slot_create(table, NULL);
			if (of_table != NULL && of_table->can_write && table->rd_rel->relfilenode == version->file &&
				table_tuple_fetch_row_version(table, &version->tid, SnapshotAny, slot))
				tell_again(of_table, table, slot, command, &versions);
			ExecDropSingleTupleTableSlot(slot);
			relation_close(table, NoLock);
		}
	}
	else if (new != NULL && (old == NULL || change.key_changed))
		newest = command;
	if (is_delete && HeapTupleHeaderIndicatesMovedPartitions(old->t_data))
		feedpub_changes_begin_move(&capture->to, capture->root, rel, old, &written);
	if (old_rel != rel)
	{
		ExecDropSingleTupleTableSlot(change.old);
		table_close(old_rel, NoLock);
	}
	PG_RETURN_POINTER(NULL);
}

/*
 * What is known of the same trigger of another partition; NULL if that has none.
 */
static Capture *
capture_in(Relation rel, const Trigger *trigger, const Capture *capture)
{
	for (int i = 0; rel->trigdesc != NULL && i < rel->trigdesc->numtriggers; i++)
	{
		const Trigger *other = &rel->trigdesc->triggers[i];
		Capture    *found;

		if (other->tgfoid == trigger->tgfoid && other->tgnargs == 1 && strcmp(other->tgargs[0], trigger->tgargs[0]) == 0 &&
			(found = find_capture(rel, other))->root == capture->root && found->head.feed == capture->head.feed)
			return found;
	}
	return NULL;
}

/*
 * What is known of a trigger.  Its feed is locked.
 */
static Capture *
find_capture(Relation rel, const Trigger *trigger)
{
	Capture    *capture = feedpub_cache_enter(&captures, trigger->tgoid);
	Datum	   *values;
	bool	   *nulls;

	/* that of a trigger never changes */
	if (!OidIsValid(capture->head.feed) && find_row(trigger, &capture->root, &values, &nulls))
		capture->head.feed = DatumGetObjectId(values[ANUM_CAPTURE_FEED - 1]);
	if (!OidIsValid(capture->head.feed))
		return capture;
	feedpub_position_lock(capture->head.feed, &capture->locked_by);
	if (!capture->head.valid)
	{
		uint64		before = feedpub_cache_begin();
		MemoryContext oldcontext;

		if (capture->context == NULL)
			capture->context = AllocSetContextCreate(TopMemoryContext, "feedpub capture", ALLOCSET_DEFAULT_SIZES);
		MemoryContextReset(capture->context);
		oldcontext = MemoryContextSwitchTo(capture->context);
		capture->scratch = AllocSetContextCreate(capture->context, "feedpub captured values", ALLOCSET_DEFAULT_SIZES);
		capture->can_write = learn(capture, rel, trigger);
		MemoryContextSwitchTo(oldcontext);
		capture->head.valid = feedpub_cache_end(before) && capture->can_write;
	}
	return capture;
}

/*
 * Can changes be written?  Else they are lost, which is noted, unless the capture
 * or the feed has been removed.
 */
static bool
can_write(const Capture *capture)
{
	if (!capture->can_write && get_rel_name(capture->head.feed) != NULL)
		feedpub_lost_note(capture->head.feed);
	return capture->can_write;
}

/*
 * Find the row of a trigger's capture, and the table that is captured: that of the
 * trigger of which this one is a clone, or a clone's clone.  (A partition may have
 * a trigger of its own with the same argument, which the feed of another schema
 * gave it before it was attached.)
 */
static bool
find_row(const Trigger *trigger, Oid *root, Datum **values, bool **nulls)
{
	Relation	triggers = table_open(TriggerRelationId, AccessShareLock);
	Relation	table = table_open(feedpub_registry_table("_capture"), AccessShareLock);
	bool		found = false;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	for (Oid oid = trigger->tgoid; OidIsValid(oid);)
	{
		ScanKeyInit(&key, Anum_pg_trigger_oid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(oid));
		scan = systable_beginscan(triggers, TriggerOidIndexId, true, NULL, 1, &key);
		tuple = systable_getnext(scan);
		oid = InvalidOid;
		if (HeapTupleIsValid(tuple))
		{
			*root = ((Form_pg_trigger) GETSTRUCT(tuple))->tgrelid;
			oid = ((Form_pg_trigger) GETSTRUCT(tuple))->tgparentid;
		}
		systable_endscan(scan);
	}
	table_close(triggers, AccessShareLock);
	feedpub_registry_check_columns(table, NATTS_CAPTURE);
	*values = palloc(RelationGetDescr(table)->natts * sizeof(Datum));
	*nulls = palloc(RelationGetDescr(table)->natts * sizeof(bool));
	ScanKeyInit(&key, ANUM_CAPTURE_RELATION, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(*root));
	scan = systable_beginscan(table, feedpub_registry_table("_capture_pkey"), true, NULL, 1, &key);
	while (!found && trigger->tgnargs == 1 && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		heap_deform_tuple(heap_copytuple(tuple), RelationGetDescr(table), *values, *nulls);
		found = strcmp(NameStr(*DatumGetName((*values)[ANUM_CAPTURE_TRIGGER - 1])), trigger->tgargs[0]) == 0;
	}
	systable_endscan(scan);
	table_close(table, AccessShareLock);
	return found;
}

/*
 * Look that up.  Returns false if changes cannot be written, or if a trigger has
 * been enabled by ALTER TABLE ... ENABLE TRIGGER: then it was disabled before, and
 * what was changed meanwhile is missing.  (ENABLE ALWAYS leaves no trace.)
 */
static bool
learn(Capture *capture, Relation rel, const Trigger *trigger)
{
	Oid			truncate = feedpub_relation_function("_capture_truncate", 0, NULL);
	Datum	   *values;
	bool	   *nulls;
	bool		found;
	AttrNumber	keys[INDEX_MAX_KEYS];
	AttrNumber	attnos[MaxHeapAttributeNumber];
	int			nkeys = INDEX_MAX_KEYS;
	int			natts = MaxHeapAttributeNumber;

	capture->head.table = RelationGetRelid(rel);
	capture->head.root = InvalidOid;
	found = find_row(trigger, &capture->root, &values, &nulls);
	for (int i = 0; i < rel->trigdesc->numtriggers; i++)
	{
		const Trigger *other = &rel->trigdesc->triggers[i];

		if (other->tgenabled != TRIGGER_FIRES_ALWAYS && (other->tgoid == trigger->tgoid || other->tgfoid == truncate))
			return false;
	}
	if (!found || !feedpub_change_learn(&capture->to, capture->head.feed))
		return false;
	capture->head.seqid = capture->to.seqid;
	capture->head.root = capture->root;
	capture->with_old = DatumGetBool(values[ANUM_CAPTURE_OLD - 1]);
	found = DatumGetObjectId(values[ANUM_CAPTURE_NUMBERS_OF - 1]) == capture->root;
	if (!find_columns(rel, capture->root, values[ANUM_CAPTURE_KEY - 1],
					  values[ANUM_CAPTURE_KEY_ATTNUMS - 1], found, &nkeys, keys))
		return false;
	if (nulls[ANUM_CAPTURE_COLUMNS - 1])
		natts = all_columns(rel, capture->root, attnos);
	else if (!find_columns(rel, capture->root, values[ANUM_CAPTURE_COLUMNS - 1],
						   values[ANUM_CAPTURE_COLUMN_ATTNUMS - 1], found, &natts, attnos) &&
			 !found)
		return false;			/* restored, after a column was renamed */
	capture->relation = CStringGetTextDatum(feedpub_relation_name(capture->root));
	capture->values = feedpub_jsonvalue_begin(true);
	feedpub_jsonvalue_shape(capture->values, RelationGetDescr(rel), nkeys, keys, &capture->key);
	feedpub_jsonvalue_shape(capture->values, RelationGetDescr(rel), natts, attnos, &capture->row);
	capture->is_safe = feedpub_jsonvalue_is_safe(&capture->key) &&
		feedpub_jsonvalue_is_safe(&capture->row);
	return true;
}

/*
 * The numbers that columns of the captured table have in rel, a partition of it
 * or itself.  Returns false if one of them is not there.
 */
static bool
find_columns(Relation rel, Oid root, Datum names, Datum numbers,
			 bool numbers_hold, int *n, AttrNumber *attnos)
{
	ArrayType  *list = DatumGetArrayTypeP(names);
	const NameData *name = (const NameData *) ARR_DATA_PTR(list);
	const int16 *number = (const int16 *) ARR_DATA_PTR(DatumGetArrayTypeP(numbers));
	int			nnames = ArrayGetNItems(ARR_NDIM(list), ARR_DIMS(list));
	int			nfound = 0;

	for (int i = 0; i < nnames && nfound < *n; i++)
	{
		const char *column = numbers_hold ? get_attname(root, number[i], true) : NameStr(name[i]);
		AttrNumber	attno = column == NULL ? InvalidAttrNumber :
											 get_attnum(RelationGetRelid(rel), column);

		if (attno > 0)
			attnos[nfound++] = attno;
	}
	*n = nfound;
	return nfound == nnames && nnames > 0;
}

/*
 * The same of all columns, but for those of a stamp, and those that are computed
 * when they are read.  Returns how many there are.
 */
static int
all_columns(Relation rel, Oid root, AttrNumber *attnos)
{
	bool		is_feed = OidIsValid(feedpub_partition_feed(root));
	int			n = 0;
	const char *name;

	for (AttrNumber i = 1; (name = get_attname(root, i, true)) != NULL; i++)
	{
		AttrNumber	attno = get_attnum(RelationGetRelid(rel), name);

		if (attno <= 0 || TupleDescAttr(RelationGetDescr(rel), attno - 1)->attgenerated == 'v' ||
			(is_feed && (strcmp(name, FEEDPUB_XID_COLUMN) == 0 || strcmp(name, FEEDPUB_POS_COLUMN) == 0)))
			continue;
		attnos[n++] = attno;
	}
	return n;
}

/*
 * If the key that a version had has been given to another row, by a later command,
 * write that row again (change.c).  It is none of the given versions, which are of
 * the same row, and is added to them.
 */
static void
tell_again(Capture *capture, Relation rel, TupleTableSlot *version, CommandId command,
		   List **versions)
{
	ListCell   *lc;

	foreach(lc, RelationGetIndexList(rel))
	{
		Relation	index = index_open(lfirst_oid(lc), AccessShareLock);
		Form_pg_index form = index->rd_index;
		bool		is_key = form->indnkeyatts == capture->key.natts && feedpub_key_problem(rel, index) == NULL;
		Datum		values[INDEX_MAX_KEYS];
		TupleTableSlot *found = NULL;
		bool		isnull;

		for (int i = 0; i < form->indnkeyatts && is_key; i++)
		{
			is_key = false;
			for (int k = 0; k < capture->key.natts; k++)
				is_key = is_key || capture->key.columns[k].attno == form->indkey.values[i];
			if (is_key)
				values[i] = slot_getattr(version, form->indkey.values[i], &isnull);
		}
		if (is_key && (found = feedpub_key_find(rel, index, values, SnapshotSelf)) != NULL)
		{
			bool		should_free;
			bool		is_known = false;
			HeapTupleHeader row = ExecFetchSlotHeapTuple(found, false, &should_free)->t_data;
			Change		change = {.capture = capture, .old_capture = capture, .new = found};
			FeedpubWritten written;

			for (int i = 0; i < list_length(*versions); i++)
			{
				FeedpubVersion *known = list_nth(*versions, i);

				is_known = is_known || (known->table == RelationGetRelid(rel) && ItemPointerEquals(&known->tid, &found->tts_tid));
			}
			if (!is_known && TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(row)) &&
				HeapTupleHeaderGetCmin(row) > command)
			{
				FeedpubVersion *told = palloc0_object(FeedpubVersion);

				write_change(&change, "insert", &written);
				told->table = RelationGetRelid(rel);
				told->tid = found->tts_tid;
				*versions = lappend(*versions, told);
			}
			ExecDropSingleTupleTableSlot(found);
		}
		index_close(index, AccessShareLock);
		if (is_key)
			break;
	}
}

/*
 * Write a change as an entry.  If the JSON of a column cannot be made, the entry
 * has the error, and the other columns.
 */
static void
write_change(Change *change, const char *op, FeedpubWritten *written)
{
	Capture    *capture = change->capture;
	TupleTableSlot *old = change->old;
	TupleTableSlot *new = change->new;
	bool		is_safe;
	bool		pins = !capture->is_safe || extra_float_digits < 1 ||
		bytea_output != BYTEA_OUTPUT_HEX || IntervalStyle != INTSTYLE_POSTGRES;
	int			pinned = pins ? feedpub_key_pin_settings() : -1;

	if (old != NULL)
		slot_getallattrs(old);
	if (new != NULL)
		slot_getallattrs(new);
	memset(change->nulls, true, sizeof(change->nulls));
	is_safe = capture->is_safe &&
		(old == NULL || feedpub_jsonvalue_is_small(&change->old_capture->row, old->tts_values, old->tts_isnull)) &&
		(new == NULL || feedpub_jsonvalue_is_small(&capture->row, new->tts_values, new->tts_isnull));
	for (change->column = FEEDPUB_CHANGE_KEY; change->column <= FEEDPUB_CHANGE_OLD; change->column++)
	{
		char	   *failed = NULL;

		if (is_safe)
			make_json(change);
		else
			failed = feedpub_attempt(make_json, change);
		if (failed == NULL)
			continue;
		MemoryContextReset(capture->scratch);
		if (!change->nulls[FEEDPUB_CHANGE_ERROR])
			continue;
		change->values[FEEDPUB_CHANGE_ERROR] = CStringGetTextDatum(failed);
		change->nulls[FEEDPUB_CHANGE_ERROR] = false;
	}
	feedpub_key_unpin(pinned);
	change->values[FEEDPUB_CHANGE_OP] = CStringGetTextDatum(op);
	change->values[FEEDPUB_CHANGE_RELATION] = capture->relation;
	change->nulls[FEEDPUB_CHANGE_OP] = change->nulls[FEEDPUB_CHANGE_RELATION] = false;
	if (change->statement != 0)
	{
		change->values[FEEDPUB_CHANGE_STATEMENT] = Int64GetDatum(change->statement);
		change->nulls[FEEDPUB_CHANGE_STATEMENT] = false;
	}
	feedpub_change_write(&capture->to, change->values, change->nulls, written);
}

/*
 * Make columns of the entry, from change->column on.
 */
static void
make_json(void *arg)
{
	Change	   *change = arg;

	for (; change->column <= FEEDPUB_CHANGE_OLD; change->column++)
	{
		bool		is_new = change->new != NULL &&
			(change->column == FEEDPUB_CHANGE_KEY || change->column == FEEDPUB_CHANGE_ROW);
		Capture    *capture = is_new ? change->capture : change->old_capture;
		TupleTableSlot *slot = is_new ? change->new : change->old;
		bool		is_old = change->column == FEEDPUB_CHANGE_OLD;
		StringInfoData out;

		if (slot == NULL || (is_old && !capture->with_old) ||
			(change->column == FEEDPUB_CHANGE_ROW && !is_new) ||
			(change->column == FEEDPUB_CHANGE_OLD_KEY && !change->key_changed))
			continue;
		initStringInfo(&out);
		appendStringInfoSpaces(&out, VARHDRSZ);
		feedpub_jsonvalue_limit(capture->values, &out);
		feedpub_jsonvalue_object(capture->values, &out, change->column <= FEEDPUB_CHANGE_OLD_KEY ? &capture->key : &capture->row,
								 is_old ? change->skip : NULL, slot->tts_values, slot->tts_isnull, change->capture->scratch);
		MemoryContextReset(change->capture->scratch);
		SET_VARSIZE(out.data, out.len);
		change->values[change->column] = PointerGetDatum(out.data);
		change->nulls[change->column] = false;
	}
}

/*
 * feedpub._capture_truncate() returns trigger
 *
 * BEFORE TRUNCATE, FOR EACH STATEMENT, on a captured table: writes a truncate
 * into each of its change feeds.  Tables that one statement truncates have one
 * number in a feed, in column statement.  The entry comes after those of all rows that it
 * removes: the statement has locked all its tables by now.
 *
 * The same on a partition: writes a delete for each row, unless the captured
 * table is being truncated as a whole (see truncate.c).
 */
Datum
feedpub_capture_truncate(PG_FUNCTION_ARGS)
{
	TriggerData *trigdata = feedpub_stamp_trigger(fcinfo, TRIGGER_EVENT_BEFORE, 0, FEEDPUB_BY_TRUNCATE,
												  "_capture_truncate", "trigger before TRUNCATE");
	Relation	rel = trigdata->tg_relation;
	Oid			funcid = feedpub_relation_function("_capture_row", 0, NULL);

	for (int i = 0; i < rel->trigdesc->numtriggers; i++)
	{
		const Trigger *trigger = &rel->trigdesc->triggers[i];
		Capture    *capture;
		Change		change = {0};
		FeedpubWritten written;
		int64	   *number;

		if (trigger->tgfoid != funcid)
			continue;
		capture = find_capture(rel, trigger);
		if (!can_write(capture))
			continue;
		if (capture->root != RelationGetRelid(rel))
		{
			if (rel->rd_rel->relkind == RELKIND_RELATION &&
				feedpub_truncate_note(capture->root, false) == NULL)
				feedpub_truncate_each(rel, leave_delete, capture);
			continue;
		}
		(void) feedpub_truncate_note(capture->root, true);
		number = feedpub_truncate_note(capture->to.relid, true);
		if (*number == 0)
			*number = feedpub_position_take(capture->to.relid, capture->to.seqid, 1);
		change.capture = change.old_capture = capture;
		change.statement = *number;
		write_change(&change, "truncate", &written);
	}
	PG_RETURN_POINTER(NULL);
}

static void
leave_delete(TupleTableSlot *slot, void *capture)
{
	Change		change = {.capture = capture, .old_capture = capture, .old = slot};
	FeedpubWritten written;

	write_change(&change, "delete", &written);
}
