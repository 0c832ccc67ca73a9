/*-------------------------------------------------------------------------
 *
 * capture_trigger.c
 *	  The triggers of captured tables.
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
 * partition has one of its own, which the worker makes if the partition comes
 * later (feed/partition_truncate.c).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/dependency.h"
#include "catalog/partition.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "commands/defrem.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

#include "admin/admin.h"

#define ROW_TRIGGER			"RI_feedpub"

static List *leftovers(Oid relid);
static void create_row_trigger(Oid relid, Oid feed, const char *argument);
static void depend_on_feed(Oid relid, const char *name, Oid feed);

/*
 * The triggers of a table that belong to no capture, by name.
 */
static List *
leftovers(Oid relid)
{
	static FeedpubStatement find = {
		.sql = "SELECT name FROM feedpub._capture_leftover WHERE relation = $1 ORDER BY name",
		.latest = true,
	};

	return feedpub_store_list(&find, (Datum[]){ObjectIdGetDatum(relid)});
}

/*
 * The tables that have such triggers, and are the caller's.
 */
List *
feedpub_capture_left_tables(void)
{
	static FeedpubStatement find = {
		.sql = "SELECT DISTINCT relation FROM feedpub._capture_leftover WHERE pg_has_role($1::oid, (SELECT relowner FROM pg_class WHERE oid = relation), 'USAGE') ORDER BY relation",
		.latest = true,
	};

	return feedpub_store_list(&find, (Datum[]){ObjectIdGetDatum(GetUserId())});
}

/*
 * A table and all its partitions.
 */
List *
feedpub_capture_tables(Oid relid)
{
	return get_rel_relkind(relid) == RELKIND_PARTITIONED_TABLE ?
		find_all_inheritors(relid, NoLock, NULL) :
		list_make1_oid(relid);
}

/*
 * What is wrong with the captures of a feed.
 */
List *
feedpub_capture_faults(Oid feed)
{
	static FeedpubStatement find = {
		.sql = "SELECT relation, part, kind, name, trigger, enabled FROM feedpub._capture_fault WHERE feed = $1"
			   " ORDER BY relation, part = relation DESC, part, kind DESC",
		.latest = true,
	};
	MemoryContext context = CurrentMemoryContext;
	List	   *faults = NIL;
	FeedpubRole caller;
	uint64		nrows;

	feedpub_store_begin(&caller);
	nrows = feedpub_store_run(&find, (Datum[]){ObjectIdGetDatum(feed)}, NULL);
	MemoryContextSwitchTo(context);
	for (uint64 i = 0; i < nrows; i++)
	{
		FeedpubCaptureFault *fault = palloc0_object(FeedpubCaptureFault);
		Datum		values[6];
		bool		nulls[6];

		heap_deform_tuple(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, values, nulls);
		fault->relid = DatumGetObjectId(values[0]);
		fault->part = DatumGetObjectId(values[1]);
		fault->kind = TextDatumGetCString(values[2]);
		fault->name = nulls[3] ? NULL : pstrdup(NameStr(*DatumGetName(values[3])));
		fault->argument = pstrdup(NameStr(*DatumGetName(values[4])));
		fault->enabled = nulls[5] ? '\0' : DatumGetChar(values[5]);
		faults = lappend(faults, fault);
	}
	feedpub_store_end(&caller);
	return faults;
}

/*
 * Mend that, but for a key that is lost.  For the owner of the table, too.
 */
void
feedpub_capture_repair(Oid feed, const FeedpubCaptureFault *fault)
{
	static FeedpubStatement update = {
		.sql = "UPDATE feedpub._capture c SET key = n.key, key_attnums = n.key_attnums, columns = n.columns,"
			   "  column_attnums = n.column_attnums, numbers_of = n.relation"
			   " FROM feedpub._captured n WHERE n.relation = $1 AND n.feed = $2"
			   " AND c.relation = n.relation AND c.feed = n.feed",
	};

	feedpub_require_owner(fault->part);
	feedpub_lock_tables(list_make1_oid(fault->relid), ShareRowExclusiveLock);
	if (strcmp(fault->kind, "stored") == 0)
	{
		(void) feedpub_store_execute(&update, (Datum[]){ObjectIdGetDatum(fault->relid), ObjectIdGetDatum(feed)}, NULL);
		if (fault->name != NULL)
			depend_on_feed(fault->relid, fault->name, feed);
	}
	else if (fault->name != NULL)
		feedpub_role_run_as_owner(fault->part, psprintf("ALTER TABLE %s ENABLE ALWAYS TRIGGER %s", feedpub_relation_name(fault->part), quote_identifier(fault->name)));
	else if (strcmp(fault->kind, "truncate") == 0)
		feedpub_partition_create_trigger(fault->part, FEEDPUB_CAPTURE_TRUNCATE, "_capture_truncate");
	else
		create_row_trigger(fault->relid, feed, fault->argument);
}

/*
 * Create the triggers of a capture.  The caller has the table and its partitions
 * locked.
 */
void
feedpub_capture_create_triggers(Oid relid, Oid feed, const char *argument)
{
	ListCell   *lc;

	/* first, so that the other trigger gets another name */
	foreach(lc, feedpub_capture_tables(relid))
	{
		if (lfirst_oid(lc) == relid || get_rel_relkind(lfirst_oid(lc)) != RELKIND_PARTITIONED_TABLE)
			feedpub_partition_create_trigger(lfirst_oid(lc), FEEDPUB_CAPTURE_TRUNCATE, "_capture_truncate");
	}
	create_row_trigger(relid, feed, argument);
}

/*
 * Create the trigger of rows.  Partitions get clones.
 */
static void
create_row_trigger(Oid relid, Oid feed, const char *argument)
{
	char	   *name = feedpub_capture_choose_name(relid, feed, false);

	feedpub_role_run_as_owner(relid, psprintf("CREATE TRIGGER %s AFTER INSERT OR UPDATE OR DELETE ON %s"
											  " FOR EACH ROW EXECUTE FUNCTION " FEEDPUB_SCHEMA "._capture_row(%s);"
											  " ALTER TABLE %s ENABLE ALWAYS TRIGGER %s",
											  quote_identifier(name), feedpub_relation_name(relid), quote_literal_cstr(argument), feedpub_relation_name(relid), quote_identifier(name)));
	depend_on_feed(relid, name, feed);
}

static void
depend_on_feed(Oid relid, const char *name, Oid feed)
{
	ObjectAddress trigger;
	ObjectAddress referenced;

	ObjectAddressSet(trigger, TriggerRelationId, get_trigger_oid(relid, name, false));
	ObjectAddressSet(referenced, RelationRelationId, feed);
	recordDependencyOn(&trigger, &referenced, DEPENDENCY_AUTO);
}

/*
 * A name for the trigger of rows that none has of the table, its partitions and
 * the tables of which it is one.  If captured is set, no capture of these has it.
 */
char *
feedpub_capture_choose_name(Oid relid, Oid feed, bool captured)
{
	static FeedpubStatement find = {
		.sql = "SELECT FROM feedpub._capture WHERE relation = $1 AND trigger = $2",
	};
	List	   *tables = feedpub_capture_tables(relid);
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
	};

	(void) feedpub_store_execute(&delete, (Datum[]){ObjectIdGetDatum(relid), ObjectIdGetDatum(feed)}, NULL);
	CommandCounterIncrement();
	feedpub_capture_drop_leftovers(relid);
}

/*
 * Drop the triggers of a table and its partitions that belong to no capture,
 * whatever their names are by now.  The caller has them locked.  A clone goes with
 * the trigger of which it is one.
 *
 * It only drops triggers of ours, so it may be run as the table's owner for the
 * feed's.
 */
void
feedpub_capture_drop_leftovers(Oid relid)
{
	ListCell   *lc;

	foreach(lc, feedpub_capture_tables(relid))
		feedpub_capture_drop_triggers(lfirst_oid(lc), leftovers(lfirst_oid(lc)));
}

/*
 * Drop triggers of a table, by name.
 */
void
feedpub_capture_drop_triggers(Oid relid, List *names)
{
	ListCell   *lc;

	foreach(lc, names)
		feedpub_role_run_as_owner(relid, psprintf("DROP TRIGGER %s ON %s", quote_identifier(lfirst(lc)), feedpub_relation_name(relid)));
}
