/*-------------------------------------------------------------------------
 * plan.c
 *	  For whom the database's worker (worker.c) starts processes that make the
 *	  steps of jobs (process.c).
 *
 * Normally one process runs at a time, and owners take turns.  If it has run
 * for longer than a turn takes, its owner's code is slow, and another process
 * is started for another owner.  So an owner waits for the code of another one
 * for a few seconds, and then no more.  That goes on up to MAX_PROCESSES, of
 * which one is for the steps that run no owner's code.  An owner has one
 * process.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "utils/memutils.h"

#include "job/job.h"

#define MAX_PROCESSES	4

/* for how long a process runs if no code is slow, in ms */
#define FAST			4000

/* one that has run for so long was ended by its own limit (process.c), in ms */
#define SLOW			7000

/*
 * How long after one process another is started, in ms: one that cannot even
 * begin is not started again and again without a pause.
 */
#define SHORTEST_WAIT	20

static struct
{
	BackgroundWorkerHandle *handle; /* NULL: no process */
	Oid			owner;
	TimestampTz started_at;
} processes[MAX_PROCESSES];

static TimestampTz plan_at = DT_NOEND;
static TimestampTz pause_ends = DT_NOBEGIN;
static int64 stamped = -1;		/* rows up to now; -1: no plan was made */

static bool
has_ended(int i)
{
	pid_t		pid;

	return GetBackgroundWorkerPid(processes[i].handle, &pid) == BGWH_STOPPED;
}

static bool
has_process(Oid owner)
{
	for (int i = 0; i < MAX_PROCESSES; i++)
	{
		if (processes[i].handle != NULL && processes[i].owner == owner)
			return true;
	}
	return false;
}

/*
 * Why has a process of an owner ended that has written nothing?  NULL if this
 * worker has started none.
 */
static const char *
why_ended(Oid owner)
{
	TimestampTz started_at = 0;

	for (int i = 0; i < MAX_PROCESSES; i++)
	{
		if (processes[i].owner == owner)
			started_at = Max(started_at, processes[i].started_at);
	}
	return started_at == 0													? NULL :
		TimestampDifferenceExceeds(started_at, GetCurrentTimestamp(), SLOW) ? "a step took too long and was ended" :
																			  "its process was ended";
}

/*
 * Start a process for an owner.  If the server has no room for it, another plan
 * tries again.
 */
static bool
start_process(Oid owner)
{
	BackgroundWorker worker = {0};
	Oid			arguments[2] = {MyDatabaseId, owner};
	MemoryContext oldcontext = MemoryContextSwitchTo(TopMemoryContext);
	static bool was_refused = false;
	int			i = 0;
	bool		started;

	while (processes[i].handle != NULL)
		i++;
	feedpub_launcher_describe(&worker, "feedpub job", "feedpub_job_main");
	memcpy(worker.bgw_extra, arguments, sizeof(arguments));
	worker.bgw_notify_pid = MyProcPid;
	processes[i].owner = owner;
	processes[i].started_at = GetCurrentTimestamp();
	pause_ends = TimestampTzPlusMilliseconds(processes[i].started_at, SHORTEST_WAIT);
	started = RegisterDynamicBackgroundWorker(&worker, &processes[i].handle);
	if (!started)
		processes[i].handle = NULL;
	MemoryContextSwitchTo(oldcontext);
	if (started)
		was_refused = false;
	else if (!was_refused)
	{
		was_refused = true;
		ereport(WARNING,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("could not start a process for jobs of feeds"),
				 errdetail("The server has no free slot for a background worker."),
				 errhint("You might need to increase \"%s\".", "max_worker_processes")));
	}
	return started;
}

/*
 * Look which jobs there are, what has become of the processes, and start one
 * if it is time.  In a transaction.
 */
void
feedpub_plan_jobs(FeedpubWorkerStats *stats)
{
	TimestampTz now = GetCurrentTimestamp();
	List	   *jobs;
	ListCell   *lc;
	int			nprocesses = 0;
	bool		may_start = true;
	int64		rows = feedpub_job_stamped_rows();

	/*
	 * Before the list: what has ended has written its rows.  So a job that runs
	 * without a process was ended, or was another worker's.
	 */
	for (int i = 0; i < MAX_PROCESSES; i++)
	{
		if (processes[i].handle != NULL && has_ended(i))
		{
			pfree(processes[i].handle);
			processes[i].handle = NULL;
		}
		if (processes[i].handle == NULL)
			continue;
		nprocesses++;
		if (!TimestampDifferenceExceeds(processes[i].started_at, now, FAST))
			may_start = false;
	}
	jobs = feedpub_job_list(InvalidOid);
	plan_at = DT_NOEND;
	foreach(lc, jobs)
	{
		FeedpubJob *job = lfirst(lc);

		if (job->running && !has_process(job->owner))
			feedpub_job_end(job, false, why_ended(job->owner));
	}
	foreach(lc, jobs)
	{
		FeedpubJob *job = lfirst(lc);

		if (job->running || has_process(job->owner))
			continue;
		if (job->wait_ms > 0)
			plan_at = Min(plan_at, TimestampTzPlusMilliseconds(now, job->wait_ms));
		else if (now < pause_ends)
			plan_at = Min(plan_at, pause_ends);
		else if (may_start && nprocesses < MAX_PROCESSES - (OidIsValid(job->owner) ? 1 : 0))
			may_start = !start_process(job->owner);
	}
	if (stamped >= 0)
		stats->stamped += Max(rows - stamped, 0);
	stamped = rows;
}

/*
 * How long there is no need for another plan, in ms.
 */
long
feedpub_plan_wait(void)
{
	for (int i = 0; i < MAX_PROCESSES; i++)
	{
		if (processes[i].handle != NULL && has_ended(i))
			return 0;
	}
	return TimestampDifferenceMilliseconds(GetCurrentTimestamp(), plan_at);
}

/*
 * End the processes, since the worker ends, for example because other databases
 * wait for one.
 */
void
feedpub_plan_end(void)
{
	for (int i = 0; i < MAX_PROCESSES; i++)
	{
		if (processes[i].handle != NULL)
			TerminateBackgroundWorker(processes[i].handle);
	}
}
