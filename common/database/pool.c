/*-------------------------------------------------------------------------
 *
 * pool.c
 *	  The connections to the database that run tasks.
 *
 * A task is one statement of feedpub._request(), a transaction of its own, sent
 * together with DISCARD ALL, so nothing that an owner's code left in the
 * session meets the next task.  It has ended when the first of the two has, and
 * the session is free when the second one has.
 *
 * If the connection is lost, a read is made once more, on another one.  What
 * writes is not, because the first attempt may have succeeded.
 *
 *-------------------------------------------------------------------------
 */
#include "database/database.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ms that the server may take to end a statement at --statement-timeout */
#define GRACE 5000

typedef enum WorkerState
{
	WORKER_CHECKS,				/* the extension */
	WORKER_IDLE,
	WORKER_LISTENS,				/* feed_listen(), before the statement of its task */
	WORKER_RUNS,
	WORKER_CLEARS				/* DISCARD ALL */
} WorkerState;

/* A session of the pool, and what it does. */
typedef struct Worker
{
	DbSession	session;		/* the first member */
	WorkerState state;			/* if the session is open */
	char	   *schema;			/* of the extension's functions, quoted */
	DbTask	   *task;
	DbResult   *result;			/* of the task */
	bool		failed;			/* DISCARD ALL, or the check */
} Worker;

static Worker *workers;
static int	worker_count;
static int	connected;			/* those that have been checked */
static DbTask *first_queued;
static DbTask **last_queued = &first_queued;

static void opened(DbSession *session);
static void received(DbSession *session, PGresult *result);
static void closed(DbSession *session);
static void send_limit(DbSession *session);
static const char *check_extension(Worker *worker, const PGresult *result);
static void log_problem(const char *problem);
static DbTask *take_task(void);
static void end_task(DbTask *task, DbResult *result);
static void start_task(Worker *worker, DbTask *task);
static void send_statement(Worker *worker, const char *text, int nargs);
static bool may_be_taken(Worker *worker, const char *role);
static void take_result(Worker *worker, PGresult *result);
static void end_transaction(Worker *worker);

void
db_pool_start(void)
{
	int			count = db_settings->pool;

	workers = base_alloc(count * sizeof(Worker));
	for (worker_count = 0; worker_count < count; worker_count++)
	{
		DbSession  *session = &workers[worker_count].session;

		session->application = FEEDPUB_PROGRAM;
		session->opened = opened;
		session->received = received;
		session->closed = closed;
		db_session_open(session);
	}
}

/* How many connections are there, to an extension of the right version? */
int
db_pool_connected(void)
{
	return connected;
}

/* The rows of a statement that was not committed are no result either. */
bool
db_result_failed(const DbResult *result)
{
	return result->sqlstate[0] != '\0' || result->rows == NULL;
}

void
db_result_release(DbResult *result)
{
	if (result == NULL || --result->refs > 0)
		return;
	PQclear(result->rows);
	PQclear(result->error);
	free(result->body.data);
	free(result);
}

/* Run a task when a session is free. */
void
db_pool_add(DbTask *task)
{
	task->next = NULL;
	*last_queued = task;
	last_queued = &task->next;
}

static DbTask *
take_task(void)
{
	DbTask	   *task = first_queued;

	first_queued = task->next;
	if (first_queued == NULL)
		last_queued = &first_queued;
	return task;
}

/* Give the tasks that are queued to sessions that are free. */
void
db_pool_work(void)
{
	bool		hope = false;	/* is there a session, or will there be? */

	for (int i = 0; i < worker_count && first_queued != NULL; i++)
	{
		Worker	   *worker = &workers[i];

		db_session_hurry(&worker->session);
		if (db_session_hopes(&worker->session))
			hope = true;
		if (worker->session.state == DB_SESSION_OPEN &&
			worker->state == WORKER_IDLE)
			start_task(worker, take_task());
	}
	if (hope)
		return;
	while (first_queued != NULL)
	{
		DbTask	   *task = take_task();
		DbResult   *result = base_alloc(sizeof(DbResult));

		task->begins(task, result);
		end_task(task, result);
	}
}

static void
end_task(DbTask *task, DbResult *result)
{
	result->refs = 1;
	task->tries = 0;
	task->ended(task, result);
}

/* Returns when to be called again. */
int64_t
db_pool_sweep(int64_t now)
{
	int64_t		next = INT64_MAX;

	for (int i = 0; i < worker_count; i++)
	{
		int64_t		at = db_session_sweep(&workers[i].session, now);

		if (at < next)
			next = at;
	}
	return next;
}

/* Look at the extension: it must be of this program's version. */
static void
opened(DbSession *session)
{
	Worker	   *worker = (Worker *) session;

	worker->state = WORKER_CHECKS;
	worker->failed = true;
	db_session_send(session,
					"SELECT pg_catalog.quote_ident(n.nspname), e.extversion"
					" FROM pg_catalog.pg_extension e JOIN pg_catalog.pg_namespace n"
					" ON n.oid OPERATOR(pg_catalog.=) e.extnamespace"
					" WHERE e.extname OPERATOR(pg_catalog.=) 'feedpub'",
					0, NULL);
	send_limit(session);
	db_session_sync(session);
	db_session_flush(session);
}

/* Have the server end statements that take too long. */
static void
send_limit(DbSession *session)
{
	char		text[64];

	snprintf(text, sizeof(text), "SET statement_timeout = '%ds'",
			 db_settings->statement_timeout);
	db_session_send(session, text, 0, NULL);
}

/* Returns what is wrong, or NULL. */
static const char *
check_extension(Worker *worker, const PGresult *result)
{
	static char problem[128];

	if (PQresultStatus(result) != PGRES_TUPLES_OK)
		return PQresultErrorMessage(result);
	if (PQntuples(result) == 0)
		return "it has no extension feedpub";
	if (strcmp(PQgetvalue(result, 0, 1), FEEDPUB_VERSION) != 0)
	{
		snprintf(problem, sizeof(problem),
				 "its extension feedpub has version %s, " FEEDPUB_PROGRAM " has " FEEDPUB_VERSION,
				 PQgetvalue(result, 0, 1));
		return problem;
	}
	free(worker->schema);
	worker->schema = base_copy(PQgetvalue(result, 0, 0));
	return NULL;
}

/*
 * Log why the database cannot be used, or NULL if it can: each session looks,
 * at each attempt, so it is logged once, until it is something else.
 */
static void
log_problem(const char *problem)
{
	static char *logged;

	if (problem != NULL && (logged == NULL || strcmp(problem, logged) != 0))
		base_log(BASE_LOG_ERROR, "could not use the database: %s", problem);
	free(logged);
	logged = base_copy(problem);
}

/* The connection is lost: so is what it did. */
static void
closed(DbSession *session)
{
	Worker	   *worker = (Worker *) session;
	DbTask	   *task = worker->task;
	DbResult   *result = worker->result;

	if (worker->state != WORKER_CHECKS)
		connected--;
	worker->state = WORKER_CHECKS;
	worker->task = NULL;
	worker->result = NULL;
	if (task == NULL)
		return;
	if (!task->statement->writes && task->tries++ == 0)
	{
		db_result_release(result);
		db_pool_add(task);
		return;
	}
	PQclear(result->rows);
	result->rows = NULL;
	result->sqlstate[0] = '\0';
	end_task(task, result);
}

static void
start_task(Worker *worker, DbTask *task)
{
	DbSession  *session = &worker->session;

	worker->task = task;
	worker->result = base_alloc(sizeof(DbResult));
	worker->result->of_standby = db_session_is_standby(session);
	task->begins(task, worker->result);
	worker->state = WORKER_RUNS;
	session->deadline = base_now() + db_settings->statement_timeout * INT64_C(1000) + GRACE;
	if (task->listens && !worker->result->of_standby)
	{
		worker->state = WORKER_LISTENS;
		send_statement(worker, "SELECT %1$s.feed_listen($1::pg_catalog.regclass)", 1);
	}
	send_statement(worker, task->statement->text, task->statement->nargs);
	db_session_sync(session);
	db_session_send(session, "DISCARD ALL", 0, NULL);
	send_limit(session);
	db_session_sync(session);
	db_session_flush(session);
}

/*
 * Send a statement with the first arguments of the task.  Code of users that it
 * runs cannot leave the role: feedpub._request().
 */
static void
send_statement(Worker *worker, const char *text, int nargs)
{
	const DbTask *task = worker->task;
	const char *values[DB_MAX_ARGUMENTS + 4];
	BaseText	statement = {0};
	BaseText	call = {0};

	base_text_print(&statement, text, worker->schema);
	base_text_print(&call, "SELECT feedpub._request($1, $2, $3::pg_catalog.bool, $4");
	values[0] = *task->role == '\0'		 ? NULL :
		may_be_taken(worker, task->role) ? task->role :
										   "";
	values[1] = *task->claims != '\0' ? task->claims : NULL;
	values[2] = task->statement->writes ? "f" : "t";
	values[3] = statement.data;
	for (int i = 0; i < nargs; i++)
	{
		base_text_print(&call, ", $%d", i + 5);
		values[i + 4] = task->arguments[i];
	}
	base_text_print(&call, ")");
	db_session_send(&worker->session, call.data, nargs + 4, values);
	free(statement.data);
	free(call.data);
}

/*
 * Every role that the server may take, but the login role, which needs no grant
 * to be itself: only --anonymous-role may name it.  No role is named "", so that
 * is refused as another one is.
 */
static bool
may_be_taken(Worker *worker, const char *role)
{
	return strcmp(role, PQuser(worker->session.connection)) != 0 ||
		strcmp(role, db_settings->anonymous_role) == 0;
}

/* Something has come: a result, or NULL at the end of a statement's. */
static void
received(DbSession *session, PGresult *result)
{
	Worker	   *worker = (Worker *) session;
	const char *problem;

	if (PQresultStatus(result) == PGRES_PIPELINE_SYNC)
	{
		PQclear(result);
		end_transaction(worker);
		return;
	}
	switch (worker->state)
	{
		case WORKER_CHECKS:
			if (result == NULL || PQresultStatus(result) == PGRES_COMMAND_OK ||
				PQresultStatus(result) == PGRES_PIPELINE_ABORTED)
				break;
			problem = check_extension(worker, result);
			worker->failed = problem != NULL;
			log_problem(problem);
			break;
		case WORKER_LISTENS:
			if (result == NULL)
				worker->state = WORKER_RUNS;
			else
				take_result(worker, result);
			return;
		case WORKER_RUNS:
			if (result != NULL)
				take_result(worker, result);
			return;
		case WORKER_CLEARS:
			if (result != NULL)
				worker->failed = PQresultStatus(result) != PGRES_COMMAND_OK;
			break;
		case WORKER_IDLE:
			break;
	}
	PQclear(result);
}

/* Take the rows of a task, or the first error, which rules the rows out. */
static void
take_result(Worker *worker, PGresult *rows)
{
	DbResult   *result = worker->result;
	const char *sqlstate = PQresultErrorField(rows, PG_DIAG_SQLSTATE);

	if (PQresultStatus(rows) == PGRES_TUPLES_OK && worker->state == WORKER_RUNS)
		result->rows = rows;
	else if (PQresultStatus(rows) == PGRES_FATAL_ERROR && result->error == NULL)
	{
		snprintf(result->sqlstate, sizeof(result->sqlstate), "%s",
				 sqlstate != NULL ? sqlstate : "");
		result->error = rows;
	}
	else
		PQclear(rows);
}

static void
end_transaction(Worker *worker)
{
	DbSession  *session = &worker->session;
	DbTask	   *task = worker->task;
	DbResult   *result = worker->result;

	if (task != NULL)
	{
		worker->state = WORKER_CLEARS;
		worker->failed = true;
		worker->task = NULL;
		worker->result = NULL;
		end_task(task, result);
		return;
	}
	if (worker->failed)
	{
		db_session_close(session, NULL);
		return;
	}
	if (worker->state == WORKER_CHECKS)
		connected++;
	worker->state = WORKER_IDLE;
	session->deadline = 0;
}
