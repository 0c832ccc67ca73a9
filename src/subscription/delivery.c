/*-------------------------------------------------------------------------
 *
 * delivery.c
 *	  What feed_poll() and feed_poll_rows() return: a page, with receipts.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/tuplestore.h"

#include "subscription/subscription.h"

/* columns of feed_poll() */
enum
{
	POLL_RECEIPT,
	POLL_CURSOR,
	POLL_OP,
	POLL_KEY,
	POLL_ROW,
	POLL_XID,
	POLL_PUBLISHED_AT,
	POLL_ATTEMPT,
	POLL_ERROR,
	POLL_SHARD,
	POLL_RELATION,
	POLL_OLD_KEY,
	POLL_OLD,
	POLL_STATEMENT,
	POLL_MOMENT,
	POLL_COLUMNS
};

/* columns of feed_poll_rows(), by those of feed_poll(); the row is an entry */
static const int rows_columns[] = {
	POLL_RECEIPT, POLL_CURSOR, POLL_OP, POLL_ROW, POLL_XID,
	POLL_PUBLISHED_AT, POLL_ATTEMPT, POLL_SHARD, POLL_MOMENT};

/* columns of feed_poll() that only change feeds have */
static const struct
{
	int			column;
	FeedpubChangeColumn change;
} changes[] = {
	{POLL_RELATION, FEEDPUB_CHANGE_RELATION},
	{POLL_OLD_KEY, FEEDPUB_CHANGE_OLD_KEY},
	{POLL_OLD, FEEDPUB_CHANGE_OLD},
	{POLL_STATEMENT, FEEDPUB_CHANGE_STATEMENT},
};

/* What is being returned. */
typedef struct Writer
{
	ReturnSetInfo *rsinfo;
	const FeedpubDelivery *delivery;
	text	   *receipt;
	text	   *cursor;
	Datum		ops[FEEDPUB_NOPS];
	uint64		xid;			/* of the entry before */
	Datum		xid_text;
	Datum		values[POLL_COLUMNS];
	bool		nulls[POLL_COLUMNS];
} Writer;

static void put_rows(Writer *writer);
static void begin(Writer *writer, const text *name);
static void set_entry(Writer *writer, const FeedpubPageRow *row);
static void set(Writer *writer, int column, Datum value);
static bool put_entry(FeedpubJsonEntry *entry, void *arg);
static void put_kept(Writer *writer);
static void put(Writer *writer);

/*
 * Return what a poll has found: as JSON, or as rows of the table.
 */
void
feedpub_delivery_put(FunctionCallInfo fcinfo, const text *name,
					 const FeedpubDelivery *delivery, bool as_rows)
{
	Writer		writer = {.rsinfo = (ReturnSetInfo *) fcinfo->resultinfo, .delivery = delivery};
	StringInfoData json;

	begin(&writer, name);
	writer.values[POLL_SHARD] = Int32GetDatum(delivery->shard->shard);
	if (as_rows)
		put_rows(&writer);
	else if (delivery->retried != NULL && delivery->retried->row.entry == NULL)
		put_kept(&writer);
	else
	{
		initStringInfo(&json);
		(void) feedpub_json_members(delivery->page, true, &json, put_entry, &writer);
	}
}

/*
 * Return rows of the table.  If the row of a parked message is gone, entry is
 * NULL.
 */
static void
put_rows(Writer *writer)
{
	const FeedpubPage *page = writer->delivery->page;

	for (int i = 0; i < page->nrows; i++)
	{
		const FeedpubPageRow *row = &page->rows[i];
		Datum		values[lengthof(rows_columns)];
		bool		nulls[lengthof(rows_columns)];

		CHECK_FOR_INTERRUPTS();
		set_entry(writer, row);
		writer->nulls[POLL_ROW] = row->entry == NULL;
		if (row->entry != NULL)
			writer->values[POLL_ROW] = heap_copy_tuple_as_datum(row->entry, RelationGetDescr(page->heap));
		for (int j = 0; j < lengthof(rows_columns); j++)
		{
			values[j] = writer->values[rows_columns[j]];
			nulls[j] = writer->nulls[rows_columns[j]];
		}
		tuplestore_putvalues(writer->rsinfo->setResult, writer->rsinfo->setDesc, values, nulls);
		if (row->entry != NULL)
			pfree(DatumGetPointer(writer->values[POLL_ROW]));
	}
}

static void
begin(Writer *writer, const text *name)
{
	const FeedpubShard *shard = writer->delivery->shard;
	const FeedpubRetried *retried = writer->delivery->retried;
	FeedpubReceipt receipt = {0};

	receipt.kind = retried != NULL ? FEEDPUB_RECEIPT_RETRY :
		shard->consumer != NULL	   ? FEEDPUB_RECEIPT_LEASED :
									 FEEDPUB_RECEIPT_PLAIN;
	receipt.shard = shard->shard;
	receipt.state = retried != NULL ? retried->state : shard->state;
	receipt.page = feedpub_receipt_draw();
	receipt.name = feedpub_receipt_name(name);

	/* the receipt's end and the whole cursor change with each entry */
	writer->receipt = palloc(VARHDRSZ + FEEDPUB_RECEIPT_PREFIX + FEEDPUB_CURSOR_LENGTH + 1);
	SET_VARSIZE(writer->receipt, VARHDRSZ + FEEDPUB_RECEIPT_PREFIX + FEEDPUB_CURSOR_LENGTH);
	feedpub_receipt_print(&receipt, VARDATA(writer->receipt));
	writer->cursor = palloc(VARHDRSZ + FEEDPUB_CURSOR_LENGTH + 1);
	SET_VARSIZE(writer->cursor, VARHDRSZ + FEEDPUB_CURSOR_LENGTH);
	writer->values[POLL_RECEIPT] = PointerGetDatum(writer->receipt);
	writer->values[POLL_CURSOR] = PointerGetDatum(writer->cursor);
	for (int i = 0; i < lengthof(writer->ops); i++)
		writer->ops[i] = CStringGetTextDatum(feedpub_changes_op_names[i]);
}

/*
 * Set what both forms have of an entry.  Its transaction id is mostly that of
 * the entry before; a row of the initial snapshot has none.
 */
static void
set_entry(Writer *writer, const FeedpubPageRow *row)
{
	(void) feedpub_cursor_print(&row->cursor, VARDATA(writer->cursor));
	memcpy(VARDATA(writer->receipt) + FEEDPUB_RECEIPT_PREFIX,
		   VARDATA(writer->cursor), FEEDPUB_CURSOR_LENGTH);
	writer->values[POLL_OP] = writer->ops[row->op];
	if (row->xid != writer->xid)
	{
		char		buffer[MAXINT8LEN + 1];

		writer->xid = row->xid;
		writer->xid_text = PointerGetDatum(cstring_to_text_with_len(buffer, pg_ulltoa_n(row->xid, buffer)));
	}
	writer->nulls[POLL_XID] = row->xid == 0;
	writer->values[POLL_XID] = writer->xid_text;
	writer->nulls[POLL_PUBLISHED_AT] = row->published_at == 0;
	writer->values[POLL_PUBLISHED_AT] = TimestampTzGetDatum(row->published_at);
	writer->values[POLL_ATTEMPT] = Int32GetDatum(feedpub_repeat_attempt(writer->delivery, &row->cursor));

	/* none ends a moment while a consumer lacks parked entries */
	writer->nulls[POLL_MOMENT] = !writer->delivery->page->feed.is_changes;
	writer->values[POLL_MOMENT] = BoolGetDatum(row->moment && writer->delivery->shard->parked == 0);
}

/*
 * Set a column; 0 if it is NULL, and a statement has a number that is not 0.
 */
static void
set(Writer *writer, int column, Datum value)
{
	writer->nulls[column] = value == (Datum) 0;
	writer->values[column] = value;
}

/*
 * Return an entry as JSON.  If its JSON cannot be made, error says why.
 */
static bool
put_entry(FeedpubJsonEntry *entry, void *arg)
{
	Writer	   *writer = arg;

	set_entry(writer, entry->row);
	set(writer, POLL_KEY, entry->key_length == 0 ? 0 : PointerGetDatum(feedpub_json_key(entry)));
	set(writer, POLL_ROW, entry->value_length == 0 ? 0 : PointerGetDatum(feedpub_json_row(entry)));
	set(writer, POLL_ERROR, entry->error == NULL ? 0 : CStringGetTextDatum(entry->error));
	for (int i = 0; i < lengthof(changes); i++)
		set(writer, changes[i].column, feedpub_json_change(entry, changes[i].change));
	put(writer);
	resetStringInfo(entry->json);
	return true;
}

/*
 * Return what was kept of a parked message, since its row is gone.  Another
 * client, of another encoding, may have parked it.
 */
static void
put_kept(Writer *writer)
{
	const FeedpubRetried *retried = writer->delivery->retried;
	char	   *key_error = feedpub_json_refused(retried->kept_key);
	char	   *error = feedpub_json_refused(retried->kept_row);

	set_entry(writer, &retried->row);
	set(writer, POLL_KEY, key_error != NULL ? 0 : PointerGetDatum(retried->kept_key));
	set(writer, POLL_ROW, error != NULL ? 0 : PointerGetDatum(retried->kept_row));
	if (error == NULL)
		error = key_error;
	for (int i = 0; i < lengthof(changes); i++)
	{
		Datum		value = retried->kept_change[changes[i].change];
		char	   *change_error = feedpub_json_refused((text *) DatumGetPointer(value));

		set(writer, changes[i].column, change_error != NULL ? 0 : value);
		if (error == NULL)
			error = change_error;
	}
	set(writer, POLL_ERROR, error == NULL ? 0 : CStringGetTextDatum(error));
	put(writer);
}

static void
put(Writer *writer)
{
	tuplestore_putvalues(writer->rsinfo->setResult,
						 writer->rsinfo->setDesc,
						 writer->values, writer->nulls);
}
