/*-------------------------------------------------------------------------
 *
 * shmem_mark.c
 *	  Which feeds have news: marks that writers leave and the worker takes.
 *
 * A mark is set after a commit is visible, and taken away before the look
 * that it asks for: so a commit whose mark is taken away is seen by that
 * look, and one that is not seen by it leaves another mark.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/spin.h"

#include "server/shmem.h"

/*
 * Mark feeds that have news, and wake the worker.  For transaction callbacks:
 * raises no error.  all stands for more feeds than are listed.
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
	/* a mark that was there has its wake-up under way */
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
 * Put feeds on watch that a prepared transaction has written to: its COMMIT
 * PREPARED runs no callback of ours.  What does not fit is on watch as
 * InvalidOid, all feeds.
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
		/* one entry for all of them, in the place of the last if need be */
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
 * Read the marks, for the worker.  They stay until the feed is looked at, so
 * that commits find them there meanwhile and do not wake the worker again;
 * the one for all feeds is taken.
 */
int
feedpub_shmem_read_marks(Oid *dirty, bool *all)
{
	int			ndirty = 0;

	*all = true;
	if (feedpub_database == NULL)
		return 0;
	SpinLockAcquire(&feedpub_database->mutex);
	*all = feedpub_database->all_dirty;
	ndirty = feedpub_database->ndirty;
	memcpy(dirty, feedpub_database->dirty, ndirty * sizeof(Oid));
	feedpub_database->all_dirty = false;
	SpinLockRelease(&feedpub_database->mutex);
	return ndirty;
}

/*
 * Take a feed's mark away.  To be called before it is looked at: a commit that
 * the look does not see leaves another.
 */
void
feedpub_shmem_take_mark(Oid feed)
{
	if (feedpub_database == NULL)
		return;
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
 * FEEDPUB_MAX_PREPARED.
 */
int
feedpub_shmem_take_watch(FeedpubPrepared *prepared)
{
	int			nprepared = 0;

	if (feedpub_database == NULL)
		return 0;
	SpinLockAcquire(&feedpub_database->mutex);
	nprepared = feedpub_database->nprepared;
	memcpy(prepared, feedpub_database->prepared, nprepared * sizeof(FeedpubPrepared));
	feedpub_database->nprepared = 0;
	SpinLockRelease(&feedpub_database->mutex);
	return nprepared;
}

/*
 * Ask the worker to look at a feed, and to answer when it has, whatever it has
 * found.  Returns the place of the answer and its number; -1 if all places are
 * taken, or there is no shared memory.
 */
int
feedpub_shmem_ask(Oid feed, uint64 *number)
{
	FeedpubDatabase *entry = feedpub_shmem_database();
	Latch	   *latch;
	int			place = -1;

	if (entry == NULL)
		return -1;
	SpinLockAcquire(&entry->mutex);
	for (int i = 0; i < FEEDPUB_MAX_ASKED; i++)
	{
		AskedLook  *look = &entry->asked[i];

		if (look->feed == feed || (place < 0 && look->asked == look->answered))
			place = i;
		if (look->feed == feed)
			break;
	}
	if (place >= 0)
	{
		entry->asked[place].feed = feed;
		*number = ++entry->asked[place].asked;
	}
	latch = entry->worker_latch;
	SpinLockRelease(&entry->mutex);
	if (latch != NULL)
		SetLatch(latch);
	return place;
}

/*
 * Has the worker answered?
 */
bool
feedpub_shmem_is_answered(int place, uint64 number)
{
	bool		answered;

	SpinLockAcquire(&feedpub_database->mutex);
	answered = feedpub_database->asked[place].answered >= number;
	SpinLockRelease(&feedpub_database->mutex);
	return answered;
}

/*
 * The feeds at which the worker is asked to look; feeds has room for
 * FEEDPUB_MAX_ASKED.
 */
int
feedpub_shmem_read_asked(Oid *feeds)
{
	int			n = 0;

	if (feedpub_database == NULL)
		return 0;
	SpinLockAcquire(&feedpub_database->mutex);
	for (int i = 0; i < FEEDPUB_MAX_ASKED; i++)
	{
		if (feedpub_database->asked[i].asked > feedpub_database->asked[i].answered)
			feeds[n++] = feedpub_database->asked[i].feed;
	}
	SpinLockRelease(&feedpub_database->mutex);
	return n;
}

/*
 * What has been asked of a feed so far, by place: to be read before the look,
 * and answered after it.  numbers has room for FEEDPUB_MAX_ASKED.
 */
void
feedpub_shmem_take_asked(Oid feed, uint64 *numbers)
{
	MemSet(numbers, 0, FEEDPUB_MAX_ASKED * sizeof(uint64));
	if (feedpub_database == NULL)
		return;
	SpinLockAcquire(&feedpub_database->mutex);
	for (int i = 0; i < FEEDPUB_MAX_ASKED; i++)
	{
		if (feedpub_database->asked[i].feed == feed)
			numbers[i] = feedpub_database->asked[i].asked;
	}
	SpinLockRelease(&feedpub_database->mutex);
}

/*
 * Answer it.  Returns whether somebody waits for that.  A place that was not
 * answered has not become another feed's since.
 */
bool
feedpub_shmem_answer(const uint64 *numbers)
{
	bool		any = false;

	if (feedpub_database == NULL)
		return false;
	SpinLockAcquire(&feedpub_database->mutex);
	for (int i = 0; i < FEEDPUB_MAX_ASKED; i++)
	{
		AskedLook  *look = &feedpub_database->asked[i];

		if (look->answered < numbers[i])
		{
			look->answered = numbers[i];
			any = true;
		}
	}
	SpinLockRelease(&feedpub_database->mutex);
	return any;
}
