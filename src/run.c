/*-------------------------------------------------------------------------
 *
 * run.c
 *	  Which rows a batch holds, found through the index on (feed_xid,
 *	  feed_pos).
 *
 * The rows of one transaction lie in one stretch of the index, in the order
 * of their positions: a run.  A batch is the runs of the transactions that
 * its snapshot sees and the one before it does not, merged by position.
 *
 * Its transactions are in two places.  Those that began since are in the
 * range [xmax of the snapshot before, xmax of this one); it is walked from
 * transaction to transaction.  Those that were running when the batch before
 * was made are listed in that snapshot; each is looked up.  So an old
 * transaction costs one look-up a batch, and nothing is ever read from the
 * oldest running transaction on.
 *
 * Short runs are read whole while the range is walked.  Of a longer one only
 * the beginning is, or what lies behind the reader's cursor, and the walk
 * skips to the next transaction with a new descent of the index; the rest is
 * read in chunks when the merge gets there.  So the cost of a page is that of
 * its rows, and of the transactions in its batch, however many rows they have.
 * Who goes on where his last page stopped is spared the walk (resume.c).
 *
 * Only the index is read here; whoever takes entries must see for himself
 * which of them are rows in his snapshot.  So the entries of transactions that
 * were rolled back come too, until VACUUM has removed them.  The commit log is
 * not asked about them: rows that were restored from another cluster carry
 * ids that mean something else here.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/itup.h"
#include "access/relscan.h"
#include "miscadmin.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/xid8.h"

#include "feedpub.h"

/* how many entries of a run are read at once */
#define SHORT_RUN	32
#define CHUNK		256

struct FeedpubRunReader
{
	MemoryContext context;		/* in which the scans keep their state */
	Relation	index;
	IndexScanDesc range;		/* walks from transaction to transaction */
	IndexScanDesc point;		/* reads one transaction's entries */
	ScanKeyData place[2];		/* where it began: the scan points to it */
	uint64		walked_to;		/* range stands at the first entry from here */
	uint64		nsteps;			/* of the range scan, a descent for SHORT_RUN */
	bool		at_entry;		/* there is one, this: */
	uint64		xid;
	FeedpubEntry entry;
	FeedpubEntry walked[SHORT_RUN]; /* the run that is being walked */
};

static void rescan(FeedpubRunReader *reader, IndexScanDesc scan,
				   ScanKey keys, int nkeys);
static ItemPointer get_next(FeedpubRunReader *reader, IndexScanDesc scan,
							ScanDirection direction);
static void step_range(FeedpubRunReader *reader);
static void seek_range(FeedpubRunReader *reader, uint64 xid, int64 after_pos);
static void seek_point(FeedpubRunReader *reader, uint64 xid, int64 after_pos);
static void read_chunk(FeedpubRunReader *reader, FeedpubRun *run,
					   int64 after_pos, int nentries);
static FeedpubRun *keep_walked(FeedpubRunReader *reader, const FeedpubRun *walked);
static FeedpubRun *walk_run(FeedpubRunReader *reader, bool wanted,
							int64 after_pos);

/*
 * Begin to read runs of a feed.
 */
FeedpubRunReader *
feedpub_run_begin(Relation heap, Relation index, Snapshot snapshot)
{
	FeedpubRunReader *reader = palloc0_object(FeedpubRunReader);

	reader->context = CurrentMemoryContext;
	reader->index = index;
	reader->range = feedpub_index_beginscan(heap, index, snapshot, 1);
	reader->range->xs_want_itup = true;
	reader->point = feedpub_index_beginscan(heap, index, snapshot, 2);
	reader->point->xs_want_itup = true;
	return reader;
}

void
feedpub_run_end(FeedpubRunReader *reader)
{
	index_endscan(reader->range);
	index_endscan(reader->point);
	pfree(reader);
}

/*
 * The runs of a batch, as far as they lie behind after_pos, each with its
 * first entries; in the current memory context.  before is the snapshot of
 * the batch before it.  Who only wants to know whether there are any stops
 * the walk at max_runs.  *cost, unless NULL, is what it took, in descents of
 * the index.
 */
List *
feedpub_run_load(FeedpubRunReader *reader, const FeedpubSnapshot *before,
				 const FeedpubSnapshot *snapshot, int64 after_pos,
				 int max_runs, int *cost)
{
	List	   *runs = NIL;

	reader->nsteps = (uint64) before->nxip * SHORT_RUN;

	for (int i = 0; i < before->nxip; i++)
	{
		FeedpubRun *run;

		if (!feedpub_batch_sees(snapshot, before->xip[i]))
			continue;
		run = palloc0_object(FeedpubRun);
		run->xid = before->xip[i];
		read_chunk(reader, run, after_pos, SHORT_RUN);
		if (run->nentries > 0)
			runs = lappend(runs, run);
	}

	/*
	 * Behind the batch before, the walk stands where this one begins.  Should
	 * that be the end of the index, it still is for our snapshot: it sees no
	 * row that was entered since.
	 */
	if (reader->walked_to != before->xmax)
		seek_range(reader, before->xmax, 0);
	while (reader->at_entry && reader->xid < snapshot->xmax &&
		   list_length(runs) < max_runs)
	{
		FeedpubRun *run;

		CHECK_FOR_INTERRUPTS();
		run = walk_run(reader, feedpub_batch_sees(snapshot, reader->xid), after_pos);
		if (run != NULL)
			runs = lappend(runs, run);
	}

	reader->walked_to = list_length(runs) < max_runs ? snapshot->xmax : 0;
	if (cost != NULL)
		*cost = (int) Min(reader->nsteps / SHORT_RUN, INT_MAX);
	return runs;
}

/*
 * Walk over the run at which the range scan stands, and beyond it.  Returns
 * it if it is wanted and has entries behind after_pos, else NULL.
 *
 * One that turns out to be long is entered again at after_pos, if the walk
 * has not got there yet, and left when enough has been read.
 */
static FeedpubRun *
walk_run(FeedpubRunReader *reader, bool wanted, int64 after_pos)
{
	uint64		xid = reader->xid;
	FeedpubRun	run = {.xid = xid};
	int			nwalked = 0;

	while (reader->at_entry && reader->xid == xid)
	{
		if (nwalked == SHORT_RUN && wanted && run.nentries == 0)
		{
			seek_range(reader, xid, after_pos);
			nwalked = 0;
			continue;
		}
		if (nwalked == SHORT_RUN)
		{
			run.more = true;
			seek_range(reader, xid + 1, 0);
			break;
		}
		if (wanted && reader->entry.pos > after_pos)
			reader->walked[run.nentries++] = reader->entry;
		nwalked++;
		step_range(reader);
	}
	if (run.nentries == 0)
		return NULL;
	return keep_walked(reader, &run);
}

/*
 * A run whose first entries have just been walked over, in the current memory
 * context.
 */
static FeedpubRun *
keep_walked(FeedpubRunReader *reader, const FeedpubRun *walked)
{
	FeedpubRun *run = palloc_object(FeedpubRun);
	Size		size = walked->nentries * sizeof(FeedpubEntry);

	*run = *walked;
	run->entries = memcpy(palloc(size), reader->walked, size);
	run->pos = run->entries[0].pos;
	return run;
}

/*
 * Step to the next entry of a run, which need not have been read yet; false
 * at the end of it.
 */
bool
feedpub_run_next(FeedpubRun *run)
{
	if (++run->current < run->nentries)
	{
		run->pos = run->entries[run->current].pos;
		return true;
	}
	if (!run->more)
		return false;
	run->pos = run->entries[run->nentries - 1].pos + 1;
	run->nentries = 0;
	return true;
}

/*
 * Read the next entries of a run of which none is at hand.  Returns whether
 * there were any; their first may lie behind run->pos, which moves there.
 */
bool
feedpub_run_read(FeedpubRunReader *reader, FeedpubRun *run)
{
	Assert(run->nentries == 0);
	read_chunk(reader, run, run->pos - 1, run->entries != NULL ? CHUNK : SHORT_RUN);
	return run->nentries > 0;
}

/*
 * The last position of a run.
 */
int64
feedpub_run_last_pos(FeedpubRunReader *reader, FeedpubRun *run)
{
	IndexScanDesc scan = reader->point;
	bool		isnull;

	if (!run->more)
		return run->entries[run->nentries - 1].pos;

	seek_point(reader, run->xid, 0);
	if (get_next(reader, scan, BackwardScanDirection) == NULL)
		elog(ERROR, "could not find the last row of transaction " UINT64_FORMAT,
			 run->xid);
	return DatumGetInt64(index_getattr(scan->xs_itup, 2,
									   RelationGetDescr(reader->index), &isnull));
}

/*
 * A scan allocates state at its first rescan and step, which must live as
 * long as the scan does, not as long as the caller's runs.
 */
static void
rescan(FeedpubRunReader *reader, IndexScanDesc scan, ScanKey keys, int nkeys)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(reader->context);

	index_rescan(scan, keys, nkeys, NULL, 0);
	MemoryContextSwitchTo(oldcontext);
}

static ItemPointer
get_next(FeedpubRunReader *reader, IndexScanDesc scan, ScanDirection direction)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(reader->context);
	ItemPointer tid = index_getnext_tid(scan, direction);

	MemoryContextSwitchTo(oldcontext);
	return tid;
}

/*
 * Set the range scan to the first entry of a transaction behind a position,
 * or else of the first one after it.
 */
static void
seek_range(FeedpubRunReader *reader, uint64 xid, int64 after_pos)
{
	ScanKeyData key = {0};
	ScanKey		place = reader->place;

	ScanKeyEntryInitialize(&place[0], SK_ROW_MEMBER, 1,
						   BTGreaterStrategyNumber, InvalidOid, InvalidOid,
						   F_XID8CMP, FullTransactionIdGetDatum(FullTransactionIdFromU64(xid)));
	ScanKeyEntryInitialize(&place[1], SK_ROW_MEMBER | SK_ROW_END, 2,
						   BTGreaterStrategyNumber, InvalidOid, InvalidOid,
						   F_BTINT8CMP, Int64GetDatum(after_pos));
	key.sk_flags = SK_ROW_HEADER;
	key.sk_attno = 1;
	key.sk_strategy = BTGreaterStrategyNumber;
	key.sk_argument = PointerGetDatum(place);
	rescan(reader, reader->range, &key, 1);
	reader->nsteps += SHORT_RUN;
	step_range(reader);
}

/*
 * Step the range scan by one entry.
 */
static void
step_range(FeedpubRunReader *reader)
{
	IndexScanDesc scan = reader->range;
	ItemPointer tid = get_next(reader, scan, ForwardScanDirection);
	bool		isnull;

	reader->nsteps++;
	reader->at_entry = tid != NULL;
	if (tid == NULL)
		return;
	reader->xid = U64FromFullTransactionId(DatumGetFullTransactionId(index_getattr(scan->xs_itup, 1,
																				   RelationGetDescr(reader->index), &isnull)));
	reader->entry.pos = DatumGetInt64(index_getattr(scan->xs_itup, 2,
													RelationGetDescr(reader->index), &isnull));
	reader->entry.tid = *tid;
}

/*
 * Set the point scan to a transaction's entries behind a position.
 */
static void
seek_point(FeedpubRunReader *reader, uint64 xid, int64 after_pos)
{
	ScanKeyData keys[2];

	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_XID8EQ,
				FullTransactionIdGetDatum(FullTransactionIdFromU64(xid)));
	ScanKeyInit(&keys[1], 2, BTGreaterStrategyNumber, F_INT8GT,
				Int64GetDatum(after_pos));
	rescan(reader, reader->point, keys, 2);
}

/*
 * Read entries of a run that lie behind a position, at most so many, in place
 * of those it has.
 */
static void
read_chunk(FeedpubRunReader *reader, FeedpubRun *run, int64 after_pos,
		   int nentries)
{
	IndexScanDesc scan = reader->point;
	ItemPointer tid;

	seek_point(reader, run->xid, after_pos);
	if (run->entries != NULL)
		pfree(run->entries);
	run->entries = palloc(nentries * sizeof(FeedpubEntry));
	run->nentries = 0;
	run->current = 0;
	run->more = false;
	while ((tid = get_next(reader, scan, ForwardScanDirection)) != NULL)
	{
		bool		isnull;
		FeedpubEntry *entry;

		if (run->nentries == nentries)
		{
			run->more = true;
			break;
		}
		entry = &run->entries[run->nentries++];
		entry->pos = DatumGetInt64(index_getattr(scan->xs_itup, 2,
												 RelationGetDescr(reader->index), &isnull));
		entry->tid = *tid;
	}
	if (run->nentries > 0)
		run->pos = run->entries[0].pos;
}
