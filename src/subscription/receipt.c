/*-------------------------------------------------------------------------
 *
 * receipt.c
 *	  Receipts: feed_poll() returns one with each entry, feed_ack() takes it.
 *
 * A receipt says which page an entry is from, and in which state of the shard
 * that page was read:
 *
 *		version, 1 | kind, 1 | shard, 3 | state, 16 | page, 16 | name, 8 | cursor
 *
 * name is a hash of the subscription's name, so that a receipt that is given
 * to another one is told apart from one that no longer counts.  kind says
 * whether the page was leased to a consumer with a name, or is a parked entry
 * that is delivered again.  Numbers are hexadecimal.
 *
 * state and page are 64 random bits each.  A new state is drawn at each change
 * of the shard's row that decides what may be acknowledged: the committed
 * cursor moves, an entry is parked, the lease is taken, feed_seek() is called.
 * A new page number is drawn for each page.  A counter is not enough.  A crash
 * can take back a change that was committed asynchronously.  The counter then
 * gives the same number again, and a receipt from before the crash counts for
 * another page.
 *
 * A page's receipts count if the shard is in the state in which the page was
 * read, or if the page itself made the last change.  So a page can be
 * acknowledged in several steps.
 *
 * If two pages have an entry in common, only one of them can acknowledge it.
 * The page that is acknowledged first draws a new state, and leaves its page
 * number in the row.  If the other page was read in an earlier state, it
 * counts neither by its state nor by its number.  If it was read in the new
 * state, it does not have the entry: the committed cursor has passed the
 * entry, or the entry is parked.  It does not matter why there were two pages:
 * a lease ran out, two processes have one name or none, or one process lost
 * its connection during a COMMIT and polled again.
 *
 * Comparison and change are one UPDATE of the shard's row, or are made with
 * that row locked, so they come one after the other.  In READ COMMITTED the
 * later one compares the newest version of the row; in higher levels it fails
 * with 40001.
 *
 * For an entry that is delivered again, state is the state of the entry's own
 * row in feedpub._parked_entry (retry.c).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <inttypes.h>

#include "common/hashfn.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"

#include "subscription/subscription.h"

#define VERSION		'1'

/* length of the prefix, and where its numbers begin, in characters */
#define LENGTH		FEEDPUB_RECEIPT_PREFIX
#define SHARD_AT	2

/*
 * Draw a number for a state or a page.
 */
int64
feedpub_receipt_draw(void)
{
	int64		number;

	if (!pg_strong_random(&number, sizeof(number)))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate random values")));
	return number;
}

/*
 * Write a receipt without its cursor: FEEDPUB_RECEIPT_PREFIX characters and a
 * zero.
 */
void
feedpub_receipt_print(const FeedpubReceipt *receipt, char *buffer)
{
	snprintf(buffer, LENGTH + 1, "%c%c%03x%016llx%016llx%08x",
			 VERSION, receipt->kind, receipt->shard,
			 (unsigned long long) receipt->state,
			 (unsigned long long) receipt->page, receipt->name);
}

/*
 * What a receipt keeps of the name of its subscription: a hash.
 */
uint32
feedpub_receipt_name(const text *name)
{
	return hash_bytes((const unsigned char *) VARDATA_ANY(name),
					  VARSIZE_ANY_EXHDR(name));
}

/*
 * May the caller use a subscription that has been loaded with this receipt?
 * Error 42P01 if the feed has been dropped, 42501, 22023 if the receipt is of
 * another subscription.
 */
void
feedpub_receipt_check(const FeedpubReceipt *receipt, const FeedpubSubscription *sub)
{
	feedpub_subscription_require_feed(sub);
	feedpub_require_select(sub->feed);
	if (receipt->name != feedpub_receipt_name(sub->name))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("receipt belongs to another subscription than \"%s\"",
						text_to_cstring(sub->name)),
				 errhint("Use a receipt that feed_poll() returned for this subscription.")));
}

/*
 * Does a receipt of a page count for its shard as it is now?
 */
bool
feedpub_receipt_counts(const FeedpubReceipt *receipt, const FeedpubShard *shard)
{
	return shard->state == receipt->state || shard->page == receipt->page;
}

/*
 * Parse a receipt.  Error 22023 if it is malformed.
 */
void
feedpub_receipt_parse(const text *input, FeedpubReceipt *receipt)
{
	const char *p = VARDATA_ANY(input);
	int			length = VARSIZE_ANY_EXHDR(input);
	char	   *prefix = pnstrdup(p, Min(length, LENGTH));

	if (prefix[0] != VERSION ||
		(prefix[1] != FEEDPUB_RECEIPT_PLAIN && prefix[1] != FEEDPUB_RECEIPT_LEASED &&
		 prefix[1] != FEEDPUB_RECEIPT_RETRY) ||
		strspn(prefix + SHARD_AT, "0123456789abcdef") != LENGTH - SHARD_AT ||
		sscanf(prefix + SHARD_AT, "%3x%16" SCNx64 "%16" SCNx64 "%8x",
			   &receipt->shard, &receipt->state, &receipt->page, &receipt->name) != 4 ||
		receipt->page == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("malformed receipt: \"%s\"",
						pnstrdup(p, pg_mbcliplen(p, length, LENGTH))),
				 errhint("Use a receipt as feed_poll() returned it.")));
	receipt->kind = prefix[1];
	receipt->cursor = cstring_to_text_with_len(p + LENGTH, length - LENGTH);
	feedpub_cursor_parse(receipt->cursor, &receipt->parsed);

	/* feed_poll() makes none that has one */
	if (receipt->parsed.fallback != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("malformed receipt: \"%s\"", text_to_cstring(input))));
}
