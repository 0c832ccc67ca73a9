/*-------------------------------------------------------------------------
 *
 * check_problem.c
 *	  One problem that a check has found: it is listed, for feed_check(), or
 *	  its cure is run, by feed_repair().
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "nodes/execnodes.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/tuplestore.h"

#include "admin/check.h"

/*
 * List a problem, or run its cure.  Returns whether that was run.  cure is NULL
 * if only the owner can decide what to do.
 *
 * DDL needs a table that is not open, so it is opened again afterwards: what
 * the caller knows of cxt->rel is out of date then.
 */
bool
feedpub_check_add(FeedpubCheck *cxt, const char *guard, const char *problem,
				  char *cure, FeedpubCure who)
{
	Oid			relid = RelationGetRelid(cxt->rel);
	Datum		values[3] = {0};
	bool		nulls[3] = {false, false, cure == NULL};

	if (cxt->repairs && cure != NULL && who != FEEDPUB_CURE_BY_HAND)
	{
		relation_close(cxt->rel, NoLock);
		if (who == FEEDPUB_CURE_AS_CALLER)
			feedpub_role_run(cure);
		else
			feedpub_role_run_as_owner(cxt->feed, cure);
		cxt->rel = relation_open(relid, AccessShareLock);
		cxt->nrepaired++;
		return true;
	}
	cxt->has_cure = cxt->first == NULL ? cure != NULL : cxt->has_cure;
	cxt->first = cxt->first == NULL ? guard : cxt->first;
	if (cxt->result == NULL)
		return false;
	if (cure != NULL && who < FEEDPUB_CURE_SHOWN)
		cure = feedpub_check_call(cxt->feed, "SELECT", "feed_repair", "");
	values[0] = CStringGetTextDatum(guard);
	values[1] = CStringGetTextDatum(problem);
	if (cure != NULL)
		values[2] = CStringGetTextDatum(cure);
	tuplestore_putvalues(cxt->result->setResult, cxt->result->setDesc, values, nulls);
	return false;
}

/*
 * A call of one of our functions for a feed, whose name is a constant of type
 * regclass, so that no other function can be meant.
 */
char *
feedpub_check_call(Oid feed, const char *verb, const char *function,
				   const char *more_arguments)
{
	return psprintf("%s %s.%s(%s::pg_catalog.regclass%s)", verb,
					quote_identifier(get_namespace_name(feedpub_relation_schema())), function,
					quote_literal_cstr(feedpub_relation_name(feed)), more_arguments);
}
