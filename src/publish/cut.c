/*-------------------------------------------------------------------------
 * cut.c
 *	  Cutting what is new in a feed into batches.
 *
 * A batch holds a bounded number of transactions, so that reading a page of it
 * costs a bounded amount.  A larger backlog is cut by the last position of
 * each transaction: the first part holds the transactions that end first in
 * the order of positions, and so on.
 *
 * This keeps causality.  If A came before B, A had ended before B's row was
 * written.  So A's last position is below B's, and A is in B's part or in an
 * earlier one.
 *
 * Each part has a snapshot, too.  It sees everything below its largest xid,
 * except transactions of later parts and those that the whole snapshot does
 * not see.  The former were running while a transaction of this part was, so
 * they are few.
 *
 * Such a snapshot was never anybody's.  In it, a transaction may be missing whose
 * commit came before that of one that it sees: it only has the larger position.
 * So the end of a part is no moment of the source, and is marked (is_part).
 * The snapshot of the last part is the whole one.  A step that leaves
 * transactions to the next one, as follows, writes no last part.
 *
 * A step is bounded, however large the backlog is.  It loads the transactions
 * with the smallest xids, up to a limit, and publishes those that come first
 * among them.  The next step begins at the last batch, as any does.  The index
 * is in the order of xids, and the transactions that were not loaded may have
 * smaller positions than some that were.  So the step leaves MAX_RUNNING of
 * those that it has loaded, the ones with the largest last positions:
 *
 * - Let X be the smallest xid that was not loaded.  When X was assigned, no
 *	 more than MAX_RUNNING transactions ran, whatever the settings were.  All
 *	 others of the n that were loaded, which have smaller xids, had ended: at
 *	 least n - MAX_RUNNING.  Call them E.
 * - A transaction that was not loaded has X or a larger xid, and takes its
 *	 positions after its xid.  So each of its positions is larger than all of
 *	 E's.
 * - The n - MAX_RUNNING smallest last positions, which are published, are not
 *	 larger than the largest one of E, since E has so many.  So they are below
 *	 all positions that were not loaded.
 *
 * What the last position of a transaction is may change from one step to the
 * next, when a row of a table feed gets another stamp and VACUUM removes the
 * entry of the old one.  For causality it need only be the last of the rows
 * that are still there to be read: these were there in each step.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"

#include "publish/publish.h"

/*
 * No more transactions than these have an xid at a time: one for each backend
 * that a server can have, and one for each that it can have prepared.
 */
#define MAX_RUNNING		(2 * (int) MAX_BACKENDS)

/* how many transactions a step publishes, if so many wait */
#define MAX_STEP		500000

/* the ids whose runs are in memory at a time */
#define IDS_AT_ONCE		16384

/* A transaction that is to be published. */
typedef struct NewTransaction
{
	uint64		xid;
	int64		last_pos;
	int			part;
} NewTransaction;

/* The transactions that a step has loaded, in the order of their xids. */
typedef struct News
{
	NewTransaction *list;
	int			n;
	int			size;
	bool		complete;		/* there are no others */
	int			ncut;			/* how many are below the xmax of the last cut; */
	NewTransaction **later;		/* those of them that are in later parts */
	int			nlater;
	uint64	   *xip;			/* of the cut */
} News;

static void load_news(News *news, FeedpubRunReader *reader,
					  const FeedpubSnapshot *before,
					  const FeedpubSnapshot *snapshot, int limit);
static void add_news(News *news, FeedpubRunReader *reader, List *runs);
static NewTransaction **order_news(News *news, int per_part);
static void cut_snapshot(FeedpubSnapshot *cut, const FeedpubSnapshot *snapshot,
						 News *news, int part, uint64 xmax);
static int	compare_by_pos(const void *a, const void *b);
static int	compare_by_xid(const void *a, const void *b);

/*
 * Write the batches that lie between the snapshots of the last batch and of
 * this step, as far as one step goes.  Returns the number of transactions in
 * them.  Sets done->batches, and done->more if the next step has more to do.
 *
 * Transactions that were rolled back are among them, until VACUUM removes
 * their entries from the index.  They count, for readers walk over them as
 * well.  So a full part is written even if no row of it is visible: then
 * readers and the next steps do not walk over the same entries again.  The
 * last part is not full; if no row of it is visible, it is left to the next
 * step.  But in a change feed it ends a moment, so it is written then as well.
 */
int
feedpub_cut_batches(const FeedpubFeed *feed, const FeedpubBatch *last,
					const FeedpubSnapshot *snapshot,
					FeedpubRunReader *reader, FeedpubPublished *done)
{
	int			per_part = feedpub_max_batch_transactions;
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "feedpub batch",
												  ALLOCSET_DEFAULT_SIZES);
	News		news = {0};
	NewTransaction **by_pos;
	FeedpubSnapshot cut = last->snapshot;	/* of the part before */
	uint64		xmax = last->snapshot.xmax;
	int			npublished = 0;
	int			nparts;

	load_news(&news, reader, &last->snapshot, snapshot,
			  MAX_RUNNING + Max(MAX_STEP, per_part));
	by_pos = order_news(&news, per_part);
	nparts = news.complete ? (news.n + per_part - 1) / per_part :
							 (news.n - MAX_RUNNING) / per_part;
	done->more = !news.complete;
	news.later = MemoryContextAllocHuge(CurrentMemoryContext,
										Max(news.n, 1) * sizeof(NewTransaction *));
	news.xip = MemoryContextAllocHuge(CurrentMemoryContext,
									  (news.n + snapshot->nxip + 1) * sizeof(uint64));

	for (int part = 0; part < nparts; part++)
	{
		int			begin = part * per_part;
		int			end = Min(begin + per_part, news.n);
		bool		is_last = news.complete && part == nparts - 1;
		FeedpubBatch batch = {0};
		MemoryContext oldcontext;

		CHECK_FOR_INTERRUPTS();
		if (end - begin < per_part &&
			!(feed->is_changes && (part > 0 || last->is_part)) &&
			!feedpub_unpublished_some_live(reader, feedpub_run_load(reader, &cut, snapshot, 0, INT_MAX)))
			break;
		batch.sync_id = last->sync_id + part + 1;
		batch.publication = last->sync_id + 1;
		batch.last_pos = by_pos[end - 1]->last_pos;
		for (int i = begin; i < end; i++)
		{
			/* each part sees up to the largest xid in it or before it */
			xmax = Max(xmax, by_pos[i]->xid + 1);
			batch.transactions += feedpub_horizon_committed(FullTransactionIdFromU64(by_pos[i]->xid));
		}
		if (!is_last)
			cut_snapshot(&cut, snapshot, &news, part, xmax);
		batch.snapshot = is_last ? *snapshot : cut;
		batch.is_part = !is_last;

		oldcontext = MemoryContextSwitchTo(context);
		feedpub_batch_write(feed->relid, &batch);
		MemoryContextSwitchTo(oldcontext);
		MemoryContextReset(context);
		npublished += end - begin;
		done->batches++;
	}
	return npublished;
}

/*
 * Load the transactions with the smallest xids that snapshot sees and before
 * does not; all, or at least as many as the limit, to the end of a range of
 * xids.
 *
 * The runs of a range are in memory together, and then forgotten.  The first
 * range has only the transactions that were running when the batch before was
 * made.  The others begin where the next entries are, so stretches of xids
 * that are not in the feed cost nothing.
 */
static void
load_news(News *news, FeedpubRunReader *reader, const FeedpubSnapshot *before,
		  const FeedpubSnapshot *snapshot, int limit)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "feedpub runs",
												  ALLOCSET_DEFAULT_SIZES);
	FeedpubSnapshot from = *before;
	FeedpubSnapshot to = *snapshot;

	news->size = 256;
	news->list = palloc(news->size * sizeof(NewTransaction));
	to.xmax = before->xmax;
	while (news->n < limit)
	{
		MemoryContext oldcontext = MemoryContextSwitchTo(context);
		uint64		next;

		to.xmin = Min(snapshot->xmin, to.xmax);
		add_news(news, reader, feedpub_run_load(reader, &from, &to, 0, INT_MAX));
		MemoryContextSwitchTo(oldcontext);
		MemoryContextReset(context);

		next = feedpub_run_next_xid(reader, to.xmax);
		if (next >= snapshot->xmax)
		{
			news->complete = true;
			break;
		}
		from.xmin = from.xmax = to.xmax;
		from.nxip = 0;
		to.xmax = Min(next + IDS_AT_ONCE, snapshot->xmax);
	}
	MemoryContextDelete(context);
}

/*
 * Add the transactions of these runs, whose xids are larger than those that
 * are there.  If a transaction wrote rows and deleted some, or wrote into
 * several partitions, it has several runs.
 */
static void
add_news(News *news, FeedpubRunReader *reader, List *runs)
{
	int			first = news->n;
	int			n = first;
	ListCell   *lc;

	foreach(lc, runs)
	{
		FeedpubRun *run = lfirst(lc);
		NewTransaction *added;

		if (news->n == news->size)
			news->list = repalloc_huge(news->list,
									   (news->size *= 2) * sizeof(NewTransaction));
		added = &news->list[news->n++];
		added->xid = run->xid;
		added->last_pos = feedpub_run_last_pos(reader, run);
	}
	qsort(news->list + first, news->n - first, sizeof(NewTransaction), compare_by_xid);
	for (int i = first; i < news->n; i++)
	{
		NewTransaction *into = &news->list[n - 1];

		if (n > first && into->xid == news->list[i].xid)
			into->last_pos = Max(into->last_pos, news->list[i].last_pos);
		else
			news->list[n++] = news->list[i];
	}
	news->n = n;
}

/*
 * Number the parts.  Returns the transactions in the order of their positions.
 */
static NewTransaction **
order_news(News *news, int per_part)
{
	NewTransaction **by_pos = MemoryContextAllocHuge(CurrentMemoryContext,
													 Max(news->n, 1) * sizeof(NewTransaction *));

	for (int i = 0; i < news->n; i++)
		by_pos[i] = &news->list[i];
	qsort(by_pos, news->n, sizeof(NewTransaction *), compare_by_pos);
	for (int i = 0; i < news->n; i++)
		by_pos[i]->part = i / per_part;
	return by_pos;
}

/*
 * Make the snapshot of a part, with its xmax, after that of the part before.
 * It sees what is below its xmax, but none of later parts, and none that the
 * whole snapshot does not see.
 *
 * Those of later parts are kept from one cut to the next.  So each transaction
 * enters the list once, and the list is as short as the number of transactions
 * that were running at a time.
 */
static void
cut_snapshot(FeedpubSnapshot *cut, const FeedpubSnapshot *snapshot,
			 News *news, int part, uint64 xmax)
{
	int			nlater = 0;

	while (news->ncut < news->n && news->list[news->ncut].xid < xmax)
		news->later[news->nlater++] = &news->list[news->ncut++];
	for (int i = 0; i < news->nlater; i++)
	{
		if (news->later[i]->part > part)
			news->later[nlater++] = news->later[i];
	}
	news->nlater = nlater;
	*cut = (FeedpubSnapshot){.xmin = xmax, .xmax = xmax, .xip = news->xip};

	/* both lists are sorted: merge */
	for (int i = 0, j = 0;;)
	{
		uint64		later = i < nlater ? news->later[i]->xid : PG_UINT64_MAX;
		uint64		running = j < snapshot->nxip ? snapshot->xip[j] : PG_UINT64_MAX;
		uint64		xid = Min(later, running);

		if (xid >= xmax)
			break;
		cut->xmin = Min(cut->xmin, xid);
		cut->xip[cut->nxip++] = xid;
		if (later < running)
			i++;
		else
			j++;
	}
}

static int
compare_by_pos(const void *a, const void *b)
{
	int64		pa = (*(NewTransaction *const *) a)->last_pos;
	int64		pb = (*(NewTransaction *const *) b)->last_pos;

	return pa < pb ? -1 : pa > pb;
}

static int
compare_by_xid(const void *a, const void *b)
{
	uint64		xa = ((const NewTransaction *) a)->xid;
	uint64		xb = ((const NewTransaction *) b)->xid;

	return xa < xb ? -1 : xa > xb;
}
