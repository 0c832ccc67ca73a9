/*-------------------------------------------------------------------------
 *
 * job.c
 *	  Jobs: queued, running, or waiting for news of a feed.
 *
 * A job is a task of the pool, and the requests that want its result, its
 * waiters.  Requests for equal reads share one job, which is found by its hash.  They never join a job that runs: its snapshot may be older than
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
 *-------------------------------------------------------------------------
 */
#include "jobs/jobs.h"

#include <stdlib.h>
#include <string.h>

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

typedef struct Feed Feed;

struct Job
{
	DbTask		task;			/* the first member */
	DbStatement statement;		/* of the task, if it writes: the waiter's may go */
	uint64_t	hash;
	bool		is_listed;
	bool		runs;			/* then it is not joined */
	Job		   *follower;		/* an equal one, queued when this one has ended */
	Job		   *next_of_bucket;
	JobWaiter  *waiters;
	int			count;			/* of them */
	Feed	   *feed;			/* that it waits for, or NULL */
	Job		   *next;			/* of those that wait for it */
	Job		   *previous;
	DbResult   *result;			/* the last one, empty, or NULL */
	int64_t		read_at;		/* ms, by base_now() */
};

/* A feed that a job has waited for. */
struct Feed
{
	Feed	   *next;
	Oid			oid;
	uint64_t	news;			/* the clock when it last had news */
	int64_t		heard_until;	/* ms; its news is announced */
	Job		   *waiting;
};

static Job *jobs[JOB_BUCKETS];	/* reads */
static Feed *feeds[FEED_BUCKETS];	/* never freed: as many as there are feeds */
static uint64_t clock_now;
static uint64_t news_of_all;	/* the clock when all feeds last had news */
static uint64_t news_of_others; /* the same of those that are not in "feeds" */
static JobStatistics statistics;

static bool is_lost;			/* the database, since the listener had it */
static bool ends;				/* nothing waits any more */

static uint64_t add_hash(uint64_t hash, const char *text);
static uint64_t hash_read(const DbStatement *statement, const char *role,
						  const char *claims, const char *const *arguments);
static bool same_text(const char *a, const char *b);
static Job *find_job(uint64_t hash, const DbStatement *statement,
					 const char *role, const char *claims,
					 const char *const *arguments, bool runs);
static void insert_job(Job *job);
static void remove_job(Job *job);
static void free_job(Job *job);
static void queue_job(Job *job);
static void let_wait(Job *job, Feed *feed);
static void stop_waiting(Job *job);
static Feed *known_feed(Oid oid);
static Feed *find_feed(Oid oid);
static bool has_news(const Feed *feed, uint64_t since);
static bool is_heard(const Feed *feed);
static bool is_wanted(const DbTask *task);
static void begins(DbTask *task, DbResult *result);
static void ended(DbTask *task, DbResult *result);
static void go_on(Job *job, DbResult *result, Oid oid);
static void join(Job *job, DbResult *result, Job *same);
static void add_waiter(Job *job, JobWaiter *waiter);
static void end_waiter(JobWaiter *waiter, DbResult *result);
static void end_waiting(JobWaiter *waiter);
static void drop_waiting(Job *job);
static void remove_waiter(JobWaiter *waiter);
static void queue_waiting(Feed *feed);
static void end_late(BaseTimer *timer);
static void hear_news(Oid oid);
static void hear_news_of_all(void);
static void forget_listening(void);

/* Begin to hear what jobs wait for. */
void
job_start(void)
{
	static const DbHearer hearer = {.news = hear_news,
									.news_of_all = hear_news_of_all,
									.lost = forget_listening};

	db_listener_start(&hearer);
}

void
job_statistics(JobStatistics *copy)
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
hash_read(const DbStatement *statement, const char *role, const char *claims,
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

/* The job that makes this read, and runs, or the one that does not. */
static Job *
find_job(uint64_t hash, const DbStatement *statement, const char *role,
		 const char *claims, const char *const *arguments, bool runs)
{
	Job		   *job = statement->writes ? NULL : jobs[hash % JOB_BUCKETS];

	for (; job != NULL; job = job->next_of_bucket)
	{
		const DbTask *task = &job->task;
		bool		same = job->runs == runs && job->hash == hash && task->statement == statement &&
			strcmp(task->role, role) == 0 && strcmp(task->claims, claims) == 0;

		for (int i = 0; same && i < statement->nargs; i++)
			same = same_text(task->arguments[i], arguments[i]);
		if (same)
			break;
	}
	return job;
}

static void
insert_job(Job *job)
{
	if (job->task.statement->writes)
		return;
	job->is_listed = true;
	job->next_of_bucket = jobs[job->hash % JOB_BUCKETS];
	jobs[job->hash % JOB_BUCKETS] = job;
}

static void
remove_job(Job *job)
{
	Job		  **link = &jobs[job->hash % JOB_BUCKETS];

	if (!job->is_listed)
		return;
	while (*link != job)
		link = &(*link)->next_of_bucket;
	*link = job->next_of_bucket;
	job->is_listed = false;
}

static void
free_job(Job *job)
{
	db_result_release(job->result);
	free((char *) job->statement.text);
	free(job->task.role);
	free(job->task.claims);
	free(job->task.share);
	for (int i = 0; i < DB_MAX_ARGUMENTS; i++)
		free(job->task.arguments[i]);
	free(job);
}

/*
 * The job neither waits nor is queued.  If an equal one runs, this one is
 * queued when that has ended, so that equal reads never have more than one
 * session of the pool.
 */
static void
queue_job(Job *job)
{
	const DbTask *task = &job->task;
	Job		   *other = find_job(job->hash, task->statement, task->role, task->claims,
								 (const char *const *) task->arguments, true);

	job->feed = NULL;
	if (other != NULL)
		other->follower = job;
	else
		db_pool_add(&job->task);
}

static void
let_wait(Job *job, Feed *feed)
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
stop_waiting(Job *job)
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

static Feed *
known_feed(Oid oid)
{
	Feed	   *feed = feeds[oid % FEED_BUCKETS];

	while (feed != NULL && feed->oid != oid)
		feed = feed->next;
	return feed;
}

static Feed *
find_feed(Oid oid)
{
	Feed	  **bucket = &feeds[oid % FEED_BUCKETS];
	Feed	   *feed = known_feed(oid);

	if (feed != NULL)
		return feed;
	feed = base_alloc(sizeof(Feed));
	feed->oid = oid;
	feed->news = news_of_others;
	feed->next = *bucket;
	*bucket = feed;
	return feed;
}

static bool
has_news(const Feed *feed, uint64_t since)
{
	return feed->news > since || news_of_all > since;
}

/* Is the news of a feed announced? */
static bool
is_heard(const Feed *feed)
{
	return base_now() < feed->heard_until;
}

/*
 * Have a job made for a waiter, which is resumed when it has been.  With a
 * deadline, it waits until the result is not empty, or until then.  With a
 * feed, what it reads was empty when the clock was "since", so it waits for
 * news first.
 */
void
job_add(JobWaiter *waiter, const DbStatement *statement, const char *role,
		const char *claims, const char *share, const char *const *arguments,
		Oid oid, uint64_t since, int64_t deadline)
{
	uint64_t	hash = hash_read(statement, role, claims, arguments);
	bool		waits = deadline > 0 && !ends;
	Feed	   *feed = oid != InvalidOid && waits ? find_feed(oid) : NULL;
	Job		   *job;

	db_result_release(waiter->result);
	waiter->result = NULL;
	job = find_job(hash, statement, role, claims, arguments, false);
	if (job != NULL)
	{
		statistics.joined++;
		if (job->feed != NULL && feed != job->feed &&
			(feed != NULL || !waits || job->result == NULL ||
			 base_now() - job->read_at >= FRESH || !db_listener_ready()))
		{
			stop_waiting(job);
			queue_job(job);
		}
	}
	else
	{
		job = base_alloc(sizeof(Job));
		job->hash = hash;
		job->task.statement = statement;
		if (statement->writes)
		{
			job->statement = *statement;
			job->statement.text = base_copy(statement->text);
			job->task.statement = &job->statement;
		}
		job->task.role = base_copy(role);
		job->task.claims = base_copy(claims);
		job->task.share = base_copy(share);
		for (int i = 0; i < statement->nargs; i++)
			job->task.arguments[i] = base_copy(arguments[i]);
		job->task.begins = begins;
		job->task.ended = ended;
		job->task.wanted = is_wanted;
		insert_job(job);
		job->task.listens = feed != NULL && !is_heard(feed);
		if (feed != NULL && !job->task.listens && !has_news(feed, since))
			let_wait(job, feed);
		else
			queue_job(job);
	}
	add_waiter(job, waiter);
	waiter->timer.at = 0;
	if (waits)
	{
		waiter->timer.due = end_late;
		base_timer_set(&waiter->timer, deadline);
	}
}

static void
add_waiter(Job *job, JobWaiter *waiter)
{
	waiter->job = job;
	waiter->previous = NULL;
	waiter->next = job->waiters;
	if (job->waiters != NULL)
		job->waiters->previous = waiter;
	job->waiters = waiter;
	job->count++;
	if (job->feed != NULL)
		statistics.waiting++;
}

/* Take a waiter from its job. */
static void
remove_waiter(JobWaiter *waiter)
{
	if (waiter->previous != NULL)
		waiter->previous->next = waiter->next;
	else
		waiter->job->waiters = waiter->next;
	if (waiter->next != NULL)
		waiter->next->previous = waiter->previous;
	waiter->job->count--;
	if (waiter->job->feed != NULL)
		statistics.waiting--;
	waiter->job = NULL;
	base_timer_stop(&waiter->timer);
}

static void
end_waiter(JobWaiter *waiter, DbResult *result)
{
	remove_waiter(waiter);
	if (result != NULL)
		result->refs++;
	waiter->result = result;
	waiter->resume(waiter);
}

/* The same for one whose job waits. */
static void
end_waiting(JobWaiter *waiter)
{
	Job		   *job = waiter->job;
	DbResult   *result = job->result;

	if (result != NULL)
		result->refs++;
	remove_waiter(waiter);
	if (job->waiters == NULL)
		drop_waiting(job);
	waiter->result = result;
	waiter->resume(waiter);
}

/* A job that waits has no waiters any more. */
static void
drop_waiting(Job *job)
{
	stop_waiting(job);
	remove_job(job);
	free_job(job);
}

/* A client has gone away: if it waits, it is resumed, and never waits again. */
void
job_leave(JobWaiter *waiter)
{
	waiter->is_gone = true;
	if (waiter->job != NULL && waiter->job->feed != NULL)
		end_waiting(waiter);
}

/*
 * A waiter is about to be freed.  Its job goes on, if it is queued or runs: a
 * write may have been made.
 */
void
job_forget(JobWaiter *waiter)
{
	Job		   *job = waiter->job;

	if (job == NULL)
		return;
	remove_waiter(waiter);
	if (job->waiters == NULL && job->feed != NULL)
		drop_waiting(job);
}

/* Is there a client for the result? */
static bool
is_wanted(const DbTask *task)
{
	for (const JobWaiter *waiter = ((const Job *) task)->waiters; waiter != NULL; waiter = waiter->next)
		if (!waiter->is_gone)
			return true;
	return false;
}

/* What a read takes before its snapshot; and it is not joined any more. */
static void
begins(DbTask *task, DbResult *result)
{
	((Job *) task)->runs = true;
	statistics.made++;
	result->started = clock_now;
}

/* A job has been made: its waiters go on, or wait. */
static void
ended(DbTask *task, DbResult *result)
{
	Job		   *job = (Job *) task;
	Job		   *follower = job->follower;
	bool		empty = false;
	int64_t		now = base_now();
	JobWaiter  *next;
	Oid			oid = InvalidOid;

	remove_job(job);
	job->runs = false;
	job->follower = NULL;
	if (task->statement->feed != NULL && !db_result_failed(result))
		oid = task->statement->feed(result, &empty);
	for (JobWaiter *waiter = job->waiters; waiter != NULL; waiter = next)
	{
		next = waiter->next;
		if (!empty || waiter->timer.at <= now || waiter->is_gone || ends)
			end_waiter(waiter, result);
	}
	if (job->waiters == NULL)
		free_job(job);
	else
		go_on(job, result, oid);
	db_result_release(result);

	/* the waiters of this job may have joined it */
	if (follower != NULL)
		db_pool_add(&follower->task);
}

/* The result of a job is empty, and it has waiters that have time left. */
static void
go_on(Job *job, DbResult *result, Oid oid)
{
	Feed	   *feed = find_feed(oid);
	DbTask	   *task = &job->task;
	Job		   *same;

	if (result->of_standby)
		db_listener_renew();
	else if (task->listens)
		feed->heard_until = base_now() + LISTENED;
	task->listens = !is_heard(feed);

	/* a read that began later knows at least as much */
	same = find_job(job->hash, task->statement, task->role, task->claims,
					(const char *const *) task->arguments, false);
	if (same != NULL)
	{
		join(job, result, same);
		return;
	}
	db_result_release(job->result);
	job->result = result;
	result->refs++;
	job->read_at = base_now();
	insert_job(job);
	if ((task->listens && !result->of_standby) || has_news(feed, result->started))
		queue_job(job);
	else
		let_wait(job, feed);
}

static void
join(Job *job, DbResult *result, Job *same)
{
	JobWaiter  *next;

	/* it may wait without a result, which these waiters need */
	if (same->result == NULL)
	{
		same->result = result;
		result->refs++;
		same->read_at = base_now();
	}
	for (JobWaiter *waiter = job->waiters; waiter != NULL; waiter = next)
	{
		next = waiter->next;
		add_waiter(same, waiter);
	}
	free_job(job);
}

static void
queue_waiting(Feed *feed)
{
	while (feed->waiting != NULL)
	{
		Job		   *job = feed->waiting;

		stop_waiting(job);
		queue_job(job);
	}
}

/*
 * A feed has news: what waits for it is read again.  Any role can announce any
 * number, so nothing is made for a feed that no job has waited for.
 */
static void
hear_news(Oid oid)
{
	Feed	   *feed = known_feed(oid);

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
static void
hear_news_of_all(void)
{
	news_of_all = ++clock_now;
	if (is_lost)
		db_pool_connect();
	is_lost = false;
	for (int i = 0; i < FEED_BUCKETS; i++)
		for (Feed *feed = feeds[i]; feed != NULL; feed = feed->next)
			queue_waiting(feed);
}

/* The next server may know nothing of what was listened to. */
static void
forget_listening(void)
{
	is_lost = true;
	for (int i = 0; i < FEED_BUCKETS; i++)
		for (Feed *feed = feeds[i]; feed != NULL; feed = feed->next)
			feed->heard_until = 0;
}

/* Resume all that wait, and let none wait any more. */
void
job_end_waiting(void)
{
	ends = true;
	for (int i = 0; i < FEED_BUCKETS; i++)
		for (Feed *feed = feeds[i]; feed != NULL; feed = feed->next)
			while (feed->waiting != NULL)
				end_waiting(feed->waiting->waiters);
}

bool
job_ending(void)
{
	return ends;
}

/*
 * The deadline has come.  If the job is queued or runs, its result comes soon,
 * and is the answer.
 */
static void
end_late(BaseTimer *timer)
{
	JobWaiter  *waiter = (JobWaiter *) ((char *) timer - offsetof(JobWaiter, timer));

	if (waiter->job->feed != NULL)
		end_waiting(waiter);
}
