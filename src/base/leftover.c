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
 * Types in pg_temp.  A name without a schema is looked up there first, so after
 * CREATE DOMAIN pg_temp.text the session's next "::text" would run the checks of
 * that domain as the session's user.  Newer servers refuse that as well.  Here
 * it is refused by a hook, for functions too.  The rows and arrays of relations
 * are left to the server, which needs some for REFRESH MATERIALIZED VIEW
 * CONCURRENTLY.
 *
 * Advisory locks of the session, which would stay if they are taken, and be gone
 * if one that the session had is released.  The functions for both are refused
 * where the executor gets a function ready for a call (InvokeFunctionExecuteHook:
 * execExpr.c, execSRF.c, nodeAgg.c, nodeWindowAgg.c, CALL).  Other ways to a
 * function, as an operator class or a type's input, are a superuser's to make.
 * Locks of the transaction end with it, and are the owner's choice.  So are all
 * of them in its own session, and in a background worker, whose session ends.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/namespace.h"
#include "catalog/objectaccess.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "base/base.h"

/* the functions that lock and release for the session have OIDs in a row */
StaticAssertDecl(F_PG_ADVISORY_UNLOCK_ALL - F_PG_ADVISORY_LOCK_INT8 == 12,
				 "advisory locks of sessions have thirteen functions");

static object_access_hook_type next_hook = NULL;

static void refuse(ObjectAccessType access, Oid class_id, Oid object_id,
				   int sub_id, void *arg);
static bool is_temporary(Oid class_id, Oid object_id);

/*
 * Watch what an owner's code does.  _PG_init() calls this once.
 */
void
feedpub_leftover_init(void)
{
	next_hook = object_access_hook;
	object_access_hook = refuse;
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
		(class_id == TypeRelationId || class_id == ProcedureRelationId) &&
		is_temporary(class_id, object_id))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("cannot create a %s in a temporary schema within security-restricted operation",
						class_id == TypeRelationId ? "type" : "function")));
}

/* It has just been written, so the catalog's caches do not have it yet. */
static bool
is_temporary(Oid class_id, Oid object_id)
{
	Relation	catalog = table_open(class_id, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	Form_pg_type type;
	bool		isnull;
	bool		result;

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
