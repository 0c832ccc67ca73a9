/*-------------------------------------------------------------------------
 *
 * page_rows.c
 *	  A page of feed_page() in pieces: feedpub._page_rows().
 *
 * A server that sends entries one by one, as lines or as events, would have to
 * parse the object that feed_page() returns.  Here each entry is a row, of the
 * same text.  It begins with {"cursor": " and the cursor, whose length is
 * fixed.  The last row is what the page has besides, and what the server must
 * know of the feed: the cursor, whether there may be more, the table's OID, and
 * whether it is an outbox, with a space between.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/rel.h"
#include "utils/tuplestore.h"

#include "read/read.h"

PG_FUNCTION_INFO_V1(feedpub_page_rows);

/* A page being written to rows. */
typedef struct RowWriter
{
	ReturnSetInfo *rsinfo;
	FeedpubCursor last;			/* of the last entry that was written */
	Size		nbytes;
} RowWriter;

static bool write_entry(FeedpubJsonEntry *entry, void *arg);
static void put_row(RowWriter *writer, StringInfo json);

/*
 * feedpub._page_rows(feed regclass, after text DEFAULT '', max_rows int
 * DEFAULT 100, shard int DEFAULT NULL, shards int DEFAULT NULL) returns SETOF
 * text, VOLATILE
 *
 * Returns the entries of feed_page(), and a last row: "CURSOR more|end OID
 * outbox|table".  Rights, locks and errors are those of feed_page().
 */
Datum
feedpub_page_rows(PG_FUNCTION_ARGS)
{
	static const char *const names[] = {"feed"};
	FeedpubPage page = {0};
	RowWriter	writer = {.rsinfo = (ReturnSetInfo *) fcinfo->resultinfo};
	StringInfoData json;
	FeedpubCursor cursor;
	char		buffer[FEEDPUB_CURSOR_LENGTH + 1];
	bool		whole;

	feedpub_argument_check(fcinfo, lengthof(names), names);
	feedpub_page_arguments(fcinfo, &page.request);
	page.heap = feedpub_registry_open(PG_GETARG_OID(0));
	feedpub_page_read(&page);
	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);

	/* the text's header, then an entry: no copy but the row's */
	initStringInfo(&json);
	appendStringInfoSpaces(&json, VARHDRSZ);
	whole = feedpub_json_entries(&page, &json, write_entry, &writer);

	cursor = whole ? page.passed : writer.last;
	feedpub_cursor_print(&cursor, buffer);
	buffer[FEEDPUB_CURSOR_LENGTH] = '\0';
	appendStringInfo(&json, "%s %s %u %s", buffer,
					 page.more || !whole ? "more" : "end", page.feed.relid,
					 page.feed.is_outbox ? "outbox" : "table");
	put_row(&writer, &json);
	relation_close(page.heap, NoLock);
	return (Datum) 0;
}

/*
 * An entry of the page has been written: make it a row.  Takes as many as a
 * page may be large.
 */
static bool
write_entry(FeedpubJsonEntry *entry, void *arg)
{
	RowWriter  *writer = arg;

	writer->last = entry->row->cursor;
	writer->nbytes += entry->json->len - VARHDRSZ;
	put_row(writer, entry->json);
	return writer->nbytes < FEEDPUB_MAX_PAGE_BYTES;
}

/*
 * Make what is in the buffer a row, and leave only the room of the header.
 */
static void
put_row(RowWriter *writer, StringInfo json)
{
	Datum		value = PointerGetDatum(json->data);
	bool		isnull = false;

	SET_VARSIZE(json->data, json->len);
	tuplestore_putvalues(writer->rsinfo->setResult, writer->rsinfo->setDesc,
						 &value, &isnull);
	json->len = VARHDRSZ;
}
