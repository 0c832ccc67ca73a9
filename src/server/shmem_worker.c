/*-------------------------------------------------------------------------
 *
 * shmem_worker.c
 *	  The worker of each database: its process, whether one is wanted, and what
 *	  the workers have done.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "mb/pg_wchar.h"
#include "miscadmin.h"

#include "server/shmem.h"

/*
 * Become the worker of this database, and go on with the counts of those before
 * it.  Returns false if it has one, or if there is no room for the struct: then
 * a process cannot tell.
 */
bool
feedpub_shmem_claim_worker(FeedpubWorkerStats *stats)
{
	FeedpubDatabase *entry = feedpub_shmem_database();
	bool		claimed;

	if (entry == NULL)
		return false;
	feedpub_shmem_lock(LW_EXCLUSIVE);
	claimed = entry->worker.pid == 0;
	if (claimed)
	{
		*stats = entry->worker.stats;
		entry->worker.pid = MyProcPid;
		entry->worker.started_at = MyStartTimestamp;
		entry->worker.wanted = true;
		entry->latch = MyLatch;
		entry->refused = false;
		entry->prepared = true;
	}
	feedpub_shmem_unlock();

	/* the worker before may have published a batch and woken no process */
	if (claimed)
		feedpub_shmem_wake_all();
	return claimed;
}

/*
 * Stop being the worker; does nothing if this process is not the worker.
 */
void
feedpub_shmem_release_worker(void)
{
	Latch	   *launcher;
	bool		was_worker;

	if (feedpub_database == NULL)
		return;
	feedpub_shmem_lock(LW_EXCLUSIVE);
	was_worker = feedpub_database->worker.pid == MyProcPid;
	if (was_worker)
	{
		feedpub_database->worker.pid = 0;
		feedpub_database->worker.stats.failing = 0; /* the next one counts */
		feedpub_database->latch = NULL;
	}
	launcher = feedpub_shared->launcher_latch;
	feedpub_shmem_unlock();
	if (launcher != NULL)
		SetLatch(launcher);
	if (was_worker)
		feedpub_shmem_wake_all();
}

/*
 * Should the caller start a worker for a database?  True for one caller in
 * each retry_ms milliseconds, if the database has none.
 */
bool
feedpub_shmem_needs_worker(FeedpubDatabase *entry, int retry_ms)
{
	TimestampTz now = GetCurrentTimestamp();
	bool		needed;

	feedpub_shmem_lock(LW_EXCLUSIVE);
	needed = entry->worker.pid == 0 && !entry->worker.stopped &&
		TimestampDifferenceExceeds(entry->launched_at, now, retry_ms);
	if (needed)
		entry->launched_at = now;
	feedpub_shmem_unlock();
	return needed;
}

/*
 * Note whether the server has refused to start a worker.
 */
void
feedpub_shmem_set_refused(FeedpubDatabase *entry, bool refused)
{
	feedpub_shmem_lock(LW_EXCLUSIVE);
	entry->refused = refused;
	feedpub_shmem_unlock();
}

/*
 * The state of a database's worker.
 */
FeedpubWorkerState
feedpub_shmem_worker_state(FeedpubDatabase *entry)
{
	FeedpubWorkerState state = FEEDPUB_WORKER_NONE;

	if (entry == NULL)
		return FEEDPUB_WORKER_REFUSED;
	feedpub_shmem_lock(LW_SHARED);
	if (entry->worker.pid != 0)
		state = FEEDPUB_WORKER_RUNNING;
	else if (entry->worker.stopped)
		state = FEEDPUB_WORKER_STOPPED;
	else if (entry->refused)
		state = FEEDPUB_WORKER_REFUSED;
	feedpub_shmem_unlock();
	return state;
}

/*
 * This database has no feed: it wants no worker.
 */
void
feedpub_shmem_set_unwanted(void)
{
	if (feedpub_database == NULL)
		return;
	feedpub_shmem_lock(LW_EXCLUSIVE);
	feedpub_database->worker.wanted = false;
	feedpub_database->launched_at = 0;	/* a new feed gets one at once */
	feedpub_shmem_unlock();
}

/*
 * Let no process start a worker, or let them again.  Returns the process id of
 * the one that is there, or 0.
 */
int
feedpub_shmem_set_stopped(FeedpubDatabase *entry, bool stopped)
{
	int			pid;

	feedpub_shmem_lock(LW_EXCLUSIVE);
	entry->worker.stopped = stopped;
	if (!stopped)
		entry->launched_at = 0;
	pid = entry->worker.pid;
	feedpub_shmem_unlock();
	return pid;
}

/*
 * The number of workers.
 */
int
feedpub_shmem_count_workers(void)
{
	FeedpubWorkerInfo workers[FEEDPUB_MAX_DATABASES];
	int			running = 0;

	for (int i = feedpub_shmem_read_workers(workers) - 1; i >= 0; i--)
		running += workers[i].pid != 0;
	return running;
}

/*
 * Show the counts of this database's workers.  The worker calls this once a
 * turn.
 */
void
feedpub_shmem_set_stats(const FeedpubWorkerStats *stats)
{
	feedpub_shmem_lock(LW_EXCLUSIVE);
	feedpub_database->worker.stats = *stats;
	feedpub_shmem_unlock();
}

/*
 * Keep the worker's last error.  feed is InvalidOid if it was not a feed's.
 */
void
feedpub_shmem_note_error(Oid feed, const char *error)
{
	TimestampTz now = GetCurrentTimestamp();
	int			length = pg_mbcliplen(error, strlen(error),
									  FEEDPUB_ERROR_LENGTH - 1);
	FeedpubWorkerInfo *worker;

	/* a worker that has not claimed the entry yet */
	if (feedpub_database == NULL)
		return;
	worker = &feedpub_database->worker;
	feedpub_shmem_lock(LW_EXCLUSIVE);
	worker->error_at = now;
	worker->error_feed = feed;
	worker->error_encoding = GetDatabaseEncoding();
	memcpy(worker->error, error, length);
	worker->error[length] = '\0';
	feedpub_shmem_unlock();
}
