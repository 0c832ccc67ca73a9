/*-------------------------------------------------------------------------
 *
 * maintenance_plan.c
 *	  When the process that stamps rows is started, and for which feed: a part
 *	  of the database's worker (worker.c).
 *
 * One process runs at a time (maintenance.c).  If its last turn failed, or was
 * ended by the limit, or found only locks, its feed waits, each time twice as
 * long.  Owners take turns.
 *
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

#include "republish/republish.h"

/* the waits of a feed: after a failure, or for locks; in ms */
#define FIRST_PENANCE		1000
#define LAST_PENANCE		(3600 * 1000)
#define FIRST_RETRY			100
#define LAST_RETRY			10000

/* What the worker knows of a feed with such partitions. */
typedef struct Patient
{
	Oid			feed;			/* hash key, must be first */
	Oid			owner;
	bool		pending;
	int			failures;		/* one after the other */
	int			waits;
	int64		stamped;		/* so far, as far as is known */
	TimestampTz not_before;
	TimestampTz served_at;
} Patient;

static HTAB *patients = NULL;
static BackgroundWorkerHandle *process = NULL;
static Oid	process_feed;
static TimestampTz process_started;

static FeedpubStatement list_feeds = {
	.sql = "SELECT p.feed, c.relowner, pg_catalog.sum(COALESCE(s.stamped, 0))::pg_catalog.int8,"
		   "  COALESCE(pg_catalog.bool_or(s.running), false),"
		   "  pg_catalog.bool_or(s.done IS NOT TRUE),"
		   /* of a process, not of a row: those are of their step's time */
		   "  pg_catalog.max(s.last_error_at) FILTER (WHERE s.last_error_at"
		   "   > COALESCE(s.stepped_at, '-infinity'))"
		   " FROM feedpub._partition p"
		   " JOIN pg_catalog.pg_class c ON c.oid = p.feed"
		   " LEFT JOIN feedpub._stamping s ON s.feed = p.feed"
		   "  AND s.partition = p.partition"
		   "  AND s.since = p.since"
		   " WHERE p.since > '0'"
		   " GROUP BY p.feed, c.relowner",
};

static void see_end(void);
static int64 longer_wait(int64 first, int *nwaits, int64 last);
static Patient *choose_patient(void);
static void start_process(Patient *patient);

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
 * See which feeds have rows to be stamped, and what the last process did.  In a
 * transaction.
 */
void
feedpub_maintenance_plan(FeedpubWorkerStats *stats)
{
	HASH_SEQ_STATUS status;
	Patient    *patient;
	FeedpubRole caller;
	Oid			killed = InvalidOid;
	uint64		n;

	if (patients == NULL)
	{
		HASHCTL		ctl = {0};

		ctl.keysize = sizeof(Oid);
		ctl.entrysize = sizeof(Patient);
		ctl.hcxt = TopMemoryContext;
		patients = hash_create("feedpub maintenance", 16, &ctl,
							   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
	hash_seq_init(&status, patients);
	while ((patient = hash_seq_search(&status)) != NULL)
		patient->pending = false;
	feedpub_store_begin(&caller);
	n = feedpub_store_run(&list_feeds, NULL, NULL);
	for (uint64 i = 0; i < n; i++)
	{
		bool		isnull;
		bool		found;
		Oid			feed = DatumGetObjectId(feedpub_store_value(i, 1, &isnull));
		int64		stamped = DatumGetInt64(feedpub_store_value(i, 3, &isnull));

		patient = hash_search(patients, &feed, HASH_ENTER, &found);
		if (!found)
		{
			MemSet(patient, 0, sizeof(Patient));
			patient->feed = feed;
			patient->stamped = stamped;
		}
		stats->stamped += Max(stamped - patient->stamped, 0);
		patient->pending = DatumGetBool(feedpub_store_value(i, 5, &isnull));
		patient->owner = DatumGetObjectId(feedpub_store_value(i, 2, &isnull));
		if (process == NULL && process_feed == feed)
		{
			/* what its last turn came to */
			bool		was_killed = DatumGetBool(feedpub_store_value(i, 4, &isnull));
			Datum		at = feedpub_store_value(i, 6, &isnull);
			int64		wait_ms = 0;

			if (was_killed)
				killed = feed;
			if (was_killed || (!isnull && DatumGetTimestampTz(at) >= process_started))
				wait_ms = longer_wait(FIRST_PENANCE, &patient->failures, LAST_PENANCE);
			else if (stamped == patient->stamped)
				wait_ms = longer_wait(FIRST_RETRY, &patient->waits, LAST_RETRY);
			else
				patient->failures = patient->waits = 0;
			patient->not_before = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), wait_ms);
		}
		patient->stamped = stamped;
	}
	if (process == NULL)
		process_feed = InvalidOid;
	hash_seq_init(&status, patients);
	while ((patient = hash_seq_search(&status)) != NULL)
	{
		if (patient->pending)
			continue;
		patient->failures = patient->waits = 0;
		patient->not_before = 0;
	}
	feedpub_store_end(&caller);
	if (OidIsValid(killed))
		feedpub_maintenance_note_error(killed, "a step took too long and was ended");
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
	Patient    *patient;
	long		wait_ms = LONG_MAX;

	if (patients == NULL)
		return wait_ms;
	if (process != NULL)
		see_end();
	if (process != NULL)
		return wait_ms;
	if (OidIsValid(process_feed))
		return 0;
	patient = choose_patient();
	if (patient != NULL)
		start_process(patient);
	if (process != NULL)
		return wait_ms;
	hash_seq_init(&status, patients);
	while ((patient = hash_seq_search(&status)) != NULL)
	{
		if (patient->pending)
			wait_ms = Min(wait_ms, Max(TimestampDifferenceMilliseconds(now, patient->not_before), FIRST_RETRY));
	}
	return wait_ms;
}

/*
 * End the process: the worker ends, maybe since others want the database.
 */
void
feedpub_maintenance_end(void)
{
	if (process != NULL)
		TerminateBackgroundWorker(process);
}

/*
 * Has the process ended?  Then the next plan tells what it came to.
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
 * Of the feeds whose time has come, one of the owner that has been served the
 * longest time ago.
 */
static Patient *
choose_patient(void)
{
	TimestampTz now = GetCurrentTimestamp();
	HASH_SEQ_STATUS status;
	Patient    *patient;
	Patient    *chosen = NULL;
	TimestampTz chosen_owner = 0;

	hash_seq_init(&status, patients);
	while ((patient = hash_seq_search(&status)) != NULL)
	{
		HASH_SEQ_STATUS others;
		Patient    *other;
		TimestampTz owner = 0;

		if (!patient->pending || patient->not_before > now)
			continue;
		hash_seq_init(&others, patients);
		while ((other = hash_seq_search(&others)) != NULL)
		{
			if (other->owner == patient->owner)
				owner = Max(owner, other->served_at);
		}
		if (chosen == NULL || owner < chosen_owner ||
			(owner == chosen_owner && patient->served_at < chosen->served_at))
		{
			chosen = patient;
			chosen_owner = owner;
		}
	}
	return chosen;
}

static void
start_process(Patient *patient)
{
	BackgroundWorker worker;
	Oid			arguments[2] = {MyDatabaseId, patient->feed};
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
	patient->served_at = GetCurrentTimestamp();
	process_started = patient->served_at;
	if (RegisterDynamicBackgroundWorker(&worker, &process))
		process_feed = patient->feed;
	else
	{
		process = NULL;
		patient->not_before = TimestampTzPlusMilliseconds(patient->served_at, LAST_RETRY);
	}
	MemoryContextSwitchTo(oldcontext);
}
