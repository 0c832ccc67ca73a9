/*-------------------------------------------------------------------------
 *
 * role.c
 *	  Running as another role than the caller.
 *
 * What an owner put into a table (an expression in an index, a check, a
 * trigger) is the owner's code.  If another role's call makes it run, it runs
 * as the owner, in a security-restricted operation: it can neither change the
 * role nor leave anything to be run later, and nothing that it has made stays
 * in the session (leftover.c).  It has a pinned search_path, so that it finds no
 * function of the caller's.
 *
 * Our own tables are read and written as the extension's owner.  Only our own
 * code runs then.
 *
 * Statements of DDL are run here too, as the caller or as a table's owner.
 *
 * If an error is raised meanwhile, the role and the settings are restored:
 * code that catches an error has a subtransaction, and its abort restores
 * both.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/guc.h"
#include "utils/syscache.h"

#include "base/base.h"

static void
begin(Oid userid, int flag, FeedpubRole *caller)
{
	GetUserIdAndSecContext(&caller->userid, &caller->sec_context);
	SetUserIdAndSecContext(userid, caller->sec_context | flag);
	caller->nestlevel = NewGUCNestLevel();
	(void) set_config_option("search_path", "pg_catalog, pg_temp",
							 PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
}

/*
 * Become the owner of a table until feedpub_role_end().  The owner's code may
 * run meanwhile.  Settings that it changes are set back at the end.
 */
void
feedpub_role_begin_owner(Oid owner, FeedpubRole *caller)
{
	int			flag = SECURITY_RESTRICTED_OPERATION | FEEDPUB_OWNER_CODE;

	if (owner != GetSessionUserId() && MyBackendType == B_BACKEND)
		flag |= FEEDPUB_OTHERS_SESSION;
	begin(owner, flag, caller);
}

/*
 * Become the extension's owner, which owns our tables.
 */
void
feedpub_role_begin_extension(Oid owner, FeedpubRole *caller)
{
	begin(owner, SECURITY_LOCAL_USERID_CHANGE, caller);
}

/*
 * Become the caller again.
 */
void
feedpub_role_end(const FeedpubRole *caller)
{
	AtEOXact_GUC(false, caller->nestlevel);
	SetUserIdAndSecContext(caller->userid, caller->sec_context);
}

/*
 * Run one statement, usually DDL, as the caller.  The statements after it see
 * its effects.
 */
void
feedpub_role_run(const char *sql)
{
	int			rc;

	SPI_connect();
	rc = SPI_execute(sql, false, 0);
	if (rc < 0)
		elog(ERROR, "could not run \"%s\": %s", sql,
			 SPI_result_code_string(rc));
	SPI_finish();
	CommandCounterIncrement();
}

/*
 * The same as the owner of a table: ALTER TABLE and CREATE TRIGGER run what is
 * constant in checks and partition keys, and the caller need not be the owner.
 * Do not use it to create a relation, since the caller's rights on the schema
 * count there.  CREATE INDEX needs no such call: it becomes the owner by
 * itself.
 */
void
feedpub_role_run_as_owner(Oid relid, const char *sql)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Oid			owner;
	FeedpubRole caller;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for relation %u", relid);
	owner = ((Form_pg_class) GETSTRUCT(tuple))->relowner;
	ReleaseSysCache(tuple);
	if (owner == GetUserId())
	{
		feedpub_role_run(sql);
		return;
	}
	feedpub_role_begin_owner(owner, &caller);
	feedpub_role_run(sql);
	feedpub_role_end(&caller);
}
