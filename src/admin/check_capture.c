/*-------------------------------------------------------------------------
 *
 * check_capture.c
 *	  Whether changes can be written into a change feed, and whether all of its
 *	  captures write them: part of feed_check().
 *
 * A change that cannot be written is noted as lost when it is made (lost.c).
 * While a trigger of a captured table is off nobody notes it.  So feed_repair()
 * notes it when it puts the trigger back, as for table feeds (check_trigger.c).
 *
 * What is wrong with captures is found in the system catalogs, by a view that
 * locks no captured table.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

#include "admin/check.h"

static void check_capture(FeedpubCheck *cxt, const FeedpubCaptureFault *fault);
static void check_columns(FeedpubCheck *cxt);
static void check_indexes(FeedpubCheck *cxt);

/*
 * Check the captures of a change feed.  A repair locks their tables, and a
 * writer locks such a table before the feed, so this comes before what locks
 * the feed.
 */
void
feedpub_check_captures(FeedpubCheck *cxt)
{
	ListCell   *lc;

	/* a crash may have emptied it */
	if (cxt->repairs && get_rel_persistence(cxt->feed) == RELPERSISTENCE_UNLOGGED)
		feedpub_lost_note(cxt->feed);
	foreach(lc, feedpub_capture_faults(cxt->feed))
		check_capture(cxt, lfirst(lc));
}

/*
 * Check what writing into a change feed needs.
 */
void
feedpub_check_changes(FeedpubCheck *cxt)
{
	Oid			own = feedpub_relation_function("_stamp_message", 0, NULL);
	TriggerDesc *triggers;
	TupleConstr *constr;

	check_columns(cxt);
	check_indexes(cxt);
	triggers = cxt->rel->trigdesc;
	constr = RelationGetDescr(cxt->rel)->constr;
	for (int i = 0; triggers != NULL && i < triggers->numtriggers; i++)
	{
		const Trigger *trigger = &triggers->triggers[i];

		if (trigger->tgfoid != own && TRIGGER_FOR_INSERT(trigger->tgtype))
			feedpub_check_add(cxt, "trigger",
							  psprintf("trigger %s is not run for changes: drop it", quote_identifier(trigger->tgname)),
							  NULL, FEEDPUB_CURE_BY_HAND);
	}
	for (int i = 0; constr != NULL && i < constr->num_check; i++)
		feedpub_check_add(cxt, "columns",
						  psprintf("check %s is not made of changes: drop it", quote_identifier(constr->check[i].ccname)),
						  NULL, FEEDPUB_CURE_BY_HAND);
}

/*
 * One thing that is wrong with a capture.  A partition that came later lacks the
 * trigger for TRUNCATE: unless it was truncated by itself, nothing is lost.
 */
static void
check_capture(FeedpubCheck *cxt, const FeedpubCaptureFault *fault)
{
	char	   *table = feedpub_relation_name(fault->relid);
	char	   *what = psprintf("captures %s%s%s%s", fault->kind[0] == 't' ? "TRUNCATE of " : "",
								table, fault->part != fault->relid ? " in partition " : "",
								fault->part != fault->relid ? feedpub_relation_name(fault->part) : "");
	bool		loses = fault->name != NULL || fault->part == fault->relid;
	const char *consequence = loses ? ", so changes may be lost, and another history must begin when it is back" : "";
	const char *problem = "there is no trigger that %s%s";

	if (strcmp(fault->kind, "key") == 0)
	{
		feedpub_check_add(cxt, "capture",
						  psprintf("table %s has lost a column of the key by which it is captured: end the capture by feed_uncapture(), and capture it again", table),
						  NULL, FEEDPUB_CURE_BY_HAND);
		return;
	}
	if (strcmp(fault->kind, "unique") == 0)
	{
		feedpub_check_add(cxt, "capture",
						  psprintf("rows of table %s can have the same key: make a unique index on the columns of the key, which are not null, or end the capture by feed_uncapture(), and capture the table by another key", table),
						  NULL, FEEDPUB_CURE_BY_HAND);
		return;
	}
	if (strcmp(fault->kind, "unlogged") == 0)
	{
		table = feedpub_relation_name(fault->part);
		feedpub_check_add(cxt, "persistence",
						  psprintf("captured table %s is unlogged, so a crash empties it, which is not captured", table),
						  psprintf("ALTER TABLE %s SET LOGGED", table), FEEDPUB_CURE_BY_HAND);
		return;
	}
	if (cxt->repairs)
	{
		feedpub_capture_repair(cxt->feed, fault);
		if (strcmp(fault->kind, "stored") != 0 && loses)
			feedpub_lost_note(cxt->feed);
		CommandCounterIncrement();
		cxt->nrepaired++;
		return;
	}
	if (fault->enabled == TRIGGER_DISABLED)
		problem = "the trigger that %s is disabled%s";
	else if (fault->name != NULL)
		problem = "the trigger that %s does not fire for all replication roles%s";
	if (strcmp(fault->kind, "stored") == 0)
		feedpub_check_add(cxt, "capture",
						  psprintf("the capture of table %s is not what a dump needs: it was restored, or columns were renamed", table),
						  "", FEEDPUB_CURE_AS_OWNER);
	else
		feedpub_check_add(cxt, "trigger", psprintf(problem, what, consequence), "", FEEDPUB_CURE_AS_OWNER);
}

static void
check_columns(FeedpubCheck *cxt)
{
	for (int i = FEEDPUB_CHANGE_OP; i < FEEDPUB_CHANGE_NCOLUMNS; i++)
	{
		const FeedpubChangeColumnType *column = &feedpub_change_columns[i];
		AttrNumber	attno = get_attnum(cxt->feed, column->name);
		Form_pg_attribute att = attno > 0 ? TupleDescAttr(RelationGetDescr(cxt->rel), attno - 1) : NULL;

		if (att == NULL)
			feedpub_check_add(cxt, "columns",
							  psprintf("column %s is missing, so changes cannot be written", quote_identifier(column->name)),
							  psprintf("ALTER TABLE %s ADD COLUMN %s %s", cxt->table, quote_identifier(column->name),
									   format_type_be_qualified(column->type)),
							  FEEDPUB_CURE_AS_OWNER);
		else if (att->atttypid != column->type)
			feedpub_check_add(cxt, "columns",
							  psprintf("column %s is of type %s instead of %s, so changes cannot be written",
									   quote_identifier(column->name), format_type_be(att->atttypid), format_type_be(column->type)),
							  NULL, FEEDPUB_CURE_BY_HAND);
		else if (att->attlen < 0 && att->attstorage == TYPSTORAGE_PLAIN)
			feedpub_check_add(cxt, "columns",
							  psprintf("column %s has storage PLAIN, so changes cannot be written", quote_identifier(column->name)),
							  psprintf("ALTER TABLE %s ALTER COLUMN %s SET STORAGE EXTENDED", cxt->table, quote_identifier(column->name)),
							  FEEDPUB_CURE_AS_OWNER);
	}
	for (int i = 0; i < RelationGetDescr(cxt->rel)->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(RelationGetDescr(cxt->rel), i);
		const char *name = NameStr(att->attname);

		if (!att->attisdropped && att->attnotnull && strcmp(name, "op") != 0 &&
			strcmp(name, FEEDPUB_XID_COLUMN) != 0 && strcmp(name, FEEDPUB_POS_COLUMN) != 0)
			feedpub_check_add(cxt, "columns",
							  psprintf("column %s is NOT NULL, so changes cannot be written", quote_identifier(name)),
							  psprintf("ALTER TABLE %s ALTER COLUMN %s DROP NOT NULL", cxt->table, quote_identifier(name)),
							  FEEDPUB_CURE_AS_OWNER);
	}
}

/*
 * An index must take each change, and run nobody's code for it.
 */
static void
check_indexes(FeedpubCheck *cxt)
{
	ListCell   *lc;

	foreach(lc, RelationGetIndexList(cxt->rel))
	{
		Relation	index = index_open(lfirst_oid(lc), AccessShareLock);
		const char *what = feedpub_change_index_problem(index);

		index_close(index, AccessShareLock);
		if (what != NULL)
			feedpub_check_add(cxt, "index",
							  psprintf("index %s %s, so changes cannot be written: drop it", feedpub_relation_name(lfirst_oid(lc)), what),
							  NULL, FEEDPUB_CURE_BY_HAND);
	}
}
