/*-------------------------------------------------------------------------
 *
 * argument.c
 *	  The arguments of SQL functions.
 *
 * One rule for NULL: if an argument's default is NULL, NULL means that the
 * argument is not given.  Every other argument must have a value, and the
 * error names it.  So no public function is STRICT: the server would answer a
 * mistaken NULL with NULL, without calling the function.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/xact.h"
#include "datatype/timestamp.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"

#include "base/base.h"

/*
 * Raise an error if one of the first n arguments is NULL.  names has their
 * names in order; an argument that may be NULL has none (a NULL pointer).
 */
void
feedpub_argument_check(FunctionCallInfo fcinfo, int n,
					   const char *const *names)
{
	for (int i = 0; i < n; i++)
	{
		if (names[i] != NULL && PG_ARGISNULL(i))
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("argument \"%s\" must not be null", names[i])));
	}
}

/*
 * The row type that a function returns.
 */
TupleDesc
feedpub_argument_row_type(FunctionCallInfo fcinfo)
{
	TupleDesc	desc;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	return desc;
}

/*
 * Refuse a procedure that commits inside a transaction block, where it cannot,
 * and on a standby.
 */
void
feedpub_argument_check_call(FunctionCallInfo fcinfo, const char *name)
{
	/* the server calls a procedure with a CallContext only */
	if (castNode(CallContext, fcinfo->context)->atomic)
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("%s cannot run inside a transaction block", name)));
	PreventCommandDuringRecovery(name);
}

/*
 * Refuse a function that must see what others have committed, where it cannot,
 * and on a standby.
 */
void
feedpub_argument_check_latest(const char *name)
{
	PreventCommandDuringRecovery(name);
	if (IsolationUsesXactSnapshot())
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("%s cannot be used in a REPEATABLE READ or SERIALIZABLE transaction", name),
				 errdetail("Reads in it would miss rows that others have committed since.")));
}

/*
 * An interval in whole ms, rounded down.  A month has 30 days.  It is cut if
 * it is too long to be added to a time.
 */
int64
feedpub_argument_ms(const Interval *interval)
{
	double		ms = (double) interval->time / 1000.0 +
		((double) interval->month * DAYS_PER_MONTH + interval->day) * SECS_PER_DAY * 1000.0;

	return (int64) floor(Max(Min(ms, 1e15), -1e15));
}

/*
 * A timeout in ms.
 */
int64
feedpub_argument_timeout(const Interval *timeout)
{
	int64		ms = feedpub_argument_ms(timeout);

	if (ms < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"timeout\" must not be negative")));
	return ms;
}
