/*-------------------------------------------------------------------------
 * stamping.c
 *	  Stamping the rows that partitions came with, in steps.
 *
 * A partition that is admitted later (partition.c) may have rows that are not
 * in the feed.  They are stamped anew in steps (restamp.c).  Each step is a
 * short transaction, which writes its progress into feedpub._stamping.  So the
 * work goes on after a crash, or in another process.
 *
 * A pass over a partition holds for one admission of it: for its xid, called
 * since, and for the trigger that is listed with it.  Each step locks the
 * partition, and then compares both with what is committed now: until the step
 * commits, the partition cannot be detached and attached again.  What a step
 * writes contains since, so it says nothing about a later admission.
 *
 * A partition is done under two conditions.  The pass has found only rows that
 * cannot be stamped.  When the pass began, no transaction with an xid below
 * since was running: such transactions may write rows with stamps that are not
 * in the feed, until they end.  If since is FEEDPUB_SINCE_NEVER, only the rows
 * with stamps of another server are stamped, and then the publisher looks
 * again.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "republish/republish.h"

PG_FUNCTION_INFO_V1(feedpub_stamp_some);

/* how long a locked row is waited for, in ms */
#define ROW_WAIT			100

/* What is stamped: a row of feedpub._stamping. */
typedef struct Work
{
	Oid			partition;
	uint64		since;
	FeedpubRestamp pass;
	bool		settled;		/* all xids below had ended at its start */
} Work;

/* a row for each partition that is not done; draws an xid only if one lacks */
static FeedpubStatement prepare_rows = {
	.sql = "INSERT INTO feedpub._stamping AS s (feed, partition, since)"
		   " SELECT p.feed, p.partition, p.since FROM feedpub._partition p"
		   " WHERE p.feed = $1 AND p.since > '0'"
		   "  AND NOT EXISTS (SELECT FROM feedpub._stamping t"
		   "   WHERE t.feed = p.feed"
		   "   AND t.partition = p.partition"
		   "   AND t.since = p.since)"
		   " ON CONFLICT (feed, partition) DO UPDATE SET since = EXCLUDED.since,"
		   "  done = false, stamped = 0, failed = 0, last_error = NULL, last_error_at = NULL,"
		   "  pass_file = 0"
		   " WHERE s.since <> EXCLUDED.since",
	.nargs = 1,
	.argtypes = {REGCLASSOID},
};

static FeedpubStatement set_running = {
	.sql = "UPDATE feedpub._stamping SET running = $2"
		   " WHERE feed = $1 AND running <> $2",
	.nargs = 2,
	.argtypes = {REGCLASSOID, BOOLOID},
};

/* clears running in all: else the next turn would count as one that failed */
static FeedpubStatement note_error = {
	.sql = "UPDATE feedpub._stamping SET running = false,"
		   "  last_error = CASE WHEN done THEN last_error ELSE $2 END,"
		   "  last_error_at = CASE WHEN done THEN last_error_at ELSE pg_catalog.clock_timestamp() END"
		   " WHERE feed = $1",
	.nargs = 2,
	.argtypes = {REGCLASSOID, TEXTOID},
};

/* rows that could not be stamped, in the partitions that are listed */
static FeedpubStatement count_failed = {
	.sql = "SELECT COALESCE(pg_catalog.sum(s.failed), 0)::pg_catalog.int8"
		   " FROM feedpub._partition p"
		   " JOIN feedpub._stamping s ON s.feed = p.feed"
		   "  AND s.partition = p.partition"
		   "  AND s.since = p.since"
		   " WHERE p.feed = $1",
	.nargs = 1,
	.argtypes = {REGCLASSOID},
};

/* look for failed rows again */
static FeedpubStatement retry_failed = {
	.sql = "UPDATE feedpub._stamping SET done = false, failed = 0, pass_file = 0,"
		   "  last_error = NULL, last_error_at = NULL"
		   " WHERE feed = $1 AND failed > 0",
	.nargs = 1,
	.argtypes = {REGCLASSOID},
};

/* the partition that has waited longest */
static FeedpubStatement choose_partition = {
	.sql = "SELECT p.partition, p.since, s.pass_file, s.pass_kind, s.pass_xid, s.pass_pos,"
		   "  s.pass_tid, s.pass_found, s.pass_failed, s.pass_settled,"
		   "  pg_catalog.count(*) OVER (), s.pass_moved"
		   " FROM feedpub._partition p"
		   " JOIN feedpub._stamping s ON s.feed = p.feed"
		   "  AND s.partition = p.partition"
		   "  AND s.since = p.since"
		   " WHERE p.feed = $1 AND NOT s.done"
		   " ORDER BY s.stepped_at NULLS FIRST, p.partition::pg_catalog.oid LIMIT 1",
	.nargs = 1,
	.argtypes = {REGCLASSOID},
};

static FeedpubStatement write_step = {
	.sql = "UPDATE feedpub._stamping SET done = $4,"
		   "  stamped = stamped + $5, failed = $6,"
		   "  stepped_at = pg_catalog.now(),"
		   "  last_error = COALESCE($7, last_error),"
		   "  last_error_at = CASE WHEN $7 IS NULL THEN last_error_at ELSE pg_catalog.now() END,"
		   "  pass_file = $8, pass_kind = $9, pass_xid = $10, pass_pos = $11,"
		   "  pass_tid = $12, pass_found = $13, pass_failed = $14, pass_settled = $15, pass_moved = $16"
		   " WHERE feed = $1 AND partition = $2"
		   "  AND since = $3",
	.nargs = 16,
	.argtypes = {REGCLASSOID, REGCLASSOID, XID8OID, BOOLOID, INT8OID, INT8OID,
				 TEXTOID, OIDOID, INT4OID, XID8OID, INT8OID, TIDOID, INT8OID,
				 INT8OID, BOOLOID, INT8OID},
};

static bool lock_feed(Oid feed, bool wait);
static bool choose_work(Oid feed, Work *work, int *npending);
static void save_work(Oid feed, const Work *work, bool done);
static uint64 write_state(FeedpubStatement *statement, Datum *values,
						  const char *nulls);

/*
 * feedpub._stamp_some(feed regclass, max_rows integer) returns bigint
 *
 * A step for the partitions of a feed, by hand.  Returns how many rows it
 * stamped; NULL if nothing is to be done, or not before other transactions
 * end.  Not for PUBLIC.
 */
Datum
feedpub_stamp_some(PG_FUNCTION_ARGS)
{
	FeedpubStamping step;

	feedpub_stamping_step(PG_GETARG_OID(0), PG_GETARG_INT32(1), false, &step);
	if (step.outcome != FEEDPUB_STAMPING_GOES_ON)
		PG_RETURN_NULL();
	PG_RETURN_INT64(step.stamped);
}

/*
 * Stamp some rows of one of a feed's partitions, in a transaction of its own,
 * in READ COMMITTED.  If another process does so, waits for it if wait is
 * true, else does nothing.
 */
void
feedpub_stamping_step(Oid feed, int max_rows, bool wait,
					  FeedpubStamping *step)
{
	Work		work;
	Relation	rel;
	bool		done = false;
	Datum		values[1] = {ObjectIdGetDatum(feed)};

	MemSet(step, 0, sizeof(FeedpubStamping));
	if (!lock_feed(feed, wait))
		return;
	if (write_state(&prepare_rows, values, NULL) > 0 && wait)
	{
		/* wait for a partition without a transaction id: in the next step */
		step->outcome = FEEDPUB_STAMPING_GOES_ON;
		step->npending = 1;
		return;
	}
	if (!choose_work(feed, &work, &step->npending))
		return;
	step->outcome = FEEDPUB_STAMPING_WAITS;
	if (wait)
		LockRelationOid(work.partition, RowExclusiveLock);
	else if (!ConditionalLockRelationOid(work.partition, RowExclusiveLock))
	{
		save_work(feed, &work, false);
		return;
	}
	rel = try_relation_open(work.partition, NoLock);

	/*
	 * Is the partition still as the pass has it?  Our lock keeps it as it is
	 * from here on.
	 */
	if (rel == NULL ||
		feedpub_partition_feed(work.partition) != feed ||
		feedpub_partition_since(feed, rel) != work.since)
	{
		if (rel != NULL)
			relation_close(rel, NoLock);
		save_work(feed, &work, false);
		return;
	}
	feedpub_restamp_check(rel);
	work.pass.below = work.since == FEEDPUB_SINCE_NEVER ? 0 : work.since;
	work.pass.foreign = work.pass.only_foreign = work.since == FEEDPUB_SINCE_NEVER;
	if (work.pass.file != rel->rd_rel->relfilenode)
	{
		/* a pass begins: before its first snapshot */
		Snapshot	snapshot = GetLatestSnapshot();

		work.settled = U64FromFullTransactionId(feedpub_horizon(snapshot)) >= work.since;
	}
	feedpub_restamp_some(&work.pass, rel, max_rows);
	relation_close(rel, NoLock);

	step->stamped = work.pass.stamped;
	if (!work.pass.ended || work.pass.moved > 0)
		step->outcome = FEEDPUB_STAMPING_GOES_ON;
	if (work.pass.ended && work.pass.found == 0)
	{
		done = work.settled;
		if (done)
			step->outcome = FEEDPUB_STAMPING_GOES_ON;
		if (work.since == FEEDPUB_SINCE_NEVER)
			feedpub_shmem_mark(&feed, 1, false);	/* it can be admitted */
	}
	save_work(feed, &work, done);
}

/*
 * Note why a process ended early.
 */
void
feedpub_stamping_note_error(Oid feed, const char *error)
{
	Datum		values[2] = {ObjectIdGetDatum(feed), CStringGetTextDatum(error)};

	(void) write_state(&note_error, values, NULL);
}

/*
 * Look again for rows that could not be stamped.
 */
void
feedpub_stamping_retry(Oid feed)
{
	Datum		values[1] = {ObjectIdGetDatum(feed)};

	/* a step that is running would overwrite it */
	(void) lock_feed(feed, true);
	(void) write_state(&retry_failed, values, NULL);
}

/*
 * How many rows could not be stamped.
 */
int64
feedpub_stamping_failed(Oid feed)
{
	Datum		values[1] = {ObjectIdGetDatum(feed)};
	FeedpubRole caller;
	int64		nfailed;
	bool		isnull;

	feedpub_store_begin(&caller);
	(void) feedpub_store_run(&count_failed, values, NULL);
	nfailed = DatumGetInt64(feedpub_store_value(0, 1, &isnull));
	feedpub_store_end(&caller);
	return nfailed;
}

/*
 * Take the lock under which one process at a time stamps rows of a feed's
 * partitions.
 */
static bool
lock_feed(Oid feed, bool wait)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, feedpub_registry_table("_stamping"), feed, 0);
	return LockAcquire(&tag, ExclusiveLock, false, !wait) != LOCKACQUIRE_NOT_AVAIL;
}

static bool
choose_work(Oid feed, Work *work, int *npending)
{
	Datum		values[1] = {ObjectIdGetDatum(feed)};
	Datum		columns[12];
	bool		nulls[12];
	FeedpubRole caller;
	bool		found;

	MemSet(work, 0, sizeof(Work));
	feedpub_store_begin(&caller);
	found = feedpub_store_run(&choose_partition, values, NULL) > 0;
	if (found)
	{
		heap_deform_tuple(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, columns, nulls);
		work->partition = work->pass.relid = DatumGetObjectId(columns[0]);
		work->since = DatumGetUInt64(columns[1]);
		work->pass.file = DatumGetObjectId(columns[2]);
		work->pass.kind = (FeedpubRestampKind) DatumGetInt32(columns[3]);
		work->pass.xid = DatumGetUInt64(columns[4]);
		work->pass.pos = DatumGetInt64(columns[5]);
		work->pass.tid = *(ItemPointer) DatumGetPointer(columns[6]);
		work->pass.found = DatumGetInt64(columns[7]);
		work->pass.failed = DatumGetInt64(columns[8]);
		work->settled = DatumGetBool(columns[9]);
		*npending = (int) DatumGetInt64(columns[10]);
		work->pass.moved = DatumGetInt64(columns[11]);
	}
	feedpub_store_end(&caller);
	return found;
}

/*
 * Write the progress of a partition, after a step or instead of one.  If a
 * pass has ended, the next one begins.
 */
static void
save_work(Oid feed, const Work *work, bool done)
{
	const FeedpubRestamp *pass = &work->pass;
	Datum		values[16];
	char		nulls[17] = "                ";

	values[0] = ObjectIdGetDatum(feed);
	values[1] = ObjectIdGetDatum(work->partition);
	values[2] = UInt64GetDatum(work->since);
	values[3] = BoolGetDatum(done);
	values[4] = Int64GetDatum(pass->stamped);
	values[5] = Int64GetDatum(pass->failed);
	if (pass->error != NULL)
		values[6] = CStringGetTextDatum(pass->error);
	else
		nulls[6] = 'n';
	values[7] = ObjectIdGetDatum(pass->ended ? InvalidOid : pass->file);
	values[8] = Int32GetDatum((int32) pass->kind);
	values[9] = UInt64GetDatum(pass->xid);
	values[10] = Int64GetDatum(pass->pos);
	values[11] = PointerGetDatum(&pass->tid);
	values[12] = Int64GetDatum(pass->found);
	values[13] = Int64GetDatum(pass->failed);
	values[14] = BoolGetDatum(work->settled);
	values[15] = Int64GetDatum(pass->moved);
	(void) write_state(&write_step, values, nulls);
}

/*
 * Write our table, as its owner.  Returns the number of rows.
 */
static uint64
write_state(FeedpubStatement *statement, Datum *values, const char *nulls)
{
	FeedpubRole caller;
	uint64		nrows;

	feedpub_store_begin(&caller);
	nrows = feedpub_store_run(statement, values, nulls);
	feedpub_store_end(&caller);
	return nrows;
}

/*
 * A turn of the process (worker/maintenance.c) begins.
 */
void
feedpub_stamping_begin_turn(Oid feed)
{
	Datum		values[2] = {ObjectIdGetDatum(feed), BoolGetDatum(true)};

	(void) write_state(&prepare_rows, values, NULL);
	(void) write_state(&set_running, values, NULL);
}

void
feedpub_stamping_end_turn(Oid feed)
{
	Datum		values[2] = {ObjectIdGetDatum(feed), BoolGetDatum(false)};

	(void) write_state(&set_running, values, NULL);
}
