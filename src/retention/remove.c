/*-------------------------------------------------------------------------
 *
 * remove.c
 *	  Removing the rows before the floor of an outbox.
 *
 * The rows that the snapshot of the floor's batch sees are deleted through the
 * index, in the order of their stamps, in steps.  Each step is a transaction:
 * a DELETE as the table's owner, so the owner's triggers fire and foreign keys
 * act.  A background process makes the steps (maintenance.c), or feed_purge().
 *
 * No reader misses a row of a step: the floor has moved before, in a
 * transaction that had committed when the step began (floor.c).  A step reads
 * the floor under a lock on the feed's history, which it holds until it
 * commits.  So feed_begin_history(), which forgets the floor and publishes all
 * rows again, cannot run between.
 *
 * Where a pass is, is in the memory of its process, and in feedpub._removal
 * when the process ends its turn.  If the floor has moved meanwhile, another
 * pass begins: not at the first row, but at the xid below which the snapshot
 * of the floor before saw everything, and the pass has been.  If rows were
 * left, because they were locked or their DELETE failed, the next pass begins
 * where this one did.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/multixact.h"
#include "access/relation.h"
#include "access/subtrans.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "rewrite/rewriteDefine.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/procarray.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "retention/retention.h"

/* after how long a step removes no more single rows, in ms */
#define SINGLE_TIME		1000

static FeedpubStatement begin_pass = {
	.sql = "SELECT COALESCE(r.from_xid, '0'), COALESCE(r.pass_sync_id = f.sync_id, false),"
		   "  r.pass_xid, r.pass_pos, r.pass_locked, r.pass_failed"
		   " FROM feedpub._floor f"
		   " LEFT JOIN feedpub._removal r ON r.feed = f.feed"
		   " WHERE f.feed = $1 AND f.sync_id = $2 AND COALESCE(r.sync_id, 0) < f.sync_id",
	.nargs = 2,
	.argtypes = {REGCLASSOID, INT8OID},
};

/* $3: the pass has ended */
static FeedpubStatement save_pass = {
	.sql = "INSERT INTO feedpub._removal AS r"
		   " (feed, sync_id, from_xid, removed, locked, failed,"
		   "  pass_sync_id, pass_xid, pass_pos, pass_locked, pass_failed, last_error, last_error_at)"
		   " VALUES ($1, CASE WHEN $3 AND $8 + $9 = 0 THEN $2 ELSE 0 END, $4, $5, $8, $9,"
		   "  CASE WHEN $3 THEN 0 ELSE $2 END, $6, $7, $8, $9, $10,"
		   "  CASE WHEN $9 > 0 THEN pg_catalog.clock_timestamp() END)"
		   " ON CONFLICT (feed) DO UPDATE SET"
		   "  sync_id = GREATEST(r.sync_id, EXCLUDED.sync_id),"
		   "  from_xid = GREATEST(r.from_xid, EXCLUDED.from_xid),"
		   "  removed = r.removed + EXCLUDED.removed,"
		   "  locked = CASE WHEN $3 THEN EXCLUDED.locked ELSE r.locked END,"
		   "  failed = CASE WHEN $3 THEN EXCLUDED.failed ELSE r.failed END,"
		   "  pass_sync_id = EXCLUDED.pass_sync_id, pass_xid = EXCLUDED.pass_xid, pass_pos = EXCLUDED.pass_pos,"
		   "  pass_locked = EXCLUDED.pass_locked, pass_failed = EXCLUDED.pass_failed,"
		   "  last_error = CASE WHEN $3 THEN $10 ELSE COALESCE($10, r.last_error) END,"
		   "  last_error_at = CASE WHEN $9 > 0 THEN EXCLUDED.last_error_at"
		   "   WHEN NOT $3 THEN r.last_error_at END",
	.nargs = 10,
	.argtypes = {REGCLASSOID, INT8OID, BOOLOID, XID8OID, INT8OID, XID8OID, INT8OID, INT8OID, INT8OID, TEXTOID},
};

static FeedpubStatement set_running = {
	.sql = "INSERT INTO feedpub._removal AS r (feed, running)"
		   " SELECT $1, true WHERE $2"
		   " ON CONFLICT (feed) DO UPDATE SET running = true",
	.nargs = 2,
	.argtypes = {REGCLASSOID, BOOLOID},
};

/* clears running: else the next turn would count as one that failed */
static FeedpubStatement end_running = {
	.sql = "UPDATE feedpub._removal SET running = false,"
		   "  last_error = COALESCE($2, last_error),"
		   "  last_error_at = CASE WHEN $2 IS NULL THEN last_error_at ELSE pg_catalog.clock_timestamp() END"
		   " WHERE feed = $1",
	.nargs = 2,
	.argtypes = {REGCLASSOID, TEXTOID},
};

static bool lock_removal(Oid feed, bool wait);
static void check_table(Relation rel);
static bool begin(FeedpubRemoval *removal, Oid feed, int64 sync_id);
static int	find_rows(FeedpubRemoval *removal, Relation rel, const FeedpubBatch *batch,
					  int max_rows, Datum *tids);
static void remove_rows(FeedpubRemoval *removal, Relation rel, Datum *tids, int n);
static bool try_remove(FeedpubRemoval *removal, Relation rel, Datum *tids, int n,
					   bool skip_locked);
static void note_holder(FeedpubRemoval *removal, Relation rel, ItemPointer tid);

/*
 * Remove some rows, in a transaction of the caller's, in READ COMMITTED.  If
 * wait is false, the step does nothing if it would have to wait for another
 * session.
 */
FeedpubRemovalOutcome
feedpub_removal_step(FeedpubRemoval *removal, Oid feed, int max_rows, bool wait)
{
	FeedpubRemovalOutcome outcome = FEEDPUB_REMOVAL_NOTHING;
	FeedpubFeed registered;		/* reading it raises an error without an index */
	FeedpubFloor floor;
	FeedpubBatch batch;
	Relation	rel;
	Datum	   *tids;
	int			n;

	if (!lock_removal(feed, wait))
		return outcome;
	if (!feedpub_registry_lock_history(feed, RowShareLock, wait))
		return outcome;
	if (wait)
		LockRelationOid(feed, RowExclusiveLock);
	else if (!ConditionalLockRelationOid(feed, RowExclusiveLock))
		return outcome;
	rel = try_relation_open(feed, NoLock);
	if (rel == NULL)
		return outcome;
	PushActiveSnapshot(GetLatestSnapshot());
	feedpub_floor_read(feed, GetActiveSnapshot(), &floor);
	if (floor.sync_id > 0 && feedpub_registry_find(feed, &registered) &&
		begin(removal, feed, floor.sync_id))
	{
		check_table(rel);

		/* if it came with a dump, it sees rows that were written here since */
		feedpub_batch_last(feed, PG_INT64_MAX, GetActiveSnapshot(), &batch);
		feedpub_batch_refuse_foreign(&registered, &batch);
		feedpub_batch_last(feed, floor.sync_id + 1, GetActiveSnapshot(), &batch);
		if (batch.sync_id != floor.sync_id)
			elog(ERROR, "feed \"%s\" has no batch at its floor", RelationGetRelationName(rel));
		removal->xmin = batch.snapshot.xmin;
		tids = palloc_array(Datum, max_rows);
		AfterTriggerSetState(makeNode(ConstraintsSetStmt));
		{
			FeedpubRole caller;

			feedpub_restamp_begin_as_owner(rel, &caller);
			SPI_connect();
			n = find_rows(removal, rel, &batch, max_rows, tids);
			if (n > 0)
				remove_rows(removal, rel, tids, n);
			SPI_finish();
			feedpub_role_end(&caller);
		}
		pfree(tids);
		outcome = FEEDPUB_REMOVAL_GOES_ON;
		if (n < max_rows)
		{
			feedpub_removal_save(removal, feed, true);
			outcome = FEEDPUB_REMOVAL_ENDED;
		}
	}
	PopActiveSnapshot();
	relation_close(rel, NoLock);
	return outcome;
}

/*
 * Take the lock under which one session at a time removes rows of a feed.
 */
static bool
lock_removal(Oid feed, bool wait)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, feedpub_registry_table("_removal"), feed, 0);
	return LockAcquire(&tag, ExclusiveLock, false, !wait) != LOCKACQUIRE_NOT_AVAIL;
}

/*
 * Refuse a table if a DELETE would leave out rows without an error.
 */
static void
check_table(Relation rel)
{
	const char *name = RelationGetRelationName(rel);

	if (check_enable_rls(RelationGetRelid(rel), rel->rd_rel->relowner, true) == RLS_ENABLED)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("rows of \"%s\" cannot be removed", name),
				 errdetail("Row security hides rows from the table's owner."),
				 errhint("ALTER TABLE ... NO FORCE ROW LEVEL SECURITY.")));
	for (int i = 0; rel->rd_rules != NULL && i < rel->rd_rules->numLocks; i++)
	{
		RewriteRule *rule = rel->rd_rules->rules[i];

		if (rule->event == CMD_DELETE && rule->isInstead &&
			rule->enabled != RULE_DISABLED)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("rows of \"%s\" cannot be removed", name),
					 errdetail("A rule does something else instead of DELETE."),
					 errhint("ALTER TABLE ... DISABLE RULE.")));
	}
}

/*
 * Begin a pass, or go on with one, unless one is under way for this floor.
 * Returns false if nothing is left to remove.
 */
static bool
begin(FeedpubRemoval *removal, Oid feed, int64 sync_id)
{
	Datum		values[2] = {ObjectIdGetDatum(feed), Int64GetDatum(sync_id)};
	FeedpubRole caller;
	bool		found;
	bool		isnull;

	if (removal->sync_id == sync_id)
		return true;
	feedpub_removal_save(removal, feed, false);
	feedpub_store_begin(&caller);
	found = feedpub_store_run(&begin_pass, values, NULL) > 0;
	if (found)
	{
		removal->sync_id = sync_id;
		removal->pos = removal->locked = removal->failed = 0;
		removal->error[0] = '\0';
		removal->xid = DatumGetUInt64(feedpub_store_value(0, 1, &isnull));
		if (DatumGetBool(feedpub_store_value(0, 2, &isnull)))
		{
			removal->xid = DatumGetUInt64(feedpub_store_value(0, 3, &isnull));
			removal->pos = DatumGetInt64(feedpub_store_value(0, 4, &isnull));
			removal->locked = DatumGetInt64(feedpub_store_value(0, 5, &isnull));
			removal->failed = DatumGetInt64(feedpub_store_value(0, 6, &isnull));
		}
	}
	feedpub_store_end(&caller);
	return found;
}

/*
 * Write how far a pass is.  If it has ended, the next step begins another one,
 * if there is something left for it.
 */
void
feedpub_removal_save(FeedpubRemoval *removal, Oid feed, bool ended)
{
	bool		whole = removal->locked == 0 && removal->failed == 0;
	Datum		values[10];
	FeedpubRole caller;

	if (removal->sync_id == 0)
		return;
	values[0] = ObjectIdGetDatum(feed);
	values[1] = Int64GetDatum(removal->sync_id);
	values[2] = BoolGetDatum(ended);
	values[3] = UInt64GetDatum(!whole ? 0 : ended ? removal->xmin :
													Min(removal->xid, removal->xmin));
	values[4] = Int64GetDatum(removal->removed - removal->saved);
	values[5] = UInt64GetDatum(removal->xid);
	values[6] = Int64GetDatum(removal->pos);
	values[7] = Int64GetDatum(removal->locked);
	values[8] = Int64GetDatum(removal->failed);
	values[9] = CStringGetTextDatum(removal->error);
	feedpub_store_begin(&caller);
	(void) feedpub_store_run(&save_pass, values, whole ? "         n" : NULL);
	feedpub_store_end(&caller);
	removal->saved = removal->removed;
	if (ended)
		removal->sync_id = 0;
}

/*
 * A turn of the process (worker/maintenance.c) begins.
 */
void
feedpub_removal_begin_turn(Oid feed)
{
	Datum		values[2] = {ObjectIdGetDatum(feed), BoolGetDatum(feedpub_registry_is_registered(feed))};
	FeedpubRole caller;

	feedpub_store_begin(&caller);
	(void) feedpub_store_run(&set_running, values, NULL);
	feedpub_store_end(&caller);
}

/*
 * It ends, if error is not NULL because of an error.
 */
void
feedpub_removal_end_turn(Oid feed, const char *error)
{
	Datum		values[2] = {ObjectIdGetDatum(feed), error ? CStringGetTextDatum(error) : (Datum) 0};
	FeedpubRole caller;

	feedpub_store_begin(&caller);
	(void) feedpub_store_run(&end_running, values, error ? NULL : " n");
	feedpub_store_end(&caller);
}

/*
 * Find rows before the floor, after the stamp that the pass has got to.
 */
static int
find_rows(FeedpubRemoval *removal, Relation rel, const FeedpubBatch *batch,
		  int max_rows, Datum *tids)
{
	Oid			argtypes[5] = {XID8OID, INT8OID, XID8OID, PG_SNAPSHOTOID, INT4OID};
	Datum		values[5];
	bool		isnull;
	int			n;

	values[0] = UInt64GetDatum(removal->xid);
	values[1] = Int64GetDatum(removal->pos);
	values[2] = UInt64GetDatum(batch->snapshot.xmax);
	values[3] = feedpub_batch_snapshot_datum(&batch->snapshot);
	values[4] = Int32GetDatum(max_rows);
	if (SPI_execute_with_args(psprintf("SELECT t.ctid, t." FEEDPUB_XID_COLUMN ", t." FEEDPUB_POS_COLUMN
									   " FROM ONLY %s t"
									   " WHERE (t." FEEDPUB_XID_COLUMN ", t." FEEDPUB_POS_COLUMN ") > ($1, $2)"
									   " AND t." FEEDPUB_XID_COLUMN " < $3"
									   " AND pg_visible_in_snapshot(t." FEEDPUB_XID_COLUMN ", $4)"
									   " ORDER BY t." FEEDPUB_XID_COLUMN ", t." FEEDPUB_POS_COLUMN " LIMIT $5",
									   feedpub_relation_name(RelationGetRelid(rel))),
							  5, argtypes, values, NULL, true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read \"%s\"", RelationGetRelationName(rel));
	n = (int) SPI_processed;
	for (int i = 0; i < n; i++)
		tids[i] = SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, &isnull);
	if (n > 0)
	{
		removal->xid = DatumGetUInt64(SPI_getbinval(SPI_tuptable->vals[n - 1], SPI_tuptable->tupdesc, 2, &isnull));
		removal->pos = DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[n - 1], SPI_tuptable->tupdesc, 3, &isnull));
	}
	return n;
}

/*
 * Remove the rows, all at once; if that fails, each alone, as long as there is
 * time.
 */
static void
remove_rows(FeedpubRemoval *removal, Relation rel, Datum *tids, int n)
{
	TimestampTz until = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), SINGLE_TIME);

	if (try_remove(removal, rel, tids, n, false))
		return;
	for (int i = 0; i < n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (i > 0 && GetCurrentTimestamp() >= until)
		{
			removal->locked += n - i;	/* for the next pass */
			return;
		}
		(void) try_remove(removal, rel, &tids[i], 1, false);
	}
}

/*
 * Remove some of the rows.  Returns whether they are done: if a single row
 * fails, it is.
 *
 * Rows of an outbox do not change, and are rarely locked.  So they are deleted
 * without a look at locks, and if that takes too long, those that are locked
 * are left.
 */
static bool
try_remove(FeedpubRemoval *removal, Relation rel, Datum *tids, int n, bool skip_locked)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	Oid			argtypes[1] = {TIDARRAYOID};
	Datum		values[1];
	char	   *table = feedpub_relation_name(RelationGetRelid(rel));
	volatile bool done = false;
	volatile bool locked = false;
	volatile int64 left = 0;
	ErrorData  *error;

	values[0] = PointerGetDatum(construct_array(tids, n, TIDOID, sizeof(ItemPointerData),
												false, TYPALIGN_SHORT));
	BeginInternalSubTransaction(NULL);
	PG_TRY();
	{
		int64		nremoved;
		bool		isnull;

		if (SPI_execute_with_args(psprintf(skip_locked ?
											   "DELETE FROM ONLY %s WHERE ctid = ANY (ARRAY("
											   "SELECT t.ctid FROM ONLY %s t WHERE t.ctid = ANY ($1) FOR UPDATE SKIP LOCKED))" :
											   "DELETE FROM ONLY %s WHERE ctid = ANY ($1)",
										   table, table),
								  1, argtypes, values, NULL, false, 0) != SPI_OK_DELETE)
			elog(ERROR, "could not remove rows of \"%s\"", RelationGetRelationName(rel));
		nremoved = (int64) SPI_processed;
		if (nremoved < n)
		{
			if (SPI_execute_with_args(psprintf("SELECT ctid FROM ONLY %s WHERE ctid = ANY ($1)", table),
									  1, argtypes, values, NULL, false, 0) != SPI_OK_SELECT)
				elog(ERROR, "could not read \"%s\"", RelationGetRelationName(rel));
			left = (int64) SPI_processed;
			if (skip_locked && left > 0)
			{
				Datum		tid = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull);

				note_holder(removal, rel, (ItemPointer) DatumGetPointer(tid));
			}
		}
		ReleaseCurrentSubTransaction();
		removal->removed += nremoved;
		done = true;
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		locked = error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE ||
			error->sqlerrcode == ERRCODE_T_R_DEADLOCK_DETECTED;
		if (!locked && !feedpub_attempt_is_of_the_data(error->sqlerrcode))
			ReThrowError(error);	/* the step is made again later */
		if (!locked)
			strlcpy(removal->error, error->message, sizeof(removal->error));
		FreeErrorData(error);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;

	if (locked && !skip_locked)
		return try_remove(removal, rel, tids, n, true);
	if (done && left > 0 && !skip_locked)
	{
		removal->failed += left;
		strlcpy(removal->error, "a trigger suppresses the DELETE", sizeof(removal->error));
	}
	else if (done)
		removal->locked += left;
	else if (locked && n == 1)
		removal->locked++;
	else if (!locked && n == 1)
		removal->failed++;
	return done || n == 1;
}

/*
 * Note who has locked a row, for feedpub.feeds.  Nothing if it is not locked
 * any more.
 */
static void
note_holder(FeedpubRemoval *removal, Relation rel, ItemPointer tid)
{
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	TransactionId xid = InvalidTransactionId;
	bool		is_multi = false;

	if (removal->error[0] == '\0' && TTS_IS_BUFFERTUPLE(slot) &&
		table_tuple_fetch_row_version(rel, tid, SnapshotAny, slot))
	{
		BufferHeapTupleTableSlot *row = (BufferHeapTupleTableSlot *) slot;

		LockBuffer(row->buffer, BUFFER_LOCK_SHARE);
		xid = HeapTupleHeaderGetRawXmax(row->base.tuple->t_data);
		is_multi = (row->base.tuple->t_data->t_infomask & HEAP_XMAX_IS_MULTI) != 0;
		LockBuffer(row->buffer, BUFFER_LOCK_UNLOCK);
	}
	ExecDropSingleTupleTableSlot(slot);
	if (is_multi)
	{
		MultiXactMember *members;
		int			n = GetMultiXactIdMembers(xid, &members, false, false);

		xid = InvalidTransactionId;
		for (int i = 0; i < n; i++)
		{
			if (TransactionIdIsInProgress(members[i].xid))
				xid = members[i].xid;
		}
	}
	if (TransactionIdIsNormal(xid) && TransactionIdIsInProgress(xid))
	{
		int			pid = BackendXidGetPid(SubTransGetTopmostTransaction(xid));

		if (pid != 0)
			snprintf(removal->error, sizeof(removal->error), "locked by process %d", pid);
		else
			strlcpy(removal->error, "locked by a prepared transaction", sizeof(removal->error));
	}
}
