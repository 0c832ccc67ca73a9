/*-------------------------------------------------------------------------
 * publish.c
 *	  The publisher's step: making batches.
 *
 * A step looks at one feed, in a transaction of its own.  If rows have become
 * visible since the last batch, it writes the next one: its number, and the
 * snapshot that says which transactions are in it and in all before it.
 *
 * The argument, in the order of events.
 *
 * 1. The transaction is READ COMMITTED, whatever the defaults of database
 *	  and role are.  It takes the feed's publishing lock first, and holds it to
 *	  its end.  So there is one publisher of a feed at a time.
 * 2. Then it takes a snapshot S.  The publisher that held the lock before has
 *	  committed, so S sees its batch.  A snapshot from before the lock might
 *	  not, and would make a second batch of that number, or one that sees less.
 * 3. The last batch's snapshot P is older than S, so S sees all that P sees.
 *	  This is checked, since after a restore it can be wrong.  The new batch
 *	  holds the transactions that S sees and P does not.  So each committed
 *	  transaction is first seen by exactly one batch, whatever others it
 *	  overlaps.  If a transaction runs while several batches are made, it is in
 *	  the first one that sees it, with all its rows: they are stamped with its
 *	  top-level xid, with savepoints or without.  A prepared transaction is
 *	  running until it is committed.
 * 4. Causality.  If B waited for A, or saw A, then A had left the set of
 *	  running transactions before B took its position.  A's positions are
 *	  smaller, for they were taken before A ended; and a snapshot that sees B
 *	  sees A.  So A is in an earlier batch, or in the same one and before B.
 * 5. The publisher's own xid, which it gets when it writes, is not in S and
 *	  may be below the xmax of the next S; it stamps no row.
 * 6. The batch becomes visible when its record is on disk: its transaction
 *	  commits synchronously.  The commits that S saw lie before it in the WAL,
 *	  so they are on disk as well.  If a reader sees the batch, it sees them, on
 *	  a standby too.  If a publisher crashes before that, it leaves nothing; if
 *	  it crashes after it, it has left a whole batch.
 *
 * A backlog is cut into several batches, and a large one is published in
 * several steps (cut.c).  Any step may be the last one for a while.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "publish/publish.h"

PG_FUNCTION_INFO_V1(feed_publish);

/* how long a lock is waited for that was free a moment ago, in ms */
#define LOCK_TIMEOUT_MS	"100"

/* the same for the publishing lock, if all feeds are published, in ms */
#define PUBLISHER_TIMEOUT_MS	5000

static void publish_all(void);
static void publish_one(void *arg);
static void follow_up(Oid relid, int npublished, const FeedpubPublished *done);
static bool lock_at_once(Relation heap);
static void begin_step(const char *commit);
static int	lock_feed(Oid relid, FeedpubPublishWait how, FeedpubFeed *feed, Relation *heap);
static int	publish_news(FeedpubFeed *feed, Relation heap, Snapshot snapshot,
						 FeedpubPublishWait how, FeedpubPublished *done);

/*
 * PROCEDURE feed_publish(feed regclass DEFAULT NULL)
 *
 * The publisher's step, by hand: publishes what has been committed to a feed,
 * or to all feeds that the caller may read.  Each feed is published in a
 * transaction of its own, and a large backlog in several, so the procedure
 * cannot run inside a transaction block (25001).  Waits for another publisher
 * of the feed, and for its locks.  If all feeds are published, those that are
 * free come first, and one that is locked or broken is reported and left out.
 * Needs SELECT on the table.
 * Errors: 42809 if it is no feed, 42501, 25006 on a standby, PF001 if the
 * feed's batches have seen transactions that the server has not ended yet.
 */
Datum
feed_publish(PG_FUNCTION_ARGS)
{
	feedpub_argument_check_call(fcinfo, "feed_publish");
	SPI_connect_ext(SPI_OPT_NONATOMIC);
	if (PG_ARGISNULL(0))
		publish_all();
	else
	{
		Oid			relid = PG_GETARG_OID(0);
		FeedpubPublished done;

		do
		{
			SPI_commit();
			feedpub_require_select(relid);
			follow_up(relid, feedpub_publish_feed(relid, FEEDPUB_WAIT_FOR_ALL, &done), &done);
		} while (done.more);
	}
	SPI_commit();
	SPI_finish();
	PG_RETURN_VOID();
}

/* One of all feeds. */
typedef struct OneOfAll
{
	Oid			relid;
	FeedpubPublishWait how;
	int			npublished;
	FeedpubPublished done;
} OneOfAll;

/*
 * Publish all feeds that the caller may read.  If one is broken, this is
 * reported, and the others are published.  One that is locked comes once more,
 * after the others, as does one whose backlog takes several steps: then another
 * publisher is waited for.
 *
 * A feed's owner that sets a channel or begins a history keeps the publishing
 * lock until the transaction ends.  The others do not wait for that: after
 * PUBLISHER_TIMEOUT_MS it is an error.
 */
static void
publish_all(void)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(PortalContext);
	List	   *feeds = feedpub_registry_list();
	int			nfeeds = list_length(feeds);
	ListCell   *lc;

	MemoryContextSwitchTo(oldcontext);
	foreach(lc, feeds)
	{
		bool		is_first = foreach_current_index(lc) < nfeeds;
		OneOfAll	one = {.relid = lfirst_oid(lc), .how = is_first ? FEEDPUB_WAIT_FOR_NOBODY : FEEDPUB_WAIT_FOR_PUBLISHER};
		bool		is_busy;
		ErrorData  *error;

		SPI_commit();
		if (get_rel_name(one.relid) == NULL || !feedpub_may_select(one.relid))
			continue;
		if (LockTimeout == 0 || LockTimeout > PUBLISHER_TIMEOUT_MS)
			(void) set_config_option("lock_timeout", CppAsString2(PUBLISHER_TIMEOUT_MS),
									 PGC_USERSET, PGC_S_SESSION, GUC_ACTION_LOCAL,
									 true, 0, false);
		error = feedpub_attempt_error(publish_one, &one, true);
		if (error != NULL && error->sqlerrcode == ERRCODE_QUERY_CANCELED)
			ReThrowError(error);
		is_busy = error == NULL && one.npublished == FEEDPUB_PUBLISH_BUSY;
		if (error != NULL || (is_busy && !is_first))
			ereport(WARNING,
					(errcode(error != NULL ? error->sqlerrcode : ERRCODE_LOCK_NOT_AVAILABLE),
					 errmsg("could not publish feed \"%s\": %s",
							get_rel_name(one.relid) ? get_rel_name(one.relid) : "?",
							error != NULL ? error->message : "it is locked, or its index is being made")));
		follow_up(one.relid, one.npublished, &one.done);
		oldcontext = MemoryContextSwitchTo(PortalContext);
		if (one.done.more || (is_busy && is_first))
			feeds = lappend_oid(feeds, one.relid);
		MemoryContextSwitchTo(oldcontext);
	}
}

static void
publish_one(void *arg)
{
	OneOfAll   *one = arg;

	one->npublished = feedpub_publish_feed(one->relid, one->how, &one->done);
}

/*
 * Commit what has been published, and tell those that wait for it.
 */
static void
follow_up(Oid relid, int npublished, const FeedpubPublished *done)
{
	if (npublished > 0)
	{
		SPI_commit();
		feedpub_shmem_wake_waiters(relid);
		if (done->announce || feedpub_shmem_is_listened(relid))
			feedpub_publish_notify(relid);
	}
	if (done->unguarded)
	{
		SPI_commit();
		(void) feedpub_publish_guard(relid);
	}
}

/*
 * Lock a table's indexes, which another session may be rebuilding, and its
 * partitions with theirs, if that needs no wait.  Returns false if a lock is
 * not free.
 */
static bool
lock_at_once(Relation heap)
{
	ListCell   *lc;

	foreach(lc, RelationGetIndexList(heap))
	{
		if (!ConditionalLockRelationOid(lfirst_oid(lc), AccessShareLock))
			return false;
	}
	foreach(lc, feedpub_catalog_partitions(RelationGetRelid(heap)))
	{
		Relation	partition;
		bool		locked;

		if (!ConditionalLockRelationOid(lfirst_oid(lc), AccessShareLock))
			return false;

		/* one that was detached concurrently may be gone */
		partition = try_relation_open(lfirst_oid(lc), NoLock);
		if (partition == NULL)
			continue;
		locked = lock_at_once(partition);
		relation_close(partition, NoLock);
		if (!locked)
			return false;
	}
	return true;
}

/*
 * Begin a publisher's transaction: set its isolation and durability.
 */
static void
begin_step(const char *commit)
{
	Assert(!FirstSnapshotSet);
	XactIsoLevel = XACT_READ_COMMITTED;
	XactReadOnly = false;
	(void) set_config_option("synchronous_commit", commit, PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
}

/*
 * Lock a feed for a step, its publishing lock last, and open its table.
 * Returns 0 if the feed has been dropped, unless it waits for all; and
 * FEEDPUB_PUBLISH_BUSY if it would have to wait for something that how does not
 * include, or if the feed's index is still being made.
 */
static int
lock_feed(Oid relid, FeedpubPublishWait how, FeedpubFeed *feed, Relation *heap)
{
	if (how == FEEDPUB_WAIT_FOR_ALL)
		LockRelationOid(relid, AccessShareLock);
	else if (!ConditionalLockRelationOid(relid, AccessShareLock))
		return FEEDPUB_PUBLISH_BUSY;
	/* dropped or detached meanwhile: no news */
	if (how != FEEDPUB_WAIT_FOR_ALL &&
		(get_rel_name(relid) == NULL || !feedpub_registry_is_registered(relid)))
		return 0;
	*heap = feedpub_registry_open(relid);

	/* a table feed whose index is still being made is no error */
	if (how != FEEDPUB_WAIT_FOR_ALL && (!lock_at_once(*heap) || (feedpub_registry_is_table(relid) && !OidIsValid(feedpub_relation_index(*heap)))))
	{
		relation_close(*heap, NoLock);
		return FEEDPUB_PUBLISH_BUSY;
	}
	feedpub_registry_get(relid, feed);
	if (!feedpub_batch_lock(relid, how != FEEDPUB_WAIT_FOR_NOBODY))
	{
		relation_close(*heap, NoLock);
		return FEEDPUB_PUBLISH_BUSY;
	}
	return 1;
}

/*
 * Publish what is new in a feed.
 *
 * To be called first in a transaction, whose isolation and durability are set
 * here.  The caller commits.  Then it wakes the sessions that wait for the
 * feed.  If *done says so, or the feed is listened to, it calls
 * feedpub_publish_notify(), and if *done says so, feedpub_publish_guard().
 *
 * Returns the number of transactions published; done->more says that another
 * step has more to publish now.  Returns FEEDPUB_PUBLISH_BUSY
 * if it would have to wait for something that how does not include, or if the
 * feed's index is still being made.  Unless it waits for all, it takes a feed
 * that has been dropped for one without news.
 */
int
feedpub_publish_feed(Oid relid, FeedpubPublishWait how, FeedpubPublished *done)
{
	FeedpubFeed feed;
	Relation	heap;
	int			result;

	MemSet(done, 0, sizeof(FeedpubPublished));
	begin_step(GetConfigOption("feedpub.publish_synchronous_commit", false, false));
	result = lock_feed(relid, how, &feed, &heap);
	if (result <= 0)
		return result;

	/* after the lock, see step 2 above */
	PushActiveSnapshot(GetTransactionSnapshot());
	result = publish_news(&feed, heap, GetActiveSnapshot(), how, done);
	PopActiveSnapshot();
	return result;
}

/*
 * Publish what is new in several feeds, with one snapshot, which stays active:
 * all that it sees is before the end of the last batch of each feed then.
 * To be called as the above; done has an element for each.
 *
 * The feeds are sorted by OID, so two callers of this do not wait for each
 * other; others have the publishing lock of one feed at a time.  Nothing else
 * is waited for.  While it waits for another publisher it keeps those before
 * from publishing, so after LOCK_TIMEOUT_MS it is an error (55P03), as is a lock
 * that is not free.  Raises 55000 if a backlog is too large for one step.
 */
void
feedpub_publish_together(int nfeeds, const Oid *relids, FeedpubPublished *done)
{
	FeedpubFeed *feeds = palloc_array(FeedpubFeed, nfeeds);
	Relation   *heaps = palloc_array(Relation, nfeeds);

	MemSet(done, 0, nfeeds * sizeof(FeedpubPublished));
	begin_step(GetConfigOption("feedpub.publish_synchronous_commit", false, false));
	(void) set_config_option("lock_timeout", LOCK_TIMEOUT_MS, PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
	for (int i = 0; i < nfeeds; i++)
	{
		int			result = lock_feed(relids[i], FEEDPUB_WAIT_FOR_PUBLISHER, &feeds[i], &heaps[i]);

		if (result == FEEDPUB_PUBLISH_BUSY)
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 errmsg("could not lock feed \"%s\"", get_rel_name(relids[i]))));
		if (result == 0)
			feedpub_registry_get(relids[i], &feeds[i]); /* raises an error */
	}

	/* after the locks of all, see step 2 above */
	PushActiveSnapshot(GetTransactionSnapshot());
	for (int i = 0; i < nfeeds; i++)
	{
		(void) publish_news(&feeds[i], heaps[i], GetActiveSnapshot(),
							FEEDPUB_WAIT_FOR_PUBLISHER, &done[i]);
		if (done[i].more)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("feed \"%s\" has a larger backlog than one step publishes",
							get_rel_name(relids[i])),
					 errhint("Call feed_publish() first, or wait until the worker has published it.")));
	}
}

/*
 * Give partitions their triggers (feed/partition_truncate.c), after a step that
 * has asked for it, in a transaction of its own.  Waits for nothing.  Returns
 * whether it has been done.
 */
bool
feedpub_publish_guard(Oid relid)
{
	bool		done;

	begin_step("off");
	if (!ConditionalLockRelationOid(relid, AccessShareLock))
		return false;
	if (get_rel_name(relid) == NULL || !feedpub_registry_is_registered(relid))
		return true;
	if (!feedpub_batch_lock(relid, false))
		return false;
	PushActiveSnapshot(GetTransactionSnapshot());
	done = feedpub_partition_guard(relid);
	PopActiveSnapshot();
	return done;
}

/*
 * Write the batches that are due with this snapshot, and close the table.
 * Returns how many transactions are in them.
 *
 * Admits new partitions first, and opens those that are admitted.  A caller that
 * does not wait has locked the partitions already (lock_at_once), but not one
 * that has been attached since then: our lock on the table excludes what takes a
 * partition away, but not ATTACH.  Another session may hold a lock on that one
 * for any time, so each lock is waited for up to LOCK_TIMEOUT_MS.  Then this is
 * an error, which ends the step of this feed only, and nothing of it is
 * written.  The next step finds in lock_at_once() that the lock is held, and
 * leaves the feed out without a wait.  All locks of partitions and their indexes
 * are taken here, so what follows waits for none.
 */
static int
publish_news(FeedpubFeed *feed, Relation heap, Snapshot snapshot,
			 FeedpubPublishWait how, FeedpubPublished *done)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "feedpub publish",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext oldcontext = MemoryContextSwitchTo(context);
	FeedpubPartitions *partitions;
	FeedpubRunReader *reader;
	FeedpubSnapshot now;
	FeedpubBatch last;
	int			nestlevel = NewGUCNestLevel();
	bool		admitted;
	bool		guarded;
	int			npublished;

	if (how != FEEDPUB_WAIT_FOR_ALL)
		(void) set_config_option("lock_timeout", LOCK_TIMEOUT_MS, PGC_USERSET,
								 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);

	/* their rows are in no batch yet (partition_join.c); a worker stamps them */
	partitions = feedpub_partition_admit(feed, heap, &admitted, &guarded);
	AtEOXact_GUC(true, nestlevel);
	if (admitted)
		(void) feedpub_launcher_ensure(InvalidOid);
	done->unguarded = !guarded;
	feedpub_history_check(feed, partitions);
	feedpub_batch_take_snapshot(snapshot, &now);
	feedpub_batch_last(feed->relid, PG_INT64_MAX, snapshot, &last);
	feedpub_batch_refuse_foreign(feed, &last);
	if (!feedpub_batch_is_later(&now, &last.snapshot))
		ereport(ERROR,
				(errcode(ERRCODE_FEED_FOREIGN_HISTORY),
				 errmsg("batches of feed \"%s\" are from another history",
						RelationGetRelationName(heap)),
				 errdetail("The last batch has seen transactions that this server has not ended yet."),
				 errhint("feed_begin_history() forgets them, and publishes all rows anew; consumers begin again.")));

	reader = feedpub_run_begin(feed, partitions, snapshot, snapshot);
	npublished = feedpub_cut_batches(feed, &last, &now, reader, done);
	feedpub_run_end(reader);
	feedpub_partition_close(partitions);
	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(context);
	if (feed->key_state == FEEDPUB_KEY_UNMARKED)
		feedpub_registry_note_key(heap, feed->keyid);

	/* under the publishing lock, as a channel is set */
	done->announce = npublished > 0 &&
		feedpub_registry_channel(feed->relid) != NULL;
	relation_close(heap, NoLock);
	return npublished;
}
