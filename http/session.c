/*-------------------------------------------------------------------------
 *
 * session.c
 *	  A connection to the database, which nothing waits for.
 *
 * The pool and the listener tell a session what to send and are told what
 * comes.  libpq's pipeline mode is on all the time: statements are sent one
 * after the other, and each http_session_sync() ends a transaction.
 *
 * Only the name of a server is looked up by a call that may wait
 * (PQconnectStartParams()); with "hostaddr" that is not needed.
 *
 *-------------------------------------------------------------------------
 */
#include "http.h"

#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

/* ms: before another attempt, if somebody waits for it; and for one */
#define RETRY_INTERVAL 500
#define HURRY_INTERVAL 50
#define CONNECT_TIMEOUT 10000

/* ms after which an attempt is not waited for, if the one before it failed */
#define HUNG 1000

static void ready(HttpSource *source, uint32_t events);
static void go_on_connecting(HttpSession *session);
static void take_results(HttpSession *session);
static void ignore_notice(void *arg, const PGresult *notice);

/* Connect, or do so again, as --database says. */
void
http_session_open(HttpSession *session)
{
	const char *const names[] = {"fallback_application_name", "client_encoding",
								 "keepalives_idle", "keepalives_interval",
								 "keepalives_count", "tcp_user_timeout",
								 "dbname", NULL};
	const char *const values[] = {session->application, "UTF8", "30", "10",
								  "3", "30000", http_config()->database, NULL};

	session->source.ready = ready;
	session->state = HTTP_SESSION_CONNECTING;
	session->deadline = http_now() + CONNECT_TIMEOUT;
	session->connection = PQconnectStartParams(names, values, 1);
	if (session->connection == NULL)
		http_session_close(session, "out of memory");
	else if (PQstatus(session->connection) == CONNECTION_BAD)
		http_session_close(session, PQerrorMessage(session->connection));
	else
	{
		PQsetNoticeReceiver(session->connection, ignore_notice, NULL);
		http_loop_watch(&session->source, PQsocket(session->connection), EPOLLOUT);
	}
}

/*
 * Close the connection, for a reason that is logged, once for all attempts in a
 * row, or for none.  It is made again after a time.
 */
void
http_session_close(HttpSession *session, const char *reason)
{
	HttpSessionState state = session->state;

	if (state == HTTP_SESSION_CLOSED)
		return;
	if (reason != NULL && (state == HTTP_SESSION_OPEN || !session->has_failed))
		http_log(HTTP_LOG_WARNING, state == HTTP_SESSION_OPEN ? "%s lost the database: %s" : "%s could not connect to the database: %s",
				 session->application, reason);
	session->has_failed = true;
	session->state = HTTP_SESSION_CLOSED;
	/* what was lost can be had again at once, if somebody waits for it */
	session->deadline = http_now() + RETRY_INTERVAL -
		(state == HTTP_SESSION_OPEN && reason != NULL ? HURRY_INTERVAL : 0);
	http_loop_forget(&session->source);
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
http_session_sweep(HttpSession *session, int64_t now)
{
	if (session->deadline > 0 && session->deadline <= now)
	{
		if (session->state == HTTP_SESSION_CLOSED)
			http_session_open(session);
		else
			http_session_close(session, "it took too long");
	}
	if (session->state == HTTP_SESSION_CONNECTING && session->has_failed &&
		http_session_hopes(session))
		return session->deadline - CONNECT_TIMEOUT + HUNG;
	return session->deadline > 0 ? session->deadline : INT64_MAX;
}

/*
 * Is it open, or may it be so soon?  Without this each request would wait as
 * long as an attempt, if the server does not answer.
 */
bool
http_session_hopes(const HttpSession *session)
{
	return session->state == HTTP_SESSION_OPEN ||
		(session->state == HTTP_SESSION_CONNECTING &&
		 (!session->has_failed ||
		  http_now() < session->deadline - CONNECT_TIMEOUT + HUNG));
}

/*
 * Somebody waits for a session that is closed: connect now, unless that has
 * just been tried.
 */
void
http_session_hurry(HttpSession *session)
{
	if (session->state == HTTP_SESSION_CLOSED &&
		http_now() >= session->deadline - RETRY_INTERVAL + HURRY_INTERVAL)
		http_session_open(session);
}

static void
ready(HttpSource *source, uint32_t events)
{
	HttpSession *session = (HttpSession *) source;

	if (session->state == HTTP_SESSION_CONNECTING)
		go_on_connecting(session);
	else if (PQconsumeInput(session->connection) != 1)
		http_session_close(session, PQerrorMessage(session->connection));
	else
		take_results(session);
}

static void
go_on_connecting(HttpSession *session)
{
	PGconn	   *connection = session->connection;

	/* it may go on with another server, and so with another descriptor */
	http_loop_forget(&session->source);
	switch (PQconnectPoll(connection))
	{
		case PGRES_POLLING_READING:
			http_loop_watch(&session->source, PQsocket(connection), EPOLLIN);
			break;
		case PGRES_POLLING_WRITING:
			http_loop_watch(&session->source, PQsocket(connection), EPOLLOUT);
			break;
		case PGRES_POLLING_OK:
			session->state = HTTP_SESSION_OPEN;
			session->has_failed = false;
			PQsetnonblocking(connection, 1);
			PQenterPipelineMode(connection);
			http_loop_watch(&session->source, PQsocket(connection), EPOLLIN);
			session->opened(session);
			break;
		default:
			http_session_close(session, PQerrorMessage(connection));
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
take_results(HttpSession *session)
{
	PGconn	   *connection = session->connection;
	PGnotify   *news;
	int			ends = 0;		/* in a row */

	while (session->state == HTTP_SESSION_OPEN && session->syncs > 0 &&
		   !PQisBusy(connection))
	{
		PGresult   *result = PQgetResult(connection);

		/* the connection is lost: libpq expects nothing any more */
		if (result == NULL && ++ends > 2)
		{
			http_session_close(session, PQerrorMessage(connection));
			return;
		}
		if (result != NULL)
			ends = 0;
		if (PQresultStatus(result) == PGRES_PIPELINE_SYNC)
			session->syncs--;
		session->received(session, result);
	}
	if (session->state != HTTP_SESSION_OPEN)
		return;
	while ((news = PQnotifies(connection)) != NULL)
	{
		if (*news->extra != '\0')
			http_job_news(strtoul(news->extra, NULL, 10));
		else
			http_job_news_of_all();
		PQfreemem(news);
	}
	if (PQstatus(connection) != CONNECTION_OK)
		http_session_close(session, PQerrorMessage(connection));
	else
		http_session_flush(session);
}

/* Send a statement; all parameters are of type text. */
void
http_session_send(HttpSession *session, const char *text, int nargs,
				  const char *const *arguments)
{
	static const Oid types[HTTP_MAX_ARGUMENTS + 4] = {25, 25, 25, 25, 25, 25, 25, 25, 25, 25};

	PQsendQueryParams(session->connection, text, nargs, types, arguments, NULL,
					  NULL, 0);
}

/* The end of a transaction; http_session_flush() sends it. */
void
http_session_sync(HttpSession *session)
{
	session->syncs++;
	PQpipelineSync(session->connection);
}

/* Send what libpq has.  The session may be closed then. */
void
http_session_flush(HttpSession *session)
{
	int			rest = PQflush(session->connection);

	/* libpq has closed it; any other error is seen when it reads */
	if (PQsocket(session->connection) < 0)
	{
		http_session_close(session, PQerrorMessage(session->connection));
		return;
	}
	http_loop_watch(&session->source, PQsocket(session->connection),
					rest == 1 ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

/* Is it a standby's?  The server says so when it connects, and when it ends. */
bool
http_session_is_standby(const HttpSession *session)
{
	const char *standby = PQparameterStatus(session->connection, "in_hot_standby");

	return standby != NULL && strcmp(standby, "on") == 0;
}
