/*-------------------------------------------------------------------------
 *
 * truncate.c
 *	  Where TRUNCATE is noted: the trigger of table feeds and of their
 *	  partitions.
 *
 * Its position is larger than those of all rows that the TRUNCATE removes: the
 * statement locks all its tables before it calls any trigger, so the writers of
 * these rows have ended, or are this transaction.  What the statement's AFTER
 * triggers and later transactions write gets larger positions.  (What its
 * BEFORE triggers write into the feed is removed with the rest.)
 *
 * RESTART IDENTITY sets the sequence back between the statement's BEFORE and
 * AFTER triggers; position.c goes on beyond the tombstone's position.
 *
 * Nothing is kept of a table for the next TRUNCATE, unlike for the other
 * triggers (stamp.c).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_class.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "write/write.h"

PG_FUNCTION_INFO_V1(feedpub_note_truncate);

/* What a TRUNCATE that is running has noted of a relation. */
typedef struct Note
{
	dlist_node	node;
	MemoryContext statement;
	Oid			relid;
	int64		number;
	MemoryContextCallback callback;
} Note;

/* A partition whose rows get tombstones. */
typedef struct Leaving
{
	Oid			feed;
	Relation	rel;
	int			nkeys;
	AttrNumber	attnos[INDEX_MAX_KEYS];
	FeedpubTombstones *tombstones;
} Leaving;

static dlist_head notes = DLIST_STATIC_INIT(notes);

static void forget(void *arg);
static void leave_tombstones(Oid feed, Oid seqid, FeedpubKey *key, Relation rel);
static void leave_tombstone(TupleTableSlot *slot, void *arg);

/*
 * feedpub._note_truncate() returns trigger
 *
 * BEFORE TRUNCATE, FOR EACH STATEMENT, on a feed: leaves the tombstone of a
 * TRUNCATE.
 *
 * The same on a partition: leaves a tombstone for each row, unless the whole
 * feed is being truncated, which the trigger on the partitioned table has
 * noted.  (The server calls that one first if the statement names the table,
 * tablecmds.c: ExecuteTruncateGuts.  If the statement names partitions before
 * it, their deletes are published as well.)  A table that was a partition
 * keeps the trigger, which does nothing there.
 */
Datum
feedpub_note_truncate(PG_FUNCTION_ARGS)
{
	TriggerData *trigdata = feedpub_stamp_trigger(fcinfo, TRIGGER_EVENT_BEFORE, 0, FEEDPUB_BY_TRUNCATE,
												  "_note_truncate", "trigger before TRUNCATE");
	Relation	rel = trigdata->tg_relation;
	Oid			feed = feedpub_partition_feed(RelationGetRelid(rel));
	Oid			seqid = feedpub_relation_sequence(feed);
	FullTransactionId xid;
	FeedpubKey	key;
	bool		deletes;

	if (!feedpub_registry_stored_key(feed, &key, &deletes) || !deletes)
		PG_RETURN_POINTER(NULL);
	xid = GetTopFullTransactionId();
	if (!OidIsValid(seqid))
		feedpub_lost_note(feed);	/* there is no position */
	else if (feed == RelationGetRelid(rel))
	{
		(void) feedpub_truncate_note(feed, true);
		feedpub_tombstone_write(feed, xid, feedpub_position_take(feed, seqid, 1), (Datum) 0);
		feedpub_wake_note(feed);
	}
	else if (rel->rd_rel->relkind != RELKIND_PARTITIONED_TABLE &&
			 feedpub_truncate_note(feed, false) == NULL)
		leave_tombstones(feed, seqid, &key, rel);
	PG_RETURN_POINTER(NULL);
}

/*
 * The number that the TRUNCATE which calls this trigger has for a relation, 0
 * until it is set.  Returns NULL if it has noted none, and enter is not set.
 *
 * Neither its transaction, nor its command, nor its subtransaction tells one
 * TRUNCATE from the next: triggers run commands between ours, and one calls
 * another TRUNCATE.  But the server makes an executor's state for each TRUNCATE,
 * and calls all of its triggers in that state's context for a row.  So a note is
 * in the memory of that state, and goes with it, also if the statement fails.
 * While it is there, no other statement can have that memory.  The caller is in
 * the context in which the server has called it.
 */
int64 *
feedpub_truncate_note(Oid relid, bool enter)
{
	MemoryContext statement = MemoryContextGetParent(CurrentMemoryContext);
	dlist_iter	iter;
	Note	   *note;

	dlist_foreach(iter, &notes)
	{
		note = dlist_container(Note, node, iter.cur);
		if (note->statement == statement && note->relid == relid)
			return &note->number;
	}
	if (!enter)
		return NULL;
	note = MemoryContextAllocZero(statement, sizeof(Note));
	note->statement = statement;
	note->relid = relid;
	note->callback.func = forget;
	note->callback.arg = note;
	dlist_push_head(&notes, &note->node);
	MemoryContextRegisterResetCallback(statement, &note->callback);
	return &note->number;
}

static void
forget(void *arg)
{
	dlist_delete(&((Note *) arg)->node);
}

/*
 * Call leave() for each row of a partition that is about to be truncated, in a
 * context for the row.  Rows that are deleted already have been told of.
 */
void
feedpub_truncate_each(Relation rel, void (*leave)(TupleTableSlot *slot, void *arg), void *arg)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	TableScanDesc scan = feedpub_table_beginscan(rel, snapshot, 0, NULL);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "feedpub truncate",
												  ALLOCSET_DEFAULT_SIZES);

	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		MemoryContext oldcontext = MemoryContextSwitchTo(context);

		CHECK_FOR_INTERRUPTS();
		leave(slot, arg);
		MemoryContextSwitchTo(oldcontext);
		MemoryContextReset(context);
	}
	MemoryContextDelete(context);
	ExecDropSingleTupleTableSlot(slot);
	table_endscan(scan);
	UnregisterSnapshot(snapshot);
}

/*
 * Leave a tombstone for each row, since the other partitions keep their rows.
 * Nothing else runs meanwhile, so settings are set once.
 */
static void
leave_tombstones(Oid feed, Oid seqid, FeedpubKey *key, Relation rel)
{
	FullTransactionId xid = GetTopFullTransactionId();
	Leaving		leaving = {.feed = feed, .rel = rel};
	int			pinned;

	feedpub_key_of_partition(feed, RelationGetRelid(rel), key);
	leaving.nkeys = feedpub_key_attnos(rel, key, leaving.attnos);
	leaving.tombstones = feedpub_tombstone_begin(feed, seqid, xid);
	pinned = feedpub_key_pin(RelationGetDescr(rel), leaving.nkeys, leaving.attnos);
	feedpub_truncate_each(rel, leave_tombstone, &leaving);
	feedpub_key_unpin(pinned);
	feedpub_tombstone_end(leaving.tombstones);
	feedpub_wake_note(feed);
}

static void
leave_tombstone(TupleTableSlot *slot, void *arg)
{
	Leaving    *leaving = arg;
	bool		has_key = leaving->nkeys > 0;

	for (int i = 0; i < leaving->nkeys; i++)
		has_key = has_key && !slot_attisnull(slot, leaving->attnos[i]);
	if (has_key)
		feedpub_tombstone_add(leaving->tombstones, feedpub_key_pinned_texts(RelationGetDescr(leaving->rel), leaving->nkeys, leaving->attnos, slot));
	else
		feedpub_lost_note(leaving->feed);
}
