/*-------------------------------------------------------------------------
 *
 * worker.c
 *	  The publisher of one database: a loop that calls feedpub_publish_feed().
 *
 * The worker waits, without a transaction, until a writer's commit sets its
 * latch.  It takes the marks of the feeds that have news, and publishes each
 * feed in a transaction of its own.  An idle feed is published at once; one
 * with much traffic at most every feedpub.publish_interval, so that each batch
 * has several commits.  If a feed cannot be published, the worker reports that
 * and tries again later, each time after twice as long.  The other feeds go
 * on.
 *
 * It runs no code of a table's owner.  What may run
 * such code, or is long, is done in steps by another process, which it starts
 * (job/plan.c).
 *
 * At its start it looks at all feeds once, after its latch is where writers
 * find it.  That look sees what was committed before; what is committed after
 * leaves a mark.
 *
 * It ends when the last feed is gone.  It also ends if another session needs
 * to drop, rename or copy the database: that session holds a lock on the
 * database while it waits for the other sessions to end, and the worker tests
 * for the lock every second, or more often.  The postmaster never restarts the
 * worker, which would be started again and again if the database is gone.  The
 * launcher or the next reader does.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_database.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/hsearch.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "worker/worker.h"

PGDLLEXPORT void feedpub_worker_main(Datum main_arg);

/* so many transactions are published in an interval before any wait */
#define BUSY_TRANSACTIONS	8

/* the first and the longest wait after failures, in ms */
#define FIRST_RETRY			100
#define LAST_RETRY			60000

/* how long after a trigger could not be made it is tried again, in ms */
#define GUARD_RETRY			500

/* how long merges and moves of floors wait for a lock, in ms */
#define LOCK_TIMEOUT_MS		"100"

/* old batches are merged once in so many naps: 10 minutes by default */
#define NAPS_PER_MERGE		600

/* the floors of outboxes are moved once in so many naps: 10 s by default */
#define NAPS_PER_RETENTION	10

/* in how many feeds batches are merged before publishing goes on */
#define MERGES_A_TURN		4

/* What the worker knows of a feed. */
typedef struct FeedState
{
	Oid			relid;			/* hash key, must be first */
	bool		dirty;
	bool		has_more;		/* than the last step has published */
	int			nfailures;
	TimestampTz not_before;
	TimestampTz paced_to;		/* see pace() */
	bool		merge_due;		/* there may be batches to merge, or to remove */
	FeedpubMerged merged;		/* what has been */
	int			merge_failures;
	TimestampTz merge_not_before;
	bool		announced;		/* the newest batch, by this worker */
	bool		unguarded;		/* feedpub_publish_guard() is due, */
	TimestampTz guard_at;		/* from then on */
} FeedState;

static HTAB *states;
static bool all_marked = false; /* all feeds are still to be marked */
static int	published;			/* what publish() did */
static FeedpubPublished published_as;	/* details of that */
static FeedpubMerged merged_up_to;	/* what merge() did */
static bool merge_more;
static FeedpubWorkerStats stats;	/* shared memory has them once a turn */

static void leave(int code, Datum arg);
static bool run_step(const char *activity, void (*step)(Oid relid), Oid relid);
static void mark_news(Oid relid);
static void plan_jobs(Oid relid);
static void plan_retention(Oid relid);
static void guard_captured(Oid relid);
static void mark_registered(Oid relid);
static bool is_wanted_here(void);
static void begin_states(void);
static void collect_marks(void);
static void publish_due(void);
static bool merge_some(void);
static void plan_merges(void);
static long next_due(void);

/*
 * The worker of one database, whose OID is its argument.
 */
void
feedpub_worker_main(Datum main_arg)
{
	Oid			dbid = DatumGetObjectId(main_arg);
	TimestampTz looked_around = 0;
	TimestampTz merged = GetCurrentTimestamp();
	TimestampTz retained = merged;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnectionByOid(dbid, InvalidOid, 0);

	feedpub_guc_pin();

	/* take an entry in shared memory only if there are feeds */
	if (!is_wanted_here())
		proc_exit(0);
	before_shmem_exit(leave, (Datum) 0);
	if (!feedpub_shmem_claim_worker(&stats))
		proc_exit(0);

	begin_states();
	pgstat_report_appname("feedpub worker");

	for (;;)
	{
		TimestampTz now = GetCurrentTimestamp();

		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}

		if (feedpub_plan_wait() == 0 ||
			TimestampDifferenceExceeds(looked_around, now,
									   Min(feedpub_naptime, 1000)))
		{
			if (!is_wanted_here())
				proc_exit(0);
			looked_around = now;
		}
		collect_marks();
		publish_due();
		if (TimestampDifferenceExceeds(merged, now,
									   Min(feedpub_naptime, INT_MAX / NAPS_PER_MERGE) * NAPS_PER_MERGE))
		{
			plan_merges();
			merged = now;
		}
		if (TimestampDifferenceExceeds(retained, now,
									   Min(feedpub_naptime, INT_MAX / NAPS_PER_RETENTION) * NAPS_PER_RETENTION))
		{
			(void) run_step("looking for policies", plan_retention, InvalidOid);
			(void) run_step("making triggers in captured partitions", guard_captured, InvalidOid);
			retained = now;
		}
		for (int i = 0; i < MERGES_A_TURN && merge_some(); i++)
			;

		stats.turns++;
		feedpub_shmem_set_stats(&stats);
		if (WaitLatch(MyLatch,
					  WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					  Min(next_due(), feedpub_plan_wait()), feedpub_wait_event("FeedpubWorkerMain")) &
			WL_LATCH_SET)
			stats.wakeups++;
	}
}

static void
leave(int code, Datum arg)
{
	feedpub_plan_end();
	feedpub_shmem_release_worker();
}

/*
 * Does this database have a feed, and does no other session need the database
 * for itself?
 */
static bool
is_wanted_here(void)
{
	LOCKTAG		tag;
	bool		wanted = false;
	bool		alone;
	List	   *feeds;

	StartTransactionCommand();
	SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, MyDatabaseId, 0);
	alone = LockAcquire(&tag, RowExclusiveLock, false, true) == LOCKACQUIRE_NOT_AVAIL;
	if (!alone)
	{
		PushActiveSnapshot(GetTransactionSnapshot());
		feeds = OidIsValid(get_extension_oid("feedpub", true)) ?
			feedpub_registry_list() :
			NIL;
		wanted = feeds != NIL;

		/* more states than feeds: some are of feeds that are no more */
		if (states != NULL && hash_get_num_entries(states) > list_length(feeds))
		{
			hash_destroy(states);
			begin_states();
		}
		PopActiveSnapshot();
	}
	CommitTransactionCommand();

	/*
	 * If another session needs the database, the launcher starts a worker
	 * later.
	 */
	if (!wanted && !alone)
		feedpub_shmem_set_unwanted();
	if (wanted && states != NULL)
		run_step("looking for jobs", plan_jobs, InvalidOid);
	return wanted;
}

/*
 * Begin to know feeds: all of them have news.
 */
static void
begin_states(void)
{
	HASHCTL		ctl = {.keysize = sizeof(Oid), .entrysize = sizeof(FeedState), .hcxt = TopMemoryContext};

	states = hash_create("feedpub worker feeds", 64, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	stats.failing = 0;
	all_marked = true;
}

static FeedState *
get_state(Oid relid)
{
	bool		found;
	FeedState  *state = hash_search(states, &relid, HASH_ENTER, &found);

	if (!found)
	{
		MemSet(state, 0, sizeof(FeedState));
		state->relid = relid;
		state->merge_due = true;
	}
	return state;
}

/*
 * Note that a feed has news, or each, for InvalidOid.
 */
static void
mark_news(Oid relid)
{
	if (OidIsValid(relid))
	{
		get_state(relid)->dirty = true;
		return;
	}

	/* if it fails, it is done again in the next turn */
	all_marked = !run_step("looking for feeds", mark_registered, InvalidOid);
}

/*
 * Collect what writers and those that wait have marked, and whether prepared
 * transactions have ended.
 */
static void
collect_marks(void)
{
	Oid			dirty[FEEDPUB_MAX_DIRTY];
	bool		all;
	bool		prepared;
	int			ndirty = feedpub_shmem_read_marks(dirty, &all, &prepared);

	for (int i = 0; i < ndirty; i++)
		mark_news(dirty[i]);
	if (all || all_marked)
		mark_news(InvalidOid);
	feedpub_prepared_check(prepared, mark_news, run_step);
}

/* the steps of run_step() */

static void
mark_registered(Oid relid)
{
	ListCell   *lc;

	foreach(lc, feedpub_registry_list())
		mark_news(lfirst_oid(lc));
}

/* for work that is not urgent: a lock of others must not hold up publishing */
static void
limit_waits(void)
{
	(void) set_config_option("lock_timeout", LOCK_TIMEOUT_MS, PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
}

static void
publish(Oid relid)
{
	published = feedpub_publish_feed(relid, FEEDPUB_WAIT_FOR_NOBODY,
									 &published_as);
}

static void
guard(Oid relid)
{
	get_state(relid)->unguarded = !feedpub_publish_guard(relid);
}

static void
guard_captured(Oid relid)
{
	/* a lock that excludes writers waits for no disk */
	(void) set_config_option("synchronous_commit", "off", PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
	feedpub_partition_guard_captured();
}

static void
announce(Oid relid)
{
	feedpub_publish_notify(relid);
}

static void
merge(Oid relid)
{
	limit_waits();
	(void) feedpub_merge_step(relid, &merged_up_to, &merge_more);
	if (!merge_more)
		(void) feedpub_retain_step(relid);
}

static void
plan_retention(Oid relid)
{
	ListCell   *lc;

	foreach(lc, feedpub_retain_list())
		get_state(lfirst_oid(lc))->merge_due = true;
}

static void
plan_jobs(Oid relid)
{
	feedpub_plan_jobs(&stats);
}

/*
 * Run one step in a transaction of its own.  An error is reported, and the
 * loop goes on.  Returns whether there was none.
 */
static bool
run_step(const char *activity, void (*step)(Oid relid), Oid relid)
{
	MemoryContext context = CurrentMemoryContext;
	volatile bool done = false;
	char *volatile name = NULL;

	SetCurrentStatementStartTimestamp();
	pgstat_report_activity(STATE_RUNNING, activity);
	PG_TRY();
	{
		StartTransactionCommand();

		/* for an error, after which nothing can be looked up */
		if (OidIsValid(relid))
			name = get_rel_name(relid);
		if (step != publish)
			PushActiveSnapshot(GetTransactionSnapshot());
		step(relid);
		if (step != publish)
			PopActiveSnapshot();
		CommitTransactionCommand();
		done = true;
	}
	PG_CATCH();
	{
		ErrorData  *error;

		HOLD_INTERRUPTS();
		MemoryContextSwitchTo(context);
		if (name != NULL)
			errcontext("%s feed \"%s\"", activity, name);
		else if (OidIsValid(relid))
			errcontext("%s feed with OID %u", activity, relid);
		else
			errcontext("%s", activity);
		EmitErrorReport();
		error = CopyErrorData();
		feedpub_shmem_note_error(relid, error->message);
		FreeErrorData(error);
		stats.errors++;
		AbortCurrentTransaction();
		FlushErrorState();
		RESUME_INTERRUPTS();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	pgstat_report_stat(false);
	pgstat_report_activity(STATE_IDLE, NULL);
	return done;
}

/*
 * How long to wait after a failure, in ms: each time twice as long.
 */
static int
retry_wait(int nfailures)
{
	return Min(FIRST_RETRY << Min(nfailures, 10), LAST_RETRY);
}

/*
 * How long a feed waits after a batch, in ms, so that each batch of a busy feed
 * has several commits.
 *
 * Each transaction takes up an eighth of an interval, a batch not more than a
 * whole one.  paced_to is where these would end if they followed each other.
 * Only if it is more than an interval ahead, the feed waits: two commits that
 * happen to come one shortly after the other are published at once.
 */
static int
pace(FeedState *state)
{
	TimestampTz now = GetCurrentTimestamp();
	int64		interval = feedpub_publish_interval * INT64CONST(1000);

	state->paced_to = Max(state->paced_to, now) +
		interval * Min(published, BUSY_TRANSACTIONS) / BUSY_TRANSACTIONS;
	return Min(Max(state->paced_to - interval - now, 0), interval) / 1000;
}

/*
 * Publish one feed.  If that fails, the loop goes on.
 */
static void
publish_one(FeedState *state)
{
	int			wait_ms;

	/* before the look: a mark that is set after this asks for another look */
	state->dirty = false;
	feedpub_shmem_take_mark(state->relid);

	published = 0;
	if (!run_step("publishing", publish, state->relid))
	{
		wait_ms = retry_wait(state->nfailures);
		if (state->nfailures++ == 0)
			stats.failing++;
		state->dirty = true;
	}
	else if (published == FEEDPUB_PUBLISH_BUSY)
	{
		wait_ms = FIRST_RETRY;
		state->dirty = true;
	}
	else
	{
		if (state->nfailures > 0)
			stats.failing--;
		state->nfailures = 0;
		stats.batches += published_as.batches;
		stats.transactions += published;
		state->unguarded = published_as.unguarded;
		wait_ms = pace(state);
		state->has_more = state->dirty = published_as.more;
		if (state->has_more)
			wait_ms = 0;
		if (published > 0)
			feedpub_shmem_wake_waiters(state->relid);

		/* the publisher before may have ended between a batch and its NOTIFY */
		if ((published > 0 &&
			 (published_as.announce || feedpub_shmem_is_listened(state->relid))) ||
			!state->announced)
			state->announced = run_step("announcing", announce, state->relid);
	}
	state->not_before = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), wait_ms);
}

/*
 * Publish the feeds that have news and need not wait longer.  Of those with a
 * large backlog, whose steps take longer, one gets a step, and they take
 * turns: the others do not wait for more than that.
 */
static void
publish_due(void)
{
	HASH_SEQ_STATUS status;
	FeedState  *state;
	FeedState  *longest = NULL; /* waiting for its next step */
	TimestampTz now = GetCurrentTimestamp();
	List	   *due = NIL;
	ListCell   *lc;

	/* a scan of the table must not go on after a transaction's end */
	hash_seq_init(&status, states);
	while ((state = hash_seq_search(&status)) != NULL)
	{
		if (state->dirty || state->unguarded)
			due = lappend(due, state);
		if (state->dirty && state->has_more &&
			(longest == NULL || state->not_before < longest->not_before))
			longest = state;
	}
	foreach(lc, due)
	{
		state = lfirst(lc);
		if (state->dirty && state->not_before <= now &&
			(!state->has_more || state == longest))
			publish_one(state);
		if (!state->unguarded || state->guard_at > now)
			continue;
		(void) run_step("making triggers in partitions of", guard, state->relid);
		state->guard_at = TimestampTzPlusMilliseconds(now, GUARD_RETRY);
	}
	list_free(due);
}

/*
 * Merge some of the old batches of one feed, and move its floor.  It is one
 * step, so that publishing goes on between steps.  Returns false if there is
 * nothing to do.
 */
static bool
merge_some(void)
{
	HASH_SEQ_STATUS status;
	FeedState  *state;
	FeedState  *due = NULL;
	TimestampTz now = GetCurrentTimestamp();

	/* a scan of the table must not go on after a transaction's end */
	hash_seq_init(&status, states);
	while ((state = hash_seq_search(&status)) != NULL)
	{
		if (state->merge_due && state->merge_not_before <= now)
			due = state;
	}
	if (due == NULL)
		return false;

	/*
	 * What a step has merged counts when it has committed.  If a step fails,
	 * it is done again from the same batch.
	 */
	merged_up_to = due->merged;
	if (run_step("merging batches of", merge, due->relid))
	{
		due->merged = merged_up_to;
		due->merge_due = merge_more;
		due->merge_failures = 0;
	}
	else
		due->merge_not_before = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
															retry_wait(due->merge_failures++));
	return true;
}

/*
 * Have the old batches of each feed merged.  Called from time to time.
 */
static void
plan_merges(void)
{
	HASH_SEQ_STATUS status;
	FeedState  *state;

	hash_seq_init(&status, states);
	while ((state = hash_seq_search(&status)) != NULL)
		state->merge_due = true;
}

/*
 * How long the worker may sleep, in ms.
 */
static long
next_due(void)
{
	long		timeout = Min(Min(feedpub_naptime, 1000), feedpub_prepared_wait());
	TimestampTz now = GetCurrentTimestamp();
	HASH_SEQ_STATUS status;
	FeedState  *state;

	hash_seq_init(&status, states);
	while ((state = hash_seq_search(&status)) != NULL)
	{
		if (state->merge_due)
			timeout = Min(timeout, TimestampDifferenceMilliseconds(now, state->merge_not_before));
		if (state->unguarded)
			timeout = Min(timeout, TimestampDifferenceMilliseconds(now, state->guard_at));
		if (state->dirty)
			timeout = Min(timeout, TimestampDifferenceMilliseconds(now, state->not_before));
	}
	return timeout;
}
