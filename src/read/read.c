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

	feedpub_page_arguments(fcinfo, &page.request);
	page.heap = feedpub_registry_open(relid);
	feedpub_page_read(&page);

	InitMaterializedSRF(fcinfo, 0);
	cursor = feedpub_cursor_text(&page.request.after);
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
