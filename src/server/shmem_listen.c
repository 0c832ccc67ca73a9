/*-------------------------------------------------------------------------
 *
 * shmem_listen.c
 *	  Feeds whose batches are announced on the extension's own channel.
 *
 * feed_listen() enters a feed here, for an hour; a publisher that has
 * committed a batch looks here, and sends a NOTIFY if the feed is entered.
 *
 * Why no batch is missed: the caller of feed_listen() looks for batches after
 * the call.  If its look does not see a batch, the batch was committed after
 * the feed was entered, and the publisher looks here after its commit.
 *
 * If more feeds are entered than there is room for, all feeds of the database
 * are announced for an hour.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "server/shmem.h"

/*
 * Announce the batches of a feed until a time.  Returns false if there is no
 * shared memory for this database.
 */
bool
feedpub_shmem_listen(Oid feed, TimestampTz until)
{
	FeedpubDatabase *entry = feedpub_shmem_database();
	TimestampTz now = GetCurrentTimestamp();
	int			slot = -1;

	if (entry == NULL)
		return false;
	feedpub_shmem_lock(LW_EXCLUSIVE);
	for (int i = 0; i < FEEDPUB_MAX_LISTENED; i++)
	{
		const ListenedFeed *listened = &entry->listened[i];

		if (listened->feed == feed || (slot < 0 && listened->until < now))
			slot = i;
		if (listened->feed == feed)
			break;
	}
	if (slot >= 0)
	{
		entry->listened[slot].feed = feed;
		entry->listened[slot].until = until;
	}
	else
		entry->all_listened_until = until;
	feedpub_shmem_unlock();
	return true;
}

/*
 * Are the batches of a feed announced?
 */
bool
feedpub_shmem_is_listened(Oid feed)
{
	FeedpubDatabase *entry = feedpub_database;
	TimestampTz now = GetCurrentTimestamp();
	bool		found;

	if (entry == NULL)
		return false;
	feedpub_shmem_lock(LW_SHARED);
	found = entry->all_listened_until >= now;
	for (int i = 0; i < FEEDPUB_MAX_LISTENED && !found; i++)
		found = entry->listened[i].feed == feed &&
			entry->listened[i].until >= now;
	feedpub_shmem_unlock();
	return found;
}
