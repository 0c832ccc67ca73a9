/*-------------------------------------------------------------------------
 *
 * changes.c
 *	  What entries of a change feed have besides those of an outbox.
 *
 * Shards.  A change belongs to the shard of its relation and key.  An update
 * that changes the key concerns two keys, which may be in two shards, and their
 * readers do not come to it at the same time.  So each of them gets what it may
 * do with the rows of its own shard: that of the old key a delete, that of the
 * new key an update without old_key.  (With the whole update both would remove
 * the old key, and one of them might remove a row that has got that key since.)
 * A TRUNCATE is in all shards, with the name that it has in a table feed.
 *
 * Moments.  A batch ends at a moment if its snapshot was one that a publisher
 * took, whole (publish/cut.c): all transactions that it sees are in this batch
 * or before it, and no others, so what a follower has then is what that snapshot
 * saw of the source.  The last entry that a reader is delivered of such a
 * batch, and of those before it since the last moment, has the mark.  So a
 * page whose rows are full looks up to the next entry that it would deliver: if
 * there is none in the batch, its last row has the mark, whatever the size of
 * the page.  If the reader has got that entry in a page before, and what came
 * after it is filtered out, the end of the page has the mark (page->moment).
 *
 * A mark that was given stays true, since it tells of what was delivered, not of
 * what is stored: pages with marks can be cached, and read again.  When batches
 * are merged, some moments are not shown any more to readers that come later,
 * and entries may come twice, but what they become ends at a moment.  Let a
 * reader be at position p of one of them, b, and see the merged batch m next:
 *
 * - If b is not the youngest, it gets all of m; else the entries of m after p.
 * - Entries of one key are in the order of their positions, in each batch and
 *	 over all: a writer has the row's lock when it takes its position, and the
 *	 writers that had it before have ended.  So are those of one relation and its
 *	 TRUNCATE.
 * - So after the last entry of a key that the reader gets of m, it gets no
 *	 older one; and it gets the last one of each key in m, or had it before:
 *	 those that are passed are at or before p, and in b or in batches that it has
 *	 read.  At the end of m each key is what it was at the moment of m, if a
 *	 change is applied by its key, whatever is there.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "read/read.h"

/* The names of ops, of all kinds of feeds, by FeedpubOp. */
const char *const feedpub_changes_op_names[] = {"upsert", "delete", "insert", "update", "message", "truncate", "truncate_shard"};

static bool is_op(Datum op, FeedpubOp wanted);
static bool key_in_shard(const FeedpubPage *page, TupleTableSlot *slot,
						 FeedpubChangeColumn key);
static void split(const FeedpubPage *page, FeedpubPageRow *row);

/*
 * Find the columns of the page's feed; raises 55000 if one is not there.
 */
void
feedpub_changes_begin(FeedpubPage *page)
{
	for (int i = FEEDPUB_CHANGE_OP; i < FEEDPUB_CHANGE_NCOLUMNS; i++)
	{
		const FeedpubChangeColumnType *column = &feedpub_change_columns[i];

		page->change[i] = get_attnum(page->feed.relid, column->name);
		if (page->change[i] == InvalidAttrNumber || get_atttype(page->feed.relid, page->change[i]) != column->type)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("change feed \"%s\" has no column \"%s\" of type %s",
							RelationGetRelationName(page->heap), column->name,
							format_type_be(column->type))));
	}
}

static bool
is_op(Datum op, FeedpubOp wanted)
{
	const text *name = DatumGetTextPP(op);
	const char *s = feedpub_changes_op_names[wanted];

	return VARSIZE_ANY_EXHDR(name) == strlen(s) && memcmp(VARDATA_ANY(name), s, strlen(s)) == 0;
}

/*
 * Does a change concern the shard of the page?  Its texts stay in the current
 * memory context.
 */
bool
feedpub_changes_in_shard(const FeedpubPage *page, TupleTableSlot *slot)
{
	bool		isnull;
	Datum		op = slot_getattr(slot, page->change[FEEDPUB_CHANGE_OP], &isnull);

	return (!isnull && is_op(op, FEEDPUB_OP_TRUNCATE)) ||
		key_in_shard(page, slot, FEEDPUB_CHANGE_KEY) ||
		(!slot_attisnull(slot, page->change[FEEDPUB_CHANGE_OLD_KEY]) &&
		 key_in_shard(page, slot, FEEDPUB_CHANGE_OLD_KEY));
}

/*
 * Is a key, the new or the old one, of the row's relation in the shard?  The
 * text of the key counts; without one, that of the relation alone.
 */
static bool
key_in_shard(const FeedpubPage *page, TupleTableSlot *slot, FeedpubChangeColumn key)
{
	AttrNumber	attnos[2];
	int			n = 0;

	if (!slot_attisnull(slot, page->change[FEEDPUB_CHANGE_RELATION]))
		attnos[n++] = page->change[FEEDPUB_CHANGE_RELATION];
	if (!slot_attisnull(slot, page->change[key]))
		attnos[n++] = page->change[key];
	return feedpub_key_shard(feedpub_key_texts(slot->tts_tupleDescriptor, n, attnos, slot),
							 page->request.shards) == page->request.shard;
}

/*
 * Make a row of the feed the entry that this reader gets.  An op that no
 * capture writes is a message.
 */
void
feedpub_changes_take(const FeedpubPage *page, FeedpubPageRow *row)
{
	bool		isnull;
	Datum		op = heap_getattr(row->entry, page->change[FEEDPUB_CHANGE_OP],
								  RelationGetDescr(page->heap), &isnull);

	row->op = FEEDPUB_OP_MESSAGE;
	for (FeedpubOp i = FEEDPUB_OP_DELETE; i <= FEEDPUB_OP_TRUNCATE; i++)
	{
		if (!isnull && is_op(op, i))
			row->op = i;
	}
	if (page->request.shards <= 1)
		return;
	if (row->op == FEEDPUB_OP_TRUNCATE)
		row->op = FEEDPUB_OP_TRUNCATE_SHARD;
	else if (!heap_attisnull(row->entry, page->change[FEEDPUB_CHANGE_OLD_KEY], RelationGetDescr(page->heap)))
		split(page, row);
}

/*
 * Make an update that changes the key what it is for the shard of one of the
 * keys, if the other is in another shard.
 */
static void
split(const FeedpubPage *page, FeedpubPageRow *row)
{
	TupleDesc	desc = RelationGetDescr(page->heap);
	const AttrNumber *change = page->change;
	TupleTableSlot *slot = MakeSingleTupleTableSlot(desc, &TTSOpsHeapTuple);
	Datum	   *values = palloc(desc->natts * sizeof(Datum));
	bool	   *nulls = palloc(desc->natts * sizeof(bool));
	bool		has_new;
	bool		has_old;

	ExecStoreHeapTuple(row->entry, slot, false);
	has_new = key_in_shard(page, slot, FEEDPUB_CHANGE_KEY);
	has_old = key_in_shard(page, slot, FEEDPUB_CHANGE_OLD_KEY);
	ExecDropSingleTupleTableSlot(slot);
	if (has_new && has_old)
		return;
	heap_deform_tuple(row->entry, desc, values, nulls);
	if (has_old)
	{
		row->op = FEEDPUB_OP_DELETE;
		values[change[FEEDPUB_CHANGE_OP] - 1] = CStringGetTextDatum(feedpub_changes_op_names[row->op]);
		values[change[FEEDPUB_CHANGE_KEY] - 1] = values[change[FEEDPUB_CHANGE_OLD_KEY] - 1];
		nulls[change[FEEDPUB_CHANGE_KEY] - 1] = false;
		nulls[change[FEEDPUB_CHANGE_ROW] - 1] = true;
	}
	nulls[change[FEEDPUB_CHANGE_OLD_KEY] - 1] = true;
	row->entry = heap_form_tuple(desc, values, nulls);
}

/*
 * The page has got to a moment, with the rows that it has.
 */
void
feedpub_changes_note_moment(FeedpubPage *page)
{
	page->moment = true;
	page->moment_rows = page->nrows;
	if (page->nrows > 0)
		page->rows[page->nrows - 1].moment = true;
}

/*
 * All rows of the page have been read: make them entries.
 */
void
feedpub_changes_end_page(FeedpubPage *page)
{
	page->moment &= page->moment_rows == page->nrows;
	for (int i = 0; i < page->nrows; i++)
		feedpub_changes_take(page, &page->rows[i]);
}
