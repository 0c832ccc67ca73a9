/*-------------------------------------------------------------------------
 * run.c
 *	  Which rows a batch holds, found through the index on (feed_xid,
 *	  feed_pos).
 *
 * The rows of one transaction lie in one stretch of the index, in the order of
 * their positions: a run.  A batch is the runs of the transactions that its
 * snapshot sees and the one before it does not, merged by position.
 *
 * Its transactions are of two kinds.  Those that began since the batch before
 * are in the range [xmax of the snapshot before, xmax of this one).  The range
 * is walked from transaction to transaction.  Those that were running when the
 * batch before was made are listed in its snapshot, and each is looked up.  So
 * an old transaction costs one look-up a batch, and nothing is ever read from
 * the oldest running transaction on.
 *
 * A short run is read whole while the range is walked.  Of a longer one only
 * the beginning is read, or what is after the reader's cursor.  Then the walk
 * skips to the next transaction with a new descent of the index, and the merge
 * reads the rest in chunks when it gets there.  So a page costs its rows and
 * the transactions in its batch, however many rows they have.  A batch has at
 * most feedpub.max_batch_transactions of them.
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

#include "access/genam.h"
#include "access/itup.h"
#include "access/relscan.h"
#include "access/table.h"
#include "access/tableam.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/xid8.h"

#include "publish/publish.h"

/* how many entries of a run are read at once */
#define SHORT_RUN	32
#define CHUNK		256

/* One index that has runs, and what is being read of it. */
typedef struct RunSource
{
	Relation	table;			/* NULL: there is none */
	Relation	index;
	FeedpubPartition *partition;	/* NULL: the tombstones */
	Snapshot	snapshot;
	Oid			feed;			/* of the tombstones: the first column */
	int			nprefix;		/* 1 if it has that column, else 0 */
	IndexScanDesc range;		/* walks from transaction to transaction */
	IndexScanDesc point;		/* reads one transaction's entries */
	ScanKeyData start[2];		/* where range began: the scan points to it */
	uint64		walked_to;		/* range is at the first entry from here */
	uint64		nothing_from;	/* no entry is here or beyond */
	bool		had_running;	/* some of before->xip were in it */
	bool		at_entry;		/* there is one, which follows */
	uint64		xid;
	FeedpubEntry entry;
	FeedpubEntry walked[SHORT_RUN]; /* the run that is being walked */

	/* for feedpub_run_fetch() */
	IndexFetchTableData *fetch;
	TupleTableSlot *slot;
} RunSource;

struct FeedpubRunReader
{
	MemoryContext context;		/* in which the scans keep their state */
	FeedpubPartitions *partitions;
	int			nsources;
	RunSource	sources[FLEXIBLE_ARRAY_MEMBER];
};

static void begin_source(RunSource *source, Relation table, Relation index,
						 Oid feed, Snapshot snapshot);
static void rescan(FeedpubRunReader *reader, IndexScanDesc scan,
				   ScanKey keys, int nkeys);
static ItemPointer get_next(FeedpubRunReader *reader, IndexScanDesc scan,
							ScanDirection direction);
static List *load_source(FeedpubRunReader *reader, RunSource *source,
						 const FeedpubSnapshot *before,
						 const FeedpubSnapshot *snapshot, int64 after_pos,
						 int max_runs, List *runs);
static bool may_have_running(FeedpubRunReader *reader, RunSource *source,
							 const FeedpubSnapshot *before);
static void step_range(FeedpubRunReader *reader, RunSource *source);
static void seek_range(FeedpubRunReader *reader, RunSource *source,
					   uint64 xid, int64 after_pos);
static void seek_point(FeedpubRunReader *reader, RunSource *source,
					   uint64 xid, int64 after_pos);
static uint64 get_xid(const RunSource *source, IndexScanDesc scan);
static int64 get_pos(const RunSource *source, IndexScanDesc scan);
static void read_chunk(FeedpubRunReader *reader, FeedpubRun *run,
					   int64 after_pos, int nentries);
static FeedpubRun *keep_walked(const RunSource *source,
							   const FeedpubRun *walked);
static FeedpubRun *walk_run(FeedpubRunReader *reader, RunSource *source,
							bool wanted, int64 after_pos);

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
	source->nothing_from = PG_UINT64_MAX;
	source->range = feedpub_snapshot_begin_scan(table, index, snapshot,
												1 + source->nprefix);
	source->range->xs_want_itup = true;
	source->point = feedpub_snapshot_begin_scan(table, index, snapshot,
												2 + source->nprefix);
	source->point->xs_want_itup = true;
}

void
feedpub_run_end(FeedpubRunReader *reader)
{
	for (int i = 0; i < reader->nsources; i++)
	{
		RunSource  *source = &reader->sources[i];

		if (source->table == NULL)
			continue;
		index_endscan(source->range);
		index_endscan(source->point);
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
 * After feedpub_run_load() has walked up to a snapshot: the xid of the next
 * entry, or PG_UINT64_MAX if there is none.  It may be too small, but not too
 * large.
 */
uint64
feedpub_run_next_xid(const FeedpubRunReader *reader)
{
	uint64		next = PG_UINT64_MAX;

	for (int i = 0; i < reader->nsources; i++)
	{
		const RunSource *source = &reader->sources[i];

		if (source->table == NULL)
			continue;
		/* one that begins later has not been walked */
		if (source->walked_to == 0)
			next = Min(next, source->partition->since);
		else if (source->at_entry)
			next = Min(next, source->xid);
	}
	return next;
}

/*
 * Append those of one source to the list.
 */
static List *
load_source(FeedpubRunReader *reader, RunSource *source,
			const FeedpubSnapshot *before, const FeedpubSnapshot *snapshot,
			int64 after_pos, int max_runs, List *runs)
{
	uint64		since = source->partition != NULL ? source->partition->since : 0;
	uint64		from = Max(before->xmax, since);
	int			nxip = before->nxip;

	/* rows with smaller xids are not in the feed (partition.c) */
	if (snapshot->xmax <= since)
	{
		source->walked_to = 0;
		return runs;
	}
	if (nxip > 0 && reader->partitions->is_partitioned && source->partition != NULL &&
		!may_have_running(reader, source, before))
		nxip = 0;
	for (int i = 0; i < nxip; i++)
	{
		FeedpubRun *run;

		if (before->xip[i] < since ||
			!feedpub_batch_sees(snapshot, before->xip[i]))
			continue;
		run = palloc0_object(FeedpubRun);
		run->source = source - reader->sources;
		run->xid = before->xip[i];
		read_chunk(reader, run, after_pos, SHORT_RUN);
		if (run->nentries == 0)
			continue;
		runs = lappend(runs, run);
		source->had_running = true;
	}

	/*
	 * After the batch before, the walk is where this one begins.  If that was
	 * the end of the index, it still is for our snapshot, which sees no row
	 * that was entered since.
	 */
	if (source->nothing_from <= from)
		source->at_entry = false;
	else if (source->walked_to != from)
		seek_range(reader, source, from, after_pos);
	while (source->at_entry && source->xid < snapshot->xmax &&
		   list_length(runs) < max_runs)
	{
		FeedpubRun *run;

		CHECK_FOR_INTERRUPTS();
		run = walk_run(reader, source, feedpub_batch_sees(snapshot, source->xid), after_pos);
		if (run != NULL)
			runs = lappend(runs, run);
	}

	/* unless positions were skipped, which the next batch needs */
	source->walked_to = 0;
	if (list_length(runs) < max_runs && after_pos == 0)
		source->walked_to = snapshot->xmax;
	return runs;
}

/*
 * May a partition have rows of transactions that were running when the batch
 * before was made?  Into most partitions nothing has been written for long,
 * and one look tells, instead of one for each such transaction and batch.  If
 * the look finds the end of the index, nothing that the snapshot sees is after
 * it for any later batch either.
 */
static bool
may_have_running(FeedpubRunReader *reader, RunSource *source,
				 const FeedpubSnapshot *before)
{
	if (source->had_running)
		return true;
	if (source->nothing_from <= before->xmin)
		return false;
	seek_range(reader, source, before->xmin, 0);
	source->walked_to = 0;
	if (!source->at_entry)
		source->nothing_from = before->xmin;
	else if (source->xid < before->xmax)
		return true;
	else
		source->walked_to = before->xmax;
	return false;
}

/*
 * Walk over the run at which the range scan is, to the next one.  Returns it
 * if it is wanted and has entries after after_pos, else NULL.
 *
 * If the run turns out to be long, it is entered again at after_pos, unless
 * the walk has got there already, and left when enough has been read.
 */
static FeedpubRun *
walk_run(FeedpubRunReader *reader, RunSource *source, bool wanted,
		 int64 after_pos)
{
	uint64		xid = source->xid;
	FeedpubRun	run = {.source = source - reader->sources, .xid = xid};
	int			nwalked = 0;

	while (source->at_entry && source->xid == xid)
	{
		if (nwalked == SHORT_RUN && wanted && run.nentries == 0)
		{
			seek_range(reader, source, xid, after_pos);
			nwalked = 0;
			continue;
		}
		if (nwalked == SHORT_RUN)
		{
			/* not between two entries of one position, see read_chunk() */
			while (run.nentries > 0 && source->walked[run.nentries - 1].pos == source->entry.pos)
				run.nentries--;
			if (wanted && run.nentries == 0)
				read_chunk(reader, &run, after_pos, SHORT_RUN);
			run.more = true;

			/* the next transaction; after after_pos if this is its id */
			seek_range(reader, source, xid + 1, after_pos);
			break;
		}
		if (wanted && source->entry.pos > after_pos)
			source->walked[run.nentries++] = source->entry;
		nwalked++;
		step_range(reader, source);
	}
	if (run.nentries == 0)
		return NULL;
	return keep_walked(source, &run);
}

/*
 * Keep a run whose first entries have just been walked over, in the current
 * memory context.
 */
static FeedpubRun *
keep_walked(const RunSource *source, const FeedpubRun *walked)
{
	FeedpubRun *run = palloc_object(FeedpubRun);
	Size		size = walked->nentries * sizeof(FeedpubEntry);

	*run = *walked;
	if (run->entries == NULL)
		run->entries = memcpy(palloc(size), source->walked, size);
	run->pos = run->entries[0].pos;
	return run;
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
	read_chunk(reader, run, run->pos - 1, run->entries != NULL ? CHUNK : SHORT_RUN);
	return run->nentries > 0;
}

/*
 * The last position of a run.
 */
int64
feedpub_run_last_pos(FeedpubRunReader *reader, FeedpubRun *run)
{
	RunSource  *source = &reader->sources[run->source];

	if (!run->more)
		return run->entries[run->nentries - 1].pos;

	/* if VACUUM has removed what was rolled back, none is left */
	seek_point(reader, source, run->xid, 0);
	if (get_next(reader, source->point, BackwardScanDirection) == NULL)
		return run->entries[run->nentries - 1].pos;
	return get_pos(source, source->point);
}

/*
 * What an index entry holds: the xid and the position.
 */
static uint64
get_xid(const RunSource *source, IndexScanDesc scan)
{
	bool		isnull;

	return U64FromFullTransactionId(DatumGetFullTransactionId(index_getattr(scan->xs_itup, source->nprefix + 1,
																			RelationGetDescr(source->index), &isnull)));
}

static int64
get_pos(const RunSource *source, IndexScanDesc scan)
{
	bool		isnull;

	return DatumGetInt64(index_getattr(scan->xs_itup, source->nprefix + 2,
									   RelationGetDescr(source->index), &isnull));
}

/*
 * A scan allocates state at its first rescan and step.  It must live as long
 * as the scan, not as long as the caller's runs.
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
 * Set the range scan to the first entry of a transaction after a position, or
 * else to the first entry of the next transaction.
 */
static void
seek_range(FeedpubRunReader *reader, RunSource *source, uint64 xid,
		   int64 after_pos)
{
	ScanKeyData keys[2];
	ScanKey		key = &keys[source->nprefix];
	ScanKey		start = source->start;

	MemSet(keys, 0, sizeof(keys));
	if (source->nprefix > 0)
		ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_OIDEQ,
					ObjectIdGetDatum(source->feed));
	ScanKeyEntryInitialize(&start[0], SK_ROW_MEMBER, source->nprefix + 1,
						   BTGreaterStrategyNumber, InvalidOid, InvalidOid,
						   F_XID8CMP, FullTransactionIdGetDatum(FullTransactionIdFromU64(xid)));
	ScanKeyEntryInitialize(&start[1], SK_ROW_MEMBER | SK_ROW_END, source->nprefix + 2,
						   BTGreaterStrategyNumber, InvalidOid, InvalidOid,
						   F_BTINT8CMP, Int64GetDatum(after_pos));
	key->sk_flags = SK_ROW_HEADER;
	key->sk_attno = source->nprefix + 1;
	key->sk_strategy = BTGreaterStrategyNumber;
	key->sk_argument = PointerGetDatum(start);
	rescan(reader, source->range, keys, source->nprefix + 1);
	step_range(reader, source);
}

/*
 * Step the range scan by one entry.
 */
static void
step_range(FeedpubRunReader *reader, RunSource *source)
{
	ItemPointer tid = get_next(reader, source->range, ForwardScanDirection);

	source->at_entry = tid != NULL;
	if (tid == NULL)
		return;
	source->xid = get_xid(source, source->range);
	source->entry.pos = get_pos(source, source->range);
	source->entry.tid = *tid;
}

/*
 * Set the point scan to a transaction's entries after a position.
 */
static void
seek_point(FeedpubRunReader *reader, RunSource *source, uint64 xid,
		   int64 after_pos)
{
	ScanKeyData keys[3];
	int			n = source->nprefix;

	if (n > 0)
		ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_OIDEQ,
					ObjectIdGetDatum(source->feed));
	ScanKeyInit(&keys[n], n + 1, BTEqualStrategyNumber, F_XID8EQ,
				FullTransactionIdGetDatum(FullTransactionIdFromU64(xid)));
	ScanKeyInit(&keys[n + 1], n + 2, BTGreaterStrategyNumber, F_INT8GT,
				Int64GetDatum(after_pos));
	rescan(reader, source->point, keys, n + 2);
}

/*
 * Read at most nentries entries of a run that are after a position, and
 * replace those it has.
 *
 * A row of a table feed may have several entries of one position.  If an
 * UPDATE does not stamp it, but changes a column of another index, it enters
 * the new version beside the old one.  Any of them may be the visible one, so
 * they are read together: a reader that goes on after a position has seen them
 * all.
 */
static void
read_chunk(FeedpubRunReader *reader, FeedpubRun *run, int64 after_pos,
		   int nentries)
{
	RunSource  *source = &reader->sources[run->source];
	ItemPointer tid;

	seek_point(reader, source, run->xid, after_pos);
	if (run->entries != NULL)
		pfree(run->entries);
	run->entries = palloc(nentries * sizeof(FeedpubEntry));
	run->nentries = 0;
	run->current = 0;
	run->more = false;
	while ((tid = get_next(reader, source->point, ForwardScanDirection)) != NULL)
	{
		FeedpubEntry *entry;

		if (run->nentries >= nentries)
		{
			if (run->entries[run->nentries - 1].pos != get_pos(source, source->point))
			{
				run->more = true;
				break;
			}
			run->entries = repalloc(run->entries, (run->nentries + 1) * sizeof(FeedpubEntry));
		}
		entry = &run->entries[run->nentries++];
		entry->pos = get_pos(source, source->point);
		entry->tid = *tid;
	}
	if (run->nentries > 0)
		run->pos = run->entries[0].pos;
}
