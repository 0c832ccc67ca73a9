/*-------------------------------------------------------------------------
 *
 * page.c
 *	  One page of a feed in published order.
 *
 * A page goes from batch to batch, in their order, and inside each batch by
 * position: the runs of its transactions (run.c) are merged.  Batches and
 * rows are read with one snapshot, that of the calling query, unless the table
 * was altered since it was taken; rows without what the reader's own
 * transaction has done (horizon.c: feedpub_horizon_push).  Before the first
 * batch of a table feed lies batch 0 (initial.c).
 *
 * Why no row is skipped: a batch that the snapshot sees was committed after
 * all transactions in it had been (publish.c), so the snapshot sees their
 * rows, less those that have been deleted since.  This holds for an old
 * snapshot of REPEATABLE READ, which sees fewer batches, and on a standby,
 * where commits become visible in the order of the WAL.  What lies in a batch
 * does not depend on who reads it or when, and a batch is never changed (one
 * that others were merged into is another, retention.c); so behind a cursor (batch, position) the same rows lie for everybody, and a
 * page that goes on from the last row of the one before leaves none out and
 * brings none twice.
 *
 * A page may have to pass rows that it does not hand out: deleted ones, and
 * those that row security hides.  It does so up to a bound, and says in a
 * last entry how far it got, so that nobody passes the same stretch twice.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/relation.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_class.h"
#include "lib/binaryheap.h"
#include "miscadmin.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"

#include "read/read.h"

/* how many rows and batches a page may pass without handing anything out */
#define MAX_PASSED	10000

static void push_snapshots(FeedpubPage *page);
static void read_batches(FeedpubPage *page);
static bool check_history(FeedpubPage *page);
static void check_floor(FeedpubPage *page);
static bool check_cursor(FeedpubPage *page, const FeedpubBatch *first);
static void open_partitions(FeedpubPage *page, Snapshot snapshot);
static bool read_initial(FeedpubPage *page);
static bool read_in_place(FeedpubPage *page, FeedpubPartition *partition);
static bool read_batch(FeedpubPage *page, const FeedpubSnapshot *before,
					   const FeedpubBatch *batch, int64 after_pos);
static void make_page_durable(FeedpubPage *page);

/*
 * Read the page after page->after; its table is open.  If no worker runs, one
 * is started: what the page finds may be the rest of a backlog.  Not with
 * feedpub.read_wait = 0, which leaves publishing to others.
 *
 * Somebody who commits a row and reads at once must not find an empty page:
 * when there is nothing to hand out, but rows have been committed that are
 * not published yet, the worker is woken, and started if there is none, and
 * what it publishes within feedpub.read_wait is read with a new snapshot.
 * A transaction that has an id does not wait for that (wait.c); nor is it done
 * with a snapshot that must stay, or where nothing is published.
 */
void
feedpub_page_read(FeedpubPage *page)
{
	bool		pushed = false;

	feedpub_access_keep_memory();
	feedpub_registry_get(RelationGetRelid(page->heap), &page->feed);
	page->direct = feedpub_access_is_direct(page->heap);
	if (!page->direct)
		feedpub_require_select(page->feed.relid);
	if (feedpub_read_wait > 0)
		(void) feedpub_launcher_ensure(InvalidOid);
	page->sees_all = page->direct ||
		check_enable_rls(page->feed.relid, InvalidOid, true) != RLS_ENABLED;
	page->partitions = feedpub_partition_open(&page->feed, page->heap, GetActiveSnapshot(), true);
	feedpub_history_check(&page->feed, page->partitions);

	if (OidIsValid(page->feed.keyid) || page->feed.deletes)
	{
		if (!OidIsValid(page->feed.keyid))
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("feed \"%s\" has no key",
							RelationGetRelationName(page->heap)),
					 errhint("Run feed_check() to see what is missing.")));
		page->key = index_open(page->feed.keyid, AccessShareLock);
	}
	if (page->shards > 1)
		feedpub_key_check_shards(&page->feed, page->heap);
	if (!page->unaltered || !page->direct)
		feedpub_horizon_refuse_own_ddl(page->heap);

	/* a snapshot that is older than the table sees none of its rows */
	if (!feedpub_partition_sees_tables(page->partitions, GetActiveSnapshot()))
	{
		feedpub_access_push_snapshot(page->heap);
		pushed = true;
		open_partitions(page, GetActiveSnapshot());
	}
	push_snapshots(page);
	page->reader = feedpub_run_begin(&page->feed, page->partitions, page->snapshot, page->state);
	read_batches(page);
	feedpub_run_end(page->reader);
	if (page->nrows == 0 &&
		(feedpub_cursor_compare(&page->passed, &page->after) == 0 ||
		 (!page->passed.initial && page->passed.sync_id == 0)) &&
		!page->hurried && feedpub_read_wait > 0 &&
		!RecoveryInProgress() && !page->snapshot->takenDuringRecovery &&
		!IsolationUsesXactSnapshot() && !IsInParallelMode() &&
		feedpub_news_exist(&page->feed, page->heap, page->snapshot,
						   &page->last.snapshot) &&
		feedpub_wait_for_batch(page->feed.relid, &page->passed,
							   feedpub_read_wait, FEEDPUB_WAIT_CHECKED))
	{
		PopActiveSnapshot();
		PushActiveSnapshot(GetLatestSnapshot());
		open_partitions(page, GetActiveSnapshot());
		push_snapshots(page);
		page->reader = feedpub_run_begin(&page->feed, page->partitions, page->snapshot, page->state);
		read_batches(page);
		feedpub_run_end(page->reader);
		PopActiveSnapshot();
	}
	PopActiveSnapshot();
	if (pushed)
		PopActiveSnapshot();
	if (page->key != NULL)
		index_close(page->key, NoLock);
	feedpub_partition_close(page->partitions);
}

/*
 * The active snapshot reads our tables, and another, which becomes the active
 * one, the rows.
 */
static void
push_snapshots(FeedpubPage *page)
{
	page->state = GetActiveSnapshot();
	feedpub_horizon_push(page->state);
	page->snapshot = GetActiveSnapshot();
}

/*
 * Another snapshot may know of other partitions.
 */
static void
open_partitions(FeedpubPage *page, Snapshot snapshot)
{
	if (!page->feed.is_partitioned)
		return;
	feedpub_partition_close(page->partitions);
	page->partitions = feedpub_partition_open(&page->feed, page->heap, snapshot, true);
}

/*
 * Read the page with its snapshot.
 */
static void
read_batches(FeedpubPage *page)
{
	Oid			relid = page->feed.relid;
	MemoryContext contexts[2];
	FeedpubBatchScan *batches;
	bool		has_before = false;
	FeedpubBatch beginning = {0};
	bool		checked = false;
	int			turn = 0;

	/* the snapshots of two batches are needed at a time */
	for (int i = 0; i < 2; i++)
		contexts[i] = AllocSetContextCreate(CurrentMemoryContext,
											"feedpub batch",
											ALLOCSET_SMALL_SIZES);

	page->passed = page->after;
	page->server_start = feedpub_server_start_of_page(page->state);
	feedpub_registry_floor(relid, page->state, &page->floor);
	if (!check_history(page))
	{
		feedpub_batch_last(relid, PG_INT64_MAX, page->state, &page->last);
		return;
	}
	if (!page->feed.is_outbox)
	{
		/* at once, not when the initial snapshot has been read */
		feedpub_batch_last(relid, PG_INT64_MAX, page->state, &page->last);
		feedpub_batch_refuse_foreign(&page->feed, &page->last);
		check_floor(page);
	}
	if (!page->feed.is_outbox && page->after.initial && !read_initial(page))
	{
		page->more = true;
		feedpub_entry_hide_rows(page);
		make_page_durable(page);
		return;
	}

	/* no page ends with an empty cursor, which knows no history */
	if (!page->passed.given)
		feedpub_entry_pass(page, &beginning, 0);

	/* from the batch before, whose snapshot is needed; mostly its number is one less */
	batches = feedpub_batch_begin(relid, Max(feedpub_cursor_batch(&page->after) - 1, 1),
								  page->state);
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
		if (found && batch.sync_id < feedpub_cursor_batch(&page->after))
		{
			page->last = batch;
			has_before = true;
			turn = 1 - turn;
			continue;
		}
		if (!checked && !check_cursor(page, found ? &batch : NULL))
			found = has_before = false;
		checked = true;
		if (!found)
			break;
		feedpub_batch_refuse_foreign(&page->feed, &batch);
		if (feedpub_entry_is_full(page) || page->npassed >= MAX_PASSED)
		{
			page->more = true;
			break;
		}
		if (batch.sync_id == feedpub_cursor_batch(&page->after))
			after_pos = feedpub_batch_passed(&batch, &page->after);
		if (after_pos < batch.last_pos)
		{
			if (!has_before)
				feedpub_batch_last(relid, batch.merged_from, page->state, &page->last);
			page->publisher = batch.publisher;
			if (!read_batch(page, &page->last.snapshot, &batch, after_pos))
			{
				page->more = true;
				break;
			}
		}
		page->last = batch;
		has_before = true;
		turn = 1 - turn;
	}
	feedpub_batch_end(batches);
	if (!has_before && !page->more)
		feedpub_batch_last(relid, PG_INT64_MAX, page->state, &page->last);
	feedpub_entry_hide_rows(page);
	make_page_durable(page);
}

/*
 * See that a crash can take nothing back that the page rests on.
 *
 * What it hands out is durable with its batches.  But what it passes because
 * the row is gone, or has another stamp by now, may come back, behind the
 * cursor, when the transaction that removed it committed asynchronously and
 * is lost.  In a table feed that is the rule, and entries may be gone from the
 * index altogether; in an outbox rows are removed by their owner, and seen to
 * be missing.  Then the WAL is flushed up to here; there is nothing to do
 * when all of it is on disk.
 */
static void
make_page_durable(FeedpubPage *page)
{
	bool		has_moved = feedpub_cursor_compare(&page->passed, &page->after) != 0 ||
		page->passed.fingerprint != page->after.fingerprint;

	if (page->missed || (has_moved && !page->feed.is_outbox))
		feedpub_horizon_flush_all();
	else
		feedpub_access_make_durable(page->publisher, page->snapshot);
}

/*
 * Check that the cursor is of this life of the feed.  Returns false when
 * nothing can lie behind it yet: the snapshot is from before this life began.
 */
static bool
check_history(FeedpubPage *page)
{
	FeedpubFloor now;
	Snapshot	latest;

	if (!page->after.given || page->after.history == page->floor.history)
		return true;
	if (!RecoveryInProgress() && !IsInParallelMode())
	{
		latest = RegisterSnapshot(GetLatestSnapshot());
		feedpub_registry_floor(page->feed.relid, latest, &now);
		UnregisterSnapshot(latest);
		if (page->after.history == now.history)
			return false;
	}
	feedpub_cursor_refuse(page->feed.relid);
	return false;
}

/*
 * Check that the cursor is one of this history, given the first batch at or
 * behind it, if there is one, just read.  Returns false when nothing can lie
 * behind it yet: its batch is not here, on a standby that lags or in a
 * snapshot that is older than the cursor, which somebody else has got since,
 * or was waited for under a row lock.  A batch that others were merged into is
 * another one: where that has not happened yet, its cursors mean nothing.
 */
static bool
check_cursor(FeedpubPage *page, const FeedpubBatch *first)
{
	const FeedpubCursor *after = &page->after;

	if (feedpub_cursor_batch(after) == 0)
		return true;
	if (first != NULL && feedpub_batch_knows(first, after))
		return true;
	if (first == NULL || after->merged)
	{
		FeedpubBatchScan *latest_batches;
		FeedpubBatch batch;
		Snapshot	latest;
		bool		known;

		if (RecoveryInProgress() || IsInParallelMode())
			return false;
		latest = RegisterSnapshot(GetLatestSnapshot());
		latest_batches = feedpub_batch_begin(page->feed.relid, after->sync_id, latest);
		known = feedpub_batch_next(latest_batches, &batch) &&
			feedpub_batch_knows(&batch, after);
		feedpub_batch_end(latest_batches);
		UnregisterSnapshot(latest);
		if (known)
			return false;
	}
	feedpub_cursor_refuse(page->feed.relid);
	return false;
}

/*
 * Check that no delete behind the cursor that its consumer needs has expired,
 * and set the base of the page's own cursors.
 *
 * The living rows of a table feed keep positions before the floor of its
 * deletes, so a consumer that begins now has cursors before the floor for a
 * while.  Its cursors therefore carry their base: the largest number of which
 * every page since '' has seen the batch.  A cursor is refused if the floor is
 * after both its place and its base.
 *
 * Take a delete that has expired.  Its transaction lies in a batch up to the
 * floor.  If the place is not before the floor, the consumer has been
 * delivered the delete, or the row was gone before it could get it.  If the
 * base is not, each of its pages was read with a snapshot that sees that
 * batch, hence the transaction of the delete, so none of them had the row.
 *
 * Base and rows come from one snapshot, the page's.  A later page may be read
 * with an older one (on a standby that lags, or in a REPEATABLE READ
 * transaction) and have rows that are gone in the earlier page's snapshot: so
 * the base is the smallest number of all these pages.
 */
static void
check_floor(FeedpubPage *page)
{
	page->base = page->last.sync_id;
	if (page->after.given)
		page->base = Min(page->base, page->after.base);
	if (feedpub_cursor_is_expired(page->feed.relid, &page->after, &page->floor,
								  page->state))
		ereport(ERROR,
				(errcode(ERRCODE_FEED_CURSOR_EXPIRED),
				 errmsg("cursor of feed \"%s\" has expired",
						RelationGetRelationName(page->heap)),
				 errdetail("Deletes that it has not got past are no longer retained."),
				 errhint("Begin again from '', a subscription with feed_seek(..., 'earliest'), and with nothing: rows that are gone are not announced.")));
}

/*
 * Must the page say how far it got, since its last row does not?
 */
bool
feedpub_page_ends_filtered(const FeedpubPage *page)
{
	int			nshown = 0;

	/* a full page needs none: what was passed behind it is passed again */
	for (int i = 0; i < page->nrows; i++)
		nshown += page->rows[i].entry != NULL;
	if (nshown >= page->max_rows)
		return false;

	for (int i = page->nrows - 1; i >= 0; i--)
	{
		if (page->rows[i].entry != NULL)
			return feedpub_cursor_compare(&page->rows[i].cursor, &page->passed) != 0;
	}
	return feedpub_cursor_compare(&page->passed, &page->after) != 0;
}

/*
 * Add rows of batch 0 to the page, table by table.  Returns whether it was read
 * to its end, and the page goes on into the batches.
 *
 * A table that is in another file than the cursor says is read from its
 * beginning, for its rows are elsewhere now.  If OIDs mean other partitions than
 * those of the cursor, all of them are.
 */
static bool
read_initial(FeedpubPage *page)
{
	const FeedpubCursor *after = &page->after;
	FeedpubBatch beginning = {0};

	for (int i = 0; i < page->partitions->n; i++)
	{
		FeedpubPartition *partition = &page->partitions->partitions[i];
		bool		is_partition = page->partitions->is_partitioned;
		int64		table = is_partition ? RelationGetRelid(partition->heap) : 0;
		uint32		file = is_partition ?
			feedpub_initial_partition_fingerprint(partition->heap, &page->floor) :
			feedpub_initial_fingerprint(partition->heap, &page->floor);

		if (partition->since > 0)
			continue;
		if (is_partition && after->given && table < after->sync_id &&
			feedpub_cursor_same_partitions(after->fingerprint, file))
			continue;

		/* through the executor the rows of each table are read apart */
		if (feedpub_entry_is_full(page) || page->npassed >= MAX_PASSED ||
			(!page->direct && page->nrows > 0))
			return false;
		feedpub_entry_pass_initial(page, table,
								   table == after->sync_id && file == after->fingerprint ? after->pos : 0,
								   file);
		if (!read_in_place(page, partition))
			return false;
	}
	feedpub_entry_pass(page, &beginning, 0);

	/* and apart from batches, see feedpub_entry_hide_rows() */
	return page->direct || page->nrows == 0;
}

/*
 * Add the rows of a table that have no stamp to the page, from the place that it
 * has got to.  Returns whether that is the end of the table.
 */
static bool
read_in_place(FeedpubPage *page, FeedpubPartition *partition)
{
	FeedpubInitialScan *initial = feedpub_initial_begin(partition->heap, partition->xid_attno,
														page->snapshot, page->passed.pos);
	TupleTableSlot *slot;
	bool		finished = false;

	while (!feedpub_entry_is_full(page) && page->npassed < MAX_PASSED)
	{
		CHECK_FOR_INTERRUPTS();
		if (!feedpub_initial_next(initial, &slot, &page->passed.pos, &page->npassed))
		{
			finished = true;
			break;
		}
		if (slot == NULL)
			page->npassed++;
		else
			feedpub_entry_add_initial(page, partition, slot);
	}
	feedpub_initial_end(initial);
	return finished;
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
 * Add the rows of a batch behind a position to the page.  Returns whether all
 * of them are in it, or passed.
 */
static bool
read_batch(FeedpubPage *page, const FeedpubSnapshot *before,
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
	int			nrows_before = page->nrows;

	runs = feedpub_run_load(page->reader, before, &batch->snapshot, after_pos,
							INT_MAX);
	merge = binaryheap_allocate(Max(list_length(runs), 1), compare_runs, NULL);
	foreach(lc, runs)
		binaryheap_add_unordered(merge, PointerGetDatum(lfirst(lc)));
	binaryheap_build(merge);

	while (!binaryheap_empty(merge) && !feedpub_entry_is_full(page))
	{
		FeedpubRun *run = (FeedpubRun *) DatumGetPointer(binaryheap_first(merge));
		bool		goes_on;

		/* not between two entries of one position */
		if (page->npassed >= MAX_PASSED &&
			(feedpub_cursor_batch(&page->passed) != batch->sync_id || page->passed.pos != run->pos))
			break;

		CHECK_FOR_INTERRUPTS();
		if (run->nentries == 0)
			goes_on = feedpub_run_read(page->reader, run);
		else
		{
			MemoryContextSwitchTo(oldcontext);
			feedpub_entry_add(page, batch, run);
			MemoryContextSwitchTo(context);
			goes_on = feedpub_run_next(run);
		}
		if (goes_on)
			binaryheap_replace_first(merge, PointerGetDatum(run));
		else
			(void) binaryheap_remove_first(merge);
	}

	finished = binaryheap_empty(merge);
	if (finished)
	{
		if (page->nrows == nrows_before)
			page->npassed++;
		/* rows of the batch that are gone altogether were passed as well */
		if (feedpub_cursor_batch(&page->passed) != batch->sync_id ||
			page->passed.pos < batch->last_pos)
			feedpub_entry_pass(page, batch, batch->last_pos);
	}
	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(context);
	return finished;
}
