/*-------------------------------------------------------------------------
 *
 * resume.c
 *	  Where the last pages of this session stopped.
 *
 * To read on in the middle of a batch is to find, for each of its
 * transactions, the next entry behind the cursor: a descent or two of the
 * index for each long one.  A reader that goes from page to page has just been there.  So
 * a page that stops inside a batch leaves behind which of its runs have not
 * ended, each with the position that it goes on from, and the next page of
 * this session, if it begins at that very place, reads only those runs that
 * have rows in it.
 *
 * Why this is safe for whatever snapshot reads next: which entries the index
 * has for a batch does not depend on who reads them, and none is added, for
 * the batch's transactions have ended.  Some may go, after their rows were
 * deleted.  So behind a remembered position lies what lay there, or less; a
 * run is read from there on in any case.  Only positions are remembered, no
 * places in the index or the table, which may be rebuilt.  A feed that was
 * dropped or restored has batches of other fingerprints; a batch into which
 * older ones were merged has another snapshot before it; and the partitions
 * of a table, by whose order runs are told apart, must be the same.
 *
 * A session may read several feeds in turns, or one for several consumers; so
 * some places are kept, and the one that is not used longest is given up.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "feedpub.h"

#define MAX_PLACES	8

/* How many runs are remembered of a batch: 1 MB. */
#define MAX_RUNS	65536

/* A run that has not ended, and a position not beyond its next entry's. */
typedef struct Rest
{
	int			source;
	uint64		xid;
	int64		pos;
} Rest;

typedef struct Place
{
	Oid			feed;			/* InvalidOid: none */
	uint32		leaves;			/* which partitions it has, a fingerprint */
	int64		sync_id;
	uint32		fingerprint;
	uint64		before_xmin;	/* of the snapshot of the batch before */
	uint64		before_xmax;
	int64		pos;			/* where the page stopped */
	int			cost;			/* of finding the runs without this, in descents */
	int			nrests;
	int			maxrests;
	Rest	   *rests;
	uint64		used;			/* larger is later */
} Place;

static Place places[MAX_PLACES];
static Place *found_last;		/* the page being read goes on from here */
static uint64 clock_hand;

/*
 * The runs of a batch that are left behind a position, none of them read yet,
 * in the current memory context.  Returns false if that is not known.
 */
bool
feedpub_resume_find(Oid feed, uint32 leaves, const FeedpubSnapshot *before,
					const FeedpubBatch *batch, int64 pos, List **runs,
					int *cost)
{
	for (int i = 0; i < MAX_PLACES; i++)
	{
		Place	   *place = &places[i];
		FeedpubRun *rest;

		if (place->feed != feed || place->pos != pos ||
			place->leaves != leaves ||
			place->sync_id != batch->sync_id ||
			place->fingerprint != batch->fingerprint ||
			place->before_xmin != before->xmin ||
			place->before_xmax != before->xmax)
			continue;

		*runs = NIL;
		rest = palloc0(place->nrests * sizeof(FeedpubRun));
		for (int j = 0; j < place->nrests; j++, rest++)
		{
			rest->source = place->rests[j].source;
			rest->xid = place->rests[j].xid;

			/* the place may be between two entries of one position (run.c) */
			rest->pos = Max(place->rests[j].pos, pos + 1);
			*runs = lappend(*runs, rest);
		}
		*cost = place->cost;
		place->used = ++clock_hand;
		found_last = place;
		return true;
	}
	return false;
}

/*
 * Remember where a page stopped inside a batch, in the stead of the place
 * that it went on from.
 */
void
feedpub_resume_keep(Oid feed, uint32 leaves, const FeedpubSnapshot *before,
					const FeedpubBatch *batch, int64 pos, List *runs,
					int cost)
{
	Place	   *place = found_last;
	ListCell   *lc;

	found_last = NULL;
	if (list_length(runs) > MAX_RUNS)
		return;
	if (place == NULL || place->feed != feed)
	{
		place = &places[0];
		for (int i = 1; i < MAX_PLACES; i++)
		{
			if (places[i].used < place->used)
				place = &places[i];
		}
	}

	place->feed = InvalidOid;
	if (place->maxrests < list_length(runs))
	{
		if (place->rests != NULL)
			pfree(place->rests);
		place->rests = NULL;
		place->maxrests = 0;
		place->rests = MemoryContextAlloc(TopMemoryContext,
										  list_length(runs) * sizeof(Rest));
		place->maxrests = list_length(runs);
	}
	place->nrests = 0;
	foreach(lc, runs)
	{
		FeedpubRun *run = lfirst(lc);

		if (run->ended)
			continue;
		place->rests[place->nrests].source = run->source;
		place->rests[place->nrests].xid = run->xid;
		place->rests[place->nrests++].pos = run->pos;
	}
	place->leaves = leaves;
	place->sync_id = batch->sync_id;
	place->fingerprint = batch->fingerprint;
	place->before_xmin = before->xmin;
	place->before_xmax = before->xmax;
	place->pos = pos;
	place->cost = cost;
	place->used = ++clock_hand;
	place->feed = feed;
}
