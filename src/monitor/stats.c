/*-------------------------------------------------------------------------
 *
 * stats.c
 *	  Functions for the views: the state of feeds and workers, and how many rows
 *	  wait after the horizon.
 *
 * They only read, never count rows, and wait for no lock longer than a ms: a
 * table that another session has locked is shown as locked, since a view that
 * hangs shows nothing.  What happens in a feed is shown to roles that may read it, and to
 * members of pg_read_all_stats, as in the server's own views.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/itup.h"
#include "access/relation.h"
#include "access/relscan.h"
#include "access/xlog.h"
#include "catalog/pg_authid.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/tuplestore.h"
#include "utils/xid8.h"

#include "admin/admin.h"

PG_FUNCTION_INFO_V1(feedpub_feed_stats);
PG_FUNCTION_INFO_V1(feedpub_workers);

/* the time over which rows per second are measured */
#define RATE_SECONDS		60

/* or the number of batches, if there were more in that time */
#define RATE_BATCHES		1000

/* the number of neighbouring batches whose largest position counts */
#define RATE_NEIGHBOURS		32

/* columns of feedpub._feed_stats() */
#define ANUM_STATS_STATE			1
#define ANUM_STATS_SIZE				2
#define ANUM_STATS_POSITION			3
#define ANUM_STATS_RATE				4
#define ANUM_STATS_HEAD				5
#define ANUM_STATS_LAST_PUBLISHED	6
#define ANUM_STATS_UNPUBLISHED		7
#define ANUM_STATS_WORKER			8
#define ANUM_STATS_WAITING			9
#define NATTS_STATS					9

/* columns of feedpub._workers() */
#define NATTS_WORKERS				14

/* What a view shows of a feed. */
typedef struct Look
{
	Oid			relid;
	const char *state;
	Datum		values[NATTS_STATS];
	bool		nulls[NATTS_STATS];
} Look;

static void read_feed(void *arg);
static void set_value(Look *look, AttrNumber attno, Datum value);
static int64 total_size(Relation rel);
static bool is_of_other_history(Relation heap, Snapshot snapshot,
								const FeedpubBatch *last);
static double estimate_rate(Oid relid, Snapshot snapshot);

/*
 * The position in the first index entry that a scan from an xid finds, whether
 * or not its row is visible to the caller: only the index is read.  Returns
 * false if there is none.
 */
static bool
find_pos(Relation heap, Relation index, StrategyNumber strategy,
		 RegProcedure proc, ScanDirection direction,
		 FullTransactionId xid, int64 *pos)
{
	IndexScanDesc scan;
	ScanKeyData key;
	bool		found;

	ScanKeyInit(&key, 1, strategy, proc, FullTransactionIdGetDatum(xid));
	scan = feedpub_snapshot_begin_scan(heap, index, GetActiveSnapshot(), 1);
	scan->xs_want_itup = true;
	index_rescan(scan, &key, 1, NULL, 0);
	found = index_getnext_tid(scan, direction) != NULL;
	if (found)
	{
		bool		isnull;

		*pos = DatumGetInt64(index_getattr(scan->xs_itup, 2,
										   RelationGetDescr(index), &isnull));
	}
	index_endscan(scan);
	return found;
}

/*
 * Estimate how many rows of a feed are not below the horizon: how many positions
 * were assigned after that of the last row below it; 0 if all rows are below it.
 * That counts rolled-back rows, and misses rows that an old transaction wrote
 * late.  It reads a few buffers of each index, however many rows wait.
 */
static int64
estimate_waiting(const FeedpubFeed *feed, Relation heap, Oid seqid,
				 FullTransactionId horizon)
{
	FeedpubPartitions *partitions = feedpub_partition_open(feed, heap, NULL, false);
	bool		waits = false;
	int64		largest = 0;

	for (int i = 0; i < partitions->n; i++)
	{
		FeedpubPartition *partition = &partitions->partitions[i];
		int64		pos;

		if (find_pos(partition->heap, partition->index, BTGreaterEqualStrategyNumber, F_XID8GE,
					 ForwardScanDirection, horizon, &pos))
			waits = true;
		if (find_pos(partition->heap, partition->index, BTLessStrategyNumber, F_XID8LT,
					 BackwardScanDirection, horizon, &pos))
			largest = Max(largest, pos);
	}
	feedpub_partition_close(partitions);
	return waits ? Max(feedpub_relation_last_pos(seqid) - largest, 1) : 0;
}

/*
 * feedpub._feed_stats(feed regclass,
 *		OUT state text, OUT size bigint, OUT "position" bigint,
 *		OUT rows_per_second double precision, OUT head bigint,
 *		OUT last_published timestamptz, OUT unpublished boolean,
 *		OUT worker text, OUT waiting bigint) VOLATILE
 *
 * The state of a feed.  state is "ready", or what is wrong: locked, no
 * columns, no index, invalid index (it is being built, or that failed), no
 * key, unguarded, other history.  The view adds "failed rows".  feed_check()
 * finds more.  size is that of the table and its indexes, in bytes; position
 * the last one that was assigned; head the number of the newest batch,
 * published at last_published; rows_per_second an estimate over the last
 * minute, deletes included; unpublished whether committed rows wait to be
 * published, NULL on a standby; worker is running, none, stopped or refused;
 * waiting the estimate of what xid order holds back.
 *
 * All but state and worker are NULL if the caller may not SELECT from the
 * table and is no member of pg_read_all_stats, and while another session has
 * the table locked.  All are NULL if it is no feed.  Waits for no lock longer
 * than a ms, and keeps none.
 */
Datum
feedpub_feed_stats(PG_FUNCTION_ARGS)
{
	static const char *const worker_states[] = {"running", "none", "stopped", "refused"};
	Look		look = {.relid = PG_GETARG_OID(0)};
	FeedpubWorkerState worker;
	ErrorData  *error = NULL;

	/*
	 * A caller without any right on the table may get here, so the look is a
	 * subtransaction, which is rolled back: that gives all locks back.
	 */
	memset(look.nulls, true, sizeof(look.nulls));
	if (feedpub_registry_is_registered(look.relid))
		error = feedpub_attempt_error(read_feed, &look, false);
	if (error != NULL)
	{
		if (error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
			ReThrowError(error);
		memset(look.nulls, true, sizeof(look.nulls));
		look.state = "locked";
	}
	if (look.state != NULL)
	{
		set_value(&look, ANUM_STATS_STATE, CStringGetTextDatum(look.state));
		worker = feedpub_shmem_worker_state(feedpub_shmem_database());
		set_value(&look, ANUM_STATS_WORKER, CStringGetTextDatum(worker_states[worker]));
	}
	return feedpub_argument_row(fcinfo, look.values, look.nulls);
}

static void
set_value(Look *look, AttrNumber attno, Datum value)
{
	look->values[attno - 1] = value;
	look->nulls[attno - 1] = false;
}

/*
 * Set the state, and the other columns if the caller may see them.  No lock is
 * waited for longer than the shortest time that the server knows, a ms.
 */
static void
read_feed(void *arg)
{
	Look	   *look = arg;
	Oid			relid = look->relid;
	Oid			seqid = feedpub_relation_sequence(relid);
	Snapshot	snapshot = GetActiveSnapshot();
	Relation	heap;
	FeedpubBatch last;
	FeedpubFeed feed;

	(void) set_config_option("lock_timeout", "1", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_LOCAL, true, 0, false);
	heap = try_relation_open(relid, AccessShareLock);
	if (heap == NULL)
		return;
	look->state = feedpub_check_state(heap);
	if (!has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS) && !feedpub_may_select(relid))
		return;
	set_value(look, ANUM_STATS_SIZE, Int64GetDatum(total_size(heap)));
	if (OidIsValid(seqid))
		set_value(look, ANUM_STATS_POSITION, Int64GetDatum(feedpub_relation_last_pos(seqid)));

	feedpub_batch_last(relid, PG_INT64_MAX, snapshot, &last);
	set_value(look, ANUM_STATS_RATE,
			  Float8GetDatum(estimate_rate(relid, snapshot)));
	if (last.sync_id > 0)
	{
		set_value(look, ANUM_STATS_HEAD, Int64GetDatum(last.sync_id));
		set_value(look, ANUM_STATS_LAST_PUBLISHED,
				  TimestampTzGetDatum(last.published_at));
	}

	if (!feedpub_partition_has_indexes(heap) || !feedpub_registry_find(relid, &feed))
		return;
	if (OidIsValid(seqid))
		set_value(look, ANUM_STATS_WAITING,
				  Int64GetDatum(estimate_waiting(&feed, heap, seqid, feedpub_horizon(snapshot))));

	/* a standby does not publish, and its snapshots do not tell what runs */
	if (!RecoveryInProgress() && !snapshot->takenDuringRecovery)
	{
		if (is_of_other_history(heap, snapshot, &last))
			look->state = "other history";
		else
			set_value(look, ANUM_STATS_UNPUBLISHED,
					  BoolGetDatum(feedpub_unpublished_exists(&feed, heap, snapshot,
															  &last.snapshot)));
	}
}

/*
 * The size of a table, or of all its partitions, with indexes.
 */
static int64
total_size(Relation rel)
{
	List	   *tables = list_make1_oid(RelationGetRelid(rel));
	int64		size = 0;
	ListCell   *lc;

	if (rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE)
		tables = feedpub_partition_list(rel, false);
	foreach(lc, tables)
		size += DatumGetInt64(DirectFunctionCall1(pg_total_relation_size,
												  ObjectIdGetDatum(lfirst_oid(lc))));
	return size;
}

/*
 * Would a publisher refuse the feed because its batches or rows are of another
 * history?
 */
static bool
is_of_other_history(Relation heap, Snapshot snapshot, const FeedpubBatch *last)
{
	FeedpubSnapshot now;
	FullTransactionId stamp;

	feedpub_batch_take_snapshot(snapshot, &now);
	return feedpub_batch_is_foreign(last) ||
		!feedpub_batch_is_later(&now, &last->snapshot) ||
		feedpub_history_has_foreign(heap, &stamp);
}

/*
 * How many rows and deletes a second were published in the last minute, or by
 * the last RATE_BATCHES batches if these are younger, by the positions of the
 * first and the last of them.  That counts rolled-back rows too.  No counter is
 * kept for it: the batches tell.  So it is known after a restart, and on a
 * standby.
 *
 * A batch need not have the largest position up to it: its transactions may
 * have taken theirs long ago.  For an estimate it is unlikely enough that this
 * is so for RATE_NEIGHBOURS batches.
 */
static double
estimate_rate(Oid relid, Snapshot snapshot)
{
	FeedpubBatchScan *batches = feedpub_batch_begin_backward(relid, PG_INT64_MAX, snapshot);
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz since = now - RATE_SECONDS * USECS_PER_SEC;
	FeedpubBatch batch;
	int64		newest = 0;
	int64		before = 0;
	int			nbatches = 0;

	for (int n = 0; n < RATE_NEIGHBOURS && feedpub_batch_next(batches, &batch);)
	{
		if (batch.published_at > since && nbatches < RATE_BATCHES)
		{
			newest = Max(newest, batch.last_pos);
			if (++nbatches == RATE_BATCHES)
				since = batch.published_at;
			continue;
		}
		before = Max(before, batch.last_pos);
		n++;
	}
	feedpub_batch_end(batches);
	return newest <= before ? 0 : (newest - before) * (double) USECS_PER_SEC / Max(now - since, 1);
}

/*
 * feedpub._workers()
 * returns TABLE (datid oid, pid integer, state text, started_at timestamptz,
 *		turns bigint, wakeups bigint, batches bigint, transactions bigint,
 *		rows_stamped bigint, errors bigint, failing_feeds integer, last_error text,
 *		last_error_at timestamptz, last_error_feed oid), VOLATILE
 *
 * The databases that have or had a worker since the server started, and what
 * their workers have done.  It is kept in shared memory: a restart of the
 * server clears it, a restart of a worker does not.  A role that is no member
 * of pg_read_all_stats sees its own database only, without the error's text
 * and feed.
 */
Datum
feedpub_workers(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	bool		sees_all = has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS);
	FeedpubWorkerInfo *workers = palloc0_array(FeedpubWorkerInfo, FEEDPUB_MAX_DATABASES);
	int			nworkers = feedpub_shmem_read_workers(workers);

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < nworkers; i++)
	{
		FeedpubWorkerInfo *worker = &workers[i];
		Datum		values[NATTS_WORKERS] = {0};
		bool		nulls[NATTS_WORKERS] = {false};

		if (worker->dbid != MyDatabaseId && !sees_all)
			continue;

		/* another database's error may be in another encoding */
		for (char *c = worker->error; *c != '\0'; c++)
		{
			if (IS_HIGHBIT_SET(*c) && worker->error_encoding != GetDatabaseEncoding())
				*c = '?';
		}
		values[0] = ObjectIdGetDatum(worker->dbid);
		values[1] = Int32GetDatum(worker->pid);
		values[2] = CStringGetTextDatum(worker->pid != 0 ?
											(worker->stats.failing > 0 ? "failing" : "running") :
											worker->stopped ? "stopped" :
											worker->wanted	? "missing" :
															  "not needed");
		values[3] = TimestampTzGetDatum(worker->started_at);
		nulls[1] = nulls[3] = worker->pid == 0;
		values[4] = Int64GetDatum(worker->stats.turns);
		values[5] = Int64GetDatum(worker->stats.wakeups);
		values[6] = Int64GetDatum(worker->stats.batches);
		values[7] = Int64GetDatum(worker->stats.transactions);
		values[8] = Int64GetDatum(worker->stats.stamped);
		values[9] = Int64GetDatum(worker->stats.errors);
		values[10] = Int32GetDatum(worker->stats.failing);
		values[11] = CStringGetTextDatum(worker->error);
		values[12] = TimestampTzGetDatum(worker->error_at);
		values[13] = ObjectIdGetDatum(worker->error_feed);
		nulls[11] = worker->error_at == 0 || !sees_all;
		nulls[12] = worker->error_at == 0;
		nulls[13] = nulls[11] || !OidIsValid(worker->error_feed);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}
