/*-------------------------------------------------------------------------
 *
 * check_problem.c
 *	  The list of problems that the files of feed_check() make.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_class.h"
#include "utils/builtins.h"
#include "utils/rel.h"

#include "admin/check.h"

/*
 * Add a problem.  cure is NULL if only the owner can decide what to do.
 */
FeedpubProblem *
feedpub_check_add(FeedpubCheck *cxt, const char *guard, char *problem, char *cure)
{
	FeedpubProblem *p = palloc0_object(FeedpubProblem);

	p->guard = guard;
	p->problem = problem;
	p->cure = cure;
	cxt->problems = lappend(cxt->problems, p);
	return p;
}

bool
feedpub_check_is_partitioned(const FeedpubCheck *cxt)
{
	return cxt->rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE;
}

/*
 * A relation's name as a constant of type regclass, so that no other function
 * can be meant.
 */
char *
feedpub_check_regclass(const char *name)
{
	return psprintf("%s::pg_catalog.regclass", quote_literal_cstr(name));
}
