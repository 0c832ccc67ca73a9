/*-------------------------------------------------------------------------
 *
 * page_rows.c
 *	  Reading a feed in published order as rows: feed_read().
 *
 * feedpub_page_read() reads the page; here it becomes rows.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/tuplestore.h"

#include "read/read.h"

PG_FUNCTION_INFO_V1(feed_read);

/*
 * Does the page need a cursor of its own, because its last row's is not how
 * far it got?
 */
static bool
ends_filtered(const FeedpubPage *page)
{
	/* a full page needs none: what was passed after it is passed again */
	if (page->nrows >= page->request.max_rows)
		return false;
	if (page->nrows > 0)
		return feedpub_cursor_compare(&page->rows[page->nrows - 1].cursor, &page->passed) != 0;
	return page->request.latest ||
		feedpub_cursor_compare(&page->passed, &page->request.after) != 0;
}

/*
 * feed_read(feed anyelement, after text DEFAULT '', max_rows int DEFAULT 100,
 * shard int DEFAULT NULL, shards int DEFAULT NULL, types text[] DEFAULT NULL)
 * returns TABLE (cursor text, op text, entry anyelement), VOLATILE
 *
 * Returns a page of a feed in published order, called as feed_read(NULL::kv,
 * '', 100): at most max_rows entries (and at most feedpub.max_page_rows) after
 * the cursor "after"; '' and 'earliest' are the beginning, 'latest' is the end.
 * Each entry has the cursor to go on from after it.
 *
 * op is 'upsert'.  In a table feed it can also be 'delete', whose entry has
 * the key and else nulls, and 'truncate', whose entry has only nulls, or
 * 'truncate_shard' if it is read with shards, and then concerns one.  A last
 * entry 'end', which has no row, says how far the page got if its last row
 * does not.  The page after '' or 'latest' that finds nothing has one: with its
 * cursor the consumer is told of whatever is removed afterwards.  A key that is no value
 * of its type any more is null too; feed_page() has the error.
 *
 * With shard and shards, only entries are returned whose keys are in shard, 0
 * to shards - 1 (feed/key.c).  With types, only messages of these (types.c).
 *
 * Needs SELECT on the table and obeys its row security.  Takes ACCESS SHARE on
 * the table.  Works in read-only transactions and on standbys.  Errors: 42809
 * if it is no feed, 22023 for a malformed cursor, a bad max_rows or shard,
 * PF001 for a cursor from another history, PF002 for one that has expired,
 * 42501; 40001 if the transaction's snapshot is older than the table, 55000 if
 * the feed lacks something or this transaction has altered it, 0A000 if it
 * cannot be divided into shards, or has no types.
 */
Datum
feed_read(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	FeedpubPage page = {0};
	Oid			relid = feedpub_access_argument(fcinfo, 0);
	Datum		values[4] = {0};
	bool		nulls[4] = {false};
	Datum		ops[FEEDPUB_NOPS];
	text	   *cursor;
	const FeedpubCursor *before = NULL;

	feedpub_page_arguments(fcinfo, relid, &page.request);
	page.heap = feedpub_registry_open(relid);
	feedpub_page_read(&page);

	feedpub_access_begin_result(fcinfo);
	nulls[3] = !page.feed.is_changes;
	cursor = feedpub_cursor_text(&page.request.after);
	values[0] = PointerGetDatum(cursor);
	for (int i = 0; i < lengthof(ops); i++)
		ops[i] = CStringGetTextDatum(feedpub_changes_op_names[i]);
	for (int i = 0; i < page.nrows; i++)
	{
		FeedpubPageRow *row = &page.rows[i];

		SET_VARSIZE(cursor, VARHDRSZ + feedpub_cursor_print_next(&row->cursor, before, VARDATA(cursor)));
		before = &row->cursor;
		values[1] = ops[row->op];
		values[3] = BoolGetDatum(row->moment);
		values[2] = heap_copy_tuple_as_datum(row->entry, RelationGetDescr(page.heap));
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
		pfree(DatumGetPointer(values[2]));
	}
	if (ends_filtered(&page))
	{
		SET_VARSIZE(cursor, VARHDRSZ + feedpub_cursor_print(&page.passed, VARDATA(cursor)));
		values[1] = CStringGetTextDatum("end");
		nulls[2] = true;
		values[3] = BoolGetDatum(page.moment);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	relation_close(page.heap, NoLock);
	return (Datum) 0;
}
