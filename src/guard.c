/*-------------------------------------------------------------------------
 *
 * guard.c
 *	  What a feed is made of, and whether it still stands.
 *
 * An outbox is an ordinary table of its owner's, who can undo whatever
 * protects it.  Here each guard is looked at in the catalogs, with a sentence
 * that names what is wrong and the SQL that puts it right.  feed_create()
 * makes a bare table and runs those same cures, so there is one description
 * of what a feed needs; feed_check() shows the problems, feed_repair() runs
 * the cures.
 *
 * All functions expect the caller to hold a lock on the table.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/sysattr.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/dependency.h"
#include "catalog/index.h"
#include "catalog/namespace.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_sequence.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "commands/defrem.h"
#include "commands/sequence.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "executor/tuptable.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/primnodes.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "feedpub.h"

PG_FUNCTION_INFO_V1(feed_check);
PG_FUNCTION_INFO_V1(feed_repair);
PG_FUNCTION_INFO_V1(feedpub_begin_history);

/* of how many entries the largest position is taken to be the newest */
#define NEWEST_ENTRIES	1000

/* what the checks below look at */
typedef struct GuardContext
{
	Relation	rel;
	char	   *table;			/* its name, as in SQL */
	bool		is_table;		/* a table feed, not an outbox */
	bool		catalogs_only;	/* no look at rows and index entries */
	FeedpubBatch last;			/* its last batch */
	AttrNumber	xid_attno;
	AttrNumber	pos_attno;
	Oid			seqid;
	List	   *problems;
} GuardContext;

static void find_problems(GuardContext *cxt);
static void check_table(GuardContext *cxt);
static void check_column(GuardContext *cxt, AttrNumber attno, Oid type,
						 const char *name);
static void check_index(GuardContext *cxt);
static bool has_invalid_index(Relation rel);
static void check_sequence(GuardContext *cxt);
static void check_default(GuardContext *cxt);
static void check_triggers(GuardContext *cxt);
static void check_trigger(GuardContext *cxt, const char *name,
						  const char *function, int16 type,
						  const char *event, const char *each,
						  const char *what);
static void check_later_triggers(GuardContext *cxt);
static char *next_index(Relation rel);
static void check_partitions(GuardContext *cxt);
static void check_clone(GuardContext *cxt, const char *function, int16 timing,
						const char *what);
static void check_before_truncate(GuardContext *cxt);
static void check_key(GuardContext *cxt);
static void check_failed_rows(GuardContext *cxt);
static void check_history(GuardContext *cxt);
static char *republish_cure(GuardContext *cxt, const char *unstamped_only);
static List *tables_of(GuardContext *cxt);
static int64 largest_pos(GuardContext *cxt, int64 nentries);
static int64 largest_in_index(Relation rel, Oid indexid, int64 nentries);

/*
 * Add a problem.  cure is NULL where only the owner can decide what to do.
 */
static FeedpubProblem *
add_problem(GuardContext *cxt, const char *guard, char *problem, char *cure)
{
	FeedpubProblem *p = palloc0_object(FeedpubProblem);

	p->guard = guard;
	p->problem = problem;
	p->cure = cure;
	cxt->problems = lappend(cxt->problems, p);
	return p;
}

static bool
is_partitioned(const GuardContext *cxt)
{
	return cxt->rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE;
}

/*
 * All that is wrong with a feed, a List of FeedpubProblem, in the order in
 * which the cures can be run.
 */
List *
feedpub_guard_problems(Oid relid)
{
	GuardContext cxt = {0};

	cxt.rel = relation_open(relid, AccessShareLock);
	if (feedpub_registry_is_registered(relid))
	{
		/* the newest: a cure may just have been run */
		Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());

		feedpub_batch_last(relid, PG_INT64_MAX, snapshot, &cxt.last);
		UnregisterSnapshot(snapshot);
	}

	find_problems(&cxt);
	relation_close(cxt.rel, NoLock);
	return cxt.problems;
}

/*
 * The same in a word or two, from the catalogs alone, for whoever lists many
 * feeds: "ready", or what is wrong.
 */
const char *
feedpub_guard_state(Relation rel)
{
	GuardContext cxt = {0};
	FeedpubProblem *first;

	cxt.rel = rel;
	cxt.catalogs_only = true;
	find_problems(&cxt);
	if (cxt.problems == NIL)
		return "ready";
	if (cxt.xid_attno == InvalidAttrNumber || cxt.pos_attno == InvalidAttrNumber)
		return "no columns";
	if (!feedpub_guard_has_indexes(rel))
		return has_invalid_index(rel) ? "invalid index" : "no index";
	first = linitial(cxt.problems);
	return strcmp(first->guard, "key") == 0 ? "no key" : "unguarded";
}

/*
 * A relation's name as an argument that no other function can take.
 */
static char *
regclass_literal(const char *name)
{
	return psprintf("%s::pg_catalog.regclass", quote_literal_cstr(name));
}

static void
find_problems(GuardContext *cxt)
{
	Oid			relid = RelationGetRelid(cxt->rel);

	cxt->table = feedpub_relation_name(relid);
	cxt->xid_attno = get_attnum(relid, FEEDPUB_XID_COLUMN);
	cxt->pos_attno = get_attnum(relid, FEEDPUB_POS_COLUMN);
	cxt->seqid = feedpub_guard_sequence(relid);
	cxt->is_table = feedpub_registry_is_registered(relid) ?
		feedpub_registry_is_table(relid) :
		feedpub_guard_has_trigger(cxt->rel, "_stamp_row");

	check_table(cxt);
	check_column(cxt, cxt->xid_attno, XID8OID, FEEDPUB_XID_COLUMN);
	check_column(cxt, cxt->pos_attno, INT8OID, FEEDPUB_POS_COLUMN);

	/* without the columns there is nothing more to look at */
	if (cxt->xid_attno == InvalidAttrNumber || cxt->pos_attno == InvalidAttrNumber)
		return;
	check_index(cxt);
	check_sequence(cxt);
	if (!cxt->is_table)
		check_default(cxt);
	check_triggers(cxt);
	check_partitions(cxt);
	if (cxt->is_table)
		check_key(cxt);
	if (!cxt->catalogs_only)
		check_failed_rows(cxt);
	if (!cxt->catalogs_only)
		check_history(cxt);
}

/*
 * Run the cures of all that is wrong with a feed, for a caller who owns
 * it.  Returns how many were run.  A cure may uncover the next problem (a
 * default needs the sequence first), so we look again until nothing changes.
 */
int
feedpub_guard_repair(Oid relid)
{
	int			ncured = 0;

	for (int round = 0; round < 20; round++)
	{
		ListCell   *lc;
		bool		cured = false;

		foreach(lc, feedpub_guard_problems(relid))
		{
			FeedpubProblem *p = lfirst(lc);

			if (p->cure == NULL || p->by_hand)
				continue;
			if (p->as_caller)
				feedpub_guard_run(p->cure);
			else
				feedpub_guard_run_as_owner(relid, p->cure);
			ncured++;
			cured = true;
			if (!p->apart)
				break;
		}
		if (!cured)
			break;
	}
	return ncured;
}

/*
 * Run one statement as the caller, DDL as a rule, and let what follows see it.
 */
void
feedpub_guard_run(const char *sql)
{
	int			rc;

	SPI_connect();
	rc = SPI_execute(sql, false, 0);
	if (rc < 0)
		elog(ERROR, "could not run \"%s\": %s", sql,
			 SPI_result_code_string(rc));
	SPI_finish();
	CommandCounterIncrement();
}

/*
 * The same as the owner of a table, who need not be the caller: ALTER TABLE and
 * CREATE TRIGGER run what is constant in checks and partition keys.  Not for
 * what makes a relation, since the caller's rights on the schema count there;
 * and CREATE INDEX becomes the owner by itself.
 */
void
feedpub_guard_run_as_owner(Oid relid, const char *sql)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Oid			owner;
	FeedpubRole caller;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for relation %u", relid);
	owner = ((Form_pg_class) GETSTRUCT(tuple))->relowner;
	ReleaseSysCache(tuple);
	if (owner == GetUserId())
	{
		feedpub_guard_run(sql);
		return;
	}
	feedpub_role_begin_owner(owner, &caller);
	feedpub_guard_run(sql);
	feedpub_role_end(&caller);
}

/*
 * The sequence that a table's feed_pos owns, or InvalidOid.
 */
Oid
feedpub_guard_sequence(Oid relid)
{
	AttrNumber	pos_attno = get_attnum(relid, FEEDPUB_POS_COLUMN);
	ListCell   *lc;

	if (pos_attno == InvalidAttrNumber)
		return InvalidOid;
	foreach(lc, getOwnedSequences(relid))
	{
		Oid			owner;
		int32		attno;

		if (sequenceIsOwned(lfirst_oid(lc), DEPENDENCY_AUTO, &owner, &attno) &&
			attno == pos_attno)
			return lfirst_oid(lc);
	}
	return InvalidOid;
}

/*
 * The index that serves (feed_xid, feed_pos) > cursor in order, or
 * InvalidOid: a valid btree of just these columns and their right types (a
 * scan of ours takes them on trust), ascending, and without other rows left
 * out than those that have no stamp.
 */
Oid
feedpub_guard_index(Relation rel)
{
	ListCell   *lc;

	foreach(lc, RelationGetIndexList(rel))
	{
		if (feedpub_guard_is_index(rel, lfirst_oid(lc), true))
			return lfirst_oid(lc);
	}
	return InvalidOid;
}

/*
 * Does a feed's table have it, and each of its partitions?  The server takes an
 * index of a partition for one if it finds the predicates equal after it has
 * run what is constant in them; we do not.
 */
bool
feedpub_guard_has_indexes(Relation rel)
{
	bool		found = OidIsValid(feedpub_guard_index(rel));
	ListCell   *lc;

	if (!found || rel->rd_rel->relkind != RELKIND_PARTITIONED_TABLE)
		return found;
	foreach(lc, feedpub_partition_list(rel, false))
	{
		Relation	leaf = try_relation_open(lfirst_oid(lc), AccessShareLock);

		CHECK_FOR_INTERRUPTS();
		if (leaf == NULL)
			continue;
		found = found && OidIsValid(feedpub_guard_index(leaf));
		relation_close(leaf, AccessShareLock);
	}
	return found;
}

/*
 * Is an index of the table such a one, valid or perhaps not yet?
 */
bool
feedpub_guard_is_index(Relation rel, Oid indexid, bool valid)
{
	AttrNumber	xid_attno = get_attnum(RelationGetRelid(rel), FEEDPUB_XID_COLUMN);
	AttrNumber	pos_attno = get_attnum(RelationGetRelid(rel), FEEDPUB_POS_COLUMN);
	Relation	index = index_open(indexid, AccessShareLock);
	Form_pg_index form = index->rd_index;
	bool		result = index->rd_rel->relam == BTREE_AM_OID &&
		((form->indisvalid && form->indisready) || !valid) && form->indislive &&
		form->indnkeyatts == 2 &&
		index->rd_opcintype[0] == XID8OID &&
		index->rd_opcintype[1] == INT8OID &&
		form->indkey.values[0] == xid_attno &&
		form->indkey.values[1] == pos_attno &&
		index->rd_indoption[0] == 0 && index->rd_indoption[1] == 0 &&
		(heap_attisnull(index->rd_indextuple, Anum_pg_index_indpred, NULL) ||
				feedpub_catalog_is_stamped_predicate(rel, index));

	index_close(index, AccessShareLock);
	return result;
}

/*
 * Do a table's first columns make the row type of the default feed?
 */
bool
feedpub_guard_has_default_row_type(Relation rel)
{
	static const struct
	{
		const char *name;
		Oid			type;
	} columns[FEEDPUB_OUTBOX_COLUMNS] = {
		{FEEDPUB_XID_COLUMN, XID8OID},
		{FEEDPUB_POS_COLUMN, INT8OID},
		{"publication_id", TEXTOID},
		{"message_id", TEXTOID},
		{"message_type", TEXTOID},
		{"message_key", TEXTOID},
		{"data", JSONBOID},
		{"scheduled", TIMESTAMPTZOID},
	};
	TupleDesc	desc = RelationGetDescr(rel);

	if (desc->natts < FEEDPUB_OUTBOX_COLUMNS)
		return false;
	for (int i = 0; i < FEEDPUB_OUTBOX_COLUMNS; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (att->attisdropped || att->atttypid != columns[i].type ||
			strcmp(NameStr(att->attname), columns[i].name) != 0)
			return false;
	}
	return true;
}

/*
 * The last position that a sequence has given out, 0 if none.  Reads the
 * sequence as itself: whoever gets here need have no right on it.
 */
int64
feedpub_guard_last_pos(Oid seqid)
{
	Relation	seq = relation_open(seqid, AccessShareLock);
	TableScanDesc scan;
	HeapTuple	tuple;
	int64		last = 0;

	scan = table_beginscan(seq, SnapshotAny, 0, NULL);
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

/* An unlogged feed loses its rows in a crash, and keeps its consumers. */
static void
check_table(GuardContext *cxt)
{
	if (cxt->rel->rd_rel->relpersistence == RELPERSISTENCE_UNLOGGED)
		add_problem(cxt, "persistence",
					pstrdup("the table is unlogged, so a crash empties it"),
					psprintf("ALTER TABLE %s SET LOGGED", cxt->table));
	if (cxt->rel->rd_rel->relispartition ||
		has_superclass(RelationGetRelid(cxt->rel)))
		add_problem(cxt, "inheritance",
					pstrdup("the table is a partition or a child of another, and statements on that reach its rows"),
					NULL);
	if (!is_partitioned(cxt) &&
		find_inheritance_children(RelationGetRelid(cxt->rel), NoLock) != NIL)
		add_problem(cxt, "inheritance",
					pstrdup("the table has children, whose rows are not part of the feed"),
					NULL);
}

static void
check_column(GuardContext *cxt, AttrNumber attno, Oid type, const char *name)
{
	Form_pg_attribute att;

	if (attno == InvalidAttrNumber)
	{
		/* a stamp of which half is lost is not put back: rows have the other */
		bool		both = cxt->xid_attno == InvalidAttrNumber &&
			cxt->pos_attno == InvalidAttrNumber && cxt->last.sync_id == 0;

		if (!cxt->is_table || !both)
			add_problem(cxt, "columns",
						psprintf(cxt->is_table ?
									 "column %s is missing: detach the table and attach it again" :
									 "column %s is missing",
								 name),
						NULL);
		else if (type == XID8OID)
			add_problem(cxt, "columns", pstrdup("the columns of the stamp are missing"),
						psprintf("ALTER TABLE %s ADD COLUMN %s pg_catalog.xid8, ADD COLUMN %s pg_catalog.int8",
								 cxt->table, FEEDPUB_XID_COLUMN, FEEDPUB_POS_COLUMN));
		return;
	}
	att = TupleDescAttr(RelationGetDescr(cxt->rel), attno - 1);
	if (att->atttypid != type)
		add_problem(cxt, "columns",
					psprintf("column %s is of type %s instead of %s", name,
							 format_type_be(att->atttypid), format_type_be(type)),
					NULL);
	else if (!att->attnotnull && !cxt->is_table)
		add_problem(cxt, "columns",
					psprintf("column %s may be null", name),
					psprintf("ALTER TABLE %s ALTER COLUMN %s SET NOT NULL",
							 cxt->table, name));
}

static void
check_index(GuardContext *cxt)
{
	bool		has_pkey;
	char	   *problem;

	if (OidIsValid(feedpub_guard_index(cxt->rel)))
		return;
	problem = psprintf("there is no valid index on (%s, %s)",
					   FEEDPUB_XID_COLUMN, FEEDPUB_POS_COLUMN);
	if (cxt->is_table)
	{
		/* its owner decides when: it reads the whole table */
		add_problem(cxt, "index", problem, next_index(cxt->rel))->by_hand = true;
		return;
	}
	/* the look-up above has loaded the list of indexes */
	has_pkey = OidIsValid(feedpub_primary_key_index(cxt->rel));
	add_problem(cxt, "index", problem,
				psprintf("ALTER TABLE %s ADD %s (%s, %s)", cxt->table,
						 has_pkey ? "UNIQUE" : "PRIMARY KEY",
						 FEEDPUB_XID_COLUMN, FEEDPUB_POS_COLUMN));
}

/*
 * The statement that makes a table feed's index; of a partitioned one that of
 * the first partition that has none.  feed_attach() knows how to go on.
 */
static char *
next_index(Relation rel)
{
	char	   *cure = NULL;
	ListCell   *lc;

	if (rel->rd_rel->relkind != RELKIND_PARTITIONED_TABLE)
		return feedpub_guard_index_cure(rel, true);
	foreach(lc, feedpub_partition_list(rel, false))
	{
		Relation	leaf = try_relation_open(lfirst_oid(lc), AccessShareLock);

		if (leaf == NULL)
			continue;
		if (cure == NULL && !OidIsValid(feedpub_guard_index(leaf)))
			cure = feedpub_guard_index_cure(leaf, true);
		relation_close(leaf, AccessShareLock);
	}
	return cure;
}

/*
 * Is it an index of this table on the stamp, valid or not?
 */
static bool
is_index_on_stamp(Relation rel, Oid indexid)
{
	Relation	index;
	bool		result;

	if (!list_member_oid(RelationGetIndexList(rel), indexid))
		return false;
	index = index_open(indexid, AccessShareLock);
	result = index->rd_index->indnkeyatts == 2 &&
		index->rd_index->indkey.values[0] == get_attnum(RelationGetRelid(rel), FEEDPUB_XID_COLUMN) &&
		index->rd_index->indkey.values[1] == get_attnum(RelationGetRelid(rel), FEEDPUB_POS_COLUMN) &&
		(heap_attisnull(index->rd_indextuple, Anum_pg_index_indpred, NULL) ||
		 feedpub_catalog_is_stamped_predicate(rel, index));
	index_close(index, AccessShareLock);
	return result;
}

/*
 * Is there an index on the stamp that is not valid: one that is being made,
 * or whose making failed?
 */
static bool
has_invalid_index(Relation rel)
{
	ListCell   *lc;

	foreach(lc, RelationGetIndexList(rel))
	{
		if (!get_index_isvalid(lfirst_oid(lc)) &&
			is_index_on_stamp(rel, lfirst_oid(lc)))
			return true;
	}
	return false;
}

/*
 * The statement that makes a table feed's index: of the stamped rows only, so
 * that it is empty at first.  One that was left invalid by a failed attempt
 * is built again.  That of a partitioned table is not valid before each of its
 * partitions has its own, which is attached to it (attach.c).
 */
char *
feedpub_guard_index_cure(Relation rel, bool concurrently)
{
	char	   *name = makeObjectName(RelationGetRelationName(rel), "feed", "idx");
	Oid			namespaceid = RelationGetNamespace(rel);
	Oid			present = get_relname_relid(name, namespaceid);
	const char *option = concurrently ? " CONCURRENTLY" : "";

	if (OidIsValid(present) && is_index_on_stamp(rel, present))
		return psprintf("REINDEX INDEX%s %s", option, feedpub_relation_name(present));
	if (OidIsValid(present))
		name = ChooseRelationName(RelationGetRelationName(rel), "feed", "idx",
								  namespaceid, false);
	return psprintf("CREATE INDEX%s %s ON %s%s (%s, %s) WHERE %s IS NOT NULL",
					option, quote_identifier(name),
					rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE ? "ONLY " : "",
					feedpub_relation_name(RelationGetRelid(rel)),
					FEEDPUB_XID_COLUMN, FEEDPUB_POS_COLUMN, FEEDPUB_XID_COLUMN);
}

/*
 * The sequence: there, durable, and one that never gives out a number that is
 * smaller than one before.
 */
static void
check_sequence(GuardContext *cxt)
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
		char	   *cure = psprintf("CREATE SEQUENCE %s START WITH " INT64_FORMAT " CACHE 1 NO CYCLE",
									quoted, largest_pos(cxt, PG_INT64_MAX) + 1);
		Oid			owner = cxt->rel->rd_rel->relowner;

		/* a column's sequence must be its table's owner's */
		if (owner != GetUserId())
			cure = psprintf("%s; ALTER SEQUENCE %s OWNER TO %s; ALTER SEQUENCE %s",
							cure, quoted, quote_identifier(GetUserNameFromId(owner, false)), quoted);
		add_problem(cxt, "sequence",
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
	if (form->seqcache != 1)
		add_problem(cxt, "sequence",
					psprintf("sequence %s has CACHE " INT64_FORMAT ", so positions lose their order",
							 name, form->seqcache),
					psprintf("ALTER SEQUENCE %s CACHE 1", name));
	if (form->seqcycle)
		add_problem(cxt, "sequence",
					psprintf("sequence %s may start again after its last value", name),
					psprintf("ALTER SEQUENCE %s NO CYCLE", name));
	if (form->seqincrement != 1)
		add_problem(cxt, "sequence",
					psprintf("sequence %s counts by " INT64_FORMAT, name,
							 form->seqincrement),
					psprintf("ALTER SEQUENCE %s INCREMENT BY 1", name));
	if (form->seqmin < 1)
		add_problem(cxt, "sequence",
					psprintf("sequence %s may begin at " INT64_FORMAT ", but positions are positive",
							 name, form->seqmin),
					psprintf("ALTER SEQUENCE %s NO MINVALUE", name));
	if (form->seqtypid != INT8OID || form->seqmax != PG_INT64_MAX)
		add_problem(cxt, "sequence",
					psprintf("sequence %s ends at " INT64_FORMAT, name, form->seqmax),
					psprintf("ALTER SEQUENCE %s AS bigint NO MAXVALUE", name));
	ReleaseSysCache(tuple);

	if (get_rel_persistence(cxt->seqid) == RELPERSISTENCE_UNLOGGED)
		add_problem(cxt, "sequence",
					psprintf("sequence %s is unlogged, so a crash restarts it", name),
					psprintf("ALTER SEQUENCE %s SET LOGGED", name));

	/*
	 * Restarted?  The newest entries of the index tell, all of them what the
	 * cure must be.  They are read before the sequence: whoever writes in
	 * between can only raise it.
	 */
	newest = largest_pos(cxt, NEWEST_ENTRIES);
	if (newest > feedpub_guard_last_pos(cxt->seqid))
		add_problem(cxt, "sequence",
					psprintf("sequence %s was set back: position " INT64_FORMAT " has been given out",
							 name, newest),
					psprintf("SELECT pg_catalog.setval(%s, " INT64_FORMAT "::pg_catalog.int8)",
							 regclass_literal(name), largest_pos(cxt, PG_INT64_MAX)));
}

/* Another default is the owner's choice, none breaks the writers. */
static void
check_default(GuardContext *cxt)
{
	AttrNumber	attno = get_attnum(RelationGetRelid(cxt->rel), "message_id");

	if (attno != InvalidAttrNumber &&
		TupleDescAttr(RelationGetDescr(cxt->rel), attno - 1)->attnotnull &&
		!TupleDescAttr(RelationGetDescr(cxt->rel), attno - 1)->atthasdef)
		add_problem(cxt, "default",
					pstrdup("column message_id has no default"),
					psprintf("ALTER TABLE %s ALTER COLUMN message_id SET DEFAULT " FEEDPUB_SCHEMA "._message_id()",
							 cxt->table));
}

/*
 * The triggers: those that stamp, leave tombstones, refuse an UPDATE of an
 * outbox, and keep positions in order when there is a TRUNCATE.
 */
static void
check_triggers(GuardContext *cxt)
{
	int16		stamps = TRIGGER_TYPE_BEFORE | TRIGGER_TYPE_ROW | TRIGGER_TYPE_INSERT | TRIGGER_TYPE_UPDATE;
	FeedpubKey	key;
	Oid			keyid;
	bool		deletes;

	feedpub_registry_key(cxt->rel, &key, &keyid, &deletes);
	if (!cxt->is_table)
	{
		check_trigger(cxt, FEEDPUB_STAMP_TRIGGER, "_stamp_message", stamps,
					  "BEFORE INSERT OR UPDATE", "ROW", "stamps rows");
		check_trigger(cxt, FEEDPUB_GUARD_TRIGGER, "_stamp_message",
					  TRIGGER_TYPE_BEFORE | TRIGGER_TYPE_UPDATE,
					  "BEFORE UPDATE", "STATEMENT", "refuses an UPDATE");
	}
	else
		check_trigger(cxt, FEEDPUB_STAMP_TRIGGER, "_stamp_row", stamps,
					  "BEFORE INSERT OR UPDATE", "ROW", "stamps rows");
	check_later_triggers(cxt);
	if (cxt->is_table && deletes)
		check_trigger(cxt, FEEDPUB_DELETE_TRIGGER, "_note_delete",
					  TRIGGER_TYPE_AFTER | TRIGGER_TYPE_ROW | TRIGGER_TYPE_DELETE,
					  "AFTER DELETE", "ROW", "publishes deletes");
	check_trigger(cxt, FEEDPUB_TRUNCATE_TRIGGER, "_note_truncate",
				  TRIGGER_TYPE_BEFORE | TRIGGER_TYPE_TRUNCATE,
				  "BEFORE TRUNCATE", "STATEMENT",
				  cxt->is_table ? "publishes TRUNCATE" : "takes the position of a TRUNCATE");
	check_trigger(cxt, FEEDPUB_RESTART_TRIGGER, "_note_truncate",
				  TRIGGER_TYPE_AFTER | TRIGGER_TYPE_TRUNCATE,
				  "AFTER TRUNCATE", "STATEMENT",
				  "keeps TRUNCATE ... RESTART IDENTITY from setting positions back");
}

/*
 * The partitions: the clones of the row triggers, which fire as they were made
 * but may be disabled one by one, and the trigger for TRUNCATE of a single
 * partition, which the server does not clone.
 */
static void
check_partitions(GuardContext *cxt)
{
	FeedpubKey	key;
	Oid			keyid;
	bool		deletes;
	ListCell   *lc;

	if (!is_partitioned(cxt))
		return;
	feedpub_registry_key(cxt->rel, &key, &keyid, &deletes);
	foreach(lc, feedpub_partition_list(cxt->rel, false))
	{
		GuardContext part = *cxt;

		CHECK_FOR_INTERRUPTS();
		part.rel = try_relation_open(lfirst_oid(lc), AccessShareLock);
		if (part.rel == NULL)
			continue;
		part.table = feedpub_relation_name(lfirst_oid(lc));
		if (part.rel->rd_rel->relpersistence == RELPERSISTENCE_UNLOGGED)
			add_problem(&part, "persistence",
						psprintf("partition %s is unlogged, so a crash empties it", part.table),
						psprintf("ALTER TABLE %s SET LOGGED", part.table));
		if (OidIsValid(feedpub_guard_index(cxt->rel)) &&
			!OidIsValid(feedpub_guard_index(part.rel)))
			add_problem(&part, "index",
						psprintf("partition %s has another index on (%s, %s) than the feed's: detach it, drop that index and attach it again",
								 part.table, FEEDPUB_XID_COLUMN, FEEDPUB_POS_COLUMN),
						NULL);
		check_clone(&part, "_stamp_row", TRIGGER_TYPE_BEFORE, "stamps rows");
		check_later_triggers(&part);
		if (deletes)
		{
			check_clone(&part, "_note_delete", TRIGGER_TYPE_AFTER, "publishes deletes");

			/* as long as nobody has looked, later partitions have none */
			if (!part.catalogs_only)
				check_before_truncate(&part);
		}
		relation_close(part.rel, AccessShareLock);
		cxt->problems = part.problems;
	}
}

static void
check_clone(GuardContext *cxt, const char *function, int16 timing,
			const char *what)
{
	Oid			funcid = feedpub_registry_function(function, 0, NULL);
	TriggerDesc *triggers = cxt->rel->trigdesc;
	Trigger    *found = NULL;

	for (int i = 0; triggers != NULL && i < triggers->numtriggers; i++)
	{
		Trigger    *trigger = &triggers->triggers[i];

		if (trigger->tgfoid == funcid && trigger->tgisclone &&
			(trigger->tgtype & TRIGGER_TYPE_TIMING_MASK) == timing)
			found = trigger;
	}
	if (found == NULL)
		add_problem(cxt, "trigger",
					psprintf("partition %s has no trigger that %s", cxt->table, what),
					NULL);
	else if (found->tgenabled != TRIGGER_FIRES_ALWAYS)
		add_problem(cxt, "trigger",
					psprintf(found->tgenabled == TRIGGER_DISABLED ?
								 "the trigger of partition %s that %s is disabled" :
								 "the trigger of partition %s that %s does not fire for all replication roles",
							 cxt->table, what),
					psprintf("ALTER TABLE %s ENABLE ALWAYS TRIGGER %s",
							 cxt->table, quote_identifier(found->tgname)))
			->apart = true;
}

static void
check_before_truncate(GuardContext *cxt)
{
	Oid			funcid = feedpub_registry_function("_note_truncate", 0, NULL);
	TriggerDesc *triggers = cxt->rel->trigdesc;

	for (int i = 0; triggers != NULL && i < triggers->numtriggers; i++)
	{
		Trigger    *trigger = &triggers->triggers[i];

		if (trigger->tgfoid == funcid &&
			trigger->tgtype == (TRIGGER_TYPE_BEFORE | TRIGGER_TYPE_TRUNCATE) &&
			trigger->tgenabled == TRIGGER_FIRES_ALWAYS)
			return;
	}
	add_problem(cxt, "trigger",
				psprintf("partition %s has no trigger that publishes its TRUNCATE", cxt->table),
				psprintf("CREATE OR REPLACE TRIGGER %s BEFORE TRUNCATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION " FEEDPUB_SCHEMA "._note_truncate();"
						 " ALTER TABLE %s ENABLE ALWAYS TRIGGER %s",
						 FEEDPUB_TRUNCATE_TRIGGER, cxt->table,
						 cxt->table, FEEDPUB_TRUNCATE_TRIGGER))
		->apart = true;
}

static void
check_trigger(GuardContext *cxt, const char *name, const char *function,
			  int16 type, const char *event, const char *each,
			  const char *what)
{
	Oid			funcid = feedpub_registry_function(function, 0, NULL);
	TriggerDesc *triggers = cxt->rel->trigdesc;
	const char *consequence = strcmp(function, "_stamp_row") == 0 ?
		", so what is written is not published before feed_republish()" :
		"";

	for (int i = 0; triggers != NULL && i < triggers->numtriggers; i++)
	{
		Trigger    *trigger = &triggers->triggers[i];

		if (trigger->tgfoid != funcid || trigger->tgtype != type ||
			trigger->tgqual != NULL || trigger->tgnattr != 0)
			continue;
		if (trigger->tgenabled == TRIGGER_FIRES_ALWAYS)
			return;
		if (strcmp(trigger->tgname, name) == 0)
		{
			add_problem(cxt, "trigger",
						psprintf(trigger->tgenabled == TRIGGER_DISABLED ?
									 "the trigger that %s is disabled%s" :
									 "the trigger that %s does not fire for all replication roles%s",
								 what, consequence),
						psprintf("ALTER TABLE %s ENABLE ALWAYS TRIGGER %s",
								 cxt->table, name));
			return;
		}
	}
	add_problem(cxt, "trigger",
				psprintf("there is no trigger that %s%s", what, consequence),
				psprintf("CREATE OR REPLACE TRIGGER %s %s ON %s FOR EACH %s EXECUTE FUNCTION " FEEDPUB_SCHEMA ".%s()",
						 name, event, cxt->table, each, function));
}

/* What changes a row after it was stamped may change its key unseen, or the stamp. */
static void
check_later_triggers(GuardContext *cxt)
{
	Oid			funcid = feedpub_registry_function(cxt->is_table ? "_stamp_row" : "_stamp_message", 0, NULL);
	TriggerDesc *triggers = cxt->rel->trigdesc;
	bool		is_later = false;

	for (int i = 0; triggers != NULL && i < triggers->numtriggers; i++)
	{
		Trigger    *trigger = &triggers->triggers[i];

		if (!TRIGGER_FOR_ROW(trigger->tgtype) || !TRIGGER_FOR_BEFORE(trigger->tgtype))
			continue;
		if (trigger->tgfoid == funcid)
			is_later = true;
		else if (is_later && cxt->is_table && TRIGGER_FOR_UPDATE(trigger->tgtype))
			add_problem(cxt, "trigger",
						psprintf("trigger %s comes after the one that stamps: should it change the key, the old one is not published as deleted",
								 quote_identifier(trigger->tgname)),
						NULL);
		else if (is_later && TRIGGER_FOR_INSERT(trigger->tgtype))
			add_problem(cxt, "trigger",
						psprintf("trigger %s comes after the one that stamps: should it change the stamp, consumers may miss the row",
								 quote_identifier(trigger->tgname)),
						NULL);
	}
}

/* Deletes are published by the key. */
static void
check_key(GuardContext *cxt)
{
	FeedpubKey	key;
	Oid			keyid;
	bool		deletes;

	feedpub_registry_key(cxt->rel, &key, &keyid, &deletes);
	if (deletes && !OidIsValid(keyid))
		add_problem(cxt, "key",
					pstrdup("the table has lost the key by which deletes are published"),
					NULL);
	if (deletes && OidIsValid(keyid))
	{
		Relation	index = index_open(keyid, AccessShareLock);
		AttrNumber	attno;
		FeedpubInput input = feedpub_key_input(cxt->rel, index, &attno);

		if (input == FEEDPUB_INPUT_RUNS_CODE)
			add_problem(cxt, "key",
						psprintf("there is a domain inside the type of the key's column %s, whose checks are not run for readers: deletes cannot be read",
								 quote_identifier(get_attname(RelationGetRelid(cxt->rel), attno, false))),
						NULL);

		/*
		 * Consumers begin again then: that is its owner's decision.  Looked
		 * for where no lock is waited for, that of a type.
		 */
		if (input == FEEDPUB_INPUT_PLAIN && !cxt->catalogs_only &&
			feedpub_tombstone_some_unreadable(cxt->rel, index))
			add_problem(cxt, "key",
						pstrdup("rows were deleted whose keys are no values of the key's columns any more: feed_read() hands such deletes out with nulls"),
						psprintf("SELECT " FEEDPUB_SCHEMA "._begin_history(%s)",
								 regclass_literal(cxt->table)))
				->by_hand = true;
		index_close(index, AccessShareLock);
	}
}

/*
 * Does a table have a trigger that calls one of our functions?
 */
bool
feedpub_guard_has_trigger(Relation rel, const char *function)
{
	Oid			funcid = feedpub_registry_function(function, 0, NULL);

	for (int i = 0; rel->trigdesc != NULL && i < rel->trigdesc->numtriggers; i++)
	{
		if (rel->trigdesc->triggers[i].tgfoid == funcid)
			return true;
	}
	return false;
}

/* Rows that partitions came with, which the background has given up. */
static void
check_failed_rows(GuardContext *cxt)
{
	int64		nfailed = is_partitioned(cxt) ? feedpub_maintenance_failed(RelationGetRelid(cxt->rel)) : 0;

	if (nfailed > 0)
		add_problem(cxt, "rows",
					psprintf("rows that came with partitions could not be stamped when they were last tried: " INT64_FORMAT "; feed_republish() tries again, and " FEEDPUB_SCHEMA ".republishing tells the owner why",
							 nfailed),
					republish_cure(cxt, "true"))
			->by_hand = true;
}

/* In transactions of its own, so not feed_repair()'s. */
static char *
republish_cure(GuardContext *cxt, const char *unstamped_only)
{
	return psprintf("CALL %s.feed_republish(%s, %s)",
					quote_identifier(get_namespace_name(feedpub_registry_schema())),
					regclass_literal(cxt->table), unstamped_only);
}

/* Batches of another server, and rows, which are not ours to change. */
static void
check_history(GuardContext *cxt)
{
	FullTransactionId stamp;
	bool		found = false;

	if (feedpub_batch_is_foreign(&cxt->last))
		add_problem(cxt, "history",
					pstrdup("its batches were made by another server, or before this one was put back to an earlier state"),
					psprintf("SELECT " FEEDPUB_SCHEMA "._begin_history(%s)",
							 regclass_literal(cxt->table)));
	if (feedpub_guard_has_indexes(cxt->rel))
	{
		FeedpubFeed feed = {
			.relid = RelationGetRelid(cxt->rel),
			.indexid = feedpub_guard_index(cxt->rel),
			.is_partitioned = is_partitioned(cxt),
		};
		FeedpubLeaves *leaves = feedpub_partition_open(&feed, cxt->rel, GetActiveSnapshot(), false);

		found = feedpub_horizon_has_foreign(leaves, GetActiveSnapshot(), &stamp);
		feedpub_partition_close(leaves);
	}
	if (found)
		add_problem(cxt, "history",
					psprintf("a row is stamped with transaction id %llu, which this server has not assigned yet",
							 (unsigned long long) U64FromFullTransactionId(stamp)),
					cxt->is_table ? republish_cure(cxt, "false") : NULL)
			->by_hand = true;
}

/* The tables that the feed's rows are in. */
static List *
tables_of(GuardContext *cxt)
{
	if (is_partitioned(cxt))
		return feedpub_partition_list(cxt->rel, false);
	return list_make1_oid(RelationGetRelid(cxt->rel));
}

/*
 * The largest position that is known to have been given out: in a table feed
 * the last batch's and that of the tombstones, whose positions must not come
 * again; and among so many of the newest entries of each index,
 * whoever's they are and whether their rows live; 0 if there is none.  Only
 * the index is read: row security hides nothing from it.
 */
static int64
largest_pos(GuardContext *cxt, int64 nentries)
{
	int64		largest = cxt->is_table ? cxt->last.last_pos : 0;
	ListCell   *lc;

	if (cxt->catalogs_only)
		return 0;
	if (cxt->is_table && nentries == PG_INT64_MAX)
		largest = Max(largest, feedpub_tombstone_largest_pos(RelationGetRelid(cxt->rel)));
	foreach(lc, tables_of(cxt))
	{
		Relation	rel = try_relation_open(lfirst_oid(lc), AccessShareLock);
		Oid			indexid = rel != NULL ? feedpub_guard_index(rel) : InvalidOid;

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
	IndexScanDesc scan = feedpub_index_beginscan(rel, index, GetActiveSnapshot(), 0);
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

/*
 * Is it of a kind that a feed's table can be?  An outbox cannot be partitioned.
 */
static bool
was_feed(Oid relid)
{
	char		relkind = get_rel_relkind(relid);
	Relation	rel;
	bool		result;

	if (relkind != RELKIND_PARTITIONED_TABLE)
		return relkind == RELKIND_RELATION;
	rel = relation_open(relid, AccessShareLock);
	result = feedpub_guard_has_trigger(rel, "_stamp_row");
	relation_close(rel, AccessShareLock);
	return result;
}

/*
 * Is this a feed, or a table that was one and lost its registration (a
 * restore of the schema alone, DROP EXTENSION and a new one)?  Returns
 * whether it is registered; raises an error when it is neither.
 */
static bool
is_registered(Oid relid)
{
	FeedpubFeed feed;
	bool		registered = feedpub_registry_is_registered(relid);

	if (!registered &&
		(!was_feed(relid) ||
		 get_atttype(relid, get_attnum(relid, FEEDPUB_XID_COLUMN)) != XID8OID ||
		 get_atttype(relid, get_attnum(relid, FEEDPUB_POS_COLUMN)) != INT8OID))
		feedpub_registry_get(relid, &feed); /* says what it is not */
	return registered;
}

/*
 * feed_check(feed regclass)
 * returns TABLE (guard text, problem text, cure text)
 *
 * Tells whether everything that a feed rests on still stands: one row for
 * each thing that does not, none when all is well.  guard is persistence,
 * inheritance, columns, index, sequence, default, check, trigger, key, rows,
 * history or registration; cure is SQL that puts it right, which feed_repair() runs, or
 * NULL.  Needs SELECT on the table; takes ACCESS SHARE on it.  Errors: 42809
 * when it is no feed, 42501.
 */
Datum
feed_check(PG_FUNCTION_ARGS)
{
	Oid			relid = PG_GETARG_OID(0);
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	List	   *problems;
	ListCell   *lc;
	bool		registered;

	LockRelationOid(relid, AccessShareLock);
	registered = is_registered(relid);
	feedpub_require_select(relid);
	problems = feedpub_guard_problems(relid);
	if (!registered)
	{
		FeedpubProblem *p = palloc0_object(FeedpubProblem);

		p->guard = "registration";
		p->problem = "the table is not registered as a feed";
		p->cure = psprintf("SELECT %s.feed_repair(%s)",
						   quote_identifier(get_namespace_name(get_func_namespace(fcinfo->flinfo->fn_oid))),
						   regclass_literal(feedpub_relation_name(relid)));
		problems = lappend(problems, p);
	}

	InitMaterializedSRF(fcinfo, 0);
	foreach(lc, problems)
	{
		FeedpubProblem *p = lfirst(lc);
		Datum		values[3];
		bool		nulls[3] = {false, false, p->cure == NULL};

		values[0] = CStringGetTextDatum(p->guard);
		values[1] = CStringGetTextDatum(p->problem);
		values[2] = p->cure ? CStringGetTextDatum(p->cure) : (Datum) 0;
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/*
 * Does a table have the index of a table feed?
 */
static bool
has_partial_index(Relation rel)
{
	bool		found = false;
	ListCell   *lc;

	foreach(lc, RelationGetIndexList(rel))
	{
		Relation	index = index_open(lfirst_oid(lc), AccessShareLock);

		if (feedpub_catalog_is_stamped_predicate(rel, index))
			found = true;
		index_close(index, AccessShareLock);
	}
	return found;
}

/*
 * feed_repair(feed regclass) returns integer
 *
 * Puts back what feed_check() names and has a cure for, and registers the
 * table again where that was lost.  Returns how many things it put right.
 * Only the owner may.  Locks: those of the ALTER TABLE statements it runs,
 * up to ACCESS EXCLUSIVE on the table; none when nothing is wrong.  Errors:
 * 42809 when it is no feed, 42501, and whatever a cure raises.
 */
Datum
feed_repair(PG_FUNCTION_ARGS)
{
	Oid			relid = PG_GETARG_OID(0);
	int			ncured;

	LockRelationOid(relid, AccessShareLock);
	if (!is_registered(relid))
	{
		Relation	rel = relation_open(relid, AccessShareLock);
		bool		is_table = feedpub_guard_has_trigger(rel, "_stamp_row");
		bool		deletes = feedpub_guard_has_trigger(rel, "_note_delete");

		feedpub_require_owner(relid);
		if (!is_table && has_partial_index(rel))
			ereport(ERROR,
					(errcode(ERRCODE_WRONG_OBJECT_TYPE),
					 errmsg("\"%s\" is not a feed", get_rel_name(relid)),
					 errhint("If it was attached before the extension was dropped, drop columns %s and %s and attach it again.",
							 FEEDPUB_XID_COLUMN, FEEDPUB_POS_COLUMN)));
		feedpub_registry_add(relid, is_table ? "table" : "outbox", false);
		RelationGetIndexList(rel);
		if (is_table)
			feedpub_registry_set_key(rel, feedpub_primary_key_index(rel), deletes);
		relation_close(rel, NoLock);
		CommandCounterIncrement();
		ncured = 1;
	}
	else
	{
		feedpub_require_owner(relid);
		ncured = 0;
	}
	PG_RETURN_INT32(ncured + feedpub_guard_repair(relid));
}

/*
 * feedpub._begin_history(feed regclass) returns void
 *
 * Forgets the batches and tombstones of a feed, which came from another server,
 * or have keys that nobody can read: all its rows are published anew, and
 * cursors into the old batches are refused.  Only the owner may.  Waits for a
 * publisher.
 */
Datum
feedpub_begin_history(PG_FUNCTION_ARGS)
{
	Oid			relid = PG_GETARG_OID(0);
	FeedpubFeed feed;

	LockRelationOid(relid, AccessShareLock);
	if (!feedpub_registry_is_registered(relid))
		feedpub_registry_get(relid, &feed); /* says what it is not */
	feedpub_require_owner(relid);
	feedpub_batch_lock(relid, true);
	feedpub_registry_begin_history(relid);
	PG_RETURN_VOID();
}
