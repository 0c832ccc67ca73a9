/*-------------------------------------------------------------------------
 * repair.c
 *	  Restoring what a feed's owner has undone: feed_repair().
 *
 * Registers the table again if that was lost, and runs the cures of what
 * feed_check() names (check.c), as the caller or as the table's owner.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "storage/lmgr.h"
#include "utils/lsyscache.h"

#include "admin/admin.h"

PG_FUNCTION_INFO_V1(feed_repair);

/*
 * Register a feed of the caller's again if that was lost.  The caller has it
 * locked.  Returns 1 if it was.
 */
int
feedpub_repair_registration(Oid relid)
{
	bool		is_registered = feedpub_check_is_registered(relid);
	Relation	rel;
	bool		is_table;

	feedpub_require_owner(relid);
	if (is_registered)
		return 0;
	rel = relation_open(relid, AccessShareLock);
	is_table = OidIsValid(feedpub_relation_trigger(rel, "_stamp_row"));
	feedpub_registry_add(relid,
						 is_table															? FEEDPUB_KIND_TABLE :
							 get_attnum(relid, FEEDPUB_CHANGES_COLUMN) != InvalidAttrNumber ? FEEDPUB_KIND_CHANGES :
																							  FEEDPUB_KIND_OUTBOX,
						 false);
	feedpub_wake_note_new(relid);
	if (is_table)
		feedpub_registry_set_key(rel, feedpub_key_primary(rel),
								 OidIsValid(feedpub_relation_trigger(rel, "_note_delete")));
	relation_close(rel, NoLock);
	CommandCounterIncrement();
	return 1;
}

/*
 * feed_repair(feed regclass) returns integer
 *
 * Restores what feed_check() names and has a cure for, and registers the table
 * again if that was lost.  Returns how many things it repaired.  For the owner
 * only.  Locks: those of the ALTER TABLE statements that it runs, up to ACCESS
 * EXCLUSIVE on the table; none if nothing is wrong.  Errors: 42809 if it is no
 * feed, 42501, and whatever a cure raises.
 */
Datum
feed_repair(PG_FUNCTION_ARGS)
{
	Oid			relid;
	int			ncured;

	feedpub_argument_check(fcinfo, 0, 1);
	relid = PG_GETARG_OID(0);
	LockRelationOid(relid, AccessShareLock);
	ncured = feedpub_repair_registration(relid);
	PG_RETURN_INT32(ncured + feedpub_check_repair(relid, NULL));
}
