/*-------------------------------------------------------------------------
 *
 * pool.c
 *	  The connections to the database that make jobs.
 *
 * A job is one statement of feedpub._request(), a transaction of its own, sent
 * together with DISCARD ALL, so nothing that an owner's code left in the
 * session meets the next request.  Its requests are answered when the first of
 * the two has ended, and the session is free when the second one has.
 *
 * If the connection is lost, a read is made once more, on another one.  What
 * writes is not, because the first attempt may have succeeded.
 *
 *-------------------------------------------------------------------------
 */
#include "http.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ms that the server may take to end a statement at --statement-timeout */
#define GRACE 5000

typedef enum WorkerState
{
	WORKER_CHECKS,				/* the extension */
	WORKER_IDLE,
	WORKER_LISTENS,				/* feed_listen(), before the read of its job */
	WORKER_RUNS,
	WORKER_CLEARS				/* DISCARD ALL */
} WorkerState;

/* A session of the pool, and what it does. */
typedef struct Worker
{
	HttpSession session;		/* the first member */
	WorkerState state;			/* if the session is open */
	char	   *schema;			/* of the extension's functions, quoted */
	HttpJob    *job;
	HttpResult *result;			/* of the job */
	bool		failed;			/* DISCARD ALL, or the check */
} Worker;

static Worker *workers;
static int	worker_count;
static int	connected;			/* those that have been checked */

static void opened(HttpSession *session);
static void received(HttpSession *session, PGresult *result);
static void closed(HttpSession *session);
static void send_limit(HttpSession *session);
static const char *check_extension(Worker *worker, const PGresult *result);
static void log_problem(const char *problem);
static void start_job(Worker *worker, HttpJob *job);
static void send_statement(Worker *worker, const char *text, int nargs);
static bool may_be_taken(Worker *worker, const char *role);
static void take_result(Worker *worker, PGresult *result);
static void end_transaction(Worker *worker);

void
http_pool_start(int count)
{
	workers = http_alloc(count * sizeof(Worker));
	for (worker_count = 0; worker_count < count; worker_count++)
	{
		HttpSession *session = &workers[worker_count].session;

		session->application = "feedpub-http";
		session->opened = opened;
		session->received = received;
		session->closed = closed;
		http_session_open(session);
	}
}

/* How many connections are there, to an extension of the right version? */
int
http_pool_connected(void)
{
	return connected;
}

/*
 * Suspend a request until a statement has been run for it.
 */
void
http_pool_run(HttpRequest *request, const HttpStatement *statement,
			  const char *const *arguments,
			  enum MHD_Result (*go_on)(HttpRequest *request))
{
	http_job_add(request, statement, arguments, InvalidOid, 0, 0, go_on);
}

/* The rows of a statement that was not committed are no result either. */
bool
http_result_failed(const HttpResult *result)
{
	return result->sqlstate[0] != '\0' || result->rows == NULL;
}

void
http_result_release(HttpResult *result)
{
	if (result == NULL || --result->refs > 0)
		return;
	PQclear(result->rows);
	PQclear(result->error);
	free(result->body.data);
	free(result);
}

/* Give the jobs that are queued to sessions that are free. */
void
http_pool_work(void)
{
	bool		hope = false;	/* is there a session, or will there be? */
	HttpJob    *job;

	if (!http_job_is_queued())
		return;
	for (int i = 0; i < worker_count; i++)
	{
		Worker	   *worker = &workers[i];

		http_session_hurry(&worker->session);
		if (http_session_hopes(&worker->session))
			hope = true;
		if (worker->session.state == HTTP_SESSION_OPEN &&
			worker->state == WORKER_IDLE)
		{
			job = http_job_take();
			if (job == NULL)
				return;
			start_job(worker, job);
		}
	}
	while (!hope && (job = http_job_take()) != NULL)
		http_job_done(job, http_alloc(sizeof(HttpResult)));
}

/* Returns when to be called again. */
int64_t
http_pool_sweep(int64_t now)
{
	int64_t		next = INT64_MAX;

	for (int i = 0; i < worker_count; i++)
	{
		int64_t		at = http_session_sweep(&workers[i].session, now);

		if (at < next)
			next = at;
	}
	return next;
}

/* Look at the extension: it must be of this program's version. */
static void
opened(HttpSession *session)
{
	Worker	   *worker = (Worker *) session;

	worker->state = WORKER_CHECKS;
	worker->failed = true;
	http_session_send(session,
					  "SELECT pg_catalog.quote_ident(n.nspname), e.extversion"
					  " FROM pg_catalog.pg_extension e JOIN pg_catalog.pg_namespace n"
					  " ON n.oid OPERATOR(pg_catalog.=) e.extnamespace"
					  " WHERE e.extname OPERATOR(pg_catalog.=) 'feedpub'",
					  0, NULL);
	send_limit(session);
	http_session_sync(session);
	http_session_flush(session);
}

/* Have the server end statements that take too long. */
static void
send_limit(HttpSession *session)
{
	char		text[64];

	snprintf(text, sizeof(text), "SET statement_timeout = '%ds'",
			 http_config()->statement_timeout);
	http_session_send(session, text, 0, NULL);
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
				 "its extension feedpub has version %s, feedpub-http has " FEEDPUB_VERSION,
				 PQgetvalue(result, 0, 1));
		return problem;
	}
	free(worker->schema);
	worker->schema = http_copy(PQgetvalue(result, 0, 0));
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
		http_log(HTTP_LOG_ERROR, "could not use the database: %s", problem);
	free(logged);
	logged = http_copy(problem);
}

/* The connection is lost: so is what it did. */
static void
closed(HttpSession *session)
{
	Worker	   *worker = (Worker *) session;
	HttpJob    *job = worker->job;
	HttpResult *result = worker->result;

	if (worker->state != WORKER_CHECKS)
		connected--;
	worker->state = WORKER_CHECKS;
	worker->job = NULL;
	worker->result = NULL;
	if (job == NULL)
		return;
	if (!job->statement->writes && job->tries++ == 0)
	{
		http_result_release(result);
		http_job_again(job);
		return;
	}
	PQclear(result->rows);
	result->rows = NULL;
	result->sqlstate[0] = '\0';
	http_job_done(job, result);
}

/*
 * Send a job.  The clock is taken before the snapshot: news after this may not
 * be in what is read.
 */
static void
start_job(Worker *worker, HttpJob *job)
{
	HttpSession *session = &worker->session;

	worker->job = job;
	worker->result = http_alloc(sizeof(HttpResult));
	worker->result->started = http_job_clock();
	worker->result->of_standby = http_session_is_standby(session);
	worker->state = WORKER_RUNS;
	session->deadline = http_now() + http_config()->statement_timeout * INT64_C(1000) + GRACE;
	if (job->listens && !worker->result->of_standby)
	{
		worker->state = WORKER_LISTENS;
		send_statement(worker, "SELECT %1$s.feed_listen($1::pg_catalog.regclass)", 1);
	}
	send_statement(worker, job->statement->text, job->statement->nargs);
	http_session_sync(session);
	http_session_send(session, "DISCARD ALL", 0, NULL);
	send_limit(session);
	http_session_sync(session);
	http_session_flush(session);
}

/*
 * Send a statement with the first arguments of the job.  Code of users that it
 * runs cannot leave the role: feedpub._request().
 */
static void
send_statement(Worker *worker, const char *text, int nargs)
{
	const HttpJob *job = worker->job;
	const char *values[HTTP_MAX_ARGUMENTS + 4];
	HttpText	statement = {0};
	HttpText	call = {0};

	http_text_print(&statement, text, worker->schema);
	http_text_print(&call, "SELECT feedpub._request($1, $2, $3::pg_catalog.bool, $4");
	values[0] = *job->role == '\0'		? NULL :
		may_be_taken(worker, job->role) ? job->role :
										  "";
	values[1] = *job->claims != '\0' ? job->claims : NULL;
	values[2] = job->statement->writes ? "f" : "t";
	values[3] = statement.data;
	for (int i = 0; i < nargs; i++)
	{
		http_text_print(&call, ", $%d", i + 5);
		values[i + 4] = job->arguments[i];
	}
	http_text_print(&call, ")");
	http_session_send(&worker->session, call.data, nargs + 4, values);
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
		strcmp(role, http_config()->anonymous_role) == 0;
}

/* Something has come: a result, or NULL at the end of a statement's. */
static void
received(HttpSession *session, PGresult *result)
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

/* Take the rows of a job, or the first error, which rules the rows out. */
static void
take_result(Worker *worker, PGresult *rows)
{
	HttpResult *result = worker->result;
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
	HttpSession *session = &worker->session;
	HttpJob    *job = worker->job;
	HttpResult *result = worker->result;

	if (job != NULL)
	{
		worker->state = WORKER_CLEARS;
		worker->failed = true;
		worker->job = NULL;
		worker->result = NULL;
		http_job_done(job, result);
		return;
	}
	if (worker->failed)
	{
		http_session_close(session, NULL);
		return;
	}
	if (worker->state == WORKER_CHECKS)
		connected++;
	worker->state = WORKER_IDLE;
	session->deadline = 0;
}
