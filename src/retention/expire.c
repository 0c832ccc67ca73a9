/*-------------------------------------------------------------------------
 *
 * expire.c
 *	  Where the deletes of table feeds expire: tombstones are removed.
 *
 * The floor of a table feed moves rarely, four times in the time for which its
 * deletes are retained, and only if some are to expire.  So there is time to
 * read the initial snapshot, and no cursor is refused for nothing.  The
 * tombstones are our own rows, so they are removed in the transaction that
 * moves the floor (retain.c).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"

#include "retention/retention.h"

static FeedpubStatement find_tombstone = {
	.sql = "SELECT FROM feedpub._tombstone WHERE feed = $1"
		   " AND pg_catalog.pg_visible_in_snapshot(feed_xid, $2) LIMIT 1",
	.nargs = 2,
	.argtypes = {REGCLASSOID, PG_SNAPSHOTOID},
};

static FeedpubStatement delete_tombstones = {
	.sql = "DELETE FROM feedpub._tombstone WHERE feed = $1"
		   " AND pg_catalog.pg_visible_in_snapshot(feed_xid, $2)",
	.nargs = 2,
	.argtypes = {REGCLASSOID, PG_SNAPSHOTOID},
};

static uint64 run(FeedpubStatement *statement, Oid feed, const FeedpubBatch *batch);

/*
 * Has a feed deletes up to a batch?
 */
bool
feedpub_expire_is_due(Oid feed, const FeedpubBatch *batch)
{
	return run(&find_tombstone, feed, batch) > 0;
}

/*
 * Remove the deletes up to a batch.  Returns how many.
 */
uint64
feedpub_expire_remove(Oid feed, const FeedpubBatch *batch)
{
	return run(&delete_tombstones, feed, batch);
}

static uint64
run(FeedpubStatement *statement, Oid feed, const FeedpubBatch *batch)
{
	Datum		values[2] = {ObjectIdGetDatum(feed),
							 feedpub_batch_snapshot_datum(&batch->snapshot)};
	FeedpubRole caller;
	uint64		nrows;

	feedpub_store_begin(&caller);
	nrows = feedpub_store_run(statement, values, NULL);
	feedpub_store_end(&caller);
	return nrows;
}
