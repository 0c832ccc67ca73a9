/*-------------------------------------------------------------------------
 *
 * shmem.c
 *	  Shared memory: which feeds have news, which process publishes them, which
 *	  processes wait.
 *
 * Marks are in shmem_mark.c, workers in shmem_worker.c.
 *
 * There is one small struct for all databases.  With shared_preload_libraries it
 * is reserved at start.  Without, the first backend that needs it takes it from
 * the slack that the server leaves in its shared memory.  If there is no
 * room, everything works without it: the worker looks at all feeds from time
 * to time, and a waiting session polls.
 *
 * A database in which there is a feed has one entry.
 *
 * shmem.h has the rules.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/shmem.h"
#include "utils/syscache.h"

#include "server/shmem.h"

FeedpubShared *feedpub_shared = NULL;
FeedpubDatabase *feedpub_database = NULL;
static bool failed = false;

static shmem_request_hook_type prev_shmem_request_hook = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;

static void request_shmem(void);
static void startup_shmem(void);
static FeedpubShared *find_struct(bool *found);

/*
 * Reserve the struct while the server starts.  _PG_init() calls this.
 */
void
feedpub_shmem_preload(void)
{
	prev_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = request_shmem;
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = startup_shmem;
}

static void
request_shmem(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();
	RequestAddinShmemSpace(sizeof(FeedpubShared));
}

static void
startup_shmem(void)
{
	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();
	feedpub_shared = NULL;		/* this may be a restart of the server */
	feedpub_database = NULL;
	failed = false;
	feedpub_shmem_attach();
}

/*
 * Find the struct, or create it.
 */
void
feedpub_shmem_attach(void)
{
	bool		found;

	if (feedpub_shared != NULL || failed)
		return;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	feedpub_shared = find_struct(&found);
	failed = feedpub_shared == NULL;
	if (feedpub_shared != NULL && !found)
	{
		MemSet(feedpub_shared, 0, sizeof(FeedpubShared));
		LWLockInitialize(&feedpub_shared->lock, feedpub_new_tranche("feedpub"));
		pg_atomic_init_u64(&feedpub_shared->start, 0);
		for (int i = 0; i < NWAITERS; i++)
			ConditionVariableInit(&feedpub_shared->waiters[i]);
	}
	LWLockRelease(AddinShmemInitLock);
	if (feedpub_shared != NULL)
		feedpub_register_tranche(feedpub_shared->lock.tranche, "feedpub");
}

void
feedpub_shmem_lock(LWLockMode mode)
{
	LWLockAcquire(&feedpub_shared->lock, mode);
}

void
feedpub_shmem_unlock(void)
{
	LWLockRelease(&feedpub_shared->lock);
}

/*
 * The same; the caller has the lock.  This can fail only for
 * lack of room: then ShmemInitStruct() raises an error before it has changed
 * anything, while only our lock is held.  A writer must not fail for that, so
 * the error is caught, and the process goes on without the struct.
 */
static FeedpubShared *
find_struct(bool *found)
{
	FeedpubShared *volatile result = NULL;
	MemoryContext context = CurrentMemoryContext;
	uint32		holdoff = InterruptHoldoffCount;

	*found = false;
	PG_TRY();
	{
		result = ShmemInitStruct("feedpub", sizeof(FeedpubShared), found);
	}
	PG_CATCH();
	{
		/*
		 * Raising an error has reset the count by which our lock holds off
		 * interrupts.
		 */
		InterruptHoldoffCount = holdoff;
		MemoryContextSwitchTo(context);
		FlushErrorState();
		result = NULL;
	}
	PG_END_TRY();
	return result;
}

/*
 * Is there the struct in shared memory?
 */
bool
feedpub_shmem_exists(void)
{
	return feedpub_shared != NULL;
}

/*
 * The id of the server start, 0 if there is no shared memory.  The first call
 * draws it; if two processes draw at a time, both get the one that was stored
 * first.
 */
uint64
feedpub_shmem_start(uint64 (*draw)(void))
{
	uint64		id;
	uint64		drawn;

	feedpub_shmem_attach();
	if (feedpub_shared == NULL)
		return 0;
	id = pg_atomic_read_u64(&feedpub_shared->start);
	if (id != 0)
		return id;
	drawn = draw();
	return pg_atomic_compare_exchange_u64(&feedpub_shared->start, &id, drawn) ? drawn : id;
}

/*
 * The entry of a database, taken if it has none yet; NULL if all are taken or
 * there is no shared memory.
 */
FeedpubDatabase *
feedpub_shmem_database_of(Oid dbid)
{
	FeedpubDatabase *entry = NULL;

	feedpub_shmem_attach();
	if (feedpub_shared == NULL)
		return NULL;
	feedpub_shmem_lock(LW_EXCLUSIVE);
	for (int i = 0; i < FEEDPUB_MAX_DATABASES; i++)
	{
		FeedpubDatabase *other = &feedpub_shared->databases[i];

		if (other->worker.dbid == dbid ||
			(entry == NULL && !OidIsValid(other->worker.dbid)))
			entry = other;
		if (other->worker.dbid == dbid)
			break;
	}
	if (entry != NULL && entry->worker.dbid != dbid)
	{
		entry->worker.dbid = dbid;
		entry->all_dirty = true;
	}
	feedpub_shmem_unlock();
	return entry;
}

/*
 * Copy what is known of the workers of all databases.  workers has room for
 * FEEDPUB_MAX_DATABASES; returns how many there are.
 */
int
feedpub_shmem_read_workers(FeedpubWorkerInfo *workers)
{
	int			n = 0;

	feedpub_shmem_attach();
	if (feedpub_shared == NULL)
		return 0;
	feedpub_shmem_lock(LW_SHARED);
	for (int i = 0; i < FEEDPUB_MAX_DATABASES; i++)
	{
		if (OidIsValid(feedpub_shared->databases[i].worker.dbid))
			workers[n++] = feedpub_shared->databases[i].worker;
	}
	feedpub_shmem_unlock();
	return n;
}

/*
 * Give back the entries of dropped databases.  A database without a committed
 * row in pg_database has no session, so no process uses its entry, also if
 * another process gives it back at the same time.  In a transaction.
 */
void
feedpub_shmem_reclaim(void)
{
	FeedpubWorkerInfo workers[FEEDPUB_MAX_DATABASES];
	int			n = feedpub_shmem_read_workers(workers);

	for (int i = 0; i < n; i++)
	{
		if (SearchSysCacheExists1(DATABASEOID, ObjectIdGetDatum(workers[i].dbid)))
			continue;
		feedpub_shmem_lock(LW_EXCLUSIVE);
		for (int j = 0; j < FEEDPUB_MAX_DATABASES; j++)
		{
			FeedpubDatabase *entry = &feedpub_shared->databases[j];

			if (entry->worker.dbid == workers[i].dbid && entry->worker.pid == 0)
				MemSet(entry, 0, sizeof(FeedpubDatabase));
		}
		feedpub_shmem_unlock();
	}
}

/*
 * The entry of this backend's database, or NULL.  If all entries are taken and
 * a transaction is open, those of dropped databases are given back first, at
 * most once a second.
 */
FeedpubDatabase *
feedpub_shmem_database(void)
{
	static TimestampTz reclaimed_at = 0;
	TimestampTz now;

	if (feedpub_database != NULL || failed)
		return feedpub_database;
	feedpub_database = feedpub_shmem_database_of(MyDatabaseId);
	if (feedpub_database != NULL || feedpub_shared == NULL || !IsTransactionState())
		return feedpub_database;

	now = GetCurrentTimestamp();
	if (TimestampDifferenceExceeds(reclaimed_at, now, 1000))
	{
		reclaimed_at = now;
		feedpub_shmem_reclaim();
		feedpub_database = feedpub_shmem_database_of(MyDatabaseId);
	}
	return feedpub_database;
}

/*
 * Wake all processes that wait for a batch, in every database.  They look
 * again, and make sure that there is a worker.
 */
void
feedpub_shmem_wake_all(void)
{
	for (int i = 0; i < NWAITERS; i++)
		ConditionVariableBroadcast(&feedpub_shared->waiters[i]);
}

/*
 * Set the launcher's latch, which wakes it when a worker ends or is wanted;
 * NULL if there is no launcher.
 */
void
feedpub_shmem_set_launcher(Latch *latch)
{
	feedpub_shmem_attach();
	if (feedpub_shared == NULL)
		return;
	feedpub_shmem_lock(LW_EXCLUSIVE);
	feedpub_shared->launcher_latch = latch;
	feedpub_shmem_unlock();
}

/*
 * The condition variable of the processes that wait for batches of a feed;
 * NULL if they must poll.  Feeds may share one, so a woken process looks at
 * its own feed.
 */
ConditionVariable *
feedpub_shmem_waiters(Oid feed)
{
	if (feedpub_shmem_database() == NULL)
		return NULL;
	return &feedpub_shared->waiters[(MyDatabaseId * 31 + feed) % NWAITERS];
}

/*
 * Wake them, after a batch of the feed is visible.
 */
void
feedpub_shmem_wake_waiters(Oid feed)
{
	ConditionVariable *queue = feedpub_shmem_waiters(feed);

	if (queue != NULL)
		ConditionVariableBroadcast(queue);
}
