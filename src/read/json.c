/*-------------------------------------------------------------------------
 *
 * json.c
 *	  Entries of a page in the wire format: feed_page() and feed_poll().
 *
 * An entry is {"cursor": "...", "op": "...", "key": {...}, "row": {...},
 * "xid": "...", "published_at": "..."}, of an outbox as of a table.  "key" has
 * the columns of the key, of an outbox message_key.  It is null if there is no
 * key, if the key is null, and of a TRUNCATE.  "row" has all columns but those
 * of the stamp; an entry of a delete or a TRUNCATE has none.  "xid" is a
 * string, because large numbers in JSON lose digits.  "published_at" is when
 * the batch was published, in UTC.  Both are null in the initial snapshot,
 * whose rows have no stamp and are in no batch.
 *
 * An entry of a change feed has "op", "relation" and "key" of its row, and, if
 * they are not null, "old_key", "row", "old", "error" and "statement"; and at
 * the end "moment": true, if it ends a moment of the source (changes.c).  The
 * values of type json are there as they are.  Columns that the owner has added
 * are left out.
 *
 * feed_poll() returns key and row as columns.  It gets these two members
 * alone, made by the same functions.
 *
 * If the JSON of a row cannot be made, because it would be too large or an
 * output function fails, the rows after it are delivered all the same.  Its
 * entry has "error", SQLSTATE and message, instead of "row".  So has a delete
 * whose key cannot be read, instead of the key.  The same holds for a row that
 * the client's encoding cannot have: the server would find that when it sends
 * the page, and end it.  So each object is converted here, too, if the
 * encodings differ, and dropped.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/datetime.h"
#include "utils/json.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "read/read.h"

/* Room for a time as text. */
#define TIME_LENGTH			(MAXDATELEN + 1)

/* Entries being made of a page. */
typedef struct JsonMaker
{
	const FeedpubPage *page;
	StringInfo	out;
	bool		is_whole;		/* an entry, not only its key and row */
	bool		is_sent;		/* to the client, not kept */
	FeedpubJsonTake take;
	void	   *arg;
	int			next;			/* the row to be made an entry */
	int			length;			/* of the buffer without it */
	bool		ended;			/* the caller takes no more */
	const char *error;			/* of a broken row, ... */
	bool		with_key;		/* ... whose key may be fine */
	FeedpubJsonEntry entry;
	FeedpubJsonValues *values;
	FeedpubJsonShape row;
	FeedpubJsonShape key;		/* of no columns if there is no key */
	TupleDesc	desc;			/* the table's */
	Datum	   *columns;		/* of the entry */
	bool	   *nulls;
	TimestampTz time;			/* the last one that was written, ... */
	char		time_text[TIME_LENGTH]; /* ... or "" */
	MemoryContext context;		/* of one entry being made */
} JsonMaker;

static bool make(JsonMaker *maker, const FeedpubPage *page, StringInfo out);
static void begin(JsonMaker *maker, const FeedpubPage *page, StringInfo out);
static int	find_key(const FeedpubPage *page, AttrNumber *attnos);
static void make_entries(void *arg);
static void make_broken_entry(void *arg);
static void begin_entry(JsonMaker *maker);
static void end_entry(JsonMaker *maker);
static void append_end(JsonMaker *maker);
static void append_key(JsonMaker *maker);
static void append_row(JsonMaker *maker);
static void append_change(JsonMaker *maker, FeedpubChangeColumn column);
static void begin_text(StringInfo out);
static void end_text(StringInfo out, int start);
static void append_object(JsonMaker *maker, const FeedpubJsonShape *shape);
static void append_time(JsonMaker *maker, TimestampTz time);
static void try_to_send(const char *s, int len);
static void try_to_send_text(void *arg);

#define APPEND(out, literal) \
	appendBinaryStringInfo((out), (literal), sizeof(literal) - 1)

/*
 * Append the rows of a page to a buffer, one after the other, each as an entry
 * of the wire format, and call take(entry, arg) for each. take() may take what
 * it needs from the buffer, may leave there as much as it likes, and returns
 * whether it takes another.  Returns whether all have been taken.
 */
bool
feedpub_json_entries(const FeedpubPage *page, StringInfo out,
					 FeedpubJsonTake take, void *arg)
{
	JsonMaker	maker = {.is_whole = true, .is_sent = true, .take = take, .arg = arg};

	return make(&maker, page, out);
}

/*
 * The same with key and row of each entry alone, each as a text value, whose
 * header is before it in the buffer.  is_sent tells whether they are for the
 * client.
 */
bool
feedpub_json_members(const FeedpubPage *page, bool is_sent, StringInfo out,
					 FeedpubJsonTake take, void *arg)
{
	JsonMaker	maker = {.is_sent = is_sent, .take = take, .arg = arg};

	return make(&maker, page, out);
}

static bool
make(JsonMaker *maker, const FeedpubPage *page, StringInfo out)
{
	begin(maker, page, out);
	while ((maker->error = feedpub_attempt(make_entries, maker)) != NULL)
	{
		maker->with_key = true;
		if (feedpub_attempt(make_broken_entry, maker) == NULL)
			continue;
		maker->with_key = false;
		if (feedpub_attempt(make_broken_entry, maker) == NULL)
			continue;

		/* the message has what cannot be sent: only its SQLSTATE */
		maker->error = pnstrdup(maker->error, 5);
		make_broken_entry(maker);
	}
	out->len = maker->length;
	MemoryContextDelete(maker->context);
	return maker->next == page->nrows;
}

static void
begin(JsonMaker *maker, const FeedpubPage *page, StringInfo out)
{
	TupleDesc	desc = RelationGetDescr(page->heap);
	AttrNumber *attnos = palloc(desc->natts * sizeof(AttrNumber));
	AttrNumber	keys[INDEX_MAX_KEYS];
	int			natts = 0;

	maker->page = page;
	maker->out = out;
	maker->length = out->len;
	maker->entry.json = out;
	maker->values = feedpub_jsonvalue_begin(false);
	maker->desc = desc;
	maker->columns = palloc(desc->natts * sizeof(Datum));
	maker->nulls = palloc(desc->natts * sizeof(bool));
	maker->context = AllocSetContextCreate(CurrentMemoryContext,
										   "feedpub JSON entry",
										   ALLOCSET_DEFAULT_SIZES);
	for (int i = 0; i < desc->natts; i++)
	{
		if (!TupleDescAttr(desc, i)->attisdropped &&
			i + 1 != page->feed.xid_attno && i + 1 != page->feed.pos_attno)
			attnos[natts++] = i + 1;
	}
	feedpub_jsonvalue_shape(maker->values, desc, natts, attnos, &maker->row);
	feedpub_jsonvalue_shape(maker->values, desc, find_key(page, keys), keys, &maker->key);
}

/*
 * The columns of the key; returns how many there are.
 */
static int
find_key(const FeedpubPage *page, AttrNumber *attnos)
{
	if (OidIsValid(page->feed.keyid))
		return feedpub_key_columns(page->feed.keyid, attnos);
	attnos[0] = page->feed.is_outbox ?
		get_attnum(page->feed.relid, "message_key") :
		InvalidAttrNumber;
	return attnos[0] != InvalidAttrNumber ? 1 : 0;
}

/*
 * Make the entries from the next row on, up to the end of the page, or until
 * the caller takes no more.
 */
static void
make_entries(void *arg)
{
	JsonMaker  *maker = arg;
	const FeedpubPage *page = maker->page;

	while (maker->next < page->nrows && !maker->ended)
	{
		CHECK_FOR_INTERRUPTS();
		if (page->rows[maker->next].error != NULL)
		{
			maker->error = page->rows[maker->next].error;
			maker->with_key = false;
			make_broken_entry(maker);
			continue;
		}
		begin_entry(maker);
		append_key(maker);
		if (page->feed.is_changes)
		{
			append_change(maker, FEEDPUB_CHANGE_ROW);
			append_change(maker, FEEDPUB_CHANGE_OLD);
			append_change(maker, FEEDPUB_CHANGE_ERROR);
			append_change(maker, FEEDPUB_CHANGE_STATEMENT);
		}
		else if (maker->entry.row->op == FEEDPUB_OP_UPSERT)
			append_row(maker);
		end_entry(maker);
	}
}

/*
 * Make the next row an entry with an error instead of its value.
 */
static void
make_broken_entry(void *arg)
{
	JsonMaker  *maker = arg;

	begin_entry(maker);
	maker->entry.error = maker->error;
	if (maker->is_sent)
		try_to_send(maker->error, strlen(maker->error));
	if (maker->with_key)
		append_key(maker);
	else if (maker->is_whole)
		appendStringInfoString(maker->out, maker->page->feed.is_changes ? ", \"relation\": null, \"key\": null" : ", \"key\": null");
	if (maker->is_whole)
	{
		APPEND(maker->out, ", \"error\": ");
		feedpub_jsonvalue_limit(maker->values, maker->out);
		feedpub_jsonvalue_string(maker->values, maker->out, maker->error,
								 strlen(maker->error));
	}
	end_entry(maker);
}

/*
 * The next row's entry begins where the last one ended.  A failed attempt may
 * have left something there.
 */
static void
begin_entry(JsonMaker *maker)
{
	FeedpubJsonEntry *entry = &maker->entry;
	FeedpubPageRow *row = &maker->page->rows[maker->next];
	StringInfo	out = maker->out;

	out->len = maker->length;
	entry->row = row;
	entry->error = NULL;
	entry->key_length = 0;
	entry->value_length = 0;
	MemSet(entry->given, 0, sizeof(entry->given));
	feedpub_jsonvalue_limit(maker->values, out);
	MemoryContextReset(maker->context);
	heap_deform_tuple(row->entry, maker->desc, maker->columns, maker->nulls);
	if (!maker->is_whole)
		return;

	APPEND(out, "{\"cursor\": \"");
	enlargeStringInfo(out, FEEDPUB_CURSOR_MAX_LENGTH);
	out->len += feedpub_cursor_print(&row->cursor, out->data + out->len);
	APPEND(out, "\", \"op\": \"");
	appendStringInfoString(out, feedpub_changes_op_names[row->op]);
	APPEND(out, "\"");
}

/*
 * Give the entry to the caller.
 */
static void
end_entry(JsonMaker *maker)
{
	if (maker->is_whole)
		append_end(maker);
	maker->ended = !maker->take(&maker->entry, maker->arg);
	maker->next++;
	maker->length = maker->out->len;
}

/*
 * Append what follows the value.
 */
static void
append_end(JsonMaker *maker)
{
	const FeedpubPageRow *row = maker->entry.row;
	StringInfo	out = maker->out;

	if (row->xid != 0)
	{
		char		xid[MAXINT8LEN + 1];

		APPEND(out, ", \"xid\": \"");
		appendBinaryStringInfo(out, xid, pg_ulltoa_n(row->xid, xid));
		APPEND(out, "\", \"published_at\": ");
	}
	else
		APPEND(out, ", \"xid\": null, \"published_at\": ");
	if (row->published_at != 0)
		append_time(maker, row->published_at);
	else
		APPEND(out, "null");
	if (row->moment)
		APPEND(out, ", \"moment\": true");
	APPEND(out, "}");
}

/*
 * Append the key of the entry's row.
 */
static void
append_key(JsonMaker *maker)
{
	FeedpubJsonEntry *entry = &maker->entry;
	StringInfo	out = maker->out;
	const FeedpubJsonShape *key = &maker->key;
	bool		is_null;

	if (maker->page->feed.is_changes)
	{
		append_change(maker, FEEDPUB_CHANGE_RELATION);
		append_change(maker, FEEDPUB_CHANGE_KEY);
		append_change(maker, FEEDPUB_CHANGE_OLD_KEY);
		return;
	}
	is_null = key->natts == 0 ||
		entry->row->op >= FEEDPUB_OP_TRUNCATE ||
		(maker->page->feed.is_outbox && maker->nulls[key->columns[0].attno - 1]);

	if (is_null)
	{
		if (maker->is_whole)
			APPEND(out, ", \"key\": null");
		return;
	}
	if (maker->is_whole)
		APPEND(out, ", \"key\": ");
	else
		begin_text(out);
	entry->key = out->len;
	append_object(maker, key);
	entry->key_length = out->len - entry->key;
	if (!maker->is_whole)
		end_text(out, entry->key);
}

static void
append_row(JsonMaker *maker)
{
	FeedpubJsonEntry *entry = &maker->entry;
	StringInfo	out = maker->out;

	if (maker->is_whole)
		APPEND(out, ", \"row\": ");
	else
		begin_text(out);
	entry->value = out->len;
	append_object(maker, &maker->row);
	entry->value_length = out->len - entry->value;
	if (!maker->is_whole)
		end_text(out, entry->value);
}

/*
 * Append a column of a change.  If the entry is not whole, key and row are texts
 * there, and of the others it is only seen whether they can be sent.
 */
static void
append_change(JsonMaker *maker, FeedpubChangeColumn column)
{
	FeedpubJsonEntry *entry = &maker->entry;
	StringInfo	out = maker->out;
	const FeedpubChangeColumnType *type = &feedpub_change_columns[column];
	int			i = maker->page->change[column] - 1;
	int			start;
	MemoryContext oldcontext;

	if (maker->nulls[i])
	{
		if (maker->is_whole && column <= FEEDPUB_CHANGE_KEY)
			appendStringInfo(out, ", \"%s\": null", type->name);
		return;
	}
	if (maker->is_whole)
		appendStringInfo(out, ", \"%s\": ", type->name);
	else
		begin_text(out);
	start = out->len;
	oldcontext = MemoryContextSwitchTo(maker->context);
	feedpub_jsonvalue_append(maker->values, out, type->type, maker->columns[i]);
	if (column == FEEDPUB_CHANGE_ERROR)
		entry->error = TextDatumGetCString(maker->columns[i]);
	MemoryContextSwitchTo(oldcontext);
	if (maker->is_sent)
		try_to_send(out->data + start, out->len - start);
	entry->given[column] = true;
	entry->columns[column] = maker->columns[i];
	if (column == FEEDPUB_CHANGE_KEY)
	{
		entry->key = start;
		entry->key_length = out->len - start;
	}
	else if (column == FEEDPUB_CHANGE_ROW)
	{
		entry->value = start;
		entry->value_length = out->len - start;
	}
	if (!maker->is_whole)
		end_text(out, start);
}

/*
 * What is appended next is a text, whose header goes before it.
 */
static void
begin_text(StringInfo out)
{
	appendStringInfoSpaces(out, INTALIGN(out->len) - out->len + VARHDRSZ);
}

static void
end_text(StringInfo out, int start)
{
	SET_VARSIZE(out->data + start - VARHDRSZ, VARHDRSZ + out->len - start);
}

/*
 * The key of an entry of feedpub_json_members(), which has one, in the buffer.
 */
text *
feedpub_json_key(const FeedpubJsonEntry *entry)
{
	return (text *) (entry->json->data + entry->key - VARHDRSZ);
}

/*
 * And its row.
 */
text *
feedpub_json_row(const FeedpubJsonEntry *entry)
{
	return (text *) (entry->json->data + entry->value - VARHDRSZ);
}

/*
 * And, of a change, the value of a column, not out of line; 0 if it has none
 * that can be delivered.
 */
Datum
feedpub_json_change(const FeedpubJsonEntry *entry, FeedpubChangeColumn column)
{
	if (!entry->given[column])
		return (Datum) 0;
	return feedpub_change_columns[column].type == INT8OID ?
		entry->columns[column] :
		PointerGetDatum(PG_DETOAST_DATUM(entry->columns[column]));
}

/*
 * Append an object of columns of the entry's row.
 */
static void
append_object(JsonMaker *maker, const FeedpubJsonShape *shape)
{
	StringInfo	out = maker->out;
	int			start = out->len;

	feedpub_jsonvalue_object(maker->values, out, shape, NULL, maker->columns, maker->nulls, maker->context);
	if (maker->is_sent)
		try_to_send(out->data + start, out->len - start);
}

/*
 * Raise the error that the server would raise if it sent this to the client.
 * If the encodings are the same, nothing is done.
 */
static void
try_to_send(const char *s, int len)
{
	char	   *converted = pg_server_to_client(s, len);

	if (converted != s)
		pfree(converted);
}

/*
 * The same for a text that may be NULL; returns that error, or NULL.
 */
char *
feedpub_json_refused(const text *json)
{
	return json == NULL ? NULL : feedpub_attempt(try_to_send_text, unconstify(text *, json));
}

static void
try_to_send_text(void *arg)
{
	text	   *json = arg;

	try_to_send(VARDATA_ANY(json), VARSIZE_ANY_EXHDR(json));
}

/*
 * Append a time in UTC as a string.  Rows of one batch have the same.
 */
static void
append_time(JsonMaker *maker, TimestampTz time)
{
	if (maker->time_text[0] == '\0' || maker->time != time)
	{
		int			utc = 0;

		JsonEncodeDateTime(maker->time_text, TimestampTzGetDatum(time),
						   TIMESTAMPTZOID, &utc);
		maker->time = time;
	}
	appendStringInfoChar(maker->out, '"');
	appendStringInfoString(maker->out, maker->time_text);
	appendStringInfoChar(maker->out, '"');
}
