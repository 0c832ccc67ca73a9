/*-------------------------------------------------------------------------
 *
 * server_start.c
 *	  The id of the server start.
 *
 * Each start of the server as a primary draws 64 random bits when they are
 * first needed.  They are in shared memory, which does not survive a crash
 * restart: that is a new start.  So is a promotion: a standby draws none
 * before it is promoted.  All databases share one id.
 *
 * Seeds of batches are made of it (batch.c), and cursors carry the seed.
 * What a server loses, in a crash or because it was not replicated, was made
 * by a start that does not go on: the server continues as another start.
 *
 * feedpub._server_start has one row: the start that has published last in this
 * database.  The first batch of a start writes it, in its transaction.  A
 * snapshot that sees a batch sees the row of its start, or of a later one: the
 * row is written under a lock that is held to the end of the transaction, and
 * a publisher that does not see it waits for that lock.  Only
 * publishers take it.  After it a publisher locks only our own tables, in
 * modes that conflict with none that a publisher holds, so it takes part in no
 * deadlock.
 *
 * A page carries the seed of the server that serves it.  A primary serves its
 * own, written or not.  A standby continues its primary, so it serves the id
 * in the table, as its snapshot sees it: until a primary has published after
 * its start, its standbys serve the start before, by which their batches were
 * made.  But after a promotion, that start may have gone on elsewhere, and may
 * go on still.  So the table has the timeline, too.  If the standby has
 * replayed another one, it serves an id made of both, which is no start's: no
 * batch proves its pages (read/page_proof.c), and cursors of the start before
 * are checked.  The timeline is read after the snapshot was taken; it only
 * grows, and it has changed before a change of the new primary can be seen.
 * (A copy of the storage that is booted without a promotion has the timeline
 * of its original.  The first batch that it makes ends that.)
 *
 * The id is zero if none is known: on a standby before the first batch,
 * and if there is no room for our shared memory.  Without shared memory each
 * process makes batches as a start of its own.
 *
 * The table is not dumped: starts of another server mean nothing.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "access/xlogrecovery.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "feed/feed.h"

/* columns of feedpub._server_start */
#define ANUM_START_ID			1
#define ANUM_START_WRITTEN_AT	2
#define ANUM_START_TIMELINE		3
#define NATTS_START				3

static uint64 draw(void);
static Relation open_table(LOCKMODE lockmode);
static uint64 read_row(Relation table, Snapshot snapshot, HeapTuple *row,
					   TimeLineID *timeline);

/*
 * The id that a page carries if it is read with this snapshot; 0: none is
 * known.
 */
uint64
feedpub_server_start_of_page(Snapshot snapshot)
{
	Relation	table;
	TimeLineID	written = 0;
	TimeLineID	replayed;
	uint64		id;

	if (!RecoveryInProgress())
		return feedpub_shmem_start(draw);
	table = open_table(AccessShareLock);
	id = read_row(table, snapshot, NULL, &written);
	table_close(table, AccessShareLock);
	(void) GetXLogReplayRecPtr(&replayed);
	if (id == 0 || replayed == written)
		return id;
	return hash_bytes_extended((const unsigned char *) &id, sizeof(id), replayed);
}

/*
 * The id of which this process makes seeds of batches.
 */
uint64
feedpub_server_start_of_batches(void)
{
	static uint64 own = 0;
	uint64		id = feedpub_shmem_start(draw);

	if (id == 0 && own == 0)
		own = draw();
	return id != 0 ? id : own;
}

/*
 * Write this start into the table unless it is there, for a publisher that
 * writes a batch.  Each look takes a new snapshot, the second one with the
 * lock.
 */
void
feedpub_server_start_write(void)
{
	Relation	table = open_table(RowExclusiveLock);
	uint64		id = feedpub_shmem_start(draw);
	HeapTuple	old = NULL;
	LOCKTAG		tag;

	if (read_row(table, NULL, NULL, NULL) == id)
	{
		table_close(table, NoLock);
		return;
	}
	SET_LOCKTAG_OBJECT(tag, MyDatabaseId, RelationGetRelid(table), InvalidOid, 0);
	(void) LockAcquire(&tag, ExclusiveLock, false, false);
	if (read_row(table, NULL, &old, NULL) != id)
	{
		Datum		values[NATTS_START];
		bool		nulls[NATTS_START] = {false};
		HeapTuple	tuple;

		values[ANUM_START_ID - 1] = Int64GetDatum((int64) id);
		values[ANUM_START_WRITTEN_AT - 1] = TimestampTzGetDatum(GetCurrentTimestamp());
		values[ANUM_START_TIMELINE - 1] = Int32GetDatum((int32) GetWALInsertionTimeLine());
		tuple = heap_form_tuple(RelationGetDescr(table), values, nulls);
		if (old != NULL)
			CatalogTupleUpdate(table, &old->t_self, tuple);
		else
			CatalogTupleInsert(table, tuple);

		/* so that the transaction's next batch finds it */
		CommandCounterIncrement();
	}
	table_close(table, NoLock);
}

static uint64
draw(void)
{
	uint64		id = 0;

	while (id == 0)
	{
		if (!pg_strong_random(&id, sizeof(id)))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("could not generate random values")));
	}
	return id;
}

static Relation
open_table(LOCKMODE lockmode)
{
	Relation	table = table_open(feedpub_registry_table("_server_start"), lockmode);

	feedpub_registry_check_version(table, NATTS_START);
	return table;
}

/*
 * The id in the table's row, and a copy of the row and its timeline if they
 * are given; 0 if there is none.
 */
static uint64
read_row(Relation table, Snapshot snapshot, HeapTuple *row, TimeLineID *timeline)
{
	SysScanDesc scan = systable_beginscan(table, InvalidOid, false, snapshot, 0, NULL);
	HeapTuple	tuple = systable_getnext(scan);
	uint64		id = 0;

	if (HeapTupleIsValid(tuple))
	{
		bool		isnull;

		id = (uint64) DatumGetInt64(heap_getattr(tuple, ANUM_START_ID,
												 RelationGetDescr(table), &isnull));
		if (row != NULL)
			*row = heap_copytuple(tuple);
		if (timeline != NULL)
			*timeline = DatumGetInt32(heap_getattr(tuple, ANUM_START_TIMELINE,
												   RelationGetDescr(table), &isnull));
	}
	systable_endscan(scan);
	return id;
}
