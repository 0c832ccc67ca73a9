/*-------------------------------------------------------------------------
 *
 * partition_join.c
 *	  How a partition joins a feed.
 *
 * A partition may come with rows that have no stamp, or a stamp of another
 * feed, or one from an earlier time in this feed, after which they may have
 * changed without a trace.  None of them may be lost.  So each partition must
 * be admitted: feedpub._partition lists those that are, each with an xid,
 * since.  A row is in the feed if its stamp is not below since.  All others
 * are stamped anew, by ordinary UPDATEs, in the background (job/stamp.c).
 *
 * The partitions that are there when a table is attached are listed with a
 * since of 0.  Their rows without a stamp are the initial snapshot, which is
 * read in place (initial.c).
 *
 * The publisher admits a later partition before it publishes.  It locks the
 * partition, so that its ATTACH has committed and is visible, gets its own
 * xid, and takes the next xid of the server as since.  Then:
 *
 * 1. If the stamp of a row is not below since, its transaction got its xid
 *	  after since was taken, so after the ATTACH had committed, hence through
 *	  this feed's trigger.  Its position is of this feed, and larger than those
 *	  of all that happened before the ATTACH, a TRUNCATE for example.
 * 2. No batch so far sees such a transaction: their snapshots are older.  So
 *	  the row is in a later batch, and no reader in published order has passed
 *	  it.  Nor has a reader in xid order whose snapshot does not see the list's
 *	  row: the publisher's xid was running then, so the reader's horizon is not
 *	  after that xid, and since is (fetch.c).
 * 3. The steps that stamp all other rows anew begin after the list's row is
 *	  visible, so their xids are not below since.  Writers with smaller xids
 *	  may still write such rows.  So the table is walked over again until a
 *	  walk that began after all those writers had ended finds none.
 * 4. Any UPDATE of a row that is not in the feed stamps it (stamp.c), so a
 *	  walk in the order of the table misses none: the new version either is in
 *	  the feed, or was written by one of those writers.  What a writer knows of
 *	  since is invalidated when the partition is attached, which locks the
 *	  writer out, and when it is admitted.  Until then the writer takes no row
 *	  to be in the feed.
 *
 * A row with a stamp from another cluster, not below this server's next xid,
 * would seem to be in the feed.  If there is one, the partition is listed with
 * the largest since, which no stamp reaches.  Those rows are stamped anew
 * first, and then the partition is admitted.
 *
 * A partition that is detached and attached again meanwhile may have changed
 * without a trace.  Its clone of the stamping trigger shows it, since the
 * server drops the clone and creates another.  Then it is admitted anew.
 *
 * After a restore each trigger is another one, and the list's rows show that
 * they were written for another table or server.  The next publisher takes the
 * list over, except for a partition that was detached and attached again
 * before that.  The xmin of the clone shows it: a restore attaches the
 * partitions first and creates the triggers later, so one command writes the
 * feed's trigger and all clones, while ATTACH writes a clone alone.  A since
 * that this server has not reached means nothing here, as no row would reach
 * it.  Such partitions are admitted anew.
 *
 * Readers read the list with the snapshot of the page.  They leave out a
 * partition that is not in it, or has another trigger than the listed one: its
 * rows come later.  A partition that has been detached or dropped is gone with
 * its rows, as it is from the table.  Nothing is published for them, since
 * their keys are not known any more.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/indexing.h"
#include "miscadmin.h"
#include "utils/inval.h"
#include "utils/rel.h"

#include "feed/partition.h"

/*
 * List a partition as the one that it is now.
 */
static void
set_identity(FeedpubPartitionRow *row, Oid feed, Relation rel)
{
	row->feed = feed;
	row->partition = row->partition_id = RelationGetRelid(rel);
	row->trigger_id = feedpub_relation_trigger(rel, "_stamp_row");
	row->system_id = (int64) GetSystemIdentifier();
}

/*
 * Are there partitions that the publisher should admit, or remove from the
 * list?
 */
bool
feedpub_partition_has_new(const FeedpubFeed *feed, Relation heap,
						  Snapshot snapshot)
{
	List	   *rows;
	int			nknown = 0;
	ListCell   *lc;
	bool		found = false;

	if (!feed->is_partitioned)
		return false;
	rows = feedpub_partition_read_rows(feed->relid, snapshot);
	foreach(lc, feedpub_partition_list(heap, false))
	{
		FeedpubPartitionRow *row = feedpub_partition_find_row(rows, lfirst_oid(lc));
		Relation	rel = try_relation_open(lfirst_oid(lc), AccessShareLock);

		if (rel == NULL)
			continue;
		nknown += row != NULL;
		found = found || feedpub_partition_is_changed(row, feedpub_relation_trigger(rel, "_stamp_row")) ||
			feedpub_partition_has_other_file(row, rel);
		relation_close(rel, AccessShareLock);
	}
	found = found || nknown < list_length(rows);
	list_free_deep(rows);
	return found;
}

/*
 * Admit new partitions, and remove those from the list that are no partitions
 * any more.  Returns the tables that were admitted before, opened and locked;
 * those of a feed that is not partitioned too.  *admitted tells whether the row
 * of any partition was written: its rows may have to be stamped anew.  *guarded
 * tells whether all have the trigger that tells of a TRUNCATE
 * (partition_truncate.c).  The caller holds the publishing lock, so no other
 * process writes the list.
 *
 * All partitions are opened, and their indexes locked, before the first one
 * gets the publisher a transaction id: with one it waits for no lock that
 * another session may hold without a limit.  The locks are kept, see 1. above.
 */
FeedpubPartitions *
feedpub_partition_admit(const FeedpubFeed *feed, Relation heap,
						bool *admitted, bool *guarded)
{
	FeedpubPartitions *partitions = feedpub_partition_open(feed, heap, NULL, true);
	int			n = partitions->n;
	List	   *rows;
	Relation	table;
	ListCell   *lc;

	*admitted = false;
	*guarded = true;
	if (!feed->is_partitioned)
		return partitions;
	rows = feedpub_partition_read_rows(feed->relid, NULL);
	table = table_open(feedpub_registry_table("_partition"), RowExclusiveLock);
	partitions->n = 0;
	for (int i = 0; i < n; i++)
	{
		FeedpubPartition partition = partitions->partitions[i];
		Relation	rel = partition.heap;
		FeedpubPartitionRow *row = feedpub_partition_find_row(rows, RelationGetRelid(rel));
		FeedpubPartitionRow new_row = {0};
		Oid			trigger_id = feedpub_relation_trigger(rel, "_stamp_row");
		bool		is_new = feedpub_partition_is_changed(row, trigger_id);

		CHECK_FOR_INTERRUPTS();
		if (row != NULL)
		{
			row->is_there = true;
			new_row = *row;
		}

		/* a trigger that its owner has disabled is there: feed_check() names it */
		new_row.file = feed->deletes && !OidIsValid(feedpub_relation_trigger(rel, "_note_truncate")) ?
			rel->rd_rel->relfilenode :
			InvalidOid;
		*guarded = *guarded && !OidIsValid(new_row.file);
		if (feedpub_partition_has_other_file(row, rel))
			feedpub_lost_note(feed->relid);

		/* without the trigger that stamps, not before it is back */
		if (OidIsValid(trigger_id) && (is_new || row->since == FEEDPUB_SINCE_NEVER))
		{
			FeedpubPartitions alone = {.n = 1, .partitions = &partition};
			FullTransactionId stamp;

			/* our own xid comes first, see 2. above */
			(void) GetTopTransactionId();
			new_row.since = feedpub_foreign_exists(&alone, &stamp) ?
				FEEDPUB_SINCE_NEVER :
				U64FromFullTransactionId(ReadNextFullTransactionId());
		}
		if (OidIsValid(trigger_id) &&
			(is_new || new_row.since != row->since || new_row.file != row->file || !feedpub_partition_is_of_here(row)))
		{
			set_identity(&new_row, feed->relid, rel);
			feedpub_partition_write_row(table, &new_row);
			CacheInvalidateRelcache(rel);	/* see 4. above */
			*admitted = true;
		}
		if (row != NULL && !is_new && row->since != FEEDPUB_SINCE_NEVER)
		{
			partition.since = row->since;
			partitions->partitions[partitions->n++] = partition;
			continue;
		}
		index_close(partition.index, NoLock);
		relation_close(rel, NoLock);
	}
	foreach(lc, rows)
	{
		FeedpubPartitionRow *row = lfirst(lc);

		if (!row->is_there)
			CatalogTupleDelete(table, &row->tid);
	}
	table_close(table, NoLock);
	CommandCounterIncrement();
	list_free_deep(rows);
	return partitions;
}

/*
 * List the partitions that are there.  The caller has just created the feed,
 * and its lock still keeps all others out: the initial snapshot is of these
 * partitions.
 */
void
feedpub_partition_begin(Oid feed)
{
	Relation	heap = relation_open(feed, NoLock);
	Relation	table = table_open(feedpub_registry_table("_partition"), RowExclusiveLock);
	ListCell   *lc;

	foreach(lc, feedpub_partition_list(heap, true))
	{
		Relation	rel = relation_open(lfirst_oid(lc), AccessShareLock);
		FeedpubPartitionRow row = {0};

		set_identity(&row, feed, rel);
		feedpub_partition_write_row(table, &row);
		relation_close(rel, NoLock);
	}
	table_close(table, NoLock);
	relation_close(heap, NoLock);
	CommandCounterIncrement();
}
