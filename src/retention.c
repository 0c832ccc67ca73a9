/*-------------------------------------------------------------------------
 *
 * retention.c
 *	  Merging old batches, and expiring old tombstones.
 *
 * Batches older than feedpub.batch_retention are merged, neighbours into the
 * youngest of them, up to feedpub.max_batch_transactions in one, so that the
 * table stays small.  The last batch of a feed stays as it is.
 *
 * Merging deletes the rows of the older ones, which makes the snapshot before
 * the youngest an earlier one: it now holds what they held.  It is another
 * batch then, with another fingerprint, and remembers those of the batches
 * that are in it: a reader whose cursor is in one of them gets what lies
 * behind his position in the merged one, and the whole of it if his batch was
 * an older one.  None is skipped: whatever was behind a cursor still is.  A
 * cursor of the merged batch means nothing to who does not see it yet, on a
 * standby that lags or in an old snapshot; for that its fingerprint is marked
 * as that of a merged one (read.c: check_cursor).
 *
 * Groups have feedpub.max_batch_transactions; whole ones are not looked at
 * again, and few batches are at a time.
 *
 * Tombstones older than feedpub.tombstone_retention are removed, those of the
 * batches up to some batch, the floor, which is moved in the same transaction.
 * A cursor that lies before it is refused (read.c), for its consumer would
 * never hear of those deletes; so is one that is in batch 0 since before,
 * which is why batch 0's cursors carry the number of times that tombstones
 * have expired.  That happens rarely, four times in the retention, so that
 * whoever reads batch 0 has time to.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

#include "feedpub.h"

/* how many batches are looked at in one step */
#define MERGE_AT_ONCE	10000

PG_FUNCTION_INFO_V1(feedpub_merge_batches);
PG_FUNCTION_INFO_V1(feedpub_expire_tombstones);

/*
 * feedpub._merge_batches(feed regclass) returns integer
 *
 * What the worker does from time to time, by hand.  Not for PUBLIC.
 */
Datum
feedpub_merge_batches(PG_FUNCTION_ARGS)
{
	int64		merged_to = 0;
	bool		more = true;
	int			ngone = 0;

	while (more)
		ngone += feedpub_retention_merge(PG_GETARG_OID(0), &merged_to, &more);
	PG_RETURN_INT32(ngone);
}

/*
 * Merge some of the old batches of a feed, those behind *merged_to, which
 * moves; *more says whether there may be others.  Returns how many are gone.
 * Runs with the caller's rights, which must be those of the extension's owner.
 * Holds the publishing lock: a publisher must not take a batch for the last
 * one that is about to go.
 */
int
feedpub_retention_merge(Oid relid, int64 *merged_to, bool *more)
{
	/* groups of neighbours whose transactions add up to no more than $3 */
	static const char *const sql =
		"WITH candidate AS ("
		" SELECT b.* FROM feedpub.batch b"
		" WHERE b.feed OPERATOR(pg_catalog.=) $1 AND b.sync_id OPERATOR(pg_catalog.>) $4"
		" ORDER BY b.sync_id LIMIT $5),"
		" old AS ("
		" SELECT c.*,"
		"  pg_catalog.floor((pg_catalog.sum(c.transactions) OVER (ORDER BY c.sync_id) OPERATOR(pg_catalog.-) 1)"
		"   OPERATOR(pg_catalog./) $3) AS part"
		" FROM candidate c"
		" WHERE c.published_at OPERATOR(pg_catalog.<)"
		"   (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) pg_catalog.make_interval(secs => $2))"
		"  AND c.sync_id OPERATOR(pg_catalog.<) (SELECT pg_catalog.max(l.sync_id) FROM feedpub.batch l"
		"   WHERE l.feed OPERATOR(pg_catalog.=) $1)),"
		/* the last group may grow yet, and is looked at again */
		" complete AS ("
		" SELECT o.* FROM old o WHERE o.part OPERATOR(pg_catalog.<) (SELECT pg_catalog.max(l.part) FROM old l)),"
		" merged AS ("
		" SELECT pg_catalog.max(o.sync_id) AS sync_id, pg_catalog.min(o.sync_id) AS first,"
		"  pg_catalog.max(o.last_pos) AS last_pos, pg_catalog.sum(o.transactions)::pg_catalog.int4 AS transactions"
		" FROM old o GROUP BY o.part HAVING pg_catalog.count(*) OPERATOR(pg_catalog.>) 1),"
		" known AS ("
		" SELECT m.sync_id, pg_catalog.array_agg(x.id) AS ids, pg_catalog.array_agg(x.fingerprint) AS fingerprints"
		" FROM merged m JOIN old o ON o.sync_id OPERATOR(pg_catalog.>=) m.first AND o.sync_id OPERATOR(pg_catalog.<=) m.sync_id"
		" CROSS JOIN LATERAL (SELECT o.sync_id AS id, o.fingerprint"
		"  UNION ALL SELECT u.id, u.fingerprint"
		"  FROM ROWS FROM (pg_catalog.unnest(o.merged_ids), pg_catalog.unnest(o.merged_fingerprints)) AS u (id, fingerprint)) x"
		" GROUP BY m.sync_id),"
		" kept AS ("
		" UPDATE feedpub.batch b SET last_pos = m.last_pos, transactions = m.transactions,"
		/* the sign marks a merged one */
		"  fingerprint = pg_catalog.hashtext(pg_catalog.gen_random_uuid()::pg_catalog.text) OPERATOR(pg_catalog.|) $6,"
		"  merged_ids = k.ids, merged_fingerprints = k.fingerprints"
		" FROM merged m JOIN known k ON k.sync_id OPERATOR(pg_catalog.=) m.sync_id"
		" WHERE b.feed OPERATOR(pg_catalog.=) $1"
		"  AND b.sync_id OPERATOR(pg_catalog.=) m.sync_id),"
		" gone AS ("
		" DELETE FROM feedpub.batch b USING merged m"
		" WHERE b.feed OPERATOR(pg_catalog.=) $1"
		"  AND b.sync_id OPERATOR(pg_catalog.>=) m.first"
		"  AND b.sync_id OPERATOR(pg_catalog.<) m.sync_id RETURNING b.sync_id)"
		" SELECT (SELECT pg_catalog.count(*) FROM gone),"
		"  (SELECT pg_catalog.max(c.sync_id) FROM complete c),"
		"  (SELECT pg_catalog.count(*) FROM old)";
	Oid			argtypes[6] = {REGCLASSOID, FLOAT8OID, NUMERICOID, INT8OID, INT4OID, INT4OID};
	Datum		values[6];
	bool		isnull;
	int64		ngone;
	int64		reached;

	*more = false;
	if (!feedpub_batch_lock(relid, false))
		return 0;
	values[0] = ObjectIdGetDatum(relid);
	values[1] = Float8GetDatum((double) feedpub_batch_retention);
	values[2] = DirectFunctionCall1(int4_numeric, Int32GetDatum(feedpub_max_batch_transactions));
	values[3] = Int64GetDatum(*merged_to);
	values[4] = Int32GetDatum(MERGE_AT_ONCE);
	values[5] = Int32GetDatum((int32) FEEDPUB_MERGED_FINGERPRINT);
	SPI_connect();
	if (SPI_execute_with_args(sql, 6, argtypes, values, NULL, false, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not merge the batches of feed with OID %u", relid);
	ngone = DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull));
	reached = DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 2, &isnull));
	if (!isnull)
	{
		*more = DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 3, &isnull)) == MERGE_AT_ONCE;
		*merged_to = reached;
	}
	SPI_finish();
	return (int) ngone;
}

/*
 * feedpub._expire_tombstones(feed regclass) returns bigint
 *
 * What the worker does from time to time, by hand.  Not for PUBLIC.
 */
Datum
feedpub_expire_tombstones(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64(feedpub_retention_expire(PG_GETARG_OID(0)));
}

/*
 * Remove the old tombstones of a feed.  Returns how many.  With the caller's
 * rights and under the publishing lock, as above.
 */
int64
feedpub_retention_expire(Oid relid)
{
	/* nothing before some are a quarter older than need be */
	static const char *const sql =
		"WITH floor AS ("
		" SELECT b.sync_id, b.last_pos, b.snapshot FROM feedpub.batch b"
		" WHERE b.feed OPERATOR(pg_catalog.=) $1"
		"  AND b.published_at OPERATOR(pg_catalog.<=)"
		"   (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) pg_catalog.make_interval(secs => $2))"
		"  AND b.sync_id OPERATOR(pg_catalog.<) (SELECT pg_catalog.max(l.sync_id) FROM feedpub.batch l"
		"   WHERE l.feed OPERATOR(pg_catalog.=) $1)"
		" ORDER BY b.sync_id DESC LIMIT 1),"
		" old AS ("
		" SELECT b.snapshot FROM feedpub.batch b"
		" WHERE b.feed OPERATOR(pg_catalog.=) $1"
		"  AND b.published_at OPERATOR(pg_catalog.<=)"
		"   (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) pg_catalog.make_interval(secs => $2 OPERATOR(pg_catalog.*) 1.25))"
		" ORDER BY b.sync_id DESC LIMIT 1),"
		" due AS ("
		" SELECT f.* FROM floor f WHERE EXISTS ("
		"  SELECT FROM old, feedpub.tombstone t"
		"  WHERE t.feed OPERATOR(pg_catalog.=) $1"
		"   AND pg_catalog.pg_visible_in_snapshot(t.feed_xid, old.snapshot))),"
		" moved AS ("
		" UPDATE feedpub.feed f SET floor_sync_id = d.sync_id, floor_pos = d.last_pos,"
		"  expiries = f.expiries OPERATOR(pg_catalog.+) 1"
		" FROM due d WHERE f.feed OPERATOR(pg_catalog.=) $1)"
		" DELETE FROM feedpub.tombstone t USING due d"
		" WHERE t.feed OPERATOR(pg_catalog.=) $1"
		"  AND pg_catalog.pg_visible_in_snapshot(t.feed_xid, d.snapshot)";
	Oid			argtypes[2] = {REGCLASSOID, FLOAT8OID};
	Datum		values[2];
	int64		ngone;

	if (feedpub_tombstone_retention < 0 || !feedpub_registry_is_table(relid) ||
		!feedpub_batch_lock(relid, false))
		return 0;
	values[0] = ObjectIdGetDatum(relid);
	values[1] = Float8GetDatum((double) feedpub_tombstone_retention);
	SPI_connect();
	if (SPI_execute_with_args(sql, 2, argtypes, values, NULL, false, 0) != SPI_OK_DELETE)
		elog(ERROR, "could not expire the tombstones of feed with OID %u", relid);
	ngone = (int64) SPI_processed;
	SPI_finish();
	return ngone;
}
