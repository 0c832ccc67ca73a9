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
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "fmgr.h"
#include "storage/lmgr.h"
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
	Snapshot	snapshot;
	bool		found;

	if (feed->is_partitioned ? feedpub_partition_history_checked(partitions) : feed->history_checked)
		return;

	/*
	 * The transaction's snapshot may be too old to see them.  A parallel
	 * worker cannot take another one, and its cache ends with the query.
	 */
	snapshot = RegisterSnapshot(IsInParallelMode() ?
									GetActiveSnapshot() :
									GetLatestSnapshot());
	found = feedpub_horizon_has_foreign(partitions, snapshot, &stamp);
	UnregisterSnapshot(snapshot);
	if (found)
		ereport(ERROR,
				(errcode(ERRCODE_FEED_FOREIGN_HISTORY),
				 errmsg("feed \"%s\" holds rows from another history",
						RelationGetRelationName(partitions->table)),
				 errdetail("A row is stamped with transaction id %llu, which this server has not assigned yet.",
						   (unsigned long long) U64FromFullTransactionId(stamp)),
				 errhint("Its owner can give them stamps of this server: SELECT feed_begin_history(...).")));
	if (IsInParallelMode())
		return;
	if (feed->is_partitioned)
		feedpub_partition_note_history(partitions);
	else
		feedpub_registry_note_history(feed->relid);
}
