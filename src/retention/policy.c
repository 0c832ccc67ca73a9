/*-------------------------------------------------------------------------
 *
 * policy.c
 *	  What is to be retained of a feed: feed_retain(), and what the view
 *	  feedpub.feeds shows of it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "catalog/pg_authid.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"

#include "retention/retention.h"

/* the longest time that is retained, in ms: 1000 years of 12 months of 30 days */
#define LONGEST		(INT64CONST(1000) * 12 * 30 * SECS_PER_DAY * 1000)

PG_FUNCTION_INFO_V1(feed_retain);
PG_FUNCTION_INFO_V1(feedpub_retention);

static FeedpubStatement set_policy = {
	.sql = "UPDATE feedpub._feed SET keep = $2, max_age = $3, max_size = NULLIF($4, 0) WHERE feed = $1",
};

static bool check_interval(FunctionCallInfo fcinfo, int arg, const char *name, int64 least);

/*
 * feed_retain(feed regclass, keep interval DEFAULT NULL,
 * max_age interval DEFAULT NULL, max_size bigint DEFAULT NULL)
 * returns void, VOLATILE
 *
 * Sets what is retained of a feed.  Rows of an outbox are kept for keep after
 * they were published, and then until every subscription has acknowledged
 * them.  Rows older than max_age, or more than max_size bytes before the end
 * of the feed, an estimate, are removed even so; subscriptions and cursors
 * before them expire (PF002).  Without keep, only the limits count.  All NULL:
 * nothing is removed.
 *
 * Of a table feed it governs the deletes.  All NULL: the setting
 * feedpub.tombstone_retention does.
 *
 * For the owner only.  Errors: 42809 if it is no feed, 22023 for a negative
 * keep, a max_age or max_size that is not positive, a max_age less than keep,
 * or a max_size of a table; 22004, 42501.
 */
Datum
feed_retain(PG_FUNCTION_ARGS)
{
	Oid			relid;
	Relation	heap;
	FeedpubFeed feed;
	Datum		values[4];
	bool		has_keep;
	bool		has_max_age;

	feedpub_argument_check(fcinfo, 0, 1);
	PreventCommandIfReadOnly("feed_retain()");
	relid = PG_GETARG_OID(0);
	heap = feedpub_registry_open(relid);
	feedpub_registry_get(relid, &feed);
	feedpub_require_owner(relid);
	has_keep = check_interval(fcinfo, 1, "keep", 0);
	has_max_age = check_interval(fcinfo, 2, "max_age", 1);
	if (has_keep && has_max_age &&
		feedpub_argument_ms(PG_GETARG_INTERVAL_P(2)) < feedpub_argument_ms(PG_GETARG_INTERVAL_P(1)))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"max_age\" must not be less than \"keep\"")));
	if (!PG_ARGISNULL(3))
		feedpub_argument_least(fcinfo, 3, PG_GETARG_INT64(3), 1);
	if (!PG_ARGISNULL(3) && !feed.is_outbox)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"max_size\" cannot be used with a table feed")));

	for (int i = 0; i < 4; i++)
		values[i] = PG_ARGISNULL(i) ? (Datum) 0 : PG_GETARG_DATUM(i);
	(void) feedpub_store_execute(&set_policy, values, NULL);
	relation_close(heap, NoLock);
	PG_RETURN_VOID();
}

/*
 * Is this interval given?  Refuses one that is too short, in ms, or too long.
 */
static bool
check_interval(FunctionCallInfo fcinfo, int arg, const char *name, int64 least)
{
	if (PG_ARGISNULL(arg))
		return false;
	if (feedpub_argument_ms(PG_GETARG_INTERVAL_P(arg)) > LONGEST)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" must be at most 1000 years", name)));
	if (feedpub_argument_ms(PG_GETARG_INTERVAL_P(arg)) < least)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 least == 0 ? errmsg("argument \"%s\" must not be negative", name) :
							  errmsg("argument \"%s\" must be at least one millisecond", name)));
	return true;
}

/*
 * feedpub._retention(feed regclass, OUT floor text,
 * OUT floor_moved_at timestamptz, OUT oldest timestamptz, OUT held_by text),
 * VOLATILE
 *
 * The floor of a feed and when it moved, NULL if it never has; when the oldest
 * batch after it was published; and what holds it back, or the rows before it:
 * a subscription, a limit, locked rows, an error.  NULLs if the caller may not read the
 * feed and is no member of pg_read_all_stats, held_by also if it does not own
 * the feed.  Looks at our own tables only, so it waits for no lock.
 */
Datum
feedpub_retention(PG_FUNCTION_ARGS)
{
	Oid			feed = PG_GETARG_OID(0);
	bool		sees_all = has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS);
	Datum		values[4] = {0};
	bool		nulls[4] = {true, true, true, true};

	if (feedpub_registry_is_registered(feed) && (sees_all || feedpub_may_select(feed)))
	{
		Snapshot	snapshot = GetActiveSnapshot();
		FeedpubFloor floor;
		FeedpubCursor cursor;
		FeedpubBatchScan *batches;
		FeedpubBatch batch;
		bool		is_owner = feedpub_owns_relation(feed, GetUserId());
		char	   *holder = NULL;

		feedpub_floor_read(feed, snapshot, &floor);
		if (floor.sync_id > 0)
		{
			feedpub_cursor_at_floor(feed, &floor, snapshot, &cursor);
			values[0] = PointerGetDatum(feedpub_cursor_text(&cursor));
			values[1] = TimestampTzGetDatum(floor.moved_at);
			nulls[0] = nulls[1] = false;
		}
		batches = feedpub_batch_begin(feed, floor.sync_id + 1, snapshot);
		nulls[2] = !feedpub_batch_next(batches, &batch);
		if (!nulls[2])
			values[2] = TimestampTzGetDatum(batch.published_at);
		feedpub_batch_end(batches);
		if (sees_all || is_owner)
			holder = feedpub_retain_holder(feed, &floor, snapshot, is_owner);
		if (holder != NULL)
		{
			values[3] = CStringGetTextDatum(holder);
			nulls[3] = false;
		}
	}
	return feedpub_argument_row(fcinfo, values, nulls);
}
