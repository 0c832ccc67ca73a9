/*-------------------------------------------------------------------------
 *
 * shard.c
 *	  A shard's row in feedpub._shard: found, locked and written.
 *
 * Each change makes a new version of the row.  While any snapshot is held,
 * VACUUM keeps all old ones, so their number has no bound.  Therefore the row
 * has a number, n, as the last column of its index, and changes raise it.  A
 * backward scan meets the newest version first, LIMIT 1 ends it there, and no
 * other version has a key from that number on.  All changes raise the number
 * but one: an acknowledgement (ack.c) raises it for every 32nd state, so that
 * the others may be HOT, and some versions have the same number.
 *
 * All changes but that one lock the row first, look at it here, and write it as
 * a whole.  A statement that waits for the lock follows the row to its newest
 * version, whose number is not smaller, so the condition holds there too; in
 * READ COMMITTED it returns that version, in higher levels it fails with 40001.
 * No other transaction changes the row before this one ends, so what is written
 * is what was read but for the caller's change.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "subscription/subscription.h"

#define LOCK_SHARD \
	"SELECT" FEEDPUB_SHARD_COLUMNS " FROM feedpub._shard h"  \
	" WHERE h.subscription = $1 AND h.shard = $2 AND h.n >=" \
	" (SELECT newest.n FROM feedpub._shard newest"           \
	"  WHERE newest.subscription = $1 AND newest.shard = $2" \
	"  ORDER BY newest.n DESC LIMIT 1)"                      \
	" FOR NO KEY UPDATE"

static FeedpubStatement lock_shard = {
	.sql = LOCK_SHARD,
};

static FeedpubStatement try_lock_shard = {
	.sql = LOCK_SHARD " SKIP LOCKED",
};

static FeedpubStatement write_shard = {
	.sql = "UPDATE feedpub._shard h SET cursor = $4, state = $5, page = $6,"
		   " settled = $7, consumer = $8, parked = $10, n = h.n + 1,"
		   " leased_until = CASE WHEN $8::text IS NOT NULL THEN $9::timestamptz END"
		   " WHERE h.subscription = $1 AND h.shard = $2 AND h.n >= $3",
};

/*
 * Lock a shard's row until the transaction ends, and return what it is now in
 * *shard.  Returns false if there is no such row; without wait also if another
 * transaction has locked it, or a history of the feed begins.  The order of
 * locks is in feed/feed.h.
 */
bool
feedpub_shard_lock(const FeedpubSubscription *sub, int number, bool wait,
				   FeedpubShard *shard)
{
	FeedpubRole caller;
	Datum		values[2];
	bool		found;

	if (!feedpub_registry_lock_history(sub->feed, RowExclusiveLock, wait))
		return false;
	values[0] = PointerGetDatum(sub->name);
	values[1] = Int32GetDatum(number);
	feedpub_store_begin(&caller);
	found = feedpub_store_run(wait ? &lock_shard : &try_lock_shard, values, NULL) > 0;
	if (found)
		feedpub_shard_get(shard, 0, 1);
	feedpub_store_end(&caller);
	return found;
}

/*
 * Set a shard from FEEDPUB_SHARD_COLUMNS of a row of the last statement, which
 * begin with this column.
 */
void
feedpub_shard_get(FeedpubShard *shard, uint64 row, int column)
{
	/* a number or time is 0 if it is NULL */
	shard->shard = DatumGetInt32(feedpub_store_value(row, column++, NULL));
	shard->n = DatumGetInt64(feedpub_store_value(row, column++, NULL));
	shard->cursor = feedpub_store_copy(row, column++);
	shard->state = DatumGetInt64(feedpub_store_value(row, column++, NULL));
	shard->page = DatumGetInt64(feedpub_store_value(row, column++, NULL));
	shard->settled = DatumGetInt64(feedpub_store_value(row, column++, NULL));
	shard->consumer = feedpub_store_copy(row, column++);
	shard->leased_until = DatumGetTimestampTz(feedpub_store_value(row, column++, NULL));
	shard->parked = DatumGetInt32(feedpub_store_value(row, column, NULL));
}

/*
 * Write the row of a shard that feedpub_shard_lock() has locked.
 */
void
feedpub_shard_write(const FeedpubSubscription *sub, const FeedpubShard *shard)
{
	Datum		values[10];

	values[0] = PointerGetDatum(sub->name);
	values[1] = Int32GetDatum(shard->shard);
	values[2] = Int64GetDatum(shard->n);
	values[3] = PointerGetDatum(shard->cursor);
	values[4] = Int64GetDatum(shard->state);
	values[5] = Int64GetDatum(shard->page);
	values[6] = Int64GetDatum(shard->settled);
	values[7] = PointerGetDatum(shard->consumer);
	values[8] = TimestampTzGetDatum(shard->leased_until);
	values[9] = Int32GetDatum(shard->parked);
	(void) feedpub_store_execute(&write_shard, values, NULL);
}
