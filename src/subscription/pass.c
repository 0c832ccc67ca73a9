/*-------------------------------------------------------------------------
 *
 * pass.c
 *	  Passing entries that a poll does not deliver.
 *
 * A page passes entries that it does not deliver: those of other shards, those
 * of other types, those that row security hides, rows that no longer exist, and
 * parked entries.  A
 * poll reads on until it finds an entry or the end.  If it has passed entries
 * and found none to deliver, it moves the committed cursor itself, if the shard,
 * locked, is still in the same state: up to there, or to before the first entry
 * that row security hides.  Otherwise the next poll would pass the same entries
 * again, more each time.
 *
 * No entry is lost by that.  If the state is the same, the committed cursor is
 * still where the poll began, no entry has been parked since, and no lease was
 * taken.  Each entry that the cursor passes is of another shard, is not
 * wanted, no longer exists, or has a row in feedpub._parked_entry, from where it
 * is delivered.  None of that depends on who polls, or when: if other types are
 * wanted, the state is another (subscribe.c).  What row security hides does: a
 * setting may be missing in this session, or a table that the policy looks at
 * may change.  So the poll reads on, but the cursor stays before such an entry
 * until an entry after it is acknowledged.  How far the poll has read is kept
 * nowhere else: another call, which may see more, would begin there.
 *
 * The move draws a new state.  So a page that was read before the move, with an
 * entry that the poll did not find any more, no longer counts: the rules of
 * receipt.c hold for a move by a poll as for one by feed_ack().  The move is
 * part of the poll's transaction.  If the row is locked, the poll does not move
 * the cursor, since it waits for no consumer.  On a standby, where nothing can
 * be written, each poll passes the entries again.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "utils/builtins.h"

#include "subscription/subscription.h"

/*
 * For how long a poll passes entries without finding one, if it can move the
 * committed cursor, in ms.  Then it returns, so that the move is committed.
 *
 * If it cannot, the next poll begins where this one began.  So this one goes on
 * for longer, but it returns before it would lose a lease.
 */
#define MAX_PASSING		1000
#define MAX_LOOKING(sub)	((sub)->lease_ms / 3)

static bool hides(const FeedpubReached *reached);
static bool has_moved(const FeedpubShard *shard, const FeedpubReached *reached);

/*
 * The cursor after which a poll reads on in a shard: up to there it has read
 * already, if the shard's state is still the same, or else the committed
 * cursor.
 */
void
feedpub_pass_begin(const FeedpubShard *shard, const FeedpubReached *reached,
				   FeedpubCursor *cursor)
{
	if (reached->state == shard->state)
		*cursor = reached->cursor;
	else
		feedpub_cursor_parse(shard->cursor, cursor);
}

/*
 * Note how far a page without entries got.
 */
void
feedpub_pass_note(const FeedpubShard *shard, FeedpubReached *reached,
				  const FeedpubPage *page)
{
	if (reached->state != shard->state || !hides(reached))
		reached->visible = page->visible;
	reached->state = shard->state;
	reached->cursor = page->passed;
}

/*
 * Has a poll passed something that row security hides?
 */
static bool
hides(const FeedpubReached *reached)
{
	return feedpub_cursor_compare(&reached->visible, &reached->cursor) != 0;
}

/*
 * Has a poll that began to read then passed entries for too long?  Warns if row
 * security keeps it from getting further.
 */
bool
feedpub_pass_takes_too_long(const FeedpubSubscription *sub,
							const FeedpubShard *shard,
							const FeedpubReached *reached, TimestampTz began)
{
	bool		moves = has_moved(shard, reached);
	int64		limit = moves ? MAX_PASSING : MAX_LOOKING(sub);

	if (GetCurrentTimestamp() <= TimestampTzPlusMilliseconds(began, limit))
		return false;
	if (hides(reached) && !moves)
		ereport(WARNING,
				(errmsg("poll of subscription \"%s\" found only entries that row security hides",
						text_to_cstring(sub->name)),
				 errdetail("It has looked for %lld ms, and the next poll begins where this one began.",
						   (long long) limit),
				 errhint("Poll with the role and the settings that the subscription is for, or move it with feed_seek().")));
	return true;
}

/*
 * Move the committed cursor of a shard past what was filtered out, up to what
 * row security hides.
 */
void
feedpub_pass_move(const FeedpubSubscription *sub, const FeedpubShard *shard,
				  const FeedpubReached *reached)
{
	FeedpubShard now;

	if (!has_moved(shard, reached) ||
		!feedpub_shard_lock(sub, shard->shard, false, &now) ||
		now.state != shard->state)
		return;
	now.cursor = feedpub_cursor_text(&reached->visible);
	now.state = feedpub_receipt_draw();
	now.page = 0;
	feedpub_shard_write(sub, &now);
}

/*
 * Has a poll read in a shard so that its committed cursor is to move?
 */
static bool
has_moved(const FeedpubShard *shard, const FeedpubReached *reached)
{
	FeedpubCursor committed;

	if (XactReadOnly || RecoveryInProgress() || reached->state != shard->state)
		return false;
	feedpub_cursor_parse(shard->cursor, &committed);
	return feedpub_cursor_compare(&reached->visible, &committed) != 0;
}
