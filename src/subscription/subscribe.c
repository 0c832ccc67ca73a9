/*-------------------------------------------------------------------------
 *
 * subscribe.c
 *	  feed_subscribe(), feed_alter_subscription(), feed_seek() and
 *	  feed_unsubscribe().
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"

#include "subscription/subscription.h"

PG_FUNCTION_INFO_V1(feed_subscribe);
PG_FUNCTION_INFO_V1(feed_alter_subscription);
PG_FUNCTION_INFO_V1(feed_unsubscribe);
PG_FUNCTION_INFO_V1(feed_seek);

/* how short and how long a lease may be, in ms */
#define MIN_LEASE		1000
#define MAX_LEASE		(24 * 3600 * 1000)

/* how many delays a backoff may have */
#define MAX_DELAYS		100

static FeedpubStatement insert_subscription = {
	.sql = "INSERT INTO feedpub._subscription (name, feed, owner, owner_name, system_id, shards, lease, max_attempts, backoff, types, delayed)"
		   " VALUES ($1, $2, $3, (SELECT rolname FROM pg_catalog.pg_roles WHERE oid = $3),"
		   "  $4, $5, $6, NULLIF($7, 0), $8, $9, $10) ON CONFLICT DO NOTHING",
};

static FeedpubStatement insert_shards = {
	.sql = "INSERT INTO feedpub._shard (subscription, shard, cursor, state)"
		   " SELECT $1, n, $3, $4 FROM pg_catalog.generate_series(0, $2 - 1) n",
};

/* NULL: as it is; all types are kept as NULL */
static FeedpubStatement alter_subscription = {
	.sql = "UPDATE feedpub._subscription SET lease = COALESCE($2, lease),"
		   " max_attempts = COALESCE($3, max_attempts), backoff = COALESCE($4, backoff),"
		   " types = CASE WHEN $5::text[] IS NULL THEN types WHEN '*' <> ALL ($5) THEN $5 END,"
		   " delayed = COALESCE($6, delayed)"
		   " WHERE name = $1",
};

static FeedpubStatement lock_subscription = {
	.sql = "SELECT FROM feedpub._subscription WHERE name = $1 FOR UPDATE",
};

static FeedpubStatement delete_subscription = {
	.sql = "DELETE FROM feedpub._subscription WHERE name = $1",
};

static FeedpubStatement delete_state = {
	.sql = "WITH shards AS (DELETE FROM feedpub._shard WHERE subscription = $1),"
		   " parked AS (DELETE FROM feedpub._parked_entry WHERE subscription = $1)"
		   " DELETE FROM feedpub._consumer WHERE subscription = $1",
};

static FeedpubStatement count_shards = {
	.sql = "SELECT pg_catalog.sum(shards) FROM feedpub._subscription"
		   " WHERE feedpub._subscription_owner(owner, owner_name, system_id) = $1",
	.latest = true,
};

static void renew_states(FeedpubSubscription *sub);
static void check_settings(FunctionCallInfo fcinfo, int lease_arg,
						   int max_attempts_arg, int backoff_arg);
static void check_backoff(ArrayType *backoff);
static text *find_start(FunctionCallInfo fcinfo, int arg, Oid feed);
static text *use_existing(text *name, Oid feed);
static bool add_subscription(Datum *values, int shards);

/*
 * feed_subscribe(name text, feed regclass, start text DEFAULT 'latest', or
 * start timestamptz,
 * shards int DEFAULT 1, lease interval DEFAULT '30 seconds',
 * max_attempts int DEFAULT NULL, if_not_exists boolean DEFAULT false,
 * backoff interval[] DEFAULT NULL, types text[] DEFAULT NULL,
 * delayed boolean DEFAULT false)
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
 * is for all that follow.  types are those that are delivered (read/types.c);
 * NULL: all.  If delayed, messages are delivered when they are due (delay.c).
 * With if_not_exists, if a subscription of that name
 * and feed exists and the caller may use it, nothing is made, and its cursor is
 * returned.
 *
 * Needs SELECT on the feed's table.  Errors: 42710 if the name is taken,
 * 42809 if feed is no feed, 22023 for a bad argument, 22007 for an invalid
 * start, 53400 if the caller's subscriptions would have too many shards, 0A000
 * for shards of a feed that cannot be divided, and for types of a feed that has
 * none, PF001, PF002, 42501.
 */
Datum
feed_subscribe(PG_FUNCTION_ARGS)
{
	text	   *name;
	Oid			feed;
	int			shards;
	Relation	heap;
	text	   *cursor;
	Datum		values[10];
	FeedpubTypes *types;
	FeedpubFeed found;

	feedpub_argument_check(fcinfo, 0, 5);
	feedpub_argument_check(fcinfo, 6, 1);
	feedpub_argument_check(fcinfo, 9, 1);
	name = PG_GETARG_TEXT_PP(0);
	feed = PG_GETARG_OID(1);
	shards = PG_GETARG_INT32(3);
	feedpub_subscription_check_name(name, "name");
	if (shards < 1 || shards > FEEDPUB_MAX_SHARDS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"shards\" must be between 1 and %d", FEEDPUB_MAX_SHARDS)));
	check_settings(fcinfo, 4, 5, 7);
	types = PG_ARGISNULL(8) ? NULL : feedpub_types_parse(PG_GETARG_ARRAYTYPE_P(8));
	if (PG_GETARG_BOOL(6) && (cursor = use_existing(name, feed)) != NULL)
		PG_RETURN_TEXT_P(cursor);

	/* the table is locked after the role and the name (feed/feed.h) */
	if (feedpub_registry_is_registered(feed))
		feedpub_require_select(feed);
	PreventCommandIfReadOnly("feed_subscribe()");
	values[0] = PointerGetDatum(name);
	values[1] = ObjectIdGetDatum(feed);
	values[2] = ObjectIdGetDatum(GetUserId());
	values[3] = Int64GetDatum((int64) GetSystemIdentifier());
	values[4] = Int32GetDatum(shards);
	values[5] = PG_GETARG_DATUM(4);
	values[6] = Int32GetDatum(PG_ARGISNULL(5) ? 0 : PG_GETARG_INT32(5));
	values[7] = PG_ARGISNULL(7) ? (Datum) 0 : PG_GETARG_DATUM(7);
	values[8] = types == NULL ? (Datum) 0 : PG_GETARG_DATUM(8);
	values[9] = PG_GETARG_DATUM(9);

	/* those of dropped tables do not count, and their names are free */
	(void) feedpub_registry_sweep(FEEDPUB_SWEEP_ROWS);
	if (!add_subscription(values, shards))
	{
		/* another session may have just made it */
		if (!PG_GETARG_BOOL(6) || (cursor = use_existing(name, feed)) == NULL)
			ereport(ERROR,
					(errcode(ERRCODE_DUPLICATE_OBJECT),
					 errmsg("subscription \"%s\" already exists",
							text_to_cstring(name))));
		PG_RETURN_TEXT_P(cursor);
	}

	heap = feedpub_registry_open(feed);
	cursor = find_start(fcinfo, 2, feed);
	feedpub_registry_get(feed, &found);
	if (shards > 1)
		feedpub_key_check_shards(&found, heap);
	if (types != NULL)
		feedpub_types_begin(types, &found, heap);
	if (PG_GETARG_BOOL(9))
		(void) feedpub_delay_column(&found, heap);

	/* one of that name, dropped with its feed, may have left its state */
	(void) feedpub_store_execute(&delete_state, values, NULL);
	values[1] = Int32GetDatum(shards);
	values[2] = PointerGetDatum(cursor);
	values[3] = Int64GetDatum(feedpub_receipt_draw());
	(void) feedpub_store_execute(&insert_shards, values, NULL);
	feedpub_repeat_forget(name, shards);
	relation_close(heap, NoLock);
	PG_RETURN_TEXT_P(cursor);
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
	if (!PG_ARGISNULL(max_attempts_arg))
		feedpub_argument_least(fcinfo, max_attempts_arg, PG_GETARG_INT32(max_attempts_arg), 1);
	if (!PG_ARGISNULL(backoff_arg))
		check_backoff(PG_GETARG_ARRAYTYPE_P(backoff_arg));
}

/*
 * Check the argument "backoff": the delays after the first failure of an entry,
 * the second, and so on; the last is for all that follow (park.c).
 */
static void
check_backoff(ArrayType *backoff)
{
	Datum	   *delays;
	int			ndelays = ArrayGetNItems(ARR_NDIM(backoff), ARR_DIMS(backoff));

	if (ARR_NDIM(backoff) != 1 || ndelays > MAX_DELAYS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"backoff\" must be a one-dimensional array of 1 to %d intervals",
						MAX_DELAYS)));
	if (array_contains_nulls(backoff))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("argument \"backoff\" must not contain null values")));
	deconstruct_array(backoff, INTERVALOID, sizeof(Interval), false,
					  TYPALIGN_DOUBLE, &delays, NULL, &ndelays);
	for (int i = 0; i < ndelays; i++)
	{
		if (feedpub_argument_ms(DatumGetIntervalP(delays[i])) < 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("argument \"backoff\" must not contain negative intervals")));
	}
}

/*
 * The cursor that start stands for, a text or a timestamptz, in the history
 * that the feed has until we have ended.  The snapshot is taken under the locks:
 * one from before may be of a history that has ended meanwhile, or of an older
 * floor.
 */
static text *
find_start(FunctionCallInfo fcinfo, int arg, Oid feed)
{
	text	   *cursor;

	(void) feedpub_registry_lock_history(feed, RowExclusiveLock, true);
	(void) feedpub_floor_lock(feed, RowExclusiveLock, true);
	PushActiveSnapshot(GetLatestSnapshot());
	cursor = get_fn_expr_argtype(fcinfo->flinfo, arg) == TIMESTAMPTZOID ?
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
 * Add the row of a subscription.  Returns false if the name is taken.  Raises
 * 53400 if the caller's subscriptions would have more shards together than
 * feedpub.max_subscription_shards.
 *
 * A lock of the role, as an object of class feedpub._subscription, is held
 * until the transaction ends, so one transaction at a time counts and adds.
 * The snapshot is a new one in any isolation level, so it sees all that was
 * added under the lock before.  A role waits only for itself.
 */
static bool
add_subscription(Datum *values, int shards)
{
	Datum		role[1] = {ObjectIdGetDatum(GetUserId())};
	LOCKTAG		tag;
	int64		used;

	if (!superuser())
	{
		SET_LOCKTAG_OBJECT(tag, MyDatabaseId, feedpub_registry_table("_subscription"), GetUserId(), 0);
		(void) LockAcquire(&tag, ExclusiveLock, false, false);
		used = feedpub_store_number(&count_shards, role, 0);
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
	return feedpub_store_execute(&insert_subscription, values, NULL) == 1;
}

/*
 * feed_alter_subscription(name text, lease interval DEFAULT NULL,
 * max_attempts int DEFAULT NULL, backoff interval[] DEFAULT NULL,
 * types text[] DEFAULT NULL, delayed boolean DEFAULT NULL)
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
 *
 * That would not hold of types.  A poll that waits has read them before the
 * snapshot in which it finds a page, so it could pass, by the old ones, a message
 * that is wanted by the new ones and was written after these were committed.
 * By an old delayed it could deliver before its time what was written by the new
 * one.  Therefore, with these, all shards are locked, and get a new state.  What was
 * passed or acknowledged before stays so; what a poll has read in the old state
 * neither moves a cursor (pass.c) nor can be acknowledged, and is read again.
 */
Datum
feed_alter_subscription(PG_FUNCTION_ARGS)
{
	FeedpubSubscription sub;
	FeedpubTypes *types;
	bool		delays;
	Datum		values[6];
	char		nulls[6];

	feedpub_argument_check(fcinfo, 0, 1);
	check_settings(fcinfo, 1, 2, 3);
	types = PG_ARGISNULL(4) ? NULL : feedpub_types_parse(PG_GETARG_ARRAYTYPE_P(4));
	feedpub_subscription_load(PG_GETARG_TEXT_PP(0), NULL, 0, &sub);
	PreventCommandIfReadOnly("feed_alter_subscription()");
	feedpub_subscription_require_feed(&sub);
	for (int i = 0; i < lengthof(values); i++)
	{
		values[i] = PG_GETARG_DATUM(i);
		nulls[i] = PG_ARGISNULL(i) ? 'n' : ' ';
	}
	feedpub_subscription_load_again(NULL, feedpub_store_execute(&alter_subscription, values, nulls) > 0, &sub);
	if (!PG_ARGISNULL(4) || !PG_ARGISNULL(5))
	{
		feedpub_subscription_load_again(NULL, feedpub_lease_lock_all(&sub), &sub);
		renew_states(&sub);
	}
	delays = !PG_ARGISNULL(5) && PG_GETARG_BOOL(5);
	if (types != NULL || delays)
	{
		Relation	heap = feedpub_registry_open(sub.feed);
		FeedpubFeed feed;

		feedpub_registry_get(sub.feed, &feed);
		if (types != NULL)
			feedpub_types_begin(types, &feed, heap);
		if (delays)
			(void) feedpub_delay_column(&feed, heap);
		relation_close(heap, NoLock);
	}
	PG_RETURN_VOID();
}

/*
 * Write all shards, which are locked, with a new state: earlier receipts no
 * longer count.
 */
static void
renew_states(FeedpubSubscription *sub)
{
	int64		state = feedpub_receipt_draw();

	for (int i = 0; i < sub->nloaded; i++)
	{
		sub->shards[i].state = state;
		sub->shards[i].page = 0;
		feedpub_shard_write(sub, &sub->shards[i]);
	}
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
	FeedpubSubscription sub;
	Datum		values[1];

	feedpub_argument_check(fcinfo, 0, 1);
	feedpub_subscription_load(PG_GETARG_TEXT_PP(0), NULL, 0, &sub);
	PreventCommandIfReadOnly("feed_unsubscribe()");
	values[0] = PointerGetDatum(sub.name);
	feedpub_subscription_load_again(NULL, feedpub_store_execute(&lock_subscription, values, NULL) > 0, &sub);
	(void) feedpub_store_execute(&delete_subscription, values, NULL);
	(void) feedpub_lease_lock_all(&sub);
	(void) feedpub_store_execute(&delete_state, values, NULL);
	PG_RETURN_VOID();
}

/*
 * feed_seek(name text, start text or timestamptz) returns text, VOLATILE
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
	FeedpubSubscription sub;
	Relation	heap;
	text	   *cursor;

	feedpub_argument_check(fcinfo, 0, 2);
	feedpub_subscription_load(PG_GETARG_TEXT_PP(0), NULL, 0, &sub);
	PreventCommandIfReadOnly("feed_seek()");
	feedpub_subscription_require_feed(&sub);

	/* what removes it waits for the shards, so it stays until we end */
	feedpub_subscription_load_again(NULL, feedpub_lease_lock_all(&sub), &sub);
	heap = feedpub_registry_open(sub.feed);
	cursor = find_start(fcinfo, 1, sub.feed);

	for (int i = 0; i < sub.nloaded; i++)
	{
		sub.shards[i].cursor = cursor;
		sub.shards[i].consumer = NULL;
	}
	renew_states(&sub);
	feedpub_repeat_forget(sub.name, sub.nshards);
	relation_close(heap, NoLock);
	PG_RETURN_TEXT_P(cursor);
}
