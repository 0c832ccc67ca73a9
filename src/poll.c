/*-------------------------------------------------------------------------
 *
 * poll.c
 *	  Reading from the place of a subscription, and moving it.
 *
 * feed_poll() reads a page behind the place of a shard, which stays where it
 * is; feed_ack() moves it when the page has been dealt with.  So what is lost
 * on the way is handed out again: at least once.  A consumer that acknowledges
 * in the transaction in which it writes what came of the page has both or
 * neither: exactly once, if it commits only what has "moved" the place.
 *
 * The place is moved by one UPDATE that compares token and place (lease.c has
 * the argument), and only forward.  It is in an ordinary table, so it goes
 * with the transaction.  Between the two calls nothing is locked.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_type.h"
#include "common/pg_prng.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "feedpub.h"

PG_FUNCTION_INFO_V1(feed_poll);
PG_FUNCTION_INFO_V1(feed_poll_typed);
PG_FUNCTION_INFO_V1(feed_ack);
PG_FUNCTION_INFO_V1(feed_ack_poll);
PG_FUNCTION_INFO_V1(feed_wait_poll);
PG_FUNCTION_INFO_V1(feedpub_lag);

/* What an acknowledgement did. */
typedef enum AckResult
{
	ACK_MOVED,
	ACK_SAME,
	ACK_BEHIND,
	ACK_AHEAD,
	ACK_LOST,
} AckResult;

static const char *const ack_names[] = {"moved", "same", "behind", "ahead", "lost"};

/* Forward only, if the token holds. */
static FeedpubStatement move_place = {
	.sql = "UPDATE feedpub._shard h SET cursor = $6,"
		   " last_ack = pg_catalog.clock_timestamp(), page_token = $7,"
		   " leased_until = CASE WHEN $8 AND h.consumer IS NOT NULL"
		   "  THEN pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) $9 ELSE h.leased_until END"
		   " WHERE h.subscription OPERATOR(pg_catalog.=) $1 AND h.shard OPERATOR(pg_catalog.=) $2"
		   " AND feedpub._cursor_moves(h.cursor, $6)"
		   " AND" FEEDPUB_TOKEN_HOLDS,
	.nargs = 9,
	.argtypes = {TEXTOID, INT4OID, INT8OID, BOOLOID, INT8OID,
				 TEXTOID, INT8OID, BOOLOID, INTERVALOID},
};

/* why it has not been moved */
static FeedpubStatement compare_place = {
	.sql = "SELECT" FEEDPUB_TOKEN_HOLDS ", feedpub._cursor_compare(h.cursor, $6) OPERATOR(pg_catalog.=) 0"
		   " FROM feedpub._shard h"
		   " WHERE h.subscription OPERATOR(pg_catalog.=) $1 AND h.shard OPERATOR(pg_catalog.=) $2",
	.nargs = 6,
	.argtypes = {TEXTOID, INT4OID, INT8OID, BOOLOID, INT8OID, TEXTOID},
};

/* A page being returned. */
typedef struct PagePutter
{
	ReturnSetInfo *rsinfo;
	text	   *cursor;
	Datum		ops[FEEDPUB_OP_TRUNCATE + 1];
	Datum		values[5];
	bool		nulls[5];
} PagePutter;

static void refuse_null(FunctionCallInfo fcinfo, int arg, const char *name);
static bool note_moved(FeedpubSubscription *sub, text *cursor,
					   const FeedpubToken *token);
static void poll(FunctionCallInfo fcinfo, FeedpubSubscription *sub,
				 int first_arg, Oid typed);
static int	choose_shards(FeedpubSubscription *sub, text *consumer,
						  FeedpubShard **shards);
static void refuse_several(const FeedpubSubscription *sub);
static void read_page(FeedpubSubscription *sub, FeedpubShard *shard,
					  int max_rows, FeedpubPage *page);
static int	count_shown(const FeedpubPage *page);
static void put_page(ReturnSetInfo *rsinfo, FeedpubPage *page, int64 token,
					 bool typed);
static void put_rows(PagePutter *putter, const FeedpubPage *page);
static bool put_entry(FeedpubJsonEntry *entry, void *arg);
static void put_row(PagePutter *putter, const FeedpubPageRow *row);
static AckResult ack(FeedpubSubscription *sub, text *cursor,
					 const FeedpubToken *token);
static AckResult settle(FeedpubSubscription *sub, text *cursor,
						const FeedpubToken *token);
static bool cursor_is_ahead(Oid feed, const FeedpubCursor *cursor);
static bool await_news(FeedpubSubscription *sub, text *consumer);
static int64 wait_limit(const FeedpubSubscription *sub, List *shards);
static bool has_news(FeedpubSubscription *sub);
static List *waited_shards(FeedpubSubscription *sub, text *consumer);
static void find_first_place(List *shards, FeedpubCursor *first);
static bool some_due(FeedpubSubscription *sub, List *shards);

/*
 * feed_poll(name text, max_rows int, consumer text DEFAULT '')
 * returns TABLE (cursor text, op text, entry json, token bigint, error text),
 * VOLATILE
 *
 * Reads what lies behind a subscription's cursor: at most max_rows entries
 * (and feedpub.max_page_rows), all of one shard.  The cursor stays where it
 * is.  op is as in feed_read(); entry is the row as an object, without the
 * columns of the stamp, of a delete its key, and else null; also null if it
 * cannot be made, and then error says why, SQLSTATE and message.  The last row's
 * cursor, and its token, go to feed_ack() when all of them have been dealt
 * with; that of an earlier row when those up to it have.
 *
 * A consumer that names itself leases shards, which nobody else reads as long
 * as it polls or acknowledges in time, and gets a page of one of them in turn.
 * With more than one shard it must.  Names must be different: two of one name
 * are handed the same entries, and only one of them can acknowledge.  One that
 * polls in a transaction holds what it leased there until it ends.
 *
 * An entry that was set aside and is due (feed_retry(), feed_nack()) comes
 * before others, alone; after them when it has failed since something new was
 * acknowledged.
 *
 * Needs the rights of the subscription's owner, and SELECT on the table, whose
 * row security it obeys.  Without a name it writes nothing, and works on a
 * standby.  Errors: 42704 when there is no such subscription, 22023 for a bad
 * max_rows or consumer, 25006 with a name where nothing can be written, 40001
 * in higher isolation, PF001, PF002, 42501.
 *
 * The verbs are PgQ's, pgmq's and other queues'.
 */
Datum
feed_poll(PG_FUNCTION_ARGS)
{
	FeedpubSubscription sub;

	refuse_null(fcinfo, 0, "name");
	refuse_null(fcinfo, 2, "consumer");
	feedpub_subscription_load(PG_GETARG_TEXT_PP(0), PG_GETARG_TEXT_PP(2), -1, &sub);
	poll(fcinfo, &sub, 1, InvalidOid);
	return (Datum) 0;
}

/*
 * feed_poll(feed anyelement, name text, max_rows int, consumer text)
 * returns TABLE (cursor text, op text, entry anyelement, token bigint),
 * VOLATILE
 *
 * The same with rows of the feed's table, called as feed_poll(NULL::kv, ...);
 * consumer is '' for one without a name.
 * Error 42809 when the subscription is of another feed.
 */
Datum
feed_poll_typed(PG_FUNCTION_ARGS)
{
	FeedpubSubscription sub;
	Oid			relid = feedpub_fetch_feed_argument(fcinfo);

	refuse_null(fcinfo, 1, "name");
	refuse_null(fcinfo, 3, "consumer");
	feedpub_subscription_load(PG_GETARG_TEXT_PP(1), PG_GETARG_TEXT_PP(3), -1, &sub);
	poll(fcinfo, &sub, 2, relid);
	return (Datum) 0;
}

/*
 * feed_ack(name text, cursor text, token bigint DEFAULT NULL,
 * strict boolean DEFAULT false)
 * returns text, VOLATILE
 *
 * Moves a subscription's cursor to one that feed_poll() returned with this
 * token, and says what it did: moved; same, it was there already; behind, it
 * was further; ahead, the feed has not got there; or lost: another consumer
 * has the shard now, or has moved the cursor of the page in between.  Only
 * moved writes anything.  With strict, anything else is an error: for
 * consumers that acknowledge in the transaction with what they did, which
 * must not commit then.
 *
 * Without a token the cursor is moved forward whoever got there, unless a
 * consumer with a name holds the lease; not with more than one shard.
 *
 * For a retried entry, which is known by its token, moved says that it is set
 * aside no longer, and behind that it is gone, or has been set aside again
 * since it was handed out; the cursor of the others stays.
 *
 * Locks the shard's row until the transaction ends.  Errors: 42704, 22023 for
 * a malformed cursor or a missing token, PF001 for a cursor of another
 * history, 25006, 40001, 42501; with strict PF003 for lost, 55000 for same,
 * behind and ahead.
 */
Datum
feed_ack(PG_FUNCTION_ARGS)
{
	FeedpubSubscription sub;
	AckResult	result;
	FeedpubToken token = feedpub_lease_parse(fcinfo, 2);

	refuse_null(fcinfo, 0, "name");
	refuse_null(fcinfo, 1, "cursor");
	refuse_null(fcinfo, 3, "strict");
	feedpub_subscription_load(PG_GETARG_TEXT_PP(0), NULL, token.shard, &sub);
	result = ack(&sub, PG_GETARG_TEXT_PP(1), &token);
	if (PG_GETARG_BOOL(3) && result == ACK_LOST)
		feedpub_lease_refuse(sub.name);
	if (PG_GETARG_BOOL(3) && result != ACK_MOVED)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("could not move the cursor of subscription \"%s\": %s",
						text_to_cstring(sub.name), ack_names[result])));
	PG_RETURN_TEXT_P(cstring_to_text(ack_names[result]));
}

/*
 * feed_ack_poll(name text, cursor text, token bigint, max_rows int,
 * consumer text DEFAULT '')
 * returns as feed_poll(), VOLATILE
 *
 * feed_ack() of the last page and feed_poll() of the next, in one round trip.
 * With a NULL cursor nothing is acknowledged, as for the first page.  A lost
 * lease is an error, PF003, and a cursor that is ahead, 22023; then nothing
 * was read.
 */
Datum
feed_ack_poll(PG_FUNCTION_ARGS)
{
	FeedpubSubscription sub;

	refuse_null(fcinfo, 0, "name");
	refuse_null(fcinfo, 4, "consumer");
	feedpub_subscription_load(PG_GETARG_TEXT_PP(0), PG_GETARG_TEXT_PP(4), -1, &sub);
	if (!PG_ARGISNULL(1))
	{
		FeedpubToken token = feedpub_lease_parse(fcinfo, 2);
		AckResult	result = ack(&sub, PG_GETARG_TEXT_PP(1), &token);

		if (result == ACK_LOST)
			feedpub_lease_refuse(sub.name);
		if (result == ACK_AHEAD)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("cursor is ahead of the feed of subscription \"%s\"",
							text_to_cstring(sub.name))));

		/* what the statement has moved is known; else somebody moved it */
		if (result != ACK_MOVED || !note_moved(&sub, PG_GETARG_TEXT_PP(1), &token))
			feedpub_subscription_load(PG_GETARG_TEXT_PP(0), PG_GETARG_TEXT_PP(4), -1, &sub);
	}
	poll(fcinfo, &sub, 3, InvalidOid);
	return (Datum) 0;
}

static void
refuse_null(FunctionCallInfo fcinfo, int arg, const char *name)
{
	if (PG_ARGISNULL(arg))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must not be null", name)));
}

/*
 * Note in what has been read of a subscription that the place of a token's
 * shard was moved.  Not for a retried entry, whose own place that is; nor
 * without a token, for then what the shard was left with is not known.
 *
 * The row may have been another when it was moved, taken by another since it
 * was read and given back: then the page has a token that will not hold.
 */
static bool
note_moved(FeedpubSubscription *sub, text *cursor, const FeedpubToken *token)
{
	FeedpubShard *shard = &sub->shards[token->shard];

	if (token->retry || !token->given || token->shard >= sub->nloaded ||
		shard->shard != token->shard)
		return false;
	shard->cursor = cursor;
	shard->page_token = token->bits;
	if (token->leased && shard->consumer != NULL)
		shard->leased_until = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), sub->lease_ms);
	return true;
}

/*
 * Hand out a page of one of the consumer's shards, given the subscription and
 * the arguments from max_rows on; typed is the table whose rows are wanted.
 *
 * An entry that is due again comes before what is new.  But where it has failed
 * since the place moved last it comes after: or one that is tried again at once
 * and fails again would be all that is ever handed out.
 */
static void
poll(FunctionCallInfo fcinfo, FeedpubSubscription *sub, int first_arg,
	 Oid typed)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	text	   *consumer = PG_GETARG_TEXT_PP(PG_NARGS() - 1);
	FeedpubShard *shards;
	FeedpubPage *filtered = NULL;
	FeedpubShard *filtered_shard = NULL;
	int			nshards;
	int			first;
	int			max_rows;
	bool		hurried;

	refuse_null(fcinfo, first_arg, "max_rows");
	max_rows = PG_GETARG_INT32(first_arg);
	if (max_rows < 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("max_rows must be at least 1")));
	if (OidIsValid(typed) && typed != sub->feed)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("subscription \"%s\" is not of feed \"%s\"",
						text_to_cstring(sub->name), get_rel_name(typed))));
	hurried = !await_news(sub, consumer);
	nshards = choose_shards(sub, consumer, &shards);
	InitMaterializedSRF(fcinfo, 0);

	/* begin with any, so that none waits for ever for busier ones */
	first = nshards > 1 ? (int) pg_prng_uint64_range(&pg_global_prng_state, 0, nshards - 1) : 0;
	for (int i = 0; i < 2 * nshards; i++)
	{
		FeedpubShard *shard = &shards[(first + i) % nshards];
		FeedpubPage *page = palloc0_object(FeedpubPage);
		bool		again = i >= nshards;
		int			attempts = 0;

		if (again && filtered != NULL)
			break;
		if (again && shard->parked == 0)
			continue;
		page->heap = feedpub_registry_open(sub->feed);
		page->hurried = hurried;
		if (shard->parked > 0)
			attempts = feedpub_park_find_due(sub, page, shard, again);
		if (attempts == 0 && !again)
			read_page(sub, shard, Min(max_rows, feedpub_max_page_rows), page);
		hurried |= page->hurried;
		if (count_shown(page) > 0)
		{
			put_page(rsinfo, page, feedpub_lease_token(shard, attempts),
					 OidIsValid(typed));
			relation_close(page->heap, NoLock);
			return;
		}
		relation_close(page->heap, NoLock);
		if (!again && filtered == NULL && feedpub_page_ends_filtered(page))
		{
			filtered = page;
			filtered_shard = shard;
		}
	}

	/* how far one got without finding any */
	if (filtered != NULL)
		put_page(rsinfo, filtered, feedpub_lease_token(filtered_shard, 0),
				 OidIsValid(typed));
}

/*
 * Wait for the publisher, as a page does (page.c), before a lease is taken or
 * renewed: that writes, and a transaction with an id does not wait.  Returns
 * whether to wait on: not where the publisher has been waited for in vain.
 */
static bool
await_news(FeedpubSubscription *sub, text *consumer)
{
	List	   *shards;
	FeedpubCursor first;

	if (VARSIZE_ANY_EXHDR(consumer) == 0 || feedpub_read_wait <= 0 ||
		XactReadOnly || RecoveryInProgress() || IsolationUsesXactSnapshot() ||
		!feedpub_lease_is_due(sub, text_to_cstring(consumer)))
		return true;
	feedpub_require_select(sub->feed);
	shards = waited_shards(sub, consumer);
	if (shards == NIL || some_due(sub, shards))
		return true;
	find_first_place(shards, &first);
	return feedpub_wait_for_batch(sub->feed, &first, 0, 0) ||
		!has_news(sub) ||
		feedpub_wait_for_batch(sub->feed, &first, wait_limit(sub, shards), 0);
}

/*
 * How long a consumer that polls in time may wait and keep its leases, in ms.
 */
static int64
wait_limit(const FeedpubSubscription *sub, List *shards)
{
	int64		limit = Min(feedpub_read_wait, sub->lease_ms / 3);
	TimestampTz now = GetCurrentTimestamp();
	ListCell   *lc;

	foreach(lc, shards)
	{
		FeedpubShard *shard = lfirst(lc);

		/* half of what is left, for the renewal needs some time too */
		if (feedpub_lease_is_held(sub, shard))
			limit = Min(limit, Max((shard->leased_until - now) / 2000, 0));
	}
	return limit;
}

/*
 * Have rows been committed that are not published yet?
 */
static bool
has_news(FeedpubSubscription *sub)
{
	Relation	heap = feedpub_registry_open(sub->feed);
	FeedpubFeed feed;
	FeedpubBatch last;
	bool		result = false;

	feedpub_registry_get(sub->feed, &feed);
	feedpub_batch_last(sub->feed, PG_INT64_MAX, GetActiveSnapshot(), &last);
	feedpub_batch_refuse_foreign(&feed, &last);
	if (feedpub_check_has_indexes(heap))
		result = feedpub_publish_has_news(&feed, heap, GetActiveSnapshot(),
										  &last.snapshot);

	/* as in wait.c, who waits must not be in the way of an ALTER TABLE */
	relation_close(heap, AccessShareLock);
	return result;
}

/*
 * The shards that a consumer may read.  Without a name, the only one, unless
 * somebody else holds it.
 */
static int
choose_shards(FeedpubSubscription *sub, text *consumer, FeedpubShard **shards)
{
	if (VARSIZE_ANY_EXHDR(consumer) > 0)
		return feedpub_lease_take(sub, consumer, shards);
	refuse_several(sub);
	*shards = sub->shards;
	if (sub->nloaded == 0 || feedpub_lease_is_held(sub, sub->shards))
		return 0;
	sub->shards[0].consumer = NULL;
	return 1;
}

/*
 * Refuse a consumer without a name where there are several shards.
 */
static void
refuse_several(const FeedpubSubscription *sub)
{
	if (sub->nshards > 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("subscription \"%s\" has %d shards",
						text_to_cstring(sub->name), sub->nshards),
				 errhint("Its consumers must name themselves, as in feed_poll(..., consumer => 'worker 1').")));
}

/*
 * Read the page behind the place of a shard, less what was set aside.
 */
static void
read_page(FeedpubSubscription *sub, FeedpubShard *shard, int max_rows,
		  FeedpubPage *page)
{
	feedpub_cursor_parse(shard->cursor, &page->after);
	page->max_rows = max_rows;
	page->shard = shard->shard;
	page->shards = sub->nshards;
	if (shard->consumer != NULL)
		page->max_wait = sub->lease_ms / 3;
	feedpub_page_read(page);
	if (shard->parked > 0)
		feedpub_park_hide(sub, shard, page);
}

static int
count_shown(const FeedpubPage *page)
{
	int			nshown = 0;

	for (int i = 0; i < page->nrows; i++)
		nshown += page->rows[i].entry != NULL;
	return nshown;
}

/*
 * Return the rows of a page.
 */
static void
put_page(ReturnSetInfo *rsinfo, FeedpubPage *page, int64 token, bool typed)
{
	PagePutter	putter = {.rsinfo = rsinfo};
	StringInfoData json;

	putter.cursor = feedpub_cursor_text(&page->after);
	for (int i = 0; i < lengthof(putter.ops); i++)
		putter.ops[i] = CStringGetTextDatum(feedpub_entry_op_names[i]);
	putter.values[0] = PointerGetDatum(putter.cursor);
	putter.values[3] = Int64GetDatum(token);
	initStringInfo(&json);
	if (typed)
		put_rows(&putter, page);
	else
		(void) feedpub_json_entries(page, &json, put_entry, &putter);
	if (feedpub_page_ends_filtered(page))
	{
		feedpub_cursor_print(&page->passed, VARDATA(putter.cursor));
		putter.values[1] = CStringGetTextDatum("end");
		putter.nulls[2] = putter.nulls[4] = true;
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, putter.values, putter.nulls);
	}
}

/*
 * As rows of the table.
 */
static void
put_rows(PagePutter *putter, const FeedpubPage *page)
{
	for (int i = 0; i < page->nrows; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (page->rows[i].entry == NULL)
			continue;
		putter->values[2] = heap_copy_tuple_as_datum(page->rows[i].entry,
													 RelationGetDescr(page->heap));
		put_row(putter, &page->rows[i]);
		pfree(DatumGetPointer(putter->values[2]));
	}
}

/*
 * As JSON: the row, of a delete its key.
 */
static bool
put_entry(FeedpubJsonEntry *entry, void *arg)
{
	PagePutter *putter = arg;
	bool		is_upsert = entry->row->op == FEEDPUB_OP_UPSERT;
	int			start = is_upsert ? entry->value : entry->key;
	int			length = is_upsert ? entry->value_length : entry->key_length;
	text	   *object = NULL;

	putter->nulls[2] = length == 0 || entry->error != NULL;
	putter->nulls[4] = entry->error == NULL;
	if (!putter->nulls[2])
		object = cstring_to_text_with_len(entry->json->data + start, length);
	putter->values[2] = PointerGetDatum(object);
	if (entry->error != NULL)
		putter->values[4] = CStringGetTextDatum(entry->error);
	put_row(putter, entry->row);
	if (object != NULL)
		pfree(object);
	resetStringInfo(entry->json);
	return true;
}

static void
put_row(PagePutter *putter, const FeedpubPageRow *row)
{
	feedpub_cursor_print(&row->cursor, VARDATA(putter->cursor));
	putter->values[1] = putter->ops[row->op];
	tuplestore_putvalues(putter->rsinfo->setResult, putter->rsinfo->setDesc,
						 putter->values, putter->nulls);
}

/*
 * Acknowledge.  The subscription has been read, with at least the shard that
 * the token names.
 */
static AckResult
ack(FeedpubSubscription *sub, text *cursor, const FeedpubToken *token)
{
	FeedpubCursor to;
	FeedpubRole caller;
	Datum		values[9];
	char		nulls[] = "         ";
	AckResult	result = ACK_LOST;
	bool		isnull;

	PreventCommandIfReadOnly("feed_ack()");
	feedpub_cursor_parse(cursor, &to);
	feedpub_lease_check(sub, token);
	feedpub_require_select(sub->feed);
	if (token->retry)
		return settle(sub, cursor, token);
	if (cursor_is_ahead(sub->feed, &to))
		return ACK_AHEAD;

	feedpub_lease_bind(sub, token, values, nulls);
	values[5] = PointerGetDatum(cursor);
	values[6] = Int64GetDatum(feedpub_lease_claim(token));
	values[7] = BoolGetDatum(token->leased);
	values[8] = IntervalPGetDatum(sub->lease);
	feedpub_store_begin(&caller);
	if (feedpub_store_run(&move_place, values, nulls) == 1)
		result = ACK_MOVED;
	else if (feedpub_store_run(&compare_place, values, nulls) == 1 &&
			 DatumGetBool(feedpub_store_value(0, 1, &isnull)))
		result = DatumGetBool(feedpub_store_value(0, 2, &isnull)) ? ACK_SAME : ACK_BEHIND;
	feedpub_store_end(&caller);
	return result;
}

/*
 * Acknowledge an entry that had been set aside: only once.
 */
static AckResult
settle(FeedpubSubscription *sub, text *cursor, const FeedpubToken *token)
{
	text	   *place;

	if (!feedpub_lease_lock(sub, token, &place))
		return ACK_LOST;
	return feedpub_park_settle(sub, token->shard, list_make1(cursor), token->attempts) ?
		ACK_MOVED :
		ACK_BEHIND;
}

/*
 * Has the feed not got to a cursor?  Refuses one of another history.
 */
static bool
cursor_is_ahead(Oid feed, const FeedpubCursor *cursor)
{
	FeedpubBatchScan *batches;
	FeedpubBatch batch;
	FeedpubFloor floor;
	Snapshot	snapshot;
	bool		is_ahead;
	bool		is_known;

	if (!cursor->given)
		return false;
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	feedpub_registry_floor(feed, snapshot, &floor);
	if (cursor->history != floor.history)
		feedpub_page_refuse_cursor(feed);
	if (feedpub_cursor_batch(cursor) == 0)
	{
		UnregisterSnapshot(snapshot);
		return false;
	}
	batches = feedpub_batch_begin(feed, cursor->sync_id, snapshot);
	is_ahead = !feedpub_batch_next(batches, &batch);
	is_known = is_ahead || feedpub_batch_knows(&batch, cursor);
	if (!is_ahead && batch.sync_id == cursor->sync_id &&
		cursor->pos > batch.last_pos)
		is_ahead = true;
	feedpub_batch_end(batches);
	UnregisterSnapshot(snapshot);
	if (!is_known)
		feedpub_page_refuse_cursor(feed);
	return is_ahead;
}

/*
 * feed_wait_poll(name text, timeout interval, consumer text DEFAULT '')
 * returns boolean, VOLATILE
 *
 * Waits until feed_poll() may have something for the consumer; false when
 * nothing came in time.  A consumer with a name is let go after a third of its
 * lease at the latest, so that it polls and renews it.  Looks once if the
 * transaction has a transaction id.  Holds a snapshot while
 * it waits, and nothing else.  Errors: as feed_poll(), 22023 for a negative
 * timeout.
 */
Datum
feed_wait_poll(PG_FUNCTION_ARGS)
{
	FeedpubSubscription sub;
	FeedpubCursor first;
	TimestampTz next_due = DT_NOEND;
	text	   *consumer;
	int64		timeout;
	List	   *shards;
	ListCell   *lc;

	refuse_null(fcinfo, 0, "name");
	refuse_null(fcinfo, 1, "timeout");
	refuse_null(fcinfo, 2, "consumer");
	consumer = PG_GETARG_TEXT_PP(2);
	timeout = feedpub_subscription_ms(PG_GETARG_INTERVAL_P(1));
	if (timeout < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("timeout must not be negative")));
	feedpub_subscription_load(PG_GETARG_TEXT_PP(0), consumer, -1, &sub);
	feedpub_require_select(sub.feed);
	if (VARSIZE_ANY_EXHDR(consumer) > 0)
		timeout = Min(timeout, sub.lease_ms / 3);

	shards = waited_shards(&sub, consumer);
	if (shards == NIL)
	{
		/* none is his: as when nothing comes */
		feedpub_wait_sleep(timeout);
		PG_RETURN_BOOL(false);
	}
	if (some_due(&sub, shards))
		PG_RETURN_BOOL(true);

	/* until the first place is passed, or the first entry is due */
	find_first_place(shards, &first);
	foreach(lc, shards)
	{
		FeedpubShard *shard = lfirst(lc);

		if (shard->parked > 0)
			next_due = Min(next_due, feedpub_park_next_due(&sub, shard));
	}
	if (next_due != DT_NOEND)
		timeout = Min(timeout, Max((next_due - GetCurrentTimestamp()) / 1000 + 1, 0));
	PG_RETURN_BOOL(feedpub_wait_for_batch(sub.feed, &first, timeout, 0) ||
				   next_due <= GetCurrentTimestamp());
}

/*
 * The shards of which a poll may hand something out to a consumer: those he
 * has, or, if he has none and some are to be his, any that is free.  Not those
 * of others, nor more than he will get: he would be sent round and round.
 */
static List *
waited_shards(FeedpubSubscription *sub, text *consumer)
{
	char	   *name = text_to_cstring(consumer);
	List	   *own = NIL;
	List	   *unheld = NIL;

	if (name[0] == '\0')
		refuse_several(sub);
	for (int i = 0; i < sub->nloaded; i++)
	{
		FeedpubShard *shard = &sub->shards[i];

		if (name[0] != '\0' && shard->consumer != NULL &&
			strcmp(shard->consumer, name) == 0)
			own = lappend(own, shard);
		else if (!feedpub_lease_is_held(sub, shard))
			unheld = lappend(unheld, shard);
	}
	if (own == NIL && unheld != NIL &&
		(name[0] == '\0' || feedpub_lease_share(sub, consumer) > 0))
		return unheld;
	return own;
}

static void
find_first_place(List *shards, FeedpubCursor *first)
{
	ListCell   *lc;

	foreach(lc, shards)
	{
		FeedpubShard *shard = lfirst(lc);
		FeedpubCursor place;

		feedpub_cursor_parse(shard->cursor, &place);
		if (lc == list_head(shards) || feedpub_cursor_compare(&place, first) < 0)
			*first = place;
	}
}

/*
 * Is there an entry to be handed out again?
 */
static bool
some_due(FeedpubSubscription *sub, List *shards)
{
	bool		found = false;
	ListCell   *lc;

	foreach(lc, shards)
	{
		FeedpubShard *shard = lfirst(lc);
		FeedpubPage page = {0};

		if (found || shard->parked == 0)
			continue;
		page.heap = feedpub_registry_open(sub->feed);
		found = feedpub_park_find_due(sub, &page, shard, false) ||
			feedpub_park_find_due(sub, &page, shard, true);
		relation_close(page.heap, NoLock);
	}
	return found;
}

/*
 * feedpub._lag(feed regclass, cursor text, OUT rows bigint,
 * OUT since timestamptz, OUT expired boolean), VOLATILE
 *
 * What lies behind a cursor: an estimate of the rows, from the positions
 * between; since when the first of them has been published; and whether the
 * cursor has expired.  Two look-ups in an index.  NULLs for who may neither
 * read the feed nor watch over the server.
 */
Datum
feedpub_lag(PG_FUNCTION_ARGS)
{
	Oid			feed = PG_GETARG_OID(0);
	Snapshot	snapshot = GetActiveSnapshot();
	FeedpubCursor cursor;
	FeedpubBatch last;
	FeedpubBatch batch;
	FeedpubBatchScan *batches;
	FeedpubFloor floor;
	TupleDesc	desc;
	Datum		values[3] = {0};
	bool		nulls[3] = {true, true, true};
	int64		number;
	bool		found;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	desc = BlessTupleDesc(desc);
	feedpub_cursor_parse(PG_GETARG_TEXT_PP(1), &cursor);
	if (!feedpub_registry_is_registered(feed) ||
		(!feedpub_may_select(feed) &&
		 !has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS)))
		PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(desc, values, nulls)));

	feedpub_batch_last(feed, PG_INT64_MAX, snapshot, &last);
	number = feedpub_cursor_batch(&cursor);
	batches = feedpub_batch_begin(feed, number, snapshot);
	found = feedpub_batch_next(batches, &batch);
	if (found && batch.sync_id == number &&
		batch.last_pos <= feedpub_batch_passed(&batch, &cursor))
	{
		cursor.pos = batch.last_pos;
		found = feedpub_batch_next(batches, &batch);
	}
	feedpub_batch_end(batches);

	/* rows of several transactions may lie behind a larger position */
	values[0] = Int64GetDatum(found ? Max(last.last_pos - (number > 0 ? cursor.pos : 0), 1) : 0);
	values[1] = TimestampTzGetDatum(found ? batch.published_at : 0);
	nulls[0] = false;
	nulls[1] = !found;
	values[2] = BoolGetDatum(false);
	nulls[2] = false;
	if (feedpub_registry_is_table(feed))
	{
		feedpub_registry_floor(feed, snapshot, &floor);
		values[2] = BoolGetDatum(feedpub_page_is_expired(feed, &cursor, &floor, snapshot));
	}
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(desc, values, nulls)));
}
