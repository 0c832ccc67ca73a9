/*-------------------------------------------------------------------------
 *
 * relation.c
 *	  What the system catalogs say of one relation: its name in SQL, the
 *	  caller's rights on it, and what makes it a feed's table (the index on the
 *	  stamp, the sequence, the triggers).
 *
 * Nothing here reads one of our tables, or runs what a table's owner has put
 * into its definition (catalog.c).  All functions but those of names and
 * rights expect the caller to hold a lock on the table.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "catalog/dependency.h"
#include "catalog/pg_am.h"
#include "catalog/pg_type.h"
#include "commands/defrem.h"
#include "commands/sequence.h"
#include "miscadmin.h"
#include "parser/parse_func.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "feed/feed.h"

/*
 * Look up an internal function of the extension.
 */
Oid
feedpub_relation_function(const char *name, int nargs, const Oid *argtypes)
{
	return LookupFuncName(list_make2(makeString(FEEDPUB_SCHEMA),
									 makeString(pstrdup(name))),
						  nargs, argtypes, false);
}

/*
 * The schema of the public functions.
 */
Oid
feedpub_relation_schema(void)
{
	static FeedpubStatement find = {
		.sql = "SELECT extnamespace::pg_catalog.int8 FROM pg_catalog.pg_extension WHERE extname = 'feedpub'",
	};

	return (Oid) feedpub_store_number(&find, NULL, InvalidOid);
}

static void
refuse_missing(Oid relid)
{
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_TABLE),
			 errmsg("relation with OID %u does not exist", relid)));
}

/*
 * A relation's name as it is written in SQL: qualified, and quoted if needed,
 * whatever the session's quote_all_identifiers, since consumers compare it.
 */
char *
feedpub_relation_name(Oid relid)
{
	char	   *name = get_rel_name(relid);
	bool		quote_all = quote_all_identifiers;

	if (name == NULL)
		refuse_missing(relid);
	quote_all_identifiers = false;
	name = quote_qualified_identifier(get_namespace_name(get_rel_namespace(relid)), name);
	quote_all_identifiers = quote_all;
	return name;
}

/*
 * Raise the server's own error unless the caller owns the table, and there is
 * one.
 */
void
feedpub_require_owner(Oid relid)
{
	if (get_rel_name(relid) == NULL)
		refuse_missing(relid);
	if (!feedpub_owns_relation(relid, GetUserId()))
		aclcheck_error(ACLCHECK_NOT_OWNER,
					   get_relkind_objtype(get_rel_relkind(relid)),
					   get_rel_name(relid));
}

/*
 * May the caller SELECT from the table, or from one of its columns?
 */
bool
feedpub_may_select(Oid relid)
{
	return pg_class_aclcheck(relid, GetUserId(), ACL_SELECT) == ACLCHECK_OK ||
		pg_attribute_aclcheck_all(relid, GetUserId(), ACL_SELECT,
								  ACLMASK_ANY) == ACLCHECK_OK;
}

/*
 * Raise the server's own error unless feedpub_may_select().
 */
void
feedpub_require_select(Oid relid)
{
	if (!feedpub_may_select(relid))
		feedpub_refuse_select(relid);
}

/*
 * Raise that error.
 */
void
feedpub_refuse_select(Oid relid)
{
	aclcheck_error(ACLCHECK_NO_PRIV, get_relkind_objtype(get_rel_relkind(relid)),
				   get_rel_name(relid));
}

/*
 * The sequence that a table's feed_pos owns, or InvalidOid.
 */
Oid
feedpub_relation_sequence(Oid relid)
{
	AttrNumber	pos_attno = get_attnum(relid, FEEDPUB_POS_COLUMN);
	ListCell   *lc;

	foreach(lc, getOwnedSequences(relid))
	{
		Oid			table;
		int32		attno;

		if (sequenceIsOwned(lfirst_oid(lc), DEPENDENCY_AUTO, &table, &attno) &&
			attno == pos_attno)
			return lfirst_oid(lc);
	}
	return InvalidOid;
}

static Oid
find_index(Relation rel, bool valid)
{
	AttrNumber	xid_attno = get_attnum(RelationGetRelid(rel), FEEDPUB_XID_COLUMN);
	AttrNumber	pos_attno = get_attnum(RelationGetRelid(rel), FEEDPUB_POS_COLUMN);
	Oid			found = InvalidOid;
	ListCell   *lc;

	foreach(lc, RelationGetIndexList(rel))
	{
		Relation	index = index_open(lfirst_oid(lc), AccessShareLock);
		Form_pg_index form = index->rd_index;

		if (index->rd_rel->relam == BTREE_AM_OID &&
			(form->indisvalid && form->indisready) == valid && form->indislive &&
			form->indnkeyatts == 2 &&
			index->rd_opcintype[0] == XID8OID &&
			index->rd_opcintype[1] == INT8OID &&
			form->indkey.values[0] == xid_attno &&
			form->indkey.values[1] == pos_attno &&
			index->rd_indoption[0] == 0 && index->rd_indoption[1] == 0 &&
			(heap_attisnull(index->rd_indextuple, Anum_pg_index_indpred, NULL) ||
			 feedpub_catalog_is_stamped_predicate(rel, index)))
			found = lfirst_oid(lc);
		index_close(index, AccessShareLock);
		if (OidIsValid(found))
			break;
	}
	return found;
}

/*
 * The index that serves (feed_xid, feed_pos) > cursor in order, or InvalidOid.
 * It must be a valid btree on just these columns, ascending.  Their types must
 * be right, since a scan of ours does not check them.  It must contain all
 * rows, or all with a stamp.
 */
Oid
feedpub_relation_index(Relation rel)
{
	return find_index(rel, true);
}

/*
 * Is there an invalid index on the stamp: one that is being built, or whose
 * build failed?
 */
bool
feedpub_relation_has_invalid_index(Relation rel)
{
	return OidIsValid(find_index(rel, false));
}

/*
 * The statement that creates a table feed's index.  The index contains the
 * stamped rows only, so it is empty at first.  If a failed attempt left an
 * invalid index, the statement builds that again.
 */
char *
feedpub_relation_index_cure(Relation rel, bool concurrently)
{
	const char *option = concurrently ? " CONCURRENTLY" : "";
	Oid			invalid = find_index(rel, false);

	if (OidIsValid(invalid))
		return psprintf("REINDEX INDEX%s %s", option, feedpub_relation_name(invalid));
	return psprintf("CREATE INDEX%s %s ON %s (%s, %s) WHERE %s IS NOT NULL", option,
					quote_identifier(ChooseRelationName(RelationGetRelationName(rel), "feed", "idx",
														RelationGetNamespace(rel), false)),
					feedpub_relation_name(RelationGetRelid(rel)),
					FEEDPUB_XID_COLUMN, FEEDPUB_POS_COLUMN, FEEDPUB_XID_COLUMN);
}

/*
 * The last position that a sequence has assigned, 0 if none.  Reads the
 * sequence without a check of rights: the caller need not have any on it.
 */
int64
feedpub_relation_last_pos(Oid seqid)
{
	Relation	seq = relation_open(seqid, AccessShareLock);
	TableScanDesc scan;
	HeapTuple	tuple;
	int64		last = 0;

	scan = feedpub_table_beginscan(seq, SnapshotAny, 0, NULL);
	tuple = heap_getnext(scan, ForwardScanDirection);
	if (HeapTupleIsValid(tuple))
	{
		Form_pg_sequence_data data = (Form_pg_sequence_data) GETSTRUCT(tuple);

		last = data->is_called ? data->last_value : data->last_value - 1;
	}
	table_endscan(scan);
	relation_close(seq, AccessShareLock);
	return last;
}

/*
 * A table's trigger that calls one of our functions, or InvalidOid.
 */
Oid
feedpub_relation_trigger(Relation rel, const char *function)
{
	Oid			funcid = feedpub_relation_function(function, 0, NULL);

	for (int i = 0; rel->trigdesc != NULL && i < rel->trigdesc->numtriggers; i++)
	{
		if (rel->trigdesc->triggers[i].tgfoid == funcid)
			return rel->trigdesc->triggers[i].tgoid;
	}
	return InvalidOid;
}

/*
 * Are a table's first columns those of the default feed's row type?
 */
bool
feedpub_relation_has_default_row_type(Relation rel)
{
	TupleDesc	desc = RelationGetDescr(rel);
	StringInfoData columns;

	initStringInfo(&columns);
	for (int i = 0; i < Min(desc->natts, FEEDPUB_OUTBOX_COLUMNS); i++)
		appendStringInfo(&columns, "%s %s, ", NameStr(TupleDescAttr(desc, i)->attname),
						 format_type_extended(TupleDescAttr(desc, i)->atttypid, -1,
											  FORMAT_TYPE_FORCE_QUALIFY | FORMAT_TYPE_ALLOW_INVALID));
	return strcmp(columns.data,
				  "feed_xid pg_catalog.xid8, feed_pos bigint, publication_id pg_catalog.text,"
				  " message_id pg_catalog.text, message_type pg_catalog.text,"
				  " message_key pg_catalog.text, data pg_catalog.jsonb,"
				  " scheduled timestamp with time zone, headers pg_catalog.jsonb, ") == 0;
}

/*
 * How large the values of a row are, those that have a length by this function:
 * as they are stored, or whole.  Values that are out of line are not read for
 * that.
 */
Size
feedpub_relation_row_size(TupleTableSlot *slot, Size (*size_of)(Datum value))
{
	TupleDesc	desc = slot->tts_tupleDescriptor;
	Size		size = 0;

	slot_getallattrs(slot);
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (!slot->tts_isnull[i])
			size += att->attlen == -1 ? size_of(slot->tts_values[i]) : Max(att->attlen, 0);
	}
	return size;
}
