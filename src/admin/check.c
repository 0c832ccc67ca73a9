/*-------------------------------------------------------------------------
 * check.c
 *	  Whether a feed has all that it needs: feed_check().
 *
 * An outbox is an ordinary table of its owner's, who can undo all that
 * protects it.  Here each guard is looked at in the system catalogs, with a
 * sentence that names what is wrong and the SQL that repairs it.
 *
 * The checks are one list.  feed_check() goes through it and shows what is
 * wrong.  feed_repair() goes through it once and runs each cure as it comes:
 * their order is such that a cure needs only what those before it have made.
 * feed_create() makes a bare table and runs those same cures, so there is one
 * description of what a feed needs.
 *
 * What a feed does not need is not looked at: a sequence's options and its
 * value do not count (position.c), nor do other indexes, checks and defaults.
 *
 * All functions expect the caller to hold a lock on the table.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "catalog/namespace.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "commands/defrem.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "admin/check.h"

PG_FUNCTION_INFO_V1(feed_check);

/* the columns of the stamp */
static const struct
{
	const char *name;
	Oid			type;
} columns[2] = {{FEEDPUB_XID_COLUMN, XID8OID}, {FEEDPUB_POS_COLUMN, INT8OID}};

/*
 * If a table of a feed is unlogged, a crash removes its rows, and consumers do
 * not notice.  If its sequence is, a crash sets it back, and nothing tells
 * (position.c).
 */
static void
check_persistence(FeedpubCheck *cxt, Oid relid)
{
	char	   *name = feedpub_relation_name(relid);
	bool		is_sequence = get_rel_relkind(relid) == RELKIND_SEQUENCE;

	if (get_rel_persistence(relid) == RELPERSISTENCE_UNLOGGED)
		feedpub_check_add(cxt, "persistence",
						  psprintf("%s is unlogged, so a crash %s it", name, is_sequence ? "restarts" : "empties"),
						  psprintf("ALTER %s %s SET LOGGED", is_sequence ? "SEQUENCE" : "TABLE", name),
						  FEEDPUB_CURE_AS_OWNER);
}

static void
check_inheritance(FeedpubCheck *cxt)
{
	const char *problem = NULL;

	if (cxt->rel->rd_rel->relispartition || has_superclass(cxt->feed))
		problem = "the table is a partition or a child of another, and statements on that reach its rows";
	else if (!cxt->is_partitioned && find_inheritance_children(cxt->feed, NoLock) != NIL)
		problem = "the table has children, whose rows are not part of the feed";
	if (problem != NULL)
		feedpub_check_add(cxt, "inheritance", problem, NULL, FEEDPUB_CURE_BY_HAND);
}

/*
 * Jobs and cures that run as the table's owner need USAGE of its schema, and of
 * ours.
 */
static void
check_usage(FeedpubCheck *cxt)
{
	Oid			owner = cxt->rel->rd_rel->relowner;
	const Oid	schemas[] = {RelationGetNamespace(cxt->rel), get_namespace_oid(FEEDPUB_SCHEMA, false)};

	for (int i = 0; i < lengthof(schemas); i++)
	{
		const char *schema = quote_identifier(get_namespace_name(schemas[i]));
		const char *role = quote_identifier(GetUserNameFromId(owner, false));

		if (!DatumGetBool(DirectFunctionCall3(has_schema_privilege_id_id, ObjectIdGetDatum(owner),
											  ObjectIdGetDatum(schemas[i]), CStringGetTextDatum("USAGE"))))
			feedpub_check_add(cxt, "rights",
							  psprintf("the owner %s has no USAGE on schema %s, so rows are not stamped or removed in the background, and feed_repair() fails", role, schema),
							  psprintf("GRANT USAGE ON SCHEMA %s TO %s", schema, role), FEEDPUB_CURE_BY_HAND);
	}
}

/*
 * Check the columns of the stamp.  One that is lost is not restored: rows have
 * the other half, or consumers have cursors.  Returns whether they are right.
 */
static bool
check_columns(FeedpubCheck *cxt)
{
	bool		result = true;

	for (int i = 0; i < lengthof(columns); i++)
	{
		Oid			type = get_atttype(cxt->feed, get_attnum(cxt->feed, columns[i].name));
		const char *is = "missing";

		if (type == columns[i].type)
			continue;
		result = false;
		if (OidIsValid(type))
			is = psprintf("of type %s instead of %s", format_type_be(type), format_type_be(columns[i].type));
		feedpub_check_add(cxt, "columns",
						  psprintf("column %s is %s%s", columns[i].name, is,
								   cxt->is_table ? ": detach the table and attach it again" : ""),
						  NULL, FEEDPUB_CURE_BY_HAND);
	}
	return result;
}

/*
 * Check the sequence.  The owner of the table must own it.
 */
static void
check_sequence(FeedpubCheck *cxt)
{
	Oid			schema = RelationGetNamespace(cxt->rel);
	Oid			seqid = feedpub_relation_sequence(cxt->feed);
	char	   *name;

	if (OidIsValid(seqid))
	{
		check_persistence(cxt, seqid);
		return;
	}
	name = ChooseRelationName(RelationGetRelationName(cxt->rel), FEEDPUB_POS_COLUMN, "seq", schema, false);
	name = quote_qualified_identifier(get_namespace_name(schema), name);
	feedpub_check_add(cxt, "sequence",
					  "column " FEEDPUB_POS_COLUMN " has no sequence of its own",
					  psprintf("CREATE SEQUENCE %s; ALTER SEQUENCE %s OWNER TO %s; ALTER SEQUENCE %s OWNED BY %s." FEEDPUB_POS_COLUMN,
							   name, name, quote_identifier(GetUserNameFromId(cxt->rel->rd_rel->relowner, false)),
							   name, cxt->table),
					  FEEDPUB_CURE_AS_CALLER);
}

/*
 * Check the columns of an outbox that must not be null.  After DROP EXTENSION
 * ... CASCADE there is no trigger that fills them, and writers go on with the
 * defaults that the owner or we have chosen.  The owner may have made message_id
 * NOT NULL; if it is no text, writers have to give it anyhow.
 */
static void
check_outbox_columns(FeedpubCheck *cxt)
{
	static const char *const defaults[][2] = {
		{FEEDPUB_XID_COLUMN, FEEDPUB_XID_DEFAULT},
		{FEEDPUB_POS_COLUMN, FEEDPUB_POS_DEFAULT},
		{"message_id", FEEDPUB_ID_DEFAULT},
	};

	for (int i = 0; i < lengthof(defaults); i++)
	{
		const char *name = defaults[i][0];
		AttrNumber	attno = get_attnum(cxt->feed, name);
		Form_pg_attribute att;

		if (attno == InvalidAttrNumber)
			continue;
		att = TupleDescAttr(RelationGetDescr(cxt->rel), attno - 1);
		if (i < lengthof(columns) && !att->attnotnull)
			feedpub_check_add(cxt, "columns", psprintf("column %s may be null", name),
							  psprintf("ALTER TABLE %s ALTER COLUMN %s SET NOT NULL", cxt->table, name),
							  FEEDPUB_CURE_AS_OWNER);
		att = TupleDescAttr(RelationGetDescr(cxt->rel), attno - 1);
		if (att->attnotnull && !att->atthasdef &&
			(i < lengthof(columns) || att->atttypid == TEXTOID))
			feedpub_check_add(cxt, "default",
							  psprintf("column %s is NOT NULL and has no default, so writers would fail after DROP EXTENSION ... CASCADE", name),
							  psprintf("ALTER TABLE %s ALTER COLUMN %s SET DEFAULT %s", cxt->table, name, defaults[i][1]),
							  FEEDPUB_CURE_AS_OWNER);
	}
}

/*
 * Check the index.  The owner of a table feed decides when it is made: that
 * reads the whole table.  For a partitioned one feed_attach() returns a
 * statement for each partition.
 */
static void
check_index(FeedpubCheck *cxt)
{
	char	   *cure;

	if (OidIsValid(feedpub_relation_index(cxt->rel)))
		return;
	if (cxt->is_partitioned)
		cure = feedpub_check_call(cxt->feed, "SELECT", "feed_attach", "");
	else if (cxt->is_table)
		cure = feedpub_relation_index_cure(cxt->rel, true);
	else
		cure = psprintf("ALTER TABLE %s ADD %s (" FEEDPUB_XID_COLUMN ", " FEEDPUB_POS_COLUMN ")", cxt->table,
						OidIsValid(feedpub_key_primary(cxt->rel)) ? "UNIQUE" : "PRIMARY KEY");
	feedpub_check_add(cxt, "index", "there is no valid index on (" FEEDPUB_XID_COLUMN ", " FEEDPUB_POS_COLUMN ")",
					  cure, cxt->is_table ? FEEDPUB_CURE_BY_HAND : FEEDPUB_CURE_AS_OWNER);
}

/*
 * Check the partitions, with cxt->rel set to each of them in turn.
 */
static void
check_partitions(FeedpubCheck *cxt)
{
	Relation	feed = cxt->rel;
	ListCell   *lc;

	foreach(lc, feedpub_partition_list(feed, false))
	{
		CHECK_FOR_INTERRUPTS();
		cxt->rel = try_relation_open(lfirst_oid(lc), AccessShareLock);
		if (cxt->rel == NULL)
			continue;
		cxt->table = feedpub_relation_name(lfirst_oid(lc));
		check_persistence(cxt, lfirst_oid(lc));
		if (OidIsValid(feedpub_relation_index(feed)) &&
			!OidIsValid(feedpub_relation_index(cxt->rel)))
			feedpub_check_add(cxt, "index",
							  psprintf("partition %s has another index on its stamp than the feed: detach it, drop that index and attach it again", cxt->table),
							  NULL, FEEDPUB_CURE_BY_HAND);
		feedpub_check_triggers(cxt);
		relation_close(cxt->rel, AccessShareLock);
	}
	cxt->rel = feed;
	cxt->table = feedpub_relation_name(cxt->feed);
}

/*
 * Raise the sequence of an outbox to the largest position that is there: rows
 * may have been loaded with theirs while the trigger that stamps was off.  The
 * cures before have locked writers out.
 */
static void
raise_sequence(FeedpubCheck *cxt)
{
	Oid			seqid = feedpub_relation_sequence(cxt->feed);

	feedpub_role_run_as_owner(cxt->feed,
							  psprintf("SELECT pg_catalog.setval(%u::pg_catalog.oid, largest)"
									   " FROM (SELECT pg_catalog.max(" FEEDPUB_POS_COLUMN ") FROM %s) l (largest)"
									   " WHERE largest OPERATOR(pg_catalog.>) " INT64_FORMAT,
									   seqid, cxt->table, feedpub_relation_last_pos(seqid)));
}

/* Deletes are published by the key. */
static void
check_key(FeedpubCheck *cxt)
{
	Relation	index;
	AttrNumber	attno;

	if (!OidIsValid(cxt->keyid))
	{
		feedpub_check_add(cxt, "key",
						  "the table has lost the key by which deletes are published",
						  NULL, FEEDPUB_CURE_BY_HAND);
		return;
	}
	index = index_open(cxt->keyid, AccessShareLock);
	attno = feedpub_key_runs_code(cxt->rel, index);
	if (attno != 0)
		feedpub_check_add(cxt, "key",
						  psprintf("the type of the key's column %s can have a domain inside, whose checks are not run for readers: deletes cannot be read",
								   quote_identifier(get_attname(cxt->feed, attno, false))),
						  NULL, FEEDPUB_CURE_BY_HAND);
	index_close(index, AccessShareLock);
}

/*
 * Whether another history must begin: at most one problem, since one call cures
 * all of them.  Its owner decides when, if every row is written; and it needs
 * the index.
 */
static void
check_history(FeedpubCheck *cxt)
{
	bool		by_hand = !OidIsValid(feedpub_relation_index(cxt->rel));
	bool		has_key = !cxt->deletes || OidIsValid(cxt->keyid);
	const char *guard = "history";
	const char *problem = NULL;
	FullTransactionId stamp;
	FeedpubBatch last = {0};

	if (!cxt->catalogs_only)
		feedpub_batch_last(cxt->feed, PG_INT64_MAX, GetActiveSnapshot(), &last);
	if (feedpub_lost_exists(cxt->feed, SnapshotSelf))
	{
		problem = "rows may have been changed while the key, the sequence, a column of the stamp or a trigger was missing, so the feed cannot be read until another history begins";
		by_hand = by_hand || feedpub_registry_is_unstamped(cxt->feed);
	}
	else if (OidIsValid(cxt->keyid) &&
			 feedpub_mark_compare(cxt->rel, cxt->keyid, &cxt->key) == FEEDPUB_KEY_CHANGED)
	{
		guard = "key";
		problem = "ALTER TABLE has given a key column another type or other values, so the feed cannot be read until another history begins";
	}
	else if (!cxt->catalogs_only && feedpub_partition_has_indexes(cxt->rel) &&
			 feedpub_history_has_foreign(cxt->rel, &stamp))
	{
		problem = psprintf("a row is stamped with transaction id %llu, which this server has not assigned yet",
						   (unsigned long long) U64FromFullTransactionId(stamp));
		by_hand = true;
	}
	else if (feedpub_batch_is_foreign(&last))
		problem = "its batches were made by another server, or before this one was put back to an earlier state";
	if (problem != NULL)
		feedpub_check_add(cxt, guard, problem,
						  has_key ? feedpub_check_call(cxt->feed, "SELECT", "feed_begin_history", "") : NULL,
						  by_hand ? FEEDPUB_CURE_BY_HAND : FEEDPUB_CURE_SHOWN);
}

/*
 * Rows of an outbox that were written without the trigger have the default's
 * xid, and no reader gets them.  They become messages of the transaction that
 * repairs the feed, in the order of the table: the trigger is there by now, so
 * the UPDATE gives each a stamp and, if it has none, an id.
 */
static void
check_messages(FeedpubCheck *cxt)
{
	if (!OidIsValid(feedpub_relation_index(cxt->rel)) ||
		!feedpub_foreign_has_unstamped(cxt->rel))
		return;
	if (cxt->repairs)
	{
		LockRelationOid(cxt->feed, ExclusiveLock);
		feedpub_rows_check(cxt->rel, false);
		feedpub_rows_stamp_all(cxt->rel, "OPERATOR(pg_catalog.=) " FEEDPUB_XID_DEFAULT " ORDER BY t.ctid");
		cxt->nrepaired++;
	}
	else
		feedpub_check_add(cxt, "rows",
						  "messages were written without the trigger that stamps: no reader gets them before feed_repair()",
						  "", FEEDPUB_CURE_AS_OWNER);
}

/*
 * Rows that are not published to all.  To publish them needs transactions of
 * its own, so feed_repair() cannot do it.  Another history publishes those that
 * were written without a stamp, too: then readers are refused, and that is
 * said.
 */
static void
check_rows(FeedpubCheck *cxt)
{
	int64		nfailed = cxt->is_partitioned ? feedpub_job_failed_rows(cxt->feed) : 0;

	if (feedpub_registry_is_unstamped(cxt->feed) && !feedpub_lost_exists(cxt->feed, SnapshotSelf))
		feedpub_check_add(cxt, "rows",
						  "rows may have been written without the trigger that stamps: they are not published to all before feed_republish()",
						  feedpub_check_call(cxt->feed, "CALL", "feed_republish", ", false"),
						  FEEDPUB_CURE_BY_HAND);
	if (nfailed > 0)
		feedpub_check_add(cxt, "rows",
						  psprintf("rows that came with partitions could not be stamped when they were last tried: " INT64_FORMAT "; feed_republish() tries again, and " FEEDPUB_SCHEMA ".jobs tells the owner why",
								   nfailed),
						  feedpub_check_call(cxt->feed, "CALL", "feed_republish", ", true"),
						  FEEDPUB_CURE_BY_HAND);
}

/*
 * All checks.  Returns false if a column of the stamp is missing, or of another
 * type: then there is nothing more to look at.
 */
static bool
run_checks(FeedpubCheck *cxt)
{
	bool		is_changes;

	cxt->feed = RelationGetRelid(cxt->rel);
	cxt->table = feedpub_relation_name(cxt->feed);
	cxt->is_partitioned = cxt->rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE;
	cxt->is_table = feedpub_registry_key(cxt->rel, &cxt->key, &cxt->keyid, &cxt->deletes) ?
		feedpub_registry_is_table(cxt->feed) :
		OidIsValid(feedpub_relation_trigger(cxt->rel, "_stamp_row"));

	is_changes = feedpub_registry_kind(cxt->feed) == FEEDPUB_KIND_CHANGES;
	if (is_changes && !cxt->catalogs_only)
		feedpub_check_captures(cxt);
	check_persistence(cxt, cxt->feed);
	check_inheritance(cxt);
	if (!cxt->catalogs_only)
		check_usage(cxt);
	if (!check_columns(cxt))
		return false;
	check_sequence(cxt);
	if (!cxt->is_table)
		check_outbox_columns(cxt);
	check_index(cxt);
	if (is_changes)
		feedpub_check_changes(cxt);
	feedpub_check_triggers(cxt);
	if (cxt->is_partitioned)
		check_partitions(cxt);
	if (!cxt->is_table && cxt->arguments == NULL && cxt->nrepaired > 0)
		raise_sequence(cxt);
	if (cxt->deletes)
		check_key(cxt);
	check_history(cxt);
	if (!cxt->is_table && !cxt->catalogs_only)
		check_messages(cxt);
	if (cxt->is_table && !cxt->catalogs_only)
		check_rows(cxt);
	return true;
}

/*
 * Run the cures of all that is wrong with a feed, whose table the caller owns
 * and has closed.  arguments are those of the trigger that stamps if the feed is
 * just being made, else NULL.  Returns how many cures were run.
 */
int
feedpub_check_repair(Oid relid, const char *arguments)
{
	FeedpubCheck cxt = {.arguments = arguments, .repairs = true};

	cxt.rel = relation_open(relid, AccessShareLock);
	run_checks(&cxt);
	relation_close(cxt.rel, NoLock);
	return cxt.nrepaired;
}

/*
 * The state of a feed in a word or two, from the system catalogs only, for a
 * list of many feeds: "ready", or what is wrong.
 */
const char *
feedpub_check_state(Relation rel)
{
	FeedpubCheck cxt = {.rel = rel, .catalogs_only = true};

	if (!run_checks(&cxt))
		return "no columns";
	if (cxt.first == NULL)
		return "ready";
	if (!feedpub_partition_has_indexes(rel))
		return feedpub_relation_has_invalid_index(rel) ? "invalid index" : "no index";
	if (strcmp(cxt.first, "key") == 0)
		return cxt.has_cure ? "key changed" : "no key";
	return strcmp(cxt.first, "history") == 0 ? "lost changes" : "unguarded";
}

/*
 * Is this a feed, or a table that was one and lost its registration (by a
 * restore of the schema alone, or DROP EXTENSION and CREATE EXTENSION)?  What
 * is left of a table feed without its triggers is not one: it may have rows
 * that were written without a stamp.  It has a sequence, and feed_xid may be
 * null, which it may not in an outbox without triggers.  Returns whether it is
 * registered; raises an error if it is neither.
 */
bool
feedpub_check_is_registered(Oid relid)
{
	char		relkind = get_rel_relkind(relid);
	bool		was_feed = relkind == RELKIND_RELATION || relkind == RELKIND_PARTITIONED_TABLE;

	if (feedpub_registry_is_registered(relid))
		return true;
	for (int i = 0; i < 2; i++)
		was_feed = was_feed && get_atttype(relid, get_attnum(relid, columns[i].name)) == columns[i].type;
	if (was_feed)
	{
		Relation	rel = relation_open(relid, AccessShareLock);

		was_feed = OidIsValid(feedpub_relation_trigger(rel, "_stamp_row")) ||
			(relkind == RELKIND_RELATION &&
			 (OidIsValid(feedpub_relation_trigger(rel, "_stamp_message")) ||
			  !OidIsValid(feedpub_relation_sequence(relid)) ||
			  TupleDescAttr(RelationGetDescr(rel), get_attnum(relid, FEEDPUB_XID_COLUMN) - 1)->attnotnull));
		relation_close(rel, AccessShareLock);
	}
	if (!was_feed)
		(void) feedpub_registry_require(relid); /* raises the error */
	return false;
}

/*
 * feed_check(feed regclass) returns TABLE (guard text, problem text, cure
 * text), VOLATILE
 *
 * Tells whether a feed has all that it needs: one row for each thing that is
 * missing or wrong, none if all is well. guard is persistence, inheritance,
 * rights, columns, sequence, index, default, trigger, capture, key, history, rows or
 * registration. cure is SQL that repairs it, or NULL: feed_repair(), or what
 * the owner has to choose the time of.  Needs SELECT on the table; takes ACCESS
 * SHARE on it.  Errors: 42809 if it is no feed, 42501.
 */
Datum
feed_check(PG_FUNCTION_ARGS)
{
	FeedpubCheck cxt = {.result = (ReturnSetInfo *) fcinfo->resultinfo};

	feedpub_argument_check(fcinfo, 0, 1);
	LockRelationOid(PG_GETARG_OID(0), AccessShareLock);
	(void) feedpub_check_is_registered(PG_GETARG_OID(0));	/* raises errors */
	feedpub_require_select(PG_GETARG_OID(0));
	InitMaterializedSRF(fcinfo, 0);
	cxt.rel = relation_open(PG_GETARG_OID(0), NoLock);
	run_checks(&cxt);
	if (!feedpub_registry_is_registered(cxt.feed))
		feedpub_check_add(&cxt, "registration", "the table is not registered as a feed",
						  "", FEEDPUB_CURE_AS_CALLER);
	relation_close(cxt.rel, NoLock);
	return (Datum) 0;
}
