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

#include "read/read.h"

PG_FUNCTION_INFO_V1(feed_read);
PG_FUNCTION_INFO_V1(feed_page);

/* A page being written as JSON. */
typedef struct PageWriter
{
	StringInfoData json;
	FeedpubPageRow *last;		/* the last row that was written */
} PageWriter;

static bool write_entry(FeedpubJsonEntry *entry, void *arg);
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
	Oid			relid = feedpub_access_argument(fcinfo);
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
