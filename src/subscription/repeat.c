/*-------------------------------------------------------------------------
 *
 * repeat.c
 *	  Deliveries that end without an acknowledgement.
 *
 * An entry whose consumer is killed by it is delivered again, as often as it is
 * polled.  Nothing that its consumer's transaction writes can count that, since
 * it is rolled back.  So a poll counts in shared memory
 * (server/shmem_delivery.c) how often an entry has come first in a page of its
 * shard.  If it comes first again, its delivery has ended without an
 * acknowledgement: after one, or if the entry is parked, another comes first.
 * What decides is the entry, not the shard's state, which another consumer
 * changes that takes over the lease.
 *
 * Which entry of a page it was is not known.  If the subscription has
 * max_attempts, and a page comes again, it is delivered entry by entry, up to
 * where the first page ended; then the entry that kills its consumer is alone in
 * its page.  If it was alone once at least, and has come first max_attempts
 * times, it has failed, and the next poll parks it.
 *
 * The poll parks it in its transaction and returns nothing, so that the
 * consumer commits.  If that is rolled back, the next poll parks it again: the
 * count has not changed.
 *
 * A parked entry that is delivered again is counted apart, with the state of its
 * row, so that after another failure or feed_retry() the count begins again.
 *
 * Polls that can write nothing count nothing: in a read-only transaction, and on
 * a standby.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "common/hashfn.h"
#include "miscadmin.h"

#include "subscription/subscription.h"

static uint64 shard_hash(const FeedpubSubscription *sub, int shard, bool retried);
static uint64 delivered_hash(const FeedpubDelivery *delivery);
static int	attempts_before(const FeedpubDelivery *delivery);
static uint64 entry_hash(const FeedpubCursor *cursor, int64 state);
static bool is_within(const FeedpubDeliveries *seen, const FeedpubCursor *cursor);

/*
 * What is known of the deliveries of a shard, or of its parked entries.
 */
void
feedpub_repeat_load(const FeedpubSubscription *sub, int shard, bool retried,
					FeedpubDeliveries *seen)
{
	MemSet(seen, 0, sizeof(FeedpubDeliveries));
	if (!XactReadOnly && !RecoveryInProgress())
		feedpub_shmem_get_deliveries(shard_hash(sub, shard, retried), seen);
}

/*
 * Forget the counts of a subscription that begins, or is moved: entries that
 * come again now have not failed.
 */
void
feedpub_repeat_forget(const text *name, int shards)
{
	FeedpubSubscription sub = {.name = unconstify(text *, name)};

	for (int i = 0; i < shards; i++)
	{
		feedpub_shmem_forget_deliveries(shard_hash(&sub, i, false));
		feedpub_shmem_forget_deliveries(shard_hash(&sub, i, true));
	}
}

/*
 * Is a page to be read again, with another size?  If it has come before, it is
 * delivered entry by entry; after where it ended, pages have their size again.
 */
bool
feedpub_repeat_resizes(const FeedpubSubscription *sub, FeedpubDeliveries *seen,
					   const FeedpubPage *page)
{
	const FeedpubCursor *cursor = &page->rows[0].cursor;
	bool		small = seen->first == entry_hash(cursor, 0) ||
		(seen->small && is_within(seen, cursor));

	if (sub->max_attempts == 0 || seen->shard == 0 || small == seen->small)
		return false;
	seen->small = small;
	return true;
}

/*
 * Has the first entry of what is to be delivered failed too often?
 */
bool
feedpub_repeat_failed(const FeedpubSubscription *sub, const FeedpubDelivery *delivery)
{
	const FeedpubDeliveries *seen = &delivery->seen;
	const FeedpubPageRow *row = &delivery->page->rows[0];

	/* a truncate cannot be parked */
	return sub->max_attempts > 0 && seen->shard != 0 && row->op < FEEDPUB_OP_TRUNCATE &&
		seen->first == delivered_hash(delivery) && seen->alone > 0 &&
		attempts_before(delivery) + seen->count >= sub->max_attempts;
}

/*
 * Count a delivery, and set the attempt that it is for its first entry.
 */
void
feedpub_repeat_count(FeedpubDelivery *delivery)
{
	FeedpubDeliveries *seen = &delivery->seen;
	const FeedpubPage *page = delivery->page;
	uint64		entry = delivered_hash(delivery);

	delivery->attempt = attempts_before(delivery) + 1;
	if (seen->shard == 0)
		return;
	if (seen->first != entry)
	{
		seen->first = entry;
		seen->count = seen->alone = 0;
		if (!seen->small)
		{
			const FeedpubCursor *last = &page->rows[page->nrows - 1].cursor;

			seen->until_batch = feedpub_cursor_batch(last);
			seen->until_table = last->initial ? last->sync_id : 0;
			seen->until_pos = last->pos;
		}
	}
	delivery->attempt += seen->count;
	seen->count++;
	if (page->nrows == 1)
		seen->alone++;
	feedpub_shmem_set_deliveries(seen);
}

/*
 * The attempt that an entry of a page is: those after the end of the page that
 * came before are new.
 */
int
feedpub_repeat_attempt(const FeedpubDelivery *delivery, const FeedpubCursor *cursor)
{
	const FeedpubDeliveries *seen = &delivery->seen;

	return delivery->retried == NULL && seen->shard != 0 && !is_within(seen, cursor) ? 1 : delivery->attempt;
}

/*
 * How often an entry has failed, if the consumer that has it now says that it
 * fails: once, and each time that it came first before.
 */
int
feedpub_repeat_failures(const FeedpubSubscription *sub,
						const FeedpubReceipt *receipt)
{
	bool		retried = receipt->kind == FEEDPUB_RECEIPT_RETRY;
	FeedpubDeliveries seen;

	feedpub_repeat_load(sub, receipt->shard, retried, &seen);
	if (seen.first != entry_hash(&receipt->parsed, retried ? receipt->state : 0))
		return 1;
	return Max(seen.count, 1);
}

static uint64
shard_hash(const FeedpubSubscription *sub, int shard, bool retried)
{
	uint64		hash = hash_bytes_extended((const unsigned char *) VARDATA_ANY(sub->name),
										   VARSIZE_ANY_EXHDR(sub->name),
										   (uint64) MyDatabaseId << 32 | shard << 1 | retried);

	return Max(hash, 1);
}

/*
 * A hash of the first entry that is to be delivered, with the state of its row
 * if it is a parked one; and how often that has failed before.
 */
static uint64
delivered_hash(const FeedpubDelivery *delivery)
{
	return entry_hash(&delivery->page->rows[0].cursor,
					  delivery->retried != NULL ? delivery->retried->state : 0);
}

static int
attempts_before(const FeedpubDelivery *delivery)
{
	return delivery->retried != NULL ? delivery->retried->attempts : 0;
}

/*
 * A hash of an entry.  Positions are given once, so a batch, which may have
 * been merged, does not count; but the position of a row of the initial
 * snapshot is where it is in a file.
 */
static uint64
entry_hash(const FeedpubCursor *cursor, int64 state)
{
	uint64		hash = hash_combine64((uint64) cursor->pos, (uint64) state);

	if (cursor->initial)
		hash = hash_combine64(hash, hash_combine64((uint64) cursor->sync_id, cursor->fingerprint));
	return Max(hash, 1);
}

static bool
is_within(const FeedpubDeliveries *seen, const FeedpubCursor *cursor)
{
	int64		table = cursor->initial ? cursor->sync_id : 0;

	if (feedpub_cursor_batch(cursor) != seen->until_batch)
		return feedpub_cursor_batch(cursor) < seen->until_batch;
	if (table != seen->until_table)
		return table < seen->until_table;
	return cursor->pos <= seen->until_pos;
}
