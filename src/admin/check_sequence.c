/*-------------------------------------------------------------------------
 * check_sequence.c
 *	  Whether a feed's sequence is there, durable, and after every position
 *	  that it has assigned: part of feed_check().
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_sequence.h"
#include "catalog/pg_type.h"
#include "commands/defrem.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "admin/check.h"

/* the largest position among so many entries counts as the newest */
#define NEWEST_ENTRIES	1000

static List *tables_of(FeedpubCheck *cxt);
static int64 largest_pos(FeedpubCheck *cxt, int64 nentries);
static int64 largest_in_index(Relation rel, Oid indexid, int64 nentries);

/*
 * Check the sequence: there, durable, large enough, and not lagging rows that
 * were loaded while the trigger that stamps was disabled.  Its other options do
 * not count, and a sequence that was set back does no harm (position.c).
 */
void
feedpub_check_sequence(FeedpubCheck *cxt)
{
	HeapTuple	tuple;
	Form_pg_sequence form;
	char	   *name;
	int64		newest;

	if (!OidIsValid(cxt->seqid))
	{
		char	   *seq = ChooseRelationName(RelationGetRelationName(cxt->rel),
											 FEEDPUB_POS_COLUMN, "seq",
											 RelationGetNamespace(cxt->rel), false);
		char	   *quoted = quote_qualified_identifier(get_namespace_name(RelationGetNamespace(cxt->rel)), seq);
		char	   *cure = psprintf("CREATE SEQUENCE %s START WITH " INT64_FORMAT,
									quoted, largest_pos(cxt, PG_INT64_MAX) + 1);
		Oid			owner = cxt->rel->rd_rel->relowner;

		/* the owner of the table must own a column's sequence */
		if (owner != GetUserId())
			cure = psprintf("%s; ALTER SEQUENCE %s OWNER TO %s; ALTER SEQUENCE %s",
							cure, quoted, quote_identifier(GetUserNameFromId(owner, false)), quoted);
		feedpub_check_add(cxt, "sequence",
						  psprintf("column %s has no sequence of its own",
								   FEEDPUB_POS_COLUMN),
						  psprintf("%s OWNED BY %s.%s", cure, cxt->table, FEEDPUB_POS_COLUMN))
			->as_caller = true;
		return;
	}

	name = feedpub_relation_name(cxt->seqid);
	tuple = SearchSysCache1(SEQRELID, ObjectIdGetDatum(cxt->seqid));
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for sequence %u", cxt->seqid);
	form = (Form_pg_sequence) GETSTRUCT(tuple);
	if (form->seqtypid != INT8OID || form->seqmax != PG_INT64_MAX)
		feedpub_check_add(cxt, "sequence",
						  psprintf("sequence %s ends at " INT64_FORMAT ", so a dump with larger positions cannot be restored",
								   name, form->seqmax),
						  psprintf("ALTER SEQUENCE %s AS bigint NO MAXVALUE", name));
	ReleaseSysCache(tuple);

	if (get_rel_persistence(cxt->seqid) == RELPERSISTENCE_UNLOGGED)
		feedpub_check_add(cxt, "sequence",
						  psprintf("sequence %s is unlogged, so a crash restarts it", name),
						  psprintf("ALTER SEQUENCE %s SET LOGGED", name));

	/*
	 * Does it lag?  The newest entries of the index tell, and all of them
	 * tell the value that it needs.  They are read before the sequence: a
	 * writer in between can only raise it.
	 */
	newest = largest_pos(cxt, NEWEST_ENTRIES);
	if (feedpub_position_lags(cxt->seqid, newest))
		feedpub_check_add(cxt, "sequence",
						  psprintf("sequence %s lags: there is a position " INT64_FORMAT,
								   name, newest),
						  psprintf("SELECT pg_catalog.setval(%s, " INT64_FORMAT "::pg_catalog.int8)",
								   feedpub_check_regclass(name), largest_pos(cxt, PG_INT64_MAX)));
}

/* The tables that have the feed's rows. */
static List *
tables_of(FeedpubCheck *cxt)
{
	if (feedpub_check_is_partitioned(cxt))
		return feedpub_partition_list(cxt->rel, false);
	return list_make1_oid(RelationGetRelid(cxt->rel));
}

/*
 * The largest position that is known to have been assigned; 0 if there is
 * none.  In a table feed that is the one of the last batch.  In both kinds of
 * feeds these are nentries of the newest entries of each index, whether their rows
 * are visible or not.  Only the index is read: row security hides nothing from
 * it.
 */
static int64
largest_pos(FeedpubCheck *cxt, int64 nentries)
{
	int64		largest = cxt->is_table ? cxt->last.last_pos : 0;
	ListCell   *lc;

	if (cxt->catalogs_only)
		return 0;
	foreach(lc, tables_of(cxt))
	{
		Relation	rel = try_relation_open(lfirst_oid(lc), AccessShareLock);
		Oid			indexid = rel != NULL ? feedpub_relation_index(rel) : InvalidOid;

		if (OidIsValid(indexid))
			largest = Max(largest, largest_in_index(rel, indexid, nentries));
		if (rel != NULL)
			relation_close(rel, AccessShareLock);
	}
	return largest;
}

static int64
largest_in_index(Relation rel, Oid indexid, int64 nentries)
{
	Relation	index = index_open(indexid, AccessShareLock);
	IndexScanDesc scan = feedpub_snapshot_begin_scan(rel, index, GetActiveSnapshot(), 0);
	int64		largest = 0;

	scan->xs_want_itup = true;
	index_rescan(scan, NULL, 0, NULL, 0);
	while (nentries-- > 0 &&
		   index_getnext_tid(scan, BackwardScanDirection) != NULL)
	{
		bool		isnull;
		int64		pos = DatumGetInt64(index_getattr(scan->xs_itup, 2,
													  RelationGetDescr(index), &isnull));

		CHECK_FOR_INTERRUPTS();
		largest = Max(largest, pos);
	}
	index_endscan(scan);
	index_close(index, AccessShareLock);
	return largest;
}
