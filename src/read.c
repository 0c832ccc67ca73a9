/*-------------------------------------------------------------------------
 *
 * read.c
 *	  Reading a feed in published order: feed_read(), feed_page() and
 *	  feed_head().
 *
 * A page goes from batch to batch, in their order, and inside each batch by
 * position: the runs of its transactions (run.c) are merged.  Batches and
 * rows are read with one snapshot, that of the calling query.
 *
 * Why no row is skipped: a batch that the snapshot sees was committed after
 * all transactions in it had been (publish.c), so the snapshot sees their
 * rows, less those that have been deleted since.  This holds for an old
 * snapshot of REPEATABLE READ, which sees fewer batches, and on a standby,
 * where commits become visible in the order of the WAL.  What lies in a batch
 * does not depend on who reads it or when, and a batch is never changed; so
 * behind a cursor (batch, position) the same rows lie for everybody, and a
 * page that goes on from the last row of the one before leaves none out and
 * brings none twice.
 *
 * A page may have to pass rows that it does not hand out: deleted ones, and
 * those that row security hides.  It does so up to a bound, and says in a
 * last entry how far it got, so that nobody passes the same stretch twice.
 *
 * The rows are fetched by the row identifiers in the index.  Where the
 * executor would do more than read (fetch.c says when), those of the page are
 * then selected again through it, as the caller, by their stamps.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "funcapi.h"
#include "lib/binaryheap.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/json.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"
#include "utils/tuplestore.h"
#include "utils/xid8.h"

#include "feedpub.h"

PG_FUNCTION_INFO_V1(feed_read);
PG_FUNCTION_INFO_V1(feed_page);
PG_FUNCTION_INFO_V1(feed_head);

/* how many rows and batches a page may pass without handing anything out */
#define MAX_PASSED	10000

/* a page ends when its rows have this many bytes, whatever max_rows */
#define MAX_BYTES	(64 * 1024 * 1024)

/* What an entry of a page is. */
typedef enum FeedpubOp
{
	FEEDPUB_OP_UPSERT,
	FEEDPUB_OP_DELETE,			/* entry has the key, and else nulls */
	FEEDPUB_OP_TRUNCATE,		/* entry has only nulls */
} FeedpubOp;

static const char *const op_names[] = {"upsert", "delete", "truncate"};

/* One row of a page. */
typedef struct PageRow
{
	FeedpubCursor cursor;
	uint64		xid;
	ItemPointerData tid;
	FeedpubOp	op;
	HeapTupleHeader entry;		/* the row as a value, or NULL when hidden */
} PageRow;

/* Which columns of a row make a JSON object. */
typedef struct JsonShape
{
	TupleDesc	full;			/* the table's */
	TupleDesc	desc;			/* the object's */
	int			natts;
	AttrNumber *attnos;			/* of its columns in the table */
	Datum	   *values;
	bool	   *nulls;
} JsonShape;

/* One page being read; all of it lives in one memory context. */
typedef struct ReadPage
{
	FeedpubFeed feed;
	Relation	heap;
	Relation	index;
	Snapshot	snapshot;
	bool		direct;			/* no executor needed */
	bool		sees_all;		/* no row security */
	FeedpubCursor after;
	int			max_rows;
	int			shard;			/* only keys of this shard, of so many */
	int			shards;
	PageRow    *rows;
	int			nrows;
	int			maxrows;
	Size		nbytes;
	FeedpubCursor passed;		/* how far the page got */
	FeedpubFloor floor;			/* before which it cannot begin */
	int			npassed;		/* rows and batches without a row in the page */
	bool		missed;			/* something was passed that somebody removed */
	bool		more;			/* something may lie behind it */
	FeedpubBatch last;			/* the last batch that was looked at */
	TransactionId publisher;	/* of the last batch in the page */
	FeedpubRunReader *reader;
	Relation	key;			/* the index that is a table feed's key */

	/* of a reader of one shard */
	MemoryContext row_context;
	int			nkeys;
	AttrNumber	keys[INDEX_MAX_KEYS];
} ReadPage;

static void make_shape(JsonShape *shape, TupleDesc full, int natts,
					   const AttrNumber *attnos);
static void append_object(StringInfo json, JsonShape *shape,
						  HeapTupleHeader entry);
static void read_arguments(FunctionCallInfo fcinfo, ReadPage *page);
static void read_page(ReadPage *page);
static void read_batches(ReadPage *page);
static void check_floor(ReadPage *page);
static bool check_cursor(ReadPage *page, FeedpubBatchScan *batches,
						 const FeedpubBatch *first);
static bool read_batch(ReadPage *page, const FeedpubSnapshot *before,
					   const FeedpubBatch *batch, int64 after_pos);
static void add_entry(ReadPage *page, const FeedpubBatch *batch,
					  const FeedpubRun *run);
static PageRow *add_row(ReadPage *page);
static bool is_in_shard(ReadPage *page, TupleTableSlot *slot, int source);
static bool read_tombstone(ReadPage *page, TupleTableSlot *slot, PageRow *row);
static bool read_initial(ReadPage *page);
static bool is_full(const ReadPage *page);
static void take_row(ReadPage *page, PageRow *row, TupleTableSlot *slot);
static Datum slot_row(TupleTableSlot *slot, TupleDesc desc);
static void hide_rows(ReadPage *page);
static void select_by_stamp(ReadPage *page);
static void select_by_tid(ReadPage *page);
static void make_page_durable(ReadPage *page);
static void make_publisher_durable(TransactionId publisher, Snapshot snapshot);
static bool ends_filtered(ReadPage *page);

/*
 * feed_read(feed anyelement, after text, max_rows int, shard int DEFAULT
 * NULL, shards int DEFAULT NULL)
 * returns TABLE (cursor text, op text, entry anyelement), VOLATILE
 *
 * Reads a page of a feed in published order, called as feed_read(NULL::kv,
 * '', 100): at most max_rows entries (and at most feedpub.max_page_rows)
 * behind the cursor "after"; '' is the beginning.  Each entry's cursor is a
 * place to go on from.  op is 'upsert'; in a table feed also 'delete', whose
 * entry has the key and else nulls, and 'truncate', whose entry has only
 * nulls; or 'end' for a last entry without a row that only says how far the
 * page got.
 *
 * With shard and shards, only the keys of shard, 0 to shards - 1; key.c says
 * which those are.
 *
 * Needs SELECT on the table and obeys its row security.  Takes ACCESS SHARE
 * on the table.  Works in read-only transactions and on standbys.  Errors:
 * 42809 when it is no feed, 22023 for a malformed cursor, a bad max_rows or
 * shard, PF001 for a cursor from another history, 42501.
 */
Datum
feed_read(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	ReadPage	page = {0};
	Oid			relid = feedpub_fetch_feed_argument(fcinfo);
	Datum		values[3];
	bool		nulls[3] = {false, false, false};
	Datum		ops[lengthof(op_names)];
	text	   *cursor;

	read_arguments(fcinfo, &page);
	page.heap = feedpub_registry_open(relid);
	read_page(&page);

	InitMaterializedSRF(fcinfo, 0);
	cursor = feedpub_cursor_text(&page.after);
	values[0] = PointerGetDatum(cursor);
	for (int i = 0; i < lengthof(op_names); i++)
		ops[i] = CStringGetTextDatum(op_names[i]);
	for (int i = 0; i < page.nrows; i++)
	{
		PageRow    *row = &page.rows[i];

		if (row->entry == NULL)
			continue;
		feedpub_cursor_print(&row->cursor, VARDATA(cursor));
		values[1] = ops[row->op];
		values[2] = PointerGetDatum(row->entry);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
		pfree(row->entry);
	}
	if (ends_filtered(&page))
	{
		feedpub_cursor_print(&page.passed, VARDATA(cursor));
		values[1] = CStringGetTextDatum("end");
		nulls[2] = true;
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	relation_close(page.heap, NoLock);
	return (Datum) 0;
}

/*
 * feed_page(feed regclass, after text, max_rows int, shard int DEFAULT NULL,
 * shards int DEFAULT NULL) returns json, VOLATILE
 *
 * The same page as a JSON object, the body that an HTTP endpoint returns:
 * {"entries": [...], "cursor": "...", "more": true|false}.  The entries of an
 * outbox are its rows as objects, without the columns of the stamp.  Those of
 * a table feed are {"op": "upsert", "key": {...}, "row": {...}},
 * {"op": "delete", "key": {...}} and {"op": "truncate"}.  cursor is the place
 * to go on from, more whether something may lie there already.
 */
Datum
feed_page(PG_FUNCTION_ARGS)
{
	ReadPage	page = {0};
	StringInfoData json;
	JsonShape	row_shape;
	JsonShape	key_shape = {0};
	TupleDesc	full;
	AttrNumber *attnos;
	FeedpubCursor cursor;
	bool		first = true;
	int			natts = 0;
	char		buffer[FEEDPUB_CURSOR_LENGTH + 1] = "";

	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("feed must not be null")));
	read_arguments(fcinfo, &page);
	page.heap = feedpub_registry_open(PG_GETARG_OID(0));
	read_page(&page);

	/* the row type of an entry: the table's, less dropped columns and stamp */
	full = RelationGetDescr(page.heap);
	attnos = palloc(full->natts * sizeof(AttrNumber));
	for (int i = 0; i < full->natts; i++)
	{
		if (!TupleDescAttr(full, i)->attisdropped &&
			i + 1 != page.feed.xid_attno && i + 1 != page.feed.pos_attno)
			attnos[natts++] = i + 1;
	}
	make_shape(&row_shape, full, natts, attnos);
	if (OidIsValid(page.feed.keyid))
	{
		AttrNumber	keys[INDEX_MAX_KEYS];

		make_shape(&key_shape, full,
				   feedpub_key_columns(page.feed.keyid, keys), keys);
	}

	initStringInfo(&json);
	appendStringInfoString(&json, "{\"entries\": [");
	for (int i = 0; i < page.nrows; i++)
	{
		PageRow    *row = &page.rows[i];

		if (row->entry == NULL)
			continue;
		if (!first)
			appendStringInfoString(&json, ", ");
		first = false;
		if (page.feed.is_outbox)
		{
			append_object(&json, &row_shape, row->entry);
			continue;
		}
		appendStringInfo(&json, "{\"op\": \"%s\"", op_names[row->op]);
		if (row->op != FEEDPUB_OP_TRUNCATE && key_shape.desc != NULL)
		{
			appendStringInfoString(&json, ", \"key\": ");
			append_object(&json, &key_shape, row->entry);
		}
		if (row->op == FEEDPUB_OP_UPSERT)
		{
			appendStringInfoString(&json, ", \"row\": ");
			append_object(&json, &row_shape, row->entry);
		}
		appendStringInfoChar(&json, '}');
	}

	/* where nothing was passed, the caller stays where he is */
	cursor = page.passed;
	if (cursor.sync_id > 0 || cursor.pos > 0)
		feedpub_cursor_print(&cursor, buffer);
	appendStringInfo(&json, "], \"cursor\": \"%s\", \"more\": %s}",
					 buffer, page.more ? "true" : "false");
	relation_close(page.heap, NoLock);
	PG_RETURN_TEXT_P(cstring_to_text_with_len(json.data, json.len));
}

/*
 * Some columns of a table as the row type of a JSON object.
 */
static void
make_shape(JsonShape *shape, TupleDesc full, int natts,
		   const AttrNumber *attnos)
{
	TupleDesc	desc = CreateTemplateTupleDesc(natts);

	for (int i = 0; i < natts; i++)
		TupleDescCopyEntry(desc, i + 1, full, attnos[i]);
	shape->desc = BlessTupleDesc(desc);
	shape->full = full;
	shape->natts = natts;
	shape->attnos = memcpy(palloc(natts * sizeof(AttrNumber)), attnos,
						   natts * sizeof(AttrNumber));
	shape->values = palloc(natts * sizeof(Datum));
	shape->nulls = palloc(natts * sizeof(bool));
}

static void
append_object(StringInfo json, JsonShape *shape, HeapTupleHeader entry)
{
	HeapTupleData tuple = {0};
	Datum		object;

	tuple.t_data = entry;
	tuple.t_len = HeapTupleHeaderGetDatumLength(entry);
	for (int i = 0; i < shape->natts; i++)
		shape->values[i] = heap_getattr(&tuple, shape->attnos[i], shape->full,
										&shape->nulls[i]);
	object = DirectFunctionCall1(row_to_json,
								 HeapTupleGetDatum(heap_form_tuple(shape->desc, shape->values, shape->nulls)));
	appendBinaryStringInfo(json, VARDATA_ANY(DatumGetPointer(object)),
						   VARSIZE_ANY_EXHDR(DatumGetPointer(object)));
	pfree(DatumGetPointer(object));
}

/*
 * feed_head(feed regclass) returns text, VOLATILE
 *
 * The cursor of now in published order: behind the last batch.  Whatever is
 * published later lies behind it; rows that have been committed and not
 * published yet do too.  Needs SELECT on the table.  Errors: 42809 when it is
 * no feed, 42501, PF001 for a feed from another history.
 */
Datum
feed_head(PG_FUNCTION_ARGS)
{
	Oid			relid = PG_GETARG_OID(0);
	Relation	heap = feedpub_registry_open(relid);
	Relation	index;
	FeedpubFeed feed;
	FeedpubBatch last;
	FeedpubCursor cursor = {.epoch = FEEDPUB_EPOCH};

	feedpub_registry_get(relid, &feed);
	feedpub_require_select(relid);
	index = index_open(feed.indexid, AccessShareLock);
	feedpub_horizon_check_history(&feed, heap, index);
	index_close(index, NoLock);
	relation_close(heap, NoLock);

	feedpub_batch_last(relid, PG_INT64_MAX, GetActiveSnapshot(), &last);
	feedpub_batch_refuse_foreign(&feed, &last);
	make_publisher_durable(last.publisher, GetActiveSnapshot());
	cursor.sync_id = last.sync_id;
	cursor.pos = last.last_pos;
	cursor.fingerprint = last.fingerprint;
	if (last.sync_id == 0 && !feed.is_outbox)
	{
		FeedpubFloor floor;

		feedpub_registry_floor(relid, GetActiveSnapshot(), &floor);
		feedpub_cursor_behind_initial(&cursor, floor.expiries);
	}
	PG_RETURN_TEXT_P(feedpub_cursor_text(&cursor));
}

/*
 * Check the arguments "after", max_rows, shard and shards, from the second on.
 */
static void
read_arguments(FunctionCallInfo fcinfo, ReadPage *page)
{
	int			max_rows;

	if (PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("cursor must not be null"),
				 errhint("The beginning of a feed is ''.")));
	feedpub_cursor_parse(PG_GETARG_TEXT_PP(1), &page->after);
	if (PG_ARGISNULL(2))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("max_rows must not be null")));
	max_rows = PG_GETARG_INT32(2);
	if (max_rows < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("max_rows must be at least 1")));
	page->max_rows = Min(max_rows, feedpub_max_page_rows);

	if (PG_ARGISNULL(3) != PG_ARGISNULL(4))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("shard and shards must be given together")));
	page->shards = 1;
	if (!PG_ARGISNULL(3))
	{
		page->shard = PG_GETARG_INT32(3);
		page->shards = PG_GETARG_INT32(4);
	}
	if (page->shards < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("shards must be at least 1")));
	if (page->shard < 0 || page->shard >= page->shards)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("shard must be at least 0 and less than shards")));
}

/*
 * Read the page behind page->after; its table is open.
 *
 * Somebody who commits a row and reads at once must not find an empty page:
 * when there is nothing to hand out, but rows have been committed that are
 * not published yet, the worker is woken, and started if there is none, and
 * what it publishes within feedpub.read_wait is read with a new snapshot.
 * Not with a snapshot that must stay, nor where nothing is published.
 */
static void
read_page(ReadPage *page)
{
	bool		pushed = false;

	feedpub_fetch_keep_heap();
	feedpub_registry_get(RelationGetRelid(page->heap), &page->feed);
	page->direct = feedpub_fetch_may_read_directly(page->heap);
	if (!page->direct)
		feedpub_require_select(page->feed.relid);
	page->sees_all = page->direct ||
		check_enable_rls(page->feed.relid, InvalidOid, true) != RLS_ENABLED;
	page->passed = page->after;
	page->index = index_open(page->feed.indexid, AccessShareLock);
	feedpub_horizon_check_history(&page->feed, page->heap, page->index);

	if (OidIsValid(page->feed.keyid) || page->feed.deletes)
	{
		if (!OidIsValid(page->feed.keyid))
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("feed \"%s\" has no key",
							RelationGetRelationName(page->heap)),
					 errhint("Run feed_check() to see what is missing.")));
		page->key = index_open(page->feed.keyid, AccessShareLock);
	}

	/* a snapshot that is older than the table sees none of its rows */
	if (!feedpub_horizon_sees_table(GetActiveSnapshot(), page->heap))
	{
		if (IsolationUsesXactSnapshot() || IsInParallelMode())
			ereport(ERROR,
					(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
					 errmsg("could not read feed \"%s\"",
							RelationGetRelationName(page->heap)),
					 errdetail("The table was altered after the transaction's snapshot was taken."),
					 errhint("Try again in a new transaction.")));
		PushActiveSnapshot(GetLatestSnapshot());
		pushed = true;
	}
	page->snapshot = GetActiveSnapshot();
	page->reader = feedpub_run_begin(&page->feed, page->heap, page->index,
									 page->snapshot);
	read_batches(page);
	feedpub_run_end(page->reader);
	if (page->nrows == 0 &&
		((page->passed.sync_id == page->after.sync_id && page->passed.pos == page->after.pos) ||
		 feedpub_cursor_is_behind_initial(&page->passed)) &&
		feedpub_read_wait > 0 &&
		!RecoveryInProgress() && !page->snapshot->takenDuringRecovery &&
		!IsolationUsesXactSnapshot() && !IsInParallelMode() &&
		feedpub_publish_has_news(&page->feed, page->heap, page->index,
								 page->snapshot,
								 &page->last.snapshot) &&
		feedpub_wait_for_batch(page->feed.relid, &page->passed,
							   feedpub_read_wait, false))
	{
		PushActiveSnapshot(GetLatestSnapshot());
		page->snapshot = GetActiveSnapshot();
		page->reader = feedpub_run_begin(&page->feed, page->heap, page->index,
										 page->snapshot);
		read_batches(page);
		feedpub_run_end(page->reader);
		PopActiveSnapshot();
	}
	if (pushed)
		PopActiveSnapshot();
	if (page->key != NULL)
		index_close(page->key, NoLock);
	index_close(page->index, NoLock);
}

/*
 * Read the page with its snapshot.
 */
static void
read_batches(ReadPage *page)
{
	Oid			relid = page->feed.relid;
	MemoryContext contexts[2];
	FeedpubBatchScan *batches;
	bool		has_before = false;
	bool		checked = false;
	int			turn = 0;

	/* the snapshots of two batches are needed at a time */
	for (int i = 0; i < 2; i++)
		contexts[i] = AllocSetContextCreate(CurrentMemoryContext,
											"feedpub batch",
											ALLOCSET_SMALL_SIZES);

	if (page->feed.deletes)
		check_floor(page);
	if (!page->feed.is_outbox && page->after.sync_id == 0 &&
		!feedpub_cursor_is_behind_initial(&page->after) &&
		!read_initial(page))
	{
		page->more = true;
		hide_rows(page);
		make_page_durable(page);
		return;
	}

	batches = feedpub_batch_begin(relid, Max(page->after.sync_id, 1),
								  page->snapshot);
	for (;;)
	{
		MemoryContext oldcontext;
		FeedpubBatch batch;
		bool		found;
		int64		after_pos = 0;

		CHECK_FOR_INTERRUPTS();
		MemoryContextReset(contexts[turn]);
		oldcontext = MemoryContextSwitchTo(contexts[turn]);
		found = feedpub_batch_next(batches, &batch);
		MemoryContextSwitchTo(oldcontext);
		if (!checked && !check_cursor(page, batches, found ? &batch : NULL))
			found = false;
		checked = true;
		if (!found)
			break;
		feedpub_batch_refuse_foreign(&page->feed, &batch);
		if (is_full(page) || page->npassed >= MAX_PASSED)
		{
			page->more = true;
			break;
		}
		if (batch.sync_id == page->after.sync_id)
			after_pos = page->after.pos;
		if (after_pos < batch.last_pos)
		{
			if (!has_before)
				feedpub_batch_last(relid, batch.sync_id, page->snapshot, &page->last);
			page->publisher = batch.publisher;
			if (!read_batch(page, &page->last.snapshot, &batch, after_pos))
			{
				page->more = true;
				break;
			}
		}
		page->last = batch;
		has_before = true;
		turn = 1 - turn;
	}
	feedpub_batch_end(batches);
	if (!has_before && !page->more)
		feedpub_batch_last(relid, PG_INT64_MAX, page->snapshot, &page->last);
	hide_rows(page);
	make_page_durable(page);
}

/*
 * See that a crash can take nothing back that the page rests on.
 *
 * What it hands out is durable with its batches.  But what it passes because
 * the row is gone, or has another stamp by now, may come back, behind the
 * cursor, when the transaction that removed it committed asynchronously and
 * is lost.  In a table feed that is the rule, and entries may be gone from the
 * index altogether; in an outbox rows are removed by their owner, and seen to
 * be missing.  Then the WAL is flushed up to here; there is nothing to do
 * when all of it is on disk.
 */
static void
make_page_durable(ReadPage *page)
{
	bool		has_moved = page->passed.sync_id != page->after.sync_id ||
		page->passed.pos != page->after.pos;

	if (page->missed || (has_moved && !page->feed.is_outbox))
		feedpub_horizon_flush_all();
	else
		make_publisher_durable(page->publisher, page->snapshot);
}

/*
 * Should batches not be published durably: flush before the batch is shown,
 * and with it all that lies before it in the WAL.
 */
static void
make_publisher_durable(TransactionId publisher, Snapshot snapshot)
{
	if (TransactionIdIsNormal(publisher))
	{
		FullTransactionId xid = feedpub_horizon_widen(publisher);

		feedpub_horizon_make_durable(&xid, 1, feedpub_horizon(snapshot));
	}
}

/*
 * Check that the cursor is one of this history, given the first batch at or
 * behind it, if there is one, just read.  Returns false when nothing can lie
 * behind it yet: its batch is not here, on a standby that lags or in a
 * snapshot that is older than the cursor, which somebody else has got since,
 * or was waited for under a row lock.  A batch that others were merged into is
 * another one: where that has not happened yet, its cursors mean nothing.
 */
static bool
check_cursor(ReadPage *page, FeedpubBatchScan *batches,
			 const FeedpubBatch *first)
{
	const FeedpubCursor *after = &page->after;
	bool		is_early = first == NULL ||
		(after->fingerprint & FEEDPUB_MERGED_FINGERPRINT) != 0;

	if (after->sync_id == 0 && after->epoch == FEEDPUB_EPOCH)
		return true;
	if (after->epoch == FEEDPUB_EPOCH && first != NULL &&
		feedpub_batch_knows(batches, first, after))
		return true;
	if (after->epoch == FEEDPUB_EPOCH && is_early)
	{
		FeedpubBatchScan *latest_batches;
		FeedpubBatch batch;
		Snapshot	latest;
		bool		known;

		if (RecoveryInProgress() || IsInParallelMode())
			return false;
		latest = RegisterSnapshot(GetLatestSnapshot());
		latest_batches = feedpub_batch_begin(page->feed.relid, after->sync_id, latest);
		known = feedpub_batch_next(latest_batches, &batch) &&
			feedpub_batch_knows(latest_batches, &batch, after);
		feedpub_batch_end(latest_batches);
		UnregisterSnapshot(latest);
		if (known)
			return false;
	}
	feedpub_read_refuse_cursor(page->feed.relid);
	return false;
}

/*
 * Check that no delete behind the cursor has expired.
 */
static void
check_floor(ReadPage *page)
{
	const FeedpubCursor *after = &page->after;
	bool		expired;

	feedpub_registry_floor(page->feed.relid, page->snapshot, &page->floor);
	if (after->sync_id == 0)
		expired = after->pos != 0 &&
			feedpub_initial_expiries(after) != (page->floor.expiries & 0x7fff);
	else
		expired = after->sync_id < page->floor.sync_id ||
			(after->sync_id == page->floor.sync_id && after->pos < page->floor.pos);
	if (expired)
		ereport(ERROR,
				(errcode(ERRCODE_FEED_CURSOR_EXPIRED),
				 errmsg("cursor of feed \"%s\" has expired",
						RelationGetRelationName(page->heap)),
				 errdetail("Deletes that it has not got past are no longer retained."),
				 errhint("Begin again from '', with nothing: rows that are gone are not announced.")));
}

/*
 * Refuse a cursor of another history.
 */
void
feedpub_read_refuse_cursor(Oid relid)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEED_FOREIGN_HISTORY),
			 errmsg("cursor of feed \"%s\" is from another history",
					get_rel_name(relid)),
			 errdetail("This server has not published the batch that the cursor points to."),
			 errhint("The cursor is another server's, or this one was restored or replaced since.  Start from feed_head(), or from the beginning, ''.")));
}

/*
 * Add rows of batch 0 to the page.  Returns whether it was read to its end,
 * and the page goes on into the batches.
 */
static bool
read_initial(ReadPage *page)
{
	FeedpubInitialScan *initial;
	TupleTableSlot *slot;
	bool		finished = false;

	/* another file: its rows are elsewhere now, so from the beginning */
	page->passed = page->after;
	page->passed.epoch = FEEDPUB_EPOCH;
	page->passed.sync_id = 0;
	page->passed.fingerprint = feedpub_initial_fingerprint(page->heap);
	if (page->after.fingerprint != page->passed.fingerprint)
		page->passed.pos = 0;

	initial = feedpub_initial_begin(&page->feed, page->heap, page->snapshot,
									page->passed.pos, page->floor.expiries);
	while (!is_full(page) && page->npassed < MAX_PASSED)
	{
		PageRow    *row;

		CHECK_FOR_INTERRUPTS();
		if (!feedpub_initial_next(initial, &slot, &page->passed.pos, &page->npassed))
		{
			feedpub_cursor_behind_initial(&page->passed, page->floor.expiries);
			finished = true;
			break;
		}
		if (slot == NULL ||
			(page->shards > 1 && !is_in_shard(page, slot, FEEDPUB_RUN_ROWS)))
		{
			page->npassed++;
			continue;
		}
		row = add_row(page);
		row->tid = slot->tts_tid;
		take_row(page, row, slot);
	}
	feedpub_initial_end(initial);

	/* through the executor rows of batch 0 are read apart, see hide_rows() */
	return finished && (page->direct || page->nrows == 0);
}

static int
compare_runs(Datum a, Datum b, void *arg)
{
	FeedpubRun *ra = (FeedpubRun *) DatumGetPointer(a);
	FeedpubRun *rb = (FeedpubRun *) DatumGetPointer(b);
	/* the smallest first: a binaryheap has its largest on top */
	return ra->pos < rb->pos ? 1 : ra->pos > rb->pos ? -1 :
													   0;
}

/*
 * Add the rows of a batch behind a position to the page.  Returns whether all
 * of them are in it, or passed.
 */
static bool
read_batch(ReadPage *page, const FeedpubSnapshot *before,
		   const FeedpubBatch *batch, int64 after_pos)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "feedpub runs",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext oldcontext = MemoryContextSwitchTo(context);
	List	   *runs;
	binaryheap *merge;
	ListCell   *lc;
	bool		finished;
	int			cost;
	int			nrows_before = page->nrows;

	if (after_pos == 0 ||
		!feedpub_resume_find(page->feed.relid, before, batch, after_pos,
							 &runs, &cost))
		runs = feedpub_run_load(page->reader, before, &batch->snapshot,
								after_pos, INT_MAX, &cost);
	merge = binaryheap_allocate(Max(list_length(runs), 1), compare_runs, NULL);
	foreach(lc, runs)
		binaryheap_add_unordered(merge, PointerGetDatum(lfirst(lc)));
	binaryheap_build(merge);

	while (!binaryheap_empty(merge) && !is_full(page))
	{
		FeedpubRun *run = (FeedpubRun *) DatumGetPointer(binaryheap_first(merge));
		bool		goes_on;

		/* not between two entries of one position */
		if (page->npassed >= MAX_PASSED &&
			(page->passed.sync_id != batch->sync_id || page->passed.pos != run->pos))
			break;

		CHECK_FOR_INTERRUPTS();
		if (run->nentries == 0)
			goes_on = feedpub_run_read(page->reader, run);
		else
		{
			MemoryContextSwitchTo(oldcontext);
			add_entry(page, batch, run);
			MemoryContextSwitchTo(context);
			goes_on = feedpub_run_next(run);
		}
		if (goes_on)
			binaryheap_replace_first(merge, PointerGetDatum(run));
		else
		{
			run->ended = true;
			(void) binaryheap_remove_first(merge);
		}
	}

	finished = binaryheap_empty(merge);

	/* to go on from here takes a descent for each run that the page needs */
	if (!finished && cost > Min(list_length(runs), page->max_rows))
		feedpub_resume_keep(page->feed.relid, before, batch, page->passed.pos,
							runs, cost);
	if (finished)
	{
		if (page->nrows == nrows_before)
			page->npassed++;
		/* rows of the batch that are gone altogether were passed as well */
		if (page->passed.sync_id != batch->sync_id ||
			page->passed.pos < batch->last_pos)
		{
			page->passed.epoch = FEEDPUB_EPOCH;
			page->passed.sync_id = batch->sync_id;
			page->passed.pos = batch->last_pos;
			page->passed.fingerprint = batch->fingerprint;
		}
	}
	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(context);
	return finished;
}

/*
 * Add what a run's current entry stands for to the page, or pass it: there is
 * no row, or a tombstone whose key lives.
 */
static void
add_entry(ReadPage *page, const FeedpubBatch *batch, const FeedpubRun *run)
{
	TupleTableSlot *slot;
	PageRow    *row;

	page->passed.epoch = FEEDPUB_EPOCH;
	page->passed.sync_id = batch->sync_id;
	page->passed.pos = run->pos;
	page->passed.fingerprint = batch->fingerprint;
	slot = feedpub_run_fetch(page->reader, run, run->current);
	if (slot == NULL)
		page->missed = true;
	if (slot == NULL ||
		(page->shards > 1 && !is_in_shard(page, slot, run->source)))
	{
		page->npassed++;
		return;
	}
	row = add_row(page);
	row->xid = run->xid;
	if (run->source == FEEDPUB_RUN_ROWS)
	{
		take_row(page, row, slot);
	}
	else if (!read_tombstone(page, slot, row))
	{
		page->nrows--;
		page->npassed++;
	}
}

/*
 * A new row of the page, at the place that it has got to.
 */
static PageRow *
add_row(ReadPage *page)
{
	PageRow    *row;

	if (page->nrows == page->maxrows)
	{
		page->maxrows = page->maxrows ? page->maxrows * 2 : Min(page->max_rows, 128);
		page->rows = page->rows ?
			repalloc(page->rows, page->maxrows * sizeof(PageRow)) :
			palloc(page->maxrows * sizeof(PageRow));
	}
	row = &page->rows[page->nrows++];
	MemSet(row, 0, sizeof(PageRow));
	row->cursor = page->passed;
	return row;
}

/*
 * Is the key of a row or tombstone in the page's shard?  A TRUNCATE is in all
 * of them.
 */
static bool
is_in_shard(ReadPage *page, TupleTableSlot *slot, int source)
{
	MemoryContext oldcontext;
	Datum		key;
	bool		result = true;

	if (page->row_context == NULL)
	{
		page->row_context = AllocSetContextCreate(CurrentMemoryContext,
												  "feedpub shard",
												  ALLOCSET_SMALL_SIZES);
		page->nkeys = feedpub_key_of_feed(&page->feed, page->heap, page->keys);
	}
	oldcontext = MemoryContextSwitchTo(page->row_context);
	if (source == FEEDPUB_RUN_ROWS)
	{
		int			nkeys = page->nkeys;
		const AttrNumber *keys = page->keys;

		/* an outbox: message_key or, without one, message_id */
		if (page->feed.is_outbox)
		{
			nkeys = 1;
			if (slot_attisnull(slot, keys[0]))
				keys++;
		}
		key = feedpub_key_texts(RelationGetDescr(page->heap), nkeys, keys, slot);
		result = feedpub_key_shard(key, page->shards) == page->shard;
	}
	else if (feedpub_tombstone_key(slot, &key))
		result = feedpub_key_shard(key, page->shards) == page->shard;
	MemoryContextSwitchTo(oldcontext);
	MemoryContextReset(page->row_context);
	return result;
}

/*
 * Make a row of the page of a tombstone.  Returns false when it is not to be
 * handed out: its key lives in the snapshot that reads, or the reader is
 * subject to row security, which cannot be applied to a row that is gone.
 *
 * Its key lives when an INSERT took its position before it waited for the
 * DELETE, or the key was inserted again: then the row itself is in the feed,
 * in a batch that this snapshot sees or in one to come, and may lie before the
 * tombstone.  Hiding the tombstone from one reader and not from another who
 * comes later is right for both: whoever sees the key alive gets, or has got,
 * the row; and if it is deleted again it has another tombstone.
 *
 * A key lives when the database calls one that lives equal, though its text
 * may be another, as of 1.0 and 1.00; but that one may be in another shard,
 * and then this shard's readers are told.
 */
static bool
read_tombstone(ReadPage *page, TupleTableSlot *slot, PageRow *row)
{
	TupleDesc	desc = RelationGetDescr(page->heap);
	Datum	   *values = palloc0(desc->natts * sizeof(Datum));
	bool	   *nulls = palloc(desc->natts * sizeof(bool));
	Datum		key;
	Datum		living;
	HeapTuple	tuple;

	MemSet(nulls, true, desc->natts * sizeof(bool));
	if (!page->sees_all)
		return false;
	row->op = FEEDPUB_OP_TRUNCATE;
	if (feedpub_tombstone_key(slot, &key))
	{
		Datum		keys[INDEX_MAX_KEYS];

		row->op = FEEDPUB_OP_DELETE;
		feedpub_key_values(page->heap, page->key, key, keys);
		if (feedpub_key_lives(page->heap, page->key, keys, page->snapshot, &living) &&
			(page->shards == 1 ||
			 feedpub_key_shard(living, page->shards) == page->shard))
			return false;
		for (int i = 0; i < page->key->rd_index->indnkeyatts; i++)
		{
			AttrNumber	attno = page->key->rd_index->indkey.values[i];

			values[attno - 1] = keys[i];
			nulls[attno - 1] = false;
		}
	}
	tuple = heap_form_tuple(desc, values, nulls);
	row->entry = DatumGetHeapTupleHeader(heap_copy_tuple_as_datum(tuple, desc));
	return true;
}

/*
 * Has the page as many rows, or bytes, as it may have?
 */
static bool
is_full(const ReadPage *page)
{
	return page->nrows >= page->max_rows || page->nbytes >= MAX_BYTES;
}

/*
 * Take over a row that may be read without the executor.
 */
static void
take_row(ReadPage *page, PageRow *row, TupleTableSlot *slot)
{
	if (!page->direct)
		return;
	row->entry = DatumGetHeapTupleHeader(slot_row(slot,
												  RelationGetDescr(page->heap)));
	page->nbytes += HeapTupleHeaderGetDatumLength(row->entry);
}

/*
 * The row in a slot as a value of the table's row type.
 */
static Datum
slot_row(TupleTableSlot *slot, TupleDesc desc)
{
	HeapTuple	tuple;
	bool		is_copy;
	Datum		result;

	if (desc->constr != NULL && desc->constr->missing != NULL)
	{
		/* columns added later, with a default that is not in the row */
		slot_getallattrs(slot);
		tuple = heap_form_tuple(desc, slot->tts_values, slot->tts_isnull);
		is_copy = true;
	}
	else
		tuple = ExecFetchSlotHeapTuple(slot, false, &is_copy);
	result = heap_copy_tuple_as_datum(tuple, desc);
	if (is_copy)
		heap_freetuple(tuple);
	return result;
}

/*
 * Read the page's rows through the executor, as the caller, and hide those
 * that it does not return.  The same snapshot: read_only execution.
 *
 * By stamp and not by row identifier, for nobody can be granted a right on a
 * system column; other plans than look-ups in the index are priced out, and
 * not compiled.
 */
static void
hide_rows(ReadPage *page)
{
	static const char *const unwanted[] = {
		"enable_seqscan", "enable_bitmapscan", "enable_hashjoin",
		"enable_mergejoin", "jit"};
	bool		is_initial;
	MemoryContext oldcontext = CurrentMemoryContext;
	int			nestlevel;
	int			kept = 0;

	if (page->direct || page->nrows == 0)
		return;
	is_initial = page->rows[0].cursor.sync_id == 0;
	nestlevel = NewGUCNestLevel();
	for (int i = 0; i < lengthof(unwanted); i++)
		(void) set_config_option(unwanted[i], "off", PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_SAVE, true, 0, false);
	SPI_connect();
	if (is_initial)
		select_by_tid(page);
	else
		select_by_stamp(page);

	for (int i = 0; i < page->nrows; i++)
	{
		PageRow    *row = &page->rows[i];
		int			low = 0;
		int			high = (int) SPI_processed;

		if (row->op != FEEDPUB_OP_UPSERT)
			kept++;
		while (row->op == FEEDPUB_OP_UPSERT && low < high)
		{
			int			middle = (low + high) / 2;
			bool		isnull;
			Datum		place = SPI_getbinval(SPI_tuptable->vals[middle],
											  SPI_tuptable->tupdesc, 1, &isnull);
			int64		pos = is_initial ?
				feedpub_initial_pos((ItemPointer) DatumGetPointer(place),
										  page->floor.expiries) :
				DatumGetInt64(place);

			if (pos == row->cursor.pos)
			{
				Datum		entry = SPI_getbinval(SPI_tuptable->vals[middle],
												  SPI_tuptable->tupdesc, 2, &isnull);
				MemoryContext spicontext = MemoryContextSwitchTo(oldcontext);

				row->entry = DatumGetHeapTupleHeaderCopy(entry);
				MemoryContextSwitchTo(spicontext);
				kept++;
				break;
			}
			if (pos < row->cursor.pos)
				low = middle + 1;
			else
				high = middle;
		}
	}
	SPI_finish();
	AtEOXact_GUC(false, nestlevel);
	page->npassed += page->nrows - kept;
}

/*
 * Select the page's rows with SPI, in the order of their positions.
 */
static void
select_by_stamp(ReadPage *page)
{
	char	   *table = feedpub_relation_name(page->feed.relid);
	Oid			argtypes[2] = {XID8ARRAYOID, INT8ARRAYOID};
	Datum	   *xids = palloc(page->nrows * sizeof(Datum));
	Datum	   *positions = palloc(page->nrows * sizeof(Datum));
	Datum		values[2];

	for (int i = 0; i < page->nrows; i++)
	{
		xids[i] = FullTransactionIdGetDatum(FullTransactionIdFromU64(page->rows[i].xid));
		positions[i] = Int64GetDatum(page->rows[i].cursor.pos);
	}
	values[0] = PointerGetDatum(construct_array(xids, page->nrows, XID8OID,
												sizeof(FullTransactionId), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
	values[1] = PointerGetDatum(construct_array(positions, page->nrows, INT8OID,
												sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
	if (SPI_execute_with_args(psprintf("SELECT t.feed_pos, (t.*)::%s"
									   " FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2)) AS k (xid, pos)"
									   " JOIN ONLY %s t ON t.feed_xid OPERATOR(pg_catalog.=) k.xid"
									   " AND t.feed_pos OPERATOR(pg_catalog.=) k.pos"
									   " ORDER BY t.feed_pos",
									   table, table),
							  2, argtypes, values, NULL, true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read feed \"%s\"",
			 RelationGetRelationName(page->heap));
}

/*
 * The same for rows of batch 0, which have no stamp.
 */
static void
select_by_tid(ReadPage *page)
{
	char	   *table = feedpub_relation_name(page->feed.relid);
	Oid			argtypes[1] = {TIDARRAYOID};
	Datum	   *tids = palloc(page->nrows * sizeof(Datum));
	Datum		values[1];

	for (int i = 0; i < page->nrows; i++)
		tids[i] = PointerGetDatum(&page->rows[i].tid);
	values[0] = PointerGetDatum(construct_array(tids, page->nrows, TIDOID,
												sizeof(ItemPointerData), false, TYPALIGN_SHORT));
	if (SPI_execute_with_args(psprintf("SELECT t.ctid, (t.*)::%s FROM ONLY %s t"
									   " WHERE t.ctid OPERATOR(pg_catalog.=) ANY ($1)"
									   " ORDER BY t.ctid",
									   table, table),
							  1, argtypes, values, NULL, true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read feed \"%s\"",
			 RelationGetRelationName(page->heap));
}

/*
 * Must the page say how far it got, since its last row does not?
 */
static bool
ends_filtered(ReadPage *page)
{
	int			nshown = 0;

	/* a full page needs none: what was passed behind it is passed again */
	for (int i = 0; i < page->nrows; i++)
		nshown += page->rows[i].entry != NULL;
	if (nshown >= page->max_rows || page->nbytes >= MAX_BYTES)
		return false;

	for (int i = page->nrows - 1; i >= 0; i--)
	{
		if (page->rows[i].entry != NULL)
			return page->rows[i].cursor.sync_id != page->passed.sync_id ||
				page->rows[i].cursor.pos != page->passed.pos;
	}
	return page->passed.sync_id != page->after.sync_id ||
		page->passed.pos != page->after.pos;
}
