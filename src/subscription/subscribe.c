/*-------------------------------------------------------------------------
 *
 * subscribe.c
 *	  feed_subscribe(), feed_alter_subscription(), feed_seek() and
 *	  feed_unsubscribe().
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "subscription/subscription.h"

PG_FUNCTION_INFO_V1(feed_subscribe);
PG_FUNCTION_INFO_V1(feed_subscribe_at);
PG_FUNCTION_INFO_V1(feed_alter_subscription);
PG_FUNCTION_INFO_V1(feed_unsubscribe);
PG_FUNCTION_INFO_V1(feed_seek);
PG_FUNCTION_INFO_V1(feed_seek_at);

/* how short and how long a lease may be, in ms */
#define MIN_LEASE		1000
#define MAX_LEASE		(24 * 3600 * 1000)

/* columns of feedpub._subscription */
#define ANUM_SUBSCRIPTION_OWNER			3
#define ANUM_SUBSCRIPTION_OWNER_NAME	4
#define ANUM_SUBSCRIPTION_SYSTEM_ID		5
#define ANUM_SUBSCRIPTION_SHARDS		6

static FeedpubStatement insert_subscription = {
	.sql = "INSERT INTO feedpub._subscription (name, feed, owner, owner_name, system_id, shards, lease, max_attempts, backoff)"
		   " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT DO NOTHING",
	.nargs = 9,
	.argtypes = {TEXTOID, REGCLASSOID, OIDOID, NAMEOID, INT8OID, INT4OID, INTERVALOID, INT4OID,
				 INTERVALARRAYOID},
};

static FeedpubStatement insert_shards = {
	.sql = "INSERT INTO feedpub._shard (subscription, shard, cursor, state)"
		   " SELECT $1, n, $3, $4 FROM pg_catalog.generate_series(0, $2 - 1) n",
	.nargs = 4,
	.argtypes = {TEXTOID, INT4OID, TEXTOID, INT8OID},
};

/* NULL: as it is */
static FeedpubStatement alter_subscription = {
	.sql = "UPDATE feedpub._subscription SET lease = COALESCE($2, lease),"
		   " max_attempts = COALESCE($3, max_attempts), backoff = COALESCE($4, backoff)"
		   " WHERE name = $1",
	.nargs = 4,
	.argtypes = {TEXTOID, INTERVALOID, INT4OID, INTERVALARRAYOID},
};

static FeedpubStatement lock_subscription = {
	.sql = "SELECT FROM feedpub._subscription WHERE name = $1 FOR UPDATE",
	.nargs = 1,
	.argtypes = {TEXTOID},
};

static FeedpubStatement delete_subscription = {
	.sql = "DELETE FROM feedpub._subscription WHERE name = $1",
	.nargs = 1,
	.argtypes = {TEXTOID},
};

static FeedpubStatement delete_state = {
	.sql = "WITH shards AS (DELETE FROM feedpub._shard WHERE subscription = $1),"
		   " parked AS (DELETE FROM feedpub._parked_entry WHERE subscription = $1)"
		   " DELETE FROM feedpub._consumer WHERE subscription = $1",
	.nargs = 1,
	.argtypes = {TEXTOID},
};

static FeedpubStatement select_owner = {
	.sql = "SELECT feed, owner, owner_name, system_id FROM feedpub._subscription"
		   " WHERE name = $1",
	.nargs = 1,
	.argtypes = {TEXTOID},
};

static Datum subscribe(FunctionCallInfo fcinfo, bool at_time);
static void check_shards(int shards);
static void check_settings(FunctionCallInfo fcinfo, int lease_arg,
						   int max_attempts_arg, int backoff_arg);
static void check_backoff(ArrayType *backoff);
static text *find_start(FunctionCallInfo fcinfo, int arg, Oid feed,
						bool at_time);
static text *use_existing(text *name, Oid feed);
static void check_shards_of_role(int shards);
static int64 count_shards(Oid relid);
static void refuse_taken_name(text *name);
static bool add_subscription(Datum *values, const char *nulls);
static void load_locked(FeedpubSubscription *sub, bool found);
static Datum seek(FunctionCallInfo fcinfo, bool at_time);

/*
 * feed_subscribe(name text, feed regclass, start text DEFAULT 'latest',
 * shards int DEFAULT 1, lease interval DEFAULT '30 seconds',
 * max_attempts int DEFAULT NULL, if_not_exists boolean DEFAULT false,
 * backoff interval[] DEFAULT NULL)
 * returns text, VOLATILE
 *
 * Makes a subscription, which belongs to the caller.  It begins at start:
 * 'earliest', 'latest', a cursor, or a time, which stands for the end of the
 * last batch published at or before it.  Returns the cursor that start stands
 * for at this time.
 *
 * shards is 1 to 1024: so many consumers may read at once, each the keys of
 * its shards.  lease, one second to one day, is how long a consumer that named
 * itself keeps its shards without polling or acknowledging.  max_attempts is
 * the number of failures after which feed_nack() no longer has an entry
 * delivered again; NULL: no limit.  backoff is how long feed_nack() parks an
 * entry after its first failure, after its second, and so on; the last element
 * is for all that follow.  With if_not_exists, if a subscription of that name
 * and feed exists and the caller may use it, nothing is made, and its cursor is
 * returned.
 *
 * Needs SELECT on the feed's table.  Errors: 42710 if the name is taken,
 * 42809 if feed is no feed, 22023 for a bad argument, 22007 for an invalid
 * start, 53400 if the caller's subscriptions would have too many shards, 0A000
 * for shards of a feed that cannot be divided, PF001, PF002, 42501.
 */
Datum
feed_subscribe(PG_FUNCTION_ARGS)
{
	return subscribe(fcinfo, false);
}

/*
 * The same with start timestamptz.
 */
Datum
feed_subscribe_at(PG_FUNCTION_ARGS)
{
	return subscribe(fcinfo, true);
}

static Datum
subscribe(FunctionCallInfo fcinfo, bool at_time)
{
	static const char *const names[] = {"name", "feed", "start", "shards", "lease",
										NULL, "if_not_exists", NULL};
	text	   *name;
	Oid			feed;
	int			shards;
	Interval   *lease;
	Relation	heap;
	text	   *cursor;
	FeedpubRole caller;
	Datum		values[9];
	char		nulls[] = "         ";
	NameData	owner_name;

	feedpub_argument_check(fcinfo, lengthof(names), names);
	name = PG_GETARG_TEXT_PP(0);
	feed = PG_GETARG_OID(1);
	shards = PG_GETARG_INT32(3);
	lease = PG_GETARG_INTERVAL_P(4);
	feedpub_subscription_check_name(name, "name");
	check_shards(shards);
	check_settings(fcinfo, 4, 5, 7);
	if (PG_GETARG_BOOL(6) && (cursor = use_existing(name, feed)) != NULL)
		PG_RETURN_TEXT_P(cursor);

	/* the table is locked after the role and the name (feed/feed.h) */
	if (feedpub_registry_is_registered(feed))
		feedpub_require_select(feed);
	PreventCommandIfReadOnly("feed_subscribe()");
	values[0] = PointerGetDatum(name);
	values[1] = ObjectIdGetDatum(feed);
	namestrcpy(&owner_name, GetUserNameFromId(GetUserId(), false));
	values[2] = ObjectIdGetDatum(GetUserId());
	values[3] = NameGetDatum(&owner_name);
	values[4] = Int64GetDatum((int64) GetSystemIdentifier());
	values[5] = Int32GetDatum(shards);
	values[6] = IntervalPGetDatum(lease);
	values[7] = PG_GETARG_DATUM(5);
	nulls[7] = PG_ARGISNULL(5) ? 'n' : ' ';
	values[8] = PG_GETARG_DATUM(7);
	nulls[8] = PG_ARGISNULL(7) ? 'n' : ' ';
	check_shards_of_role(shards);
	if (!add_subscription(values, nulls))
	{
		/* another session has just made it */
		text	   *existing = PG_GETARG_BOOL(6) ? use_existing(name, feed) : NULL;

		if (existing == NULL)
			refuse_taken_name(name);
		PG_RETURN_TEXT_P(existing);
	}

	heap = feedpub_registry_open(feed);
	cursor = find_start(fcinfo, 2, feed, at_time);
	if (shards > 1)
	{
		FeedpubFeed found;

		feedpub_registry_get(feed, &found);
		feedpub_key_check_shards(&found, heap);
	}

	/* one of that name, dropped with its feed, may have left its state */
	feedpub_store_begin(&caller);
	feedpub_store_run(&delete_state, values, NULL);
	values[1] = Int32GetDatum(shards);
	values[2] = PointerGetDatum(cursor);
	values[3] = Int64GetDatum(feedpub_receipt_draw());
	feedpub_store_run(&insert_shards, values, NULL);
	feedpub_store_end(&caller);
	feedpub_repeat_forget(name, shards);
	relation_close(heap, NoLock);
	PG_RETURN_TEXT_P(cursor);
}

static void
check_shards(int shards)
{
	if (shards < 1 || shards > FEEDPUB_MAX_SHARDS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"shards\" must be between 1 and %d", FEEDPUB_MAX_SHARDS)));
}

/*
 * Check the settings of a subscription that are given, by the numbers of their
 * arguments.
 */
static void
check_settings(FunctionCallInfo fcinfo, int lease_arg, int max_attempts_arg,
			   int backoff_arg)
{
	if (!PG_ARGISNULL(lease_arg))
	{
		int64		ms = feedpub_argument_ms(PG_GETARG_INTERVAL_P(lease_arg));

		if (ms < MIN_LEASE || ms > MAX_LEASE)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("argument \"lease\" must be between one second and one day")));
	}
	if (!PG_ARGISNULL(max_attempts_arg) && PG_GETARG_INT32(max_attempts_arg) < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"max_attempts\" must be at least 1")));
	if (!PG_ARGISNULL(backoff_arg))
		check_backoff(PG_GETARG_ARRAYTYPE_P(backoff_arg));
}

static void
check_backoff(ArrayType *backoff)
{
	Datum	   *delays;
	int			ndelays = ArrayGetNItems(ARR_NDIM(backoff), ARR_DIMS(backoff));

	if (ARR_NDIM(backoff) != 1 || ndelays > FEEDPUB_MAX_BACKOFF)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"backoff\" must be a one-dimensional array of 1 to %d intervals",
						FEEDPUB_MAX_BACKOFF)));
	if (array_contains_nulls(backoff))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("argument \"backoff\" must not contain null values")));
	delays = feedpub_subscription_delays(backoff, &ndelays);
	for (int i = 0; i < ndelays; i++)
	{
		if (feedpub_argument_ms(DatumGetIntervalP(delays[i])) < 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("argument \"backoff\" must not contain negative intervals")));
	}
}

/*
 * The cursor that start stands for, in the history that the feed has until we
 * have ended.  The snapshot is taken under the locks: one from before may be
 * of a history that has ended meanwhile, or of an older floor.
 */
static text *
find_start(FunctionCallInfo fcinfo, int arg, Oid feed, bool at_time)
{
	text	   *cursor;

	(void) feedpub_registry_lock_history(feed, RowExclusiveLock, true);
	(void) feedpub_floor_lock(feed, RowExclusiveLock, true);
	PushActiveSnapshot(GetLatestSnapshot());
	cursor = at_time ?
		feedpub_start_at(feed, PG_GETARG_TIMESTAMPTZ(arg)) :
		feedpub_start_find(feed, PG_GETARG_TEXT_PP(arg));
	PopActiveSnapshot();
	return cursor;
}

/*
 * The cursor of an existing subscription, if it is of the feed and the caller
 * may use it, or else NULL.  If it has several shards, that of the first.
 */
static text *
use_existing(text *name, Oid feed)
{
	FeedpubSubscription sub;

	if (!feedpub_subscription_find(name, NULL, 0, &sub) || sub.feed != feed ||
		!has_privs_of_role(GetUserId(), sub.owner) || sub.nloaded == 0)
		return NULL;
	ereport(NOTICE,
			(errcode(ERRCODE_DUPLICATE_OBJECT),
			 errmsg("subscription \"%s\" already exists, skipping",
					text_to_cstring(name))));
	return sub.shards[0].cursor;
}

/*
 * Error 53400 if the caller's subscriptions would have more shards together
 * than feedpub.max_subscription_shards.
 *
 * A lock of the role, as an object of class feedpub._subscription, is held
 * until the transaction ends, so one transaction at a time counts and adds.
 * The snapshot is a new one in any isolation level, so it sees all that was
 * added under the lock before.  A role waits only for itself.
 */
static void
check_shards_of_role(int shards)
{
	Oid			relid = feedpub_registry_table("_subscription");
	LOCKTAG		tag;
	int64		used;

	if (superuser())
		return;
	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, relid, GetUserId(), 0);
	(void) LockAcquire(&tag, ExclusiveLock, false, false);
	used = count_shards(relid);
	if (used + shards > feedpub_max_subscription_shards)
	{
		/* those of dropped tables do not count */
		(void) feedpub_registry_sweep(FEEDPUB_SWEEP_ROWS);
		used = count_shards(relid);
	}
	if (used + shards > feedpub_max_subscription_shards)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("subscriptions of role \"%s\" cannot have more than %d shards together",
						GetUserNameFromId(GetUserId(), false),
						feedpub_max_subscription_shards),
				 errdetail("They have " INT64_FORMAT ", and this one would have %d.",
						   used, shards),
				 errhint("Remove some with feed_unsubscribe(), or have a superuser raise feedpub.max_subscription_shards.")));
}

/*
 * How many shards the caller's subscriptions have.
 */
static int64
count_shards(Oid relid)
{
	Relation	table = table_open(relid, AccessShareLock);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	SysScanDesc scan = systable_beginscan(table, InvalidOid, false, snapshot, 0, NULL);
	HeapTuple	tuple;
	int64		count = 0;

	while ((tuple = systable_getnext(scan)) != NULL)
	{
		Datum		values[ANUM_SUBSCRIPTION_SHARDS];

		CHECK_FOR_INTERRUPTS();
		for (int i = ANUM_SUBSCRIPTION_OWNER; i <= ANUM_SUBSCRIPTION_SHARDS; i++)
		{
			bool		isnull;

			values[i - 1] = heap_getattr(tuple, i, RelationGetDescr(table), &isnull);
		}
		if (feedpub_subscription_find_owner(DatumGetObjectId(values[ANUM_SUBSCRIPTION_OWNER - 1]),
											NameStr(*DatumGetName(values[ANUM_SUBSCRIPTION_OWNER_NAME - 1])),
											DatumGetInt64(values[ANUM_SUBSCRIPTION_SYSTEM_ID - 1])) == GetUserId())
			count += DatumGetInt32(values[ANUM_SUBSCRIPTION_SHARDS - 1]);
	}
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(table, AccessShareLock);
	return count;
}

/*
 * Refuse a name that is taken.  If the caller may not know of the subscription
 * that has it, the message says only that it could not be made.
 */
static void
refuse_taken_name(text *name)
{
	MemoryContext context = CurrentMemoryContext;
	FeedpubRole caller;
	Datum		values[1];
	Oid			feed = InvalidOid;
	Oid			owner = InvalidOid;
	bool		isnull;

	values[0] = PointerGetDatum(name);
	feedpub_store_begin(&caller);
	if (feedpub_store_run(&select_owner, values, NULL) > 0)
	{
		feed = DatumGetObjectId(feedpub_store_value(0, 1, &isnull));
		owner = feedpub_subscription_find_owner(DatumGetObjectId(feedpub_store_value(0, 2, &isnull)),
												NameStr(*DatumGetName(feedpub_store_value(0, 3, &isnull))),
												DatumGetInt64(feedpub_store_value(0, 4, &isnull)));
	}
	feedpub_store_end(&caller);
	MemoryContextSwitchTo(context);
	if (feedpub_subscription_may_know(owner, feed))
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_OBJECT),
				 errmsg("subscription \"%s\" already exists",
						text_to_cstring(name))));
	ereport(ERROR,
			(errcode(ERRCODE_DUPLICATE_OBJECT),
			 errmsg("cannot make a subscription of this name"),
			 errhint("Choose another name.")));
}

/*
 * Add the row of a subscription.  Returns false if the name is taken; that of
 * a subscription whose table was dropped is not.
 */
static bool
add_subscription(Datum *values, const char *nulls)
{
	bool		added = false;

	for (int i = 0; i < 2 && !added; i++)
	{
		if (i > 0)
			(void) feedpub_registry_sweep(FEEDPUB_SWEEP_ROWS);
		added = feedpub_store_execute(&insert_subscription, values, nulls) == 1;
	}
	return added;
}

/*
 * feed_alter_subscription(name text, lease interval DEFAULT NULL,
 * max_attempts int DEFAULT NULL, backoff interval[] DEFAULT NULL)
 * returns void, VOLATILE
 *
 * Changes settings of a subscription, which are as in feed_subscribe(); those
 * that are NULL stay as they are.  Calls that begin after it is committed go by
 * the new ones.  Parked entries stay as they are until they fail again, and
 * leases until they are renewed; but one that ends more than two new leases
 * from now counts as run out, as always (lease.c).
 *
 * The shards stay: they are a division of the keys, and each has a cursor of
 * its own.  After another division a key could be in a shard whose cursor has
 * passed entries of it that were not delivered, which would be lost.
 *
 * Needs the rights of the subscription's owner.  Errors: 42704 if there is no
 * such subscription, 42P01 if its feed was dropped, 22023 or 22004 for a bad
 * argument, 25006, 40001 in higher isolation, 42501.
 *
 * It locks the row of feedpub._subscription, which only another call of this
 * and what removes the subscription wait for.  Consumers' calls have read all
 * settings in one row, old or new: one that goes by the old is as if it had
 * come first.
 */
Datum
feed_alter_subscription(PG_FUNCTION_ARGS)
{
	static const char *const names[] = {"name"};
	FeedpubSubscription sub;
	Datum		values[4];
	char		nulls[] = "    ";

	feedpub_argument_check(fcinfo, lengthof(names), names);
	check_settings(fcinfo, 1, 2, 3);
	feedpub_subscription_load(PG_GETARG_TEXT_PP(0), NULL, 0, &sub);
	PreventCommandIfReadOnly("feed_alter_subscription()");
	feedpub_subscription_require_feed(&sub);
	for (int i = 0; i < lengthof(values); i++)
	{
		values[i] = PG_GETARG_DATUM(i);
		nulls[i] = PG_ARGISNULL(i) ? 'n' : ' ';
	}
	load_locked(&sub, feedpub_store_execute(&alter_subscription, values, nulls) > 0);
	PG_RETURN_VOID();
}

/*
 * Load a subscription again, after a statement that waits for rows of it and
 * has locked some if found is set.  While it waited, the subscription may have
 * been removed, and the name be another's, perhaps of another role and feed.
 */
static void
load_locked(FeedpubSubscription *sub, bool found)
{
	Oid			feed = sub->feed;

	feedpub_subscription_load(sub->name, NULL, -1, sub);
	if (!found || sub->feed != feed)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("subscription \"%s\" does not exist any more",
						text_to_cstring(sub->name)),
				 errdetail("It was removed, and another one of its name was made.")));
}

/*
 * feed_unsubscribe(name text) returns void
 *
 * Removes a subscription, with its committed cursors, leases and parked
 * entries.  Waits for open transactions that have acknowledged.  Errors: 42704
 * if there is no such subscription, 25006, 40001 in higher isolation, 42501.
 */
Datum
feed_unsubscribe(PG_FUNCTION_ARGS)
{
	static const char *const names[] = {"name"};
	FeedpubSubscription sub;
	Datum		values[1];

	feedpub_argument_check(fcinfo, lengthof(names), names);
	feedpub_subscription_load(PG_GETARG_TEXT_PP(0), NULL, 0, &sub);
	PreventCommandIfReadOnly("feed_unsubscribe()");
	values[0] = PointerGetDatum(sub.name);
	load_locked(&sub, feedpub_store_execute(&lock_subscription, values, NULL) > 0);
	(void) feedpub_store_execute(&delete_subscription, values, NULL);
	(void) feedpub_lease_lock_all(&sub);
	(void) feedpub_store_execute(&delete_state, values, NULL);
	PG_RETURN_VOID();
}

/*
 * feed_seek(name text, start text) returns text, VOLATILE
 *
 * Moves all shards of a subscription to start, as feed_subscribe() takes it.
 * Leases end, and earlier receipts no longer count.  Parked entries stay
 * parked, also if start is before them: pages leave them out.  Waits for open
 * transactions that have acknowledged.  Returns the cursor.  Errors: those of
 * feed_subscribe(), 42704.
 */
Datum
feed_seek(PG_FUNCTION_ARGS)
{
	return seek(fcinfo, false);
}

/*
 * The same with start timestamptz.
 */
Datum
feed_seek_at(PG_FUNCTION_ARGS)
{
	return seek(fcinfo, true);
}

static Datum
seek(FunctionCallInfo fcinfo, bool at_time)
{
	static const char *const names[] = {"name", "start"};
	FeedpubSubscription sub;
	Relation	heap;
	text	   *cursor;
	int64		state = feedpub_receipt_draw();

	feedpub_argument_check(fcinfo, lengthof(names), names);
	feedpub_subscription_load(PG_GETARG_TEXT_PP(0), NULL, 0, &sub);
	PreventCommandIfReadOnly("feed_seek()");
	feedpub_subscription_require_feed(&sub);

	/* what removes it waits for the shards, so it stays until we end */
	load_locked(&sub, feedpub_lease_lock_all(&sub));
	heap = feedpub_registry_open(sub.feed);
	cursor = find_start(fcinfo, 1, sub.feed, at_time);

	/* a new state, so that earlier receipts no longer count */
	for (int i = 0; i < sub.nloaded; i++)
	{
		sub.shards[i].cursor = cursor;
		sub.shards[i].state = state;
		sub.shards[i].page = 0;
		sub.shards[i].consumer = NULL;
		feedpub_shard_write(&sub, &sub.shards[i]);
	}
	feedpub_repeat_forget(sub.name, sub.nshards);
	relation_close(heap, NoLock);
	PG_RETURN_TEXT_P(cursor);
}
