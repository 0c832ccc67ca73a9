/*-------------------------------------------------------------------------
 *
 * role.c
 *	  Running as another role than the caller.
 *
 * Whatever an owner put into a table (an expression in an index, a check, a
 * trigger) is the owner's code.  Where it has to run although somebody else
 * called us, it runs as the owner, in a security-restricted operation, in which
 * it can neither change the role nor leave anything to be run later; and with
 * a search_path of its own, so that it finds no function of the caller's.
 *
 * Our own tables are read and written as the extension's owner.  No code but
 * ours runs then.
 *
 * Statements of DDL are run here too, as the caller or as a table's owner.
 *
 * An error on the way restores both the role and the settings: whatever catches
 * one has a subtransaction, whose abort does that.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_class.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/guc.h"
#include "utils/syscache.h"

#include "base/base.h"

static void begin(Oid userid, int flag, FeedpubRole *caller);

/*
 * Become the owner of a table, whose code may run until feedpub_role_end().
 * Settings that it changes are set back then.
 */
void
feedpub_role_begin_owner(Oid owner, FeedpubRole *caller)
{
	begin(owner, SECURITY_RESTRICTED_OPERATION, caller);
}

/*
 * Become the extension's owner, to whom our tables belong.
 */
void
feedpub_role_begin_extension(Oid owner, FeedpubRole *caller)
{
	begin(owner, SECURITY_LOCAL_USERID_CHANGE, caller);
}

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
 * Be the caller again.
 */
void
feedpub_role_end(const FeedpubRole *caller)
{
	AtEOXact_GUC(false, caller->nestlevel);
	SetUserIdAndSecContext(caller->userid, caller->sec_context);
}

/*
 * Run one statement as the caller, DDL as a rule, and let what follows see it.
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
 * The same as the owner of a table, who need not be the caller: ALTER TABLE and
 * CREATE TRIGGER run what is constant in checks and partition keys.  Not for
 * what makes a relation, since the caller's rights on the schema count there;
 * and CREATE INDEX becomes the owner by itself.
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
