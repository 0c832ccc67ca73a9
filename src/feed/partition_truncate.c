/*-------------------------------------------------------------------------
 *
 * partition_truncate.c
 *	  The trigger of a partition that tells of its TRUNCATE.
 *
 * A TRUNCATE of one partition leaves a tombstone for each row, from a trigger
 * of the statement on the partition (write/truncate.c).  The server clones the
 * triggers of rows to a new partition, but not this one.  So a partition that
 * comes later lacks it at first.
 *
 * The publisher admits such a partition at once: its rows must not wait for a
 * lock that others may hold for any time.  Until it has the trigger, the list
 * keeps the number of its file.  TRUNCATE gives a table another file.  The
 * publisher locks each partition before it looks, to its end.  So it sees each
 * TRUNCATE that has ended, and none runs while it admits: a partition whose
 * file is another one may have lost rows without a trace, and the feed's
 * readers are refused until another history begins (lost.c).  (VACUUM FULL and
 * their kin change the file as well, and then nothing was lost.)  Before a
 * partition is admitted no reader gets a row of it, so a TRUNCATE removes
 * nothing that a consumer has.
 *
 * The trigger is made in a short transaction of its own, right after the
 * publisher's.  CREATE TRIGGER needs a lock that excludes writers.  It is
 * taken only if it is free, else it is asked for again later: nothing waits
 * for it, so no writer waits after us.  It is held for some tenths of a
 * millisecond, since the commit waits for no disk.  If a crash takes the
 * trigger back, it takes back that the list says so.
 *
 * No TRUNCATE escapes between file and trigger.  The lock excludes it.  If it
 * came before, the file is another one, and the list keeps the old number for
 * the publisher, which looks next.  If it comes after, the trigger is there.
 * The caller holds the publishing lock, so no publisher writes the list.
 *
 * This runs as the partition's owner, who may create a trigger on it.  It runs
 * no code of the owner's: the trigger has no condition, and no event trigger
 * is called, since no statement is run.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_trigger.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "storage/lmgr.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "feed/partition.h"

/* how many partitions are locked in one transaction */
#define GUARDS_A_STEP	10

/*
 * Make the trigger in partitions that are listed without it, if their locks
 * are free.  Returns whether none is left.
 */
bool
feedpub_partition_guard(Oid feed)
{
	List	   *rows = feedpub_partition_read_rows(feed, NULL);
	Relation	table = table_open(feedpub_registry_table("_partition"), RowExclusiveLock);
	bool		done = true;
	int			nlocked = 0;
	ListCell   *lc;

	foreach(lc, rows)
	{
		FeedpubPartitionRow *row = lfirst(lc);
		Relation	rel;
		bool		is_gone;

		CHECK_FOR_INTERRUPTS();
		if (!OidIsValid(row->file))
			continue;
		if (nlocked == GUARDS_A_STEP ||
			!ConditionalLockRelationOid(row->partition, ShareRowExclusiveLock))
		{
			done = false;
			continue;
		}
		nlocked++;
		rel = try_relation_open(row->partition, NoLock);
		if (rel == NULL)
			continue;			/* the publisher removes it from the list */
		is_gone = feedpub_partition_feed(row->partition) != feed;
		if (feedpub_partition_has_other_file(row, rel))
			feedpub_shmem_mark(&feed, 1, false, false); /* for the publisher */
		else
		{
			row->file = InvalidOid;
			feedpub_partition_write_row(table, row);
		}
		relation_close(rel, NoLock);
		if (!is_gone)
			feedpub_partition_create_trigger(row->partition, FEEDPUB_TRUNCATE_TRIGGER, "_note_truncate");
	}
	table_close(table, NoLock);
	list_free_deep(rows);
	return done;
}

/*
 * The same for partitions of captured tables, as far as their locks are free.
 * Nothing tells whether such a partition was truncated by itself before.
 */
void
feedpub_partition_guard_captured(void)
{
	static FeedpubStatement find = {
		.sql = "SELECT DISTINCT part FROM feedpub._capture_fault WHERE kind = 'truncate' AND name IS NULL AND part <> relation",
	};
	int			nlocked = 0;
	ListCell   *lc;

	foreach(lc, feedpub_store_list(&find, NULL))
	{
		if (nlocked < GUARDS_A_STEP &&
			ConditionalLockRelationOid(lfirst_oid(lc), ShareRowExclusiveLock))
		{
			nlocked++;
			if (get_rel_name(lfirst_oid(lc)) != NULL)
				feedpub_partition_create_trigger(lfirst_oid(lc), FEEDPUB_CAPTURE_TRUNCATE, "_capture_truncate");
		}
	}
}

/*
 * Create a trigger for TRUNCATE, unless the table has one that calls the
 * function.  The caller has it locked.
 */
void
feedpub_partition_create_trigger(Oid relid, const char *name, const char *function)
{
	Relation	rel = relation_open(relid, NoLock);
	Oid			owner = rel->rd_rel->relowner;
	bool		is_there = OidIsValid(feedpub_relation_trigger(rel, function));
	CreateTrigStmt *stmt = makeNode(CreateTrigStmt);
	FeedpubRole caller;

	relation_close(rel, NoLock);
	if (is_there)
		return;
	stmt->replace = true;
	stmt->trigname = pstrdup(name);
	stmt->timing = TRIGGER_TYPE_BEFORE;
	stmt->events = TRIGGER_TYPE_TRUNCATE;
	feedpub_role_begin_owner(owner, &caller);
	(void) CreateTriggerFiringOn(stmt, NULL, relid, InvalidOid, InvalidOid, InvalidOid,
								 feedpub_relation_function(function, 0, NULL), InvalidOid,
								 NULL, false, false, TRIGGER_FIRES_ALWAYS);
	feedpub_role_end(&caller);
	CommandCounterIncrement();
}
