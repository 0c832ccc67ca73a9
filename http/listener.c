/*-------------------------------------------------------------------------
 *
 * listener.c
 *	  The one connection that hears of batches, by LISTEN.
 *
 * The reads of the pool call feed_listen() for the feeds that are waited for,
 * with the rights of the request; this connection needs none.
 *
 * Announcements end an hour after feed_listen() was called, and on a standby
 * there are none.  So from time to time all that wait read again: after half an
 * hour, on a standby after STANDBY_INTERVAL.
 *
 *-------------------------------------------------------------------------
 */
#include "http.h"

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define CHANNEL "feedpub"
#define RENEW_INTERVAL 1800000	/* ms */
#define STANDBY_INTERVAL 50		/* ms */
#define RETRY_INTERVAL 500		/* ms */

static pthread_t thread;
static int	nudged;				/* an eventfd: the server ends */
static volatile bool ending;
static volatile bool listening; /* is there a connection? */

static void *run_listener(void *arg);
static PGconn *connect_listener(void);
static bool renew(PGconn *connection, bool standby);
static bool take_news(PGconn *connection);

void
http_listener_start(void)
{
	nudged = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (nudged < 0 || pthread_create(&thread, NULL, run_listener, NULL) != 0)
		abort();
}

void
http_listener_stop(void)
{
	ending = true;
	eventfd_write(nudged, 1);
	pthread_join(thread, NULL);
}

/* Is the database to be had?  This connection notices first that it is not. */
bool
http_listener_ready(void)
{
	return listening;
}

static void *
run_listener(void *arg)
{
	PGconn	   *connection = NULL;
	bool		standby = false;
	int64_t		retry_at = 0;
	int64_t		renew_at = 0;

	while (!ending)
	{
		struct pollfd fds[2] = {{.fd = nudged, .events = POLLIN},
								{.fd = -1, .events = POLLIN}};
		int64_t		now = http_now();
		int			timeout;

		if (connection == NULL && now >= retry_at)
		{
			connection = connect_listener();
			now = http_now();
			retry_at = now + RETRY_INTERVAL;
			/* what was published meanwhile was not heard */
			if (connection != NULL)
			{
				standby = http_pool_is_standby(connection);
				renew_at = now;
			}
		}
		if (connection != NULL && now >= renew_at)
		{
			if (!renew(connection, standby))
			{
				PQfinish(connection);
				connection = NULL;
				retry_at = now;
				continue;
			}
			renew_at = now + (standby ? STANDBY_INTERVAL : RENEW_INTERVAL);
		}

		listening = connection != NULL;
		timeout = (connection != NULL ? renew_at : retry_at) - now;
		if (connection != NULL)
			fds[1].fd = PQsocket(connection);
		poll(fds, 2, timeout > 0 ? timeout : 0);
		if (fds[1].revents != 0 && !take_news(connection))
		{
			http_log(HTTP_LOG_WARNING, "lost the listening connection: %s",
					 PQerrorMessage(connection));
			PQfinish(connection);
			connection = NULL;
			retry_at = http_now();
		}
	}
	PQfinish(connection);
	return NULL;
}

/* LISTEN takes effect when it commits: from then on nothing is missed. */
static PGconn *
connect_listener(void)
{
	PGconn	   *connection = http_pool_connect("feedpub-http listener");
	PGresult   *done;
	bool		good;

	if (connection == NULL || http_pool_is_standby(connection))
		return connection;
	done = PQexec(connection, "LISTEN " CHANNEL);
	good = PQresultStatus(done) == PGRES_COMMAND_OK;
	PQclear(done);
	if (good)
		return connection;
	http_log(HTTP_LOG_WARNING, "could not listen: %s",
			 PQerrorMessage(connection));
	PQfinish(connection);
	return NULL;
}

/*
 * Have all that wait read again.  Returns false if the connection is lost, or
 * has to be made anew, since the standby has been promoted.
 */
static bool
renew(PGconn *connection, bool standby)
{
	if (standby)
	{
		/* the server says that it is no standby when it answers */
		PQclear(PQexec(connection, "SELECT"));
		if (PQstatus(connection) != CONNECTION_OK ||
			!http_pool_is_standby(connection))
			return false;
	}
	http_job_news_of_all();
	return true;
}

/* Read what the server has sent; false if the connection is lost. */
static bool
take_news(PGconn *connection)
{
	PGnotify   *news;

	if (PQconsumeInput(connection) != 1)
		return false;
	while ((news = PQnotifies(connection)) != NULL)
	{
		Oid			feed = strtoul(news->extra, NULL, 10);

		if (feed != InvalidOid)
			http_job_news(feed);
		else
			http_job_news_of_all();
		PQfreemem(news);
	}
	return PQstatus(connection) == CONNECTION_OK;
}
