/*-------------------------------------------------------------------------
 *
 * capture.c
 *	  Which tables are captured into change feeds: feed_capture(),
 *	  feed_uncapture().
 *
 * A capture is a row of feedpub._capture and two triggers of the table, which
 * write its changes into the feed (write/capture.c).
 *
 * The trigger of rows has as its argument what the row has in column trigger, the
 * name with which it was made.  Both are dumped.  It depends on the feed, so it
 * goes when that is dropped; a dump does not keep this, feed_repair() restores
 * it.  (A constraint trigger FROM the feed would keep it.  But its clones would
 * stay in partitions that are detached, which could not be attached again, and
 * to create a partition would need the right TRIGGER on the feed.)  Its name
 * sorts after those of foreign keys (RI_ConstraintTrigger_...) and before most
 * others, which is the order in which they fire.  The server clones it to each
 * partition, also to later ones.
 *
 * A table has one trigger for TRUNCATE, whatever number of feeds it is captured
 * into.  It goes with the table's last capture.  It is not cloned, so each
 * partition has one of its own.
 *
 * CREATE TRIGGER locks out writers until the transaction ends.  So a transaction
 * that has written into the table has ended before the capture begins, or is
 * captured whole.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/objectaddress.h"
#include "catalog/partition.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "commands/defrem.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "admin/admin.h"

#define ROW_TRIGGER			"RI_feedpub"
#define TRUNCATE_TRIGGER	"RI_feedpub_truncate"

PG_FUNCTION_INFO_V1(feed_capture);
PG_FUNCTION_INFO_V1(feed_uncapture);

static void require_change_feed(Oid feed);
static void refuse_captured(Oid relid, Oid feed);
static ArrayType *check_columns(Oid relid, ArrayType *columns);
static List *read_list(FeedpubStatement *find, Oid relid);
static List *list_tables(Oid relid);
static void create_triggers(Oid relid, Oid feed, const char *argument);
static char *choose_name(Oid relid, Oid feed, bool captured);
static void drop_leftovers(Oid relid);

/*
 * feed_capture(relation regclass, feed regclass, columns name[] DEFAULT NULL,
 * key regclass DEFAULT NULL, old boolean DEFAULT true)
 * returns void, VOLATILE
 *
 * From now on writes each change of a table into a change feed.  key is a
 * unique index on columns that are not null; by default the primary key.
 * columns are those whose values are written, by default all; those of the key
 * always are.  Without old, no old values are written but those of the key.
 *
 * A transaction that has changed the table before the call ends before it; all
 * that begin to change it later are captured.  So the call waits for writers of
 * the table, in attempts, as feed_attach() does.
 *
 * Needs ownership of both, in READ COMMITTED.  Takes SHARE ROW EXCLUSIVE on the
 * table and its partitions until the transaction ends: readers go on.
 *
 * Errors: 25006 on a standby, 42P01, 42809 if feed is no change feed, or
 * relation no ordinary table, or an outbox or a change feed; 0A000 for
 * temporary and unlogged tables, tables with inheritance, other access methods
 * than heap, and higher isolation; 42710 if the table, a partition or the table
 * of which it is one is captured into the feed; 55000 if there is no key; 42703
 * for an unknown column, 42701 for one that is named twice, 22023 for an empty
 * list; 22004, 55P03, 42501.
 */
Datum
feed_capture(PG_FUNCTION_ARGS)
{
	static const char *const names[] = {"relation", "feed", NULL, NULL, "old"};
	static FeedpubStatement forget = {
		.sql = "DELETE FROM feedpub._capture c WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_class r WHERE r.oid = c.relation)",
	};
	static FeedpubStatement insert = {
		.sql = "INSERT INTO feedpub._capture (relation, feed, key, key_attnums, columns, column_attnums, old, numbers_of, trigger)"
			   " SELECT $1, $2, k.names, k.numbers, $4, c.numbers, $5, $1, $6"
			   " FROM (SELECT array_agg(a.attname ORDER BY u.n), array_agg(a.attnum ORDER BY u.n)"
			   "  FROM pg_index i, unnest(i.indkey::int2[]) WITH ORDINALITY u (attnum, n), pg_attribute a"
			   "  WHERE i.indexrelid = $3 AND u.n <= i.indnkeyatts"
			   "   AND a.attrelid = i.indrelid AND a.attnum = u.attnum) k (names, numbers),"
			   " (SELECT array_agg(a.attnum ORDER BY u.n)"
			   "  FROM unnest($4) WITH ORDINALITY u (name, n), pg_attribute a"
			   "  WHERE a.attrelid = $1 AND a.attname = u.name) c (numbers)",
		.nargs = 6,
		.argtypes = {REGCLASSOID, REGCLASSOID, REGCLASSOID, NAMEARRAYOID, BOOLOID, NAMEOID},
	};
	Oid			relid;
	Oid			feed;
	Oid			key = InvalidOid;
	char	   *name;
	Datum		values[6];

	feedpub_argument_check(fcinfo, lengthof(names), names);
	PreventCommandDuringRecovery("feed_capture()");
	if (IsolationUsesXactSnapshot())
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("%s cannot be used in a REPEATABLE READ or SERIALIZABLE transaction",
						"feed_capture"),
				 errdetail("Reads in it would miss rows that others have committed since.")));
	relid = PG_GETARG_OID(0);
	feed = PG_GETARG_OID(1);

	/*
	 * Before the table, so that no writer waits for us while we wait for the
	 * feed.  What drops a feed locks the captured tables first, and gives up
	 * their locks if it does not get all.
	 */
	require_change_feed(feed);
	feedpub_require_owner(feed);
	relation_close(feedpub_registry_open(feed), NoLock);
	require_change_feed(feed);

	/* the first time before the lock, which blocks other sessions */
	for (int i = 0; i < 2; i++)
	{
		Relation	rel;

		if (get_rel_name(relid) == NULL)
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_TABLE),
					 errmsg("relation with OID %u does not exist", relid)));
		feedpub_require_owner(relid);
		rel = feedpub_registry_open(relid);
		if (feedpub_registry_is_registered(relid) && !feedpub_registry_is_table(relid))
			ereport(ERROR,
					(errcode(ERRCODE_WRONG_OBJECT_TYPE),
					 errmsg("\"%s\" cannot be captured", RelationGetRelationName(rel)),
					 errdetail("It is a feed whose rows do not change."),
					 errhint("Read that feed itself.")));
		feedpub_attach_refuse(rel, "captured");
		refuse_captured(relid, feed);
		key = feedpub_attach_key(rel, PG_ARGISNULL(3) ? InvalidOid : PG_GETARG_OID(3), "feed_capture", false);
		values[3] = PG_ARGISNULL(2) ? (Datum) 0 :
									  PointerGetDatum(check_columns(relid, PG_GETARG_ARRAYTYPE_P(2)));
		relation_close(rel, i == 0 ? AccessShareLock : NoLock);
		if (i == 0)
			feedpub_attach_lock(list_make1_oid(relid), ShareRowExclusiveLock);
	}
	values[0] = ObjectIdGetDatum(relid);
	values[1] = ObjectIdGetDatum(feed);
	values[2] = ObjectIdGetDatum(key);
	values[4] = PG_GETARG_DATUM(4);
	(void) feedpub_store_execute(&forget, NULL, NULL);
	drop_leftovers(relid);
	name = choose_name(relid, feed, true);
	values[5] = CStringGetDatum(name);
	(void) feedpub_store_execute(&insert, values, NULL);
	create_triggers(relid, feed, name);
	PG_RETURN_VOID();
}

/*
 * feed_uncapture(relation regclass, feed regclass) returns void, VOLATILE
 *
 * From now on no change of a table is written into a change feed.  The entries
 * that are there stay.
 *
 * For the owner of the table, who could drop its triggers, or of the feed.
 * Takes ACCESS EXCLUSIVE on the table and its partitions until the transaction
 * ends, as feed_attach() does.  Errors: 25006 on a standby, 42704 if the table
 * is not captured into the feed, 22004, 55P03, 42501.
 */
Datum
feed_uncapture(PG_FUNCTION_ARGS)
{
	static const char *const names[] = {"relation", "feed"};
	Oid			relid;
	Oid			feed;

	feedpub_argument_check(fcinfo, lengthof(names), names);
	PreventCommandDuringRecovery("feed_uncapture()");
	relid = PG_GETARG_OID(0);
	feed = PG_GETARG_OID(1);
	for (int i = 0; i < 2; i++)
	{
		if (!list_member_oid(feedpub_capture_list(feed), relid))
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_OBJECT),
					 errmsg("table %s is not captured into feed %s",
							DatumGetCString(DirectFunctionCall1(regclassout, ObjectIdGetDatum(relid))),
							DatumGetCString(DirectFunctionCall1(regclassout, ObjectIdGetDatum(feed))))));
		if (!feedpub_owns_relation(feed, GetUserId()))
			feedpub_require_owner(relid);
		if (i == 0)
			feedpub_attach_lock(list_make1_oid(relid), AccessExclusiveLock);
	}
	feedpub_capture_remove(relid, feed);
	PG_RETURN_VOID();
}

static void
require_change_feed(Oid feed)
{
	FeedpubFeed found;
	FeedpubKind kind = feedpub_registry_kind(feed);

	if (kind == FEEDPUB_KIND_NONE)
		feedpub_registry_get(feed, &found); /* raises the error */
	if (kind != FEEDPUB_KIND_CHANGES)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("feed \"%s\" is not a change feed", get_rel_name(feed)),
				 errhint("feed_create_changes() makes one.")));
}

/*
 * Refuse a table that is captured into the feed already, itself or as part of a
 * partitioned table, or has a partition that is: a change would be written
 * twice.
 */
static void
refuse_captured(Oid relid, Oid feed)
{
	List	   *captured = feedpub_capture_list(feed);
	List	   *tables = list_tables(relid);
	ListCell   *lc;

	if (get_rel_relispartition(relid))
		tables = list_concat(tables, get_partition_ancestors(relid));
	foreach(lc, tables)
	{
		if (list_member_oid(captured, lfirst_oid(lc)))
			ereport(ERROR,
					(errcode(ERRCODE_DUPLICATE_OBJECT),
					 errmsg("table \"%s\" is captured into feed \"%s\" already",
							get_rel_name(lfirst_oid(lc)), get_rel_name(feed)),
					 lfirst_oid(lc) != relid ? errdetail("Each change of \"%s\" would be written twice.", get_rel_name(relid)) : 0,
					 errhint("Use feed_uncapture() first.")));
	}
}

/*
 * Refuse columns that the table does not have.
 */
static ArrayType *
check_columns(Oid relid, ArrayType *columns)
{
	Datum	   *names;
	bool	   *nulls;
	int			nnames;

	deconstruct_array(columns, NAMEOID, NAMEDATALEN, false, TYPALIGN_CHAR,
					  &names, &nulls, &nnames);
	if (nnames == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"columns\" must not be empty")));
	for (int i = 0; i < nnames; i++)
	{
		const char *name = nulls[i] ? "" : NameStr(*DatumGetName(names[i]));

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
	}
	return columns;
}

/*
 * The tables that are captured into a feed and exist, by OID.
 */
List *
feedpub_capture_list(Oid feed)
{
	static FeedpubStatement find = {
		.sql = "SELECT c.relation FROM feedpub._capture c, pg_catalog.pg_class r"
			   " WHERE c.feed = $1 AND r.oid = c.relation ORDER BY c.relation",
		.nargs = 1,
		.argtypes = {REGCLASSOID},
		.latest = true,
	};

	return read_list(&find, feed);
}

/*
 * The triggers of a table that belong to no capture, by name.
 */
List *
feedpub_capture_leftovers(Oid relid)
{
	static FeedpubStatement find = {
		.sql = "SELECT name FROM feedpub._capture_leftover WHERE relation = $1 ORDER BY name",
		.nargs = 1,
		.argtypes = {REGCLASSOID},
		.latest = true,
	};

	return read_list(&find, relid);
}

/*
 * The OIDs or names that a statement finds.
 */
static List *
read_list(FeedpubStatement *find, Oid relid)
{
	MemoryContext context = CurrentMemoryContext;
	List	   *list = NIL;
	FeedpubRole caller;
	uint64		nrows;

	feedpub_store_begin(&caller);
	nrows = feedpub_store_run(find, (Datum[]){ObjectIdGetDatum(relid)}, NULL);
	for (uint64 i = 0; i < nrows; i++)
	{
		bool		is_name = SPI_gettypeid(SPI_tuptable->tupdesc, 1) == NAMEOID;
		MemoryContext spi = MemoryContextSwitchTo(context);
		bool		isnull;
		Datum		value = feedpub_store_value(i, 1, &isnull);

		list = is_name ? lappend(list, pstrdup(NameStr(*DatumGetName(value)))) :
						 lappend_oid(list, DatumGetObjectId(value));
		MemoryContextSwitchTo(spi);
	}
	feedpub_store_end(&caller);
	return list;
}

/*
 * A table and all its partitions.
 */
static List *
list_tables(Oid relid)
{
	return get_rel_relkind(relid) == RELKIND_PARTITIONED_TABLE ?
		find_all_inheritors(relid, NoLock, NULL) :
		list_make1_oid(relid);
}

/*
 * Create the triggers of a capture, and have them fire for all replication roles.
 * The caller has the table and its partitions locked.
 */
static void
create_triggers(Oid relid, Oid feed, const char *argument)
{
	char	   *name;
	ObjectAddress trigger;
	ObjectAddress referenced;
	ListCell   *lc;

	/* first, so that the other trigger gets another name */
	foreach(lc, list_tables(relid))
	{
		Oid			table = lfirst_oid(lc);
		Relation	rel;
		bool		is_there;

		if (table != relid && get_rel_relkind(table) == RELKIND_PARTITIONED_TABLE)
			continue;
		rel = relation_open(table, NoLock);
		is_there = feedpub_relation_has_trigger(rel, "_capture_truncate");
		relation_close(rel, NoLock);
		if (!is_there)
			feedpub_role_run_as_owner(table, psprintf("CREATE OR REPLACE TRIGGER \"" TRUNCATE_TRIGGER "\" BEFORE TRUNCATE ON %s"
													  " FOR EACH STATEMENT EXECUTE FUNCTION " FEEDPUB_SCHEMA "._capture_truncate();"
													  " ALTER TABLE %s ENABLE ALWAYS TRIGGER \"" TRUNCATE_TRIGGER "\"",
													  feedpub_relation_name(table), feedpub_relation_name(table)));
	}

	name = choose_name(relid, feed, false);
	feedpub_role_run_as_owner(relid, psprintf("CREATE TRIGGER %s AFTER INSERT OR UPDATE OR DELETE ON %s"
											  " FOR EACH ROW EXECUTE FUNCTION " FEEDPUB_SCHEMA "._capture_row(%s);"
											  " ALTER TABLE %s ENABLE ALWAYS TRIGGER %s",
											  quote_identifier(name), feedpub_relation_name(relid), quote_literal_cstr(argument), feedpub_relation_name(relid), quote_identifier(name)));
	ObjectAddressSet(trigger, TriggerRelationId, get_trigger_oid(relid, name, false));
	ObjectAddressSet(referenced, RelationRelationId, feed);
	recordDependencyOn(&trigger, &referenced, DEPENDENCY_AUTO);
}

/*
 * A name for the trigger of rows that none has of the table, its partitions and
 * the tables of which it is one.  If captured is set, no capture of these has it.
 */
static char *
choose_name(Oid relid, Oid feed, bool captured)
{
	static FeedpubStatement find = {
		.sql = "SELECT FROM feedpub._capture WHERE relation = $1 AND trigger = $2",
		.nargs = 2,
		.argtypes = {REGCLASSOID, NAMEOID},
	};
	List	   *tables = list_tables(relid);
	char	   *name = NULL;
	bool		is_taken = true;
	ListCell   *lc;

	if (get_rel_relispartition(relid))
		tables = list_concat(tables, get_partition_ancestors(relid));
	for (int i = 0; is_taken; i++)
	{
		name = makeObjectName(ROW_TRIGGER, get_rel_name(feed), i == 0 ? NULL : psprintf("%d", i));
		is_taken = false;
		foreach(lc, tables)
			is_taken = is_taken || OidIsValid(get_trigger_oid(lfirst_oid(lc), name, true)) ||
				(captured && feedpub_store_execute(&find, (Datum[]){lfirst_oid(lc), CStringGetDatum(name)}, NULL) > 0);
	}
	return name;
}

/*
 * End a capture.  The caller has the table and its partitions locked.
 */
void
feedpub_capture_remove(Oid relid, Oid feed)
{
	static FeedpubStatement delete = {
		.sql = "DELETE FROM feedpub._capture WHERE relation = $1 AND feed = $2",
		.nargs = 2,
		.argtypes = {REGCLASSOID, REGCLASSOID},
	};

	(void) feedpub_store_execute(&delete, (Datum[]){ObjectIdGetDatum(relid), ObjectIdGetDatum(feed)}, NULL);
	CommandCounterIncrement();
	drop_leftovers(relid);
}

/*
 * Drop the triggers of a table and its partitions that belong to no capture,
 * whatever their names are by now.  The caller has them locked.  A clone goes with
 * the trigger of which it is one.
 *
 * It only drops triggers of ours, so it may be run as the table's owner for the
 * feed's.
 */
static void
drop_leftovers(Oid relid)
{
	ListCell   *table;
	ListCell   *lc;

	foreach(table, list_tables(relid))
	{
		foreach(lc, feedpub_capture_leftovers(lfirst_oid(table)))
			feedpub_role_run_as_owner(lfirst_oid(table),
									  psprintf("DROP TRIGGER %s ON %s", quote_identifier(lfirst(lc)),
											   feedpub_relation_name(lfirst_oid(table))));
	}
}
