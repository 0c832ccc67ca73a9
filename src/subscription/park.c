/*-------------------------------------------------------------------------
 *
 * park.c
 *	  feed_park() and feed_nack(): parking an entry that a consumer cannot deal
 *	  with, so that it can go on with the others.
 *
 * They write a row into feedpub._parked_entry: the entry's cursor, its stamp,
 * and key and row as JSON, as they are then (of a change, what else it has).  feed_poll() leaves parked
 * entries out of its pages.  So the consumer may go on at once, acknowledge
 * what comes after them, or crash and poll again.
 *
 * Parking an entry draws a new state and leaves the page's number, as
 * acknowledging does (receipt.c): another page that has this entry no longer
 * counts.  So an entry is either acknowledged with a page or parked, never
 * both.  It is parked only if the committed cursor has not passed it: an
 * acknowledged entry is not delivered again.
 *
 * If a call is repeated because its answer was lost, it counts as one failure:
 * the row of the entry keeps the number of the page that parked it.
 *
 * While an entry is parked, others of its key are delivered.  In a table feed
 * nothing is lost by that, since an entry is the state of its row.  In an
 * outbox, a message that is retried comes after later ones of its key.  If
 * their order matters, the consumer parks the later ones as well.  To hold
 * them back here would take a list without bounds.
 *
 * Locks: first the shard's row, which has the number of parked entries, then
 * their rows.  So two transactions that park or settle the same entry come one
 * after the other.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/xid8.h"

#include "subscription/subscription.h"

PG_FUNCTION_INFO_V1(feed_park);
PG_FUNCTION_INFO_V1(feed_nack);

/* why a poll parks an entry */
#define REPEAT_REASON	"deliveries ended without an acknowledgement"

/*
 * When an entry is delivered again that has failed so often: after the delay $5,
 * or after the one that the backoff $6 has for so many failures, the last one
 * for all that follow; never, if it has failed $7 times.
 */
#define RETRY_AT(attempts) \
	"CASE WHEN " attempts " < $7::int4 THEN clock_timestamp() + LEAST('1000 years', COALESCE($5::interval," \
	" ($6::interval[])[LEAST(" attempts ", cardinality($6))], '10 s')) END"

/*
 * failed_at is the committed cursor at the failure, which stands for $11
 * failures.  If the same page has parked the entry already, it is the same
 * failure.  $12 is the state of an entry that was delivered again, or 0.
 */
static FeedpubStatement park_again = {
	.sql = "UPDATE feedpub._parked_entry p SET reason = $4, state = $9, page = $10,"
		   " attempts = p.attempts + n.failures, failed_at = $8,"
		   " retry_at = " RETRY_AT("p.attempts + n.failures") " FROM (SELECT CASE WHEN o.page = $10 THEN 0 ELSE $11 END AS failures"
															  "  FROM feedpub._parked_entry o"
															  "  WHERE o.subscription = $1 AND o.shard = $2 AND o.cursor = $3) n"
															  " WHERE p.subscription = $1 AND p.shard = $2 AND p.cursor = $3"
															  " AND ($12::int8 = 0 OR p.state = $12 OR p.page = $10)",
};

/* one that has not failed is due at $22: delay.c */
static FeedpubStatement park_first = {
	.sql = "INSERT INTO feedpub._parked_entry"
		   " (subscription, shard, cursor, reason, retry_at, failed_at, state, page,"
		   "  attempts, op, feed_xid, feed_pos, published_at, key_texts, key, row, relation, old_key, old)"
		   " VALUES ($1, $2, $3, $4, CASE WHEN $11 = 0 THEN $22::timestamptz ELSE " RETRY_AT("$11::int4") " END, $8, $9, $10,"
																										  "  $11, $12, $13, $14, CASE WHEN $13::xid8 <> '0' THEN $15::timestamptz END, $16, $17, $18, $19, $20, $21)",
};

/* the parked entries of a shard whose positions are in a page */
static FeedpubStatement select_hidden = {
	.sql = "SELECT feed_xid, cursor FROM feedpub._parked_entry"
		   " WHERE subscription = $1 AND shard = $2"
		   " AND feed_pos BETWEEN $3 AND $4",
};

static bool park_by_consumer(FunctionCallInfo fcinfo, bool retries);
static FeedpubAck park(FeedpubSubscription *sub, const FeedpubReceipt *receipt,
					   bool wait, text *reason, Datum delay, int max_attempts,
					   int failures);
static bool describe_entry(FeedpubSubscription *sub,
						   const FeedpubReceipt *receipt, text *committed,
						   Datum *values);
static void describe_row(FeedpubPage page, FeedpubPageRow *row, Datum *values);
static bool keep_entry(FeedpubJsonEntry *entry, void *arg);
static FeedpubPageRow *find_entry(FeedpubSubscription *sub,
								  const FeedpubReceipt *receipt,
								  text *committed, FeedpubPage *page);
static Datum key_of_row(FeedpubPage *page, const FeedpubPageRow *row);
static bool is_same_entry(const FeedpubPageRow *row,
						  const FeedpubCursor *cursor);

/*
 * feed_park(name text, receipt text, reason text DEFAULT NULL)
 * returns boolean, VOLATILE
 *
 * Parks the entry that feed_poll() returned with this receipt: it is delivered
 * again only after feed_retry(), and the consumer can go on.  Moves no cursor.
 * Returns false if the entry is acknowledged already, or if it does not exist
 * any more: its row was changed since, which is an entry of its own, or was
 * removed.
 *
 * The entry is parked when the transaction commits.  Locks the shard's row
 * until then.  Errors: 42704, 22023, 0A000 for a truncate, PF003 if the page
 * is no longer the consumer's, PF001, 25006, 40001, 42501.
 */
Datum
feed_park(PG_FUNCTION_ARGS)
{
	feedpub_argument_check(fcinfo, 0, 2);
	PG_RETURN_BOOL(park_by_consumer(fcinfo, false));
}

/*
 * feed_nack(name text, receipt text, reason text DEFAULT NULL,
 * delay interval DEFAULT NULL)
 * returns boolean, VOLATILE
 *
 * The same, but the entry is delivered again after delay; if that is NULL, after
 * the one that the subscription's backoff has for so many failures, or without
 * a backoff after 10 seconds.  If it has failed as often as the subscription's
 * max_attempts says, it stays parked, as with feed_park().  Error 22023 for a
 * negative delay as well.
 *
 * Afterwards the consumer acknowledges the page, up to any of its entries;
 * entries that it has parked stay parked.
 */
Datum
feed_nack(PG_FUNCTION_ARGS)
{
	feedpub_argument_check(fcinfo, 0, 2);
	if (!PG_ARGISNULL(3))
		(void) feedpub_argument_timeout(fcinfo, 3);
	PG_RETURN_BOOL(park_by_consumer(fcinfo, true));
}

/*
 * Park an entry that a consumer cannot deal with.  If it retries, it is
 * delivered again, unless the entry has failed too often.
 */
static bool
park_by_consumer(FunctionCallInfo fcinfo, bool retries)
{
	FeedpubSubscription sub;
	FeedpubReceipt receipt;
	FeedpubAck	result;

	feedpub_receipt_parse(PG_GETARG_TEXT_PP(1), &receipt);
	feedpub_subscription_load(PG_GETARG_TEXT_PP(0), NULL, receipt.shard, &sub);
	PreventCommandIfReadOnly(retries ? "feed_nack()" : "feed_park()");
	feedpub_receipt_check(&receipt, &sub);
	result = park(&sub, &receipt, true, PG_ARGISNULL(2) ? NULL : PG_GETARG_TEXT_PP(2),
				  !retries || PG_ARGISNULL(3) ? (Datum) 0 : PG_GETARG_DATUM(3),
				  !retries ? 0 : sub.max_attempts > 0 ? sub.max_attempts :
														PG_INT32_MAX,
				  feedpub_repeat_failures(&sub, &receipt));
	if (result == FEEDPUB_ACK_LOST)
		feedpub_ack_check(sub.name, result);
	return result == FEEDPUB_ACK_DONE;
}

/*
 * Park the first entry of what a poll would deliver, which has failed too often
 * (repeat.c), so that it comes again only after feed_retry().  The poll waits
 * for no lock.  Returns false if it could not, since the shard is locked or in
 * another state.
 */
bool
feedpub_park_failed(FeedpubSubscription *sub, const FeedpubDelivery *delivery)
{
	FeedpubReceipt receipt = {
		.kind = delivery->retried != NULL ? FEEDPUB_RECEIPT_RETRY : FEEDPUB_RECEIPT_PLAIN,
		.shard = delivery->shard->shard,
		.state = delivery->retried != NULL ? delivery->retried->state : delivery->shard->state,
		.page = feedpub_receipt_draw(),
		.parsed = delivery->page->rows[0].cursor,
	};

	receipt.cursor = feedpub_cursor_text(&receipt.parsed);
	return park(sub, &receipt, false, cstring_to_text(REPEAT_REASON), (Datum) 0, 0,
				delivery->seen.count) == FEEDPUB_ACK_DONE;
}

/*
 * Park an entry that has failed so often, or once more; it is delivered again
 * up to max_attempts.  The shard gets another state, and the page's number.
 */
static FeedpubAck
park(FeedpubSubscription *sub, const FeedpubReceipt *receipt, bool wait,
	 text *reason, Datum delay, int max_attempts, int failures)
{
	bool		is_retry = receipt->kind == FEEDPUB_RECEIPT_RETRY;
	FeedpubShard shard;
	FeedpubCursor committed;
	Datum		values[22];

	if (!feedpub_shard_lock(sub, receipt->shard, wait, &shard) ||
		(!is_retry && !feedpub_receipt_counts(receipt, &shard)))
		return FEEDPUB_ACK_LOST;
	values[0] = PointerGetDatum(sub->name);
	values[1] = Int32GetDatum(receipt->shard);
	values[2] = PointerGetDatum(receipt->cursor);
	values[3] = PointerGetDatum(reason);
	values[4] = delay;
	values[5] = PointerGetDatum(sub->backoff);
	values[6] = Int32GetDatum(max_attempts);
	values[7] = PointerGetDatum(shard.cursor);
	values[8] = Int64GetDatum(feedpub_receipt_draw());
	values[9] = Int64GetDatum(receipt->page);
	values[10] = Int32GetDatum(failures);
	values[11] = Int64GetDatum(is_retry ? receipt->state : 0);
	if (feedpub_store_execute(&park_again, values, NULL) > 0)
		return FEEDPUB_ACK_DONE;

	/* if it is parked, another delivery has it; if not, it is settled */
	if (is_retry)
		return feedpub_retry_page(sub, receipt->shard, receipt->cursor) != 0 ?
			FEEDPUB_ACK_LOST :
			FEEDPUB_ACK_ALREADY;
	feedpub_cursor_parse(shard.cursor, &committed);
	if (!feedpub_cursor_moves(&committed, &receipt->parsed) ||
		!describe_entry(sub, receipt, shard.cursor, values))
		return FEEDPUB_ACK_ALREADY;
	(void) feedpub_store_execute(&park_first, values, NULL);
	shard.parked++;
	shard.state = DatumGetInt64(values[8]);
	shard.page = receipt->page;
	feedpub_shard_write(sub, &shard);
	return FEEDPUB_ACK_DONE;
}

/*
 * Set what park_first keeps of an entry.  Returns false if there is no such
 * entry.  If the JSON of key or row cannot be made, it is NULL.
 */
static bool
describe_entry(FeedpubSubscription *sub, const FeedpubReceipt *receipt,
			   text *committed, Datum *values)
{
	FeedpubPage page;
	FeedpubPageRow *row;

	row = find_entry(sub, receipt, committed, &page);
	if (row == NULL)
		return false;
	if (row->op >= FEEDPUB_OP_TRUNCATE)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("a truncate cannot be parked"),
				 errdetail("Entries after it assume that it was applied.")));
	describe_row(page, row, values);
	values[21] = (Datum) 0;
	relation_close(page.heap, NoLock);
	return true;
}

/*
 * The same for a row of a page.
 */
static void
describe_row(FeedpubPage page, FeedpubPageRow *row, Datum *values)
{
	StringInfoData json;

	page.rows = row;
	page.nrows = 1;
	initStringInfo(&json);
	MemSet(&values[16], 0, 5 * sizeof(Datum));
	(void) feedpub_json_members(&page, false, &json, keep_entry, values);
	values[11] = CStringGetTextDatum(feedpub_changes_op_names[row->op]);
	values[12] = FullTransactionIdGetDatum(FullTransactionIdFromU64(row->xid));
	values[13] = Int64GetDatum(row->cursor.pos);
	values[14] = TimestampTzGetDatum(row->published_at);
	values[15] = OidIsValid(page.feed.keyid) && row->error == NULL ? key_of_row(&page, row) : (Datum) 0;
}

/*
 * Park a message of a page until it is due (delay.c).
 */
void
feedpub_park_until(const FeedpubSubscription *sub, int shard,
				   const FeedpubPage *page, FeedpubPageRow *row,
				   TimestampTz due, int64 state)
{
	Datum		values[22] = {0};

	values[0] = PointerGetDatum(sub->name);
	values[1] = Int32GetDatum(shard);
	values[2] = PointerGetDatum(feedpub_cursor_text(&row->cursor));
	values[8] = Int64GetDatum(state);
	values[9] = Int64GetDatum(feedpub_receipt_draw());
	describe_row(*page, row, values);
	values[21] = TimestampTzGetDatum(due);
	(void) feedpub_store_execute(&park_first, values, NULL);
}

static bool
keep_entry(FeedpubJsonEntry *entry, void *arg)
{
	Datum	   *values = arg;

	if (entry->key_length > 0)
		values[16] = PointerGetDatum(feedpub_json_key(entry));
	if (entry->value_length > 0)
		values[17] = PointerGetDatum(feedpub_json_row(entry));
	values[18] = feedpub_json_change(entry, FEEDPUB_CHANGE_RELATION);
	values[19] = feedpub_json_change(entry, FEEDPUB_CHANGE_OLD_KEY);
	values[20] = feedpub_json_change(entry, FEEDPUB_CHANGE_OLD);
	return false;
}

/*
 * Read the entry of a receipt; NULL if there is none.  If its batch has been merged since it was
 * delivered, it may not come right after the cursor with the position before
 * it; but it still comes after the committed cursor.
 */
static FeedpubPageRow *
find_entry(FeedpubSubscription *sub, const FeedpubReceipt *receipt,
		   text *committed, FeedpubPage *page)
{
	const FeedpubCursor *wanted = &receipt->parsed;

	if (wanted->pos == 0 || wanted->pos == PG_INT64_MAX)
		return NULL;			/* the beginning or the end of a batch */
	for (int i = 0; i < 2; i++)
	{
		MemSet(page, 0, sizeof(FeedpubPage));
		page->request.after = *wanted;
		page->request.after.pos--;
		page->request.max_rows = 1;
		if (i > 0)
		{
			feedpub_cursor_parse(committed, &page->request.after);
			page->request.max_rows = feedpub_max_page_rows;
		}
		page->request.shard = receipt->shard;
		page->request.shards = sub->nshards;
		page->request.subscribed = true;
		page->heap = feedpub_registry_open(sub->feed);
		feedpub_page_read(page);
		for (int j = 0; j < page->nrows; j++)
		{
			if (is_same_entry(&page->rows[j], wanted))
				return &page->rows[j];
		}
		relation_close(page->heap, NoLock);
	}
	return NULL;
}

/*
 * The key of a row, as texts.
 */
static Datum
key_of_row(FeedpubPage *page, const FeedpubPageRow *row)
{
	TupleDesc	desc = RelationGetDescr(page->heap);
	TupleTableSlot *slot = MakeSingleTupleTableSlot(desc, &TTSOpsHeapTuple);
	AttrNumber	attnos[INDEX_MAX_KEYS];
	int			nkeys = feedpub_key_columns(page->feed.keyid, attnos);
	Datum		key;

	ExecStoreHeapTuple(row->entry, slot, false);
	key = feedpub_key_texts(desc, nkeys, attnos, slot);
	ExecDropSingleTupleTableSlot(slot);
	return key;
}

/*
 * Leave parked entries out of a page, wherever the committed cursor is: only
 * retry.c delivers them.
 */
void
feedpub_park_hide(const FeedpubSubscription *sub, const FeedpubShard *shard,
				  FeedpubPage *page)
{
	FeedpubRole caller;
	int64		first = PG_INT64_MAX;
	int64		last = 0;
	Datum		values[4];
	uint64		n;

	if (page->nrows == 0)
		return;
	for (int i = 0; i < page->nrows; i++)
	{
		first = Min(first, page->rows[i].cursor.pos);
		last = Max(last, page->rows[i].cursor.pos);
	}
	values[0] = PointerGetDatum(sub->name);
	values[1] = Int32GetDatum(shard->shard);
	values[2] = Int64GetDatum(first);
	values[3] = Int64GetDatum(last);
	feedpub_store_begin(&caller);
	n = feedpub_store_run(&select_hidden, values, NULL);
	for (uint64 i = 0; i < n; i++)
	{
		FeedpubCursor cursor;
		uint64		xid;

		CHECK_FOR_INTERRUPTS();
		xid = U64FromFullTransactionId(DatumGetFullTransactionId(feedpub_store_value(i, 1, NULL)));
		feedpub_cursor_parse(DatumGetTextPP(feedpub_store_value(i, 2, NULL)), &cursor);
		for (int j = 0; j < page->nrows; j++)
		{
			if (page->rows[j].xid == xid && is_same_entry(&page->rows[j], &cursor))
				page->rows[j].entry = NULL;
		}
	}
	feedpub_store_end(&caller);
	feedpub_entry_drop_hidden(page);
}

/*
 * Does a cursor stand for this row?  Positions are given once, so the batch,
 * which may have been merged, is not compared.  But the position of a row of
 * the initial snapshot is where it is in the table's file; after VACUUM FULL
 * another row may be there.
 */
static bool
is_same_entry(const FeedpubPageRow *row, const FeedpubCursor *cursor)
{
	bool		in_place = cursor->initial;

	return row->cursor.pos == cursor->pos &&
		row->cursor.initial == cursor->initial &&
		(!in_place || (row->cursor.sync_id == cursor->sync_id && row->cursor.fingerprint == cursor->fingerprint));
}
