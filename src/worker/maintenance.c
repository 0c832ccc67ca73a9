/*-------------------------------------------------------------------------
 * maintenance.c
 *	  The process that runs owners' code: it stamps the rows that partitions
 *	  came with (republish/stamping.c), and removes the rows before the floor
 *	  of an outbox (retention/remove.c).
 *
 * A process serves one feed for one turn.  The database's worker starts it if
 * a feed has such work, one process at a time (maintenance_plan.c).  It ends
 * if it has no more to do, or if its turn is over.  If a step takes longer
 * than a limit, it ends the process, in a way that no code can catch.  Then
 * the feed waits, each time twice as long, and owners take turns.  What that
 * code may have left in its session ends with the process.
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
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "worker/worker.h"

PGDLLEXPORT void feedpub_maintenance_main(Datum main_arg);

/* rows that are stamped in one step, and steps that share a second's rate */
#define STEP_ROWS			1000
#define STEPS_A_SECOND		10

/* how long a step that removes rows is to take, in ms, and its rows at most */
#define REMOVAL_TIME		10
#define REMOVAL_ROWS		5000

/* after how long a step ends the process, and how long a turn is, in ms */
#define STEP_LIMIT			7000
#define TURN				3000

static TimeoutId limit;
static bool is_removal;
static FeedpubStamping stamping;
static FeedpubRemoval removal;
static FeedpubRemovalOutcome removal_outcome;
static int	removal_rows = 10;	/* few at first: each may be slow */

static void end_process(void);
static void run_in_transaction(void (*step)(Oid feed), Oid feed);

/*
 * The handler of the limit: what die() does, from within.  No code catches
 * FATAL.
 */
static void
end_process(void)
{
	InterruptPending = true;
	ProcDiePending = true;
	SetLatch(MyLatch);
}

static void
begin_turn(Oid feed)
{
	is_removal = feedpub_registry_is_registered(feed) && !feedpub_registry_is_table(feed);
	if (is_removal)
		feedpub_removal_begin_turn(feed);
	else
		feedpub_stamping_begin_turn(feed);
}

/*
 * Nobody waits for these commits.  Stamped rows become durable with the batch
 * that has them.  If a crash takes back a removal, the rows are before the
 * floor, and are removed again.
 */
static void
commit_later(void)
{
	(void) set_config_option("synchronous_commit", "off", PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
}

static void
stamp_rows(Oid feed)
{
	int			rows = feedpub_stamping_rate == 0 ?
		STEP_ROWS :
		Min(Max(feedpub_stamping_rate / STEPS_A_SECOND, 1), STEP_ROWS);

	commit_later();
	feedpub_stamping_step(feed, rows, false, &stamping);
}

static void
remove_rows(Oid feed)
{
	commit_later();
	if (feedpub_removal_rate > 0)
		removal_rows = Min(removal_rows, Max(feedpub_removal_rate / STEPS_A_SECOND, 1));
	removal_outcome = feedpub_removal_step(&removal, feed, removal_rows, false);
}

static void
end_turn(Oid feed)
{
	if (is_removal)
	{
		feedpub_removal_save(&removal, feed, false);
		feedpub_removal_end_turn(feed, NULL);
	}
	else
		feedpub_stamping_end_turn(feed);
}

static const char *failure;

static void
note_failure(Oid feed)
{
	char	   *name = get_rel_name(feed);
	const char *verb = is_removal ? "remove" : "stamp";

	/* the message may tell of rows: it is for the table's owner */
	ereport(LOG,
			(name != NULL ?
				 errmsg("could not %s rows of feed \"%s\"", verb, name) :
				 errmsg("could not %s rows of feed with OID %u", verb, feed),
			 errdetail("%s tells its owner why.", is_removal ? "feedpub.feeds" : "feedpub.republishing")));
	if (is_removal)
		feedpub_removal_end_turn(feed, failure);
	else
		feedpub_stamping_note_error(feed, failure);
}

/*
 * Sleep after a step, so that no more rows a second are written than rate; 0
 * sets no limit.
 */
static void
throttle(int64 nrows, int rate, TimestampTz began)
{
	int64		ms;

	if (rate == 0 || nrows == 0)
		return;
	ms = nrows * 1000 / rate - TimestampDifferenceMilliseconds(began, GetCurrentTimestamp());
	if (ms > 0)
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 ms, feedpub_wait_event("FeedpubMaintenance"));
	ResetLatch(MyLatch);
}

/*
 * Stamp rows once.  Returns whether there is more to do.
 */
static bool
stamp_once(Oid feed)
{
	static int	nwaits = 0;
	TimestampTz began = GetCurrentTimestamp();

	run_in_transaction(stamp_rows, feed);
	disable_timeout(limit, false);
	nwaits = stamping.outcome == FEEDPUB_STAMPING_WAITS ? nwaits + 1 : 0;
	throttle(stamping.stamped, feedpub_stamping_rate, began);
	return stamping.npending > 0 && nwaits < stamping.npending;
}

/*
 * Remove rows once.  Returns whether there is more to do.
 */
static bool
remove_once(Oid feed)
{
	TimestampTz began = GetCurrentTimestamp();
	int64		before = removal.removed;
	int64		us;

	run_in_transaction(remove_rows, feed);
	disable_timeout(limit, false);
	us = Max(GetCurrentTimestamp() - began, 1);
	throttle(removal.removed - before, feedpub_removal_rate, began);
	removal_rows = (int) Max(Min(removal_rows * Min(REMOVAL_TIME * 1000.0 / us, 2), REMOVAL_ROWS), 10);
	return removal_outcome == FEEDPUB_REMOVAL_GOES_ON;
}

/*
 * Serve one feed for one turn.  bgw_extra has the arguments: the database and
 * the feed.
 */
void
feedpub_maintenance_main(Datum main_arg)
{
	Oid			arguments[2];
	MemoryContext context = AllocSetContextCreate(TopMemoryContext,
												  "feedpub maintenance",
												  ALLOCSET_DEFAULT_SIZES);
	TimestampTz began = GetCurrentTimestamp();
	bool		more = true;

	memcpy(arguments, MyBgworkerEntry->bgw_extra, sizeof(arguments));
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnectionByOid(arguments[0], InvalidOid, 0);
	limit = RegisterTimeout(USER_TIMEOUT, end_process);
	feedpub_guc_pin();
	pgstat_report_appname("feedpub maintenance");

	PG_TRY();
	{
		run_in_transaction(begin_turn, arguments[1]);
		while (more && !TimestampDifferenceExceeds(began, GetCurrentTimestamp(), TURN))
		{
			CHECK_FOR_INTERRUPTS();
			MemoryContextReset(context);
			MemoryContextSwitchTo(context);
			enable_timeout_after(limit, STEP_LIMIT);
			more = is_removal ? remove_once(arguments[1]) : stamp_once(arguments[1]);
		}
		run_in_transaction(end_turn, arguments[1]);
	}
	PG_CATCH();
	{
		ErrorData  *error;

		disable_timeout(limit, false);
		HOLD_INTERRUPTS();
		MemoryContextSwitchTo(context);
		error = CopyErrorData();

		AbortCurrentTransaction();
		FlushErrorState();
		RESUME_INTERRUPTS();
		failure = error->message;
		run_in_transaction(note_failure, arguments[1]);
	}
	PG_END_TRY();
	proc_exit(0);
}

static void
run_in_transaction(void (*step)(Oid feed), Oid feed)
{
	SetCurrentStatementStartTimestamp();
	pgstat_report_activity(STATE_RUNNING, "maintenance");
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	step(feed);
	PopActiveSnapshot();
	CommitTransactionCommand();
	pgstat_report_stat(false);
	pgstat_report_activity(STATE_IDLE, NULL);
}
