/*-------------------------------------------------------------------------
 *
 * jobs.h
 *	  Reads that many share, and waits for news of feeds: job.c says how.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_HTTP_JOBS_H
#define FEEDPUB_HTTP_JOBS_H

#include "database/database.h"

typedef struct Job Job;

/* A request that wants the result of a job. */
typedef struct JobWaiter JobWaiter;
struct JobWaiter
{
	/* its result is there; NULL if there was no news of the feed */
	void (*resume)(JobWaiter *waiter);
	DbResult   *result;

	/* of job.c */
	Job		   *job;			/* or NULL */
	JobWaiter  *next;
	JobWaiter  *previous;
	BaseTimer	timer;			/* its wait ends; "at" is 0 if it does not wait */
	bool		is_gone;		/* it waits no more; once set, it stays */
};

/* Counts since the start, and of now. */
typedef struct JobStatistics
{
	uint64_t	made;			/* jobs */
	uint64_t	joined;			/* waiters that joined a job */
	int			waiting;		/* waiters that wait for news */
} JobStatistics;

/* in job.c */
extern void job_start(void);
extern void job_statistics(JobStatistics *copy);
extern void job_add(JobWaiter *waiter, const DbStatement *statement,
					const char *role, const char *claims, const char *share,
					const char *const *arguments, Oid feed, uint64_t since,
					int64_t deadline);
extern void job_leave(JobWaiter *waiter);
extern void job_forget(JobWaiter *waiter);
extern void job_end_waiting(void);
extern bool job_ending(void);

#endif							/* FEEDPUB_HTTP_JOBS_H */
