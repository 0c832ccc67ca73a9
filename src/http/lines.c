/*-------------------------------------------------------------------------
 *
 * lines.c
 *	  A page of feed_page() as lines: feedpub._page_lines(),
 *	  feedpub._page_events(), feedpub._page_records(), feedpub._page_messages().
 *
 * A server that sends entries one by one, as lines or as events, would have to
 * parse the object that feed_page() returns.  Here each entry is a line, of the
 * same text.  It begins with {"cursor": " and the cursor, whose length is
 * fixed.  The last line is what the page has besides, and what the server must
 * know of the feed: the cursor, whether there may be more, the table's OID,
 * what kind of feed it is, and for how many s deletes are retained (-1: for
 * ever, or there are none), with a space between.  If a moment of a change feed
 * ends with the page, its kind is "changes,moment".
 *
 * feedpub._page_events() returns the same page with CloudEvents in place of
 * entries, and feedpub._page_records() with records (event.c);
 * feedpub._page_messages() with the messages of Durable Streams (message.c),
 * which may be fewer.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "http/http.h"
#include "retention/retention.h"

PG_FUNCTION_INFO_V1(feedpub_page_lines);
PG_FUNCTION_INFO_V1(feedpub_page_events);
PG_FUNCTION_INFO_V1(feedpub_page_records);
PG_FUNCTION_INFO_V1(feedpub_page_messages);

/*
 * A page ends with the entry after which its text has this many bytes: the
 * server holds it until its client has taken it, however slowly.
 */
#define MAX_BYTES	(8 * 1024 * 1024)

/* The same of records: a page is being sent while the next one is asked for. */
#define MAX_RECORDS_BYTES	(1024 * 1024)

/*
 * Makes what stands for an entry, which begins at "start" in its buffer, in
 * events->out; returns false if nothing does.
 */
typedef bool (*Make)(FeedpubEvents *events, FeedpubJsonEntry *entry, int start);

/* A page being written. */
typedef struct LineWriter
{
	StringInfoData text;
	Make		make;			/* or NULL: entries stay as they are */
	FeedpubEvents *events;
	const FeedpubPageRow *end;	/* after which the page ends, or NULL */
	int			line;			/* where the line begins that is being written */
	const FeedpubPageRow *last;
} LineWriter;

static Datum write_page(FunctionCallInfo fcinfo, Make make);
static bool end_line(FeedpubJsonEntry *entry, void *arg);
static bool make_event(LineWriter *writer, FeedpubJsonEntry *entry);
static void replace_all(char *text, char *end, char c);

/*
 * feedpub._page_lines(feed regclass, after text DEFAULT '', max_rows int
 * DEFAULT 100, shard int DEFAULT NULL, shards int DEFAULT NULL, types text[]
 * DEFAULT NULL) returns text, VOLATILE
 *
 * Returns the entries of feed_page(), a line each, and a last line without a
 * line break: "CURSOR more|end OID KIND SECONDS".  Rights, locks and errors
 * are those of feed_page().
 */
Datum
feedpub_page_lines(PG_FUNCTION_ARGS)
{
	return write_page(fcinfo, NULL);
}

/*
 * feedpub._page_events(feed regclass, after text DEFAULT '', max_rows int
 * DEFAULT 100, shard int DEFAULT NULL, shards int DEFAULT NULL, types text[]
 * DEFAULT NULL) returns text, VOLATILE
 *
 * The same with CloudEvents.
 */
Datum
feedpub_page_events(PG_FUNCTION_ARGS)
{
	return write_page(fcinfo, feedpub_event_make);
}

/*
 * feedpub._page_records(feed regclass, after text DEFAULT '', max_rows int
 * DEFAULT 100, shard int DEFAULT NULL, shards int DEFAULT NULL, types text[]
 * DEFAULT NULL) returns text, VOLATILE
 *
 * The same with records.
 */
Datum
feedpub_page_records(PG_FUNCTION_ARGS)
{
	return write_page(fcinfo, feedpub_event_record);
}

/*
 * feedpub._page_messages(feed regclass, after text DEFAULT '', max_rows int
 * DEFAULT 100, shard int DEFAULT NULL, shards int DEFAULT NULL, types text[]
 * DEFAULT NULL) returns text, VOLATILE
 *
 * The same with messages.
 */
Datum
feedpub_page_messages(PG_FUNCTION_ARGS)
{
	return write_page(fcinfo, feedpub_message_make);
}

static Datum
write_page(FunctionCallInfo fcinfo, Make make)
{
	FeedpubPage page = {0};
	LineWriter	writer = {.make = make};
	StringInfo	text = &writer.text;
	FeedpubCursor cursor;
	bool		whole;

	feedpub_argument_check(fcinfo, 0, 1);
	feedpub_page_arguments(fcinfo, PG_GETARG_OID(0), &page.request);
	page.heap = feedpub_registry_open(PG_GETARG_OID(0));
	feedpub_page_read(&page);
	if (make != NULL)
		writer.events = feedpub_event_begin(&page);
	if (make == feedpub_message_make)
		writer.end = feedpub_message_end(&page);

	/* the text's header, then the lines: no copy */
	initStringInfo(text);
	appendStringInfoSpaces(text, VARHDRSZ);
	writer.line = text->len;
	whole = feedpub_json_entries(&page, text, end_line, &writer);

	cursor = whole ? page.passed : writer.last->cursor;
	appendStringInfo(text, "%s %s %u %s " INT64_FORMAT,
					 text_to_cstring(feedpub_cursor_text(&cursor)),
					 page.more || !whole ? "more" : "end", page.feed.relid,
					 !page.feed.is_outbox							 ? "table" :
						 !page.feed.is_changes						 ? "outbox" :
						 (whole ? page.moment : writer.last->moment) ? "changes,moment" :
																	   "changes",
					 feedpub_retention_of_deletes(&page.feed));
	relation_close(page.heap, NoLock);
	SET_VARSIZE(text->data, text->len);
	PG_RETURN_TEXT_P((struct varlena *) text->data);
}

/*
 * An entry of the page has been written: make it a line.  A line break in it is
 * between the parts of a value of type json, where a space means the same; in a
 * string it is escaped.  Takes as many entries as the page may be large.
 */
static bool
end_line(FeedpubJsonEntry *entry, void *arg)
{
	LineWriter *writer = arg;
	StringInfo	text = entry->json;

	writer->last = entry->row;
	if (writer->events != NULL && !make_event(writer, entry))
	{
		text->len = writer->line;
		return entry->row != writer->end;
	}
	replace_all(text->data + writer->line, text->data + text->len, '\n');
	replace_all(text->data + writer->line, text->data + text->len, '\r');
	appendStringInfoChar(text, '\n');
	writer->line = text->len;
	return text->len < (writer->make == feedpub_event_record ? MAX_RECORDS_BYTES : MAX_BYTES) &&
		entry->row != writer->end;
}

/* Put the event of an entry where the entry is; returns false if it has none. */
static bool
make_event(LineWriter *writer, FeedpubJsonEntry *entry)
{
	FeedpubEvents *events = writer->events;
	MemoryContext oldcontext = MemoryContextSwitchTo(events->context);
	bool		made;

	resetStringInfo(&events->out);
	feedpub_jsonvalue_limit(events->values, &events->out);
	heap_deform_tuple(entry->row->entry, events->desc, events->columns, events->nulls);
	made = writer->make(events, entry, writer->line);
	MemoryContextSwitchTo(oldcontext);
	entry->json->len = writer->line;
	appendBinaryStringInfo(entry->json, events->out.data, events->out.len);
	MemoryContextReset(events->context);
	return made;
}

/* Make each of these characters a space. */
static void
replace_all(char *text, char *end, char c)
{
	while ((text = memchr(text, c, end - text)) != NULL)
		*text = ' ';
}
