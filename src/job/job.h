/*-------------------------------------------------------------------------
 *
 * job.h
 *	  Jobs: long work on the rows of one table, in steps.
 *
 * There are four kinds, and one engine for them.
 *
 *	  kind		what a step does to some rows			whose code may run
 *	  stamp		stamps rows that a partition came with	the partition's owner's
 *	  remove	deletes rows before an outbox's floor	the outbox's owner's
 *	  expire	deletes tombstones before a floor		none
 *	  sweep		deletes what dropped feeds have left	none
 *
 * What there is to do follows from the feeds, and is read anew each time: the
 * view feedpub._work has a row for each job, with its target.  The target is
 * what the job is to reach: since of the partition (feed/partition_join.c), or the
 * number of the floor's batch.  feedpub._job has how far a job is.  A job is
 * done if that row says so for the target of now.  So what a job writes says
 * nothing about a later target, and nothing has to be undone when a feed, a
 * partition or a floor changes.
 *
 * A step is a short transaction: it takes the job's lock, checks that the
 * target is still the one of now, under a lock that keeps it, and works on some
 * rows (rows.c).  It is bounded in rows, which adapt to STEP_TIME (step.c), and in
 * the background in time (process.c).
 * A pass goes over all rows that the job is about; passes are repeated until
 * none is left.  Where a pass is, is in the memory of the session that makes
 * the steps, and is written into feedpub._job, as it is in memory.  A dump does
 * not have it.  If that is lost, because the
 * session ended or the server crashed, the next one goes on from what was
 * written: rows that were done since are not found again.
 *
 * The kinds differ in what they lock and check first, and in which rows they
 * look for: stamp.c, expire.c.  All else is the same: rows.c finds, locks and
 * changes rows, and tries a row alone if its trigger or check fails.
 *
 * Sessions that make steps: a process in the background (process.c), and
 * feed_republish() and feed_purge() in the session of the caller, which commit
 * between steps.  Two may work on the same job: the lock excludes them from a
 * step at the same time, and each has a pass of its own.  What feed_republish()
 * adds to a stamp job, the rows that are in the feed, is in its session only: if
 * it is interrupted, no other goes on with that.
 *
 * Progress.  Each step writes feedpub._job, except feed_republish()'s of the
 * feed's own table, which is no job: others go on with nothing of it.  The two
 * procedures tell their caller after some seconds, and from time to time.
 *
 * Retries.  When a turn of a job begins, its row counts an attempt, and a time
 * before which no other turn begins, each time twice as long.  If the turn ends
 * well, both are taken back.  So a turn that is killed, or crashes the server,
 * has been counted.
 *
 * Owners.  The database's worker starts processes, apart from the publisher
 * (plan.c).  A process works for one owner, and owners take turns.  If the code
 * of an owner does not let go, another process works for the others, up to a
 * limit.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_JOB_H
#define FEEDPUB_JOB_H

#include "publish/publish.h"

typedef enum FeedpubJobKind
{
	FEEDPUB_JOB_STAMP,
	FEEDPUB_JOB_REMOVE,
	FEEDPUB_JOB_EXPIRE,
	FEEDPUB_JOB_SWEEP,
} FeedpubJobKind;

/* Which rows of a table a pass looks for, one kind after the other. */
typedef enum FeedpubRows
{
	FEEDPUB_ROWS_UNSTAMPED,		/* without a stamp, or with half of one */
	FEEDPUB_ROWS_BEFORE,		/* with a stamp that a snapshot sees */
	FEEDPUB_ROWS_FOREIGN,		/* with one that this server has not assigned */
	FEEDPUB_ROWS_END,
} FeedpubRows;

/*
 * Going over the rows of a table, and the state of that.  What comes before
 * removes is kept in feedpub._job, as it is here.
 */
typedef struct FeedpubPass
{
	uint64		target;			/* of the job that it is for */
	uint64		from_xid;		/* where it begins */
	uint64		xid;			/* and where it is */
	int64		pos;
	int64		moved;			/* rows that it has stamped or removed */
	int64		left;			/* that were locked, or had changed */
	int64		failed;			/* also those that a trigger suppressed */
	FeedpubRows kind;
	Oid			file;			/* the table's file, which tid is of */
	ItemPointerData tid;
	bool		settled;		/* stamp: no older writer ran at its start */

	bool		removes;		/* by a DELETE; else rows are stamped anew */
	int			kinds;			/* 1 << FeedpubRows, for each kind */
	FeedpubSnapshot before;		/* of FEEDPUB_ROWS_BEFORE */
	Oid			feed;			/* whose, in feedpub._tombstone; else 0 */
	bool		ended;
	TransactionId left_xid;		/* one that has locked such a row, or 0 */
	char		error[FEEDPUB_ERROR_LENGTH];	/* the last; '': none */
	int64		done;			/* rows, by the last step */
} FeedpubPass;

/* What a step has come to. */
typedef enum FeedpubJobOutcome
{
	FEEDPUB_JOB_NOTHING,		/* there is no such job, or others do it */
	FEEDPUB_JOB_GOES_ON,
	FEEDPUB_JOB_WAITS,			/* for locks, running transactions, a mend */
	FEEDPUB_JOB_DONE,
} FeedpubJobOutcome;

/* A job. */
typedef struct FeedpubJob
{
	Oid			feed;
	FeedpubJobKind kind;
	Oid			relation;		/* the partition, or the feed's table */
	uint64		target;
	uint64		republished;	/* stamp: rows with stamps below it, too; or 0 */
	Oid			owner;			/* whose code may run; InvalidOid: no code */
	bool		running;		/* in the background, as its row says */
	bool		busy;			/* or another one of that owner */
	int64		wait_ms;		/* until its next turn */
	int			attempts;
	int64		locked;			/* rows that the last pass has left */
	int64		failed;
	FeedpubPass pass;
	int			max_rows;		/* of the next step */
	int64		total;			/* rows of all steps in this session */
	double		ratio;			/* about how much of it is done; 0: not known */
	int64		first_pos;		/* remove, expire: of the first row */
	TimestampTz began;			/* in a procedure, the first step */
	TimestampTz tell_at;		/* when the caller is to be told next */
} FeedpubJob;

/* in step.c */
extern const char *const feedpub_job_names[];
extern List *feedpub_job_list(Oid feed);
extern void feedpub_job_begin(FeedpubJob *job, bool in_background, bool anew);
extern FeedpubJobOutcome feedpub_job_step(FeedpubJob *job, bool wait);
extern FeedpubJobOutcome feedpub_job_run(FeedpubJob *job);
extern void feedpub_job_end(const FeedpubJob *job, bool progressed,
							const char *error);
extern int64 feedpub_job_failed_rows(Oid feed);
extern int64 feedpub_job_stamped_rows(void);
extern void feedpub_job_begin_transaction(void);

/* in plan.c */
extern void feedpub_plan_jobs(FeedpubWorkerStats *stats);
extern long feedpub_plan_wait(void);
extern void feedpub_plan_end(void);

/* in expire.c */
extern bool feedpub_remove_rows(FeedpubJob *job, Relation rel);

/* in rows.c */
extern void feedpub_rows_check(Relation rel, bool removes);
extern void feedpub_rows_some(FeedpubPass *pass, Relation rel, int max_rows);
extern void feedpub_rows_stamp_all(Relation rel, const char *which);

/* in stamp.c */
extern uint64 feedpub_stamp_target(Oid feed, Relation rel);
extern bool feedpub_stamp_rows(FeedpubJob *job, Relation rel);

#endif							/* FEEDPUB_JOB_H */
