/*-------------------------------------------------------------------------
 *
 * wait.c
 *	  Requests that wait for news of a feed.
 *
 * Waiting costs a socket and an entry of a list: no job, no connection of the
 * pool, no transaction.
 *
 * Why no news is missed.  The clock is the count of news.  A read takes the
 * clock before its snapshot.  If news of the feed is heard afterwards, the
 * feed's time is later than that, and the request reads again in place of
 * waiting.  News that was heard before was of a batch that the snapshot sees.
 * While the listener has no connection nothing is heard, but when it has one
 * again, that is news of all feeds.
 *
 *-------------------------------------------------------------------------
 */
#include "http.h"

#include <pthread.h>

#define FEED_BUCKETS 64

/* A feed that a request has waited for. */
typedef struct Feed
{
	struct Feed *next;
	Oid			oid;
	uint64_t	news;			/* the clock when it last had news */
	HttpRequest *waiting;
} Feed;

/* Deadlines are kept to this, so that many make few sweeps; ms */
#define SWEEP_INTERVAL 250

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Feed *feeds[FEED_BUCKETS];	/* never freed: as many as there are feeds */
static uint64_t news_count;
static uint64_t news_of_all;	/* the clock when all feeds last had news */
static int64_t next_sweep = INT64_MAX;

static Feed *find_feed(Oid oid, bool make);
static void wake(Feed *feed, HttpRequest *request, bool woken);
static void wake_all(Feed *feed);

uint64_t
http_wait_clock(void)
{
	uint64_t	now;

	pthread_mutex_lock(&lock);
	now = news_count;
	pthread_mutex_unlock(&lock);
	return now;
}

static Feed *
find_feed(Oid oid, bool make)
{
	Feed	  **bucket = &feeds[oid % FEED_BUCKETS];
	Feed	   *feed;

	for (feed = *bucket; feed != NULL; feed = feed->next)
		if (feed->oid == oid)
			return feed;
	if (make)
	{
		feed = http_alloc(sizeof(Feed));
		feed->oid = oid;
		feed->next = *bucket;
		*bucket = feed;
	}
	return feed;
}

/*
 * Suspend a request until there is news of a feed, or until the deadline; then
 * its go_on is called, with "woken" true if there was news.  Returns false,
 * and does nothing, if there has been news since a clock, or if the server
 * ends.
 */
bool
http_wait(HttpRequest *request, Oid oid, uint64_t since, int64_t deadline)
{
	bool		nudge = false;
	Feed	   *feed;

	pthread_mutex_lock(&lock);
	feed = find_feed(oid, true);
	if (feed->news > since || news_of_all > since || http_server_draining())
	{
		pthread_mutex_unlock(&lock);
		return false;
	}
	MHD_suspend_connection(request->connection);
	request->oid = oid;
	request->woken = false;
	request->deadline = deadline;
	request->previous_waiting = NULL;
	request->next_waiting = feed->waiting;
	if (feed->waiting != NULL)
		feed->waiting->previous_waiting = request;
	feed->waiting = request;
	if (deadline < next_sweep)
	{
		next_sweep = deadline;
		nudge = true;
	}
	pthread_mutex_unlock(&lock);
	if (nudge)
		http_listener_nudge();
	return true;
}

/* Take a request out of the list, and resume it. */
static void
wake(Feed *feed, HttpRequest *request, bool woken)
{
	if (request->previous_waiting != NULL)
		request->previous_waiting->next_waiting = request->next_waiting;
	else
		feed->waiting = request->next_waiting;
	if (request->next_waiting != NULL)
		request->next_waiting->previous_waiting = request->previous_waiting;
	request->woken = woken;
	http_resume(request);
}

static void
wake_all(Feed *feed)
{
	while (feed->waiting != NULL)
		wake(feed, feed->waiting, true);
}

/* A feed has news: wake all that wait for it. */
void
http_wait_news(Oid oid)
{
	Feed	   *feed;

	pthread_mutex_lock(&lock);
	news_count++;
	feed = find_feed(oid, true);
	feed->news = news_count;
	wake_all(feed);
	pthread_mutex_unlock(&lock);
}

/* Any feed may have news. */
void
http_wait_news_of_all(void)
{
	pthread_mutex_lock(&lock);
	news_of_all = ++news_count;
	for (int i = 0; i < FEED_BUCKETS; i++)
		for (Feed *feed = feeds[i]; feed != NULL; feed = feed->next)
			wake_all(feed);
	pthread_mutex_unlock(&lock);
}

/* The server ends: wake all, none waits again. */
void
http_wait_end_all(void)
{
	http_wait_news_of_all();
}

/*
 * Wake the requests whose deadline has come.  Returns in how many ms there is
 * something to do again, -1 if there is nothing.
 */
int
http_wait_sweep(void)
{
	int64_t		now = http_now();
	int64_t		rest;

	pthread_mutex_lock(&lock);
	if (next_sweep <= now)
	{
		next_sweep = INT64_MAX;
		for (int i = 0; i < FEED_BUCKETS; i++)
			for (Feed *feed = feeds[i]; feed != NULL; feed = feed->next)
			{
				HttpRequest *next;

				for (HttpRequest *request = feed->waiting; request != NULL;
					 request = next)
				{
					next = request->next_waiting;
					if (request->deadline <= now)
						wake(feed, request, false);
					else if (request->deadline < next_sweep)
						next_sweep = request->deadline;
				}
			}
		if (next_sweep != INT64_MAX && next_sweep < now + SWEEP_INTERVAL)
			next_sweep = now + SWEEP_INTERVAL;
	}
	rest = next_sweep == INT64_MAX ? -1 : next_sweep - now;
	pthread_mutex_unlock(&lock);
	return rest > 3600000 ? 3600000 : rest;
}
