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
#include "access/htup_details.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "base/base.h"

/*
 * The name that an argument of the function has in SQL.
 */
static const char *
name_of(FunctionCallInfo fcinfo, int arg)
{
	HeapTuple	function = SearchSysCache1(PROCOID, ObjectIdGetDatum(fcinfo->flinfo->fn_oid));
	Oid		   *types;
	char	  **names;
	char	   *modes;

	if (!HeapTupleIsValid(function))
		elog(ERROR, "cache lookup failed for function %u", fcinfo->flinfo->fn_oid);
	(void) get_func_arg_info(function, &types, &names, &modes);
	ReleaseSysCache(function);
	return names[arg];
}

/*
 * Raise an error if one of n arguments, from this one on, is NULL.
 */
void
feedpub_argument_check(FunctionCallInfo fcinfo, int from, int n)
{
	for (int i = from; i < from + n; i++)
	{
		if (PG_ARGISNULL(i))
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("argument \"%s\" must not be null", name_of(fcinfo, i))));
	}
}

/*
 * Raise an error if an argument, which has this value, is too small.
 */
void
feedpub_argument_least(FunctionCallInfo fcinfo, int arg, int64 value, int least)
{
	if (value < least)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 least == 0 ?
					 errmsg("argument \"%s\" must not be negative", name_of(fcinfo, arg)) :
					 errmsg("argument \"%s\" must be at least %d", name_of(fcinfo, arg), least)));
}

/*
 * A row that a function returns.
 */
Datum
feedpub_argument_row(FunctionCallInfo fcinfo, Datum *values, bool *nulls)
{
	TupleDesc	desc;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls));
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
 * An argument that is a timeout, in ms.
 */
int64
feedpub_argument_timeout(FunctionCallInfo fcinfo, int arg)
{
	int64		ms = feedpub_argument_ms(PG_GETARG_INTERVAL_P(arg));

	feedpub_argument_least(fcinfo, arg, ms, 0);
	return ms;
}
