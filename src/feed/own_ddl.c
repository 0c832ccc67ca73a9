/*-------------------------------------------------------------------------
 *
 * own_ddl.c
 *	  What a reader's own transaction has altered, and what it cannot read then.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_attribute.h"
#include "catalog/pg_class.h"
#include "catalog/pg_index.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_policy.h"
#include "catalog/pg_trigger.h"
#include "executor/spi.h"
#include "utils/datum.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/portal.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "feed/feed.h"

static void check_looked_up(Relation feed, Oid relid);
static bool is_own_relation(Oid relid);
static bool has_own_change(Oid relid);
static bool is_column_altered(HeapTuple old);
static bool differ(TupleDesc desc, HeapTuple a, HeapTuple b,
				   const AttrNumber *ignored, int nignored);
static bool is_own_row(HeapTupleHeader header);
static bool has_own_partition(Relation catalog, Oid relid, Snapshot snapshot,
							  List **relids);

/*
 * Raise 55000 if the transaction itself has altered or truncated a feed's
 * table, or one of its partitions: the rows that it had may be in no file that
 * can be read.
 *
 * DDL and TRUNCATE write the table's row in pg_class.  A partition that comes
 * or goes has a row in pg_inherits.  A trigger that is dropped (its clones go
 * with it), an index and a column have rows of their own.  So has a policy,
 * and by a new policy a page would pass rows.  A GRANT writes such rows too,
 * and changes only the rights in them.  If a subtransaction did that and was
 * rolled back, the rows are the old ones again.
 */
void
feedpub_own_ddl_refuse(Relation table)
{
	List	   *relids;
	bool		found;

	if (!TransactionIdIsValid(GetTopTransactionIdIfAny()))
		return;
	relids = list_make1_oid(RelationGetRelid(table));
	found = is_own_relation(RelationGetRelid(table)) || has_own_change(RelationGetRelid(table));
	if (!found && table->rd_rel->relkind == RELKIND_PARTITIONED_TABLE)
	{
		Relation	catalog = table_open(InheritsRelationId, AccessShareLock);
		ListCell   *lc;

		/*
		 * This snapshot still has what the transaction has detached or
		 * dropped.
		 */
		feedpub_horizon_push(GetLatestSnapshot());
		foreach(lc, relids)
		{
			if (is_own_relation(lfirst_oid(lc)) ||
				has_own_partition(catalog, lfirst_oid(lc), GetActiveSnapshot(), &relids) ||
				has_own_partition(catalog, lfirst_oid(lc), NULL, NULL))
			{
				found = true;
				break;
			}
		}
		PopActiveSnapshot();
		table_close(catalog, AccessShareLock);
	}
	list_free(relids);
	if (found)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot read feed \"%s\" in the transaction that altered it",
						RelationGetRelationName(table)),
				 errdetail("A page shows the feed as it was before the reader's transaction, which has altered or truncated the table or a partition, or altered a policy."),
				 errhint("Commit first.")));
}

/*
 * Has the transaction created a table, or written its row in pg_class so that
 * more than rights and statistics differ?
 */
static bool
is_own_relation(Oid relid)
{
	static const AttrNumber ignored[] = {
		Anum_pg_class_relacl,
		Anum_pg_class_relpages,
		Anum_pg_class_reltuples,
		Anum_pg_class_relallvisible,
#ifdef Anum_pg_class_relallfrozen
		Anum_pg_class_relallfrozen,
#endif
	};
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	bool		result = false;

	if (!HeapTupleIsValid(tuple))
		return false;
	if (TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(tuple->t_data)))
	{
		Relation	catalog = table_open(RelationRelationId, AccessShareLock);
		SysScanDesc scan;
		ScanKeyData key;
		HeapTuple	old;

		feedpub_horizon_push(GetLatestSnapshot());
		ScanKeyInit(&key, Anum_pg_class_oid, BTEqualStrategyNumber, F_OIDEQ,
					ObjectIdGetDatum(relid));
		scan = systable_beginscan(catalog, ClassOidIndexId, true,
								  GetActiveSnapshot(), 1, &key);
		old = systable_getnext(scan);
		result = !HeapTupleIsValid(old) ||
			differ(RelationGetDescr(catalog), old, tuple, ignored, lengthof(ignored));
		systable_endscan(scan);
		PopActiveSnapshot();
		table_close(catalog, AccessShareLock);
	}
	ReleaseSysCache(tuple);
	return result;
}

/*
 * Select rows of a feed as the caller, with the active snapshot, which is the
 * page's.  The rows are in SPI_tuptable.
 *
 * Row security may look at other tables.  If such a table was truncated or
 * rewritten after the snapshot was taken, or by the transaction itself, the
 * snapshot sees none of its rows, and the page would pass rows that the caller
 * may see.  The query has locked the tables of its plan, so what pg_class says
 * of them stays so until the transaction ends.  Tables that only a function
 * reads are not in the plan.
 *
 * On a standby the planner could choose an index that lacks rows, of the feed
 * or of such a table (horizon.c).
 */
void
feedpub_own_ddl_select(struct _SPI_plan *plan, Datum *values, Relation feed)
{
	Snapshot	snapshot = GetActiveSnapshot();
	Portal		portal;
	ListCell   *lc;

	/* a kept plan does not look, if all of its locks are held already */
	if (snapshot->takenDuringRecovery)
		AcceptInvalidationMessages();
	portal = SPI_cursor_open(NULL, plan, values, NULL, true);
	SPI_cursor_fetch(portal, true, FETCH_ALL);
	foreach(lc, portal->stmts)
	{
		ListCell   *table;

		foreach(table, lfirst_node(PlannedStmt, lc)->relationOids)
		{
			if (lfirst_oid(table) != RelationGetRelid(feed))
				check_looked_up(feed, lfirst_oid(table));
			feedpub_horizon_check_planned(snapshot, lfirst_oid(table));
		}
	}
	SPI_cursor_close(portal);
}

static void
check_looked_up(Relation feed, Oid relid)
{
	if (is_own_relation(relid))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot read feed \"%s\" in the transaction that altered what its row security looks at",
						RelationGetRelationName(feed)),
				 errdetail("A page shows the feed as it was before the reader's transaction, which has altered or truncated table \"%s\".",
						   get_rel_name(relid)),
				 errhint("Commit first.")));
	if (!feedpub_horizon_sees_table(GetActiveSnapshot(), relid))
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("could not read feed \"%s\"", RelationGetRelationName(feed)),
				 errdetail("Table \"%s\", which its row security looks at, was altered after the snapshot was taken.",
						   get_rel_name(relid)),
				 errhint("Try again in a new transaction.")));
}

/*
 * Has the transaction dropped or altered a trigger, an index or a column that
 * the table had before, or a policy, or has it created a policy?
 */
static bool
has_own_change(Oid relid)
{
	static const struct
	{
		Oid			catalog;
		Oid			index;
		AttrNumber	attno;		/* the column with the table's OID */
		bool		now;		/* look at the rows of now */
	} catalogs[] = {
		{TriggerRelationId, TriggerRelidNameIndexId, Anum_pg_trigger_tgrelid, false},
		{IndexRelationId, IndexIndrelidIndexId, Anum_pg_index_indrelid, false},
		{AttributeRelationId, AttributeRelidNumIndexId, Anum_pg_attribute_attrelid, false},
		{PolicyRelationId, PolicyPolrelidPolnameIndexId, Anum_pg_policy_polrelid, false},
		{PolicyRelationId, PolicyPolrelidPolnameIndexId, Anum_pg_policy_polrelid, true},
	};
	bool		found = false;

	/* This snapshot still has what the transaction has dropped. */
	feedpub_horizon_push(GetLatestSnapshot());
	for (int i = 0; i < lengthof(catalogs) && !found; i++)
	{
		Relation	catalog = table_open(catalogs[i].catalog, AccessShareLock);
		SysScanDesc scan;
		ScanKeyData key;
		HeapTuple	tuple;

		ScanKeyInit(&key, catalogs[i].attno, BTEqualStrategyNumber, F_OIDEQ,
					ObjectIdGetDatum(relid));
		scan = systable_beginscan(catalog, catalogs[i].index, true,
								  catalogs[i].now ? NULL : GetActiveSnapshot(),
								  1, &key);
		while (!found && HeapTupleIsValid(tuple = systable_getnext(scan)))
			found = is_own_row(tuple->t_data) &&
				(catalogs[i].catalog != AttributeRelationId || is_column_altered(tuple));
		systable_endscan(scan);
		table_close(catalog, AccessShareLock);
	}
	PopActiveSnapshot();
	return found;
}

/*
 * Does a column differ from its old row in more than rights?
 */
static bool
is_column_altered(HeapTuple old)
{
	static const AttrNumber ignored[] = {Anum_pg_attribute_attacl};
	Form_pg_attribute attribute = (Form_pg_attribute) GETSTRUCT(old);
	HeapTuple	tuple = SearchSysCache2(ATTNUM,
										ObjectIdGetDatum(attribute->attrelid),
										Int16GetDatum(attribute->attnum));
	Relation	catalog;
	bool		result;

	if (!HeapTupleIsValid(tuple))
		return true;
	catalog = table_open(AttributeRelationId, AccessShareLock);
	result = differ(RelationGetDescr(catalog), old, tuple, ignored, lengthof(ignored));
	table_close(catalog, AccessShareLock);
	ReleaseSysCache(tuple);
	return result;
}

/*
 * Do two versions of a catalog's row differ in a column that is not ignored?
 */
static bool
differ(TupleDesc desc, HeapTuple a, HeapTuple b, const AttrNumber *ignored,
	   int nignored)
{
	for (AttrNumber attno = 1; attno <= desc->natts; attno++)
	{
		Form_pg_attribute attribute = TupleDescAttr(desc, attno - 1);
		bool		is_ignored = false;
		bool		a_null;
		bool		b_null;
		Datum		in_a = heap_getattr(a, attno, desc, &a_null);
		Datum		in_b = heap_getattr(b, attno, desc, &b_null);

		for (int i = 0; i < nignored; i++)
			is_ignored = is_ignored || ignored[i] == attno;
		if (is_ignored || (a_null && b_null))
			continue;
		if (a_null != b_null ||
			!datumIsEqual(in_a, in_b, attribute->attbyval, attribute->attlen))
			return true;
	}
	return false;
}

/*
 * Has the transaction written or removed a row of a catalog?
 */
static bool
is_own_row(HeapTupleHeader header)
{
	return TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(header)) ||
		((header->t_infomask & HEAP_XMAX_INVALID) == 0 &&
		 !HEAP_XMAX_IS_LOCKED_ONLY(header->t_infomask) &&
		 TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetUpdateXid(header)));
}

/*
 * Has the transaction removed a partition of a table, or added one?  Looks at
 * those that the snapshot sees, or at those of now if it is NULL.  Adds them
 * to relids, unless that is NULL.
 */
static bool
has_own_partition(Relation catalog, Oid relid, Snapshot snapshot,
				  List **relids)
{
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	tuple;
	bool		found = false;

	ScanKeyInit(&key, Anum_pg_inherits_inhparent, BTEqualStrategyNumber,
				F_OIDEQ, ObjectIdGetDatum(relid));
	scan = systable_beginscan(catalog, InheritsParentIndexId, true, snapshot, 1, &key);
	while (!found && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		found = is_own_row(tuple->t_data);
		if (relids != NULL)
			*relids = lappend_oid(*relids, ((Form_pg_inherits) GETSTRUCT(tuple))->inhrelid);
	}
	systable_endscan(scan);
	return found;
}
