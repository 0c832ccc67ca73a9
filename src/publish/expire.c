/*-------------------------------------------------------------------------
 * expire.c
 *	  Expiring old deletes: the tombstones of a table feed.
 *
 * Tombstones older than feedpub.tombstone_retention are removed, up to the end
 * of some batch: the floor.  The floor is moved in the same transaction.  If a
 * cursor is before it, its consumer would never be told of those deletes.
 * Such a cursor is refused, unless its consumer began after them
 * (feedpub_page_check_floor).  The floor moves rarely, four times in the
 * retention, so that there is time to read the initial snapshot.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"

#include "publish/publish.h"

PG_FUNCTION_INFO_V1(feedpub_expire_tombstones);

/* removes nothing before some are a quarter older than they have to be */
static FeedpubStatement delete_old = {
	.sql = "WITH floor AS ("
		   " SELECT b.sync_id, b.last_pos, b.snapshot FROM feedpub._batch b"
		   " WHERE b.feed = $1"
		   "  AND b.published_at <= pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => $2)"
		   "  AND b.sync_id < (SELECT pg_catalog.max(l.sync_id) FROM feedpub._batch l"
		   "   WHERE l.feed = $1)"
		   " ORDER BY b.sync_id DESC LIMIT 1),"
		   " old AS ("
		   " SELECT b.snapshot FROM feedpub._batch b"
		   " WHERE b.feed = $1"
		   "  AND b.published_at <= pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => $2 * 1.25)"
		   " ORDER BY b.sync_id DESC LIMIT 1),"
		   " due AS ("
		   " SELECT f.* FROM floor f WHERE EXISTS ("
		   "  SELECT FROM old, feedpub._tombstone t"
		   "  WHERE t.feed = $1"
		   "   AND pg_catalog.pg_visible_in_snapshot(t.feed_xid, old.snapshot))),"
		   " moved AS ("
		   " UPDATE feedpub._feed f SET floor_sync_id = d.sync_id, floor_pos = d.last_pos"
		   " FROM due d WHERE f.feed = $1)"
		   " DELETE FROM feedpub._tombstone t USING due d"
		   " WHERE t.feed = $1"
		   "  AND pg_catalog.pg_visible_in_snapshot(t.feed_xid, d.snapshot)",
	.nargs = 2,
	.argtypes = {REGCLASSOID, FLOAT8OID},
};

/*
 * feedpub._expire_tombstones(feed regclass) returns bigint
 *
 * The worker's step, by hand.  Returns how many tombstones were removed.  Not
 * for PUBLIC.
 */
Datum
feedpub_expire_tombstones(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64(feedpub_expire_step(PG_GETARG_OID(0)));
}

/*
 * Remove the old tombstones of a feed.  Returns how many.  Takes the
 * publishing lock; if it is not free, removes nothing.
 */
int64
feedpub_expire_step(Oid relid)
{
	FeedpubRole caller;
	Datum		values[2];
	int64		ngone;

	if (feedpub_tombstone_retention < 0 || !feedpub_registry_is_table(relid) ||
		!feedpub_batch_lock(relid, false))
		return 0;
	values[0] = ObjectIdGetDatum(relid);
	values[1] = Float8GetDatum((double) feedpub_tombstone_retention);
	feedpub_store_begin(&caller);
	ngone = (int64) feedpub_store_run(&delete_old, values, NULL);
	feedpub_store_end(&caller);
	return ngone;
}
