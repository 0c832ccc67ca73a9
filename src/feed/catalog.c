/*-------------------------------------------------------------------------
 *
 * catalog.c
 *	  What the system catalogs say of a user's table, read as data.
 *
 * The server's own accessors of expressions fold constants: they run the
 * immutable functions that the owner has put there, as the role that asks.
 * These are RelationGetIndexExpressions(), RelationGetIndexPredicate() and
 * with them BuildIndexInfo() and ExecOpenIndices(), RelationGetPartitionKey()
 * and with it RelationGetPartitionDesc(), build_column_default().  In the
 * worker the role that asks is a superuser, and in a view it is any role that
 * looks.  So for a user's table they are called only here, and only if there
 * is no expression.  Expressions are looked at as the node trees that the
 * catalogs have.
 *
 * To open a relation or an index runs none of an owner's code, nor does
 * reading an index: both run the support functions of operator classes, but
 * only a superuser can create an operator class.
 *
 * All functions expect the caller to hold a lock on the table.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "catalog/pg_index.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_partitioned_table.h"
#include "nodes/primnodes.h"
#include "partitioning/partbounds.h"
#include "partitioning/partdesc.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/partcache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "feed/feed.h"

/*
 * Does a partial index leave out the rows without a stamp, and no others?
 * Only the condition feed_xid IS NOT NULL is recognised.
 */
bool
feedpub_catalog_is_stamped_predicate(Relation rel, Relation index)
{
	bool		isnull;
	Datum		tree = SysCacheGetAttr(INDEXRELID, index->rd_indextuple, Anum_pg_index_indpred, &isnull);
	NullTest   *test = isnull ? NULL : stringToNode(TextDatumGetCString(tree));

	return test != NULL && IsA(test, NullTest) &&
		test->nulltesttype == IS_NOT_NULL && IsA(test->arg, Var) &&
		((Var *) test->arg)->varattno == get_attnum(RelationGetRelid(rel), FEEDPUB_XID_COLUMN);
}

/*
 * The partitions of a table, by OID, without partitions of partitions; NIL if
 * it has none.  A partition that the caller does not lock can be dropped.
 */
List *
feedpub_catalog_partitions(Oid relid)
{
	if (get_rel_relkind(relid) != RELKIND_PARTITIONED_TABLE)
		return NIL;
	return find_inheritance_children(relid, NoLock);
}

/*
 * Does a partitioned table's partition key consist of plain columns?  This
 * does not change as long as the table exists.
 */
bool
feedpub_catalog_has_plain_partition_key(Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(PARTRELID, ObjectIdGetDatum(relid));
	bool		result;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for partition key of %u", relid);
	result = heap_attisnull(tuple, Anum_pg_partitioned_table_partexprs, NULL);
	ReleaseSysCache(tuple);
	return result;
}

/*
 * Find the value of a partition's column in a key.  Returns false if the key
 * does not contain the column.
 */
static bool
find_value(Relation table, Relation rel, AttrNumber attno, int nkeys,
		   const AttrNumber *attnos, const Datum *values, Datum *value)
{
	if (rel != table)
		attno = get_attnum(RelationGetRelid(table),
						   NameStr(TupleDescAttr(RelationGetDescr(rel), attno - 1)->attname));
	for (int i = 0; i < nkeys; i++)
	{
		if (attnos[i] == attno)
		{
			*value = values[i];
			return true;
		}
	}
	return false;
}

/*
 * The number of the partition to which these values belong, none of them null;
 * -1 if there is none.
 */
static int
find_partition(PartitionKey key, PartitionBoundInfo bounds, Datum *values)
{
	bool		nulls[PARTITION_MAX_KEYS] = {false};
	bool		equal = false;
	int			i = -1;

	switch (key->strategy)
	{
		case PARTITION_STRATEGY_HASH:
			return bounds->indexes[compute_partition_hash_value(key->partnatts, key->partsupfunc,
																key->partcollation, values, nulls) %
								   bounds->nindexes];
		case PARTITION_STRATEGY_LIST:
			i = partition_list_bsearch(key->partsupfunc, key->partcollation,
									   bounds, values[0], &equal);
			i = i >= 0 && equal ? bounds->indexes[i] : -1;
			break;
		case PARTITION_STRATEGY_RANGE:
			i = partition_range_datum_bsearch(key->partsupfunc, key->partcollation,
											  bounds, key->partnatts, values, &equal);
			i = bounds->indexes[i + 1];
			break;
	}
	return i >= 0 ? i : bounds->default_index;
}

/*
 * Find the partition in which a row with this key would be; *partition is
 * InvalidOid if there is none.  attnos are the key's columns in the table.
 * Returns false if the key does not tell the partition, or only by running an
 * expression.
 *
 * The server finds the partition of a tuple in the same way (execPartition.c:
 * get_partition_for_tuple), but only for a tuple that is to be inserted.
 */
bool
feedpub_catalog_route(Relation table, int nkeys, const AttrNumber *attnos,
					  const Datum *values, Oid *partition)
{
	Relation	rel = table;
	bool		is_last = false;
	bool		known = true;

	*partition = InvalidOid;
	while (!is_last)
	{
		PartitionKey key = NULL;
		PartitionDesc desc = NULL;
		Datum		column_values[PARTITION_MAX_KEYS];
		int			i = -1;

		known = feedpub_catalog_has_plain_partition_key(RelationGetRelid(rel));
		if (known)
		{
			key = RelationGetPartitionKey(rel);
			for (int j = 0; j < key->partnatts && known; j++)
				known = find_value(table, rel, key->partattrs[j],
								   nkeys, attnos, values, &column_values[j]);
		}
		if (known)
		{
			desc = RelationGetPartitionDesc(rel, true);
			if (desc->nparts > 0)
				i = find_partition(key, desc->boundinfo, column_values);
			*partition = i >= 0 ? desc->oids[i] : InvalidOid;
		}
		is_last = i < 0 || desc->is_leaf[i];
		if (rel != table)
			relation_close(rel, NoLock);
		if (!is_last)
			rel = relation_open(*partition, AccessShareLock);
	}
	return known;
}
