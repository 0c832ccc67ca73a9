/*-------------------------------------------------------------------------
 *
 * launcher.c
 *	  Starting workers: on demand and, with shared_preload_libraries, by a
 *	  launcher that keeps one for each database that has feeds.
 *
 * The launcher is connected to no database and can read shared catalogs only,
 * so it cannot know which databases have feeds.  At its start it starts a
 * worker in each; a worker that finds no feed ends at once.  Later the entries
 * in shared memory tell which databases want a worker and have none: their
 * worker has died, or has ended since another session needed the database for
 * itself.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_database.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "server/server.h"

PGDLLEXPORT void feedpub_launcher_main(Datum main_arg);

/* if a worker dies, it is started again after this time, in ms */
#define RESTART_INTERVAL	5000

static bool start_worker(Oid dbid, int elevel);
static int	detail_no_room(void);
static Oid	next_database(Oid after);
static void forget_launcher(int code, Datum arg);

/*
 * Make sure that this database has a worker, and, if relid is given, that it
 * looks at that feed.  Readers and waiting sessions call this and can go on
 * without a worker, so it never fails.  Returns false if there is no worker
 * and none can be started.
 */
bool
feedpub_launcher_ensure(Oid relid)
{
	FeedpubDatabase *entry;
	FeedpubWorkerState state;

	if (RecoveryInProgress())
		return true;
	if (!IsUnderPostmaster)
		return false;
	entry = feedpub_shmem_database();
	if (OidIsValid(relid))
		feedpub_shmem_mark(&relid, 1, false, false);
	state = feedpub_shmem_worker_state(entry);
	if (entry != NULL && state != FEEDPUB_WORKER_RUNNING)
	{
		(void) feedpub_launcher_start_worker(entry, MyDatabaseId, RESTART_INTERVAL, DEBUG1);
		state = feedpub_shmem_worker_state(entry);
	}
	return state == FEEDPUB_WORKER_RUNNING || state == FEEDPUB_WORKER_NONE;
}

/*
 * Is this database's worker being started?  It has none, and nothing is known
 * that keeps the server from starting one.
 */
bool
feedpub_launcher_is_starting(void)
{
	return !RecoveryInProgress() && IsUnderPostmaster &&
		feedpub_shmem_worker_state(feedpub_shmem_database()) == FEEDPUB_WORKER_NONE;
}

/*
 * For ereport(): why this database has no worker, and what helps.
 */
int
feedpub_launcher_errdetail(void)
{
	FeedpubDatabase *entry = feedpub_shmem_database();

	if (!feedpub_shmem_exists())
	{
		errdetail("The server has no room for feedpub in its shared memory.");
		errhint("Add feedpub to \"%s\", and restart the server.  CALL feed_publish() publishes by hand.",
				"shared_preload_libraries");
	}
	else if (entry == NULL)
	{
		errdetail("%d other databases of the server have feeds, and no more can have a worker.",
				  FEEDPUB_MAX_DATABASES);
		errhint("Drop one of these databases, or drop its feeds and restart the server.  CALL feed_publish() publishes by hand.");
	}
	else if (feedpub_shmem_worker_state(entry) == FEEDPUB_WORKER_STOPPED)
	{
		errdetail("feed_stop_worker() has stopped it.");
		errhint("Start it with feed_start_worker(), or publish with CALL feed_publish().");
	}
	else
		(void) detail_no_room();
	return 0;
}

/* why a database could not get one */
static int
detail_no_room(void)
{
	bool		is_limit = feedpub_shmem_count_workers() >= feedpub_max_workers;

	if (is_limit)
		errdetail("%d databases have a worker.", feedpub_max_workers);
	else
		errdetail("The server has no free slot for a background worker.");
	errhint("You might need to increase \"%s\"%s.  CALL feed_publish() publishes by hand.",
			is_limit ? "feedpub.max_workers" : "max_worker_processes",
			is_limit ? ", and \"max_worker_processes\" with it" : "");
	return 0;
}

/*
 * Warn a reader that has found nothing if there is no worker and none can be
 * started.  It is warned once a session, so that a loop of reads does not fill
 * its log.
 */
void
feedpub_launcher_warn(Oid relid)
{
	static bool warned = false;
	char	   *name = get_rel_name(relid);

	/* no name: dropped meanwhile */
	if (warned || name == NULL || feedpub_launcher_ensure(InvalidOid))
		return;
	warned = true;
	ereport(WARNING,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("feed \"%s\" is not being published: this database has no worker",
					name),
			 feedpub_launcher_errdetail()));
}

/*
 * Order a worker for a database.  Returns whether the server has accepted the
 * order; if not, reports the reason at elevel.
 */
static bool
start_worker(Oid dbid, int elevel)
{
	BackgroundWorker worker = {0};

	feedpub_launcher_describe(&worker, "feedpub worker", "feedpub_worker_main");
	snprintf(worker.bgw_name, BGW_MAXLEN, "feedpub worker for database %u", dbid);
	worker.bgw_main_arg = ObjectIdGetDatum(dbid);
#ifdef BGWORKER_INTERRUPTIBLE
	worker.bgw_flags |= BGWORKER_INTERRUPTIBLE;
#endif
	if (feedpub_shmem_count_workers() < feedpub_max_workers &&
		RegisterDynamicBackgroundWorker(&worker, NULL))
		return true;
	ereport(elevel,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("could not start a feedpub worker"),
			 detail_no_room()));
	return false;
}

/*
 * The same for one that has an entry, unless it has a worker, or one was ordered
 * less than so many ms ago.
 */
bool
feedpub_launcher_start_worker(FeedpubDatabase *entry, Oid dbid, int retry_ms, int elevel)
{
	bool		started;

	if (!feedpub_shmem_needs_worker(entry, retry_ms))
		return true;
	started = start_worker(dbid, elevel);
	feedpub_shmem_set_refused(entry, !started);
	return started;
}

/*
 * What all our processes have.  The type is the name, too.
 */
void
feedpub_launcher_describe(BackgroundWorker *worker, const char *type, const char *function)
{
	worker->bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker->bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker->bgw_restart_time = BGW_NEVER_RESTART;
	strlcpy(worker->bgw_library_name, "feedpub", BGW_MAXLEN);
	strlcpy(worker->bgw_function_name, function, BGW_MAXLEN);
	strlcpy(worker->bgw_name, type, BGW_MAXLEN);
	strlcpy(worker->bgw_type, type, BGW_MAXLEN);
}

/*
 * Register the launcher while the server starts.  _PG_init() calls this.
 */
void
feedpub_launcher_register(void)
{
	BackgroundWorker worker = {0};

	if (IsBinaryUpgrade)
		return;
	feedpub_launcher_describe(&worker, "feedpub launcher", "feedpub_launcher_main");
	worker.bgw_restart_time = RESTART_INTERVAL / 1000;
	RegisterBackgroundWorker(&worker);
}

/*
 * The launcher.
 */
void
feedpub_launcher_main(Datum main_arg)
{
	Oid			visited = InvalidOid;	/* the databases up to this one */
	bool		is_first_round = true;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);

	before_shmem_exit(forget_launcher, (Datum) 0);
	feedpub_shmem_set_launcher(MyLatch);

	for (;;)
	{
		FeedpubWorkerInfo workers[FEEDPUB_MAX_DATABASES];
		int			nworkers;
		long		timeout = RESTART_INTERVAL;

		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}

		/* the first round: one database at a time, not all at once */
		if (is_first_round)
		{
			visited = next_database(visited);
			is_first_round = OidIsValid(visited);
		}
		if (is_first_round)
		{
			(void) start_worker(visited, WARNING);
			timeout = 100;
		}

		StartTransactionCommand();
		feedpub_shmem_reclaim();
		CommitTransactionCommand();
		nworkers = feedpub_shmem_read_workers(workers);
		for (int i = 0; i < nworkers; i++)
		{
			Oid			dbid = workers[i].dbid;
			FeedpubDatabase *entry;

			if (!workers[i].wanted || workers[i].stopped || workers[i].pid != 0)
				continue;
			entry = feedpub_shmem_database_of(dbid);
			if (entry != NULL)
				(void) feedpub_launcher_start_worker(entry, dbid, RESTART_INTERVAL, WARNING);
		}

		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 timeout, feedpub_wait_event("FeedpubLauncherMain"));
	}
}

static void
forget_launcher(int code, Datum arg)
{
	feedpub_shmem_set_launcher(NULL);
}

/*
 * The database with the next OID that accepts connections and is no template, or
 * InvalidOid.
 */
static Oid
next_database(Oid after)
{
	Oid			next = InvalidOid;
	Relation	rel;
	TableScanDesc scan;
	HeapTuple	tuple;

	StartTransactionCommand();
	(void) GetTransactionSnapshot();
	rel = table_open(DatabaseRelationId, AccessShareLock);
	scan = table_beginscan_catalog(rel, 0, NULL);
	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		Form_pg_database form = (Form_pg_database) GETSTRUCT(tuple);

		if (form->datallowconn && !form->datistemplate && form->oid > after &&
			(!OidIsValid(next) || form->oid < next))
			next = form->oid;
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);
	CommitTransactionCommand();
	return next;
}
