/*-------------------------------------------------------------------------
 *
 * republish.h
 *	  Rows that are stamped anew.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_REPUBLISH_H
#define FEEDPUB_REPUBLISH_H

#include "publish/publish.h"

/* Which rows of a table a pass looks for, one kind after the other. */
typedef enum FeedpubRestampKind
{
	FEEDPUB_RESTAMP_UNSTAMPED,	/* without a stamp, or with half of one */
	FEEDPUB_RESTAMP_OLD,		/* with an xid below a bound */
	FEEDPUB_RESTAMP_FOREIGN,	/* one that this server has not assigned */
	FEEDPUB_RESTAMP_END,
} FeedpubRestampKind;

/*
 * The rows of a table that are to be stamped anew, and the state of the pass.
 */
typedef struct FeedpubRestamp
{
	Oid			relid;
	uint64		below;			/* the bound; 0: there are no old ones */
	bool		foreign;		/* look for those with foreign stamps, too */
	bool		only_foreign;	/* look for those only */

	/* where the pass is */
	FeedpubRestampKind kind;
	Oid			file;			/* the table's file, which tid is of */
	uint64		xid;
	int64		pos;
	ItemPointerData tid;
	int64		found;			/* in this pass, without those that failed */
	int64		moved;			/* of these, how many have been stamped */
	int64		failed;			/* also those that a trigger suppressed */
	bool		ended;

	/* of the step */
	int64		stamped;
	int64		left;			/* rows that are locked, or have changed */
	ItemPointerData left_tid;	/* one of them */
	char	   *error;			/* what the last failed row has raised */
	ItemPointerData error_tid;
} FeedpubRestamp;

/* The result of a step for the partitions of a feed. */
typedef enum FeedpubStampingOutcome
{
	FEEDPUB_STAMPING_NOTHING,	/* nothing to do, or another process does it */
	FEEDPUB_STAMPING_WAITS,		/* for locks, or running transactions */
	FEEDPUB_STAMPING_GOES_ON,
} FeedpubStampingOutcome;

typedef struct FeedpubStamping
{
	FeedpubStampingOutcome outcome;
	int			npending;		/* partitions that may have such rows */
	int64		stamped;
} FeedpubStamping;

/* in republish.c */
extern void feedpub_republish_begin_transaction(void);

/* in restamp.c */
extern void feedpub_restamp_check(Relation rel);
extern void feedpub_restamp_begin_as_owner(Relation rel, FeedpubRole *caller);
extern void feedpub_restamp_begin(FeedpubRestamp *pass, Oid relid,
								  uint64 below, bool foreign);
extern void feedpub_restamp_some(FeedpubRestamp *pass, Relation rel,
								 int max_rows);
extern void feedpub_restamp_all(Relation rel, const char *which);
extern bool feedpub_restamp_wait(const FeedpubRestamp *pass, Relation rel,
								 int timeout_ms);

/* in stamping.c */
extern void feedpub_stamping_step(Oid feed, int max_rows, bool wait,
								  FeedpubStamping *step);
extern void feedpub_stamping_retry(Oid feed);
extern int64 feedpub_stamping_failed(Oid feed);
extern void feedpub_stamping_note_error(Oid feed, const char *error);
extern void feedpub_stamping_begin_turn(Oid feed);
extern void feedpub_stamping_end_turn(Oid feed);

#endif							/* FEEDPUB_REPUBLISH_H */
