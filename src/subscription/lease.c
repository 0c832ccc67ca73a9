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

#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "subscription/subscription.h"

PG_FUNCTION_INFO_V1(feed_leave);

/* if another transaction has locked the row, it registers this consumer */
static FeedpubStatement renew_consumer = {
	.sql = "WITH mine AS MATERIALIZED (SELECT FROM feedpub._consumer o"
		   "  WHERE o.subscription = $1 AND o.consumer = $2"
		   "  FOR NO KEY UPDATE SKIP LOCKED)"
		   " UPDATE feedpub._consumer c SET seen_until = $3 FROM mine"
		   " WHERE c.subscription = $1 AND c.consumer = $2",
	.nargs = 3,
	.argtypes = {TEXTOID, TEXTOID, TIMESTAMPTZOID},
};

static FeedpubStatement add_consumer = {
	.sql = "INSERT INTO feedpub._consumer (subscription, consumer, seen_until) VALUES ($1, $2, $3)"
		   " ON CONFLICT DO NOTHING",
	.nargs = 3,
	.argtypes = {TEXTOID, TEXTOID, TIMESTAMPTZOID},
};

static FeedpubStatement forget_consumers = {
	.sql = "WITH gone AS MATERIALIZED (SELECT o.consumer FROM feedpub._consumer o"
		   "  WHERE o.subscription = $1 AND o.seen_until < $2"
		   "  FOR UPDATE SKIP LOCKED)"
		   " DELETE FROM feedpub._consumer c USING gone"
		   " WHERE c.subscription = $1 AND c.consumer = gone.consumer",
	.nargs = 2,
	.argtypes = {TEXTOID, TIMESTAMPTZOID},
};

/* how many of the other consumers have lesser names, and how many there are */
static FeedpubStatement count_consumers = {
	.sql = "SELECT pg_catalog.count(*) FILTER (WHERE consumer < $2),"
		   " pg_catalog.count(*) FROM feedpub._consumer"
		   " WHERE subscription = $1 AND consumer <> $2"
		   " AND seen_until > $3 AND seen_until <= $4",
	.nargs = 4,
	.argtypes = {TEXTOID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID},
};

/*
 * The shards are chosen in a MATERIALIZED query.  Otherwise a plan could run
 * it again for each row, and lock other shards each time.
 */
#define RETURNING_SHARD \
	" RETURNING h.shard, h.cursor, h.state, h.leased_until, h.parked"

/*
 * The consumer's own, at most $4, the lowest first.  If one is locked, a poll
 * or an acknowledgement is renewing it.
 */
static FeedpubStatement renew_leases = {
	.sql = "WITH mine AS MATERIALIZED (SELECT o.shard FROM feedpub._shard o"
		   "  WHERE o.subscription = $1 AND o.consumer = $2"
		   "  ORDER BY o.shard LIMIT $4 FOR NO KEY UPDATE SKIP LOCKED)"
		   " UPDATE feedpub._shard h SET leased_until = $3 FROM mine"
		   " WHERE h.subscription = $1 AND h.shard = mine.shard" RETURNING_SHARD,
	.nargs = 4,
	.argtypes = {TEXTOID, TEXTOID, TIMESTAMPTZOID, INT4OID},
};

/* the consumer's own after the first $3 */
static FeedpubStatement release_leases = {
	.sql = "WITH mine AS MATERIALIZED (SELECT o.shard FROM feedpub._shard o"
		   "  WHERE o.subscription = $1 AND o.consumer = $2"
		   "  ORDER BY o.shard OFFSET $3 FOR NO KEY UPDATE SKIP LOCKED)"
		   " UPDATE feedpub._shard h SET consumer = NULL, leased_until = NULL FROM mine"
		   " WHERE h.subscription = $1 AND h.shard = mine.shard",
	.nargs = 3,
	.argtypes = {TEXTOID, TEXTOID, INT4OID},
};

/* free ones, at random, so that consumers do not all try the same */
static FeedpubStatement take_leases = {
	.sql = "WITH free AS MATERIALIZED (SELECT o.shard FROM feedpub._shard o"
		   "  WHERE o.subscription = $1"
		   "  AND (o.consumer IS NULL OR (o.consumer <> $2"
		   "   AND (o.leased_until <= $6 OR o.leased_until > $7)))"
		   "  ORDER BY pg_catalog.random() LIMIT $4 FOR NO KEY UPDATE SKIP LOCKED)"
		   " UPDATE feedpub._shard h SET consumer = $2, leased_until = $3,"
		   " state = $5, page = NULL FROM free"
		   " WHERE h.subscription = $1 AND h.shard = free.shard" RETURNING_SHARD,
	.nargs = 7,
	.argtypes = {TEXTOID, TEXTOID, TIMESTAMPTZOID, INT4OID, INT8OID, TIMESTAMPTZOID, TIMESTAMPTZOID},
};

static FeedpubStatement forget_consumer = {
	.sql = "DELETE FROM feedpub._consumer WHERE subscription = $1"
		   " AND consumer = $2",
	.nargs = 2,
	.argtypes = {TEXTOID, TEXTOID},
};

static FeedpubStatement lock_shards = {
	.sql = "SELECT FROM feedpub._shard h WHERE h.subscription = $1"
		   " ORDER BY h.shard FOR UPDATE",
	.nargs = 1,
	.argtypes = {TEXTOID},
};

static TimestampTz too_far(const FeedpubSubscription *sub, TimestampTz now);
static void register_consumer(FeedpubSubscription *sub, text *consumer,
							  TimestampTz now);
static bool lock_name(const text *subscription, const text *consumer);
static int	add_returned(FeedpubShard *own, int nown, char *consumer);

/*
 * If a lease ends after this time, the clock has been put back since.
 */
static TimestampTz
too_far(const FeedpubSubscription *sub, TimestampTz now)
{
	return TimestampTzPlusMilliseconds(now, 2 * sub->lease_ms);
}

/*
 * Does a consumer hold a lease of a shard that has not run out?
 */
bool
feedpub_lease_is_held(const FeedpubSubscription *sub, const FeedpubShard *shard)
{
	TimestampTz now = GetCurrentTimestamp();

	return shard->consumer != NULL && shard->leased_until > now &&
		shard->leased_until <= too_far(sub, now);
}

/*
 * Lock all shards of a subscription until the transaction ends.  Returns
 * whether there are any; none if it was removed while this waited.
 */
bool
feedpub_lease_lock_all(const FeedpubSubscription *sub)
{
	FeedpubRole caller;
	Datum		values[1];
	bool		found;

	(void) feedpub_registry_lock_history(sub->feed, RowExclusiveLock, true);
	values[0] = PointerGetDatum(sub->name);
	feedpub_store_begin(&caller);
	found = feedpub_store_run(&lock_shards, values, NULL) > 0;
	feedpub_store_end(&caller);
	return found;
}

/*
 * Is a shard leased by a consumer?
 */
bool
feedpub_lease_is_of(const FeedpubShard *shard, const text *consumer)
{
	const char *name = VARDATA_ANY(consumer);
	int			length = VARSIZE_ANY_EXHDR(consumer);

	return shard->consumer != NULL && strlen(shard->consumer) == length &&
		memcmp(shard->consumer, name, length) == 0;
}

/*
 * Is it time for a consumer to renew, take or give back shards?  Only then
 * does feedpub_lease_take() write.
 */
bool
feedpub_lease_is_due(const FeedpubSubscription *sub, const text *consumer)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz due = TimestampTzPlusMilliseconds(now, sub->lease_ms * 2 / 3);
	TimestampTz far = too_far(sub, now);
	bool		has_own = false;

	if (sub->seen_until <= due || sub->seen_until > far)
		return true;
	for (int i = 0; i < sub->nloaded; i++)
	{
		const FeedpubShard *shard = &sub->shards[i];

		if (!feedpub_lease_is_of(shard, consumer))
			continue;
		if (shard->leased_until <= due || shard->leased_until > far)
			return true;
		has_own = true;
	}
	if (has_own)
		return false;

	/* the consumer has none: is one free? */
	for (int i = 0; i < sub->nloaded; i++)
	{
		if (!feedpub_lease_is_held(sub, &sub->shards[i]))
			return true;
	}
	return false;
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
	TimestampTz now = GetCurrentTimestamp();
	char	   *name = text_to_cstring(consumer);
	int			nown = 0;
	int			share;
	FeedpubRole caller;
	Datum		values[7];

	*own = palloc(sub->nshards * sizeof(FeedpubShard));
	for (int i = 0; i < sub->nloaded; i++)
	{
		if (feedpub_lease_is_of(&sub->shards[i], consumer))
			(*own)[nown++] = sub->shards[i];
	}
	if (!feedpub_lease_is_due(sub, consumer))
		return nown;

	/* a history that begins has all rows locked, or soon will */
	if (!feedpub_registry_lock_history(sub->feed, RowExclusiveLock, false))
		return 0;

	if (sub->seen_until <= TimestampTzPlusMilliseconds(now, sub->lease_ms * 2 / 3) ||
		sub->seen_until > too_far(sub, now))
		register_consumer(sub, consumer, now);
	share = feedpub_lease_share(sub, consumer);
	values[0] = PointerGetDatum(sub->name);
	values[1] = PointerGetDatum(consumer);
	values[2] = Int32GetDatum(share);
	feedpub_store_begin(&caller);
	if (nown > share)
		feedpub_store_run(&release_leases, values, NULL);
	values[2] = TimestampTzGetDatum(TimestampTzPlusMilliseconds(now, sub->lease_ms));
	values[3] = Int32GetDatum(share);
	nown = 0;
	if (share > 0)
	{
		feedpub_store_run(&renew_leases, values, NULL);
		nown = add_returned(*own, nown, name);
	}
	if (nown < share)
	{
		values[3] = Int32GetDatum(share - nown);
		values[4] = Int64GetDatum(feedpub_receipt_draw());
		values[5] = TimestampTzGetDatum(now);
		values[6] = TimestampTzGetDatum(too_far(sub, now));
		feedpub_store_run(&take_leases, values, NULL);
		nown = add_returned(*own, nown, name);
	}
	feedpub_store_end(&caller);
	return nown;
}

/*
 * Register the consumer for the length of a lease.  It does not wait, not even
 * for another process of the same name, which registers both.
 */
static void
register_consumer(FeedpubSubscription *sub, text *consumer, TimestampTz now)
{
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
	uint32		hash = hash_bytes((const unsigned char *) VARDATA_ANY(subscription),
								  VARSIZE_ANY_EXHDR(subscription));

	hash = hash_combine(hash, hash_bytes((const unsigned char *) VARDATA_ANY(consumer), VARSIZE_ANY_EXHDR(consumer)));
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
	FeedpubRole caller;
	Datum		values[4];
	int64		before;
	int64		all;
	bool		isnull;

	values[0] = PointerGetDatum(sub->name);
	values[1] = PointerGetDatum(consumer);
	values[2] = TimestampTzGetDatum(now);
	values[3] = TimestampTzGetDatum(too_far(sub, now));
	feedpub_store_begin(&caller);
	feedpub_store_run(&count_consumers, values, NULL);
	before = DatumGetInt64(feedpub_store_value(0, 1, &isnull));
	all = DatumGetInt64(feedpub_store_value(0, 2, &isnull)) + 1;
	feedpub_store_end(&caller);
	return sub->nshards / all + (before < sub->nshards % all ? 1 : 0);
}

/*
 * Add the shards that the last statement returned.
 */
static int
add_returned(FeedpubShard *own, int nown, char *consumer)
{
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		FeedpubShard *shard = &own[nown++];
		MemoryContext oldcontext = MemoryContextSwitchTo(GetMemoryChunkContext(own));
		bool		isnull;

		shard->shard = DatumGetInt32(feedpub_store_value(i, 1, &isnull));
		shard->cursor = DatumGetTextPCopy(feedpub_store_value(i, 2, &isnull));
		shard->state = DatumGetInt64(feedpub_store_value(i, 3, &isnull));
		shard->leased_until = DatumGetTimestampTz(feedpub_store_value(i, 4, &isnull));
		shard->parked = DatumGetInt32(feedpub_store_value(i, 5, &isnull));
		shard->consumer = consumer;
		MemoryContextSwitchTo(oldcontext);
	}
	return nown;
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
	static const char *const names[] = {"name", "consumer"};
	FeedpubSubscription sub;
	FeedpubRole caller;
	Datum		values[3];
	uint64		nreleased;

	feedpub_argument_check(fcinfo, lengthof(names), names);
	feedpub_subscription_load(PG_GETARG_TEXT_PP(0), PG_GETARG_TEXT_PP(1), -1, &sub);
	(void) feedpub_registry_lock_history(sub.feed, RowExclusiveLock, true);
	values[0] = PointerGetDatum(sub.name);
	values[1] = PG_GETARG_DATUM(1);
	values[2] = Int32GetDatum(0);
	feedpub_store_begin(&caller);
	nreleased = feedpub_store_run(&release_leases, values, NULL);
	feedpub_store_run(&forget_consumer, values, NULL);
	feedpub_store_end(&caller);
	PG_RETURN_INT32((int32) nreleased);
}
