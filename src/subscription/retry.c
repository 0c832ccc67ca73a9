/*-------------------------------------------------------------------------
 *
 * retry.c
 *	  Delivering parked entries again: feed_retry(), feed_discard(), and the
 *	  entries that a poll finds due.
 *
 * A parked entry is due if retry_at is in the past and the shard's committed
 * cursor has passed the entry.  It is delivered alone, by each poll, until it
 * is acknowledged, parked again, or discarded.  Its receipt has the state of
 * the entry's row, which is drawn anew when the entry is parked again, and by
 * feed_retry().  Only the transaction that removes the row in that state has
 * dealt with the entry;
 * all of them lock the shard's row first.  This needs no lease: if another
 * consumer has taken the shard and dealt with the entry, the row is gone.
 *
 * What is delivered is read at that time.  A message of an outbox is found by
 * its stamp; if its row is gone, the message comes as it was when it was
 * parked.  In a table feed it is the row with that stamp, or else the row that
 * has the key now, since an entry is the state of its row.  If there is no
 * such row, or the key of a delete exists again, nothing is left to do, and
 * the entry is forgotten.  If row security may hide rows from the reader, it
 * forgets nothing, and is not shown what was kept.  Rows are read with a
 * snapshot that is not older than the one that saw the entry parked: an older
 * one may not see the row yet.
 *
 * Retried entries come before new ones.  An entry that has failed again comes
 * before new ones only if the committed cursor has moved since.  So neither
 * kind waits for ever.
 *
 * If an entry is discarded before the committed cursor has passed it, its row
 * stays, with retry_at -infinity, since pages must leave it out.  It is
 * removed when it would be due.
 *
 * Locks: as in park.c.  If a poll has nothing left to do for an entry, it
 * waits for no lock to remove it.
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

#include "subscription/subscription.h"

PG_FUNCTION_INFO_V1(feed_retry);
PG_FUNCTION_INFO_V1(feed_discard);

/* how many entries that are due a poll looks at */
#define MAX_DUE		100

/* the entry in the state of the receipt */
static FeedpubStatement settle = {
	.sql = "DELETE FROM feedpub._parked_entry"
		   " WHERE subscription = $1 AND shard = $2 AND cursor = $3 AND state = $4",
	.nargs = 4,
	.argtypes = {TEXTOID, INT4OID, TEXTOID, INT8OID},
};

/* entries for which nothing is left to do */
static FeedpubStatement forget = {
	.sql = "DELETE FROM feedpub._parked_entry"
		   " WHERE subscription = $1 AND shard = $2 AND cursor = ANY ($3)"
		   " AND retry_at <= pg_catalog.clock_timestamp()",
	.nargs = 3,
	.argtypes = {TEXTOID, INT4OID, TEXTARRAYOID},
};

/* is an entry parked, and by this page? */
static FeedpubStatement find_parked = {
	.sql = "SELECT page = $4 FROM feedpub._parked_entry"
		   " WHERE subscription = $1 AND shard = $2 AND cursor = $3",
	.nargs = 4,
	.argtypes = {TEXTOID, INT4OID, TEXTOID, INT8OID},
};

/* an entry that has failed too often stays parked */
static FeedpubStatement give_up = {
	.sql = "UPDATE feedpub._parked_entry SET retry_at = NULL, attempts = $5, state = $6,"
		   " reason = $7 WHERE subscription = $1 AND shard = $2 AND cursor = $3"
		   " AND state = $4",
	.nargs = 7,
	.argtypes = {TEXTOID, INT4OID, TEXTOID, INT8OID, INT4OID, INT8OID, TEXTOID},
};

/*
 * Only entries that the committed cursor has passed: others would come before
 * their turn.  If $4, those that have failed with the cursor where it is, or
 * else the others.
 */
static FeedpubStatement select_due = {
	.sql = "SELECT p.cursor, p.op, p.feed_xid, p.feed_pos, p.key_texts,"
		   " p.retry_at = '-infinity', p.attempts, p.state, p.published_at,"
		   " p.key::pg_catalog.text, p.row::pg_catalog.text"
		   " FROM feedpub._parked_entry p"
		   " WHERE p.subscription = $1 AND p.shard = $2"
		   " AND feedpub._cursor_compare(p.cursor, $3) <= 0"
		   " AND p.retry_at <= pg_catalog.clock_timestamp()"
		   " AND COALESCE(p.failed_at = $3, false) = $4"
		   " ORDER BY p.retry_at, p.cursor LIMIT $5 OFFSET $6",
	.nargs = 6,
	.argtypes = {TEXTOID, INT4OID, TEXTOID, BOOLOID, INT8OID, INT8OID},
};

static FeedpubStatement next_due = {
	.sql = "SELECT pg_catalog.min(p.retry_at) FROM feedpub._parked_entry p"
		   " WHERE p.subscription = $1 AND p.shard = $2"
		   " AND feedpub._cursor_compare(p.cursor, $3) <= 0"
		   " AND p.retry_at > pg_catalog.clock_timestamp()",
	.nargs = 3,
	.argtypes = {TEXTOID, INT4OID, TEXTOID},
};

/* a new state, so that the count of its deliveries begins again: repeat.c */
static FeedpubStatement make_due = {
	.sql = "UPDATE feedpub._parked_entry SET retry_at = pg_catalog.clock_timestamp(), failed_at = NULL,"
		   " state = $4 WHERE subscription = $1 AND shard = $2"
		   " AND ($3 IS NULL OR cursor = $3)"
		   " AND (retry_at IS NULL OR retry_at > '-infinity')",
	.nargs = 4,
	.argtypes = {TEXTOID, INT4OID, TEXTOID, INT8OID},
};

static FeedpubStatement discard = {
	.sql = "UPDATE feedpub._parked_entry SET retry_at = '-infinity'"
		   " WHERE subscription = $1 AND shard = $2 AND cursor = $3"
		   " AND (retry_at IS NULL OR retry_at > '-infinity')",
	.nargs = 3,
	.argtypes = {TEXTOID, INT4OID, TEXTOID},
};

/* What has become of an entry. */
typedef enum Fate
{
	ENTRY_FOUND,
	ENTRY_GONE,					/* there is nothing left to do */
	ENTRY_UNKNOWN,				/* not known, or hidden from this caller */
} Fate;

static List *read_due(const FeedpubSubscription *sub, const FeedpubShard *shard,
					  bool again, int64 skipped);
static FeedpubRetried *load_due(uint64 row);
static bool lock_shard_of(const FeedpubSubscription *sub, FeedpubShard *shard,
						  const text *cursor);
static bool remove_entries(const FeedpubSubscription *sub, FeedpubShard *shard,
						   FeedpubStatement *statement, Datum *values);
static void forget_entries(const FeedpubSubscription *sub, FeedpubShard *shard,
						   List *cursors);
static void make_page(FeedpubPage *page, const FeedpubRetried *entry,
					  HeapTuple row);
static Fate read_again(FeedpubPageScan *scan, FeedpubRetried *entry,
					   HeapTuple *row);
static Fate read_table_entry(FeedpubPageScan *scan, FeedpubRetried *entry,
							 HeapTuple *row);
static HeapTuple read_by_stamp(FeedpubPageScan *scan, FeedpubRetried *entry);
static Fate read_by_key(FeedpubPageScan *scan, FeedpubRetried *entry,
						HeapTuple *row);
static Fate read_dead_key(FeedpubPageScan *scan, FeedpubRetried *entry,
						  HeapTuple *row);
static Oid	operator_namespace(Oid operator);
static HeapTuple select_row(FeedpubPageScan *scan, const char *condition,
							int nargs, Oid *argtypes, Datum *values);

/*
 * feed_retry(name text, cursor text DEFAULT NULL) returns integer, VOLATILE
 *
 * Has a parked entry delivered again; without a cursor, all parked entries of
 * the subscription.  Once the committed cursor is after them, they come with
 * the next polls, one each, before new entries, and thus after entries of the
 * same key that have been delivered since.  Receipts of entries that are being
 * delivered again no longer count.  Returns how many.  Waits for open
 * transactions that have acknowledged in their shards.  Errors: 42704, 42501.
 */
Datum
feed_retry(PG_FUNCTION_ARGS)
{
	static const char *const names[] = {"name"};
	text	   *cursor = PG_ARGISNULL(1) ? NULL : PG_GETARG_TEXT_PP(1);
	FeedpubSubscription sub;
	Datum		values[4];
	uint64		n = 0;

	feedpub_argument_check(fcinfo, lengthof(names), names);
	feedpub_subscription_load(PG_GETARG_TEXT_PP(0), NULL, -1, &sub);
	values[0] = PointerGetDatum(sub.name);
	values[2] = PointerGetDatum(cursor);
	values[3] = Int64GetDatum(feedpub_receipt_draw());
	for (int i = 0; i < sub.nloaded; i++)
	{
		if (!lock_shard_of(&sub, &sub.shards[i], cursor))
			continue;
		values[1] = Int32GetDatum(sub.shards[i].shard);
		n += feedpub_store_execute(&make_due, values, cursor == NULL ? "  n " : NULL);
	}
	PG_RETURN_INT32((int32) n);
}

/*
 * feed_discard(name text, cursor text) returns integer
 *
 * Forgets a parked entry: it is not delivered again.  Returns how many there
 * were, 0 or 1.  Waits for open transactions that have acknowledged in its
 * shard.  Errors: 42704, 42501.
 */
Datum
feed_discard(PG_FUNCTION_ARGS)
{
	static const char *const names[] = {"name", "cursor"};
	FeedpubSubscription sub;
	text	   *cursor;
	FeedpubCursor discarded;
	FeedpubCursor committed;
	Datum		values[3];
	uint64		n = 0;

	feedpub_argument_check(fcinfo, lengthof(names), names);
	cursor = PG_GETARG_TEXT_PP(1);
	feedpub_subscription_load(PG_GETARG_TEXT_PP(0), NULL, -1, &sub);
	values[0] = PointerGetDatum(sub.name);
	values[2] = PointerGetDatum(cursor);
	for (int i = 0; i < sub.nloaded; i++)
	{
		FeedpubShard *shard = &sub.shards[i];

		if (!lock_shard_of(&sub, shard, cursor))
			continue;
		values[1] = Int32GetDatum(shard->shard);
		n += feedpub_store_execute(&discard, values, NULL);
		feedpub_cursor_parse(cursor, &discarded);
		feedpub_cursor_parse(shard->cursor, &committed);
		if (feedpub_cursor_compare(&discarded, &committed) <= 0)
			forget_entries(&sub, shard, list_make1(cursor));
	}
	PG_RETURN_INT32((int32) n);
}

/*
 * Lock a shard that has this entry parked, or any if cursor is NULL.  Returns
 * whether it has.
 */
static bool
lock_shard_of(const FeedpubSubscription *sub, FeedpubShard *shard,
			  const text *cursor)
{
	bool		by_this;

	return shard->parked > 0 &&
		(cursor == NULL || feedpub_retry_is_parked(sub, shard->shard, cursor, 0, &by_this)) &&
		feedpub_shard_lock(sub, shard->shard, true, shard);
}

/*
 * Remove an entry that was delivered again, with the shard locked.  Returns
 * whether it was there in the state in which it was delivered.
 */
bool
feedpub_retry_settle(const FeedpubSubscription *sub,
					 const FeedpubReceipt *receipt, const FeedpubShard *shard)
{
	FeedpubShard settled = *shard;
	Datum		values[4];

	settled.settled = receipt->page;
	values[2] = PointerGetDatum(receipt->cursor);
	values[3] = Int64GetDatum(receipt->state);
	return remove_entries(sub, &settled, &settle, values);
}

/*
 * Remove entries of a locked shard by a statement, whose parameters from $3 on
 * are set, and write the shard if there were any.  Returns whether there were.
 */
static bool
remove_entries(const FeedpubSubscription *sub, FeedpubShard *shard,
			   FeedpubStatement *statement, Datum *values)
{
	uint64		n;

	values[0] = PointerGetDatum(sub->name);
	values[1] = Int32GetDatum(shard->shard);
	n = feedpub_store_execute(statement, values, NULL);
	if (n == 0)
		return false;
	shard->parked -= (int) n;
	feedpub_shard_write(sub, shard);
	return true;
}

/*
 * Is an entry parked?  *by_this: has this page parked it?
 */
bool
feedpub_retry_is_parked(const FeedpubSubscription *sub, int shard,
						const text *cursor, int64 page, bool *by_this)
{
	FeedpubRole caller;
	Datum		values[4];
	bool		isnull;
	bool		found;

	values[0] = PointerGetDatum(sub->name);
	values[1] = Int32GetDatum(shard);
	values[2] = PointerGetDatum(cursor);
	values[3] = Int64GetDatum(page);
	feedpub_store_begin(&caller);
	found = feedpub_store_run(&find_parked, values, NULL) > 0;
	*by_this = found && DatumGetBool(feedpub_store_value(0, 1, &isnull));
	feedpub_store_end(&caller);
	return found;
}

/*
 * Make a page of one parked entry of a shard that is due, if there is one;
 * NULL if not.  If again, it is one that has failed with the committed cursor
 * where it is, or else another.  Entries for which nothing is left to do are
 * forgotten on the way, if that can be written without waiting, and row
 * security hides nothing from the reader.
 */
FeedpubRetried *
feedpub_retry_find_due(const FeedpubSubscription *sub, FeedpubPage *page,
					   const FeedpubShard *shard, bool again)
{
	bool		may_write = !RecoveryInProgress() && !XactReadOnly;
	FeedpubPageScan scan = {.page = page};
	int64		skipped = 0;
	FeedpubRetried *found = NULL;
	List	   *due;

	while (found == NULL && (due = read_due(sub, shard, again, skipped)) != NIL)
	{
		List	   *gone = NIL;
		FeedpubShard now;
		ListCell   *lc;

		CHECK_FOR_INTERRUPTS();
		feedpub_registry_get(sub->feed, &page->feed);
		feedpub_require_select(sub->feed);
		feedpub_own_changes_refuse(page->heap);
		feedpub_history_check_changes(&page->feed, page->heap, GetActiveSnapshot());
		scan.sees_all = check_enable_rls(sub->feed, InvalidOid, true) != RLS_ENABLED;
		foreach(lc, due)
		{
			FeedpubRetried *entry = lfirst(lc);
			HeapTuple	row = NULL;
			Fate		fate = entry->discarded ? ENTRY_GONE : read_again(&scan, entry, &row);

			if (fate == ENTRY_FOUND)
			{
				make_page(page, entry, row);
				found = entry;
				break;
			}
			if (fate == ENTRY_GONE)
				gone = lappend(gone, entry->cursor);
		}
		skipped += list_length(due);
		if (gone != NIL && may_write && feedpub_shard_lock(sub, shard->shard, false, &now))
		{
			forget_entries(sub, &now, gone);
			skipped -= list_length(gone);
		}
	}

	/* the row may have been committed after what is published and durable */
	if (found != NULL)
		feedpub_durable_all();
	return found;
}

/*
 * Forget entries of a locked shard.
 */
static void
forget_entries(const FeedpubSubscription *sub, FeedpubShard *shard,
			   List *cursors)
{
	Datum	   *array = palloc(list_length(cursors) * sizeof(Datum));
	Datum		values[3];
	ListCell   *lc;

	foreach(lc, cursors)
		array[foreach_current_index(lc)] = PointerGetDatum(lfirst(lc));
	values[2] = PointerGetDatum(construct_array(array, list_length(cursors),
												TEXTOID, -1, false, TYPALIGN_INT));
	(void) remove_entries(sub, shard, &forget, values);
}

/*
 * A parked entry has failed too often (repeat.c): it comes again only after
 * feed_retry().  Returns false if the shard is locked, since it waits for no
 * consumer, or the entry has been dealt with.
 */
bool
feedpub_retry_give_up(const FeedpubSubscription *sub, const FeedpubShard *shard,
					  const FeedpubRetried *retried, int attempts)
{
	FeedpubShard now;
	Datum		values[7];

	if (!feedpub_shard_lock(sub, shard->shard, false, &now))
		return false;
	values[0] = PointerGetDatum(sub->name);
	values[1] = Int32GetDatum(shard->shard);
	values[2] = PointerGetDatum(retried->cursor);
	values[3] = Int64GetDatum(retried->state);
	values[4] = Int32GetDatum(attempts);
	values[5] = Int64GetDatum(feedpub_receipt_draw());
	values[6] = CStringGetTextDatum(FEEDPUB_REPEAT_REASON);
	return feedpub_store_execute(&give_up, values, NULL) > 0;
}

/*
 * Make a page of one entry.  Without a row it has what was kept of the entry.
 */
static void
make_page(FeedpubPage *page, const FeedpubRetried *entry, HeapTuple row)
{
	page->rows = palloc0_object(FeedpubPageRow);
	page->nrows = 1;
	page->request.max_rows = 1;
	page->rows[0].op = entry->op;
	page->rows[0].entry = row;
	page->rows[0].xid = entry->xid;
	page->rows[0].published_at = entry->published_at;
	feedpub_cursor_parse(entry->cursor, &page->rows[0].cursor);
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
		due = lappend(due, load_due(i));
	feedpub_store_end(&caller);
	return due;
}

/*
 * An entry from a row of select_due.
 */
static FeedpubRetried *
load_due(uint64 row)
{
	FeedpubRetried *entry = palloc0_object(FeedpubRetried);
	bool		isnull;
	Datum		value;

	entry->cursor = DatumGetTextPCopy(feedpub_store_value(row, 1, &isnull));
	if (strcmp(TextDatumGetCString(feedpub_store_value(row, 2, &isnull)), "delete") == 0)
		entry->op = FEEDPUB_OP_DELETE;
	entry->xid = U64FromFullTransactionId(DatumGetFullTransactionId(feedpub_store_value(row, 3, &isnull)));
	entry->pos = DatumGetInt64(feedpub_store_value(row, 4, &isnull));
	value = feedpub_store_value(row, 5, &isnull);
	if (!isnull)
		entry->key_texts = PointerGetDatum(DatumGetArrayTypePCopy(value));
	entry->discarded = DatumGetBool(feedpub_store_value(row, 6, &isnull));
	entry->attempts = DatumGetInt32(feedpub_store_value(row, 7, &isnull));
	entry->state = DatumGetInt64(feedpub_store_value(row, 8, &isnull));
	value = feedpub_store_value(row, 9, &isnull);
	entry->published_at = isnull ? 0 : DatumGetTimestampTz(value);
	value = feedpub_store_value(row, 10, &isnull);
	entry->key = isnull ? NULL : DatumGetTextPCopy(value);
	value = feedpub_store_value(row, 11, &isnull);
	entry->row = isnull ? NULL : DatumGetTextPCopy(value);
	return entry;
}

/*
 * When the next parked entry of a shard will be due; DT_NOEND if none will.
 */
TimestampTz
feedpub_retry_next_due(const FeedpubSubscription *sub, const FeedpubShard *shard)
{
	Datum		values[3];

	values[0] = PointerGetDatum(sub->name);
	values[1] = Int32GetDatum(shard->shard);
	values[2] = PointerGetDatum(shard->cursor);
	return feedpub_store_number(&next_due, values, DT_NOEND);
}

/*
 * What an entry is now: the message, or the row that has its key; of a delete
 * the key, unless it exists again.  In READ COMMITTED it is read with a new
 * snapshot.  Changes of the own transaction are never seen.
 */
static Fate
read_again(FeedpubPageScan *scan, FeedpubRetried *entry, HeapTuple *row)
{
	Fate		fate;

	feedpub_own_changes_hide(GetTransactionSnapshot());
	if (scan->page->feed.is_outbox)
	{
		/* the message, or, if nothing is hidden, what was kept of it */
		*row = read_by_stamp(scan, entry);
		fate = *row != NULL || scan->sees_all ? ENTRY_FOUND : ENTRY_UNKNOWN;
	}
	else
		fate = read_table_entry(scan, entry, row);
	PopActiveSnapshot();
	return fate == ENTRY_GONE && !scan->sees_all ? ENTRY_UNKNOWN : fate;
}

static Fate
read_table_entry(FeedpubPageScan *scan, FeedpubRetried *entry, HeapTuple *row)
{
	Fate		fate;

	if (entry->op == FEEDPUB_OP_UPSERT && entry->xid != 0)
	{
		*row = read_by_stamp(scan, entry);
		if (*row != NULL)
			return ENTRY_FOUND;
	}
	if (!OidIsValid(scan->page->feed.keyid))
		return ENTRY_UNKNOWN;
	scan->key = index_open(scan->page->feed.keyid, AccessShareLock);
	scan->partitions = feedpub_partition_open(&scan->page->feed, scan->page->heap, NULL, true);
	if (entry->op == FEEDPUB_OP_DELETE)
		fate = read_dead_key(scan, entry, row);
	else
		fate = read_by_key(scan, entry, row);
	feedpub_partition_close(scan->partitions);
	index_close(scan->key, NoLock);
	return fate;
}

static HeapTuple
read_by_stamp(FeedpubPageScan *scan, FeedpubRetried *entry)
{
	Oid			argtypes[2] = {XID8OID, INT8OID};
	Datum		values[2];

	values[0] = FullTransactionIdGetDatum(FullTransactionIdFromU64(entry->xid));
	values[1] = Int64GetDatum(entry->pos);
	return select_row(scan,
					  "t." FEEDPUB_XID_COLUMN " OPERATOR(pg_catalog.=) $1"
					  " AND t." FEEDPUB_POS_COLUMN " OPERATOR(pg_catalog.=) $2",
					  2, argtypes, values);
}

/*
 * Read the row that has the key now, by the operators of the key's index.
 */
static Fate
read_by_key(FeedpubPageScan *scan, FeedpubRetried *entry, HeapTuple *row)
{
	StringInfoData condition;
	Relation	index = scan->key;
	Datum		values[INDEX_MAX_KEYS];
	Oid			argtypes[INDEX_MAX_KEYS];
	int			nkeys = index->rd_index->indnkeyatts;

	if (entry->key_texts == (Datum) 0 ||
		feedpub_key_values(scan->page->heap, index, entry->key_texts, values) != NULL)
		return ENTRY_UNKNOWN;	/* the row may have it in another form */
	initStringInfo(&condition);
	for (int i = 0; i < nkeys; i++)
	{
		AttrNumber	attno = index->rd_index->indkey.values[i];
		Form_pg_attribute att = TupleDescAttr(RelationGetDescr(scan->page->heap), attno - 1);
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
	*row = select_row(scan, condition.data, nkeys, argtypes, values);
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
 * Make a row of the key alone, if no row has the key now.  If the key cannot
 * be read, there is no row, and the entry comes as it was kept.  If the caller
 * is subject to row security, it gets no deletes.
 */
static Fate
read_dead_key(FeedpubPageScan *scan, FeedpubRetried *entry, HeapTuple *row)
{
	Datum		keys[INDEX_MAX_KEYS];
	Datum		living;

	if (!scan->sees_all)
		return ENTRY_UNKNOWN;
	if (entry->key_texts == (Datum) 0 ||
		feedpub_key_values(scan->page->heap, scan->key, entry->key_texts, keys) != NULL)
		return ENTRY_FOUND;
	scan->snapshot = GetActiveSnapshot();
	if (feedpub_entry_key_lives(scan, keys, &living))
		return ENTRY_GONE;
	*row = feedpub_entry_of_key(scan, keys);
	return ENTRY_FOUND;
}

/*
 * Read a row as the caller, under its search_path.
 */
static HeapTuple
select_row(FeedpubPageScan *scan, const char *condition, int nargs,
		   Oid *argtypes, Datum *values)
{
	MemoryContext context = CurrentMemoryContext;
	char	   *table = feedpub_relation_name(RelationGetRelid(scan->page->heap));
	HeapTuple	row = NULL;

	SPI_connect();
	if (SPI_execute_with_args(psprintf("SELECT %s FROM %s%s t WHERE %s",
									   feedpub_entry_columns(scan->page->heap), scan->page->feed.is_partitioned ? "" : "ONLY ",
									   table, condition),
							  nargs, argtypes, values, NULL, true, 1) != SPI_OK_SELECT)
		elog(ERROR, "could not read an entry of feed \"%s\"",
			 RelationGetRelationName(scan->page->heap));
	if (SPI_processed > 0)
	{
		MemoryContextSwitchTo(context);
		row = feedpub_entry_of_columns(scan->page->heap, SPI_tuptable->vals[0],
									   SPI_tuptable->tupdesc, 1);
	}
	SPI_finish();
	return row;
}
