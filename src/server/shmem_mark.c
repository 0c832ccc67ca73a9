/*-------------------------------------------------------------------------
 *
 * shmem_mark.c
 *	  Which feeds have news: writers set marks, and the worker takes them.
 *
 * A mark is set after its commit is visible.  The worker takes it before the
 * look at the feed.  So if a mark is taken, the look after it sees the commit;
 * if a look does not see a commit, that commit's mark is still to come.
 *
 * What only the worker calls needs no check: the worker has claimed the entry.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/latch.h"

#include "server/shmem.h"

static bool is_marked(Oid feed);

/*
 * Mark feeds that have news, and wake the worker.  Transaction callbacks call
 * this, so it raises no error.  If all is set, more feeds have news than are
 * listed.
 *
 * Under load most marks are there already, and the worker has been woken for
 * them, so this is asked first, with a lock that writers can share.
 */
void
feedpub_shmem_mark(const Oid *feeds, int nfeeds, bool all)
{
	FeedpubDatabase *entry = feedpub_database;
	Latch	   *latch;
	bool		marked;

	if (entry == NULL)
		return;
	feedpub_shmem_lock(LW_SHARED);
	marked = (entry->worker.pid != 0 || entry->worker.wanted) && (entry->all_dirty || !all);
	for (int i = 0; marked && i < nfeeds; i++)
		marked = is_marked(feeds[i]);
	feedpub_shmem_unlock();
	if (marked)
		return;

	feedpub_shmem_lock(LW_EXCLUSIVE);
	for (int i = 0; i < nfeeds; i++)
	{
		if (is_marked(feeds[i]))
			continue;
		if (entry->ndirty < FEEDPUB_MAX_DIRTY)
			entry->dirty[entry->ndirty++] = feeds[i];
		else
			all = true;
	}
	entry->all_dirty = entry->all_dirty || all;

	/* the first feed here: the launcher, if there is one, starts a worker */
	latch = entry->worker.pid != 0 || entry->worker.wanted ? entry->latch : feedpub_shared->launcher_latch;
	if (entry->worker.pid == 0)
		entry->worker.wanted = true;
	feedpub_shmem_unlock();
	if (latch != NULL)
		SetLatch(latch);
}

static bool
is_marked(Oid feed)
{
	for (int i = 0; i < feedpub_database->ndirty; i++)
	{
		if (feedpub_database->dirty[i] == feed)
			return true;
	}
	return feedpub_database->all_dirty;
}

/*
 * Put the feeds to which a prepared transaction has written on watch: its
 * COMMIT PREPARED runs no callback of ours.  If there is no room, InvalidOid
 * is on watch, which stands for all feeds.
 */
void
feedpub_shmem_watch(const Oid *feeds, int nfeeds, bool all, TransactionId xid)
{
	Latch	   *latch;

	if (feedpub_database == NULL)
		return;
	feedpub_shmem_lock(LW_EXCLUSIVE);
	if (all || feedpub_database->nprepared + nfeeds > FEEDPUB_MAX_PREPARED)
	{
		/* one entry for all feeds; it replaces the last if all are taken */
		int			i = Min(feedpub_database->nprepared, FEEDPUB_MAX_PREPARED - 1);

		feedpub_database->prepared[i].feed = InvalidOid;
		feedpub_database->prepared[i].xid = xid;
		if (i == FEEDPUB_MAX_PREPARED - 1 && feedpub_database->nprepared > i)
			feedpub_database->prepared[i].xid = InvalidTransactionId;
		feedpub_database->nprepared = i + 1;
	}
	else
	{
		for (int i = 0; i < nfeeds; i++)
		{
			feedpub_database->prepared[feedpub_database->nprepared].feed = feeds[i];
			feedpub_database->prepared[feedpub_database->nprepared++].xid = xid;
		}
	}
	latch = feedpub_database->latch;
	feedpub_shmem_unlock();
	if (latch != NULL)
		SetLatch(latch);
}

/*
 * Read the marks, for the worker.  A feed's mark stays until the feed is
 * looked at, so that a commit meanwhile finds it there and does not wake the
 * worker again.  The mark for all feeds is taken.
 */
int
feedpub_shmem_read_marks(Oid *dirty, bool *all)
{
	int			ndirty = 0;

	Assert(feedpub_database != NULL);
	feedpub_shmem_lock(LW_EXCLUSIVE);
	*all = feedpub_database->all_dirty;
	ndirty = feedpub_database->ndirty;
	memcpy(dirty, feedpub_database->dirty, ndirty * sizeof(Oid));
	feedpub_database->all_dirty = false;
	feedpub_shmem_unlock();
	return ndirty;
}

/*
 * Take a feed's mark, before the feed is looked at: a commit that the look
 * does not see sets another.
 */
void
feedpub_shmem_take_mark(Oid feed)
{
	Assert(feedpub_database != NULL);
	feedpub_shmem_lock(LW_EXCLUSIVE);
	for (int i = 0; i < feedpub_database->ndirty; i++)
	{
		if (feedpub_database->dirty[i] == feed)
		{
			feedpub_database->dirty[i] = feedpub_database->dirty[--feedpub_database->ndirty];
			break;
		}
	}
	feedpub_shmem_unlock();
}

/*
 * Take what is on watch, for the worker.  prepared has room for
 * FEEDPUB_MAX_PREPARED; returns how many there are.
 */
int
feedpub_shmem_take_watch(FeedpubPrepared *prepared)
{
	int			nprepared = 0;

	Assert(feedpub_database != NULL);
	feedpub_shmem_lock(LW_EXCLUSIVE);
	nprepared = feedpub_database->nprepared;
	memcpy(prepared, feedpub_database->prepared, nprepared * sizeof(FeedpubPrepared));
	feedpub_database->nprepared = 0;
	feedpub_shmem_unlock();
	return nprepared;
}
