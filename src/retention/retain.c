/*-------------------------------------------------------------------------
 *
 * retain.c
 *	  Where the floor of a feed goes.
 *
 * The owner's policy (policy.c) has three limits.  Rows are kept for "keep"
 * after they were published, and then until every subscription has
 * acknowledged them.  Rows older than max_age, or beyond max_size bytes, are
 * removed even so.
 *
 * The floor goes over whole batches, from the oldest on, and stops at the
 * first one that is to be kept.  So if the clock was put forward for a while,
 * batches of that time hold back the later ones; none is removed too early
 * because a later one has an earlier time.
 *
 * Why "keep" passes no subscription.  The mover has locked the feed's floor
 * before it takes the snapshot that reads the committed cursors.  A session
 * that makes or moves a subscription has locked it against the mover and keeps
 * that until it has committed, and resolves its start with a snapshot that it
 * takes under the lock.  So either the mover sees the subscription, or the
 * subscription sees the floor.  An acknowledgement only moves a cursor
 * forward.
 *
 * Such a session may stay open for any time, and needs no right but SELECT.
 * So if the worker does not get the lock, that counts as a subscription that
 * holds back the oldest batch: "keep" removes nothing, and the limits, which
 * pass subscriptions anyway, go on.  If a limit passes the start that the
 * session has found, the first poll is refused (PF002), as that of any
 * subscription that is passed: a page reads the floor with the snapshot that
 * reads its rows (feed/floor.c).  feed_purge() waits for SUBSCRIBER_TIMEOUT_MS.
 *
 * The floor of a table feed moves rarely, four times in the time for which its
 * deletes are retained, and only if some are to expire.  So there is time to
 * read the initial snapshot, and no cursor is refused for nothing.  What is
 * before a floor is removed later, by a job (job/expire.c).
 *
 * The mover holds the publishing lock, too, before it takes its snapshot: one
 * mover works at a time, and neither a publisher nor a merge works with
 * batches that it removes.  The worker does not wait for it; feed_purge()
 * does.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/relation.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/xid8.h"

#include "retention/retention.h"

/* how many batches the floor passes in one transaction */
#define MAX_BATCHES		10000

/* how long feed_purge() waits for sessions that make subscriptions, in ms */
#define SUBSCRIBER_TIMEOUT_MS	5000

/* how many rows the size of a row is estimated from */
#define SAMPLE_ROWS		100

/* What is to be kept of a feed. */
typedef struct Policy
{
	TimestampTz keep;			/* batches up to then, if acknowledged, may go */
	TimestampTz max_age;		/* batches up to then go */
	int64		size_pos;		/* batches up to this position go */
	List	   *interest;		/* the committed cursors in the oldest batch */
	char	   *holder;			/* the subscription of the first of them */
	char	   *limit;			/* the argument that keeps what is younger */
	const FeedpubCursor *passed;	/* or else: batches up to here go */
} Policy;

/* A feed whose floor is to move. */
typedef struct Mover
{
	FeedpubFeed feed;
	Relation	heap;
	Relation	index;
	Snapshot	snapshot;
	FeedpubFloor floor;
	FeedpubBatch last;
	bool		limits_only;	/* a subscription is being made or moved */
} Mover;

static FeedpubStatement list_feeds = {
	.sql = "SELECT feed FROM feedpub._feed"
		   " WHERE kind <> 'table' AND (keep IS NOT NULL OR max_age IS NOT NULL OR max_size IS NOT NULL)",
};

/*
 * For how many s something is kept; then the limits as times, which are
 * infinite if there are none.  For a table feed the setting is the default.
 */
static FeedpubStatement read_policy = {
	.sql = "SELECT pg_catalog.floor(EXTRACT(epoch FROM LEAST(keep, max_age)))::pg_catalog.int8,"
		   " COALESCE(pg_catalog.clock_timestamp() - keep * $2, '-infinity'),"
		   " COALESCE(pg_catalog.clock_timestamp() - max_age * $2, '-infinity'),"
		   " COALESCE(max_size, -1),"
		   " CASE WHEN keep IS NOT NULL THEN 'keep' WHEN is_set THEN 'max_age'"
		   "  WHEN max_size IS NOT NULL THEN 'max_size' END"
		   " FROM (SELECT keep, max_size, max_age IS NOT NULL AS is_set, COALESCE(max_age,"
		   "   CASE WHEN kind = 'table' AND keep IS NULL AND $3 >= 0 THEN pg_catalog.make_interval(secs => $3) END) AS max_age"
		   "  FROM feedpub._feed WHERE feed = $1) f",
};

/* what holds back a removal: rows that are left, or an error; $3: what it tells of rows */
static FeedpubStatement read_removal = {
	.sql = "SELECT CASE WHEN locked + failed > 0"
		   "  THEN pg_catalog.concat_ws(' and ',"
		   "   CASE WHEN locked = 1 THEN '1 locked row' WHEN locked > 1 THEN locked || ' locked rows' END,"
		   "   CASE WHEN failed = 1 THEN '1 row that failed' WHEN failed > 1 THEN failed || ' rows that failed' END) ||"
		   "   CASE WHEN $3 THEN COALESCE(': ' || last_error, '') ELSE '' END"
		   "  WHEN $3 THEN last_error"
		   "  WHEN last_error IS NOT NULL THEN 'an error' END"
		   " FROM feedpub._job WHERE feed = $1 AND kind <> 'stamp'"
		   "  AND (NOT done OR target <> $2::int8::text::xid8)",
};

static FeedpubStatement read_cursors = {
	.sql = "SELECT h.cursor, s.name FROM feedpub._subscription s"
		   " CROSS JOIN pg_catalog.generate_series(0, s.shards - 1) i (shard),"
		   " LATERAL (SELECT o.cursor FROM feedpub._shard o WHERE o.subscription = s.name"
		   "  AND o.shard = i.shard ORDER BY o.n DESC LIMIT 1) h WHERE s.feed = $1",
};

/*
 * Batches go from the floor before on, $9: older entries of the index may be
 * dead.
 */
static FeedpubStatement write_floor = {
	.sql = "WITH written AS (INSERT INTO feedpub._floor (feed, sync_id, pos, merged, fingerprint, removed_xid, removed_pos, history)"
		   "  VALUES ($1, $2, $3, $4, $5, $6, $7, $8)),"
		   " older AS (DELETE FROM feedpub._floor WHERE feed = $1 AND sync_id < $2)"
		   " DELETE FROM feedpub._batch WHERE feed = $1 AND sync_id < $2 AND sync_id >= $9",
};

/*
 * Has a table feed deletes up to a batch?  Not while it has some before its
 * floor (job/expire.c): then it would move again for those.
 */
static FeedpubStatement find_tombstone = {
	.sql = "SELECT FROM feedpub._tombstone WHERE feed = $1"
		   " AND feed_xid < pg_catalog.pg_snapshot_xmax($2)"
		   " AND pg_catalog.pg_visible_in_snapshot(feed_xid, $2)"
		   " AND NOT EXISTS (SELECT FROM feedpub._work w LEFT JOIN feedpub._job j"
		   "   ON j.feed = w.feed AND j.kind = w.kind AND j.target = w.target"
		   "  WHERE w.feed = $1 AND w.kind = 'expire' AND j.done IS NOT TRUE) LIMIT 1",
};

static int64 move(Oid feed, const FeedpubCursor *before, bool limits_only);
static bool choose(const Mover *mover, const Policy *policy, FeedpubBatch *target);
static bool choose_by_policy(const Mover *mover, double scale, FeedpubBatch *target);
static bool choose_before(const Mover *mover, const FeedpubCursor *before,
						  FeedpubBatch *target);
static void load_policy(const Mover *mover, double scale, Policy *policy);
static void load_interest(const Mover *mover, Policy *policy);
static bool has_passed(const FeedpubCursor *cursor, const FeedpubBatch *batch);
static bool may_go(const Policy *policy, const FeedpubBatch *batch);
static int64 write_move(const Mover *mover, const FeedpubBatch *target);
static void find_largest(const Mover *mover, const FeedpubBatch *target,
						 uint64 *xid, int64 *pos);
static int64 size_limit(const Mover *mover, int64 max_size);
static int64 row_size(const Mover *mover);

/*
 * The outboxes with a policy.
 */
List *
feedpub_retain_list(void)
{
	return feedpub_store_list(&list_feeds, NULL);
}

/*
 * Move the floor of a feed to where its policy has it.  Returns -1 if it
 * stays, else how many batches of an outbox are gone.  Does nothing if the
 * table or the publishing lock is not free.
 */
int64
feedpub_retain_step(Oid feed)
{
	bool		limits_only = !feedpub_floor_lock(feed, ShareLock, false);

	if (!ConditionalLockRelationOid(feed, AccessShareLock) ||
		!feedpub_batch_lock(feed, false))
		return -1;
	return move(feed, NULL, limits_only);
}

/*
 * Move it towards a cursor, over whole batches.  Waits for the locks, but not
 * long until no session makes or moves a subscription.  Returns false if it is
 * there.
 */
bool
feedpub_retain_move_to(Oid feed, const FeedpubCursor *before)
{
	int			nestlevel = NewGUCNestLevel();

	if (LockTimeout == 0 || LockTimeout > SUBSCRIBER_TIMEOUT_MS)
		(void) set_config_option("lock_timeout", CppAsString2(SUBSCRIBER_TIMEOUT_MS),
								 PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE,
								 true, 0, false);
	(void) feedpub_floor_lock(feed, ShareLock, true);
	AtEOXact_GUC(true, nestlevel);
	LockRelationOid(feed, AccessShareLock);
	(void) feedpub_batch_lock(feed, true);
	return move(feed, before, false) >= 0;
}

/*
 * Open a feed.  Returns false if there is nothing to move over.
 */
static bool
begin(Mover *mover, Oid relid)
{
	bool		found = false;

	MemSet(mover, 0, sizeof(Mover));
	mover->heap = try_relation_open(relid, AccessShareLock);
	mover->snapshot = RegisterSnapshot(GetLatestSnapshot());
	PushActiveSnapshot(mover->snapshot);
	if (mover->heap != NULL && feedpub_registry_find(relid, &mover->feed))
	{
		mover->index = index_open(mover->feed.indexid, AccessShareLock);
		feedpub_floor_read(relid, mover->snapshot, &mover->floor);
		feedpub_batch_last(relid, PG_INT64_MAX, mover->snapshot, &mover->last);
		found = mover->last.sync_id > 0 && !feedpub_batch_is_foreign(&mover->last);
	}
	return found;
}

static void
end(Mover *mover)
{
	PopActiveSnapshot();
	UnregisterSnapshot(mover->snapshot);
	if (mover->index != NULL)
		index_close(mover->index, NoLock);
	if (mover->heap != NULL)
		relation_close(mover->heap, NoLock);
}

/*
 * What holds back a floor: a removal, a subscription, or a limit of the policy;
 * NULL if nothing does.  The message of an error may have data of rows: it is
 * for the table's owner.  For a view, so it waits for no lock and does not look
 * at the table: what max_size would remove counts as held, too.
 */
char *
feedpub_retain_holder(Oid relid, const FeedpubFloor *floor, Snapshot snapshot, bool is_owner)
{
	Mover		mover = {.feed.relid = relid, .snapshot = snapshot, .floor = *floor};
	Datum		values[3] = {ObjectIdGetDatum(relid), Int64GetDatum(floor->sync_id), BoolGetDatum(is_owner)};
	FeedpubBatchScan *batches;
	FeedpubBatch batch;
	FeedpubRole caller;
	Policy		policy;
	char	   *holder = NULL;
	Datum		value = (Datum) 0;

	feedpub_store_begin(&caller);
	if (feedpub_store_run(&read_removal, values, NULL) > 0)
		value = feedpub_store_value(0, 1, NULL);
	if (value != 0)
		holder = TextDatumGetCString(value);
	feedpub_store_end(&caller);
	if (holder != NULL)
		return holder;
	load_policy(&mover, 1, &policy);
	batches = feedpub_batch_begin(relid, floor->sync_id + 1, snapshot);
	if (feedpub_batch_next(batches, &batch))
	{
		if (!may_go(&policy, &batch))
			holder = batch.published_at > policy.keep ? policy.limit :
														psprintf("subscription \"%s\"", policy.holder);
		else
		{
			/* would it go by the limits alone? */
			policy.keep = DT_NOBEGIN;
			if (!may_go(&policy, &batch))
				holder = feedpub_floor_subscriber(relid);
		}
	}
	feedpub_batch_end(batches);
	return holder;
}

static int64
move(Oid relid, const FeedpubCursor *before, bool limits_only)
{
	Mover		mover;
	FeedpubBatch target;
	int64		ngone = -1;

	if (begin(&mover, relid))
	{
		mover.limits_only = limits_only;

		/* of a table feed not before some are a quarter older than need be */
		if (before != NULL			 ? choose_before(&mover, before, &target) :
				mover.feed.is_outbox ? choose_by_policy(&mover, 1, &target) :
									   choose_by_policy(&mover, 1.25, &target) &&
					feedpub_store_execute(&find_tombstone, (Datum[]){ObjectIdGetDatum(relid), feedpub_batch_snapshot_datum(&target.snapshot)}, NULL) > 0 && choose_by_policy(&mover, 1, &target))
			ngone = write_move(&mover, &target);
	}
	end(&mover);
	return ngone;
}

/*
 * Choose the batch at whose end the floor may be.  Returns false if the floor
 * stays.  The times of the policy are taken scale times as long.
 */
static bool
choose_by_policy(const Mover *mover, double scale, FeedpubBatch *target)
{
	Policy		policy;

	load_policy(mover, scale, &policy);
	return choose(mover, &policy, target);
}

/*
 * The same for the batches up to a cursor.  Raises 55000 if a subscription
 * needs something of them.
 */
static bool
choose_before(const Mover *mover, const FeedpubCursor *before, FeedpubBatch *target)
{
	Oid			feed = mover->feed.relid;
	Policy		policy = {.keep = DT_NOBEGIN, .max_age = DT_NOBEGIN, .size_pos = -1, .passed = before};
	FeedpubBatchScan *batches;
	FeedpubBatch batch;
	ListCell   *lc;

	if (before->history != mover->floor.history)
		feedpub_cursor_refuse(feed);
	if (feedpub_cursor_batch(before) <= mover->floor.sync_id)
		return false;
	batches = feedpub_batch_begin(feed, before->sync_id, mover->snapshot);
	if (!feedpub_batch_next(batches, &batch) || !feedpub_batch_knows(&batch, before))
		feedpub_cursor_refuse(feed);
	load_interest(mover, &policy);
	foreach(lc, policy.interest)
	{
		const FeedpubCursor *cursor = lfirst(lc);
		bool		in_it = feedpub_cursor_batch(cursor) == batch.sync_id &&
			feedpub_cursor_batch(before) == batch.sync_id;

		/* positions do not tell if others were merged into the batch */
		if (in_it ? feedpub_batch_passed(&batch, cursor) < feedpub_batch_passed(&batch, before) :
					feedpub_cursor_compare(cursor, before) < 0)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("a subscription of feed \"%s\" has not acknowledged everything before that cursor",
							get_rel_name(feed)),
					 errhint("feedpub.subscriptions shows how far each is.  Use feed_seek() or feed_unsubscribe() for one that is to be passed.")));
	}
	feedpub_batch_end(batches);
	return choose(mover, &policy, target);
}

static bool
choose(const Mover *mover, const Policy *policy, FeedpubBatch *target)
{
	FeedpubBatchScan *batches;
	FeedpubBatch batch;
	int			n = 0;

	batches = feedpub_batch_begin(mover->feed.relid, mover->floor.sync_id + 1, mover->snapshot);
	while (n < MAX_BATCHES && feedpub_batch_next(batches, &batch) && may_go(policy, &batch))
	{
		CHECK_FOR_INTERRUPTS();

		/* the last batch of a table feed stays: the next newcomer's base */
		if (!mover->feed.is_outbox && batch.sync_id == mover->last.sync_id)
			break;
		*target = batch;
		n++;
	}
	feedpub_batch_end(batches);
	return n > 0;
}

static void
load_policy(const Mover *mover, double scale, Policy *policy)
{
	Datum		values[3] = {ObjectIdGetDatum(mover->feed.relid), Float8GetDatum(scale),
							 Int32GetDatum(feedpub_tombstone_retention)};
	int64		max_size = -1;
	FeedpubRole caller;

	*policy = (Policy){.keep = DT_NOBEGIN, .max_age = DT_NOBEGIN, .size_pos = -1};
	feedpub_store_begin(&caller);
	if (feedpub_store_run(&read_policy, values, NULL) > 0)
	{
		Datum		limit = feedpub_store_value(0, 5, NULL);

		policy->limit = limit == 0 ? NULL : TextDatumGetCString(limit);
		if (!mover->limits_only)
			policy->keep = DatumGetTimestampTz(feedpub_store_value(0, 2, NULL));
		policy->max_age = DatumGetTimestampTz(feedpub_store_value(0, 3, NULL));
		max_size = DatumGetInt64(feedpub_store_value(0, 4, NULL));
	}
	feedpub_store_end(&caller);
	if (max_size >= 0 && mover->heap != NULL)
		policy->size_pos = size_limit(mover, max_size);
	if (policy->keep != DT_NOBEGIN)
		load_interest(mover, policy);
}

/*
 * For how many s are a feed's deletes retained?  -1: it has none, or they are
 * never removed by their age.
 */
int64
feedpub_retention_of_deletes(const FeedpubFeed *feed)
{
	Datum		values[3] = {ObjectIdGetDatum(feed->relid), Float8GetDatum(1),
							 Int32GetDatum(feedpub_tombstone_retention)};

	return feed->deletes ? feedpub_store_number(&read_policy, values, -1) : -1;
}

/*
 * Find the committed cursors that are in the oldest batch.  Those that are
 * refused anyway, of another history or before the floor, hold back nothing.
 */
static void
load_interest(const Mover *mover, Policy *policy)
{
	Oid			feed = mover->feed.relid;
	Datum		values[1] = {ObjectIdGetDatum(feed)};
	int64		oldest = PG_INT64_MAX;
	FeedpubRole caller;
	uint64		n;

	feedpub_store_begin(&caller);
	n = feedpub_store_run(&read_cursors, values, NULL);
	for (uint64 i = 0; i < n; i++)
	{
		FeedpubCursor cursor;
		int64		number;

		feedpub_cursor_parse(DatumGetTextPP(feedpub_store_value(i, 1, NULL)), &cursor);
		number = feedpub_cursor_batch(&cursor);
		if (cursor.given &&
			(cursor.history != mover->floor.history ||
			 feedpub_cursor_is_expired(feed, &cursor, &mover->floor, mover->snapshot)))
			continue;
		if (number > oldest)
			continue;
		if (number < oldest)
		{
			oldest = number;
			policy->interest = NIL;
			policy->holder = TextDatumGetCString(feedpub_store_value(i, 2, NULL));
		}
		policy->interest = lappend(policy->interest, memcpy(palloc_object(FeedpubCursor), &cursor, sizeof(cursor)));
	}
	feedpub_store_end(&caller);
}

/*
 * Is a cursor at the end of a batch, or after it?
 */
static bool
has_passed(const FeedpubCursor *cursor, const FeedpubBatch *batch)
{
	int64		number = feedpub_cursor_batch(cursor);

	return number > batch->sync_id ||
		(number == batch->sync_id && feedpub_batch_passed(batch, cursor) >= batch->last_pos);
}

/*
 * May a batch go?
 */
static bool
may_go(const Policy *policy, const FeedpubBatch *batch)
{
	ListCell   *lc;

	if (policy->passed != NULL)
		return has_passed(policy->passed, batch);
	if (batch->published_at <= policy->max_age || batch->last_pos <= policy->size_pos)
		return true;
	if (batch->published_at > policy->keep)
		return false;
	foreach(lc, policy->interest)
	{
		if (!has_passed(lfirst(lc), batch))
			return false;
	}
	return true;
}

/*
 * Move the floor to the end of a batch.  Returns how many batches of an outbox
 * are gone.
 *
 * The move is on disk before it is visible, and with it the floor's batch: a
 * page that begins at the floor delivers its cursor.
 */
static int64
write_move(const Mover *mover, const FeedpubBatch *target)
{
	uint64		xid = 0;
	int64		pos = 0;
	Datum		values[9];

	ForceSyncCommit();
	if (mover->feed.is_outbox)
		find_largest(mover, target, &xid, &pos);
	values[0] = ObjectIdGetDatum(mover->feed.relid);
	values[1] = Int64GetDatum(target->sync_id);
	values[2] = Int64GetDatum(target->last_pos);
	values[3] = BoolGetDatum(target->is_merged);
	values[4] = UInt32GetDatum(target->fingerprint);
	values[5] = UInt64GetDatum(xid);
	values[6] = Int64GetDatum(pos);
	values[7] = UInt32GetDatum(mover->floor.history);
	/* the batches of a table feed stay */
	values[8] = Int64GetDatum(mover->feed.is_outbox ? mover->floor.sync_id : target->sync_id);
	return (int64) feedpub_store_execute(&write_floor, values, NULL);
}

/*
 * Find the largest stamp before a floor: that of a row that the snapshot of
 * its batch sees.  The index is read backwards from the xmax of that snapshot,
 * and transactions that it does not see are skipped.
 */
static void
find_largest(const Mover *mover, const FeedpubBatch *target, uint64 *xid, int64 *pos)
{
	IndexScanDesc scan = feedpub_snapshot_begin_scan(mover->heap, mover->index, mover->snapshot, 2);
	TupleTableSlot *slot = table_slot_create(mover->heap, NULL);
	uint64		below = target->snapshot.xmax;
	bool		found = false;
	ScanKeyData keys[2];

	*xid = mover->floor.removed_xid;
	*pos = mover->floor.removed_pos;
	while (!found)
	{
		uint64		at;
		bool		isnull;

		CHECK_FOR_INTERRUPTS();
		ScanKeyInit(&keys[0], 1, BTLessStrategyNumber, F_XID8LT,
					FullTransactionIdGetDatum(FullTransactionIdFromU64(below)));
		ScanKeyInit(&keys[1], 1, BTGreaterEqualStrategyNumber, F_XID8GE,
					FullTransactionIdGetDatum(FullTransactionIdFromU64(*xid)));
		index_rescan(scan, keys, 2, NULL, 0);
		if (!index_getnext_slot(scan, BackwardScanDirection, slot))
			break;
		at = DatumGetUInt64(slot_getattr(slot, mover->feed.xid_attno, &isnull));
		found = feedpub_batch_sees(&target->snapshot, at);
		if (found)
		{
			*pos = Max(DatumGetInt64(slot_getattr(slot, mover->feed.pos_attno, &isnull)),
					   at == *xid ? *pos : 0);
			*xid = at;
		}
		below = at;
	}
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
}

/*
 * The position up to which batches are beyond max_size bytes, or -1.
 *
 * Positions alone would count rows that were rolled back.  So the rows that
 * the server counts are taken to be spread evenly over the positions: its
 * statistics, or after a crash, which forgets these, the last VACUUM's count.
 */
static int64
size_limit(const Mover *mover, int64 max_size)
{
	Oid			relid = mover->feed.relid;
	double		npositions = mover->last.last_pos - mover->floor.pos;
	double		nrows = DatumGetInt64(DirectFunctionCall1(pg_stat_get_live_tuples, ObjectIdGetDatum(relid)));
	double		nkept = (double) max_size / row_size(mover);

	if (nrows == 0)
		nrows = mover->heap->rd_rel->reltuples;
	if (nrows <= nkept || npositions <= nkept)
		return -1;
	return mover->last.last_pos - (int64) (nkept * Max(npositions / nrows, 1));
}

/*
 * The size of a row, in bytes, as the newest ones have it: with the values
 * that are stored out of line.
 */
static int64
row_size(const Mover *mover)
{
	IndexScanDesc scan = feedpub_snapshot_begin_scan(mover->heap, mover->index, mover->snapshot, 0);
	TupleTableSlot *slot = table_slot_create(mover->heap, NULL);
	int64		size = 0;
	int			n = 0;

	index_rescan(scan, NULL, 0, NULL, 0);
	while (n < SAMPLE_ROWS && index_getnext_slot(scan, BackwardScanDirection, slot))
	{
		size += sizeof(HeapTupleHeaderData) + feedpub_relation_row_size(slot, toast_datum_size);
		n++;
	}
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	return Max(n > 0 ? size / n : 1, 1);
}
