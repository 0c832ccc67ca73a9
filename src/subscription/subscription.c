/*-------------------------------------------------------------------------
 *
 * subscription.c
 *	  Subscriptions: cursors in published order that the server keeps.
 *
 * A subscription is a name, a feed and an owner in feedpub._subscription.  For
 * each of its shards, feedpub._shard has a row with the committed cursor, the
 * shard's state (receipt.c) and the lease (lease.c).  feed_poll() reads after
 * the committed cursor, and feed_ack() moves it.  A session keeps nothing of a
 * subscription, so subscriptions work through poolers that give each
 * transaction another session.
 *
 * The role that makes a subscription owns it.  To use it, a role needs the
 * rights of the owner, and SELECT on the feed's table.  If a role has neither,
 * no message tells it that the subscription exists, but that a name is taken.
 *
 * The owner is kept by OID, since roles are renamed, and by name, with the
 * system identifier of the server that has both.  On another server, where a
 * dump was restored, the name counts.  A column of type regrole would fail the
 * whole restore if one of the roles is missing; with the name, only a
 * superuser can use such a subscription.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

#include "subscription/subscription.h"

/* how long a name of a subscription or consumer may be, in bytes */
#define MAX_NAME		255

/*
 * $2 is the calling consumer or NULL, $3 a shard.  The newest version of each
 * row of feedpub._shard is the first one, and LIMIT 1 ends the scan there.
 */
#define SELECT_SUBSCRIPTION(shards) \
	"SELECT s.feed, s.owner, s.owner_name, s.system_id, s.lease, s.max_attempts,"                                      \
	" (SELECT c.seen_until FROM feedpub._consumer c"                                                                   \
	"  WHERE c.subscription = $1 AND c.consumer = $2), s.shards, s.backoff, s.types, s.delayed," FEEDPUB_SHARD_COLUMNS \
	" FROM feedpub._subscription s CROSS JOIN " shards " i (shard)"                                                    \
	" LEFT JOIN LATERAL (SELECT o.* FROM feedpub._shard o"                                                             \
	"  WHERE o.subscription = $1 AND o.shard = i.shard AND o.shard < s.shards"                                         \
	"  ORDER BY o.n DESC LIMIT 1) h ON true"                                                                           \
	" WHERE s.name = $1"

static FeedpubStatement select_shard = {
	.sql = SELECT_SUBSCRIPTION("(SELECT $3::int4)"),
};

static FeedpubStatement select_shards = {
	.sql = SELECT_SUBSCRIPTION("pg_catalog.generate_series(0, s.shards - 1)") " ORDER BY i.shard",
};

PG_FUNCTION_INFO_V1(feedpub_subscription_owner);

static uint64 select_subscription(Datum *values, int shard_wanted);

/*
 * The owner of a subscription; InvalidOid if no role here is the owner.
 */
static Oid
find_owner(Oid owner, const char *name, int64 system_id)
{
	if (system_id == (int64) GetSystemIdentifier())
		return owner;
	return get_role_oid(name, true);
}

/*
 * May the caller know that a subscription exists?  Its owner may, and roles
 * that may read its feed.
 */
static bool
may_know(Oid owner, Oid feed)
{
	return has_privs_of_role(GetUserId(), owner) ||
		(get_rel_name(feed) != NULL && feedpub_may_select(feed));
}

void
feedpub_subscription_check_name(const text *name, const char *what)
{
	int			length = VARSIZE_ANY_EXHDR(name);

	if (length < 1 || length > MAX_NAME)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" must have 1 to %d bytes", what, MAX_NAME)));
}

/*
 * Read a subscription, in the current memory context, and check that the
 * caller may use it.  consumer is the calling consumer, or NULL.  shard_wanted
 * is the only shard to load, or -1 for all.  Errors: 42704, 42501.
 */
void
feedpub_subscription_load(text *name, const text *consumer, int shard_wanted,
						  FeedpubSubscription *sub)
{
	/* the same error if it exists, but the caller may not know it */
	if (!feedpub_subscription_find(name, consumer, shard_wanted, sub) ||
		!may_know(sub->owner, sub->feed))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("subscription \"%s\" does not exist",
						text_to_cstring(name))));
	if (!has_privs_of_role(GetUserId(), sub->owner))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for subscription \"%s\"",
						text_to_cstring(name)),
				 errdetail("Only its owner, or a role that has the owner's rights, may use it.")));
}

/*
 * Load a subscription again, after a wait, or after a statement that waits for
 * rows of it and has locked some if found is set.  While it waited, the
 * subscription may have been removed, and the name be another's, perhaps of
 * another role and feed.
 */
void
feedpub_subscription_load_again(const text *consumer, bool found,
								FeedpubSubscription *sub)
{
	Oid			feed = sub->feed;
	int			nshards = sub->nshards;

	feedpub_subscription_load(sub->name, consumer, -1, sub);
	if (!found || sub->feed != feed || sub->nshards != nshards)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("subscription \"%s\" does not exist any more",
						text_to_cstring(sub->name)),
				 errdetail("It was removed, and another one of its name was made.")));
}

/*
 * Error 42P01 if a subscription's feed has been dropped.  Its name is not
 * known any more.
 */
void
feedpub_subscription_require_feed(const FeedpubSubscription *sub)
{
	if (get_rel_name(sub->feed) == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("feed of subscription \"%s\" does not exist",
						text_to_cstring(sub->name)),
				 errdetail("Its table has been dropped."),
				 errhint("Use feed_unsubscribe() to remove the subscription.")));
}

/*
 * feedpub_subscription_load() without the check.  Returns false if it does not
 * exist.
 */
bool
feedpub_subscription_find(text *name, const text *consumer, int shard_wanted,
						  FeedpubSubscription *sub)
{
	FeedpubRole caller;
	Datum		values[3];
	uint64		nrows;
	ArrayType  *types = NULL;

	MemSet(sub, 0, sizeof(FeedpubSubscription));
	sub->name = name;
	if (consumer != NULL)
		feedpub_subscription_check_name(consumer, "consumer");
	values[0] = PointerGetDatum(name);
	values[1] = PointerGetDatum(consumer);
	feedpub_store_begin(&caller);
	nrows = select_subscription(values, shard_wanted);
	if (nrows > 0)
	{
		Oid			owner = DatumGetObjectId(feedpub_store_value(0, 2, NULL));
		char	   *owner_name = NameStr(*DatumGetName(feedpub_store_value(0, 3, NULL)));

		sub->feed = DatumGetObjectId(feedpub_store_value(0, 1, NULL));
		sub->owner = find_owner(owner, owner_name,
								DatumGetInt64(feedpub_store_value(0, 4, NULL)));
		sub->lease_ms = feedpub_argument_ms(DatumGetIntervalP(feedpub_store_value(0, 5, NULL)));
		sub->max_attempts = DatumGetInt32(feedpub_store_value(0, 6, NULL));
		sub->seen_until = DatumGetTimestampTz(feedpub_store_value(0, 7, NULL));
		sub->nshards = DatumGetInt32(feedpub_store_value(0, 8, NULL));
		sub->shards = palloc0(nrows * sizeof(FeedpubShard));
		sub->backoff = feedpub_store_copy(0, 9);
		types = feedpub_store_copy(0, 10);
		sub->delayed = DatumGetBool(feedpub_store_value(0, 11, NULL));

		/* there may be no shard with the wanted number, whose cursor is NULL then */
		for (; sub->nloaded < nrows && feedpub_store_value(0, 14, NULL) != 0; sub->nloaded++)
			feedpub_shard_get(&sub->shards[sub->nloaded], sub->nloaded, 12);
	}
	feedpub_store_end(&caller);
	if (types != NULL)
		sub->types = feedpub_types_parse(types);
	return nrows > 0;
}

/*
 * Select a subscription with one shard or, if that is -1, with all of them.
 * Most have only one, which takes half the time to select; those with more are
 * mostly used again by the session that has used one.  (One statement for both
 * would be planned at each call, since the number of rows depends on $3.)
 */
static uint64
select_subscription(Datum *values, int shard_wanted)
{
	static bool several = false;
	uint64		nrows;

	values[2] = Int32GetDatum(Max(shard_wanted, 0));
	if (shard_wanted >= 0 || !several)
	{
		nrows = feedpub_store_run(&select_shard, values, NULL);
		if (shard_wanted >= 0 || nrows == 0 ||
			DatumGetInt32(feedpub_store_value(0, 8, NULL)) == 1)
			return nrows;
	}
	nrows = feedpub_store_run(&select_shards, values, NULL);
	several = nrows > 1;
	return nrows;
}

/*
 * feedpub._subscription_owner(owner oid, owner_name name, system_id bigint)
 * returns oid, STABLE
 *
 * The same for views.
 */
Datum
feedpub_subscription_owner(PG_FUNCTION_ARGS)
{
	PG_RETURN_OID(find_owner(PG_GETARG_OID(0), NameStr(*PG_GETARG_NAME(1)),
							 PG_GETARG_INT64(2)));
}
