/*-------------------------------------------------------------------------
 *
 * control.c
 *	  Starting and stopping the worker of a database by hand.  If a reader
 *	  needs one, feedpub_launcher_ensure() starts it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "access/xlog.h"
#include "miscadmin.h"

#include "job/job.h"

PG_FUNCTION_INFO_V1(feed_start_worker);
PG_FUNCTION_INFO_V1(feed_stop_worker);

/*
 * feed_start_worker() returns boolean, VOLATILE
 *
 * Starts the worker of this database, also after feed_stop_worker().  Returns
 * whether one runs or was ordered; if not, a WARNING says why.  A role that
 * may read a feed may start it.  Errors: 42501, 25006 on a standby.
 */
Datum
feed_start_worker(PG_FUNCTION_ARGS)
{
	FeedpubDatabase *entry = feedpub_shmem_database();
	bool		may = superuser();
	ListCell   *lc;

	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
				 errmsg("feeds cannot be published during recovery")));
	foreach(lc, feedpub_registry_list())
		may = may || feedpub_may_select(lfirst_oid(lc));
	if (!may)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to start the worker"),
				 errdetail("Only a role that may read a feed may start it.")));
	if (entry == NULL || !IsUnderPostmaster)
	{
		ereport(WARNING,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("could not start a feedpub worker"),
				 feedpub_launcher_errdetail()));
		PG_RETURN_BOOL(false);
	}
	(void) feedpub_shmem_set_stopped(entry, false);
	PG_RETURN_BOOL(feedpub_launcher_start_worker(entry, MyDatabaseId, 0, WARNING));
}

/*
 * feed_stop_worker() returns boolean, VOLATILE
 *
 * Stops the worker of this database, until feed_start_worker() or a restart of
 * the server.  Returns whether there was one.  The worker is a superuser's
 * process, so only superusers may stop it.  Error: 42501.
 */
Datum
feed_stop_worker(PG_FUNCTION_ARGS)
{
	FeedpubDatabase *entry = feedpub_shmem_database();
	int			pid;

	if (!superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to stop the worker"),
				 errdetail("Only superusers may.")));
	if (entry == NULL)
		PG_RETURN_BOOL(false);
	pid = feedpub_shmem_set_stopped(entry, true);
	PG_RETURN_BOOL(pid != 0 && kill(pid, SIGTERM) == 0);
}
