/*-------------------------------------------------------------------------
 *
 * page_merge.c
 *	  Reading the batches of a page, and the initial snapshot before them.
 *
 * A page goes from batch to batch in their order, and in a batch by position:
 * the runs of its transactions (publish/run.c) are merged.
 *
 * A page may have to pass rows that it does not deliver: deleted ones, and
 * those that row security hides.  It passes up to FEEDPUB_MAX_PASSED of them.  Its
 * cursor says how far it got, so no reader passes the same stretch twice.  What
 * is deleted stays so, but what is hidden may be shown later: "visible" is how
 * far the page got before the first hidden entry.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/binaryheap.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "read/read.h"

static bool read_initial(FeedpubPageScan *scan);
static bool read_batch(FeedpubPageScan *scan, const FeedpubSnapshot *before,
					   const FeedpubBatch *batch, int64 after_pos);
static bool looks_on(const FeedpubPageScan *scan);
static void end_page(FeedpubPageScan *scan);
static void make_durable(FeedpubPageScan *scan);

/*
 * Read the page with its snapshots.
 */
void
feedpub_merge_page(FeedpubPageScan *scan)
{
	Oid			relid = scan->page->feed.relid;
	MemoryContext contexts[2];
	FeedpubBatchScan *batches;
	int64		first;
	bool		has_before = false;
	FeedpubBatch beginning = {0};
	bool		checked = false;
	int			turn = 0;

	/* the snapshots of two batches are needed at a time */
	for (int i = 0; i < 2; i++)
		contexts[i] = AllocSetContextCreate(CurrentMemoryContext,
											"feedpub batch",
											ALLOCSET_SMALL_SIZES);

	scan->page->passed = scan->page->request.after;
	scan->page->visible.given = false;
	scan->page->moment = false;
	feedpub_floor_read(relid, scan->state, &scan->floor);
	scan->start = feedpub_cursor_start(relid, scan->floor.history, scan->state);
	if (!feedpub_cursor_check_history(scan))
	{
		feedpub_batch_last(relid, PG_INT64_MAX, scan->state, &scan->last);
		return;
	}
	if (!scan->page->feed.is_outbox)
	{
		feedpub_batch_last(relid, PG_INT64_MAX, scan->state, &scan->last);
		feedpub_batch_refuse_foreign(&scan->page->feed, &scan->last);
		scan->newest = scan->last;
		feedpub_proof_check(scan);
		scan->page->passed = scan->page->request.after;
	}
	feedpub_cursor_check_floor(scan);
	scan->first = Max(feedpub_cursor_batch(&scan->from), 1);
	if (!scan->page->feed.is_outbox && scan->page->request.after.initial && !read_initial(scan))
	{
		scan->page->more = true;
		end_page(scan);
		return;
	}

	/* no page ends with an empty cursor, which knows no history */
	if (!scan->page->passed.given && scan->from.given)
		scan->page->passed = scan->from;
	else if (!scan->page->passed.given)
		feedpub_entry_pass(scan, &beginning, 0);

	/*
	 * From the batch before, whose snapshot is needed; mostly its number is
	 * one less.  Before the floor there is none.
	 */
	first = Max(feedpub_cursor_batch(&scan->from) - 1, 1);
	if (scan->page->feed.is_outbox)
		first = Max(first, scan->floor.sync_id);
	batches = feedpub_batch_begin(relid, first, scan->state);
	for (;;)
	{
		MemoryContext oldcontext;
		FeedpubBatch batch;
		bool		found;
		int64		after_pos = 0;

		CHECK_FOR_INTERRUPTS();
		MemoryContextReset(contexts[turn]);
		oldcontext = MemoryContextSwitchTo(contexts[turn]);
		found = feedpub_batch_next(batches, &batch);
		MemoryContextSwitchTo(oldcontext);
		if (found && batch.sync_id < feedpub_cursor_batch(&scan->from))
		{
			scan->last = batch;
			has_before = true;
			turn = 1 - turn;
			continue;
		}
		if (!checked && !feedpub_cursor_check_batch(scan, found ? &batch : NULL))
			found = has_before = false;
		checked = true;
		if (!found)
			break;
		feedpub_batch_refuse_foreign(&scan->page->feed, &batch);
		if (feedpub_entry_is_full(scan) && !looks_on(scan))
		{
			scan->page->more = true;
			break;
		}
		if (batch.sync_id == feedpub_cursor_batch(&scan->from))
			after_pos = feedpub_batch_passed(&batch, &scan->from);
		if (after_pos >= batch.last_pos)
			scan->first = batch.sync_id + 1;
		else
		{
			if (!has_before)
				feedpub_batch_last(relid, batch.merged_from, scan->state, &scan->last);
			scan->publisher = batch.publisher;
			if (!read_batch(scan, &scan->last.snapshot, &batch, after_pos))
			{
				scan->page->more = true;
				break;
			}
			if (scan->page->feed.is_changes && !batch.is_part)
				feedpub_changes_note_moment(scan->page);
		}
		scan->last = batch;
		has_before = true;
		turn = 1 - turn;
	}
	feedpub_batch_end(batches);
	if (!has_before && !scan->page->more)
		feedpub_batch_last(relid, PG_INT64_MAX, scan->state, &scan->last);
	end_page(scan);
}

/*
 * Does a full page look into the next batch, for an entry before the end of a
 * moment (changes.c)?  It has read a part of a backlog to its end.
 */
static bool
looks_on(const FeedpubPageScan *scan)
{
	return scan->page->feed.is_changes && scan->page->nrows > 0 && scan->last.is_part &&
		scan->npassed < FEEDPUB_MAX_PASSED;
}

static void
end_page(FeedpubPageScan *scan)
{
	feedpub_entry_hide_rows(scan);
	if (scan->page->feed.is_changes)
		feedpub_changes_end_page(scan->page);
	if (!scan->page->visible.given)
		scan->page->visible = scan->page->passed;
	make_durable(scan);
	if (scan->page->passed.fallback == &scan->page->fallback)
		feedpub_proof_end(scan);
}

/*
 * Make sure that a crash cannot take back what the page rests on.
 *
 * What the page delivers is durable with its batches.  What it passes is not:
 * if a row is gone, or has another stamp by now, and the transaction that did
 * that committed asynchronously and is lost in a crash, the row is back,
 * before the cursor.  In a table feed most passed entries are of that kind,
 * and some are gone from the index altogether.  In an outbox the owner removes
 * rows, and the page notices that they are missing.  In both cases the WAL is
 * flushed up to here; that costs nothing if all of it is on disk.
 */
static void
make_durable(FeedpubPageScan *scan)
{
	bool		has_moved = feedpub_cursor_compare(&scan->page->passed, &scan->page->request.after) != 0 ||
		scan->page->passed.fingerprint != scan->page->request.after.fingerprint;

	if (scan->missed || (has_moved && !scan->page->feed.is_outbox))
		feedpub_durable_all();
	else
		feedpub_access_make_durable(scan->publisher, scan->snapshot);
}

/*
 * Add rows of the initial snapshot to the page, table by table.  Returns
 * whether its end was reached and the page goes on into the batches.
 *
 * If a table is in another file than the cursor says, its rows have moved, and
 * it is read from its beginning.  If OIDs mean other partitions than those of
 * the cursor, all partitions are.
 */
static bool
read_initial(FeedpubPageScan *scan)
{
	const FeedpubCursor *after = &scan->page->request.after;
	FeedpubBatch beginning = {0};

	for (int i = 0; i < scan->partitions->n; i++)
	{
		FeedpubPartition *partition = &scan->partitions->partitions[i];
		bool		is_partition = scan->partitions->is_partitioned;
		int64		table = is_partition ? RelationGetRelid(partition->heap) : 0;
		uint32		file = feedpub_initial_fingerprint(partition->heap, scan->floor.history);

		if (partition->since > 0)
			continue;
		if (is_partition && after->given && table < after->sync_id &&
			feedpub_cursor_same_partitions(after->fingerprint, file))
			continue;

		if (feedpub_entry_is_full(scan))
			return false;
		feedpub_entry_pass_initial(scan, table,
								   table == after->sync_id && file == after->fingerprint ? after->pos : 0,
								   file);
		if (!feedpub_initial_read(scan, partition))
			return false;
	}
	feedpub_entry_pass(scan, &beginning, 0);
	return true;
}

static int
compare_runs(Datum a, Datum b, void *arg)
{
	FeedpubRun *ra = (FeedpubRun *) DatumGetPointer(a);
	FeedpubRun *rb = (FeedpubRun *) DatumGetPointer(b);
	/* the smallest first: a binaryheap has its largest on top */
	return ra->pos < rb->pos ? 1 : ra->pos > rb->pos ? -1 :
													   0;
}

/*
 * Add the rows of a batch after a position to the page.  Returns whether all
 * of them have been added or passed.
 */
static bool
read_batch(FeedpubPageScan *scan, const FeedpubSnapshot *before,
		   const FeedpubBatch *batch, int64 after_pos)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "feedpub runs",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext oldcontext = MemoryContextSwitchTo(context);
	List	   *runs;
	binaryheap *merge;
	ListCell   *lc;
	bool		finished;
	int			nrows_before = scan->page->nrows;
	bool		is_changes = scan->page->feed.is_changes;

	runs = feedpub_run_load(scan->reader, before, &batch->snapshot, after_pos,
							INT_MAX);
	merge = binaryheap_allocate(Max(list_length(runs), 1), compare_runs, NULL);
	foreach(lc, runs)
		binaryheap_add_unordered(merge, PointerGetDatum(lfirst(lc)));
	binaryheap_build(merge);

	/* of a change feed also up to the next entry to be delivered: change.c */
	while (!binaryheap_empty(merge) && (is_changes || !feedpub_entry_has_max(scan)))
	{
		FeedpubRun *run = (FeedpubRun *) DatumGetPointer(binaryheap_first(merge));
		bool		goes_on;

		/* not between two entries of one position */
		if (scan->npassed >= FEEDPUB_MAX_PASSED &&
			(feedpub_cursor_batch(&scan->page->passed) != batch->sync_id || scan->page->passed.pos != run->pos))
			break;

		CHECK_FOR_INTERRUPTS();
		if (run->nentries == 0)
			goes_on = feedpub_run_read(scan->reader, run);
		else
		{
			bool		added;

			MemoryContextSwitchTo(oldcontext);
			added = feedpub_entry_add(scan, batch, run);
			MemoryContextSwitchTo(context);
			if (!added)
				break;
			goes_on = feedpub_run_next(run);
		}
		if (goes_on)
			binaryheap_replace_first(merge, PointerGetDatum(run));
		else
			(void) binaryheap_remove_first(merge);
	}

	finished = binaryheap_empty(merge) ||
		(is_changes && feedpub_cursor_batch(&scan->page->passed) == batch->sync_id &&
		 scan->page->passed.pos >= batch->last_pos);
	if (finished)
	{
		if (scan->page->nrows == nrows_before)
			scan->npassed++;
		/* rows of the batch that are gone altogether were passed as well */
		if (feedpub_cursor_batch(&scan->page->passed) != batch->sync_id ||
			scan->page->passed.pos < batch->last_pos)
			feedpub_entry_pass(scan, batch, batch->last_pos);
	}
	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(context);
	return finished;
}
