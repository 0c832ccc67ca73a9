/*-------------------------------------------------------------------------
 *
 * history.c
 *	  Which server, and which life of a feed, its rows and batches are of.
 *
 * A feed whose rows were stamped elsewhere is refused, since this server's xids
 * say nothing of theirs.  feed_begin_history() gives it another life
 * (begin_history.c).
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
 * Refuse a feed whose rows come from another history: they would stay hidden
 * until this server's xids have caught up with them.
 *
 * It is enough to look once: such rows come with a restore, which makes the
 * table, or with rows loaded while the guard was dropped; both invalidate the
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
	 * worker cannot take another, and its cache ends with the query.
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
