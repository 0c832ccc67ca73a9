/*-------------------------------------------------------------------------
 * begin_history.c
 *	  Beginning a new history of a feed: feed_begin_history().
 *
 * If a feed was restored, it may be of no use as it is.  Its batches are
 * another server's, and so are the stamps of its rows: a row with an xid that
 * this server has not assigned yet is in no batch until it has.  So batches
 * and tombstones are forgotten, and the rows are stamped anew.
 *
 * If one row has such a stamp, all rows that have any are stamped, in the
 * order of their positions.  That is the order of the sequence, which was
 * restored too and has gone on since, so what was written here comes after
 * what was restored.  It is also causal, as published order is.  The order of
 * the xids is neither: here they are smaller than those from before.  Rows
 * that have no stamp are the initial snapshot of the new history, as they were
 * of the old one.  So it is if rows may have been written without the trigger
 * that stamps: the stamps that they brought may have positions that other rows
 * have, and of two such rows in one batch a page may end between.
 *
 * Why no row is lost, and none is delivered twice.  It is one transaction: if
 * it fails, the feed is refused as before.  The publishing lock excludes
 * publishers to its end, so the first batch of the new history is made with a
 * snapshot that sees all of it.  The rows that are stamped here have one xid,
 * ours, so they are in one batch, in the order of the new positions.  A reader
 * meanwhile has a snapshot that sees nothing of it, and is refused as before.
 * Older cursors contain the old history, and are refused.  Those in xid order
 * do not contain it, but a cursor that is accepted is below our xid, and all
 * these rows are after it.
 *
 * Writers.  EXCLUSIVE on the table excludes them until we have ended.  So none
 * has a row locked, or changes one that is about to be stamped, and what they
 * write later gets a larger position.  The lock is taken before there is a
 * transaction id, unless the caller has one.  Readers go on.  If no row is to
 * be stamped, writers are not excluded: what they write has a stamp of this
 * server, and is in the first batch whose snapshot sees it.
 *
 * The rows of a partitioned table are stamped in another way.  The list of its
 * partitions is forgotten, so the next publisher admits each as one that comes
 * with its rows, and these are stamped in the background (partition_join.c,
 * job/stamp.c).
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "storage/lmgr.h"
#include "utils/rel.h"

#include "job/job.h"

PG_FUNCTION_INFO_V1(feed_begin_history);

/*
 * feed_begin_history(feed regclass) returns void, VOLATILE
 *
 * Forgets the batches and deletes of a feed, and stamps its rows anew if they
 * have stamps that this server has not assigned.  All rows are published from
 * the beginning, in their order, and older cursors are refused (PF001).
 * Subscriptions keep their cursor, and are refused until feed_seek().
 *
 * For the owner only.  Waits for a publisher, and for transactions that make
 * or move a subscription, acknowledge, or have taken leases.  Takes ACCESS
 * SHARE on the table, or EXCLUSIVE if rows are stamped: writers wait, readers
 * do not.  The rows are stamped by an UPDATE, as the table's owner: triggers
 * fire, and checks are made.  All constraints are immediate for the rest of
 * the transaction.
 *
 * Errors: 42809 if it is no feed, 22004, 42501; 55000 if the index is missing,
 * row security holds for the owner, a rule replaces UPDATE, or a trigger keeps
 * a row from being stamped; 0A000 in REPEATABLE READ or SERIALIZABLE; and
 * whatever the UPDATE raises.
 */
Datum
feed_begin_history(PG_FUNCTION_ARGS)
{
	Oid			relid;
	FeedpubFeed feed;
	Relation	rel;
	FeedpubKey	key;
	Oid			keyid;
	bool		deletes;
	FullTransactionId stamp;

	feedpub_argument_check(fcinfo, 0, 1);
	feedpub_argument_check_latest("feed_begin_history()");
	relid = PG_GETARG_OID(0);
	feedpub_registry_get(relid, &feed);
	feedpub_require_owner(relid);
	(void) feedpub_registry_lock_history(relid, ExclusiveLock, true);
	rel = feedpub_registry_open(relid);
	feedpub_batch_lock(relid, true);
	if (rel->rd_rel->relkind != RELKIND_PARTITIONED_TABLE &&
		(feedpub_history_has_foreign(rel, &stamp) || feedpub_registry_is_unstamped(relid)))
	{
		LockRelationOid(relid, ExclusiveLock);
		feedpub_rows_check(rel, false);
		feedpub_rows_stamp_all(rel, "IS NOT NULL ORDER BY t." FEEDPUB_POS_COLUMN ", t." FEEDPUB_XID_COLUMN);
	}
	feedpub_registry_key(rel, &key, &keyid, &deletes);
	if (OidIsValid(keyid))
		feedpub_registry_set_key(rel, keyid, deletes);	/* its types now */
	feedpub_registry_begin_history(relid);
	feedpub_registry_set_unstamped(relid, false);

	/* all rows are news, also if none was written here */
	feedpub_wake_note(relid);
	relation_close(rel, NoLock);
	PG_RETURN_VOID();
}
