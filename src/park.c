/*-------------------------------------------------------------------------
 *
 * park.c
 *	  Entries that a consumer cannot deal with: setting them aside, so that the
 *	  rest flows, and handing them out again.
 *
 * feed_park() and feed_nack() write a row into feedpub._parked_entry: the
 * entry's cursor, its stamp, and in a table feed its key; not what is in it.
 * feed_poll() leaves such entries out of its pages, so the consumer may go on
 * at once, acknowledge what lies behind them, or crash and poll again.
 *
 * To set an entry of a page aside claims the page, as to acknowledge a part of
 * it does (lease.c): another page with this entry in it, which somebody else
 * may have been handed, can no longer be acknowledged.  So an entry is dealt
 * with by whoever acknowledges its page, or is aside; never both.
 *
 * An entry that is due, a row with retry_at in the past that the shard's place
 * has passed, is handed out alone, as often as it is polled: until it is
 * acknowledged by its own cursor and token, or set aside again, or discarded.
 * Whoever removes the row has dealt with it, and nobody else.  What is
 * handed out is read then: a message of an outbox by its stamp; in a table
 * feed the row with that stamp, or else the one that has the key now.  Where
 * there is none any more, or the key of a delete lives again, there is nothing
 * left to do.  It is read with a snapshot that is not older than the one which
 * saw the entry aside: in an older one the row may not be there yet.
 *
 * Retried entries come before new ones, but one that has failed again only
 * when the place has moved since, or nothing is new: so neither starves.
 *
 * While an entry is set aside others of its key go on.  In a table feed
 * nothing is lost by that, for an entry is the state of its row.  In an
 * outbox, messages that are retried come later than they would have; a
 * consumer to whom that matters parks the ones behind it as well.  Holding them
 * back here would take a list without bounds.
 *
 * An entry that is discarded before the place has passed it stays, with
 * retry_at at the beginning of time, for it must be left out of pages.  It goes
 * when it would be due.
 *
 * Locks: the shard's row first, which has the number of entries set aside,
 * then theirs; so two that meet on an entry come one after the other.  A poll
 * that finds nothing left to do for an entry waits for neither.
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

/* given up when it has failed so often; failed with the place there */
static FeedpubStatement park_again = {
	.sql = "UPDATE feedpub._parked_entry SET reason = $4,"
		   " retry_at = CASE WHEN attempts OPERATOR(pg_catalog.+) 1 OPERATOR(pg_catalog.<) $6 THEN $5 END,"
		   " attempts = attempts OPERATOR(pg_catalog.+) 1, failed_at = $7"
		   " WHERE subscription OPERATOR(pg_catalog.=) $1 AND shard OPERATOR(pg_catalog.=) $2"
		   " AND cursor OPERATOR(pg_catalog.=) $3",
	.nargs = 7,
	.argtypes = {TEXTOID, INT4OID, TEXTOID, TEXTOID, TIMESTAMPTZOID, INT4OID, TEXTOID},
};

static FeedpubStatement park_first = {
	.sql = "WITH counted AS (UPDATE feedpub._shard SET parked = parked OPERATOR(pg_catalog.+) 1,"
		   "  claims = claims OPERATOR(pg_catalog.+) 1, page_token = $12"
		   "  WHERE subscription OPERATOR(pg_catalog.=) $1 AND shard OPERATOR(pg_catalog.=) $2)"
		   " INSERT INTO feedpub._parked_entry"
		   " (subscription, shard, cursor, reason, retry_at, failed_at, op, feed_xid, feed_pos, key)"
		   " VALUES ($1, $2, $3, $4, CASE WHEN 1 OPERATOR(pg_catalog.<) $6 THEN $5 END, $7, $8, $9, $10, $11)",
	.nargs = 12,
	.argtypes = {TEXTOID, INT4OID, TEXTOID, TEXTOID, TIMESTAMPTZOID, INT4OID, TEXTOID,
				 TEXTOID, XID8OID, INT8OID, TEXTARRAYOID, INT8OID},
};

/* with the shard's row locked; $4: those that have not been set aside again */
static FeedpubStatement remove_parked = {
	.sql = "WITH gone AS (DELETE FROM feedpub._parked_entry"
		   " WHERE subscription OPERATOR(pg_catalog.=) $1 AND shard OPERATOR(pg_catalog.=) $2"
		   " AND cursor OPERATOR(pg_catalog.=) ANY ($3)"
		   " AND CASE WHEN $4 OPERATOR(pg_catalog.>) 0 THEN (attempts OPERATOR(pg_catalog.&) $5) OPERATOR(pg_catalog.=) $4"
		   "  ELSE retry_at OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp() END RETURNING 1)"
		   " UPDATE feedpub._shard SET parked = parked OPERATOR(pg_catalog.-) (SELECT pg_catalog.count(*) FROM gone)::pg_catalog.int4"
		   " WHERE subscription OPERATOR(pg_catalog.=) $1 AND shard OPERATOR(pg_catalog.=) $2"
		   " AND EXISTS (SELECT FROM gone)",
	.nargs = 5,
	.argtypes = {TEXTOID, INT4OID, TEXTARRAYOID, INT4OID, INT4OID},
};

static FeedpubStatement try_lock_shard = {
	.sql = "SELECT FROM feedpub._shard"
		   " WHERE subscription OPERATOR(pg_catalog.=) $1 AND shard OPERATOR(pg_catalog.=) $2"
		   " FOR NO KEY UPDATE SKIP LOCKED",
	.nargs = 2,
	.argtypes = {TEXTOID, INT4OID},
};

/* those of a shard that may be in a page */
static FeedpubStatement select_hidden = {
	.sql = "SELECT feed_xid, cursor FROM feedpub._parked_entry"
		   " WHERE subscription OPERATOR(pg_catalog.=) $1 AND shard OPERATOR(pg_catalog.=) $2"
		   " AND feed_pos OPERATOR(pg_catalog.>=) $3 AND feed_pos OPERATOR(pg_catalog.<=) $4"
		   " ORDER BY feed_pos",
	.nargs = 4,
	.argtypes = {TEXTOID, INT4OID, INT8OID, INT8OID},
};

/*
 * What the place has passed: one ahead of it would be handed out before its
 * turn.  Those that have failed with the place where it is, $4, or the others.
 */
static FeedpubStatement select_due = {
	.sql = "SELECT p.cursor, p.op, p.feed_xid, p.feed_pos, p.key,"
		   " p.retry_at OPERATOR(pg_catalog.=) '-infinity'::pg_catalog.timestamptz, p.attempts"
		   " FROM feedpub._parked_entry p"
		   " WHERE p.subscription OPERATOR(pg_catalog.=) $1 AND p.shard OPERATOR(pg_catalog.=) $2"
		   " AND feedpub._cursor_compare(p.cursor, $3) OPERATOR(pg_catalog.<=) 0"
		   " AND p.retry_at OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp()"
		   " AND COALESCE(p.failed_at OPERATOR(pg_catalog.=) $3, false) OPERATOR(pg_catalog.=) $4"
		   " ORDER BY p.retry_at, p.cursor LIMIT $5 OFFSET $6",
	.nargs = 6,
	.argtypes = {TEXTOID, INT4OID, TEXTOID, BOOLOID, INT8OID, INT8OID},
};

static FeedpubStatement next_due = {
	.sql = "SELECT pg_catalog.min(p.retry_at) FROM feedpub._parked_entry p"
		   " WHERE p.subscription OPERATOR(pg_catalog.=) $1 AND p.shard OPERATOR(pg_catalog.=) $2"
		   " AND feedpub._cursor_compare(p.cursor, $3) OPERATOR(pg_catalog.<=) 0"
		   " AND p.retry_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()",
	.nargs = 3,
	.argtypes = {TEXTOID, INT4OID, TEXTOID},
};

/* the shards that have an entry, or any, aside */
static FeedpubStatement lock_shards_of = {
	.sql = "SELECT h.shard FROM feedpub._shard h"
		   " WHERE h.subscription OPERATOR(pg_catalog.=) $1 AND EXISTS (SELECT FROM feedpub._parked_entry p"
		   "  WHERE p.subscription OPERATOR(pg_catalog.=) $1 AND p.shard OPERATOR(pg_catalog.=) h.shard"
		   "  AND ($2 IS NULL OR p.cursor OPERATOR(pg_catalog.=) $2))"
		   " ORDER BY h.shard FOR NO KEY UPDATE",
	.nargs = 2,
	.argtypes = {TEXTOID, TEXTOID},
};

static FeedpubStatement make_due = {
	.sql = "UPDATE feedpub._parked_entry SET retry_at = pg_catalog.clock_timestamp(), failed_at = NULL"
		   " WHERE subscription OPERATOR(pg_catalog.=) $1"
		   " AND ($2 IS NULL OR cursor OPERATOR(pg_catalog.=) $2)"
		   " AND (retry_at IS NULL OR retry_at OPERATOR(pg_catalog.>) '-infinity'::pg_catalog.timestamptz)",
	.nargs = 2,
	.argtypes = {TEXTOID, TEXTOID},
};

static FeedpubStatement discard = {
	.sql = "UPDATE feedpub._parked_entry SET retry_at = '-infinity'::pg_catalog.timestamptz"
		   " WHERE subscription OPERATOR(pg_catalog.=) $1 AND cursor OPERATOR(pg_catalog.=) $2"
		   " AND (retry_at IS NULL OR retry_at OPERATOR(pg_catalog.>) '-infinity'::pg_catalog.timestamptz)",
	.nargs = 2,
	.argtypes = {TEXTOID, TEXTOID},
};

/* discarded, and passed by the place */
static FeedpubStatement remove_discarded = {
	.sql = "WITH gone AS (DELETE FROM feedpub._parked_entry p USING feedpub._shard h"
		   "  WHERE p.subscription OPERATOR(pg_catalog.=) $1 AND p.cursor OPERATOR(pg_catalog.=) $2"
		   "  AND p.retry_at OPERATOR(pg_catalog.=) '-infinity'::pg_catalog.timestamptz"
		   "  AND h.subscription OPERATOR(pg_catalog.=) $1 AND h.shard OPERATOR(pg_catalog.=) p.shard"
		   "  AND feedpub._cursor_compare(p.cursor, h.cursor) OPERATOR(pg_catalog.<=) 0"
		   "  RETURNING p.shard)"
		   " UPDATE feedpub._shard h SET parked = h.parked OPERATOR(pg_catalog.-) 1 FROM gone"
		   " WHERE h.subscription OPERATOR(pg_catalog.=) $1 AND h.shard OPERATOR(pg_catalog.=) gone.shard",
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
	bool		discarded;
	int			attempts;		/* how often it has failed */
} DueEntry;

/* What has become of an entry. */
typedef enum Fate
{
	ENTRY_FOUND,
	ENTRY_GONE,					/* there is nothing left to do */
	ENTRY_UNKNOWN,				/* nobody can say, or not to this caller */
} Fate;

/* An entry that is aside, to be looked up. */
typedef struct HiddenEntry
{
	uint64		xid;			/* 0: a row that is read in place */
	FeedpubCursor cursor;
} HiddenEntry;

static bool set_aside(FeedpubSubscription *sub, text *cursor, text *reason,
					  const FeedpubToken *token, const TimestampTz *retry_at);
static bool describe_entry(FeedpubSubscription *sub, text *cursor,
						   const FeedpubToken *token, text *place,
						   Datum *values, char *nulls);
static bool find_entry(FeedpubSubscription *sub, int shard, text *cursor,
					   text *place, FeedpubPage *page, FeedpubPageRow **row);
static bool read_entry(FeedpubSubscription *sub, int shard,
					   const FeedpubCursor *after, int max_rows,
					   const FeedpubCursor *wanted,
					   FeedpubPage *page, FeedpubPageRow **row);
static Datum key_of_row(FeedpubPage *page, const FeedpubPageRow *row);
static int	load_hidden(const FeedpubSubscription *sub, int shard,
						int64 first, int64 last, HiddenEntry **hidden);
static bool is_hidden(const FeedpubPageRow *row, const HiddenEntry *hidden,
					  int nhidden);
static bool is_same_entry(const FeedpubPageRow *row,
						  const FeedpubCursor *cursor);
static List *read_due(const FeedpubSubscription *sub, const FeedpubShard *shard,
					  bool again, int64 skipped);
static int	settle_unless_locked(const FeedpubSubscription *sub, int shard,
								 List *cursors);
static void make_page(FeedpubPage *page, const DueEntry *entry,
					  HeapTuple row);
static Fate read_again(FeedpubPage *page, DueEntry *entry,
					   HeapTuple *row);
static Fate read_table_entry(FeedpubPage *page, DueEntry *entry,
							 HeapTuple *row);
static HeapTuple read_by_stamp(FeedpubPage *page, DueEntry *entry);
static Fate read_by_key(FeedpubPage *page, DueEntry *entry,
						HeapTuple *row);
static Fate read_dead_key(FeedpubPage *page, DueEntry *entry,
						  HeapTuple *row);
static Oid	operator_namespace(Oid operator);
static HeapTuple select_row(FeedpubPage *page, const char *condition,
							int nargs, Oid *argtypes, Datum *values);

/*
 * feed_park(name text, cursor text, reason text, token bigint DEFAULT NULL)
 * returns boolean, VOLATILE
 *
 * Sets an entry that feed_poll() returned with this cursor and token aside, so
 * that it is handed out again only when feed_retry() says so, and the
 * consumer can go on.  Moves no cursor.  False when it is not there any more:
 * its row has been changed since, and comes again, or is gone; or it had been
 * set aside before, and somebody else has dealt with it.
 *
 * In a transaction, what is set aside is so if that commits.  Locks the
 * shard's row until it ends.  Errors: 42704, 22023, 0A000 for a truncate,
 * PF003 for a token that is no longer valid, PF001, 25006, 40001, 42501.
 */
Datum
feed_park(PG_FUNCTION_ARGS)
{
	FeedpubSubscription sub;
	FeedpubToken token = feedpub_lease_parse(fcinfo, 3);

	for (int i = 0; i < 2; i++)
	{
		if (PG_ARGISNULL(i))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("%s must not be null", i == 0 ? "name" : "cursor")));
	}
	feedpub_subscription_load(PG_GETARG_TEXT_PP(0), NULL, token.shard, &sub);
	PG_RETURN_BOOL(set_aside(&sub, PG_GETARG_TEXT_PP(1),
							 PG_ARGISNULL(2) ? NULL : PG_GETARG_TEXT_PP(2),
							 &token, NULL));
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
	FeedpubToken token = feedpub_lease_parse(fcinfo, 4);
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
	feedpub_subscription_load(PG_GETARG_TEXT_PP(0), NULL, token.shard, &sub);
	PG_RETURN_BOOL(set_aside(&sub, PG_GETARG_TEXT_PP(1),
							 PG_ARGISNULL(2) ? NULL : PG_GETARG_TEXT_PP(2),
							 &token, &retry_at));
}

/*
 * feed_retry(name text, cursor text DEFAULT NULL) returns integer, VOLATILE
 *
 * Has an entry that was set aside, or all of a subscription's, handed out
 * again: with the next polls, one each, before new entries and after whatever
 * of its key has been handed out since.  Returns how many.  Waits for
 * acknowledgements of open transactions in their shards.  Errors: 42704,
 * 42501.
 */
Datum
feed_retry(PG_FUNCTION_ARGS)
{
	FeedpubSubscription sub;
	FeedpubRole caller;
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
	feedpub_store_run(&lock_shards_of, values, PG_ARGISNULL(1) ? " n" : NULL);
	n = feedpub_store_run(&make_due, values, PG_ARGISNULL(1) ? " n" : NULL);
	feedpub_store_end(&caller);
	PG_RETURN_INT32((int32) n);
}

/*
 * feed_discard(name text, cursor text) returns integer
 *
 * Forgets an entry that was set aside: it is not handed out again.  Returns
 * how many there were, 0 or 1.  Waits for acknowledgements of open
 * transactions in its shard.  Errors: 42704, 42501.
 */
Datum
feed_discard(PG_FUNCTION_ARGS)
{
	static const char *const names[] = {"name", "cursor"};
	FeedpubSubscription sub;
	FeedpubRole caller;
	Datum		values[2];
	uint64		n;

	feedpub_argument_check(fcinfo, lengthof(names), names);
	feedpub_subscription_load(PG_GETARG_TEXT_PP(0), NULL, 0, &sub);
	values[0] = PointerGetDatum(sub.name);
	values[1] = PG_GETARG_DATUM(1);
	feedpub_store_begin(&caller);
	feedpub_store_run(&lock_shards_of, values, NULL);
	n = feedpub_store_run(&discard, values, NULL);
	feedpub_store_run(&remove_discarded, values, NULL);
	feedpub_store_end(&caller);
	PG_RETURN_INT32((int32) n);
}

/*
 * Set an entry aside, to be retried at *retry_at, unless it has failed too
 * often, or is NULL.
 */
static bool
set_aside(FeedpubSubscription *sub, text *cursor, text *reason,
		  const FeedpubToken *token, const TimestampTz *retry_at)
{
	FeedpubRole caller;
	text	   *place;
	Datum		values[12];
	char		nulls[] = "            ";
	bool		known;

	PreventCommandIfReadOnly(retry_at ? "feed_nack()" : "feed_park()");
	feedpub_require_select(sub->feed);
	feedpub_lease_check(sub, token);
	if (!feedpub_lease_lock(sub, token, &place))
		feedpub_lease_refuse(sub->name);

	values[0] = PointerGetDatum(sub->name);
	values[1] = Int32GetDatum(token->shard);
	values[2] = PointerGetDatum(cursor);
	values[3] = PointerGetDatum(reason);
	nulls[3] = reason == NULL ? 'n' : ' ';
	values[4] = retry_at ? TimestampTzGetDatum(*retry_at) : (Datum) 0;
	nulls[4] = retry_at == NULL ? 'n' : ' ';
	values[5] = Int32GetDatum(sub->max_attempts > 0 ? sub->max_attempts : PG_INT32_MAX);
	values[6] = PointerGetDatum(place);
	feedpub_store_begin(&caller);
	known = feedpub_store_run(&park_again, values, nulls) > 0;
	feedpub_store_end(&caller);
	if (known)
		return true;

	/* one that was handed out again, and is aside no longer: it is settled */
	if (token->retry ||
		!describe_entry(sub, cursor, token, place, values, nulls))
		return false;
	values[11] = Int64GetDatum(feedpub_lease_claim(token));
	feedpub_store_begin(&caller);
	feedpub_store_run(&park_first, values, nulls);
	feedpub_store_end(&caller);
	return true;
}

/*
 * Set what park_first keeps of an entry.  Returns false when it is not there.
 */
static bool
describe_entry(FeedpubSubscription *sub, text *cursor,
			   const FeedpubToken *token, text *place, Datum *values,
			   char *nulls)
{
	FeedpubPage page = {0};
	FeedpubPageRow *row;

	if (!find_entry(sub, token->shard, cursor, place, &page, &row))
		return false;
	if (row->op == FEEDPUB_OP_TRUNCATE)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("a truncate cannot be set aside"),
				 errdetail("Whatever follows it rests on it.")));
	values[7] = CStringGetTextDatum(feedpub_entry_op_names[row->op]);
	values[8] = FullTransactionIdGetDatum(FullTransactionIdFromU64(row->xid));
	values[9] = Int64GetDatum(row->cursor.pos);
	if (OidIsValid(page.feed.keyid))
		values[10] = row->texts != (Datum) 0 ? row->texts : key_of_row(&page, row);
	else
		nulls[10] = 'n';
	relation_close(page.heap, NoLock);
	return true;
}

/*
 * Read the entry of a cursor, which the shard's pages have.  The batch may have
 * been merged since it was handed out: then it is not at once behind the place
 * before it, but still behind the shard's.
 */
static bool
find_entry(FeedpubSubscription *sub, int shard, text *cursor, text *place,
		   FeedpubPage *page, FeedpubPageRow **row)
{
	FeedpubCursor wanted;
	FeedpubCursor after;

	feedpub_cursor_parse(cursor, &wanted);
	if (wanted.pos == 0 || wanted.pos == PG_INT64_MAX)
		return false;			/* no entry's: a beginning, or an end */
	after = wanted;
	after.pos--;
	if (read_entry(sub, shard, &after, 1, &wanted, page, row))
		return true;
	feedpub_cursor_parse(place, &after);
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
	page->hurried = true;
	page->heap = feedpub_registry_open(sub->feed);
	feedpub_page_read(page);
	for (int i = 0; i < page->nrows; i++)
	{
		*row = &page->rows[i];
		if ((*row)->entry != NULL && is_same_entry(*row, wanted))
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
	Datum		key;

	ExecStoreHeapTuple(row->entry, slot, false);
	key = feedpub_key_texts(desc, nkeys, attnos, slot);
	ExecDropSingleTupleTableSlot(slot);
	return key;
}

/*
 * Forget entries that were set aside, given their cursors, with the shard
 * locked: one that had failed so many times when it was handed out, unless it
 * has failed again since, for then it has not been dealt with, whoever
 * acknowledges it; or, with 0, those that are due.  Returns whether there was
 * one.
 */
bool
feedpub_park_settle(const FeedpubSubscription *sub, int shard, List *cursors,
					int attempts)
{
	FeedpubRole caller;
	Datum	   *array = palloc(list_length(cursors) * sizeof(Datum));
	Datum		values[5];
	bool		found;
	ListCell   *lc;

	foreach(lc, cursors)
		array[foreach_current_index(lc)] = PointerGetDatum(lfirst(lc));
	values[0] = PointerGetDatum(sub->name);
	values[1] = Int32GetDatum(shard);
	values[2] = PointerGetDatum(construct_array(array, list_length(cursors),
												TEXTOID, -1, false, TYPALIGN_INT));
	values[3] = Int32GetDatum(attempts);
	values[4] = Int32GetDatum(FEEDPUB_TOKEN_ATTEMPTS);
	feedpub_store_begin(&caller);
	found = feedpub_store_run(&remove_parked, values, NULL) > 0;
	feedpub_store_end(&caller);
	return found;
}

/*
 * Leave the entries that were set aside out of a page, wherever the place is:
 * they come again by themselves, if at all.
 */
void
feedpub_park_hide(const FeedpubSubscription *sub, const FeedpubShard *shard,
				  FeedpubPage *page)
{
	int64		first = PG_INT64_MAX;
	int64		last = 0;
	HiddenEntry *hidden;
	int			nhidden;

	for (int i = 0; i < page->nrows; i++)
	{
		first = Min(first, page->rows[i].cursor.pos);
		last = Max(last, page->rows[i].cursor.pos);
	}
	nhidden = load_hidden(sub, shard->shard, first, last, &hidden);
	for (int i = 0; i < page->nrows; i++)
	{
		if (is_hidden(&page->rows[i], hidden, nhidden))
			page->rows[i].entry = NULL;
	}
}

/*
 * Load the entries of a shard that are aside, with positions from first to
 * last, in their order.
 */
static int
load_hidden(const FeedpubSubscription *sub, int shard, int64 first,
			int64 last, HiddenEntry **hidden)
{
	MemoryContext context = CurrentMemoryContext;
	FeedpubRole caller;
	Datum		values[4];
	uint64		n;

	values[0] = PointerGetDatum(sub->name);
	values[1] = Int32GetDatum(shard);
	values[2] = Int64GetDatum(first);
	values[3] = Int64GetDatum(last);
	feedpub_store_begin(&caller);
	n = feedpub_store_run(&select_hidden, values, NULL);
	*hidden = MemoryContextAllocHuge(context, Max(n, 1) * sizeof(HiddenEntry));
	for (uint64 i = 0; i < n; i++)
	{
		HiddenEntry *entry = &(*hidden)[i];
		bool		isnull;

		entry->xid = U64FromFullTransactionId(DatumGetFullTransactionId(feedpub_store_value(i, 1, &isnull)));
		feedpub_cursor_parse(DatumGetTextPP(feedpub_store_value(i, 2, &isnull)), &entry->cursor);
	}
	feedpub_store_end(&caller);
	return (int) n;
}

/*
 * Is a row among them?
 */
static bool
is_hidden(const FeedpubPageRow *row, const HiddenEntry *hidden, int nhidden)
{
	int			low = 0;
	int			high = nhidden;

	while (low < high)
	{
		int			middle = low + (high - low) / 2;

		if (hidden[middle].cursor.pos < row->cursor.pos)
			low = middle + 1;
		else
			high = middle;
	}
	for (; low < nhidden && hidden[low].cursor.pos == row->cursor.pos; low++)
	{
		if (hidden[low].xid == row->xid && is_same_entry(row, &hidden[low].cursor))
			return true;
	}
	return false;
}

/*
 * Does a cursor stand for this row?  Positions are given once; the batch may
 * have been merged.  But those of rows that are read in place are places in a
 * file, and after VACUUM FULL another row may have one.
 */
static bool
is_same_entry(const FeedpubPageRow *row, const FeedpubCursor *cursor)
{
	bool		in_place = cursor->initial;

	return row->cursor.pos == cursor->pos &&
		row->cursor.initial == cursor->initial &&
		(!in_place || (row->cursor.sync_id == cursor->sync_id && row->cursor.fingerprint == cursor->fingerprint));
}

/*
 * Make a page of one entry of a shard that is due, if there is one: one that
 * has failed again with the place where it is, or another.  Returns how often
 * it has failed.  Those that there
 * is nothing left to do for are forgotten on the way, where that can be
 * written without waiting; not by somebody from whom row security may hide
 * them.
 */
int
feedpub_park_find_due(const FeedpubSubscription *sub, FeedpubPage *page,
					  const FeedpubShard *shard, bool again)
{
	bool		may_write = !RecoveryInProgress() && !XactReadOnly;
	int64		skipped = 0;
	bool		found = false;
	int			attempts = 0;
	List	   *due;

	while (!found && (due = read_due(sub, shard, again, skipped)) != NIL)
	{
		List	   *gone = NIL;
		ListCell   *lc;

		CHECK_FOR_INTERRUPTS();
		feedpub_registry_get(sub->feed, &page->feed);
		feedpub_require_select(sub->feed);
		feedpub_horizon_refuse_own_ddl(page->heap);
		page->sees_all = check_enable_rls(sub->feed, InvalidOid, true) != RLS_ENABLED;
		foreach(lc, due)
		{
			DueEntry   *entry = lfirst(lc);
			HeapTuple	row = NULL;
			Fate		fate = entry->discarded ? ENTRY_GONE : read_again(page, entry, &row);

			found = fate == ENTRY_FOUND;
			if (found)
			{
				make_page(page, entry, row);
				attempts = (int) Max(entry->attempts & FEEDPUB_TOKEN_ATTEMPTS, 1);
				break;
			}
			if (fate == ENTRY_GONE)
				gone = lappend(gone, entry->cursor);
		}
		skipped += list_length(due);
		if (gone != NIL && may_write)
			skipped -= settle_unless_locked(sub, shard->shard, gone);
	}

	/* the row may be younger than what has been published, and durable */
	if (found)
		feedpub_horizon_flush_all();
	return attempts;
}

/*
 * Forget entries, unless somebody has locked the shard, or is at them.
 * Returns how many.
 */
static int
settle_unless_locked(const FeedpubSubscription *sub, int shard, List *cursors)
{
	FeedpubRole caller;
	Datum		values[2];
	bool		locked;

	values[0] = PointerGetDatum(sub->name);
	values[1] = Int32GetDatum(shard);
	feedpub_store_begin(&caller);
	locked = feedpub_store_run(&try_lock_shard, values, NULL) > 0;
	feedpub_store_end(&caller);
	if (!locked)
		return 0;
	(void) feedpub_park_settle(sub, shard, cursors, 0);
	return list_length(cursors);
}

/*
 * A page of one entry.
 */
static void
make_page(FeedpubPage *page, const DueEntry *entry, HeapTuple row)
{
	page->rows = palloc0_object(FeedpubPageRow);
	page->nrows = 1;
	page->max_rows = 1;
	page->rows[0].op = entry->op;
	page->rows[0].entry = row;
	page->rows[0].xid = entry->xid;
	if (entry->unreadable)
		page->rows[0].texts = entry->key;
	feedpub_cursor_parse(entry->cursor, &page->rows[0].cursor);
	page->rows[0].published_at = feedpub_batch_time(page->feed.relid,
													&page->rows[0].cursor,
													GetActiveSnapshot());
}

static List *
read_due(const FeedpubSubscription *sub, const FeedpubShard *shard,
		 bool again, int64 skipped)
{
	MemoryContext context = CurrentMemoryContext;
	FeedpubRole caller;
	Datum		values[6];
	List	   *due = NIL;
	uint64		n;

	values[0] = PointerGetDatum(sub->name);
	values[1] = Int32GetDatum(shard->shard);
	values[2] = PointerGetDatum(shard->cursor);
	values[3] = BoolGetDatum(again);
	values[4] = Int64GetDatum(MAX_DUE);
	values[5] = Int64GetDatum(skipped);
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
		entry->discarded = DatumGetBool(feedpub_store_value(i, 6, &isnull));
		entry->attempts = DatumGetInt32(feedpub_store_value(i, 7, &isnull));
		due = lappend(due, entry);
	}
	feedpub_store_end(&caller);
	return due;
}

/*
 * When the next entry of a shard will be due; DT_NOEND when none will.
 */
TimestampTz
feedpub_park_next_due(const FeedpubSubscription *sub, const FeedpubShard *shard)
{
	FeedpubRole caller;
	Datum		values[3];
	Datum		at;
	TimestampTz result;
	bool		isnull;

	values[0] = PointerGetDatum(sub->name);
	values[1] = Int32GetDatum(shard->shard);
	values[2] = PointerGetDatum(shard->cursor);
	feedpub_store_begin(&caller);
	feedpub_store_run(&next_due, values, NULL);
	at = feedpub_store_value(0, 1, &isnull);
	result = isnull ? DT_NOEND : DatumGetTimestampTz(at);
	feedpub_store_end(&caller);
	return result;
}

/*
 * What an entry is now: the message, or the row that has its key; of a delete
 * the key, unless it lives again.  In READ COMMITTED with a snapshot of its
 * own; never with what the transaction itself has done.
 */
static Fate
read_again(FeedpubPage *page, DueEntry *entry, HeapTuple *row)
{
	Fate		fate;

	feedpub_horizon_push(GetTransactionSnapshot());
	if (page->feed.is_outbox)
	{
		*row = read_by_stamp(page, entry);
		fate = *row != NULL ? ENTRY_FOUND : ENTRY_GONE;
	}
	else
		fate = read_table_entry(page, entry, row);
	PopActiveSnapshot();
	return fate == ENTRY_GONE && !page->sees_all ? ENTRY_UNKNOWN : fate;
}

static Fate
read_table_entry(FeedpubPage *page, DueEntry *entry, HeapTuple *row)
{
	Fate		fate;

	if (entry->op == FEEDPUB_OP_UPSERT && entry->xid != 0)
	{
		*row = read_by_stamp(page, entry);
		if (*row != NULL)
			return ENTRY_FOUND;
	}
	if (entry->key == (Datum) 0 || !OidIsValid(page->feed.keyid))
		return ENTRY_UNKNOWN;
	page->key = index_open(page->feed.keyid, AccessShareLock);
	page->leaves = feedpub_partition_open(&page->feed, page->heap, NULL, true);
	if (entry->op == FEEDPUB_OP_DELETE)
		fate = read_dead_key(page, entry, row);
	else
		fate = read_by_key(page, entry, row);
	feedpub_partition_close(page->leaves);
	index_close(page->key, NoLock);
	return fate;
}

static HeapTuple
read_by_stamp(FeedpubPage *page, DueEntry *entry)
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
static Fate
read_by_key(FeedpubPage *page, DueEntry *entry, HeapTuple *row)
{
	StringInfoData condition;
	Relation	index = page->key;
	Datum		values[INDEX_MAX_KEYS];
	bool		nulls[INDEX_MAX_KEYS];
	Oid			argtypes[INDEX_MAX_KEYS];
	int			nkeys = index->rd_index->indnkeyatts;

	if (!feedpub_key_values(page->heap, index, entry->key, values, nulls))
		return ENTRY_UNKNOWN;	/* the row may have it in another form */
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
	*row = select_row(page, condition.data, nkeys, argtypes, values);
	return *row != NULL ? ENTRY_FOUND : ENTRY_GONE;
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
static Fate
read_dead_key(FeedpubPage *page, DueEntry *entry, HeapTuple *row)
{
	TupleDesc	desc = RelationGetDescr(page->heap);
	Datum	   *values = palloc0(desc->natts * sizeof(Datum));
	bool	   *nulls = palloc(desc->natts * sizeof(bool));
	Datum		keys[INDEX_MAX_KEYS];
	bool		key_nulls[INDEX_MAX_KEYS];
	Datum		living;
	bool		lives;

	if (!page->sees_all)
		return ENTRY_UNKNOWN;
	entry->unreadable = !feedpub_key_values(page->heap, page->key, entry->key, keys, key_nulls);
	page->snapshot = GetActiveSnapshot();
	lives = !entry->unreadable && feedpub_entry_key_lives(page, keys, &living);
	if (lives)
		return ENTRY_GONE;
	MemSet(nulls, true, desc->natts * sizeof(bool));
	for (int i = 0; i < page->key->rd_index->indnkeyatts; i++)
	{
		AttrNumber	attno = page->key->rd_index->indkey.values[i];

		values[attno - 1] = keys[i];
		nulls[attno - 1] = key_nulls[i];
	}
	*row = heap_form_tuple(desc, values, nulls);
	return ENTRY_FOUND;
}

/*
 * Read a row as the caller.
 */
static HeapTuple
select_row(FeedpubPage *page, const char *condition, int nargs,
		   Oid *argtypes, Datum *values)
{
	MemoryContext context = CurrentMemoryContext;
	char	   *table = feedpub_relation_name(RelationGetRelid(page->heap));
	HeapTuple	row = NULL;

	SPI_connect();
	if (SPI_execute_with_args(psprintf("SELECT %s FROM %s%s t WHERE %s",
									   feedpub_entry_columns(page->heap), page->feed.is_partitioned ? "" : "ONLY ",
									   table, condition),
							  nargs, argtypes, values, NULL, true, 1) != SPI_OK_SELECT)
		elog(ERROR, "could not read an entry of feed with OID %u",
			 RelationGetRelid(page->heap));
	if (SPI_processed > 0)
	{
		MemoryContextSwitchTo(context);
		row = feedpub_entry_of_columns(page->heap, SPI_tuptable->vals[0],
									   SPI_tuptable->tupdesc, 1);
	}
	SPI_finish();
	return row;
}
