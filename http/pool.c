/*-------------------------------------------------------------------------
 *
 * pool.c
 *	  The connections to the database, and the jobs that they make.
 *
 * A job is one pipelined round trip, a transaction of its own.  When its
 * requests have been resumed, the session is cleared by DISCARD ALL, so
 * nothing that an owner's code left in it meets the next request.
 *
 *-------------------------------------------------------------------------
 */
#include "http.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a thread of the pool knows of its connection. */
typedef struct Session
{
	PGconn	   *connection;		/* or NULL */
	char	   *schema;			/* of the extension's functions, quoted */
} Session;

static const char *const listen_statement =
	"SELECT %1$s.feed_listen($1::pg_catalog.regclass)";

static int	connected;			/* sessions that have a connection; atomic */

static pthread_t *threads;
static int	thread_count;

static void *run_pool(void *arg);
static bool connect_session(Session *session);
static void disconnect_session(Session *session);
static bool send_statement(Session *session, const char *text, const HttpJob *job,
						   int nargs);
static bool is_open(PGconn *connection);
static bool run_job(Session *session, const HttpJob *job, HttpResult *result);
static void take_error(HttpResult *result, const PGresult *error);
static void clear_session(Session *session);

void
http_pool_start(int count)
{
	threads = http_alloc(count * sizeof(pthread_t));
	for (thread_count = 0; thread_count < count; thread_count++)
		if (pthread_create(&threads[thread_count], NULL, run_pool, NULL) != 0)
			abort();
}

/* The threads end when there are no more jobs. */
void
http_pool_stop(void)
{
	for (int i = 0; i < thread_count; i++)
		pthread_join(threads[i], NULL);
	free(threads);
}

/* How many connections are there, to an extension of the right version? */
int
http_pool_connected(void)
{
	return __sync_add_and_fetch(&connected, 0);
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
	if (result == NULL || __sync_sub_and_fetch(&result->refs, 1) > 0)
		return;
	PQclear(result->rows);
	free(result->message);
	free(result->body.data);
	free(result);
}

/* The life of a thread of the pool. */
static void *
run_pool(void *arg)
{
	Session		session = {0};
	HttpJob    *job;

	/* readiness is known before the first request */
	connect_session(&session);
	while ((job = http_job_take()) != NULL)
	{
		HttpResult *result = http_alloc(sizeof(HttpResult));

		/* a connection that was idle may have been closed: a second try */
		if (session.connection != NULL && !is_open(session.connection))
			disconnect_session(&session);
		for (int i = 0; i < (job->statement->writes ? 1 : 2); i++)
		{
			if (session.connection == NULL && !connect_session(&session))
				break;
			if (run_job(&session, job, result))
				break;
			disconnect_session(&session);
		}
		http_job_done(job, result);
		if (session.connection != NULL)
			clear_session(&session);
	}
	disconnect_session(&session);
	return NULL;
}

/* Connect as --database says; NULL if it fails, which has been logged. */
PGconn *
http_pool_connect(const char *application)
{
	const char *const names[] = {"fallback_application_name", "client_encoding",
								 "connect_timeout", "dbname", NULL};
	const char *const values[] = {application, "UTF8", "10",
								  http_config()->database, NULL};
	PGconn	   *connection = PQconnectdbParams(names, values, 1);

	if (PQstatus(connection) == CONNECTION_OK)
		return connection;
	http_log(HTTP_LOG_WARNING, "could not connect to the database: %s",
			 PQerrorMessage(connection));
	PQfinish(connection);
	return NULL;
}

/* Is it a standby's?  The server says so in each connection, and when it ends. */
bool
http_pool_is_standby(PGconn *connection)
{
	const char *standby = PQparameterStatus(connection, "in_hot_standby");

	return standby != NULL && strcmp(standby, "on") == 0;
}

static void
ignore_notice(void *arg, const PGresult *notice)
{
}

/* Connect, and look at the extension: it must be of this program's version. */
static bool
connect_session(Session *session)
{
	PGconn	   *connection = http_pool_connect("feedpub-http");
	PGresult   *row;
	const char *problem = NULL;

	if (connection == NULL)
		return false;
	PQsetNoticeReceiver(connection, ignore_notice, NULL);
	row = PQexec(connection,
				 "SELECT pg_catalog.quote_ident(n.nspname), e.extversion"
				 " FROM pg_catalog.pg_extension e JOIN pg_catalog.pg_namespace n"
				 " ON n.oid OPERATOR(pg_catalog.=) e.extnamespace"
				 " WHERE e.extname OPERATOR(pg_catalog.=) 'feedpub'");
	if (PQresultStatus(row) != PGRES_TUPLES_OK)
		problem = PQerrorMessage(connection);
	else if (PQntuples(row) == 0)
		problem = "it has no extension feedpub";
	else if (strcmp(PQgetvalue(row, 0, 1), FEEDPUB_VERSION) != 0)
		problem = "its extension feedpub has another version than feedpub-http";
	if (problem != NULL)
	{
		http_log(HTTP_LOG_ERROR, "could not use the database: %s", problem);
		PQclear(row);
		PQfinish(connection);
		return false;
	}
	free(session->schema);
	session->schema = http_copy(PQgetvalue(row, 0, 0));
	session->connection = connection;
	PQclear(row);
	__sync_add_and_fetch(&connected, 1);
	return true;
}

static void
disconnect_session(Session *session)
{
	if (session->connection == NULL)
		return;
	PQfinish(session->connection);
	session->connection = NULL;
	free(session->schema);
	session->schema = NULL;
	__sync_sub_and_fetch(&connected, 1);
}

/*
 * Send a statement with the first arguments of a job, all of type text.  Code
 * of users that it runs cannot leave the role: feedpub._restricted().
 */
static bool
send_statement(Session *session, const char *text, const HttpJob *job, int nargs)
{
	static const Oid types[HTTP_MAX_ARGUMENTS + 1] = {25, 25, 25, 25, 25, 25, 25};
	const char *values[HTTP_MAX_ARGUMENTS + 1];
	HttpText	statement = {0};
	HttpText	call = {0};
	bool		sent;

	http_text_print(&statement, text, session->schema);
	http_text_print(&call, "SELECT feedpub._restricted($1");
	values[0] = statement.data;
	for (int i = 0; i < nargs; i++)
	{
		http_text_print(&call, ", $%d", i + 2);
		values[i + 1] = job->arguments[i];
	}
	http_text_print(&call, ")");
	sent = PQsendQueryParams(session->connection, call.data, nargs + 1, types,
							 values, NULL, NULL, 0) == 1;
	free(statement.data);
	free(call.data);
	return sent;
}

/* Has the server closed a connection that was idle? */
static bool
is_open(PGconn *connection)
{
	return PQconsumeInput(connection) == 1 &&
		PQstatus(connection) == CONNECTION_OK;
}

/*
 * Make a job.  Returns false if the connection was lost, and nothing is known
 * of it.  An error of a statement is a result.
 */
static bool
run_job(Session *session, const HttpJob *job, HttpResult *result)
{
	const HttpStatement *statement = job->statement;
	PGconn	   *connection = session->connection;
	const char *claims[] = {job->claims};
	const char *role[] = {job->role};
	bool		sent;
	int			before = 2;		/* results before that of the read */
	int			ends = 0;		/* in a row */
	bool		synced = false;

	/* before the snapshot: news after this may not be in what is read */
	result->started = http_job_clock();
	sent = PQenterPipelineMode(connection) == 1 &&
		PQsendQueryParams(connection,
						  statement->writes ? "BEGIN" : "BEGIN READ ONLY", 0,
						  NULL, NULL, NULL, NULL, 0) == 1;
	if (*job->claims != '\0')
	{
		before++;
		sent = sent &&
			PQsendQueryParams(connection,
							  "SELECT pg_catalog.set_config("
							  "'request.jwt.claims', $1, true)",
							  1, NULL, claims, NULL, NULL, 0) == 1;
	}
	if (*job->role != '\0')
	{
		before++;
		sent = sent &&
			PQsendQueryParams(connection,
							  "SELECT pg_catalog.set_config('role', $1, true)",
							  1, NULL, role, NULL, NULL, 0) == 1;
	}
	sent = sent &&
		PQsendQueryParams(connection, "SET CONSTRAINTS ALL IMMEDIATE", 0, NULL,
						  NULL, NULL, NULL, 0) == 1;
	if (statement->listens && !http_pool_is_standby(connection))
	{
		before++;
		sent = sent && send_statement(session, listen_statement, job, 1);
	}
	sent = sent &&
		send_statement(session, statement->text, job, statement->nargs) &&
		PQsendQueryParams(connection, "COMMIT", 0, NULL, NULL, NULL, NULL,
						  0) == 1 &&
		PQpipelineSync(connection) == 1;

	/* two ends in a row: libpq expects no more, so the sync is lost */
	for (int i = 0; sent && !synced && ends < 2 &&
		 PQstatus(connection) == CONNECTION_OK;)
	{
		PGresult   *rows = PQgetResult(connection);

		if (rows == NULL)
		{
			i++;				/* the end of a statement's results */
			ends++;
			continue;
		}
		ends = 0;
		switch (PQresultStatus(rows))
		{
			case PGRES_PIPELINE_SYNC:
				synced = true;
				break;
			case PGRES_TUPLES_OK:
				if (i == before)
				{
					result->rows = rows;
					continue;
				}
				break;
			case PGRES_FATAL_ERROR:
				take_error(result, rows);
				break;
			default:
				break;
		}
		PQclear(rows);
	}
	if (synced && (result->rows != NULL || result->sqlstate[0] != '\0'))
		return PQexitPipelineMode(connection) == 1;

	http_log(HTTP_LOG_WARNING, "lost the connection to the database: %s",
			 PQerrorMessage(connection));
	PQclear(result->rows);
	result->rows = NULL;
	result->sqlstate[0] = '\0';
	return false;
}

static void
take_error(HttpResult *result, const PGresult *error)
{
	const char *sqlstate = PQresultErrorField(error, PG_DIAG_SQLSTATE);
	const char *message = PQresultErrorField(error, PG_DIAG_MESSAGE_PRIMARY);

	if (sqlstate == NULL || result->sqlstate[0] != '\0')
		return;
	snprintf(result->sqlstate, sizeof(result->sqlstate), "%s", sqlstate);
	free(result->message);
	result->message = http_copy(message != NULL ? message : "");
}

/* Make a session as it was when it was new; close it if that fails. */
static void
clear_session(Session *session)
{
	PGconn	   *connection = session->connection;
	PGresult   *done;
	bool		good = true;

	if (PQtransactionStatus(connection) != PQTRANS_IDLE)
		PQclear(PQexec(connection, "ROLLBACK"));
	done = PQexec(connection, "DISCARD ALL");
	good = PQresultStatus(done) == PGRES_COMMAND_OK;
	PQclear(done);
	if (!good)
		disconnect_session(session);
}
