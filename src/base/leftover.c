/*-------------------------------------------------------------------------
 *
 * leftover.c
 *	  What an owner's code could leave in the session of another role.
 *
 * An owner's code that runs in another role's call (role.c) runs as the owner,
 * in a security-restricted operation.  The server refuses there what would stay
 * in the session: temporary relations, prepared statements, cursors WITH HOLD,
 * LISTEN.  Settings are set back.  Two things remain, and are refused here.
 *
 * Objects in pg_temp.  A name without a schema is looked up there first, so after
 * CREATE DOMAIN pg_temp.text the session's next "::text" would run the checks of
 * that domain as the session's user.  Newer servers refuse that as well.  Here
 * it is refused by a hook, for functions, operators and all else too.
 * Relations are left to the server, with their rows, arrays and constraints: it
 * needs some for REFRESH MATERIALIZED VIEW CONCURRENTLY.
 *
 * Advisory locks of the session, which would stay if they are taken, and be gone
 * if one that the session had is released.  The functions for both are refused
 * where the executor gets a function ready for a call (InvokeFunctionExecuteHook:
 * execExpr.c, execSRF.c, nodeAgg.c, nodeWindowAgg.c, CALL).  Other ways to a
 * function, as an operator class or a type's input, are a superuser's to make.
 * Locks of the transaction end with it, and are the owner's choice.  So are all
 * of them in its own session, and in a background worker, whose session ends.
 *
 * A server does requests of many roles in one session, by feedpub._request(),
 * which runs all code of a request so.  In its sessions nothing is worth
 * keeping, so what is refused above may be cleared instead, when the transaction
 * ends: feedpub_leftover_clear().  That makes DISCARD ALL needless.  Of its parts
 * - cursors WITH HOLD, the session's user, prepared statements, LISTEN and
 *	 relations in pg_temp are refused by the server, other objects in pg_temp
 *	 here;
 * - settings are set back, by feedpub._request() or by the transaction's end;
 * - advisory locks of the session and what sequences have given it, as
 *	 lastval() tells, are cleared;
 * - plans are made anew by themselves when they are out of date.
 * What DISCARD ALL leaves, as the variables of an interpreter, is left here too:
 * a language that is trusted keeps those of roles apart.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/objectaccess.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_constraint.h"
#include "catalog/pg_type.h"
#include "commands/sequence.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "base/base.h"

/* the functions that lock and release for the session have OIDs in a row */
StaticAssertDecl(F_PG_ADVISORY_UNLOCK_ALL - F_PG_ADVISORY_LOCK_INT8 == 12,
				 "advisory locks of sessions have thirteen functions");

static object_access_hook_type next_hook = NULL;
static bool clears;				/* when the transaction ends */

/*
 * Is it in pg_temp, and no part of a relation?  It has just been written, so
 * the catalog's caches do not have it yet.
 */
static bool
is_temporary(Oid class_id, Oid object_id)
{
	Relation	catalog;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	Form_pg_type type;
	bool		isnull;
	bool		result;

	if (class_id == RelationRelationId || class_id == ConstraintRelationId ||
		!is_objectclass_supported(class_id) ||
		get_object_attnum_namespace(class_id) == InvalidAttrNumber)
		return false;
	catalog = table_open(class_id, AccessShareLock);
	ScanKeyInit(&key, get_object_attnum_oid(class_id), BTEqualStrategyNumber,
				F_OIDEQ, ObjectIdGetDatum(object_id));
	scan = systable_beginscan(catalog, get_object_oid_index(class_id), true,
							  SnapshotSelf, 1, &key);
	tuple = systable_getnext(scan);
	type = (Form_pg_type) GETSTRUCT(tuple);
	result = isTempNamespace(DatumGetObjectId(heap_getattr(tuple, get_object_attnum_namespace(class_id),
														   RelationGetDescr(catalog), &isnull))) &&
		(class_id != TypeRelationId ||
		 (type->typtype != TYPTYPE_COMPOSITE && !IsTrueArrayType(type)));
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	return result;
}

static void
refuse(ObjectAccessType access, Oid class_id, Oid object_id, int sub_id, void *arg)
{
	Oid			userid;
	int			sec_context;

	if (next_hook != NULL)
		next_hook(access, class_id, object_id, sub_id, arg);
	GetUserIdAndSecContext(&userid, &sec_context);
	if ((sec_context & FEEDPUB_OTHERS_SESSION) != 0 && access == OAT_FUNCTION_EXECUTE &&
		object_id >= F_PG_ADVISORY_LOCK_INT8 && object_id <= F_PG_ADVISORY_UNLOCK_ALL)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("cannot take or release advisory locks of the session within security-restricted operation"),
				 errhint("Use locks of the transaction, as pg_advisory_xact_lock() takes them.")));
	if ((sec_context & FEEDPUB_OWNER_CODE) != 0 && access == OAT_POST_CREATE &&
		is_temporary(class_id, object_id))
	{
		const char *what = get_object_class_descr(class_id);

		/* of a type newer servers say the same */
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("cannot create %s %s in a temporary schema within security-restricted operation",
						*what == 'o' ? "an" : "a", what)));
	}
}

static void
end_transaction(XactEvent event, void *arg)
{
	if (!clears || (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT && event != XACT_EVENT_PREPARE))
		return;
	clears = false;
	LockReleaseSession(USER_LOCKMETHOD);
	ResetSequenceCaches();
}

/*
 * Watch what an owner's code does.  _PG_init() calls this once.
 */
void
feedpub_leftover_init(void)
{
	next_hook = object_access_hook;
	object_access_hook = refuse;
	RegisterXactCallback(end_transaction, NULL);
}

/*
 * What the code of this transaction leaves in the session is cleared when it
 * ends, however it ends.
 */
void
feedpub_leftover_clear(void)
{
	clears = true;
}
