/*-------------------------------------------------------------------------
 *
 * delivery.c
 *	  What feed_poll() and feed_poll_rows() return: a page, with receipts.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
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
	POLL_COLUMNS
};

/* columns of feed_poll_rows() */
enum
{
	ROWS_RECEIPT,
	ROWS_CURSOR,
	ROWS_OP,
	ROWS_ENTRY,
	ROWS_XID,
	ROWS_PUBLISHED_AT,
	ROWS_ATTEMPT,
	ROWS_SHARD
};

/* A page being returned. */
typedef struct Delivery
{
	ReturnSetInfo *rsinfo;
	const FeedpubDeliveries *seen;	/* NULL: a parked entry */
	int			attempt;
	text	   *receipt;
	text	   *cursor;
	Datum		ops[FEEDPUB_NOPS];
	uint64		xid;			/* of the entry before */
	Datum		xid_text;
	Datum		values[POLL_COLUMNS];
	bool		nulls[POLL_COLUMNS];
} Delivery;

static void begin_delivery(Delivery *delivery, ReturnSetInfo *rsinfo,
						   const text *name, const FeedpubShard *shard,
						   const FeedpubRetried *retried,
						   const FeedpubDeliveries *seen, int attempt);
static void set_entry(Delivery *delivery, const FeedpubPageRow *row,
					  int published_at_column, int attempt_column);
static bool put_entry(FeedpubJsonEntry *entry, void *arg);
static void put_kept(Delivery *delivery, const FeedpubPageRow *row,
					 const FeedpubRetried *retried);
static void set_xid(Delivery *delivery, int column, uint64 xid);
static void put(Delivery *delivery);

/*
 * Return a page of a shard as JSON.
 */
void
feedpub_delivery_put(ReturnSetInfo *rsinfo, const FeedpubPage *page,
					 const text *name, const FeedpubShard *shard,
					 const FeedpubRetried *retried,
					 const FeedpubDeliveries *seen, int attempt)
{
	Delivery	delivery;
	StringInfoData json;

	begin_delivery(&delivery, rsinfo, name, shard, retried, seen, attempt);
	delivery.values[POLL_SHARD] = Int32GetDatum(shard->shard);
	initStringInfo(&json);
	if (retried != NULL && page->rows[0].entry == NULL)
		put_kept(&delivery, &page->rows[0], retried);
	else
		(void) feedpub_json_members(page, true, &json, put_entry, &delivery);
}

/*
 * Return a page of a shard as rows of the table.  If the row of a parked
 * message is gone, entry is NULL.
 */
void
feedpub_delivery_put_rows(ReturnSetInfo *rsinfo, const FeedpubPage *page,
						  const text *name, const FeedpubShard *shard,
						  const FeedpubRetried *retried,
						  const FeedpubDeliveries *seen, int attempt)
{
	Delivery	delivery;

	begin_delivery(&delivery, rsinfo, name, shard, retried, seen, attempt);
	delivery.values[ROWS_SHARD] = Int32GetDatum(shard->shard);
	for (int i = 0; i < page->nrows; i++)
	{
		const FeedpubPageRow *row = &page->rows[i];

		CHECK_FOR_INTERRUPTS();
		if (row->entry == NULL && retried == NULL)
			continue;
		set_entry(&delivery, row, ROWS_PUBLISHED_AT, ROWS_ATTEMPT);
		set_xid(&delivery, ROWS_XID, row->xid);
		delivery.nulls[ROWS_ENTRY] = row->entry == NULL;
		if (row->entry != NULL)
			delivery.values[ROWS_ENTRY] = heap_copy_tuple_as_datum(row->entry, RelationGetDescr(page->heap));
		put(&delivery);
		if (row->entry != NULL)
			pfree(DatumGetPointer(delivery.values[ROWS_ENTRY]));
	}
}

static void
begin_delivery(Delivery *delivery, ReturnSetInfo *rsinfo, const text *name,
			   const FeedpubShard *shard, const FeedpubRetried *retried,
			   const FeedpubDeliveries *seen, int attempt)
{
	FeedpubReceipt receipt = {0};

	MemSet(delivery, 0, sizeof(Delivery));
	delivery->rsinfo = rsinfo;
	delivery->seen = retried == NULL ? seen : NULL;
	delivery->attempt = attempt;
	receipt.kind = retried != NULL ? FEEDPUB_RECEIPT_RETRY :
		shard->consumer != NULL	   ? FEEDPUB_RECEIPT_LEASED :
									 FEEDPUB_RECEIPT_PLAIN;
	receipt.shard = shard->shard;
	receipt.state = retried != NULL ? retried->state : shard->state;
	receipt.page = feedpub_receipt_draw();
	receipt.name = feedpub_receipt_name(name);

	/* the receipt's end and the whole cursor change with each entry */
	delivery->receipt = palloc(VARHDRSZ + FEEDPUB_RECEIPT_PREFIX + FEEDPUB_CURSOR_LENGTH + 1);
	SET_VARSIZE(delivery->receipt, VARHDRSZ + FEEDPUB_RECEIPT_PREFIX + FEEDPUB_CURSOR_LENGTH);
	feedpub_receipt_print(&receipt, VARDATA(delivery->receipt));
	delivery->cursor = palloc(VARHDRSZ + FEEDPUB_CURSOR_LENGTH + 1);
	SET_VARSIZE(delivery->cursor, VARHDRSZ + FEEDPUB_CURSOR_LENGTH);
	delivery->values[POLL_RECEIPT] = PointerGetDatum(delivery->receipt);
	delivery->values[POLL_CURSOR] = PointerGetDatum(delivery->cursor);
	for (int i = 0; i < lengthof(delivery->ops); i++)
		delivery->ops[i] = CStringGetTextDatum(feedpub_entry_op_names[i]);
}

/*
 * Set receipt, cursor, operation and time of an entry.
 */
static void
set_entry(Delivery *delivery, const FeedpubPageRow *row,
		  int published_at_column, int attempt_column)
{
	(void) feedpub_cursor_print(&row->cursor, VARDATA(delivery->cursor));
	memcpy(VARDATA(delivery->receipt) + FEEDPUB_RECEIPT_PREFIX,
		   VARDATA(delivery->cursor), FEEDPUB_CURSOR_LENGTH);
	delivery->values[POLL_OP] = delivery->ops[row->op];
	delivery->nulls[published_at_column] = row->published_at == 0;
	delivery->values[published_at_column] = TimestampTzGetDatum(row->published_at);
	delivery->values[attempt_column] = Int32GetDatum(delivery->seen == NULL ? delivery->attempt :
																			  feedpub_repeat_attempt(delivery->seen, delivery->attempt, &row->cursor));
}

/*
 * Return an entry as JSON.  If its JSON cannot be made, error says why.
 */
static bool
put_entry(FeedpubJsonEntry *entry, void *arg)
{
	Delivery   *delivery = arg;

	set_entry(delivery, entry->row, POLL_PUBLISHED_AT, POLL_ATTEMPT);
	set_xid(delivery, POLL_XID, entry->row->xid);
	delivery->nulls[POLL_KEY] = entry->key_length == 0;
	delivery->values[POLL_KEY] = PointerGetDatum(feedpub_json_key(entry));
	delivery->nulls[POLL_ROW] = entry->value_length == 0;
	delivery->values[POLL_ROW] = PointerGetDatum(feedpub_json_row(entry));
	delivery->nulls[POLL_ERROR] = entry->error == NULL;
	if (entry->error != NULL)
		delivery->values[POLL_ERROR] = CStringGetTextDatum(entry->error);
	put(delivery);
	resetStringInfo(entry->json);
	return true;
}

/*
 * Return what was kept of a parked message, since its row is gone.  Another
 * client, of another encoding, may have parked it.
 */
static void
put_kept(Delivery *delivery, const FeedpubPageRow *row,
		 const FeedpubRetried *retried)
{
	char	   *key_error = feedpub_json_refused(retried->key);
	char	   *error = feedpub_json_refused(retried->row);

	set_entry(delivery, row, POLL_PUBLISHED_AT, POLL_ATTEMPT);
	set_xid(delivery, POLL_XID, row->xid);
	delivery->nulls[POLL_KEY] = retried->key == NULL || key_error != NULL;
	delivery->values[POLL_KEY] = PointerGetDatum(retried->key);
	delivery->nulls[POLL_ROW] = retried->row == NULL || error != NULL;
	delivery->values[POLL_ROW] = PointerGetDatum(retried->row);
	if (error == NULL)
		error = key_error;
	delivery->nulls[POLL_ERROR] = error == NULL;
	if (error != NULL)
		delivery->values[POLL_ERROR] = CStringGetTextDatum(error);
	put(delivery);
}

/*
 * Set the transaction id, which is mostly that of the entry before.  A row of
 * the initial snapshot has none.
 */
static void
set_xid(Delivery *delivery, int column, uint64 xid)
{
	if (xid != delivery->xid)
	{
		char		buffer[MAXINT8LEN + 1];

		delivery->xid = xid;
		delivery->xid_text = PointerGetDatum(cstring_to_text_with_len(buffer, pg_ulltoa_n(xid, buffer)));
	}
	delivery->nulls[column] = xid == 0;
	delivery->values[column] = delivery->xid_text;
}

static void
put(Delivery *delivery)
{
	tuplestore_putvalues(delivery->rsinfo->setResult,
						 delivery->rsinfo->setDesc,
						 delivery->values, delivery->nulls);
}
