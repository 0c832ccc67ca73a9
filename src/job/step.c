/*-------------------------------------------------------------------------
 *
 * step.c
 *	  The steps of jobs, and the rows of feedpub._job.  job.h tells how jobs
 *	  work.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/xact.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/xid8.h"

#include "job/job.h"

PG_FUNCTION_INFO_V1(feedpub_run_job);

/*
 * The waits of a job after turns that did not end well, in ms, the first and
 * the longest: after an error, or if a process was ended; else, for locks.
 */
#define FIRST_REST		1000
#define LAST_REST		600000
#define FIRST_RETRY		100
#define LAST_RETRY		10000

/*
 * How many rows a step changes: few at first, since each may be slow; then as
 * many as take so long, in ms, at most so many.
 */
#define STEP_TIME		20
#define MOST_ROWS		5000

/*
 * When a procedure tells its caller how far it is, in ms: first after so long,
 * then each time twice as much later, and at last once a minute.
 */
#define FIRST_TELL		5000
#define LAST_TELL		60000

/* how much of a pass is kept */
#define KEPT			offsetof(FeedpubPass, removes)

const char *const feedpub_job_names[] = {"stamp", "remove", "expire", "sweep"};

/*
 * The jobs of a feed, or all.  First those of the owner that has waited
 * longest.
 */
static FeedpubStatement list_jobs = {
	.sql = "SELECT feed, kind, relation, target, owner, running, busy, wait_ms, attempts"
		   " FROM (SELECT w.*, j.done, j.target AS reached, j.stepped_at,"
		   "   COALESCE(j.running, false) AS running, COALESCE(j.attempts, 0) AS attempts,"
		   "   COALESCE(pg_catalog.bool_or(j.running) OVER owners, false) AS busy,"
		   "   COALESCE(EXTRACT(epoch FROM j.retry_at - pg_catalog.clock_timestamp()) * 1000, 0)::pg_catalog.int8 AS wait_ms,"
		   "   pg_catalog.max(j.stepped_at) OVER owners AS served_at"
		   "  FROM feedpub._work w LEFT JOIN feedpub._job j"
		   "   ON j.feed = w.feed AND j.kind = w.kind AND j.relation = w.relation"
		   "    AND (w.kind <> 'stamp' OR j.target = w.target)"
		   "  WINDOW owners AS (PARTITION BY w.owner)) q"
		   " WHERE ($1 = 0::regclass OR feed = $1) AND (done IS NOT TRUE OR reached <> target)"
		   " ORDER BY served_at NULLS FIRST, stepped_at NULLS FIRST, feed::oid, relation::oid",
};

/* The first parameters of these name the job: see name_job(). */
#define IS_JOB			" WHERE feed = $1 AND kind = $2 AND relation = $3"

/* $5: in the background; $6: the next turn, if it does not end */
static FeedpubStatement begin_job = {
	.sql = "INSERT INTO feedpub._job AS j (feed, kind, relation, target, running, attempts, retry_at, stepped_at)"
		   " VALUES ($1, $2, $3, $4, $5::bool, $5::int4, $6, pg_catalog.clock_timestamp())"
		   " ON CONFLICT (feed, kind, relation) DO UPDATE SET target = $4, done = false,"
		   "  running = j.running OR $5, attempts = j.attempts + $5::int4,"
		   "  retry_at = COALESCE($6, j.retry_at), stepped_at = EXCLUDED.stepped_at,"
		   "  rows = CASE WHEN $2 <> 'stamp' OR j.target = $4 THEN j.rows ELSE 0 END,"
		   "  failed = CASE WHEN $2 <> 'stamp' OR j.target = $4 THEN j.failed ELSE 0 END,"
		   "  last_error = CASE WHEN $2 <> 'stamp' OR j.target = $4 THEN j.last_error END"
		   " RETURNING pass, locked, failed",
};

/* $10: the last error of a row */
static FeedpubStatement save_job = {
	.sql = "UPDATE feedpub._job SET done = $5, rows = rows + $6, pass = $7, locked = $8, failed = $9,"
		   "  stepped_at = pg_catalog.now(),"
		   "  attempts = CASE WHEN $5 THEN 0 ELSE attempts END, retry_at = CASE WHEN NOT $5 THEN retry_at END,"
		   "  last_error = CASE WHEN $8::int8 + $9::int8 > 0 THEN COALESCE($10, last_error) END,"
		   "  last_error_at = CASE WHEN $8 + $9 = 0 THEN NULL"
		   "   WHEN $10 IS NULL THEN last_error_at ELSE pg_catalog.now() END" IS_JOB " AND target = $4",
};

/*
 * $5: the next turn; NULL: as soon as there is something to do; $6: the error
 * that ends it
 */
static FeedpubStatement end_job = {
	.sql = "UPDATE feedpub._job SET running = false, retry_at = $5,"
		   "  attempts = CASE WHEN $5::timestamptz IS NULL THEN 0 ELSE attempts END,"
		   "  last_error = COALESCE($6, last_error),"
		   "  last_error_at = CASE WHEN $6 IS NULL THEN last_error_at ELSE pg_catalog.clock_timestamp() END" IS_JOB,
};

static FeedpubStatement count_failed = {
	.sql = "SELECT COALESCE(pg_catalog.sum(j.failed), 0)::pg_catalog.int8"
		   " FROM feedpub._work w JOIN feedpub._job j ON j.feed = w.feed AND j.kind = w.kind"
		   "  AND j.relation = w.relation AND j.target = w.target"
		   " WHERE w.feed = $1 AND w.kind = 'stamp'",
};

static FeedpubStatement count_stamped = {
	.sql = "SELECT COALESCE(pg_catalog.sum(rows), 0)::pg_catalog.int8 FROM feedpub._job WHERE kind = 'stamp'",
};

/* Lock a job for its step, until the end of the transaction. */
static bool
lock_job(const FeedpubJob *job, bool wait)
{
	LOCKTAG		tag;

	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, feedpub_registry_table("_job"), job->relation, job->kind);
	return LockAcquire(&tag, ExclusiveLock, false, !wait) != LOCKACQUIRE_NOT_AVAIL;
}

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
	List	   *jobs = feedpub_job_list(PG_GETARG_OID(0));
	FeedpubJob *job;
	FeedpubJobOutcome outcome;

	if (jobs == NIL)
		PG_RETURN_NULL();
	job = linitial(jobs);

	/* before the job's row, which would be waited for */
	if (!lock_job(job, false))
		PG_RETURN_NULL();
	feedpub_job_begin(job, false, false);
	job->max_rows = PG_GETARG_INT32(1);
	outcome = feedpub_job_step(job, false);
	if (outcome == FEEDPUB_JOB_NOTHING || outcome == FEEDPUB_JOB_WAITS)
		PG_RETURN_NULL();
	PG_RETURN_INT64(job->pass.done);
}

/*
 * The jobs of a feed that are not done, or of all feeds for InvalidOid.
 */
List *
feedpub_job_list(Oid feed)
{
	Datum		values[1] = {ObjectIdGetDatum(feed)};
	List	   *jobs = NIL;
	FeedpubRole caller;
	uint64		n;

	feedpub_store_begin(&caller);
	n = feedpub_store_run(&list_jobs, values, NULL);
	for (uint64 i = 0; i < n; i++)
	{
		FeedpubJob *job = palloc0_object(FeedpubJob);
		Datum		columns[9];
		bool		nulls[9];
		char	   *kind;

		heap_deform_tuple(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, columns, nulls);
		job->feed = DatumGetObjectId(columns[0]);
		kind = TextDatumGetCString(columns[1]);
		while (strcmp(kind, feedpub_job_names[job->kind]) != 0)
			job->kind++;
		job->relation = DatumGetObjectId(columns[2]);
		job->target = DatumGetUInt64(columns[3]);
		job->owner = DatumGetObjectId(columns[4]);
		job->running = DatumGetBool(columns[5]);
		job->busy = DatumGetBool(columns[6]);
		job->wait_ms = DatumGetInt64(columns[7]);
		job->attempts = DatumGetInt32(columns[8]);
		jobs = lappend(jobs, job);
	}
	feedpub_store_end(&caller);
	return jobs;
}

/*
 * The parameters that name a job.
 */
static void
name_job(const FeedpubJob *job, Datum *values)
{
	values[0] = ObjectIdGetDatum(job->feed);
	values[1] = CStringGetTextDatum(feedpub_job_names[job->kind]);
	values[2] = ObjectIdGetDatum(job->relation);
	values[3] = UInt64GetDatum(job->target);
}

/*
 * The time after a wait: of the first attempt, or longer, of a later one.
 */
static Datum
time_after(int64 first, int64 last, int attempts)
{
	return TimestampTzGetDatum(TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
														   Min(first << Min(attempts, 20), last)));
}

/*
 * Begin a turn of a job: go on from where it is, or anew, if what the last pass
 * has left is to be tried again.
 */
void
feedpub_job_begin(FeedpubJob *job, bool in_background, bool anew)
{
	FeedpubPass *pass = &job->pass;
	Datum		values[6];
	FeedpubRole caller;
	Datum		kept;
	bool		isnull;

	name_job(job, values);
	values[4] = BoolGetDatum(in_background);
	if (in_background)
		values[5] = time_after(FIRST_REST, LAST_REST, job->attempts++);
	feedpub_store_begin(&caller);
	(void) feedpub_store_run(&begin_job, values, in_background ? NULL : "     n");
	kept = feedpub_store_value(0, 1, &isnull);
	if (!isnull && VARSIZE_ANY_EXHDR(DatumGetPointer(kept)) == KEPT)
		memcpy(pass, VARDATA_ANY(DatumGetPointer(kept)), KEPT);
	job->locked = DatumGetInt64(feedpub_store_value(0, 2, &isnull));
	job->failed = DatumGetInt64(feedpub_store_value(0, 3, &isnull));
	feedpub_store_end(&caller);
	pass->removes = job->kind != FEEDPUB_JOB_STAMP;
	if (pass->target != job->target || anew)
		pass->file = InvalidOid;
	pass->target = job->target;
	job->max_rows = 1;
}

/*
 * Write how far a job is.  All rows of an outbox with xids below from_xid are
 * removed if they are before the floor: a pass that has left none has been
 * there, and so has the floor's snapshot.
 */
static void
save(FeedpubJob *job, bool done)
{
	FeedpubPass *pass = &job->pass;
	bytea	   *kept = palloc(VARHDRSZ + KEPT);
	Datum		values[10];

	if (pass->removes && pass->left + pass->failed == 0)
		pass->from_xid = Max(pass->from_xid,
							 pass->ended ? pass->before.xmin : Min(pass->xid, pass->before.xmin));
	job->locked = pass->ended ? pass->left : Max(job->locked, pass->left);
	job->failed = pass->ended ? pass->failed : Max(job->failed, pass->failed);
	SET_VARSIZE(kept, VARHDRSZ + KEPT);
	memcpy(VARDATA(kept), pass, KEPT);
	name_job(job, values);
	values[4] = BoolGetDatum(done);
	values[5] = Int64GetDatum(pass->done);
	values[6] = PointerGetDatum(kept);
	values[7] = Int64GetDatum(job->locked);
	values[8] = Int64GetDatum(job->failed);
	values[9] = CStringGetTextDatum(pass->error);
	(void) feedpub_store_execute(&save_job, values, pass->error[0] == '\0' ? "         n" : NULL);
}

static FeedpubJobOutcome
step(FeedpubJob *job, bool wait)
{
	LOCKMODE	lockmode = job->kind == FEEDPUB_JOB_EXPIRE ? AccessShareLock : RowExclusiveLock;
	FeedpubPass *pass = &job->pass;
	FeedpubJobOutcome outcome = FEEDPUB_JOB_GOES_ON;
	Relation	rel;
	bool		is_there;

	if (!lock_job(job, wait))
		return FEEDPUB_JOB_NOTHING;
	if (job->kind == FEEDPUB_JOB_SWEEP)
	{
		pass->done = job->max_rows;
		return feedpub_registry_sweep(job->max_rows) ? FEEDPUB_JOB_GOES_ON : FEEDPUB_JOB_DONE;
	}
	if (pass->removes && !feedpub_registry_lock_history(job->feed, RowShareLock, wait))
		return FEEDPUB_JOB_WAITS;
	if (wait)
		LockRelationOid(job->relation, lockmode);
	else if (!ConditionalLockRelationOid(job->relation, lockmode))
		return FEEDPUB_JOB_WAITS;
	rel = try_relation_open(job->relation, NoLock);
	if (rel == NULL)
		return FEEDPUB_JOB_NOTHING;
	is_there = pass->removes ? feedpub_remove_rows(job, rel) : feedpub_stamp_rows(job, rel);
	relation_close(rel, NoLock);
	if (!is_there)
		return FEEDPUB_JOB_NOTHING;
	job->total += pass->done;
	if (pass->ended)
	{
		/* rows that are stamped may have been written again, or moved */
		bool		whole = pass->removes ?
			pass->left + pass->failed == 0 :
			pass->left + pass->moved == 0 && pass->settled;

		outcome = whole		? FEEDPUB_JOB_DONE :
			pass->moved > 0 ? FEEDPUB_JOB_GOES_ON :
							  FEEDPUB_JOB_WAITS;
		pass->file = InvalidOid;
	}
	save(job, outcome == FEEDPUB_JOB_DONE);
	return outcome;
}

/*
 * Make a step, in a transaction of the caller's, in READ COMMITTED.  If wait
 * is false, it does nothing if it would have to wait for another session.
 */
FeedpubJobOutcome
feedpub_job_step(FeedpubJob *job, bool wait)
{
	TimestampTz began = GetCurrentTimestamp();
	FeedpubJobOutcome outcome;
	double		ratio;

	job->pass.done = 0;
	outcome = step(job, wait);
	/* if none was changed, the time says nothing of how fast that is */
	ratio = Min(STEP_TIME * 1000.0 / Max(GetCurrentTimestamp() - began, 1), 2);
	if (job->pass.done > 0 || ratio < 1)
		job->max_rows = Max((int) Min(ceil(job->max_rows * ratio), MOST_ROWS), 1);
	return outcome;
}

/*
 * In a procedure: tell the caller how far the job is, if it takes long.  The
 * rate and what is left are of this call.
 */
static void
tell(FeedpubJob *job)
{
	TimestampTz now = GetCurrentTimestamp();
	int64		ms = TimestampDifferenceMilliseconds(job->began, now);
	double		left = 0;
	char	   *name;

	if (now < job->tell_at)
		return;
	job->tell_at = TimestampTzPlusMilliseconds(now, Min(Max(ms, FIRST_TELL), LAST_TELL));
	if (job->ratio > 0)
		left = ms / 1000.0 / job->ratio * (1 - job->ratio);
	name = get_rel_name(job->relation);
	if (name == NULL)
		return;
	ereport(NOTICE,
			(errmsg(job->pass.removes ? "so far, %lld rows of \"%s\" have been removed" : "so far, %lld rows of \"%s\" have been published again",
					(long long) job->total, name),
			 job->ratio > 0 ?
				 errdetail("%lld rows a second; about %d %% are done, and about %lld:%02d:%02d is left.",
						   (long long) (job->total * 1000 / ms), (int) rint(job->ratio * 100),
						   (long long) left / 3600, (int) ((long long) left / 60 % 60), (int) ((long long) left % 60)) :
				 errdetail("%lld rows a second.", (long long) (job->total * 1000 / ms))));
}

/*
 * In a procedure: make steps, each in a transaction of its own, as long as the
 * job goes on.
 */
FeedpubJobOutcome
feedpub_job_run(FeedpubJob *job)
{
	FeedpubJobOutcome outcome;

	if (job->began == 0)
	{
		job->began = GetCurrentTimestamp();
		job->tell_at = TimestampTzPlusMilliseconds(job->began, FIRST_TELL);
	}
	do
	{
		CHECK_FOR_INTERRUPTS();
		feedpub_job_begin_transaction();
		outcome = feedpub_job_step(job, true);
		if (outcome == FEEDPUB_JOB_GOES_ON)
			tell(job);
	} while (outcome == FEEDPUB_JOB_GOES_ON);
	return outcome;
}

/*
 * End a turn in the background, because of an error if there is one.  Rows
 * whose DELETE fails are tried as rarely, whatever else is removed.
 */
void
feedpub_job_end(const FeedpubJob *job, bool progressed, const char *error)
{
	bool		fails = error != NULL || (job->failed > 0 && job->kind != FEEDPUB_JOB_STAMP);
	char		nulls[] = "      ";
	Datum		values[6];

	name_job(job, values);
	if (progressed && !fails)
		nulls[4] = 'n';
	else
		values[4] = time_after(fails ? FIRST_REST : FIRST_RETRY,
							   fails ? LAST_REST : LAST_RETRY, job->attempts - 1);
	if (error == NULL)
		nulls[5] = 'n';
	else
		values[5] = CStringGetTextDatum(error);
	(void) feedpub_store_execute(&end_job, values, nulls);
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
