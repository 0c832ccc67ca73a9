/*-------------------------------------------------------------------------
 *
 * notify.c
 *	  Announcing a batch by NOTIFY.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/async.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"

#include "publish/publish.h"

/*
 * Announce the newest batch: by a NOTIFY on the channel that the feed's owner
 * set, with the cursor of the batch as payload, and by one on our own channel
 * if feed_listen() asked for it.  Does nothing if there is neither any more.
 *
 * This has a transaction of its own, after the batch's.  So a full queue does
 * not stop publishing, and the cluster-wide lock that a NOTIFY takes at commit
 * is held while nothing else is done.
 */
void
feedpub_publish_notify(Oid relid)
{
	char	   *channel = feedpub_registry_channel(relid);
	bool		is_listened = feedpub_shmem_is_listened(relid);
	FeedpubBatch last;
	FeedpubCursor cursor;
	Snapshot	snapshot;

	if (channel == NULL && !is_listened)
		return;
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	feedpub_batch_last(relid, PG_INT64_MAX, snapshot, &last);
	feedpub_cursor_at_end(relid, &last, snapshot, &cursor);
	if (last.sync_id > 0 && channel != NULL)
		Async_Notify(channel, text_to_cstring(feedpub_cursor_text(&cursor)));
	if (last.sync_id > 0 && is_listened)
		Async_Notify(FEEDPUB_CHANNEL, psprintf("%u", relid));
	UnregisterSnapshot(snapshot);
}
