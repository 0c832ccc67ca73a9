/*-------------------------------------------------------------------------
 *
 * park.c
 *	  Entries that a consumer cannot deal with: setting them aside, so that the
 *	  rest flows, and handing them out again.
 *
 * feed_park() and feed_nack() write a row into feedpub.parked_entry: the
 * entry's cursor, its stamp, and in a table feed its key; not what is in it.
 * feed_poll() leaves such entries out of its pages, so the consumer may go on
 * at once, acknowledge what lies behind them, or crash and poll again.
 *
 * An entry that is due, a row with retry_at in the past that the shard's place
 * has passed, is handed out before new ones, alone, as often as it is polled:
 * until it is acknowledged by its own cursor and token, or set aside again,
 * or discarded.  What is handed out is read then: a message of an outbox by
 * its stamp, in a table feed the row that has the key now.  Where there is none
 * any more, or the key of a delete lives again, there is nothing left to do.
 *
 * While an entry is set aside others of its key go on.  In a table feed
 * nothing is lost by that, for an entry is the state of its row.  In an
 * outbox, messages that are retried come later than they would have; a
 * consumer to whom that matters parks the ones behind it as well.  Holding them
 * back here would take a list without bounds.
 *
 * Locks: the shard's row first, which has the number of entries set aside,
 * then theirs; so two that meet on an entry come one after the other.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/xlog.h"
#include "catalog/pg_operator.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "feedpub.h"

PG_FUNCTION_INFO_V1(feed_park);
PG_FUNCTION_INFO_V1(feed_nack);
PG_FUNCTION_INFO_V1(feed_retry);
PG_FUNCTION_INFO_V1(feed_discard);

/* how many entries that are due a poll looks at */
#define MAX_DUE		100

/* the shard is the token's, or nobody's: as poll.c's move_place */
static FeedpubStatement lock_shard = {
	.sql = "SELECT FROM feedpub.shard h"
		   " WHERE h.subscription OPERATOR(pg_catalog.=) $1 AND h.shard OPERATOR(pg_catalog.=) $2"
		   " AND CASE WHEN $3 OPERATOR(pg_catalog.>) 0 THEN h.token OPERATOR(pg_catalog.=) $3"
		   "  ELSE (h.consumer IS NULL OR h.leased_until OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp())"
		   "   AND ($3 IS NULL OR h.page_token OPERATOR(pg_catalog.=) $3"
		   "    OR pg_catalog.hashtext(h.cursor) OPERATOR(pg_catalog.=) $4) END"
		   " FOR NO KEY UPDATE",
	.nargs = 4,
	.argtypes = {TEXTOID, INT4OID, INT8OID, INT4OID},
};

static FeedpubStatement park_again = {
	.sql = "UPDATE feedpub.parked_entry SET reason = $4, retry_at = $5,"
		   " attempts = attempts OPERATOR(pg_catalog.+) 1"
		   " WHERE subscription OPERATOR(pg_catalog.=) $1 AND shard OPERATOR(pg_catalog.=) $2"
		   " AND cursor OPERATOR(pg_catalog.=) $3 RETURNING attempts",
	.nargs = 5,
	.argtypes = {TEXTOID, INT4OID, TEXTOID, TEXTOID, TIMESTAMPTZOID},
};

static FeedpubStatement give_up = {
	.sql = "UPDATE feedpub.parked_entry SET retry_at = NULL"
		   " WHERE subscription OPERATOR(pg_catalog.=) $1 AND shard OPERATOR(pg_catalog.=) $2"
		   " AND cursor OPERATOR(pg_catalog.=) $3",
	.nargs = 3,
	.argtypes = {TEXTOID, INT4OID, TEXTOID},
};

static FeedpubStatement park_first = {
	.sql = "WITH counted AS (UPDATE feedpub.shard SET parked = parked OPERATOR(pg_catalog.+) 1"
		   " WHERE subscription OPERATOR(pg_catalog.=) $1 AND shard OPERATOR(pg_catalog.=) $2)"
		   " INSERT INTO feedpub.parked_entry"
		   " (subscription, shard, cursor, reason, retry_at, op, feed_xid, feed_pos)"
		   " VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
	.nargs = 8,
	.argtypes = {TEXTOID, INT4OID, TEXTOID, TEXTOID, TIMESTAMPTZOID, TEXTOID, XID8OID, INT8OID},
};

static FeedpubStatement set_key = {
	.sql = "UPDATE feedpub.parked_entry SET key = $4"
		   " WHERE subscription OPERATOR(pg_catalog.=) $1 AND shard OPERATOR(pg_catalog.=) $2"
		   " AND cursor OPERATOR(pg_catalog.=) $3",
	.nargs = 4,
	.argtypes = {TEXTOID, INT4OID, TEXTOID, TEXTARRAYOID},
};

static FeedpubStatement remove_parked = {
	.sql = "WITH gone AS (DELETE FROM feedpub.parked_entry"
		   " WHERE subscription OPERATOR(pg_catalog.=) $1 AND shard OPERATOR(pg_catalog.=) $2"
		   " AND cursor OPERATOR(pg_catalog.=) $3"
		   " AND (NOT $4 OR retry_at OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp()) RETURNING 1)"
		   " UPDATE feedpub.shard SET parked = parked OPERATOR(pg_catalog.-) 1"
		   " WHERE subscription OPERATOR(pg_catalog.=) $1 AND shard OPERATOR(pg_catalog.=) $2"
		   " AND EXISTS (SELECT FROM gone)",
	.nargs = 4,
	.argtypes = {TEXTOID, INT4OID, TEXTOID, BOOLOID},
};

/* behind the place: those that the shard's pages would bring */
static FeedpubStatement select_hidden = {
	.sql = "SELECT feed_xid, feed_pos, cursor FROM feedpub.parked_entry"
		   " WHERE subscription OPERATOR(pg_catalog.=) $1 AND shard OPERATOR(pg_catalog.=) $2"
		   " AND cursor OPERATOR(pg_catalog.>) $3",
	.nargs = 3,
	.argtypes = {TEXTOID, INT4OID, TEXTOID},
};

/* before it: one ahead of it would take the place along when acknowledged */
static FeedpubStatement select_due = {
	.sql = "SELECT cursor, op, feed_xid, feed_pos, key FROM feedpub.parked_entry"
		   " WHERE subscription OPERATOR(pg_catalog.=) $1 AND shard OPERATOR(pg_catalog.=) $2"
		   " AND cursor OPERATOR(pg_catalog.<=) $3"
		   " AND retry_at OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp()"
		   " ORDER BY retry_at, cursor LIMIT $4",
	.nargs = 4,
	.argtypes = {TEXTOID, INT4OID, TEXTOID, INT4OID},
};

static FeedpubStatement make_due = {
	.sql = "UPDATE feedpub.parked_entry SET retry_at = pg_catalog.clock_timestamp()"
		   " WHERE subscription OPERATOR(pg_catalog.=) $1"
		   " AND ($2 IS NULL OR cursor OPERATOR(pg_catalog.=) $2)",
	.nargs = 2,
	.argtypes = {TEXTOID, TEXTOID},
};

static FeedpubStatement find_shards = {
	.sql = "SELECT shard FROM feedpub.parked_entry"
		   " WHERE subscription OPERATOR(pg_catalog.=) $1 AND cursor OPERATOR(pg_catalog.=) $2",
	.nargs = 2,
	.argtypes = {TEXTOID, TEXTOID},
};

/* An entry that is due. */
typedef struct DueEntry
{
	text	   *cursor;
	FeedpubOp	op;
	uint64		xid;
	int64		pos;
	Datum		key;			/* 0 without one */
	bool		unreadable;		/* which is no value any more */
} DueEntry;

static const char *const op_names[] = {"upsert", "delete", "truncate"};

static bool set_aside(FeedpubSubscription *sub, text *cursor, text *reason,
					  const int64 *token, const TimestampTz *retry_at);
static bool find_entry(FeedpubSubscription *sub, int shard, text *cursor,
					   FeedpubPage *page, FeedpubPageRow **row);
static bool read_entry(FeedpubSubscription *sub, int shard,
					   const FeedpubCursor *after, int max_rows,
					   const FeedpubCursor *wanted,
					   FeedpubPage *page, FeedpubPageRow **row);
static Datum key_of_row(FeedpubPage *page, const FeedpubPageRow *row);
static List *read_due(const FeedpubSubscription *sub, const FeedpubShard *shard);
static HeapTupleHeader read_again(FeedpubPage *page, DueEntry *entry);
static HeapTupleHeader read_message(FeedpubPage *page, DueEntry *entry);
static HeapTupleHeader read_by_key(FeedpubPage *page, DueEntry *entry);
static HeapTupleHeader read_dead_key(FeedpubPage *page, DueEntry *entry);
static Oid	operator_namespace(Oid operator);
static HeapTupleHeader select_row(FeedpubPage *page, const char *condition,
								  int nargs, Oid *argtypes, Datum *values);

/*
 * feed_park(name text, cursor text, reason text, token bigint DEFAULT NULL)
 * returns boolean, VOLATILE
 *
 * Sets an entry that feed_poll() returned with this cursor and token aside, so
 * that it is handed out again only when feed_retry() says so, and the
 * consumer can go on.  Moves no cursor.  False when it is not there any more:
 * its row has been changed since, and comes again, or is gone.
 *
 * In a transaction, what is set aside is so if that commits.  Locks the
 * shard's row until it ends.  Errors: 42704, 22023, 0A000 for a truncate,
 * PF003 for a token that is no longer valid, PF001, 25006, 40001, 42501.
 */
Datum
feed_park(PG_FUNCTION_ARGS)
{
	FeedpubSubscription sub;
	int64		token = 0;
	bool		retry;
	int64		lease;
	int32		hash;

	for (int i = 0; i < 2; i++)
	{
		if (PG_ARGISNULL(i))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("%s must not be null", i == 0 ? "name" : "cursor")));
	}
	if (!PG_ARGISNULL(3))
		token = PG_GETARG_INT64(3);
	feedpub_subscription_load(PG_GETARG_TEXT_PP(0), NULL,
							  PG_ARGISNULL(3) ? 0 : feedpub_lease_read_token(token, &retry, &lease, &hash), &sub);
	PG_RETURN_BOOL(set_aside(&sub, PG_GETARG_TEXT_PP(1),
							 PG_ARGISNULL(2) ? NULL : PG_GETARG_TEXT_PP(2),
							 PG_ARGISNULL(3) ? NULL : &token, NULL));
}

/*
 * feed_nack(name text, cursor text, reason text,
 * delay interval DEFAULT '10 seconds', token bigint DEFAULT NULL)
 * returns boolean, VOLATILE
 *
 * The same, but it is handed out again after delay; not any more when it has
 * failed as often as the subscription's max_attempts says: then it stays
 * aside, as with feed_park().  Error 22023 for a negative delay as well.
 *
 * The consumer acknowledges the page by the last entry that it has dealt with;
 * when it has set all of them aside, it does not, and polls again: an entry
 * that is aside is left out, and an end entry leads past it.
 */
Datum
feed_nack(PG_FUNCTION_ARGS)
{
	static const char *const names[] = {"name", "cursor", "reason", "delay"};
	FeedpubSubscription sub;
	int64		token = 0;
	bool		retry;
	int64		lease;
	int32		hash;
	int64		delay;
	TimestampTz retry_at;

	for (int i = 0; i < lengthof(names); i++)
	{
		if (PG_ARGISNULL(i) && i != 2)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("%s must not be null", names[i])));
	}
	delay = feedpub_subscription_ms(PG_GETARG_INTERVAL_P(3));
	if (delay < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("delay must not be negative")));
	retry_at = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), delay);
	if (!PG_ARGISNULL(4))
		token = PG_GETARG_INT64(4);
	feedpub_subscription_load(PG_GETARG_TEXT_PP(0), NULL,
							  PG_ARGISNULL(4) ? 0 : feedpub_lease_read_token(token, &retry, &lease, &hash), &sub);
	PG_RETURN_BOOL(set_aside(&sub, PG_GETARG_TEXT_PP(1),
							 PG_ARGISNULL(2) ? NULL : PG_GETARG_TEXT_PP(2),
							 PG_ARGISNULL(4) ? NULL : &token, &retry_at));
}

/*
 * feed_retry(name text, cursor text DEFAULT NULL) returns integer, VOLATILE
 *
 * Has an entry that was set aside, or all of a subscription's, handed out
 * again: with the next polls, before new entries and whatever of its key has
 * been handed out since.  Returns how many.  Errors: 42704, 42501.
 */
Datum
feed_retry(PG_FUNCTION_ARGS)
{
	FeedpubSubscription sub;
	FeedpubStoreCaller caller;
	Datum		values[2];
	uint64		n;

	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("name must not be null")));
	feedpub_subscription_load(PG_GETARG_TEXT_PP(0), NULL, 0, &sub);
	values[0] = PointerGetDatum(sub.name);
	values[1] = PG_GETARG_DATUM(1);
	feedpub_store_begin(&caller);
	n = feedpub_store_run(&make_due, values, PG_ARGISNULL(1) ? " n" : NULL);
	feedpub_store_end(&caller);
	PG_RETURN_INT32((int32) n);
}

/*
 * feed_discard(name text, cursor text) returns integer
 *
 * Forgets an entry that was set aside: it is not handed out again.  Returns
 * how many there were, 0 or 1.  Errors: 42704, 42501.
 */
Datum
feed_discard(PG_FUNCTION_ARGS)
{
	FeedpubSubscription sub;
	FeedpubStoreCaller caller;
	Datum		values[2];
	uint64		n;
	int			ngone = 0;
	int		   *shards;
	bool		isnull;
	MemoryContext context = CurrentMemoryContext;

	feedpub_subscription_load(PG_GETARG_TEXT_PP(0), NULL, 0, &sub);
	values[0] = PointerGetDatum(sub.name);
	values[1] = PG_GETARG_DATUM(1);
	feedpub_store_begin(&caller);
	n = feedpub_store_run(&find_shards, values, NULL);
	shards = MemoryContextAlloc(context, Max(n, 1) * sizeof(int));
	for (uint64 i = 0; i < n; i++)
		shards[i] = DatumGetInt32(feedpub_store_value(i, 1, &isnull));
	feedpub_store_end(&caller);
	for (uint64 i = 0; i < n; i++)
		ngone += feedpub_park_settle(&sub, shards[i], PG_GETARG_TEXT_PP(1), false);
	PG_RETURN_INT32(ngone);
}

/*
 * Set an entry aside, to be retried at *retry_at, unless it has failed too
 * often, or is NULL.
 */
static bool
set_aside(FeedpubSubscription *sub, text *cursor, text *reason,
		  const int64 *token, const TimestampTz *retry_at)
{
	FeedpubPage page = {0};
	FeedpubPageRow *row;
	FeedpubStoreCaller caller;
	bool		retry = false;
	int64		lease = 0;
	int32		hash = 0;
	int			shard = 0;
	int			attempts = 1;
	Datum		key = (Datum) 0;
	Datum		values[8];
	char		nulls[9] = "        ";
	bool		isnull;
	bool		known;

	feedpub_require_select(sub->feed);
	if (token != NULL)
		shard = feedpub_lease_read_token(*token, &retry, &lease, &hash);
	else if (sub->nshards > 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("token must not be null"),
				 errdetail("Subscription \"%s\" has %d shards, and the token says which one the cursor is of.",
						   text_to_cstring(sub->name), sub->nshards)));

	values[0] = PointerGetDatum(sub->name);
	values[1] = Int32GetDatum(shard);
	values[2] = Int64GetDatum(lease);
	nulls[2] = token == NULL || (retry && *token < 0) ? 'n' : ' ';
	values[3] = Int32GetDatum(hash);
	nulls[3] = token == NULL || *token > 0 || retry ? 'n' : ' ';
	feedpub_store_begin(&caller);
	if (feedpub_store_run(&lock_shard, values, nulls) == 0)
		feedpub_lease_refuse(sub->name);

	/* one that was aside before */
	values[2] = PointerGetDatum(cursor);
	nulls[2] = ' ';
	values[3] = PointerGetDatum(reason);
	nulls[3] = reason == NULL ? 'n' : ' ';
	values[4] = retry_at ? TimestampTzGetDatum(*retry_at) : (Datum) 0;
	nulls[4] = retry_at == NULL ? 'n' : ' ';
	known = feedpub_store_run(&park_again, values, nulls) > 0;
	if (known)
		attempts = DatumGetInt32(feedpub_store_value(0, 1, &isnull));
	feedpub_store_end(&caller);

	if (!known)
	{
		if (!find_entry(sub, shard, cursor, &page, &row))
			return false;
		if (row->op == FEEDPUB_OP_TRUNCATE)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("a truncate cannot be set aside"),
					 errdetail("Whatever follows it rests on it.")));
		if (!page.feed.is_outbox)
			key = key_of_row(&page, row);
		values[5] = CStringGetTextDatum(op_names[row->op]);
		values[6] = FullTransactionIdGetDatum(FullTransactionIdFromU64(row->xid));
		values[7] = Int64GetDatum(row->cursor.pos);
		relation_close(page.heap, NoLock);
	}
	feedpub_store_begin(&caller);
	if (!known)
		feedpub_store_run(&park_first, values, nulls);
	values[3] = key;
	nulls[3] = ' ';
	if (key != (Datum) 0)
		feedpub_store_run(&set_key, values, NULL);
	if (retry_at != NULL && sub->max_attempts > 0 && attempts >= sub->max_attempts)
		feedpub_store_run(&give_up, values, NULL);
	feedpub_store_end(&caller);
	return true;
}

/*
 * Read the entry of a cursor, which the shard's pages have.  The batch may have
 * been merged since it was handed out: then it is not at once behind the place
 * before it, but still behind the shard's.
 */
static bool
find_entry(FeedpubSubscription *sub, int shard, text *cursor,
		   FeedpubPage *page, FeedpubPageRow **row)
{
	FeedpubCursor wanted;
	FeedpubCursor after;

	feedpub_cursor_parse(cursor, &wanted);
	if (wanted.pos == 0 && wanted.sync_id == 0)
		return false;
	after = wanted;
	after.pos--;
	if (read_entry(sub, shard, &after, 1, &wanted, page, row))
		return true;
	feedpub_cursor_parse(sub->shards[0].cursor, &after);
	return read_entry(sub, shard, &after, feedpub_max_page_rows, &wanted, page, row);
}

static bool
read_entry(FeedpubSubscription *sub, int shard, const FeedpubCursor *after,
		   int max_rows, const FeedpubCursor *wanted,
		   FeedpubPage *page, FeedpubPageRow **row)
{
	MemSet(page, 0, sizeof(FeedpubPage));
	page->after = *after;
	page->max_rows = max_rows;
	page->shard = shard;
	page->shards = sub->nshards;
	page->heap = feedpub_registry_open(sub->feed);
	feedpub_page_read(page);
	for (int i = 0; i < page->nrows; i++)
	{
		*row = &page->rows[i];
		if ((*row)->entry != NULL && (*row)->cursor.pos == wanted->pos &&
			((*row)->cursor.sync_id == 0) == (wanted->sync_id == 0))
			return true;
	}
	relation_close(page->heap, NoLock);
	return false;
}

/*
 * The key of a row, as texts.
 */
static Datum
key_of_row(FeedpubPage *page, const FeedpubPageRow *row)
{
	TupleDesc	desc = RelationGetDescr(page->heap);
	TupleTableSlot *slot = MakeSingleTupleTableSlot(desc, &TTSOpsHeapTuple);
	AttrNumber	attnos[INDEX_MAX_KEYS];
	int			nkeys = feedpub_key_columns(page->feed.keyid, attnos);
	HeapTupleData tuple = {0};
	Datum		key;

	tuple.t_data = row->entry;
	tuple.t_len = HeapTupleHeaderGetDatumLength(row->entry);
	ExecStoreHeapTuple(&tuple, slot, false);
	key = feedpub_key_texts(desc, nkeys, attnos, slot);
	ExecDropSingleTupleTableSlot(slot);
	return key;
}

/*
 * Forget an entry that was set aside; with only_due, unless it has been set
 * aside again since it was handed out, for then it has not been dealt with,
 * whoever acknowledges it.  Returns whether there was one.
 */
bool
feedpub_park_settle(const FeedpubSubscription *sub, int shard, text *cursor,
					bool only_due)
{
	FeedpubStoreCaller caller;
	Datum		values[4];
	bool		found;

	values[0] = PointerGetDatum(sub->name);
	values[1] = Int32GetDatum(shard);
	values[2] = PointerGetDatum(cursor);
	values[3] = BoolGetDatum(only_due);
	feedpub_store_begin(&caller);
	found = feedpub_store_run(&remove_parked, values, NULL) > 0;
	feedpub_store_end(&caller);
	return found;
}

/*
 * Leave the entries that were set aside out of a page.
 */
void
feedpub_park_hide(const FeedpubSubscription *sub, const FeedpubShard *shard,
				  FeedpubPage *page)
{
	FeedpubStoreCaller caller;
	Datum		values[3];
	uint64		n;

	values[0] = PointerGetDatum(sub->name);
	values[1] = Int32GetDatum(shard->shard);
	values[2] = PointerGetDatum(shard->cursor);
	feedpub_store_begin(&caller);
	n = feedpub_store_run(&select_hidden, values, NULL);
	for (uint64 i = 0; i < n; i++)
	{
		bool		isnull;
		uint64		xid = U64FromFullTransactionId(DatumGetFullTransactionId(feedpub_store_value(i, 1, &isnull)));
		int64		pos = DatumGetInt64(feedpub_store_value(i, 2, &isnull));
		FeedpubCursor cursor;

		feedpub_cursor_parse(DatumGetTextPP(feedpub_store_value(i, 3, &isnull)), &cursor);
		for (int j = 0; j < page->nrows; j++)
		{
			FeedpubPageRow *row = &page->rows[j];

			/* places in partitions are those of one batch, which stays */
			if (row->xid == xid && row->cursor.pos == pos &&
				(!feedpub_cursor_is_in_partition(&cursor) ||
				 row->cursor.sync_id == cursor.sync_id))
				row->entry = NULL;
		}
	}
	feedpub_store_end(&caller);
}

/*
 * Make a page of one entry of a shard that is due, if there is one.  Those that
 * there is nothing left to do for are forgotten on the way, where that can be
 * written; not by somebody from whom row security may hide them.
 */
bool
feedpub_park_find_due(const FeedpubSubscription *sub, FeedpubPage *page,
					  const FeedpubShard *shard)
{
	List	   *due = read_due(sub, shard);
	ListCell   *lc;

	if (due == NIL)
		return false;
	feedpub_registry_get(sub->feed, &page->feed);
	feedpub_require_select(sub->feed);
	page->sees_all = check_enable_rls(sub->feed, InvalidOid, true) != RLS_ENABLED;
	foreach(lc, due)
	{
		DueEntry   *entry = lfirst(lc);
		HeapTupleHeader row = read_again(page, entry);

		if (row != NULL)
		{
			page->rows = palloc0_object(FeedpubPageRow);
			page->nrows = 1;
			page->max_rows = 1;
			page->rows[0].op = entry->op;
			page->rows[0].entry = row;
			if (entry->unreadable)
				page->rows[0].texts = entry->key;
			feedpub_cursor_parse(entry->cursor, &page->rows[0].cursor);
			return true;
		}
		if (page->sees_all && !RecoveryInProgress() && !XactReadOnly)
			(void) feedpub_park_settle(sub, shard->shard, entry->cursor, true);
	}
	return false;
}

static List *
read_due(const FeedpubSubscription *sub, const FeedpubShard *shard)
{
	MemoryContext context = CurrentMemoryContext;
	FeedpubStoreCaller caller;
	Datum		values[4];
	List	   *due = NIL;
	uint64		n;

	values[0] = PointerGetDatum(sub->name);
	values[1] = Int32GetDatum(shard->shard);
	values[2] = PointerGetDatum(shard->cursor);
	values[3] = Int32GetDatum(MAX_DUE);
	feedpub_store_begin(&caller);
	n = feedpub_store_run(&select_due, values, NULL);
	MemoryContextSwitchTo(context);
	for (uint64 i = 0; i < n; i++)
	{
		DueEntry   *entry = palloc0_object(DueEntry);
		bool		isnull;
		Datum		value;

		entry->cursor = DatumGetTextPCopy(feedpub_store_value(i, 1, &isnull));
		if (strcmp(TextDatumGetCString(feedpub_store_value(i, 2, &isnull)), "delete") == 0)
			entry->op = FEEDPUB_OP_DELETE;
		entry->xid = U64FromFullTransactionId(DatumGetFullTransactionId(feedpub_store_value(i, 3, &isnull)));
		entry->pos = DatumGetInt64(feedpub_store_value(i, 4, &isnull));
		value = feedpub_store_value(i, 5, &isnull);
		if (!isnull)
			entry->key = PointerGetDatum(DatumGetArrayTypePCopy(value));
		due = lappend(due, entry);
	}
	feedpub_store_end(&caller);
	return due;
}

/*
 * What an entry is now: the message, or the row that has its key; of a delete
 * the key, unless it lives again.  NULL when there is nothing.
 */
static HeapTupleHeader
read_again(FeedpubPage *page, DueEntry *entry)
{
	HeapTupleHeader row;

	if (page->feed.is_outbox)
		return read_message(page, entry);
	if (entry->key == (Datum) 0 || !OidIsValid(page->feed.keyid))
		return NULL;
	page->key = index_open(page->feed.keyid, AccessShareLock);
	page->snapshot = GetActiveSnapshot();
	page->leaves = feedpub_partition_open(&page->feed, page->heap, NULL, true);
	if (entry->op == FEEDPUB_OP_DELETE)
		row = read_dead_key(page, entry);
	else
		row = read_by_key(page, entry);
	feedpub_partition_close(page->leaves);
	index_close(page->key, NoLock);
	return row;
}

static HeapTupleHeader
read_message(FeedpubPage *page, DueEntry *entry)
{
	Oid			argtypes[2] = {XID8OID, INT8OID};
	Datum		values[2];

	values[0] = FullTransactionIdGetDatum(FullTransactionIdFromU64(entry->xid));
	values[1] = Int64GetDatum(entry->pos);
	return select_row(page,
					  "t." FEEDPUB_XID_COLUMN " OPERATOR(pg_catalog.=) $1"
					  " AND t." FEEDPUB_POS_COLUMN " OPERATOR(pg_catalog.=) $2",
					  2, argtypes, values);
}

/*
 * By the operators of the key's index.
 */
static HeapTupleHeader
read_by_key(FeedpubPage *page, DueEntry *entry)
{
	StringInfoData condition;
	Relation	index = page->key;
	Datum		values[INDEX_MAX_KEYS];
	bool		nulls[INDEX_MAX_KEYS];
	Oid			argtypes[INDEX_MAX_KEYS];
	int			nkeys = index->rd_index->indnkeyatts;

	if (!feedpub_key_values(page->heap, index, entry->key, values, nulls))
		return NULL;			/* no row can have it */
	initStringInfo(&condition);
	for (int i = 0; i < nkeys; i++)
	{
		AttrNumber	attno = index->rd_index->indkey.values[i];
		Form_pg_attribute att = TupleDescAttr(RelationGetDescr(page->heap), attno - 1);
		Oid operator= get_opfamily_member(index->rd_opfamily[i],
										  index->rd_opcintype[i],
										  index->rd_opcintype[i],
										  BTEqualStrategyNumber);

		argtypes[i] = att->atttypid;
		appendStringInfo(&condition, "%st.%s OPERATOR(%s.%s) $%d",
						 i > 0 ? " AND " : "", quote_identifier(NameStr(att->attname)),
						 quote_identifier(get_namespace_name(operator_namespace(operator))),
						 get_opname(operator), i + 1);
	}
	return select_row(page, condition.data, nkeys, argtypes, values);
}

static Oid
operator_namespace(Oid operator)
{
	HeapTuple	tuple = SearchSysCache1(OPEROID, ObjectIdGetDatum(operator));
	Oid			result;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for operator %u", operator);
	result = ((Form_pg_operator) GETSTRUCT(tuple))->oprnamespace;
	ReleaseSysCache(tuple);
	return result;
}

/*
 * A row with the key alone, if nothing has it now.  Who is subject to row
 * security gets no deletes.
 */
static HeapTupleHeader
read_dead_key(FeedpubPage *page, DueEntry *entry)
{
	TupleDesc	desc = RelationGetDescr(page->heap);
	Datum	   *values = palloc0(desc->natts * sizeof(Datum));
	bool	   *nulls = palloc(desc->natts * sizeof(bool));
	Datum		keys[INDEX_MAX_KEYS];
	bool		key_nulls[INDEX_MAX_KEYS];
	Datum		living;

	if (!page->sees_all)
		return NULL;
	entry->unreadable = !feedpub_key_values(page->heap, page->key, entry->key, keys, key_nulls);
	if (!entry->unreadable &&
		feedpub_entry_key_lives(page, keys, &living))
		return NULL;
	MemSet(nulls, true, desc->natts * sizeof(bool));
	for (int i = 0; i < page->key->rd_index->indnkeyatts; i++)
	{
		AttrNumber	attno = page->key->rd_index->indkey.values[i];

		values[attno - 1] = keys[i];
		nulls[attno - 1] = key_nulls[i];
	}
	return DatumGetHeapTupleHeader(heap_copy_tuple_as_datum(heap_form_tuple(desc, values, nulls), desc));
}

/*
 * Read a row as the caller, with the snapshot of his query.
 */
static HeapTupleHeader
select_row(FeedpubPage *page, const char *condition, int nargs,
		   Oid *argtypes, Datum *values)
{
	MemoryContext context = CurrentMemoryContext;
	HeapTupleHeader row = NULL;
	bool		isnull;

	SPI_connect();
	if (SPI_execute_with_args(psprintf("SELECT t FROM %s t WHERE %s",
									   feedpub_relation_name(RelationGetRelid(page->heap)),
									   condition),
							  nargs, argtypes, values, NULL, true, 1) != SPI_OK_SELECT)
		elog(ERROR, "could not read an entry of feed with OID %u",
			 RelationGetRelid(page->heap));
	if (SPI_processed > 0)
	{
		HeapTupleHeader found = DatumGetHeapTupleHeader(feedpub_store_value(0, 1, &isnull));

		row = MemoryContextAlloc(context, HeapTupleHeaderGetDatumLength(found));
		memcpy(row, found, HeapTupleHeaderGetDatumLength(found));
	}
	SPI_finish();
	return row;
}
