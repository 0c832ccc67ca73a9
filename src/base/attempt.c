/*-------------------------------------------------------------------------
 *
 * attempt.c
 *	  Work that may fail because of the data, and must stop nothing else.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "tcop/tcopprot.h"
#include "utils/resowner.h"

#include "base/base.h"

/*
 * Is more than half of the stack that max_stack_depth allows in use?
 */
static bool
caller_is_deep(void)
{
	char		here;
	pg_stack_base_t base = set_stack_base();

	restore_stack_base(base);
	return labs((long) (base - &here)) > max_stack_depth * 1024L / 2;
}

/*
 * Is there a value, although this call got an error of the data?  If a row is
 * delivered without its value, the reader goes on and does not get it later.
 *
 * XX001, XX002: this server's storage is corrupt.  Another server or a backup
 * may have the value.  No writer can cause this error, and if a page of the
 * table itself is corrupt, nothing can be read either.
 *
 * 54001: the stack limit is reached if a value is nested too deeply, or if the
 * caller is deep in functions.  A value that reaches the limit for every
 * reader must not stop the feed, and a value that other readers get must not
 * be left out.  So the error counts as the value's if at least half of the
 * stack was free for it.
 */
static bool
hides_a_value(int sqlstate)
{
	return sqlstate == ERRCODE_DATA_CORRUPTED ||
		sqlstate == ERRCODE_INDEX_CORRUPTED ||
		(sqlstate == ERRCODE_STATEMENT_TOO_COMPLEX && caller_is_deep());
}

/*
 * Do work(arg) in a subtransaction.  Returns NULL, or the error that ended it,
 * in the current context.  What the work has allocated there stays; unless keep
 * is set, nothing else does, no lock either.
 */
ErrorData *
feedpub_attempt_error(void (*work)(void *arg), void *arg, bool keep)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	ErrorData *volatile error = NULL;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		work(arg);
		if (keep)
			ReleaseCurrentSubTransaction();
		else
			RollbackAndReleaseCurrentSubTransaction();
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
	return error;
}

/*
 * The same.  The error is returned as a text, "SQLSTATE: message", if it is one
 * of the data, since no call can deliver the value.  All other errors are
 * raised.
 */
char *
feedpub_attempt(void (*work)(void *arg), void *arg)
{
	ErrorData  *error = feedpub_attempt_error(work, arg, true);

	if (error == NULL)
		return NULL;
	if (!feedpub_attempt_is_of_the_data(error->sqlerrcode) ||
		hides_a_value(error->sqlerrcode))
		ReThrowError(error);
	return psprintf("%s: %s", unpack_sql_state(error->sqlerrcode), error->message);
}

/*
 * Was an error caused by the values, so that it would come again?  Then the
 * row is left out, or delivered without its value, and the work goes on.  If
 * not, the work is done again later.
 *
 * Most errors are of the data, also those without a class of their own (XX000,
 * elog): output functions raise them for values that they do not know.  If
 * such an error ended a page, a writer of such a value could stop the feed for
 * all.
 *
 * Not of the data are:
 * 08, 40, 57: a lost connection, a conflict with recovery, a query that was
 *		cancelled, a server that shuts down
 * 53: a lack of memory or disk space, which passes
 * 55P03: a lock that was not obtained in time
 * 58: a file of the server, or a library, that could not be read
 * 72: a snapshot that is too old
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
		case MAKE_SQLSTATE('7', '2', '0', '0', '0'):	/* until 16 */
			return false;
		default:
			return sqlstate != ERRCODE_LOCK_NOT_AVAILABLE;
	}
}
