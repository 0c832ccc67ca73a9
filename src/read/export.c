/*-------------------------------------------------------------------------
 *
 * export.c
 *	  A snapshot and cursors of the same moment: feed_snapshot().
 *
 * What the snapshot S sees is what is before the cursors.  So a consumer copies
 * tables with S, in any number of sessions, and follows from the cursors.
 *
 * A helper process does it, since the caller's transaction can neither commit a
 * batch nor outlive its statement.  In the order of events:
 *
 * 1. In transaction T1 the helper takes the publishing locks of all the feeds,
 *	  then the snapshot S, and makes a publisher's step in each feed with S
 *	  (feedpub_publish_together()).  After the step the last batch P of a feed
 *	  sees what S sees, or S sees no living row that P does not (cut.c).  The
 *	  end of P is the feed's cursor, found under the lock.  So the batches up
 *	  to the cursor have the rows that S sees.  A later batch has what its own
 *	  snapshot sees and P does not, so no row of S: a row version that S sees was
 *	  written by a transaction that P sees.
 * 2. T1 commits, which gives the locks back.  The xid that it got is not seen by
 *	  S, as that of any publisher.  All that S has seen is flushed.
 * 3. Transaction T2, which never gets an xid, takes S over, as a parallel worker
 *	  takes over that of its leader, exports and holds it.  Between T1 and T2
 *	  the caller protects what S sees: the caller's statement has a snapshot that
 *	  is older than S and stays active until the answer is there.  So its xmin is
 *	  not after that of S, and VACUUM removes nothing that S sees.  The server
 *	  checks that when T2 takes S over (ProcArrayInstallRestoredXmin()), whatever
 *	  has become of the caller.
 * 4. The caller gets the answer in dynamic shared memory, and is told through a
 *	  queue, which tells each of the two if the other ends.  T2 ends when the time
 *	  is up, or when the caller's process is gone, for which the helper looks.
 *
 * A table feed: S is taken under a lock on the table, so S sees feed_attach().
 * The rows without a stamp are in the copy, and not after the cursor.  Rows that
 * are stamped anew later, since their partition was attached, are in the copy
 * and come again; deletes leave their tombstones from ATTACH on.
 *
 * What is left if one of them ends:
 *
 * - The helper, before T1 has committed: no batch, and no lock.  After it: some
 *	 whole batches.  In T2: no snapshot; the server removes the file.  While the
 *	 caller waits, it gets an error.
 * - The caller, or its statement: the helper sees that before it tries again to
 *	 lock feeds, when it takes S over or answers; and while it holds S, if the
 *	 session has ended.
 * - The server, in a crash: exported snapshots go with it; batches that were
 *	 committed are followed by others.
 *
 * The helper waits for publishing locks, before it has an xid and for a short
 * time; then it gives all back and tries again, until LOCK_LIMIT.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "storage/dsm.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/shm_mq.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "read/read.h"

PG_FUNCTION_INFO_V1(feed_snapshot);
PGDLLEXPORT void feedpub_export_main(Datum main_arg);

/* the longest hold, how long locks are tried, and the pause after a try, in ms */
#define MAX_HOLD		(24 * 60 * 60 * 1000)
#define LOCK_LIMIT		10000
#define LOCK_PAUSE		500

/* how often the helper looks whether the session is still there, in ms */
#define LOOK_INTERVAL	500

#define TEXT_LENGTH		512

/* The queue only tells that the answer is there. */
#define QUEUE_SIZE		256

/* What the caller asks for, and the answer. */
typedef struct Request
{
	Oid			database;
	int			hold_ms;
	int			sqlstate;		/* 0: a snapshot was exported */
	char		text[TEXT_LENGTH];	/* its name, or the message of an error */
	char		hint[TEXT_LENGTH];
	int			nfeeds;
	struct
	{
		Oid			relid;
		char		cursor[FEEDPUB_CURSOR_MAX_LENGTH + 1];
	} feeds[FLEXIBLE_ARRAY_MEMBER]; /* by OID */
} Request;

/* of both processes; of the helper's */
static dsm_segment *segment;
static Request *request;
static PGPROC *caller;
static FeedpubPublished *published;
static char *snapshot;			/* as the server serializes it */

static List *get_feeds(ArrayType *array);
static shm_mq_handle *start_helper(List *feeds, int hold_ms);
static shm_mq *queue_of_request(void);
static ErrorData *attempt(void (*step)(void), bool commit);
static void publish(void);
static void announce(void);
static void export_snapshot(void);
static void set_text(char *text, const char *value);
static void hold(int caller_pid);

/*
 * feed_snapshot(feeds regclass[], hold interval DEFAULT '10 s')
 * returns TABLE (feed regclass, cursor text, snapshot text), VOLATILE
 *
 * Returns a cursor for each feed, and the name of an exported snapshot, the same
 * in each row: what the snapshot sees is what is before the cursors.  The
 * snapshot can be imported until the hold is over, or the session ends.
 *
 * Needs SELECT on the tables.  Errors: 25006 on a standby, 25001 in a
 * transaction that has written, 22004 for NULL, also in the array, 22023 for no
 * feed, one that is named twice, or a hold out of range, 42809, 42501, PF001;
 * 55000 without a free background worker, or for a backlog larger than one step;
 * 55P03 if a feed stays locked, perhaps by the caller.
 */
Datum
feed_snapshot(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	List	   *feeds;
	int64		hold_ms;
	Size		length;
	void	   *data;

	feedpub_argument_check(fcinfo, 0, 2);
	PreventCommandDuringRecovery("feed_snapshot()");
	hold_ms = feedpub_argument_ms(PG_GETARG_INTERVAL_P(1));
	if (hold_ms < 1 || hold_ms > MAX_HOLD)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"hold\" must be more than 0 and at most 1 day")));
	feeds = get_feeds(PG_GETARG_ARRAYTYPE_P(0));
	if (TransactionIdIsValid(GetTopTransactionIdIfAny()))
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("feed_snapshot() cannot be called in a transaction that has written"),
				 errdetail("The snapshot would not see what it has written."),
				 errhint("Commit first.")));

	if (shm_mq_receive(start_helper(feeds, (int) hold_ms), &length, &data, false) != SHM_MQ_SUCCESS)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("could not take a snapshot: the process that takes it has ended"),
				 errhint("Try again.")));
	if (request->sqlstate != 0)
		ereport(ERROR,
				(errcode(request->sqlstate),
				 errmsg("could not take a snapshot: %s", request->text),
				 request->hint[0] != '\0' ? errhint("%s", request->hint) : 0));
	feedpub_access_begin_result(fcinfo);
	for (int i = 0; i < request->nfeeds; i++)
	{
		Datum		values[3];
		bool		nulls[3] = {false};

		values[0] = ObjectIdGetDatum(request->feeds[i].relid);
		values[1] = CStringGetTextDatum(request->feeds[i].cursor);
		values[2] = CStringGetTextDatum(request->text);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	dsm_detach(segment);
	PG_RETURN_NULL();
}

/*
 * The feeds that are named, by OID; checked.
 */
static List *
get_feeds(ArrayType *array)
{
	List	   *feeds = NIL;
	Datum	   *elements;
	bool	   *nulls;
	int			n;

	deconstruct_array(array, REGCLASSOID, sizeof(Oid), true, TYPALIGN_INT, &elements, &nulls, &n);
	if (n == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"feeds\" must name a feed")));
	for (int i = 0; i < n; i++)
	{
		Oid			relid = DatumGetObjectId(elements[i]);

		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("argument \"feeds\" must not have null elements")));
		feedpub_wait_check_feed(relid);
		if (list_member_oid(feeds, relid))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("argument \"feeds\" names feed \"%s\" twice", get_rel_name(relid))));
		feeds = lappend_oid(feeds, relid);
	}
	list_sort(feeds, list_oid_cmp);
	return feeds;
}

/*
 * Start the helper, with its request.  Returns the queue of its answer, which is
 * detached with the segment, also by an error.
 */
static shm_mq_handle *
start_helper(List *feeds, int hold_ms)
{
	Size		size = MAXALIGN(offsetof(Request, feeds) + list_length(feeds) * sizeof(request->feeds[0]));
	BackgroundWorker worker = {0};
	BackgroundWorkerHandle *handle;

	segment = dsm_create(size + QUEUE_SIZE, 0);
	request = dsm_segment_address(segment);
	MemSet(request, 0, size);
	request->database = MyDatabaseId;
	request->hold_ms = hold_ms;
	request->nfeeds = list_length(feeds);
	for (int i = 0; i < request->nfeeds; i++)
		request->feeds[i].relid = list_nth_oid(feeds, i);
	shm_mq_set_receiver(shm_mq_create(queue_of_request(), QUEUE_SIZE), MyProc);

	feedpub_launcher_describe(&worker, "feedpub snapshot", "feedpub_export_main");
	worker.bgw_main_arg = UInt32GetDatum(dsm_segment_handle(segment));
	worker.bgw_notify_pid = MyProcPid;
	if (!RegisterDynamicBackgroundWorker(&worker, &handle))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("could not start a process that takes a snapshot"),
				 errdetail("The server has no free slot for a background worker."),
				 errhint("Try again when a hold has ended.  You might need to increase \"%s\".",
						 "max_worker_processes")));
	return shm_mq_attach(queue_of_request(), segment, handle);
}

static shm_mq *
queue_of_request(void)
{
	return (shm_mq *) ((char *) request +
					   MAXALIGN(offsetof(Request, feeds) + request->nfeeds * sizeof(request->feeds[0])));
}

/*
 * The helper.  Its argument is the segment with the request.
 */
void
feedpub_export_main(Datum main_arg)
{
	TimestampTz began = GetCurrentTimestamp();
	shm_mq_handle *queue;
	ErrorData  *error;

	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	segment = dsm_attach(DatumGetUInt32(main_arg));
	if (segment == NULL)
		proc_exit(0);			/* the caller has gone */
	request = dsm_segment_address(segment);
	shm_mq_set_sender(queue_of_request(), MyProc);
	queue = shm_mq_attach(queue_of_request(), segment, NULL);
	caller = shm_mq_get_receiver(queue_of_request());
	BackgroundWorkerInitializeConnectionByOid(request->database, InvalidOid, 0);
	feedpub_guc_pin();
	pgstat_report_appname("feedpub snapshot");

	while ((error = attempt(publish, true)) != NULL &&
		   error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE &&
		   !TimestampDifferenceExceeds(began, GetCurrentTimestamp(), LOCK_LIMIT) &&
		   shm_mq_wait_for_attach(queue) == SHM_MQ_SUCCESS)
		(void) WaitLatch(MyLatch, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, LOCK_PAUSE,
						 feedpub_wait_event("FeedpubSnapshotLock"));
	if (error == NULL)
		error = attempt(announce, true);
	if (error == NULL)
		error = attempt(export_snapshot, false);
	if (error != NULL)
	{
		request->sqlstate = error->sqlerrcode;
		set_text(request->text, error->message);
		set_text(request->hint, error->hint != NULL ? error->hint : "");
	}
	if (shm_mq_send(queue, 1, "", false, true) == SHM_MQ_SUCCESS && error == NULL)
		hold(MyBgworkerEntry->bgw_notify_pid);
	proc_exit(0);
}

/*
 * Do a step in a transaction.  Returns NULL, or the error that ended it.
 */
static ErrorData *
attempt(void (*step)(void), bool commit)
{
	ErrorData *volatile error = NULL;

	CHECK_FOR_INTERRUPTS();
	SetCurrentStatementStartTimestamp();
	pgstat_report_activity(STATE_RUNNING, "feed_snapshot()");
	PG_TRY();
	{
		StartTransactionCommand();
		step();
		if (commit)
			CommitTransactionCommand();
	}
	PG_CATCH();
	{
		HOLD_INTERRUPTS();
		MemoryContextSwitchTo(TopMemoryContext);
		error = CopyErrorData();
		AbortCurrentTransaction();
		FlushErrorState();
		RESUME_INTERRUPTS();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(TopMemoryContext);
	return error;
}

/*
 * T1 above.  The cursors are read with a snapshot that sees the new batches.
 */
static void
publish(void)
{
	int			n = request->nfeeds;
	Oid		   *relids = palloc_array(Oid, n);
	Snapshot	latest;

	for (int i = 0; i < n; i++)
		relids[i] = request->feeds[i].relid;
	published = MemoryContextAlloc(TopMemoryContext, n * sizeof(FeedpubPublished));
	feedpub_publish_together(n, relids, published);
	snapshot = MemoryContextAlloc(TopMemoryContext, EstimateSnapshotSpace(GetActiveSnapshot()));
	SerializeSnapshot(GetActiveSnapshot(), snapshot);
	PopActiveSnapshot();

	CommandCounterIncrement();
	latest = RegisterSnapshot(GetLatestSnapshot());
	for (int i = 0; i < n; i++)
	{
		char	   *text = request->feeds[i].cursor;
		FeedpubBatch last;
		FeedpubCursor cursor;

		feedpub_batch_last(relids[i], PG_INT64_MAX, latest, &last);
		feedpub_cursor_at_end(relids[i], &last, latest, &cursor);
		text[feedpub_cursor_print(&cursor, text)] = '\0';
	}
	UnregisterSnapshot(latest);
}

/*
 * Tell those that wait for batches, as any publisher does.  Partitions that lack
 * a trigger get it from the next one.
 */
static void
announce(void)
{
	for (int i = 0; i < request->nfeeds; i++)
	{
		Oid			relid = request->feeds[i].relid;

		if (published[i].batches == 0)
			continue;
		feedpub_shmem_wake_waiters(relid);
		if (published[i].announce || feedpub_shmem_is_listened(relid))
			feedpub_publish_notify(relid);
	}
}

/*
 * T2 above, which goes on.
 */
static void
export_snapshot(void)
{
	feedpub_durable_all();
	XactIsoLevel = XACT_REPEATABLE_READ;
	XactReadOnly = true;
	RestoreTransactionSnapshot(RestoreSnapshot(snapshot), caller);
	set_text(request->text, ExportSnapshot(GetTransactionSnapshot()));
}

static void
set_text(char *text, const char *value)
{
	int			length = pg_mbcliplen(value, strlen(value), TEXT_LENGTH - 1);

	memcpy(text, value, length);
	text[length] = '\0';
}

/*
 * Hold the snapshot until the time is up, or the caller's session has ended.
 */
static void
hold(int caller_pid)
{
	TimestampTz end = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), request->hold_ms);
	long		left;

	pgstat_report_activity(STATE_IDLEINTRANSACTION, NULL);
	while ((left = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), end)) > 0 &&
		   BackendPidGetProc(caller_pid) == caller)
	{
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 Min(left, LOOK_INTERVAL), feedpub_wait_event("FeedpubSnapshotHold"));
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	CommitTransactionCommand();
}
