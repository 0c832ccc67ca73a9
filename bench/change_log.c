/*-------------------------------------------------------------------------
 *
 * change_log.c
 *	  The table feed that was not built, for bench/run to measure: a narrow
 *	  log of (stamp, key) beside the table, whose rows carry no stamp.
 *
 * log_change(log) is a row trigger, AFTER INSERT OR UPDATE: unless an UPDATE
 * changes nothing, it writes the row's xid, a position from the
 * sequence <log>_seq and its key, the table's first column, a bigint, into the
 * table named.  It does what src/write/stamp.c does, by the same means, and leaves
 * out what costs little there: what it knows of a table is never invalidated.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "commands/sequence.h"
#include "commands/trigger.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "utils/datum.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/xid8.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(log_change);

typedef struct LoggedTable
{
	Oid			relid;
	Oid			logid;
	Oid			seqid;
} LoggedTable;

#define MAX_LOGGED	16

static LoggedTable logged[MAX_LOGGED];
static int	nlogged = 0;

static LoggedTable *
find_table(Relation rel, const char *log)
{
	LoggedTable *table;
	Oid			namespaceid = RelationGetNamespace(rel);

	for (int i = 0; i < nlogged; i++)
		if (logged[i].relid == RelationGetRelid(rel))
			return &logged[i];
	if (nlogged == MAX_LOGGED)
		elog(ERROR, "too many tables");
	table = &logged[nlogged++];
	table->relid = RelationGetRelid(rel);
	table->logid = get_relname_relid(log, namespaceid);
	table->seqid = get_relname_relid(psprintf("%s_seq", log), namespaceid);
	return table;
}

static bool
has_changed(TupleTableSlot *old_slot, TupleTableSlot *new_slot)
{
	TupleDesc	desc = old_slot->tts_tupleDescriptor;

	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);
		bool		old_isnull;
		bool		new_isnull;
		Datum		old_value = slot_getattr(old_slot, i + 1, &old_isnull);
		Datum		new_value = slot_getattr(new_slot, i + 1, &new_isnull);

		if (old_isnull != new_isnull ||
			(!old_isnull &&
			 !datum_image_eq(old_value, new_value, att->attbyval, att->attlen)))
			return true;
	}
	return false;
}

Datum
log_change(PG_FUNCTION_ARGS)
{
	TriggerData *trigdata = (TriggerData *) fcinfo->context;
	Relation	rel = trigdata->tg_relation;
	bool		is_update = TRIGGER_FIRED_BY_UPDATE(trigdata->tg_event);
	TupleTableSlot *slot = is_update ? trigdata->tg_newslot : trigdata->tg_trigslot;
	LoggedTable *table = find_table(rel, trigdata->tg_trigger->tgargs[0]);
	Relation	log;
	Datum		values[3];
	bool		nulls[3] = {false};
	HeapTuple	tuple;

	if (is_update && !has_changed(trigdata->tg_trigslot, slot))
		PG_RETURN_POINTER(NULL);

	values[0] = FullTransactionIdGetDatum(GetTopFullTransactionId());
	values[1] = Int64GetDatum(nextval_internal(table->seqid, false));
	values[2] = slot_getattr(slot, 1, &nulls[2]);
	log = table_open(table->logid, RowExclusiveLock);
	tuple = heap_form_tuple(RelationGetDescr(log), values, nulls);
	CatalogTupleInsert(log, tuple);
	heap_freetuple(tuple);
	table_close(log, NoLock);
	PG_RETURN_POINTER(NULL);
}
