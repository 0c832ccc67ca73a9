/*-------------------------------------------------------------------------
 * attach.c
 *	  Making a user's table a feed of its changes.
 *
 * A table feed is a table of the user's with two more columns, the stamp, an
 * index on them, and triggers that write them.  All but the index is a change
 * of the system catalogs, made with ordinary DDL as the caller.  It is made
 * under a lock that excludes writers, so all that is written since is stamped.
 * What was there before has no stamp, and is the initial snapshot (initial.c).
 *
 * The index covers the stamped rows only, so it is empty at first, but making
 * it reads the table.  That of a small table is made at once.  For a larger
 * one the statement is returned to the caller, since no function can run
 * CREATE INDEX CONCURRENTLY.  Meanwhile writers stamp their rows, and readers
 * get an error that tells them to wait.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "catalog/catalog.h"
#include "catalog/namespace.h"
#include "catalog/pg_am.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "admin/admin.h"

PG_FUNCTION_INFO_V1(feed_attach);

/* up to how many pages the index is made at once: some milliseconds */
#define SMALL_TABLE	1024

/*
 * If a feed has lost its key and a key was named, make that the key.  Older
 * tombstones have the old key, by which no consumer can find the row any more,
 * so consumers begin again.  What only the caller can choose is not replaced:
 * raises 55000, for the feed would not be ready.
 */
static void
replace_lost_parts(Oid relid, Oid keyid)
{
	Relation	rel = feedpub_registry_open(relid);
	FeedpubKey	key;
	Oid			present;
	bool		deletes;

	if (get_attnum(relid, FEEDPUB_XID_COLUMN) == InvalidAttrNumber ||
		get_attnum(relid, FEEDPUB_POS_COLUMN) == InvalidAttrNumber)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("feed \"%s\" has lost column %s or %s",
						RelationGetRelationName(rel), FEEDPUB_XID_COLUMN, FEEDPUB_POS_COLUMN),
				 errhint("Detach the table by feed_detach(), and attach it again.")));
	feedpub_registry_key(rel, &key, &present, &deletes);
	if (!OidIsValid(present) && OidIsValid(keyid))
	{
		feedpub_registry_set_key(rel, feedpub_attach_key(rel, keyid, "feed_attach", deletes), deletes);
		feedpub_batch_lock(relid, true);
		feedpub_registry_begin_history(relid);
	}
	else if (!OidIsValid(present) && deletes)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("feed \"%s\" has lost its key", RelationGetRelationName(rel)),
				 errhint("Name a unique index on columns that are not null, as in feed_attach(..., key => '%s_key').",
						 RelationGetRelationName(rel))));
	relation_close(rel, NoLock);
}

/*
 * Make the index if it is missing, or return the statement that does.
 *
 * Each larger partition has a statement of its own.  When only small ones are
 * left, the index of the partitioned table is made: that attaches the indexes
 * that are there, and makes the others (indexcmds.c: DefineIndex).  Partitions
 * that come later have theirs.
 */
static char *
make_index(Oid relid)
{
	Relation	rel = feedpub_registry_open(relid);
	bool		is_there = OidIsValid(feedpub_relation_index(rel));
	List	   *tables = list_make1_oid(relid);
	BlockNumber nblocks = 0;
	char	   *cure = feedpub_relation_index_cure(rel, false);
	char	   *statement = NULL;
	ListCell   *lc;

	if (rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE)
		tables = feedpub_partition_list(rel, false);
	relation_close(rel, NoLock);	/* for the DDL */
	foreach(lc, tables)
	{
		CHECK_FOR_INTERRUPTS();
		rel = is_there ? NULL : try_relation_open(lfirst_oid(lc), AccessShareLock);
		if (rel == NULL)
			continue;
		if (!OidIsValid(feedpub_relation_index(rel)))
		{
			if (nblocks + RelationGetNumberOfBlocks(rel) <= SMALL_TABLE)
				nblocks += RelationGetNumberOfBlocks(rel);
			else if (statement == NULL)
				statement = feedpub_relation_index_cure(rel, true);
		}
		relation_close(rel, AccessShareLock);
	}
	if (is_there || statement != NULL)
		return statement;

	/* DDL would wait for writers without a limit, and block other sessions */
	feedpub_lock_tables(list_make1_oid(relid), AccessExclusiveLock);
	feedpub_role_run(cure);
	return NULL;
}

/*
 * feed_attach(feed regclass, key regclass DEFAULT NULL,
 * columns name[] DEFAULT NULL, deletes boolean DEFAULT true)
 * returns text, VOLATILE
 *
 * Makes a table a feed of its changes.  key is a unique index on columns that
 * are not null; by default the primary key.  columns are those whose change
 * publishes a row, by default all; a change of the key always does.  Without
 * deletes, DELETE and TRUNCATE publish nothing.
 *
 * Returns NULL if the feed is ready, else the statement, CREATE INDEX
 * CONCURRENTLY, that is still to be run.  May be called again at any time, and
 * then completes what is missing; key, columns and deletes stay as they were.
 *
 * For the owner only, in READ COMMITTED.  Takes ACCESS EXCLUSIVE on the table
 * until the transaction ends.  Waits for it in attempts of up to two seconds,
 * for half a minute or lock_timeout.
 *
 * Errors: 25006 on a standby, 22023 for an empty list of columns, 42P01, 42809
 * if it is no ordinary table, or an outbox; 0A000 for temporary and unlogged
 * tables, partitions, tables with inheritance, and higher isolation; 55000 if
 * there is no key; 42703 for an unknown column; 42701 if it is named twice, or
 * columns of the stamp's names are there; 22004, 55P03, 42501.
 *
 * A partitioned table is one feed with all its partitions, which are locked as
 * it is.  The index of each larger partition is a statement of its own: call
 * again after each, until NULL is returned.
 */
Datum
feed_attach(PG_FUNCTION_ARGS)
{
	Oid			relid;
	Relation	rel;
	Oid			key;
	char	   *statement;
	const char *columns = NULL; /* set if the feed is new */

	feedpub_argument_check(fcinfo, 0, 1);
	feedpub_argument_check(fcinfo, 3, 1);
	feedpub_argument_check_latest("feed_attach()");
	relid = PG_GETARG_OID(0);
	feedpub_require_owner(relid);
	rel = feedpub_registry_open(relid);
	feedpub_attach_refuse(rel, false);
	relation_close(rel, AccessShareLock);	/* does not block another caller */

	if (!feedpub_registry_is_registered(relid))
		feedpub_lock_tables(list_make1_oid(relid), AccessExclusiveLock);
	if (!feedpub_registry_is_registered(relid)) /* no other was first */
	{
		rel = feedpub_registry_open(relid);
		feedpub_attach_refuse(rel, false);
		key = feedpub_attach_key(rel, PG_ARGISNULL(1) ? InvalidOid : PG_GETARG_OID(1),
								 "feed_attach", PG_GETARG_BOOL(3));
		feedpub_registry_add(relid, FEEDPUB_KIND_TABLE, false);
		feedpub_wake_note_new(relid);
		feedpub_registry_set_key(rel, key, PG_GETARG_BOOL(3));
		relation_close(rel, NoLock);
		columns = PG_ARGISNULL(2) ? "" : feedpub_attach_columns(relid, PG_GETARG_DATUM(2));
		feedpub_role_run_as_owner(relid, psprintf("ALTER TABLE %s ADD COLUMN " FEEDPUB_XID_COLUMN " pg_catalog.xid8, ADD COLUMN " FEEDPUB_POS_COLUMN " pg_catalog.int8", feedpub_relation_name(relid)));
	}
	else
		replace_lost_parts(relid, PG_ARGISNULL(1) ? InvalidOid : PG_GETARG_OID(1));

	/* the rest is what feed_repair() would restore */
	CommandCounterIncrement();
	feedpub_check_repair(relid, columns);
	if (columns != NULL)
		feedpub_position_begin(feedpub_relation_sequence(relid));
	if (columns != NULL && get_rel_relkind(relid) == RELKIND_PARTITIONED_TABLE)
		feedpub_partition_begin(relid);
	statement = make_index(relid);

	/* so that the initial snapshot is durable (initial.c) */
	ForceSyncCommit();
	if (statement == NULL)
		PG_RETURN_NULL();
	ereport(NOTICE,
			(errmsg("feed \"%s\" cannot be read before its index is made",
					get_rel_name(relid)),
			 get_rel_relkind(relid) == RELKIND_PARTITIONED_TABLE ?
				 errhint("Run: %s, then feed_attach() again.", statement) :
				 errhint("Run: %s", statement)));
	PG_RETURN_TEXT_P(cstring_to_text(statement));
}

/*
 * Refuse a table that cannot be a table feed, or cannot be captured, or has a
 * partition that cannot be in one.  A partition can be captured.  A capture
 * needs to see that a row moves to another partition, which only heap tuples
 * tell.
 */
void
feedpub_attach_refuse(Relation rel, bool is_capture)
{
	const char *name = RelationGetRelationName(rel);
	const char *verb = is_capture ? "captured" : "a feed";
	bool		is_partitioned = rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE;
	FeedpubKind kind = feedpub_registry_kind(RelationGetRelid(rel));
	List	   *tables = list_make1_oid(RelationGetRelid(rel));
	ListCell   *lc;

	if (kind != FEEDPUB_KIND_NONE && kind != FEEDPUB_KIND_TABLE)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" cannot be %s", name, verb),
				 errdetail(is_capture ? "It is %s." : "It is %s already.", kind == FEEDPUB_KIND_CHANGES ? "a change feed" : "an outbox"),
				 is_capture ? errhint("Read that feed itself.") : 0));
	if ((rel->rd_rel->relkind != RELKIND_RELATION && !is_partitioned) ||
		IsCatalogRelation(rel) ||
		RelationGetNamespace(rel) == get_namespace_oid(FEEDPUB_SCHEMA, false))
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" cannot be %s", name, verb),
				 errdetail("Only ordinary tables can.")));
	if (is_partitioned)
		tables = list_concat(tables, feedpub_partition_list(rel, false));
	foreach(lc, tables)
	{
		bool		is_feed = lfirst_oid(lc) == RelationGetRelid(rel);
		Relation	part = try_relation_open(lfirst_oid(lc), AccessShareLock);
		const char *what = NULL;

		if (part == NULL)
			continue;
		if (part->rd_rel->relkind == RELKIND_FOREIGN_TABLE)
			what = "a foreign table";
		else if (part->rd_rel->relpersistence != RELPERSISTENCE_PERMANENT)
			what = part->rd_rel->relpersistence == RELPERSISTENCE_TEMP ? "a temporary table" : "an unlogged table";
		else if (is_feed && part->rd_rel->relispartition && !is_capture)
			what = "a partition";
		else if (is_feed && !is_partitioned && !part->rd_rel->relispartition &&
				 (has_superclass(lfirst_oid(lc)) || find_inheritance_children(lfirst_oid(lc), NoLock) != NIL))
			what = "a table with inheritance";
		else if (is_capture && part->rd_rel->relkind == RELKIND_RELATION && part->rd_rel->relam != HEAP_TABLE_AM_OID)
			what = "a table of another access method than heap";
		if (what != NULL)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("\"%s\" cannot be %s", name, verb),
					 is_feed ? errdetail("It is %s.", what) :
							   errdetail("Its partition \"%s\" is %s.", RelationGetRelationName(part), what)));
		relation_close(part, AccessShareLock);
	}
}

/*
 * The index that is to be the key: the one that was named, or the primary key.
 * function is whose argument names it, for messages.
 */
Oid
feedpub_attach_key(Relation rel, Oid keyid, const char *function, bool deletes)
{
	Relation	index;
	const char *problem;
	AttrNumber	attno;

	if (!OidIsValid(keyid))
		keyid = feedpub_key_primary(rel);
	if (!OidIsValid(keyid))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" has no primary key",
						RelationGetRelationName(rel)),
				 errhint("Add one, or name a unique index on columns that are not null, as in %s(..., key => '%s_key').",
						 function, RelationGetRelationName(rel))));
	if (!list_member_oid(RelationGetIndexList(rel), keyid))
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is not an index of table \"%s\"",
						get_rel_name(keyid) ? get_rel_name(keyid) : "?",
						RelationGetRelationName(rel))));
	index = index_open(keyid, AccessShareLock);
	problem = feedpub_key_problem(rel, index);
	if (problem != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("index \"%s\" cannot be the key of a feed",
						RelationGetRelationName(index)),
				 errdetail("The index %s.", problem),
				 errhint("Name another unique index on columns that are not null.")));
	attno = feedpub_key_runs_code(rel, index);
	if (deletes && attno != 0)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("index \"%s\" cannot be the key by which deletes are published",
						RelationGetRelationName(index)),
				 errdetail("The type of column \"%s\" can have a domain inside, whose checks would run where its values are read.",
						   NameStr(TupleDescAttr(RelationGetDescr(rel), attno - 1)->attname)),
				 errhint("Attach the table with deletes => false, or name a unique index on other columns. An enum, or a domain over a plain type, will do.")));
	index_close(index, NoLock);
	return keyid;
}

/*
 * The columns that an argument names, a name[], as literals with commas.
 */
const char *
feedpub_attach_columns(Oid relid, Datum columns)
{
	StringInfoData list;
	Datum	   *names;
	bool	   *nulls;
	int			nnames;

	initStringInfo(&list);
	deconstruct_array(DatumGetArrayTypeP(columns), NAMEOID, NAMEDATALEN, false, TYPALIGN_CHAR,
					  &names, &nulls, &nnames);
	for (int i = 0; i < nnames; i++)
	{
		const char *name;

		if (nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("argument \"columns\" must not contain null values")));
		name = NameStr(*DatumGetName(names[i]));
		if (get_attnum(relid, name) <= 0)
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_COLUMN),
					 errmsg("column \"%s\" of relation \"%s\" does not exist",
							name, get_rel_name(relid))));
		for (int j = 0; j < i; j++)
		{
			if (strcmp(name, NameStr(*DatumGetName(names[j]))) == 0)
				ereport(ERROR,
						(errcode(ERRCODE_DUPLICATE_COLUMN),
						 errmsg("column \"%s\" specified more than once", name)));
		}
		appendStringInfo(&list, "%s%s", i > 0 ? ", " : "", quote_literal_cstr(name));
	}
	if (nnames == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"columns\" must not be empty")));
	return list.data;
}
