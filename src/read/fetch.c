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
 * needs one of these, the rows that the scan finds are read through the
 * executor, as those of a page in published order are, until there are as many
 * as the caller may see (feedpub_entry_hide_rows()).
 *
 * A partition is read if it is admitted in the snapshot that reads, and only
 * rows that are in the feed (partition_join.c).  A partition that is admitted later
 * has none below the horizon: the publisher got its xid before it read
 * "since", and was running when the snapshot was taken, so the horizon is not
 * beyond that xid.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/skey.h"
#include "executor/executor.h"
#include "funcapi.h"
#include "lib/binaryheap.h"
#include "miscadmin.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/tuplestore.h"
#include "utils/xid8.h"

#include "read/read.h"

PG_FUNCTION_INFO_V1(feed_fetch);
PG_FUNCTION_INFO_V1(feed_fetch_default);
PG_FUNCTION_INFO_V1(feed_xid_head);

/* at least so many rows are read through the executor at once */
#define MIN_HIDDEN	32

/* One call of feed_fetch(). */
typedef struct FetchRequest
{
	FeedpubPage page;			/* the feed, and rows for the executor */
	FeedpubPageScan scan;
	FullTransactionId after_xid;
	int64		after_pos;
	FullTransactionId horizon;
	int			nrows;			/* how many are in the store */
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
	bool		whole;			/* rows are returned as they are */
	FullTransactionId xid;
	int64		pos;
} TableScan;

static void parse_cursor(FunctionCallInfo fcinfo, int argno, FetchRequest *req);
static void fetch_page(FunctionCallInfo fcinfo, FetchRequest *req);
static void read_rows(FetchRequest *req);
static void put_visible(FetchRequest *req);
static void check_floor(const FetchRequest *req);

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
	req.page.heap = feedpub_registry_open(relid);
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
	for (int i = 0; i < 2 && req.page.heap == NULL; i++)
	{
		Oid			relid = feedpub_registry_default();

		if (!OidIsValid(relid))
			break;
		req.page.heap = try_relation_open(relid, AccessShareLock);
	}
	if (req.page.heap == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("there is no default feed"),
				 errhint("Make a feed with feed_create(), or choose one with feed_set_default().")));
	if (!feedpub_relation_has_default_row_type(req.page.heap))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("default feed \"%s\" no longer has the columns of a jsonb outbox",
						RelationGetRelationName(req.page.heap)),
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
	feedpub_argument_check(fcinfo, argno, 3);
	req->after_xid = PG_GETARG_FULLTRANSACTIONID(argno);
	req->after_pos = PG_GETARG_INT64(argno + 1);
	feedpub_argument_least(fcinfo, argno + 1, req->after_pos, 0);
	feedpub_argument_least(fcinfo, argno + 2, PG_GETARG_INT32(argno + 2), 1);
	req->page.request.max_rows = Min(PG_GETARG_INT32(argno + 2), feedpub_max_page_rows);
}

/*
 * Read one page into the function's result.  req has the cursor and the open
 * table, which is closed here; its lock is kept, as the executor would.
 */
static void
fetch_page(FunctionCallInfo fcinfo, FetchRequest *req)
{
	FeedpubPageScan *scan = &req->scan;
	Relation	heap = req->page.heap;
	FeedpubFeed *feed = &req->page.feed;
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	bool		pushed = false;

	scan->page = &req->page;
	feedpub_registry_get(RelationGetRelid(heap), feed);
	feedpub_foreign_refuse_cursor(feed, req->after_xid);
	feedpub_access_begin_result(fcinfo);
	if (req->ncolumns == 0 && rsinfo->expectedDesc != NULL)
		feedpub_access_check_columns(heap, rsinfo->expectedDesc);
	req->store = rsinfo->setResult;
	req->desc = rsinfo->setDesc;

	scan->direct = feedpub_access_is_direct(heap);
	feedpub_own_changes_refuse(heap);
	scan->partitions = feedpub_partition_open(feed, heap, GetActiveSnapshot(), true);
	feedpub_history_check(feed, scan->partitions);
	feedpub_history_check_changes(feed, heap, GetActiveSnapshot());

	/*
	 * A snapshot that is older than a partition sees none of its rows, and the
	 * page would pass them.  One that is older than a plain table sees no row
	 * at all: the page is empty, and the next one begins where it does.
	 */
	if (feed->is_partitioned &&
		!feedpub_partition_sees_tables(scan->partitions, GetActiveSnapshot()))
	{
		feedpub_access_push_snapshot(heap);
		pushed = true;
		feedpub_partition_close(scan->partitions);
		scan->partitions = feedpub_partition_open(feed, heap, GetActiveSnapshot(), true);
	}
	if (feed->is_outbox && FullTransactionIdIsValid(req->after_xid))
		check_floor(req);
	feedpub_own_changes_hide(GetActiveSnapshot());
	scan->snapshot = GetActiveSnapshot();
	req->horizon = feedpub_horizon(scan->snapshot);
	read_rows(req);
	feedpub_partition_close(scan->partitions);
	PopActiveSnapshot();
	if (pushed)
		PopActiveSnapshot();

	/*
	 * Before the rows are returned, their commits must be on disk.  In a table
	 * feed rows are passed that have another stamp by now; a crash must not
	 * bring them back either.
	 */
	feedpub_durable_commits(req->xids, req->nxids, req->horizon);
	if (!feed->is_outbox && req->nxids > 0)
		feedpub_durable_all();
	relation_close(heap, NoLock);
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

	feedpub_floor_read(req->page.feed.relid, GetActiveSnapshot(), &floor);
	if (xid < floor.removed_xid ||
		(xid == floor.removed_xid && req->after_pos < floor.removed_pos))
		ereport(ERROR,
				(errcode(ERRCODE_FEED_CURSOR_EXPIRED),
				 errmsg("cursor of feed \"%s\" has expired", RelationGetRelationName(req->page.heap)),
				 errdetail("Rows after it are no longer retained since %s.",
						   timestamptz_to_str(floor.moved_at)),
				 errhint("Begin again from ('0', 0), with the rows that are retained.")));
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
 * Begin the scan of one table.
 *
 * Scan keys as in nodeIndexscan.c: ExecIndexBuildScanKeys: a row comparison
 * for the cursor, and the horizon on the first column, both of which the
 * btree uses as bounds (nbtsearch.c: _bt_first).
 */
static void
begin_scan(TableScan *scan, FetchRequest *req, FeedpubPartition *partition)
{
	TupleDesc	desc = RelationGetDescr(partition->heap);
	bool		is_after = U64FromFullTransactionId(req->after_xid) >= partition->since;
	ScanKeyData keys[2];

	/* from the cursor on, or from the first xid that is in the feed */
	ScanKeyEntryInitialize(&scan->after[0], SK_ROW_MEMBER, 1,
						   BTGreaterStrategyNumber, InvalidOid, InvalidOid,
						   F_XID8CMP, is_after ? FullTransactionIdGetDatum(req->after_xid) : UInt64GetDatum(partition->since));
	ScanKeyEntryInitialize(&scan->after[1], SK_ROW_MEMBER | SK_ROW_END, 2,
						   BTGreaterStrategyNumber, InvalidOid, InvalidOid,
						   F_BTINT8CMP, Int64GetDatum(is_after ? req->after_pos : -1));
	MemSet(keys, 0, sizeof(keys));
	keys[0].sk_flags = SK_ROW_HEADER;
	keys[0].sk_attno = 1;
	keys[0].sk_strategy = BTGreaterStrategyNumber;
	keys[0].sk_argument = PointerGetDatum(scan->after);
	ScanKeyInit(&keys[1], 1, BTLessStrategyNumber, F_XID8LT,
				FullTransactionIdGetDatum(req->horizon));

	/*
	 * A row as it lies in the heap is copied whole, unless columns are to be
	 * left out, or were added later with a default that is not in the row.
	 */
	scan->whole = (req->ncolumns == 0 || req->ncolumns == desc->natts) &&
		(desc->constr == NULL || desc->constr->missing == NULL);
	scan->partition = partition;
	scan->slot = table_slot_create(partition->heap, NULL);
	scan->scan = feedpub_snapshot_begin_scan(partition->heap, partition->index, req->scan.snapshot, 2);
	index_rescan(scan->scan, keys, 2, NULL, 0);
}

/*
 * Step a scan to its next row.  Returns whether there is one.
 */
static bool
step_scan(TableScan *scan)
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
 * Put the row at which a scan is into the result, or keep it for the executor.
 */
static void
put_row(FetchRequest *req, TableScan *scan)
{
	TupleTableSlot *slot;

	if (!req->scan.direct)
	{
		feedpub_entry_add_initial(&req->scan, scan->partition, scan->slot);
		req->page.rows[req->page.nrows - 1].xid = U64FromFullTransactionId(scan->xid);
		return;
	}
	slot = feedpub_partition_convert(req->scan.partitions, scan->partition, scan->slot);
	note_xid(req, scan->xid);
	req->nrows++;
	if (scan->whole)
		tuplestore_puttupleslot(req->store, slot);
	else
	{
		slot_getsomeattrs(slot, req->desc->natts);
		tuplestore_putvalues(req->store, req->desc,
							 slot->tts_values, slot->tts_isnull);
	}
}

/*
 * Read the page: the tables, each in its own index, merged by their stamps.
 */
static void
read_rows(FetchRequest *req)
{
	FeedpubPartitions *partitions = req->scan.partitions;
	int			max_scans = Max(partitions->n, 1);
	TableScan  *scans = palloc(max_scans * sizeof(TableScan));
	binaryheap *merge = binaryheap_allocate(max_scans, compare_scans, NULL);

	for (int i = 0; i < partitions->n; i++)
	{
		begin_scan(&scans[i], req, &partitions->partitions[i]);
		if (step_scan(&scans[i]))
			binaryheap_add_unordered(merge, PointerGetDatum(&scans[i]));
	}
	binaryheap_build(merge);
	while (req->nrows < req->page.request.max_rows && !binaryheap_empty(merge))
	{
		TableScan  *scan = (TableScan *) DatumGetPointer(binaryheap_first(merge));

		CHECK_FOR_INTERRUPTS();
		put_row(req, scan);
		if (req->nrows < req->page.request.max_rows && step_scan(scan))
			binaryheap_replace_first(merge, PointerGetDatum(scan));
		else
			(void) binaryheap_remove_first(merge);
		if (binaryheap_empty(merge) || req->page.nrows >= Max(req->page.request.max_rows, MIN_HIDDEN))
			put_visible(req);
	}
	for (int i = 0; i < partitions->n; i++)
	{
		index_endscan(scans[i].scan);
		ExecDropSingleTupleTableSlot(scans[i].slot);
	}
}

/*
 * Put those rows into the result that the executor returns, up to the limit.
 */
static void
put_visible(FetchRequest *req)
{
	TupleDesc	desc = RelationGetDescr(req->page.heap);
	Datum	   *values = palloc(desc->natts * sizeof(Datum));
	bool	   *nulls = palloc(desc->natts * sizeof(bool));

	feedpub_entry_hide_rows(&req->scan);
	for (int i = 0; i < req->page.nrows && req->nrows < req->page.request.max_rows; i++)
	{
		FeedpubPageRow *row = &req->page.rows[i];

		note_xid(req, FullTransactionIdFromU64(row->xid));
		req->nrows++;
		heap_deform_tuple(row->entry, desc, values, nulls);
		tuplestore_putvalues(req->store, req->desc, values, nulls);
	}
	req->page.nrows = 0;
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
	Oid			relid;
	FeedpubFeed feed;
	uint64		horizon;
	Datum		values[2];
	bool		nulls[2] = {false, false};

	feedpub_argument_check(fcinfo, 0, 1);
	relid = PG_GETARG_OID(0);
	feedpub_access_check_feed(relid, &feed);

	horizon = U64FromFullTransactionId(feedpub_horizon(GetActiveSnapshot()));
	feedpub_durable_all();

	values[0] = FullTransactionIdGetDatum(FullTransactionIdFromU64(horizon - 1));
	values[1] = Int64GetDatum(PG_INT64_MAX);
	return feedpub_argument_row(fcinfo, values, nulls);
}
