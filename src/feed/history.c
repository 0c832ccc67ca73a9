/*-------------------------------------------------------------------------
 *
 * history.c
 *	  Of which server, and of which history of a feed, its rows and batches
 *	  are.
 *
 * If rows of a feed were stamped by another server, the feed is refused, since
 * this server's xids say nothing about theirs.  feed_begin_history() begins
 * another history.
 *
 * A history also ends when ALTER TABLE gives a column of the key another type
 * or other values, and when a change could not be recorded.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "feed/feed.h"

/*
 * Raise PF001 if a feed has rows from another history: they would stay hidden
 * until this server's xids have reached theirs.
 *
 * One look is enough.  Such rows come with a restore, which creates the table,
 * or are loaded while the trigger that stamps is dropped.  Both invalidate the
 * relcache entry, and with it history_checked.
 */
void
feedpub_history_check(const FeedpubFeed *feed,
					  const FeedpubPartitions *partitions)
{
	FullTransactionId stamp;
	bool		checked = true;

	for (int i = 0; i < partitions->n; i++)
		checked = checked && *partitions->partitions[i].history_checked;
	if (checked)
		return;

	if (feedpub_foreign_exists(partitions, &stamp))
		ereport(ERROR,
				(errcode(ERRCODE_FEED_FOREIGN_HISTORY),
				 errmsg("feed \"%s\" holds rows from another history",
						RelationGetRelationName(partitions->table)),
				 errdetail("A row is stamped with transaction id %llu, which this server has not assigned yet.",
						   (unsigned long long) U64FromFullTransactionId(stamp)),
				 errhint("Its owner can give them stamps of this server: SELECT feed_begin_history(...).")));
	for (int i = 0; i < partitions->n; i++)
		*partitions->partitions[i].history_checked = true;
}

/*
 * Does a feed that has its indexes have a row from another history?
 */
bool
feedpub_history_has_foreign(Relation rel, FullTransactionId *stamp)
{
	FeedpubFeed feed = {
		.relid = RelationGetRelid(rel),
		.is_partitioned = rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE,
	};
	FeedpubPartitions *partitions;
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	bool		found;

	partitions = feedpub_partition_open(&feed, rel, snapshot, false);
	found = feedpub_foreign_exists(partitions, stamp);
	feedpub_partition_close(partitions);
	UnregisterSnapshot(snapshot);
	return found;
}

/*
 * Raise PF001 if the snapshot sees changes of a table feed that could not be
 * recorded (lost.c), or if a column of the key has another type than when the
 * history began, or other values (key_mark.c): the keys of deleted rows are
 * texts of before, and consumers know the rows by the values of before.
 *
 * Neither writers nor the publisher look, so they go on.  What they write and
 * publish is forgotten when another history begins.
 *
 * ALTER TABLE takes ACCESS EXCLUSIVE, so a page, which holds ACCESS SHARE from
 * before its feed is looked up, is read wholly before it or after it.  After
 * it, the invalidation has come with the lock, and the page is refused until
 * feed_begin_history() has committed.  That holds ACCESS SHARE to its end, so
 * the types and the mark that it stores are those of the columns as they are
 * then.  From then on the old cursors are refused because they have the old
 * history.
 *
 * The publisher also stores the mark, but only if it has found the key the same
 * under the ACCESS SHARE that it still holds, so it stores none from after an
 * ALTER TABLE that has changed the key.
 *
 * Only a snapshot from between the two still sees the old history, with new
 * types.  Its page has keys that are values of these, or an error, and its
 * cursors are refused by the next snapshot.
 *
 * If it is the reader's own transaction that has altered the table, the reader
 * is told that instead, for the old type may come back with a rollback.
 */
void
feedpub_history_check_changes(const FeedpubFeed *feed, Relation table,
							  Snapshot snapshot)
{
	bool		is_unlogged = feed->is_changes && table->rd_rel->relpersistence == RELPERSISTENCE_UNLOGGED;
	bool		is_lost = is_unlogged ||
		((!feed->is_outbox || feed->is_changes) && feedpub_lost_exists(feed->relid, snapshot));

	if (!is_lost && feed->key_state != FEEDPUB_KEY_CHANGED)
		return;
	feedpub_own_changes_refuse(table);
	ereport(ERROR,
			(errcode(ERRCODE_FEED_FOREIGN_HISTORY),
			 is_lost ?
				 errmsg("changes of feed \"%s\" could not be recorded",
						RelationGetRelationName(table)) :
				 errmsg("the key of feed \"%s\" has changed",
						RelationGetRelationName(table)),
			 is_unlogged ? errdetail("The table is unlogged, so a crash removes its rows.") :
				 is_lost ?
						   errdetail("Rows may have been changed while the feed lacked its key, its sequence, a column of the stamp or a trigger, or a partition was rewritten before it had its trigger for TRUNCATE.") :
						   errdetail("ALTER TABLE has given a key column another type or other values. Consumers know the rows by those of before."),
			 errhint("Its owner can begin another history: SELECT feed_begin_history(...).")));
}
