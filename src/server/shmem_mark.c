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

#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/spin.h"

#include "server/shmem.h"

/*
 * Mark feeds that have news, and wake the worker.  Transaction callbacks call
 * this, so it raises no error.  If all is set, more feeds have news than are
 * listed.
 */
void
feedpub_shmem_mark(const Oid *feeds, int nfeeds, bool all)
{
	Latch	   *latch = NULL;
	bool		fresh = false;
	bool		unserved;

	if (feedpub_database == NULL)
		return;
	SpinLockAcquire(&feedpub_database->mutex);
	unserved = feedpub_database->worker_pid == 0 && !feedpub_database->wanted;
	if (unserved)
		feedpub_database->wanted = true;
	for (int i = 0; i < nfeeds && !feedpub_database->all_dirty; i++)
	{
		int			j = 0;

		while (j < feedpub_database->ndirty && feedpub_database->dirty[j] != feeds[i])
			j++;
		if (j < feedpub_database->ndirty)
			continue;
		fresh = true;
		if (feedpub_database->ndirty < FEEDPUB_MAX_DIRTY)
			feedpub_database->dirty[feedpub_database->ndirty++] = feeds[i];
		else
			all = true;
	}
	if (all && !feedpub_database->all_dirty)
		fresh = feedpub_database->all_dirty = true;
	/* if the mark was there, the worker has been woken for it */
	if (fresh)
		latch = feedpub_database->worker_latch;
	SpinLockRelease(&feedpub_database->mutex);

	/* the first feed here: the launcher, if there is one, starts a worker */
	if (unserved)
	{
		SpinLockAcquire(&feedpub_shared->mutex);
		latch = feedpub_shared->launcher_latch;
		SpinLockRelease(&feedpub_shared->mutex);
	}
	if (latch != NULL)
		SetLatch(latch);
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
	SpinLockAcquire(&feedpub_database->mutex);
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
	latch = feedpub_database->worker_latch;
	SpinLockRelease(&feedpub_database->mutex);
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
	SpinLockAcquire(&feedpub_database->mutex);
	*all = feedpub_database->all_dirty;
	ndirty = feedpub_database->ndirty;
	memcpy(dirty, feedpub_database->dirty, ndirty * sizeof(Oid));
	feedpub_database->all_dirty = false;
	SpinLockRelease(&feedpub_database->mutex);
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
	SpinLockAcquire(&feedpub_database->mutex);
	for (int i = 0; i < feedpub_database->ndirty; i++)
	{
		if (feedpub_database->dirty[i] == feed)
		{
			feedpub_database->dirty[i] = feedpub_database->dirty[--feedpub_database->ndirty];
			break;
		}
	}
	SpinLockRelease(&feedpub_database->mutex);
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
	SpinLockAcquire(&feedpub_database->mutex);
	nprepared = feedpub_database->nprepared;
	memcpy(prepared, feedpub_database->prepared, nprepared * sizeof(FeedpubPrepared));
	feedpub_database->nprepared = 0;
	SpinLockRelease(&feedpub_database->mutex);
	return nprepared;
}
