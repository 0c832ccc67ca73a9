/*-------------------------------------------------------------------------
 *
 * attempt.c
 *	  Work that may fail for what the data is, and must stop nothing else.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#include "feedpub.h"

/*
 * Do work(arg) in a subtransaction.  Returns NULL, or the error that ended it
 * as a text, "SQLSTATE: message", in the current context; what the work has
 * allocated there stays.
 *
 * Only an error that would come again.  Cancelled queries, servers that shut
 * down, conflicts with recovery, a lock that was not got in time and a lack of
 * memory or disk space are the caller's, as are all errors where there can be
 * no subtransaction.
 */
char *
feedpub_attempt(void (*work)(void *arg), void *arg)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	ErrorData *volatile error = NULL;

	if (IsInParallelMode())
	{
		work(arg);
		return NULL;
	}
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		work(arg);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	if (error == NULL)
		return NULL;
	if (!feedpub_attempt_is_of_the_data(error->sqlerrcode))
		ReThrowError(error);
	return psprintf("%s: %s", unpack_sql_state(error->sqlerrcode), error->message);
}

/*
 * Is an error of the values that were worked on, so that it would come again?
 */
bool
feedpub_attempt_is_of_the_data(int sqlstate)
{
	switch (ERRCODE_TO_CATEGORY(sqlstate))
	{
		case ERRCODE_CONNECTION_EXCEPTION:
		case ERRCODE_TRANSACTION_ROLLBACK:
		case ERRCODE_INSUFFICIENT_RESOURCES:
		case ERRCODE_OPERATOR_INTERVENTION:
		case ERRCODE_SYSTEM_ERROR:
			return false;
		default:
			return sqlstate != ERRCODE_LOCK_NOT_AVAILABLE;
	}
}
