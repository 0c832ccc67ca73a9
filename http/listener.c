/*-------------------------------------------------------------------------
 *
 * listener.c
 *	  The one connection that hears of batches, by LISTEN.
 *
 * The reads of the pool call feed_listen() for the feeds that are waited for,
 * with the rights of the request; this connection needs none.  LISTEN takes
 * effect when it commits: from then on nothing is missed, and what was
 * published before is news of all feeds.
 *
 * Announcements end an hour after feed_listen() was called, and on a standby
 * there are none.  So from time to time all that wait read again, and call
 * feed_listen() if need be (job.c); on a standby, after STANDBY_INTERVAL.
 *
 *-------------------------------------------------------------------------
 */
#include "http.h"

#define CHANNEL "feedpub"
#define RENEW_INTERVAL 1200000	/* ms */
#define STANDBY_INTERVAL 50		/* ms */
#define ANSWER_TIMEOUT 10000	/* ms */

static void ask(HttpSession *s, const char *statement);
static void opened(HttpSession *session);
static void received(HttpSession *session, PGresult *result);
static void closed(HttpSession *session);

static HttpSession session = {.application = "feedpub-http listener",
							  .opened = opened,
							  .received = received,
							  .closed = closed};
static bool listening;
static bool standby;
static int64_t renew_at;

void
http_listener_start(void)
{
	http_session_open(&session);
}

/* Is the database to be had?  This connection notices first that it is not. */
bool
http_listener_ready(void)
{
	return listening;
}

/*
 * What waits has read a standby, perhaps another server than this one's: soon
 * all that wait read again.
 */
void
http_listener_renew(void)
{
	int64_t		soon = http_now() + STANDBY_INTERVAL;

	if (soon < renew_at)
		renew_at = soon;
}

/* Returns when to be called again. */
int64_t
http_listener_sweep(int64_t now)
{
	int64_t		next = http_session_sweep(&session, now);

	if (!listening)
		return next;
	if (now >= renew_at)
	{
		renew_at = now + RENEW_INTERVAL;
		if (!standby)
			http_job_news_of_all();
		else if (session.syncs == 0)
		{
			ask(&session, "SELECT");
			next = session.deadline;
		}
	}
	return renew_at < next ? renew_at : next;
}

/* Send a statement; "received" goes on when it has been answered. */
static void
ask(HttpSession *s, const char *statement)
{
	s->deadline = http_now() + ANSWER_TIMEOUT;
	http_session_send(s, statement, 0, NULL);
	http_session_sync(s);
	http_session_flush(s);
}

static void
opened(HttpSession *s)
{
	standby = http_session_is_standby(s);
	ask(s, standby ? "SELECT" : "LISTEN " CHANNEL);
}

/* An answer also says if the server is no standby any more. */
static void
received(HttpSession *s, PGresult *result)
{
	if (result == NULL)
		return;
	if (PQresultStatus(result) == PGRES_FATAL_ERROR)
		http_session_close(s, PQresultErrorMessage(result));
	else if (PQresultStatus(result) == PGRES_PIPELINE_SYNC &&
			 standby != http_session_is_standby(s))
		http_session_close(s, "it has been promoted");
	else if (PQresultStatus(result) == PGRES_PIPELINE_SYNC)
	{
		listening = true;
		s->deadline = 0;
		renew_at = http_now() + (standby ? STANDBY_INTERVAL : RENEW_INTERVAL);
		http_job_news_of_all();
	}
	PQclear(result);
}

static void
closed(HttpSession *s)
{
	listening = false;
	http_job_forget_listening();
}
