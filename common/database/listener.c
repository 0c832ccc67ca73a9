/*-------------------------------------------------------------------------
 *
 * listener.c
 *	  The one connection that hears of batches, by LISTEN.
 *
 * The tasks of the pool call feed_listen() for the feeds that are waited for,
 * with the rights of the request; this connection needs none.  LISTEN takes
 * effect when it commits: from then on nothing is missed, and what was
 * published before is news of all feeds.
 *
 * Announcements end an hour after feed_listen() was called, and on a standby
 * there are none.  So from time to time all that wait read again, and call
 * feed_listen() if need be; on a standby, after STANDBY_INTERVAL.
 *
 * A connection that is silent may be half open: a proxy or a server that hangs
 * keeps it, and answers nothing.  So after PING_INTERVAL something is asked, and
 * if no answer comes, another connection is made.
 *
 *-------------------------------------------------------------------------
 */
#include "database/database.h"

#include <stdlib.h>

#define CHANNEL "feedpub"
#define RENEW_INTERVAL 1200000	/* ms */
#define STANDBY_INTERVAL 50		/* ms */
#define PING_INTERVAL 10000		/* ms */
#define ANSWER_TIMEOUT 10000	/* ms */

static void ask(DbSession *s, const char *statement);
static void opened(DbSession *session);
static void received(DbSession *session, PGresult *result);
static void closed(DbSession *session);
static void heard(const char *payload);

static DbSession session = {.application = FEEDPUB_PROGRAM " listener",
							.opened = opened,
							.received = received,
							.closed = closed,
							.heard = heard};
static const DbHearer *hearer;
static bool listening;
static bool asked;				/* the answer that comes next is to that */
static bool pinged;				/* which was asked for nothing else */
static bool standby;
static int64_t renew_at;
static int64_t ping_at;

void
db_listener_start(const DbHearer *whom)
{
	hearer = whom;
	db_session_open(&session);
}

/* Is the database to be had?  This connection notices first that it is not. */
bool
db_listener_ready(void)
{
	return listening;
}

/*
 * What waits has read a standby, perhaps another server than this one's: soon
 * all that wait read again.
 */
void
db_listener_renew(void)
{
	int64_t		soon = base_now() + STANDBY_INTERVAL;

	if (soon < renew_at)
		renew_at = soon;
}

/*
 * End a process of the database that does not end by itself.  The statements of
 * a session are answered in their order, and nothing is asked while one of them
 * is not.
 */
void
db_listener_terminate(int pid)
{
	BaseText	statement = {0};

	if (!listening)
		return;
	base_text_print(&statement, "SELECT pg_catalog.pg_terminate_backend(%d)", pid);
	db_session_send(&session, statement.data, 0, NULL);
	db_session_sync(&session);
	db_session_flush(&session);
	free(statement.data);
}

/* Returns when to be called again. */
int64_t
db_listener_sweep(int64_t now)
{
	int64_t		next = db_session_sweep(&session, now);

	if (!listening)
		return next;
	if (now >= renew_at)
	{
		renew_at = now + RENEW_INTERVAL;
		if (!standby)
			hearer->news_of_all();
		else if (session.syncs == 0)
		{
			ask(&session, "SELECT");
			next = session.deadline;
		}
	}
	else if (now >= ping_at && session.syncs == 0)
	{
		/* on a standby all that wait want to read again after each answer */
		pinged = !standby;
		ask(&session, "SELECT");
		next = session.deadline;
	}
	if (ping_at > now && ping_at < next)
		next = ping_at;
	return renew_at < next ? renew_at : next;
}

/* Send a statement; "received" goes on when it has been answered. */
static void
ask(DbSession *s, const char *statement)
{
	asked = true;
	ping_at = base_now() + PING_INTERVAL;
	s->deadline = base_now() + ANSWER_TIMEOUT;
	db_session_send(s, statement, 0, NULL);
	db_session_sync(s);
	db_session_flush(s);
}

static void
opened(DbSession *s)
{
	standby = db_session_is_standby(s);
	ask(s, standby ? "SELECT" : "LISTEN " CHANNEL);
}

/* An answer also says if the server is no standby any more. */
static void
received(DbSession *s, PGresult *result)
{
	if (result == NULL)
		return;
	if (PQresultStatus(result) == PGRES_FATAL_ERROR)
		db_session_close(s, PQresultErrorMessage(result));
	else if (PQresultStatus(result) == PGRES_PIPELINE_SYNC &&
			 standby != db_session_is_standby(s))
		db_session_close(s, "it has been promoted");
	else if (PQresultStatus(result) == PGRES_PIPELINE_SYNC && asked)
	{
		asked = false;
		s->deadline = 0;
		if (pinged)
		{
			pinged = false;
			PQclear(result);
			return;
		}
		listening = true;
		renew_at = base_now() + (standby ? STANDBY_INTERVAL : RENEW_INTERVAL);
		hearer->news_of_all();
	}
	PQclear(result);
}

static void
closed(DbSession *s)
{
	listening = false;
	pinged = false;
	hearer->lost();
}

static void
heard(const char *payload)
{
	if (*payload != '\0')
		hearer->news(strtoul(payload, NULL, 10));
	else
		hearer->news_of_all();
}
