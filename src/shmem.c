/*-------------------------------------------------------------------------
 *
 * shmem.c
 *	  Shared memory: which feeds have news, who publishes them, who waits.
 *
 * One small struct, the same for all databases.  With
 * shared_preload_libraries it is reserved at start; without, the first
 * backend that wants it takes it from the slack that the server leaves in its
 * shared memory.  Where there is none left, everything works without: the
 * worker looks at all feeds from time to time, and who waits polls.
 *
 * A database in which there is a feed has one entry, which is given back after
 * it was dropped: until then backends keep a pointer to theirs.
 *
 * Locks: each entry's mutex protects its fields; nothing is called while it
 * is held.  The struct's mutex protects the entries' being taken and given
 * back; who takes both takes it first.  A latch
 * belongs to a PGPROC, which is shared memory for ever: setting that of a
 * worker that has just left wakes somebody for nothing.
 *
 * A mark is set after a commit is visible, and taken away before the look
 * that it asks for: so a commit whose mark is taken away is seen by that
 * look, and one that is not seen by it leaves a mark behind it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "storage/spin.h"
#include "utils/hsearch.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "feedpub.h"

#define NWAITERS		32

struct FeedpubDatabase
{
	slock_t		mutex;
	Oid			dbid;			/* by the struct's mutex; InvalidOid: free */
	int			worker_pid;		/* 0: no worker */
	Latch	   *worker_latch;
	TimestampTz launched_at;	/* when a worker was last asked for */
	bool		wanted;			/* there were feeds when we last looked */
	bool		stopped;		/* by hand: nobody is to start it */
	bool		all_dirty;		/* more feeds have news than fit below */
	int			ndirty;
	Oid			dirty[FEEDPUB_MAX_DIRTY];
	int			nprepared;
	FeedpubPrepared prepared[FEEDPUB_MAX_PREPARED];

	/* for feedpub.workers */
	TimestampTz started_at;		/* the worker that is there */
	FeedpubWorkerStats stats;
	TimestampTz error_at;
	Oid			error_feed;
	int			error_encoding;
	char		error[FEEDPUB_ERROR_LENGTH];
};

typedef struct FeedpubShared
{
	slock_t		mutex;
	pg_atomic_uint64 start;		/* id of the server start; 0: not drawn yet */
	Latch	   *launcher_latch; /* by the mutex; NULL when there is none */
	FeedpubDatabase databases[FEEDPUB_MAX_DATABASES];
	ConditionVariable waiters[NWAITERS];	/* by hash of database and feed */
} FeedpubShared;

static FeedpubShared *shared = NULL;
static FeedpubDatabase *database = NULL;
static bool failed = false;

static shmem_request_hook_type prev_shmem_request_hook = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;

static void request_shmem(void);
static void startup_shmem(void);
static void attach(void);
static void reclaim_entries(void);
static void wake_all_waiters(void);

/*
 * Reserve the struct while the server starts.  Called from _PG_init().
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
	shared = NULL;				/* this may be a restart of the server */
	database = NULL;
	failed = false;
	attach();
}

/*
 * Find the struct, or make it.  The only thing that can fail is that there is
 * no room: then ShmemInitStruct() raises an error before it has changed
 * anything, with no lock held but ours.  A writer must not notice, so we take
 * the error back and do without.
 */
static void
attach(void)
{
	volatile bool found = false;
	MemoryContext context = CurrentMemoryContext;
	uint32		holdoff;

	if (shared != NULL || failed)
		return;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	holdoff = InterruptHoldoffCount;
	PG_TRY();
	{
		bool		was_there;

		shared = ShmemInitStruct("feedpub", sizeof(FeedpubShared), &was_there);
		found = was_there;
	}
	PG_CATCH();
	{
		/* raising an error has forgotten that our lock holds interrupts off */
		InterruptHoldoffCount = holdoff;
		MemoryContextSwitchTo(context);
		FlushErrorState();
		shared = NULL;
		failed = true;
	}
	PG_END_TRY();
	if (shared != NULL && !found)
	{
		MemSet(shared, 0, sizeof(FeedpubShared));
		SpinLockInit(&shared->mutex);
		pg_atomic_init_u64(&shared->start, 0);
		for (int i = 0; i < FEEDPUB_MAX_DATABASES; i++)
			SpinLockInit(&shared->databases[i].mutex);
		for (int i = 0; i < NWAITERS; i++)
			ConditionVariableInit(&shared->waiters[i]);
	}
	LWLockRelease(AddinShmemInitLock);
}

/*
 * The id of the server start, 0 when there is no shared memory.  The first who
 * asks draws it; of two at a time the same one has drawn it for both.
 */
uint64
feedpub_shmem_start(uint64 (*draw)(void))
{
	uint64		id;
	uint64		drawn;

	attach();
	if (shared == NULL)
		return 0;
	id = pg_atomic_read_u64(&shared->start);
	if (id != 0)
		return id;
	drawn = draw();
	return pg_atomic_compare_exchange_u64(&shared->start, &id, drawn) ? drawn : id;
}

/*
 * The entry of a database; NULL when there is none to be had.
 */
FeedpubDatabase *
feedpub_shmem_database_of(Oid dbid)
{
	FeedpubDatabase *found = NULL;

	attach();
	if (shared == NULL)
		return NULL;
	SpinLockAcquire(&shared->mutex);
	for (int i = 0; i < FEEDPUB_MAX_DATABASES && found == NULL; i++)
	{
		if (shared->databases[i].dbid == dbid)
			found = &shared->databases[i];
	}
	for (int i = 0; i < FEEDPUB_MAX_DATABASES && found == NULL; i++)
	{
		if (shared->databases[i].dbid == InvalidOid)
		{
			found = &shared->databases[i];
			found->dbid = dbid;
			found->all_dirty = true;
		}
	}
	SpinLockRelease(&shared->mutex);
	return found;
}

/*
 * Give back the entries of databases that are gone.  Nobody connects to one
 * whose row in pg_database is not committed yet, or deleted.
 */
static void
reclaim_entries(void)
{
	for (int i = 0; i < FEEDPUB_MAX_DATABASES; i++)
	{
		FeedpubDatabase *entry = &shared->databases[i];
		Oid			dbid;

		SpinLockAcquire(&shared->mutex);
		dbid = entry->dbid;
		SpinLockRelease(&shared->mutex);
		if (OidIsValid(dbid) &&
			!SearchSysCacheExists1(DATABASEOID, ObjectIdGetDatum(dbid)))
			feedpub_shmem_forget_database(entry, dbid);
	}
}

/*
 * The entry of this backend's database, or NULL.  In a transaction: when all
 * are taken, those of dropped databases are given back, now and then.
 */
FeedpubDatabase *
feedpub_shmem_database(void)
{
	static TimestampTz reclaimed_at = 0;
	TimestampTz now;

	if (database != NULL || failed)
		return database;
	database = feedpub_shmem_database_of(MyDatabaseId);
	if (database != NULL || shared == NULL || !IsTransactionState())
		return database;

	now = GetCurrentTimestamp();
	if (TimestampDifferenceExceeds(reclaimed_at, now, 1000))
	{
		reclaimed_at = now;
		reclaim_entries();
		database = feedpub_shmem_database_of(MyDatabaseId);
	}
	return database;
}

/*
 * The same if it is known already; takes none.
 */
FeedpubDatabase *
feedpub_shmem_known_database(void)
{
	return database;
}

/*
 * Mark feeds that have news, and wake the worker.  For transaction callbacks:
 * raises no error.  all stands for more feeds than are listed.
 */
void
feedpub_shmem_mark(const Oid *feeds, int nfeeds, bool all)
{
	Latch	   *latch = NULL;
	bool		fresh = false;
	bool		unserved;

	if (database == NULL)
		return;
	SpinLockAcquire(&database->mutex);
	unserved = database->worker_pid == 0 && !database->wanted;
	if (unserved)
		database->wanted = true;
	for (int i = 0; i < nfeeds && !database->all_dirty; i++)
	{
		int			j = 0;

		while (j < database->ndirty && database->dirty[j] != feeds[i])
			j++;
		if (j < database->ndirty)
			continue;
		fresh = true;
		if (database->ndirty < FEEDPUB_MAX_DIRTY)
			database->dirty[database->ndirty++] = feeds[i];
		else
			all = true;
	}
	if (all && !database->all_dirty)
		fresh = database->all_dirty = true;
	/* a mark that was there has its wake-up under way */
	if (fresh)
		latch = database->worker_latch;
	SpinLockRelease(&database->mutex);

	/* the first feed here: the launcher, if there is one, starts a worker */
	if (unserved)
	{
		SpinLockAcquire(&shared->mutex);
		latch = shared->launcher_latch;
		SpinLockRelease(&shared->mutex);
	}
	if (latch != NULL)
		SetLatch(latch);
}

/*
 * Put feeds on watch that a prepared transaction has written to: its COMMIT
 * PREPARED runs no callback of ours.  What does not fit is on watch as
 * InvalidOid, all feeds.
 */
void
feedpub_shmem_watch(const Oid *feeds, int nfeeds, bool all, TransactionId xid)
{
	Latch	   *latch;

	if (database == NULL)
		return;
	SpinLockAcquire(&database->mutex);
	if (all || database->nprepared + nfeeds > FEEDPUB_MAX_PREPARED)
	{
		/* one entry for all of them, in the place of the last if need be */
		int			i = Min(database->nprepared, FEEDPUB_MAX_PREPARED - 1);

		database->prepared[i].feed = InvalidOid;
		database->prepared[i].xid = xid;
		if (i == FEEDPUB_MAX_PREPARED - 1 && database->nprepared > i)
			database->prepared[i].xid = InvalidTransactionId;
		database->nprepared = i + 1;
	}
	else
	{
		for (int i = 0; i < nfeeds; i++)
		{
			database->prepared[database->nprepared].feed = feeds[i];
			database->prepared[database->nprepared++].xid = xid;
		}
	}
	latch = database->worker_latch;
	SpinLockRelease(&database->mutex);
	if (latch != NULL)
		SetLatch(latch);
}

/*
 * Read the marks, for the worker.  They stay until the feed is looked at, so
 * that commits find them there meanwhile and do not wake the worker again;
 * the one for all feeds is taken.
 */
int
feedpub_shmem_read_marks(Oid *dirty, bool *all)
{
	int			ndirty = 0;

	*all = true;
	if (database == NULL)
		return 0;
	SpinLockAcquire(&database->mutex);
	*all = database->all_dirty;
	ndirty = database->ndirty;
	memcpy(dirty, database->dirty, ndirty * sizeof(Oid));
	database->all_dirty = false;
	SpinLockRelease(&database->mutex);
	return ndirty;
}

/*
 * Take a feed's mark away.  To be called before it is looked at: a commit that
 * the look does not see leaves another.
 */
void
feedpub_shmem_take_mark(Oid feed)
{
	if (database == NULL)
		return;
	SpinLockAcquire(&database->mutex);
	for (int i = 0; i < database->ndirty; i++)
	{
		if (database->dirty[i] == feed)
		{
			database->dirty[i] = database->dirty[--database->ndirty];
			break;
		}
	}
	SpinLockRelease(&database->mutex);
}

/*
 * Take what is on watch, for the worker.  prepared has room for
 * FEEDPUB_MAX_PREPARED.
 */
int
feedpub_shmem_take_watch(FeedpubPrepared *prepared)
{
	int			nprepared = 0;

	if (database == NULL)
		return 0;
	SpinLockAcquire(&database->mutex);
	nprepared = database->nprepared;
	memcpy(prepared, database->prepared, nprepared * sizeof(FeedpubPrepared));
	database->nprepared = 0;
	SpinLockRelease(&database->mutex);
	return nprepared;
}

/*
 * Become the worker of this database; false when it has one.  A server without
 * room for the struct cannot tell.
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
		entry->all_dirty = true;
		entry->nprepared = 0;	/* he looks for himself which there are */
		claimed = true;
	}
	SpinLockRelease(&entry->mutex);

	/* his predecessor may have published something and told nobody */
	if (claimed)
		wake_all_waiters();
	return claimed;
}

/*
 * Wake all who wait for a batch, in whichever database: they look again, and
 * see to it that there is a worker.
 */
static void
wake_all_waiters(void)
{
	for (int i = 0; i < NWAITERS; i++)
		ConditionVariableBroadcast(&shared->waiters[i]);
}

/*
 * Stop being the worker; does nothing when we are not.
 */
void
feedpub_shmem_release_worker(void)
{
	Latch	   *launcher = NULL;
	bool		was_worker = false;

	if (database == NULL)
		return;
	SpinLockAcquire(&database->mutex);
	if (database->worker_pid == MyProcPid)
	{
		was_worker = true;
		database->worker_pid = 0;
		database->worker_latch = NULL;
		database->stats.failing = 0;	/* the next one will see */
	}
	SpinLockRelease(&database->mutex);

	SpinLockAcquire(&shared->mutex);
	launcher = shared->launcher_latch;
	SpinLockRelease(&shared->mutex);
	if (launcher != NULL)
		SetLatch(launcher);
	if (was_worker)
		wake_all_waiters();
}

/*
 * Should somebody start a worker for a database?  True once in a while, for
 * whoever asks first; he starts it.  Wakes the worker that is there, if asked
 * to.
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
 * The worker of a database, 0 when there is none; and what is known of it.
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
 * For the launcher: databases that want a worker and have none.  dbids has
 * room for FEEDPUB_MAX_DATABASES.
 */
int
feedpub_shmem_unserved(Oid *dbids)
{
	int			n = 0;

	for (int i = 0; shared != NULL && i < FEEDPUB_MAX_DATABASES; i++)
	{
		FeedpubDatabase *entry = &shared->databases[i];
		Oid			dbid;
		bool		unserved;

		SpinLockAcquire(&shared->mutex);
		dbid = entry->dbid;
		SpinLockRelease(&shared->mutex);
		SpinLockAcquire(&entry->mutex);
		unserved = entry->wanted && !entry->stopped && entry->worker_pid == 0;
		SpinLockRelease(&entry->mutex);
		if (OidIsValid(dbid) && unserved)
			dbids[n++] = dbid;
	}
	return n;
}

/*
 * Give back the entry of a database that has been dropped: it has no backend
 * any more that could hold a pointer to it.  Somebody else may have done it.
 */
void
feedpub_shmem_forget_database(FeedpubDatabase *entry, Oid dbid)
{
	SpinLockAcquire(&shared->mutex);
	SpinLockAcquire(&entry->mutex);
	if (entry->worker_pid == 0 && entry->dbid == dbid)
	{
		entry->dbid = InvalidOid;
		entry->wanted = entry->stopped = false;
		entry->launched_at = 0;
		entry->ndirty = entry->nprepared = 0;
		MemSet(&entry->stats, 0, sizeof(FeedpubWorkerStats));
		entry->error_at = 0;
	}
	SpinLockRelease(&entry->mutex);
	SpinLockRelease(&shared->mutex);
}

/*
 * The launcher's latch, by which it is woken when a worker leaves or is
 * wanted.
 */
void
feedpub_shmem_set_launcher(Latch *latch)
{
	attach();
	if (shared == NULL)
		return;
	SpinLockAcquire(&shared->mutex);
	shared->launcher_latch = latch;
	SpinLockRelease(&shared->mutex);
}

/*
 * How many workers there are.
 */
int
feedpub_shmem_count_workers(void)
{
	int			n = 0;

	for (int i = 0; shared != NULL && i < FEEDPUB_MAX_DATABASES; i++)
	{
		if (feedpub_shmem_worker_pid(&shared->databases[i]) != 0)
			n++;
	}
	return n;
}

/*
 * Add to what the workers of this database have done, for the worker, which
 * counts by itself and comes here once a turn.  delta becomes zero, but for
 * the number of failing feeds.
 */
void
feedpub_shmem_add_stats(FeedpubWorkerStats *delta)
{
	int			failing = delta->failing;

	if (database == NULL)
		return;
	SpinLockAcquire(&database->mutex);
	database->stats.turns += delta->turns;
	database->stats.wakeups += delta->wakeups;
	database->stats.batches += delta->batches;
	database->stats.transactions += delta->transactions;
	database->stats.stamped += delta->stamped;
	database->stats.errors += delta->errors;
	database->stats.failing = failing;
	SpinLockRelease(&database->mutex);
	MemSet(delta, 0, sizeof(FeedpubWorkerStats));
	delta->failing = failing;
}

/*
 * Keep the worker's last error; feed is InvalidOid when it was with none.
 */
void
feedpub_shmem_note_error(Oid feed, const char *error)
{
	TimestampTz now = GetCurrentTimestamp();
	int			length = pg_mbcliplen(error, strlen(error),
									  FEEDPUB_ERROR_LENGTH - 1);

	if (database == NULL)
		return;
	SpinLockAcquire(&database->mutex);
	database->error_at = now;
	database->error_feed = feed;
	database->error_encoding = GetDatabaseEncoding();
	memcpy(database->error, error, length);
	database->error[length] = '\0';
	SpinLockRelease(&database->mutex);
}

/*
 * Copy the entries of all databases.  workers has room for
 * FEEDPUB_MAX_DATABASES; returns how many there are.
 */
int
feedpub_shmem_read_workers(FeedpubWorkerInfo *workers)
{
	int			n = 0;

	attach();
	for (int i = 0; shared != NULL && i < FEEDPUB_MAX_DATABASES; i++)
	{
		FeedpubDatabase *entry = &shared->databases[i];
		FeedpubWorkerInfo *worker = &workers[n];

		/* both, so that the entry does not change its database meanwhile */
		SpinLockAcquire(&shared->mutex);
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
		SpinLockRelease(&shared->mutex);
		if (OidIsValid(worker->dbid))
			n++;
	}
	return n;
}

/*
 * What those wait on who wait for a batch of a feed; NULL when they must
 * poll.  Feeds may share one: whoever is woken looks for himself.
 */
ConditionVariable *
feedpub_shmem_waiters(Oid feed)
{
	if (feedpub_shmem_database() == NULL)
		return NULL;
	return &shared->waiters[(MyDatabaseId * 31 + feed) % NWAITERS];
}
