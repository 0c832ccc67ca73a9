/*-------------------------------------------------------------------------
 *
 * poll.c
 *	  feed_poll(): reading from the committed cursor of a subscription.
 *
 * A poll reads a page after the committed cursor of a shard, and waits until
 * there is one.  The cursor does not move until feed_ack() moves it.  Between
 * the two nothing is locked.  If the consumer crashes, the same entries are
 * delivered again.
 *
 * A page passes entries that it does not deliver.  If a poll finds no other, it
 * moves the committed cursor past them itself (pass.c).
 *
 * Waiting.  A poll waits as feed_wait() does, for a batch after the first of
 * its cursors, or until a parked entry is due.  A transaction with an id does
 * not wait, so a poll looks before it writes: leases are taken or renewed
 * after the wait, and cursors are moved last.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "common/pg_prng.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "subscription/subscription.h"

PG_FUNCTION_INFO_V1(feed_poll);
PG_FUNCTION_INFO_V1(feed_poll_rows);

typedef struct Poll
{
	FeedpubSubscription sub;
	text	   *consumer;		/* NULL: none */
	int			max_rows;
	int64		timeout_ms;
	TimestampTz end;			/* of its wait; 0: not known yet */
	FeedpubShard *shards;		/* that it may read */
	int			nshards;
	FeedpubReached *reached;	/* by number of the shard */
	bool		advanced;		/* the last look() passed something */
	TimestampTz began;			/* the last look(), 0: there was none, ... */
	bool		stopped;		/* ... which took too long */
	bool		pushed;			/* a snapshot, to be popped */
	FeedpubDelivery found;
} Poll;

static Datum poll(FunctionCallInfo fcinfo, Oid relid);
static void begin_poll(FunctionCallInfo fcinfo, bool with_feed, Poll *poll);
static bool find_page(Poll *poll);
static bool may_wait(void);
static void choose_shards(Poll *poll);
static bool look(Poll *poll);
static bool find_due(Poll *poll, bool again);
static bool find_new(Poll *poll);
static bool read_new(Poll *poll);
static void move_past_filtered(Poll *poll);
static bool await_news(Poll *poll);
static int64 waiting_time(const Poll *poll);

/*
 * feed_poll(name text, max_rows int DEFAULT 100, consumer text DEFAULT NULL,
 * timeout interval DEFAULT '0', ack text DEFAULT NULL)
 * returns TABLE (receipt text, cursor text, op text, key json, row json,
 * xid text, published_at timestamptz, attempt int, error text, shard int),
 * VOLATILE
 *
 * Reads what is after a subscription's committed cursor: at most max_rows
 * entries (and feedpub.max_page_rows), all of one shard.  The cursor does not
 * move until feed_ack() is called with the receipt of an entry, which
 * acknowledges the page up to that entry.
 *
 * op, key, row, xid, published_at and error are as in feed_page().  attempt is
 * 1, or more if the entry has failed, or its delivery has ended without an
 * acknowledgement; after max_attempts of them it is parked (repeat.c).  If there
 * are several shards, the entry of a TRUNCATE is 'truncate_shard', and concerns
 * the rows of its shard only.
 *
 * With ack, the receipt of the last entry of the page before, that page is
 * acknowledged first, as by feed_ack(), in the same call.
 *
 * If there is nothing, it waits for timeout.  It does not wait in a
 * transaction that has a transaction id, so not with ack either, and not in
 * REPEATABLE READ and SERIALIZABLE.  If committed rows are not published yet,
 * it waits for feedpub.read_wait at least.  If nothing comes in time, it
 * returns no rows.
 *
 * A consumer that names itself leases shards, and gets a page of one of them.
 * No other consumer reads these as long as it polls or acknowledges in time.
 * If the subscription has more than one shard, a name is needed.  With a name
 * a poll waits for a third of the lease at most.  Names must be different: two
 * consumers of one name get the same entries, and only one of them can
 * acknowledge.  If a poll takes or renews leases, the rows of these shards are
 * locked until the transaction ends.
 *
 * A parked entry that is due (feed_retry(), feed_nack()) comes alone, before
 * new entries, if the committed cursor is after it.  If it has failed with the
 * committed cursor where it is now, it comes after new entries.
 *
 * Needs the rights of the subscription's owner, and SELECT on the table, whose
 * row security it obeys.  Without a name it works on a standby.  Errors: 42704
 * if there is no such subscription, 22023 for a bad argument, 25006 with a
 * name where nothing can be written, 40001 in higher isolation, PF001, PF002,
 * 42501, and with ack those of feed_ack().
 */
Datum
feed_poll(PG_FUNCTION_ARGS)
{
	return poll(fcinfo, InvalidOid);
}

/*
 * feed_poll_rows(name text, feed anyelement, ...)
 * returns TABLE (receipt text, cursor text, op text, entry anyelement,
 * xid text, published_at timestamptz, attempt int, shard int), VOLATILE
 *
 * The same with rows of the feed's table, called as feed_poll_rows('copy',
 * NULL::kv).  In entry of a delete only the key is set.  If the row of a parked
 * message is gone, entry is NULL.  Error 42809 if the subscription is of
 * another feed.
 */
Datum
feed_poll_rows(PG_FUNCTION_ARGS)
{
	return poll(fcinfo, feedpub_access_argument(fcinfo, 1));
}

/*
 * The same for both: rows of a table, or JSON if that is InvalidOid.
 */
static Datum
poll(FunctionCallInfo fcinfo, Oid relid)
{
	bool		as_rows = OidIsValid(relid);
	Poll		poll;

	begin_poll(fcinfo, as_rows, &poll);
	if (as_rows && relid != poll.sub.feed)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("subscription \"%s\" is not of feed \"%s\"",
						text_to_cstring(poll.sub.name), get_rel_name(relid))));
	InitMaterializedSRF(fcinfo, 0);
	if (find_page(&poll))
	{
		feedpub_delivery_put(fcinfo, poll.sub.name, &poll.found, as_rows);
		relation_close(poll.found.page->heap, NoLock);
	}
	if (poll.pushed)
		PopActiveSnapshot();
	return (Datum) 0;
}

/*
 * Check the arguments, which are the name, a feed if with_feed, and the others;
 * load the subscription, and acknowledge the page before.
 */
static void
begin_poll(FunctionCallInfo fcinfo, bool with_feed, Poll *poll)
{
	int			arg = with_feed ? 2 : 1;
	text	   *name;
	FeedpubReceipt receipt;

	feedpub_argument_check(fcinfo, 0, 1);
	feedpub_argument_check(fcinfo, arg, 1);
	feedpub_argument_check(fcinfo, arg + 2, 1);
	MemSet(poll, 0, sizeof(Poll));
	name = PG_GETARG_TEXT_PP(0);
	feedpub_argument_least(fcinfo, arg, PG_GETARG_INT32(arg), 1);
	poll->max_rows = Min(PG_GETARG_INT32(arg), feedpub_max_page_rows);
	if (!PG_ARGISNULL(arg + 1))
	{
		/* whether it will write is not known yet */
		PreventCommandIfReadOnly("feed_poll() by a consumer with a name");
		poll->consumer = PG_GETARG_TEXT_PP(arg + 1);
	}
	poll->timeout_ms = feedpub_argument_timeout(fcinfo, arg + 2);
	feedpub_subscription_load(name, poll->consumer, -1, &poll->sub);
	feedpub_subscription_require_feed(&poll->sub);
	if (poll->sub.delayed)
		PreventCommandIfReadOnly("feed_poll() of delayed messages");
	if (!PG_ARGISNULL(arg + 3))
	{
		feedpub_receipt_parse(PG_GETARG_TEXT_PP(arg + 3), &receipt);
		feedpub_ack_check(name, feedpub_ack_page(&poll->sub, &receipt));

		/* the number of parked entries has changed */
		if (receipt.kind == FEEDPUB_RECEIPT_RETRY)
			feedpub_subscription_load(name, poll->consumer, -1, &poll->sub);
	}
	poll->reached = palloc0(poll->sub.nshards * sizeof(FeedpubReached));
}

/*
 * Find a page of one of the consumer's shards, and count that it is delivered.
 * After a wait the subscription is loaded as it is now, and a new snapshot taken.
 */
static bool
find_page(Poll *poll)
{
	FeedpubDelivery *found = &poll->found;
	bool		has_news;

	/* before a lease is taken or renewed, which writes */
	has_news = poll->consumer != NULL && may_wait() &&
		feedpub_lease_is_due(&poll->sub, poll->consumer) &&
		await_news(poll);
	for (int turn = 0;; turn++)
	{
		if (has_news)
		{
			feedpub_subscription_load_again(poll->consumer, true, &poll->sub);
			if (poll->pushed)
				PopActiveSnapshot();
			PushActiveSnapshot(GetLatestSnapshot());
			poll->pushed = true;
		}
		choose_shards(poll);
		if (look(poll) || poll->stopped)
			break;

		/* nothing that woke it was for it, and it has passed nothing */
		if (turn > 0 && !poll->advanced)
			break;
		has_news = may_wait() && await_news(poll);
		if (!has_news)
			break;
	}

	/* what has failed too often is parked: it is delivered max_attempts times */
	if (found->page != NULL && feedpub_repeat_failed(&poll->sub, found))
	{
		(void) feedpub_park_failed(&poll->sub, found);
		relation_close(found->page->heap, NoLock);
		found->page = NULL;
	}
	move_past_filtered(poll);
	if (found->page == NULL)
		return false;
	feedpub_repeat_count(found);
	return true;
}

/*
 * May the poll wait, and would it then see a new batch?
 */
static bool
may_wait(void)
{
	return feedpub_wait_may_sleep() && !IsolationUsesXactSnapshot();
}

/*
 * Choose the shards that the consumer may read.  Without a name it is the only
 * one, unless a consumer holds it.
 */
static void
choose_shards(Poll *poll)
{
	FeedpubSubscription *sub = &poll->sub;

	if (poll->consumer != NULL)
	{
		poll->nshards = feedpub_lease_take(sub, poll->consumer, &poll->shards);
		return;
	}
	if (sub->nshards > 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("subscription \"%s\" has %d shards",
						text_to_cstring(sub->name), sub->nshards),
				 errhint("Its consumers must name themselves, as in feed_poll(..., consumer => 'worker 1').")));
	poll->shards = sub->shards;
	poll->nshards = sub->nloaded == 0 || feedpub_lease_is_held(sub, sub->shards) ? 0 : 1;
	if (poll->nshards > 0)
		sub->shards[0].consumer = NULL;
}

/*
 * Look for a page of one of the shards.
 *
 * A parked entry that is due comes before new entries.  But if it has failed
 * since the cursor moved last, it comes after them: otherwise, if an entry is
 * retried at once and fails each time, nothing else would be delivered.
 */
static bool
look(Poll *poll)
{
	FeedpubDelivery *found = &poll->found;
	int			first = 0;

	/*
	 * Begin with any of them, so that a busy shard does not keep the others
	 * waiting for ever.
	 */
	if (poll->nshards > 1)
		first = (int) pg_prng_uint64_range(&pg_global_prng_state, 0, poll->nshards - 1);
	poll->advanced = false;
	poll->began = GetCurrentTimestamp();
	for (int i = 0; i < poll->nshards; i++)
	{
		found->shard = &poll->shards[(first + i) % poll->nshards];
		found->page = palloc0_object(FeedpubPage);
		found->page->heap = feedpub_registry_open(poll->sub.feed);
		if (find_due(poll, false) || find_new(poll) || find_due(poll, true))
			return true;
		relation_close(found->page->heap, NoLock);
		pfree(found->page);
		found->page = NULL;
	}
	return false;
}

/*
 * Find a parked entry of a shard that is due.
 */
static bool
find_due(Poll *poll, bool again)
{
	FeedpubDelivery *found = &poll->found;

	found->retried = feedpub_retry_find_due(&poll->sub, found->page, found->shard, again);
	if (found->retried != NULL)
		feedpub_repeat_load(&poll->sub, found->shard->shard, true, &found->seen);
	return found->retried != NULL;
}

/*
 * Find a page of new entries of a shard.
 */
static bool
find_new(Poll *poll)
{
	FeedpubDelivery *found = &poll->found;

	feedpub_repeat_load(&poll->sub, found->shard->shard, false, &found->seen);
	while (read_new(poll))
	{
		if (poll->max_rows == 1 || !feedpub_repeat_resizes(&poll->sub, &found->seen, found->page))
			return true;
	}
	return false;
}

/*
 * Read on in a shard until there is an entry that is not filtered out, or no
 * more, or it takes too long.
 *
 * Pages whose rows are all hidden become larger, up to feedpub.max_page_rows,
 * so that a long stretch of them does not take a page for each max_rows.
 */
static bool
read_new(Poll *poll)
{
	FeedpubPage *page = poll->found.page;
	FeedpubShard *shard = poll->found.shard;
	Relation	heap = page->heap;
	FeedpubReached *reached = &poll->reached[shard->shard];
	int			limit = poll->found.seen.small ? 1 : poll->max_rows;
	int			max_rows = limit;

	for (;;)
	{
		MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
													  "feedpub page",
													  ALLOCSET_DEFAULT_SIZES);
		MemoryContext oldcontext = MemoryContextSwitchTo(context);
		bool		has_more;

		CHECK_FOR_INTERRUPTS();
		MemSet(page, 0, sizeof(FeedpubPage));
		page->heap = heap;
		feedpub_pass_begin(shard, reached, &page->request.after);
		page->request.max_rows = max_rows;
		page->request.shard = shard->shard;
		page->request.shards = poll->sub.nshards;
		page->request.types = poll->sub.types;
		page->request.subscribed = true;
		feedpub_page_read(page);
		if (shard->parked > 0)
			feedpub_park_hide(&poll->sub, shard, page);
		if (poll->sub.delayed)
			poll->stopped = !feedpub_delay_park(&poll->sub, shard, reached, page, limit);
		MemoryContextSwitchTo(oldcontext);
		if (poll->stopped)
			return false;
		page->nrows = Min(page->nrows, limit);
		if (page->nrows > 0)
			return true;		/* what is left out is read again */
		has_more = page->more;
		if (feedpub_cursor_compare(&page->passed, &page->request.after) == 0)
			has_more = false;	/* it has passed nothing */
		else
		{
			feedpub_pass_note(shard, reached, page);
			poll->advanced = true;
		}
		if (shard->parked > 0 || feedpub_cursor_compare(&page->visible, &page->passed) != 0)
			max_rows = Min(2 * max_rows, feedpub_max_page_rows);
		MemoryContextDelete(context);
		if (!has_more)
			return false;
		if (feedpub_pass_takes_too_long(&poll->sub, shard, reached, poll->began))
		{
			poll->stopped = true;
			return false;
		}
	}
}

/*
 * Move the committed cursors past what was filtered out.  If a page of a shard
 * is returned, the cursor of that shard moves when it is acknowledged.
 */
static void
move_past_filtered(Poll *poll)
{
	for (int i = 0; i < poll->nshards; i++)
	{
		const FeedpubShard *shard = &poll->shards[i];

		if (poll->found.page == NULL || shard != poll->found.shard || poll->found.retried != NULL)
			feedpub_pass_move(&poll->sub, shard, &poll->reached[shard->shard]);
	}
}

/*
 * Wait until there may be something for the consumer: a batch after the first
 * of its cursors, or a parked entry that is due, of those that were not at the
 * last look.  Returns false if nothing came in time.
 *
 * It waits for the shards that the consumer has, or, if it has none and its
 * share is not 0, for all that are free.  News of other shards must not wake
 * it: it would find nothing, and never sleep.  If there are no such shards, it
 * is as if nothing came.
 *
 * A consumer that polls in time must keep its leases, so they limit the wait:
 * to half of what is left, since the renewal needs some time too.
 */
static bool
await_news(Poll *poll)
{
	FeedpubSubscription *sub = &poll->sub;
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz next_due = DT_NOEND;
	FeedpubCursor first;
	bool		has_own = false;
	bool		takes_free;
	bool		has_any = false;
	int64		left;

	feedpub_require_select(sub->feed);
	if (poll->end == 0)
		poll->end = TimestampTzPlusMilliseconds(now, waiting_time(poll));
	left = (poll->end - now) / 1000;
	for (int i = 0; i < sub->nloaded; i++)
		has_own |= poll->consumer != NULL && feedpub_lease_is_of(&sub->shards[i], poll->consumer);
	takes_free = !has_own &&
		(poll->consumer == NULL || feedpub_lease_share(sub, poll->consumer) > 0);
	for (int i = 0; i < sub->nloaded; i++)
	{
		FeedpubShard *shard = &sub->shards[i];
		bool		is_held = feedpub_lease_is_held(sub, shard);
		FeedpubCursor cursor;

		if (has_own ? !feedpub_lease_is_of(shard, poll->consumer) : !takes_free || is_held)
			continue;
		if (is_held)
			left = Min(left, Max((shard->leased_until - now) / 2000, 0));
		feedpub_pass_begin(shard, &poll->reached[shard->shard], &cursor);
		if (!has_any || feedpub_cursor_compare(&cursor, &first) < 0)
			first = cursor;
		has_any = true;
		next_due = Min(next_due, feedpub_retry_next_due(sub, shard, poll->began));
	}
	if (!has_any)
	{
		for (; left > 0 && feedpub_wait_may_sleep(); left = (poll->end - GetCurrentTimestamp()) / 1000)
			feedpub_wait_sleep_in(NULL, left);
		return false;
	}
	if (next_due != DT_NOEND)
		left = Min(left, Max((next_due - now) / 1000 + 1, 0));
	return feedpub_wait_for_batch(sub->feed, &first, left, 0) ||
		next_due <= GetCurrentTimestamp();
}

/*
 * How long a poll that has found nothing waits, in ms.  If committed rows are
 * not published yet, it waits for them at least as long as feed_page() does.
 */
static int64
waiting_time(const Poll *poll)
{
	int64		limit = poll->timeout_ms;

	if (limit < feedpub_read_wait && !RecoveryInProgress() && !feedpub_flush_is_published(poll->sub.feed, NULL))
		limit = feedpub_read_wait + (feedpub_launcher_is_starting() ? FEEDPUB_START_WAIT : 0);
	return poll->consumer != NULL ? Min(limit, poll->sub.lease_ms / 3) : limit;
}
