/*-------------------------------------------------------------------------
 * maintenance_plan.c
 *	  When the database's worker (worker.c) starts the process that stamps or
 *	  removes rows, and for which feed.
 *
 * One process runs at a time (maintenance.c).  If its last turn failed, or was
 * ended by the limit, or found only locks, its feed waits, each time twice as
 * long.  Owners take turns.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "worker/worker.h"

/* the waits of a feed: after a failure, or for locks; in ms */
#define FIRST_REST		1000
#define LAST_REST		(3600 * 1000)
#define LAST_REMOVAL_REST	(600 * 1000)
#define FIRST_RETRY			100
#define LAST_RETRY			10000

/* What the worker knows of a feed with such work. */
typedef struct MaintenanceTask
{
	Oid			feed;			/* hash key, must be first */
	Oid			owner;
	bool		listed;			/* there is, or was, such work */
	bool		pending;
	int			failures;		/* in succession */
	int			waits;
	bool		is_removal;
	int64		done;			/* rows up to now, as far as is known */
	TimestampTz not_before;
	TimestampTz served_at;
} MaintenanceTask;

static HTAB *tasks = NULL;
static BackgroundWorkerHandle *process = NULL;
static Oid	process_feed;
static TimestampTz process_started;

static FeedpubStatement list_feeds = {
	.sql = "SELECT p.feed, c.relowner, pg_catalog.sum(COALESCE(s.stamped, 0))::pg_catalog.int8,"
		   "  COALESCE(pg_catalog.bool_or(s.running), false),"
		   "  pg_catalog.bool_or(s.done IS NOT TRUE),"
		   /* an error of a process; one of a row has its step's time */
		   "  pg_catalog.max(s.last_error_at) FILTER (WHERE s.last_error_at"
		   "   > COALESCE(s.stepped_at, '-infinity')), false"
		   " FROM feedpub._partition p"
		   " JOIN pg_catalog.pg_class c ON c.oid = p.feed"
		   " LEFT JOIN feedpub._stamping s ON s.feed = p.feed"
		   "  AND s.partition = p.partition"
		   "  AND s.since = p.since"
		   " WHERE p.since > '0'"
		   " GROUP BY p.feed, c.relowner"
		   " UNION ALL"
		   " SELECT f.feed, c.relowner, COALESCE(r.removed, 0), COALESCE(r.running, false),"
		   "  f.sync_id > COALESCE(r.sync_id, 0), r.last_error_at, true"
		   " FROM feedpub._floor f"
		   " JOIN pg_catalog.pg_class c ON c.oid = f.feed"
		   " JOIN feedpub._feed g ON g.feed = f.feed AND g.kind = 'outbox'"
		   " LEFT JOIN feedpub._removal r ON r.feed = f.feed"
		   " WHERE f.sync_id > 0",
};

static void see_end(void);
static int64 longer_wait(int64 first, int *nwaits, int64 last);
static MaintenanceTask *choose_task(void);
static void start_process(MaintenanceTask *task);

/*
 * The next wait, in ms: each time twice as long, up to the last.
 */
static int64
longer_wait(int64 first, int *nwaits, int64 last)
{
	int64		wait_ms = first << Min(*nwaits, 20);

	(*nwaits)++;
	return Min(wait_ms, last);
}

/*
 * Look which feeds have rows to be stamped, and at the result of the last
 * process.  In a transaction.
 */
void
feedpub_maintenance_plan(FeedpubWorkerStats *stats)
{
	HASH_SEQ_STATUS status;
	MaintenanceTask *task;
	FeedpubRole caller;
	Oid			killed = InvalidOid;
	bool		killed_removal = false;
	uint64		n;

	if (tasks == NULL)
	{
		HASHCTL		ctl = {0};

		ctl.keysize = sizeof(Oid);
		ctl.entrysize = sizeof(MaintenanceTask);
		ctl.hcxt = TopMemoryContext;
		tasks = hash_create("feedpub maintenance", 16, &ctl,
							HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
	hash_seq_init(&status, tasks);
	while ((task = hash_seq_search(&status)) != NULL)
		task->listed = task->pending = false;
	feedpub_store_begin(&caller);
	n = feedpub_store_run(&list_feeds, NULL, NULL);
	for (uint64 i = 0; i < n; i++)
	{
		bool		isnull;
		bool		found;
		Oid			feed = DatumGetObjectId(feedpub_store_value(i, 1, &isnull));
		int64		done = DatumGetInt64(feedpub_store_value(i, 3, &isnull));

		task = hash_search(tasks, &feed, HASH_ENTER, &found);
		if (!found)
		{
			MemSet(task, 0, sizeof(MaintenanceTask));
			task->feed = feed;
			task->done = done;
		}
		task->listed = true;
		task->is_removal = DatumGetBool(feedpub_store_value(i, 7, &isnull));
		if (!task->is_removal)
			stats->stamped += Max(done - task->done, 0);
		task->pending = DatumGetBool(feedpub_store_value(i, 5, &isnull));
		task->owner = DatumGetObjectId(feedpub_store_value(i, 2, &isnull));
		if (process == NULL && process_feed == feed)
		{
			/* the result of its last turn */
			bool		was_killed = DatumGetBool(feedpub_store_value(i, 4, &isnull));
			Datum		at = feedpub_store_value(i, 6, &isnull);
			int64		wait_ms = 0;

			if (was_killed)
			{
				killed = feed;
				killed_removal = task->is_removal;
			}
			if (was_killed || (!isnull && DatumGetTimestampTz(at) >= process_started))
				wait_ms = longer_wait(FIRST_REST, &task->failures,
									  task->is_removal ? LAST_REMOVAL_REST : LAST_REST);
			else if (done == task->done)
				wait_ms = longer_wait(FIRST_RETRY, &task->waits, LAST_RETRY);
			else
				task->failures = task->waits = 0;
			task->not_before = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), wait_ms);
		}
		task->done = done;
	}
	if (process == NULL)
		process_feed = InvalidOid;
	hash_seq_init(&status, tasks);
	while ((task = hash_seq_search(&status)) != NULL)
	{
		if (task->pending)
			continue;
		task->failures = task->waits = 0;
		task->not_before = 0;
		if (!task->listed)
			(void) hash_search(tasks, &task->feed, HASH_REMOVE, NULL);
	}
	feedpub_store_end(&caller);
	if (killed_removal)
		feedpub_removal_end_turn(killed, "a step took too long and was ended");
	else if (OidIsValid(killed))
		feedpub_stamping_note_error(killed, "a step took too long and was ended");
}

/*
 * Start the process for the next feed, if none runs.  Returns how long nothing
 * is to be done, in ms, and 0 if another plan is to be made.
 */
long
feedpub_maintenance_run(void)
{
	TimestampTz now = GetCurrentTimestamp();
	HASH_SEQ_STATUS status;
	MaintenanceTask *task;
	long		wait_ms = LONG_MAX;

	if (tasks == NULL)
		return wait_ms;
	if (process != NULL)
		see_end();
	if (process != NULL)
		return wait_ms;
	if (OidIsValid(process_feed))
		return 0;
	task = choose_task();
	if (task != NULL)
		start_process(task);
	if (process != NULL)
		return wait_ms;
	hash_seq_init(&status, tasks);
	while ((task = hash_seq_search(&status)) != NULL)
	{
		if (task->pending)
			wait_ms = Min(wait_ms, Max(TimestampDifferenceMilliseconds(now, task->not_before), FIRST_RETRY));
	}
	return wait_ms;
}

/*
 * End the process, since the worker ends, for example because other databases
 * wait for one.
 */
void
feedpub_maintenance_end(void)
{
	if (process != NULL)
		TerminateBackgroundWorker(process);
}

/*
 * Note if the process has ended.  The next plan reads its result.
 */
static void
see_end(void)
{
	pid_t		pid;

	if (GetBackgroundWorkerPid(process, &pid) != BGWH_STOPPED)
		return;
	pfree(process);
	process = NULL;
}

/*
 * Of the feeds whose wait is over, one of the owner that has waited longest
 * for a turn.
 */
static MaintenanceTask *
choose_task(void)
{
	TimestampTz now = GetCurrentTimestamp();
	HASH_SEQ_STATUS status;
	MaintenanceTask *task;
	MaintenanceTask *chosen = NULL;
	TimestampTz chosen_owner = 0;

	hash_seq_init(&status, tasks);
	while ((task = hash_seq_search(&status)) != NULL)
	{
		HASH_SEQ_STATUS others;
		MaintenanceTask *other;
		TimestampTz owner = 0;

		if (!task->pending || task->not_before > now)
			continue;
		hash_seq_init(&others, tasks);
		while ((other = hash_seq_search(&others)) != NULL)
		{
			if (other->owner == task->owner)
				owner = Max(owner, other->served_at);
		}
		if (chosen == NULL || owner < chosen_owner ||
			(owner == chosen_owner && task->served_at < chosen->served_at))
		{
			chosen = task;
			chosen_owner = owner;
		}
	}
	return chosen;
}

static void
start_process(MaintenanceTask *task)
{
	BackgroundWorker worker;
	Oid			arguments[2] = {MyDatabaseId, task->feed};
	MemoryContext oldcontext = MemoryContextSwitchTo(TopMemoryContext);

	MemSet(&worker, 0, sizeof(worker));
	strlcpy(worker.bgw_name, "feedpub maintenance", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "feedpub maintenance", BGW_MAXLEN);
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	strlcpy(worker.bgw_library_name, "feedpub", sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "feedpub_maintenance_main", BGW_MAXLEN);
	memcpy(worker.bgw_extra, arguments, sizeof(arguments));
	worker.bgw_notify_pid = MyProcPid;
	task->served_at = GetCurrentTimestamp();
	process_started = task->served_at;
	if (RegisterDynamicBackgroundWorker(&worker, &process))
		process_feed = task->feed;
	else
	{
		process = NULL;
		task->not_before = TimestampTzPlusMilliseconds(task->served_at, LAST_RETRY);
	}
	MemoryContextSwitchTo(oldcontext);
}
