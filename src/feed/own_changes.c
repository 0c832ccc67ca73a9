/*-------------------------------------------------------------------------
 *
 * own_changes.c
 *	  A page shows the feed as it was before the reader's own transaction: what
 *	  that has changed is hidden, and after DDL of its own it cannot read.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_inherits.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "feed/feed.h"

/*
 * Push a snapshot without the transaction's own changes.
 *
 * A page shows a feed as it was before the reader's transaction.  That may be
 * rolled back: as a whole, to a savepoint, or by the EXCEPTION clause of a
 * PL/pgSQL block.  A program keeps the cursor, and the cursor does not go
 * back.  A row that the transaction has deleted, or has moved to the feed's
 * end by an UPDATE, lives again after a rollback.  If the page had passed it,
 * it would be skipped.
 *
 * Of its own transaction a snapshot sees the commands before its curcid
 * (heapam_visibility.c: HeapTupleSatisfiesMVCC).  With the first command id it
 * sees none: no row of the transaction, and the rows that it has removed as if
 * they were there.
 */
void
feedpub_own_changes_hide(Snapshot snapshot)
{
	PushCopiedSnapshot(snapshot);
	GetActiveSnapshot()->curcid = FirstCommandId;
}

/*
 * Does the transaction hold ACCESS EXCLUSIVE on a table, or on a partition of
 * it?
 */
bool
feedpub_own_changes_has_lock(Oid relid)
{
	List	   *tables = list_make1_oid(relid);
	ListCell   *lc;

	if (get_rel_relkind(relid) == RELKIND_PARTITIONED_TABLE)
		tables = find_all_inheritors(relid, NoLock, NULL);
	foreach(lc, tables)
	{
		LOCKTAG		tag;

		SET_LOCKTAG_RELATION(tag, MyDatabaseId, lfirst_oid(lc));
		if (feedpub_lock_held(&tag, AccessExclusiveLock))
			return true;
	}
	return false;
}

/*
 * Raise 55000 if the transaction itself has altered or truncated a feed's
 * table, or one of its partitions: the rows that it had may be in no file that
 * can be read.
 *
 * Each command that takes something away which a page needs holds ACCESS
 * EXCLUSIVE on the table to the transaction's end: TRUNCATE, CLUSTER, a rewrite,
 * a column that is dropped or gets another type, DROP INDEX, DROP TRIGGER, and
 * all that is done to a policy, by which a page would pass rows.  So does DROP of
 * an object on which one of these depends (dependency.c, by each object's own
 * removal).  If a partition goes, its parent is locked so, and that is still a
 * partition, or has gone itself, with its own parent locked.  A partition that
 * is created locks its parent; one that is attached is locked itself.
 *
 * Commands with a weaker lock (CREATE INDEX, CREATE TRIGGER, DISABLE TRIGGER,
 * VALIDATE CONSTRAINT, ANALYZE) leave the rows of before and the ways to them
 * as they are.  GRANT takes no lock.
 *
 * If a subtransaction is rolled back, its locks are given back, and the table is
 * what it was.  After a LOCK TABLE in that mode a page is refused for nothing,
 * and nothing is lost.  No reader is in a parallel worker, which would not know
 * its leader's locks (registry.c).
 */
void
feedpub_own_changes_refuse(Relation table)
{
	if (TransactionIdIsValid(GetTopTransactionIdIfAny()) &&
		feedpub_own_changes_has_lock(RelationGetRelid(table)))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot read feed \"%s\" in the transaction that altered it",
						RelationGetRelationName(table)),
				 errdetail("A page shows the feed as it was before the reader's transaction, which has altered, truncated or locked the table or a partition, or altered a policy."),
				 errhint("Commit first.")));
}
