/*-------------------------------------------------------------------------
 *
 * lease.c
 *	  Who reads which shards of a subscription.
 *
 * A consumer that names itself leases shards: the row of feedpub.shard has his
 * name and until when.  Polling and acknowledging renew the lease.  One that
 * has run out may be taken by another, who gets a new token; an
 * acknowledgement with the old one is refused (poll.c), so what the late
 * consumer was handed out is handed out again, and it is never two who move a
 * shard's place.  Until somebody takes it, a lease that has run out is as good
 * as before.
 *
 * The argument.  The token is compared, and the place moved, in one UPDATE of
 * the shard's row; a lease is taken by an UPDATE of the same row.  So they come
 * one after the other, and whichever is later sees the earlier: in READ
 * COMMITTED it goes by the newest version of the row, above that it fails
 * with a serialization failure.  While a consumer's transaction that has moved
 * the place is open, its row is locked: who wants shards skips it (SKIP
 * LOCKED), so nobody waits, and he finds the place moved or unmoved, never in
 * between.
 *
 * Tokens of leases rise, and none is given twice, even if a crash takes back
 * the transaction that gave it: they begin with the time, in microseconds.
 * They have the number of the shard, for they are all that an acknowledgement
 * brings along, and in the lowest bit whether what was handed out was a
 * retried entry (park.c).
 *
 *		microseconds since 2000, or later by a few | shard, 10 bits | retry
 *
 * Who does not name himself has no lease.  His pages have tokens below zero:
 * a hash of the place they began at, and a random part.  Such an
 * acknowledgement counts if the place is still that one, or has been moved last
 * by the same token; so of two who were handed out the same rows, one wins.
 *
 * Fair shares.  Consumers register themselves in feedpub.consumer, each in a
 * row of his own.  The shards are divided among those that are there, in the
 * order of their names: each knows from that how many are his, gives back what
 * he has above it, and takes what is free up to it.  They look whenever a third
 * of the lease has passed, so a newcomer has his share after about so long, and
 * the shares of one that has died come free when his leases end.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "feedpub.h"

PG_FUNCTION_INFO_V1(feed_leave);

static FeedpubStatement register_consumer = {
	.sql = "INSERT INTO feedpub.consumer (subscription, consumer, seen_until) VALUES ($1, $2, $3)"
		   " ON CONFLICT (subscription, consumer) DO UPDATE SET seen_until = excluded.seen_until",
	.nargs = 3,
	.argtypes = {TEXTOID, TEXTOID, TIMESTAMPTZOID},
};

static FeedpubStatement forget_consumers = {
	.sql = "DELETE FROM feedpub.consumer c USING ("
		   " SELECT o.subscription, o.consumer FROM feedpub.consumer o"
		   " WHERE o.subscription OPERATOR(pg_catalog.=) $1 AND o.seen_until OPERATOR(pg_catalog.<) $2"
		   " FOR UPDATE SKIP LOCKED) gone"
		   " WHERE c.subscription OPERATOR(pg_catalog.=) gone.subscription"
		   " AND c.consumer OPERATOR(pg_catalog.=) gone.consumer",
	.nargs = 2,
	.argtypes = {TEXTOID, TIMESTAMPTZOID},
};

/* in how many come before us, and how many there are */
static FeedpubStatement count_consumers = {
	.sql = "SELECT pg_catalog.count(*) FILTER (WHERE consumer OPERATOR(pg_catalog.<) $2),"
		   " pg_catalog.count(*) FROM feedpub.consumer"
		   " WHERE subscription OPERATOR(pg_catalog.=) $1"
		   " AND (seen_until OPERATOR(pg_catalog.>) $3 OR consumer OPERATOR(pg_catalog.=) $2)",
	.nargs = 3,
	.argtypes = {TEXTOID, TEXTOID, TIMESTAMPTZOID},
};

#define RETURNING_SHARD \
	" RETURNING h.shard, h.cursor, h.token, h.leased_until, h.parked"

/* ours, up to so many, the lowest first; whoever has locked one has polled it */
static FeedpubStatement renew_leases = {
	.sql = "UPDATE feedpub.shard h SET leased_until = $3 FROM ("
		   " SELECT o.shard FROM feedpub.shard o"
		   " WHERE o.subscription OPERATOR(pg_catalog.=) $1 AND o.consumer OPERATOR(pg_catalog.=) $2"
		   " ORDER BY o.shard LIMIT $4 FOR NO KEY UPDATE SKIP LOCKED) mine"
		   " WHERE h.subscription OPERATOR(pg_catalog.=) $1 AND h.shard OPERATOR(pg_catalog.=) mine.shard" RETURNING_SHARD,
	.nargs = 4,
	.argtypes = {TEXTOID, TEXTOID, TIMESTAMPTZOID, INT4OID},
};

/* the others of ours */
static FeedpubStatement release_leases = {
	.sql = "UPDATE feedpub.shard h SET consumer = NULL, leased_until = NULL FROM ("
		   " SELECT o.shard FROM feedpub.shard o"
		   " WHERE o.subscription OPERATOR(pg_catalog.=) $1 AND o.consumer OPERATOR(pg_catalog.=) $2"
		   " ORDER BY o.shard OFFSET $3 FOR NO KEY UPDATE SKIP LOCKED) mine"
		   " WHERE h.subscription OPERATOR(pg_catalog.=) $1 AND h.shard OPERATOR(pg_catalog.=) mine.shard",
	.nargs = 3,
	.argtypes = {TEXTOID, TEXTOID, INT4OID},
};

/* any that is free: at random, so that not all try the same */
static FeedpubStatement take_leases = {
	.sql = "UPDATE feedpub.shard h SET consumer = $2, leased_until = $3,"
		   " token = (GREATEST($5, (h.token OPERATOR(pg_catalog.>>) 11) OPERATOR(pg_catalog.+) 1)"
		   " OPERATOR(pg_catalog.<<) 11) OPERATOR(pg_catalog.|) (h.shard::pg_catalog.int8 OPERATOR(pg_catalog.<<) 1),"
		   " page_token = NULL FROM ("
		   " SELECT o.shard FROM feedpub.shard o"
		   " WHERE o.subscription OPERATOR(pg_catalog.=) $1"
		   " AND (o.consumer IS NULL OR o.leased_until OPERATOR(pg_catalog.<=) $6)"
		   " AND (o.consumer IS NULL OR o.consumer OPERATOR(pg_catalog.<>) $2)"
		   " ORDER BY pg_catalog.random() LIMIT $4 FOR NO KEY UPDATE SKIP LOCKED) free"
		   " WHERE h.subscription OPERATOR(pg_catalog.=) $1 AND h.shard OPERATOR(pg_catalog.=) free.shard" RETURNING_SHARD,
	.nargs = 6,
	.argtypes = {TEXTOID, TEXTOID, TIMESTAMPTZOID, INT4OID, INT8OID, TIMESTAMPTZOID},
};

static FeedpubStatement forget_consumer = {
	.sql = "DELETE FROM feedpub.consumer WHERE subscription OPERATOR(pg_catalog.=) $1"
		   " AND consumer OPERATOR(pg_catalog.=) $2",
	.nargs = 2,
	.argtypes = {TEXTOID, TEXTOID},
};

static bool needs_look(const FeedpubSubscription *sub, const FeedpubShard *own,
					   int nown, TimestampTz now);
static int	fair_share(FeedpubSubscription *sub, text *consumer,
					   TimestampTz now);
static int	add_returned(FeedpubShard *own, int nown, char *consumer);

/*
 * Does anybody hold a lease of a shard that has not run out?
 */
bool
feedpub_lease_is_held(const FeedpubShard *shard)
{
	return shard->consumer != NULL &&
		shard->leased_until > GetCurrentTimestamp();
}

/*
 * The token of what is handed out of a shard: a page, or a retried entry.
 */
int64
feedpub_lease_token(const FeedpubShard *shard, bool retry)
{
	uint32		hash;
	uint32		random;

	if (shard->consumer != NULL)
		return shard->token | retry;
	hash = DatumGetUInt32(DirectFunctionCall1Coll(hashtext, C_COLLATION_OID, PointerGetDatum(shard->cursor)));

	if (!pg_strong_random(&random, sizeof(random)))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate random values")));
	return -(int64) ((uint64) hash << 30 | (random & 0x1fffffff) << 1 | retry) - 1;
}

/*
 * Refuse what comes with a token that is no longer valid.
 */
void
feedpub_lease_refuse(const text *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEED_LEASE_LOST),
			 errmsg("lost the lease of subscription \"%s\"",
					text_to_cstring(name)),
			 errdetail("Another consumer has been handed out the same entries, or the subscription was moved."),
			 errhint("Roll back what was done with them, and poll again.")));
}

/*
 * What a token says: the number of the shard, and whether it is a retried
 * entry's.  *lease is the token of the lease, or that of a page; *hash, of a
 * page's, that of the place it began at.
 */
int
feedpub_lease_read_token(int64 token, bool *retry, int64 *lease, int32 *hash)
{
	uint64		bits = token > 0 ? (uint64) token : (uint64) - (token + 1);

	*retry = (bits & 1) != 0;
	*lease = token > 0 ? token & ~INT64CONST(1) : token;
	*hash = token > 0 ? 0 : (int32) (uint32) (bits >> 30);
	return token > 0 ? (int) ((bits >> 1) % FEEDPUB_MAX_SHARDS) : 0;
}

/*
 * Lease shards for a consumer, as many as are his.  Returns how many he has,
 * in *own; those of others who are late are his now.  Writes only when a third
 * of the lease has passed, or none is his.
 */
int
feedpub_lease_take(FeedpubSubscription *sub, text *consumer,
				   FeedpubShard **own)
{
	TimestampTz now = GetCurrentTimestamp();
	char	   *name = text_to_cstring(consumer);
	int			nown = 0;
	int			share;
	FeedpubStoreCaller caller;
	Datum		values[6];

	*own = palloc(sub->nshards * sizeof(FeedpubShard));
	for (int i = 0; i < sub->nloaded; i++)
	{
		FeedpubShard *shard = &sub->shards[i];

		if (shard->consumer != NULL && strcmp(shard->consumer, name) == 0)
			(*own)[nown++] = *shard;
	}
	if (!needs_look(sub, *own, nown, now))
		return nown;
	PreventCommandIfReadOnly("feed_poll() by a consumer with a name");

	share = fair_share(sub, consumer, now);
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
		values[4] = Int64GetDatum(now);
		values[5] = TimestampTzGetDatum(now);
		feedpub_store_run(&take_leases, values, NULL);
		nown = add_returned(*own, nown, name);
	}
	feedpub_store_end(&caller);
	return nown;
}

/*
 * Is it time to look whether shards are to be renewed, taken or given back?
 */
static bool
needs_look(const FeedpubSubscription *sub, const FeedpubShard *own, int nown,
		   TimestampTz now)
{
	TimestampTz due = TimestampTzPlusMilliseconds(now, sub->lease_ms * 2 / 3);

	if (sub->seen_until <= due)
		return true;
	for (int i = 0; i < nown; i++)
	{
		if (own[i].leased_until <= due)
			return true;
	}
	if (nown > 0)
		return false;

	/* none is ours yet: is there one to be had? */
	for (int i = 0; i < sub->nloaded; i++)
	{
		if (sub->shards[i].consumer == NULL || sub->shards[i].leased_until <= now)
			return true;
	}
	return false;
}

/*
 * Register the consumer, and say how many shards are his.
 */
static int
fair_share(FeedpubSubscription *sub, text *consumer, TimestampTz now)
{
	FeedpubStoreCaller caller;
	Datum		values[3];
	int64		before;
	int64		all;
	bool		isnull;

	values[0] = PointerGetDatum(sub->name);
	feedpub_store_begin(&caller);
	if (sub->seen_until <= TimestampTzPlusMilliseconds(now, sub->lease_ms * 2 / 3))
	{
		values[1] = PointerGetDatum(consumer);
		values[2] = TimestampTzGetDatum(TimestampTzPlusMilliseconds(now, sub->lease_ms));
		feedpub_store_run(&register_consumer, values, NULL);

		/* those who have been away for long */
		values[1] = TimestampTzGetDatum(TimestampTzPlusMilliseconds(now, -10 * sub->lease_ms));
		feedpub_store_run(&forget_consumers, values, NULL);
	}
	values[1] = PointerGetDatum(consumer);
	values[2] = TimestampTzGetDatum(now);
	feedpub_store_run(&count_consumers, values, NULL);
	before = DatumGetInt64(feedpub_store_value(0, 1, &isnull));
	all = DatumGetInt64(feedpub_store_value(0, 2, &isnull));
	feedpub_store_end(&caller);
	all = Max(all, 1);
	return sub->nshards / all + (before < sub->nshards % all ? 1 : 0);
}

/*
 * Add the shards that a statement has returned.
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
		shard->token = DatumGetInt64(feedpub_store_value(i, 3, &isnull));
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
 * wait until the leases end; returns how many.  What it was handed out and
 * has not acknowledged can be, until another consumer takes the shard.
 * Errors: 42704 when there is no such subscription, 42501.
 */
Datum
feed_leave(PG_FUNCTION_ARGS)
{
	FeedpubSubscription sub;
	FeedpubStoreCaller caller;
	Datum		values[3];
	uint64		nreleased;

	feedpub_subscription_load(PG_GETARG_TEXT_PP(0), PG_GETARG_TEXT_PP(1), -1, &sub);
	values[0] = PointerGetDatum(sub.name);
	values[1] = PG_GETARG_DATUM(1);
	values[2] = Int32GetDatum(0);
	feedpub_store_begin(&caller);
	nreleased = feedpub_store_run(&release_leases, values, NULL);
	feedpub_store_run(&forget_consumer, values, NULL);
	feedpub_store_end(&caller);
	PG_RETURN_INT32((int32) nreleased);
}
