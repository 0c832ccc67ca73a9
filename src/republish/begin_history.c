/*-------------------------------------------------------------------------
 *
 * begin_history.c
 *	  Giving a feed another life: feed_begin_history().
 *
 * A feed that was restored may be of no use as it is.  Its batches are another
 * server's, and so are the stamps of its rows: those with an xid that this
 * server has not assigned yet would be in no batch before it has.  So batches
 * and tombstones are forgotten, and the rows are stamped anew.
 *
 * If one row has such a stamp, all rows that have any are stamped, in the order
 * of their positions.  That is the order of the sequence, which is the
 * restored one's and has gone on since, so what was written here comes after
 * what was restored; and it is causal, as published order is.  The order of
 * the xids is neither: here they are smaller than those of before.  Rows that
 * have no stamp are the initial snapshot of the new history, as they were.
 *
 * Why no row is lost, and none comes twice.  It is one transaction: if it fails,
 * the feed is refused as before.  The publishing lock keeps publishers away to
 * its end, so the first batch of the new history is made with a snapshot that
 * sees all of it.  The rows that are stamped here have one xid, ours, so they
 * are in one batch, in the order of the new positions.  A reader meanwhile has a
 * snapshot that sees nothing of it, and is refused as before.  Cursors of
 * before have the old history in them, and are refused; those in xid order have
 * not, but a cursor that is accepted is below our xid, and all these rows come
 * after it.
 *
 * Writers.  EXCLUSIVE on the table keeps them out until we have ended, so none
 * has a row locked, or changes one that is about to be stamped, and what they
 * write later gets a larger position.  It is taken before there is a transaction
 * id, unless the caller has one.  Readers go on.  If no row is to be stamped,
 * writers are not kept out: what they write has a stamp of this server, and is
 * in the first batch whose snapshot sees it.
 *
 * The rows of a partitioned table are stamped otherwise: the list of its
 * partitions is forgotten, so the next publisher admits each as one that comes
 * with its rows, and these are stamped in the background (partition.c,
 * maintenance.c).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/relation.h"
#include "access/xact.h"
#include "catalog/pg_class.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "republish/republish.h"

PG_FUNCTION_INFO_V1(feed_begin_history);

static bool has_foreign_rows(Relation rel);

/*
 * feed_begin_history(feed regclass) returns void, VOLATILE
 *
 * Forgets the batches and deletes of a feed, and stamps its rows anew if they
 * have stamps that this server has not assigned: all rows are published from
 * the beginning, in their order, and cursors of before are refused (PF001).
 * Subscriptions begin again, but those of a table whose deletes are published
 * keep their cursor, and are refused until feed_seek().
 *
 * Only the owner may.  Waits for a publisher, and for transactions that make or
 * move a subscription.  Takes ACCESS SHARE on the table, or EXCLUSIVE if rows
 * are stamped: writers wait, readers do not.  The rows are stamped by an UPDATE,
 * as the table's owner: triggers fire, and checks are made; and all constraints
 * are immediate for the rest of the transaction.  Errors: 42809 when it is no
 * feed, 22004, 42501; 55000 when the index is missing, row security holds for
 * the owner, a rule replaces UPDATE, or a trigger keeps a row from being
 * stamped; 0A000 when rows are to be stamped in REPEATABLE READ or SERIALIZABLE;
 * and whatever the UPDATE raises.
 */
Datum
feed_begin_history(PG_FUNCTION_ARGS)
{
	static const char *const names[] = {"feed"};
	Oid			relid;
	FeedpubFeed feed;
	Relation	rel;

	feedpub_argument_check(fcinfo, lengthof(names), names);
	PreventCommandDuringRecovery("feed_begin_history()");
	relid = PG_GETARG_OID(0);
	rel = feedpub_registry_open(relid);
	if (!feedpub_registry_is_registered(relid))
		feedpub_registry_get(relid, &feed); /* says what it is not */
	feedpub_require_owner(relid);
	feedpub_registry_lock_history(relid, ExclusiveLock);
	feedpub_batch_lock(relid, true);
	if (rel->rd_rel->relkind != RELKIND_PARTITIONED_TABLE && has_foreign_rows(rel))
	{
		if (IsolationUsesXactSnapshot())
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("%s cannot be used in a REPEATABLE READ or SERIALIZABLE transaction",
							"feed_begin_history"),
					 errdetail("It would not see rows that others have committed since.")));
		LockRelationOid(relid, ExclusiveLock);
		feedpub_restamp_check(rel);
		feedpub_restamp_all(rel);
	}
	feedpub_registry_begin_history(relid);

	/* all rows are news, also if none was written here */
	feedpub_stamp_note(relid, GetTopFullTransactionId());
	relation_close(rel, NoLock);
	PG_RETURN_VOID();
}

/*
 * Has the table a row with a stamp that this server has not assigned?
 */
static bool
has_foreign_rows(Relation rel)
{
	Oid			indexid = feedpub_relation_index(rel);
	FeedpubPartition partition = {.heap = rel};
	FeedpubPartitions partitions = {.n = 1, .partitions = &partition};
	FullTransactionId stamp;
	Snapshot	snapshot;
	bool		found;

	if (!OidIsValid(indexid))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("feed \"%s\" has no index on (%s, %s)",
						RelationGetRelationName(rel),
						FEEDPUB_XID_COLUMN, FEEDPUB_POS_COLUMN),
				 errhint("Run feed_check() to see what is missing.")));
	partition.index = index_open(indexid, AccessShareLock);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	found = feedpub_horizon_has_foreign(&partitions, snapshot, &stamp);
	UnregisterSnapshot(snapshot);
	index_close(partition.index, NoLock);
	return found;
}
