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

#include "server/shmem.h"

static bool is_marked(Oid feed);

/*
 * Mark feeds that have news, and wake the worker.  Transaction callbacks call
 * this, so it raises no error.  If all is set, more feeds have news than are
 * listed.  If prepared is set, they will have: the transaction that has written
 * to them is prepared, and its COMMIT PREPARED runs no callback of ours.
 *
 * Under load most marks are there already, and the worker has been woken for
 * them, so this is asked first, with a lock that writers can share.
 */
void
feedpub_shmem_mark(const Oid *feeds, int nfeeds, bool all, bool prepared)
{
	FeedpubDatabase *entry = feedpub_database;
	Latch	   *latch;
	bool		marked;

	if (entry == NULL)
		return;
	feedpub_shmem_lock(LW_SHARED);
	marked = (entry->worker.pid != 0 || entry->worker.wanted) &&
		(entry->all_dirty || !all) && (entry->prepared || !prepared);
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
	entry->prepared = entry->prepared || prepared;

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
 * Read the marks, for the worker.  A feed's mark stays until the feed is
 * looked at, so that a commit meanwhile finds it there and does not wake the
 * worker again.  The mark for all feeds is taken, and that of prepared
 * transactions.
 */
int
feedpub_shmem_read_marks(Oid *dirty, bool *all, bool *prepared)
{
	int			ndirty = 0;

	Assert(feedpub_database != NULL);
	feedpub_shmem_lock(LW_EXCLUSIVE);
	*all = feedpub_database->all_dirty;
	*prepared = feedpub_database->prepared;
	ndirty = feedpub_database->ndirty;
	memcpy(dirty, feedpub_database->dirty, ndirty * sizeof(Oid));
	feedpub_database->all_dirty = feedpub_database->prepared = false;
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
