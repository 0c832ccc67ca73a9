/*-------------------------------------------------------------------------
 *
 * fetch.c
 *	  Reading a feed in xid order: feed_fetch() and feed_xid_head().
 *
 * A page is one range scan of the index on (feed_xid, feed_pos), from the
 * cursor up to the horizon, with the snapshot of the calling query.  It ends
 * at the limit.  For a partitioned table the scans of each partition's index
 * are merged.  No planner chooses anything, so a page costs the same wherever
 * the cursor is and whatever the statistics say.
 *
 * Why no row is skipped.  The horizon is that of the snapshot that reads
 * (horizon.c).  So after the cursor every row below the horizon is visible now
 * or never.  The consumer goes on from the last row that was delivered, which
 * is below the horizon.  Why none comes twice, but for one case below:
 * (feed_xid, feed_pos) is unique, and the scan starts after the cursor.  What
 * the caller's own transaction has done is not seen (feedpub_own_changes_hide()).
 *
 * The scan does what the executor would do, except for checking rights, row
 * security, and columns that are computed when they are read.  If the table
 * needs one of these, the same page is read through the server's planner, with
 * a kept plan, from the same index.
 *
 * A partition is read if it is admitted in the snapshot that reads, and only
 * rows that are in the feed (partition_join.c).  A partition that is admitted later
 * has none below the horizon: the publisher got its xid before it read
 * "since", and was running when the snapshot was taken, so the horizon is not
 * beyond that xid.  Through the planner all partitions are read, because a
 * reader may have no right on tableoid.  Then rows that are not in the feed
 * yet may come, and come again when they are.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/skey.h"
#include "access/tableam.h"
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "lib/binaryheap.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/hsearch.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"
#include "utils/xid8.h"

#include "read/read.h"

PG_FUNCTION_INFO_V1(feed_fetch);
PG_FUNCTION_INFO_V1(feed_fetch_default);
PG_FUNCTION_INFO_V1(feed_xid_head);

/* One call of feed_fetch(). */
typedef struct FetchRequest
{
	FeedpubFeed feed;
	Relation	heap;
	Snapshot	snapshot;
	FullTransactionId after_xid;
	int64		after_pos;
	FullTransactionId horizon;
	int			limit;
	int			ncolumns;		/* the first columns only; 0: whole rows */
	Tuplestorestate *store;
	TupleDesc	desc;			/* of the rows in the store */
	FullTransactionId *xids;	/* whose rows are in the store, ascending */
	int			nxids;
	int			maxxids;
} FetchRequest;

/* The scan of one of the feed's tables, and where it is. */
typedef struct TableScan
{
	FeedpubPartition *partition;
	IndexScanDesc scan;
	TupleTableSlot *slot;
	ScanKeyData after[2];		/* the scan points to them */
	ScanKeyData keys[2];
	bool		whole;			/* rows are returned as they are */
	FullTransactionId xid;
	int64		pos;
} TableScan;

/* Plans of read_planned(), kept for the life of the backend. */
typedef struct KeptPlan
{
	uint64		key;			/* relid and form, must be first */
	char	   *sql;
	SPIPlanPtr	plan;
} KeptPlan;

static HTAB *kept_plans = NULL;

static void parse_cursor(FunctionCallInfo fcinfo, int argno, FetchRequest *req);
static void fetch_page(FunctionCallInfo fcinfo, FetchRequest *req);
static void begin_result(FunctionCallInfo fcinfo, FetchRequest *req);
static void read_directly(FetchRequest *req, FeedpubPartitions *partitions);
static void read_table(FetchRequest *req, FeedpubPartition *partition, ScanKey keys);
static void read_partitions(FetchRequest *req, FeedpubPartitions *partitions,
							ScanKey keys);
static void read_planned(FetchRequest *req);
static SPIPlanPtr keep_plan(FetchRequest *req);
static void check_floor(const FetchRequest *req);
static void check_history(const FeedpubFeed *feed, Relation heap);

/*
 * feed_fetch(feed anyelement, after_xid xid8, after_pos bigint, "limit" int)
 * returns SETOF anyelement, VOLATILE
 *
 * Returns a page of a feed in xid order, called as feed_fetch(NULL::kv, '0',
 * 0, 100): at most "limit" rows (and at most feedpub.max_page_rows) with
 * (feed_xid, feed_pos) > (after_xid, after_pos), in that order, of
 * transactions older than every one that was running when the query began.
 * The next cursor is the stamp of the last row.  Deletes are not returned.
 *
 * Needs SELECT on the table and obeys its row security.  Takes ACCESS SHARE on
 * the table.  May wait for a WAL flush if writers commit asynchronously.
 * Works in read-only transactions and on standbys.  Errors: 42809 if it is no
 * feed, 22004, 22023 for a cursor or limit that is out of range, 42501, PF001
 * for a cursor or a feed from another history, PF002 if rows after the cursor
 * have been removed, 40001 if the snapshot is older than a partition, or on a
 * standby than an index, or if the table was altered while it was waited for.
 *
 * The idea: O. Dudycz, "How Postgres sequences issues can impact your
 * messaging guarantees", 2022; here with a row comparison.
 */
Datum
feed_fetch(PG_FUNCTION_ARGS)
{
	FetchRequest req = {0};
	Oid			relid = feedpub_access_argument(fcinfo, 0);

	parse_cursor(fcinfo, 1, &req);
	req.heap = feedpub_registry_open(relid);
	fetch_page(fcinfo, &req);
	return (Datum) 0;
}

/*
 * feed_fetch(after_xid xid8, after_pos bigint, "limit" int) returns TABLE (the
 * columns of a jsonb outbox), VOLATILE
 *
 * The same for the default feed: the first jsonb outbox that was made, or the
 * one that feed_set_default() chose.  Error 55000 if there is none.
 */
Datum
feed_fetch_default(PG_FUNCTION_ARGS)
{
	FetchRequest req = {0};

	parse_cursor(fcinfo, 0, &req);

	/*
	 * The default may be dropped between look-up and lock.  Locking takes in
	 * the invalidation, so the second look finds what is true.
	 */
	for (int i = 0; i < 2 && req.heap == NULL; i++)
	{
		Oid			relid = feedpub_registry_default();

		if (!OidIsValid(relid))
			break;
		req.heap = try_relation_open(relid, AccessShareLock);
	}
	if (req.heap == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("there is no default feed"),
				 errhint("Make a feed with feed_create(), or choose one with feed_set_default().")));
	if (!feedpub_relation_has_default_row_type(req.heap))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("default feed \"%s\" no longer has the columns of a jsonb outbox",
						RelationGetRelationName(req.heap)),
				 errhint("Name the feed in the call, or choose another one with feed_set_default().")));
	req.ncolumns = FEEDPUB_OUTBOX_COLUMNS;
	fetch_page(fcinfo, &req);
	return (Datum) 0;
}

/*
 * Check the arguments, from after_xid on.
 */
static void
parse_cursor(FunctionCallInfo fcinfo, int argno, FetchRequest *req)
{
	static const char *const names[] = {NULL, "after_xid", "after_pos", "limit"};
	int			limit;

	feedpub_argument_check(fcinfo, lengthof(names) - 1 + argno, &names[1 - argno]);
	req->after_xid = PG_GETARG_FULLTRANSACTIONID(argno);
	req->after_pos = PG_GETARG_INT64(argno + 1);
	if (req->after_pos < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"after_pos\" must not be negative")));

	limit = PG_GETARG_INT32(argno + 2);
	if (limit < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"limit\" must be at least 1")));
	req->limit = Min(limit, feedpub_max_page_rows);
}

/*
 * Read one page into the function's result.  req has the cursor and the open
 * table, which is closed here; its lock is kept, as the executor would.
 */
static void
fetch_page(FunctionCallInfo fcinfo, FetchRequest *req)
{
	FeedpubPartitions *partitions;
	bool		may_read_directly;
	bool		pushed = false;

	feedpub_registry_get(RelationGetRelid(req->heap), &req->feed);
	feedpub_foreign_refuse_cursor(&req->feed, req->after_xid);
	begin_result(fcinfo, req);

	may_read_directly = feedpub_access_is_direct(req->heap);
	if (!may_read_directly)
		feedpub_require_select(req->feed.relid);
	feedpub_own_changes_refuse(req->heap);
	partitions = feedpub_partition_open(&req->feed, req->heap, GetActiveSnapshot(), true);
	feedpub_history_check(&req->feed, partitions);
	feedpub_history_check_changes(&req->feed, req->heap, GetActiveSnapshot());

	/*
	 * A snapshot that is older than a partition sees none of its rows, and the
	 * page would pass them.  One that is older than a plain table sees no row
	 * at all: the page is empty, and the next one begins where it does.
	 */
	if (req->feed.is_partitioned &&
		!feedpub_partition_sees_tables(partitions, GetActiveSnapshot()))
	{
		feedpub_access_push_snapshot(req->heap);
		pushed = true;
		feedpub_partition_close(partitions);
		partitions = feedpub_partition_open(&req->feed, req->heap, GetActiveSnapshot(), true);
	}
	if (req->feed.is_outbox && FullTransactionIdIsValid(req->after_xid))
		check_floor(req);
	feedpub_own_changes_hide(GetActiveSnapshot());
	req->snapshot = GetActiveSnapshot();
	req->horizon = feedpub_horizon(req->snapshot);
	if (may_read_directly)
		read_directly(req, partitions);
	else
		read_planned(req);
	feedpub_partition_close(partitions);
	PopActiveSnapshot();
	if (pushed)
		PopActiveSnapshot();

	/*
	 * Before the rows are returned, their commits must be on disk.  In a table
	 * feed rows are passed that have another stamp by now; a crash must not
	 * bring them back either.
	 */
	feedpub_durable_commits(req->xids, req->nxids, req->horizon);
	if (!req->feed.is_outbox && req->nxids > 0)
		feedpub_durable_all();
	relation_close(req->heap, NoLock);
}

/*
 * Refuse a cursor after which rows of an outbox have been removed.  The floor
 * is read with the active snapshot, as the rows are.
 *
 * In xid order the rows that are removed are not the first ones: a batch has
 * later xids than some that are published after it.  A consumer whose cursor
 * is at or beyond the largest stamp that was removed has been delivered all of
 * them.  One before it lacks at least the row with that stamp.
 */
static void
check_floor(const FetchRequest *req)
{
	uint64		xid = U64FromFullTransactionId(req->after_xid);
	FeedpubFloor floor;

	feedpub_floor_read(req->feed.relid, GetActiveSnapshot(), &floor);
	if (xid < floor.removed_xid ||
		(xid == floor.removed_xid && req->after_pos < floor.removed_pos))
		ereport(ERROR,
				(errcode(ERRCODE_FEED_CURSOR_EXPIRED),
				 errmsg("cursor of feed \"%s\" has expired", RelationGetRelationName(req->heap)),
				 errdetail("Rows after it are no longer retained since %s.",
						   timestamptz_to_str(floor.moved_at)),
				 errhint("Begin again from ('0', 0), with the rows that are retained.")));
}

/*
 * Set up the tuplestore that holds the result.
 */
static void
begin_result(FunctionCallInfo fcinfo, FetchRequest *req)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	MemoryContext oldcontext;

	if (rsinfo == NULL || !IsA(rsinfo, ReturnSetInfo) ||
		(rsinfo->allowedModes & SFRM_Materialize) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("set-valued function called in context that cannot accept a set")));

	feedpub_access_keep_memory();
	oldcontext = MemoryContextSwitchTo(rsinfo->econtext->ecxt_per_query_memory);
	if (req->ncolumns == 0 && rsinfo->expectedDesc != NULL)
		feedpub_access_check_columns(req->heap, rsinfo->expectedDesc);
	req->desc = CreateTupleDescCopy(req->ncolumns == 0 ? RelationGetDescr(req->heap) : rsinfo->expectedDesc);
	req->store = tuplestore_begin_heap((rsinfo->allowedModes & SFRM_Materialize_Random) != 0,
									   false, work_mem);
	rsinfo->returnMode = SFRM_Materialize;
	rsinfo->setResult = req->store;
	rsinfo->setDesc = req->desc;
	MemoryContextSwitchTo(oldcontext);
}

/*
 * Note whose row is delivered.  Rows come in the order of their xids.
 */
static inline void
note_xid(FetchRequest *req, FullTransactionId xid)
{
	if (req->nxids > 0 &&
		FullTransactionIdEquals(req->xids[req->nxids - 1], xid))
		return;
	if (req->nxids == req->maxxids)
	{
		req->maxxids = req->maxxids ? req->maxxids * 2 : 128;
		req->xids = req->xids ?
			repalloc(req->xids, req->maxxids * sizeof(FullTransactionId)) :
			palloc(req->maxxids * sizeof(FullTransactionId));
	}
	req->xids[req->nxids++] = xid;
}

/*
 * Read the page with an index scan of our own.
 *
 * Scan keys as in nodeIndexscan.c: ExecIndexBuildScanKeys: a row comparison
 * for the cursor, and the horizon on the first column, both of which the
 * btree uses as bounds (nbtsearch.c: _bt_first).
 */
static void
read_directly(FetchRequest *req, FeedpubPartitions *partitions)
{
	ScanKeyData cursor[2];
	ScanKeyData keys[2];

	ScanKeyEntryInitialize(&cursor[0], SK_ROW_MEMBER, 1,
						   BTGreaterStrategyNumber, InvalidOid, InvalidOid,
						   F_XID8CMP, FullTransactionIdGetDatum(req->after_xid));
	ScanKeyEntryInitialize(&cursor[1], SK_ROW_MEMBER | SK_ROW_END, 2,
						   BTGreaterStrategyNumber, InvalidOid, InvalidOid,
						   F_BTINT8CMP, Int64GetDatum(req->after_pos));
	MemSet(keys, 0, sizeof(keys));
	keys[0].sk_flags = SK_ROW_HEADER;
	keys[0].sk_attno = 1;
	keys[0].sk_strategy = BTGreaterStrategyNumber;
	keys[0].sk_argument = PointerGetDatum(cursor);
	ScanKeyInit(&keys[1], 1, BTLessStrategyNumber, F_XID8LT,
				FullTransactionIdGetDatum(req->horizon));

	if (partitions->n == 1 && !partitions->is_partitioned)
		read_table(req, &partitions->partitions[0], keys);
	else
		read_partitions(req, partitions, keys);
}

/*
 * Begin the scan of one table.
 */
static void
begin_scan(TableScan *scan, FetchRequest *req, FeedpubPartition *partition, ScanKey keys)
{
	TupleDesc	desc = RelationGetDescr(partition->heap);
	uint64		after_xid = U64FromFullTransactionId(req->after_xid);

	/* from the cursor on, or from the first xid that is in the feed */
	memcpy(scan->after, DatumGetPointer(keys[0].sk_argument), sizeof(scan->after));
	if (after_xid < partition->since)
	{
		scan->after[0].sk_argument = UInt64GetDatum(partition->since);
		scan->after[1].sk_argument = Int64GetDatum(-1);
	}
	memcpy(scan->keys, keys, sizeof(scan->keys));
	scan->keys[0].sk_argument = PointerGetDatum(scan->after);

	/*
	 * A row as it lies in the heap is copied whole, unless columns are to be
	 * left out, or were added later with a default that is not in the row.
	 */
	scan->whole = (req->ncolumns == 0 || req->ncolumns == desc->natts) &&
		(desc->constr == NULL || desc->constr->missing == NULL);
	scan->partition = partition;
	scan->slot = table_slot_create(partition->heap, NULL);
	scan->scan = feedpub_snapshot_begin_scan(partition->heap, partition->index, req->snapshot, 2);
	index_rescan(scan->scan, scan->keys, 2, NULL, 0);
}

static void
end_scan(TableScan *scan)
{
	index_endscan(scan->scan);
	ExecDropSingleTupleTableSlot(scan->slot);
}

/*
 * Put the row of a slot into the result.
 */
static inline void
put_row(FetchRequest *req, FullTransactionId xid, TupleTableSlot *slot,
		bool whole)
{
	note_xid(req, xid);
	if (whole)
		tuplestore_puttupleslot(req->store, slot);
	else
	{
		slot_getsomeattrs(slot, req->desc->natts);
		tuplestore_putvalues(req->store, req->desc,
							 slot->tts_values, slot->tts_isnull);
	}
}

static void
read_table(FetchRequest *req, FeedpubPartition *partition, ScanKey keys)
{
	TableScan	scan;

	begin_scan(&scan, req, partition, keys);
	for (int n = 0; n < req->limit &&
		 index_getnext_slot(scan.scan, ForwardScanDirection, scan.slot);
		 n++)
	{
		bool		isnull;

		CHECK_FOR_INTERRUPTS();
		put_row(req, DatumGetFullTransactionId(slot_getattr(scan.slot, req->feed.xid_attno, &isnull)),
				scan.slot, scan.whole);
	}
	end_scan(&scan);
}

/*
 * Step a scan to its next row.  Returns whether there is one.
 */
static bool
step_scan(TableScan *scan, FetchRequest *req)
{
	bool		isnull;

	if (!index_getnext_slot(scan->scan, ForwardScanDirection, scan->slot))
		return false;
	scan->xid = DatumGetFullTransactionId(slot_getattr(scan->slot, scan->partition->xid_attno, &isnull));
	scan->pos = DatumGetInt64(slot_getattr(scan->slot, scan->partition->index->rd_index->indkey.values[1], &isnull));
	return true;
}

static int
compare_scans(Datum a, Datum b, void *arg)
{
	TableScan  *sa = (TableScan *) DatumGetPointer(a);
	TableScan  *sb = (TableScan *) DatumGetPointer(b);

	/* the smallest first: a binaryheap has its largest on top */
	if (!FullTransactionIdEquals(sa->xid, sb->xid))
		return FullTransactionIdPrecedes(sa->xid, sb->xid) ? 1 : -1;
	return sa->pos < sb->pos ? 1 : sa->pos > sb->pos ? -1 :
													   0;
}

/*
 * Read the partitions, each in its own index, and merge them by their stamps.
 */
static void
read_partitions(FetchRequest *req, FeedpubPartitions *partitions, ScanKey keys)
{
	TableScan  *scans = palloc(Max(partitions->n, 1) * sizeof(TableScan));
	binaryheap *merge = binaryheap_allocate(Max(partitions->n, 1), compare_scans, NULL);

	for (int i = 0; i < partitions->n; i++)
	{
		begin_scan(&scans[i], req, &partitions->partitions[i], keys);
		if (step_scan(&scans[i], req))
			binaryheap_add_unordered(merge, PointerGetDatum(&scans[i]));
	}
	binaryheap_build(merge);
	for (int n = 0; n < req->limit && !binaryheap_empty(merge); n++)
	{
		TableScan  *scan = (TableScan *) DatumGetPointer(binaryheap_first(merge));

		CHECK_FOR_INTERRUPTS();
		put_row(req, scan->xid,
				feedpub_partition_convert(partitions, scan->partition, scan->slot), scan->whole);
		if (step_scan(scan, req))
			binaryheap_replace_first(merge, PointerGetDatum(scan));
		else
			(void) binaryheap_remove_first(merge);
	}
	for (int i = 0; i < partitions->n; i++)
		end_scan(&scans[i]);
}

/*
 * Read the page through the planner, as the caller.
 *
 * Execution is read_only, so the plan runs with the active snapshot, the one
 * that the horizon is from.  The plan must be the ordered scan of the index,
 * whatever the statistics say.  So sorting and other scans are priced out, and
 * compiling is off, for what is priced out looks expensive.  The operators on
 * the stamp are leakproof, so row security does not keep them from the index.
 */
static void
read_planned(FetchRequest *req)
{
	static const char *const unwanted[] = {
		"enable_seqscan", "enable_bitmapscan", "enable_sort", "jit"};
	Datum		values[4];
	int			nestlevel = NewGUCNestLevel();

	for (int i = 0; i < lengthof(unwanted); i++)
		(void) set_config_option(unwanted[i], "off", PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_SAVE, true, 0, false);

	values[0] = FullTransactionIdGetDatum(req->after_xid);
	values[1] = Int64GetDatum(req->after_pos);
	values[2] = FullTransactionIdGetDatum(req->horizon);
	values[3] = Int64GetDatum((int64) req->limit);
	SPI_connect();
	feedpub_snapshot_select(keep_plan(req), values, req->heap);

	/* what note_xid() keeps must outlive SPI's memory */
	req->maxxids = (int) SPI_processed;
	if (req->maxxids > 0)
		req->xids = SPI_palloc(req->maxxids * sizeof(FullTransactionId));

	for (uint64 i = 0; i < SPI_processed; i++)
	{
		HeapTuple	row = SPI_tuptable->vals[i];
		TupleDesc	rowdesc = SPI_tuptable->tupdesc;
		bool		isnull;

		note_xid(req, DatumGetFullTransactionId(SPI_getbinval(row, rowdesc, 1, &isnull)));
		if (req->ncolumns > 0)
			tuplestore_puttuple(req->store, row);
		else
		{
			HeapTupleHeader entry = DatumGetHeapTupleHeader(SPI_getbinval(row, rowdesc, 2, &isnull));
			HeapTupleData tuple = {0};

			tuple.t_len = HeapTupleHeaderGetDatumLength(entry);
			tuple.t_data = entry;
			tuplestore_puttuple(req->store, &tuple);
		}
	}
	SPI_finish();
	AtEOXact_GUC(false, nestlevel);
}

/*
 * The kept plan of read_planned() for a feed, made anew if the table was
 * renamed.  The server itself replans it if rights or policies change.
 */
static SPIPlanPtr
keep_plan(FetchRequest *req)
{
	Oid			argtypes[4] = {XID8OID, INT8OID, XID8OID, INT8OID};
	uint64		key = (uint64) req->feed.relid << 1 | (req->ncolumns > 0);
	char	   *table = feedpub_relation_name(req->feed.relid);
	StringInfoData sql;
	KeptPlan   *kept;
	bool		found;

	if (kept_plans == NULL)
	{
		HASHCTL		ctl = {0};

		ctl.keysize = sizeof(uint64);
		ctl.entrysize = sizeof(KeptPlan);
		ctl.hcxt = TopMemoryContext;
		kept_plans = hash_create("feedpub plans", 16, &ctl,
								 HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}

	/* (t.*) cast to its type is the whole row, also if a column is named t */
	initStringInfo(&sql);
	appendStringInfoString(&sql, "SELECT t." FEEDPUB_XID_COLUMN);
	if (req->ncolumns > 0)
	{
		for (int i = 1; i < req->ncolumns; i++)
			appendStringInfo(&sql, ", t.%s",
							 quote_identifier(NameStr(TupleDescAttr(RelationGetDescr(req->heap), i)->attname)));
	}
	else
		appendStringInfo(&sql, ", (t.*)::%s", table);
	appendStringInfo(&sql, " FROM %s%s t"
						   " WHERE ROW(t.feed_xid, t.feed_pos) OPERATOR(pg_catalog.>) ROW($1, $2)"
						   " AND t.feed_xid OPERATOR(pg_catalog.<) $3"
						   " ORDER BY t.feed_xid, t.feed_pos LIMIT $4",
					 req->feed.is_partitioned ? "" : "ONLY ", table);

	kept = hash_search(kept_plans, &key, HASH_ENTER, &found);
	if (!found)
	{
		kept->sql = NULL;
		kept->plan = NULL;
	}
	if (kept->plan == NULL || strcmp(kept->sql, sql.data) != 0)
	{
		SPIPlanPtr	plan;

		if (kept->plan != NULL)
		{
			SPI_freeplan(kept->plan);
			pfree(kept->sql);
			kept->plan = NULL;
		}
		plan = SPI_prepare_cursor(sql.data, 4, argtypes,
								  CURSOR_OPT_GENERIC_PLAN | CURSOR_OPT_NO_SCROLL);
		if (plan == NULL || SPI_keepplan(plan) != 0)
			elog(ERROR, "could not prepare \"%s\"", sql.data);
		kept->sql = MemoryContextStrdup(TopMemoryContext, sql.data);
		kept->plan = plan;
	}
	return kept->plan;
}

static void
check_history(const FeedpubFeed *feed, Relation heap)
{
	FeedpubPartitions *partitions = feedpub_partition_open(feed, heap, GetActiveSnapshot(), true);

	feedpub_history_check(feed, partitions);
	feedpub_partition_close(partitions);
}

/*
 * feed_xid_head(feed regclass, OUT after_xid xid8, OUT after_pos bigint)
 * VOLATILE
 *
 * Returns the cursor of now in xid order.  A consumer that starts there gets
 * every row that is committed later, also by transactions that are running
 * now.  It is the last xid below the horizon, with the largest position there
 * is.  Rows of younger transactions that have committed already may be after
 * it too.
 *
 * That xid need not have written anything here.  So all of the WAL is flushed:
 * a crash must not let the server assign it again.  Needs SELECT on the table.
 * Errors: 42809 if it is no feed, 42501, PF001 for a feed from another
 * history.
 */
Datum
feed_xid_head(PG_FUNCTION_ARGS)
{
	static const char *const names[] = {"feed"};
	Oid			relid;
	FeedpubFeed feed;
	Relation	heap;
	uint64		horizon;
	TupleDesc	desc;
	Datum		values[2];
	bool		nulls[2] = {false, false};

	feedpub_argument_check(fcinfo, lengthof(names), names);
	relid = PG_GETARG_OID(0);
	heap = feedpub_registry_open(relid);
	feedpub_registry_get(relid, &feed);
	feedpub_require_select(relid);
	check_history(&feed, heap);
	relation_close(heap, NoLock);

	horizon = U64FromFullTransactionId(feedpub_horizon(GetActiveSnapshot()));
	feedpub_durable_all();

	desc = feedpub_argument_row_type(fcinfo);
	values[0] = FullTransactionIdGetDatum(FullTransactionIdFromU64(horizon - 1));
	values[1] = Int64GetDatum(PG_INT64_MAX);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc),
													  values, nulls)));
}
