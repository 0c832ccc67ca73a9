/*-------------------------------------------------------------------------
 *
 * check_trigger.c
 *	  Whether a feed's triggers are there and fire, and those of its
 *	  partitions: part of feed_check().
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "catalog/pg_class.h"
#include "catalog/pg_trigger.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/rel.h"

#include "admin/check.h"

static void check_trigger(FeedpubCheck *cxt, const char *name,
						  const char *function, int16 type,
						  const char *event, const char *each,
						  const char *what);
static void check_later_triggers(FeedpubCheck *cxt);
static void check_clone(FeedpubCheck *cxt, const char *function, int16 timing,
						const char *what);
static void check_before_truncate(FeedpubCheck *cxt);

/*
 * Check the triggers: those that stamp, write tombstones, refuse an UPDATE of
 * an outbox, and keep positions in order if there is a TRUNCATE.
 */
void
feedpub_check_triggers(FeedpubCheck *cxt)
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
				  "notes the end of a TRUNCATE");
}

static void
check_trigger(FeedpubCheck *cxt, const char *name, const char *function,
			  int16 type, const char *event, const char *each,
			  const char *what)
{
	Oid			funcid = feedpub_relation_function(function, 0, NULL);
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
			feedpub_check_add(cxt, "trigger",
							  psprintf(trigger->tgenabled == TRIGGER_DISABLED ?
										   "the trigger that %s is disabled%s" :
										   "the trigger that %s does not fire for all replication roles%s",
									   what, consequence),
							  psprintf("ALTER TABLE %s ENABLE ALWAYS TRIGGER %s",
									   cxt->table, name))
				->unstamped = *consequence != '\0';
			return;
		}
	}
	feedpub_check_add(cxt, "trigger",
					  psprintf("there is no trigger that %s%s", what, consequence),
					  psprintf("CREATE OR REPLACE TRIGGER %s %s ON %s FOR EACH %s EXECUTE FUNCTION " FEEDPUB_SCHEMA ".%s()",
							   name, event, cxt->table, each, function))
		->unstamped = *consequence != '\0';
}

/*
 * A trigger after the one that stamps may change the key unnoticed, or the
 * stamp.
 */
static void
check_later_triggers(FeedpubCheck *cxt)
{
	Oid			funcid = feedpub_relation_function(cxt->is_table ? "_stamp_row" : "_stamp_message", 0, NULL);
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
			feedpub_check_add(cxt, "trigger",
							  psprintf("trigger %s comes after the one that stamps: should it change the key, the old one is not published as deleted",
									   quote_identifier(trigger->tgname)),
							  NULL);
		else if (is_later && TRIGGER_FOR_INSERT(trigger->tgtype))
			feedpub_check_add(cxt, "trigger",
							  psprintf("trigger %s comes after the one that stamps: should it change the stamp, consumers may miss the row",
									   quote_identifier(trigger->tgname)),
							  NULL);
	}
}

/*
 * Check the partitions.  Each has clones of the row triggers, which fire as
 * they were made to, but may be disabled one by one.  Each needs a trigger for
 * TRUNCATE of a single partition, which the server does not clone.
 */
void
feedpub_check_partitions(FeedpubCheck *cxt)
{
	FeedpubKey	key;
	Oid			keyid;
	bool		deletes;
	ListCell   *lc;

	if (!feedpub_check_is_partitioned(cxt))
		return;
	feedpub_registry_key(cxt->rel, &key, &keyid, &deletes);
	foreach(lc, feedpub_partition_list(cxt->rel, false))
	{
		FeedpubCheck partition = *cxt;

		CHECK_FOR_INTERRUPTS();
		partition.rel = try_relation_open(lfirst_oid(lc), AccessShareLock);
		if (partition.rel == NULL)
			continue;
		partition.table = feedpub_relation_name(lfirst_oid(lc));
		if (partition.rel->rd_rel->relpersistence == RELPERSISTENCE_UNLOGGED)
			feedpub_check_add(&partition, "persistence",
							  psprintf("partition %s is unlogged, so a crash empties it", partition.table),
							  psprintf("ALTER TABLE %s SET LOGGED", partition.table));
		if (OidIsValid(feedpub_relation_index(cxt->rel)) &&
			!OidIsValid(feedpub_relation_index(partition.rel)))
			feedpub_check_add(&partition, "index",
							  psprintf("partition %s has another index on (%s, %s) than the feed's: detach it, drop that index and attach it again",
									   partition.table, FEEDPUB_XID_COLUMN, FEEDPUB_POS_COLUMN),
							  NULL);
		check_clone(&partition, "_stamp_row", TRIGGER_TYPE_BEFORE, "stamps rows");
		check_later_triggers(&partition);
		if (deletes)
		{
			check_clone(&partition, "_note_delete", TRIGGER_TYPE_AFTER, "publishes deletes");

			/*
			 * Partitions that are added later have none until they are
			 * admitted, which the views do not report.
			 */
			if (!partition.catalogs_only)
				check_before_truncate(&partition);
		}
		relation_close(partition.rel, AccessShareLock);
		cxt->problems = partition.problems;
	}
}

static void
check_clone(FeedpubCheck *cxt, const char *function, int16 timing,
			const char *what)
{
	Oid			funcid = feedpub_relation_function(function, 0, NULL);
	TriggerDesc *triggers = cxt->rel->trigdesc;
	Trigger    *found = NULL;
	FeedpubProblem *p;

	for (int i = 0; triggers != NULL && i < triggers->numtriggers; i++)
	{
		Trigger    *trigger = &triggers->triggers[i];

		if (trigger->tgfoid == funcid && trigger->tgisclone &&
			(trigger->tgtype & TRIGGER_TYPE_TIMING_MASK) == timing)
			found = trigger;
	}
	if (found == NULL)
		feedpub_check_add(cxt, "trigger",
						  psprintf("partition %s has no trigger that %s", cxt->table, what),
						  NULL);
	else if (found->tgenabled != TRIGGER_FIRES_ALWAYS)
	{
		p = feedpub_check_add(cxt, "trigger",
							  psprintf(found->tgenabled == TRIGGER_DISABLED ?
										   "the trigger of partition %s that %s is disabled" :
										   "the trigger of partition %s that %s does not fire for all replication roles",
									   cxt->table, what),
							  psprintf("ALTER TABLE %s ENABLE ALWAYS TRIGGER %s",
									   cxt->table, quote_identifier(found->tgname)));
		p->apart = true;
		p->unstamped = strcmp(function, "_stamp_row") == 0;
	}
}

static void
check_before_truncate(FeedpubCheck *cxt)
{
	Oid			funcid = feedpub_relation_function("_note_truncate", 0, NULL);
	TriggerDesc *triggers = cxt->rel->trigdesc;

	for (int i = 0; triggers != NULL && i < triggers->numtriggers; i++)
	{
		Trigger    *trigger = &triggers->triggers[i];

		if (trigger->tgfoid == funcid &&
			trigger->tgtype == (TRIGGER_TYPE_BEFORE | TRIGGER_TYPE_TRUNCATE) &&
			trigger->tgenabled == TRIGGER_FIRES_ALWAYS)
			return;
	}
	feedpub_check_add(cxt, "trigger",
					  psprintf("partition %s has no trigger that publishes its TRUNCATE", cxt->table),
					  psprintf("CREATE OR REPLACE TRIGGER %s BEFORE TRUNCATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION " FEEDPUB_SCHEMA "._note_truncate();"
							   " ALTER TABLE %s ENABLE ALWAYS TRIGGER %s",
							   FEEDPUB_TRUNCATE_TRIGGER, cxt->table,
							   cxt->table, FEEDPUB_TRUNCATE_TRIGGER))
		->apart = true;
}
