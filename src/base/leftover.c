/*-------------------------------------------------------------------------
 *
 * leftover.c
 *	  What an owner's code could leave in the session of another role.
 *
 * An owner's code that runs in another role's call (role.c) runs as the owner,
 * in a security-restricted operation.  The server refuses there what would stay
 * in the session: temporary relations, prepared statements, cursors WITH HOLD,
 * LISTEN.  Settings are set back.  Two things remain.
 *
 * Types in pg_temp.  A name without a schema is looked up there first, so after
 * CREATE DOMAIN pg_temp.text the session's next "::text" would run the checks of
 * that domain as the session's user.  Newer servers refuse that as well.  Here
 * it is refused by a hook, for functions too.  The rows and arrays of relations
 * are left to the server, which needs some for REFRESH MATERIALIZED VIEW
 * CONCURRENTLY.
 *
 * Advisory locks of the session.  Those that are new at the end are released,
 * also if it ends by an error.  A session can hold a lock several times, so they
 * are counted: what it has taken once more would stay when the session releases
 * it.  If the code has released one that the session had, nothing can bring it
 * back, and the caller gets an error.  Background workers need neither, since
 * their sessions end.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "base/base.h"

/* One advisory lock that this process holds. */
typedef struct HeldLock
{
	LOCKTAG		tag;
	LOCKMODE	mode;
	int			count;			/* how often for the session; 0: for the transaction */
} HeldLock;

/* the locks when an owner's code began to run, if it runs */
static HeldLock *held_before = NULL;
static int	nheld_before;
static int	begun_at;			/* the nesting level of the transaction */

static object_access_hook_type next_hook = NULL;

static void refuse_temporary(ObjectAccessType access, Oid class_id, Oid object_id,
							 int sub_id, void *arg);
static bool is_temporary(Oid class_id, Oid object_id);
static void end_transaction(XactEvent event, void *arg);
static void end_subtransaction(SubXactEvent event, SubTransactionId mine,
							   SubTransactionId parent, void *arg);
static HeldLock *list_held(int *n);
static int	count_for_session(const HeldLock *lock);
static int	find_count(const HeldLock *locks, int n, const HeldLock *lock);
static bool release_new(void);

/*
 * Watch what an owner's code makes.  _PG_init() calls this once.
 */
void
feedpub_leftover_init(void)
{
	next_hook = object_access_hook;
	object_access_hook = refuse_temporary;
	RegisterXactCallback(end_transaction, NULL);
	RegisterSubXactCallback(end_subtransaction, NULL);
}

static void
refuse_temporary(ObjectAccessType access, Oid class_id, Oid object_id,
				 int sub_id, void *arg)
{
	Oid			userid;
	int			sec_context;

	if (next_hook != NULL)
		next_hook(access, class_id, object_id, sub_id, arg);
	if (access != OAT_POST_CREATE ||
		(class_id != TypeRelationId && class_id != ProcedureRelationId))
		return;
	GetUserIdAndSecContext(&userid, &sec_context);
	if ((sec_context & FEEDPUB_OWNER_CODE) != 0 && is_temporary(class_id, object_id))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("cannot create a %s in a temporary schema within security-restricted operation",
						class_id == TypeRelationId ? "type" : "function")));
}

/* It has just been written, so the catalog's caches do not have it yet. */
static bool
is_temporary(Oid class_id, Oid object_id)
{
	bool		is_type = class_id == TypeRelationId;
	Relation	catalog = table_open(class_id, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		result = false;

	ScanKeyInit(&key, is_type ? Anum_pg_type_oid : Anum_pg_proc_oid,
				BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(object_id));
	scan = systable_beginscan(catalog, is_type ? TypeOidIndexId : ProcedureOidIndexId,
							  true, SnapshotSelf, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple) && is_type)
	{
		Form_pg_type type = (Form_pg_type) GETSTRUCT(tuple);

		result = isTempNamespace(type->typnamespace) &&
			type->typtype != TYPTYPE_COMPOSITE && !IsTrueArrayType(type);
	}
	else if (HeapTupleIsValid(tuple))
		result = isTempNamespace(((Form_pg_proc) GETSTRUCT(tuple))->pronamespace);
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	return result;
}

/*
 * An owner's code is about to run.  Returns whether feedpub_leftover_end() is to
 * be called: not if the session is the owner's own, or a background worker, or
 * if such code runs already.
 */
bool
feedpub_leftover_begin(Oid owner)
{
	if (held_before != NULL || owner == GetSessionUserId() || MyBackendType != B_BACKEND)
		return false;
	held_before = list_held(&nheld_before);
	begun_at = GetCurrentTransactionNestLevel();
	return true;
}

/*
 * It has run.
 */
void
feedpub_leftover_end(void)
{
	if (!release_new())
		ereport(ERROR,
				(errcode(ERRCODE_TRIGGERED_ACTION_EXCEPTION),
				 errmsg("code of the table's owner has released advisory locks of this session")));
}

/* It has ended by an error. */
static void
end_transaction(XactEvent event, void *arg)
{
	if (held_before != NULL && event == XACT_EVENT_ABORT)
		(void) release_new();
}

static void
end_subtransaction(SubXactEvent event, SubTransactionId mine,
				   SubTransactionId parent, void *arg)
{
	if (held_before != NULL && event == SUBXACT_EVENT_ABORT_SUB &&
		begun_at >= GetCurrentTransactionNestLevel())
		(void) release_new();
}

/*
 * The advisory locks that this process holds.
 */
static HeldLock *
list_held(int *n)
{
	LockData   *data = GetLockStatusData();
	HeldLock   *locks = MemoryContextAlloc(TopMemoryContext, sizeof(HeldLock));
	int			save_client = client_min_messages;
	int			save_log = log_min_messages;

	/* the server warns when count_for_session() has come to the end */
	client_min_messages = log_min_messages = ERROR;
	*n = 0;
	for (int i = 0; i < data->nelements; i++)
	{
		LockInstanceData *instance = &data->locks[i];

		if (instance->pid != MyProcPid ||
			instance->locktag.locktag_type != LOCKTAG_ADVISORY)
			continue;
		for (LOCKMODE mode = 1; mode < MAX_LOCKMODES; mode++)
		{
			if ((instance->holdMask & LOCKBIT_ON(mode)) == 0)
				continue;
			locks = repalloc(locks, (*n + 1) * sizeof(HeldLock));
			locks[*n].tag = instance->locktag;
			locks[*n].mode = mode;
			locks[*n].count = count_for_session(&locks[*n]);
			(*n)++;
		}
	}
	client_min_messages = save_client;
	log_min_messages = save_log;
	return locks;
}

/*
 * How often the session holds a lock, without what the transaction holds.  The
 * server tells that only if it is released.  Meanwhile the transaction holds it
 * once more, so no other process gets it, and nothing waits.
 */
static int
count_for_session(const HeldLock *lock)
{
	int			count = 0;

	(void) LockAcquire(&lock->tag, lock->mode, false, false);
	while (LockRelease(&lock->tag, lock->mode, true))
		count++;
	for (int i = 0; i < count; i++)
		(void) LockAcquire(&lock->tag, lock->mode, true, false);
	(void) LockRelease(&lock->tag, lock->mode, false);
	return count;
}

static int
find_count(const HeldLock *locks, int n, const HeldLock *lock)
{
	for (int i = 0; i < n; i++)
	{
		if (locks[i].mode == lock->mode &&
			memcmp(&locks[i].tag, &lock->tag, sizeof(LOCKTAG)) == 0)
			return locks[i].count;
	}
	return 0;
}

/*
 * Release what the session did not hold before.  Returns whether it still holds
 * what it did.  Locks of the transaction end with it.
 */
static bool
release_new(void)
{
	int			n;
	HeldLock   *held = list_held(&n);
	HeldLock   *before = held_before;
	bool		result = true;

	held_before = NULL;
	for (int i = 0; i < n; i++)
	{
		int			had = find_count(before, nheld_before, &held[i]);

		for (int j = had; j < held[i].count; j++)
			(void) LockRelease(&held[i].tag, held[i].mode, true);
	}
	for (int i = 0; i < nheld_before; i++)
		result = result && find_count(held, n, &before[i]) >= before[i].count;
	pfree(held);
	pfree(before);
	return result;
}
