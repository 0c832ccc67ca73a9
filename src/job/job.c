/*-------------------------------------------------------------------------
 *
 * job.c
 *	  The steps of jobs, and the rows of feedpub._job.  job.h tells how jobs
 *	  work.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "job/job.h"

PG_FUNCTION_INFO_V1(feedpub_run_job);

/*
 * The waits of a job after turns that did not end well, in ms, the first and
 * the longest: after an error, or if a process was ended; else, for locks.
 */
#define FIRST_REST		"1000"
#define LAST_REST		"600000"
#define FIRST_RETRY		"100"
#define LAST_RETRY		"10000"

/* $1 is the first wait, $2 the last, of the attempt with this number */
#define WAIT_UNTIL(first, last, attempt) \
	"pg_catalog.clock_timestamp() + LEAST(" first " * 2.0 ^ LEAST(" attempt ", 20), " last ")" \
	" * interval '1 ms'"

/* how often the progress of a removal is written, in ms */
#define SAVE_INTERVAL	1000

static const char *const names[] = {"stamp", "remove", "expire", "sweep"};

/*
 * The jobs of a feed, or all; with those that have left rows, if $2 says so.
 * First those of the owner that has waited longest.
 */
static FeedpubStatement list_jobs = {
	.sql = "SELECT q.feed, q.kind, q.relation, q.target, q.owner, q.running, q.busy, q.wait_ms"
		   " FROM (SELECT w.*, COALESCE(j.running, false) AS running,"
		   "   COALESCE(pg_catalog.bool_or(j.running) OVER (PARTITION BY w.owner), false) AS busy,"
		   "   CASE WHEN w.kind <> 'stamp' OR j.target = w.target THEN"
		   "    GREATEST(EXTRACT(epoch FROM j.retry_at - pg_catalog.clock_timestamp()) * 1000, 0)::pg_catalog.int8 END AS wait_ms,"
		   "   pg_catalog.max(j.stepped_at) OVER (PARTITION BY w.owner) AS served_at, j.stepped_at,"
		   "   j.done, j.target AS reached, j.failed"
		   "  FROM feedpub._work w LEFT JOIN feedpub._job j"
		   "   ON j.feed = w.feed AND j.kind = w.kind AND j.relation = w.relation) q"
		   " WHERE ($1 = 0::regclass OR q.feed = $1)"
		   "  AND (q.done IS NOT TRUE OR q.reached <> q.target OR ($2 AND q.failed > 0))"
		   " ORDER BY q.served_at NULLS FIRST, q.stepped_at NULLS FIRST, q.feed::oid, q.relation::oid",
	.nargs = 2,
	.argtypes = {REGCLASSOID, BOOLOID},
};

/* $5: in the background; $6: what the last pass has left is tried again */
static FeedpubStatement begin_job = {
	.sql = "INSERT INTO feedpub._job AS j (feed, kind, relation, target, running, attempts, retry_at, stepped_at)"
		   " VALUES ($1, $2, $3, $4, $5, $5::int4,"
		   "  CASE WHEN $5 THEN " WAIT_UNTIL(FIRST_REST, LAST_REST, "0") " END,"
																		 "  pg_catalog.clock_timestamp())"
																		 " ON CONFLICT (feed, kind, relation) DO UPDATE SET target = $4, done = false,"
																		 "  running = j.running OR $5, attempts = j.attempts + $5::int4,"
																		 "  retry_at = CASE WHEN $5 THEN " WAIT_UNTIL(FIRST_REST, LAST_REST, "j.attempts") "   ELSE j.retry_at END,"
																																						   "  stepped_at = EXCLUDED.stepped_at,"
																																						   "  pass_file = CASE WHEN j.target = $4 AND NOT $6 THEN j.pass_file ELSE 0 END,"
																																						   "  rows = CASE WHEN $2 = 'stamp' AND j.target <> $4 THEN 0 ELSE j.rows END,"
																																						   "  failed = CASE WHEN $2 = 'stamp' AND (j.target <> $4 OR $6) THEN 0 ELSE j.failed END,"
																																						   "  last_error = CASE WHEN $2 = 'stamp' AND (j.target <> $4 OR $6) THEN NULL ELSE j.last_error END"
																																						   " RETURNING from_xid, pass_file, pass_kind, pass_xid, pass_pos, pass_tid,"
																																						   "  pass_moved, pass_left, pass_failed, pass_settled",
	.nargs = 6,
	.argtypes = {REGCLASSOID, TEXTOID, REGCLASSOID, XID8OID, BOOLOID, BOOLOID},
};

/* $17: a pass has ended */
static FeedpubStatement save_job = {
	.sql = "UPDATE feedpub._job SET done = $5, rows = rows + $6,"
		   "  from_xid = GREATEST(from_xid, $7),"
		   "  pass_file = $8, pass_kind = $9, pass_xid = $10, pass_pos = $11, pass_tid = $12,"
		   "  pass_moved = $13, pass_left = $14, pass_failed = $15, pass_settled = $16,"
		   "  locked = CASE WHEN $17 THEN $14 ELSE GREATEST(locked, $14) END,"
		   "  failed = CASE WHEN $17 THEN $15 ELSE GREATEST(failed, $15) END,"
		   "  stepped_at = pg_catalog.now(),"
		   "  last_error = CASE WHEN $17 AND $14 + $15 = 0 THEN NULL ELSE COALESCE($18, last_error) END,"
		   "  last_error_at = CASE WHEN $17 AND $14 + $15 = 0 THEN NULL"
		   "   WHEN $18 IS NULL THEN last_error_at ELSE pg_catalog.now() END"
		   " WHERE feed = $1 AND kind = $2 AND relation = $3 AND target = $4",
	.nargs = 18,
	.argtypes = {REGCLASSOID, TEXTOID, REGCLASSOID, XID8OID, BOOLOID, INT8OID, XID8OID,
				 OIDOID, INT4OID, XID8OID, INT8OID, TIDOID, INT8OID, INT8OID, INT8OID, BOOLOID,
				 BOOLOID, TEXTOID},
};

/*
 * $4: it has made progress; $5: the error that has ended it.  Rows whose DELETE
 * fails are tried as rarely, whatever else is removed.
 */
static FeedpubStatement end_job = {
	.sql = "UPDATE feedpub._job SET running = false,"
		   "  attempts = CASE WHEN $4 AND (failed = 0 OR kind = 'stamp') THEN 0 ELSE attempts END,"
		   "  retry_at = CASE WHEN $4 AND (failed = 0 OR kind = 'stamp') THEN NULL"
		   "   WHEN $5 IS NOT NULL OR (failed > 0 AND kind <> 'stamp')"
		   "    THEN " WAIT_UNTIL(FIRST_REST, LAST_REST, "attempts - 1") "   ELSE " WAIT_UNTIL(FIRST_RETRY, LAST_RETRY, "attempts - 1") " END,"
																																		"  last_error = COALESCE($5, last_error),"
																																		"  last_error_at = CASE WHEN $5 IS NULL THEN last_error_at ELSE pg_catalog.clock_timestamp() END"
																																		" WHERE feed = $1 AND kind = $2 AND relation = $3",
	.nargs = 5,
	.argtypes = {REGCLASSOID, TEXTOID, REGCLASSOID, BOOLOID, TEXTOID},
};

static FeedpubStatement count_failed = {
	.sql = "SELECT COALESCE(pg_catalog.sum(j.failed), 0)::pg_catalog.int8"
		   " FROM feedpub._work w JOIN feedpub._job j ON j.feed = w.feed AND j.kind = w.kind"
		   "  AND j.relation = w.relation AND j.target = w.target"
		   " WHERE w.feed = $1 AND w.kind = 'stamp'",
	.nargs = 1,
	.argtypes = {REGCLASSOID},
};

static FeedpubStatement count_stamped = {
	.sql = "SELECT COALESCE(pg_catalog.sum(rows), 0)::pg_catalog.int8 FROM feedpub._job WHERE kind = 'stamp'",
};

/*
 * feedpub._run_job(feed regclass, max_rows integer) returns bigint
 *
 * A step of the first job of a feed, by hand.  Returns how many rows it has
 * changed; NULL if nothing is to be done, or not before other transactions
 * end.  Not for PUBLIC.
 */
Datum
feedpub_run_job(PG_FUNCTION_ARGS)
{
	List	   *jobs = feedpub_job_list(PG_GETARG_OID(0), false);
	FeedpubJob *job;
	FeedpubJobOutcome outcome;

	if (jobs == NIL)
		PG_RETURN_NULL();
	job = linitial(jobs);
	feedpub_job_begin(job, false, false);
	outcome = feedpub_job_step(job, PG_GETARG_INT32(1), false);
	if (outcome == FEEDPUB_JOB_NOTHING || outcome == FEEDPUB_JOB_WAITS)
		PG_RETURN_NULL();
	PG_RETURN_INT64(job->pass.done);
}

/*
 * The jobs of a feed that are not done, or of all feeds for InvalidOid; with
 * failed_too also those that are done but for rows that failed.
 */
List *
feedpub_job_list(Oid feed, bool failed_too)
{
	Datum		values[2] = {ObjectIdGetDatum(feed), BoolGetDatum(failed_too)};
	MemoryContext context = CurrentMemoryContext;
	MemoryContext oldcontext;
	List	   *jobs = NIL;
	FeedpubRole caller;
	uint64		n;

	feedpub_store_begin(&caller);
	n = feedpub_store_run(&list_jobs, values, NULL);
	oldcontext = MemoryContextSwitchTo(context);
	for (uint64 i = 0; i < n; i++)
	{
		FeedpubJob *job = palloc0_object(FeedpubJob);
		Datum		columns[8];
		bool		nulls[8];
		char	   *kind;

		heap_deform_tuple(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, columns, nulls);
		job->feed = DatumGetObjectId(columns[0]);
		kind = TextDatumGetCString(columns[1]);
		while (strcmp(kind, names[job->kind]) != 0)
			job->kind++;
		job->relation = DatumGetObjectId(columns[2]);
		job->target = DatumGetUInt64(columns[3]);
		job->owner = DatumGetObjectId(columns[4]);
		job->running = DatumGetBool(columns[5]);
		job->busy = DatumGetBool(columns[6]);
		job->wait_ms = nulls[7] ? 0 : DatumGetInt64(columns[7]);
		jobs = lappend(jobs, job);
	}
	MemoryContextSwitchTo(oldcontext);
	feedpub_store_end(&caller);
	return jobs;
}

const char *
feedpub_job_name(FeedpubJobKind kind)
{
	return names[kind];
}

/*
 * Begin a turn of a job: go on from where it is.
 */
void
feedpub_job_begin(FeedpubJob *job, bool in_background, bool anew)
{
	Datum		values[6] = {ObjectIdGetDatum(job->feed),
							 CStringGetTextDatum(names[job->kind]),
							 ObjectIdGetDatum(job->relation),
							 UInt64GetDatum(job->target),
							 BoolGetDatum(in_background), BoolGetDatum(anew)};
	FeedpubPass *pass = &job->pass;
	FeedpubRole caller;
	Datum		columns[10];
	bool		nulls[10];

	feedpub_store_begin(&caller);
	(void) feedpub_store_run(&begin_job, values, NULL);
	heap_deform_tuple(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, columns, nulls);
	pass->removes = job->kind != FEEDPUB_JOB_STAMP;
	pass->from_xid = DatumGetUInt64(columns[0]);
	pass->file = DatumGetObjectId(columns[1]);
	pass->kind = (FeedpubRows) DatumGetInt32(columns[2]);
	pass->xid = DatumGetUInt64(columns[3]);
	pass->pos = DatumGetInt64(columns[4]);
	pass->tid = *(ItemPointer) DatumGetPointer(columns[5]);
	pass->moved = DatumGetInt64(columns[6]);
	pass->left = DatumGetInt64(columns[7]);
	pass->failed = DatumGetInt64(columns[8]);
	job->settled = DatumGetBool(columns[9]);
	feedpub_store_end(&caller);
}

/*
 * Make a step, in a transaction of the caller's, in READ COMMITTED.  If wait
 * is false, it does nothing if it would have to wait for another session.
 */
FeedpubJobOutcome
feedpub_job_step(FeedpubJob *job, int max_rows, bool wait)
{
	FeedpubPass *pass = &job->pass;
	FeedpubJobOutcome outcome;
	LOCKTAG		tag;

	pass->done = 0;
	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, feedpub_registry_table("_job"), job->relation, job->kind);
	if (LockAcquire(&tag, ExclusiveLock, false, !wait) == LOCKACQUIRE_NOT_AVAIL)
		return FEEDPUB_JOB_NOTHING;
	if (job->kind == FEEDPUB_JOB_SWEEP)
		return feedpub_registry_sweep(max_rows) ? FEEDPUB_JOB_GOES_ON : FEEDPUB_JOB_DONE;
	outcome = pass->removes ? feedpub_remove_rows(job, max_rows, wait) :
							  feedpub_stamp_rows(job, max_rows, wait);
	if (outcome != FEEDPUB_JOB_GOES_ON)
		return outcome;
	job->rows += pass->done;
	if (pass->ended)
	{
		/* rows that are stamped may have been written again, or moved */
		bool		whole = pass->removes ?
			pass->left + pass->failed == 0 :
			pass->left + pass->moved == 0 && job->settled;

		outcome = whole		? FEEDPUB_JOB_DONE :
			pass->moved > 0 ? FEEDPUB_JOB_GOES_ON :
							  FEEDPUB_JOB_WAITS;
		pass->file = InvalidOid;
	}
	if (!pass->removes || pass->ended ||
		TimestampDifferenceExceeds(job->saved_at, GetCurrentTimestamp(), SAVE_INTERVAL))
		feedpub_job_save(job, outcome == FEEDPUB_JOB_DONE);
	return outcome;
}

/*
 * Write how far a job is.  All rows of an outbox with xids below from_xid are
 * removed if they are before the floor: a pass that has left none has been
 * there, and so has the floor's snapshot.
 */
void
feedpub_job_save(FeedpubJob *job, bool done)
{
	const FeedpubPass *pass = &job->pass;
	Datum		values[18];
	char		nulls[] = "                  ";
	uint64		from_xid = 0;

	if (pass->removes && pass->left + pass->failed == 0)
		from_xid = pass->ended ? pass->before.xmin : Min(pass->xid, pass->before.xmin);
	values[0] = ObjectIdGetDatum(job->feed);
	values[1] = CStringGetTextDatum(names[job->kind]);
	values[2] = ObjectIdGetDatum(job->relation);
	values[3] = UInt64GetDatum(job->target);
	values[4] = BoolGetDatum(done);
	values[5] = Int64GetDatum(job->rows);
	values[6] = UInt64GetDatum(from_xid);
	values[7] = ObjectIdGetDatum(pass->file);
	values[8] = Int32GetDatum((int32) pass->kind);
	values[9] = UInt64GetDatum(pass->xid);
	values[10] = Int64GetDatum(pass->pos);
	values[11] = PointerGetDatum(&pass->tid);
	values[12] = Int64GetDatum(pass->moved);
	values[13] = Int64GetDatum(pass->left);
	values[14] = Int64GetDatum(pass->failed);
	values[15] = BoolGetDatum(job->settled);
	values[16] = BoolGetDatum(pass->ended);
	values[17] = CStringGetTextDatum(pass->error);
	if (pass->error[0] == '\0')
		nulls[17] = 'n';
	(void) feedpub_store_execute(&save_job, values, nulls);
	job->rows = 0;
	job->saved_at = GetCurrentTimestamp();
}

/*
 * End a turn in the background, because of an error if there is one.
 */
void
feedpub_job_end(const FeedpubJob *job, bool progressed, const char *error)
{
	Datum		values[5] = {ObjectIdGetDatum(job->feed),
							 CStringGetTextDatum(names[job->kind]),
							 ObjectIdGetDatum(job->relation),
							 BoolGetDatum(progressed),
							 error ? CStringGetTextDatum(error) : (Datum) 0};

	(void) feedpub_store_execute(&end_job, values, error ? NULL : "    n");
}

/*
 * How many rows that came with a feed's partitions could not be stamped.
 */
int64
feedpub_job_failed_rows(Oid feed)
{
	Datum		values[1] = {ObjectIdGetDatum(feed)};

	return feedpub_store_number(&count_failed, values, 0);
}

/*
 * How many rows of partitions have been stamped, of all feeds.
 */
int64
feedpub_job_stamped_rows(void)
{
	return feedpub_store_number(&count_stamped, NULL, 0);
}

/*
 * In a procedure: begin a transaction in READ COMMITTED that may write,
 * whatever the session's defaults are.
 */
void
feedpub_job_begin_transaction(void)
{
	SPI_commit();
	XactIsoLevel = XACT_READ_COMMITTED;
	XactReadOnly = false;
}
