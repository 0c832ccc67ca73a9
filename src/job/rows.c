/*-------------------------------------------------------------------------
 * rows.c
 *	  Stamping rows of a table anew, or removing them, some at a time.
 *
 * This is the one step of all jobs that work on rows.  It is what an owner
 * would write: an UPDATE that sets feed_xid to NULL, or a DELETE.  Checks are
 * made, foreign keys act and triggers fire.  All of them are the owner's code,
 * so the step runs as the table's owner, in a security-restricted operation
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
 * Rows whose stamp a snapshot sees, and rows with one that this server has not
 * assigned, are looked for in the order of the index on the stamp.  An UPDATE
 * that keeps a row's stamp keeps its position there.  Rows of equal stamps are
 * told by their row identifiers, so a step that ends between them loses none.
 *
 * A step finds some rows, locks those that can be locked at once, and changes
 * these.  Rows that are locked, or have changed meanwhile, are left to another
 * pass.  The position of a pass is of one file of the table; in another file it
 * begins again.
 *
 * Rows of an outbox do not change, and are rarely locked.  So rows that are to
 * be removed are first deleted without a look at locks, and only if that fails,
 * or does not delete all, they are locked and tried as others.
 *
 * All rows of a step are changed by one statement.  If that fails, each row is
 * tried alone, in a subtransaction.  If a row fails then, or a trigger
 * suppresses it or gives it another stamp, the row is counted, and stops
 * nothing.
 *
 * feed_begin_history() has all rows stamped in one transaction, in order.
 *
 * Waiting.  The rows of a step stay locked until it commits, so the step waits
 * for nothing long: its lock_timeout is below any useful deadlock_timeout.
 * feed_republish() waits between two passes for a transaction that has locked a
 * row, without a transaction id of its own.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/multixact.h"
#include "access/subtrans.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "executor/tuptable.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "rewrite/prs2lock.h"
#include "rewrite/rewriteDefine.h"
#include "storage/bufmgr.h"
#include "storage/proc.h"
#include "utils/array.h"
#include "utils/guc.h"
#include "utils/rel.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"

#include "job/job.h"

/* Has a row got a stamp of this transaction, and kept it? */
#define IS_STAMPED \
	"t." FEEDPUB_XID_COLUMN " = pg_current_xact_id() AND t." FEEDPUB_POS_COLUMN " IS NOT NULL"

/* how many pages a step searches for rows without a stamp */
#define WINDOW			1024

/* after how long a step tries no more rows alone, in ms: all are locked */
#define CHANGE_TIME		1000

/*
 * How long a step waits for a lock that a trigger or a check takes, in ms: less
 * than deadlock_timeout, so in a deadlock the step gives way, and no writer is
 * cancelled.
 */
#define LOCK_LIMIT		Max(Min(500, DeadlockTimeout / 2), 1)

/* What the statements of a step share. */
typedef struct Step
{
	FeedpubPass *pass;
	Relation	rel;
	Datum	   *rows;			/* the row identifiers that it works on */
	int			n;				/* how many */
	Datum		found;			/* an array of all that it has found */
	Datum		tids;			/* and of those that a statement is about */
	const char *sql;			/* the statement; %s is the table */
	int64		processed;		/* rows by the last statement */
} Step;

/*
 * Refuse a table if the UPDATE or DELETE would leave out rows without an
 * error, or if its owner may not make it.
 */
void
feedpub_rows_check(Relation rel, bool removes)
{
	const char *message = removes ? "rows of \"%s\" cannot be removed" :
									"rows of \"%s\" cannot be published again";
	const char *verb = removes ? "DELETE" : "UPDATE";
	const char *name = RelationGetRelationName(rel);

	if (check_enable_rls(RelationGetRelid(rel), rel->rd_rel->relowner, true) == RLS_ENABLED)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg(message, name),
				 errdetail("Row security hides rows from the table's owner."),
				 errhint("ALTER TABLE ... NO FORCE ROW LEVEL SECURITY, and try again.")));
	for (int i = 0; rel->rd_rules != NULL && i < rel->rd_rules->numLocks; i++)
	{
		RewriteRule *rule = rel->rd_rules->rules[i];

		if (rule->event == (removes ? CMD_DELETE : CMD_UPDATE) &&
			rule->isInstead && rule->enabled != RULE_DISABLED)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg(message, name),
					 errdetail("A rule does something else instead of %s.", verb),
					 errhint("ALTER TABLE ... DISABLE RULE, and try again.")));
	}
}

/*
 * Continue with the next kind of rows.
 */
static void
next_kind(FeedpubPass *pass)
{
	do
		pass->kind++;
	while (pass->kind < FEEDPUB_ROWS_END && !(pass->kinds & 1 << pass->kind));
	pass->ended = pass->kind == FEEDPUB_ROWS_END;
	pass->xid = pass->from_xid;
	pass->pos = 0;
	ItemPointerSet(&pass->tid, 0, 0);
}

/*
 * Become the owner of a table, with settings for a step, and with constraints
 * that are immediate.
 */
static void
begin_as_owner(Relation rel, FeedpubRole *caller)
{
	/* the plans must be those that the passes need */
	const char *const settings[][2] = {
		{"enable_seqscan", "off"},
		{"enable_bitmapscan", "off"},
		{"jit", "off"},
		{"lock_timeout", psprintf("%d", LOCK_LIMIT)},
	};

	AfterTriggerSetState(makeNode(ConstraintsSetStmt));
	feedpub_role_begin_owner(rel->rd_rel->relowner, caller);
	for (int i = 0; i < lengthof(settings); i++)
		(void) set_config_option(settings[i][0], settings[i][1], PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_SAVE, true, 0, false);
	SPI_connect();
}

/*
 * Run a statement; %s in it is the table.  Its parameters are the position of
 * the pass, $1 to $3, its snapshot, $4, the rows that it is about, $5, and all
 * that were found, $6.
 */
static void
execute(void *arg)
{
	Step	   *step = arg;
	FeedpubPass *pass = step->pass;
	Oid			argtypes[] = {XID8OID, INT8OID, TIDOID, PG_SNAPSHOTOID, TIDARRAYOID, TIDARRAYOID};
	Datum		values[] = {UInt64GetDatum(pass->xid), Int64GetDatum(pass->pos),
							PointerGetDatum(&pass->tid), feedpub_batch_snapshot_datum(&pass->before),
							step->tids, step->found};

	if (SPI_execute_with_args(psprintf(step->sql, feedpub_relation_name(RelationGetRelid(step->rel))),
							  lengthof(values), argtypes, values,
							  step->tids ? NULL : "    nn", false, 0) < 0)
		elog(ERROR, "could not run: %s", step->sql);
	step->processed = (int64) SPI_processed;
}

static void
run(Step *step, const char *sql)
{
	step->sql = sql;
	execute(step);
}

/*
 * Work on the rows that the last statement has returned.
 */
static void
take_rows(Step *step)
{
	step->n = (int) step->processed;
	step->rows = palloc_array(Datum, step->n);
	for (int i = 0; i < step->n; i++)
		step->rows[i] = feedpub_store_value(i, 1, NULL);
}

/*
 * Find rows without a stamp, or with half of one, in some pages.
 */
static void
find_unstamped(Step *step, int max_rows)
{
	FeedpubPass *pass = step->pass;
	BlockNumber end = ItemPointerGetBlockNumberNoCheck(&pass->tid) + WINDOW;

	run(step,
		psprintf("SELECT t.ctid FROM ONLY %%s t"
				 " WHERE t.ctid > $3 AND t.ctid < '(%u,0)'"
				 " AND (t." FEEDPUB_XID_COLUMN " IS NULL OR t." FEEDPUB_POS_COLUMN " IS NULL)"
				 " ORDER BY t.ctid LIMIT %d",
				 end, max_rows));
	take_rows(step);
	if (step->n == max_rows)
		pass->tid = *(ItemPointer) DatumGetPointer(feedpub_store_value(step->n - 1, 1, NULL));
	else if (end < RelationGetNumberOfBlocks(step->rel))
		ItemPointerSet(&pass->tid, end, 0);
	else
		next_kind(pass);
}

/*
 * Find rows after the position of the pass.  The bound of foreign stamps is the
 * next xid of the snapshot that reads: all that it sees was stamped before.  No
 * two rows that are removed have the same stamp, so they need not be told by
 * their row identifiers.
 */
static void
find_rows(Step *step, int max_rows)
{
	FeedpubPass *pass = step->pass;

	for (FeedpubRows kind = FEEDPUB_ROWS_END; step->n == 0 && !pass->ended && pass->kind != kind;)
	{
		kind = pass->kind;
		if (kind == FEEDPUB_ROWS_UNSTAMPED)
		{
			find_unstamped(step, max_rows);
			continue;
		}
		run(step,
			psprintf("SELECT t.ctid, t." FEEDPUB_XID_COLUMN ", t." FEEDPUB_POS_COLUMN " FROM ONLY %%s t"
					 " WHERE (t." FEEDPUB_XID_COLUMN ", t." FEEDPUB_POS_COLUMN "%s%s%s"
					 " ORDER BY t." FEEDPUB_XID_COLUMN ", t." FEEDPUB_POS_COLUMN "%s LIMIT %d",
					 pass->removes ? ") > ($1, $2)" : ", t.ctid) > ($1, $2, $3)",
					 kind == FEEDPUB_ROWS_BEFORE ?
						 " AND t." FEEDPUB_XID_COLUMN " < pg_snapshot_xmax($4)"
						 " AND pg_visible_in_snapshot(t." FEEDPUB_XID_COLUMN ", $4)" :
						 " AND t." FEEDPUB_XID_COLUMN " >= pg_snapshot_xmax(pg_current_snapshot())",
					 OidIsValid(pass->feed) ? psprintf(" AND t.feed = '%u'::oid", pass->feed) : "",
					 pass->removes ? "" : ", t.ctid", max_rows));
		take_rows(step);
		if (step->n > 0)
		{
			pass->tid = *(ItemPointer) DatumGetPointer(feedpub_store_value(step->n - 1, 1, NULL));
			pass->xid = DatumGetUInt64(feedpub_store_value(step->n - 1, 2, NULL));
			pass->pos = DatumGetInt64(feedpub_store_value(step->n - 1, 3, NULL));
		}
		if (step->n < max_rows)
			next_kind(pass);
	}
}

static Datum
array_of(Datum *rows, int n)
{
	return PointerGetDatum(construct_array(rows, n, TIDOID, sizeof(ItemPointerData),
										   false, TYPALIGN_SHORT));
}

/*
 * Run a statement in a subtransaction, by execute() or change().  Returns NULL,
 * or an error that is of the rows, or of other sessions that work on them.
 * After any other error the step is made again later.
 */
static ErrorData *
try(Step *step, const char *sql, void (*work)(void *))
{
	ErrorData  *error;

	step->sql = sql;
	error = feedpub_attempt_error(work, step, true);

	/*
	 * These the server raises whatever the rows are.  A trigger can raise any;
	 * that of a connection or a file which it uses is of its row.
	 */
	if (error != NULL &&
		(ERRCODE_TO_CATEGORY(error->sqlerrcode) == ERRCODE_INSUFFICIENT_RESOURCES ||
		 ERRCODE_TO_CATEGORY(error->sqlerrcode) == ERRCODE_OPERATOR_INTERVENTION))
		ReThrowError(error);
	return error;
}

/*
 * Is it an error of a row that another session works on?  A row that has moved
 * to another partition is one.
 */
static bool
is_passing(const ErrorData *error)
{
	return error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE ||
		error->sqlerrcode == ERRCODE_T_R_DEADLOCK_DETECTED ||
		error->sqlerrcode == ERRCODE_T_R_SERIALIZATION_FAILURE;
}

/*
 * Note which transaction has locked a row.  Nothing if it is not locked any
 * more.
 */
static void
note_holder(FeedpubPass *pass, Relation rel, ItemPointer tid)
{
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	TransactionId xid = InvalidTransactionId;
	bool		is_multi = false;

	if (TTS_IS_BUFFERTUPLE(slot) &&
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

		pass->left_xid = xid;
		if (pass->failed > 0)
			return;
		if (pid != 0)
			snprintf(pass->error, sizeof(pass->error), "locked by process %d", pid);
		else
			strlcpy(pass->error, "locked by a prepared transaction", sizeof(pass->error));
	}
}

/*
 * Lock the rows that can be locked at once and are where they were found.  The
 * others are left, and for one of them it is noted who has locked it.
 */
static void
lock_rows(Step *step)
{
	int			n = step->n;
	ErrorData  *error;

	error = try(step,
				psprintf("SELECT t.ctid FROM ONLY %%s t WHERE t.ctid = ANY ($5) FOR %s SKIP LOCKED",
						 step->pass->removes ? "UPDATE" : "NO KEY UPDATE"),
				execute);
	if (error != NULL && !is_passing(error))
		ReThrowError(error);
	if (error != NULL)
		step->processed = 0;
	take_rows(step);
	step->pass->left += n - step->n;
	if (step->n == n)
		return;
	step->tids = array_of(step->rows, step->n);
	run(step, "SELECT t.ctid FROM ONLY %s t WHERE t.ctid = ANY ($6) AND t.ctid <> ALL ($5) LIMIT 1");
	if (step->processed > 0)
		note_holder(step->pass, step->rel, (ItemPointer) DatumGetPointer(feedpub_store_value(0, 1, NULL)));
}

/*
 * Run a statement that says of each row whether it is as it is to be.
 * A trigger that fires after the stamping one may have put another stamp into a
 * row.  Then the row stays what it was: it may lie ahead of the pass with that
 * stamp, which would find it again, without an end.
 */
static void
change(void *arg)
{
	Step	   *step = arg;

	execute(step);
	for (int64 i = 0; i < step->processed; i++)
	{
		if (!DatumGetBool(feedpub_store_value(i, 1, NULL)))
			ereport(ERROR,
					(errcode(ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION),
					 errmsg("a trigger changes the stamp")));
	}
}

/* Keep an error's message, or as many whole characters as there is room for. */
static void
keep_error(FeedpubPass *pass, const char *error)
{
	strlcpy(pass->error, error,
			pg_mbcliplen(error, strlen(error), sizeof(pass->error) - 1) + 1);
}

/*
 * Note that rows cannot be changed.
 */
static void
note_failures(FeedpubPass *pass, int64 n, const char *error)
{
	if (n == 0)
		return;
	pass->failed += n;
	keep_error(pass, error);
}

/*
 * Change some of the rows, which are locked.  Returns whether they are done: if
 * a single row fails, it is.
 */
static bool
change_rows(Step *step, Datum *rows, int n)
{
	FeedpubPass *pass = step->pass;
	ErrorData  *error;

	step->tids = array_of(rows, n);
	error = try(step, pass->removes ? "DELETE FROM ONLY %s t WHERE t.ctid = ANY ($5) RETURNING true" : "UPDATE ONLY %s t SET " FEEDPUB_XID_COLUMN " = NULL WHERE t.ctid = ANY ($5)"
																									   " RETURNING " IS_STAMPED,
				change);
	if (error == NULL)
	{
		pass->moved += step->processed;
		note_failures(pass, n - step->processed, pass->removes ? "a trigger suppresses the DELETE" : "a trigger suppresses the UPDATE");
	}
	else if (n > 1)
		return false;
	else if (is_passing(error))
	{
		pass->left++;
		if (pass->failed == 0)
			keep_error(pass, error->message);
	}
	else
		note_failures(pass, 1, error->message);
	return true;
}

/*
 * Stamp or remove some rows of a table, in a transaction of the caller's.  The
 * caller has locked the table and checked it.  Each of these steps begins in a
 * transaction of its own, in READ COMMITTED.
 */
void
feedpub_rows_some(FeedpubPass *pass, Relation rel, int max_rows)
{
	Step		step = {.pass = pass, .rel = rel};
	TimestampTz began = GetCurrentTimestamp();
	int64		moved;
	FeedpubRole caller;

	if (pass->file != rel->rd_rel->relfilenode)
	{
		/* it begins, from the first row on */
		pass->file = rel->rd_rel->relfilenode;
		pass->kind = -1;
		next_kind(pass);
		pass->moved = pass->left = pass->failed = 0;
		pass->left_xid = InvalidTransactionId;
		pass->error[0] = '\0';
	}
	moved = pass->moved;
	begin_as_owner(rel, &caller);
	find_rows(&step, max_rows);
	step.found = step.tids = array_of(step.rows, step.n);
	if (pass->removes && step.n > 0 &&
		try(&step, "DELETE FROM ONLY %s t WHERE t.ctid = ANY ($5)", execute) == NULL)
	{
		pass->moved += step.processed;
		step.n -= step.processed;
	}
	if (step.n > 0)
		lock_rows(&step);
	if (step.n > 0 && !change_rows(&step, step.rows, step.n))
	{
		for (int i = 0; i < step.n; i++)
		{
			CHECK_FOR_INTERRUPTS();
			if (i > 0 && TimestampDifferenceExceeds(began, GetCurrentTimestamp(), CHANGE_TIME))
			{
				pass->left += step.n - i;
				break;
			}
			(void) change_rows(&step, &step.rows[i], 1);
		}
	}
	SPI_finish();
	feedpub_role_end(&caller);
	pass->done = pass->moved - moved;
}

static void
stamp_in_order(Relation rel, const char *which)
{
	char	   *table = feedpub_relation_name(RelationGetRelid(rel));
	Oid			argtypes[] = {TIDOID};
	SPIPlanPtr	update = SPI_prepare(psprintf("UPDATE ONLY %s t SET " FEEDPUB_XID_COLUMN " = NULL"
											  " WHERE t.ctid = $1 RETURNING " IS_STAMPED,
											  table),
									 1, argtypes);
	Portal		rows = SPI_cursor_open_with_args(NULL,
												 psprintf("SELECT t.ctid FROM ONLY %s t"
														  " WHERE t." FEEDPUB_XID_COLUMN " %s",
														  table, which),
												 0, NULL, NULL, NULL, false, 0);

	for (SPI_cursor_fetch(rows, true, 1); SPI_processed > 0; SPI_cursor_fetch(rows, true, 1))
	{
		SPITupleTable *found = SPI_tuptable;
		Datum		tid = feedpub_store_value(0, 1, NULL);

		CHECK_FOR_INTERRUPTS();
		if (SPI_execute_plan(update, &tid, NULL, false, 0) != SPI_OK_UPDATE_RETURNING ||
			SPI_processed != 1 || !DatumGetBool(feedpub_store_value(0, 1, NULL)))
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("a row of \"%s\" could not be stamped anew",
							RelationGetRelationName(rel)),
					 errdetail("A trigger suppresses the UPDATE, changes the row before, or changes the stamp."),
					 errhint("Run feed_check() to see whether the feed's own triggers fire.  Disable the table's other triggers for that time.")));
		SPI_freetuptable(SPI_tuptable);
		SPI_freetuptable(found);
	}
	SPI_cursor_close(rows);
}

/*
 * Stamp all rows of a table whose feed_xid satisfies a condition, in an order
 * that follows it, in the caller's transaction.  The caller has locked the table
 * against all but readers.  An outbox allows no UPDATE but this one.
 */
void
feedpub_rows_stamp_all(Relation rel, const char *which)
{
	FeedpubRole caller;

	begin_as_owner(rel, &caller);
	feedpub_stamp_anew = RelationGetRelid(rel);
	PG_TRY();
	{
		stamp_in_order(rel, which);
	}
	PG_FINALLY();
	{
		feedpub_stamp_anew = InvalidOid;
	}
	PG_END_TRY();
	SPI_finish();
	feedpub_role_end(&caller);
}
