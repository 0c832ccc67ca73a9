/*-------------------------------------------------------------------------
 *
 * session.c
 *	  A connection to the database, which nothing waits for.
 *
 * The pool and the listener tell a session what to send and are told what
 * comes.  libpq's pipeline mode is on all the time: statements are sent one
 * after the other, and each db_session_sync() ends a transaction.
 *
 * Only the name of a server is looked up by a call that may wait
 * (PQconnectStartParams()); with "hostaddr" that is not needed.
 *
 *-------------------------------------------------------------------------
 */
#include "database/database.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

/* ms: before another attempt, if somebody waits for it; and for one */
#define RETRY_INTERVAL 500
#define HURRY_INTERVAL 50
#define CONNECT_TIMEOUT 10000

/* ms after which an attempt is not waited for, if the one before it failed */
#define HUNG 1000

/* of parameters */
static const Oid types[DB_MAX_ARGUMENTS + 4] = {25, 25, 25, 25, 25, 25, 25, 25, 25, 25};

const DbSettings *db_settings;

static void ready(BaseSource *source, uint32_t events);
static void go_on_connecting(DbSession *session);
static void take_results(DbSession *session);
static void ignore_notice(void *arg, const PGresult *notice);

/* Connect, or do so again, as --database says. */
void
db_session_open(DbSession *session)
{
	const char *const names[] = {"fallback_application_name", "client_encoding",
								 "keepalives_idle", "keepalives_interval",
								 "keepalives_count", "tcp_user_timeout",
								 "dbname", NULL};
	const char *const values[] = {session->application, "UTF8", "30", "10",
								  "3", "30000", db_settings->conninfo, NULL};

	session->source.ready = ready;
	session->is_late = false;
	session->state = DB_SESSION_CONNECTING;
	session->deadline = base_now() + CONNECT_TIMEOUT;
	session->connection = PQconnectStartParams(names, values, 1);
	if (session->connection == NULL)
		db_session_close(session, "out of memory");
	else if (PQstatus(session->connection) == CONNECTION_BAD)
		db_session_close(session, PQerrorMessage(session->connection));
	else
	{
		PQsetNoticeReceiver(session->connection, ignore_notice, NULL);
		base_loop_watch(&session->source, PQsocket(session->connection), EPOLLOUT);
	}
}

/*
 * What a session that runs statements of ours sends first.  The first result is
 * for db_session_extension(); the server ends statements that take too long.
 */
void
db_session_begin(DbSession *session)
{
	char		text[64];

	db_session_send(session,
					"SELECT pg_catalog.quote_ident(n.nspname), e.extversion"
					" FROM pg_catalog.pg_extension e JOIN pg_catalog.pg_namespace n"
					" ON n.oid OPERATOR(pg_catalog.=) e.extnamespace"
					" WHERE e.extname OPERATOR(pg_catalog.=) 'feedpub'",
					0, NULL);
	snprintf(text, sizeof(text), "SET statement_timeout = '%ds'",
			 db_settings->statement_timeout);
	db_session_send(session, text, 0, NULL);
	snprintf(text, sizeof(text), "SET lock_timeout = '%ds'",
			 db_settings->lock_timeout);
	db_session_send(session, text, 0, NULL);
}

/*
 * The extension must be there, in this program's version.  Returns what is wrong,
 * until the next call; or NULL, and puts its schema, quoted, in place of *schema.
 */
const char *
db_session_extension(const PGresult *result, char **schema)
{
	static char problem[128];

	if (PQntuples(result) == 0)
		return "it has no extension feedpub";
	if (strcmp(PQgetvalue(result, 0, 1), FEEDPUB_VERSION) != 0)
	{
		snprintf(problem, sizeof(problem),
				 "its extension feedpub has version %s, " FEEDPUB_PROGRAM " has " FEEDPUB_VERSION,
				 PQgetvalue(result, 0, 1));
		return problem;
	}
	free(*schema);
	*schema = base_copy(PQgetvalue(result, 0, 0));
	return NULL;
}

/*
 * Close the connection, for a reason that is logged, once for all attempts in a
 * row, or for none.  It is made again after a time.
 */
void
db_session_close(DbSession *session, const char *reason)
{
	DbSessionState state = session->state;

	if (state == DB_SESSION_CLOSED)
		return;
	if (reason != NULL && (state == DB_SESSION_OPEN || !session->has_failed))
		base_log(BASE_LOG_WARNING, state == DB_SESSION_OPEN ? "%s lost the database: %s" : "%s could not connect to the database: %s",
				 session->application, reason);
	session->has_failed = true;
	session->state = DB_SESSION_CLOSED;
	/* what was lost can be had again at once, if somebody waits for it */
	session->deadline = base_now() + RETRY_INTERVAL -
		(state == DB_SESSION_OPEN && reason != NULL ? HURRY_INTERVAL : 0);
	base_loop_forget(&session->source);
	PQfinish(session->connection);
	session->connection = NULL;
	session->syncs = 0;
	session->closed(session);
}

/*
 * See to the deadline of a session.  While it is open, the owner sets that.
 * Returns when to be called again.
 */
int64_t
db_session_sweep(DbSession *session, int64_t now)
{
	if (session->deadline > 0 && session->deadline <= now)
	{
		if (session->state == DB_SESSION_CLOSED)
			db_session_open(session);
		else
		{
			session->is_late = true;
			db_session_close(session, "it took too long");
		}
	}
	if (session->state == DB_SESSION_CONNECTING && session->has_failed &&
		db_session_hopes(session))
		return session->deadline - CONNECT_TIMEOUT + HUNG;
	return session->deadline > 0 ? session->deadline : INT64_MAX;
}

/*
 * Is it open, or may it be so soon?  Without this each request would wait as
 * long as an attempt, if the server does not answer.
 */
bool
db_session_hopes(const DbSession *session)
{
	return session->state == DB_SESSION_OPEN ||
		(session->state == DB_SESSION_CONNECTING &&
		 (!session->has_failed ||
		  base_now() < session->deadline - CONNECT_TIMEOUT + HUNG));
}

/*
 * Somebody waits for a session that is closed: connect now, unless that has
 * just been tried.
 */
void
db_session_hurry(DbSession *session)
{
	if (session->state == DB_SESSION_CLOSED &&
		base_now() >= session->deadline - RETRY_INTERVAL + HURRY_INTERVAL)
		db_session_open(session);
}

static void
ready(BaseSource *source, uint32_t events)
{
	DbSession  *session = (DbSession *) source;

	if (session->state == DB_SESSION_CONNECTING)
		go_on_connecting(session);
	else if (PQconsumeInput(session->connection) != 1)
		db_session_close(session, PQerrorMessage(session->connection));
	else
		take_results(session);
}

static void
go_on_connecting(DbSession *session)
{
	PGconn	   *connection = session->connection;

	/* it may go on with another server, and so with another descriptor */
	base_loop_forget(&session->source);
	switch (PQconnectPoll(connection))
	{
		case PGRES_POLLING_READING:
			base_loop_watch(&session->source, PQsocket(connection), EPOLLIN);
			break;
		case PGRES_POLLING_WRITING:
			base_loop_watch(&session->source, PQsocket(connection), EPOLLOUT);
			break;
		case PGRES_POLLING_OK:
			session->state = DB_SESSION_OPEN;
			session->has_failed = false;
			PQsetnonblocking(connection, 1);
			PQenterPipelineMode(connection);
			base_loop_watch(&session->source, PQsocket(connection), EPOLLIN);
			session->opened(session);
			break;
		default:
			db_session_close(session, PQerrorMessage(connection));
	}
}

static void
ignore_notice(void *arg, const PGresult *notice)
{
}

/*
 * Give the owner what has come.  "received" is called with each result, and
 * with NULL after the last one of a statement; PGRES_PIPELINE_SYNC is one too.
 * It may close the session.
 */
static void
take_results(DbSession *session)
{
	PGconn	   *connection = session->connection;
	PGnotify   *news;
	int			ends = 0;		/* in a row */

	while (session->state == DB_SESSION_OPEN && session->syncs > 0 &&
		   !PQisBusy(connection))
	{
		PGresult   *result = PQgetResult(connection);

		/* the connection is lost: libpq expects nothing any more */
		if (result == NULL && ++ends > 2)
		{
			db_session_close(session, PQerrorMessage(connection));
			return;
		}
		if (result != NULL)
			ends = 0;
		if (PQresultStatus(result) == PGRES_PIPELINE_SYNC)
			session->syncs--;
		session->received(session, result);
	}
	if (session->state != DB_SESSION_OPEN)
		return;
	while ((news = PQnotifies(connection)) != NULL)
	{
		if (session->heard != NULL)
			session->heard(news->extra);
		PQfreemem(news);
	}
	if (PQstatus(connection) != CONNECTION_OK)
		db_session_close(session, PQerrorMessage(connection));
	else
		db_session_flush(session);
}

/* Send a statement; all parameters are of type text. */
void
db_session_send(DbSession *session, const char *text, int nargs,
				const char *const *arguments)
{
	PQsendQueryParams(session->connection, text, nargs, types, arguments, NULL,
					  NULL, 0);
}

/* Prepare a statement with this many parameters, of type text. */
void
db_session_prepare(DbSession *session, const char *name, const char *text, int nargs)
{
	PQsendPrepare(session->connection, name, text, nargs, types);
}

/* Run a statement that has been prepared. */
void
db_session_run(DbSession *session, const char *name, int nargs,
			   const char *const *arguments)
{
	PQsendQueryPrepared(session->connection, name, nargs, arguments, NULL, NULL, 0);
}

/* The end of a transaction; db_session_flush() sends it. */
void
db_session_sync(DbSession *session)
{
	session->syncs++;
	PQpipelineSync(session->connection);
}

/* Send what libpq has.  The session may be closed then. */
void
db_session_flush(DbSession *session)
{
	int			rest = PQflush(session->connection);

	/* libpq has closed it; any other error is seen when it reads */
	if (PQsocket(session->connection) < 0)
	{
		db_session_close(session, PQerrorMessage(session->connection));
		return;
	}
	base_loop_watch(&session->source, PQsocket(session->connection),
					rest == 1 ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

/* Is it a standby's?  The server says so when it connects, and when it ends. */
bool
db_session_is_standby(const DbSession *session)
{
	const char *standby = PQparameterStatus(session->connection, "in_hot_standby");

	return standby != NULL && strcmp(standby, "on") == 0;
}
