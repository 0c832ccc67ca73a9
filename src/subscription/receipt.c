/*-------------------------------------------------------------------------
 *
 * receipt.c
 *	  Receipts: what feed_poll() gives with each entry, and feed_ack() takes.
 *
 * A receipt says of which page an entry is, and in which state of the shard
 * that page was read:
 *
 *		version, 1 | kind, 1 | shard, 3 | state, 16 | page, 16 | cursor
 *
 * kind says whether the page was leased to a consumer with a name, or is an
 * entry that was parked and is delivered again.  Numbers are hexadecimal.
 *
 * state and page are 64 random bits each.  A new state is drawn at each change
 * of the shard's row that decides what may be acknowledged: its committed
 * cursor moves, an entry is parked, its lease is taken, it is moved elsewhere.
 * A new page number is drawn at each page.  A counter would not do: a crash
 * takes back a change that was committed asynchronously, the counter gives the
 * same number again, and a receipt from before the crash would count for
 * something else.
 *
 * A page's receipts count if the shard is in the state in which the page was
 * read, or if the page itself made the last change, so that a page can be
 * acknowledged in parts.
 *
 * Why no two pages that have an entry in common are both acknowledged: take
 * the page that is first.  It makes a new state, and leaves its number.  The
 * other page was read in an earlier state, so it counts neither by its state
 * nor by its number.  If it was read in the new state, the entry is not in it,
 * for the committed cursor has passed the entry, or it is parked.  It does not
 * matter why there were two: a lease that ran out, two processes of one name
 * or of none, or one process that lost its connection in the middle of a
 * COMMIT and polled again.
 *
 * Comparison and change are one UPDATE of the shard's row, or are made with
 * that row locked, so they come one after the other.  In READ COMMITTED the
 * later one compares the newest version of the row; in higher levels it fails
 * with 40001.
 *
 * For an entry that is delivered again, state is that of the entry's own row
 * in feedpub._parked_entry (subscription_retry.c).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "mb/pg_wchar.h"
#include "utils/builtins.h"

#include "subscription/subscription.h"

#define VERSION		'1'

/* lengths of its parts, in characters */
#define LENGTH		FEEDPUB_RECEIPT_PREFIX
#define SHARD_AT	2
#define STATE_AT	5
#define PAGE_AT		21

static bool get_hex(const char *p, int ndigits, uint64 *value);

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
 * Write a receipt, less its cursor, FEEDPUB_RECEIPT_PREFIX characters and a
 * zero.
 */
void
feedpub_receipt_print(const FeedpubReceipt *receipt, char *buffer)
{
	snprintf(buffer, LENGTH + 1, "%c%c%03x%016llx%016llx",
			 VERSION, receipt->kind, receipt->shard,
			 (unsigned long long) receipt->state,
			 (unsigned long long) receipt->page);
}

/*
 * Parse a receipt.  Error 22023 for what is none.
 */
void
feedpub_receipt_parse(const text *input, FeedpubReceipt *receipt)
{
	const char *p = VARDATA_ANY(input);
	int			length = VARSIZE_ANY_EXHDR(input);
	uint64		shard;
	uint64		state;
	uint64		page;

	if (length < LENGTH || p[0] != VERSION ||
		(p[1] != FEEDPUB_RECEIPT_PLAIN && p[1] != FEEDPUB_RECEIPT_LEASED &&
		 p[1] != FEEDPUB_RECEIPT_RETRY) ||
		!get_hex(p + SHARD_AT, STATE_AT - SHARD_AT, &shard) ||
		!get_hex(p + STATE_AT, PAGE_AT - STATE_AT, &state) ||
		!get_hex(p + PAGE_AT, LENGTH - PAGE_AT, &page))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("malformed receipt: \"%s\"",
						pnstrdup(p, pg_mbcliplen(p, length, LENGTH))),
				 errhint("Use a receipt as feed_poll() returned it.")));
	receipt->kind = p[1];
	receipt->shard = (int) shard;
	receipt->state = (int64) state;
	receipt->page = (int64) page;
	receipt->cursor = cstring_to_text_with_len(p + LENGTH, length - LENGTH);
	feedpub_cursor_parse(receipt->cursor, &receipt->place);
}

static bool
get_hex(const char *p, int ndigits, uint64 *value)
{
	*value = 0;
	for (int i = 0; i < ndigits; i++)
	{
		char		c = p[i];

		if (c >= '0' && c <= '9')
			*value = *value << 4 | (c - '0');
		else if (c >= 'a' && c <= 'f')
			*value = *value << 4 | (c - 'a' + 10);
		else
			return false;
	}
	return true;
}
