/*-------------------------------------------------------------------------
 *
 * check_trigger.c
 *	  Whether a feed's triggers are there and fire, and those of its
 *	  partitions: part of feed_check().
 *
 * While a trigger of a table feed was off, changes may have passed without a
 * trace: rows without a stamp of theirs, deletes without a tombstone.  Nothing
 * in the tables tells whether there were any.  So when feed_repair() puts a
 * trigger back, it notes in the same transaction that changes were lost, and
 * readers are refused until another history begins (lost.c).
 *
 * The DDL that puts it back takes a lock that excludes writers, to the end of
 * the transaction.  So what was written without the trigger has ended before,
 * and a snapshot that sees the trigger's return sees the note, too.  Readers
 * with an older snapshot get what they got while the trigger was off; what
 * they miss, their next page refuses.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_trigger.h"
#include "utils/builtins.h"
#include "utils/rel.h"

#include "admin/check.h"

/* A trigger that a feed needs. */
typedef struct RequiredTrigger
{
	const char *name;
	const char *function;
	int16		type;
	const char *event;
	const char *what;			/* what it does, for messages */
} RequiredTrigger;

#define STAMPS \
	(TRIGGER_TYPE_BEFORE | TRIGGER_TYPE_ROW | TRIGGER_TYPE_INSERT | TRIGGER_TYPE_UPDATE)

static const RequiredTrigger of_outbox[] = {
	{FEEDPUB_STAMP_TRIGGER, "_stamp_message", STAMPS,
	 "BEFORE INSERT OR UPDATE", "stamps rows"},
	{FEEDPUB_GUARD_TRIGGER, "_stamp_message", TRIGGER_TYPE_BEFORE | TRIGGER_TYPE_UPDATE,
	 "BEFORE UPDATE", "refuses an UPDATE"},
};

/* without deletes, the first is enough */
static const RequiredTrigger of_table[] = {
	{FEEDPUB_STAMP_TRIGGER, "_stamp_row", STAMPS,
	 "BEFORE INSERT OR UPDATE", "stamps rows"},
	{FEEDPUB_DELETE_TRIGGER, "_note_delete", TRIGGER_TYPE_AFTER | TRIGGER_TYPE_ROW | TRIGGER_TYPE_DELETE,
	 "AFTER DELETE", "publishes deletes"},
	{FEEDPUB_TRUNCATE_TRIGGER, "_note_truncate", TRIGGER_TYPE_BEFORE | TRIGGER_TYPE_TRUNCATE,
	 "BEFORE TRUNCATE", "publishes TRUNCATE"},
};

/*
 * Check one trigger.  Its name does not count, but if there is none, one of
 * our name is made, in place of another of that name.
 *
 * Partitions have clones of the row triggers, which fire as they were made to,
 * but may be disabled one by one.  The trigger for TRUNCATE of a single
 * partition is no clone: those that are added later have none until they are
 * admitted, which the views do not report; until then the number of their file
 * tells (partition_truncate.c).
 *
 * The trigger that stamps also publishes the old key of a row that gets another
 * one.
 */
static void
check_trigger(FeedpubCheck *cxt, const RequiredTrigger *required)
{
	Oid			funcid = feedpub_relation_function(required->function, 0, NULL);
	Oid			relid = RelationGetRelid(cxt->rel);
	TriggerDesc *triggers = cxt->rel->trigdesc;
	bool		is_clone = relid != cxt->feed && TRIGGER_FOR_ROW(required->type);
	const Trigger *found = NULL;
	const char *problem = "there is no trigger that %s%s%s%s";
	const char *consequence = "";
	bool		loses = cxt->deletes;
	char	   *cure;

	for (int i = 0; triggers != NULL && i < triggers->numtriggers; i++)
	{
		const Trigger *trigger = &triggers->triggers[i];

		if (trigger->tgfoid == funcid && trigger->tgtype == required->type &&
			trigger->tgqual == NULL && trigger->tgnattr == 0 &&
			(found == NULL || trigger->tgenabled == TRIGGER_FIRES_ALWAYS))
			found = trigger;
	}
	if (found != NULL && found->tgenabled == TRIGGER_FIRES_ALWAYS)
		return;
	if (found == NULL && relid != cxt->feed && !is_clone)
	{
		if (cxt->catalogs_only)
			return;
		loses = feedpub_partition_had_guard(cxt->feed, relid);
	}
	if (loses)
		consequence = ", so changes may be lost, and another history must begin when it is back";
	else if (required == &of_table[0])
		consequence = ", so what is written is not published before feed_republish()";

	cure = psprintf("ALTER TABLE %s ENABLE ALWAYS TRIGGER %s", cxt->table,
					quote_identifier(found == NULL ? required->name : found->tgname));
	if (found == NULL)
		cure = psprintf("CREATE OR REPLACE TRIGGER %s %s ON %s FOR EACH %s EXECUTE FUNCTION " FEEDPUB_SCHEMA ".%s(%s); %s",
						required->name, required->event, cxt->table,
						TRIGGER_FOR_ROW(required->type) ? "ROW" : "STATEMENT", required->function,
						required == &of_table[0] && cxt->arguments != NULL ? cxt->arguments : "", cure);
	else if (found->tgenabled == TRIGGER_DISABLED)
		problem = "the trigger that %s%s%s is disabled%s";
	else
		problem = "the trigger that %s%s%s does not fire for all replication roles%s";
	if (!feedpub_check_add(cxt, "trigger",
						   psprintf(problem, required->what, relid != cxt->feed ? " in partition " : "",
									relid != cxt->feed ? cxt->table : "", consequence),
						   found == NULL && is_clone ? NULL : cure, FEEDPUB_CURE_AS_OWNER) ||
		cxt->arguments != NULL)
		return;
	if (required == &of_table[0])
		feedpub_registry_set_unstamped(cxt->feed, true);
	if (loses)
		feedpub_lost_note(cxt->feed);
	CommandCounterIncrement();
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
		else if (is_later && (TRIGGER_FOR_INSERT(trigger->tgtype) || (cxt->is_table && TRIGGER_FOR_UPDATE(trigger->tgtype))))
			feedpub_check_add(cxt, "trigger",
							  psprintf("trigger %s comes after the one that stamps: if it changes the stamp, consumers may miss the row%s",
									   quote_identifier(trigger->tgname),
									   cxt->is_table ? ", and if it changes the key, the old one is not published as deleted" : ""),
							  NULL, FEEDPUB_CURE_BY_HAND);
	}
}

/*
 * Check the triggers of a feed's table, or of a partition.
 */
void
feedpub_check_triggers(FeedpubCheck *cxt)
{
	for (int i = 0; i < lengthof(of_outbox) && !cxt->is_table; i++)
		check_trigger(cxt, &of_outbox[i]);
	for (int i = 0; i < (cxt->deletes ? lengthof(of_table) : 1) && cxt->is_table; i++)
		check_trigger(cxt, &of_table[i]);
	check_later_triggers(cxt);
}
