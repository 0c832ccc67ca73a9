/*-------------------------------------------------------------------------
 *
 * store.c
 *	  Statements on our own tables, run as their owner.
 *
 * Subscriptions are rows of ordinary tables, and only the extension's owner
 * has rights on them.  The caller's rights are checked before this code is
 * called.  Statements are prepared once in a session, under a pinned
 * search_path (role.c), so the caller's does not matter and operators need no
 * schema.
 *
 * Plans do without sequential scans.  A plan made while a table has one page
 * would read all of it, and stay when dead versions of its rows have made it
 * large.  The variable of the setting is changed, not the setting, which would
 * cost a poll some microseconds: only our own code runs meanwhile.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "jit/jit.h"
#include "optimizer/cost.h"
#include "parser/analyze.h"
#include "tcop/tcopprot.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "feed/feed.h"

/*
 * Become the owner of our tables, and keep the caller in *caller.  What a
 * statement returns is valid until feedpub_store_end(); the current memory context
 * stays the caller's.  An error ends it as well: the transaction's abort restores
 * the user and SPI.
 */
void
feedpub_store_begin(FeedpubRole *caller)
{
	MemoryContext context = CurrentMemoryContext;
	Oid			registry = feedpub_cache_registry();
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(registry));

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for relation %u", registry);
	feedpub_role_begin_extension(((Form_pg_class) GETSTRUCT(tuple))->relowner, caller);
	ReleaseSysCache(tuple);
	SPI_connect();
	MemoryContextSwitchTo(context);
}

void
feedpub_store_end(const FeedpubRole *caller)
{
	SPI_finish();
	feedpub_role_end(caller);
}

/*
 * Run a statement, in READ COMMITTED with a snapshot of its own.  Its text
 * tells the types of its arguments, as in PREPARE.  nulls is as in
 * SPI_execute_plan(), or NULL; then a value that is a pointer is NULL if it is 0.
 * Returns the number of rows, which are in SPI_tuptable.
 */
uint64
feedpub_store_run(FeedpubStatement *statement, Datum *values, const char *nulls)
{
	MemoryContext context = CurrentMemoryContext;
	bool		seqscan = enable_seqscan;
	bool		jit = jit_enabled;
	char		pointers[lengthof(statement->by_value)];
	int			rc;

	if (statement->plan == NULL)
	{
		RawStmt    *parsed = linitial_node(RawStmt, pg_parse_query(statement->sql));
		Oid		   *types = NULL;
		SPIPlanPtr	plan;

		statement->nargs = 0;
		(void) parse_analyze_varparams(parsed, statement->sql, &types, &statement->nargs, NULL);
		plan = SPI_prepare(statement->sql, statement->nargs, types);
		if (plan == NULL || SPI_keepplan(plan) != 0)
			elog(ERROR, "could not prepare: %s", statement->sql);
		for (int i = 0; i < statement->nargs; i++)
			statement->by_value[i] = get_typbyval(types[i]);
		statement->plan = plan;
	}
	for (int i = 0; i < statement->nargs; i++)
		pointers[i] = values[i] == 0 && !statement->by_value[i] ? 'n' : ' ';

	/* a plan that has to scan would be so dear that each run is compiled */
	enable_seqscan = jit_enabled = false;
	PG_TRY();
	{
		rc = SPI_execute_snapshot(statement->plan, values, nulls ? nulls : pointers,
								  statement->latest ? GetLatestSnapshot() : InvalidSnapshot,
								  InvalidSnapshot, false, true, 0);
	}
	PG_FINALLY();
	{
		enable_seqscan = seqscan;
		jit_enabled = jit;
	}
	PG_END_TRY();
	if (rc < 0)
		elog(ERROR, "could not run: %s", statement->sql);
	MemoryContextSwitchTo(context);
	return SPI_processed;
}

/*
 * The same for a statement whose rows are not needed, only their number.
 */
uint64
feedpub_store_execute(FeedpubStatement *statement, Datum *values, const char *nulls)
{
	FeedpubRole caller;
	uint64		nrows;

	feedpub_store_begin(&caller);
	nrows = feedpub_store_run(statement, values, nulls);
	feedpub_store_end(&caller);
	return nrows;
}

/*
 * The number in the first column of a statement's first row; none if there is
 * no row, or if it is NULL.
 */
int64
feedpub_store_number(FeedpubStatement *statement, Datum *values, int64 none)
{
	FeedpubRole caller;
	bool		isnull = true;
	Datum		value = (Datum) 0;

	feedpub_store_begin(&caller);
	if (feedpub_store_run(statement, values, NULL) > 0)
		value = feedpub_store_value(0, 1, &isnull);
	feedpub_store_end(&caller);
	return isnull ? none : DatumGetInt64(value);
}

/*
 * A column of a row that the last statement returned, 0 if it is NULL; isnull,
 * unless it is NULL, tells that.  The value is in SPI's memory.
 */
Datum
feedpub_store_value(uint64 row, int column, bool *isnull)
{
	bool		unused;

	return SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc,
						 column, isnull != NULL ? isnull : &unused);
}

/*
 * The same, of a type with a length, in the current memory context; NULL if it
 * is.
 */
void *
feedpub_store_copy(uint64 row, int column)
{
	bool		isnull;
	Datum		value = feedpub_store_value(row, column, &isnull);

	return isnull ? NULL : PG_DETOAST_DATUM_COPY(value);
}

/*
 * The values in the first column of a statement's rows, a List: of OIDs, or of
 * names if the column is of that type.
 */
List *
feedpub_store_list(FeedpubStatement *statement, Datum *values)
{
	List	   *list = NIL;
	FeedpubRole caller;
	uint64		nrows;

	feedpub_store_begin(&caller);
	nrows = feedpub_store_run(statement, values, NULL);
	for (uint64 i = 0; i < nrows; i++)
	{
		Datum		value = feedpub_store_value(i, 1, NULL);

		list = SPI_gettypeid(SPI_tuptable->tupdesc, 1) == NAMEOID ?
			lappend(list, pstrdup(NameStr(*DatumGetName(value)))) :
			lappend_oid(list, DatumGetObjectId(value));
	}
	feedpub_store_end(&caller);
	return list;
}
