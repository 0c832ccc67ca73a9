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
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"

#include "publish/publish.h"

/* A transaction that is to be published. */
typedef struct NewTransaction
{
	uint64		xid;
	int64		last_pos;
	int			part;
	FeedpubRun *runs;			/* the first one, and its siblings */
} NewTransaction;

static int	join_runs(NewTransaction *news, int nnews);
static int	write_batches(Oid relid, const FeedpubBatch *last,
						  const FeedpubSnapshot *snapshot,
						  NewTransaction *news, int nnews,
						  FeedpubRunReader *reader);
static void cut_snapshot(FeedpubSnapshot *cut, const FeedpubSnapshot *snapshot,
						 NewTransaction **by_xid, int nnews, int part,
						 uint64 xmax);
static int	compare_by_pos(const void *a, const void *b);
static int	compare_xids(const void *a, const void *b);
static int	compare_by_xid(const void *a, const void *b);

/*
 * Write the batches of these runs, which lie between the snapshots of the last
 * batch and of this step.  Sets *ntransactions to the number of transactions
 * in them.  Returns the number of batches.
 */
int
feedpub_cut_batches(const FeedpubFeed *feed, const FeedpubBatch *last,
					const FeedpubSnapshot *snapshot, List *runs,
					FeedpubRunReader *reader, int *ntransactions)
{
	NewTransaction *news = MemoryContextAllocHuge(CurrentMemoryContext,
												  list_length(runs) * sizeof(NewTransaction));
	int			nnews = 0;
	ListCell   *lc;

	foreach(lc, runs)
	{
		FeedpubRun *run = lfirst(lc);

		MemSet(&news[nnews], 0, sizeof(NewTransaction));
		news[nnews].xid = run->xid;
		news[nnews].runs = run;
		news[nnews++].last_pos = feedpub_run_last_pos(reader, run);
	}
	if (feed->deletes || feed->is_partitioned)
		nnews = join_runs(news, nnews);
	*ntransactions = nnews;
	return write_batches(feed->relid, last, snapshot, news, nnews, reader);
}

/*
 * If a transaction wrote rows and deleted some, or wrote into several
 * partitions, it has several runs: join them in one entry.  Returns how many
 * entries are left.
 */
static int
join_runs(NewTransaction *news, int nnews)
{
	int			n = 0;

	qsort(news, nnews, sizeof(NewTransaction), compare_xids);
	for (int i = 0; i < nnews; i++)
	{
		NewTransaction *into = &news[n - 1];

		if (n == 0 || into->xid != news[i].xid)
		{
			news[n++] = news[i];
			continue;
		}
		news[i].runs->sibling = into->runs;
		into->runs = news[i].runs;
		into->last_pos = Max(into->last_pos, news[i].last_pos);
	}
	return n;
}

/*
 * Write one batch of the new transactions, or several if they are many.
 *
 * Transactions that were rolled back are among them, until VACUUM removes
 * their entries from the index.  They count, for readers walk over them as
 * well.  So a full part is written even if no row of it is visible: then
 * readers and the next steps do not walk over the same entries again.  The
 * last part is not full; if no row of it is visible, it is left to the next
 * step.  Returns the number of batches.
 */
static int
write_batches(Oid relid, const FeedpubBatch *last,
			  const FeedpubSnapshot *snapshot,
			  NewTransaction *news, int nnews, FeedpubRunReader *reader)
{
	int			per_part = feedpub_max_batch_transactions;
	int			nparts = Max((nnews + per_part - 1) / per_part, 1);
	NewTransaction **by_xid = NULL;
	uint64	   *xmax = palloc(nparts * sizeof(uint64));
	FeedpubSnapshot cut = last->snapshot;
	int			part;

	qsort(news, nnews, sizeof(NewTransaction), compare_by_pos);
	if (nparts > 1)
	{
		by_xid = MemoryContextAllocHuge(CurrentMemoryContext,
										nnews * sizeof(NewTransaction *));
		for (int i = 0; i < nnews; i++)
		{
			part = i / per_part;
			news[i].part = part;
			by_xid[i] = &news[i];

			/* each part sees up to the largest xid in it or before it */
			if (i % per_part == 0)
				xmax[part] = part > 0 ? xmax[part - 1] : last->snapshot.xmax;
			xmax[part] = Max(xmax[part], news[i].xid + 1);
		}
		qsort(by_xid, nnews, sizeof(NewTransaction *), compare_by_xid);
	}

	for (part = 0; part < nparts; part++)
	{
		FeedpubBatch batch = {0};
		int			begin = part * per_part;
		int			end = Min(begin + per_part, nnews);
		bool		lives = end - begin == per_part;

		CHECK_FOR_INTERRUPTS();
		for (int i = begin; i < end && !lives; i++)
		{
			for (FeedpubRun *run = news[i].runs; run != NULL && !lives; run = run->sibling)
				lives = feedpub_unpublished_run_lives(reader, run);
		}
		if (!lives)
			break;
		batch.sync_id = last->sync_id + part + 1;
		batch.last_pos = end > begin ? news[end - 1].last_pos : last->last_pos;
		if (part == nparts - 1)
			batch.snapshot = *snapshot;
		else
		{
			cut_snapshot(&cut, snapshot, by_xid, nnews, part, xmax[part]);
			batch.snapshot = cut;
		}

		for (int i = begin; i < end; i++)
			batch.transactions += feedpub_horizon_committed(FullTransactionIdFromU64(news[i].xid));
		feedpub_batch_write(relid, &batch);
	}
	return part;
}

/*
 * Make the snapshot of a part, with its xmax, from that of the part before.
 * It also sees the transactions of this part, but none of later parts, and
 * none that the whole snapshot does not see.
 *
 * The list of the part before has what is below its xmax and was not seen.
 * The transactions between its xmax and ours are added, and those of this part
 * are removed.  So each transaction enters the list once, and the list is as
 * short as the number of transactions that were running at a time.
 */
static void
cut_snapshot(FeedpubSnapshot *cut, const FeedpubSnapshot *snapshot,
			 NewTransaction **by_xid, int nnews, int part, uint64 xmax)
{
	int			first = 0;
	int			high = nnews;
	int			nxip = 0;
	int			maxxip = cut->nxip + snapshot->nxip + 16;
	uint64	   *xip = palloc(maxxip * sizeof(uint64));
	int			i = 0;

	/* the first transaction at or beyond the old xmax */
	while (first < high)
	{
		int			middle = (first + high) / 2;

		if (by_xid[middle]->xid < cut->xmax)
			first = middle + 1;
		else
			high = middle;
	}

	/*
	 * The old list, without the transactions that this part holds and those
	 * that have ended without a row.  What stays are transactions that the
	 * whole snapshot does not see, and transactions of later parts.
	 */
	for (i = 0; i < cut->nxip; i++)
	{
		NewTransaction key = {.xid = cut->xip[i]};
		NewTransaction *keyp = &key;
		NewTransaction **found = bsearch(&keyp, by_xid, nnews,
										 sizeof(NewTransaction *), compare_by_xid);

		if (!feedpub_batch_sees(snapshot, cut->xip[i]) ||
			(found != NULL && (*found)->part > part))
			xip[nxip++] = cut->xip[i];
	}

	/* between the old xmax and the new one; both lists are sorted: merge */
	i = 0;
	while (i < snapshot->nxip && snapshot->xip[i] < cut->xmax)
		i++;
	for (;;)
	{
		uint64		running = i < snapshot->nxip ? snapshot->xip[i] : PG_UINT64_MAX;
		uint64		ended = first < nnews ? by_xid[first]->xid : PG_UINT64_MAX;
		uint64		xid = Min(running, ended);

		if (xid >= xmax)
			break;
		if (nxip == maxxip)
		{
			maxxip *= 2;
			xip = repalloc(xip, maxxip * sizeof(uint64));
		}
		if (running < ended)
		{
			xip[nxip++] = running;
			i++;
		}
		else
		{
			if (by_xid[first]->part > part)
				xip[nxip++] = ended;
			first++;
		}
	}
	cut->xmax = xmax;
	cut->nxip = nxip;
	cut->xip = xip;
	cut->xmin = nxip > 0 ? xip[0] : xmax;
}

static int
compare_by_pos(const void *a, const void *b)
{
	int64		pa = ((const NewTransaction *) a)->last_pos;
	int64		pb = ((const NewTransaction *) b)->last_pos;

	return pa < pb ? -1 : pa > pb;
}

static int
compare_xids(const void *a, const void *b)
{
	uint64		xa = ((const NewTransaction *) a)->xid;
	uint64		xb = ((const NewTransaction *) b)->xid;

	return xa < xb ? -1 : xa > xb;
}

static int
compare_by_xid(const void *a, const void *b)
{
	return compare_xids(*(NewTransaction *const *) a,
						*(NewTransaction *const *) b);
}
