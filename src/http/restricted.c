/*-------------------------------------------------------------------------
 *
 * restricted.c
 *	  A statement whose code cannot leave the caller's role:
 *	  feedpub._restricted(), and feedpub._request() for a server.
 *
 * A server that logs in as one role and does each request as another, with SET
 * LOCAL ROLE, has a gap.  Code of users runs in its statements: row security,
 * triggers, defaults, functions.  Such code can call set_config('role', ...)
 * and become any role that the login role may become.  So the server runs each
 * statement of a request by this function.
 *
 * The statement runs as the current user, with the user's rights, in a
 * security-restricted operation.  Why its code reaches no other role:
 *
 * - The server refuses to set "role" and "session_authorization", in whichever
 *	 way (42501).  A function that is SECURITY DEFINER runs as its owner, which
 *	 is what the owner wants, but in the same operation: it cannot change the
 *	 role either, and when it returns, the role is the caller's again.
 * - No code is left to run after the operation.  A trigger that would be
 *	 deferred to the commit is refused (42501), also after SET CONSTRAINTS in
 *	 the statement's own code.  A caller that sends SET CONSTRAINTS ALL
 *	 IMMEDIATE before has such triggers run here.  A cursor WITH HOLD, which
 *	 would be read at commit, a prepared statement and LISTEN are refused.
 *	 Another cursor ends with the transaction, unread.
 * - Temporary tables, views, types and functions are refused: the next
 *	 statement of the session would find them before those of other schemas.
 * - Settings, "search_path" too, are set back at the end.
 * - All rows are read, and made text, before the operation ends: row security,
 *	 functions and the output functions of types run inside.
 *
 * If an error is raised, the abort of the transaction or subtransaction
 * restores role and settings.
 *
 * Of a request nothing at all is left: feedpub_leftover_clear() has the
 * argument.  So the next one, of another role, may follow in the same session.
 *
 * The search_path is the caller's, in which the names of feeds in arguments
 * are looked up.  To pin it would protect nothing, because all code here runs
 * as the caller anyway.  The statement itself is the server's, and must not
 * mean what others put into that path: its names and operators are qualified.
 *
 * A caller gets no right by this function.  So all roles may call it.
 *
 * The plans of requests are kept, by statement and role, so that nothing in a
 * plan has been decided for another role: what is constant is computed, and what
 * is inlined is checked, when the plan is made.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/plancache.h"
#include "utils/tuplestore.h"

#include "base/base.h"

#define KEPT_PLANS 32

/* A plan of a request. */
typedef struct KeptPlan
{
	char	   *statement;		/* or NULL */
	Oid			role;
	int			nargs;
	SPIPlanPtr	plan;
} KeptPlan;

static KeptPlan kept_plans[KEPT_PLANS];

PG_FUNCTION_INFO_V1(feedpub_restricted);
PG_FUNCTION_INFO_V1(feedpub_request);

static void run_restricted(FunctionCallInfo fcinfo, int statement);
static void take_role(const char *role);
static void refuse_role(void *arg);
static void set_locally(const char *name, const char *value);
static void run(const char *statement, ArrayType *arguments,
				bool is_kept, ReturnSetInfo *rsinfo);
static SPIPlanPtr find_plan(const char *statement, int nargs, Oid *argtypes);
static SPIPlanPtr make_plan(const char *statement, int nargs, Oid *argtypes);
static void check_statement(SPIPlanPtr plan);
static Datum first_column(HeapTuple tuple, TupleDesc desc, bool *isnull);

/*
 * feedpub._restricted(statement text, VARIADIC arguments text[] DEFAULT '{}')
 * returns SETOF text, VOLATILE
 *
 * Runs one SELECT, INSERT, UPDATE, DELETE or MERGE, whose parameters are of
 * type text, as the current user in a security-restricted operation.  Returns
 * the first column of its rows as text; no rows if it returns none.
 *
 * Locks and errors are those of the statement.  Further errors: 22023 if it is
 * anything else or more than one statement, 42501 for what is refused in a
 * security-restricted operation.
 */
Datum
feedpub_restricted(PG_FUNCTION_ARGS)
{
	feedpub_argument_check(fcinfo, 0, 2);
	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	run_restricted(fcinfo, 0);
	return (Datum) 0;
}

/*
 * feedpub._request(role text, claims text, read_only bool, statement text,
 * VARIADIC arguments text[] DEFAULT '{}') returns SETOF text, VOLATILE
 *
 * What a server does for a request, as one statement: until the end of the
 * transaction it takes a role, and sets request.jwt.claims, unless they are
 * null; all constraints are immediate, and nothing may be written if the
 * request is read_only.  Then it runs the statement as _restricted() does.  When
 * the transaction ends, the session's advisory locks are released, and what
 * sequences have given the session is forgotten.
 *
 * The settings are those that SET LOCAL makes, with the checks of SET: the
 * role must be one that the session's user may take, and none can be taken
 * inside of a SECURITY DEFINER function or of another restricted operation.
 * Errors are those of _restricted(), and 28000 if the role cannot be taken.
 */
Datum
feedpub_request(PG_FUNCTION_ARGS)
{
	ConstraintsSetStmt *constraints = makeNode(ConstraintsSetStmt);

	feedpub_argument_check(fcinfo, 2, 3);
	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);

	feedpub_leftover_clear();
	if (PG_GETARG_BOOL(2))
		set_locally("transaction_read_only", "on");
	if (!PG_ARGISNULL(1))
		set_locally("request.jwt.claims", text_to_cstring(PG_GETARG_TEXT_PP(1)));
	if (!PG_ARGISNULL(0))
		take_role(text_to_cstring(PG_GETARG_TEXT_PP(0)));
	AfterTriggerSetState(constraints);
	run_restricted(fcinfo, 3);
	return (Datum) 0;
}

/*
 * Run the statement that is this argument, with the next one, as the current
 * user.  The plan is kept if it is a request's.  A call that its code makes,
 * maybe of a request, keeps none: so a plan is never freed while it runs.
 */
static void
run_restricted(FunctionCallInfo fcinfo, int statement)
{
	Oid			userid;
	int			sec_context;
	int			nestlevel;

	GetUserIdAndSecContext(&userid, &sec_context);
	SetUserIdAndSecContext(userid, sec_context | SECURITY_RESTRICTED_OPERATION | FEEDPUB_OWNER_CODE);
	nestlevel = NewGUCNestLevel();
	run(text_to_cstring(PG_GETARG_TEXT_PP(statement)),
		PG_GETARG_ARRAYTYPE_P(statement + 1),
		statement > 0 && (sec_context & SECURITY_RESTRICTED_OPERATION) == 0,
		(ReturnSetInfo *) fcinfo->resultinfo);
	AtEOXact_GUC(false, nestlevel);
	SetUserIdAndSecContext(userid, sec_context);
}

/*
 * SET LOCAL ROLE.  That the role cannot be taken has an SQLSTATE of its own,
 * because the statement can fail with those of SET ROLE too.
 */
static void
take_role(const char *role)
{
	ErrorContextCallback context = {0};

	context.callback = refuse_role;
	context.previous = error_context_stack;
	error_context_stack = &context;
	set_locally("role", role);
	error_context_stack = context.previous;
}

/* 42501: it is not granted, or not now; 22023: there is none. */
static void
refuse_role(void *arg)
{
	int			sqlstate = geterrcode();

	if (sqlstate == ERRCODE_INSUFFICIENT_PRIVILEGE ||
		sqlstate == ERRCODE_INVALID_PARAMETER_VALUE)
		errcode(ERRCODE_INVALID_AUTHORIZATION_SPECIFICATION);
}

/* SET LOCAL */
static void
set_locally(const char *name, const char *value)
{
	(void) set_config_option(name, value, PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_LOCAL, true, 0, false);
}

static void
run(const char *statement, ArrayType *arguments, bool is_kept,
	ReturnSetInfo *rsinfo)
{
	SPIPlanPtr	plan;
	Oid		   *argtypes;
	Datum	   *values;
	bool	   *isnull;
	char	   *nulls;
	int			nargs;
	int			rc;

	SPI_connect();
	deconstruct_array(arguments, TEXTOID, -1, false, TYPALIGN_INT,
					  &values, &isnull, &nargs);
	argtypes = palloc(nargs * sizeof(Oid));
	nulls = palloc(nargs * sizeof(char));
	for (int i = 0; i < nargs; i++)
	{
		argtypes[i] = TEXTOID;
		nulls[i] = isnull[i] ? 'n' : ' ';
	}
	plan = is_kept ? find_plan(statement, nargs, argtypes) :
					 make_plan(statement, nargs, argtypes);
	rc = SPI_execute_plan(plan, values, nulls, false, 0);
	if (rc < 0)
		elog(ERROR, "could not run \"%s\": %s", statement,
			 SPI_result_code_string(rc));

	for (uint64 i = 0; SPI_tuptable != NULL && i < SPI_tuptable->numvals; i++)
	{
		bool		is_null;
		Datum		value = first_column(SPI_tuptable->vals[i],
										 SPI_tuptable->tupdesc, &is_null);

		CHECK_FOR_INTERRUPTS();
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, &value,
							 &is_null);
	}
	SPI_finish();
}

/* The plan of a request, made if there is none yet. */
static SPIPlanPtr
find_plan(const char *statement, int nargs, Oid *argtypes)
{
	static int	next;
	KeptPlan   *kept = kept_plans;
	SPIPlanPtr	plan;
	char	   *copy;

	for (; kept < kept_plans + KEPT_PLANS && kept->statement != NULL; kept++)
		if (kept->role == GetUserId() && kept->nargs == nargs &&
			strcmp(kept->statement, statement) == 0)
			return kept->plan;
	plan = make_plan(statement, nargs, argtypes);
	copy = MemoryContextStrdup(TopMemoryContext, statement);
	SPI_keepplan(plan);
	kept = &kept_plans[next];
	next = (next + 1) % KEPT_PLANS;
	if (kept->statement != NULL)
	{
		pfree(kept->statement);
		SPI_freeplan(kept->plan);
	}
	*kept = (KeptPlan){.statement = copy, .role = GetUserId(), .nargs = nargs, .plan = plan};
	return plan;
}

static SPIPlanPtr
make_plan(const char *statement, int nargs, Oid *argtypes)
{
	SPIPlanPtr	plan = SPI_prepare(statement, nargs, argtypes);

	if (plan == NULL)
		elog(ERROR, "could not prepare \"%s\": %s", statement,
			 SPI_result_code_string(SPI_result));
	check_statement(plan);
	return plan;
}

/*
 * Refuse all but one statement that is no utility statement.  What a rule adds
 * to it is part of it.
 */
static void
check_statement(SPIPlanPtr plan)
{
	List	   *sources = SPI_plan_get_plan_sources(plan);
	bool		is_allowed = list_length(sources) == 1;

	if (is_allowed)
	{
		CachedPlanSource *source = linitial(sources);
		ListCell   *cell;

		foreach(cell, source->query_list)
		{
			Query	   *query = lfirst_node(Query, cell);

			if (query->canSetTag && query->commandType == CMD_UTILITY)
				is_allowed = false;
		}
	}
	if (!is_allowed)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"statement\" must be one SELECT, INSERT, UPDATE, DELETE or MERGE")));
}

/*
 * The first column of a row as text.  A page is not copied for that.
 */
static Datum
first_column(HeapTuple tuple, TupleDesc desc, bool *isnull)
{
	Oid			type = desc->natts > 0 ? SPI_gettypeid(desc, 1) : InvalidOid;
	char	   *value;

	if (type == TEXTOID || type == JSONOID)
		return SPI_getbinval(tuple, desc, 1, isnull);
	value = type != InvalidOid ? SPI_getvalue(tuple, desc, 1) : NULL;
	*isnull = value == NULL;
	return value != NULL ? CStringGetTextDatum(value) : (Datum) 0;
}
