/*-------------------------------------------------------------------------
 *
 * republish.c
 *	  Publishing rows of a table feed again: one, some, or all of them.
 *
 * One row, by its key, and those that meet a condition are published at once,
 * by an UPDATE that the caller could have written himself, run as himself.
 * All rows are a matter for the background (background.c).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/relation.h"
#include "access/stratnum.h"
#include "catalog/pg_class.h"
#include "catalog/pg_operator.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "nodes/parsenodes.h"
#include "parser/parser.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "feedpub.h"

PG_FUNCTION_INFO_V1(feed_republish);
PG_FUNCTION_INFO_V1(feed_republish_cancel);

static void require_table_feed(Oid relid);
static int64 republish_key(Oid relid, Jsonb *key);
static int64 republish_condition(Oid relid, char *condition);
static void check_condition(const char *condition);
static void locate_in_condition(void *arg);
static const char *only(Oid relid);
static char *qualified_operator(Oid oprid);
static int64 update_rows(const char *sql, Jsonb *key);

/*
 * feed_republish(feed regclass, key jsonb DEFAULT NULL, condition text DEFAULT
 * NULL, rows text DEFAULT NULL)
 * returns bigint
 *
 * Publishes rows of a table feed again, whether they have changed or not: one
 * of these.
 *
 * key => '{"k": "fred"}': the row with that key, an object as feed_page()
 * writes it.  condition => 'v > 3': the rows for which that is true, one SQL
 * expression.  Both are done at once, by an UPDATE as the caller: with his
 * rights, under row security, with all triggers, waiting for whoever has
 * locked a row.  Returns how many rows it was.
 *
 * rows => 'all': all rows that have been written before; rows => 'unstamped':
 * those that have no stamp yet, being older than the feed, or written while
 * its trigger was disabled.  The worker does it in the background, as
 * feedpub.republishing shows; returns NULL.  No trigger of the user's fires.
 * Nothing happens but a NOTICE where it is under way already; where it is
 * done, it begins again.  For the table's owner.
 *
 * Errors: 42809 when it is no table feed; 22023 when none or several of those
 * are given, or the key is not one; 42601 when the condition is not one
 * expression; 55000 when the feed lacks its key or index, or in replication
 * role replica, which asks for no stamp; 0A000 when something of the user's is
 * computed from the stamp, and all rows are asked for; 42501; and whatever the
 * UPDATE raises.
 */
Datum
feed_republish(PG_FUNCTION_ARGS)
{
	Oid			relid;

	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("feed must not be null")));
	if (PG_ARGISNULL(1) + PG_ARGISNULL(2) + PG_ARGISNULL(3) != 2)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("one of key, condition and rows must be given"),
				 errhint("To publish all rows again, say rows => 'all'.")));
	relid = PG_GETARG_OID(0);
	LockRelationOid(relid, AccessShareLock);
	require_table_feed(relid);
	if (!PG_ARGISNULL(3))
	{
		feedpub_require_owner(relid);
		feedpub_background_ask(relid, text_to_cstring(PG_GETARG_TEXT_PP(3)));
		PG_RETURN_NULL();
	}
	if (SessionReplicationRole == SESSION_REPLICATION_ROLE_REPLICA)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("rows cannot be republished while session_replication_role is \"replica\"")));
	if (!PG_ARGISNULL(1))
		PG_RETURN_INT64(republish_key(relid, PG_GETARG_JSONB_P(1)));
	PG_RETURN_INT64(republish_condition(relid, text_to_cstring(PG_GETARG_TEXT_PP(2))));
}

static void
require_table_feed(Oid relid)
{
	FeedpubFeed feed;

	if (!feedpub_registry_is_registered(relid))
		feedpub_registry_get(relid, &feed); /* says what it is not */
	if (!feedpub_registry_is_table(relid))
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("feed \"%s\" is an outbox", get_rel_name(relid)),
				 errdetail("A message is published once.")));
}

/*
 * Publish the row with a key again.
 */
static int64
republish_key(Oid relid, Jsonb *key)
{
	Relation	rel = feedpub_registry_open(relid);
	TupleDesc	desc = RelationGetDescr(rel);
	StringInfoData sql;
	StringInfoData match;
	StringInfoData names;
	FeedpubKey	columns;
	Oid			keyid;
	bool		deletes;
	bool		complete = JB_ROOT_IS_OBJECT(key);
	Relation	index;

	feedpub_registry_key(rel, &columns, &keyid, &deletes);
	if (!OidIsValid(keyid))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("feed \"%s\" has no key", RelationGetRelationName(rel)),
				 errhint("Run feed_check() to see what is missing.")));
	index = index_open(keyid, AccessShareLock);
	initStringInfo(&sql);
	initStringInfo(&match);
	initStringInfo(&names);
	appendStringInfo(&sql, "UPDATE %s%s AS t SET %s = NULL FROM pg_catalog.jsonb_to_record($1) AS k (",
					 only(relid), feedpub_relation_name(relid), FEEDPUB_XID_COLUMN);
	for (int i = 0; i < index->rd_index->indnkeyatts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, index->rd_index->indkey.values[i] - 1);
		const char *name = quote_identifier(NameStr(att->attname));
		Oid			same = get_opfamily_member(index->rd_opfamily[i],
											   index->rd_opcintype[i],
											   index->rd_opcintype[i],
											   BTEqualStrategyNumber);
		JsonbValue	value;

		if (complete)
			complete = getKeyJsonValueFromContainer(&key->root, NameStr(att->attname),
													strlen(NameStr(att->attname)), &value) != NULL &&
				value.type != jbvNull;
		appendStringInfo(&sql, "%s%s %s", i > 0 ? ", " : "", name,
						 format_type_extended(att->atttypid, att->atttypmod,
											  FORMAT_TYPE_TYPEMOD_GIVEN | FORMAT_TYPE_FORCE_QUALIFY));
		appendStringInfo(&match, "%st.%s %s k.%s", i > 0 ? " AND " : "",
						 name, qualified_operator(same), name);
		appendStringInfo(&names, "%s\"%s\"", i > 0 ? ", " : "", NameStr(att->attname));
	}
	if (!complete || JB_ROOT_COUNT(key) != index->rd_index->indnkeyatts)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("not a key of feed \"%s\"", RelationGetRelationName(rel)),
				 errdetail("A key is a JSON object with these names: %s.", names.data)));
	appendStringInfo(&sql, ") WHERE %s", match.data);
	index_close(index, NoLock);
	relation_close(rel, NoLock);
	return update_rows(sql.data, key);
}

/* what inherits from a plain table is no part of its feed */
static const char *
only(Oid relid)
{
	return get_rel_relkind(relid) == RELKIND_PARTITIONED_TABLE ? "" : "ONLY ";
}

static char *
qualified_operator(Oid oprid)
{
	HeapTuple	tuple = SearchSysCache1(OPEROID, ObjectIdGetDatum(oprid));
	Form_pg_operator form;
	char	   *name;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for operator %u", oprid);
	form = (Form_pg_operator) GETSTRUCT(tuple);
	name = psprintf("OPERATOR(%s.%s)",
					quote_identifier(get_namespace_name(form->oprnamespace)),
					NameStr(form->oprname));
	ReleaseSysCache(tuple);
	return name;
}

/*
 * Publish the rows again for which a condition is true.  It was seen to be
 * one expression, complete in itself, so it stays one within parentheses; it
 * may end in a comment.
 */
static int64
republish_condition(Oid relid, char *condition)
{
	check_condition(condition);
	return update_rows(psprintf("UPDATE %s%s SET %s = NULL WHERE (%s\n)",
								only(relid), feedpub_relation_name(relid),
								FEEDPUB_XID_COLUMN, condition),
					   NULL);
}

/*
 * Refuse what is not one expression: more statements, clauses, a list.  The
 * parser is asked for what may stand behind SELECT; one value without a name
 * must be all that there is.
 */
static void
check_condition(const char *condition)
{
	ErrorContextCallback callback;
	List	   *parsed;
	SelectStmt *query;
	SelectStmt *plain = makeNode(SelectStmt);
	ResTarget  *target;

	callback.callback = locate_in_condition;
	callback.arg = unconstify(char *, condition);
	callback.previous = error_context_stack;
	error_context_stack = &callback;
	parsed = raw_parser(condition, RAW_PARSE_PLPGSQL_EXPR);
	error_context_stack = callback.previous;

	query = castNode(SelectStmt, linitial_node(RawStmt, parsed)->stmt);
	target = list_length(query->targetList) == 1 ?
		linitial_node(ResTarget, query->targetList) :
		NULL;

	/* all other clauses must be as in a statement that has none */
	plain->targetList = query->targetList;
	if (target == NULL || target->name != NULL || target->indirection != NIL ||
		!equal(query, plain))
		ereport(ERROR,
				(errcode(ERRCODE_SYNTAX_ERROR),
				 errmsg("condition must be one expression"),
				 errdetail("It is what stands behind WHERE.")));
}

/* an error's place is one in the condition, not in the caller's statement */
static void
locate_in_condition(void *arg)
{
	int			position = geterrposition();

	if (position > 0)
	{
		errposition(0);
		internalerrposition(position);
		internalerrquery((char *) arg);
	}
}

/*
 * Run the UPDATE as the caller.  Returns how many rows it published.
 */
static int64
update_rows(const char *sql, Jsonb *key)
{
	Oid			argtypes[1] = {JSONBOID};
	Datum		values[1] = {key ? JsonbPGetDatum(key) : (Datum) 0};
	int64		nrows;
	int			rc;

	SPI_connect();
	rc = SPI_execute_with_args(sql, key ? 1 : 0, argtypes, values, NULL, false, 0);
	if (rc < 0)
		elog(ERROR, "could not run \"%s\": %s", sql, SPI_result_code_string(rc));
	nrows = (int64) SPI_processed;
	SPI_finish();
	return nrows;
}

/*
 * feed_republish_cancel(feed regclass) returns boolean
 *
 * Ends the republication of all rows that is under way in the background: the
 * rows that have been published again stay so.  Returns whether there was one.
 * For the table's owner.  Errors: 42809 when it is no table feed, 42501.
 */
Datum
feed_republish_cancel(PG_FUNCTION_ARGS)
{
	Oid			relid = PG_GETARG_OID(0);

	require_table_feed(relid);
	feedpub_require_owner(relid);
	PG_RETURN_BOOL(feedpub_background_cancel(relid));
}
