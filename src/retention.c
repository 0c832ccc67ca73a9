/*-------------------------------------------------------------------------
 *
 * retention.c
 *	  Merging old batches.
 *
 * Batches older than feedpub.batch_retention are merged, neighbours into the
 * youngest of them, up to feedpub.max_batch_transactions in one, so that the
 * table stays small.  The last batch of a feed stays as it is.
 *
 * Merging deletes the rows of the older ones, which makes the snapshot before
 * the youngest an earlier one: it now holds what they held.  A reader whose
 * cursor points into one that is gone gets the whole merged batch (read.c); a
 * cursor in the youngest may get rows again that have come before, with
 * positions behind it.  None is skipped: whatever was behind a cursor still
 * is.
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

PG_FUNCTION_INFO_V1(feedpub_merge_batches);

/*
 * feedpub._merge_batches(feed regclass) returns integer
 *
 * What the worker does from time to time, by hand.  Not for PUBLIC.
 */
Datum
feedpub_merge_batches(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT32(feedpub_retention_merge(PG_GETARG_OID(0)));
}

/*
 * Merge the old batches of a feed.  Returns how many are gone.  Runs with
 * the caller's rights, which must be those of the extension's owner.  Holds
 * the publishing lock: a publisher must not take a batch for the last one
 * that is about to go.
 */
int
feedpub_retention_merge(Oid relid)
{
	/* groups of neighbours whose transactions add up to no more than $3 */
	static const char *const sql =
		"WITH old AS ("
		" SELECT b.sync_id, b.last_pos, b.transactions,"
		"  (pg_catalog.sum(b.transactions) OVER (ORDER BY b.sync_id) OPERATOR(pg_catalog.-) 1)"
		"   OPERATOR(pg_catalog./) $3 AS part"
		" FROM feedpub.batch b"
		" WHERE b.feed OPERATOR(pg_catalog.=) $1"
		"  AND b.published_at OPERATOR(pg_catalog.<)"
		"   (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) pg_catalog.make_interval(secs => $2))"
		"  AND b.sync_id OPERATOR(pg_catalog.<) (SELECT pg_catalog.max(l.sync_id) FROM feedpub.batch l"
		"   WHERE l.feed OPERATOR(pg_catalog.=) $1)),"
		" merged AS ("
		" SELECT pg_catalog.max(o.sync_id) AS sync_id, pg_catalog.min(o.sync_id) AS first,"
		"  pg_catalog.max(o.last_pos) AS last_pos, pg_catalog.sum(o.transactions)::pg_catalog.int4 AS transactions"
		" FROM old o GROUP BY pg_catalog.floor(o.part) HAVING pg_catalog.count(*) OPERATOR(pg_catalog.>) 1),"
		" kept AS ("
		" UPDATE feedpub.batch b SET last_pos = m.last_pos, transactions = m.transactions"
		" FROM merged m WHERE b.feed OPERATOR(pg_catalog.=) $1"
		"  AND b.sync_id OPERATOR(pg_catalog.=) m.sync_id)"
		" DELETE FROM feedpub.batch b USING merged m"
		" WHERE b.feed OPERATOR(pg_catalog.=) $1"
		"  AND b.sync_id OPERATOR(pg_catalog.>=) m.first"
		"  AND b.sync_id OPERATOR(pg_catalog.<) m.sync_id";
	Oid			argtypes[3] = {REGCLASSOID, FLOAT8OID, NUMERICOID};
	Datum		values[3];
	int			ngone;

	if (!feedpub_batch_lock(relid, false))
		return 0;
	values[0] = ObjectIdGetDatum(relid);
	values[1] = Float8GetDatum((double) feedpub_batch_retention);
	values[2] = DirectFunctionCall1(int4_numeric, Int32GetDatum(feedpub_max_batch_transactions));
	SPI_connect();
	if (SPI_execute_with_args(sql, 3, argtypes, values, NULL, false, 0) != SPI_OK_DELETE)
		elog(ERROR, "could not merge the batches of feed with OID %u", relid);
	ngone = (int) SPI_processed;
	SPI_finish();
	return ngone;
}
