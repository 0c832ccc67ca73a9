/*-------------------------------------------------------------------------
 *
 * restamp.c
 *	  Giving rows a new stamp where they lie, some at a time.
 *
 * Only the stamp of a row changes.  So the executor is not asked: no trigger
 * of the owner's fires, not even one that fires always, no constraint is
 * checked and no row security applies; a row is locked, updated and entered
 * into the indexes here.  Unique indexes are not asked either whether the key
 * is there already, for it is, in the version that is replaced.  Whoever
 * inserts that key meanwhile finds the old version, and waits for us, or the
 * new one.  (What has the stamp in a constraint or a generated column is
 * refused: feedpub_restamp_obstacle.)
 *
 * The table is its owner's, and so is the code in his indexes' expressions,
 * while the worker is a superuser: everything runs as the owner, in a context
 * in which he cannot become anybody else.
 *
 * Rows without a stamp are looked for by their place in the table, those with
 * an old one by their place in the index on it.  A row does not move before it
 * has been found: any UPDATE of a row without a stamp gives it one (change.c),
 * and one that keeps a stamp keeps it, so that the new version is in the index
 * at the same place.  In the table's order it would not be so: the new version
 * may lie before a place that has been reached.  Take the step that gets to a
 * row's place, and its snapshot, which is taken after all steps before it have
 * ended.  It sees the row there; or the row has been stamped anew since, or
 * deleted.  A row that somebody is changing is passed, but noted, and gone
 * back to: it may stay where it is, if he rolls back.
 *
 * Nothing is waited for: rows are locked if that can be done at once.  The
 * position is taken with the row locked, as by the trigger, so the positions
 * of one row's changes are in the order in which they were made.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/skey.h"
#include "access/sysattr.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/pg_attribute.h"
#include "commands/sequence.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "nodes/bitmapset.h"
#include "optimizer/optimizer.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "feedpub.h"

/* the table's pages and rows in a place */
#define TID_MASK	INT64CONST(0xffffffffffff)

/* how many entries of the index are looked at between two looks at the clock */
#define ENTRIES_AT_ONCE	100

/* One step. */
typedef struct Step
{
	Relation	rel;
	Oid			feed;			/* whose rows these are */
	FeedpubFeed part;			/* the same, or one of its partitions */
	Oid			seqid;
	FullTransactionId xid;
	uint64		next_xid;		/* stamps from here on are another server's */
	Snapshot	snapshot;
	CommandId	cid;
	FeedpubRestamp *work;
	int			nrows;			/* how many have been stamped */
	int			max_rows;
	TimestampTz until;			/* 0: takes as long as it takes */
	EState	   *estate;
	ResultRelInfo *indexes;
	TupleTableSlot *old_slot;
	TupleTableSlot *new_slot;
	MemoryContext row_context;
} Step;

static void begin_step(Step *step, Oid feed, Relation rel,
					   FeedpubRestamp *work, int max_rows, int max_ms);
static void end_step(Step *step);
static bool is_over(const Step *step);
static void find_unstamped(Step *step);
static void find_stamped(Step *step);
static void restamp_row(Step *step, ItemPointer tid, FeedpubPlace place);
static void leave_row(FeedpubRestamp *work, FeedpubPlace place);
static void enter_row(Step *step);
static bool has_stamp(Relation rel, Node *expression);

/*
 * Is one place behind another?
 */
bool
feedpub_restamp_is_behind(FeedpubPlace a, FeedpubPlace b)
{
	return a.xid > b.xid || (a.xid == b.xid && a.pos > b.pos);
}

/*
 * Stamp up to max_rows rows of a table that is a feed, or of a part of one,
 * in up to max_ms milliseconds (0: without limit); work says which, and how
 * far that has got.  Returns how many.  The caller holds RowExclusiveLock on
 * the table, and has looked for obstacles.
 */
int
feedpub_restamp_some(Oid feed, Relation rel, FeedpubRestamp *work,
					 int max_rows, int max_ms)
{
	Step		step = {0};
	FeedpubRole caller;

	feedpub_role_begin_owner(rel->rd_rel->relowner, &caller);
	begin_step(&step, feed, rel, work, max_rows, max_ms);
	if (work->stamped)
		find_stamped(&step);
	else
		find_unstamped(&step);
	end_step(&step);

	feedpub_role_end(&caller);
	return step.nrows;
}

static void
begin_step(Step *step, Oid feed, Relation rel, FeedpubRestamp *work,
		   int max_rows, int max_ms)
{
	step->rel = rel;
	step->feed = feed;
	step->part.relid = RelationGetRelid(rel);
	step->part.indexid = feedpub_guard_index(rel);
	step->part.xid_attno = get_attnum(RelationGetRelid(rel), FEEDPUB_XID_COLUMN);
	step->part.pos_attno = get_attnum(RelationGetRelid(rel), FEEDPUB_POS_COLUMN);
	step->seqid = feedpub_guard_sequence(feed);
	if (!OidIsValid(step->part.indexid) || !OidIsValid(step->seqid))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("rows of feed \"%s\" cannot be stamped",
						RelationGetRelationName(rel)),
				 errhint("Run feed_check() to see what is missing.")));

	/* logical replication may have to know which row changes */
	CheckCmdReplicaIdentity(rel, CMD_UPDATE);

	step->work = work;
	step->max_rows = max_rows;
	if (max_ms > 0)
		step->until = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), max_ms);
	step->estate = CreateExecutorState();
	step->indexes = makeNode(ResultRelInfo);
	InitResultRelInfo(step->indexes, rel, 1, NULL, 0);
	ExecOpenIndices(step->indexes, false);
	step->old_slot = table_slot_create(rel, NULL);
	step->new_slot = MakeSingleTupleTableSlot(RelationGetDescr(rel),
											  &TTSOpsHeapTuple);
	step->row_context = AllocSetContextCreate(CurrentMemoryContext,
											  "feedpub restamped row",
											  ALLOCSET_DEFAULT_SIZES);

	/* the id comes before the positions, the snapshot after the lock */
	step->xid = GetTopFullTransactionId();
	step->cid = GetCurrentCommandId(true);
	step->snapshot = RegisterSnapshot(GetLatestSnapshot());

	/* whoever stamped a row that the snapshot sees had an id below this */
	step->next_xid = U64FromFullTransactionId(ReadNextFullTransactionId());
}

static void
end_step(Step *step)
{
	UnregisterSnapshot(step->snapshot);
	MemoryContextDelete(step->row_context);
	ExecDropSingleTupleTableSlot(step->new_slot);
	ExecDropSingleTupleTableSlot(step->old_slot);
	ExecCloseIndices(step->indexes);
	FreeExecutorState(step->estate);
	if (step->nrows > 0)
	{
		feedpub_stamp_note(step->feed, step->xid);
		CommandCounterIncrement();
	}
}

/*
 * Has the step done its share?
 */
static bool
is_over(const Step *step)
{
	CHECK_FOR_INTERRUPTS();
	return step->nrows >= step->max_rows ||
		(step->until != 0 && GetCurrentTimestamp() >= step->until);
}

/*
 * Rows without a stamp, in the order of their places.  The rows that are put
 * behind the end of the table meanwhile have one.
 */
static void
find_unstamped(Step *step)
{
	FeedpubRestamp *work = step->work;
	FeedpubInitialScan *scan = feedpub_initial_begin(step->rel, step->part.xid_attno,
													 step->snapshot,
													 work->after.pos, 0, NULL);

	do
	{
		FeedpubPlace place = {0};
		TupleTableSlot *slot;
		int			npassed = 0;

		work->ended = !feedpub_initial_next(scan, &slot, &place.pos, &npassed);
		place.pos &= TID_MASK;
		if (work->ended || place.pos > work->to.pos)
		{
			work->ended = true;
			break;
		}
		if (slot != NULL)
			restamp_row(step, &slot->tts_tid, place);
		work->after = place;
	} while (!is_over(step));
	feedpub_initial_end(scan);
}

/*
 * Rows with an old stamp, in the order of the index.
 *
 * A place can have several entries, of which the snapshot sees one, so a step
 * does not stop between them.  Entries of new stamps, among which are those
 * that are made here, are passed without a look at their rows; those of
 * another server are not new, whatever their position.
 */
static void
find_stamped(Step *step)
{
	FeedpubRestamp *work = step->work;
	Relation	index = index_open(step->part.indexid, AccessShareLock);
	TupleTableSlot *slot = table_slot_create(step->rel, NULL);
	FeedpubPlace seen = work->after;
	IndexScanDesc scan;
	ScanKeyData after[2];
	ScanKeyData key = {0};
	ItemPointer tid;
	int			nentries = 0;

	ScanKeyEntryInitialize(&after[0], SK_ROW_MEMBER, 1,
						   BTGreaterStrategyNumber, InvalidOid, InvalidOid,
						   F_XID8CMP, UInt64GetDatum(work->after.xid));
	ScanKeyEntryInitialize(&after[1], SK_ROW_MEMBER | SK_ROW_END, 2,
						   BTGreaterStrategyNumber, InvalidOid, InvalidOid,
						   F_BTINT8CMP, Int64GetDatum(work->after.pos));
	key.sk_flags = SK_ROW_HEADER;
	key.sk_attno = 1;
	key.sk_strategy = BTGreaterStrategyNumber;
	key.sk_argument = PointerGetDatum(after);
	scan = feedpub_index_beginscan(step->rel, index, step->snapshot, 1);
	scan->xs_want_itup = true;
	index_rescan(scan, &key, 1, NULL, 0);

	for (;;)
	{
		FeedpubPlace place;
		bool		isnull;

		tid = index_getnext_tid(scan, ForwardScanDirection);
		if (tid == NULL)
		{
			work->ended = true;
			break;
		}
		place.xid = DatumGetUInt64(index_getattr(scan->xs_itup, 1,
												 RelationGetDescr(index), &isnull));
		place.pos = DatumGetInt64(index_getattr(scan->xs_itup, 2,
												RelationGetDescr(index), &isnull));
		if (feedpub_restamp_is_behind(place, seen))
		{
			work->after = seen; /* that place is done */
			if (feedpub_restamp_is_behind(place, work->to))
			{
				work->ended = true;
				break;
			}
			if ((step->nrows > 0 || ++nentries % ENTRIES_AT_ONCE == 0) &&
				is_over(step))
				break;
			seen = place;
		}
		if ((place.pos <= work->cutoff || place.xid >= step->next_xid) &&
			index_fetch_heap(scan, slot))
			restamp_row(step, &slot->tts_tid, place);
	}
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	index_close(index, NoLock);
}

/*
 * Give the version of a row that the snapshot sees a new stamp; or leave the
 * row, if somebody is at it.
 */
static void
restamp_row(Step *step, ItemPointer tid, FeedpubPlace place)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(step->row_context);
	TM_FailureData failure;
	TM_Result	result = table_tuple_lock(step->rel, tid, step->snapshot,
										  step->old_slot, step->cid,
										  LockTupleNoKeyExclusive,
										  LockWaitSkip, 0, &failure);

	switch (result)
	{
		case TM_Ok:
			enter_row(step);
			break;
		case TM_WouldBlock:
			leave_row(step->work, place);
			break;
		case TM_Updated:
		case TM_SelfModified:
			/* a row without a stamp has got one by that; others may not have */
			if (step->work->stamped)
				leave_row(step->work, place);
			break;
		case TM_Deleted:
			break;
		default:
			elog(ERROR, "could not lock a row of \"%s\": %d",
				 RelationGetRelationName(step->rel), (int) result);
	}
	ExecClearTuple(step->old_slot);
	MemoryContextSwitchTo(oldcontext);
	MemoryContextReset(step->row_context);
}

/*
 * Note that a row is left for another pass.
 */
static void
leave_row(FeedpubRestamp *work, FeedpubPlace place)
{
	if (!work->left || feedpub_restamp_is_behind(work->left_first, place))
		work->left_first = place;
	if (!work->left || feedpub_restamp_is_behind(place, work->left_last))
		work->left_last = place;
	work->left = true;
}

/*
 * Write the new version of the row that is locked, in old_slot, and its
 * entries in the indexes.
 */
static void
enter_row(Step *step)
{
	int			columns[2] = {step->part.xid_attno, step->part.pos_attno};
	Datum		values[INDEX_MAX_KEYS];
	bool		nulls[INDEX_MAX_KEYS] = {false};
	bool		should_free;
	HeapTuple	tuple = ExecFetchSlotHeapTuple(step->old_slot, false, &should_free);
	ItemPointerData tid = step->old_slot->tts_tid;
	FeedpubUpdateIndexes update_indexes;
	ExprContext *econtext = GetPerTupleExprContext(step->estate);
	TM_FailureData failure;
	LockTupleMode lockmode;

	values[0] = FullTransactionIdGetDatum(step->xid);
	values[1] = Int64GetDatum(nextval_internal(step->seqid, false));
	tuple = heap_modify_tuple_by_cols(tuple, RelationGetDescr(step->rel), 2,
									  columns, values, nulls);
	ExecStoreHeapTuple(tuple, step->new_slot, true);
	if (table_tuple_update(step->rel, &tid, step->new_slot, step->cid,
						   step->snapshot, InvalidSnapshot, true, &failure,
						   &lockmode, &update_indexes) != TM_Ok)
		elog(ERROR, "could not update a locked row of \"%s\"",
			 RelationGetRelationName(step->rel));
	step->nrows++;

	/* never HOT: the stamp is in an index */
	econtext->ecxt_scantuple = step->new_slot;
	for (int i = 0; i < step->indexes->ri_NumIndices; i++)
	{
		Relation	index = step->indexes->ri_IndexRelationDescs[i];
		IndexInfo  *info = step->indexes->ri_IndexRelationInfo[i];

		if (index == NULL || !info->ii_ReadyForInserts)
			continue;
		if (info->ii_Predicate != NIL)
		{
			if (info->ii_PredicateState == NULL)
			{
				MemoryContext oldcontext = MemoryContextSwitchTo(step->estate->es_query_cxt);

				info->ii_PredicateState = ExecPrepareQual(info->ii_Predicate,
														  step->estate);
				MemoryContextSwitchTo(oldcontext);
			}
			if (!ExecQual(info->ii_PredicateState, econtext))
				continue;
		}
		FormIndexDatum(info, step->new_slot, step->estate, values, nulls);
		(void) index_insert(index, values, nulls, &step->new_slot->tts_tid,
							step->rel, UNIQUE_CHECK_NO,
							RelationGetRelid(index) != step->part.indexid, info);
	}
	ResetPerTupleExprContext(step->estate);
	ExecClearTuple(step->new_slot);
}

/*
 * What keeps a table's rows from being stamped here: a constraint, unique
 * index or generated column that has the stamp in it, by its name, or NULL.
 */
const char *
feedpub_restamp_obstacle(Relation rel)
{
	TupleDesc	desc = RelationGetDescr(rel);
	AttrNumber	xid_attno = get_attnum(RelationGetRelid(rel), FEEDPUB_XID_COLUMN);
	AttrNumber	pos_attno = get_attnum(RelationGetRelid(rel), FEEDPUB_POS_COLUMN);
	const char *name = NULL;
	ListCell   *lc;

	for (int i = 0; desc->constr != NULL && i < desc->constr->num_check; i++)
	{
		if (has_stamp(rel, stringToNode(desc->constr->check[i].ccbin)))
			return desc->constr->check[i].ccname;
	}
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (!att->attisdropped &&
			att->attgenerated == ATTRIBUTE_GENERATED_STORED &&
			has_stamp(rel, feedpub_catalog_default(rel, i + 1)))
			return NameStr(att->attname);
	}
	foreach(lc, RelationGetFKeyList(rel))
	{
		ForeignKeyCacheInfo *key = lfirst(lc);

		for (int i = 0; i < key->nkeys; i++)
		{
			if (key->conkey[i] == xid_attno || key->conkey[i] == pos_attno)
				return get_constraint_name(key->conoid);
		}
	}
	foreach(lc, RelationGetIndexList(rel))
	{
		Relation	index = index_open(lfirst_oid(lc), AccessShareLock);
		bool		found = has_stamp(rel, feedpub_catalog_index_expressions(index)) ||
			has_stamp(rel, feedpub_catalog_index_predicate(index));

		for (int i = 0; i < index->rd_index->indnkeyatts; i++)
			found = found || index->rd_index->indkey.values[i] == xid_attno ||
				index->rd_index->indkey.values[i] == pos_attno;
		if (found && (index->rd_index->indisunique || index->rd_index->indisexclusion))
			name = get_rel_name(lfirst_oid(lc));
		index_close(index, AccessShareLock);
		if (name != NULL)
			break;
	}
	return name;
}

/*
 * Does an expression over a table's columns have the stamp in it?
 */
static bool
has_stamp(Relation rel, Node *expression)
{
	const int	offset = FirstLowInvalidHeapAttributeNumber;
	Bitmapset  *columns = NULL;

	pull_varattnos(expression, 1, &columns);
	return bms_is_member(0 - offset, columns) ||
		bms_is_member(get_attnum(RelationGetRelid(rel), FEEDPUB_XID_COLUMN) - offset, columns) ||
		bms_is_member(get_attnum(RelationGetRelid(rel), FEEDPUB_POS_COLUMN) - offset, columns);
}
