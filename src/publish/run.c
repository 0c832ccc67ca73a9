/*-------------------------------------------------------------------------
 * run.c
 *	  Which rows a batch holds, found through the index on (feed_xid,
 *	  feed_pos).
 *
 * The rows of one transaction lie in one stretch of the index, in the order of
 * their positions: a run.  A batch is the runs of the transactions that its
 * snapshot sees and the one before it does not, merged by position.
 *
 * Its transactions are of two kinds.  Those that were running when the batch
 * before was made are listed in its snapshot.  Those that began since then are
 * in the range [xmax of the snapshot before, xmax of this one).  One scan of
 * the index goes from each that may be in the batch to the next, in the order
 * of their ids.  What lies between is stepped over if it is short, and passed
 * by a new descent if not.  So an old transaction costs one look-up a batch,
 * and all that the oldest one has outlived is never read.  If the scan finds
 * the end of the index, there is nothing for later batches either: the
 * snapshot sees no row that was entered since.  So a partition into which
 * nothing is written costs one look a page.
 *
 * A short run is read whole.  Of a longer one only the beginning is read, or
 * what is after the reader's cursor.  Then the scan skips to the next
 * transaction, and the merge reads the rest in chunks when it gets there.  So a
 * page costs its rows and the transactions in its batch, however many rows they
 * have.  A batch has at most feedpub.max_batch_transactions of them.
 *
 * A table feed's deletes are in feedpub._tombstone, with the same stamps and
 * an index on (feed, feed_xid, feed_pos), which is a second source of runs.
 * Of a partitioned table each partition is a source.  Rows and tombstones of
 * one transaction are several runs, which the merge joins.
 *
 * Only the index is read here.  The callers check which entries are rows that
 * their snapshot sees.  So the entries of transactions that were rolled back
 * are returned too, until VACUUM has removed them.  The commit log is not
 * asked about them: if rows were restored from another cluster, their ids mean
 * something else here.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/itup.h"
#include "access/relscan.h"
#include "access/table.h"
#include "miscadmin.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/xid8.h"

#include "publish/publish.h"

/* how many entries of a run are read at once, and at most stepped over */
#define SHORT_RUN	32
#define CHUNK		256

/* One index that has runs, and where its scan is. */
typedef struct RunSource
{
	Relation	table;			/* NULL: there is none */
	Relation	index;
	FeedpubPartition *partition;	/* NULL: the tombstones */
	Snapshot	snapshot;
	Oid			feed;			/* of the tombstones: the first column */
	int			nprefix;		/* 1 if it has that column, else 0 */
	IndexScanDesc scan;
	ScanKeyData start[2];		/* where the scan began: it points to it */
	uint64		passed_xid;		/* all entries up to here have been passed, */
	int64		passed_pos;
	bool		at_entry;		/* and this one is the next; else there is none */
	uint64		xid;
	FeedpubEntry entry;

	/* for feedpub_run_fetch() */
	IndexFetchTableData *fetch;
	TupleTableSlot *slot;
} RunSource;

struct FeedpubRunReader
{
	MemoryContext context;		/* in which the scans keep their state */
	FeedpubPartitions *partitions;
	FeedpubEntry *buffer;		/* of the run that is being read */
	int			buffer_size;
	int			nsources;
	RunSource	sources[FLEXIBLE_ARRAY_MEMBER];
};

static void begin_source(RunSource *source, Relation table, Relation index,
						 Oid feed, Snapshot snapshot);
static uint64 first_xid(const RunSource *source, uint64 xid);
static List *load_source(FeedpubRunReader *reader, RunSource *source,
						 const FeedpubSnapshot *before,
						 const FeedpubSnapshot *snapshot, int64 after_pos,
						 int max_runs, List *runs);
static void advance(FeedpubRunReader *reader, RunSource *source, uint64 xid,
					int64 pos);
static void seek(FeedpubRunReader *reader, RunSource *source, uint64 xid,
				 int64 pos, ScanDirection direction);
static void step(FeedpubRunReader *reader, RunSource *source,
				 ScanDirection direction);
static void read_entries(FeedpubRunReader *reader, FeedpubRun *run,
						 int nentries);

/*
 * Begin to read runs of a feed.  Rows are read with snapshot, tombstones with
 * state, which differs from it only in what the reader's transaction itself
 * has done.
 */
FeedpubRunReader *
feedpub_run_begin(const FeedpubFeed *feed, FeedpubPartitions *partitions,
				  Snapshot snapshot, Snapshot state)
{
	FeedpubRunReader *reader = palloc0(offsetof(FeedpubRunReader, sources) +
									   (partitions->n + 1) * sizeof(RunSource));

	reader->context = CurrentMemoryContext;
	reader->partitions = partitions;
	reader->buffer_size = CHUNK;
	reader->buffer = palloc_array(FeedpubEntry, CHUNK);
	reader->nsources = partitions->n + 1;
	for (int i = 0; i < partitions->n; i++)
	{
		RunSource  *source = &reader->sources[i + 1];

		source->partition = &partitions->partitions[i];
		begin_source(source, source->partition->heap, source->partition->index,
					 InvalidOid, snapshot);
	}
	if (feed->deletes)
	{
		Relation	tombstone_index;
		Relation	tombstones = feedpub_tombstone_open(AccessShareLock,
														&tombstone_index);

		begin_source(&reader->sources[FEEDPUB_RUN_TOMBSTONES],
					 tombstones, tombstone_index, feed->relid, state);
	}
	return reader;
}

static void
begin_source(RunSource *source, Relation table, Relation index, Oid feed,
			 Snapshot snapshot)
{
	source->snapshot = snapshot;
	source->table = table;
	source->index = index;
	source->feed = feed;
	source->nprefix = OidIsValid(feed) ? 1 : 0;
	source->passed_xid = PG_UINT64_MAX; /* nowhere yet */
	source->scan = feedpub_snapshot_begin_scan(table, index, snapshot,
											   1 + source->nprefix);
	source->scan->xs_want_itup = true;
}

void
feedpub_run_end(FeedpubRunReader *reader)
{
	for (int i = 0; i < reader->nsources; i++)
	{
		RunSource  *source = &reader->sources[i];

		if (source->table == NULL)
			continue;
		index_endscan(source->scan);
		if (source->fetch != NULL)
		{
			table_index_fetch_end(source->fetch);
			ExecDropSingleTupleTableSlot(source->slot);
		}
		if (i == FEEDPUB_RUN_TOMBSTONES)
		{
			index_close(source->index, NoLock);
			table_close(source->table, NoLock);
		}
	}
	pfree(reader->buffer);
	pfree(reader);
}

/*
 * The row, in the feed's table's row type, or the tombstone of an entry of a
 * run; NULL if the reader's snapshot sees none.  Valid until the next call.
 */
TupleTableSlot *
feedpub_run_fetch(FeedpubRunReader *reader, const FeedpubRun *run, int i)
{
	RunSource  *source = &reader->sources[run->source];
	ItemPointerData tid = run->entries[i].tid;
	bool		call_again = false;
	bool		all_dead = false;

	if (source->fetch == NULL)
	{
		MemoryContext oldcontext = MemoryContextSwitchTo(reader->context);

		source->slot = table_slot_create(source->table, NULL);
		source->fetch = feedpub_table_index_fetch_begin(source->table);
		MemoryContextSwitchTo(oldcontext);
	}
	if (!table_index_fetch_tuple(source->fetch, &tid, source->snapshot,
								 source->slot, &call_again, &all_dead))
		return NULL;
	if (source->partition != NULL)
		return feedpub_partition_convert(reader->partitions, source->partition, source->slot);
	return source->slot;
}

/*
 * The runs of a batch, as far as they are after after_pos, each with its first
 * entries, in the current memory context.  before is the snapshot of the batch
 * before it.  If a caller only wants to know whether there are any, the walk
 * stops at max_runs.
 */
List *
feedpub_run_load(FeedpubRunReader *reader, const FeedpubSnapshot *before,
				 const FeedpubSnapshot *snapshot, int64 after_pos,
				 int max_runs)
{
	List	   *runs = NIL;

	for (int i = 0; i < reader->nsources; i++)
	{
		RunSource  *source = &reader->sources[i];

		if (source->table == NULL)
			continue;
		runs = load_source(reader, source,
						   before, snapshot, after_pos, max_runs, runs);
	}
	return runs;
}

/*
 * The smallest id from this one on of a transaction that has entries, or
 * PG_UINT64_MAX.
 */
uint64
feedpub_run_next_xid(FeedpubRunReader *reader, uint64 xid)
{
	uint64		next = PG_UINT64_MAX;

	for (int i = 0; i < reader->nsources; i++)
	{
		RunSource  *source = &reader->sources[i];

		if (source->table == NULL)
			continue;
		advance(reader, source, first_xid(source, xid), 0);
		if (source->at_entry)
			next = Min(next, source->xid);
	}
	return next;
}

/*
 * The first id from this one on whose rows are in the feed (partition_join.c).
 */
static uint64
first_xid(const RunSource *source, uint64 xid)
{
	return Max(xid, source->partition != NULL ? source->partition->since : 0);
}

/*
 * Append those of one source to the list.
 */
static List *
load_source(FeedpubRunReader *reader, RunSource *source,
			const FeedpubSnapshot *before, const FeedpubSnapshot *snapshot,
			int64 after_pos, int max_runs, List *runs)
{
	uint64		xid = first_xid(source, 0);
	FeedpubRun *run = NULL;
	int			i = 0;

	while (list_length(runs) < max_runs)
	{
		CHECK_FOR_INTERRUPTS();

		/* the next one that may be in the batch */
		while (i < before->nxip && before->xip[i] < xid)
			i++;
		xid = i < before->nxip ? before->xip[i] : Max(xid, before->xmax);
		if (xid >= snapshot->xmax)
			break;
		if (!feedpub_batch_sees(snapshot, xid))
		{
			xid++;
			continue;
		}

		/* or the next one that has entries, which may be before that */
		if (run != NULL && run->more && source->xid == run->xid)
			seek(reader, source, xid, after_pos, ForwardScanDirection);
		advance(reader, source, xid, after_pos);
		if (!source->at_entry)
			break;
		if (source->xid != xid)
		{
			xid = source->xid;
			continue;
		}
		run = palloc0_object(FeedpubRun);
		run->source = source - reader->sources;
		run->xid = xid++;
		read_entries(reader, run, SHORT_RUN);
		runs = lappend(runs, run);
	}
	return runs;
}

/*
 * Step to the next entry of a run, which may have to be read first
 * (feedpub_run_read).  Returns false at the end of it.
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
 * Read the next entries of a run of which none is in memory.  Returns whether
 * there were any.  The first may be after run->pos, which moves there.
 */
bool
feedpub_run_read(FeedpubRunReader *reader, FeedpubRun *run)
{
	Assert(run->nentries == 0);
	advance(reader, &reader->sources[run->source], run->xid, run->pos - 1);
	read_entries(reader, run, CHUNK);
	return run->nentries > 0;
}

/*
 * The last position of a run.
 */
int64
feedpub_run_last_pos(FeedpubRunReader *reader, FeedpubRun *run)
{
	RunSource  *source = &reader->sources[run->source];
	int64		last_pos = run->entries[run->nentries - 1].pos;

	if (!run->more)
		return last_pos;
	seek(reader, source, run->xid, PG_INT64_MAX, BackwardScanDirection);

	/* if VACUUM has removed what was rolled back, none is left */
	return source->at_entry && source->xid == run->xid ? source->entry.pos : last_pos;
}

/*
 * Move the scan forward, or back, to the first entry of a transaction after a
 * position, or else to the first entry of the next transaction.
 */
static void
advance(FeedpubRunReader *reader, RunSource *source, uint64 xid, int64 pos)
{
	int			nsteps = 0;

	if (xid < source->passed_xid || (xid == source->passed_xid && pos < source->passed_pos))
		seek(reader, source, xid, pos, ForwardScanDirection);
	while (source->at_entry &&
		   (source->xid < xid || (source->xid == xid && source->entry.pos <= pos)))
	{
		if (nsteps++ < SHORT_RUN)
			step(reader, source, ForwardScanDirection);
		else
			seek(reader, source, xid, pos, ForwardScanDirection);
	}
}

/*
 * Begin the scan anew after such a position; or, backwards, at or before it.
 */
static void
seek(FeedpubRunReader *reader, RunSource *source, uint64 xid, int64 pos,
	 ScanDirection direction)
{
	StrategyNumber strategy = ScanDirectionIsForward(direction) ? BTGreaterStrategyNumber : BTLessEqualStrategyNumber;
	MemoryContext oldcontext = MemoryContextSwitchTo(reader->context);
	ScanKeyData keys[2];
	ScanKey		key = &keys[source->nprefix];
	ScanKey		start = source->start;

	MemSet(keys, 0, sizeof(keys));
	if (source->nprefix > 0)
		ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_OIDEQ,
					ObjectIdGetDatum(source->feed));
	ScanKeyEntryInitialize(&start[0], SK_ROW_MEMBER, source->nprefix + 1,
						   strategy, InvalidOid, InvalidOid,
						   F_XID8CMP, FullTransactionIdGetDatum(FullTransactionIdFromU64(xid)));
	ScanKeyEntryInitialize(&start[1], SK_ROW_MEMBER | SK_ROW_END, source->nprefix + 2,
						   strategy, InvalidOid, InvalidOid,
						   F_BTINT8CMP, Int64GetDatum(pos));
	key->sk_flags = SK_ROW_HEADER;
	key->sk_attno = source->nprefix + 1;
	key->sk_strategy = strategy;
	key->sk_argument = PointerGetDatum(start);
	index_rescan(source->scan, keys, source->nprefix + 1, NULL, 0);
	MemoryContextSwitchTo(oldcontext);
	source->at_entry = false;
	step(reader, source, direction);
	source->passed_xid = ScanDirectionIsForward(direction) ? xid : PG_UINT64_MAX;
	source->passed_pos = pos;
}

/*
 * Step to the next entry.  A scan allocates state at its first rescan and step.
 * It must live as long as the scan, not as long as the caller's runs.
 */
static void
step(FeedpubRunReader *reader, RunSource *source, ScanDirection direction)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(reader->context);
	ItemPointer tid = index_getnext_tid(source->scan, direction);
	TupleDesc	desc = RelationGetDescr(source->index);
	bool		isnull;

	MemoryContextSwitchTo(oldcontext);
	source->passed_xid = source->xid;
	source->passed_pos = source->entry.pos;
	source->at_entry = tid != NULL;
	if (tid == NULL)
		return;
	source->xid = U64FromFullTransactionId(DatumGetFullTransactionId(index_getattr(source->scan->xs_itup, source->nprefix + 1,
																				   desc, &isnull)));
	source->entry.pos = DatumGetInt64(index_getattr(source->scan->xs_itup, source->nprefix + 2,
													desc, &isnull));
	source->entry.tid = *tid;
}

/*
 * Read at most nentries entries of a run at which the scan is, in the current
 * memory context, and replace those it has.
 *
 * A row of a table feed may have several entries of one position.  If an
 * UPDATE does not stamp it, but changes a column of another index, it enters
 * the new version beside the old one.  Any of them may be the visible one, so
 * they are read together: a reader that goes on after a position has seen them
 * all.
 */
static void
read_entries(FeedpubRunReader *reader, FeedpubRun *run, int nentries)
{
	RunSource  *source = &reader->sources[run->source];
	int			n = 0;

	run->more = false;
	while (source->at_entry && source->xid == run->xid && !run->more)
	{
		if (n >= nentries && reader->buffer[n - 1].pos != source->entry.pos)
			run->more = true;
		else
		{
			if (n == reader->buffer_size)
				reader->buffer = repalloc(reader->buffer, (reader->buffer_size *= 2) * sizeof(FeedpubEntry));
			reader->buffer[n++] = source->entry;
			step(reader, source, ForwardScanDirection);
		}
	}
	if (run->entries != NULL)
		pfree(run->entries);
	run->entries = memcpy(palloc_array(FeedpubEntry, n), reader->buffer, n * sizeof(FeedpubEntry));
	run->nentries = n;
	run->current = 0;
	if (n > 0)
		run->pos = run->entries[0].pos;
}
