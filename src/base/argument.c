/*-------------------------------------------------------------------------
 *
 * argument.c
 *	  The arguments of SQL functions.
 *
 * One rule for NULL: where an argument's default is NULL, NULL means that it is
 * not given; every other argument must have a value, and the error names it.
 * So no function of ours is STRICT that a mistaken NULL would keep from being
 * called without a word.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"

#include "base/base.h"

/*
 * Refuse NULL for the arguments that have a name here, in their order; those
 * that may be NULL have none.
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
