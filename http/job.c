/*-------------------------------------------------------------------------
 *
 * job.c
 *	  The jobs of the pool: queued, running, or waiting for news of a feed.
 *
 * A job is a statement with its arguments, role and claims, and the requests
 * that want its result.  Requests for equal reads share one job, which is found
 * by its hash.  They never join a job that runs: its snapshot may be older than
 * the news that they came for.  A request is resumed once, when it gets the
 * result.
 *
 * Waiting costs a socket, a request and a share in a job: no connection of the
 * pool, no transaction.  If the result of a job is empty, the requests that
 * have time left wait with it.  News of the feed puts the job into the queue
 * again; no request is resumed for that.
 *
 * Why no news is missed.  The clock is the count of news.  When news arrives,
 * the clock goes on, the feed's time becomes the clock, and the jobs that wait
 * for the feed are queued.  A read takes the clock, then its snapshot, and when
 * it has ended, either the feed's time is later than its clock, and the job is
 * queued again, or the job begins to wait.  So news that is heard after the
 * clock was taken finds the job waiting, or the job finds it.  News that was
 * heard before is of a batch that the snapshot sees, since it is sent when the
 * batch commits.  A stream that has sent a page goes on by the same rule, with
 * the clock of that page.
 *
 * News is announced for an hour after feed_listen() was called.  A job waits
 * only if that was called for its feed less than LISTENED ago, before a read
 * whose result was empty; else it calls it and reads again.  While the listener
 * has no connection nothing is heard, but when it has one again, that is news
 * of all feeds, and feed_listen() is called again, perhaps on another server.
 * A read of a standby calls nothing, and may know less than was announced: if
 * it is empty, all that wait read again soon (listener.c).
 *
 * A client that goes away.  libmicrohttpd does not look at the sockets of
 * suspended connections.  So each request that waits is watched by an epoll of
 * this file, from its first wait until it ends; if its client has closed the
 * connection, or its side of it, the request is resumed and waits no more.  An
 * event never has a request that is no more, since none is freed while events
 * are taken.
 *
 *-------------------------------------------------------------------------
 */
#include "http.h"

#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#define JOB_BUCKETS 4096
#define FEED_BUCKETS 64

/*
 * A request joins a read that waits, without reading, if that was made less
 * than this many ms ago: so that many clients that come again after news make
 * one read.  It bounds how long a right that was revoked lets a request wait.
 */
#define FRESH 1000

/* ms for which feed_listen() is good: half of what it promises */
#define LISTENED 1800000

/* A feed that a job has waited for. */
struct HttpFeed
{
	HttpFeed   *next;
	Oid			oid;
	uint64_t	news;			/* the clock when it last had news */
	int64_t		heard_until;	/* ms; its news is announced */
	HttpJob    *waiting;
};

static HttpJob *jobs[JOB_BUCKETS];	/* reads that are queued or wait */
static HttpJob *first_queued;
static HttpJob **last_queued = &first_queued;
static HttpFeed *feeds[FEED_BUCKETS];	/* never freed: as many as there are feeds */
static uint64_t clock_now;
static uint64_t news_of_all;	/* the clock when all feeds last had news */
static uint64_t news_of_others; /* the same of those that are not in "feeds" */
static HttpStatistics statistics;

static int	watcher;			/* an epoll: clients that may go away */
static HttpSource watcher_source;

static uint64_t add_hash(uint64_t hash, const char *text);
static uint64_t hash_read(const HttpStatement *statement, const char *role,
						  const char *claims, const char *const *arguments);
static bool same_text(const char *a, const char *b);
static HttpJob *find_job(uint64_t hash, const HttpStatement *statement,
						 const char *role, const char *claims,
						 const char *const *arguments);
static void insert_job(HttpJob *job);
static void remove_job(HttpJob *job);
static void free_job(HttpJob *job);
static void queue_job(HttpJob *job);
static void let_wait(HttpJob *job, HttpFeed *feed);
static void stop_waiting(HttpJob *job);
static HttpFeed *known_feed(Oid oid);
static HttpFeed *find_feed(Oid oid);
static bool has_news(const HttpFeed *feed, uint64_t since);
static bool is_heard(const HttpFeed *feed);
static void add_request(HttpJob *job, HttpRequest *request);
static void watch_client(HttpRequest *request);
static void end_request(HttpRequest *request, HttpResult *result);
static void end_waiting(HttpRequest *request);
static void queue_waiting(HttpFeed *feed);
static bool end_late(HttpRequest *request, void *arg);
static void take_gone(HttpSource *source, uint32_t ready);

void
http_job_start(void)
{
	watcher = epoll_create1(EPOLL_CLOEXEC);
	if (watcher < 0)
		abort();
	watcher_source.ready = take_gone;
	http_loop_watch(&watcher_source, watcher, EPOLLIN);
}

void
http_job_statistics(HttpStatistics *copy)
{
	*copy = statistics;
}

/* FNV-1a, of the text and its end; NULL is not "". */
static uint64_t
add_hash(uint64_t hash, const char *text)
{
	for (; text != NULL && *text != '\0'; text++)
		hash = (hash ^ (unsigned char) *text) * UINT64_C(0x100000001b3);
	return (hash ^ (text != NULL ? 0x100 : 0x101)) * UINT64_C(0x100000001b3);
}

static uint64_t
hash_read(const HttpStatement *statement, const char *role, const char *claims,
		  const char *const *arguments)
{
	uint64_t	hash = UINT64_C(0xcbf29ce484222325) ^ (uintptr_t) statement;

	hash = add_hash(add_hash(hash, role), claims);
	for (int i = 0; i < statement->nargs; i++)
		hash = add_hash(hash, arguments[i]);
	return hash;
}

static bool
same_text(const char *a, const char *b)
{
	return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

/* A job that makes this read, and does not run. */
static HttpJob *
find_job(uint64_t hash, const HttpStatement *statement, const char *role,
		 const char *claims, const char *const *arguments)
{
	HttpJob    *job = statement->writes ? NULL : jobs[hash % JOB_BUCKETS];

	for (; job != NULL; job = job->next_of_bucket)
	{
		bool		same = job->hash == hash && job->statement == statement &&
			strcmp(job->role, role) == 0 && strcmp(job->claims, claims) == 0;

		for (int i = 0; same && i < statement->nargs; i++)
			same = same_text(job->arguments[i], arguments[i]);
		if (same)
			break;
	}
	return job;
}

static void
insert_job(HttpJob *job)
{
	if (job->statement->writes)
		return;
	job->next_of_bucket = jobs[job->hash % JOB_BUCKETS];
	jobs[job->hash % JOB_BUCKETS] = job;
}

static void
remove_job(HttpJob *job)
{
	HttpJob   **link = &jobs[job->hash % JOB_BUCKETS];

	if (job->statement->writes)
		return;
	while (*link != job)
		link = &(*link)->next_of_bucket;
	*link = job->next_of_bucket;
}

static void
free_job(HttpJob *job)
{
	http_result_release(job->result);
	free(job->role);
	free(job->claims);
	for (int i = 0; i < HTTP_MAX_ARGUMENTS; i++)
		free(job->arguments[i]);
	free(job);
}

/* The job neither waits nor is queued. */
static void
queue_job(HttpJob *job)
{
	job->feed = NULL;
	job->next = NULL;
	*last_queued = job;
	last_queued = &job->next;
}

static void
let_wait(HttpJob *job, HttpFeed *feed)
{
	statistics.waiting += job->count;
	job->feed = feed;
	job->previous = NULL;
	job->next = feed->waiting;
	if (feed->waiting != NULL)
		feed->waiting->previous = job;
	feed->waiting = job;
}

static void
stop_waiting(HttpJob *job)
{
	if (job->previous != NULL)
		job->previous->next = job->next;
	else
		job->feed->waiting = job->next;
	if (job->next != NULL)
		job->next->previous = job->previous;
	statistics.waiting -= job->count;
	job->feed = NULL;
}

static HttpFeed *
known_feed(Oid oid)
{
	HttpFeed   *feed = feeds[oid % FEED_BUCKETS];

	while (feed != NULL && feed->oid != oid)
		feed = feed->next;
	return feed;
}

static HttpFeed *
find_feed(Oid oid)
{
	HttpFeed  **bucket = &feeds[oid % FEED_BUCKETS];
	HttpFeed   *feed = known_feed(oid);

	if (feed != NULL)
		return feed;
	feed = http_alloc(sizeof(HttpFeed));
	feed->oid = oid;
	feed->news = news_of_others;
	feed->next = *bucket;
	*bucket = feed;
	return feed;
}

static bool
has_news(const HttpFeed *feed, uint64_t since)
{
	return feed->news > since || news_of_all > since;
}

/* Is the news of a feed announced? */
static bool
is_heard(const HttpFeed *feed)
{
	return http_now() < feed->heard_until;
}

/*
 * Suspend a request until a job has been made for it.  With a deadline, it
 * waits until the result is not empty, or until then.  With a feed, what it
 * reads was empty when the clock was "since", so it waits for news first.
 * When it is resumed, its result is NULL if there was no news of that feed.
 */
void
http_job_add(HttpRequest *request, const HttpStatement *statement,
			 const char *const *arguments, Oid oid, uint64_t since,
			 int64_t deadline, enum MHD_Result (*go_on)(HttpRequest *request))
{
	uint64_t	hash = hash_read(statement, request->role, request->claims,
								 arguments);
	HttpFeed   *feed = NULL;
	HttpJob    *job;

	http_result_release(request->result);
	request->result = NULL;
	request->go_on = go_on;
	MHD_suspend_connection(request->connection);

	request->deadline = http_server_draining() ? 0 : deadline;
	if (request->deadline > 0)
		watch_client(request);
	if (oid != InvalidOid && request->deadline > 0)
		feed = find_feed(oid);
	job = find_job(hash, statement, request->role, request->claims, arguments);
	if (job != NULL)
	{
		statistics.joined++;
		if (job->feed != NULL && feed != job->feed &&
			(feed != NULL || request->deadline == 0 || job->result == NULL ||
			 http_now() - job->read_at >= FRESH || !http_listener_ready()))
		{
			stop_waiting(job);
			queue_job(job);
		}
	}
	else
	{
		job = http_alloc(sizeof(HttpJob));
		job->hash = hash;
		job->statement = statement;
		job->role = http_copy(request->role);
		job->claims = http_copy(request->claims);
		for (int i = 0; i < statement->nargs; i++)
			job->arguments[i] = http_copy(arguments[i]);
		insert_job(job);
		job->listens = feed != NULL && !is_heard(feed);
		if (feed != NULL && !job->listens && !has_news(feed, since))
			let_wait(job, feed);
		else
			queue_job(job);
	}
	add_request(job, request);
	if (request->deadline > 0)
		http_timer_add(request);
}

static void
add_request(HttpJob *job, HttpRequest *request)
{
	request->job = job;
	request->previous_of_job = NULL;
	request->next_of_job = job->requests;
	if (job->requests != NULL)
		job->requests->previous_of_job = request;
	job->requests = request;
	job->count++;
	if (job->feed != NULL)
		statistics.waiting++;
}

static void
watch_client(HttpRequest *request)
{
	struct epoll_event event = {.events = EPOLLRDHUP | EPOLLONESHOT,
								.data.ptr = request};
	const union MHD_ConnectionInfo *info;

	if (request->is_watched)
		return;
	info = MHD_get_connection_info(request->connection,
								   MHD_CONNECTION_INFO_CONNECTION_FD);
	request->socket = info->connect_fd;
	request->is_watched =
		epoll_ctl(watcher, EPOLL_CTL_ADD, request->socket, &event) == 0;
}

/* The request ends; its socket is still open. */
void
http_job_forget(HttpRequest *request)
{
	if (!request->is_watched)
		return;
	epoll_ctl(watcher, EPOLL_CTL_DEL, request->socket, NULL);
}

/* Take a request from its job, and resume it. */
static void
end_request(HttpRequest *request, HttpResult *result)
{
	if (request->previous_of_job != NULL)
		request->previous_of_job->next_of_job = request->next_of_job;
	else
		request->job->requests = request->next_of_job;
	if (request->next_of_job != NULL)
		request->next_of_job->previous_of_job = request->previous_of_job;
	request->job->count--;
	if (request->job->feed != NULL)
		statistics.waiting--;
	request->job = NULL;
	if (request->slot != NULL)
		http_timer_remove(request);
	if (result != NULL)
		result->refs++;
	request->result = result;
	http_resume(request);
}

/* The same for a request whose job waits. */
static void
end_waiting(HttpRequest *request)
{
	HttpJob    *job = request->job;

	end_request(request, job->result);
	if (job->requests != NULL)
		return;
	stop_waiting(job);
	remove_job(job);
	free_job(job);
}

bool
http_job_is_queued(void)
{
	return first_queued != NULL;
}

/* The next job, or NULL. */
HttpJob *
http_job_take(void)
{
	HttpJob    *job = first_queued;

	if (job == NULL)
		return NULL;
	first_queued = job->next;
	if (first_queued == NULL)
		last_queued = &first_queued;
	remove_job(job);
	statistics.made++;
	return job;
}

/* A job that was taken has not been made: it is queued once more. */
void
http_job_again(HttpJob *job)
{
	insert_job(job);
	queue_job(job);
}

/* What a read takes before its snapshot. */
uint64_t
http_job_clock(void)
{
	return clock_now;
}

/* A job has been made: its requests go on, or wait. */
void
http_job_done(HttpJob *job, HttpResult *result)
{
	bool		empty = false;
	int64_t		now = http_now();
	HttpRequest *next;
	HttpJob    *same;
	Oid			oid = InvalidOid;

	if (job->statement->feed != NULL && !http_result_failed(result))
		oid = job->statement->feed(result, &empty);
	result->refs = 1;
	job->tries = 0;

	for (HttpRequest *request = job->requests; request != NULL; request = next)
	{
		next = request->next_of_job;
		if (!empty || request->deadline <= now || request->is_gone ||
			http_server_draining())
			end_request(request, result);
	}
	if (job->requests == NULL)
		free_job(job);
	else
	{
		HttpFeed   *feed = find_feed(oid);

		if (result->of_standby)
			http_listener_renew();
		else if (job->listens)
			feed->heard_until = now + LISTENED;
		job->listens = !is_heard(feed);

		/* a read that began later knows at least as much */
		same = find_job(job->hash, job->statement, job->role, job->claims,
						(const char *const *) job->arguments);
		if (same == NULL)
		{
			http_result_release(job->result);
			job->result = result;
			result->refs++;
			job->read_at = now;
			insert_job(job);
			if ((job->listens && !result->of_standby) ||
				has_news(feed, result->started))
				queue_job(job);
			else
				let_wait(job, feed);
		}
		else
		{
			/* it may wait without a result, which these requests need */
			if (same->result == NULL)
			{
				same->result = result;
				result->refs++;
				same->read_at = now;
			}
			for (HttpRequest *request = job->requests; request != NULL;
				 request = next)
			{
				next = request->next_of_job;
				add_request(same, request);
			}
			free_job(job);
		}
	}
	http_result_release(result);
}

static void
queue_waiting(HttpFeed *feed)
{
	while (feed->waiting != NULL)
	{
		HttpJob    *job = feed->waiting;

		stop_waiting(job);
		queue_job(job);
	}
}

/*
 * A feed has news: what waits for it is read again.  Any role can announce any
 * number, so nothing is made for a feed that no job has waited for.
 */
void
http_job_news(Oid oid)
{
	HttpFeed   *feed = known_feed(oid);

	clock_now++;
	if (feed == NULL)
	{
		news_of_others = clock_now;
		return;
	}
	feed->news = clock_now;
	queue_waiting(feed);
}

/* Any feed may have news. */
void
http_job_news_of_all(void)
{
	news_of_all = ++clock_now;
	for (int i = 0; i < FEED_BUCKETS; i++)
		for (HttpFeed *feed = feeds[i]; feed != NULL; feed = feed->next)
			queue_waiting(feed);
}

/* The next server may know nothing of what was listened to. */
void
http_job_forget_listening(void)
{
	for (int i = 0; i < FEED_BUCKETS; i++)
		for (HttpFeed *feed = feeds[i]; feed != NULL; feed = feed->next)
			feed->heard_until = 0;
}

/*
 * The server drains: resume all that wait.  It must be known that it does, so
 * that what runs now does not wait afterwards.
 */
void
http_job_end_waiting(void)
{
	for (int i = 0; i < FEED_BUCKETS; i++)
		for (HttpFeed *feed = feeds[i]; feed != NULL; feed = feed->next)
			while (feed->waiting != NULL)
				end_waiting(feed->waiting->requests);
}

/* End what is late.  Returns in how many ms to be called again, or -1. */
int64_t
http_job_sweep(void)
{
	return http_timer_sweep(end_late, NULL);
}

/* The deadline has come.  If the job is queued or runs, its result comes soon. */
static bool
end_late(HttpRequest *request, void *arg)
{
	if (request->job->feed == NULL)
		return false;
	end_waiting(request);
	return true;
}

/* End the requests whose clients went away while they waited. */
static void
take_gone(HttpSource *source, uint32_t ready)
{
	struct epoll_event events[64];
	int			count;

	while ((count = epoll_wait(watcher, events, lengthof(events), 0)) > 0)
		for (int i = 0; i < count; i++)
		{
			HttpRequest *request = events[i].data.ptr;

			request->is_gone = true;
			if (request->job != NULL && request->job->feed != NULL)
				end_waiting(request);
		}
}
