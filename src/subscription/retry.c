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

#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"
#include "utils/xid8.h"

#include "subscription/subscription.h"

PG_FUNCTION_INFO_V1(feed_retry);
PG_FUNCTION_INFO_V1(feed_discard);

/* how many entries that are due a poll looks at */
#define MAX_DUE		100

/*
 * A passed entry for which nothing is left to do, or one in the state $4.  COALESCE
 * keeps this from the index of times.  (An array of cursors would be a filter of
 * all that wait, where there are no statistics.)
 */
static FeedpubStatement forget = {
	.sql = "DELETE FROM feedpub._parked_entry"
		   " WHERE subscription = $1 AND shard = $2 AND cursor = $3"
		   " AND CASE WHEN $4::int8 <> 0 THEN state = $4"
		   "  ELSE COALESCE(retry_at <= pg_catalog.clock_timestamp(), false)"
		   "   AND feedpub._cursor_compare(cursor, $5) <= 0 END",
};

static FeedpubStatement find_page = {
	.sql = "SELECT page FROM feedpub._parked_entry"
		   " WHERE subscription = $1 AND shard = $2 AND cursor = $3",
};

/*
 * Only entries that the committed cursor has passed: others would come before
 * their turn.  If $4, those that have failed with the cursor where it is, or
 * else the others.
 */
static FeedpubStatement select_due = {
	.sql = "SELECT p.cursor, p.op, p.feed_xid, p.key_texts,"
		   " p.retry_at = '-infinity', p.attempts, p.state, p.published_at,"
		   " p.key::pg_catalog.text, p.row::pg_catalog.text,"
		   " p.relation, p.old_key::pg_catalog.text, p.old::pg_catalog.text"
		   " FROM feedpub._parked_entry p"
		   " WHERE p.subscription = $1 AND p.shard = $2"
		   " AND feedpub._cursor_compare(p.cursor, $3) <= 0"
		   " AND p.retry_at <= $7"
		   " AND COALESCE(p.failed_at = $3, false) = $4"
		   " ORDER BY p.retry_at, p.cursor LIMIT $5 OFFSET $6",
};

static FeedpubStatement next_due = {
	.sql = "SELECT p.retry_at FROM feedpub._parked_entry p"
		   " WHERE p.subscription = $1 AND p.shard = $2"
		   " AND feedpub._cursor_compare(p.cursor, $3) <= 0"
		   " AND p.retry_at > $4 ORDER BY p.retry_at LIMIT 1",
};

/* due, or discarded; with a new state, so that the count of its deliveries begins again: repeat.c */
static FeedpubStatement change_entry = {
	.sql = "UPDATE feedpub._parked_entry SET state = $4, failed_at = NULL,"
		   "  retry_at = CASE WHEN $5 THEN '-infinity' ELSE pg_catalog.clock_timestamp() END"
		   " WHERE subscription = $1 AND shard = $2 AND cursor BETWEEN COALESCE($3, '') AND COALESCE($3, '~')"
		   " AND ($3::text IS NOT NULL OR attempts > 0)"
		   " AND (retry_at IS NULL OR retry_at > '-infinity')",
};

/* What has become of an entry. */
typedef enum Fate
{
	ENTRY_FOUND,
	ENTRY_GONE,					/* there is nothing left to do */
	ENTRY_UNKNOWN,				/* not known, or hidden from this caller */
} Fate;

static int	change_entries(text *name, text *cursor, bool discards);
static List *read_due(const FeedpubSubscription *sub, const FeedpubShard *shard,
					  bool again, int64 skipped);
static FeedpubRetried *load_due(uint64 row);
static Fate read_again(FeedpubPage *page, FeedpubRetried *entry);
static HeapTuple read_by_stamp(FeedpubPage *page, const FeedpubPageRow *row);
static Fate read_by_key(FeedpubPage *page, FeedpubRetried *entry);
static HeapTuple select_row(FeedpubPage *page, const char *condition,
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
	feedpub_argument_check(fcinfo, 0, 1);
	PG_RETURN_INT32(change_entries(PG_GETARG_TEXT_PP(0), PG_ARGISNULL(1) ? NULL : PG_GETARG_TEXT_PP(1), false));
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
	feedpub_argument_check(fcinfo, 0, 2);
	PG_RETURN_INT32(change_entries(PG_GETARG_TEXT_PP(0), PG_GETARG_TEXT_PP(1), true));
}

/*
 * Change a parked entry, or all of them if cursor is NULL.  They get a new
 * state.  What is discarded is forgotten, if the committed cursor has passed it.
 */
static int
change_entries(text *name, text *cursor, bool discards)
{
	FeedpubSubscription sub;
	Datum		values[5];
	uint64		n = 0;

	feedpub_subscription_load(name, NULL, -1, &sub);
	values[0] = PointerGetDatum(sub.name);
	values[2] = PointerGetDatum(cursor);
	values[3] = Int64GetDatum(feedpub_receipt_draw());
	values[4] = BoolGetDatum(discards);
	for (int i = 0; i < sub.nloaded; i++)
	{
		FeedpubShard *shard = &sub.shards[i];

		if (shard->parked == 0 ||
			(cursor != NULL && feedpub_retry_page(&sub, shard->shard, cursor) == 0) ||
			!feedpub_shard_lock(&sub, shard->shard, true, shard))
			continue;
		values[1] = Int32GetDatum(shard->shard);
		n += feedpub_store_execute(&change_entry, values, NULL);
		if (discards)
			(void) feedpub_retry_forget(&sub, shard, list_make1(cursor), 0);
	}
	return (int) n;
}

/*
 * Forget entries of a locked shard for which nothing is left to do, or, if that
 * is not 0, that are in a state.  Returns whether there were any.
 */
bool
feedpub_retry_forget(const FeedpubSubscription *sub, FeedpubShard *shard,
					 List *cursors, int64 state)
{
	Datum		values[5];
	uint64		n = 0;
	ListCell   *lc;

	values[0] = PointerGetDatum(sub->name);
	values[1] = Int32GetDatum(shard->shard);
	values[3] = Int64GetDatum(state);
	values[4] = PointerGetDatum(shard->cursor);
	foreach(lc, cursors)
	{
		values[2] = PointerGetDatum(lfirst(lc));
		n += feedpub_store_execute(&forget, values, NULL);
	}
	if (n == 0)
		return false;
	shard->parked -= (int) n;
	feedpub_shard_write(sub, shard);
	return true;
}

/*
 * The page that has parked an entry last; 0 if the entry is not parked.
 */
int64
feedpub_retry_page(const FeedpubSubscription *sub, int shard, const text *cursor)
{
	Datum		values[3];

	values[0] = PointerGetDatum(sub->name);
	values[1] = Int32GetDatum(shard);
	values[2] = PointerGetDatum(cursor);
	return feedpub_store_number(&find_page, values, 0);
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
	int64		skipped = 0;
	List	   *due;

	while (shard->parked > 0 && (due = read_due(sub, shard, again, skipped)) != NIL)
	{
		FeedpubRetried *found = NULL;
		List	   *gone = NIL;
		FeedpubShard now;
		ListCell   *lc;

		CHECK_FOR_INTERRUPTS();
		feedpub_registry_get(sub->feed, &page->feed);
		page->request.shard = shard->shard;
		page->request.shards = sub->nshards;
		if (page->feed.is_changes)
			feedpub_changes_begin(page);
		feedpub_require_select(sub->feed);
		feedpub_own_changes_refuse(page->heap);
		feedpub_history_check_changes(&page->feed, page->heap, GetActiveSnapshot());
		foreach(lc, due)
		{
			FeedpubRetried *entry = lfirst(lc);
			Fate		fate = entry->discarded ? ENTRY_GONE : read_again(page, entry);

			if (fate == ENTRY_FOUND)
			{
				found = entry;
				break;
			}
			if (fate == ENTRY_GONE)
				gone = lappend(gone, entry->cursor);
		}
		skipped += list_length(due);
		if (gone != NIL && may_write && feedpub_shard_lock(sub, shard->shard, false, &now))
		{
			(void) feedpub_retry_forget(sub, &now, gone, 0);
			skipped -= list_length(gone);
		}
		if (found != NULL)
		{
			page->rows = &found->row;
			page->nrows = page->request.max_rows = 1;

			/* the row may have been committed after what is published and durable */
			feedpub_durable_all();
			return found;
		}
	}
	return NULL;
}

static List *
read_due(const FeedpubSubscription *sub, const FeedpubShard *shard,
		 bool again, int64 skipped)
{
	FeedpubRole caller;
	Datum		values[7];
	List	   *due = NIL;
	uint64		n;

	values[0] = PointerGetDatum(sub->name);
	values[1] = Int32GetDatum(shard->shard);
	values[2] = PointerGetDatum(shard->cursor);
	values[3] = BoolGetDatum(again);
	values[4] = Int64GetDatum(MAX_DUE);
	values[5] = Int64GetDatum(skipped);
	values[6] = TimestampTzGetDatum(GetCurrentTimestamp());
	feedpub_store_begin(&caller);
	n = feedpub_store_run(&select_due, values, NULL);
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

	entry->cursor = feedpub_store_copy(row, 1);
	feedpub_cursor_parse(entry->cursor, &entry->row.cursor);
	while (strcmp(TextDatumGetCString(feedpub_store_value(row, 2, NULL)), feedpub_changes_op_names[entry->row.op]) != 0)
		entry->row.op++;
	entry->row.xid = U64FromFullTransactionId(DatumGetFullTransactionId(feedpub_store_value(row, 3, NULL)));
	entry->key_texts = feedpub_store_copy(row, 4);
	entry->discarded = DatumGetBool(feedpub_store_value(row, 5, NULL));
	entry->attempts = DatumGetInt32(feedpub_store_value(row, 6, NULL));
	entry->state = DatumGetInt64(feedpub_store_value(row, 7, NULL));
	entry->row.published_at = DatumGetTimestampTz(feedpub_store_value(row, 8, NULL));
	entry->kept_key = feedpub_store_copy(row, 9);
	entry->kept_row = feedpub_store_copy(row, 10);
	entry->kept_change[FEEDPUB_CHANGE_RELATION] = PointerGetDatum(feedpub_store_copy(row, 11));
	entry->kept_change[FEEDPUB_CHANGE_OLD_KEY] = PointerGetDatum(feedpub_store_copy(row, 12));
	entry->kept_change[FEEDPUB_CHANGE_OLD] = PointerGetDatum(feedpub_store_copy(row, 13));
	return entry;
}

/*
 * When the next parked entry of a shard that is due after a time will be due;
 * DT_NOEND if none will.
 */
TimestampTz
feedpub_retry_next_due(const FeedpubSubscription *sub, const FeedpubShard *shard,
					   TimestampTz since)
{
	Datum		values[4];

	if (shard->parked == 0)
		return DT_NOEND;
	values[0] = PointerGetDatum(sub->name);
	values[1] = Int32GetDatum(shard->shard);
	values[2] = PointerGetDatum(shard->cursor);
	values[3] = TimestampTzGetDatum(since);
	return feedpub_store_number(&next_due, values, DT_NOEND);
}

/*
 * What an entry is now: the message, or the row that has its key; of a delete
 * the key, unless it exists again.  In READ COMMITTED it is read with a new
 * snapshot.  Changes of the own transaction are never seen.
 *
 * A caller that is subject to row security gets no deletes, and not what was
 * kept of a message.
 */
static Fate
read_again(FeedpubPage *page, FeedpubRetried *entry)
{
	FeedpubPageRow *row = &entry->row;
	bool		sees_all = check_enable_rls(page->feed.relid, InvalidOid, true) != RLS_ENABLED;
	Fate		fate = ENTRY_FOUND;

	if (!page->feed.is_outbox && row->op == FEEDPUB_OP_DELETE && !sees_all)
		return ENTRY_UNKNOWN;
	feedpub_own_changes_hide(GetTransactionSnapshot());
	if ((page->feed.is_outbox || row->op == FEEDPUB_OP_UPSERT) && row->xid != 0)
		row->entry = read_by_stamp(page, row);
	if (page->feed.is_changes && row->entry != NULL)
		feedpub_changes_take(page, row);
	if (row->entry == NULL && !page->feed.is_outbox)
		fate = read_by_key(page, entry);
	PopActiveSnapshot();
	return row->entry == NULL && !sees_all ? ENTRY_UNKNOWN : fate;
}

static HeapTuple
read_by_stamp(FeedpubPage *page, const FeedpubPageRow *row)
{
	Oid			argtypes[2] = {XID8OID, INT8OID};
	Datum		values[2];

	values[0] = FullTransactionIdGetDatum(FullTransactionIdFromU64(row->xid));
	values[1] = Int64GetDatum(row->cursor.pos);
	return select_row(page,
					  "t." FEEDPUB_XID_COLUMN " OPERATOR(pg_catalog.=) $1"
					  " AND t." FEEDPUB_POS_COLUMN " OPERATOR(pg_catalog.=) $2",
					  2, argtypes, values);
}

/*
 * Read the row that has the key now, by the operators of the key's index.  Of
 * a delete the entry is a row of the key alone, if no row has the key.
 *
 * If the key cannot be read, a row may have it in another form.  No row has
 * that of a delete, which comes as it was kept.
 */
static Fate
read_by_key(FeedpubPage *page, FeedpubRetried *entry)
{
	bool		is_delete = entry->row.op == FEEDPUB_OP_DELETE;
	FeedpubPageScan scan = {.page = page};
	StringInfoData condition;
	Datum		values[INDEX_MAX_KEYS];
	Oid			argtypes[INDEX_MAX_KEYS];
	Form_pg_index form;
	HeapTuple	living;

	if (!OidIsValid(page->feed.keyid))
		return ENTRY_UNKNOWN;
	scan.key = index_open(page->feed.keyid, AccessShareLock);
	form = scan.key->rd_index;
	if (entry->key_texts == NULL ||
		feedpub_key_values(page->heap, scan.key, PointerGetDatum(entry->key_texts), values) != NULL)
	{
		index_close(scan.key, NoLock);
		return is_delete ? ENTRY_FOUND : ENTRY_UNKNOWN;
	}
	initStringInfo(&condition);
	for (int i = 0; i < form->indnkeyatts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(RelationGetDescr(page->heap), form->indkey.values[i] - 1);
		Oid			type = scan.key->rd_opcintype[i];
		Oid			equal = get_opfamily_member(scan.key->rd_opfamily[i], type, type,
												BTEqualStrategyNumber);

		argtypes[i] = att->atttypid;
		op_input_types(equal, &type, &type);
		appendStringInfoString(&condition, i > 0 ? " AND " : "");
		generate_operator_clause(&condition,
								 psprintf("t.%s", quote_identifier(NameStr(att->attname))), type,
								 equal, psprintf("$%d", i + 1), type);
	}
	living = select_row(page, condition.data, form->indnkeyatts, argtypes, values);
	entry->row.entry = is_delete ? feedpub_entry_of_key(&scan, values) : living;
	index_close(scan.key, NoLock);
	return (living != NULL) != is_delete ? ENTRY_FOUND : ENTRY_GONE;
}

/*
 * Read a row as the caller, under its search_path.
 */
static HeapTuple
select_row(FeedpubPage *page, const char *condition, int nargs,
		   Oid *argtypes, Datum *values)
{
	MemoryContext context = CurrentMemoryContext;
	HeapTuple	row = NULL;

	SPI_connect();
	if (SPI_execute_with_args(psprintf("SELECT %s FROM %s%s t WHERE %s",
									   feedpub_entry_columns(page->heap), page->feed.is_partitioned ? "" : "ONLY ",
									   feedpub_relation_name(page->feed.relid), condition),
							  nargs, argtypes, values, NULL, true, 1) != SPI_OK_SELECT)
		elog(ERROR, "could not read an entry of feed \"%s\"",
			 RelationGetRelationName(page->heap));
	if (SPI_processed > 0)
	{
		MemoryContextSwitchTo(context);
		row = feedpub_entry_of_columns(page->heap, SPI_tuptable->vals[0],
									   SPI_tuptable->tupdesc, 1);
	}
	SPI_finish();
	return row;
}
