/*-------------------------------------------------------------------------
 * restamp.c
 *	  Giving rows a new stamp, some at a time.
 *
 * This is the one step that does it, for feed_republish() (republish.c) and
 * for partitions that come with rows (maintenance.c).  It is what an owner
 * would write, an UPDATE that sets feed_xid to NULL: checks are made and
 * triggers fire as for any other UPDATE.  All of them are the owner's code, so
 * the step runs as the table's owner, in a security-restricted operation
 * (role.c), and never in a process that publishes.  Deferred triggers fail
 * there, so none is deferred.
 *
 * A pass looks for rows of one kind after the other.
 *
 * Rows without a stamp, or with half of one, are in no index.  They are looked
 * for in the order of the table, some pages at a time.  Such a row does not
 * move before it has been found, for any UPDATE of it stamps it (stamp.c).
 * So a row that a pass has left has a stamp, or was locked.
 *
 * Rows with an xid below a bound, and rows with one that this server has not
 * assigned, are looked for in the order of the index on the stamp.  An UPDATE
 * that keeps a row's stamp keeps its position there.  Rows of equal stamps are
 * told by their row identifiers, so a step that ends between them loses none.
 *
 * A step finds some rows, locks those that can be locked at once, and updates
 * these.  Rows that are locked, or have changed meanwhile, are left to another
 * pass: passes are repeated until one finds only rows that cannot be stamped.
 * The position of a pass is of one file of the table; in another file it
 * begins again.
 *
 * If the UPDATE fails, each row is tried alone, in a subtransaction.  If a row
 * fails then, or a trigger suppresses it or gives it another stamp, the row is
 * counted, and stops nothing.
 *
 * feed_begin_history() has all rows stamped in one transaction, in order.
 *
 * Waiting.  The rows of a step stay locked until it commits, so the step waits
 * for nothing long: its lock_timeout is below any useful deadlock_timeout.
 * Between two passes, a row that was left is waited for, without a transaction
 * id.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "rewrite/prs2lock.h"
#include "rewrite/rewriteDefine.h"
#include "storage/bufmgr.h"
#include "storage/proc.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/rls.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "republish/republish.h"

/* pages that are searched at once, and how long a step searches, in ms */
#define WINDOW			32
#define SEARCH_TIME		200

/* after how long a step stamps no more rows, in ms */
#define UPDATE_TIME		1000

/* how many rows are read at once if they are stamped in order */
#define ROWS_AT_ONCE	1000

/* how long a step waits for a lock that a trigger or a check takes, in ms */
#define LOCK_WAIT		500

static void update_in_order(Relation rel, const char *which);
static void begin_as_owner(Relation rel, int lock_timeout, FeedpubRole *caller);
static void rewind_pass(FeedpubRestamp *pass, Relation rel);
static void next_kind(FeedpubRestamp *pass);
static int	find_unstamped(FeedpubRestamp *pass, Relation rel, int max_rows,
						   Datum *tids);
static int	find_stamped(FeedpubRestamp *pass, Relation rel, int max_rows,
						 Datum *tids);
static int	lock_rows(FeedpubRestamp *pass, Relation rel, Datum *tids, int n);
static void update_rows(FeedpubRestamp *pass, Relation rel, Datum *tids, int n);
static bool try_update(FeedpubRestamp *pass, Relation rel, Datum *tids, int n);
static int64 count_stamped(SPITupleTable *table, int64 n);
static void note_failure(FeedpubRestamp *pass, ItemPointer tid,
						 const char *error);
static Datum tid_array(Datum *tids, int n);

/*
 * Refuse a table if an UPDATE would leave out rows without an error, or if its
 * owner may not make it.
 */
void
feedpub_restamp_check(Relation rel)
{
	const char *name = RelationGetRelationName(rel);
	Oid			relid = RelationGetRelid(rel);
	Oid			owner = rel->rd_rel->relowner;

	if (check_enable_rls(relid, owner, true) == RLS_ENABLED)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("rows of \"%s\" cannot be published again", name),
				 errdetail("Row security hides rows from the table's owner."),
				 errhint("ALTER TABLE ... NO FORCE ROW LEVEL SECURITY, and try again.")));
	if (pg_class_aclcheck(relid, owner, ACL_SELECT) != ACLCHECK_OK ||
		(pg_class_aclcheck(relid, owner, ACL_UPDATE) != ACLCHECK_OK &&
		 pg_attribute_aclcheck(relid, get_attnum(relid, FEEDPUB_XID_COLUMN), owner, ACL_UPDATE) != ACLCHECK_OK))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("rows of \"%s\" cannot be published again", name),
				 errdetail("The table's owner lacks SELECT or UPDATE on it."),
				 errhint("GRANT SELECT, UPDATE ON %s TO %s, and try again.",
						 feedpub_relation_name(relid),
						 quote_identifier(GetUserNameFromId(owner, false)))));
	for (int i = 0; rel->rd_rules != NULL && i < rel->rd_rules->numLocks; i++)
	{
		RewriteRule *rule = rel->rd_rules->rules[i];

		if (rule->event == CMD_UPDATE && rule->isInstead &&
			rule->enabled != RULE_DISABLED)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("rows of \"%s\" cannot be published again", name),
					 errdetail("A rule does something else instead of UPDATE."),
					 errhint("ALTER TABLE ... DISABLE RULE, and try again.")));
	}
}

/*
 * Begin a pass over a table: its rows without a stamp, those with an xid below
 * a bound (0: none), and, if foreign is true, those with stamps of another
 * server.
 */
void
feedpub_restamp_begin(FeedpubRestamp *pass, Oid relid, uint64 below,
					  bool foreign)
{
	MemSet(pass, 0, sizeof(FeedpubRestamp));
	pass->relid = relid;
	pass->below = below;
	pass->foreign = foreign;
}

/*
 * Go back to the beginning of a pass.
 */
static void
rewind_pass(FeedpubRestamp *pass, Relation rel)
{
	pass->file = rel->rd_rel->relfilenode;
	pass->kind = pass->only_foreign ? FEEDPUB_RESTAMP_FOREIGN : FEEDPUB_RESTAMP_UNSTAMPED;
	pass->xid = 0;
	pass->pos = 0;
	ItemPointerSet(&pass->tid, 0, 0);
	pass->found = 0;
	pass->moved = 0;
	pass->failed = 0;
	pass->ended = false;
}

/*
 * Continue with the next kind of rows.
 */
static void
next_kind(FeedpubRestamp *pass)
{
	pass->kind++;
	if (pass->kind == FEEDPUB_RESTAMP_OLD && pass->below == 0)
		pass->kind++;
	if (pass->kind == FEEDPUB_RESTAMP_FOREIGN && !pass->foreign)
		pass->kind++;
	pass->ended = pass->kind == FEEDPUB_RESTAMP_END;
	pass->xid = 0;
	pass->pos = 0;
	ItemPointerSet(&pass->tid, 0, 0);
}

/*
 * Stamp some rows of a table, in a transaction of the caller's.  The caller
 * has locked the table and checked it.  Each of these steps begins in a
 * transaction of its own, in READ COMMITTED.
 */
void
feedpub_restamp_some(FeedpubRestamp *pass, Relation rel, int max_rows)
{
	ConstraintsSetStmt *immediate = makeNode(ConstraintsSetStmt);
	Datum	   *tids = palloc_array(Datum, max_rows);
	FeedpubRole caller;
	FeedpubRestampKind kind;
	int			n;

	pass->stamped = 0;
	pass->left = 0;
	pass->error = NULL;
	if (pass->file != rel->rd_rel->relfilenode)
		rewind_pass(pass, rel);
	AfterTriggerSetState(immediate);
	feedpub_restamp_begin_as_owner(rel, &caller);
	SPI_connect();
	do
	{
		kind = pass->kind;
		if (kind == FEEDPUB_RESTAMP_UNSTAMPED)
			n = find_unstamped(pass, rel, max_rows, tids);
		else
			n = find_stamped(pass, rel, max_rows, tids);
	} while (n == 0 && !pass->ended && pass->kind != kind);
	if (n > 0)
		n = lock_rows(pass, rel, tids, n);
	if (n > 0)
		update_rows(pass, rel, tids, n);
	pass->found += pass->stamped + pass->left;
	pass->moved += pass->stamped;
	SPI_finish();
	feedpub_role_end(&caller);
}

/*
 * Wait until a row that was left is not locked any more, for at most
 * timeout_ms.  Returns whether that is so.  The row stays locked until the
 * caller ends the transaction, which has no xid while it waits.
 */
bool
feedpub_restamp_wait(const FeedpubRestamp *pass, Relation rel, int timeout_ms)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	Oid			argtypes[1] = {TIDOID};
	Datum		values[1] = {PointerGetDatum(&pass->left_tid)};
	FeedpubRole caller;
	volatile bool done = false;

	begin_as_owner(rel, timeout_ms, &caller);
	SPI_connect();
	BeginInternalSubTransaction(NULL);
	PG_TRY();
	{
		(void) SPI_execute_with_args(psprintf("SELECT FROM ONLY %s t WHERE t.ctid = $1 FOR NO KEY UPDATE",
											  feedpub_relation_name(pass->relid)),
									 1, argtypes, values, NULL, false, 0);
		ReleaseCurrentSubTransaction();
		done = true;
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		/* if the row has moved to another partition, it is left no more */
		if (error->sqlerrcode == ERRCODE_T_R_SERIALIZATION_FAILURE)
			done = true;
		else if (error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE &&
				 error->sqlerrcode != ERRCODE_T_R_DEADLOCK_DETECTED)
			ReThrowError(error);
		FreeErrorData(error);
	}
	PG_END_TRY();
	CurrentResourceOwner = owner;
	SPI_finish();
	MemoryContextSwitchTo(context);
	feedpub_role_end(&caller);
	return done;
}

/*
 * Stamp all rows of a table whose feed_xid satisfies a condition, in an order
 * that follows it, in the caller's transaction.  The caller has locked the table
 * against all but readers.  An outbox allows no UPDATE but this one.
 */
void
feedpub_restamp_all(Relation rel, const char *which)
{
	ConstraintsSetStmt *immediate = makeNode(ConstraintsSetStmt);
	FeedpubRole caller;

	AfterTriggerSetState(immediate);
	feedpub_restamp_begin_as_owner(rel, &caller);
	SPI_connect();
	feedpub_stamp_anew = RelationGetRelid(rel);
	PG_TRY();
	{
		update_in_order(rel, which);
	}
	PG_FINALLY();
	{
		feedpub_stamp_anew = InvalidOid;
	}
	PG_END_TRY();
	SPI_finish();
	feedpub_role_end(&caller);
}

static void
update_in_order(Relation rel, const char *which)
{
	char	   *table = feedpub_relation_name(RelationGetRelid(rel));
	FullTransactionId xid = GetTopFullTransactionId();
	Oid			argtypes[1] = {TIDOID};
	SPIPlanPtr	update;
	Portal		rows;

	update = SPI_prepare(psprintf("UPDATE ONLY %s SET " FEEDPUB_XID_COLUMN " = NULL"
								  " WHERE ctid = $1 RETURNING " FEEDPUB_XID_COLUMN,
								  table),
						 1, argtypes);
	rows = SPI_cursor_open_with_args(NULL,
									 psprintf("SELECT t.ctid FROM ONLY %s t"
											  " WHERE t." FEEDPUB_XID_COLUMN " %s",
											  table, which),
									 0, NULL, NULL, NULL, false, 0);
	for (;;)
	{
		SPITupleTable *found;
		uint64		n;

		SPI_cursor_fetch(rows, true, ROWS_AT_ONCE);
		found = SPI_tuptable;
		n = SPI_processed;
		if (n == 0)
			break;
		for (uint64 i = 0; i < n; i++)
		{
			bool		isnull;
			Datum		values[1] = {SPI_getbinval(found->vals[i], found->tupdesc, 1, &isnull)};
			Datum		stamp = (Datum) 0;

			CHECK_FOR_INTERRUPTS();
			if (SPI_execute_plan(update, values, NULL, false, 0) != SPI_OK_UPDATE_RETURNING)
				elog(ERROR, "could not update \"%s\"", RelationGetRelationName(rel));
			if (SPI_processed == 1)
				stamp = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull);
			if (SPI_processed != 1 || isnull ||
				!FullTransactionIdEquals(DatumGetFullTransactionId(stamp), xid))
				ereport(ERROR,
						(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						 errmsg("a row of \"%s\" could not be stamped anew",
								RelationGetRelationName(rel)),
						 errdetail("A trigger suppresses the UPDATE, changes the row before, or changes the stamp."),
						 errhint("Run feed_check() to see whether the feed's own triggers fire.  Disable the table's other triggers for that time.")));
			SPI_freetuptable(SPI_tuptable);
		}
		SPI_freetuptable(found);
	}
	SPI_cursor_close(rows);
	SPI_freeplan(update);
}

/*
 * Become the owner of a table for a step, which waits for a lock for less than
 * deadlock_timeout: in a deadlock the step gives way, and no writer is
 * cancelled.
 */
void
feedpub_restamp_begin_as_owner(Relation rel, FeedpubRole *caller)
{
	begin_as_owner(rel, Max(Min(LOCK_WAIT, DeadlockTimeout / 2), 1), caller);
}

static void
begin_as_owner(Relation rel, int lock_timeout, FeedpubRole *caller)
{
	/* the plans must be those that the passes need */
	static const char *const unwanted[] = {
		"enable_seqscan", "enable_bitmapscan", "jit"};

	feedpub_role_begin_owner(rel->rd_rel->relowner, caller);
	for (int i = 0; i < lengthof(unwanted); i++)
		(void) set_config_option(unwanted[i], "off", PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_SAVE, true, 0, false);
	(void) set_config_option("lock_timeout", psprintf("%d", lock_timeout),
							 PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
}

/*
 * Find rows without a stamp, or with half of one, after the position of the
 * pass.
 */
static int
find_unstamped(FeedpubRestamp *pass, Relation rel, int max_rows, Datum *tids)
{
	Oid			argtypes[3] = {TIDOID, TIDOID, INT4OID};
	BlockNumber nblocks = RelationGetNumberOfBlocks(rel);
	TimestampTz until = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), SEARCH_TIME);
	char	   *sql = psprintf("SELECT t.ctid FROM ONLY %s t"
							   " WHERE t.ctid > $1 AND t.ctid < $2"
							   " AND (t." FEEDPUB_XID_COLUMN " IS NULL OR t." FEEDPUB_POS_COLUMN " IS NULL)"
							   " ORDER BY t.ctid LIMIT $3",
							   feedpub_relation_name(pass->relid));

	while (ItemPointerGetBlockNumberNoCheck(&pass->tid) < nblocks)
	{
		ItemPointerData end;
		Datum		values[3];
		int			n;

		CHECK_FOR_INTERRUPTS();
		ItemPointerSet(&end, Min(ItemPointerGetBlockNumberNoCheck(&pass->tid) + WINDOW, nblocks), 0);
		values[0] = PointerGetDatum(&pass->tid);
		values[1] = PointerGetDatum(&end);
		values[2] = Int32GetDatum(max_rows);
		if (SPI_execute_with_args(sql, 3, argtypes, values, NULL, false, 0) != SPI_OK_SELECT)
			elog(ERROR, "could not read \"%s\"", RelationGetRelationName(rel));
		n = (int) SPI_processed;
		for (int i = 0; i < n; i++)
		{
			bool		isnull;

			tids[i] = SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, &isnull);
		}
		pass->tid = n == max_rows ? *(ItemPointer) DatumGetPointer(tids[n - 1]) : end;
		if (n > 0)
			return n;
		if (GetCurrentTimestamp() >= until)
			return 0;
	}
	next_kind(pass);
	return 0;
}

/*
 * Find rows with a stamp that is not in the feed any more, after the position
 * of the pass.  The bound of foreign stamps is the next xid of the snapshot
 * that reads: all that it sees was stamped before.
 */
static int
find_stamped(FeedpubRestamp *pass, Relation rel, int max_rows, Datum *tids)
{
	Oid			argtypes[5] = {XID8OID, INT8OID, TIDOID, INT4OID, XID8OID};
	Datum		values[5];
	bool		isnull;
	int			n;

	values[0] = UInt64GetDatum(pass->xid);
	values[1] = Int64GetDatum(pass->pos);
	values[2] = PointerGetDatum(&pass->tid);
	values[3] = Int32GetDatum(max_rows);
	values[4] = UInt64GetDatum(pass->below);
	if (SPI_execute_with_args(psprintf("SELECT t.ctid, t." FEEDPUB_XID_COLUMN ", t." FEEDPUB_POS_COLUMN
									   " FROM ONLY %s t"
									   " WHERE (t." FEEDPUB_XID_COLUMN ", t." FEEDPUB_POS_COLUMN ", t.ctid) > ($1, $2, $3)"
									   " AND t." FEEDPUB_XID_COLUMN " %s"
									   " ORDER BY t." FEEDPUB_XID_COLUMN ", t." FEEDPUB_POS_COLUMN ", t.ctid LIMIT $4",
									   feedpub_relation_name(pass->relid),
									   pass->kind == FEEDPUB_RESTAMP_OLD ? "< $5" :
																		   ">= pg_snapshot_xmax(pg_current_snapshot())"),
							  5, argtypes, values, NULL, false, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read \"%s\"", RelationGetRelationName(rel));
	n = (int) SPI_processed;
	for (int i = 0; i < n; i++)
		tids[i] = SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, &isnull);
	if (n < max_rows)
	{
		next_kind(pass);
		return n;
	}
	pass->xid = DatumGetUInt64(SPI_getbinval(SPI_tuptable->vals[n - 1], SPI_tuptable->tupdesc, 2, &isnull));
	pass->pos = DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[n - 1], SPI_tuptable->tupdesc, 3, &isnull));
	pass->tid = *(ItemPointer) DatumGetPointer(tids[n - 1]);
	return n;
}

/*
 * Lock the rows that can be locked at once and are where they were found.
 * Returns how many; they replace those in tids.
 */
static int
lock_rows(FeedpubRestamp *pass, Relation rel, Datum *tids, int n)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	Oid			argtypes[1] = {TIDARRAYOID};
	Datum		values[1] = {tid_array(tids, n)};
	ItemPointerData first = *(ItemPointer) DatumGetPointer(tids[0]);
	volatile int nlocked = 0;
	ErrorData  *error;

	BeginInternalSubTransaction(NULL);
	PG_TRY();
	{
		if (SPI_execute_with_args(psprintf("SELECT t.ctid FROM ONLY %s t WHERE t.ctid = ANY ($1)"
										   " FOR NO KEY UPDATE SKIP LOCKED",
										   feedpub_relation_name(pass->relid)),
								  1, argtypes, values, NULL, false, 0) != SPI_OK_SELECT)
			elog(ERROR, "could not lock rows of \"%s\"", RelationGetRelationName(rel));
		for (uint64 i = 0; i < SPI_processed; i++)
		{
			bool		isnull;

			tids[nlocked++] = SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, &isnull);
		}
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();

		/* one of them has just moved to another partition */
		if (error->sqlerrcode != ERRCODE_T_R_SERIALIZATION_FAILURE)
			ReThrowError(error);
		FreeErrorData(error);
		nlocked = 0;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	if (nlocked < n)
	{
		pass->left += n - nlocked;
		pass->left_tid = first;
	}
	return nlocked;
}

/*
 * Update the rows, some at once, each time twice as many; if that fails, each
 * alone.  However slow triggers are, a step stamps at least one row before its
 * limit ends it: the rows for which there is no time are left.
 */
static void
update_rows(FeedpubRestamp *pass, Relation rel, Datum *tids, int n)
{
	TimestampTz until = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), UPDATE_TIME);
	int			some = 1;

	for (int i = 0; i < n; i += some, some = Min(2 * some, n - i))
	{
		CHECK_FOR_INTERRUPTS();
		if (i > 0 && GetCurrentTimestamp() >= until)
		{
			pass->left += n - i;
			pass->left_tid = *(ItemPointer) DatumGetPointer(tids[i]);
			return;
		}
		if (try_update(pass, rel, &tids[i], some))
			continue;
		for (int j = i; j < i + some; j++)
		{
			CHECK_FOR_INTERRUPTS();
			(void) try_update(pass, rel, &tids[j], 1);
		}
	}
}

/*
 * Update some of the rows.  Returns whether they are done: if a single row
 * fails, it is.
 */
static bool
try_update(FeedpubRestamp *pass, Relation rel, Datum *tids, int n)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	Oid			argtypes[1] = {TIDARRAYOID};
	Datum		values[1] = {tid_array(tids, n)};
	ItemPointer tid = (ItemPointer) DatumGetPointer(tids[0]);
	volatile bool done = false;
	ErrorData  *error;

	BeginInternalSubTransaction(NULL);
	PG_TRY();
	{
		int64		nupdated;
		int64		nstamped;

		if (SPI_execute_with_args(psprintf("UPDATE ONLY %s SET " FEEDPUB_XID_COLUMN " = NULL"
										   " WHERE ctid = ANY ($1)"
										   " RETURNING " FEEDPUB_XID_COLUMN ", " FEEDPUB_POS_COLUMN,
										   feedpub_relation_name(pass->relid)),
								  1, argtypes, values, NULL, false, 0) != SPI_OK_UPDATE_RETURNING)
			elog(ERROR, "could not update \"%s\"", RelationGetRelationName(rel));
		nupdated = (int64) SPI_processed;
		nstamped = count_stamped(SPI_tuptable, nupdated);
		ReleaseCurrentSubTransaction();
		done = true;
		pass->stamped += nstamped;
		for (int64 i = nupdated; i < n; i++)
			note_failure(pass, tid, "a trigger suppresses the UPDATE");
		for (int64 i = nstamped; i < nupdated; i++)
			note_failure(pass, tid, "a trigger changes the stamp");
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		if (error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE ||
			error->sqlerrcode == ERRCODE_T_R_DEADLOCK_DETECTED ||
			error->sqlerrcode == ERRCODE_T_R_SERIALIZATION_FAILURE)
		{
			if (n == 1)
			{
				done = true;
				pass->left++;
				pass->left_tid = *tid;
			}
		}
		else if (!feedpub_attempt_is_of_the_data(error->sqlerrcode))
			ReThrowError(error);	/* the step is made again later */
		else if (n == 1)
		{
			done = true;
			note_failure(pass, tid, error->message);
		}
		FreeErrorData(error);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return done;
}

/*
 * How many of the rows have got a stamp of this transaction?  A trigger that
 * fires after the stamping one may have put another stamp into them.  If such
 * rows counted as stamped, each pass would find them again, and there would be
 * no last pass.
 */
static int64
count_stamped(SPITupleTable *table, int64 n)
{
	FullTransactionId xid = GetTopFullTransactionId();
	int64		nstamped = 0;

	for (int64 i = 0; i < n; i++)
	{
		bool		no_xid;
		bool		no_pos;
		Datum		stamp = SPI_getbinval(table->vals[i], table->tupdesc, 1, &no_xid);

		(void) SPI_getbinval(table->vals[i], table->tupdesc, 2, &no_pos);
		if (!no_xid && !no_pos &&
			FullTransactionIdEquals(DatumGetFullTransactionId(stamp), xid))
			nstamped++;
	}
	return nstamped;
}

/*
 * Note that a row cannot be stamped.
 */
static void
note_failure(FeedpubRestamp *pass, ItemPointer tid, const char *error)
{
	pass->failed++;
	pass->error = memcpy(SPI_palloc(strlen(error) + 1), error, strlen(error) + 1);
	pass->error_tid = *tid;
}

static Datum
tid_array(Datum *tids, int n)
{
	return PointerGetDatum(construct_array(tids, n, TIDOID, sizeof(ItemPointerData),
										   false, TYPALIGN_SHORT));
}
