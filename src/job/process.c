/*-------------------------------------------------------------------------
 * process.c
 *	  The process that makes the steps of jobs in the background, and with
 *	  them runs owners' code.
 *
 * A process works for one owner for one turn, or makes those steps that run no
 * owner's code.  The database's worker starts it (plan.c).  It takes the first
 * job on the list that is due, as long as that is one of its own, and ends if
 * the turn is over.  If a step takes longer than a limit, it ends the process,
 * in a way that no code can catch.  What that code may have left in its session
 * ends with the process.
 *
 * The limit is noticed where code checks for interrupts.  Code that does not,
 * such as a long xpath(), keeps the process until it is ready, and the server
 * has no means against that but a crash.  Others' jobs go on in other processes.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timeout.h"

#include "job/job.h"

PGDLLEXPORT void feedpub_job_main(Datum main_arg);

/* so that several steps share a second's rate */
#define STEPS_A_SECOND		10

/* after how long a step ends the process, and how long a turn is, in ms */
#define STEP_LIMIT			7000
#define TURN				3000

static TimeoutId limit;
static TimestampTz began;
static Oid	owner;				/* for whom it works */
static bool has_job = false;
static FeedpubJob job;			/* at which it works */
static FeedpubJobOutcome outcome;
static bool progressed;
static const char *failure;

/*
 * The handler of the limit.  No code catches FATAL.
 */
static void
end_process(void)
{
	die(SIGALRM);
}

static void
run_in_transaction(void (*step)(void))
{
	SetCurrentStatementStartTimestamp();
	pgstat_report_activity(STATE_RUNNING, has_job ? feedpub_job_names[job.kind] : "jobs");
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	step();
	PopActiveSnapshot();
	CommitTransactionCommand();
	pgstat_report_stat(false);
	pgstat_report_activity(STATE_IDLE, NULL);
}

/*
 * Take the first job that is due, unless it is another owner's turn.  Those
 * for whom a process works have theirs.
 */
static void
take_job(void)
{
	ListCell   *lc;

	has_job = false;
	foreach(lc, feedpub_job_list(InvalidOid))
	{
		FeedpubJob *due = lfirst(lc);

		if (due->wait_ms > 0 || (due->owner != owner && due->busy))
			continue;
		if (due->owner != owner)
			return;
		job = *due;
		feedpub_job_begin(&job, true, false);
		has_job = true;
		return;
	}
}

/*
 * Nothing waits for these commits.  Stamped rows become durable with the batch
 * that has them.  If a crash takes back a removal, the rows are before the
 * floor, and are removed again.
 */
static void
make_step(void)
{
	(void) set_config_option("synchronous_commit", "off", PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
	outcome = feedpub_job_step(&job, false);
}

/*
 * Sleep after a step, so that no more rows a second are changed than rate; 0
 * sets no limit.
 */
static void
throttle(int64 nrows, int rate, TimestampTz step_began)
{
	int64		ms;

	if (rate == 0 || nrows == 0)
		return;
	ms = nrows * 1000 / rate - TimestampDifferenceMilliseconds(step_began, GetCurrentTimestamp());
	if (ms > 0)
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 ms, feedpub_wait_event("FeedpubJob"));
	ResetLatch(MyLatch);
}

static void
end_job(void)
{
	char	   *name = get_rel_name(job.feed);
	const char *verb = feedpub_job_names[job.kind];

	/* the message may tell of rows: it is for the table's owner */
	if (failure != NULL)
		ereport(LOG,
				(name != NULL ?
					 errmsg("could not %s rows of feed \"%s\"", verb, name) :
					 errmsg("could not %s rows of feed with OID %u", verb, job.feed),
				 errdetail("feedpub.jobs tells its owner why.")));
	feedpub_job_end(&job, progressed && failure == NULL, failure);
}

/*
 * Make steps of the job until it is done, has to wait, or the turn is over.
 */
static void
work(void)
{
	int			rate = job.kind == FEEDPUB_JOB_STAMP ? feedpub_stamping_rate : feedpub_removal_rate;

	progressed = false;
	do
	{
		TimestampTz step_began = GetCurrentTimestamp();

		CHECK_FOR_INTERRUPTS();
		if (rate > 0)
			job.max_rows = Min(job.max_rows, Max(rate / STEPS_A_SECOND, 1));
		enable_timeout_after(limit, STEP_LIMIT);
		run_in_transaction(make_step);
		disable_timeout(limit, false);
		progressed = progressed || outcome == FEEDPUB_JOB_DONE || job.pass.done > 0;
		throttle(job.pass.done, rate, step_began);
	} while (outcome == FEEDPUB_JOB_GOES_ON &&
			 !TimestampDifferenceExceeds(began, GetCurrentTimestamp(), TURN));
	run_in_transaction(end_job);
}

/*
 * bgw_extra has the arguments: the database and the owner.
 */
void
feedpub_job_main(Datum main_arg)
{
	Oid			arguments[2];

	memcpy(arguments, MyBgworkerEntry->bgw_extra, sizeof(arguments));
	owner = arguments[1];
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnectionByOid(arguments[0], InvalidOid, 0);
	limit = RegisterTimeout(USER_TIMEOUT, end_process);
	feedpub_guc_pin();
	pgstat_report_appname("feedpub job");

	PG_TRY();
	{
		began = GetCurrentTimestamp();
		do
		{
			run_in_transaction(take_job);
			if (has_job)
				work();
		} while (has_job && !TimestampDifferenceExceeds(began, GetCurrentTimestamp(), TURN));
	}
	PG_CATCH();
	{
		ErrorData  *error;

		disable_timeout(limit, false);
		HOLD_INTERRUPTS();
		MemoryContextSwitchTo(TopMemoryContext);
		error = CopyErrorData();
		if (!has_job)
			EmitErrorReport();
		AbortCurrentTransaction();
		FlushErrorState();
		RESUME_INTERRUPTS();
		failure = error->message;
		if (has_job)
			run_in_transaction(end_job);
	}
	PG_END_TRY();
	proc_exit(0);
}
