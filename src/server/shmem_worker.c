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
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/spin.h"
#include "utils/timestamp.h"

#include "server/shmem.h"

/*
 * Become the worker of this database.  Returns false if it has one, or if
 * there is no room for the struct: then a process cannot tell.
 */
bool
feedpub_shmem_claim_worker(void)
{
	FeedpubDatabase *entry = feedpub_shmem_database();
	bool		claimed = false;

	if (entry == NULL)
		return false;
	SpinLockAcquire(&entry->mutex);
	if (entry->worker_pid == 0)
	{
		entry->worker_pid = MyProcPid;
		entry->worker_latch = MyLatch;
		entry->started_at = MyStartTimestamp;
		entry->wanted = true;
		entry->refused = false;
		entry->all_dirty = true;
		entry->nprepared = 0;	/* the worker looks for them itself */
		claimed = true;
	}
	SpinLockRelease(&entry->mutex);

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
	Latch	   *launcher = NULL;
	bool		was_worker = false;

	if (feedpub_database == NULL)
		return;
	SpinLockAcquire(&feedpub_database->mutex);
	if (feedpub_database->worker_pid == MyProcPid)
	{
		was_worker = true;
		feedpub_database->worker_pid = 0;
		feedpub_database->worker_latch = NULL;
		feedpub_database->stats.failing = 0;	/* the next one counts */
	}
	SpinLockRelease(&feedpub_database->mutex);

	SpinLockAcquire(&feedpub_shared->mutex);
	launcher = feedpub_shared->launcher_latch;
	SpinLockRelease(&feedpub_shared->mutex);
	if (launcher != NULL)
		SetLatch(launcher);
	if (was_worker)
		feedpub_shmem_wake_all();
}

/*
 * Should the caller start a worker for a database?  True for one caller in
 * each retry_ms milliseconds, if the database has none.  If it has one and
 * wake is set, wakes it.
 */
bool
feedpub_shmem_needs_worker(FeedpubDatabase *entry, int retry_ms, bool wake)
{
	TimestampTz now = GetCurrentTimestamp();
	Latch	   *latch = NULL;
	bool		needed = false;

	if (entry == NULL)
		return false;
	SpinLockAcquire(&entry->mutex);
	if (entry->worker_pid != 0)
		latch = entry->worker_latch;
	else if (!entry->stopped &&
			 TimestampDifferenceExceeds(entry->launched_at, now, retry_ms))
	{
		entry->launched_at = now;
		needed = true;
	}
	SpinLockRelease(&entry->mutex);
	if (latch != NULL && wake)
		SetLatch(latch);
	return needed;
}

/*
 * Note whether the server has refused to start a worker.
 */
void
feedpub_shmem_set_refused(FeedpubDatabase *entry, bool refused)
{
	if (entry == NULL)
		return;
	SpinLockAcquire(&entry->mutex);
	entry->refused = refused;
	SpinLockRelease(&entry->mutex);
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
	SpinLockAcquire(&entry->mutex);
	if (entry->worker_pid != 0)
		state = FEEDPUB_WORKER_RUNNING;
	else if (entry->stopped)
		state = FEEDPUB_WORKER_STOPPED;
	else if (entry->refused)
		state = FEEDPUB_WORKER_REFUSED;
	SpinLockRelease(&entry->mutex);
	return state;
}

/*
 * The process id of a database's worker, 0 if there is none.
 */
int
feedpub_shmem_worker_pid(FeedpubDatabase *entry)
{
	int			pid;

	SpinLockAcquire(&entry->mutex);
	pid = entry->worker_pid;
	SpinLockRelease(&entry->mutex);
	return pid;
}

void
feedpub_shmem_set_wanted(FeedpubDatabase *entry, bool wanted)
{
	SpinLockAcquire(&entry->mutex);
	entry->wanted = wanted;
	if (!wanted)
		entry->launched_at = 0; /* a new feed gets one at once */
	SpinLockRelease(&entry->mutex);
}

void
feedpub_shmem_set_stopped(FeedpubDatabase *entry, bool stopped)
{
	SpinLockAcquire(&entry->mutex);
	entry->stopped = stopped;
	if (!stopped)
		entry->launched_at = 0;
	SpinLockRelease(&entry->mutex);
}

/*
 * For the launcher: the databases that want a worker and have none.  dbids has
 * room for FEEDPUB_MAX_DATABASES; returns how many there are.
 */
int
feedpub_shmem_unserved(Oid *dbids)
{
	int			n = 0;

	for (int i = 0; feedpub_shared != NULL && i < FEEDPUB_MAX_DATABASES; i++)
	{
		FeedpubDatabase *entry = &feedpub_shared->databases[i];
		Oid			dbid;
		bool		unserved;

		SpinLockAcquire(&feedpub_shared->mutex);
		dbid = entry->dbid;
		SpinLockRelease(&feedpub_shared->mutex);
		SpinLockAcquire(&entry->mutex);
		unserved = entry->wanted && !entry->stopped && entry->worker_pid == 0;
		SpinLockRelease(&entry->mutex);
		if (OidIsValid(dbid) && unserved)
			dbids[n++] = dbid;
	}
	return n;
}

/*
 * The number of workers.
 */
int
feedpub_shmem_count_workers(void)
{
	int			n = 0;

	for (int i = 0; feedpub_shared != NULL && i < FEEDPUB_MAX_DATABASES; i++)
	{
		if (feedpub_shmem_worker_pid(&feedpub_shared->databases[i]) != 0)
			n++;
	}
	return n;
}

/*
 * Add to the counts of this database's workers.  The worker counts in delta
 * and calls this once a turn.  All of delta becomes zero but the number of
 * failing feeds.
 */
void
feedpub_shmem_add_stats(FeedpubWorkerStats *delta)
{
	int			failing = delta->failing;

	Assert(feedpub_database != NULL);
	SpinLockAcquire(&feedpub_database->mutex);
	feedpub_database->stats.turns += delta->turns;
	feedpub_database->stats.wakeups += delta->wakeups;
	feedpub_database->stats.batches += delta->batches;
	feedpub_database->stats.transactions += delta->transactions;
	feedpub_database->stats.stamped += delta->stamped;
	feedpub_database->stats.errors += delta->errors;
	feedpub_database->stats.failing = failing;
	SpinLockRelease(&feedpub_database->mutex);
	MemSet(delta, 0, sizeof(FeedpubWorkerStats));
	delta->failing = failing;
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

	/* a worker that has not claimed the entry yet */
	if (feedpub_database == NULL)
		return;
	SpinLockAcquire(&feedpub_database->mutex);
	feedpub_database->error_at = now;
	feedpub_database->error_feed = feed;
	feedpub_database->error_encoding = GetDatabaseEncoding();
	memcpy(feedpub_database->error, error, length);
	feedpub_database->error[length] = '\0';
	SpinLockRelease(&feedpub_database->mutex);
}

/*
 * Copy the entries of all databases.  workers has room for
 * FEEDPUB_MAX_DATABASES; returns how many there are.
 */
int
feedpub_shmem_read_workers(FeedpubWorkerInfo *workers)
{
	int			n = 0;

	feedpub_shmem_attach();
	for (int i = 0; feedpub_shared != NULL && i < FEEDPUB_MAX_DATABASES; i++)
	{
		FeedpubDatabase *entry = &feedpub_shared->databases[i];
		FeedpubWorkerInfo *worker = &workers[n];

		/* both, so that the entry stays that database's meanwhile */
		SpinLockAcquire(&feedpub_shared->mutex);
		SpinLockAcquire(&entry->mutex);
		worker->dbid = entry->dbid;
		worker->pid = entry->worker_pid;
		worker->wanted = entry->wanted;
		worker->stopped = entry->stopped;
		worker->started_at = entry->started_at;
		worker->stats = entry->stats;
		worker->error_at = entry->error_at;
		worker->error_feed = entry->error_feed;
		worker->error_encoding = entry->error_encoding;
		memcpy(worker->error, entry->error, FEEDPUB_ERROR_LENGTH);
		SpinLockRelease(&entry->mutex);
		SpinLockRelease(&feedpub_shared->mutex);
		if (OidIsValid(worker->dbid))
			n++;
	}
	return n;
}
