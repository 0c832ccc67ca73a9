/*-------------------------------------------------------------------------
 *
 * entry.c
 *	  The entries of a page: rows and deletes.
 *
 * Rows are fetched by the row identifiers in the index, tombstones from their
 * table.  If the executor would do more than read
 * (feedpub_access_is_direct()), the rows of the page are then selected through
 * it, as the caller.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "read/read.h"

static FeedpubPageRow *add_row(FeedpubPageScan *scan);
static void note_hidden(FeedpubPageScan *scan, const FeedpubCursor *cursor);
static bool is_wanted(FeedpubPageScan *scan, TupleTableSlot *slot, int source);
static bool is_in_shard(FeedpubPageScan *scan, TupleTableSlot *slot, int source);
static bool read_tombstone(FeedpubPageScan *scan, TupleTableSlot *slot,
						   FeedpubPageRow *row);
static bool key_lives(FeedpubPageScan *scan, Datum *values, Datum *living);
static void take_row(FeedpubPageScan *scan, FeedpubPageRow *row,
					 const FeedpubPartition *partition, TupleTableSlot *slot);
static HeapTuple slot_row(TupleTableSlot *slot, TupleDesc desc);
static void select_rows(FeedpubPageScan *scan);

/*
 * Note that the page has got to a position in a batch.
 */
void
feedpub_entry_pass(FeedpubPageScan *scan, const FeedpubBatch *batch, int64 pos)
{
	FeedpubCursor *passed = &scan->page->passed;

	feedpub_entry_pass_initial(scan, batch->sync_id, pos, batch->fingerprint);
	passed->initial = false;
	passed->merged = batch->is_merged;
}

/*
 * Note that it has got to a position in a table that is read in place.
 */
void
feedpub_entry_pass_initial(FeedpubPageScan *scan, int64 table, int64 pos,
						   uint32 fingerprint)
{
	scan->page->passed = (FeedpubCursor){
		.given = true,
		.initial = true,
		.history = scan->floor.history,
		.sync_id = table,
		.pos = pos,
		.fingerprint = fingerprint,
		.start = scan->start,
		.base = scan->base,
		.fallback = scan->page->feed.is_outbox || scan->page->request.subscribed ?
			NULL :
			&scan->page->fallback,
	};
}

/*
 * Add the row or delete of a run's current entry to the page, or pass it if
 * there is no row, or if the key of the tombstone lives.  Returns false if it
 * is to be delivered and the page is full.
 */
bool
feedpub_entry_add(FeedpubPageScan *scan, const FeedpubBatch *batch, const FeedpubRun *run)
{
	TupleTableSlot *slot;
	FeedpubPageRow *row;
	bool		is_passed;

	slot = feedpub_run_fetch(scan->reader, run, run->current);
	if (slot == NULL)
		scan->missed = true;
	is_passed = slot == NULL || !is_wanted(scan, slot, run->source);
	if (!is_passed && feedpub_entry_has_max(scan))
		return false;
	feedpub_entry_pass(scan, batch, run->pos);
	if (is_passed)
	{
		scan->npassed++;
		return true;
	}
	row = add_row(scan);
	row->xid = run->xid;
	row->published_at = batch->published_at;
	if (run->source != FEEDPUB_RUN_TOMBSTONES)
		take_row(scan, row, &scan->partitions->partitions[run->source - 1], slot);
	else if (!read_tombstone(scan, slot, row))
	{
		if (!scan->sees_all)
			note_hidden(scan, &row->cursor);
		scan->page->nrows--;
		scan->npassed++;
	}
	return true;
}

/*
 * Note that row security hides an entry from this caller.  To another role, or
 * with another setting, it may be visible; so a subscription may be moved past
 * it only by an acknowledgement.
 *
 * The entry may not be the first of its position, so the cursor goes back to
 * the position before.  That one may be of no entry, but it is in the same
 * batch or table, and so it means the same to each reader.
 */
static void
note_hidden(FeedpubPageScan *scan, const FeedpubCursor *cursor)
{
	FeedpubCursor *visible = &scan->page->visible;

	if (visible->given && feedpub_cursor_compare(visible, cursor) < 0)
		return;
	*visible = *cursor;
	visible->pos--;
}

/*
 * Add a row that is read in place to the page, or pass it.
 */
void
feedpub_entry_add_initial(FeedpubPageScan *scan, FeedpubPartition *partition,
						  TupleTableSlot *slot)
{
	slot = feedpub_partition_convert(scan->partitions, partition, slot);
	if (!is_wanted(scan, slot, FEEDPUB_RUN_TOMBSTONES + 1))
	{
		scan->npassed++;
		return;
	}
	take_row(scan, add_row(scan), partition, slot);
}

/*
 * A new row of the page, with the cursor that the page has got to.
 */
static FeedpubPageRow *
add_row(FeedpubPageScan *scan)
{
	FeedpubPageRow *row;

	if (scan->page->nrows == scan->page->maxrows)
	{
		scan->page->maxrows = scan->page->maxrows ? scan->page->maxrows * 2 : Min(scan->page->request.max_rows, 128);
		scan->page->rows = scan->page->rows ?
			repalloc(scan->page->rows, scan->page->maxrows * sizeof(FeedpubPageRow)) :
			palloc(scan->page->maxrows * sizeof(FeedpubPageRow));
	}
	row = &scan->page->rows[scan->page->nrows++];
	MemSet(row, 0, sizeof(FeedpubPageRow));
	row->cursor = scan->page->passed;
	return row;
}

/*
 * Does the reader want a row or tombstone?
 */
static bool
is_wanted(FeedpubPageScan *scan, TupleTableSlot *slot, int source)
{
	const FeedpubTypes *types = scan->page->request.types;

	if (types != NULL && scan->sees_all)
	{
		bool		isnull;
		Datum		type = slot_getattr(slot, types->attno, &isnull);

		if (!feedpub_types_want(types, type, isnull))
			return false;
	}
	return scan->page->request.shards <= 1 || is_in_shard(scan, slot, source);
}

/*
 * Is the key of a row or tombstone in the page's shard?  A TRUNCATE is in all
 * of them, and concerns in each the rows of that shard: the readers of the
 * shards do not come to it at the same time.  It has a name of its own, so that
 * a reader that does not know of shards does not empty its whole copy.
 */
static bool
is_in_shard(FeedpubPageScan *scan, TupleTableSlot *slot, int source)
{
	MemoryContext oldcontext;
	Datum		key;
	bool		result = true;

	if (scan->row_context == NULL)
	{
		scan->row_context = AllocSetContextCreate(CurrentMemoryContext,
												  "feedpub shard",
												  ALLOCSET_SMALL_SIZES);
		scan->nkeys = feedpub_key_of_feed(&scan->page->feed, scan->page->heap, scan->keys);
	}
	oldcontext = MemoryContextSwitchTo(scan->row_context);
	if (scan->page->feed.is_changes)
		result = feedpub_changes_in_shard(scan->page, slot);
	else if (source != FEEDPUB_RUN_TOMBSTONES)
	{
		int			nkeys = scan->nkeys;
		const AttrNumber *keys = scan->keys;

		/* an outbox: message_key or, without one, message_id, if that has a value */
		if (scan->page->feed.is_outbox)
		{
			nkeys = 2;
			while (nkeys > 0 && slot_attisnull(slot, *keys))
			{
				keys++;
				nkeys--;
			}
			nkeys = Min(nkeys, 1);
		}
		key = feedpub_key_texts(RelationGetDescr(scan->page->heap), nkeys, keys, slot);
		result = feedpub_key_shard(key, scan->page->request.shards) == scan->page->request.shard;
	}
	else if (feedpub_tombstone_key(slot, &key))
		result = feedpub_key_shard(key, scan->page->request.shards) == scan->page->request.shard;
	MemoryContextSwitchTo(oldcontext);
	MemoryContextReset(scan->row_context);
	return result;
}

/*
 * Make a tombstone a row of the page.  Returns false if it is not delivered:
 * its key lives in the snapshot that reads, or the reader is subject to row
 * security, which cannot be applied to a row that is gone.
 *
 * A key lives if an INSERT took its position before it waited for the DELETE,
 * or if the key was inserted again.  Then the row itself is in the feed, in a
 * batch that this snapshot sees or in a later one, and may be before the
 * tombstone.  It is right to hide the tombstone from one reader and to deliver
 * it to another that comes later: a reader that sees the key alive gets the
 * row, or has got it, and if the row is deleted again it has another
 * tombstone.
 *
 * A key lives if the database finds a living one equal, though its text may be
 * another, as of 1.0 and 1.00.  For a reader of one shard that matters only if
 * a length was changed, from char(3) to char(5) for example: if the living key
 * is in another shard then, the readers of this shard are told of the delete.
 *
 * If a text is no value of its column any more, no row has that key, but a
 * consumer may.  So the delete is delivered without it, with the error.
 */
static bool
read_tombstone(FeedpubPageScan *scan, TupleTableSlot *slot, FeedpubPageRow *row)
{
	Datum		keys[INDEX_MAX_KEYS];
	bool		has_key;
	Datum		key;
	Datum		living;

	if (!scan->sees_all)
		return false;
	has_key = feedpub_tombstone_key(slot, &key);
	row->op = has_key				   ? FEEDPUB_OP_DELETE :
		scan->page->request.shards > 1 ? FEEDPUB_OP_TRUNCATE_SHARD :
										 FEEDPUB_OP_TRUNCATE;
	if (has_key)
	{
		row->error = feedpub_key_values(scan->page->heap, scan->key, key, keys);
		if (row->error == NULL && key_lives(scan, keys, &living) &&
			(scan->page->request.shards == 1 ||
			 feedpub_key_shard(living, scan->page->request.shards) == scan->page->request.shard))
			return false;
	}
	row->entry = feedpub_entry_of_key(scan, has_key && row->error == NULL ? keys : NULL);
	return true;
}

/*
 * A row of the table that has a key and else nulls, or only nulls.
 */
HeapTuple
feedpub_entry_of_key(FeedpubPageScan *scan, const Datum *keys)
{
	TupleDesc	desc = RelationGetDescr(scan->page->heap);
	Datum	   *values = palloc0(desc->natts * sizeof(Datum));
	bool	   *nulls = palloc(desc->natts * sizeof(bool));

	MemSet(nulls, true, desc->natts * sizeof(bool));
	for (int i = 0; keys != NULL && i < scan->key->rd_index->indnkeyatts; i++)
	{
		AttrNumber	attno = scan->key->rd_index->indkey.values[i];

		values[attno - 1] = keys[i];
		nulls[attno - 1] = false;
	}
	return heap_form_tuple(desc, values, nulls);
}

/*
 * Does a key live in one of the feed's tables, in the snapshot that reads?  Of
 * a partitioned table only the partition that the key belongs to is searched,
 * if that can be told.
 */
static bool
key_lives(FeedpubPageScan *scan, Datum *values, Datum *living)
{
	FeedpubPartitions *partitions = scan->partitions;
	Oid			its = InvalidOid;
	bool		known = partitions->is_partitioned &&
		feedpub_catalog_route(partitions->table, scan->key->rd_index->indnkeyatts,
									 scan->key->rd_index->indkey.values, values, &its);

	for (int i = 0; i < partitions->n; i++)
	{
		FeedpubPartition *partition = &partitions->partitions[i];

		if (known && RelationGetRelid(partition->heap) != its)
			continue;
		if (partition->key == NULL)
			partition->key = feedpub_access_open_key(scan->page->heap, partition->keyid);
		if (feedpub_key_lives(partition->heap, partition->key, values, scan->snapshot, living))
			return true;
	}
	return false;
}

/*
 * Has the page as many rows, or bytes, as it may have?
 */
bool
feedpub_entry_has_max(const FeedpubPageScan *scan)
{
	return scan->page->nrows >= scan->page->request.max_rows || scan->page->nbytes >= FEEDPUB_MAX_PAGE_BYTES;
}

/*
 * Is it full?  It may have passed as much as it may pass, too.
 */
bool
feedpub_entry_is_full(const FeedpubPageScan *scan)
{
	return feedpub_entry_has_max(scan) || scan->npassed >= FEEDPUB_MAX_PASSED;
}

/*
 * Take over a row if it is read without the executor.  Otherwise count it as
 * if it were shown: what the executor will return of it is not known yet, and
 * is not more than this.
 */
static void
take_row(FeedpubPageScan *scan, FeedpubPageRow *row,
		 const FeedpubPartition *partition, TupleTableSlot *slot)
{
	if (!scan->direct)
	{
		row->partition = RelationGetRelid(partition->heap);
		row->tid = slot->tts_tid;
		scan->page->nbytes += feedpub_relation_row_size(slot, toast_raw_datum_size);
		return;
	}
	row->entry = slot_row(slot, RelationGetDescr(scan->page->heap));
	scan->page->nbytes += HeapTupleHasExternal(row->entry) ? feedpub_relation_row_size(slot, toast_raw_datum_size) : row->entry->t_len;
}

/*
 * A copy of the row in a slot.  Values that are stored out of line stay there:
 * with them the row could be larger than a value can be.
 */
static HeapTuple
slot_row(TupleTableSlot *slot, TupleDesc desc)
{
	TupleConstr *constr = slot->tts_tupleDescriptor->constr;

	if (constr == NULL || constr->missing == NULL)
		return ExecCopySlotHeapTuple(slot);

	/* columns added later, with a default that is not in the row */
	slot_getallattrs(slot);
	return heap_form_tuple(desc, slot->tts_values, slot->tts_isnull);
}

/*
 * Read the page's rows through the executor, as the caller, and hide those
 * that it does not return, and those that are not wanted.  Execution is read_only, so the snapshot is the
 * same.
 *
 * Rows are selected by where they are, one by one: other plans are priced out,
 * and not compiled.  What compares row identifiers is leakproof, so row
 * security does not keep it from finding the row first.
 */
void
feedpub_entry_hide_rows(FeedpubPageScan *scan)
{
	static const char *const unwanted[] = {
		"enable_seqscan", "enable_bitmapscan", "enable_hashjoin",
		"enable_mergejoin", "jit"};
	FeedpubPage *page = scan->page;
	MemoryContext context = CurrentMemoryContext;
	int			nestlevel;

	if (scan->direct || page->nrows == 0)
		return;
	nestlevel = NewGUCNestLevel();
	for (int i = 0; i < lengthof(unwanted); i++)
		(void) set_config_option(unwanted[i], "off", PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_SAVE, true, 0, false);
	SPI_connect();
	select_rows(scan);
	MemoryContextSwitchTo(context);
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		bool		isnull;
		Datum		number = SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, &isnull);

		page->rows[DatumGetInt64(number) - 1].entry =
			feedpub_entry_of_columns(page->heap, SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 2);
	}
	SPI_finish();
	AtEOXact_GUC(false, nestlevel);
	for (int i = page->nrows - 1; i >= 0; i--)
	{
		HeapTuple	entry = page->rows[i].entry;
		bool		isnull;
		Datum		type;

		if (entry == NULL)
		{
			scan->npassed++;
			note_hidden(scan, &page->rows[i].cursor);
		}
		else if (page->request.types != NULL && !scan->sees_all)
		{
			type = heap_getattr(entry, page->request.types->attno,
								RelationGetDescr(page->heap), &isnull);
			if (!feedpub_types_want(page->request.types, type, isnull))
				page->rows[i].entry = NULL;
		}
	}
	feedpub_entry_drop_hidden(page);
}

/*
 * Leave the rows of a page out that have no entry: they are hidden.  If one ends a
 * moment, the row before it does so for this reader (changes.c).
 */
void
feedpub_entry_drop_hidden(FeedpubPage *page)
{
	int			n = 0;
	int			moment_rows = 0;

	for (int i = 0; i < page->nrows; i++)
	{
		if (page->rows[i].entry != NULL)
			page->rows[n++] = page->rows[i];
		else if (page->rows[i].moment && n > 0)
			page->rows[n - 1].moment = true;
		if (i < page->moment_rows)
			moment_rows = n;
	}
	page->nrows = n;
	page->moment_rows = moment_rows;
}

/*
 * Select the page's rows with SPI, each after its number in the page.  Those
 * that are no rows of the table have no identifier.
 */
static void
select_rows(FeedpubPageScan *scan)
{
	FeedpubPage *page = scan->page;
	Oid			argtypes[2] = {OIDARRAYOID, TIDARRAYOID};
	Datum	   *tables = palloc(page->nrows * sizeof(Datum));
	Datum	   *tids = palloc(page->nrows * sizeof(Datum));
	Datum		values[2];
	SPIPlanPtr	plan;
	char	   *sql;

	for (int i = 0; i < page->nrows; i++)
	{
		tables[i] = ObjectIdGetDatum(page->rows[i].partition);
		tids[i] = PointerGetDatum(&page->rows[i].tid);
	}
	values[0] = PointerGetDatum(construct_array(tables, page->nrows, OIDOID,
												sizeof(Oid), true, TYPALIGN_INT));
	values[1] = PointerGetDatum(construct_array(tids, page->nrows, TIDOID,
												sizeof(ItemPointerData), false, TYPALIGN_SHORT));
	sql = psprintf("SELECT k.n, %s"
				   " FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2)) WITH ORDINALITY AS k (relid, tid, n)"
				   " JOIN %s%s t ON t.ctid OPERATOR(pg_catalog.=) k.tid"
				   " AND t.tableoid OPERATOR(pg_catalog.=) k.relid",
				   feedpub_entry_columns(page->heap), page->feed.is_partitioned ? "" : "ONLY ",
				   feedpub_relation_name(page->feed.relid));
	plan = SPI_prepare_cursor(sql, 2, argtypes, CURSOR_OPT_NO_SCROLL);
	if (plan == NULL)
		elog(ERROR, "could not prepare \"%s\"", sql);
	feedpub_snapshot_select(plan, values, page->heap);
}

/*
 * A list of the table's columns.  They are selected one by one, because a
 * whole row would be one value, with all that is stored out of line in it.
 */
char *
feedpub_entry_columns(Relation heap)
{
	TupleDesc	desc = RelationGetDescr(heap);
	StringInfoData list;

	initStringInfo(&list);
	for (int i = 0; i < desc->natts; i++)
	{
		if (!TupleDescAttr(desc, i)->attisdropped)
			appendStringInfo(&list, "%st.%s", list.len > 0 ? ", " : "",
							 quote_identifier(NameStr(TupleDescAttr(desc, i)->attname)));
	}
	return list.data;
}

/*
 * A row of the table, of a tuple that has this list from a column on.
 */
HeapTuple
feedpub_entry_of_columns(Relation heap, HeapTuple tuple, TupleDesc tupdesc,
						 int column)
{
	TupleDesc	desc = RelationGetDescr(heap);
	Datum	   *values = palloc0(desc->natts * sizeof(Datum));
	bool	   *nulls = palloc(desc->natts * sizeof(bool));
	HeapTuple	row;

	for (int i = 0; i < desc->natts; i++)
	{
		nulls[i] = TupleDescAttr(desc, i)->attisdropped;
		if (!nulls[i])
			values[i] = SPI_getbinval(tuple, tupdesc, column++, &nulls[i]);
	}
	row = heap_form_tuple(desc, values, nulls);
	pfree(values);
	pfree(nulls);
	return row;
}
