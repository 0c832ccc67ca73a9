/*-------------------------------------------------------------------------
 *
 * lease.c
 *	  Which consumer reads which shards of a subscription.
 *
 * A consumer that names itself leases shards: the row of feedpub._shard has
 * its name and the end of the lease.  Polling and acknowledging renew the
 * lease.  If a lease has run out, another consumer may take the shard.  Then
 * the shard has another state (receipt.c), so the receipts of the late
 * consumer no longer count, and its entries are delivered again.  Until
 * another consumer takes the shard, the late consumer can still acknowledge.
 *
 * If a consumer has acknowledged and its transaction is open, the shard's row
 * is locked.  A consumer that takes shards skips locked rows (SKIP LOCKED).
 * So no poll waits, and it never sees half of a move.
 *
 * Fair shares.  Consumers register themselves in feedpub._consumer, each in a
 * row of its own.  The shards are divided among the registered consumers, in
 * the order of their names.  From that each computes its share, gives back
 * shards above it, and takes free shards up to it.  They do this whenever a
 * third of the lease has passed.  So a new consumer has its share after about
 * that time.  If a consumer crashes, its shards are free when its leases end.
 *
 * Clocks may be put back: a lease whose end is more than two leases from now
 * counts as run out.
 *
 * Locks: a poll waits for no row of feedpub._shard or feedpub._consumer.  It
 * skips those that are locked, and locks none if a history begins.  Statements
 * that wait for rows of feedpub._shard lock them in the order of their
 * numbers.  The order of all locks is in feed/feed.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "common/pg_prng.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/builtins.h"

#include "subscription/subscription.h"

PG_FUNCTION_INFO_V1(feed_leave);

/* if another transaction has locked the row, it registers this consumer */
static FeedpubStatement renew_consumer = {
	.sql = "WITH mine AS MATERIALIZED (SELECT FROM feedpub._consumer o"
		   "  WHERE o.subscription = $1 AND o.consumer = $2"
		   "  FOR NO KEY UPDATE SKIP LOCKED)"
		   " UPDATE feedpub._consumer c SET seen_until = $3 FROM mine"
		   " WHERE c.subscription = $1 AND c.consumer = $2",
};

static FeedpubStatement add_consumer = {
	.sql = "INSERT INTO feedpub._consumer (subscription, consumer, seen_until) VALUES ($1, $2, $3)"
		   " ON CONFLICT DO NOTHING",
};

static FeedpubStatement forget_consumers = {
	.sql = "WITH gone AS MATERIALIZED (SELECT o.consumer FROM feedpub._consumer o"
		   "  WHERE o.subscription = $1 AND o.seen_until < $2"
		   "  FOR UPDATE SKIP LOCKED)"
		   " DELETE FROM feedpub._consumer c USING gone"
		   " WHERE c.subscription = $1 AND c.consumer = gone.consumer",
};

/* of $5 shards, by how many others there are, and how many have lesser names */
static FeedpubStatement read_share = {
	.sql = "SELECT $5 / n + (before < $5 % n)::int4"
		   " FROM (SELECT count(*) FILTER (WHERE consumer < $2) AS before, count(*) + 1 AS n"
		   "  FROM feedpub._consumer WHERE subscription = $1 AND consumer <> $2"
		   "  AND seen_until > $3 AND seen_until <= $4) c",
};

static FeedpubStatement forget_consumer = {
	.sql = "DELETE FROM feedpub._consumer WHERE subscription = $1"
		   " AND consumer = $2",
};

static bool lasts(const FeedpubSubscription *sub, TimestampTz until, int64 ms);
static bool is_free(const FeedpubSubscription *sub, const FeedpubShard *shard,
					const text *consumer);
static void register_consumer(FeedpubSubscription *sub, text *consumer);
static bool lock_name(const text *subscription, const text *consumer);
static void set_lease(const FeedpubSubscription *sub, FeedpubShard *shard,
					  text *consumer);

/*
 * Does what lasts until then last for so many ms from now on?  If it lasts for
 * more than two leases, the clock has been put back since.
 */
static bool
lasts(const FeedpubSubscription *sub, TimestampTz until, int64 ms)
{
	TimestampTz now = GetCurrentTimestamp();

	return until > TimestampTzPlusMilliseconds(now, ms) &&
		until <= TimestampTzPlusMilliseconds(now, 2 * sub->lease_ms);
}

/*
 * Does a consumer hold a lease of a shard that has not run out?
 */
bool
feedpub_lease_is_held(const FeedpubSubscription *sub, const FeedpubShard *shard)
{
	return shard->consumer != NULL && lasts(sub, shard->leased_until, 0);
}

/*
 * Lock all shards of a subscription until the transaction ends.  Returns
 * whether there are any; none if it was removed while this waited.
 */
bool
feedpub_lease_lock_all(const FeedpubSubscription *sub)
{
	FeedpubShard shard;
	bool		found = false;

	for (int i = 0; i < sub->nshards; i++)
		found |= feedpub_shard_lock(sub, i, true, &shard);
	return found;
}

/*
 * Is a shard leased by a consumer?
 */
bool
feedpub_lease_is_of(const FeedpubShard *shard, const text *consumer)
{
	return shard->consumer != NULL &&
		VARSIZE_ANY_EXHDR(shard->consumer) == VARSIZE_ANY_EXHDR(consumer) &&
		memcmp(VARDATA_ANY(shard->consumer), VARDATA_ANY(consumer), VARSIZE_ANY_EXHDR(consumer)) == 0;
}

/*
 * May a consumer take a shard that it does not have?
 */
static bool
is_free(const FeedpubSubscription *sub, const FeedpubShard *shard, const text *consumer)
{
	return !feedpub_lease_is_of(shard, consumer) && !feedpub_lease_is_held(sub, shard);
}

/*
 * Is it time for a consumer to renew, take or give back shards?  Only then
 * does feedpub_lease_take() write.
 */
bool
feedpub_lease_is_due(const FeedpubSubscription *sub, const text *consumer)
{
	int64		fresh = sub->lease_ms * 2 / 3;
	bool		has_own = false;
	bool		has_free = false;

	if (!lasts(sub, sub->seen_until, fresh))
		return true;
	for (int i = 0; i < sub->nloaded; i++)
	{
		const FeedpubShard *shard = &sub->shards[i];

		if (!feedpub_lease_is_of(shard, consumer))
			has_free |= is_free(sub, shard, consumer);
		else if (!lasts(sub, shard->leased_until, fresh))
			return true;
		else
			has_own = true;
	}
	return !has_own && has_free;
}

/*
 * Lease shards for a consumer, up to its share.  Shards whose leases have run
 * out may be among them.  Returns how many it has; they are in *own.  Writes
 * only if feedpub_lease_is_due().
 */
int
feedpub_lease_take(FeedpubSubscription *sub, text *consumer,
				   FeedpubShard **own)
{
	bool		is_due = feedpub_lease_is_due(sub, consumer);
	int			first;
	int			nown = 0;
	int			share;

	if (is_due && !lasts(sub, sub->seen_until, sub->lease_ms * 2 / 3))
		register_consumer(sub, consumer);
	share = is_due ? feedpub_lease_share(sub, consumer) : sub->nshards;
	*own = palloc(sub->nshards * sizeof(FeedpubShard));

	/* if an own one is locked, a poll or an acknowledgement is renewing it */
	for (int i = 0, rank = 0; i < sub->nloaded; i++)
	{
		FeedpubShard shard = sub->shards[i];
		bool		stays;

		if (!feedpub_lease_is_of(&shard, consumer))
			continue;
		stays = rank++ < share;
		if (is_due)
		{
			if (!feedpub_shard_lock(sub, shard.shard, false, &shard) ||
				!feedpub_lease_is_of(&shard, consumer))
				continue;
			set_lease(sub, &shard, stays ? consumer : NULL);
		}
		if (stays)
			(*own)[nown++] = shard;
	}

	/* free ones, from any one on, so that consumers do not all try the same */
	first = (int) pg_prng_uint64_range(&pg_global_prng_state, 0, sub->nshards - 1);
	for (int i = 0; is_due && i < sub->nloaded && nown < share; i++)
	{
		FeedpubShard shard = sub->shards[(first + i) % sub->nloaded];

		if (is_free(sub, &shard, consumer) &&
			feedpub_shard_lock(sub, shard.shard, false, &shard) &&
			is_free(sub, &shard, consumer))
		{
			shard.state = feedpub_receipt_draw();
			shard.page = 0;
			set_lease(sub, &shard, consumer);
			(*own)[nown++] = shard;
		}
	}
	return nown;
}

/*
 * Register the consumer for the length of a lease.  It does not wait, not even
 * for another process of the same name, which registers both.
 */
static void
register_consumer(FeedpubSubscription *sub, text *consumer)
{
	TimestampTz now = GetCurrentTimestamp();
	FeedpubRole caller;
	Datum		values[3];

	values[0] = PointerGetDatum(sub->name);
	values[1] = PointerGetDatum(consumer);
	values[2] = TimestampTzGetDatum(TimestampTzPlusMilliseconds(now, sub->lease_ms));
	feedpub_store_begin(&caller);
	if (sub->seen_until != 0)
		feedpub_store_run(&renew_consumer, values, NULL);
	else if (lock_name(sub->name, consumer))
		feedpub_store_run(&add_consumer, values, NULL);

	/* those that have not polled for ten leases */
	values[1] = TimestampTzGetDatum(TimestampTzPlusMilliseconds(now, -10 * sub->lease_ms));
	feedpub_store_run(&forget_consumers, values, NULL);
	feedpub_store_end(&caller);
}

/*
 * Lock a consumer's name until the transaction ends, unless another
 * transaction has locked it.  Without the lock, the second of two transactions
 * that insert the same row would wait until the first one ends.  The lock is
 * of an object of class feedpub._consumer, with a hash of the name as its OID.
 */
static bool
lock_name(const text *subscription, const text *consumer)
{
	LOCKTAG		tag;
	uint32		hash = hash_combine(feedpub_receipt_name(subscription), feedpub_receipt_name(consumer));

	SET_LOCKTAG_OBJECT(tag, MyDatabaseId,
					   feedpub_registry_table("_consumer"), hash, 0);
	return LockAcquire(&tag, ExclusiveLock, false, true) != LOCKACQUIRE_NOT_AVAIL;
}

/*
 * How many shards a consumer is to have: its share.
 */
int
feedpub_lease_share(FeedpubSubscription *sub, text *consumer)
{
	TimestampTz now = GetCurrentTimestamp();
	Datum		values[5];

	values[0] = PointerGetDatum(sub->name);
	values[1] = PointerGetDatum(consumer);
	values[2] = TimestampTzGetDatum(now);
	values[3] = TimestampTzGetDatum(TimestampTzPlusMilliseconds(now, 2 * sub->lease_ms));
	values[4] = Int64GetDatum(sub->nshards);
	return (int) feedpub_store_number(&read_share, values, 0);
}

/*
 * Write a locked shard with another lease: that of a consumer from now on, or
 * none if it is NULL.
 */
static void
set_lease(const FeedpubSubscription *sub, FeedpubShard *shard, text *consumer)
{
	shard->consumer = consumer;
	shard->leased_until = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), sub->lease_ms);
	feedpub_shard_write(sub, shard);
}

/*
 * feed_leave(name text, consumer text) returns integer
 *
 * Gives back the shards that a consumer has leased, so that others need not
 * wait until the leases end.  Returns how many.  Until another consumer takes
 * a shard, entries of it that were delivered can still be acknowledged.
 * Errors: 42704 if there is no such subscription, 42501.
 */
Datum
feed_leave(PG_FUNCTION_ARGS)
{
	FeedpubSubscription sub;
	text	   *consumer;
	Datum		values[2];
	int			nreleased = 0;

	feedpub_argument_check(fcinfo, 0, 2);
	consumer = PG_GETARG_TEXT_PP(1);
	feedpub_subscription_load(PG_GETARG_TEXT_PP(0), consumer, -1, &sub);
	(void) feedpub_registry_lock_history(sub.feed, RowExclusiveLock, true);
	for (int i = 0; i < sub.nloaded; i++)
	{
		FeedpubShard *shard = &sub.shards[i];

		if (!feedpub_lease_is_of(shard, consumer) ||
			!feedpub_shard_lock(&sub, shard->shard, false, shard) ||
			!feedpub_lease_is_of(shard, consumer))
			continue;
		set_lease(&sub, shard, NULL);
		nreleased++;
	}
	values[0] = PointerGetDatum(sub.name);
	values[1] = PointerGetDatum(consumer);
	(void) feedpub_store_execute(&forget_consumer, values, NULL);
	PG_RETURN_INT32(nreleased);
}
