/*-------------------------------------------------------------------------
 *
 * read.c
 *	  Reading a feed in published order: feed_read(), feed_page() and
 *	  feed_head().
 *
 * page.c reads the page, here it becomes rows or JSON.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/tuplestore.h"
#include "utils/xid8.h"

#include "feedpub.h"

PG_FUNCTION_INFO_V1(feed_read);
PG_FUNCTION_INFO_V1(feed_page);
PG_FUNCTION_INFO_V1(feed_head);
PG_FUNCTION_INFO_V1(feed_cursor);

/* A page being written as JSON. */
typedef struct PageWriter
{
	StringInfoData json;
	FeedpubPageRow *last;		/* the last row that was written */
} PageWriter;

static bool write_entry(FeedpubJsonEntry *entry, void *arg);
static void check_readable(Oid relid, FeedpubFeed *feed, FeedpubBatch *last);
static text *check_floor(Oid relid, text *cursor, Snapshot snapshot);
static bool find_batch(Oid feed, int64 last, uint64 xid, Snapshot snapshot,
					   FeedpubBatch *batch);
static bool sees_none_from(const FeedpubSnapshot *snapshot, uint64 xid);
static void read_arguments(FunctionCallInfo fcinfo, FeedpubPage *page);

/*
 * feed_read(feed anyelement, after text DEFAULT '', max_rows int DEFAULT 100,
 * shard int DEFAULT NULL, shards int DEFAULT NULL)
 * returns TABLE (cursor text, op text, entry anyelement), VOLATILE
 *
 * Reads a page of a feed in published order, called as feed_read(NULL::kv,
 * '', 100): at most max_rows entries (and at most feedpub.max_page_rows)
 * behind the cursor "after"; '' is the beginning.  Each entry's cursor is a
 * place to go on from.  op is 'upsert'; in a table feed also 'delete', whose
 * entry has the key and else nulls, and 'truncate', whose entry has only
 * nulls; or 'end' for a last entry without a row that only says how far the
 * page got.  The page after '' that finds nothing has one: it is the cursor by
 * which the consumer is told of whatever is removed afterwards.  A key column that was changed so that it cannot have a deleted
 * row's value any more is null too; feed_page() has its text.
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
	FeedpubPage page = {0};
	Oid			relid = feedpub_fetch_feed_argument(fcinfo);
	Datum		values[3];
	bool		nulls[3] = {false, false, false};
	Datum		ops[FEEDPUB_OP_TRUNCATE + 1];
	text	   *cursor;

	read_arguments(fcinfo, &page);
	page.heap = feedpub_registry_open(relid);
	feedpub_page_read(&page);

	InitMaterializedSRF(fcinfo, 0);
	cursor = feedpub_cursor_text(&page.after);
	values[0] = PointerGetDatum(cursor);
	for (int i = 0; i < lengthof(ops); i++)
		ops[i] = CStringGetTextDatum(feedpub_entry_op_names[i]);
	for (int i = 0; i < page.nrows; i++)
	{
		FeedpubPageRow *row = &page.rows[i];

		if (row->entry == NULL)
			continue;
		feedpub_cursor_print(&row->cursor, VARDATA(cursor));
		values[1] = ops[row->op];
		values[2] = heap_copy_tuple_as_datum(row->entry, RelationGetDescr(page.heap));
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
		pfree(DatumGetPointer(values[2]));
	}
	if (feedpub_page_ends_filtered(&page))
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
 * feed_page(feed regclass, after text DEFAULT '', max_rows int DEFAULT 100,
 * shard int DEFAULT NULL, shards int DEFAULT NULL) returns json, VOLATILE
 *
 * The same page as a JSON object, the body that an HTTP endpoint returns:
 * {"entries": [...], "cursor": "...", "more": true|false}.  json.c has the
 * entries; there is none for a row that feed_read() says with "end".  cursor is
 * the place to go on from, more whether something may lie after it already.
 *
 * Locks and errors are those of feed_read().
 */
Datum
feed_page(PG_FUNCTION_ARGS)
{
	static const char *const names[] = {"feed"};
	FeedpubPage page = {0};
	PageWriter	writer = {0};
	StringInfo	json = &writer.json;
	FeedpubCursor cursor;
	char		buffer[FEEDPUB_CURSOR_LENGTH + 1];
	bool		whole;

	feedpub_argument_check(fcinfo, lengthof(names), names);
	read_arguments(fcinfo, &page);
	page.heap = feedpub_registry_open(PG_GETARG_OID(0));
	feedpub_page_read(&page);

	/* the text's header, then the object: no copy */
	initStringInfo(json);
	appendStringInfoSpaces(json, VARHDRSZ);
	appendStringInfoString(json, "{\"entries\": [");
	whole = feedpub_json_entries(&page, json, write_entry, &writer);
	if (writer.last != NULL)
		json->len -= strlen(", ");

	cursor = whole ? page.passed : writer.last->cursor;
	feedpub_cursor_print(&cursor, buffer);
	buffer[FEEDPUB_CURSOR_LENGTH] = '\0';
	appendStringInfo(json, "], \"cursor\": \"%s\", \"more\": %s}",
					 buffer, page.more || !whole ? "true" : "false");
	relation_close(page.heap, NoLock);
	SET_VARSIZE(json->data, json->len);
	PG_RETURN_TEXT_P((text *) json->data);
}

/*
 * An entry of the page has been written: set it off from the next.  Takes as
 * many as the page may be large.
 */
static bool
write_entry(FeedpubJsonEntry *entry, void *arg)
{
	PageWriter *writer = arg;

	writer->last = entry->row;
	appendStringInfoString(entry->json, ", ");
	return entry->json->len < FEEDPUB_MAX_PAGE_BYTES;
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
	static const char *const names[] = {"feed"};

	feedpub_argument_check(fcinfo, lengthof(names), names);
	PG_RETURN_TEXT_P(feedpub_read_head(PG_GETARG_OID(0)));
}

text *
feedpub_read_head(Oid relid)
{
	Relation	heap = feedpub_registry_open(relid);
	FeedpubLeaves *leaves;
	FeedpubFeed feed;
	FeedpubBatch last;

	feedpub_registry_get(relid, &feed);
	feedpub_require_select(relid);
	leaves = feedpub_partition_open(&feed, heap, GetActiveSnapshot(), true);
	feedpub_history_check(&feed, leaves);
	feedpub_partition_close(leaves);
	relation_close(heap, NoLock);

	feedpub_batch_last(relid, PG_INT64_MAX, GetActiveSnapshot(), &last);
	feedpub_batch_refuse_foreign(&feed, &last);
	feedpub_page_make_durable(last.publisher, GetActiveSnapshot());
	return feedpub_page_end_of(relid, &last, GetActiveSnapshot());
}

/*
 * Check that the caller may read a feed, and that its rows and batches are of
 * this history; reads its last batch.
 */
static void
check_readable(Oid relid, FeedpubFeed *feed, FeedpubBatch *last)
{
	Relation	heap = feedpub_registry_open(relid);
	FeedpubLeaves *leaves;

	feedpub_registry_get(relid, feed);
	feedpub_require_select(relid);
	leaves = feedpub_partition_open(feed, heap, GetActiveSnapshot(), true);
	feedpub_history_check(feed, leaves);
	feedpub_partition_close(leaves);
	relation_close(heap, NoLock);

	feedpub_batch_last(relid, PG_INT64_MAX, GetActiveSnapshot(), last);
	feedpub_batch_refuse_foreign(feed, last);
}

/*
 * feed_cursor(feed regclass, feed_xid xid8, feed_pos bigint) returns text,
 * VOLATILE
 *
 * Where a consumer in xid order that stands at this stamp goes on in published
 * order: at the end of the newest batch whose snapshot sees neither that xid nor
 * a larger one.
 *
 * Nothing unread is passed: what is before that cursor has smaller xids than
 * the stamp, and of those the consumer has read all, for xid order goes by
 * them.  What is after it may come twice.  Snapshots of batches only grow, so
 * the batches that see no such xid are the first ones.  A consumer in xid order
 * gets no deletes; those before the cursor are not told.
 *
 * Needs SELECT on the table.  Errors: 42809 when it is no feed, 42501, 22023
 * for a negative position; 55000 if the row with that stamp is not published
 * yet; PF001 for a stamp of another history; PF002 if deletes after that cursor
 * have expired.
 */
Datum
feed_cursor(PG_FUNCTION_ARGS)
{
	static const char *const names[] = {"feed", "feed_xid", "feed_pos"};
	Snapshot	snapshot = GetActiveSnapshot();
	FeedpubBatch batch = {0};
	FullTransactionId xid;
	FeedpubFeed feed;
	FeedpubBatch last;
	Oid			relid;

	feedpub_argument_check(fcinfo, lengthof(names), names);
	relid = PG_GETARG_OID(0);
	xid = PG_GETARG_FULLTRANSACTIONID(1);
	if (PG_GETARG_INT64(2) < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("feed_pos must not be negative")));
	check_readable(relid, &feed, &last);
	feedpub_horizon_refuse_foreign(&feed, xid);
	if (!feedpub_batch_sees(&last.snapshot, U64FromFullTransactionId(xid)))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the row with that stamp is not published yet in feed \"%s\"",
						get_rel_name(relid)),
				 errhint("Try again, or call feed_flush() first.")));
	(void) find_batch(relid, last.sync_id, U64FromFullTransactionId(xid),
					  snapshot, &batch);
	feedpub_page_make_durable(batch.publisher, snapshot);
	PG_RETURN_TEXT_P(check_floor(relid, feedpub_page_end_of(relid, &batch, snapshot),
								 snapshot));
}

/*
 * Refuse a cursor after which deletes have expired.
 */
static text *
check_floor(Oid relid, text *cursor, Snapshot snapshot)
{
	FeedpubCursor place;
	FeedpubFloor floor;

	feedpub_cursor_parse(cursor, &place);
	feedpub_registry_floor(relid, snapshot, &floor);
	if (feedpub_registry_is_table(relid) &&
		feedpub_page_is_expired(relid, &place, &floor, snapshot))
		ereport(ERROR,
				(errcode(ERRCODE_FEED_CURSOR_EXPIRED),
				 errmsg("deletes of feed \"%s\" after that stamp have expired",
						get_rel_name(relid)),
				 errhint("Begin again from '', and with nothing.")));
	return cursor;
}

/*
 * Find the newest batch, up to a number, whose snapshot sees no xid from this
 * one on.  Returns false if there is none, and leaves *batch as it is.
 */
static bool
find_batch(Oid feed, int64 last, uint64 xid, Snapshot snapshot,
		   FeedpubBatch *batch)
{
	int64		low = 1;		/* no batch before it is wanted */
	int64		high = last;	/* nor one after it */
	bool		found = false;

	while (low <= high)
	{
		int64		middle = low + (high - low) / 2;
		FeedpubBatchScan *batches = feedpub_batch_begin(feed, middle, snapshot);
		FeedpubBatch next;

		/* numbers of batches that have been merged into others are missing */
		CHECK_FOR_INTERRUPTS();
		if (feedpub_batch_next(batches, &next) && next.sync_id <= high &&
			sees_none_from(&next.snapshot, xid))
		{
			*batch = next;
			found = true;
			low = next.sync_id + 1;
		}
		else
			high = middle - 1;
		feedpub_batch_end(batches);
	}
	return found;
}

/*
 * Is every xid from this one on unseen by a snapshot?
 */
static bool
sees_none_from(const FeedpubSnapshot *snapshot, uint64 xid)
{
	uint64		xmax = snapshot->xmax;

	/* those that were running at its end */
	for (int i = snapshot->nxip - 1; i >= 0 && snapshot->xip[i] == xmax - 1; i--)
		xmax--;
	return xmax <= xid;
}

/*
 * Check the arguments "after", max_rows, shard and shards, from the second on.
 */
static void
read_arguments(FunctionCallInfo fcinfo, FeedpubPage *page)
{
	static const char *const names[] = {NULL, "after", "max_rows"};
	int			max_rows;

	feedpub_argument_check(fcinfo, lengthof(names), names);
	feedpub_cursor_parse(PG_GETARG_TEXT_PP(1), &page->after);
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
