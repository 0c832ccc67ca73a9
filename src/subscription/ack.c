/*-------------------------------------------------------------------------
 *
 * ack.c
 *	  feed_ack(): moving the committed cursor of a subscription.
 *
 * The committed cursor moves by one UPDATE that compares the receipt with the
 * shard's row (receipt.c has the argument), and only forward.
 * The row is in an ordinary table, so the move is part of the transaction.  A
 * consumer that acknowledges in the transaction in which it writes what came
 * of the page has both or neither.
 *
 * An acknowledgement that has no effect is an error.  Otherwise a consumer
 * that does not look at the result would commit its work a second time.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"

#include "subscription/subscription.h"

PG_FUNCTION_INFO_V1(feed_ack);

/*
 * If the receipt counts, as in feedpub_receipt_counts().  $9 is the number of a
 * version that is not newer than the newest.
 */
static FeedpubStatement move_cursor = {
	.sql = "UPDATE feedpub._shard h SET cursor = $5, state = $6, page = $4,"
		   " n = h.n + ($6::int8 & 31 = 0)::pg_catalog.int4,"
		   " last_ack = pg_catalog.clock_timestamp(),"
		   " leased_until = CASE WHEN $7 AND h.consumer IS NOT NULL"
		   "  THEN $8 ELSE h.leased_until END"
		   " WHERE h.subscription = $1 AND h.shard = $2 AND h.n >= $9"
		   " AND (h.state = $3 OR h.page = $4) AND feedpub._cursor_moves(h.cursor, $5)",
};

static FeedpubAck ack_retried(const FeedpubSubscription *sub,
							  const FeedpubReceipt *receipt);
static void check_cursor(Oid feed, const FeedpubCursor *cursor);

/*
 * feed_ack(name text, receipt text, strict boolean DEFAULT true)
 * returns boolean, VOLATILE
 *
 * Acknowledges the entries of a page up to the one that feed_poll() returned
 * with this receipt: the committed cursor of its shard moves there.  If the
 * receipt is of a parked entry that was delivered again, that entry alone is
 * acknowledged, and is parked no longer.  Entries that this page has parked
 * stay parked.
 *
 * Returns true.  If the page is no longer the consumer's, it is error PF003:
 * another page with the same entries was acknowledged, another consumer has
 * taken the shard, or the subscription was moved.  If the page was
 * acknowledged up to there already, it is error PF005: an earlier COMMIT took
 * effect, and its answer was lost.  In both cases roll back; if it were a
 * result, callers could ignore it, and the work would take effect twice.  With
 * strict => false the function returns false in place of PF003 and true in
 * place of PF005, for consumers whose work is not in the transaction.
 *
 * Needs the rights of the subscription's owner, and SELECT on the feed's
 * table.  Locks the shard's row until the transaction ends.  Errors: PF003,
 * PF005, 42704 if there is no such subscription, 22023 for a malformed receipt
 * or one of another subscription, PF001 for one of another history, 25006,
 * 40001 in higher isolation, 42501.
 */
Datum
feed_ack(PG_FUNCTION_ARGS)
{
	FeedpubSubscription sub;
	FeedpubReceipt receipt;
	FeedpubAck	result;

	feedpub_argument_check(fcinfo, 0, 3);
	feedpub_receipt_parse(PG_GETARG_TEXT_PP(1), &receipt);
	feedpub_subscription_load(PG_GETARG_TEXT_PP(0), NULL, receipt.shard, &sub);
	result = feedpub_ack_page(&sub, &receipt);
	if (PG_GETARG_BOOL(2))
		feedpub_ack_check(sub.name, result);
	PG_RETURN_BOOL(result != FEEDPUB_ACK_LOST);
}

/*
 * Raise the error of an acknowledgement that had no effect.
 */
void
feedpub_ack_check(const text *name, FeedpubAck result)
{
	if (result == FEEDPUB_ACK_ALREADY)
		ereport(ERROR,
				(errcode(ERRCODE_FEED_ALREADY_ACKNOWLEDGED),
				 errmsg("already acknowledged in subscription \"%s\"",
						text_to_cstring(name)),
				 errdetail("An earlier acknowledgement with this receipt has been committed."),
				 errhint("Roll back: the work is done.")));
	if (result == FEEDPUB_ACK_LOST)
		ereport(ERROR,
				(errcode(ERRCODE_FEED_LEASE_LOST),
				 errmsg("lost the page of subscription \"%s\"",
						text_to_cstring(name)),
				 errdetail("Another page was acknowledged, another consumer has the shard, or the subscription was moved."),
				 errhint("Roll back what was done with them, and poll again.")));
}

/*
 * Acknowledge, and note that in what has been loaded of the subscription, with
 * at least the receipt's shard: its cursor, state and lease, not the number of
 * parked entries.
 *
 * If another consumer has leased the shard since it was loaded, its state has
 * changed, and the acknowledgement fails.  So what has been loaded is right.
 */
FeedpubAck
feedpub_ack_page(FeedpubSubscription *sub, const FeedpubReceipt *receipt)
{
	bool		is_leased = receipt->kind == FEEDPUB_RECEIPT_LEASED;
	TimestampTz leased_until = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), sub->lease_ms);
	FeedpubShard none = {0};
	FeedpubShard *shard = &none;
	Datum		values[9];
	FeedpubSubscription now;
	FeedpubCursor committed;

	PreventCommandIfReadOnly("feed_ack()");
	feedpub_receipt_check(receipt, sub);
	if (receipt->kind == FEEDPUB_RECEIPT_RETRY)
		return ack_retried(sub, receipt);
	check_cursor(sub->feed, &receipt->parsed);

	(void) feedpub_registry_lock_history(sub->feed, RowExclusiveLock, true);
	for (int i = 0; i < sub->nloaded; i++)
	{
		if (sub->shards[i].shard == receipt->shard)
			shard = &sub->shards[i];
	}
	values[0] = PointerGetDatum(sub->name);
	values[1] = Int32GetDatum(receipt->shard);
	values[2] = Int64GetDatum(receipt->state);
	values[3] = Int64GetDatum(receipt->page);
	values[4] = PointerGetDatum(receipt->cursor);
	values[5] = Int64GetDatum(feedpub_receipt_draw());
	values[6] = BoolGetDatum(is_leased);
	values[7] = TimestampTzGetDatum(leased_until);
	values[8] = Int64GetDatum(shard->n);
	if (feedpub_store_execute(&move_cursor, values, NULL) == 1)
	{
		shard->cursor = receipt->cursor;
		shard->state = DatumGetInt64(values[5]);
		if (is_leased && shard->consumer != NULL)
			shard->leased_until = leased_until;
		return FEEDPUB_ACK_DONE;
	}

	/* has this page moved it there already? */
	if (!feedpub_subscription_find(sub->name, NULL, receipt->shard, &now) ||
		now.nloaded == 0 || now.shards[0].page != receipt->page)
		return FEEDPUB_ACK_LOST;
	feedpub_cursor_parse(now.shards[0].cursor, &committed);
	return feedpub_cursor_moves(&committed, &receipt->parsed) ? FEEDPUB_ACK_LOST : FEEDPUB_ACK_ALREADY;
}

/*
 * Acknowledge an entry that was delivered again.  Only the transaction that
 * removes its row has dealt with it: all of them lock the shard first.
 *
 * If this delivery has parked it once more, it stays parked: a consumer may
 * reject some entries of a page and acknowledge the page by its last one.
 */
static FeedpubAck
ack_retried(const FeedpubSubscription *sub, const FeedpubReceipt *receipt)
{
	FeedpubShard shard;
	FeedpubShard settled;

	if (!feedpub_shard_lock(sub, receipt->shard, true, &shard))
		return FEEDPUB_ACK_LOST;
	settled = shard;
	settled.settled = receipt->page;
	if (feedpub_retry_forget(sub, &settled, list_make1(receipt->cursor), receipt->state))
		return FEEDPUB_ACK_DONE;
	if (shard.settled == receipt->page)
		return FEEDPUB_ACK_ALREADY;
	return feedpub_retry_page(sub, receipt->shard, receipt->cursor) == receipt->page ?
		FEEDPUB_ACK_DONE :
		FEEDPUB_ACK_LOST;
}

/*
 * Error PF001 if a cursor is of another history, or after the end of what is
 * published.
 */
static void
check_cursor(Oid feed, const FeedpubCursor *cursor)
{
	Snapshot	snapshot;
	FeedpubFloor floor;
	bool		is_known;

	if (!cursor->given)
		return;
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	feedpub_floor_read(feed, snapshot, &floor);
	is_known = cursor->history == floor.history;

	/* the batch of a delivered row may have been removed since */
	if (is_known && feedpub_cursor_batch(cursor) > 0 &&
		(feedpub_registry_is_table(feed) || cursor->sync_id >= floor.sync_id))
	{
		FeedpubBatchScan *batches = feedpub_batch_begin(feed, cursor->sync_id, snapshot);
		FeedpubBatch batch;

		is_known = feedpub_batch_next(batches, &batch) && feedpub_batch_knows(&batch, cursor) &&
			(batch.sync_id != cursor->sync_id || cursor->pos <= batch.last_pos);
		feedpub_batch_end(batches);
	}
	UnregisterSnapshot(snapshot);
	if (!is_known)
		feedpub_cursor_refuse(feed);
}
