/*-------------------------------------------------------------------------
 * check.c
 *	  Whether a feed has all that it needs: feed_check().
 *
 * An outbox is an ordinary table of its owner's, who can undo all that
 * protects it.  Here each guard is looked at in the system catalogs, with a
 * sentence that names what is wrong and the SQL that repairs it.
 * feed_create() makes a bare table and runs those same cures, so there is one
 * description of what a feed needs.  feed_check() shows the problems,
 * feed_repair() runs the cures (repair.c).  check_sequence.c looks at the
 * sequence, check_trigger.c at the triggers and the partitions.
 *
 * All functions expect the caller to hold a lock on the table.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/tuplestore.h"

#include "admin/check.h"

PG_FUNCTION_INFO_V1(feed_check);

static void find_problems(FeedpubCheck *cxt);
static void check_table(FeedpubCheck *cxt);
static void check_column(FeedpubCheck *cxt, AttrNumber attno, Oid type,
						 const char *name);
static void check_index(FeedpubCheck *cxt);
static void check_default(FeedpubCheck *cxt);
static void check_unstamped(FeedpubCheck *cxt);
static char *next_index(Relation rel);
static bool has_lost_changes(FeedpubCheck *cxt);
static void check_key(FeedpubCheck *cxt);
static void check_failed_rows(FeedpubCheck *cxt);
static void check_history(FeedpubCheck *cxt);
static char *republish_cure(FeedpubCheck *cxt, const char *unstamped_only);
static char *history_cure(FeedpubCheck *cxt);

/*
 * All that is wrong with a feed, a List of FeedpubProblem, in the order in
 * which the cures can be run.
 */
List *
feedpub_check_problems(Oid relid)
{
	FeedpubCheck cxt = {0};

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
 * The same in a word or two, from the system catalogs only, for a list of many
 * feeds: "ready", or what is wrong.
 */
const char *
feedpub_check_state(Relation rel)
{
	FeedpubCheck cxt = {0};
	FeedpubProblem *first;

	cxt.rel = rel;
	cxt.catalogs_only = true;
	find_problems(&cxt);
	if (cxt.problems == NIL)
		return "ready";
	if (cxt.xid_attno == InvalidAttrNumber || cxt.pos_attno == InvalidAttrNumber)
		return "no columns";
	if (!feedpub_check_has_indexes(rel))
		return feedpub_relation_has_invalid_index(rel) ? "invalid index" : "no index";
	first = linitial(cxt.problems);
	if (strcmp(first->guard, "key") == 0)
		return first->cure == NULL ? "no key" : "key changed";
	if (strcmp(first->guard, "history") == 0)
		return "lost changes";
	return "unguarded";
}

/*
 * Does a feed's table have its index, and each of its partitions?  The server
 * runs what is constant in predicates before it compares them, so it may
 * attach a partition with an index that has another one.  Here nothing is run.
 */
bool
feedpub_check_has_indexes(Relation rel)
{
	bool		found = OidIsValid(feedpub_relation_index(rel));
	ListCell   *lc;

	if (!found || rel->rd_rel->relkind != RELKIND_PARTITIONED_TABLE)
		return found;
	foreach(lc, feedpub_partition_list(rel, false))
	{
		Relation	partition = try_relation_open(lfirst_oid(lc), AccessShareLock);

		CHECK_FOR_INTERRUPTS();
		if (partition == NULL)
			continue;
		found = found && OidIsValid(feedpub_relation_index(partition));
		relation_close(partition, AccessShareLock);
	}
	return found;
}

static void
find_problems(FeedpubCheck *cxt)
{
	Oid			relid = RelationGetRelid(cxt->rel);

	cxt->table = feedpub_relation_name(relid);
	cxt->xid_attno = get_attnum(relid, FEEDPUB_XID_COLUMN);
	cxt->pos_attno = get_attnum(relid, FEEDPUB_POS_COLUMN);
	cxt->seqid = feedpub_relation_sequence(relid);
	cxt->is_table = feedpub_registry_is_registered(relid) ?
		feedpub_registry_is_table(relid) :
		feedpub_relation_has_trigger(cxt->rel, "_stamp_row");

	check_table(cxt);
	check_column(cxt, cxt->xid_attno, XID8OID, FEEDPUB_XID_COLUMN);
	check_column(cxt, cxt->pos_attno, INT8OID, FEEDPUB_POS_COLUMN);

	/* without the columns there is nothing more to check */
	if (cxt->xid_attno == InvalidAttrNumber || cxt->pos_attno == InvalidAttrNumber)
		return;
	check_index(cxt);
	feedpub_check_sequence(cxt);
	if (!cxt->is_table)
		check_default(cxt);
	feedpub_check_triggers(cxt);
	feedpub_check_partitions(cxt);
	if (cxt->is_table)
		check_key(cxt);
	else if (!cxt->catalogs_only)
		check_unstamped(cxt);
	if (!cxt->catalogs_only)
		check_failed_rows(cxt);
	if (!cxt->catalogs_only)
		check_history(cxt);
}

/*
 * If a feed is unlogged, a crash removes its rows, and consumers do not
 * notice.
 */
static void
check_table(FeedpubCheck *cxt)
{
	if (cxt->rel->rd_rel->relpersistence == RELPERSISTENCE_UNLOGGED)
		feedpub_check_add(cxt, "persistence",
						  pstrdup("the table is unlogged, so a crash empties it"),
						  psprintf("ALTER TABLE %s SET LOGGED", cxt->table));
	if (cxt->rel->rd_rel->relispartition ||
		has_superclass(RelationGetRelid(cxt->rel)))
		feedpub_check_add(cxt, "inheritance",
						  pstrdup("the table is a partition or a child of another, and statements on that reach its rows"),
						  NULL);
	if (!feedpub_check_is_partitioned(cxt) &&
		find_inheritance_children(RelationGetRelid(cxt->rel), NoLock) != NIL)
		feedpub_check_add(cxt, "inheritance",
						  pstrdup("the table has children, whose rows are not part of the feed"),
						  NULL);
}

static void
check_column(FeedpubCheck *cxt, AttrNumber attno, Oid type, const char *name)
{
	Form_pg_attribute att;

	if (attno == InvalidAttrNumber)
	{
		/*
		 * if half of the stamp is lost, it is not restored: rows have the
		 * other half
		 */
		bool		both = cxt->xid_attno == InvalidAttrNumber &&
			cxt->pos_attno == InvalidAttrNumber && cxt->last.sync_id == 0;

		if (!cxt->is_table || !both)
			feedpub_check_add(cxt, "columns",
							  psprintf(cxt->is_table ?
										   "column %s is missing: detach the table and attach it again" :
										   "column %s is missing",
									   name),
							  NULL);
		else if (type == XID8OID)
			feedpub_check_add(cxt, "columns", pstrdup("the columns of the stamp are missing"),
							  psprintf("ALTER TABLE %s ADD COLUMN %s pg_catalog.xid8, ADD COLUMN %s pg_catalog.int8",
									   cxt->table, FEEDPUB_XID_COLUMN, FEEDPUB_POS_COLUMN));
		return;
	}
	att = TupleDescAttr(RelationGetDescr(cxt->rel), attno - 1);
	if (att->atttypid != type)
		feedpub_check_add(cxt, "columns",
						  psprintf("column %s is of type %s instead of %s", name,
								   format_type_be(att->atttypid), format_type_be(type)),
						  NULL);
	else if (!att->attnotnull && !cxt->is_table)
		feedpub_check_add(cxt, "columns",
						  psprintf("column %s may be null", name),
						  psprintf("ALTER TABLE %s ALTER COLUMN %s SET NOT NULL",
								   cxt->table, name));
}

static void
check_index(FeedpubCheck *cxt)
{
	bool		has_pkey;
	char	   *problem;

	if (OidIsValid(feedpub_relation_index(cxt->rel)))
		return;
	problem = psprintf("there is no valid index on (%s, %s)",
					   FEEDPUB_XID_COLUMN, FEEDPUB_POS_COLUMN);
	if (cxt->is_table)
	{
		/* its owner decides when: it reads the whole table */
		feedpub_check_add(cxt, "index", problem, next_index(cxt->rel))->by_hand = true;
		return;
	}
	has_pkey = OidIsValid(feedpub_key_primary(cxt->rel));
	feedpub_check_add(cxt, "index", problem,
					  psprintf("ALTER TABLE %s ADD %s (%s, %s)", cxt->table,
							   has_pkey ? "UNIQUE" : "PRIMARY KEY",
							   FEEDPUB_XID_COLUMN, FEEDPUB_POS_COLUMN));
}

/*
 * The statement that makes a table feed's index.  If the table is partitioned:
 * the index of the first partition without one; feed_attach() returns the next
 * statement.
 */
static char *
next_index(Relation rel)
{
	char	   *cure = NULL;
	ListCell   *lc;

	if (rel->rd_rel->relkind != RELKIND_PARTITIONED_TABLE)
		return feedpub_relation_index_cure(rel, true);
	foreach(lc, feedpub_partition_list(rel, false))
	{
		Relation	partition = try_relation_open(lfirst_oid(lc), AccessShareLock);

		if (partition == NULL)
			continue;
		if (cure == NULL && !OidIsValid(feedpub_relation_index(partition)))
			cure = feedpub_relation_index_cure(partition, true);
		relation_close(partition, AccessShareLock);
	}
	return cure;
}

/*
 * After DROP EXTENSION ... CASCADE there is no trigger that fills an outbox's
 * columns, and writers go on with what the owner or we have chosen.
 */
static void
check_default(FeedpubCheck *cxt)
{
	static const char *const defaults[][2] = {
		{FEEDPUB_XID_COLUMN, FEEDPUB_XID_DEFAULT},
		{FEEDPUB_POS_COLUMN, FEEDPUB_POS_DEFAULT},
		{"message_id", FEEDPUB_ID_DEFAULT},
	};

	for (int i = 0; i < lengthof(defaults); i++)
	{
		AttrNumber	attno = get_attnum(RelationGetRelid(cxt->rel), defaults[i][0]);

		if (attno != InvalidAttrNumber &&
			TupleDescAttr(RelationGetDescr(cxt->rel), attno - 1)->attnotnull &&
			!TupleDescAttr(RelationGetDescr(cxt->rel), attno - 1)->atthasdef)
			feedpub_check_add(cxt, "default",
							  psprintf("column %s is NOT NULL and has no default, so writers would fail after DROP EXTENSION ... CASCADE",
									   defaults[i][0]),
							  psprintf("ALTER TABLE %s ALTER COLUMN %s SET DEFAULT %s",
									   cxt->table, defaults[i][0], defaults[i][1]));
	}
}

/*
 * Rows of an outbox that were written without the trigger, which have the
 * default's xid.  No reader gets them.  They become messages of the transaction
 * that repairs the feed, in the order of the table.
 */
static void
check_unstamped(FeedpubCheck *cxt)
{
	Oid			indexid = feedpub_relation_index(cxt->rel);
	Relation	index;
	Snapshot	snapshot;

	if (!OidIsValid(indexid))
		return;
	index = index_open(indexid, AccessShareLock);
	snapshot = RegisterSnapshot(GetLatestSnapshot());	/* a cure may just have ended it */
	if (feedpub_foreign_has_unstamped(cxt->rel, index, snapshot))
		feedpub_check_add(cxt, "rows",
						  pstrdup("messages were written without the trigger that stamps: no reader gets them before feed_repair()"),
						  psprintf("SELECT %s.feed_repair(%s)",
								   quote_identifier(get_namespace_name(feedpub_relation_schema())),
								   feedpub_check_regclass(cxt->table)))
			->stamps = true;
	UnregisterSnapshot(snapshot);
	index_close(index, AccessShareLock);
}

/* Are there changes that could not be recorded?  A cure may just have ended it. */
static bool
has_lost_changes(FeedpubCheck *cxt)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	bool		found = feedpub_lost_exists(RelationGetRelid(cxt->rel), snapshot);

	UnregisterSnapshot(snapshot);
	return found;
}

/* Deletes are published by the key. */
static void
check_key(FeedpubCheck *cxt)
{
	FeedpubKey	key;
	Oid			keyid;
	bool		deletes;

	feedpub_registry_key(cxt->rel, &key, &keyid, &deletes);
	if (deletes && !OidIsValid(keyid))
		feedpub_check_add(cxt, "key",
						  pstrdup("the table has lost the key by which deletes are published"),
						  NULL);
	if (has_lost_changes(cxt))
		feedpub_check_add(cxt, "history",
						  pstrdup("rows were changed while the key, the sequence or a column of the stamp was missing, or a partition's trigger for TRUNCATE, so the feed cannot be read until another history begins"),
						  OidIsValid(keyid) || !deletes ? history_cure(cxt) : NULL)
			->by_hand = !OidIsValid(feedpub_relation_index(cxt->rel));	/* needed */
	else if (OidIsValid(keyid) && feedpub_mark_compare(cxt->rel, keyid, &key) == FEEDPUB_KEY_CHANGED)
		feedpub_check_add(cxt, "key",
						  pstrdup("ALTER TABLE has given a key column another type or other values, so the feed cannot be read until another history begins"),
						  history_cure(cxt))
			->by_hand = !OidIsValid(feedpub_relation_index(cxt->rel));
	if (deletes && OidIsValid(keyid))
	{
		Relation	index = index_open(keyid, AccessShareLock);
		AttrNumber	attno = feedpub_key_runs_code(cxt->rel, index);

		if (attno != 0)
			feedpub_check_add(cxt, "key",
							  psprintf("there is a domain inside the type of the key's column %s, whose checks are not run for readers: deletes cannot be read",
									   quote_identifier(get_attname(RelationGetRelid(cxt->rel), attno, false))),
							  NULL);
		index_close(index, AccessShareLock);
	}
}

/*
 * Rows that partitions came with, and that the background process could not
 * stamp.
 */
static void
check_failed_rows(FeedpubCheck *cxt)
{
	int64		nfailed = 0;

	if (cxt->is_table && feedpub_registry_is_unstamped(RelationGetRelid(cxt->rel)))
		feedpub_check_add(cxt, "rows",
						  pstrdup("rows may have been written without the trigger that stamps: they are not published to all before feed_republish()"),
						  republish_cure(cxt, "false"))
			->by_hand = true;
	nfailed = feedpub_check_is_partitioned(cxt) ? feedpub_stamping_failed(RelationGetRelid(cxt->rel)) : 0;

	if (nfailed > 0)
		feedpub_check_add(cxt, "rows",
						  psprintf("rows that came with partitions could not be stamped when they were last tried: " INT64_FORMAT "; feed_republish() tries again, and " FEEDPUB_SCHEMA ".republishing tells the owner why",
								   nfailed),
						  republish_cure(cxt, "true"))
			->by_hand = true;
}

/* It needs transactions of its own, so feed_repair() cannot run it. */
static char *
republish_cure(FeedpubCheck *cxt, const char *unstamped_only)
{
	return psprintf("CALL %s.feed_republish(%s, %s)",
					quote_identifier(get_namespace_name(feedpub_relation_schema())),
					feedpub_check_regclass(cxt->table), unstamped_only);
}

static char *
history_cure(FeedpubCheck *cxt)
{
	return psprintf("SELECT %s.feed_begin_history(%s)",
					quote_identifier(get_namespace_name(feedpub_relation_schema())),
					feedpub_check_regclass(cxt->table));
}

/* Rows of another server, or else batches. */
static void
check_history(FeedpubCheck *cxt)
{
	FullTransactionId stamp;
	bool		found = false;

	if (feedpub_check_has_indexes(cxt->rel))
	{
		FeedpubFeed feed = {
			.relid = RelationGetRelid(cxt->rel),
			.indexid = feedpub_relation_index(cxt->rel),
			.is_partitioned = feedpub_check_is_partitioned(cxt),
		};
		FeedpubPartitions *partitions = feedpub_partition_open(&feed, cxt->rel, GetActiveSnapshot(), false);

		found = feedpub_foreign_exists(partitions, GetActiveSnapshot(), &stamp);
		feedpub_partition_close(partitions);
	}

	/* its owner decides when: writers wait, and every row is written */
	if (found)
		feedpub_check_add(cxt, "history",
						  psprintf("a row is stamped with transaction id %llu, which this server has not assigned yet",
								   (unsigned long long) U64FromFullTransactionId(stamp)),
						  history_cure(cxt))
			->by_hand = true;
	else if (feedpub_batch_is_foreign(&cxt->last))
		feedpub_check_add(cxt, "history",
						  pstrdup("its batches were made by another server, or before this one was put back to an earlier state"),
						  history_cure(cxt));
}

/*
 * Can a relation of its kind be a feed's table?  An outbox cannot be
 * partitioned.
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
	result = feedpub_relation_has_trigger(rel, "_stamp_row");
	relation_close(rel, AccessShareLock);
	return result;
}

/*
 * Is this a feed, or a table that was one and lost its registration (by a
 * restore of the schema alone, or DROP EXTENSION and CREATE EXTENSION)?
 * Returns whether it is registered; raises an error if it is neither.
 */
bool
feedpub_check_is_registered(Oid relid)
{
	FeedpubFeed feed;
	bool		registered = feedpub_registry_is_registered(relid);

	if (!registered &&
		(!was_feed(relid) ||
		 get_atttype(relid, get_attnum(relid, FEEDPUB_XID_COLUMN)) != XID8OID ||
		 get_atttype(relid, get_attnum(relid, FEEDPUB_POS_COLUMN)) != INT8OID))
		feedpub_registry_get(relid, &feed); /* raises the error */
	return registered;
}

/*
 * feed_check(feed regclass) returns TABLE (guard text, problem text, cure
 * text), VOLATILE
 *
 * Tells whether a feed has all that it needs: one row for each thing that is
 * missing or wrong, none if all is well. guard is persistence, inheritance,
 * columns, index, sequence, default, trigger, key, rows, history or
 * registration. cure is SQL that repairs it, or NULL. feed_repair() runs the
 * cures, except those whose time the owner has to choose: the index of a table
 * feed, feed_republish(), and feed_begin_history() if rows are foreign.  Needs
 * SELECT on the table; takes ACCESS SHARE on it.  Errors: 42809 if it is no
 * feed, 42501.
 */
Datum
feed_check(PG_FUNCTION_ARGS)
{
	static const char *const names[] = {"feed"};
	Oid			relid;
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	List	   *problems;
	ListCell   *lc;
	bool		registered;

	feedpub_argument_check(fcinfo, lengthof(names), names);
	relid = PG_GETARG_OID(0);
	LockRelationOid(relid, AccessShareLock);
	registered = feedpub_check_is_registered(relid);
	feedpub_require_select(relid);
	problems = feedpub_check_problems(relid);
	if (!registered)
	{
		FeedpubProblem *p = palloc0_object(FeedpubProblem);

		p->guard = "registration";
		p->problem = "the table is not registered as a feed";
		p->cure = psprintf("SELECT %s.feed_repair(%s)",
						   quote_identifier(get_namespace_name(get_func_namespace(fcinfo->flinfo->fn_oid))),
						   feedpub_check_regclass(feedpub_relation_name(relid)));
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
